"""The stages before training: hard images found, a spectrum generated from them, filtered, and joined."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import PartialState
from datasets import Dataset, load_from_disk
from discl.arguments import DataArguments, DisCLArguments, SpectrumArguments
from discl.data import Labelled, load_data
from discl.models import new_classifier, processor_of
from transformers import set_seed

from hf_curriculum import (
    IID,
    ClassProbability,
    CLIPSimilarity,
    CurriculumTrainer,
    CurriculumTrainingArguments,
    add_scores,
)
from hf_curriculum.columns import GUIDANCE, HARD
from hf_curriculum.config import digest
from hf_curriculum.names import SCORERS
from hf_curriculum.provenance import numeric_column, read_column
from hf_curriculum.scorers.visual.class_probability import validate_prompt_names
from hf_curriculum.studies.recipe import RunLines, resume_point
from hf_curriculum.tasks.long_tail import (
    LabelCollator,
    Retry,
    filter_spectrum,
    generate_spectrum,
    hold_out_levels,
    join_spectrum,
    load_prompts,
    mark_hard,
)
from hf_curriculum.tasks.long_tail.generation.generate import FILE, validate_pair_scorer
from hf_curriculum.tasks.long_tail.generation.pixel_diffusion import import_diffusers

_MINING = ("classifier", "classifier_prompt", "mining_epochs", "below", "fewer_than")
_COMPARING = ("scorer", "at_least", "filter_prompt")


@dataclass(frozen=True)
class Prepared:
    """What the runs of one study read.

    Args:
        labelled: real images and test sets.
        classifier: what found the hard images.
        marked: the real training images with `class_probability` and `hard`.
        spectrum: what was generated.
        kept: what the filter left of it.
        joined: real and kept images.
        train: the joined images without the guidance validation set.
        levels: the guidance validation set, by name of a level.
    """

    labelled: Labelled
    classifier: ClassProbability
    marked: Dataset
    spectrum: Dataset
    kept: Dataset
    joined: Dataset
    train: Dataset
    levels: dict[str, Dataset]

    @property
    def real(self) -> Dataset:
        """The real images that are trained on."""
        return self.train.select(np.flatnonzero(numeric_column(self.train, GUIDANCE) == 1))


def prepare(
    data_args: DataArguments,
    spectrum_args: SpectrumArguments,
    args: DisCLArguments,
    folder: Path,
    stage: str = "filter",
) -> Prepared | None:
    """All that training reads, made as far as it is not there; None after an earlier `stage`."""
    classifier = {name: getattr(args, name) for name in ("model_options", "image_size")}
    given = [asdict(data_args), asdict(spectrum_args), classifier]
    return _prepare(json.dumps(given), folder, stage)


@lru_cache(maxsize=1)
def _prepare(given: str, folder: Path, stage: str) -> Prepared | None:
    data, spectrum, classifier = json.loads(given)
    data_args, spectrum_args = DataArguments(**data), SpectrumArguments(**spectrum)
    labelled = load_data(data_args)
    mined = digest(json.dumps([data, {name: spectrum[name] for name in _MINING}, classifier], sort_keys=True))
    trained = digest(json.dumps([data, spectrum["mining_epochs"], classifier], sort_keys=True))
    later = ("allow_empty", "validation_images", *(() if spectrum_args.tries else _COMPARING))
    rest = {name: value for name, value in spectrum.items() if name not in (*_MINING, *later)}
    place = folder / f"spectrum-{digest(mined, json.dumps(rest, sort_keys=True))}"
    if stage != "mine" and not (place / FILE).is_file():
        validate_generation(spectrum_args, labelled.names, stage)
    found_by = find_classifier(labelled, spectrum_args, classifier, folder / f"classifier-{trained}")
    marked = mine(labelled, spectrum_args, found_by, folder / f"mined-{mined}")
    if stage == "mine":
        return None
    hard = int(read_column(marked, HARD).to_numpy(zero_copy_only=False).sum())
    if spectrum_args.validation_images > hard:
        raise ValueError(
            f"validation_images={spectrum_args.validation_images} sources are to be held out with an image of every "
            f"level, and {hard:,} images are hard: no others are generated from. Ask for fewer with "
            "`--validation_images`, or mark more with `--below` or `--fewer_than`."
        )
    drawn = generate(marked, spectrum_args, place)
    if stage == "generate":
        return None
    kept = keep(drawn, spectrum_args, place)
    joined = join_spectrum(marked, kept)
    train, levels = hold_out_levels(joined, images=spectrum_args.validation_images)
    return Prepared(labelled, found_by, marked, drawn, kept, joined, train, levels)


def validate_generation(spectrum_args: SpectrumArguments, names: list[str], stage: str) -> None:
    """Raises for what the stages after mining would raise, before a classifier is trained."""
    import_diffusers()
    for prompt in (spectrum_args.prompt, spectrum_args.filter_prompt or ""):
        if prompt.lower().endswith((".csv", ".json")):
            load_prompts(prompt)
        elif "{label}" in prompt:
            validate_prompt_names(names, prompt)
    if stage == "filter" or spectrum_args.tries:
        scorer = make_scorer(spectrum_args)
        validate_pair_scorer(scorer)
        if isinstance(scorer, CLIPSimilarity):
            scorer.loaded(None)


def mine(labelled: Labelled, spectrum_args: SpectrumArguments, classifier: ClassProbability, place: Path) -> Dataset:
    """The training images with the probability of their class, and whether they are hard."""
    state = PartialState()
    missing = not (place / "state.json").is_file()
    state.wait_for_everyone()  # all have looked before one writes
    if missing:
        scored = add_scores(labelled.train, classifier)
        marked = mark_hard(scored, below=spectrum_args.below, fewer_than=spectrum_args.fewer_than)
        if state.is_main_process:
            draft = place.with_name(f".{place.name}")
            shutil.rmtree(draft, ignore_errors=True)
            marked.save_to_disk(str(draft))
            draft.replace(place)
    state.wait_for_everyone()
    return load_from_disk(str(place))


def find_classifier(
    labelled: Labelled, spectrum_args: SpectrumArguments, options: dict[str, Any], place: Path
) -> ClassProbability:
    """What finds hard images: the model that is named, or one that is trained where it is not there."""
    name = spectrum_args.classifier
    if name is None:
        _train_classifier(labelled, spectrum_args.mining_epochs, options, place)
        name = str(place)
    return ClassProbability(name, prompts=spectrum_args.classifier_prompt, classes=labelled.names)


def _train_classifier(labelled: Labelled, epochs: int, options: dict[str, Any], target: Path) -> None:
    """A classifier of the real images alone; a run that was killed goes on from its last checkpoint."""
    state = PartialState()
    if (target / "config.json").is_file():
        return
    set_seed(0)
    args = CurriculumTrainingArguments(
        str(target.with_name(f".{target.name}")),
        curriculum=IID(epochs=epochs),
        global_batch_size=32 if len(labelled.train) < 20_000 else 256,
        learning_rate=2e-3,
        lr_scheduler_type="cosine",
        report_to=[],
        save_strategy="epoch",
        save_total_limit=1,
        disable_tqdm=True,
        logging_steps=50,
        use_cpu=state.device.type == "cpu",
    )
    processor = processor_of(None, options["image_size"])
    model = new_classifier(labelled.names, options["model_options"])
    trainer = CurriculumTrainer(model, args, LabelCollator(processor), labelled.train)
    state.print(f"A classifier of {len(labelled.names):,} classes, on {len(labelled.train):,} real images, for mining")
    RunLines.follow(trainer)
    trainer.train(resume_from_checkpoint=resume_point(args))
    if state.is_main_process:
        draft = target.with_name(f"..{target.name}")
        trainer.model.save_pretrained(draft)
        processor.save_pretrained(draft)
        draft.replace(target)
    state.wait_for_everyone()


def generate(marked: Dataset, spectrum_args: SpectrumArguments, folder: Path) -> Dataset:
    """The spectrum of the hard images."""
    resize, tries = spectrum_args.resize, spectrum_args.tries
    compared = {"at_least": spectrum_args.at_least, "prompt": spectrum_args.filter_prompt}
    return generate_spectrum(
        marked,
        spectrum_args.pipeline,
        prompts=spectrum_args.prompt,
        levels=spectrum_args.levels,
        seeds=spectrum_args.generation_seeds,
        folder=folder,
        steps=spectrum_args.generation_steps,
        guidance_scale=spectrum_args.guidance_scale,
        retry=None if tries is None else Retry(make_scorer(spectrum_args), tries=tries, **compared),
        resize=None if resize is None else resize[0] if len(resize) == 1 else tuple(resize),
        lora=spectrum_args.lora,
        revision=spectrum_args.pipeline_revision,
        dtype=spectrum_args.pipeline_dtype,
        batch_size=spectrum_args.generation_batch_size,
    )


def make_scorer(spectrum_args: SpectrumArguments) -> Any:
    """The filter's scorer."""
    ((name, options),) = spectrum_args.scorer.items()
    return SCORERS[name](**options)


def keep(drawn: Dataset, spectrum_args: SpectrumArguments, folder: Path) -> Dataset:
    """What shows its prompt well enough."""
    options = {"at_least": spectrum_args.at_least, "prompt": spectrum_args.filter_prompt}
    options["allow_empty"] = spectrum_args.allow_empty
    return filter_spectrum(drawn, make_scorer(spectrum_args), folder=folder / "filter", **options)
