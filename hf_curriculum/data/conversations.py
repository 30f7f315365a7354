"""Conversations: what a row of `messages` says, in any of the forms that chat data has."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from hf_curriculum.config import kind_of

ROLES = ("system", "developer", "user", "assistant", "tool")
"""Who speaks, as in `transformers`' chat templates."""

Part = Literal["assistant", "user", "system", "all"]
"""Whose messages are read of a conversation."""
Turns = Literal["all", "first", "last"]
"""Which of these messages are read."""


class Message(NamedTuple):
    """Who speaks, and what is said: texts, and None where an image stands."""

    role: str
    parts: tuple[str | None, ...]

    @property
    def text(self) -> str:
        """The texts, one per line."""
        return "\n".join(part for part in self.parts if part is not None)

    @property
    def num_images(self) -> int:
        """Images that the message shows."""
        return self.parts.count(None)


class ConversationError(ValueError):
    """Why a row's conversation cannot be read."""


def is_null(value: Any) -> bool:
    """Whether a cell is empty: null, or NaN and infinity, which pandas writes for it."""
    return value is None or (isinstance(value, float) and not math.isfinite(value))


def is_conversation(cell: Any) -> bool:
    """Whether a cell is a list of messages, by its outer form: an empty list is one."""
    if isinstance(cell, Mapping):
        return isinstance(cell.get("role"), (list, tuple)) and isinstance(cell.get("content"), (list, tuple))
    return isinstance(cell, (list, tuple)) and (not cell or any(map(_is_message, cell)))


def _is_message(item: Any) -> bool:
    return isinstance(item, Mapping) and {"role", "content"} <= set(item)


def read_messages(cell: Any) -> list[Message]:
    """The messages of one row.

    Args:
        cell: a list of `{"role": ..., "content": ...}`, or the mapping of lists that `datasets` makes of it. A content
            is a text, or a list of parts: `{"type": "text", "text": ...}` or `{"type": "image"}`.

    Raises:
        ConversationError: it is no such list, a role is unknown, or a part is neither text nor image.

    Example:
        >>> read_messages([{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]}])
        [Message(role='user', parts=(None, 'What is it?'))]
    """
    if isinstance(cell, Mapping) and {"role", "content"} <= set(cell):
        if not isinstance(cell["role"], (list, tuple)):
            raise ConversationError("it is one message, and a list of messages is needed")
        roles, contents = cell["role"], cell["content"]
        if not isinstance(contents, (list, tuple)) or len(roles) != len(contents):
            raise ConversationError("its roles and its contents are not equally many")
        cell = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]
    if not isinstance(cell, Sequence) or isinstance(cell, (str, bytes)):
        raise ConversationError(f"it is {kind_of(cell)}, and a list of messages with `role` and `content` is needed")
    return [_message(number, message) for number, message in enumerate(cell)]


def _message(number: int, message: Any) -> Message:
    if not _is_message(message):
        raise ConversationError(
            f"message {number} is {str(message)[:60]!r}, and a mapping with `role` and `content` is needed"
        )
    role, content = message["role"], message["content"]
    if role not in ROLES:
        raise ConversationError(f"message {number} is of the role {role!r}, and roles are {', '.join(ROLES)}")
    content = None if is_null(content) else content
    if isinstance(content, (int, float)):  # `datasets.Json` gives the text "5" as a number
        content = json.dumps(content)
    if content is None or isinstance(content, str):
        return Message(role, (content or "",))
    if not isinstance(content, Sequence):
        raise ConversationError(f"message {number} holds {kind_of(content)}, and a text or a list of parts is needed")
    return Message(role, tuple(read_part(number, part)[0] for part in content))


_TEXT_KINDS, _IMAGE_KINDS = ("text", "input_text", "output_text"), ("image", "image_url", "input_image")
_TEXT_NAMES = ("text", "value", "content")
_IMAGE_NAMES = ("image", "image_url", "url", "path", "base64", "value", "source", "data")


def read_part(number: int, part: Any) -> tuple[str | None, Any, set[str]]:
    """The text of a part of message `number`, or None and its image where it names one; and the fields read."""
    if isinstance(part, str):
        return part, None, set()
    fields = {name: value for name, value in part.items() if not is_null(value)} if isinstance(part, Mapping) else {}
    kind = fields.get("type")
    if kind in _TEXT_KINDS or (kind is None and isinstance(fields.get("text"), str)):
        name = next((name for name in _TEXT_NAMES if isinstance(fields.get(name), str)), None)
        if name is None:
            raise ConversationError(f"message {number} has a part of text without its `text`: {str(part)[:60]!r}")
        return fields[name], None, {"type", name}
    if kind in _IMAGE_KINDS or (kind is None and {"image", "image_url"} & set(fields)):
        name = next((name for name in _IMAGE_NAMES if name in fields), "type")
        return None, None if name == "type" else fields[name], {"type", name}
    raise ConversationError(f"message {number} has the part {str(part)[:60]!r}, and parts are texts and images")


def text_of(messages: Sequence[Message], part: Part = "assistant", turns: Turns = "all") -> str:
    """What some of the messages say, one per line; images are left out.

    Args:
        messages: of a conversation.
        part: whose messages, "all" for everybody's.
        turns: all of these messages, or the first or the last of them.

    Example:
        >>> chat = [Message("user", ("Hi.",)), Message("assistant", ("Hello!",))]
        >>> text_of(chat), text_of(chat, "all", "first")
        ('Hello!', 'Hi.')
    """
    chosen = [message for message in messages if part in ("all", message.role)]
    chosen = {"all": chosen, "first": chosen[:1], "last": chosen[-1:]}[turns]
    return "\n".join(text for message in chosen if (text := message.text))


def transcript(cell: Any) -> str:
    """A row's conversation for people to read: a line per message, `[image]` where an image stands.

    Args:
        cell: as `read_messages` reads it; one that cannot be read is shown as it is.

    Example:
        >>> transcript([{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]}])
        'user: [image] What is it?'
    """
    try:
        messages = read_messages(cell or [])
    except ConversationError:
        return str(cell)
    said = [
        [part for part in ("[image]" if part is None else part for part in each.parts) if part] for each in messages
    ]
    return "\n".join(f"{each.role}: {' '.join(parts)}" for each, parts in zip(messages, said, strict=True))
