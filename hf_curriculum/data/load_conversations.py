"""The entry point to conversations of any usual form, with the images that they show."""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from datasets import (
    ClassLabel,
    Dataset,
    DatasetDict,
    DatasetInfo,
    Features,
    Image,
    Json,
    LargeList,
    List,
    Value,
    load_dataset_builder,
)

from hf_curriculum.columns import CAPTION, IMAGE, IMAGES, MESSAGES, require_columns
from hf_curriculum.config import redacted
from hf_curriculum.data.chat_forms import (
    COMPLETION,
    HISTORY,
    IGNORABLE,
    MEDIA,
    PAIRS,
    PLACEHOLDER,
    PREFERENCES,
    PROMPT,
    REFUSED_LABELS,
    SHOWN,
    SYSTEM,
    SYSTEMS,
    RowReader,
    Turn,
    asked_in,
    beside,
    holds_json,
    opened,
    pair_in,
    said,
    stored_image,
    with_json,
)
from hf_curriculum.data.conversations import ConversationError, is_null
from hf_curriculum.data.image_files import list_lengths, with_stored
from hf_curriculum.data.images import MAX_PIXELS
from hf_curriculum.data.readers.columns import ALIASES as COLUMNS
from hf_curriculum.data.readers.columns import image_paths, names_captions
from hf_curriculum.data.readers.files import content_of
from hf_curriculum.data.readers.folder import (
    JSON,
    SPLIT_FOLDERS,
    TABLES,
    find_files,
    find_parquet_beside_images,
    visible_files,
)
from hf_curriculum.data.readers.outside_files import validate_inside
from hf_curriculum.data.readers.tables import Records, find_alias, read_records, shared_scalars
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
from hf_curriculum.shapes import validate_arguments

logger: logging.Logger = logging.getLogger(__name__)

ALIASES: dict[str, tuple[str, ...]] = {
    MESSAGES: (MESSAGES, "conversations", "conversation", "texts"),
    IMAGES: SHOWN,
    SYSTEM: SYSTEMS,
    HISTORY: (HISTORY,),
}
_RULES = f"""It reads
- a Dataset or DatasetDict, the name of a data set on the Hub, a folder written by save_to_disk, *.parquet, *.arrow;
- .json (a list of objects), .jsonl, .csv and .tsv (each cell a text), compressed (.gz) or not;
- a folder with one of these files, or with train.json, ...;
with one of the columns {", ".join(ALIASES[MESSAGES])}: lists of messages with `role` and `content`, with `from` and
`value`, or with `user` and `assistant`; or with {" or ".join(map(" and ".join, PAIRS[:5]))}: texts, or such lists."""


