"""What `Trainer` users rely on goes on working: bf16, `torch.compile`, adapters; DDP and FSDP on two processes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("accelerated_runs.py")
STEPS = 24
ALONE = ["plain", "bf16", "compile", "lora", "git"]
TOGETHER = ["ddp", "fsdp", "git_fsdp"]
CHOOSING = ["choosing_git", "choosing_git_fsdp"]


@pytest.fixture(scope="module")
def runs(launch, tmp_path_factory):
    folder = tmp_path_factory.mktemp("accelerated")
    launch(PROGRAM, folder, *ALONE, CHOOSING[0])
    launch(PROGRAM, folder, *TOGETHER, CHOOSING[1], processes=2)
    return folder


def facts_of(runs, mode):
    return json.loads((runs / mode / "facts.json").read_text())


def drawn_in(runs, mode, ranks=1):
    """`[step, rows, ...]` of each step, a list for each process."""
    files = [runs / mode / f"draws-rank{rank}.jsonl" for rank in range(ranks)]
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


@pytest.mark.parametrize("mode", [*ALONE, *TOGETHER])
def test_a_curriculum_runs_with_it_and_shows_what_it_planned(runs, mode):
    facts = facts_of(runs, mode)
    assert facts["steps"] == STEPS
    assert np.isfinite(facts["losses"]).all()
    assert [entry["step"] for entry in facts["log"]] == sorted({entry["step"] for entry in facts["log"]})
    assert facts["log"][-1]["bucket"] == 2
    shares = drawn_in(runs, mode, ranks=2 if mode in TOGETHER else 1)
    for step, planned in enumerate(facts["planned"]):
        assert sorted(row for share in shares for row in share[step][1]) == sorted(planned)


def test_each_does_what_its_name_says(runs):
    plain = facts_of(runs, "plain")
    assert facts_of(runs, "lora")["trainable"] < plain["trainable"] / 5
    assert facts_of(runs, "bf16")["losses"] != plain["losses"]
    # bfloat16 has 8 bits, and each step begins with weights that differ already; bit for bit it would be plain.
    assert np.allclose(facts_of(runs, "bf16")["losses"], plain["losses"], atol=0.05)
    assert np.allclose(facts_of(runs, "compile")["losses"][:3], plain["losses"][:3], atol=0.05)
    assert facts_of(runs, "ddp")["wrapped"] == "DistributedDataParallel"
    for mode in ("fsdp", "git_fsdp"):
        assert facts_of(runs, mode)["wrapped"].startswith("FSDP")
        assert facts_of(runs, mode)["sharded"]


def test_shards_learn_what_one_process_learns(runs):
    alone, sharded = facts_of(runs, "git"), facts_of(runs, "git_fsdp")
    assert sharded["planned"] == alone["planned"]
    assert np.mean(alone["losses"][-8:]) < np.mean(alone["losses"][:8]) - 0.1
    assert np.allclose(sharded["losses"], alone["losses"], atol=1e-3)


@pytest.mark.parametrize("mode", CHOOSING)
def test_a_rule_that_chooses_runs_with_it(runs, mode):
    facts = facts_of(runs, mode)
    assert facts["steps"] == STEPS // 2  # two candidates for each example
    assert np.isfinite(facts["losses"]).all()
    for share in drawn_in(runs, mode, ranks=1 + ("fsdp" in mode)):
        assert len(share) == facts["steps"]
        for (_, rows, values), planned in zip(share, facts["planned"], strict=True):
            assert set(rows) <= set(planned)
            assert np.isfinite(values).all()


def test_shards_choose_what_one_process_chooses(runs):
    alone, sharded = facts_of(runs, "choosing_git"), facts_of(runs, "choosing_git_fsdp")
    assert sharded["wrapped"].startswith("FSDP")
    assert sharded["planned"] == alone["planned"]
    assert np.allclose(sharded["losses"], alone["losses"], atol=1e-3)
    own, shares = drawn_in(runs, "choosing_git")[0], drawn_in(runs, "choosing_git_fsdp", ranks=2)
    for step, (_, rows, values) in enumerate(own):
        found = sorted(pair for share in shares for pair in zip(share[step][1], share[step][2], strict=True))
        expected = sorted(zip(rows, values, strict=True))
        assert [row for row, _ in found] == [row for row, _ in expected]
        assert np.allclose([value for _, value in found], [value for _, value in expected], atol=1e-3)
