"""From contexts and choices to token ids, cut where the challenge's pipeline cuts them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from hf_curriculum.evaluation.benchmarks.items import Item


class Row(NamedTuple):
    """One text to score: its token ids, the first one that counts, and its picture."""

    ids: list[int]
    start: int
    image: Any = None


def prefix_token_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """The token that stands for an empty context: beginning of text, else end of text, else padding.

    Args:
        tokenizer: any tokenizer. `train_wordpiece`'s has neither beginning nor end, so padding it is.

    Raises:
        ValueError: it has none of the three.

    Example:
        >>> from hf_curriculum.data.tokenizer import train_wordpiece
        >>> prefix_token_id(train_wordpiece(["a dog"], 30))
        0
    """
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if getattr(tokenizer, name) is not None:
            return getattr(tokenizer, name)
    raise ValueError(
        f"The tokenizer ({type(tokenizer).__name__}) has no beginning-of-text, end-of-text or padding token. One of "
        "them stands before a choice without context, so that its first token is scored too. Set `bos_token`, or pass "
        "`prefix_token=`."
    )


class ItemEncoder:
    """Splits `context + " " + choice` into what is read and what is scored.

    The whole text is tokenised once, the context alone a second time, and what is left of the whole behind as many
    tokens is the choice; blanks at the context's end go to the choice. No special tokens are added.

    Args:
        tokenizer: any tokenizer.
        prefix: the id that stands for an empty context.
        image_ids: ids that stand for the picture in the text, where there is one.
        max_length: most tokens the model reads; of longer texts the beginning of the context is cut off.

    Source: `lm-evaluation-harness`, as the BabyLM 2024 evaluation pipeline uses it.

    Example:
        >>> encoder = ItemEncoder(tokenizer, prefix=0, image_ids=[], max_length=128)  # doctest: +SKIP
        >>> encoder([Item(("a dog", "a cat"))])[0][0].start                           # doctest: +SKIP
        1
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, *, prefix: int, image_ids: Sequence[int], max_length: int
    ) -> None:
        self.tokenizer, self.prefix = tokenizer, prefix
        self.image_ids, self.max_length = list(image_ids), max_length
        self.num_cut = 0

    def __call__(self, items: Sequence[Item]) -> list[list[Row]]:
        """A row per choice of each item.

        Args:
            items: what to encode.

        Raises:
            ValueError: a choice that has no token, or more than the model reads.
        """
        pairs = [_split(item.context, f" {choice}") for item in items for choice in item.choices]
        contexts = self._ids(sorted({context for context, _ in pairs if context}))
        wholes = self._ids(sorted({context + choice for context, choice in pairs}))
        rows = iter(pairs)
        return [[self._row(*next(rows), contexts, wholes, item.image) for _ in item.choices] for item in items]

    def _ids(self, texts: list[str]) -> dict[str, list[int]]:
        found = self.tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"] if texts else []
        return dict(zip(texts, found, strict=True))

    def _row(
        self, context: str, choice: str, contexts: dict[str, list[int]], wholes: dict[str, list[int]], image: Any
    ) -> Row:
        before = contexts[context] if context else []
        scored = wholes[context + choice][len(before) :]
        if not scored:
            raise ValueError(
                f"The choice {choice!r} after {context[-40:]!r} has no token of its own: the tokenizer "
                f"({type(self.tokenizer).__name__}) drops all of it. It cannot be scored; check the file."
            )
        pictures = self.image_ids if image is not None else []
        head = pictures if before else [self.prefix, *pictures]
        room = self.max_length - len(head) + 1  # the last token is scored, not read
        if len(scored) > room - (not head):  # something stands before the first that is scored
            raise ValueError(
                f"The choice {choice[:60]!r} has {len(scored)} tokens, but the model reads {self.max_length}. Build "
                "it with more positions, or leave the item out with `tasks=`."
            )
        kept = before[max(0, len(before) + len(scored) - room) :]
        self.num_cut += len(kept) < len(before)
        return Row([*head, *kept, *scored], len(head) + len(kept), image)


def _split(context: str, choice: str) -> tuple[str, str]:
    stripped = context.rstrip()
    return stripped, context[len(stripped) :] + choice
