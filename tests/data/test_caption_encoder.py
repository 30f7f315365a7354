"""A beginning and an end for every caption, whatever its tokenizer writes."""

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from hf_curriculum import CaptionCollator, train_wordpiece
from hf_curriculum.data.caption_encoder import CaptionEncoder

WORDS = ["<pad>", "<s>", "</s>", "a", "dog", "runs", "fast", "<image>"]
BERT = {"pad_token": "<pad>", "cls_token": "<s>", "sep_token": "</s>"}
LLAMA = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
GPT2 = dict.fromkeys(("pad_token", "bos_token", "eos_token"), "</s>")
WORD_LEVEL = dict.fromkeys(("pad_token", "bos_token", "eos_token"), "<s>")


def tokenizer(template, special, **options):
    model = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<pad>"))
    model.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if template != "$A":
        model.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=[(word, WORDS.index(word)) for word in ("<s>", "</s>")]
        )
    return PreTrainedTokenizerFast(tokenizer_object=model, **special, **options)


KINDS = {  # template, special tokens, ids of "a dog", and for the decoder of an encoder-decoder
    "BERT's": ("<s> $A </s>", BERT, [1, 3, 4, 2], [1, 3, 4, 2]),
    "Llama's": ("<s> $A", LLAMA, [1, 3, 4, 2], [1, 3, 4, 2]),
    "T5's": ("$A </s>", LLAMA, [1, 3, 4, 2], [3, 4, 2]),
    "GPT-2's": ("$A", GPT2, [2, 3, 4, 2], [3, 4, 2]),
    "of one token": ("<s> $A <s>", WORD_LEVEL, [1, 3, 4, 1], [1, 3, 4, 1]),
    "without names": ("<s> $A </s>", {"pad_token": "<pad>"}, [1, 3, 4, 2], [1, 3, 4, 2]),
}


