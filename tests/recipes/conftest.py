"""Studies of BabyLM's recipes, made up."""

from __future__ import annotations

import json

import pytest

LOG = [{"eval_loss": 4.0 - step, "step": step, "examples": 32 * step, "seconds": step} for step in (0, 1, 2)]


@pytest.fixture
def study(tmp_path):
    """`study(folder, *runs)` writes a study of runs (column, seed, more facts), whose models are empty folders."""

    def write(name, *runs):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        entries = []
        for number, (column, seed, facts) in enumerate(runs):
            own = folder / f"run{number}"
            (own / "model").mkdir(parents=True)
            (own / "model" / "config.json").write_text("{}")
            entry = {
                "name": "curriculum" if column.curriculum else "control",
                "seed": seed,
                "system": column.system,
                "variant": column.variant,
                "curriculum": column.curriculum,
                "folder": own.name,
                "hours": {"text": 0.5 if column.variant == "T+C" else None, "captions": 1.0},
                "log": LOG,
                "eval_loss": 2.0,
                **facts,
            }
            entries.append({key: value for key, value in entry.items() if value is not ...})
            record = {
                "arm": entry["name"],
                "seed": seed,
                "status": "finished",
                "error": None,
                "key": f"{name}{number}",
            }
            settings = {"data": "scenes", "eval_strategy": "epoch"}
            (own / "result.json").write_text(json.dumps({**record, "settings": settings, **facts.get("record", {})}))
        (folder / "results.json").write_text(json.dumps(entries))
        return folder

    return write
