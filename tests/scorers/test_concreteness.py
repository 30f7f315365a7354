from __future__ import annotations

import builtins
import csv
import gzip
import json
import logging
from collections import defaultdict

import numpy as np
import pytest
from datasets import Array2D, Dataset, Features, Value
from datasets.fingerprint import Hasher

from hf_curriculum import Concreteness, add_scores
from hf_curriculum.scorers import concreteness as module
from hf_curriculum.scorers.concreteness import approximate_neighbours, nearest_neighbours, recall_of, unit_embeddings


def pictures(size=60, width=8, captions=2, seed=0):
    """Random images, several captions each, of words with different numbers of images."""
    rng = np.random.default_rng(seed)
    rows = {"image_id": [], "caption": [], "image_embedding": []}
    for image in range(size):
        vector = rng.normal(size=width).astype(np.float32).tolist()
        for _ in range(captions):
            chosen = [f"word{number}" for number in range(6) if rng.random() < 1 / (number + 1)]
            rows["image_id"].append(f"image {image}")
            rows["caption"].append(" ".join(["The", *chosen]))
            rows["image_embedding"].append(vector)
    return rows


def naive(rows, k, count_self):
    """The definition, one image and one word after the other."""
    vectors, words = {}, defaultdict(set)
    for image, caption, vector in zip(*rows.values(), strict=True):
        vectors[image] = np.array(vector) / np.linalg.norm(vector)
        for word in caption.lower().split():
            words[word].add(image)
    nearest = {}
    for image, vector in vectors.items():
        others = sorted((-vector @ other, name) for name, other in vectors.items() if name != image)
        names = [name for _, name in others]
        nearest[image] = {image, *names[: k - 1]} if count_self else set(names[:k])
    found = {}
    for word, images in words.items():
        data = np.mean([len(nearest[image] & images) for image in images])
        found[word] = data / (k * len(images) / len(vectors))
    return found


@pytest.mark.parametrize("count_self", [True, False])
@pytest.mark.parametrize("k", [1, 5, 50])
def test_the_definition(monkeypatch, k, count_self):
    monkeypatch.setattr(module, "_BUFFER", 60 * 7)  # seven rows of the product at a time
    rows = pictures()
    learnt = Concreteness(k, count_self=count_self, min_count=1).fit(Dataset.from_dict(rows)).word_concreteness_
    expected = naive(rows, k, count_self)
    assert set(learnt) == set(expected) >= {"the", "word0", "word5"}
    for word, value in expected.items():
        assert learnt[word] == pytest.approx(value, rel=1e-9)
    assert learnt["the"] == 1  # of all images: exactly what chance gives


def test_images_that_are_each_others_neighbours():
    groups, k = 5, 4  # n / k where the k images of a word are exactly one another's neighbours
    centres = np.eye(groups, 8)
    rng = np.random.default_rng(0)
    rows = {"image_id": [], "caption": [], "image_embedding": []}
    for group in range(groups):
        for image in range(k):
            rows["image_id"].append(f"{group}-{image}")
            rows["caption"].append(f"word{group}")
            rows["image_embedding"].append((centres[group] + 0.01 * rng.normal(size=8)).tolist())
    learnt = Concreteness(k, min_count=k).fit(Dataset.from_dict(rows)).word_concreteness_
    assert learnt == {f"word{group}": groups * k / k for group in range(groups)}


def test_words_of_an_image_are_those_of_all_its_captions_once():
    rows = {
        "image_id": ["a", "a", "b", "c"],
        "caption": ["red red", "Ball RED", "ball", None],
        "image_embedding": [[1.0, 0.0], None, [0.9, 0.1], [0.0, 1.0]],
    }
    scorer = Concreteness(2, min_count=2).fit(Dataset.from_dict(rows))
    assert scorer.word_concreteness_ == {"ball": 2 / (2 * 2 / 3)}
    assert scorer.images_ == 3


def test_min_count_counts_images():
    rows = pictures(30, captions=3)
    images = {word: sum(word in caption for caption in set_of(rows)) for word in ("word0", "word5")}
    assert images["word5"] < images["word0"]
    scorer = Concreteness(5, min_count=images["word0"]).fit(Dataset.from_dict(rows))
    assert "word0" in scorer.word_concreteness_
    assert "word5" not in scorer.word_concreteness_


def set_of(rows):
    words = defaultdict(set)
    for image, caption in zip(rows["image_id"], rows["caption"], strict=True):
        words[image] |= set(caption.split())
    return words.values()