@redacted()
@validate_arguments
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
    ignore: Sequence[str] = (),
    **load_dataset_options: Any,
) -> Dataset | DatasetDict:
    """Loads conversations of any usual form as `messages` with `images`, for TRL's trainers and our scorers.

    Columns: `messages` (a list of `role` and `content`), `images` (list of `datasets.Image`, decoded on access) where
    the data has any, and what else the source holds. A content is a text; where the data has images it is a list of
    `{"type": "text", "text": ...}` and `{"type": "image"}`, one of these for each image, in the order of `images`.
    What is not kept, such as other fields of a message, is counted in one warning.

    Forms: `messages`, ShareGPT's and LLaVA's `conversations` (`from`, `value`), the_cauldron's `texts` (`user`,
    `assistant`), `prompt` and `completion`, `question` and `answer`, Alpaca's `instruction`, `input` and `output`,
    ms-swift's `query`, `response` and `history`. What the user says in several columns is joined. A row's
    `system` becomes its first message, unless the messages begin with one, which then stays, as in LLaMA-Factory.
    Images stand where the text has `<image>` or a usual relative of it, or inside of the messages
    (`{"type": "image_url", ...}`, `<img>a.jpg</img>`). Where a conversation has images and no such mark, they go
    before the first text of the user.

    Args:
        source: a loaded data set, a name on the Hub, a folder, or a file: .json, .jsonl, .parquet, .arrow, or .csv and
            .tsv, whose cells are texts as they stand. (Of CSV on the Hub `datasets` makes numbers: a warning counts
            its rows.) A folder with several files at its top is an error unless they are splits, or all Parquet.
            Others below are counted.
        images: the folder of images that the rows name. None looks in the source's own folder, and in `images/` there.
            False loads text alone.
        columns: our name -> theirs: `{"messages": "chat", "images": "photo"}`, or `prompt` and `completion`, also
            `system` and `history`. Names left out are looked for.
        split: one split alone.
        check_images: decode each image once now. Rows with an unreadable one are left out, counted in a warning and
            named in a log. Verdicts are cached.
        unreadable_log: where that log is written, rather than to the cache of `datasets`.
        num_proc: processes that read conversations and check images.
        allow_outside: read images outside of the source's folder and of `images`: for a source that you trust.
        max_pixels: images of more pixels are not decoded, and count as unreadable (`check_images`).
        bad_rows: rows that cannot be read are an error that counts them. "drop" leaves them out and counts them. Such
            are rows that show more or fewer images than they have, and those that `ignore` names.
        ignore: takes rows that are refused otherwise, and counts them. "images": a mark such as `<image>` in a row
            without images is text. "videos", "audios": their marks are text, their columns as others. "weights": turns
            not to be trained on (`weight: 0`, a row's `label: False` or 0) are as all others. "tool_calls": answers
            that only call a tool are empty.
        load_dataset_options: further arguments of `datasets.load_dataset`, for sources that it loads.

    Returns:
        A `DatasetDict` where the source has splits and `split` names none, or else a `Dataset`.

    Raises:
        FileNotFoundError: the path, or the folder of images, does not exist, or holds none of the images.
        ValueError: no reader recognises the source, a column is missing, or an argument would have no effect. Or rows
            cannot be read (all are counted), or hold preference pairs. Or the source names images outside of its
            folder, or no image can be read.
        TypeError: the source is no data set, or a streamed one.

    Example:
        >>> rows = {"question": ["What is it?"], "answer": ["A dog."]}
        >>> load_conversations(Dataset.from_dict(rows))[0]["messages"]
        [{'role': 'user', 'content': 'What is it?'}, {'role': 'assistant', 'content': 'A dog.'}]
        >>> data = load_conversations("llava_instruct_150k.json", images="train2017")  # doctest: +SKIP
        >>> data = load_conversations("HuggingFaceM4/the_cauldron", name="vqav2")      # doctest: +SKIP
    """
    known = (MESSAGES, IMAGES, PROMPT, COMPLETION, SYSTEM, HISTORY)
    if unknown := [name for name in columns or {} if name not in known]:
        raise ValueError(f"`columns` has the keys {unknown}. It maps our names {known} to those of the data.")
    if not set(ignore) <= set(IGNORABLE):
        raise ValueError(f"`ignore={ignore!r}` was given. It is a list of some of {IGNORABLE}.")
    options = {"options": load_dataset_options, "num_proc": num_proc, "bad_rows": bad_rows}
    request = Request("load_conversations", source, images, columns, split, allow_outside, **options)
    files = {} if request.path is None or not request.path.exists() else _files_of_rows(request.path)
    folder = request.path if request.path is not None and request.path.is_dir() else None
    if files:
        request.validate_options()
        if not allow_outside:
            validate_inside(map(str, files.values()), request.roots, source)
        splits = {name: _from_records(file, request, ignore) for name, file in choose_split(files, split).items()}
    else:
        if folder is not None:  # `datasets` would load the images beside it alone
            request = replace(request, source=find_parquet_beside_images(folder) or source)
        loaded = request.load(split)
        if request.path is not None:
            rows = sum(len(part) for part in loaded.values() if part.info.builder_name == "csv")
            request.left_out.add(
                "cells of CSV as written, of which `datasets` makes numbers: name the file itself", rows
            )
        splits = {name: _from_dataset(part.with_format(None), request, ignore) for name, part in loaded.items()}
    if folder is not None and not is_saved(folder):
        _count_passed_over(folder, list(files.values()), request)
    request.validate_named_files(splits)
    checks = {"log_path": unreadable_log, "num_proc": num_proc, "max_pixels": max_pixels}
    splits = keep_readable(splits, check_images, column=IMAGES, **checks)
    request.left_out.report(source if request.path else "The data set", splits.values())
    return one_or_all(splits)


_ROWS = (*TABLES, *JSON)


