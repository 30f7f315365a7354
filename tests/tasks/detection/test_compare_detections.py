"""The paired bootstrap of detections against metrics of images that are really drawn again."""

from __future__ import annotations

import numpy as np
import pytest

from hf_curriculum.tasks.captioning.compare import draw_images
from hf_curriculum.tasks.detection import compare_detections, detection_metrics

NAMES = ["ant", "bee"]


def make_systems(images=25):
    rng = np.random.default_rng(5)
    truths, systems = [], {"baseline": [], "ours": []}
    for _ in range(images):
        objects = []
        for _ in range(rng.integers(1, 5)):
            left, top = rng.integers(0, 60, 2).tolist()
            crowd = bool(rng.random() < 0.1)
            box = [left, top, left + int(rng.integers(8, 50)), top + int(rng.integers(8, 50))]
            objects.append({"name": NAMES[rng.integers(2)], "box": box, "iscrowd": crowd})
        truths.append(objects)
        for name, noise in (("baseline", 9), ("ours", 4)):
            rows = []
            for item in objects * 3:
                box = np.array(item["box"]) + rng.integers(-noise, noise + 1, 4)
                box[2:] = np.maximum(box[2:], box[:2] + 1)
                rows.append([NAMES.index(item["name"]), rng.random(), *box])
            systems[name].append(rows)
    return systems, truths


def test_resamples_have_the_values_of_images_that_are_repeated():
    systems, truths = make_systems()
    found = compare_detections(systems, truths, NAMES, resamples=6, seed=2)
    for name, predictions in systems.items():
        direct = detection_metrics(predictions, truths, NAMES, ["coco", "corloc"])
        for value in ("map_50", "corloc"):
            assert found.values[name][value] == pytest.approx(direct.values[value], abs=1e-12)
    changes = {"map_50": [], "corloc": []}
    for counts in np.concatenate(list(draw_images(len(truths), 6, 2))).astype(int):
        rows = np.repeat(np.arange(len(truths)), counts)
        values = {
            name: detection_metrics([each[row] for row in rows], [truths[row] for row in rows], NAMES).values
            for name, each in systems.items()
        }
        for value, change in changes.items():
            change.append(values["ours"][value] - values["baseline"][value])
    for each in found.differences:
        assert (each.system, each.baseline) == ("ours", "baseline")
        ends = np.percentile(changes[each.metric], [2.5, 97.5])
        assert (each.lower, each.upper) == pytest.approx(tuple(ends), abs=1e-12)
        change = np.array(changes[each.metric])
        against = min(np.sum(change <= 5e-5), np.sum(change >= -5e-5))
        assert each.p == min(1, 2 * (against + 1) / 7)


def test_a_comparison_says_what_was_compared():
    systems, truths = make_systems()
    found = compare_detections(systems, truths, NAMES, max_boxes=4, resamples=50)
    text = str(found)
    assert "At most 4 boxes of a class in each image." in text
    assert "| ours - baseline | mAP@0.5 | +" in text
    assert found.to_dict()["values"] == found.values
    assert found == compare_detections(systems, truths, NAMES, max_boxes=4, resamples=50)
    same = compare_detections({"a": systems["ours"], "b": systems["ours"]}, truths, NAMES, resamples=20)
    assert [(each.difference, each.lower, each.p) for each in same.differences] == [(0.0, 0.0, 1.0)] * 2
    assert len(compare_detections(systems, truths, NAMES, resamples=1).differences) == 2
    for given in ({"resamples": 0}, {"confidence": 0}, {"confidence": 1}):
        with pytest.raises(ValueError, match="one or more resamples, and a confidence between 0 and 1"):
            compare_detections(systems, truths, NAMES, **given)
    with pytest.raises(ValueError, match="A comparison needs two or more systems"):
        compare_detections({"a": systems["ours"]}, truths, NAMES)
    with pytest.raises(ValueError, match="Images are drawn for all systems alike"):
        compare_detections({"a": systems["ours"], "b": systems["ours"][:3]}, truths, NAMES)
