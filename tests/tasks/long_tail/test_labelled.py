"""Labelled images from every form in which they come, and what is said of those that cannot be used."""

from __future__ import annotations

import io
import json
import os

import numpy as np
import pyarrow as pa
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, DatasetInfo, Features, Image, Value, load_from_disk
from labelled import labelled, picture
from PIL import Image as PILImage

from hf_curriculum.tasks.long_tail import class_counts, class_names, load_labelled, long_tail
from hf_curriculum.tasks.long_tail.data.classes import encode_labels, long_tail_counts, read_classes, read_labels
from hf_curriculum.tasks.long_tail.data.sources import _names_of_folders


def write(path, label=0, seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    picture(label, seed).save(path, "JPEG" if path.suffix.lower() in (".jpg", ".jpeg") else "PNG")
    return path


def rows(data):
    """(id, class name) of each row."""
    return [(row["image_id"], data.features["label"].int2str(row["label"])) for row in data.remove_columns("image")]


# ---- Folders of classes ----


def test_a_folder_of_class_folders(tmp_path):
    for number, name in enumerate(("cat", "ant", "dog/old", "dog")):
        write(tmp_path / name / "1.png", seed=number)
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    (tmp_path / ".cache").mkdir()
    data = load_labelled(tmp_path)
    assert class_names(data) == ["ant", "cat", "dog"]
    assert rows(data) == [("ant/1.png", "ant"), ("cat/1.png", "cat"), ("dog/1.png", "dog"), ("dog/old/1.png", "dog")]
    assert data.features["image"] == Image()
    assert data[0]["image"].size == (16, 16)
    assert class_counts(data).tolist() == [1, 1, 2]


@pytest.mark.parametrize("place", ["images", "train/images"])
def test_a_folder_that_is_one_level_too_high_is_refused(tmp_path, place):
    for name in ("dog", "cat"):
        write(tmp_path / place / name / "1.png")
    with pytest.raises(ValueError, match=r"one folder of images, 'images', which holds.*cat, dog.*images'\."):
        load_labelled(tmp_path)
    assert class_names(load_labelled(tmp_path / place)) == ["cat", "dog"]


def test_an_image_of_two_classes(tmp_path, caplog):
    for name in "abc":
        write(tmp_path / f"{name}.png", seed=ord(name))
    table = tmp_path / "l.csv"
    table.write_text("file_name,label\nc.png,cat\na.png,dog\na.png,cat\nb.png,dog\na.png,cow\n")
    with pytest.raises(ValueError, match=r"'a.png' is of the classes 'cat' and 'dog' \(1 images are.*Remove all rows"):
        load_labelled(table)
    table.write_text("file_name,label\nc.png,cat\na.png,dog\nb.png,dog\n")
    assert rows(load_labelled(table)) == [("c.png", "cat"), ("a.png", "dog"), ("b.png", "dog")]
    content = (tmp_path / "a.png").read_bytes()  # as of two images of CIFAR-100
    images = [{"bytes": content, "path": None}] * 2
    features = Features({"image": Image(), "label": ClassLabel(names=["cat", "dog"])})
    assert len(load_labelled(Dataset.from_dict({"image": images, "label": [0, 1]}, features=features))) == 2
    assert "is of the classes 'cat' and 'dog' (1 images are of several)" in caplog.text


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["dog", "dog "], "'dog' and 'dog '"),
        (["big dog", "big  dog"], "'big dog' and 'big  dog'"),
        (["big dog", "big\u00a0dog"], r"'big dog' and 'big\\xa0dog'"),
        (["caf\u00e9", "cafe\u0301"], r"'caf\\xe9' and 'cafe\\u0301'"),
    ],
)
def test_names_of_classes_that_look_the_same(names, shown, tmp_path):
    lines = [json.dumps({"file_name": f"{number}.png", "label": name}) for number, name in enumerate(names)]
    (tmp_path / "l.jsonl").write_text("\n".join(lines))
    write(tmp_path / "0.png"), write(tmp_path / "1.png")
    with pytest.raises(ValueError, match=f"has the classes {shown}, which look the same"):
        load_labelled(tmp_path / "l.jsonl")


