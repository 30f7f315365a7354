"""Columns kept in parts: a run that was killed, or is shared by several processes, makes only what is missing."""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset

from hf_curriculum.config import digest, parse_json
from hf_curriculum.files import read_sealed, reading, write_sealed
from hf_curriculum.fingerprint import column_digests
from hf_curriculum.sealed_parquet import read_sealed_parquet, sealed_parquet

logger: logging.Logger = logging.getLogger(__name__)

_MARK = b"hf_curriculum_part"
_MANIFEST = "run.json"
_REMEDY = "Delete it and start again: only this part will be made."
_ARRAY, _STEP_TASKS = "SLURM_ARRAY_TASK", "SLURM_STEP_NUM_TASKS"
_POLL = 0.5  # seconds between two looks into the folder


def launched(rank: int | None = None, world_size: int | None = None) -> tuple[int, int]:
    """Rank and number of the processes: as given, as `accelerate launch` and `torchrun` set them, or as Slurm does."""
    given = {"RANK": rank, "WORLD_SIZE": world_size}
    known = {name: os.environ.get(name) if value is None else value for name, value in given.items()}
    known = {name: int(value) for name, value in known.items() if value is not None} or _of_slurm()
    if len(known) == 1:
        (name,) = known
        raise ValueError(
            f"`{name}` is {known[name]}, but {'WORLD_SIZE' if name == 'RANK' else 'RANK'} is not known. Give both, as "
            "arguments or in the environment."
        )
    rank, world_size = known.get("RANK", 0), known.get("WORLD_SIZE", 1)
    if not 0 <= rank < world_size:
        raise ValueError(f"The rank is {rank} of {world_size} processes. Ranks count from 0 to {world_size - 1}.")
    return rank, world_size


def _of_slurm() -> dict[str, int]:
    """The same of Slurm: the tasks of a step (`srun`), of a job array, or of both; a batch script is no step."""
    rank, world_size = 0, 1
    if f"{_ARRAY}_ID" in os.environ:
        own, least, most = (int(os.environ.get(f"{_ARRAY}_{name}", 0)) for name in ("ID", "MIN", "MAX"))
        step = max(1, int(os.environ.get(f"{_ARRAY}_STEP", 1)))
        rank, world_size = (own - least) // step, (most - least) // step + 1
        if (count := int(os.environ.get(f"{_ARRAY}_COUNT", world_size))) != world_size or (own - least) % step:
            raise ValueError(
                f"The job array of Slurm has {count} tasks between {least} and {most}, not in equal steps, so the "
                f"rank of task {own} is not known. Give it (`--rank`, `--ranks`; `rank=`, `world_size=`), or submit "
                f"`--array={least}-{most}`."
            )
        message = "This is process %d of %d, by Slurm's job array. Set RANK=0 and WORLD_SIZE=1 where it works alone."
        logger.warning(message, rank, world_size)
    if _STEP_TASKS in os.environ:
        tasks = int(os.environ[_STEP_TASKS])
        rank, world_size = rank * tasks + int(os.environ["SLURM_PROCID"]), world_size * tasks
    return {"RANK": rank, "WORLD_SIZE": world_size}


def launched_here() -> tuple[int, int]:
    """This process's place among those of its machine, and their number, as a launcher or Slurm's step set them."""
    if "LOCAL_RANK" in os.environ or _STEP_TASKS not in os.environ:
        return int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    tasks = re.match(r"\d+", os.environ.get("SLURM_STEP_TASKS_PER_NODE", ""))  # "4(x2),3": the first has the most
    return int(os.environ.get("SLURM_LOCALID", 0)), int(tasks[0]) if tasks else 1


