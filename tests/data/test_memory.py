"""What the stages of the data hold in memory does not grow with the rows, but for a few numbers each."""

import gc
import tracemalloc

import datasets
import numpy as np
import pyarrow as pa
import pytest
from datasets import Dataset
from datasets.arrow_writer import ArrowWriter

from hf_curriculum import CaptionLength, add_scores, hold_out, load_scores, save_scores
from hf_curriculum.data import image_files
from hf_curriculum.data.captions import drop_empty_captions
from hf_curriculum.data.image_files import derive_image_ids, drop_unreadable_images

FEW, MANY = 20_000, 60_000


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
        yield


@pytest.fixture(scope="module")
def sizes(tmp_path_factory):
    """The same data with few and many rows, memory-mapped: two captions per image."""
    folder = tmp_path_factory.mktemp("rows")
    features = datasets.Features({"image": datasets.Image(), "caption": datasets.Value("string")})
    found = []
    for rows in (FEW, MANY):
        path = str(folder / f"{rows}.arrow")
        with ArrowWriter(features=features, path=path, writer_batch_size=100) as writer:
            for start in range(0, rows, 1000):
                numbers = range(start, start + 1000)
                pictures = [{"bytes": (number // 2).to_bytes(8, "big"), "path": None} for number in numbers]
                captions = [f"a dog near ball {number}" for number in numbers]
                writer.write_batch({"image": pictures, "caption": captions})
        found.append(Dataset.from_file(path))
    return found


def held_per_row(work, few, many, *, python=True):
    """How many bytes more a row takes at most while `work` runs: of Arrow and, with `python`, of Python and NumPy."""
    peaks, pool = [], pa.default_memory_pool()
    for data in (few, few, many):  # once for what is loaded or compiled at first
        gc.collect()
        counted = pa.proxy_memory_pool(pool)
        pa.set_memory_pool(counted)
        tracemalloc.start()
        try:
            result = work(data)
            peaks.append(counted.max_memory() + python * tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
            pa.set_memory_pool(pool)
        del result
    return (peaks[2] - peaks[1]) / (len(many) - len(few))


@pytest.fixture(scope="module")
def with_ids(sizes):
    return [derive_image_ids(data) for data in sizes]


def test_finding_unreadable_images(sizes, monkeypatch):
    monkeypatch.setattr(image_files, "_verdict", lambda item, max_pixels: (item[0], None, True))
    never_checked = iter(range(1, 9))  # verdicts are kept per limit
    held = held_per_row(lambda data: drop_unreadable_images({"train": data}, max_pixels=next(never_checked)), *sizes)
    assert held < 100


def test_leaving_out_unreadable_images(sizes, monkeypatch):
    def verdict(item, max_pixels):
        return item[0], "broken" if item[1]["bytes"] == bytes(8) else None, True

    monkeypatch.setattr(image_files, "_verdict", verdict)
    for data in sizes:
        assert len(drop_unreadable_images({"train": data})["train"]) == len(data) - 2
    assert held_per_row(lambda data: drop_unreadable_images({"train": data}), *sizes) < 60


def test_a_later_start(sizes, with_ids):
    assert held_per_row(derive_image_ids, *sizes) < 8


def test_ids_are_few_batches(with_ids):
    """Arrow holds something for each batch: `datasets` makes one of 100 images, ids are in larger ones."""
    ids = with_ids[1].data.blocks[0][1]
    assert ids.column("image_id").num_chunks <= MANY / 10_000


@pytest.mark.parametrize("by", ["image", "row"])
def test_hold_out(with_ids, by):
    assert held_per_row(lambda data: hold_out(data, 0.1, by=by), *with_ids) < 100


def test_drop_empty_captions(with_ids):
    assert held_per_row(drop_empty_captions, *with_ids) < 8


def test_scores_per_image(with_ids):
    def score(data):
        return add_scores(data, CaptionLength(), per_image="max")

    assert held_per_row(score, *with_ids) < 160  # with the text of each id once, to compare the images of an id
    scores = score(with_ids[1])["caption_length"][:]
    assert np.allclose(scores, 5)


def test_scores_in_a_file_of_their_own(with_ids, tmp_path):
    """The key, an id and a caption of 69 bytes, is held, and not twice; hash tables are of Python."""
    few, many = (add_scores(data, CaptionLength()) for data in with_ids)
    file = tmp_path / "scores.parquet"
    assert held_per_row(lambda data: save_scores(data, file), few, many, python=False) < 140
    save_scores(many, file)
    assert load_scores(with_ids[1], file)["caption_length"][:] == many["caption_length"][:]