def test_class_folders_of_splits_share_their_classes(tmp_path):
    for place in ("train/b", "train/a", "val/b", "test/c"):
        write(tmp_path / place / "x.JPEG")
    data = load_labelled(tmp_path)
    assert {name: rows(part) for name, part in data.items()} == {
        "train": [("train/a/x.JPEG", "a"), ("train/b/x.JPEG", "b")],
        "validation": [("val/b/x.JPEG", "b")],
        "test": [("test/c/x.JPEG", "c")],
    }
    assert all(class_names(part) == ["a", "b", "c"] for part in data.values())
    assert class_counts(data["test"]).tolist() == [0, 0, 1]
    assert rows(load_labelled(tmp_path, split="validation")) == rows(data["validation"])


def test_split_folders_by_any_case_and_never_as_classes(tmp_path):
    write(tmp_path / "Train/a/x.png"), write(tmp_path / "Test/a/y.png")
    assert {name: class_names(part) for name, part in load_labelled(tmp_path).items()} == {
        "train": ["a"],
        "test": ["a"],
    }
    write(tmp_path / "extra" / "z.png")
    with pytest.raises(ValueError, match=r"folders \['Test', 'Train'\], with folders .* beside \['extra'\]"):
        load_labelled(tmp_path)
    for place in ("train", "tram"):  # a class may be called so
        write(tmp_path / "vehicles" / place / "x.png")
    assert class_names(load_labelled(tmp_path / "vehicles")) == ["train", "tram"]


def test_two_folders_or_lists_of_one_split_are_refused(tmp_path):
    for place in ("train", "val", "validation"):
        write(tmp_path / place / "a" / "x.png")
    with pytest.raises(ValueError, match="val and validation, both of the split 'validation': images of one"):
        load_labelled(tmp_path)
    for name in ("ImageNet_LT_train.txt", "Places_LT_train.txt"):
        imagenet(tmp_path / "lists", ["a/x.JPEG 0"], name)
    with pytest.raises(ValueError, match=r"ImageNet_LT_train\.txt and Places_LT_train\.txt, both of"):
        load_labelled(tmp_path / "lists")


def test_an_empty_class_folder_is_named(tmp_path):
    write(tmp_path / "cat" / "1.png")
    (tmp_path / "dog").mkdir()
    with pytest.raises(ValueError, match=r"1 class folders without an image \('dog'\).*log 0.*remove the folders"):
        load_labelled(tmp_path)


