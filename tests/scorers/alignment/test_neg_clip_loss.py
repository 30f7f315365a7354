"""The negated CLIP loss of each pair: against the released code's formula, on all of the data and on batches of it."""

from __future__ import annotations

import any_scorer as ANY
import numpy as np
import pytest
from datasets import Dataset, Features, Image, List, Value

from hf_curriculum import CLIPSimilarity, add_scores, add_scores_sharded
from hf_curriculum.scorers.alignment.neg_clip_loss import NegCLIPLoss

GIVEN = {"image_embedding": "v", "text_embedding": "t"}
RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(60, 16)).astype(np.float32)
TEXTS = (IMAGES + RNG.normal(size=(60, 16))).astype(np.float32)  # of a pair more alike than of others


def data_of(images=IMAGES, texts=TEXTS):
    return Dataset.from_dict({"v": list(images), "t": list(texts)})


def released(images, texts, temperature):
    """The released code's formula over one batch, in float64: cosine minus half τ · log of the sums of each side."""
    images, texts = (side.astype(np.float64) for side in (images, texts))
    images, texts = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in (images, texts))
    cosines = images @ texts.T
    powers = np.exp(cosines / temperature)
    halves = 0.5 * temperature * np.log(powers.sum(1)), 0.5 * temperature * np.log(powers.sum(0))
    return np.diag(cosines) - halves[0] - halves[1]


@pytest.mark.parametrize("temperature", [0.01, 0.07, 1.0])
def test_one_batch_of_all_rows_is_the_released_formula(temperature):
    scorer = NegCLIPLoss(**GIVEN, temperature=temperature).fit(data_of())
    found = add_scores(data_of(), scorer)["neg_clip_loss"][:]
    np.testing.assert_allclose(found, released(IMAGES, TEXTS, temperature), rtol=0, atol=1e-6)
    assert max(found) <= 1e-6


def row_of(scorer, number):
    """The row of the data that a drawn pair is."""
    unit = IMAGES / np.linalg.norm(IMAGES, axis=1, keepdims=True)
    return int(np.abs(unit - scorer.images_[number]).sum(1).argmin())


