"""Image-to-image pipelines of `diffusers`, and the package's own: loaded, checked, described and called."""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from hf_curriculum.config import digest
from hf_curriculum.files import read_json
from hf_curriculum.parts import launched_here
from hf_curriculum.scorers.alignment.clip import OutOfDistributionCheck
from hf_curriculum.scorers.pretrained import folder_digest
from hf_curriculum.tasks.long_tail.generation.pixel_diffusion import (
    SCENES_DIFFUSION,
    SCENES_DIFFUSION_FOLDER,
    PixelDiffusionPipeline,
    import_diffusers,
    is_pixel_pipeline,
)

logger: logging.Logger = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_NEEDED = ("prompt", "image", "strength", "num_inference_steps", "guidance_scale", "generator")
_SAMPLED = 32  # numbers at either end of each weight that identify it


class ImageToImage:
    """An image-to-image pipeline, ready to be called with batches of one level and one size.

    Args:
        pipeline: "scenes_diffusion" (the shipped one), a folder or a name of the Hub, or a pipeline object, which
            stays on its device.
        revision: of a name of the Hub.
        lora: a file, folder or name of LoRA weights, loaded into the pipeline.
        dtype: of weights and activations of a named pipeline: "float32", "float16" or "bfloat16".
        steps: denoising steps of an image from noise alone; None: the pipeline's own default.
        guidance_scale: of the text; None: the pipeline's own default.
        from_text: a second pipeline of the same weights draws from the prompt alone.
        arguments: further arguments of each call, such as `{"negative_prompt": "blurry"}`.
    """

    def __init__(
        self,
        pipeline: Any,
        *,
        revision: str | None = None,
        lora: str | Path | None = None,
        dtype: str | None = None,
        steps: int | None = None,
        guidance_scale: float | None = None,
        from_text: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        named = isinstance(pipeline, (str, Path))
        self.name: str = str(pipeline) if named else type(pipeline).__name__
        _validate_options(self.name, named, revision, dtype)
        self.dtype = dtype or ("float32" if named else None)
        self.pipe: Any = _load(self.name, revision, self.dtype) if named else pipeline
        self.revision = _resolved(self.name, revision) if named else None
        parameters = _validate_call(self.pipe, arguments or {})
        self.lora = None if lora is None else str(lora)
        if self.lora is not None:
            _load_lora(self.pipe, self.lora)
        if named:
            self.pipe.to(_device())
        self.steps: int = steps if steps is not None else parameters["num_inference_steps"].default
        self.scale: float = guidance_scale if guidance_scale is not None else parameters["guidance_scale"].default
        self.arguments: dict[str, Any] = dict(arguments or {})
        self.text_pipe: Any = _text_to_image(self.pipe) if from_text else None
        self.flagged = self.black = 0
        self._hide_bars()

    def _hide_bars(self) -> None:
        for pipe in (self.pipe, self.text_pipe):
            if hasattr(pipe, "set_progress_bar_config"):
                pipe.set_progress_bar_config(disable=True)

    @property
    def factor(self) -> int:
        """Sides of images must be multiples of it: `diffusers` squeezes others without a word."""
        if isinstance(self.pipe, PixelDiffusionPipeline):
            return self.pipe.factor
        return int(getattr(self.pipe, "vae_scale_factor", 1) or 1)

    def __call__(
        self,
        prompts: Sequence[str],
        images: Sequence[Image.Image] | None,
        size: tuple[int, int],
        strength: float,
        seeds: Sequence[int],
    ) -> list[Image.Image]:
        """Draws one image per prompt, each with a CPU generator of its own, so that its noise is the same anywhere."""
        common = {
            "prompt": list(prompts),
            "num_inference_steps": self.steps,
            "guidance_scale": self.scale,
            "generator": [torch.Generator().manual_seed(seed) for seed in seeds],
            **self.arguments,
        }
        if images is None:
            made = self.text_pipe(width=size[0], height=size[1], **common)
        else:
            made = self.pipe(image=list(images), strength=strength, **common)
        flagged = sum(map(bool, getattr(made, "nsfw_content_detected", None) or []))
        self.flagged += flagged
        if len(made.images) != len(prompts):
            raise ValueError(
                f"{self.name} returned {len(made.images)} images for {len(prompts)} prompts, so whose is whose is not "
                "known. Leave arguments such as `num_images_per_prompt` out; give more `seeds` instead."
            )
        wrong = [image.size for image in made.images if image.size != size]
        if wrong:
            raise ValueError(
                f"{self.name} returned an image of {wrong[0]} pixels for one of {size}: it resizes on its own, and "
                "image and source would no longer belong together. Pass `resize=` with a size that it keeps."
            )
        drawn = [image.convert("RGB") for image in made.images]
        self._note_black(sum(image.getbbox() is None for image in drawn) - flagged)
        return drawn

    def _note_black(self, black: int) -> None:
        """Warns once of images without any light, which is how numbers that are not finite come out."""
        if black > 0 and not self.black:
            logger.warning(
                "Of a batch of %s %d images are black all over, as where half precision overflows. Look at them: if "
                'no source is black, draw with `dtype="bfloat16"` or "float32" in a new folder.',
                *(self.name, black),
            )
        self.black += max(black, 0)

    def describe(self) -> dict[str, Any]:
        """What decides the images, as JSON: of the plan's manifest and the provenance."""
        scheduler = getattr(self.pipe, "scheduler", None)
        config = dict(getattr(scheduler, "config", None) or {})
        return {
            "pipeline": type(self.pipe).__name__,
            "lora": None if self.lora is None else Path(self.lora).name if Path(self.lora).exists() else self.lora,
            "scheduler": type(scheduler).__name__,
            "scheduler_config": digest(json.dumps(config, sort_keys=True, default=str)),
            "weights": _weights_digest(self.pipe),
            "steps": self.steps,
            "guidance_scale": self.scale,
            "dtype": self.dtype,
            "arguments": {name: _as_json(value) for name, value in self.arguments.items()},
        }

    def versions(self) -> dict[str, str]:
        """Library → version, of those that decide the images."""
        names = ("torch", "diffusers", "transformers", "pillow", *(("peft",) if self.lora else ()))
        return {name: version for name in names if (version := _version(name)) is not None}

    def validate_distribution(self, prompts: Sequence[str], images: Sequence[Image.Image]) -> None:
        """Warns if the shipped pipeline is asked for what it was not trained on; any other is not judged."""
        if self.name != SCENES_DIFFUSION:
            return
        facts = read_json(SCENES_DIFFUSION_FOLDER / "training.json", "Install hf-curriculum again.")
        check, unlike = OutOfDistributionCheck(facts["knows"]), []
        if check.count_captions(prompts) > 0.5 * len(prompts):
            unlike.append("the prompts have words that none of its captions has")
        pixels = [torch.from_numpy(np.asarray(image, np.float32) / 127.5 - 1).permute(2, 0, 1) for image in images]
        if sum(check.count_images(each[None]) for each in pixels) > 0.5 * len(pixels):
            unlike.append("the images look unlike its own")
        if images and images[0].size != (facts["image_size"], facts["image_size"]):
            unlike.append(f"it has seen images of {facts['image_size']} pixels a side only")
        if unlike:
            logger.warning(
                "The diffusion model that ships with hf-curriculum was trained on single objects of the embedded "
                "scenes, and %s: what it draws means little here. Name a pipeline trained on such images, for example "
                '"stabilityai/stable-diffusion-xl-refiner-1.0" for photographs.',
                " and ".join(unlike),
            )


def _validate_options(name: str, named: bool, revision: str | None, dtype: str | None) -> None:
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"`dtype` is {dtype!r}. It is one of {', '.join(map(repr, DTYPES))}.")
    for option, value in (("revision", revision), ("dtype", dtype)):
        if value is not None and not named:
            raise ValueError(
                f"`{option}={value!r}` was given with a pipeline object, which is loaded already. Load it so, or give "
                "its name."
            )
    if revision is not None and (Path(name).exists() or name == SCENES_DIFFUSION):
        raise ValueError(
            f"`revision={revision!r}` was given for {name}, which is no repository of the Hub and has no revisions. "
            "Leave it out."
        )