@pytest.mark.parametrize("padding_side", ["left", "right"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_caption_has_a_beginning_and_its_end_is_a_label(kind, padding_side):
    template, special, whole, of_decoder = KINDS[kind]
    made = tokenizer(template, special, padding_side=padding_side)
    batch = CaptionCollator(made, None)([{"caption": "a dog"}, {"caption": "a dog runs fast"}])
    first = batch["attention_mask"][0].bool()
    assert batch["input_ids"][0, first].tolist() == whole
    assert batch["labels"][0, first].tolist()[1:] == whole[1:]  # the first is never predicted
    assert (batch["labels"][0, ~first] == -100).all()
    labels = CaptionCollator(made, None, encoder_decoder=True)([{"caption": "a dog"}])
    assert {name: part.tolist() for name, part in labels.items()} == {"labels": [of_decoder]}
    assert CaptionEncoder(made).end == whole[-1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_prefix_stands_after_the_beginning(kind):
    template, special, whole, _ = KINDS[kind]
    made = tokenizer(template, special)
    made.add_special_tokens({"additional_special_tokens": ["<image>"]})
    batch = CaptionCollator(made, None, prefix="<image> ")([{"caption": "a dog"}])
    assert batch["input_ids"].tolist() == [[whole[0], 7, *whole[1:]]]
    assert batch["labels"].tolist() == [[whole[0], -100, *whole[1:]]]


@pytest.mark.parametrize(("template", "special"), [("<s> $A", {"bos_token": "<s>"}), ("$A", {})])
def test_a_tokenizer_without_any_end_is_refused(template, special):
    with pytest.raises(ValueError, match=r"writes no end of a caption .* Set `tokenizer.eos_token` to a token"):
        CaptionCollator(tokenizer(template, {"pad_token": "<pad>", **special}), None)


def test_a_tokenizer_without_any_beginning_is_refused():
    made = tokenizer("$A </s>", {"pad_token": "<pad>", "eos_token": "</s>"})
    with pytest.raises(
        ValueError, match=r"writes no beginning .* never learns the first word. Set `tokenizer.bos_tok"
    ):
        CaptionCollator(made, None)
    assert CaptionCollator(made, None, encoder_decoder=True)([{"caption": "a"}])["labels"].tolist() == [[3, 2]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_truncated_caption_does_not_teach_to_stop(kind, caplog):
    template, special, whole, _ = KINDS[kind]
    made = tokenizer(template, special)
    captions = [{"caption": "a dog runs fast"}, {"caption": "a dog"}, {"caption": "dog runs fast a dog"}]
    collator = CaptionCollator(made, None, max_length=4)
    batch = collator(captions)
    assert batch["input_ids"].tolist() == [whole, whole, [whole[0], 4, 5, whole[-1]]]
    assert batch["labels"][:, -1].tolist() == [-100, whole[-1], -100]
    assert torch.equal(batch["labels"][:, 1:3], batch["input_ids"][:, 1:3])
    assert collator.num_truncated == 2
    collator(captions)
    assert (collator.num_truncated, caplog.text.count("more than max_length=4 tokens")) == (4, 1)
    as_released = CaptionCollator(made, None, max_length=4, learn_truncated_ends=True)
    assert torch.equal(as_released(captions)["labels"], batch["input_ids"])
    assert as_released.num_truncated == 2


def test_a_tokenizer_that_truncates_on_the_left_keeps_the_last_words():
    made = tokenizer("<s> $A", LLAMA, truncation_side="left")
    assert CaptionCollator(made, None, max_length=4)([{"caption": "a dog runs"}])["input_ids"].tolist() == [
        [1, 4, 5, 2]
    ]


@pytest.mark.parametrize("prefix", ["", "<image> "])
@pytest.mark.parametrize("layout", ["compact", "bert"])
def test_the_text_of_special_tokens_in_a_caption_is_text(layout, prefix):
    texts = ["a dog [SEP] a cat [PAD] </s> <image>"] * 2
    made = train_wordpiece(texts, 300, layout=layout)
    made.add_special_tokens({"additional_special_tokens": ["<image>"]})
    before = [made.cls_token, *prefix.split()]
    for text, words in {
        "a dog [SEP] a cat": "a dog [ sep ] a cat",
        "[PAD]": "[ pad ]",
        "a dog <image>": "a dog < image >",
        "a dog": "a dog",
    }.items():
        batch = CaptionCollator(made, None, prefix=prefix)([{"caption": text}])
        assert made.convert_ids_to_tokens(batch["input_ids"][0]) == [*before, *words.split(), made.sep_token]
        assert (batch["labels"] == made.sep_token_id).sum() == 1
    assert made("a [SEP]").input_ids[2:] == [made.sep_token_id] * 2  # the tokenizer itself is as it was


def test_a_special_token_that_a_vocabulary_of_words_holds_is_unknown_or_left_out():
    for special, instead in ((BERT, []), ({**BERT, "unk_token": "<unk>"}, [8])):
        made = tokenizer("<s> $A </s>", special)
        assert CaptionEncoder(made)(["a </s> dog", "dog"])[0] == [[1, 3, *instead, 4, 2], [1, 4, 2]]


def test_a_byte_level_tokenizer_splits_its_own_end():
    model = Tokenizer(models.BPE({letter: number for number, letter in enumerate(["<e>", "<", "e", ">", "a"])}, []))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made = PreTrainedTokenizerFast(tokenizer_object=model, **dict.fromkeys(GPT2, "<e>"))
    assert CaptionEncoder(made)(["a<e>a"])[0] == [[0, 4, 1, 2, 3, 4, 0]]


@pytest.mark.parametrize(
    ("special", "remedy"),
    [
        ({"eos_token": "</s>"}, r"tokenizer.pad_token = tokenizer.eos_token"),
        ({}, r'd_special_tokens\({"pad_token": "'),
    ],
)
def test_a_tokenizer_that_cannot_pad_is_refused_with_a_token_that_it_has(special, remedy):
    with pytest.raises(ValueError, match=remedy):
        CaptionCollator(tokenizer("$A", special), None)
