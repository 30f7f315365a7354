"""What detection costs: proposals, training steps, batches, evaluation, memory, each beside a named alternative.

    OMP_NUM_THREADS=1 python recipes/benchmarks/detection.py                  # all of it: 10 minutes
    python recipes/benchmarks/detection.py --only evaluate collate --json out.json
    python recipes/benchmarks/detection.py --images photos                    # propose over a folder of one's own
    python recipes/benchmarks/detection.py --size tiny                        # that it runs

- `propose`: `add_proposals` over 200 images by one process and by two, and a bare loop over OpenCV's selective search;
- `train`: steps of a small detector by `CurriculumTrainer`, and by a bare loop over the same layers and batches;
- `collate`: what 500 proposals of a picture add to reading it, beside decoding its JPEG of 640 × 480;
- `evaluate`: `detection_metrics` of 5,000 images with 100 boxes each, and pycocotools;
- `memory`: the peak of one step of VGG16 with Adam, 4 pictures of 480 pixels with 500 proposals each.

Sides take turns in one run. Seconds are those of the processor, of this process and its workers, which a busy machine
does not lengthen much; that two processes take less time by the clock shows where two cores are idle.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from hf_curriculum import IID, CurriculumTrainer, CurriculumTrainingArguments, load_captioned, make_scenes
from hf_curriculum.data.proposals import SelectiveSearch
from hf_curriculum.tasks.detection import (
    BoxLabels,
    DetectionCollator,
    WsddnImageProcessor,
    add_labels,
    add_proposals,
    detection_metrics,
    new_detector,
)

COLUMNS = ("what", "ours", "against", "ratio", "asked")


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Args:
        images: that are searched.
        pixels: along an edge of a scene that is searched.
        steps: of training, each of 16 scenes.
        batches: that are collated.
        evaluated: images with 100 boxes.
        edge: of the pictures whose step's memory is measured.
        repetitions: the best of so many counts.
        backbone: of that step.
    """

    images: int = 200
    pixels: int = 192
    steps: int = 20
    batches: int = 50
    evaluated: int = 5000
    edge: int = 480
    repetitions: int = 3
    backbone: str = "vgg16"


SIZES = {"full": Size(), "tiny": Size(6, 64, 2, 2, 20, 64, 1, "small")}


def cpu_seconds() -> float:
    """Of this process and of those that it has waited for."""
    parts = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(part.ru_utime + part.ru_stime for part in parts)