def _load(name: str, revision: str | None, dtype: str) -> Any:
    """A pipeline by its name."""
    if is_pixel_pipeline(name):
        return PixelDiffusionPipeline.from_pretrained(name, torch_dtype=DTYPES[dtype])
    diffusers = import_diffusers()
    try:
        return diffusers.AutoPipelineForImage2Image.from_pretrained(name, revision=revision, torch_dtype=DTYPES[dtype])
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise FileNotFoundError(
            f"`diffusers` found no image-to-image pipeline {name!r} (revision {revision!r}): {reason[:300]} Check the "
            "name; on a machine without network, give a folder, or fetch it into the cache first "
            f"(`hf download {name}`)."
        ) from error


def _resolved(name: str, revision: str | None) -> str | None:
    """A folder's digest, or the commit that a name of the Hub is in the cache as."""
    if name == SCENES_DIFFUSION:
        return folder_digest(str(SCENES_DIFFUSION_FOLDER / "unet"))
    if Path(name).is_dir():
        return None  # the weights' digest is in the description
    from huggingface_hub import try_to_load_from_cache

    file = try_to_load_from_cache(name, "model_index.json", revision=revision)
    return Path(file).parent.name if isinstance(file, str) else revision


def _validate_call(pipe: Any, arguments: Mapping[str, Any]) -> Mapping[str, inspect.Parameter]:
    """The parameters of a call; a `ValueError` if one that is needed is missing, or one given is unknown or ours."""
    parameters = inspect.signature(type(pipe).__call__).parameters
    missing = [name for name in _NEEDED if name not in parameters]
    if missing:
        raise ValueError(
            f"{type(pipe).__name__} takes no {', '.join(f'`{name}`' for name in missing)}, so it cannot go from an "
            "image part of the way to a prompt. Name an image-to-image pipeline, such as "
            "StableDiffusionImg2ImgPipeline or StableDiffusionXLImg2ImgPipeline."
        )
    wrong = [name for name in arguments if name in (*_NEEDED, "output_type", "return_dict") or name not in parameters]
    if wrong:
        raise ValueError(
            f"`{wrong[0]}` was given among the pipeline's arguments, and {type(pipe).__name__} takes none there: "
            "what the plan decides has its own argument (steps, guidance_scale, prompts, levels, seeds). Leave it out."
        )
    return parameters


