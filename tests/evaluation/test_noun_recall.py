import itertools

import numpy as np
import pytest

from hf_curriculum.evaluation import nouns
from hf_curriculum.evaluation.nouns import RecallResult, noun_recall, recall_against_shuffled
from hf_curriculum.scorers.text.nouns import singular

# Four images: the first two share a noun, the third has two nouns, the fourth has none.
GENERATED = ["a dog on grass", "the cat", "a red ball near a box", "whatever"]
GOLD = [{"dog"}, {"dog", "cat"}, {"ball", "box"}, set()]


def test_recall_by_hand():
    np.testing.assert_array_equal(noun_recall(GENERATED, GOLD), [1.0, 0.5, 1.0, np.nan])


@pytest.mark.parametrize(
    ("caption", "noun", "found"),
    [
        ("A DOG.", "dog", 1),
        ("a hotdog", "dog", 0),
        ("two dogs", "dog", 0),
        ("the dog's ball", "dog", 1),
        ("a t - shirt", "T-shirt", 1),
        ("a traffic light", "traffic light", 1),
        ("light traffic", "traffic light", 0),
        ("ein großer Bär", "bär", 1),
        ("赤い ボール", "ボール", 1),
        ("", "dog", 0),
    ],
)
def test_whole_words(caption, noun, found):
    assert noun_recall([caption], [{noun}])[0] == found


def test_normaliser_applies_to_both_sides():
    assert noun_recall(["two dogs and a fox"], [{"dog", "foxes"}], normalise=singular)[0] == 1.0


@pytest.mark.parametrize(
    ("plural", "expected"),
    [
        ("dogs", "dog"),
        ("glasses", "glass"),
        ("glass", "glass"),
        ("boxes", "box"),
        ("buses", "bus"),
        ("bus", "bus"),
        ("houses", "house"),
        ("potatoes", "potato"),
        ("shoes", "shoe"),
        ("puppies", "puppy"),
        ("ties", "tie"),
        ("women", "woman"),
        ("tennis", "tennis"),
        ("gas", "gas"),
    ],
)
def test_singular(plural, expected):
    assert singular(plural) == expected


def test_shuffled_is_the_mean_over_all_other_images():
    result = recall_against_shuffled(GENERATED, GOLD, num_resamples=50)
    # Image 1 by the captions of 2 and 3: 0, 0. Image 2 by 1 and 3: 1/2, 0. Image 3 by 1 and 2: 0, 0.
    assert result.shuffled == pytest.approx((0 + 0.25 + 0) / 3)
    assert result.recall == pytest.approx(2.5 / 3)
    assert result.difference == pytest.approx(2.25 / 3)
    assert (result.n, result.excluded) == (3, 1)


def test_shuffled_equals_the_mean_over_all_derangements():
    rng = np.random.default_rng(0)
    names = np.array(["dog", "cat", "ball", "box", "tree"])
    gold = [set(rng.choice(names, size=rng.integers(1, 4), replace=False)) for _ in range(6)]
    captions = [" ".join(rng.choice(names, size=3)) for _ in range(6)]
    orders = [order for order in itertools.permutations(range(6)) if all(i != j for i, j in enumerate(order))]
    means = [noun_recall([captions[j] for j in order], gold).mean() for order in orders]
    assert recall_against_shuffled(captions, gold, num_resamples=1).shuffled == pytest.approx(np.mean(means))


def test_bootstrap_is_what_a_plain_loop_gives():
    captions, gold = ["a dog", "a cat", "a dog and a cat", "a ball"], [{"dog"}, {"cat", "dog"}, {"cat"}, {"ball"}]
    matrix = np.array([[noun_recall([caption], [wanted])[0] for caption in captions] for wanted in gold])
    draws = np.random.Generator(np.random.Philox(3)).integers(4, size=(100, 4))
    differences = []
    for drawn in draws:
        others = [matrix[i, j] for i in drawn for j in drawn if i != j]
        differences.append(matrix[drawn, drawn].mean() - np.mean(others) if others else np.nan)
    result = recall_against_shuffled(captions, gold, num_resamples=100, seed=3, confidence=0.8)
    assert [result.lower, result.upper] == pytest.approx(list(np.nanpercentile(differences, [10, 90])))


@pytest.mark.parametrize("words", [3, 7, 11])
def test_one_image_drawn_every_time_has_no_other_to_compare_with(words):
    counts = np.arange(2.0, 60.0)[:, None]  # the sums over all pairs and over its own differ in the last bits
    weights = np.full((1, words), 1 / words)
    recall, shuffled = nouns._recall_and_shuffled(counts, weights, np.ones((1, words)), weights.sum(1))
    assert recall == pytest.approx(1.0)
    assert np.isnan(shuffled).all()


