from __future__ import annotations

import builtins
import gzip
import itertools
import json
import pickle

import numpy as np
import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_curriculum import NounCount, ObjectMentions, add_scores, make_scenes
from hf_curriculum.scorers.text.mentions import CATEGORIES, COCO_NAMES, EXACT_MATCH, NltkWords, plain_tokens

NASTY = [
    "a man's dog, and a hot-dog.",
    "a dog. a cat. a bus!",
    "a dog.a cat",
    "dog.",
    ".",
    ". dog .",
    "a dog...",
    "a dog..",
    "dog,cat , dog,",
    "1,000 dogs, 2 cats",
    "dog--cat - dog -cat",
    "a 'dog' and \"cat\" `bus`",
    "cannot gonna dog wanna-cat gimme-dog lemme",
    "(dog) [cat] {bus} <car> dog/cat dog&cat #dog @cat 50% dog*cat",
    "dog\tcat\nbus\u00a0car\u3000truck",
    "dog\x1fcat\x0bbus",
    "a dog’s “cat” «bus» — car … truck",
    "'tis a dog, d'ye see? more'n a cat",
    "mr. dog went to st. cat. the bus",
    "dog? cat! bus",
    "🙂dog 🙂 cat🙂",
    "כלב dog חתול",
    "DOG İstanbul ß".lower(),
    "don't dog isn't cat they're bus 'cat",
    "a dog. ",
    " , dog , . ",
    "dog, .",
    "dog ,.",
    "dog:cat dog: cat 10:30 dog;cat",
    "the u.s. dog",
]
SAMPLE = {"caption": NASTY}


@pytest.fixture(scope="module")
def nltk_words():
    return NltkWords()


def naive_tokens(caption):
    """NLTK's sentences and words, as `nltk.word_tokenize` joins them, without its downloaded abbreviations."""
    from nltk.tokenize import NLTKWordTokenizer
    from nltk.tokenize.punkt import PunktSentenceTokenizer

    sentences = PunktSentenceTokenizer().tokenize(caption)
    return [word for sentence in sentences for word in NLTKWordTokenizer().tokenize(sentence)]


def exact_match(captions):
    """ExactMatch in its own words: labels whose single word is among the tokens of all captions."""
    tokens = {token for caption in captions for token in naive_tokens(caption.lower())}
    return {name for name in COCO_NAMES if EXACT_MATCH.get(name, name) in tokens}


@pytest.mark.parametrize("caption", NASTY)
def test_tokens_are_nltks(nltk_words, caption):
    assert nltk_words.tokens(caption) == naive_tokens(caption)


@settings(max_examples=300, deadline=None)
@given(
    st.text("adg 0,.-'\"?!\n\t:", max_size=20)
    | st.lists(st.sampled_from(["dog", " ", ",", ".", "cannot", "-", "é", "bus"]), max_size=12).map("".join)
)
def test_tokens_of_any_text_are_nltks(text):
    assert NltkWords().tokens(text) == naive_tokens(text)


def test_what_is_plain():
    assert plain_tokens("a dog, a cat .") == ["a", "dog", ",", "a", "cat", "."]
    for text in ("a dog's", "a dog. a cat", "1,000", "dog--cat", "we cannot", "été", "a\tdog"):
        assert plain_tokens(text) is None


def test_categories():
    assert len(COCO_NAMES) == len(set(COCO_NAMES)) == 80
    assert len(EXACT_MATCH) == 15
    assert set(EXACT_MATCH) == {name for name in COCO_NAMES if " " in name}
    assert CATEGORIES["coco"]["tennis racket"] == ("racket",)
    assert CATEGORIES["coco_verbatim"]["tennis racket"] == ("tennis racket",)
    assert CATEGORIES["scenes"]["box"] == ("box", "boxes")
    assert CATEGORIES["scenes"]["fish"] == ("fish",)


def test_exact_match_and_verbatim():
    caption = "A teddy bear with a tennis racket and two dogs at the stop sign, near a hydrant and a hot dog."
    exact, verbatim = ObjectMentions(), ObjectMentions("coco_verbatim")
    assert exact.mentioned(caption) == [
        "teddy bear", "bear", "tennis racket", "stop sign", "fire hydrant", "dog"
    ]  # fmt: skip
    assert verbatim.mentioned(caption) == ["teddy bear", "bear", "tennis racket", "stop sign", "hot dog", "dog"]
    for name in COCO_NAMES:
        assert name in verbatim.mentioned(f"A {name.upper()}.")
        assert name in exact.mentioned(f"my {EXACT_MATCH.get(name, name)}, sir")
    assert exact.mentioned("traffic light, cell phone") == []
    assert verbatim.mentioned("stop, sign; hot\ndog") == ["hot dog", "dog"]


def test_types_and_tokens():
    captions = ["a dog and a dog and a cat", "nothing", "", None, "a dog " * 5000]
    types = ObjectMentions()({"caption": captions})["object_mentions"]
    np.testing.assert_array_equal(types, np.float32([2, 0, np.nan, np.nan, 1]))
    tokens = ObjectMentions(count="tokens")({"caption": captions})["object_mentions"]
    np.testing.assert_array_equal(tokens, np.float32([3, 0, np.nan, np.nan, 5000]))


def test_own_categories():
    listed = ObjectMentions(["Ice Cream", "t-shirt", "can"])
    assert listed.mentioned("an ice cream on a t-shirt; we cannot.") == ["Ice Cream", "t-shirt", "can"]
    mapped = ObjectMentions({"animal": ["dog", "cat"], "dog": ["dog", "dogs"], "owner's pet": ["man's dog"]})
    assert mapped.mentioned("a man's dog. dogs") == ["owner's pet", "animal", "dog", "dog"]
    assert mapped({"caption": ["a dog, a cat"]})["object_mentions"] == [2]
    assert mapped.describe().arguments["categories"]["animal"] == ["dog", "cat"]


