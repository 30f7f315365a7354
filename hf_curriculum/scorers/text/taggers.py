"""Part-of-speech taggers with one interface: sentences → Penn Treebank tags."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import regex

from hf_curriculum.scorers.base import Component
from hf_curriculum.words import NAME, compose

logger: logging.Logger = logging.getLogger(__name__)

# "U.S."; "3.5" and "10:30"; words, hyphens inside; runs of dots; any other punctuation mark
_TOKEN = regex.compile(
    rf"(?:[^\W\d_]\.){{2,}}|\d+(?:[.,:/]\d+)+|{NAME}(?:-{NAME})*|\.{{2,}}|[^\p{{L}}\p{{N}}_\s]\p{{M}}*"
)
# the same, with "don't" split into "do" and "n't" and "dog's" into "dog" and "'s", as in the Penn Treebank
_TOKEN_SPLIT = regex.compile(rf"{NAME}(?=n't\b)|n't\b|'(?:s|re|ve|ll|d|m)\b|" + _TOKEN.pattern, regex.IGNORECASE)
# the same, with contractions as one word
_TOKEN_WHOLE = regex.compile(rf"{NAME}(?:'{NAME})+|" + _TOKEN.pattern)
_SENTENCE_END = frozenset({".", "!", "?"})


def tokenize_sentence(sentence: str, contractions: str = "cut") -> list[str]:
    """Splits a sentence, normalised to Unicode NFC, into words, numbers and punctuation marks."""
    sentence = compose(sentence).replace("’", "'")
    if "'" not in sentence:
        return _TOKEN.findall(sentence)
    return (_TOKEN_SPLIT if contractions == "cut" else _TOKEN_WHOLE).findall(sentence)


class Tagger(Component):
    """A part-of-speech tagger; a subclass defines `tag`. Attributes that begin with an underscore are not pickled.

    Attributes:
        packages: distributions whose versions decide the tags.
        model, revision: of a trained tagger, for the provenance of scores.
        contractions: how it splits words, as in `tokenize`.
    """

    contractions: str = "cut"

    def tag(self, sentences: list[str], rank: int | None = None) -> list[list[str]]:
        """Penn Treebank tags, one list per sentence, one tag per token; `rank` is the worker process."""
        raise NotImplementedError(f"{type(self).__name__} does not define `tag`.")


class PatternTagger(Tagger):
    """textblob's `PatternTagger`: a lexicon of 94,000 words, and suffixes for the rest. Nothing is downloaded.

    textblob's rules do not read neighbouring words; only capitals are read differently at the beginning of a sentence.
    So the tag of a word is cached, which gives the same tags faster (a test compares).

    Two things differ from `TextBlob(text).tags`. Contractions are split as in the Penn Treebank; textblob splits
    "don't" into four pieces and tags two as nouns. And a token without letter or digit is never a noun. A sentence in
    capitals alone is read in small letters.
    """

    packages: tuple[str, ...] = ("textblob",)

    def tag(self, sentences: list[str], rank: int | None = None) -> list[list[str]]:
        if not hasattr(self, "_first"):
            self._first: dict[str, str] = {}
            self._later: dict[str, str] = {}
        return [self._tag(sentence) for sentence in sentences]

    def _tag(self, sentence: str) -> list[str]:
        tags, known = [], self._first
        for word in tokenize_sentence(sentence_case(sentence)):
            tag = known.get(word)
            if tag is None:
                tag = known[word] = _pattern_tag(word, first=known is self._first)
            tags.append(tag)
            known = self._first if word in _SENTENCE_END else self._later
        return tags


def _pattern_tag(word: str, first: bool) -> str:
    from textblob.en import parser

    tagged = parser.find_tags([word] if first else ["the", word])
    # the lexicon lists some words under several tags, the likeliest first
    return _without_punctuation(word, tagged[-1][1].partition("|")[0])


def _without_punctuation(word: str, tag: str) -> str:
    """The tag, but "SYM" for a noun without letter or digit: unknown tokens are nouns by default."""
    return "SYM" if tag.startswith("NN") and not any(char.isalnum() for char in word) else tag


def sentence_case(sentence: str) -> str:
    """A sentence of several words in capitals alone in small letters: in capitals every word is a name to a tagger."""
    return sentence.lower() if sentence.isupper() and len(sentence.split()) > 1 else sentence


_FOREIGN = 1 / 3  # share of foreign words: about 2 % in COCO's and Flickr8k's captions, 69 % to 100 % in six languages

_FEW, _FEWEST = 0.01, 3  # captions of mostly foreign words: 0.07 % of Flickr8k's


def warn_if_foreign(captions: Sequence[str]) -> bool:
    """Warns, and returns True, if many words, or a few captions of mostly such words, are not English.

    Many are more than a third, and two different ones; a few are more than one in a hundred, and three different ones.
    """
    words = {
        caption: [word for word in tokenize_sentence(caption) if any(map(str.isalpha, word))] for caption in captions
    }
    others = {caption: list(filter(_is_foreign, found)) for caption, found in words.items()}
    mostly = {caption for caption, found in others.items() if 2 * len(found) > len(words[caption])}
    count, total = (sum(len(part[caption]) for caption in captions) for part in (others, words))
    foreign = list(dict.fromkeys(word for found in others.values() for word in found))
    number = sum(caption in mostly for caption in captions)
    if len(foreign) >= 2 and count > _FOREIGN * total:
        share = f"{100 * count / total:.0f} % of the words are in no English lexicon"
    elif len(mostly) >= _FEWEST and number > _FEW * len(captions):
        share = f"{number:,} of the first {len(captions):,} captions are mostly words in no English lexicon"
        foreign = list(dict.fromkeys(word for caption in others if caption in mostly for word in others[caption]))
    else:
        return False
    logger.warning(
        "%s, such as %s. The taggers 'pattern' and 'nltk' know English only and take unknown words for nouns. For "
        "another language pass a tagger of your own.",
        share,
        ", ".join(map(repr, foreign[:5])),
    )
    return True


def _is_foreign(word: str) -> bool:
    """Whether the lexicon lacks a word, or has it as a foreign one ("FW") or, written small, as a name alone."""
    from textblob.en import parser

    tags = set(parser.lexicon.get(word.lower(), "").split("|")) - {"", "FW", "NNP"}
    if word[0].isupper():
        tags |= set(parser.lexicon.get(word.capitalize(), "").split("|")) - {"", "FW"}
    return not tags


class NltkTagger(Tagger):
    """NLTK's averaged perceptron, which reads a word in its context; needs its data, 5 MB. Contractions stay whole.

    As with `PatternTagger`, a token without letter or digit is never a noun (NLTK tags quote marks, dashes and
    brackets as nouns, 226 of 7,412 in one treebank), and a sentence in capitals alone is read in small letters.
    """

    packages: tuple[str, ...] = ("nltk",)
    contractions = "whole"

    def tag(self, sentences: list[str], rank: int | None = None) -> list[list[str]]:
        if not hasattr(self, "_perceptron"):
            self._perceptron = self._load()
        tokens = [tokenize_sentence(sentence_case(sentence), self.contractions) for sentence in sentences]
        return [[_without_punctuation(word, tag) for word, tag in self._perceptron.tag(words)] for words in tokens]

    def _load(self) -> Any:
        with needing_nltk("The tagger 'nltk'", "averaged_perceptron_tagger_eng", "the tagger 'pattern'"):
            from nltk.tag import PerceptronTagger

            return PerceptronTagger()


@contextmanager
def needing_nltk(what: str, data: str = "", otherwise: str = "") -> Iterator[None]:
    """Says how to install NLTK, or to fetch its data, where one is missing."""
    instead = otherwise and f", or use {otherwise}, which needs nothing more"
    try:
        yield
    except ImportError as error:
        remedy = f"Run `pip install 'hf-curriculum[text]'`{instead}."
        raise ImportError(f"{what}: NLTK is not installed. {remedy}") from error
    except LookupError as error:
        raise LookupError(
            f"{what}: NLTK's `{data}` is not in its search path. Run `python -c \"import nltk; "
            f"nltk.download('{data}')\"` once, or set NLTK_DATA to a folder that has it{instead}."
        ) from error


class CallableTagger(Tagger):
    """A function `(sentences: list[str]) -> list[list[str]]` as a tagger, picklable for `num_proc`."""

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


def resolve_tagger(tagger: str | Tagger | Callable[[list[str]], list[list[str]]] | Mapping[str, Any]) -> Tagger:
    """A tagger from its name, a function, a tagger, or what provenance has of one of `TAGGERS`."""
    if isinstance(tagger, Tagger):
        return tagger
    if isinstance(tagger, Mapping):
        tagger = next((name for name, cls in TAGGERS.items() if tagger == {"type": cls.__name__}), str(dict(tagger)))
    if isinstance(tagger, str):
        if tagger not in TAGGERS:
            raise ValueError(f"There is no tagger {tagger!r}. Give one of {list(TAGGERS)}, a `Tagger` or a function.")
        return TAGGERS[tagger]()
    if not callable(tagger):
        given = f"A tagger cannot be a {type(tagger).__name__}"
        raise TypeError(f"{given}. Give one of {list(TAGGERS)}, a `Tagger` or a function.")
    return CallableTagger(tagger)
