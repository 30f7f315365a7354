"""A check before paying: its verdicts, its dealing, and what it refuses."""

from __future__ import annotations

import itertools
import json
from types import SimpleNamespace

import numpy as np
import pytest
from datasets import Dataset

from hf_curriculum import CaptionLength, CLIPSimilarity, WordRarity, add_scores, make_scenes, read_provenance
from hf_curriculum.columns import CAPTION, IMAGE_ID
from hf_curriculum.data.regions.base import Regions
from hf_curriculum.scoring.controls import deal_rows
from hf_curriculum.studies import advise as module
from hf_curriculum.studies import dealing
from hf_curriculum.studies.advise import advise, at_best_length, judge
from hf_curriculum.studies.dealing import Sample, image_vectors, rebuilt, share_to_keep
from hf_curriculum.studies.small_models import SmallModel, SmallText
from hf_curriculum.studies.statistics import Interval

THINGS = ("dog", "boat", "horse", "tree", "cup")
SHORT = {"seeds": 2, "lengths": (2, 4)}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(dealing, "CROSS_FIT_STEPS", 4)


def made(images=120, captions=2, wrong=0.0):
    """Captions of things, their images' vectors, and which captions are right."""
    draws = np.random.default_rng(0)
    things = draws.normal(size=(len(THINGS), 8))
    ids = [f"i{at}" for at in range(images) for _ in range(captions)]
    texts = [f"a {'big ' * (at % 3)}{THINGS[int(name[1:]) % 5]} with number {at}" for at, name in enumerate(ids)]
    rows = Dataset.from_dict({IMAGE_ID: ids, CAPTION: texts})
    vectors = {
        f"i{at}": (things[at % 5] + 0.1 * draws.normal(size=8)).astype(np.float32)[None] for at in range(images)
    }
    rows, right = deal_rows(rows, wrong, 1)
    return rows, vectors, right


def scored(values, **options):
    rows, vectors, _ = made(**options)
    return rows.add_column("fit", np.asarray(values, np.float64)[: len(rows)]), vectors


def interval(lower, value, upper):
    return Interval(value, lower, upper, 9)


@pytest.mark.parametrize(("area", "own", "dealt", "verdict", "why"), [
    (0.9, (0.01, 0.02, 0.03), (0.03, 0.05, 0.07), "filter", "learnt more from what the score keeps"),
    (0.9, (-0.01, 0.0, 0.01), (0.03, 0.05, 0.07), "nothing to win", "wins less, if anything"),
    (0.9, (-0.04, -0.03, -0.02), (0.03, 0.05, 0.07), "nothing to win", "wins less"),
    (0.5, (-0.03, -0.02, -0.01), (-0.07, -0.05, -0.03), "nothing to win", "in these runs the filter loses"),
    (0.9, (-0.01, 0.02, 0.05), (0.03, 0.05, 0.07), "nothing can be told", "may be nothing, or as large"),
    (0.9, (-0.01, 0.0, 0.01), (-0.01, 0.05, 0.07), "nothing can be told", "see no gain even where 30% more"),
    (0.5, (-0.01, 0.0, 0.01), (-0.01, 0.05, 0.07), "nothing can be told", "hardly tells wrong captions"),
    (0.9, (0.0, 0.02, 0.03), (0.0, 0.05, 0.07), "nothing can be told", "see no gain"),
])  # fmt: skip
def test_verdicts(area, own, dealt, verdict, why):
    found = judge(interval(area, area, area), interval(*own), interval(*dealt))
    assert found[0] == verdict
    assert why in found[1]


def test_each_half_is_measured_at_the_length_that_is_best_on_the_other():
    found = np.random.default_rng(0).random((3, 4, 11))  # seeds, lengths, units
    best = at_best_length(found)
    means = {half: [found[:, length, half::2].mean() for length in range(4)] for half in range(2)}
    for unit in range(11):
        length = int(np.argmax(means[1 - unit % 2]))
        np.testing.assert_array_equal(best[:, unit], found[:, length, unit])


def test_the_share_to_keep_is_that_of_two_humps_where_there_are_two():
    draws = np.random.default_rng(0)
    humps = np.concatenate([draws.normal(0, 1, 400), draws.normal(9, 1, 600)])
    assert share_to_keep(humps, humps[:0]) == pytest.approx(0.6, abs=0.01)


