"""`hf-curriculum caption`: what a trained captioner writes to images."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hf_curriculum import __version__
from hf_curriculum.cli.common import (
    AsJson,
    image_files,
    load_rows,
    model_of,
    name_of,
    named_paths,
    note,
    plainly,
    read_image,
    say,
)
from hf_curriculum.markdown import one_line
from hf_curriculum.names import MODELS

if TYPE_CHECKING:
    from hf_curriculum.data.image_inputs import FeatureInputs, RegionInputs
    from hf_curriculum.tasks.captioning.suite import CaptionEvaluation, CaptionSuite


@plainly
def caption_command(
    model: Annotated[str, typer.Argument(help="Folder or Hub name of a captioner, or the folder of a run.")],
    images: Annotated[list[Path], typer.Argument(help="Image files, and folders of them; with --features also ids.")],
    features: Annotated[
        Path | None,
        typer.Option(help="Stored regions or features to read in place of the images, by their ids or file names."),
    ] = None,
    beams: Annotated[int, typer.Option(help="Beams of generation; 1 is greedy.", min=1)] = 1,
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Tokens of a caption at most; the model's own setting, or 30.", min=1)
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Images that run through the model at once.", min=1)] = 16,
    as_json: AsJson = False,
) -> None:
    """Write a caption for each image, one line each: the file, a tab, and the caption.

    Images that cannot be read are named on standard error, and the exit status is then 1.
    """
    files = list(image_files(images, ids=features is not None))
    from hf_curriculum.evaluation.generate import caption_images

    captioner, processor = load_for_captions(model, features)
    read = read_image if features is None else _stored_images(processor.image_inputs, files, features)
    found: list[dict[str, str | None]] = []
    options = {"num_beams": beams} | ({} if max_new_tokens is None else {"max_new_tokens": max_new_tokens})
    for start in range(0, len(files), batch_size):
        batch = [read(file) for file in files[start : start + batch_size]]
        readable = [image for image, error in batch if error is None]
        captions = iter(caption_images(captioner, readable, processor, **options) if readable else ())
        for file, (_, error) in zip(files[start:], batch, strict=False):
            if error is not None:
                found.append({"image": str(file), "caption": None, "error": error})
                note(one_line(error, 300))
                continue
            found.append({"image": str(file), "caption": next(captions)})
            if not as_json:
                typer.echo(f"{one_line(str(file))}\t{one_line(found[-1]['caption'])}")
    if as_json:
        say("", found, as_json)
    if unread := sum(entry["caption"] is None for entry in found):
        note(f"Error: {unread} of {len(found)} images could not be read.")
        raise typer.Exit(1)


def load_for_captions(model: str, features: Path | None) -> tuple[Any, Any]:
    """A captioner, on a GPU where there is one, and what reads its images: a processor, or a collator of features."""
    import torch

    from hf_curriculum.data.collators import CaptionCollator
    from hf_curriculum.models.captioner import load_captioner, stored_inputs
    from hf_curriculum.studies.recipe import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    captioner, processor = load_captioner(model_of(model))
    if getattr(captioner.config, "image_token_id", None) is not None and type(captioner) not in MODELS.values():
        raise ValueError(
            f"{model} is a {type(captioner).__name__}, which writes to a prompt that an image stands in. Captions are "
            "written here by models that take an image alone: those of this library, GIT, BLIP, encoder-decoders."
        )
    captioner.to(torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu")
    if features is not None:
        stored = stored_inputs(captioner, processor.image_processor, features)
        return captioner, CaptionCollator(processor.tokenizer, **stored)
    if getattr(processor.image_processor, "detector", processor.image_processor) is None:
        raise ValueError(
            f"{model} has no image processor that finds regions: it was trained on stored ones, and the detector that "
            "made them is not saved with it. Name a store with the images' regions (--features STORE), as "
            "`hf-curriculum features` writes it with that detector."
        )
    return captioner, processor


def _stored_images(
    inputs: FeatureInputs | RegionInputs, files: Sequence[Path], features: Path
) -> Callable[[Path], tuple[str, str | None]]:
    """What gives the id of what is stored of a file (or id), and why there is nothing, where there is nothing."""
    from hf_curriculum.columns import IMAGE_ID
    from hf_curriculum.data.identity import end_number, find_ids
    from hf_curriculum.data.image_inputs import MissingFeaturesError

    matches = find_ids(map(str, files), inputs.store)
    matches.validate(features)
    numbers = {name: found for name, found in matches.pairs.items() if found == end_number(name) != Path(name).stem}
    if numbers:
        first, number = next(iter(numbers.items()))
        note(f"{len(numbers)} images are looked up by the number in their name, {first} as {number}.")

    def look_up(file: Path) -> tuple[str, str | None]:
        image_id = matches.pairs.get(str(file), str(file))
        try:
            inputs.read({IMAGE_ID: image_id})
        except MissingFeaturesError as error:
            return image_id, str(error)
        return image_id, None

    return look_up


def evaluate_captions(
    model: str,
    data: str | None,
    *,
    output: Path,
    split: str | None,
    images: str | None,
    features: Path | None,
    beams: int | None,
    max_new_tokens: int | None,
    metrics: Sequence[str] | None,
    clip: str | None,
    compare: Sequence[str] | None,
    difficulty_from: Path | None,
    html: Path | None,
    batch_size: int,
    limit: int | None,
    progress: bool,
) -> CaptionEvaluation:
    """What `--suite captions` does."""
    from hf_curriculum.tasks.captioning.page import caption_report
    from hf_curriculum.tasks.captioning.suite import (
        CAPTIONS_FILE,
        RESULTS_FILE,
        CaptionSuite,
        read_captions,
        write_captions,
    )

    if data is None:
        raise typer.BadParameter("Captions are compared with those of a data set. Name one.", param_hint="--data")
    written = read_captions(model) if Path(model).is_file() else None
    if written is not None and (features or beams or max_new_tokens):
        raise typer.BadParameter(
            f"{model} holds captions, and none are generated: --features, --beams and --max-new-tokens have no "
            "effect. Leave them out, or name a model."
        )
    sees = features is None and written is None
    rows, split = load_rows(data, split, images, read=sees or clip is not None, shown=html is not None)
    others = named_paths(compare or (), "--compare")
    compared = {"compare": others, "difficulty": difficulty_from}
    suite = CaptionSuite(rows, metrics or "all", name=name_of(Path(model)), clip=clip, limit=limit, **compared)
    about: dict[str, Any] = {"version": __version__, "model": model, "data": data, "split": split}
    if written is None:
        settings = {"num_beams": beams or 5, "max_new_tokens": max_new_tokens, "batch_size": batch_size}
        captions = _generate(suite, model, features, settings, progress=progress)
        # Before METEOR and SPICE, which take long. Captions of former results stay with these until all are replaced.
        early = output / (f"unscored_{CAPTIONS_FILE}" if (output / RESULTS_FILE).exists() else CAPTIONS_FILE)
        write_captions(early, suite.image_ids, captions)
        about |= {"features": features and str(features), **settings}
    else:
        captions = suite.captions_of(model, written)
    found = suite(captions)
    found.write(output, about)
    (output / f"unscored_{CAPTIONS_FILE}").unlink(missing_ok=True)
    if html is not None:
        note(f"page: {caption_report(found, suite.images, f'Captions of {data}').write(html)}")
    return found


def _generate(
    suite: CaptionSuite, model: str, features: Path | None, settings: dict[str, Any], *, progress: bool
) -> list[str]:
    """A caption for each image of the suite; `settings` gets the tokens of a caption that the model's own name."""
    from hf_curriculum.evaluation.generate import generate_captions

    captioner, processor = load_for_captions(model, features)
    if features is not None:
        store = processor.image_inputs.store
        missing = [image_id for image_id in suite.image_ids if image_id not in store]
        if missing:
            raise ValueError(
                f"{features} holds nothing of {len(missing):,} of the {len(suite.image_ids):,} images, the first "
                f"{missing[0]!r}. A caption is wanted for each of them. Add their features, or name another split."
            )
    return generate_captions(captioner, suite.images, processor, progress=progress, **settings)
