"""Records of studies, and the pages that show their numbers."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import hf_curriculum

ROOT = Path(hf_curriculum.__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
MADE = SimpleNamespace(**runpy.run_path(str(ROOT / "recipes" / "record_results.py")))
RECORDS = {
    name: json.loads(file.read_text()) for name in MADE.TABLES if (file := MADE.RESULTS / f"{name}.json").is_file()
}


def test_the_tables_are_those_of_the_records_digit_by_digit():
    page = MADE.PAGE.read_text(encoding="utf-8")
    assert MADE.updated(page) == page, "run `python recipes/record_results.py`"
    for name, made in RECORDS.items():
        assert f"<!-- record {name}: " in page
        assert MADE.tables(made) in page
    assert {"babylm_git", "simi_cl_captioning"} <= set(RECORDS)


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_says_how_it_was_made(name):
    made = RECORDS[name]
    assert len(made["commit"]) == 40
    assert {"python", "torch", "transformers", "hf-curriculum"} <= set(made["versions"])
    assert f"recipes/{name.removesuffix('_lengths')}.py" in made["command"]
    assert {(run["name"], run["seed"]) for run in made["runs"]} == {
        (arm, seed) for arm in {row["arm"] for row in made["summary"]} for seed in made["seeds"]
    }
    assert all(row["p_t"] is None or row["p_t"] > 0 for row in made["summary"])


def row_of(name, metric, arm):
    (row,) = [row for row in RECORDS[name]["summary"] if (row["metric"], row["arm"]) == (metric, arm)]
    return row


@pytest.mark.parametrize(
    ("name", "metric", "arms", "before", "digits"),
    [
        ("babylm_git", "noun_recall", ("curriculum", "control"), "noun recall ", ".3f"),
        ("babylm_git", "eval_loss", ("curriculum", "control"), "loss ", ".3f"),
        ("simi_cl_captioning", "cider", ("Simi-CL", "Transformer"), "CIDEr ", ".3f"),
        ("tonics_alignment", "test_image_r1", ("TOnICS", "Random"), "image R@1 ", ".1f"),
        ("tonics_alignment", "test_text_r1", ("TOnICS", "Random"), "text R@1 ", ".1f"),
        ("wsod_wsddn", "map_50", ("Curriculum", "Baseline"), "mAP@0.5 by a CLIP's curriculum ", ".1f"),
        ("discl_longtail", "accuracy_few", ("Alg. 3", "CE, as many examples"), "few-shot accuracy ", ".1f"),
        ("discl_longtail", "macro_f1", ("Alg. 3", "CE, as many examples"), "macro F1 ", ".1f"),
    ],
)
def test_what_the_readme_shows_of_a_system_is_its_record(name, metric, arms, before, digits):
    (line,) = [line for line in README.splitlines() if line.startswith("|") and f"`{name}`" in line]
    scale = 100 if digits == ".1f" else 1
    ours, control = (f"{scale * row_of(name, metric, arm)['mean']:{digits}}" for arm in arms)
    assert f"{before}{ours} ({control})" in line
    if name in ("simi_cl_captioning", "wsod_wsddn"):  # the text below says by how much
        found = row_of(name, metric, arms[0])
        ends = {key: found[f"difference{key}"] for key in ("", "_lower", "_upper")}
        told = MADE._difference({(key or "_difference")[1:]: one for key, one in ends.items()}, digits, scale)
        at_best = MADE.best_lengths(RECORDS[f"{name}_lengths"]).splitlines()
        control, arm = (line.strip("| ").split(" | ") for line in at_best[2:4])
        assert f"{before.split()[0]} {told} at one length, {arm[2]} each at its best." in " ".join(README.split())
        assert f"at their best lengths {arm[1].split()[0]} ({control[1].split()[0]})" in line


def test_what_a_user_of_the_main_command_may_expect_is_the_record():
    runs = [run for run in RECORDS["babylm_git"]["runs"] if run["name"] == "curriculum"]
    losses, recalls = [run["eval_loss"] for run in runs], [run["recall"]["recall"] for run in runs]
    said = " ".join(README.split())
    assert f"validation loss of {min(losses):.3f} to {max(losses):.3f}" in said
    assert f"noun recall of {min(recalls):.3f} to {max(recalls):.3f}" in said
    (other,) = json.loads((MADE.RESULTS / "babylm_git_one_thread.json").read_text())["runs"]
    there = f"{other['eval_loss']:.3f} and {other['recall']['recall']:.3f} with one thread and another torch"
    assert f"Seed 0 gave {losses[0]:.3f} and {recalls[0]:.3f}, or {there}" in said
    steps = [RECORDS["babylm_git"]["runs"][place]["examples"] for place in (0, 1)]
    assert f"{steps[0] / steps[1]:.2f}" == "0.75"


# Every figure of a page is in a record that its section links.

_NUMBER = re.compile(
    r"(?<![\w.])(?:\d[\d,]*\.\d+|\.\d\d+)(?![\w.]*\d)(?!M\b| million)|(?<![\w.])\d[\d,]*(?= ×(?! ?\d))"
)
_ANY = re.compile(r"\d[\d,]*\.?\d*(?:e-?\d+)?")
_OWN = {  # settings, bounds that are asked for, what papers have, versions, sizes of public data, projections by them
    "results": ["0.30", "0.9", "0.1"],
    "benchmarks": ["0.5", "0.7", "0.2", "1.5", "0.95", "0.9", "1.05"],
    "curricula": ["0.7", "2603.27744", "3", "0.5", "0.15"],
    "exactness": ["5.23", "1.15", "5.2", "2.12"],
    "scores": ["0.6", "0.4", "2.6"],
    "get_started": ["3.11"],
    "babylm": ["3.2", "3.3", "4.2"],
    "a_billion_pairs": ["4.6", "0.5", "3.2", "22.7", "1.3", "9.2"],
    "detect_from_captions": ["0.5"],
    "hand_over_the_order": ["2.6", "4.6"],
    "reproduce_the_papers": ["3.5", "0.3", "0.136"],
    "scale": ["1.15"],
    "synthetic_to_real": ["0.1", "0.4", "0.7", "0.30"],
}
PAGES = {path.stem: path for path in sorted((ROOT / "docs").rglob("*.md")) if path.stem != "README"}


def figures(text):
    """Decimal numbers and factors of a text."""
    return [found.replace(",", "") for found in _NUMBER.findall(text)]


def is_backed(figure, values):
    half = 0.501 * 10.0 ** -len(figure.partition(".")[2])
    return any(abs(scale * one - float(figure)) <= half for one in values for scale in (1, 100))


def linked(text, *more):
    """The numbers of the records and cards that a text links."""
    names = set(re.findall(r"(?:benchmarks/results|model_cards)/(\w+\.(?:json|md))\b", text)) - {"README.md"}
    files = [next(path for path in (MADE.RESULTS / name, ROOT / "model_cards" / name) if path.is_file())
             for name in sorted(names)]  # fmt: skip
    return [float(found.replace(",", "")) for file in (*files, *more) for found in _ANY.findall(file.read_text())]


@pytest.mark.parametrize("page", PAGES)
def test_every_figure_of_a_page_stands_in_a_record_that_its_section_links(page):
    text = PAGES[page].read_text(encoding="utf-8")
    own = set()
    for section in re.split(r"\n##+ ", text):
        # Tables of studies are compared digit by digit above; their figures are said again in the text.
        tables = re.findall(r"<!-- record .*?<!-- end of record -->", section, re.DOTALL)
        values = linked(section) + [float(one.replace(",", "")) for part in tables for one in _ANY.findall(part)]
        for part in tables:
            section = section.replace(part, "")
        for name, made in RECORDS.items():
            if f"`recipes/{name}.py" in section or f"recipes/{name}.py " in section:
                drawn = {run["examples"] for run in made["runs"]}
                values += [one / other for one in drawn for other in drawn]
        if page not in ("results", "benchmarks"):  # what blocks print is compared by tests of the guides
            section = re.sub(r"```.*?```|<!--.*?-->|`[^`\n]*`|\]\([^)]*\)", " ", section, flags=re.DOTALL)
        own |= set(figures(section)) & set(_OWN.get(page, ()))
        missing = [one for one in figures(section) if one not in own and not is_backed(one, values)]
        assert missing == [], section[:60]
    assert own == set(_OWN.get(page, ())), "figures that the page no longer has"


def test_every_figure_of_the_readme_stands_in_a_record():
    papers = ROOT.glob("recipes/presets/*/grids/*.yaml")
    records = [path for path in MADE.RESULTS.iterdir() if path.suffix in (".md", ".json") and path.stem != "README"]
    values = linked("", *records, *papers, ROOT / "model_cards" / "scenes_clip.json")
    systems, speed = README.partition("## Does it help?")[2].split("## At scale")
    assert [one for one in figures(systems) if not is_backed(one, values)] == []
    benchmarks = " ".join((ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8").split())
    ratios = [cells[-1] for name, cells in rows_of(speed).items() if name not in ("what", "---")]
    assert len(ratios) > 3
    for ratio in ratios:
        assert re.search(rf"(?<![\d.]){re.escape(ratio.partition(' of its')[0])}", benchmarks), ratio


def test_figures_without_a_record_are_found():
    assert figures(".477 of it, .5") == [".477"]
    assert figures("1.25 and 3,000.5, 54.9M, 5.8 million, 36 × and 640 × 480 of v1.2.3") == ["1.25", "3000.5", "36"]
    assert is_backed("0.25", [0.2549])
    assert is_backed("25.5", [0.2549])
    assert not is_backed("0.25", [0.256])


def rows_of(text):
    """First cell → the others, of each table of a text: the last one of a name wins."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return {cells[0]: cells[1:] for cells in rows}


