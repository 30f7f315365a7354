"""A page about a model's retrieval: values, differences, classes, and what queries found beside what was right."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hf_curriculum.columns import IMAGE
from hf_curriculum.reporting.inspection import images_of
from hf_curriculum.reporting.report import CaptionGallery, CaptionLine, Gallery, Report
from hf_curriculum.shapes import validate_arguments
from hf_curriculum.tasks.alignment.retrieval.compare import TITLES

if TYPE_CHECKING:
    from datasets import Dataset

    from hf_curriculum.tasks.alignment.retrieval.suite import RetrievalEvaluation


@validate_arguments
def retrieval_report(
    found: RetrievalEvaluation, images: Dataset, title: str, *, examples: int = 4, shown: int = 3
) -> Report:
    """The tables of an evaluation, and queries of both ways with what they found.

    Args:
        found: what `RetrievalSuite` found.
        images: its `images`; without a column of images the galleries are left out.
        title: of the page.
        examples: queries each way.
        shown: what each of them found, the best ones.

    Raises:
        ValueError: not a row per evaluated image.

    Source: TOnICS, Figure 1 (what a hard minibatch asks for is told apart in images of one object).

    Example:
        >>> retrieval_report(suite(scores), suite.images, "Flickr30k").write("evaluation/page")  # doctest: +SKIP
    """
    if len(images) != len(found.image_ids):
        raise ValueError(
            f"There are {len(images):,} rows of images for the ranks of {len(found.image_ids):,}. Queries would be "
            "shown with other images. Pass the suite's `images`."
        )
    report = Report(title, f"{found.name}: {len(found.captions):,} captions, {len(found.image_ids):,} images")
    values = found.values
    report.add_facts(
        {
            label: f"{values[name]:g}" if "rank" in name else f"{100 * values[name]:.1f}"
            for name, label in TITLES.items()
            if "r10" not in name
        }
    )
    for heading, columns, rows, notes in found.tables():
        report.add_table(heading or "Values", columns, rows, note=" ".join(notes))
    if IMAGE in images.column_names:
        add_image_queries(report, found, images, examples, shown)
        add_text_queries(report, found, images, examples, shown)
    return report


def add_image_queries(
    report: Report, found: RetrievalEvaluation, images: Dataset, examples: int = 4, shown: int = 3
) -> None:
    """Captions with the images that they found and their own image, from the best rank to the worst."""
    ranks = found.ranks[found.name]
    for number, text in enumerate(_evenly(ranks.image, examples)):
        right = int(ranks.image_of_text[text])
        top = found.similarities.top_images(text, shown).tolist()
        rows = [*top, *([] if right in top else [right])]
        notes = [f"{at}." if row != right else f"{at}. right" for at, row in enumerate(top, start=1)]
        notes += [] if right in top else [f"right, rank {ranks.image[text]:,}"]
        items = [(image, note, "") for image, note in zip(images_of(images, rows), notes, strict=True)]
        title = None if number else "Images found"
        report.add_gallery(Gallery(title, items, f"**{_escaped(found.captions[text])}**"))


def add_text_queries(
    report: Report, found: RetrievalEvaluation, images: Dataset, examples: int = 4, shown: int = 3
) -> None:
    """Images with the captions that they found and their own best one, from the best rank to the worst."""
    ranks, items = found.ranks[found.name], []
    asked = np.flatnonzero(ranks.text)
    chosen = asked[_evenly(ranks.text[asked], examples)].tolist()
    for row, image in zip(chosen, images_of(images, chosen), strict=True):
        top = found.similarities.top_texts(row, len(found.captions)).tolist()
        lines = [
            CaptionLine(f"{at}." + " right" * own, found.captions[text], float(own))
            for at, text in enumerate(top[:shown], start=1)
            for own in [bool(ranks.image_of_text[text] == row)]
        ]
        if not any(line.ease for line in lines):
            best = next(text for text in top if ranks.image_of_text[text] == row)
            lines.append(CaptionLine(f"right, rank {ranks.text[row]:,}", found.captions[best], 1.0))
        items.append((image, lines))
    report.add_gallery(CaptionGallery("Captions found", items, "From the best rank to the worst, evenly."))


def _evenly(ranks: np.ndarray, number: int) -> list[int]:
    """Rows evenly through the order of their ranks, the best and the worst among them."""
    order = np.argsort(ranks, kind="stable")
    places = np.linspace(0, len(order) - 1, min(number, len(order))).round().astype(int)
    return order[places].tolist()


def _escaped(caption: str) -> str:
    """A caption in which no mark of `prose` is left."""
    return " ".join(caption.replace("*", "").replace("`", "").split())
