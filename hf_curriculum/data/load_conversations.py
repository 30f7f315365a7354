"""The entry point to conversations of any usual form, with the images that they show."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from datasets import Dataset, DatasetDict, Features, Image, LargeList, List, Value

from hf_curriculum.columns import CAPTION, IMAGE, IMAGES, MESSAGES, require_columns
from hf_curriculum.config import kind_of
from hf_curriculum.data.conversations import ConversationError, Message, read_messages
from hf_curriculum.data.image_files import list_lengths, with_stored
from hf_curriculum.data.images import MAX_PIXELS
from hf_curriculum.data.readers.columns import image_paths, names_captions
from hf_curriculum.data.readers.files import content_of
from hf_curriculum.data.readers.folder import SPLIT_FOLDERS
from hf_curriculum.data.readers.outside_files import validate_inside
from hf_curriculum.data.readers.tables import find_alias, shared_scalars
from hf_curriculum.data.request import (
    ARROW_SUFFIXES,
    UNSPLIT,
    Request,
    choose_split,
    is_saved,
    keep_readable,
    one_or_all,
    validate_unused,
)
from hf_curriculum.data.text import ending, open_text
from hf_curriculum.provenance import append_columns, read_column, replace_table

logger: logging.Logger = logging.getLogger(__name__)

PROMPT, COMPLETION = "prompt", "completion"
ALIASES: dict[str, tuple[str, ...]] = {
    MESSAGES: (MESSAGES, "conversations", "conversation", "texts"),
    IMAGES: (IMAGES, IMAGE),
}
PAIRS = ((PROMPT, COMPLETION), ("question", "answer"))
"""What is said by the user, and by the assistant."""
MARK = "<image>"
"""What stands in a text where an image does."""
_OTHER_NAMES = {
    "user": ("human",),
    "assistant": ("gpt", "chatgpt", "bard", "bing", "bot", "model", "function_call", "tool_call"),
    "tool": ("function", "function_response", "observation", "tool_response"),
}
ROLE_OF: dict[str, str] = {name: role for role, names in _OTHER_NAMES.items() for name in names}
"""Names of speakers, as ShareGPT's files and their kin have them → the role."""
_RULES = f"""It reads
- a Dataset or DatasetDict, the name of a data set on the Hub, a folder written by save_to_disk, *.parquet, *.arrow;
- .json (a list of objects) and .jsonl, compressed (.gz) or not; a folder with one of them, or with train.json, ...;
with one of the columns {", ".join(ALIASES[MESSAGES])}: lists of messages with `role` and `content`, with `from` and
`value`, or with `user` and `assistant`; or with {" or ".join(map(" and ".join, PAIRS))}: texts, or such lists."""


