"""Entropy by hand, tiny detectors of both families and an ONNX one against naive references, and real images."""

from __future__ import annotations

import base64
import io
import json
import math
import sys

import numpy as np
import pytest
import torch
from datasets import Dataset, Features, Image, Value
from datasets.fingerprint import Hasher
from PIL import Image as Pillow
from transformers import AutoModelForObjectDetection, ConditionalDetrConfig, DetrConfig, YolosConfig
from transformers.models.detr.image_processing_pil_detr import DetrImageProcessorPil

from hf_curriculum import VisualEntropy, add_scores, read_provenance
from hf_curriculum.provenance import score_values
from hf_curriculum.scorers.visual.detectors import (
    Detections,
    Detector,
    ModelDetector,
    entropy,
    entropy_of_top,
    keep_distinct,
    softmax,
)
from hf_curriculum.scorers.visual.entropy import as_detections
from hf_curriculum.scorers.visual.onnx import GridHead, OnnxDetector, RowHead

RNG = np.random.default_rng(0)
MODULES = ("detections", "precomputed", "visual_entropy")
RESNET = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8] * 4, "depths": [1] * 4}
SMALL = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
SMALL |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "num_queries": 14, "num_labels": 4}


def picture(width, height, seed=0):
    return Pillow.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def stored(image):
    file = io.BytesIO()
    image.save(file, "png")
    return {"bytes": file.getvalue(), "path": None}


# by hand


def test_the_largest_value_is_that_of_the_paper():
    uniform = np.full((36, 1601), 1 / 1601)
    found = VisualEntropy(probabilities="p")({"p": [uniform.tolist()]})["visual_entropy"]
    assert found[0] == pytest.approx(73.7776, abs=1e-4)  # 10 log 1600
    kept = VisualEntropy(probabilities="p", no_object="keep")({"p": [uniform.tolist()]})["visual_entropy"]
    assert kept[0] == pytest.approx(10 * math.log(1601), rel=1e-6)


def test_the_most_confident_boxes_count_and_no_more():
    sure, unsure, lost = [0.0, 1.0, 0.0, 0.0], [0.2, 0.4, 0.4, 0.0], [0.9, 0.05, 0.05, 0.0]  # the first: no object
    rows = {"p": [[lost, unsure, sure], [lost], [sure]]}

    def score(**options):
        return VisualEntropy(probabilities="p", background=0, **options)(rows)["visual_entropy"].tolist()

    assert score(top_k=1) == pytest.approx([0.0, math.log(2), 0.0])
    assert score(top_k=2) == pytest.approx([math.log(2), math.log(2), 0.0], rel=1e-6)
    assert score(top_k=10) == pytest.approx([2 * math.log(2), math.log(2), 0.0], rel=1e-6)
    keep = -(0.2 * math.log(0.2) + 2 * 0.4 * math.log(0.4))
    assert score(top_k=2, no_object="keep")[0] == pytest.approx(keep, rel=1e-6)


def test_naive_reference_on_random_probabilities():
    scores = RNG.dirichlet(np.ones(7), size=(20, 30))
    found = VisualEntropy(probabilities="p", background=-1, top_k=5)({"p": scores.tolist()})["visual_entropy"]
    for image_scores, value in zip(scores, found, strict=True):
        boxes = sorted(image_scores.tolist(), key=lambda box: -max(box[:-1]))[:5]
        naive = 0.0
        for box in boxes:
            total = sum(box[:-1])
            naive -= sum(p / total * math.log(p / total) for p in box[:-1])
        assert value == pytest.approx(naive, rel=1e-6)


def test_boxes_without_any_class_are_none():
    assert math.isnan(entropy_of_top(Detections(np.zeros((2, 3)), np.ones(2)), 10, "drop"))
    assert np.isnan(entropy(np.zeros(3)))
    assert softmax(np.array([0.0, 1000.0])).tolist() == [0.0, 1.0]
    with pytest.raises(ValueError, match='gives no "no object"'):
        entropy_of_top(Detections(np.ones((1, 2)), np.ones(1)), 10, "keep")


