"""Presets for today's GPUs: what is trained on is the paper's."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

RECIPES = Path(__file__).parents[2] / "recipes"
MACHINE = {
    *("optim", "torch_compile", "bf16", "fp16", "image_backend", "uint8_images", "accelerator_config"),
    *("dataloader_num_workers", "dataloader_prefetch_factor", "dataloader_persistent_workers"),
    "logging_nan_inf_filter",
}


@pytest.mark.parametrize("recipe", sorted(file.parent.name for file in RECIPES.glob("presets/*/paper_fast.yaml")))
def test_only_what_the_machine_does_differs_from_the_paper(recipe):
    with patch.object(sys, "path", [str(RECIPES), *sys.path]):
        parser = runpy.run_path(str(RECIPES / f"{recipe}.py"))["PARSER"]
    paper, fast = (parser.parse(["--preset", name]) for name in ("paper", "paper_fast"))
    paper, fast = ({**options.settings, **options.shared} for options in (paper, fast))
    differing = {name for name in paper.keys() | fast.keys() if paper.get(name) != fast.get(name)}
    assert {"torch_compile", "optim"} <= differing <= MACHINE
    assert fast["bf16"] is True
