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
        r"^\W*+(?:\S+\.(?:jpe?g|png|gif|webp|tiff?)|(?:IMG|DSC|DSCN|DSCF|PICT|MVI|PXL)[-_ ]?[0-9][-_0-9]*)\W*$",
        regex.I,
    ),
}
_LOOKED_AT, _FEW = 1000, 0.01


def _letters(text: str) -> int:
    return sum(unicodedata.category(one)[0] == "L" for one in text)


def warn_about_words(texts: Sequence[str], reader: str) -> None:
    """Warns of texts whose words are not what a count of words takes for them.

    More than one in a hundred is in a language without spaces, and nobody has separated its words; or they hold HTML
    entities (`&amp;`), %-escapes, addresses or names of files.

    Args:
        texts: the first thousand are looked at.
        reader: who counts their words, at the beginning of the warning.
    """
    texts = texts[:_LOOKED_AT]
    others = [text for text in texts if not text.isascii()]
    for pattern, letters in _UNSPACED:
        runs = {text: [_letters(run) for run in pattern.findall(text)] for text in others}
        # not English ones that quote such a word
        mostly = [text for text in others if 2 * sum(runs[text]) > _letters(text)]
        lengths = [length for text in mostly for length in runs[text]]
        if len(mostly) > _FEW * len(texts) and sum(lengths) >= letters * len(lengths):
            logger.warning(
                "%s separates words at spaces, and %s of the first %s texts, such as %r, are in a language without "
                "spaces: so many words pass for one. Separate the words first, with a segmenter of that language.",
                reader,
                f"{len(mostly):,}",
                f"{len(texts):,}",
                mostly[0][:80],
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
