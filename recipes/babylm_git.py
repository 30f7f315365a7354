"""BabyLM's GIT: captioning on small data, from captions with few nouns to captions with many.

    accelerate launch recipes/babylm_git.py                                  # embedded scenes, a small GIT, minutes
    accelerate launch recipes/babylm_git.py --control                        # the i.i.d. control in its place
    accelerate launch recipes/babylm_git.py --text scenes                    # text first, then captions (T+C)
    accelerate launch recipes/babylm_git.py --text scenes --control          # the last of the paper's four GITs
    accelerate launch recipes/babylm_git.py --compare --seeds 0,1,2          # curriculum and control, three seeds
    accelerate launch recipes/babylm_git.py --grid text_epochs=0,2 --text scenes  # C and T+C, one tokenizer for both
    accelerate launch recipes/babylm_git.py --grid learning_rate=1e-3,3e-3   # one run per value of any field
    accelerate launch recipes/babylm_git.py --data FOLDER_OR_FILE_OR_NAME    # photographs with captions
    accelerate launch recipes/babylm_git.py --preset paper --data NAME --text FOLDER --vision_weights NAME

Source: Saha et al. 2024, *Exploring Curriculum Learning for Vision-Language Tasks: A Study on Small-Scale Multimodal
Training*. Every number stands in a preset beside this file, in `presets/babylm_git/`, with where it comes from. The
paper's other four models are `babylm_flamingo.py`'s.

Runs that are there already, with the same settings and seed, are read back; one that was killed goes on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from babylm.models import model_config, vision_weights
from babylm.settings import Settings
from babylm.stages import System
from babylm.study import start

from hf_curriculum.models.git.build import add_lora, git_from_config, paper_git_config, small_git_config

PRESETS = Path(__file__).parent / "presets" / "babylm_git"


def build_model(settings: Settings, tokenizer: Any) -> torch.nn.Module:
    """The captioner, from a config; nothing is downloaded unless `vision_weights` names it."""
    config = model_config(settings, tokenizer, paper=paper_git_config, small=small_git_config)
    model = git_from_config(config, vision_model_name_or_path=vision_weights(settings))
    if settings.freeze_vision:
        model.freeze_vision_tower()
    return add_lora(model, r=settings.lora_rank) if settings.lora_rank else model


GIT = System("GIT", "babylm_git", PRESETS, build_model)


def main() -> None:
    """Text if there is any, data, score, curriculum, training, captions, report."""
    start(GIT, __doc__)


if __name__ == "__main__":
    main()
