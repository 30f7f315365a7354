import io
import itertools
import random
import sys

import chat_models as CHAT
import numpy as np
import pytest
import torch
from datasets import Dataset, Features, Image, Value
from PIL import Image as Pil
from torch import nn
from transformers import Blip2Config, GenerationConfig, LlavaConfig, ViTConfig

from hf_curriculum import CaptionGitForCausalLM, generate_captions
from hf_curriculum.data.grouping import one_row_per_image
from hf_curriculum.evaluation.generate import caption_images, references
from hf_curriculum.models.git.config import CaptionGitConfig

WORDS = ["[PAD]", "[CLS]", "[SEP]", "red", "green", "blue"]


class Tokenizer:
    def batch_decode(self, ids, skip_special_tokens):
        assert skip_special_tokens
        return ["  ".join(WORDS[i] for i in row if i > 2) for row in ids.tolist()]


class ImageProcessor:
    def __init__(self):
        self.batches = []

    def __call__(self, images, return_tensors):
        assert return_tensors == "pt"
        assert all(image.mode == "RGB" for image in images)
        self.batches.append(len(images))
        pixels = [torch.tensor(np.array(image)).permute(2, 0, 1) / 255 for image in images]
        return {"pixel_values": torch.stack(pixels)}


class Processor:
    def __init__(self):
        self.tokenizer, self.image_processor = Tokenizer(), ImageProcessor()


class Captioner(nn.Module):
    """Names the strongest channel of the middle pixel, and draws random numbers on the way."""

    def __init__(self):
        super().__init__()
        self.tower = nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 2))
        self.calls = []

    def generate(self, pixel_values, **options):
        self.calls.append({"training": self.training, "inference": torch.is_inference_mode_enabled(), **options})
        torch.rand(3), np.random.rand(3), random.random()  # noqa: NPY002
        self.dtype = pixel_values.dtype
        colour = pixel_values[:, :, 4, 4].argmax(1) + 3
        return torch.stack([torch.ones_like(colour), colour, 2 * torch.ones_like(colour)], dim=1)


def tiny_git():
    vision = ViTConfig(
        image_size=8, patch_size=4, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    return CaptionGitConfig(
        vision,
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )


@pytest.fixture
def pictures():
    colours = ["red", "lime", "blue", "lime", "red"]
    return Dataset.from_dict(
        {
            "image": [Pil.new("RGBA" if i == 1 else "RGB", (8, 8), colour) for i, colour in enumerate(colours)],
            "caption": [f"a {colour} square" for colour in colours],
            "image_id": list("abcde"),
        },
        features=Features({"image": Image(), "caption": Value("string"), "image_id": Value("string")}),
    )


def test_one_caption_per_row_in_batches(pictures):
    processor, model = Processor(), Captioner()
    captions = generate_captions(model, pictures, processor, batch_size=2, max_new_tokens=7, num_beams=3)
    assert captions == ["red", "green", "blue", "green", "red"]
    assert processor.image_processor.batches == [2, 2, 1]
    assert (
        model.calls
        == [{"training": False, "inference": True, "max_new_tokens": 7, "num_beams": 3, "do_sample": False}] * 3
    )


def test_modes_are_restored_module_by_module(pictures):
    model = Captioner().train()
    model.tower.eval()  # a frozen tower
    before = [module.training for module in model.modules()]
    generate_captions(model, pictures, Processor())
    assert [module.training for module in model.modules()] == before == [True, False, False, False]


def test_modes_and_random_states_are_restored_after_an_error(pictures):
    class Broken(Captioner):
        def generate(self, **options):
            super().generate(**options)
            raise RuntimeError("out of memory")

    model, state = Broken().train(), torch.get_rng_state()
    with pytest.raises(RuntimeError, match="out of memory"):
        generate_captions(model, pictures, Processor())
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)


def test_random_states_are_untouched(pictures):
    def states():
        keys, position = np.random.get_state()[1:3]  # noqa: NPY002
        return torch.get_rng_state().tolist(), random.getstate(), keys.tolist(), position

    model, before = Captioner(), states()
    generate_captions(model, pictures, Processor())
    assert states() == before


def test_weights_of_another_type_get_pixels_of_that_type(pictures):
    model = Captioner().to(torch.bfloat16)
    generate_captions(model, pictures, Processor())
    assert model.dtype == torch.bfloat16


