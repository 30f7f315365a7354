"""What a trained model can do: captions generated for pictures, and how good they are.

The BabyLM challenge's suite is in `hf_curriculum.evaluation.benchmarks`, which loads every model class.
"""

from __future__ import annotations

from hf_curriculum.evaluation.captions import caption_compute_metrics, caption_metrics
from hf_curriculum.evaluation.generate import generate_captions, one_row_per_image, references
from hf_curriculum.evaluation.nouns import RecallResult, noun_recall, recall_against_shuffled, singular

__all__ = [
    "RecallResult",
    "caption_compute_metrics",
    "caption_metrics",
    "generate_captions",
    "noun_recall",
    "one_row_per_image",
    "recall_against_shuffled",
    "references",
    "singular",
]
