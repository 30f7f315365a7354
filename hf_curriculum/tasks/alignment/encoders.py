"""One way to encode and score images and texts, by an aligner, a CLIP, a SigLIP or a model of `open_clip`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from hf_curriculum.tasks.alignment.model import AlignerModel, EncodedRegions

Images = torch.Tensor | EncodedRegions
"""Encoded images: vectors (images, width), or regions for an aligner."""


class ImageTextEncoders:
    """A model's two encoders and its score.

    Texts are encoded without images and images without texts, so that each is encoded once however many of the other
    it is scored with.

    Args:
        model: the model itself, not wrapped for several processes or adapters.

    Attributes:
        loss: the loss that the model is trained with by its own library, one of `LOSSES`.
    """

    loss: str = "mean"

    def __init__(self, model: Any) -> None:
        self.model = model

    def encode_text(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Vectors of a batch's texts, (texts, width), from `input_ids` and what else the model reads of texts."""
        raise NotImplementedError(f"{type(self).__name__} does not define `encode_text`.")

    def encode_images(self, batch: Mapping[str, torch.Tensor]) -> Images:
        """A batch's images, from `pixel_values`, or for an aligner from `region_features`."""
        raise NotImplementedError(f"{type(self).__name__} does not define `encode_images`.")

    def score(self, texts: torch.Tensor, images: Images, chunk_size: int | None = None) -> torch.Tensor:
        """Scores as the loss takes them, (texts, images); `chunk_size` as of `AlignerModel.score`."""
        bias = getattr(self.model, "logit_bias", None)
        with torch.autocast(texts.device.type, enabled=False):  # half precision would round them at a temperature
            scores = texts.float() @ images.float().T * self.model.logit_scale.exp()
        return scores if bias is None else scores + bias


class AlignerEncoders(ImageTextEncoders):
    """Those of an `AlignerModel`."""

    loss = "sum"

    def encode_text(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return self.model.encode_text(batch["input_ids"], batch.get("attention_mask"), batch.get("noun_mask"))

    def encode_images(self, batch: Mapping[str, torch.Tensor]) -> EncodedRegions:
        if "image_features" in batch:  # tokens of a frozen vision tower, of which none is padding
            return self.model.encode_regions(batch["image_features"])
        return self.model.encode_regions(batch["region_features"], batch.get("region_mask"))

    def score(self, texts: torch.Tensor, images: EncodedRegions, chunk_size: int | None = None) -> torch.Tensor:
        return self.model.score(texts, images, chunk_size)


class TransformersEncoders(ImageTextEncoders):
    """Those of a model of `transformers` with `get_text_features` and `get_image_features`: CLIP, SigLIP."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.loss: str = "mean" if getattr(model, "logit_bias", None) is None else "sigmoid"
        self._texts = _arguments(model.get_text_features)
        self._images = _arguments(model.get_image_features)

    def encode_text(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        given = {name: batch[name] for name in self._texts if name in batch}
        return functional.normalize(self.model.get_text_features(**given).pooler_output, dim=-1)

    def encode_images(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        given = {name: batch[name] for name in self._images if name in batch}
        return functional.normalize(self.model.get_image_features(**given).pooler_output, dim=-1)


class OpenClipEncoders(ImageTextEncoders):
    """Those of a model of `open_clip`."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.loss: str = "mean" if getattr(model, "logit_bias", None) is None else "sigmoid"

    def encode_text(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return self.model.encode_text(batch["input_ids"], normalize=True)

    def encode_images(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return self.model.encode_image(batch["pixel_values"], normalize=True)


def encoders_of(model: nn.Module) -> ImageTextEncoders:
    """The encoders of a model.

    Args:
        model: an `AlignerModel`; a CLIP, a SigLIP or another model of `transformers` with `get_text_features`,
            `get_image_features` and a `logit_scale`; or a model of `open_clip`.

    Raises:
        TypeError: any other model.

    Example:
        >>> from transformers import CLIPConfig, CLIPModel
        >>> small = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
        >>> encoders_of(CLIPModel(CLIPConfig(text_config=small, vision_config=small))).loss
        'mean'
    """
    if isinstance(model, AlignerModel):
        return AlignerEncoders(model)
    kinds = {
        TransformersEncoders: ("get_text_features", "get_image_features", "logit_scale"),
        OpenClipEncoders: ("encode_text", "encode_image", "logit_scale"),
    }
    for kind, needed in kinds.items():
        if all(hasattr(model, name) for name in needed):
            return kind(model)
    raise TypeError(
        f"A {type(model).__name__} has neither of {[list(needed) for needed in kinds.values()]}: texts and images "
        "could not be encoded apart and scored. Use an AlignerModel, a CLIP or SigLIP of transformers, or a model of "
        "open_clip."
    )


def _arguments(method: Any) -> list[str]:
    """Names of a method's arguments."""
    return list(inspect.signature(method).parameters)