def test_transforms_and_formats_are_put_aside(pictures):
    transformed = pictures.with_transform(lambda batch: {"pixel_values": [0] * len(batch["image"])})
    assert generate_captions(Captioner(), transformed, Processor())[0] == "red"
    assert transformed[0] == {"pixel_values": 0}


def test_another_column_and_an_empty_data_set(pictures):
    renamed = pictures.rename_column("image", "photo")
    assert len(generate_captions(Captioner(), renamed, Processor(), image_column="photo")) == 5
    assert generate_captions(Captioner(), pictures.select([]), Processor()) == []


def test_sampling_can_be_asked_for(pictures):
    model = Captioner()
    generate_captions(model, pictures, Processor(), do_sample=True, top_p=0.9)
    assert model.calls[0]["do_sample"] is True
    assert model.calls[0]["top_p"] == 0.9


def test_decoded_images_are_captioned_in_one_batch(pictures):
    model, processor = Captioner().train(), Processor()
    images = [image.convert("RGB") for image in pictures["image"]]
    assert caption_images(model, images, processor, num_beams=2) == ["red", "green", "blue", "green", "red"]
    assert processor.image_processor.batches == [5]
    options = {"num_beams": 2, "max_new_tokens": 30, "do_sample": False}
    assert model.calls == [{"training": False, "inference": True, **options}]
    assert caption_images(model, [], processor) == []
    caption_images(model, images[:1], processor, do_sample=True)
    assert model.calls[1]["do_sample"] is True


def test_captions_are_as_long_as_the_model_s_own_setting(pictures):
    model = Captioner()
    model.generation_config = GenerationConfig(max_new_tokens=9)
    generate_captions(model, pictures, Processor())
    caption_images(model, [pictures[0]["image"]], Processor())
    generate_captions(model, pictures, Processor(), max_new_tokens=4)
    assert [call["max_new_tokens"] for call in model.calls] == [9, 9, 4]


@pytest.mark.parametrize(("seconds", "progress", "expected"), [(0.1, True, False), (1, True, True), (1, False, False)])
def test_a_long_run_shows_its_progress_on_a_terminal(pictures, monkeypatch, seconds, progress, expected):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    now = itertools.count(0, seconds)
    monkeypatch.setattr("tqdm.std.time", lambda: next(now))
    generate_captions(Captioner(), pictures, Processor(), batch_size=1, progress=progress)
    assert ("captions" in shown.getvalue()) is expected
    assert ("/5 [" in shown.getvalue()) is expected
    assert ("image/s" in shown.getvalue() or "s/image" in shown.getvalue()) is expected


def test_generate_errors(pictures):
    with pytest.raises(ValueError, match=r"`photo` is not in the data, which has the columns \['image'"):
        generate_captions(Captioner(), pictures, Processor(), image_column="photo")
    for name in ("batch_size", "max_new_tokens", "num_beams"):
        with pytest.raises(ValueError, match=f"`{name}` is 0, which leaves nothing to generate"):
            generate_captions(Captioner(), pictures, Processor(), **{name: 0})
    images = [None if row == 3 else picture for row, picture in enumerate(pictures["image"])]
    holed = Dataset.from_dict({"image": images}, features=Features({"image": Image()}))
    with pytest.raises(ValueError, match="Row 3: "):
        generate_captions(Captioner(), holed, Processor(), batch_size=2)


def test_our_git_generates(pictures):
    torch.manual_seed(0)
    model = CaptionGitForCausalLM(tiny_git())
    captions = generate_captions(model, pictures, Processor(), batch_size=3, max_new_tokens=4)
    assert len(captions) == 5
    assert all(len(caption.split()) <= 4 for caption in captions)
    assert captions == generate_captions(model, pictures, Processor(), batch_size=5, max_new_tokens=4)


def test_first_row_of_each_image():
    pairs = Dataset.from_dict({"image_id": list("bbacab"), "caption": list("123456")})
    assert one_row_per_image(pairs)["caption"][:] == ["1", "3", "4"]
    assert one_row_per_image(pairs.select([5, 2, 1]))["caption"][:] == ["6", "3"]
    assert len(one_row_per_image(pairs.select([]))) == 0


def test_references_by_image():
    pairs = Dataset.from_dict({"image_id": list("bbacd"), "caption": ["1", "2", "3", "", None]})
    assert references(pairs) == {"b": ["1", "2"], "a": ["3"], "c": [], "d": []}
    assert list(references(pairs.select([3, 0]))) == ["c", "b"]