class PartFolder:
    """The parts of new columns of one data set, and the manifest of the run they belong to.

    The first process writes the manifest, `run.json`. One with another manifest (another scorer, another version of a
    library, other data) gets an error before it does any work.

    Args:
        folder: where the parts are, seen by every process.
        manifest: what must be equal for parts to belong together; anything JSON can hold.
        rows: rows in all parts.
        step: rows of a part; the last one may be shorter.
        single_process: no other process shares the folder, so that a manifest without parts, of a run that failed at
            once, may be replaced.
    """

    def __init__(
        self, folder: str | Path, manifest: Mapping[str, Any], rows: int, step: int, single_process: bool = False
    ) -> None:
        self.folder: Path = Path(folder)
        self.rows = rows
        self.step = step
        self.count: int = -(-rows // step)
        self.manifest: Any = json.loads(json.dumps({**manifest, "rows": rows, "rows_per_part": step}))
        self.digest: str = digest(json.dumps(self.manifest, sort_keys=True))
        file = self.folder / _MANIFEST
        names = os.listdir(self.folder) if self.folder.is_dir() else []
        if single_process and not [name for name in names if name != _MANIFEST and not name.startswith(".")]:
            file.unlink(missing_ok=True)
        if not file.exists():
            write_sealed(file, self.manifest, keep_existing=True)
        present = read_sealed(file, "Delete its folder and start again: all parts will be made.")
        if present != self.manifest:
            raise ValueError(
                f"{self.folder} holds parts of another run: {_differences(present, self.manifest)}. Together they "
                "would be columns made in two ways. Give this run a folder of its own, or delete that one; processes "
                "that work together need the same data, arguments and versions of libraries."
            )

    def file(self, part: int) -> Path:
        """The file of a part."""
        return self.folder / _part_name(part, self.count)

    def rows_of(self, part: int) -> range:
        """The rows of a part."""
        return range(part * self.step, min((part + 1) * self.step, self.rows))

    def missing(self, parts: Sequence[int]) -> list[int]:
        """Those of `parts` that are not there yet."""
        return missing_parts(self.folder, parts, self.rows, self.step)

    def write(self, part: int, columns: Mapping[str, np.ndarray | pa.Array]) -> None:
        """Writes a part completely or not at all."""
        about = json.dumps({"run": self.digest, "part": part})
        table = pa.table({column: pa.array(values) for column, values in columns.items()}, metadata={_MARK: about})
        with sealed_parquet(self.file(part), table.schema) as writer:
            writer.write_table(table)

    def read(self, part: int) -> pa.Table:
        """Reads a part."""
        file, rows = self.file(part), len(self.rows_of(part))
        table = read_sealed_parquet(file, _REMEDY)
        with reading(file, _REMEDY):
            about = parse_json(table.schema.metadata[_MARK])
        if about != {"run": self.digest, "part": part} or table.num_rows != rows:
            raise ValueError(
                f"{file} does not belong here: it has the metadata {about} and {table.num_rows} rows, but part {part} "
                f"of run {self.digest!r} with {rows} rows is expected. {_REMEDY}"
            )
        return table.replace_schema_metadata(None)

    def read_all(self, timeout: float) -> pa.Table:
        """Waits for all parts, and concatenates them."""
        wait_for_files(self.folder, [_part_name(part, self.count) for part in range(self.count)], timeout)
        return pa.concat_tables([self.read(part) for part in range(self.count)]) if self.count else pa.table({})


def verify_parts(folder: Path) -> None:
    """Compares the manifest and the parts in a folder with what was written; a `ValueError` where they differ."""
    manifest = read_sealed(folder / _MANIFEST, _REMEDY, ["rows", "rows_per_part"])
    rows, step = manifest.pop("rows"), manifest.pop("rows_per_part")
    run = PartFolder(folder, manifest, rows, step)
    parts = {_part_name(part, run.count): part for part in range(run.count)}
    for file in sorted(folder.glob("part-*.parquet")):
        if file.name not in parts:
            raise ValueError(f"{file} is no part of the run that {_MANIFEST} beside it tells of. {_REMEDY}")
        run.read(parts[file.name])
    for file in folder.rglob("fitted.json"):  # what scorers learnt of all rows
        read_sealed(file, _REMEDY)


def wait_for_files(folder: Path, names: Sequence[str], timeout: float) -> None:
    """Waits for files that other processes write; a `TimeoutError` if none came for `timeout` seconds."""
    missing, since = _absent(folder, names), time.monotonic()
    while missing:
        time.sleep(_POLL)
        left = _absent(folder, missing)
        if len(left) < len(missing):
            missing, since = left, time.monotonic()
        elif time.monotonic() - since > timeout:
            raise TimeoutError(
                f"{len(left)} of {len(names)} files are missing in {folder}, the first of them {left[0]}, and none "
                f"came for {timeout:g} seconds. The process that writes them has stopped, or is slower than that. "
                "Start it again: finished parts are kept."
            )


def missing_parts(folder: Path, parts: Sequence[int], rows: int, step: int) -> list[int]:
    """Those of `parts`, of `step` rows each out of `rows`, that a folder does not hold."""
    names = {_part_name(part, -(-rows // step)): part for part in parts}
    return [names[name] for name in _absent(folder, names)]


def _part_name(part: int, count: int) -> str:
    return f"part-{part:05d}-of-{count:05d}.parquet"


def _absent(folder: Path, names: Sequence[str] | Mapping[str, Any]) -> list[str]:
    """Those of `names` that a folder lacks; a network file system lists freshly, but remembers absent files."""
    found = set(os.listdir(folder)) if folder.is_dir() else set()
    return [name for name in names if name not in found]


def _differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """What differs between two manifests, entry by entry, down to the innermost mappings."""
    differing = []
    for name in sorted({*found, *wanted}):
        theirs, ours = found.get(name), wanted.get(name)
        if isinstance(theirs, Mapping) and isinstance(ours, Mapping) and theirs != ours:
            differing.append(f"{name}: {_differences(theirs, ours)}")
        elif theirs != ours:
            differing.append(f"{name} was {theirs!r:.100} and is {ours!r:.100}")
    return ", ".join(differing)


def data_digest(dataset: Dataset) -> str:
    """A digest of what a scorer reads: equal rows in equal order have equal digests on any machine.

    It covers all texts and numbers, the sizes of all images, and some rows of anything large (the bytes of images,
    vectors), but not the paths of images, which differ between machines.
    """
    content: list[str | bytes] = []
    for name in sorted(dataset.column_names):
        content.append(f"{name} {dataset.data.column(name).type} {len(dataset)}")
        content += [rows.tobytes() for part, rows in column_digests(dataset, name) if part not in ("paths", "names")]
    return digest(*content)
