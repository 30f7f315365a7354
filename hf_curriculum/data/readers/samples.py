"""What a sample of WebDataset is: which files of an archive, or of a folder, belong together."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from hf_curriculum.data.left_out import LeftOut

IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")
TEXTS = (".txt", ".caption", ".text")
RECORDS = (".json",)
_KINDS = {ending: kind for kind in (IMAGES, TEXTS, RECORDS) for ending in kind}
_HIDDEN = re.compile(r"__[^/]*__(?:/|$)|(?:.*/)?(?:\.(?!\.?/)|__MACOSX/|PaxHeaders?(?:\.[^/]*)?/)")
_UNUSUAL = re.compile(r"^[/._]|/[._]|PaxHeader", re.MULTILINE)  # a name may be hidden, or lead outside


@dataclass
class Sample:
    """The files of one sample: ending behind its key, in small letters → number of the file."""

    key: str
    files: dict[str, int] = field(default_factory=dict)

    def candidates(self, kind: Sequence[str]) -> list[str]:
        """The endings of its images or texts: the first of `.jpg`, `.png` ...; else `.seg.png` and the like."""
        for ending in kind:
            if ending in self.files:
                return [ending]
        return [ending for ending in self.files if _last(ending) in kind]


def group_samples(names: Sequence[str], left_out: LeftOut) -> list[Sample]:
    """The samples of an archive or folder, in the order of their first files.

    The rule is that of the `webdataset` library: a key is the name up to the first dot behind its last slash, and the
    rest is the ending, in small letters. It differs in four cases, where that rule would mix or lose pairs:

    - Names that have dots themselves: where an image and a caption are called alike up to their last dot
      (`v1.0_a.jpg`, `v1.0_a.txt`), that is their key. `0001.seg.png` stays a file of `0001`.
    - Files of one key that are not neighbours are one sample. A second file of one name begins another sample; unless
      all samples of the key have the same endings, they are left out, since any text might be of another image.
    - Two images whose names have dots and that share neither caption nor record are two samples.
    - Files in hidden folders, and names that lead outside of the archive, are not read.
    """
    files = list(_named(names, left_out))
    samples: list[Sample] = []
    current: dict[str, Sample] = {}
    repeated: dict[str, list[Sample]] = {}
    for (number, _, _), key in zip(files, _keys(names, files), strict=True):
        ending, sample = names[number][len(key) :].lower(), current.get(key)
        if sample is None or ending in sample.files:
            current[key] = Sample(key)
            samples.append(current[key])
            if sample is not None:
                repeated.setdefault(key, [sample]).append(current[key])
            sample = current[key]
        sample.files[ending] = number
    mixed = {key for key, ones in repeated.items() if any(one.files.keys() != ones[0].files.keys() for one in ones)}
    for key in mixed:
        reason = "samples of a key that stands more than once (which files belong together is not known)"
        left_out.add(reason, len(repeated[key]), key)
    return [sample for sample in samples if sample.key not in mixed] if mixed else samples


def _named(names: Sequence[str], left_out: LeftOut) -> Iterator[tuple[int, str, bool]]:
    """Number, name up to the first dot, and whether another dot follows, of the files that samples are made of."""
    usual = not _UNUSUAL.search("\n".join(names))  # one search for all
    for number, name in enumerate(names):
        folder, slash, last = name.rpartition("/")
        first, _, rest = last.partition(".")
        if not usual and (name.startswith("/") or ".." in name.split("/")[:-1]):
            left_out.add("files whose names lead outside of the archive", 1, repr(name))
        elif not usual and _HIDDEN.match(name):
            continue
        elif rest:
            yield number, f"{folder}{slash}{first}", "." in rest
        else:
            left_out.add("files without an ending", 1, repr(name))


def _keys(names: Sequence[str], files: Sequence[tuple[int, str, bool]]) -> Iterator[str]:
    """The key of each file."""
    if not any(dotted for _, _, dotted in files):
        yield from (first for _, first, _ in files)
        return
    kinds: dict[str, set[Any]] = defaultdict(set)  # by the name up to its last dot; the ending where it is of no kind
    inside: dict[str, set[str]] = defaultdict(set)  # endings of files with several dots, by the name up to the first
    for number, first, dotted in files:
        kinds[_stem(names[number])].add(_KINDS.get(ending := _last(names[number]), ending))
        if dotted:
            inside[first].add(names[number][len(first) :].lower())
    stems = {_stem(names[number]): first for number, first, dotted in files if dotted}
    complete = {  # beside `first.jpg`, an image and its record alone are a part of that sample
        stem
        for stem, first in stems.items()
        if IMAGES in kinds[stem] and (TEXTS in kinds[stem] or (len(kinds[stem]) > 1 and first not in kinds))
    }
    common = Counter(ending for endings in inside.values() for ending in endings)
    fields = {first: first in kinds for first in inside}
    for first, endings in inside.items():
        if not complete and not all(_last(ending) in IMAGES for ending in endings):
            fields[first] |= all(common[ending] > 1 for ending in endings)
        if not complete and len(set(map(_stem, endings))) == 1:
            fields[first] = True
    for number, first, dotted in files:
        stem = prefix = _stem(names[number])
        while prefix != first and prefix not in complete:
            prefix = _stem(prefix)
        yield prefix if prefix != first else first if not dotted or fields[first] else stem


def _last(name: str) -> str:
    return name[name.rfind(".") :].lower()


def _stem(name: str) -> str:
    return name[: name.rfind(".")]
