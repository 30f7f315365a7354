"""Where real data is, for the tests that look at some."""

from __future__ import annotations

import atexit
import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launching import Launcher

# Several test processes, and those that tests start, share the cores: more threads each would only stand in the way.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A model that is not there is looked for on this machine alone, without waiting for a server.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
atexit.register(gc.unfreeze)  # else libraries speak of leaks


@pytest.fixture(autouse=True, scope="module")
def only_new_garbage_is_collected() -> None:
    """Every `Trainer.train` collects garbage, which takes long where libraries of millions of objects are loaded."""
    gc.freeze()


@pytest.fixture(scope="session")
def launch() -> Iterator[Callable]:
    """`launch(program, *arguments)` runs a file, or a module by its name: see `launching.Launcher.run`."""
    launcher = Launcher()
    yield launcher.run
    launcher.close()


@pytest.fixture
def test_data() -> Callable[[str], Path]:
    """`test_data("flickr8k")`: that folder of HF_CURRICULUM_TEST_DATA; skips the test where there is none."""

    def find(name: str) -> Path:
        root = os.environ.get("HF_CURRICULUM_TEST_DATA")
        if root is None or not (Path(root) / name).exists():
            pytest.skip(f"HF_CURRICULUM_TEST_DATA has no {name}")
        return Path(root) / name

    return find
