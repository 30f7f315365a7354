"""What a row of `messages` says, in the forms that chat data has."""

from __future__ import annotations

import pytest
from datasets import Dataset

from hf_curriculum.data.conversations import ConversationError, Message, is_conversation, read_messages, text_of

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}, {"type": "image_url"}]},
    {"role": "assistant", "content": "A dog."},
    {"role": "user", "content": [{"type": "text", "text": "Where?"}, {"type": "text", "value": "or"}, "Here?"]},
    {"role": "assistant", "content": None},
]
READ = [
    Message("system", ("Be brief.",)),
    Message("user", (None, "What is it?", None)),
    Message("assistant", ("A dog.",)),
    Message("user", ("Where?", "or", "Here?")),
    Message("assistant", ("",)),
]


def test_a_list_and_a_mapping_of_lists_say_the_same():
    assert read_messages(CHAT) == READ
    lists = {name: [message[name] for message in CHAT] for name in ("role", "content")}
    assert read_messages(lists) == READ
    assert [message.num_images for message in READ] == [0, 2, 0, 0, 0]


def test_what_datasets_make_of_them():
    plain = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello!"}]
    parts = [{"role": "user", "content": [{"type": "image", "text": None}, {"type": "text", "text": "Hi."}]}]
    data = Dataset.from_dict({"plain": [plain], "parts": [parts]})
    assert read_messages(data[0]["plain"]) == [Message("user", ("Hi.",)), Message("assistant", ("Hello!",))]
    assert read_messages(data[0]["parts"]) == [Message("user", (None, "Hi."))]


@pytest.mark.parametrize(
    ("part", "turns", "said"),
    [
        ("assistant", "all", "A dog."),
        ("assistant", "last", ""),
        ("user", "all", "What is it?\nWhere?\nor\nHere?"),
        ("user", "first", "What is it?"),
        ("user", "last", "Where?\nor\nHere?"),
        ("system", "all", "Be brief."),
        ("all", "first", "Be brief."),
        ("all", "all", "Be brief.\nWhat is it?\nA dog.\nWhere?\nor\nHere?"),
    ],
)
def test_what_a_part_says(part, turns, said):
    assert text_of(READ, part, turns) == said


@pytest.mark.parametrize(
    ("cell", "match"),
    [
        ("Hi.", "it is .*str.*, and a list of messages"),
        ({"role": "user", "content": "Hi."}, "it is one message"),
        ({"role": ["user"], "content": []}, "roles and its contents are not equally many"),
        ({"role": ["user"], "content": None}, "roles and its contents are not equally many"),
        ([{"role": "user"}], "message 0 is .*mapping with `role` and `content`"),
        ([None], "message 0 is 'None'"),
        ([*CHAT, {"role": "narrator", "content": "x"}], "message 5 is of the role 'narrator'"),
        ([{"role": None, "content": "x"}], "message 0 is of the role None"),
        ([{"role": "user", "content": b"3"}], "message 0 has the part '51'"),
        ([{"role": "user", "content": {3}}], "message 0 holds a set"),
        (
            [{"role": "user", "content": [{"type": "text", "text": None}]}],
            "message 0 has a part of text without its `text`",
        ),
        ([{"role": "user", "content": [{"type": "audio"}]}], "message 0 has the part .*audio"),
        (
            [{"role": "user", "content": [{"type": "text", "text": 3}]}],
            "message 0 has a part of text without its `text`",
        ),
        ([{"role": "user", "content": [3]}], "message 0 has the part '3'"),
    ],
)
def test_what_cannot_be_read(cell, match):
    with pytest.raises(ConversationError, match=match):
        read_messages(cell)


def test_a_number_is_read_as_its_text():
    assert read_messages([{"role": "user", "content": 5}, {"role": "user", "content": True}]) == [
        Message("user", ("5",)),
        Message("user", ("true",)),
    ]


def test_which_cells_are_conversations():
    assert all(map(is_conversation, ([], CHAT, {"role": ["user"], "content": ["Hi."]}, [None, CHAT[0]])))
    other = ("Hi.", None, 3, ["a", "b"], CHAT[0], [{"from": "human", "value": "Hi."}], [CHAT], {"role": "user"})
    assert not any(map(is_conversation, other))