def test_suppression_against_a_naive_one():
    corners = RNG.uniform(0, 1, (60, 2))
    boxes, confidence = np.concatenate([corners, corners + RNG.uniform(0.1, 0.5, (60, 2))], 1), RNG.random(60)

    def iou(one, other):
        sides = [max(0.0, min(one[i + 2], other[i + 2]) - max(one[i], other[i])) for i in (0, 1)]
        areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
        return sides[0] * sides[1] / (sum(areas) - sides[0] * sides[1])

    naive = []
    for place in sorted(range(60), key=lambda place: -confidence[place]):
        if all(iou(boxes[place], boxes[better]) <= 0.3 for better in naive):
            naive.append(place)
    assert keep_distinct(boxes, confidence, 0.3, 60).tolist() == naive
    assert keep_distinct(boxes, confidence, 0.3, 4).tolist() == naive[:4]
    assert 4 < len(naive) < 60


# options and errors


def test_options_that_cannot_be(tmp_path):
    with pytest.raises(ValueError, match="was given no source of class probabilities"):
        VisualEntropy()
    with pytest.raises(ValueError, match="was given detector and probabilities"):
        VisualEntropy("a/detector", probabilities="p")
    with pytest.raises(ValueError, match="`no_object` is 'maybe'"):
        VisualEntropy(probabilities="p", no_object="maybe")
    with pytest.raises(ValueError, match="`easy` is 'middle'"):
        VisualEntropy(probabilities="p", easy="middle")
    with pytest.raises(ValueError, match="no `regions` were given"):
        VisualEntropy(probabilities="p", classifier=tmp_path / "a.npz")
    with pytest.raises(TypeError, match="was given 3 as `detector`"):
        VisualEntropy(3)
    with pytest.raises(FileNotFoundError, match="There is no ONNX detector"):
        VisualEntropy(tmp_path / "none.onnx")
    with pytest.raises(NotImplementedError, match="does not define `load`"):
        Detector().load("cpu")
    with pytest.raises(NotImplementedError, match="does not define `detect`"):
        Detector().detect([], None)
    with pytest.raises(FileNotFoundError, match="AutoImageProcessor found no 'a/detector'"):
        VisualEntropy("a/detector")({"image": [picture(8, 8)]})


def test_numbers_that_are_no_probabilities():
    def score(scores, **options):
        return VisualEntropy(probabilities="p", **options)({"p": [scores]})

    with pytest.raises(ValueError, match="numbers from -1 to 4, which are no probabilities"):
        score([[-1.0, 4.0]])
    with pytest.raises(ValueError, match=r"`p` in row 0 of the batch has the shape \(2,\)"):
        score([0.5, 0.5])
    with pytest.raises(ValueError, match="is no table of numbers"):
        score([[0.5, 0.5], [1.0]])
    with pytest.raises(ValueError, match="has 2 columns, so `background` cannot be column 5"):
        score([[0.5, 0.5]], background=5)
    assert as_detections(np.ones((1, 1601)) / 1601, None, "auto", "p").class_scores.shape == (1, 1600)
    assert as_detections(np.ones((1, 91)) / 91, None, "auto", "p").no_object is None


# files of regions


def packed(array):
    return base64.b64encode(np.float32(array).tobytes()).decode()


def test_bottom_up_regions_by_image_id(tmp_path):
    scores = RNG.dirichlet(np.full(1601, 0.05), size=12).astype(np.float32)
    boxes, features = np.ones((12, 4)), RNG.normal(size=(12, 6)).astype(np.float32)
    table = tmp_path / "regions.tsv"
    lines = [("9", 12, scores, boxes, features), ("7", 0, scores[:0], boxes[:0], features[:0])]
    table.write_text(
        "".join(f"{key}\t10\t10\t{n}\t{packed(b)}\t{packed(f)}\t{packed(s)}\n" for key, n, s, b, f in lines)
    )
    rows = {"image_id": ["9", "7", "8", "9", None]}
    scorer = VisualEntropy(regions=table)
    found = scorer(rows)["visual_entropy"]
    by_column = VisualEntropy(probabilities="p")({"p": [scores.tolist()]})["visual_entropy"][0]
    assert found[[0, 3]].tolist() == pytest.approx([by_column] * 2, rel=1e-6)
    assert np.isnan(found[[1, 2, 4]]).all()
    assert scorer.arguments()["regions"]["path"] == "regions.tsv"
    key = Hasher.hash(VisualEntropy(regions=table))
    assert Hasher.hash(scorer) == key

    weight, bias = RNG.normal(size=(5, 6)), RNG.normal(size=5)
    np.savez(tmp_path / "layer.npz", weight=weight, bias=bias)
    scorer = VisualEntropy(regions=table, classifier=tmp_path / "layer.npz", background=0)
    logits = features.astype(np.float64) @ weight.T + bias
    probabilities = torch.softmax(torch.tensor(logits), -1).tolist()
    naive = VisualEntropy(probabilities="p", background=0)({"p": [probabilities]})["visual_entropy"]
    key = Hasher.hash(scorer)
    assert scorer(rows)["visual_entropy"][0] == pytest.approx(naive[0], rel=1e-5)
    assert Hasher.hash(scorer) == key
    assert len(json.dumps(scorer.arguments()["classifier"])) < 40


