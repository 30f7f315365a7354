"""`hf-curriculum evaluate`: a trained model on benchmarks, or its captions or its retrieval on a data set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hf_curriculum import __version__
from hf_curriculum.cli.common import AsJson, model_of, name_of, named_paths, note, plainly
from hf_curriculum.tasks.alignment.cli import evaluate_retrieval, load_rows
from hf_curriculum.tasks.captioning.cli import load_for_captions

if TYPE_CHECKING:
    from hf_curriculum.tasks.babylm.suite import SuiteResult
    from hf_curriculum.tasks.captioning.suite import CaptionEvaluation, CaptionSuite

_Model = Annotated[
    str,
    typer.Argument(
        help="Folder or Hub name of a model with its tokenizer, or the folder of a run; with `--suite captions` also "
        "a captions.json that any system wrote."
    ),
]
_Data = Annotated[
    str | None,
    typer.Option(
        help="Of `babylm` the folder with the official files; without it, miniatures made from scenes. Of `captions` "
        "and `retrieval` what `score` reads, such as dataset_coco.json or a folder of images and captions, or scored "
        "data."
    ),
]
_Task = Annotated[
    list[str] | None,
    typer.Option(help="A benchmark or task of `babylm`, such as blimp or devbench/lex-lwl. May be repeated."),
]
_Split = Annotated[str | None, typer.Option(help="The split to evaluate on; `test`, if there are several.")]
_Images = Annotated[str | None, typer.Option(help="The folder of a caption file's images.")]
_Features = Annotated[Path | None, typer.Option(help="Stored regions or features to read in place of the images.")]
_Beams = Annotated[int | None, typer.Option(help="Beams of generation; 5, if not given.", min=1)]
_Tokens = Annotated[
    int | None, typer.Option(help="Tokens of a caption at most; what the model's own settings say, or else 30.", min=1)
]
_Metrics = Annotated[
    list[str] | None,
    typer.Option(
        help="bleu, meteor, cider, spice, rouge or clip_score; may be repeated. By default all that can be computed "
        "here, and why the others cannot."
    ),
]
_Clip = Annotated[
    str | None, typer.Option(help="The CLIP of CLIPScore: a folder, a name on the Hub, or scenes_clip for scenes.")
]
_Compare = Annotated[
    list[str] | None,
    typer.Option(
        help="Another system, as PATH or NAME=PATH: its captions.json or, of `retrieval`, its ranks.csv, or the "
        "folder that holds it. Adds the differences and how significant they are. May be repeated."
    ),
]
_Difficulty = Annotated[
    Path | None,
    typer.Option(help="The vanilla model's per_image.csv: divides the images into four sets by its BLEU-4."),
]
_Html = Annotated[Path | None, typer.Option(help="Also write a page with images and captions into this folder.")]
_Protocol = Annotated[
    str | None,
    typer.Option(help="Of `retrieval`: flickr30k (1,000 images), coco_5k, coco_1k (five folds), or all, the default."),
]
_Nouns = Annotated[
    str | None,
    typer.Option(help="Of `retrieval`: a caption's score is the `mean`, the default, or `max` of its nouns'."),
]
_Ontology = Annotated[
    Path | None,
    typer.Option(
        help="Of `retrieval`: an ontology.json, whose nouns are asked for and whose classes are ranked within."
    ),
]
_COMMON = ("suite", "model", "data", "output", "batch_size", "limit", "as_json")
_OF_DATA = ("split", "images", "features", "compare", "html")
_OPTIONS: dict[str, tuple[str, ...]] = {
    "babylm": ("task",),
    "captions": (*_OF_DATA, "beams", "max_new_tokens", "metrics", "clip", "difficulty_from"),
    "retrieval": (*_OF_DATA, "protocol", "nouns", "ontology"),
}
"""The options that have an effect with each suite, beside those in `_COMMON`."""


@plainly
def evaluate_command(
    ctx: typer.Context,
    model: _Model,
    suite: Annotated[str, typer.Option(help="`babylm`, `captions` or `retrieval`.")] = "babylm",
    data: _Data = None,
    output: Annotated[Path, typer.Option(help="Folder for tables and predictions.")] = Path("evaluation"),
    task: _Task = None,
    split: _Split = None,
    images: _Images = None,
    features: _Features = None,
    beams: _Beams = None,
    max_new_tokens: _Tokens = None,
    metrics: _Metrics = None,
    clip: _Clip = None,
    protocol: _Protocol = None,
    nouns: _Nouns = None,
    ontology: _Ontology = None,
    compare: _Compare = None,
    difficulty_from: _Difficulty = None,
    html: _Html = None,
    batch_size: Annotated[int, typer.Option(help="Texts or images that run through the model at once.")] = 64,
    limit: Annotated[int | None, typer.Option(help="Most items of each task: for a quick look only.")] = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a model: benchmarks, captions, or retrieval of images and captions; tables in a folder.

    `--suite captions` writes a caption for each image of a split and compares it with the image's own captions by
    BLEU, METEOR, CIDEr, SPICE and CLIPScore: results.json, results.md, captions.json (COCO's format of results) and
    per_image.csv. `--suite retrieval` ranks images for captions and captions for images: results.json, results.md and
    ranks.csv.
    """
    if suite not in _OPTIONS:
        raise typer.BadParameter(f"{suite!r} is not known. There are {', '.join(_OPTIONS)}.", param_hint="--suite")
    for name, value in ctx.params.items():
        if value and name not in (*_COMMON, *_OPTIONS[suite]):
            option = f"--{name.replace('_', '-')}"
            raise typer.BadParameter(f"It has no effect with `--suite {suite}`. Leave it out.", param_hint=option)
    evaluate, kept = {
        "babylm": (_evaluate_benchmarks, "predictions"),
        "captions": (_evaluate_captions, "captions"),
        "retrieval": (evaluate_retrieval, "ranks"),
    }[suite]
    own = {name: ctx.params[name] for name in _OPTIONS[suite]}
    shared = {"output": output, "batch_size": batch_size, "limit": limit, "progress": not as_json}
    table = evaluate(model, data, **shared, **own).table
    typer.echo((output / "results.json").read_text(encoding="utf-8") if as_json else table)
    note(f"tables and {kept} in {output}")


