"""What a training step of our GIT costs beside stock `GitForCausalLM`: forward and backward, equal weights, one run.

    python recipes/benchmarks/training.py                   # a middle size and the paper's, on one thread: 3 minutes
    python recipes/benchmarks/training.py --sizes middle --repetitions 5 --json out.json

`training_gpu.py` measures a GPU. Two comparisons per size, without dropout, captions of 20 tokens:

- one caption per image: ours leaves out logits of image positions, and the last layer's image rows;
- five captions per image: ours packed behind one image (`image_index`), beside one image per caption (stock's and
  ours) and beside stock that encodes each image once and repeats its features.

The sides take turns and the best time of each counts. Losses and gradients are compared in the same run: sides that
differ by more than 1e-4 (a weight's gradient relative to its norm, or to a thousandth of the largest norm where that
is more) are an error. The process's own time counts, which a busy machine does not lengthen. What stored features save
Flamingo is in `flamingo_features.py`.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from training_gpu import TOKENS, stock_git, table
from transformers import GitForCausalLM

from hf_curriculum.models.git.build import git_from_stock

CAPTIONS, TOLERANCE = 5, 1e-4
COLUMNS = {
    name: (name, ",.3g" if name == "ratio" else "") for name in ("size", "what", "ours", "against", "ratio", "asked")
}


@dataclass(frozen=True)
class Size:
    """A stock GIT with images of 224 × 224 in patches of 16, and the batches it is timed on."""

    width: int
    layers: int
    vocabulary: int
    singles: int
    """Images with one caption each."""
    images: int
    """Images with five captions each."""
    pixels: int = 224
    repetitions: int = 3

    def stock(self) -> GitForCausalLM:
        """Random weights, no dropout."""
        return stock_git(self.width, self.layers, self.vocabulary, self.pixels)


SIZES = {
    "tiny": Size(width=64, layers=2, vocabulary=500, singles=2, images=2, pixels=64, repetitions=1),
    "middle": Size(width=384, layers=6, vocabulary=8_192, singles=4, images=2),
    "paper": Size(width=768, layers=12, vocabulary=32_778, singles=2, images=1, repetitions=2),
}
"""`tiny` shows that it runs and no more; `paper` has BabyLM's towers, and stock's untied output layer."""


@dataclass(frozen=True)
class Side:
    """One way to compute the same loss."""

    name: str
    model: nn.Module
    inputs: Mapping[str, torch.Tensor]

    def step(self) -> tuple[float, float]:
        """The loss, and the seconds of one forward and backward; the gradients stay in the weights."""
        self.model.zero_grad(set_to_none=True)
        start = time.process_time()
        loss = self.model(**self.inputs).loss
        loss.backward()
        return loss.item(), time.process_time() - start

    def gradients(self) -> dict[str, torch.Tensor]:
        """Takes the gradients out of the weights."""
        found = {name: weight.grad for name, weight in self.model.named_parameters() if weight.grad is not None}
        self.model.zero_grad(set_to_none=True)
        return found


def largest_difference(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> tuple[float, str]:
    """The norm of the difference relative to that of the gradient, and the weight where it is largest."""
    floor = 1e-3 * max(gradient.norm().item() for gradient in expected.values())
    return max(
        ((found[name] - gradient).norm().item() / max(gradient.norm().item(), floor), name)
        for name, gradient in expected.items()
    )


def in_turn(sides: list[Side], repetitions: int, tolerance: float = TOLERANCE) -> tuple[dict[str, float], float]:
    """The best seconds of each side, and the largest difference of a gradient from the first side's."""
    times: dict[str, list[float]] = {side.name: [] for side in sides}
    first: tuple[float, dict[str, torch.Tensor]] | None = None
    worst = 0.0
    for repetition in range(repetitions):
        for side in sides:
            loss, seconds = side.step()
            times[side.name].append(seconds)
            gradients = side.gradients()
            if repetition:
                continue
            if first is None:
                first = loss, gradients
                continue
            if gradients.keys() != first[1].keys():
                raise ValueError(f"{side.name!r} trains other weights than {sides[0].name!r}.")
            difference, name = largest_difference(gradients, first[1])
            if not (abs(loss - first[0]) <= tolerance and difference <= tolerance):
                raise ValueError(
                    f"{side.name!r} has the loss {loss:.6f} and {sides[0].name!r} {first[0]:.6f}; gradients differ by "
                    f"up to {difference:.1e} ({name}). The comparison means nothing."
                )
            worst = max(worst, difference)
    return {name: min(taken) for name, taken in times.items()}, worst


def measure(name: str, repetitions: int | None = None) -> list[dict[str, object]]:
    """All rows of one size."""
    size = SIZES[name]
    stock = size.stock()
    ours = git_from_stock(stock)
    repetitions = repetitions or size.repetitions

    def row(what: str, times: dict[str, float], against: str, captions: int, worst: float, asked: str) -> dict:
        return {
            "size": name,
            "what": what,
            "ours": f"{captions / times['ours']:.3g} captions/s",
            "against": f"{captions / times[against]:.3g} captions/s ({against})",
            "ratio": times[against] / times["ours"],
            "asked": asked,
            "largest gradient difference": worst,
        }

    pixels = torch.randn(max(size.singles, size.images), 3, size.pixels, size.pixels)
    words = torch.randint(1, size.vocabulary, (size.singles, TOKENS))
    text = {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": words}
    batch = {**text, "pixel_values": pixels[: size.singles]}
    times, worst = in_turn([Side("stock", stock, batch), Side("ours", ours, batch)], repetitions)
    rows = [row("one caption per image", times, "stock", size.singles, worst, "≥ 1.1")]

    pictures, captions = pixels[: size.images], CAPTIONS * size.images
    # Stock repeats features image by image, so caption i has to be of image i modulo their number.
    index = torch.arange(captions) % size.images
    words = torch.randint(1, size.vocabulary, (captions, TOKENS))
    text = {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": words}
    sides = [
        Side("stock, a picture per caption", stock, {**text, "pixel_values": pictures[index]}),
        Side("stock, image once", stock, {**text, "pixel_values": pictures}),
        Side("ours", ours, {**text, "pixel_values": pictures, "image_index": index}),
        Side("ours, a picture per caption", ours, {**text, "pixel_values": pictures[index]}),
    ]
    times, worst = in_turn(sides, repetitions)
    for against, asked in zip((sides[0], sides[1], sides[3]), ("≥ 3.5", "≥ 2.2", ""), strict=True):
        rows.append(row("five captions per image, packed", times, against.name, captions, worst, asked))
    return rows


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, help="by default middle and paper")
    parser.add_argument("--repetitions", type=int, help="times each side runs; by default each size's own")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = [row for name in options.sizes or ("middle", "paper") for row in measure(name, options.repetitions)]
    worst = max(row["largest gradient difference"] for row in rows)
    print(f"{table(rows, COLUMNS)}\nLosses are equal, and gradients to {worst:.0e} of their norm.")
    if options.json:
        machine = {"threads": options.threads, "torch": torch.__version__, "processor": platform.machine()}
        options.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
