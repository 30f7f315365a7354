"""Scores by models of the other folds."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import tiny_models as TINY
from datasets import Dataset, Features, Image, Value

from hf_curriculum import CLIPSimilarity, Grounding, ModelLoss, add_scores, read_provenance
from hf_curriculum.data.images import to_rgb
from hf_curriculum.files import write_sealed
from hf_curriculum.fingerprint import share_trained_on, sketch_texts
from hf_curriculum.scorers.cross_fit import CrossFit, folds_of, without_fold
from hf_curriculum.scorers.text.rarity import WordRarity

COUNT = 40
KINDS = {"image": Image(), "caption": Value("string"), "image_id": Value("string")}


@pytest.fixture(scope="module")
def rows():
    """Two captions of each of twenty images."""
    images = [TINY.png(16, 16, number) for number in range(COUNT // 2)]
    made = {
        "image": [images[row // 2] for row in range(COUNT)],
        "caption": [f"{TINY.TEXTS[row % len(TINY.TEXTS)]} {row}" for row in range(COUNT)],
        "image_id": [f"picture-{row // 2}" for row in range(COUNT)],
    }
    return Dataset.from_dict(made, features=Features(KINDS))


def model_of(folder, rows, name="git"):
    """A model whose folder says that it was trained on these rows."""
    shutil.copytree(getattr(TINY, name)(), folder)
    told = {"trained_on": {"captions": sketch_texts(rows), "examples": 10}}
    write_sealed(folder / "curriculum.json", told)
    return str(folder)


def test_folds_are_of_images_and_about_equal():
    ids = [f"{number // 5}" for number in range(30_000)]
    folds = folds_of(ids, 3, seed=4)
    assert (folds.reshape(-1, 5) == folds[::5, None]).all()
    assert np.bincount(folds).min() > 0.31 * len(ids)
    again = np.random.default_rng(0).permutation(len(ids))
    np.testing.assert_array_equal(folds_of([ids[row] for row in again], 3, seed=4), folds[again])
    np.testing.assert_array_equal(folds_of(ids[700:800], 3, seed=4), folds[700:800])
    assert 0.2 < (folds_of(ids, 3, seed=5) == folds).mean() < 0.5


def test_what_is_left_without_each_fold(rows):
    parts = [without_fold(rows, fold, folds=3) for fold in range(3)]
    assert sum(map(len, parts)) == 2 * COUNT
    of = folds_of(rows["image_id"][:], 3)
    for fold, part in enumerate(parts):
        assert part["caption"][:] == [rows["caption"][row] for row in np.flatnonzero(of != fold)]


def test_each_row_is_scored_by_the_model_of_its_fold(rows, tmp_path):
    models = [
        model_of(tmp_path / name, without_fold(rows, fold), name) for fold, name in enumerate(("git", "flamingo"))
    ]
    scorer = CrossFit([ModelLoss(model) for model in models]).fit(rows)
    assert sum(scorer.folds_) == COUNT
    scored = add_scores(rows, scorer, batch_size=5)
    folds = folds_of(rows["image_id"][:])
    alone = np.stack([ModelLoss(model)(rows[:])["model_loss"] for model in models])
    assert (np.abs(alone[0] - alone[1]) > 1e-3).all()
    np.testing.assert_allclose(scored["model_loss"][:], alone[folds, np.arange(COUNT)], rtol=1e-4)
    made = read_provenance(scored)["model_loss"]
    assert made.easy == "low"
    assert [one["model"] for one in made.arguments["scorers"]] == models
    assert made.trained_on == {"cross_fitted": True, "examples": 20}
    assert share_trained_on(made, scored) == 0


def test_vectors_in_the_data_are_read_as_by_its_scorers():
    vectors = np.random.default_rng(0).normal(size=(COUNT, 8)).astype(np.float32)
    ids = [f"picture-{row}" for row in range(COUNT)]
    data = Dataset.from_dict({"v": list(vectors), "t": list(vectors[::-1]), "image_id": ids})
    plain = CLIPSimilarity(image_embedding="v", text_embedding="t")
    crossed = add_scores(data, CrossFit([plain, plain]).fit(data))["clip_similarity"][:]
    np.testing.assert_allclose(crossed, add_scores(data, plain)["clip_similarity"][:], rtol=1e-6)


def test_a_model_of_the_own_fold_is_refused(rows, tmp_path):
    models = [model_of(tmp_path / str(fold), without_fold(rows, 1 - fold)) for fold in range(2)]
    scorers = [ModelLoss(model) for model in models]
    with pytest.raises(ValueError, match=r"was trained on 100% of the captions of fold 0, .* `without_fold\(train, 0"):
        CrossFit(scorers).fit(rows)
    CrossFit(scorers[::-1]).fit(rows)


def test_grounding_compares_with_images_of_its_own_fold(rows, tmp_path):
    models = [model_of(tmp_path / str(fold), without_fold(rows, fold)) for fold in range(2)]
    scorer = CrossFit([Grounding(model, k=2) for model in models]).fit(rows)
    folds = folds_of(rows["image_id"][:])
    for fold, one in enumerate(scorer.scorers):
        own = {rows[int(row)]["image"].tobytes() for row in np.flatnonzero(folds == fold)}
        drawn = {to_rgb({"bytes": image.tobytes(), "path": None}).tobytes() for image in one.other_images_}
        assert len(drawn) == 3
        assert drawn <= own
    assert np.isfinite(scorer(rows[:])["grounding"]).all()


def test_it_is_made_of_mappings_and_needs_fit():
    scorer = CrossFit([{"type": "caption_length"}] * 3, seed=2)
    assert (len(scorer.scorers), scorer.name, scorer.easy) == (3, "caption_length", "low")
    with pytest.raises(RuntimeError, match="CrossFit was used before `fit`"):
        scorer({"image_id": ["a"], "caption": ["a dog"]})


@pytest.mark.parametrize(
    ("scorers", "message"),
    [
        (["caption_length"], r"CrossFit was given 1 scorer\(s\)"),
        (["caption_length", "noun_count"], r"Scorer 1 differs from scorer 0 in \['type'\]"),
        (["caption_length", {"type": "caption_length", "words": "regex"}], r"differs from scorer 0 in \['words'\]"),
        (["caption_length", {"type": "caption_length", "easy": "high"}], r"differs from scorer 0 in \['easy'\]"),
    ],
)
def test_scorers_that_make_no_column_together_are_refused(scorers, message):
    with pytest.raises(ValueError, match=message):
        CrossFit(scorers)


def test_bad_data_is_refused(rows):
    scorer = CrossFit([WordRarity(), WordRarity()])
    with pytest.raises(TypeError, match=r"`CrossFit.fit` was given .* give `Dataset.from_list"):
        scorer.fit([{"caption": "a dog"}])
    with pytest.raises(ValueError, match="CrossFit and its scorers read it"):
        scorer.fit(rows.remove_columns("image_id"))
    with pytest.raises(ValueError, match="has none of the 2 rows, which are of too few images"):
        scorer.fit(rows.select(range(2)))
    for missing in (None, ""):
        with pytest.raises(ValueError, match="has no `image_id`, so nothing says which fold"):
            folds_of(["a", missing])
    with pytest.raises(ValueError, match="folds"):
        folds_of(["a"], 1)
    with pytest.raises(ValueError, match="fold=2 was given, and folds=2 are numbered from 0 to 1"):
        without_fold(rows, 2)
    with pytest.raises(ValueError, match="Rows of the same image belong to the same fold"):
        without_fold(rows.remove_columns("image_id"), 0)