def _files_of_rows(path: Path) -> dict[str, Path]:
    """Split → file of JSON or of a table; none where `datasets` reads the path."""
    if path.is_file():
        if path.name.lower().endswith(_ROWS):
            return {UNSPLIT: path}
        if path.suffix in ARROW_SUFFIXES:
            return {}
        raise ValueError(f"load_conversations does not recognise {path} by its ending {ending(path)!r}. {_RULES}")
    if is_saved(path):
        return {}
    files = [file for file in visible_files(path, (*_ROWS, *ARROW_SUFFIXES)) if not _is_info(file)]
    rows = [file for file in files if file.suffix not in ARROW_SUFFIXES]
    if not rows and (files or any(file.suffix in ARROW_SUFFIXES for file in path.rglob("*"))):
        return {}
    if len(files) == 1:
        return {UNSPLIT: files[0]}
    splits = {SPLIT_FOLDERS.get(file.name.partition(".")[0].lower()): file for file in files}
    if files == rows != [] and None not in splits and len(splits) == len(files):
        return splits
    names = [file.name for file in files] if files else sorted(entry.name for entry in path.iterdir())[:10]
    why = "and it is not known which is meant: name it" if files else "of which it recognises nothing"
    raise ValueError(f"load_conversations was given {path}, which holds {names}, {why}. {_RULES}")


def _is_info(file: Path) -> bool:
    return file.name.startswith("dataset_info")  # datasets' own


def _count_passed_over(folder: Path, read: Sequence[Path], request: Request) -> None:
    """Counts the files of rows below a folder that are not `read`, or by `datasets` where none are."""
    if not read and request.path.is_file():
        read = [request.path]
    elif not read:
        read = list(chain(*load_dataset_builder(str(folder), **request.options).config.data_files.values()))
    known = {os.path.realpath(file) for file in read}
    others = [file for file in find_files(folder, (*_ROWS, *ARROW_SUFFIXES)) if os.path.realpath(file) not in known]
    others = [file.relative_to(folder) for file in others if not _is_info(file)]
    request.left_out.add("other files that may hold conversations (not read)", len(others), next(iter(others), None))


_FIRST = 1 << 20  # characters of a file of JSON in which its first row ends


def json_fields(path: Path) -> list[str] | None:
    """The fields of the first row of a file of rows, or of the one in a folder; None where it holds something else."""
    try:
        files = _files_of_rows(path)
    except ValueError:
        return None
    for file in files.values():
        if path.is_dir() and not file.resolve().is_relative_to(path.resolve()):
            return None  # a link that leads elsewhere is not opened: reading the source refuses it
        with open_text(file) as opened:
            text = opened.read(_FIRST).lstrip()
        try:
            if ending(file).lower() in (".csv", ".tsv"):
                reading = Request("load_conversations", file)
                header = read_records(text.partition("\n")[0], ".csv", reading.reject, reading.left_out).header
                return header if find_conversations(header) is not None else None
            text = text.removeprefix("[").lstrip()
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
    if CAPTION in named or (names_captions(fields) and find_alias(fields, COLUMNS[IMAGE])):
        return None
    if find_alias(fields, ALIASES[MESSAGES]) or _pair_of(fields):
        return {IMAGES if name == IMAGE else name: theirs for name, theirs in named.items()}
    return None


def _pair_of(names: Iterable[str]) -> tuple[str, str] | None:
    """The columns of what is asked and answered; of preference pairs, those of the pairs."""
    names = set(names)
    return next((pair for pair in PREFERENCES if names.issuperset(pair)), None) or pair_in(names)


