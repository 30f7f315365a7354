"""What stored vision features save: one training step of Flamingo from images and from features, in turn.

    python recipes/benchmarks/flamingo_features.py                                   # a small model, seconds
    python recipes/benchmarks/flamingo_features.py --size paper --batch 12 --pairs 3  # minutes on one core
    HF_CURRICULUM_TEST_DATA=FOLDER python recipes/benchmarks/flamingo_features.py ...  # and with COCO's captions

A step is forward and backward of one batch, without dropout; making the batch, and clipping and AdamW, which both
ways have in common, are given apart. The sides take turns and the best time of each counts: on a CPU the process's own
time, on a GPU the clock's. Both have to come to the same loss and gradients, or the run ends: to 1e-4 from what the
tower returns; what is stored is rounded to float16, and there it is 1e-3 of the loss and 0.05 of a gradient (relative
to a weight's norm, or to a thousandth of the largest norm where that is more).

The gain depends on the captions' lengths, as the tower's work does not and all other work does, so there is a row for
each kind, special tokens and `<image>` counted: `drawn`, 11 tokens and a Poisson number of 4 more, which is about as
long as COCO's captions are; `coco`, so many of its validation captions, drawn at random, where the data is there (the
folder holds `coco_captions_val2017`); `full`, all as long as captions may be. Writing the features costs one pass of
the tower: over E epochs the gain is E · images / (E · features + encoding).
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from training import largest_difference

from hf_curriculum import (
    CaptionCollator,
    CaptionFlamingoForCausalLM,
    make_image_processor,
    make_scenes,
    train_wordpiece,
)
from hf_curriculum.models.flamingo.build import (
    add_image_token,
    flamingo_from_config,
    paper_flamingo_config,
    small_flamingo_config,
)
from hf_curriculum.models.vision_features import cache_vision_features

EXACT, STORED = (1e-4, 1e-4), (1e-3, 5e-2)  # of the loss, of a gradient
SPECIAL = 3  # [CLS], <image> and [SEP]


def clock(device: torch.device) -> float:
    """Seconds: of this process on a CPU, of the wall on a GPU."""
    if device.type == "cpu":
        return time.process_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()


def captions(kinds: list[str], batch: int, longest: int, words: list[str]) -> dict[str, list[str]]:
    """So many captions of each kind; where the words are ours, each of them is one token."""
    draws = np.random.default_rng(0)
    lengths = {"drawn": np.minimum(11 + draws.poisson(4, batch), longest), "full": np.full(batch, longest)}
    found = {
        kind: [" ".join(draws.choice(words, length - SPECIAL)) for length in lengths[kind]]
        for kind in kinds
        if kind in lengths
    }
    if "coco" in kinds:
        found["coco"] = random.Random(0).sample(coco_captions(), batch)
    return {kind: found[kind] for kind in kinds}


def coco_captions() -> list[str]:
    """All captions of COCO's validation images."""
    file = Path(os.environ["HF_CURRICULUM_TEST_DATA"]) / "coco_captions_val2017" / "captions_val2017.json.gz"
    with gzip.open(file, "rt", encoding="utf-8") as text:
        return [entry["caption"].strip() for entry in json.load(text)["annotations"]]


def build(options: argparse.Namespace, tokenizer: Any) -> CaptionFlamingoForCausalLM:
    """The model, without dropout and with open gates: shut ones would let no gradient through to the images."""
    torch.manual_seed(0)
    if options.size == "paper":
        config = paper_flamingo_config(32_778, tokenizer=tokenizer)
    else:
        config = small_flamingo_config(len(tokenizer), tokenizer=tokenizer)
    config.text_config.dropout = 0.0
    model = flamingo_from_config(config).to(options.device).train()
    for layer in model.flamingo.gated_layers:
        torch.nn.init.constant_(layer.attention_gate, 0.5)
        torch.nn.init.constant_(layer.feed_forward_gate, 0.5)
    return model


def gradients(model: CaptionFlamingoForCausalLM, batch: dict[str, torch.Tensor]) -> tuple[float, dict]:
    """Loss and gradients; the weights keep none."""
    loss = model(**batch).loss
    loss.backward()
    found = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    model.zero_grad(set_to_none=True)
    return loss.item(), found


