from __future__ import annotations

import doctest
from itertools import permutations

import numpy as np
import pytest
from datasets import Dataset, DatasetDict

from hf_curriculum import CaptionLength, NounCount, add_scores, read_provenance, shuffle_scores
from hf_curriculum.provenance import ScoreProvenance, attach_provenance, installed_versions, score_values
from hf_curriculum.scoring import controls
from hf_curriculum.scoring.controls import deal_rows

NAN = np.nan


def test_the_example_in_the_docstring_holds():
    found = doctest.testmod(controls)
    assert found.attempted
    assert not found.failed


def data(scores, **columns):
    dataset = Dataset.from_dict({"noun_count": np.float32(scores), **columns})
    return attach_provenance(dataset, {"noun_count": ScoreProvenance("noun_count", "NounCount", easy="low")})


def permuted(dataset, **options):
    return score_values(shuffle_scores(dataset, "noun_count", **options), options.get("name") or "noun_count_random")


def test_the_same_scores_in_another_order():
    scores = np.random.default_rng(0).integers(0, 9, 2000).astype(np.float32)
    scores[::7] = NAN
    found = permuted(data(scores))
    np.testing.assert_array_equal(np.isnan(found), np.isnan(scores))
    scored = ~np.isnan(scores)
    np.testing.assert_array_equal(np.sort(found[scored]), np.sort(scores[scored]))
    assert abs(np.corrcoef(found[scored], scores[scored])[0, 1]) < 0.08  # 1,714 rows: three standard deviations


def test_a_seed_names_the_permutation_and_every_one_is_as_likely():
    dataset = data([1, 2, 3, 4])
    assert permuted(dataset, seed=5).tolist() == permuted(dataset, seed=5).tolist()
    counts = dict.fromkeys(permutations([1.0, 2.0, 3.0, 4.0]), 0)
    for seed in range(600):
        counts[tuple(permuted(dataset, seed=seed).tolist())] += 1
    assert min(counts.values()) > 8  # 25 expected of each, standard deviation 5
    assert max(counts.values()) < 45


def test_large_integers_that_become_equal_are_said(caplog):
    times = Dataset.from_dict({"t": np.arange(100) + 2**25})
    assert len(set(shuffle_scores(times, "t", easy="low")["t_random"][:])) == 26
    assert "`t` has 100 different integers, and only 26 as float32" in caplog.text
    caplog.clear()
    shuffle_scores(Dataset.from_dict({"t": np.arange(100)}), "t", easy="low")
    assert "as float32" not in caplog.text


def test_the_permutation_is_fixed_for_good():
    """Written out: another order would change the control of a run that is resumed after an upgrade."""
    assert permuted(data(range(10))).tolist() == [6, 7, 3, 5, 0, 2, 1, 9, 4, 8]


def test_two_scores_are_permuted_independently():
    dataset = Dataset.from_dict({"a": np.float32(range(50)), "b": np.float32(range(50))})
    a, b = (shuffle_scores(dataset, name, easy="low")[f"{name}_random"][:] for name in "ab")
    assert a != b


def test_matched_for_length():
    rng = np.random.default_rng(1)
    lengths = rng.integers(3, 9, 600).astype(np.float32)
    scores = lengths + rng.integers(0, 4, 600)
    lengths[:20] = NAN
    dataset = data(scores, caption_length=lengths)
    made = shuffle_scores(dataset, "noun_count", within="caption_length")
    found = score_values(made, "noun_count_matched")
    for length in (3, 4, 5, 6, 7, 8, NAN):
        rows = np.isnan(lengths) if np.isnan(length) else lengths == length
        np.testing.assert_array_equal(np.sort(found[rows]), np.sort(scores[rows]))
        assert not np.array_equal(found[rows], scores[rows])
    assert read_provenance(made)["noun_count_matched"].arguments["within"] == "caption_length"


@pytest.mark.parametrize(
    "groups", [["x", "y", None, "x", "y", None], [1, 2, 3, 1, 2, 3], [0.5, 2.5, None, 0.5, 2.5, None]]
)
def test_matched_by_strings_and_numbers(groups):
    found = {tuple(permuted(data(range(6), group=groups), within="group", seed=seed, name="n")) for seed in range(60)}
    assert found == {
        tuple(float(row + 3 * swap if row < 3 else row - 3 * swap) for row, swap in enumerate(swaps * 2))
        for swaps in [(a, b, c) for a in (0, 1) for b in (0, 1) for c in (0, 1)]
    }


