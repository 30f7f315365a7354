"""Small stores of regions and of features, and what is done to their files."""

from __future__ import annotations

import numpy as np
from PIL import Image

from hf_curriculum.data.regions.base import Regions, RegionSource
from hf_curriculum.data.regions.pack import pack_regions
from hf_curriculum.data.regions.store import id_key

REPLACED = {
    "exchanged": lambda file, other: file.write_bytes(other.read_bytes()),
    "deleted": lambda file, other: None,
    "emptied": lambda file, other: file.touch(),
    "a link that leads nowhere": lambda file, other: file.symlink_to("nowhere"),
}
"""What is done with the file of a folder that tells which images it is of."""


class InMemory(RegionSource):
    """Regions from memory, as a source; an id may come twice."""

    def __init__(self, path, *regions):
        path.touch()
        super().__init__(path)
        self._regions = regions

    def _find(self):
        return {regions.image_id: regions for regions in self._regions}

    def _read(self, image_id, where):
        return where

    def scan(self, start=0):
        yield from list(enumerate(self._regions, 1))[start:]


def of(image_id, count=2, value=1.0, **parts):
    return Regions(image_id, features=np.full((count, 3), value, np.float32), **parts)


def packed(tmp_path, *regions, name="store", **options):
    return pack_regions(InMemory(tmp_path / "a", *regions), tmp_path / name, progress=False, **options)


def damage(file):
    """Another bit in the last byte of a file."""
    held = file.read_bytes()
    file.write_bytes(held[:-1] + bytes([held[-1] ^ 1]))


def around(ids):
    """Ids that are not among them, whose keys are below all, above all, and between."""
    keys = np.sort([id_key(image_id) for image_id in ids])
    places = {}
    for number in range(10_000):
        places.setdefault(int(np.searchsorted(keys, id_key(f"absent {number}"))), f"absent {number}")
    assert places.keys() == set(range(len(ids) + 1))
    return [places[place] for place in range(len(ids) + 1)]


def picture(seed):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (16, 16, 3), dtype=np.uint8))
