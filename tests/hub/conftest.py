"""A Hub on this machine, and a user of it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
WRITER, READER, STRANGER = "hf_writerTOKENwriter", "hf_readerTOKENreader", "hf_strangerTOKENstranger"
"""The tokens that the loopback Hub knows: of `me` to write, of `me` to read, and of somebody else."""


def _load(name: str) -> Any:
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@dataclass
class Outcome:
    """What came of some code: what it printed, or the error that ended it."""

    out: str
    error: dict[str, Any] | None


class User:
    """Runs code in a process that knows the Hub's address and a token; variables stay between calls."""

    def __init__(self, endpoint: str, home: Path, token: str | None = WRITER) -> None:
        env = {name: value for name, value in os.environ.items() if name not in ("HF_HUB_OFFLINE", "HF_TOKEN")}
        env |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "OMP_NUM_THREADS": "1"}
        env |= {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "CUDA_VISIBLE_DEVICES": ""}
        env |= {"PYTHONWARNINGS": "ignore"} | ({"HF_TOKEN": token} if token else {})
        home.mkdir(parents=True, exist_ok=True)
        self.log_file = home / "log.txt"
        self._log = self.log_file.open("w", encoding="utf-8")
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "hub_worker.py")],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=home,
        )

    def attempt(self, code: str) -> Outcome:
        """Runs code; an error comes back."""
        self._process.stdin.write(json.dumps({"code": textwrap.dedent(code)}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, self.log()[-3000:]
        return Outcome(**{name: json.loads(line)[name] for name in ("out", "error")})

    def run(self, code: str) -> str:
        """Runs code that has to succeed, and gives what it printed."""
        outcome = self.attempt(code)
        assert outcome.error is None, outcome.error["all"][-4000:]
        return outcome.out

    def fails(self, code: str) -> dict[str, Any]:
        """Runs code that has to fail, and gives the error: `type`, `text`, `status` and the whole traceback."""
        outcome = self.attempt(code)
        assert outcome.error is not None, outcome.out
        return outcome.error

    def log(self) -> str:
        """All that the clients logged and printed, at the level DEBUG."""
        return self.log_file.read_text(encoding="utf-8")

    def close(self) -> None:
        """Ends the process."""
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._process.stdout.close()
        self._log.close()


@pytest.fixture(scope="session")
def _hub():
    with _load("loopback_hub").running_hub() as hub:
        yield hub


@pytest.fixture
def hub(_hub):
    """The loopback Hub, without failures."""
    _hub.heal()
    yield _hub
    _hub.heal()


@pytest.fixture(scope="session")
def user(_hub, tmp_path_factory):
    """`me`, with the right to write, everything imported that the tests use."""
    me = User(_hub.endpoint, tmp_path_factory.mktemp("me"))
    me.run(
        f"""
        import json, os, sys
        sys.path.append({str(HERE.parent / "helpers")!r})
        import launching
        launching.look_up_packages_once()
        launching.save_work_on_figures(setattr, draw=False)
        """
    )
    me.run(
        """
        from pathlib import Path
        import numpy as np
        from PIL import Image
        from datasets import Dataset, DatasetDict, load_dataset
        from hf_curriculum import *
        from hf_curriculum.provenance import ScoreProvenance, attach_provenance
        from hf_curriculum.streaming.index import BucketIndex
        from hf_curriculum.training.checkpoints import checkpoint_from_hub

        def rows(n, first=0):
            return Dataset.from_dict({
                "image": [Image.new("RGB", (8, 8), (5 * i % 256, 9, 9)) for i in range(first, first + n)],
                "image_id": [f"i{i}" for i in range(first, first + n)],
                "caption": ["word " * (1 + i % 7) for i in range(first, first + n)],
            })

        def scored(n=40, first=0):
            return add_scores(rows(n, first), CaptionLength())
        """
    )
    yield me
    me.close()


@pytest.fixture
def other_user(_hub, tmp_path):
    """`other_user(token)`: somebody with another token, or none."""
    opened = []

    def make(token=None):
        opened.append(User(_hub.endpoint, tmp_path / f"user{len(opened)}", token))
        return opened[-1]

    yield make
    for one in opened:
        one.close()
