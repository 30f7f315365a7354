"""Files of regions in every format, written here by hand and read back."""

from __future__ import annotations

import base64
import json
import os
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hf_curriculum.data.left_out import LeftOut
from hf_curriculum.data.regions import arrays
from hf_curriculum.data.regions.arrays import FeatureFolder, ProposalFolder, RegionArchive, ids_of_files
from hf_curriculum.data.regions.base import Regions, RegionSource, stamp_of
from hf_curriculum.data.regions.open import open_regions
from hf_curriculum.data.regions.tables import (
    OscarFolder,
    RegionTable,
    SceneGraphTable,
    decode_floats,
    line_index_path,
    read_sizes,
    write_line_index,
)

RNG = np.random.default_rng(0)
BOXES = np.float32([[0, 0, 50, 20], [10, 20, 60, 100], [5, 5, 6, 7]])
FEATURES = RNG.random((3, 8), dtype=np.float32)
SCORES = RNG.dirichlet(np.ones(1601), size=3).astype(np.float32)


def packed(array):
    return base64.b64encode(np.ascontiguousarray(array, dtype="<f4").tobytes()).decode()


def write_table(path, *lines):
    path.write_text("".join("\t".join(map(str, line)) + "\n" for line in lines), encoding="utf-8")
    return path


def bottom_up(image_id, boxes=BOXES, features=FEATURES, *more):
    return [image_id, 100, 200, len(boxes), packed(boxes), packed(features), *map(packed, more)]


def test_shares_and_pixels():
    regions = Regions("9", boxes=BOXES, width=100, height=200)
    np.testing.assert_allclose(regions.area_shares(), [0.05, 0.2, 2 / 20000], rtol=1e-5)
    np.testing.assert_array_equal(regions.pixel_boxes(), BOXES)
    shares = Regions("9", boxes=BOXES / np.float32([100, 200, 100, 200]), normalised=True)
    np.testing.assert_allclose(shares.area_shares(), [0.05, 0.2, 2 / 20000], rtol=1e-5)
    np.testing.assert_allclose(shares.pixel_boxes(100, 200), BOXES, rtol=1e-5)
    assert len(Regions("9")) == 0


def test_regions_that_do_not_fit_together():
    with pytest.raises(ValueError, match="'boxes': 3, 'features': 2"):
        Regions("9", boxes=BOXES, features=FEATURES[:2])
    with pytest.raises(ValueError, match=r"shape \(3, 3\)"):
        Regions("9", boxes=BOXES[:, :3])
    with pytest.raises(ValueError, match=r"have no boxes, only \['features'\]"):
        Regions("9", features=FEATURES).area_shares()
    with pytest.raises(ValueError, match="are pixels and the image's width"):
        Regions("9", boxes=BOXES).area_shares()
    with pytest.raises(ValueError, match="are shares of the image and the image's width"):
        Regions("9", boxes=BOXES, normalised=True).pixel_boxes()


def test_a_stamp_is_that_of_what_links_lead_to(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "far").write_bytes(b"12345678")
    (tmp_path / "in" / "link").symlink_to(tmp_path / "far")
    assert stamp_of(tmp_path / "in")[0] == 8
    (tmp_path / "in" / "nothing").symlink_to("gone")
    total, before = stamp_of(tmp_path / "in")
    assert total == 8 + len("gone")
    (tmp_path / "far").write_bytes(b"1234567")
    assert stamp_of(tmp_path / "in")[1] != before


