"""One random input, read by another library and by ours: the verdict, and the words that inputs are made of."""

from __future__ import annotations

import gzip
import io
import linecache
import logging
import re
import tarfile
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
from hypothesis import strategies as st
from PIL import Image

import hf_curriculum

PACKAGE = str(Path(hf_curriculum.__file__).parent)
Draw = Callable[[st.SearchStrategy], Any]
Row = tuple[Any, ...]


class Reading(NamedTuple):
    """What ours reads."""

    rows: list[Row]
    columns: Iterable[str] = ()
    ids: Sequence[str] = ()
    """Per row, where its first cell is the colour of its picture."""


@dataclass
class Trial:
    """An input that was written.

    Args:
        axes: what is odd about it.
        ours: reads it.
        accepted: the readings that are right; none where only a refusal is.
        judged: whether the other library reads what was meant.
        fields: which are there beside the rows, and may not go without a word.
        ordered: whether the order of rows matters.
    """

    axes: set[str]
    ours: Callable[[], Reading]
    accepted: list[list[Row]]
    judged: bool
    fields: Sequence[str] = ()
    ordered: bool = True


class Verdict(NamedTuple):
    """`equal`, `refused`, `different` or `raw`, and the class of it."""

    kind: str
    why: str = ""

    @property
    def is_fault(self) -> bool:
        return self.kind in ("different", "raw")


