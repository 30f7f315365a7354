"""Makes the pages of this folder anew, from embedded scenes alone: `python docs/shown/make.py`, minutes on a core."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

from hf_curriculum import CLIPSimilarity, NounCount, add_scores, make_scenes, save_scored
from hf_curriculum.cli import app

HERE = Path(__file__).resolve().parent
RULE = "{type: phases, num_phases: 3, epochs_per_phase: 5, cut: value}"


def typed(*words: str | Path) -> None:
    app(list(map(str, words)), standalone_mode=False)


def show_scores(target: Path) -> None:
    """Scores scenes, a quarter of them with another image's caption, as `scenes` here: `scored/` and `space/`."""
    scenes = make_scenes(1000, captions_per_image=2, mismatched=0.25, validation=0.1, test=0.0)
    save_scored(add_scores(scenes, [NounCount(), CLIPSimilarity()]), "scenes")
    typed("inspect", "scenes", "--html", target / "scored")
    typed("space", "scenes", target / "space", "--examples", "80", "--title", "Scenes with wrong captions")


def show_run(target: Path) -> None:
    """Trains a small captioner on `scenes`: `report/`."""
    options = ("--image-size", "48", "--eval_strategy", "epoch", "--use_cpu")
    typed("train", "scenes", "captioner", "--curriculum", RULE, *options)
    typed("report", "captioner", target / "report", "--title", "A small captioner of scenes")


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        show_scores(HERE)
        show_run(HERE)
