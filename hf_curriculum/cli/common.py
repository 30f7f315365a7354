"""What commands share: options, data and curricula by name, results, notes, and errors in a line.

Results go to standard output, and with `--json` they are all that stands there; notes, progress and errors go to
standard error. A command ends with 0, with 1 where the work failed, with 2 where it was called in a way that cannot
work, and with 130 on Ctrl-C.
"""

from __future__ import annotations

import errno
import functools
import io
import json
import math
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hf_curriculum.config import IMAGE_SUFFIXES, redact, without_nan
from hf_curriculum.files import read_json
from hf_curriculum.hub.errors import in_words
from hf_curriculum.markdown import one_line
from hf_curriculum.names import CURRICULA

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

    from hf_curriculum.planning.curriculum import Curriculum


AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")]
BATCH_SIZE = 32
"""Examples per step where none is named, in `plan` and in `train`."""
WITHOUT_SPLITS = "train"
"""The default of `--split`, which data without splits may be called too."""


def load_complete(path: Path) -> Dataset | DatasetDict:
    """A data set that `hf-curriculum score` saved."""
    from hf_curriculum.scored_data import FILE_NAME, load_scored
    from hf_curriculum.scored_shards import MANIFEST

    if path.is_file():
        command = shlex.join(["hf-curriculum", "score", str(path), "scored"])
        raise typer.BadParameter(
            f"{path} is a file, and only data that are scored are read here. Score it first, with --images FOLDER if "
            f"it names images: {command}"
        )
    if not path.is_dir():
        raise typer.BadParameter(f"{path} is no folder. Score a data set first: hf-curriculum score SOURCE {path}")
    if not any((path / name).is_file() for name in (FILE_NAME, MANIFEST, "buckets.json")):
        raise typer.BadParameter(
            f"{path} holds no scores. Score it first: {shlex.join(['hf-curriculum', 'score', str(path), 'scored'])}"
        )
    return load_scored(path)


def model_of(name: str) -> str:
    """The model of a run's folder, where that is named."""
    folder = Path(name)
    inside = folder / "model"
    if (folder / "config.json").exists():
        return name
    if (inside / "config.json").is_file():
        return str(inside)
    if runs := sorted(file.parents[1] for file in folder.glob("*/model/config.json")):
        raise typer.BadParameter(
            f"{name} holds {len(runs)} run{'s' * (len(runs) > 1)} and is no model. Name one of them: "
            f"{', '.join(map(str, runs))}"
        )
    return name


def name_of(path: Path) -> str:
    """What a system is called: its folder, also where the `model` or `captions.json` in it is named; else the file."""
    path = path.resolve()
    return path.parent.name if path.name in ("model", "captions.json") else path.stem if path.is_file() else path.name


def named_paths(given: Iterable[str], option: str) -> dict[str, Path]:
    """Name → path, of an option that may be repeated and takes PATH or NAME=PATH."""
    found: dict[str, Path] = {}
    for one in given:
        name, equals, path = one.partition("=")
        if not equals or Path(one).exists():
            name, path = name_of(Path(one)), one
        if name in found:
            raise typer.BadParameter(
                f"Two of them are called {name!r}, and one would hide the other. Name them: {option} NAME={path}",
                param_hint=option,
            )
        found[name] = Path(path)
    return found


def load_split(path: Path, split: str) -> Dataset:
    """One split of a data set that `hf-curriculum score` saved."""
    from datasets import DatasetDict

    loaded = load_complete(path)
    if not isinstance(loaded, DatasetDict):
        if split not in (WITHOUT_SPLITS, str(loaded.split)):
            raise typer.BadParameter(f"{path} has no splits, and so not {split!r}. Leave out --split.")
        return loaded
    if split not in loaded:
        raise typer.BadParameter(f"{path} has the splits {list(loaded)}, and not {split!r}. Pass --split.")
    return loaded[split]


def named_curriculum(given: str, option: str) -> Curriculum:
    """A curriculum from its name, `module:Class`, file, JSON or YAML."""
    from hf_curriculum.planning.curriculum import Curriculum, curriculum_from
    from hf_curriculum.scorers.registry import import_named

    try:
        import_named(given, CURRICULA, Curriculum)
        return curriculum_from(given)
    except (ValueError, TypeError, OSError) as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def score_for(rule: Curriculum, data: Dataset, named: str | None) -> str | None:
    """The score column that a curriculum uses: the one named, or else the first one of the data."""
    from hf_curriculum.provenance import read_provenance

    known = list(read_provenance(data))
    if named is not None and named not in data.column_names:
        raise typer.BadParameter(
            f"The data has no column {named!r}. Its scores are {known}.", param_hint="--score-column"
        )
    if not rule.needs_scores:
        return None
    if named is None and not known:
        raise typer.BadParameter(
            f"None of {data.column_names} is recorded as a score. Name the column of numbers that it goes by.",
            param_hint="--score-column",
        )
    return known[0] if named is None else named


def above_zero(value: float | None) -> float | None:
    """Checks that an option's number is finite and more than 0, or not given."""
    if value is not None and not (math.isfinite(value) and value > 0):
        raise typer.BadParameter(f"{value:g} was given; a number above 0 is needed.")
    return value