class _Words(logging.Handler):
    """What the library says while it reads."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def judge(trial: Trial) -> Verdict:
    """Reads by ours, and compares."""
    logger, words = logging.getLogger("hf_curriculum"), _Words()
    before = logger.level, logger.propagate
    logger.addHandler(words)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        read = trial.ours()
    except Exception as error:
        return _refusal(error)
    finally:
        logger.removeHandler(words)
        logger.level, logger.propagate = before
    return _compare(trial, read, " ".join(words.said))


def _refusal(error: Exception) -> Verdict:
    """Whether it is an error of ours, in words: raised by a statement of ours, of a kind that users expect."""
    trace = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    file, line = trace.tb_frame.f_code.co_filename, trace.tb_lineno
    is_ours = file.startswith(PACKAGE) and linecache.getline(file, line).strip().startswith("raise")
    text = re.sub(r"\d+", "0", re.sub(r"(/[^\s'\"]+)+", "PATH", str(error)))[:90]
    if is_ours and isinstance(error, (ValueError, FileNotFoundError)) and not isinstance(error, UnicodeError):
        return Verdict("refused", f"{Path(file).stem}:{line} {text}")
    return Verdict("raw", f"{type(error).__name__} in {Path(file).name}: {text}")


def _compare(trial: Trial, read: Reading, words: str) -> Verdict:
    pictures = defaultdict(set)
    for image_id, row in zip(read.ids, read.rows, strict=False):
        pictures[image_id].add(row[0])
    if any(len(colours - {None}) > 1 for colours in pictures.values()):
        return Verdict("different", "one id stands for two pictures")
    if "text alone" in words and read.rows and all(row[0] is None for row in read.rows):
        return Verdict("refused", "loaded as text alone, and it says so")
    rows = read.rows if trial.ordered else sorted(read.rows, key=repr)
    readings = trial.accepted if trial.ordered else [sorted(one, key=repr) for one in trial.accepted]
    partly = bool(re.search("left out|leaves? out", words)) and any(_is_part(rows, one) for one in readings)
    if rows not in readings and not partly:
        return Verdict("different", _difference(rows, readings))
    lost = [name for name in trial.fields if name not in read.columns and name not in words]
    if lost:
        return Verdict("different", f"fields lost without a word: {lost}")
    return Verdict("equal") if rows in readings else Verdict("refused", "rows left out, and counted")


def _is_part(rows: Sequence[Row], whole: Sequence[Row]) -> bool:
    rest = iter(whole)
    return all(any(row == other for other in rest) for row in rows)


def _difference(rows: Sequence[Row], readings: Sequence[Sequence[Row]]) -> str:
    if not readings:
        return "read, and only a refusal is right"
    right = min(readings, key=lambda one: abs(len(one) - len(rows)))
    if len(right) != len(rows):
        return f"{'fewer' if len(rows) < len(right) else 'more'} rows than there are"
    pairs = [(one, other) for one, other in zip(rows, right, strict=True) if one != other]
    cells = {
        place
        for one, other in pairs
        for place in range(len(one))
        if one[place : place + 1] != other[place : place + 1]
    }
    return f"other values in cells {sorted(cells)}"


def describe(folder: Path, most: int = 700) -> str:
    """The files of an input, with the contents of texts."""
    lines = []
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        text = "" if content[:4] in (b"\x89PNG", b"PAR1") else f": {content[:most]!r}"
        if file.suffix == ".tar":
            with tarfile.open(file) as archive:
                members = [(entry.name, archive.extractfile(entry).read()) for entry in archive if entry.isfile()]
            text = "".join(
                f"\n        {name!r}: {one[:60] if one[:1] != png(0)[:1] else colour(one)}" for name, one in members
            )
        elif file.suffix == ".parquet":
            table = pq.read_table(file, partitioning=None)
            text = (
                f": {table.schema.types} {table.select([n for n in table.schema.names if n != 'image']).to_pylist()}"
            )
        lines.append(f"    {str(file.relative_to(folder))!r}{text}")
    return f"    in {folder.name!r}\n" + "\n".join(lines)


# ------------------------------------------------------------------ pictures

COLOURS = [(20 * number + 10, 255 - 17 * number, (number * 97) % 256) for number in range(12)]
SIZE = (16, 12)


@cache
def png(number: int) -> bytes:
    """A picture whose colour says which one it is."""
    buffer = io.BytesIO()
    Image.new("RGB", SIZE, COLOURS[number]).save(buffer, "PNG")
    return buffer.getvalue()


def colour(image: Any) -> int | None:
    """The number of a picture; None where there is none."""
    if image is None:
        return None
    if isinstance(image, (bytes, dict)):
        image = Image.open(io.BytesIO(image["bytes"] if isinstance(image, dict) else image))
    return COLOURS.index(image.convert("RGB").getpixel((3, 3)))


STEMS = [
    *("1", "2", "01", "000001", "COCO_val2014_000000000001", "dog", "Dog", "IMG_0012", "dog_12", "v1.0_a", "v1.0_b"),
    *("a b", "[1]", "x{1,2}", "50%20", "#1", "caf\u00e9", "cafe\u0301", "名前", "a,b", "a;b", "a'b", "a::b", "*", "-"),
    *("a ", " a", "%s", "x" * 150, "~", "1.png", "&amp;", "ß", "\U0001f415"),
]
FOLDERS = ["", "a/", "b/", "a/b/", "A/", "set[1]/", "train.v1/", "é/", "images/", "a b/", "2014/", "%d/"]
ENDINGS = [".png", ".png", ".png", ".PNG", ".jpg", ".jpeg", ".JPG"]
PLACES = [*["plain"] * 8, "set[1]", "a{b}", "a b", "caf\u00e9", "x::y", "50%", "#", "v1.0", "q?", "s*"]
"""Names of the folder that holds everything."""


def pick(draw: Draw, *options: Any) -> Any:
    """One of some."""
    return draw(st.sampled_from(options))


def seldom(draw: Draw, times: int = 4) -> bool:
    """Once in so many inputs."""
    return pick(draw, *[False] * (times - 1), True)


def draw_names(draw: Draw, most: int = 4) -> list[str]:
    """Distinct names of pictures, of few stems, so that some are alike."""
    if seldom(draw):
        return [f"{number}.png" for number in range(draw(st.integers(1, most)))]
    stems = draw(st.lists(st.sampled_from(STEMS), min_size=1, max_size=3, unique=True))
    parts = st.tuples(st.sampled_from(FOLDERS), st.sampled_from(stems), st.sampled_from(ENDINGS))
    return draw(st.lists(parts.map("".join), min_size=1, max_size=most, unique=True))


def write_pictures(folder: Path, names: Iterable[str]) -> None:
    """Writes pictures, each of the colour of its place."""
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(png(number))


class Pictures(NamedTuple):
    """Pictures on disk, and what a caption file calls them."""

    names: list[str]
    colours: list[int | str]
    """Per name; "?" where it is not decided which picture is meant."""
    images: str | None
    """The folder to give as `images`."""
    is_plain: bool
    """Whether each name is the path of a picture, as others need it."""
    collide: bool
    """Whether names lost their folders on disk, where one took another's place: rows must name them all."""


