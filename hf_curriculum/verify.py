"""`verify`: whether what this package wrote still holds what was written."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from hf_curriculum.config import parse_json
from hf_curriculum.files import SEAL, reading
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
        What was compared, and what is known to be missing; `error` says what is wrong with it. What another program
        wrote is passed over. A lone `.npy` file, or a saved data set without its `scores.json`, looks like that too.

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
    root = Path(os.path.realpath(path) if os.path.islink(path) else path)
    if not root.exists():
        raise FileNotFoundError(f"{path} does not exist. Name a file or a folder that this package wrote.")
    verified = [*(_below(root) if root.is_dir() else _of_file(root, alone=True))]
    if not verified:
        raise ValueError(
            f"{path} holds nothing that this package wrote with a record of its content, so nothing was compared. "
            "Name a folder of scores, buckets, features, a run, or an exported order."
        )
    return verified


def _below(root: Path) -> Iterator[Verified]:
    """What is in a folder, compared; links are followed, and each folder is read once."""
    unlisted: list[OSError] = []
    seen: set[str] = set()
    for place, folders, names in os.walk(root, followlinks=True, onerror=unlisted.append):
        real, folder = os.path.realpath(place), Path(place)
        folders.sort()
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        marker, entries = _marker(folder, {*names, *folders}), {*names, *_RECORDS.keys() & folders}
        if marker is not None:
            yield _compared(_FOLDERS[marker][0], folder, _FOLDERS[marker][1])
        if marker in _ALONE:
            folders.clear()
        for name in sorted(entries - {marker}):
            yield from _of_file(folder / name)
    yield from (Verified("folder", Path(error.filename), f"{error}") for error in unlisted)


def _marker(folder: Path, entries: set[str]) -> str | None:
    """The file by which a folder is known, also where it is gone and what belongs to it is not."""
    if any(folder.glob("bucket_*/[0-9]*-of-[0-9]*.*")):
        return "buckets.json"
    if re.fullmatch(r"checkpoint-\d+", folder.name) and any(
        next(folder.parent.glob(f"{place}curriculum.json"), None) for place in ("", "*/")
    ):
        return "curriculum.json"
    return next((name for name in _FOLDERS if name in entries), None)


def _of_file(file: Path, *, alone: bool = False) -> Iterator[Verified]:
    """A file of its own, compared; nothing for one of another program, or an order's facts where the order is next."""
    order = file.with_suffix("") if file.suffix == ".json" else file
    facts = order.with_name(f"{order.name}.json")
    try:
        if order.suffix in _ORDERS and facts.is_file():
            if alone or file == order or order.is_dir() or not os.path.lexists(order):
                yield _compared("exported order", order, "planning.export:verify_order")
        elif file.suffix == ".json" and _is_ours(file):
            of_study = file.name == "result.json"
            compare = "studies.study:verify_result" if of_study else "files:verify_together"
            yield _compared("result of a study" if of_study else "record", file, compare)
        elif file.suffix == ".parquet" and not file.with_name("run.json").is_file() and is_sealed_parquet(file):
            yield _compared("side file of scores", file, "scoring.join:verify_side_file")
    except (ValueError, OSError) as error:
        yield Verified("file", file, f"{error}")


def _is_ours(file: Path) -> bool:
    """Whether this package wrote a JSON file, also where damage has hit it: by its seal, its name or its keys."""
    with reading(file, "Remove it, or copy it again."), file.open("rb") as stream:
        stream.seek(max(0, file.stat().st_size - 64))
        tail = stream.read()
    if f'"{SEAL}"'.encode() in tail or re.search(rb'".{4}": "[0-9a-f]{16}"\s*}\s*\Z', tail):
        return True
    if file.name not in _RECORDS:
        return False
    keys, content = _RECORDS[file.name], file.read_bytes()
    if not keys or (file.name == "result.json" and re.search(r"-seed\d+", file.parent.name)):
        return True
    try:
        facts = parse_json(content)
    except ValueError:
        return not content.strip(b"\0 \n") or any(f'"{key}"'.encode() in content for key in keys)
    return isinstance(facts, dict) and facts.keys() >= keys


def _compared(kind: str, place: Path, name: str) -> Verified:
    """One thing, compared by the function, or the class with a `verify`, of that name."""
    try:
        _comparison(name)(place)
    except Exception as error:  # whatever is wrong with one thing, the others are compared
        return Verified(kind, place, f"{error}" or type(error).__name__)
    return Verified(kind, place)


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
_ALONE = _FOLDERS.keys() - {"curriculum.json", "scores.json"}
"""The folders in which one comparison covers everything; below runs and scored sets there is what a user writes."""
_ORDERS = (".npy", ".txt", ".parquet")
"""How the names of exported orders end."""
_RECORDS: Mapping[str, set[str]] = {
    "amendments.json": set(),
    "chosen.json": {"plan", "chosen"},
    "manifest.json": {"files"},
    "result.json": {"arm", "seed", "status"},
    "results.json": {"files"},
    "scores.json": set(),
    "study.json": {"files"},
}
"""Records that lie alone, by name, and the keys that tell them from other programs'; none where the name is ours."""