def recorded(share):
    """What a record of time to quality says: the two tables."""
    text = (MADE.RESULTS / f"time_to_quality_text_{share}.md").read_text(encoding="utf-8")
    return [rows_of(part) for part in text.split("Final loss with linear decay")]


def test_what_is_said_of_time_to_quality_is_its_record():
    needed, budgets = zip(recorded(50), recorded(30), strict=True)
    page = MADE.PAGE.read_text(encoding="utf-8").partition("## How many examples")[2].partition("### ")[0]
    first, second = (rows_of(part) for part in page.split("What a user pays for"))
    assert len(first) > 30
    for name, cells in first.items():
        if name != "curriculum" and cells[0][0].isdigit():
            for at, share in ((0, 0), (2, 1)):
                assert needed[share][name][2].replace("1.00 [1.00, 1.00]", "1.00") == cells[at], name
                assert needed[share][name][3].split(" [")[0] == cells[at + 1].split(" [")[0], name
    for name, cells in second.items():
        if name != "curriculum" and cells[0][0].isdigit():
            assert cells == [*budgets[0][name][:4], *budgets[1][name][:4]], name
    said = " ".join(README.partition("## Does it help?")[2].partition("## Five")[0].split())
    for share, told in (50, "after {} × the examples, or {} × the compute"), (30, "With 30 % wrong: {} and {} ×"):
        other = (MADE.RESULTS / f"time_to_quality_other_clip_{share}.md").read_text(encoding="utf-8")
        examples, compute = (rows_of(other.partition("\nFinal")[0])["filter"][at].split(" [")[0] for at in (2, 3))
        assert told.format(examples, compute) in said


