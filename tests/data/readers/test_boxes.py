"""Boxes of objects in the pixels of the images as they are read."""

from __future__ import annotations

import json
import re

import datasets
import numpy as np
import pytest
from PIL import Image

from hf_curriculum import GroundTruthBoxes, add_scores, load_captioned
from hf_curriculum.data.left_out import LeftOut
from hf_curriculum.data.readers.boxes import _has_area_of_corners
from hf_curriculum.data.readers.coco import read_instances
from hf_curriculum.tasks.detection import load_objects

WIDTH, HEIGHT = 40, 20  # as stored
BOX = (25, 4, 37, 9)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "images").mkdir()
    return tmp_path


def photograph(folder, name, orientation=1, size=(WIDTH, HEIGHT), box=BOX):
    """A blue image with a red object, in the pixels as they are stored."""
    image, exif = Image.new("RGB", size, "blue"), Image.Exif()
    image.paste("red", box)
    exif[0x0112] = orientation
    image.save(folder / "images" / name, exif=exif, quality=100, subsampling=0)


def instances(folder, images, boxes, /, **changes):
    """COCO's file of images (name, width, height) and boxes (image, left, top, width, height, further)."""
    content = {
        "images": [{"id": n, "file_name": name, **size} for n, (name, size) in enumerate(images, 1)],
        "categories": [{"id": 1, "name": "red"}],
        "annotations": [{"image_id": n, "category_id": 1, "bbox": list(box), **more} for n, box, more in boxes],
    }
    (folder / "instances.json").write_text(json.dumps(content | changes))
    return folder / "instances.json"


def xywh(box):
    return box[0], box[1], box[2] - box[0], box[3] - box[1]


def red_share(image, box):
    """The share of a box that is red."""
    part = np.asarray(image.crop(tuple(map(round, box))).convert("RGB"), int)
    return float((part[..., 0] > 128).mean()), part.shape[0] * part.shape[1]


def said(size):
    return dict(zip(("width", "height"), size, strict=True))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("drawn", ["before", "after"])
@pytest.mark.parametrize("read", ["coco", "captions", "voc"])
def test_boxes_lie_on_their_objects_however_exif_turns_the_image(folder, orientation, drawn, read):
    photograph(folder, "1.jpg", orientation)
    photograph(folder, "6.jpg", 6)  # says how the boxes of the file were drawn, where 1.jpg does not
    images, boxes = [], []
    for number, name in enumerate(("1.jpg", "6.jpg"), 1):
        size, box = (WIDTH, HEIGHT), BOX
        if drawn == "after":
            upright = datasets.Image().decode_example({"path": str(folder / "images" / name), "bytes": None})
            ys, xs = np.nonzero(np.asarray(upright, int)[..., 0] > 128)
            size, box = upright.size, (int(xs.min()), int(ys.min()), int(xs.max()) + 1, int(ys.max()) + 1)
        images.append((name, said(size)))
        boxes.append((number, xywh(box), {}))
    if read == "coco":
        rows = load_objects(instances(folder, images, boxes), images=folder / "images")
    else:
        (folder / "captions.csv").write_text("file_name,caption\n1.jpg,one\n6.jpg,six\n")
        objects = instances(folder, images, boxes) if read == "captions" else voc(folder, images, boxes)
        rows = load_captioned(folder / "captions.csv", objects=objects)
    for row in rows:
        assert red_share(row["image"], row["objects"][0]["box"]) == (1.0, 12 * 5)
    area = add_scores(rows, GroundTruthBoxes())["box_area"][:]
    assert area == pytest.approx([60 / 800] * 2)


def voc(folder, images, boxes, start=1):
    """A folder of VOC's files of the same, whose pixels begin at 1."""
    (folder / "Annotations").mkdir(exist_ok=True)
    for number, (name, size) in enumerate(images, 1):
        sides = "".join(f"<{side}>{value}</{side}>" for side, value in size.items())
        items = ""
        for image, (left, top, width, height), _ in boxes:
            edges = (left + start, top + start, left + width, top + height)
            parts = zip(("xmin", "ymin", "xmax", "ymax"), edges, strict=True)
            edges = "".join(f"<{edge}>{value}</{edge}>" for edge, value in parts)
            items += f"<object><name>red</name><bndbox>{edges}</bndbox></object>" * (image == number)
        file = folder / "Annotations" / f"{name.rpartition('.')[0]}.xml"
        file.write_text(f"<annotation><size>{sides}</size>{items}</annotation>")
    return folder / "Annotations"


