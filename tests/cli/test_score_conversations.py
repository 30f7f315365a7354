"""Conversations in the shell: found, scored, held out and shown as what they are."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from crafted import name_files
from datasets import Dataset, Features, Image, List, Value, load_from_disk
from PIL import Image as PILImage
from typer.testing import CliRunner

from hf_curriculum import load_captioned, load_scored, read_provenance
from hf_curriculum.cli import app
from hf_curriculum.data.load import fields_of
from hf_curriculum.data.load_conversations import find_conversations, json_fields
from hf_curriculum.hub.data_card import DataCard
from hf_curriculum.hub.push import push_scored
from hf_curriculum.names import SCORERS

OWN = """
from hf_curriculum import Scorer

class Seconds(Scorer):
    columns, name = ("duration",), "seconds"

    def score(self, batch, rank):
        return batch["duration"]

class Turns(Scorer):
    columns, name = ("messages",), "turns"

    def score(self, batch, rank):
        return [len(chat) for chat in batch["messages"]]
"""


@pytest.fixture
def llava(tmp_path, monkeypatch):
    """Twelve conversations about four images in a folder of LLaVA's form; the first shows two, the last none."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "llava" / "images").mkdir(parents=True)
    for place, name in enumerate("abcd"):
        PILImage.new("RGB", (40 + place, 30), (60 * place, 90, 0)).save(tmp_path / "llava" / "images" / f"{name}.png")
    rows = [
        {
            "id": f"q{number}",
            "image": f"{'abcd'[number % 4]}.png",
            "conversations": [
                {"from": "human", "value": f"<image>\nWhat is number {number}?"},
                {"from": "gpt", "value": "a dog " * (number + 1)},
            ],
        }
        for number in range(11)
    ]
    rows[0]["image"] = ["a.png", "b.png"]
    rows[0]["conversations"][0]["value"] = "<image><image> Which?"
    rows.append({"id": "q11", "conversations": [{"from": "human", "value": " "}]})
    (tmp_path / "llava" / "llava.json").write_text(json.dumps(rows))
    (tmp_path / "my_scorers.py").write_text(OWN)
    known = set(SCORERS)
    yield tmp_path / "llava"
    for name in set(SCORERS) - known:
        del SCORERS[name]


def run(*words, code=0):
    made = CliRunner().invoke(app, [str(word) for word in words])
    assert made.exit_code == code, made.output
    return re.sub(r"[\s│╭╰╮╯─]+", " ", made.output) if code else made.output


def test_conversations_are_found_and_scorers_read_them(llava):
    noun = '{"type": "noun_count", "part": "user", "turns": "first"}'
    run("score", "llava", "scored", "--scorer", "caption_length", "--scorer", noun, "--scorer", "region_count")
    data = load_scored("scored")
    assert data.column_names[:3] == ["messages", "images", "id"]
    assert data["caption_length"][:11] == [2.0 * (number + 1) for number in range(11)]
    assert [value == value for value in data["region_count"]] == [True] * 11 + [False]
    made = read_provenance(data)
    assert made["caption_length"].arguments["column"] == "messages"
    assert made["noun_count"].arguments["part"] == "user"
    assert made["region_count"].arguments["column"] == "images"


@pytest.mark.parametrize("column", ["caption=conversations", "messages=conversations"])
def test_columns_are_named_as_of_captions(llava, column):
    run("score", llava / "llava.json", "scored", "--scorer", "caption_length", "--column", column, "--images", "none")
    data = load_scored("scored")
    assert data.column_names == ["messages", "id", "caption_length"]


def test_whose_messages_and_which(llava):
    options = ("--scorer", "caption_length", "--part", "user", "--turns", "first")
    run("score", "llava", "scored", *options, "--drop-empty")
    assert load_scored("scored")["caption_length"][:] == [1.0] + [4.0] * 10
    told = run("score", "llava", "other", "--scorer", "region_count", "--part", "user", code=2)
    assert "None of the scorers reads what somebody says" in told


