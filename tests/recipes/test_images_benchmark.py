"""The benchmark of image preparation runs, at a number of images that says nothing about speed."""

from __future__ import annotations

import re

import numpy as np
from benchmarks import images
from PIL import Image


def test_it_compares_equal_sides_and_counts_bytes(tmp_path, monkeypatch, capsys):
    for number in range(2):
        pixels = np.random.default_rng(number).integers(0, 256, (6, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((80, 60)).save(tmp_path / f"{number}.jpg")
    words = ["images", str(tmp_path), "--repetitions", "1", "--output", str(tmp_path / "page.md")]
    monkeypatch.setattr("sys.argv", words)
    images.main()
    told = capsys.readouterr().out
    assert (tmp_path / "page.md").read_text() == f"# Images\n\n{told[:-1]}"
    sizes = {
        name: int(held.replace(",", "")) for name, held in re.findall(r"^\| ([^|]+) \|.* \| ([\d,]+) \|$", told, re.M)
    }
    assert sizes["ours, Pillow"] == 2 * 3 * 224 * 224 * 4
    assert sizes["ours, torchvision, bytes"] == 2 * 3 * 224 * 224
    assert len(re.findall(r"^\| (?:torchvision|`draft`) \|", told, re.M)) == 5
