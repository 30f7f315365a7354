"""The edges of stored regions: ids, counts and runs at a limit, what is refused."""

from __future__ import annotations

import logging
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from crawl import contents
from small_stores import REPLACED, InMemory, around, damage, of, packed, picture

from hf_curriculum.data.regions import pack as module
from hf_curriculum.data.regions import store as stores
from hf_curriculum.data.regions.base import Regions
from hf_curriculum.data.regions.extract import extract_regions
from hf_curriculum.data.regions.pack import StoreWriter, pack_regions
from hf_curriculum.data.regions.store import RegionStore, fingerprint_of
from hf_curriculum.files import DamagedFileError, write_sealed
from hf_curriculum.verify import verify

pytestmark = pytest.mark.usefixtures("unsynced")

BOXES = np.float32([[0, 0, 10, 20], [5, 5, 30, 40]])
WANTED = {"dtype": "float32", "standardise": False, "made_by": None, "sources": [{"prefix": "", "path": "a"}]}


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
    before = contents(tmp_path / "store")
    (tmp_path / "store" / ".lock").touch()
    assert packed(tmp_path, of("a")).fingerprint == store.fingerprint
    left = contents(tmp_path / "store")
    left.pop(".lock", None)
    assert left == before


@pytest.mark.parametrize("standardise", [False, True])
@pytest.mark.parametrize("killed", [1, 3, 5, 7, 8])
def test_counts_and_classes_go_on_where_a_run_was_killed(killed, standardise, tmp_path, monkeypatch, caplog):
    first = InMemory(
        tmp_path / "a",
        of("1", classes=("dog", "cat"), value=1),
        of("empty", 0),
        of("1", value=9),
        of("2", 1, classes=("ox",), value=2),
        of("empty", 1),
    )
    second = InMemory(tmp_path / "b", of("3", boxes=BOXES, width=3, height=4, value=3), of("4", classes=("cat", "ox")))
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
    assert contents(tmp_path / "part") == contents(tmp_path / "whole")
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
    file = InMemory(tmp_path / "b", of("3"))
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
    assert sorted(contents(tmp_path / "store")) == names


def test_what_a_killed_run_left_before_its_first_state_is_written_over(tmp_path):
    whole = packed(tmp_path, of("1", boxes=BOXES), name="whole")
    (tmp_path / "store").mkdir()
    names = ("boxes", "features", "flags", "sizes", "ids", "id_offsets", "offsets", "digests", "image_digests")
    for name in names:
        (tmp_path / "store" / f"{name}.npy").write_bytes(b"half" * 99)
    (tmp_path / "store" / ".hidden").touch()
    assert packed(tmp_path, of("1", boxes=BOXES)).fingerprint == whole.fingerprint
    assert contents(tmp_path / "store") == {**contents(tmp_path / "whole"), ".hidden": b""}


def test_all_that_differs_from_a_store_is_told(tmp_path):
    one, two = (InMemory(tmp_path / name, of(name)) for name in "xy")
    pack_regions([one, two], tmp_path / "store", made_by="w" * 200, progress=False)
    (tmp_path / "y").write_text("changed")
    changed = InMemory(tmp_path / "y", of("y"))
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
        patch.setattr(module, "open_regions", lambda path: opened.append(path) or InMemory(tmp_path / "x"))
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
    assert contents(tmp_path / "store") == contents(tmp_path / "whole")


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
