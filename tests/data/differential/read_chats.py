"""Conversations in the forms that TRL and LLaMA-Factory document, written from one list of turns that is the truth."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from datasets import Dataset, load_dataset
from hypothesis import strategies as st
from judging import Draw, Reader, Reading, Row, Trial, axes_of, colour, draw_names, pick, seldom, texts, write_pictures
from trl import maybe_convert_to_chatml
from trl.data_utils import prepare_multimodal_messages

from hf_curriculum import load_conversations

Turn = tuple[str, str, int]
"""Role, text, and how many pictures stand before the text."""
NAMES_OF = {"user": "human", "assistant": "gpt"}
OPTIONAL = ("images", "image", "system", "history")


class Chat(NamedTuple):
    """What one row says, and the names of its pictures."""

    turns: list[Turn]
    system: str | None
    images: list[str]


def _draw_chat(draw: Draw, names: Sequence[str], words: st.SearchStrategy, most: int, system: bool, one: bool) -> Chat:
    turns: list[Turn] = []
    with_images = bool(names) and draw(st.booleans())
    for number in range(draw(st.integers(1, most))):
        shown = draw(st.integers(0 if number else 1, 1 if one else 2)) if with_images else 0
        turns += [("user", draw(words), shown), ("assistant", draw(words), 0)]
    images = [pick(draw, *names) for turn in turns for _ in range(turn[2])]
    return Chat(turns, pick(draw, "You are a pirate.", 'Say "yes".', "", None, None) if system else None, images)


def _meant(chat: Chat, whose: dict[str, int]) -> Row:
    """Role and parts of each message: pictures by their numbers, texts stripped, empty ones left out."""
    rest = iter(chat.images)
    turns = [("system", chat.system, 0)] if chat.system else []
    return tuple(
        (role, (*(whose[next(rest)] for _ in range(shown)), *filter(None, [text.strip()])))
        for role, text, shown in [*turns, *chat.turns]
    )


def _marked(text: str, shown: int) -> str:
    return "<image>" * shown + text


def _sharegpt(chat: Chat) -> dict[str, Any]:
    turns = [{"from": NAMES_OF[role], "value": _marked(text, shown)} for role, text, shown in chat.turns]
    return {"conversations": turns, "system": chat.system, "images": chat.images}


def _openai(chat: Chat) -> dict[str, Any]:
    turns = [*([("system", chat.system, 0)] if chat.system else []), *chat.turns]
    messages = [{"role": role, "content": _marked(text, shown)} for role, text, shown in turns]
    return {"messages": messages, "images": chat.images}


def _parts(image: Callable[[str], dict], text_field: str = "text", column: bool = False) -> Callable[[Chat], dict]:
    def write(chat: Chat) -> dict[str, Any]:
        rest = iter(chat.images)
        messages = [{"role": "system", "content": chat.system}] if chat.system else []
        for role, text, shown in chat.turns:
            parts = [image(next(rest)) for _ in range(shown)]
            messages.append({"role": role, "content": [*parts, {"type": "text", text_field: text}]})
        return {"messages": messages, **({"images": chat.images} if column else {})}

    return write


def _alpaca(chat: Chat) -> dict[str, Any]:
    (_, asked, shown), (_, answer, _) = chat.turns[-2:]
    first, _, second = asked.partition("\n")
    history = [[_marked(q[1], q[2]), a[1]] for q, a in zip(chat.turns[:-2:2], chat.turns[1:-2:2], strict=True)]
    row = {"instruction": _marked(first, shown), "input": second, "output": answer}
    return {**row, "system": chat.system, "history": history, "images": chat.images}


def _swift(chat: Chat) -> dict[str, Any]:
    row = _alpaca(chat)
    query = "\n".join(filter(None, (row.pop("instruction"), row.pop("input"))))
    return {"query": query, "response": row.pop("output"), **row}


def _prompt(as_text: bool) -> Callable[[Chat], dict]:
    def write(chat: Chat) -> dict[str, Any]:
        if as_text:
            (_, asked, shown), (_, answer, _) = chat.turns
            return {"prompt": _marked(asked, shown), "completion": answer, "images": chat.images}
        messages = _openai(chat)["messages"]
        return {"prompt": messages[:-1], "completion": messages[-1:], "images": chat.images}

    return write


def _asked(chat: Chat) -> dict[str, Any]:
    (_, asked, shown), (_, answer, _) = chat.turns
    return {"question": _marked(asked, shown), "answer": answer, "image": chat.images[0] if chat.images else None}


def _preferred(chat: Chat) -> dict[str, Any]:
    row = _sharegpt(chat)
    chosen = row["conversations"].pop()
    return {**row, "chosen": chosen, "rejected": {"from": "gpt", "value": "no"}}


TRL = {
    "messages": (_openai, 3, True),
    "messages, parts": (_parts(lambda name: {"type": "image"}, column=True), 2, True),
    "prompt and completion": (_prompt(as_text=False), 2, True),
    "prompt and completion, texts": (_prompt(as_text=True), 1, False),
    "conversations": (_sharegpt, 2, False),
}
LLAMA_FACTORY = {
    "sharegpt": (_sharegpt, 3, True),
    "openai": (_openai, 3, True),
    "alpaca": (_alpaca, 2, True),
    "v1": (_parts(lambda name: {"type": "image_url", "value": name}, "value"), 2, True),
    "preference": (_preferred, 1, True),
}
OTHERS = {
    "openai, image_url": (_parts(lambda name: {"type": "image_url", "image_url": {"url": name}}), 2, True),
    "qwen": (_parts(lambda name: {"type": "image", "image": name}), 2, True),
    "swift": (_swift, 2, True),
    "question and answer": (_asked, 1, False),
}
"""How a form is written, its most turns, and whether it has a place for a system's message."""


