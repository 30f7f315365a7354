"""Token ids of captions, with the beginning and the end that generation needs."""

from __future__ import annotations

import logging
import sys
from typing import Any

logger: logging.Logger = logging.getLogger(__name__)

_ONE_WORD = "a"


class CaptionEncoder:
    """Makes token ids of captions, each with a beginning and an end, so that a captioner learns where one stops.

    BERT's kind of tokenizer writes both, Llama's a beginning alone, GPT-2's neither. What it does not write is added:
    its `sep_token` or `eos_token` after the caption, its `cls_token` or `bos_token` before it. Where a caption holds
    the text of a special token, such as "[SEP]", that is text too.

    Args:
        tokenizer: a transformers tokenizer.
        begins: whether a caption needs a beginning, from which its first word is predicted. The decoder of an
            encoder-decoder makes its own.
        prefix: text before each caption, whose special tokens are such.

    Attributes:
        before, after: the ids around each caption.
        end: the id at which generation has to stop.

    Raises:
        ValueError: the tokenizer neither writes nor names an end, or a beginning.
    """

    def __init__(self, tokenizer: Any, begins: bool = True, prefix: str = "") -> None:
        bare, whole = (tokenizer(_ONE_WORD, add_special_tokens=special)["input_ids"] for special in (False, True))
        start = next((at for at in range(len(whole)) if whole[at : at + len(bare)] == bare), 0)
        self.tokenizer = tokenizer
        self.prefix = prefix
        added = {str(token): number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
        self._special = added | dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))
        self.before: list[int] = whole[:start]
        self.after: list[int] = whole[start + len(bare) :]
        self.end: int = self._complete("end", self.after, "sep_token", "eos_token")
        if begins:
            self._complete("beginning", self.before, "cls_token", "bos_token")

    def _complete(self, what: str, ids: list[int], *names: str) -> int:
        """The end or beginning among the ids written around a caption, added where none is."""
        known = [getattr(self.tokenizer, f"{name}_id", None) for name in names]
        written = [one for one in ids if one in known]
        if written or ids:
            return (written or ids)[-1]
        found = next((one for one in known if one is not None), None)
        if found is None:
            why = "never learns to stop" if what == "end" else "never learns the first word"
            raise ValueError(
                f"The tokenizer ({type(self.tokenizer).__name__}) writes no {what} of a caption and has neither "
                f"`{names[0]}` nor `{names[1]}`: a captioner {why}. Set `tokenizer.{names[1]}` to a token that it has."
            )
        logger.info("The tokenizer (%s) writes no %s: %r is added.", type(self.tokenizer).__name__, what, found)
        ids.append(found)
        return found

    def __call__(self, captions: list[str], max_length: int | None = None) -> tuple[list[list[int]], list[bool]]:
        """The ids of each caption, at most `max_length` with those around it, and whether it was truncated."""
        ids = self._ids([self.prefix + caption for caption in captions])
        for row, caption in enumerate(captions):
            if any(token in caption for token in self._special):
                ids[row] = self._ids_of_text(caption)
        room = sys.maxsize if max_length is None else max(0, max_length - len(self.before) - len(self.after))
        last = self.tokenizer.truncation_side == "left"
        kept = (one[max(0, len(one) - room) :] if last else one[:room] for one in ids)
        return [[*self.before, *one, *self.after] for one in kept], [len(one) > room for one in ids]

    def _ids(self, texts: list[str], **options: bool) -> list[list[int]]:
        return self.tokenizer(texts, add_special_tokens=False, verbose=False, **options)["input_ids"]

    def _ids_of_text(self, caption: str) -> list[int]:
        """The ids of a caption that holds the text of special tokens, none of them special, after the prefix's."""
        # A space at the prefix's end belongs to the caption, as in `_prefix_positions`.
        prefix = self.prefix.rstrip()
        ids = self._ids([self.prefix[len(prefix) :] + caption], split_special_tokens=True)[0]
        unknown = getattr(self.tokenizer, "unk_token_id", None)
        instead = [] if unknown in (None, self.end) else [unknown]
        # Tokenizers of whole words, and Unigram's, still find such a token in their vocabulary.
        special = {*self._special.values()} - {*instead}
        parts = (instead if one in special else [one] for one in ids)
        return [*(self._ids([prefix])[0] if prefix else ()), *(one for part in parts for one in part)]
