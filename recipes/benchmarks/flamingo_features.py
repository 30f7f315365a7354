"""What stored vision features save: one training step of Flamingo from pictures and from features, in turn.

    python recipes/benchmarks/flamingo_features.py                       # a small model, seconds
    python recipes/benchmarks/flamingo_features.py --size paper --batch 8 --pairs 3

A step is: rows read and made a batch, forward, backward, clipping, AdamW. Runs are paired and alternate; the median of
the pairs' ratios counts. The batch and the model without it are also given apart. On a CPU it is the process's own
time that counts, which a busy machine changes little; on a GPU it is the clock's. Writing the features costs one pass
of the vision tower, given as well: over E epochs the gain is E · pictures / (E · features + encoding). The gain falls
with the length that texts are padded to: the tower's work does not depend on it, all other work does.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from datasets import Dataset

from hf_curriculum import CaptionCollator, make_image_processor, make_scenes, train_wordpiece
from hf_curriculum.models.flamingo import CaptionFlamingoForCausalLM
from hf_curriculum.models.flamingo_build import (
    add_image_token,
    flamingo_from_config,
    paper_flamingo_config,
    small_flamingo_config,
)
from hf_curriculum.models.flamingo_features import cache_vision_features


def clock(device: torch.device) -> Callable[[], float]:
    """Seconds: of this process on a CPU, of the wall on a GPU."""
    return time.process_time if device.type == "cpu" else time.perf_counter


def make_step(
    model: CaptionFlamingoForCausalLM,
    optimizer: torch.optim.Optimizer,
    rows: Dataset,
    collator: CaptionCollator,
    device: torch.device,
    half: bool,
) -> Callable[[], tuple[float, float]]:
    """A step as a function, which returns the seconds of the batch and of the model."""
    rows = rows.select_columns(list(collator.columns))
    now = clock(device)

    def step() -> tuple[float, float]:
        start = now()
        batch = collator([rows[row] for row in range(len(rows))])
        made = now()
        batch = {name: values.to(device) for name, values in batch.items()}
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=half):
            model(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return made - start, now() - made

    return step


def measure(options: argparse.Namespace) -> dict[str, float]:
    """Both ways over the same rows, and what writing the features took."""
    torch.manual_seed(0)
    data = make_scenes(max(40, options.batch), image_size=64, validation=0.0, test=0.0)["train"]
    tokenizer = train_wordpiece(data, 1000)
    add_image_token(tokenizer)
    paper = options.size == "paper"
    make = paper_flamingo_config if paper else small_flamingo_config
    config = make(32_778 if paper else len(tokenizer), tokenizer=tokenizer)
    device = torch.device(options.device)
    model = flamingo_from_config(config).to(device).train()
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
    processor = make_image_processor(config.vision_config.image_size)
    rows = data.select(range(options.batch))
    common = {"max_length": options.tokens, "prefix": "<image> "}
    with tempfile.TemporaryDirectory() as folder:
        now = clock(device)
        start = now()
        features = cache_vision_features(model, rows, Path(folder) / "features", processor, progress=False)
        written = now() - start
        collators = {
            "pictures": CaptionCollator(tokenizer, processor, **common),
            "features": CaptionCollator(tokenizer, None, vision_features=features, **common),
        }
        steps = {
            name: make_step(model, optimizer, rows, collator, device, options.bf16)
            for name, collator in collators.items()
        }
        mask = collators["features"]([rows[row] for row in range(options.batch)])["attention_mask"]
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
        for number in range(options.pairs + 1):
            for name in sorted(steps, reverse=bool(number % 2)):
                taken[name].append(steps[name]())
    pairs = list(zip(taken["pictures"], taken["features"], strict=True))[1:]  # the first pair warms up
    facts = {
        "ratio": statistics.median(sum(pictures) / sum(features) for pictures, features in pairs),
        "ratio_without_batch": statistics.median(pictures[1] / features[1] for pictures, features in pairs),
        "encoding_ms_per_picture": 1000 * written / len(features),
        "tokens_per_text": mask.sum().item() / options.batch,
        "padded_to": mask.shape[1],
    }
    for name in steps:
        facts[f"{name}_batch_ms"] = 1000 * statistics.median(part[0] for part in taken[name][1:])
        facts[f"{name}_model_ms"] = 1000 * statistics.median(part[1] for part in taken[name][1:])
    return facts


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=("small", "paper"), default="small", help="model")
    parser.add_argument("--batch", type=int, default=32, help="rows per step")
    parser.add_argument("--tokens", type=int, default=50, help="captions are cut to so many tokens")
    parser.add_argument("--pairs", type=int, default=7, help="paired steps")
    parser.add_argument("--device", default="cpu", help="where the model runs")
    parser.add_argument("--bf16", action="store_true", help="autocast to bfloat16")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads on the CPU")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    facts = measure(options)
    for name in ("pictures", "features"):
        batch, model = facts[f"{name}_batch_ms"], facts[f"{name}_model_ms"]
        print(f"{name}: {batch + model:,.1f} ms per step of {options.batch} (batch {batch:,.1f}, model {model:,.1f})")
    print(
        f"{options.size} model, {facts['tokens_per_text']:.1f} tokens per text, padded to {facts['padded_to']}: "
        f"features are {facts['ratio']:.2f} x as fast (target ≥ 2), {facts['ratio_without_batch']:.2f} x without "
        f"making the batch; encoding once takes {facts['encoding_ms_per_picture']:,.1f} ms per picture"
    )
    if options.json:
        options.json.write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
