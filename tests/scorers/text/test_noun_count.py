from __future__ import annotations

import numpy as np
import pytest

from hf_curriculum import NounCount
from hf_curriculum.scorers.text.taggers import PatternTagger, Tagger

PARIS = "a dog and two cats in Paris"


def count(scorer, captions, column="caption"):
    return scorer({column: captions})["noun_count"].tolist()


def test_all_nouns_and_the_released_codes_choice():
    assert count(NounCount(), [PARIS]) == [3]  # dog, cats, Paris
    assert count(NounCount(tags=("NN", "NNP")), [PARIS]) == [2]  # dog, Paris
    assert count(NounCount(tags="NNS"), [PARIS]) == [1]


def test_what_cannot_be_scored_is_nan_and_no_nouns_is_zero():
    scores = NounCount()({"caption": ["", None, " ", "running quickly", "!!!"]})["noun_count"]
    np.testing.assert_array_equal(scores, np.float32([np.nan, np.nan, np.nan, 0, 0]))
    assert np.isnan(NounCount(tagger=lambda sentences: 1 / 0)({"caption": [None]})["noun_count"]).all()


def test_contractions_and_signs_are_no_nouns():
    assert count(NounCount(), ["don't ~ % ♥ …", "the dog's ball isn't red"]) == [0, 2]


def test_max_words_counts_within_the_first_tokens():
    assert count(NounCount(max_words=2), [PARIS]) == [1]
    assert count(NounCount(max_words=50), ["dog " * 10_000]) == [50]
    assert count(NounCount(), ["dog " * 10_000]) == [10_000]


def test_any_tagger():
    def stub(sentences):
        return [["DT", "NN", "CC", "CD", "NNS", "IN", "NNP"]] * len(sentences)

    assert count(NounCount(stub), [PARIS, PARIS]) == [3, 3]
    assert count(NounCount(PatternTagger()), [PARIS]) == [3]

    class Trained(Tagger):
        model, revision, packages = "me/tagger", "abc", ("transformers",)

        def tag(self, sentences, rank=None):
            return [["NN"] * (rank or 0) for _ in sentences]

    made = NounCount(Trained())
    assert made({"caption": ["x"]}, rank=2)["noun_count"].tolist() == [2]
    assert (made.describe().model, made.describe().revision) == ("me/tagger", "abc")
    assert "transformers" in made.describe().versions


def test_gold_tags():
    scorer = NounCount(tags_column="tags")
    assert scorer.columns == ("tags",)
    gold = [["DT", "NN"], None, [], ["NNPS", "NNS", "VB"]]
    np.testing.assert_array_equal(scorer({"tags": gold})["noun_count"], np.float32([1, np.nan, np.nan, 2]))
    universal = NounCount(tags_column="tags", tags=("NOUN", "PROPN"))
    assert count(universal, [["DET", "NOUN", "PROPN"]], "tags") == [2]
    with pytest.raises(ValueError, match=r'The tags are universal ones .* Pass `tags=\("NOUN", "PROPN"\)`'):
        scorer({"tags": [["DET", "NOUN"]]})
    with pytest.raises(TypeError, match="`tags` in row 0 of the batch is 'NN', not a list of tags"):
        scorer({"tags": ["NN"]})
    with pytest.raises(TypeError, match="not a list of tags"):
        scorer({"tags": [[1, 2]]})
    with pytest.raises(ValueError, match="Both `tagger='nltk'` and `tags_column='tags'`"):
        NounCount("nltk", tags_column="tags")


def test_taggers_that_return_something_else():
    with pytest.raises(ValueError, match="returned 1 lists of tags for 2 captions"):
        count(NounCount(lambda sentences: [["NN"]]), ["a", "b"])
    with pytest.raises(TypeError, match="not a list of tags alone"):
        count(NounCount(lambda sentences: [[("dog", "NN")]]), ["dog"])
    with pytest.raises(TypeError, match="not a list of tags alone"):
        count(NounCount(lambda sentences: ["NN"]), ["dog"])


def test_wrong_arguments():
    with pytest.raises(ValueError, match="There is no tagger 'brill'"):
        NounCount("brill")
    with pytest.raises(ValueError, match="`tags` is empty"):
        NounCount(tags=())
    with pytest.raises(ValueError, match="`easy` is 'few'"):
        NounCount(easy="few")
    with pytest.raises(TypeError, match="`caption` in row 0 of the batch is a int"):
        count(NounCount(), [5])


def test_provenance_tells_tagger_and_tags():
    made = NounCount(tags=("NN", "NNP")).describe()
    assert made.arguments == {
        "column": "caption",
        "max_words": None,
        "tagger": {"type": "PatternTagger"},
        "tags": ["NN", "NNP"],
        "tags_column": None,
    }
    assert made.scorer == "NounCount"
    assert "textblob" in made.versions
    assert NounCount(tags_column="tags").describe().arguments["tagger"] is None
