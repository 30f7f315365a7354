"""Tables beside the paper's: winners, what is missing, which runs are read, and the whole command on tiny models."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from babylm.tables import ALL_COLUMNS, PAPER_COLUMNS, Block, Column, PaperTable, winners
from babylm.tables_ours import blimp, devbench, glue_and_ewok, groups, multimodal, supplement, text_averages
from babylm.tables_page import comparability, make_page
from babylm.tables_paper import read_paper_tables
from babylm.tables_runs import LostRun, read_studies
from babylm.tables_training import evaluations, hours_block, loss_block
from babylm.tables_write import to_dict, to_markdown, to_text
from transformers import GitProcessor

from hf_curriculum import CaptionGitForCausalLM, make_image_processor, train_wordpiece
from hf_curriculum.models.git.build import small_git_config
from hf_curriculum.tasks.babylm import TextImageScorer
from hf_curriculum.tasks.babylm.run import TaskResult
from hf_curriculum.tasks.babylm.suite import SuiteResult

RECIPE = Path(__file__).parents[2] / "recipes" / "babylm_tables.py"
C, TC = Column("GIT", False, "C"), Column("GIT", False, "T+C")
CL_C, CL_TC = Column("GIT", True, "C"), Column("GIT", True, "T+C")
FLAMINGO = Column("Flamingo", True, "C")


@pytest.fixture(scope="module")
def recipe():
    spec = importlib.util.spec_from_file_location("babylm_tables", RECIPE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["babylm_tables"] = module
    spec.loader.exec_module(module)
    return module


def suite(accuracy, **tasks):
    """Results in which every subtask of Winoground, VQA and DevBench has the same accuracy."""
    values = {
        "winoground": {"winoground": {"accuracy": accuracy}},
        "devbench": {
            "lex-viz_vocab": {"accuracy": accuracy, "human_similarity": 0.5},
            "sem-things": {"rsa": 0.25},
            "lex-lwl": {"accuracy": 1.0},
        },
        **tasks,
    }
    made = {
        name: TaskResult(name, subtasks, {"accuracy": accuracy}, {}, dict.fromkeys(subtasks, 8))
        for name, subtasks in values.items()
    }
    return SuiteResult(made, {"vqa": "vqa_filtered does not exist"}, {}, "")


def test_a_winner_is_above_its_own_baseline():
    values = {C: 54.02, TC: 55.50, CL_C: 51.34, CL_TC: 55.51, FLAMINGO: 99.0}  # Flamingo's baseline is missing
    assert winners(values) == {CL_TC}
    assert winners({CL_C: 99.0}) == frozenset()
    assert winners({C: 1.0}) == frozenset()


def test_what_is_printed_alike_is_a_tie():
    assert winners({C: 34.211, CL_C: 34.214}) == frozenset()
    assert winners({C: 34.214, CL_C: 34.216}) == {CL_C}
    assert winners({C: 34.21, CL_C: 34.21}) == frozenset()
    assert winners({C: 34.21, CL_C: 34.26}, digits=1) == {CL_C}
    assert winners({C: 34.21, CL_C: 34.24}, digits=1) == frozenset()


def test_the_paper_s_winners():
    paper = read_paper_tables().tables
    labels = {
        number: [column.label for column in paper[number].columns if column in winners(paper[number].rows[row])]
        for number, row in (("1", "Winoground"), ("2", "gram-trog"), ("4", "(Super)GLUE"))
    }
    assert labels == {
        "1": ["Flamingo CL C"],
        "2": ["GIT CL T+C", "Flamingo CL T+C"],  # Flamingo C has 34.21 with and without
        "4": ["GIT CL T+C", "Flamingo CL C", "Flamingo CL T+C"],
    }


def test_cells():
    rows = {"a": {C: 50.0, CL_C: 62.5}, "b": {}}
    block = Block("ours", (C, CL_C, FLAMINGO), rows, spread={"a": {CL_C: 1.25}})
    table = PaperTable("Table 1", "t", (block,))
    assert table.cells(block) == [["a", "50.00", "▲ 62.50 ± 1.25", "–"], ["b", "–", "–", "–"]]
    plain = PaperTable("Table 5", "t", (block,), digits=None, marked=False)
    assert plain.cells(block)[0] == ["a", "50", "62.5 ± 1.25", "–"]
    assert PAPER_COLUMNS[0] == C
    assert len(PAPER_COLUMNS) == 8
    assert Column("GIT", True, "T&C") in ALL_COLUMNS


def test_rows_of_one_seed(study):
    runs, lost = read_studies([study("a", (CL_C, 1, {}), (C, 1, {}), (TC, 1, {}), (C, 0, {}))])
    (group,) = groups(dict(zip(runs, map(suite, [0.75, 0.5, 0.25, 1.0]), strict=True)))
    assert lost == []
    assert group.seed == 1
    assert list(group.of_one_seed) == [C, TC, CL_C]
    block = group.block("ours", multimodal)
    assert block.rows == {"Winoground": {C: 50.0, TC: 25.0, CL_C: 75.0}}
    assert block.columns == PAPER_COLUMNS
    assert group.missing == (
        "No finished run of seed 1: GIT CL T+C, Flamingo C, Flamingo T+C, Flamingo CL C, Flamingo CL T+C."
    )
    assert group.block("", devbench("accuracy")).rows["sem-things"][C] == 25.0
    assert "lex-lwl" not in group.block("", devbench("accuracy")).rows
    assert group.block("", devbench("human_similarity")).rows["lex-viz_vocab"][C] == 50.0


def test_a_variant_beyond_the_paper_s_has_a_column(study):
    both = Column("GIT", True, "T&C")
    runs, _ = read_studies([study("a", (both, 0, {}))])
    (group,) = groups({runs[0]: suite(0.5)})
    assert both in group.columns
    assert len(group.columns) == 9


def test_rows_of_text_tasks():
    subtasks = {
        "glue": {"cola": {"score": 0.5, "accuracy": 0.9}, "rte": {"score": 0.25}},
        "ewok": {"spatial-relations": {"accuracy": 1.0}},
        "blimp": {"b": {"accuracy": 0.5}, "a": {"accuracy": 0.75}, "new": {"accuracy": float("nan")}},
        "blimp_supplement": {"hypernym": {"accuracy": 0.5}},
    }
    result = suite(0.5, **subtasks)
    assert glue_and_ewok(result) == {"cola (mcc)": 0.5, "rte": 0.25, "spatial-relations": 1.0}
    assert list(blimp(["a", "gone", "b"])(result)) == ["a", "b"]
    assert supplement(result) == {"hypernym": 0.5, "average": 0.5}
    assert text_averages(result) == {"BLiMP supplement": 0.5, "BLiMP filtered": 0.5, "EWoK": 0.5}


def test_means_over_seeds(study):
    runs, _ = read_studies([study("a", (C, 0, {}), (C, 1, {}), (CL_C, 0, {}))])
    (group,) = groups(dict(zip(runs, map(suite, [0.5, 0.75, 1.0]), strict=True)))
    block = group.seeds_block("ours", multimodal)
    assert block.rows == {"Winoground": {C: 62.5}}
    assert block.spread["Winoground"][C] == pytest.approx(100 * 0.25 / 2**0.5)
    assert block.note == "Seeds of GIT C: 0, 1."
    (single,) = groups({runs[0]: suite(0.5)})
    assert single.seeds_block("ours", multimodal).rows == {"Winoground": {}}
    assert single.seeds_block("ours", multimodal).note == "No variant was trained with more than one seed."


def test_hours_and_losses(study):
    first, second = ({"eval_loss": loss, "step": step} for step, loss in enumerate([4.0, 3.0]))
    resumed = [first, second, {"loss": 1.0, "step": 1}, {**second, "eval_loss": 9.0}]
    text = {"log": [first, second]}
    runs, _ = read_studies([study("a", (C, 0, {}), (TC, 0, {"log": resumed, "text": text}))])
    (group,) = groups({run: suite(0.5) for run in runs})
    assert hours_block(group, "").rows == {
        "text stage": {TC: 0.5},
        "captions": {C: 1.0, TC: 1.0},
        "all": {C: 1.0, TC: 1.5},
    }
    assert [entry["eval_loss"] for entry in evaluations(runs[1])] == [4.0, 9.0]
    assert loss_block(group, "").rows == {
        "epoch 0": {C: 4.0, TC: 4.0},
        "epoch 1": {C: 3.0, TC: 9.0},
        "epoch 2": {C: 2.0},
    }
    assert loss_block(group, "", text=True).rows == {"epoch 0": {TC: 4.0}, "epoch 1": {TC: 3.0}}
    (alone,) = groups({runs[0]: suite(0.5)})
    assert loss_block(alone, "", text=True) is None


def test_page(study, tmp_path):
    runs, lost = read_studies([study("a", (C, 0, {}), (CL_C, 0, {}))])
    lost = [*lost, LostRun(tmp_path, FLAMINGO, "Flamingo CL C, seed 0, diverged: at step 3")]
    results = dict(zip(runs, [suite(0.5), suite(0.75)], strict=True))
    page = make_page(results, lost, read_paper_tables(), tmp_path)
    assert [table.number for table in page.tables] == [
        *(f"Table {number}" for number in range(1, 11)),
        "Tables 11 to 14",
        "Appendix B",
    ]
    shown = to_text(page)
    assert "In no table: Flamingo CL C, seed 0, diverged: at step 3." in shown
    assert "VQAv2: not run (vqa_filtered does not exist)." in shown
    assert re.search(r"^Winoground +50\.00 +– +▲ 75\.00( +–){5}$", shown, re.MULTILINE)
    assert "Winoground  54.02  55.50    51.34    55.23  50.00  51.21  ▲ 51.21   50.80" in shown
    assert "| Winoground | 50.00 | – | ▲ 75.00 | – | – | – | – | – |" in to_markdown(page)
    content = json.loads(json.dumps(to_dict(page), allow_nan=False))
    ours, papers = content["tables"][0]["blocks"]
    assert ours["title"] == f"ours: a (trained on embedded scenes; {tmp_path})"
    assert ours["rows"][0]["winners"] == ["GIT CL C"]
    assert ours["rows"][0]["values"]["Flamingo C"] is None
    assert papers["rows"][0]["values"]["GIT C"] == 54.02
    assert content["benchmarks"][0] == {
        "benchmark": "Winoground",
        "subtasks": "1 of 1",
        "items": 8,
        "guessing (%)": 50.0,
    }


def test_what_the_numbers_are_is_said(tmp_path):
    assert "can be compared with the paper's as far as those files are the challenge's" in comparability(tmp_path)
    (tmp_path / "MINIATURE.txt").touch()
    assert "cannot be compared with the paper's" in comparability(tmp_path)


def test_the_command_says_what_is_wrong(recipe, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        recipe.main([str(tmp_path)])
    assert "is no study: it has no results.json" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        recipe.main([str(tmp_path), "--data", "evaluation_data", "--items", "8"])
    assert "--items 8 is for miniatures; those of evaluation_data are all run" in capsys.readouterr().err


def test_the_whole_command(recipe, study, tmp_path, monkeypatch, capsys):
    texts = ["a red ball on a blue box", "two green cups", "Question: what? Answer: yes"] * 4
    torch.manual_seed(0)
    tokenizer = train_wordpiece(texts, 200)
    sizes = {"hidden_size": 32, "vision_layers": 1, "text_layers": 1, "num_attention_heads": 2, "image_size": 32}
    model = CaptionGitForCausalLM(small_git_config(len(tokenizer), tokenizer=tokenizer, **sizes))
    folder = study("smoke", (C, 0, {}), (CL_C, 0, {}))
    for number in (0, 1):
        shutil.rmtree(folder / f"run{number}" / "model")
        model.save_pretrained(folder / f"run{number}" / "model")
        GitProcessor(make_image_processor(32), tokenizer).save_pretrained(folder / f"run{number}" / "model")
    batches, in_batches = [], TextImageScorer.in_batches

    def counted(self, rows, score):
        batches.append(len(rows))
        return in_batches(self, rows, score)

    monkeypatch.setattr(TextImageScorer, "in_batches", counted)
    out = tmp_path / "out"
    command = [str(folder), "--output_dir", str(out), "--task", "winoground", "--task", "ewok", "--items", "4"]
    recipe.main(command)
    shown = capsys.readouterr().out
    scored = len(batches)
    assert scored > 0
    assert "ours: smoke (trained on embedded scenes; miniature benchmarks)" in shown
    assert "cannot be compared with" in shown
    tables = {table["number"]: table for table in json.loads((out / "tables.json").read_text())["tables"]}
    values = tables["Table 1"]["blocks"][0]["rows"][0]["values"]
    assert values["GIT C"] == values["GIT CL C"]  # the same weights
    assert values["Flamingo C"] is None
    assert [row["label"] for row in tables["Table 4"]["blocks"][0]["rows"]] == ["EWoK"]
    assert tables["Table 2"]["blocks"][0]["rows"] == []
    assert tables["Table 2"]["blocks"][0]["note"] == "Not evaluated."
    assert (folder / "run0" / "evaluation" / "miniature-4" / "results.json").is_file()
    page = (out / "report.html").read_text()
    assert "paper: Saha et al. 2024, Table 14" in page
    assert not re.search(r"https?://", page)  # it asks for nothing
    assert [file.name for file in (out / "figures").iterdir()] == ["loss_captions_0_smoke_GIT.png"]
    assert (out / "tables.md").read_text().startswith("# BabyLM")
    recipe.main(command)
    assert len(batches) == scored  # nothing is scored again
    assert capsys.readouterr().out == shown