def test_a_perfect_captioner():
    gold = [{f"noun{i}"} for i in range(30)]
    result = recall_against_shuffled([f"a noun{i}" for i in range(30)], gold, num_resamples=200)
    assert (result.recall, result.shuffled, result.difference) == (1.0, 0.0, 1.0)
    assert (result.lower, result.upper) == (1.0, 1.0)


def test_a_captioner_that_never_looks():
    rng = np.random.default_rng(1)
    gold = [{str(rng.choice(["dog", "cat", "ball"]))} for _ in range(60)]
    result = recall_against_shuffled(["a dog"] * 60, gold, num_resamples=500)
    assert result.recall > 0.2
    assert result.difference == pytest.approx(0, abs=1e-12)
    assert result.lower <= 0 <= result.upper
    assert result.upper - result.lower < 0.05


def test_random_captions_cover_zero_about_as_often_as_promised():
    rng = np.random.default_rng(2)
    covered = 0
    for seed in range(200):
        gold = [{str(noun)} for noun in rng.choice(["dog", "cat", "ball", "box"], size=40)]
        captions = list(rng.choice(["dog", "cat", "ball", "box"], size=40))
        result = recall_against_shuffled(captions, gold, num_resamples=200, seed=seed, confidence=0.9)
        covered += result.lower <= 0 <= result.upper
    assert 160 <= covered <= 195  # 180 expected


def test_ties_among_images_are_no_trouble():
    result = recall_against_shuffled(["a dog"] * 4 + ["a cat"] * 4, [{"dog"}] * 4 + [{"cat"}] * 4)
    assert result.recall == 1.0
    assert result.shuffled == pytest.approx(3 / 7)


def test_two_images_are_enough():
    result = recall_against_shuffled(["a dog", "a cat"], [{"dog"}, {"cat"}], num_resamples=100)
    assert (result.difference, result.lower, result.upper) == (1.0, 1.0, 1.0)


def test_seeded_and_independent_of_the_global_state():
    np.random.seed(0)  # noqa: NPY002
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    first = recall_against_shuffled(GENERATED, GOLD, seed=5)
    assert recall_against_shuffled(GENERATED, GOLD, seed=5) == first
    np.testing.assert_array_equal(np.random.get_state()[1], state)  # noqa: NPY002


def test_the_matrices_of_a_large_run_equal_a_loop_over_all_pairs():
    rng = np.random.default_rng(0)
    names = [f"noun{i}" for i in range(400)]
    gold = [set(rng.choice(names, size=3)) for _ in range(600)]
    named = [set(rng.choice(sorted(wanted), size=2)) | {names[row % 400]} for row, wanted in enumerate(gold)]
    result = recall_against_shuffled([" ".join(words) for words in named], gold, num_resamples=20)
    shares = [[len(words & wanted) / len(wanted) for words in named] for wanted in gold]  # image, caption
    own = [row[image] for image, row in enumerate(shares)]
    assert result.recall == pytest.approx(np.mean(own))
    assert result.shuffled == pytest.approx((np.sum(shares) - np.sum(own)) / (600 * 599))
    assert result.n == 600


def test_one_line():
    result = RecallResult(0.5, 0.25, 0.25, 0.1251, 0.3749, n=1234, excluded=2, confidence=0.9)
    assert str(result) == (
        "noun recall 0.500, shuffled 0.250, difference +0.250, 90 % interval [+0.125, +0.375], 1,234 images, "
        "2 left out (no gold noun)"
    )
    assert "left out" not in str(RecallResult(0.5, 0.25, 0.25, 0.1, 0.4, n=3))


def test_errors():
    with pytest.raises(ValueError, match="There are 1 captions for the gold nouns of 2 images"):
        noun_recall(["a dog"], [{"dog"}, {"cat"}])
    with pytest.raises(ValueError, match="1 of 1 images has gold nouns"):
        recall_against_shuffled(["a dog"], [{"dog"}])
    with pytest.raises(ValueError, match="0 of 2 images has gold nouns"):
        recall_against_shuffled(["a", "b"], [set(), {"--"}])
    with pytest.raises(ValueError, match="`confidence` is 95"):
        recall_against_shuffled(GENERATED, GOLD, confidence=95)
    with pytest.raises(ValueError, match="`num_resamples` is 0"):
        recall_against_shuffled(GENERATED, GOLD, num_resamples=0)
