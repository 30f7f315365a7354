"""Arguments: in Python, from a command line, and written down."""

from __future__ import annotations

import json

import pytest
from transformers import HfArgumentParser

from hf_curriculum import IID, CurriculumTrainingArguments, Phases


def test_the_curriculum_is_an_object_in_python_and_a_mapping_in_json(tmp_path):
    args = CurriculumTrainingArguments(str(tmp_path), curriculum=Phases(3), score_column="s", report_to=[])
    assert args.curriculum == Phases(3)
    written = json.loads(args.to_json_string())
    assert written["curriculum"] == {"type": "phases", "num_phases": 3}
    assert CurriculumTrainingArguments(
        str(tmp_path), curriculum=written["curriculum"], score_column="s"
    ).curriculum == Phases(3)
    assert "phases" in args.to_sanitized_dict()["curriculum"]


def test_a_command_line_takes_json_a_name_or_a_file(tmp_path):
    parser = HfArgumentParser(CurriculumTrainingArguments)
    file = tmp_path / "rule.yaml"
    file.write_text("type: phases\nnum_phases: 2\n")
    for text, rule in (('{"type": "iid", "epochs": 2}', IID(epochs=2)), ("iid", IID()), (str(file), Phases(2))):
        (args,) = parser.parse_args_into_dataclasses(
            ["--curriculum", text, "--score_column", "s", "--report_to", "none"]
        )
        assert args.curriculum == rule
    assert args.num_train_epochs == -1


def test_contradictions_are_refused(tmp_path):
    out = str(tmp_path)
    with pytest.raises(ValueError, match="leave ignore_data_skip=False"):
        CurriculumTrainingArguments(out, ignore_data_skip=True)
    for epochs in (0, -2, float("nan")):
        with pytest.raises(ValueError, match=f"num_train_epochs={epochs} trains on nothing"):
            CurriculumTrainingArguments(out, num_train_epochs=epochs)
    with pytest.raises(ValueError, match="split_batches=True deals examples"):
        CurriculumTrainingArguments(out, accelerator_config={"split_batches": True})
    with pytest.raises(ValueError, match="dispatch_batches=True deals examples"):
        CurriculumTrainingArguments(out, accelerator_config={"dispatch_batches": True})


def test_launched_processes_that_are_each_alone_are_refused(tmp_path, monkeypatch):
    args = CurriculumTrainingArguments(str(tmp_path))
    assert args.world_size == 1
    monkeypatch.setenv("WORLD_SIZE", "2")
    args.__post_init__()  # without LOCAL_RANK no launcher has set it
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(ValueError, match=r"2 processes were launched \(WORLD_SIZE\), and here there is one: "):
        args.__post_init__()
