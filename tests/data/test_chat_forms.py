"""Every form of chat data gives the same messages from every source, and nothing of it goes in silence."""

from __future__ import annotations

import base64
import gzip
import json
import logging
import re
from io import BytesIO
from pathlib import Path

import pytest
from datasets import Dataset, DatasetDict, Features, Image, Json, List, Value, load_dataset
from PIL import Image as PILImage
from trl.data_utils import maybe_convert_to_chatml, prepare_multimodal_messages

from hf_curriculum import CaptionLength, NounCount, ResponseLength, add_scores, load_captioned, load_conversations
from hf_curriculum.data.image_files import with_stored


def says(role, content):
    return {"role": role, "content": content}


def asks(text):
    return [{"type": "text", "text": text}]


CHAT = [says("user", "What is it?"), says("assistant", "A dog.")]
LONG = [says("system", "Be brief."), says("user", "Hi."), says("assistant", "Hello!"), *CHAT]
SHAREGPT = [{"from": "human", "value": "What is it?"}, {"from": "gpt", "value": "A dog."}]
EARLIER = {"system": "Be brief.", "history": [["Hi.", "Hello!"]]}
ITEMS = [{"human": "Hi.", "assistant": "Hello!"}, {"human": "What is it?", "assistant": "A dog."}]
FORMS = {
    "messages": ({"messages": CHAT}, CHAT),
    "messages as JSON text": ({"messages": json.dumps(CHAT)}, CHAT),
    "messages as JSON texts": ({"messages": [json.dumps(turn) for turn in CHAT]}, CHAT),
    "lists of messages": ({"messages": {name: [turn[name] for turn in CHAT] for name in ("role", "content")}}, CHAT),
    "parts": ({"messages": [says("user", asks("What is it?")), says("assistant", asks("A dog."))]}, CHAT),
    "parts and texts": ({"messages": [says("user", asks("What is it?")), CHAT[1]]}, CHAT),
    "parts by value": ({"messages": [says("user", [{"type": "text", "value": "What is it?"}]), CHAT[1]]}, CHAT),
    "parts by content": ({"messages": [says("user", [{"type": "text", "content": "What is it?"}]), CHAT[1]]}, CHAT),
    "parts without type": ({"messages": [says("user", [{"text": "What is it?"}]), CHAT[1]]}, CHAT),
    "input_text": ({"messages": [says("user", [{"type": "input_text", "text": "What is it?"}]), CHAT[1]]}, CHAT),
    "Gemini's parts": ({"messages": [{"role": "user", "parts": [{"text": "What is it?"}]}, CHAT[1]]}, CHAT),
    "from and value": ({"conversations": SHAREGPT}, CHAT),
    "from and value as JSON text": ({"conversations": json.dumps(SHAREGPT)}, CHAT),
    "speakers in capitals": (
        {"conversation": [{"from": "USER", "value": "What is it?"}, {"from": "Assistant", "value": "A dog."}]},
        CHAT,
    ),
    "role human": ({"messages": [says("human", "What is it?"), says("gpt", "A dog.")]}, CHAT),
    "role and value": ({"messages": [{"role": "user", "value": "What is it?"}, CHAT[1]]}, CHAT),
    "user and assistant": ({"texts": [{"user": "What is it?", "assistant": "A dog.", "source": "x"}]}, CHAT),
    "human and assistant": ({"system": "Be brief.", "conversation": ITEMS}, LONG),
    "input and output in items": (
        {
            "conversation": [
                {"system": "Be brief.", "input": "Hi.", "output": "Hello!"},
                {"input": "What is it?", "output": "A dog."},
            ]
        },
        LONG,
    ),
    "one item": ({"conversation": {"user": "What is it?", "assistant": "A dog."}}, CHAT),
    "prompt and completion": ({"prompt": "What is it?", "completion": "A dog."}, CHAT),
    "prompt and completion of messages": ({"prompt": CHAT[:1], "completion": CHAT[1:]}, CHAT),
    "prompt and one message": ({"prompt": CHAT[:1], "completion": CHAT[1]}, CHAT),
    "question and answer": ({"question": "What is it?", "answer": "A dog."}, CHAT),
    "question and a number": (
        {"question": "How many?", "answer": 3},
        [says("user", "How many?"), says("assistant", "3")],
    ),
    "prompt and response": ({"prompt": "What is it?", "response": "A dog."}, CHAT),
    "Alpaca": ({"instruction": "What is it?", "input": "", "output": "A dog."}, CHAT),
    "Alpaca with an input": (
        {"instruction": "Translate.", "input": "un chien", "output": "a dog"},
        [says("user", "Translate.\nun chien"), says("assistant", "a dog")],
    ),
    "Alpaca with history": ({"instruction": "What is it?", "input": "", "output": "A dog.", **EARLIER}, LONG),
    "Dolly": (
        {"instruction": "Translate.", "context": "un chien", "response": "a dog"},
        [says("user", "Translate.\nun chien"), says("assistant", "a dog")],
    ),
    **{
        f"{' and '.join(row)}": ({**row, "output": "a dog"}, [says("user", asked), says("assistant", "a dog")])
        for row, asked in (
            ({"prompt": "Translate:", "input": "un chien"}, "Translate:\nun chien"),
            ({"query": "un chien", "instruction": "Translate."}, "Translate.\nun chien"),
            ({"instruction": "Translate.", "question": "un chien", "context": "Rex"}, "Translate.\nRex\nun chien"),
            ({"question": "What?", "context": "A dog."}, "A dog.\nWhat?"),
            ({"instruction": "I", "context": "c", "input": "i"}, "I\nc\ni"),
        )
    },
    "a context in items": (
        {"conversation": [{"input": "i", "context": "c", "instruction": "I", "output": "o"}]},
        [says("user", "I\nc\ni"), says("assistant", "o")],
    ),
    "user and context": (
        {"user": "What?", "context": "A dog.", "assistant": "It."},
        [says("user", "A dog.\nWhat?"), says("assistant", "It.")],
    ),
    "ms-swift": ({"query": "What is it?", "response": "A dog.", **EARLIER}, LONG),
    "ms-swift without history": ({"query": "What is it?", "response": "A dog.", "history": []}, CHAT),
    "system of the row": ({"system_prompt": "Be brief.", "conversations": SHAREGPT}, [LONG[0], *CHAT]),
    "system twice": ({"system": "Be brief.", "messages": [LONG[0], *CHAT]}, [LONG[0], *CHAT]),
    "an empty system": ({"system": "", "messages": CHAT}, CHAT),
}


