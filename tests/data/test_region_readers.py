"""Folders of features per image, VinVL's sizes, and pickles, which are never opened."""

from __future__ import annotations

import base64
import json
import pickle

import numpy as np
import pytest
import torch

from hf_curriculum.data.regions.arrays import FeatureFolder
from hf_curriculum.data.regions.open import open_regions
from hf_curriculum.data.regions.pack import pack_regions
from hf_curriculum.data.regions.tables import RegionTable, SceneGraphTable, read_sizes

RNG = np.random.default_rng(0)
FEATURES = RNG.random((3, 8), dtype=np.float32)
BOXES = np.float32([[0, 0, 50, 20], [10, 20, 60, 100], [5, 5, 6, 7]])


def packed(array):
    return base64.b64encode(np.ascontiguousarray(array, dtype="<f4").tobytes()).decode()


@pytest.fixture
def cocobu(tmp_path):
    """The folders of the reference repositories."""
    for name in ("att", "box", "fc"):
        (tmp_path / f"cocobu_{name}").mkdir()
    for number, key in ((9, "feat"), (139, "z")):
        np.savez_compressed(tmp_path / "cocobu_att" / f"{number}.npz", **{key: FEATURES * number})
        np.save(tmp_path / "cocobu_box" / f"{number}.npy", BOXES)
        np.save(tmp_path / "cocobu_fc" / f"{number}.npy", FEATURES.mean(0))
    return tmp_path


def test_the_folders_of_the_reference_repositories(cocobu):
    source = open_regions(cocobu / "cocobu_att")
    assert isinstance(source, FeatureFolder)
    assert sorted(source) == ["139", "9"]
    assert len(source) == 2
    for number in (9, 139):
        np.testing.assert_array_equal(source[str(number)].features, FEATURES * number)
        np.testing.assert_array_equal(source[str(number)].boxes, BOXES)
    assert source["9"].width is None
    told = source.arguments()
    assert (told["path"], told["boxes"]) == ("cocobu_att", "cocobu_box")
    assert str(cocobu) not in json.dumps(told)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(source))["9"].boxes, BOXES)
    store = pack_regions(source, cocobu / "store", dtype="float32", progress=False)
    np.testing.assert_array_equal(store["139"].features, FEATURES * 139)
    np.testing.assert_array_equal(store["9"].boxes, BOXES)


def test_boxes_of_another_folder_or_of_none(cocobu):
    (cocobu / "cocobu_box").rename(cocobu / "boxes")
    assert open_regions(cocobu / "cocobu_att")["9"].boxes is None
    np.testing.assert_array_equal(open_regions(cocobu / "cocobu_att", boxes=cocobu / "boxes")["9"].boxes, BOXES)
    with pytest.raises(FileNotFoundError, match="no folder of boxes"):
        open_regions(cocobu / "cocobu_att", boxes=cocobu / "cocobu_box")
    (cocobu / "boxes" / "9.npy").unlink()
    assert open_regions(cocobu / "cocobu_att", boxes=cocobu / "boxes")["9"].boxes is None
    np.savez(cocobu / "boxes" / "9.npz", bbox=BOXES)
    np.testing.assert_array_equal(open_regions(cocobu / "cocobu_att", boxes=cocobu / "boxes")["9"].boxes, BOXES)


def one_line(path, features, dtype):
    boxes = base64.b64encode(np.float32([[0, 0, 8, 6]] * len(features)).tobytes()).decode()
    numbers = base64.b64encode(np.asarray(features, dtype).tobytes()).decode()
    path.write_text(f"9\t32\t24\t{len(features)}\t{boxes}\t{numbers}\n")
    return path


@pytest.mark.parametrize("rectified", [False, True])
def test_tables_of_float16(tmp_path, rectified):
    features = np.random.default_rng(3).normal(size=(10, 2048)).astype(np.float16)
    features = np.maximum(features, 0) if rectified else features
    table = one_line(tmp_path / "half.tsv", features, "<f2")
    with pytest.raises(
        ValueError, match=r"`features` of image '9' in .*half.tsv holds float16 numbers.*dtype='float16'"
    ):
        open_regions(table)["9"]
    store = pack_regions(open_regions(table, dtype="float16"), tmp_path / "store", progress=False)
    np.testing.assert_array_equal(store["9"].features, features)
    np.testing.assert_array_equal(store["9"].boxes, [[0, 0, 8, 6]] * 10)
    with pytest.raises(ValueError, match="`dtype='int8'` was given"):
        open_regions(table, dtype="int8")


def test_tables_of_float32_are_never_taken_for_float16(tmp_path):
    numbers = np.random.default_rng(3).random((10, 2048)).astype(np.float32)
    rounded = (
        numbers.astype(np.float16),
        numbers.round(1),
        numbers.round(4),
        (numbers * 1e6).round(),
        numbers.round(),
    )
    for features in (numbers, -numbers, numbers * 1e-6, numbers * 1e4, *rounded):
        found = open_regions(one_line(tmp_path / "full.tsv", features, "<f4"))["9"]
        np.testing.assert_array_equal(found.features, np.float32(features))


