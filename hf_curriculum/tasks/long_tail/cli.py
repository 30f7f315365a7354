"""`hf-curriculum generate`: a spectrum of images, from prompt to photograph."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from hf_curriculum.cli.common import AsJson, Split, hide_bars_unless_watched, note, plainly, say, suggest, typed_again
from hf_curriculum.files import new_file, refuse_link, write_atomically

if TYPE_CHECKING:
    from datasets import Dataset

_Source = Annotated[
    Path, typer.Argument(help="A saved data set with the columns image, image_id and hard, as `mark_hard` adds it.")
]
_Output = Annotated[Path, typer.Argument(help="Folder for the generated data set.", show_default=False)]
_Pipeline = Annotated[
    str,
    typer.Option(
        help="An image-to-image pipeline of diffusers, by name or folder; scenes_diffusion, which ships, draws "
        "objects of the embedded scenes."
    ),
]
_Prompt = Annotated[
    str,
    typer.Option(
        help="What to draw: text with {label} for the class, or any column of texts in braces; or a .csv or .json "
        "file of prompts by class."
    ),
]
_Levels = Annotated[str, typer.Option(help="Guidance levels, from 0 (the prompt) to less than 1 (the real image).")]
_Seeds = Annotated[str, typer.Option(help="Images of each hard image and level, or the seeds: 10,20,30.")]
_Steps = Annotated[
    int | None, typer.Option(help="Denoising steps from noise alone; by default the pipeline's.", min=1)
]
_Scale = Annotated[float | None, typer.Option(help="Guidance by the text; by default the pipeline's.")]
_FromText = Annotated[bool, typer.Option("--from-text", help="Draw level 0 from the prompt alone.")]
_Resize = Annotated[
    str | None, typer.Option(help="Size of the sources, WIDTHxHEIGHT, or the pixels of their shorter side.")
]
_AllHard = Annotated[bool, typer.Option("--all", help="Draw from every image, whatever is marked as hard.")]
_Clip = Annotated[
    str, typer.Option(help="The CLIP that --at-least compares images and prompts with; scenes_clip ships.")
]
_AtLeast = Annotated[
    float | None,
    typer.Option(help="Keep images whose cosine with their prompt is this or more, and list the others."),
]
_Tries = Annotated[int, typer.Option(help="Draw an image again while its cosine is below --at-least.", min=1)]
_Parts = Annotated[
    Path | None, typer.Option(help="Folder for finished parts, seen by all machines; by default next to the output.")
]


@plainly
def generate_command(
    source: _Source,
    output: _Output,
    prompt: _Prompt,
    pipeline: _Pipeline = "scenes_diffusion",
    levels: _Levels = "0.1,0.3,0.5,0.7,0.9",
    seeds: _Seeds = "8",
    steps: _Steps = None,
    guidance_scale: _Scale = None,
    from_text: _FromText = False,
    resize: _Resize = None,
    lora: Annotated[str | None, typer.Option(help="LoRA weights: a file, a folder or a name.")] = None,
    revision: Annotated[str | None, typer.Option(help="Of a pipeline on the Hub.")] = None,
    dtype: Annotated[Literal["float32", "float16", "bfloat16"] | None, typer.Option(help="Of the weights.")] = None,
    clip: _Clip = "scenes_clip",
    at_least: _AtLeast = None,
    tries: _Tries = 1,
    split: Split = "train",
    all_hard: _AllHard = False,
    batch_size: Annotated[int, typer.Option(help="Images of one level and size drawn at once.", min=1)] = 16,
    part_images: Annotated[int, typer.Option(help="Images that an interruption loses at most.", min=1)] = 64,
    parts: _Parts = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an output that exists.")] = False,
    as_json: AsJson = False,
) -> None:
    """Draw images between a prompt and each hard image, at several levels of guidance.

    The cost is printed first. The same command continues an interrupted run. On several GPUs:
    `accelerate launch -m hf_curriculum.cli generate ...`, where each process draws its part.
    """
    from hf_curriculum.parts import launched
    from hf_curriculum.scorers.alignment.clip import CLIPSimilarity
    from hf_curriculum.tasks.long_tail.generation.filter import filter_spectrum
    from hf_curriculum.tasks.long_tail.generation.generate import Retry, generate_spectrum

    _validate_output(output, source, overwrite)
    if tries > 1 and at_least is None:
        raise typer.BadParameter("Nothing says when to draw again. Pass --at-least too.", param_hint="--tries")
    wanted = {"levels": _numbers(levels, float, "--levels"), "seeds": _seeds(seeds), "resize": _size(resize)}
    hide_bars_unless_watched()
    _tell_costs()
    data = _load(source, split, all_hard)
    scorer = None if at_least is None else CLIPSimilarity(clip)
    if scorer is not None:
        scorer.loaded(None)  # one that is not there is known before anything is drawn
    folder = parts or output.with_name(f"{output.name}.parts")
    if parts is None:
        refuse_link(folder)
    options = {"steps": steps, "guidance_scale": guidance_scale, "from_text": from_text, "lora": lora, "dtype": dtype}
    options |= {"revision": revision, "batch_size": batch_size, "part_images": part_images, "allow_all_hard": all_hard}
    options["retry"] = Retry(scorer, at_least, tries) if tries > 1 else None
    try:
        spectrum = generate_spectrum(data, pipeline, prompts=prompt, folder=folder, **wanted, **options)
        kept = spectrum if scorer is None else filter_spectrum(spectrum, scorer, at_least=at_least)
    except KeyboardInterrupt:
        note(f"\nInterrupted. What is drawn in {folder} is kept; the same command continues:\n  {typed_again()}")
        raise
    rank, world_size = launched()
    if rank:
        note(f"process {rank} of {world_size}: its share is done")
        return
    _save(kept, len(spectrum), output, folder, as_json)
    if parts is None and world_size == 1:
        shutil.rmtree(folder)


def _validate_output(output: Path, source: Path, overwrite: bool) -> None:
    """Raises a `ValueError` for a folder that holds something else than an earlier spectrum."""
    place, real, there = output.resolve(), source.resolve(), (output / "dataset_info.json").exists()
    if place == real or (place.parent == real and there):
        raise ValueError(
            f"The output {output} is the source {source} or a part of it: the real images would be replaced by what "
            "is generated from them. Name a folder of its own."
        )
    if (output / "dataset_dict.json").exists():
        raise ValueError(f"{output} holds a data set with splits, which generated images would hide. Name another.")
    if there and not overwrite:
        raise ValueError(f"{output} is there already. Pass --overwrite, or name another.")


def _tell_costs() -> None:
    """The plan, the estimate and what is kept, which the library logs, on standard error."""
    logger = logging.getLogger("hf_curriculum.tasks.long_tail.generation")
    if not logger.handlers:
        handler = logging.Handler()
        handler.emit = lambda record: note(record.getMessage())  # type: ignore[method-assign]
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False


def _load(source: Path, split: str, all_hard: bool) -> Dataset:
    """The real images; with `all_hard` all of them marked."""
    import numpy as np
    import pyarrow as pa
    from datasets import DatasetDict, Value

    from hf_curriculum.columns import HARD
    from hf_curriculum.data.readers.outside_files import load_saved
    from hf_curriculum.provenance import append_columns

    try:
        data = load_saved(source)
    except FileNotFoundError as error:
        raise ValueError(
            f"{source} is no saved data set. Save one with the column `hard`: `mark_hard(data, below=0.2)"
            f'.save_to_disk("{source}")`.'
        ) from error
    if isinstance(data, DatasetDict):
        if split not in data:
            raise typer.BadParameter(f"{source} has the splits {list(data)}, and not {split!r}.", param_hint="--split")
        data = data[split]
    if all_hard:
        marks = pa.array(np.ones(len(data), bool))
        return append_columns(data, {HARD: marks}, {}, features={HARD: Value("bool")}, overwrite=True)
    if HARD not in data.column_names:
        raise ValueError(
            f"{source} has no column `hard`, so which images are to be drawn is not known. Add it with "
            "`mark_hard(data, below=0.2)`, or pass --all for every image."
        )
    return data


def _numbers(text: str, kind: type, option: str) -> tuple[float, ...]:
    """Numbers between commas."""
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no list of numbers such as 0.1,0.3.", param_hint=option) from error


def _seeds(text: str) -> int | tuple[float, ...]:
    """A number of seeds, or the seeds."""
    numbers = _numbers(text, int, "--seeds")
    return numbers if "," in text else int(numbers[0])


def _size(text: str | None) -> int | tuple[int, int] | None:
    """The pixels of the shorter side, or width and height."""
    if text is None:
        return None
    numbers = text.lower().split("x")
    if not all(part.isdigit() and int(part) for part in numbers) or len(numbers) > 2:
        raise typer.BadParameter(f"{text!r} is no size such as 512 or 480x272.", param_hint="--resize")
    width, *height = map(int, numbers)
    return (width, height[0]) if height else width


def _save(kept: Dataset, drawn: int, output: Path, folder: Path, as_json: bool) -> None:
    """The data set with its provenance, the grid and the table of what was dropped; and what was made."""
    from hf_curriculum.provenance import numeric_column
    from hf_curriculum.scored_data import save_scored
    from hf_curriculum.tasks.long_tail.generation.filter import DROPPED, spectrum_grid

    save_scored(kept, output)
    with new_file(output / "grid.png") as file:
        spectrum_grid(kept).save(file)
    if (folder / "filter" / DROPPED).exists():
        write_atomically(output / DROPPED, (folder / "filter" / DROPPED).read_bytes())
    levels = [float(f"{level:g}") for level in numeric_column(kept, "guidance").tolist()]
    counts = {f"{level:g}": levels.count(level) for level in sorted(set(levels))}
    each = ", ".join(f"{count:,} of level {level}" for level, count in counts.items())
    facts = {"images": len(kept), "dropped": drawn - len(kept), "by_level": counts, "output": str(output)}
    say(f"{len(kept):,} images, {drawn - len(kept):,} dropped: {each}", facts, as_json)
    note(f"saved to {output}; {output / 'grid.png'} shows it")
    suggest("push", output, "NAME")
