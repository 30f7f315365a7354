"""A page about a captioner's captions: values, differences, and images with what each system wrote."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hf_curriculum.columns import IMAGE
from hf_curriculum.reporting.inspection import images_of
from hf_curriculum.reporting.report import CaptionGallery, CaptionLine, Report
from hf_curriculum.shapes import validate_arguments
from hf_curriculum.tasks.captioning.suite import TITLES

if TYPE_CHECKING:
    from datasets import Dataset

    from hf_curriculum.tasks.captioning.suite import CaptionEvaluation

REFERENCES = 2
"""References shown of an image."""


@validate_arguments
def caption_report(found: CaptionEvaluation, images: Dataset, title: str, *, examples: int = 3) -> Report:
    """The tables of an evaluation, and a gallery per set of difficulty or domain; of all images where there is none.

    Args:
        found: what `CaptionSuite` found.
        images: its `images`; without a column of images the galleries are left out.
        title: of the page.
        examples: images of each set.

    Raises:
        ValueError: not a row per evaluated image.

    Source: Simi-CL, Tables 1 and 2 and Figure 3.

    Example:
        >>> caption_report(suite(captions), suite.images, "COCO, test").write("evaluation/page")  # doctest: +SKIP
    """
    if len(images) != len(found.image_ids):
        raise ValueError(
            f"There are {len(images):,} rows of images for captions of {len(found.image_ids):,}. The captions would "
            "be shown with other images. Pass the suite's `images`."
        )
    report = Report(title, f"{found.name}: {len(found.image_ids):,} images")
    report.add_facts({TITLES[name]: f"{100 * value:.1f}" for name, value in found.values.items()})
    for heading, columns, rows, notes in found.tables():
        report.add_table(heading or "Values", columns, rows, note=" ".join(notes))
    if IMAGE in images.column_names:
        sets = found.sets.get("difficulty") or next(iter(found.sets.values()), None)
        for name, own in (sets or {"Images": np.arange(len(images))}).items():
            add_captions_of_systems(report, found, images, own, name[:1].upper() + name[1:], examples)
    return report


def add_captions_of_systems(
    report: Report,
    found: CaptionEvaluation,
    images: Dataset,
    rows: Sequence[int] | np.ndarray,
    title: str,
    examples: int = 3,
) -> None:
    """Images of a set, with what each system wrote, its CIDEr-D of the image, and references."""
    places = np.linspace(0, len(rows) - 1, min(examples, len(rows))).round().astype(int)
    chosen = [int(rows[place]) for place in places]
    per_image = {system: scores.per_image for system, scores in found.scores.items()}
    items = []
    for row, image in zip(chosen, images_of(images, chosen), strict=True):
        lines = []
        for system, captions in found.captions.items():
            value = f" ({100 * per_image[system]['cider'][row]:.1f})" if "cider" in per_image[system] else ""
            lines.append(CaptionLine(f"{system}{value}", captions[row]))
        own = found.references[row][:REFERENCES]
        items.append(
            (image, [*lines, *(CaptionLine(f"reference {at}", text) for at, text in enumerate(own, start=1))])
        )
    about = "In brackets: CIDEr-D of the image, times 100. Images evenly through the set, none of them chosen."
    report.add_gallery(CaptionGallery(title, items, about))
