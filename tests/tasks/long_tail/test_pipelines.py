"""Pipelines of `diffusers` from tiny random configurations, with LoRA, through the same code as any other."""

from __future__ import annotations

import logging
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from spectrum_data import labelled_scenes, tiny_pipeline

from hf_curriculum.config import digest
from hf_curriculum.provenance import column_provenance
from hf_curriculum.tasks.long_tail import generate_spectrum
from hf_curriculum.tasks.long_tail.generation import pipelines
from hf_curriculum.tasks.long_tail.generation.pipelines import ImageToImage
from hf_curriculum.tasks.long_tail.generation.pixel_diffusion import SCENES_DIFFUSION_FOLDER

SETTLED = {"clip_sample": False, "steps_offset": 1}  # as the pipelines ask for
CLIP = SCENES_DIFFUSION_FOLDER.parent / "scenes_clip"


def parts(width=16, blocks=1, **unet):
    """U-Net, VAE and scheduler of a few thousand weights."""
    from diffusers import AutoencoderKL, DDIMScheduler, UNet2DConditionModel

    torch.manual_seed(0)
    config = {"block_out_channels": (8, 16), "layers_per_block": 1, "norm_num_groups": 4, "sample_size": 8}
    kinds = {"down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D")}
    kinds["up_block_types"] = ("CrossAttnUpBlock2D", "UpBlock2D")
    model = UNet2DConditionModel(**config, **kinds, cross_attention_dim=width, attention_head_dim=2, **unet)
    vae = AutoencoderKL(
        block_out_channels=(4, 8),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4,
        norm_num_groups=4,
        sample_size=16,
    )
    scheduler = DDIMScheduler(beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012, **SETTLED)
    return {"unet": model.eval(), "vae": vae.eval(), "scheduler": scheduler}


def text_model(projected=False):
    from transformers import AutoTokenizer, CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    torch.manual_seed(1)
    tokenizer = AutoTokenizer.from_pretrained(CLIP)
    tokenizer.model_max_length = 16
    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=16,
        projection_dim=32,
        eos_token_id=3,
    )
    return (CLIPTextModelWithProjection if projected else CLIPTextModel)(config).eval(), tokenizer


def stable_diffusion():
    from diffusers import StableDiffusionImg2ImgPipeline

    encoder, tokenizer = text_model()
    rest = {"safety_checker": None, "feature_extractor": None, "requires_safety_checker": False}
    return StableDiffusionImg2ImgPipeline(**parts(), text_encoder=encoder, tokenizer=tokenizer, **rest)


def sdxl(refiner):
    from diffusers import StableDiffusionXLImg2ImgPipeline

    second, tokenizer = text_model(projected=True)
    first, same = (None, None) if refiner else text_model()
    added = {"addition_embed_type": "text_time", "addition_time_embed_dim": 8}
    added |= {"projection_class_embeddings_input_dim": 32 + 8 * (5 if refiner else 6)}
    width = 16 if refiner else 32
    return StableDiffusionXLImg2ImgPipeline(
        **parts(width, **added),
        text_encoder=first,
        tokenizer=same,
        text_encoder_2=second,
        tokenizer_2=tokenizer,
        requires_aesthetics_score=refiner,
        force_zeros_for_empty_prompt=not refiner,
    )


MADE = {"sd": stable_diffusion, "sdxl": lambda: sdxl(False), "refiner": lambda: sdxl(True)}


@pytest.fixture(scope="module")
def data():
    return labelled_scenes(4, 2)


def draw(data, pipeline, folder, **options):
    given = {"prompts": "a photo of {label}", "levels": (0.1, 0.5), "seeds": 3, "steps": 4, **options}
    return generate_spectrum(data, pipeline, folder=folder, **given)


def apart(one, other):
    pairs = zip(one.sort("image_id")["image"][:], other.sort("image_id")["image"][:], strict=True)
    return max(int(np.abs(np.asarray(a).astype(int) - np.asarray(b)).max()) for a, b in pairs)


@pytest.mark.slow
@pytest.mark.parametrize("name", MADE)
def test_real_pipelines(name, data, tmp_path):
    """Batched as alone, by name as the object, with LoRA another image."""
    pipeline = MADE[name]()
    pipeline.save_pretrained(tmp_path / "model")
    batched = draw(data, pipeline, tmp_path / "16")
    assert len(batched) == 2 * 2 * 3
    assert apart(batched, draw(data, MADE[name](), tmp_path / "1", batch_size=1)) <= 1
    named = draw(data, tmp_path / "model", tmp_path / "named")
    assert apart(batched, named) == 0
    facts = column_provenance(named, "guidance")
    assert facts.arguments["pipeline"] == type(pipeline).__name__
    assert facts.model == "model"
    lora = with_lora(pipeline, tmp_path / "lora")
    tuned = draw(data, tmp_path / "model", tmp_path / "tuned", lora=lora)
    assert apart(batched, tuned) > 1
    made = column_provenance(tuned, "guidance")
    assert (made.arguments["lora"], "peft" in made.versions) == ("lora", True)