def test_several_batches_are_the_mean_of_the_released_formula_on_each():
    scorer = NegCLIPLoss(**GIVEN, temperature=0.05, pairs_per_batch=12, num_batches=3, seed=4).fit(data_of())
    batches = [[row_of(scorer, number) for number in batch] for batch in scorer.batches_]
    assert [len(set(batch)) for batch in batches] == [12] * 3
    assert len({row for batch in batches for row in batch}) > 20  # drawn anew for each
    expected = np.zeros(60)
    for row in range(60):
        for batch in batches:
            rows = batch if row in batch else [*batch[:-1], row]
            expected[row] += released(IMAGES[rows], TEXTS[rows], 0.05)[rows.index(row)] / 3
    found = scorer({"v": list(IMAGES), "t": list(TEXTS)})["neg_clip_loss"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_neither_the_order_of_rows_nor_batches_nor_processes_matter():
    order = np.random.default_rng(1).permutation(60)
    few = {**GIVEN, "pairs_per_batch": 9, "num_batches": 4}
    scorer = NegCLIPLoss(**few).fit(data_of())
    expected = add_scores(data_of(), scorer)["neg_clip_loss"][:]
    for data in (data_of(IMAGES[order], TEXTS[order]), data_of().shuffle(seed=3)):
        other = NegCLIPLoss(**few).fit(data)
        np.testing.assert_array_equal(other.keys_[other.batches_[2]], scorer.keys_[scorer.batches_[2]])
        found = add_scores(data_of(), other, batch_size=7, num_proc=2)["neg_clip_loss"][:]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    another = NegCLIPLoss(**few, seed=1).fit(data_of())
    assert np.abs(add_scores(data_of(), another)["neg_clip_loss"] - np.array(expected)).max() > 1e-3


def test_a_caption_that_fits_any_image_loses_what_the_cosine_gives_it():
    images = np.eye(8, 9, dtype=np.float32)
    images[:, 8] = 1  # what all images share
    texts = np.eye(8, 9, dtype=np.float32)
    texts[0] = 0
    texts[0, 8] = 1  # says that alone
    cosine = add_scores(data_of(images, texts), CLIPSimilarity(**GIVEN))["clip_similarity"][:]
    assert cosine[0] == pytest.approx(cosine[1])
    found = add_scores(data_of(images, texts), NegCLIPLoss(**GIVEN).fit(data_of(images, texts)))["neg_clip_loss"][:]
    assert found[0] < min(found[1:]) - 0.005


def test_rows_that_cannot_be_read_are_not_drawn():
    images, texts = list(IMAGES), list(TEXTS)
    images[3], images[5], texts[7] = None, np.zeros(16, np.float32), np.full(16, np.nan, np.float32)
    features = Features({"v": List(Value("float32")), "t": List(Value("float32"))})
    data = Dataset.from_dict({"v": images, "t": texts}, features=features)
    found = np.array(add_scores(data, NegCLIPLoss(**GIVEN).fit(data))["neg_clip_loss"][:])
    kept = [row for row in range(60) if row not in (3, 5, 7)]
    np.testing.assert_allclose(found[kept], released(IMAGES[kept], TEXTS[kept], 0.01), rtol=0, atol=1e-6)
    assert np.isnan(found[[3, 5, 7]]).all()


def test_a_clip_encodes_what_has_no_vectors():
    data = ANY.data(8)
    images, texts, _ = CLIPSimilarity().pairs(data.with_format(None)[:], None)
    data = data.add_column("v", list(images)).add_column("t", list(texts))
    expected = released(images, texts, 0.1)
    for options in ({}, {"image_embedding": "v"}, {"text_embedding": "t"}, GIVEN):
        scorer = NegCLIPLoss(temperature=0.1, **options).fit(data)
        np.testing.assert_allclose(add_scores(data, scorer)["neg_clip_loss"][:], expected, rtol=0, atol=1e-5)
        few = NegCLIPLoss(temperature=0.1, pairs_per_batch=4, num_batches=2, **options).fit(data)
        assert [len(batch) for batch in few.batches_] == [4, 4]
        alone = [few({name: [data[row][name]] for name in few.columns})["neg_clip_loss"][0] for row in range(8)]
        np.testing.assert_allclose(add_scores(data, few)["neg_clip_loss"][:], alone, rtol=0, atol=1e-5)
    assert scorer.describe().arguments["temperature"] == 0.1


def test_images_that_cannot_be_read_are_not_drawn():
    images = [{"bytes": b"no picture", "path": None}, *ANY.rows(8)["image"][1:]]
    broken = ANY.data(8, image=images, image_id=[f"picture {row}" for row in range(8)])
    scorer = NegCLIPLoss(temperature=0.1).fit(broken)
    assert [len(batch) for batch in scorer.batches_] == [7]
    assert np.isnan(add_scores(broken, scorer)["neg_clip_loss"][:]).tolist() == [True] + [False] * 7


def test_conversations_and_every_process_of_a_launch(tmp_path):
    scorer = NegCLIPLoss(caption_column="messages", temperature=0.1)
    sharded = add_scores_sharded(ANY.data(), scorer, tmp_path, rank=0, world_size=1)  # fits it, and reads that back
    captions = add_scores(ANY.data(), NegCLIPLoss(temperature=0.1).fit(ANY.data()))["neg_clip_loss"][:]
    np.testing.assert_allclose(sharded["neg_clip_loss"][:], captions, rtol=0, atol=1e-5)


def test_equal_pairs_have_equal_scores():
    twice = data_of(np.concatenate([IMAGES, IMAGES[:20]]), np.concatenate([TEXTS, TEXTS[:20]]))
    scorer = NegCLIPLoss(**GIVEN, pairs_per_batch=10, num_batches=5).fit(twice)
    found = np.array(add_scores(twice, scorer)["neg_clip_loss"][:])
    np.testing.assert_allclose(found[60:], found[:20], rtol=0, atol=1e-7)


@pytest.mark.parametrize("temperature", [0, -0.01, np.nan, np.inf])
def test_a_temperature_that_nothing_can_be_divided_by(temperature):
    with pytest.raises(ValueError, match=r"`temperature` is .*above 0: the CLIP's own"):
        NegCLIPLoss(temperature=temperature)


def test_what_it_cannot_be_fitted_to():
    scorer = NegCLIPLoss(**GIVEN)
    with pytest.raises(TypeError, match=r"was given a dict.* give `Dataset.from_dict"):
        scorer.fit({"v": [[1.0]], "t": [[1.0]]})
    with pytest.raises(ValueError, match="`t` is not in the data"):
        scorer.fit(data_of().remove_columns("t"))
    for rows in (0, 1):
        with pytest.raises(ValueError, match=rf"{rows} pairs of {rows} rows can be read, and a pair is compared with"):
            scorer.fit(data_of().select(range(rows)))
    with pytest.raises(ValueError, match="`v` have 8 to 16 numbers"):
        scorer.fit(Dataset.from_dict({"v": [IMAGES[0], IMAGES[1][:8]], "t": list(TEXTS[:2])}))
    with pytest.raises(ValueError, match="`v` have 16 numbers and those of `t` 8"):
        scorer.fit(data_of(texts=TEXTS[:, :8]))
    with pytest.raises(ValueError, match="`image_id` is not in the data"):
        NegCLIPLoss().fit(ANY.data().remove_columns("image_id"))
    lists = Dataset.from_dict(
        {"image": [[ANY.PNGS[0]]], "caption": ["a"], "image_id": ["0"]},
        Features({"image": List(Image()), "caption": Value("string"), "image_id": Value("string")}),
    )
    with pytest.raises(TypeError, match="`image` has lists of images, and a pair is one image and its caption"):
        NegCLIPLoss().fit(lists)


def test_vectors_of_another_model_than_those_it_was_fitted_to():
    scorer = NegCLIPLoss(**GIVEN).fit(data_of())
    with pytest.raises(ValueError, match="have 8 numbers and those that the scorer was fitted to 16"):
        scorer({"v": list(IMAGES[:, :8]), "t": list(TEXTS[:, :8])})
