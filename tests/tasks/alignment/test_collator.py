"""Captions with nouns as tokens, the region files of VinVL before an aligner, and what cannot be read."""

from __future__ import annotations

import base64
import copy
import json

import numpy as np
import pytest
import torch
from contrastive_task import DIMS, make_aligner, make_pairs, pixel_collator, region_collator, tokenizer
from transformers import AutoProcessor, ByT5Tokenizer

from hf_curriculum import make_image_processor
from hf_curriculum.data.image_inputs import FeatureInputs, PixelInputs, RegionInputs
from hf_curriculum.data.regions.base import Regions
from hf_curriculum.data.regions.open import open_regions
from hf_curriculum.tasks.alignment import AlignerConfig, AlignerModel, AlignerProcessor, ContrastiveCollator
from hf_curriculum.tasks.alignment.collator import key_of
from hf_curriculum.tasks.alignment.encoders import encoders_of
from hf_curriculum.tasks.alignment.processor import _span, noun_mask

PAIRS, STORE = make_pairs(6)


def test_sub_words_are_found_by_characters():
    caption = "Two snowboarders and a dog."
    row = {"image_id": "image 0", "caption": caption, "noun_start": 4, "noun_end": 16}
    batch = region_collator(STORE)([row, {**row, "noun_start": 23, "noun_end": 26}])
    for place, noun in enumerate(("snowboarders", "dog")):
        tokens = [int(token) for token in batch["input_ids"][place][batch["noun_mask"][place] == 1]]
        pieces = tokenizer().convert_ids_to_tokens(tokens)
        assert tokens == tokenizer()(noun, add_special_tokens=False)["input_ids"], pieces
    assert len(set(batch["text_keys"].tolist())) == len(set(batch["image_keys"].tolist())) == 1


def test_offsets_decide_whatever_the_padding():
    offsets = torch.tensor([[[0, 0], [0, 3], [3, 6], [7, 9], [0, 0]], [[0, 0], [0, 0], [0, 2], [3, 6], [0, 0]]])
    assert noun_mask(offsets, [(2, 8), (0, 2)]).tolist() == [[0, 1, 1, 1, 0], [0, 0, 1, 0, 0]]


def test_a_batch():
    collator = region_collator(STORE)
    batch = collator([PAIRS[row] for row in range(4)])
    assert next(iter(batch)) == "input_ids"
    assert batch["region_features"].shape == (4, 3, DIMS)
    assert batch["region_mask"].sum(1).tolist() == [2, 2, 3, 3]
    assert batch["image_keys"].tolist() == [key_of(name) for name in PAIRS["image_id"][:4]]
    assert collator.columns == ("image_id", "caption", "noun_start", "noun_end")
    assert key_of("image 0") == 4523324479069945525
    words = tokenizer()
    for row in range(4):
        noun = words.decode(batch["input_ids"][row][batch["noun_mask"][row] == 1])
        assert noun == PAIRS["noun"][row]


def test_stored_features_of_a_tower_are_regions():
    stored = {name: np.float32(regions.features[:2]) for name, regions in STORE.items()}
    features = ContrastiveCollator(tokenizer(), FeatureInputs(stored))
    rows = [PAIRS[row] for row in range(4)]
    encoders = encoders_of(make_aligner().eval())
    boxes = {name: Regions(name, features=values) for name, values in stored.items()}
    one, other = features(rows), region_collator(boxes)(rows)
    scores = [encoders.score(encoders.encode_text(batch), encoders.encode_images(batch)) for batch in (one, other)]
    assert torch.equal(*scores)


