"""The edges of a Space: bars at their limits, exact cuts of many values, what is replaced in a folder, what stays."""

from __future__ import annotations

import hashlib
import json
import os

import numpy as np
import pytest
from datasets import Dataset
from datasets import Image as ImageFeature
from PIL import Image

from hf_curriculum.hub import space as module
from hf_curriculum.hub.space import write_space
from hf_curriculum.markdown import split_front_matter
from hf_curriculum.provenance import ScoreProvenance, attach_provenance


def scored(values, easy="low", **columns):
    data = Dataset.from_dict({"s": values, **columns})
    return attach_provenance(data, {"s": ScoreProvenance("s", "Given", easy=easy, source="joined")})


def pictured(*colours):
    """An example for each colour, None for one without an image; scores rise."""
    images = [None if colour is None else Image.new("RGB", (40, 20), colour) for colour in colours]
    data = scored(np.arange(len(colours), dtype=np.float32), image=images)
    return data.cast_column("image", ImageFeature())


def read(folder):
    return json.loads((folder / "data.json").read_text(encoding="utf-8"))


def the_score(folder):
    (score,) = read(folder)["scores"]
    return score


def shown(folder):
    """The thumbnail of each example."""
    return [image for *_, image in the_score(folder)["examples"]]


@pytest.mark.parametrize(
    ("values", "low", "high", "whole", "counts"),
    [
        ([-3, -3, -1, 2], -3.5, 2.5, True, [2, 0, 1, 0, 0, 1]),
        ([100, 101, 101], 99.5, 101.5, True, [1, 2]),
        ([0, 59], -0.5, 59.5, True, [1, *[0] * 58, 1]),
        ([0, 60], 0.0, 60.0, False, [1, *[0] * 58, 1]),
        ([1000, 1059, 1059], 999.5, 1059.5, True, [1, *[0] * 58, 2]),
        ([0, 600, 595, 5], 0.0, 600.0, False, [2, *[0] * 58, 2]),
        ([-60, 0, -1], -60.0, 0.0, False, [1, *[0] * 58, 2]),
        ([0, 0.5, 6], 0.0, 6.0, False, [1, 0, 0, 0, 0, 1, *[0] * 53, 1]),
        ([-6.5, -0.5, -0.5], -6.5, -0.5, False, [1, *[0] * 58, 2]),
    ],
)
def test_bars_of_scores_at_the_limits(values, low, high, whole, counts, tmp_path):
    write_space(scored([float(value) for value in values]), tmp_path, title="x")
    assert the_score(tmp_path)["histogram"] == {"low": low, "high": high, "whole": whole, "counts": counts}


@pytest.mark.parametrize(("most", "kept"), [(5, [10, 11, 12, 13, 14]), (4, [10, 14])])
def test_as_many_values_as_there_are_places_are_all_kept(most, kept, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "MOST_VALUES", most)
    monkeypatch.setattr(module, "PHASES", range(2, 3))
    write_space(scored([1.0] * 10 + [2.0, 3.0, 4.0, 5.0]), tmp_path, title="x")
    score = the_score(tmp_path)  # four places are at rows 1, 5.3, 9.7 and 14, the cuts at 7 and 10
    assert (score["ends"], score["values"]) == (kept, [end - 9 for end in kept])
    assert score["distinct"] == 5


@pytest.mark.parametrize("easy", ["low", "high"])
@pytest.mark.parametrize("unscored", [0, 1, 90])
def test_thinned_values_are_the_first_at_each_mark(easy, unscored, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "MOST_VALUES", 7)
    values = np.repeat(np.arange(40), np.arange(40) % 3 + 1).astype(np.float32)
    write_space(scored([*values, *[np.nan] * unscored], easy), tmp_path, title="x")
    score = the_score(tmp_path)
    ordered = values if easy == "low" else values[::-1]
    ends = [int(np.flatnonzero(ordered == value)[-1]) + 1 for value in dict.fromkeys(ordered)]
    marks = [1 + step * (len(values) - 1) / 6 for step in range(7)]
    marks += [end for cuts in score["cuts"].values() for cut in cuts.values() for end in cut]
    assert score["ends"] == sorted({next((end for end in ends if end >= mark), ends[-1]) for mark in marks})
    assert (score["ends"][0], score["ends"][-1]) == (ends[0], len(values))
    assert score["values"] == [float(ordered[end - 1]) for end in score["ends"]]
    assert (score["distinct"], score["scored"]) == (40, len(values))
    assert list(score["cuts"]) == ["2", "3", "4", "5", "6"]


