"""The benchmark of training steps runs, at sizes that say nothing about speed, and compares only what is equal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from hf_curriculum import make_scenes

FOLDER = Path(__file__).parents[2] / "recipes" / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import training

    return training


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


def test_needed_multiplications_by_hand(benchmark):
    from training_gpu import needed_flops

    size = benchmark.Size(width=64, layers=1, vocabulary=100, singles=1, images=1, pixels=32)
    rows, words, w = 5, 20, 64
    tower = rows * 768 * w + rows * 12 * w * w + 2 * rows * rows * w + rows * w * w
    image = 2 * rows * w * w
    text = words * 12 * w * w + 2 * words * (rows + words) * w + words * w * 100
    assert needed_flops(size, 2, 3) == 3 * 2 * (2 * (tower + image) + 3 * text)


@pytest.mark.slow
def test_it_runs_and_finds_equal_gradients(launch, tmp_path):
    done = launch(FOLDER / "training.py", "--sizes", "tiny", "--json", tmp_path / "rows.json")
    rows = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))["rows"]
    assert [row["asked"] for row in rows] == ["≥ 1.1", "≥ 3.5", "≥ 2.2", ""]
    assert all(row["ratio"] > 0 and 0 < row["largest gradient difference"] < 1e-4 for row in rows)
    assert "Losses are equal" in done.stdout


@pytest.mark.slow
def test_the_section_of_gpus_runs_on_a_cpu_too(benchmark, monkeypatch):
    import training_gpu

    monkeypatch.setattr(training_gpu, "BATCH", 4)
    monkeypatch.setattr(training_gpu, "make_scenes", lambda count, **options: make_scenes(20, **options))
    rows, note = training_gpu.measure_gpu(benchmark.SIZES["tiny"], torch.device("cpu"), workers=0, repetitions=1)
    assert [row["what"].rsplit(": ")[-1] for row in rows] == ["ours", "ours", "training from files, loading included"]
    assert "15,054,492 captions, would take" in note
    assert "MFU" not in benchmark.table(rows)
