"""What a store of regions brings: random batches of images' features, padded, as float32, by each way to keep them.

    python recipes/benchmarks/captions_store.py                               # 300 images, half a minute
    python recipes/benchmarks/captions_store.py --images 1500 --batches 150   # 0.7 GB as float32, minutes

An image has 10 to 100 regions of 2,048 numbers, as bottom-up attention's. The sides take turns over the same random
batches, and the best turn of each counts: the process's own time (`cpu`) and the clock's (`wall`). Before that every
side must give equal batches. `GB/s` counts the features alone, as float32, whatever was read or padded to give them.

- `bare pread`: the images' bytes one after the other, all of a batch kept; nothing is padded or converted.
- `bare pread, padded`: the same, read into a padded batch of zeros: the least that any batch for a model takes.
- `store`: `RegionStore.read_batch`; `store, image by image`: `features` of each, then padded.
- `table`: bottom-up attention's .tsv by `RegionTable`; `npz`: a compressed .npz per image, as the reference
  repositories write them, by `FeatureFolder`.

All files are in the system's cache. `cold` rows are read after the system was asked to drop the file from it, by the
clock alone: there the disk decides.
"""

from __future__ import annotations

import argparse
import base64
import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hf_curriculum.data.regions.open import open_regions
from hf_curriculum.data.regions.pack import pack_regions
from hf_curriculum.data.regions.store import RegionStore
from hf_curriculum.data.regions.values import stack_regions

LEAST, MOST = 10, 100  # regions of an image
Batch = tuple[torch.Tensor, torch.Tensor]


def write_sources(folder: Path, images: int, dims: int) -> None:
    """A table of bottom-up attention, and a folder with a compressed .npz per image, of the same regions."""
    draws = np.random.default_rng(0)
    (folder / "att").mkdir()
    with open(folder / "butd.tsv", "wb") as table:
        for image in range(images):
            count = int(draws.integers(LEAST, MOST + 1))
            # Half of a ReLU's features are zeros, which is what compression finds in real ones.
            features = np.maximum(draws.standard_normal((count, dims), dtype=np.float32), 0)
            corners = draws.random((count, 2), dtype=np.float32) * 300
            boxes = np.concatenate([corners, corners + 100], axis=1)
            arrays = [base64.b64encode(np.ascontiguousarray(part)) for part in (boxes, features)]
            table.write(b"\t".join([str(image).encode(), b"640", b"480", str(count).encode(), *arrays]) + b"\n")
            np.savez_compressed(folder / "att" / f"{image}.npz", feat=features)


def padded(features: Sequence[torch.Tensor]) -> Batch:
    """A batch of images' features, read one by one."""
    batch = stack_regions([{"region_features": values} for values in features])
    return batch["region_features"], batch["region_mask"]


