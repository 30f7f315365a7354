"""Caption length in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from hf_curriculum.columns import CAPTION
from hf_curriculum.data.conversations import Part, Turns
from hf_curriculum.provenance import validate_choice
from hf_curriculum.scorers.base import CaptionScorer
from hf_curriculum.words import joined_words_of


def word_splitter(words: Literal["whitespace", "regex"]) -> Callable[[str], list[str]]:
    """The function that splits a caption into words: see `CaptionLength` for the two kinds."""
    validate_choice("words", words, ("whitespace", "regex"))
    return str.split if words == "whitespace" else joined_words_of


class CaptionLength(CaptionScorer):
    """The number of words of a caption.

    Args:
        words: "whitespace" splits at white space: "a dog ." has three words. "regex" counts runs of letters and
            digits, with apostrophes and hyphens inside a word: it has two.
        column: where the captions or conversations are.
        name: the column to write.
        easy: short captions are easy by default. Nebbia and Kovashka consider long ones easy: `easy="high"`.
        part, turns: whose messages of a conversation are scored, and which of them: see `CaptionScorer`.

    Shapes:
        float32 (rows,), in words; NaN for a caption that is missing, empty or blank.

    Raises:
        ValueError: unknown `words`, `easy`, `part` or `turns`.
        TypeError: a cell that is neither a text nor a conversation.

    Source: Nebbia & Kovashka 2024 (WSOD), §3; their tokenisation is not stated, so it is an argument here.

    Example:
        >>> CaptionLength()({"caption": ["a dog and two cats in Paris", ""]})
        {'caption_length': array([ 7., nan], dtype=float32)}
    """

    def __init__(
        self,
        words: Literal["whitespace", "regex"] = "whitespace",
        *,
        column: str = CAPTION,
        name: str = "caption_length",
        easy: Literal["low", "high"] = "low",
        part: Part = "assistant",
        turns: Turns = "all",
    ) -> None:
        validate_choice("words", words, ("whitespace", "regex"))
        super().__init__(column, name, easy, part=part, turns=turns)
        self.words = words

    def score_captions(self, captions: list[str], rank: int | None) -> list[int]:
        self.look_at_words(captions)
        return list(map(len, map(word_splitter(self.words), captions)))