def with_lora(pipeline, folder):
    """A folder of LoRA weights that change what the pipeline draws."""
    from peft import LoraConfig
    from peft.utils import get_peft_model_state_dict

    pipeline.unet.add_adapter(LoraConfig(r=2, target_modules=["to_q", "to_v"], init_lora_weights="gaussian"))
    with torch.no_grad():
        for weight_name, weight in pipeline.unet.named_parameters():
            if "lora_B" in weight_name:
                weight.normal_(0, 2)
    state = get_peft_model_state_dict(pipeline.unet)
    type(pipeline).save_lora_weights(folder, unet_lora_layers=state)
    return folder


def test_from_text_alone(data, tmp_path):
    made = draw(data, stable_diffusion(), tmp_path, levels=(0, 0.5), from_text=True)
    assert [image.size for image in made["image"]] == [(16, 16)] * 12
    with pytest.raises(ValueError, match=r"a refiner .* does not"):
        ImageToImage(sdxl(True), from_text=True)

    class Alone:
        config = MappingProxyType({})

        def __call__(self, prompt, image, strength=0.5, num_inference_steps=5, guidance_scale=1.0, generator=None): ...

    with pytest.raises(ValueError, match="knows none for Alone"):
        ImageToImage(Alone(), from_text=True)


def test_a_pipeline_without_strength():
    from diffusers import DDPMPipeline

    with pytest.raises(ValueError, match="DDPMPipeline takes no `prompt`, `image`, `strength`"):
        ImageToImage(DDPMPipeline(parts()["unet"], parts()["scheduler"]))


def test_a_pipeline_that_returns_something_else(caplog):
    class Odd:
        returned = ()

        def __call__(self, prompt, image, strength=0.5, num_inference_steps=5, guidance_scale=1.0, generator=None):
            return type("Output", (), {"images": self.returned})

    odd, source = Odd(), Image.new("RGB", (8, 8))
    with pytest.raises(ValueError, match="Odd returned 0 images for 1 prompts"):
        ImageToImage(odd)(["a"], [source], (8, 8), 0.5, [1])
    odd.returned = (source, Image.new("RGB", (8, 8), (0, 0, 1)))
    drawer = ImageToImage(odd)
    for _ in range(2):
        assert len(drawer(["a", "b"], [source] * 2, (8, 8), 0.5, [1, 2])) == 2
    assert drawer.black == 2
    (record,) = caplog.records
    assert record.getMessage().startswith("Of a batch of Odd 1 images are black all over")
    odd.returned = (Image.new("RGB", (4, 4)),)
    with pytest.raises(ValueError, match=r"Odd returned an image of \(4, 4\) pixels"):
        ImageToImage(odd)(["a"], [source], (8, 8), 0.5, [1])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"dtype": "int8"}, ValueError, "`dtype` is 'int8'"),
        ({"revision": "v1"}, ValueError, "`revision='v1'` was given with a pipeline object"),
        ({"dtype": "float16"}, ValueError, "`dtype='float16'` was given with a pipeline object"),
        ({"lora": "/nowhere"}, ValueError, "PixelDiffusionPipeline cannot load LoRA weights"),
        ({"arguments": {"strength": 0.5}}, ValueError, "`strength` was given among the pipeline's arguments"),
        ({"arguments": {"magic": 1}}, ValueError, "`magic` was given among the pipeline's arguments"),
    ],
)
def test_options_of_an_object(options, error, message):
    with pytest.raises(error, match=message):
        ImageToImage(tiny_pipeline(), **options)


def test_names_that_are_nothing(tmp_path):
    with pytest.raises(FileNotFoundError, match="found no image-to-image pipeline '/nowhere'"):
        ImageToImage("/nowhere")
    with pytest.raises(FileNotFoundError, match=r"There is no file .*lora\.safetensors"):
        ImageToImage(stable_diffusion(), lora=tmp_path / "lora.safetensors")
    with pytest.raises(FileNotFoundError, match="cannot load the LoRA weights"):
        ImageToImage(stable_diffusion(), lora=tmp_path / "lora")
    with pytest.raises(ValueError, match="`revision='v1'` was given for scenes_diffusion"):
        ImageToImage("scenes_diffusion", revision="v1")


