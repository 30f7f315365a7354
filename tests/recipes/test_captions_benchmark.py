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


def test_a_store_is_measured_in_a_folder_of_its_own(tmp_path):
    rows = captions.store(tmp_path, quick=True)
    assert not any(tmp_path.iterdir())  # the data's folder is read alone
    assert all(row["ratio"] > 0 and row["what"].startswith("random batches of 10") for row in rows)
    assert [row["asked"] for row in rows] == ["≥ 0.8", "", "", "≥ 10", "≥ 8", ""]
    assert all(str(row["what"]) in captions.table(rows) for row in rows)
