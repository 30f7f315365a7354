"""The nouns of captions, and where they stand."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import multiprocess
import numpy as np
from datasets import Dataset

from hf_curriculum.columns import CAPTION, require_columns
from hf_curriculum.provenance import read_column
from hf_curriculum.scorers.text.nouns import LEMMAS, NOUN_TAGS
from hf_curriculum.scorers.text.taggers import Tagger, resolve_tagger, tokenize_sentence
from hf_curriculum.shapes import validate_arguments

Lemmas = str | Callable[[str], str]
"""A name of `LEMMAS`, or a function of one lower-case word."""
Tagging = str | Tagger | Callable[[list[str]], list[list[str]]]
"""What finds nouns, see `NounCount`: "pattern", "nltk", a tagger, or a function of a list of sentences."""
_BLOCK = 20_000  # captions that are tagged at a time


class Mentions(NamedTuple):
    """The nouns of captions: each noun of a caption once, where it stands first.

    Args:
        nouns: lemmas, sorted.
        rows: the caption's row, ascending.
        codes: which of `nouns`.
        starts, ends: characters of the caption, half-open.

    Shapes: all but `nouns` int32 (mentions,).
    """

    nouns: tuple[str, ...]
    rows: np.ndarray
    codes: np.ndarray
    starts: np.ndarray
    ends: np.ndarray

    def keep(self, wanted: np.ndarray) -> Mentions:
        """The mentions that a mask or row numbers select; `nouns` stay."""
        return Mentions(self.nouns, *(part[wanted] for part in self[1:]))


@validate_arguments
def find_nouns(
    pairs: Dataset,
    tagger: Tagging = "pattern",
    lemmas: Lemmas = "spelling",
    *,
    only: Collection[str] | Mapping[str, Any] | None = None,
    num_proc: int | None = None,
) -> Mentions:
    """The nouns of each caption as lemmas in lower case, with the characters where each stands first.

    Args:
        pairs: with a column `caption`; a missing one has no nouns.
        tagger: finds nouns: "pattern", "nltk", a `Tagger`, or a function of a list of sentences; see `NounCount`.
        lemmas: "spelling" (our rules), "wordnet" (NLTK's, where its data is), or a function of one word.
        only: lemmas to look for; by default all.
        num_proc: processes that tag; the result is the same for any number.

    Raises:
        ValueError: there are no captions, an unknown tagger or `lemmas`, or the tagger's words are not ours.
        ImportError, LookupError: NLTK or its data is missing.

    Example:
        >>> found = find_nouns(Dataset.from_dict({"caption": ["Two dogs and a dog", "a red ball"]}))
        >>> found.nouns, found.rows.tolist(), found.starts.tolist()
        (('ball', 'dog'), [0, 1], [4, 6])
    """
    require_columns(
        pairs.column_names, [CAPTION], reader="Nouns are looked for in captions.", remedy="Load it with captions."
    )
    one_form = LEMMAS.get(lemmas) if isinstance(lemmas, str) else lemmas
    if one_form is None:
        raise ValueError(f"There are no lemmas by {lemmas!r}. Give one of {list(LEMMAS)}, or a function of one word.")
    find = partial(_find, tagger=resolve_tagger(tagger), lemmas=one_form, only=only and frozenset(only))
    captions = read_column(pairs, CAPTION)
    blocks = (captions.slice(start, _BLOCK).to_pylist() for start in range(0, len(captions), _BLOCK))
    several = (num_proc or 1) > 1 and len(captions) > _BLOCK
    with multiprocess.Pool(num_proc) if several else nullcontext() as pool:
        found = list(pool.imap(find, blocks) if several else map(find, blocks))
    return _joined(found)


def _joined(found: list[tuple[list[str], np.ndarray]]) -> Mentions:
    """Blocks of captions one after the other, their nouns numbered in one way."""
    nouns = sorted({noun for own, _ in found for noun in own})
    number = {noun: code for code, noun in enumerate(nouns)}
    parts = []
    for block, (own, part) in enumerate(found):
        codes = np.array([number[noun] for noun in own], np.int32)
        part[0] += block * _BLOCK
        part[1] = codes[part[1]] if len(own) else part[1]
        parts.append(part)
    rows, codes, starts, ends = np.concatenate([np.zeros((4, 0), np.int32), *parts], axis=1)
    return Mentions(tuple(nouns), rows, codes, starts, ends)


def _find(
    captions: list[str | None], tagger: Tagger, lemmas: Callable[[str], str], only: frozenset[str] | None
) -> tuple[list[str], np.ndarray]:
    """Nouns of captions, and (row, noun, start, end) of each mention, int32 (4, mentions)."""
    there = [row for row, caption in enumerate(captions) if caption and caption.strip()]
    texts = [captions[row] for row in there]
    tagged = tagger.tag(texts) if texts else []
    numbers: dict[str, int] = {}
    known: dict[str, int | None] = {}  # word → number of its noun
    found: list[tuple[int, int, int, int]] = []
    for row, text, tags in zip(there, texts, tagged, strict=True):
        tokens = tokenize_sentence(text, tagger.contractions)
        if len(tokens) != len(tags):
            raise ValueError(
                f"The tagger gave {len(tags)} tags for the {len(tokens)} words {tokens[:8]} of {text[:60]!r}, so it "
                "is not known which of them are nouns. It tags the words of "
                "`hf_curriculum.scorers.text.taggers.tokenize_sentence`, one tag for each."
            )
        seen: set[int] = set()
        for token, tag, (start, end) in zip(tokens, tags, token_spans(text, tokens), strict=True):
            if tag not in NOUN_TAGS:
                continue
            if token not in known:
                noun = lemmas(token.lower())
                wanted = only is None or noun in only
                known[token] = numbers.setdefault(noun, len(numbers)) if wanted else None
            code = known[token]
            if code is not None and code not in seen:
                seen.add(code)
                found.append((row, code, start, end))
    return list(numbers), np.array(found, np.int32).reshape(-1, 4).T.copy()


def token_spans(text: str, tokens: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Where each of a text's words stands, half-open characters; `tokens` are those of `tokenize`."""
    normal, places = _normalised(text)
    at = 0
    for token in tokens:
        while normal[at].isspace():
            at += 1
        end = at + len(token)
        yield (at, end) if places is None else (places[at][0], places[end - 1][1])
        at = end


def _normalised(text: str) -> tuple[str, list[tuple[int, int]] | None]:
    """A text in the form of `tokenize`, and where each character of it stands in the text itself; None: at its own."""
    if text.isascii() or unicodedata.is_normalized("NFC", text):
        return text, None
    normal, places, start = "", [], 0
    while start < len(text):
        end, part = start + 1, unicodedata.normalize("NFC", text[start])
        while end < len(text):  # what follows belongs to the same character where it is a mark, or changes it
            longer = unicodedata.normalize("NFC", text[start : end + 1])
            apart = part + unicodedata.normalize("NFC", text[end])
            if longer == apart and not unicodedata.combining(text[end]):
                break
            end, part = end + 1, longer
        normal += part
        places += [(start, end)] * len(part)
        start = end
    return normal, places