def test_captions_of_one_image_share_their_score_again():
    captions = ["a dog", "a dog and a cat", "a ball", "it is", "two men and a dog", "a man"]
    images = ["p", "p", "q", "r", "r", "q"]
    dataset = Dataset.from_dict({"image_id": images, "caption": captions})
    scored = add_scores(dataset, NounCount(), per_image="max")
    assert scored["noun_count"][:] == [2, 2, 1, 2, 2, 1]
    seen = set()
    for seed in range(30):
        made = shuffle_scores(scored, "noun_count", seed=seed)
        found = made["noun_count_random"][:]
        assert sorted(found) == [1, 1, 2, 2, 2, 2]
        assert found[0] == found[1]
        assert found[2] == found[5]
        assert found[3] == found[4]
        seen.add(tuple(found))
    assert len(seen) == 3  # whichever of the three images gets the 1
    assert read_provenance(made)["noun_count_random"].per_image == "max"
    rows = {tuple(permuted(scored, seed=seed, group_by=None)) for seed in range(60)}
    assert len(rows) > 3  # row by row, captions of an image come apart


def test_images_change_scores_with_images_of_as_many_scored_captions():
    """Image a has three captions of which one has no score, b and c two, d a number of its own."""
    images = ["a", "a", "a", "b", "b", "c", "c", "d"]
    scores = [1, NAN, 1, 2, 2, 3, 3, 4]
    for seed in range(20):
        found = permuted(data(scores, image_id=images), group_by="image_id", seed=seed)
        assert sorted(found[~np.isnan(found)]) == [1, 1, 2, 2, 3, 3, 4]
        assert np.isnan(found[1])
        assert found[7] == 4


def test_images_change_scores_within_what_they_are_matched_by():
    """a and b are alike; c, of a caption more, and d, of one less, are of other lengths."""
    images = ["a", "b", "a", "b", "c", "c", "c", "d"]
    dataset = data([1, 2, 1, 2, 3, 3, 3, 4], image_id=images, length=[0, 0, 0, 0, 0, 0, 0, 1])
    for seed in range(20):
        found = permuted(dataset, within="length", group_by="image_id", seed=seed, name="n").tolist()
        assert found in ([1, 2, 1, 2, 3, 3, 3, 4], [2, 1, 2, 1, 3, 3, 3, 4])
    images, lengths = ["a", "a", "b", "c", "d"], [0, 0, 1, 0, 0]
    for seed in range(20):  # a, of two captions, is not matched with b, of the next length and one caption
        found = permuted(
            data([1, 1, 2, 3, 4], image_id=images, length=lengths),
            within="length",
            group_by="image_id",
            seed=seed,
            name="n",
        ).tolist()
        assert found[:3] == [1, 1, 2]


def test_views_and_splits():
    dataset = data(range(100), caption=[str(row) for row in range(100)])
    view = dataset.shuffle(seed=3).filter(lambda row: int(row["caption"]) % 2 == 0)
    made = shuffle_scores(view, "noun_count")
    assert made["caption"][:] == view["caption"][:]
    assert made["noun_count"][:] == view["noun_count"][:]
    assert sorted(made["noun_count_random"][:]) == list(range(0, 100, 2))
    splits = shuffle_scores(DatasetDict(train=dataset, test=view), "noun_count", name="control")
    assert sorted(splits["train"]["control"][:]) == list(range(100))
    assert splits["test"]["control"][:] == made["noun_count_random"][:]


def test_buckets_keep_their_sizes():
    from hf_curriculum import rank_scores
    from hf_curriculum.planning.buckets import cut_buckets

    scores = np.random.default_rng(0).poisson(3, 1000).astype(np.float32)
    for cut in ("rank", "value"):
        parts = [cut_buckets(rank_scores(values), 4, cut) for values in (scores, permuted(data(scores)))]
        assert parts[0].sizes == parts[1].sizes


def test_the_provenance_names_what_was_permuted():
    scored = add_scores(Dataset.from_dict({"caption": ["a", "a b", "a b c"]}), CaptionLength(easy="high"))
    made = read_provenance(shuffle_scores(scored, "caption_length", seed=4))["caption_length_random"]
    assert (made.column, made.scorer, made.easy) == ("caption_length_random", "shuffle_scores", "high")
    recorded = {name: made.arguments[name] for name in ("dealt_from", "scorer", "seed", "within", "group_by")}
    assert recorded == {
        "dealt_from": "caption_length",
        "scorer": "CaptionLength",
        "seed": 4,
        "within": None,
        "group_by": None,
    }
    assert made.arguments["arguments"]["words"] == "whitespace"
    flipped = shuffle_scores(scored, "caption_length", easy="low", name="low")
    assert read_provenance(flipped)["low"].easy == "low"


def test_the_easy_end_of_a_score_without_provenance():
    plain = Dataset.from_dict({"noun_count": np.float32([1, 2]), "mine": np.float32([1, 2])})
    assert read_provenance(shuffle_scores(plain, "noun_count"))["noun_count_random"].easy == "low"  # its scorer's
    with pytest.raises(ValueError, match="Which end of `mine` is easy is not recorded"):
        shuffle_scores(plain, "mine")
    for easy in ("middle", ""):
        with pytest.raises(ValueError, match=f"`easy` is '{easy}'"):
            shuffle_scores(plain, "noun_count", easy=easy)


