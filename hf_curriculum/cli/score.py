"""`hf-curriculum score`: score columns, on one machine or many."""

from __future__ import annotations

import inspect
import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hf_curriculum.cli.common import (
    AsJson,
    beginning,
    hide_bars_unless_watched,
    lines_of,
    note,
    plainly,
    say,
    suggest,
    typed_again,
)
from hf_curriculum.columns import CAPTION, IMAGE, IMAGE_ID, IMAGES, MESSAGES
from hf_curriculum.markdown import one_line
from hf_curriculum.names import SCORERS

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

    from hf_curriculum.scorers.base import Scorer

_Source = Annotated[
    str,
    typer.Argument(
        help="A folder of images with a .csv, .tsv or .jsonl in it (columns file_name and caption, or caption0, "
        "caption1, ...). Or a caption file of COCO or Karpathy, a saved data set, or a name on the Hub. Conversations "
        "(LLaVA's, ShareGPT's, TRL's) are recognised."
    ),
]
_Output = Annotated[Path | None, typer.Argument(help="Folder for the scored data set.")]
_Scorers = Annotated[
    list[str],
    typer.Option(
        help="A score to add: its name, or JSON, YAML or a file of either with `type` and arguments, as in "
        '\'{"type": "noun_count", "max_words": 50}\'. Or your own as module:Class, from a file module.py here, or as '
        '\'{"type": "module:Class", ...}\'. May be repeated; one that combines scores comes after them.',
        autocompletion=lambda incomplete: beginning(SCORERS, incomplete),
    ),
]
_Model = Annotated[
    str | None,
    typer.Option(help="A folder or a name on the Hub, for scores above that need a model and name none."),
]
_PerImage = Annotated[
    Literal["max", "min", "mean"] | None,
    typer.Option(help="Give all captions of an image one score: the largest, smallest or mean one."),
]
_FitOn = Annotated[
    str | None, typer.Option(help="The split to fit scorers on that need a corpus: `train`, if not given.")
]
_HoldOut = Annotated[
    float | None,
    typer.Option(
        help="Share of the images to hold out, as the split `validation`: scorers then learn from the others alone, "
        "and `train` evaluates on it."
    ),
]
_SideFile = Annotated[
    Path | None, typer.Option(help="Write the scores alone into this Parquet file, for `load_scores`.")
]
_Images = Annotated[
    str | None, typer.Option(help="The folder of a caption file's images, or `none` to load text alone.")
]
_Column = Annotated[
    list[str] | None,
    typer.Option(
        help="The name of a column in the data, OURS=THEIRS: `caption=text`, `image=photo`, `image_id=id`, "
        "`messages=chat`. May be repeated; captions in several columns are `caption=first,second`."
    ),
]
_CheckImages = Annotated[bool, typer.Option(help="Decode each image first, and leave out rows that cannot be read.")]
_DropEmpty = Annotated[
    bool, typer.Option("--drop-empty", help="Leave out rows with an empty caption, and count them.")
]
_BadRows = Annotated[
    Literal["error", "drop"],
    typer.Option(help="Whether a row that cannot be read ends the command, or is left out and counted."),
]
_Ignore = Annotated[
    list[str] | None,
    typer.Option(help="Take conversations that are refused otherwise: images, videos, audios, weights or tool_calls."),
]
_Part = Annotated[
    Literal["assistant", "user", "system", "all"] | None,
    typer.Option(help="The role whose messages text scorers read in a conversation; `assistant`, if not given."),
]
_Turns = Annotated[
    Literal["all", "first", "last"] | None, typer.Option(help="Which of these messages: `all`, if not given.")
]
_AllowOutside = Annotated[
    bool, typer.Option("--allow-outside", help="Read images outside of SOURCE and --images that it names or links to.")
]
_Download = Annotated[
    bool, typer.Option("--download", help="Fetch images of which SOURCE holds the addresses, and count what fails.")
]
_Objects = Annotated[
    str | None,
    typer.Option(help="Boxes for `--scorer box_count`: COCO's instances_*.json, or a folder of VOC's XML files."),
]
_InPlace = Annotated[
    bool,
    typer.Option(
        "--in-place",
        help="SOURCE is a crawl in shards (.tar, .parquet, a folder of img2dataset; a pattern, or an address): score "
        "it where it lies, and write into OUTPUT only the scores.",
    ),
]
_Keep = Annotated[
    list[str] | None,
    typer.Option(help="With --in-place: keep this column with the scores (`uid`, `url`, `caption`). May be repeated."),
]
_BadShards = Annotated[
    Literal["error", "drop"],
    typer.Option(
        help="With --in-place: whether shards that cannot be read, or are no longer there, end the command when the "
        "others are scored, or are left out and named."
    ),
]
_Status = Annotated[bool, typer.Option("--status", help="Print the progress of OUTPUT, scored in place, and end.")]
_NumProc = Annotated[
    int | None, typer.Option(help="Worker processes, of each launched process, each with its own model.")
]
_NumWorkers = Annotated[
    int, typer.Option(help="Processes that open and prepare images for one model while it computes.", min=0)
]
_Rank = Annotated[int | None, typer.Option(help="Which of --ranks processes this is, from 0, without a launcher.")]
_Ranks = Annotated[int | None, typer.Option(help="How many processes there are.")]
_PartRows = Annotated[int, typer.Option(help="Rows of a part: an interrupted run loses at most one part.")]
_Parts = Annotated[
    Path | None, typer.Option(help="Folder for finished parts, seen by all machines; by default next to the output.")
]


