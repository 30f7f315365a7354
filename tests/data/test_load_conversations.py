"""Conversations of every form that is around become `messages` with `images`."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import datasets
import pandas as pd
import pytest
from datasets import Dataset, DatasetDict, Features, Image, LargeList, List, Value
from PIL import Image as PILImage

from hf_curriculum import CaptionLength, CLIPSimilarity, NounCount, add_scores, load_conversations
from hf_curriculum.data.load_conversations import json_fields

TEXT = Value("string")
PLAIN = List({"role": TEXT, "content": TEXT})
WITH_IMAGES = List({"role": TEXT, "content": List({"type": TEXT, "text": TEXT})})
IMAGE = {"type": "image", "text": None}


def text(said):
    return {"type": "text", "text": said}


def user(content):
    return {"role": "user", "content": content}


def assistant(content):
    return {"role": "assistant", "content": content}


def human(value):
    return {"from": "human", "value": value}


def gpt(value):
    return {"from": "gpt", "value": value}


CHAT = [user("What is it?"), assistant("A dog.")]


def test_speakers_of_sharegpt(tmp_path):
    names = ["system", "human", "gpt", "function_call", "observation", "tool", "user", "assistant", "chatgpt"]
    row = {"conversations": [{"from": name, "value": name} for name in names]}
    (tmp_path / "chat.json").write_text(json.dumps([row]))
    found = load_conversations(tmp_path / "chat.json")[0]["messages"]
    roles = ["system", "user", "assistant", "assistant", "tool", "tool", "user", "assistant", "assistant"]
    assert found == [{"role": role, "content": name} for role, name in zip(roles, names, strict=True)]


@pytest.fixture
def llava(tmp_path):
    """LLaVA's file and folder of images: one image, none, two, the last one without a mark."""
    for name in "abc":
        (tmp_path / "train2017").mkdir(exist_ok=True)
        PILImage.new("RGB", (ord(name) - 90, 6)).save(tmp_path / "train2017" / f"{name}.jpg")
    rows = [
        {"id": "1", "image": "a.jpg", "conversations": [human("<image>\nWhat is it?"), gpt("A dog.")]},
        {"id": "2", "conversations": [human("Hi"), gpt("Ho")]},
        {"id": "3", "image": ["b.jpg", "c.jpg"], "conversations": [human("Is <image> like <image>?"), gpt("No")]},
        {"id": "4", "image": "c.jpg", "conversations": [{"from": "system", "value": "s"}, human("Who?"), gpt("I")]},
    ]
    (tmp_path / "llava.json").write_text(json.dumps(rows))
    return tmp_path / "llava.json"


def test_llava_shows_its_images_where_the_text_says(llava):
    data = load_conversations(llava, images=llava.parent / "train2017")
    assert data.column_names == ["messages", "images", "id"]
    assert data.features["messages"] == WITH_IMAGES
    assert data.features["images"] == List(Image())
    assert data["messages"][:] == [
        [user([IMAGE, text("What is it?")]), assistant([text("A dog.")])],
        [user([text("Hi")]), assistant([text("Ho")])],
        [user([text("Is"), IMAGE, text("like"), IMAGE, text("?")]), assistant([text("No")])],
        [{"role": "system", "content": [text("s")]}, user([IMAGE, text("Who?")]), assistant([text("I")])],
    ]
    assert [[image.width for image in images] for images in data["images"]] == [[7], [], [8, 9], [9]]
    assert all(image["bytes"] is None for image in data.with_format("arrow")["images"][0].values.to_pylist())


def test_text_alone_drops_images_and_their_marks(llava):
    data = load_conversations(llava, images=False)
    assert data.column_names == ["messages", "id"]
    assert [chat[-2]["content"] for chat in data["messages"]] == ["What is it?", "Hi", "Is\nlike\n?", "Who?"]


def png(width=4):
    return PILImage.new("RGB", (width, 4))


STORED = Features({"bytes": Value("binary"), "path": TEXT})


