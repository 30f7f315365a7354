import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor, CLIPImageProcessorPil, ViTImageProcessor, ViTImageProcessorPil

from hf_curriculum import make_image_processor, train_wordpiece
from hf_curriculum.data import processors
from hf_curriculum.data.processors import (
    CaptionProcessor,
    PixelTable,
    is_plain,
    load_image_processor,
    look_up,
    process_image,
)


def noise(width, height):
    return Image.fromarray(np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8))


FILTERS = {"pil": ["nearest", "bilinear", "bicubic", "lanczos"], "torchvision": ["bilinear", "bicubic"]}


@pytest.mark.parametrize(("backend", "resample"), [(key, one) for key, found in FILTERS.items() for one in found])
@pytest.mark.parametrize("size", [64, (32, 48)])
@pytest.mark.parametrize("image", [(200, 150), (31, 77), (1, 1), (64, 64)])
def test_the_table_gives_the_processors_own_numbers(image, size, backend, resample):
    options = {"mean": (0.1, 0.2, 0.3), "std": (0.9, 0.5, 0.25), "resample": resample, "backend": backend}
    processor = make_image_processor(size, **options)
    table = PixelTable(processor)
    pixels, expected = (table(noise(*image)), process_image(processor, noise(*image))["pixel_values"])
    assert is_plain(processor)
    assert pixels.dtype == torch.float32
    assert pixels.is_contiguous()
    assert torch.equal(pixels, expected)
    resized = table.resize(noise(*image))
    assert resized.dtype == torch.uint8
    assert resized.is_contiguous()
    assert torch.equal(look_up(torch.from_numpy(table.table), torch.stack([resized, resized]))[1], expected)


@pytest.mark.parametrize("resample", FILTERS["torchvision"])
@pytest.mark.parametrize("size", [16, 50, (70, 40)])
def test_the_backends_differ_by_what_rounding_makes(size, resample):
    y, x = np.mgrid[:60, :90]
    image = Image.fromarray(np.stack([x * 2, y * 4, 255 - x - y], axis=-1).astype(np.uint8))
    of_pil, of_torch = (
        PixelTable(make_image_processor(size, resample=resample, backend=backend)).resize(image).int()
        for backend in FILTERS
    )
    assert (of_pil - of_torch).abs().max() <= 1


def test_images_that_arrow_does_not_take_are_copied(monkeypatch):
    processor = make_image_processor(8, backend="torchvision")
    table, image, small = PixelTable(processor), noise(2200, 2100), noise(40, 30)
    # Pillow keeps more than 16 MB in several blocks of memory.
    assert torch.equal(table(image), process_image(processor, image)["pixel_values"])
    found = table(small)
    monkeypatch.setattr(processors.pa, "array", lambda image: (_ for _ in ()).throw(TypeError("Pillow before 11.3")))
    assert torch.equal(table(small), found)


@pytest.mark.parametrize("options", [{}, {"do_normalize": False}, {"do_rescale": False}, {"rescale_factor": 0.01}])
@pytest.mark.parametrize("made_by", [ViTImageProcessorPil, ViTImageProcessor])
def test_the_table_follows_the_processors_options(options, made_by):
    processor = made_by(size={"height": 16, "width": 16}, **options)
    assert torch.equal(PixelTable(processor)(noise(40, 30)), process_image(processor, noise(40, 30))["pixel_values"])


class Mirrored(ViTImageProcessorPil):
    def resize(self, image, **options):
        return super().resize(image[:, :, ::-1], **options)


@pytest.mark.parametrize(
    ("processor", "plain"),
    [
        (make_image_processor(8), True),
        (ViTImageProcessorPil(), True),
        (ViTImageProcessor(), True),
        (ViTImageProcessor(resample=Image.Resampling.LANCZOS), False),
        (ViTImageProcessorPil(do_resize=False), False),
        (ViTImageProcessorPil(size={"shortest_edge": 8}), False),
        (ViTImageProcessorPil(do_center_crop=True, crop_size={"height": 4, "width": 4}), False),
        (CLIPImageProcessorPil(), False),
        (Mirrored(), False),
        (None, False),
    ],
)
def test_only_plain_processors_are_replaced(processor, plain):
    assert is_plain(processor) is plain


def test_the_processor_saves_and_loads(tmp_path):
    processor = make_image_processor((32, 48), mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2), resample="bilinear")
    processor.save_pretrained(tmp_path)
    loaded = AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    assert isinstance(loaded, ViTImageProcessorPil)
    assert torch.equal(process_image(loaded, noise(9, 9))["pixel_values"], PixelTable(processor)(noise(9, 9)))