@plainly
def score_command(
    ctx: typer.Context,
    source: _Source,
    output: _Output = None,
    scorer: _Scorers = ["noun_count"],  # noqa: B006
    model: _Model = None,
    part: _Part = None,
    turns: _Turns = None,
    per_image: _PerImage = None,
    fit_on: _FitOn = None,
    hold_out: _HoldOut = None,
    side_file: _SideFile = None,
    images: _Images = None,
    column: _Column = None,
    check_images: _CheckImages = True,
    drop_empty: _DropEmpty = False,
    bad_rows: _BadRows = "error",
    ignore: _Ignore = None,
    allow_outside: _AllowOutside = False,
    download: _Download = False,
    objects: _Objects = None,
    num_proc: _NumProc = None,
    num_workers: _NumWorkers = 0,
    batch_size: Annotated[int, typer.Option(help="Rows per call of a scorer.")] = 1000,
    part_rows: _PartRows = 10_000,
    parts: _Parts = None,
    rank: _Rank = None,
    ranks: _Ranks = None,
    in_place: _InPlace = False,
    keep: _Keep = None,
    bad_shards: _BadShards = "error",
    status: _Status = False,
    overwrite: Annotated[bool, typer.Option(help="Replace an output and score columns that exist.")] = False,
    as_json: AsJson = False,
) -> None:
    """Add score columns to captioned images, or to conversations, and save them with their provenance.

    The same command continues an interrupted run.

    With --in-place start any number of processes by any means: they share the work.

    On several GPUs or machines: `accelerate launch -m hf_curriculum.cli score ...`, `torchrun`, `srun`, a job array of
    Slurm, or --rank and --ranks, with OUTPUT on a disk that all see. Each process scores its part, the first saves
    the result. With `--no-check-images` no process decodes all images first: unreadable ones get NaN.
    """
    from hf_curriculum.parts import launched
    from hf_curriculum.scored_data import validate_splits

    read = {"part": part, "turns": turns, "model": model}
    if in_place or status or keep or bad_shards == "drop":
        _score_in_place(ctx, read, as_json)
        return
    aim, scorers = _aim(output, side_file), _scorers_from(scorer, read, fit_on)
    folder, (rank, world_size) = parts or _parts_beside(aim), launched(rank, ranks)
    if not _may_begin(ctx, aim, rank):
        return
    reading = {name: ctx.params[name] for name in _READING} | {"columns": column_mapping(column)}
    data, instead = _chosen(source, scorers, reading, drop_empty, hold_out)
    _show_rows(data, rank)
    scorers = _scorers_from(scorer, {**read, **instead}) if instead else scorers
    if output is not None:
        validate_splits(data, output)
    options = {**{name: ctx.params[name] for name in _SCORING}, "rank": rank, "world_size": world_size}
    if (scored := _score(data, scorers, folder, options)) is None:
        note(f"process {rank} of {world_size}: its share is done")
        return
    _save_and_print(scored, [name for made in scorers for name in made.outputs], output, side_file, as_json)
    if parts is None:
        shutil.rmtree(folder)


