"""Detection metrics: published figures, pycocotools, VOC by naive loops, CorLoc by hand."""

from __future__ import annotations

import contextlib
import io
import json
import sys

import numpy as np
import pytest
from transformers import EvalPrediction

from hf_curriculum.tasks.detection import detection_compute_metrics, detection_metrics, random_detections

NAMES = ["ant", "bee", "cat"]


def make_case(seed=0, images=60, detections=40, extras=True):
    """Truths with crowds, difficult objects and images without any; detections near them or anywhere."""
    rng = np.random.default_rng(seed)
    truths, predictions = [], []
    for image in range(images):
        objects = []
        for _ in range(rng.integers(0, 6) if image else 3):
            left, top = rng.integers(0, 150, 2)
            width, height = rng.integers(5, 150, 2)
            item = {"name": NAMES[rng.integers(3)], "box": [left, top, left + width, top + height]}
            if extras:
                item |= {"iscrowd": bool(rng.random() < 0.15), "difficult": bool(rng.random() < 0.15)}
                item["area"] = float(width * height * rng.uniform(0.4, 1))
            objects.append(item)
        truths.append(objects)
        rows = []
        for _ in range(rng.integers(0, detections)):
            if objects and rng.random() < 0.6:
                item = objects[rng.integers(len(objects))]
                box, number = np.array(item["box"]) + rng.integers(-12, 13, 4), NAMES.index(item["name"])
                box[2:] = np.maximum(box[2:], box[:2] + 1)
            else:
                left, top = rng.integers(0, 150, 2)
                box, number = np.array([left, top, left + rng.integers(5, 150), top + 50]), rng.integers(3)
            rows.append([number, round(rng.random(), 1), *box])  # coarse scores: many are equal
        predictions.append(np.array(rows, dtype=float).reshape(-1, 6))
    return predictions, truths


