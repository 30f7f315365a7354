"""What the loaders of captioned, labelled and annotated images share: their arguments, data of `datasets`, the end."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import datasets
import pyarrow as pa
from datasets import Dataset, DatasetDict
from datasets.exceptions import DatasetGenerationError
from datasets.table import CastError
from huggingface_hub.constants import HF_HUB_CACHE

from hf_curriculum.columns import IMAGE
from hf_curriculum.config import redact
from hf_curriculum.data.identity import validate_image_ids, warn_of_several_ids
from hf_curriculum.data.image_files import drop_unreadable_images, validate_regular_files
from hf_curriculum.data.left_out import LeftOut
from hf_curriculum.data.limits import validate_columns, validate_tables
from hf_curriculum.data.readers.folder import (
    ARROW_SUFFIXES,
    count_passed_over,
    find_caption_file,
    find_files,
    find_split_folders,
)
from hf_curriculum.data.readers.outside_files import local_path, named_files, validate_folder, validate_inside
from hf_curriculum.files import special_file
from hf_curriculum.views import warn_of_transform

UNSPLIT = "all"
"""The only key where a source has no splits."""
SAVED_FILES = ("state.json", "dataset_dict.json")
"""Files of a folder that `save_to_disk` wrote."""


@dataclass(frozen=True)
class Request:
    """A source of images, and how a `loader` is to read it: `load_captioned` describes the arguments."""

    loader: str
    source: Any
    images: str | Path | Literal[False] | None = None
    columns: Mapping[str, Any] | None = None
    split: str | None = None
    allow_outside: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of `datasets.load_dataset`."""
    num_proc: int | None = None
    restval: str = "train"
    download: bool = False
    bad_rows: Literal["error", "drop"] = "error"
    left_out: LeftOut = field(default_factory=LeftOut, compare=False)
    """What is left out while reading: reported once, at the end of the loader."""
    taken: dict[str, str] = field(default_factory=dict, compare=False)
    """Our columns → the fields that were taken for them, where the source has fields to choose from."""

    def __post_init__(self) -> None:
        if self.bad_rows not in ("error", "drop"):
            raise ValueError(
                f"`bad_rows={self.bad_rows!r}` was given. A row that cannot be read is an 'error', or such rows are "
                "left out and counted ('drop')."
            )
        object.__setattr__(self, "source", local_path(self.source))
        object.__setattr__(self, "images", local_path(self.images))
        path = self.path
        kind = None if path is None else special_file(path)
        if kind not in (None, "folder"):
            raise ValueError(f"{path} is a {kind}, not a file or folder for `{self.loader}`. Name another.")

    def reject(self, problem: str, example: object = None) -> None:
        """Raises for a row that cannot be read, a sentence that names it, or counts it (`bad_rows="drop"`)."""
        if self.bad_rows == "error":
            raise ValueError(
                f"{redact(problem)} Correct it, or leave such rows out with bad_rows='drop' (hf-curriculum score: "
                "--bad-rows drop)."
            )
        self.left_out.add("rows that cannot be read", 1, problem if example is None else example)

    @property
    def path(self) -> Path | None:
        """The source as a path; a name on the Hub is one that does not exist."""
        return Path(self.source) if isinstance(self.source, (str, Path)) else None

    @property
    def archive_options(self) -> dict[str, Any]:
        """What readers of archives and of outputs of img2dataset take of it."""
        names = ("num_proc", "allow_outside", "reject", "left_out")
        return {name: getattr(self, name) for name in names}

    @property
    def roots(self) -> list[Path]:
        """The folders that images may be in: the source's own first, and that of the images; none for a `Dataset`."""
        path, options = self.path, self.options
        given = [Path(self.images)] if self.images else []
        if path is None:
            return given
        if path.exists():
            return [path.parent if path.is_file() else path, *given]
        files = options.get("data_files") or []
        groups = list(files.values()) if isinstance(files, Mapping) else [files]
        named = [name for group in groups for name in ([group] if isinstance(group, (str, Path)) else group)]
        literal = (str(name) if os.path.exists(name) else str(name).partition("*")[0] for name in named)
        given += [Path(os.path.dirname(name) or os.curdir) for name in literal]
        given += [Path(options["data_dir"])] if options.get("data_dir") else []
        return [*given, Path(datasets.config.HF_DATASETS_CACHE), Path(HF_HUB_CACHE)]

    def validate_options(self) -> None:
        """Raises if there are options of `load_dataset`, which does not load this source."""
        validate_unused(self.options, f"{self.source} is not loaded by `datasets.load_dataset`")

    def validate_named_files(self, splits: Mapping[str, Dataset], *further: Path) -> None:
        """Raises if rows name files outside of the source's folders and of further ones."""
        roots = self.roots
        if roots and not self.allow_outside:
            for part in splits.values():
                validate_inside(named_files(part), [*roots, *further], self.source)

    def load(self, split: str | None) -> dict[str, Dataset]:
        """Split → data set, of a source that `datasets` reads; rows may still name files outside."""
        source, path, options = self.source, self.path, self.options
        if path is None:
            validate_unused(options, "the data set is loaded already")
            warn_of_transform(_by_split(source).values())
            loaded = choose_split(_by_split(source), split)
        else:
            with _in_words(source):
                loaded = self._load_path(path, split)
        for part in loaded.values():
            validate_columns(len(part.column_names), source if path else "The data set")
        return loaded

    def _load_path(self, path: Path, split: str | None) -> dict[str, Dataset]:
        """Split → data set, of a path or a name on the Hub."""
        source, options = self.source, self.options
        if path.exists() and "::" in str(path.resolve()):
            raise ValueError(f"`datasets` reads '::' in a path as an archive's. Rename it, or link to it: {path}")
        if path.is_dir() and not self.allow_outside:
            validate_folder(path)
        if path.exists():
            inside = (path / name for name, is_hidden in _arrow_files(path) if not is_hidden)
            validate_tables([path] if path.is_file() else inside)
        if is_saved(path):
            validate_unused(options, f"{path} was written by save_to_disk")
            return choose_split(_by_split(datasets.load_from_disk(str(path))), split)
        if path.is_file():
            options = {**options, "data_files": glob.escape(str(path)), "split": split or "train"}
            return {UNSPLIT: datasets.load_dataset(path.suffix.removeprefix("."), **options)}
        if not path.exists() and not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", str(source)):
            raise FileNotFoundError(f"There is no file or folder {source}, nor is it a name of a data set on the Hub.")
        if path.exists() and re.search(r"[*?[{]", str(path.resolve())):
            raise ValueError(
                f"`datasets` reads `[`, `*`, `?` and `{{` in a folder's name as a pattern, so {path} may be another. "
                "Rename it, or name a file in it."
            )
        if path.is_dir():
            hidden = [name for name, is_hidden in _arrow_files(path) if is_hidden]
            self.left_out.add("hidden files (never read)", len(hidden), hidden and hidden[0])
        if "data_files" in options:
            options = {**options, "data_files": _literal(options["data_files"])}
        try:
            loaded = _by_split(datasets.load_dataset(str(source), split=split, **options))
        except OSError as error:
            if path.exists():
                raise
            raise FileNotFoundError(f"There is no file or folder {source} here. {error}") from error
        endings = _ENDINGS.get(next(iter(loaded.values())).info.builder_name or "")
        if path.is_dir() and endings and not {"data_files", "data_dir"} & set(options):
            count_passed_over(path, find_files(path, endings), self.left_out)
        return loaded


