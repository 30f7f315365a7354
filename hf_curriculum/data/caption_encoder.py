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
    its `sep_token` or `eos_token` after the caption, its `cls_token` or `bos_token` before it.

    Args:
        tokenizer: a transformers tokenizer.
        begins: whether a caption needs a beginning, from which its first word is predicted. The decoder of an
            encoder-decoder makes its own.

    Attributes:
        before, after: the ids around each caption.
        end: the id at which generation has to stop.

    Raises:
        ValueError: the tokenizer neither writes nor names an end, or a beginning.
    """

    def __init__(self, tokenizer: Any, begins: bool = True) -> None:
        bare, whole = (tokenizer(_ONE_WORD, add_special_tokens=special)["input_ids"] for special in (False, True))
        start = next((at for at in range(len(whole)) if whole[at : at + len(bare)] == bare), 0)
        self.tokenizer = tokenizer
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
        ids = self.tokenizer(captions, add_special_tokens=False, verbose=False)["input_ids"]
        room = sys.maxsize if max_length is None else max(0, max_length - len(self.before) - len(self.after))
        last = self.tokenizer.truncation_side == "left"
        kept = (one[max(0, len(one) - room) :] if last else one[:room] for one in ids)
        return [[*self.before, *one, *self.after] for one in kept], [len(one) > room for one in ids]
