"""Every text of the data and of a run, in every page and file that is written of it, stays text."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import yaml
from datasets import Dataset
from hostile import HOSTILE, NEVER, Page
from markdown_it import MarkdownIt
from PIL import Image

from hf_curriculum import Phases, make_plan, rank_scores, summarise
from hf_curriculum.hub.data_card import DataCard
from hf_curriculum.hub.model_card import render_model_card
from hf_curriculum.markdown import END, START, csv_text, one_line
from hf_curriculum.planning.score_mixture import fit_score_mixture
from hf_curriculum.provenance import ScoreProvenance, attach_provenance
from hf_curriculum.reporting.chosen import add_chosen
from hf_curriculum.reporting.figures import canvas
from hf_curriculum.reporting.figures.canvas import DARK, to_png
from hf_curriculum.reporting.figures.curves import validation_curves
from hf_curriculum.reporting.figures.distribution import (
    ScoreRow,
    score_correlations,
    score_distribution,
    score_distributions,
    score_mixture,
)
from hf_curriculum.reporting.figures.growth import chosen_scores, drawn_scores, pool_growth, pools_of
from hf_curriculum.reporting.figures.study import IntervalRow, interval_rows
from hf_curriculum.reporting.html import file_stem
from hf_curriculum.reporting.inspection import inspect_scores
from hf_curriculum.reporting.report import Report
from hf_curriculum.reporting.run_sections import (
    add_captions,
    add_decisions,
    add_plan,
    add_results,
    add_scores_section,
    add_training,
)
from hf_curriculum.studies.study import StudyRun
from hf_curriculum.studies.tables import StudyTable
from hf_curriculum.tasks.captioning.page import caption_report
from hf_curriculum.tasks.captioning.suite import CaptionSuite, read_captions

HUMPS = np.repeat([1, 2, 3, 11, 12, 13], 40)
each = pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
storable = pytest.mark.parametrize(
    "text", [text.encode("utf-8", "replace").decode() for text in HOSTILE.values()], ids=HOSTILE
)
"""Without halves of surrogate pairs, which no data set can hold."""
FORMULA = ("=", "+", "-", "@")
"""What a spreadsheet runs, or asks about, begins with one of these."""


def scored(text, images=True):
    """Three rows whose captions, ids, score's name and provenance are all this text."""
    text = text.replace("\0", "")  # which no column's name can hold
    columns = {"image": [Image.new("RGB", (4, 4), "teal")] * 3} if images else {}
    ids = [f"{text}{i // 2}" for i in range(3)]  # the first image has two captions
    data = Dataset.from_dict({**columns, "caption": [text] * 3, "image_id": ids})
    data = data.add_column(text, np.float32([0, 1, 2]))
    made = ScoreProvenance(text, text, {text: text}, model=text, revision=text, easy="low")
    return attach_provenance(data, {text: made})


def run_of(text):
    """The facts of a run in which every name is this text."""
    plan = make_plan(Phases(2, easy="low"), rank_scores(np.arange(8), score_column=text), global_batch_size=2)
    log = [
        {"eval_loss": 1.0 - step / 9, "step": step, "examples": 2 * step, "seconds": 0.5 * step} for step in (0, 3, 6)
    ]
    recall = {"recall": 0.3, "shuffled": 0.1, "difference": 0.2, "lower": 0.1, "upper": 0.3}
    facts = {"name": text, "seed": 0, "plan": plan.to_dict(), "describe": f"{plan.describe()}\n{text}", "log": log}
    facts |= {"examples": 12, "steps": 6, "seconds": 3.0, "eval_loss": 0.3, "recall": recall}
    facts["captions"] = [{"generated": text, "references": [text]}]
    return facts


def check_page(html, text, shown=True):
    """The page is whole, runs nothing, asks for nothing, and shows the text."""
    html.encode("utf-8")
    page = Page(html)
    assert not {"script", "iframe", "object", "embed", "base", "form", "svg", "video", "audio"} & set(page.tags)
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert page.leaves() == []
    assert page.tags.count("style") == page.tags.count("main") == page.tags.count("title") == 1
    assert not re.search(r"url\(|@import|expression\(|//", "".join(page.styles))
    assert not set(NEVER) & set(html)
    policy = page.values("meta", "content")
    assert any(value.startswith("default-src 'none'; img-src data:; style-src 'unsafe-inline'") for value in policy)
    if shown:
        found = " ".join("".join(page.text).split())
        wanted = " ".join("".join("\ufffd" if char in NEVER else char for char in text).split())
        assert wanted[:20] in found
    anchors = page.values("section", "id")
    assert len(set(anchors)) == len(anchors)
    return page