@contextmanager
def _in_words(source: object) -> Iterator[None]:
    """A context in which errors of `datasets` and of Arrow name the source, and a remedy."""
    try:
        yield
    except (DatasetGenerationError, pa.ArrowException, MemoryError) as error:
        cause = error.__cause__ if isinstance(error, DatasetGenerationError) and error.__cause__ else error
        if isinstance(cause, CastError):
            raise ValueError(
                f"The files of {source} have different columns, and one data set has the same in each row. Name one "
                "file, or files that are alike, `data_files=[...]`; write the column that others lack into them too; "
                f"or load them one by one and join them with `concatenate_datasets`. {cause}"
            ) from error
        if isinstance(cause, MemoryError):
            raise ValueError(
                f"{source} does not fit into the memory when it is read ({cause}). Write it again in smaller files, "
                "or row groups of fewer rows, or use a machine with more memory."
            ) from error
        if isinstance(cause, OSError) and cause.errno is not None:  # of the disk
            raise cause from None
        raise ValueError(
            f"{source} cannot be read ({type(cause).__name__}: {cause}). It is damaged, or of another kind: copy or "
            "write it again."
        ) from error


_ENDINGS = {
    "parquet": (".parquet",),
    "arrow": (".arrow",),
    "csv": (".csv", ".tsv", ".csv.gz", ".tsv.gz"),
    "json": (".json", ".jsonl", ".json.gz", ".jsonl.gz"),
}
"""Builder of `datasets` → endings of the files that it reads, of all that are in a folder."""