@pytest.mark.parametrize("shape", [(2048, 7, 7), (2048, 7, 10), (8, 1, 1)])
def test_maps_with_their_dims_first_are_refused(tmp_path, shape):
    grid = RNG.random(shape, dtype=np.float32)
    (tmp_path / "grids").mkdir()
    np.save(tmp_path / "grids" / "9.npy", grid)
    with pytest.raises(ValueError, match=r"as torch writes a map: \(dims, rows, columns\).*np.moveaxis"):
        open_regions(tmp_path / "grids")["9"]
    np.save(tmp_path / "grids" / "9.npy", np.moveaxis(grid, 0, -1))
    np.testing.assert_array_equal(open_regions(tmp_path / "grids")["9"].features, grid.reshape(shape[0], -1).T)


def test_a_folder_of_archives(tmp_path):
    (tmp_path / "a.h5").touch()
    with pytest.raises(ValueError, match=r"holds HDF5 files, 'a.h5' for example.*pack_regions\('FOLDER/\*.h5'"):
        open_regions(tmp_path)


def test_features_as_npy_and_grids(tmp_path):
    (tmp_path / "rows").mkdir()
    np.save(tmp_path / "rows" / "COCO_val2014_000000000009.npy", FEATURES)
    source = open_regions(tmp_path / "rows")
    assert isinstance(source, FeatureFolder)
    np.testing.assert_array_equal(source["9"].features, FEATURES)
    (tmp_path / "grids").mkdir()
    grid = RNG.random((2, 4, 8), dtype=np.float32)
    np.savez(tmp_path / "grids" / "9.npz", feat=grid)
    found = open_regions(tmp_path / "grids")["9"]
    np.testing.assert_array_equal(found.features, grid.reshape(8, 8))
    assert found.normalised
    np.testing.assert_allclose(found.boxes[5], [0.25, 0.5, 0.5, 1])
    np.testing.assert_allclose(found.area_shares(), np.full(8, 1 / 8))


def test_all_in_one_npz(tmp_path):
    np.savez(
        tmp_path / "9.npz", x=FEATURES, bbox=BOXES, num_bbox=3, image_w=100, image_h=200, confidence=[0.9, 0.5, 0.2]
    )
    found = open_regions(tmp_path)["9"]
    np.testing.assert_array_equal(found.boxes, BOXES)
    np.testing.assert_array_equal(found.confidence, np.float32([0.9, 0.5, 0.2]))
    assert (found.width, found.height) == (100, 200)


def test_the_only_array_of_an_npz_is_the_features_whatever_its_name(tmp_path):
    np.savez(tmp_path / "9.npz", pooled=FEATURES)
    np.testing.assert_array_equal(open_regions(tmp_path)["9"].features, FEATURES)
    np.savez(tmp_path / "9.npz", pooled=FEATURES, other=FEATURES)
    with pytest.raises(ValueError, match=r"9\.npz has none of the arrays"):
        open_regions(tmp_path)["9"]


def test_folders_that_do_not_fit(tmp_path):
    np.savez(tmp_path / "9.npz", boxes=BOXES)
    with pytest.raises(ValueError, match=r"9\.npz has none of the arrays \['feat', 'z', 'features', 'x'\]"):
        open_regions(tmp_path)["9"]
    np.savez(tmp_path / "9.npz", feat=np.zeros(3))
    with pytest.raises(ValueError, match=r"features of image '9' .* have the shape \(3,\)"):
        open_regions(tmp_path)["9"]
    np.save(tmp_path / "8.npy", FEATURES)
    with pytest.raises(ValueError, match=r"has both \.npz and \.npy files"):
        FeatureFolder(tmp_path)


@pytest.mark.parametrize("name", ["train_captions.pt", "features.pth", "folder/9.pt", "folder/9.pkl"])
def test_pickles_are_refused_with_how_to_convert_them(tmp_path, name):
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    torch.save({"9": torch.zeros(2, 3)}, file)
    path = file.parent if "/" in name else file
    with pytest.raises(ValueError, match=r"holds pickled Python objects.*convert it once.*np\.savez"):
        open_regions(path)


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_arrays_of_objects_are_refused_too(tmp_path, suffix):
    objects = np.array([{"features": 1}], dtype=object)
    if suffix == ".npy":
        np.save(tmp_path / "9.npy", objects, allow_pickle=True)
    else:
        np.savez(tmp_path / "9.npz", feat=objects)
    with pytest.raises(ValueError, match=rf"9\{suffix} holds pickled Python objects.*allow_pickle=False"):
        open_regions(tmp_path)["9"]


def predictions(path, *ids):
    objects = [
        {"rect": box.tolist(), "class": "dog", "conf": 0.5, "feature": packed(row)}
        for box, row in zip(BOXES, FEATURES, strict=True)
    ]
    path.write_text("".join(f"{image_id}\t{json.dumps({'objects': objects})}\n" for image_id in ids))


