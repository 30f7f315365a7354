"""What the aligner's scores and contrastive training cost beside a loop over images and one over pairs, in one run.

    OMP_NUM_THREADS=1 python recipes/benchmarks/contrastive.py                     # 256 texts × 256 images: minutes
    python recipes/benchmarks/contrastive.py --batch 6 --width 48 --triplets 20000 --repetitions 1  # that it runs
    python recipes/benchmarks/contrastive.py --gpu                                  # milliseconds, memory, hours

Scored are the vectors of so many texts with as many images of 50 regions, all of the paper's width, 768, by one
Transformer layer with 2,048 inside; the loss is L_IR + L_TR. Sides have the same weights and take turns:

- a loop over images: `nn.MultiheadAttention` of all texts with one image's regions, image by image;
- ours, with what the scores were computed from kept, and computed once more on the way back in chunks of 16 texts;
- a loop over pairs: attention of one text with one image, each with its own projections; a part of the pairs is timed,
  and the time of all follows.

Losses and gradients are compared in the same run. The best time of each side counts, the thread's own, which a busy
machine does not lengthen. Memory is the growth of a process's resident set while it takes one step, forward and
backward, in a process of its own. Then the plan of the paper's 5.8 million triplets in 244 nodes, after five
refreshes, no image twice in a batch: bytes a triplet of all that it holds, and a step's indices through the sampler.

With `--gpu`: one optimizer step of the paper's training by `ContrastiveTrainer`, BERT-base, 256 pairs, 50 regions of
2,048 read from a region store, bf16, with and without chunks, and the hours of 500,000 of them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import nn
from transformers import BertConfig, TrainerCallback

from hf_curriculum import CurriculumSampler, CurriculumTrainingArguments, train_wordpiece
from hf_curriculum.data.image_inputs import RegionInputs
from hf_curriculum.data.regions.pack import pack_regions
from hf_curriculum.tasks.alignment import AlignerConfig, AlignerModel, ContrastiveCollator, ContrastiveTrainer
from hf_curriculum.tasks.alignment.losses import contrastive_loss
from hf_curriculum.tasks.alignment.model import EncodedRegions

# Beside this file, which may be run from anywhere.
sys.path.insert(0, str(Path(__file__).parent))
from sampler_cases import CASES, bound, first_step, held_bytes

REGIONS, CHUNK, PAIRS_TIMED = 50, 16, 512
PAPER_HOURS, PAPER_STEPS = 144, 500_000  # Srinivasan et al. 2023 (TOnICS) §4.2: six days of one V100
TOLERANCE = 1e-4
TRIPLETS, NODES, PLAN_STEPS = 5_800_000, 244, 2000  # App. A; steps that are timed
_WARM = 5
"""Steps before those that are timed."""


@dataclass(frozen=True)
class Task:
    """An aligner's layer, texts and images, encoded but for the layer's own projections."""

    model: AlignerModel
    attention: nn.MultiheadAttention
    texts: torch.Tensor
    regions: torch.Tensor
    mask: torch.Tensor

    @classmethod
    def make(cls, batch: int, width: int) -> Task:
        """Random ones, the same in every process."""
        torch.manual_seed(0)
        text = BertConfig(vocab_size=8, hidden_size=width, num_hidden_layers=1, num_attention_heads=12)
        model = AlignerModel(AlignerConfig(text, intermediate_size=2048 * width // 768, dropout=0.0))
        model.requires_grad_(False)
        model.layer.requires_grad_(True)
        attention = nn.MultiheadAttention(width, 12, batch_first=True)
        layer = model.layer
        with torch.no_grad():
            parts = (layer.query, layer.key, layer.value)
            attention.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
            attention.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
            attention.out_proj.load_state_dict(layer.output.state_dict())
        texts = nn.functional.layer_norm(torch.randn(batch, width), (width,)).requires_grad_()
        mask = torch.arange(REGIONS) < torch.randint(10, REGIONS + 1, (batch, 1))
        mask[0] = True
        return cls(model, attention, texts, torch.randn(batch, REGIONS, width).requires_grad_(), mask)

    def ours(self, chunk_size: int | None = None) -> torch.Tensor:
        """Scores, (texts, images)."""
        images = EncodedRegions(*self.model.layer.regions(self.regions), self.mask)
        return self.model.score(self.texts, images, chunk_size)

    def over_images(self) -> torch.Tensor:
        """The same, image by image."""
        return torch.stack([self._seen_by(self.texts, j) for j in range(len(self.regions))], dim=1)

    def over_pairs(self, pairs: int) -> torch.Tensor:
        """Scores of the first so many pairs, text by text and image by image, (pairs,)."""
        size = len(self.regions)
        return torch.cat([self._seen_by(self.texts[[n // size]], n % size) for n in range(pairs)])

    def _seen_by(self, texts: torch.Tensor, image: int) -> torch.Tensor:
        """Scores of texts with one image, (texts,)."""
        layer, regions = self.model.layer, self.regions[None, image]
        seen, _ = self.attention(
            texts[None], regions, regions, key_padding_mask=~self.mask[None, image], need_weights=False
        )
        seen = layer.attention_norm(texts + seen[0])
        seen = layer.output_norm(seen + layer.down(layer.up(seen).relu()))
        return (seen * texts).sum(-1)

    def gradients(self) -> list[torch.Tensor]:
        """Takes the gradients of inputs and of the feed-forward part out of them."""
        found = [self.texts, self.regions, self.model.layer.up.weight, self.model.layer.attention_norm.weight]
        grads = [part.grad for part in found]
        for part in (*found, *self.model.parameters(), *self.attention.parameters()):
            part.grad = None
        return grads


def steps(task: Task) -> dict[str, Callable[[], torch.Tensor]]:
    """Name of a side → its scores."""
    return {
        "a loop over images": task.over_images,
        "ours": task.ours,
        "ours, computed once more": lambda: task.ours(CHUNK),
    }


def timed(task: Task, repetitions: int) -> dict[str, dict[str, float]]:
    """Seconds of forward alone, and of forward and backward, of each side."""
    seconds: dict[str, dict[str, float]] = {}
    expected: tuple[float, list[torch.Tensor]] | None = None

    def note(name: str, kind: str, start: float) -> None:
        taken = time.thread_time() - start
        own = seconds.setdefault(name, {})
        own[kind] = min(taken, own.get(kind, taken))

    for repetition in range(repetitions):
        for name, scores in steps(task).items():
            with torch.no_grad():
                start = time.thread_time()
                scores()
                note(name, "forward", start)
            start = time.thread_time()
            loss = contrastive_loss(scores())
            loss.backward()
            note(name, "forward and backward", start)
            found = loss.item(), task.gradients()
            expected = expected or found
            if not repetition:
                compare(name, found, expected)
        pairs = min(PAIRS_TIMED, len(task.texts) ** 2)
        with torch.no_grad():
            start = time.thread_time()
            task.over_pairs(pairs)
            note("a loop over pairs", "forward", start)
    seconds["a loop over pairs"]["forward"] *= len(task.texts) ** 2 / pairs
    return seconds


def compare(name: str, found: tuple[float, list[torch.Tensor]], expected: tuple[float, list[torch.Tensor]]) -> None:
    """Raises a `ValueError` where losses or gradients differ."""
    for one, other in zip(found[1], expected[1], strict=True):
        difference = float((one - other).norm() / other.norm())
        if not difference < TOLERANCE or not abs(found[0] - expected[0]) < TOLERANCE * max(1.0, expected[0]):
            raise ValueError(
                f"{name!r} has the loss {found[0]:.6f} instead of {expected[0]:.6f}, and a gradient differs by "
                f"{difference:.1e}. The comparison means nothing."
            )


def resident_mb(field: str) -> float:
    """`VmRSS`, now, or `VmHWM`, the highest since it was reset, of this process."""
    text = Path("/proc/self/status").read_text()
    return int(re.search(rf"{field}:\s+(\d+)", text).group(1)) * 1024 / 1e6


def growth_mb(name: str, batch: int, width: int) -> float:
    """The growth of a process while it takes one step of a side."""
    program = [sys.executable, __file__, "--growth-of", name, "--batch", str(batch), "--width", str(width)]
    return float(subprocess.run(program, check=True, capture_output=True, text=True).stdout)


def own_growth_mb(name: str, batch: int, width: int) -> float:
    """The same of this process, after a step of few pairs that loads what a step loads."""
    contrastive_loss(Task.make(2, width).ours()).backward()
    task = Task.make(batch, width)
    before = resident_mb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the highest is from now on
    contrastive_loss(steps(task)[name]()).backward()
    return resident_mb("VmHWM") - before


def on_cpu(batch: int, width: int, repetitions: int) -> dict[str, object]:
    """Times, memory, and the ratios that are asked for."""
    seconds = timed(Task.make(batch, width), repetitions)
    memory = {name: round(growth_mb(name, batch, width)) for name in steps(Task.make(2, width))}
    loop, ours, again = (seconds[name] for name in ("a loop over images", "ours", "ours, computed once more"))
    forward, both = "forward", "forward and backward"
    return {
        "seconds": {name: {kind: round(value, 3) for kind, value in taken.items()} for name, taken in seconds.items()},
        "growth in MB": memory,
        "ratios": {
            "forward, against a loop over images (1.2 asked)": loop[forward] / ours[forward],
            "forward and backward, against a loop over images (1.15 asked)": loop[both] / ours[both],
            "computed once more, against a loop over images (0.9 asked)": loop[both] / again[both],
            "memory, computed once more, of the loop's (0.5 allowed)": memory["ours, computed once more"]
            / max(1, memory["a loop over images"]),
            "forward, against a loop over pairs (15 asked)": seconds["a loop over pairs"][forward] / ours[forward],
        },
    }


def plan_cost(triplets: int, nodes: int, steps: int, repetitions: int) -> dict[str, float]:
    """Bytes a triplet of the plan, and milliseconds a step through the sampler, the best of a few repetitions."""
    plan = bound(CASES["node_sampling, no image twice"], triplets, batch=0, nodes=nodes)
    batch, taken = plan.global_batch_size, []
    for _ in range(repetitions):
        start = time.thread_time()
        drawn = sum(1 for _ in itertools.islice(CurriculumSampler(plan, first_step(plan)), steps * batch))
        taken.append(1000 * (time.thread_time() - start) * batch / drawn)
    return {
        "triplets": triplets,
        "nodes": nodes,
        "batch": batch,
        "bytes a triplet (8 allowed)": round(sum(held_bytes(plan).values()) / triplets, 2),
        "milliseconds a step (0.1 allowed)": round(min(taken), 4),
    }


@dataclass(frozen=True)
class Training:
    """A training at the paper's size, but for the number of images, which the store's cache holds either way.

    Args:
        batch: pairs of an optimizer step.
        dims: of a region's features.
        images: of the store.
        words: of the corpus, and of a caption.
        evaluated: images of the evaluation set, each with five captions of three nouns, as Flickr30k's test images.
        text: of `BertConfig`.
    """

    batch: int = 256
    dims: int = 2048
    images: int = 2048
    words: tuple[int, int] = (2000, 12)
    evaluated: int = 1000
    text: Mapping[str, int] = field(default_factory=dict)


def make_corpus(training: Training, folder: Path) -> tuple[Dataset, Dataset, ContrastiveCollator]:
    """Pairs to train on, pairs to evaluate on, and their collator, on a region store in a folder."""
    rng = np.random.default_rng(0)
    for number in range(training.images):
        features = rng.normal(size=(REGIONS, training.dims)).astype(np.float32)
        np.savez(folder / f"{number}.npz", feat=features)
    store = pack_regions(folder, folder.with_name("store"), progress=False)
    words = ["".join(rng.choice(list("bdfgklmnprst"), 5)) for _ in range(training.words[0])]

    def rows(images: int, captions: int, nouns: int) -> Dataset:
        made = []
        for image, _ in itertools.product(range(images), range(captions)):
            caption = rng.choice(words, training.words[1]).tolist()
            starts = np.cumsum([0, *(len(word) + 1 for word in caption)])
            made += [
                {
                    "image_id": str(image % training.images), "caption": " ".join(caption),
                    "noun_start": int(starts[place]), "noun_end": int(starts[place]) + 5,
                }
                for place in range(nouns)
            ]  # fmt: skip
        return Dataset.from_list(made)

    collator = ContrastiveCollator(train_wordpiece(words * 2, 3000), RegionInputs(store))
    return rows(training.images, 1, 1), rows(min(training.evaluated, training.images), 5, 3), collator


class StepClock(TrainerCallback):
    """When optimizer steps ended, what is on the device counted as done."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())