@dataclass(frozen=True)
class _Form:
    """The columns of a conversation: one of messages or two of texts, what precedes or follows these, and images.

    `asked` are columns of what the user says, in their order. Not kept are `media`, by `MEDIA`, `beside` the
    conversation, `labels` of good and bad answers, and `rivals` of the column of images. `is_named`: the caller named
    the column of the question.
    """

    texts: tuple[str, ...]
    images: str | None = None
    asked: tuple[str, ...] = ()
    history: str | None = None
    system: str | None = None
    media: tuple[tuple[str, str], ...] = ()
    beside: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    rivals: tuple[str, ...] = ()
    is_named: bool = False

    @classmethod
    def of(cls, found: Iterable[str], request: Request) -> _Form:
        """The form of data with these columns."""
        found, named = list(found), request.columns or {}
        texts: tuple[str, ...] = tuple(find_alias(found, ALIASES[MESSAGES])) or pair_in(found) or (MESSAGES,)
        if MESSAGES in named:
            texts = (named[MESSAGES],)
        elif PROMPT in named or COMPLETION in named:
            texts = (named.get(PROMPT, PROMPT), named.get(COMPLETION, COMPLETION))
        else:
            _validate_no_preferences(found, texts)
        others = {
            name: named.get(name) or next(iter(find_alias(found, ALIASES[name])), None)
            for name in (IMAGES, SYSTEM, HISTORY)
        }
        remedy = "Name yours: columns={'messages': ...}, or {'prompt': ..., 'completion': ...} (hf-curriculum score: "
        remedy += f"--column messages=...). {_RULES}"
        needed = list(filter(None, [*texts, *others.values()]))
        require_columns(found, needed, reader="`load_conversations` reads conversations.", remedy=remedy)
        lost = [name for name in (MESSAGES, IMAGES) if name in found and name not in needed]
        if lost:
            raise ValueError(
                f"The data has columns {lost} already, which {needed} would overwrite. Remove or rename them first."
            )
        asked, unread = [], []
        if len(texts) > 1:
            is_named = PROMPT in named and texts[0] != "instruction"  # Alpaca's input belongs to its instruction
            asked = [texts[0]] if is_named else asked_in([name for name in found if name not in needed[1:]], texts[0])
            unread = beside(found, needed + asked)
        media = tuple((medium, name) for medium, names in MEDIA.items() for name in names if name in found)
        labels = tuple(name for name in REFUSED_LABELS if name in found and name not in needed)
        columns = (others[IMAGES], tuple(asked), others[HISTORY], others[SYSTEM])
        chosen = others[IMAGES] if IMAGES not in named and request.images is not False else None
        rivals = tuple(name for name in SHOWN if chosen and name in found and name != chosen and "url" not in name)
        return cls(texts, *columns, media, tuple(unread), labels, rivals, PROMPT in named)

    @property
    def taken(self) -> list[str]:
        """The columns that `messages` and `images` stand for."""
        columns = [*self.texts, self.images, *self.asked, self.history, self.system]
        return list(dict.fromkeys(filter(None, columns)))

    @property
    def validated(self) -> list[str]:
        """The columns that say why a row would be trained wrongly."""
        return [*(name for _, name in self.media), *self.beside, *self.labels, *self.rivals]


def _validate_no_preferences(found: Sequence[str], texts: Sequence[str]) -> None:
    for chosen, rejected in PREFERENCES:
        if {chosen, rejected} <= set(found):
            asked = next((name for name in (*texts, *(asked for asked, _ in PAIRS)) if name in found), None)
            instead = {MESSAGES: chosen} if asked is None else {PROMPT: asked, COMPLETION: chosen}
            raise ValueError(
                f"The data holds preference pairs (`{chosen}`, `{rejected}`), and `messages` is one conversation, so "
                f"answers would be lost. Load those of one side, columns={instead}, then the others in the same way; "
                "TRL's DPOTrainer reads such pairs without `load_conversations`."
            )


