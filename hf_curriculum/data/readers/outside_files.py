"""Refuses files outside of a data set's folder, and addresses, that rows name in place of holding the bytes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, DatasetDict, Features, LargeList, List, load_from_disk
from yaml import YAMLError

from hf_curriculum.config import brief, read_yaml
from hf_curriculum.data.limits import validate_tables
from hf_curriculum.files import read_json, reading

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_HEADER = re.compile(r"\s*---(?:\r\n|\r|\n)([\S\s]*?)(?:\r\n|\r|\n)---[ \t]*(?:\r\n|\n|$)")  # of `huggingface_hub`
_LONGEST = 4096  # bytes of a path; to follow links in a longer one takes the square of its length
_REMEDY = "Copy or write the folder again."


def is_elsewhere(name: str) -> bool:
    """Whether `datasets` would not open a name as a path of this machine, but hand it to a file system."""
    scheme = _SCHEME.match(name)
    return "://" in name or (scheme is not None and not os.path.ismount(f"{scheme[0]}/"))  # "C:" of Windows is none


def local_path(path: Any) -> Any:
    """A path; one that exists and looks like an address, `s3:data`, is absolute, because libraries take it for one."""
    is_odd = isinstance(path, (str, Path)) and is_elsewhere(str(path)) and os.path.exists(path)
    return type(path)(os.path.abspath(path)) if is_odd else path


def named_files(dataset: Dataset, columns: Iterable[str] | None = None) -> Iterator[str]:
    """The files and addresses that rows name in place of holding the bytes, in lists and records too."""
    features = dataset.features  # each access copies all of them
    chosen = [name for name in (columns or features) if holds_files(features[name])]
    for batch in dataset.select_columns(chosen).with_format("arrow").iter(10_000) if chosen else ():
        yield from files_in(batch, features)


def files_in(table: pa.Table, features: Features) -> Iterator[str]:
    """`named_files` of a table."""
    for name in table.column_names:
        if holds_files(features[name]):
            for chunk in table[name].chunks:
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


def load_saved(path: str | Path, *, allow_outside: bool = False) -> Dataset | DatasetDict:
    """`load_from_disk` of a data set whose own files, and the files that its rows name, are in its folder."""
    path = local_path(path)
    if not allow_outside:
        validate_folder(path)
    validate_tables(Path(path).rglob("*.arrow"))
    try:
        loaded = load_from_disk(str(path))
        parts = list(loaded.values()) if isinstance(loaded, DatasetDict) else [loaded]
        for part in parts:
            part.data.validate(full=True)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, pa.ArrowException) as error:
        if not any(Path(path, name).is_file() for name in ("state.json", "dataset_dict.json")):
            raise
        raise ValueError(
            f"The data in {path} cannot be read ({type(error).__name__}: {error}): it is damaged, or a later version "
            "of `datasets` wrote it. Copy it again, or save it again."
        ) from error
    for part in () if allow_outside else parts:
        validate_files(named_files(part), [path], path)
    return loaded


def validate_folder(folder: str | Path) -> None:
    """`validate_inside` of the files that a folder is made of."""
    named = []
    for place, folders, files in os.walk(folder):
        named += [path for name in (*folders, *files) if os.path.islink(path := os.path.join(place, name))]
        for name in _NAMING.keys() & set(files):
            with reading(file := Path(place, name), _REMEDY):
                named += [each if is_elsewhere(each) else os.path.join(place, each) for each in _NAMING[name](file)]
    validate_inside(named, [folder], folder)


def _of_card(file: Path) -> list[str]:
    """The patterns of data files in a card's header, or in the YAML that stands for one; none where it is damaged."""
    text = file.read_text(encoding="utf-8", errors="replace")
    header = _HEADER.match(text) if file.suffix == ".md" else None
    try:
        content = read_yaml(header[1] if header else "" if file.suffix == ".md" else text)
    except (ValueError, YAMLError):  # `datasets` refuses it too, where it reads it
        return []
    configs = content.get("configs") if isinstance(content, dict) else None
    found, seen, left = [], set(), [config for config in configs or [] if isinstance(config, dict)]
    left = [config.get(name) for config in left for name in ("data_files", "data_dir")]
    while left:
        part = left.pop()
        if isinstance(part, str):
            found.append(part)
        elif id(part) not in seen:  # YAML may name one any number of times, within itself too
            seen.add(id(part))
            left += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return found


_NAMING: dict[str, Callable[[Path], list[str]]] = {
    "state.json": lambda file: [data["filename"] for data in read_json(file, _REMEDY)["_data_files"]],
    "dataset_dict.json": lambda file: list(map(str, read_json(file, _REMEDY)["splits"])),
    **dict.fromkeys(("README.md", ".huggingface.yaml"), _of_card),
    **dict.fromkeys(("dataset_info.json", "dataset_infos.json", "preprocessor_config.json"), lambda file: []),
}
"""Files that libraries open by themselves, and what reads the names of other files in them."""


def validate_files(names: Iterable[str], roots: Sequence[str | Path], source: str | Path) -> None:
    """`validate_inside` of saved data: of addresses, and of files that are there."""
    validate_inside((name for name in names if is_elsewhere(name) or os.path.exists(name)), roots, source)


def validate_inside(paths: Iterable[str | None], roots: Sequence[str | Path], source: str | Path) -> None:
    """Checks that data which names files names those in its own folders alone, links followed."""
    inside = tuple(os.path.join(root, "") for root in _real_roots(roots))
    folders: dict[str, str] = {}
    outside = []
    for path in dict.fromkeys(filter(None, paths)):
        if "\0" in path or len(path) > _LONGEST:  # no file can be called so
            outside.append(repr(path))
            continue
        folder, name = os.path.split(path)
        if folder not in folders:
            folders[folder] = os.path.realpath(folder)
        real = os.path.join(folders[folder], name)
        if name in ("", ".", "..") or os.path.islink(real):
            real = os.path.realpath(real)
        if is_elsewhere(path):
            outside.append(path)
        elif not real.startswith(inside):
            outside.append(path if real == os.path.abspath(path) else f"{path} (a link leads to {real})")
    if outside:
        shown = ", ".join(brief(each, 300) for each in outside[:3])
        more = f" and {len(outside) - 3:,} more" if len(outside) > 3 else ""
        raise ValueError(
            f"{source} names files outside of {' and '.join(map(str, roots))}: {shown}{more}. "
            "They would be read, stored with the data and published with it. Put them into that folder, name their "
            "folder with `images=`, or, for data that you trust, pass `allow_outside=True` (hf-curriculum score: "
            "--allow-outside)."
        )


def _real_roots(roots: Sequence[str | Path]) -> Iterable[str]:
    for root in roots:
        yield os.path.realpath(root)
        for folder in (Path(os.path.abspath(root)), *Path(os.path.abspath(root)).parents):
            blobs = folder.parent.parent / "blobs"
            if folder.parent.name == "snapshots" and blobs.is_dir():
                yield os.path.realpath(blobs)