def test_a_folder_of_nothing(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(ValueError, match=r"load_labelled recognises nothing in .*\['a'\]. It recognises:"):
        load_labelled(tmp_path)


def test_unreadable_images_are_left_out_and_named(tmp_path):
    write(tmp_path / "cat" / "1.png")
    write(tmp_path / "dog" / "1.png")
    (tmp_path / "dog" / "2.png").write_bytes(b"no image")
    data = load_labelled(tmp_path, unreadable_log=tmp_path / "log.txt")
    assert rows(data) == [("cat/1.png", "cat"), ("dog/1.png", "dog")]
    assert "dog/2.png" in (tmp_path / "log.txt").read_text()
    assert len(load_labelled(tmp_path, check_images=False)) == 3


# ---- Lists ----


def imagenet(folder, lines, name="ImageNet_LT_train.txt"):
    for line in lines:
        write(folder / "images" / line.split()[0])
    (folder / name).write_text("".join(line + "\n" for line in lines))
    return folder / name


def test_imagenet_lts_list(tmp_path):
    lines = ["train/n02/a_1.JPEG 0", "train/n01/b_1.JPEG 1", "train/n02/a_2.JPEG 0", "train/n07/c_1.JPEG 2"]
    file = imagenet(tmp_path, lines)
    data = load_labelled(file, images=tmp_path / "images")
    assert class_names(data) == ["n02", "n01", "n07"]
    assert data["label"][:] == [0, 1, 0, 2]
    assert data["image_id"][:] == [line.split()[0] for line in lines]
    assert load_labelled(file)["label"][:] == [0, 1, 0, 2]  # `images/` beside the list
    names = tmp_path / "names.json"
    names.write_text(json.dumps({"n01": "tench", "n02": "crane", "n07": "crane"}))
    found = load_labelled(file, classes=names)
    assert class_names(found) == ["crane", "tench", "crane (2)"]
    assert class_names(load_labelled(file, classes=["a", "b", "c", "d"])) == ["a", "b", "c", "d"]
    assert class_names(load_labelled(file, classes={0: "x", 2: "z"})) == ["x", "n01", "z"]


def test_the_released_lists_four_columns(tmp_path):
    lines = ["train/n1/a.JPEG 0 100 412", "train/n2/b.JPEG 1 10 5", "train/n2/c.JPEG 1 100 5"]
    data = load_labelled(imagenet(tmp_path, lines))
    assert data.features["guidance"] == Value("float32")
    assert data["guidance"][:] == [1.0, np.float32(0.1), 1.0]
    assert data["train_cnt"][:] == [412, 5, 5]
    assert class_counts(data).tolist() == [1, 1]  # the generated one is not counted


def test_lists_of_splits_without_class_folders_in_the_test_images(tmp_path):
    imagenet(tmp_path, ["train/n1/a.JPEG 0", "train/n2/b.JPEG 1"])
    imagenet(tmp_path, ["val/ILSVRC_1.JPEG 1"], "ImageNet_LT_val.txt")
    data = load_labelled(tmp_path)
    assert list(data) == ["train", "validation"]
    assert class_names(data["validation"]) == ["n1", "n2"]
    assert data["validation"]["label"][:] == [1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("train/a.JPEG", r"Line 2 of .* is 'train/a.JPEG'"),
        ("train/a.JPEG 0 100 12 7", "a file and a class number in each line"),
        ("train/a.JPEG 1 100", "or in each also a guidance"),
    ],
)
def test_lines_of_another_form(tmp_path, line, message):
    file = tmp_path / "list.txt"
    file.write_text(f"train/b.JPEG 0\n{line}\n")
    with pytest.raises(ValueError, match=message):
        load_labelled(file)


def test_lists_that_hold_nothing_or_negative_numbers(tmp_path):
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(ValueError, match=r"is empty: there is nothing to train on"):
        load_labelled(tmp_path / "empty.txt")
    with pytest.raises(ValueError, match=r"has the labels \[-1\], outside of the 2 classes 0 … 1"):
        load_labelled(imagenet(tmp_path, ["a/x.JPEG -1", "b/x.JPEG 1"]))
    with pytest.raises(ValueError, match=r"has the labels \[3\], outside of the 2 classes"):
        load_labelled(imagenet(tmp_path, ["a/x.JPEG 3", "b/x.JPEG 1"]), classes=["one", "two"])


# ---- Tables ----


def test_tables_with_names_or_numbers(tmp_path):
    for name in ("a.png", "b.png", "c.png"):
        write(tmp_path / name)
    (tmp_path / "names.csv").write_text("filename,class,camera\na.png,dog,1\nb.png,cat,2\nc.png,dog,1\n")
    data = load_labelled(tmp_path / "names.csv")
    assert rows(data) == [("a.png", "dog"), ("b.png", "cat"), ("c.png", "dog")]
    assert data["camera"][:] == [1, 2, 1]
    # DisCL's own: a CSV with names beside the numbers, and a TSV.
    (tmp_path / "discl.csv").write_text(
        "filepath,image_name,label,classname\na.png,x,1,grey fox\nb.png,y,0,NA\nc.png,z,1,grey fox\n"
    )
    data = load_labelled(tmp_path / "discl.csv", columns={"image": "filepath"})
    assert class_names(data) == ["NA", "grey fox"]
    assert data["label"][:] == [1, 0, 1]
    (tmp_path / "discl.tsv").write_text(
        "title\tfilepath\tlabel\tstrength\tguidance\tseed\timg_id\ta photo\n" + "t\ta.png\t2\t0.9\t0.1\t10\t7\tp\n"
    )
    data = load_labelled(tmp_path / "discl.tsv")
    assert (class_names(data), data["guidance"][:]) == (["0", "1", "2"], [np.float32(0.1)])
    (tmp_path / "lines.jsonl").write_text('{"file_name": "a.png", "label": "b"}\n{"file_name": "b.png", "label": "a"}')
    assert rows(load_labelled(tmp_path / "lines.jsonl")) == [("a.png", "b"), ("b.png", "a")]