@pytest.mark.parametrize(("aggregate", "expected"), [("mean", 5 / 3), ("max", 2), ("min", 1)])
def test_captions(aggregate, expected):
    rows = {
        "image_id": list("abcd"),
        "caption": ["red ball", "red car", "idea ball", "idea car"],
        "image_embedding": [[1.0, 0.0], [0.9, 0.1], [0.1, 0.9], [0.0, 1.0]],
    }
    scorer = Concreteness(2, min_count=1, aggregate=aggregate).fit(Dataset.from_dict(rows))
    captions = ["The red, RED ball!", "unknown", "", None, "🙂", "כלב", "red " * 10_000]
    scores = scorer({"caption": captions})["concreteness"]
    np.testing.assert_allclose(scores, np.float32([expected, *[np.nan] * 5, 2]), rtol=1e-6)
    assert scorer.easy == "high"


def test_the_order_of_the_corpus_does_not_matter():
    data = Dataset.from_dict(pictures())
    one = Concreteness(5, min_count=1).fit(data)
    other = Concreteness(5, min_count=1).fit(data.shuffle(seed=3))
    assert one.word_concreteness_ == other.word_concreteness_
    assert Hasher.hash(one) == Hasher.hash(other)
    half = Concreteness(5, min_count=1).fit(data.select(range(60)))
    assert half.images_ == 30
    assert half.arguments()["fitted"] != one.arguments()["fitted"]
    assert len(add_scores(data.shuffle(seed=1), one).unique("concreteness")) > 1


def test_images_without_an_embedding_are_left_out_and_counted(caplog):
    rows = pictures(20)
    rows["image_embedding"] = [None if row < 6 else vector for row, vector in enumerate(rows["image_embedding"])]
    with caplog.at_level(logging.WARNING, "hf_curriculum.scorers.concreteness"):
        scorer = Concreteness(3, min_count=1).fit(Dataset.from_dict(rows))
    assert scorer.images_ == 17
    assert "Concreteness: 3 of 20 images have no embedding." in caplog.text
    whole = {name: values[6:] for name, values in rows.items()}
    expected = naive(whole, 3, count_self=True)
    assert scorer.word_concreteness_ == pytest.approx({word: expected[word] for word in scorer.word_concreteness_})


def test_equal_vectors_have_themselves_first_and_never_when_not_counted():
    same = np.full((6, 4), 0.5, np.float32)
    assert [row in found for row, found in enumerate(nearest_neighbours(same, 1).tolist())] == [True] * 6
    found = nearest_neighbours(same, 5, include_self=False).tolist()
    assert [sorted(row) for row in found] == [[other for other in range(6) if other != row] for row in range(6)]


