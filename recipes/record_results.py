"""What a study came to, kept as a record, and the tables of `docs/results.md` that are made from records.

    python recipes/record_results.py babylm_git outputs/babylm_git/embedded "python recipes/babylm_git.py --compare"
    python recipes/record_results.py     # the tables from the records that are there

A record is `recipes/benchmarks/results/NAME.json`: the command, the commit, versions, device and seeds, the numbers of
each run, and means with their 95 % t intervals over seeds and differences from the control, paired by seed.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_curriculum.markdown import table
from hf_curriculum.studies.statistics import mean_interval, paired_test
from hf_curriculum.training.publishing import FACTS_FILE

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "benchmarks" / "results"
PAGE = ROOT / "docs" / "results.md"
Run = Mapping[str, Any]
Cell = Callable[[Run], str]


def record(name: str, folder: Path, command: str, commit: str | None = None) -> dict[str, Any]:
    """The record of a study."""
    facts = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob(f"*/{FACTS_FILE}"))]
    commits = {one["versions"].pop("commit", commit) for one in facts}
    if len(commits) != 1 or None in commits:
        raise ValueError(
            f"The runs in {folder} are of the commits {sorted(map(str, commits))}. A record is of one commit: run the "
            "study again, or give --commit where they do not tell it."
        )
    runs = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    summary = json.loads((folder / "study.json").read_text(encoding="utf-8"))["summary"]
    return {
        "recipe": name,
        "command": command,
        "commit": commits.pop(),
        "versions": facts[0]["versions"],
        "device": facts[0]["hardware"]["device"],
        "seeds": sorted({run["seed"] for run in runs}),
        "runs": [{key: value for key, value in run.items() if _kept(key, value)} for run in runs],
        "summary": [{key: value for key, value in row.items() if key != "values"} for row in summary],
    }


_TOLD = ("name", "system", "variant", "merges", "beside_dealt", "beside_random")
"""What a record has of a run beside its numbers."""


def _kept(key: str, value: Any) -> bool:
    values = value.values() if isinstance(value, Mapping) else (value,)
    return key in _TOLD or all(isinstance(one, (int, float)) for one in values)


def _by(name: str, digits: str = ".3f", scale: float = 1) -> Cell:
    return lambda run: f"{scale * run[name]:{digits}}"


def _difference(found: Mapping[str, float], digits: str = ".3f", scale: float = 1) -> str:
    low, high = (f"{scale * found[name]:+{digits}}" for name in ("lower", "upper"))
    return f"{scale * found['difference']:+{digits}} [{low}, {high}]"


_RECALL: dict[str, Cell] = {
    "run": lambda run: f"{run['system']} {run['variant']}, {run['name']}",
    "seed": _by("seed", "d"),
    "examples": _by("examples", ","),
    "validation loss": _by("eval_loss"),
    "recall": lambda run: f"{run['recall']['recall']:.3f}",
    "shuffled": lambda run: f"{run['recall']['shuffled']:.3f}",
    "difference": lambda run: _difference(run["recall"]),
}
_CAPTIONS: dict[str, Cell] = {
    "run": lambda run: run["name"],
    "seed": _by("seed", "d"),
    "merges": lambda run: (
        ", ".join(f"{one['examples']:,}{'*' * (one['decision'] == 'forced')}" for one in run["merges"]) or "–"
    ),
    "BLEU-4": _by("bleu_4"),
    "ROUGE-L": _by("rouge_l"),
    "CIDEr": _by("cider"),
    "dealt": lambda run: f"{run['beside_dealt']['values']['dealt to other images']['cider']:.3f}",
    "difference": lambda run: _difference(run["beside_dealt"]["differences"][0]),
}
_DETECTION: dict[str, Cell] = {
    "run": lambda run: run["name"].replace("_", " "),
    "seed": _by("seed", "d"),
    "examples": _by("examples", ","),
    "× the data": _by("passes", ".2f"),
    "mAP@0.5": _by("map_50", ".1f", 100),
    "CorLoc": _by("corloc", ".1f", 100),
    "over random boxes": lambda run: next(
        _difference(one, ".1f", 100) for one in run["beside_random"]["differences"] if one["metric"] == "map_50"
    ),
}
_LOSS_AND_RECALL = {"eval_loss": "validation loss", "noun_recall": "recall"}
_R1 = {f"test_{kind}{way}_r1": f"{way} R@1{note}" for kind, note in (("", ""), ("within_", ", within a class"))
       for way in ("image", "text")}  # fmt: skip
TABLES: dict[str, tuple[str, Mapping[str, Cell], Mapping[str, str]]] = {
    "babylm_git": (".3f", _RECALL, _LOSS_AND_RECALL),
    "babylm_flamingo": (".3f", _RECALL, _LOSS_AND_RECALL),
    "simi_cl_captioning": (".3f", _CAPTIONS, {"cider": "CIDEr", "rouge_l": "ROUGE-L", "eval_loss": "validation loss"}),
    "wsod_wsddn": (".1f", _DETECTION, {"map_50": "mAP@0.5", "map": "mAP", "corloc": "CorLoc"}),
    "simi_cl_captioning_lengths": (".3f", {}, {"cider": "CIDEr", "eval_loss": "validation loss"}),
    "wsod_wsddn_lengths": (".1f", {}, {"map_50": "mAP@0.5"}),
    "tonics_alignment": (".1f", {}, _R1),
    "discl_longtail": (".1f", {}, {"accuracy_few": "few", "accuracy_medium": "medium", "accuracy_many": "many",
                                   "accuracy": "all", "macro_f1": "macro F1"}),
    "vlm_sft": (".1f", {}, {"accuracy_colour": "colour", "accuracy_count": "count", "accuracy_place": "place",
                            "accuracy_yes_no": "yes/no", "accuracy_text": "text", "accuracy": "all"}),
}  # fmt: skip
"""Record → digits of its means (with one digit they are × 100), the columns of its runs, and its metrics' names."""
LENGTHS = {
    "simi_cl_captioning_lengths": ("validation_cider", "cider"),
    "wsod_wsddn_lengths": ("validation_map_50", "map_50"),
}
"""Record of `--grid lengths` → the metric that decides which length of an arm counts, and the metric that is shown."""


