"""`hf-curriculum detect`: the objects that a trained detector finds in images."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from hf_curriculum.cli.caption import image_files, read_image
from hf_curriculum.cli.common import AsJson, model_of, note, plainly, say
from hf_curriculum.markdown import one_line

BOXES_FILE = "boxes.json"
"""What was found, beside the drawn pictures."""


@plainly
def detect_command(
    model: Annotated[str, typer.Argument(help="Folder or Hub name of a detector, or the folder of a run.")],
    images: Annotated[list[Path], typer.Argument(help="Image files, and folders of them.")],
    output: Annotated[
        Path | None, typer.Option(help="A folder for the images with boxes drawn on them, and boxes.json.")
    ] = None,
    threshold: Annotated[float, typer.Option(help="Scores of boxes are above it.", min=0, max=1)] = 0.1,
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
    detector, processor = load_detector(model)
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
        output.mkdir(parents=True, exist_ok=True)
        (output / BOXES_FILE).write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        note(f"{output}: {sum(entry['objects'] is not None for entry in found)} images, and {BOXES_FILE}.")
    if as_json:
        say("", found, as_json)
    if unread := sum(entry["objects"] is None for entry in found):
        note(f"Error: {unread} of {len(found)} images could not be read.")
        raise typer.Exit(1)


def load_detector(name: str) -> tuple[Any, Any]:
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

    from hf_curriculum.models.wsddn.image_processing import WsddnImageProcessor

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
    """A `ValueError` where drawn images cannot be written, or would replace those that are read."""
    if output.exists() and not output.is_dir():
        raise ValueError(f"{output} is a file, and drawn images go to a folder. Name another: `--output`.")
    given = {file.resolve() for file in files}
    for name in names.values():
        if (output / name).resolve() in given:
            raise ValueError(
                f"{output / name} is one of the images that are read, and the drawn one would replace it. Name "
                "another folder: `--output`."
            )


def _draw(image: Any, objects: list[dict[str, Any]], classes: Iterable[str], file: Path) -> None:
    """Writes an image with boxes; each class has its colour in all images."""
    from hf_curriculum.reporting.boxes import draw_boxes

    numbers = {label: number for number, label in enumerate(classes)}
    texts = [f"{item['label']} {item['score']:.2f}" for item in objects]
    colours = [numbers.get(item["label"], 0) for item in objects]
    file.parent.mkdir(parents=True, exist_ok=True)
    draw_boxes(image, [item["box"] for item in objects], texts, colours).save(file)
