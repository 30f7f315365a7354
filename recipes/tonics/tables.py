"""Tables of TOnICS's paper: the printed numbers, and ours from finished studies, never mixed in one block."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from common.tables import read_results
from tonics.arguments import ALIGNER, SCENES
from transformers import AutoModel, AutoTokenizer, set_seed

from hf_curriculum import load_captioned, make_scenes
from hf_curriculum.columns import CAPTION
from hf_curriculum.markdown import table
from hf_curriculum.tasks.alignment import AlignerModel, colour_captions, probe_colours, word_vectors

PAPER = Path(__file__).parent / "paper_tables.yaml"
DASH = "–"
_SCENES = 5_000
"""Captions of the embedded data that Table 2 is made of."""
_TESTS = ("flickr30k", "coco")
_RECALLS = {"image R@1": "image_r1", "image R@5": "image_r5", "text R@1": "text_r1", "text R@5": "text_r5"}


@dataclass(frozen=True)
class TrainedStudy:
    """A study of `tonics_alignment.py`.

    Args:
        folder: of the study.
        data: what it was trained on, as the command named it.
        settings: of its first run.
        runs: those that finished, as `results.json` has them.
    """

    folder: Path
    data: str
    settings: dict[str, Any]
    runs: tuple[dict[str, Any], ...]


def read_study(folder: Path) -> TrainedStudy:
    """A study's finished runs."""
    runs, settings = read_results(folder, "tonics_alignment", ("refreshes",))
    return TrainedStudy(folder, settings["data"], settings, runs)


def read_evaluations(given: Sequence[str]) -> dict[str, dict[str, float]]:
    """Retrieval of a model that was not trained here, from `evaluate --suite retrieval`: test → metrics."""
    found = {}
    for text in given:
        test, _, folder = text.partition("=")
        file = Path(folder) / "results.json"
        if test not in _TESTS or not folder or not file.is_file():
            raise ValueError(
                f"--clip {text!r} is not TEST=FOLDER with one of {list(_TESTS)} and the folder that `hf-curriculum "
                "evaluate MODEL --suite retrieval --output FOLDER` wrote. Correct it."
            )
        found[test] = json.loads(file.read_text(encoding="utf-8"))["systems"].popitem()[1]
    return found


