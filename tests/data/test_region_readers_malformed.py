"""Files of regions that are damaged: each error names the file and the image."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest
import torch

from hf_curriculum.data.regions.base import Regions
from hf_curriculum.data.regions.open import open_regions
from hf_curriculum.data.regions.values import arrange_regions

BOXES = np.float32([[0, 0, 50, 20], [10, 20, 60, 100]])
FEATURES = np.ones((2, 3), np.float32)


def packed(array):
    return base64.b64encode(np.asarray(array, "<f4").tobytes()).decode()


def line(image_id="1", width="100", height="100", count="2", boxes=BOXES):
    return f"{image_id}\t{width}\t{height}\t{count}\t{packed(boxes)}\t{packed(FEATURES)}\n"


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"count": "three"}, "num_boxes.* 'three'"),
        ({"count": "3.0"}, r"num_boxes.* '3\.0'"),
        ({"count": "-1"}, "num_boxes.* '-1'"),
        ({"width": "wide"}, "image_w.* 'wide'"),
        ({"width": "0"}, "image_w.* '0'"),
        ({"height": "nan"}, "image_h.* 'nan'"),
        ({"boxes": BOXES[:, [2, 1, 0, 3]]}, "Box 0 .*ends before it begins"),
        ({"boxes": BOXES + 60}, "Box 0 .*beyond the picture of 100 × 100"),
        ({"boxes": -BOXES[:, [2, 3, 0, 1]]}, "Box 0 .*beyond the picture"),
        ({"boxes": BOXES * np.nan}, "Box 0 .*not finite"),
    ],
)
def test_a_line_of_bottom_up_attention(tmp_path, changed, match):
    (tmp_path / "x.tsv").write_text(line("0") + line(**changed))
    source = open_regions(tmp_path / "x.tsv")
    assert len(source["0"]) == 2
    with pytest.raises(ValueError, match=match) as error:
        source["1"]
    assert "image '1'" in str(error.value)
    assert "x.tsv" in str(error.value)


def test_boxes_may_end_a_rounding_beyond_the_picture(tmp_path):
    boxes = BOXES + np.float32([-0.5, -0.5, 0, 0.9])
    (tmp_path / "x.tsv").write_text(line(boxes=boxes))
    np.testing.assert_array_equal(open_regions(tmp_path / "x.tsv")["1"].boxes, boxes)


def test_a_byte_order_mark_is_no_part_of_an_id(tmp_path):
    (tmp_path / "x.tsv").write_text("\ufeff" + line("1") + line("2"), encoding="utf-8")
    source = open_regions(tmp_path / "x.tsv")
    assert list(source) == ["1", "2"]
    assert [regions.image_id for _, regions in source.scan()] == ["1", "2"]
    (tmp_path / "p.tsv").write_text("\ufeff1\t" + json.dumps({"objects": []}) + "\n", encoding="utf-8")
    assert list(open_regions(tmp_path / "p.tsv")) == ["1"]


def test_ids_that_are_not_utf8(tmp_path):
    (tmp_path / "x.tsv").write_bytes(line("1").encode() + line("caf\xe9").encode("latin-1"))
    for read in (list, lambda source: list(source.scan())):
        with pytest.raises(ValueError, match=r"x\.tsv has at byte \d+ .*not UTF-8.*caf"):
            read(open_regions(tmp_path / "x.tsv"))


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ({"objects": 5}, "`objects`"),
        ({"objects": [5]}, "`objects`"),
        ({"objects": [{"rect": [0, 0, 1, 1], "conf": 1}]}, "class"),
        ({"objects": [{"rect": [0, 0, "x", 1], "conf": 1, "class": "dog"}]}, "could not convert"),
        ({"objects": [{"rect": [5, 0, 1, 1], "conf": 1, "class": "dog"}]}, "ends before it begins"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_line_of_predictions(tmp_path, content, match):
    text = content if isinstance(content, str) else json.dumps(content)
    (tmp_path / "predictions.tsv").write_text('0\t{"objects": []}\n1\t' + text + "\n")
    with pytest.raises(ValueError, match=match) as error:
        open_regions(tmp_path / "predictions.tsv")["1"]
    assert "image '1'" in str(error.value)
    assert "predictions.tsv" in str(error.value)


def test_oscars_count_of_boxes(tmp_path):
    (tmp_path / "features.tsv").write_text('1\t{"num_boxes": "two", "features": ""}\n')
    with pytest.raises(ValueError, match=r"num_boxes.*image '1' in .*features\.tsv is 'two'"):
        open_regions(tmp_path)["1"]


def test_box_values_that_the_features_have_already():
    regions = Regions("9", boxes=BOXES, width=100, height=100)
    for values in (True, "vinvl"):
        with pytest.raises(ValueError, match=r"image '9' have 2,054 numbers, .*twice"):
            arrange_regions(regions, torch.ones(2, 2054), box_values=values)
    assert arrange_regions(regions, torch.ones(2, 2054))["region_features"].shape == (2, 2054)


@pytest.mark.parametrize("kind", ["npz", "h5"])
def test_text_in_place_of_numbers(tmp_path, kind):
    h5py = pytest.importorskip("h5py")
    file = tmp_path / f"x.{kind}"
    if kind == "npz":
        np.savez(file, **{"1": np.array(["a", "b"])})
    else:
        with h5py.File(file, "w") as made:
            made["1"] = np.array([b"a", b"b"])
    with pytest.raises(ValueError, match=rf"x\.{kind} .*image '1'.*not numbers"):
        open_regions(file)["1"]


def test_text_in_a_folder_of_features(tmp_path):
    np.savez(tmp_path / "1.npz", feat=np.array(["a", "b"]))
    with pytest.raises(ValueError, match=r"1\.npz .*image '1'.*not numbers"):
        open_regions(tmp_path)["1"]


def test_hdf5_that_is_truncated_or_none(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as made:
        made["1"] = BOXES
    content = (tmp_path / "x.h5").read_bytes()
    for damaged in (content[: len(content) // 2], b"no HDF5", content[:8] + b"\xff" + content[9:]):
        (tmp_path / "x.h5").write_bytes(damaged)
        with pytest.raises(ValueError, match=r"x\.h5 cannot be read .*truncated, damaged"):
            open_regions(tmp_path / "x.h5")["1"]


def test_the_reference_codes_hdf5_holds_features(tmp_path):
    h5py = pytest.importorskip("h5py")
    features = np.ones((3, 64), np.float32)
    with h5py.File(tmp_path / "x.h5", "w") as made:
        made["1"], made["2"] = features, np.ones((3, 8), np.float32)
    source = open_regions(tmp_path / "x.h5")
    np.testing.assert_array_equal(source["1"].features, features)
    assert source["1"].boxes is None
    with pytest.raises(ValueError, match=r"image '2' in .*x\.h5 have the shape \(3, 8\)"):
        source["2"]
