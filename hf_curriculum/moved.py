"""Where modules of version 0.1 went: imports and pickles that name them still work, with a `DeprecationWarning`."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MODULES_BEFORE = {
    "": {
        "yaml_text": "config",
        "auto_classes": "models",
        "keyed": "rng",
        "score_files": "scored_data",
    },
    "commands": {
        "": "cli",
        "common completion tables": "cli.common",
        "evaluate": "cli.evaluate",
        "inspect": "cli.data.inspect",
        "plan": "cli.plan",
        "push": "cli.push",
        "report": "cli.report",
        "score": "cli.data.score",
        "train": "cli.train",
    },
    "data": {
        "image_ids splits": "data.captions",
        "readable": "data.images",
        "text_beside": "data.joint_text",
        "loading": "data.load",
        "mapping": "data.readers.columns",
        "pixels": "data.processors",
        "coco karpathy": "data.readers.coco",
        "files": "data.readers.files",
        "folder": "data.readers.folder",
        "img2dataset img2dataset_stats": "data.readers.img2dataset",
        "tables": "data.readers.tables",
        "url_lists": "data.readers.url_lists",
        "region_arrays region_matlab": "data.regions.readers.arrays",
        "region_files": "data.regions.open",
        "region_json region_tsv": "data.regions.readers.tsv",
        "draws": "data.seeding",
        "text_cache text_files text_pages": "data.text",
        "word_count": "data.text_blocks",
        "distinct_words": "data.tokenizer",
        "text_scenes": "scenes.captions",
    },
    "data.scenes": {
        "": "scenes",
        "captions phrases": "scenes.captions",
        "contact_sheet": "scenes.contact_sheet",
        "drawing textures": "scenes.drawing",
        "geometry": "scenes.geometry",
        "build difficulty mismatch png": "scenes.make",
        "draws": "scenes.random",
        "layout scene": "scenes.scene",
        "silhouettes": "scenes.silhouettes",
        "palette vocabulary": "scenes.vocabulary",
    },
    "evaluation": {
        "gold": "evaluation.nouns",
    },
    "evaluation.benchmarks": {
        "": "evaluation.babylm",
        "devbench devbench_data devbench_scores": "evaluation.babylm.devbench",
        "files hub_rows": "evaluation.babylm.files",
        "glue glue_data glue_model": "evaluation.babylm.glue",
        "load": "evaluation.babylm.load",
        "miniature miniature_devbench miniature_glue miniature_pictures miniature_text": "evaluation.babylm.miniature",
        "glue_settings results run": "evaluation.babylm.run",
        "items scorer tokens": "evaluation.babylm.scorer",
        "catalogue suite tables": "evaluation.babylm.suite",
        "text_tasks": "evaluation.babylm.text_tasks",
        "vqa": "evaluation.babylm.vqa",
        "winoground": "evaluation.babylm.winoground",
    },
    "hub": {
        "parquet push_scored": "hub.push",
        "markup numbers": "reporting.html",
        "ends inspection": "reporting.inspection",
        "markdown": "markdown",
        "gallery report tables": "reporting.report",
        "run_report": "reporting.run_sections",
    },
    "hub.figures": {
        "": "reporting.figures",
        "canvas theme": "reporting.figures.canvas",
        "curves": "reporting.figures.curves",
        "correlations distribution": "reporting.figures.distribution",
        "drawn": "reporting.figures.drawn",
        "growth": "reporting.figures.growth",
        "study": "reporting.figures.study",
    },
    "models": {
        "image_text": "models.captioner",
        "flamingo_build": "models.flamingo.build",
        "flamingo_config": "models.flamingo.config",
        "flamingo_features": "models.vision_features",
        "flamingo_inputs flamingo_layers": "models.flamingo.layers",
        "flamingo_model": "models.flamingo.model",
        "git_build": "models.git.build",
        "git_config": "models.git.config",
        "git_inputs git_shared": "models.base",
        "git_attention git_layers": "models.git.layers",
        "packed_text token_loss": "models.packed_loss",
        "classes": "models",
    },
    "ordering": {
        "": "planning",
        "buckets filtering": "planning.buckets",
        "groups": "planning.groups",
        "ascending ranking": "planning.ranking",
    },
    "ordering.bucketed": {
        "": "streaming",
        "index": "streaming.index",
        "card save": "streaming.save",
        "parquet_shards tar_shards": "streaming.shards",
    },
    "pacing": {
        "": "curricula",
        "adaptive_guidance": "curricula.guidance",
        "baby_steps": "curricula.baby_steps",
        "filter": "curricula.filter",
        "growing": "curricula.growing",
        "guidance levels": "curricula.guidance",
        "controls": "curricula.iid",
        "iid": "curricula.iid",
        "node_sampling": "curricula.node_sampling",
        "phases": "curricula.phases",
        "self_paced": "curricula.by_loss.self_paced",
        "staged": "curricula.staged",
        "weighted": "curricula.weighted",
        "batches layouts": "planning.batches",
        "curriculum length": "planning.curriculum",
        "signals": "planning.curriculum",
        "node_batches": "planning.stage",
        "describe facts plan": "planning.plan",
        "stages": "planning.stage",
        "bucket_plan lanes": "streaming.plan",
    },
    "scorers": {
        "clip clip_domain clip_encode": "scorers.alignment.clip",
        "clip_open clip_towers": "scorers.alignment.clip_backends",
        "vilt vilt_matching": "scorers.alignment.vilt",
        "captions corpus": "scorers.base",
        "neighbours vectors": "scorers.concreteness",
        "configured": "scorers.registry",
        "language_model": "scorers.text.language_model",
        "categories mentions nltk_words": "scorers.text.mentions",
        "nouns": "scorers.text.nouns",
        "pos_tagger pos_training word_pieces": "scorers.text.pos_tagger",
        "rarity": "scorers.text.rarity",
        "taggers": "scorers.text.taggers",
        "boxes": "scorers.visual.boxes",
        "detections detectors": "scorers.visual.detectors",
        "precomputed visual_entropy": "scorers.visual.entropy",
        "pictures": "scorers.visual.images",
        "onnx_detector onnx_heads": "scorers.visual.onnx",
        "proposals": "scorers.visual.proposals",
        "selective_search": "data.objects.proposals",
        "add per_image sharded streaming view": "scoring.add_scores",
        "attach": "provenance",
        "controls": "scoring.controls",
        "parts": "parts",
        "join keys side_file": "scoring.join",
        "ray_batches": "scoring.ray",
    },
    "training": {
        "bucketed_stream": "streaming.dataset",
        "bucketed_reading stream_share": "streaming.reader",
        "settings": "studies.recipe",
        "study_stats": "studies.statistics",
        "study study_arms": "studies.study",
        "study_table": "studies.tables",
        "callback clock diverged": "training.callbacks",
        "hub_checkpoints": "training.checkpoints",
        "text_beside": "training.joint_text",
        "example_losses generation": "training.prediction",
        "report run_facts": "training.publishing",
        "checks processes randomness ranked": "training.setup",
        "rounds": "training.trainer",
        "audit": "training.sampler",
    },
}
"""Package of version 0.1 → its modules (itself: "") → the module or package that holds their content now."""

NAMES_BEFORE = {
    "hf_curriculum": "TextBeside TextBesideTrainer",
    "hf_curriculum.evaluation": "one_row_per_image",
    "hf_curriculum.hub": "Gallery Report",
    "hf_curriculum.models": "MODELS",
    "hf_curriculum.scorers": "RayScorer SCORERS add_scores add_scores_from add_scores_sharded load_scores save_scores "
    "shuffle_scores",
}
"""Package → names that it offered in version 0.1 and that now live elsewhere."""

RENAMED = {
    "Domain": "OutOfDistributionCheck",
    "DrawnCollator": "IndexedCollator",
    "DrawnDataset": "IndexedDataset",
    "Drawn": "IndexedExample",
    "check_room": "check_generated_length",
    "needed_tokens": "relevant_tokens",
    "PICTURES": "IMAGE_SUFFIXES",
    "picture_key": "image_key",
    "refuse": "validate_unused",
    "undecoded": "stored_images",
    "HOLE": "PAD_INDEX",
    "PictureOpener": "ImageOpener",
    "TextBeside": "JointText",
    "TextBesideTrainer": "JointTextTrainer",
    "attach_columns": "append_columns",
    "cut_thin": "crop_thin",
    "distinct_pictures": "distinct_images",
    "encode_pictures": "encode_images",
    "learn_domain": "training_statistics",
    "picture_size": "image_size",
    "report_cut": "report_truncated",
    "spread": "scatter",
}
"""Name of version 0.1 → its name now."""


ATTRIBUTES_RENAMED = {
    "imagined": "scenarios",
    "known_slots": "known_samples",
    "num_slots": "num_samples",
    "outlook": "pending_decisions",
    "ranks": "positions",
}
"""Attribute of plans, stages and curricula in version 0.1 → its name now."""


class RenamedAttributes:
    """Attributes under their name of version 0.1, used or overridden, with a `DeprecationWarning`."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for before, now in ATTRIBUTES_RENAMED.items():
            if before in cls.__dict__:
                warnings.warn(f"{cls.__name__}.{before} is called `{now}` now.", DeprecationWarning, stacklevel=2)
                setattr(cls, now, cls.__dict__[before])

    def __getattr__(self, name: str) -> Any:
        if name not in ATTRIBUTES_RENAMED:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        now = ATTRIBUTES_RENAMED[name]
        warnings.warn(f"{type(self).__name__}.{name} is called `{now}` now.", DeprecationWarning, stacklevel=2)
        return getattr(self, now)


