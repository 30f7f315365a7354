"""The examples in the docstrings print what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import hf_curriculum

ON_YOUR_OWN_DATA = {
    *("hub.data_card", "reporting.report", "scoring.sharded", "training.trainer"),
    *("streaming.dataset", "streaming.index", "streaming.plan", "streaming.save", "studies.study", "studies.tables"),
}
"""Modules whose examples show calls on files or data sets that a reader has."""

NEEDS = {
    **dict.fromkeys(("data.proposals", "scorers.visual.proposals", "tasks.detection.proposals"), "cv2"),
    "tasks.detection.model": "torchvision",
    "tasks.long_tail.generation.pixel_diffusion": "diffusers",
}
"""The packages that examples need and that are not always installed."""

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(hf_curriculum.__path__, "hf_curriculum.")
    if module.name.removeprefix("hf_curriculum.") not in {"cli.__main__", *ON_YOUR_OWN_DATA}
)


@pytest.mark.parametrize("name", MODULES)
def test_its_examples_hold(name):
    if needed := NEEDS.get(name.removeprefix("hf_curriculum.")):
        pytest.importorskip(needed)
    packages = [hf_curriculum]
    if name.startswith("hf_curriculum.tasks."):
        packages.append(importlib.import_module(".".join(name.split(".")[:3])))
    public = {name: getattr(package, name) for package in packages for name in package.__all__}
    module = importlib.import_module(name)
    assert doctest.testmod(module, extraglobs=public, optionflags=doctest.NORMALIZE_WHITESPACE).failed == 0
