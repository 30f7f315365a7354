"""Difficulty scores: the contract, the doors they come in by, and the scores themselves."""

from hf_curriculum.scorers.add import add_scores
from hf_curriculum.scorers.base import Scorer
from hf_curriculum.scorers.join import add_scores_from
from hf_curriculum.scorers.nouns import NounCount
from hf_curriculum.scorers.side_file import load_scores, save_scores
from hf_curriculum.scorers.text import CaptionLength

SCORERS: dict[str, type[Scorer]] = {"caption_length": CaptionLength, "noun_count": NounCount}
"""Every scorer by the column it writes."""

__all__ = [
    "SCORERS",
    "CaptionLength",
    "NounCount",
    "Scorer",
    "add_scores",
    "add_scores_from",
    "load_scores",
    "save_scores",
]
