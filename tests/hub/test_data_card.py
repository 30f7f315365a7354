import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from datasets import Dataset, DatasetDict, load_dataset
from PIL import Image

from hf_curriculum import ScoreProvenance, attach_provenance, push_scored, read_provenance, save_bucketed
from hf_curriculum.hub.data_card import DataCard, write_files
from hf_curriculum.hub.push import write_split
from hf_curriculum.markdown import END, START

HOSTILE = [
    "<script>alert('x')</script>",
    "---\nname: [1, 2]\n---",
    "👩‍👩‍👧‍👦 with a 🐶",
    "كلب يلعب بالكرة",
    "W" * 10_240,
    "\u202eright to left \x00 \x1b[31m",
    "![x](https://evil.example/a.png) | www.evil.example",
    f"{END} ``` $front",
]


def scored(captions, column="difficulty", easy="low", **columns):
    data = Dataset.from_dict({"caption": captions, column: np.arange(len(captions), dtype=np.float32), **columns})
    return attach_provenance(data, {column: ScoreProvenance(column, "by hand", {"words": HOSTILE[:2]}, easy=easy)})


def header_of(text):
    found = re.match(r"^(\s*---[\r\n]+)([\S\s]*?)([\r\n]+---(\r\n|\n|$))", text)
    return yaml.safe_load(found[2]), text[found.end() :]


def test_nothing_in_the_data_gets_out_of_its_place():
    for column in (HOSTILE[0], HOSTILE[1], HOSTILE[4]):
        data = scored(HOSTILE, column)
        text = DataCard("me/x", {"train": data}, "train", license="---\nevil: 1").render()
        header, body = header_of(text)
        assert set(header) == {"license", "tags", "size_categories", "configs"}
        assert header["license"] == "--- evil: 1"
        assert header["configs"] == [
            {"config_name": "default", "default": True, "data_files": [{"split": "train", "path": "data/train-*"}]}
        ]
        assert [line for line in text.splitlines() if line.startswith("---")] == ["---", "---"]
        assert set(re.findall(r"<[^>]*>", body)) == {START, END}
        assert body.count(START) == body.count(END) == 1
        assert len(re.findall(r"(?<!\\)!\[", body)) == 1  # the figure
        assert not re.search(r"(?<![\\\w])www\.evil", body)
        assert body.count("```") == 4
        assert body.count("\n## ") == 4
        assert "\n# x\n" in body
        assert "WWW…" in body
        assert "👩‍👩‍👧‍👦 with a 🐶" in body
        assert "كلب يلعب بالكرة" in body
        for character in "\u202e\x00\x1b":
            assert character not in text


def test_figures_and_examples():
    data = scored(["one", "two", "three", "four"], easy="high", image_id=["a", "b", "c", "c"])
    card = DataCard("me/x", {"train": data, "test": data}, "train", num_examples=2, description="Read *me*.")
    text = card.render()
    (path,) = card.files()
    assert path == "figures/scores_0_difficulty.png"
    assert f"]({path})" in text
    assert card.files()[path].startswith(b"\x89PNG")
    easiest, hardest = text.partition("difficulty, hardest:")[::2]
    assert [line.split(" | ")[1] for line in easiest.splitlines() if re.match(r"\| \d", line)][-2:] == ["four", "two"]
    assert [line.split(" | ")[1] for line in hardest.splitlines() if re.match(r"\| \d", line)][:2] == ["one", "two"]
    assert "# x\n\nRead *me*.\n\n" in text
    assert "4 in `train`, 4 in `test`" in text
    assert 'load_dataset("me/x", split="train")' in text


def test_a_score_that_nobody_has():
    data = Dataset.from_dict({"caption": ["a"], "s": np.float32([np.nan])})
    data = attach_provenance(data, {"s": ScoreProvenance("s", "by hand")})
    card = DataCard("me/x", {"train": data}, "train")
    assert "no example of `train` could be scored" in card.render()
    assert card.files() == {}


def test_thumbnails_are_stored_once_and_only_if_wanted():
    images = [Image.new("RGB", (300, 200), "red")] * 2 + [Image.new("RGB", (20, 10), "blue")] * 2
    data = scored(["a", "b", "c", "d"], image=images)
    shown = DataCard("me/x", {"train": data}, "train", thumbnails=True)
    text = shown.render()
    pictures = [path for path in shown.files() if path.endswith(".jpg")]
    assert len(pictures) == 2
    assert all(f"]({path})" in text for path in pictures)
    plain = DataCard("me/x", {"train": data}, "train")
    assert ".jpg" not in plain.render()
    assert header_of(plain.render())[0]["task_categories"] == ["image-to-text"]


