"""Counts the nouns of a caption."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from hf_curriculum.columns import CAPTION
from hf_curriculum.config import at_least
from hf_curriculum.data.conversations import Part, Turns
from hf_curriculum.scorers.base import CaptionScorer, scatter
from hf_curriculum.scorers.text.taggers import (
    NltkTagger,
    PatternTagger,
    Tagger,
    needing_nltk,
    resolve_tagger,
    warn_if_foreign,
)

NOUN_TAGS = ("NN", "NNS", "NNP", "NNPS")
"""All nouns of the Penn Treebank: singular, plural, proper, proper plural."""


class NounCount(CaptionScorer):
    """The number of nouns in a caption.

    Args:
        tagger: "pattern" (textblob's, needs nothing more) or "nltk" (needs NLTK's data), both for English; a `Tagger`;
            or a picklable function `(sentences: list[str]) -> list[list[str]]` that gives each sentence its tags.
        tags: the tags that count as nouns, by default all four. BabyLM's released code counts `("NN", "NNP")`.
        max_words: count within this number of first tokens only; the whole caption is tagged.
        tags_column: read the tags from this column (a list of strings per row), instead of tagging captions.
        column: where the captions or conversations are.
        name: the column to write.
        easy: few nouns are easy by default.
        part, turns: whose messages of a conversation are scored, and which of them: see `CaptionScorer`.

    Shapes:
        float32 (rows,), in nouns; NaN for a caption that is missing, empty or blank, or a row without tags.

    Raises:
        ValueError: an unknown tagger or `easy`, no `tags`, `max_words` below 1, or tags of another tag set.
        TypeError: a cell that is neither a text nor a conversation, or tags that are not a list of strings.
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
        tagger: str | Mapping[str, Any] | Tagger | Callable[[list[str]], list[list[str]]] = "pattern",
        tags: str | Sequence[str] | None = None,
        max_words: int | None = None,
        *,
        tags_column: str | None = None,
        column: str = CAPTION,
        name: str = "noun_count",
        easy: Literal["low", "high"] = "low",
        part: Part = "assistant",
        turns: Turns = "all",
    ) -> None:
        super().__init__(column, name, easy, part=part, turns=turns)
        tags = NOUN_TAGS if tags is None else (tags,) if isinstance(tags, str) else tuple(tags)
        if not tags:
            raise ValueError("`tags` is empty, so no word would count as a noun. Leave it out to count all nouns.")
        if max_words is not None:
            at_least("NounCount", max_words=(max_words, 1))
        self.tags = tags
        self.max_words = max_words
        self.tags_column = tags_column
        self.tagger = None
        if tags_column is None:
            # resolved here: a wrong name is an error at once, and the tagger's attributes are in the cache key
            self.tagger: Tagger = resolve_tagger(tagger)
            self.packages: tuple[str, ...] = self.tagger.packages
            self.model: str | None = self.tagger.model
            self.revision: str | None = self.tagger.revision
        elif tagger != "pattern":
            raise ValueError(f"Both `tagger={tagger!r}` and `tags_column={tags_column!r}` were given. Give one.")
        else:
            self.columns = (tags_column,)

    def score(self, batch: dict[str, list[Any]], rank: int | None) -> np.ndarray:
        if self.tags_column is None:
            return super().score(batch, rank)
        tagged = [self._gold(row, tags) for row, tags in enumerate(batch[self.tags_column])]
        mask = np.fromiter(map(bool, tagged), bool, len(tagged))
        return scatter(self._counts([tags for tags in tagged if tags]), mask)

    def score_captions(self, captions: list[str], rank: int | None) -> list[int]:
        if isinstance(self.tagger, (PatternTagger, NltkTagger)) and not hasattr(self, "_language_checked"):
            self._language_checked = True
            if not warn_if_foreign(captions[:200]):
                self.look_at_words(captions)
        tagged = self.tagger.tag(captions, rank)
        if len(tagged) != len(captions):
            raise ValueError(f"The tagger returned {len(tagged)} lists of tags for {len(captions)} captions.")
        return self._counts(tagged)

    def _counts(self, tagged: list[list[str]]) -> list[int]:
        nouns = frozenset(self.tags)
        self._validate_tag_set(tagged, nouns)
        return [sum(tag in nouns for tag in tags[: self.max_words]) for tags in tagged]

    def _gold(self, row: int, tags: Any) -> list[str]:
        if tags is None:
            return []
        if isinstance(tags, str) or not all(isinstance(tag, str) for tag in tags):
            where = f"`{self.tags_column}` in row {row} of the batch"
            raise TypeError(f"{where} is {str(tags)[:60]!r}, not a list of tags, one string per word.")
        return list(tags)

    def _validate_tag_set(self, tagged: list[list[str]], nouns: frozenset[str]) -> None:
        """An error for what would silently be counted as 0 nouns: pairs instead of tags, or tags of another set."""
        universal = {"NOUN", "PROPN"} if nouns.isdisjoint({"NOUN", "PROPN"}) else set()
        for tags in tagged:
            if isinstance(tags, str) or (tags and not isinstance(tags[0], str)):
                raise TypeError(f"The tagger returned {str(tags)[:60]!r} for a sentence, not a list of tags alone.")
            if not universal.isdisjoint(tags):
                raise ValueError(
                    f"The tags are universal ones ({list(tags)[:8]}), but nouns are counted by {self.tags}: every "
                    'count would be 0. Pass `tags=("NOUN", "PROPN")`.'
                )


