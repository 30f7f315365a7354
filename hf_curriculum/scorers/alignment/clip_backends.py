"""The two towers of a CLIP: of `transformers`, or of `open_clip`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from hf_curriculum.config import digest
from hf_curriculum.data.processors import PixelTable, is_plain, process_image
from hf_curriculum.models.on_host import to_device
from hf_curriculum.scorers.pretrained import folder_digest, load_model, load_pretrained

_THIN = 16
"""An image more than so many times as long as wide is cropped to its middle before it is resized."""


class Tokens(NamedTuple):
    """Inputs of a text tower, each (n, context), and the captions' lengths, int64 (n,), without padding."""

    inputs: dict[str, torch.Tensor]
    lengths: np.ndarray


class Towers:
    """An image tower and a text tower with one embedding space.

    Attributes:
        context: most tokens of a caption, special ones included.
        crops: whether an image is cropped to its middle after its shorter edge was resized.
    """

    context: int
    crops: bool = False

    def pixels(self, image: Image.Image) -> torch.Tensor:
        """One RGB image as the image tower reads it, (3, H, W)."""
        raise NotImplementedError(f"{type(self).__name__} does not define `pixels`.")

    def encode_image(self, pixels: torch.Tensor) -> torch.Tensor:
        """Embeddings of images: (B, 3, H, W) → (B, D)."""
        raise NotImplementedError(f"{type(self).__name__} does not define `encode_image`.")

    def tokens(self, captions: list[str]) -> Tokens:
        """Captions as tokens, padded or truncated to the context."""
        raise NotImplementedError(f"{type(self).__name__} does not define `tokens`.")

    def count_truncated(self, captions: list[str]) -> int:
        """How many of these captions are longer than the context."""
        raise NotImplementedError(f"{type(self).__name__} does not define `count_truncated`.")

    def encode_text(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """Embeddings of captions: (n, context) each, or (n, fewer) of `input_ids` only → (n, D)."""
        raise NotImplementedError(f"{type(self).__name__} does not define `encode_text`.")


class TransformersTowers(Towers):
    """CLIP, SigLIP or any other model of `transformers` with `get_image_features` and `get_text_features`."""

    def __init__(self, name: str, revision: str | None, device: torch.device, dtype: torch.dtype) -> None:
        from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

        self.model: Any = load_model(AutoModel, name, revision)
        lacking = [call for call in ("get_image_features", "get_text_features") if not hasattr(self.model, call)]
        if lacking:
            found = f"{name!r} is a {type(self.model).__name__}, which has no `{lacking[0]}`"
            raise ValueError(f"{found}. A cosine needs a model with two towers, such as a CLIP or a SigLIP.")
        self.model.to(device=device, dtype=dtype)
        self.tokenizer: Any = load_pretrained(AutoTokenizer, name, revision)
        self.processor: Any = load_pretrained(AutoImageProcessor, name, revision, backend="pil")
        self.context: int = min(self.model.config.text_config.max_position_embeddings, self.tokenizer.model_max_length)
        self.crops: bool = bool(getattr(self.processor, "do_center_crop", False))
        self.table: PixelTable | None = PixelTable(self.processor) if is_plain(self.processor) else None
        self.device = device
        self.dtype = dtype

    def pixels(self, image: Image.Image) -> torch.Tensor:
        if self.table is not None:
            return self.table(image)
        return process_image(self.processor, crop_thin(image) if self.crops else image)["pixel_values"]

    def encode_image(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.model.get_image_features(pixel_values=to_device(pixels, self.device).to(self.dtype)).pooler_output

    def tokens(self, captions: list[str]) -> Tokens:
        inputs = self.tokenizer(
            captions,
            padding="max_length",
            truncation=True,
            max_length=self.context,
            return_tensors="pt",
            split_special_tokens=True,  # a caption's "<|endoftext|>" is text, and no end
        )
        if "attention_mask" in inputs:
            lengths = inputs["attention_mask"].sum(1)
        else:
            lengths = count_tokens(inputs["input_ids"], self.tokenizer.pad_token_id)
        return Tokens(dict(inputs), lengths.numpy())

    def count_truncated(self, captions: list[str]) -> int:
        ids = self.tokenizer(captions, verbose=False, split_special_tokens=True)["input_ids"]
        return sum(len(each) > self.context for each in ids)

    def encode_text(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        inputs = {name: to_device(values, self.device) for name, values in inputs.items()}
        return self.model.get_text_features(**inputs).pooler_output


def count_tokens(ids: torch.Tensor, padding: int) -> torch.Tensor:
    """Tokens up to the last that is no padding: (n, context) → (n,)."""
    return ((ids != padding) * torch.arange(1, ids.shape[1] + 1)).amax(1)


def crop_thin(image: Image.Image) -> Image.Image:
    """The middle of an image that is very long and thin; any other as it is."""
    width, height = image.size
    short = min(width, height)
    if max(width, height) <= _THIN * short:
        return image
    # an even number of pixels is removed, so that the middle stays where it was
    left, top = (max(0, (side - _THIN * short) // 2) for side in (width, height))
    return image.crop((left, top, width - left, height - top))


PREFIX = "open_clip:"
_SCHEMES = ("hf-hub:", "local-dir:")
_PRECISIONS = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


def parse_name(model: str, pretrained: str | None) -> tuple[str, str | None]:
    """`open_clip`'s names of the architecture and of its weights."""
    name = model.removeprefix(PREFIX)
    if Path(name).is_dir() and (Path(name) / "open_clip_config.json").exists():
        name = _SCHEMES[1] + name
    complete = name.startswith(_SCHEMES)
    architecture, _, tag = (name, "", "") if complete else name.partition("/")
    if pretrained is not None and (complete or tag):
        raise ValueError(f"Weights are named twice: `model={model!r}` and `pretrained={pretrained!r}`.")
    if not complete and not (tag or pretrained):
        raise ValueError(
            f"`model={model!r}` names no weights, and open_clip would make up random ones. Write "
            f'"{PREFIX}{architecture}/WEIGHTS" (see `open_clip.list_pretrained()`) or pass `pretrained=`.'
        )
    return architecture, tag or pretrained


def weights_digest(name: str, pretrained: str | None) -> str | None:
    """Digest of weights in a folder or a file, used as their revision; None for others."""
    if name.startswith(_SCHEMES[1]):
        return folder_digest(name.removeprefix(_SCHEMES[1]))
    if pretrained is None or not Path(pretrained).is_file():
        return None
    return digest(Path(pretrained))


class OpenClipTowers(Towers):
    """A model of `open_clip`."""

    def __init__(self, name: str, pretrained: str | None, device: torch.device, dtype: torch.dtype) -> None:
        open_clip = _imported()
        try:
            self.model, self.preprocess = open_clip.create_model_from_pretrained(
                name, pretrained, precision=_PRECISIONS[dtype], device=device
            )
            self.tokenizer: Any = open_clip.get_tokenizer(name)
        except (OSError, RuntimeError, ValueError) as error:  # all three, for names it does not know or cannot fetch
            reason = " ".join(str(error).split())
            raise FileNotFoundError(
                f"open_clip found no {name!r} with the weights {pretrained!r}: {reason[:300]} Check both names "
                "(`open_clip.list_pretrained()`); on a machine without network, give the weights as a file, or fetch "
                "them into the cache first."
            ) from error
        self.model.eval()
        self.context: int = self.tokenizer.context_length
        self.crops: bool = self.model.visual.preprocess_cfg["resize_mode"] == "shortest"
        self.padding: int = int(self.tokenizer(["a"])[0, -1])
        self.text: Any = self._text_tower()
        self.device = device
        self.dtype = dtype

    def _text_tower(self) -> Any | None:
        """The text tower, if its context can be shortened."""
        from open_clip.model import CLIP
        from open_clip.transformer import TextTransformer

        if isinstance(self.model, CLIP):
            return self.model if self.model.attn_mask is not None else None
        text = self.model.text
        plain = isinstance(text, TextTransformer) and text.cls_emb is None and not text.use_pad_mask
        return text if plain and text.attn_mask is not None else None

    def pixels(self, image: Image.Image) -> torch.Tensor:
        return self.preprocess(crop_thin(image) if self.crops else image)

    def encode_image(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.model.encode_image(to_device(pixels, self.device).to(self.dtype))

    def tokens(self, captions: list[str]) -> Tokens:
        ids = self.tokenizer(captions)
        return Tokens({"input_ids": ids}, count_tokens(ids, self.padding).numpy())

    def count_truncated(self, captions: list[str]) -> int:
        longer = self.tokenizer(captions, context_length=self.context + 1)
        return int((count_tokens(longer, self.padding) > self.context).sum())

    def encode_text(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        ids = inputs["input_ids"].to(self.device)
        if ids.shape[1] == self.context or self.text is None:
            return self.model.encode_text(ids)
        return self._encode_short(ids)

    def _encode_short(self, ids: torch.Tensor) -> torch.Tensor:
        """`encode_text` with as many position embeddings as tokens: (n, length) → (n, D)."""
        from open_clip.transformer import text_global_pool

        text, length = self.text, ids.shape[1]
        own = text is self.model  # CLIP itself, whose names differ from those of a separate tower
        pool, end = (text.text_pool_type, text.text_eos_id) if own else (text.pool_type, text.eos_id)
        dtype = text.transformer.get_cast_dtype()
        hidden = text.token_embedding(ids).to(dtype) + text.positional_embedding[:length].to(dtype)  # (n, length, W)
        hidden = text.transformer(hidden, attn_mask=text.attn_mask[:length, :length])
        pooled = text_global_pool(text.ln_final(hidden), ids, pool, eos_token_id=end)  # (n, W)
        if text.text_projection is None:
            return pooled
        if isinstance(text.text_projection, torch.nn.Linear):
            return text.text_projection(pooled)
        return pooled @ text.text_projection


def _imported() -> Any:
    try:
        import open_clip
    except ImportError as error:
        raise ImportError("open_clip is not installed. Run `pip install 'hf-curriculum[clip]'`.") from error
    return open_clip