def test_what_is_said_of_photographs_is_their_record():
    record = (MADE.RESULTS / "photographs.md").read_text(encoding="utf-8")
    page = MADE.PAGE.read_text(encoding="utf-8")
    gains = record.partition("| arm |")[2].partition("\n\n")[0]
    assert gains.count("\n") > 15
    assert f"| arm |{gains}\n" in page
    assert "that choosing wins on photographs holds." in record
    assert "**By the rule of the plan choosing wins on photographs**" in page
    runs = [json.loads(line) for line in (MADE.RESULTS / "photographs_runs.jsonl").read_text().splitlines()]
    assert f"all {len(runs):,} runs" in page
    for wrong, column in ((0.6, 0), (0.4, 1), (0.2, 2)):
        steps = int(
            rows_of(record.partition(f"\n{wrong:.0%} of the captions wrong")[2].partition("\n\n\n")[0])["both"][1]
        )
        found = {
            arm: np.mean(
                [run["image"] for run in runs if (run["wrong"], run["arm"], run["steps"]) == (wrong, arm, at)]
            )
            for arm, at in (("both", steps), ("control", 800 if wrong == 0.4 else 200))
        }
        gain = rows_of("| arm |" + gains)["both"][column].rpartition(", AUC")[0]
        assert f"{100 * (found['both'] - found['control']):+.1f}" == gain.split(" [")[0]
        assert wrong == 0.2 or gain in README


