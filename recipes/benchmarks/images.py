"""What an image costs before a model sees it: JPEGs → batches of 224 × 224, beside stock processors and torchvision.

    python recipes/benchmarks/images.py FOLDER [FOLDER ...] [--output PAGE.md]

The folders hold photographs as JPEGs. Their first 64 are stored anew at 640 × 480 and 256 × 256, in quality 90, and
every side decodes, resizes and stacks them in batches of 32 from the files' bytes, by turns on one thread: the best
CPU time of each counts. Sides that promise equal numbers are compared. A second table says by how much the pixels of
other ways differ from Pillow's, over all photographs as they are.
"""

from __future__ import annotations

import argparse
import io
import time
from collections.abc import Callable
from pathlib import Path

import datasets
import numpy as np
import torch
from PIL import Image
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional
from transformers import ViTImageProcessor, ViTImageProcessorPil

from hf_curriculum import make_image_processor
from hf_curriculum.data.image_inputs import PixelInputs

SIZE, BATCH, IMAGES = 224, 32, 64
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FIRST = "ours, Pillow"
Side = Callable[[list[bytes]], torch.Tensor]


def ours(numbers: bool, **options: object) -> Side:
    """What a collator does with rows that hold files."""
    inputs = PixelInputs(make_image_processor(SIZE, MEAN, STD, **options))
    inputs = inputs if numbers else inputs.as_bytes()
    return lambda files: inputs.batch({"image": file} for file in files)["pixel_values"]


def stock(processor: ViTImageProcessor | ViTImageProcessorPil) -> Side:
    """A processor of `transformers` for images that Pillow decodes."""
    return lambda files: processor(
        [Image.open(io.BytesIO(file)).convert("RGB") for file in files], return_tensors="pt"
    )["pixel_values"]


def torchvision(files: list[bytes]) -> torch.Tensor:
    """Torchvision's own decoder and transforms."""
    bicubic, made = InterpolationMode.BICUBIC, []
    for file in files:
        image = decode_jpeg(torch.frombuffer(bytearray(file), dtype=torch.uint8), ImageReadMode.RGB)
        made.append(functional.resize(image, [SIZE, SIZE], bicubic, antialias=True))
    return torch.stack(made)


def normalised(pixels: torch.Tensor) -> torch.Tensor:
    """As torchvision's transforms normalise a batch of bytes."""
    return functional.normalize(functional.to_dtype(pixels, torch.float32, scale=True), list(MEAN), list(STD))


def of_dataset(files: list[bytes], processor: ViTImageProcessorPil) -> Side:
    """A stock processor in the `set_transform` of a data set that decodes its images."""
    rows = {"image": [{"bytes": file, "path": None} for file in files]}
    data = datasets.Dataset.from_dict(rows, datasets.Features({"image": datasets.Image()}))
    places = {file: row for row, file in enumerate(files)}
    data.set_transform(lambda batch: dict(processor(batch["image"], return_tensors="pt")))
    return lambda batch: data[[places[file] for file in batch]]["pixel_values"]


def sides_of(files: list[bytes]) -> dict[str, Side]:
    """All ways to make a batch, by name."""
    settings = {"size": {"height": SIZE, "width": SIZE}, "resample": Image.Resampling.BICUBIC}
    settings |= {"image_mean": list(MEAN), "image_std": list(STD)}
    of_pil, of_torch = ViTImageProcessorPil(**settings), ViTImageProcessor(**settings)
    return {
        FIRST: ours(True),
        "ours, Pillow, bytes": ours(False),
        "ours, Pillow and `draft`": ours(True, draft=True),
        "ours, torchvision": ours(True, backend="torchvision"),
        "ours, torchvision, bytes": ours(False, backend="torchvision"),
        "ours, torchvision and `draft`, bytes": ours(False, backend="torchvision", draft=True),
        "torchvision alone": lambda batch: normalised(torchvision(batch)),
        "torchvision alone, bytes": torchvision,
        "stock processor, torchvision": stock(of_torch),
        "stock processor, Pillow": stock(of_pil),
        "`datasets` and stock processor, Pillow": of_dataset(files, of_pil),
    }