def make_tables(
    studies: Sequence[TrainedStudy],
    paper: Mapping[str, Any],
    clip: Mapping[str, Mapping[str, float]],
    probes: Mapping[Path, Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """The paper's tables with blocks `paper` and `ours`; then what was tested on other data."""
    retrieval, probing = paper["tables"]["1"], paper["tables"]["2"]
    first = [{"title": "the paper's", "rows": _texts(retrieval["rows"])}]
    second = [{"title": "the paper's", "rows": _texts(probing["rows"])}]
    others = []
    names = [f"{test}_{metric}" for test in _TESTS for metric in _RECALLS.values()]
    if clip:
        own = {f"{test}_{metric}": value for test, metrics in clip.items() for metric, value in metrics.items()}
        first.append({"title": "ours: evaluated, not trained", "rows": [_means("CLIP", [own], names)]})
    for study in studies:
        title = f"ours: {study.folder.name} (trained on {study.data})"
        arms = {name: [run for run in study.runs if run["name"] == name] for name in _names(study)}
        if any(name in run for run in study.runs for name in names):
            first.append({"title": title, "rows": [_means(arm, runs, names) for arm, runs in arms.items()]})
        else:
            others.append(_other_tests(study, arms, title))
        if study.folder in probes:
            probe = probes[study.folder]
            rows = [[name, *map(_shown, own.summary().values())] for name, own in probe["probes"].items()]
            colours = probe["colours"]
            about = f"{title}; {len(colours)} captions of {probe['noun']!r}, {len(set(colours))} colours"
            second.append({"title": about, "rows": rows})
    return [
        {"number": "1", "title": retrieval["title"], "columns": ["", *retrieval["columns"]], "blocks": first},
        {"number": "2", "title": probing["title"], "columns": ["", *probing["columns"]], "blocks": second},
        *others,
    ]


def _names(study: TrainedStudy) -> list[str]:
    return list(dict.fromkeys(run["name"] for run in study.runs))


def _other_tests(study: TrainedStudy, arms: Mapping[str, Any], title: str) -> dict[str, Any]:
    """A table of a study that was tested on data of its own, within classes too."""
    tests = [name.removesuffix("_image_r1") for name in study.runs[0] if name.endswith("_image_r1")]
    tests = [name for name in tests if not name.startswith(("best", "held"))]
    names = [f"{test}_{metric}" for test in tests for metric in _RECALLS.values()]
    names = [name for name in names if any(name in run for run in study.runs)]
    rows = [_means(arm, runs, names) for arm, runs in arms.items()]
    columns = [
        "",
        *(name.replace("_within", " within classes,").replace("_r", " R@").replace("_", " ") for name in names),
    ]
    return {"number": None, "title": study.folder.name, "columns": columns, "blocks": [{"title": title, "rows": rows}]}


def probe_study(
    study: TrainedStudy, captions: Sequence[str], noun: str | None, num_colours: int, further: Sequence[str] = ()
) -> dict[str, Any] | None:
    """Table 2 of a study: a noun's vectors by the text encoder before training, by each arm's after, by others'."""
    if study.settings["model"] != ALIGNER:
        return None
    chosen = colour_captions(captions, noun, num_colours=num_colours)
    first = study.folder / study.runs[0]["folder"] / "model"
    name = study.settings["text_model"]
    set_seed(0)
    before = AutoModel.from_config(AlignerModel.from_pretrained(first).config.text_config) if name is None else None
    models = {
        "before training" if name is None else name: (before or AutoModel.from_pretrained(name), str(name or first)),
        **{
            run["name"]: (AlignerModel.from_pretrained(folder), str(folder))
            for run in study.runs
            if run["seed"] == study.runs[0]["seed"]
            for folder in [study.folder / run["folder"] / "model"]
        },
        **{other: (AutoModel.from_pretrained(other), other) for other in further},
    }
    vectors = {
        label: word_vectors(model, AutoTokenizer.from_pretrained(tokenizer), chosen.captions, chosen.spans)
        for label, (model, tokenizer) in models.items()
    }
    probes = {label: probe_colours(own, chosen.colours) for label, own in vectors.items()}
    return {"probes": probes, "vectors": vectors, "noun": chosen.noun, "colours": chosen.colours}


def captions_of(data: str) -> list[str]:
    """All captions of a data set, or of some scenes."""
    if data == SCENES:
        return make_scenes(_SCENES, validation=0, test=0, image_size=32)["train"][CAPTION][:]
    loaded = load_captioned(data, images=False)
    parts = loaded.values() if isinstance(loaded, dict) else [loaded]
    return [caption for part in parts for caption in part[CAPTION][:]]


def _means(name: str, runs: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    """A row: the mean over seeds of each metric, times 100."""
    values = [[100 * run[metric] for run in runs if metric in run] for metric in names]
    return [name, *map(_mean, values)]


def _mean(values: Sequence[float]) -> str:
    if not values:
        return DASH
    return f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def _shown(found: tuple[float, float]) -> str:
    return f"{100 * found[0]:.2f} ± {100 * found[1]:.2f}"


def _texts(rows: Mapping[str, Sequence[Any]]) -> list[list[str]]:
    return [[name, *map(str, values)] for name, values in rows.items()]


def to_markdown(tables: Sequence[Mapping[str, Any]], source: str) -> str:
    """All tables in Markdown; whose numbers a block has stands above it."""
    parts = [f"The paper's numbers: {source.strip()}. Times 100; ±: deviation over seeds, or over starts.\n"]
    for one in tables:
        parts.append(f"## {'Table ' + one['number'] + ': ' if one['number'] else ''}{one['title']}\n")
        for block in one["blocks"]:
            parts.append(f"{block['title']}\n\n{table(one['columns'], block['rows'], for_terminals=True)}\n")
    return "\n".join(parts)
