"""The two towers of an `open_clip` model."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from hf_curriculum.scorers.clip_towers import Tokens, Towers, count_tokens, cut_thin
from hf_curriculum.scorers.pretrained import folder_digest

PREFIX = "open_clip:"
_SCHEMES = ("hf-hub:", "local-dir:")
_PRECISIONS = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


def parse_name(model: str, pretrained: str | None) -> tuple[str, str | None]:
    """What `open_clip` calls the architecture and its weights.

    Args:
        model: an architecture, "ARCHITECTURE/WEIGHTS", or "hf-hub:…" or "local-dir:…"; with or without "open_clip:".
        pretrained: a tag of weights or a file.

    Raises:
        ValueError: no weights are named, or they are named twice.

    Example:
        >>> parse_name("open_clip:ViT-B-32/laion2b_s34b_b79k", None)
        ('ViT-B-32', 'laion2b_s34b_b79k')
    """
    name = model.removeprefix(PREFIX)
    if Path(name).is_dir() and (Path(name) / "open_clip_config.json").exists():
        name = _SCHEMES[1] + name
    whole = name.startswith(_SCHEMES)
    architecture, _, tag = (name, "", "") if whole else name.partition("/")
    if pretrained is not None and (whole or tag):
        raise ValueError(
            f"Weights are named twice: `model={model!r}` and `pretrained={pretrained!r}`. Name them in one place."
        )
    if not whole and not (tag or pretrained):
        raise ValueError(
            f"`model={model!r}` names no weights, and open_clip would make up random ones. Write "
            f'"{PREFIX}{architecture}/WEIGHTS" (`open_clip.list_pretrained()` lists them) or pass `pretrained=`.'
        )
    return architecture, tag or pretrained


def weights_digest(name: str, pretrained: str | None) -> str | None:
    """Digest of weights that lie in a folder or a file, which stands for their revision; None for others."""
    if name.startswith(_SCHEMES[1]):
        return folder_digest(name.removeprefix(_SCHEMES[1]))
    if pretrained is None or not Path(pretrained).is_file():
        return None
    digest = hashlib.blake2b(digest_size=8)
    with open(pretrained, "rb") as stream:
        while block := stream.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


class OpenClipTowers(Towers):
    """A model of `open_clip`.

    Args:
        name: an architecture, or a name with one of `open_clip`'s schemes.
        pretrained: a tag of weights or a file, for an architecture.
        device: where to.
        dtype: of weights and activations.

    Raises:
        ImportError: `open_clip` is not installed.
        FileNotFoundError: there are no such weights.
    """

    def __init__(self, name: str, pretrained: str | None, device: torch.device, dtype: torch.dtype) -> None:
        open_clip = _imported()
        try:
            self.model, self.preprocess = open_clip.create_model_from_pretrained(
                name, pretrained, precision=_PRECISIONS[dtype], device=device
            )
            self.tokenizer = open_clip.get_tokenizer(name)
        except (OSError, RuntimeError, ValueError) as error:  # all three, for names it does not know or cannot fetch
            reason = " ".join(str(error).split())
            raise FileNotFoundError(
                f"open_clip found no {name!r} with the weights {pretrained!r}: {reason[:300]} It scores the examples, "
                "so nothing can be scored without it. Check both names (`open_clip.list_pretrained()`); on a machine "
                "without network, give the weights as a file, or fetch them into the cache first."
            ) from error
        self.model.eval()
        self.context = self.tokenizer.context_length
        self.crops = self.model.visual.preprocess_cfg["resize_mode"] == "shortest"
        self.padding = int(self.tokenizer(["a"])[0, -1])
        self.text = self._text_tower()
        self.device, self.dtype = device, dtype

    def _text_tower(self) -> Any | None:
        """The part that holds the text tower, if it is one whose context can be shortened."""
        from open_clip.model import CLIP
        from open_clip.transformer import TextTransformer

        if isinstance(self.model, CLIP):
            return self.model if self.model.attn_mask is not None else None
        text = self.model.text
        plain = isinstance(text, TextTransformer) and text.cls_emb is None and not text.use_pad_mask
        return text if plain and text.attn_mask is not None else None

    def pixels(self, image: Image.Image) -> torch.Tensor:
        return self.preprocess(cut_thin(image) if self.crops else image)

    def see(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.model.encode_image(pixels.to(self.device, self.dtype))

    def tokens(self, captions: list[str]) -> Tokens:
        ids = self.tokenizer(captions)
        return Tokens({"input_ids": ids}, count_tokens(ids, self.padding).numpy())

    def count_cut(self, captions: list[str]) -> int:
        longer = self.tokenizer(captions, context_length=self.context + 1)
        return int((count_tokens(longer, self.padding) > self.context).sum())

    def read(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        ids = inputs["input_ids"].to(self.device)
        if ids.shape[1] == self.context or self.text is None:
            return self.model.encode_text(ids)
        return self._read_short(ids)

    def _read_short(self, ids: torch.Tensor) -> torch.Tensor:
        """`encode_text` adds all positions to all tokens; this adds as many as there are. (n, length) → (n, D)."""
        from open_clip.transformer import text_global_pool

        text, length = self.text, ids.shape[1]
        alone = text is self.model  # CLIP itself, whose names differ from those of a separate tower
        pool, end = (text.text_pool_type, text.text_eos_id) if alone else (text.pool_type, text.eos_id)
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
        raise ImportError(
            "This model is one of open_clip's, which is not installed. Run `pip install 'hf-curriculum[clip]'`, or "
            "name a CLIP of `transformers`."
        ) from error
    return open_clip
