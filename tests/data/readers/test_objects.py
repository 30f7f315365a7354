"""Boxes of objects beside captions: COCO's instances and VOC's XML."""

import gzip
import json
import re

import datasets
import pytest
from PIL import Image
from typer.testing import CliRunner

from hf_curriculum import GroundTruthBoxes, add_scores, load_captioned
from hf_curriculum.cli import app

INSTANCES = {
    "images": [{"id": 1, "file_name": "a.jpg"}, {"id": 2, "file_name": "b.jpg"}, {"id": 3, "file_name": "c.jpg"}],
    "categories": [{"id": 18, "name": "dog"}],
    "annotations": [
        {"id": 7, "image_id": 1, "category_id": 18, "bbox": [10, 20, 30, 40]},
        {"id": 8, "image_id": 1, "category_id": 99, "bbox": [0, 0, 1.5, 2]},
        {"id": 9, "image_id": 3, "category_id": 18, "bbox": [0, 0, 100, 100]},
    ],
}
OF_A = [{"box": [10, 20, 40, 60], "name": "dog"}, {"box": [0, 0, 1.5, 2], "name": None}]
VOC = """<annotation><!-- a comment --><filename>a.jpg</filename><size><width>100</width><height>100</height></size>
<object><name>dog</name><bndbox><xmin>11</xmin><ymin>21</ymin><xmax>40</xmax><ymax>60</ymax></bndbox>
<part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></part></object>
</annotation>"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "data").mkdir()
    for name in ("a", "b", "d"):
        Image.new("RGB", (100, 100)).save(tmp_path / "data" / f"{name}.jpg")
    rows = "a.jpg,A dog.\na.jpg,A puppy.\nb.jpg,A cat.\nd.jpg,Nothing known.\n"
    (tmp_path / "data" / "captions.csv").write_text("image,caption\n" + rows)
    return tmp_path / "data"


def instances(tmp_path, content=INSTANCES, name="instances_val.json"):
    file = tmp_path / name
    text = (content if isinstance(content, str) else json.dumps(content)).encode()
    file.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return file


@pytest.mark.parametrize("name", ["instances_val.json", "instances_val.json.gz"])
def test_of_coco_by_the_name_of_the_file(folder, tmp_path, name, caplog):
    data = load_captioned(folder, objects=instances(tmp_path, name=name))
    assert data["objects"][:] == [OF_A, OF_A, [], None]
    assert "3 of 4 rows are of images that it annotates; the others have None" in caplog.text
    scored = add_scores(data, GroundTruthBoxes())
    assert str(scored["box_count"][:]) == "[2.0, 2.0, 0.0, nan]"
    assert scored["box_area"][0] == pytest.approx((0.12 + 0.0003) / 2)


def test_of_coco_by_id(folder, tmp_path):
    (folder / "captions.csv").unlink()
    sentences = [{"raw": "A dog."}]
    karpathy = {"filename": "a.jpg", "filepath": "", "split": "train", "cocoid": 1, "sentences": sentences}
    other = {"filename": "d.jpg", "filepath": "", "split": "val", "cocoid": 2, "sentences": sentences}
    (folder / "dataset.json").write_text(json.dumps({"images": [karpathy, other]}))
    splits = load_captioned(folder, objects=instances(tmp_path))
    assert {name: part["objects"][:] for name, part in splits.items()} == {"train": [OF_A], "validation": [[]]}
    renamed = [{**image, "file_name": f"x{image['file_name']}"} for image in INSTANCES["images"]]
    with pytest.raises(ValueError, match="Their ids are equal, which alone says nothing"):
        load_captioned(folder, objects=instances(tmp_path, {**INSTANCES, "images": renamed}))


def test_of_voc(folder, tmp_path):
    (tmp_path / "Annotations").mkdir()
    (tmp_path / "Annotations" / "a.xml").write_text(VOC)
    (tmp_path / "Annotations" / "b.xml").write_text("<annotation/>")
    data = load_captioned(folder, objects=tmp_path / "Annotations")
    assert data["objects"][:] == [[OF_A[0]], [OF_A[0]], [], None]


@pytest.mark.parametrize(
    ("said", "error", "warns"),
    [
        ({"a": "b.jpg", "b": "a.jpg"}, True, ""),
        ({"a": "b.jpg", "b": ""}, True, ""),
        (
            {"a": "x.jpg", "b": "y.png"},
            False,
            "2 of its XML files have the `<filename>` of an image that is called oth",
        ),
        ({"a": "C:\\photos\\A.JPG", "b": "b", "sub/c": "b.jpg"}, False, "1 of its XML files have the `<filename>`"),
        ({"a": "a.jpg", "b": ""}, False, ""),
    ],
)
def test_of_voc_by_the_names_of_its_files(folder, tmp_path, caplog, said, error, warns):
    for name, file in said.items():
        xml = tmp_path / "Annotations" / f"{name}.xml"
        xml.parent.mkdir(parents=True, exist_ok=True)
        xml.write_text(VOC.replace("a.jpg", file))
    if error:
        with pytest.raises(ValueError, match=r"'a\.xml' has the `<filename>` 'b\.jpg', and 'b\.xml' is there too"):
            load_captioned(folder, objects=tmp_path / "Annotations")
    else:
        data = load_captioned(folder, objects=tmp_path / "Annotations")
        assert data["objects"][:] == [[OF_A[0]], [OF_A[0]], [OF_A[0]], None]
        assert ("`<filename>`" in caplog.text) == bool(warns)
        assert warns in caplog.text


def test_from_the_shell(folder, tmp_path):
    words = ["score", str(folder), str(tmp_path / "out"), "--scorer", "box_count"]
    done = CliRunner().invoke(app, [*words, "--objects", str(instances(tmp_path))])
    assert done.exit_code == 0, done.output
    assert datasets.load_from_disk(tmp_path / "out")["box_count"][:3] == [2, 2, 0]


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{",
        json.dumps({"images": []}),
        json.dumps({**INSTANCES, "annotations": [{"image_id": 1, "caption": "A dog."}]}),
        json.dumps({**INSTANCES, "annotations": [{"image_id": 1, "bbox": [1, 2]}]}),
    ],
)
def test_a_file_of_another_kind(folder, tmp_path, content):
    with pytest.raises(ValueError, match=r"instances_val\.json cannot be read as objects .*`bbox` each; VOC's"):
        load_captioned(folder, objects=instances(tmp_path, content))


def test_of_other_images(folder, tmp_path):
    other = [{**image, "file_name": f"x{image['id']}.jpg"} for image in INSTANCES["images"]]
    with pytest.raises(
        ValueError, match=r"None of the 3 images of the rows \('a\.jpg'.*Both must be of the same pictures"
    ):
        load_captioned(folder, objects=instances(tmp_path, {**INSTANCES, "images": other}))
    with pytest.raises(FileNotFoundError):
        load_captioned(folder, objects=tmp_path / "nowhere.json")
    with pytest.raises(ValueError, match=r"data holds no \.xml files"):
        load_captioned(folder, objects=folder)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (VOC.replace("<xmin>11</xmin>", ""), "NoneType"),
        (VOC.replace("11", "left"), "could not convert"),
        (VOC[:-20], "no element found|unclosed|not well-formed"),
        ('<!DOCTYPE a [<!ENTITY b "bbbb">]><annotation>&b;</annotation>', "declares a document type"),
        ('<!--<!DOCTYPE a SYSTEM "file:///etc/passwd">--><annotation/>', "declares a document type"),
    ],
)
def test_broken_or_hostile_xml(folder, tmp_path, text, match):
    (tmp_path / "Annotations").mkdir()
    (tmp_path / "Annotations" / "a.xml").write_text(text)
    with pytest.raises(ValueError, match=rf"a\.xml cannot be read as VOC's annotation \(.*({match})"):
        load_captioned(folder, objects=tmp_path / "Annotations")


def test_boxes_alone_say_where_they_go(tmp_path):
    with pytest.raises(ValueError, match=r"instances_\*\.json hold boxes, and are given with captions as `objects=`"):
        load_captioned(instances(tmp_path))


@pytest.mark.parametrize("bbox", [[], None, [1, 2, 3], [1, 2, None, 4], "box", [1, 2, 3, 4, 5]])
def test_an_annotation_without_a_box_is_named(folder, tmp_path, bbox):
    annotation = {"id": 70, "image_id": 1, "category_id": 18, "bbox": bbox}
    content = json.dumps({**INSTANCES, "annotations": [*INSTANCES["annotations"], annotation]})
    with pytest.raises(
        ValueError, match=rf"annotation 4, with the id 70, of image 1, has the `bbox` {re.escape(repr(bbox))}"
    ):
        load_captioned(folder, objects=instances(tmp_path, content))


@pytest.mark.parametrize("category", [{"id": 18, "name": None}, {"id": 18}, {"id": 18, "name": " "}])
def test_a_category_without_a_name_is_named(folder, tmp_path, category):
    content = json.dumps({**INSTANCES, "categories": [category]})
    with pytest.raises(ValueError, match=r"has the category 18 with the name (None|' '), so the class"):
        load_captioned(folder, objects=instances(tmp_path, content))
