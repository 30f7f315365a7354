"""Words and counts equal those of BERT's normaliser and pre-tokeniser over the whole text."""

import random
from collections import Counter

import pytest
from tokenizers import normalizers, pre_tokenizers

from hf_curriculum import train_wordpiece
from hf_curriculum.data import tokenizer as module
from hf_curriculum.data.tokenizer import DistinctWords

ODD = [
    *("\t", "\n", "\x0b", "\x0c", "\x1c", "\x1f", "\x85", "\u2028", "\xa0", "\u200b", "\u3000", "\u180e", "\x00"),
    *(
        "\ufffd",
        "é",
        "e\u0301",
        "İ",
        "ß",
        "ς",
        "中",
        "か\u3099",
        "B",
        "1",
        "-",
        ".",
        "#",
        "'",
        "🐶",
        "가",
        "ﬁ",
        "\u0378",
    ),
]


def odd_texts(count=400):
    draws = random.Random(0)
    return ["".join(draws.choices([*ODD, *"ab  "], k=30)) for _ in range(count)]


@pytest.mark.parametrize("most", [1 << 20, 3])
@pytest.mark.parametrize("lowercase", [True, False])
def test_words_are_those_of_the_whole_text(lowercase, most, monkeypatch):
    monkeypatch.setattr(module, "_MOST_STRETCHES", most)
    texts = odd_texts()
    bert, splitter = normalizers.BertNormalizer(lowercase=lowercase), pre_tokenizers.BertPreTokenizer()
    normal = normalizers.Sequence([bert, normalizers.NFC()])
    expected = Counter(
        word for text in texts for word, _ in splitter.pre_tokenize_str(normal.normalize_str(text)) if word
    )
    words = DistinctWords([texts[:150], texts[150:]], lowercase)
    assert words.counts == expected
    letters = {letter for word in expected for letter in word} | {f"##{c}" for word in expected for c in word[1:]}
    assert set(words.characters()) == letters
    assert words.characters() == sorted(letters, key=lambda entry: (entry.startswith("##") and len(entry) > 2, entry))


def test_every_word_is_handed_on_as_often_as_it_occurs():
    texts = ["dog " * 10_000, "a dog", "b " * 4096]
    given = Counter(
        word for lines in DistinctWords([texts], True).repeated() for line in lines for word in line.split(" ")
    )
    assert given == {"dog": 10_001, "a": 1, "b": 4096}
    assert all(len(line.split(" ")) <= 4096 for lines in DistinctWords([texts], True).repeated() for line in lines)


def test_a_text_is_read_once():
    """A source that can be read once needs no copy of it."""
    read = []

    def lines():
        for line in ["a red ball", "a red cube"] * 3:
            read.append(line)
            yield line

    found = train_wordpiece(lines(), 60).get_vocab()
    assert len(read) == 6
    assert found == train_wordpiece(["a red ball", "a red cube"] * 3, 60).get_vocab()
