"""Where names live: those of `from hf_curriculum import ...`, the tables of scorers, curricula, batches, models and
commands, and what the shell completes. A name's module is imported when the name is first used.

A new component is one line in its table here; what else it touches is its own file and its test case.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, MutableMapping
from functools import cached_property
from importlib import import_module
from typing import Any

PUBLIC: dict[str, tuple[str, ...]] = {
    "curricula.baby_steps": ("BabySteps",),
    "curricula.filter": ("Filter",),
    "curricula.growing": ("Growing",),
    "curricula.iid": ("IID", "control_of"),
    "curricula.info_batch": ("InfoBatch",),
    "curricula.mixture": ("Mixture",),
    "curricula.node_sampling": ("NodeSampling",),
    "curricula.online_selection": ("OnlineSelection",),
    "curricula.phases": ("Phases",),
    "curricula.self_paced": ("SelfPaced",),
    "curricula.staged": ("Staged",),
    "curricula.weighted": ("Weighted",),
    "data.captions": ("hold_out",),
    "data.collators": ("CaptionCollator",),
    "data.grouping": ("group_captions",),
    "data.load": ("load_captioned",),
    "data.load_conversations": ("load_conversations",),
    "data.processors": ("make_image_processor",),
    "data.tokenizer": ("train_wordpiece",),
    "evaluation.generate": ("generate_captions",),
    "hub.push": ("push_scored",),
    "hub.push_scores": ("push_scores",),
    "models.flamingo.model": ("CaptionFlamingoForCausalLM",),
    "models.git.model": ("CaptionGitForCausalLM",),
    "planning.batches": ("ByImage", "ByLength", "ByNode"),
    "planning.curriculum": ("Curriculum", "curriculum_from"),
    "planning.as_planned": ("as_planned",),
    "planning.plan": ("Plan", "make_plan"),
    "planning.ranking": ("rank_scores",),
    "planning.stage": ("Stage",),
    "provenance": ("read_provenance",),
    "scenes.make": ("make_scenes",),
    "scored_data": ("concat_scored", "load_scored", "save_scored"),
    "scorers.alignment.clip": ("CLIPSimilarity",),
    "scorers.alignment.vilt": ("ViLTSimilarity",),
    "scorers.base": ("Scorer",),
    "scorers.combine": ("Addup", "Combine"),
    "scorers.concreteness": ("Concreteness",),
    "scorers.grounding": ("Grounding",),
    "scorers.instruction_following": ("InstructionFollowingDifficulty",),
    "scorers.model_loss": ("ModelLoss",),
    "scorers.text.language_model": ("LanguageModelLoss",),
    "scorers.text.length": ("CaptionLength",),
    "scorers.text.mentions": ("ObjectMentions",),
    "scorers.text.nouns": ("NounCount",),
    "scorers.text.pos_tagger": ("PosTagger",),
    "scorers.text.rarity": ("WordRarity",),
    "scorers.text.response_length": ("ResponseLength",),
    "scorers.visual.boxes": ("GroundTruthBoxes",),
    "scorers.visual.class_probability": ("ClassProbability",),
    "scorers.visual.entropy": ("VisualEntropy",),
    "scorers.visual.proposals": ("RegionProposals",),
    "scoring.add_scores": ("add_scores",),
    "scoring.controls": ("shuffle_scores",),
    "scoring.join": ("add_scores_from", "load_scores", "save_scores"),
    "scoring.ray": ("score_on_ray",),
    "scoring.sharded": ("add_scores_sharded",),
    "scoring.shards": ("score_shards",),
    "streaming.dataset": ("BucketedStream",),
    "streaming.index_buckets": ("index_buckets",),
    "streaming.save": ("save_bucketed",),
    "streaming.save_shards": ("bucket_shards",),
    "studies.study": ("Study",),
    "studies.tables": ("summarise",),
    "training.amendment": ("Amendment",),
    "training.any_trainer": ("with_curriculum",),
    "training.arguments": ("CurriculumTrainingArguments",),
    "training.callbacks": ("StopWhenDiverged",),
    "training.sampler": ("CurriculumSampler",),
    "training.trainer": ("CurriculumTrainer",),
}
"""Module → names that `hf_curriculum` offers: what serves every task."""


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
        "influence": "scorers.influence:Influence",
        "instruction_following_difficulty": "scorers.instruction_following:InstructionFollowingDifficulty",
        "language_model_loss": "scorers.text.language_model:LanguageModelLoss",
        "model_loss": "scorers.model_loss:ModelLoss",
        "neg_clip_loss": "scorers.alignment.neg_clip_loss:NegCLIPLoss",
        "norm_sim": "scorers.alignment.norm_sim:NormSim",
        "noun_count": "scorers.text.nouns:NounCount",
        "object_mentions": "scorers.text.mentions:ObjectMentions",
        "region_count": "scorers.visual.proposals:RegionProposals",
        "response_length": "scorers.text.response_length:ResponseLength",
        "vilt_similarity": "scorers.alignment.vilt:ViLTSimilarity",
        "visual_entropy": "scorers.visual.entropy:VisualEntropy",
        "word_rarity": "scorers.text.rarity:WordRarity",
    },
    group="hf_curriculum.scorers",
)
"""Every scorer by the column it writes; and those of other packages, by their entry points."""

CURRICULA = LazyTable(
    {
        "adaptive_guidance": "tasks.long_tail.curricula:AdaptiveGuidance",
        "baby_steps": "curricula.baby_steps:BabySteps",
        "filter": "curricula.filter:Filter",
        "growing": "curricula.growing:Growing",
        "guidance_schedule": "tasks.long_tail.curricula:GuidanceSchedule",
        "iid": "curricula.iid:IID",
        "info_batch": "curricula.info_batch:InfoBatch",
        "mixture": "curricula.mixture:Mixture",
        "node_sampling": "curricula.node_sampling:NodeSampling",
        "online_selection": "curricula.online_selection:OnlineSelection",
        "phases": "curricula.phases:Phases",
        "self_paced": "curricula.self_paced:SelfPaced",
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
        "transformer": "tasks.captioning.models.transformer:RegionTransformerForCausalLM",
        "updown": "tasks.captioning.models.updown:UpDownForCausalLM",
        "aoanet": "tasks.captioning.models.aoanet:AoANetForCausalLM",
        "wsddn": "tasks.detection.model:WsddnForObjectDetection",
        "aligner": "tasks.alignment.model:AlignerModel",
    }
)
"""Model classes by name."""

SMALL_MODELS = LazyTable({"images": "tasks.alignment.small_towers:SmallTowers"})
"""What `hf-curriculum advise` trains on data with images."""

AUTO_CLASSES = {
    "transformers.models.auto.configuration_auto": (
        *("models.git.config", "models.flamingo.config"),
        *("tasks.captioning.models.config", "tasks.alignment.config", "tasks.detection.config"),
    ),
    "transformers.models.auto.image_processing_auto": ("data.regions.processor", "tasks.detection.image_processing"),
}
"""Module of an Auto class → our modules that register what it makes."""

SUITES = LazyTable(
    {
        "babylm": "tasks.babylm.cli:evaluate_benchmarks",
        "captions": "tasks.captioning.cli:evaluate_captions",
        "retrieval": "tasks.alignment.cli:evaluate_retrieval",
    }
)
"""What `hf-curriculum evaluate --suite NAME` calls."""

CARD_SECTIONS = LazyTable({"guidance": "tasks.long_tail.generation.filter:spectrum_section"})
"""Column of a data set → the function that writes a section of its card: `DataCard` → Markdown."""


def homes(package: str, modules: dict[str, tuple[str, ...]]) -> dict[str, str]:
    """The names that a package offers, each with the module it lives in."""
    return {
        name: module if module.startswith("hf_curriculum.") else f"{package}.{module}"
        for module, names in modules.items()
        for name in names
    }


def exports(
    package: str, modules: dict[str, tuple[str, ...]]
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """`__all__`, `__getattr__` and `__dir__` of a package whose modules are imported when a name is first used."""
    found = homes(package, modules)
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