def test_reading_ids_decodes_no_image(pictures):
    class Poison:
        def __call__(self, batch):
            raise AssertionError("pictures were decoded")

    broken = pictures.map(lambda row: {"image": {"bytes": b"no picture", "path": None}}, features=pictures.features)
    assert len(one_row_per_image(broken)) == 5
    assert len(references(broken.with_transform(Poison()))) == 5


def test_row_errors():
    with pytest.raises(ValueError, match="`image_id` is not in the data"):
        one_row_per_image(Dataset.from_dict({"caption": ["a"]}))
    with pytest.raises(ValueError, match="`caption` is not in the data"):
        references(Dataset.from_dict({"image_id": ["a"]}))
    with pytest.raises(ValueError, match="is missing in 1 of 2 rows"):
        one_row_per_image(Dataset.from_dict({"image_id": ["a", None]}))


def test_training_goes_on_after_generating(pictures):
    model = CaptionGitForCausalLM(tiny_git()).train()
    generate_captions(model, pictures, Processor(), max_new_tokens=2)
    ids = torch.tensor([[1, 3, 2]])
    model(input_ids=ids, pixel_values=torch.rand(1, 3, 8, 8), labels=ids).loss.backward()
    assert model.git.embeddings.word_embeddings.weight.grad.abs().sum() > 0


def responded(name, image, prompt, **options):
    """What a chat model responds to one image, as its own documentation has it."""
    model, processor = CHAT.loaded(name), CHAT.processor_of(name)
    chat = [
        {"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": prompt}]},
    ]
    inputs = processor.apply_chat_template(
        chat, tokenize=True, add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )
    written = model.generate(**inputs, do_sample=False, **options)[0, inputs["input_ids"].shape[1] :]
    return " ".join(processor.decode(written, skip_special_tokens=True).split())


@pytest.mark.parametrize("name", CHAT.WITH_TEMPLATE)
def test_a_chat_model_responds_as_to_one_image_at_a_time(name):
    images = [CHAT.picture(number) for number in range(5)]  # of four sizes: prompts are of several lengths
    data = Dataset.from_dict({"photo": images}, features=Features(photo=Image()))
    model, processor = CHAT.loaded(name), CHAT.processor_of(name)
    before, side = random.getstate(), processor.tokenizer.padding_side
    for prompt, asked in ((None, "Describe the image."), ("What is in the image?",) * 2):
        wanted = [responded(name, image, asked, max_new_tokens=6) for image in images]
        assert len({*wanted}) > 1  # the images are seen
        for batch_size in (1, 3):
            options = {"image_column": "photo", "max_new_tokens": 6, "prompt": prompt}
            assert generate_captions(model, data, processor, batch_size=batch_size, **options) == wanted
    assert caption_images(model, images, processor, prompt=prompt, max_new_tokens=6) == wanted
    wanted = [responded(name, image, "Describe the image.", max_new_tokens=30) for image in images[:2]]
    assert caption_images(model, images[:2], processor) == wanted
    wanted = [responded(name, image, "Describe the image.", max_new_tokens=5, num_beams=3) for image in images]
    assert caption_images(model, images, processor, max_new_tokens=5, num_beams=3) == wanted
    assert (random.getstate(), processor.tokenizer.padding_side) == (before, side)


def test_a_chat_model_names_the_row_without_an_image():
    data = Dataset.from_dict({"image": [CHAT.picture(0), None]}, features=Features(image=Image()))
    with pytest.raises(ValueError, match="Row 1: "):
        generate_captions(CHAT.loaded("llava"), data, CHAT.processor_of("llava"), max_new_tokens=2, batch_size=1)


def test_a_chat_model_needs_a_chat_template(pictures):
    model = Captioner()
    model.config = LlavaConfig()
    for write in (generate_captions, lambda model, data, processor: caption_images(model, data["image"], processor)):
        with pytest.raises(ValueError, match=r"reads an image as placeholder tokens .* has no chat template"):
            write(model, pictures, Processor())
    model.config = Blip2Config()  # writes its prompt itself
    assert generate_captions(model, pictures, Processor())


def test_a_captioner_reads_no_prompt(pictures):
    with pytest.raises(ValueError, match="`prompt` is 'What\\?', and the model is a Captioner, which writes captions"):
        generate_captions(Captioner(), pictures, Processor(), prompt="What?")