@pytest.mark.parametrize(
    ("cells", "feature"),
    [
        ([png(5), None], Image()),
        ([[png(5)], []], List(Image())),
        ([[png(5)], None], LargeList(Image())),
        ([[png(5)], []], List(Image(decode=False))),
    ],
)
def test_images_that_data_holds(cells, feature):
    texts = [[{"user": "a", "assistant": "b"}], [{"user": "c", "assistant": "d"}]]
    kind = List({"user": TEXT, "assistant": TEXT})
    name = "image" if isinstance(feature, Image) else "images"
    data = Dataset.from_dict({name: cells, "texts": texts}, Features({name: feature, "texts": kind}))
    for given in (data, data.select([1, 0]), data.shuffle(seed=3)):
        loaded = load_conversations(given)
        order = [row[0]["user"] == "c" for row in given["texts"]]
        assert loaded.features["images"] == (LargeList if isinstance(feature, LargeList) else List)(Image())
        assert [[image.size for image in images or ()] for images in loaded["images"]] == [
            [] if other else [(5, 4)] for other in order
        ]
        assert [chat[0]["content"] for chat in loaded["messages"]] == [
            [text("c")] if other else [IMAGE, text("a")] for other in order
        ]


def test_images_as_bytes_and_as_names_in_parquet(tmp_path):
    png().save(tmp_path / "a.png")
    held = (tmp_path / "a.png").read_bytes()
    chats = [CHAT, CHAT]
    for name, cells in {"image": ["a.png", None], "images": [["a.png", "a.png"], []]}.items():
        Dataset.from_dict({"messages": chats, name: cells}).to_parquet(tmp_path / "named.parquet")
        loaded = load_conversations(tmp_path / "named.parquet")
        assert [len(images) for images in loaded["images"]] == [1 if name == "image" else 2, 0]
        assert loaded[0]["messages"][0]["content"] == [IMAGE] * len(loaded[0]["images"]) + [text("What is it?")]
    for name, cells in {"image": [held, None], "images": [[held], []]}.items():
        loaded = load_conversations(Dataset.from_dict({"messages": chats, name: cells}))
        assert [[image.size for image in images] for images in loaded["images"]] == [[(4, 4)], []]


def test_parts_of_a_message_show_images():
    shown = [[user([{"type": "text", "text": "What?"}, {"type": "image", "text": None}]), assistant([text("x")])]]
    data = Dataset.from_dict(
        {"messages": shown, "images": [[png()]]}, Features({"messages": WITH_IMAGES, "images": List(Image())})
    )
    assert load_conversations(data)["messages"][:] == shown


def test_own_names_of_columns():
    data = Dataset.from_dict(
        {"chat": [CHAT], "photo": [png()], "q": ["Q"], "a": ["A"]},
        Features({"chat": PLAIN, "photo": Image(), "q": TEXT, "a": TEXT}),
    )
    loaded = load_conversations(data, columns={"messages": "chat", "images": "photo"})
    assert loaded.column_names == ["messages", "images", "q", "a"]
    assert loaded[0]["images"][0].size == (4, 4)
    pair = load_conversations(data, columns={"prompt": "q", "completion": "a"})
    assert pair[0]["messages"] == [user("Q"), assistant("A")]


def test_splits(tmp_path):
    for name in ("train", "test"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"messages": CHAT, "id": name}))
    loaded = load_conversations(tmp_path)
    assert {name: part["id"][:] for name, part in loaded.items()} == {"train": ["train"], "test": ["test"]}
    assert load_conversations(tmp_path, split="test")["id"][:] == ["test"]
    both = DatasetDict({"train": Dataset.from_dict({"messages": [CHAT]})})
    assert load_conversations(both)["train"][0]["messages"] == CHAT


def test_unreadable_images_leave_their_rows_out(llava, caplog, tmp_path):
    (llava.parent / "train2017" / "c.jpg").write_bytes(b"no picture")
    with caplog.at_level(logging.WARNING):
        data = load_conversations(llava, images=llava.parent / "train2017", unreadable_log=tmp_path / "log.txt")
    assert data["id"][:] == ["1", "2"]
    assert "1 image cannot be read, which leaves out 2 rows" in caplog.text
    assert "c.jpg" in (tmp_path / "log.txt").read_text()
    unchecked = load_conversations(llava, images=llava.parent / "train2017", check_images=False)
    assert unchecked["id"][:] == ["1", "2", "3", "4"]
    small = load_conversations(llava, images=llava.parent / "train2017", max_pixels=45)
    assert small["id"][:] == ["1", "2"]


