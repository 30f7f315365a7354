"""Ranks both ways: by parts, by the whole matrix and by a loop, ties included."""

import numpy as np
import pytest

from hf_curriculum.tasks.alignment import retrieval_metrics
from hf_curriculum.tasks.alignment.retrieval import ranks as module
from hf_curriculum.tasks.alignment.retrieval.compare import compare_retrieval
from hf_curriculum.tasks.alignment.retrieval.ranks import RetrievalRanks, ScoreMatrix, VectorSimilarities
from hf_curriculum.tasks.alignment.retrieval.within_class import rank_within_classes


def loop_ranks(scores, image_of_text):
    """Straight from the definition: one more than the others that are as good or better."""
    texts, images = scores.shape
    image = [
        1 + sum(scores[t, i] >= scores[t, image_of_text[t]] for i in range(images) if i != image_of_text[t])
        for t in range(texts)
    ]
    text = []
    for i in range(images):
        own = [t for t in range(texts) if image_of_text[t] == i]
        best = max((scores[t, i] for t in own), default=0)
        text.append(1 + sum(scores[t, i] >= best for t in range(texts) if t not in own) if own else 0)
    return image, text


def some_texts(generator, images, most=7):
    """1 to 7 texts an image, in any order."""
    return generator.permutation(np.repeat(np.arange(images), generator.integers(1, most + 1, images)))


RANKS = RetrievalRanks(np.array([1, 2]), np.array([1, 2]), np.array([0, 1]))


def compared(systems=2, **options):
    return compare_retrieval({str(number): RANKS for number in range(systems)}, **{"resamples": 2, **options})


def within(classes=(("dog",), ("dog",)), **options):
    return rank_within_classes(ScoreMatrix(np.eye(2)), [0, 1], classes, **{"min_images": 2, "resamples": 2, **options})


@pytest.mark.parametrize(
    ("make", "name", "last", "beyond"),
    [
        (compared, "systems", 2, 1),
        (within, "min_images", 2, 1),
        *((make, "resamples", 1, 0) for make in (compared, within)),
        *((make, "confidence", 0.01, 0) for make in (compared, within)),
        *((make, "confidence", 0.99, 1) for make in (compared, within)),
    ],
)
def test_edges_of_a_comparison(make, name, last, beyond):
    make(**{name: last})
    with pytest.raises(ValueError, match=rf"{name}={beyond}|{beyond} {name}"):
        make(**{name: beyond})


@pytest.mark.parametrize("chunk", [1, 7, 64, 10_000])
@pytest.mark.parametrize("levels", [2, 5, 1000])
def test_scores_by_parts_and_by_a_loop(monkeypatch, chunk, levels):
    monkeypatch.setattr(module, "CHUNK", chunk)
    generator = np.random.default_rng(levels)
    rows = some_texts(generator, 17)
    scores = generator.integers(0, levels, (len(rows), 17)).astype(np.float32)
    found = ScoreMatrix(scores).ranks(rows)
    image, text = loop_ranks(scores, rows)
    assert found.image.tolist() == image
    assert found.text.tolist() == text
    assert found.image_of_text.tolist() == rows.tolist()


@pytest.mark.parametrize("chunk", [1, 7, 64, 10_000])
@pytest.mark.parametrize("kind", ["integers", "real", "close", "repeated"])
def test_vectors_by_parts_and_by_a_loop(monkeypatch, chunk, kind):
    monkeypatch.setattr(module, "CHUNK", chunk)
    monkeypatch.setattr(module, "_PAIRS", 5)
    generator = np.random.default_rng(3)
    rows = some_texts(generator, 19)
    texts, images = (generator.standard_normal((n, 12)).astype(np.float32) for n in (len(rows), 19))
    if kind == "integers":  # many products are equal
        texts, images = np.sign(texts), np.sign(images)
    elif kind == "close":  # float32 cannot tell most of the products from each other
        texts, images = (np.float32(1) + np.float32(1e-6) * vectors for vectors in (texts, images))
    elif kind == "repeated":  # the same text of several images, the same image twice
        texts, images[5] = texts[rows % 4], images[3]
    found = VectorSimilarities(texts, images).ranks(rows)
    products = (texts[:, None].astype(np.float64) * images[None]).sum(2)
    image, text = loop_ranks(products, rows)
    assert found.image.tolist() == image
    assert found.text.tolist() == text


def test_a_close_call_is_one_that_float32_gets_wrong():
    """What the products in float64 are for: without them these ranks would be others."""
    generator = np.random.default_rng(0)
    texts, images = (np.float32(1) + np.float32(1e-6) * generator.standard_normal((50, 64), np.float32) for _ in "ab")
    exact = VectorSimilarities(texts, images).ranks()
    assert exact.image.tolist() != ScoreMatrix(texts @ images.T).ranks().image.tolist()
    assert (
        exact.image.tolist()
        == ScoreMatrix(texts.astype(np.float64) @ images.T.astype(np.float64)).ranks().image.tolist()
    )