def test_sizes_of_vinvl(tmp_path):
    predictions(tmp_path / "predictions.tsv", "a", "b", "c", "d")
    (tmp_path / "train.hw.tsv").write_text(
        'a\t[{"height": 200, "width": 100}]\nb\t{"height": 20, "width": 10}\nc\t480 640\n'
    )
    source = open_regions(tmp_path)
    assert isinstance(source, SceneGraphTable)
    sizes = {image_id: (source[image_id].width, source[image_id].height) for image_id in source}
    assert sizes == {"a": (100, 200), "b": (10, 20), "c": (640, 480), "d": (None, None)}
    np.testing.assert_allclose(source["a"].area_shares(), [0.05, 0.2, 2 / 20000], rtol=1e-5)
    assert source.arguments()["sizes"] == "train.hw.tsv"
    assert [len(found) for _, found in pickle.loads(pickle.dumps(source)).scan()] == [3] * 4
    store = pack_regions(str(tmp_path / "*.tsv"), tmp_path / "store", dtype="float32", progress=False)
    assert (store["a"].width, store["d"].height, store["a"].classes) == (100, None, ("dog",) * 3)
    np.testing.assert_array_equal(store["c"].features, FEATURES)


def test_which_sizes_belong_to_a_table(tmp_path):
    predictions(tmp_path / "predictions.tsv", "a")
    for name in ("train", "val"):
        (tmp_path / f"{name}.hw.tsv").write_text("a\t10 20\n")
    source = open_regions(tmp_path)
    assert (source.sizes, source["a"].width) == (None, None)
    assert "sizes" not in source.arguments()
    assert open_regions(tmp_path, sizes=tmp_path / "val.hw.tsv")["a"].width == 20
    (tmp_path / "predictions.hw.tsv").write_text("a\t30 40\n")
    assert open_regions(tmp_path)["a"].width == 40
    with pytest.raises(FileNotFoundError, match="no regions at"):
        SceneGraphTable(tmp_path, sizes=tmp_path / "test.hw.tsv")


@pytest.mark.parametrize("text", ["480", '[{"height": 480}]', "[]", '{"height": 480', "x y", "nan 4", "-4 0"])
def test_sizes_that_are_none(tmp_path, text):
    (tmp_path / "a.hw.tsv").write_text(f"9\t{text}\n")
    with pytest.raises(ValueError, match=r"image '9' in .*a\.hw\.tsv holds no image size"):
        read_sizes(str(tmp_path / "a.hw.tsv"))


def test_a_table_in_parts(tmp_path):
    row = "\t".join(map(str, [9, 100, 200, 3, packed(BOXES), packed(FEATURES)]))
    (tmp_path / "karpathy_train.tsv.0").write_text(row + "\n")
    source = open_regions(tmp_path / "karpathy_train.tsv.0")
    assert isinstance(source, RegionTable)
    assert len(source["9"]) == 3
    (tmp_path / "cut.tsv").write_text(row + "\n9\n")
    with pytest.raises(ValueError, match=f"a line without a tab at byte {len(row) + 1}: b'9"):
        list(open_regions(tmp_path / "cut.tsv").scan())


def test_a_heading_is_no_image(tmp_path):
    (tmp_path / "own.tsv").write_text(f"image_id\tnum_boxes\tboxes\n9\t3\t{packed(BOXES)}\n")
    source = RegionTable(tmp_path / "own.tsv", fields=["image_id", "num_boxes", "boxes"])
    assert [found.image_id for _, found in source.scan()] == list(source) == ["9"]


def test_damaged_files_are_named(tmp_path):
    """As an interrupted download leaves them: half of the file, or nothing."""
    (tmp_path / "npz").mkdir()
    (tmp_path / "npy").mkdir()
    np.savez(tmp_path / "npz" / "9.npz", feat=FEATURES)
    np.savez(tmp_path / "all.npz", **{"9": BOXES})
    pytest.importorskip("scipy.io").savemat(tmp_path / "all.mat", {"boxes": BOXES, "images": [9]}, do_compression=True)
    files = [tmp_path / name for name in ("npz/9.npz", "npy/9.npy", "all.npz", "all.mat")]
    for file, share in zip(files, (0.5, 0, 0.5, 0.5), strict=True):
        content = file.read_bytes() if file.exists() else b""
        file.write_bytes(content[: int(share * len(content))])
        whys = {".mat": "is no MATLAB file, or a truncated", ".npz": r"is no \.npz file, or a truncated"}
        why = whys.get(file.suffix, r"cannot be read \(EOFError: .*Download or write it again")
        with pytest.raises(ValueError, match=f"{file.name} {why}"):
            open_regions(file.parent if file.parent != tmp_path else file)["9"]
    np.savez_compressed(tmp_path / "all.npz", **{"9": BOXES})
    content = bytearray((tmp_path / "all.npz").read_bytes())
    content[60] ^= 255
    (tmp_path / "all.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"all\.npz cannot be read \((error|BadZipFile): .*write it again"):
        open_regions(tmp_path / "all.npz")["9"]