def test_what_is_said_of_captioners_of_photographs_is_their_record():
    record = (MADE.RESULTS / "photographs_captions.md").read_text(encoding="utf-8")
    page = MADE.PAGE.read_text(encoding="utf-8").partition("### Captioners of the same photographs")[2]
    gains = record.partition("| arm |")[2].partition("\n\n")[0]
    assert f"| arm |{gains}\n" in page
    assert "that choosing wins on photographs holds." in record
    lines = (MADE.RESULTS / "photographs_captions_runs.jsonl").read_text().splitlines()
    assert f"all {len(lines)} runs" in " ".join(page.split())
    said = []
    for wrong in (0.4, 0.6):
        table = rows_of(record.partition(f"\n{wrong:.0%} of the captions wrong")[2].partition("\n\n\n")[0])
        means = {}
        for arm in ("both", "control"):
            found = [json.loads(line) for line in lines]
            found = [
                run for run in found if (run["wrong"], run["arm"], run["steps"]) == (wrong, arm, int(table[arm][1]))
            ]
            means[arm] = [100 * np.mean([run[name] for run in found]) for name in ("picture", "cider")]
            assert [table[arm][at] for at in (3, 5)] == [f"{mean:.1f}" for mean in means[arm]]
            assert len(found) == 5
        said.append(f"{means['both'][1]:.1f} in place of {means['control'][1]:.1f}")
    assert f"Captioners reach a CIDEr (× 100) of {said[0]} and {said[1]} (5 seeds)." in README


def test_every_record_is_listed_with_its_commit_and_no_other():
    listed = rows_of((MADE.RESULTS / "README.md").read_text(encoding="utf-8"))
    listed = {name[1:].partition("]")[0]: cells for name, cells in listed.items() if name[0] == "["}
    files = {path.name for path in MADE.RESULTS.iterdir() if path.suffix in (".md", ".json")} - {"README.md"}
    assert set(listed) == files
    for name, (script, commit, _seeds) in listed.items():
        assert (ROOT / script.strip("`")).is_file()
        assert re.fullmatch(r"[0-9a-f]{7}", commit)
        if name.removesuffix(".json") in RECORDS:
            assert RECORDS[name.removesuffix(".json")]["commit"].startswith(commit)


def test_what_has_no_record_has_no_table():
    page = "<!-- record babylm_flamingo: x -->\n| 0.35 |\n<!-- end of record -->"
    made = MADE.updated(page)
    assert "0.35" not in made
    assert "`recipes/babylm_flamingo.py` makes the runs" in made


@pytest.mark.parametrize("card", ["babylm_git_tc", "babylm_flamingo_tc"])
def test_what_the_page_says_of_runs_with_text_stands_in_their_cards(card):
    facts = json.loads((ROOT / "model_cards" / f"{card}.json").read_text(encoding="utf-8"))
    own, dealt = (one["value"] for one in facts["results"] if one["metric"].startswith("noun recall"))
    said = " ".join(MADE.PAGE.read_text(encoding="utf-8").split()).partition("(T+C, seed 0)")[2].partition(").")[0]
    assert f"{own:.3f}" in said
    assert f"{dealt:.3f}" in said


