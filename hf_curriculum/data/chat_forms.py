"""The forms of chat data: what a row's columns say, as messages of texts and images in their order."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time
from itertools import chain
from typing import Any, NamedTuple
from urllib.parse import unquote

from datasets import Json, LargeList, List

from hf_curriculum.config import kind_of, parse_json
from hf_curriculum.data.conversations import ROLES, ConversationError, is_null, read_part

Part = str | dict[str, Any]
"""A text, or an image: `{"bytes": ..., "path": ...}`, both None where a column of the row holds it."""

PROMPT, COMPLETION, SYSTEM, HISTORY = "prompt", "completion", "system", "history"
PAIRS = (
    (PROMPT, COMPLETION),
    ("question", "answer"),
    ("query", "response"),
    ("instruction", "output"),
    ("input", "output"),
    *(("user", "assistant"), ("human", "assistant"), ("human", "gpt"), ("user", "bot")),
)
"""What is said by the user, and by the assistant: columns, or fields of an item."""
_MIXED = [(asked, answered) for asked, _ in PAIRS[:5] for _, answered in PAIRS[:5]]
ASKED = ((PROMPT, "instruction"), ("context",), ("input", "query", "question"))
"""What is said by the user in several columns, one per line in this order; at most one column of a group."""
_BESIDE = (
    *("choices", "options", "hint", "hints", "lecture", "passage", "document", "article", "background", "evidence"),
    *("premise", "hypothesis", "examples", "answer", "response", "output", "completion"),
)
"""Columns that belong to a question or answer them, and cannot be joined by a rule."""
_OPTION = re.compile(r"(?:(?:opt?|option|choice|ending|distractor|sol)s?[ _-]?(?:[a-z]|\d+)|[a-h])", re.IGNORECASE)
"""A column of one of the answers to choose from, as MMBench and others have them: `A`, `option_a`, `ending0`."""
REFUSED_LABELS = ("label", "kto_tag", "is_desirable", "desirable")
"""Columns whose `False`, or 0, says that an answer is a bad one."""
SYSTEMS = (SYSTEM, "system_prompt", "system_message")
PREFERENCES = (("chosen", "rejected"), ("chosen_messages", "rejected_messages"))
_ENDS = ("{0}s", "{0}", "{0}_path", "{0}_paths", "{0}_url", "{0}_urls", "{0}_file", "{0}_files")
SHOWN = (*(end.format("image") for end in _ENDS), "img", "imgs", "jpg", "jpeg", "png")
MEDIA = {f"{medium}s": tuple(end.format(medium) for end in _ENDS) for medium in ("video", "audio")}
"""Columns of images, and of what is not read."""
IGNORABLE = ("images", "videos", "audios", "weights", "tool_calls")
"""Why a row is refused, unless `ignore` names it."""

_WHO, _WHAT = ("role", "from"), ("content", "value", "text", "parts")
_OTHER_NAMES = {
    "user": ("human", "prompter"),
    "assistant": ("gpt", "chatgpt", "bard", "bing", "bot", "model", "ai", "function_call", "tool_call"),
    "tool": ("function", "function_response", "observation", "tool_response"),
}
ROLE_OF: dict[str, str] = {name: role for role, names in _OTHER_NAMES.items() for name in names}
"""Names of speakers, as ShareGPT's files and their kin have them → the role."""
_TRAINED = (
    *("weight", "loss_weight", "loss", "loss_scale", "loss_mask", "compute_loss", "output_with_loss"),
    *("train", "training", "trainable", "is_trainable", "do_train", "train_on"),
)
_SYSTEM_ROLES = ("system", "developer")
_MASKED = ("mask", "masked")
_RECORD = {"role", "from", "type", "text", "image", "image_url"}  # of a message, or of a part, one at least
_CALLS = ("tool_calls", "function_call")
_NUMBERS = ("index", "image_index", "idx")
"""Fields of a part that say which of the row's images it shows."""
_MARK = (  # `{0}` is a medium: <image>, <Image 1>, <image/>, <|image_pad|>, <image_token>, <ImageHere>, <__dj__image>
    r"<\|?(?:__dj__)?{0}(?:[ _:#-]?\d+|[ _-]?(?:pad|token|soft[ _]token|placeholder|here))?\s*/?\|?>|"
    r"<{0}_context>|<start_of_{0}>"
)
_IMAGE = rf"(?:{_MARK.format('image')}|<img[ _]?(?:context|token|pad|here|\d+)>)"
_WRAPPED = (
    rf"\(<image>\./</image>\)|<image>\./</image>|(?:<\|vision_start\|>|<img>)(?:{_IMAGE})+(?:<\|vision_end\|>|</img>)"
)
_NAMED = r"<img>([^<>]+)</img>"  # Qwen-VL's
_BRACKETS = r"\[\[?{0}(?:[ _:#-]?\d+)?\]\]?|\{{\{{?{0}(?:[ _:#-]?\d+)?\}}\}}?"
_IMAGE_MARK = re.compile(f"{_NAMED}|({_WRAPPED}|{_IMAGE})", re.IGNORECASE)
"""What stands in a text for an image, in the forms of several trainers."""
_LOOSE_MARK = re.compile(f"(?!x)x()|({_BRACKETS.format('(?:image|img)')}|<img ?/?>)", re.IGNORECASE)
"""What is a mark in a row with images that has no other, and a text in any other row."""
_OTHER_MARKS = {
    medium: re.compile(_MARK.format(names), re.IGNORECASE)
    for medium, names in (("videos", "video"), ("audios", "(?:audio|speech)"))
}
_OTHER_BRACKETS = {medium: re.compile(_BRACKETS.format(medium[:-1]), re.IGNORECASE) for medium in _OTHER_MARKS}
PLACEHOLDER: dict[str, Any] = {"bytes": None, "path": None}
_DATA = re.compile(r"(?:data:image/[\w.+-]+;base64,|(?=/9j/|iVBORw0KGgo|R0lGOD|UklGR))([A-Za-z0-9+/\s]{64,}={0,2})\s*")


