"""`hf-curriculum ontology`, and `evaluate --suite retrieval`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hf_curriculum import __version__
from hf_curriculum.cli.common import (
    WITHOUT_SPLITS,
    AsJson,
    Split,
    hide_bars_unless_watched,
    lines_of,
    load_rows,
    model_of,
    name_of,
    named_paths,
    note,
    plainly,
    say,
)
from hf_curriculum.files import read_json

if TYPE_CHECKING:
    from datasets import Dataset

    from hf_curriculum.tasks.alignment.ontology.ontology import Ontology
    from hf_curriculum.tasks.alignment.retrieval.suite import RetrievalEvaluation, RetrievalSuite

_Pairs = Annotated[
    str, typer.Argument(help="Captioned images: a folder, a caption file, a saved data set or a name, as of `score`.")
]
_Objects = Annotated[
    list[str],
    typer.Option(
        help="Which objects the images show: a column of the data, a store of `features`, a file of regions with "
        "classes (VinVL's .tsv), or COCO's instances_*.json. Several files are one source."
    ),
]
_MinPairs = Annotated[int, typer.Option(help="Least number of pairs that a noun and a class have in common.", min=1)]
_MinInstances = Annotated[int, typer.Option(help="Least number of examples of a class.", min=1)]
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
    tagger: Annotated[str, typer.Option(help="The tagger that finds nouns: pattern, or nltk.")] = "pattern",
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
    from hf_curriculum.tasks.alignment.ontology.ontology import Ontology

    images = "none" if html is None and images is None else images  # they are shown on the page alone
    data, source = _load(pairs, objects, split, images)
    options: dict[str, Any] = {"tagger": tagger, "lemmas": lemmas, "min_confidence": min_confidence}
    options |= {"min_pairs": min_pairs, "min_instances": min_instances, "num_proc": num_proc}
    made = Ontology.induce(data, source, corrections=corrections, **options)
    say(_text(made, examples), made.to_dict(), as_json)
    if review is not None:
        from hf_curriculum.tasks.alignment.ontology.review import write_review

        write_review(made, review)
        note(f"to correct by hand: {review}, then --corrections {review}")
    if html is not None:
        from hf_curriculum.tasks.alignment.ontology.review import ontology_report

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
            "COCO's instances were given with other files, and are joined with captions alone. Name one of them.",
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
    from hf_curriculum.tasks.alignment.ontology.review import HEAD, review_rows

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


def evaluate_retrieval(
    model: str,
    data: str | None,
    *,
    output: Path,
    split: str | None,
    images: str | None,
    features: Path | None,
    protocol: str | None,
    nouns: str | None,
    ontology: Path | None,
    compare: Sequence[str] | None,
    html: Path | None,
    batch_size: int,
    limit: int | None,
    progress: bool,
) -> RetrievalEvaluation:
    """What `--suite retrieval` does."""
    from hf_curriculum.tasks.alignment.retrieval.page import retrieval_report
    from hf_curriculum.tasks.alignment.retrieval.score_captions import caption_classes, class_notes
    from hf_curriculum.tasks.alignment.retrieval.suite import RetrievalSuite

    if data is None:
        raise typer.BadParameter("Captions and images are those of a data set. Name one.", param_hint="--data")
    aligner, known = is_aligner(model_of(model)), find_ontology(model, ontology)
    _check(model, features, nouns, aligner=aligner)
    rows, split = load_rows(data, split, images, read=not aligner, shown=html is not None)
    options: dict[str, Any] = {
        "limit": limit,
        "compare": named_paths(compare or (), "--compare"),
        "name": name_of(Path(model)),
    }
    if known is not None:
        options |= {"classes": caption_classes(rows, known), "notes": class_notes(rows)}
    suite = RetrievalSuite(rows, protocol or "all", **options)
    if aligner:
        found = _with_aligner(suite, model, features, known, nouns or "mean", batch_size, progress=progress)
    else:
        found = _with_clip(suite, model, batch_size)
    about: dict[str, Any] = {
        "version": __version__,
        "model": model,
        "data": data,
        "split": split,
        "protocol": protocol or "all",
        "features": features and str(features),
        "nouns": (nouns or "mean") if aligner else None,
    }
    found.write(output, about)
    if html is not None:
        note(f"page: {retrieval_report(found, suite.images, f'Retrieval on {data}').write(html)}")
    return found


def is_aligner(name: str) -> bool:
    """Whether a folder or a repository of the Hub holds an aligner; a name of `open_clip` is none."""
    config = Path(name) / "config.json"
    if config.is_file():
        found = read_json(config, "Download or save the model again.")
        return isinstance(found, dict) and found.get("model_type") == "curriculum_aligner"
    if Path(name).exists() or "/" not in name or ":" in name:
        return False
    from transformers import PretrainedConfig

    try:
        return PretrainedConfig.get_config_dict(name)[0].get("model_type") == "curriculum_aligner"
    except OSError:  # what loads the model says what is missing
        return False


def find_ontology(model: str, given: Path | None) -> Ontology | None:
    """The ontology that is named, or the one beside a model or in its run's folder."""
    from hf_curriculum.tasks.alignment.ontology.ontology import Ontology

    if given is not None and not given.is_file():
        raise typer.BadParameter(f"There is no file {given}.", param_hint="--ontology")
    beside = [Path(model) / "ontology.json", Path(model_of(model)).parent / "ontology.json"]
    file = next((path for path in ([given] if given else beside) if path.is_file()), None)
    return None if file is None else Ontology.load(file)