def test_a_source_must_exist_and_be_defined(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file or folder"):
        open_regions(tmp_path / "nothing.tsv")
    with pytest.raises(NotImplementedError, match="does not define `_find`"):
        len(RegionSource(tmp_path))
    with pytest.raises(NotImplementedError, match="does not define `_read`"):
        RegionSource(tmp_path)._read("9", 0)


def test_bottom_up_attention(tmp_path):
    empty = bottom_up(7, BOXES[:0], FEATURES[:0])
    path = write_table(tmp_path / "trainval.tsv", bottom_up(9), bottom_up("x", BOXES[:1], FEATURES[:1]), empty)
    source = open_regions(path)
    assert isinstance(source, RegionTable)
    assert list(source) == ["9", "x", "7"]
    assert 9 in source
    assert "8" not in source
    regions = source["9"]
    np.testing.assert_array_equal(regions.boxes, BOXES)
    np.testing.assert_array_equal(regions.features, FEATURES)
    assert (regions.width, regions.height, regions.normalised, regions.class_scores) == (100, 200, False, None)
    assert (len(source["x"]), len(source["7"])) == (1, 0)
    with pytest.raises(KeyError):
        source["8"]


def test_class_probabilities_and_lxmert(tmp_path):
    source = open_regions(write_table(tmp_path / "classes.tsv", bottom_up(9, BOXES, FEATURES, SCORES)))
    np.testing.assert_array_equal(source["9"].class_scores, SCORES)
    ids = base64.b64encode(np.arange(3).tobytes()).decode()
    confidence = np.float32([0.9, 0.5, 0.2])
    line = ["i", 200, 100, ids, packed(confidence), ids, packed(confidence), 3, packed(BOXES), packed(FEATURES)]
    regions = open_regions(write_table(tmp_path / "obj36.tsv", line))["i"]
    np.testing.assert_array_equal(regions.confidence, confidence)
    assert (regions.width, regions.height) == (100, 200)


def test_oscar_for_retrieval_has_boxes_in_its_features(tmp_path):
    shares = BOXES / np.float32([100, 200, 100, 200])
    sides = shares[:, 2:] - shares[:, :2]
    features = np.concatenate([RNG.random((3, 2048), dtype=np.float32), shares, sides], axis=1)
    regions = open_regions(write_table(tmp_path / "features.tsv", ["9", 3, packed(features)]))["9"]
    assert regions.normalised
    np.testing.assert_array_equal(regions.boxes, shares)
    assert regions.features.shape == (3, 2054)
    assert open_regions(write_table(tmp_path / "small.tsv", ["9", 3, packed(FEATURES)]))["9"].boxes is None


def test_columns_by_name_and_a_heading(tmp_path):
    path = write_table(tmp_path / "own.tsv", ["image_id", "num_boxes", "boxes"], ["9", 3, packed(BOXES)])
    with pytest.raises(ValueError, match="4 columns, and the layouts"):
        open_regions(write_table(tmp_path / "four.tsv", ["9", 1, 2, 3]))
    with pytest.raises(ValueError, match="the first must be `image_id`, and `num_boxes`"):
        RegionTable(path, fields=["image_id", "boxes"])
    source = RegionTable(path, fields=["image_id", "num_boxes", "boxes"])
    assert list(source) == ["9"]
    np.testing.assert_array_equal(source["9"].boxes, BOXES)


def test_sizes_are_checked(tmp_path):
    wrong = bottom_up(9)
    wrong[3] = 2
    with pytest.raises(ValueError, match=r"`boxes` of image '9' in .* has 48 bytes, which cannot be 2 rows of 4"):
        open_regions(write_table(tmp_path / "a.tsv", wrong))["9"]
    with pytest.raises(ValueError, match="is not base64"):
        decode_floats("abc*", 1, what="`features` of image '9'")
    with pytest.raises(ValueError, match="which cannot be 5 rows of equally many"):
        decode_floats(packed(FEATURES), 5, what="`features`")
    with pytest.raises(ValueError, match="which cannot be 0 rows"):
        decode_floats(packed(FEATURES), 0, what="`features`")
    cut = write_table(tmp_path / "b.tsv", bottom_up(8), bottom_up(9)[:4])
    with pytest.raises(ValueError, match="has 4 columns, not the 6"):
        open_regions(cut)["9"]
    with pytest.raises(ValueError, match="a line without a tab at byte"):
        len(open_regions(write_table(tmp_path / "c.tsv", bottom_up(8), ["9"])))


def test_images_twice_are_told(tmp_path, caplog):
    source = open_regions(write_table(tmp_path / "a.tsv", bottom_up(9), bottom_up(9, BOXES[:1], FEATURES[:1])))
    assert (len(source), len(source["9"])) == (1, 3)
    assert "1 lines for images it had before" in caplog.text


def test_the_index_of_lines_gives_the_same(tmp_path):
    path = write_table(tmp_path / "a.tsv", *(bottom_up(number) for number in range(20)))
    scanned = open_regions(path)
    places = dict(scanned._places)
    assert write_line_index(path) == line_index_path(path) == tmp_path / "a.lineidx"
    indexed = open_regions(path)
    assert indexed._places == places
    np.testing.assert_array_equal(indexed["17"].features, scanned["17"].features)
    (tmp_path / "a.lineidx").write_text("0\n17\n")
    with pytest.raises(ValueError, match="says that a line begins at byte 17"):
        len(open_regions(path))


def test_an_index_of_lines_that_is_cut_or_damaged_leaves_no_image_out(tmp_path):
    rows = [bottom_up(number) for number in range(5)]
    path = write_table(tmp_path / "a.tsv", *rows)
    path.write_text(path.read_text() + "\n")  # a blank line holds no image
    index = write_line_index(path)
    whole = index.read_text()
    assert len(open_regions(path)) == len(whole.split()) == 5
    lines = whole.splitlines()
    for text, told in (
        ("\n".join(lines[:-1]), "names 4 lines of .*a.tsv, which has more"),
        ("", "names 0 lines of .*, which has more"),
        (whole[:-2], "says that a line begins at byte|names 4 lines|is damaged"),
        ("\n".join([lines[1], lines[0], *lines[2:]]), "is damaged .*its numbers do not increase"),
        (whole.replace("\n", "x", 1), "is damaged .*invalid literal"),
    ):
        index.write_text(text)
        with pytest.raises(ValueError, match=rf"a\.lineidx {told}.*(write_line_index|Delete it)"):
            len(open_regions(path))
    index.unlink()
    index.symlink_to(tmp_path / "thesis.txt")
    write_line_index(path)
    assert not (tmp_path / "thesis.txt").exists()
    assert index.read_text() == whole


def test_sources_are_pickled_without_what_they_opened(tmp_path):
    source = open_regions(write_table(tmp_path / "a.tsv", bottom_up(9)))
    before = pickle.dumps(source)
    assert len(source["9"]) == 3
    assert pickle.dumps(source) == before
    assert len(pickle.loads(before)["9"]) == 3
    told = source.arguments()
    assert told["path"] == "a.tsv"
    assert str(tmp_path) not in json.dumps(told)
    assert repr(source).startswith("RegionTable(")
    assert source != open_regions(tmp_path / "a.tsv")  # compared without reading them
    assert len({source, source}) == 1


def test_predictions_of_scene_graph_benchmark(tmp_path):
    objects = [
        {"rect": box.tolist(), "class": name, "conf": 0.5, "feature": packed(row), "bbox_id": 0}
        for box, name, row in zip(BOXES, ("dog", "cat", "tree"), FEATURES, strict=True)
    ]
    plain = [{key: value for key, value in item.items() if key != "feature"} for item in objects]
    uneven = [*objects[:2], {**objects[2], "feature": packed(FEATURES[2, :5])}]
    lines = {"9": {"objects": objects, "relations": []}, "8": {"objects": plain}, "7": {"objects": []}}
    lines |= {"6": {"objects": uneven}, "5": {"relations": []}}
    path = write_table(tmp_path / "predictions.tsv", *([key, json.dumps(value)] for key, value in lines.items()))
    source = open_regions(path)
    assert isinstance(source, SceneGraphTable)
    regions = source["9"]
    np.testing.assert_array_equal(regions.boxes, BOXES)
    np.testing.assert_array_equal(regions.features, FEATURES)
    assert regions.classes == ("dog", "cat", "tree")
    assert regions.confidence.tolist() == [0.5] * 3
    assert source["8"].features is None
    assert len(source["7"]) == 0
    with pytest.raises(ValueError, match=r"`feature` of image '6' in .* has 20 bytes"):
        source["6"]
    with pytest.raises(ValueError, match=r"image '5' in .* has no `objects`"):
        source["5"]
    with pytest.raises(ValueError, match=r"image '9' in .* is not JSON"):
        SceneGraphTable(write_table(tmp_path / "cut.tsv", ["9", "{"]))["9"]
    with pytest.raises(ValueError, match="begins like JSON and is none"):
        open_regions(tmp_path / "cut.tsv")


def test_oscar_with_and_without_labels(tmp_path):
    shares = BOXES / np.float32([100, 200, 100, 200])
    features = np.concatenate([np.zeros((3, 2048)), shares, shares[:, 2:] - shares[:, :2]], axis=1)
    lines = {key: {"num_boxes": 3, "features": packed(features)} for key in ("9", "8")} | {"7": {"num_boxes": 3}}
    table = write_table(tmp_path / "features.tsv", *([key, json.dumps(value)] for key, value in lines.items()))
    unlabelled = open_regions(table)
    assert isinstance(unlabelled, OscarFolder)
    np.testing.assert_array_equal(unlabelled["9"].boxes, shares.astype(np.float32))
    assert unlabelled["9"].normalised
    labels = [{"class": "dog", "conf": 0.75, "rect": box.tolist()} for box in BOXES]
    write_table(tmp_path / "label.tsv", ["8", json.dumps(labels)], ["9", json.dumps(labels)])
    for name in ("features", "label"):
        write_line_index(tmp_path / f"{name}.tsv")
    source = open_regions(tmp_path)
    np.testing.assert_array_equal(source["9"].boxes, BOXES)
    assert not source["9"].normalised
    assert source["9"].confidence.tolist() == [0.75] * 3
    assert source.arguments()["labels"] == "label.tsv"
    with pytest.raises(ValueError, match=r"image '7' in .* has no `num_boxes` and `features`"):
        source["7"]


def test_a_folder_of_npy_as_cap2det_writes_it(tmp_path):
    shares = np.float32([[0.0, 0.0, 0.1, 0.5], [0.1, 0.1, 0.5, 0.6]])  # top, left, bottom, right
    (tmp_path / "9").mkdir()
    np.save(tmp_path / "9" / "139.npy", shares)
    np.save(tmp_path / "none.npy", np.zeros((0, 4)))
    source = open_regions(tmp_path)
    assert isinstance(source, ProposalFolder)
    assert sorted(source) == ["139", "none"]
    assert len(source) == 2
    np.testing.assert_array_equal(source["139"].boxes, shares[:, [1, 0, 3, 2]])
    np.testing.assert_allclose(source["139"].area_shares(), [0.05, 0.2], rtol=1e-5)
    assert len(source["none"]) == 0
    np.save(tmp_path / "pixels.npy", shares * 100)
    with pytest.raises(ValueError, match="go up to 60, so they are pixels"):
        open_regions(tmp_path)["pixels"]
    assert len(open_regions(tmp_path, normalised=False)["pixels"]) == 2


def test_a_folder_whose_files_have_changed_is_another_cache_key(tmp_path):
    (tmp_path / "9").mkdir()
    stamps = set()
    for share in (0.25, 0.5):
        np.save(tmp_path / "9" / "9.npy", np.float32([[0, 0, 1, share]]))
        os.utime(tmp_path / "9" / "9.npy", ns=(0, int(1e9 * share)))
        stamps.add(pickle.dumps(open_regions(tmp_path)))
    assert len(stamps) == 2
    assert open_regions(tmp_path).arguments()["bytes"] == (tmp_path / "9" / "9.npy").stat().st_size


def test_features_whose_boxes_beside_have_changed_are_another_cache_key(tmp_path):
    features, boxes = tmp_path / "bu_att", tmp_path / "bu_box"
    features.mkdir()
    boxes.mkdir()
    np.savez(features / "9.npz", feat=np.ones((1, 3), np.float32))
    np.save(boxes / "9.npy", np.float32([[0, 0, 10, 10]]))
    stamps = set()
    for time, file in enumerate((features / "9.npz", boxes / "9.npy", features / "9.npz")):
        os.utime(file, ns=(0, time))
        stamps.add(open_regions(features).stamp)
    assert len(stamps) == 3


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (
            ["a/COCO_train2014_000000000009.mat", "a/000.mat"],
            {
                "9": "a/COCO_train2014_000000000009.mat",
                "COCO_train2014_000000000009": "…",
                "0": "a/000.mat",
                "a/000": "…",
            },
        ),
        (["x_7.mat", "x_08.mat"], {"7": "x_7.mat", "8": "x_08.mat", "x_7": "…"}),
        (["x_7.mat", "y_7.mat", "y_8.mat", "9.mat"], {"7": None, "8": None, "9": "9.mat", "y_8": "y_8.mat"}),
        (["7.mat", "007.mat"], {"7": "7.mat", "007": "007.mat"}),
        (["07.mat", "007.mat"], {"7": None, "07": "07.mat"}),
        (
            ["train/1.mat", "val/1.mat", "val/2.mat"],
            {"1": None, "train/1": "train/1.mat", "val/1": "…", "2": "val/2.mat"},
        ),
        (["1.mat", "val/1.mat"], {"1": "1.mat", "val/1": "val/1.mat"}),
        (["v1.0_a.mat", "v1.0_b.mat"], {"v1.0_a": "v1.0_a.mat", "v1": None, "0": None}),
    ],
)
def test_each_id_is_of_one_file_alone(names, wanted):
    places = ids_of_files(Path("f"), [Path("f", name) for name in names], LeftOut())
    for image_id, name in wanted.items():
        found = places.get(image_id)
        assert found == (None if name is None else f"f/{name}") if name != "…" else found is not None


