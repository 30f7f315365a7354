from __future__ import annotations

import gzip
import json
import math
from collections import Counter

import numpy as np
import pytest
from datasets import Dataset, DatasetDict
from datasets.fingerprint import Hasher

from hf_curriculum import WordRarity, add_scores
from hf_curriculum.scorers.text.length import word_splitter

CORPUS = ["a dog and a cat", "A dog runs", "the cat's half-eaten fish.", "un été à Zürich", None, ""]
NASTY = ["word " * 10_000, "🙂🙂", "a 🙂 dog", "שלום עולם", "!!!", "", None]


def fitted(corpus=CORPUS, **options):
    return WordRarity(**options).fit(Dataset.from_dict({"caption": corpus}))


def rarity(scorer, captions):
    return scorer({"caption": captions})["word_rarity"]


def test_the_definition_word_by_word():
    words = [word for text in CORPUS if text for word in word_splitter("regex")(text.lower())]
    counts, total = Counter(words), len(words)
    distinct = len(counts)

    def naive(word):
        return -math.log((counts[word] + 1) / (total + distinct + 1))

    captions = ["a dog", "a purple cat", "Zürich", "nothing known here"]
    each = [[naive(word) for word in caption.lower().split()] for caption in captions]
    for aggregate, function in {"mean": np.mean, "max": max, "sum": sum}.items():
        expected = [function(values) for values in each]
        np.testing.assert_allclose(rarity(fitted(aggregate=aggregate), captions), expected, rtol=1e-6)
    # words and the unseen one: all of the probability
    assert sum(math.exp(-naive(word)) for word in [*counts, "unseen"]) == pytest.approx(1)


def test_rare_words_and_long_sums_are_hard():
    scores = rarity(fitted(), ["a", "dog", "runs", "unseen"])
    assert (np.diff(scores) > 0).all()
    assert rarity(fitted(aggregate="sum"), ["a a"]) == pytest.approx(2 * scores[:1])
    assert rarity(fitted(aggregate="max"), ["a runs a"]) == scores[2]
    assert WordRarity().easy == "low"


def test_whitespace_words_keep_their_punctuation():
    assert "fish." in fitted(words="whitespace").word_counts_
    assert {"fish", "half-eaten", "cat's", "été"} <= set(fitted().word_counts_)


def test_long_empty_and_foreign_captions():
    scores = rarity(fitted(), NASTY)
    np.testing.assert_array_equal(np.isnan(scores), [False, True, False, False, True, True, True])
    assert scores[0] == scores[3] == rarity(fitted(), ["unseen"])[0]


def test_the_order_of_the_corpus_does_not_matter_and_its_words_do():
    assert Hasher.hash(fitted()) == Hasher.hash(fitted(CORPUS[::-1]))
    assert Hasher.hash(fitted()) != Hasher.hash(fitted(CORPUS[:2]))
    assert fitted().arguments()["fitted"] != fitted(CORPUS[:2]).arguments()["fitted"]
    assert list(fitted().word_counts_) == sorted(fitted().word_counts_)


def test_counts_from_elsewhere_and_learning_again():
    scorer = WordRarity().fit_counts({"the": 90, "The": 9, "dog": 1})
    assert scorer.word_counts_ == {"dog": 1, "the": 99}
    assert rarity(scorer, ["the dog"]) == pytest.approx([(math.log(103 / 100) + math.log(103 / 2)) / 2])
    assert rarity(scorer.fit_counts({"dog": 99}), ["dog"]) == pytest.approx([math.log(101 / 100)])


def test_a_stream_teaches_the_same():
    stream = Dataset.from_dict({"caption": CORPUS}).to_iterable_dataset()
    assert WordRarity().fit(stream).word_counts_ == fitted().word_counts_


def test_a_published_frequency_list(test_data):
    lines = (test_data("word_norms") / "frequencywords_en_50k.txt").read_text(encoding="utf-8").splitlines()
    scorer = WordRarity().fit_counts({word: int(count) for word, count in (line.split() for line in lines)})
    assert len(scorer.word_counts_) >= 45_000
    scores = rarity(scorer, ["a dog", "a dachshund", "a zxqv"])
    assert (np.diff(scores) > 0).all()


def test_errors():
    with pytest.raises(RuntimeError, match="WordRarity was used before `fit`: it has no word_counts_"):
        add_scores(Dataset.from_dict({"caption": ["a"]}), WordRarity())
    with pytest.raises(ValueError, match="There are no words to count"):
        fitted(["", None, "!"])
    with pytest.raises(ValueError, match=r"The count of 'dog' is 0\.5"):
        WordRarity().fit_counts({"a": 3, "dog": 0.5})
    with pytest.raises(ValueError, match=r"`text` is not in the data.*`WordRarity.fit` learns from it"):
        WordRarity(column="text").fit(Dataset.from_dict({"caption": ["a"]}))
    with pytest.raises(TypeError, match=r"`WordRarity.fit` was given a DatasetDict.*`data"):
        WordRarity().fit(DatasetDict(train=Dataset.from_dict({"caption": ["a"]})))
    with pytest.raises(TypeError, match="`caption` in row 1 of the batch is a list"):
        fitted()({"caption": ["a", ["b"]]})
    for option in ({"aggregate": "median"}, {"words": "letters"}, {"easy": "rare"}):
        with pytest.raises(ValueError, match=f"`{next(iter(option))}` is"):
            WordRarity(**option)


def test_the_coco_captions(test_data):
    file = test_data("coco_captions_val2017") / "captions_val2017.json.gz"
    with gzip.open(file, "rt", encoding="utf-8") as stream:
        captions = [entry["caption"] for entry in json.load(stream)["annotations"]]
    scorer = fitted(captions)
    scores = rarity(scorer, captions)
    assert len(scores) == 25_014
    assert not np.isnan(scores).any()
    assert 2 <= scores.min() <= np.median(scores) <= scores.max() <= math.log(1e6)
    assert max(scorer.word_counts_, key=scorer.word_counts_.get) == "a"
    total = sum(scorer.word_counts_.values()) + len(scorer.word_counts_) + 1
    for row in (0, 12_345, 25_013):
        words = word_splitter("regex")(captions[row].lower())
        naive = [-math.log((scorer.word_counts_[word] + 1) / total) for word in words]
        assert scores[row] == pytest.approx(np.mean(naive), rel=1e-6)
