"""Files of proposals: Detectron's pickles, which are refused, MCG's scores, and Cap2Det's layout written."""

from __future__ import annotations

import io
import pickle
import re

import numpy as np
import pytest
import scipy.io
from datasets import Dataset, Features, Image, List, Value
from PIL import Image as Pillow

from hf_curriculum.data.regions.open import open_regions
from hf_curriculum.tasks.detection import add_proposals, write_proposals
from hf_curriculum.tasks.detection import proposals as files

BOXES = [np.float32([[0, 0, 30, 20], [5, 5, 40, 25]]), np.zeros((0, 4), np.float32)]
SCORES = [np.float32([0.25, 3.5]), np.zeros(0, np.float32)]


def images(ids, size=(100, 50)):
    file = io.BytesIO()
    Pillow.new("RGB", size).save(file, "png")
    rows = {"image": [{"bytes": file.getvalue(), "path": None}] * len(ids), "image_id": ids}
    return Dataset.from_dict(rows, features=Features({"image": Image(), "image_id": Value("string")}))


def test_detectron_s_pickles_are_refused_with_the_lines_that_convert_them(tmp_path):
    content = {"boxes": BOXES, "ids": np.array([9, 285]), "scores": SCORES}
    (tmp_path / "proposals.pkl").write_bytes(pickle.dumps(content))
    with pytest.raises(ValueError, match=r"holds pickled Python objects.*np\.savez\('proposals\.npz'") as caught:
        open_regions(tmp_path / "proposals.pkl")
    line = re.search(r"(np\.savez\('proposals.*)`", str(caught.value))[1].replace("proposals.npz", f"{tmp_path}/x.npz")
    exec(line, {"np": np, **content})  # as the message tells its reader to
    boxed = add_proposals(images(["285", "9"]), open_regions(tmp_path / "x.npz"))
    assert boxed["proposals"][:] == [[], BOXES[0].tolist()]


def test_boxes_as_widths(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.float32([[50, 20, 30, 10]]))
    with pytest.raises(ValueError, match=r"ends before it begins, so it is not 'xyxy'.*is \"xywh\""):
        open_regions(tmp_path / "x.npz")["a"]
    found = open_regions(tmp_path / "x.npz", order="xywh")["a"]
    np.testing.assert_array_equal(found.boxes, [[50, 20, 80, 30]])


def test_objectness_of_mcg(tmp_path):
    one = {"boxes": np.float64([[1, 1, 20, 30], [6, 6, 25, 40]]), "scores": np.float64([[0.2], [0.9]])}
    scipy.io.savemat(tmp_path / "COCO_train2014_000000000009.mat", one)
    source = open_regions(tmp_path)
    np.testing.assert_allclose(source["9"].confidence, [0.2, 0.9], rtol=1e-6)
    boxed = add_proposals(images(["9"]), source)
    assert boxed["proposals"][:] == [[[0, 0, 30, 20], [5, 5, 40, 25]]]
    np.testing.assert_allclose(boxed["objectness"][0], [0.2, 0.9], rtol=1e-6)
    scipy.io.savemat(tmp_path / "COCO_train2014_000000000010.mat", {"scores": [1.0]})
    with pytest.raises(ValueError, match=r"has none of the variables \['boxes', 'bboxes'\]"):
        open_regions(tmp_path)["10"]


def test_cap2det_s_layout_written_and_read(tmp_path, monkeypatch):
    boxes = [[[0, 0, 50, 50], [25, 10, 100, 45]], [], None]
    data = images(["285", "139", "7"]).add_column("proposals", boxes)
    written, write = [], files.write_atomically
    monkeypatch.setattr(files, "write_atomically", lambda file, one: written.append(file.name) or write(file, one))
    folder = write_proposals(data.select([0, 0, 1, 2]), tmp_path / "out")
    assert written == ["285.npy", "139.npy"]  # an image once
    assert sorted(str(file.relative_to(folder)) for file in folder.rglob("*.npy")) == ["5/285.npy", "9/139.npy"]
    np.testing.assert_array_equal(np.load(folder / "5" / "285.npy"), np.float32([[0, 0, 1, 0.5], [0.2, 0.25, 0.9, 1]]))
    again = add_proposals(images(["285", "139"]), folder)
    assert again["proposals"][:] == boxes[:2]


def test_ids_keep_the_zeros_that_they_begin_with(tmp_path):
    data = images(["000012", "2007"]).add_column("proposals", [[[0, 0, 50, 50]], [[25, 10, 100, 45]]])
    folder = write_proposals(data, tmp_path / "out")
    assert sorted(str(file.relative_to(folder)) for file in folder.rglob("*.npy")) == ["2/000012.npy", "7/2007.npy"]
    assert add_proposals(images(["000012", "2007"]), folder)["proposals"][:] == data["proposals"][:]
    assert add_proposals(images(["12"]), folder)["proposals"][:] == data["proposals"][:1]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda data: data.remove_columns("proposals"), "`proposals` is not in the data.*Run `add_proposals`"),
        (lambda data: data.map(lambda row: {"image_id": "a.jpg"}), r"The image 'a\.jpg' has no number"),
        (
            lambda data: data.map(lambda row: {"image": None}, features=data.features),
            "'9' cannot be read, so its boxes",
        ),
    ],
)
def test_what_cannot_be_written(tmp_path, change, match):
    kind = {**images([]).features, "proposals": List(List(Value("float32"), length=4))}
    data = images(["9"]).add_column("proposals", [[[0, 0, 1, 1]]]).cast(Features(kind))
    with pytest.raises(ValueError, match=match):
        write_proposals(change(data), tmp_path)
