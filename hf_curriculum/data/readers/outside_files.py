"""Refuses files outside of a data set's folder, and addresses, that rows name in place of holding the bytes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, Features, LargeList, List


def named_files(dataset: Dataset, columns: Iterable[str] | None = None) -> Iterator[str]:
    """The files and addresses that rows name in place of holding the bytes, in lists and records too.

    Args:
        dataset: the data, whose images, audio, video or documents may be at any depth.
        columns: only these.
    """
    chosen = [name for name in (columns or dataset.features) if holds_files(dataset.features[name])]
    for batch in dataset.select_columns(chosen).with_format("arrow").iter(10_000) if chosen else ():
        yield from files_in(batch, dataset.features)


def files_in(table: pa.Table, features: Features) -> Iterator[str]:
    """`named_files` of a table."""
    for name in table.column_names:
        if holds_files(features[name]):
            chunks = table[name].chunks if isinstance(table[name], pa.ChunkedArray) else [table[name]]
            for chunk in chunks:
                yield from _named_in(chunk, features[name])


def holds_files(feature: Any) -> bool:
    """Whether images, audio, video or documents are in a column, at any depth."""
    return _is_file(feature) or any(map(holds_files, _inside(feature).values()))


def _is_file(feature: Any) -> bool:
    kind = getattr(feature, "pa_type", None)
    return pa.types.is_struct(kind) and {field.name for field in kind} == {"bytes", "path"} if kind else False


def _inside(feature: Any) -> dict[str, Any]:
    """The features inside one, by the name of their field; of a list's items ""."""
    if isinstance(feature, (List, LargeList)):
        return {"": feature.feature}
    return dict(feature) if isinstance(feature, dict) else {}


def _named_in(array: pa.Array, feature: Any) -> Iterator[str]:
    if _is_file(feature):
        if pa.types.is_struct(array.type):
            contents, paths = pc.struct_field(array, "bytes"), pc.struct_field(array, "path")
            if contents.null_count:  # known without a look at the images
                yield from paths.filter(pc.and_(pc.is_null(contents), pc.is_valid(paths))).to_pylist()
        elif pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
            yield from array.drop_null().to_pylist()
        return
    for name, inner in _inside(feature).items():
        if holds_files(inner):
            yield from _named_in(array.field(name) if name else array.flatten(), inner)


def validate_files(names: Iterable[str], roots: Sequence[str | Path], source: str | Path) -> None:
    """`validate_inside` of saved data: of addresses, and of files that are there."""
    validate_inside((name for name in names if "://" in name or os.path.exists(name)), roots, source)


def validate_inside(paths: Iterable[str | None], roots: Sequence[str | Path], source: str | Path) -> None:
    """Checks that data which names files names those in its own folders alone, links followed.

    Otherwise whoever wrote a caption file could have any file of this machine read, stored with the data and
    published. A link that leads out of the folders counts as outside, since archives may hold links; the cache of the
    Hub, whose files are links to the `blobs` beside them, counts as inside.

    Args:
        paths: files, whether they exist or not; None and "" name none.
        roots: the folders. One that is a link itself stands for where it leads.
        source: what named the paths, for the error.

    Raises:
        ValueError: a path is outside, or an address.
    """
    inside = tuple(os.path.join(root, "") for root in _real_roots(roots))
    folders: dict[str, str] = {}
    outside = []
    for path in dict.fromkeys(filter(None, paths)):
        folder, name = os.path.split(path)
        if folder not in folders:
            folders[folder] = os.path.realpath(folder)
        real = os.path.join(folders[folder], name)
        if name in ("", ".", "..") or os.path.islink(real):
            real = os.path.realpath(real)
        if "://" in path or not real.startswith(inside):
            outside.append(path if real == os.path.abspath(path) else f"{path} (which is {real})")
    if outside:
        raise ValueError(
            f"{source} names {len(outside)} files outside of {' and '.join(map(str, roots))}: {', '.join(outside[:3])}"
            f"{', …' * (len(outside) > 3)}. They would be read, stored with the data and published with it. Put them "
            "into that folder, name theirs with `images=`, or, for data that you trust, pass `allow_outside=True` "
            "(hf-curriculum score: --allow-outside)."
        )


def _real_roots(roots: Sequence[str | Path]) -> Iterable[str]:
    for root in roots:
        yield os.path.realpath(root)
        for folder in (Path(os.path.abspath(root)), *Path(os.path.abspath(root)).parents):
            blobs = folder.parent.parent / "blobs"
            if folder.parent.name == "snapshots" and blobs.is_dir():
                yield os.path.realpath(blobs)