def in_turn(sides: dict[str, Callable[[], Any]], repetitions: int) -> dict[str, tuple[float, float]]:
    """Side → the least (processor seconds, seconds) of its turns."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for _ in range(repetitions):
        for name, side in sides.items():
            start, clock = cpu_seconds(), time.perf_counter()
            side()
            found[name].append((cpu_seconds() - start, time.perf_counter() - clock))
    return {name: (min(cpu for cpu, _ in turns), min(wall for _, wall in turns)) for name, turns in found.items()}


def measure_propose(size: Size, images: Path | None) -> list[tuple[Any, ...]]:
    """Selective search by one process, by two, and without the library."""
    import cv2

    if images is None:
        rows = make_scenes(size.images, image_size=size.pixels, captions_per_image=1, validation=0, test=0)["train"]
    else:
        rows = load_captioned(images).select(range(size.images))
    search = SelectiveSearch()

    def ours(num_proc: int) -> Callable[[], None]:
        def run() -> None:
            with tempfile.TemporaryDirectory() as folder:
                add_proposals(rows, search, num_proc=num_proc, folder=folder, part_images=20)

        return run

    def bare() -> None:
        for row in rows:
            found = cv2.ximgproc.segmentation.createSelectiveSearchSegmentation()
            found.setBaseImage(np.ascontiguousarray(np.asarray(row["image"].convert("RGB"))[:, :, ::-1]))
            found.switchToSelectiveSearchFast()
            found.process()

    times = in_turn({"one": ours(0), "two": ours(2), "bare": bare}, 1 if size.repetitions == 1 else 2)
    (one, wall), (two, both), (loop, _) = times["one"], times["two"], times["bare"]
    return [
        ("propose: CPU of two processes beside one", f"{two:.1f} s", f"{one:.1f} s", two / one, "≤ 1.15"),
        ("propose: speed by the clock, two processes", f"{both:.1f} s", f"{wall:.1f} s", wall / both, "≥ 1.7, idle"),
        ("propose: speed beside a bare OpenCV loop", f"{one:.1f} s", f"{loop:.1f} s", loop / one, "≥ 0.95"),
    ]


def measure_train(size: Size) -> list[tuple[Any, ...]]:
    """Steps with and without `Trainer`."""
    rows = make_scenes(64, image_size=96, captions_per_image=1, validation=0, test=0)["train"]
    rows = add_labels(add_proposals(rows, SelectiveSearch(min_size=12)), BoxLabels("scenes", field="noun"))
    names = rows.features["labels"].feature.names

    def ours() -> None:
        torch.manual_seed(0)
        model, processor = new_detector(names, "small", size={"longest_edge": 96})
        with tempfile.TemporaryDirectory() as folder:
            args = CurriculumTrainingArguments(
                folder,
                curriculum=IID(),
                max_steps=size.steps,
                per_device_train_batch_size=16,
                learning_rate=2e-3,
                report_to=[],
                save_strategy="no",
                logging_strategy="no",
                disable_tqdm=True,
                use_cpu=True,
            )
            collator = DetectionCollator(processor)
            CurriculumTrainer(model, args, train_dataset=rows, data_collator=collator).train()

    def bare() -> None:
        torch.manual_seed(0)
        model, processor = new_detector(names, "small", size={"longest_edge": 96})
        collator, optimizer = DetectionCollator(processor), torch.optim.AdamW(model.parameters(), lr=2e-3)
        order = np.random.default_rng(0).integers(len(rows), size=(size.steps, 16)).tolist()
        model.train()
        for batch in order:
            loss = model(**collator([rows[row] for row in batch])).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    times = in_turn({"ours": ours, "bare": bare}, size.repetitions)
    mine, theirs = times["ours"][0], times["bare"][0]
    return [("train: speed beside a bare loop", f"{mine:.1f} s", f"{theirs:.1f} s", theirs / mine, "≥ 0.95")]


def measure_collate(size: Size) -> list[tuple[Any, ...]]:
    """What 500 proposals add to a batch of four, beside decoding its pictures."""
    rng, stored = np.random.default_rng(0), io.BytesIO()
    noise = Image.fromarray(rng.integers(0, 256, (120, 160, 3), dtype=np.uint8)).resize((640, 480))
    noise.save(stored, "JPEG", quality=90)
    corners = rng.uniform(0, 250, (500, 2))
    boxes = np.concatenate([corners, corners + rng.uniform(20, 120, (500, 2))], axis=1).astype(np.float32).tolist()
    collator = DetectionCollator(WsddnImageProcessor(["dog", "cat"]))

    def read(proposals: list[list[float]]) -> Callable[[], None]:
        def run() -> None:
            for _ in range(size.batches):
                batch = [{"image": noise, "proposals": proposals, "labels": [0]} for _ in range(4)]
                collator(batch)

        return run

    def decode() -> None:
        for _ in range(4 * size.batches):
            Image.open(io.BytesIO(stored.getvalue())).convert("RGB")

    times = in_turn({"many": read(boxes), "one": read(boxes[:1]), "decode": decode}, size.repetitions)
    added, decoded = times["many"][0] - times["one"][0], times["decode"][0]
    each = 1e6 / (4 * size.batches)
    label = "collate: 500 proposals beside decoding"
    return [(label, f"{each * added:.0f} µs", f"{each * decoded:.0f} µs", added / decoded, "≤ 0.05")]


def measure_evaluate(size: Size) -> list[tuple[Any, ...]]:
    """COCO's metrics by us and by pycocotools, on the same boxes, which have to give the same."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    rng, classes = np.random.default_rng(0), 80
    names, truths, predictions = [str(number) for number in range(classes)], [], []
    for _ in range(size.evaluated):
        corners, sides = rng.uniform(0, 300, (7, 2)), rng.uniform(10, 300, (7, 2))
        true = np.concatenate([corners, corners + sides], axis=1)
        kinds = rng.integers(0, classes, 7)
        truths.append([{"name": names[kind], "box": box} for kind, box in zip(kinds, true.tolist(), strict=True)])
        chosen = rng.integers(0, 7, 100)
        moved = true[chosen] + rng.normal(0, 12, (100, 4))
        moved[:, 2:] = np.maximum(moved[:, 2:], moved[:, :2] + 1)
        own = np.where(rng.random(100) < 0.6, kinds[chosen], rng.integers(0, classes, 100))
        predictions.append(np.column_stack([own, rng.random(100), moved]))
    values: dict[str, float] = {}

    def ours() -> None:
        values["ours"] = detection_metrics(predictions, truths, names, ["coco"]).values["map"]

    def theirs() -> None:
        expected, annotations, results = COCO(), [], []
        for image, (objects, rows) in enumerate(zip(truths, predictions, strict=True)):
            for item in objects:
                left, top, right, bottom = item["box"]
                box, number = [left, top, right - left, bottom - top], len(annotations) + 1
                kind = {"image_id": image, "category_id": int(item["name"]), "iscrowd": 0, "id": number}
                annotations.append({**kind, "bbox": box, "area": box[2] * box[3]})
            for kind, score, left, top, right, bottom in rows.tolist():
                box = [left, top, right - left, bottom - top]
                results.append({"image_id": image, "category_id": int(kind), "bbox": box, "score": score})
        images = [{"id": image} for image in range(len(truths))]
        expected.dataset = {"info": {}, "images": images, "annotations": annotations}
        expected.dataset["categories"] = [{"id": number} for number in range(classes)]
        expected.createIndex()
        evaluation = COCOeval(expected, expected.loadRes(results), "bbox")
        for step in (evaluation.evaluate, evaluation.accumulate, evaluation.summarize):
            step()
        values["theirs"] = float(evaluation.stats[0])

    with contextlib.redirect_stdout(io.StringIO()):
        times = in_turn({"ours": ours, "theirs": theirs}, 1)
    if abs(values["ours"] - values["theirs"]) > 1e-9:
        raise RuntimeError(f"mAP is {values['ours']} by us and {values['theirs']} by pycocotools.")
    mine, others = times["ours"][0], times["theirs"][0]
    return [("evaluate: speed beside pycocotools", f"{mine:.1f} s", f"{others:.1f} s", others / mine, "≥ 5")]


