from __future__ import annotations

import numpy as np
import pytest

from hf_curriculum import CaptionLength

NAN = np.nan


@pytest.mark.parametrize(
    ("caption", "whitespace", "regex"),
    [
        ("a dog and two cats in Paris", 7, 7),
        ("  a\tdog \n runs ", 3, 3),
        ("a dog , a cat .", 6, 4),
        ("a well-known dog's ball isn't red.", 6, 6),
        ("un été à Zürich", 4, 4),
        ("日本 の 犬", 3, 3),
        ("!!!", 1, 0),
        ("3.5 x 10", 3, 4),
        ("", NAN, NAN),
        (" \n\u3000", NAN, NAN),
        (None, NAN, NAN),
    ],
)
def test_words_by_hand(caption, whitespace, regex):
    assert CaptionLength()({"caption": [caption]})["caption_length"] == pytest.approx([whitespace], nan_ok=True)
    assert CaptionLength("regex")({"caption": [caption]})["caption_length"] == pytest.approx([regex], nan_ok=True)


def test_a_caption_of_ten_thousand_words():
    assert CaptionLength()({"caption": ["word " * 10_000]})["caption_length"] == [10_000]


def test_names_and_direction_are_arguments():
    scorer = CaptionLength(column="text", name="words", easy="high")
    assert scorer({"text": ["a b"]})["words"].tolist() == [2.0]
    assert (scorer.describe().column, scorer.describe().easy) == ("words", "high")
    assert CaptionLength().easy == "low"


def test_wrong_arguments():
    with pytest.raises(ValueError, match="`words` is 'letters'"):
        CaptionLength("letters")
    with pytest.raises(ValueError, match="`easy` is 'short'"):
        CaptionLength(easy="short")
    with pytest.raises(TypeError, match="`caption` in row 1 of the batch is a list"):
        CaptionLength()({"caption": ["a", ["a dog", "a cat"]]})
