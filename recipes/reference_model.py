"""A reference model: a captioner whose loss of each training caption says what is noise and what can be learnt.

    accelerate launch recipes/reference_model.py                                # scenes: halves score each other
    accelerate launch recipes/reference_model.py --grounding                    # also how well each caption fits
    accelerate launch recipes/reference_model.py --trusted validation           # one model, on a split that is true
    accelerate launch recipes/reference_model.py --data photos --trusted checked --vision_weights facebook/dino-vitb16
    accelerate launch recipes/reference_model.py --data FILE --features STORE --model transformer \
        --vision_weights none --model_options '{hidden_size: 96}'

Every flag of `TrainingArguments` is one of the recipe. Writes `OUTPUT/scored`, the data with the column
`reference_loss` (and `grounding`), which a curriculum reads. No model scores rows that it was trained on: its loss of
those tells what it has memorised, and mismatched captions are memorised too. Source: Mindermann et al. 2022,
*Prioritized Training on Points that are Learnable, Worth Learning, and Not Yet Learnt*, equation 3, who also train two
models on halves where no data is held out.

A run that was killed resumes each model from its last checkpoint.
"""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import PartialState
from babylm.models import vision_weights
from datasets import Dataset, DatasetDict
from reference.arguments import GIT, PARSER, SCENES, DataArguments, ModelArguments, ReferenceArguments
from reference.data import halves, load_splits, take_trusted
from reference.scores import GROUNDING, LOSS, add_columns, mismatch_auc
from transformers import AutoConfig, AutoImageProcessor, GitProcessor, set_seed

from hf_curriculum import (
    CaptionCollator,
    CurriculumTrainer,
    CurriculumTrainingArguments,
    StopWhenDiverged,
    save_scored,
    train_wordpiece,
)
from hf_curriculum.columns import IMAGE, IMAGE_ID
from hf_curriculum.data.image_inputs import RegionInputs
from hf_curriculum.data.regions.open import open_regions
from hf_curriculum.models.captioner import new_captioner, new_region_captioner
from hf_curriculum.models.git.build import git_from_config, small_git_config
from hf_curriculum.models.vision_features import cache_vision_features
from hf_curriculum.scorers.alignment.clip import SCENES_CLIP
from hf_curriculum.studies.recipe import RunLines, disable_progress_bars, resume_point, run_command
from hf_curriculum.training.setup import close_process_group

logger = logging.getLogger(__name__)

RULE = "{type: online_selection, candidates: 4, value: reducible_loss, reference: reference_loss}"
FACTS = "reference.json"
"""What the run came to."""


def new_git(words: Dataset, data_args: DataArguments, model_args: ModelArguments) -> tuple[Any, Any]:
    """A GIT and its processor, on a vision tower of its own or on one that is pretrained and frozen."""
    weights, options = vision_weights(model_args), model_args.model_options
    if weights is None:
        return new_captioner(words, data_args.image_size, data_args.vocab_size, **options)
    if model_args.vision_weights == SCENES_CLIP and data_args.data != SCENES:
        logger.warning(
            f"The vision tower is the shipped CLIP's, which has seen drawn scenes alone, and the data is "
            f"{data_args.data}: it will tell its images badly. Name another, `--vision_weights facebook/dino-vitb16`, "
            "or train one, `--vision_weights none`."
        )
    tokenizer = train_wordpiece(words, data_args.vocab_size)
    tower = AutoConfig.from_pretrained(weights)
    tower = getattr(tower, "vision_config", tower)  # of a model of images and text, such as CLIP
    config = small_git_config(len(tokenizer), tokenizer=tokenizer, vision_config=tower, **options)
    model = git_from_config(config, vision_model_name_or_path=weights)
    model.freeze_vision_tower()
    return model, GitProcessor(AutoImageProcessor.from_pretrained(weights), tokenizer)


def train_reference(
    rows: Dataset,
    words: Dataset,
    held_out: Dataset,
    data_args: DataArguments,
    model_args: ModelArguments,
    args: ReferenceArguments,
    training_args: CurriculumTrainingArguments,
) -> tuple[str, int]:
    """One model."""
    set_seed(training_args.seed)
    folder = Path(training_args.output_dir)
    if model_args.model == GIT:
        model, processor = new_git(words, data_args, model_args)
        stored = {}
        if model_args.vision_weights is not None:  # the tower is the same in all models
            splits = DatasetDict(rows=rows.select_columns([IMAGE, IMAGE_ID]))
            splits["held_out"] = held_out.select_columns([IMAGE, IMAGE_ID])
            with PartialState().main_process_first():
                features = cache_vision_features(model, splits, folder / "features", processor.image_processor)
            stored = {"vision_features": features}
    else:
        regions = RegionInputs(open_regions(data_args.features))
        counts = {"min_count": data_args.min_count, "max_words": args.max_length - 2}
        model, processor = new_region_captioner(model_args.model, words, regions, **counts, **model_args.model_options)
        stored = {"regions": regions}
    images = None if stored else processor.image_processor
    trainer = CurriculumTrainer(
        model,
        training_args,
        data_collator=CaptionCollator(processor.tokenizer, images, max_length=args.max_length, **stored),
        train_dataset=rows,
        eval_dataset=held_out,
        processing_class=processor,
        callbacks=[StopWhenDiverged()],
    )
    parameters = sum(part.numel() for part in trainer.model.parameters() if part.requires_grad)
    trainer.accelerator.print(f"\n{folder.name}: {parameters:,} parameters to be trained on {len(rows):,} captions")
    RunLines.follow(trainer)
    trainer.train(resume_from_checkpoint=resume_point(training_args))
    trainer.save_model(str(folder / "model"))
    return str(folder / "model"), trainer.examples_seen()


