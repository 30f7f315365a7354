"""Runs test suites of Hugging Face's libraries twice: as they are, and with this library's classes in place.

Of the tests that pass as they are, those that fail with our classes are printed, with the first line of their error:
`CurriculumTrainer` for `Trainer`, `with_curriculum(SFTTrainer)` for `SFTTrainer` (and so for TRL's DPO and Reward, and
for Sentence Transformers' trainer), `CaptionGitForCausalLM` for `GitForCausalLM`, `CurriculumSampler` below
`BatchSampler`, and a `Component` (the base of scorers) around all that `datasets` hashes. The suites come from
checkouts (a folder or a bare repository). Placeholders stand in for names that a newer installed release no longer
has, so that an older suite can be imported.

    python recipes/benchmarks/upstream_suites.py --transformers path/to/transformers \\
        --accelerate path/to/accelerate --datasets path/to/datasets --trl path/to/trl \\
        --sentence-transformers path/to/sentence-transformers

The models and data of the suites of TRL and Sentence Transformers come from the Hub's cache: fill it first, or give
stand-ins under the same names (a plugin that replaces `datasets.load_dataset` goes in `PYTEST_ADDOPTS="-p plugin"`).
`parameterized`, `sentencepiece`, `httpx` and `pytest-datadir` are needed too. A suite of another release than the one
installed has tests that fail as they are; those count nowhere.
"""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable
from importlib import import_module
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any

SUITES = {
    "transformers": (
        "tests/trainer/test_trainer.py",
        "tests/trainer/test_trainer_callback.py",
        "tests/trainer/test_trainer_seq2seq.py",
        "tests/trainer/test_training_args.py",
        "tests/models/git/test_modeling_git.py",
    ),
    "accelerate": ("tests/test_data_loader.py",),
    "datasets": ("tests/test_fingerprint.py", "tests/test_arrow_dataset.py"),
    "trl": ("tests/test_sft_trainer.py", "tests/test_dpo_trainer.py", "tests/test_reward_trainer.py"),
    "sentence_transformers": (
        "tests/sentence_transformer/test_trainer.py",
        "tests/base/test_trainer.py",
        "tests/sentence_transformer/test_training_args.py",
    ),
}
OTHERS = {
    "trl": ("SFTTrainer", "DPOTrainer", "RewardTrainer"),
    "sentence_transformers": ("SentenceTransformerTrainer",),
}
"""Trainers of other libraries that get a curriculum."""
PARTS = {"tests/test_arrow_dataset.py": "caching or stateful or keep_features or load_from_cache"}
"""Of these files only a part, as pytest's `-k` names it."""
SIDE = "UPSTREAM_SUITES_SIDE"
"""The environment variable that tells a run of pytest which side it is: "stock" or "ours"."""
PLACEHOLDER = type("Removed", (), {})


# ---- As a plugin of pytest ----


def pytest_configure(config: Any) -> None:
    """Puts the classes in place before any test is imported."""
    shared = [Path("tests", name) for name in ("", "generation", "pipelines", "utils")]
    folders = {*shared, *(Path(one).parent for one in config.args)}
    for path in sorted(path for folder in folders for path in folder.glob("*.py")):
        fill_in_removed(path)
    if os.environ.get(SIDE) == "ours":
        put_in_place()


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Exchanges other libraries' trainers and arguments in the modules of tests: each keeps its own in its place."""
    if os.environ.get(SIDE) != "ours":
        return
    from hf_curriculum import with_curriculum
    from hf_curriculum.training.setup import arguments_of

    ours: dict[int, type] = {}
    for library, names in OTHERS.items():
        for trainer in (getattr(sys.modules[library], name) for name in names if library in sys.modules):
            made = with_curriculum(trainer)
            ours |= {id(trainer): made, id(arguments_of(trainer)): made.args_class}
    for module in {item.module for item in items}:
        for name, value in list(vars(module).items()):
            if id(value) in ours:
                setattr(module, name, ours[id(value)])