def test_bytes_of_lists_are_checked_too(caplog):
    held = [[{"bytes": b"no", "path": None}], [], [{"bytes": b"no", "path": None}]]
    rows = {"messages": [CHAT] * 3, "images": held}
    data = Dataset.from_dict(rows, Features({"messages": PLAIN, "images": List(Image())}))
    with caplog.at_level(logging.WARNING):
        assert len(load_conversations(data)) == 1
    assert "1 image cannot be read, which leaves out 2 rows" in caplog.text
    with pytest.raises(ValueError, match=r"None of the 1 images of the split 'all' can be read"):
        load_conversations(data.select([0, 2]))


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"image": "a.jpg", "conversations": [human("<image> <image>"), gpt("x")]}, "it shows 2 images and has 1"),
        ({"conversations": [human("<image>"), gpt("x")]}, "it shows 1 images and has 0"),
        ({"image": "a.jpg", "conversations": [gpt("x")]}, "it has 1 images, and no message of a user"),
        ({"image": {"x": 1}, "conversations": [human("x")]}, "its `image` is no name of a file"),
        ({"conversations": [{"from": "narrator", "value": "x"}]}, "message 0 is of the role 'narrator'"),
        ({"conversations": [{"who": "me"}]}, "message 0 is .*a mapping with `role` and `content`, `from` and `value`"),
        ({"conversations": 3}, "it is .*int.*, and a list of messages is needed"),
        ({"conversations": ["x"]}, "message 0 is 'x'"),
        ({"conversations": [{"from": "human", "value": {"x": 3}}]}, "message 0 has the part"),
    ],
)
def test_rows_that_cannot_be_read_are_named_and_counted(row, problem, llava):
    rows = [*json.loads(llava.read_text()), row, row]
    llava.write_text(json.dumps(rows))
    with pytest.raises(ValueError, match=rf"2 of the 6 conversations of .*llava\.json .* Row 5: .*{problem}"):
        load_conversations(llava, images=llava.parent / "train2017")


QUESTION = {"question": "Which?", "answer": "B"}
MMBENCH = {"A": "a dog", "B": "a cat", "C": float("nan"), "D": None}


@pytest.mark.parametrize("kind", ["json", "dataset", "csv"])
@pytest.mark.parametrize(
    ("row", "problem", "ignore"),
    [
        *(
            (
                {"prompt": "q", "completion": "a", name: value},
                f"it has `{name}`: {value!r}, so its answer is a bad",
                "weights",
            )
            for name, value in [
                ("label", 0),
                ("label", "False"),
                ("desirable", "0"),
                ("kto_tag", "no"),
                ("label", False),
            ]
        ),
        ({**QUESTION, **MMBENCH}, "it has `A`, which is no part of the conversation", None),
        *(
            ({**QUESTION, name: "a dog"}, f"it has `{name}`, which is no part of the conversation", None)
            for name in ("option_a", "option1", "choice_d", "opa", "ending0", "distractor3", "E")
        ),
        (
            {"query": "q", "response": "a", "history": [["Hi.", None]]},
            "it asks .*'Hi.'.* and answers None: one of",
            None,
        ),
        (
            {"query": "q", "response": "a", "history": [[None, "Hi."]]},
            "it asks .*None.* and answers Hi.: one of",
            None,
        ),
        ({"texts": [{"user": "a", "assistant": None}, {"user": "b", "assistant": "c"}]}, "it asks .*'a'.* None", None),
        (
            {"conversation": [{"input": "q", "output": "a", "output_with_loss": False}]},
            "has `output_with_loss`: False",
            "weights",
        ),
        ({"messages": [user("q"), {**assistant("a"), "weight": 0}]}, "has `weight`: 0", "weights"),
    ],
)
def test_rows_that_would_be_trained_wrongly_are_refused(row, problem, ignore, kind, tmp_path):
    if kind == "dataset":
        source = Dataset.from_list([row])
    elif kind == "json":
        (source := tmp_path / "x.json").write_text(json.dumps([row]))
    else:
        cells = {name: json.dumps(cell) if isinstance(cell, list) else cell for name, cell in row.items()}
        pd.DataFrame([cells]).to_csv(source := tmp_path / "x.csv", index=False)
        problem = problem.replace(": 0,", ": '0',").replace(": False,", ": 'False',") if "bad" in problem else problem
    with pytest.raises(ValueError, match=f"1 of the 1 conversations .*{problem}"):
        load_conversations(source)
    if ignore:
        said = [turn["content"] for turn in load_conversations(source, ignore=[ignore])[0]["messages"]]
        assert said == ["q", "a"]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"instruction": "q", "output": ["a", "b"]}, r"its assistant says the list \['a', 'b'\]"),
        ({"prompt": [1, 2], "completion": "a"}, r"its user says the list \[1, 2\]"),
    ],
)
def test_lists_of_texts_are_no_messages(row, said):
    with pytest.raises(ValueError, match=f"Row 0 .*{said}, and one text or messages are needed"):
        load_conversations(Dataset.from_list([row]))


