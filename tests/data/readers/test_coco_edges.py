"""Files of COCO, Karpathy and VOC at their edges: ids, fields that are kept or counted, whose boxes are joined."""

from __future__ import annotations

import json
import re

import datasets
import pytest
from datasets import Dataset
from PIL import Image

from hf_curriculum import load_captioned
from hf_curriculum.data.left_out import LeftOut
from hf_curriculum.data.readers.coco import (
    Annotated,
    _bbox,
    _class_names,
    _file_name,
    _join,
    add_objects,
    class_names,
    id_text,
    is_coco,
    is_karpathy,
    read_coco,
    read_instances,
    read_karpathy,
    read_voc,
)

IMAGE = {"id": 1, "file_name": "a.jpg"}
DOG = {"id": 1, "name": "dog"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path


def instances(folder, boxes, **changes):
    content = {"images": [IMAGE], "categories": [DOG], "annotations": boxes, **changes}
    (folder / "instances.json").write_text(json.dumps(content))
    return folder / "instances.json"


def box(number=1, image=1, **fields):
    return {"id": number, "image_id": image, "category_id": 1, "bbox": [1, 2, 3, 4], **fields}


@pytest.mark.parametrize(
    ("number", "text"),
    [
        *((7, "7"), (7.0, "7"), ("7", "7"), ("a", "a"), (2**60, str(2**60)), (0, "0")),
        *((7.5, None), ("", None), (None, None), (True, None), ([7], None), (float("nan"), None)),
    ],
)
def test_ids_are_whole_numbers_or_texts(number, text):
    if text is not None:
        assert id_text(number) == text
        return
    with pytest.raises(ValueError, match=re.escape(f"An id is {number!r}, and whole numbers or texts")):
        id_text(number)


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ({"file_name": "a.jpg", "coco_url": "http://h/b.jpg"}, "a.jpg"),
        ({"file_name": "", "coco_url": "http://h/x/b.jpg"}, "x/b.jpg"),
        ({"coco_url": None}, None),
        ({"file_name": 7}, None),
        ({"file_name": ["a.jpg"]}, None),
    ],
)
def test_names_of_files(image, name):
    if name is not None:
        assert _file_name(image) == name
        return
    with pytest.raises(ValueError, match=r"The image 3 has neither a `file_name` nor a `coco_url`"):
        _file_name({"id": 3, **image})


def test_what_kind_of_file_it_is():
    assert is_coco({"images": [], "annotations": []})
    assert not any(map(is_coco, [{"images": []}, {"annotations": []}, {"images": {}, "annotations": []}, [], None]))
    assert is_karpathy({"images": [7, {"sentences": []}]})
    others = [{"images": [{"id": 1}]}, {"images": ["sentences"]}, {"images": {"sentences": 1}}, {}, [], None]
    assert not any(map(is_karpathy, others))


def test_fields_of_coco_that_cannot_be_kept_are_counted():
    images = [{**IMAGE, "mixed": 1}, {"id": 2, "file_name": "b.jpg", "mixed": "x"}]
    annotations = [{"image_id": number, "caption": "x", "odd": odd} for number, odd in ((1, 1), (2, "x"), (2, 3))]
    left_out = LeftOut()
    columns = read_coco({"images": images, "annotations": annotations}, pytest.fail, left_out)
    assert columns["image_id"] == ["1", "2", "2"]
    assert columns["caption_id"] == [None] * 3
    why = "values of several types, or objects of many keys"
    assert left_out.counts == {f"field `mixed` ({why})": 2, f"field `odd` ({why})": 3}


def karpathy(**fields):
    return {"filename": "a.jpg", "split": "train", "sentences": [{"raw": "A dog."}], **fields}


def test_fields_and_images_of_karpathys_files_that_are_not_kept_are_counted():
    images = [
        karpathy(
            license=3, sentences=[{"raw": "A dog.", "tokens": ["a", "dog"], "score": 1}, {"raw": "B", "score": 2}]
        ),
        karpathy(filename="b.jpg", filepath="x", imgid=7, sentences=[{"raw": None, "tokens": ["c"], "sentid": 9}]),
        *(karpathy(filename=f"{name}.jpg", sentences=[]) for name in "cd"),
    ]
    left_out = LeftOut()
    found = read_karpathy({"images": images}, pytest.fail, left_out)
    assert found == {
        "train": {
            "file_name": ["a.jpg", "a.jpg", "x/b.jpg"],
            "caption": ["A dog.", "B", "c"],
            "image_id": ["a.jpg", "a.jpg", "7"],
            "caption_id": [None, None, "9"],
            "tokens": ["a dog", None, "c"],
        }
    }
    with_tokens = karpathy(sentences=[{"raw": "x", "tokens": ["x"]}])
    for image, further in ((karpathy(), set()), (with_tokens, {"tokens"})):
        (columns,) = read_karpathy({"images": [image]}, pytest.fail, LeftOut()).values()
        assert columns.keys() - {"file_name", "caption", "image_id", "caption_id"} == further
    assert left_out.describe().split("; ") == [
        "images without a sentence: 2 (c.jpg, for example)",
        "field `license` of images (Karpathy's files have none): 1",
        "field `score` of sentences (Karpathy's files have none): 2",
    ]