def test_tables_that_do_not_say_which_column_is_which(tmp_path):
    write(tmp_path / "a.png")
    file = tmp_path / "t.csv"
    file.write_text("file_name,kind\na.png,dog\n")
    with pytest.raises(ValueError, match=r"has the columns \['file_name', 'kind'\].*holds `label` is not known"):
        load_labelled(file)
    assert rows(load_labelled(file, columns={"label": "kind"})) == [("a.png", "dog")]
    with pytest.raises(ValueError, match=r"`columns` has the keys \['kind'\]"):
        load_labelled(file, columns={"kind": "label"})
    file.write_text("file_name,label\na.png,dog\na.png,\n")
    with pytest.raises(ValueError, match=r"Line 3 of .* has no 'label'"):
        load_labelled(file)
    file.write_text("file_name,label\na.png,dog\n")
    with pytest.raises(ValueError, match=r"has the classes \['dog'\], which are not among the 1 that `classes`"):
        load_labelled(file, classes=["cat"])
    with pytest.raises(ValueError, match=r"does not read"):
        load_labelled(write(tmp_path / "b.png"))


def test_tables_and_names_that_cannot_be_read(tmp_path):
    for content, message in (
        (b"", r"labels\.csv has the columns \[\] and 0 rows"),
        ("image,label\na.png,caf\u00e9\n".encode("latin-1"), r"labels\.csv is not UTF-8: line 2"),
        (b'image,label\na.png,"cat\nb.png,dog\n', "In line 2 a quotation mark opens a cell"),
        (b"image,label,label\na.png,cat,x\n", r"The header has \['label'\] twice"),
        (b"image,label,x\na.png,cat\n", "Line 2 has fewer cells than the header"),
        (b"image,label,class_name\na.png,0,cat\nb.png,0,owl\n", "calls class 0 both 'cat' and 'owl'"),
    ):
        (tmp_path / "labels.csv").write_bytes(content)
        with pytest.raises(ValueError, match=message):
            load_labelled(tmp_path / "labels.csv")
    (tmp_path / "labels.jsonl").write_text("[1]\n")
    with pytest.raises(ValueError, match=r"labels\.jsonl: Line 1 is \[1\], and an object with fields is needed"):
        load_labelled(tmp_path / "labels.jsonl")
    for name in ("a", "b"):
        write(tmp_path / f"{name}.png")
    (tmp_path / "labels.csv").write_text("image,label\na.png,1_0\nb.png,10\n")
    assert class_names(load_labelled(tmp_path / "labels.csv")) == ["10", "1_0"]
    for content, message in (
        ("{bad", "is not JSON"),
        ('{"0": "cat", "0": "owl"}', "The key '0' stands twice"),
        ("3", "holds 3, and a list of names or an object is needed"),
    ):
        (tmp_path / "names.json").write_text(content)
        with pytest.raises(ValueError, match=message):
            read_classes(tmp_path / "names.json")


@pytest.mark.parametrize(
    ("name", "content", "labels", "more"),
    [
        ("t.csv", b"image;label;zip\na.png;cat;007\nb.png;dog;08\n", ["cat", "dog"], {"zip": ["007", "08"]}),
        ("t.csv", "image,label\na.png,cat\nb.png,dog\n".encode("utf-16"), ["cat", "dog"], {}),
        ("t.csv", b"image, label\na.png, cat\nb.png, dog\n", ["cat", "dog"], {}),
        ("t.csv", b"image,label,n\na.png,01,nan\nb.png,1,inf\n", ["01", "1"], {"n": ["nan", "inf"]}),
        ("t.csv", b"image,label,n\na.png,0,1.50\nb.png,1,-2e-1\n", ["0", "1"], {"n": [1.5, -0.2]}),
        (
            "t.jsonl",
            b'\xef\xbb\xbf{"image": "a.png", "label": "2020-01-01", "image_id": "007"}\n\n'
            b'{"image": "b.png", "label": "2020-02-01", "image_id": "7"}\n',
            ["2020-01-01", "2020-02-01"],
            {"image_id": ["007", "7"]},
        ),
        (
            "t.jsonl",
            b'{"image": "a.png", "label": 0, "m": {"a": 1}}\n{"image": "b.png", "label": 1, "w": 2}\n',
            ["0", "1"],
            {"m": [{"a": 1}, None], "w": [None, 2]},
        ),
    ],
)
def test_tables_are_read_as_they_are_written(tmp_path, name, content, labels, more):
    for image in ("a", "b"):
        write(tmp_path / f"{image}.png")
    (tmp_path / name).write_bytes(content)
    data = load_labelled(tmp_path / name)
    assert [class_names(data)[label] for label in data["label"]] == labels
    assert {column: data[column][:] for column in more} == more


