"""An ontology for people to review: a table and a page."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml
from xxhash import xxh3_64_intdigest

from hf_curriculum.columns import CAPTION, IMAGE, IMAGE_ID
from hf_curriculum.files import resolved, write_atomically
from hf_curriculum.reporting.inspection import images_of
from hf_curriculum.reporting.report import CaptionGallery, CaptionLine, Report
from hf_curriculum.shapes import validate_arguments
from hf_curriculum.tasks.alignment.figures import ontology_sizes
from hf_curriculum.tasks.alignment.ontology.induce import NounClass
from hf_curriculum.tasks.alignment.ontology.objects import ImageObjects, read_objects
from hf_curriculum.tasks.alignment.ontology.ontology import Ontology

if TYPE_CHECKING:
    from datasets import Dataset

    from hf_curriculum.tasks.alignment.ontology.induce import NounClass
    from hf_curriculum.tasks.alignment.ontology.ontology import Ontology

HEAD = ("noun", "class", "pairs", "with it", "share", "PMI", "second", "most show", "")
"""Columns of `review_rows`."""
_PLAIN = re.compile(r"[a-z][a-z -]*[a-z]")


def review_rows(ontology: Ontology, most: int | None = None) -> list[tuple[str, ...]]:
    """Nouns for a table with the columns `HEAD`, the doubtful first."""
    rows = []
    for noun in ontology.review()[:most]:
        node = "–" if noun.node is None else noun.node
        left_out = noun.node is not None and noun.node not in ontology.sizes
        remarks = [f"was {noun.proposed or 'without'}"] * noun.corrected + ["too few"] * left_out
        remarks += ["doubtful"] * (noun.doubtful and not noun.corrected)
        pmi = "–" if noun.pmi is None else f"{noun.pmi:.2f}"
        rest = (noun.runner_up or "–", noun.commonest or "–", ", ".join(remarks))
        rows.append((noun.noun, node, f"{noun.pairs:,}", f"{noun.joint:,}", f"{100 * noun.share:.0f} %", pmi, *rest))
    return rows


def write_review(ontology: Ontology, path: str | Path) -> None:
    """Writes the nouns as a YAML file of corrections, the doubtful first: edit it and give it as `corrections`.

    Each line is `noun: class`; what is left as it is corrects nothing.

    Args:
        ontology: whose nouns.
        path: the file.

    Raises:
        FileExistsError: there is one, which may hold corrections.

    Example:
        >>> write_review(ontology, "mine.yaml")  # doctest: +SKIP
    """
    if Path(path).exists():
        raise FileExistsError(
            f"{path} is there already, and may hold corrections made by hand. Name another file, or remove it."
        )
    nouns = ontology.review()
    doubtful = [_line(noun) for noun in nouns if noun.doubtful]
    others = [_line(noun) for noun in nouns if not noun.doubtful]
    head = [
        f"# {len(nouns)} nouns and the class that each means, the {len(doubtful)} doubtful ones first. Change a",
        "# class, or write null to leave a noun out, and give this file as corrections. Beside each: the share of its",
        "# pairs whose image shows the class, their number, the PMI, the class of second highest PMI, the commonest.",
    ]
    between = ["# Not doubtful:"] if others else []
    write_atomically(resolved(path), "\n".join([*head, *doubtful, *between, *others]) + "\n")


def _line(noun: NounClass) -> str:
    pmi = "" if noun.pmi is None else f", PMI {noun.pmi:.2f}"
    facts = f"{100 * noun.share:.0f} % of {noun.pairs}{pmi}; second {noun.runner_up or 'none'}; "
    facts += f"most show {noun.commonest or 'none'}"
    was = f"; was {noun.proposed}" if noun.corrected else ""
    remark = " ".join(f"{facts}{was}".split())  # a class may be called anything, and a line would end the remark
    return f"{_quoted(noun.noun)}: {'null' if noun.node is None else _quoted(noun.node)}  # {remark}"


def _quoted(name: str) -> str:
    """A name that YAML reads as such: bare where it can be."""
    if _PLAIN.fullmatch(name) and yaml.safe_load(name) == name:
        return name
    return yaml.safe_dump(name, default_style='"', width=10_000, allow_unicode=True).strip()


_SHOWN = 8  # classes named beside an image


@validate_arguments
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
    mentions = ontology.mentions(pairs, only=wanted)
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
