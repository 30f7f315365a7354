"""The number of nouns in a caption."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from hf_curriculum.columns import CAPTION
from hf_curriculum.provenance import check_choice
from hf_curriculum.scorers.base import Scorer, readable_captions, scatter
from hf_curriculum.scorers.text.taggers import NltkTagger, PatternTagger, Tagger, resolve_tagger, warn_if_foreign

NOUN_TAGS = ("NN", "NNS", "NNP", "NNPS")
"""All nouns of the Penn Treebank: singular, plural, proper, proper plural."""


class NounCount(Scorer):
    """The number of nouns in a caption.

    Args:
        tagger: "pattern" (textblob's, needs nothing more) or "nltk" (needs NLTK's data), both for English; a `Tagger`;
            or a picklable function `(sentences: list[str]) -> list[list[str]]` that gives each sentence its tags.
        tags: what counts as a noun, by default all four noun tags. BabyLM's released code counts `("NN", "NNP")`.
        max_words: count within the first so many tokens of a caption only; the whole caption is tagged.
        tags_column: read the tags from this column (a list of strings per row), instead of tagging captions.
        column: where the captions are.
        name: the column to write.
        easy: few nouns are easy by default.

    Shapes:
        float32 (rows,), in nouns; NaN for a caption that is missing, empty or blank, or a row without tags.

    Raises:
        ValueError: an unknown tagger or `easy`, no `tags`, `max_words` below 1, or tags of another tag set.
        TypeError: a caption that is not a string, or tags that are not a list of strings.
        ImportError, LookupError: NLTK or its data is missing.

    Source: Saha et al. 2024 (BabyLM), §3.3; `max_words=50` and `tags=("NN", "NNP")` as in the released code.

    Example:
        >>> NounCount()({"caption": ["a dog and two cats in Paris"]})
        {'noun_count': array([3.], dtype=float32)}
        >>> NounCount(tags=("NN", "NNP"))({"caption": ["a dog and two cats in Paris"]})
        {'noun_count': array([2.], dtype=float32)}
    """

    def __init__(
        self,
        tagger: str | Tagger | Callable[[list[str]], list[list[str]]] = "pattern",
        tags: Sequence[str] | None = None,
        max_words: int | None = None,
        *,
        tags_column: str | None = None,
        column: str = CAPTION,
        name: str = "noun_count",
        easy: Literal["low", "high"] = "low",
    ) -> None:
        check_choice("easy", easy, ("low", "high"))
        tags = NOUN_TAGS if tags is None else (tags,) if isinstance(tags, str) else tuple(tags)
        if not tags:
            raise ValueError("`tags` is empty, so no word would count as a noun. Leave it out to count all nouns.")
        if max_words is not None and max_words < 1:
            raise ValueError(f"`max_words` is {max_words}. It is the number of tokens to count within, at least 1.")
        self.tags = tags
        self.max_words = max_words
        self.tags_column = tags_column
        self.column = column
        self.name = name
        self.easy: Literal["low", "high"] = easy
        self.columns: tuple[str, ...] = (column,) if tags_column is None else (tags_column,)
        self.tagger = None
        if tags_column is None:
            # resolved here: a wrong name is an error at once, and the tagger's attributes are in the cache key
            self.tagger: Tagger = resolve_tagger(tagger)
            self.packages: tuple[str, ...] = self.tagger.packages
            self.model: str | None = self.tagger.model
            self.revision: str | None = self.tagger.revision
        elif tagger != "pattern":
            raise ValueError(
                f"Both `tagger={tagger!r}` and `tags_column={tags_column!r}` were given. Tags that are in the data "
                "are not computed again. Give one of them."
            )

    def score(self, batch: dict[str, list[Any]], rank: int | None) -> np.ndarray:
        if self.tags_column is not None:
            tagged = [self._gold(row, tags) for row, tags in enumerate(batch[self.tags_column])]
            mask = np.fromiter(map(bool, tagged), bool, len(tagged))
            tagged = [tags for tags in tagged if tags]
        else:
            captions, mask = readable_captions(batch[self.column], self.column)
            english = isinstance(self.tagger, (PatternTagger, NltkTagger))
            if captions and english and not hasattr(self, "_language_checked"):
                self._language_checked = True
                warn_if_foreign(captions[:200])
            tagged = self.tagger.tag(captions, rank) if captions else []
            if len(tagged) != len(captions):
                raise ValueError(
                    f"The tagger returned {len(tagged)} lists of tags for {len(captions)} captions, so they cannot "
                    "be matched. It must return one list per sentence."
                )
        nouns = frozenset(self.tags)
        self._check_tag_set(tagged, nouns)
        return scatter([sum(tag in nouns for tag in tags[: self.max_words]) for tags in tagged], mask)

    def _gold(self, row: int, tags: Any) -> list[str]:
        if tags is None:
            return []
        if isinstance(tags, str) or not all(isinstance(tag, str) for tag in tags):
            raise TypeError(
                f"`{self.tags_column}` in row {row} of the batch is {str(tags)[:60]!r}, not a list of tags. Give "
                "a column with one string per word."
            )
        return list(tags)

    def _check_tag_set(self, tagged: list[list[str]], nouns: frozenset[str]) -> None:
        """An error for what would silently be counted as 0 nouns: pairs instead of tags, or tags of another set."""
        universal = {"NOUN", "PROPN"} if nouns.isdisjoint({"NOUN", "PROPN"}) else set()
        for tags in tagged:
            if isinstance(tags, str) or (tags and not isinstance(tags[0], str)):
                raise TypeError(
                    f"The tagger returned {str(tags)[:60]!r} for a sentence. It must return the tags alone, a list of "
                    "strings, one per word."
                )
            if not universal.isdisjoint(tags):
                raise ValueError(
                    f"The tags are universal ones ({list(tags)[:8]}), but nouns are counted by {self.tags}: every "
                    'count would be 0. Pass `tags=("NOUN", "PROPN")`.'
                )