@pytest.mark.parametrize("label", [1, "1", True, "True", "true", "", None, 2, "good"])
def test_labels_of_good_answers_and_others_pass(label, caplog):
    rows = [{"prompt": "q", "completion": "a", "label": label}]
    assert load_conversations(Dataset.from_list(rows))[0] == {"messages": [user("q"), assistant("a")], "label": label}
    assert not caplog.records


def test_classes_are_no_labels_of_good_answers():
    kinds = Features({"messages": PLAIN, "label": datasets.ClassLabel(names=["red", "blue"])})
    assert load_conversations(Dataset.from_dict({"messages": [CHAT], "label": [0]}, kinds))["label"][:] == [0]


def test_weights_that_are_not_nought_are_counted(caplog):
    rows = [{"messages": [user("q"), {**assistant("a"), "weight": 0.5}]}]
    assert load_conversations(Dataset.from_list(rows))[0]["messages"] == [user("q"), assistant("a")]
    assert "field `weight` of messages (not kept): 1" in caplog.text


def colours(row):
    return [image.convert("RGB").getpixel((0, 0)) for image in row["images"]]


@pytest.fixture
def two(tmp_path):
    """A folder with a red image, a blue one, and another folder with the red one."""
    for place in (tmp_path, tmp_path / "all"):
        place.mkdir(exist_ok=True)
        for colour in ("red", "blue"):
            PILImage.new("RGB", (4, 4), colour).save(place / f"{colour}.png")
    return tmp_path


RED, BLUE = (255, 0, 0), (0, 0, 255)


@pytest.mark.parametrize("name", ["index", "image_index"])
@pytest.mark.parametrize(("numbers", "reads"), [([0, 1], True), ([1, 2], True), ([1, 0], False), ([0, 0], False)])
def test_parts_that_number_the_images_stand_in_their_order(name, numbers, reads, two):
    first, second = ({"type": "image", name: number} for number in numbers)
    row = {"messages": [user([text("one:"), first, text("other:"), second]), assistant("x")]}
    (two / "x.json").write_text(json.dumps([{**row, "images": ["red.png", "blue.png"]}]))
    for source in (two / "x.json", datasets.load_dataset("json", data_files=str(two / "x.json"), split="train")):
        if reads:
            loaded = load_conversations(source, images=two)[0]
            assert loaded["messages"][0]["content"] == [text("one:"), IMAGE, text("other:"), IMAGE]
            assert colours(loaded) == [RED, BLUE]
        else:
            with pytest.raises(ValueError, match=rf"its parts number the images \[{numbers[0]}, {numbers[1]}\], and"):
                load_conversations(source, images=two)


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        ({"image": "blue.png", "images": ["red.png"]}, None),
        ({"image": "red.png", "images": []}, None),
        ({"image": "red.png", "image_path": "blue.png"}, None),
        ({"image": "all/red.png", "images": ["red.png"]}, [RED]),
        ({"image": None, "images": ["red.png", "blue.png"]}, [RED, BLUE]),
        ({"image": "red.png", "image_url": "https://a.b/c.png"}, [RED]),
    ],
)
def test_two_columns_of_images_in_a_row(row, shown, two):
    (two / "x.json").write_text(json.dumps([{"messages": CHAT, **row}]))
    rows = Dataset.from_list([{"messages": CHAT, **row}], Features({"messages": PLAIN, **kinds(row)}))
    for source in (two / "x.json", rows):
        if shown is not None:
            loaded = load_conversations(source, images=two)
            assert colours(loaded[0]) == shown
        else:
            with pytest.raises(
                ValueError, match=r"and other images in `image.*Name the column to read: columns=\{'images'"
            ):
                load_conversations(source, images=two)
    named = "images" if "images" in row else "image"
    assert len(load_conversations(two / "x.json", images=two, columns={"images": named})) == 1
    assert load_conversations(two / "x.json", images=False)[0]["messages"] == CHAT


