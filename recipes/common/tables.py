"""What the scripts that print a paper's tables share: the printed numbers, and the studies that ours come from."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from hf_curriculum.config import read_yaml


def read_paper_tables(path: Path) -> dict[str, Any]:
    """The paper's tables, each with as many numbers in a row as columns."""
    content = read_yaml(path.read_text(encoding="utf-8"))
    for number, printed in content["tables"].items():
        for name, values in printed["rows"].items():
            if len(values) != len(printed["columns"]):
                raise ValueError(
                    f"Table {number} of {path} has {len(values)} numbers in the row {name!r} for "
                    f"{len(printed['columns'])} columns: they would stand under the wrong names. Correct the file."
                )
    return content


def find_studies(recipe: str) -> list[Path]:
    """The studies of a recipe in `outputs` that have results."""
    folder = Path("outputs") / recipe
    found = sorted(path.parent for path in folder.glob("*/results.json"))
    if not found:
        raise ValueError(
            f"{folder} holds no study with a results.json, so there are no numbers of ours. Run "
            f"`accelerate launch recipes/{recipe}.py` first, or name a study's folder."
        )
    return found


def read_results(
    folder: Path, recipe: str, needed: Collection[str]
) -> tuple[tuple[dict[str, Any], ...], dict[str, Any]]:
    """A study's finished runs, and the settings of the first."""
    file = folder / "results.json"
    if not file.is_file():
        raise ValueError(f"{folder} has no results.json: no run of `{recipe}.py` has finished there. Name another.")
    runs = json.loads(file.read_text(encoding="utf-8"))
    lacking = sorted({name for name in needed for run in runs if name not in run})
    if lacking:
        raise ValueError(
            f"{file} has runs without {', '.join(lacking)}: it is of another recipe. Name studies of `{recipe}.py`."
        )
    facts = json.loads((folder / runs[0]["folder"] / "result.json").read_text(encoding="utf-8"))
    return tuple(runs), facts["settings"]