@pytest.mark.parametrize(("orientation", "size"), [(3, (WIDTH, HEIGHT)), (6, (30, 30)), (6, None)])
def test_boxes_of_which_nothing_says_how_they_lie_are_left_out(folder, caplog, orientation, size):
    photograph(folder, "1.jpg", orientation, size or (WIDTH, HEIGHT))
    photograph(folder, "2.jpg")
    images = [("1.jpg", said(size) if size else {}), ("2.jpg", {})]
    rows = load_objects(instances(folder, images, [(1, xywh(BOX), {}), (2, xywh(BOX), {})]))
    assert rows["objects"][0] is None
    assert rows["objects"][1][0]["box"] == list(BOX)
    told = r"images that EXIF turns, .*PIL\.ImageOps\.exif_transpose\): 1 \(1\.jpg, for example\)"
    assert re.search(told, rows.info.description)
    assert caplog.text.count("exif_transpose") == 1


@pytest.mark.parametrize(
    ("box", "more", "match"),
    [
        (
            (30, 0, 40, 20),
            {},
            r"1 of 1?\d boxes of .* lie beyond their images \(.*70.*'1\.jpg' of 40 × 20.*Convert",
        ),
        ((-5, 0, 9, 9), {}, "lie beyond their images"),
        ((0, -2, 9, 9), {}, "lie beyond their images"),
        ((5, 5, -3, 4), {}, "end before they begin"),
        ((0.1, 0.2, 0.5, 0.6), {}, r"are no larger than a pixel .*shares of the images' sides"),
        ((5, 5, 15, 15), {"area": 100}, r"`area` that is theirs as left, top, right, bottom"),
    ],
)
@pytest.mark.parametrize("size", [{}, said((WIDTH, HEIGHT))])
def test_boxes_that_are_not_of_the_image(folder, box, more, match, size):
    photograph(folder, "1.jpg")
    with pytest.raises(ValueError, match=match):
        load_objects(instances(folder, [("1.jpg", size)], [(1, box, more)]))
    fine = [(1, xywh(BOX), {"area": 60})] * 19
    assert len(load_objects(instances(folder, [("1.jpg", size)], [*fine, (1, box, more)]))[0]["objects"]) == 20
    with pytest.raises(ValueError, match=match):
        load_objects(instances(folder, [("1.jpg", size)], [*fine[1:], (1, box, more)]))


def test_edges_a_pixel_beyond_and_a_box_at_the_corner_are_boxes(folder, caplog):
    photograph(folder, "1.jpg")
    boxes = [(0, 0, WIDTH + 1, HEIGHT + 1), (0, 0, 1.5, 1), (5, 5, 15, 14), (0.5, 0.5, 1, 1)]
    rows = load_objects(instances(folder, [("1.jpg", {})], [(1, box, {"area": box[2] * box[3]}) for box in boxes]))
    assert [item["box"] for item in rows["objects"][0]] == [
        [0, 0, 41, 21],
        [0, 0, 1.5, 1],
        [5, 5, 20, 19],
        [0.5, 0.5, 1.5, 1.5],
    ]
    assert not caplog.records


@pytest.mark.parametrize(("start", "left"), [(1, 0), (0, 0), (1, 24)])
def test_voc_from_1_and_files_of_other_tools_from_0(folder, caplog, start, left):
    photograph(folder, "1.jpg")
    (folder / "captions.csv").write_text("file_name,caption\n1.jpg,one\n")
    boxes = [(1, (left, 4, 10, 5), {}), (1, (3, 2, 5, 5), {})]
    rows = load_captioned(folder / "captions.csv", objects=voc(folder, [("1.jpg", {})], boxes, start))
    assert [item["box"] for item in rows["objects"][0]] == [[left, 4, left + 10, 9], [3, 2, 8, 7]]
    assert ("1 boxes begin at 0 (1.xml" in caplog.text) == (start == 0)