def give(module: str, names: dict[str, Any]) -> None:
    """Sets names of a module of `transformers`, also should it be imported anew, as some of its own imports do."""
    from transformers.utils.import_utils import _LazyModule

    for name, value in names.items():
        setattr(sys.modules[module], name, value)
    stock = _LazyModule.__getattr__

    def look_up(self: Any, name: str) -> Any:
        return names[name] if self.__name__ == module and name in names else stock(self, name)

    _LazyModule.__getattr__ = look_up


def put_in_place() -> None:
    """Exchanges the classes under their stock names."""
    import torch
    import transformers

    from hf_curriculum import CurriculumTrainer, CurriculumTrainingArguments, with_curriculum
    from hf_curriculum.models.git.model import CaptionGitForCausalLM, CaptionGitModel

    seq2seq = with_curriculum(transformers.Seq2SeqTrainer)
    names = {
        "Trainer": CurriculumTrainer,
        "TrainingArguments": CurriculumTrainingArguments,
        "Seq2SeqTrainer": seq2seq,
        "Seq2SeqTrainingArguments": seq2seq.args_class,
        "GitConfig": git_config_class(),
        # Suites know by its name that a model without a head has no loss.
        "GitModel": type("GitModel", (CaptionGitModel,), {}),
        "GitForCausalLM": CaptionGitForCausalLM,
    }
    give("transformers", names)
    hash_components()
    stock = torch.utils.data.BatchSampler

    class PlannedBatchSampler(stock):
        """`BatchSampler` over `range(n)` as the sampler of a plan in the data's order."""

        def __init__(self, sampler: Any, batch_size: int, drop_last: bool) -> None:
            super().__init__(in_order(sampler), batch_size, drop_last)

    torch.utils.data.BatchSampler = torch.utils.data.sampler.BatchSampler = PlannedBatchSampler


def hash_components() -> None:
    """Lets `datasets` hash a component that has the value in an attribute, in place of the value."""
    from datasets.fingerprint import Hasher

    from hf_curriculum.scorers.base import Component

    class Holder(Component):
        def __init__(self, value: Any) -> None:
            self.value = value

    stock = Hasher.hash.__func__
    Hasher.hash = classmethod(lambda cls, value: stock(cls, Holder(value)))


def git_config_class() -> type:
    """`CaptionGitConfig` with the defaults of stock's `GitConfig`."""
    from hf_curriculum.models.git.config import CaptionGitConfig

    class GitConfig(CaptionGitConfig):
        def __init__(self, vision_config: Any = None, **fields: Any) -> None:
            if vision_config is None or isinstance(vision_config, dict):
                vision_config = {"model_type": "git_vision_model", **(vision_config or {})}
            super().__init__(vision_config, **{"tie_word_embeddings": False, "output_bias": True, **fields})

    return GitConfig


def in_order(sampler: Any) -> Any:
    """The rows of `range(n)` as a `CurriculumSampler` that draws one example a step, in the data's order."""
    if not isinstance(sampler, range) or sampler != range(len(sampler)) or not sampler:
        return sampler
    import numpy as np

    from hf_curriculum import IID, CurriculumSampler, Stage, make_plan

    class InOrder(IID):
        """One stage for each row."""

        def stages(self, ranking: Any, budget: Any, log: Any = ()) -> tuple[Stage, ...]:
            return tuple(Stage(n, f"row {n}", "in order", ((n, n + 1),), 1) for n in range(len(ranking)))

    return CurriculumSampler(make_plan(InOrder(epochs=1), np.arange(len(sampler)), global_batch_size=1))


