"""A small diffusion model in pixel space, and its image-to-image pipeline, called like those of `diffusers`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import PIL.Image
import torch
import torch.nn.functional as F

from hf_curriculum.files import complete_folder, read_json, refuse_link, resolved, write_atomically

SCENES_DIFFUSION = "scenes_diffusion"
"""The pipeline that ships with the package, trained on single objects of the embedded scenes, 32 pixels a side."""
SCENES_DIFFUSION_FOLDER: Path = Path(__file__).parents[3] / "models" / SCENES_DIFFUSION
_CLIP = "scenes_clip"
_FILE = "pipeline.json"


class PixelPipelineOutput(NamedTuple):
    """The images of one call, as `diffusers`' `ImagePipelineOutput`."""

    images: list[PIL.Image.Image] | np.ndarray


class PixelDiffusionPipeline:
    """Image-to-image and text-to-image diffusion in pixel space, conditioned on a CLIP's text vector.

    A U-Net predicts v of noisy images; DDIM without new noise removes the noise in `num_inference_steps · strength`
    steps. Guidance extrapolates between the text vectors, of length √D, and zeros for no text. An image of a batch
    depends on its own prompt, source and generator alone.

    Args:
        unet: a `diffusers.UNet2DConditionModel` with `class_embed_type="projection"` that reads three channels.
        scheduler: a scheduler of `diffusers` that predicts v, such as `DDIMScheduler`.
        text_model: the CLIP with the text tower: "scenes_clip" (the shipped one), or a folder or name of a CLIP of
            `transformers`.

    Shapes:
        images (B, 3, H, W) from -1 to 1, conditions (B, D).

    Raises:
        FileNotFoundError: there is no such CLIP.

    Source: Meng et al. 2022 (SDEdit), §3; Salimans & Ho 2022, §2.3 (v); Ho & Salimans 2021 (guidance).

    Example:
        >>> pipeline = PixelDiffusionPipeline.from_pretrained("scenes_diffusion")
        >>> source = PIL.Image.new("RGB", (32, 32), "white")
        >>> made = pipeline("a red ball", image=source, strength=0.5, generator=torch.Generator().manual_seed(0))
        >>> made.images[0].size
        (32, 32)
    """

    def __init__(self, unet: Any, scheduler: Any, text_model: str = _CLIP) -> None:
        self.unet = unet
        self.scheduler = scheduler
        self.text_model = text_model
        self.text_encoder, self.tokenizer = _load_text(text_model)

    @classmethod
    def from_pretrained(cls, folder: str | Path, torch_dtype: torch.dtype = torch.float32) -> PixelDiffusionPipeline:
        """Loads a pipeline that `save_pretrained` wrote; "scenes_diffusion" is the shipped one.

        Raises:
            FileNotFoundError: the folder holds none.
            ImportError: `diffusers` is not installed.
            ValueError: the folder's JSON is damaged, or names no scheduler of `diffusers`.
        """
        diffusers = import_diffusers()
        folder = SCENES_DIFFUSION_FOLDER if str(folder) == SCENES_DIFFUSION else Path(folder)
        if not is_pixel_pipeline(folder):
            raise FileNotFoundError(
                f"{folder} holds no {_FILE}, so there is no PixelDiffusionPipeline to load. Train one with "
                "`hf-curriculum recipe scenes_diffusion --output FOLDER`, or name `scenes_diffusion`, which ships."
            )
        facts = read_json(folder / _FILE, "Save the pipeline again.", ("scheduler", "text_model"))
        kind = getattr(diffusers, facts["scheduler"], None)
        if not (isinstance(kind, type) and issubclass(kind, diffusers.SchedulerMixin)):
            raise ValueError(
                f"{folder / _FILE} names the scheduler {facts['scheduler']!r}, and `diffusers` has none of that name. "
                "Save the pipeline again."
            )
        unet = diffusers.UNet2DConditionModel.from_pretrained(folder, subfolder="unet", torch_dtype=torch_dtype)
        scheduler = kind.from_pretrained(folder, subfolder="scheduler")
        return cls(unet.eval(), scheduler, facts["text_model"])

    def save_pretrained(self, folder: str | Path) -> None:
        """Saves U-Net and scheduler, and which CLIP reads the prompts."""
        folder = resolved(folder)
        for name, part in (("unet", self.unet), ("scheduler", self.scheduler)):
            refuse_link(folder / name)
            with complete_folder(folder / name) as unfinished:
                part.save_pretrained(unfinished)
        facts = {"pipeline": type(self).__name__, "scheduler": type(self.scheduler).__name__}
        facts["text_model"] = self.text_model
        write_atomically(folder / _FILE, json.dumps(facts, indent=1) + "\n")

    def to(self, *args: Any, **kwargs: Any) -> PixelDiffusionPipeline:
        """Moves the U-Net and the text tower to a device, a dtype or both, as `torch.nn.Module.to`."""
        self.unet.to(*args, **kwargs)
        self.text_encoder.to(*args, **kwargs)
        return self

    @property
    def device(self) -> torch.device:
        """Where the U-Net is."""
        return self.unet.device

    @property
    def components(self) -> dict[str, Any]:
        """The parts of the pipeline, as in `diffusers`."""
        return {"unet": self.unet, "scheduler": self.scheduler, "text_encoder": self.text_encoder}

    @property
    def factor(self) -> int:
        """Both sides of an image must be multiples of it."""
        return 2 ** (len(self.unet.config.block_out_channels) - 1)

    def set_progress_bar_config(self, **_: Any) -> None:
        """There is no progress bar; `diffusers`' pipelines have this method to hide theirs."""

    @torch.no_grad()
    def encode_prompt(self, prompts: Sequence[str]) -> torch.Tensor:
        """Conditions of prompts: vectors of length √D, zeros for an empty prompt. Shapes: returns float32 (B, D)."""
        limit = self.text_encoder.config.text_config.max_position_embeddings
        tokens = self.tokenizer(list(prompts), padding=True, truncation=True, max_length=limit, return_tensors="pt")
        tokens = {name: tokens[name].to(self.device) for name in ("input_ids", "attention_mask")}
        vectors = self.text_encoder.get_text_features(**tokens).pooler_output.float()  # (B, D)
        present = torch.tensor([bool(prompt.strip()) for prompt in prompts], device=self.device)
        return F.normalize(vectors, dim=-1) * vectors.shape[1] ** 0.5 * present[:, None]

    @torch.no_grad()
    def __call__(
        self,
        prompt: str | Sequence[str],
        image: PIL.Image.Image | Sequence[PIL.Image.Image] | None = None,
        strength: float = 0.8,
        num_inference_steps: int = 20,
        guidance_scale: float = 2.5,
        height: int | None = None,
        width: int | None = None,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        output_type: str = "pil",
        return_dict: bool = True,
    ) -> PixelPipelineOutput | tuple[Any]:
        """Draws one picture per prompt.

        Args:
            prompt: what to draw, one per picture.
            image: the pictures to begin with, all of one size; None begins with noise alone, at strength 1.
            strength: from 0 to 1: the share of the steps that are made, and how much noise is put on the picture.
            num_inference_steps: steps at strength 1.
            guidance_scale: how far to go from the unconditional prediction beyond the conditional one; 1 is none.
            height: of pictures made without `image`; by default as trained.
            width: likewise.
            generator: of the noise, one for all pictures or one for each.
            output_type: "pil", or "np" for float32 (B, H, W, 3) from 0 to 1.
            return_dict: an object with `images`; otherwise a tuple.

        Raises:
            ValueError: no step is left, pictures and prompts do not match, a side is no multiple of the U-Net's
                factor, or what it predicts is not finite.
        """
        prompts = [prompt] if isinstance(prompt, str) else list(prompt)
        steps = min(int(num_inference_steps * strength), num_inference_steps)
        if steps < 1:
            raise ValueError(
                f"strength={strength:g} of num_inference_steps={num_inference_steps} leaves no step, so the picture "
                "would come back as it is. Ask for more steps, or a larger strength."
            )
        pictures = self._read(image, len(prompts), (height, width))
        noise = _noise(pictures.shape, generator, len(prompts)).to(self.device)
        self.scheduler.set_timesteps(num_inference_steps, device=self.device)
        timesteps = self.scheduler.timesteps[num_inference_steps - steps :]
        sample = self.scheduler.add_noise(pictures, noise, timesteps[:1]) if image is not None else noise
        sample = self._denoise(sample, timesteps, self.encode_prompt(prompts), guidance_scale)
        if not torch.isfinite(sample).all():
            raise ValueError(
                "The U-Net predicted numbers that are not finite, so the pictures would be black: its weights are "
                "damaged or its training has diverged, or float16 is too narrow for it. Load it as float32, or train "
                "it again."
            )
        images = ((sample.clamp(-1, 1) + 1) / 2).permute(0, 2, 3, 1).cpu().numpy()  # (B, H, W, 3)
        if output_type == "pil":
            images = [PIL.Image.fromarray(np.rint(image * 255).astype(np.uint8)) for image in images]
        return PixelPipelineOutput(images) if return_dict else (images,)

    def _denoise(
        self, sample: torch.Tensor, timesteps: torch.Tensor, conditions: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Takes the noise away step by step; with guidance the U-Net sees each picture twice."""
        guided = scale != 1
        labels = torch.cat([conditions, torch.zeros_like(conditions)]) if guided else conditions
        dtype = self.unet.dtype
        for timestep in timesteps:
            seen = torch.cat([sample, sample]) if guided else sample  # (2B, 3, H, W)
            seen = self.scheduler.scale_model_input(seen, timestep).to(dtype)
            found = self.unet(seen, timestep, encoder_hidden_states=None, class_labels=labels.to(dtype)).sample.float()
            if guided:
                with_text, without = found.chunk(2)
                found = without + scale * (with_text - without)
            sample = self.scheduler.step(found, timestep, sample).prev_sample
        return sample

    def _read(self, image: Any, count: int, size: tuple[int | None, int | None]) -> torch.Tensor:
        """Pictures as float32 (B, 3, H, W) from -1 to 1; zeros where there are none."""
        if image is None:
            height, width = (side or self.unet.config.sample_size for side in size)
            self._validate_size(width, height)
            return torch.zeros(count, 3, height, width, device=self.device)
        images = list(image) if isinstance(image, (list, tuple)) else [image]
        sizes = {picture.size for picture in images}
        if len(images) != count or len(sizes) > 1:
            raise ValueError(
                f"{len(images)} pictures of {len(sizes)} sizes came with {count} prompts. One call draws one picture "
                "per prompt, all of one size. Call once for each size."
            )
        self._validate_size(*images[0].size)
        pixels = np.stack([np.asarray(picture.convert("RGB"), np.float32) for picture in images])  # (B, H, W, 3)
        return torch.from_numpy(pixels / 127.5 - 1).permute(0, 3, 1, 2).contiguous().to(self.device)

    def _validate_size(self, width: int, height: int) -> None:
        if width % self.factor or height % self.factor:
            raise ValueError(
                f"A picture is {width} × {height} pixels, and this U-Net halves its sides until they are a "
                f"{self.factor}th, so both must be multiples of {self.factor}. Resize it first."
            )


def is_pixel_pipeline(folder: str | Path) -> bool:
    """Whether a folder (or "scenes_diffusion") holds a `PixelDiffusionPipeline`."""
    return str(folder) == SCENES_DIFFUSION or (Path(folder) / _FILE).is_file()


def import_diffusers() -> Any:
    """`diffusers`, or an `ImportError` that names the extra."""
    try:
        import diffusers
    except ImportError as error:
        raise ImportError(
            "Images are generated with `diffusers`, which is not installed. Run "
            '`pip install "hf-curriculum[diffusion]"`.'
        ) from error
    return diffusers


def _load_text(name: str) -> tuple[Any, Any]:
    """A CLIP without its image tower, in float32, and its tokenizer."""
    from transformers import AutoTokenizer, CLIPModel

    source = SCENES_DIFFUSION_FOLDER.with_name(_CLIP) if name == _CLIP else name
    try:
        clip = CLIPModel.from_pretrained(source, dtype=torch.float32).eval().requires_grad_(False)
        tokenizer = AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError) as error:
        raise FileNotFoundError(
            f"There is no CLIP {name!r} ({' '.join(str(error).split())[:200]}). Its text tower reads the prompts, so "
            "nothing can be drawn without it. Name `scenes_clip`, a folder, or a model that is in the cache."
        ) from error
    clip.vision_model = clip.visual_projection = None
    return clip, tokenizer


def _noise(shape: torch.Size, generator: Any, count: int) -> torch.Tensor:
    """Gaussian noise (B, 3, H, W), each picture's own where there are as many generators."""
    if isinstance(generator, (list, tuple)):
        if len(generator) != count:
            raise ValueError(
                f"{len(generator)} generators came with {count} prompts: whose noise is whose is not known. Give one "
                "for each, or one for all."
            )
        return torch.cat([_noise(torch.Size([1, *shape[1:]]), one, 1) for one in generator])
    device = generator.device if generator is not None else "cpu"
    return torch.randn(shape, generator=generator, device=device)
