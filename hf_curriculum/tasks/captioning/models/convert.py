"""Captioners from checkpoints of the reference code, ImageCaptioning.pytorch."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from hf_curriculum.config import parse_json
from hf_curriculum.data.tokenizer import word_tokenizer
from hf_curriculum.shapes import validate_arguments
from hf_curriculum.tasks.captioning.models.config import RegionCaptionerConfig, RegionTransformerConfig

KINDS: dict[str, tuple[str, str]] = {
    "transformer": ("model.generator.proj.weight", "hf_curriculum.tasks.captioning.models.convert:transformer_plan"),
    "aoanet": ("core.att2ctx.0.weight", "hf_curriculum.tasks.captioning.models.aoanet:reference_plan"),
    "updown": ("core.lang_lstm.weight_ih", "hf_curriculum.tasks.captioning.models.updown:reference_plan"),
}
"""Captioner → a name that its checkpoints alone have, and the function that makes the `ConversionPlan`.

The function is called with the weights by name and the options of the configuration.
"""


class ConversionPlan(NamedTuple):
    """What a checkpoint becomes.

    Args:
        model_class: the captioner.
        config: its configuration.
        names: name here → names there, whose tensors, one behind the other along the first dimension, it is.
        ignored: names there of what is computed here.
    """

    model_class: type[PreTrainedModel]
    config: RegionCaptionerConfig
    names: dict[str, tuple[str, ...]]
    ignored: frozenset[str] = frozenset()


@validate_arguments
def convert_reference(
    checkpoint: str | Path, kind: str | None = None, *, vocabulary: str | Path | None = None, **options: Any
) -> PreTrainedModel:
    """Converts a checkpoint of the reference code to a captioner, in the precision of its weights.

    Sizes and numbers of layers are read from the weights; give the rest as `options`. No pickled object is loaded:
    only tensors of a `.pth` file, and nothing of its `infos_*.pkl`.

    Args:
        checkpoint: `model*.pth`, or the same tensors in a `.safetensors` file.
        kind: `"transformer"`, `"updown"` or `"aoanet"`; found by the names of the weights by default.
        vocabulary: the `cocotalk.json` that numbers the words, to compare its size; `reference_tokenizer` makes a
            tokenizer of it.
        options: of the configuration, such as `num_attention_heads` (8 by default).

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a file with objects other than tensors, weights of no captioner or of another `kind`, weights that
            are missing, unknown or of another shape, a vocabulary of another size.

    Source: Luo et al. 2018, and its public code, https://github.com/ruotianluo/ImageCaptioning.pytorch.

    Example:
        >>> model = convert_reference("model-best.pth", vocabulary="cocotalk.json")  # doctest: +SKIP
        >>> model.save_pretrained("transformer")  # doctest: +SKIP
        >>> reference_tokenizer("cocotalk.json").save_pretrained("transformer")  # doctest: +SKIP
    """
    weights = _read(Path(checkpoint))
    kind = _kind(weights, kind, checkpoint)
    module, _, function = KINDS[kind][1].partition(":")
    plan_of: Callable[..., ConversionPlan] = getattr(import_module(module), function)
    try:
        plan = plan_of(weights, **options)
    except KeyError as error:
        raise ValueError(
            f"{checkpoint} lacks {error}, by which a {kind} is built. It is the checkpoint of another model, or of "
            "part of one. Pass the `model*.pth` of a finished run."
        ) from error
    if vocabulary is not None and (words := len(reference_tokenizer(vocabulary))) != plan.config.vocab_size:
        raise ValueError(
            f"{vocabulary} numbers {words - 1} words, but the checkpoint has {plan.config.vocab_size} outputs: one "
            "for each word, and 0 for begin and end. Captions would be of other words. Pass the file it was trained "
            "with."
        )
    model = plan.model_class(plan.config).to(next(iter(weights.values())).dtype)
    _validate_names(plan, weights, {name: value.shape for name, value in model.state_dict().items()}, checkpoint)
    model.load_state_dict(
        {name: torch.cat([weights[theirs] for theirs in sources]) for name, sources in plan.names.items()}
    )
    return model.eval()


def _read(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a file by name."""
    if not path.is_file():
        raise FileNotFoundError(
            f"There is no checkpoint {path}. Name the `model*.pth` of a run of the reference code."
        )
    try:
        found = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except (pickle.UnpicklingError, EOFError, RuntimeError) as error:
        raise ValueError(
            f"{path} does not hold tensors alone: {str(error).splitlines()[0][:150]} Other pickled objects, as in "
            "`infos_*.pkl`, can run code when they are loaded, so they are not. Name the `model*.pth` of the run, and "
            "its words as JSON (`vocabulary=`)."
        ) from error
    if not isinstance(found, Mapping) or not all(isinstance(value, torch.Tensor) for value in found.values()):
        raise ValueError(
            f"{path} holds a {type(found).__name__} that is no dict of tensors by name, so it is not known what they "
            "are. Name the `model*.pth` that the reference code saved."
        )
    return {name.removeprefix("module."): value for name, value in found.items()}