def test_regions_without_classes_and_classifiers_that_do_not_fit(tmp_path):
    np.savez(tmp_path / "r.npz", **{"9": np.ones((2, 4)), "8/features": np.ones((2, 6))})
    with pytest.raises(ValueError, match="image '9' have no class probabilities"):
        VisualEntropy(regions=tmp_path / "r.npz")({"image_id": ["9"]})
    np.savez(tmp_path / "layer.npz", weight=np.ones((3, 5)), bias=np.ones(3))
    for image_id, what in (("9", "no features"), ("8", "features of 6 numbers")):
        with pytest.raises(ValueError, match=f"have {what}, and the classifier takes 5"):
            VisualEntropy(regions=tmp_path / "r.npz", classifier=tmp_path / "layer.npz")({"image_id": [image_id]})
    np.savez(tmp_path / "bad.npz", weight=np.ones((3, 5)), bias=np.ones(4))
    with pytest.raises(ValueError, match=r"`bias` of \(4,\)"):
        VisualEntropy(regions=tmp_path / "r.npz", classifier=tmp_path / "bad.npz")
    np.savez(tmp_path / "none.npz", kernel=np.ones((3, 5)))
    with pytest.raises(ValueError, match=r"holds \['kernel'\]"):
        VisualEntropy(regions=tmp_path / "r.npz", classifier=tmp_path / "none.npz")


# detectors of transformers, tiny and untrained


def save_detector(folder, config):
    torch.manual_seed(0)
    model = AutoModelForObjectDetection.from_config(config)
    with torch.no_grad():  # far from uniform, so that the top ten are clear
        for name, parameter in model.named_parameters():
            if "class_labels_classifier" in name:
                parameter.mul_(20)
    model.save_pretrained(folder)
    DetrImageProcessorPil(size={"shortest_edge": 64, "longest_edge": 96}).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def detr(tmp_path_factory):
    backbone = {**RESNET, "out_features": ["stage4"]}
    config = DetrConfig(use_timm_backbone=False, backbone=None, backbone_config=backbone, **SMALL)
    return save_detector(tmp_path_factory.mktemp("detr"), config)


@pytest.fixture(scope="module")
def yolos(tmp_path_factory):
    config = YolosConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=[64, 64],
        patch_size=16,
        num_detection_tokens=14,
        num_labels=4,
    )
    return save_detector(tmp_path_factory.mktemp("yolos"), config)


IMAGES = [picture(80, 60, 0), picture(60, 80, 1), picture(80, 60, 2), picture(100, 60, 3), picture(80, 60, 4)]


@pytest.fixture(scope="module")
def conditional(tmp_path_factory):
    backbone = {**RESNET, "out_features": ["stage4"]}
    config = ConditionalDetrConfig(use_timm_backbone=False, backbone=None, backbone_config=backbone, **SMALL)
    return save_detector(tmp_path_factory.mktemp("conditional"), config)


def in_two_processes(folder, **options):
    data = Dataset.from_dict({"image": list(map(stored, IMAGES)), "image_id": list("abcde")})
    return add_scores(data.cast_column("image", Image()), VisualEntropy(folder), **options)