def study(folder, *commits):
    """The folder of a study with a run for each commit."""
    runs = [
        {"name": "a", "seed": seed, "loss": 0.5, "log": [{}], "recall": {"recall": 1.0}}
        for seed in range(len(commits))
    ]
    for seed, commit in enumerate(commits):
        versions = {"torch": "2"} | ({} if commit is None else {"commit": commit})
        (folder / f"a-seed{seed}").mkdir(parents=True)
        facts = {"versions": versions, "hardware": {"device": "a core"}}
        (folder / f"a-seed{seed}" / "training_facts.json").write_text(json.dumps(facts))
    (folder / "results.json").write_text(json.dumps(runs))
    (folder / "study.json").write_text(json.dumps({"summary": [{"arm": "a", "mean": 0.5, "values": {"0": 0.5}}]}))
    return folder


def test_a_record_has_the_numbers_of_runs_and_their_commit(tmp_path):
    made = MADE.record("babylm_git", study(tmp_path / "a", "c1", "c1"), "python it")
    assert made == {
        "recipe": "babylm_git",
        "command": "python it",
        "commit": "c1",
        "versions": {"torch": "2"},
        "device": "a core",
        "seeds": [0, 1],
        "runs": [{"name": "a", "seed": seed, "loss": 0.5, "recall": {"recall": 1.0}} for seed in (0, 1)],
        "summary": [{"arm": "a", "mean": 0.5}],
    }
    assert MADE.record("babylm_git", study(tmp_path / "b", None), "python it", "c2")["commit"] == "c2"


@pytest.mark.parametrize("commits", [("c1", "c2"), (None,)])
def test_a_record_is_of_one_commit(tmp_path, commits):
    with pytest.raises(ValueError, match=r"are of the commits \[.*\]\. A record is of one commit"):
        MADE.record("babylm_git", study(tmp_path / "a", *commits), "python it")


def test_arms_are_compared_at_their_best_lengths():
    def runs(name, validation, *values):
        own = [{"name": name, "seed": seed, "map_50": value} for seed, value in enumerate(values)]
        return [{**run, "validation_map_50": validation} for run in reversed(own)]

    runs = [
        *runs("Baseline, 3", 0.5, 0.9, 0.9, 0.9),
        *runs("Baseline at 1e-3, 6", 0.6, 0.5, 0.6, 0.7),
        *runs("Curriculum, 3", 0.7, 0.6, 0.7, 0.9),
        *runs("Curriculum, 6", 0.6, 1, 1, 1),
    ]
    rows = rows_of(MADE.best_lengths({"recipe": "wsod_wsddn_lengths", "runs": runs}))
    assert list(rows) == ["at its best length", "---", "Baseline at 1e-3, 6", "Curriculum, 3"]
    assert rows["at its best length"] == ["mAP@0.5", "minus Baseline at 1e-3, 6 [95 %]"]
    assert rows["Baseline at 1e-3, 6"] == ["60.0 [35.2, 84.8]", "–"]
    assert rows["Curriculum, 3"][1] == "+13.3 [-1.0, +27.7]"  # of 10, 10 and 20: 13.33 ± 4.303 × 3.333


def test_p_values_are_never_zero():
    row = {"arm": "a", "mean": 1.0, "lower": 0.5, "upper": 1.5, "difference": 0.25, "p_t": 1e-9, "p_sign_flip": 0.25}
    row |= {"difference_lower": 0.0, "difference_upper": 0.5}
    cells = ("m", "a", "1.000 [0.500, 1.500]", "+0.250 [+0.000, +0.500]", "< 0.001", "0.250")
    assert MADE._mean_row(row, "m", ".3f") == cells
    shares = ("m", "a", "100.0 [50.0, 150.0]", "+25.0 [+0.0, +50.0]", "< 0.001", "0.250")
    assert MADE._mean_row(row, "m", ".1f") == shares
