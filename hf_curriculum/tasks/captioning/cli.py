"""`hf-curriculum caption`: what a trained captioner writes to images."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hf_curriculum.cli.common import AsJson, model_of, note, plainly, say
from hf_curriculum.markdown import one_line
from hf_curriculum.names import MODELS

if TYPE_CHECKING:
    from hf_curriculum.data.image_inputs import FeatureInputs, RegionInputs

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
"""Files of a folder that are taken for images; a file that is named is read whatever its name."""


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
    read = read_image if features is None else partial(_look_up, processor.image_inputs)
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
    from hf_curriculum.models.captioner import load_captioner, stored_images
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
        stored = stored_images(captioner, processor.image_processor, features)
        return captioner, CaptionCollator(processor.tokenizer, **stored)
    if getattr(processor.image_processor, "detector", processor.image_processor) is None:
        raise ValueError(
            f"{model} has no image processor that finds regions: it was trained on stored ones, and the detector that "
            "made them is not saved with it. Name a store with the images' regions (--features STORE), as "
            "`hf-curriculum features` writes it with that detector."
        )
    return captioner, processor


def image_files(given: Iterable[Path], ids: bool) -> Iterator[Path]:
    """The files that are named, and the images of the folders; with `ids`, names of no file too."""
    for path in given:
        if path.is_dir():
            inside = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES)
            if not inside:
                raise ValueError(f"The folder {path} holds no image ({', '.join(SUFFIXES)}). Name files, or another.")
            yield from inside
        elif ids or path.exists():
            yield path
        else:
            raise ValueError(f"There is no image {path}. Name a file, or a folder of images.")


def read_image(file: Path) -> tuple[Any, str | None]:
    """An image, or why there is none."""
    from hf_curriculum.data.images import UnreadableImageError, to_rgb

    if not file.is_file():  # a pipe would be waited for
        return None, f"{file} is no file."
    try:
        return to_rgb(file), None
    except UnreadableImageError as error:
        return None, str(error)


def _look_up(inputs: FeatureInputs | RegionInputs, file: Path) -> tuple[str, str | None]:
    """The id of what is stored of an image (what is given, its name, or its last number), and why there is none."""
    from hf_curriculum.columns import IMAGE_ID
    from hf_curriculum.data.image_inputs import MissingFeaturesError

    number = re.search(r"(\d+)$", file.stem)
    names = [str(file), file.name, file.stem, *([str(int(number[1]))] if number else [])]
    image_id = next((name for name in names if name in inputs.store), names[0])
    try:
        inputs.read({IMAGE_ID: image_id})
    except MissingFeaturesError as error:
        return image_id, str(error)
    return image_id, None
