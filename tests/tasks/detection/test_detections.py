"""`add_detections`: boxes and names of detectors as a column, looked at once an image, resumed, and on photographs."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
import torch
from datasets import Dataset, Image, concatenate_datasets
from PIL import Image as Picture
from transformers import AutoModelForObjectDetection, DetrImageProcessorPil, YolosConfig

from hf_curriculum import load_captioned
from hf_curriculum.provenance import ScoreProvenance, column_provenance, installed_versions
from hf_curriculum.scorers.visual.detectors import Detections, Detector, ModelDetector
from hf_curriculum.scorers.visual.onnx import GridHead, OnnxDetector, RowHead
from hf_curriculum.tasks.alignment import Ontology
from hf_curriculum.tasks.detection import add_detections
from hf_curriculum.tasks.detection import detect as detections

NAMES = ("dog", "cat", "car", "tie")


class Plain(Detector):
    """Three boxes an image, as shares of its sides; their confidence follows from the image's first pixel."""

    packages = ()

    def __init__(self, classes=4, boxes=True):
        self.classes = classes
        self.boxes = boxes

    def load(self, device):
        return []

    def class_names(self, loaded):
        return NAMES

    def detect(self, images, loaded):
        return [self.one(image.getpixel((0, 0))[0] / 255, loaded) for image in images]

    def one(self, light, seen):
        seen.append(light)
        scores = np.zeros((3, self.classes))
        scores[0, 1], scores[1, 2], scores[2, 0] = 0.5 + light / 2, 0.6, 0.3
        boxes = np.array([[0, 0, 0.5, 1], [0.5, 0.5, 1.5, 1], [0, 0, 1, 1]]) if self.boxes else None
        return Detections(scores, scores.max(axis=1), boxes=boxes)


class Unnamed(Plain):
    def class_names(self, loaded):
        return None


def stored(light, size=(40, 20)):
    file = io.BytesIO()
    Picture.new("RGB", size, (light, light, light)).save(file, "PNG")
    return {"bytes": file.getvalue(), "path": None}


def make(lights=(0, 255, 51), repeats=2):
    images = [stored(light) for light in lights]
    rows = {"image": images * repeats, "image_id": [str(at) for at in range(len(images))] * repeats}
    return Dataset.from_dict(rows | {"caption": ["a dog"] * len(rows["image"])}).cast_column("image", Image())


def test_objects_in_pixels_by_confidence(tmp_path):
    data, detector = make().shuffle(seed=1), Plain()
    found = add_detections(data, detector)
    assert found["image_id"][:] == data["image_id"][:]
    by_image = dict(zip(found["image_id"], found["objects"], strict=True))
    # The car is cut at the picture's edge; the dog is below the limit; a dark picture's cat comes after the car.
    cat, car = {"name": "cat", "box": [0, 0, 20, 20]}, {"name": "car", "box": [20, 10, 40, 20]}
    assert by_image["0"] == [{**car, "confidence": np.float32(0.6)}, {**cat, "confidence": 0.5}]
    assert by_image["1"] == [{**cat, "confidence": 1.0}, {**car, "confidence": np.float32(0.6)}]
    assert len(detector.loaded()) == 3
    made = column_provenance(found, "objects")
    assert (made.column, made.scorer, made.arguments["min_confidence"]) == ("objects", "add_detections", 0.5)
    assert made.arguments["detector"] == {"type": "Plain", "classes": 4, "boxes": True}
    assert [len(one) for one in add_detections(data, Plain(), most=1, min_confidence=0.0)["objects"]] == [1] * 6
    assert len(add_detections(data, Plain(), min_confidence=0.0, column="all")["all"][0]) == 3
    found.save_to_disk(tmp_path / "found")
    from datasets import load_from_disk

    kept = column_provenance(load_from_disk(tmp_path / "found"), "objects")
    assert kept == made
    assert column_provenance(concatenate_datasets([found, found]), "objects") == made
    ontology = Ontology.induce(found, min_pairs=1, min_instances=1)
    assert {one.noun: one.node for one in ontology.nouns} == {"dog": "car"}  # each as often: the first by name