def _load_lora(pipe: Any, lora: str) -> None:
    if not hasattr(pipe, "load_lora_weights"):
        raise ValueError(
            f"{type(pipe).__name__} cannot load LoRA weights. Leave `lora` out, or name another pipeline."
        )
    path = Path(lora)
    if path.suffix == ".safetensors" and not path.is_file():
        raise FileNotFoundError(f"There is no file {lora} of LoRA weights. Name the .safetensors file or its folder.")
    try:
        pipe.load_lora_weights(lora)
    except ImportError as error:
        raise ImportError('LoRA weights need `peft`. Run `pip install "hf-curriculum[diffusion]"`.') from error
    except (OSError, ValueError) as error:
        raise FileNotFoundError(
            f"{type(pipe).__name__} cannot load the LoRA weights {lora!r}: {' '.join(str(error).split())[:300]} "
            "Images made without them would be of another model. Name weights that belong to this pipeline."
        ) from error


def _text_to_image(pipe: Any) -> Any:
    """The text-to-image pipeline of the same weights."""
    if isinstance(pipe, PixelDiffusionPipeline):
        return pipe
    if getattr(pipe.config, "requires_aesthetics_score", False):
        raise ValueError(
            f"`from_text` needs a pipeline that draws from noise alone, and a refiner ({type(pipe).__name__} with "
            "requires_aesthetics_score) does not. Name the base model, or leave `from_text` out: level 0 then begins "
            "at its source's last noise step."
        )
    try:
        return import_diffusers().AutoPipelineForText2Image.from_pipe(pipe)
    except ValueError as error:
        raise ValueError(
            f"`from_text` needs a text-to-image pipeline of the same weights, and `diffusers` knows none for "
            f"{type(pipe).__name__} ({' '.join(str(error).split())[:200]}). Leave it out."
        ) from error


def _weights_digest(pipe: Any) -> str:
    """Name, shape and some numbers of each weight: another training, or a LoRA, has another digest."""
    parts: list[str] = []
    for component, module in sorted(getattr(pipe, "components", {}).items()):
        if isinstance(module, torch.nn.Module):
            for name, weight in module.state_dict().items():
                flat = weight.detach().reshape(-1)
                ends = torch.cat([flat[:_SAMPLED], flat[-_SAMPLED:]]).double().cpu().tolist()
                parts.append(f"{component} {name} {tuple(weight.shape)} {ends}")
    return digest(*parts)


def _device() -> torch.device:
    """The GPU of this process, or the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", launched_here()[0] % torch.cuda.device_count())
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


@lru_cache
def _version(name: str) -> str | None:
    """Of a package, None if it is not installed; to look it up takes milliseconds."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _as_json(value: Any) -> Any:
    try:
        return json.loads(json.dumps(value))
    except TypeError:
        return repr(value)
