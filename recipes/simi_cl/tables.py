"""Tables of Simi-CL's paper: the printed numbers, and ours from finished studies, never mixed in one block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from common.tables import read_results

from hf_curriculum.markdown import table
from hf_curriculum.tasks.captioning import CaptionEvaluator
from hf_curriculum.tasks.captioning.suite import difficulty_sets, metrics_by_set

PAPER = Path(__file__).parent / "paper_tables.yaml"
DASH = "–"
_COLUMNS = {"B@4": "bleu_4", "M": "meteor", "C": "cider", "S": "spice"}
_DATA = {"coco": "1 COCO", "flickr30k": "1 Flickr30k"}


@dataclass(frozen=True)
class TrainedStudy:
    """A study of `simi_cl_captioning.py`.

    Args:
        name: of its folder.
        data: what it was trained on, as the command named it.
        runs: those that finished, as `results.json` has them.
    """

    name: str
    data: str
    runs: tuple[dict[str, Any], ...]

    @property
    def dataset(self) -> str | None:
        """The paper's data set, by the name of the file."""
        return next((name for name in _DATA if name in Path(self.data).name.lower()), None)


def read_study(folder: Path) -> TrainedStudy:
    """A study's finished runs."""
    runs, settings = read_results(folder, "simi_cl_captioning", ("cider", "captions"))
    return TrainedStudy(folder.name, settings["data"], runs)


def make_tables(studies: Sequence[TrainedStudy], paper: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The paper's tables with blocks `paper` and `ours`; then what was trained on other data."""
    tables = []
    for number, printed in paper["tables"].items():
        rows = [[name, *map(_printed, values)] for name, values in printed["rows"].items()]
        blocks = [{"title": "the paper's", "rows": rows}]
        names = list(printed["rows"])
        for study in studies:
            ours = _ours(number, study, names)
            if ours:
                blocks.append({"title": f"ours: {study.name} (trained on {study.data})", "rows": ours})
        columns = ["", *printed["columns"]]
        tables.append({"number": number, "title": printed["title"], "columns": columns, "blocks": blocks})
    for study in studies:
        if study.dataset is None:
            names = list(dict.fromkeys(run["name"] for run in study.runs))
            title = f"ours: {study.name} (trained on {study.data}, which the paper has not)"
            blocks = [{"title": title, "rows": _means(study.runs, names)}]
            tables.append({"number": None, "title": study.name, "columns": ["", *_COLUMNS], "blocks": blocks})
            sets = _by_difficulty(study)
            if sets:
                columns = ["", *paper["tables"]["2"]["columns"]]
                blocks = [{"title": title, "rows": sets}]
                tables.append(
                    {"number": None, "title": f"{study.name}, by difficulty", "columns": columns, "blocks": blocks}
                )
    return tables


def _ours(number: str, study: TrainedStudy, names: Sequence[str]) -> list[list[str]]:
    """Rows of ours for one of the paper's tables; none where the study has nothing to do with it."""
    if study.dataset is None:
        return []
    trained = {run["name"] for run in study.runs}
    if number == _DATA[study.dataset] or (number == "4" and study.dataset == "coco"):
        return (
            _means(study.runs, names) if trained & set(names) - ({"Transformer"} if number == "4" else set()) else []
        )
    if number == "2" and study.dataset == "coco":
        return _by_difficulty(study)
    return []


def _means(runs: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[list[str]]:
    """A row per arm: the mean over seeds of each metric, times 100."""
    rows = []
    for name in names:
        own = [run for run in runs if run["name"] == name]
        values = [[100 * run[metric] for run in own if metric in run] for metric in _COLUMNS.values()]
        rows.append([name, *map(_mean, values)])
    return rows


def _by_difficulty(study: TrainedStudy) -> list[list[str]]:
    """Table 2 of a study: BLEU-4 and CIDEr on four sets by the first arm's per-image BLEU-4, at the first seed."""
    runs = [run for run in study.runs if run["seed"] == study.runs[0]["seed"]]
    if len(runs) < 2 or runs[0]["curriculum"]:
        return []
    references = [entry["references"] for entry in runs[0]["captions"]]
    written = {run["name"]: [entry["generated"] for entry in run["captions"]] for run in runs}
    first = next(iter(written.values()))
    sets = difficulty_sets(CaptionEvaluator(references, ["bleu"])(first).per_image["bleu_4"])
    found = metrics_by_set(written, references, sets, ["bleu", "cider"])
    return [
        [name, *(_printed(100 * one.corpus[metric]) for one in scores for metric in ("bleu_4", "cider"))]
        for name, scores in found.items()
    ]


def _mean(values: Sequence[float]) -> str:
    if not values:
        return DASH
    spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
    return f"{mean(values):.1f}{spread}"


def _printed(value: float) -> str:
    return f"{value:.3f}" if 0 < value < 0.1 else f"{value:.1f}"


def to_markdown(tables: Sequence[Mapping[str, Any]], source: str) -> str:
    """All tables in Markdown; whose numbers a block has stands above it."""
    parts = [f"The paper's numbers: {source.strip()}. Metrics times 100; ±: deviation over seeds.\n"]
    for one in tables:
        number = f"Table {one['number']}: " if one["number"] and one["number"][0].isdigit() else ""
        parts.append(f"## {number or (one['number'] + ': ' if one['number'] else '')}{one['title']}\n")
        for block in one["blocks"]:
            parts.append(f"{block['title']}\n\n{table(one['columns'], block['rows'], for_terminals=True)}\n")
    return "\n".join(parts)
