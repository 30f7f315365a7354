"""The two towers of a CLIP behind one set of calls, for models of `transformers`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from hf_curriculum.data.pixels import PixelTable, is_plain, process_image
from hf_curriculum.scorers.pretrained import load_model, load_pretrained

_THIN = 16
"""A picture more than so many times as long as wide is cropped to its middle before it is resized."""


class Tokens(NamedTuple):
    """Captions as a text tower reads them, padded to its whole context.

    Shapes:
        inputs: name → (n, context); lengths: int64 (n,), tokens up to the last one that is no padding.
    """

    inputs: dict[str, torch.Tensor]
    lengths: np.ndarray


class Towers:
    """An image tower and a text tower whose vectors lie in one space.

    A subclass sets the attributes and defines the calls.

    Attributes:
        context: most tokens of a caption, special ones included.
        crops: whether the middle of a picture is cut out after its shorter edge was resized.
    """

    context: int
    crops: bool = False

    def pixels(self, image: Image.Image) -> torch.Tensor:
        """One RGB picture as the image tower reads it, (3, H, W)."""
        raise NotImplementedError(f"{type(self).__name__} does not define `pixels`.")

    def see(self, pixels: torch.Tensor) -> torch.Tensor:
        """Vectors of pictures: (B, 3, H, W) → (B, D)."""
        raise NotImplementedError(f"{type(self).__name__} does not define `see`.")

    def tokens(self, captions: list[str]) -> Tokens:
        """Captions as tokens, padded to the context; longer ones are truncated as the model does."""
        raise NotImplementedError(f"{type(self).__name__} does not define `tokens`.")

    def count_cut(self, captions: list[str]) -> int:
        """How many of these captions are longer than the context."""
        raise NotImplementedError(f"{type(self).__name__} does not define `count_cut`.")

    def read(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """Vectors of captions: (n, context) each, or (n, fewer) of `input_ids` alone → (n, D)."""
        raise NotImplementedError(f"{type(self).__name__} does not define `read`.")


class TransformersTowers(Towers):
    """CLIP, SigLIP or any other model of `transformers` with `get_image_features` and `get_text_features`.

    Args:
        name: a folder, or a repository of the Hub.
        revision: of a repository.
        device: where to.
        dtype: of weights and activations.

    Raises:
        FileNotFoundError: there is no such model.
        ValueError: it lacks weights, or is none of two towers.
    """

    def __init__(self, name: str, revision: str | None, device: torch.device, dtype: torch.dtype) -> None:
        from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

        self.model = load_model(AutoModel, name, revision)
        lacking = [call for call in ("get_image_features", "get_text_features") if not hasattr(self.model, call)]
        if lacking:
            raise ValueError(
                f"{name!r} is a {type(self.model).__name__}, which has no `{lacking[0]}`. A cosine of image and "
                "caption needs a model of two towers. Name a CLIP or a SigLIP."
            )
        self.model.to(device=device, dtype=dtype)
        self.tokenizer = load_pretrained(AutoTokenizer, name, revision)
        self.processor = load_pretrained(AutoImageProcessor, name, revision, backend="pil")
        self.context = min(self.model.config.text_config.max_position_embeddings, self.tokenizer.model_max_length)
        self.crops = bool(getattr(self.processor, "do_center_crop", False))
        self.table = PixelTable(self.processor) if is_plain(self.processor) else None
        self.device, self.dtype = device, dtype

    def pixels(self, image: Image.Image) -> torch.Tensor:
        if self.table is not None:
            return self.table(image)
        return process_image(self.processor, cut_thin(image) if self.crops else image)["pixel_values"]

    def see(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.model.get_image_features(pixel_values=pixels.to(self.device, self.dtype)).pooler_output

    def tokens(self, captions: list[str]) -> Tokens:
        inputs = self.tokenizer(
            captions, padding="max_length", truncation=True, max_length=self.context, return_tensors="pt"
        )
        if "attention_mask" in inputs:
            lengths = inputs["attention_mask"].sum(1)
        else:
            lengths = count_tokens(inputs["input_ids"], self.tokenizer.pad_token_id)
        return Tokens(dict(inputs), lengths.numpy())

    def count_cut(self, captions: list[str]) -> int:
        return sum(len(ids) > self.context for ids in self.tokenizer(captions, verbose=False)["input_ids"])

    def read(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        inputs = {name: values.to(self.device) for name, values in inputs.items()}
        return self.model.get_text_features(**inputs).pooler_output


def count_tokens(ids: torch.Tensor, padding: int) -> torch.Tensor:
    """Tokens up to the last that is no padding. Shapes: (n, context) → (n,)."""
    place = torch.arange(1, ids.shape[1] + 1)
    return ((ids != padding) * place).amax(1)


def cut_thin(image: Image.Image) -> Image.Image:
    """The middle of a picture that is very long and thin; any other as it is.

    Only its middle is looked at where the shorter edge is resized and the longer one cropped; resized whole, a
    picture of 20,000 × 20 pixels would first become one of 224,000 × 224.
    """
    width, height = image.size
    short = min(width, height)
    if max(width, height) <= _THIN * short:
        return image
    # an even number of pixels is taken away, so that the middle stays where it was
    left, top = (max(0, (side - _THIN * short) // 2) for side in (width, height))
    return image.crop((left, top, width - left, height - top))
