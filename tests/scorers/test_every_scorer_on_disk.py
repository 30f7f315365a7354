"""What every scorer of `SCORERS` costs on a data set with embedded images, whole, shuffled, filtered or split."""

from __future__ import annotations

import any_scorer as ANY
import numpy as np
import PIL.Image
import pytest
from datasets import Dataset, Image, load_dataset, load_from_disk

from hf_curriculum import add_scores, load_scored, load_scores, read_provenance, save_scored, save_scores
from hf_curriculum.provenance import score_values

ROWS = 200
VIEWS = {
    "whole": lambda data: data,
    "shuffled": lambda data: data.shuffle(seed=1),
    "filtered": lambda data: data.filter(
        lambda ids: [int(name.split()[1]) % 4 > 0 for name in ids], input_columns="image_id", batched=True
    ),
    "split": lambda data: data.train_test_split(0.1, seed=0)["train"],
}
each = pytest.mark.parametrize("name", ANY.NAMES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A data set whose images weigh over 2 kB each, eight rows to an image."""
    path = tmp_path_factory.mktemp("every") / "data"
    rows = ANY.rows(ROWS)
    rows["image_id"] = [f"picture {number // 8 % 6}" for number in range(ROWS)]
    rows["image"] = [ANY.PNGS[number // 8 % 6 % len(ANY.PNGS)] for number in range(ROWS)]
    Dataset.from_dict(rows, features=ANY.FEATURES).save_to_disk(str(path))
    return path


def weight(folder):
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@pytest.fixture
def opened(monkeypatch):
    """Counts what decodes images: `datasets`, and Pillow's loading of pixels."""
    count = {"datasets": 0, "pixels": 0}

    def counted(owner, method, kind):
        original = getattr(owner, method)

        def call(*arguments, **options):
            count[kind] += 1
            return original(*arguments, **options)

        monkeypatch.setattr(owner, method, call)

    counted(Image, "decode_example", "datasets")
    counted(PIL.Image, "open", "pixels")
    return count


@each
@pytest.mark.parametrize("view", ["split", *(pytest.param(view, marks=pytest.mark.slow) for view in list(VIEWS)[:3])])
def test_few_bytes_and_no_image_that_is_not_looked_at(name, view, folder, opened):
    data = VIEWS[view](load_from_disk(str(folder)))
    before, opened["datasets"] = weight(folder), 0
    scorer = ANY.build(name)
    opened["pixels"] = 0
    scored = add_scores(data, scorer)
    assert 0 < weight(folder) - before <= 32 * len(data)
    assert opened["datasets"] == 0
    looks = "image" in scorer.columns
    images = len(set(data["image_id"][:])) + len(getattr(scorer, "other_images_", ()))
    images += 2 * len(getattr(scorer, "target_rows", {}).get("image", ()))  # their gradient, a comparison
    assert opened["pixels"] <= (len(data) if name == "box_count" else images if looks else 0)  # heads, or pixels
    assert (opened["pixels"] > 0) == looks
    assert scored.features["image"] == Image()
    assert len(scored) == len(data)
    assert list(read_provenance(scored)) == list(scorer.outputs)


@each
def test_a_stream_has_the_same_scores(name):
    data, scorer = ANY.data(12), ANY.build(name)
    expected = add_scores(data, scorer, batch_size=4)
    stream = add_scores(data.to_iterable_dataset(), ANY.build(name), batch_size=4)
    rows = list(stream)
    assert stream.features == expected.features
    for column in scorer.outputs:
        values = np.float32([row[column] for row in rows])
        np.testing.assert_allclose(values, score_values(expected, column), rtol=1e-4)
    assert [row["caption"] for row in rows] == data["caption"][:]
    assert rows[0]["image"].size == (32, 24)


@each
def test_the_result_is_kept_like_any_data_set(name, tmp_path):
    data, scorer = ANY.data(12), ANY.build(name)
    scored = add_scores(data.shuffle(seed=2), scorer)
    save_scored(scored, tmp_path / "saved")
    scored.to_parquet(str(tmp_path / "data.parquet"))  # what `push_to_hub` uploads
    read = load_dataset("parquet", data_files=str(tmp_path / "data.parquet"), split="train", cache_dir=str(tmp_path))
    side = load_scores(data, save_scores(scored, tmp_path / "scores.parquet", columns=list(scorer.outputs)))
    for column in scorer.outputs:
        for other in (load_scored(tmp_path / "saved"), read):
            np.testing.assert_array_equal(score_values(other, column), score_values(scored, column))
        back = side.shuffle(seed=2)
        np.testing.assert_array_equal(score_values(back, column), score_values(scored, column))
        assert read_provenance(side)[column] == scorer.describe(column)
    assert read_provenance(read) == read_provenance(scored)
    assert read[0]["image"].size == (32, 24)
