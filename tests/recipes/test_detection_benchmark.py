"""The benchmark of detection runs, at sizes that say nothing about speed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "recipes" / "benchmarks"


@pytest.mark.slow
def test_every_part_runs(call_main, monkeypatch, tmp_path, capsys):
    monkeypatch.syspath_prepend(str(FOLDER))
    import detection

    call_main(detection, "--size", "tiny", "--json", tmp_path / "rows.json")
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["what"].partition(":")[0] for row in rows] == [
        *3 * ["propose"],
        "train",
        "collate",
        "evaluate",
        "memory",
    ]
    assert all(row["ratio"] > 0 for row in rows if row["what"] != "collate: 500 proposals beside decoding")
    assert "evaluate: speed beside pycocotools" in capsys.readouterr().out
