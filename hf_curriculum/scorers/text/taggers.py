"""Part-of-speech taggers behind one call: sentences in, Penn Treebank tags out."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import Any

from hf_curriculum.scorers.base import public_state

# "U.S."; "3.5" and "10:30"; words, hyphens inside; runs of dots; any other sign by itself
_TOKEN = re.compile(r"(?:[^\W\d_]\.){2,}|\d+(?:[.,:/]\d+)+|\w+(?:-\w+)*|\.{2,}|[^\w\s]")
# the same, with "don't" cut into "do" and "n't" and "dog's" into "dog" and "'s", as in the Penn Treebank
_TOKEN_CUT = re.compile(
    r"\w+(?=n't\b)|n't\b|'(?:s|re|ve|ll|d|m)\b|" + _TOKEN.pattern,
    re.IGNORECASE,
)
# the same, with words kept whole around an apostrophe
_TOKEN_WHOLE = re.compile(r"\w+(?:'\w+)+|" + _TOKEN.pattern)
_SENTENCE_END = frozenset({".", "!", "?"})


def tokenize(sentence: str, contractions: str = "cut") -> list[str]:
    """Splits a sentence into words, numbers and single signs.

    Args:
        sentence: any text; composed to Unicode NFC first, so that an accent does not split its word.
        contractions: "cut" separates "n't", "'s" and their like as the Penn Treebank does; "whole" leaves them.

    Example:
        >>> tokenize("a well-known dog's ball isn't red."), tokenize("it isn't.", "whole")
        (['a', 'well-known', 'dog', "'s", 'ball', 'is', "n't", 'red', '.'], ['it', "isn't", '.'])
    """
    if not sentence.isascii():
        sentence = unicodedata.normalize("NFC", sentence).replace("’", "'")
    if "'" not in sentence:
        return _TOKEN.findall(sentence)
    return (_TOKEN_CUT if contractions == "cut" else _TOKEN_WHOLE).findall(sentence)


class Tagger:
    """Gives each word of a sentence its part of speech.

    A subclass defines `tag`. What it loads belongs into names that begin with an underscore: they are not pickled.
    A trained tagger says which `model` and `revision` it is; both go into the provenance of the scores made with it.

    Attributes:
        packages: distributions whose versions decide the tags.
        model, revision: of a trained tagger.
        contractions: how it cuts words, as in `tokenize`; who learns from its tags has to cut them likewise.
    """

    packages: tuple[str, ...] = ()
    contractions: str = "cut"
    model: str | None = None
    revision: str | None = None

    def tag(self, sentences: list[str], rank: int | None = None) -> list[list[str]]:
        """Penn Treebank tags, one list per sentence, one tag per word or sign.

        Args:
            sentences: texts that are not blank.
            rank: the worker process, for a tagger that runs on a device.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define `tag`.")

    def arguments(self) -> Any:
        """What the provenance says of this tagger, as JSON can hold it."""
        return {"type": type(self).__name__, **public_state(self)}

    def __getstate__(self) -> dict[str, Any]:
        return public_state(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in public_state(self).items())})"


class PatternTagger(Tagger):
    """textblob's `PatternTagger`: a lexicon of 94,000 words, and suffixes for the rest. Nothing is downloaded.

    textblob applies no rule that looks at neighbouring words, only a capital is read differently at the beginning of
    a sentence. So the tag of a word is kept and looked up again, which gives the same tags faster (a test compares).

    Two things differ from `TextBlob(text).tags`. Contractions are cut as in the Penn Treebank ("do", "n't"): textblob
    cuts "don't" into four pieces and takes two for nouns. And a sign without letter or digit is never a noun.

    Example:
        >>> PatternTagger().tag(["a dog and two cats in Paris"])
        [['DT', 'NN', 'CC', 'CD', 'NNS', 'IN', 'NNP']]
    """

    packages = ("textblob",)

    def tag(self, sentences: list[str], rank: int | None = None) -> list[list[str]]:
        if not hasattr(self, "_first"):
            self._first: dict[str, str] = {}
            self._later: dict[str, str] = {}
        return [self._tag(sentence) for sentence in sentences]

    def _tag(self, sentence: str) -> list[str]:
        tags, known = [], self._first
        for word in tokenize(sentence):
            tag = known.get(word)
            if tag is None:
                tag = known[word] = _pattern_tag(word, first=known is self._first)
            tags.append(tag)
            known = self._first if word in _SENTENCE_END else self._later
        return tags