def test_a_whole_thumbnail_is_left_untouched_and_a_damaged_one_written_again(tmp_path):
    data = pictured("red", "green", "blue", "yellow")
    write_space(data, tmp_path, title="x")
    images = [tmp_path / "thumbnails" / name for name in shown(tmp_path)]
    whole = [image.read_bytes() for image in images]
    for image in images:
        os.utime(image, (1000, 1000))
    images[0].write_bytes(whole[0][:-1])
    images[1].write_bytes(whole[2])
    images[3].unlink()
    write_space(data, tmp_path, title="x")
    assert [image.read_bytes() for image in images] == whole
    assert [image.stat().st_mtime == 1000 for image in images] == [False, False, True, False]


def test_a_link_in_place_of_a_thumbnail_becomes_a_file_of_its_own(tmp_path):
    data = pictured("red", "green")
    write_space(data, tmp_path / "out", title="x")
    image = tmp_path / "out" / "thumbnails" / shown(tmp_path / "out")[0]
    whole = image.read_bytes()
    elsewhere = tmp_path / "photo.jpg"
    for held in (whole, b"another's"):
        elsewhere.write_bytes(held)
        image.unlink()
        image.symlink_to(elsewhere)
        write_space(data, tmp_path / "out", title="x")
        assert (image.is_symlink(), image.read_bytes(), elsewhere.read_bytes()) == (False, whole, held)


@pytest.mark.parametrize("thumbnails", [True, False])
def test_a_link_in_place_of_the_folder_of_thumbnails_is_refused(thumbnails, tmp_path):
    elsewhere = tmp_path / "album"
    elsewhere.mkdir()
    photo = elsewhere / f"{'0' * 16}.jpg"  # called as a thumbnail is
    photo.write_bytes(b"a photograph")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thumbnails").symlink_to(elsewhere)
    with pytest.raises(ValueError, match=r"thumbnails is a link to .*album"):
        write_space(pictured("red", "green"), tmp_path / "out", title="x", thumbnails=thumbnails)
    assert [path.read_bytes() for path in elsewhere.iterdir()] == [b"a photograph"]


def test_only_thumbnails_of_a_former_space_are_removed(tmp_path):
    write_space(pictured("red", "green"), tmp_path, title="x")
    folder = tmp_path / "thumbnails"
    before = set(shown(tmp_path))
    others = {"photo.jpg", f"{'0' * 16}.png", f"{'0' * 17}.jpg", f"{'G' * 16}.jpg"}
    for name in others:
        (folder / name).touch()
    write_space(pictured("green", "blue"), tmp_path, title="x")
    after = set(shown(tmp_path))
    assert len(before & after) == 1
    assert {path.name for path in folder.iterdir()} == after | others


def test_thumbnails_are_called_by_what_they_hold_and_stored_once(tmp_path):
    made = write_space(pictured("red", "green", "red", None), tmp_path, title="x")
    first, second, third, none = shown(tmp_path)
    assert (first, none) == (third, None)
    assert (made["examples"], made["thumbnails"]) == (4, 2)
    for name in (first, second):
        content = (tmp_path / "thumbnails" / name).read_bytes()
        assert name == f"{hashlib.sha256(content).hexdigest()[:16]}.jpg"
    assert made["bytes"] == sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())


@pytest.mark.parametrize("images", [False, True])
def test_no_folder_of_thumbnails_where_none_is_shown(images, tmp_path):
    data = pictured("red", "green") if images else scored([1.0, 2.0])
    made = write_space(data, tmp_path, title="x", thumbnails=not images)
    assert made["thumbnails"] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "data.json", "index.html"]
    assert shown(tmp_path) == [None, None]


def test_lists_of_images_have_thumbnails_too(tmp_path):
    lists = [[Image.new("RGB", (40, 20), colour)] * 2 for colour in ("red", "green")]
    made = write_space(scored([1.0, 2.0], images=lists), tmp_path, title="x")
    assert (made["thumbnails"], len(set(shown(tmp_path)))) == (2, 2)


