"""Where real data is, for the tests that look at some."""

from __future__ import annotations

import atexit
import functools
import gc
import logging
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer.testing
from launching import Launcher, look_up_packages_once, save_work_on_figures
from matplotlib.figure import Figure

# Several test processes, and those that tests start, share the cores: more threads each would only stand in the way.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A model that is not there is looked for on this machine alone, without waiting for a server.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
atexit.register(gc.unfreeze)  # else libraries speak of leaks
# The shell's commands are the same in every test, and each call would make all of them anew.
typer.testing._get_command = functools.cache(typer.testing._get_command)
look_up_packages_once()

LONGEST = (
    *("training/test_crash.py", "test_guides.py", "test_types.py", "training/test_selection_runs.py"),
    *("training/test_round_matrix.py", "training/test_accelerated.py", "models/test_auto_classes.py"),
    *("hub/test_loopback_data.py", "hub/test_loopback_models.py", "recipes/test_simi_cl.py", "models/git/test_git.py"),
    *("recipes/test_simi_cl_real.py", "test_failing_files.py", "scorers/text/test_pos_tagger.py"),
    *("curricula/test_filter_auto.py", "recipes/test_wsod.py", "recipes/test_discl.py", "recipes/test_tonics.py"),
    *("training/test_captioner.py", "training/test_any_trainer.py", "scoring/test_sharded.py"),
    *(
        "recipes/test_discl_papers.py",
        "scoring/test_score_on_ray.py",
        "scoring/test_one_digest.py",
        "tasks/captioning/test_caption_metrics.py",
    ),
    *(
        "tasks/captioning/test_caption_java.py",
        "test_wheel.py",
        "recipes/test_time_to_quality.py",
        "cli/test_new_user.py",
    ),
    *(
        "streaming/test_remote_stream.py",
        "recipes/test_tonics_real.py",
        "tasks/captioning/test_transformer.py",
        "hub/test_loopback_recipes.py",
    ),
    *("reporting/test_injection.py", "recipes/test_babylm_git_text.py", "test_damaged_files.py"),
    *("recipes/test_babylm_git_grid.py", "recipes/test_babylm_flamingo.py", "tasks/alignment/test_processes.py"),
    *("training/test_vlm_trainers.py", "training/test_weight_column.py", "training/test_stress.py"),
    *("training/test_compiled.py", "recipes/test_reference_model.py", "tasks/captioning/test_self_critical.py"),
    *("recipes/test_babylm_console.py", "recipes/test_vlm_sft.py", "hub/test_space_page.py", "test_shown.py"),
    *("test_notebooks.py", "test_site.py", "recipes/test_examples.py"),
)
"""Files of slow tests that take longest, the longest first."""


def pytest_configure(config: pytest.Config) -> None:
    """Hides the GPU but from tests of it; `xdist` begins with the files of most tests, not with a long file of few."""
    if "gpu" not in config.option.markexpr.replace("not gpu", ""):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # what a CPU computes is compared bit for bit
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m slow`, files in which no test is slow are not imported."""
    is_tests = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    if is_tests and config.option.markexpr == "slow" and "slow" not in collection_path.read_text(encoding="utf-8"):
        return True
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take longest first where they have slow tests, then those of most tests."""
    root = Path(__file__).parent
    tests = Counter(item.path for item in items)
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    places = {root / name: place for place, name in enumerate(LONGEST) if root / name in slow}
    items.sort(key=lambda item: (places.get(item.path, len(LONGEST)), -tests[item.path]))


@pytest.fixture(autouse=True, scope="module")
def only_new_garbage_is_collected() -> None:
    """Every `Trainer.train` collects garbage, which takes long where libraries of millions of objects are loaded."""
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def notes_are_shown() -> None:
    """A recipe's run hides the trainer's notes until it ends, and one that a test makes fail never does."""
    logging.getLogger("hf_curriculum.training.callbacks").filters.clear()


_DRAW = Figure.draw


@pytest.fixture(autouse=True, scope="module")
def figures_stay_empty(request: pytest.FixtureRequest) -> Iterator[None]:
    """Drawing a report takes as long as a tiny run; what figures look like is tested where figures are."""
    with pytest.MonkeyPatch.context() as patch:
        if request.path.parent.name not in ("reporting", "studies"):
            save_work_on_figures(patch.setattr, draw=False)
        yield


@pytest.fixture
def drawn_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are drawn, coarsely: for a test in which a recipe's own data are on them."""
    monkeypatch.setattr(Figure, "draw", _DRAW)


@pytest.fixture(scope="session")
def launch() -> Iterator[Callable]:
    """`launch(program, *arguments)` runs a file, or a module by its name: see `launching.Launcher.run`."""
    launcher = Launcher()
    yield launcher.run
    launcher.close()


@pytest.fixture
def call_main(launch: Callable, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`call_main(script, *options)` runs a script's `main` here; what it starts itself by its file is launched."""

    def call(script: ModuleType, *options: object) -> None:
        run = subprocess.run

        def run_or_launch(command: list[str], **others: Any) -> subprocess.CompletedProcess:
            is_own = command[:2] == [sys.executable, script.__file__]
            return launch(Path(script.__file__), *command[2:]) if is_own else run(command, **others)

        monkeypatch.setattr(subprocess, "run", run_or_launch)
        monkeypatch.setattr(sys, "argv", [script.__file__, *map(str, options)])
        script.main()

    return call


@pytest.fixture
def datasets_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """`datasets` keeps what it makes in a folder of this test's, outside of its `tmp_path`."""
    with pytest.MonkeyPatch.context() as patch:  # its own: tests undo theirs
        patch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
        yield


@pytest.fixture
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test writes need not outlive a loss of power, for which a disk takes its time."""
    monkeypatch.setattr(os, "fsync", lambda number: None)


@pytest.fixture
def test_data() -> Callable[[str], Path]:
    """`test_data("flickr8k")`: that folder of HF_CURRICULUM_TEST_DATA; skips the test where there is none."""

    def find(name: str) -> Path:
        root = os.environ.get("HF_CURRICULUM_TEST_DATA")
        if root is None or not (Path(root) / name).exists():
            pytest.skip(f"HF_CURRICULUM_TEST_DATA has no {name}")
        return Path(root) / name

    return find