@pytest.mark.parametrize("family", ["detr", "yolos", "conditional"])
def test_transformers_detectors_against_one_image_at_a_time(family, request):
    folder = request.getfixturevalue(family)
    model = AutoModelForObjectDetection.from_pretrained(folder).eval()
    processor = DetrImageProcessorPil.from_pretrained(folder)
    naive = []
    for image in IMAGES:
        with torch.no_grad():
            logits = model(processor(image, return_tensors="pt")["pixel_values"]).logits[0].double()
        classes = logits.sigmoid() if family == "conditional" else torch.softmax(logits, -1)[:, :4]
        best = classes[classes.max(-1).values.argsort(descending=True)[:10]]
        shares = best / best.sum(-1, keepdim=True)
        naive.append(-(shares * shares.log()).sum().item())
    scorer = VisualEntropy(folder)
    key = Hasher.hash(scorer)
    batched = scorer({"image": IMAGES})["visual_entropy"]
    np.testing.assert_allclose(batched, naive, rtol=1e-4)
    assert np.ptp(naive) > 1e-3
    assert (batched <= 10 * math.log(4)).all()
    assert Hasher.hash(scorer) == key == Hasher.hash(VisualEntropy(folder))
    single = VisualEntropy(ModelDetector(folder, batch_size=1))({"image": IMAGES})["visual_entropy"]
    np.testing.assert_allclose(single, batched, rtol=1e-5)
    keep = VisualEntropy(folder, no_object="keep")
    if family == "conditional":
        with pytest.raises(ValueError, match='gives no "no object"'):
            keep({"image": IMAGES})
    else:
        assert (keep({"image": IMAGES})["visual_entropy"] != batched).all()
    if family == "yolos":  # after a model was loaded and used in this process
        for options in ({"num_proc": 2}, {"num_workers": 2}):
            scores = score_values(in_two_processes(folder, **options), "visual_entropy")
            np.testing.assert_allclose(scores, batched, rtol=1e-5)


def test_images_are_seen_once_and_broken_ones_lose_nothing(detr, monkeypatch, caplog):
    seen = []
    detect = ModelDetector.detect
    monkeypatch.setattr(
        ModelDetector, "detect", lambda self, images, loaded: seen.append(len(images)) or detect(self, images, loaded)
    )
    images = [*map(stored, IMAGES[:2]), {"bytes": b"no picture", "path": None}, None]
    images += [stored(picture(1, 1)), stored(picture(20_000, 20))]
    rows = {"image": [image for image in images for _ in range(5)]}
    rows["image_id"] = [str(number) for number in range(6) for _ in range(5)]
    data = Dataset.from_dict(
        rows, features=Features({"image": Image(decode=False), "image_id": Value("string")})
    ).cast_column("image", Image())
    scored = add_scores(data.shuffle(seed=0), VisualEntropy(detr))
    assert sum(seen) == 3
    by_image = dict(zip(scored["image_id"], score_values(scored, "visual_entropy"), strict=True))
    assert len(scored) == 30
    assert [bool(np.isfinite(by_image[str(number)])) for number in range(6)] == [1, 1, 0, 0, 1, 0]
    assert "3 images cannot be scored" in caplog.text  # damaged, missing, too elongated
    made = read_provenance(scored)["visual_entropy"]
    assert (made.model, made.backend, made.easy) == (detr, "pil", "low")
    assert "transformers" in made.versions
    assert made.arguments["detector"]["type"] == "ModelDetector"


def test_detectors_with_a_sigmoid_have_no_class_for_nothing():
    logits = RNG.normal(size=(6, 4)).astype(np.float32)
    found = ModelDetector("a/detector")._read(logits, 4)
    np.testing.assert_allclose(found.class_scores, 1 / (1 + np.exp(-logits)), rtol=1e-6)
    assert found.no_object is None
    with pytest.raises(ValueError, match="has 4 outputs per box and 7 labels"):
        ModelDetector("a/detector")._read(logits, 7)


# ONNX


def onnx_model(path, output, size=(8, 8), batch=1):
    """A detector that puts out a constant plus the mean of its input, so that the input is seen to arrive."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    nodes = [
        helper.make_node("ReduceMean", ["pixels"], ["mean"], keepdims=0, axes=[0, 1, 2, 3]),
        helper.make_node("Mul", ["mean", "zero_or_one"], ["shift"]),
        helper.make_node("Add", ["base", "shift"], ["out"]),
    ]
    mask = np.zeros_like(output)
    mask[:, 0] = 1
    constants = {"base": output.astype(np.float32), "zero_or_one": mask.astype(np.float32)}
    graph = helper.make_graph(
        nodes,
        "detector",
        [helper.make_tensor_value_info("pixels", kind, [batch, 3, *size])],
        [helper.make_tensor_value_info("out", kind, list(output.shape))],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, str(path))
    return path


def grid(cells):
    """FastestDet's layout (1, 5 + 3, 2, 2) from four cells of (objectness, x, y, w, h, three classes)."""
    return np.float32(cells).reshape(2, 2, 8).transpose(2, 0, 1)[None]


CELLS = [
    [0.9, 0, 0, -9, -9, 0.5, 0.5, 0.0],
    [0.8, 0, 0, -9, -9, 0.8, 0.1, 0.1],
    [0.1, 0, 0, -9, -9, 0.2, 0.4, 0.4],
    [0.7, 0, 0, -9, -9, 1.0, 0.0, 0.0],
]


