"""Images with boxes and no captions: COCO's instances and PASCAL VOC."""

from __future__ import annotations

import json
import os

import datasets
import numpy as np
import pytest
from PIL import Image

from hf_curriculum import load_captioned
from hf_curriculum.data.readers.coco import class_names
from hf_curriculum.tasks.detection import BoxLabels, add_labels, label_names, load_objects

INSTANCES = {
    "images": [
        {"id": 1, "file_name": "a.jpg", "width": 100, "height": 50},
        {"id": 20, "file_name": "b.jpg", "width": 100, "height": 50},
        {"id": 3, "file_name": "gone.jpg"},
    ],
    "categories": [{"id": 90, "name": "kite"}, {"id": 18, "name": "dog"}],
    "annotations": [
        {"id": 7, "image_id": 1, "category_id": 18, "bbox": [10, 20, 30, 20], "area": 300, "iscrowd": 0},
        {"id": 8, "image_id": 1, "category_id": 90, "bbox": [0, 0, 1.5, 2], "area": 3, "iscrowd": 1},
    ],
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "images").mkdir()
    for name in ("a", "b"):
        Image.new("RGB", (100, 50)).save(tmp_path / "images" / f"{name}.jpg")
    return tmp_path


def instances(folder, **changes):
    file = folder / "instances_val.json"
    file.write_text(json.dumps({**INSTANCES, **changes}))
    return file


def test_of_coco(folder, caplog):
    data = load_objects(instances(folder))
    assert data["image_id"][:] == ["1", "20"]
    assert data["objects"][:] == [
        [
            {"box": [10, 20, 40, 40], "name": "dog", "area": 300, "iscrowd": False},
            {"box": [0, 0, 1.5, 2], "name": "kite", "area": 3, "iscrowd": True},
        ],
        [],
    ]
    assert data[0]["image"].size == (100, 50)
    assert "images of instances_val.json that are missing: 1 (gone.jpg, for example)" in caplog.text
    assert class_names(folder / "instances_val.json") == ["dog", "kite"]
    (folder / "none.json").write_text('{"images": [], "annotations": []}')
    with pytest.raises(ValueError, match=r"none\.json has annotations and no `categories`"):
        class_names(folder / "none.json")
    labelled = add_labels(data, BoxLabels(class_names(folder / "instances_val.json")))
    assert (labelled["labels"][:], label_names(labelled)) == ([[0, 1]], ["dog", "kite"])


def voc(folder, difficult="<difficult>1</difficult>"):
    root = folder / "VOC2007"
    for place in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (root / place).mkdir(parents=True)
    for name in ("000001", "000002", "000003"):
        Image.new("RGB", (100, 50)).save(root / "JPEGImages" / f"{name}.jpg")
    box = "<bndbox><xmin>11</xmin><ymin>21</ymin><xmax>40</xmax><ymax>50</ymax></bndbox>"
    text = f"<annotation><object><name>dog</name>{difficult}{box}</object><object><name>cat</name>{box}</object>"
    (root / "Annotations" / "000001.xml").write_text(text + "</annotation>")
    (root / "Annotations" / "000002.xml").write_text("<annotation/>")
    lists = {"train": "000001\n", "val": "000002\n000009\n", "trainval": "000001\n000002\n", "test": "000003\n"}
    for name, lines in {**lists, "dog_train": "000001  1\n"}.items():
        (root / "ImageSets" / "Main" / f"{name}.txt").write_text(lines)
    return root


def test_a_file_under_two_ids_is_a_warning(folder, caplog):
    images = [{"id": number, "file_name": "a.jpg", "width": 100, "height": 50} for number in (1, 5)]
    assert load_objects(instances(folder, images=images))["image_id"][:] == ["1", "5"]
    assert "1 files of images have several ids" in caplog.text
    assert "has the `image_id` '1' and '5'" in caplog.text


def test_of_voc(folder, caplog):
    splits = load_objects(voc(folder))
    assert {name: part["image_id"][:] for name, part in splits.items()} == {
        "train": ["000001"],
        "validation": ["000002"],
        "test": ["000003"],
    }
    dog, cat = splits["train"][0]["objects"]
    assert dog == {"box": [10, 20, 40, 50], "name": "dog", "difficult": True}
    assert cat == {"box": [10, 20, 40, 50], "name": "cat", "difficult": False}
    assert splits["validation"]["objects"][:] == [[]]
    assert splits["test"]["objects"][:] == [None]
    assert "images of val.txt that are missing: 1 (000009.jpg, for example)" in caplog.text
    both = load_objects(folder / "VOC2007", split="trainval")
    assert both["image_id"][:] == ["000001", "000002"]
    assert load_objects(folder / "VOC2007", split="validation")["image_id"][:] == ["000002"]


