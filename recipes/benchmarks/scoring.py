"""How fast scores are made, beside the plain way of making the same scores, in one run.

    python recipes/benchmarks/scoring.py                                  # everything that is here, on one thread
    python recipes/benchmarks/scoring.py --sections clip --json out.json
    python recipes/benchmarks/scoring.py --quick                          # small sizes: does it run, not how fast

Every section is a file beside this one with `measure(quick) -> list[dict]`, whose rows have `what`, `ours` and
`against` (each with its unit), `ratio` and `asked`. The sides of a comparison take turns, so that a busy moment of the
machine hits both, and the best time of each counts. Decoding and preprocessing are part of both.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import platform
import sys
from pathlib import Path

import torch
from datasets.utils.logging import disable_progress_bar

SECTIONS = {
    "clip": "scoring_clip",
    "images": "scoring_images",
    "chats": "scoring_chats",
    "text": "scoring_text",
    "concreteness": "scoring_concreteness",
    "vectors": "scoring_vectors",
}
COLUMNS = ("what", "ours", "against", "ratio", "asked")


def cell(value: object) -> str:
    """A value of a table's cell."""
    if value is None:
        return ""
    return f"{value:,.3g}" if isinstance(value, float) else str(value)


def table(rows: list[dict[str, object]]) -> str:
    """The rows as a Markdown table."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(cell(row.get(column)) for column in COLUMNS) + " |" for row in rows]
    return "\n".join(lines)


def main() -> None:
    """Measures the sections and prints a table."""
    sys.path.insert(0, str(Path(__file__).parent))
    there = [name for name, module in SECTIONS.items() if importlib.util.find_spec(module)]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sections", default=",".join(there), help=f"some of {', '.join(there)}, by commas")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    options = parser.parse_args()
    chosen = options.sections.split(",")
    unknown = [name for name in chosen if name not in there]
    if unknown:
        parser.error(f"there is no section {unknown[0]!r}; there are {', '.join(there)}")
    torch.set_num_threads(options.threads)
    disable_progress_bar()
    rows = []
    for name in chosen:
        rows += [{"section": name, **row} for row in importlib.import_module(SECTIONS[name]).measure(options.quick)]
    print(table(rows))
    if options.json:
        machine = {"threads": options.threads, "torch": torch.__version__, "processor": platform.machine()}
        options.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
