"""The facts of a run that its model card is written from."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

from hf_curriculum.hub.papers import PAPERS, paper_of
from hf_curriculum.names import MODELS
from hf_curriculum.provenance import checkout_commit, read_feature_provenance, score_statistics
from hf_curriculum.streaming.plan import BucketScores
from hf_curriculum.training.setup import image_processor_of

_PACKAGES = ("hf-curriculum", "torch", "transformers", "datasets", "accelerate")
_AUTO = (
    "AutoModelForImageTextToText",
    "AutoModelForCausalLM",
    "AutoModelForImageClassification",
    "AutoModelForObjectDetection",
    "AutoModelForSequenceClassification",
    "AutoModel",
)
_SETTINGS = ("learning_rate", "lr_scheduler_type", "warmup_steps", "weight_decay", "optim", "bf16", "fp16")
_LOGGED = ("step", "examples", "seconds")


def gather_facts(
    trainer: Any,
    *,
    name: str | None = None,
    paper: str | None = None,
    results: Sequence[Mapping[str, Any]] = (),
    description: str | None = None,
    before: Sequence[Mapping[str, Any]] = (),
    **said: Any,
) -> dict[str, Any]:
    """The facts of a run, JSON-able, from the arguments of `create_model_card`; see `hub.model_card.Facts`."""
    plan = trainer.plan
    rule = plan.curriculum.to_dict()
    if paper is not None and paper not in PAPERS:
        raise ValueError(f"paper={paper!r} is not known; {', '.join(PAPERS)} are.")
    seen = [entry for entry in trainer.state.log_history if any(name.startswith("eval_") for name in entry)]
    return {
        "format": 1,
        "model": _model_facts(trainer, name, said.pop("finetuned_from", None)),
        "data": {
            "name": said.pop("dataset", None),
            **({} if description is None else {"description": description}),
            "rows": plan.ranking.num_rows,
            "evaluation_rows": _rows(trainer.eval_dataset),
        },
        **_reading_facts(trainer),
        "score": _score_facts(trainer),
        "curriculum": rule,
        "plan": plan.to_dict(),
        "describe": plan.describe(),
        "decisions": [dict(entry) for entry in plan.log],
        "settings": _settings(trainer),
        "before": [dict(stage) for stage in before],
        "history": [_finite(entry) for entry in seen],
        "results": [_printable(one) for one in (*_evaluated(seen), *results)],
        "cost": {
            "examples": trainer.examples_seen(),
            **scoring_cost(trainer),
            "steps": trainer.state.global_step,
            "seconds": round(trainer.trained_seconds, 1),
            **trainer.speed.of_run(),
        },
        "hardware": _hardware(trainer),
        "versions": {
            "python": platform.python_version(),
            **{package: version(package) for package in _PACKAGES},
            **checkout_commit(),
        },
        "paper": paper_of(rule, plan.ranking.score_column) if paper is None else paper,
        **{key: value for key, value in said.items() if value is not None},
    }


def _model_facts(trainer: Any, name: str | None, base: str | None) -> dict[str, Any]:
    model = trainer.accelerator.unwrap_model(trainer.model)
    adapted = hasattr(model, "peft_config")
    inner = model.get_base_model() if adapted else model
    ours = isinstance(inner, tuple(MODELS.values()))
    repo_id = trainer.hub_model_id or trainer.args.hub_model_id or Path(trainer.args.output_dir).resolve().name
    config = getattr(inner, "config", None)
    if base is None:
        base = getattr(config, "_name_or_path", "") or None
    if base is not None and os.path.isdir(base):
        base = None  # a local folder
    return {
        "name": name or repo_id.rpartition("/")[2],
        "repo_id": repo_id,
        "class": type(inner).__name__,
        "auto": _auto_class(inner),
        "type": getattr(config, "model_type", None),
        "processor": _processor_class(trainer, config),
        "parameters": sum(weights.numel() for weights in model.parameters()),
        "trainable": sum(weights.numel() for weights in model.parameters() if weights.requires_grad),
        "base_model": base,
        "is_ours": ours,
        "is_adapter": adapted,
    }


def _auto_class(model: nn.Module) -> str | None:
    """The first Auto class that loads a model of this class."""
    if not isinstance(model, PreTrainedModel):
        return None
    for name in _AUTO:
        known = getattr(transformers, name)._model_mapping
        if type(model.config) in known and known[type(model.config)] is type(model):
            return name
    return None


def _processor_class(trainer: Any, config: Any) -> str | None:
    """The Auto class of what is saved beside the model."""
    processor = trainer.processing_class
    if image_processor_of(trainer) is not None and type(config) in PROCESSOR_MAPPING:
        return "AutoProcessor"  # of the tokenizer and the image processor, by the model's type
    if processor is None:
        without_text = getattr(trainer.data_collator, "tokenizer", None) is None
        return "AutoImageProcessor" if without_text and image_processor_of(trainer) is not None else None
    if isinstance(processor, PreTrainedTokenizerBase):
        return "AutoTokenizer"
    return "AutoProcessor" if isinstance(processor, transformers.ProcessorMixin) else "AutoImageProcessor"


def _reading_facts(trainer: Any) -> dict[str, Any]:
    """What a captioner on regions reads of images, `images`, and of captions, `words`; nothing for other models.

    The collator's image inputs or else the model tell it by a method `card_facts() -> dict`.
    """
    collator, model = trainer.data_collator, trainer.accelerator.unwrap_model(trainer.model)
    tellers = [one for one in (getattr(collator, "image_inputs", None), model) if hasattr(one, "card_facts")]
    images = next((found for one in tellers if (found := one.card_facts())), None)
    if images is None:
        return {}
    if images["reads"] == "region_features":
        size = getattr(getattr(model, "config", None), "region_feature_size", None)
        images = {"reads": images.pop("reads"), "numbers_per_region": size, **images}
    tokenizer = collator.tokenizer
    words = {"tokens": len(tokenizer), "unknown": tokenizer.unk_token, "max_length": collator.max_length}
    return {"images": images, "words": words}


def _score_facts(trainer: Any) -> dict[str, Any] | None:
    ranking = trainer.plan.ranking
    scores = ranking.scores
    if scores is None:
        return None
    made = None
    if hasattr(trainer.train_dataset, "features"):
        made = read_feature_provenance(trainer.train_dataset.features or {}).get(ranking.score_column)
    return {
        "column": ranking.score_column or "score",
        "easy": ranking.easy,
        "provenance": None if made is None else made.to_dict(),
        "statistics": scores.statistics() if isinstance(scores, BucketScores) else score_statistics(scores),
    }


def _settings(trainer: Any) -> dict[str, Any]:
    args, plan = trainer.args, trainer.plan
    collator = getattr(trainer.data_collator, "collator", trainer.data_collator)  # `JointText`'s
    images = getattr(collator, "image_processor", None)
    values = {name: getattr(args, name) for name in _SETTINGS}
    multiple = getattr(trainer.data_collator, "pad_to_multiple_of", None) or 1
    return {
        "examples per optimizer step": plan.global_batch_size,
        **({} if plan.candidates == 1 else {"candidates per optimizer step": plan.samples_per_step}),
        "planned optimizer steps": plan.max_steps,
        **{name: value.value if isinstance(value, Enum) else value for name, value in values.items()},
        **({} if args.weight_column is None else {"weights of the examples": args.weight_column}),
        **({"images resized by": images.backend} if getattr(images, "backend", "pil") != "pil" else {}),
        **({"JPEGs decoded at a smaller scale": True} if getattr(images, "draft", False) else {}),
        **({} if multiple == 1 else {"texts padded to a multiple of": multiple}),
        "seed": args.seed,
        "seed of the order": plan.seed,
    }


def scoring_cost(trainer: Any) -> dict[str, int]:
    """What a run that scores examples beside those that it trains on costs besides; nothing for any other."""
    costs = trainer.costs()
    return {name: costs[name] for name in ("examples_scored", "compute")} if costs["examples_scored"] else {}


def _hardware(trainer: Any) -> dict[str, Any]:
    if torch.cuda.is_available() and trainer.args.device.type == "cuda":
        device = torch.cuda.get_device_name(trainer.args.device)
    else:
        device = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    return {"device": device, "processes": trainer.args.world_size, "system": platform.system()}


def _evaluated(seen: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The metrics of the last evaluation, of all its sets, without their speed."""
    if not seen:
        return []
    last = {
        name: value for entry in seen if entry.get("step") == seen[-1].get("step") for name, value in entry.items()
    }
    speed = ("_runtime", "_per_second")
    return [
        {"metric": name.removeprefix("eval_"), "value": value, "source": "evaluation data, last evaluation"}
        for name, value in last.items()
        if name.startswith("eval_") and isinstance(value, (int, float)) and not name.endswith(speed)
    ]


def _printable(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result as JSON can hold it: NaN and infinity as text."""
    values = {name: float(v) if isinstance(v, (float, np.floating)) else v for name, v in result.items()}
    return {name: str(v) if isinstance(v, float) and not np.isfinite(v) else v for name, v in values.items()}


def _finite(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a log entry that JSON can hold."""
    return {name: value for name, value in entry.items() if isinstance(value, (int, float)) and np.isfinite(value)}


def _rows(dataset: Any) -> int | None:
    return len(dataset) if hasattr(dataset, "__len__") and not isinstance(dataset, dict) else None