def test_ties_count_against_the_model():
    alike = ScoreMatrix(np.ones((10, 5))).ranks(np.arange(10) // 2)
    assert set(alike.image) == {5}
    assert set(alike.text) == {9}  # eight texts of other images, none of its own
    assert VectorSimilarities(np.ones((10, 3)), np.ones((5, 3))).ranks(np.arange(10) // 2).text.tolist() == [9] * 5
    assert alike.metrics() == {
        "image_r1": 0,
        "image_r5": 1,
        "image_r10": 1,
        "image_median_rank": 5,
        "text_r1": 0,
        "text_r5": 0,
        "text_r10": 1,
        "text_median_rank": 9,
    }


def test_metrics_by_hand():
    found = RetrievalRanks(np.array([1, 1, 2, 6, 11, 3]), np.array([1, 5, 0, 11]), np.array([0, 0, 1, 1, 3, 3]))
    assert found.metrics() == {
        "image_r1": 2 / 6,
        "image_r5": 4 / 6,
        "image_r10": 5 / 6,
        "image_median_rank": 2.5,
        "text_r1": 1 / 3,
        "text_r5": 2 / 3,
        "text_r10": 2 / 3,
        "text_median_rank": 5,  # of the images with texts
    }
    assert tuple(found.metrics()) == module.METRIC_NAMES
    answered, asked = found.statistics()
    assert (answered.sum(0) / asked.sum(0)).tolist() == [
        value for name, value in found.metrics().items() if "_r" in name and "rank" not in name
    ]
    assert asked[:, 0].tolist() == [2, 2, 0, 2]


def test_an_image_without_texts_is_a_candidate_alone():
    for similarities in (
        ScoreMatrix([[0.5, 0.9], [0.1, 0.0]]),
        VectorSimilarities([[0.5, 0.9], [0.1, 0.0]], np.eye(2)),
    ):
        found = similarities.ranks([0, 0])
        assert (found.image.tolist(), found.text.tolist()) == ([2, 1], [1, 0])


def test_parts_and_best_candidates():
    generator = np.random.default_rng(1)
    texts, images = generator.standard_normal((6, 4), np.float32), generator.standard_normal((5, 4), np.float32)
    vectors, scores = VectorSimilarities(texts, images), ScoreMatrix(texts @ images.T)
    for found in (vectors, scores):
        assert found.top_images(2, 5).tolist() == np.argsort(-(images @ texts[2])).tolist()
        assert found.top_texts(4, 2).tolist() == np.argsort(-(texts @ images[4]))[:2].tolist()
        part = found.select(np.array([5, 0]), np.array([1, 3, 4]))
        assert part.shape == (2, 3)
        np.testing.assert_allclose(
            part.scores_of(slice(None), slice(None)), (texts[[5, 0]] @ images[[1, 3, 4]].T), rtol=1e-6
        )
    assert ScoreMatrix([[1, 2, 2]]).top_images(0).tolist() == [1, 2, 0]


def test_errors():
    with pytest.raises(ValueError, match=r"Scores of the shape \(3,\) were given"):
        ScoreMatrix(np.ones(3))
    with pytest.raises(ValueError, match=r"Vectors of the shapes \(3, 2\) and \(3, 4\) were given"):
        VectorSimilarities(np.ones((3, 2)), np.ones((3, 4)))
    with pytest.raises(ValueError, match=r"Vectors of the shapes \(0, 2\) and"):
        VectorSimilarities(np.ones((0, 2)), np.ones((3, 2)))
    with pytest.raises(ValueError, match="The vectors of 1 of 3 images are not finite, the first in row 2"):
        VectorSimilarities(np.ones((2, 1)), [[1], [2], [np.nan]])
    with pytest.raises(ValueError, match="Scores of 1 texts, the first in row 1, are not finite"):
        retrieval_metrics(np.array([[0, 1], [np.nan, 1]]))
    with pytest.raises(ValueError, match=r"`image_of_text` has the shape \(3,\) and the type int64 for 2 texts"):
        ScoreMatrix(np.ones((2, 2))).ranks([0, 1, 1])
    with pytest.raises(ValueError, match="There are 2 images, and a text belongs to the image of row 2"):
        retrieval_metrics(np.ones((3, 2)))
    with pytest.raises(ValueError, match="a text belongs to the image of row -1"):
        retrieval_metrics(np.ones((2, 2)), [0, -1])
    for name, call in (("select", lambda s: s.select([0], [0])), ("scores_of", lambda s: s.scores_of([0], [0]))):
        with pytest.raises(NotImplementedError, match=f"does not define `{name}`"):
            call(module.Similarities())
    bare = module.Similarities()
    bare.shape = (1, 1)
    with pytest.raises(NotImplementedError, match="does not define `_ranks`"):
        bare.ranks()
