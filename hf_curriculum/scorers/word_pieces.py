"""Sentences of words as a token classifier reads them: windows of word pieces, one prediction per word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

IGNORED = -100
"""The label of a piece that does not count, as `torch.nn.functional.cross_entropy` has it."""


class Window(NamedTuple):
    """Words of one sentence: piece ids with a special token at both ends, and where each word's first piece is."""

    sentence: int
    ids: list[int]
    firsts: list[int]


class WordPieces:
    """Cuts sentences into windows that a model has positions for. Every word stays whole, and none is left out.

    Args:
        tokenizer: a BERT-style tokenizer, with [CLS], [SEP] and [PAD].
        max_length: most pieces of a window, the two special tokens included. Of a single word with more, the first.

    Raises:
        ValueError: the tokenizer lacks one of these tokens, or `max_length` has no room for a word.
    """

    def __init__(self, tokenizer: Any, max_length: int) -> None:
        ends = {name: getattr(tokenizer, name) for name in ("cls_token_id", "sep_token_id", "pad_token_id")}
        missing = [name for name, token in ends.items() if token is None]
        if missing:
            raise ValueError(
                f"The tokenizer has no `{missing[0]}`. A tagger reads sentences between [CLS] and [SEP], padded with "
                "[PAD]. Give a BERT-style tokenizer, like one of `train_wordpiece`."
            )
        if max_length < 3:
            raise ValueError(f"`max_length` is {max_length}. A word between two special tokens takes at least 3.")
        self.tokenizer, self.max_length = tokenizer, max_length
        self.first, self.last, self.padding = ends.values()
        self._known: dict[str, list[int]] = {}

    def windows(self, sentences: Sequence[Sequence[str]]) -> list[Window]:
        """The windows of all sentences, in order; a sentence without words has none."""
        self._learn(sentences)
        room, windows = self.max_length - 1, []
        for sentence, words in enumerate(sentences):
            ids, firsts = [self.first], []
            for word in words:
                pieces = self._known[word]
                if len(ids) + len(pieces) > room:
                    windows.append(Window(sentence, [*ids, self.last], firsts))
                    ids, firsts = [self.first], []
                firsts.append(len(ids))
                ids.extend(pieces)
            if firsts:
                windows.append(Window(sentence, [*ids, self.last], firsts))
        return windows

    def _learn(self, sentences: Sequence[Sequence[str]]) -> None:
        """Looks up the pieces of words not seen before."""
        new = list(dict.fromkeys(word for words in sentences for word in words if word not in self._known))
        if new:
            found = self.tokenizer(new, add_special_tokens=False, verbose=False)["input_ids"]
            for word, pieces in zip(new, found, strict=True):
                # of a sign that the tokenizer drops, the unknown token stays: each word has its tag
                self._known[word] = pieces[: self.max_length - 2] or [self.tokenizer.unk_token_id]

    def batch(self, windows: Sequence[Window]) -> tuple[torch.Tensor, torch.Tensor]:
        """Pads windows on the right. Shapes: returns int64 ids and mask, both (windows, longest)."""
        import torch

        longest = max(len(window.ids) for window in windows)
        ids = torch.full((len(windows), longest), self.padding)
        mask = torch.zeros_like(ids)
        for row, window in enumerate(windows):
            ids[row, : len(window.ids)] = torch.tensor(window.ids)
            mask[row, : len(window.ids)] = 1
        return ids, mask


def piece_labels(windows: Sequence[Window], labels: Sequence[Sequence[int]]) -> list[list[int]]:
    """Labels of every piece: a word's first piece carries the word's, all others are ignored.

    Args:
        windows: in the order of the sentences.
        labels: one per word of each sentence.
    """
    found, sentence, used = [], -1, 0
    for window in windows:
        if window.sentence != sentence:
            sentence, used = window.sentence, 0
        row = [IGNORED] * len(window.ids)
        for place in window.firsts:
            row[place] = labels[sentence][used]
            used += 1
        found.append(row)
    return found