def write_vinvl(folder, layout, dims):
    """Two images with two and three regions in one of the layouts of VinVL's files; the features as written."""
    rng = np.random.default_rng(5)
    features = {name: rng.normal(size=(count, dims)).astype(np.float32) for name, count in (("7", 2), ("9", 3))}
    encoded = {name: base64.b64encode(values.tobytes()).decode() for name, values in features.items()}
    lines = []
    for name, values in features.items():
        boxes = [[5.0 * place, 4.0, 5.0 * place + 20, 34.0] for place in range(len(values))]
        if layout == "predictions":
            objects = [
                {
                    "rect": box, "bbox_id": place, "class": "dog", "conf": 0.9 - place / 10,
                    "feature": base64.b64encode(value.tobytes()).decode(),
                }
                for place, (box, value) in enumerate(zip(boxes, values, strict=True))
            ]  # fmt: skip
            lines.append(f"{name}\t{json.dumps({'objects': objects, 'relations': []})}")
        elif layout == "captioning":
            lines.append(f"{name}\t{json.dumps({'num_boxes': len(values), 'features': encoded[name]})}")
        else:
            lines.append(f"{name}\t{len(values)}\t{encoded[name]}")
    path = folder / ("predictions.tsv" if layout == "predictions" else "features.tsv")
    path.write_text("\n".join(lines) + "\n")
    return path, features


@pytest.mark.parametrize(("layout", "dims"), [("predictions", 2048), ("captioning", 2054), ("pretraining", 2054)])
def test_the_layouts_of_vinvl_feed_the_aligner(tmp_path, layout, dims):
    path, features = write_vinvl(tmp_path, layout, dims)
    collator = ContrastiveCollator(tokenizer(), RegionInputs(open_regions(path)))
    rows = [
        {"image_id": name, "caption": f"a red {noun}", "noun_start": 6, "noun_end": 6 + len(noun)}
        for name, noun in (("7", "dog"), ("9", "cat"))
    ]
    batch = collator(rows)
    for row, values in enumerate(features.values()):
        assert np.array_equal(batch["region_features"][row, : len(values)].numpy(), values)
    model = AlignerModel(AlignerConfig(make_aligner().config.text_config, region_feature_size=dims))
    outputs = model(**batch, return_loss=True)
    outputs.loss.backward()
    assert outputs.logits_per_text.shape == (2, 2)
    assert model.region_projection.weight.grad.abs().sum() > 0
    other = 2048 + 2054 - dims
    with pytest.raises(ValueError, match=rf"model reads features of width {other}"):
        AlignerModel(AlignerConfig(make_aligner().config.text_config, region_feature_size=other))(**batch)


def test_evaluation_sees_images_as_they_are():
    def crop(image):
        return image

    collator = ContrastiveCollator(tokenizer(), PixelInputs(make_image_processor(16), augment=crop))
    plain = collator.without_augmentation()
    assert (collator.is_random, plain.is_random) == (True, False)


def test_sources_of_other_widths_make_no_batch():
    store = STORE | {"image 1": Regions("image 1", features=np.ones((2, 5), np.float32))}
    with pytest.raises(ValueError, match=r"`region_features` of the sizes \[\(5,\), \(14,\)\]"):
        region_collator(store)([PAIRS[row] for row in range(4)])


def test_rows_that_cannot_be_read():
    collator, row = region_collator(STORE), PAIRS[0]
    with pytest.raises(ValueError, match="`caption` is ' '"):
        collator([{**row, "caption": " "}])
    with pytest.raises(ValueError, match="`image_id` None"):
        collator([{**row, "image_id": None}])
    with pytest.raises(ValueError, match="`image_id` ''"):
        collator([{**row, "image_id": ""}])
    with pytest.raises(ValueError, match="`caption` is None"):
        collator([{**row, "caption": None}])
    assert collator([{**row, "noun_start": 0, "noun_end": 1}])["noun_mask"][0].tolist()[:3] == [0, 1, 0]
    length = len(row["caption"])
    assert collator([{**row, "noun_start": length - 1, "noun_end": length}])["noun_mask"][0].tolist()[-3:] == [0, 1, 0]
    for start, end in ((None, 3), (3, None), (5, 5), (-1, 3), (0, 99), (0, length + 1)):
        with pytest.raises(ValueError, match="are no part of the caption"):
            collator([{**row, "noun_start": start, "noun_end": end}])
    with pytest.raises(ValueError, match="noun_end"):
        collator([{name: value for name, value in row.items() if name != "noun_end"}])


