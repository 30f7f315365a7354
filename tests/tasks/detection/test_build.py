"""`new_detector`: backbones by name, and VGG16's weights by torchvision's and timm's names."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from transformers import (
    AutoModel,
    BertConfig,
    CLIPConfig,
    CLIPModel,
    ConvNextImageProcessor,
    ResNetBackbone,
    ResNetConfig,
    TimmWrapperConfig,
    TimmWrapperModel,
    ViTConfig,
    ViTModel,
)

from hf_curriculum.tasks.detection import (
    ConvBackboneConfig,
    WsddnConfig,
    WsddnForObjectDetection,
    WsddnImageProcessor,
    build,
    new_detector,
)
from hf_curriculum.tasks.detection.build import load_vgg16

RESNET = ResNetConfig(embedding_size=8, hidden_sizes=[8, 8, 8, 16], depths=[1] * 4, layer_type="basic")


def narrow():
    """VGG16 with one channel for 64, and layers of 8."""
    stages = [[width // 64 for width in stage] for stage in ConvBackboneConfig().stages]
    return WsddnForObjectDetection(WsddnConfig(ConvBackboneConfig(stages), head_sizes=(8, 8), num_labels=2))


def torchvision_names():
    """The names of torchvision's VGG16 and a small weight for each."""
    from torchvision.models import vgg16

    with torch.device("meta"):
        full = vgg16().state_dict()
    small = {"features": 64, "classifier": 512}
    found = {}
    for name, value in full.items():
        if name.startswith("classifier.6"):
            found[name] = torch.rand(3)
            continue
        shape = [max(1, size // small[name.partition(".")[0]]) if size > 3 else size for size in value.shape]
        if name == "classifier.0.weight":
            shape[1] = 8 * 49
        found[name] = torch.rand(shape)
    return found


def test_a_small_one_has_06_million_parameters():
    model, processor = new_detector(["dog", "cat"], "small", size={"longest_edge": 96})
    assert model.num_parameters() == 600_148
    assert model.stride == 4
    assert model.config.id2label == {0: "dog", 1: "cat"}
    assert processor.size == {"longest_edge": 96}


def test_vgg16_s_weights_by_torchvision_s_names(tmp_path):
    found, model = torchvision_names(), narrow()
    torch.save(found, tmp_path / "vgg16.pth")
    load_vgg16(model, tmp_path / "vgg16.pth")
    for name, value in model.backbone.state_dict().items():
        assert torch.equal(value, found[name])
    assert torch.equal(model.head[0].weight, found["classifier.0.weight"])
    assert torch.equal(model.head[3].bias, found["classifier.3.bias"])


def test_vgg16_s_weights_by_timm_s_names(tmp_path):
    import timm

    with torch.device("meta"):
        names = timm.create_model("vgg16", pretrained=False).state_dict()
    found, model = torchvision_names(), narrow()
    turned = {name: value for name, value in found.items() if name.startswith("features.")}
    turned["pre_logits.fc1.weight"] = found["classifier.0.weight"].reshape(8, 8, 7, 7)
    turned["pre_logits.fc2.weight"] = found["classifier.3.weight"].reshape(8, 8, 1, 1)
    turned |= {"pre_logits.fc1.bias": found["classifier.0.bias"], "pre_logits.fc2.bias": found["classifier.3.bias"]}
    assert set(turned) <= set(names)
    save_file(turned, tmp_path / "vgg16.safetensors")
    load_vgg16(model, str(tmp_path / "vgg16.safetensors"))
    assert torch.equal(model.head[0].weight, found["classifier.0.weight"])
    assert torch.equal(model.head[3].weight, found["classifier.3.weight"])


def test_the_paper_s_model_takes_the_places_of_vgg16():
    """Names and shapes, without weights."""
    from torchvision.models import vgg16

    with torch.device("meta"):
        full, model = vgg16().state_dict(), WsddnForObjectDetection(WsddnConfig(num_labels=80))
    ours = model.state_dict()
    for name, value in full.items():
        if name.startswith("features."):
            assert ours[f"backbone.{name}"].shape == value.shape
    assert ours["head.0.weight"].shape == full["classifier.0.weight"].shape
    assert ours["head.3.weight"].shape == full["classifier.3.weight"].shape


def test_weights_that_do_not_fit(tmp_path):
    found = torchvision_names()
    del found["classifier.3.weight"]
    torch.save(found, tmp_path / "vgg16.pth")
    with pytest.raises(
        ValueError, match=r"do not fit: 1 of the detector's are not among them, such as 'head.3.weight'"
    ):
        load_vgg16(narrow(), tmp_path / "vgg16.pth")
    torch.save({**torchvision_names(), "features.0.bias": torch.rand(2)}, tmp_path / "vgg16.pth")
    with pytest.raises(ValueError, match=r"such as 'backbone\.features\.0\.bias' of the shape \(1,\)"):
        load_vgg16(narrow(), tmp_path / "vgg16.pth")
    with pytest.raises(FileNotFoundError, match="no file of weights"):
        load_vgg16(narrow(), "none.pth")
    with pytest.raises(ValueError, match="backbone is a ResNetBackbone, and the weights are VGG16's"):
        load_vgg16(WsddnForObjectDetection(WsddnConfig(RESNET, head_sizes=(4,))), "none.pth")
    with pytest.raises(ValueError, match=r"`weights='a\.pth'` was given with the backbone 'small'"):
        new_detector(["a"], "small", weights="a.pth")


@pytest.mark.parametrize("library", ["torchvision", "timm"])
def test_a_missing_library_is_named(library, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision.models" if library == "torchvision" else library, None)
    with pytest.raises(ImportError, match=f"needs {library}, which is not installed"):
        load_vgg16(narrow(), f"{library}:vgg16")


def test_a_backbone_of_a_folder_comes_with_its_weights_and_pixels(tmp_path):
    torch.manual_seed(3)
    backbone = ResNetBackbone(RESNET)
    backbone.save_pretrained(tmp_path)
    ConvNextImageProcessor(image_mean=[0.1, 0.2, 0.3], image_std=[0.5, 0.5, 0.5]).save_pretrained(tmp_path)
    model, processor = new_detector(["dog", "cat"], str(tmp_path), head_sizes=(8,), pooling="roi_align")
    weights = model.backbone.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in backbone.state_dict().items())
    assert model.stride == 32
    assert model.config.pooling == "roi_align"
    assert processor.image_mean == [0.1, 0.2, 0.3]


def test_a_vision_tower_of_a_folder_comes_with_its_weights(tmp_path):
    config = ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=32, patch_size=8
    )
    ViTModel(config).save_pretrained(tmp_path)
    model, _ = new_detector(["dog", "cat"], tmp_path, head_sizes=(8,))
    saved, weights = AutoModel.from_pretrained(tmp_path).state_dict(), model.backbone.state_dict()
    shared = [name for name in saved if not name.startswith("pooler")]
    assert set(weights) == set(shared)
    assert all(torch.equal(saved[name], weights[name]) for name in shared)


def test_a_model_of_timm_comes_with_its_pixels(tmp_path):
    pytest.importorskip("timm")
    pixels = {"mean": [0.5, 0.4, 0.3], "std": [0.3, 0.2, 0.1], "input_size": [3, 32, 32]}
    config = TimmWrapperConfig(architecture="resnet10t", num_labels=2, pretrained_cfg=pixels)
    TimmWrapperModel(config).save_pretrained(tmp_path)
    model, processor = new_detector(["dog", "cat"], tmp_path, head_sizes=(8,))
    assert (model.stride, processor.image_mean, processor.image_std) == (32, pixels["mean"], pixels["std"])


def test_what_is_asked_of_the_hub_and_of_other_libraries(monkeypatch, tmp_path):
    asked = []

    def answers(result, name):
        def answer(*given, **options):
            asked.append((name, *given, options))
            return result

        return answer

    processor = {"image_mean": [0.1] * 3, "image_std": None}
    monkeypatch.setattr(build.AutoConfig, "from_pretrained", answers(RESNET, "config"))
    monkeypatch.setattr(ResNetBackbone, "from_pretrained", answers(ResNetBackbone(RESNET), "backbone"))
    made = SimpleNamespace(to_dict=lambda: processor)
    monkeypatch.setattr(build.AutoImageProcessor, "from_pretrained", answers(made, "images"))
    _, processor = new_detector(["a", "b"], "me/resnet", revision="v2", head_sizes=(4,))
    assert (processor.image_mean, processor.image_std) == ([0.1] * 3, WsddnImageProcessor().image_std)
    assert asked == [
        ("config", "me/resnet", {"revision": "v2"}),
        ("backbone", "me/resnet", {"revision": "v2", "dtype": torch.float32}),
        ("images", "me/resnet", {"revision": "v2", "backend": "pil"}),
    ]
    asked.clear()
    whole = SimpleNamespace(state_dict=torchvision_names)
    monkeypatch.setattr("torchvision.models.get_model", answers(whole, "torchvision"))
    monkeypatch.setattr("timm.create_model", answers(whole, "timm"))
    torch.save(torchvision_names(), tmp_path / "a:b")
    monkeypatch.setattr(torch, "load", answers(torchvision_names(), "file"))
    for name in ("torchvision:vgg16", "timm:vgg16.tv_in1k", str(tmp_path / "a:b")):
        load_vgg16(narrow(), name)
    assert asked == [
        ("torchvision", "vgg16", {"weights": "DEFAULT"}),
        ("timm", "vgg16.tv_in1k", {"pretrained": True}),
        ("file", str(tmp_path / "a:b"), {"map_location": "cpu", "weights_only": True}),
    ]
    for name in ("torchvision", "timm", "other:vgg16"):
        with pytest.raises(FileNotFoundError, match="no file of weights"):
            load_vgg16(narrow(), name)


def test_the_vision_tower_of_a_model_of_two(tmp_path):
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    clip = CLIPModel(CLIPConfig(text_config=small, vision_config={**small, "image_size": 32, "patch_size": 8}))
    clip.save_pretrained(tmp_path)
    model, _ = new_detector(["dog", "cat"], tmp_path, head_sizes=(8,))
    weights = model.backbone.state_dict()
    assert all(torch.equal(clip.vision_model.state_dict()[name], value) for name, value in weights.items())
    assert (model.stride, type(model.config.backbone_config)) == (8, type(clip.config.vision_config))


def test_models_that_cannot_be_a_backbone():
    pytest.importorskip("timm")
    with pytest.raises(ValueError, match=r"does not read images of 448 × 448 pixels \(Input height \(448\)"):
        new_detector(["dog", "cat"], TimmWrapperConfig(architecture="vit_tiny_patch16_224", model_args={"depth": 1}))
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    with pytest.raises(ValueError, match="A BertModel reads text and no images, so it makes no feature map"):
        new_detector(["dog", "cat"], BertConfig(**small, vocab_size=9))


def test_a_configuration_has_no_weights():
    model, _ = new_detector(["dog", "cat"], RESNET, head_sizes=(8,))
    assert type(model.backbone) is ResNetBackbone


def test_names_that_lead_nowhere():
    with pytest.raises(FileNotFoundError, match="There is no backbone 'nobody/nothing'"):
        new_detector(["a"], "nobody/nothing")
    with pytest.raises(ValueError, match="`class_names` is empty"):
        new_detector([])
    with pytest.raises(TypeError, match=r"A WSDDN has no option 'pool_sizes', .* 'pool_size', "):
        new_detector(["a"], "small", pool_sizes=3)
