"""A trainer that pushes models with a card of how they were trained, and reports failed pushes."""

from __future__ import annotations

import json
import logging
import os
import platform
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers
from accelerate.utils import broadcast_object_list
from datasets import Dataset, Image
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import HubStrategy

from hf_curriculum.columns import CAPTION, IMAGE
from hf_curriculum.config import parse_json, read_json, reading
from hf_curriculum.data.readers.outside_files import validate_inside
from hf_curriculum.data.regions.processor import RegionProcessor
from hf_curriculum.data.regions.store import RegionStore
from hf_curriculum.fingerprint import sketch_texts
from hf_curriculum.hub.data_card import write_files
from hf_curriculum.hub.errors import check_token, explain, explained
from hf_curriculum.hub.model_card import eval_results, model_figures, render_model_card
from hf_curriculum.hub.papers import PAPERS, paper_of
from hf_curriculum.names import MODELS
from hf_curriculum.provenance import checkout_commit, read_provenance, score_statistics
from hf_curriculum.reporting.chosen import add_chosen, find_chosen
from hf_curriculum.reporting.report import Report
from hf_curriculum.reporting.run_sections import (
    add_captions,
    add_decisions,
    add_plan,
    add_runs,
    add_scores_section,
    add_training,
    cost_at,
)
from hf_curriculum.streaming.plan import BucketScores
from hf_curriculum.tasks.detection.image_processing import WsddnImageProcessor
from hf_curriculum.training.callbacks import TrainingClock
from hf_curriculum.training.checkpoints import (
    CURRICULUM_FILE,
    checkpoint_from_hub,
    is_complete,
    last_complete_checkpoint,
    named_on_hub,
    read_curriculum,
    read_losses,
    require_complete,
    write_curriculum,
)

if TYPE_CHECKING:
    from hf_curriculum.planning.plan import Plan

logger: logging.Logger = logging.getLogger(__name__)


FACTS_FILE = "training_facts.json"
"""What the card was written from, beside it."""


