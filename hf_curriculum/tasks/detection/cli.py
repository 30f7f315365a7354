"""`hf-curriculum propose` and `hf-curriculum detect`."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hf_curriculum.cli.common import (
    AsJson,
    hide_bars_unless_watched,
    image_files,
    model_of,
    note,
    plainly,
    read_image,
    say,
    typed_again,
)
from hf_curriculum.cli.score import column_mapping, validate_output
from hf_curriculum.files import new_file, refuse_file, refuse_link, staged_folder, write_atomically
from hf_curriculum.markdown import one_line

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

_Source = Annotated[
    str,
    typer.Argument(
        help="A folder of images, with captions or without; a caption file, a saved data set or a name on the Hub, as "
        "in `score`. Or COCO's instances_*.json, or a folder of PASCAL VOC.",
        show_default=False,
    ),
]
_Output = Annotated[Path, typer.Argument(help="Folder for the data set with proposals.", show_default=False)]
_Mode = Annotated[
    Literal["fast", "quality"], typer.Option(help="Of selective search: `quality` has more boxes and takes longer.")
]
_Most = Annotated[int, typer.Option(help="Boxes of an image at most, a random choice of them; 0 keeps all.", min=0)]
_MinSize = Annotated[int, typer.Option(help="Shortest side of a box, in pixels.", min=0)]
_MaxSide = Annotated[
    int, typer.Option(help="Search images with a longer side at this size; 0 searches any as it is.", min=0)
]
_AsCap2Det = Annotated[
    bool,
    typer.Option("--as-cap2det", help="Search as Cap2Det's code does: quality, any size, squeezed to a ratio of 2.2."),
]
_File = Annotated[
    Path | None, typer.Option(help="Take the proposals of a file or folder (MCG's, fast-rcnn's, Cap2Det's, .npz).")
]
_NumProc = Annotated[int | None, typer.Option(help="Processes that search, of each launched process.", min=0)]
_Seed = Annotated[int, typer.Option(help="Seed of the choice if an image has more boxes than --max-proposals.")]
_Aggregate = Annotated[
    list[str] | None,
    typer.Option(
        help="How to merge a column that differs between the captions of an image, COLUMN=HOW: mean, max, min, "
        "first or list. May be repeated."
    ),
]
_DropEmpty = Annotated[bool, typer.Option("--drop-empty", help="Leave out images without any proposal.")]
_Images = Annotated[str | None, typer.Option(help="The folder of the images of a file.")]
_Column = Annotated[
    list[str] | None,
    typer.Option(help="The name of a column in the data, OURS=THEIRS: `caption=text`, `image=photo`."),
]
_Objects = Annotated[
    str | None, typer.Option(help="True boxes for data with captions: COCO's instances_*.json, or VOC's XML files.")
]
_AllowOutside = Annotated[
    bool, typer.Option("--allow-outside", help="Read images outside of SOURCE and --images that it names or links to.")
]
_Download = Annotated[
    bool, typer.Option("--download", help="Fetch images of which SOURCE holds the addresses, and count what fails.")
]
_PartImages = Annotated[int, typer.Option(help="Images of a part: an interrupted run loses at most one part.", min=1)]
_Parts = Annotated[
    Path | None, typer.Option(help="Folder for finished parts, seen by all machines; by default next to the output.")
]


@plainly
def propose_command(
    source: _Source,
    output: _Output,
    mode: _Mode = "fast",
    num_proc: _NumProc = None,
    max_proposals: _Most = 500,
    min_size: _MinSize = 20,
    max_side: _MaxSide = 1000,
    as_cap2det: _AsCap2Det = False,
    file: _File = None,
    seed: _Seed = 0,
    aggregate: _Aggregate = None,
    drop_empty: _DropEmpty = False,
    images: _Images = None,
    column: _Column = None,
    objects: _Objects = None,
    allow_outside: _AllowOutside = False,
    download: _Download = False,
    part_images: _PartImages = 100,
    parts: _Parts = None,
    overwrite: Annotated[bool, typer.Option(help="Replace an output and proposals that exist.")] = False,
    as_json: AsJson = False,
) -> None:
    """Find region proposals, boxes that may hold an object, and save them with the images and their captions.

    The result has one row per image: its captions as a list, and the column `proposals`. The same command
    continues an interrupted run. On several machines: `accelerate launch -m hf_curriculum.cli propose ...` or
    `torchrun`, with OUTPUT on a disk that all see; each process searches its part.
    """
    from hf_curriculum.parts import launched
    from hf_curriculum.scored_data import validate_splits
    from hf_curriculum.tasks.detection.proposals import add_proposals

    begin, (rank, world_size) = time.perf_counter(), launched()
    validate_output(output)
    if not overwrite and any((output / name).is_file() for name in ("state.json", "dataset_dict.json")):
        if rank == 0:
            raise ValueError(f"{output} is there already. Pass --overwrite, or name another.")
        return
    if output.exists() and output.resolve() == Path(source).resolve():
        raise ValueError(f"{output} is what is read, and it cannot be replaced meanwhile. Name another output.")
    options = {"mode": mode, "min_size": min_size, "max_side": max_side, "max_proposals": max_proposals, "seed": seed}
    found_by = _proposals_from(file, as_cap2det, options)
    hide_bars_unless_watched()
    reading = {"images": images, "objects": objects, "allow_outside": allow_outside, "download": download}
    data = _one_row_per_image(_load(source, reading, column_mapping(column), num_proc), _pairs(aggregate))
    validate_splits(data, output)
    folder = parts or output.with_name(f"{output.name}.parts")
    if parts is None:
        refuse_link(folder)
    saving = {"num_proc": num_proc, "part_images": part_images, "folder": folder, "overwrite": overwrite}
    try:
        boxed = add_proposals(data, found_by, drop_empty=drop_empty, first_only=True, **saving)
    except KeyboardInterrupt:
        note(f"\nInterrupted. Finished parts are kept in {folder}; the same command continues:\n  {typed_again()}")
        raise
    if boxed is None:
        note(f"process {rank} of {world_size}: its share is done")
        return
    _save_and_print(boxed, output, begin, as_json)
    if parts is None:
        shutil.rmtree(folder)


def _proposals_from(file: Path | None, as_cap2det: bool, options: dict[str, Any]) -> Any:
    """What finds the proposals; an error for options that would not count."""
    from hf_curriculum.data.proposals import SelectiveSearch, StoredProposals

    most = options.pop("max_proposals") or None
    changed = [name for name, value in (("mode", "fast"), ("max_side", 1000)) if options[name] != value]
    given = file is not None and as_cap2det
    if given or ((file is not None or as_cap2det) and changed):
        what = "--file" if file is not None else "--as-cap2det"
        names = ["--as-cap2det"] if given else [f"--{name.replace('_', '-')}" for name in changed]
        raise typer.BadParameter(f"{' and '.join(names)} would not count with {what}. Leave it out.", param_hint=what)
    if file is not None:
        return StoredProposals(file, most, min_size=options["min_size"], seed=options["seed"])
    if as_cap2det:
        search = SelectiveSearch.as_cap2det(max_proposals=most, seed=options["seed"])
        search.min_size = options["min_size"]
        return search
    return SelectiveSearch(max_proposals=most, **{**options, "max_side": options["max_side"] or None})


def _load(source: str, reading: dict[str, Any], columns: Any, num_proc: int | None) -> Dataset | DatasetDict:
    """Images with ids, and captions and objects where there are some."""
    from hf_curriculum.data.load import load_captioned
    from hf_curriculum.data.readers.outside_files import load_saved
    from hf_curriculum.data.request import is_saved
    from hf_curriculum.tasks.detection.load import load_objects

    path = Path(source)
    alone = {name: value for name, value in {**reading, "column": columns}.items() if value}
    if is_saved(path):
        _validate_alone(alone, f"{path} is a saved data set")
        return load_saved(path, allow_outside=reading["allow_outside"])
    if _only_images(path):
        _validate_alone(alone, f"{path} is a folder of images")
        return _of_folder(path)
    if (path / "JPEGImages").is_dir() or (path.name.startswith("instances") and path.is_file()):
        kept = {name: alone.pop(name) for name in ("images", "allow_outside") if name in alone}
        _validate_alone(alone, f"{path} holds objects and no captions")
        return load_objects(path, **kept)
    # an image that cannot be read is found when it is searched
    return load_captioned(source, columns=columns, check_images=False, num_proc=num_proc, **reading)


def _validate_alone(options: dict[str, Any], because: str) -> None:
    if options:
        names = " and ".join(f"--{name.replace('_', '-')}" for name in options if name != "allow_outside")
        if names:
            raise typer.BadParameter(f"{names} would have no effect: {because}. Leave it out.")


def _only_images(folder: Path) -> bool:
    """Whether a folder holds images alone, in subfolders or not."""
    from hf_curriculum.config import IMAGE_SUFFIXES
    from hf_curriculum.data.readers.folder import find_files

    files = find_files(folder, ("",))
    return folder.is_dir() and all(file.suffix.lower() in IMAGE_SUFFIXES for file in files)


def _of_folder(folder: Path) -> Dataset:
    """The images of a folder; the paths in it are their ids."""
    from datasets import Dataset, Image

    from hf_curriculum.columns import IMAGE, IMAGE_ID
    from hf_curriculum.data.readers.folder import find_files
    from hf_curriculum.data.readers.outside_files import validate_inside

    files = find_files(folder, ("",))
    if not files:
        raise ValueError(f"{folder} holds no image. Name a folder of images, or a data set.")
    validate_inside([str(file.absolute()) for file in files], [folder], folder)
    ids = [file.relative_to(folder).as_posix() for file in files]
    rows = {IMAGE: [str(file.absolute()) for file in files], IMAGE_ID: ids}
    return Dataset.from_dict(rows).cast_column(IMAGE, Image())


def _pairs(given: list[str] | None) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in given or []]
    for name, equals, how in pairs:
        if not (name and equals and how):
            raise typer.BadParameter(f"{name!r} is not COLUMN=HOW, as in difficulty=mean.", param_hint="--aggregate")
    return {name: how for name, _, how in pairs}


def _one_row_per_image(data: Dataset | DatasetDict, aggregate: dict[str, Any]) -> Dataset | DatasetDict:
    """Captions as a list, where there are captions that are none yet."""
    from datasets import DatasetDict

    from hf_curriculum.columns import CAPTION
    from hf_curriculum.data.captions import holds_text
    from hf_curriculum.data.grouping import group_captions

    parts = list(data.values()) if isinstance(data, DatasetDict) else [data]
    if all(CAPTION in part.column_names and holds_text(part, CAPTION) for part in parts):
        return group_captions(data, aggregate)
    if aggregate:
        raise typer.BadParameter(
            "The data has no captions to be grouped, one row per image. Leave it out.", param_hint="--aggregate"
        )
    return data


def _save_and_print(boxed: Dataset | DatasetDict, output: Path, begin: float, as_json: bool) -> None:
    """Saves rows whose images could be read, and prints how many boxes they have."""
    import numpy as np
    from datasets import Dataset, DatasetDict

    from hf_curriculum.provenance import read_provenance
    from hf_curriculum.scored_data import save_scored
    from hf_curriculum.tasks.detection.proposals import proposal_counts

    splits = {"": boxed} if isinstance(boxed, Dataset) else dict(boxed)
    counts = {name: proposal_counts(part) for name, part in splits.items()}
    kept = {name: part.select(np.flatnonzero(counts[name] >= 0)) for name, part in splits.items()}
    known = np.concatenate([values[values >= 0] for values in counts.values()])
    if not len(known):
        raise ValueError("No image has proposals: none could be read, or the file has none of them. Nothing is saved.")
    result = kept[""] if isinstance(boxed, Dataset) else DatasetDict(kept)
    if any(read_provenance(part) for part in kept.values()):
        save_scored(result, output)
    else:
        with staged_folder(output) as folder:
            result.save_to_disk(str(folder))
    facts = {
        "images": len(known),
        "boxes": int(known.sum()),
        "median": float(np.median(known)),
        "without": int((known == 0).sum()),
        "left_out": int(sum((values < 0).sum() for values in counts.values())),
        "seconds": round(time.perf_counter() - begin, 1),
    }
    line = f"{facts['images']:,} images, {facts['boxes']:,} boxes, median {facts['median']:g} of an image, "
    say(f"{line}{facts['seconds']:.0f} s", facts, as_json)
    if facts["left_out"]:
        note(f"{facts['left_out']:,} images cannot be read, or have no proposals in the file, and are left out")
    if facts["without"]:
        note(f"{facts['without']:,} images have no proposal: a detector sees nothing of them (--drop-empty)")
    note(f"saved to {output}")


BOXES_FILE = "boxes.json"
"""What was found, beside the drawn pictures."""


@plainly
def detect_command(
    model: Annotated[str, typer.Argument(help="Folder or Hub name of a detector, or the folder of a run.")],
    images: Annotated[list[Path], typer.Argument(help="Image files, and folders of them.")],
    output: Annotated[
        Path | None, typer.Option(help="A folder for the images with boxes drawn on them, and boxes.json.")
    ] = None,
    threshold: Annotated[float, typer.Option(help="Keep boxes with scores above this.", min=0, max=1)] = 0.1,
    max_boxes: Annotated[int, typer.Option(help="Boxes of an image at most.", min=1)] = 20,
    as_json: AsJson = False,
) -> None:
    """Find the objects in each image: a line for each box with the file, class, score, left, top, right and bottom.

    A detector of this library searches region proposals first. Images that cannot be read are named on standard error,
    and the exit status is then 1.
    """
    files = list(image_files(images, ids=False))
    names = drawn_names(files)
    if output is not None:
        _validate_output(output, files, names)
    detector, processor = load_object_detector(model)
    found: list[dict[str, Any]] = []
    for file in files:
        image, error = read_image(file)
        if error is not None:
            found.append({"image": str(file), "objects": None, "error": error})
            note(one_line(error, 300))
            continue
        objects = detect(detector, processor, image, threshold, max_boxes)
        found.append({"image": str(file), "objects": objects})
        if not as_json:
            for item in objects:
                edges = " ".join(f"{edge:.1f}" for edge in item["box"])
                typer.echo(f"{one_line(str(file))}\t{one_line(item['label'])}\t{item['score']:.3f}\t{edges}")
            if not objects:
                note(f"{one_line(str(file))}: nothing above {threshold:g}.")
        if output is not None:
            _draw(image, objects, detector.config.id2label.values(), output / names[file])
    if output is not None:
        write_atomically(output / BOXES_FILE, json.dumps(found, indent=1, ensure_ascii=False) + "\n")
        note(f"{output}: {sum(entry['objects'] is not None for entry in found)} images, and {BOXES_FILE}.")
    if as_json:
        say("", found, as_json)
    if unread := sum(entry["objects"] is None for entry in found):
        note(f"Error: {unread} of {len(found)} images could not be read.")
        raise typer.Exit(1)


def load_object_detector(name: str) -> tuple[Any, Any]:
    """A detector, on a GPU where there is one, and its image processor."""
    import torch
    from transformers import AutoConfig, AutoImageProcessor, AutoModelForObjectDetection

    import hf_curriculum.models  # noqa: F401  (known to the Auto classes from here on)
    from hf_curriculum.studies.recipe import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    folder = model_of(name)
    try:
        config = AutoConfig.from_pretrained(folder)
    except OSError as error:
        reason = " ".join(str(error).split())
        raise FileNotFoundError(f"There is no detector {name}: no such folder here, and {reason}") from error
    if type(config) not in AutoModelForObjectDetection._model_mapping:
        raise ValueError(
            f"{name} is a {type(config).__name__}, and no detector: it gives no boxes. Name a model of "
            "AutoModelForObjectDetection, such as a WSDDN that was trained with a DetectionCollator."
        )
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu"
    detector = AutoModelForObjectDetection.from_pretrained(folder).eval().to(device)
    return detector, AutoImageProcessor.from_pretrained(folder, backend="pil")


def detect(detector: Any, processor: Any, image: Any, threshold: float, most: int) -> list[dict[str, Any]]:
    """The objects in an image, the highest score first: `label`, `score` and `box` (left, top, right, bottom)."""
    import torch

    from hf_curriculum.tasks.detection.image_processing import WsddnImageProcessor

    inputs = processor(images=[image], return_tensors="pt").to(detector.device)
    with torch.inference_mode():
        outputs = detector(**inputs)
    more = {"max_detections": most} if isinstance(processor, WsddnImageProcessor) else {}
    [found] = processor.post_process_object_detection(outputs, threshold, [(image.height, image.width)], **more)
    best = torch.sort(found["scores"], descending=True, stable=True).indices[:most]
    names = detector.config.id2label
    return [
        {
            "label": str(names.get(int(found["labels"][row]), int(found["labels"][row]))),
            "score": round(float(found["scores"][row]), 4),
            "box": [round(edge, 1) for edge in found["boxes"][row].tolist()],
        }
        for row in best.tolist()
    ]


def drawn_names(files: list[Path]) -> dict[Path, str]:
    """The name of each drawn picture: the file's, as a PNG; with a number where two are called the same."""
    names: dict[Path, str] = {}
    taken, numbers = set(), defaultdict(int)
    for file in files:
        name = f"{file.stem}.png"
        while name in taken:
            numbers[file.stem] += 1
            name = f"{file.stem}-{numbers[file.stem] + 1}.png"
        taken.add(name)
        names[file] = name
    return names


def _validate_output(output: Path, files: list[Path], names: dict[Path, str]) -> None:
    """An error where drawn images cannot be written, or would replace those that are read."""
    refuse_file(output)
    given = {file.resolve() for file in files}
    for name in names.values():
        if (output / name).resolve() in given:
            raise ValueError(
                f"{output / name} is one of the images that are read, and the drawn one would replace it. Name "
                "another folder: `--output`."
            )


def _draw(image: Any, objects: list[dict[str, Any]], classes: Iterable[str], file: Path) -> None:
    """Writes an image with boxes; each class has its colour in all images."""
    from hf_curriculum.tasks.detection.boxes import draw_boxes

    numbers = {label: number for number, label in enumerate(classes)}
    texts = [f"{item['label']} {item['score']:.2f}" for item in objects]
    colours = [numbers[item["label"]] for item in objects]
    with new_file(file) as temporary:
        draw_boxes(image, [item["box"] for item in objects], texts, colours).save(temporary)