class Turn(NamedTuple):
    """Who speaks, and what is said, with the images where they are shown."""

    role: str
    parts: tuple[Part, ...]

    @property
    def texts(self) -> list[str]:
        """The parts that are no images."""
        return [part for part in self.parts if isinstance(part, str)]


class JsonText(str):
    """A cell of `datasets.Json` as stored; texts such as "5" and "007" are stored as if they were numbers."""

    __slots__ = ()

    def value(self) -> Any:
        """What it holds."""
        try:
            return parse_json(self)
        except json.JSONDecodeError:
            return str(self)

    def content(self) -> Any:
        """A text, or a list of parts or messages; what else is JSON is taken for an answer in JSON."""
        value = self.value()
        is_list = isinstance(value, list) and all(isinstance(each, Mapping) and _RECORD & set(each) for each in value)
        return value if isinstance(value, str) or is_list else str(self)


def with_json(feature: Any, cell: Any, read: Callable[[str], Any] = JsonText) -> Any:
    """A cell whose `Json` was not decoded, with each of them read."""
    if cell is None:
        return None
    if isinstance(feature, Json):
        return read(cell)
    if isinstance(feature, (List, LargeList)):
        return [with_json(feature.feature, item, read) for item in cell]
    if isinstance(feature, dict):
        return {name: with_json(each, cell[name], read) for name, each in feature.items()}
    return cell


def json_content(text: str) -> Any:
    """What a cell of `Json` says where no text is JSON: a text, or a list of texts or records."""
    value = JsonText(text).value()
    return value if isinstance(value, (str, list, dict)) else text


def holds_json(feature: Any) -> bool:
    """Whether a feature is `Json`, or holds it at any depth."""
    if isinstance(feature, (List, LargeList)):
        return holds_json(feature.feature)
    return isinstance(feature, Json) or (isinstance(feature, dict) and any(map(holds_json, feature.values())))


def pair_in(names: Iterable[str]) -> tuple[str, str] | None:
    """The names of what is asked and of what is answered; usual pairs first."""
    names = set(names)
    return next((pair for pair in (*PAIRS, *_MIXED) if names.issuperset(pair)), None)


def asked_in(names: Collection[str], question: str) -> list[str]:
    """The names of what the user says, in the order of `ASKED`: the question, and one of each other group."""
    groups = ASKED if any(question in group for group in ASKED) else (*ASKED[:-1], (question,))
    return [
        question if question in group else name
        for group in groups
        if (name := _first((question, *group) if question in group else group, names))
    ]


def beside(names: Collection[str], read: Collection[str]) -> list[str]:
    """The names of what belongs to the question or the answer, and is not read."""
    known = dict.fromkeys((*chain(*ASKED), *_BESIDE, *filter(_OPTION.fullmatch, names)))
    return [name for name in known if name in names and name not in read]


