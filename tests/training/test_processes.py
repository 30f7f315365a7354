"""`close_process_group`: no thread of the group is left to run into the interpreter's end."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from hf_curriculum.training.setup import close_process_group

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")


def num_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def wrapped_and_forgotten() -> None:
    """A step of a model that holds the group, and is itself held by a cycle, as `Trainer`'s is."""
    model = DistributedDataParallel(torch.nn.Linear(3, 1))
    model.held_by = [model]
    model(torch.ones(2, 3)).sum().backward()


def test_a_wrapped_model_does_not_keep_its_threads(tmp_path):
    wrapped = torch.nn.Linear(3, 1)
    wrapped(torch.ones(2, 3)).sum().backward()  # threads of autograd's own stay
    before = num_threads()
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    wrapped_and_forgotten()
    assert num_threads() > before
    close_process_group()
    assert not torch.distributed.is_initialized()
    assert num_threads() == before


def test_without_a_group_nothing_happens():
    before = num_threads()
    close_process_group()
    assert num_threads() == before
