"""`verify`: whether what this package wrote still holds what was written."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from hf_curriculum.files import SEAL
from hf_curriculum.sealed_parquet import is_sealed_parquet
from hf_curriculum.shapes import validate_arguments


@dataclass(frozen=True)
class Verified:
    """One thing that was compared with what was recorded of it.

    Args:
        kind: such as "scored data set".
        path: its file or folder.
        error: what is wrong with it, in words; None where it is as it was written.
    """

    kind: str
    path: Path
    error: str | None = None


@validate_arguments
def verify(path: str | Path) -> list[Verified]:
    """Reads everything that this package wrote at a path, and compares it with what was recorded.

    Loading compares what is small, and what is read. This reads all, images, features and weights too, at the speed
    of the disk: after a copy, or a fault of a disk.

    Args:
        path: a file, or a folder and all that is below it: scored data, scores of shards, buckets, region stores,
            vision features, runs and checkpoints, studies, exported orders, side files, results of suites.

    Returns:
        What was compared; `error` says what is wrong with it. What another program wrote is passed over.

    Raises:
        FileNotFoundError: there is no such path.
        ValueError: nothing of this package is there.

    Example:
        >>> from datasets import Dataset
        >>> from hf_curriculum import CaptionLength, add_scores, save_scored
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> save_scored(add_scores(Dataset.from_dict({"caption": ["a dog"]}), CaptionLength()), folder)
        >>> [(each.kind, each.error) for each in verify(folder)]
        [('scored data set', None)]
    """
    root = Path(path)
    if not root.exists():
        raise FileNotFoundError(f"{root} does not exist. Name a file or a folder that this package wrote.")
    verified = []
    for kind, place, name in _written_below(root):
        try:
            _comparison(name)(place)
            verified.append(Verified(kind, place))
        except (ValueError, OSError) as error:
            verified.append(Verified(kind, place, f"{error}"))
    if not verified:
        raise ValueError(
            f"{root} holds nothing that this package wrote with a record of its content, so nothing was compared. "
            "Name a folder of scores, buckets, features, a run, or an exported order."
        )
    return verified


def _written_below(root: Path) -> Iterator[tuple[str, Path, str]]:
    """What is to be compared: its kind, its path, and the function, or class with a `verify`, that does it."""
    if root.is_file():
        yield from _of_file(root)
        return
    for place, folders, names in os.walk(root):
        folder, marker = Path(place), next((name for name in _FOLDERS if name in names), None)
        folders[:] = sorted(name for name in folders if not (folder / name).is_symlink())
        if marker is not None:
            yield _FOLDERS[marker][0], folder, _FOLDERS[marker][1]
        if marker in _ALONE:
            folders.clear()
        for name in sorted({*names} - {marker}):
            yield from _of_file(folder / name)


def _of_file(file: Path) -> Iterator[tuple[str, Path, str]]:
    """How a file of its own is compared; nothing for one of another program."""
    if file.with_name(f"{file.name}.json").is_file():
        yield "exported order", file, "planning.export:verify_order"
    elif file.name == "result.json" and _is_sealed(file):
        yield "result of a study", file, "studies.study:verify_result"
    elif file.suffix == ".json" and not file.with_suffix("").is_file() and _is_sealed(file):
        yield "record", file, "files:verify_together"
    elif file.suffix == ".parquet" and not file.with_name("run.json").is_file() and is_sealed_parquet(file):
        yield "side file of scores", file, "scoring.join:verify_side_file"


def _is_sealed(file: Path) -> bool:
    """Whether a file ends in a seal, also where damage has hit it."""
    with file.open("rb") as stream:
        stream.seek(max(0, file.stat().st_size - 64))
        tail = stream.read()
    return f'"{SEAL}"'.encode() in tail or re.search(rb'".{4}": "[0-9a-f]{16}"\s*}\s*\Z', tail) is not None


def _comparison(name: str) -> Callable[[Path], object]:
    """What compares one thing, imported when there is one."""
    module, _, attribute = name.partition(":")
    compare = getattr(import_module(f"hf_curriculum.{module}"), attribute)
    return (lambda folder: compare(folder).verify()) if isinstance(compare, type) else compare


_FOLDERS: Mapping[str, tuple[str, str]] = {
    "shards.json": ("scores of shards", "scored_shards:verify_scored_shards"),
    "buckets.json": ("buckets", "streaming.index:verify_bucketed"),
    "scores.json": ("scored data set", "scored_data:verify_scored"),
    "run.json": ("parts", "parts:verify_parts"),
    "region_store.json": ("region store", "data.regions.store:RegionStore"),
    "vision_features.json": ("vision features", "models.vision_features:VisionFeatures"),
    "curriculum.json": ("checkpoint", "training.checkpoints:verify_checkpoint"),
}
"""The file by which a folder is known; what the folder is, and what compares it."""
_ALONE = _FOLDERS.keys() - {"curriculum.json"}
"""The folders in which one comparison covers everything; below a run there are checkpoints, and what a user writes."""