def load_conversations(
    source: str | Path | Dataset | DatasetDict,
    *,
    images: str | Path | Literal[False] | None = None,
    columns: Mapping[str, str] | None = None,
    split: str | None = None,
    check_images: bool = True,
    unreadable_log: str | Path | None = None,
    num_proc: int | None = None,
    allow_outside: bool = False,
    max_pixels: int = MAX_PIXELS,
    bad_rows: Literal["error", "drop"] = "error",
    **load_dataset_options: Any,
) -> Dataset | DatasetDict:
    """Loads conversations of any usual form as `messages` with `images`, for TRL's trainers and our scorers.

    Columns: `messages` (a list of `role` and `content`), `images` (list of `datasets.Image`, decoded on access) where
    the data has any, and what else the source holds. A content is a text; where the data has images it is a list of
    `{"type": "text", "text": ...}` and `{"type": "image"}`, one of these for each image, in the order of `images`.
    Other fields of a message are left out.

    Forms: `messages`, ShareGPT's and LLaVA's `conversations` (`from`, `value`), the_cauldron's `texts` (`user`,
    `assistant`), `prompt` and `completion`, `question` and `answer`. Images stand where the text has `<image>`; where
    a conversation has images and no such mark, they go before the first text of the user.

    Args:
        source: a loaded data set, a name on the Hub, a folder, or a file: .json, .jsonl, .parquet or .arrow.
        images: the folder of images that the rows name. None looks in the source's own folder, and in `images/` there.
            False loads text alone.
        columns: our name -> theirs: `{"messages": "chat", "images": "photo"}`, or `prompt` and `completion`. Names
            left out are looked for.
        split: one split alone.
        check_images: decode each image once now. Rows with an unreadable one are left out, counted in a warning and
            named in a log. Verdicts are cached.
        unreadable_log: where that log is written, rather than to the cache of `datasets`.
        num_proc: processes that read conversations and check images.
        allow_outside: read images outside of the source's folder and of `images`: for a source that you trust.
        max_pixels: images of more pixels are not decoded, and count as unreadable (`check_images`).
        bad_rows: a row that cannot be read is an error that names it. "drop" leaves such rows out and counts them.
        load_dataset_options: further arguments of `datasets.load_dataset`, for sources that it loads.

    Returns:
        A `DatasetDict` where the source has splits and `split` names none, or else a `Dataset`.

    Raises:
        FileNotFoundError: the path, or the folder of images, does not exist, or holds none of the images.
        ValueError: no reader recognises the source, a column is missing, or an argument would have no effect. Or rows
            cannot be read, or show more or fewer images than they have (all are counted). Or the source names images
            outside of its folder, or no image can be read.
        TypeError: the source is no data set, or a streamed one.

    Example:
        >>> rows = {"question": ["What is it?"], "answer": ["A dog."]}
        >>> load_conversations(Dataset.from_dict(rows))[0]["messages"]
        [{'role': 'user', 'content': 'What is it?'}, {'role': 'assistant', 'content': 'A dog.'}]
        >>> data = load_conversations("llava_instruct_150k.json", images="train2017")  # doctest: +SKIP
        >>> data = load_conversations("HuggingFaceM4/the_cauldron", name="vqav2")      # doctest: +SKIP
    """
    known = (MESSAGES, IMAGES, PROMPT, COMPLETION)
    if unknown := [name for name in columns or {} if name not in known]:
        raise ValueError(f"`columns` has the keys {unknown}. It maps our names {known} to those of the data.")
    request = Request(
        "load_conversations",
        source,
        images,
        columns,
        split,
        allow_outside,
        load_dataset_options,
        num_proc,
        bad_rows=bad_rows,
    )
    files = {} if request.path is None or not request.path.exists() else _json_files(request.path)
    if files:
        request.validate_options()
        if not allow_outside:
            validate_inside(map(str, files.values()), request.roots, source)
        splits = {name: _from_records(file, request) for name, file in choose_split(files, split).items()}
    else:
        splits = {name: _from_dataset(part.with_format(None), request) for name, part in request.load(split).items()}
    request.validate_named_files(splits)
    options = {"log_path": unreadable_log, "num_proc": num_proc, "max_pixels": max_pixels}
    return one_or_all(keep_readable(splits, check_images, column=IMAGES, **options))


def _json_files(path: Path) -> dict[str, Path]:
    """Split → file of JSON; none where `datasets` reads the path."""
    if path.is_file():
        return {UNSPLIT: path} if ending(path).lower() in (".json", ".jsonl") else {}
    if is_saved(path):
        return {}
    found = sorted(file for file in path.iterdir() if ending(file).lower() in (".json", ".jsonl") and file.is_file())
    found = [file for file in found if not file.name.startswith("dataset_info")]  # datasets' own
    if len(found) == 1:
        return {UNSPLIT: found[0]}
    splits = {SPLIT_FOLDERS.get(file.name.partition(".")[0].lower()): file for file in found}
    if found and None not in splits and len(splits) == len(found):
        return splits
    if not found and any(file.suffix in ARROW_SUFFIXES for file in path.rglob("*")):
        return {}
    names = [file.name for file in found] if found else sorted(entry.name for entry in path.iterdir())[:10]
    why = "and it is not known which is meant: name it" if found else "of which it recognises nothing"
    raise ValueError(f"load_conversations was given {path}, which holds {names}, {why}. {_RULES}")


_FIRST = 1 << 20  # characters of a file of JSON in which its first row ends


def json_fields(path: Path) -> list[str] | None:
    """The fields of the first row of a file of JSON, or of the one in a folder; None where it holds something else."""
    try:
        files = _json_files(path)
    except ValueError:
        return None
    for file in files.values():
        if path.is_dir() and not file.resolve().is_relative_to(path.resolve()):
            return None  # a link that leads elsewhere is not opened: reading the source refuses it
        with open_text(file) as opened:
            text = opened.read(_FIRST).lstrip().removeprefix("[").lstrip()
        try:
            first, _ = json.JSONDecoder().raw_decode(text)
        except (ValueError, RecursionError):
            return None
        return list(first) if isinstance(first, dict) else None
    return None