def stored_image(value: Any) -> dict[str, Any] | None:
    """An image as `datasets.Image` stores it, of a name, bytes, base64, or a record with one of these."""
    if isinstance(value, Mapping):
        names = ("bytes", "path", "url", "data", "base64", "source", "file")
        return next((image for name in names if (image := stored_image(value.get(name)))), None)
    if isinstance(value, bytes):
        return {"bytes": value, "path": None}
    if not isinstance(value, str) or not value:
        return None
    if value.startswith("file://"):
        value = unquote(value.removeprefix("file://").removeprefix("localhost"))
    if "://" in value:
        raise ConversationError(
            f"it names the image {value[:80]!r}, and addresses are not fetched. Download it, name the file in its "
            "place, and give its folder as `images=`"
        )
    encoded = _DATA.fullmatch(value)
    try:
        return {"bytes": None, "path": value} if encoded is None else {"bytes": b64decode(encoded[1]), "path": None}
    except ValueError:  # its padding is wrong
        return None


class RowReader:
    """Reads the conversation of one row; `notes` has what is not kept.

    Args:
        ignore: of `IGNORABLE`.
    """

    def __init__(self, ignore: Sequence[str]) -> None:
        self.ignore = ignore
        self.notes: list[str] = []
        self.numbers: list[int] = []  # of the images that parts show

    def turns(self, cell: Any, role: str | None = None) -> list[Turn]:
        """The turns of a cell: a list of items, one, or JSON text of these; or a text that `role` says."""
        if is_null(cell):
            return []
        cell = cell if role is None else as_text(said(cell))
        if role is not None and (not isinstance(cell, (list, tuple, Mapping)) or _are_parts(cell)):
            return [Turn(role, self._parts(0, cell))]
        if role is not None and isinstance(cell, (list, tuple)) and not any(map(_is_container, cell)):
            raise ConversationError(f"its {role} says the list {str(cell)[:60]}, and one text or messages are needed")
        cell = opened(cell)
        if isinstance(cell, Mapping):
            cell = _rows_of(cell)
        if not isinstance(cell, (list, tuple)):
            raise ConversationError(f"it is {kind_of(cell)}, and a list of messages is needed")
        return [turn for number, item in enumerate(cell) for turn in self._item(number, opened(item))]

    def asked_and_answered(self, asked: Mapping[str, Any], answer: Any) -> list[Turn]:
        """The turns of what is asked, in one cell or several to be joined, and of the answer."""
        if is_null(said(answer)) or all(is_null(said(cell)) for cell in asked.values()):
            raise ConversationError(
                f"it asks {str(list(asked.values()))[:60]} and answers {str(answer)[:60]}: one of them is missing, "
                "and two messages of one speaker would follow each other"
            )
        cells = {name: text for name, cell in asked.items() if (text := as_text(said(cell))) not in (None, "", [], {})}
        for name, cell in cells.items() if len(cells) > 1 else ():
            if not isinstance(cell, str):
                raise ConversationError(
                    f"its `{name}` is {str(cell)[:60]!r}, and a text is needed where {', '.join(cells)} are joined"
                )
            if name != PROMPT and cell.strip() in cells.get(PROMPT, ""):
                raise ConversationError(
                    f"its `{PROMPT}` holds its `{name}` already, and they would be joined. Name one: "
                    f"columns={{'prompt': '{PROMPT}', 'completion': ...}}"
                )
        question = "\n".join(cells.values()) if len(cells) > 1 else next(iter((cells or asked).values()))
        return _continued(self.turns(question, "user"), self.turns(answer, "assistant"))

    def validate_beside(
        self, cells: Mapping[str, Any], more: Sequence[str], read: Sequence[str], is_named: bool
    ) -> None:
        """Raises if a row has `more` that belongs to its question or answer; notes it where those read were named."""
        texts = [said(cells[name]) for name in read]
        for name in more:
            cell = said(cells[name])
            if is_null(cell) or cell in ("", [], {}) or cell in texts:
                continue
            if is_named:
                self.notes.append(f"texts of `{name}` (a column of its own, no part of the conversation)")
            else:
                raise ConversationError(
                    f"it has `{name}`, which is no part of the conversation made of {' and '.join(map(repr, read))}. "
                    f"Write it into their texts, or leave it out with columns={{'prompt': {read[0]!r}, "
                    f"'completion': {read[-1]!r}}}"
                )

    def validate_label(self, name: str, cell: Any) -> None:
        """Raises if a row's answer is labelled as a bad one, unless `ignore` has weights."""
        value = _plain(cell)
        if is_null(value) or value in ("", [], {}) or not _says_no(value):
            return
        if "weights" not in self.ignore:
            raise ConversationError(
                f"it has `{name}`: {value!r}, so its answer is a bad one (as TRL's KTOTrainer reads it), and would be "
                'trained as a good one (ignore=["weights"] takes it so)'
            )
        self.notes.append(f"answers with `{name}`: {value!r} (taken as all others)")

    def history(self, cell: Any) -> list[Turn]:
        """Earlier turns: pairs of texts, or items."""
        turns: list[Turn] = []
        items = [] if is_null(cell) else opened(cell) or []
        if not isinstance(items, (list, tuple)):
            raise ConversationError(f"its `history` is {kind_of(cell)}, and a list of earlier turns is needed")
        for number, item in enumerate(items):
            if isinstance(item, (list, tuple)) and len(item) == 2:
                turns += self.asked_and_answered({PROMPT: item[0]}, item[1])
            else:
                turns += self._item(number, opened(item))
        return turns

    def with_system(self, turns: list[Turn], cell: Any) -> list[Turn]:
        """The turns after the row's own system message; a first message of the system stands instead of it."""
        cell = as_text(said(cell))
        if cell in (None, "", []):
            return turns
        if not isinstance(cell, str):
            raise ConversationError(f"its `system` is {kind_of(cell)}, and a text is needed")
        if turns and turns[0].role == "system":
            if turns[0].parts != (cell,):
                self.notes.append("`system` of rows whose messages begin with another one (which stays)")
            return turns
        return [Turn("system", (str(cell),)), *turns]

    def _item(self, number: int, item: Any) -> list[Turn]:
        """The turns of an item: one, or what user and assistant say."""
        pair, fields = None, {}
        if isinstance(item, Mapping):
            fields = {name: value for name, value in item.items() if not is_null(value)}  # Arrow fills with nulls
            who, what = _first(_WHO, fields), _first(_WHAT, fields)
            if who and (what or who == "role"):
                return [self._message(number, fields, who, what)]
            pair = pair_in(item)
        if pair is None:
            raise ConversationError(
                f"message {number} is {str(item)[:60]!r}, and a mapping with `role` and `content`, `from` and "
                "`value`, or `user` and `assistant` is needed"
            )
        asked = asked_in(fields, pair[0])
        self._count_others(number, fields, {*pair, SYSTEM, HISTORY, *asked})
        turns = self.history(fields.get(HISTORY))
        turns += self.asked_and_answered({name: fields.get(name) for name in asked}, fields.get(pair[1]))
        return self.with_system(turns, fields.get(SYSTEM))

    def _message(self, number: int, fields: dict[str, Any], who: str, what: str | None) -> Turn:
        role = said(fields[who])
        role = ROLE_OF.get(role.strip().lower(), role.strip().lower()) if isinstance(role, str) else role
        if role not in ROLES:
            raise ConversationError(f"message {number} is of the role {role!r}, and roles are {', '.join(ROLES)}")
        content = None if what is None else said(fields[what])
        calls = [name for name in _CALLS if _plain(fields.get(name))] if len(fields) > 2 or not content else []
        if calls and not content and "tool_calls" not in self.ignore:
            raise ConversationError(
                f"message {number} has `{calls[0]}` and no text, and calls of tools are not kept: an empty answer "
                'would be trained (ignore=["tool_calls"] takes it)'
            )
        if content is None and not calls:
            raise ConversationError(f"message {number} ({role}) has no content")
        if len(fields) > 2:
            self._count_others(number, fields, {who, what}, trains=role == "assistant")
        return Turn(role, self._parts(number, "" if content is None else content))

    def _count_others(
        self, number: int, fields: Mapping[str, Any], read: set[str | None], trains: bool = True
    ) -> None:
        """Notes fields that are not kept; raises where one says that the turn is not to be trained on."""
        for name, value in fields.items():
            value = _plain(value)
            if name in read or value is None or (not value and isinstance(value, (str, list, tuple, dict))):
                continue
            if trains and _says_untrained(name, value) and "weights" not in self.ignore:
                raise ConversationError(
                    f"message {number} has `{name}`: {value!r}, so it is not to be trained on, and `messages` cannot "
                    'hold that (ignore=["weights"] takes it as any other)'
                )
            self.notes.append(f"field `{name}` of messages (not kept)")

    def _parts(self, number: int, content: Any) -> tuple[Part, ...]:
        content = as_text(content)
        if isinstance(content, str):
            return (str(content),)
        content = [content] if isinstance(content, Mapping) else content
        if not isinstance(content, (list, tuple)):
            raise ConversationError(
                f"message {number} holds {kind_of(content)}, and a text or a list of parts is needed"
            )
        return tuple(self._part(number, _plain(part)) for part in content)

    def _part(self, number: int, part: Any) -> Part:
        said, image, read = read_part(number, part)
        if isinstance(part, Mapping):
            others = [name for name, value in part.items() if value not in (None, "", [], {}) and name not in read]
            self.notes += [f"field `{name}` of parts (not kept)" for name in others]
            if said is None and image is None:
                numbers = (str(part[name]).removesuffix(".0") for name in others if name in _NUMBERS)
                self.numbers += [int(number) for number in numbers if number.isdecimal()]
        if said is not None or image is None:
            return PLACEHOLDER if said is None else said
        stored = stored_image(image)
        if stored is None:
            raise ConversationError(f"message {number} has the image {str(image)[:60]!r}, which is no name of a file")
        return stored

    def with_marks(self, turns: list[Turn], shows: bool) -> list[Turn]:
        """The turns with images where texts mark them; with `ignore`, only where the row `shows` images."""
        _validate_rising(self.numbers, "parts")
        texts = [part for turn in turns for part in turn.texts]
        if not any(sign in text for text in texts for sign in "<[{"):
            return turns
        inside = any(not isinstance(part, str) for turn in turns for part in turn.parts)
        is_text = "images" in self.ignore and (inside or not shows)
        for text in texts:
            self._validate_marks(text)
        pattern, marks = _IMAGE_MARK, [mark for text in texts for mark in _IMAGE_MARK.finditer(text)]
        if not marks and shows and not inside:  # an answer of code may have brackets
            pattern, texts = _LOOSE_MARK, [part for turn in turns if turn.role != "assistant" for part in turn.texts]
            marks = [mark for text in texts for mark in pattern.finditer(text)]
        if not marks:
            return turns
        if is_text:
            self.notes += ["marks of images that a row does not have (read as text)"] * len(marks)
            return turns
        numbers = [int(digits) for mark in marks if mark[2] for digits in re.findall(r"\d+", mark[2])]
        _validate_rising(numbers, "marks")
        return [
            turn
            if pattern is _LOOSE_MARK and turn.role == "assistant"
            else Turn(turn.role, tuple(_marked(number, turn.parts, pattern)))
            for number, turn in enumerate(turns)
        ]

    def _validate_marks(self, text: str) -> None:
        for medium, pattern in _OTHER_MARKS.items():
            if mark := pattern.search(text):
                if medium not in self.ignore:
                    raise ConversationError(
                        f"its text has the mark `{mark[0]}`, and {medium} are not read: it would be trained as text "
                        f'(ignore=["{medium}"] takes it so)'
                    )
                self.notes.append(f"marks of {medium} (read as text)")
            elif mark := _OTHER_BRACKETS[medium].search(text):
                self.notes.append(f"texts with `{mark[0]}` (read as text)")

    def validate_medium(self, medium: str, cell: Any) -> None:
        """Raises if a row has videos or audios, unless they are ignored."""
        if is_null(cell) or (isinstance(cell, (str, list, tuple, dict)) and not cell):
            return
        if medium not in self.ignore:
            raise ConversationError(
                f"it has {medium}, which are not read: its answers would be trained without "
                f'(ignore=["{medium}"] takes it so)'
            )
        self.notes.append(f"{medium} of conversations (not read)")


