"""Scorers in batches as Ray Data hands them over; and, where Ray is installed, inside a local Ray."""

from __future__ import annotations

import pickle

import any_scorer as ANY
import numpy as np
import pyarrow as pa
import pytest

from hf_curriculum import CaptionLength, CLIPSimilarity, WordRarity, add_scores
from hf_curriculum.provenance import score_values
from hf_curriculum.scoring.sharded import RayScorer


def as_ray(rows):
    """Columns as Ray makes them: numpy's own types where all rows have one shape, objects elsewhere."""

    def cell(value):
        return np.asarray(value) if isinstance(value, list) and not isinstance(value[0], dict) else value

    batch = {}
    for name, values in rows.items():
        if isinstance(values[0], (int, float)):
            batch[name] = np.array(values)
        else:
            batch[name] = np.empty(len(values), object)
            batch[name][:] = [cell(value) for value in values] if name != "image_embedding" else values
    return batch


@pytest.mark.parametrize("name", ANY.NAMES)
def test_every_scorer_in_batches_of_ray(name):
    scorer, batch = ANY.build(name), as_ray(ANY.rows(6))
    found = RayScorer(scorer)(batch)
    expected = add_scores(ANY.data(6), scorer)
    assert list(found) == [*batch, *scorer.outputs]
    for column in scorer.outputs:
        assert found[column].dtype == np.float32
        np.testing.assert_allclose(found[column], score_values(expected, column), rtol=1e-5)


def test_images_in_any_form():
    batch = {"caption": np.array(["a red ball"] * 3, object)}
    expected = CLIPSimilarity()({**batch, "image": [ANY.PNGS[0]] * 3})["clip_similarity"]
    files = np.empty(3, object)
    files[:] = [ANY.PNGS[0]["bytes"]] * 3
    for images in (files, np.stack([ANY.PIXELS[0]] * 3)):  # as `read_binary_files` and `read_images` give them
        found = RayScorer(CLIPSimilarity())({**batch, "image": images})
        np.testing.assert_allclose(found["clip_similarity"], expected, rtol=1e-5)


def test_mistakes():
    with pytest.raises(TypeError, match=r'given a Table.*batch_format="numpy"'):
        RayScorer(CaptionLength())(pa.table({"caption": ["a"]}))
    with pytest.raises(TypeError, match=r'given a dict.*batch_format="numpy"'):
        RayScorer(CaptionLength())({"caption": ["a"]})
    with pytest.raises(RuntimeError, match="WordRarity was used before `fit`"):
        RayScorer(WordRarity())
    with pytest.raises(ValueError, match="`caption` is not in the data"):
        RayScorer(CaptionLength())({"text": np.array(["a"], object)})


def test_no_model_travels_to_the_workers():
    scorer = CLIPSimilarity()
    before = len(pickle.dumps(RayScorer(scorer)))
    scorer({"image": [ANY.PNGS[0]], "caption": ["a red ball"]})
    assert len(pickle.dumps(RayScorer(scorer))) == before < 5_000


@pytest.mark.slow
def test_a_local_ray(tmp_path):
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.data")
    scorers = [CaptionLength(), CLIPSimilarity()]
    data = ANY.data(12)
    expected = add_scores(data, scorers)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 * 2**20)
    try:
        rows = ray.data.from_items([{**row, "number": i} for i, row in enumerate(data.select_columns("caption"))])
        stored = {i: ANY.rows(12)["image"][i] for i in range(12)}
        rows = rows.map(lambda row: {**row, "image": stored[row["number"]], "image_id": str(row["number"] // 2)})
        rows = rows.map_batches(RayScorer(scorers[0]), batch_size=4)
        rows = rows.map_batches(RayScorer, fn_constructor_args=(scorers[1],), concurrency=1, batch_size=4)
        found = sorted(rows.take_all(), key=lambda row: row["number"])
    finally:
        ray.shutdown()
    for column in ("caption_length", "clip_similarity"):
        scores = np.float32([row[column] for row in found])
        np.testing.assert_allclose(scores, score_values(expected, column), rtol=1e-4)