_READING = ("images", "check_images", "allow_outside", "download", "objects", "num_proc", "bad_rows", "ignore")
_SCORING = ("per_image", "fit_on", "num_proc", "num_workers", "batch_size", "part_rows", "overwrite")
"""Options that are arguments of the loaders, and of `add_scores_sharded`."""
_IN_PLACE = (
    *("source", "output", "scorer", "model", "part", "turns", "column", "num_proc", "num_workers", "batch_size"),
    *("rank", "ranks", "as_json"),
)
"""Options that go with `--in-place`."""


def _score_in_place(ctx: typer.Context, read: Mapping[str, str | None], as_json: bool) -> None:
    """Scores shards where they lie, or says how far that is."""
    from hf_curriculum.scoring.shards import score_shards, shard_status

    given = ctx.params
    own = ("in_place", "keep", "status", "bad_shards")
    for name, value in given.items():
        if name not in (*_IN_PLACE, *own) and str(ctx.get_parameter_source(name)).endswith("COMMANDLINE"):
            option = f"--{name.replace('_', '-')}"
            raise typer.BadParameter(f"It does not go with --in-place: {value!r}. Leave it out.", param_hint=option)
    if given["output"] is None:
        raise typer.BadParameter("Name the folder of the scores, OUTPUT.")
    if given["status"]:
        found = shard_status(given["output"])
    elif not given["in_place"]:
        option = "--keep" if given["keep"] else "--bad-shards"
        raise typer.BadParameter("It goes with --in-place.", param_hint=option)
    else:
        options = {"columns": column_mapping(given["column"]), "keep": given["keep"] or ()}
        options |= {"num_proc": given["num_proc"] or 1, "rank": given["rank"], "world_size": given["ranks"]}
        options |= {name: given[name] for name in ("num_workers", "bad_shards")}
        if str(ctx.get_parameter_source("batch_size")).endswith("COMMANDLINE"):
            options["batch_size"] = given["batch_size"]
        found = score_shards(given["source"], _scorers_from(given["scorer"], read), given["output"], **options)
    say(found.describe(), asdict(found), as_json)
    if found.complete:
        suggest("inspect", given["output"])


def _scorers_from(given: list[str], values: Mapping[str, str | None], fit_on: str | None = None) -> list[Scorer]:
    """The scorers; `values` of parameters, or in place of a default, stand where a scorer says nothing itself."""
    from hf_curriculum.config import read_config
    from hf_curriculum.scorers.base import Scorer
    from hf_curriculum.scorers.registry import import_named, scorer_from

    scorers, taken = [], set()
    values = {name: value for name, value in values.items() if value is not None}
    try:
        for name in given:
            import_named(name, SCORERS, Scorer)
        for name in given:
            mapping = read_config(name, "scorer", SCORERS)
            for parameter, about in inspect.signature(SCORERS[mapping["type"]]).parameters.items():
                key = parameter if parameter in values else about.default
                if not isinstance(key, str) or key not in values:
                    continue
                if parameter == "model" and ("model" in mapping or about.default is not about.empty):
                    continue  # it has one of its own
                mapping.setdefault(parameter, values[key])
                taken.add(key)
            scorers.append(scorer_from(mapping))
    except (ValueError, TypeError, OSError, ImportError) as error:
        raise typer.BadParameter(str(error), param_hint="--scorer") from error
    for name in ("part", "turns"):
        if name in values and name not in taken:
            raise typer.BadParameter(
                "None of the scorers reads what somebody says. Leave it out.", param_hint=f"--{name}"
            )
    if "model" in values and "model" not in taken:
        raise typer.BadParameter("None of the scores needs one. Leave it out.", param_hint="--model")
    if fit_on is not None and not any(made.needs_fit for made in scorers):
        raise typer.BadParameter("None of the scorers learns from a corpus. Leave it out.", param_hint="--fit-on")
    return scorers


def _aim(output: Path | None, side_file: Path | None) -> Path:
    """Where the scores go."""
    if output is None and side_file is None:
        raise typer.BadParameter("Name a folder for the scored data set, OUTPUT, or a --side-file for scores alone.")
    if output is not None:
        validate_output(output)
    if side_file is not None:
        from hf_curriculum.files import resolved
        from hf_curriculum.scoring.join import side_file_name

        place = side_file_name(side_file)
        if output is not None and place.is_relative_to(resolved(output)):
            raise typer.BadParameter(
                f"{side_file} is in {output}, which the data set replaces as a whole. Name a file elsewhere.",
                param_hint="--side-file",
            )
    return output or side_file