def _kind(weights: Mapping[str, torch.Tensor], given: str | None, checkpoint: str | Path) -> str:
    """The kind of captioner that weights belong to."""
    found = next((kind for kind, (mark, _) in KINDS.items() if mark in weights), None)
    if given is not None and given not in KINDS:
        raise ValueError(f"kind={given!r} is no captioner of the reference code. Pass one of {sorted(KINDS)}.")
    if found is None or given not in (None, found):
        what = f"those of a {found}" if found else "of no captioner that is known here"
        raise ValueError(
            f"The weights of {checkpoint} are {what}; they begin with {sorted(weights)[:5]}. "
            f"{'Leave out `kind`' if found else f'Known are {sorted(KINDS)}: name a checkpoint of one of them'}."
        )
    return found


def _validate_names(
    plan: ConversionPlan, weights: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Size], checkpoint: str | Path
) -> None:
    """Raises where weights are missing, unknown, or of another shape than the model's."""
    needed = {theirs for sources in plan.names.values() for theirs in sources}
    faults = [f"missing: {name}" for name in sorted(needed - set(weights))]
    faults += [f"unknown: {name}" for name in sorted(set(weights) - needed - plan.ignored)]
    for name, sources in plan.names.items():
        if set(sources) <= set(weights):
            shapes = [weights[theirs].shape for theirs in sources]
            found = (sum(shape[0] for shape in shapes), *shapes[0][1:])
            if found != tuple(wanted[name]) or any(shape[1:] != shapes[0][1:] for shape in shapes):
                faults.append(f"shape: {', '.join(sources)} {found}, not {tuple(wanted[name])}")
    if faults:
        raise ValueError(
            f"{len(faults)} weights of {checkpoint} do not fit a {plan.model_class.__name__}: "
            f"{'; '.join(faults[:20])}{' …' if len(faults) > 20 else ''}. With others in their place it would write "
            "other captions. Convert checkpoints of the reference code's models as they are, without batch norm."
        )


