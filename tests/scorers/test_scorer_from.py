from __future__ import annotations

import json

import pytest

from hf_curriculum import CaptionLength, NounCount
from hf_curriculum.names import SCORERS
from hf_curriculum.scorers.registry import scorer_from


def test_every_form(tmp_path):
    mapping = {"type": "noun_count", "tags": ["NN", "NNP"], "max_words": 50}
    file = tmp_path / "scorer.yaml"
    file.write_text("type: noun_count\ntags: [NN, NNP]\nmax_words: 50\n")
    for form in (mapping, json.dumps(mapping), "{type: noun_count, tags: [NN, NNP], max_words: 50}", file, str(file)):
        scorer = scorer_from(form)
        assert isinstance(scorer, NounCount)
        assert (scorer.tags, scorer.max_words) == (("NN", "NNP"), 50)
    assert mapping["type"] == "noun_count"  # what was given is left alone
    assert isinstance(scorer_from(" caption_length "), CaptionLength)
    assert scorer_from(scorer) is scorer


@pytest.mark.parametrize(
    "text",
    [
        '{"type": "combined", "weights": {"a": 1e-5, "b": 2}, "easy_of": {"a": "low"}}',
        "{type: combined, weights: {a: 1e-5, b: 2}, easy_of: {a: low}}",
    ],
    ids=["JSON", "YAML"],
)
def test_nested_arguments(text):
    scorer = scorer_from(text)
    assert (scorer.weights, scorer.easy_of) == ({"a": 1e-5, "b": 2.0}, {"a": "low"})


@pytest.mark.parametrize("name", sorted(SCORERS))
def test_every_scorer_is_known_by_name(name):
    try:
        assert isinstance(scorer_from(name), SCORERS[name])
    except ValueError as error:
        assert "needs `" in str(error) or "exactly one of" in str(error)  # noqa: PT017


def test_mistakes(tmp_path):
    for match, bad in (
        (r"There is no scorer 'beauty'.*caption_length", "beauty"),
        ("There is no scorer None", "{name: noun_count}"),
        (r"`modle` is no argument of CLIPSimilarity, which takes model, ", {"type": "clip_similarity", "modle": "x"}),
        (r'ViLTSimilarity needs `model`.*"type": "vilt_similarity", "model": "..."', "vilt_similarity"),
        (r"nothing\.json' does not exist", tmp_path / "nothing.json"),
        (r"neither a name of .*, a file, JSON nor YAML", '{"type": ['),
        ("nor a mapping with a `type`", "[noun_count]"),
        ("`easy` is 'middle'", {"type": "caption_length", "easy": "middle"}),
    ):
        with pytest.raises(ValueError, match=match):
            scorer_from(bad)