def from_source(kind, rows, folder):
    """A source of these rows: what `load_conversations` is given."""
    file = folder / "x.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if kind == "json":
        file.unlink()
        (folder / "x.json").write_text(json.dumps(rows))
    elif kind == "jsonl.gz":
        (folder / "x.jsonl.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    elif kind != "jsonl":
        read = kind == "load_dataset"
        data = (
            load_dataset("json", data_files=str(file), split="train", cache_dir=str(folder / "cache"))
            if read
            else Dataset.from_list(rows, on_mixed_types="use_json")
        )
        file.unlink()
        if kind != "parquet":
            return data
        data.to_parquet(folder / "x.parquet")
    return folder


SOURCES = ["json", "jsonl", "jsonl.gz", "from_list", "parquet", "load_dataset"]


def load(source, **options):
    loaded = load_conversations(source, **options)
    return loaded["train"] if isinstance(loaded, DatasetDict) else loaded


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", SOURCES)
def test_every_form_from_every_source(form, kind, tmp_path):
    row, expected = FORMS[form]
    loaded = load(from_source(kind, [{**row, "id": "7"}] * 2, tmp_path))
    text = Value("string")
    assert loaded.features["messages"] == List({"role": text, "content": text})
    assert loaded.column_names == ["messages", "id"]
    assert loaded[:] == {"messages": [expected] * 2, "id": ["7"] * 2}


MIXED = [
    {"messages": [says("user", asks("How many?")), says("assistant", said)]}
    for said in (
        "5",
        "5.00",
        "true",
        "null",
        '{"total": 5}',
        "[1, 2]",
        "A dog.",
        "1e3",
        "007",
        '["a", "b"]',
        '[{"bbox": [1, 2]}]',
    )
]


@pytest.mark.parametrize("kind", SOURCES)
def test_texts_that_are_json_stay_texts(kind, tmp_path):
    loaded = load(from_source(kind, MIXED, tmp_path))
    assert [chat[1]["content"] for chat in loaded["messages"]] == [row["messages"][1]["content"] for row in MIXED]


NAN = float("nan")


@pytest.mark.parametrize("kind", SOURCES)
def test_nan_is_null(kind, tmp_path, caplog):
    rows = [
        {"prompt": "a", "input": NAN, "completion": "b", "system": NAN, "video": NAN, "label": NAN},
        {"prompt": "a", "input": "i", "completion": "NaN", "system": "S", "video": None, "label": None},
        {"prompt": NAN, "input": None, "completion": "b", "system": None, "video": None, "label": None},
        {"prompt": "a", "input": None, "completion": float("-inf"), "system": None, "video": None, "label": None},
    ]
    source = from_source(kind, rows, tmp_path)
    with pytest.raises(ValueError, match=r"2 of the 4 conversations .*(Row|Line) [23].*it has no `prompt`"):
        load(source)
    assert load(source, bad_rows="drop")["messages"][:] == [
        [says("user", "a"), says("assistant", "b")],
        [says("system", "S"), says("user", "a\ni"), says("assistant", "NaN")],
    ]
    assert "conversations that cannot be read: 2" in caplog.text


@pytest.mark.parametrize("kind", SOURCES)
def test_nan_inside_of_messages_is_null(kind, tmp_path, caplog):
    rows = [
        {"messages": [CHAT[0], {**CHAT[1], "weight": NAN, "name": NAN}]},
        {"messages": [says("user", NAN), CHAT[1]]},
        {"messages": [CHAT[0], {**CHAT[1], "weight": 1.0, "name": None}]},
    ]
    source = from_source(kind, rows, tmp_path)
    with pytest.raises(ValueError, match=r"1 of the 3 conversations .*message 0 \(user\) has no content"):
        load(source)
    assert load(source, bad_rows="drop")["messages"][:] == [CHAT, CHAT]
    assert "field `weight` of messages (not kept): 1." in caplog.text


@pytest.mark.parametrize(
    ("answers", "texts"),
    [
        ([3, 0.5], ["3", "0.5"]),
        ([True], ["true"]),
        (["2020-01-02", "2021-12-31"], ["2020-01-02", "2021-12-31"]),
        (["2020-01-02T10:30:00"], ["2020-01-02T10:30:00"]),
    ],
)
@pytest.mark.parametrize("kind", SOURCES)
def test_numbers_and_dates_are_the_same_texts(answers, texts, kind, tmp_path):
    loaded = load(from_source(kind, [{"question": "How many?", "answer": answer} for answer in answers], tmp_path))
    assert [chat[1]["content"] for chat in loaded["messages"]] == texts


@pytest.mark.parametrize("kind", ["jsonl", "load_dataset"])
def test_several_processes_read_the_same(kind, tmp_path):
    rows = [{**FORMS["ms-swift"][0], "query": f"number {number}"} for number in range(12)]
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one = load(from_source(kind, rows, tmp_path / "one"))
    assert load(from_source(kind, rows, tmp_path / "two"), num_proc=2)[:] == one[:]
    assert [chat[3]["content"] for chat in one["messages"]] == [row["query"] for row in rows]


def test_trl_converts_to_the_same():
    rows = [{"conversations": [{"from": turn["role"], "value": turn["content"]} for turn in CHAT]}, {"messages": CHAT}]
    for row in rows:
        loaded = load_conversations(Dataset.from_list([row]))
        assert loaded[0]["messages"] == maybe_convert_to_chatml(row)["messages"]


def encoded(colour):
    content = BytesIO()
    PILImage.new("RGB", (16, 12), colour).save(content, "PNG")
    return content.getvalue()


@pytest.fixture
def pictures(tmp_path):
    """A red and a blue image, in a folder of their own."""
    folder = tmp_path / "data"
    folder.mkdir()
    for colour in ("red", "blue"):
        (folder / f"{colour}.png").write_bytes(encoded(colour))
    return folder


RED, BLUE, BASE64 = "red.png", "blue.png", base64.b64encode(encoded("red")).decode()
SHOWN = [says("user", [{"type": "image", "text": None}, *asks("What is it?")]), says("assistant", asks("A dog."))]
PART_FORMS = {
    "OpenAI": {"type": "image_url", "image_url": {"url": RED}},
    "OpenAI with a detail": {"type": "image_url", "image_url": {"url": RED, "detail": "low"}},
    "image_url as a text": {"type": "image_url", "image_url": RED},
    "input_image": {"type": "input_image", "image_url": RED},
    "Qwen": {"type": "image", "image": RED},
    "Qwen without type": {"image": RED},
    "transformers' url": {"type": "image", "url": RED},
    "transformers' path": {"type": "image", "path": RED},
    "LLaMA-Factory's value": {"type": "image_url", "value": RED},
    "Anthropic": {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": BASE64}},
    "data URL": {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{BASE64}"}},
}
SHOWING = {
    **{name: {"messages": [says("user", [part, *asks("What is it?")]), CHAT[1]]} for name, part in PART_FORMS.items()},
    "Qwen-VL's img": {"messages": [says("user", f"<img>{RED}</img>What is it?"), CHAT[1]]},
    "xtuner's part and mark": {
        "messages": [
            says("user", [{"type": "image_url", "image_url": {"url": RED}}, *asks("<IMG_CONTEXT>\nWhat is it?")]),
            CHAT[1],
        ]
    },
    "a part and a mark": {
        "messages": [says("user", [{"type": "image"}, *asks("<image>\nWhat is it?")]), CHAT[1]],
        "images": [RED],
    },
    "a column": {"messages": CHAT, "images": [RED]},
    "a column of one": {"messages": CHAT, "image": RED},
    **{f"a column {name}": {"messages": CHAT, name: RED} for name in ("image_path", "img", "image_files", "png")},
    "a column of base64": {"messages": CHAT, "image": BASE64},
    "a column as JSON text": {"messages": CHAT, "images": json.dumps([RED])},
    "a column and the same part": {
        "messages": [says("user", [{"type": "image", "image": RED}, *asks("What is it?")]), CHAT[1]],
        "images": [RED],
    },
    **{
        f"mark {mark}": {"messages": [says("user", f"{mark}\nWhat is it?"), CHAT[1]], "images": [RED]}
        for mark in (
            "<image>",
            "(<image>./</image>)",
            "<|vision_start|><|image_pad|><|vision_end|>",
            "<image 1>",
            "<image_0>",
            "<|image_1|>",
            "<ImageHere>",
            "<image_placeholder>",
            *("[IMG]", "[image]", "{image}", "{{image_1}}", "[[Image 1]]", "<img>"),
            *("<image1>", "<Image>", "<IMAGE>", "<image/>", "<image_token>", "<|image|>", "<start_of_image>"),
            *("<img><ImageHere></img>", "<img><IMG_CONTEXT><IMG_CONTEXT></img>"),
            "<|vision_start|><|image_pad|><|image_pad|><|vision_end|>",
        )
    },
}


@pytest.mark.parametrize("form", SHOWING)
@pytest.mark.parametrize("kind", ["json", "from_list", "parquet", "load_dataset"])
def test_images_stand_where_the_messages_show_them(form, kind, pictures):
    plain = {"messages": CHAT, **({"images": None} if "images" in SHOWING[form] else {})}
    source = from_source(kind, [SHOWING[form], plain, SHOWING[form]], pictures)
    loaded = load(source, images=pictures)
    assert loaded["messages"][:] == [SHOWN, [says(turn["role"], asks(turn["content"])) for turn in CHAT], SHOWN]
    assert [[image.getpixel((0, 0)) for image in images] for images in loaded["images"]] == [
        [(255, 0, 0)],
        [],
        [(255, 0, 0)],
    ]
    shown = prepare_multimodal_messages(
        [
            {**turn, "content": [{k: v for k, v in part.items() if v is not None} for part in turn["content"]]}
            for turn in loaded[0]["messages"]
        ],
        loaded[0]["images"],
    )
    assert shown[0]["content"][0]["image"].size == (16, 12)


@pytest.mark.parametrize("mark", ["image", "<image>"])
def test_brackets_are_marks_where_a_users_message_alone_has_them_beside_an_image(mark, pictures):
    code = says("assistant", "Use {image}.")
    rows = [{"messages": [says("user", f"{mark} [image] Hi."), code], "image": RED}]
    loaded = load(from_source("json", [*rows, {"messages": [says("user", "[image]"), code]}], pictures))
    asked = [part["text"] for part in loaded[0]["messages"][0]["content"]]
    assert asked == (["image", None, "Hi."] if mark == "image" else [None, "[image] Hi."])
    assert [loaded[0]["messages"][1], *loaded[1]["messages"]] == [
        says("assistant", asks("Use {image}.")),
        says("user", asks("[image]")),
        says("assistant", asks("Use {image}.")),
    ]


def test_brackets_of_what_is_not_read_are_counted(caplog):
    rows = [{"messages": [says("user", "[VIDEO] Hi."), CHAT[1]]}]
    assert load_conversations(Dataset.from_list(rows))[0]["messages"] == rows[0]["messages"]
    assert "texts with `[VIDEO]` (read as text): 1" in caplog.text


@pytest.mark.parametrize("kind", ["json", "from_list", "load_dataset"])
def test_files_are_read_by_their_address(kind, pictures):
    (pictures / "a dog.png").write_bytes(encoded("blue"))
    name = f"{pictures.as_uri()}/a%20dog.png"
    rows = [
        {
            "messages": [
                says("user", [{"type": "image_url", "image_url": {"url": name}}]),
                says("assistant", asks("A dog.")),
            ]
        }
    ]
    assert load(from_source(kind, rows, pictures), images=pictures)[0]["images"][0].getpixel((0, 0)) == (0, 0, 255)


def test_names_of_images_that_are_json_by_value(pictures):
    rows = [
        {"messages": CHAT, "image": RED},
        {"messages": CHAT, "image": [BLUE, RED]},
        {"messages": CHAT, "image": None},
    ]
    for kind in ("json", "load_dataset"):
        loaded = load(from_source(kind, rows, pictures), images=pictures)
        colours = [[image.getpixel((0, 0)) for image in images] for images in loaded["images"]]
        assert colours == [[(255, 0, 0)], [(0, 0, 255), (255, 0, 0)], []]


def test_rows_that_are_dropped_keep_images_and_columns_beside_their_messages(pictures):
    rows = [
        {"messages": [says("user", "<image><image>")], "image": RED, "id": "bad"},
        {"messages": [says("user", "red"), CHAT[1]], "image": RED, "id": "red"},
        {"messages": [says("narrator", "?")], "image": RED, "id": "bad"},
        {"messages": [says("user", "blue"), CHAT[1]], "image": BLUE, "id": "blue"},
    ]
    names = load(from_source("json", rows, pictures), images=pictures, bad_rows="drop")
    held = Dataset.from_list([{**row, "image": PILImage.open(pictures / row["image"])} for row in rows])
    for loaded in (names, load(held, bad_rows="drop"), load(held.select([3, 1, 0]), bad_rows="drop").select([1, 0])):
        assert loaded["id"][:] == ["red", "blue"]
        assert [chat[0]["content"][1]["text"] for chat in loaded["messages"]] == ["red", "blue"]
        assert [images[0].getpixel((0, 0)) for images in loaded["images"]] == [(255, 0, 0), (0, 0, 255)]
    with pytest.raises(ValueError, match=r"2 of the 2 conversations"):
        load(held.select([0, 2]), bad_rows="drop")


def test_calls_that_are_json_by_value(tmp_path, caplog):
    calls = [[], None, [{"function": {"name": "f", "arguments": {"a": 1}}}], [{"function": "g"}]]
    rows = [{"messages": [CHAT[0], {**CHAT[1], "tool_calls": each}]} for each in calls]
    data = from_source("load_dataset", rows, tmp_path)
    with caplog.at_level(logging.WARNING):
        assert load(data)["messages"][:] == [CHAT] * 4
    assert "field `tool_calls` of messages (not kept): 2." in caplog.text


PAGE = Path(__file__).parents[2] / "docs" / "guides" / "conversations.md"


def test_the_guides_forms_say_what_it_says(pictures):
    (pictures / "a.jpg").write_bytes(encoded("red"))
    rows = [
        json.loads(row) for row in re.findall(r"^\| `(\{.*?\})` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert len(rows) == 19
    for row in rows:
        shows = "a.jpg" in json.dumps(row)
        (pictures / "x.json").write_text(json.dumps([row]))
        for source in (pictures / "x.json", Dataset.from_list([row], on_mixed_types="use_json")):
            loaded = load_conversations(source, images=pictures if shows else None)[0]
            contents = [turn["content"] for turn in loaded["messages"]]
            assert [turn["role"] for turn in loaded["messages"]] == ["user", "assistant"]
            assert contents == (
                [[{"type": "image", "text": None}, *asks("Hi.")], asks("Hello!")] if shows else ["Hi.", "Hello!"]
            )
            assert len(loaded.get("images", ())) == shows


def test_images_in_the_order_of_the_messages(pictures):
    parts = [{"type": "image", "image": BLUE}, *asks("or"), {"type": "image_url", "image_url": {"url": RED}}]
    source = from_source("json", [{"messages": [says("user", parts), CHAT[1]]}], pictures)
    for images in (None, pictures):
        row = load(source, images=images)[0]
        assert [image.getpixel((0, 0)) for image in row["images"]] == [(0, 0, 255), (255, 0, 0)]
        assert [part["type"] for part in row["messages"][0]["content"]] == ["image", "text", "image"]
    marked = [{"type": "image", "image": BLUE}, {"type": "image", "image": RED}, *asks("Is <image> or <image> red?")]
    other = load(from_source("json", [{"messages": [says("user", marked), CHAT[1]]}], pictures))[0]
    assert [part["text"] for part in other["messages"][0]["content"]] == ["Is", None, "or", None, "red?"]
    assert [image.getpixel((0, 0)) for image in other["images"]] == [(0, 0, 255), (255, 0, 0)]
    source = from_source("json", [{"messages": [says("user", parts), CHAT[1]]}], pictures)
    assert load(source, images=False)[0]["messages"] == [says("user", "or"), CHAT[1]]


def test_images_that_a_data_set_holds_inside_of_messages():
    part = {"type": Value("string"), "text": Value("string"), "image": Image()}
    features = Features({"messages": List({"role": Value("string"), "content": List(part)})})
    shown = {"type": "image", "image": PILImage.new("RGB", (5, 4)), "text": None}
    chat = [says("user", [shown, {"type": "text", "text": "What is it?", "image": None}])]
    chat += [says("assistant", [{"type": "text", "text": "A dog.", "image": None}])]
    row = load_conversations(Dataset.from_dict({"messages": [chat]}, features))[0]
    assert row["messages"] == SHOWN
    assert [image.size for image in row["images"]] == [(5, 4)]


REFUSED = {
    "a mark without an image": (
        {"messages": [says("user", "<image> What?")]},
        r"it shows 1 images and has 0 \(.*ignore",
        "images",
    ),
    "a mark of a video": (
        {"messages": [says("user", "<video> Why?")]},
        "has the mark `<video>`, and videos are not",
        "videos",
    ),
    **{
        f"mark {mark}": ({"messages": [says("user", f"{mark} What?")]}, r"it shows 1 images and has 0 \(.*", "images")
        for mark in ("<Image>", "<image1>", "<image/>", "<IMG_CONTEXT>")
    },
    **{
        f"mark {mark}": ({"messages": [says("user", f"{mark} Why?")]}, f"has the mark `{mark}`", "videos")
        for mark in ("<Video>", "<VIDEO>", "<video1>", "<VideoHere>")
    },
    "an address": ({"messages": CHAT, "image": "https://a.b/c.png"}, "addresses are not fetched. Download it", None),
    "a bad answer": ({"messages": CHAT, "label": False}, "it has `label`: False, so its answer is a bad", "weights"),
    "choices": (
        {"instruction": "a", "choices": ["x", "y"], "output": "0"},
        "it has `choices`, which is no part .* columns={'prompt': 'instruction', 'completion': 'output'}",
        None,
    ),
    "a hint": ({"instruction": "a", "hint": "x", "output": "c"}, "it has `hint`, which is no part", None),
    "two questions": ({"instruction": "a", "input": "b", "query": "x", "output": "c"}, "it has `query`", None),
    "two answers": ({"instruction": "a", "output": "c", "response": "x"}, "it has `response`, which is no part", None),
    "a mark of sound": ({"messages": [says("user", "<|audio_1|> Why?")]}, r"has the mark `<\|audio_1\|>`", "audios"),
    "a video": ({"messages": CHAT, "video": "a.mp4"}, "it has videos, which are not read", "videos"),
    "sounds": ({"messages": CHAT, "audios": ["a.wav"]}, "it has audios, which are not read", "audios"),
    "the path of a video": ({"messages": CHAT, "video_path": "a.mp4"}, "it has videos, which are not read", "videos"),
    "loss_mask 0": ({"messages": [{**CHAT[1], "loss_mask": 0}]}, "has `loss_mask`: 0", "weights"),
    "weight 0": (
        {"messages": [CHAT[0], {**CHAT[1], "weight": 0}]},
        "has `weight`: 0, so it is not to be trained",
        "weights",
    ),
    "loss_weight 0.0": ({"messages": [{**CHAT[1], "loss_weight": 0.0}]}, "has `loss_weight`: 0.0", "weights"),
    "train false": ({"messages": [{**CHAT[1], "train": False}]}, "has `train`: False", "weights"),
    "loss 'false'": ({"conversations": [{**SHAREGPT[1], "loss": "false"}]}, "has `loss`: 'false'", "weights"),
    "mask true": ({"conversations": [{**SHAREGPT[1], "mask": True}]}, "has `mask`: True", "weights"),
    "calls alone": (
        {"messages": [CHAT[0], {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}]},
        "message 1 has `tool_calls` and no text",
        "tool_calls",
    ),
    "a call alone": (
        {"messages": [{"role": "assistant", "function_call": {"name": "f"}}]},
        "has `function_call` and no",
        "tool_calls",
    ),
    "no content": ({"messages": [says("user", None)]}, r"message 0 \(user\) has no content", None),
    "no messages": ({"messages": None}, "it has no `messages`", None),
    "a text": ({"messages": "Hi."}, "it is a str, and a list of messages is needed", None),
    "a part without a text": (
        {"messages": [says("user", [{"type": "text", "texts": "a"}])]},
        "without its `text`",
        None,
    ),
    "a video part": (
        {"messages": [says("user", [{"type": "video", "video": "a"}])]},
        "and parts are texts and images",
        None,
    ),
    "images in another order": (
        {"messages": [says("user", "<image 2> <image 1>")], "images": [RED, BLUE]},
        r"its marks number the images \[2, 1\]",
        None,
    ),
    "another number of marks than parts": (
        {"messages": [says("user", [{"type": "image", "image": RED}, *asks("<image> or <image>?")])]},
        "message 0 has 1 images among its parts and 2 marks",
        None,
    ),
    "images twice": (
        {"messages": [says("user", [{"type": "image", "image": RED}])], "images": [BLUE]},
        "it names 1 of the 1 images that it shows in its messages, and has 1 in its column",
        None,
    ),
    "a system that is a list": ({"messages": CHAT, "system": ["a", "b"]}, "its `system` is a list", None),
    "history that is a text": ({"messages": CHAT, "history": "Hi."}, "its `history` is a str", None),
    "an image without a name": (
        {"messages": [says("user", [{"type": "image", "image": 3}])]},
        "has the image '3', which",
        None,
    ),
    "broken base64": (
        {"messages": CHAT, "image": BASE64.rstrip("=") + "A" * (5 - len(BASE64.rstrip("=")) % 4)},
        "no name of a file",
        None,
    ),
    "an input that is a list": (
        {"instruction": "a", "input": ["b"], "output": "c"},
        "its `input` is .*a text is needed",
        None,
    ),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("kind", ["json", "from_list"])
def test_what_would_be_lost_is_refused_dropped_or_ignored(case, kind, pictures, caplog):
    row, problem, name = REFUSED[case]
    good = {"instruction": "a", "input": None, "output": "b"} if "instruction" in row else {next(iter(row)): CHAT}
    source = from_source(kind, [{**dict.fromkeys(row), **good}, {**good, **row}], pictures)
    options = {"images": pictures} if {"image", "images"} & set(row) or case == "an image without a name" else {}
    with pytest.raises(ValueError, match=rf"(?s)1 of the 2 conversations .*Row [12].*{problem}.*bad_rows='drop'"):
        load(source, check_images=False, **options)
    with caplog.at_level(logging.WARNING):
        kept = load(
            source, check_images=False, bad_rows="drop", **({} if case == "an image without a name" else options)
        )
    assert len(kept) == 1
    assert "conversations that cannot be read: 1 (Row " in caplog.text
    assert "left out: conversations that cannot be read" in kept.info.description
    if name:
        with caplog.at_level(logging.WARNING):
            assert len(load(source, check_images=False, ignore=[name])) == 2


def test_what_is_ignored_is_counted_and_stays_as_it_is(caplog):
    rows = [{"messages": [says("user", "Draw <image> in SVG."), {**CHAT[1], "weight": 0, "name": "Rex"}]}]
    with caplog.at_level(logging.WARNING):
        loaded = load_conversations(Dataset.from_list(rows), ignore=["images", "weights"])
    assert loaded[0]["messages"] == [says("user", "Draw <image> in SVG."), CHAT[1]]
    for told in (
        "marks of images that a row does not have (read as text): 1",
        "field `weight` of messages (not kept): 1",
    ):
        assert told in caplog.text
    assert "field `name` of messages (not kept): 1" in loaded.info.description


def test_fields_that_are_not_kept_are_counted_unless_they_are_empty(tmp_path, caplog):
    turn = {**CHAT[1], "reasoning_content": "It barks.", "name": None, "tool_calls": [], "weight": 1}
    part = {"type": "text", "text": "What is it?", "cache_control": "x"}
    rows = [{"messages": [says("user", [part]), turn]}, {"messages": CHAT}]
    with caplog.at_level(logging.WARNING):
        load(from_source("json", rows, tmp_path))
    (told,) = [record.message for record in caplog.records]
    assert told.partition("left out: ")[2] == (
        "field `cache_control` of parts (not kept): 1; field `reasoning_content` of messages (not kept): 1; "
        "field `weight` of messages (not kept): 1."
    )


def test_where_nothing_is_left_out_nothing_is_said(tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="hf_curriculum"):
        loaded = load(from_source("json", [{"messages": CHAT}], tmp_path))
    assert not caplog.records
    assert not loaded.info.description


@pytest.mark.parametrize("chat", [[], CHAT[:1], [CHAT[0], says("assistant", " ")]])
def test_conversations_without_an_answer_stay_and_are_counted(chat, caplog):
    features = Features({"messages": List({"role": Value("string"), "content": Value("string")})})
    with caplog.at_level(logging.WARNING):
        assert len(load_conversations(Dataset.from_dict({"messages": [CHAT, chat]}, features))) == 2
    assert "answers of conversations that have none (the rows stay): 1" in caplog.text


def test_the_messages_own_system_stays_and_another_is_counted(caplog):
    rows = [{"system": "Be a pirate.", "messages": [LONG[0], *CHAT]}]
    with caplog.at_level(logging.WARNING):
        assert load_conversations(Dataset.from_list(rows))[0]["messages"] == [LONG[0], *CHAT]
    assert "`system` of rows whose messages begin with another one (which stays): 1" in caplog.text


def test_a_systems_message_is_scored():
    loaded = load_conversations(Dataset.from_list([{"system": "Be a pirate.", "conversations": SHAREGPT}]))
    scored = add_scores(loaded, CaptionLength(column="messages", part="system"))
    assert scored["caption_length"][:] == [3]


@pytest.mark.parametrize(
    ("chosen", "columns"),
    [
        (
            {"prompt": "What is it?", "chosen": "A dog.", "rejected": "A cat."},
            {"prompt": "prompt", "completion": "chosen"},
        ),
        (
            {"conversations": SHAREGPT[:1], "chosen": SHAREGPT[1], "rejected": {"from": "gpt", "value": "A cat."}},
            {"prompt": "conversations", "completion": "chosen"},
        ),
        (
            {"prompt": "What is it?", "chosen": CHAT, "rejected": [CHAT[0], says("assistant", "A cat.")]},
            {"prompt": "prompt", "completion": "chosen"},
        ),
        (
            {"prompt": CHAT[:1], "chosen": CHAT, "rejected": [CHAT[0], says("assistant", "A cat.")]},
            {"prompt": "prompt", "completion": "chosen"},
        ),
        *(
            (
                {"messages": messages, "chosen": CHAT, "rejected": [CHAT[0], says("assistant", "A cat.")]},
                {"prompt": "messages", "completion": "chosen"},
            )
            for messages in (CHAT[:1], CHAT, [CHAT[0], says("assistant", "A cow.")])
        ),
        ({"chosen": CHAT, "rejected": [CHAT[0], says("assistant", "A cat.")]}, {"messages": "chosen"}),
        ({"chosen_messages": CHAT, "rejected_messages": CHAT}, {"messages": "chosen_messages"}),
    ],
)
@pytest.mark.parametrize("kind", ["json", "from_list"])
def test_preference_pairs_are_refused_with_the_way_to_load_them(chosen, columns, kind, tmp_path):
    source = from_source(kind, [chosen], tmp_path)
    with pytest.raises(ValueError, match=r"The data holds preference pairs \(`chosen.*columns=") as raised:
        load(source)
    assert str(columns) in str(raised.value)
    assert load(source, columns=columns)[0]["messages"] == CHAT


@pytest.mark.parametrize(
    ("prompt", "completion", "messages"),
    [
        ([LONG[0], CHAT[0]], CHAT, [LONG[0], *CHAT]),
        (CHAT[:1], [LONG[0], *CHAT], [LONG[0], *CHAT]),
        (LONG[:4], LONG[4:], LONG),
        (LONG[1:2], LONG[1:], LONG[1:]),
        ([says("user", "Hi.")], CHAT, "its completion begins with a message of the user, which is not"),
        ([LONG[0], CHAT[0]], [says("system", "Be long."), *CHAT], "its completion begins with a message of the user"),
        (CHAT, CHAT[1:], "its prompt ends with a message of the assistant, and its completion begins"),
    ],
)
def test_completions_go_on_or_repeat_their_prompt(prompt, completion, messages, tmp_path):
    source = from_source("json", [{"prompt": prompt, "completion": completion}], tmp_path)
    if isinstance(messages, list):
        assert load(source)[0]["messages"] == messages
    else:
        with pytest.raises(ValueError, match=messages):
            load(source)


def test_a_file_of_one_conversation_and_of_bare_lists(tmp_path):
    (tmp_path / "x.json").write_text(json.dumps({"messages": CHAT, "id": 1}, indent=1))
    assert load_conversations(tmp_path)[:] == {"messages": [CHAT], "id": [1]}
    (tmp_path / "x.json").write_text(json.dumps([CHAT, CHAT]))
    assert load_conversations(tmp_path)["messages"][:] == [CHAT, CHAT]


def test_columns_that_are_named():
    rows = [
        {
            "instruction": "Translate.",
            "input": "un chien",
            "answer": "a dog",
            "sys": "Be brief.",
            "past": [["Hi.", "Ho."]],
        }
    ]
    columns = {"prompt": "instruction", "completion": "answer", "system": "sys", "history": "past"}
    loaded = load_conversations(Dataset.from_list(rows), columns=columns)
    assert [(turn["role"], turn["content"]) for turn in loaded[0]["messages"]] == [
        ("system", "Be brief."),
        ("user", "Hi."),
        ("assistant", "Ho."),
        ("user", "Translate.\nun chien"),
        ("assistant", "a dog"),
    ]
    assert loaded.column_names == ["messages"]


def test_columns_that_are_named_leave_others_out_with_a_count(caplog):
    rows = [{"question": "Which?", "choices": ["a", "b"], "context": "", "hint": "Look.", "answer": "a"}]
    columns = {"prompt": "question", "completion": "answer"}
    loaded = load_conversations(Dataset.from_list(rows), columns=columns)
    assert loaded[0]["messages"] == [says("user", "Which?"), says("assistant", "a")]
    for name in ("choices", "hint"):
        assert f"texts of `{name}` (a column of its own, no part of the conversation): 1" in caplog.text
    assert "`context`" not in caplog.text
    rows = [{"instruction": "", "input": "a", "choices": [], "query": "a", "output": "b"}]
    assert load_conversations(Dataset.from_list(rows))[0]["messages"] == [says("user", "a"), says("assistant", "b")]


@pytest.mark.parametrize("kind", ["json", "from_list"])
def test_a_prompt_that_holds_its_question_is_refused(kind, tmp_path):
    source = from_source(kind, [{"prompt": "Answer: Which?", "question": "Which?", "answer": "a"}], tmp_path)
    with pytest.raises(ValueError, match="its `prompt` holds its `question` already"):
        load(source)
    columns = {"prompt": "prompt", "completion": "answer"}
    assert load(source, columns=columns)[0]["messages"] == [says("user", "Answer: Which?"), says("assistant", "a")]


def test_ignore_takes_known_names():
    with pytest.raises(ValueError, match=r"`ignore=\['pictures'\]` was given. It is a list of some of"):
        load_conversations(Dataset.from_list([{"messages": CHAT}]), ignore=["pictures"])
    with pytest.raises(TypeError, match=r"given the text 'images' as `ignore`, .* give `\['images'\]`"):
        load_conversations(Dataset.from_list([{"messages": CHAT}]), ignore="images")


def test_content_of_another_kind_is_refused():
    features = Features({"messages": List({"role": Value("string"), "content": Value("binary")})})
    with pytest.raises(ValueError, match=r"message 0 holds a bytes, and a text or a list of parts is needed"):
        load_conversations(Dataset.from_dict({"messages": [[says("user", b"Hi.")]]}, features))


def test_a_picture_beside_a_column_of_stored_images_is_refused():
    rows = {"messages": [[says("user", [{"type": "image", "image": RED}])]], "images": [[PILImage.new("RGB", (4, 4))]]}
    kinds = {
        "messages": List(
            {"role": Value("string"), "content": List({"type": Value("string"), "image": Value("string")})}
        )
    }
    with pytest.raises(ValueError, match=r"it names 1 of the 1 images that it shows in its messages, and has 1 in"):
        load_conversations(Dataset.from_dict(rows, Features({**kinds, "images": List(Image())})))


def test_nothing_of_text_alone_goes_without_a_count(caplog):
    rows = [{"messages": [says("user", "<image>\nWhat is it?"), CHAT[1]]}]
    with caplog.at_level(logging.WARNING):
        assert load_conversations(Dataset.from_list(rows), images=False)[0]["messages"] == CHAT
    assert "marks of images that a row does not have (left out with images=False): 1" in caplog.text


def test_scorers_read_json_by_value(tmp_path):
    data = from_source("load_dataset", MIXED[:1] + MIXED[6:7], tmp_path)
    assert data.features["messages"].feature["content"] == Json()
    assert with_stored(data, "messages") is data
    scorers = [CaptionLength(column="messages"), ResponseLength(), NounCount(column="messages")]
    streamed = add_scores(data.to_iterable_dataset(), scorers)
    for rows in (add_scores(data, scorers), Dataset.from_list(list(streamed), on_mixed_types="use_json")):
        assert rows["caption_length"][:] == [1, 2]
        assert rows["noun_count"][:] == [0, 1]


@pytest.mark.parametrize(
    ("ids", "read"), [(["a", "b", "c"], ["a", "a", "b", "c"]), ([1, "x2", "007"], ["1", "1", "x2", "007"])]
)
def test_captions_and_ids_are_json_by_value(ids, read, tmp_path):
    captions = [["a cat", "a big cat"], "a dog", "5.00"]
    rows = [{"image_id": image_id, "caption": caption} for image_id, caption in zip(ids, captions, strict=True)]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = load_dataset("json", data_files=str(tmp_path / "x.jsonl"), split="train", cache_dir=str(tmp_path / "cache"))
    loaded = load_captioned(data, images=False)
    assert loaded["caption"][:] == ["a cat", "a big cat", "a dog", "5.00"]
    assert loaded["image_id"][:] == read