def _parts_beside(aim: Path) -> Path:
    """The folder of parts next to the output, whose name nobody may have given to a link."""
    from hf_curriculum.files import refuse_link

    folder = aim.with_name(f"{aim.name}.parts")
    refuse_link(folder)
    return folder


def _may_begin(ctx: typer.Context, aim: Path, rank: int) -> bool:
    """Whether there is something to score; the first process has a lock until the command ends.

    Without it, of two commands that score at once with other scorers, one would replace what the other has saved.
    """
    from hf_curriculum.files import resolved, sole_writer
    from hf_curriculum.scored_data import FILE_NAME

    if rank == 0:
        place = resolved(aim)
        ctx.with_resource(sole_writer(place, place.with_name(f".{place.name}.score.lock")))
    if ctx.params["overwrite"] or not (aim / FILE_NAME if ctx.params["output"] else aim).exists():
        return True
    if rank == 0:
        raise ValueError(f"{aim} is there already. Pass --overwrite, or name another.")
    return False


def _chosen(
    source: str, scorers: list[Scorer], reading: dict[str, Any], drop_empty: bool, share: float | None
) -> tuple[Dataset | DatasetDict, dict[str, str]]:
    """What `_load` gives, without rows that say nothing where these are dropped, with a part held out where asked."""
    from hf_curriculum.data.captions import drop_empty_captions

    hide_bars_unless_watched()
    data, instead = _load(source, scorers, reading)
    if drop_empty:
        data = drop_empty_captions(data, instead.get(CAPTION, CAPTION))
    return data if share is None else _hold_out(data, share), instead


