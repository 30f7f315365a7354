"""`WsddnImageProcessor`: images and boxes are resized and mirrored together, and it proposes by itself."""

from __future__ import annotations

import inspect
import json
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForObjectDetection, pipeline

from hf_curriculum import make_scenes
from hf_curriculum.data.proposals import SelectiveSearch
from hf_curriculum.tasks.detection import WsddnImageProcessor, new_detector
from hf_curriculum.tasks.detection.image_processing import validate_boxes

EDGE = {"longest_edge": 64}


@pytest.fixture(scope="module")
def scene():
    return make_scenes(5, validation=0.0, test=0.0)["train"][0]["image"].convert("RGB")


def painted(box, size=(90, 60)):
    """A black image with one white rectangle."""
    image = Image.new("RGB", size)
    image.paste((255, 255, 255), tuple(box))
    return image


@pytest.mark.parametrize("edge", [{"longest_edge": 120}, {"shortest_edge": 40}, {"longest_edge": 33}])
@pytest.mark.parametrize("flipped", [False, True])
def test_boxes_go_where_the_picture_goes(edge, flipped):
    processor = WsddnImageProcessor(["a"], edge, image_mean=(0, 0, 0), image_std=(1, 1, 1), resample=0)
    box = np.float32([[30, 10, 70, 40]])
    picture, boxes = processor.view(painted([30, 10, 70, 40]), box, processor.edge, flipped)
    height, width = picture.shape[1:]
    assert (max if "longest_edge" in edge else min)(width, height) == processor.edge
    assert min(width, height) >= 32
    columns, rows = (picture[0].sum(0) > 0).nonzero()[:, 0], (picture[0].sum(1) > 0).nonzero()[:, 0]
    seen = [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
    assert np.allclose(boxes[0], seen, atol=1)
    assert boxes[0, 2] - boxes[0, 0] == pytest.approx(40 * width / 90, rel=1e-5)


def test_pixels_are_normalised():
    processor = WsddnImageProcessor(["a"], EDGE)
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    picture = processor.view(Image.fromarray(pixels), np.zeros((0, 4), np.float32), 64, False).picture
    expected = (pixels / 255 - np.array(processor.image_mean)) / np.array(processor.image_std)
    assert np.allclose(picture.permute(1, 2, 0), expected, atol=1e-6)


def test_a_batch_keeps_shapes_and_pads_proposals():
    processor = WsddnImageProcessor(["a", "b"], EDGE)
    images = [Image.new("RGB", (80, 40)), Image.new("RGB", (40, 80)), Image.new("L", (1, 1))]
    proposals = [[[0, 0, 80, 40], [10, 10, 20, 20]], [], [[0, 0, 1, 1]]]
    inputs = processor(images, proposals=proposals, objectness=[[0.5, 0.1], [], [0.9]])
    assert [tuple(picture.shape) for picture in inputs["pixel_values"]] == [(3, 32, 64), (3, 64, 32), (3, 64, 64)]
    assert inputs["proposal_counts"].tolist() == [2, 0, 1]
    assert inputs["proposals"].tolist() == [
        [[0, 0, 64, 32], [8, 8, 16, 16]],
        [[0, 0, 0, 0], [0, 0, 0, 0]],
        [[0, 0, 64, 64], [0, 0, 0, 0]],
    ]
    assert inputs["objectness"].numpy() == pytest.approx(np.float32([[0.5, 0.1], [0, 0], [0.9, 0]]))
    assert "view_index" not in inputs


def test_it_proposes_by_itself(scene):
    processor = WsddnImageProcessor(["a"], EDGE, min_size=12, max_proposals=30)
    inputs = processor(scene)
    expected = SelectiveSearch("fast", 30, min_size=12)(scene)
    assert inputs["proposal_counts"].tolist() == [len(expected)]
    assert np.allclose(inputs["proposals"][0].numpy(), expected * (64 / 96))


def test_scores_are_averaged_over_sizes_and_mirrored_images(scene):
    torch.manual_seed(0)
    model, _ = new_detector(["a", "b", "c"], "small", size=EDGE)
    model.eval()
    torch.nn.init.normal_(model.class_stream.weight)
    boxes = [[[0, 0, 40, 40], [20, 30, 96, 96], [50, 10, 90, 60]], [[0, 0, 30, 20]]]
    single = []
    for edge in (64, 96):
        for flipped in (False, True):
            one = WsddnImageProcessor(["a"], {"longest_edge": edge})
            for number, image in enumerate((scene, Image.new("RGB", (40, 30)))):
                view = one.view(image, np.float32(boxes[number]), edge, flipped)
                single.append((number, model([view.picture], proposals=view.boxes[None]).scores[0]))
    wide = WsddnImageProcessor(["a", "b", "c"], EDGE, test_sizes=[96, 64], test_flip=True)
    inputs = wide([scene, Image.new("RGB", (40, 30))], proposals=boxes)
    assert inputs["view_index"].tolist() == [0] * 4 + [1] * 4
    out = model(**inputs)
    for number, count in ((0, 3), (1, 1)):
        expected = torch.stack([scores for of, scores in single if of == number]).mean(0)
        assert torch.allclose(out.scores[number, :count], expected, atol=1e-6)
    assert torch.allclose(out.pred_boxes[0, 1], torch.tensor([20, 30, 96, 96]) / 96)


def test_boxes_of_images_come_back_in_their_pixels():
    processor = WsddnImageProcessor(["a", "b"], nms_iou=0.5)
    shares = torch.tensor([[[0.0, 0.0, 0.5, 0.5], [0.0, 0.0, 0.5, 0.45], [0.5, 0.5, 1.0, 1.0]]])
    scores = torch.tensor([[[0.1, 0.6], [0.2, 0.5], [0.3, 0.01]]])
    outputs = {"scores": scores, "pred_boxes": shares}
    [found] = processor.post_process_object_detection(outputs, threshold=0.05, target_sizes=[(40, 100)])
    assert found["labels"].tolist() == [1, 0, 0]
    assert found["scores"].tolist() == pytest.approx([0.6, 0.3, 0.2])
    assert found["boxes"].tolist() == [[0, 0, 50, 20], [50, 20, 100, 40], [0, 0, 50, 18]]
    [found] = processor.post_process_object_detection(outputs)
    assert found["scores"].tolist() == pytest.approx([0.6, 0.3, 0.2])
    [found] = processor.post_process_object_detection(outputs, max_detections=2)
    assert found["scores"].tolist() == pytest.approx([0.6, 0.3])
    [found] = processor.post_process_object_detection(outputs, threshold=0.4)
    assert found["boxes"].tolist() == [[0, 0, 0.5, 0.5]]
    with pytest.raises(ValueError, match="`target_sizes` has 2 entries for 1 images"):
        processor.post_process_object_detection(outputs, target_sizes=[(40, 100)] * 2)


def test_a_folder_is_enough_to_detect(tmp_path, scene, caplog):
    torch.manual_seed(0)
    model, processor = new_detector(["dog", "cat", "cup"], "small", size=EDGE, detection_temperature=0.01)
    torch.nn.init.normal_(model.class_stream.weight, std=3)
    processor.min_size, processor.test_flip = 12, True
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    loaded = AutoImageProcessor.from_pretrained(tmp_path)
    assert type(loaded) is WsddnImageProcessor
    assert loaded.to_dict() == processor.to_dict()
    scene.save(tmp_path / "street.png")
    detect = pipeline("object-detection", model=str(tmp_path))
    found = detect(str(tmp_path / "street.png"), threshold=0.01)
    assert "is not supported for object-detection" not in caplog.text
    with torch.no_grad():
        outputs = AutoModelForObjectDetection.from_pretrained(tmp_path).eval()(**loaded(scene))
    [expected] = loaded.post_process_object_detection(outputs, 0.01, [(96, 96)])
    assert [one["label"] for one in found] == [["dog", "cat", "cup"][label] for label in expected["labels"]]
    assert [one["score"] for one in found] == pytest.approx(expected["scores"].tolist(), rel=1e-4)
    assert [list(one["box"].values()) for one in found] == expected["boxes"].int().tolist()
    assert len(found) > 2


@pytest.mark.parametrize(
    ("boxes", "message"),
    [
        ([[10, 10, 120, 20]], r"reach to 120, 20 .*the image has 100 × 50 pixels"),
        ([[60, 10, 30, 20]], r"ends before it begins"),
        ([[0, 0, float("nan"), 4]], "not finite"),
        ([[1, 2, 3]], "not four numbers each"),
        ([["a", 1, 2, 3]], "not four numbers each"),
    ],
)
def test_boxes_that_are_no_boxes_of_the_image(boxes, message):
    with pytest.raises(ValueError, match=message):
        validate_boxes(boxes, (100, 50), "7")


def test_boxes_half_a_pixel_beyond_are_clipped():
    assert validate_boxes([[-0.5, 0, 100.5, 50]], (100, 50), "7").tolist() == [[0, 0, 100, 50]]
    assert validate_boxes([], (100, 50), "7").shape == (0, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": {"height": 3}}, "Give one of"),
        ({"size": {"longest_edge": 9}}, "An edge of 9 pixels was asked for. It is at least 32"),
        ({"test_sizes": [31]}, "An edge of 31 pixels"),
        ({"size": {}}, "Give one of"),
        ({"size": {"longest_edge": 40, "height": 40}}, "Give one of"),
        ({"class_names": ["a", "b", "c", "b"]}, "`class_names` has 'b' twice"),
        ({"nms_iou": 0}, "`nms_iou=0` was given"),
        ({"nms_iou": 1.01}, "`nms_iou=1.01` was given"),
        ({"max_proposals": 0}, "max_proposals"),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        WsddnImageProcessor(**options)


def test_edges_of_options():
    least = {"longest_edge": 32, "shortest_edge": 32}
    assert WsddnImageProcessor(size=least, test_sizes=[32], nms_iou=1.0).to_dict()["size"] == least
    assert WsddnImageProcessor(nms_iou=0.01).to_dict()["size"] == {"longest_edge": 480}
    known = WsddnImageProcessor(image_processor_type="WsddnImageProcessor", processor_class="x").to_dict()
    assert known == WsddnImageProcessor().to_dict()
    image, none = Image.new("RGB", (40, 40)), np.zeros((0, 4))
    inputs = WsddnImageProcessor(size=EDGE)((image, image), proposals=(none, []), return_tensors=None)
    assert (inputs["proposals"].tolist(), inputs["proposal_counts"].tolist()) == ([[[0.0] * 4]] * 2, [0, 0])
    boxes = [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert (
        validate_boxes(np.array(boxes), (9, 9), "7").tolist() == validate_boxes(boxes, (9, 9), "7").tolist() == boxes
    )


def test_calls_that_cannot_work():
    processor = WsddnImageProcessor(["a"], EDGE)
    image = Image.new("RGB", (40, 40))
    with pytest.raises(TypeError, match="has no option 'sizes'"):
        WsddnImageProcessor(sizes=3)
    with pytest.raises(TypeError, match="takes no 'do_resize'"):
        processor(image, do_resize=False)
    with pytest.raises(ValueError, match="`proposals` has 2 entries for 1 images"):
        processor(image, proposals=[[], []])
    with pytest.raises(ValueError, match="has 1 scores for 2 proposals"):
        processor(image, proposals=[[[0, 0, 4, 4]] * 2], objectness=[[0.5]])
    with pytest.raises(ValueError, match="`return_tensors='np'`"):
        processor(image, return_tensors="np")


def test_without_torchvision_the_extra_is_named(monkeypatch):
    outputs = {"scores": torch.ones(1, 2, 1), "pred_boxes": torch.zeros(1, 2, 4)}
    monkeypatch.setitem(sys.modules, "torchvision.ops", None)
    with pytest.raises(ImportError, match="need torchvision, which is not installed"):
        WsddnImageProcessor(["a"]).post_process_object_detection(outputs)


def test_a_banner_stays_small():
    """The longest edge is bounded as DETR's, in proportion to the size that is asked for."""
    processor = WsddnImageProcessor(["a", "b"], {"shortest_edge": 480}, test_sizes=[960])
    assert processor.size == {"shortest_edge": 480, "longest_edge": 800}
    none = np.zeros((0, 4), np.float32)
    assert [tuple(view.picture.shape[1:]) for view in processor.test_views(Image.new("RGB", (2, 1000)), none)] == [
        (800, 32),
        (1600, 32),
    ]
    photograph = processor.view(Image.new("RGB", (500, 335)), none, 480, False)
    assert tuple(photograph.picture.shape[1:]) == (480, 716)
    own = WsddnImageProcessor(["a", "b"], {"longest_edge": 600, "shortest_edge": 480})
    assert own.edge == 480
    assert tuple(own.view(Image.new("RGB", (500, 335)), none, 480, False).picture.shape[1:]) == (402, 600)
    again = WsddnImageProcessor.from_dict(json.loads(processor.to_json_string()))
    assert (again.size, again.edge) == (processor.size, 480)
    with pytest.raises(ValueError, match="a longest edge that is less than the shortest"):
        WsddnImageProcessor(["a", "b"], {"longest_edge": 300, "shortest_edge": 480})


def test_every_option_is_saved(tmp_path):
    """Each has another value than the default's, and the next processor has it too."""
    options = {
        "class_names": ["a", "b"], "size": {"shortest_edge": 40, "longest_edge": 90}, "test_sizes": [50],
        "test_flip": True,
        "image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6], "resample": 0, "mode": "quality",
        "max_proposals": 7, "min_size": 11, "nms_iou": 0.3,
    }  # fmt: skip
    parameters = inspect.signature(WsddnImageProcessor.__init__).parameters
    assert set(options) == set(parameters) - {"self", "kwargs"}
    assert all(parameters[name].default != value for name, value in options.items())
    WsddnImageProcessor(**options).save_pretrained(tmp_path)
    again = WsddnImageProcessor.from_pretrained(tmp_path)
    assert {name: getattr(again, name) for name in options} == options
