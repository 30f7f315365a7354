import pickle
import random

import numpy as np
import pytest
import torch
from datasets import Dataset, Features, Value
from datasets import Image as ImageFeature
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch.utils.data import DataLoader
from transformers import CLIPImageProcessorPil, PreTrainedTokenizerFast, ViTImageProcessorPil

from hf_curriculum import CaptionCollator, make_image_processor
from hf_curriculum.data.collators import Augment
from hf_curriculum.data.images import UnreadableImageError
from hf_curriculum.data.processors import process_image
from hf_curriculum.data.seeding import IndexedCollator, IndexedDataset, IndexedExample

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "dog", "runs", "犬", "🐕", "كلب"]


def tokenizer(**special):
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    model = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    model.pre_tokenizer = pre_tokenizers.Whitespace()
    model.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=model, **({"pad_token": "[PAD]", "unk_token": "[UNK]"} | special))


def image(number, size=(20, 10)):
    return Image.fromarray(np.random.default_rng(number).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))


def examples(*captions):
    return [{"image": image(number), "caption": caption} for number, caption in enumerate(captions)]


@pytest.fixture
def collator():
    return CaptionCollator(tokenizer(), make_image_processor(8))


class TestBatch:
    def test_all_of_it(self, collator):
        batch = collator(examples("a dog", "dog"))
        assert set(batch) == {"pixel_values", "input_ids", "attention_mask", "labels"}
        assert batch["input_ids"].tolist() == [[2, 4, 5, 3], [2, 5, 3, 0]]
        assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
        assert batch["labels"].tolist() == [[2, 4, 5, 3], [2, 5, 3, -100]]
        assert (batch["pixel_values"].shape, batch["pixel_values"].dtype) == ((2, 3, 8, 8), torch.float32)

    def test_padding_is_learnt_on_request(self):
        batch = CaptionCollator(tokenizer(), None, ignore_padding=False)(examples("a dog", "dog"))
        assert torch.equal(batch["labels"], batch["input_ids"])

    def test_the_end_token_keeps_its_label_where_it_pads_too(self):
        batch = CaptionCollator(tokenizer(pad_token="[SEP]", eos_token="[SEP]"), None)(examples("a dog", "dog"))
        assert batch["labels"].tolist() == [[2, 4, 5, 3], [2, 5, 3, -100]]

    def test_left_padding(self):
        batch = CaptionCollator(tokenizer(padding_side="left"), None)(examples("a dog", "dog"))
        assert batch["labels"].tolist() == [[2, 4, 5, 3], [-100, -100, 5, 3]]

    @pytest.mark.parametrize("captions", [("a dog runs", "dog"), ("dog", "dog"), ("dog",)])
    def test_what_is_learnt_does_not_depend_on_the_side_of_the_padding(self, captions):
        def learnt(side):
            labels = CaptionCollator(tokenizer(padding_side=side), None)(examples(*captions))["labels"][:, 1:]
            return [row[row != -100].tolist() for row in labels]

        assert learnt("left") == learnt("right")

    @pytest.mark.parametrize("side", ["right", "left"])
    def test_padding_to_a_multiple_ends_at_the_longest_that_is_read(self, side):
        def read(captions):
            return tokenizer()(list(captions), truncation=True, max_length=6)["input_ids"]

        made = [
            CaptionCollator(tokenizer(padding_side=side), None, max_length=6, pad_to_multiple_of=multiple)
            for multiple in (1, 4, 5)
        ]
        for captions, widths in (
            (("dog", "dog"), (3, 4, 5)),
            (("a dog", "dog"), (4, 4, 5)),
            (("a a a dog",), (6,) * 3),
        ):
            batches = [one(examples(*captions)) for one in made]
            assert [batch["input_ids"].shape[1] for batch in batches] == list(widths)
            for batch in batches:
                real, predicted = batch["attention_mask"] == 1, batch["labels"][:, 1:]
                assert batch["input_ids"][real].tolist() == [token for row in read(captions) for token in row]
                assert set(batch["input_ids"][~real].tolist()) <= {0}
                assert predicted[predicted != -100].tolist() == [token for row in read(captions) for token in row[1:]]

    def test_a_gpu_pads_to_eight_unless_padding_is_trained_on(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        made = [CaptionCollator(tokenizer(), None, ignore_padding=ignored) for ignored in (True, False)]
        assert [one.pad_to_multiple_of for one in made] == [8, 1]
        for wrong in ({"pad_to_multiple_of": 0}, {"pad_to_multiple_of": 8, "ignore_padding": False}):
            with pytest.raises(ValueError, match=r"pad_to_multiple_of=\d. was given with `ignore_padding="):
                CaptionCollator(tokenizer(), None, **wrong)

    def test_captions_are_cut_with_their_end_token_kept(self):
        batch = CaptionCollator(tokenizer(), None, max_length=3)(examples("a dog runs"))
        assert batch["input_ids"].tolist() == [[2, 4, 3]]

    @pytest.mark.parametrize(("prefix", "given", "least"), [("", 0, 3), ("", 2, 3), ("a ", 3, 4)])
    def test_a_length_that_leaves_nothing_of_a_caption(self, prefix, given, least):
        with pytest.raises(ValueError, match=rf"`max_length={given}` was given.*Pass {least} or more"):
            CaptionCollator(tokenizer(), None, max_length=given, prefix=prefix)
        labels = CaptionCollator(tokenizer(), None, max_length=least, prefix=prefix)(examples("dog"))["labels"]
        assert labels[0, -2:].tolist() == [5, 3]

    def test_words_that_hold_the_space_before_them_are_learnt_behind_a_prefix(self):
        pieces = [*pre_tokenizers.ByteLevel.alphabet(), "<pad>", "do", "dog", "Ġdog"]
        merges = [("d", "o"), ("do", "g"), ("Ġ", "dog")]
        model = Tokenizer(models.BPE({piece: number for number, piece in enumerate(pieces)}, merges))
        model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        ends = dict.fromkeys(("pad_token", "bos_token", "eos_token"), "<pad>")
        of_bytes = PreTrainedTokenizerFast(tokenizer_object=model, **ends)
        batch = CaptionCollator(of_bytes, None, prefix="a: ")(examples("dog"))
        assert batch["labels"].tolist() == [[256, -100, -100, pieces.index("Ġdog"), 256]]
        assert batch["input_ids"].tolist() == [[256, pieces.index("a"), pieces.index(":"), pieces.index("Ġdog"), 256]]

    def test_captions_in_any_script(self, collator):
        assert collator(examples("犬", "🐕", "كلب"))["input_ids"][:, 1].tolist() == [7, 8, 9]

    def test_text_alone_does_not_touch_images(self):
        collator = CaptionCollator(tokenizer(), None)
        assert set(collator([{"caption": "a dog", "image": b"nonsense"}])) == {"input_ids", "attention_mask", "labels"}
        assert collator.columns == ("caption",)

    def test_other_column_names(self):
        collator = CaptionCollator(tokenizer(), make_image_processor(8), image_column="img", caption_column="text")
        assert collator.columns == ("img", "text")
        assert collator([{"img": image(0), "text": "dog"}])["input_ids"].tolist() == [[2, 5, 3]]

    def test_pixels_are_the_processors(self):
        processor = make_image_processor(8)
        batch = CaptionCollator(tokenizer(), processor)(examples("a", "dog"))
        for number in range(2):
            assert torch.equal(batch["pixel_values"][number], process_image(processor, image(number))["pixel_values"])

    def test_any_other_processor(self):
        processor = CLIPImageProcessorPil(size={"shortest_edge": 8}, crop_size={"height": 6, "width": 6})
        batch = CaptionCollator(tokenizer(), processor)(examples("a", "dog"))
        assert torch.equal(batch["pixel_values"][1], process_image(processor, image(1))["pixel_values"])
        assert batch["pixel_values"].shape == (2, 3, 6, 6)

    @pytest.mark.parametrize("mode", ["L", "1", "P", "CMYK", "RGBA", "LA", "I;16", "F"])
    def test_images_of_any_mode(self, collator, mode):
        image = Image.new("L", (9, 9), 1).convert("F" if mode == "F" else "L").convert(mode)
        batch = collator([{"image": image, "caption": "dog"}])
        assert torch.isfinite(batch["pixel_values"]).all()
        assert batch["pixel_values"].shape == (1, 3, 8, 8)

    def test_rows_of_a_data_set(self, collator, tmp_path):
        image(0).save(tmp_path / "0.png")
        features = Features({"image": ImageFeature(), "caption": Value("string")})
        rows = Dataset.from_dict({"image": [str(tmp_path / "0.png")], "caption": ["dog"]}, features=features)
        undecoded = rows.cast_column("image", ImageFeature(decode=False))
        expected = collator(examples("dog"))["pixel_values"]
        assert torch.equal(collator([rows[0]])["pixel_values"], expected)
        assert torch.equal(collator([undecoded[0]])["pixel_values"], expected)

    def test_it_can_be_sent_to_a_worker(self, collator):
        copy = pickle.loads(pickle.dumps(collator))
        assert torch.equal(copy(examples("dog"))["pixel_values"], collator(examples("dog"))["pixel_values"])


class TestErrors:
    @pytest.mark.parametrize("caption", ["", " \n\u2003", None, float("nan"), ["a dog"]])
    def test_an_empty_caption_is_named(self, collator, caption):
        with pytest.raises(
            ValueError, match=r"`caption` of the example with `image_id` 'x7' is .*drop_empty_captions"
        ):
            collator([{"image": image(0), "caption": caption, "image_id": "x7"}])

    def test_an_empty_caption_without_an_id(self):
        with pytest.raises(ValueError, match="`caption` is '', and a caption must be a text"):
            CaptionCollator(tokenizer(), None)([{"caption": ""}])

    def test_an_empty_caption_is_named_by_its_row_when_drawn(self):
        with pytest.raises(ValueError, match="Row 41: `caption` is ''"):
            IndexedCollator(CaptionCollator(tokenizer(), None), 0, False)([IndexedExample({"caption": ""}, 41, 0)])

    def test_an_unreadable_image_is_named(self, collator):
        with pytest.raises(UnreadableImageError, match=r"The image `x7`: .*cannot be decoded"):
            collator([{"image": b"nonsense", "caption": "dog", "image_id": "x7"}])
        with pytest.raises(UnreadableImageError, match=r"gone\.jpg: there is no such file"):
            collator([{"image": "gone.jpg", "caption": "dog"}])

    def test_a_missing_column(self, collator):
        with pytest.raises(ValueError, match=r"`image` is not in the data.*CaptionCollator\(image_column="):
            collator([{"caption": "dog"}])

    def test_a_tokenizer_that_cannot_pad(self):
        with pytest.raises(ValueError, match=r"has no padding token.*add_special_tokens"):
            CaptionCollator(tokenizer(pad_token=None), None)

    def test_images_of_unequal_size(self):
        collator = CaptionCollator(tokenizer(), ViTImageProcessorPil(do_resize=False))
        rows = [{"image": image(0, size), "caption": "dog"} for size in ((4, 4), (4, 5))]
        with pytest.raises(ValueError, match=r"sizes \[\(3, 4, 4\), \(3, 5, 4\)\], which make no batch"):
            collator(rows)

    def test_an_augmentation_that_normalises(self):
        collator = CaptionCollator(
            tokenizer(), make_image_processor(8), augment=lambda image: np.asarray(image) / 50.0 - 3
        )
        with pytest.raises(
            UnreadableImageError, match=r"What `augment` returned .* leave that to the image processor"
        ):
            collator(examples("dog"))


class TestAugment:
    def test_it_changes_pixels_and_evaluation_does_not(self):
        collator = CaptionCollator(tokenizer(), make_image_processor(8), augment=Augment(crop=(0.2, 0.5)))
        plain = CaptionCollator(tokenizer(), make_image_processor(8))
        expected = plain(examples("dog"))["pixel_values"]
        assert not torch.equal(collator(examples("dog"))["pixel_values"], expected)
        assert torch.equal(collator.without_augmentation()(examples("dog"))["pixel_values"], expected)
        assert (collator.is_random, plain.is_random, collator.without_augmentation().is_random) == (True, False, False)

    def test_arrays_are_welcome(self):
        collator = CaptionCollator(
            tokenizer(), make_image_processor(8), augment=lambda image: np.asarray(image)[:, ::-1]
        )
        mirrored = examples("dog")[0]["image"].transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        plain = CaptionCollator(tokenizer(), make_image_processor(8))
        assert torch.equal(
            collator(examples("dog"))["pixel_values"], plain([{"image": mirrored, "caption": "dog"}])["pixel_values"]
        )

    def test_the_crop_keeps_the_share_asked_for_and_stays_inside(self):
        random.seed(0)
        numbered = Image.fromarray(np.arange(200 * 100, dtype=np.int32).reshape(100, 200))
        corners = set()
        for _ in range(200):
            crop = Augment(crop=(0.5, 0.6), ratio=(0.8, 1.25))(numbered)
            assert 0.49 * 20_000 < crop.width * crop.height < 0.61 * 20_000
            assert 0.75 < (crop.width / crop.height) / 2 < 1.3
            top, left = divmod(crop.getpixel((0, 0)), 200)
            np.testing.assert_array_equal(
                np.asarray(crop), np.asarray(numbered)[top : top + crop.height, left : left + crop.width]
            )
            corners.add((left, top))
        assert len(corners) > 100

    def test_no_flip_unless_asked_for(self):
        left_half = Image.fromarray(np.repeat([[0, 0, 255, 255]], 4, axis=0).astype(np.uint8))
        whole = {"crop": (1, 1), "ratio": (1, 1)}
        assert {Augment(**whole)(left_half).getpixel((0, 0)) for _ in range(50)} == {0}
        assert {Augment(**whole, flip=True)(left_half).getpixel((0, 0)) for _ in range(50)} == {0, 255}

    def test_the_smallest_image(self):
        assert Augment(crop=(0.01, 0.01))(Image.new("RGB", (1, 1))).size == (1, 1)

    @pytest.mark.parametrize("crop", [(0, 1), (0.9, 0.8), (0.5, 1.1)])
    def test_an_impossible_crop(self, crop):
        with pytest.raises(ValueError, match="smallest and largest share of the area"):
            Augment(crop=crop)

    @pytest.mark.parametrize("ratio", [(0, 1), (2, 1)])
    def test_an_impossible_ratio(self, ratio):
        with pytest.raises(ValueError, match="smallest and largest change of width over height"):
            Augment(ratio=ratio)

    def test_it_prints_what_it_does(self):
        assert (
            repr(Augment((0.5, 1.0), flip=True))
            == "Augment(crop=(0.5, 1.0), ratio=(0.75, 1.3333333333333333), flip=True)"
        )


class Mixed:
    """An augmentation that draws from all three generators."""

    def __call__(self, image):
        shift = int(np.random.randint(0, 5)) + int(torch.randint(0, 5, ()))  # noqa: NPY002
        return Augment(crop=(0.3, 0.9), flip=True)(image.rotate(shift))


def test_the_same_draw_has_the_same_pixels_on_any_worker_in_any_batch(tmp_path):
    for number in range(6):
        image(number, (40, 30)).save(tmp_path / f"{number}.png")
    features = Features({"image": ImageFeature(), "caption": Value("string")})
    columns = {"image": [str(tmp_path / f"{number}.png") for number in range(6)], "caption": ["a dog"] * 6}
    rows = Dataset.from_dict(columns, features=features)
    collator = CaptionCollator(tokenizer(), make_image_processor(8), augment=Mixed())
    pairs = [(draw % 6, draw) for draw in range(12)]

    def pixels(workers, batch_size, pairs=pairs):
        loader = DataLoader(
            IndexedDataset(rows, 5, True),
            sampler=pairs,
            batch_size=batch_size,
            num_workers=workers,
            collate_fn=IndexedCollator(collator, 5, True),
        )
        batches = list(loader)
        assert [index for batch in batches for index in batch["example_index"].tolist()] == [
            index for index, _ in pairs
        ]
        return torch.cat([batch["pixel_values"] for batch in batches])

    expected = pixels(workers=0, batch_size=4)
    assert torch.equal(pixels(workers=2, batch_size=4), expected)
    assert torch.equal(pixels(workers=0, batch_size=5), expected)
    assert torch.equal(pixels(workers=0, batch_size=3, pairs=pairs[::-1]).flip(0), expected)
    assert not torch.equal(expected[:6], expected[6:])  # the same images, drawn again


class TestDraws:
    """What an augmentation draws, and what it makes of it."""

    @pytest.fixture
    def drawn(self, monkeypatch):
        numbers, given = iter([1.0, 0.0, 0.25, 0.0] * 9), []
        monkeypatch.setattr(random, "uniform", lambda low, high: given.append((low, high)) or next(numbers))
        return given

    def test_a_crop_that_fits_is_drawn_once(self, drawn):
        augment = Augment((0.25, 1), (1, 1), square=True)
        assert augment._size(Image.new("RGB", (40, 40))) == (40, 40)
        assert drawn == [(0.25, 1), (0.0, 0.0)]
        assert augment._size(Image.new("RGB", (60, 20))) == (17, 17)  # the first two do not fit
        assert len(drawn) == 4
        assert Augment((1, 1), (1, 1))._size(Image.new("RGB", (60, 20))) == (60, 20)

    def test_the_smallest_crop_is_a_pixel(self):
        assert Augment((1e-6, 1e-6))(Image.new("RGB", (10, 10))).size == (1, 1)


def test_what_a_tokenizer_is_given():
    words, given = tokenizer(), []

    class Recorded:
        def __getattr__(self, name):
            return getattr(words, name)

        def __call__(self, text, **options):
            given.append((text, options))
            return words(text, **options)

    CaptionCollator(Recorded(), None, max_length=7)(examples("a dog"))
    assert given[-1] == (["a dog"], {"add_special_tokens": False, "verbose": False})


def test_two_tokens_are_the_least_of_an_encoder_decoder():
    model = Tokenizer(models.WordLevel({"a": 0, "[PAD]": 1}, unk_token="[PAD]"))
    plain = PreTrainedTokenizerFast(tokenizer_object=model, pad_token="[PAD]", eos_token="[PAD]")
    assert CaptionCollator(plain, None, max_length=2, encoder_decoder=True).max_length == 2
    with pytest.raises(ValueError, match=r"`max_length=1` was given.*Pass 2 or more"):
        CaptionCollator(plain, None, max_length=1, encoder_decoder=True)


@pytest.mark.parametrize("prefix", ["  ", "zebra"])
def test_a_prefix_that_says_nothing(prefix):
    with pytest.raises(ValueError, match=r"makes \[.*\] of `prefix="):
        CaptionCollator(tokenizer(), None, prefix=prefix)