@pytest.fixture(autouse=True)
def coarse_figures(monkeypatch):
    """What a text does to a figure does not depend on its pixels."""
    monkeypatch.setattr(canvas, "DPI", 60)


@pytest.fixture
def undrawn(monkeypatch):
    """Figures are not drawn, which takes seconds: what is in an image gets nowhere."""
    out = io.BytesIO()
    Image.new("RGB", (2, 1)).save(out, format="PNG")
    for module in ("reporting.report", "hub.data_card"):
        monkeypatch.setattr(f"hf_curriculum.{module}.to_png", lambda figure: out.getvalue())
    for place in (
        "reporting.chosen.chosen_scores",
        "reporting.run_sections.pool_growth",
        "reporting.run_sections.score_distribution",
        "reporting.run_sections.validation_curves",
        "reporting.inspection.score_distribution",
        "reporting.inspection.score_correlations",
        "reporting.inspection.score_distributions",
        "hub.data_card.score_distribution",
    ):
        monkeypatch.setattr(f"hf_curriculum.{place}", lambda *given, **options: None)


@pytest.mark.slow
@pytest.mark.filterwarnings("error:Glyph 0")
@storable
def test_figures_can_be_drawn_of_any_name(text):
    plan = run_of(text)["plan"]
    curve = [{"eval_loss": 2.0, "examples": 0, "seconds": 0.0}, {"eval_loss": 1.0, "examples": 9, "seconds": 3.0}]
    rows = [IntervalRow(text, [1.0, 2.0], 1.5, 1.0, 2.0, note=text)]
    quantiles = {"round": 0, "phase": 1, "q0": 0.0, "q25": 1.0, "q50": 2.0, "q75": 3.0, "q100": 4.0}
    for figure in (
        pool_growth({text: pools_of(plan), f"{text} control": pools_of(plan)}),
        validation_curves({text: curve, f"{text} control": curve}, merges={text: [(4, text)]}),
        score_distribution(np.float32([1, 2, 2, 3]), name=text),
        score_correlations([text, f"{text}!"], np.eye(2), theme=DARK.narrow()),
        score_mixture(HUMPS, fit_score_mixture(HUMPS), name=text),
        score_distributions({text: ScoreRow([1, 2, 3]), f"{text}!": ScoreRow([1, 2, 3])}),
        drawn_scores([quantiles, {**quantiles, "round": 1, "phase": 2}], name=text),
        interval_rows(rows, label=text, title=text),
        chosen_scores([{"name": text, "candidates": [0, 1, 2, 3, 4], "chosen": [1, 2, 2, 3, 4]}], name=text),
    ):
        assert to_png(figure).startswith(b"\x89PNG")


@storable
def test_report(text, tmp_path, undrawn):
    data, run = scored(text), run_of(text)
    column = data.column_names[-1]
    report = Report(text, text, footer=text).add_facts({text: (text, text)})
    add_plan(report, [run])
    add_training(report, [run, {**run_of(text), "name": f"{text} control", "seed": 1}])
    add_results(report, [run])
    add_decisions(report, [{"round": 0, text: text, "values": {text: 0.5}}])
    add_scores_section(report, data, column, run["plan"])
    add_captions(report, data, run)
    report.add_text(text, text).add_table(text, [text], [[text]], note=text)
    numbers = {"trained": 4, "candidates": 8, "rows": 2, "never": 0, "most": 2, "shares": [0.0, 0.5, 0.5]}
    part = {"name": text, "candidates": [0, 1, 2, 3, 4], "chosen": [1, 2, 2, 3, 4]}
    chosen = {**numbers, "choice": text, "columns": {text: [part]}, "means": {text: [1.0, 2.0]}}
    add_chosen(report, [{"name": text, "chosen": chosen}, {"name": f"{text}!", "not_told": text}])
    page = report.write(tmp_path)
    check_page(page.read_text("utf-8"), text)
    files = {path.name for path in (tmp_path / "figures").iterdir()}
    assert files >= {"pool_growth.png", "validation_loss_by_examples.png", f"{file_stem('scores_' + column, 0)}.png"}
    assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name) for name in files)


