"""BabyLM's GIT: captioning on small data, from captions with few nouns to captions with many.

    accelerate launch recipes/babylm_git.py                                  # embedded scenes, a small GIT, minutes
    accelerate launch recipes/babylm_git.py --compare --seeds 0,1,2          # and the i.i.d. control
    accelerate launch recipes/babylm_git.py --grid learning_rate=1e-3,3e-3   # one run per value of any field
    accelerate launch recipes/babylm_git.py --data FOLDER_OR_FILE_OR_NAME    # photographs with captions
    accelerate launch recipes/babylm_git.py --preset paper --data NAME       # the experiment of the paper

Source: Saha et al. 2024, *Exploring Curriculum Learning for Vision-Language Tasks: A Study on Small-Scale Multimodal
Training*. Every number stands in a preset beside this file, in `presets/babylm_git/`, with where it comes from.

Runs that are there already, with the same settings and seed, are read back; one that was killed goes on.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from accelerate import PartialState
from datasets import Dataset, DatasetDict
from tqdm.auto import tqdm
from transformers import GitProcessor, set_seed

from hf_curriculum import (
    CaptionCollator,
    CurriculumTrainer,
    CurriculumTrainingArguments,
    NounCount,
    add_scores,
    curriculum_from,
    drop_empty_captions,
    generate_captions,
    hold_out,
    load_captioned,
    make_image_processor,
    make_scenes,
    one_row_per_image,
    recall_against_shuffled,
    save_scored,
    train_wordpiece,
)
from hf_curriculum.columns import IMAGE_ID
from hf_curriculum.data.scenes import contact_sheet
from hf_curriculum.evaluation import references, singular
from hf_curriculum.evaluation.gold import gold_nouns
from hf_curriculum.hub import Report
from hf_curriculum.hub.run_report import (
    add_captions,
    add_plan,
    add_results,
    add_scores_section,
    add_training,
)
from hf_curriculum.models.git_build import add_lora, git_from_config, paper_git_config, small_git_config
from hf_curriculum.training.checkpoints import is_complete
from hf_curriculum.training.diverged import StopWhenDiverged
from hf_curriculum.training.settings import parse_settings
from hf_curriculum.training.study import Study
from hf_curriculum.training.study_arms import grid_arms
from hf_curriculum.training.study_table import StudyTable, summarise

PRESETS = Path(__file__).parent / "presets" / "babylm_git"
SCENES = "scenes"
DATA_FIELDS = (
    *("data", "num_examples", "limit", "captions_per_image", "scene_size", "mismatched", "validation", "split_by"),
    *("tagger", "noun_tags", "image_size", "image_mean", "image_std", "vocab_size"),
)
"""What the data and its processor depend on; runs that differ in other fields share them."""
logger = logging.getLogger("babylm_git")


@dataclasses.dataclass
class Settings:
    """What an experiment is made of.

    Args:
        data: "scenes" for the embedded pictures, or anything `load_captioned` reads.
        num_examples: image-caption pairs of the embedded data.
        limit: most pairs used of other data, the first ones; all if none.
        captions_per_image: captions of each embedded picture.
        scene_size: pixels along an edge of an embedded picture.
        mismatched: share of embedded captions that belong to another picture.
        validation: share held out.
        split_by: "image" holds all captions of a picture together, "row" does not (as released).
        tagger: the part-of-speech tagger of the noun count, see `NounCount`.
        noun_tags: tags that count as nouns, separated by "+"; all four noun tags if none.
        curriculum: which examples are shown when.
        control: what `--compare` trains beside it.
        model: "paper" or "small".
        model_options: further arguments of the model's builder.
        vision_weights: a checkpoint for the vision tower; random if none.
        lora_rank: rank of LoRA adapters, 0 for full training.
        image_size: pixels along an edge, as the model sees it.
        image_mean: per channel; ImageNet's if none.
        image_std: per channel; ImageNet's if none.
        vocab_size: most entries of the tokenizer.
        max_length: tokens per caption, the rest is cut off.
        train_on_padding: whether padding counts in the loss (as released).
        batch_size: pairs per optimizer step, over all processes.
        learning_rate: of Adam.
        adam_beta1: of Adam.
        adam_beta2: of Adam.
        adam_epsilon: of Adam.
        weight_decay: of AdamW; 0 makes it Adam.
        lr_scheduler_type: learning-rate schedule over the whole run.
        warmup_steps: steps of linear warm-up.
        max_grad_norm: gradient norm that is clipped to; 0 clips nothing.
        precision: "fp32", "fp16" or "bf16".
        num_workers: data loader processes.
        eval_strategy: "epoch" evaluates after each pass over the pool, "steps" every `eval_steps`.
        eval_steps: steps between evaluations where the strategy is "steps".
        eval_images: validation pictures that captions are generated for.
        max_new_tokens: length of generated captions.
        num_beams: beams of generation.
    """

    data: str
    num_examples: int
    limit: int | None
    captions_per_image: int
    scene_size: int
    mismatched: float
    validation: float
    split_by: str
    tagger: str
    noun_tags: str | None
    curriculum: dict
    control: dict
    model: str
    model_options: dict
    vision_weights: str | None
    lora_rank: int
    image_size: int
    image_mean: list | None
    image_std: list | None
    vocab_size: int
    max_length: int
    train_on_padding: bool
    batch_size: int
    learning_rate: float
    adam_beta1: float
    adam_beta2: float
    adam_epsilon: float
    weight_decay: float
    lr_scheduler_type: str
    warmup_steps: int
    max_grad_norm: float
    precision: str
    num_workers: int
    eval_strategy: str
    eval_steps: int | None
    eval_images: int
    max_new_tokens: int
    num_beams: int


def load_data(settings: Settings, seed: int) -> DatasetDict:
    """Train and validation pairs, the training part with its score."""
    if settings.data == SCENES:
        data = make_scenes(
            settings.num_examples,
            image_size=settings.scene_size,
            captions_per_image=settings.captions_per_image,
            mismatched=settings.mismatched,
            validation=settings.validation,
            test=0.0,
        )
    else:
        loaded = load_captioned(settings.data)
        if isinstance(loaded, Dataset) or "validation" not in loaded:
            pairs = loaded if isinstance(loaded, Dataset) else loaded["train"]
            pairs = pairs.select(range(min(settings.limit or len(pairs), len(pairs))))
            loaded = hold_out(pairs, settings.validation, by=settings.split_by, seed=seed)
        data = DatasetDict({name: drop_empty_captions(loaded[name]) for name in ("train", "validation")})
    tags = settings.noun_tags.split("+") if settings.noun_tags else None
    data["train"] = add_scores(data["train"], NounCount(settings.tagger, tags=tags), per_image="max")
    return data


def prepare(settings: Settings, seed: int) -> tuple[DatasetDict, GitProcessor]:
    """Data and processor of a run; kept for the next one, which mostly has the same."""
    return _prepare(json.dumps({name: getattr(settings, name) for name in DATA_FIELDS}), seed)


@lru_cache(maxsize=1)
def _prepare(fields: str, seed: int) -> tuple[DatasetDict, GitProcessor]:
    settings = SimpleNamespace(**json.loads(fields))
    with PartialState().main_process_first():
        data = load_data(settings, seed)
    tokenizer = train_wordpiece(data["train"], settings.vocab_size, max_length=1024)
    images = {key: value for key in ("mean", "std") if (value := getattr(settings, f"image_{key}")) is not None}
    return data, GitProcessor(make_image_processor(settings.image_size, **images), tokenizer)


def build_model(settings: Settings, tokenizer: Any) -> torch.nn.Module:
    """The captioner, from a config; nothing is downloaded unless `vision_weights` names it."""
    if settings.model == "paper":
        config = paper_git_config(tokenizer=tokenizer, **settings.model_options)
    else:
        config = small_git_config(
            len(tokenizer), tokenizer=tokenizer, image_size=settings.image_size, **settings.model_options
        )
    model = git_from_config(config, vision_model_name_or_path=settings.vision_weights)
    return add_lora(model, r=settings.lora_rank) if settings.lora_rank else model


def training_arguments(settings: Settings, folder: Path, seed: int) -> CurriculumTrainingArguments:
    """The preset as training arguments."""
    processes = PartialState().num_processes
    if settings.batch_size % processes:
        raise ValueError(f"batch_size={settings.batch_size} cannot be shared by {processes} processes.")
    return CurriculumTrainingArguments(
        str(folder),
        curriculum=curriculum_from(settings.curriculum),
        score_column="noun_count",
        per_device_train_batch_size=settings.batch_size // processes,
        per_device_eval_batch_size=64,
        learning_rate=settings.learning_rate,
        adam_beta1=settings.adam_beta1,
        adam_beta2=settings.adam_beta2,
        adam_epsilon=settings.adam_epsilon,
        weight_decay=settings.weight_decay,
        lr_scheduler_type=settings.lr_scheduler_type,
        warmup_steps=settings.warmup_steps,
        max_grad_norm=settings.max_grad_norm,
        fp16=settings.precision == "fp16",
        bf16=settings.precision == "bf16",
        dataloader_num_workers=settings.num_workers,
        dataloader_pin_memory=torch.cuda.is_available(),
        eval_strategy=settings.eval_strategy,
        eval_steps=settings.eval_steps,
        eval_on_start=True,
        save_strategy="epoch",
        save_total_limit=2,
        logging_steps=10,
        report_to="none",
        seed=seed,
    )


def build_trainer(
    settings: Settings, data: DatasetDict, processor: GitProcessor, folder: Path, seed: int
) -> CurriculumTrainer:
    """Model, collator and trainer, as the preset says."""
    set_seed(seed)
    collator = CaptionCollator(
        processor.tokenizer,
        processor.image_processor,
        max_length=settings.max_length,
        ignore_padding=not settings.train_on_padding,
    )
    return CurriculumTrainer(
        build_model(settings, processor.tokenizer),
        training_arguments(settings, folder, seed),
        data_collator=collator,
        train_dataset=data["train"],
        eval_dataset=data["validation"],
        processing_class=processor,
        callbacks=[StopWhenDiverged()],
    )


def run(given: Mapping[str, Any]) -> dict[str, Any]:
    """Trains one model and says what came out and what it cost.

    Args:
        given: the fields of `Settings`, and the run's `seed` and `output_dir`.
    """
    settings = Settings(**{name: value for name, value in given.items() if name not in ("seed", "output_dir")})
    seed, folder = given["seed"], Path(given["output_dir"])
    data, processor = prepare(settings, seed)
    trainer = build_trainer(settings, data, processor, folder, seed)
    parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    say(f"\n{folder.name}: GIT with {parameters:,} parameters\n{trainer.plan.describe()}\n")
    trainer.train(resume_from_checkpoint=any(map(is_complete, folder.glob("checkpoint-*"))))
    trainer.save_model(str(folder / "model"))
    pictures = one_row_per_image(data["validation"])
    pictures = pictures.select(range(min(settings.eval_images, len(pictures))))
    captions = generate_captions(
        trainer.model,
        pictures,
        processor,
        max_new_tokens=settings.max_new_tokens,
        num_beams=settings.num_beams,
    )
    gold = gold_nouns(data["validation"], settings.tagger)
    ids = pictures[IMAGE_ID][:]
    recall = recall_against_shuffled(captions, [gold[image] for image in ids], normalise=singular)
    say(f"{folder.name}: {recall}")
    known = references(data["validation"])
    log = trainer.state.log_history
    return {
        "parameters": parameters,
        "plan": trainer.plan.to_dict(),
        "describe": trainer.plan.describe(),
        "log": log,
        "examples": trainer.plan.num_draws,
        "steps": trainer.state.global_step,
        "seconds": [entry["seconds"] for entry in log if "seconds" in entry][-1],
        "eval_loss": [entry["eval_loss"] for entry in log if "eval_loss" in entry][-1],
        "noun_recall": recall.recall,
        "recall": dataclasses.asdict(recall),
        "captions": [
            {"image_id": image, "generated": caption, "references": known[image]}
            for image, caption in zip(ids[:10], captions, strict=False)
        ],
    }


def write_report(
    runs: list[dict[str, Any]], table: StudyTable, data: DatasetDict, settings: Settings, folder: Path
) -> Path:
    """One self-contained page, and its figures as PNG."""
    first = runs[0]
    report = Report("BabyLM: GIT with a curriculum", f"{len(data['train']):,} training pairs of {settings.data}")
    report.add_facts(
        {
            "Parameters": first["parameters"],
            "Examples": first["examples"],
            "Validation loss": f"{first['eval_loss']:.3f}",
            "Noun recall": (f"{first['recall']['recall']:.3f}", f"{first['recall']['shuffled']:.3f} if shuffled"),
        }
    )
    pictures = one_row_per_image(data["validation"])
    sections = [
        partial(add_results, report, runs),
        *([partial(table.add_to, report)] if len(runs) > 1 else []),
        partial(add_training, report, runs),
        partial(add_scores_section, report, data["train"], "noun_count", first["plan"]),
        partial(add_plan, report, runs),
        partial(add_captions, report, pictures, first),
        partial(add_contact_sheet, report, data["train"], settings.data),
    ]
    for section in tqdm(sections, desc="report", unit="section", delay=2):
        section()
    return report.write(folder)


def add_contact_sheet(report: Report, dataset: Dataset, name: str) -> None:
    """What the data looks like."""
    report.add_image("Data", contact_sheet(dataset), f"Pictures and captions of {name}.", name="data")


def say(text: str) -> None:
    """Prints on the main process."""
    PartialState().print(text)


def write_results(study: Study, controls: Mapping[str, str], folder: Path) -> None:
    """What all runs came to: the study's table, captions, and the report."""
    finished = [item for item in study.runs if item.status == "finished"]
    if finished:
        settings = Settings(**finished[0].settings)
        data, _ = prepare(settings, finished[0].seed)
    if not finished or not PartialState().is_main_process:
        return
    table = summarise(study.runs, ["eval_loss", "noun_recall"], control=controls)
    table.write(folder)
    runs = [{"name": item.arm, "seed": item.seed, **item.result} for item in finished]
    save_scored(data["train"], folder / "scored")
    (folder / "results.json").write_text(json.dumps(runs, indent=1), encoding="utf-8")
    captions = [f"{entry['image_id']}\t{entry['generated']}" for entry in runs[0]["captions"]]
    (folder / "captions.tsv").write_text("image_id\tcaption\n" + "\n".join(captions) + "\n", encoding="utf-8")
    page = write_report(runs, table, data, settings, folder / "report")
    for outcome in runs:
        say(
            f"{outcome['name']:<10} seed {outcome['seed']}: {outcome['examples']:,} examples, {outcome['steps']:,} "
            f"steps, {outcome['seconds']:.0f} s of training, validation loss {outcome['eval_loss']:.3f}"
        )
    say(f"report: {page}")


def main() -> None:
    """Data, score, curriculum, training, captions, report."""
    settings, options = parse_settings(Settings, PRESETS, default="embedded", description=__doc__)
    main_process = PartialState().is_main_process
    logging.basicConfig(level=logging.INFO if main_process else logging.ERROR, format="%(message)s")
    folder = Path(options.output_dir or Path("outputs") / "babylm_git" / Path(options.preset).stem)
    control = {"curriculum": settings.control} if options.compare else None
    arms, controls = grid_arms(dataclasses.asdict(settings), options.grid, name="curriculum", control=control)
    study = Study(run, arms, options.seeds, folder)
    study.run()
    first, *others = arms
    write_results(study, controls or dict.fromkeys(others, first), folder)
    if any(item.status == "crashed" for item in study.runs):
        raise SystemExit(study.describe())


if __name__ == "__main__":
    main()