def test_captions_are_cut_behind_their_300th_character(tmp_path):
    captions = ["a" * 299, "b" * 300, "c" * 301, None, "", "e\x00f"]
    write_space(scored([float(number) for number in range(6)], caption=captions), tmp_path, title="x")
    examples = the_score(tmp_path)["examples"]
    assert [caption for _, _, caption, _ in examples] == [
        "a" * 299, "b" * 300, "c" * 300 + "…", "", "", "e\ufffdf",
    ]  # fmt: skip


def test_examples_run_from_the_easiest_to_the_hardest_scored_row(tmp_path):
    values = [0.3, np.nan, 0.1, 0.2, np.nan]
    captions = [f"{value}" for value in values]
    write_space(scored(np.float32(values), "high", caption=captions), tmp_path, title="x", examples=2)
    assert the_score(tmp_path)["examples"] == [[0, 0.3, "0.3", None], [2, 0.1, "0.1", None]]
    write_space(scored(np.float32(values), caption=captions), tmp_path, title="x", examples=1)
    assert the_score(tmp_path)["examples"] == [[0, 0.1, "0.1", None]]
    assert (read(tmp_path)["rows"], the_score(tmp_path)["easy"]) == (5, "low")


def test_the_page_of_settings_says_what_the_space_is(tmp_path):
    write_space(scored(np.arange(1234, dtype=np.float32)), tmp_path, title="Dogs *and*\ncats", examples=0)
    front, body = split_front_matter((tmp_path / "README.md").read_text(encoding="utf-8"))
    assert front == {
        "title": "Dogs *and* cats",
        "emoji": "📊",
        "colorFrom": "blue",
        "colorTo": "green",
        "sdk": "static",
        "app_file": "index.html",
        "pinned": False,
        "tags": ["curriculum-learning", "hf_curriculum"],
    }
    assert "The scores of 1,234 examples, and the phases of a curriculum by each of them." in body
    assert "<title>Dogs *and* cats</title>" in (tmp_path / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["a.txt", "b.txt", "c.txt"], r"\(a\.txt, b\.txt, c\.txt\), and"),
        (["a.txt", "b.txt", "c.txt", "d.txt"], r"\(a\.txt, b\.txt, c\.txt, …\), and"),
        (["README.md", "thumbnails"], r"\(README\.md, thumbnails\), and"),  # a folder that no Space was begun in
        (["README.md", "data.json", "notes.txt"], r"\(notes\.txt\), and"),
        (["notes.txt", "thumbnails"], r"\(notes\.txt\), and"),
    ],
)
def test_what_else_lies_in_a_folder_is_named(names, told, tmp_path):
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match=f"holds other files {told}"):
        write_space(scored([1.0, 2.0]), tmp_path, title="x")
    assert sorted(path.name for path in tmp_path.iterdir()) == names


@pytest.mark.parametrize("begun", [[], ["thumbnails"], ["thumbnails", "data.json"], ["data.json"], [".git"]])
def test_a_space_that_was_begun_is_finished(begun, tmp_path):
    for name in begun:
        path = tmp_path / name
        path.touch() if "json" in name else path.mkdir()
    data = pictured("red", "green")
    for _ in range(2):  # and one that is finished is written again
        write_space(data, tmp_path, title="x")
        kept = {*begun, "README.md", "data.json", "index.html", "thumbnails"}
        assert {path.name for path in tmp_path.iterdir()} == kept
        assert {path.name for path in (tmp_path / "thumbnails").iterdir()} == set(shown(tmp_path))


def test_scores_that_are_not_recorded_and_none_at_all_are_refused(tmp_path):
    data = scored([1.0, 2.0], other=[3.0, 4.0])
    for columns, told in (([], r"\[\]"), (["other"], r"\['other'\]"), (["s", "other"], r"\['s', 'other'\]")):
        with pytest.raises(ValueError, match=rf"The scores {told} were asked for, and \['s'\] are recorded"):
            write_space(data, tmp_path / "out", columns, title="x")
    with pytest.raises(ValueError, match=r"The scores \[\] were asked for, and \[\] are recorded"):
        write_space(Dataset.from_dict({"s": [1.0, 2.0]}), tmp_path / "out", title="x")
    assert not (tmp_path / "out").exists()
    assert write_space(data, tmp_path / "out", ["s"], title="x")["scores"] == ["s"]