def peak_of_a_step(backbone: str, edge: int) -> float:
    """The peak of this process after a step of a detector with Adam, in GB."""
    torch.manual_seed(0)
    names = [str(number) for number in range(80)]
    model, _ = new_detector(names, backbone)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    corners = torch.rand(4, 500, 2) * edge / 2
    boxes = torch.cat([corners, corners + edge / 8 + torch.rand(4, 500, 2) * edge / 3], dim=2)
    labels = torch.zeros(4, 80).index_fill(1, torch.tensor([3, 7]), 1)
    model.train()
    for _ in range(2):  # the second one has Adam's state
        loss = model([torch.rand(3, edge, edge) for _ in range(4)], boxes, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def measure_memory(size: Size) -> list[tuple[Any, ...]]:
    """The peak in a process of its own."""
    words = [sys.executable, __file__, "--memory-step", size.backbone, str(size.edge)]
    peak = float(subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()[-1])
    return [(f"memory: {size.backbone}, 4 × {size.edge} px × 500", f"{peak:.1f} GB", "6 GB", peak / 6, "≤ 1")]


PARTS = ("propose", "train", "collate", "evaluate", "memory")


def main() -> None:
    """Measures what the command line asks for, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts to measure")
    parser.add_argument("--size", choices=list(SIZES), default="full")
    parser.add_argument("--images", type=Path, help="captioned images that `propose` searches; scenes by default")
    parser.add_argument("--json", type=Path, help="write the rows here, too")
    parser.add_argument("--memory-step", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_step:
        backbone, edge = options.memory_step
        print(peak_of_a_step(backbone, int(edge)))
        return
    size, rows = SIZES[options.size], []
    for part in options.only:
        measure = globals()[f"measure_{part}"]
        rows += measure(size, options.images) if part == "propose" else measure(size)
    print(f"{platform.machine()}, {torch.get_num_threads()} thread(s), torch {torch.__version__}")
    for what, mine, against, ratio, asked in rows:
        print(f"{what:<46} {mine:>10} {against:>10} {ratio:>8.3f}  {asked}")
    if options.json:
        found = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