def draw_pictures(draw: Draw, folder: Path) -> Pictures:
    """Writes pictures in one of the usual layouts."""
    files = draw_names(draw)
    layout = pick(draw, "next to it", "next to it", "images/", "elsewhere", "flat")
    root = folder / {"next to it": "", "images/": "images", "elsewhere": "p [0]", "flat": "pics"}[layout]
    bases = [name.rpartition("/")[2] for name in files]
    places = bases if layout == "flat" else files
    write_pictures(root, places)
    last = {where: number for number, where in enumerate(places)}
    written = [pick(draw, *_written(name)) if seldom(draw) else name for name in files]
    if len(set(written)) < len(files):
        written = files
    collide = layout == "flat" and len(set(bases)) < len(bases)
    lost = ["?" if layout == "flat" and bases.count(base) > 1 else number for number, base in enumerate(bases)]
    # A name that is there is what it says.
    meant = [last.get(name.removeprefix("./"), lost[number]) for number, name in enumerate(written)]
    images = str(root) if layout in ("elsewhere", "flat") else None
    is_plain = all((root / name).is_file() for name in written)
    return Pictures(written, meant, images, is_plain and layout != "images/", collide)


def _written(name: str) -> list[str]:
    """How other systems write a name."""
    head, dot, ending = name.rpartition(".")
    return [
        name.replace("/", "\\"),
        unicodedata.normalize("NFD", name),
        unicodedata.normalize("NFC", name),
        f"./{name}",
        head + dot + (ending.lower() if ending.isupper() else ending.upper()),
    ]


# ------------------------------------------------------------------ texts

WORDS = [
    "a dog",
    "a cat",
    "two men",
    "runs",
    "the 2nd",
    "007",
    "1e5",
    "True",
    "1.0",
    "-",
    "=1+1",
    "#",
    "á",
    "ça va",
    "猫",
    "🐕",
]
MARKS = [
    '"',
    '""',
    '"quoted"',
    "'",
    "it's",
    '5"',
    "“so”",
    ",",
    ", ",
    ";",
    "|",
    "\\",
    '\\"',
    "\\n",
    "/",
    "`",
    "\xa0",
    "\u2028",
    "\x85",
]
BREAKS = [*["\n", "\r\n", "\r", "\t"] * 3, "\n1.png,a dog\n"]
EMPTY = ["", " ", "NA", "null", "None", "nan", "N/A", "NULL"]


def texts(*, empty: bool = True) -> st.SearchStrategy[str]:
    """Captions: words, and what takes readers in."""
    word, mark = st.sampled_from(WORDS), st.sampled_from([*MARKS, *BREAKS])
    kinds = [word, word, st.lists(st.one_of(word, mark), min_size=1, max_size=4).map("".join)]
    kinds += [st.lists(st.one_of(word, word, mark), min_size=2, max_size=4).map(" ".join)]
    kinds += [st.sampled_from(EMPTY)] if empty else []
    return st.one_of(kinds).map(lambda text: text.rstrip("\r"))  # csv.writer leaves it bare: a part of the line's end


def axes_of(names: Iterable[str], captions: Iterable[Any], **others: object) -> set[str]:
    """What is odd about an input: its names, its texts, and what else is true of it."""
    captions = list(captions)
    others["names"] = any(not re.fullmatch(r"[a-z0-9]+\.png", name) for name in names)
    others["quotes"] = any(isinstance(one, str) and re.search(r"[\"',;|\t\r\n\\]", one) for one in captions)
    others["nulls"] = others.get("nulls") or any(one is None or one in EMPTY for one in captions)
    return {name.replace("_", " ") for name, there in others.items() if there}


class Reader(NamedTuple):
    """How a kind of input is drawn, written and judged."""

    name: str
    other: str
    share: int
    """Of 1,000 inputs."""
    trial: Callable[[Draw, Path], Trial]