def test_images_of_the_safety_checker_are_counted(data, tmp_path, caplog, monkeypatch):
    pipeline = tiny_pipeline()
    inner = type(pipeline).__call__

    def checked(self, prompt, image, strength, num_inference_steps, guidance_scale, generator):
        made = inner(self, prompt, image, strength, num_inference_steps, guidance_scale, generator=generator)
        found = {"images": made.images, "nsfw_content_detected": [True] + [False] * (len(prompt) - 1)}
        return type("Output", (), found)

    monkeypatch.setattr(type(pipeline), "__call__", checked)
    with caplog.at_level(logging.WARNING):
        draw(data, pipeline, tmp_path, guidance_scale=2.0)
    assert "2 images were blacked out by the pipeline's safety checker" in caplog.text


class Stand:
    """In place of a pipeline: what it was given; black images, unless it is told what to return."""

    def __init__(self):
        self.calls, self.bars, self.moved, self.loras, self.returned, self.flags = [], [], [], [], None, None

    def __call__(self, prompt=None, image=None, strength=0.8, num_inference_steps=5, guidance_scale=1.5,
                 generator=None, eta=0, width=0, height=0):  # fmt: skip
        seeds = [(one.initial_seed(), one.device.type) for one in generator]
        self.calls.append((prompt, image, strength, num_inference_steps, guidance_scale, seeds, eta, width, height))
        made = self.returned or [Image.new("RGB", (8, 4))] * len(prompt)
        return SimpleNamespace(images=made, nsfw_content_detected=self.flags)

    def set_progress_bar_config(self, **options):
        self.bars.append(options)

    def to(self, device):
        self.moved.append(device)

    def load_lora_weights(self, lora):
        self.loras.append(lora)
        if lora == "broken":
            raise ImportError("peft")


def test_a_named_pipeline_is_loaded_moved_and_called_with_everything(monkeypatch, tmp_path):
    pipe, text, loaded = Stand(), Stand(), []
    automatic = SimpleNamespace(from_pretrained=lambda *given, **options: loaded.append((given, options)) or pipe)
    monkeypatch.setattr(pipelines, "import_diffusers", lambda: SimpleNamespace(AutoPipelineForImage2Image=automatic))
    monkeypatch.setattr(pipelines, "_text_to_image", lambda given: text if given is pipe else None)
    monkeypatch.setattr(pipelines, "_device", lambda: "here")
    monkeypatch.setattr(
        "huggingface_hub.try_to_load_from_cache",
        lambda *given, **options: f"/c/abc/{given[1]}" if options == {"revision": "v1"} else None,
    )
    drawer = ImageToImage("me/model", revision="v1", lora="l", from_text=True, arguments={"eta": 1})
    assert loaded == [(("me/model",), {"revision": "v1", "torch_dtype": torch.float32})]
    assert (pipe.moved, pipe.loras, pipe.bars, text.bars) == (
        ["here"],
        ["l"],
        [{"disable": True}],
        [{"disable": True}],
    )
    assert (drawer.revision, drawer.steps, drawer.scale, drawer.dtype) == ("abc", 5, 1.5, "float32")
    source = Image.new("RGB", (8, 4))
    drawer(("a", "b"), (source, source), (8, 4), 0.5, (1, 2))
    drawer(["c"], None, (8, 4), 1.0, [3])
    assert pipe.calls == [(["a", "b"], [source] * 2, 0.5, 5, 1.5, [(1, "cpu"), (2, "cpu")], 1, 0, 0)]
    assert text.calls == [(["c"], None, 0.8, 5, 1.5, [(3, "cpu")], 1, 8, 4)]
    other = ImageToImage("me/model", dtype="bfloat16", steps=3, guidance_scale=0.0)
    assert loaded[1] == (("me/model",), {"revision": None, "torch_dtype": torch.bfloat16})
    assert (other.revision, other.steps, other.scale, other.dtype) == (None, 3, 0.0, "bfloat16")
    assert ImageToImage(tmp_path).revision is None
    with pytest.raises(ValueError, match="which is no repository of the Hub"):
        ImageToImage(tmp_path, revision="v1")
    assert ImageToImage(pipe).dtype is None
    assert pipe.moved == ["here"] * 3
    with pytest.raises(ImportError, match="LoRA weights need `peft`"):
        ImageToImage(pipe, lora="broken")
    (tmp_path / "l.safetensors").write_bytes(b"")
    assert ImageToImage(pipe, lora=tmp_path / "l.safetensors").describe()["lora"] == "l.safetensors"