def _evaluate_benchmarks(
    model: str,
    data: str | None,
    *,
    output: Path,
    task: Sequence[str] | None,
    batch_size: int,
    limit: int | None,
    progress: bool,
) -> SuiteResult:
    """What `--suite babylm` does."""
    from hf_curriculum.tasks.babylm.suite import evaluate_pretrained

    options = {"tasks": task or None, "batch_size": batch_size, "limit": limit, "progress": progress}
    return evaluate_pretrained(model_of(model), "babylm", output_dir=output, data_dir=data, **options)


def _evaluate_captions(
    model: str,
    data: str | None,
    *,
    output: Path,
    split: str | None,
    images: str | None,
    features: Path | None,
    beams: int | None,
    max_new_tokens: int | None,
    metrics: Sequence[str] | None,
    clip: str | None,
    compare: Sequence[str] | None,
    difficulty_from: Path | None,
    html: Path | None,
    batch_size: int,
    limit: int | None,
    progress: bool,
) -> CaptionEvaluation:
    """What `--suite captions` does."""
    from hf_curriculum.tasks.captioning.page import caption_report
    from hf_curriculum.tasks.captioning.suite import CaptionSuite, read_captions, write_captions

    if data is None:
        raise typer.BadParameter("Captions are compared with those of a data set. Name one.", param_hint="--data")
    written = read_captions(model) if Path(model).is_file() else None
    if written is not None and (features or beams or max_new_tokens):
        raise typer.BadParameter(
            f"{model} holds captions, and none are generated: --features, --beams and --max-new-tokens have no "
            "effect. Leave them out, or name a model."
        )
    sees = features is None and written is None
    rows, split = load_rows(data, split, images, read=sees or clip is not None, shown=html is not None)
    others = named_paths(compare or (), "--compare")
    given = {
        "name": name_of(Path(model)),
        "clip": clip,
        "compare": others,
        "difficulty": difficulty_from,
        "limit": limit,
    }
    suite = CaptionSuite(rows, metrics or "all", **given)
    about: dict[str, Any] = {
        "version": __version__,
        "model": model,
        "data": data,
        "split": split,
    }
    if written is None:
        settings = {"num_beams": beams or 5, "max_new_tokens": max_new_tokens, "batch_size": batch_size}
        captions = _generate(suite, model, features, settings, progress=progress)
        write_captions(output / "captions.json", suite.image_ids, captions)  # before METEOR and SPICE, which take long
        about |= {"features": features and str(features), **settings}
    else:
        captions = suite.captions_of(model, written)
    found = suite(captions)
    found.write(output, about)
    if html is not None:
        note(f"page: {caption_report(found, suite.images, f'Captions of {data}').write(html)}")
    return found


def _generate(
    suite: CaptionSuite, model: str, features: Path | None, settings: dict[str, Any], *, progress: bool
) -> list[str]:
    """A caption for each image of the suite; `settings` gets the tokens of a caption that the model's own name."""
    from hf_curriculum.evaluation.generate import generate_captions

    captioner, processor = load_for_captions(model, features)
    if features is not None:
        store = processor.image_inputs.store
        missing = [image_id for image_id in suite.image_ids if image_id not in store]
        if missing:
            raise ValueError(
                f"{features} holds nothing of {len(missing):,} of the {len(suite.image_ids):,} images, the first "
                f"{missing[0]!r}. A caption is wanted for each of them. Add their features, or name another split."
            )
    return generate_captions(captioner, suite.images, processor, progress=progress, **settings)
