"""The section of `training.py` for a GPU: bf16 steps at the paper's batch of 32, MFU, and the price of the whole run.

Steps are forward and backward under bf16 autocast, without dropout, as in `training.py`; stock and ours as they come,
and both under `torch.compile`. MFU is the share of the GPU's dense bf16 peak that the multiplications our model needs
account for: those of image rows that nothing reads, which stock computes too, are not counted for it either.

The projection trains the paper's model with dropout, Adam and bf16 by `CurriculumTrainer` from JPEG files, workers and
all, for some steps, and multiplies: BabyLM's curriculum run shows 15,054,492 captions, each with its image.
"""

from __future__ import annotations

import io
import tempfile
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from datasets import Dataset, Image
from torch import nn
from transformers import PreTrainedTokenizerBase, TrainerCallback, ViTConfig

from hf_curriculum import (
    CaptionCollator,
    CaptionGitForCausalLM,
    CurriculumTrainer,
    CurriculumTrainingArguments,
    Phases,
    make_image_processor,
    make_scenes,
    train_wordpiece,
)
from hf_curriculum.models.git.build import git_from_config, git_from_stock, paper_git_config

if TYPE_CHECKING:
    from training import Size

BATCH, CAPTIONS, TOKENS = 32, 5, 20
FULL_RUN = 15_054_492  # Saha et al. 2024 (BabyLM): two epochs of each of four growing pools
PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12, "RTX 4090": 165e12}
"""Dense bf16 multiplications and additions per second, from the makers' data sheets."""
LOSS_TOLERANCE = 0.05


