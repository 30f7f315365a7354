"""`hf-curriculum caption`: what a trained captioner writes to images."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hf_curriculum.cli.common import AsJson, model_of, note, plainly, say
from hf_curriculum.markdown import one_line
from hf_curriculum.names import MODELS

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
"""Files of a folder that are taken for images; a file that is named is read whatever its name."""


@plainly
def caption_command(
    model: Annotated[str, typer.Argument(help="Folder or Hub name of a captioner, or the folder of a run.")],
    images: Annotated[list[Path], typer.Argument(help="Image files, and folders of them.")],
    beams: Annotated[int, typer.Option(help="Beams of generation; 1 is greedy.", min=1)] = 1,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens of a caption at most.", min=1)] = 30,
    batch_size: Annotated[int, typer.Option(help="Images that run through the model at once.", min=1)] = 16,
    as_json: AsJson = False,
) -> None:
    """Write a caption for each image, one line each: the file, a tab, and the caption.

    Images that cannot be read are named on standard error, and the exit status is then 1.
    """
    files = list(_files(images))
    import torch

    from hf_curriculum.evaluation.generate import caption_images
    from hf_curriculum.models.captioner import load_captioner
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
    found: list[dict[str, str | None]] = []
    options = {"num_beams": beams, "max_new_tokens": max_new_tokens}
    for start in range(0, len(files), batch_size):
        batch = [_decode(file) for file in files[start : start + batch_size]]
        decoded = [image for image in batch if not isinstance(image, str)]
        captions = iter(caption_images(captioner, decoded, processor, **options) if decoded else ())
        for file, image in zip(files[start:], batch, strict=False):
            if isinstance(image, str):
                found.append({"image": str(file), "caption": None, "error": image})
                note(one_line(image, 300))
                continue
            found.append({"image": str(file), "caption": next(captions)})
            if not as_json:
                typer.echo(f"{one_line(str(file))}\t{one_line(found[-1]['caption'])}")
    if as_json:
        say("", found, as_json)
    if unread := sum(entry["caption"] is None for entry in found):
        note(f"Error: {unread} of {len(found)} images could not be read.")
        raise typer.Exit(1)


def _files(given: Iterable[Path]) -> Iterator[Path]:
    """The files that are named, and the images of the folders."""
    for path in given:
        if path.is_dir():
            inside = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES)
            if not inside:
                raise ValueError(f"The folder {path} holds no image ({', '.join(SUFFIXES)}). Name files, or another.")
            yield from inside
        elif path.exists():
            yield path
        else:
            raise ValueError(f"There is no image {path}. Name a file, or a folder of images.")


def _decode(file: Path) -> Image.Image | str:
    """An image, or why there is none."""
    from hf_curriculum.data.images import UnreadableImageError, to_rgb

    if not file.is_file():  # a pipe would be waited for
        return f"{file} is no file."
    try:
        return to_rgb(file)
    except UnreadableImageError as error:
        return str(error)
