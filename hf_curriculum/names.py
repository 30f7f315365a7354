"""Every public name and where it lives: the one table for `from hf_curriculum import ...`, the tables of scorers,
curricula and batches, and what the shell completes. A name's module is imported when the name is first used.

A new component is one line in its table here; what else it touches is its own file and its test case.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, MutableMapping
from functools import cached_property
from importlib import import_module
from typing import Any

PUBLIC: dict[str, tuple[str, ...]] = {
    "hf_curriculum.curricula.baby_steps": ("BabySteps",),
    "hf_curriculum.curricula.by_loss.info_batch": ("InfoBatch",),
    "hf_curriculum.curricula.by_loss.self_paced": ("SelfPaced",),
    "hf_curriculum.curricula.filter": ("Filter",),
    "hf_curriculum.curricula.growing": ("Growing",),
    "hf_curriculum.curricula.guidance": ("AdaptiveGuidance", "GuidanceSchedule"),
    "hf_curriculum.curricula.iid": ("IID", "control_of"),
    "hf_curriculum.curricula.node_sampling": ("NodeSampling",),
    "hf_curriculum.curricula.online_selection": ("OnlineSelection",),
    "hf_curriculum.curricula.phases": ("Phases",),
    "hf_curriculum.curricula.staged": ("Staged",),
    "hf_curriculum.curricula.weighted": ("Weighted",),
    "hf_curriculum.data.captions": ("drop_empty_captions", "expand_captions", "hold_out"),
    "hf_curriculum.data.collators": ("Augment", "CaptionCollator"),
    "hf_curriculum.data.image_inputs": ("PixelInputs", "RegionInputs"),
    "hf_curriculum.data.joint_text": ("JointText",),
    "hf_curriculum.data.labelled.classes": ("class_counts", "class_names", "long_tail"),
    "hf_curriculum.data.labelled.collator": ("LabelCollator",),
    "hf_curriculum.data.labelled.load": ("load_labelled",),
    "hf_curriculum.data.load": ("load_captioned",),
    "hf_curriculum.data.objects.add_proposals": ("add_proposals",),
    "hf_curriculum.data.objects.files": ("write_proposals",),
    "hf_curriculum.data.objects.grouping": ("group_captions", "one_row_per_image"),
    "hf_curriculum.data.objects.load": ("load_objects",),
    "hf_curriculum.data.objects.proposals": ("SelectiveSearch", "StoredProposals"),
    "hf_curriculum.data.processors": ("CaptionProcessor", "make_image_processor"),
    "hf_curriculum.data.readers.img2dataset": ("load_img2dataset", "read_downloads"),
    "hf_curriculum.data.readers.redcaps": ("load_redcaps",),
    "hf_curriculum.data.readers.url_lists": ("load_url_list",),
    "hf_curriculum.data.regions.extract": ("extract_regions",),
    "hf_curriculum.data.regions.open": ("open_regions",),
    "hf_curriculum.data.regions.pack": ("pack_regions",),
    "hf_curriculum.data.regions.processor": ("RegionProcessor",),
    "hf_curriculum.data.regions.store": ("RegionStore",),
    "hf_curriculum.data.regions.readers.tsv": ("write_line_index",),
    "hf_curriculum.data.text": ("Texts", "load_text"),
    "hf_curriculum.data.text_blocks": ("BlockCollator", "check_word_limit", "count_words", "text_blocks"),
    "hf_curriculum.data.tokenizer": ("train_word_tokenizer", "train_wordpiece"),
    "hf_curriculum.evaluation.babylm.load": ("evaluate_pretrained",),
    "hf_curriculum.evaluation.babylm.miniature": ("make_miniature_benchmarks",),
    "hf_curriculum.evaluation.babylm.run": ("GlueSettings",),
    "hf_curriculum.evaluation.babylm.scorer": ("TextImageScorer",),
    "hf_curriculum.evaluation.babylm.suite": ("BENCHMARKS", "evaluate_suite"),
    "hf_curriculum.evaluation.caption_suite": ("CaptionSuite",),
    "hf_curriculum.evaluation.captions.compare": ("compare_captions",),
    "hf_curriculum.evaluation.captions.metrics": ("CaptionEvaluator", "caption_metrics"),
    "hf_curriculum.evaluation.detection.compare": ("compare_detections",),
    "hf_curriculum.evaluation.detection.metrics": ("detection_metrics",),
    "hf_curriculum.evaluation.generate": ("generate_captions",),
    "hf_curriculum.evaluation.long_tail.metrics": ("class_report", "long_tail_metrics"),
    "hf_curriculum.evaluation.nouns": ("recall_against_shuffled",),
    "hf_curriculum.evaluation.probing": ("colour_captions", "probe_colours", "word_vectors"),
    "hf_curriculum.evaluation.retrieval.compare": ("compare_retrieval",),
    "hf_curriculum.evaluation.retrieval.ranks": ("retrieval_metrics",),
    "hf_curriculum.evaluation.retrieval.suite": ("RetrievalSuite",),
    "hf_curriculum.generation.filter": ("filter_spectrum",),
    "hf_curriculum.generation.generate": ("Retry", "generate_spectrum", "plan_spectrum"),
    "hf_curriculum.generation.join": ("hold_out_levels", "join_spectrum"),
    "hf_curriculum.generation.prompts": ("load_prompts", "write_prompts"),
    "hf_curriculum.generation.grid": ("distance_to_source", "spectrum_grid"),
    "hf_curriculum.generation.plan": ("SpectrumPlan",),
    "hf_curriculum.hub.errors": ("HubError",),
    "hf_curriculum.hub.push": ("push_scored",),
    "hf_curriculum.models.aligner.collator": ("ContrastiveCollator",),
    "hf_curriculum.models.aligner.config": ("AlignerConfig",),
    "hf_curriculum.models.aligner.model": ("AlignerModel",),
    "hf_curriculum.models.aligner.processor": ("AlignerProcessor",),
    "hf_curriculum.models.captioners.aoanet": ("AoANetForCausalLM",),
    "hf_curriculum.models.captioners.config": ("RegionTransformerConfig",),
    "hf_curriculum.models.captioners.convert": ("convert_reference", "reference_tokenizer"),
    "hf_curriculum.models.captioners.recurrent_config": ("AoANetConfig", "UpDownConfig"),
    "hf_curriculum.models.captioners.transformer": ("RegionTransformerForCausalLM",),
    "hf_curriculum.models.captioners.updown": ("UpDownForCausalLM",),
    "hf_curriculum.models.flamingo.config": ("CaptionFlamingoConfig",),
    "hf_curriculum.models.flamingo.model": ("CaptionFlamingoForCausalLM",),
    "hf_curriculum.models.git.config": ("CaptionGitConfig",),
    "hf_curriculum.models.git.model": ("CaptionGitForCausalLM",),
    "hf_curriculum.models.pixel_diffusion": ("PixelDiffusionPipeline",),
    "hf_curriculum.models.vision_features": ("VisionFeatures", "cache_vision_features"),
    "hf_curriculum.models.wsddn.build": ("new_detector",),
    "hf_curriculum.models.wsddn.config": ("ConvBackboneConfig", "WsddnConfig"),
    "hf_curriculum.models.wsddn.image_processing": ("WsddnImageProcessor",),
    "hf_curriculum.models.wsddn.model": ("WsddnForObjectDetection",),
    "hf_curriculum.names": ("BATCHES", "CURRICULA", "MODELS", "SCORERS"),
    "hf_curriculum.planning.batches": ("Batches", "ByImage", "ByLength", "ByNode"),
    "hf_curriculum.planning.buckets": ("cut_buckets",),
    "hf_curriculum.planning.curriculum": ("Budget", "Curriculum", "Observed", "curriculum_from"),
    "hf_curriculum.planning.exposure": ("Exposure",),
    "hf_curriculum.planning.ontology.ontology": ("Ontology",),
    "hf_curriculum.planning.ontology.sources": ("count_stages", "hold_out_instances", "join_sources"),
    "hf_curriculum.planning.plan": ("Plan", "make_plan"),
    "hf_curriculum.planning.ranking": ("rank_scores",),
    "hf_curriculum.planning.stage": ("Stage",),
    "hf_curriculum.provenance": ("ScoreProvenance", "attach_provenance", "read_provenance"),
    "hf_curriculum.reporting.report": ("Report",),
    "hf_curriculum.scenes.make": ("make_scenes",),
    "hf_curriculum.scored_data": ("concat_scored", "load_scored", "save_scored"),
    "hf_curriculum.scorers.alignment.clip": ("CLIPSimilarity", "SCENES_CLIP"),
    "hf_curriculum.scorers.alignment.vilt": ("ViLTSimilarity",),
    "hf_curriculum.scorers.base": ("Scorer",),
    "hf_curriculum.scorers.combine": ("Addup", "Combine"),
    "hf_curriculum.scorers.concreteness": ("Concreteness",),
    "hf_curriculum.scorers.grounding": ("Grounding",),
    "hf_curriculum.scorers.model_loss": ("ModelLoss",),
    "hf_curriculum.scorers.registry": ("scorer_from",),
    "hf_curriculum.scorers.text.language_model": ("LanguageModelLoss",),
    "hf_curriculum.scorers.text.length": ("CaptionLength",),
    "hf_curriculum.scorers.text.mentions": ("ObjectMentions",),
    "hf_curriculum.scorers.text.nouns": ("NounCount",),
    "hf_curriculum.scorers.text.pos_tagger": ("PosTagger",),
    "hf_curriculum.scorers.text.rarity": ("WordRarity",),
    "hf_curriculum.scorers.visual.boxes": ("GroundTruthBoxes",),
    "hf_curriculum.scorers.visual.class_probability": ("ClassProbability",),
    "hf_curriculum.scorers.visual.detectors": ("ModelDetector",),
    "hf_curriculum.scorers.visual.entropy": ("VisualEntropy",),
    "hf_curriculum.scorers.visual.onnx": ("GridHead", "OnnxDetector", "RowHead"),
    "hf_curriculum.scorers.visual.proposals": ("RegionProposals",),
    "hf_curriculum.scoring.add_scores": ("add_scores", "add_scores_sharded"),
    "hf_curriculum.scoring.controls": ("shuffle_scores",),
    "hf_curriculum.scoring.hard": ("mark_hard",),
    "hf_curriculum.scoring.embeddings": ("add_embeddings",),
    "hf_curriculum.scoring.detections": ("add_detections",),
    "hf_curriculum.scoring.join": ("add_scores_from", "load_scores", "save_scores"),
    "hf_curriculum.scoring.labels": ("BoxLabels", "CaptionLabels", "GivenLabels", "add_labels"),
    "hf_curriculum.scoring.ray": ("RayScorer",),
    "hf_curriculum.streaming.dataset": ("BucketedStream",),
    "hf_curriculum.streaming.index": ("BucketIndex", "verify_bucketed"),
    "hf_curriculum.streaming.save": ("save_bucketed",),
    "hf_curriculum.studies.study": ("Study", "grid_arms"),
    "hf_curriculum.studies.tables": ("summarise",),
    "hf_curriculum.training.arguments": ("CurriculumTrainingArguments",),
    "hf_curriculum.training.any_trainer": ("with_curriculum",),
    "hf_curriculum.training.callbacks": ("Diverged", "PacingCallback", "StopWhenDiverged"),
    "hf_curriculum.training.captioning.self_critical": ("SelfCriticalTrainer",),
    "hf_curriculum.training.checkpoints": ("checkpoint_from_hub",),
    "hf_curriculum.training.detection.collator": ("DetectionCollator",),
    "hf_curriculum.training.contrastive.trainer": ("ContrastiveTrainer",),
    "hf_curriculum.training.classification.flyp": ("CLIPClassifier", "PromptCollator"),
    "hf_curriculum.training.classification.losses": (
        *("BalancedSoftmax", "ClassBalanced", "CrossEntropy", "Focal", "LDAM", "LogitAdjustment"),
    ),
    "hf_curriculum.training.joint_text": ("JointTextTrainer",),
    "hf_curriculum.training.sampler": ("CurriculumSampler",),
    "hf_curriculum.training.trainer": ("CurriculumTrainer",),
}
"""Module → names that `hf_curriculum` itself offers."""

BY_PACKAGE: dict[str, tuple[str, ...]] = {
    "hf_curriculum.data.objects.proposals": ("proposal_recall",),
    "hf_curriculum.data.readers.coco": ("class_names",),
    "hf_curriculum.data.regions.base": (
        "RegionSource",
        "Regions",
    ),
    "hf_curriculum.evaluation.babylm.load": ("load_for_evaluation",),
    "hf_curriculum.evaluation.babylm.run": ("TaskResult",),
    "hf_curriculum.evaluation.babylm.scorer": ("Item",),
    "hf_curriculum.evaluation.babylm.suite": ("Benchmark", "SUITES", "SuiteResult"),
    "hf_curriculum.evaluation.caption_suite": ("CaptionEvaluation", "read_captions", "write_captions"),
    "hf_curriculum.evaluation.captions.caption_metric": ("CaptionMetric",),
    "hf_curriculum.evaluation.captions.cider": ("CiderD", "DocumentFrequencies"),
    "hf_curriculum.evaluation.captions.clip_score": ("clip_scores",),
    "hf_curriculum.evaluation.captions.compare": ("CaptionComparison", "bootstrap"),
    "hf_curriculum.evaluation.captions.difficulty": ("difficulty_sets", "metrics_by_set"),
    "hf_curriculum.evaluation.captions.java": ("JavaError",),
    "hf_curriculum.evaluation.captions.metrics": ("METRICS", "CaptionScores", "caption_compute_metrics"),
    "hf_curriculum.evaluation.captions.overlap": ("PreparedReferences",),
    "hf_curriculum.evaluation.captions.tokens": ("tokenize", "tokenize_all"),
    "hf_curriculum.evaluation.detection.compare": ("DetectionComparison",),
    "hf_curriculum.evaluation.detection.metrics": (
        "DETECTION_METRICS",
        "DetectionScores",
        "detection_compute_metrics",
    ),
    "hf_curriculum.evaluation.detection.random_boxes": ("random_detections",),
    "hf_curriculum.evaluation.generate": ("references",),
    "hf_curriculum.evaluation.long_tail.metrics": ("ClassReport", "class_groups"),
    "hf_curriculum.evaluation.nouns": ("RecallResult", "noun_recall", "singular"),
    "hf_curriculum.evaluation.probing": ("COLOURS", "ColourCaptions", "ColourProbe", "cluster_agreement", "k_means"),
    "hf_curriculum.evaluation.retrieval.compare": ("RetrievalComparison",),
    "hf_curriculum.evaluation.retrieval.nouns": ("caption_classes", "noun_spans"),
    "hf_curriculum.evaluation.retrieval.ranks": (
        "RetrievalRanks",
        "ScoreMatrix",
        "Similarities",
        "VectorSimilarities",
    ),
    "hf_curriculum.evaluation.retrieval.score_captions": (
        "AlignerScores",
        "aligner_scores",
        "caption_scores",
        "clip_similarities",
    ),
    "hf_curriculum.evaluation.retrieval.suite": ("PROTOCOLS", "Protocol", "RetrievalEvaluation", "read_ranks"),
    "hf_curriculum.evaluation.retrieval.within_class": ("WithinClass", "object_classes", "rank_within_classes"),
    "hf_curriculum.models.aligner.encoders": ("ImageTextEncoders", "encoders_of"),
    "hf_curriculum.models.aligner.losses": ("contrastive_loss", "false_negatives"),
    "hf_curriculum.models.aligner.model": ("AlignerOutput", "EncodedRegions"),
    "hf_curriculum.models.captioners.aoanet": ("AoANetModel",),
    "hf_curriculum.models.captioners.regions": ("EncodedImages",),
    "hf_curriculum.models.captioners.state": ("RecurrentCache",),
    "hf_curriculum.models.captioners.transformer": ("RegionTransformerModel",),
    "hf_curriculum.models.captioners.updown": ("UpDownModel",),
    "hf_curriculum.models.flamingo.model": ("CaptionFlamingoModel",),
    "hf_curriculum.models.git.model": ("CaptionGitModel", "CaptionGitPreTrainedModel"),
    "hf_curriculum.planning.buckets": ("Buckets", "keep_easiest", "mark_easiest"),
    "hf_curriculum.planning.groups": ("Groups", "read_columns", "read_groups"),
    "hf_curriculum.planning.ontology.entries": ("NounClass",),
    "hf_curriculum.planning.ontology.nouns": ("Mentions", "find_nouns"),
    "hf_curriculum.planning.ontology.objects": ("ImageObjects", "read_objects"),
    "hf_curriculum.planning.ontology.review": ("write_review",),
    "hf_curriculum.planning.ontology.sources": ("StageCount",),
    "hf_curriculum.planning.ranking": ("Ranking", "read_scores", "resolve_easy"),
    "hf_curriculum.planning.score_mixture": ("ScoreMixture", "fit_score_mixture"),
    "hf_curriculum.reporting.figures.canvas": ("DARK", "LIGHT", "THEMES", "Theme", "to_png"),
    "hf_curriculum.reporting.boxes": ("draw_boxes",),
    "hf_curriculum.reporting.caption_page": ("caption_report",),
    "hf_curriculum.reporting.figures.attention": ("region_attention",),
    "hf_curriculum.reporting.chosen": ("Chosen", "chosen_of"),
    "hf_curriculum.reporting.figures.chosen": ("chosen_counts", "chosen_scores"),
    "hf_curriculum.reporting.figures.curves": ("examples_until", "merges_of", "validation_curves"),
    "hf_curriculum.reporting.figures.distribution": (
        "ScoreRow",
        "score_correlations",
        "score_distribution",
        "score_distributions",
        "score_mixture",
    ),
    "hf_curriculum.reporting.figures.drawn": ("drawn_scores",),
    "hf_curriculum.reporting.figures.growth": ("plan_growth", "pool_growth"),
    "hf_curriculum.reporting.figures.probing": ("vectors_by_colour",),
    "hf_curriculum.reporting.figures.retrieval": ("held_out_retrieval",),
    "hf_curriculum.reporting.figures.study": ("IntervalRow", "interval_rows"),
    "hf_curriculum.reporting.figures.ontology": ("ontology_sizes",),
    "hf_curriculum.reporting.ontology_page": ("ontology_report",),
    "hf_curriculum.reporting.report": ("CaptionGallery", "CaptionLine", "Gallery"),
    "hf_curriculum.scenes.contact_sheet": ("contact_sheet",),
    "hf_curriculum.scenes.vocabulary": ("NOUNS", "object_nouns"),
    "hf_curriculum.scoring.labels": ("LabelQuality", "label_counts", "label_names", "label_quality"),
    "hf_curriculum.reporting.retrieval_page": ("retrieval_report",),
    "hf_curriculum.scoring.hard": ("hard_counts",),
    "hf_curriculum.streaming.index": ("Shard", "StoredBucket"),
    "hf_curriculum.studies.recipe": ("RecipeParser", "read_preset", "resume_point"),
    "hf_curriculum.training.detection.constant": ("constant_loss",),
}
"""Module → names that its package offers, `hf_curriculum` does not."""


class LazyTable(MutableMapping[str, Any]):
    """Classes by the name they have in JSON, YAML and on a command line, each imported when it is looked up.

    Args:
        places: name → `module:attribute`, the module below `hf_curriculum`.
        group: of entry points, under which other installed packages name theirs.
    """

    def __init__(self, places: dict[str, str], group: str | None = None) -> None:
        self._own: dict[str, Any] = dict(places)
        self._group = group

    @cached_property
    def _entries(self) -> dict[str, Any]:
        from importlib.metadata import entry_points  # as slow as all else that `import hf_curriculum` loads

        found = entry_points(group=self._group) if self._group else ()
        return {**self._own, **{point.name: point for point in found if point.name not in self._own}}

    def __getitem__(self, name: str) -> Any:
        from importlib.metadata import EntryPoint

        value = self._entries[name]
        if isinstance(value, str):
            module, _, attribute = value.partition(":")
            value = self._entries[name] = getattr(import_module(f"hf_curriculum.{module}"), attribute)
        elif isinstance(value, EntryPoint):
            value = self._entries[name] = value.load()
        return value

    def name_of(self, class_name: str) -> str | None:
        """The name of the class that is called so, found without importing the others; None if there is none."""
        for name, value in self._entries.items():
            called = value.rpartition(":")[2] if isinstance(value, str) else getattr(value, "attr", None)
            if class_name == (called or getattr(value, "__name__", None)):
                return name
        return None

    def __setitem__(self, name: str, value: Any) -> None:
        self._entries[name] = value

    def __delitem__(self, name: str) -> None:
        del self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"LazyTable({list(self)})"


SCORERS = LazyTable(
    {
        "addup": "scorers.combine:Addup",
        "box_count": "scorers.visual.boxes:GroundTruthBoxes",
        "caption_length": "scorers.text.length:CaptionLength",
        "class_probability": "scorers.visual.class_probability:ClassProbability",
        "clip_similarity": "scorers.alignment.clip:CLIPSimilarity",
        "combined": "scorers.combine:Combine",
        "concreteness": "scorers.concreteness:Concreteness",
        "grounding": "scorers.grounding:Grounding",
        "language_model_loss": "scorers.text.language_model:LanguageModelLoss",
        "model_loss": "scorers.model_loss:ModelLoss",
        "noun_count": "scorers.text.nouns:NounCount",
        "object_mentions": "scorers.text.mentions:ObjectMentions",
        "region_count": "scorers.visual.proposals:RegionProposals",
        "vilt_similarity": "scorers.alignment.vilt:ViLTSimilarity",
        "visual_entropy": "scorers.visual.entropy:VisualEntropy",
        "word_rarity": "scorers.text.rarity:WordRarity",
    },
    group="hf_curriculum.scorers",
)
"""Every scorer by the column it writes; and those of other packages, by their entry points."""

CURRICULA = LazyTable(
    {
        "adaptive_guidance": "curricula.guidance:AdaptiveGuidance",
        "baby_steps": "curricula.baby_steps:BabySteps",
        "filter": "curricula.filter:Filter",
        "growing": "curricula.growing:Growing",
        "guidance_schedule": "curricula.guidance:GuidanceSchedule",
        "iid": "curricula.iid:IID",
        "info_batch": "curricula.by_loss.info_batch:InfoBatch",
        "node_sampling": "curricula.node_sampling:NodeSampling",
        "online_selection": "curricula.online_selection:OnlineSelection",
        "phases": "curricula.phases:Phases",
        "self_paced": "curricula.by_loss.self_paced:SelfPaced",
        "staged": "curricula.staged:Staged",
        "weighted": "curricula.weighted:Weighted",
    },
    group="hf_curriculum.curricula",
)
"""Every curriculum by the name it has in JSON and YAML; and those of other packages, by their entry points."""

BATCHES = LazyTable(
    {
        "by_image": "planning.batches:ByImage",
        "by_length": "planning.batches:ByLength",
        "by_node": "planning.batches:ByNode",
    }
)
"""Every way to put batches together by the name it has in JSON and YAML."""

MODELS = LazyTable(
    {
        "git": "models.git.model:CaptionGitForCausalLM",
        "flamingo": "models.flamingo.model:CaptionFlamingoForCausalLM",
        "transformer": "models.captioners.transformer:RegionTransformerForCausalLM",
        "updown": "models.captioners.updown:UpDownForCausalLM",
        "aoanet": "models.captioners.aoanet:AoANetForCausalLM",
        "wsddn": "models.wsddn.model:WsddnForObjectDetection",
        "aligner": "models.aligner.model:AlignerModel",
    }
)
"""Model classes by name."""


def homes(package: str) -> dict[str, str]:
    """The names that a package offers, each with the module it lives in."""
    tables = (PUBLIC,) if package == "hf_curriculum" else (PUBLIC, BY_PACKAGE)
    return {
        name: module
        for table in tables
        for module, names in table.items()
        if module.startswith(f"{package}.")
        for name in names
    }


def exports(package: str) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """`__all__`, `__getattr__` and `__dir__` of a package, from the tables."""
    found = homes(package)
    module_globals = sys.modules[package].__dict__

    def __getattr__(name: str) -> Any:
        if name in found:
            value = getattr(import_module(found[name]), name)
            module_globals[name] = value
            return value
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*module_globals, *found})

    return sorted(found), __getattr__, __dir__
