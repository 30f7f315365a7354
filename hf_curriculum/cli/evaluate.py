"""`hf-curriculum evaluate`: a trained model on benchmarks, or its captions or its retrieval on a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hf_curriculum.cli.common import AsJson, note, plainly
from hf_curriculum.names import SUITES

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
    typer.Option(help="Of `retrieval`: an ontology.json: score its nouns, and rank within its classes."),
]
_COMMON = ("suite", "model", "data", "output", "batch_size", "limit", "as_json")
_OF_DATA = ("split", "images", "features", "compare", "html")
_OPTIONS: dict[str, tuple[str, ...]] = {
    "babylm": ("task",),
    "captions": (*_OF_DATA, "beams", "max_new_tokens", "metrics", "clip", "difficulty_from"),
    "retrieval": (*_OF_DATA, "protocol", "nouns", "ontology"),
}
"""The options that have an effect with each suite, beside those in `_COMMON`."""

_KEPT = {"babylm": "predictions", "captions": "captions", "retrieval": "ranks"}


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
    BLEU, METEOR, CIDEr, SPICE and CLIPScore. It writes results.json, results.md, captions.json (COCO's format of
    results) and per_image.csv. `--suite retrieval` ranks images for captions and captions for images, and writes
    results.json, results.md and ranks.csv.
    """
    if suite not in _OPTIONS:
        raise typer.BadParameter(f"{suite!r} is not known. There are {', '.join(_OPTIONS)}.", param_hint="--suite")
    for name, value in ctx.params.items():
        if value and name not in (*_COMMON, *_OPTIONS[suite]):
            option = f"--{name.replace('_', '-')}"
            raise typer.BadParameter(f"It has no effect with `--suite {suite}`. Leave it out.", param_hint=option)
    evaluate = SUITES[suite]
    own = {name: ctx.params[name] for name in _OPTIONS[suite]}
    shared = {"output": output, "batch_size": batch_size, "limit": limit, "progress": not as_json}
    table = evaluate(model, data, **shared, **own).table
    typer.echo((output / "results.json").read_text(encoding="utf-8") if as_json else table)
    note(f"tables and {_KEPT[suite]} in {output}")