def test_all_captions_of_an_image():
    rows = {
        "image_id": ["a", "b", "a", "a", "c", "c", "d"],
        "caption": ["a dog and a cat", "a bus", "a dog", None, "  ", None, "grass"],
    }
    data = Dataset.from_dict(rows)
    for count, expected in (("types", [2, 1, 2, 2, np.nan, np.nan, 0]), ("tokens", [3, 1, 3, 3, np.nan, np.nan, 0])):
        scorer = ObjectMentions(per="image", count=count).fit(data)
        scored = add_scores(data, scorer, batch_size=1)  # every batch holds a part of the image's captions only
        np.testing.assert_array_equal(np.float32(scored["object_mentions"][:]), np.float32(expected))
        assert np.isnan(scorer({"image_id": ["new"], "caption": ["a dog"]})["object_mentions"]).all()
    assert pickle.loads(pickle.dumps(scorer)).image_mentions_ == {"a": 3, "b": 1, "d": 0}
    with pytest.raises(RuntimeError, match="ObjectMentions was used before `fit`"):
        ObjectMentions(per="image")(rows)
    with pytest.raises(ValueError, match="`image_id` is missing in a row with a caption"):
        ObjectMentions(per="image").fit(Dataset.from_dict({"image_id": ["a", None], "caption": ["x", "y"]}))
    assert ObjectMentions().fit(data)(rows)["object_mentions"][0] == 2  # nothing to learn: nothing happens


def spearman(one, other):
    ranks = [np.unique(values, return_inverse=True)[1] for values in (one, other)]
    middle = [(np.cumsum(np.bincount(rank)) - np.bincount(rank) / 2)[rank] for rank in ranks]
    return np.corrcoef(*middle)[0, 1]


def test_held_out_scenes_with_more_objects_mention_more():
    scenes = make_scenes(1200, image_size=32, validation=0, test=0.9)["test"].remove_columns("image")
    objects = np.array(scenes["num_objects"][:])
    gold = NounCount(tags_column="tags")
    scorers = [ObjectMentions("scenes", name="types"), ObjectMentions("scenes", count="tokens", name="tokens"), gold]
    scored = add_scores(scenes, [*scorers, ObjectMentions("scenes", per="image").fit(scenes)])
    assert spearman(scored["types"][:], objects) >= 0.6
    assert spearman(scored["tokens"][:], objects) >= 0.6
    assert spearman(scored["object_mentions"][:], objects) >= 0.85
    # An image's captions go from its main object to all that is there, so their nouns tell of the objects only among
    # captions of equal detail; and only the fourth names nothing but objects (others: "background", "bottom").
    fourth = np.array(scenes["caption_index"][:]) == 3
    assert spearman(np.array(scored["noun_count"][:])[fourth], objects[fourth]) >= 0.6


def test_the_coco_captions(test_data):
    file = test_data("coco_captions_val2017") / "captions_val2017.json.gz"
    with gzip.open(file, "rt", encoding="utf-8") as stream:
        rows = json.load(stream)["annotations"]
    captions = [row["caption"] for row in rows]
    words = NltkWords()
    assert sum(words.tokens(text.lower()) != naive_tokens(text.lower()) for text in captions[::20]) == 0
    scores = ObjectMentions()({"caption": captions})["object_mentions"]
    assert len(scores) == 25_014
    assert not np.isnan(scores).any()
    assert scores.max() <= 10
    assert 0.6 <= np.mean(scores >= 1) <= 0.9
    images = {}
    for row in itertools.islice(rows, 1000):
        images.setdefault(str(row["image_id"]), []).append(row["caption"])
    data = [(image, text) for image, texts in images.items() for text in texts]
    data = Dataset.from_dict({"image_id": [row[0] for row in data], "caption": [row[1] for row in data]})
    found = ObjectMentions(per="image").fit(data).image_mentions_
    assert found == {image: len(exact_match(texts)) for image, texts in images.items()}


@pytest.mark.slow
def test_every_coco_caption_has_nltks_tokens(test_data):
    file = test_data("coco_captions_val2017") / "captions_val2017.json.gz"
    with gzip.open(file, "rt", encoding="utf-8") as stream:
        captions = [row["caption"].lower() for row in json.load(stream)["annotations"]]
    words = NltkWords()
    assert [words.tokens(text) for text in captions] == [words.all_tokens(text) for text in captions]
    assert np.mean([plain_tokens(text) is not None for text in captions]) >= 0.9  # else it would be slow


def test_errors(monkeypatch):
    for option in ({"categories": "lvis"}, {"count": "words"}, {"per": "batch"}, {"easy": "many"}):
        with pytest.raises(ValueError, match=f"`{next(iter(option))}` is"):
            ObjectMentions(**option)
    for error, match, bad in (
        (ValueError, "`categories` is empty", []),
        (ValueError, "The category 'x' has ' ', which NLTK tokenizes as", {"x": [" "]}),
        (ValueError, "Give words without quotation marks", ['"dog"']),
        (TypeError, r"was given a dict that holds the text 'dog' as `categories`", {"x": "dog"}),
        (TypeError, r"was given a list that holds 3 as `categories`", [3]),
    ):
        with pytest.raises(error, match=match):
            ObjectMentions(bad)
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("nltk"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install 'hf-curriculum\[text\]'"):
        ObjectMentions()