def check(
    model: CaptionFlamingoForCausalLM, images: dict[str, torch.Tensor], features: dict[str, torch.Tensor]
) -> dict[str, float]:
    """How far losses and gradients are apart."""
    loss, expected = gradients(model, images)
    exact = {name: value for name, value in images.items() if name != "pixel_values"}
    exact["image_features"] = model.encode_images(images["pixel_values"])
    facts = {"loss": loss}
    for name, batch, allowed in (("exact", exact, EXACT), ("stored", features, STORED)):
        other, found = gradients(model, batch)
        difference, weight = largest_difference(found, expected)
        if found.keys() != expected.keys() or not (abs(other - loss) <= allowed[0] and difference <= allowed[1]):
            raise ValueError(
                f"From {name} features the loss is {other:.6f}, from pictures {loss:.6f}; gradients differ by up to "
                f"{difference:.1e} ({weight}), and {allowed} are allowed. The comparison means nothing."
            )
        facts[f"{name}_difference"] = difference
    return facts


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Both ways over the same rows, for each kind of captions."""
    data = make_scenes(max(40, options.batch), image_size=64, validation=0.0, test=0.0)["train"]
    given = "HF_CURRICULUM_TEST_DATA" in os.environ
    kinds = ["drawn", *(["coco"] if given else []), "full"]
    tokenizer = train_wordpiece([*data["caption"], *(coco_captions() if given else [])], 9_000)
    words = sorted(word for word in tokenizer.get_vocab() if word.isalpha() and len(word) > 1)
    add_image_token(tokenizer)
    model = build(options, tokenizer)
    device = torch.device(options.device)
    processor = make_image_processor(model.config.vision_config.image_size)
    rows = data.select(range(options.batch)).remove_columns("caption")
    common = {"max_length": options.tokens, "prefix": "<image> "}
    found = []
    with tempfile.TemporaryDirectory() as folder:
        start = clock(device)
        features = cache_vision_features(model, rows, Path(folder) / "features", processor, progress=False)
        encoding = 1000 * (clock(device) - start) / len(features)
        collators = {
            "pictures": CaptionCollator(tokenizer, processor, **common),
            "features": CaptionCollator(tokenizer, None, vision_features=features, **common),
        }
        for kind, texts in captions(kinds, options.batch, options.tokens, words).items():
            facts = compare(model, rows.add_column("caption", texts), collators, options)
            found.append({"captions": kind, **facts, "encoding_ms_per_picture": encoding})
    return found


def compare(
    model: CaptionFlamingoForCausalLM,
    rows: Dataset,
    collators: dict[str, CaptionCollator],
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Times of both ways, in turn, after a look at what they compute."""
    device = torch.device(options.device)
    batches, making = {}, {}
    for name, collator in collators.items():
        taken = []
        for _ in range(options.pairs):
            start = clock(device)
            batches[name] = collator([rows[row] for row in range(len(rows))])
            taken.append(clock(device) - start)
        batches[name] = {key: value.to(device) for key, value in batches[name].items()}
        making[name] = 1000 * min(taken)
    facts = check(model, batches["pictures"], batches["features"])

    def step(name: str) -> Callable[[], None]:
        def run() -> None:
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=options.bf16):
                model(**batches[name]).loss.backward()

        return run

    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.0, fused=True)

    def update() -> None:
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()

    steps = {"pictures": step("pictures"), "features": step("features"), "update": update}
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(options.pairs + 1):  # the first turn warms up
        for name, run in steps.items():
            start = clock(device)
            run()
            taken[name].append(1000 * (clock(device) - start))
            if name == "pictures":  # the update takes the gradients of what came last
                model.zero_grad(set_to_none=True)
        model.zero_grad(set_to_none=True)
    best = {name: min(times[1:]) for name, times in taken.items()}
    mask = batches["features"]["attention_mask"]
    ratios = [one / other for one, other in zip(taken["pictures"][1:], taken["features"][1:], strict=True)]
    whole = {name: best[name] + making[name] + best["update"] for name in batches}
    return {
        "tokens_per_text": mask.sum().item() / len(mask),
        "padded_to": mask.shape[1],
        "ratio": best["pictures"] / best["features"],
        "median_ratio": statistics.median(ratios),
        "ratio_with_batch_and_update": whole["pictures"] / whole["features"],
        **{f"{name}_ms": milliseconds for name, milliseconds in best.items()},
        **{f"{name}_batch_ms": milliseconds for name, milliseconds in making.items()},
        **facts,
    }


def table(rows: list[dict[str, Any]], options: argparse.Namespace) -> str:
    """The rows as a Markdown table, under a line that says of what."""
    where = "one core" if options.device == "cpu" and options.threads == 1 else options.device
    lines = [
        f"Flamingo's {options.size} size, batches of {options.batch}, {where}. Asked for: ≥ 2 × with stored features.",
        "",
        "| captions | tokens per text | padded to | from pictures | from features | ratio | with batch and AdamW |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row['captions']} | {row['tokens_per_text']:.1f} | {row['padded_to']} | {row['pictures_ms']:,.0f} ms "
            f"| {row['features_ms']:,.0f} ms | {row['ratio']:.2f} × | {row['ratio_with_batch_and_update']:.2f} × |"
        )
    lines += [
        "",
        f"Gradients differ by up to {max(row['exact_difference'] for row in rows):.0e}, from features stored as "
        f"float16 by up to {max(row['stored_difference'] for row in rows):.0e}. Encoding once takes "
        f"{rows[0]['encoding_ms_per_picture']:,.0f} ms per picture.",
    ]
    return "\n".join(lines)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=("small", "paper"), default="small", help="model")
    parser.add_argument("--batch", type=int, default=32, help="rows per step")
    parser.add_argument("--tokens", type=int, default=50, help="captions are cut to so many tokens")
    parser.add_argument("--pairs", type=int, default=5, help="turns of each side")
    parser.add_argument("--device", default="cpu", help="where the model runs")
    parser.add_argument("--bf16", action="store_true", help="autocast to bfloat16")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads on the CPU")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--markdown", type=Path, help="also write the table here")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = measure(options)
    print(table(rows, options))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    if options.markdown:
        options.markdown.write_text(table(rows, options) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
