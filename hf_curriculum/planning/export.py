"""The order of a run for other programs, as a file of row numbers or ids."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hf_curriculum.columns import require_columns
from hf_curriculum.files import (
    DamagedFileError,
    file_digest,
    new_files,
    read_array,
    read_sealed,
    reading,
    refuse_foreign,
    resolved,
    sole_writer,
    write_sealed,
)
from hf_curriculum.fingerprint import RowsFingerprint, fingerprint_rows
from hf_curriculum.planning.rows import row_type
from hf_curriculum.provenance import read_column, score_values

if TYPE_CHECKING:
    import pyarrow as pa

logger: logging.Logger = logging.getLogger(__name__)

_CHUNK, _FEW = 1 << 20, 1 << 15
_FORMAT = "hf_curriculum order 1"
_UID = np.dtype("u8,u8")
_PATIENCE = 600.0  # seconds that an export waits for another one to the same file
_REMEDY = "Export the plan again."
SUFFIXES = (".npy", ".txt", ".parquet")
"""What an order can be written as."""


class Ordered(Protocol):
    """What is read of a plan."""

    curriculum: Any
    ranking: Any
    global_batch_size: int
    samples_per_step: int
    candidates: int
    undecided: bool
    pads_batches: bool
    known_samples: int
    known_steps: int
    max_steps: int

    def chunks(self, start: int = 0) -> Iterator[np.ndarray]:
        """Its rows up to the next decision."""

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Row numbers at these sample positions."""

    def fingerprint(self) -> dict[str, Any]:
        """What it was made of."""

    def to_dict(self) -> dict[str, Any]:
        """The same, with its stages."""


def validate_order(plan: Ordered, up_to_decision: bool = False) -> None:
    """The rows of a plan are known, all of them or up to its next decision, and one step's follow another's."""
    name = type(plan.curriculum).__name__
    if plan.candidates > 1:
        raise ValueError(
            f"{name} chooses each step's examples among {plan.candidates} × the examples, by a model that is being "
            "trained: no order is known beforehand. Hand over the curriculum that it draws by (its then=), or train "
            "with CurriculumTrainer."
        )
    if plan.pads_batches:
        raise ValueError(
            f"{name}(partial_batches='keep') ends each pass with a smaller batch, and a reader with batches of one "
            "size would lose its steps. Use partial_batches='stream'."
        )
    if plan.undecided and (not up_to_decision or not plan.known_samples):
        steps = plan.known_steps
        known = f"the first {steps:,} of at most {plan.max_steps:,} steps are" if steps else "no step is"
        remedy = " export(up_to_decision=True) writes these." if steps else ""
        raise ValueError(
            f"{name} decides while training what comes next: {known} known now.{remedy} CurriculumTrainer, or a loop "
            "of your own with plan.decided(...), takes the decisions."
        )


def validate_data(dataset: Any, plan: Ordered) -> None:
    """A data set has the rows that a plan was made for, as far as the plan knows them."""

    ranking = plan.ranking
    found = f"The plan was made for {ranking.num_rows:,} rows"
    if len(dataset) != ranking.num_rows:
        raise ValueError(
            f"{found}, and the data set has {len(dataset):,}: its row numbers would mean other examples. Give the "
            "data that the plan was made for, or plan for this one."
        )
    column = ranking.score_column
    if column in dataset.column_names and not np.array_equal(
        np.asarray(score_values(dataset, column)), ranking.scores.astype(np.float32), equal_nan=True
    ):
        raise ValueError(
            f"{found} with other scores in `{column}`: were the rows shuffled or scored since? Its row numbers would "
            "mean other examples. Give the data that the plan was made for, or plan for this one."
        )


def export_order(
    plan: Ordered, file: str | Path, dataset: Any, id_column: str | None, datacomp: bool, up_to_decision: bool
) -> Path:
    """Writes the order of a plan, and what it was made of beside it; see `Plan.export`."""
    validate_order(plan, up_to_decision)
    ids = _ids(plan, Path(file), dataset, id_column, datacomp)
    target = resolved(file)
    refuse_foreign(facts_file(target), "format")
    if target.exists() and not facts_file(target).is_file():
        raise FileExistsError(
            f"{target} is there and is no exported order, which would have {facts_file(target).name} beside it: it "
            "would be lost. Name another file, or remove it."
        )
    with sole_writer(target, target.with_name(f".{target.name}.lock"), _PATIENCE):
        with new_files(facts_file(target), target) as (about, temporary):
            _WRITERS["datacomp" if datacomp else Path(file).suffix](plan, temporary, ids)
            facts = {
                "format": _FORMAT,
                "file": target.name,
                "digest": file_digest(temporary),
                "id_column": id_column,
                "steps": plan.known_steps,
                "of_at_most": plan.max_steps,
                "draws": plan.known_samples,
                "plan": plan.to_dict(),
                "fingerprint": plan.fingerprint(),
                "data": None if dataset is None else fingerprint_rows(dataset).to_dict(),
            }
            former = None
            with suppress(ValueError, OSError):
                former = verify_order(target)
            # They take their place before the order does, and are those of both: whichever stands there can be read.
            write_sealed(about, {**facts, "former": former})
        with suppress(OSError):  # what they say of the former order does no harm
            write_sealed(facts_file(target), facts)
    return Path(file)