def fill_in_removed(path: Path) -> None:
    """Gives libraries a placeholder for each name that a file of tests imports and they have lost."""
    parts = [
        node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom)
    ]
    parts = [node for node in parts if (node.module or "").partition(".")[0] in ("transformers", *OTHERS)]
    for node in parts:
        try:
            import_module(node.module)
        except ImportError:
            sys.modules[node.module] = ModuleType(node.module)
    for node in parts:
        module = sys.modules[node.module]
        removed = {alias.name: PLACEHOLDER for alias in node.names if not hasattr(module, alias.name)}
        if removed:
            give(node.module, removed)


# ---- As a program ----


def main() -> None:
    """Runs both sides and prints what differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in SUITES:
        parser.add_argument(flag(name), type=Path, help="a checkout, or a bare repository")
    parser.add_argument("--files", default="", help="only the files of tests whose name has this in it")
    parser.add_argument("-k", help="as pytest's: a part of the tests")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds of a side of a suite")
    options = parser.parse_args()
    chosen = {name: getattr(options, name) for name in SUITES if getattr(options, name)}
    if not chosen:
        parser.error(f"name at least one checkout: {', '.join(flag(name) for name in SUITES)}")
    for name, checkout in chosen.items():
        with tempfile.TemporaryDirectory() as folder:
            export(checkout, Path(folder))
            for file in (file for file in SUITES[name] if options.files in file):
                found = {side: run(Path(folder), file, side, options) for side in ("stock", "ours")}
                print(*compared(file, found["stock"], found["ours"]), sep="\n", flush=True)


def flag(name: str) -> str:
    """The option of a library's checkout."""
    return f"--{name.replace('_', '-')}"


def export(checkout: Path, folder: Path) -> None:
    """The tests of a checkout's newest commit, without its package, which would hide the installed one."""
    listed = subprocess.run(
        ["git", "-C", checkout, "ls-tree", "--name-only", "HEAD", "tests", "utils", "conftest.py"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    archive = ["git", "-C", str(checkout), "archive", "HEAD", *listed.stdout.split()]
    files = subprocess.run(archive, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=BytesIO(files)) as opened:
        opened.extractall(folder, filter="data")
    (folder / "src").mkdir()  # where suites look for the package's source
    for name in SUITES:
        (folder / "src" / name).symlink_to(Path(import_module(name).__file__).parent)


def run(folder: Path, file: str, side: str, options: argparse.Namespace) -> dict[str, str]:
    """Each test's outcome: "" where it passed, else the first line of its error; skipped ones are left out."""
    report = folder / f"{side}.xml"
    here = str(Path(__file__).parent)
    paths = os.pathsep.join([here, str(folder), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, SIDE: side, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"}
    words = ["-p", Path(__file__).stem, "-q", "--tb=line", f"--junitxml={report}", file]
    part = " and ".join(f"({one})" for one in (PARTS.get(file), options.k) if one)
    words += ["-k", part] if part else []
    subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=folder, env=environment, stdout=sys.stderr, check=False, timeout=options.timeout,
    )  # fmt: skip
    return dict(outcomes(ElementTree.parse(report)))


def outcomes(report: ElementTree.ElementTree) -> Iterable[tuple[str, str]]:
    """Names and outcomes in a JUnit report."""
    for case in report.iter("testcase"):
        if case.find("skipped") is None:
            fault = case.find("failure") if case.find("error") is None else case.find("error")
            message = "" if fault is None else (fault.get("message") or "failed").splitlines()[0]
            yield f"{case.get('classname').rpartition('.')[2]}.{case.get('name')}", message


def compared(file: str, stock: dict[str, str], ours: dict[str, str]) -> list[str]:
    """The lines about one file of tests."""
    passed = [name for name, fault in stock.items() if not fault]
    failed = [name for name in passed if ours.get(name, "was not run")]
    lines = [f"{file}: {len(passed)} pass as they are, {len(passed) - len(failed)} of them with our classes"]
    return lines + [f"  {name}: {ours.get(name, 'was not run')}" for name in failed]


if __name__ == "__main__":
    main()