def needed_flops(size: Size, images: int, texts: int) -> float:
    """Multiplications and additions that forward and backward need, backward counted as twice the forward."""
    width, tokens = size.width, (size.pixels // 16) ** 2 + 1
    layer = 24 * width**2  # per row: query, key, value, output, and the feed-forward part of four times the width
    among_images = tokens * layer + 4 * tokens**2 * width
    of_text = TOKENS * layer + 4 * TOKENS * (tokens + TOKENS) * width
    # Patches of 16 × 16 × 3, the tower, the projection; in the decoder's last layer images give keys and values alone.
    per_image = 2 * tokens * 768 * width + size.layers * among_images + 2 * tokens * width**2
    per_image += (size.layers - 1) * among_images + 4 * tokens * width**2
    per_text = size.layers * of_text + 2 * TOKENS * width * size.vocabulary
    return 3.0 * (images * per_image + texts * per_text)


def seconds_per_step(
    model: nn.Module, inputs: Mapping[str, torch.Tensor], repetitions: int, device: torch.device
) -> tuple[float, float]:
    """The best time of a forward and backward after three to warm up, and the loss."""
    taken = []
    for repetition in range(repetitions + 3):
        model.zero_grad(set_to_none=True)
        _wait(device)
        start = time.perf_counter()
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = model(**inputs).loss
        loss.backward()
        _wait(device)
        if repetition >= 3:
            taken.append(time.perf_counter() - start)
    model.zero_grad(set_to_none=True)
    return min(taken), loss.item()


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def peak_of(device: torch.device) -> float | None:
    """The device's peak, where its name is in `PEAKS`."""
    name = torch.cuda.get_device_name() if device.type == "cuda" else ""
    return next((peak for known, peak in PEAKS.items() if known in name), None)


def compare(size: Size, device: torch.device, repetitions: int) -> list[dict[str, object]]:
    """Rows of ours beside stock, one caption per image and five."""
    stock = size.stock().to(device)
    ours = git_from_stock(stock)
    compiles = device.type == "cuda"
    models = {"stock": stock, "ours": ours}
    if compiles:
        models |= {"stock, compiled": torch.compile(stock), "ours, compiled": torch.compile(ours)}
    rows = []
    for what, images, texts in (
        (f"one caption per image, batch {BATCH}", BATCH, BATCH),
        (f"five captions per image, packed, {BATCH} images", BATCH, CAPTIONS * BATCH),
    ):
        pixels = torch.randn(images, 3, size.pixels, size.pixels, device=device)
        index = torch.arange(texts, device=device) % images
        words = torch.randint(1, size.vocabulary, (texts, TOKENS), device=device)
        text = {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": words}
        packed = {**text, "pixel_values": pixels, **({} if texts == images else {"image_index": index})}
        apart = {**text, "pixel_values": pixels[index]}
        found = {
            name: seconds_per_step(model, packed if name.startswith("ours") else apart, repetitions, device)
            for name, model in models.items()
        }
        losses = [loss for _, loss in found.values()]
        if max(losses) - min(losses) > LOSS_TOLERANCE:
            raise ValueError(f"The losses {losses} of {list(found)} differ: the comparison means nothing.")
        pairs = (("ours", "stock"), ("ours, compiled", "stock"), ("ours, compiled", "stock, compiled"))
        for mine, against in pairs:
            if mine in found:
                asked = "≥ 2" if (mine, texts) == ("ours", images) else ""
                flops = needed_flops(size, images, texts)
                rows.append(_row(device, f"{what}: {mine}", texts, found[mine][0], against, found[against][0], flops))
                rows[-1]["asked"] = asked
    return rows


def _row(
    device: torch.device, what: str, texts: int, ours: float, against: str, theirs: float, flops: float
) -> dict[str, object]:
    peak = peak_of(device)
    share = "" if peak is None else f", MFU {flops / ours / peak:.1%}"
    return {
        "what": what,
        "ours": f"{texts / ours:,.0f} captions/s{share}",
        "against": f"{texts / theirs:,.0f} captions/s ({against})",
        "ratio": theirs / ours,
    }


class Clock(TrainerCallback):
    """Notes when each step ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Waits for the device, then reads the clock."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())


def image_files(rows: int) -> Dataset:
    """Captions with a JPEG of 256 × 256 each, the size that lists of links are mostly downloaded to."""
    drawn = make_scenes(200, image_size=256, validation=0, test=0)["train"]
    files = []
    for image in drawn["image"]:
        file = io.BytesIO()
        image.convert("RGB").save(file, "jpeg", quality=90)
        files.append({"bytes": file.getvalue(), "path": None})
    places = [row % len(files) for row in range(rows)]
    columns = {
        "image": [files[place] for place in places],
        "caption": [drawn["caption"][place] for place in places],
        "score": [float(row % 7) for row in range(rows)],
    }
    return Dataset.from_dict(columns).cast_column("image", Image())


def paper_model(size: Size, tokenizer: PreTrainedTokenizerBase) -> CaptionGitForCausalLM:
    """The paper's model in this size: tied, with DINO's tower, with dropout."""
    shape = {
        "hidden_size": size.width,
        "intermediate_size": 4 * size.width,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.width // 64,
    }
    vision = ViTConfig(**shape, image_size=size.pixels, patch_size=16)
    return git_from_config(paper_git_config(size.vocabulary, vision_config=vision, tokenizer=tokenizer, **shape))


def examples_per_second(size: Size, device: torch.device, workers: int, steps: int, warm: int = 10) -> float:
    """Of `CurriculumTrainer`, loading and optimizer included, after some steps to warm up."""
    data = image_files(BATCH * (warm + steps))
    tokenizer = train_wordpiece(data, 400)
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        args = CurriculumTrainingArguments(
            folder,
            curriculum=Phases(1, 1, easy="low"),
            score_column="score",
            per_device_train_batch_size=BATCH,
            bf16=device.type == "cuda",
            use_cpu=device.type == "cpu",
            dataloader_num_workers=workers,
            optim="adamw_torch_fused",
            max_grad_norm=0.0,
            lr_scheduler_type="constant",
            learning_rate=1e-5,
            logging_steps=50,
            logging_nan_inf_filter=False,  # these two wait for the GPU in every step
            accelerator_config={"non_blocking": True},
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = CurriculumTrainer(
            paper_model(size, tokenizer),
            args,
            data_collator=CaptionCollator(tokenizer, make_image_processor(size.pixels), max_length=50),
            train_dataset=data,
            callbacks=[clock],
        )
        trainer.train()
    return BATCH * (len(clock.ends) - warm) / (clock.ends[-1] - clock.ends[warm - 1])


def measure_gpu(
    size: Size, device: torch.device, workers: int, repetitions: int
) -> tuple[list[dict[str, object]], str]:
    """All rows, and what the paper's run would take."""
    rows = compare(size, device, repetitions)
    rate = examples_per_second(size, device, workers, steps=10 * repetitions)
    rows.append({"what": "training from files, loading included", "ours": f"{rate:,.0f} captions/s"})
    name = torch.cuda.get_device_name() if device.type == "cuda" else "this CPU"
    hours = FULL_RUN / rate / 3600
    note = (
        f"BabyLM's curriculum run, {FULL_RUN:,} captions, would take {hours:,.1f} hours on {name} with {workers} "
        f"workers (projected from {10 * repetitions} steps, not run)."
    )
    return rows, note