def _validate_rising(numbers: Sequence[int], what: str) -> None:
    if numbers and list(numbers) != list(range(numbers[0], numbers[0] + len(numbers))):
        raise ConversationError(f"its {what} number the images {numbers}, and they are read in rising order alone")


def _first(names: Iterable[str], fields: Collection[str]) -> str | None:
    for name in names:
        if name in fields:
            return name
    return None


def _continued(asked: list[Turn], answered: list[Turn]) -> list[Turn]:
    """The turns of a prompt and of its completion, which may repeat the prompt, as TRL's preference pairs do."""
    prompt, again = ([turn for turn in turns if turn.role not in _SYSTEM_ROLES] for turns in (asked, answered))
    if again and again[0].role == "user":
        until = max((number for number, turn in enumerate(prompt, 1) if turn.role != "assistant"), default=0)
        system, other = ([turn for turn in turns if turn.role in _SYSTEM_ROLES] for turns in (asked, answered))
        if again[:until] == prompt[:until] and (not system or not other or system == other):
            return answered if other else system + answered
        problem = "its completion begins with a message of the user, which is not that of its prompt"
    elif prompt and again and prompt[-1].role == again[0].role == "assistant":
        problem = "its prompt ends with a message of the assistant, and its completion begins with another one"
    else:
        return asked + answered
    raise ConversationError(f"{problem}. If one of them is a whole conversation, name it: columns={{'messages': ...}}")


