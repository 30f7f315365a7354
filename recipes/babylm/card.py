"""The card of a run, from its own facts, beside its checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from babylm.settings import SCENES, Settings
from hf_curriculum import CurriculumTrainer

_RECALL = {
    "recall": "noun recall of the captions it writes",
    "shuffled": "noun recall of the same captions, dealt to other pictures",
    "difference": "difference of the two",
    "lower": "difference, lower end of its 95 % interval",
    "upper": "difference, upper end of its 95 % interval",
}


def write_card(settings: Settings, trainer: CurriculumTrainer, outcome: Mapping[str, Any]) -> None:
    """Writes `README.md`, its figures and `training_facts.json` into the run's folder.

    Args:
        settings: of the run.
        trainer: after training.
        outcome: what the run came to.
    """
    text, pictures = outcome.get("text"), outcome["recall"]["n"]
    before = []
    if settings.vision_weights:
        before.append({"stage": f"vision tower: {_tower(settings)}"})
    if text:
        told = {name: text[name] for name in ("examples", "steps", "seconds", "eval_loss")}
        before.append({"stage": "text alone, in random order", "words": outcome["words"]["text"], **told})
    trainer.create_model_card(
        description=_data(settings),
        before=before,
        results=[
            {"metric": name, "value": outcome["recall"][key], "source": f"{pictures} held-out pictures"}
            for key, name in _RECALL.items()
        ],
    )


def _data(settings: Settings) -> str:
    if settings.data != SCENES:
        return "image-caption pairs"
    return (
        f"embedded scenes of {settings.scene_size} × {settings.scene_size} pixels, "
        f"{settings.captions_per_image} captions each, drawn by hf_curriculum"
    )


def _tower(settings: Settings) -> str:
    """Where the vision tower comes from; a folder of this machine says nothing to others."""
    name = "a local checkpoint" if Path(settings.vision_weights).is_dir() else settings.vision_weights
    return f"{name}, frozen" if settings.freeze_vision else name