def find_conversations(fields: Sequence[str], columns: Mapping[str, Any] | None = None) -> dict[str, str] | None:
    """The `columns` of `load_conversations` for data with these fields; None where they hold captions, or neither."""
    named = dict(columns or {})
    if {MESSAGES, PROMPT, COMPLETION} & set(named):
        return named
    if isinstance(named.get(CAPTION), str) and named[CAPTION] in fields and named[CAPTION] in ALIASES[MESSAGES]:
        named[MESSAGES] = named.pop(CAPTION)
        return {IMAGES if name == IMAGE else name: theirs for name, theirs in named.items()}
    if CAPTION in named or names_captions(fields):
        return None
    if find_alias(fields, ALIASES[MESSAGES]) or any(set(pair) <= set(fields) for pair in PAIRS):
        return {IMAGES if name == IMAGE else name: theirs for name, theirs in named.items()}
    return None


@dataclass(frozen=True)
class _Form:
    """Where a conversation stands: in one column of messages or in two of texts; and its images."""

    texts: tuple[str, ...]
    images: str | None

    @classmethod
    def of(cls, found: Iterable[str], request: Request) -> _Form:
        """The form of data with these columns."""
        found, named = list(found), request.columns or {}
        pair = next((pair for pair in PAIRS if set(pair) <= set(found)), None)
        if MESSAGES in named:
            texts = (named[MESSAGES],)
        elif PROMPT in named or COMPLETION in named:
            texts = (named.get(PROMPT, PROMPT), named.get(COMPLETION, COMPLETION))
        else:
            texts = tuple(find_alias(found, ALIASES[MESSAGES])) or pair or (MESSAGES,)
        images = named.get(IMAGES) or next(iter(find_alias(found, ALIASES[IMAGES])), None)
        needed = [*texts, *([images] if images else [])]
        remedy = "Name yours: columns={'messages': ...}, or {'prompt': ..., 'completion': ...} (hf-curriculum score: "
        remedy += f"--column messages=...). {_RULES}"
        require_columns(found, needed, reader="`load_conversations` reads conversations.", remedy=remedy)
        lost = [name for name in (MESSAGES, IMAGES) if name in found and name not in needed]
        if lost:
            raise ValueError(
                f"The data has columns {lost} already, which {needed} would overwrite. Remove or rename them first."
            )
        if images is None and request.images:
            because = f"the data has no column {' or '.join(ALIASES[IMAGES])} that names images"
            validate_unused({"images": str(request.images)}, because)
        return cls(texts, images)


@dataclass(frozen=True)
class _Conversations:
    """Reads conversations: rows of columns → `messages`, and why a row cannot be read.

    Args:
        form: where they stand.
        counts: how many images each row has, int64 (rows,); None where the data has none.
        alone: leave out where images stand.
    """

    form: _Form
    counts: np.ndarray | None
    alone: bool

    def __call__(self, batch: Mapping[str, list[Any]], rows: Sequence[int]) -> dict[str, list[Any]]:
        made: dict[str, list[Any]] = {MESSAGES: [], _PROBLEM: []}
        for row, *cells in zip(rows, *(batch[name] for name in self.form.texts), strict=True):
            problem, messages = None, []
            try:
                messages = self.read(cells, 0 if self.counts is None else int(self.counts[row]))
            except ConversationError as error:
                problem = str(error)
            made[MESSAGES].append(messages)
            made[_PROBLEM].append(problem)
        return made

    def read(self, cells: Sequence[Any], images: int) -> list[dict[str, Any]]:
        """The messages of a row, as they are written."""
        roles = (None,) if len(cells) == 1 else ("user", "assistant")
        messages = read_messages([one for cell, role in zip(cells, roles, strict=True) for one in _listed(cell, role)])
        if self.form.images is not None:
            messages = [Message(message.role, tuple(_with_marks(message.parts))) for message in messages]
        if not self.alone:
            messages = _placed(messages, images)
        if self.alone or self.counts is None:
            return [{"role": message.role, "content": message.text} for message in messages]
        return [{"role": message.role, "content": [_part(text) for text in message.parts]} for message in messages]

    def features(self) -> Features:
        """Of what is made."""
        text = Value("string")
        content = text if self.alone or self.counts is None else List({"type": text, "text": text})
        return Features({MESSAGES: List({"role": text, "content": content}), _PROBLEM: text})


_PROBLEM = "problem"


def _part(text: str | None) -> dict[str, str | None]:
    return {"type": "image" if text is None else "text", "text": text}