def test_images_of_one_name_in_two_folders_have_each_its_own(folder):
    for place, colour in (("a", "red"), ("b", "blue")):
        (folder / place).mkdir()
        Image.new("RGB", (40, 20), colour).save(folder / place / "1.jpg")
    (folder / "captions.csv").write_text("file_name,caption\na/1.jpg,red\nb/1.jpg,blue\n")
    images = [("a/1.jpg", {}), ("b/1.jpg", {})]
    found = instances(folder, images, [(1, (0, 0, 5, 5), {}), (2, (0, 0, 10, 10), {})])
    rows = load_captioned(folder / "captions.csv", objects=found)
    assert [row[0]["box"] for row in rows["objects"]] == [[0, 0, 5, 5], [0, 0, 10, 10]]
    with pytest.raises(
        ValueError, match=r"'a/1\.jpg' in .* is cannot be known: '1\.jpg' stands for 'a/1\.jpg' and 'b/1"
    ):
        load_captioned(folder / "captions.csv", objects=instances(folder, [("1.jpg", {})], [(1, (0, 0, 5, 5), {})]))
    with pytest.raises(ValueError, match=r"'a/1\.jpg' in .*Annotations is cannot be known: '1' stands for"):
        load_captioned(folder / "captions.csv", objects=voc(folder, [("1.jpg", {})], []))


def test_a_number_is_no_name(folder):
    """A file of one's own, numbered from 1, and boxes of other images, numbered from 1."""
    photograph(folder, "red.jpg")
    images = [{"id": 1, "file_name": "red.jpg"}]
    captions = [{"id": 1, "image_id": 1, "caption": "red"}]
    (folder / "captions.json").write_text(json.dumps({"images": images, "annotations": captions}))
    with pytest.raises(ValueError, match=r"None of the 1 images .*'red\.jpg'.*'x77\.jpg'.*Their ids are equal, which"):
        load_captioned(folder / "captions.json", objects=instances(folder, [("x77.jpg", {})], [(1, (0, 0, 5, 5), {})]))


def test_ids_alone_join_images_without_names(folder):
    photograph(folder, "1.jpg")
    content = (folder / "images" / "1.jpg").read_bytes()
    rows = {"image": [{"bytes": content, "path": None}], "caption": ["a"], "image_id": ["1"]}
    data = datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image())
    loaded = load_captioned(data, objects=instances(folder, [("x77.jpg", {})], [(1, (0, 0, 5, 5), {})]))
    assert loaded["objects"][0][0]["box"] == [0, 0, 5, 5]


def test_files_of_lvis(folder):
    """Images have no `file_name`, only the address of COCO."""
    (folder / "train2017").mkdir()
    Image.new("RGB", (40, 20)).save(folder / "train2017" / "000000000009.jpg")
    (folder / "captions.csv").write_text("file_name,caption\nval2014/COCO_val2014_000000000009.jpg,a\n")
    (folder / "val2014").mkdir()
    Image.new("RGB", (40, 20)).save(folder / "val2014" / "COCO_val2014_000000000009.jpg")
    address = "http://images.cocodataset.org/train2017/000000000009.jpg"
    lvis = [{"id": 9, "coco_url": address, "width": 40, "height": 20, "not_exhaustive_category_ids": []}]
    found = instances(folder, [], [(9, (1, 2, 3, 4), {"area": 12.0})], images=lvis)
    assert load_objects(found)["file_name"][:] == ["train2017/000000000009.jpg"]
    assert load_captioned(folder / "captions.csv", objects=found)["objects"][0][0]["box"] == [1, 2, 4, 6]
    with pytest.raises(ValueError, match=r"image 9 has neither a `file_name` nor a `coco_url`.*it has \['id'\]"):
        load_objects(instances(folder, [], [], images=[{"id": 9}]))


TWO = [{"id": 1, "file_name": "a.jpg"}, {"id": 1, "file_name": "b.jpg"}]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"images": TWO}, r"Two images have the id 1: 'a\.jpg' and 'b\.jpg'.*number alike"),
        (
            {"categories": [{"id": 1, "name": "dog"}, {"id": 1, "name": "cat"}]},
            r"two categories with the id 1, 'dog' and",
        ),
        ({"images": [{"id": 1, "file_name": "a.jpg"}, {"id": 2, "file_name": "a.jpg"}]}, r"the image 'a\.jpg' twice"),
        ({"images": [{"id": None, "file_name": "a.jpg"}]}, "An id is None, and whole numbers or texts are needed"),
        ({"annotations": [{"image_id": 1, "category_id": 1, "bbox": [0, 0, float("nan"), 1]}]}, "a `bbox` has nan"),
    ],
)
def test_files_of_which_it_is_not_clear_whose_boxes_they_are(folder, changes, match):
    photograph(folder, "a.jpg")
    (folder / "captions.csv").write_text("file_name,caption\na.jpg,a\n")
    found = instances(folder, [("a.jpg", {})], [(1, (0, 0, 5, 5), {})], **changes)
    with pytest.raises(ValueError, match=match):
        load_captioned(folder / "captions.csv", objects=found)