@dataclass(frozen=True)
class _Conversations:
    """Reads conversations: rows of columns → `messages`, the images, what is not kept, and why rows cannot be read.

    Args:
        form: where they stand.
        ignore: as `load_conversations` takes it.
        features: of columns with JSON inside, which come as stored.
        named: whether the column of images names them.
        counts: how many images each row has, int64 (rows,), where the column holds them.
        alone: leave out where images stand.
        parts: write contents as lists of parts, because there are images.
    """

    form: _Form
    ignore: tuple[str, ...]
    features: Mapping[str, Any] = field(default_factory=dict)
    named: bool = True
    counts: np.ndarray | None = None
    alone: bool = False
    parts: bool = False

    def __call__(self, batch: Mapping[str, list[Any]], rows: Sequence[int]) -> dict[str, list[Any]]:
        made: dict[str, list[Any]] = {MESSAGES: [], IMAGES: [], _NOTES: [], _PROBLEM: []}
        names = list(batch)
        kinds = [self.features.get(name) for name in names]
        for row, *cells in zip(rows, *batch.values(), strict=True):
            cells = [cell if kind is None else with_json(kind, cell) for kind, cell in zip(kinds, cells, strict=True)]
            problem, messages, images, reader = None, [], [], RowReader(self.ignore)
            try:
                turns, images = self.read(reader, dict(zip(names, cells, strict=True)), row)
                messages = [{"role": turn.role, "content": self._content(turn)} for turn in turns]
            except ConversationError as error:
                problem, reader.notes = str(error), []
            for name, value in ((MESSAGES, messages), (IMAGES, images), (_NOTES, reader.notes), (_PROBLEM, problem)):
                made[name].append(value)
        return made

    def read(self, reader: RowReader, cells: Mapping[str, Any], row: int) -> tuple[list[Turn], list[dict[str, Any]]]:
        """The turns of a row, and the images that it names."""
        form, texts = self.form, [cells[name] for name in self.form.texts]
        if is_null(texts[-1]) or all(is_null(cells[name]) for name in form.asked or form.texts):
            missing = form.texts if all(map(is_null, texts)) else form.texts[-1 if is_null(texts[-1]) else 0 :][:1]
            raise ConversationError(f"it has no {' and no '.join(f'`{name}`' for name in missing)}")
        for name in form.labels:
            reader.validate_label(name, cells[name])
        if len(texts) == 1:
            turns = reader.turns(texts[0])
        else:
            read = [*form.asked, form.texts[1]]
            reader.validate_beside(cells, form.beside, read, form.is_named)
            turns = reader.asked_and_answered({name: cells[name] for name in form.asked}, texts[1])
        turns = [*reader.history(cells.get(form.history or "")), *turns]
        turns = reader.with_system(turns, cells.get(form.system or ""))
        for medium, column in form.media:
            reader.validate_medium(medium, cells[column])
        for name in form.rivals:
            if (names := _called(cells[name])) and names != _called(cells[form.images]):
                raise ConversationError(
                    f"it has {names!r:.80} in `{name}`, and other images in `{form.images}`. Name the column to read: "
                    f"columns={{'images': '{form.images}'}}"
                )
        own = [] if form.images is None or not self.named else _names(form.images, cells[form.images])
        count = len(own) if self.counts is None else int(self.counts[row])
        shows = count > 0 or not self.named
        turns = reader.with_marks(turns, shows)
        if self.alone and not shows:
            lost = sum(turn.parts.count(PLACEHOLDER) for turn in turns)
            reader.notes += ["marks of images that a row does not have (left out with images=False)"] * lost
        if not any(text.strip() for turn in turns if turn.role == "assistant" for text in turn.texts):
            reader.notes.append("answers of conversations that have none (the rows stay)")
        return (turns, []) if self.alone else _placed(turns, own, count)

    def _content(self, turn: Turn) -> Any:
        if not self.parts:
            return "\n".join(turn.texts)
        return [
            {"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "text": None}
            for part in turn.parts
        ]

    def result_features(self) -> Features:
        """Of what is made."""
        text = Value("string")
        content = List({"type": text, "text": text}) if self.parts else text
        image = {"bytes": Value("binary"), "path": text}
        messages = List({"role": text, "content": content})
        return Features({MESSAGES: messages, IMAGES: List(image), _NOTES: List(text), _PROBLEM: text})


_NOTES, _PROBLEM = "notes", "problem"


def _names(column: str, cell: Any) -> list[dict[str, Any]]:
    """The images that a cell names."""
    cell = [] if is_null(cell) else opened(said(cell)) or []
    images = [stored_image(name) for name in (cell if isinstance(cell, (list, tuple)) else [cell])]
    if None in images:
        raise ConversationError(f"its `{column}` is no name of a file: {str(cell)[:60]!r}")
    return images


def _called(cell: Any) -> list[str]:
    """The files that a cell names, without their folders."""
    cell = [] if is_null(cell) else opened(said(cell)) or []
    return [os.path.basename(str(name)) for name in (cell if isinstance(cell, (list, tuple)) else [cell])]


def _placed(turns: list[Turn], own: list[dict[str, Any]], count: int) -> tuple[list[Turn], list[dict[str, Any]]]:
    """Turns that show as many images as the row has, and those images that the row names, in their order."""
    shown = [part for turn in turns for part in turn.parts if not isinstance(part, str)]
    inside = [part for part in shown if any(part.values())]
    if inside and ((count and own != inside) or len(inside) < len(shown)):
        raise ConversationError(
            f"it names {len(inside)} of the {len(shown)} images that it shows in its messages, and has {count} in its "
            "column of images"
        )
    if inside or len(shown) == count:
        return turns, inside or own
    if shown:
        remedy = "columns={'images': ...} names their column, ignore=['images'] takes a mark such as <image> as text"
        raise ConversationError(f"it shows {len(shown)} images and has {count}" + f" ({remedy})" * (count == 0))
    first = next((place for place, turn in enumerate(turns) if turn.role == "user"), None)
    if first is None:
        raise ConversationError(f"it has {count} images, and no message of a user that would show them")
    shows = Turn("user", (*[PLACEHOLDER] * count, *turns[first].parts))
    return [*turns[:first], shows, *turns[first + 1 :]], own


def _from_records(file: Path, request: Request, ignore: Sequence[str]) -> Dataset:
    """The data set of a file of JSON."""
    content = content_of(file, request)
    one = isinstance(content, Mapping) and (find_alias([*content], ALIASES[MESSAGES]) or _pair_of(content))
    rows = Records([content]) if one else content
    if not isinstance(rows, list) or not any(isinstance(row, (Mapping, list)) for row in rows):
        found = "no rows" if rows == [] else "something else than a list of objects"
        raise ValueError(f"load_conversations does not recognise {file}, which holds {found}. {_RULES}")
    for row, items in enumerate(rows):  # one of texts and answers is a row, and no turn of one conversation
        if isinstance(items, list) and any(pair_in(item) for item in items if isinstance(item, Mapping)):
            raise ValueError(
                f"{file}: {rows.place(row)} is a list of {len(items)} objects, {items[0]!r:.80}, and it is not known "
                "whether they are rows or the turns of one conversation. Write each row on a line of its own (or call "
                'a file of one list .json), or name the turns: {"messages": [...]}.'
            )
    records = [row if isinstance(row, Mapping) else {MESSAGES: row} for row in rows]
    fields = list(dict.fromkeys(name for record in records for name in record))
    form = _Form.of(fields, request)
    others = shared_scalars(records, without=form.taken, left_out=request.left_out)
    read = dict.fromkeys([*form.taken, *form.validated])
    cells = {name: [record.get(name) for record in records] for name in read}

    def reading(reader: _Conversations) -> Dataset:
        features = reader.result_features()
        table = pa.Table.from_pydict(reader(cells, range(len(records))), schema=features.arrow_schema)
        return Dataset(table, info=DatasetInfo(features=features))

    return _finished(Dataset.from_dict(others), [], _Conversations(form, tuple(ignore)), reading, request, rows.place)


def _from_dataset(dataset: Dataset, request: Request, ignore: Sequence[str]) -> Dataset:
    """A loaded data set with `messages` and `images`; its other columns are not read or written."""
    form = _Form.of(dataset.column_names, request)
    named = form.images is None or _holds_names(dataset.features[form.images])
    rivals = tuple(name for name in form.rivals if named and _holds_names(dataset.features[name]))
    for name in [name for name in form.rivals if name not in rivals and "_" not in name]:
        request.left_out.add(
            f"images of `{name}` beside `{form.images}` (a column of its own, not shown)", len(dataset)
        )
    labels = tuple(
        name for name in form.labels if not isinstance(dataset.features[name], ClassLabel)
    )  # of its classes
    form = replace(form, rivals=rivals, labels=labels)
    reader = _Conversations(form, tuple(ignore), named=named)
    if not named and request.images is False:
        dataset = dataset.remove_columns(form.images)
    elif not named:
        dataset = _with_lists(dataset.rename_columns({form.images: IMAGES}), request)
        reader = replace(reader, counts=list_lengths(dataset, IMAGES))
    names = [name for name in form.taken if named or name != form.images]
    inputs = dataset.select_columns(list(dict.fromkeys([*names, *form.validated])))
    reader = replace(reader, features={name: each for name, each in inputs.features.items() if holds_json(each)})
    for name in inputs.column_names:
        inputs = with_stored(inputs, name, json_too=True)
    options = {"batched": True, "with_indices": True, "num_proc": request.num_proc, "desc": "Reading conversations"}
    options["remove_columns"] = inputs.column_names

    def reading(reader: _Conversations) -> Dataset:
        return inputs.map(reader, features=reader.result_features(), **options)

    return _finished(dataset, names, reader, reading, request)


def _finished(
    others: Dataset,
    read: Sequence[str],
    reader: _Conversations,
    reading: Callable[[_Conversations], Dataset],
    request: Request,
    place: Callable[[int], str] = "Row {} (counted from 0)".format,
) -> Dataset:
    """The others of a data set's columns with `messages` and `images`, for those `read`; without unreadable rows."""
    alone = request.images is False
    reader = replace(reader, alone=alone, parts=reader.form.images is not None and not alone)
    made = reading(reader)
    if not (reader.parts or alone) and list_lengths(made, IMAGES).any():  # images inside of messages
        reader = replace(reader, parts=True)
        made = reading(reader)
    rows = _readable_rows(made, request, place)
    if request.images and not reader.parts:
        because = "the data has no column images or image that names images, nor do its messages"
        validate_unused({"images": str(request.images)}, because)
    if len(rows) < len(made):
        made, others = made.select(rows), others.select(rows) if len(others) else others
    notes = (note for batch in made.select_columns([_NOTES]).iter(10_000) for row in batch[_NOTES] for note in row)
    for note, count in Counter(notes).items():
        request.left_out.add(note, count)
    columns = {MESSAGES: read_column(made, MESSAGES)}
    features = {MESSAGES: reader.result_features()[MESSAGES]}
    if reader.parts and reader.named:
        columns[IMAGES], features[IMAGES] = _image_lists(made[IMAGES], request), List(Image())
    full = append_columns(others, columns, {}, features=features, overwrite=True)
    return _in_order(full.remove_columns([name for name in read if name not in columns]))


def _readable_rows(made: Dataset, request: Request, place: Callable[[int], str]) -> np.ndarray:
    """The numbers of rows that can be read, int64 (rows,); others are an error, or counted (`bad_rows="drop"`)."""
    problems = read_column(made, _PROBLEM)
    is_bad = problems.is_valid().to_numpy(zero_copy_only=False)
    bad = np.flatnonzero(is_bad)
    if len(bad):
        first = f"{place(int(bad[0]))}: {problems[int(bad[0])]}"
        where = "the data set" if request.path is None else request.path
        if request.bad_rows == "error" or is_bad.all():
            raise ValueError(
                f"{len(bad)} of the {len(made)} conversations of {where} cannot be read. {first}. "
                "Correct these rows, or leave them out with bad_rows='drop' (hf-curriculum score: --bad-rows drop)."
            )
        request.left_out.add("conversations that cannot be read", len(bad), first)
    return np.flatnonzero(~is_bad)


def _in_order(dataset: Dataset) -> Dataset:
    ours = [name for name in (MESSAGES, IMAGES) if name in dataset.column_names]
    return dataset.select_columns([*ours, *(name for name in dataset.column_names if name not in ours)])


def _image_lists(images: Sequence[Sequence[Mapping[str, Any]]], request: Request) -> pa.Array:
    """Lists of images, their names as paths; they are looked for as `load_captioned` looks for them."""
    flat = [image["path"] for row in images for image in row if image["bytes"] is None]
    paths = iter(image_paths(flat, request.images or None, next(iter(request.roots), None)) if flat else [])
    cells = [
        [{"bytes": image["bytes"], "path": next(paths) if image["bytes"] is None else None} for image in row]
        for row in images
    ]
    return pa.array(cells, Features({IMAGES: List(Image())}).arrow_schema.field(IMAGES).type)


def _holds_names(feature: Any) -> bool:
    """Whether a column of images names them."""
    inner = feature.feature if isinstance(feature, (List, LargeList)) else feature
    return isinstance(inner, Json) or (isinstance(inner, Value) and inner.dtype in ("string", "large_string", "null"))


def _with_lists(dataset: Dataset, request: Request) -> Dataset:
    """The data set with its column `images` as lists of `Image`."""
    feature = dataset.features[IMAGES]
    several = isinstance(feature, (List, LargeList))
    inner = feature.feature if several else feature
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
