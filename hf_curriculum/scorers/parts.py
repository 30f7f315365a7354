"""Finished parts of a scoring run in a folder: written whole, and read only into the run they belong to."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
from datasets import Dataset

from hf_curriculum.provenance import read_column

_MARK = b"hf_curriculum_part"
_RUN = "run.json"
_DRAFT = "draft-"
_POLL = 0.5  # seconds between two looks into the folder
_SAMPLE = 256  # rows of a column that is neither text nor number


class PartFolder:
    """The parts of one score of one data set, and the record of the run they belong to.

    The first process that comes writes the record, `run.json`. One that comes with another record (another scorer,
    another version of a library, other data) is turned away before it does any work.

    Args:
        folder: where the parts are, seen by every process.
        record: what must be equal for parts to belong together; anything JSON can hold.
        rows: rows of the whole.
        step: rows of a part; the last one may be shorter.
        alone: no other process shares the folder, so that a record without parts, of a run that failed at once, may be
            replaced.

    Raises:
        ValueError: the folder holds parts of another run.

    Example:
        >>> import tempfile
        >>> parts = PartFolder(tempfile.mkdtemp(), {"scorer": "CaptionLength"}, rows=3, step=2)
        >>> parts.write(0, {"caption_length": np.float32([2, 5])})
        >>> parts.missing([0, 1])
        [1]
    """

    def __init__(
        self, folder: str | Path, record: Mapping[str, Any], rows: int, step: int, alone: bool = False
    ) -> None:
        self.folder, self.rows, self.step = Path(folder), rows, step
        self.count = -(-rows // step)
        self.record = json.loads(json.dumps({**record, "rows": rows, "rows_per_part": step}))
        self.digest = hashlib.blake2b(json.dumps(self.record, sort_keys=True).encode(), digest_size=8).hexdigest()
        self.folder.mkdir(parents=True, exist_ok=True)
        if alone and not [name for name in os.listdir(self.folder) if name != _RUN and not name.startswith(_DRAFT)]:
            (self.folder / _RUN).unlink(missing_ok=True)
        self._sign()

    def _sign(self) -> None:
        file = self.folder / _RUN
        if not file.exists():
            draft = _draft(self.folder, json.dumps(self.record, indent=1).encode())
            try:
                os.link(draft, file)  # unlike `replace`, leaves the record of whoever came first
            except FileExistsError:
                pass
            except OSError:  # a file system without links: processes that start at the same moment are not compared
                os.replace(draft, file)
            draft.unlink(missing_ok=True)
        found = json.loads(file.read_text(encoding="utf-8"))
        if found != self.record:
            raise ValueError(
                f"{self.folder} holds parts of another scoring run: {_differences(found, self.record)}. Together they "
                "would be scores made in two ways under one name. Give this run a folder of its own, or delete that "
                "one. Processes that score together need the same data, arguments and versions of libraries."
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

    def write(self, part: int, scores: Mapping[str, np.ndarray]) -> None:
        """Writes a part: whole, or not at all.

        Args:
            part: its number.
            scores: column → float32 (rows of the part,).
        """
        about = {"run": self.digest, "part": part}
        table = pa.table({column: pa.array(values) for column, values in scores.items()})
        buffer = pa.BufferOutputStream()
        table = table.replace_schema_metadata({_MARK: json.dumps(about).encode()})
        pyarrow.parquet.write_table(table, buffer, compression="zstd", write_page_checksum=True)
        os.replace(_draft(self.folder, buffer.getvalue().to_pybytes()), self.file(part))

    def read(self, part: int) -> dict[str, np.ndarray]:
        """Reads a part. Shapes: returns column → float32 (rows of the part,).

        Raises:
            ValueError: the file is damaged, or of another run or another part.
        """
        file = self.file(part)
        try:
            table = pyarrow.parquet.read_table(file, page_checksum_verification=True)
        except (pa.ArrowInvalid, OSError) as error:
            raise ValueError(
                f"{file} cannot be read ({error}), so the scores of its rows are not there. Delete it and start "
                "again: only this part will be scored."
            ) from error
        about = json.loads((table.schema.metadata or {}).get(_MARK, b"{}"))
        if about != {"run": self.digest, "part": part} or table.num_rows != len(self.rows_of(part)):
            raise ValueError(
                f"{file} does not belong here: it says {about or 'nothing of itself'} and has {table.num_rows} rows, "
                f"where part {part} of run {self.digest!r} with {len(self.rows_of(part))} rows is expected. Delete it "
                "and start again: only this part will be scored."
            )
        return {column: table[column].to_numpy() for column in table.column_names}

    def read_all(self, patience: float) -> dict[str, np.ndarray]:
        """Waits for all parts, and puts them together. Shapes: returns column → float32 (rows,).

        Args:
            patience: seconds to wait without a new part.
        """
        self.wait(range(self.count), patience)
        parts = [self.read(part) for part in range(self.count)]
        return {column: np.concatenate([part[column] for part in parts]) for column in parts[0]} if parts else {}

    def wait(self, parts: Sequence[int], patience: float) -> None:
        """Waits until parts that other processes make are there.

        Raises:
            TimeoutError: no new part came for so long.
        """
        missing, since = self.missing(parts), time.monotonic()
        while missing:
            time.sleep(_POLL)
            left = self.missing(missing)
            if len(left) < len(missing):
                missing, since = left, time.monotonic()
            elif time.monotonic() - since > patience:
                raise TimeoutError(
                    f"{len(left)} of {self.count} parts are missing in {self.folder}, the first of them "
                    f"{self.file(left[0]).name}, and none came for {patience:g} seconds. The process that makes them "
                    "has stopped, or is slower than that. Start it again: finished parts are kept."
                )

    def write_shared(self, name: str, content: bytes) -> None:
        """Writes a file beside the parts, for what one process makes and all read: whole, or not at all."""
        os.replace(_draft(self.folder, content), self.folder / name)

    def read_shared(self, name: str, patience: float) -> bytes:
        """Waits for such a file, and reads it.

        Raises:
            TimeoutError: it did not come for so long.
        """
        start = time.monotonic()
        while name not in os.listdir(self.folder):
            if time.monotonic() - start > patience:
                raise TimeoutError(
                    f"{self.folder / name} did not come for {patience:g} seconds. The first process makes it. Start "
                    "that process again."
                )
            time.sleep(_POLL)
        return (self.folder / name).read_bytes()


def missing_parts(folder: Path, parts: Sequence[int], rows: int, step: int) -> list[int]:
    """Those of `parts`, of `step` rows each out of `rows`, that a folder does not hold."""
    # a listing is fresh where a network file system remembers files that were absent
    there, count = set(os.listdir(folder)) if folder.is_dir() else set(), -(-rows // step)
    return [part for part in parts if _part_name(part, count) not in there]


def _part_name(part: int, count: int) -> str:
    return f"part-{part:05d}-of-{count:05d}.parquet"


def _draft(folder: Path, content: bytes) -> Path:
    """A file with another name, whose content has reached the disk."""
    handle, name = tempfile.mkstemp(dir=folder, prefix=_DRAFT)
    with os.fdopen(handle, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    return Path(name)


def _differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """What differs between two records, entry by entry, down to the innermost mappings."""
    told = []
    for name in sorted({*found, *wanted}):
        theirs, ours = found.get(name), wanted.get(name)
        if isinstance(theirs, Mapping) and isinstance(ours, Mapping) and theirs != ours:
            told.append(f"{name}: {_differences(theirs, ours)}")
        elif theirs != ours:
            told.append(f"{name} was {theirs!r:.100} and is {ours!r:.100}")
    return ", ".join(told)


def data_digest(view: Dataset) -> str:
    """Tells data sets apart that a scorer might be given: equal rows in equal order have equal digests on any machine.

    It rests on all texts and numbers, on the sizes of stored pictures, and on some rows of anything else (vectors,
    boxes). Pictures are not read, nor are their paths, which differ between machines.

    Args:
        view: the columns that a scorer reads.
    """
    digest = hashlib.blake2b(digest_size=8)
    for column in sorted(view.column_names):
        kind = view.data.column(column).type
        digest.update(f"{column} {kind} {len(view)}".encode())
        if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
            stored = pc.struct_field(view.data.column(column), "bytes")  # not joined, which would copy all pictures
            values = pc.binary_length(stored).combine_chunks()
            values = values if view._indices is None else values.take(view._indices.column(0).combine_chunks())
        elif pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_primitive(kind):
            values = read_column(view, column)
        else:
            rows = np.unique(np.linspace(0, len(view) - 1, _SAMPLE).astype(np.int64)) if len(view) else []
            digest.update(repr(view.select(rows).with_format(None)[column][:]).encode())
            continue
        digest.update(np.packbits(values.is_null().to_numpy(zero_copy_only=False)).tobytes())
        if pa.types.is_large_string(values.type):
            digest.update(pc.binary_length(values).fill_null(0).to_numpy(zero_copy_only=False).tobytes())
            digest.update(_text(values))
        else:
            digest.update(values.fill_null(0).to_numpy(zero_copy_only=False).tobytes())
    return digest.hexdigest()


def _text(values: pa.LargeStringArray) -> memoryview:
    """All texts of an array, one behind the other, without a copy."""
    _, offsets, content = values.buffers()
    if not len(values) or content is None:
        return memoryview(b"")
    places = np.frombuffer(offsets, np.int64)[values.offset : values.offset + len(values) + 1]
    return memoryview(content)[places[0] : places[-1]]
