"""A vision tower's features at the edges: ids around them, folders of killed runs, and images that changed."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from crawl import contents
from datasets import Dataset, DatasetDict
from small_stores import REPLACED, around, damage, of, packed, picture
from transformers import ViTConfig, ViTModel

from hf_curriculum import make_image_processor
from hf_curriculum.data.images import UnreadableImageError
from hf_curriculum.files import DamagedFileError, read_sealed, write_sealed
from hf_curriculum.models import vision_features
from hf_curriculum.models.vision_features import VisionFeatures, cache_vision_features
from hf_curriculum.verify import verify

pytestmark = pytest.mark.usefixtures("unsynced")

PROCESSOR = make_image_processor(16)


@pytest.fixture(scope="module")
def tower():
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    return ViTModel(ViTConfig(image_size=16, patch_size=8, **sizes)).eval()


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
    before = contents(tmp_path)
    (tmp_path / ".lock").touch()
    features = cache_vision_features(tower, data, tmp_path, PROCESSOR, progress=False)
    assert (counted, len(features)) == ([2], 2)
    assert {name: held for name, held in contents(tmp_path).items() if name != ".lock"} == before


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
    before = contents(tmp_path / "store")
    with pytest.raises(FileExistsError, match="store holds a region store, and vision features in the same folder"):
        cache_vision_features(tower, pictures("a", "b"), tmp_path / "store", PROCESSOR, progress=False)
    assert contents(tmp_path / "store") == before


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
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=told):
        cache_vision_features(tower, pictures("a", "b"), tmp_path, PROCESSOR, progress=False)
    assert contents(tmp_path) == before
