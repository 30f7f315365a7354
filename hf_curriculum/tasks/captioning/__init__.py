"""Captioning, as Simi-CL does it: models on regions, metrics, self-critical training, comparisons."""

from __future__ import annotations

from hf_curriculum.names import exports

NAMES = {
    "arguments": ("CaptioningArguments",),
    "compare": ("compare_captions",),
    "metrics.metrics": ("CaptionEvaluator", "caption_compute_metrics", "caption_metrics"),
    "models.aoanet": ("AoANetForCausalLM",),
    "models.config": ("AoANetConfig", "RegionTransformerConfig", "UpDownConfig"),
    "models.convert": ("convert_reference", "reference_tokenizer"),
    "models.transformer": ("RegionTransformerForCausalLM",),
    "models.updown": ("UpDownForCausalLM",),
    "self_critical": ("SelfCriticalTrainer",),
    "suite": ("CaptionSuite",),
    "trainer": ("CaptioningTrainer",),
}
"""Module of the task → names that it offers."""

__all__, __getattr__, __dir__ = exports(__name__, NAMES)