def reference_coco(predictions, truths, num_classes):
    """pycocotools' twelve figures, with category ids that have gaps."""
    coco = pytest.importorskip("pycocotools.coco")
    from pycocotools.cocoeval import COCOeval

    ids = [5, 9, 90][:num_classes]
    annotations, results = [], []
    for image, objects in enumerate(truths):
        for item in objects:
            left, top, right, bottom = map(float, item["box"])
            box = [left, top, right - left, bottom - top]
            area = item.get("area", box[2] * box[3])
            made = {"image_id": image, "bbox": box, "category_id": ids[NAMES.index(item["name"])]}
            annotations.append({**made, "id": len(annotations) + 1, "area": area, "iscrowd": int(item["iscrowd"])})
        for number, score, left, top, right, bottom in predictions[image].tolist():
            box = [left, top, right - left, bottom - top]
            results.append({"image_id": image, "category_id": ids[int(number)], "bbox": box, "score": score})
    with contextlib.redirect_stdout(io.StringIO()):
        expected = coco.COCO()
        expected.dataset = {
            "info": {},
            "images": [{"id": image} for image in range(len(truths))],
            "annotations": annotations,
            "categories": [{"id": one} for one in ids],
        }
        expected.createIndex()
        evaluation = COCOeval(expected, expected.loadRes(results), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation


def test_coco_values_are_those_of_pycocotools_digit_for_digit():
    for seed in range(3):
        predictions, truths = make_case(seed)
        reference = reference_coco(predictions, truths, 3)
        found = detection_metrics(predictions, truths, NAMES, ["coco"])
        names = ("map", "map_50", "map_75", "ap_small", "ap_medium", "ap_large")
        assert [found.values[name] for name in names] == pytest.approx(reference.stats[:6].tolist(), abs=1e-12)
        assert found.values["ar"] == pytest.approx(reference.stats[8], abs=1e-12)
        for number, name in enumerate(NAMES):
            own = reference.eval["precision"][0, :, number, 0, 2]
            assert found.per_class[name]["ap_50"] == pytest.approx(own.mean(), abs=1e-12)


def naive_voc(predictions, truths, name, iou):
    """The development kit, box by box: (area below the envelope, mean at eleven recalls)."""
    rows = [(score, image, box) for image, part in enumerate(predictions) for number, score, *box in part.tolist()
            if NAMES[int(number)] == name]  # fmt: skip
    taken, right, total = set(), [], 0
    for objects in truths:
        total += sum(o["name"] == name and not o["difficult"] and not o["iscrowd"] for o in objects)
    for _, image, box in sorted(rows, key=lambda row: -row[0]):
        best, chosen = 0.0, None
        for place, item in enumerate(truths[image]):
            if item["name"] != name:
                continue
            other = item["box"]
            width = min(box[2], other[2]) - max(box[0], other[0])
            height = min(box[3], other[3]) - max(box[1], other[1])
            if width <= 0 or height <= 0:
                continue
            sizes = [(b[2] - b[0]) * (b[3] - b[1]) for b in (box, other)]
            overlap = width * height / (sum(sizes) - width * height)
            if overlap > best:
                best, chosen = overlap, place
        if chosen is None or best < iou:
            right.append(False)
        elif truths[image][chosen]["difficult"] or truths[image][chosen]["iscrowd"]:
            continue
        else:
            right.append((image, chosen) not in taken)
            taken.add((image, chosen))
    found, area, points = np.cumsum(right), 0.0, []
    precision = found / np.arange(1, len(right) + 1)
    for place in range(len(right)):
        if right[place]:
            area += precision[place:].max() / total
    for tenth in range(11):
        reached = precision[found / total >= np.linspace(0, 1, 11)[tenth]]
        points.append(reached.max() if len(reached) else 0.0)
    return area, np.mean(points)


@pytest.mark.parametrize("iou", [0.3, 0.5, 0.75])
def test_voc_values_are_those_of_naive_loops(iou):
    predictions, truths = make_case(7)
    predictions = [rows[np.argsort(-rows[:, 1], kind="stable")] for rows in predictions]
    found = detection_metrics(predictions, truths, NAMES, ["voc"], iou=iou)
    for name in NAMES:
        area, eleven = naive_voc(predictions, truths, name, iou)
        assert found.per_class[name]["voc_ap"] == pytest.approx(area, abs=1e-12)
        assert found.per_class[name]["voc_ap_11"] == pytest.approx(eleven, abs=1e-12)
    assert found.values["voc_ap"] == pytest.approx(np.mean([found.per_class[name]["voc_ap"] for name in NAMES]))


def test_corloc_by_hand():
    truths = [
        [{"name": "ant", "box": [0, 0, 10, 10]}, {"name": "ant", "box": [20, 20, 30, 30]}],  # found: the second one
        [{"name": "ant", "box": [0, 0, 10, 10]}],  # missed: the highest score lies elsewhere
        [{"name": "ant", "box": [0, 0, 10, 10]}, {"name": "bee", "box": [0, 0, 4, 4]}],  # no box of ant; bee at 8 / 16
        [{"name": "bee", "box": [0, 0, 4, 4], "difficult": True}],  # counts for nothing
        [],
    ]
    predictions = [
        [[0, 0.9, 21, 20, 30, 30], [0, 0.5, 0, 0, 1, 1]],
        [[0, 0.8, 50, 50, 60, 60], [0, 0.7, 0, 0, 10, 10]],
        [[1, 0.3, 0, 0, 4, 2]],
        [[1, 0.9, 0, 0, 4, 4]],
        [[2, 0.9, 0, 0, 4, 4]],
    ]
    found = detection_metrics(predictions, truths, NAMES, ["corloc"])
    assert found.per_class == {"ant": {"corloc": 1 / 3}, "bee": {"corloc": 1.0}}
    assert found.values == {"corloc": pytest.approx((1 / 3 + 1) / 2)}


def test_published_figures_of_coco(test_data):
    """AP of 100 photographs of COCO, whose category ids have gaps, as the published test has them."""
    folder = test_data("detection_metrics")
    expected = json.loads((folder / "expected.json").read_text())["coco_eval"]
    content = json.loads((folder / "coco_eval" / "gts" / "sampled_gts_bbox_area.json").read_text())
    names = {one["id"]: one["name"] for one in content["categories"]}
    assert len(names) == 80 < max(names) == 90
    order = list(names.values())
    images = sorted(image["id"] for image in content["images"])  # equal scores count in this order
    objects = {image: [] for image in images}
    for one in content["annotations"]:
        left, top, width, height = one["bbox"]
        box = {"name": names[one["category_id"]], "box": [left, top, left + width, top + height]}
        objects[one["image_id"]].append({**box, "area": one["area"], "iscrowd": one["iscrowd"]})
    rows = {image: [] for image in images}
    for one in json.loads((folder / "coco_eval" / "cocoapi_results.json").read_text()):
        left, top, width, height = one["bbox"]
        number = order.index(names[one["category_id"]])
        rows[one["image_id"]].append([number, one["score"], left, top, left + width, top + height])
    found = detection_metrics([rows[image] for image in images], list(objects.values()), order, ["coco"])
    pairs = {"map": "AP", "map_50": "AP50", "map_75": "AP75", "ar": "AR100"}
    pairs |= {f"ap_{size}": f"AP{size}" for size in ("small", "medium", "large")}
    for ours, theirs in pairs.items():
        assert found.values[ours] == pytest.approx(expected[theirs], abs=1e-6), ours
    assert found.most_boxes <= found.max_boxes == 100


def test_published_figures_of_voc(test_data):
    """Four thresholds, every point and eleven; corners there include the last pixel."""
    folder = test_data("detection_metrics")
    expected = json.loads((folder / "expected.json").read_text())["voc_case_1"]
    truths, predictions = [], []
    for file in sorted((folder / "voc_case_1" / "gts").iterdir()):
        boxes = [list(map(float, line.split()[1:])) for line in file.read_text().splitlines()]
        truths.append([{"name": "object", "box": [x, y, x + w + 1, y + h + 1]} for x, y, w, h in boxes])
        lines = (folder / "voc_case_1" / "dets" / file.name).read_text().splitlines()
        rows = [list(map(float, line.split()[1:])) for line in lines]
        predictions.append([[0, score, x, y, x + w + 1, y + h + 1] for score, x, y, w, h in rows])
    for iou, area in expected["every_point"].items():
        found = detection_metrics(predictions, truths, ["object"], ["voc"], iou=float(iou)).values
        assert found["voc_ap"] == pytest.approx(area, abs=1e-6)
        assert found["voc_ap_11"] == pytest.approx(expected["11point"][iou], abs=1e-6)


def test_the_number_of_boxes_that_are_kept_belongs_to_the_result():
    predictions, truths = make_case(3, extras=False)
    few, many = (detection_metrics(predictions, truths, NAMES, max_boxes=count) for count in (5, 100))
    assert (few.max_boxes, few.most_boxes, many.most_boxes) == (5, 39, 39)
    assert few.values["ar"] < many.values["ar"]  # what is left out cannot be found; AP may gain by it
    by_hand = []
    for rows in predictions:
        best_first = rows[np.argsort(-rows[:, 1], kind="stable")]
        by_hand.append(np.concatenate([best_first[best_first[:, 0] == label][:5] for label in range(len(NAMES))]))
    assert detection_metrics(by_hand, truths, NAMES).values == few.values
    assert "at most 5 boxes of a class in an image kept" in str(few)
    assert str(few).splitlines()[4].startswith("mean")
    assert few.to_dict()["values"] == few.values


def test_a_trainer_gets_what_a_fixed_array_holds():
    predictions, truths = make_case(4, detections=12)
    fixed = np.zeros((len(truths), 100, 6), np.float32)
    fixed[..., 0] = -1
    for image, rows in enumerate(predictions):
        fixed[image, : len(rows)] = rows
    truths[1].append({"name": "dog", "box": [0, 0, 3, 3]})  # of a class that the model lacks
    compute = detection_compute_metrics(NAMES, truths, per_class=True)
    values = compute(EvalPrediction((np.zeros((len(truths), 3)), fixed), None))
    with pytest.raises(ValueError, match=r"have the shapes \[\(60, 3\)\], and one of \(images, boxes, 6\)"):
        compute(EvalPrediction(np.zeros((60, 3)), None))
    direct = detection_metrics(predictions, truths, NAMES, ["coco", "corloc"])
    assert direct.other_objects == 1
    assert values == pytest.approx({**direct.values, **{
        f"{name}_{label}": value for label, own in direct.per_class.items() for name, value in own.items()
    }}, abs=1e-6)  # fmt: skip
    scenes = [[{"noun": item["name"], "name": f"a red {item['name']}", "box": item["box"]} for item in objects]
              for objects in truths]  # fmt: skip
    named = detection_metrics(predictions, scenes, NAMES, ["voc"], field="noun")
    plain = [[{"name": item["name"], "box": item["box"]} for item in objects] for objects in truths]
    assert named == detection_metrics(predictions, plain, NAMES, ["voc"])
    assert {"map_50", "corloc", "ap_50_ant"} <= set(values)
    assert set(detection_compute_metrics(NAMES, truths)(EvalPrediction(fixed, None))) == set(direct.values)


def test_random_detections_are_a_function_of_image_and_seed():
    rng = np.random.default_rng(0)
    boxes = [np.sort(rng.uniform(0, 50, (n, 2, 2)), axis=1).reshape(n, 4) for n in (7, 0, 3, 12)]
    scores, ids = rng.random((4, 3)), ["a", "b", "c", "d"]
    made = random_detections(boxes, scores, ids, boxes_per_class=4, max_boxes=10, seed=3)
    assert made.shape == (4, 10, 6)
    assert [(rows[:, 0] >= 0).sum() for rows in made] == [10, 0, 9, 10]
    for image in (0, 2, 3):
        kept = made[image][made[image, :, 0] >= 0]
        assert (np.diff(kept[:, 1]) <= 0).all()
        assert {tuple(row) for row in kept[:, 2:]} <= {tuple(row) for row in boxes[image].astype(np.float32)}
        assert len({tuple(row[[0, 2, 3, 4, 5]]) for row in kept}) == len(kept)
    order = [2, 0, 3, 1]
    again = random_detections([boxes[i] for i in order], scores[order], [ids[i] for i in order], boxes_per_class=4,
                              max_boxes=10, seed=3)  # fmt: skip
    assert np.array_equal(again, made[order])
    assert not np.array_equal(made, random_detections(boxes, scores, ids, boxes_per_class=4, max_boxes=10, seed=4))
    first = random_detections([boxes[3]] * 2000, np.ones((2000, 1)), list(map(str, range(2000))))[:, 0, 2:]
    shares = [(first == row.astype(np.float32)).all(1).mean() for row in boxes[3]]
    assert np.abs(np.array(shares) - 1 / 12).max() < 0.03
    with pytest.raises(ValueError, match="boxes would get the scores of other images"):
        random_detections(boxes, scores[:3], ids)
    with pytest.raises(ValueError, match="a detection needs at least one of each"):
        random_detections(boxes, scores, ids, boxes_per_class=0)
    with pytest.raises(ValueError, match="a detection needs at least one of each"):
        random_detections(boxes, scores, ids, max_boxes=0)
    with pytest.raises(ValueError, match="boxes would get the scores of other images"):
        random_detections(boxes, scores[:, 0], ids)


def test_the_boxes_of_a_class_share_its_score():
    box = [1.0, 2.0, 3.0, 4.0]
    made = random_detections([[box] * 3], np.array([[0.6, 0.25]]), ["a"], boxes_per_class=2, max_boxes=5)
    rows = [[0, 0.6], [0, 0.3], [1, 0.25], [1, 0.125]]
    assert made[0, :4].tolist() == pytest.approx(np.array([[*row, *box] for row in rows]), rel=1e-6)
    assert made[0, 4].tolist() == [-1, 0, 0, 0, 0, 0]
    (one,) = random_detections([[box] * 3], np.array([[0.6, 0.7]]), ["a"], max_boxes=1)
    assert one.tolist() == [pytest.approx([1, 0.7, *box])]


def test_bad_input_is_refused(monkeypatch):
    dog = [[{"name": "dog", "box": [0, 0, 5, 5]}]]
    right = [[[0, 0.5, 0, 0, 5, 5]]]
    for predictions, truths, names, options, message in (
        (right, dog, ["dog", "cat", "dog"], {}, "holds 'dog' more than once"),
        (right, dog, [], {}, "`class_names` is empty"),
        (right, dog, ["dog"], {"metrics": ["map"]}, r"is a list of some of \['coco', 'voc', 'corloc'\]"),
        (right, dog, ["dog"], {"iou": 0}, "is more than 0 and at most 1"),
        (right, dog, ["dog"], {"iou": 1.01}, "is more than 0 and at most 1"),
        (right, dog, ["dog"], {"max_boxes": 0}, "keeps no box"),
        (right, dog * 2, ["dog"], {}, "row by row they would be of other images"),
        ([[[0, 0.5, 0, 0, 5]]], dog, ["dog"], {}, r"have the shape \(1, 5\)"),
        ([[[1, 0.5, 0, 0, 5, 5]]], dog, ["dog"], {}, "a class that is none of the 1 in"),
        ([[[0.5, 0.5, 0, 0, 5, 5]]], dog, ["dog"], {}, "a class that is no whole number"),
        ([[[0, np.nan, 0, 0, 5, 5]]], dog, ["dog"], {}, "a value that is not finite"),
        ([[[0, 0.5, 30, 30, 5, 5]]], dog, ["dog"], {}, r"a box that ends before it begins.*turn \[left, top, width"),
        (right, [None], ["dog"], {}, "have no annotation"),
        (right, [[{"name": None, "box": [0, 0, 1, 1]}]], ["dog"], {}, "Read them with their categories"),
        (right, dog, ["cat"], {}, "None of the 1 objects of 1 images has one of the names"),
        (right, [[{"name": "dog", "box": [9, 9, 5, 5]}]], ["dog"], {}, "add width and height to the corner"),
    ):
        with pytest.raises(ValueError, match=message):
            detection_metrics(predictions, truths, names, **options)
    with pytest.raises(ValueError, match="None of the 1 objects"):
        detection_compute_metrics(["cat"], dog)
    for options in ({"iou": 1.0}, {"iou": 0.01}, {"max_boxes": 1}):
        assert detection_metrics(right, dog, ["dog"], ["voc", "corloc"], **options).values["voc_ap"] == 1.0
    monkeypatch.setitem(sys.modules, "faster_coco_eval", None)
    with pytest.raises(ImportError, match=r"pip install 'hf-curriculum\[detection\]'"):
        detection_metrics(right, dog, ["dog"])
    assert detection_metrics(right, dog, ["dog"], ["voc", "corloc"]).values["corloc"] == 1.0


def test_boxes_are_kept_by_class_as_coco_does():
    """270 boxes of an image, 90 of each of three classes: none is left out of the default's 100."""
    rng = np.random.default_rng(0)
    truths, predictions = [], []
    for _ in range(4):
        corners, sides = rng.uniform(0, 60, (12, 2)), rng.uniform(10, 40, (12, 2))
        boxes = np.concatenate([corners, corners + sides], axis=1)
        truths.append([{"name": NAMES[row % 3], "box": box.tolist()} for row, box in enumerate(boxes)])
        near = boxes[np.arange(270) % 12] + rng.normal(0, 4, (270, 4))
        near[:, 2:] = np.maximum(near[:, 2:], near[:, :2] + 1)
        predictions.append(np.concatenate([np.arange(270)[:, None] % 3, rng.random((270, 1)), near], axis=1))
    for kept in (100, 20):
        ours = detection_metrics(predictions, truths, NAMES[:3], ["coco"], max_boxes=kept).values
        theirs = pycocotools_values(predictions, truths, NAMES[:3], kept)
        assert {name: ours[name] for name in theirs} == pytest.approx(theirs, abs=1e-12)


def pycocotools_values(predictions, truths, names, max_dets):
    """mAP, mAP@.5 and AR of boxes by pycocotools."""
    coco, cocoeval = pytest.importorskip("pycocotools.coco"), pytest.importorskip("pycocotools.cocoeval")
    sides = lambda box: [box[0], box[1], box[2] - box[0], box[3] - box[1]]  # noqa: E731
    rows = [(image, one) for image, objects in enumerate(truths) for one in objects]
    true, found = coco.COCO(), coco.COCO()
    shared = {
        "images": [{"id": image} for image in range(len(truths))],
        "categories": [{"id": number} for number in range(len(names))],
    }
    annotations = [
        {"id": at, "image_id": image, "category_id": names.index(one["name"]), "bbox": (box := sides(one["box"])),
         "area": box[2] * box[3], "iscrowd": 0}
        for at, (image, one) in enumerate(rows, 1)
    ]  # fmt: skip
    true.dataset = {**shared, "annotations": annotations}
    rows = [(image, row) for image, of_image in enumerate(predictions) for row in of_image.tolist()]
    found.dataset = {**shared, "annotations": [
        {"id": at, "image_id": image, "category_id": int(row[0]), "score": row[1], "bbox": (box := sides(row[2:])),
         "area": box[2] * box[3], "iscrowd": 0}
        for at, (image, row) in enumerate(rows, 1)
    ]}  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):
        for one in (true, found):
            one.createIndex()
        run = cocoeval.COCOeval(true, found, "bbox")
        run.params.maxDets = [max_dets]
        run.evaluate()
        run.accumulate()
    precision, recall = run.eval["precision"][:, :, :, 0, 0], run.eval["recall"][:, :, 0, 0]
    return {"map": precision.mean(), "map_50": precision[0].mean(), "ar": recall.mean()}
