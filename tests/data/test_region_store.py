"""Stores of regions: equal to the files they were packed from, the same bytes after a kill; errors name images."""

from __future__ import annotations

import base64
import errno
import json
import logging
import os
import pickle
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from xxhash import xxh3_128_hexdigest

from hf_curriculum import VisualEntropy, files
from hf_curriculum.data import array_files
from hf_curriculum.data.regions import pack as module
from hf_curriculum.data.regions.base import Regions, RegionSource
from hf_curriculum.data.regions.open import open_regions
from hf_curriculum.data.regions.pack import pack_regions
from hf_curriculum.data.regions.store import FACTS, PER_REGION, RegionStore, id_key
from hf_curriculum.files import DamagedFileError, read_sealed, write_sealed

DIMS, CLASSES = 6, 4


def packed(array):
    return base64.b64encode(np.ascontiguousarray(array, dtype="<f4").tobytes()).decode()


def line(image_id, count, seed, dims=DIMS, classes=CLASSES, **changed):
    rng = np.random.default_rng(seed)
    corners = rng.random((count, 2)) * 50
    boxes = np.concatenate([corners, corners + 1 + rng.random((count, 2)) * 40], axis=1)
    features = changed.get("features", rng.standard_normal((count, dims)))
    scores = rng.dirichlet(np.ones(classes), size=count)
    return "\t".join(map(str, [image_id, 100, 120 + seed, count, packed(boxes), packed(features), packed(scores)]))


def table(path, ids, start=0, **changed):
    """A table of bottom-up attention with class probabilities; image k has (start + k) % 5 regions."""
    rows = [line(image_id, (start + row) % 5, start + row, **changed) for row, image_id in enumerate(ids)]
    path.write_text("\n".join(rows) + "\n")
    return path