def test_a_noun_beyond_the_tokens_that_are_kept():
    collator = region_collator(STORE, max_length=5)
    first, second = PAIRS[0], PAIRS[1]  # "a red dog and a red cat"
    assert [collator.keeps_noun(row) for row in (first, second)] == [True, False]
    assert collator([first])["input_ids"].shape == (1, 5)
    with pytest.raises(ValueError, match=r"The noun 'cat' of the image 'image 0' stands beyond the 5 tokens"):
        collator([first, second])
    with pytest.raises(ValueError, match=r"The noun 'cat' of the image 'image 0'"):
        collator([second, PAIRS[3]])  # the first of both that are cut
    plain = ContrastiveCollator(tokenizer(), RegionInputs(STORE), nouns=False, max_length=5)([second, first])
    assert set(plain) == {
        "input_ids", "attention_mask", "region_features", "region_mask", "image_keys", "text_keys",
    }  # fmt: skip
    assert plain["input_ids"].shape == (2, 5)
    assert PAIRS.filter(collator.keeps_noun)["noun"][:] == [PAIRS["noun"][row] for row in (0, 2, 4, 6, 8, 10)]


def test_collators_that_cannot_be():
    words = copy.deepcopy(tokenizer())
    words.pad_token = None
    with pytest.raises(ValueError, match="has no padding token"):
        ContrastiveCollator(words, RegionInputs(STORE))
    with pytest.raises(ValueError, match=r"`max_length=2` was given"):
        region_collator(STORE, max_length=2)
    with pytest.raises(TypeError, match="does not say which characters a token stands for"):
        ContrastiveCollator(ByT5Tokenizer(), RegionInputs(STORE))
    with pytest.raises(ValueError, match=r"pads and truncates to a length of its own"):
        pixel_collator(words=lambda texts: texts, max_length=8)
    words = copy.deepcopy(tokenizer())
    words.model_max_length = 1 << 20
    assert pixel_collator(words=words, pad_to_max_length=True).pad_to_max_length
    assert region_collator(STORE, max_length=3, pad_to_max_length=True).max_length == 3
    words.model_max_length = 10**30
    assert pixel_collator(words=words).max_length is None
    with pytest.raises(ValueError, match=r"pads and truncates to a length of its own"):
        pixel_collator(words=lambda texts: texts, pad_to_max_length=True)
    with pytest.raises(ValueError, match=r"without `max_length`, and the tokenizer"):
        pixel_collator(words=words, pad_to_max_length=True)
    assert pixel_collator(pad_to_max_length=True, max_length=9).nouns is False


def test_the_processor_gives_what_the_model_takes(tmp_path):
    processor = AlignerProcessor(None, tokenizer())
    found = processor(text=["A red dog and a cat", "a tree"], nouns=["cat", (2, 6)])
    words = [
        tokenizer().decode(ids[mask == 1]) for ids, mask in zip(found["input_ids"], found["noun_mask"], strict=True)
    ]
    assert words == ["cat", "tree"]
    first, second = "a stop and a cat, a sto. and a dog", "sto. and"
    assert _span(first, second) == (first.index(second), first.index(second) + len(second))
    assert processor(text=["a dog", "a tree"], nouns=["dog", "tree"], max_length=4)["input_ids"].shape == (2, 4)
    assert set(found) == {"input_ids", "attention_mask", "noun_mask"}
    assert processor(text="a red dog", nouns=[None])["noun_mask"].tolist() == [[0, 1, 1, 1, 0]]
    make_aligner().save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    loaded = AutoProcessor.from_pretrained(tmp_path)
    assert type(loaded) is AlignerProcessor
    again = loaded(text=["A red dog and a cat", "a tree"], nouns=["cat", (2, 6)])
    assert all(torch.equal(again[name], found[name]) for name in found)
    assert len(AlignerModel.from_pretrained(tmp_path).encode_text(**again)) == 2
    assert processor() == {}


