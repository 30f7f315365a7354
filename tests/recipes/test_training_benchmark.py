"""The benchmark of training steps runs, at sizes that say nothing about speed, and compares only what is equal."""

from __future__ import annotations

import json
import shutil
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

FOLDER = Path(__file__).parents[2] / "recipes" / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import training

    return training


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import training_gpu

    return training_gpu


class Scaled(nn.Module):
    """A weight whose loss is its product with `x`."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x, noise=0.0):
        loss = (self.weight * x).sum() + noise
        return type("Output", (), {"loss": loss})


def test_sides_that_disagree_are_not_compared(benchmark):
    def side(name, x, **inputs):
        return benchmark.Side(name, Scaled(), {"x": torch.tensor(x), **inputs})

    one = side("one", [1.0, 2.0, 3.0])
    times, worst = benchmark.in_turn([one, side("same", [1.0, 2.0, 3.0])], 2)
    assert set(times) == {"one", "same"}
    assert worst == 0
    with pytest.raises(ValueError, match=r"'other' has the loss 6\.000000 and 'one' 6\.000000.*\(weight\)"):
        benchmark.in_turn([one, side("other", [3.0, 2.0, 1.0])], 1)
    with pytest.raises(ValueError, match=r"'other' has the loss 6\.100000"):
        benchmark.in_turn([one, side("other", [1.0, 2.0, 3.0], noise=0.1)], 1)


def test_sides_that_train_other_weights_are_not_compared(benchmark):
    frozen = Scaled()
    frozen.extra = nn.Parameter(torch.ones(1))
    frozen.weight.requires_grad_(False)
    frozen.forward = lambda x: type("Output", (), {"loss": frozen.extra.sum()})
    inputs = {"x": torch.ones(3)}
    with pytest.raises(ValueError, match="'frozen' trains other weights than 'one'"):
        benchmark.in_turn([benchmark.Side("one", Scaled(), inputs), benchmark.Side("frozen", frozen, inputs)], 1)


def test_operations_are_those_of_pytorch_s_counter(gpu):
    given = gpu.case("aligner", True)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        given.model(**given.inputs).loss.backward()
    with gpu.Operations() as seen, sdpa_kernel(SDPBackend.MATH):
        given.model(**given.inputs).loss.backward()
    assert seen.flops == counter.get_total_flops() > 0
    assert seen.waits == 0
    with gpu.Operations() as seen:
        torch.ones(3).nonzero().sum().item()
    assert (seen.flops, seen.waits) == (0, 2)


def test_waits_on_a_gpu_are_its_warnings(gpu, monkeypatch):
    modes = []
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)

    def passes():
        for message in ("called a synchronizing CUDA operation", "another warning") * 2:
            warnings.warn(message, stacklevel=1)

    assert gpu.waits_in(passes, torch.device("cuda")) == 2
    assert modes == ["warn", "default"]


def test_git_s_operations_are_those_it_tells(gpu):
    given = gpu.case("GIT", True)
    with gpu.Operations() as seen, sdpa_kernel(SDPBackend.MATH):
        given.model(**given.inputs).loss.backward()
    assert seen.flops == pytest.approx(given.model.floating_point_ops(given.inputs), rel=0.1)


def test_shares_of_both_rates(gpu):
    bench = gpu.Bench(torch.device("cpu"), True, None)
    bench.rate, bench.peak = 8.0, 16.0
    row = bench.finished(gpu.Row("GIT", "eager", "autocast", "2", 500.0, 4.0, flops=2))
    assert (row.matmul_share, row.mfu, row.gib) == (0.5, 0.25, None)
    bench.peak = None
    assert bench.finished(row).mfu is None


def test_losses_that_differ_are_not_compared(gpu, monkeypatch):
    bench = gpu.Bench(torch.device("cpu"), True, None)
    losses = {"ours from stock GIT": 2.0, "stock GIT": 2.5}
    monkeypatch.setattr(
        bench, "row", lambda name, mode, *_, **__: gpu.Row(name, mode, "", "", 1.0, 1.0, loss=losses[name])
    )
    with pytest.raises(ValueError, match=r"The losses 2\.0 of ours and 2\.5 of stock differ"):
        list(bench.compared(1, "eager"))
    losses["stock GIT"] = 2.01
    assert len(list(bench.compared(5, "eager"))) == 2


def test_what_fails_and_what_no_longer_fits_are_named(gpu):
    def fails():
        yield gpu.Row("half", "eager", "", "", 2.0, 500.0)
        raise RuntimeError("no kernel")

    def lasts():
        time.sleep(60)
        yield gpu.Row("late", "eager", "", "", 1.0, 1.0)

    work = {"one": fails, "two": lasts, "three": lasts}
    facts = {"device": torch.device("cpu"), "tiny": True, "backend": None, "workers": 1, "rate": 1e12, "peak": None}
    bench, written = SimpleNamespace(work=lambda: work, forget=lambda: None, **facts), []
    report = gpu.measure(bench, 0.3, written.append)
    assert [row["model"] for row in report["rows"]] == ["half"]
    assert report["failed"] == {"one": "RuntimeError: no kernel"}
    assert report["left_out"] == ["two", "three"]
    assert written[-1] == report
    assert gpu.described(report).endswith(
        "- Failed: one: RuntimeError: no kernel\n- Left out, the time was up: two.\n"
        "- Left out, the time was up: three."
    )


@pytest.mark.slow
def test_it_runs_and_finds_equal_gradients(launch, tmp_path):
    done = launch(FOLDER / "training.py", "--sizes", "tiny", "--json", tmp_path / "rows.json")
    rows = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))["rows"]
    assert [row["asked"] for row in rows] == ["≥ 1.1", "≥ 3.5", "≥ 2.2", ""]
    assert all(row["ratio"] > 0 and 0 < row["largest gradient difference"] < 1e-4 for row in rows)
    assert "Losses are equal" in done.stdout


@pytest.mark.slow
def test_the_script_for_a_gpu_runs_alone(gpu, launch, tmp_path):
    shutil.copy(FOLDER / "training_gpu.py", tmp_path)
    options = ("--device", "cpu", "--size", "tiny", "--minutes", "3", "--out", "found.json")
    done = launch(tmp_path / "training_gpu.py", *options, cwd=tmp_path)
    report = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert (report["failed"], report["left_out"]) == ({}, [])
    rows = report["rows"]
    assert {row["mode"] for row in rows} == {"eager"}
    assert {row["model"] for row in rows} == {
        *("GIT", "Flamingo", "region Transformer", "aligner", "WSDDN", "UpDown", "AoANet"),
        *("ours from stock GIT", "stock GIT", "GIT, trained from JPEGs"),
    }
    assert [row["precision"] for row in rows if row["model"] == "GIT"] == ["autocast", "weights"]
    assert all(row["waits"] == 0 and 0 < row["loss"] < 30 for row in rows[:-1] if row["model"] != "stock GIT")
    assert len(report["comparisons"]) == 2
    for one in report["comparisons"]:
        assert one["loss_of_ours"] == pytest.approx(one["loss_of_stock"], abs=0.03)
        speeds = {row["model"]: row["pairs_per_second"] for row in rows if row["batch"] == one["batch"]}
        assert one["ratio"] == pytest.approx(speeds["ours from stock GIT"] / speeds["stock GIT"])
    assert rows[-1]["hours_of_the_paper"] == pytest.approx(15_054_492 / rows[-1]["pairs_per_second"] / 3600)
    lines = [line.strip("|").split("|") for line in done.stdout.splitlines() if line.startswith("| ")]
    assert len(lines) == 1 + len(rows)
    for cells, row in zip(lines[1:], rows, strict=True):
        model, mode, precision, batch, milliseconds, pairs, *_, waits, _ = (cell.strip() for cell in cells)
        assert [model, mode, precision, batch] == [row[name] for name in ("model", "mode", "precision", "batch")]
        assert float(milliseconds.replace(",", "")) == pytest.approx(row["milliseconds"], abs=0.051)
        assert float(pairs.replace(",", "")) == pytest.approx(row["pairs_per_second"], abs=0.051)
        assert waits == ("" if row["waits"] is None else str(row["waits"]))