def kinds(row):
    return {name: List(TEXT) if name == "images" else TEXT for name in row}


def test_two_columns_of_stored_images_are_counted(caplog):
    kinds = Features({"messages": PLAIN, "images": List(Image()), "image": Image(), "image_path": TEXT})
    rows = {"messages": [CHAT], "images": [[png(5)]], "image": [png(6)], "image_path": ["a.png"]}
    loaded = load_conversations(Dataset.from_dict(rows, kinds))
    assert [image.width for image in loaded[0]["images"]] == [5]
    assert "left out: images of `image` beside `images` (a column of its own, not shown): 1." in caplog.text


def test_rows_of_a_data_set_that_cannot_be_read():
    data = Dataset.from_dict({"messages": [CHAT, [{"role": "x", "content": "y"}], CHAT]})
    with pytest.raises(ValueError, match=r"1 of the 2 conversations of the data set cannot .* Row 1 .*role 'x'"):
        load_conversations(data.select([2, 1]))
    assert len(load_conversations(data.select([2, 0]))) == 2  # what was filtered out does not matter
    shown = Dataset.from_dict({"messages": [CHAT], "images": [["a.png"]]})
    with pytest.raises(ValueError, match=r"Row 0 .*it shows 2 images and has 1"):
        load_conversations(shown.map(lambda row: {"messages": [user("<image><image>")]}), check_images=False)
    with pytest.raises(ValueError, match=r"its `images` is no name of a file"):
        load_conversations(Dataset.from_dict({"messages": [CHAT], "images": [["a.png", ""]]}))


def test_wrong_arguments(tmp_path, llava):
    data = Dataset.from_dict({"messages": [CHAT]})
    with pytest.raises(ValueError, match=r"`columns` has the keys \['text'\]"):
        load_conversations(data, columns={"text": "messages"})
    with pytest.raises(ValueError, match=r"`messages` is not in the data, .*--column messages="):
        load_conversations(Dataset.from_dict({"caption": ["a"]}))
    with pytest.raises(ValueError, match=r"\{'images': 'x'\} would have no effect: the data has no column images or"):
        load_conversations(data, images="x")
    with pytest.raises(ValueError, match=r"`images='x'` was given, but the data holds its images itself"):
        load_conversations(
            Dataset.from_dict(
                {"messages": [CHAT], "images": [[]]}, Features({"messages": PLAIN, "images": List(Image())})
            ),
            images="x",
        )
    with pytest.raises(ValueError, match=r"The column taken for `images` holds .*int64"):
        load_conversations(Dataset.from_dict({"messages": [CHAT], "images": [3]}))
    with pytest.raises(
        ValueError, match=r"The data has columns \['messages'\] already, which \['chat'\] would overwr"
    ):
        load_conversations(Dataset.from_dict({"messages": [CHAT], "chat": [CHAT]}), columns={"messages": "chat"})
    with pytest.raises(TypeError, match=r"`load_conversations` was given .*IterableDataset"):
        load_conversations(data.to_iterable_dataset())
    with pytest.raises(ValueError, match=r"would have no effect: .* is not loaded by"):
        load_conversations(llava, name="x")
    (empty := tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"None of the 3 images"):
        load_conversations(llava, images=empty)
    with pytest.raises(FileNotFoundError, match="There is no file or folder"):
        load_conversations(tmp_path / "nothing.json")