class PublishingTrainer(Trainer):
    """What `CurriculumTrainer` does around the Hub, and nothing else.

    - `push_to_hub()` writes `curriculum.json` (rule, plan, decisions), the card and the facts it was written from.
    - `hub_strategy` works as in `Trainer`. A push in the background that fails is reported at once; training goes on.
    - An error says what the Hub answered, what to do, and that nothing here is lost. It never holds a token.

    A subclass has a `plan`, counts `examples_seen()` and `costs()`, and keeps a clock. Without training data there is
    no plan, and a push is that of `Trainer`.
    """

    plan: Plan
    _plan: Plan | None
    _clock: TrainingClock
    _trained_seconds: float
    _sketched: tuple[Any, str | None] | None = None
    _saves_checkpoint = False
    """TRL's trainers ask for a card with every checkpoint, whose figures would take longer than the checkpoint."""

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """`Trainer.init_hf_repo`, with errors that say what to do."""
        check_token(token or self.args.hub_token)
        with explained("Making the model's repository on the Hub", self._kept, token or self.args.hub_token):
            super().init_hf_repo(token, private)

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """`Trainer.push_to_hub` with the curriculum, its decisions and a card; `kwargs` go to `create_model_card`."""
        check_token(token or self.args.hub_token)
        self._save_curriculum()
        with explained("Pushing the model to the Hub", self._kept, token or self.args.hub_token):
            return super().push_to_hub(commit_message, blocking, token, revision, private, **kwargs)

    def create_model_card(
        self,
        language: str | None = None,
        license: str | None = None,
        tags: str | list[str] | None = None,
        model_name: str | None = None,
        finetuned_from: str | None = None,
        tasks: str | list[str] | None = None,
        dataset_tags: str | list[str] | None = None,
        dataset: str | list[str] | None = None,
        dataset_args: str | list[str] | None = None,
        *,
        dataset_name: str | None = None,
        paper: str | None = None,
        results: Sequence[Mapping[str, Any]] = (),
        description: str | None = None,
        before: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Writes `README.md`, its figures, `training_facts.json` and `.eval_results/*.yaml` into `output_dir`.

        What is written in the card outside of our section stays.
        """
        if tasks is not None or dataset_args is not None:
            raise ValueError(
                "tasks= and dataset_args= were given; this card has no place for them. Write them into the README.md "
                "outside of our section: they stay there."
            )
        if self._plan is None:
            named = {"tags": tags, "model_name": model_name, "finetuned_from": finetuned_from}
            super().create_model_card(language, license, dataset_tags=dataset_tags, dataset=dataset, **named)
            return
        if not self.is_world_process_zero() or self._saves_checkpoint:
            return
        facts = gather_facts(
            self,
            name=model_name,
            paper=paper,
            results=results,
            license=license,
            language=language,
            tags=[tags] if isinstance(tags, str) else tags,
            dataset=_first(dataset_tags) or _first(dataset) or dataset_name,
            finetuned_from=finetuned_from,
            description=description,
            before=before,
        )
        found = eval_results(facts)
        folder = Path(self.args.output_dir)
        card = folder / "README.md"
        previous = card.read_text(encoding="utf-8") if card.is_file() else None
        text = json.dumps(facts, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        rendered = render_model_card(facts, previous)
        texts = {FACTS_FILE: text.encode("utf-8"), card.name: rendered.encode("utf-8")}
        write_files({**model_figures(facts), **found, **texts}, folder)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """As `Trainer`, which saves the collator's tokenizer with a model; its image processor and the run's plan too.

        A checkpoint has a `curriculum.json` of its own; that of a model says what it was trained on.
        """
        super()._save(output_dir, state_dict)
        if self.state.global_step and not self._saves_checkpoint:
            self._save_curriculum(output_dir)
        if (images := _image_processor(self)) is not None:
            images.save_pretrained(output_dir or self.args.output_dir)

    @property
    def trained_seconds(self) -> float:
        """Seconds of training so far; what passes between its end and a push does not count."""
        if self.is_in_train:
            return self._clock.seconds
        before = next((entry["seconds"] for entry in reversed(self.state.log_history) if "seconds" in entry), 0.0)
        return self._trained_seconds or before

    def local_checkpoint(self, name: str | os.PathLike[str]) -> str:
        """The folder of a complete checkpoint, downloaded from the Hub where "me/model@revision" is given."""
        named = named_on_hub(name)
        if named is None:
            require_complete(name)
            return os.fspath(name)
        repo_id, revision = named
        logger.info(f"There is no folder {name} here: it is taken as a repository on the Hub.")
        token = self.args.hub_token
        with self.args.main_process_first(local=True, desc="downloading the checkpoint"):
            folder = checkpoint_from_hub(repo_id, revision=revision, token=token)
        # The branch may have moved between two processes: all resume from what the main one found.
        commit = broadcast_object_list([Path(folder).parent.name])[0]
        if commit != Path(folder).parent.name:
            folder = checkpoint_from_hub(repo_id, revision=commit, token=token)
        return folder

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if not self.is_world_process_zero() or self.args.hub_strategy == HubStrategy.END:
            return
        self._save_curriculum()
        before = set(self._jobs())
        super()._push_from_checkpoint(checkpoint_folder)
        for job in set(self._jobs()) - before:
            job.add_done_callback(self._report_push)

    def _save_curriculum(self, output_dir: str | None = None) -> None:
        if self.args.should_save and self._plan is not None:
            folder, seconds = output_dir or self.args.output_dir, self.trained_seconds
            write_curriculum(folder, self.plan, seconds, trained_on=self._trained_on_facts())

    def _trained_on_facts(self) -> dict[str, Any]:
        """How many examples were trained on, and a sketch of the training captions, made once."""
        if not self.state.global_step:
            return {}
        data = self.train_dataset
        if self._sketched is None or self._sketched[0] is not data:
            self._sketched = data, sketch_texts(data, getattr(self.data_collator, "caption_column", CAPTION))
        sketch = self._sketched[1]
        return {"examples": self.examples_seen(), **({} if sketch is None else {"captions": sketch})}

    def _jobs(self) -> list[Future]:
        running = getattr(self, "push_in_progress", None)
        return [] if running is None else list(running.jobs)

    def _report_push(self, job: Future) -> None:
        error = None if job.cancelled() else job.exception()
        if error is not None:
            known = explain(error, "A push while training", self._kept, self.args.hub_token)
            logger.warning(str(known) if known else f"A push while training failed: {type(error).__name__}.")

    @property
    def _kept(self) -> str:
        return (
            f"Nothing is lost: the model and its checkpoints are in {self.args.output_dir}. `trainer.push_to_hub()` "
            "sends what is missing."
        )


def _first(names: str | list[str] | None) -> str | None:
    return names if names is None or isinstance(names, str) else next(iter(names), None)


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
        },
        "hardware": _hardware(trainer),
        "versions": {
            "python": platform.python_version(),
            **{package: version(package) for package in _PACKAGES},
            **checkout_commit(),
        },
        "paper": paper_of(rule, plan.ranking.name) if paper is None else paper,
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


def _processor_class(trainer: PublishingTrainer, config: Any) -> str | None:
    """The Auto class of what is saved beside the model."""
    processor = trainer.processing_class
    if _image_processor(trainer) is not None and type(config) in PROCESSOR_MAPPING:
        return "AutoProcessor"  # of the tokenizer and the image processor, by the model's type
    if processor is None:
        without_text = getattr(trainer.data_collator, "tokenizer", None) is None
        return "AutoImageProcessor" if without_text and _image_processor(trainer) is not None else None
    if isinstance(processor, PreTrainedTokenizerBase):
        return "AutoTokenizer"
    return "AutoProcessor" if isinstance(processor, transformers.ProcessorMixin) else "AutoImageProcessor"


def _image_processor(trainer: PublishingTrainer) -> Any:
    """The collator's image processor, where the model's own processor is given nowhere but the tokenizer may be."""
    collator, given = trainer.data_collator, trainer.processing_class
    if given is not None and not isinstance(given, PreTrainedTokenizerBase):
        return None
    images = getattr(collator, "image_processor", None)
    alone = getattr(collator, "tokenizer", None) is None
    return None if alone and not isinstance(images, WsddnImageProcessor) else images  # another's is not known


_REGIONS = ("detector", "revision", "threshold", "min_regions", "max_regions", "grid")
_VIEW = ("box_values", "normalise", "by_area", "boxes")


def _reading_facts(trainer: PublishingTrainer) -> dict[str, Any]:
    """What a captioner on regions reads of images, `images`, and of captions, `words`; nothing for other models."""
    inputs = getattr(trainer.data_collator, "image_inputs", None)
    processor = getattr(inputs, "image_processor", None)
    config: Any = getattr(trainer.accelerator.unwrap_model(trainer.model), "config", None)
    if isinstance(processor, RegionProcessor):
        made, store = processor.to_dict(), getattr(inputs, "store", None)
        of_detector = _REGIONS if made["grid"] is None else ("detector", "revision", "grid")
        images = {name: made[name] for name in (*of_detector, *_VIEW) if made["detector"] or name in _VIEW}
        if isinstance(store, RegionStore):
            about = store.facts
            images["regions_per_image"] = round(about["regions"] / about["images"], 1)
            images |= {"made_by": about["made_by"], "standardised": store.moments is not None}
        images = {name: value for name, value in images.items() if value not in (None, False)}
        images = {
            "reads": "region_features",
            "numbers_per_region": getattr(config, "region_feature_size", None),
            **images,
        }
    elif getattr(config, "region_feature_size", None) and config.vision_config is not None:
        vision = config.vision_config
        images = {"reads": "pixel_values", "vision_model": vision.model_type, "trained": config.train_vision}
    else:
        return {}
    tokenizer, collator = trainer.data_collator.tokenizer, trainer.data_collator
    words = {"tokens": len(tokenizer), "unknown": tokenizer.unk_token, "max_length": collator.max_length}
    return {"images": images, "words": words}


def _score_facts(trainer: PublishingTrainer) -> dict[str, Any] | None:
    ranking = trainer.plan.ranking
    scores = ranking.scores
    if scores is None:
        return None
    made = None
    if hasattr(trainer.train_dataset, "features"):
        made = read_provenance(trainer.train_dataset).get(ranking.name)
    return {
        "column": ranking.name or "score",
        "easy": ranking.easy,
        "provenance": None if made is None else made.to_dict(),
        "statistics": scores.statistics() if isinstance(scores, BucketScores) else score_statistics(scores),
    }


def _settings(trainer: PublishingTrainer) -> dict[str, Any]:
    args, plan = trainer.args, trainer.plan
    values = {name: getattr(args, name) for name in _SETTINGS}
    return {
        "examples per optimizer step": plan.global_batch_size,
        **({} if plan.candidates == 1 else {"candidates per optimizer step": plan.samples_per_step}),
        "planned optimizer steps": plan.max_steps,
        **{name: value.value if isinstance(value, Enum) else value for name, value in values.items()},
        "seed": args.seed,
        "seed of the order": plan.seed,
    }


def scoring_cost(trainer: PublishingTrainer) -> dict[str, int]:
    """What a run that scores examples beside those that it trains on costs besides; nothing for any other."""
    costs = trainer.costs()
    return {name: costs[name] for name in ("examples_scored", "compute")} if costs["examples_scored"] else {}


def _hardware(trainer: PublishingTrainer) -> dict[str, Any]:
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


def read_run(folder: str | Path, name: str | None = None) -> dict[str, Any]:
    """A run from its last complete checkpoint, or from that in `folder`: plan, history, decisions and cost."""
    folder = Path(folder)
    # `trainer.save_state()` writes a state beside the checkpoints too.
    named = is_complete(folder) and ((folder / CURRICULUM_FILE).is_file() or not any(folder.glob("checkpoint-*")))
    checkpoint = folder if named else Path(last_complete_checkpoint(folder))
    saved = read_curriculum(checkpoint)
    state = read_json(checkpoint / TRAINER_STATE_NAME, "Name another checkpoint.", ("log_history", "global_step"))
    history = state["log_history"]
    losses = [entry["eval_loss"] for entry in history if "eval_loss" in entry]
    row_losses = read_losses(checkpoint)
    return {
        "name": name or folder.resolve().name,
        "seed": saved["plan"]["seed"],
        "plan": saved["plan"],
        "describe": saved["description"],
        "log": history,
        "decisions": saved["log"],
        **cost_at(
            history, saved["plan"], state["global_step"], decisions=saved["log"], by_losses=row_losses is not None
        ),
        "steps": state["global_step"],
        "seconds": saved["seconds"],
        "eval_loss": losses[-1] if losses else None,
        "losses": row_losses,
    }


def training_report(
    folder: str | Path,
    *,
    controls: Mapping[str, str | Path] | None = None,
    dataset: Dataset | None = None,
    title: str = "A training run",
) -> Report:
    """A page about a run: its plan and decisions, its validation curves and its controls', what was drawn."""
    run = read_run(folder)
    if run["name"] in (controls or {}):
        raise ValueError(
            f"A control is called {run['name']!r}, as is the run itself, and one would hide the other. Give it a "
            "name of its own (--control NAME=FOLDER)."
        )
    runs = [run, *(read_run(other, name) for name, other in (controls or {}).items())]
    report = Report(title, f"{run['name']}: {run['plan']['curriculum']['type']}")
    scored = {"examples scored": run["examples_scored"], "compute": run["compute"]} if run["examples_scored"] else {}
    report.add_facts(
        {
            "steps": run["steps"],
            "examples": run["examples"],
            **scored,
            "seconds of training": round(run["seconds"], 1),
            "validation loss": "–" if run["eval_loss"] is None else f"{run['eval_loss']:.3f}",
        }
    )
    if len(runs) > 1:
        add_runs(report, runs)
    add_plan(report, runs)
    chosen, not_told = find_chosen(folder, run, dataset, run["losses"])
    add_chosen(report, [{"name": run["name"], "chosen": chosen, "not_told": not_told}])
    if run["decisions"]:
        add_decisions(report, run["decisions"])
    add_training(report, runs, loss_unit=None)  # of any model
    add_held_out(report, Path(folder) / "held_out", run["name"])
    column = run["plan"]["score_column"]
    if dataset is not None and column is not None:
        add_scores_section(report, dataset, column, run["plan"])
    return report


def add_held_out(report: Report, folder: Path, name: str) -> None:
    """The images that `hf-curriculum train` held out, and what the model wrote to them, where it did."""
    written = folder / "captions.json"
    if not written.is_file():
        return
    with reading(written, "Delete it, or train again."):
        entries = parse_json(written.read_text(encoding="utf-8"))
        paths = [str(folder / entry["file"]) for entry in entries]
    validate_inside(paths, [folder], written)
    files = Dataset.from_dict({IMAGE: paths})
    if entries:
        add_captions(report, files.cast_column(IMAGE, Image()), {"name": name, "captions": entries})
