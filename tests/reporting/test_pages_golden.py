"""What every page says, line by line, as it was when someone last looked at it; figures by what they are given.

    PYTHONPATH=tests/helpers python tests/reporting/test_pages_golden.py

writes `pages.json` anew. Look at what changed before you do.
"""

from __future__ import annotations

import base64
import functools
import json
import re
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
from datasets import Dataset
from PIL import Image
from ten_sentences import induce, make_pairs

from hf_curriculum import IID, OnlineSelection, Phases, make_plan
from hf_curriculum.provenance import ScoreProvenance, attach_provenance
from hf_curriculum.reporting.chosen import Chosen, add_chosen
from hf_curriculum.reporting.figures.distribution import ScoreRow
from hf_curriculum.reporting.inspection import inspect_scores
from hf_curriculum.reporting.report import CaptionGallery, CaptionLine, Gallery, Report
from hf_curriculum.reporting.run_sections import (
    add_captions,
    add_decisions,
    add_plan,
    add_results,
    add_runs,
    add_scores_section,
    add_training,
)
from hf_curriculum.tasks.alignment.ontology.review import ontology_report
from hf_curriculum.tasks.alignment.retrieval.compare import TITLES as RETRIEVAL_TITLES
from hf_curriculum.tasks.alignment.retrieval.page import retrieval_report
from hf_curriculum.tasks.captioning.page import caption_report

GOLDEN = Path(__file__).with_name("pages.json")


def given(value) -> str:
    """An argument of a figure; of many numbers their count and ends."""
    if isinstance(value, functools.partial):
        more = [given(one) for one in value.args] + [f"{name}={given(one)}" for name, one in value.keywords.items()]
        return f"{value.func.__name__}({', '.join(more)})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {given(one)}" for name, one in value.items()) + "}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (list, tuple, np.ndarray)) and len(value) > 30:
        facts = [value[0], value[-1], float(np.nanmean(value)), float(np.nanstd(value))]
        return f"{len(value)} values {' '.join(given(float(one)) for one in facts)}"
    if isinstance(value, (list, tuple, np.ndarray)):
        return "[" + ", ".join(given(one) for one in (value.tolist() if hasattr(value, "tolist") else value)) + "]"
    if isinstance(value, ScoreRow):
        return f"ScoreRow({given(value.scores)}, {value.easy}, {given(value.cuts)})"
    return str(value) if isinstance(value, (str, int, type(None))) else type(value).__name__


def undrawn(report, title, figure, caption="", *, name):
    return report.add_text(title, f"figure {name}: {given(figure)}\n\n{caption}")


def looked_at(found: re.Match) -> str:
    """An image's kind and colour in steps, for its bytes are another library's."""
    image = Image.open(BytesIO(base64.b64decode(found[2]))).convert("RGB").resize((1, 1))
    return f'"{found[1]} {" ".join(str(round(part / 32)) for part in image.getpixel((0, 0)))}"'


def lines_of(report: Report) -> list[str]:
    html = report.to_html().partition("<body>")[2]
    html = re.sub(r'"data:image/(\w+);base64,([^"]*)"', looked_at, html)
    return [line for line in html.splitlines() if line.strip()]


