"""Digests of what `save_to_disk` wrote, by which damage is noticed: of small files, and of each column of Arrow data.

Nothing is decoded: of each column the buffers count as they lie in the file, and of a file the metadata of its
messages, which say how long the buffers are and of what type.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
from xxhash import xxh3_64

from hf_curriculum.files import DamagedFileError, file_digest, read_json, reading, validate_digest

_REMEDY = "Copy the folder again or save it again. If you changed it yourself, record it: `write_provenance`."
_STATE, _INFO, _SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"


def saved_digests(folder: Path) -> dict[str, Any]:
    """File in a folder of `save_to_disk` → its digests, JSON-able; empty where no data is saved."""
    return {
        name: _arrow_digests(folder / name) if name.endswith(".arrow") else file_digest(folder / name)
        for name in _saved_files(folder)
    }


def compare_saved(folder: Path, recorded: dict[str, Any], everything: bool = False) -> None:
    """Raises a `DamagedFileError` where saved data is not what it was; bytes of images count with `everything`."""
    if not recorded:
        return
    for name, digest in recorded.items():
        if isinstance(digest, str) and (folder / name).is_file():
            validate_digest(folder / name, digest, _REMEDY)
    names = _saved_files(folder)
    if changed := sorted(recorded.keys() ^ set(names)):
        verb = "is missing" if changed[0] in recorded else "was added"
        raise DamagedFileError(f"{folder / changed[0]} {verb} since the data was saved. {_REMEDY}")
    for name, digests in recorded.items():
        if not isinstance(digests, str):
            _compare_arrow(folder / name, digests, everything)


def _compare_arrow(file: Path, recorded: dict[str, Any], everything: bool) -> None:
    with reading(file, _REMEDY):
        if _layout_digest(file) != recorded["layout"]:  # buffers are looked for only where they were
            raise DamagedFileError(f"{file} is damaged: it has another structure than was saved. {_REMEDY}")
        digests = _column_digests(file, contents=everything)
        changed = [
            f"`{name}`"
            for part, columns in digests.items()
            for name, digest in columns.items()
            if digest != recorded[part][name]
        ]
    if changed:
        raise DamagedFileError(
            f"{file} is damaged: {', '.join(changed)} {'holds' if len(changed) == 1 else 'hold'} something else than "
            f"was saved. {_REMEDY}"
        )


def _saved_files(folder: Path) -> list[str]:
    """The files that `load_from_disk` would read, small ones first."""
    splits = [""]
    if (folder / _SPLITS).is_file():
        splits += [f"{name}/" for name in read_json(folder / _SPLITS, _REMEDY, ["splits"])["splits"]]
    small = [_SPLITS, *(split + name for split in splits for name in (_STATE, _INFO))]
    small = [name for name in small if (folder / name).is_file()]
    data = []
    for name in small:
        if name.endswith(_STATE):
            with reading(folder / name, _REMEDY):
                entries = read_json(folder / name, _REMEDY, ["_data_files"])["_data_files"]
                data += [name.removesuffix(_STATE) + entry["filename"] for entry in entries]
    return [*small, *(name for name in data if (folder / name).is_file())]


def _arrow_digests(file: Path) -> dict[str, Any]:
    with reading(file, _REMEDY):
        return {"layout": _layout_digest(file), **_column_digests(file, contents=True)}


def _layout_digest(file: Path) -> str:
    """A digest of the metadata of all messages of an Arrow stream: types, lengths and places of buffers."""
    state = xxh3_64()
    for message in _messages(file):
        state.update(message.metadata)
    return state.hexdigest()


def _column_digests(file: Path, contents: bool) -> dict[str, dict[str, str]]:
    """The digest of each column, and with `contents` those of the bytes that columns hold, such as images'."""
    messages = _messages(file)
    schema = pa.ipc.read_schema(next(messages))
    columns = {name: xxh3_64() for name in schema.names}
    bytes_of = {name: xxh3_64() for name in schema.names if any(_holds_bytes(schema.field(name).type))}
    for message in messages:
        batch = pa.ipc.read_record_batch(message, schema)
        for name, array in zip(batch.schema.names, batch.columns, strict=True):
            for buffer, is_content in zip_longest(array.buffers(), _holds_bytes(array.type)):
                if buffer is not None and (contents or not is_content):
                    (bytes_of if is_content else columns)[name].update(buffer)
    parts = {"columns": columns, **({"bytes": bytes_of} if contents else {})}
    return {part: {name: state.hexdigest() for name, state in states.items()} for part, states in parts.items()}


def _messages(file: Path) -> Iterator[pa.Message]:
    with pa.memory_map(str(file)) as source:
        yield from pa.ipc.MessageReader.open_stream(source)


def _holds_bytes(kind: pa.DataType) -> list[bool]:
    """Of each buffer of an array, those of its fields included, whether it is the bytes of binary values."""
    if isinstance(kind, pa.BaseExtensionType):
        return _holds_bytes(kind.storage_type)
    if pa.types.is_struct(kind) or pa.types.is_fixed_size_list(kind) or pa.types.is_null(kind):
        buffers = [False]
    elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        buffers = [False, False, True]
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        buffers = [False, False, False]
    else:  # a bitmap and values or offsets
        buffers = [False, pa.types.is_fixed_size_binary(kind)]
    return [*buffers, *(flag for number in range(kind.num_fields) for flag in _holds_bytes(kind.field(number).type))]
