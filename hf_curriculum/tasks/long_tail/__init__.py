"""Long-tailed classification with generated images, as DisCL does it: data, generation, curricula, metrics."""

from __future__ import annotations

from hf_curriculum.names import exports

NAMES = {
    "curricula": ("AdaptiveGuidance", "GuidanceSchedule"),
    "data.classes": ("class_counts", "class_names", "long_tail"),
    "data.collator": ("LabelCollator",),
    "data.load": ("load_labelled",),
    "flyp": ("CLIPClassifier", "PromptCollator"),
    "generation.filter": ("distance_to_source", "filter_spectrum", "spectrum_grid"),
    "generation.generate": ("Retry", "generate_spectrum", "plan_spectrum"),
    "generation.join": ("hold_out_levels", "join_spectrum"),
    "generation.pixel_diffusion": ("PixelDiffusionPipeline",),
    "generation.plan": ("SpectrumPlan",),
    "generation.prompts": ("load_prompts", "write_prompts"),
    "hard": ("mark_hard",),
    "losses": ("BalancedSoftmax", "ClassBalanced", "CrossEntropy", "Focal", "LDAM", "LogitAdjustment"),
    "metrics": ("class_report", "long_tail_metrics"),
}
"""Module of the task → names that it offers."""

__all__, __getattr__, __dir__ = exports(__name__, NAMES)
