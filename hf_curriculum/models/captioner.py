"""A captioner and its processor in one call: a small one from scratch, or one that was trained."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import (
    AutoConfig,
    AutoModelForImageTextToText,
    AutoTokenizer,
    GitProcessor,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from hf_curriculum.columns import IMAGE_ID
from hf_curriculum.data.image_inputs import RegionInputs
from hf_curriculum.data.processors import CaptionProcessor, load_image_processor, make_image_processor
from hf_curriculum.data.regions.open import open_regions
from hf_curriculum.data.tokenizer import train_word_tokenizer, train_wordpiece
from hf_curriculum.models.git.build import git_from_config, small_git_config
from hf_curriculum.models.vision_features import VisionFeatures
from hf_curriculum.names import MODELS
from hf_curriculum.shapes import validate_arguments


@validate_arguments
def new_captioner(
    dataset: Dataset, image_size: int = 64, vocab_size: int = 4000, **options: Any
) -> tuple[PreTrainedModel, GitProcessor]:
    """A small GIT from scratch, with a tokenizer trained on the data set's captions."""
    tokenizer = train_wordpiece(dataset, vocab_size)
    config = small_git_config(len(tokenizer), tokenizer=tokenizer, image_size=image_size, **options)
    return git_from_config(config), GitProcessor(make_image_processor(image_size), tokenizer)


def new_region_captioner(
    name: str, dataset: Dataset, regions: RegionInputs, *, min_count: int = 5, max_words: int = 16, **options: Any
) -> tuple[PreTrainedModel, CaptionProcessor]:
    """A captioner on regions from scratch, with the words of the data set's captions."""
    config_class = MODELS[name].config_class
    config_class.validate_fields(options)
    tokenizer = train_word_tokenizer(dataset, min_count, max_words=max_words)
    width = regions.read(dataset.with_format(None).select_columns(IMAGE_ID)[0])["region_features"].shape[-1]
    config = config_class(vocab_size=len(tokenizer), region_feature_size=width, **options)
    model = AutoModelForImageTextToText.from_config(config)
    return model, CaptionProcessor(regions.image_processor, tokenizer)


def load_captioner(name: str, revision: str | None = None) -> tuple[PreTrainedModel, GitProcessor | CaptionProcessor]:
    """A captioner from a folder or the Hub, with its tokenizer and image processor."""
    try:
        config = AutoConfig.from_pretrained(name, revision=revision)
    except OSError as error:
        reason = " ".join(str(error).split())
        raise FileNotFoundError(f"There is no captioner {name}: no such folder here, and {reason}") from error
    if type(config) not in AutoModelForImageTextToText._model_mapping:
        raise ValueError(
            f"{name} is a {type(config).__name__}, and no model that writes text to images. Name a captioner: a "
            "folder written by `hf-curriculum train`, or a GIT or BLIP of the Hub."
        )
    model = AutoModelForImageTextToText.from_pretrained(name, revision=revision)
    if reads(model, "region_features"):
        return model, CaptionProcessor.from_pretrained(name, revision=revision)
    tokenizer = AutoTokenizer.from_pretrained(name, revision=revision)
    return model, GitProcessor(load_image_processor(name, revision=revision), tokenizer)


def reads(model: torch.nn.Module, name: str) -> bool:
    """Whether `forward` takes an argument of this name."""
    return name in signature(model.forward).parameters


def images_of_texts(model: torch.nn.Module, images: dict[str, torch.Tensor], index: torch.Tensor) -> dict[str, Any]:
    """A model's arguments for texts that share images, (texts,) int64: its `image_index`, or an image per text."""
    if reads(model, "image_index"):
        return {**images, "image_index": index}
    return {name: part[index] for name, part in images.items()}


def stored_inputs(model: torch.nn.Module, image_processor: Any | None, path: str | Path) -> dict[str, Any]:
    """What a captioner reads in place of images, as arguments of `CaptionCollator`: stored regions or features."""
    if reads(model, "region_features"):
        return {"regions": RegionInputs.for_model(open_regions(path), image_processor)}
    return {"vision_features": VisionFeatures(path)}


def image_text(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> str:
    """The text that stands for one image: `image_token_id`, `image_seq_length` times; nothing for GIT."""
    image_id = getattr(model.config, "image_token_id", None)
    if image_id is None:
        return ""
    token = tokenizer.convert_ids_to_tokens(image_id) if image_id < len(tokenizer) else None
    if token is None or tokenizer(token, add_special_tokens=False)["input_ids"] != [image_id]:
        raise ValueError(
            f"Token {image_id} is the placeholder of an image, but the tokenizer ({type(tokenizer).__name__}, "
            f"{len(tokenizer)} entries) reads it as {token!r}. Images would go unseen. Use the tokenizer the model "
            "was trained with; a benchmark's scorer also takes the text by name, `image_tokens=`."
        )
    return token * (getattr(model.config, "image_seq_length", None) or 1)