def test_odd_conversations_are_dropped_or_taken(llava):
    rows = [{"prompt": "What is <image> in SVG?", "completion": "A file."}, {"prompt": "Hi.", "completion": "Ho!"}]
    (llava / "llava.json").write_text(json.dumps(rows))
    told = run("score", llava / "llava.json", "refused", "--scorer", "caption_length", code=1)
    assert "1 of the 2 conversations" in told
    assert "--bad-rows drop" in told
    for option, lengths in (("--bad-rows=drop", [1.0]), ("--ignore=images", [2.0, 1.0])):
        told = run("score", llava / "llava.json", option[2:6], "--scorer", "caption_length", option)
        assert load_scored(option[2:6])["caption_length"][:] == lengths
    Path("captions.csv").write_text("file_name,caption\na.png,A dog.\n")
    told = run("score", "captions.csv", "other", "--ignore", "images", "--scorer", "caption_length", code=2)
    assert "The data holds no conversations. Leave it out" in told


def test_options_of_captions_are_refused(llava):
    for option in ("--objects=x.json", "--download"):
        told = run("score", "llava", "other", option, code=2)
        assert "The data holds conversations. Leave it out" in told


def test_a_scorer_of_ones_own_on_conversations_and_on_any_data(llava):
    run("score", "llava", "scored", "--scorer", "my_scorers:Turns")
    assert load_scored("scored")["turns"][:] == [2.0] * 11 + [1.0]
    Dataset.from_dict({"duration": [1.5, 2.5], "label": [0, 1]}).to_parquet("audio.parquet")
    run("score", "audio.parquet", "heard", "--scorer", "my_scorers:Seconds")
    assert load_scored("heard")[:] == {"duration": [1.5, 2.5], "label": [0, 1], "seconds": [1.5, 2.5]}
    told = run("score", "audio.parquet", "heard2", "--scorer", "caption_length", code=1)
    assert "`caption`, `image` are not in the data" in told


def test_who_reads_captions_says_what_reads_conversations(llava):
    run("score", "llava", "scored", "--scorer", "response_length")
    told = run("train", "scored", "run", "--curriculum", "phases", code=1)
    assert "scored holds conversations, and `train` trains captioners on the column `caption`." in told
    assert not Path("run/model").exists()
    (file,) = Path("llava").glob("*.json")
    with pytest.raises(ValueError, match=r"holds conversations, and load_captioned .*`load_conversations\('llava/"):
        load_captioned(file)


def test_any_data_names_no_files_outside(llava, tmp_path):
    PILImage.new("RGB", (4, 4)).save(tmp_path / "secret.png")
    features = Features({"image": List(Image()), "duration": Value("float64")})
    Dataset.from_dict({"image": [[], []], "duration": [1.0, 2.0]}, features).save_to_disk(tmp_path / "given" / "x")
    name_files(tmp_path / "given" / "x", "list", str(tmp_path / "secret.png"))
    told = run("score", tmp_path / "given" / "x", "heard", "--scorer", "my_scorers:Seconds", code=1)
    assert "names files outside of" in told
    run("score", tmp_path / "given" / "x", "heard", "--scorer", "my_scorers:Seconds", "--allow-outside")


def test_what_shows_one_image_is_held_out_together(llava):
    run("score", "llava", "scored", "--scorer", "caption_length", "--hold-out", "0.4")
    parts = load_scored("scored")
    sides = {name: {image.size for images in part["images"] for image in images} for name, part in parts.items()}
    alone = {name: {row[0].size for row in part["images"] if len(row) == 1} for name, part in parts.items()}
    assert sum(map(len, parts.values())) == 12
    assert len(parts["validation"]) >= 1
    assert alone["train"].isdisjoint(alone["validation"])
    assert set.union(*sides.values()) == {(40, 30), (41, 30), (42, 30), (43, 30)}


