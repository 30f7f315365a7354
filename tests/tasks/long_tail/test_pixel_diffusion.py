"""The pipeline in pixel space: what it computes, how it is called and saved, and what it refuses."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import torch
from PIL import Image
from spectrum_data import tiny_pipeline

from hf_curriculum.tasks.long_tail import PixelDiffusionPipeline
from hf_curriculum.tasks.long_tail.generation.pixel_diffusion import is_pixel_pipeline


@pytest.fixture(scope="module")
def pipeline():
    return tiny_pipeline()


def source(side=16, colour="red"):
    return Image.new("RGB", (side, side), colour)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_the_steps_are_those_of_ddim_with_guidance(pipeline):
    """Beside the formulas of DDIM and v, written out; none of the scheduler's own steps is used."""
    levels = torch.cumprod(1 - pipeline.scheduler.betas.double(), 0)
    noise = torch.randn((1, 3, 16, 16), generator=seeded(3))
    clean = torch.full((1, 3, 16, 16), -1.0)
    clean[:, 0] = 1
    times = [599, 399, 199]  # 3 of 5 trailing steps at strength 0.6
    sample = levels[599].sqrt() * clean.double() + (1 - levels[599]).sqrt() * noise.double()
    condition = torch.cat([pipeline.encode_prompt(["a red ball"]), torch.zeros(1, 128)])
    for number, time in enumerate(times):
        twice = torch.cat([sample, sample]).float()
        with torch.no_grad():
            v = pipeline.unet(twice, time, encoder_hidden_states=None, class_labels=condition).sample.double()
        v = v[1:] + 3.0 * (v[:1] - v[1:])
        alpha, sigma = levels[time].sqrt(), (1 - levels[time]).sqrt()
        start = (alpha * sample - sigma * v).clamp(-1, 1)
        direction = alpha * v + sigma * sample  # of the prediction as it is, not of the clipped picture
        after = levels[times[number + 1]] if number < 2 else torch.tensor(1.0, dtype=torch.float64)
        sample = after.sqrt() * start + (1 - after).sqrt() * direction
    made = pipeline(
        "a red ball",
        image=source(),
        strength=0.6,
        num_inference_steps=5,
        guidance_scale=3.0,
        generator=seeded(3),
        output_type="np",
    ).images
    wanted = (sample.clamp(-1, 1) + 1).permute(0, 2, 3, 1).numpy() / 2
    np.testing.assert_allclose(made, wanted, atol=2e-3)


def test_conditions_have_the_length_of_the_square_root_and_none_is_zero(pipeline):
    vectors = pipeline.encode_prompt(["a red ball", "", "a large striped blue boat"])
    np.testing.assert_allclose(vectors.norm(dim=1), [128**0.5, 0, 128**0.5], rtol=1e-5)


def test_an_empty_prompt_is_not_guided(pipeline):
    options = {"image": source(), "strength": 0.5, "num_inference_steps": 4, "output_type": "np"}
    one = pipeline("", guidance_scale=1, generator=seeded(), **options).images
    five = pipeline("", guidance_scale=5, generator=seeded(), **options).images
    np.testing.assert_allclose(one, five, atol=1e-5)
    said = pipeline("a red ball", guidance_scale=5, generator=seeded(), **options).images
    assert np.abs(said - five).max() > 1e-3


def test_strength_is_how_much_of_the_source_is_lost(pipeline):
    near, far = (
        np.asarray(
            pipeline("a ball", image=source(), strength=s, num_inference_steps=10, generator=seeded()).images[0], float
        )
        for s in (0.1, 1.0)
    )
    red = np.asarray(source(), float)
    assert np.abs(near - red).mean() < np.abs(far - red).mean()


def test_without_a_picture_it_draws_from_noise(pipeline):
    made = pipeline("a ball", num_inference_steps=2, generator=seeded(), strength=1)
    assert made.images[0].size == (16, 16)
    assert pipeline("a ball", num_inference_steps=2, width=24, height=8, strength=1).images[0].size == (24, 8)
    (images,) = pipeline(["a ball"] * 2, num_inference_steps=2, strength=1, return_dict=False)
    assert len(images) == 2


def test_saved_and_loaded_it_draws_the_same(pipeline, tmp_path):
    pipeline.save_pretrained(tmp_path)
    loaded = PixelDiffusionPipeline.from_pretrained(tmp_path)
    options = {"image": source(), "strength": 0.5, "num_inference_steps": 4}
    one, two = (each("a ball", generator=seeded(), **options).images[0] for each in (pipeline, loaded))
    assert (np.asarray(one) == np.asarray(two)).all()
    half = PixelDiffusionPipeline.from_pretrained(tmp_path, torch_dtype=torch.bfloat16)
    assert half.unet.dtype == torch.bfloat16
    assert half("a ball", generator=seeded(), **options).images[0].size == (16, 16)


