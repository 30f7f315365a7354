import hashlib
import itertools
import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from datasets import Dataset, DatasetDict, Features, Value, load_dataset
from datasets import Image as ImageFeature
from PIL import Image

from hf_curriculum import push_scored, read_provenance, save_bucketed
from hf_curriculum.hub.data_card import DataCard
from hf_curriculum.hub.push import write_rest, write_split
from hf_curriculum.markdown import END, START
from hf_curriculum.provenance import ScoreProvenance, attach_provenance
from hf_curriculum.streaming.shards import write_parquet

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
        for words in ("WWW…", "👩‍👩‍👧‍👦 with a 🐶", "كلب يلعب بالكرة"):
            assert words in body
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
    assert header_of(plain.render())[0]["task_categories"] == ["image-to-text", "image-text-to-text"]


def test_what_people_wrote_stays():
    data = scored(["one", "two"])
    first = DataCard("me/x", {"train": data}, "train").render()
    assert DataCard("me/x", {"train": data}, "train").render(first) == first
    theirs = (
        "---\nlanguage: ar\ntags: photos\ndataset_info: {features: []}\nconfigs:\n- config_name: ours\n  data_files: "
        "a\n- config_name: bucket_7\n  data_files: b\n---\n# Mine\n\nWords.\n"
    )
    header, body = header_of(DataCard("me/x", {"train": data}, "train").render(theirs))
    assert (header["language"], header["tags"]) == ("ar", ["photos", "curriculum-learning", "hf_curriculum"])
    assert "dataset_info" not in header
    assert [config["config_name"] for config in header["configs"]] == ["default", "ours"]
    assert body.startswith("# Mine\n\nWords.\n\n" + START)
    with pytest.raises(ValueError, match="cannot be read"):
        DataCard("me/x", {"train": data}, "train").render("---\na: [\n---\n")


def test_buckets_are_configurations_that_datasets_reads(tmp_path):
    data = scored([f"caption {number}" for number in range(10)])
    index = save_bucketed(data, tmp_path / "x", 2, score_column="difficulty")
    card = DataCard("me/x", {"train": data, "test": data.select([0, 1])}, "train", index)
    assert "| bucket\\_1 | 5 | 5 | 9 |" in card.render()
    write_rest(card, tmp_path / "x", 1 << 20, None)
    assert [file.name for file in (tmp_path / "x" / "data").iterdir()] == ["test-00000-of-00001.parquet"]
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


def test_what_would_be_pushed_is_every_split_its_scores_and_the_card(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    both = DatasetDict({"train": scored(["a", "b", "c", "d"]), "validation": scored(["e", "f"])})
    found = push_scored(both, "me/tried", dry_run=True, tell=lambda text: None).files
    data = {"data/train-00000-of-00001.parquet", "data/validation-00000-of-00001.parquet"}
    assert set(found) >= {"README.md", "scores.json"} | data
    assert any(name.startswith("figures/") for name in found)


def test_what_cannot_be_pushed(tmp_path):
    """All of it is said before anything is asked of the Hub."""
    data = scored(["one", "two"])
    two = attach_provenance(
        data.add_column("other", np.float32([1, 2])), {"other": ScoreProvenance("other", "by hand")}
    )
    with pytest.raises(TypeError, match="was given an IterableDataset"):
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


def pieces(file):
    """Digests of a file's pieces and their sizes, cut where the content says so, as the Hub's storage cuts files.

    A piece ends where a hash of the 32 bytes before it is 0 in 14 bits: about every 16 kB, wherever in the file.
    """
    content = file.read_bytes()
    gear = np.random.default_rng(7).integers(0, 2**32, 256, dtype=np.uint64)[np.frombuffer(content, np.uint8)]
    rolling = np.zeros(len(gear), np.uint64)
    for age in range(32):
        rolling[age:] += gear[: len(gear) - age] << np.uint64(age)
    ends = np.flatnonzero((rolling >> np.uint64(8)) % np.uint64(1 << 14) == 0) + 1
    edges = [0, *ends.tolist(), len(content)]
    spans = itertools.pairwise(edges)
    return {hashlib.sha256(content[start:stop]).digest(): stop - start for start, stop in spans}


def pictured(count, images):
    """Rows with captions, and where asked for with images of some kilobytes, which nothing compresses."""
    random = np.random.default_rng(0)
    words = random.integers(0, 5000, (count, 10))
    columns = {"image_id": [f"i{row}" for row in range(count)]}
    columns["caption"] = [" ".join(f"w{word}" for word in row) for row in words]
    columns["noun_count"] = random.integers(1, 9, count).astype(np.float32)
    features = {"image_id": Value("string"), "caption": Value("string"), "noun_count": Value("float32")}
    if images:
        columns["image"] = [{"bytes": random.bytes(int(random.integers(4000, 12000))), "path": None} for _ in words]
        features["image"] = ImageFeature(decode=False)
    return Dataset.from_dict(columns, features=Features(features))


@pytest.mark.parametrize(("images", "count"), [(True, 1200), (False, 60_000)])
def test_a_changed_data_set_is_mostly_the_bytes_of_before(tmp_path, images, count):
    data = pictured(count, images)
    (before,) = write_split(data, tmp_path / "before", "train", 500 << 20)
    known, random = pieces(before), np.random.default_rng(1)
    rescored = data.remove_columns("noun_count")
    changes = {
        "another score": rescored.add_column("noun_count", random.integers(1, 12, count).astype(np.float32)),
        "one more score": data.add_column("clip_similarity", random.normal(size=count).astype(np.float32)),
        "rows left out": data.select([row for row in range(count) if row % (count // 3) != 7]),
    }
    sent = {}
    for name, changed in changes.items():
        (file,) = write_split(changed, tmp_path / name, "train", 500 << 20)
        sent[name] = sum(size for piece, size in pieces(file).items() if piece not in known) / file.stat().st_size
    # A score is 4 bytes of a row: of one with an image next to nothing, of one with a caption a tenth.
    assert sent["another score"] < (0.05 if images else 0.2)
    assert sent["one more score"] < (0.05 if images else 0.25)
    assert sent["rows left out"] < (0.25 if images else 0.7)
    metadata = pq.ParquetFile(before).metadata
    assert json.loads(metadata.metadata[b"content_defined_chunking"])["min_chunk_size"] > 0
    group = metadata.row_group(0)
    assert all(group.column(at).has_offset_index for at in range(group.num_columns))


def test_row_groups_are_of_even_size_and_keep_all_rows(tmp_path):
    tables = [pa.table({"number": np.arange(at, at + 100)}) for at in range(0, 1000, 100)]
    write_parquet(tables, tmp_path / "some.parquet", tables[0].schema, group_bytes=2000)
    file = pq.ParquetFile(tmp_path / "some.parquet")
    assert [file.metadata.row_group(at).num_rows for at in range(file.metadata.num_row_groups)] == [300, 300, 300, 100]
    assert file.read()["number"].to_pylist() == list(range(1000))
    write_parquet([tables[0]], tmp_path / "cut.parquet", tables[0].schema, group_bytes=200)
    assert pq.ParquetFile(tmp_path / "cut.parquet").metadata.num_row_groups == 4
