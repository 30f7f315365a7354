"""The sampler's benchmark: every curriculum and way to put batches together is in it, and it runs."""

from __future__ import annotations

import importlib.util
import operator
import sys
from functools import partial
from pathlib import Path

import pytest

from hf_curriculum.names import BATCHES, CURRICULA

FILE = Path(__file__).parents[2] / "recipes" / "benchmarks" / "sampler.py"
SIZE = 10_000


@pytest.fixture(scope="module")
def benchmark_module():
    path = list(sys.path)
    spec = importlib.util.spec_from_file_location("sampler_benchmark", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = path


def test_no_curriculum_and_no_way_to_put_batches_together_is_missing(benchmark_module):
    rules = [case.rule for case in benchmark_module.CASES.values()]
    assert {rule.type for rule in rules} == set(CURRICULA)
    assert {rule.batches.type for rule in rules if rule.batches is not None} == set(BATCHES)
    assert all(name.startswith(case.rule.type) for name, case in benchmark_module.CASES.items())


def test_every_case_is_measured(benchmark_module, monkeypatch):
    # Collecting before every repetition steadies figures; here it would take most of the time.
    monkeypatch.setattr(benchmark_module.gc, "collect", lambda: 0)
    rows = benchmark_module.measure_cases([SIZE], 32, 1)
    rows += benchmark_module.measure_cases([SIZE // 10, SIZE], 32, 1, ["iid"])
    assert [row["curriculum"] for row in rows] == [*benchmark_module.CASES, "iid", "iid"]
    assert rows[-1]["growth"] == pytest.approx(rows[-1]["index_ns"] / rows[-2]["index_ns"])
    for row in rows:
        assert min(row["index_ns"], row["rows_ns"], row["RandomSampler_ns"]) > 0
        assert row["ratio"] == pytest.approx(row["index_ns"] / row["RandomSampler_ns"])
    table = benchmark_module.as_markdown(rows).splitlines()
    assert len(table) == 2 + len(rows)
    assert all(len(line.split("|")) == 11 for line in table)


def test_signal_paced_curricula_are_measured_after_decisions(benchmark_module):
    for name, case in benchmark_module.CASES.items():
        plan = benchmark_module.bound(case, SIZE, 32)
        assert (plan.curriculum.signal is not None) == (len(plan.log) > 0), name
        first = benchmark_module.first_step(plan) * plan.global_batch_size
        assert len(plan.rows(first, first + 100)) == 100


def test_a_short_round_is_drawn_again_and_again(benchmark_module):
    assert list(benchmark_module.endless(lambda: [1, 2, 3], 7)) == [1, 2, 3, 1, 2, 3, 1]


def test_what_a_plan_holds_is_counted_once(benchmark_module):
    held = {
        name: benchmark_module.held_bytes(benchmark_module.bound(benchmark_module.CASES[name], SIZE, 32))
        for name in ("iid", "phases", "self_paced")
    }
    assert sum(held["iid"].values()) == 4 * SIZE
    assert sum(held["phases"].values()) == 8 * SIZE
    assert held["self_paced"]["losses"] == held["self_paced"]["arranged order"] == 4 * SIZE


def test_no_plan_holds_more_than_sixteen_bytes_per_example(benchmark_module):
    # Two orders and two columns of 4 bytes each: of rules that arrange a round anew by the losses they have seen.
    size, names_and_tables = 200_000, 80_000
    for name, case in benchmark_module.CASES.items():
        held = benchmark_module.held_bytes(benchmark_module.bound(case, size, 32))
        assert sum(held.values()) <= 16 * size + names_and_tables, (name, held)


def test_plans_are_measured(benchmark_module):
    plans = importlib.import_module("plans")
    work = partial(operator.mul, b"1", 40_000_000)
    assert plans._in_child(plans.measured, work)[2] > 30_000_000  # of 40 MB; here others may give memory back
    names = ["phases", "weighted", "iid, scored", "node_sampling"]
    lines = [plans.measure_rule(name, 20_000) for name in names]
    lines.append(plans.measure_buckets(10**6, shards=40))
    for line in lines:
        assert line["cpu_s"] >= 0 < line["seek_ms"]
        assert min(line[name] for name in ("peak_bytes", "describe_s", "describe_bytes", "first_draw_s")) >= 0
    assert [line["kept_bytes"] for line in (lines[0], lines[2])] == [8, 8]
    table = plans.as_markdown(lines).splitlines()
    assert [line.split(" | ")[0] for line in table[2:-1]] == [f"| {name}" for name in names]
    assert len(table) == 2 + len(lines)
    assert all(len(line.split("|")) == 10 for line in table)
    assert table[-1].startswith("| phases, 40 shards | 1,000,000 |")
    assert " MB | " in table[-1]