def training_step(
    training: Training, folder: Path, chunk_size: int | None, steps: int, corpus: tuple[Any, ...]
) -> dict[str, float]:
    """Seconds of an optimizer step, the memory of the device in MB, and seconds of an evaluation."""
    train, held, collator = corpus
    text = BertConfig(vocab_size=30_522, **training.text)
    model = AlignerModel(AlignerConfig(text, region_feature_size=training.dims))
    args = CurriculumTrainingArguments(
        str(folder / "run"), max_steps=steps + _WARM, per_device_train_batch_size=training.batch, bf16=True,
        learning_rate=1e-5, report_to=[], disable_tqdm=True, save_strategy="no", logging_steps=steps + _WARM,
        dataloader_num_workers=4 if torch.cuda.is_available() else 0, per_device_eval_batch_size=training.batch,
        dataloader_pin_memory=torch.cuda.is_available(), use_cpu=not torch.cuda.is_available(),
    )  # fmt: skip
    clock = StepClock()
    trainer = ContrastiveTrainer(
        model, args, train_dataset=train, eval_dataset=held, data_collator=collator, chunk_size=chunk_size,
        callbacks=[clock],
    )  # fmt: skip
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    trainer.train()
    memory = torch.cuda.max_memory_allocated() / 1e6 if torch.cuda.is_available() else 0.0
    start = time.perf_counter()
    trainer.evaluate()
    seconds = (clock.ends[-1] - clock.ends[_WARM - 1]) / steps
    return {"step": seconds, "memory": memory, "evaluation": time.perf_counter() - start}