def facts_file(file: Path) -> Path:
    """Where it stands what an order was made of: beside it, not beside a link to it."""
    file = resolved(file)
    return file.with_name(f"{file.name}.json")


def verify_order(file: Path) -> dict[str, Any]:
    """What an exported order was made of, as its file `.json` says it; the file is compared with its digest.

    Raises:
        FileNotFoundError: one of the two is missing.
        DamagedFileError: one of them was changed, or they do not belong together.
    """
    for path in (file, facts_file(file)):
        if not path.is_file():
            raise FileNotFoundError(f"{path} does not exist. `plan.export({str(file)!r})` writes it.")
    needs = ("format", "digest", "id_column", "steps", "of_at_most", "draws", "fingerprint", "data")
    facts = read_sealed(facts_file(file), _REMEDY, needs)
    with reading(file, _REMEDY):
        digest = file_digest(file)
    former = facts.pop("former", None)
    if former and former["digest"] == digest:
        facts = former
    if facts["digest"] != digest:
        raise DamagedFileError(
            f"{file} is not the file that {facts_file(file).name} was written for: it holds another order than that "
            f"says. It was damaged or replaced. {_REMEDY}"
        )
    return facts


def _ids(plan: Ordered, file: Path, dataset: Any, id_column: str | None, datacomp: bool) -> pa.ChunkedArray | None:
    """The ids of the rows, after checks of everything that could be wrong."""
    if file.suffix not in SUFFIXES:
        raise ValueError(f"{file.name!r} ends in none of {', '.join(SUFFIXES)}, which say what to write.")
    if dataset is not None:
        validate_data(dataset, plan)
    if id_column is None:
        if datacomp:
            raise ValueError('datacomp=True writes the uids of the rows: name their column, id_column="uid".')
        return None
    if dataset is None:
        raise ValueError(f"id_column={id_column!r} names a column of the data: give the data set, too.")
    if file.suffix == ".npy" and not datacomp:
        raise ValueError(
            f"{file.name!r} would hold row numbers, and id_column={id_column!r} was given. Write ids to a .txt or "
            ".parquet file, or with datacomp=True the sorted uids of DataComp."
        )
    require_columns(dataset.column_names, [id_column], reader="It is exported.", remedy="Name another id_column.")
    return _checked_ids(dataset, id_column, file.suffix)


def _checked_ids(dataset: Any, column: str, suffix: str) -> pa.ChunkedArray:
    """A column as texts, none of them missing, each on a line of its own."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = read_column(dataset, column)
    kinds = (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string)
    if not any(is_kind(values.type) for is_kind in kinds):
        raise ValueError(
            f"`{column}` holds {values.type}, and ids are texts or whole numbers. Name another id_column."
        )
    texts = pa.chunked_array([values]) if isinstance(values, pa.Array) else values
    texts = pa.chunked_array([chunk.cast(pa.large_string()) for chunk in texts.chunks], pa.large_string())
    bad = pc.is_null(texts)
    if suffix == ".txt":
        bad = pc.or_(bad, pc.fill_null(pc.match_substring_regex(texts, r"^\s*$|[\r\n]"), True))
    if pc.any(bad).as_py():
        row = pc.index(bad, True).as_py()
        raise ValueError(
            f"`{column}` is {texts[row].as_py()!r} in row {row}: an id is needed for every row"
            f"{', on one line' if suffix == '.txt' else ''}. Fill the column, or name another one."
        )
    return texts


def _chunks(plan: Ordered) -> Iterator[np.ndarray]:
    """The rows of the run; int64, a million at a time."""
    for start in range(0, plan.known_samples, _CHUNK):
        yield plan.rows(start, min(start + _CHUNK, plan.known_samples))


def _write_rows(plan: Ordered, file: Path, ids: None) -> None:
    """Row numbers as NumPy's format, int32 where they fit."""
    kind = row_type(plan.ranking.num_rows)
    with file.open("wb") as out:
        header = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False}
        np.lib.format.write_array_header_1_0(out, {**header, "shape": (plan.known_samples,)})
        for rows in plan.chunks():
            out.write(rows.astype(kind).data)


def _write_lines(plan: Ordered, file: Path, ids: pa.ChunkedArray | None) -> None:
    """An id, or a row number, per line."""
    with file.open("w", encoding="utf-8") as out:
        for rows in _chunks(plan):
            values = rows.astype(str).tolist() if ids is None else ids.take(_indices(rows)).to_pylist()
            out.write("\n".join(values) + "\n")


