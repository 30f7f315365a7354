"""What the aligner reads of captions with a noun: tokens, and which of them are the noun's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import regex
import torch

from hf_curriculum.data.processors import CaptionProcessor

Span = tuple[int, int]
"""Where a noun begins in its caption and where it has ended, in characters."""


def noun_mask(offsets: torch.Tensor, spans: Sequence[Span]) -> torch.Tensor:
    """1 on the tokens of each caption's noun."""
    start, end = torch.tensor(spans)[:, :, None].unbind(1)  # (texts, 1) each
    first, last = offsets.unbind(-1)
    return ((first < end) & (last > start) & (last > first)).long()


def validate_offsets(tokenizer: Any) -> None:
    """Raises a `TypeError` for a tokenizer that does not say which characters its tokens stand for."""
    if not getattr(tokenizer, "is_fast", False):
        raise TypeError(
            f"The tokenizer is a {type(tokenizer).__name__}, which does not say which characters a token stands for: "
            "a noun's sub-words could not be found. Use a fast tokenizer (`AutoTokenizer`, `train_wordpiece`)."
        )


def encode_nouns(
    tokenizer: Any, captions: Sequence[str], spans: Sequence[Span], **options: Any
) -> dict[str, torch.Tensor]:
    """Captions as tokens, with a `noun_mask`; `options` of the tokenizer."""
    tokens = tokenizer(
        list(captions), truncation=True, return_offsets_mapping=True, return_tensors="pt", return_token_type_ids=False,
        split_special_tokens=True,  # a caption's "[SEP]" is text, and no end
        **options,
    )  # fmt: skip
    offsets = tokens.pop("offset_mapping")
    return {**tokens, "noun_mask": noun_mask(offsets, spans)}


class AlignerProcessor(CaptionProcessor):
    """The tokenizer of an aligner and, if there is one, its image processor.

    Called with captions and their nouns it returns the inputs of `AlignerModel.encode_text`; with images, those of
    `AlignerModel.encode_regions`. Images need the detector of the training regions (`RegionProcessor`).

    Args:
        image_processor: a `RegionProcessor`, or None if regions are read from a store.
        tokenizer: a fast tokenizer.

    Raises:
        TypeError: (when called with text) a tokenizer that cannot find a noun's sub-words.
        ValueError: (when called) a noun that is not in its caption or is truncated, not one noun per caption, or
            images without an image processor.

    Example:
        >>> from hf_curriculum.data.tokenizer import train_wordpiece
        >>> processor = AlignerProcessor(None, train_wordpiece(["a dog runs", "two dogs"] * 2, 50))
        >>> processor(text=["A dog runs."], nouns=["dog"])["noun_mask"].sum().item()
        1
    """

    def __call__(
        self,
        images: Any = None,
        text: str | Sequence[str] | None = None,
        nouns: str | Sequence[str | Span | None] | None = None,
        **kwargs: Any,
    ) -> dict[str, torch.Tensor]:
        """Inputs of the aligner.

        Args:
            images: as of `RegionProcessor`.
            text: captions.
            nouns: of each caption its noun: a word of it, of which the first is meant, or where it begins and has
                ended in characters; None for a caption without a noun, all of whose words are then marked: the model
                reads their mean, or by `noun_pooling="first"` the first of them. Of a single caption the word alone
                will do.
            kwargs: of the tokenizer, such as `max_length`.
        """
        found = {} if images is None else dict(super().__call__(images=images))
        if text is None:
            return found
        texts = [text] if isinstance(text, str) else list(text)
        nouns = [nouns] if isinstance(nouns, str) else nouns
        if nouns is None or len(nouns) != len(texts):
            given = "no nouns" if nouns is None else f"{len(nouns)} nouns"
            raise ValueError(
                f"{given} were given for {len(texts)} captions, and the aligner reads one of each. Pass `nouns=`, "
                "with None for a caption that has none."
            )
        validate_offsets(self.tokenizer)
        spans = [_span(caption, noun) for caption, noun in zip(texts, nouns, strict=True)]
        tokens = encode_nouns(self.tokenizer, texts, spans, **{"padding": True, **kwargs})
        for caption, noun, mask in zip(texts, nouns, tokens["noun_mask"], strict=True):
            if not mask.any():
                raise ValueError(
                    f"The noun {noun!r} of the caption {caption!r} has no token among the {len(mask)} that are kept. "
                    "Raise `max_length`."
                )
        return found | tokens


def _span(caption: str, noun: str | Span | None) -> Span:
    """Where a noun stands; all of the caption for None."""
    if noun is None:
        return 0, len(caption)
    if not isinstance(noun, str):
        return noun
    match = regex.search(rf"\b{regex.escape(noun)}\b", caption, regex.IGNORECASE)
    if match is None:
        raise ValueError(
            f"{noun!r} is no word of the caption {caption!r}. Pass it as it is written there, or where it begins and "
            "has ended in characters."
        )
    return match.span()
