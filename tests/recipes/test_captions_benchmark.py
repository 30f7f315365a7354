"""The benchmark of captions runs, and its sides give equal values; how fast they are is not asserted."""

import pytest
from benchmarks import captions


@pytest.mark.parametrize("case", ["cider", "resampling"])
def test_both_sides_give_equal_values(case, monkeypatch):
    if case == "cider":
        pytest.importorskip("pycocoevalcap")
    rows = getattr(captions, case)(None, quick=True)
    assert rows[-1]["what"].startswith("largest difference")
    assert float(rows[-1]["ours"]) <= 1e-9
    assert rows[0]["ratio"] > 0
    assert captions.table(rows).count("\n") == len(rows) + 1
