"""All configurations: the edges of what each field may be, and what a configuration brings with it."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import SimpleNamespace

import pytest
from transformers import BertConfig, PretrainedConfig, SwinConfig

import hf_curriculum.auto_classes as package
from hf_curriculum.models.flamingo.config import CaptionFlamingoConfig
from hf_curriculum.models.git.config import CaptionGitConfig
from hf_curriculum.names import AUTO_CLASSES
from hf_curriculum.tasks.alignment import AlignerConfig
from hf_curriculum.tasks.captioning import AoANetConfig, RegionTransformerConfig, UpDownConfig
from hf_curriculum.tasks.captioning.models import base
from hf_curriculum.tasks.detection import ConvBackboneConfig, WsddnConfig

MODULES = {
    AlignerConfig: "tasks.alignment.model",
    AoANetConfig: "tasks.captioning.models.aoanet",
    CaptionFlamingoConfig: "models.flamingo.model",
    CaptionGitConfig: "models.git.model",
    ConvBackboneConfig: "tasks.detection.backbone",
    RegionTransformerConfig: "tasks.captioning.models.transformer",
    UpDownConfig: "tasks.captioning.models.updown",
    WsddnConfig: "tasks.detection.model",
}
COUNTS = (
    "cross_attention_every", "cross_attention_heads", "cross_attention_head_dim", "perceiver_depth",
    "perceiver_latents", "feed_forward_multiple", "max_images",
)  # fmt: skip
AOANET = ("feature_dropout", "word_dropout", "output_dropout", "context_dropout", "refiner_dropout", "aoa_dropout")
TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id", "unk_token_id")
SAID = {"num_labels": "has 1 class", **dict.fromkeys(TOKENS, r"The token id (-2|9488) is none of 9488 outputs")}
LAST = 9487  # of the outputs that a captioner on regions has by default
EDGES = [
    *((CaptionFlamingoConfig, name, 1, 0) for name in COUNTS),
    (AlignerConfig, "region_feature_size", 1, 0),
    (AlignerConfig, "intermediate_size", 1, 0),
    (AlignerConfig, "num_attention_heads", 1, -1),
    (AlignerConfig, "num_attention_heads", 768, 769),
    *((AlignerConfig, "dropout", *edge) for edge in ((0.0, -0.01), (0.99, 1.0))),
    (RegionTransformerConfig, "num_attention_heads", 1, 0),
    (RegionTransformerConfig, "num_attention_heads", 512, -1),
    *((AoANetConfig, name, *edge) for name in AOANET for edge in ((0.0, -0.01), (0.99, 1.0))),
    *((UpDownConfig, name, *edge) for name in TOKENS for edge in ((0, -2), (LAST, LAST + 1), (None, LAST + 1))),
    (UpDownConfig, "eos_token_id", [0, LAST], [0, LAST + 1]),
    (WsddnConfig, "frozen_stages", 5, 6),
    (WsddnConfig, "num_labels", 2, 1),
    (ConvBackboneConfig, "stages", [[1]], []),
    (ConvBackboneConfig, "stages", [[3, 4], [7]], [[3], []]),
    (ConvBackboneConfig, "stages", [[3], [4], [7]], [[], [3]]),
]


@pytest.mark.parametrize(("config", "name", "last", "beyond"), EDGES)
def test_edges_of_what_a_field_may_be(config, name, last, beyond):
    assert getattr(config(**{name: last}), name) == last
    with pytest.raises(ValueError, match=SAID.get(name, f"{name}=")):
        config(**{name: beyond})


@pytest.mark.parametrize("config", MODULES)
def test_a_configuration_imports_its_model_and_keeps_further_fields(config, monkeypatch):
    imported = []
    monkeypatch.setattr(sys.modules[config.__new__.__module__], "import_module", imported.append)
    made = config(id2label={0: "a", 1: "b", 2: "c"}, note="kept")
    assert imported[0] == f"hf_curriculum.{MODULES[config]}"  # then those of its parts
    assert (made.id2label, made.note) == ({0: "a", 1: "b", 2: "c"}, "kept")


def test_what_one_field_says_of_another():
    assert UpDownConfig(hidden_size=7).hidden_size == 7  # heads are those of other captioners
    assert [UpDownConfig(20, unk_token_id=given).unk_token_id for given in (-1, 0, 3, None)] == [19, 0, 3, None]
    small = {"hidden_size": 6, "num_attention_heads": 3}
    heads = [AlignerConfig(BertConfig(**small), num_attention_heads=given).num_attention_heads for given in (None, 2)]
    assert heads == [3, 2]
    assert AlignerConfig(PretrainedConfig(hidden_size=5)).num_attention_heads == 1
    swin = SwinConfig()
    del swin.hidden_size
    swin.hidden_sizes = [4, 8, 16]
    assert RegionTransformerConfig(vision_config=swin).region_feature_size == 16
    backbone = ConvBackboneConfig(stages=((4, 5), (6, 7), (8, 9)))
    assert (backbone.stride, backbone.hidden_size) == (4, 9)
    assert CaptionFlamingoConfig(text_config={"layerdrop": 0.0}, image_token_id=3).text_config.vocab_size == 50_272
    config = CaptionFlamingoConfig(image_token_id=3, pad_token_id=1, bos_token_id=5, eos_token_id=[6, 7])
    assert (config.pad_token_id, config.bos_token_id, config.eos_token_id) == (1, 5, [6, 7])


def test_a_captioner_is_registered_with_every_auto_class(monkeypatch):
    given = []
    for name in ("AutoModel", "AutoModelForCausalLM", "AutoModelForImageTextToText", "AutoProcessor"):
        known = SimpleNamespace(register=lambda *parts, name=name, **options: given.append((name, *parts, options)))
        monkeypatch.setattr(base, name, known)
    monkeypatch.setattr(base, "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", names := {})
    config = SimpleNamespace(model_type="curriculum_written")
    base.register(config, dict, list)
    once_more = {"exist_ok": True}
    assert given == [
        ("AutoModel", config, dict, once_more),
        ("AutoModelForCausalLM", config, list, once_more),
        ("AutoModelForImageTextToText", config, list, once_more),
        ("AutoProcessor", config, base.CaptionProcessor, once_more),
    ]
    assert names == {"curriculum_written": "list"}


class _Loader:
    def __init__(self, done):
        self.done = done

    def exec_module(self, module):
        self.done.append(module)


def test_our_modules_are_imported_after_those_of_transformers(monkeypatch):
    for auto_class, ours in AUTO_CLASSES.items():
        done, finder = [], package._AfterImport(auto_class)
        monkeypatch.setattr(package, "import_module", done.append)
        for loader, wanted in ((_Loader(done), ["module", *(f"hf_curriculum.{one}" for one in ours)]), (None, [])):
            spec = ModuleSpec(auto_class, loader)
            monkeypatch.setattr(package, "find_spec", {auto_class: spec}.get)
            monkeypatch.setattr(sys, "meta_path", [finder])
            assert finder.find_spec("json") is None
            assert sys.meta_path == [finder]
            assert finder.find_spec(auto_class) is spec
            assert sys.meta_path == []
            if spec.loader is not None:
                spec.loader.exec_module("module")
            assert done == wanted
            done.clear()
        monkeypatch.setattr(package, "find_spec", lambda name: None)
        monkeypatch.setattr(sys, "meta_path", [finder])
        assert finder.find_spec(auto_class) is None