def test_what_is_written_of_a_pipeline(pipeline, tmp_path):
    pipeline.save_pretrained(tmp_path)
    written = (tmp_path / "pipeline.json").read_text()
    facts = {"pipeline": "PixelDiffusionPipeline", "scheduler": "DDIMScheduler", "text_model": "scenes_clip"}
    assert written == json.dumps(facts, indent=1) + "\n"
    assert [is_pixel_pipeline(each) for each in (tmp_path, "scenes_diffusion", tmp_path / "unet")] == [
        True,
        True,
        False,
    ]
    (tmp_path / "pipeline.json").write_text(written.replace("DDIMScheduler", "UNet2DModel"))
    with pytest.raises(ValueError, match="names the scheduler 'UNet2DModel', and `diffusers` has none of that name"):
        PixelDiffusionPipeline.from_pretrained(tmp_path)


def test_it_moves_as_a_whole_and_trains_no_text(pipeline):
    moved = copy.deepcopy(pipeline).to(torch.bfloat16)
    parts = moved.components
    assert list(parts) == ["unet", "scheduler", "text_encoder"]
    assert {weight.dtype for part in (moved.unet, moved.text_encoder) for weight in part.parameters()} == {
        torch.bfloat16
    }
    assert not any(weight.requires_grad for weight in moved.text_encoder.parameters())
    assert (pipeline.factor, copy.deepcopy(pipeline).to("cpu").factor) == (2, 2)
    long = pipeline.encode_prompt(["a large red ball " * 40, "a ball"])
    torch.testing.assert_close(long[1:], pipeline.encode_prompt(["a ball"]))
    assert long.isfinite().all()


def test_each_picture_has_its_generator_and_one_step_is_enough(pipeline, monkeypatch):
    options = {"strength": 0.05, "num_inference_steps": 20, "output_type": "np"}
    prompts, images = ["a ball", "a red boat"], [source(), source(colour="blue")]
    both = pipeline(prompts, image=tuple(images), generator=[seeded(1), seeded(2)], **options).images
    for row in range(2):
        alone = pipeline(prompts[row], image=images[row], generator=seeded(row + 1), **options).images[0]
        np.testing.assert_allclose(both[row], alone, atol=1e-5)
    bytes_of = pipeline(prompts, image=images, generator=[seeded(1), seeded(2)], **options | {"output_type": "pil"})
    for made, exact in zip(bytes_of.images, both, strict=True):
        assert np.array_equal(np.asarray(made), np.rint(exact * 255))
    seen, forward = [], pipeline.unet.forward

    def watched(sample, *given, **named):
        seen.append(len(sample))
        return forward(sample, *given, **named)

    monkeypatch.setattr(pipeline.unet, "forward", watched)
    for scale in (1, 2, 0):
        pipeline("a ball", image=source(), guidance_scale=scale, **options)
    assert seen == [1, 2, 2]  # without guidance once, not twice


def test_calls_that_cannot_be(pipeline, tmp_path):
    with pytest.raises(ValueError, match=r"strength=0\.04 of num_inference_steps=20 leaves no step"):
        pipeline("a ball", image=source(), strength=0.04)
    with pytest.raises(ValueError, match="1 pictures of 1 sizes came with 2 prompts"):
        pipeline(["a ball", "a boat"], image=source())
    with pytest.raises(ValueError, match="2 pictures of 2 sizes came with 2 prompts"):
        pipeline(["a ball", "a boat"], image=[source(), source(8)])
    with pytest.raises(ValueError, match="A picture is 15 × 15 pixels"):
        pipeline("a ball", image=source(15))
    with pytest.raises(ValueError, match="A picture is 16 × 15 pixels"):
        pipeline("a ball", image=Image.new("RGB", (16, 15)))
    with pytest.raises(ValueError, match="A picture is 15 × 16 pixels"):
        pipeline("a ball", width=15, strength=1)
    with pytest.raises(ValueError, match="1 generators came with 2 prompts"):
        pipeline(["a ball", "a boat"], image=[source()] * 2, generator=[seeded()])
    broken = copy.deepcopy(pipeline)
    broken.unet.conv_out.bias.data.fill_(float("nan"))
    with pytest.raises(ValueError, match="predicted numbers that are not finite, so the pictures would be black"):
        broken("a ball", image=source())
    with pytest.raises(FileNotFoundError, match=r"holds no pipeline\.json"):
        PixelDiffusionPipeline.from_pretrained(tmp_path)
    with pytest.raises(FileNotFoundError, match="There is no CLIP '/nowhere'"):
        PixelDiffusionPipeline(pipeline.unet, pipeline.scheduler, "/nowhere")
