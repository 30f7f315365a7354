"""What a run can tell of itself: the facts that a model card is written from."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_curriculum.hub.papers import PAPERS, paper_of
from hf_curriculum.models import MODELS
from hf_curriculum.provenance import read_provenance, score_statistics

if TYPE_CHECKING:
    from hf_curriculum.training.publishing import PublishingTrainer

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
    trainer: PublishingTrainer,
    *,
    name: str | None = None,
    paper: str | None = None,
    results: Sequence[Mapping[str, Any]] = (),
    description: str | None = None,
    before: Sequence[Mapping[str, Any]] = (),
    **said: Any,
) -> dict[str, Any]:
    """The facts of a run, all of them JSON; see `hf_curriculum.hub.model_card.Facts`.

    Args:
        trainer: the trainer, before, while or after it trains.
        name: the model's name; that of its repository by default.
        paper: a key of `PAPERS`; that of the curriculum's rule by default.
        results: further measurements: `metric`, `value`, and where known `reference` (the paper's) and `source`.
        description: of the data in a few words, where its name says nothing.
        before: stages of training before this one, each with its `stage`, `examples`, `steps` and `seconds`.
        **said: what the author says: `license`, `language`, `tags`, `dataset`, `finetuned_from`.

    Raises:
        ValueError: an unknown paper.
    """
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
        "score": _score_facts(trainer),
        "curriculum": rule,
        "plan": plan.to_dict(),
        "describe": plan.describe(),
        "decisions": [dict(entry) for entry in plan.log],
        "settings": _settings(trainer),
        "before": [dict(stage) for stage in before],
        "history": [_finite(entry) for entry in seen],
        "results": [_told(one) for one in (*_evaluated(seen), *results)],
        "cost": {
            "examples": trainer.examples_seen(),
            "steps": trainer.state.global_step,
            "seconds": round(trainer.trained_seconds, 1),
        },
        "hardware": _hardware(trainer),
        "versions": {"python": platform.python_version(), **{package: version(package) for package in _PACKAGES}},
        "paper": paper_of(rule) if paper is None else paper,
        **{key: value for key, value in said.items() if value is not None},
    }


def _model_facts(trainer: PublishingTrainer, name: str | None, base: str | None) -> dict[str, Any]:
    model = trainer.accelerator.unwrap_model(trainer.model)
    adapted = hasattr(model, "peft_config")
    inner = model.get_base_model() if adapted else model
    ours = isinstance(inner, tuple(MODELS.values()))
    repo_id = trainer.hub_model_id or trainer.args.hub_model_id or Path(trainer.args.output_dir).resolve().name
    config = getattr(inner, "config", None)
    if base is None:
        base = getattr(config, "_name_or_path", "") or None
    if base is not None and os.path.isdir(base):
        base = None  # a folder of this machine says nothing to others
    return {
        "name": name or repo_id.rpartition("/")[2],
        "repo_id": repo_id,
        "class": type(inner).__name__,
        "auto": _auto_class(inner),
        "type": getattr(config, "model_type", None),
        "processor": _processor_class(trainer.processing_class),
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


def _processor_class(processor: Any) -> str | None:
    if processor is None:
        return None
    if isinstance(processor, PreTrainedTokenizerBase):
        return "AutoTokenizer"
    return "AutoProcessor" if isinstance(processor, transformers.ProcessorMixin) else "AutoImageProcessor"


def _score_facts(trainer: PublishingTrainer) -> dict[str, Any] | None:
    ranking = trainer.plan.ranking
    if ranking.scores is None:
        return None
    made = None
    if hasattr(trainer.train_dataset, "features"):
        made = read_provenance(trainer.train_dataset).get(ranking.name)
    return {
        "column": ranking.name or "score",
        "easy": ranking.easy,
        "provenance": None if made is None else asdict(made),
        "statistics": score_statistics(ranking.scores),
    }


def _settings(trainer: PublishingTrainer) -> dict[str, Any]:
    args, plan = trainer.args, trainer.plan
    told = {name: getattr(args, name) for name in _SETTINGS}
    told = {name: value.value if isinstance(value, Enum) else value for name, value in told.items()}
    return {
        "examples per optimizer step": plan.global_batch_size,
        "planned optimizer steps": plan.max_steps,
        **told,
        "seed": args.seed,
        "seed of the order": plan.seed,
    }


def _hardware(trainer: PublishingTrainer) -> dict[str, Any]:
    if torch.cuda.is_available() and trainer.args.device.type == "cuda":
        device = torch.cuda.get_device_name(trainer.args.device)
    else:
        device = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    return {"device": device, "processes": trainer.args.world_size, "system": platform.system()}


def _evaluated(seen: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What the last evaluation measured; nothing that only says how fast it was."""
    if not seen:
        return []
    speed = ("_runtime", "_per_second")
    return [
        {"metric": name.removeprefix("eval_"), "value": value, "source": "evaluation data, last evaluation"}
        for name, value in seen[-1].items()
        if name.startswith("eval_") and isinstance(value, (int, float)) and not name.endswith(speed)
    ]


def _told(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result as JSON can hold it: a loss that is NaN or infinite is one too, and is named so."""
    is_number = {name: isinstance(value, (float, np.floating)) for name, value in result.items()}
    told = {name: float(value) if is_number[name] else value for name, value in result.items()}
    return {name: str(v) if is_number[name] and not np.isfinite(v) else v for name, v in told.items()}


def _finite(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a log entry that JSON can hold."""
    return {name: value for name, value in entry.items() if isinstance(value, (int, float)) and np.isfinite(value)}


def _rows(dataset: Any) -> int | None:
    return len(dataset) if hasattr(dataset, "__len__") and not isinstance(dataset, dict) else None