def test_what_is_not_read_is_counted(tmp_path, caplog):
    for name in (
        "cat/1.png",
        "cat/.ipynb_checkpoints/1-checkpoint.png",
        "dog/1.png",
        "__MACOSX/cat/._1.png",
        "top.png",
    ):
        write(tmp_path / name)
    (tmp_path / "cat" / "._1.png").write_bytes(b"\0\5\x16\7")
    (tmp_path / "dog" / "2.xcf").write_bytes((tmp_path / "dog" / "1.png").read_bytes())
    assert rows(load_labelled(tmp_path)) == [("cat/1.png", "cat"), ("dog/1.png", "dog")]
    assert "hidden files and folders: 2 (.ipynb_checkpoints, for example)" in caplog.text
    assert "2.xcf, for example" in caplog.text
    assert "images outside of the folders of classes: 1 " in caplog.text
    (tmp_path / "t.jsonl").write_text(
        '{"image": "top.png", "label": "x", "n": 1}\n{"image": "cat/1.png", "label": "y", "n": "a"}\n'
    )
    assert load_labelled(tmp_path / "t.jsonl").column_names == ["image", "label", "image_id"]
    assert "field `n` (values of several types" in caplog.text


def test_options_of_load_dataset_are_refused_where_it_is_not_called(tmp_path):
    write(tmp_path / "cat" / "1.png")
    with pytest.raises(ValueError, match=r"\{'revision': 'main'\} would have no effect: .* is not loaded by"):
        load_labelled(tmp_path, revision="main")


def test_images_outside_of_the_folder_are_refused(tmp_path):
    secret = write(tmp_path / "secret" / "s.png")
    file = tmp_path / "data" / "t.csv"
    file.parent.mkdir()
    file.write_text(f"file_name,label\n{secret},dog\n")
    with pytest.raises(ValueError, match=r"names files outside of"):
        load_labelled(file)
    assert len(load_labelled(file, allow_outside=True)) == 1


# ---- iWildCam ----


def test_iwildcam(tmp_path):
    header = "split,location_remapped,sequence_remapped,datetime,filename,y\n"
    body = [("train", 3, "a.jpg", 0), ("val", 5, "b.jpg", 2), ("id_test", 3, "c.jpg", 0), ("train", 4, "d.jpg", 4)]
    lines = [f"{split},{camera},1,2013-06-05 05:44:19,{name},{y}\n" for split, camera, name, y in body]
    (tmp_path / "metadata.csv").write_text(header + "".join(lines))
    (tmp_path / "categories.csv").write_text(
        "y,category_id,name\n0,0,empty\n1,2,tayassu pecari\n2,3,dasyprocta punctata\n99999,9,unused\n"
    )
    for _, _, name, _ in body:
        write(tmp_path / "train" / name)  # whatever the split
    data = load_labelled(tmp_path)
    assert list(data) == ["train", "val", "id_test"]
    # max(y) + 1 classes, as the benchmark's readers take it.
    assert class_names(data["val"]) == ["empty", "tayassu pecari", "dasyprocta punctata", "3", "4"]
    assert rows(data["train"]) == [("a.jpg", "empty"), ("d.jpg", "4")]
    assert data["train"]["location_remapped"][:] == [3, 4]
    assert data["train"]["datetime"][0] == "2013-06-05 05:44:19"
    assert data["train"][0]["image"].size == (16, 16)


# ---- Data sets ----


