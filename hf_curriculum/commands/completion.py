"""What the shell offers when TAB is pressed behind an option: names of scores, curricula and score columns.

Nothing is imported for it: a shell that waits for a second is no help. So the names are written out here, and a test
says when they are not those of `hf_curriculum.scorers.SCORERS` and `hf_curriculum.pacing.CURRICULA`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import typer

SCORER_NAMES = (
    "addup",
    "box_count",
    "caption_length",
    "clip_similarity",
    "combined",
    "concreteness",
    "language_model_loss",
    "model_loss",
    "noun_count",
    "object_mentions",
    "region_count",
    "vilt_similarity",
    "visual_entropy",
    "word_rarity",
)
CURRICULUM_NAMES = (
    "adaptive_guidance",
    "baby_steps",
    "filter",
    "growing",
    "guidance_schedule",
    "iid",
    "node_sampling",
    "phases",
    "self_paced",
    "staged",
    "weighted",
)


def complete_scorer(incomplete: str) -> list[str]:
    """Names of scorers that begin so."""
    return _beginning(SCORER_NAMES, incomplete)


def complete_curriculum(incomplete: str) -> list[str]:
    """Names of curricula that begin so."""
    return _beginning(CURRICULUM_NAMES, incomplete)


def complete_column(ctx: typer.Context, incomplete: str) -> list[str]:
    """Score columns that begin so, of the data set that the command line names."""
    # Behind an unfinished option the arguments are not sorted out yet.
    for given in (ctx.params.get("dataset"), *ctx.args):
        try:
            told = json.loads((Path(str(given)) / "scores.json").read_text(encoding="utf-8"))
            names = dict.fromkeys(name for split in told["splits"].values() for name in split["scores"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # no such data set, or a file that the command itself will say is damaged
        return _beginning(names, incomplete)
    return []


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