def on_gpu(training: Training, steps: int, chunk_size: int = 64) -> dict[str, object]:
    """Milliseconds and memory of an optimizer step of the paper's, features read from a store, and hours of all."""
    found: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder, "features")
        files.mkdir()
        corpus = make_corpus(training, files)
        for name, chunk in (("all at once", None), (f"chunks of {chunk_size}", chunk_size)):
            measured = training_step(training, Path(folder), chunk, steps, corpus)
            hours = measured["step"] * PAPER_STEPS / 3600
            found[name] = {
                "milliseconds a step": round(1000 * measured["step"], 1),
                "memory in MB": round(measured["memory"]),
                f"hours of {PAPER_STEPS:,} steps (12 allowed; the paper: {PAPER_HOURS})": round(hours, 2),
                f"seconds to evaluate {min(training.evaluated, training.images):,} images, five captions each, three "
                "nouns each": round(measured["evaluation"], 1),
            }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--width", type=int, default=768, help="a multiple of 12")
    parser.add_argument("--triplets", type=int, default=TRIPLETS, help="rows of the plan")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--growth-of", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help="write the numbers there too")
    args = parser.parse_args()
    if args.growth_of:
        sys.stdout.write(f"{own_growth_mb(args.growth_of, args.batch, args.width)}\n")
        return
    if args.gpu:
        found = on_gpu(Training(args.batch), 10 * args.repetitions)
    else:
        found = on_cpu(args.batch, args.width, args.repetitions)
        found["ratios"] = {name: float(np.round(value, 3)) for name, value in found["ratios"].items()}
        found["plan"] = plan_cost(args.triplets, NODES, PLAN_STEPS, args.repetitions)
    facts = {"batch": args.batch, "width": args.width, "regions": REGIONS, "torch": torch.__version__}
    facts |= {"python": platform.python_version(), "threads": torch.get_num_threads()}
    text = json.dumps({**facts, **found}, indent=1)
    if args.json:
        args.json.write_text(text + "\n", encoding="utf-8")
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