def renamed_arguments(**names: str) -> Callable[[Callable], Callable]:
    """A decorator: keyword arguments of these names, of version 0.1, stand for those of today, with a warning."""

    def decorate(function: Callable) -> Callable:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            for before in names.keys() & kwargs.keys():
                warnings.warn(f"{before}= is now called {names[before]}=.", DeprecationWarning, stacklevel=2)
                kwargs[names[before]] = kwargs.pop(before)
            return function(*args, **kwargs)

        return call

    return decorate


class MovedModule(ModuleType):
    """Stands where a module of version 0.1 was; every name is looked up where it is now."""

    def __init__(self, name: str, home: str) -> None:
        super().__init__(name, "Moved.")
        self.__spec__: ModuleSpec | None = ModuleSpec(name, None, is_package=True)
        self.__path__: list[str] = []
        self._home = home

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if f"{self.__name__}.{name}" in sys.modules:
            return sys.modules[f"{self.__name__}.{name}"]
        now = RENAMED.get(name, name)
        for home in (self._home, "hf_curriculum"):
            module = import_module(home)
            if hasattr(module, now):
                warnings.warn(
                    f"{self.__name__}.{name} has moved: `from {home} import {now}`.", DeprecationWarning, stacklevel=2
                )
                return getattr(module, now)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")


def register_moved_modules() -> None:
    """Puts a `MovedModule` into `sys.modules` for every module of version 0.1 that is gone."""
    for package, moves in MODULES_BEFORE.items():
        for before, now in moves.items():
            for name in before.split() or [""]:
                old = ".".join(part for part in ("hf_curriculum", package, name) if part)
                sys.modules.setdefault(old, MovedModule(old, f"hf_curriculum.{now}"))