def test_the_text_of_special_tokens_in_a_caption_is_text():
    words = tokenizer()
    ids = AlignerProcessor(None, words)(text="a [SEP] dog [PAD]", nouns="dog")["input_ids"][0].tolist()
    assert ids[0] == words.cls_token_id
    assert [place for place, one in enumerate(ids) if one in words.all_special_ids and one != words.unk_token_id] == [
        *(0, len(ids) - 1)
    ]


def test_what_the_processor_cannot_read():
    processor = AlignerProcessor(None, tokenizer())
    alone, listed = (processor(text="a dog runs", nouns=nouns) for nouns in ("dog", ["dog"]))
    assert alone["noun_mask"].tolist() == listed["noun_mask"].tolist()
    with pytest.raises(ValueError, match=r"1 nouns were given for 2 captions"):
        processor(text=["a dog", "a dog"], nouns=["dog"])
    with pytest.raises(ValueError, match=r"no nouns were given for 1 captions"):
        processor(text="a dog")
    with pytest.raises(ValueError, match=r"'cat' is no word of the caption 'a catalogue'"):
        processor(text="a catalogue", nouns=["cat"])
    with pytest.raises(ValueError, match=r"The noun 'tree' of the caption .* has no token among the 4"):
        processor(text="a red dog and a tree", nouns=["tree"], max_length=4)
    with pytest.raises(ValueError, match="the processor has a tokenizer alone"):
        processor(images=[np.zeros((4, 4, 3), np.uint8)])
    with pytest.raises(TypeError, match="is a ByT5Tokenizer, which does not say which characters"):
        AlignerProcessor(None, ByT5Tokenizer())(text="a dog", nouns=["dog"])


OFFSETS = [[0, 0], [0, 1], [2, 4], [4, 7], [8, 12], [0, 0], [0, 0]]  # [CLS] a pup ##pies runs [SEP] [PAD]


@pytest.mark.parametrize(
    ("span", "expected", "lost"),
    [
        ((2, 7), [0, 0, 1, 1, 0, 0, 0], False),
        ((0, 1), [0, 1, 0, 0, 0, 0, 0], False),
        ((8, 12), [0, 0, 0, 0, 1, 0, 0], False),
        ((9, 10), [0, 0, 0, 0, 1, 0, 0], False),
        ((4, 7), [0, 0, 0, 1, 0, 0, 0], False),  # begins where another token ends
        ((13, 16), [0] * 7, True),  # beyond the text's cut
    ],
)
def test_the_sub_words_of_a_noun(span, expected, lost):
    mask = noun_mask(torch.tensor([OFFSETS]), [span])
    assert (mask.tolist(), not mask.any()) == ([expected], lost)
    assert mask.dtype == torch.int64


def test_the_sub_words_of_a_noun_by_a_tokenizer():
    """With spaces in sub-words (byte-level BPE) and without (WordPiece), cut short, and padded."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    captions, found = ["a puppy runs", "the old puppy"], [(2, 7), (8, 13)]
    words = ["[PAD]", "[UNK]", "a", "pup", "##py", "runs", "the", "old"]
    wordpiece = Tokenizer(models.WordPiece({word: at for at, word in enumerate(words)}, unk_token="[UNK]"))
    wordpiece.pre_tokenizer = pre_tokenizers.Whitespace()
    bpe = Tokenizer(models.BPE(unk_token=None))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    bpe.model = models.BPE({letter: at for at, letter in enumerate(letters)}, [])
    for plain in (wordpiece, bpe):
        fast = PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="[PAD]")
        batch = fast(captions, return_offsets_mapping=True, padding=True, return_tensors="pt")
        mask = noun_mask(batch["offset_mapping"], found)
        for text, (start, end), offsets, row in zip(captions, found, batch["offset_mapping"], mask, strict=True):
            pieces = [
                text[first:last] for (first, last), one in zip(offsets.tolist(), row.tolist(), strict=True) if one
            ]
            assert "".join(pieces).strip() == text[start:end] == "puppy"
        short = fast(captions, return_offsets_mapping=True, truncation=True, max_length=3, padding=True)
        kept = noun_mask(torch.tensor(short["offset_mapping"]), found).any(1)
        assert kept.tolist() == [True, plain is wordpiece]
