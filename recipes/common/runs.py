"""What becomes of a run: numbers from its log, its model and data on the Hub."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from datasets import Dataset

from hf_curriculum import CurriculumTrainer, push_scored


def last(log: list[dict[str, Any]], name: str) -> float | None:
    """The last number of that name in a trainer's log."""
    return next((entry[name] for entry in reversed(log) if name in entry), None)


def publish(trainer: CurriculumTrainer, scored: Dataset, facts: Mapping[str, Any]) -> str | None:
    """Writes the run's card; with `--push_to_hub` also sends model and scored data with their cards.

    Args:
        trainer: after training; its model has been saved.
        scored: what it was trained on.
        facts: of `card_facts`.

    Returns:
        The model's repository, if it was sent. The data is beside it, `-scored` added to the name.
    """
    trainer.create_model_card(**facts)
    args = trainer.args
    if not args.push_to_hub:
        return None
    data = f"{trainer.hub_model_id}-scored"
    if trainer.is_world_process_zero():
        push_scored(
            scored, data, private=args.hub_private_repo, token=args.hub_token, description=facts["description"]
        )
    args.output_dir = str(Path(args.output_dir) / "model")  # without checkpoints and the text stage
    trainer.push_to_hub(**facts, dataset_tags=data)
    return trainer.hub_model_id
