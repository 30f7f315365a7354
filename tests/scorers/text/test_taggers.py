from __future__ import annotations

import builtins
import pickle

import pytest

from hf_curriculum.scorers.text.taggers import (
    CallableTagger,
    NltkTagger,
    PatternTagger,
    Tagger,
    resolve_tagger,
    tokenize,
)

SENTENCES = [
    "a dog and two cats in Paris",
    "A man riding a horse. Two women watch. Dogs!",
    "The dog's owner isn't there; they're gone",
    "HELLO (world) & 50% of 3.5 apples...",
    "un été à Zürich, 日本",
    "The the THE the. The",
    "he may fish to run the building of paintings",
    "I saw the U.S. at 10:30",
]


def test_tokens_by_hand():
    assert tokenize("A dog, 3.5 cats... in the U.S.!") == [
        "A",
        "dog",
        ",",
        "3.5",
        "cats",
        "...",
        "in",
        "the",
        "U.S.",
        "!",
    ]
    assert tokenize("don't can't I'm dog's") == ["do", "n't", "ca", "n't", "I", "'m", "dog", "'s"]
    assert tokenize("don't DON’T", "whole") == ["don't", "DON'T"]
    assert tokenize("o'clock rock 'n' roll") == ["o", "'", "clock", "rock", "'", "n", "'", "roll"]
    assert tokenize("half-eaten e\u0301te\u0301") == ["half-eaten", "été"]
    assert tokenize(" \n") == []


def test_pattern_by_hand():
    assert PatternTagger().tag(SENTENCES[:1]) == [["DT", "NN", "CC", "CD", "NNS", "IN", "NNP"]]
    assert PatternTagger().tag(["don't % ~ … ♥"]) == [["VBP", "RB", "SYM", "SYM", "SYM", "SYM"]]


def textblob_tags(sentence):
    """The naive way: textblob's tagger on whole sentences, none of its answers kept."""
    from textblob.en.taggers import PatternTagger as Textblob

    lines = [[]]
    for word in tokenize(sentence):
        lines[-1].append(word)
        if word in (".", "!", "?"):
            lines.append([])
    tagged = [pair for line in lines if line for pair in Textblob().tag(" ".join(line), tokenize=False)]
    return [
        tag.partition("|")[0] if not tag.startswith("NN") or any(map(str.isalnum, word)) else "SYM"
        for word, tag in tagged
    ]


def test_looking_words_up_again_gives_textblobs_own_tags():
    tagger = PatternTagger()
    for sentences in (SENTENCES, SENTENCES[::-1]):
        assert tagger.tag(sentences) == [textblob_tags(sentence) for sentence in sentences]


def test_pattern_reads_nothing_of_nltks(launch, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import nltk.data\n"
        "def find(*a, **k): raise LookupError('asked for NLTK data')\n"
        "nltk.data.find = nltk.data.load = find\n"
        "from hf_curriculum.scorers import NounCount\n"
        "print(NounCount()({'caption': ['a dog and two cats in Paris']})['noun_count'].tolist())\n"
    )
    done = launch(program, env={"NLTK_DATA": str(tmp_path), "HOME": str(tmp_path), "PATH": ""})
    assert done.stdout.strip() == "[3.0]", done.stderr


def test_what_a_tagger_keeps_is_not_pickled():
    tagger = PatternTagger()
    before = pickle.dumps(tagger)
    tagger.tag(SENTENCES)
    assert pickle.dumps(tagger) == before
    assert pickle.loads(before).tag(SENTENCES[:1]) == tagger.tag(SENTENCES[:1])
    assert repr(tagger) == "PatternTagger()"


def test_names_taggers_and_functions():
    assert isinstance(resolve_tagger("pattern"), PatternTagger)
    assert isinstance(resolve_tagger("nltk"), NltkTagger)
    tagger = PatternTagger()
    assert resolve_tagger(tagger) is tagger
    ours = resolve_tagger(lambda sentences: [["NN"] for _ in sentences])
    assert isinstance(ours, CallableTagger)
    assert ours.tag(["a", "b"]) == [["NN"], ["NN"]]
    assert "<lambda>" in ours.arguments()["function"]
    other = resolve_tagger(lambda sentences: [["VB"] for _ in sentences])
    assert ours.arguments()["digest"] != other.arguments()["digest"]
    with pytest.raises(ValueError, match=r"no tagger 'spacy'. The names are \['pattern', 'nltk'\]"):
        resolve_tagger("spacy")
    with pytest.raises(TypeError, match="A tagger cannot be a int"):
        resolve_tagger(3)
    with pytest.raises(NotImplementedError, match="Tagger does not define `tag`"):
        Tagger().tag(["a"])


def test_nltk_without_its_data(monkeypatch):
    nltk = pytest.importorskip("nltk")
    monkeypatch.setattr(nltk.data, "path", [])
    with pytest.raises(LookupError, match=r"nltk\.download\('averaged_perceptron_tagger_eng'\).*NLTK_DATA"):
        NltkTagger().tag(["a dog"])


def test_nltk_not_installed(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("nltk"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install 'hf-curriculum\[text\]'"):
        NltkTagger().tag(["a dog"])