def test_data_sets_and_parquet(tmp_path):
    data = labelled((2, 1))
    assert rows(load_labelled(data)) == [("0/0", "red"), ("0/1", "red"), ("0/2", "green")]
    bare = Dataset.from_dict({"img": data["image"][:], "fine_label": ["b", "a", "b"]}).cast_column("img", Image())
    found = load_labelled(DatasetDict(train=bare, test=bare.select([1])))
    assert class_names(found["test"]) == ["a", "b"]
    assert found["train"]["label"][:] == [1, 0, 1]
    assert len(set(found["train"]["image_id"][:])) == 3  # digests of the images
    buffer = io.BytesIO()
    picture(0, 1).save(buffer, "png")
    Dataset.from_dict({"image": [{"bytes": buffer.getvalue(), "path": None}] * 2, "label": [3, 0]}).to_parquet(
        str(tmp_path / "x.parquet")
    )
    found = load_labelled(tmp_path / "x.parquet")
    assert (class_names(found), found["label"][:]) == (["0", "1", "2", "3"], [3, 0])
    data.save_to_disk(str(tmp_path / "saved"))
    assert rows(load_labelled(tmp_path / "saved")) == rows(load_from_disk(str(tmp_path / "saved")))


def test_data_sets_that_cannot_be_used(tmp_path):
    data = labelled((2, 1))
    with pytest.raises(TypeError, match=r"`load_labelled` was given a list"):
        load_labelled([data])
    with pytest.raises(ValueError, match=r"`label` is not in the data"):
        load_labelled(data.remove_columns("label"))
    other = data.cast_column("label", ClassLabel(names=["x", "y"]))
    with pytest.raises(ValueError, match=r"other classes in some splits than in others"):
        load_labelled(DatasetDict(train=data, test=other))
    with pytest.raises(ValueError, match=r"columns \['label'\] already|already"):
        load_labelled(data.add_column("kind", [0, 0, 1]), columns={"label": "kind"})
    with pytest.raises(FileNotFoundError, match=r"There is no file or folder"):
        load_labelled(tmp_path / "none")
    with pytest.raises(ValueError, match=r"would have no effect"):
        load_labelled(data, revision="main")
    import os

    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ValueError, match=r"is a FIFO, not a file or folder"):
        load_labelled(tmp_path / "fifo")


# ---- Classes and long tails ----


