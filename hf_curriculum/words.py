"""What a word is: letters and digits of any script, with the marks that belong to them."""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Sequence

import regex

logger: logging.Logger = logging.getLogger(__name__)

WORD = r"[\p{L}\p{N}][\p{L}\p{M}\p{N}\p{Join_Control}]*"
"""A run of letters and digits, for the library `regex`: what `[^\\W_]+` of `re` finds in English text.

The `\\w` of `re` ends at the vowel signs of Hindi or Thai. No word begins with a mark, which may belong to an emoji.
"""
NAME = r"[\p{L}\p{N}_][\p{L}\p{M}\p{N}\p{Join_Control}_]*"
"""The same with low lines, as `\\w+` of `re`."""
_WORD = regex.compile(WORD)
_JOINED = regex.compile(rf"{NAME}(?:['’\-]{NAME})*")


def compose(text: str) -> str:
    """The text in Unicode's composed form (NFC): "é" is one character, however it was typed."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def words_of(text: str) -> list[str]:
    """The words of a text, composed; whatever is neither letter, digit nor mark separates them."""
    return _WORD.findall(compose(text))


def joined_words_of(text: str) -> list[str]:
    """The words of a text, composed, with apostrophes and hyphens inside a word."""
    return _JOINED.findall(compose(text))


# scripts of languages that are written without spaces, and how many letters their words have once they are separated
_UNSPACED = (
    (regex.compile(r"(?:[\p{Han}\p{Hiragana}\p{Katakana}ー]\p{M}*)+"), 3),
    (regex.compile(r"(?:[\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}--[\p{P}\p{N}]]\p{M}*)+", regex.V1), 5),
)
_MARKUP = {
    "HTML entities": regex.compile(r"&(?:[A-Za-z][A-Za-z0-9]{1,30}|#[0-9]+|#[xX][0-9A-Fa-f]+);"),
    "%-escapes": regex.compile(r"%[0-9A-Fa-f]{2}(?=[\w+%]|$)"),
    "addresses": regex.compile(r"https?://|www\.\w"),
    "names of files": regex.compile(
        r"^\W*(?:\S+\.(?:jpe?g|png|gif|webp|tiff?)|(?:IMG|DSC|DSCN|DSCF|PICT|MVI|PXL)[-_ ]?[0-9][-_0-9]*)\W*$", regex.I
    ),
}
_LOOKED_AT = 1000


def warn_about_words(texts: Sequence[str], reader: str) -> None:
    """Warns of texts whose words are not what a count of words takes for them.

    They are in a language without spaces, a third of them or more, and nobody has separated their words; or they hold
    HTML entities (`&amp;`), %-escapes, addresses or names of files.

    Args:
        texts: the first thousand are looked at.
        reader: who counts their words, at the beginning of the warning.
    """
    texts = texts[:_LOOKED_AT]
    for pattern, letters in () if all(map(str.isascii, texts)) else _UNSPACED:
        found = list(map(pattern.findall, texts))
        runs = [sum(unicodedata.category(one)[0] != "M" for one in run) for each in found for run in each]
        if runs and sum(map(bool, found)) * 3 >= len(texts) and sum(runs) >= letters * len(runs):
            example = next(text for text, each in zip(texts, found, strict=True) if each)
            logger.warning(
                "%s separates words at spaces and punctuation, and %r is in a language without spaces: so many words "
                "pass for one. Separate the words first, with a segmenter of that language.",
                reader,
                example[:80],
            )
    holding = {kind: [text for text in texts if pattern.search(text)] for kind, pattern in _MARKUP.items()}
    if any(holding.values()):
        counts = ", ".join(f"{len(each):,} hold {kind} ({each[0][:60]!r})" for kind, each in holding.items() if each)
        logger.warning(
            "%s takes them for words: of the first %s texts %s. Clean them first, for example by `html.unescape`.",
            reader,
            f"{len(texts):,}",
            counts,
        )