@pytest.mark.parametrize("wrong", [0.0, 0.2, 0.5])
def test_the_share_to_keep_is_about_the_right_share_where_the_score_tells(wrong):
    draws = np.random.default_rng(1)
    count = round(4000 * wrong)
    good = np.concatenate([draws.normal(0, 1, count), draws.normal(2, 1, 4000 - count)])
    found = share_to_keep(good, draws.normal(0, 1, 1200))
    assert 1 - wrong - 0.05 < found + 0.02 < 1 - wrong + 0.05
    assert share_to_keep(draws.normal(size=4000), draws.normal(size=1200)) == 0.25  # it tells nothing
    assert share_to_keep(np.ones(40), np.ones(9)) == 0.25
    assert share_to_keep(np.arange(40.0), np.full(9, np.nan)) == 1


def test_a_column_is_scored_anew_only_where_its_scorer_gives_what_it_holds():
    rows = add_scores(made()[0], CaptionLength())

    def found(data, column="caption_length", sign=-1):
        good = sign * np.array(data[column])
        return rebuilt(read_provenance(data).get(column), column, sign, data.add_column("score", good))

    scorer, says = found(rows)
    assert isinstance(scorer, CaptionLength)
    assert says == "`caption_length`, scored anew by CaptionLength"
    values = np.array(rows["caption_length"][:]) + np.arange(len(rows))
    assert (
        "CaptionLength scores these rows otherwise"
        in found(
            rows.remove_columns("caption_length").add_column(
                "caption_length", values, feature=rows.features["caption_length"]
            )
        )[1]
    )
    bare = rows.add_column("fit", np.arange(float(len(rows))))
    scorer, says = found(bare, "fit")
    assert scorer is None
    assert says.endswith("in place of `fit`, which cannot be scored anew: no scorer of the registry wrote it")
    per_image = add_scores(made()[0], CaptionLength(), per_image="max")
    assert isinstance(found(per_image)[0], CaptionLength)
    rare = add_scores(made()[0], WordRarity().fit(made()[0]))
    assert isinstance(found(rare, "word_rarity")[0], WordRarity)


def test_a_scorer_that_cannot_be_made_again_is_named():
    scenes = make_scenes(30, image_size=32, captions_per_image=1, validation=0.0, test=0.0)["train"]
    rows = add_scores(scenes, CLIPSimilarity()).remove_columns("image")
    good = np.array(rows["clip_similarity"], np.float64)
    scorer, says = rebuilt(
        read_provenance(rows)["clip_similarity"], "clip_similarity", 1, rows.add_column("score", good)
    )
    assert scorer is None
    assert "CLIPSimilarity says: `image` is not in the data" in says


@pytest.mark.parametrize("anew", [True, False])
def test_no_model_scores_what_it_has_seen(anew, monkeypatch):
    rows, vectors, _ = made()
    rows = add_scores(rows, CaptionLength()) if anew else scored(np.arange(240))[0]
    sample = Sample.of(rows, "caption_length" if anew else "fit", vectors, 0, "low")
    towers = type(sample.small)
    train, score, seen = towers.train, towers.score, {}

    def trained(self, data, *rest):
        trainer = train(self, data, *rest)
        seen[id(trainer)] = (trainer, set(data[IMAGE_ID]), set(data[CAPTION]))
        return trainer

    def checked(self, trainer, data):
        _, images, captions = seen[id(trainer)]
        assert not images & set(data[IMAGE_ID])
        assert not captions & set(data[CAPTION])
        return score(self, trainer, data)

    monkeypatch.setattr(towers, "train", trained)
    monkeypatch.setattr(towers, "score", checked)
    found = sample.dealt(5)
    own, dealt = (share.rows for share in found.shares)
    assert len(seen) == (0 if anew else 4)
    assert own[IMAGE_ID][:] == dealt[IMAGE_ID][:]
    assert not set(own[IMAGE_ID]) & set(sample.held[IMAGE_ID])
    moved = np.array(own[CAPTION]) != np.array(dealt[CAPTION])
    assert moved.mean() == pytest.approx(0.3, abs=0.01)
    assert (len(found.told[0]), found.told[1].sum()) == (len(own) + moved.sum(), len(own))
    if anew:
        for part in (own, dealt):
            assert part["score"][:] == [-float(len(text.split())) for text in part[CAPTION]]
    assert sample.dealt(5).shares[1].rows[CAPTION][:] == dealt[CAPTION][:]
    assert sample.dealt(6).shares[1].rows[CAPTION][:] != dealt[CAPTION][:]