def _marked(number: int, parts: Sequence[Part], pattern: re.Pattern[str]) -> list[Part]:
    """Parts with images where their texts mark them: those that stand among the parts, if there are any."""
    images = [part for part in parts if not isinstance(part, str)]
    split = [list(_split(part, pattern)) if isinstance(part, str) else [] for part in parts]
    marks = sum(not isinstance(piece, str) for pieces in split for piece in pieces)
    if images and not marks:
        return list(parts)
    if images and marks != len(images):
        raise ConversationError(
            f"message {number} has {len(images)} images among its parts and {marks} marks of images"
        )
    left = iter(images)
    return [next(left, piece) if not isinstance(piece, str) else piece for pieces in split for piece in pieces]


def _split(text: str, pattern: re.Pattern[str]) -> Iterator[Part]:
    """A text around the images that it marks; white space beside a mark goes."""
    if not pattern.search(text):
        yield text
        return
    start = 0
    for mark in pattern.finditer(text):
        yield from filter(None, [text[start : mark.start()].strip()])
        yield (stored_image(mark[1].strip()) if mark[1] else None) or PLACEHOLDER
        start = mark.end()
    yield from filter(None, [text[start:].strip()])


def _are_parts(cell: Any) -> bool:
    return isinstance(cell, (list, tuple)) and all(
        isinstance(part, Mapping) and "type" in part and not {*_WHO} & set(part) for part in cell
    )