def test_files_that_are_not_recognised(tmp_path):
    with pytest.raises(ValueError, match=r"holds \[\], of which it recognises nothing"):
        load_conversations(tmp_path)
    (tmp_path / "one.json").write_text("{}")
    with pytest.raises(ValueError, match=r"one\.json, which holds something else than a list of objects"):
        load_conversations(tmp_path)
    (tmp_path / "one.json").write_text("[]")
    with pytest.raises(ValueError, match=r"one\.json, which holds no rows"):
        load_conversations(tmp_path)
    (tmp_path / "two.jsonl").write_text("")
    with pytest.raises(ValueError, match=r"holds \['one.json', 'two.jsonl'\], and it is not known which is meant"):
        load_conversations(tmp_path)


FLAT = [("prompt", "completion"), ("question", "answer"), ("query", "response"), ("user", "assistant")]


@pytest.mark.parametrize("pair", [*FLAT, ("instruction", "output")])
def test_a_list_of_rows_on_one_line_is_no_conversation(pair, tmp_path):
    rows = [dict(zip(pair, texts, strict=True)) for texts in (("q1", "a1"), ("q2", "a2"))]
    (tmp_path / "x.json").write_text(json.dumps(rows))
    assert load_conversations(tmp_path / "x.json")["messages"][:] == [
        [user("q1"), assistant("a1")],
        [user("q2"), assistant("a2")],
    ]
    lists = [CHAT, [{**row, "image": "a.png"} for row in rows]]
    (tmp_path / "x.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lists))
    with pytest.raises(ValueError, match=r"x\.jsonl: Line 2 is a list of 2 objects, .*rows or the turns of one"):
        load_conversations(tmp_path / "x.jsonl")
    (tmp_path / "x.jsonl").write_text(json.dumps({"texts": rows}))
    assert len(load_conversations(tmp_path / "x.jsonl")[0]["messages"]) == 4


CELLS = ["0012", "1.50", "TRUE", "False", "NA", "1e5", "+49", " 5 ", "1" * 23, "a, b", 'the "end"', "two\nlines"]


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".csv.gz", "folder"])
def test_cells_of_tables_are_texts_as_they_stand(ending, tmp_path):
    rows = pd.DataFrame({"id": "007", "question": CELLS, "answer": CELLS[::-1], "system": ["", *CELLS[1:]]})
    file = tmp_path / ("x.csv" if ending == "folder" else f"x{ending}")
    rows.to_csv(file, index=False, sep="\t" if ending == ".tsv" else ",")
    data = load_conversations(tmp_path if ending == "folder" else file)
    chats = [[user(asked), assistant(answer)] for asked, answer in zip(CELLS, CELLS[::-1], strict=True)]
    systems = [[], *([{"role": "system", "content": cell}] for cell in CELLS[1:])]
    assert data["messages"][:] == [[*system, *chat] for system, chat in zip(systems, chats, strict=True)]
    assert data["id"][:] == ["007"] * len(CELLS)
    assert json_fields(file) == ["id", "question", "answer", "system"]


def test_tables_hold_messages_and_names_of_images_too(llava):
    rows = pd.read_json(llava, dtype=False).fillna("")
    rows["conversations"] = rows["conversations"].map(json.dumps)
    rows["image"] = rows["image"].map(lambda name: json.dumps(name) if isinstance(name, list) else name)
    rows.to_csv(llava.with_suffix(".csv"), index=False)
    table, file = (load_conversations(llava.with_suffix(end), images=llava.parent) for end in (".csv", ".json"))
    assert table.with_format("arrow")[:].equals(file.select_columns(table.column_names).with_format("arrow")[:])


def test_tables_are_read_strictly(tmp_path):
    (tmp_path / "x.csv").write_text("question,answer\nwhat is it?,a dog,extra\nwhere?,here\n")
    with pytest.raises(ValueError, match="Line 2 has more cells than the header"):
        load_conversations(tmp_path / "x.csv")
    assert load_conversations(tmp_path / "x.csv", bad_rows="drop")["messages"][:] == [
        [user("where?"), assistant("here")]
    ]
    (tmp_path / "x.txt").write_text("question,answer\nq,a\n")
    with pytest.raises(ValueError, match=r"load_conversations does not recognise .*x\.txt by its ending '\.txt'"):
        load_conversations(tmp_path / "x.txt")