def check_fragment(html, text):
    """What a notebook is given is whole, runs nothing, asks for nothing, has no colour, and shows the text."""
    page = Page(html)
    assert not {"script", "iframe", "object", "embed", "base", "form", "svg", "source"} & set(page.tags)
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert page.leaves() == []
    assert not set(NEVER) & set(html)
    styles = [*page.styles, *(value for _, name, value in page.attributes if name == "style")]
    assert not re.search(r"url\(|@import|#[0-9a-f]|rgb|(?<!no )color *:|background", "".join(styles))
    found = "".join("".join(page.text).split())
    assert "".join(one_line(text.replace("\0", "")).split())[:20] in found.replace("\ufffd", "")
    return page


@storable
def test_what_notebooks_show(text, undrawn):
    data = scored(text)
    found = inspect_scores(data)
    check_fragment(found._repr_html_(), text)
    page = check_fragment(found.to_report(data, text).add_facts({text: (text, text)})._repr_html_(), text)
    assert page.tags.count("img") == 6  # a figure, two images at each end, one with its captions
    runs = [StudyRun(arm, 0, {}, arm, Path("."), "finished", {"loss": 1.0}) for arm in (text, "control")]
    check_fragment(summarise(runs, ["loss"], control="control")._repr_html_(), text)


@storable
def test_inspection(text, tmp_path, undrawn):
    data = scored(text)
    other = f"{data.column_names[-1]}!"
    data = attach_provenance(data.add_column(other, np.float32([2, 1, 0])), {other: ScoreProvenance(other, text)})
    found = inspect_scores(data)
    page = found.to_report(data, text).write(tmp_path)
    html = page.read_text("utf-8")
    check_page(html, text)
    assert html.count('<ul class="captioned">') == 2
    assert len(list((tmp_path / "figures").iterdir())) == 4  # two distributions, both in one, and their agreement


@storable
def test_captions_of_systems(text, tmp_path):
    """Captions, ids, domains and names of systems, in every file that an evaluation writes."""
    ids = [f"{number} {text}" for number in range(3)]
    images = [Image.new("RGB", (4, 4))] * 3
    data = Dataset.from_dict({"image_id": ids, "caption": [f"a {text}"] * 3, "domain": [text] * 3, "image": images})
    written = dict.fromkeys(ids, f"word {text}")
    others = {text: {**written, ids[0]: ""}}
    suite = CaptionSuite(data, ["rouge"], name=f"{text} ours", compare=others, resamples=2)
    found = suite(list(written.values()))
    found.write(tmp_path)
    assert read_captions(tmp_path) == written
    with (tmp_path / "per_image.csv").open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    assert [(csv_text(row["image_id"]), csv_text(row["domain"])) for row in rows] == [
        (image_id, text) for image_id in ids
    ]
    assert not [cell for row in rows for cell in row.values() if cell.startswith(FORMULA)]
    read = (tmp_path / "results.md").read_text("utf-8")
    assert not set(NEVER) & set(read)
    assert structure(read) == structure(_results_of_a_word(tmp_path / "plain"))
    check_page(caption_report(found, suite.images, text).to_html(), text)


def _results_of_a_word(folder):
    data = Dataset.from_dict({"image_id": list("abc"), "caption": ["a word"] * 3, "domain": ["word"] * 3})
    others = {"word": {"a": "", "b": "word", "c": "word"}}
    CaptionSuite(data, ["rouge"], name="word ours", compare=others, resamples=2)(["word"] * 3).write(folder)
    return (folder / "results.md").read_text("utf-8")


def header_and_body(card):
    """The YAML header as the Hub takes it out, and the rest."""
    card.encode("utf-8")
    found = re.match(r"^(\s*---[\r\n]+)([\S\s]*?)([\r\n]+---(\r\n|\n|$))", card)
    return yaml.safe_load(found[2]), card[found.end() :]


def structure(body):
    """What a reader of Markdown finds in it, kind by kind, text aside."""
    tokens = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(body)
    inner = [child for token in tokens for child in token.children or ()]
    html = [token.content.strip() for token in (*tokens, *inner) if token.type in ("html_block", "html_inline")]
    assert all(set(re.findall("<[^>]*>", block)) <= {START, END} for block in html)
    assert all(str(token.attrs["src"]).startswith("figures/") for token in inner if token.type == "image")
    text = "\n".join(re.sub(r"`[^`]*`", "", token.content) for token in tokens if token.type == "inline")
    assert not re.search(r"(?<![\\\w])(www\.evil|https?://evil)", text)  # which GitHub would make a link of
    kinds = Counter(token.type for token in (*tokens, *inner))
    return {
        name: count for name, count in kinds.items() if name not in ("inline", "text", "text_special", "softbreak")
    }