def test_what_cannot_be_permuted_is_an_error():
    dataset = data([1, 2, 3], image_id=["a", "a", "b"], caption_length=np.float32([5, 6, 7]))
    with pytest.raises(ValueError, match=r"`words` is not in the data.*Add it first"):
        shuffle_scores(dataset, "noun_count", within="words")
    with pytest.raises(ValueError, match="`other` is not in the data"):
        shuffle_scores(dataset, "other")
    with pytest.raises(ValueError, match=r"`photo` is not in the data.*pass `group_by=None` to permute rows"):
        shuffle_scores(dataset, "noun_count", group_by="photo")
    with pytest.raises(
        ValueError, match=r"with the same `caption_length`.*3 scores fall into 3 groups to.* Match by a c"
    ):
        shuffle_scores(dataset, "noun_count", within="caption_length")
    with pytest.raises(ValueError, match=r"No two scores that could .* All examples have the same score"):
        shuffle_scores(data([2, 2, NAN]), "noun_count")
    with pytest.raises(ValueError, match="No row has a `noun_count`"):
        shuffle_scores(data([NAN, NAN]), "noun_count")
    with pytest.raises(ValueError, match=r"Rows of one group differ in `noun_count` \(1 of 3"):
        shuffle_scores(dataset, "noun_count", group_by="image_id")
    with pytest.raises(ValueError, match="Rows of one group differ in `caption_length`"):
        shuffle_scores(
            data([1, 1, 3], image_id=["a", "a", "b"], caption_length=np.float32([5, 6, 7])),
            "noun_count",
            group_by="image_id",
            within="caption_length",
        )
    with pytest.raises(ValueError, match="The data already has `image_id`"):
        shuffle_scores(dataset, "noun_count", name="image_id")
    with pytest.raises(TypeError, match="was given an IterableDataset"):
        shuffle_scores(dataset.to_iterable_dataset(), "noun_count")


def test_all_that_is_recorded_of_a_score_without_provenance():
    plain = Dataset.from_dict({"mine": np.float32([1, 2])})
    arguments = {"dealt_from": "mine", "scorer": "unknown", "arguments": {}}
    arguments |= {"within": None, "seed": 3, "group_by": None}
    versions = installed_versions(("hf-curriculum",))
    expected = ScoreProvenance("mine_random", "shuffle_scores", arguments, easy="high", versions=versions)
    made = shuffle_scores(plain, "mine", seed=3, easy="high")
    assert read_provenance(made) == {"mine_random": expected}
    again = shuffle_scores(made, "mine", seed=4, name="mine_random", easy="high", overwrite=True)
    assert read_provenance(again)["mine_random"].arguments["seed"] == 4


def captioned(images=40, captions=3):
    rows = [(f"i{at}", f"caption {number} of {at}") for at in range(images) for number in range(captions)]
    ids, texts = zip(*rows, strict=True)
    return Dataset.from_dict({"image_id": ids, "caption": texts, "n": range(len(rows))})


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_captions_are_dealt_to_rows_of_other_images(share):
    before = captioned()
    dealt, right = deal_rows(before, share, 3)
    of = dict(zip(before["caption"], before["image_id"], strict=True))
    assert (~right).sum() == round(share * len(before))
    assert [of[row["caption"]] == row["image_id"] for row in dealt] == right.tolist()
    assert sorted(dealt["caption"]) == sorted(before["caption"])
    assert dealt["n"][:] == before["n"][:]
    assert dealt["caption"][:] == deal_rows(before, share, 3)[0]["caption"][:]
    assert share in (0, 1) or right.tolist() != deal_rows(before, share, 4)[1].tolist()


def test_dealt_captions_have_no_scores_of_those_before():
    scored = add_scores(captioned(), CaptionLength())
    assert deal_rows(scored, 0.5)[0].column_names == ["image_id", "n", "caption"]


def test_captions_that_cannot_be_dealt_are_refused():
    with pytest.raises(ValueError, match=r"share=30 was given. The share of captions to deal is from 0 to 1"):
        deal_rows(captioned(), 30)
    with pytest.raises(ValueError, match="`image_id` is not in the data"):
        deal_rows(captioned().remove_columns("image_id"), 0.5)
    rows = Dataset.from_dict({"image_id": ["a", "a", "b"], "caption": ["x", "y", "z"]})
    with pytest.raises(ValueError, match="2 of the 3 rows whose captions should move are of one image"):
        deal_rows(rows, 1.0)
    with pytest.raises(ValueError, match="1 of the 1 rows"):
        deal_rows(captioned(), 0.01)