def said(cell: Any) -> Any:
    """A cell that is a text or a list of parts, also where it is stored as JSON."""
    return cell.content() if isinstance(cell, JsonText) else cell


def as_text(cell: Any) -> Any:
    """A number, truth value or date as text, the same from JSON and Arrow; null for NaN; others as they are."""
    if is_null(cell):
        return None
    if isinstance(cell, float) and cell.is_integer() and abs(cell) < 2**53:
        cell = int(cell)  # Arrow makes 3.0 of a 3 among floats
    if isinstance(cell, datetime) and cell.time() == time.min and cell.tzinfo is None:
        cell = cell.date()  # Arrow reads dates as times
    if isinstance(cell, date):
        return cell.isoformat()
    return json.dumps(cell) if isinstance(cell, (int, float)) else cell


def opened(cell: Any) -> Any:
    """A cell that holds a list or an object, also where it is the text of JSON."""
    cell = _plain(cell)
    value = JsonText(cell).value() if isinstance(cell, str) else cell
    return value if isinstance(value, (list, dict)) else cell


def _is_container(cell: Any) -> bool:
    return isinstance(opened(cell), (Mapping, list, tuple))


def _plain(value: Any) -> Any:
    return value.value() if isinstance(value, JsonText) else value


def _rows_of(cell: Mapping[str, Any]) -> list[Any]:
    """The items of a mapping of lists, as older `datasets` keep a list of records; or the mapping alone."""
    lists = {name: values for name, values in cell.items() if isinstance(values, (list, tuple))}
    if len(lists) == len(cell) > 0 and len({len(values) for values in lists.values()}) == 1:
        return [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]
    return [cell]


def _says_no(value: Any) -> bool:
    return value.strip().lower() in ("0", "0.0", "false", "no") if isinstance(value, str) else not value


def _says_untrained(name: str, value: Any) -> bool:
    return (name in _TRAINED and _says_no(value)) or (name in _MASKED and not _says_no(value))
