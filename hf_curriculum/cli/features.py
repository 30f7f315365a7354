"""`hf-curriculum features`: regions of images in one store."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hf_curriculum.cli.common import AsJson, hide_bars_unless_watched, note, plainly, say, typed_again
from hf_curriculum.columns import IMAGE

if TYPE_CHECKING:
    from hf_curriculum.data.regions.store import RegionStore

_Sources = Annotated[
    list[str],
    typer.Argument(
        help="With --model: a folder of images, a caption file or a data set, as of `score`. Without: files or "
        "folders of regions (bottom-up attention's or VinVL's .tsv, cocobu_att, .h5, another store), as PREFIX=FILE "
        "where ids of several data sets meet.",
        show_default=False,
    ),
]
_Store = Annotated[Path, typer.Argument(help="The folder to write.", show_default=False)]
_Model = Annotated[
    str | None,
    typer.Option(
        help="The model that finds the regions: a detector or vision tower of the Hub or a folder, or "
        "torchvision:fasterrcnn_resnet50_fpn. Or scenes_clip, shipped with this package, or a trained captioner, for "
        "its own detector."
    ),
]
_Grid = Annotated[int | None, typer.Option(help="Cells along each side, for a vision tower.", min=1)]
_Threshold = Annotated[float, typer.Option(help="Confidence above which detections are kept.", min=0, max=1)]
_Standardise = Annotated[
    bool, typer.Option("--standardise", help="Subtract the mean of each feature and divide by its deviation.")
]
_MadeBy = Annotated[
    str | None,
    typer.Option(help="What made the features of files, in any words; stores of one detector may be mixed."),
]
_Images = Annotated[str | None, typer.Option(help="The folder of a caption file's images.")]


@plainly
def features_command(
    sources: _Sources,
    store: _Store,
    model: _Model = None,
    grid: _Grid = None,
    threshold: _Threshold = 0.2,
    min_regions: Annotated[int, typer.Option(help="Regions of an image at least.", min=1)] = 10,
    max_regions: Annotated[int, typer.Option(help="Regions of an image at most.", min=1)] = 100,
    standardise: _Standardise = False,
    dtype: Annotated[Literal["float16", "float32"], typer.Option(help="Of features on disk.")] = "float16",
    made_by: _MadeBy = None,
    images: _Images = None,
    batch_size: Annotated[int, typer.Option(help="Images that run through the model at once.", min=1)] = 8,
    num_workers: Annotated[int, typer.Option(help="Processes that decode images meanwhile.", min=0)] = 0,
    as_json: AsJson = False,
) -> None:
    """Write the features of images' regions into one folder, from which captioners are trained.

    --model finds them in images; without it, files of features are merged. The same command continues an
    interrupted run. On several GPUs: `accelerate launch -m hf_curriculum.cli features ...`, where each process finds
    the regions of its part.
    """
    begin = time.perf_counter()
    _hide_bars()
    setting = {"threshold": threshold, "min_regions": min_regions, "max_regions": max_regions}
    common = {"dtype": dtype, "standardise": standardise, "progress": sys.stderr.isatty()}
    try:
        if model is None:
            _validate_options(grid=grid, images=images, **setting)
            from hf_curriculum.data.regions.pack import pack_regions

            found = pack_regions(_labelled(sources), store, made_by=made_by, **common)
        else:
            if made_by is not None or len(sources) > 1:
                what = f"{len(sources)} sources" if len(sources) > 1 else "--made-by"
                raise typer.BadParameter(
                    f"{what} were given with a model, which finds regions in one set of images and is recorded as "
                    "what made them. Give one folder or data set, and leave --made-by out.",
                    param_hint="--model",
                )
            setting |= {"grid": grid, "batch_size": batch_size}
            found = _extract(sources[0], store, model, images, setting, {**common, "num_workers": num_workers})
    except KeyboardInterrupt:
        note(f"\nInterrupted. What is written in {store} is kept; the same command continues:\n  {typed_again()}")
        raise
    _print(found, time.perf_counter() - begin, as_json)


def _hide_bars() -> None:
    """No progress bars where nobody watches."""
    hide_bars_unless_watched()
    if not sys.stderr.isatty():
        from hf_curriculum.studies.recipe import disable_progress_bars

        disable_progress_bars()


def _validate_options(**given: Any) -> None:
    """Raises for options that only a model has."""
    defaults = {"threshold": 0.2, "min_regions": 10, "max_regions": 100, "grid": None, "images": None}
    changed = [f"--{name.replace('_', '-')}" for name, value in given.items() if value != defaults[name]]
    if changed:
        raise typer.BadParameter(
            f"{' and '.join(changed)} would not count: without --model regions are taken from files as they are. Name "
            "a model, or leave it out.",
            param_hint=changed[0],
        )


def _labelled(sources: list[str]) -> Any:
    """Sources as `pack_regions` takes them: of PREFIX=FILE a mapping, else a list."""
    pairs = [(name, file) for name, equals, file in (source.partition("=") for source in sources) if equals and file]
    pairs = [(name, file) for name, file in pairs if not Path(f"{name}={file}").exists()]
    if not pairs:
        return sources
    if len(pairs) < len(sources):
        raise typer.BadParameter("Some sources have a prefix and some have none. Give each one, as in coco=coco.tsv.")
    together: dict[str, list[str]] = {}
    for name, file in pairs:
        together.setdefault(name, []).append(file)
    return together


def _extract(
    source: str, store: Path, model: str, images: str | None, setting: dict[str, Any], options: dict[str, Any]
) -> RegionStore:
    """The store of the regions that a model finds in images."""
    from hf_curriculum.cli.common import model_of
    from hf_curriculum.config import IMAGE_SUFFIXES
    from hf_curriculum.data.load import load_captioned
    from hf_curriculum.data.readers.folder import visible_files
    from hf_curriculum.data.regions.extract import extract_regions
    from hf_curriculum.data.regions.processor import RegionProcessor

    name, folder = model_of(model), Path(source)
    plain = folder.is_dir() and {file.suffix.lower() for file in visible_files(folder)} <= {*IMAGE_SUFFIXES}
    data = folder if plain else load_captioned(source, images=images)
    if not plain and (without := _without_images(data)):
        raise typer.BadParameter(
            f"{source} has captions and no images{without}, in which regions could be found. Name their folder.",
            param_hint="--images",
        )
    config = Path(name) / "preprocessor_config.json"
    if config.is_file() and '"RegionProcessor"' in config.read_text(encoding="utf-8"):
        note(f"the detector and its limits are those of {model}")
        return extract_regions(data, RegionProcessor.from_pretrained(name), store, **options)
    return extract_regions(data, name, store, **options, **setting)


def _without_images(data: Any) -> str | None:
    """The splits of loaded data that have no images; None where all have."""
    parts = data if isinstance(data, dict) else {"": data}
    lost = [name for name, part in parts.items() if IMAGE not in part.column_names]
    return None if not lost else f" in {lost}" if len(lost) < len(parts) else " beside it"


def _bytes(size: int) -> str:
    return f"{size / 1e9:,.2f} GB" if size >= 1e9 else f"{size / 1e6:,.2f} MB"


def _print(store: RegionStore, seconds: float, as_json: bool) -> None:
    folder = Path(store.path)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    names = ("images", "regions", "dims", "dtype", "empty", "repeated", "made_by", "fingerprint")
    facts = {**{name: store.facts[name] for name in names}, "bytes": size, "seconds": round(seconds, 1)}
    line = f"{len(store):,} images, {facts['regions']:,} regions of {facts['dims']:,} numbers, {_bytes(size)}, "
    say(f"{line}{seconds:.0f} s", facts, as_json)
    if facts["empty"]:
        note(f"{facts['empty']:,} images have no region: a model sees nothing of them")
    if facts["repeated"]:
        note(f"{facts['repeated']:,} lines were for images that their file had before, and were left out")
    note(f"saved to {store.path}")