def test_what_people_wrote_stays():
    data = scored(["one", "two"])
    first = DataCard("me/x", {"train": data}, "train").render()
    assert DataCard("me/x", {"train": data}, "train").render(first) == first
    theirs = (
        "---\nlanguage: ar\ntags: photos\ndataset_info: {features: []}\nconfigs:\n- config_name: ours\n  data_files: "
        "a\n- config_name: bucket_7\n  data_files: b\n---\n# Mine\n\nWords.\n"
    )
    header, body = header_of(DataCard("me/x", {"train": data}, "train").render(theirs))
    assert header["language"] == "ar"
    assert header["tags"] == ["photos", "curriculum-learning", "hf_curriculum"]
    assert "dataset_info" not in header
    assert [config["config_name"] for config in header["configs"]] == ["default", "ours"]
    assert body.startswith("# Mine\n\nWords.\n\n" + START)
    with pytest.raises(ValueError, match="cannot be read"):
        DataCard("me/x", {"train": data}, "train").render("---\na: [\n---\n")


def test_buckets_are_configurations_that_datasets_reads(tmp_path):
    data = scored([f"caption {number}" for number in range(10)])
    index = save_bucketed(data, tmp_path / "x", 2, score_column="difficulty")
    card = DataCard("me/x", {"train": data, "test": data.select([0, 1])}, "train", index)
    write_split(data.select([0, 1]), tmp_path / "x" / "data", "test", 1 << 20)
    text = card.render()
    assert "| bucket\\_1 | 5 | 5 | 9 |" in text
    write_files({**card.files(), "README.md": text.encode()}, tmp_path / "x")
    whole = load_dataset(str(tmp_path / "x"), cache_dir=str(tmp_path / "cache"))
    assert {name: len(part) for name, part in whole.items()} == {"train": 10, "test": 2}
    assert read_provenance(whole)["difficulty"] == read_provenance(data)["difficulty"]
    hard = load_dataset(str(tmp_path / "x"), "bucket_1", split="train", streaming=True)
    assert sorted(row["difficulty"] for row in hard) == [5, 6, 7, 8, 9]


def test_parquet_files_stand_on_their_own(tmp_path):
    image = tmp_path / "a.png"
    Image.new("RGB", (4, 4), "red").save(image)
    data = scored(list("abcdefgh"), image=[str(image)] * 8)
    from datasets import Image as ImageFeature

    data = data.cast_column("image", ImageFeature()).shuffle(seed=1)
    files = write_split(data, tmp_path / "one", "train", 1 << 20)
    again = write_split(data, tmp_path / "two", "train", 1 << 20)
    assert [file.name for file in files] == ["train-00000-of-00001.parquet"]
    assert files[0].read_bytes() == again[0].read_bytes()
    image.unlink()
    loaded = Dataset.from_parquet(str(files[0]), cache_dir=str(tmp_path / "cache"))
    assert loaded["caption"] == data["caption"]
    assert loaded[0]["image"].size == (4, 4)
    assert read_provenance(loaded) == read_provenance(data)
    many = write_split(data.remove_columns("image"), tmp_path / "many", "train", 60)
    assert 1 < len(many) <= 8
    parts = [Dataset.from_parquet(str(file), cache_dir=str(tmp_path / "cache"))["caption"] for file in many]
    assert [caption for part in parts for caption in part] == list(data["caption"])


def test_what_cannot_be_pushed(tmp_path):
    """All of it is said before anything is asked of the Hub."""
    data = scored(["one", "two"])
    two = attach_provenance(
        data.add_column("other", np.float32([1, 2])), {"other": ScoreProvenance("other", "by hand")}
    )
    with pytest.raises(TypeError, match="A IterableDataset was given"):
        push_scored(data.to_iterable_dataset(), "me/x")
    with pytest.raises(ValueError, match="No column of this data set carries the provenance"):
        push_scored(data.remove_columns("difficulty"), "me/x")
    with pytest.raises(ValueError, match="Give num_buckets= too"):
        push_scored(data, "me/x", score_column="difficulty")
    with pytest.raises(ValueError, match=r"2 buckets by which score\? Give score_column=, one of"):
        push_scored(two, "me/x", num_buckets=2)
    with pytest.raises(ValueError, match=r"split='dev' was given; the data has the splits \['train'\]"):
        push_scored(DatasetDict({"train": data}), "me/x", split="dev")
    with pytest.raises(ValueError, match="cannot be a part of a file's name"):
        push_scored(DatasetDict({"../train": data}), "me/x")
    with pytest.raises(ValueError, match=r"The splits \['test'\] have no rows"):
        push_scored(DatasetDict({"train": data, "test": data.select([])}), "me/x")
    with pytest.raises(ValueError, match="It is not shown here") as error:
        push_scored(data, "me/x", token="hf_abcdefghij\n")
    assert "abcdefghij" not in str(error.value)
    with pytest.raises(ValueError, match="Repo id must"):
        push_scored(data, "me/x/y/z")
    with pytest.raises(ValueError, match="`nowhere` is not in the data"):
        push_scored(data, "me/x", num_buckets=2, score_column="nowhere")
    with pytest.raises(ValueError, match="0 buckets"):
        push_scored(data, "me/x", num_buckets=0)
    for option in ({"cut": "value"}, {"easy": "high"}, {"thresholds": [1.0]}, {"unscored": "drop"}):
        with pytest.raises(ValueError, match=f"{next(iter(option))}= says how buckets are cut, and none are"):
            push_scored(data, "me/x", **option)
    assert not list(Path(tmp_path).iterdir())
