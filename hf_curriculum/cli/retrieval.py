"""`hf-curriculum evaluate --suite retrieval`: images found by captions, and captions by images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hf_curriculum import __version__
from hf_curriculum.cli.common import load_complete, model_of, name_of, named_paths, note
from hf_curriculum.config import read_json

if TYPE_CHECKING:
    from datasets import Dataset

    from hf_curriculum.evaluation.retrieval.suite import RetrievalEvaluation, RetrievalSuite
    from hf_curriculum.planning.ontology.ontology import Ontology


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
    from hf_curriculum.evaluation.retrieval.nouns import caption_classes, class_notes
    from hf_curriculum.evaluation.retrieval.suite import RetrievalSuite
    from hf_curriculum.reporting.retrieval_page import retrieval_report

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
    from hf_curriculum.planning.ontology.ontology import Ontology

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
    from hf_curriculum.evaluation.retrieval.score_captions import clip_similarities
    from hf_curriculum.scorers.alignment.clip import CLIPSimilarity

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
    from hf_curriculum.evaluation.retrieval.nouns import noun_spans
    from hf_curriculum.evaluation.retrieval.score_captions import aligner_scores
    from hf_curriculum.models.aligner.model import AlignerModel
    from hf_curriculum.models.aligner.processor import AlignerProcessor

    aligner = AlignerModel.from_pretrained(model_of(model)).eval()
    aligner.to(torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu")
    processor = AlignerProcessor.from_pretrained(model_of(model))
    inputs = RegionInputs.for_model(open_regions(features), processor.image_processor)
    inputs.validate(suite.images, "the split")
    spans = noun_spans(suite.captions, ontology)
    options = {"over": over, "batch_size": batch_size, "progress": progress}
    scores = aligner_scores(aligner, processor.tokenizer, suite.captions, spans, suite.images, inputs, **options)
    return suite(scores.similarities, scores.notes)


def load_rows(
    data: str, split: str | None, images: str | None, *, read: bool, shown: bool
) -> tuple[Dataset, str | None]:
    """The rows of a split, without those whose images cannot be read, where they are read; and the split's name."""
    from datasets import Dataset

    from hf_curriculum.columns import IMAGE
    from hf_curriculum.data.images import drop_unreadable_images
    from hf_curriculum.data.load import load_captioned
    from hf_curriculum.scored_data import FILE_NAME

    if (Path(data) / FILE_NAME).is_file():
        loaded = load_complete(Path(data))
    else:  # images are looked at once it is known which split is wanted
        wanted = images if images is not None or read or shown else False
        loaded = load_captioned(data, images=wanted, check_images=False)
    if isinstance(loaded, Dataset):
        if split not in (None, str(loaded.split)):
            raise typer.BadParameter(f"{data} has no splits, and so not {split!r}.", param_hint="--split")
        rows = loaded
    else:
        split = split or "test"
        if split not in loaded:
            found = f"{data} has the splits {list(loaded)}, and not {split!r}."
            raise typer.BadParameter(found, param_hint="--split")
        rows = loaded[split]
    if read and IMAGE in rows.column_names:
        (rows,) = drop_unreadable_images({str(split): rows}).values()
    return rows, split
