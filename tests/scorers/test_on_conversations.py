"""Every scorer of texts on `messages`: it scores what a part says, as if that stood in a column of captions."""

from __future__ import annotations

import logging

import any_scorer as ANY
import numpy as np
import pytest
import tiny_models as TINY
from datasets import Dataset

from hf_curriculum import (
    CaptionLength,
    CLIPSimilarity,
    Concreteness,
    LanguageModelLoss,
    NounCount,
    ObjectMentions,
    ViLTSimilarity,
    WordRarity,
    add_scores,
    read_provenance,
)
from hf_curriculum.data.conversations import read_messages, text_of
from hf_curriculum.scorers.base import CaptionScorer


def said(role, text):
    return {"role": role, "content": text}


CHATS = [
    [said("user", "what is in the park?"), said("assistant", "two dogs run"), said("user", "and here?")],
    [said("system", "be brief"), said("user", "a ball?"), said("assistant", "a red ball"), said("assistant", "a mat")],
    [said("user", "the dog sleeps")],
    [said("user", " "), said("assistant", "a man rides a bike")],
    None,
    [],
]
PARTS = [("assistant", "all"), ("user", "first"), ("user", "all"), ("all", "last"), ("system", "all")]
TEXTS = {pair: [None if chat is None else text_of(read_messages(chat), *pair) for chat in CHATS] for pair in PARTS}
WITH_IMAGES = {
    "image": [ANY.PNGS[row] for row in (0, 0, 1, 1, 2, 3)],
    "image_embedding": [[1.0, row] for row in range(6)],
}
MAKE = {
    "caption_length": CaptionLength,
    "noun_count": NounCount,
    "object_mentions": ObjectMentions,
    "word_rarity": WordRarity,
    "concreteness": lambda **options: Concreteness(k=1, min_count=1, **options),
    "language_model_loss": lambda **options: LanguageModelLoss(TINY.llama(), **options),
    "clip_similarity": lambda column="caption", **options: CLIPSimilarity(caption_column=column, **options),
    "vilt_similarity": lambda column="caption", **options: ViLTSimilarity(
        TINY.vilt(), caption_column=column, **options
    ),
}


@pytest.mark.parametrize(("part", "turns"), PARTS)
@pytest.mark.parametrize("name", MAKE)
def test_a_part_is_scored_like_a_caption(name, part, turns):
    data = Dataset.from_dict(
        {"messages": CHATS, "caption": TEXTS[part, turns], "image_id": list("aabbcd"), **WITH_IMAGES}
    )
    chats, captions = MAKE[name](column="messages", part=part, turns=turns), MAKE[name]()
    if captions.needs_fit:
        if part == "system" and name == "concreteness":
            pytest.skip("one image has a word")
        chats, captions = chats.fit(data), captions.fit(data)
        for fitted in captions.fitted_attributes:
            assert getattr(chats, fitted) == getattr(captions, fitted)
    found, expected = add_scores(data, chats)[name][:], add_scores(data, captions)[name][:]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert np.isfinite(found).any() or name == "object_mentions"
    assert np.isnan(found[4:]).all()


def test_mentions_of_an_image_in_all_its_conversations():
    data = Dataset.from_dict({"messages": CHATS[:3], "image_id": ["a", "a", "b"]})
    scorer = ObjectMentions(["dog", "dogs", "ball"], per="image", column="messages", part="all").fit(data)
    assert scorer(data[:])["object_mentions"].tolist() == [2, 2, 1]


def test_a_scorer_of_ones_own_reads_the_answers():
    class Letters(CaptionScorer):
        def __init__(self, column="caption"):
            super().__init__(column, "letters", "low")

        def score_captions(self, captions, rank):
            return list(map(len, captions))

    expected = [len("two dogs run"), len("a red ball\na mat"), np.nan]
    np.testing.assert_array_equal(Letters("messages")({"messages": CHATS[:3]})["letters"], np.float32(expected))


def test_texts_and_conversations_may_share_a_column():
    found = CaptionLength(column="completion")(
        {"completion": ["a dog", CHATS[1], {"role": ["assistant"], "content": ["x"]}]}
    )
    assert found["caption_length"].tolist() == [2, 5, 1]


def test_what_cannot_be_read_is_nan_and_counted(caplog):
    rows = [CHATS[0], [said("narrator", "x")], [said("assistant", "a b")], [said("user", [{"type": "audio"}])]]
    with caplog.at_level(logging.WARNING):
        found = CaptionLength(column="messages")({"messages": rows})["caption_length"]
    np.testing.assert_array_equal(found, np.float32([3, np.nan, 2, np.nan]))
    (told,) = caplog.messages
    assert told.startswith(
        "`caption_length`: 2 of 4 conversations cannot be read (NaN). The first, in row 1 of the batch"
    )
    assert "message 0 is of the role 'narrator'" in told


@pytest.mark.parametrize("cell", [["a dog", "a cat"], 3, said("user", "x"), [{"from": "human", "value": "x"}]])
def test_what_is_neither_text_nor_conversation(cell):
    with pytest.raises(TypeError, match=r"`m` in row 1 .* a conversation: a list of messages .*`load_conversations`"):
        CaptionLength(column="m")({"m": ["a", cell]})


@pytest.mark.parametrize("make", [CaptionLength, CLIPSimilarity])
def test_unknown_parts(make):
    with pytest.raises(ValueError, match=r"`part` is 'human'. It is one of 'assistant', 'user', 'system', 'all'"):
        make(part="human")
    with pytest.raises(ValueError, match=r"`turns` is 'second'. It is one of 'all', 'first', 'last'"):
        make(turns="second")


def test_provenance_says_what_was_read():
    data = Dataset.from_dict({"messages": CHATS, "caption": TEXTS["user", "all"]})
    made = read_provenance(add_scores(data, CaptionLength(column="messages", part="user", turns="first")))
    assert made["caption_length"].arguments == {
        "words": "whitespace", "column": "messages", "part": "user", "turns": "first"
    }  # fmt: skip
    assert CaptionLength(column="messages").arguments()["part"] == "assistant"
    assert CaptionLength().arguments() == {"words": "whitespace", "column": "caption"}
    assert CaptionLength(part="user").arguments() == {"words": "whitespace", "column": "caption", "part": "user"}
