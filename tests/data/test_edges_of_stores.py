"""The edges of stored regions and of a vision tower's features: ids, counts and runs at a limit, what is refused."""

from __future__ import annotations

import logging
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from datasets import Dataset, DatasetDict
from PIL import Image
from transformers import ViTConfig, ViTModel

from hf_curriculum import files, make_image_processor
from hf_curriculum.data.images import UnreadableImageError
from hf_curriculum.data.regions import pack as module
from hf_curriculum.data.regions import store as stores
from hf_curriculum.data.regions.base import Regions, RegionSource
from hf_curriculum.data.regions.extract import extract_regions
from hf_curriculum.data.regions.pack import StoreWriter, pack_regions
from hf_curriculum.data.regions.store import RegionStore, fingerprint_of, id_key
from hf_curriculum.files import DamagedFileError, read_sealed, write_sealed
from hf_curriculum.models import vision_features
from hf_curriculum.models.vision_features import VisionFeatures, cache_vision_features
from hf_curriculum.verify import verify

BOXES = np.float32([[0, 0, 10, 20], [5, 5, 30, 40]])
WANTED = {"dtype": "float32", "standardise": False, "made_by": None, "sources": [{"prefix": "", "path": "a"}]}


@pytest.fixture(autouse=True)
def unsynced(monkeypatch):
    """What these tests write need not outlive a loss of power, for which a disk takes its time."""
    monkeypatch.setattr(files.os, "fsync", lambda number: None)


class Given(RegionSource):
    """Regions from memory, as a source; an id may come twice."""

    def __init__(self, path, *regions):
        path.touch()
        super().__init__(path)
        self._given = regions

    def _find(self):
        return {found.image_id: found for found in self._given}

    def _read(self, image_id, where):
        return where

    def scan(self, start=0):
        yield from list(enumerate(self._given, 1))[start:]


def of(image_id, count=2, value=1.0, **parts):
    return Regions(image_id, features=np.full((count, 3), value, np.float32), **parts)


def packed(tmp_path, *regions, name="store", **options):
    return pack_regions(Given(tmp_path / "a", *regions), tmp_path / name, progress=False, **options)