def measure(files: list[bytes], repetitions: int) -> dict[str, tuple[float, int]]:
    """CPU milliseconds per image and bytes of a batch of each side."""
    sides = sides_of(files)
    batches = [files[start : start + BATCH] for start in range(0, len(files), BATCH)]
    made = {name: side(batches[0]) for name, side in sides.items()}
    for same in ("stock processor, Pillow", "`datasets` and stock processor, Pillow"):
        assert torch.equal(made[FIRST], made[same]), same
    assert torch.equal(made["ours, torchvision"], made["stock processor, torchvision"])
    assert torch.equal(made["ours, torchvision, bytes"], made["torchvision alone, bytes"])
    best = dict.fromkeys(sides, float("inf"))
    for _ in range(repetitions):
        for name, side in sides.items():
            start = time.process_time()
            for batch in batches:
                side(batch)
            best[name] = min(best[name], 1000 * (time.process_time() - start) / len(files))
    return {name: (best[name], made[name].nbytes) for name in sides}


def differences(paths: list[Path]) -> list[str]:
    """Rows of a table: how far bytes are from Pillow's, 0…255."""
    rows = []
    for resample, size, options in (
        *(("bilinear", size, {"backend": "torchvision"}) for size in (64, 224)),
        *(("bicubic", size, {"backend": "torchvision"}) for size in (64, 224)),
        ("bicubic", 64, {"draft": True}),
    ):
        both = [PixelInputs(make_image_processor(size, resample=resample, **one)).as_bytes() for one in ({}, options)]
        counts = np.zeros(256, np.int64)
        for path in paths:
            first, second = (one.read({"image": path})["pixel_values"].int() for one in both)
            counts += np.bincount((first - second).abs().flatten().numpy(), minlength=256)
        share = counts / counts.sum()
        told = f"{share @ np.arange(256):.3f} | {1 - share[0]:.2%} | {share[2:].sum():.4%} | {counts.nonzero()[0][-1]}"
        rows.append(f"| {'`draft`' if 'draft' in options else 'torchvision'} | {resample} | {size} | {told} |")
    return rows


def stored(path: Path, size: tuple[int, int]) -> bytes:
    """A photograph as a JPEG of another size."""
    file = io.BytesIO()
    Image.open(path).convert("RGB").resize(size, Image.Resampling.LANCZOS).save(file, "JPEG", quality=90)
    return file.getvalue()


def main() -> None:
    """Measures and prints, or writes a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--output", type=Path, help="a Markdown file")
    given = parser.parse_args()
    torch.set_num_threads(1)
    paths = sorted(path for folder in given.folders for path in folder.rglob("*.jpg"))
    large, small = (
        measure([stored(path, size) for path in paths[:IMAGES]], given.repetitions)
        for size in ((640, 480), (256, 256))
    )
    costs = [
        f"| {name} | {taken:.2f} | {taken / large[FIRST][0]:.2f} | {small[name][0]:.2f} | "
        f"{small[name][0] / small[FIRST][0]:.2f} | {held:,} |"
        for name, (taken, held) in large.items()
    ]
    text = (
        f"JPEG → {SIZE} × {SIZE}, CPU time an image on one thread, best of {given.repetitions}; ratios to the first "
        f"row.\n\n"
        "| | 640 × 480, ms | ratio | 256 × 256, ms | ratio | bytes of a batch |\n|---|---:|---:|---:|---:|---:|\n"
        + "\n".join(costs)
        + f"\n\nBytes of {len(paths)} photographs beside Pillow's, in steps of 0…255.\n\n"
        "| by | filter | size | mean | differ | by more than 1 | most |\n|---|---|---:|---:|---:|---:|---:|\n"
        + "\n".join(differences(paths))
        + "\n"
    )
    print(text)
    if given.output is not None:
        given.output.write_text(f"# Images\n\n{text}", encoding="utf-8")


if __name__ == "__main__":
    main()