def _trl_reads(record: dict[str, Any], meant: Row, whose: dict[str, int]) -> bool:
    """Whether TRL's own helpers make of a row what was meant."""
    row = maybe_convert_to_chatml(copy.deepcopy(record))
    messages = row.get("messages") or [*row.get("prompt", []), *row.get("completion", [])]
    if not all(isinstance(message, dict) for message in messages):
        return True  # texts, which TRL takes as they are
    if any("<image>" in str(message["content"]) for message in messages):
        return False  # marks in texts are LLaVA's
    try:
        for message in messages:
            message["role"] = {"human": "user", "gpt": "assistant"}.get(message["role"], message["role"])
        messages = prepare_multimodal_messages(messages, row.get("images") or [])
    except ValueError:
        return False
    see = lambda part: whose[part["image"]] if part["type"] == "image" else part["text"].strip()  # noqa: E731
    return meant == tuple((one["role"], tuple(x for x in map(see, one["content"]) if x != "")) for one in messages)


def _write(draw: Draw, folder: Path, records: list[dict[str, Any]]) -> tuple[Any, str]:
    """The source, and its encoding."""
    kind = pick(draw, "jsonl", "jsonl", "json", "json", "parquet", "Dataset", "Dataset of JSON")
    lines = "\n".join(json.dumps(one, ensure_ascii=False) for one in records)
    plain = folder.parent / "c.jsonl"  # whose name is no pattern
    with contextlib.suppress(Exception):  # a list whose items have several types is no column
        if kind == "Dataset":
            return Dataset.from_list(records), "utf-8"
        if kind == "parquet":
            Dataset.from_list(records).to_parquet(plain)
            return plain.rename(folder / "c.parquet"), "utf-8"
    if kind == "Dataset of JSON":
        plain.write_text(lines, encoding="utf-8")
        return load_dataset("json", data_files=str(plain), split="train"), "utf-8"
    path, encoding = (
        folder / f"c.{kind if kind == 'json' else 'jsonl'}",
        pick(draw, "utf-8", "utf-8", "utf-8-sig", "utf-16"),
    )
    path.write_bytes((json.dumps(records) if kind == "json" else lines).encode(encoding))
    return path, encoding


def _chats(forms: dict[str, tuple], trl: bool = False) -> Callable[[Draw, Path], Trial]:
    def trial(draw: Draw, folder: Path) -> Trial:
        name = pick(draw, *forms)
        form, most, system = forms[name]
        files = draw_names(draw) if draw(st.booleans()) else []
        write_pictures(folder, files)
        whose = {file: number for number, file in enumerate(files)}
        plain = st.sampled_from(["hi", "What is it?", "A dog.", "yes"])
        words = texts(empty=seldom(draw)) if draw(st.booleans()) else plain
        one_image = name == "question and answer"
        chats = [_draw_chat(draw, files, words, most, system, one_image) for _ in range(draw(st.integers(1, 3)))]
        if name == "alpaca":  # `instruction` and `input`, which are a line each
            for chat in chats:
                role, text, shown = chat.turns[-2]
                chat.turns[-2] = (role, f"{draw(words)}\n{text}", shown)
        records = [form(chat) for chat in chats]
        unused = {key for key in OPTIONAL if not any(record.get(key) for record in records)}
        records = [{key: value for key, value in record.items() if key not in unused} for record in records]
        fields = ["chosen", "rejected"] if name == "preference" else []
        for extra, values in {
            "source": ["web", "x", None],
            "weight": [1, 0.5, None],
            "tags": [["a"], [], None],
        }.items():
            if seldom(draw, 6):
                fields.append(extra)
                records = [{**record, extra: pick(draw, *values)} for record in records]
        if seldom(draw, 6) and "messages" in records[0]:
            fields.append("train_on")
            for record in records:
                record["messages"][-1]["train_on"] = pick(draw, 0, 1)
        meant = [_meant(chat, whose) for chat in chats]
        source, encoding = _write(draw, folder, records)
        axes = axes_of(
            files,
            (text for chat in chats for _, text, _ in chat.turns),
            nulls=any(value is None for record in records for value in record.values()),
            pictures=any(chat.images for chat in chats),
            encodings=encoding != "utf-8",
            conversations=True,
        )
        judged = encoding == "utf-8" and name != "preference"
        judged &= not trl or all(_trl_reads(one, row, whose) for one, row in zip(records, meant, strict=True))
        accepted = [meant, [row[:-1] for row in meant]] if name == "preference" else [meant]
        images = str(folder) if not isinstance(source, Path) and any(chat.images for chat in chats) else None
        return Trial(axes | {f"form: {name}"}, lambda: _ours(source, images), accepted, judged, fields)

    return trial


def _ours(source: Any, images: str | None) -> Reading:
    data, rows = load_conversations(source, images=images), []
    for row in data:
        pictures, messages = iter(row.get("images") or []), []
        for message in row["messages"]:
            content, parts = message["content"], []
            for part in [{"type": "text", "text": content}] if isinstance(content, str) else content or []:
                text = (part["text"] or "").strip() if part["type"] == "text" else ""
                parts += [colour(next(pictures))] if part["type"] == "image" else [text] if text else []
            messages.append((message["role"], tuple(parts)))
        rows.append((*messages, *(("shown by none", one) for one in pictures)))
    return Reading(rows, data.column_names)


READERS = [
    Reader("chats of TRL", "trl", 60, _chats(TRL, trl=True)),
    Reader("chats of LLaMA-Factory", "its documentation", 90, _chats(LLAMA_FACTORY)),
    Reader("chats of others", "their documentation", 40, _chats(OTHERS)),
]