def content(folder):
    """Name -> bytes of every file."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def damage(file):
    """Another bit in the last byte of a file."""
    held = file.read_bytes()
    file.write_bytes(held[:-1] + bytes([held[-1] ^ 1]))


def around(ids):
    """Ids that are not among them, whose keys are below all, above all, and between."""
    keys = np.sort([id_key(image_id) for image_id in ids])
    places = {}
    for number in range(10_000):
        places.setdefault(int(np.searchsorted(keys, id_key(f"absent {number}"))), f"absent {number}")
    assert places.keys() == set(range(len(ids) + 1))
    return [places[place] for place in range(len(ids) + 1)]


# ---- A store that is read ----


@pytest.mark.parametrize("count", [1, 2, 5])
def test_ids_below_between_and_beyond_those_of_a_store_are_not_in_it(count, tmp_path):
    ids = [f"image {number}" for number in range(count)]
    store = packed(tmp_path, *(of(image_id, value=number) for number, image_id in enumerate(ids)))
    absent = around(ids)
    assert [image_id in store for image_id in (*ids, *absent)] == [True] * count + [False] * (count + 1)
    for image_id in absent:
        assert store.get(image_id) is None
        with pytest.raises(KeyError, match=rf"'{image_id}'.*It has {count}, such as 'image 0'"):
            store.features(image_id)
    assert [store.features(image_id)[0, 0].item() for image_id in ids] == list(range(count))
    assert store.missing([*absent, *ids]) == {f"are not in {store!r}": absent, f"have no region in {store!r}": []}
    stored, of_image, codes = store.class_codes(absent)
    assert (stored.tolist(), of_image.tolist(), codes.tolist()) == ([False] * (count + 1), [], [])


def test_a_batch_of_no_image_and_of_images_without_a_region(tmp_path, monkeypatch):
    store = packed(tmp_path, of("none", 0), of("one", 1, 5.0), of("three", 3, 7.0))
    empty = np.empty
    monkeypatch.setattr(stores.np, "empty", lambda *given, **more: (made := empty(*given, **more)).fill(9) or made)
    features, mask = store.read_batch([])
    assert (features.shape, mask.shape) == ((0, 0, 3), (0, 0))
    features, mask = store.read_batch(["none"])
    assert (features.shape, mask.shape) == ((1, 0, 3), (1, 0))
    features, mask = store.read_batch(["one", "none", "three", "one"])
    assert mask.tolist() == [[1, 0, 0], [0, 0, 0], [1, 1, 1], [1, 0, 0]]
    assert features[..., 0].tolist() == [[5, 0, 0], [0, 0, 0], [7, 7, 7], [5, 0, 0]]
    assert (features.dtype, mask.dtype) == (torch.float32, torch.int64)
    assert store.features("none").shape == (0, 3)


def test_sides_of_nothing_are_no_size(tmp_path):
    sizes = {"whole": (5, 4), "thin": (0, 4), "flat": (5, 0), "unknown": (None, None), "high": (None, 4)}
    regions = [of(name, boxes=BOXES, width=width, height=height) for name, (width, height) in sizes.items()]
    store = packed(tmp_path, *regions, of("shares", boxes=BOXES / 40, normalised=True), of("thin, bare", width=0))
    wrong = store.missing([*store], boxes=True)
    assert wrong == {
        f"are not in {store!r}": [],
        f"have no region in {store!r}": [],
        f"have no boxes in {store!r}": ["thin, bare"],
        f"have no width and height in {store!r}, of which box values are shares": ["thin", "flat", "unknown", "high"],
    }
    assert [(store[name].width, store[name].height) for name in sizes] == list(sizes.values())
    assert list(store.missing([*store])) == [f"are not in {store!r}", f"have no region in {store!r}"]
    assert all(ids == [] for ids in store.missing([], boxes=True).values())


def test_the_first_image_without_classes_is_named(tmp_path):
    store = packed(tmp_path, of("named", classes=("dog", "cat")), of("empty", 0), of("bare"), of("plain"))
    for ids, first in ((["absent", "named", "empty", "plain", "bare"], "plain"), (["bare", "plain"], "bare")):
        with pytest.raises(ValueError, match=f"The regions of image '{first}' have no classes"):
            store.class_codes(ids)
    stored, of_image, codes = store.class_codes(["absent", "empty", "named"])
    assert (stored.tolist(), of_image.tolist(), codes.tolist()) == ([False, True, True], [2, 2], [0, 1])


def test_a_confidence_of_the_least_counts_and_below_does_not(tmp_path):
    sure = np.float32([0.25, 0.75])
    store = packed(tmp_path, of("a", confidence=sure, classes=("dog", "cat")), of("b", classes=("ox", "dog")))
    found = {least: store.class_codes(["a", "b"], least)[2].tolist() for least in (0.0, 0.25, 0.3, 0.75, 0.8, 1.0)}
    assert found == {0.0: [0, 1, 2, 0], 0.25: [0, 1, 2, 0], 0.3: [1, 2, 0], 0.75: [1, 2, 0], 0.8: [2, 0], 1.0: [2, 0]}


def test_a_description_has_all_but_the_features(tmp_path):
    scores, sure = np.float32([[0.5, 0.5], [1, 0]]), np.float32([0.25, 0.75])
    parts = {"boxes": BOXES, "confidence": sure, "classes": ("dog", "cat"), "class_scores": scores}
    store = packed(tmp_path, of("a", **parts), of("b"))
    found = store.describe("a")
    assert (found.features, found.classes, found.class_scores.dtype) == (None, ("dog", "cat"), np.float32)
    for name in ("boxes", "confidence", "class_scores"):
        np.testing.assert_array_equal(getattr(found, name), parts[name])
    assert len(store.describe("b")) == 0
    assert store.raw_features("a").dtype == np.float16


def test_a_store_whose_files_lie_elsewhere_is_read_where_that_is_allowed(tmp_path):
    whole = packed(tmp_path, of("a", value=3.0))
    (tmp_path / "disk").mkdir()
    features = tmp_path / "store" / "features.npy"
    features.rename(tmp_path / "disk" / "features.npy")
    features.symlink_to(tmp_path / "disk" / "features.npy")
    with pytest.raises(ValueError, match=r"features\.npy"):
        RegionStore(whole.path)
    allowed = RegionStore(whole.path, allow_outside=True)
    allowed.verify()
    for store in (allowed, pickle.loads(pickle.dumps(allowed))):
        assert store.features("a").tolist() == [[3.0] * 3] * 2
        store.verify()


def test_verifying_reads_the_detector_too(tmp_path):
    with StoreWriter(tmp_path / "store", {**WANTED, "made_by": "a detector"}) as writer:
        writer.add("9", of("9"))
        (tmp_path / "store" / "detector").mkdir()
        (tmp_path / "store" / "detector" / "model").write_text("weights")
        (tmp_path / "store" / "preprocessor_config.json").write_text("{}")
        writer.finish()
    store = RegionStore(tmp_path / "store")
    assert set(store.facts["detector"]) == {"detector/model", "preprocessor_config.json"}
    store.verify()
    pack_regions(store, tmp_path / "copy", progress=False).verify()
    assert (tmp_path / "copy" / "detector" / "model").read_text() == "weights"
    own = pack_regions(store, tmp_path / "own", made_by="other words", progress=False)
    assert (own.facts["made_by"], own.facts["detector"]) == ("other words", {})
    assert not (tmp_path / "own" / "detector").exists()
    (tmp_path / "store" / "detector" / "model").write_text("weighty")
    for call in (store.verify, store.validate_detector, lambda: pack_regions(store, tmp_path / "b", progress=False)):
        with pytest.raises(DamagedFileError, match=r"detector/model holds something else"):
            call()
    assert store.features("9").shape == (2, 3)  # which are whole


@pytest.mark.parametrize("name", ["keys", "rows", "offsets", "digests", "ids", "image_digests"])
def test_verifying_an_open_store_reads_its_index_anew(name, tmp_path):
    store = packed(tmp_path, of("a"), of("b"))
    store.verify()
    damage(tmp_path / "store" / f"{name}.npy")
    with pytest.raises(DamagedFileError, match=rf"{name}\.npy holds something else than was written"):
        store.verify()


def test_a_way_is_told_by_what_made_the_features_in_any_order_of_words():
    one, other = {"model": "a", "size": 3}, {"size": 3, "model": "a"}
    assert fingerprint_of(one, "x", b"") == fingerprint_of(other, "y", b"")
    made = [fingerprint_of(*given) for given in ((one, "x", b"m"), ({}, "x", b""), (None, "x", b""), (None, "y", b""))]
    assert len({*made, fingerprint_of(one, "x", b"")}) == 5
    assert {len(digest) for digest in made} == {32}


def test_an_unfinished_store_says_how_far_it_is(tmp_path):
    with StoreWriter(tmp_path / "store", WANTED) as writer:
        with pytest.raises(FileNotFoundError, match="store has 0 images and is unfinished"):
            RegionStore(tmp_path / "store")
        for number in range(1200):
            writer.add(str(number), of(str(number), 0))
        writer.save((0, 1200))
    with pytest.raises(FileNotFoundError, match="store has 1,200 images and is unfinished"):
        RegionStore(tmp_path / "store")
    with StoreWriter(tmp_path / "store", WANTED) as writer, pytest.raises(ValueError, match="hold 1,200 images and"):
        writer.finish()


# ---- A store that is written ----


def test_a_run_that_wrote_no_image_binds_no_other(tmp_path):
    other = {**WANTED, "dtype": "float16"}
    StoreWriter(tmp_path / "store", WANTED).close()
    with StoreWriter(tmp_path / "store", other) as writer:
        writer.add("9", of("9"))
        writer.save((0, 1))
    with pytest.raises(ValueError, match="holds another store: `dtype` is float16, not float32"):
        StoreWriter(tmp_path / "store", WANTED)
    with StoreWriter(tmp_path / "store", other) as writer:
        writer.finish()
    assert RegionStore(tmp_path / "store").raw_features("9").dtype == np.float16


def test_a_finished_store_whose_lock_was_left_is_opened(tmp_path):
    store = packed(tmp_path, of("a"))
    before = content(tmp_path / "store")
    (tmp_path / "store" / ".lock").touch()
    assert packed(tmp_path, of("a")).fingerprint == store.fingerprint
    left = content(tmp_path / "store")
    left.pop(".lock", None)
    assert left == before


@pytest.mark.parametrize("standardise", [False, True])
@pytest.mark.parametrize("killed", [1, 3, 5, 7, 8])
def test_counts_and_classes_go_on_where_a_run_was_killed(killed, standardise, tmp_path, monkeypatch, caplog):
    first = Given(
        tmp_path / "a",
        of("1", classes=("dog", "cat"), value=1),
        of("empty", 0),
        of("1", value=9),
        of("2", 1, classes=("ox",), value=2),
        of("empty", 1),
    )
    second = Given(tmp_path / "b", of("3", boxes=BOXES, width=3, height=4, value=3), of("4", classes=("cat", "ox")))
    arguments = {"standardise": standardise, "progress": False}
    whole = pack_regions([first, second], tmp_path / "whole", **arguments)
    assert (list(whole), whole["1"].features.shape) == (["1", "empty", "2", "3", "4"], (2, 3))
    named = ("images", "regions", "empty", "repeated", "counts", "classes", "dims")
    assert [whole.facts[name] for name in named] == [5, 7, 1, 2, [3, 2], ["dog", "cat", "ox"], 3]
    add, calls = StoreWriter.add, []

    def stop(writer, image_id, regions, *image_digest):
        calls.append(image_id)
        if len(calls) == killed:
            raise KeyboardInterrupt
        add(writer, image_id, regions, *image_digest)

    monkeypatch.setattr(StoreWriter, "save_sometimes", lambda writer, position: writer.save(position))
    with monkeypatch.context() as patch:
        patch.setattr(StoreWriter, "add", stop)
        if killed < 8:
            with pytest.raises(KeyboardInterrupt):
                pack_regions([first, second], tmp_path / "part", **arguments)
        else:
            pack_regions([first, second], tmp_path / "part", **arguments)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        pack_regions([first, second], tmp_path / "part", **arguments)
    assert content(tmp_path / "part") == content(tmp_path / "whole")
    assert ("2 lines were for images that their table had before" in caplog.text) == (killed < 8)


@pytest.mark.parametrize("killed", [False, True])
def test_an_id_of_a_source_before_is_known_after_a_run_was_killed(killed, tmp_path):
    wanted = {**WANTED, "sources": [{"prefix": "", "path": name} for name in "abc"]}
    writer = StoreWriter(tmp_path / "store", wanted)
    writer.next_source()
    writer.add("1", of("1"))
    writer.next_source()
    writer.add("2", of("2"))
    if killed:
        writer.save((2, 1))
        writer.close()
        writer = StoreWriter(tmp_path / "store", wanted)
    with pytest.raises(ValueError, match="The image '1' is in b and in c: which of both"):
        writer.add("1", of("1"))
    writer.add("2", of("2"))
    assert (writer.images, writer.repeated, writer.counts) == (2, 1, [0, 1, 1])
    writer.close()


def test_no_repeated_line_is_no_warning(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        packed(tmp_path, of("1"), of("2"))
    assert "lines were for images" not in caplog.text


def test_parts_of_images_without_a_region_decide_nothing(tmp_path):
    nothing = np.zeros((0, 7), np.float32)
    first = Regions("first", features=np.zeros((0, 9), np.float32), class_scores=nothing)
    scores = np.float32([[0.5, 0.5], [1, 0]])
    store = packed(tmp_path, first, of("full", class_scores=scores), replace(first, image_id="last"))
    assert (store.facts["dims"], store.facts["empty"]) == (3, 2)
    np.testing.assert_array_equal(store["full"].class_scores, scores)
    assert [store[name].class_scores.shape for name in ("first", "full", "last")] == [(0, 2), (2, 2), (0, 2)]
    bare = packed(tmp_path, first, of("full"), name="bare")["first"]  # no array has class scores
    assert (len(bare), len(bare.class_scores), bare.features.shape) == (0, 0, (0, 3))


def test_features_that_are_too_many_name_both_lengths_only_where_they_differ(tmp_path):
    longer = Regions("longer", features=np.ones((1, 4), np.float32))
    with pytest.raises(ValueError, match=r"image 'longer' in a have 4 numbers, and those of the images before 3\."):
        packed(tmp_path, of("none", 0), of("first"), longer)
    assert packed(tmp_path, longer, replace(longer, image_id="as long"), name="same").facts["dims"] == 4


def test_the_largest_number_of_float16_is_stored(tmp_path):
    assert packed(tmp_path, of("a", value=-65504))["a"].features.min() == -65504
    with pytest.raises(ValueError, match=r"image 'a' in a go beyond float16's ±65,504\. Pass `dtype='float32'`\.$"):
        packed(tmp_path, of("a", value=65520), name="beyond")
    with pytest.raises(ValueError, match=r"a are not all finite.*Find its regions again\.$"):
        packed(tmp_path, of("a", value=np.nan), name="nan", dtype="float32")


def test_a_known_store_is_standardised_anew_where_that_is_asked_for(tmp_path):
    data = [of("1", value=1), of("2", value=3)]
    known = packed(tmp_path, *data, name="known", made_by="BUTD", standardise=np.float32([[9] * 3, [2] * 3]))
    np.testing.assert_array_equal(known["1"].features, np.full((2, 3), -4))
    kept = pack_regions(known, tmp_path / "kept", progress=False)
    assert (kept.fingerprint, kept["1"].features[0, 0]) == (known.fingerprint, -4)
    again = pack_regions(known, tmp_path / "again", standardise=True, progress=False)
    np.testing.assert_array_equal(again.moments, [[2] * 3, [1] * 3])
    assert (again["1"].features[0, 0], again["2"].features[0, 0], again.facts["made_by"]) == (-1, 1, "BUTD")


def test_only_stores_of_one_way_keep_what_made_them(tmp_path):
    known = packed(tmp_path, of("1"), name="known", made_by="BUTD")
    twin = packed(tmp_path, of("2"), name="twin", made_by="BUTD")
    both = pack_regions([known, twin], tmp_path / "both", progress=False)
    assert (both.facts["made_by"], both.fingerprint) == ("BUTD", known.fingerprint)
    file = Given(tmp_path / "b", of("3"))
    assert pack_regions([known, file], tmp_path / "mixed", progress=False).facts["made_by"] is None
    other = packed(tmp_path, of("4"), name="other", made_by="VinVL")
    with pytest.raises(ValueError, match=r"other detectors or settings: .*with one setting\.$"):
        pack_regions([known, twin, other], tmp_path / "others", progress=False)
    scaled = packed(tmp_path, of("5"), name="scaled", made_by="BUTD", standardise=np.ones((2, 3), np.float32))
    with pytest.raises(ValueError, match=r"one detector, but .* other ways: .*or pass `standardise=True` to .*\.$"):
        pack_regions([known, scaled], tmp_path / "ways", progress=False)


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["a.txt", "b.txt", "c.txt"], r"holds other files \(a\.txt, b\.txt, c\.txt\), and"),
        (["a.txt", "b.txt", "c.txt", "d.txt"], r"holds other files \(a\.txt, b\.txt, c\.txt, …\), and"),
        (["features.npy", "keys.npy"], r"holds other files \(keys\.npy\), and"),  # written last, of another store
    ],
)
def test_what_else_lies_in_a_folder_of_regions_is_named(names, told, tmp_path):
    (tmp_path / "store").mkdir()
    for name in names:
        (tmp_path / "store" / name).touch()
    with pytest.raises(ValueError, match=told):
        packed(tmp_path, of("1"))
    assert sorted(content(tmp_path / "store")) == names


def test_what_a_killed_run_left_before_its_first_state_is_written_over(tmp_path):
    whole = packed(tmp_path, of("1", boxes=BOXES), name="whole")
    (tmp_path / "store").mkdir()
    names = ("boxes", "features", "flags", "sizes", "ids", "id_offsets", "offsets", "digests", "image_digests")
    for name in names:
        (tmp_path / "store" / f"{name}.npy").write_bytes(b"half" * 99)
    (tmp_path / "store" / ".hidden").touch()
    assert packed(tmp_path, of("1", boxes=BOXES)).fingerprint == whole.fingerprint
    assert content(tmp_path / "store") == {**content(tmp_path / "whole"), ".hidden": b""}


def test_all_that_differs_from_a_store_is_told(tmp_path):
    one, two = (Given(tmp_path / name, of(name)) for name in "xy")
    pack_regions([one, two], tmp_path / "store", made_by="w" * 200, progress=False)
    (tmp_path / "y").write_text("changed")
    changed = Given(tmp_path / "y", of("y"))
    with pytest.raises(ValueError, match=r"store: y changed since then, or is read with other options\. What"):
        pack_regions([one, changed], tmp_path / "store", made_by="w" * 200, progress=False)
    told = rf"store: `dtype` is float16, not float32; `made_by` is {'w' * 120}, not {'v' * 120}; y changed since then"
    with pytest.raises(ValueError, match=told):
        pack_regions([one, changed], tmp_path / "store", made_by="v" * 200, dtype="float32", progress=False)
    with pytest.raises(ValueError, match=r"its sources are \['x', 'y'\], not \['y', 'x'\]"):
        pack_regions([two, one], tmp_path / "store", made_by="w" * 200, progress=False)


@pytest.mark.parametrize("change", ["one more", "a longer one", "another name"])
def test_a_folder_of_features_that_changed_is_another_source(change, tmp_path):
    folder = tmp_path / "features"
    folder.mkdir()
    for name in ("1", "2"):
        np.savez(folder / f"{name}.npz", feat=np.ones((2, 3), np.float32))
    store = pack_regions(folder, tmp_path / "store", progress=False)
    (about,) = store.facts["sources"]
    assert (about["path"], about["files"], about["prefix"]) == ("features", 2, "")
    if change == "another name":
        (folder / "2.npz").rename(folder / "3.npz")
    else:
        np.savez(folder / f"{3 if change == 'one more' else 2}.npz", feat=np.ones((3, 3), np.float32))
    with pytest.raises(ValueError, match="features changed since then"):
        pack_regions(folder, tmp_path / "store", progress=False)


def test_a_pattern_passes_over_what_is_read_beside_a_table(tmp_path):
    opened = []
    for name in ("a.tsv", "b.tsv", "label.tsv", "a.hw.tsv", "a.tsv.lineidx"):
        (tmp_path / name).touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "open_regions", lambda path: opened.append(path) or Given(tmp_path / "x"))
        found = module._resolve(str(tmp_path / "*.tsv*"), "all//")
        nested = module._resolve({"coco": [str(tmp_path / "a.tsv")], 9: {"x": tmp_path / "b.tsv"}}, "all/")
    assert opened[:2] == [str(tmp_path / name) for name in ("a.tsv", "b.tsv")]
    assert [label for label, _ in found] == ["all", "all"]
    assert [label for label, _ in nested] == ["all/coco", "all/9/x"]
    (tmp_path / "a.tsv").unlink()
    (tmp_path / "b.tsv").unlink()
    with pytest.raises(FileNotFoundError, match=r"No file matches .*\*\.tsv\*'"):
        module._resolve(str(tmp_path / "*.tsv*"), None)


# ---- Which images a store is of ----


REPLACED = {
    "exchanged": lambda file, other: file.write_bytes(other.read_bytes()),
    "deleted": lambda file, other: None,
    "emptied": lambda file, other: file.touch(),
    "a link that leads nowhere": lambda file, other: file.symlink_to("nowhere"),
}
"""What is done with the file of a folder that tells which images it is of."""


def photos(folder, *seeds):
    folder.mkdir(exist_ok=True)
    for number, seed in enumerate(seeds):
        picture(seed).save(folder / f"{number}.bmp")
    return folder


def extracted(images, path):
    return extract_regions(images, "scenes_clip", path, grid=2, batch_size=1, progress=False)


@pytest.mark.parametrize("how", REPLACED)
def test_a_store_vouches_for_the_images_it_is_of(how, tmp_path):
    first, second = photos(tmp_path / "a", 1, 2), photos(tmp_path / "b", 3, 4)
    store, other = extracted(first, tmp_path / "store"), extracted(second, tmp_path / "other")
    assert [each.error for each in verify(tmp_path / "store")] == [None]
    with pytest.raises(ValueError, match=r"holds features of other images: '0.bmp' has changed .*2 of 2"):
        extracted(second, tmp_path / "store")
    file = tmp_path / "store" / "image_digests.npy"
    file.unlink()
    REPLACED[how](file, tmp_path / "other" / "image_digests.npy")
    (wrong,) = verify(tmp_path / "store")
    assert "image_digests.npy" in wrong.error
    assert "Copy or write the store again." in wrong.error
    for use in (
        store.verify,
        lambda: RegionStore(store.path),
        lambda: extracted(first, tmp_path / "store"),
        lambda: extracted(second, tmp_path / "store"),
        lambda: pack_regions([store.path, other.path], tmp_path / "both", progress=False),
    ):
        with pytest.raises(DamagedFileError, match=r"image_digests\.npy"):
            use()


def test_a_store_that_is_packed_of_stores_is_of_their_images(tmp_path):
    first, second = (
        extracted(photos(tmp_path / "a", 1), tmp_path / "1"),
        extracted(photos(tmp_path / "b", 2, 3), tmp_path / "2"),
    )
    plain = packed(tmp_path, Regions("9", features=np.ones((1, 128), np.float32)))
    store = pack_regions({"a": first, "b": second, "c": plain}, tmp_path / "both", progress=False)
    wanted = [*first.image_digests, *second.image_digests, stores.UNKNOWN]
    np.testing.assert_array_equal(store.image_digests, wanted)
    assert len({row.tobytes() for row in wanted}) == 4


@pytest.mark.parametrize("killed", [1, 2, 3, 4, 5])
def test_a_run_that_is_killed_between_the_arrays_and_the_manifest_goes_on(killed, tmp_path, monkeypatch):
    images, calls = photos(tmp_path / "photos", 1, 2, 3), []

    def stop(path, facts):
        calls.append(path)
        if len(calls) == killed:
            raise KeyboardInterrupt
        write_sealed(path, facts)

    monkeypatch.setattr(StoreWriter, "save_sometimes", lambda writer, position: writer.save(position))
    with monkeypatch.context() as patch:
        patch.setattr(module, "write_sealed", stop)
        with pytest.raises(KeyboardInterrupt):
            extracted(images, tmp_path / "store")
    if killed > 2:  # of one image or more the state was saved
        photos(images, 7, 2, 3)
        with pytest.raises(ValueError, match=rf"'0.bmp' has changed since they were found \(1 of {killed - 2} have"):
            extracted(images, tmp_path / "store")
    photos(images, 1, 2, 3 if killed == 5 else 8)  # one whose state was not saved may be another
    extracted(images, tmp_path / "store").verify()
    extracted(images, tmp_path / "whole")
    assert content(tmp_path / "store") == content(tmp_path / "whole")


@pytest.mark.parametrize("how", REPLACED)
def test_what_tells_the_images_of_an_unfinished_store_is_compared_before_it_goes_on(how, tmp_path, monkeypatch):
    first, second = photos(tmp_path / "a", 1, 2), photos(tmp_path / "b", 3, 4)
    extracted(second, tmp_path / "other")
    monkeypatch.setattr(StoreWriter, "finish", lambda writer: writer.save(writer.position))
    with pytest.raises(FileNotFoundError, match="2 images and is unfinished"):
        extracted(first, tmp_path / "store")
    monkeypatch.undo()
    file = tmp_path / "store" / "image_digests.npy"
    file.unlink()
    REPLACED[how](file, tmp_path / "other" / "image_digests.npy")
    for images in (first, second):
        with pytest.raises(ValueError, match=r"image_digests\.npy (holds something else|is a link)"):
            extracted(images, tmp_path / "store")


# ---- A vision tower's features ----


PROCESSOR = make_image_processor(16)


@pytest.fixture(scope="module")
def tower():
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    return ViTModel(ViTConfig(image_size=16, patch_size=8, **sizes)).eval()


def picture(seed):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (16, 16, 3), dtype=np.uint8))


def pictures(*ids, **changed):
    """A data set of images by id; of the ids that are keywords by another seed."""
    images = [picture(changed.get(image_id, sum(map(ord, image_id)))) for image_id in ids]
    return Dataset.from_dict({"image_id": list(ids), "image": images})


def encoded(tower, seed):
    pixels = PROCESSOR(images=[picture(seed)], return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        return tower(pixel_values=pixels).last_hidden_state[0].numpy()


def close(found, wanted):
    return bool(np.allclose(found.astype(np.float32), wanted, atol=4e-3, rtol=1e-3))


@pytest.fixture
def counted(tower, monkeypatch):
    """How many images each call of the tower had."""
    calls, forward = [], tower.forward

    def counting(pixel_values):
        calls.append(len(pixel_values))
        return forward(pixel_values)

    monkeypatch.setattr(tower, "forward", counting)
    return calls


@pytest.mark.parametrize("count", [1, 3])
def test_ids_below_between_and_beyond_those_of_features_are_not_in_them(count, tower, tmp_path):
    ids = [f"image {number}" for number in range(count)]
    features = cache_vision_features(tower, pictures(*ids), tmp_path, PROCESSOR, progress=False)
    absent = around(ids)
    assert [image_id in features for image_id in (*ids, *absent)] == [True] * count + [False] * (count + 1)
    for image_id in absent:
        with pytest.raises(KeyError, match=f"no features of the image '{image_id}'"):
            features[image_id]
    for image_id in ids:
        assert close(features[image_id], encoded(tower, sum(map(ord, image_id))))


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_images_of_each_split_are_read_from_their_own_rows(batch_size, tower, counted, tmp_path):
    splits = DatasetDict({"train": pictures("a", "b", "a"), "dev": pictures("b", "c").with_format("numpy"),
                          "test": pictures("d", "e", "a")})  # fmt: skip
    features = cache_vision_features(tower, splits, tmp_path, PROCESSOR, batch_size=batch_size, progress=False)
    assert counted == {1: [1] * 5, 2: [2, 2, 1], 5: [5]}[batch_size]
    assert len(features) == 5
    for image_id in "abcde":
        assert close(features[image_id], encoded(tower, ord(image_id)))
    assert features["a"].shape == (5, 8)


def test_another_column_of_images(tower, tmp_path):
    data = pictures("a", "b").rename_column("image", "photo")
    features = cache_vision_features(tower, data, tmp_path / "new", PROCESSOR, image_column="photo", progress=False)
    assert close(features["b"], encoded(tower, ord("b")))
    with pytest.raises(ValueError, match="`image` is not in the data"):
        cache_vision_features(tower, data, tmp_path / "none", PROCESSOR, progress=False)
    two = Dataset.from_dict({"image_id": ["a", "a"], "photo": [picture(1), picture(2)]})
    with pytest.raises(ValueError, match="'a'"):
        cache_vision_features(tower, two, tmp_path / "none", PROCESSOR, image_column="photo", progress=False)
    assert not (tmp_path / "none").exists()


def test_a_finished_folder_whose_lock_was_left_is_opened(tower, counted, tmp_path):
    data = pictures("a", "b")
    cache_vision_features(tower, data, tmp_path, PROCESSOR, progress=False)
    before = content(tmp_path)
    (tmp_path / ".lock").touch()
    features = cache_vision_features(tower, data, tmp_path, PROCESSOR, progress=False)
    assert (counted, len(features)) == ([2], 2)
    assert {name: held for name, held in content(tmp_path).items() if name != ".lock"} == before


def test_a_folder_that_is_opened_is_not_written_to(tower, counted, tmp_path):
    data = pictures("a", "b")
    cache_vision_features(tower, data, tmp_path, PROCESSOR, progress=False)
    times = {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    cache_vision_features(tower, data, tmp_path, PROCESSOR, progress=False)
    assert ({file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()}, counted) == (times, [2])


@pytest.mark.parametrize("name", ["keys.npy", "digests.npy", "features.npy", "image_digests.npy"])
def test_verifying_open_features_reads_all_files_anew(name, tower, tmp_path):
    features = cache_vision_features(tower, pictures("a", "b"), tmp_path, PROCESSOR, progress=False)
    features.verify()
    damage(tmp_path / name)
    with pytest.raises(DamagedFileError, match=f"{name} holds something else than was written"):
        features.verify()


@pytest.mark.parametrize("how", REPLACED)
def test_features_vouch_for_the_images_they_are_of(how, tower, tmp_path):
    first, second = pictures("a", "b"), pictures("a", "b", a=3, b=4)
    features = cache_vision_features(tower, first, tmp_path / "features", PROCESSOR, progress=False)
    cache_vision_features(tower, second, tmp_path / "other", PROCESSOR, progress=False)
    with pytest.raises(ValueError, match=r"holds features of other images: image 0 has changed .*2 of 2"):
        cache_vision_features(tower, second, tmp_path / "features", PROCESSOR, progress=False)
    file = tmp_path / "features" / "image_digests.npy"
    file.unlink()
    REPLACED[how](file, tmp_path / "other" / "image_digests.npy")
    (wrong,) = verify(tmp_path / "features")
    assert "image_digests.npy" in wrong.error
    for use in (
        features.verify,
        lambda: VisionFeatures(tmp_path / "features"),
        lambda: cache_vision_features(tower, first, tmp_path / "features", PROCESSOR, progress=False),
        lambda: cache_vision_features(tower, second, tmp_path / "features", PROCESSOR, progress=False),
    ):
        with pytest.raises(DamagedFileError, match=r"image_digests\.npy .*Delete the folder, and write it again\."):
            use()


def test_features_of_a_format_before_are_refused(tower, tmp_path):
    cache_vision_features(tower, pictures("a"), tmp_path, PROCESSOR, progress=False)
    facts = read_sealed(tmp_path / "vision_features.json", "")
    write_sealed(tmp_path / "vision_features.json", {**facts, "format": 3})
    with pytest.raises(ValueError, match="features of another format"):
        cache_vision_features(tower, pictures("a"), tmp_path, PROCESSOR, progress=False)
    del facts["format"]
    write_sealed(tmp_path / "vision_features.json", facts)
    with pytest.raises(DamagedFileError, match="Delete the folder, and write it again"):
        VisionFeatures(tmp_path)


@pytest.mark.parametrize(("changed", "refused"), [("a", True), ("b", True), ("c", False), ("d", False)])
def test_images_that_were_encoded_before_a_kill_stay_what_they_were(changed, refused, tower, tmp_path, monkeypatch):
    """Two of four are encoded when a run is killed; the others may be other ones when it goes on."""
    monkeypatch.setattr(vision_features, "_SAVE_EVERY", 1)
    forward, calls = tower.forward, []

    def killed(pixel_values):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return forward(pixel_values)

    options = {"batch_size": 2, "progress": False}
    monkeypatch.setattr(tower, "forward", killed)
    with pytest.raises(KeyboardInterrupt):
        cache_vision_features(tower, pictures(*"abcd"), tmp_path, PROCESSOR, **options)
    now = pictures(*"abcd", **{changed: 7})
    if refused:
        with pytest.raises(ValueError, match=rf"image {'abcd'.index(changed)} has changed since .*1 of 2 have"):
            cache_vision_features(tower, now, tmp_path, PROCESSOR, **options)
    else:
        features = cache_vision_features(tower, now, tmp_path, PROCESSOR, **options)
        for image_id in "abcd":
            assert close(features[image_id], encoded(tower, 7 if image_id == changed else ord(image_id)))


@pytest.mark.parametrize(("done", "told"), [(1999, "has 1,999 images of 2,000"), (0, "has 0 images of 2,000")])
def test_features_of_all_but_the_last_image_are_not_finished(done, told, tower, tmp_path):
    cache_vision_features(tower, pictures("a"), tmp_path, PROCESSOR, progress=False)
    facts = read_sealed(tmp_path / "vision_features.json", "")
    write_sealed(tmp_path / "vision_features.json", {**facts, "done": done, "images": 2000})
    with pytest.raises(FileNotFoundError, match=told):
        VisionFeatures(tmp_path)


@pytest.mark.parametrize("resumed", [False, True])
def test_rows_of_the_batch_whose_features_are_too_large_are_named(resumed, tower, tmp_path, monkeypatch):
    forward, calls = tower.forward, []

    def large(pixel_values):
        found = forward(pixel_values)
        calls.append(len(pixel_values))
        if len(calls) == 1:
            found.last_hidden_state[0, 0, 0] = -65504  # the largest there is
        if resumed and len(calls) == 2:
            raise KeyboardInterrupt
        if len(calls) == 2 + resumed:
            found.last_hidden_state[-1, -1, -1] = 65520
        return found

    monkeypatch.setattr(vision_features, "_SAVE_EVERY", 1)
    monkeypatch.setattr(tower, "forward", large)
    arguments = (tower, pictures("a", "b", "a", "c", "b", "d", "e"), tmp_path, PROCESSOR)  # of rows 0, 1, 3, 5 and 6
    if resumed:
        with pytest.raises(KeyboardInterrupt):
            cache_vision_features(*arguments, batch_size=2, progress=False)
    with pytest.raises(ValueError, match=r"images of rows \[3, 5\] are not all within float16"):
        cache_vision_features(*arguments, batch_size=2, progress=False)
    assert calls == [2] * (2 + resumed)
    features = cache_vision_features(*arguments, batch_size=2, progress=False)
    assert features["a"].min() == -65504
    assert close(features["d"], encoded(tower, ord("d")))


def test_the_first_unreadable_image_of_a_batch_is_named(tower, counted, tmp_path, monkeypatch):
    monkeypatch.setattr(vision_features, "_SAVE_EVERY", 1)
    broken = {"bytes": b"nonsense", "path": None}
    made = pictures(*"abcdef").to_list()
    rows = [{**row, "image": broken if row["image_id"] in "de" else row["image"]} for row in made]
    with pytest.raises(UnreadableImageError, match=r"^The image of row 3 cannot be decoded"):
        cache_vision_features(tower, Dataset.from_list(rows), tmp_path, PROCESSOR, batch_size=2, progress=False)
    assert counted == [2]
    assert read_sealed(tmp_path / "vision_features.json", "")["done"] == 2


def test_the_arrays_of_a_region_store_are_not_written_over(tower, tmp_path):
    packed(tmp_path, of("a"), of("b"))
    before = content(tmp_path / "store")
    with pytest.raises(FileExistsError, match="store holds a region store, and vision features in the same folder"):
        cache_vision_features(tower, pictures("a", "b"), tmp_path / "store", PROCESSOR, progress=False)
    assert content(tmp_path / "store") == before


def test_a_tower_of_half_precision_is_run_in_it(tower, tmp_path):
    half = ViTModel(tower.config).eval()
    half.load_state_dict(tower.state_dict())
    features = cache_vision_features(half.to(torch.bfloat16), pictures("a", "b"), tmp_path, PROCESSOR, progress=False)
    np.testing.assert_allclose(features["b"].astype(np.float32), encoded(tower, ord("b")), atol=0.1)
    assert features["b"].dtype == np.float16


def test_a_transform_that_is_passed_over_is_told(tower, tmp_path, caplog):
    for told, data in ((False, pictures("a")), (True, pictures("a").with_transform(lambda rows: rows))):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            features = cache_vision_features(tower, data, tmp_path, PROCESSOR, progress=False)
        assert ("transform" in caplog.text) == told
        assert close(features["a"], encoded(tower, ord("a")))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"images": 3, "image_processor": {}}, "features of another images and another image_processor. They"),
        ({"tower": "x"}, "features of another tower. They"),
        ({"set of images": "x"}, "features of another set of images. They"),
    ],
)
def test_all_in_which_features_differ_is_told(change, told, tower, tmp_path):
    cache_vision_features(tower, pictures("a", "b"), tmp_path, PROCESSOR, progress=False)
    facts = read_sealed(tmp_path / "vision_features.json", "")
    write_sealed(tmp_path / "vision_features.json", {**facts, **change, "done": 3})
    before = content(tmp_path)
    with pytest.raises(ValueError, match=told):
        cache_vision_features(tower, pictures("a", "b"), tmp_path, PROCESSOR, progress=False)
    assert content(tmp_path) == before
