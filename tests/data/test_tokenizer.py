import gzip
import json
import logging
import os
import random
import string
from collections import Counter
from pathlib import Path

import pytest
from datasets import Dataset, DatasetDict
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer

from hf_curriculum import CaptionCollator, load_captioned, train_wordpiece
from hf_curriculum.data import tokenizer as module
from hf_curriculum.data.tokenizer import _words, train_word_tokenizer

CAPTIONS = [
    "A small red ball lies on the table.",
    "Two blue cubes and a green ball.",
    "The ball is left of the cubes!",
    "A red cube, a red ball and a blue table.",
]


def many(count=2000):
    rng = random.Random(0)
    syllables = ["ba", "do", "ki", "lu", "sto", "tra", "nen", "fi"]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(400)]
    return [" ".join(rng.choices(words, k=8)) + "." for _ in range(count)]


def test_compact_layout_and_what_it_adds():
    tokenizer = train_wordpiece(CAPTIONS, 120)
    assert tokenizer.convert_tokens_to_ids(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]) == [0, 1, 2, 3, 4]
    encoded = tokenizer("A RED ball", "two cubes")
    assert tokenizer.decode(encoded.input_ids) == "[CLS] a red ball [SEP] two cubes [SEP]"
    assert sorted(encoded) == ["attention_mask", "input_ids"]
    assert tokenizer.bos_token is None
    assert tokenizer.eos_token is None
    assert (tokenizer.cls_token_id, tokenizer.sep_token_id) == (2, 3)


