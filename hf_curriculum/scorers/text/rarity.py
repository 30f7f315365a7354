"""Word rarity: mean negative log-probability of a caption's words in a corpus."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from hf_curriculum.columns import CAPTION
from hf_curriculum.data.conversations import Part, Turns
from hf_curriculum.provenance import validate_choice
from hf_curriculum.scorers.base import CaptionScorer, corpus_batches
from hf_curriculum.scorers.text.length import word_splitter

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset


class WordRarity(CaptionScorer):
    """Rarity of a caption's words in a corpus: −log p(word), in nats.

    p(w) = (c(w) + 1) / (N + V + 1), with c(w) the occurrences of a word in the corpus, N those of all words and V the
    number of distinct words. All unseen words together count as one more word. So the probabilities sum to 1, and an
    unseen word is rarer than any other. Words are lower-cased.

    Args:
        aggregate: "mean" over the words of a caption, "max" (its rarest word), or "sum", under which long captions
            are rarer too.
        words: how to split into words, as in `CaptionLength`. "regex" ignores punctuation.
        column: where the captions or conversations are.
        name: the column to write.
        easy: captions of common words are easy by default.
        part, turns: whose messages of a conversation are scored, and which of them: see `CaptionScorer`.

    Attributes:
        word_counts_: word → its occurrences in the corpus, in alphabetical order.

    Shapes:
        float32 (rows,), in nats; NaN for a caption that is missing or has no words.

    Raises:
        RuntimeError: used before `fit` or `fit_counts`.
        ValueError: unknown `aggregate`, `words`, `easy`, `part` or `turns`; a corpus without words.
        TypeError: a cell that is neither a text nor a conversation.

    Source: "sum" without smoothing is Platanios et al. 2019 (competence-based curriculum), §2.1.

    Example:
        >>> from datasets import Dataset
        >>> scorer = WordRarity().fit(Dataset.from_dict({"caption": ["a dog", "a cat", "a dog runs"]}))
        >>> scorer({"caption": ["a dog", "a zebra", ""]})["word_rarity"].round(3)
        array([1.242, 1.792,   nan], dtype=float32)
    """

    fitted_attributes: tuple[str, ...] = ("word_counts_",)

    def __init__(
        self,
        aggregate: Literal["mean", "max", "sum"] = "mean",
        *,
        words: Literal["whitespace", "regex"] = "regex",
        column: str = CAPTION,
        name: str = "word_rarity",
        easy: Literal["low", "high"] = "low",
        part: Part = "assistant",
        turns: Turns = "all",
    ) -> None:
        validate_choice("aggregate", aggregate, ("mean", "max", "sum"))
        validate_choice("words", words, ("whitespace", "regex"))
        super().__init__(column, name, easy, part=part, turns=turns)
        self.aggregate = aggregate
        self.words = words

    def fit(self, dataset: Dataset | IterableDataset) -> WordRarity:
        """Counts the words of a corpus.

        Args:
            dataset: one data set with the caption column, usually the training data.

        Raises:
            TypeError: not a data set, or a cell that is neither a text nor a conversation.
            ValueError: the column is missing, or no caption has a word.
        """
        split, counts = word_splitter(self.words), Counter()
        for batch in corpus_batches(dataset, self.columns, "WordRarity"):
            captions = self.read_texts(batch[self.column], self.column)[0]
            self.look_at_words(captions)
            for caption in captions:
                counts.update(split(caption.lower()))
        return self.fit_counts(counts)

    def fit_counts(self, counts: Mapping[str, int]) -> WordRarity:
        """Takes the counts of another corpus, like a published frequency list.

        Args:
            counts: word → occurrences, at least 1. Words that differ only in upper case are added up.

        Raises:
            ValueError: no words, or a count below 1.
        """
        if not counts:
            raise ValueError("There are no words to count. `column` names the captions; are they empty?")
        if min(counts.values()) < 1:
            lowest = min(counts, key=counts.__getitem__)
            raise ValueError(
                f"The count of {lowest!r} is {counts[lowest]}. Counts are occurrences, at least 1: multiply "
                "frequencies by the size of their corpus."
            )
        folded: Counter[str] = Counter()
        for word, count in counts.items():
            folded[word.lower()] += count
        # sorted: the cache key does not depend on the rows' order
        self.word_counts_: dict[str, int] = dict(sorted(folded.items()))
        self.__dict__.pop("_rarities", None)
        return self

    def score_captions(self, captions: list[str], rank: int | None) -> list[float]:
        if "_rarities" not in self.__dict__:
            total = sum(self.word_counts_.values()) + len(self.word_counts_) + 1
            self._rarities = {word: math.log(total / (count + 1)) for word, count in self.word_counts_.items()}
            self._unseen = math.log(total)
        known, unseen, split = self._rarities.get, self._unseen, word_splitter(self.words)
        aggregate = {"mean": lambda values: sum(values) / len(values), "max": max, "sum": math.fsum}[self.aggregate]
        rarities = ([known(word, unseen) for word in split(caption.lower())] for caption in captions)
        return [aggregate(found) if found else math.nan for found in rarities]
