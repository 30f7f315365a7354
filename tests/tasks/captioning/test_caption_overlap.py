"""BLEU, ROUGE-L and CIDEr-D, beside `pycocoevalcap` and beside the plainest way to compute them."""

import math
from collections import Counter

import numpy as np
import pytest

from hf_curriculum.tasks.captioning.metrics.cider import CiderD, DocumentFrequencies
from hf_curriculum.tasks.captioning.metrics.overlap import (
    PreparedReferences,
    bleu_statistics,
    bleu_values,
    count_ngrams,
    rouge_l,
)

WORDS = np.array([*"abcdefg", "dog", "<eos>"])


def random_captions(images, seed):
    """A caption for each image and one to five references, of 1 to 12 words; one caption is empty."""
    generator = np.random.default_rng(seed)

    def text(low):
        return " ".join(generator.choice(WORDS[:8], generator.integers(low, 13)))

    return [text(0) for _ in range(images - 1)] + [""], [
        [text(1) for _ in range(generator.integers(1, 6))] for _ in range(images)
    ]


def grams(text):
    words = text.split()
    return Counter(tuple(words[i : i + n]) for n in range(1, 5) for i in range(len(words) - n + 1))


def plain_cider(caption, given, frequencies, images):
    """CIDEr-D by its definition, with dictionaries."""

    def vectors(text):
        parts = [{} for _ in range(4)]
        for gram, count in grams(text).items():
            parts[len(gram) - 1][gram] = count * (math.log(images) - math.log(max(1, frequencies[gram])))
        return parts

    total = 0.0
    for reference in given:
        difference = max(len(caption.split()) - 1, 0) - max(len(reference.split()) - 1, 0)
        for own, theirs in zip(vectors(caption), vectors(reference), strict=True):
            norms = math.sqrt(sum(w * w for w in own.values())) * math.sqrt(sum(w * w for w in theirs.values()))
            common = sum(min(own[gram], theirs[gram]) * theirs[gram] for gram in own if gram in theirs)
            total += (common / norms if norms else 0.0) * math.exp(-(difference**2) / 72) / 4
    return 10 * total / len(given)


def plain_frequencies(references):
    return Counter(gram for given in references for gram in set().union(*map(grams, given)))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_equal_to_pycocoevalcap(seed):
    bleu = pytest.importorskip("pycocoevalcap.bleu.bleu")
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge

    captions, references = random_captions(40, seed)
    truths, given = dict(enumerate(references)), {row: [text] for row, text in enumerate(captions)}
    prepared = PreparedReferences(references)
    _, theirs = Cider().compute_score(truths, given)
    np.testing.assert_allclose(CiderD(prepared).scores(captions), theirs, rtol=0, atol=1e-12)
    statistics = bleu_statistics(captions, prepared)
    corpus, each = bleu.Bleu(4).compute_score(truths, given, verbose=0)
    np.testing.assert_allclose(bleu_values(statistics.sum(0)), corpus, rtol=1e-12)
    np.testing.assert_allclose(bleu_values(statistics), np.transpose(each), rtol=1e-12)
    _, theirs = Rouge().compute_score(truths, given)
    np.testing.assert_allclose(rouge_l(captions, references), theirs, rtol=0, atol=1e-12)


def test_cider_by_its_definition():
    captions, references = random_captions(30, seed=3)
    frequencies = plain_frequencies(references)
    expected = [plain_cider(*pair, frequencies, 30) for pair in zip(captions, references, strict=True)]
    np.testing.assert_allclose(CiderD(references).scores(captions), expected, rtol=0, atol=1e-12)
    assert max(expected) > 0.5
    assert expected[-1] == 0  # the empty caption


def test_several_captions_of_some_images_in_any_order():
    captions, references = random_captions(30, seed=4)
    scorer, rows = CiderD(references), [7, 7, 2, 29, 7, 0]
    frequencies = plain_frequencies(references)
    expected = [
        plain_cider(text, references[row], frequencies, 30) for text, row in zip(captions[:6], rows, strict=True)
    ]
    np.testing.assert_allclose(scorer.scores(captions[:6], rows), expected, rtol=0, atol=1e-12)
    assert scorer.scores([], []).shape == (0,)


