"""BabyLM's Flamingo: captioning on small data, from captions with few nouns to captions with many.

    accelerate launch recipes/babylm_flamingo.py                             # embedded scenes, a small model, minutes
    accelerate launch recipes/babylm_flamingo.py --control                   # the i.i.d. control in its place
    accelerate launch recipes/babylm_flamingo.py --text scenes               # text first, then captions (T+C)
    accelerate launch recipes/babylm_flamingo.py --text scenes --control     # the last of the paper's four Flamingos
    accelerate launch recipes/babylm_flamingo.py --compare --seeds 0,1,2     # curriculum and control, three seeds
    accelerate launch recipes/babylm_flamingo.py --vision_features FEATURES  # each picture through the tower once
    accelerate launch recipes/babylm_flamingo.py --data FOLDER               # photographs; the tower has seen scenes
    accelerate launch recipes/babylm_flamingo.py --preset paper --data NAME --text FOLDER --vision_weights NAME

A decoder that is made for text reads pictures through gated cross-attention, behind `<image>`, which the recipe puts
before every caption; the text stage has none. The vision tower never learns, so a pretrained one is needed.

Source: Saha et al. 2024, *Exploring Curriculum Learning for Vision-Language Tasks: A Study on Small-Scale Multimodal
Training*. Every number stands in a preset beside this file, in `presets/babylm_flamingo/`, with where it comes from.
All else is as in `babylm_git.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from babylm.models import model_config, vision_weights
from babylm.settings import Settings
from babylm.stages import System
from babylm.study import start

from hf_curriculum.models.flamingo.build import (
    IMAGE_TOKEN,
    add_image_token,
    flamingo_from_config,
    paper_flamingo_config,
    small_flamingo_config,
)

PRESETS = Path(__file__).parent / "presets" / "babylm_flamingo"


def build_model(settings: Settings, tokenizer: Any) -> torch.nn.Module:
    """The captioner, from a config; nothing is downloaded unless `vision_weights` names it.

    Raises:
        ValueError: the vision tower is to learn, or adapters are to.
    """
    if not settings.freeze_vision:
        raise ValueError(
            "freeze_vision=false was given, but Flamingo's vision tower is frozen by design: it would not learn. "
            "Leave `--freeze_vision true`, or train `babylm_git.py`, whose tower learns."
        )
    if settings.lora_rank:
        raise ValueError(
            f"lora_rank={settings.lora_rank} was given. Adapters freeze all other weights, among them Flamingo's "
            "gates, which start shut: no picture would ever be read. Pass `--lora_rank 0`; adapters (`add_lora`) are "
            "for a Flamingo that has been trained."
        )
    config = model_config(settings, tokenizer, paper=paper_flamingo_config, small=small_flamingo_config)
    return flamingo_from_config(config, vision_model_name_or_path=vision_weights(settings))


FLAMINGO = System(
    "Flamingo",
    "babylm_flamingo",
    PRESETS,
    build_model,
    extend_tokenizer=add_image_token,
    collator={"prefix": f"{IMAGE_TOKEN} "},
    stores_features=True,
)


def main() -> None:
    """Text if there is any, data, score, curriculum, training, captions, report."""
    start(FLAMINGO, __doc__)


if __name__ == "__main__":
    main()