def say(result: str, facts: Any, as_json: bool) -> None:
    """The result of a command on standard output: for people, or as JSON, where NaN and infinity are null."""
    if as_json:
        ascii_alone = not (sys.stdout.encoding or "").lower().startswith("utf")
        result = json.dumps(without_nan(facts), indent=1, ensure_ascii=ascii_alone, allow_nan=False)
    typer.echo(result)


def note(text: str) -> None:
    """A line beside the result, on standard error."""
    typer.echo(text, err=True)


def suggest(*words: str | Path) -> None:
    """Prints the next command, as it can be typed."""
    note("next: " + " ".join(["hf-curriculum", *(shlex.quote(str(word)) for word in words)]))


def typed_again(*more: str) -> str:
    """This command as it can be typed again, with further words; a launcher of several processes is left out."""
    words = [*sys.argv[1:], *(word for word in more if word not in sys.argv)]
    launched = {"RANK", "SLURM_STEP_NUM_TASKS"} & os.environ.keys()
    return ("… " if launched else "") + redact(shlex.join(["hf-curriculum", *words]))


def hide_bars_unless_watched() -> None:
    """No progress bars of `datasets` where nobody watches: a log file would keep every state of each."""
    if not sys.stderr.isatty():
        import datasets

        datasets.disable_progress_bars()


def disk_is_full(error: BaseException | None, folder: Path) -> bool:
    """Whether that was why something could not be written into `folder`."""
    while error is not None:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error):
            return True
        if isinstance(error, RuntimeError) and free_bytes(folder) < 1 << 20:
            return True  # PyTorch's writer says "unexpected pos"
        error = error.__cause__ or error.__context__
    return False


def free_bytes(folder: Path) -> int:
    """Room on the disk of a folder, which need not be there yet."""
    return shutil.disk_usage(next(place for place in (folder, *folder.absolute().parents) if place.exists())).free


def in_split(split: str) -> tuple[str, ...]:
    """The option `--split` for the next command, where it is not the default."""
    return () if split == WITHOUT_SPLITS else ("--split", split)


def plainly(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose errors are printed in a line, with exit status 1; faults of the program show a traceback."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")  # a caption may hold what a terminal's encoding does not
        try:
            command(*args, **kwargs)
        except BrokenPipeError:  # the reader of our output, such as `head`, has ended: typer ends quietly
            raise
        except Exception as error:
            said = in_words(error)
            if said is None:
                raise
            note(f"Error: {said}")
            raise typer.Exit(1) from error

    return run


def lines_of(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A table for terminals, without control characters: `left` columns stand to the left, the others to the right."""
    table = [[one_line(cell) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if position < left else cell.rjust(width)
            for position, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    )


def complete_curriculum(incomplete: str) -> list[str]:
    """Names of curricula that begin so."""
    return beginning(CURRICULA, incomplete)


def complete_column(ctx: typer.Context, incomplete: str) -> list[str]:
    """Score columns that begin so, of the data set that the command line names."""
    # Behind an unfinished option the arguments are not sorted out yet.
    for given in (ctx.params.get("dataset"), *ctx.args):
        try:
            described = read_json(Path(str(given)) / "scores.json", "")
            names = dict.fromkeys(name for split in described["splits"].values() for name in split["scores"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # no such data set, or a damaged file, which the command itself reports
        return beginning(names, incomplete)
    return []


def beginning(names: Iterable[str], incomplete: str) -> list[str]:
    """The names that begin so."""
    return [name for name in names if name.startswith(incomplete)]


ScoredFolder = Annotated[Path, typer.Argument(help="A data set saved by `hf-curriculum score`.")]
ScoreColumn = Annotated[
    str | None, typer.Option(help="The score to sort by; by default the first one.", autocompletion=complete_column)
]
Split = Annotated[str, typer.Option(help="Which split, where there are several.")]
Epochs = Annotated[
    float | None, typer.Option(help="Epochs, for a curriculum that has no length of its own.", callback=above_zero)
]


def image_files(given: Iterable[Path], ids: bool) -> Iterator[Path]:
    """The files that are named, and the images of the folders; with `ids`, names of no file too."""
    from hf_curriculum.data.left_out import LeftOut
    from hf_curriculum.data.readers.folder import find_files

    for path in given:
        if path.is_dir():
            left_out = LeftOut()
            inside = find_files(path, IMAGE_SUFFIXES, left_out, "files of other endings (no images)", below=False)
            left_out.report(path, ())
            if not inside:
                raise ValueError(
                    f"The folder {path} holds no image ({', '.join(IMAGE_SUFFIXES)}). Name files, or another."
                )
            yield from inside
        elif ids or path.exists():
            yield path
        else:
            raise ValueError(f"There is no image {path}. Name a file, or a folder of images.")


def read_image(file: Path) -> tuple[Any, str | None]:
    """An image, or why there is none."""
    from hf_curriculum.data.images import UnreadableImageError, to_rgb

    if not file.is_file():  # a pipe would be waited for
        return None, f"{file} is no file."
    try:
        return to_rgb(file), None
    except UnreadableImageError as error:
        return None, str(error)


def load_rows(
    data: str, split: str | None, images: str | None, *, read: bool, shown: bool
) -> tuple[Dataset, str | None]:
    """The rows of a split, without those whose images cannot be read, where they are read; and the split's name."""
    from datasets import Dataset

    from hf_curriculum.columns import IMAGE
    from hf_curriculum.data.image_files import drop_unreadable_images
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
