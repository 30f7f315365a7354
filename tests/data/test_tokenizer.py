import json
import random

import pytest
from datasets import Dataset
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer

from hf_curriculum import train_wordpiece

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
    with pytest.raises(TypeError, match=r"`texts` is a single string"):
        train_wordpiece("a red ball", 100)
    for texts in (["a", None], iter(["a", 3]), Dataset.from_dict({"caption": ["a", None]})):
        with pytest.raises(TypeError, match=r"holds (None|3), a (NoneType|int)"):
            train_wordpiece(texts, 100)


def test_a_missing_column_is_an_error():
    with pytest.raises(ValueError, match=r"`caption` is not in the data, which has the columns \['text'\]"):
        train_wordpiece(Dataset.from_dict({"text": CAPTIONS}), 100)