def _listed(cell: Any, role: str | None) -> list[Any]:
    """A cell as a list of messages with `role` and `content`; a text is what `role` says."""
    if cell is None:
        return []
    if isinstance(cell, str) and role is not None:
        return [{"role": role, "content": cell}]
    if isinstance(cell, Mapping):
        fields = {name: values for name, values in cell.items() if isinstance(values, (list, tuple))}
        lists = len(fields) == len(cell) > 0 and len({len(values) for values in fields.values()}) == 1
        cell = (
            [dict(zip(fields, values, strict=True)) for values in zip(*fields.values(), strict=True)]
            if lists
            else [cell]
        )
    if not isinstance(cell, (list, tuple)):
        raise ConversationError(f"it is {kind_of(cell)}, and a list of messages is needed")
    return [message for number, item in enumerate(cell) for message in _spoken(number, item)]


def _spoken(number: int, item: Any) -> list[dict[str, Any]]:
    """The messages of an item: one, or what user and assistant say."""
    fields = set(item) if isinstance(item, Mapping) else set()
    for who, what in (("role", "content"), ("from", "value")):
        if {who, what} <= fields:
            role = item[who]
            return [{"role": ROLE_OF.get(role, role) if isinstance(role, str) else role, "content": item[what]}]
    if {"user", "assistant"} <= fields:
        return [{"role": role, "content": item[role]} for role in ("user", "assistant")]
    raise ConversationError(
        f"message {number} is {str(item)[:60]!r}, and a mapping with `role` and `content`, `from` and `value`, or "
        "`user` and `assistant` is needed"
    )


def _with_marks(parts: Iterable[str | None]) -> Iterable[str | None]:
    """Parts with None where a text has the mark of an image; white space beside a mark goes."""
    for part in parts:
        pieces = [part] if part is None or MARK not in part else [piece.strip() for piece in part.split(MARK)]
        if len(pieces) == 1:
            yield pieces[0]
            continue
        for number, piece in enumerate(pieces):
            yield from ([None] if number else [])
            yield from ([piece] if piece else [])


def _placed(messages: list[Message], images: int) -> list[Message]:
    """Messages that show as many images as the row has."""
    shown = sum(message.num_images for message in messages)
    if shown == images:
        return messages
    if shown:
        raise ConversationError(f"it shows {shown} images and has {images}")
    first = next((place for place, message in enumerate(messages) if message.role == "user"), None)
    if first is None:
        raise ConversationError(f"it has {images} images, and no message of a user that would show them")
    shows = Message("user", (*[None] * images, *messages[first].parts))
    return [*messages[:first], shows, *messages[first + 1 :]]


def _from_records(file: Path, request: Request) -> Dataset:
    """The data set of a file of JSON."""
    records = content_of(file, request)
    if not isinstance(records, list) or not records or not all(isinstance(record, Mapping) for record in records):
        found = "no rows" if records == [] else "something else than a list of objects"
        raise ValueError(f"load_conversations does not recognise {file}, which holds {found}. {_RULES}")
    fields = list(dict.fromkeys(name for record in records for name in record))
    form = _Form.of(fields, request)
    others = shared_scalars(records, without=[*form.texts, form.images], left_out=request.left_out)
    cells = {name: [record.get(name) for record in records] for name in form.texts}
    named = None if form.images is None else [_names(record.get(form.images)) for record in records]
    wrong = {
        row: f"its `{form.images}` is no name of a file" for row, names in enumerate(named or []) if names is None
    }
    _validate(wrong, len(records), request)
    counts = None if named is None else np.array([len(names) for names in named])
    reader = _Conversations(form, counts, alone=request.images is False)
    made = reader(cells, range(len(records)))
    _validate({row: problem for row, problem in enumerate(made[_PROBLEM]) if problem}, len(records), request)
    columns = {MESSAGES: pa.array(made[MESSAGES], reader.features().arrow_schema.field(MESSAGES).type)}
    features = {MESSAGES: reader.features()[MESSAGES]}
    if named is not None and not reader.alone:
        columns[IMAGES], features[IMAGES] = _image_lists(named, request), List(Image())
    return _in_order(append_columns(Dataset.from_dict(others), columns, {}, features=features))