def test_sides_are_multiples_of_what_the_pipeline_says():
    drawer = ImageToImage(Stand())
    assert drawer.factor == 1
    for said, factor in ((None, 1), (0, 1), (8, 8)):
        drawer.pipe.vae_scale_factor = said
        assert drawer.factor == factor


def test_black_images_are_told_once_and_flagged_ones_are_not_counted_with_them(caplog):
    pipe, seen = Stand(), []
    drawer = ImageToImage(pipe)
    black, other = Image.new("RGB", (8, 4)), Image.new("RGB", (8, 4), "red")
    for returned, flags in (
        *(([other, black], [False, True]), ([other, other], [True, True]), ([other, other], None)),
        *(([black, black], [True, False]), ([black, black], None)),
    ):
        pipe.returned, pipe.flags = returned, flags
        drawer(["a", "b"], [black] * 2, (8, 4), 0.5, [1, 2])
        seen.append((drawer.flagged, drawer.black, len(caplog.records)))
    assert seen == [(1, 0, 0), (3, 0, 0), (3, 0, 0), (4, 1, 1), (4, 3, 1)]
    assert "Of a batch of Stand 1 images are black all over" in caplog.text


def test_what_decides_the_images(tmp_path):
    pipe = Stand()
    drawer = ImageToImage(pipe, arguments={"eta": {1}})
    facts = {"pipeline": "Stand", "lora": None, "steps": 5, "guidance_scale": 1.5, "dtype": None}
    none = {"scheduler": "NoneType", "scheduler_config": digest("{}"), "weights": digest()}
    assert drawer.describe() == {**facts, **none, "arguments": {"eta": "{1}"}}
    pipe.scheduler = SimpleNamespace(config={"b": Path("x"), "a": 1})
    pipe.components = {"unet": torch.nn.Linear(40, 2, bias=False), "tokenizer": "words"}
    weights = [float(one) for one in pipe.components["unet"].weight.detach().reshape(-1)]
    ends = f"unet weight (2, 40) {weights[:32] + weights[-32:]}"
    drawer = ImageToImage(pipe, lora="name", arguments={"eta": (1,)})
    assert drawer.describe() == {
        **facts,
        "lora": "name",
        "scheduler": "SimpleNamespace",
        "scheduler_config": digest('{"a": 1, "b": "x"}'),
        "weights": digest(ends),
        "arguments": {"eta": [1]},
    }
    assert list(drawer.versions()) == ["torch", "diffusers", "transformers", "pillow", "peft"]
    assert list(ImageToImage(pipe).versions()) == ["torch", "diffusers", "transformers", "pillow"]
    assert pipelines._version("no-such-package") is None


@pytest.mark.parametrize(
    ("strange", "size", "said"),
    [
        ((2, 2), (4, 4), None),
        ((3, 2), (4, 4), "the prompts have words that none of its captions has"),
        ((2, 3), (4, 4), "the images look unlike its own"),
        ((2, 2), (4, 5), "it has seen images of 4 pixels a side only"),
        (
            (4, 4),
            (5, 4),
            "the prompts have words that none of its captions has and the images look unlike its own and "
            "it has seen images of 4 pixels a side only",
        ),
    ],
)
def test_the_shipped_pipeline_says_what_it_does_not_know(strange, size, said, monkeypatch, caplog):
    words, pictures = strange
    seen = []

    class Check:
        def __init__(self, known):
            assert known == "facts"

        def count_captions(self, prompts):
            return words

        def count_images(self, pixels):
            seen.append(pixels)
            return int(len(seen) <= pictures)

    monkeypatch.setattr(pipelines, "OutOfDistributionCheck", Check)
    monkeypatch.setattr(pipelines, "read_json", lambda *given: {"knows": "facts", "image_size": 4})
    drawer = ImageToImage(Stand())
    images = [Image.new("RGB", size, (0, 255, 51))] * 4
    drawer.validate_distribution(["a"] * 4, images)
    assert seen == []
    drawer.name = "scenes_diffusion"
    drawer.validate_distribution(["a"] * 4, images)
    wanted = torch.tensor([-1.0, 1.0, -0.6])[None, :, None, None].expand(1, 3, size[1], size[0])
    torch.testing.assert_close(seen[0], wanted)
    assert [record.args[0] for record in caplog.records] == ([] if said is None else [said])


def test_the_device_is_that_of_the_process(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for rank, device in ((None, 0), ("1", 1), ("3", 1)):
        monkeypatch.delenv("LOCAL_RANK", raising=False) if rank is None else monkeypatch.setenv("LOCAL_RANK", rank)
        assert pipelines._device() == torch.device("cuda", device)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for there, device in ((True, "mps"), (False, "cpu")):
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda there=there: there)
        assert pipelines._device() == torch.device(device)
