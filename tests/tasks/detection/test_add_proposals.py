"""Proposals as a column: what is searched and how often, parts, processes, caps, files, and images without any."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import get_ident

import numpy as np
import pytest
from datasets import Dataset, DatasetDict, Features, Image, List, Value
from PIL import Image as Pillow

import hf_curriculum.scoring.per_image as per_image
from hf_curriculum import RegionProposals, add_scores, make_scenes
from hf_curriculum.data.proposals import (
    SelectiveSearch,
    StoredProposals,
    chosen_boxes,
    fitted_boxes,
    import_opencv,
    proposal_recall,
    searched_size,
    short_sides,
    validate_search,
)
from hf_curriculum.data.regions.base import Regions
from hf_curriculum.data.regions.open import open_regions
from hf_curriculum.provenance import column_provenance
from hf_curriculum.tasks.detection import add_proposals, load_objects
from hf_curriculum.tasks.detection.proposals import proposal_counts

cv2 = pytest.importorskip("cv2")


@pytest.fixture(scope="module")
def scenes():
    data = make_scenes(24, captions_per_image=2, validation=0, test=0)["train"]
    return data.select_columns(["image", "image_id", "caption"])


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


def stored(picture):
    file = io.BytesIO()
    picture.save(file, "png")
    return {"bytes": file.getvalue(), "path": None}


def noise(width, height, seed=0):
    return Pillow.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def images(pictures, ids=None):
    rows = {"image": [stored(one) if isinstance(one, Pillow.Image) else one for one in pictures]}
    rows["image_id"] = ids or [str(number) for number in range(len(pictures))]
    features = Features({"image": Image(decode=False), "image_id": Value("string")})
    return Dataset.from_dict(rows, features=features).cast_column("image", Image())


def naive(picture, min_size):
    """OpenCV itself, on BGR."""
    search = cv2.ximgproc.segmentation.createSelectiveSearchSegmentation()
    search.setBaseImage(np.asarray(picture)[:, :, ::-1].copy())
    search.switchToSelectiveSearchFast()
    return {(x, y, x + w, y + h) for x, y, w, h in search.process().tolist() if min(w, h) >= min_size}


def test_the_boxes_are_opencv_s_in_pixels_of_the_image(scenes):
    search = SelectiveSearch(min_size=12, max_proposals=None)
    boxed = add_proposals(scenes.shuffle(seed=2), search, part_images=5)
    assert str(boxed.features["proposals"]) == str(List(List(Value("float32"), length=4)))
    assert boxed["image_id"][:] == scenes.shuffle(seed=2)["image_id"][:]
    for row in boxed.select(range(4)):
        assert {tuple(box) for box in row["proposals"]} == naive(row["image"], 12)
    made = column_provenance(boxed, "proposals")
    assert (made.scorer, made.backend, made.arguments["min_size"]) == ("SelectiveSearch", "opencv", 12)
    assert "opencv-contrib-python-headless" in made.versions


def test_an_image_is_searched_once_for_all_its_rows_and_calls(scenes, monkeypatch):
    seen = []
    real = SelectiveSearch.__call__

    def spy(self, image, image_id=""):
        seen.append(image_id)
        return real(self, image, image_id)

    monkeypatch.setattr(SelectiveSearch, "__call__", spy)
    search = SelectiveSearch(min_size=12)
    boxed = add_proposals(scenes, search, part_images=5)
    assert len(scenes) == 24
    assert sorted(seen) == sorted(set(scenes["image_id"]))
    by_id = {}
    for row in boxed:
        assert by_id.setdefault(row["image_id"], row["proposals"]) == row["proposals"]
    assert add_proposals(scenes, search, part_images=5).to_list() == boxed.to_list()
    assert len(seen) == 12
    add_proposals(scenes, search, part_images=5, load_from_cache_file=False)
    assert len(seen) == 24
    # nor is an image searched for its scores
    scored = add_scores(boxed, RegionProposals(boxes="proposals", min_size=12))
    assert len(seen) == 24
    np.testing.assert_array_equal(scored["region_count"][:], proposal_counts(boxed))
    fresh = add_scores(boxed, RegionProposals(min_size=12))
    np.testing.assert_array_equal(scored["region_count"][:], fresh["region_count"][:])
    np.testing.assert_allclose(scored["region_area"][:], fresh["region_area"][:], rtol=1e-6)


def test_pictures_are_not_rewritten(scenes):
    boxed = add_proposals(scenes, SelectiveSearch(min_size=12))
    first = lambda data: data.data.column("image").chunk(0).field("bytes").buffers()[2].address  # noqa: E731
    assert first(boxed) == first(scenes)
    boxes = int(proposal_counts(boxed).sum())
    assert boxed.data.nbytes - scenes.data.nbytes < 16 * boxes + 4096


@pytest.mark.parametrize("num_proc", [None, 2])
def test_the_same_boxes_whatever_the_number_of_workers(scenes, num_proc):
    search = SelectiveSearch(min_size=12, max_proposals=20, seed=7)
    boxed = add_proposals(scenes, search, num_proc=num_proc, part_images=4)
    expected = [search(row["image"], row["image_id"]).tolist() for row in scenes]
    assert boxed["proposals"][:] == expected
    assert max(map(len, expected)) == 20


@pytest.mark.parametrize("first_only", [False, True])
def test_the_same_boxes_by_several_launched_processes(scenes, tmp_path, monkeypatch, first_only):
    search, seen = SelectiveSearch(min_size=12), []
    expected = add_proposals(scenes, search, folder=tmp_path / "one").to_list()
    real, rank_of = SelectiveSearch.__call__, {}

    def spy(self, image, image_id=""):
        seen.append((rank_of[get_ident()], image_id))
        return real(self, image, image_id)

    monkeypatch.setattr(SelectiveSearch, "__call__", spy)
    monkeypatch.setattr(per_image, "launched", lambda: (rank_of[get_ident()], 3))

    def process(rank):
        rank_of[get_ident()] = rank
        shared = {"folder": tmp_path / "three", "part_images": 2, "timeout": 60}
        return add_proposals(scenes, search, first_only=first_only, **shared)

    with ThreadPoolExecutor(3) as pool:
        first, *others = pool.map(process, range(3))
    assert first.to_list() == expected
    assert [found if found is None else found.to_list() for found in others] == [None if first_only else expected] * 2
    assert sorted(image_id for _, image_id in seen) == sorted(set(scenes["image_id"]))
    assert {rank for rank, _ in seen} == {0, 1, 2}


def test_a_cap_is_a_choice_by_image_and_seed():
    picture = noise(90, 80)
    every = SelectiveSearch(max_proposals=None)(picture, "a")
    assert len(every) > 12
    found = [SelectiveSearch(max_proposals=10, seed=seed)(picture, name) for name in "ab" for seed in (0, 1)]
    for boxes in found:
        assert len(boxes) == 10
        assert {tuple(box) for box in boxes} < {tuple(box) for box in every}
        assert boxes.tolist() == sorted(boxes.tolist())
        assert boxes.tolist() != every[:10].tolist()
    assert len({boxes.tobytes() for boxes in found}) == 4
    np.testing.assert_array_equal(SelectiveSearch(max_proposals=10)(picture, "a"), found[0])
    counts = np.zeros(40)
    for number in range(2000):
        counts[chosen_boxes(40, 10, str(number), 0)] += 1
    assert abs(counts - 500).max() < 5 * np.sqrt(2000 * 0.25 * 0.75)  # each box as likely as the others


def test_sizes_squeezed_and_scaled():
    flat = Pillow.new("RGB", (400, 18))
    assert SelectiveSearch()(flat).shape == (0, 4)
    np.testing.assert_array_equal(SelectiveSearch.as_cap2det()(flat), [[0, 0, 400, 18]])
    expected = {"mode": "quality", "max_proposals": 500, "min_size": 20, "max_aspect": 2.2, "seed": 0}
    assert SelectiveSearch.as_cap2det().arguments() == {**expected, "max_side": None}
    large = Pillow.new("RGB", (2000, 1000))
    np.testing.assert_array_equal(SelectiveSearch(max_side=100)(large), [[0, 0, 2000, 1000]])
    turned = io.BytesIO()
    exif = Pillow.Exif()
    exif[0x0112] = 6
    Pillow.new("RGB", (60, 40)).save(turned, "jpeg", exif=exif)
    np.testing.assert_array_equal(SelectiveSearch()(turned.getvalue()), [[0, 0, 40, 60]])


def test_images_without_proposals_and_unreadable_ones(caplog):
    caplog.set_level(logging.INFO)
    pictures = [Pillow.new("RGB", (40, 30)), Pillow.new("RGB", (1, 1)), {"bytes": b"\x89PNG damaged", "path": None}]
    data = images([*pictures, None, Pillow.new("RGB", (19, 60))])
    boxed = add_proposals(data, SelectiveSearch(), num_proc=1)
    assert boxed["proposals"][:] == [[[0, 0, 40, 30]], [], None, None, []]
    assert "`proposals`: 2 of 5 rows have null: their images cannot be read. The first: " in caplog.text
    assert "2 of 5 rows have images without any proposal, of which a detector learns nothing" in caplog.text
    assert "proposals: 1 boxes in 3 rows" in caplog.text
    kept = add_proposals(data, SelectiveSearch(), drop_empty=True)
    assert kept["image_id"][:] == ["0"]
    assert "4 of 5 rows without proposals are left out" in caplog.text
    with pytest.raises(ValueError, match="None of the 1 images has a proposal, so nothing would be left"):
        add_proposals(data.select([1]), SelectiveSearch(), drop_empty=True)
    splits = add_proposals(DatasetDict(a=data, none=data.select([])), SelectiveSearch())
    assert splits["none"].features == splits["a"].features
    assert splits["a"]["proposals"][:] == boxed["proposals"][:]


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda data: add_proposals(data, 3), TypeError, "was given 3 as `source`, and a SelectiveSearch"),
        (lambda data: add_proposals([1], SelectiveSearch()), TypeError, "a list that holds 1 as `dataset`"),
        (lambda data: add_proposals(data, SelectiveSearch(), part_images=0), ValueError, "`part_images=0`"),
        (
            lambda data: add_proposals(data.remove_columns("image_id"), SelectiveSearch()),
            ValueError,
            "not in the data",
        ),
        (
            lambda data: add_proposals(data, SelectiveSearch(), image_column="image_id"),
            ValueError,
            r"`image_id` holds Value.*cast the column",
        ),
        (
            lambda data: add_proposals(data.add_column("proposals", [[]] * 2), SelectiveSearch()),
            ValueError,
            "already has `proposals`",
        ),
        (lambda data: SelectiveSearch("slow"), ValueError, "`mode` is 'slow'"),
        (lambda data: SelectiveSearch(max_proposals=0), ValueError, "`max_proposals` is 0"),
        (lambda data: RegionProposals(boxes="proposals", source="a.npz"), ValueError, "come from one of them"),
    ],
)
def test_bad_input(call, error, match):
    with pytest.raises(error, match=match):
        call(images([Pillow.new("RGB", (40, 30))] * 2))


def test_opencv_missing_is_said_before_any_work(monkeypatch, tmp_path):
    data = images([Pillow.new("RGB", (40, 30))])
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(
        ImportError, match=r"needs OpenCV, which is not installed. Run `pip install 'hf-curriculum\[det"
    ):
        add_proposals(data, SelectiveSearch(), folder=tmp_path / "parts")
    assert not (tmp_path / "parts").exists()


def archive(path, content):
    np.savez(path, **content)
    return path


def test_of_a_file_of_proposals(tmp_path, caplog):
    data = images([Pillow.new("RGB", (100, 50))] * 3, ["9", "8", "none"])
    content = {"9/boxes": [[0, 0, 50, 20], [0, 0, 100.5, 50]], "9/confidence": [0.2, 0.9], "8": np.zeros((0, 4))}
    boxed = add_proposals(data, archive(tmp_path / "a.npz", content))
    assert boxed["proposals"][:] == [[[0, 0, 50, 20], [0, 0, 100, 50]], [], None]
    np.testing.assert_allclose(boxed["objectness"][0], [0.2, 0.9], rtol=1e-6)
    assert boxed["objectness"][1:] == [[], None]
    assert "1 of 3 rows have null: their images cannot be read, or the file does not have" in caplog.text
    assert column_provenance(boxed, "objectness").arguments["source"]["path"] == "a.npz"
    best = add_proposals(data, StoredProposals(tmp_path / "a.npz", 1))
    assert best["proposals"][0] == [[0, 0, 100, 50]]  # the one of the highest objectness
    plain = add_proposals(data, archive(tmp_path / "b.npz", {"9": [[0, 0, 0.5, 1]] * 3}), part_images=1)
    assert "objectness" not in plain.column_names
    assert plain["proposals"][0] == [[0, 0, 0.5, 1]] * 3


def test_files_that_have_changed_are_read_anew(tmp_path):
    data = images([Pillow.new("RGB", (100, 50))], ["9"])
    for edge in (10, 20):  # files of one size
        boxed = add_proposals(data, archive(tmp_path / "a.npz", {"9": [[0, 0, edge, 20]]}))
        assert boxed["proposals"][:] == [[[0, 0, edge, 20]]]
    folder = tmp_path / "folder" / "9"
    folder.mkdir(parents=True)
    for share in (0.25, 0.5):  # below a folder that stays as it was
        np.save(folder / "9.npy", np.float32([[0, 0, 1, share]]))
        assert add_proposals(data, tmp_path / "folder")["proposals"][:] == [[[0, 0, 100 * share, 50]]]
    part = {"folder": tmp_path / "parts"}
    add_proposals(data, tmp_path / "folder", **part)
    np.save(folder / "9.npy", np.float32([[0, 0, 0.5, 1]]))
    with pytest.raises(ValueError, match="holds parts of another run: files was "):
        add_proposals(data, tmp_path / "folder", **part)


@pytest.mark.parametrize("suffix", ["npz", "h5"])
def test_workers_open_the_file_for_themselves(tmp_path, suffix):
    ids = [str(number) for number in range(40)]
    data = images([Pillow.new("RGB", (100, 50))] * 40, ids)
    boxes = {name: np.sort(np.random.default_rng(int(name)).integers(0, 50, (20_000, 4)), axis=1) for name in ids}
    if suffix == "npz":
        path = archive(tmp_path / "a.npz", boxes)
    else:
        h5py, path = pytest.importorskip("h5py"), tmp_path / "a.h5"
        with h5py.File(path, "w") as file:
            for name, values in boxes.items():
                file[name] = values
    alone = add_proposals(data, open_regions(path), part_images=1)
    several = add_proposals(data, open_regions(path), part_images=1, num_proc=2, load_from_cache_file=False)
    assert several.data.column("proposals").equals(alone.data.column("proposals"))


def test_boxes_of_the_image_at_another_size_are_scaled(tmp_path):
    data = images([Pillow.new("RGB", (100, 50))], ["9"])
    half = archive(tmp_path / "a.npz", {"9": [[0, 0, 25, 20]], "9/size": [50, 25]})
    assert add_proposals(data, half)["proposals"][:] == [[[0, 0, 50, 40]]]
    shares = open_regions(archive(tmp_path / "b.npz", {"9": [[0, 0, 0.25, 1]]}), normalised=True)
    assert add_proposals(data, shares)["proposals"][:] == [[[0, 0, 25, 50]]]


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ({"9": [[0, 0, 300, 20]]}, r"reach to 300, 20 .*the image has 100 × 50 pixels. They are of an image"),
        ({"9": [[-8, 0, 30, 20]]}, r"from -8, 0.*order=\"yxyx\" or \"xywh\""),
        ({"9": [[60, 20, 30, 10]]}, r"ends before it begins, so it is not 'xyxy'.*width, height is \"xywh\""),
        ({"9": [[0, 0, 30, 20]], "9/size": [50, 50]}, r"of an image of 50 × 50 pixels, and the image has 100 × 50"),
        ({"7": [[0, 0, 30, 20]]}, r"None of the images \('9', for example\) is in .*'7', for example"),
    ],
)
@pytest.mark.parametrize("num_proc", [None, 1])
def test_boxes_that_are_not_of_the_image(tmp_path, content, match, num_proc):
    data = images([Pillow.new("RGB", (100, 50))], ["9"])
    with pytest.raises(ValueError, match=match):
        add_proposals(data, archive(tmp_path / "a.npz", content), num_proc=num_proc)


def test_widths_read_as_edges_by_a_reader_that_does_not_look():
    with pytest.raises(ValueError, match=r"ends before it begins: it is not left, top, right, bottom.*order=\"xywh\""):
        fitted_boxes(Regions("9", boxes=np.float32([[60, 20, 30, 10]])), 100, 50, "somewhere")


def test_recall_by_hand():
    rows = {
        "proposals": [[[0.0, 0, 10, 10], [20, 20, 30, 30]], [], None, [[0.0, 0, 1, 1]]],
        "objects": [
            [{"box": [0, 0, 10, 8], "iscrowd": False}, {"box": [20, 20, 30, 24.9], "iscrowd": False}],
            [{"box": [0, 0, 10, 8], "iscrowd": False}, {"box": [0, 0, 9, 9], "iscrowd": True}],
            [{"box": [0, 0, 10, 8], "iscrowd": False}],
            None,
        ],
    }
    data = Dataset.from_dict(rows)
    assert proposal_recall(data) == (1 / 3, 3)
    assert proposal_recall(data, iou=0.48) == (2 / 3, 3)
    assert str(proposal_recall(data.select([3]))) == "(nan, 0)"
    with pytest.raises(ValueError, match=r"`proposals` is not in the data.*Run `add_proposals`"):
        proposal_recall(data.remove_columns("proposals"))


@pytest.mark.slow
def test_coco_s_photographs(test_data, capsys):
    folder = test_data("coco_open")
    data = load_objects(folder / "instances.json", images=folder / "images").select(range(0, 148, 25))
    recall, count = proposal_recall(add_proposals(data, SelectiveSearch("fast"), num_proc=2))
    with capsys.disabled():
        print(f"\ncoco_open, 6 photographs: recall {recall:.3f} of {count} objects at IoU 0.5", end="")
    assert recall > 0.3


KILLED = """
import json, os, signal, sys
from hf_curriculum import make_scenes
from hf_curriculum.tasks.detection import SelectiveSearch, add_proposals
import hf_curriculum.parts as parts