def test_files_of_one_name_and_hidden_ones_in_a_folder_of_features(tmp_path, caplog):
    for number, name in enumerate(("a/1", "b/1", "b/2", ".ipynb_checkpoints/3", "__MACOSX/4")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        np.save(tmp_path / f"{name}.npy", np.full((1, 8), number, np.float32))
    (tmp_path / "._5.npy").write_bytes(b"\0\5")
    found = open_regions(tmp_path)
    assert {image_id: regions.features[0, 0] for image_id, regions in found.items()} == {"a/1": 0, "b/1": 1, "2": 2}
    assert len(found) == 3
    assert "1" not in found
    assert "hidden files and folders: 3" in caplog.text
    assert "names that several files have, which their folders tell apart: 1 (1, for example)" in caplog.text


def test_a_name_that_stands_for_two_images_is_refused(tmp_path):
    for entries, message in (
        ({"x": BOXES, "x/boxes": BOXES}, "has the entry 'x/boxes', and whose it is is not known"),
        ({"a/boxes": BOXES, "features": BOXES}, "has the entry 'features', and whose it is is not known"),
    ):
        np.savez(tmp_path / "a.npz", **entries)
        with pytest.raises(ValueError, match=message):
            list(open_regions(tmp_path / "a.npz"))
    scipy_io = pytest.importorskip("scipy.io")
    boxes = cells(np.ones((1, 4)), np.ones((1, 4)))
    scipy_io.savemat(tmp_path / "a.mat", {"boxes": boxes, "images": cells("x", "x")})
    with pytest.raises(ValueError, match=r"boxes of 'x' twice .*leave one of them"):
        open_regions(tmp_path / "a.mat")["x"]
    (tmp_path / "a.hw.tsv").write_text("x\t4 5\nx\t4 5\nx\t5 4\n")
    with pytest.raises(ValueError, match=r"two sizes, \(5\.0, 4\.0\) and \(4\.0, 5\.0\)"):
        read_sizes(str(tmp_path / "a.hw.tsv"))


def test_folders_that_are_none(tmp_path):
    with pytest.raises(
        ValueError, match=r"holds no regions: .* neither \.npz, \.npy nor \.mat .*found by a model first"
    ):
        open_regions(tmp_path)
    with pytest.raises(ValueError, match=r"neither \.npy nor \.mat"):
        ProposalFolder(tmp_path)
    np.save(tmp_path / "1.npy", BOXES)
    (tmp_path / "1.mat").write_bytes(b"")
    with pytest.raises(ValueError, match=r"both \.npy and \.mat"):
        open_regions(tmp_path)


def test_boxes_in_other_orders(tmp_path):
    np.savez(tmp_path / "a.npz", **{"9": BOXES, "9/size": [100, 200], "8/class_scores": SCORES, "7": [[1, 2, 3]]})
    source = open_regions(tmp_path / "a.npz")
    assert isinstance(source, RegionArchive)
    assert sorted(source) == ["7", "8", "9"]
    np.testing.assert_array_equal(source["9"].boxes, BOXES)
    assert (source["9"].width, source["9"].height) == (100, 200)
    np.testing.assert_array_equal(source["8"].class_scores, SCORES)
    wide = open_regions(tmp_path / "a.npz", order="xywh")["9"]
    np.testing.assert_array_equal(wide.boxes[1], [10, 20, 70, 120])
    with pytest.raises(ValueError, match=r"boxes of image '7' in .* have the shape \(1, 3\)"):
        source["7"]
    np.savez(tmp_path / "b.npz", **{"9": [[50, 60, 10, 10]]})
    with pytest.raises(ValueError, match="ends before it begins, so it is not 'xyxy'"):
        open_regions(tmp_path / "b.npz")["9"]
    with pytest.raises(ValueError, match="`order` is 'yx'"):
        open_regions(tmp_path / "b.npz", order="yx")
    np.savez(tmp_path / "c.npz", **{"9/bboxes": BOXES})
    with pytest.raises(ValueError, match="has the entry '9/bboxes'"):
        len(open_regions(tmp_path / "c.npz"))
    (tmp_path / "a.csv").write_text("9")
    with pytest.raises(ValueError, match="is no archive of regions"):
        open_regions(tmp_path / "a.csv")


def test_hdf5(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["9"] = BOXES
        file["8/boxes"] = BOXES[:1]
        file["8/class_scores"] = SCORES[:1]
        file["8/confidence"] = np.float32([0.5])
    source = open_regions(tmp_path / "a.h5")
    assert sorted(source) == ["8", "9"]
    np.testing.assert_array_equal(source["9"].boxes, BOXES)
    np.testing.assert_array_equal(source["8"].class_scores, SCORES[:1])
    assert source.packages == ("h5py",)
    assert len(pickle.loads(pickle.dumps(source))["8"]) == 1


MATLAB_BOXES = np.float64([[1, 1, 20, 50], [21, 11, 100, 60]])  # top, left, bottom, right, from 1
AS_READ = np.float32([[0, 0, 50, 20], [10, 20, 60, 100]])


def test_mcg_files_of_both_versions(tmp_path):
    scipy_io, h5py = pytest.importorskip("scipy.io"), pytest.importorskip("h5py")
    name = "COCO_train2014_000000000009.mat"
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    scipy_io.savemat(tmp_path / "old" / name, {"bboxes": MATLAB_BOXES, "scores": np.ones((2, 1)), "labels": [1, 2]})
    with h5py.File(tmp_path / "new" / name, "w", userblock_size=512) as file:
        file["boxes"] = MATLAB_BOXES.T  # HDF5 has MATLAB's axes reversed
    for folder in ("old", "new"):
        np.testing.assert_array_equal(open_regions(tmp_path / folder)["9"].boxes, AS_READ)
    scipy_io.savemat(tmp_path / "old" / name, {"scores": np.ones((2, 1))})
    with pytest.raises(ValueError, match="none of the variables"):
        open_regions(tmp_path / "old")["9"]
    (tmp_path / "old" / name).write_bytes(b"no matlab file at all" * 20)
    with pytest.raises(ValueError, match="is no MATLAB file"):
        open_regions(tmp_path / "old")["9"]


def cells(*values):
    array = np.empty((1, len(values)), dtype=object)
    array[0] = [*values, None][:-1]
    return array


def test_matlab_files_of_many_images(tmp_path):
    scipy_io, h5py = pytest.importorskip("scipy.io"), pytest.importorskip("h5py")
    both = {"boxes": cells(MATLAB_BOXES, MATLAB_BOXES[:1]), "images": cells("000009", "000012")}
    scipy_io.savemat(tmp_path / "old.mat", both)
    with h5py.File(tmp_path / "new.mat", "w", userblock_size=512) as file:
        file["boxes"] = np.empty((2, 1), dtype=h5py.ref_dtype)
        file["images"] = np.empty((2, 1), dtype=h5py.ref_dtype)
        for row, (boxes, image) in enumerate(zip(both["boxes"][0], both["images"][0], strict=True)):
            file[f"#refs#/b{row}"] = boxes.T
            file[f"#refs#/i{row}"] = np.uint16([[ord(letter)] for letter in image])
            file[f"#refs#/i{row}"].attrs["MATLAB_class"] = np.bytes_("char")
            file["boxes"][row, 0] = file[f"#refs#/b{row}"].ref
            file["images"][row, 0] = file[f"#refs#/i{row}"].ref
        file["#refs#/empty"] = np.uint64([0, 0])
        file["#refs#/empty"].attrs["MATLAB_empty"] = 1
    for name in ("old.mat", "new.mat"):
        source = open_regions(tmp_path / name)
        assert list(source) == ["000009", "000012"]
        np.testing.assert_array_equal(source["000009"].boxes, AS_READ)
        assert len(source["000012"]) == 1
    with h5py.File(tmp_path / "new.mat", "a") as file:
        file["boxes"][1, 0] = file["#refs#/empty"].ref
    assert len(open_regions(tmp_path / "new.mat")["000012"]) == 0
    scipy_io.savemat(tmp_path / "old.mat", {**both, "images": cells("000009")})
    with pytest.raises(ValueError, match="two cell arrays of equal length"):
        len(open_regions(tmp_path / "old.mat"))


@pytest.mark.parametrize("missing", ["h5py", "scipy.io"])
def test_missing_readers_are_named(tmp_path, monkeypatch, missing):
    scipy_io, h5py = pytest.importorskip("scipy.io"), pytest.importorskip("h5py")
    scipy_io.savemat(tmp_path / "5.mat", {"boxes": cells(MATLAB_BOXES), "images": cells("9")})
    for name in ("7.mat", "9.h5"):
        with h5py.File(tmp_path / name, "w") as file:
            file["boxes"] = MATLAB_BOXES
    monkeypatch.setitem(sys.modules, missing, None)
    files = ("5.mat",) if missing == "scipy.io" else ("7.mat", "9.h5")
    for name in files:
        with pytest.raises(ImportError, match=r"pip install 'hf-curriculum\[detection\]'"):
            len(open_regions(tmp_path / name))


@pytest.mark.parametrize(
    ("shape", "reader"),
    [((3, 8), FeatureFolder), ((3, 4), ProposalFolder), ((8,), ProposalFolder), ((0, 0), ProposalFolder)],
)
def test_what_a_folder_of_npy_holds_is_told_by_its_first_array(tmp_path, shape, reader):
    np.save(tmp_path / "1.npy", np.zeros(shape, np.float32))
    assert type(open_regions(tmp_path)) is reader


def test_boxes_without_area_and_the_fewest_features_of_an_archive(tmp_path):
    flat = np.float32([[5, 5, 5, 9], [3, 4, 8, 4]])
    parts = {"flat": flat, "16": np.ones((3, 16)), "15": np.ones((3, 15)), "nan": flat * np.nan}
    np.savez(tmp_path / "a.npz", **parts)
    source = open_regions(tmp_path / "a.npz")
    np.testing.assert_array_equal(source["flat"].boxes, flat)
    assert source["16"].features.shape == (3, 16)
    for name, shape in (("15", r"\(3, 15\)"), ("nan", r"\(2, 4\)")):
        with pytest.raises(ValueError, match=rf"boxes of image '{name}' .* have the shape {shape}, or are not finite"):
            source[name]
    place, found = next(source.scan(1))
    assert (place, found.image_id) == (2, "16")
    edge = np.float32([[0, 0, 1, 1.5]])
    np.savez(tmp_path / "b.npz", **{"9": edge})
    np.testing.assert_array_equal(open_regions(tmp_path / "b.npz", normalised=True)["9"].boxes, edge)
    packages = [open_regions(tmp_path / "a.npz").packages, *(arrays.RegionArchive.packages.fget(one) for one in (
        SimpleNamespace(kind=".mat"), SimpleNamespace(kind=".hdf5")))]  # fmt: skip
    assert packages == [(), ("h5py", "scipy"), ("h5py",)]


@pytest.mark.parametrize("kind", ["npz", "h5"])
def test_an_array_of_exactly_the_most_bytes_is_read(tmp_path, monkeypatch, kind):
    file = tmp_path / f"a.{kind}"
    if kind == "npz":
        np.savez(file, **{"9": BOXES})
    else:
        with pytest.importorskip("h5py").File(file, "w") as made:
            made["9"] = BOXES
    size = BOXES.nbytes + 128 * (kind == "npz")  # with the header of .npy
    monkeypatch.setattr(arrays, "MOST_BYTES", size)
    np.testing.assert_array_equal(open_regions(file)["9"].boxes, BOXES)
    monkeypatch.setattr(arrays, "MOST_BYTES", size - 1)
    with pytest.raises(ValueError, match=rf"claims {size} bytes"):
        open_regions(file)["9"]


@pytest.mark.parametrize("name", ["x.tsv", "9.npz", "9.mat"])
def test_a_fifo_is_not_opened(tmp_path, name):
    os.mkfifo(tmp_path / name)
    held = os.open(tmp_path / name, os.O_RDWR)  # whoever opens it for reading does not wait
    os.write(held, b"9\t3\tAAAA\n" * 9)
    for path in (tmp_path / name, tmp_path):
        with pytest.raises(ValueError, match=r"is a FIFO, not a file with regions|holds no regions"):
            open_regions(path)["9"]
    os.close(held)


def test_blank_lines_of_a_table_and_edges_of_its_boxes(tmp_path):
    path = write_table(tmp_path / "a.tsv", bottom_up(9), [""], bottom_up(8))
    source = open_regions(path)
    assert list(source) == [one.image_id for _, one in source.scan()] == ["9", "8"]
    edges = np.float32([[-2, -3, 102, 203], [7, 7, 7, 7]])  # a hundredth and a pixel beyond 100 × 200
    found = open_regions(write_table(tmp_path / "b.tsv", bottom_up(9, edges, FEATURES[:2])))["9"]
    np.testing.assert_array_equal(found.boxes, edges)
    for place, step in enumerate((-0.1, -0.1, 0.1, 0.1)):
        beyond = edges[:1].copy()
        beyond[0, place] += step
        with pytest.raises(ValueError, match=r"Box 0 .*lies beyond the picture of 100 × 200 pixels\."):
            open_regions(write_table(tmp_path / "c.tsv", bottom_up(9, beyond, FEATURES[:1])))["9"]
    fields = ["image_id", "num_boxes", "boxes", "image_w"]
    alone = RegionTable(write_table(tmp_path / "d.tsv", ["9", 1, packed(BOXES[2:] - 5), 1]), fields=fields)
    assert (alone["9"].width, alone["9"].height) == (1, None)
    with pytest.raises(ValueError, match=r"Box 0 .*lies beyond the picture of 1 × inf pixels\."):
        RegionTable(write_table(tmp_path / "d.tsv", ["9", 3, packed(BOXES), 1]), fields=fields)["9"]
    with pytest.raises(ValueError, match="the first must be `image_id`"):
        RegionTable(path, fields=["num_boxes", "image_id"])
    assert decode_floats("", 0, what="x").shape == (0, 0)
    with pytest.raises(ValueError, match="x is not base64"):
        decode_floats("AAAA*AAAAAAA", 1, what="x")


def test_what_stands_beside_a_table_is_read_once(tmp_path, monkeypatch):
    from hf_curriculum.data.regions import tables as tsv

    reads = []
    for name in ("read_sizes", "find_lines"):
        real = getattr(tsv, name)
        monkeypatch.setattr(tsv, name, lambda path, name=name, real=real: reads.append(name) or real(path))
    labels = json.dumps([{"class": "dog", "conf": 1, "rect": [0, 0, 1, 1]}])
    write_table(tmp_path / "label.tsv", ["9", labels], ["8", labels])
    one = json.dumps({"num_boxes": 1, "features": packed(FEATURES[:1])})
    write_table(tmp_path / "features.tsv", ["9", one], ["8", one])
    assert [found.classes for found in open_regions(tmp_path).values()] == [("dog",), ("dog",)]
    assert reads == ["find_lines", "find_lines"]  # the table's own, and the labels'
    reads.clear()
    write_table(tmp_path / "predictions.tsv", ["9", '{"objects": []}'], ["8", '{"objects": []}'])
    write_table(tmp_path / "predictions.hw.tsv", ["9", "20 10"], ["8", "40 30"])
    assert [found.width for found in SceneGraphTable(tmp_path / "predictions.tsv").values()] == [10, 30]
    assert reads == ["find_lines", "read_sizes"]
