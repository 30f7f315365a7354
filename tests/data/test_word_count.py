"""How many words there are, and how many are allowed."""

from __future__ import annotations

import logging

import datasets
import pytest
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st

from hf_curriculum.data.text import load_text
from hf_curriculum.data.text_blocks import WORD_LIMIT, count_words, validate_word_limit


@given(st.lists(st.one_of(st.none(), st.text(alphabet="ab \t\n\u00a0\u3000é.'"))))
def test_words_are_what_white_space_separates(texts):
    rows = Dataset.from_dict({"caption": texts}, features=datasets.Features({"caption": datasets.Value("string")}))
    assert count_words(rows) == sum(len(text.split()) for text in texts if text is not None)


def test_chosen_rows_and_other_columns():
    rows = Dataset.from_dict({"text": ["one two", "three", "four five six"], "image_id": ["a", "b", "c"]})
    assert count_words(rows.select([2, 0]), "text") == 5
    with pytest.raises(ValueError, match="`caption` is not in the data"):
        count_words(rows)


def test_a_corpus_of_many_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    (tmp_path / "a.train").write_text("five words on a line\n" * 120_000)
    assert count_words(load_text(tmp_path / "a.train")) == 600_000


class TestLimit:
    parts = {  # noqa: RUF012
        "captions": Dataset.from_dict({"caption": ["a dog runs", "a cat"]}),
        "text": Dataset.from_dict({"caption": ["one two"]}),
    }

    def test_within(self, caplog):
        with caplog.at_level(logging.INFO):
            assert validate_word_limit(self.parts) == {"captions": 5, "text": 2}
        assert "captions: 5 of 50,000,000 words" in caplog.text
        assert "text: 2 of 50,000,000 words" in caplog.text
        assert not [record for record in caplog.records if record.levelno > logging.INFO]
        assert WORD_LIMIT == 50_000_000

    def test_exactly_the_limit_is_allowed(self, caplog):
        validate_word_limit(self.parts, 5, beyond="error")
        assert "too many" not in caplog.text

    def test_beyond(self, caplog):
        assert validate_word_limit(self.parts, 4) == {"captions": 5, "text": 2}
        assert "captions: 5 of 4 words, 1 too many" in caplog.text
        assert caplog.records[-1].levelno == logging.WARNING
        with pytest.raises(ValueError, match="captions: 5 of 3 words, 2 too many"):
            validate_word_limit(self.parts, 3, beyond="error")

    def test_no_limit_and_no_such_choice(self, caplog):
        with caplog.at_level(logging.INFO):
            validate_word_limit(self.parts, None)
        assert "captions: 5 words" in caplog.text
        with pytest.raises(ValueError, match="`beyond='stop'` was given"):
            validate_word_limit(self.parts, beyond="stop")
