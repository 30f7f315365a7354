"""The stages of a run: text, if there is any, and captioned pictures by a curriculum."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from safetensors.torch import load_model, save_model
from transformers import GitProcessor, ProcessorMixin, set_seed

from babylm.card import write_card
from babylm.data import Prepared, prepare
from babylm.settings import Settings
from hf_curriculum import (
    BlockCollator,
    CaptionCollator,
    CurriculumTrainer,
    CurriculumTrainingArguments,
    JointText,
    JointTextTrainer,
    StopWhenDiverged,
    VisionFeatures,
    cache_vision_features,
    curriculum_from,
    generate_captions,
    one_row_per_image,
    recall_against_shuffled,
    text_blocks,
)
from hf_curriculum.columns import IMAGE_ID
from hf_curriculum.evaluation.generate import references
from hf_curriculum.evaluation.nouns import gold_nouns, singular
from hf_curriculum.training.checkpoints import is_complete


@dataclasses.dataclass(frozen=True)
class System:
    """What sets one model's recipe apart from the other's.

    Args:
        name: of the model, "GIT".
        recipe: of the recipe's file, without its ending.
        presets: the folder of its presets.
        build_model: settings and tokenizer → the model, from a config.
        extend_tokenizer: adds the model's own tokens, if it has any.
        collator: further arguments of `CaptionCollator` for captioned pictures.
        processor: image processor and tokenizer → what is saved with the model.
        stores_features: whether the model reads stored features of its vision tower.
    """

    name: str
    recipe: str
    presets: Path
    build_model: Callable[[Settings, Any], torch.nn.Module]
    extend_tokenizer: Callable[[Any], Any] | None = None
    collator: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    processor: Callable[[Any, Any], ProcessorMixin] = GitProcessor
    stores_features: bool = False


def training_arguments(settings: Settings, folder: Path, seed: int, **changed: Any) -> CurriculumTrainingArguments:
    """The preset as training arguments.

    Args:
        settings: of the run.
        folder: of the stage.
        seed: of the run.
        changed: what is otherwise in this stage; `batch_size` over all processes, and `at_once`, the most that a
            process takes at once.

    Raises:
        ValueError: the processes cannot share a batch.
    """
    processes = PartialState().num_processes
    batch_size, at_once = changed.pop("batch_size", settings.batch_size), changed.pop("at_once", None)
    if batch_size % processes:
        raise ValueError(
            f"A batch of {batch_size} cannot be shared by {processes} processes: each takes an equal part of every "
            "step. Give a multiple as `--batch_size` (`--text_batch_size` of text), or start another number of them."
        )
    share = batch_size // processes
    parts = next(parts for parts in range(-(-share // (at_once or share)), share + 1) if share % parts == 0)
    given = {
        "curriculum": curriculum_from(settings.curriculum),
        "score_column": "noun_count",
        "per_device_train_batch_size": share // parts,
        "gradient_accumulation_steps": parts,
        "per_device_eval_batch_size": 64,
        "learning_rate": settings.learning_rate,
        "adam_beta1": settings.adam_beta1,
        "adam_beta2": settings.adam_beta2,
        "adam_epsilon": settings.adam_epsilon,
        "weight_decay": settings.weight_decay,
        "lr_scheduler_type": settings.lr_scheduler_type,
        "warmup_steps": settings.warmup_steps,
        "max_grad_norm": settings.max_grad_norm,
        "fp16": settings.precision == "fp16",
        "bf16": settings.precision == "bf16",
        "use_cpu": PartialState().device.type == "cpu",  # else bf16 would want a GPU
        "dataloader_num_workers": settings.num_workers,
        "dataloader_pin_memory": torch.cuda.is_available(),
        "eval_strategy": settings.eval_strategy,
        "eval_steps": settings.eval_steps,
        "eval_on_start": True,
        "save_strategy": "epoch",
        "save_total_limit": 2,
        "logging_steps": 10,
        "report_to": "none",
        "seed": seed,
    }
    return CurriculumTrainingArguments(str(folder), **{**given, **changed})


def text_rows(settings: Settings, prepared: Prepared) -> tuple[Any, Any, Any]:
    """Training rows, evaluation rows (or None) and collator of the text: lines, or blocks of tokens."""
    lines, tokenizer = prepared.text, prepared.tokenizer
    held_out = lines.get("validation")
    if held_out is not None:
        held_out = held_out.select(range(min(settings.text_eval, len(held_out)))) if settings.text_eval else None
    if settings.text_blocks is None:
        collator = CaptionCollator(
            tokenizer, None, max_length=settings.text_max_length, ignore_padding=not settings.train_on_padding
        )
        return lines["train"], held_out, collator
    blocks = [part and text_blocks(part, tokenizer, settings.text_blocks) for part in (lines["train"], held_out)]
    return *blocks, BlockCollator()


def run_text_stage(
    settings: Settings, model: torch.nn.Module, prepared: Prepared, folder: Path, seed: int
) -> tuple[torch.nn.Module, dict[str, Any]]:
    """Trains the model on text alone, in random order; its optimizer ends with it.

    Args:
        settings: of the run.
        model: without training.
        prepared: its text and tokenizer.
        folder: of the stage. Weights that it ended with before are read back.
        seed: of the run.

    Returns:
        The model, and what the stage came to.
    """
    weights, record = folder / "weights.safetensors", folder / "text.json"
    if record.is_file():
        load_model(model, weights)
        return model, json.loads(record.read_text(encoding="utf-8"))
    train, held_out, collator = text_rows(settings, prepared)
    arguments = training_arguments(
        settings,
        folder,
        seed,
        curriculum=curriculum_from({"type": "iid", "epochs": settings.text_epochs}),
        score_column=None,
        batch_size=settings.text_batch_size,
        at_once=settings.text_at_once,
        eval_strategy="no" if held_out is None else "epoch",
        eval_on_start=held_out is not None,
        save_total_limit=1,
        seed_examples=False,  # a row of text comes out the same every time
    )
    trainer = CurriculumTrainer(
        model,
        arguments,
        data_collator=collator,
        train_dataset=train,
        eval_dataset=held_out,
        callbacks=[StopWhenDiverged()],
    )
    say(f"\n{folder.parent.name}: text\n{trainer.plan.describe()}\n")
    trainer.train(resume_from_checkpoint=any(map(is_complete, folder.glob("checkpoint-*"))))
    log = trainer.state.log_history
    facts = {
        "examples": trainer.plan.num_draws,
        "steps": trainer.state.global_step,
        "seconds": last(log, "seconds"),
        "eval_loss": last(log, "eval_loss"),
        "log": log,
    }
    model = trainer.accelerator.unwrap_model(trainer.model_wrapped, keep_fp32_wrapper=False)
    if PartialState().is_main_process:
        save_model(model, str(weights))
        record.write_text(json.dumps(facts), encoding="utf-8")
    PartialState().wait_for_everyone()
    return model, facts


def build_trainer(
    system: System, settings: Settings, model: torch.nn.Module, prepared: Prepared, folder: Path, seed: int
) -> CurriculumTrainer:
    """The trainer of the captions, with text beside them if the settings say so."""
    features = stored_features(system, settings, model, prepared)
    collator = CaptionCollator(
        prepared.tokenizer,
        prepared.image_processor if features is None else None,
        max_length=settings.max_length,
        ignore_padding=not settings.train_on_padding,
        vision_features=features,
        **system.collator,
    )
    kind, options = CurriculumTrainer, {}
    if settings.text_weight is not None:
        rows, _, text_collator = text_rows(settings, prepared)
        collator = JointText(collator, rows, text_collator)
        kind, options = JointTextTrainer, {"text_weight": settings.text_weight}
    return kind(
        model,
        training_arguments(settings, folder, seed),
        data_collator=collator,
        train_dataset=prepared.data["train"],
        eval_dataset=prepared.data["validation"],
        processing_class=system.processor(prepared.image_processor, prepared.tokenizer),
        callbacks=[StopWhenDiverged()],
        **options,
    )


def stored_features(
    system: System, settings: Settings, model: torch.nn.Module, prepared: Prepared
) -> VisionFeatures | None:
    """What the frozen vision tower makes of all pictures, if the settings ask for it, computed where it is not there.

    Raises:
        ValueError: the model does not read features, or the folder's are another tower's or of other pictures.
    """
    if settings.vision_features is None:
        return None
    if not system.stores_features:
        raise ValueError(
            f"vision_features={settings.vision_features!r} was given, but {system.name} reads pictures alone. Leave "
            "it out, or train `babylm_flamingo.py`."
        )
    with PartialState().main_process_first():
        model = model.to(PartialState().device)
        return cache_vision_features(model, prepared.data, settings.vision_features, prepared.image_processor)


def run(system: System, given: Mapping[str, Any]) -> dict[str, Any]:
    """Trains one model and says what came out and what it cost.

    Args:
        system: the model's recipe.
        given: the fields of `Settings`, and the run's `seed` and `output_dir`.
    """
    settings = Settings(**{name: value for name, value in given.items() if name not in ("seed", "output_dir")})
    seed, folder = given["seed"], Path(given["output_dir"])
    prepared = prepare(settings, seed, folder.parent, system.extend_tokenizer)
    set_seed(seed)
    model, text = system.build_model(settings, prepared.tokenizer), None
    if settings.has_text_stage:
        model, text = run_text_stage(settings, model, prepared, folder / "text", seed)
    trainer = build_trainer(system, settings, model, prepared, folder, seed)
    parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    say(f"\n{folder.name}: {system.name} with {parameters:,} parameters\n{trainer.plan.describe()}\n")
    trainer.train(resume_from_checkpoint=any(map(is_complete, folder.glob("checkpoint-*"))))
    if settings.lora_rank:
        trainer.model = trainer.model.merge_and_unload()  # adapters alone would lack the weights that they adapt
    trainer.save_model(str(folder / "model"))
    log = trainer.state.log_history
    seconds = last(log, "seconds")
    outcome = {
        "system": system.name,
        "variant": settings.variant,
        "curriculum": settings.has_curriculum,
        "parameters": parameters,
        "words": prepared.words,
        "plan": trainer.plan.to_dict(),
        "describe": trainer.plan.describe(),
        "log": log,
        "examples": trainer.plan.num_draws,
        "steps": trainer.state.global_step,
        "seconds": seconds,
        "hours": {"text": text and text["seconds"] / 3600, "captions": seconds / 3600},
        "eval_loss": last(log, "eval_loss"),
        **({} if text is None else {"text": text, "text_seconds": text["seconds"]}),
    }
    outcome |= look_at_captions(trainer, settings, prepared, folder.name)
    write_card(settings, trainer, outcome)
    return outcome


def look_at_captions(trainer: CurriculumTrainer, settings: Settings, prepared: Prepared, name: str) -> dict[str, Any]:
    """Captions of validation pictures, and the nouns that they name."""
    held_out = prepared.data["validation"]
    pictures = one_row_per_image(held_out)
    pictures = pictures.select(range(min(settings.eval_images, len(pictures))))
    captions = generate_captions(
        trainer.model,
        pictures,
        trainer.processing_class,
        max_new_tokens=settings.max_new_tokens,
        num_beams=settings.num_beams,
    )
    gold = gold_nouns(held_out, prepared.tagger)
    ids = pictures[IMAGE_ID][:]
    recall = recall_against_shuffled(captions, [gold[image] for image in ids], normalise=singular)
    say(f"{name}: {recall}")
    known = references(held_out)
    return {
        "noun_recall": recall.recall,
        "recall": dataclasses.asdict(recall),
        "captions": [
            {"image_id": image, "generated": caption, "references": known[image]}
            for image, caption in zip(ids[:10], captions, strict=False)
        ],
    }


def last(log: list[dict[str, Any]], name: str) -> float | None:
    """The last number of that name in a trainer's log."""
    return next((entry[name] for entry in reversed(log) if name in entry), None)


def say(text: str) -> None:
    """Prints on the main process."""
    PartialState().print(text)