def test_an_answer_is_the_same_again_and_can_be_written():
    rows, vectors = scored(np.random.default_rng(0).random(240))
    one, other = (advise(rows, "fit", features=vectors, easy="high", **SHORT) for _ in range(2))
    assert {**one.to_dict(), "seconds": 0} == {**other.to_dict(), "seconds": 0}
    assert (one.seeds, one.lengths, one.units, one.rows) == (2, (2, 4), (90, 30), 180)
    assert json.loads(json.dumps(one.to_dict()))["own"]["gain"]["value"] == one.own.gain.value
    assert one.own.gain.value == pytest.approx(one.own.filtered - one.own.everything)
    assert one.cross_fitted
    lines = str(one).splitlines()
    assert len(lines) <= 15
    assert lines[0].startswith("180 captions of 90 images to train on, 30 held out; 2 seeds, 2 to 4 steps")
    assert lines[1].endswith("which cannot be scored anew: no scorer of the registry wrote it")
    assert lines[2].startswith("AUC 0.")
    assert lines[-1] == f"{one.verdict}: {one.reason}"


def test_text_without_images_is_read_by_a_language_model():
    rows = add_scores(made()[0].remove_columns(IMAGE_ID), CaptionLength())
    found = advise(rows, **SHORT)
    assert (found.units, found.unit) == ((180, 60), "texts")
    assert found.measured.startswith("minus the loss")
    assert found.own.everything < 0
    assert "180 captions of 180 texts to train on, 60 held out" in str(found)


def test_the_words_of_texts_are_dealt_among_them():
    rows = Dataset.from_dict({IMAGE_ID: range(40), CAPTION: [f"a{at} b{at} c{at}" for at in range(40)]})
    small = SmallText(rows, {})
    dealt, right = small.deal(rows, 0.5, 0)
    before, after = rows[CAPTION][:], dealt[CAPTION][:]
    assert (~right).sum() == 20
    assert [one for one, kept in zip(before, right, strict=True) if kept] == [
        one for one, kept in zip(after, right, strict=True) if kept
    ]
    assert sorted(" ".join(before).split()) == sorted(" ".join(after).split())
    assert {len(text.split()) for text in after} == {3}
    assert sum(one != other for one, other in zip(before, after, strict=True)) >= 18
    assert small.deal(rows, 0.5, 0)[0][CAPTION][:] == after


def test_rows_without_a_score_or_a_caption_are_left_out():
    rows, vectors = scored([np.nan, np.inf, *range(238)])
    captions = rows[CAPTION][:]
    captions[7:10] = ["", "  ", None]
    rows = rows.remove_columns(CAPTION).add_column(CAPTION, captions)
    sample = Sample.of(rows, "fit", vectors, 0, "high")
    left = {*sample.train[CAPTION], *sample.held[CAPTION]}
    assert left == set(captions[2:7]) | set(captions[10:])
    assert sample.train["score"][:] == sample.train["fit"][:]


def test_of_many_images_a_sample_is_taken(monkeypatch):
    monkeypatch.setattr(dealing, "MAX_UNITS", 100)
    rows, vectors = scored(np.arange(240))
    one, other, again = (Sample.of(rows, "fit", vectors, seed, "low") for seed in (0, 1, 0))
    assert one.num_units == (75, 25)
    assert len(one.train) == 150
    assert one.train[CAPTION][:] == again.train[CAPTION][:]
    assert one.train[CAPTION][:] != other.train[CAPTION][:]
    assert one.train["score"][:] == [-value for value in one.train["fit"]]