def test_a_call_goes_on_where_it_stopped_and_processes_share_it(tmp_path, monkeypatch):
    data = make(range(0, 250, 50), repeats=1)
    once = add_detections(data, Plain())["objects"][:]

    class Stops(Plain):
        def one(self, light, seen):
            if len(seen) == 3:
                raise KeyboardInterrupt
            return super().one(light, seen)

    Stops.__name__ = Stops.__qualname__ = "Plain"
    with pytest.raises(KeyboardInterrupt):
        add_detections(data, Stops(), cache_dir=tmp_path / "parts", rows_per_part=2)
    again = Plain()
    assert add_detections(data, again, cache_dir=tmp_path / "parts", rows_per_part=2)["objects"][:] == once
    assert len(again.loaded()) == 3  # the first two pictures were done
    with pytest.raises(ValueError, match="holds parts of another run"):
        add_detections(data, Plain(), cache_dir=tmp_path / "parts", rows_per_part=2, min_confidence=0.1)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    shared, second = {"cache_dir": tmp_path / "shared", "rows_per_part": 2}, Plain()
    with pytest.raises(TimeoutError):
        add_detections(data, second, timeout=0.1, **shared)
    assert len(second.loaded()) == 2  # its part is the middle one
    monkeypatch.setenv("RANK", "0")
    assert add_detections(data, Plain(), **shared)["objects"][:] == once


def test_images_that_cannot_be_read_have_none(caplog):
    data = make((0, 255), repeats=1)
    broken = Dataset.from_dict({"image": [{"bytes": b"none", "path": None}], "image_id": ["x"], "caption": ["a dog"]})
    data = concatenate_datasets([data, broken.cast_column("image", Image())])
    assert [one is None for one in add_detections(data, Plain())["objects"]] == [False, False, True]
    assert "1 images cannot be read, and their objects are unknown" in caplog.text
    with pytest.raises(ValueError, match="None of the 1 images can be read"):
        add_detections(data.select([2]), Plain())


def test_any_detector_of_transformers(tmp_path):
    config = YolosConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=[64, 64],
        patch_size=16, num_detection_tokens=6, id2label=dict(enumerate(NAMES)),
    )  # fmt: skip
    torch.manual_seed(0)
    AutoModelForObjectDetection.from_config(config).save_pretrained(tmp_path)
    DetrImageProcessorPil(size={"shortest_edge": 48, "longest_edge": 64}).save_pretrained(tmp_path)
    generator = np.random.default_rng(0)
    images = [Picture.fromarray(generator.integers(0, 256, (60, 80, 3), np.uint8)) for _ in range(3)]
    data = Dataset.from_dict({"image": images})
    found = add_detections(data, ModelDetector(str(tmp_path)), min_confidence=0.0)["objects"][:]
    model = AutoModelForObjectDetection.from_pretrained(tmp_path).eval()
    processor = DetrImageProcessorPil.from_pretrained(tmp_path)
    for image, objects in zip(images, found, strict=True):
        with torch.no_grad():
            outputs = model(processor(image, return_tensors="pt")["pixel_values"])
        (own,) = processor.post_process_object_detection(outputs, threshold=0.0, target_sizes=[(60, 80)])
        order = own["scores"].argsort(descending=True, stable=True)
        assert [thing["name"] for thing in objects] == [NAMES[label] for label in own["labels"][order]]
        boxes = own["boxes"][order].clamp(min=0).minimum(torch.tensor([80.0, 60, 80, 60]))
        np.testing.assert_allclose([thing["box"] for thing in objects], boxes, atol=1e-3)
        np.testing.assert_allclose([thing["confidence"] for thing in objects], own["scores"][order], rtol=1e-5)


@pytest.mark.parametrize(
    ("data", "detector", "options", "error", "message"),
    [
        ([], Plain(), {}, TypeError, "`add_detections` was given a list as `dataset`"),
        (make(), "detr", {}, TypeError, "`add_detections` was given the text 'detr' as `detector`"),
        (make().remove_columns("image"), Plain(), {}, ValueError, "`image` is not in the data"),
        (make(), Plain(), {"min_confidence": 1.5}, ValueError, "`min_confidence` is 1.5, `most` 100"),
        (make(), Plain(), {"most": 0}, ValueError, "`most` 0"),
        (make(), Plain(), {"column": "caption"}, ValueError, "The data already has `caption`"),
        (make(), Unnamed(), {}, ValueError, "does not know the names of its classes"),
        (make(), Plain(), {"names": ["a", "b"]}, ValueError, "has 4 classes, and 2 names were given"),
        (make(), Plain(boxes=False), {}, ValueError, "gives no boxes"),
    ],
)
def test_what_cannot_be_detected(data, detector, options, error, message):
    with pytest.raises(error, match=message):
        add_detections(data, detector, **options)


