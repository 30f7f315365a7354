from __future__ import annotations

import builtins
import pickle

import pytest

from hf_curriculum import NounCount
from hf_curriculum.scorers.text.taggers import (
    CallableTagger,
    NltkTagger,
    PatternTagger,
    Tagger,
    resolve_tagger,
    tokenize_sentence,
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
    assert tokenize_sentence("A dog, 3.5 cats... in the U.S.!") == [
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
    assert tokenize_sentence("don't can't I'm dog's") == ["do", "n't", "ca", "n't", "I", "'m", "dog", "'s"]
    assert tokenize_sentence("don't DON’T", "whole") == ["don't", "DON'T"]
    assert tokenize_sentence("o'clock rock 'n' roll") == ["o", "'", "clock", "rock", "'", "n", "'", "roll"]
    assert tokenize_sentence("half-eaten e\u0301te\u0301") == ["half-eaten", "été"]
    assert tokenize_sentence(" \n") == []


def test_pattern_by_hand():
    assert PatternTagger().tag(SENTENCES[:1]) == [["DT", "NN", "CC", "CD", "NNS", "IN", "NNP"]]
    assert PatternTagger().tag(["don't % ~ … ♥"]) == [["VBP", "RB", "SYM", "SYM", "SYM", "SYM"]]


def textblob_tags(sentence):
    """The naive way: textblob's tagger on whole sentences, none of its answers kept."""
    from textblob.en.taggers import PatternTagger as Textblob

    lines = [[]]
    for word in tokenize_sentence(sentence):
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
        "from hf_curriculum import NounCount\n"
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
    with pytest.raises(ValueError, match=r"no tagger 'spacy'. Give one of \['pattern', 'nltk'\]"):
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


def test_the_first_word_of_a_sentence_is_read_as_the_first():
    first, later = PatternTagger().tag(["Tattooed men walk. Tattooed men", "the Tattooed men; Tattooed men"])
    assert first == ["VBN", "NNS", "VB", ".", "VBN", "NNS"]  # a capital says nothing there
    assert later == ["DT", "NNP", "NNS", ":", "NNP", "NNS"]


def test_a_caption_in_capitals_is_read_in_small_letters():
    assert PatternTagger().tag(["A DOG RUNS", "NASA", "A DOG runs"]) == [
        *PatternTagger().tag(["a dog runs", "NASA", "A DOG runs"])
    ]
    assert NounCount()({"caption": ["A DOG RUNS", "A dog runs"]})["noun_count"].tolist() == [1, 1]


def test_nltk_takes_no_punctuation_for_nouns(test_data, monkeypatch):
    nltk = pytest.importorskip("nltk")
    monkeypatch.setattr(nltk.data, "path", [str(test_data("nltk_data"))])
    marks = ['a dog " runs', "“ two cats ” – [ a bird ] ♥", "* ~ a man ^", "A DOG RUNS"]
    tagger = NltkTagger()
    for sentence, tags in zip(marks, tagger.tag(marks), strict=True):
        words = tokenize_sentence(sentence, "whole")
        nouns = [word for word, tag in zip(words, tags, strict=True) if tag.startswith("NN")]
        assert nouns
        assert all(any(map(str.isalnum, word)) for word in nouns), nouns
    raw = [tag for sentence in marks for _, tag in tagger._perceptron.tag(tokenize_sentence(sentence, "whole"))]
    assert raw.count("SYM") < sum(tags.count("SYM") for tags in tagger.tag(marks))  # it did take some for nouns


LANGUAGES = {
    "German": ["Ein brauner Hund läuft über die grüne Wiese.", "Zwei Kinder spielen im Garten mit einem Ball."],
    "Japanese": ["犬が公園を走っている", "赤い車が通りに止まっている"],
    "Arabic": ["كلب يجري في الحديقة", "سيارة حمراء في الشارع"],
    "Spanish": ["un perro marrón corre por la hierba", "dos niños juegan con una pelota roja"],
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_captions_of_another_language_are_warned_of_once(language, caplog):
    scorer = NounCount()
    for _ in range(2):
        scorer({"caption": LANGUAGES[language] * 10})
    (record,) = caplog.records
    assert "of the words are in no English lexicon, such as '" in record.message
    assert "know English only" in record.message


SHORT = {
    "German": ["ein Hund", "zwei Hunde", "Mann auf Fahrrad"],
    "French": ["un chien", "deux enfants"],
    "Italian": ["un cane", "due cani"],
    "Japanese": ["犬", "猫が走る"],
}


@pytest.mark.parametrize("language", SHORT)
def test_a_few_short_captions_of_another_language_are_warned_of(language, caplog):
    NounCount()({"caption": SHORT[language]})
    assert "know English only" in caplog.text


def test_a_few_captions_of_another_language_among_english_ones_are_warned_of(caplog):
    english = [f"a dog runs over the green grass with {number} people" for number in range(7)]
    NounCount()({"caption": [*english, *LANGUAGES["Japanese"], "猫が走る"]})
    assert (
        "3 of the first 10 captions are mostly words in no English lexicon, such as '犬が公園を走っている'"
        in caplog.text
    )


def test_a_few_short_captions_with_rare_words_and_names_are_not_warned_of(caplog):
    for captions in (["labradoodle"], ["a labradoodle", "a dog"], ["Obama in Berlin", "Paris"], ["a dog in paris"]):
        NounCount()({"caption": captions})
    assert caplog.text == ""


def test_english_captions_are_not_warned_of(caplog):
    captions = ["A brown dog runs over the green meadow.", "Two kids at McDonald's play football", "Zürich, été"]
    NounCount()({"caption": captions * 10})
    NounCount(lambda sentences: [["NN"]] * len(sentences))({"caption": LANGUAGES["German"] * 10})
    assert caplog.text == ""