def test_document_frequencies_of_another_corpus_and_the_end_as_a_word():
    """Self-critical training: words are weighed by the training split, and `<eos>` is one."""
    captions, references = random_captions(20, seed=5)
    _, training = random_captions(200, seed=6)
    ended = [[f"{text} <eos>" for text in given] for given in training]
    frequencies = plain_frequencies(ended)
    scorer = CiderD(references, DocumentFrequencies(training, end_token="<eos>"), end_token="<eos>")
    expected = [
        plain_cider(f"{text} <eos>", [f"{reference} <eos>" for reference in given], frequencies, 200)
        for text, given in zip(captions, references, strict=True)
    ]
    np.testing.assert_allclose(scorer.scores(captions), expected, rtol=0, atol=1e-12)
    counted = scorer.document_frequencies(["a", "a b", "<eos>", "zebra", "dog <eos>"])
    assert counted.tolist() == [frequencies[tuple(g.split())] for g in ("a", "a b", "<eos>", "zebra", "dog <eos>")]
    assert not np.allclose(scorer.scores(captions), CiderD(references).scores(captions))


def test_many_lookups_are_made_in_order(monkeypatch):
    captions, references = random_captions(20, seed=8)
    expected = CiderD(references).scores(captions)
    monkeypatch.setattr("hf_curriculum.tasks.captioning.metrics.cider._MANY", 3)
    np.testing.assert_array_equal(CiderD(references).scores(captions), expected)


def test_prepared_references_serve_bleu_and_cider():
    captions, references = random_captions(12, seed=7)
    prepared = PreparedReferences(references)
    first = CiderD(prepared).scores(captions)
    bleu_statistics(captions, prepared)
    np.testing.assert_array_equal(CiderD(prepared).scores(captions), first)
    np.testing.assert_array_equal(DocumentFrequencies(prepared)(["a"]), DocumentFrequencies(references)(["a"]))


def test_ngrams_of_a_sentence():
    found = count_ngrams(["a b a b a", "", "c"])
    assert found.lengths.tolist() == [5, 0, 1]
    assert Counter(zip(found.sentence.tolist(), found.order.tolist(), found.counts.tolist(), strict=True)) == {
        (0, 0, 3): 1,  # a
        (0, 0, 2): 1,  # b
        (0, 1, 2): 2,  # a b, b a
        (0, 2, 2): 1,  # a b a
        (0, 2, 1): 1,  # b a b
        (0, 3, 1): 2,  # a b a b, b a b a
        (2, 0, 1): 1,
    }


def test_the_closest_of_two_lengths_is_the_smaller():
    statistics = bleu_statistics(["a b c d"], PreparedReferences([["a b c d e", "a b c"]]))
    assert statistics[0].tolist() == [4, 3, 4, 3, 2, 1, 4, 3, 2, 1]


def test_words_count_as_often_as_in_the_reference_that_has_most():
    statistics = bleu_statistics(["the the the the"], PreparedReferences([["the cat the", "the dog"]]))
    assert statistics[0, 6] == 2  # Papineni et al. 2002, example 2


def test_rouge_of_two_references():
    # best precision 3/4 (the first), best recall 1 (the second)
    assert rouge_l(["a b x c"], [["a b c d e", "x"]])[0] == pytest.approx(2.44 * 0.75 / (1 + 1.44 * 0.75))
    assert rouge_l(["", "a"], [["a"], ["b"]]).tolist() == [0, 0]


def test_errors():
    with pytest.raises(ValueError, match="There are no references: `references` is empty"):
        PreparedReferences([])
    with pytest.raises(ValueError, match=r"Image 1 has no references\. Nothing can be compared"):
        CiderD([["a"], []])
    with pytest.raises(TypeError, match="The references of image 0 are the string 'a dog'"):
        CiderD(["a dog"])
    scorer = CiderD([["a"], ["b"]])
    with pytest.raises(ValueError, match="There are 1 captions for 2 rows of references"):
        scorer.scores(["a"])
    with pytest.raises(ValueError, match="`rows` reach from -1 to 2, and the references are those of images 0 to 1"):
        scorer.scores(["a", "b"], [-1, 2])
    with pytest.raises(ValueError, match=r"counted with `end_token=None` and the references have '<eos>'"):
        CiderD([["a"]], DocumentFrequencies([["a"]]), end_token="<eos>")
    with pytest.raises(ValueError, match=r"`end_token='\.'` was given for references that were prepared with None"):
        CiderD(PreparedReferences([["a"]]), end_token=".")


def test_references_without_a_word_score_nothing():
    scorer = CiderD([[""], ["  "]])
    assert scorer.scores(["a", ""]).tolist() == [0, 0]
    assert bleu_statistics(["a", ""], scorer.references)[:, 6:].sum() == 0
    assert scorer.document_frequencies(["a"]).tolist() == [0]