@pytest.mark.parametrize(
    "sentence", [{"tokens": [1]}, {"raw": "x", "tokens": "x"}, {"raw": 5, "tokens": ["x"]}, {"raw": None}, "x"]
)
def test_sentences_that_are_none(sentence):
    problems = []
    images = [karpathy(), karpathy(filename="b.jpg", sentences=[{"raw": "x"}, sentence])]
    assert read_karpathy({"images": images}, problems.append, LeftOut())["train"]["file_name"] == ["a.jpg"]
    assert [problem[:35] for problem in problems] == ["Image 1 ('b.jpg') of the Karpathy f"]


def test_everything_that_a_box_may_have(folder, caplog):
    boxes = [
        *(box(area=5, iscrowd=0), box(iscrowd=1), box(area=0), box(category_id=None, area=None, iscrowd=None)),
        *(box(image=7), box(image=7), box(image=8, category_id=5), box(category_id=5)),
    ]
    left_out = LeftOut()
    found = read_instances(instances(folder, boxes), left_out)
    plain = {"box": [1, 2, 4, 6], "name": "dog"}
    assert found["1"] == Annotated(
        "a.jpg",
        "1",
        None,
        [
            {**plain, "area": 5.0, "iscrowd": False},
            {**plain, "iscrowd": True},
            {**plain, "area": 0.0},
            {**plain, "name": None},
            {**plain, "name": None},
        ],
    )
    assert found["7"] == Annotated("", "7", None, [plain, plain])
    assert found["8"] == Annotated("", "8", None, [{**plain, "name": None}])
    what = "that instances.json does not list (without their names)"
    assert dict(left_out.counts) == {f"boxes of images {what}": 3, f"boxes of categories {what}": 3}
    assert f"boxes of images {what}: 3 (7, for example)" in left_out.describe()
    rows = Dataset.from_dict({"caption": ["x", "y"], "image_id": ["7", "8"], "objects": ["old", "old"]})
    data = add_objects({"all": rows}, folder / "instances.json", LeftOut())["all"]
    assert data.column_names == ["caption", "image_id", "objects"]
    nothing = {"area": None, "iscrowd": None}
    assert data.to_list()[0]["objects"] == [plain, plain]
    assert not caplog.records
    both = add_objects({"all": rows.add_column("file_name", ["a.jpg", None])}, folder / "instances.json", LeftOut())
    assert both["all"]["objects"][0][1:3] == [{**plain, **nothing, "iscrowd": True}, {**plain, **nothing, "area": 0.0}]
    assert both["all"]["objects"][1] is None
    assert "1 of 2 rows are of images that it annotates" in caplog.text


@pytest.mark.parametrize("bbox", ["1234", (1, 2, 3, 4), {"a": 1}, [1, 2, 3], [1, 2, 3, 4, 5], [1, 2, 3, None]])
def test_what_is_no_box(bbox):
    with pytest.raises(ValueError, match=r"^annotation 3, with the id 9, of image 1, has the `bbox` "):
        _bbox(3, {"id": 9, "image_id": 1, "bbox": bbox})
    assert _bbox(3, {"bbox": [1, 2.5, "3", 4]}) == [1, 2.5, 3, 4]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"annotations": [box(bbox=[1])]}, r"as objects \(annotation 1, with the id 1,"),
        ({"annotations": [{"bbox": [1, 2, 3, 4]}]}, r"as objects \(KeyError\('image_id'\)\)"),
        ({"images": [{"file_name": "a.jpg"}]}, r"as objects \(KeyError\('id'\)\)"),
        ({"categories": []}, "has annotations and no `categories`"),
        ({"categories": None}, "has annotations and no `categories`"),
        ({"categories": [DOG, {"id": 2, "name": "dog"}]}, r"two categories called 'dog' \(ids \[1, 2\]\)"),
    ],
)
def test_what_is_wrong_with_a_file_of_boxes(folder, changes, match):
    with pytest.raises(ValueError, match=match):
        read_instances(instances(folder, [box()], **changes), LeftOut())