def _literal(files: Any) -> Any:
    """Names of data files where those that exist are no patterns."""
    if isinstance(files, Mapping):
        return {split: _literal(named) for split, named in files.items()}
    if isinstance(files, (list, tuple)):
        return [_literal(one) for one in files]
    return glob.escape(str(files)) if os.path.exists(files) else files


def _by_split(loaded: Dataset | DatasetDict) -> dict[str, Dataset]:
    return {UNSPLIT: loaded} if isinstance(loaded, Dataset) else dict(loaded)


def is_saved(path: Path) -> bool:
    """Whether a folder was written by `save_to_disk`."""
    return any((path / name).is_file() for name in SAVED_FILES)


def is_for_datasets(path: Path) -> bool:
    """Whether the path is read by `datasets` itself."""
    if path.is_file():
        return path.suffix in ARROW_SUFFIXES
    if is_saved(path):
        return True
    if find_caption_file(path) is not None or find_split_folders(path):  # before the walk, which images make long
        return False
    return any(not is_hidden for _, is_hidden in _arrow_files(path))


def _arrow_files(folder: Path) -> Iterator[tuple[str, bool]]:
    """Each Arrow or Parquet file below a folder, and whether it is hidden, which `datasets` passes over."""
    for file in folder.rglob("*"):
        if file.suffix in ARROW_SUFFIXES:
            parts = file.relative_to(folder).parts
            yield os.path.join(*parts), any(part.startswith((".", "__")) for part in parts)


def choose_split(splits: dict[str, Any], split: str | None) -> dict[str, Any]:
    """All splits, or under `UNSPLIT` the one that is named."""
    if split is None:
        return splits
    if split not in splits or list(splits) == [UNSPLIT]:
        found = "no splits" if list(splits) == [UNSPLIT] else f"the splits {list(splits)}"
        raise ValueError(
            f"`split={split!r}` was given, but the source has {found}. Name one of them, or leave `split` out."
        )
    return {UNSPLIT: splits[split]}


def validate_unused(options: Mapping[str, Any], because: str) -> None:
    """Raises if there are options, which would have no effect."""
    if options:
        raise ValueError(f"{redact(str(dict(options)))} would have no effect: {because}. Leave it out.")


def keep_readable(
    splits: dict[str, Dataset], decode: bool, *, column: str = IMAGE, **options: Any
) -> dict[str, Dataset]:
    """The splits without unreadable images, ids of one image each; where none is decoded, none may be a FIFO."""
    with_images = {name: part for name, part in splits.items() if column in part.column_names}
    if decode:
        with_images = drop_unreadable_images(with_images, column=column, **options)
    for part in with_images.values():
        if not decode:
            validate_regular_files(part, column)
    splits = splits | with_images
    for part in splits.values():
        validate_image_ids(part, column=column)
        warn_of_several_ids(part, column)
    return splits


def one_or_all(splits: dict[str, Dataset]) -> Dataset | DatasetDict:
    """The data set of a source without splits, or of the split that was named; else all splits."""
    return splits[UNSPLIT] if list(splits) == [UNSPLIT] else DatasetDict(splits)