def _from_dataset(dataset: Dataset, request: Request) -> Dataset:
    """A loaded data set with `messages` and `images`; its other columns are not read or written."""
    form, alone = _Form.of(dataset.column_names, request), request.images is False
    counts = None
    if form.images is not None and alone:
        dataset = dataset.remove_columns(form.images)
    elif form.images is not None:
        dataset = _with_lists(dataset.rename_columns({form.images: IMAGES}), request)
        counts = list_lengths(dataset, IMAGES)
    reader = _Conversations(form, counts, alone)
    inputs = dataset.select_columns(list(form.texts))
    for name in form.texts:
        inputs = with_stored(inputs, name)
    made = inputs.map(
        reader,
        batched=True,
        with_indices=True,
        remove_columns=inputs.column_names,
        features=reader.features(),
        num_proc=request.num_proc,
        desc="Reading conversations",
    )
    _validate({row: problem for row, problem in enumerate(made[_PROBLEM]) if problem}, len(made), request)
    features = {MESSAGES: reader.features()[MESSAGES]}
    columns = {MESSAGES: read_column(made, MESSAGES)}
    dataset = append_columns(dataset, columns, {}, features=features, overwrite=True)
    return _in_order(dataset.remove_columns([name for name in form.texts if name != MESSAGES]))


def _in_order(dataset: Dataset) -> Dataset:
    ours = [name for name in (MESSAGES, IMAGES) if name in dataset.column_names]
    return dataset.select_columns([*ours, *(name for name in dataset.column_names if name not in ours)])


def _validate(problems: Mapping[int, str], rows: int, request: Request) -> None:
    """Raises if rows cannot be read."""
    if problems:
        row, problem = next(iter(problems.items()))
        where = "the data set" if request.path is None else request.path
        raise ValueError(
            f"{len(problems)} of the {rows} conversations of {where} cannot be read. The first, in row {row} (counted "
            f"from 0): {problem}. Correct these rows, or leave them out before: `dataset.filter(...)`."
        )


def _names(cell: Any) -> list[str] | None:
    """The names of images in a cell; None where it holds something else."""
    names = list(cell) if isinstance(cell, (list, tuple)) else [cell] if cell else []
    return names if all(isinstance(name, str) and name for name in names) else None


def _image_lists(named: Sequence[Sequence[str]], request: Request) -> pa.Array:
    """Lists of images by their names, as paths; they are looked for as `load_captioned` looks for them."""
    flat = [name for names in named for name in names]
    paths = iter(image_paths(flat, request.images or None, next(iter(request.roots), None)) if flat else [])
    cells = [[{"bytes": None, "path": next(paths)} for _ in names] for names in named]
    return pa.array(cells, Features({IMAGES: List(Image())}).arrow_schema.field(IMAGES).type)


def _with_lists(dataset: Dataset, request: Request) -> Dataset:
    """The data set with its column `images` as lists of `Image`."""
    feature = dataset.features[IMAGES]
    several = isinstance(feature, (List, LargeList))
    inner = feature.feature if several else feature
    if inner in (Value("string"), Value("large_string")):
        named = [_names(cell) for cell in dataset[IMAGES]]
        wrong = {row: "its images are no names of files" for row, names in enumerate(named) if names is None}
        _validate(wrong, len(dataset), request)
        values = {IMAGES: _image_lists(named, request)}
        return append_columns(dataset, values, {}, features={IMAGES: List(Image())}, overwrite=True)
    if request.images:
        raise ValueError(
            f"`images={str(request.images)!r}` was given, but the data holds its images itself ({feature}), so the "
            "folder would not be read. Leave `images` out."
        )
    record = isinstance(inner, dict) and set(inner) == {"bytes", "path"}
    if not (isinstance(inner, Image) or record or inner in (Value("binary"), Value("large_binary"))):
        raise ValueError(
            f"The column taken for `images` holds {feature}, and images are `datasets.Image`, bytes or names of "
            "files, one or a list of them in a row. Cast it first, or name another column: columns={'images': ...}."
        )
    if several and isinstance(inner, Image):
        decoded = replace(feature, feature=replace(inner, decode=True))
        return replace_table(dataset, dataset.data, Features({**dataset.features, IMAGES: decoded}))
    if several:
        return dataset.cast_column(IMAGES, List(Image()))
    dataset = dataset.cast_column(IMAGES, Image())
    features = Features({**dataset.features, IMAGES: List(Image())})
    options = {"batched": True, "batch_size": 100, "features": features, "desc": "A list of images per row"}
    return dataset.with_format("arrow").map(_in_lists, **options).with_format(None)


def _in_lists(table: pa.Table) -> pa.Table:
    """A table whose images are lists of one, or of none."""
    images = table.column(IMAGES).combine_chunks()
    images = images.combine_chunks() if isinstance(images, pa.ChunkedArray) else images
    there = images.is_valid()
    offsets = np.concatenate([[0], np.cumsum(there.to_numpy(zero_copy_only=False))]).astype(np.int32)
    lists = pa.ListArray.from_arrays(pa.array(offsets), images.filter(there))
    return table.set_column(table.column_names.index(IMAGES), IMAGES, lists)