def test_classes_are_needed_where_there_are_boxes(folder):
    assert read_instances(instances(folder, [], categories=[]), LeftOut()) == {"1": Annotated("a.jpg", "1", None, [])}
    with pytest.raises(ValueError, match="has annotations and no `categories`"):
        class_names(instances(folder, [], categories=[]))
    several = [{"id": 10, "name": "c"}, {"id": "9", "name": "b"}, DOG, DOG]
    assert class_names(instances(folder, [], categories=several)) == ["dog", "b", "c"]
    assert _class_names(folder, [], needed=False) == {}


@pytest.mark.parametrize(
    ("keys", "named", "found"),
    [
        ([("a.jpg", "1"), ("", "2")], True, {0: 0, 1: 1}),  # where a name is found its id agrees
        ([("a.jpg", "5"), ("", "2")], True, {0: 0}),
        ([("a.jpg", "5"), ("", "2")], False, {0: 0}),
        ([("", "a.jpg"), ("", "2")], False, {0: 0}),
        ([("", "b.jpg")], True, {0: 1}),
        ([("", "2"), ("", "7")], False, {0: 1}),
        ([("", "2")], True, None),
        ([("x.jpg", "2")], True, None),
    ],
)
def test_whose_boxes_are_joined_by_name_and_by_id(tmp_path, keys, named, found):
    annotated = [Annotated(name, number, None, []) for name, number in (("a.jpg", "1"), ("b.jpg", "2"))]
    if found is not None:
        assert _join(tmp_path, annotated, dict.fromkeys(keys), named) == {keys[at]: to for at, to in found.items()}
        return
    example = keys[0][0] or keys[0][1]
    with pytest.raises(ValueError, match=rf"None of the 1 images .*'{example}', .*'a\.jpg', .* Their ids are equal"):
        _join(tmp_path, annotated, dict.fromkeys(keys), named)
    with pytest.raises(ValueError, match=r"'x', for example.*'a\.jpg', for example.*folders included\.$"):
        _join(tmp_path, annotated, {("x", "9"): None}, named)


def test_rows_that_name_files_are_not_joined_by_ids_alone(folder):
    Image.new("RGB", (20, 20)).save(folder / "z.png")
    found = instances(folder, [box()])
    text = {"caption": ["x"], "image_id": ["1"]}
    assert load_captioned(Dataset.from_dict(text), images=False, objects=found)["objects"][0][0]["box"] == [1, 2, 4, 6]
    pictures = Dataset.from_dict({"image": [str(folder / "z.png")], **text}).cast_column("image", datasets.Image())
    for rows in (Dataset.from_dict({**text, "file_name": ["z.png"]}), pictures):
        with pytest.raises(ValueError, match="Their ids are equal, which alone says nothing"):
            add_objects({"all": rows}, found, LeftOut())


def test_rows_without_ids_are_joined_by_name_in_every_split(folder, caplog):
    found = instances(folder, [box(), box(image=2)], images=[IMAGE, {"id": 2, "file_name": "b.jpg"}])
    names = {"x": ["b.jpg", None], "y": ["a.jpg"]}
    splits = {split: Dataset.from_dict({"file_name": of_split}) for split, of_split in names.items()}
    data = add_objects(splits, found, LeftOut())
    counts = {split: [row and len(row) for row in rows["objects"]] for split, rows in data.items()}
    assert counts == {"x": [1, None], "y": [1]}
    assert "2 of 3 rows are of images that it annotates; the others have None." in caplog.text


XML = """<annotation><size><width>9</width><height>8</height></size><object><name>Wölfe</name>{}
<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>4</xmax><ymax>5</ymax></bndbox></object></annotation>"""


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        *((XML, "utf-8"), (XML, "utf-8-sig"), (XML, "utf-16"), ('<?xml version="1.0"?>' + XML, "utf-8")),
        ('<?xml version="1.0" encoding="latin-1"?>' + XML, "latin-1"),
        ("<?xml version='1.0' encoding='cp1252'?>" + XML, "cp1252"),
    ],
)
@pytest.mark.parametrize(
    ("flag", "fields"),
    [
        ("", {}),
        ("<difficult> 1 </difficult>", {"difficult": True}),
        ("<difficult>0</difficult>", {"difficult": False}),
    ],
)
def test_encodings_and_flags_of_voc(tmp_path, text, encoding, flag, fields):
    file = tmp_path / "a.xml"
    file.write_bytes(text.format(flag).encode(encoding))
    (found,) = read_voc(tmp_path, {"a": file})
    assert found == Annotated("a", "", (9.0, 8.0), [{"box": [0, 1, 4, 5], "name": "Wölfe", **fields}])
