"""`hf-curriculum ontology`: which class of objects each noun of the captions means."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hf_curriculum.cli.common import (
    WITHOUT_SPLITS,
    AsJson,
    Split,
    hide_bars_unless_watched,
    lines_of,
    note,
    plainly,
    say,
)

if TYPE_CHECKING:
    from datasets import Dataset

    from hf_curriculum.planning.ontology.ontology import Ontology

_Pairs = Annotated[
    str,
    typer.Argument(help="Captioned images: a folder, a caption file, a saved data set or a name, as of `score`."),
]
_Objects = Annotated[
    list[str],
    typer.Option(
        help="Which objects the images show: a column of the data, a store of `features`, a file of regions with "
        "classes (VinVL's .tsv), or COCO's instances_*.json. Several files are one source."
    ),
]
_MinPairs = Annotated[int, typer.Option(help="Pairs that a noun and a class have in common at least.", min=1)]
_MinInstances = Annotated[int, typer.Option(help="Examples of a class at least.", min=1)]
_MinConfidence = Annotated[float, typer.Option(help="Confidence below which objects do not count.", min=0, max=1)]
_Corrections = Annotated[
    Path | None, typer.Option(help="A YAML or JSON file with lines `noun: class`, or `noun: null` to leave one out.")
]
_Review = Annotated[
    Path | None, typer.Option(help="Write all nouns as such a file, the doubtful first, to be edited by hand.")
]
_Html = Annotated[Path | None, typer.Option(help="Also write a page with example images into this folder.")]
_Images = Annotated[
    str | None, typer.Option(help="The folder of a caption file's images, or `none` to load text alone.")
]


@plainly
def ontology_command(
    pairs: _Pairs,
    objects: _Objects = ["objects"],  # noqa: B006  # typer copies it
    min_pairs: _MinPairs = 20,
    min_instances: _MinInstances = 5000,
    min_confidence: _MinConfidence = 0.0,
    corrections: _Corrections = None,
    output: Annotated[Path | None, typer.Option(help="Write the ontology into this file (.json).")] = None,
    review: _Review = None,
    html: _Html = None,
    split: Split = WITHOUT_SPLITS,
    images: _Images = None,
    tagger: Annotated[str, typer.Option(help="What finds nouns: pattern, or nltk.")] = "pattern",
    lemmas: Annotated[str, typer.Option(help="Their singular: spelling, or wordnet.")] = "spelling",
    examples: Annotated[int, typer.Option(help="Nouns to print, the doubtful first.", min=0)] = 20,
    num_proc: Annotated[int | None, typer.Option(help="Processes that tag captions.", min=1)] = None,
    as_json: AsJson = False,
) -> None:
    """Map nouns of captions to classes of objects, for batches that share an object (NodeSampling).

    Each noun gets the class it has the highest pointwise mutual information with. That errs on real data: read the
    doubtful nouns, which come first, correct them in a file (--review writes it), and give it as --corrections.
    """
    hide_bars_unless_watched()
    if review is not None and review.exists():
        raise typer.BadParameter(
            f"{review} is there already, and may hold corrections made by hand. Name another file, or remove it.",
            param_hint="--review",
        )
    from hf_curriculum.planning.ontology.ontology import Ontology

    images = "none" if html is None and images is None else images  # they are shown on the page alone
    data, source = _load(pairs, objects, split, images)
    options: dict[str, Any] = {"tagger": tagger, "lemmas": lemmas, "min_confidence": min_confidence}
    options |= {"min_pairs": min_pairs, "min_instances": min_instances, "num_proc": num_proc}
    made = Ontology.induce(data, source, corrections=corrections, **options)
    say(_text(made, examples), made.to_dict(), as_json)
    if review is not None:
        from hf_curriculum.planning.ontology.review import write_review

        write_review(made, review)
        note(f"to correct by hand: {review}, then --corrections {review}")
    if html is not None:
        from hf_curriculum.reporting.ontology_page import ontology_report

        note(f"page: {ontology_report(made, data, Path(pairs).name).write(html)}")
    if output is not None:
        made.save(output)
        note(f"saved to {output}")


def _load(pairs: str, objects: list[str], split: str, images: str | None) -> tuple[Dataset, Any]:
    """The pairs of a split, and what says which objects their images show."""
    from datasets import DatasetDict

    from hf_curriculum.data.load import load_captioned

    instances = [one for one in objects if one.lower().endswith((".json", ".json.gz"))]
    if instances and len(objects) > 1:
        raise typer.BadParameter(
            "COCO's instances stand beside other files, and are joined with captions alone. Name one of them.",
            param_hint="--objects",
        )
    options: dict[str, Any] = {"images": False if images == "none" else images, "check_images": False}
    data = load_captioned(pairs, objects=instances[0] if instances else None, **options)
    if isinstance(data, DatasetDict):
        if split not in data:
            raise typer.BadParameter(f"{pairs} has the splits {list(data)}, and not {split!r}.", param_hint="--split")
        data = data[split]
    if instances:
        return data, "objects"
    return data, objects[0] if len(objects) == 1 else objects


def _text(made: Ontology, examples: int) -> str:
    from hf_curriculum.planning.ontology.review import HEAD, review_rows

    counts = made.counts
    lines = [
        f"{counts['pairs']:,} pairs, {counts['images']:,} images; with objects "
        f"{counts['pairs_with_objects']:,} pairs, {counts['images_with_objects']:,} images",
        f"{len(made.nouns):,} nouns, {len(made.corrections):,} corrected by hand; selected {len(made.nodes):,} nouns "
        f"→ {len(made.sizes):,} classes, {len(made.dropped):,} classes too small; {counts['triplets']:,} triplets",
    ]
    parts = ["\n".join(lines), made.tree()]
    if examples:
        parts.append(lines_of(HEAD, review_rows(made, examples), left=2))
    return "\n\n".join(parts)
