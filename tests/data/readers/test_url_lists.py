"""Lists of captions with addresses: what is taken for one, its lines, and its images in a folder."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from hf_curriculum.data.readers.url_lists import _occurrences, is_url_list, load_url_list, read_url_list

pytestmark = pytest.mark.usefixtures("datasets_cache")
ADDRESS = "http://x.org/1.jpg"


def narrative(image, caption="a", **changed):
    return json.dumps({"image_id": image, "caption": caption, "annotator_id": 1, **changed})


@pytest.mark.parametrize(
    ("name", "text", "taken"),
    [
        ("x.tsv", f"a dog\t{ADDRESS}\n", True),
        ("X.TSV", f"{ADDRESS}\ta dog\r\n", True),
        ("x.tsv", f"a dog\t {ADDRESS} \n", True),
        ("x.csv", f"a dog\t{ADDRESS}\n", False),
        ("x.tsv", f"a dog\tsee {ADDRESS}\n", False),
        ("x.tsv", narrative("1"), False),
        ("x.jsonl", narrative("1"), True),
        ("X.JSONL", narrative("1"), True),
        ("x.json", narrative("1"), False),
        ("x.jsonl", '["image_id", "caption", "annotator_id"]', False),
        ("x.jsonl", f"a dog\t{ADDRESS}\n", False),
    ],
)
def test_what_is_taken_for_a_list(tmp_path, name, text, taken):
    (tmp_path / name).write_text(text)
    assert is_url_list(tmp_path / name) == taken
    for other in (tmp_path, tmp_path / f"missing {name}"):
        assert not is_url_list(other)
    if taken and not text.startswith("{"):
        assert read_url_list(tmp_path / name).to_pylist() == [
            {"caption": "a dog", "image_id": ADDRESS, "url": ADDRESS}
        ]


def test_lines_of_tables(tmp_path):
    lines = ["no tab", "", f"a\t{ADDRESS}", " ", f"\t{ADDRESS}0", f"{ADDRESS}\tb", "c\tno address", f"d\te\t{ADDRESS}"]
    (tmp_path / "x.tsv").write_text("\n".join(lines))
    told = []
    rows = read_url_list(tmp_path / "x.tsv", told.append)
    assert rows.to_pylist() == [
        {"caption": text, "image_id": url, "url": url} for text, url in (("a", ADDRESS), ("", f"{ADDRESS}0"))
    ]
    assert [problem.partition(" of ")[0] for problem in told] == ["Line 1", "Line 6", "Line 7", "Line 8"]
    assert told[0].startswith(f"Line 1 of {tmp_path}/x.tsv is 'no tab\\n', and a caption and an address with a tab")


def test_lines_of_narratives(tmp_path):
    lines = [narrative(7), "", "[", narrative("08", None), narrative("9", ["a"]), '{"caption": "b"}']
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    told = []
    rows = read_url_list(tmp_path / "x.jsonl", told.append)
    assert rows.to_pylist() == [
        {"caption": text, "image_id": name, "url": None} for text, name in (("a", "7"), (None, "08"))
    ]
    assert [problem.partition(" of ")[0] for problem in told] == ["Line 3", "Line 5", "Line 6"]
    assert "is no narrative (TypeError(\"its caption is ['a']\"))" in told[1]


def test_images_of_narratives_in_a_folder(tmp_path, caplog):
    (tmp_path / "x.jsonl").write_text("\n".join(narrative(name, f"of {name}") for name in ("0", "2", "b", "2", "5")))
    for folder, names in {"a": ("000", "02", "b"), "c": ("1", "1"), "d": ("2", "b"), "e": ("0002", "1")}.items():
        (tmp_path / "x" / folder).mkdir(parents=True)
        for name in names:
            Image.new("RGB", (8 + len(name), 8)).save(tmp_path / "x" / folder / f"{name}.jpg")
    with pytest.raises(ValueError, match=r"the image '2' may be \S*/x/a/02\.jpg or \S*/x/d/2\.jpg \(2 such\)"):
        load_url_list(tmp_path / "x.jsonl", tmp_path / "x")
    pairs = load_url_list(tmp_path / "x.jsonl", tmp_path / "x" / "a")
    assert pairs["caption"][:] == ["of 0", "of 2", "of b", "of 2"]
    assert [row["image"].width for row in pairs] == [11, 10, 9, 10]
    assert "4 of 5 images are there (80.0 %); 1 is missing: 1 × not among the downloads" in caplog.text


@pytest.mark.parametrize("values", [[], [0], [3, 3, 3], [5, 0, 5, 1, 0, 5, 2], list(range(9)) * 3])
def test_how_often_a_value_has_occurred_before(values):
    expected = [values[:row].count(value) for row, value in enumerate(values)]
    assert _occurrences(np.array(values, np.int64)).tolist() == expected
