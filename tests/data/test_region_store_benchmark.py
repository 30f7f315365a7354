"""The benchmark of stores runs, at a size that says nothing about speed, and compares equal batches."""

from __future__ import annotations

import json

import pytest
import torch
from benchmarks.captions_store import check, main, run


def test_every_side_has_a_row():
    rows = {row["side"]: row for row in run(images=12, dims=8, batch_size=3, batches=2, turns=1)}
    assert list(rows) == [
        "bare pread", "bare pread, padded", "store", "store, float16", "store, image by image", "table", "npz",
        "bare pread, cold", "store, cold",
    ]  # fmt: skip
    assert rows["bare pread"]["to_bare"] == rows["bare pread, padded"]["to_padded"] == rows["npz"]["to_npz"] == 1
    assert all(row["gb_per_s"] > 0 for row in rows.values())


def test_other_numbers_are_no_comparison():
    right = torch.zeros(1, 2, 3), torch.ones(1, 2, dtype=torch.int64)
    check({"same": lambda ids: right}, ["9"], right)
    with pytest.raises(ValueError, match=r"The side 'other' gives another batch of the images \['9'\]"):
        check({"other": lambda ids: (right[0] + 1e-6, right[1])}, ["9"], right)


@pytest.mark.slow
def test_it_prints_a_table_and_writes_json(tmp_path, capsys):
    main(["--images", "12", "--dims", "8", "--batches", "2", "--turns", "1", "--json", str(tmp_path / "rows.json")])
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 1 + len(json.loads((tmp_path / "rows.json").read_text()))