def test_text_alone_is_held_out_by_row(llava):
    rows = [{"messages": [{"role": "user", "content": f"number {number}"}]} for number in range(10)]
    (llava / "llava.json").write_text(json.dumps(rows))
    run("score", "llava", "scored", "--scorer", "caption_length", "--part", "user", "--hold-out", "0.2")
    assert {name: len(part) for name, part in load_scored("scored").items()} == {"train": 8, "validation": 2}


def test_an_inspection_shows_them_as_conversations(llava, tmp_path):
    run("score", "llava", "scored", "--scorer", "caption_length")
    told = run("inspect", "scored", "--examples", "2", "--html", "page")
    assert told.startswith("12 rows, 12 images")
    assert "row 0        user: [image] [image] Which? assistant: a dog a dog" in told.replace(
        "a dog", "a dog a dog", 1
    )
    found = json.loads(CliRunner().invoke(app, ["inspect", "scored", "--json"]).stdout)
    assert found["scores"][0]["easiest"][0]["caption"] == "user: [image] [image] Which?\nassistant: a dog "
    page = (tmp_path / "page" / "report.html").read_text()
    assert "user: [image] What is number 10?" in page
    assert page.count("data:image/jpeg") == 4


def test_without_images_the_page_has_a_table(llava, tmp_path):
    run("score", "llava", "scored", "--scorer", "caption_length", "--images", "none")
    assert run("inspect", "scored", "--html", "page").startswith("12 rows\n")
    page = (tmp_path / "page" / "report.html").read_text()
    assert "conversation" in page
    assert "user: What is number 10?" in page


def test_a_card_shows_them_and_a_push_counts_their_images(llava):
    run("score", "llava", "scored", "--scorer", "caption_length")
    data = load_scored("scored")
    card = DataCard("me/chats", {"train": data}, "train", num_examples=2, thumbnails=True)
    text = card.render()
    assert "task_categories:\n- image-text-to-text" in text
    assert "| score | messages | row |" in text
    assert r"user: \[image\] \[image\] Which? assistant: a dog" in text or "user: [image] [image] Which?" in text
    assert len([name for name in card.files() if "example_" in name]) == 3  # one of the four is shown twice
    assert push_scored(data, "me/chats", dry_run=True).images == 12
    assert DataCard("me/x", {"train": data.remove_columns("images")}, "train").front().count("text-generation") == 1


def test_which_data_holds_conversations(tmp_path):
    chats = ["id", "image", "conversations"]
    assert find_conversations(chats) == {}
    assert find_conversations(["image", "question", "answer"]) == {}
    assert find_conversations(["image", "caption", "conversations"]) is None
    assert find_conversations(["image", "label"]) is None
    assert find_conversations(chats, {"image": "image"}) == {"images": "image"}
    assert find_conversations(chats, {"caption": "id"}) is None
    assert find_conversations(["prompt", "text"], {"prompt": "prompt", "completion": "text"}) is not None
    assert json_fields(tmp_path) is None
    (tmp_path / "x.jsonl").write_text('{"a": 1, "b": 2}\n{"c": 3}\n')
    assert json_fields(tmp_path) == fields_of(tmp_path / "x.jsonl") == ["a", "b"]
    for content in ("[1, 2]", "", "[", "x" * 20):
        (tmp_path / "x.jsonl").write_text(content)
        assert json_fields(tmp_path) is None
    (tmp_path / "x.jsonl").unlink()
    (tmp_path / "captions.csv").write_text("file_name,caption\na.png,b\n")
    assert fields_of(tmp_path) is None
    data = Dataset.from_dict(
        {"images": [[]], "text": ["a"]},
        Features({"images": List(Image()), "text": Value("string")}),
    )
    data.save_to_disk(tmp_path / "saved")
    assert fields_of(tmp_path / "saved") == load_from_disk(tmp_path / "saved").column_names == ["images", "text"]
