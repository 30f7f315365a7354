from __future__ import annotations

import chat_models as CHAT
import numpy as np
import pytest
from datasets import Dataset

from hf_curriculum import ResponseLength, add_scores, read_provenance
from hf_curriculum.provenance import score_values

CHATS = [
    [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "What is in the image?"},
        {"role": "assistant", "content": "A red ball."},
        {"role": "user", "content": "And?"},
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "Two dogs run in"}, {"type": "text", "text": "the park."}],
        },
    ],
    [{"role": "user", "content": "What?"}],
    [{"role": "assistant", "content": [{"type": "image"}]}, {"role": "assistant", "content": None}],
    [],
    None,
]


@pytest.mark.parametrize(("turns", "words"), [("all", 9), ("first", 3), ("last", 6)])
def test_words_of_the_assistant(turns, words):
    found = ResponseLength(turns=turns)({"messages": CHATS})["response_length"]
    np.testing.assert_array_equal(found, [words, *[np.nan] * 4])


def test_tokens_are_those_of_the_tokenizer():
    texts = ["A red ball.\nTwo dogs run in\nthe park.", "It runs."]
    words = CHAT.AutoTokenizer.from_pretrained(CHAT.llava())
    expected = [len(words(text, add_special_tokens=False)["input_ids"]) for text in texts]
    scorer = ResponseLength(tokenizer=CHAT.llava())
    rows = {"messages": [CHATS[0], CHATS[1], [{"role": "assistant", "content": texts[1]}]]}
    np.testing.assert_array_equal(scorer(rows)["response_length"], [expected[0], np.nan, expected[1]])
    assert expected[1] != 2  # not the words


def test_completions_and_captions():
    rows = {"completion": [CHATS[0][2:3], "Two dogs run.", "  ", None]}
    np.testing.assert_array_equal(ResponseLength(column="completion")(rows)["response_length"], [3, 3, np.nan, np.nan])


def test_the_tokenizer_stands_in_the_provenance():
    data = Dataset.from_dict({"caption": ["A red ball.", "Dogs"]})
    scored = add_scores(data, ResponseLength(CHAT.llava(), column="caption"))
    made = read_provenance(scored)["response_length"]
    assert (made.arguments["tokenizer"], made.easy) == (CHAT.llava(), "low")
    assert made.revision
    assert "tokenizers" in made.versions
    assert score_values(scored, "response_length")[0] > score_values(scored, "response_length")[1]
    assert ResponseLength().revision is None


def test_mistakes():
    with pytest.raises(ValueError, match="`turns` is 'second'"):
        ResponseLength(turns="second")
    with pytest.raises(ValueError, match=r"`messages` in row 1 of the batch cannot be read: it is .* list"):
        ResponseLength()({"messages": [CHATS[0], 7]})
    with pytest.raises(FileNotFoundError, match="no 'no/such-tokenizer'"):
        ResponseLength("no/such-tokenizer")({"messages": CHATS})