class Bare:
    """Reads of the same bytes as a float32 store's, by `pread` alone."""

    def __init__(self, store: RegionStore) -> None:
        self.file = os.open(Path(store.path) / "features.npy", os.O_RDONLY)
        self.width = store.facts["dims"] * 4
        self.start = np.load(Path(store.path) / "features.npy", mmap_mode="r").offset
        offsets = np.load(Path(store.path) / "offsets.npy").tolist()
        self.spans = dict(zip(store, itertools.pairwise(offsets), strict=True))

    def read(self, ids: Sequence[str]) -> list[bytes]:
        """The bytes of each image."""
        spans = [self.spans[image_id] for image_id in ids]
        return [
            os.pread(self.file, (stop - first) * self.width, self.start + first * self.width) for first, stop in spans
        ]

    def read_padded(self, ids: Sequence[str]) -> Batch:
        """The same in a batch of zeros, and its mask."""
        spans = [self.spans[image_id] for image_id in ids]
        most = max(stop - first for first, stop in spans)
        batch, mask = np.zeros((len(ids), most, self.width // 4), np.float32), np.zeros((len(ids), most), np.int64)
        for image, (first, stop) in enumerate(spans):
            os.preadv(self.file, [batch[image, : stop - first]], self.start + first * self.width)
            mask[image, : stop - first] = 1
        return torch.from_numpy(batch), torch.from_numpy(mask)


def check(sides: dict[str, Callable[[Sequence[str]], Batch]], ids: Sequence[str], wanted: Batch) -> None:
    """Raises unless every side gives the wanted batch."""
    for name, side in sides.items():
        features, mask = side(ids)
        tolerance = 2e-3 if "float16" in name else 0.0
        if not torch.equal(mask, wanted[1]) or not torch.allclose(features, wanted[0], atol=tolerance, rtol=tolerance):
            raise ValueError(f"The side {name!r} gives another batch of the images {list(ids)}.")


def drop_from_cache(path: Path) -> None:
    """Asks the system to forget what it has of a file in memory."""
    file = os.open(path, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


def measure(sides: dict[str, Callable[[Sequence[str]], Any]], batches: Sequence[Sequence[str]], turns: int) -> dict:
    """Best CPU and wall seconds of each side over all batches, the sides taking turns."""
    best = {name: [np.inf, np.inf] for name in sides}
    for _ in range(turns):
        for name, side in sides.items():
            cpu, wall = time.process_time(), time.perf_counter()
            for ids in batches:
                side(ids)
            spent = time.process_time() - cpu, time.perf_counter() - wall
            best[name] = [min(pair) for pair in zip(best[name], spent, strict=True)]
    return best


def run(
    images: int = 300, dims: int = 2048, batch_size: int = 10, batches: int = 30, turns: int = 5
) -> list[dict[str, Any]]:
    """A row per side: `side`, `cpu`, `wall` (seconds), `gb_per_s`, and `to_bare`, `to_padded`, its speed to theirs."""
    with tempfile.TemporaryDirectory() as folder:
        return _run(Path(folder), images, dims, batch_size, batches, turns)


def _run(folder: Path, images: int, dims: int, batch_size: int, batches: int, turns: int) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    write_sources(folder, images, dims)
    table, npz = open_regions(folder / "butd.tsv"), open_regions(folder / "att")
    stores = {
        dtype: pack_regions(table, folder / dtype, dtype=dtype, progress=False) for dtype in ("float32", "float16")
    }
    bare, store = Bare(stores["float32"]), stores["float32"]
    sides: dict[str, Callable[[Sequence[str]], Batch]] = {
        "bare pread, padded": bare.read_padded,
        "store": store.read_batch,
        "store, float16": stores["float16"].read_batch,
        "store, image by image": lambda ids: padded([store.features(image_id) for image_id in ids]),
        "table": lambda ids: padded([torch.from_numpy(np.array(table[image_id].features)) for image_id in ids]),
        "npz": lambda ids: padded([torch.from_numpy(npz[image_id].features) for image_id in ids]),
    }
    draws = np.random.default_rng(1)
    drawn = [list(map(str, draws.choice(images, batch_size, replace=False))) for _ in range(batches)]
    check(sides, drawn[0], bare.read_padded(drawn[0]))
    slow = {name: sides.pop(name) for name in ("table", "npz")}
    found = measure({"bare pread": bare.read, **sides}, drawn, turns)
    some = max(1, batches // 5)  # the slow ones read fewer batches
    found |= {
        name: [part * batches / some for part in spent] for name, spent in measure(slow, drawn[:some], 2).items()
    }
    for name, side in (("bare pread", bare.read), ("store", store.read_batch)):
        walls = []
        for _ in range(2):
            drop_from_cache(folder / "float32" / "features.npy")
            walls.append(measure({"cold": side}, drawn[:some], 1)["cold"][1] * batches / some)
        found[f"{name}, cold"] = [float("nan"), min(walls)]
    spans = [bare.spans[image_id] for ids in drawn for image_id in ids]
    size = sum(stop - first for first, stop in spans) * dims * 4
    return [_row(name, cpu, wall, size, found) for name, (cpu, wall) in found.items()]


def _row(name: str, cpu: float, wall: float, size: int, found: dict[str, Sequence[float]]) -> dict[str, Any]:
    cold = name.endswith("cold")
    seconds = wall if cold else cpu
    bare = found["bare pread, cold"][1] if cold else found["bare pread"][0]
    ratios = {"to_bare": bare / seconds}
    ratios |= {} if cold else {"to_padded": found["bare pread, padded"][0] / seconds}
    ratios |= {f"to_{other}": found[other][0] / seconds for other in ("table", "npz") if not cold}
    return {"side": name, "cpu": None if cold else cpu, "wall": wall, "gb_per_s": size / seconds / 1e9, **ratios}


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the rows as a table, and as JSON into a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default, told in (
        ("images", 300, "of the data"), ("dims", 2048, "numbers of a region"), ("batch-size", 10, "images"),
        ("batches", 30, "random batches of a turn"), ("turns", 5, "of each side"),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{told} (default {default})")
    parser.add_argument("--json", type=Path, help="write the rows here too")
    options = vars(parser.parse_args(arguments))
    out = options.pop("json")
    rows = run(**options)
    columns = ("cpu", "wall", "gb_per_s", "to_bare", "to_padded", "to_table", "to_npz")
    print(f"{'side':24}" + "".join(f"{name:>12}" for name in columns))
    for row in rows:
        values = [row.get(name) for name in columns]
        print(f"{row['side']:24}" + "".join(f"{'' if value is None else f'{value:.3g}':>12}" for value in values))
    if out is not None:
        out.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
