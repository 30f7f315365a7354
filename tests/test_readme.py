"""The README says what is true."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import numpy as np
import pages as PAGES
import pytest

import hf_curriculum
from hf_curriculum import (
    BATCHES,
    CURRICULA,
    SCORERS,
    CaptionCollator,
    Phases,
    load_captioned,
    make_image_processor,
    make_plan,
    make_scenes,
    rank_scores,
    train_wordpiece,
)
from hf_curriculum.models.git.build import git_from_config, small_git_config

ROOT = Path(hf_curriculum.__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_plan_shown_is_the_plan_made():
    pairs_by_nouns = {2: 841_907, 3: 668_536, 5: 773_423, 6: 607_164}
    scores = np.repeat(np.array(list(pairs_by_nouns), np.float32), list(pairs_by_nouns.values()))
    plan = make_plan(Phases(4, 2, "value"), rank_scores(scores, name="noun_count"), global_batch_size=32)
    assert plan.describe() in README


def test_the_rows_of_scores_and_curricula_are_those_of_the_tables():
    make = runpy.run_path(str(ROOT / "docs" / "update_tables.py"))
    assert make["updated"](README) == README, "run `python docs/update_tables.py`"
    for member in (*SCORERS.values(), *CURRICULA.values(), *BATCHES.values()):
        assert f"| `{member.__name__}` |" in README, member


def test_it_is_short():
    assert len(README.splitlines()) <= 180


def test_every_file_named_is_there():
    named = re.findall(r"(?:docs|recipes|tests)/[\w/.]+\.py|\.ci/run", README + (ROOT / "CONTRIBUTING.md").read_text())
    assert len(named) > 4
    for path in named:
        assert (ROOT / path).is_file(), path


def test_the_tree_names_every_part_of_the_package():
    tree = README.partition("## The tree")[2]
    parts = {path.name for path in ROOT.joinpath("hf_curriculum").iterdir() if path.is_dir() and path.name[0] != "_"}
    for part in parts:
        assert f"{part}/" in tree, part


def test_commands_and_their_options_exist():
    named = list(PAGES.commands(README))
    assert len([command for command in named if "recipes/babylm_git.py" in command]) >= 4
    assert len([command for command in named if command.startswith("hf-curriculum")]) >= 5
    for command in named:
        PAGES.check_command(command)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("hf-curriculum scare photos", "hf-curriculum has no command 'scare'"),
        ("hf-curriculum score photos out --scorers noun_count", r"\['--scorers'\] are no options"),
        ("accelerate launch recipes/babylm_gti.py", "is named, and not there"),
        ("accelerate launch recipes/babylm_git.py --learning_speed 1", r"\['--learning_speed'\] are no options"),
        ("accelerate launch -m hf_curriculum.cli score a --speed 1", r"\['--speed'\] are no options"),
        ("torchrun --nproc 2 recipes/babylm_git.py", "--nproc"),
        ("python recipes/scenes_clip.py --seeds 1", r"\['--seeds'\] are no options"),
    ],
)
def test_a_command_that_does_not_exist_is_found(command, message):
    with pytest.raises(AssertionError, match=message):
        PAGES.check_command(command)


def test_the_example_runs_as_it_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ACCELERATE_USE_CPU", "1")
    scenes = make_scenes(80, image_size=32, validation=0.0, test=0.0)["train"]
    (tmp_path / "photos").mkdir()
    lines = []
    for number, row in enumerate(scenes):
        row["image"].save(tmp_path / "photos" / f"{number}.png")
        named = {"file_name": f"{number}.png", "caption": row["caption"], "image_id": row["image_id"]}
        lines.append(json.dumps(named))
    (tmp_path / "photos" / "metadata.jsonl").write_text("\n".join(lines))
    val = load_captioned(tmp_path / "photos").select(range(10))
    tokenizer = train_wordpiece(scenes, 300)
    sizes = {"image_size": 32, "hidden_size": 16, "vision_layers": 1, "text_layers": 1}
    given = {
        "model": git_from_config(small_git_config(len(tokenizer), tokenizer=tokenizer, **sizes)),
        "collator": CaptionCollator(tokenizer, make_image_processor(32)),
        "val": val,
    }
    example = README.partition("```python\n")[2].partition("```")[0]
    # Checkpoints every 500 steps would leave this short run with none to resume from.
    example = example.replace(
        "    learning_rate=1e-5,\n", "    learning_rate=1e-5,\n    save_steps=2, report_to=[],\n"
    )
    exec(compile(example, "README.md", "exec"), given)
    assert given["trainer"].state.global_step == given["trainer"].plan.num_steps
    assert given["train"].column_names[-1] == "noun_count"