def _write_parquet(plan: Ordered, file: Path, ids: pa.ChunkedArray | None) -> None:
    """A row per draw: the step (from 0), the row number, and the id."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([("step", pa.int32()), ("row", pa.int64()), *([("id", pa.large_string())] if ids else [])])
    with pq.ParquetWriter(file.absolute(), schema) as out:
        for start, rows in zip(range(0, plan.known_samples, _CHUNK), _chunks(plan), strict=True):
            steps = np.arange(start, start + len(rows)) // plan.samples_per_step
            columns = [pa.array(steps, pa.int32()), pa.array(rows)]
            columns += [ids.take(_indices(rows))] if ids else []
            out.write_table(pa.table(columns, schema=schema))


def _write_datacomp(plan: Ordered, file: Path, ids: pa.ChunkedArray) -> None:
    """Sorted 128-bit uids as pairs of 64-bit numbers, each as often as it is drawn: DataComp's `resharder.py`."""
    counts = np.zeros(plan.ranking.num_rows, np.int64)
    for rows in _chunks(plan):
        np.add.at(counts, rows, 1)
    drawn = np.flatnonzero(counts)
    uids = np.empty(len(drawn), _UID)
    for start in range(0, len(drawn), _CHUNK):
        texts = ids.take(_indices(drawn[start : start + _CHUNK])).to_pylist()
        uids[start : start + len(texts)] = [_uid(text) for text in texts]
    order = np.lexsort((uids["f1"], uids["f0"]))
    with file.open("wb") as out:
        np.save(out, np.repeat(uids[order], counts[drawn][order]))


def _uid(text: str) -> tuple[int, int]:
    if not re.fullmatch("[0-9a-fA-F]{32}", text):  # int() takes signs, underscores and spaces too
        raise ValueError(f"The uid {text!r} is not of DataComp, whose uids are 32 hexadecimal digits.")
    return int(text[:16], 16), int(text[16:], 16)


def _indices(rows: np.ndarray) -> pa.Array:
    import pyarrow as pa

    return pa.array(rows)


_WRITERS: dict[str, Callable[[Any, Path, Any], None]] = {
    ".npy": _write_rows,
    ".txt": _write_lines,
    ".parquet": _write_parquet,
    "datacomp": _write_datacomp,
}


class ExportedOrder:
    """An order that `Plan.export` wrote, memory-mapped; `CurriculumSampler.from_export` draws by it.

    Args:
        file: a `.npy` file of row numbers, with its `.npy.json` beside it.

    Raises:
        FileNotFoundError: one of the two is missing.
        ValueError: they are damaged, do not belong together, or hold ids.
    """

    undecided = pads_batches = False
    log: tuple[Mapping[str, Any], ...] = ()

    def __init__(self, file: str | Path) -> None:
        self.file = resolved(file)
        self.facts: Mapping[str, Any] = verify_order(self.file)
        endings = Path(file).suffix, self.file.suffix  # a link may have another one than what it leads to
        if self.facts["format"] != _FORMAT or ".npy" not in endings or self.facts["id_column"]:
            raise ValueError(f"{self.file} holds no row numbers that a sampler could draw by. Export a .npy file.")
        self._rows = read_array(self.file, _REMEDY, mmap_mode="r")
        self.known_samples: int = len(self._rows)
        self.max_steps: int = self.facts["of_at_most"]
        self.num_steps: int = self.facts["steps"]
        if self.num_steps < 1 or self.known_samples != self.facts["draws"] or self.known_samples % self.num_steps:
            raise DamagedFileError(
                f"{self.file} holds {self.known_samples:,} rows, and {facts_file(self.file).name} records "
                f"{self.facts['draws']:,} in {self.num_steps:,} steps of equal size: other batches would be drawn. "
                f"{_REMEDY}"
            )
        self.samples_per_step: int = self.known_samples // self.num_steps
        if self.num_steps < self.max_steps:
            logger.warning(
                f"{self.file} holds the first {self.num_steps:,} of at most {self.max_steps:,} steps: after them the "
                "curriculum decides what comes next."
            )

    def fingerprint(self) -> Mapping[str, Any]:
        """That of the plan."""
        return self.facts["fingerprint"]

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Row numbers drawn at the sample positions `[start, stop)`, int64."""
        return self._rows[start:stop].astype(np.int64)

    def step_rows(self, step: int) -> np.ndarray:
        """Row numbers of optimizer step `step` (from 0), int64."""
        return self.rows(step * self.samples_per_step, (step + 1) * self.samples_per_step)

    def chunks(self, start: int = 0) -> Iterator[np.ndarray]:
        """The rows of the run from sample position `start`, a few thousand at a time."""
        for first in range(start, self.known_samples, _FEW):
            yield self.rows(first, min(first + _FEW, self.known_samples))

    def validate_data(self, dataset: Any) -> None:
        """Raises a `ValueError` for other rows than the order was made for."""
        made, now = self.facts["data"], fingerprint_rows(dataset)
        if made is None:
            made = {"kind": now.kind, "num_rows": self.facts["fingerprint"]["num_rows"], "columns": {}}
        if difference := RowsFingerprint.from_dict(made).difference(now):
            raise ValueError(
                f"{self.file} was made for other data: {difference}. Its row numbers would mean other examples. Give "
                "the data that it was exported for, or export a plan for this one."
            )
