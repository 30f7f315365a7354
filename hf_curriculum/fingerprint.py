"""The identity of a data set's rows, read from Arrow without decoding anything, and whether a model saw them."""

from __future__ import annotations

import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from xxhash import xxh3_64, xxh3_64_intdigest, xxh3_128_hexdigest

from hf_curriculum.columns import CAPTION
from hf_curriculum.files import read_sealed

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset

    from hf_curriculum.provenance import ScoreProvenance

_BLOCKS = 4096
_SAMPLED = 256
_WHOLE = 1 << 28
_BATCH = 1 << 16
_SKETCH = 256
_RUN_FILE = "curriculum.json"


@dataclass(frozen=True, eq=False)
class RowsFingerprint:
    """What tells the rows of one data set from those of another; made by `fingerprint_rows`.

    Args:
        kind: the class of the data set.
        num_rows: its length.
        columns: column → part → digest, 32 hexadecimal digits. A column of text or numbers has one part, `values`;
            images have their files' `names`, their `sizes` in bytes, their `paths`, and `samples` of their bytes.
        blocks: (column, part) → a digest of each block of `block_rows` rows, uint64, shape (blocks,); none where they
            were not kept.
    """

    kind: str
    num_rows: int
    columns: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    blocks: Mapping[tuple[str, str], np.ndarray] = field(default_factory=dict)

    @property
    def block_rows(self) -> int:
        """Rows per block: 1 for up to 4,096 rows, then as many as make no more than 4,096 blocks."""
        return max(1, -(-self.num_rows // _BLOCKS))

    def to_dict(self) -> dict[str, Any]:
        """As a JSON-able mapping, without the blocks."""
        columns = {name: dict(parts) for name, parts in self.columns.items()}
        return {"kind": self.kind, "num_rows": self.num_rows, "columns": columns}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any], blocks: np.ndarray | None = None) -> RowsFingerprint:
        """What `to_dict` and `stacked_blocks` wrote."""
        made = cls(facts["kind"], facts["num_rows"], facts["columns"])
        names = [(column, part) for column, parts in made.columns.items() for part in parts]
        shape = (len(names), -(-made.num_rows // made.block_rows))
        if blocks is None or blocks.shape != shape:
            return made
        return cls(made.kind, made.num_rows, made.columns, dict(zip(names, blocks, strict=True)))

    def stacked_blocks(self) -> np.ndarray:
        """The digests of all blocks, uint64, shape (parts, blocks)."""
        return np.array(list(self.blocks.values()), dtype=np.uint64)

    def difference(self, now: RowsFingerprint) -> str:
        """What is different now, in words; empty if it is the same data.

        A column that was renamed, or is new, is no difference. Of images the parts that both have are compared: a
        data set that names files and its copy on disk, which holds their bytes, are the same.
        """
        if self.num_rows != now.num_rows:
            return f"{self.num_rows:,} rows then, {now.num_rows:,} now"
        if self.kind != now.kind:
            return f"a {self.kind} then, a {now.kind} now"
        changed: dict[str, list[str]] = {}
        missing = []
        free = {name: parts for name, parts in now.columns.items() if name not in self.columns}
        for name, parts in self.columns.items():
            if name in now.columns:
                found = _changed_parts(parts, now.columns[name])
                if found:
                    changed[name] = found
            elif renamed := next((other for other in free if not _changed_parts(parts, free[other])), None):
                del free[renamed]
            else:
                missing.append(name)
        texts = [self._changed_rows(now, changed)] if changed else []
        if missing:
            texts.append(f"{_listed(missing)} {'is' if len(missing) == 1 else 'are'} missing")
        return f"{self.num_rows:,} rows then and now, but {', and '.join(texts)}" if texts else ""

    def _changed_rows(self, now: RowsFingerprint, changed: Mapping[str, list[str]]) -> str:
        names, verb = _listed(list(changed)), "differs" if len(changed) == 1 else "differ"
        keys = [(name, part) for name, parts in changed.items() for part in parts]
        pairs = [(self.blocks[key], now.blocks[key]) for key in keys if key in self.blocks and key in now.blocks]
        if not pairs:
            return f"{names} {verb}"
        blocks = np.flatnonzero(np.any([before != after for before, after in pairs], axis=0))
        size, total = self.block_rows, len(pairs[0][0])
        if size == 1:
            least = "at least " if self.num_rows > _SAMPLED and any(part == "samples" for _, part in keys) else ""
            return f"{names} of {least}{len(blocks):,} {verb} (first: row {blocks[0]:,})"
        first = int(blocks[0]) * size
        last = min(first + size, self.num_rows) - 1
        where = f"{len(blocks):,} of {total:,} blocks of {size:,} rows (first: rows {first:,} to {last:,})"
        return f"{names} {verb} in {where}"


def fingerprint_rows(dataset: Dataset | Any) -> RowsFingerprint:
    """The identity of the rows of a data set, in their order.

    It depends on the content alone: not on how Arrow has it in chunks, memory, files or caches, nor on an indices
    mapping. Text and numbers count whole; score columns with provenance do not count, since the scores that a run is
    ordered by are compared on their own. Images are not decoded: what counts are the names of their files, their sizes
    in bytes, and the bytes of 256 of them, evenly spread (all of fewer). Other columns beyond 256 MiB count like
    images.
    """
    from datasets import Dataset

    from hf_curriculum.config import kind_of
    from hf_curriculum.provenance import read_provenance

    if not hasattr(dataset, "__len__"):
        found = f"`fingerprint_rows` was given {kind_of(dataset)}, which has no length"
        raise TypeError(f"{found}. Load it without streaming=True.")
    if not isinstance(dataset, Dataset):
        return RowsFingerprint(type(dataset).__qualname__, len(dataset))
    scores, columns, blocks = read_provenance(dataset), {}, {}
    for name in dataset.column_names:
        if name in scores:
            continue
        for part, digests in column_digests(dataset, name):
            columns.setdefault(name, {})[part] = xxh3_128_hexdigest(digests.tobytes())
            blocks[name, part] = digests
    return RowsFingerprint("Dataset", len(dataset), columns, blocks)


def column_digests(dataset: Dataset, column: str) -> Iterator[tuple[str, np.ndarray]]:
    """The parts of a column, and the digests of their blocks of rows, uint64 (blocks,)."""
    from hf_curriculum.views import stored_column, table_rows

    yield from _parts(*stored_column(dataset, column, table_rows(dataset)), RowsFingerprint("Dataset", len(dataset)))


def _changed_parts(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The parts that both have and that differ; all of them if they have none in common."""
    shared = [part for part in before if part in now]
    return [part for part in shared if before[part] != now[part]] if shared else list(before)


def _listed(names: list[str]) -> str:
    quoted = [f"`{name}`" for name in names]
    return " and ".join(filter(None, [", ".join(quoted[:-1]), quoted[-1]]))


def _parts(
    column: pa.ChunkedArray, indices: np.ndarray | None, rows: RowsFingerprint
) -> Iterator[tuple[str, np.ndarray]]:
    """(part, digests of its blocks) of a column."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if isinstance(kind, pa.ExtensionType):
        kind = kind.storage_type
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], kind)
    if _is_file(kind):
        content, paths = pc.struct_field(column, "bytes"), pc.struct_field(column, "path")
        if content.null_count == len(content):
            yield "paths", _digests(_without_root(paths), indices, rows)
        if paths.null_count < len(paths):
            yield "names", _digests(_file_names(paths), indices, rows)
        if content.null_count < len(content):
            yield "sizes", _digests(pc.binary_length(content), indices, rows)
        else:
            named = paths if indices is None else paths.take(pa.array(indices))
            yield "sizes", _digests(_file_sizes(named), None, rows)
        yield "samples", _samples(column, indices, rows)
    elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        yield "sizes", _digests(pc.binary_length(column), indices, rows)
        yield "samples", _samples(column, indices, rows)
    elif _is_text(kind) or pa.types.is_primitive(kind) or column.nbytes <= _WHOLE:
        yield "values", _digests(column, indices, rows)
    else:
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            yield "sizes", _digests(pc.list_value_length(column), indices, rows)
        yield "samples", _samples(column, indices, rows)


def _without_root(paths: pa.ChunkedArray) -> pa.ChunkedArray:
    """Paths from the folder on that all of them are in, wherever that may be."""
    import pyarrow.compute as pc

    ends = pc.min_max(paths).as_py()
    shared = os.path.commonprefix([ends["min"] or "", ends["max"] or ""])  # noqa: RUF071  (cut at a separator below)
    return pc.utf8_slice_codeunits(paths, max(shared.rfind("/"), shared.rfind("\\")) + 1)


def _file_sizes(paths: pa.ChunkedArray) -> pa.ChunkedArray:
    """The bytes of the files that are named, null for those that are not there."""
    import pyarrow as pa
    import pyarrow.compute as pc

    sizes = {}
    for path in pc.unique(paths).to_pylist():
        with suppress(OSError, TypeError, ValueError):
            sizes[path] = os.stat(path).st_size
    return pa.chunked_array(
        [pa.array(map(sizes.get, chunk.to_pylist()), pa.int64()) for chunk in paths.chunks], pa.int64()
    )


def _file_names(paths: pa.ChunkedArray) -> pa.ChunkedArray:
    """The last part of each path, as `save_to_disk` keeps it; of a file in an archive its name there."""
    import pyarrow.compute as pc

    if pc.any(pc.match_substring(paths, "::")).as_py():
        paths = pc.replace_substring_regex(paths, r"::.*$", "")
    return pc.replace_substring_regex(paths, r"^.*[/\\]", "")


def _is_file(kind: pa.DataType) -> bool:
    """Whether it is what `datasets` keeps of an image, a sound or a video."""
    import pyarrow as pa

    return pa.types.is_struct(kind) and {item.name for item in kind} == {"bytes", "path"}


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _digests(column: pa.ChunkedArray, indices: np.ndarray | None, rows: RowsFingerprint) -> np.ndarray:
    """A digest of each block of rows, uint64, shape (blocks,)."""
    import pyarrow as pa

    if pa.types.is_string(column.type):
        column = column.cast(pa.large_string())  # joined into one array, `string` could hold 2 GB only
    if indices is not None:
        column = column.combine_chunks()
    size, total = rows.block_rows, rows.num_rows
    step, found = max(1, _BATCH // size) * size, []
    for start in range(0, total, step):
        stop = min(start + step, total)
        if indices is None:
            batch = column.slice(start, stop - start).combine_chunks()
        else:
            batch = column.take(pa.array(indices[start:stop]))
        for first in range(0, len(batch), size):
            state = xxh3_64()
            _feed(state, batch.slice(first, size))
            found.append(state.intdigest())
    return np.array(found, dtype=np.uint64)


def _samples(column: pa.ChunkedArray, indices: np.ndarray | None, rows: RowsFingerprint) -> np.ndarray:
    """A digest of the sampled rows of each block, 0 for blocks without one; uint64, shape (blocks,)."""
    total, size = rows.num_rows, rows.block_rows
    states: dict[int, Any] = {}
    for row in np.unique(np.linspace(0, max(total - 1, 0), min(_SAMPLED, total)).astype(np.int64)).tolist():
        value = column.slice(row if indices is None else int(indices[row]), 1).chunk(0)
        state = states.setdefault(row // size, xxh3_64())
        if _is_file(column.type):
            state.update(_file_bytes(value[0]))
        else:
            _feed(state, value)
    found = np.zeros(-(-total // size), dtype=np.uint64)
    for block, state in states.items():
        found[block] = state.intdigest()
    return found


def _file_bytes(value: pa.StructScalar) -> Any:
    """The bytes of one image: its own, or those of the file it names, if that is there."""
    if not value.is_valid:
        return b""
    content, path = value["bytes"], value["path"].as_py()
    if content.is_valid:
        return content.as_buffer()
    if path is None or not os.path.isfile(path):
        return b""
    with open(path, "rb") as stream:
        return stream.read()


def _feed(state: Any, array: pa.Array) -> None:
    """Adds the content of an array to a hash: which values are null, lengths, values."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from hf_curriculum.provenance import stored_bytes

    state.update(b"\1" if array.null_count else b"\0")
    if array.null_count:
        state.update(array.is_valid().to_numpy(zero_copy_only=False))
        array = array.drop_null()
    kind = array.type
    if isinstance(kind, pa.ExtensionType):
        _feed(state, array.storage)
    elif pa.types.is_dictionary(kind):
        _feed(state, array.dictionary_decode())
    elif _is_text(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        lengths, content = stored_bytes(array)
        state.update(lengths.astype(np.int64))
        state.update(content)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        state.update(pc.list_value_length(array).to_numpy().astype(np.int64))
        _feed(state, array.flatten())
    elif pa.types.is_struct(kind):
        for child in array.flatten():
            _feed(state, child)
    elif pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        wide = np.float64 if pa.types.is_floating(kind) else np.uint64 if pa.types.is_uint64(kind) else np.int64
        state.update(array.to_numpy(zero_copy_only=False).astype(wide))
    elif pa.types.is_temporal(kind) and hasattr(kind, "bit_width"):
        state.update(array.view(f"int{kind.bit_width}").to_numpy().astype(np.int64))
    else:
        state.update(repr(array.to_pylist()).encode())


def sketch_texts(dataset: Any, column: str = CAPTION) -> str | None:
    """The 256 smallest 64-bit hashes of the distinct texts of a column: 2.7 kB that tell rows that were there."""
    hashes = _text_hashes(dataset, column)
    return None if hashes is None else urlsafe_b64encode(hashes[:_SKETCH].tobytes()).decode()


def share_trained_on(provenance: ScoreProvenance, dataset: Any, column: str | None = None) -> float | None:
    """The share of a data set's distinct captions that the model behind a score was trained on, estimated.

    Losses that a model has memorised say little about the rows: of the rows that it was trained on, noise included.
    """
    if provenance.trained_on.get("cross_fitted"):
        return 0.0
    sketch = provenance.trained_on.get("captions")
    column = provenance.arguments.get("caption_column", CAPTION) if column is None else column
    hashes = _text_hashes(dataset, column) if sketch else None
    if hashes is None:
        return None
    trained = np.frombuffer(urlsafe_b64decode(sketch), np.uint64)
    if len(trained) == _SKETCH:  # a sketch of fewer has all of them
        hashes = hashes[hashes <= trained[-1]]
    return float(np.isin(hashes, trained).mean()) if len(hashes) else None


def read_trained_on(folder: str | Path) -> dict[str, Any]:
    """What a saved model's `curriculum.json` says it was trained on; empty where there is none, or it does not say."""
    file = Path(folder) / _RUN_FILE
    facts = read_sealed(file, "Copy the model's folder again.") if file.is_file() else {}
    return facts.get("trained_on") or {}


def _text_hashes(dataset: Any, column: str) -> np.ndarray | None:
    """Distinct 64-bit hashes of the texts of a column, ascending, uint64 (texts,); None where there is no text."""
    from datasets import Dataset

    from hf_curriculum.views import stored_column, table_rows

    if not isinstance(dataset, Dataset) or column not in dataset.column_names:
        return None
    values, rows = stored_column(dataset, column, table_rows(dataset))
    if not _is_text(values.type):
        return None
    valid, hashes, start = np.zeros(len(values), bool), np.zeros(len(values), np.uint64), 0
    for chunk in values.chunks:
        for first in range(0, len(chunk), _BATCH):
            texts = chunk.slice(first, _BATCH).to_pylist()
            part = slice(start, start := start + len(texts))
            valid[part] = [text is not None for text in texts]
            hashes[part] = [0 if text is None else xxh3_64_intdigest(text.encode()) for text in texts]
    if rows is not None:
        valid, hashes = valid[rows], hashes[rows]
    return np.unique(hashes[valid]) if valid.any() else None