def _pattern_tag(word: str, first: bool) -> str:
    from textblob.en import parser

    tagged = parser.find_tags([word] if first else ["the", word])
    tag = tagged[-1][1].partition("|")[0]  # the lexicon lists some words under several tags, the likeliest first
    if tag.startswith("NN") and not any(char.isalnum() for char in word):
        return "SYM"  # unknown signs are nouns by default
    return tag


class NltkTagger(Tagger):
    """NLTK's averaged perceptron, which reads a word in its context. Needs its data, 5 MB.

    Words are kept whole around an apostrophe, as in the scoring of BabyLM's images.

    Raises:
        ImportError: NLTK is not installed.
        LookupError: its data is not there.

    Source: Saha et al. 2024 (BabyLM), released code: the tags that its noun counts rest on.
    """

    packages = ("nltk",)
    contractions = "whole"

    def tag(self, sentences: list[str], rank: int | None = None) -> list[list[str]]:
        if not hasattr(self, "_perceptron"):
            self._perceptron = _load_perceptron()
        return [
            [tag for _, tag in self._perceptron.tag(tokenize(sentence, self.contractions))] for sentence in sentences
        ]


def _load_perceptron() -> Any:
    try:
        from nltk.tag import PerceptronTagger
    except ImportError as error:
        raise ImportError(
            "The tagger 'nltk' needs NLTK, which is not installed. Run `pip install 'hf-curriculum[text]'`, or use "
            "the tagger 'pattern', which needs nothing more."
        ) from error
    try:
        return PerceptronTagger()
    except LookupError as error:
        raise LookupError(
            "The tagger 'nltk' found no data: NLTK's `averaged_perceptron_tagger_eng` is not in its search path. Run "
            "`python -c \"import nltk; nltk.download('averaged_perceptron_tagger_eng')\"` once, or set NLTK_DATA to a "
            "folder that has it. The tagger 'pattern' needs no data."
        ) from error


class CallableTagger(Tagger):
    """A function of one's own: `function(sentences: list[str]) -> list[list[str]]`, picklable for `num_proc`.

    Example:
        >>> CallableTagger(lambda sentences: [["NN"] * len(text.split()) for text in sentences]).tag(["red ball"])
        [['NN', 'NN']]
    """

    def __init__(self, function: Callable[[list[str]], list[list[str]]]) -> None:
        self.function = function

    def tag(self, sentences: list[str], rank: int | None = None) -> list[list[str]]:
        return self.function(sentences)

    def arguments(self) -> Any:
        from datasets.fingerprint import Hasher

        named = getattr(self.function, "__qualname__", type(self.function).__qualname__)
        return {"function": f"{self.function.__module__}.{named}", "digest": Hasher.hash(self.function)}


TAGGERS: dict[str, type[Tagger]] = {"pattern": PatternTagger, "nltk": NltkTagger}
"""The taggers that a name selects."""


def resolve_tagger(tagger: str | Tagger | Callable[[list[str]], list[list[str]]]) -> Tagger:
    """The tagger that a name, a tagger or a function stands for.

    Raises:
        ValueError: an unknown name.
        TypeError: none of these.
    """
    if isinstance(tagger, Tagger):
        return tagger
    if isinstance(tagger, str):
        if tagger not in TAGGERS:
            raise ValueError(
                f"There is no tagger {tagger!r}. The names are {list(TAGGERS)}; a `Tagger` or a function of a list of "
                "sentences is possible too."
            )
        return TAGGERS[tagger]()
    if not callable(tagger):
        raise TypeError(
            f"A tagger cannot be a {type(tagger).__name__}. Give one of {list(TAGGERS)}, a `Tagger`, or a function "
            "`(sentences: list[str]) -> list[list[str]]`."
        )
    return CallableTagger(tagger)