def test_captions_of_two_images_with_one_id_are_refused(folder):
    for name in ("a", "b"):
        photograph(folder, f"{name}.jpg")
    captions = [{"id": 1, "image_id": 1, "caption": "a"}, {"id": 2, "image_id": "1", "caption": "b"}]
    (folder / "captions.json").write_text(json.dumps({"images": TWO, "annotations": captions}))
    with pytest.raises(ValueError, match=r"captions\.json: Two images have the id 1: 'a\.jpg' and 'b\.jpg'"):
        load_captioned(folder)
    once = [TWO[0], {**TWO[0], "file_name": "./a.jpg"}]
    (folder / "captions.json").write_text(json.dumps({"images": once, "annotations": captions}))
    assert load_captioned(folder)["image_id"][:] == ["1", "1"]


def test_ids_and_categories_as_numbers_or_texts_and_what_is_not_listed(folder, caplog):
    photograph(folder, "1.jpg")
    boxes = [("1", (0, 0, 5, 5), {"category_id": "1"}), (1.0, (1, 1, 5, 5), {}), (7, (0, 0, 5, 5), {"category_id": 3})]
    rows = load_objects(instances(folder, [("1.jpg", {})], boxes))
    assert [(item["name"], item["box"]) for item in rows["objects"][0]] == [
        ("red", [0, 0, 5, 5]),
        ("red", [1, 1, 6, 6]),
    ]
    for what, example in (("images", 7), ("categories", 3)):
        told = f"boxes of {what} that instances.json does not list (without their names): 1 ({example}, for example)"
        assert told in rows.info.description


def test_photographs_as_pycocotools_reads_them(test_data):
    coco = pytest.importorskip("pycocotools.coco")
    folder = test_data("coco_open")
    theirs = coco.COCO(folder / "instances.json")
    rows = load_objects(folder / "instances.json", images=folder / "images")
    found = read_instances(folder / "instances.json", LeftOut())
    assert len(rows) == len(theirs.imgs)
    for row in rows:
        items = theirs.imgToAnns[int(row["image_id"])]
        boxes = np.float64([item["bbox"] for item in items]).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        np.testing.assert_allclose(np.float64([i["box"] for i in row["objects"]]).reshape(-1, 4), boxes, rtol=1e-6)
        assert [i["name"] for i in row["objects"]] == [theirs.cats[item["category_id"]]["name"] for item in items]
        assert found[row["image_id"]].size == row["image"].size


@pytest.mark.parametrize(("wrong", "fine"), [(1, 19), (2, 38), (1, 18)])
def test_a_twentieth_of_the_images_may_be_of_another_size(folder, wrong, fine):
    sizes = [(WIDTH + 2, HEIGHT)] * wrong + [(WIDTH, HEIGHT)] * fine
    for number in range(len(sizes)):
        photograph(folder, f"{number}.jpg")
    images = [(f"{number}.jpg", said(size)) for number, size in enumerate(sizes)]
    found = instances(folder, images, [(number, xywh(BOX), {}) for number in range(1, len(sizes) + 1)])
    if fine == 18:
        with pytest.raises(ValueError, match=r"0\.jpg has 40 × 20 pixels, and .* says 42 × 20: .*\(1 of 19 are so\)"):
            load_objects(found)
        return
    assert [row is None for row in load_objects(found)["objects"]] == [True] * wrong + [False] * fine


@pytest.mark.parametrize(
    ("bbox", "area", "is_of_corners"),
    [
        ((5, 5, 15, 15), 100, True),
        ((5, 5, 15, 15), 100.4, True),
        ((5, 5, 15, 15), 100.5, False),
        ((5, 5, 15, 15), 225, False),
        ((5, 5, 15, 15), None, False),
        ((1, 5, 15, 15), 140, True),
        ((5, 1, 15, 15), 140, True),
        ((0, 5, 15, 15), 150, False),  # at an edge its area as corners is a part of its own
        ((5, 0, 15, 15), 150, False),
        ((5, 5, 5, 15), 0, False),
        ((5, 5, 15, 5), 0, False),
        ((0.001, 0.001, 15, 15), 225, False),  # both areas
    ],
)
def test_areas_that_are_of_a_box_as_its_corners(bbox, area, is_of_corners):
    left, top, width, height = bbox
    item = {"box": [left, top, left + width, top + height], "area": area}
    assert _has_area_of_corners(item) is is_of_corners