def test_long_tailed_cifar_has_the_published_counts():
    assert long_tail_counts(10, 5000, 100) == [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    assert sum(long_tail_counts(10, 5000, 100)) == 12406
    assert long_tail_counts(10, 5000, 10)[-1] == 500
    assert long_tail_counts(1, 7, 10) == [7]


def test_a_long_tail_keeps_rows_of_each_class_by_a_key():
    features = Features({"label": ClassLabel(names=["a", "b", "c"]), "row": Value("int64")})
    data = Dataset.from_dict({"label": [0, 1, 2] * 50, "row": list(range(150))}, features=features)
    tail = long_tail(data, 25, seed=3)
    assert class_counts(tail).tolist() == [50, 10, 2]
    assert tail["row"][:] == sorted(tail["row"][:])
    assert tail["row"][:] == long_tail(data, 25, seed=3)["row"][:]
    assert tail["row"][:] != long_tail(data, 25, seed=4)["row"][:]
    assert class_counts(long_tail(data, 4, largest=20)).tolist() == [20, 10, 5]
    with pytest.raises(ValueError, match=r"`imbalance=0.5` was given"):
        long_tail(data, 0.5)
    with pytest.raises(ValueError, match=r"The class 'c' has 50 images and would keep 0"):
        long_tail(data, 1000)
    with pytest.raises(ValueError, match=r"The class 'a' has 50 images and would keep 80"):
        long_tail(data, 10, largest=80)


def test_a_mapping_that_names_no_class_is_refused(tmp_path):
    for name in ("cat", "dog"):
        write(tmp_path / "names" / name / "x.png")
    for classes in ({0: "tench", 1: "crane"}, {"n01440764": "tench"}):
        with pytest.raises(ValueError, match=r"the labels \['cat', 'dog'\] and so on: no class would get its name"):
            load_labelled(tmp_path / "names", classes=classes)
    for name in ("0", "7"):
        write(tmp_path / "numbers" / name / "x.png")
    assert class_names(load_labelled(tmp_path / "numbers", classes={"0": "zero", "7": "seven"})) == ["zero", "seven"]


def test_a_mapping_loses_no_class_that_the_data_does_not_show():
    data = labelled((2, 1, 0))
    assert class_names(load_labelled(data, classes={"red": "a"})) == ["a", "green", "blue"]
    numbers = data.cast_column("label", Value("int64"))
    assert class_names(load_labelled(numbers, classes={0: "a", 1: "b", 2: "c"})) == ["a", "b", "c"]


def test_classes_and_labels_that_cannot_be_read(tmp_path):
    data = labelled((2, 1))
    with pytest.raises(ValueError, match=r"classes are a `datasets.ClassLabel`"):
        class_counts(data.cast_column("label", Value("int64")))
    with pytest.raises(ValueError, match=r"`label` of 1 of 3 rows is none of the 2 classes"):
        read_labels(Dataset.from_dict({"label": [0, None, 1]}, features=Features({"label": data.features["label"]})))
    with pytest.raises(FileNotFoundError, match=r"There is no file 'names.txt'"):
        read_classes("names.txt")
    (tmp_path / "names.txt").write_text("tench\n\ngoldfish\n")
    assert read_classes(tmp_path / "names.txt") == ["tench", "goldfish"]
    with pytest.raises(ValueError, match=r"names of classes are needed"):
        read_classes([1, 2])


def test_only_images_are_opened(tmp_path):
    """A class folder's other files, and links that lead out, are no images of it."""
    write(tmp_path / "in" / "cat" / "1.png")
    outside = write(tmp_path / "out" / "1.png")
    (tmp_path / "in" / "cat" / "2.png").symlink_to(outside)
    with pytest.raises(ValueError, match=r"names files outside of"):
        load_labelled(tmp_path / "in")


def test_real_long_tailed_cifar():
    import os
    from pathlib import Path

    folder = os.environ.get("HF_CURRICULUM_TEST_DATA")
    if not folder:
        pytest.skip("HF_CURRICULUM_TEST_DATA is not set")
    data = load_labelled(Path(folder) / "cifar10_lt" / "train_lt_if100.parquet", check_images=False)
    assert class_counts(data).tolist() == long_tail_counts(10, 5000, 100)
    assert data[0]["image"].size == (32, 32)


def test_pictures_of_any_mode(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    PILImage.new("LA", (4, 4)).save(tmp_path / "a" / "1.png")
    PILImage.new("P", (4, 4)).save(tmp_path / "b" / "1.png")
    assert class_counts(load_labelled(tmp_path)).tolist() == [1, 1]


def test_edges_of_long_tails():
    assert long_tail_counts(2, 100, 10) == [100, 10]
    features = Features({"label": ClassLabel(names=["a", "b", "c"])})
    data = Dataset.from_dict({"label": [0] * 20 + [1] * 50 + [2] * 50}, features=features)
    assert class_counts(long_tail(data, 4)).tolist() == [20, 10, 5]  # from the first class's number
    assert class_counts(long_tail(data, 1)).tolist() == [20, 20, 20]
    with pytest.raises(ValueError, match="`imbalance=nan`"):
        long_tail(data, float("nan"))
    outside = Dataset(pa.table({"label": [0, 3, -1]}), info=DatasetInfo(features=features))
    with pytest.raises(ValueError, match="`label` of 2 of 3 rows is none of the 3 classes"):
        read_labels(outside)


def test_names_of_classes_and_of_folders(caplog):
    for names in ([], {}, ["a", ""]):
        with pytest.raises(ValueError, match="names of classes are needed"):
            read_classes(names)
    assert encode_labels({"train": [0, 0]})[1].names == ["0"]
    assert encode_labels({"train": ["x"]}, ["x", "y"])[1].names == ["x", "y"]
    assert not caplog.records
    assert encode_labels({"train": [0, 1, 2]}, ["a", "a", "b"])[1].names == ["a", "a (2)", "b"]
    assert caplog.messages == ["1 names stand for several classes (a …), which are numbered."]
    assert _names_of_folders(["n1/a", "n1/b", "n2/c"], [0, 0, 1]) == {0: "n1", 1: "n2"}
    for files, labels in ((["n1/a", "n3/b", "n2/c"], [0, 0, 1]), (["x/a", "x/b"], [0, 1]), (["a"], [0])):
        assert _names_of_folders(files, labels) == {}


def test_what_stands_beside_folders_is_no_class(tmp_path):
    for place in ("train/a", "train/b", "val/a"):
        write(tmp_path / place / "x.png")
    (tmp_path / ".cache").mkdir()
    for place in ("README.md", "train/README.md"):
        (tmp_path / place).write_text("")
    assert {name: class_counts(part).tolist() for name, part in load_labelled(tmp_path).items()} == {
        "train": [1, 1],
        "validation": [1, 0],
    }
    os.mkfifo(tmp_path / "train" / "a" / "y.png")
    with pytest.raises(ValueError, match=r"y\.png is a FIFO"):
        load_labelled(tmp_path, check_images=False)


def test_columns_of_a_table_that_are_not_read(tmp_path):
    write(tmp_path / "a.png")
    (tmp_path / "t.csv").write_text(",file_name,filepath,label,image_id,camera\n0,gone.png,a.png,01,007,1.5\n")
    data = load_labelled(tmp_path / "t.csv", columns={"image": "filepath"})
    assert data.column_names == ["image", "label", "camera", "image_id"]
    assert (data["image_id"][:], class_names(data), data["camera"][:]) == (["007"], ["01"], [1.5])
    (tmp_path / "t.csv").write_text("file_name,label\n")
    with pytest.raises(ValueError, match=r"has the columns \['file_name', 'label'\] and 0 rows"):
        load_labelled(tmp_path / "t.csv")


@pytest.mark.parametrize(
    ("metadata", "categories", "message"),
    [
        ("train,a.jpg,", "0,empty", "Line 2 of .*metadata.csv lacks split, filename or class"),
        ("train,a.jpg,1", "1,cow\n1,ox", "calls class 1 both 'cow' and 'ox'"),
    ],
)
def test_iwildcam_s_tables_are_read_strictly(tmp_path, metadata, categories, message):
    (tmp_path / "metadata.csv").write_text(f"split,filename,y\n{metadata}\n")
    (tmp_path / "categories.csv").write_text(f"y,name\n{categories}\n")
    with pytest.raises(ValueError, match=message):
        load_labelled(tmp_path)


@pytest.mark.parametrize("named", [True, False])
def test_iwildcam_s_last_class(tmp_path, named):
    (tmp_path / "metadata.csv").write_text("split,filename,y\ntrain,a.jpg,2\n")
    if named:
        (tmp_path / "categories.csv").write_text("y,name\n0,empty\n1,NA\n2,cow\n3,unused\n")
    write(tmp_path / "train" / "a.jpg")
    assert class_names(load_labelled(tmp_path)["train"]) == (["empty", "NA", "cow"] if named else ["0", "1", "2"])


def test_parquet_with_names_of_images_beside_it(tmp_path, monkeypatch):
    write(tmp_path / "data" / "photos" / "a.png")
    secret = str(write(tmp_path / "secret.png"))
    monkeypatch.chdir(tmp_path)
    for name in ("photos/a.png", secret):
        Dataset.from_dict({"image": [name], "label": [0]}).to_parquet(str(tmp_path / "data" / "x.parquet"))
        if name == secret:
            with pytest.raises(ValueError, match="names files outside of"):
                load_labelled("data/x.parquet")
        found = load_labelled("data/x.parquet", allow_outside=name == secret)
        assert found[0]["image"].size == (16, 16)
    data = Dataset.from_dict({"image": ["photos/a.png"] * 2, "label": ["", "b"]})
    data.to_parquet(str(tmp_path / "data" / "x.parquet"))
    for source, told in ((data, "^`label` has the labels"), ("data/x.parquet", "^`label` of data/x.parquet has the")):
        with pytest.raises(ValueError, match=told):
            load_labelled(source, check_images=False)