def test_a_processor_says_its_backend_where_it_is_loaded(tmp_path, monkeypatch, caplog):
    made = make_image_processor(8, backend="torchvision", draft=True)
    made.save_pretrained(tmp_path)
    loaded = load_image_processor(tmp_path)
    assert type(loaded) is ViTImageProcessor
    assert loaded.to_dict() == made.to_dict()
    assert type(load_image_processor(tmp_path, backend="pil")) is ViTImageProcessorPil
    monkeypatch.setattr(processors, "is_torchvision_available", lambda: False)
    assert type(load_image_processor(tmp_path)) is ViTImageProcessorPil
    assert "trained on images that torchvision resized, and it is not installed: Pillow does" in caplog.text
    with pytest.raises(ImportError, match=r"torchvision is not installed. Install it, `pip install torchvision`, or"):
        make_image_processor(8, backend="torchvision")


def test_an_unknown_backend():
    with pytest.raises(ValueError, match=r"`backend='cv2'` was given. The backends are 'pil' and 'torchvision'"):
        make_image_processor(8, backend="cv2")
    with pytest.raises(
        ValueError, match=r"`resample='lanczos'` was given with `backend='torchvision'`, which resizes"
    ):
        make_image_processor(8, resample="lanczos", backend="torchvision")


def test_its_defaults_are_those_of_dinos_towers():
    values = PixelTable(make_image_processor(2))(Image.new("RGB", (2, 2), (255, 0, 0)))
    np.testing.assert_allclose(values[:, 0, 0], [(1 - 0.485) / 0.229, -0.456 / 0.224, -0.406 / 0.225], rtol=1e-6)


@pytest.mark.slow
def test_torchvision_is_not_needed():
    program = (
        "import sys; sys.modules['torchvision'] = None\n"
        "from PIL import Image\n"
        "from hf_curriculum.data.processors import PixelTable, make_image_processor\n"
        "print(tuple(PixelTable(make_image_processor(8))(Image.new('RGB', (4, 4))).shape))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "(3, 8, 8)"


def test_an_unknown_filter():
    with pytest.raises(ValueError, match=r"`resample='cubic'` was given\. Pillow's filters are \['nearest'"):
        make_image_processor(8, resample="cubic")


@pytest.mark.parametrize("size", [0, (8, -1)])
def test_an_impossible_size(size):
    with pytest.raises(ValueError, match="must be at least 1"):
        make_image_processor(size)


class TestCaptionProcessor:
    @pytest.mark.parametrize("images", [None, make_image_processor(8)])
    def test_it_saves_and_loads_what_it_has(self, images, tmp_path):
        processor = CaptionProcessor(images, train_wordpiece(["a dog runs"] * 2, 60))
        processor.save_pretrained(tmp_path)
        assert (tmp_path / "preprocessor_config.json").exists() is (images is not None)
        for found in (CaptionProcessor.from_pretrained(tmp_path), CaptionProcessor.from_pretrained(str(tmp_path))):
            assert found.tokenizer.get_vocab() == processor.tokenizer.get_vocab()
            assert type(found.image_processor) is type(images)
            assert found(text="a dog")["input_ids"] == processor.tokenizer("a dog")["input_ids"]
        assert "CaptionProcessor" in repr(processor)

    def test_images_need_an_image_processor(self):
        words = train_wordpiece(["a dog runs"] * 2, 60)
        with pytest.raises(ValueError, match=r"has a tokenizer alone.*trained on stored regions"):
            CaptionProcessor(None, words)(images=[noise(9, 9)])
        found = CaptionProcessor(make_image_processor(8), words)(images=[noise(9, 9)], text="a dog")
        assert {"pixel_values", "input_ids"} <= set(found)

    def test_it_pushes_under_the_folder_s_name(self, tmp_path, monkeypatch):
        pushed = []
        processor = CaptionProcessor(None, train_wordpiece(["a dog runs"] * 2, 60))
        monkeypatch.setattr(processor, "push_to_hub", lambda *args, **kwargs: pushed.append((args, kwargs)))
        processor.save_pretrained(tmp_path / "model", push_to_hub=True, private=True)
        assert pushed == [(("model",), {"private": True})]


def test_all_that_a_processor_is_given():
    made = make_image_processor((1, 2), (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), resample="lanczos")
    assert (dict(made.size), list(made.image_mean), list(made.image_std)) == (
        {"height": 1, "width": 2},
        [0.1, 0.2, 0.3],
        [0.4, 0.5, 0.6],
    )
    assert (made.resample, make_image_processor(1).resample) == (Image.Resampling.LANCZOS, Image.Resampling.BICUBIC)