def tables(made: Mapping[str, Any]) -> str:
    """The tables of a record: a line per run, and one per metric and arm with p values that are two-sided."""
    digits, columns, metrics = TABLES[made["recipe"]]
    rows = [
        _mean_row(row, name, digits)
        for metric, name in metrics.items()
        for row in made["summary"]
        if row["metric"] == metric
    ]
    mean = f"mean of {len(made['seeds'])} seeds [95 %]"
    parts = [
        table(("metric", "arm", mean, "minus control [95 %]", "p (t)", "p (sign flip)"), rows, for_terminals=True)
    ]
    if columns:
        runs = [[cell(run) for cell in columns.values()] for run in made["runs"]]
        parts.insert(0, table(list(columns), runs, for_terminals=True))
    if made["recipe"] in LENGTHS:
        parts.append(best_lengths(made))
    file = f"[record](../recipes/benchmarks/results/{made['recipe']}.json)"
    versions = ", ".join(f"{name} {made['versions'][name]}" for name in ("torch", "transformers"))
    return "\n".join([*parts, f"`{made['command']}`, commit {made['commit'][:7]}, {versions}: {file}.\n"])


def best_lengths(made: Mapping[str, Any]) -> str:
    """Each arm at the length and rate that are best on validation images, compared with the control at its own."""
    (decides, shown), (digits, _, names) = LENGTHS[made["recipe"]], TABLES[made["recipe"]]
    runs: dict[str, list[Run]] = {}
    for run in sorted(made["runs"], key=lambda run: run["seed"]):
        runs.setdefault(run["name"], []).append(run)
    means = {name: sum(run[decides] for run in those) / len(those) for name, those in runs.items()}
    arms: dict[str, list[str]] = {}  # "Transformer at 1.5e-3, 640 steps" is one of "Transformer"
    for name in means:
        arms.setdefault(name.partition(",")[0].partition(" at ")[0], []).append(name)
    best = {arm: max(those, key=means.__getitem__) for arm, those in arms.items()}
    found = {arm: [run[shown] for run in runs[name]] for arm, name in best.items()}
    control, scale = next(iter(found)), 100 if digits == ".1f" else 1
    rows = []
    for arm, values in found.items():
        mean = mean_interval(values)
        cells = [f"{scale * one:{digits}}" for one in (mean.value, mean.lower, mean.upper)]
        other = paired_test(values, found[control]).difference
        ends = {"difference": other.value, "lower": other.lower, "upper": other.upper}
        difference = "–" if arm == control else _difference(ends, digits, scale)
        rows.append((best[arm], f"{cells[0]} [{cells[1]}, {cells[2]}]", difference))
    header = ("at its best length", names[shown], f"minus {best[control]} [95 %]")
    return table(header, rows, for_terminals=True)


def _mean_row(row: Mapping[str, Any], name: str, digits: str) -> Sequence[str]:
    scale = 100 if digits == ".1f" else 1
    low, mean, high = (f"{scale * row[key]:{digits}}" for key in ("lower", "mean", "upper"))
    arm, mean = row["arm"].replace("_", " "), f"{mean} [{low}, {high}]"
    if row["difference"] is None:
        return name, arm, mean, "–", "–", "–"
    ends = {
        key.removeprefix("difference_"): row[key] for key in ("difference", "difference_lower", "difference_upper")
    }
    p = (row[key] for key in ("p_t", "p_sign_flip"))
    tests = ("–" if one is None else "< 0.001" if one < 0.001 else f"{one:.3f}" for one in p)
    return name, arm, mean, _difference(ends, digits, scale), *tests


def updated(page: str) -> str:
    """The page with the tables of every record that is there and that it has a place for, and no others."""

    def tables_of(found: re.Match[str]) -> str:
        file = RESULTS / f"{found[2]}.json"
        if not file.is_file():
            how = f"`recipes/{found[2]}.py` makes the runs, `recipes/record_results.py` their tables."
            return f"{found[1]}Not recorded: {how}\n{found[3]}"
        return f"{found[1]}{tables(json.loads(file.read_text(encoding='utf-8')))}{found[3]}"

    return re.sub(r"(<!-- record (\w+): [^\n]* -->\n).*?(<!-- end of record -->)", tables_of, page, flags=re.DOTALL)


def main() -> None:
    """Writes the record of a study, and the tables of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", choices=sorted(TABLES), help="the recipe")
    parser.add_argument("folder", nargs="?", type=Path, help="of the study")
    parser.add_argument("command", nargs="?", help="what makes it again")
    parser.add_argument("--commit", help="of the code that ran, where the runs do not tell it")
    options = parser.parse_args()
    if options.name is not None:
        if options.command is None:
            parser.error("give the study's folder and its command too")
        made = record(options.name, options.folder, options.command, options.commit)
        (RESULTS / f"{options.name}.json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
