"""Generation: `generate_spectrum` beside bare calls of the same pipeline, in one run.

    python recipes/benchmarks/generation.py                                  # the shipped pipeline, one CPU thread
    python recipes/benchmarks/generation.py --pipeline stable_diffusion      # a small Stable Diffusion, random weights
    python recipes/benchmarks/generation.py --pipeline sdxl --device cuda --images 64 --size 1024    # of SDXL's size
    python recipes/benchmarks/generation.py --quick                          # does it run

- The bare batched call: sources decoded beforehand, 16 images a call, nothing kept.
- One image at a time: the same, one image a call.
- Ours: from the data set to the finished, saved spectrum: reading, keying, PNG files, parts, the merged data set.

All draw the same images, which is asserted to one grey level on the CPU (float16 of a GPU rounds by the batch). Sides
take turns; seconds are of the processor (of the clock with `--device cuda`), the least of several repetitions.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from PIL import Image

from hf_curriculum import make_scenes
from hf_curriculum.tasks.long_tail import PixelDiffusionPipeline, generate_spectrum
from hf_curriculum.tasks.long_tail.generation.generate import noise_seed
from hf_curriculum.tasks.long_tail.generation.pixel_diffusion import SCENES_DIFFUSION_FOLDER

BATCH = 16
LEVEL = 0.5
CLIP = SCENES_DIFFUSION_FOLDER.parent / "scenes_clip"
ASKED = {"bare batched call": 0.95, "one image at a time": 1.5}


def random_pipeline(kind: str, device: str) -> Any:
    """Stable Diffusion's or SDXL's classes with random weights, small or of SDXL's own size."""
    from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionImg2ImgPipeline, UNet2DConditionModel
    from diffusers import StableDiffusionXLImg2ImgPipeline as XL
    from transformers import AutoTokenizer, CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    torch.manual_seed(0)
    dtype = torch.float16 if device == "cuda" else torch.float32
    large = kind == "sdxl"
    tokenizer = AutoTokenizer.from_pretrained(CLIP)
    tokenizer.model_max_length = 77
    ids = {"vocab_size": len(tokenizer), "eos_token_id": 3, "bos_token_id": 2, "pad_token_id": 0}
    down = ("DownBlock2D", *("CrossAttnDownBlock2D",) * 2)
    shapes: dict[str, Any] = {"sample_size": 128 if large else 64, "down_block_types": down}
    shapes |= {"up_block_types": (*("CrossAttnUpBlock2D",) * 2, "UpBlock2D")}
    if large:
        shapes |= {"block_out_channels": (320, 640, 1280), "transformer_layers_per_block": (1, 2, 10)}
        shapes |= {"cross_attention_dim": 2048, "attention_head_dim": (5, 10, 20), "use_linear_projection": True}
        shapes |= {"addition_embed_type": "text_time", "addition_time_embed_dim": 256}
        shapes |= {"projection_class_embeddings_input_dim": 1280 + 6 * 256}
    else:
        shapes |= {"block_out_channels": (32, 64, 64), "layers_per_block": 1, "norm_num_groups": 8}
        shapes |= {"cross_attention_dim": 64, "attention_head_dim": 4}
    widths = (128, 256, 512, 512) if large else (16, 32, 32, 32)
    vae = AutoencoderKL(
        block_out_channels=widths,
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        layers_per_block=2 if large else 1,
        norm_num_groups=32 if large else 8,
        latent_channels=4,
    )
    scheduler = DDIMScheduler(
        beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012, clip_sample=False, steps_offset=1
    )
    common = {"unet": UNet2DConditionModel(**shapes), "vae": vae, "scheduler": scheduler, "tokenizer": tokenizer}
    if large:
        first = CLIPTextModel(CLIPTextConfig(hidden_size=768, intermediate_size=3072, **ids))
        wide = {"hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32, "num_attention_heads": 20}
        second = CLIPTextModelWithProjection(CLIPTextConfig(projection_dim=1280, **wide, **ids))
        made = XL(**common, text_encoder=first, text_encoder_2=second, tokenizer_2=tokenizer)
    else:
        text = CLIPTextModel(CLIPTextConfig(hidden_size=64, intermediate_size=128, num_attention_heads=4, **ids))
        rest = {"safety_checker": None, "feature_extractor": None, "requires_safety_checker": False}
        made = StableDiffusionImg2ImgPipeline(**common, text_encoder=text, **rest)
    made = made.to(device, dtype)
    made.set_progress_bar_config(disable=True)
    return made


def sources(count: int, size: int) -> Dataset:
    """Whole scenes of one object, with its name."""
    data = make_scenes(count, 9, image_size=min(size, 256), captions_per_image=1, max_objects=1, validation=0, test=0)[
        "train"
    ]
    images = [image.resize((size, size)) for image in data["image"][:]]
    names = [f"a {objects[0]['name']}" for objects in data["objects"][:]]
    return Dataset.from_dict({"image": images, "image_id": data["image_id"][:], "name": names, "hard": [True] * count})


def bare(pipeline: Any, data: Dataset, seeds: int, steps: int, batch: int) -> Callable[[], list[np.ndarray]]:
    """Calls of the pipeline alone, in the order of the plan."""
    images, names, ids = data["image"][:], data["name"][:], data["image_id"][:]
    jobs = [(row, seed) for row in range(len(data)) for seed in range(seeds)]

    def run() -> list[np.ndarray]:
        made: list[Image.Image] = []
        for start in range(0, len(jobs), batch):
            part = jobs[start : start + batch]
            made += pipeline(
                prompt=[names[row] for row, _ in part],
                image=[images[row] for row, _ in part],
                strength=1 - LEVEL,
                num_inference_steps=steps,
                generator=[torch.Generator().manual_seed(noise_seed(ids[row], seed)) for row, seed in part],
            ).images
        return [np.asarray(image) for image in made]

    return run


def ours(pipeline: Any, data: Dataset, seeds: int, steps: int) -> Callable[[], list[np.ndarray]]:
    """The same images as a spectrum."""

    def run() -> list[np.ndarray]:
        with tempfile.TemporaryDirectory() as folder:
            options = {"prompts": "{name}", "levels": (LEVEL,), "seeds": seeds, "steps": steps, "batch_size": BATCH}
            made = generate_spectrum(data, pipeline, folder=folder, allow_all_hard=True, **options)
            return [np.asarray(image) for image in made["image"]]

    return run


def measure(sides: dict[str, Callable[[], list[np.ndarray]]], repeats: int, device: str) -> dict[str, float]:
    """Least seconds of each side, taking turns."""
    clock = time.perf_counter if device == "cuda" else time.process_time
    least, first = dict.fromkeys(sides, float("inf")), None
    for _ in range(repeats):
        for name, run in sides.items():
            begin = clock()
            made = run()
            least[name] = min(least[name], clock() - begin)
            first = made if first is None else first
            pairs = zip(first, made, strict=True)
            apart = max(int(np.abs(one.astype(int) - other).max()) for one, other in pairs)
            if apart > (1 if device == "cpu" else 255):
                raise ValueError(f"{name!r} draws other images, by {apart} grey levels: the times are of other work.")
    return least


def main() -> None:
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--pipeline", choices=("scenes_diffusion", "stable_diffusion", "sdxl"), default="scenes_diffusion"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--images", type=int, default=64, help="in all, two of each source")
    parser.add_argument("--size", type=int, default=None, help="pixels of a side")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a few images and steps, which say nothing about speed")
    parser.add_argument("--json", type=Path, help="write the rows to a file")
    options = parser.parse_args()
    if options.quick:
        options.images, options.steps, options.repeats = 4, 2, 1
    torch.set_num_threads(1)
    size = options.size or (32 if options.pipeline == "scenes_diffusion" else 64)
    if options.pipeline == "scenes_diffusion":
        pipeline = PixelDiffusionPipeline.from_pretrained("scenes_diffusion").to(options.device)
    else:
        pipeline = random_pipeline(options.pipeline, options.device)
    data = sources(-(-options.images // 2), size)
    sides = {
        "generate_spectrum": ours(pipeline, data, 2, options.steps),
        "bare batched call": bare(pipeline, data, 2, options.steps, BATCH),
        "one image at a time": bare(pipeline, data, 2, options.steps, 1),
    }
    seconds = measure(sides, options.repeats, options.device)
    rows = [
        {"beside": name, "ratio": seconds[name] / seconds["generate_spectrum"], "asked": asked}
        for name, asked in ASKED.items()
    ]
    facts = {"pipeline": options.pipeline, "device": options.device, "images": 2 * len(data), "size": size}
    facts |= {"steps": options.steps, "torch": torch.__version__, "python": platform.python_version()}
    each = {name: round(took / (2 * len(data)), 5) for name, took in seconds.items()}
    print(f"{facts}\nseconds an image: {each}\n\n| beside | rate of ours | asked |\n| --- | --- | --- |")
    for row in rows:
        print(f"| {row['beside']} | {row['ratio']:.2f} × | ≥ {row['asked']:g} |")
    if options.json is not None:
        content = {"conditions": facts, "seconds": each, "rows": rows}
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