@pytest.mark.parametrize(("change", "options", "message"), [
    (lambda rows: rows.remove_columns("fit"), {"score_column": None}, "None of .* is recorded as a score"),
    (lambda rows: rows.remove_columns("fit"), {}, "`fit` is not in the data"),
    (lambda rows: rows.remove_columns(CAPTION), {}, "`caption` is not in the data"),
    (lambda rows: rows.remove_columns(IMAGE_ID), {}, "`image_id` is not in the data"),
    (lambda rows: rows, {"easy": None}, "Which end of `fit` is good is not recorded"),
    (lambda rows: rows.select(range(60)), {}, "The data has 30 images with a caption and a `fit`, and 100 are the"),
    (lambda rows: rows.select(range(60)).remove_columns(IMAGE_ID), {"features": None}, "The data has 60 texts with"),
    (lambda rows: rows.remove_columns("fit").add_column("fit", [3.0] * 240), {}, "is 3 in all 240 rows, so a filter"),
    (lambda rows: rows.remove_columns("fit").add_column("fit", [np.nan] * 240), {}, "`fit` is NaN in all rows"),
    (lambda rows: rows, {"features": {"i0": np.ones((1, 8))}}, "119 of 120 images are no features in the store"),
    (lambda rows: rows, {"minutes": 0}, "minutes=0, seeds=None, lengths=None were given. Give more than 0"),
    (lambda rows: rows, {"seeds": 3}, "seeds=3, lengths=None were given"),
    (lambda rows: rows, {"seeds": 1, "lengths": (2,)}, "two or more seeds together with"),
    (lambda rows: rows, {"model": "large"}, "`model` is 'large'. It is one of 'small'"),
])  # fmt: skip
def test_what_nothing_can_be_told_of_is_refused(change, options, message):
    rows, vectors = scored(np.arange(240))
    with pytest.raises(ValueError, match=message):
        advise(change(rows), **{"score_column": "fit", "features": vectors, "easy": "low", **options})


def test_splits_are_refused():
    with pytest.raises(TypeError, match=r"`advise` was given a dict of the splits .* give one of them"):
        advise({"train": made()[0]}, "fit")


def test_an_image_has_the_mean_of_its_features_at_length_one():
    rows = Dataset.from_dict({IMAGE_ID: ["a", "b", "a"]})
    store = {"a": np.float16([[3, 0], [3, 8]]), "b": Regions("b", features=np.float32([[0, 2]]))}
    found = image_vectors(rows, store)
    np.testing.assert_allclose(found["a"], [[0.6, 0.8]], rtol=1e-6)
    np.testing.assert_allclose(found["b"], [[0, 1]])
    assert found["a"].dtype == np.float32


def test_images_are_encoded_by_the_shipped_clip_where_no_features_are_given():
    scenes = make_scenes(6, image_size=32, captions_per_image=2, validation=0.0, test=0.0)["train"]
    found = image_vectors(scenes, None)
    assert list(found) == list(dict.fromkeys(scenes[IMAGE_ID]))
    vectors = np.concatenate(list(found.values()))
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    assert len(np.unique(vectors.round(4), axis=0)) == 3


class Clock:
    """A machine that takes a second for a run and a tenth of one for a step."""

    def __init__(self) -> None:
        self.now = 0.0

    def train(self, rows, steps, seed):
        self.now += 1 + steps / 10

    def measure(self, trainer, rows):
        return None


@pytest.mark.parametrize(("minutes", "seeds", "lengths"), [
    (10, 6, (50, 100)), (20, 6, (50, 100, 200)), (40, 7, (50, 100, 200, 400)), (600, 20, (50, 100, 200, 400, 800)),
])  # fmt: skip
def test_seeds_and_lengths_are_what_fits(minutes, seeds, lengths, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module.time, "perf_counter", lambda: clock.now)
    monkeypatch.setattr(module, "CROSS_FIT_STEPS", 40)
    sample = SimpleNamespace(small=clock, scorer=None, plain=None, held=None)
    assert module._what_fits(sample, minutes, 60 * minutes) == (seeds, lengths)


def test_too_few_minutes_are_refused_with_those_that_are_needed(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module.time, "perf_counter", lambda: clock.now)
    sample = SimpleNamespace(small=clock, scorer=None, plain=None, held=None)
    with pytest.raises(
        ValueError,
        match=r"2 minutes are too few: one seed takes \d+ seconds .*Give minutes=\d+ or more \(.* --minutes \d+\)",
    ):
        module._what_fits(sample, 2, 120)


def test_it_ends_near_its_time_whatever_was_expected(monkeypatch):
    rows, vectors = scored(np.arange(240))
    ticks = itertools.count()
    monkeypatch.setattr(module, "_what_fits", lambda *given: (9, (2,)))
    monkeypatch.setattr(module.time, "perf_counter", lambda: 10.0 * next(ticks))
    assert advise(rows, "fit", features=vectors, easy="low", minutes=0.1).seeds == module.MIN_SEEDS


@pytest.mark.parametrize("method", ["trainer", "measure", "score"])
def test_a_model_that_lacks_a_part_says_which(method):
    small = SmallModel(made()[0], {})
    with pytest.raises(NotImplementedError, match=f"SmallModel does not define `{method}`"):
        getattr(small, method)(None, None)
