"""What a recipe prints: few lines in a log file, and one line where it was called in a way that cannot work."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import babylm_flamingo
import babylm_git
import numpy as np
import pytest
from babylm.report import save_training_scores
from datasets import Dataset
from PIL import Image

from hf_curriculum import (
    CurriculumTrainer,
    CurriculumTrainingArguments,
    NounCount,
    Phases,
    add_scores,
    load_captioned,
    load_scored,
    load_scores,
)
from hf_curriculum.studies.recipe import RunLines, run_command

ROOT = Path(__file__).parents[2]


@pytest.fixture
def called(monkeypatch, tmp_path, capsys):
    """`called(recipe, *words)`: the exit status and the standard error of a command that must not train."""
    monkeypatch.chdir(tmp_path)

    def call(recipe, *words):
        monkeypatch.setattr(recipe, "run", lambda *_: pytest.fail("a run was made"))
        monkeypatch.setattr(sys, "argv", [f"{recipe.__name__}.py", "--preset", "smoke", *words])
        with pytest.raises(SystemExit) as ended:
            run_command(recipe.main, recipe.PARSER)
        return ended.value.code, capsys.readouterr().err

    return call


@pytest.mark.parametrize("recipe", [babylm_git, babylm_flamingo])
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--preset", "smok"), "The preset 'smok' is neither a file nor one of ['as_released', 'baseline'"),
        (("--config", "gone.yaml"), "The config file 'gone.yaml' does not exist"),
        (("--eval_images", "1"), "eval_images=1 was given"),
        (("--text_weight", "0.5"), "text_weight=0.5 was given without text"),
        (("--data", "nosuchfolder"), "--data nosuchfolder was given, and cannot be read, so no run was begun."),
        (("--text", "no/such/text"), "--text no/such/text was given, and cannot be read"),
    ],
)
def test_a_call_that_cannot_work_is_one_line_and_leaves_nothing(called, tmp_path, recipe, words, message):
    status, err = called(recipe, *words)
    assert status == 2
    first, second = err.strip().splitlines()[-2:]
    assert "error: " in first
    assert message in first
    assert second.startswith("All flags: ")
    assert "Traceback" not in err
    assert not list(tmp_path.rglob("result.json"))


def test_ctrl_c_says_how_to_go_on(monkeypatch, capsys):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "argv", ["recipes/babylm_git.py", "--data", "my photos"])
    with pytest.raises(SystemExit) as ended:
        run_command(interrupted, babylm_git.PARSER)
    assert ended.value.code == 130
    err = capsys.readouterr().err
    assert "the same command continues from them:" in err
    assert err.strip().splitlines()[-1] == "  accelerate launch recipes/babylm_git.py --data 'my photos'"


def test_a_line_for_each_phase_and_each_evaluation(tmp_path, capsys):
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x, labels=None):
            logits = self.layer(x)
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    rows = Dataset.from_dict({"x": [[1.0, 2.0]] * 8, "labels": [0, 1] * 4, "difficulty": [float(n) for n in range(8)]})
    settings = {"per_device_train_batch_size": 2, "report_to": [], "use_cpu": True, "save_strategy": "no"}
    settings |= {"logging_steps": 1, "eval_strategy": "steps", "eval_steps": 3, "score_column": "difficulty"}
    for bars in (True, False):
        args = CurriculumTrainingArguments(
            str(tmp_path), curriculum=Phases(2, easy="low"), disable_tqdm=not bars, eval_on_start=True, **settings
        )
        trainer = CurriculumTrainer(Net(), args, train_dataset=rows, eval_dataset=rows)
        RunLines.follow(trainer)
        capsys.readouterr()
        trainer.train()
        out, err = capsys.readouterr()
        shown = [
            re.sub(r"\d\.\d{3}", "LOSS", re.sub(r", \d+ s$", "", line)) for line in out.splitlines() if line.strip()
        ]
        assert shown == [
            "  step 0 of 6: validation loss LOSS, 0 examples",
            "phase 1 of 2: easiest 50 %, pool 4 (4 new), steps 1 to 2",
            "phase 2 of 2: all, pool 8 (4 new), steps 3 to 6",
            "  step 3 of 6: training loss LOSS, validation loss LOSS, 6 examples",
            "  step 6 of 6: training loss LOSS, validation loss LOSS, 12 examples",
        ]
        assert ("6/6" in err) == bars


def test_images_of_ones_own_are_not_written_again(tmp_path):
    """The scores alone, which are found again by row; the embedded scenes are nowhere else, and stay complete."""
    photos = tmp_path / "photos"
    photos.mkdir()
    noise = np.random.default_rng(0)
    for number in range(4):
        Image.fromarray(noise.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(photos / f"{number}.png")
    lines = [f"{number % 4}.png,a dog{' and a cat' * (number % 3)}" for number in range(8)]
    (photos / "captions.csv").write_text("\n".join(["file_name,caption", *lines]))
    data = load_captioned(photos)
    scored = add_scores(data, NounCount("pattern"), per_image="max")
    (tmp_path / "own").mkdir()
    save_training_scores(scored, str(photos), tmp_path / "own")
    (written,) = (tmp_path / "own").iterdir()
    assert written.name == "scores.parquet"
    assert written.stat().st_size < 0.2 * sum(file.stat().st_size for file in photos.iterdir())
    again = load_scores(data.shuffle(seed=1), written)
    expected = dict(zip(zip(scored["image_id"], scored["caption"], strict=True), scored["noun_count"], strict=True))
    assert list(again["noun_count"]) == [
        expected[key] for key in zip(again["image_id"], again["caption"], strict=True)
    ]
    save_training_scores(scored, "scenes", tmp_path / "embedded")
    assert load_scored(tmp_path / "embedded" / "scored")["noun_count"][:] == scored["noun_count"][:]


@pytest.mark.slow
def test_the_main_command_in_a_log_file(launch, tmp_path):
    """Sixty lines at most, nothing drawn twice, and last lines that can be typed."""
    recipe = ROOT / "recipes" / "babylm_git.py"
    done = launch(recipe, "--preset", "smoke", "--output_dir", "out", cwd=tmp_path)
    lines = (done.stdout + done.stderr).splitlines()
    assert len(lines) <= 60
    assert "\r" not in done.stdout + done.stderr
    assert "it/s" not in done.stdout + done.stderr
    assert sum(line.startswith("phase ") for line in lines if re.search(r"phase \d of 3: ", line)) == 3
    assert sum("validation loss" in line and line.startswith("  step ") for line in lines) == 4
    assert "report: out/report/report.html" in lines
    (tried,) = [line.partition(":")[2].strip() for line in lines if line.startswith("try the model:")]
    captions = launch("hf_curriculum.cli", *shlex.split(tried)[1:], cwd=tmp_path).stdout.splitlines()
    written = [line.split("\t")[1] for line in (tmp_path / "out/captions.tsv").read_text().splitlines()[1:]]
    assert len(captions) == len(written) == 10
    (compared,) = [line.partition(":")[2].strip() for line in lines if line.startswith("with a control:")]
    words = shlex.split(compared)
    assert words == ["accelerate", "launch", str(recipe), "--preset", "smoke", "--output_dir", "out", "--compare"]
    both = launch(recipe, *words[3:], cwd=tmp_path)
    assert "1 of 2 runs were made before and are read back" in both.stderr
    assert "with a control" not in both.stdout
    assert [run["name"] for run in json.loads((tmp_path / "out/results.json").read_text())] == [
        "curriculum",
        "control",
    ]