def test_boxes_of_onnx_detectors_have_a_unit(tmp_path):
    file = tmp_path / "detector.onnx"
    file.write_bytes(b"")

    class Session:
        def get_inputs(self):
            return [type("Input", (), {"shape": [1, 3, 320, 640]})]

    assert OnnxDetector(file, GridHead()).box_sides(Session()) == (1.0, 1.0)
    assert OnnxDetector(file, RowHead()).box_sides(Session()) == (640.0, 320.0)
    with pytest.raises(ValueError, match="It is not known in which unit len gives boxes"):
        OnnxDetector(file, len).box_sides(Session())


def test_fastestdet_on_photographs(test_data):
    """Of the confident detections most are of classes that the photograph has, where one of them is."""
    pytest.importorskip("onnxruntime")
    detector = OnnxDetector(test_data("weights") / "fastestdet" / "FastestDet.onnx")
    folder = test_data("coco_open")
    data = load_captioned(folder / "captions.json", objects=folder / "instances.json", check_images=False)
    data = data.select(range(0, 300, 5))
    found = add_detections(data, detector, names="coco", min_confidence=0.6, column="found")
    right = near = total = 0
    for row in found.select_columns(["objects", "found"]):
        for thing in row["found"]:
            own = [np.array(one["box"]) for one in row["objects"] or () if one["name"] == thing["name"]]
            total += 1
            right += bool(own)
            near += any(overlap(np.array(thing["box"]), box) > 0.5 for box in own)
    assert total > 50
    assert right / total > 0.85
    assert near / total > 0.65
    assert json.dumps(column_provenance(found, "found").arguments["detector"]["head"]["type"]) == '"GridHead"'


def overlap(one, other):
    low, high = np.maximum(one[:2], other[:2]), np.minimum(one[2:], other[2:])
    common = np.prod(np.clip(high - low, 0, None))
    return common / (np.prod(one[2:] - one[:2]) + np.prod(other[2:] - other[:2]) - common)


def test_all_that_is_recorded_and_how_many_are_opened_at_once(monkeypatch, tmp_path):
    sizes = []

    class Known(Plain):
        packages, model, revision, backend = ("numpy",), "m", "r", "onnx"

        def detect(self, images, loaded):
            sizes.append(len(images))
            return super().detect(images, loaded)

    monkeypatch.setattr(detections, "_BATCH", 2)
    data, names = make(range(0, 250, 50), repeats=1), ["A", "B", "C", "D"]
    found = add_detections(data, Known(), names=names, most=2, cache_dir=tmp_path, rows_per_part=1)
    assert sizes == [1] * 5
    expected = add_detections(data, Known(), names=names, most=2)
    assert sizes[5:] == [2, 2, 1]
    assert expected["objects"][:] == found["objects"][:]
    arguments = {"detector": Known().arguments(), "names": names, "min_confidence": 0.5, "most": 2}
    made = {"model": "m", "revision": "r", "backend": "onnx"}
    made["versions"] = installed_versions(("hf-curriculum", "numpy"))
    assert column_provenance(found, "objects") == ScoreProvenance("objects", "add_detections", arguments, **made)
    again = add_detections(found, Plain(), most=1, overwrite=True)
    assert [len(one) for one in again["objects"]] == [1] * 5
    empty = add_detections(data.select([]), Plain())
    assert (len(empty), str(empty.features["objects"])) == (0, str(found.features["objects"]))
    with pytest.raises(ValueError, match="`rows_per_part` 0"):
        add_detections(data, Plain(), rows_per_part=0)


def test_an_image_of_nothing_and_a_folder_of_a_failed_run(tmp_path):
    class Blind(Plain):
        def one(self, light, seen):
            return Detections(np.zeros((0, 4)), np.zeros(0), boxes=np.zeros((0, 4)))

    (tmp_path / "run.json").write_text('{"rows": 7}')  # of a run that wrote no part
    assert add_detections(make(), Blind(), cache_dir=tmp_path)["objects"][:] == [[]] * 6
