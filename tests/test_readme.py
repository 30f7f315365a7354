"""The README says what is true."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import numpy as np
import pages as PAGES
import pytest

import hf_curriculum
from hf_curriculum import Phases, make_plan, make_scenes, rank_scores
from hf_curriculum.names import BATCHES, CURRICULA, SCORERS

ROOT = Path(hf_curriculum.__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_plan_shown_is_the_plan_made():
    pairs_by_nouns = {2: 841_907, 3: 668_536, 5: 773_423, 6: 607_164}
    scores = np.repeat(np.array(list(pairs_by_nouns), np.float32), list(pairs_by_nouns.values()))
    plan = make_plan(Phases(4, 2, "value"), rank_scores(scores, score_column="noun_count"), global_batch_size=32)
    assert plan.describe() in README


def test_the_rows_of_scores_and_curricula_are_those_of_the_tables():
    make = runpy.run_path(str(ROOT / "docs" / "update_tables.py"))
    shown = ""
    for page in make["PAGES"]:
        shown += (text := page.read_text(encoding="utf-8"))
        assert make["updated"](text) == text, "run `python docs/update_tables.py`"
    for member in (*SCORERS.values(), *CURRICULA.values(), *BATCHES.values()):
        assert f"| `{member.__name__}` |" in shown, member
    assert f"- **{len(SCORERS)} [scores]" in README
    assert f"- **{len(CURRICULA)} [curricula]" in README


def test_it_is_short():
    assert len(README.splitlines()) <= 130
    assert len(README.split()) <= 1000
    example = README.partition("```python\n")[2].partition("```")[0]
    assert len([line for line in example.splitlines() if line]) <= 15


def test_every_file_named_is_there():
    named = re.findall(r"(?:docs|recipes|tests)/[\w/.]+\.py|\.ci/run", README + (ROOT / "CONTRIBUTING.md").read_text())
    assert len(named) > 4
    for path in named:
        assert (ROOT / path).is_file(), path


def test_commands_and_their_options_exist():
    named = list(PAGES.commands(README))
    assert [command.split()[0] for command in named] == ["pip", "hf-curriculum", "pip", "pytest"]  # none goes unseen
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
        ("hf-curriculum recipe babylm_gti --data photos", "recipes/babylm_gti.py is named, and not there"),
        ("hf-curriculum recipe babylm_git --speed 1", r"\['--speed'\] are no options"),
        ("accelerate launch -m hf_curriculum.cli recipe babylm_git --speed 1", r"\['--speed'\] are no options"),
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
    (tmp_path / "photos").mkdir()
    lines = ["file_name,caption"]
    for number, row in enumerate(make_scenes(80, image_size=32, validation=0.0, test=0.0)["train"]):
        row["image"].save(tmp_path / "photos" / f"{number}.png")
        lines.append(f'{number}.png,"{row["caption"]}"')
    (tmp_path / "photos" / "captions.csv").write_text("\n".join(lines))
    given: dict = {}
    exec(compile(README.partition("```python\n")[2].partition("```")[0], "README.md", "exec"), given)
    trainer = given["trainer"]
    assert trainer.state.global_step == trainer.plan.num_steps
    assert trainer.plan.ranking.score_column == "noun_count"
    assert given["data"].num_rows == len(lines) - 1
