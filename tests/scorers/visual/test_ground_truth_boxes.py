"""Annotated objects counted and measured, by hand, on the embedded scenes and on COCO's boxes."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from datasets import Dataset, Features, List, Value
from PIL import Image

from hf_curriculum import GroundTruthBoxes, add_scores, make_scenes
from hf_curriculum.provenance import score_values

NAN = np.nan


@pytest.fixture(scope="module")
def scenes():
    return make_scenes(60, captions_per_image=3, validation=0, test=0)["train"]


def test_scenes_against_their_own_count(scenes):
    scored = add_scores(scenes, GroundTruthBoxes())
    assert score_values(scored, "box_count").tolist() == scenes["num_objects"][:]
    for row in range(0, len(scenes), 7):
        image, found = scenes[row]["image"], scenes[row]["objects"]
        naive = [(thing["box"][2] - thing["box"][0]) * (thing["box"][3] - thing["box"][1]) for thing in found]
        share = np.mean(naive) / (image.width * image.height)
        assert scored[row]["box_area"] == pytest.approx(share, rel=1e-5)
    assert GroundTruthBoxes().outputs == {"box_count": "high", "box_area": "high"}


def test_no_image_is_decoded(scenes, monkeypatch):
    def refuse(self):
        raise AssertionError("a picture was decoded")

    rows = add_scores(scenes, GroundTruthBoxes())  # before decoding is forbidden
    monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", refuse)
    scored = add_scores(scenes, GroundTruthBoxes(easy="low"))
    np.testing.assert_array_equal(score_values(scored, "box_area"), score_values(rows, "box_area"))


OBJECTS = [
    [{"bbox": [0, 0, 50, 20], "category": 3}, {"bbox": [50, 50, 10, 10], "category": 1}],
    [],
    None,
    [{"bbox": [0, 0, 100, 100], "category": 1}],
]
SIZES = {"width": [100, 100, 100, 200], "height": [100, 100, 100, 100]}


@pytest.mark.parametrize(
    ("options", "area"),
    [
        ({}, [0.055, NAN, NAN, 0.5]),
        ({"aggregate": "sum"}, [0.11, NAN, NAN, 0.5]),
        ({"unit": "pixels"}, [550, NAN, NAN, 10_000]),
        ({"unit": "pixels", "aggregate": "sum"}, [1100, NAN, NAN, 10_000]),
    ],
)
def test_coco_boxes_by_hand(options, area):
    scorer = GroundTruthBoxes(field="bbox", layout="xywh", size_columns=("width", "height"), **options)
    features = Features(
        {
            "objects": List({"bbox": List(Value("float32")), "category": Value("int64")}),
            "width": Value("int32"),
            "height": Value("int32"),
        }
    )
    data = Dataset.from_dict({"objects": OBJECTS, **SIZES}, features=features)
    scored = add_scores(data, scorer)
    np.testing.assert_array_equal(score_values(scored, "box_count"), np.float32([2, 0, NAN, 1]))
    np.testing.assert_allclose(score_values(scored, "box_area"), np.float32(area), rtol=1e-6)


def test_a_mapping_of_lists_is_the_same():
    given = {"objects": [{"bbox": [[0, 0, 50, 20], [50, 50, 10, 10]], "category": [3, 1]}, {"bbox": []}]}
    scores = GroundTruthBoxes(field="bbox", layout="xywh", unit="pixels")(given)
    np.testing.assert_array_equal(scores["box_count"], [2, 0])
    np.testing.assert_array_equal(scores["box_area"], np.float32([550, NAN]))


def test_images_of_every_kind_and_none(tmp_path):
    picture, file = Image.new("RGB", (100, 50)), io.BytesIO()
    picture.save(file, "png")
    picture.save(tmp_path / "a.png")
    images = [
        picture,
        {"bytes": file.getvalue(), "path": None},
        {"bytes": None, "path": str(tmp_path / "a.png")},
        str(tmp_path / "a.png"),
        np.zeros((50, 100, 3), np.uint8),
        None,
        {"bytes": b"no picture", "path": None},
        {"bytes": None, "path": str(tmp_path / "none.png")},
    ]
    scores = GroundTruthBoxes()({"image": images, "objects": [[{"box": [0, 0, 50, 50]}]] * len(images)})
    assert scores["box_count"].tolist() == [1.0] * 8
    np.testing.assert_array_equal(scores["box_area"], np.float32([0.5] * 5 + [NAN] * 3))
    sizes = GroundTruthBoxes(size_columns=("w", "h"))({"objects": [[{"box": [0, 0, 1, 1]}]], "w": [None], "h": [2]})
    assert np.isnan(sizes["box_area"][0])


def test_objects_that_cannot_be_read():
    def score(objects, **options):
        return GroundTruthBoxes(unit="pixels", **options)({"objects": [objects]})

    with pytest.raises(ValueError, match=r"an object without `box`, only \['bbox'\].*of COCO"):
        score([{"bbox": [0, 0, 1, 1]}])
    with pytest.raises(ValueError, match=r"an object without `box`, only \['bbox'\]"):
        score({"bbox": [[0, 0, 1, 1]]})
    with pytest.raises(ValueError, match="boxes that are not four numbers each"):
        score([{"box": [0, 0, 1]}])
    with pytest.raises(ValueError, match=r"The box \[50.0, 50.0, 10.0, 10.0\] .* so it is not 'xyxy'"):
        score([{"box": [0, 0, 50, 20]}, {"box": [50, 50, 10, 10]}])
    with pytest.raises(TypeError, match="is a str, not a list of objects"):
        score("dog")
    for option, value in (("layout", "yxyx"), ("aggregate", "max"), ("easy", "none")):
        with pytest.raises(ValueError, match=f"`{option}` is '{value}'"):
            score([], **{option: value})
    with pytest.raises(ValueError, match="`unit` is 'metres'"):
        GroundTruthBoxes(unit="metres")


def test_the_boxes_of_real_photographs(test_data):
    content = json.loads((test_data("coco_open") / "instances.json").read_text())
    objects = {image["id"]: [] for image in content["images"]}
    for annotation in content["annotations"]:
        objects[annotation["image_id"]].append({"bbox": annotation["bbox"]})
    sizes = {side: [image[side] for image in content["images"]] for side in ("width", "height")}
    scorer = GroundTruthBoxes(field="bbox", layout="xywh", size_columns=("width", "height"))
    scores = scorer({"objects": list(objects.values()), **sizes})
    assert scores["box_count"].sum() == 1200
    assert not np.isnan(scores["box_count"]).any()
    areas = scores["box_area"][scores["box_count"] > 0]
    assert ((areas > 0) & (areas <= 1)).all()


@pytest.mark.parametrize(
    ("layout", "box", "outside"),
    [
        ("xyxy", [0, 0, 41, 21], False),
        ("xyxy", [0, 0, 42, 21], True),
        ("xyxy", [-2, 0, 4, 4], True),
        ("xywh", [20, 5, 21, 15], False),
        ("xywh", [20, 5, 21, 17], True),
        ("xyxy", [0.1, 0.2, 0.9, 1], True),
        ("xyxy", [0.1, 0.2, 0.9, 1.1], False),
    ],
)
def test_boxes_outside_of_their_images_are_counted(caplog, layout, box, outside):
    rows = {"objects": [[{"box": box}], [{"box": box}], None, []], "width": [40] * 4, "height": [20] * 4}
    GroundTruthBoxes(size_columns=("width", "height"), layout=layout)(rows)
    assert ("boxes of 2 images lie outside of them, or within one pixel" in caplog.text) == outside