class _Notes(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        note(record.getMessage())


@contextmanager
def _noting(name: str) -> Iterator[None]:
    """Shows what a module logs, information too."""
    logger, handler = logging.getLogger(name), _Notes()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def _show_rows(data: Dataset | DatasetDict, rank: int) -> None:
    """The first process notes what was read: how many rows, and three of them without their images."""
    from datasets import Dataset

    from hf_curriculum.data.conversations import transcript

    if rank > 0:
        return
    first = data if isinstance(data, Dataset) else next(iter(data.values()))
    names = [name for name in (IMAGE_ID, CAPTION, MESSAGES) if name in first.column_names]
    note(f"{len(first):,} row{'s' * (len(first) != 1)}, the first:")
    for row in first.select_columns(names).with_format(None).select(range(min(3, len(first)))):
        row |= {MESSAGES: transcript(row[MESSAGES])} if MESSAGES in row else {}
        note("  " + "  ".join(one_line(value, 80) for value in row.values()))


def _load(source: str, scorers: list[Scorer], reading: dict[str, Any]) -> tuple[Dataset | DatasetDict, dict[str, str]]:
    """The data, and the columns of conversations that stand for those of captions; other data is as it is."""
    from hf_curriculum.data.load import fields_of, load_captioned
    from hf_curriculum.data.load_conversations import find_conversations, load_conversations
    from hf_curriculum.data.readers.columns import names_captions
    from hf_curriculum.data.request import Request, one_or_all

    images, ignore = reading["images"], reading["ignore"] or ()
    reading |= {"images": False if images == "none" else images, "ignore": ignore}
    fields = fields_of(source)
    columns = None if fields is None else find_conversations(fields, reading["columns"])
    of_captions = {name: reading[name] for name in ("download", "objects")}
    if columns is not None:
        if given := [name for name, value in of_captions.items() if value]:
            raise typer.BadParameter("The data holds conversations. Leave it out.", param_hint=f"--{given[0]}")
        reading = {name: value for name, value in reading.items() if name not in of_captions}
        return load_conversations(source, **{**reading, "columns": columns}), {CAPTION: MESSAGES, IMAGE: IMAGES}
    if ignore:
        raise typer.BadParameter("The data holds no conversations. Leave it out.", param_hint="--ignore")
    reading = {name: value for name, value in reading.items() if name != "ignore"}
    read = {name for made in scorers for name in made.columns} - {name for made in scorers for name in made.outputs}
    if fields is None or reading["columns"] or names_captions(fields) or not read <= set(fields):
        with _noting("hf_curriculum.data.load"):
            return load_captioned(source, **reading), {}
    request = Request("load_captioned", source, allow_outside=reading["allow_outside"])
    splits = request.load(None)
    request.validate_named_files(splits)
    return one_or_all(splits), {}


def _score(
    data: Dataset | DatasetDict, scorers: list[Scorer], folder: Path, options: Mapping[str, Any]
) -> Dataset | DatasetDict | None:
    """The scored data, in the first process; on Ctrl-C how to go on."""
    from hf_curriculum.scoring.sharded import add_scores_sharded

    try:
        return add_scores_sharded(data, scorers, folder, **options)
    except KeyboardInterrupt:
        note(f"\nInterrupted. Finished parts are kept in {folder}; the same command continues:\n  {typed_again()}")
        raise


def _hold_out(data: Dataset | DatasetDict, share: float) -> DatasetDict:
    """The data with a split `validation`, the same images in every process and every time."""
    from datasets import Dataset, DatasetDict

    from hf_curriculum.data.captions import hold_out

    splits = {"train": data} if isinstance(data, Dataset) else dict(data)
    if "train" not in splits or "validation" in splits:
        raise typer.BadParameter(
            f"The data has the splits {list(splits)}; a part is held out of `train` where there is no `validation` "
            "yet. Leave it out.",
            param_hint="--hold-out",
        )
    by_image = {IMAGE_ID, IMAGES} & set(splits["train"].column_names)
    return DatasetDict({**splits, **hold_out(splits["train"], share, by="image" if by_image else "row")})


def column_mapping(given: list[str] | None) -> dict[str, str | list[str]] | None:
    """Our names of columns to theirs, as `load_captioned` takes them; of `caption` there may be several."""
    named: dict[str, list[str]] = {}
    for pair in given or []:
        ours, equals, theirs = pair.partition("=")
        if not (ours and equals and theirs):
            raise typer.BadParameter(f"{pair!r} is not OURS=THEIRS, as in caption=text.", param_hint="--column")
        named.setdefault(ours, []).extend(theirs.split(",") if ours == "caption" else [theirs])
    return {ours: theirs if len(theirs) > 1 else theirs[0] for ours, theirs in named.items()} or None


def validate_output(output: Path) -> None:
    """Checks that data can be saved there, and not among other files."""
    from hf_curriculum.data.request import SAVED_FILES
    from hf_curriculum.files import refuse_file
    from hf_curriculum.scored_data import FILE_NAME

    refuse_file(output)
    names = sorted(entry.name for entry in output.iterdir()) if output.is_dir() else []
    if any(name in (*SAVED_FILES, FILE_NAME) or name.startswith("data-") for name in names):
        return  # a saved data set, or one whose saving was interrupted
    others = [name for name in names if name != "README.md" and not name.startswith(".")]
    if others:
        raise ValueError(
            f"{output} holds other files ({', '.join(others[:3])}{', …' * (len(others) > 3)}), and the scored data "
            "would lie among them. Name a folder of its own."
        )


def score_table(splits: Mapping[str, Any]) -> str:
    """Every score of every split in a line, from `describe_scores(dataset)["splits"]`."""
    several = len(splits) > 1
    head = (["split"] if several else []) + ["score", "by", "easy"]
    numbers = ["scored", "unscored", "min", "25 %", "median", "75 %", "max"]
    rows = []
    for split, described in splits.items():
        for column, facts in described["scores"].items():
            made = facts["provenance"]
            per_image = f", {made['per_image']} per image" if made["per_image"] else ""
            marks = [facts[name] for name in ("min", "q25", "median", "q75", "max")]
            rows.append(
                ([split] if several else [])
                + [column, f"{made['scorer']}{per_image}", made["easy"]]
                + [f"{facts['rows'] - facts['unscored']:,}", f"{facts['unscored']:,}"]
                + ["–" if mark is None else f"{mark:.4g}" for mark in marks]
            )
    return lines_of(head + numbers, rows, left=len(head))


def _save_and_print(
    scored: Dataset | DatasetDict, names: list[str], output: Path | None, side_file: Path | None, as_json: bool
) -> None:
    from hf_curriculum.scored_data import describe_scores, save_scored
    from hf_curriculum.scoring.join import save_scores

    if side_file is not None:  # first: rows that cannot be identified fail before images are written
        save_scores(scored, side_file, columns=names)
    if output is not None:
        save_scored(scored, output)
    described = describe_scores(scored)
    say(score_table(described["splits"]), described, as_json)
    note(f"saved to {' and '.join(str(place) for place in (output, side_file) if place)}")
    if output is not None:
        suggest("inspect", output, "--html", output.with_name(f"{output.name}-page"))