def _check(model: str, features: Path | None, nouns: str | None, *, aligner: bool) -> None:
    """Refuses options that the model does not read, and an aligner without regions."""
    if aligner and features is None:
        raise typer.BadParameter(
            f"{model} is an aligner, which reads regions of images. Name the store that has them, such as "
            "`hf-curriculum features` writes it.",
            param_hint="--features",
        )
    if aligner and nouns not in (None, "mean", "max"):
        raise typer.BadParameter(f"{nouns!r} is neither mean nor max.", param_hint="--nouns")
    for option, value in (("--features", features), ("--nouns", nouns)):
        if value is not None and not aligner:
            raise typer.BadParameter(
                f"{model} is no aligner, and reads whole images and captions: it would do nothing. Leave it out.",
                param_hint=option,
            )


def _with_clip(suite: RetrievalSuite, model: str, batch_size: int) -> RetrievalEvaluation:
    """By cosines of a CLIP."""
    from hf_curriculum.columns import IMAGE, require_columns
    from hf_curriculum.scorers.alignment.clip import CLIPSimilarity
    from hf_curriculum.tasks.alignment.retrieval.score_captions import clip_similarities

    reader = "A CLIP encodes images."
    require_columns(suite.images.column_names, [IMAGE], reader=reader, remedy="Name their folder (--images FOLDER).")
    scorer = CLIPSimilarity(model_of(model), batch_size=batch_size)
    return suite(clip_similarities(suite.captions, suite.images[IMAGE], scorer))


def _with_aligner(
    suite: RetrievalSuite,
    model: str,
    features: Path | None,
    ontology: Ontology | None,
    over: str,
    batch_size: int,
    *,
    progress: bool,
) -> RetrievalEvaluation:
    """By an aligner's scores of regions."""
    import torch

    from hf_curriculum.data.image_inputs import RegionInputs
    from hf_curriculum.data.regions.open import open_regions
    from hf_curriculum.tasks.alignment.model import AlignerModel
    from hf_curriculum.tasks.alignment.processor import AlignerProcessor
    from hf_curriculum.tasks.alignment.retrieval.score_captions import aligner_scores, noun_spans

    aligner = AlignerModel.from_pretrained(model_of(model)).eval()
    aligner.to(torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu")
    processor = AlignerProcessor.from_pretrained(model_of(model))
    inputs = RegionInputs.for_model(open_regions(features), processor.image_processor)
    inputs.validate(suite.images, "the split")
    spans = noun_spans(suite.captions, ontology)
    options = {"over": over, "batch_size": batch_size, "progress": progress}
    scores = aligner_scores(aligner, processor.tokenizer, suite.captions, spans, suite.images, inputs, **options)
    return suite(scores.similarities, scores.notes)