def nats(*shares):
    return -sum(share * math.log(share) for share in shares if share)


def test_an_onnx_detector_with_a_grid(tmp_path):
    path = onnx_model(tmp_path / "grid.onnx", grid(CELLS))
    black, white = Pillow.new("RGB", (30, 20)), Pillow.new("RGB", (5, 5), (255, 255, 255))
    scorer = VisualEntropy(path, top_k=2)
    # confidences .45, .64, .04, .7: the last two of the order are left out
    found = scorer({"image": [black, None, stored(black)]})["visual_entropy"]
    assert found[[0, 2]].tolist() == pytest.approx([nats(0.8, 0.1, 0.1)] * 2, rel=1e-6)
    assert np.isnan(found[1])
    # a white image adds 1 to objectness: 0.95, 1.44, 0.44, 1.7, the same two
    assert scorer({"image": [white]})["visual_entropy"][0] == pytest.approx(nats(0.8, 0.1, 0.1), rel=1e-6)
    three = VisualEntropy(path, top_k=3)({"image": [black]})["visual_entropy"][0]
    assert three == pytest.approx(nats(0.8, 0.1, 0.1) + nats(0.5, 0.5), rel=1e-6)
    strict = VisualEntropy(OnnxDetector(path, min_confidence=0.6))({"image": [black]})["visual_entropy"][0]
    assert strict == pytest.approx(nats(0.8, 0.1, 0.1), rel=1e-6)
    nothing = VisualEntropy(OnnxDetector(path, min_confidence=0.99))({"image": [black]})["visual_entropy"][0]
    assert np.isnan(nothing)
    assert Hasher.hash(scorer) == Hasher.hash(VisualEntropy(path, top_k=2))
    told = scorer.describe()
    assert (told.model, told.backend) == ("grid.onnx", "pil")
    assert str(tmp_path) not in told.to_json()
    assert told.arguments["detector"]["head"]["type"] == "GridHead"


def test_boxes_of_a_grid():
    cells = [[1, 0, 0, 0, 0, 1, 0, 0], [1, 9, 0, 0, 0, 1, 0, 0], [1, 0, 0, 9, 9, 1, 0, 0], [1, 0, -9, 0, 0, 1, 0, 0]]
    boxes = GridHead()([grid(cells)]).boxes
    by_hand = [[-0.25, -0.25, 0.25, 0.25], [0.75, -0.25, 1.25, 0.25], [-0.5, 0, 0.5, 1], [0.25, -0.25, 0.75, 0.25]]
    np.testing.assert_allclose(boxes, by_hand, atol=1e-3)
    # the first and the last but one of these overlap by 1/3, the others less
    logits = GridHead(activation="sigmoid")([grid(cells)])
    assert logits.confidence[0] == pytest.approx((1 / (1 + math.exp(-1))) ** 2)
    assert GridHead(activation="softmax")([grid(cells)]).class_scores.sum(1) == pytest.approx([1.0] * 4)


def test_rows_of_the_yolo_family(tmp_path):
    rows = np.float32([[10, 10, 20, 20, 0.9, 0.5, 0.5], [11, 10, 20, 20, 0.8, 0.9, 0.1], [50, 50, 9, 5, 0.7, 1, 0]])
    found = RowHead()([rows[None]])
    np.testing.assert_array_equal(found.boxes, [[0, 0, 20, 20], [1, 0, 21, 20], [45.5, 47.5, 54.5, 52.5]])
    np.testing.assert_allclose(found.confidence, [0.45, 0.72, 0.7])
    without = np.delete(rows, 4, axis=1)
    turned = RowHead(objectness=None, transposed=True)([without.T[None]])
    np.testing.assert_allclose(turned.confidence, [0.5, 0.9, 1.0])
    np.testing.assert_array_equal(turned.class_scores, found.class_scores)
    logits = RowHead(activation="sigmoid")([rows[None]])
    assert logits.confidence[0] == pytest.approx(1 / (1 + math.exp(-0.9)) / (1 + math.exp(-0.5)))
    path = onnx_model(tmp_path / "rows.onnx", rows[None], size=("h", "w"))
    image = {"image": [Pillow.new("RGB", (30, 30))]}
    for overlap, expected in ((0.45, nats(0.9, 0.1)), (None, nats(0.9, 0.1) + nats(0.5, 0.5))):
        scorer = VisualEntropy(OnnxDetector(path, RowHead(), size=(16, 16), colours="rgb", overlap=overlap))
        assert scorer(image)["visual_entropy"][0] == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ValueError, match="so its height is unknown or contradicted"):
        VisualEntropy(OnnxDetector(path, RowHead()))(image)
    with pytest.raises(ValueError, match="The head gives no boxes"):
        VisualEntropy(OnnxDetector(path, one_box, size=(16, 16)))(image)
    scorer = VisualEntropy(OnnxDetector(path, one_box, size=(16, 16), overlap=None))
    assert scorer(image)["visual_entropy"][0] == pytest.approx(math.log(3), rel=1e-6)
    assert scorer.arguments()["detector"]["head"]["function"] == "one_box"