folder, stop, num_proc = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
scenes = make_scenes(20, captions_per_image=1, validation=0, test=0)["train"]
write = parts.PartFolder.write

def killing(self, part, columns):
    write(self, part, columns)
    if part == stop:
        os.kill(os.getpid(), signal.SIGKILL)

parts.PartFolder.write = killing
boxed = add_proposals(scenes, SelectiveSearch(min_size=12, max_proposals=25), folder=folder, part_images=3,
                      num_proc=num_proc)
print(json.dumps(boxed["proposals"][:]))
"""


@pytest.mark.slow
def test_a_killed_run_goes_on_and_ends_with_the_same_boxes(launch, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(KILLED)
    data = make_scenes(20, captions_per_image=1, validation=0, test=0)["train"]
    whole = add_proposals(data, SelectiveSearch(min_size=12, max_proposals=25))["proposals"][:]
    done = launch(program, tmp_path / "parts", 2, 2, check=False)
    assert done.returncode == -signal.SIGKILL
    kept = {file.name: os.stat(file).st_mtime_ns for file in Path(tmp_path, "parts", "all").glob("part-*")}
    assert 3 <= len(kept) < 7
    assert json.loads(launch(program, tmp_path / "parts", -1, 0).stdout) == whole
    for name, written in kept.items():
        assert os.stat(tmp_path / "parts" / "all" / name).st_mtime_ns == written


def test_edges_of_boxes_and_of_their_images():
    boxes = np.float32([[0, 0, 101, 50], [0, 0, 0, 50], [-1, 3, 20, 3]])  # a pixel beyond at most; no area
    fitted = fitted_boxes(Regions("9", boxes=boxes), 100, 50, "x")
    np.testing.assert_array_equal(fitted, [[0, 0, 100, 50], [0, 0, 0, 50], [0, 3, 20, 3]])
    for edge in ([0, 0, 101.5, 50], [0, 0, 50, 51.5], [-1.5, 0, 50, 50]):
        with pytest.raises(ValueError, match="reach to"):
            fitted_boxes(Regions("9", boxes=np.float32([edge])), 100, 50, "x")
    rounded = Regions("9", boxes=np.float32([[0, 0, 103, 50]]), width=103, height=50)
    np.testing.assert_allclose(fitted_boxes(rounded, 100, 50, "x"), [[0, 0, 100, 50]], rtol=1e-6)
    with pytest.raises(ValueError, match="are of an image of 105 × 50"):
        fitted_boxes(Regions("9", boxes=boxes, width=105, height=50), 100, 50, "x")


def test_boxes_that_a_file_may_lose(tmp_path):
    content = {"9": [[0, 0, 5, 9], [0, 0, 4, 9], [3, 3, 3, 9]]}
    for least, kept in ((0, 2), (5, 1), (6, 0)):
        found, scores = StoredProposals(archive(tmp_path / "a.npz", content), min_size=least).boxes_of("9", 100, 50)
        assert (len(found), scores) == (kept, None)
    assert len(StoredProposals(tmp_path / "a.npz", 1).boxes_of("9", 100, 50)[0]) == 1
    ties = {"9/boxes": content["9"], "9/confidence": [0.5, 0.5, 0.9]}
    found, scores = StoredProposals(archive(tmp_path / "a.npz", ties), 1).boxes_of("9", 100, 50)
    assert (found.tolist(), scores.tolist()) == ([[0, 0, 5, 9]], [0.5])
    assert SelectiveSearch()(Pillow.new("RGB", (20, 60))).tolist() == [[0, 0, 20, 60]]  # exactly `min_size`
    assert short_sides(np.zeros((0, 4))).shape == (0,)


@pytest.mark.parametrize(
    ("option", "least"), [("min_size", 0), ("max_proposals", 1), ("max_side", 1), ("max_aspect", 1)]
)
def test_the_least_of_each_option(option, least):
    fine = {"mode": "fast", "max_proposals": None, "min_size": 0, "max_side": None, "max_aspect": None}
    validate_search(**fine | {option: least})
    with pytest.raises(ValueError, match=f"`{option}` is {least - 0.5}. It is at least {least}"):
        validate_search(**fine | {option: least - 0.5})


@pytest.mark.parametrize(
    ("given", "side", "aspect", "expected"),
    [
        ((50, 40), None, None, (50, 40)),
        ((50, 40), 50, 2.2, (50, 40)),
        ((2000, 1000), 100, None, (100, 50)),
        ((1000, 1), 10, None, (10, 1)),
        ((1, 1000), 10, None, (1, 10)),
        ((400, 18), None, 2.2, (400, 181)),
        ((18, 400), None, 2.2, (181, 400)),
    ],
)
def test_sizes_that_are_searched(given, side, aspect, expected):
    assert searched_size(given, side, aspect) == expected


def test_one_thread_of_opencv_for_each_process():
    cv2.setNumThreads(3)
    import_opencv()
    assert cv2.getNumThreads() == 1


def test_columns_and_folders_that_are_there(tmp_path):
    data = images([Pillow.new("RGB", (100, 50))] * 2)
    file = archive(tmp_path / "a.npz", {"0": [[0, 0, 5, 9]], "1": [[0, 0, 5, 9]]})
    options = {"num_proc": 0, "load_from_cache_file": False}
    boxed = add_proposals(data, file, **options)
    again = add_proposals(boxed, archive(tmp_path / "b.npz", {"0": [[1, 1, 5, 9]]}), overwrite=True)
    assert again["proposals"][:] == [[[1, 1, 5, 9]], None]
    with pytest.raises(ValueError, match="`num_proc=-1` were given"):
        add_proposals(data, file, num_proc=-1)
    of_another = tmp_path / "parts" / "all"
    of_another.mkdir(parents=True)
    (of_another / "run.json").write_text('{"rows": 7}')  # of a run that wrote no part
    assert add_proposals(data, file, folder=tmp_path / "parts").to_list() == boxed.to_list()
    empty = add_proposals(data.select([]), file)
    assert (len(empty), empty.features["proposals"]) == (0, boxed.features["proposals"])


def test_half_of_an_object_covers_it():
    row = {"proposals": [[[0.0, 0, 10, 10]]], "objects": [[{"box": [0, 0, 10, 5]}, {"box": [0, 0, 10, 4.9]}]]}
    assert proposal_recall(Dataset.from_dict(row)) == (0.5, 2)