def colour(number: int) -> Image.Image:
    return Image.new("RGB", (40 + 8 * number, 30), (32 * (number % 8), 255 - 32 * (number % 8), 64 * (number // 8)))


# ---- Pages ----


def parts() -> Report:
    report = Report("A page", "of everything", footer="The end.")
    report.add_facts({"Count": 12_345, "Share": (0.123456, "small"), "None": None, "True": True, "Long": "x" * 15})
    report.add_text(None, "Before any heading: `code` **bold**.").add_text("As it is", "a  b\n c", monospace=True)
    rows = [
        [1, 0.5, "a", None, "y" * 29],
        [2_000_000, float("nan"), "1", 1e-9, "y" * 601],
        [np.int64(3), -0.0, "", 7, ""],
    ]
    report.add_table("Table", ["number", "share", "text", "missing", "long"], rows, note="A note.")
    report.add_table(None, ["n", "t"], [[1, 2]], align="cl").add_table(None, ["none"], [])
    items = [(colour(1), "c" * 301, "n" * 301), (None, "gone", ""), (colour(2), "short", "note")]
    report.add_gallery(Gallery("Small", items, "Look.")).add_gallery(Gallery(None, items[2:], large=True))
    lines = [CaptionLine("l" * 81, "c" * 121, 0.0), CaptionLine("b", "d", 0.555), CaptionLine("c", "e")]
    report.add_gallery(CaptionGallery("Several", [(colour(3), lines), (None, lines[1:]), (colour(4), [])], "See."))
    return report.add_image("Sheet", Image.new("RGB", (1600, 20), "red"), "wide", name="sheet")


def scored(rows: int = 24) -> Dataset:
    """Images of two captions each; one score is easy where high and has two humps, one lacks, one is nowhere."""
    places = np.arange(rows)
    content = {
        "image": [colour(int(place) // 2 % 12) for place in places],
        "image_id": [f"i{place // 2}" for place in places],
        "caption": [None if place == 3 else f"caption {place}" for place in places],
        "hard": np.float32(places * 7 % 24),
        "ease": np.float32(np.where(places % 3 == 0, np.nan, np.sqrt(places))),
        "none": np.full(rows, np.nan, np.float32),
    }
    made = {
        name: ScoreProvenance(name, "Scorer" + name, easy=easy)
        for name, easy in (("hard", "low"), ("ease", "high"), ("none", "low"))
    }
    return attach_provenance(Dataset.from_dict(content), made)


def inspection() -> Report:
    return inspect_scores(scored(), examples=3).to_report(scored(), "Scores")


def inspection_without_images() -> Report:
    humps = np.concatenate([place + np.linspace(-1, 1, count) ** 3 for place, count in ((0, 200), (5, 100))])
    data = Dataset.from_dict({"clip": humps, "caption": ["a"] * 300})
    data = attach_provenance(data, {"clip": ScoreProvenance("clip", "Clip", easy="high")})
    return inspect_scores(data, examples=0).to_report(data, "Humps")


def a_run(name: str, rule, seed: int = 0, best: float = 1.0, **more) -> dict:
    plan = make_plan(rule, scored(), global_batch_size=4, seed=seed, score_column="hard")
    log = [{"step": at, "examples": 4 * at, "seconds": at / 2, "eval_loss": best + 3 / (at + 1)} for at in (0, 4, 9)]
    for at in range(15):
        quantiles = {f"curriculum/score_q{end}": float(end * at) for end in (0, 25, 50, 75, 100)}
        drawn = {
            "curriculum/score_mean": at / 3,
            "curriculum/score_std": 1.5,
            "curriculum/repeats": 0.25,
            "examples": at,
        }
        shares = {"curriculum/bucket_1": 1 - at / 20, "curriculum/phase": 1 + at // 8, "curriculum/pool_size": 10 + at}
        log.append({"step": at, **drawn, **shares, **(quantiles if at in (7, 14) else {})})
    recall = {"recall": 0.61234, "shuffled": 0.25, "difference": 0.36234, "lower": 0.3, "upper": 0.42}
    captions = [{"generated": f"written {at}", "references": [f"first {at}", "second"]} for at in range(3)]
    facts = {"examples": 36, "steps": 9, "seconds": 4.56, "eval_loss": best + 0.3, "recall": recall}
    facts |= {"captions": captions, "describe": f"{name} plan\n  as printed"}
    return {"name": name, "seed": seed, "plan": plan.to_dict(), "log": log, **facts, **more}


def runs() -> Report:
    report, data = Report("Runs"), scored()
    both = [a_run("phases", Phases(3, 2)), a_run("control", IID(2), best=1.2)]
    add_plan(report, both)
    add_scores_section(report, data, "hard", both[0]["plan"])
    add_scores_section(
        report, data.remove_columns("image").select(range(12)), "ease", {**both[0]["plan"], "easy": "high"}
    )
    add_training(report, both)
    add_results(report, both)
    add_captions(report, data, both[0])
    add_runs(report, both)
    decisions = [{"step": 5, "decision": "stay", "losses": {"a": 1.23456, "b": 2}}, {"step": 9, "loss": 0.12345678}]
    add_decisions(report, decisions)
    return report


def runs_of_seeds() -> Report:
    report, rule = Report("Seeds"), OnlineSelection(2, "loss", then=Phases(2, 2), easy="low")
    decisions = [{"step": 3, "decision": "merge", "bucket": 1, "metric": "loss"}]
    several = [a_run(name, one, seed) for seed in (0, 1) for name, one in (("choice", rule), ("control", IID(2)))]
    cost = {"examples_scored": 72, "compute": 180}
    several = [{**run, **cost, "decisions": decisions if run["name"] == "choice" else []} for run in several]
    nan = [{"step": 0, "examples": 0, "seconds": 0.0, "eval_loss": float("nan")}]
    several.append({**a_run("broken", Phases(2, 2), 1), "log": nan, **cost})
    for entry in several[0]["log"][3:]:
        entry |= {
            "curriculum/chosen_value": 0.7,
            "curriculum/candidate_value": 0.4,
            "curriculum/chosen_score_mean": 3.0,
        }
    add_plan(report, several)
    add_training(report, several, loss_unit=None)
    add_runs(report, several)
    return report


def runs_by_metric() -> Report:
    """Metrics that are better when greater: beside one run without a curriculum, two, and none."""
    report = Report("Metrics")
    for controls in (1, 2, 0):
        some = [a_run("phases", Phases(2, 2)), *(a_run(f"control {at}", IID(2)) for at in range(controls))]
        for at, run in enumerate(some):
            run["log"] = [
                {"step": step, "examples": 4 * step, "seconds": 1.0, "eval_cider": abs(step - at) / 9, "eval_odd": 1.0}
                for step in (3, 6, 9)
            ]
        add_training(report, some)
    return report


def chosen() -> Report:
    part = {"name": "phase 1", "weight": 3, "candidates": [0, 1, 2, 3, 4, 2.0], "chosen": [1, 2, 3, 4, 4, 3.0]}
    made = {"trained": 48, "candidates": 192, "choice": "the best", "rows": 48, "never": 12, "most": 5}
    first = Chosen(**made, shares=[0.25, 0.75], at_random=[0.3, 0.7], columns={"hard": [part]}, easy={"hard": "low"})
    few = Chosen(**made, shares=[0.25, 0.75], all_rows=60, since=2, means={"hard": [3.0, 2.0]})
    told = [{"name": "a", "chosen": asdict(first)}, {"name": "a", "chosen": asdict(few)}, {"name": "b"}]
    told += [
        {"name": "c", "not_told": "It cannot be told."},
        {"name": "d", "chosen": asdict(few), "not_told": "Or so."},
    ]
    report = Report("Chosen")
    add_chosen(report, told)
    add_chosen(report, [{"name": "e", "not_told": "One alone."}])
    return report


def pictures(rows: int) -> Dataset:
    return Dataset.from_dict({"image": [colour(row) for row in range(rows)]})


def captions(sets=None) -> Report:
    systems = {name: [f"{name} of {row}" for row in range(7)] for name in ("ours", "other")}
    per_image = {"ours": {"cider": np.arange(7) / 10}, "other": {}}
    found = SimpleNamespace(
        image_ids=[str(row) for row in range(7)],
        name="ours",
        values={"cider": 0.51234, "bleu_4": 0.2},
        tables=lambda: [("", ["a", "b"], [["x", 1.5]], ["One.", "Two."]), ("Differences", ["c"], [[2]], [])],
        sets=sets or {},
        captions=systems,
        scores={name: SimpleNamespace(per_image=each) for name, each in per_image.items()},
        references=[[f"reference {row}.{at}" for at in range(4)] for row in range(7)],
    )
    return caption_report(found, pictures(7), "Captions")


def captions_of_sets() -> Report:
    return captions(
        {"domain": {"outdoors": np.array([0, 1])}, "difficulty": {"level 1": np.arange(5), "level 2": [6, 5]}}
    )


def retrieval() -> Report:
    scores = np.sin(np.arange(60).reshape(12, 5) ** 2)
    of_text = np.arange(12) % 5
    of_text[of_text == 4] = 0  # the last image has no caption
    image = np.array([1 + int((row > row[own]).sum()) for row, own in zip(scores, of_text, strict=True)])
    text = [1 + int((column > column[of_text == at].max(initial=-9)).sum()) for at, column in enumerate(scores.T)]
    ranks = SimpleNamespace(image=image, text=np.array([*text[:4], 0]), image_of_text=of_text)
    found = SimpleNamespace(
        name="ours",
        image_ids=list("abcde"),
        captions=[f"a *caption*  `{row}`" for row in range(12)],
        values={name: 0.25 + number for number, name in enumerate(RETRIEVAL_TITLES)},
        tables=lambda: [("", ["a"], [["x"]], ["One.", "Two."]), ("Classes", ["b"], [[2]], [])],
        ranks={"ours": ranks},
        similarities=SimpleNamespace(
            top_images=lambda row, count: np.argsort(-scores[row])[:count],
            top_texts=lambda row, count: np.argsort(-scores[:, row])[:count],
        ),
    )
    return retrieval_report(found, pictures(5), "Retrieval", examples=5, shown=2)


def ontology() -> Report:
    pairs = make_pairs(image=[colour(row) for row in (1, 1, *range(2, 10))])
    return ontology_report(induce(pairs, min_pairs=2), pairs, "Nouns")


def ontology_without_images() -> Report:
    pairs = make_pairs()
    return ontology_report(induce(pairs, min_pairs=2, corrections={"puppy": None}), pairs, nouns=1, examples=2)


PAGES = {
    page.__name__: page
    for page in (
        *(
            parts,
            inspection,
            inspection_without_images,
            runs,
            runs_of_seeds,
            runs_by_metric,
            chosen,
            captions,
            captions_of_sets,
        ),
        *(retrieval, ontology, ontology_without_images),
    )
}


def made(name: str) -> list[str]:
    with patch.object(Report, "add_figure", undrawn):
        return lines_of(PAGES[name]())


@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_what_it_said(name):
    assert made(name) == json.loads(GOLDEN.read_text(encoding="utf-8"))[name]


if __name__ == "__main__":
    found = {name: made(name) for name in PAGES}
    GOLDEN.write_text(json.dumps(found, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