def test_lists_of_voc_by_other_names(folder):
    lists = voc(folder) / "ImageSets" / "Main"
    (lists / "trainval.txt").rename(lists / "default.txt")
    for name in ("train", "val", "test"):
        (lists / f"{name}.txt").unlink()
    with pytest.raises(ValueError, match=r"has the lists \['default'\], and none of \['train', 'val', 'test'\]"):
        load_objects(folder / "VOC2007")
    assert load_objects(folder / "VOC2007", split="default")["image_id"][:] == ["000001", "000002"]


def test_lists_of_voc_as_they_are_written(folder, caplog):
    root = voc(folder)
    lists, image = root / "ImageSets" / "Main", root / "JPEGImages" / "000001.jpg"
    image.with_name("my photo 1.jpg").write_bytes(image.read_bytes())
    (lists / "own.txt").write_text("000001\r\nmy photo 1\r\n000001\r\n", encoding="utf-8-sig")
    for name in ("._train.txt", ".train.txt"):
        (lists / name).write_bytes(b"\0\5\xff")
    data = load_objects(root, split="own")
    assert data["image_id"][:] == ["000001", "my photo 1"]
    assert [objects is None for objects in data["objects"]] == [False, True]
    assert "lines of own.txt that name an image again: 1" in caplog.text
    assert "annotations of images of own.txt (null): 1 (my photo 1.jpg, for example)" in caplog.text
    assert list(load_objects(root)) == ["train", "validation", "test"]
    (lists / "flags.txt").write_text("000001  1\n000002 -1\n")
    assert load_objects(root, split="flags")["image_id"][:] == ["000001", "000002"]


def test_beside_captions_with_what_the_file_has(folder):
    (folder / "captions.csv").write_text("image,caption\na.jpg,A dog.\n")
    data = load_captioned(folder / "captions.csv", images=folder / "images", objects=instances(folder))
    assert data[0]["objects"][1] == {"box": [0, 0, 1.5, 2], "name": "kite", "area": 3, "iscrowd": True}
    root = voc(folder)
    (root / "captions.csv").write_text("image,caption\n000001.jpg,A dog.\n")
    data = load_captioned(root / "captions.csv", images=root / "JPEGImages", objects=root / "Annotations")
    assert [item["difficult"] for item in data[0]["objects"]] == [True, None]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"categories": []}, "has annotations and no `categories`, so the classes of its boxes have no names"),
        (
            {"categories": [{"id": 18, "name": "dog"}, {"id": 19, "name": "dog"}]},
            r"has two categories called 'dog' \(ids \[18, 19\]\)",
        ),
        (
            {"annotations": [{"image_id": 1, "category_id": 18, "bbox": [60, 20, 90, 40]}]},
            r"1 of 1 boxes of .* lie beyond their images.*COCO's `bbox` is left, top, width, height: these are",
        ),
        (
            {"images": [{**INSTANCES["images"][0], "width": 200, "height": 100}]},
            r"a\.jpg has 100 × 50 pixels, and .*200 × ",
        ),
        (
            {"annotations": [{"image_id": 1}]},
            "annotation 1, with the id None, of image 1, has the `bbox` None, and four numbers are needed",
        ),
    ],
)
def test_instances_that_are_wrong(folder, changes, match):
    with pytest.raises(ValueError, match=match):
        load_objects(instances(folder, **changes))