def test_berts_layout_keeps_the_papers_ids():
    for tokenizer in (train_wordpiece(many(), 10_000), train_wordpiece(CAPTIONS, 300, layout="bert")):
        ids = tokenizer.convert_tokens_to_ids(
            ["[PAD]", "[unused0]", "[unused98]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        )
        assert ids == [0, 1, 99, 100, 101, 102, 103]
        assert sorted(tokenizer.all_special_tokens) == ["[CLS]", "[MASK]", "[PAD]", "[SEP]", "[UNK]"]
        assert 5 not in tokenizer("[unused4] ball").input_ids
        assert sorted(tokenizer.get_vocab().values()) == list(range(len(tokenizer)))


def test_vocabulary_size_is_an_upper_bound():
    assert len(train_wordpiece(many(), 200)) == 200
    assert len(train_wordpiece(CAPTIONS, 5000)) < 200
    assert train_wordpiece(many(), 200).model_max_length == 1024
    assert train_wordpiece(CAPTIONS, 120, max_length=50).model_max_length == 50


def test_the_same_in_another_process_and_from_any_source(launch, tmp_path):
    expected = train_wordpiece(many(), 300).get_vocab()
    program = tmp_path / "program.py"
    program.write_text(
        "import json, sys; from hf_curriculum.data.tokenizer import train_wordpiece\n"
        "print(json.dumps(train_wordpiece(json.loads(sys.argv[1]), 300).get_vocab()))"
    )
    assert json.loads(launch(program, json.dumps(many())).stdout) == expected
    data = Dataset.from_dict({"caption": many(), "image_id": ["x"] * 2000})
    assert train_wordpiece(iter(many()), 300).get_vocab() == expected
    assert train_wordpiece((text for text in many()), 300).get_vocab() == expected
    assert train_wordpiece(data, 300).get_vocab() == expected
    assert train_wordpiece(data.to_iterable_dataset(), 300).get_vocab() == expected
    assert train_wordpiece(data.rename_column("caption", "text"), 300, column="text").get_vocab() == expected


def test_pieces_are_those_of_the_plain_trainer():
    """Fixing the characters' ids first changes no piece, only their order and ties."""
    text = ["ab ab ab ab ab abc abc abc abd abd", "xyz xyz xyz xyz xyz xyz xy"]
    plain = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    plain.normalizer, plain.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    plain.train_from_iterator(
        text, trainers.WordPieceTrainer(vocab_size=40, special_tokens=special, show_progress=False)
    )
    assert set(train_wordpiece(text, 40).get_vocab()) == set(plain.get_vocab())


def test_only_the_training_text_is_learnt():
    tokenizer = train_wordpiece(CAPTIONS, 400)
    assert "zebra" not in tokenizer.get_vocab()
    assert tokenizer.convert_ids_to_tokens(tokenizer("Q").input_ids) == ["[CLS]", "[UNK]", "[SEP]"]
    assert "ball" in tokenizer.get_vocab()


def test_saved_and_loaded(tmp_path):
    tokenizer = train_wordpiece(CAPTIONS, 120, max_length=33)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.get_vocab() == tokenizer.get_vocab()
    assert loaded.model_max_length == 33
    texts = ["A red ball!", "cubes [SEP] balls"]
    assert loaded(texts).input_ids == tokenizer(texts).input_ids
    assert sorted(loaded(texts)) == ["attention_mask", "input_ids"]
    padded = loaded(texts, padding=True, return_tensors="pt")
    assert padded["input_ids"][padded["attention_mask"] == 0].eq(loaded.pad_token_id).all()


def test_letters_beyond_ascii():
    text = ["Ein schönes Straßenschild", "東京 の 犬", "Ελληνικά γράμματα", "красный мяч 🐶 красный"]
    tokenizer = train_wordpiece(text, 300)
    assert tokenizer.decode(tokenizer(text[3]).input_ids, skip_special_tokens=True) == "красныи мяч 🐶 красныи"
    assert tokenizer.decode(tokenizer("Ein schönes").input_ids, skip_special_tokens=True) == "ein schones"
    for line in text:
        assert tokenizer.unk_token_id not in tokenizer(line).input_ids
    cased = train_wordpiece(text, 300, lowercase=False)
    assert cased.decode(cased(text[0]).input_ids, skip_special_tokens=True) == text[0]


def test_line_breaks_are_white_space_also_for_a_generator():
    text = ["red\nball", "red\r\nball", "red\u2028ball red"]
    expected = train_wordpiece(text, 60).get_vocab()
    assert train_wordpiece(iter(text), 60).get_vocab() == expected


@pytest.mark.parametrize("texts", [[], iter([]), ["", "  "], Dataset.from_dict({"caption": []})])
def test_no_text_is_an_error(texts):
    with pytest.raises(ValueError, match=r"The training text holds no words"):
        train_wordpiece(texts, 100)


def test_too_small_a_vocabulary_is_an_error():
    with pytest.raises(ValueError, match=r"vocab_size=20 is too small: 5 special tokens \(compact layout\) and \d+"):
        train_wordpiece(CAPTIONS, 20)
    with pytest.raises(ValueError, match=r"104 special tokens \(bert layout\)"):
        train_wordpiece(CAPTIONS, 104, layout="bert")


def test_an_unknown_layout_is_an_error():
    with pytest.raises(ValueError, match=r"layout='gpt' is not known"):
        train_wordpiece(CAPTIONS, 100, layout="gpt")


def test_what_is_no_text_is_an_error():
    with pytest.raises(TypeError, match=r"was given the text 'a red ball' as `texts`"):
        train_wordpiece("a red ball", 100)
    for texts in (["a", None], iter(["a", 3]), Dataset.from_dict({"caption": ["a", None]})):
        with pytest.raises(TypeError, match=r"holds (None|3)"):
            train_wordpiece(texts, 100)


def test_a_missing_column_is_an_error():
    with pytest.raises(ValueError, match=r"`caption` is not in the data, which has the columns \['text'\]"):
        train_wordpiece(Dataset.from_dict({"text": CAPTIONS}), 100)


class TestWords:
    def test_ids_by_count_then_alphabet_with_the_unknown_last(self):
        tokenizer = train_word_tokenizer(CAPTIONS, 2)
        counts = Counter(
            word
            for text in CAPTIONS
            for word in text.lower().translate(str.maketrans("", "", string.punctuation)).split()
        )
        expected = ["a", "ball", "red", "the", "and", "blue", "cubes", "table"]
        assert [counts[word] for word in expected] == [5, 4, 3, 3, 2, 2, 2, 2]
        assert tokenizer.convert_ids_to_tokens(range(len(tokenizer))) == ["[END]", *expected, "[UNK]"]
        assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (0, 0, 0)
        assert tokenizer.unk_token_id == len(tokenizer) - 1 == 9

    def test_what_it_writes_and_reads(self):
        tokenizer = train_word_tokenizer(CAPTIONS, 2)
        encoded = tokenizer(["The RED-ball's ball, a dog!", "a ball"], padding=True)
        assert encoded["input_ids"] == [[0, 4, 9, 2, 1, 9, 0], [0, 1, 2, 0, 0, 0, 0]]
        assert encoded["attention_mask"] == [[1] * 7, [1] * 4 + [0] * 3]
        assert sorted(encoded) == ["attention_mask", "input_ids"]
        assert tokenizer.decode([0, 4, 3, 2, 0, 0], skip_special_tokens=True) == "the red ball"
        long = tokenizer(" ".join(["ball"] * 40), truncation=True)["input_ids"]
        assert long == [0, *[2] * 16, 0]
        assert train_word_tokenizer(CAPTIONS, 2, max_words=3).model_max_length == 5

    def test_save_load_and_collate(self, tmp_path):
        tokenizer = train_word_tokenizer(CAPTIONS, 2)
        tokenizer.save_pretrained(tmp_path)
        again = AutoTokenizer.from_pretrained(tmp_path)
        assert again.is_fast
        assert (again.get_vocab(), len(again)) == (tokenizer.get_vocab(), 10)
        assert again("The red dog").input_ids == [0, 4, 3, 9, 0]
        assert (again.pad_token_id, again.unk_token_id, again.model_max_length) == (0, 9, 18)
        batch = CaptionCollator(again, None, max_length=18)([{"caption": "a ball"}, {"caption": "The red ball."}])
        assert batch["input_ids"].tolist() == [[0, 1, 2, 0, 0], [0, 4, 3, 2, 0]]
        assert batch["labels"].tolist() == [[0, 1, 2, 0, -100], [0, 4, 3, 2, 0]]  # the end has a label, padding none

    def test_splits_are_named_and_tokens_are_counted_where_there_are_any(self):
        data = DatasetDict(
            train=Dataset.from_dict({"caption": ["A dog."] * 2, "tokens": ["one dog"] * 2}),
            test=Dataset.from_dict({"caption": ["A cat."] * 2, "tokens": ["one cat"] * 2}),
        )
        assert set(train_word_tokenizer(data, 2).get_vocab()) == {"[END]", "one", "dog", "[UNK]"}
        assert len(train_word_tokenizer(data, 2, splits=["train", "test"])) == 5  # one, cat, dog and two more
        assert set(train_word_tokenizer(data["test"], 2).get_vocab()) == {"[END]", "one", "cat", "[UNK]"}
        assert set(train_word_tokenizer(data["test"], 2, column="caption").get_vocab()) == {
            "[END]",
            "a",
            "cat",
            "[UNK]",
        }
        assert train_word_tokenizer(iter(["a dog", "a dog"]), 2).get_vocab() == {
            "[END]": 0,
            "a": 1,
            "dog": 2,
            "[UNK]": 3,
        }

    def test_captions_without_a_known_word_are_counted(self, caplog):
        with caplog.at_level(logging.INFO, logger="hf_curriculum.data.tokenizer"):
            train_word_tokenizer(["a dog", "a dog", "what fun"], 2)
        assert [record.message for record in caplog.records] == [
            "2 of 4 words are known, of 3 captions; 33.33 % of what they say is unknown",
            "1 of 3 captions have no known word: a captioner learns to say nothing, or [UNK] alone, of their images. "
            "Pass a smaller `min_count`, or leave these captions out.",
        ]

    @pytest.mark.parametrize(
        ("texts", "options", "message"),
        [
            (["a dog", "a cat"], {"min_count": 3}, r"No word of the 2 captions occurs min_count=3 times.*'a' 2 times"),
            (["...", "!"], {"min_count": 1}, r"No word of the 2 captions .* there are no words in them"),
            (["a"], {"min_count": 0}, "min_count=0 was given"),
            (["a"], {"max_words": 0}, "max_words=0 was given"),
            (
                DatasetDict(val=Dataset.from_dict({"caption": ["a"]})),
                {},
                r"splits=\('train',\) names \['train'\].*\['val'\]",
            ),
            (DatasetDict(val=Dataset.from_dict({"caption": ["a"]})), {"splits": ()}, r"splits=\(\) is empty"),
            (Dataset.from_dict({"text": ["a"]}), {}, "`caption` is not in the data, which has the columns"),
        ],
    )
    def test_errors(self, texts, options, message):
        with pytest.raises(ValueError, match=message):
            train_word_tokenizer(texts, **options)

    def test_what_is_no_text(self):
        with pytest.raises(TypeError, match="was given a list that holds None as `texts`"):
            train_word_tokenizer(["a dog", None], 1)
        with pytest.raises(TypeError, match="was given the text 'a dog' as `texts`"):
            train_word_tokenizer("a dog", 1)

    def test_the_words_counted_are_the_words_encoded(self):
        texts = [
            "A dog's T-shirt.",
            "Caf\u00e9 \u2014 ol\u00e9!",
            "tab\there",
            "\u0130stanbul's",
            "5 o'clock; 3/4",
            "a\x1cb \xa0c",
        ]
        tokenizer = train_word_tokenizer(texts, 1)
        assert tokenizer("A dog's T-shirt.").tokens()[1:-1] == ["a", "dogs", "tshirt"]
        for text in texts:
            assert tokenizer(text).tokens()[1:-1] == _words(text)

    @pytest.mark.skipif("HF_CURRICULUM_TEST_DATA" not in os.environ, reason="needs Flickr8k's captions")
    def test_flickr8k(self):
        with gzip.open(
            Path(os.environ["HF_CURRICULUM_TEST_DATA"]) / "flickr8k/captions_all_8091.csv.gz", "rt"
        ) as file:
            captions = [line.rstrip("\n").partition(",")[2].strip('"') for line in file][1:]
        tokenizer = train_word_tokenizer(captions, 6)
        counts = Counter(word for text in captions for word in _words(text))
        assert len(tokenizer) == 2 + sum(count > 5 for count in counts.values())
        sample, vocabulary = random.Random(0).sample(captions, 2000), tokenizer.get_vocab()
        for text, ids in zip(sample, tokenizer(sample)["input_ids"], strict=True):
            words = text.lower().translate(str.maketrans("", "", string.punctuation)).split()  # no code of ours
            assert ids == [0, *(vocabulary[word] if counts[word] > 5 else len(tokenizer) - 1 for word in words), 0]


def test_the_tokens_of_a_karpathy_file_are_kept_and_counted(tmp_path):
    sentences = [{"raw": "A dog's dream.", "tokens": ["a", "dogs", "dream"]}, {"raw": "Half a dog."}]
    images = [
        {"filename": f"{split}.jpg", "split": split, "imgid": number, "sentences": sentences}
        for number, split in enumerate(("train", "val"))
    ]
    (tmp_path / "dataset.json").write_text(json.dumps({"images": images}))
    data = load_captioned(tmp_path / "dataset.json", images=False)
    assert data["train"]["tokens"][:] == ["a dogs dream", None]
    assert data["train"]["caption"][:] == ["A dog's dream.", "Half a dog."]
    with pytest.raises(TypeError, match="The training text holds None"):
        train_word_tokenizer(data, 1)
    tokenizer = train_word_tokenizer(data["train"].select([0]), 1)
    assert tokenizer("A dog's dream.").input_ids == [0, 1, 2, 3, 0]
    del sentences[0]["tokens"]
    (tmp_path / "dataset.json").write_text(json.dumps({"images": images}))
    assert "tokens" not in load_captioned(tmp_path / "dataset.json", images=False)["train"].column_names


def test_what_the_trainer_is_given_and_the_smallest_vocabulary(monkeypatch):
    given, real = [], module.trainers.WordPieceTrainer
    made = lambda **options: given.append(options) or real(**options)  # noqa: E731
    monkeypatch.setattr(module.trainers, "WordPieceTrainer", made)
    fixed = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##b"]
    assert len(train_wordpiece(["ab ab"], 8, min_frequency=3)) == 8
    assert given == [{"vocab_size": 8, "min_frequency": 3, "special_tokens": fixed, "show_progress": False}]
    with pytest.raises(ValueError, match="vocab_size=7 is too small"):
        train_wordpiece(["ab ab"], 7)
