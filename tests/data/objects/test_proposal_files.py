"""Files of proposals: Detectron's pickles, which load arrays alone, MCG's scores, and Cap2Det's layout written."""

from __future__ import annotations

import _codecs
import io
import os
import pickle
import struct

import numpy as np
import pytest
import scipy.io
from datasets import Dataset, Features, Image, List, Value
from PIL import Image as Pillow

from hf_curriculum import add_proposals, open_regions, write_proposals
from hf_curriculum.data.regions.readers.pickles import DetectronProposals, read_plain_pickle

BOXES = [np.float32([[0, 0, 30, 20], [5, 5, 40, 25]]), np.zeros((0, 4), np.float32)]
SCORES = [np.float32([0.25, 3.5]), np.zeros(0, np.float32)]


def images(ids, size=(100, 50)):
    file = io.BytesIO()
    Pillow.new("RGB", size).save(file, "png")
    rows = {"image": [{"bytes": file.getvalue(), "path": None}] * len(ids), "image_id": ids}
    return Dataset.from_dict(rows, features=Features({"image": Image(), "image_id": Value("string")}))


def pickled(tmp_path, content, protocol=4, name="proposals.pkl"):
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content, protocol=protocol))
    return file


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("names", [("ids", "objectness_logits"), ("indexes", "scores")])
def test_detectron_s_pickles_of_any_protocol(tmp_path, protocol, names):
    content = {"boxes": BOXES, names[0]: np.array([9, 285]), names[1]: SCORES, "cfg": {"x": [1, 2.5, "text", None]}}
    source = open_regions(pickled(tmp_path, content, protocol))
    assert isinstance(source, DetectronProposals)
    assert list(source) == ["9", "285"]
    np.testing.assert_array_equal(source["9"].boxes, BOXES[0])
    np.testing.assert_array_equal(source["9"].confidence, SCORES[0])
    assert len(pickle.loads(pickle.dumps(source))["285"]) == 0
    boxed = add_proposals(images(["285", "9"]), source)
    assert boxed["proposals"][:] == [[], BOXES[0].tolist()]
    assert boxed["objectness"][:] == [[], [0.25, 3.5]]


def test_ids_that_are_numbers_of_numpy_and_boxes_in_one_object_array(tmp_path):
    boxes = np.empty(2, object)
    boxes[:] = BOXES
    content = {"boxes": boxes, "ids": [np.int64(9), np.int64(7)]}
    source = open_regions(pickled(tmp_path, content))
    assert source["9"].confidence is None
    np.testing.assert_array_equal(source["9"].boxes, BOXES[0])


def test_of_python_2(tmp_path):
    """Bytes of arrays are texts there, which protocol 2 of Python 3 writes by a codec."""
    values = np.float32([[1, 2, 3, 4]])
    text = pickle.dumps({"boxes": [values], "ids": ["a"]}, protocol=2)
    assert b"_codecs" in text
    np.testing.assert_array_equal(open_regions(pickled(tmp_path, text))["a"].boxes, values)


class Code:
    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        ((os.system, ("touch {file}",)), r"wants to load `posix\.system`"),
        ((eval, ("open('{file}', 'w')",)), r"wants to load `(builtins|__builtin__)\.eval`"),
        ((getattr, ("text", "upper")), r"wants to load `(builtins|__builtin__)\.getattr`"),
        ((open, ("{file}", "w")), r"wants to load `.*\.open`"),
        ((np.load, ("x.npy",)), r"wants to load `numpy.*\.load`"),
        ((np.memmap, ("{file}", "u1", "w+", 0, (1,))), r"wants to load `numpy.*memmap`"),
        ((io.BytesIO, ()), r"wants to load `_io\.BytesIO`"),
    ],
)
@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_a_pickle_with_code_loads_nothing_and_says_what_it_wanted(tmp_path, call, wanted, protocol):
    file = tmp_path / "made"
    function, arguments = call
    arguments = tuple(text.format(file=file) if isinstance(text, str) else text for text in arguments)
    content = {"boxes": BOXES, "ids": [1, 2], "scores": Code(function, arguments)}
    text = pickle.dumps(content, protocol=protocol)
    with pytest.raises(ValueError, match=wanted) as caught:
        len(open_regions(pickled(tmp_path, text)))
    assert "np.savez('proposals.npz'" in str(caught.value)
    assert not file.exists()


def test_nothing_of_ours_can_be_changed_by_a_pickle(tmp_path):
    """BUILD sets attributes of what was loaded, as of a function."""
    before = read_plain_pickle(pickled(tmp_path, {"ids": [1]}))
    for module, name in (("numpy.core.numeric", "_frombuffer"), ("_codecs", "encode"), ("numpy", "ndarray")):
        change = b"\x80\x02c" + f"{module}\n{name}\n".encode() + b"N}X\x08\x00\x00\x00__call__K\x01s\x86b."
        with pytest.raises(ValueError, match="cannot be read as a pickle of arrays"):
            read_plain_pickle(pickled(tmp_path, change))
    other = pickled(tmp_path, Code(_codecs.encode, ("x", "zlib_codec")), protocol=2)
    with pytest.raises(ValueError, match="bytes in the encoding 'zlib_codec'"):
        read_plain_pickle(other)
    assert read_plain_pickle(pickled(tmp_path, {"ids": [1]})) == before


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ({"boxes": BOXES}, r"holds \['boxes'\], and a mapping with `boxes` and `ids`"),
        ([1, 2], "holds list, and a mapping"),
        ({"boxes": BOXES, "ids": [1]}, r"has {'boxes': 2, 'ids': 1}"),
        ({"boxes": BOXES, "ids": [1, 2], "scores": SCORES[:1]}, "'scores': 1}: each part has an entry per image"),
        (b"no pickle", "cannot be read as a pickle of arrays"),
        (b"", r"cannot be read as a pickle of arrays \(EOFError"),
        (pickle.dumps({"boxes": BOXES, "ids": [1, 2]})[:-20], "cannot be read as a pickle of arrays"),
        (struct.pack("<cB", b"\x80", 99), "unsupported pickle protocol"),
    ],
)
def test_damaged_and_other_pickles(tmp_path, content, match):
    with pytest.raises(ValueError, match=match):
        len(open_regions(pickled(tmp_path, content)))


def test_boxes_as_widths(tmp_path):
    content = {"boxes": [np.float32([[50, 20, 30, 10]])], "ids": ["a"]}
    with pytest.raises(ValueError, match=r"ends before it begins, so it is not 'xyxy'.*is \"xywh\""):
        open_regions(pickled(tmp_path, content))["a"]
    found = open_regions(pickled(tmp_path, content), order="xywh")["a"]
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


def test_cap2det_s_layout_written_and_read(tmp_path):
    boxes = [[[0, 0, 50, 50], [25, 10, 100, 45]], [], None]
    data = images(["285", "139", "7"]).add_column("proposals", boxes)
    folder = write_proposals(data.select([0, 0, 1, 2]), tmp_path / "out")
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
