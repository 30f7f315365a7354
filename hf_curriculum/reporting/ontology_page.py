"""A page to review an ontology by: its tree, its nouns with the doubtful first, and images of those."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from xxhash import xxh3_64_intdigest

from hf_curriculum.columns import CAPTION, IMAGE, IMAGE_ID
from hf_curriculum.planning.ontology.nouns import find_nouns
from hf_curriculum.planning.ontology.objects import ImageObjects, read_objects
from hf_curriculum.planning.ontology.review import HEAD, review_rows
from hf_curriculum.reporting.figures.ontology import ontology_sizes
from hf_curriculum.reporting.inspection import images_of
from hf_curriculum.reporting.report import CaptionGallery, CaptionLine, Report

if TYPE_CHECKING:
    from datasets import Dataset

    from hf_curriculum.planning.ontology.entries import NounClass
    from hf_curriculum.planning.ontology.ontology import Ontology

_SHOWN = 8  # classes named beside an image


def ontology_report(
    ontology: Ontology,
    pairs: Dataset,
    title: str = "Ontology",
    *,
    objects: Any = None,
    nouns: int = 24,
    examples: int = 3,
) -> Report:
    """The tree, the sizes, every noun with the doubtful first, and example images of the doubtful ones.

    Args:
        ontology: to be reviewed.
        pairs: that it was induced from, or others with the same columns.
        title: of the page.
        objects: the classes that images show, as of `Ontology.induce`; by default what it was given.
        nouns: doubtful nouns with examples.
        examples: pairs of each, evenly by a hash of their text, so that nobody has chosen them.

    Raises:
        ValueError: it is not known where objects are.

    Example:
        >>> ontology_report(ontology, pairs).write("page")  # doctest: +SKIP
    """
    objects = ontology.objects if objects is None else objects
    if objects is None or objects is False:
        raise ValueError("It is not known which objects the images show. Pass `objects=`, the store or the column.")
    report = Report(title, "Nouns of captions, and the class of objects that each means")
    report.add_facts(
        {
            "Triplets": ontology.counts.get("triplets", 0),
            "Classes": (len(ontology.sizes), f"{len(ontology.dropped)} too small"),
            "Nouns": (len(ontology.nodes), f"{len(ontology.corrections)} corrected by hand"),
            "Pairs": (ontology.counts.get("pairs_with_objects", 0), "with objects"),
            "Images": (ontology.counts.get("images_with_objects", 0), "with objects"),
            "Doubtful": sum(noun.doubtful and not noun.corrected for noun in ontology.nouns),
        }
    )
    report.add_text("Tree", ontology.tree(), monospace=True)
    report.add_figure("Sizes", partial(ontology_sizes, ontology), name="ontology_sizes")
    note = "Share: of the noun's pairs, those whose image shows the class. Second: by PMI. Doubtful ones come first."
    report.add_table("Nouns", [*HEAD[:-1], "remark"], review_rows(ontology), note=note, align="llrrrrlll")
    doubtful = [noun for noun in ontology.review() if noun.doubtful and not noun.corrected][:nouns]
    if doubtful:
        _add_examples(report, ontology, pairs, objects, doubtful, examples)
    return report


def _add_examples(
    report: Report, ontology: Ontology, pairs: Dataset, objects: Any, nouns: list[NounClass], examples: int
) -> None:
    """Pairs whose caption has a doubtful noun, with what their image shows."""
    wanted = {noun.noun for noun in nouns}
    mentions = find_nouns(pairs, ontology.tagger, ontology.lemmas, only=wanted)
    found = read_objects(pairs, objects, min_confidence=ontology.settings.get("min_confidence", 0.0))
    mentions = mentions.keep(found.has_any[found.images[mentions.rows]])
    first = True
    for noun in nouns:
        if noun.noun not in mentions.nouns:
            continue
        rows = mentions.rows[mentions.codes == mentions.nouns.index(noun.noun)]
        texts = pairs.select_columns([IMAGE_ID, CAPTION]).select(rows).with_format(None)
        keys = [xxh3_64_intdigest(f"{row[IMAGE_ID]}\n{row[CAPTION]}".encode()) for row in texts]
        chosen = rows[np.argsort(keys, kind="stable")[:examples]]
        shown = [_shown(found, int(row)) for row in chosen]
        captions = [pairs.select_columns([CAPTION])[int(row)][CAPTION] for row in chosen]
        title = "Doubtful nouns" if first else None
        about = f"**{noun.noun}** → {noun.node}: {noun.joint:,} of {noun.pairs:,} pairs; "
        about += f"second {noun.runner_up or '–'}; most images show {noun.commonest or '–'}."
        if IMAGE in pairs.column_names:
            lines = [
                [CaptionLine("caption", caption), CaptionLine("shows", names)]
                for caption, names in zip(captions, shown, strict=True)
            ]
            items = list(zip(images_of(pairs, chosen.tolist()), lines, strict=True))
            report.add_gallery(CaptionGallery(title, items, about))
        else:
            lines = [f"- {caption} (shows {names})" for caption, names in zip(captions, shown, strict=True)]
            report.add_text(title, "\n\n".join([about, "\n".join(lines)]))
        first = False


def _shown(found: ImageObjects, row: int) -> str:
    """The classes that the image of a row shows."""
    place = found.images[row]
    names = [found.names[at] for at in found.classes[found.offsets[place] : found.offsets[place + 1]]]
    return ", ".join(names[:_SHOWN]) + (f", … {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
