"""How often each word of a text occurs, as BERT's normaliser and pre-tokeniser cut it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from tokenizers import normalizers, pre_tokenizers

_REMOVED = re.compile("[\x0b\x0c\x1c-\x1f\x85]")
"""What `str.split` takes for white space, and BERT's normaliser for nothing at all."""
_UNCUT = 1 << 20
_PER_LINE = 4096


class DistinctWords:
    """The words of a text with their counts; every distinct stretch between white space is normalised once.

    White space ends words whatever stands around it, so the result is that of normalising the whole text. Memory grows
    with the number of distinct words, and not with the text's length.

    Args:
        batches: the text, in lists of strings.
        lowercase: lower case, and accents removed.

    Example:
        >>> sorted(DistinctWords([["A dog, a red dog"]], lowercase=True).counts.items())
        [(',', 1), ('a', 2), ('dog', 2), ('red', 1)]
    """

    def __init__(self, batches: Iterable[list[str]], lowercase: bool) -> None:
        self.lowercase = lowercase
        self.counts: Counter[str] = Counter()
        self._normalizer = normalizers.BertNormalizer(lowercase=lowercase)
        self._splitter = pre_tokenizers.BertPreTokenizer()
        uncut: Counter[str] = Counter()
        for batch in batches:
            uncut.update(_REMOVED.sub("", "\n".join(batch)).split())
            if len(uncut) > _UNCUT:
                self._cut(uncut)
                uncut.clear()
        self._cut(uncut)

    def _cut(self, uncut: Counter[str]) -> None:
        counts, lowercase = self.counts, self.lowercase
        for stretch, count in uncut.items():
            if stretch.isascii() and stretch.isalnum():  # most text: one word, and nothing to normalise but its case
                counts[stretch.lower() if lowercase else stretch] += count
                continue
            for word, _ in self._splitter.pre_tokenize_str(self._normalizer.normalize_str(stretch)):
                counts[word] += count

    def characters(self) -> list[str]:
        """Sorted entries of one character: `a`, and `##a` where it continues a word."""
        inside = set().union(*(word[1:] for word in self.counts))
        return [*sorted(inside.union(*(word[0] for word in self.counts))), *sorted(f"##{letter}" for letter in inside)]

    def repeated(self) -> Iterator[list[str]]:
        """Every word as often as it occurs, spaces between: for trainers that count for themselves."""
        for word, count in self.counts.items():
            full, rest = divmod(count, _PER_LINE)
            lines = [" ".join([word] * _PER_LINE)] * full
            yield [*lines, " ".join([word] * rest)] if rest else lines