def run(
    folder: Path, data_args: DataArguments, model_args: ModelArguments, args: ReferenceArguments, arguments_in: Any
) -> dict[str, Any] | None:
    """Trains one model or two, and writes the scored data; what it came to, in the main process."""
    start, splits = time.perf_counter(), load_splits(data_args)
    train = splits["train"]
    if args.trusted is None:
        parts = halves(train, arguments_in(folder).seed)
        trained_on = {f"half-{number}": train.select(parts[1 - number]) for number in range(2)}
    else:
        parts = [np.arange(len(train))]
        trained_on = {"trusted": take_trusted(args.trusted, splits, images=model_args.model == GIT)}
    models, examples = [], 0
    for (name, rows), part in zip(trained_on.items(), parts, strict=True):
        own = arguments_in(folder / name)
        model, seen = train_reference(rows, train, train.select(part), data_args, model_args, args, own)
        models.append(model)
        examples += seen
    training = time.perf_counter() - start
    is_main = PartialState().is_main_process
    close_process_group()  # the others need not wait while one scores
    if not is_main:
        return None
    scored = add_columns(train, models, parts, data_args, args)
    save_scored(DatasetDict({**splits, "train": scored}), folder / "scored")
    columns = [LOSS, *([GROUNDING] if args.grounding else [])]
    passes = {"training": 3 * examples, "scoring": len(train) * (1 + (args.k + 1) * args.grounding)}
    facts = {
        "models": models,
        "rows": len(train),
        "examples": examples,
        "forward_passes": passes,
        "seconds": {"training": round(training, 1), "scoring": round(time.perf_counter() - start - training, 1)},
    }
    if data_args.data == SCENES:
        facts["auc"] = {column: mismatch_auc(scored, column) for column in columns}
    (folder / FACTS).write_text(json.dumps(facts, indent=1), encoding="utf-8")
    return facts


def report(facts: dict[str, Any], folder: Path, args: ReferenceArguments, mismatched: float) -> None:
    """Prints what the run came to, and how its columns are used."""
    print()
    for column, found in facts.get("auc", {}).items():
        if found is not None:
            print(
                f"`{column}` tells the {mismatched:.0%} mismatched captions from the others with an AUC of {found:.3f}"
            )
    passes, seconds = facts["forward_passes"], facts["seconds"]
    each = f"1 + {args.k + 1} for each of {facts['rows']:,} scored" if args.grounding else "1 for each that was scored"
    print(
        f"{sum(seconds.values()):.0f} s, {seconds['scoring']:.0f} of them for scores; as many as "
        f"{sum(passes.values()):,} forward passes: 3 for each of {facts['examples']:,} examples trained on, {each}"
    )
    for model in facts["models"]:
        print(f"a reference:         {model}")
    print(f"the scored captions: {folder / 'scored'}")
    print(f"train on them:       hf-curriculum train {folder / 'scored'} {folder / 'run'} --curriculum '{RULE}'")


def main() -> None:
    """The run of the command line, and what it came to."""
    options = PARSER.parse()
    if len(options.seeds) > 1 or options.grid or options.arms or options.compare or options.control:
        raise ValueError(
            "This recipe makes one column of scores, so it has one run: --grid, --table, --arms, --compare, --control "
            "and several --seeds would make others. Leave them out, or call it again with another --output_dir."
        )
    folder = PARSER.folder(options)
    own = {**options.shared, **options.settings, "seed": options.seeds[0]}

    def arguments_in(where: Path) -> CurriculumTrainingArguments:
        return PARSER.parse_dict({**own, "output_dir": str(where)})[-1]

    if options.shared["disable_tqdm"]:
        disable_progress_bars()
    data_args, model_args, args, _ = PARSER.parse_dict({**own, "output_dir": str(folder)})
    facts = run(folder, data_args, model_args, args, arguments_in)
    if facts is not None:
        report(facts, folder, args, data_args.mismatched)


if __name__ == "__main__":
    run_command(main, PARSER)
