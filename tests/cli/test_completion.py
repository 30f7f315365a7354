"""TAB in a shell: what is offered, and that nothing slow is loaded for it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BASH = shutil.which("bash")
COMMAND = Path(sys.executable).with_name("hf-curriculum")


def asked(words, shell="bash", **env):
    """What the command answers to a shell that completes the last of these words."""
    env |= {"_HF_CURRICULUM_COMPLETE": f"complete_{shell}", "COMP_WORDS": " ".join(words)}
    env |= {"COMP_CWORD": str(len(words) - 1), "_TYPER_COMPLETE_ARGS": " ".join(words)}
    env |= {"_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    program = (
        "import sys\nsys.argv[0] = 'hf-curriculum'\n"
        "from hf_curriculum.cli import app\ntry:\n    app(prog_name='hf-curriculum')\nfinally:\n    "
        "print(sorted({'torch', 'transformers', 'datasets', 'matplotlib', 'numpy', 'pyarrow'} & set(sys.modules)), "
        "file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **env}, capture_output=True, text=True, check=False
    )
    assert done.stderr.strip().splitlines()[-1] == "[]", done.stderr
    return done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scorers_are_offered_without_loading_any(shell):
    out = asked(["hf-curriculum", "score", "photos", "scored", "--scorer", "caption_l"], shell)
    assert "caption_length" in out
    assert "noun_count" not in out


def test_score_columns_are_those_of_the_data(tmp_path):
    (tmp_path / "scores.json").write_text(json.dumps({"splits": {"all": {"scores": {"noun_count": {}, "words": {}}}}}))
    assert asked(["hf-curriculum", "plan", str(tmp_path), "--score-column", "w"]).split() == ["words"]
    assert asked(["hf-curriculum", "plan", "nowhere", "--score-column", "w"]).split() == []
    for damaged in ("{", "[]", '{"splits": {"all": 1}}'):
        (tmp_path / "scores.json").write_text(damaged)
        assert asked(["hf-curriculum", "plan", str(tmp_path), "--score-column", "w"]).split() == []


@pytest.mark.skipif(BASH is None or not COMMAND.exists(), reason="needs bash and the installed command")
def test_bash_completes(tmp_path):
    """The script that is installed, in a real bash."""
    script = subprocess.run(
        [COMMAND],
        env={**os.environ, "_HF_CURRICULUM_COMPLETE": "source_bash"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    (tmp_path / "completion.sh").write_text(script)
    cases = [
        (["hf-curriculum", "sc"], {"score"}),
        (["hf-curriculum", "train", "--learning"], {"--learning-rate"}),
        (["hf-curriculum", "score", "photos", "--scorer", "word"], {"word_rarity"}),
        (["hf-curriculum", "plan", "scored", "ph"], {"phases"}),
        (["hf-curriculum", "train", "scored", "run", "--curriculum", "baby"], {"baby_steps"}),
        (["hf-curriculum", "score", "photos", "--per-image", "m"], {"max", "min", "mean"}),
    ]
    lines = [f"source {tmp_path / 'completion.sh'}"]
    for words, _ in cases:
        lines += [f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}"]
        lines += [f"_hf_curriculum_completion {COMMAND}", 'echo "${COMPREPLY[*]}|"']  # parted by line breaks
    done = subprocess.run([BASH, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    answers = done.stdout.split("|")
    for (words, expected), answer in zip(cases, answers[:-1], strict=True):
        assert set(answer.split()) == expected, words