@validate_arguments
def reference_tokenizer(vocabulary: str | Path) -> PreTrainedTokenizerFast:
    """Makes the tokenizer of a converted captioner from the reference code's vocabulary.

    Args:
        vocabulary: the `cocotalk.json` that numbers the words, or its `ix_to_word` alone.

    Raises:
        ValueError: a file that is no JSON, or whose words are not numbered from 1, the unknown one last.

    Source: Luo et al. 2018, https://github.com/ruotianluo/ImageCaptioning.pytorch, `scripts/prepro_labels.py`.

    Example:
        >>> tokenizer = reference_tokenizer("cocotalk.json")  # doctest: +SKIP
        >>> tokenizer.save_pretrained("transformer")  # doctest: +SKIP
    """
    try:
        found = parse_json(Path(vocabulary).read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{vocabulary} is no JSON. The pickles of the reference code (`infos_*.pkl`) can run code when they are "
            "loaded, so they are not. Pass the `cocotalk.json` that its words were numbered by."
        ) from error
    words = found.get("ix_to_word", found) if isinstance(found, dict) else {}
    if (
        not words
        or set(words) != {str(number) for number in range(1, len(words) + 1)}
        or words[str(len(words))] != "UNK"
    ):
        raise ValueError(
            f"{vocabulary} does not number words from 1 on, with the unknown word, UNK, as the last: it has "
            f"{len(words)}, {list(words.items())[:3]} … Captions would be of other words. Pass the `cocotalk.json` "
            "that the checkpoint was trained with."
        )
    return word_tokenizer([words[str(number)] for number in range(1, len(words))])


def transformer_plan(
    weights: Mapping[str, torch.Tensor], num_attention_heads: int = 8, **options: Any
) -> ConversionPlan:
    """The conversion of the reference's `transformer`."""
    from hf_curriculum.tasks.captioning.models.transformer import RegionTransformerForCausalLM

    layers = {
        part: len({name.split(".")[3] for name in weights if name.startswith(f"model.{part}.layers.")})
        for part in ("encoder", "decoder")
    }
    words = weights["model.tgt_embed.0.lut.weight"]
    config = RegionTransformerConfig(
        vocab_size=words.shape[0],
        hidden_size=words.shape[1],
        num_encoder_layers=layers["encoder"],
        num_decoder_layers=layers["decoder"],
        num_attention_heads=num_attention_heads,
        intermediate_size=weights["model.encoder.layers.0.feed_forward.w_1.weight"].shape[0],
        region_feature_size=weights["att_embed.0.weight"].shape[1],
        **options,
    )
    names = {"model.word_embedding.weight": ("model.tgt_embed.0.lut.weight",)}
    for kind in ("weight", "bias"):
        names[f"model.region_embedding.linear.{kind}"] = (f"att_embed.0.{kind}",)
        names[f"lm_head.{kind}"] = (f"model.generator.proj.{kind}",)
        norm = {"weight": "a_2", "bias": "b_2"}[kind]
        for part, count in layers.items():
            names[f"model.{part}_norm.{kind}"] = (f"model.{part}.norm.{norm}",)
            for number in range(count):
                ours, theirs = f"model.{part}.{number}", f"model.{part}.layers.{number}"
                names |= _layer_names(ours, theirs, kind, norm, reads_images=part == "decoder")
    return ConversionPlan(RegionTransformerForCausalLM, config, names, frozenset({"model.tgt_embed.1.pe"}))


def _layer_names(ours: str, theirs: str, kind: str, norm: str, reads_images: bool) -> dict[str, tuple[str, ...]]:
    """The weights, or biases, of one layer."""
    own, image = f"{theirs}.self_attn.linears", f"{theirs}.src_attn.linears"
    names = {
        f"{ours}.attention.qkv.{kind}": tuple(f"{own}.{index}.{kind}" for index in range(3)),
        f"{ours}.attention.out.{kind}": (f"{own}.3.{kind}",),
        f"{ours}.feed_forward.wide.{kind}": (f"{theirs}.feed_forward.w_1.{kind}",),
        f"{ours}.feed_forward.narrow.{kind}": (f"{theirs}.feed_forward.w_2.{kind}",),
    }
    if reads_images:
        names |= {
            f"{ours}.image_attention.query.{kind}": (f"{image}.0.{kind}",),
            f"{ours}.image_attention.key_value.{kind}": (f"{image}.1.{kind}", f"{image}.2.{kind}"),
            f"{ours}.image_attention.out.{kind}": (f"{image}.3.{kind}",),
        }
    for index in range(2 + reads_images):
        names[f"{ours}.norms.{index}.{kind}"] = (f"{theirs}.sublayer.{index}.norm.{norm}",)
    return names
