"""Curriculum learning for image-text data on `datasets`, `transformers` and `accelerate`.

Every public name is loaded when it is first used, so that importing the package costs next to nothing. The models are
known to the Auto classes of `transformers` from then on, whichever of the two is imported first.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from hf_curriculum.auto_classes import register_when_loaded

__version__ = "0.1.0"

_PUBLIC = {
    "hf_curriculum.data.captions": ("drop_empty_captions", "expand_captions"),
    "hf_curriculum.data.collators": ("Augment", "CaptionCollator"),
    "hf_curriculum.data.img2dataset": ("load_img2dataset",),
    "hf_curriculum.data.img2dataset_stats": ("read_downloads",),
    "hf_curriculum.data.loading": ("load_captioned",),
    "hf_curriculum.data.pixels": ("make_image_processor",),
    "hf_curriculum.data.region_files": ("open_regions",),
    "hf_curriculum.data.region_tsv": ("write_line_index",),
    "hf_curriculum.data.scenes": ("make_scenes",),
    "hf_curriculum.data.splits": ("hold_out",),
    "hf_curriculum.data.text": ("Texts", "load_text"),
    "hf_curriculum.data.text_beside": ("TextBeside",),
    "hf_curriculum.data.text_blocks": ("BlockCollator", "text_blocks"),
    "hf_curriculum.data.tokenizer": ("train_wordpiece",),
    "hf_curriculum.data.url_lists": ("load_url_list",),
    "hf_curriculum.data.word_count": ("check_word_limit", "count_words"),
    "hf_curriculum.evaluation": ("generate_captions", "one_row_per_image", "recall_against_shuffled"),
    "hf_curriculum.evaluation.benchmarks": (
        "BENCHMARKS",
        "GlueSettings",
        "TextImageScorer",
        "evaluate_pretrained",
        "evaluate_suite",
        "make_miniature_benchmarks",
    ),
    "hf_curriculum.hub": ("Report",),
    "hf_curriculum.hub.errors": ("HubError",),
    "hf_curriculum.hub.push_scored": ("push_scored",),
    "hf_curriculum.models": (
        "MODELS",
        "CaptionFlamingoConfig",
        "CaptionFlamingoForCausalLM",
        "CaptionGitConfig",
        "CaptionGitForCausalLM",
    ),
    "hf_curriculum.models.flamingo_features": ("VisionFeatures", "cache_vision_features"),
    "hf_curriculum.ordering": ("cut_buckets", "rank_scores"),
    "hf_curriculum.ordering.bucketed": ("BucketIndex", "save_bucketed", "verify_bucketed"),
    "hf_curriculum.pacing": (
        "BATCHES",
        "CURRICULA",
        "IID",
        "AdaptiveGuidance",
        "BabySteps",
        "Batches",
        "Budget",
        "ByImage",
        "ByLength",
        "ByNode",
        "Curriculum",
        "Filter",
        "Growing",
        "GuidanceSchedule",
        "NodeSampling",
        "Observed",
        "Phases",
        "Plan",
        "SelfPaced",
        "Stage",
        "Staged",
        "Weighted",
        "control_of",
        "curriculum_from",
        "make_plan",
    ),
    "hf_curriculum.provenance": ("ScoreProvenance", "attach_provenance", "read_provenance"),
    "hf_curriculum.score_files": ("load_scored", "save_scored"),
    "hf_curriculum.scorers": (
        "SCENES_CLIP",
        "SCORERS",
        "Addup",
        "CLIPSimilarity",
        "CaptionLength",
        "Combine",
        "Concreteness",
        "GridHead",
        "GroundTruthBoxes",
        "LanguageModelLoss",
        "ModelDetector",
        "ModelLoss",
        "NounCount",
        "ObjectMentions",
        "OnnxDetector",
        "PosTagger",
        "RayScorer",
        "RegionProposals",
        "RowHead",
        "Scorer",
        "ViLTSimilarity",
        "VisualEntropy",
        "WordRarity",
        "add_scores",
        "add_scores_from",
        "add_scores_sharded",
        "load_scores",
        "save_scores",
        "scorer_from",
        "shuffle_scores",
    ),
    "hf_curriculum.training": (
        "CurriculumSampler",
        "CurriculumTrainer",
        "CurriculumTrainingArguments",
        "PacingCallback",
    ),
    "hf_curriculum.training.bucketed_stream": ("BucketedStream",),
    "hf_curriculum.training.diverged": ("Diverged", "StopWhenDiverged"),
    "hf_curriculum.training.hub_checkpoints": ("checkpoint_from_hub",),
    "hf_curriculum.training.study": ("Study",),
    "hf_curriculum.training.study_arms": ("grid_arms",),
    "hf_curriculum.training.study_table": ("summarise",),
    "hf_curriculum.training.text_beside": ("TextBesideTrainer",),
}
_HOME = {name: module for module, names in _PUBLIC.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})


register_when_loaded()