def content(folder):
    """Name -> bytes of every file."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def assert_equal(found, wanted, atol=0.0):
    assert len(found) == len(wanted)
    assert (found.width, found.height, found.normalised) == (wanted.width, wanted.height, wanted.normalised)
    assert found.classes == wanted.classes
    for name, tolerance in (("boxes", 0), ("confidence", 0), ("features", atol), ("class_scores", atol)):
        one, other = getattr(found, name), getattr(wanted, name)
        assert (one is None) == (other is None), name
        if len(found) and one is not None:
            assert one.dtype == np.float32
            np.testing.assert_allclose(one, other, atol=tolerance, rtol=tolerance, err_msg=name)


@pytest.mark.parametrize(("dtype", "atol"), [("float32", 0.0), ("float16", 1e-3)])
def test_a_store_holds_what_its_source_has(tmp_path, dtype, atol):
    source = open_regions(table(tmp_path / "a.tsv", range(20)))
    store = pack_regions(source, tmp_path / "store", dtype=dtype, progress=False)
    assert list(store) == list(source)
    assert len(store) == 20
    for image_id in source:
        assert_equal(store[image_id], source[image_id], atol)
        features = store.features(image_id)
        assert features.dtype == torch.float32
        assert features.shape == (len(source[image_id]), DIMS)
    assert 7 in store
    assert "20" not in store
    facts = store.facts
    assert (facts["images"], facts["regions"], facts["dims"], facts["empty"]) == (20, 40, DIMS, 4)
    assert np.load(tmp_path / "store" / "features.npy", mmap_mode="r").dtype == np.dtype(dtype)
    assert facts["sources"][0]["path"] == "a.tsv"
    assert str(tmp_path) not in json.dumps(facts)
    with pytest.raises(KeyError, match=r"has no regions of the image '20': .* It has 20, such as '0'"):
        store["20"]
    one, other = (VisualEntropy(regions=it, background=None)({"image_id": ["4", "8"]}) for it in (store, source))
    np.testing.assert_allclose(one["visual_entropy"], other["visual_entropy"], atol=20 * atol + 1e-6)


def test_a_batch_is_padded_with_zeros(tmp_path):
    for dtype in ("float16", "float32"):
        store = pack_regions(table(tmp_path / "a.tsv", range(9)), tmp_path / dtype, dtype=dtype, progress=False)
        features, mask = store.read_batch(["3", "0", "2"])
        assert features.shape == (3, 3, DIMS)
        assert mask.tolist() == [[1, 1, 1], [0, 0, 0], [1, 1, 0]]
        for row, image_id in enumerate(("3", "0", "2")):
            count = int(mask[row].sum())
            assert torch.equal(features[row, :count], store.features(image_id))
            assert not features[row, count:].any()


def test_an_image_takes_twenty_bytes_of_memory(tmp_path):
    store = pack_regions(table(tmp_path / "a.tsv", range(50)), tmp_path / "new" / "store", progress=False)
    held = [value for value in vars(store).values() if isinstance(value, np.ndarray)]
    assert not any(isinstance(value, np.memmap) for value in held)
    assert sum(value.nbytes for value in held) == 20 * 50 + 8
    assert all(isinstance(value, np.memmap) for value in store._arrays.values())


def test_workers_open_the_folder_for_themselves(tmp_path):
    store = pack_regions(table(tmp_path / "a.tsv", range(9)), tmp_path / "store", progress=False)
    wanted = store.features("3")
    text = pickle.dumps(store)
    assert len(text) < 300
    again = pickle.loads(text)
    assert torch.equal(again.features("3"), wanted)
    assert again.arguments() == store.arguments() == {**store.arguments(), "type": "RegionStore", "path": "store"}
    loader = torch.utils.data.DataLoader(["3", "1"], batch_size=2, collate_fn=store.read_batch, num_workers=1)
    assert torch.equal(next(iter(loader))[0][0], wanted)


def test_a_table_is_read_once_from_its_beginning_to_its_end(tmp_path, monkeypatch):
    path = table(tmp_path / "a.tsv", range(9))
    monkeypatch.setattr("hf_curriculum.data.regions.tables.find_lines", lambda path: pytest.fail("an index was made"))
    source = open_regions(path)
    positions = [position for position, _ in source.scan()]
    assert positions == np.cumsum([len(row) + 1 for row in path.read_text().splitlines()]).tolist()
    assert [found.image_id for _, found in source.scan(positions[5])] == ["6", "7", "8"]
    assert len(pack_regions(source, tmp_path / "store", progress=False)) == 9


def killed_after(count, monkeypatch):
    """`pack_regions` saves its state after every third image, and ends before image `count`, as if it was killed."""
    add, sometimes = module.StoreWriter.add, module.StoreWriter.save_sometimes
    seen = []

    def stop(writer, image_id, regions, *image_digest):
        seen.append(image_id)
        if len(seen) > count:
            for array in writer._arrays.values():
                array._file.flush()  # what a kill may leave behind of what was added since the last state
            raise KeyboardInterrupt
        add(writer, image_id, regions, *image_digest)

    def save(writer, position):
        if len(seen) % 3 == 0:
            writer.save(position)

    monkeypatch.setattr(module.StoreWriter, "add", stop)
    monkeypatch.setattr(module.StoreWriter, "save_sometimes", save)
    return lambda: (
        monkeypatch.setattr(module.StoreWriter, "add", add),
        monkeypatch.setattr(module.StoreWriter, "save_sometimes", sometimes),
    )


@pytest.mark.parametrize("count", [0, 2, 5, 11, 13, 17])
def test_killed_and_finished_is_the_same_byte_for_byte(tmp_path, monkeypatch, count):
    tables = {"a": table(tmp_path / "a.tsv", range(10)), "b": table(tmp_path / "b.tsv", range(8), start=1)}
    arguments = {"standardise": True, "progress": False}
    pack_regions(tables, tmp_path / "whole", **arguments)
    restore = killed_after(count, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        pack_regions(tables, tmp_path / "killed", **arguments)
    restore()
    with pytest.raises(FileNotFoundError, match="images and is unfinished"):
        RegionStore(tmp_path / "killed")
    pack_regions(tables, tmp_path / "killed", **arguments)
    assert content(tmp_path / "killed") == content(tmp_path / "whole")


@pytest.mark.slow
def test_a_real_kill(tmp_path):
    path = table(tmp_path / "a.tsv", range(3000), dims=512)
    pid = os.fork()
    if pid == 0:
        try:
            module._SAVE_BYTES = 1 << 16
            pack_regions(path, tmp_path / "killed", progress=False)
        finally:
            os._exit(9)
    features = tmp_path / "killed" / "features.npy"
    while not features.is_file() or features.stat().st_size < 1 << 20:
        assert os.waitpid(pid, os.WNOHANG) == (0, 0)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with pytest.raises(FileNotFoundError, match="is unfinished"):
        RegionStore(tmp_path / "killed")
    pack_regions(path, tmp_path / "killed", progress=False)
    pack_regions(path, tmp_path / "whole", progress=False)
    assert content(tmp_path / "killed") == content(tmp_path / "whole")


def test_data_sets_and_files_in_one_store(tmp_path):
    table(tmp_path / "karpathy_train.tsv.0", [9, 3])
    table(tmp_path / "karpathy_val.tsv", [5], start=2)
    table(tmp_path / "cc.tsv", [9], start=4)
    (tmp_path / "karpathy_val.lineidx").write_text("0\n")
    sources = {"coco": str(tmp_path / "karpathy_*"), "cc": [tmp_path / "cc.tsv"]}
    store = pack_regions(sources, tmp_path / "store", prefix="all/", progress=False)
    assert list(store) == ["all/coco/9", "all/coco/3", "all/coco/5", "all/cc/9"]
    assert len(store["all/cc/9"]) == 4
    assert [about["prefix"] for about in store.facts["sources"]] == ["all/coco", "all/coco", "all/cc"]
    assert store.facts["counts"] == [2, 1, 1]
    merged = pack_regions({"x": store, "y": tmp_path / "cc.tsv"}, tmp_path / "merged", progress=False)
    assert_equal(merged["x/all/cc/9"], store["all/cc/9"])
    with pytest.raises(FileNotFoundError, match="No file matches"):
        pack_regions(str(tmp_path / "vinvl_*.tsv"), tmp_path / "none")
    with pytest.raises(TypeError, match="was given 3 as `source`"):
        pack_regions(3, tmp_path / "none")


def test_a_pattern_in_a_folder_with_brackets_is_of_that_folder(tmp_path):
    for folder, image in (("set[1]", 1), ("set1", 2)):
        (tmp_path / folder).mkdir()
        table(tmp_path / folder / "a.tsv", [image], start=2)
    assert list(pack_regions(str(tmp_path / "set[1]" / "*.tsv"), tmp_path / "store", progress=False)) == ["1"]


def test_an_id_in_two_files_names_both(tmp_path):
    table(tmp_path / "a.tsv", [1, 2])
    table(tmp_path / "b.tsv", [3, 2])
    with pytest.raises(ValueError, match=r"image '2' is in a\.tsv and in b\.tsv"):
        pack_regions(str(tmp_path / "*.tsv"), tmp_path / "store", progress=False)
    prefixed = pack_regions({name: tmp_path / f"{name}.tsv" for name in "ab"}, tmp_path / "two", progress=False)
    assert list(prefixed) == ["a/1", "a/2", "b/3", "b/2"]


def test_the_first_line_of_an_image_counts(tmp_path, caplog):
    path = table(tmp_path / "a.tsv", [1, 2, 1, 3, 2])
    with caplog.at_level(logging.WARNING):
        store = pack_regions(path, tmp_path / "store", progress=False)
    assert (list(store), store.facts["repeated"]) == (["1", "2", "3"], 2)
    assert "2 lines were for images that their table had before" in caplog.text
    assert_equal(store["2"], open_regions(path)["2"], 1e-3)


def test_features_that_no_model_can_learn_from_name_the_image(tmp_path):
    features = np.zeros((1, DIMS), np.float32)
    for value, reason in ((np.nan, "not all finite"), (np.inf, "not all finite"), (7e4, "float16's ±65,504")):
        features[0, 2] = value
        (tmp_path / "a.tsv").write_text(line(8, 1, 0) + "\n" + line(9, 1, 0, features=features) + "\n")
        with pytest.raises(ValueError, match=rf"features of image '9' in a\.tsv .*{reason}"):
            pack_regions(tmp_path / "a.tsv", tmp_path / reason, progress=False)
    assert (
        pack_regions(tmp_path / "a.tsv", tmp_path / "wide", dtype="float32", progress=False)["9"].features.max() == 7e4
    )


def test_parts_that_do_not_fit_name_the_image(tmp_path):
    (tmp_path / "a.tsv").write_text(line(8, 1, 0) + "\n" + line(9, 2, 0, dims=5) + "\n")
    with pytest.raises(ValueError, match=r"image '9' in a\.tsv have 5 numbers, and those of the images before 6"):
        pack_regions(tmp_path / "a.tsv", tmp_path / "dims", progress=False)
    (tmp_path / "a.tsv").write_text(line(8, 1, 0) + "\n" + line(9, 2, 0, classes=3) + "\n")
    with pytest.raises(ValueError, match=r"`class_scores` with \(3,\) columns, and images before \(4,\)"):
        pack_regions(tmp_path / "a.tsv", tmp_path / "classes", progress=False)
    np.savez(tmp_path / "boxes.npz", **{"9": [[0, 0, 50, 20]]})
    with pytest.raises(ValueError, match=r"The 1 regions of image '9' in boxes\.npz have no features"):
        pack_regions(tmp_path / "boxes.npz", tmp_path / "boxes", progress=False)
    np.savez(tmp_path / "none.npz")
    with pytest.raises(ValueError, match=r"hold no image: \['none\.npz'\]"):
        pack_regions(tmp_path / "none.npz", tmp_path / "none", progress=False)
    with pytest.raises(ValueError, match="`dtype='int8'` was given"):
        pack_regions(tmp_path / "a.tsv", tmp_path / "x", dtype="int8")


class Given(RegionSource):
    """Regions from memory, as a source."""

    def __init__(self, path, *regions):
        super().__init__(path)
        self._given = {found.image_id: found for found in regions}

    def _find(self):
        return self._given

    def _read(self, image_id, where):
        return where


def test_parts_that_some_images_lack(tmp_path):
    features = np.ones((2, 3), np.float32)
    boxes = np.float32([[0, 0, 1, 1], [0, 0, 0.5, 1]])
    regions = [
        Regions("plain", features=features),
        Regions("none"),
        Regions(
            "named", features=2 * features, boxes=boxes, normalised=True, classes=("dog", "ä cat"), width=5, height=4
        ),
        Regions("sure", features=features[:1], confidence=np.float32([0.5]), classes=("dog",)),
        Regions("last", features=features),
    ]
    (tmp_path / "a").write_text("")
    store = pack_regions(Given(tmp_path / "a", *regions), tmp_path / "store", progress=False)
    assert store.facts["classes"] == ["dog", "ä cat"]
    for found in regions:
        assert_equal(store[found.image_id], found)
    assert store.describe("named").features is None
    assert store.describe("named").classes == ("dog", "ä cat")


def test_only_images_without_a_region(tmp_path):
    (tmp_path / "a").write_text("")
    with pytest.raises(ValueError, match=r"hold 2 images and no region: \['a'\]"):
        pack_regions(Given(tmp_path / "a", Regions("1"), Regions("2")), tmp_path / "store", progress=False)


def test_standardised_features(tmp_path):
    tables = [table(tmp_path / "a.tsv", range(30)), table(tmp_path / "b.tsv", range(30, 60), start=3)]
    store = pack_regions(tables, tmp_path / "store", standardise=True, progress=False)
    plain = pack_regions(tables, tmp_path / "plain", progress=False)
    raw = torch.cat([plain.features(image_id) for image_id in plain])
    found = torch.cat([store.features(image_id) for image_id in store])
    wanted = (raw - raw.mean(0)) / raw.std(0, unbiased=False)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(store.read_batch(["4", "9"])[0][0], store.features("4"))
    np.testing.assert_array_equal(store["4"].features, store.features("4").numpy())
    assert store.fingerprint != plain.fingerprint
    given = pack_regions(tables[0], tmp_path / "given", standardise=store.moments.numpy(), progress=False)
    assert torch.equal(given.features("4"), store.features("4"))
    with pytest.raises(ValueError, match=r"of the shape \(2, 3\) were given for features of 6 numbers"):
        pack_regions(tables[0], tmp_path / "wrong", standardise=np.ones((2, 3), np.float32), progress=False)


def test_a_feature_that_never_changes_stays_finite(tmp_path):
    (tmp_path / "a").write_text("")
    source = Given(tmp_path / "a", Regions("1", features=np.float32([[0.1, 1, 0], [0.1, 3, 0]])))
    store = pack_regions(source, tmp_path / "store", dtype="float32", standardise=True, progress=False)
    np.testing.assert_allclose(store["1"].features, [[0, -1, 0], [0, 1, 0]], atol=1e-6)
    np.testing.assert_allclose(store.moments, [[0.1, 2, 0], [1, 1, 1]], atol=1e-6)


def test_what_made_the_features_can_be_told(tmp_path):
    tables = [table(tmp_path / "a.tsv", range(5)), table(tmp_path / "b.tsv", range(5, 9))]
    unknown = [pack_regions(path, tmp_path / f"{path.stem}0", progress=False) for path in tables]
    assert unknown[0].fingerprint != unknown[1].fingerprint
    known = [pack_regions(path, tmp_path / f"{path.stem}1", made_by="BUTD", progress=False) for path in tables]
    assert known[0].fingerprint == known[1].fingerprint != unknown[0].fingerprint
    assert known[0].facts["content"] != known[1].facts["content"]
    both = pack_regions(known, tmp_path / "both", progress=False)
    assert both.facts["made_by"] == "BUTD"
    assert both.fingerprint == known[0].fingerprint
    other = pack_regions(tables[1], tmp_path / "other", made_by="VinVL", progress=False)
    with pytest.raises(ValueError, match="come from other detectors or settings"):
        pack_regions([known[0], other], tmp_path / "mixed", progress=False)
    scaled = pack_regions(tables[1], tmp_path / "scaled", made_by="BUTD", standardise=True, progress=False)
    with pytest.raises(ValueError, match="standardised in other ways"):
        pack_regions([known[0], scaled], tmp_path / "mixed", progress=False)
    copied = pack_regions(scaled, tmp_path / "copied", progress=False)
    assert copied.fingerprint == scaled.fingerprint
    assert torch.equal(copied.features("7"), scaled.features("7"))
    together = pack_regions([known[0], scaled], tmp_path / "together", standardise=True, progress=False)
    straight = pack_regions(tables, tmp_path / "straight", standardise=True, progress=False)
    assert torch.equal(together.features("7"), straight.features("7"))


def test_a_folder_of_something_else(tmp_path):
    path = table(tmp_path / "a.tsv", range(5))
    store = pack_regions(path, tmp_path / "store", progress=False)
    before = content(tmp_path / "store")
    assert pack_regions(path, tmp_path / "store", progress=False).fingerprint == store.fingerprint
    with pytest.raises(ValueError, match="`dtype` is float16, not float32"):
        pack_regions(path, tmp_path / "store", dtype="float32")
    table(path, range(5), start=1)
    with pytest.raises(ValueError, match=r"holds another store: a\.tsv changed since then"):
        pack_regions(path, tmp_path / "store")
    with pytest.raises(ValueError, match=r"its sources are \['a\.tsv'\], not \['x:a\.tsv'\]"):
        pack_regions(path, tmp_path / "store", prefix="x")
    assert content(tmp_path / "store") == before
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_text("")
    with pytest.raises(ValueError, match=r"holds other files \(a\.jpg\)"):
        pack_regions(path, tmp_path / "photos")
    with pytest.raises(FileExistsError, match="is a file, and a folder is written"):
        pack_regions(path, path)
    with pytest.raises(FileNotFoundError, match="is no store of regions"):
        RegionStore(tmp_path / "photos")


def test_a_damaged_store(tmp_path):
    path = table(tmp_path / "a.tsv", range(5))
    pack_regions(path, tmp_path / "store", progress=False)
    features = tmp_path / "store" / "features.npy"
    whole = features.read_bytes()
    opened = RegionStore(tmp_path / "store")
    features.write_bytes(whole[:-20])
    with pytest.raises(ValueError, match=r"features\.npy is damaged \(ValueError: .*Copy or write"):
        RegionStore(tmp_path / "store")
    with pytest.raises(ValueError, match="has become shorter since it was opened"):
        opened.features("4")
    np.save(features, np.zeros((3, DIMS), np.float16))
    with pytest.raises(ValueError, match=r"has the shape \(3, 6\)"):
        RegionStore(tmp_path / "store")
    features.write_bytes(whole)
    keys = tmp_path / "store" / "keys.npy"
    keys.unlink()
    with pytest.raises(DamagedFileError, match=r"keys\.npy does not exist, .* Copy or write the store again\."):
        RegionStore(tmp_path / "store")
    os.mkfifo(keys)
    with pytest.raises(ValueError, match=r"keys\.npy is a FIFO"):
        RegionStore(tmp_path / "store")
    facts = tmp_path / "store" / FACTS
    facts.write_text(facts.read_text().replace('"images": 5', '"images": 4'))
    with pytest.raises(DamagedFileError, match=r"region_store\.json was damaged, or changed"):
        RegionStore(tmp_path / "store")
    write_sealed(facts, {**opened.facts, "format": 1})
    with pytest.raises(ValueError, match=r"is a store of format 1, and this version .* write the store again\."):
        RegionStore(tmp_path / "store")


def test_keys_stay_what_they_are():
    """Folders that were written hold them."""
    assert id_key("000000397133") == 1600587866394333534
    assert id_key(9) == id_key("9")


def test_a_store_opens_by_its_folder(tmp_path):
    pack_regions(table(tmp_path / "a.tsv", range(5)), tmp_path / "store", progress=False)
    assert isinstance(open_regions(tmp_path / "store"), RegionStore)
    assert Path(open_regions(tmp_path / "store").path) == tmp_path / "store"


@pytest.mark.parametrize("standardise", [False, True])
def test_verify_finds_a_flipped_bit_in_every_array(tmp_path, standardise):
    for number, regions in enumerate((2, 0, 3)):
        boxes = np.tile(np.float32([1, 2, 30, 40]), (regions, 1))
        arrays = {"feat": np.ones((regions, 4), np.float32) * number, "bbox": boxes, "image_w": 50, "image_h": 60}
        (tmp_path / f"{number % 2}").mkdir(exist_ok=True)
        np.savez(tmp_path / f"{number % 2}" / f"{number}.npz", **arrays)
    sources = {"a": tmp_path / "0", "b": tmp_path / "1"}
    pack_regions(sources, tmp_path / "store", progress=False, standardise=standardise).verify()
    for file in (tmp_path / "store").glob("*.npy"):
        whole = file.read_bytes()
        start = np.load(file, mmap_mode="r").offset
        for place in (start, len(whole) - 1):
            damaged = bytearray(whole)
            damaged[place] ^= 1
            file.write_bytes(damaged)
            with pytest.raises(ValueError, match=r"holds something else than was written|is damaged \("):
                RegionStore(tmp_path / "store").verify()
        file.write_bytes(whole)
    RegionStore(tmp_path / "store").verify()


@pytest.fixture
def mixed(tmp_path):
    """A store with all that an image may have or lack."""
    features, boxes = np.ones((2, 3), np.float32), np.float32([[0, 0, 1, 1], [0, 0, 0.5, 1]])
    sure = np.float32([0.2, 0.5])
    regions = [
        Regions("none"),
        Regions("bare", features=features, classes=("dog", "cat")),
        Regions("unsized", features=features, boxes=boxes, classes=("dog", "dog"), confidence=sure),
        Regions("half", features=features, boxes=boxes, width=5, classes=("cat", "dog"), confidence=sure),
        Regions("sized", features=features, boxes=boxes, width=5, height=4, classes=("ä", "cat"), confidence=sure),
        Regions(
            "shares", features=features, boxes=boxes, normalised=True, classes=("cat", "ä"), confidence=sure[::-1]
        ),
    ]
    (tmp_path / "a").write_text("")
    return pack_regions(Given(tmp_path / "a", *regions), tmp_path / "deep" / "store", progress=False)


def test_what_images_lack_by_its_kind(mixed):
    absent, known = [f"absent {number}" for number in range(9)], list(mixed)
    lacking = {f"are not in {mixed!r}": absent, f"have no region in {mixed!r}": ["none"]}
    assert mixed.missing([*absent, *known]) == lacking
    lacking[f"have no boxes in {mixed!r}"] = ["bare"]
    lacking[f"have no width and height in {mixed!r}, of which box values are shares"] = ["unsized", "half"]
    assert mixed.missing([*known, *absent], boxes=True) == lacking


def test_the_class_of_an_image_s_only_region(tmp_path):
    one = Regions("one", features=np.ones((1, 2), np.float32), classes=("dog",))
    (tmp_path / "a").write_text("")
    store = pack_regions(Given(tmp_path / "a", one), tmp_path / "store", progress=False)
    stored, of_image, codes = store.class_codes(["none", "one"])
    assert (stored.tolist(), of_image.tolist()) == ([False, True], [1])
    assert [store.facts["classes"][code] for code in codes] == ["dog"]


@pytest.mark.parametrize("standardise", [False, True])
def test_a_store_of_an_unknown_detector_takes_no_other_ones_name(tmp_path, standardise):
    stores = []
    for name, made_by in (("1", "BUTD"), ("2", None)):
        (tmp_path / f"{name}.tsv").write_text("")
        given = Given(tmp_path / f"{name}.tsv", Regions(name, features=np.full((2, 3), float(name), np.float32)))
        stores.append(pack_regions(given, tmp_path / name, made_by=made_by, progress=False))
    packed = pack_regions(stores, tmp_path / "packed", standardise=standardise, progress=False)
    assert packed.facts["made_by"] is None
    assert sorted(packed) == ["1", "2"]


def test_no_boxes_of_no_regions_are_read_back(tmp_path):
    (tmp_path / "a").write_text("")
    none = Regions("none", features=np.zeros((0, 3), np.float32), boxes=np.zeros((0, 4), np.float32))
    some = Regions("some", features=np.ones((2, 3), np.float32))
    store = pack_regions(Given(tmp_path / "a", none, some), tmp_path / "store", progress=False)
    assert store["none"].boxes.shape == (0, 4)
    assert store.describe("none").boxes.shape == (0, 4)
    assert store["some"].boxes is None


def test_zeros_that_are_skipped_are_in_the_digest(tmp_path):
    writer = array_files.ArrayWriter(tmp_path / "a.npy", "<f4", [2])
    writer.append(np.ones((1, 2)))
    writer.skip(3)
    writer.append(np.full((1, 2), 7))
    writer.flush()
    values = np.load(tmp_path / "a.npy")
    assert values.tolist() == [[1, 1], *[[0, 0]] * 3, [7, 7]]
    assert writer.facts == {"dtype": "<f4", "shape": [5, 2], "digest": xxh3_128_hexdigest(values.tobytes())}


def test_classes_of_many_images_at_once(mixed):
    ids = ["shares", "absent", "none", "bare", "sized", "unsized", "half", "absent too"]
    for least in (0.0, 0.5):
        stored, of_image, codes = mixed.class_codes(ids, least)
        assert stored.tolist() == [name in mixed for name in ids]
        found = [(ids[image], mixed.facts["classes"][code]) for image, code in zip(of_image, codes, strict=True)]
        expected = []
        for name in filter(mixed.__contains__, ids):
            regions = mixed.describe(name)
            sure = [1.0] * len(regions) if regions.confidence is None else regions.confidence
            expected += [(name, one) for one, value in zip(regions.classes or (), sure, strict=True) if value >= least]
        assert found == expected


def test_a_store_s_facts_and_files_are_whole_at_every_state(tmp_path, monkeypatch, mixed):
    assert read_sealed(Path(mixed.path) / FACTS, "") == mixed.facts
    assert "ä" in (Path(mixed.path) / FACTS).read_text(encoding="utf-8")
    assert not (Path(mixed.path) / ".lock").exists()
    synced = []
    monkeypatch.setattr(files.os, "fsync", synced.append)
    wanted = {"dtype": "float32", "standardise": False, "made_by": None, "sources": [{"prefix": "", "path": "a"}]}
    writer = module.StoreWriter(tmp_path / "store", wanted)
    with pytest.raises(RuntimeError, match="Another process writes"):
        module.StoreWriter(tmp_path / "store", wanted)
    dead = tmp_path / "store" / f"{files._writer()}999999999-00.{FACTS}"
    dead.write_text("half")
    writer.add("9", Regions("9", features=np.ones((2, 3), np.float32)))
    synced.clear()
    writer.save((0, 1))
    assert len(synced) == len(writer._arrays) + 1 == 9  # and the facts
    np.testing.assert_array_equal(np.load(tmp_path / "store" / "features.npy"), np.ones((2, 3)))
    writer.close()
    again = module.StoreWriter(tmp_path / "store", wanted)
    assert not dead.exists()
    again.finish()
    assert all(array._file.closed for array in again._arrays.values())
    assert not (tmp_path / "store" / ".lock").exists()
    assert len(RegionStore(tmp_path / "store")) == 1


def test_a_state_is_saved_after_so_many_bytes_or_seconds(tmp_path, monkeypatch):
    wanted = {"dtype": "float16", "standardise": False, "made_by": None, "sources": [{"prefix": "", "path": "a"}]}
    moments = iter([0.0] * 4 + [29.9, 30.0, 30.0, 59.9, 60.0, 60.0])
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(moments)))
    monkeypatch.setattr(module, "_SAVE_BYTES", 3 * 4 * 2)  # of three regions of four numbers
    writer, saved, save = module.StoreWriter(tmp_path / "store", wanted), [], module.StoreWriter.save
    monkeypatch.setattr(module.StoreWriter, "save", lambda self, place: saved.append(place) or save(self, place))
    for number, regions in enumerate((2, 1, 2, 0, 0, 0)):
        writer.add(str(number), Regions(str(number), features=np.ones((regions, 4), np.float32)))
        writer.save_sometimes((0, number))
    assert saved == [(0, 1), (0, 3), (0, 5)]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("offsets", {0: 1}),
        ("offsets", {-1: 9}),
        ("offsets", {1: 5, 2: 4}),
        ("id_offsets", {0: 1}),
        ("id_offsets", {-1: 4}),
        ("keys", {1: 0}),
        ("keys", {0: 2**63, 1: 2**62}),
        ("rows", {0: 5}),
    ],
)
def test_an_index_that_leads_elsewhere_is_refused_when_a_store_is_opened(tmp_path, name, change):
    store = pack_regions(table(tmp_path / "a.tsv", range(5)), tmp_path / "store", progress=False)
    array = np.load(tmp_path / "store" / f"{name}.npy")
    for place, value in change.items():
        array[place] = array[0] if (name, place) == ("keys", 1) and value == 0 else value
    np.save(tmp_path / "store" / f"{name}.npy", array)
    with pytest.raises(ValueError, match=rf"{name}\.npy holds something else than was written"):
        RegionStore(store.path)


def test_a_file_is_known_by_its_two_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_ENDS", 4)
    path = table(tmp_path / "a[1].tsv", range(2))
    content = path.read_bytes()
    assert module._identity(open_regions(path))["ends"] == module.digest(content[:4], content[-4:])
    monkeypatch.setattr(module, "_ENDS", len(content))
    assert module._identity(open_regions(path))["ends"] == module.digest(content, content)
    assert len(pack_regions(str(path), tmp_path / "store", progress=False)) == 2  # a name, though it looks a pattern


def test_a_detector_is_copied_with_a_store(tmp_path):
    for name in ("detector/model", "preprocessor_config.json"):
        (tmp_path / "store" / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / "store" / name).write_text(name)
    (tmp_path / "target").mkdir()
    for _ in range(2):
        module.copy_detector(tmp_path / "store", tmp_path / "target")
        assert content(tmp_path / "target") == content(tmp_path / "store")
    module.copy_detector(tmp_path / "none", tmp_path / "target")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "preprocessor_config.json").symlink_to(tmp_path / "target" / "preprocessor_config.json")
    (tmp_path / "linked" / "detector").symlink_to(tmp_path / "target" / "detector")
    (tmp_path / "store" / "detector" / "model").write_text("new")
    (tmp_path / "store" / "preprocessor_config.json").write_text("new")
    with pytest.raises(ValueError, match=r"detector is a link to .*target"):
        module.copy_detector(tmp_path / "store", tmp_path / "linked")
    assert (tmp_path / "linked" / "preprocessor_config.json").read_text() == "new"  # a file of its own now
    assert "new" not in {text.decode() for text in content(tmp_path / "target").values()}


def flip(file, place):
    """Another bit at a byte of a file."""
    with file.open("r+b") as stream:
        stream.seek(place, os.SEEK_SET if place >= 0 else os.SEEK_END)
        byte = stream.read(1)[0]
        stream.seek(place, os.SEEK_SET if place >= 0 else os.SEEK_END)
        stream.write(bytes([byte ^ 4]))


@pytest.mark.parametrize("name", ["features", "boxes", "confidence", "classes", "class_scores"])
def test_each_part_of_an_image_is_compared_whenever_it_is_read(tmp_path, name):
    boxes, sure = np.float32([[0, 0, 1, 1], [0, 0, 0.5, 1]]), np.float32([0.2, 0.5])
    parts = {"features": np.ones((2, 3), np.float32), "boxes": boxes, "confidence": sure, "classes": ("dog", "cat")}
    parts["class_scores"] = np.float32([[0.5, 0.5], [1, 0]])
    (tmp_path / "a").write_text("")
    given = Given(tmp_path / "a", *(Regions(key, width=5, height=4, **parts) for key in ("first", "second", "last")))
    store = pack_regions(given, tmp_path / "store", progress=False)
    assert store["second"].classes == ("dog", "cat")
    size = np.load(tmp_path / "store" / f"{name}.npy")[2:4].nbytes
    flip(tmp_path / "store" / f"{name}.npy", -2 * size)  # the first byte of the second image
    told = pytest.raises(DamagedFileError, match=rf"{name}\.npy holds something else .* of the image 'second'")
    for again in (False, True):
        opened = RegionStore(tmp_path / "store") if again else store
        reads = {
            "features": (opened.features, opened.raw_features, lambda key, opened=opened: opened.read_batch([key])),
            "classes": (opened.describe, lambda key, opened=opened: opened.class_codes([key])),
            "confidence": (opened.describe, lambda key, opened=opened: opened.class_codes([key], 0.1)),
        }
        for read in (opened.__getitem__, *reads.get(name, (opened.describe,))):
            with told:
                read("second")
            read("first")
            read("last")
    with pytest.raises(DamagedFileError, match=rf"{name}\.npy holds something else than was written"):
        store.verify()


def test_what_was_damaged_between_two_runs_is_told(tmp_path, monkeypatch):
    path = table(tmp_path / "a.tsv", range(10))
    whole = pack_regions(path, tmp_path / "whole", standardise=True, progress=False)
    restore = killed_after(8, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        pack_regions(path, tmp_path / "killed", standardise=True, progress=False)
    restore()
    arrays = read_sealed(tmp_path / "killed" / FACTS, "")["arrays"]
    assert {"features", "offsets", "digests", "ids"} < arrays.keys()
    before = content(tmp_path / "killed")
    for name in arrays:
        array = np.load(tmp_path / "killed" / f"{name}.npy", mmap_mode="r")
        flip(tmp_path / "killed" / f"{name}.npy", array.offset + array.nbytes // 2)
        with pytest.raises(DamagedFileError, match=rf"killed/{name}\.npy holds something else .*Delete the folder"):
            pack_regions(path, tmp_path / "killed", standardise=True, progress=False)
        (tmp_path / "killed" / f"{name}.npy").write_bytes(before[f"{name}.npy"])
    flip(tmp_path / "killed" / FACTS, before[FACTS].index(b'"regions"') + 11)
    with pytest.raises(DamagedFileError, match=r"region_store\.json"):
        pack_regions(path, tmp_path / "killed", standardise=True, progress=False)
    (tmp_path / "killed" / FACTS).write_bytes(before[FACTS])
    pack_regions(path, tmp_path / "killed", standardise=True, progress=False)
    assert content(tmp_path / "killed") == content(Path(whole.path))


@pytest.mark.parametrize("name", [*PER_REGION, "ids", "image_digests", "keys", "standardise"])
def test_a_link_under_the_name_of_an_array_is_not_written_through(tmp_path, name):
    thesis, store = tmp_path / "thesis.txt", tmp_path / "store"
    thesis.write_text("years of work")
    store.mkdir()
    (store / f"{name}.npy").symlink_to(thesis)
    regions = Regions("9", features=np.ones((1, 3), np.float32), boxes=np.float32([[0, 0, 1, 1]]), classes=("dog",),
                      class_scores=np.ones((1, 2), np.float32), confidence=np.float32([1]))  # fmt: skip
    (tmp_path / "a").write_text("")
    with pytest.raises(ValueError, match=rf"{name}\.npy( is a link to .*thesis|\), and a store of regions is)"):
        pack_regions(Given(tmp_path / "a", regions), store, standardise=True, progress=False)
    assert thesis.read_text() == "years of work"
    (store / f"{name}.npy").unlink()
    pack_regions(Given(tmp_path / "a", regions), store, standardise=True, progress=False).verify()


def test_a_full_disk_that_is_met_while_reading_back_names_the_file(tmp_path):
    writer = array_files.ArrayWriter(tmp_path / "a.npy", "f4")
    writer.append(np.arange(3))  # stays in a buffer, which a seek writes

    def no_space(position):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    seek, writer._file = writer._file.seek, SimpleNamespace(seek=no_space, read=writer._file.read)
    with pytest.raises(OSError, match=r"No space left .*a\.npy'"):
        writer.read()
    writer._file.seek = seek
    assert writer.read().tolist() == [0, 1, 2]


def test_a_full_disk_is_told_and_the_same_call_goes_on(tmp_path, monkeypatch):
    path = table(tmp_path / "a.tsv", range(10))
    whole = pack_regions(path, tmp_path / "whole", progress=False)
    monkeypatch.setattr(module.StoreWriter, "save_sometimes", lambda writer, position: writer.save(position))
    append = array_files.ArrayWriter.append

    def full(array, values):
        if array.path.name == "features.npy" and array.rows >= 9:
            array._file = SimpleNamespace(write=no_space, close=array._file.close)
        append(array, values)

    def no_space(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(array_files.ArrayWriter, "append", full)
    with pytest.raises(OSError, match=r"No space left .*the same call continues.*killed/features\.npy'") as told:
        pack_regions(path, tmp_path / "killed", progress=False)
    monkeypatch.undo()
    assert 0 < read_sealed(tmp_path / "killed" / FACTS, "")["images"] < 10
    pack_regions(path, tmp_path / "killed", progress=False)  # while the error, and so its frames, is still held
    assert told.value.errno == errno.ENOSPC
    assert content(tmp_path / "killed") == content(Path(whole.path))