def unit(size, width=16, seed=0):
    vectors = np.random.default_rng(seed).normal(size=(size, width)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize("include_self", [True, False])
def test_faiss_finds_most_and_says_how_many(include_self):
    pytest.importorskip("faiss")
    vectors = unit(3000)
    true = nearest_neighbours(vectors, 10, include_self=include_self)
    assert recall_of(true, vectors, include_self=include_self, sample=200) == 1
    found = approximate_neighbours(vectors, 10, include_self=include_self)
    assert found.shape == true.shape
    own = [row in line for row, line in enumerate(found.tolist())]
    assert all(own) if include_self else not any(own)
    measured = recall_of(found, vectors, include_self=include_self, sample=3000)
    shared = sum(len(set(one) & set(other)) for one, other in zip(true.tolist(), found.tolist(), strict=True))
    expected = (shared - 3000 * include_self) / (3000 * (10 - include_self))
    assert measured == pytest.approx(expected, abs=1e-4)
    assert 0.5 <= measured <= 1


def test_concreteness_by_faiss():
    pytest.importorskip("faiss")
    rows = pictures(400)
    exact = Concreteness(20, min_count=20).fit(Dataset.from_dict(rows))
    other = Concreteness(20, min_count=20, search="faiss").fit(Dataset.from_dict(rows))
    assert exact.recall_ == 1
    assert other.recall_ == 1  # so few images that all cells are searched
    assert other.word_concreteness_ == pytest.approx(exact.word_concreteness_)
    assert "faiss-cpu" in other.describe().versions
    assert "faiss-cpu" not in exact.describe().versions


def test_the_flickr_words_are_plausible(test_data):
    with (test_data("clip_b32_embeddings") / "flickr8k_image_embeds_index.csv").open(newline="") as stream:
        index = [row for row in csv.DictReader(stream) if row["file_name"]]
    vectors = np.load(test_data("clip_b32_embeddings") / "flickr8k_image_embeds.npy").astype(np.float32)
    captions = defaultdict(list)
    with gzip.open(test_data("flickr8k") / "captions_all_8091.csv.gz", "rt", encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            captions[row["image"]].append(row["caption"])
    rows = [(row["file_name"], text, int(row["row"])) for row in index for text in captions[row["file_name"]]]
    data = Dataset.from_dict(
        {
            "image_id": [row[0] for row in rows],
            "caption": [row[1] for row in rows],
            "image_embedding": [vectors[row[2]] for row in rows],
        }
    )
    scorer = Concreteness(min_count=20).fit(data)
    words = sorted(scorer.word_concreteness_, key=scorer.word_concreteness_.get)
    assert {"skateboard", "pool", "bike", "player"} <= set(words[-12:])
    assert {"the", "and", "of", "with", "in", "to"} <= set(words[:12])
    assert scorer.word_concreteness_["a"] == pytest.approx(1, abs=0.01)
    scores = scorer({"caption": [row[1] for row in rows]})["concreteness"]
    assert np.isnan(scores).sum() <= 5
    assert 1 <= np.nanmedian(scores) <= 4
    with gzip.open(test_data("coco_captions_val2017") / "captions_val2017.json.gz", "rt", encoding="utf-8") as stream:
        others = [entry["caption"] for entry in json.load(stream)["annotations"]]
    scores = scorer({"caption": others})["concreteness"]  # by words learnt elsewhere
    assert len(scores) == 25_014
    assert np.isnan(scores).mean() <= 0.01
    assert 0.9 <= np.nanmin(scores) <= np.nanmax(scores) <= 984 / 50


def test_errors(monkeypatch):
    data = Dataset.from_dict(pictures(10))
    with pytest.raises(RuntimeError, match="Concreteness was used before `fit`"):
        Concreteness()({"caption": ["a dog"]})
    with pytest.raises(ValueError, match=r"50 nearest neighbours .* of 10 vectors each has from 1 to 10 \(itself inc"):
        Concreteness(min_count=1).fit(data)
    with pytest.raises(ValueError, match=r"10 nearest neighbours .* from 1 to 9 \(itself not counted\)"):
        Concreteness(10, min_count=1, count_self=False).fit(data)
    with pytest.raises(ValueError, match=r"No word has 200 images: the most frequent, 'the', has 10\."):
        Concreteness(5).fit(data)
    with pytest.raises(ValueError, match="No word has 1 images: the most frequent, there is, has none"):
        Concreteness(5, min_count=1).fit(data.map(lambda row: {"caption": ""}))
    for option in ({"aggregate": "sum"}, {"search": "annoy"}, {"easy": "concrete"}):
        with pytest.raises(ValueError, match=f"`{next(iter(option))}` is"):
            Concreteness(**option)
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "faiss":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install 'hf-curriculum\[retrieval\]'"):
        Concreteness(5, min_count=1, search="faiss").fit(data)


def test_embeddings_that_cannot_be_compared():
    ids = {"image_id": ["a", "b"]}
    with pytest.raises(TypeError, match=r"`Concreteness.fit` was given an IterableDataset .*without `streaming=True`"):
        Concreteness(5).fit(Dataset.from_dict(ids).to_iterable_dataset())
    with pytest.raises(ValueError, match=r"`v` is not in the data.*Add embeddings of any image model"):
        unit_embeddings(Dataset.from_dict(ids), "v", "Example")
    with pytest.raises(ValueError, match="No row has an embedding in `v`"):
        unit_embeddings(Dataset.from_dict(ids | {"v": [None, None]}), "v", "Example")
    with pytest.raises(TypeError, match="`v` holds double, not one list of numbers per row"):
        unit_embeddings(Dataset.from_dict(ids | {"v": [1.0, 2.0]}), "v", "Example")
    with pytest.raises(ValueError, match="The embeddings in `v` have 1 to 2 numbers"):
        unit_embeddings(Dataset.from_dict(ids | {"v": [[1.0], [2.0, 3.0]]}), "v", "Example")
    for bad in (0.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="1 of 2 embeddings in `v` are zero or not finite"):
            unit_embeddings(Dataset.from_dict(ids | {"v": [[1.0, 2.0], [bad, bad]]}), "v", "Example")
    square = Features({"image_id": Value("string"), "v": Array2D((1, 2), "float32")})
    with pytest.raises(TypeError, match="not one list of numbers per row"):
        unit_embeddings(Dataset.from_dict(ids | {"v": [[[1.0, 2.0]], [[3.0, 4.0]]]}, features=square), "v", "Example")


def test_words_that_are_left_out_are_counted(caplog):
    data = Dataset.from_dict(
        {
            "image_id": list("abcd"),
            "caption": ["red ball", "red car", "idea ball", "idea car rare"],
            "image_embedding": [[1.0, 0.0], [0.9, 0.1], [0.1, 0.9], [0.0, 1.0]],
        }
    )
    Concreteness(k=2, min_count=2).fit(data)
    assert (
        "Concreteness scores 4 of 5 words: the others are in fewer than `min_count=2` of the 4 images" in caplog.text
    )