def check_body(body, plain_body):
    """The text adds nothing to the markup that a card of a plain word has."""
    assert not set(NEVER) & set(body)
    assert body.count(START) == body.count(END) == 1
    found = structure(body)
    assert found == structure(plain_body)
    assert not {"code_block", "hr", "link_open", "blockquote_open", "bullet_list_open", "ordered_list_open"} & set(
        found
    )
    assert found["fence"] >= 2
    assert found["image"] == 1


@storable
def test_data_card(text, undrawn):
    data = scored(text, images=False)
    card = DataCard("me/x", {"train": data}, "train", license=text)
    header, body = header_and_body(card.render())
    assert set(header) == {"license", "tags", "size_categories", "configs"}
    assert header["license"] == one_line(text)
    assert header["configs"] == [
        {"config_name": "default", "default": True, "data_files": [{"split": "train", "path": "data/train-*"}]}
    ]
    plain = DataCard("me/x", {"train": scored("word", images=False)}, "train").render()
    check_body(body, header_and_body(plain)[1])
    assert card.render(card.render()) == card.render()


def model_facts(text):
    """Facts of a run in which every text is this one."""
    run = run_of(text)
    plan = {**run["plan"], "score_column": text}
    statistics = dict.fromkeys(("rows", "unscored", "min", "q25", "median", "q75", "max"), 1)
    made = {"scorer": text, "model": text, "revision": text, "arguments": {text: text}, "versions": {text: text}}
    model = {"name": text, "repo_id": text, "class": text, "auto": "AutoModel", "type": text, "processor": None}
    model |= {"parameters": 1, "base_model": text, "is_ours": True, "is_adapter": False}
    return {
        "format": 1,
        "model": model,
        "data": {"name": text, "rows": 8, "evaluation_rows": 1},
        "score": {"column": text, "easy": "low", "provenance": made, "statistics": statistics},
        "curriculum": {"type": "phases", "note": text},
        "plan": plan,
        "describe": run["describe"],
        "decisions": [{"round": 0, text: text, "values": {text: 1.0}}],
        "settings": {text: text},
        "history": [],
        "results": [{"metric": text, "value": 0.5, "reference": 0.4, "source": text}],
        "cost": {"examples": 12, "steps": 6, "seconds": 1.0},
        "hardware": {"device": text, "processes": 1, "system": text},
        "versions": {text: text},
        "paper": None,
        "license": text,
        "language": text,
        "tags": [text],
    }


@each
def test_model_card(text):
    card = render_model_card(model_facts(text))
    header, body = header_and_body(card)
    assert set(header) <= {"license", "language", "base_model", "datasets", "pipeline_tag", "library_name", "tags"}
    for name in ("license", "language"):
        assert header[name] == one_line(text)
    assert not {"base_model", "datasets"} & set(header)  # none of these names is one of a repository
    check_body(body, header_and_body(render_model_card(model_facts("word")))[1])
    code = body.partition("```python\n")[2].partition("\n```\n")[0]
    compile(code, "card", "exec")


def study_of(arm):
    """The table of a study with an arm of this name."""
    runs = [
        StudyRun(name, seed, {}, f"{name}{seed}", Path("."), "finished", {"loss": 1.0 + seed})
        for name in (arm, "control")
        for seed in (0, 1)
    ]
    return summarise(runs, ["loss"], control="control")


@each
def test_csv_of_a_study(text):
    read = list(csv.DictReader(io.StringIO(study_of(text).to_csv())))
    assert {csv_text(row["arm"]) for row in read} == {text, "control"}
    assert not [row["arm"] for row in read if row["arm"].startswith(FORMULA)]
    assert len(read) == 2


@storable
def test_markdown_of_a_study(text, tmp_path, monkeypatch):
    monkeypatch.setattr(StudyTable, "drawable", lambda table: [])
    read, plain = (study_of(arm).write(tmp_path / str(number))["md"] for number, arm in enumerate((text, "word")))
    assert not set(NEVER) & set(read.read_text("utf-8"))
    assert structure(read.read_text("utf-8")) == structure(plain.read_text("utf-8"))


@each
def test_a_line_of_captions_tsv(text):
    line = "\t".join(map(one_line, (text, text)))
    assert line.splitlines() in ([line], [])
    assert line.count("\t") == 1
    line.encode("utf-8")


def test_names_of_files():
    assert file_stem("scores_noun_count", 3) == "scores_noun_count"
    assert file_stem("scores_../../etc", 3) == "3_scores_etc"
    assert file_stem("scores_كلب", 3) == "3_scores"
    assert len(file_stem("W" * 10_240, 0)) < 100
