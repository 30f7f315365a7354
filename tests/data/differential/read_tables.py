"""Tables of captions: pandas and `csv` in its strict mode judge; with pictures, PIL opens what a row names."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from judging import Draw, Reader, Reading, Row, Trial, are_odd, colour, draw_names, draw_pictures, seldom, text_axes, texts
from hypothesis import strategies as st

from hf_curriculum import load_captioned

HEADERS = [("file_name", "caption"), ("image", "caption"), ("filename", "text"), ("Image", "Caption"), ("img", "sentence")]
ENCODINGS = ["utf-8", "utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-16-le", "cp1252"]
DIALECTS: dict[str, dict[str, Any]] = {
    "minimal": {},
    "all": {"quoting": csv.QUOTE_ALL},
    "nonnumeric": {"quoting": csv.QUOTE_NONNUMERIC},
    "none": {"quoting": csv.QUOTE_NONE, "escapechar": "\\"},
    "escaped": {"doublequote": False, "escapechar": "\\", "quoting": csv.QUOTE_ALL},
}
"""Of csv.writer, and what pandas is told of them."""


def records_of(
    draw: Draw, names: Sequence[str], captions: st.SearchStrategy, nulls: bool, every: bool = False
) -> tuple[list[dict], list[str]]:
    """Rows with a file, a caption and perhaps an id and other fields; and which of those there are."""
    more = {name: seldom(draw) for name in ("image_id", "source", "weight")}
    count = draw(st.integers(1, 5))
    files = [*(names if every else ()), *(draw(st.sampled_from(names)) for _ in range(count))]
    ids = draw(st.sampled_from([[1, 2, 3, 4], ["x", "y", "z", "1"], [1, 1, 2, 2], ["1", 1, "01", 2], [0, -1, 10**12, 7]]))
    id_of = dict(zip(names, ids, strict=False))
    values = st.sampled_from(["web", "x", 'a "b"', *([None] if nulls else [])])
    numbers = st.sampled_from([1, 1, 2, *([0.5, None, "n/a"] if nulls else [])])
    rows = []
    for name in files:
        row: dict[str, Any] = {"file": name, "caption": draw(captions)}
        row |= {"image_id": id_of[name]} if more["image_id"] else {}
        row |= {"source": draw(values)} if more["source"] else {}
        row |= {"weight": draw(numbers)} if more["weight"] else {}
        rows.append(row)
    return rows, [name for name, there in more.items() if there]


def as_rows(records: Sequence[Mapping[str, Any]], more: Sequence[str], blank: Any = None) -> list[Row]:
    """Name, caption, id of each row, an empty cell being nothing in tables of text."""
    text = lambda cell: cell if blank is None else ("" if cell is None or cell != cell else str(cell))  # noqa: E731
    return [
        (
            record["file"],
            text(record["caption"]),
            str(record["image_id"] if "image_id" in more and record["image_id"] is not None else record["file"]),
        )
        for record in records
    ]


def ours(path: Path, blank: Any = None, **options: Any) -> Reading:
    """The rows of a table as text alone."""
    data = load_captioned(path, images=False, check_images=False, **options)
    text = lambda cell: cell if blank is None else cell or ""  # noqa: E731
    columns = data.column_names
    name = "file_name" if "file_name" in columns else "image_id"
    rows = [(row[name], text(row["caption"]), row["image_id"]) for row in data]
    return Reading(rows, [*columns, *((data.info.description or "").split("`"))])


def write_csv(records: Sequence[Mapping[str, Any]], header: Mapping[str, str], dialect: str, options: Mapping[str, Any]) -> str:
    """The text of a table as csv.writer, pandas or a person writes it."""
    cells = [[row[name] for name in header] for row in records]
    if dialect.startswith("pandas"):
        frame = pd.DataFrame(cells, columns=list(header.values()), dtype=object)
        return frame.to_csv(sep=options["sep"], lineterminator=options["end"], index=dialect == "pandas, index")
    if dialect == "by hand":
        rows = [list(header.values()), *(["" if cell is None else str(cell) for cell in row] for row in cells)]
        return options["end"].join(options["sep"].join(row) for row in rows) + options["end"]
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=options["sep"], lineterminator=options["end"], **DIALECTS[dialect])
    writer.writerows([list(header.values()), *cells])
    return out.getvalue()


def write_text(draw: Draw, path: Path, text: str, encoding: str) -> Path:
    """The file that was written, compressed or not."""
    content = text.encode(encoding)
    if seldom(draw, 10):
        path, content = path.with_name(f"{path.name}.gz"), gzip.compress(content)
    path.write_bytes(content)
    return path


def pandas_rows(path: Path, header: Mapping[str, str], more: Sequence[str], **told: Any) -> list[Row] | None:
    """What pandas reads, None where it refuses or makes an index of a column."""
    try:
        frame = pd.read_csv(path, dtype=str, keep_default_na=False, **told)
    except Exception:
        return None
    if not isinstance(frame.index, pd.RangeIndex) or not set(header.values()) <= set(frame.columns):
        return None
    frame = frame.rename(columns={theirs: ours for ours, theirs in header.items()})
    return as_rows(frame.to_dict("records"), more, "")


def strict_rows(text: str, header: Mapping[str, str], more: Sequence[str], sep: str) -> list[Row] | None:
    """What `csv` reads in its strict mode, None where the text is not well formed."""
    try:
        lines = [line for line in csv.reader(io.StringIO(text, newline=""), delimiter=sep, strict=True) if line]
    except csv.Error:
        return None
    if any(len(line) != len(lines[0]) for line in lines):
        return None
    names = {theirs: ours for ours, theirs in header.items()}
    return as_rows([dict(zip([names.get(name, name) for name in lines[0]], line, strict=True)) for line in lines[1:]], more, "")


def _separated(ending: str, separators: Sequence[str]) -> Any:
    def trial(draw: Draw, folder: Path) -> Trial:
        names = draw_names(draw)
        encoding, end = draw(st.sampled_from(ENCODINGS)), draw(st.sampled_from(["\n", "\n", "\r\n", "\r"]))
        sep, dialect = draw(st.sampled_from(separators)), draw(st.sampled_from([*DIALECTS, "pandas", "pandas, index", "by hand"]))
        records, more = records_of(draw, names, texts() if draw(st.booleans()) else st.sampled_from(["a dog", "a cat"]), True)
        file, caption = draw(st.sampled_from(HEADERS))
        header = {"file": file, "caption": caption, **{name: name for name in more}}
        header = dict(draw(st.permutations(list(header.items()))))
        text = write_csv(records, header, dialect, {"sep": sep, "end": end})
        twice = seldom(draw, 20)
        if twice:  # the caption's column a second time
            first, rest = text.split(end, 1)
            text = end.join([f"{first}{sep}{caption}", *(f"{line}{sep}x" for line in rest.split(end) if line)])
        text = text.rstrip("\r\n") if seldom(draw) else text
        text = text.encode(encoding, "ignore").decode(encoding)  # what it cannot hold is gone for all
        path = write_text(draw, folder / f"t{ending}", text, encoding)
        told = {"sep": sep, "encoding": encoding}
        naive = pandas_rows(path, header, more, **told)
        meant = as_rows(_encodable(records, encoding), more, "")
        options = {name: value for name, value in DIALECTS.get(dialect, {}).items()}
        by_dialect = naive if not options else pandas_rows(path, header, more, **told, **options)
        as_written = pandas_rows(path, header, more, **told, quoting=csv.QUOTE_NONE) if dialect == "by hand" else None
        accepted = [rows for rows in (by_dialect, as_written) if rows == meant and not twice]
        if naive is not None and not twice and naive == strict_rows(text, header, more, sep) and naive not in accepted:
            accepted.append(naive)
        axes = text_axes(row["caption"] for row in records) | {f"by {dialect}"}
        axes |= {"encodings"} if encoding != "utf-8" else set()
        axes |= {"line ends"} if end != "\n" else set()
        axes |= {"names"} if are_odd(names) else set()
        axes |= {"ids"} if "image_id" in more else set()
        axes |= {"nulls"} if any(None in row.values() for row in records) else set()
        axes |= {"header twice"} if twice else set()
        judged = not twice and pandas_rows(path, header, more, sep=sep) == meant
        return Trial(axes, lambda: ours(path, ""), accepted, judged, [name for name in more if name != "image_id"])

    return trial


def _encodable(records: Sequence[dict], encoding: str) -> list[dict]:
    drop = lambda cell: cell.encode(encoding, "ignore").decode(encoding) if isinstance(cell, str) else cell  # noqa: E731
    return [{name: drop(cell) for name, cell in row.items()} for row in records]


def _captions_in_json() -> st.SearchStrategy:
    one = st.one_of(texts(), st.none())
    return st.one_of(texts(), texts(), one, st.lists(one, min_size=1, max_size=3))


def _json(ending: str) -> Any:
    def trial(draw: Draw, folder: Path) -> Trial:
        names = draw_names(draw)
        many = draw(st.booleans())
        records, more = records_of(draw, names, _captions_in_json() if many else texts(empty=False), True)
        file, caption = draw(st.sampled_from(HEADERS))
        encoding = draw(st.sampled_from(["utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "cp1252"]))
        header = {"file": file, "caption": caption, **{name: name for name in more}}
        missing = draw(st.booleans())
        objects = [{header[k]: v for k, v in row.items() if not (missing and v is None)} for row in records]
        ascii_only, indent = draw(st.booleans()), draw(st.sampled_from([None, None, 1]))
        odd = draw(st.sampled_from([*[None] * 17, "surrogate", "key twice", "blank lines"]))
        lines = [json.dumps(one, ensure_ascii=ascii_only or encoding == "cp1252") for one in objects]
        if odd == "surrogate":
            lines[-1] = json.dumps({**objects[-1], caption: "a dog \ud83d"})
        if odd == "key twice":
            lines[-1] = lines[-1][:-1] + f', "{caption}": "another"}}'
        end = draw(st.sampled_from(["\n", "\n", "\r\n"]))
        blank = end if odd == "blank lines" else ""
        as_list = ending == ".json" and not seldom(draw)
        text = f"[{','.join(lines)}]" if as_list else end.join(line + blank for line in lines) + end
        if as_list and indent and odd not in ("surrogate", "key twice"):
            text = json.dumps(objects, indent=indent, ensure_ascii=ascii_only or encoding == "cp1252")
        path = write_text(draw, folder / f"t{ending}", text, encoding)
        flat = [{**row, "caption": each} for row in records for each in (row["caption"] if isinstance(row["caption"], list) else [row["caption"]])]
        meant = as_rows(flat, more)
        pairs = _pandas_pairs(path, header, lines=not as_list)
        axes = text_axes(row["caption"] for row in flat)
        axes |= {"encodings"} if encoding != "utf-8" or odd == "surrogate" else set()
        axes |= {"line ends"} if end != "\n" or blank else set()
        axes |= {"names"} if are_odd(names) else set()
        axes |= {"ids"} if "image_id" in more else set()
        axes |= {"nulls"} if any(None in row.values() for row in records) else set()
        axes |= {odd} if odd else set()
        accepted = [] if odd in ("surrogate", "key twice") else [meant]
        judged = bool(accepted) and pairs == [row[:2] for row in meant]
        fields = [name for name in more if name != "image_id" and any(name in one for one in objects)]
        return Trial(axes, lambda: ours(path), accepted, judged, fields)

    return trial


def _pandas_pairs(path: Path, header: Mapping[str, str], lines: bool) -> list[Row] | None:
    try:
        frame = pd.read_json(path, lines=lines, dtype=False, convert_dates=False, convert_axes=False)
        cells = zip(frame[header["file"]], frame[header["caption"]], strict=True)
    except Exception:
        return None
    none = lambda cell: None if isinstance(cell, float) and cell != cell else cell  # noqa: E731
    return [(name, none(each)) for name, cell in cells for each in (cell if isinstance(cell, list) else [cell])]


def _with_pictures(draw: Draw, folder: Path) -> Trial:
    pictures = draw_pictures(draw, folder)
    words = st.sampled_from(["a dog", "a cat", 'a "b", c'])
    records, more = records_of(draw, pictures.names, words, False, every=pictures.collide)
    path = folder / draw(st.sampled_from(["captions.csv", "captions.jsonl", "metadata.csv", "x.tsv"]))
    header = {"file": "file_name", "caption": "caption", **{name: name for name in more}}
    if path.suffix == ".jsonl":
        text = "".join(json.dumps({header[k]: v for k, v in row.items()}) + "\n" for row in records)
    else:
        text = write_csv(records, header, "minimal", {"sep": "\t" if path.suffix == ".tsv" else ",", "end": "\n"})
    path.write_text(text, encoding="utf-8", newline="")
    meant_by = dict(zip(pictures.names, pictures.colours, strict=True))
    meant = [(meant_by[row["file"]], row["caption"]) for row in records]
    root = Path(pictures.images) if pictures.images else folder

    def theirs() -> list[Row]:
        return [(colour((root / row["file"]).read_bytes()), row["caption"]) for row in records]

    axes = {"pictures"} | text_axes(row["caption"] for row in records)
    axes |= {"names"} if are_odd(pictures.names) else set()
    axes |= {"ids"} if "image_id" in more else set()
    ids: dict[str, set] = {}
    for row in records:
        ids.setdefault(str(row.get("image_id", row["file"])), set()).add(meant_by[row["file"]])
    clash = any(len(known) > 1 for known in ids.values())
    source = folder if path.name != "x.tsv" and draw(st.booleans()) else path
    return Trial(
        axes | ({"id twice"} if clash else set()),
        lambda: with_pictures(source, pictures.images),
        [] if clash and pictures.is_plain else [meant],
        pictures.is_plain and not clash and theirs() == meant,
    )


def with_pictures(source: Path, images: str | None, **options: Any) -> Reading:
    """The rows of captioned pictures."""
    data = load_captioned(source, images=images, **options)
    if "image" not in data.column_names:
        return Reading([(None, caption) for caption in data["caption"]])
    rows = [(colour(image), caption) for image, caption in zip(data["image"], data["caption"], strict=True)]
    return Reading(rows, data.column_names, data["image_id"][:])


READERS = [
    Reader("csv", "pandas.read_csv", 220, _separated(".csv", [",", ",", ",", ";", "|"])),
    Reader("tsv", "pandas.read_csv", 80, _separated(".tsv", ["\t"])),
    Reader("txt", "pandas.read_csv", 40, _separated(".txt", ["\t", ",", "|"])),
    Reader("jsonl", "pandas.read_json", 100, _json(".jsonl")),
    Reader("json", "pandas.read_json", 80, _json(".json")),
    Reader("table with pictures", "PIL", 100, _with_pictures),
]