def test_cells_that_datasets_reads_are_counted(tmp_path, caplog):
    (tmp_path / "x.csv").write_text("question,answer\nq,007\n")
    loaded = load_conversations("csv", data_files=str(tmp_path / "x.csv"), split="train")
    assert loaded[0]["messages"] == [user("q"), assistant("7")]
    assert "cells of CSV as written, of which `datasets` makes numbers: name the file itself: 1" in caplog.text


@pytest.mark.parametrize(
    ("read", "others"),
    [
        (["a.json"], ["sub/b.json", "sub/c.parquet"]),
        (["train.csv", "test.csv"], ["data/z.tsv"]),
        (["x.parquet", "y.parquet"], []),
        (["train-0.parquet"], ["extra.parquet", "sub/a.jsonl"]),
        (["a.json", "dataset_info.json", ".hidden/b.json"], []),
    ],
)
def test_files_of_a_folder_that_are_not_read_are_counted(read, others, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    data, folder = Dataset.from_dict({"prompt": ["p"], "completion": ["c"]}), tmp_path / "chats"
    for name in (*read, *others):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write = {".json": data.to_json, ".jsonl": data.to_json, ".parquet": data.to_parquet}
        write.get(Path(name).suffix, data.to_csv)(folder / name)
    loaded = load_conversations(folder)
    parts = loaded.values() if isinstance(loaded, DatasetDict) else [loaded]
    assert sum(map(len, parts)) == len([name for name in read if "." not in name[:1] and "info" not in name])
    told = (
        f"other files that may hold conversations (not read): {len(others)} ({min(others, default='')}, for example)"
    )
    assert (told in caplog.text) == bool(others)
    assert all((told in part.info.description) == bool(others) for part in parts)


def test_files_of_two_kinds_in_a_folder_are_refused(tmp_path):
    (tmp_path / "a.json").write_text('[{"prompt": "x", "completion": "y"}]')
    Dataset.from_dict({"prompt": ["p"], "completion": ["c"]}).to_parquet(tmp_path / "z.parquet")
    with pytest.raises(ValueError, match=r"holds \['a.json', 'z.parquet'\], and it is not known which is meant"):
        load_conversations(tmp_path)


def test_names_of_images_lead_nowhere_else(llava, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "secret.png"
    png().save(outside)
    rows = json.loads(llava.read_text())
    refused = {str(outside): r"names files outside of .*allow_outside=True", "http://127.0.0.1:9/a.png": "not fetched"}
    for name, problem in {**refused, outside.as_uri(): refused[str(outside)]}.items():
        rows[0]["image"] = name
        llava.write_text(json.dumps(rows))
        with pytest.raises(ValueError, match=problem):
            load_conversations(llava, images=llava.parent / "train2017")
    rows[0]["image"] = str(outside)
    llava.write_text(json.dumps(rows))
    trusted = load_conversations(llava, images=llava.parent / "train2017", allow_outside=True)
    assert trusted[0]["images"][0].size == (4, 4)
    (llava.parent / "linked").mkdir()
    (llava.parent / "linked" / "x.json").symlink_to(llava)
    with pytest.raises(ValueError, match=r"names files outside of"):
        load_conversations(llava.parent / "linked")


def test_a_folder_of_parquet_is_read_like_a_hub_data_set(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    data = Dataset.from_dict(
        {"images": [[png()]], "texts": [[{"user": "a", "assistant": "b"}]]},
        Features({"images": List(Image()), "texts": List({"user": TEXT, "assistant": TEXT})}),
    )
    (tmp_path / "repo" / "data").mkdir(parents=True)
    data.to_parquet(tmp_path / "repo" / "data" / "train-00000-of-00001.parquet")
    loaded = load_conversations(tmp_path / "repo", split="train")
    assert loaded[0]["messages"] == [user([IMAGE, text("a")]), assistant([text("b")])]


def test_what_is_loaded_is_scored(llava):
    data = load_conversations(llava, images=llava.parent / "train2017")
    scorers = [
        CaptionLength(column="messages"),
        NounCount(column="messages", part="user", turns="first"),
        CLIPSimilarity(image_column="images", caption_column="messages", part="all", aggregate="max"),
    ]
    scored = add_scores(data, scorers)
    assert scored["caption_length"][:] == [2, 1, 1, 1]
    assert [value == value for value in scored["clip_similarity"]] == [True, False, True, True]