_PLURALS = """
analyses/analysis atlases/atlas biases/bias busses/bus cacti/cactus calves/calf canvases/canvas children/child
crises/crisis dwarves/dwarf elves/elf feet/foot fungi/fungus gases/gas geese/goose halves/half hooves/hoof irises/iris
knives/knife larvae/larva leaves/leaf lenses/lens lives/life loaves/loaf mantises/mantis men/man mice/mouse
oases/oasis oxen/ox people/person quizzes/quiz rhinoceroses/rhinoceros scarves/scarf selves/self shelves/shelf
teeth/tooth thermoses/thermos thieves/thief topazes/topaz wharves/wharf wives/wife wolves/wolf women/woman
"""
_IRREGULAR = dict(pair.split("/") for pair in _PLURALS.split())
_COMPOUNDS = ("shelves", "wolves", "knives", "wives", "loaves", "children", "women", "men", "feet", "teeth")
"""Plurals that others end in, as `bookshelves`."""
_NO_PLURALS = """
adidas aerobics alias asbestos athletics atlas barracks bias biceps binoculars canvas chaos christmas clothes corps
cosmos crossroads dallas economics eyeglasses gas gymnastics headquarters jeans kansas leggings lens mathematics
mercedes molasses news pajamas pancreas pants physics pliers politics pyjamas rabies rhinoceros scissors series shorts
species starbucks sunglasses texas thames thermos tights tongs triceps trousers tweezers undies vegas abdomen acumen
amen bitumen cyclamen hymen lumen omen ramen regimen semen specimen stamen yemen
"""
_KEPT = frozenset(_NO_PLURALS.split())
"""Words that are no plurals, or have no singular."""
_PLURALS_IN_S = """
aches avalanches axes backaches birdies brownies budgies caches calories canoes collies cookies does earaches foes
genies headaches heartaches hippies hoes hoodies horseshoes magpies moustaches movies mustaches neckties niches oboes
pickaxes pixies prairies psyches quiches rookies selfies shoes smoothies snowshoes stomachaches talkies tiptoes toes
toothaches veggies yuppies zombies alibis bikinis corgis emojis ferraris jacuzzis khakis kiwis martinis minis paninis
rabbis safaris skis taxis tsunamis yetis zucchinis emus gnus gurus menus ads cds djs pcs tvs
"""
_LOSE_S = frozenset(_PLURALS_IN_S.split())
"""Plurals that lose their -s alone where the rules below would take more, or nothing."""
_IN_USE = frozenset(("excuses", "fuses", "muses", "recluses", "ruses", "uses"))
"""Plurals in -uses whose singular is in -use; others are in -us, but for -auses and -ouses."""


def singular(word: str) -> str:
    """The singular of an English noun by spelling rules, to be passed as `normalise`."""
    last = word.rpartition("-")[2]  # "walkie-talkies" are as "talkies"
    if last in _IRREGULAR:
        return word.removesuffix(last) + _IRREGULAR[last]
    if last in _KEPT:
        return word
    if last in _LOSE_S:
        return word[:-1]
    if plural := next(filter(word.endswith, _COMPOUNDS), None):
        return word.removesuffix(plural) + _IRREGULAR[plural]
    if len(word) < 4 or not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith("uses") and not word.endswith(("auses", "ouses")) and word not in _IN_USE:
        return word[:-2]
    if word.endswith(("sses", "xes", "ches", "shes", "oes", "tzes", "zzes")):
        return word[:-2]
    return word[:-1]


def wordnet_lemma(word: str) -> str:
    """The lemma of an English noun by NLTK's WordNet; a word that it lacks stays as it is."""
    with needing_nltk("Lemmas by WordNet need NLTK", "wordnet", '`lemmas="spelling"`'):
        from nltk.stem import WordNetLemmatizer

        return WordNetLemmatizer().lemmatize(word, "n")


LEMMAS: dict[str, Callable[[str], str]] = {"spelling": singular, "wordnet": wordnet_lemma}
"""Ways to bring nouns into one form, by name."""