def one_box(outputs):
    return Detections(np.ones((1, 3)), np.ones(1))


def test_heads_and_detectors_that_do_not_fit(tmp_path, monkeypatch):
    path = onnx_model(tmp_path / "grid.onnx", grid(CELLS))
    image = {"image": [picture(8, 8)]}
    with pytest.raises(ValueError, match=r"RowHead reads one output of the shape \(1, boxes, columns\)"):
        VisualEntropy(OnnxDetector(path, RowHead()))(image)
    with pytest.raises(ValueError, match="GridHead finds no classes: they begin at column 8"):
        VisualEntropy(OnnxDetector(path, GridHead(first_class=8)))(image)
    with pytest.raises(ValueError, match="its height is unknown or contradicted"):
        VisualEntropy(OnnxDetector(path, size=(16, 16)))(image)
    with pytest.raises(ValueError, match="`activation` is 'tanh'"):
        GridHead(activation="tanh")
    with pytest.raises(ValueError, match="`activation` is 'tanh'"):
        RowHead(activation="tanh")
    with pytest.raises(ValueError, match="`colours` is 'grey'"):
        OnnxDetector(path, colours="grey")
    with pytest.raises(ValueError, match="`overlap` is 2"):
        OnnxDetector(path, overlap=2)
    with pytest.raises(ValueError, match=r"`std` \(1, 1, 0\)"):
        OnnxDetector(path, std=(1, 1, 0))
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"pip install 'hf-curriculum\[detection\]'"):
        VisualEntropy(path)(image)


# a real detector on photographs


def test_fastestdet_on_photographs(test_data, capsys):
    pytest.importorskip("onnxruntime")
    path, folder = test_data("weights") / "fastestdet" / "FastestDet.onnx", test_data("coco_open")
    annotations = json.loads((folder / "instances.json").read_text())
    numbers = {image["id"]: set() for image in annotations["images"]}
    for box in annotations["annotations"]:
        numbers[box["image_id"]].add(box["category_id"])
    images = [str(folder / "images" / image["file_name"]) for image in annotations["images"]][:60]
    extra = [{"bytes": b"\xff\xd8 damaged", "path": None}, stored(picture(1, 1)), stored(picture(20_000, 20))]
    scores = VisualEntropy(path)({"image": [*images, *extra]})["visual_entropy"]
    assert np.isfinite(scores[:60]).all()
    assert np.isnan(scores[60])
    assert np.isfinite(scores[61:]).all()
    assert (scores[:60] > 0).all()
    assert (scores[:60] < 10 * math.log(80)).all()
    kinds = np.array([len(numbers[image["id"]]) for image in annotations["images"]][:60])
    order = np.argsort(np.argsort(scores[:60])), np.argsort(np.argsort(kinds))
    with capsys.disabled():
        quantiles = np.quantile(scores[:60], [0, 0.25, 0.5, 0.75, 1]).round(2).tolist()
        print(f"\nvisual_entropy: {quantiles}; rank correlation with kinds {np.corrcoef(*order)[0, 1]:.2f}")


def test_every_images_stored_detections_are_looked_up(tmp_path):
    tables = {name: RNG.dirichlet(np.full(7, 0.3), size=4) for name in ("one", "two", "three")}
    np.savez(tmp_path / "r.npz", **{f"{name}/class_scores": table for name, table in tables.items()})
    rows = ["one", "two", "one", None, "three", "four"]
    found = VisualEntropy(regions=tmp_path / "r.npz")({"image_id": rows})["visual_entropy"]
    naive = {name: -(table * np.log(table)).sum() for name, table in tables.items()}
    np.testing.assert_allclose(found, [naive.get(name, np.nan) for name in rows], rtol=1e-5)
    assert len(set(found[np.isfinite(found)].tolist())) == 3