def test_a_few_boxes_beyond_are_a_warning(folder, caplog):
    fine = [{"image_id": 1, "category_id": 18, "bbox": [0, 0, 9, 9]}] * 30
    beyond = {"image_id": 1, "category_id": 18, "bbox": [90, 0, 20, 9]}
    assert len(load_objects(instances(folder, annotations=[*fine, beyond]))[0]["objects"]) == 31
    assert "1 of 31 boxes" in caplog.text


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda folder: load_objects(folder / "nowhere"), FileNotFoundError, "There is no file or folder"),
        (lambda folder: load_objects(folder), ValueError, r"has no JPEGImages, Annotations, ImageSets/Main; it holds"),
        (lambda folder: load_objects(instances(folder), split="val"), ValueError, "COCO keeps each split in a file"),
        (
            lambda folder: load_objects(instances(folder, images=[{"id": 1, "file_name": "x.jpg"}])),
            FileNotFoundError,
            r"None of the 1 images that the caption file names .*'x\.jpg'",
        ),
        (lambda folder: load_objects(voc(folder), split="tests"), ValueError, "`split='tests'` was given, but"),
        (
            lambda folder: load_objects(voc(folder), images=folder / "images"),
            FileNotFoundError,
            r"None of the 1 images of .*train\.txt is there.*Boxes are of no use without images",
        ),
        (
            lambda folder: load_objects(instances(folder), images=folder / "elsewhere"),
            FileNotFoundError,
            "The folder of images .* does not exist",
        ),
    ],
)
def test_what_is_not_there(folder, make, error, match):
    with pytest.raises(error, match=match):
        make(folder)


def test_no_images_beside_and_images_outside(folder, tmp_path):
    elsewhere = (folder / "images").rename(tmp_path.with_name(f"{tmp_path.name}_elsewhere"))
    file = instances(folder)
    with pytest.raises(FileNotFoundError, match=r"No images are next to .*Name their folder: `images=`"):
        load_objects(file)
    (elsewhere / "a.jpg").rename(tmp_path / "secret.jpg")
    (elsewhere / "a.jpg").symlink_to(tmp_path / "secret.jpg")
    with pytest.raises(ValueError, match="names files outside of"):
        load_objects(file, images=elsewhere)


def test_a_fifo_is_not_waited_for(folder):
    os.mkfifo(folder / "instances.json")
    with pytest.raises(ValueError, match="is a FIFO, not a file or folder for `load_objects`"):
        load_objects(folder / "instances.json")


def test_coco_s_photographs(test_data):
    folder = test_data("coco_open")
    data = load_objects(folder / "instances.json", images=folder / "images")
    boxes = [(row["width"], row["height"], item["box"]) for row in data.map(
        lambda row: dict(zip(("width", "height"), row["image"].size, strict=True)), keep_in_memory=True
    ) for item in row["objects"]]  # fmt: skip
    assert (len(data), len(boxes)) == (148, 1200)
    for width, height, box in boxes:
        assert np.all(np.array(box) <= np.float32([width, height] * 2) + 1)
    names = class_names(folder / "instances.json")
    assert (len(names), names[:2], names[-1]) == (80, ["person", "bicycle"], "toothbrush")


@pytest.mark.parametrize("size", [{}, {"width": 100}, {"width": 0, "height": 0}])
def test_sizes_that_are_not_known(folder, size):
    listed = [{"id": 1, "file_name": "a.jpg", **size}]
    assert len(load_objects(instances(folder, images=listed, annotations=[]))) == 1
    (folder / "images" / "a.jpg").write_bytes(b"none")
    listed[0] |= {"width": 7, "height": 9}
    assert len(load_objects(instances(folder, images=listed, annotations=[]))) == 1


def test_sides_exchanged_without_exif_are_of_another_image(folder):
    listed = [{"id": 1, "file_name": "a.jpg", "width": 50, "height": 100}]
    with pytest.raises(ValueError, match=r"has 100 × 50 pixels, and .* says 50 × 100.*lost their EXIF"):
        load_objects(instances(folder, images=listed, annotations=[]))


def test_few_images_of_another_size_have_no_objects(folder, caplog):
    for number in range(21):
        Image.new("RGB", (100, 50)).save(folder / "images" / f"{number}.jpg")
    listed = [{"id": n, "file_name": f"{n}.jpg", "width": 100 + (n == 3), "height": 50} for n in range(21)]
    boxes = [{"image_id": n, "category_id": 18, "bbox": [0, 0, 9, 9]} for n in range(21)]
    data = load_objects(instances(folder, images=listed, annotations=boxes))
    assert [objects is None for objects in data["objects"]] == [n == 3 for n in range(21)]
    told = "images of another size than that of their boxes (null objects): 1 (3.jpg has 100 × 50 pixels"
    assert told in data.info.description


def test_a_full_folder_is_not_listed_whole(folder):
    for number in range(12):
        (folder / f"{number:02}").mkdir()
    with pytest.raises(ValueError, match=r"it holds \['00', .*'09'\]\. A folder"):
        load_objects(folder)
