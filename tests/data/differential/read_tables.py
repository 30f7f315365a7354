"""Tables of captions: pandas and `csv` in its strict mode judge; with pictures, PIL opens what a row names."""

from __future__ import annotations

import csv
import gzip
import io
import json
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from hypothesis import strategies as st
from judging import Draw, Reader, Reading, Row, Trial, axes_of, colour, draw_names, draw_pictures, pick, seldom, texts

from hf_curriculum import load_captioned

HEADERS = [
    ("file_name", "caption"),
    ("image", "caption"),
    ("filename", "text"),
    ("Image", "Caption"),
    ("img", "sentence"),
]
DIALECTS: dict[str, dict[str, Any]] = {
    "minimal": {},
    "all": {"quoting": csv.QUOTE_ALL},
    "nonnumeric": {"quoting": csv.QUOTE_NONNUMERIC},
    "none": {"quoting": csv.QUOTE_NONE, "escapechar": "\\"},
    "escaped": {"doublequote": False, "escapechar": "\\", "quoting": csv.QUOTE_ALL},
}
"""Of csv.writer, and what pandas is told of them."""
Header = Mapping[str, str]
"""Our name → theirs."""


def draw_records(
    draw: Draw, names: Sequence[str], captions: st.SearchStrategy, nulls: bool, every: bool = False
) -> list[dict]:
    """Rows with a file, a caption and perhaps an id and other fields."""
    files = [*(names if every else ()), *(pick(draw, *names) for _ in range(draw(st.integers(1, 5))))]
    ids = pick(draw, [1, 2, 3, 4], ["x", "y", "z", "1"], [1, 1, 2, 2], ["1", 1, "01", 2], [0, -1, 10**12, 7])
    values = {"source": ["web", "x", 'a "b"', *([None] if nulls else [])]}
    values["weight"] = [1, 1, 2, *([0.5, None, "n/a"] if nulls else [])]
    rows = [{"file": name, "caption": draw(captions)} for name in files]
    if seldom(draw):
        rows = [{**row, "image_id": ids[names.index(row["file"])]} for row in rows]
    for name, some in values.items():
        rows = [{**row, name: pick(draw, *some)} for row in rows] if seldom(draw) else rows
    return rows


def draw_header(draw: Draw, records: Sequence[dict]) -> dict[str, str]:
    """What the columns are called, in some order."""
    header = dict(zip(("file", "caption"), pick(draw, *HEADERS), strict=True)) | {
        name: name for name in list(records[0])[2:]
    }
    return dict(draw(st.permutations(list(header.items()))))


def as_rows(records: Sequence[Mapping[str, Any]], blank: bool = False) -> list[Row]:
    """File, caption and id of each row; an empty cell is nothing in tables of text (`blank`)."""
    text = lambda cell: ("" if cell is None or cell != cell else str(cell)) if blank else cell  # noqa: E731
    ids = (spelled(row["file"]) if row.get("image_id") is None else row["image_id"] for row in records)
    return [(row["file"], text(row["caption"]), str(one)) for row, one in zip(records, ids, strict=True)]


def spelled(name: str) -> str:
    """A name's id: one for all spellings of it."""
    return unicodedata.normalize("NFC", name).replace("\\", "/").removeprefix("./")


def ours(path: Path, blank: bool = False) -> Reading:
    """The rows of a table as text alone."""
    data = load_captioned(path, images=False)
    rows = [(row["file_name"], (row["caption"] or "") if blank else row["caption"], row["image_id"]) for row in data]
    return Reading(rows, data.column_names)


def with_pictures(source: Path, images: str | None) -> Reading:
    """The rows of captioned pictures."""
    data = load_captioned(source, images=images)
    seen = map(colour, data["image"]) if "image" in data.column_names else [None] * len(data)
    return Reading(list(zip(seen, data["caption"], strict=True)), data.column_names, data["image_id"][:])


def write_csv(records: Sequence[dict], header: Header, dialect: str, sep: str, end: str) -> str:
    """The text of a table as csv.writer, pandas or a person writes it."""
    cells = [[row[name] for name in header] for row in records]
    if dialect.startswith("pandas"):
        frame = pd.DataFrame(cells, columns=list(header.values()), dtype=object)
        return frame.to_csv(sep=sep, lineterminator=end, index=dialect == "pandas, index")
    rows = [list(header.values()), *cells]
    if dialect == "by hand":
        return "".join(sep.join("" if cell is None else str(cell) for cell in row) + end for row in rows)
    out = io.StringIO(newline="")
    csv.writer(out, delimiter=sep, lineterminator=end, **DIALECTS[dialect]).writerows(rows)
    return out.getvalue()


def write_text(draw: Draw, path: Path, text: str, encoding: str) -> Path:
    """The file that was written, compressed or not."""
    if seldom(draw, 10):
        path = path.with_name(f"{path.name}.gz")
    path.write_bytes(gzip.compress(text.encode(encoding)) if path.suffix == ".gz" else text.encode(encoding))
    return path


def pandas_rows(content: bytes, header: Header, **told: Any) -> list[Row] | None:
    """What pandas reads, None where it refuses or makes an index of a column."""
    try:
        frame = pd.read_csv(io.BytesIO(content), dtype=str, keep_default_na=False, **told)
    except Exception:
        return None
    if not isinstance(frame.index, pd.RangeIndex) or not set(header.values()) <= set(frame.columns):
        return None
    return as_rows(frame.rename(columns={theirs: ours for ours, theirs in header.items()}).to_dict("records"), True)


def strict_rows(text: str, header: Header, sep: str) -> list[Row] | None:
    """What `csv` reads in its strict mode, None where the text is not well formed."""
    try:
        first, *lines = [
            line
            for line in csv.reader(io.StringIO(text, newline=""), delimiter=sep, strict=True)
            if "".join(line).strip()
        ]
    except csv.Error:
        return None
    names = [{theirs: ours for ours, theirs in header.items()}.get(name, name) for name in first]
    return (
        as_rows([dict(zip(names, line, strict=True)) for line in lines], True)
        if all(len(line) == len(first) for line in lines)
        else None
    )


def _separated(ending: str, separators: str) -> Callable[[Draw, Path], Trial]:
    def trial(draw: Draw, folder: Path) -> Trial:
        names, sep, end = draw_names(draw), pick(draw, *separators), pick(draw, "\n", "\n", "\r\n", "\r")
        encoding = pick(draw, *["utf-8"] * 4, "utf-8-sig", "utf-16", "utf-16-le", "cp1252")
        dialect = pick(draw, *DIALECTS, "pandas", "pandas, index", "by hand")
        records = draw_records(
            draw, names, texts() if draw(st.booleans()) else st.sampled_from(["a dog", "a cat"]), True
        )
        header = draw_header(draw, records)
        text = write_csv(records, header, dialect, sep, end)
        twice = seldom(draw, 20)
        if twice:  # the caption's column a second time
            first, *rest = text.split(end)
            text = end.join([f"{first}{sep}{header['caption']}", *(f"{line}{sep}x" for line in rest if line)])
        text = text.rstrip("\r\n") if seldom(draw) else text
        can = lambda one: one.encode(encoding, "ignore").decode(encoding) if isinstance(one, str) else one  # noqa: E731
        text, records = can(text), [{name: can(cell) for name, cell in row.items()} for row in records]
        path, content, told = (
            write_text(draw, folder / f"t{ending}", text, encoding),
            text.encode(encoding),
            {"sep": sep},
        )
        meant = as_rows(records, True)
        judged = not twice and pandas_rows(content, header, **told) == meant
        told["encoding"] = encoding
        readings = [pandas_rows(content, header, **told, **DIALECTS.get(dialect, {}))]
        readings += [pandas_rows(content, header, **told, quoting=csv.QUOTE_NONE)] if dialect == "by hand" else []
        accepted = [meant] if meant in readings else []
        strict = strict_rows(text, header, sep)
        accepted += [strict] if strict is not None else []
        axes = axes_of(
            names,
            (cell for row in records for cell in row.values()),
            encodings=encoding != "utf-8",
            line_ends=end != "\n",
            ids="image_id" in header,
            header_twice=twice,
        )
        fields = [name for name in header if name in ("source", "weight")]
        return Trial(axes | {f"by {dialect}"}, lambda: ours(path, True), [] if twice else accepted, judged, fields)

    return trial


def _json(ending: str) -> Callable[[Draw, Path], Trial]:
    one = st.one_of(texts(), st.none())
    captions = st.one_of(texts(), texts(), one, st.lists(one, min_size=1, max_size=3))

    def trial(draw: Draw, folder: Path) -> Trial:
        names = draw_names(draw)
        records = draw_records(draw, names, captions if draw(st.booleans()) else texts(empty=False), True)
        header, missing, end = draw_header(draw, records), draw(st.booleans()), pick(draw, "\n", "\n", "\r\n")
        encoding = pick(draw, "utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "cp1252")
        objects = [{header[k]: v for k, v in row.items() if not (missing and v is None)} for row in records]
        options = {"ensure_ascii": draw(st.booleans()) or encoding == "cp1252"}
        odd = pick(draw, *[None] * 17, "surrogate", "key twice", "blank lines")
        lines = [json.dumps(one, **options) for one in objects]
        if odd == "surrogate":
            lines[-1] = json.dumps({**objects[-1], header["caption"]: "a dog \ud83d"})
        if odd == "key twice":
            lines[-1] = (
                f'{{"{header["caption"]}": "another", {json.dumps({**objects[-1], header["caption"]: "a dog"})[1:]}'
            )
        as_list = ending == ".json" and not seldom(draw)
        text = end.join(line + end * (odd == "blank lines") for line in lines) + end
        text = f"[{pick(draw, ',', ', ', ',' + end).join(lines)}]" if as_list else text
        path = write_text(draw, folder / f"t{ending}", text, encoding)
        several = lambda cell: cell if isinstance(cell, list) else [cell]  # noqa: E731
        meant = as_rows([{**row, "caption": each} for row in records for each in several(row["caption"])])
        try:
            frame = pd.read_json(io.BytesIO(text.encode(encoding)), lines=not as_list, dtype=False)
            pairs = zip(frame[header["file"]], frame[header["caption"]], strict=True)
            theirs = [(name, None if each != each else each) for name, cell in pairs for each in several(cell)]
        except Exception:
            theirs = None
        accepted = [] if odd in ("surrogate", "key twice") else [meant]
        axes = axes_of(
            names,
            [*(row[1] for row in meant), *(row.get("weight", 1) for row in records)],
            encodings=encoding != "utf-8" or odd == "surrogate",
            line_ends=end != "\n",
            ids="image_id" in header,
        )
        fields = [name for name in ("source", "weight") if any(name in one for one in objects)]
        judged = bool(accepted) and theirs == [row[:2] for row in meant]
        return Trial(axes | ({odd} if odd else set()), lambda: ours(path), accepted, judged, fields)

    return trial


def _with_pictures(draw: Draw, folder: Path) -> Trial:
    pictures = draw_pictures(draw, folder)
    words = st.sampled_from(["a dog", "a cat", 'a "b", c'])
    records = draw_records(draw, pictures.names, words, False, every=pictures.collide)
    path = folder / pick(draw, "captions.csv", "captions.jsonl", "metadata.csv", "x.tsv")
    header = {name: "file_name" if name == "file" else name for name in records[0]}
    text = write_csv(records, header, "minimal", "\t" if path.suffix == ".tsv" else ",", "\n")
    if path.suffix == ".jsonl":
        text = "".join(json.dumps({header[name]: cell for name, cell in row.items()}) + "\n" for row in records)
    path.write_text(text, encoding="utf-8", newline="")
    whose = dict(zip(pictures.names, pictures.colours, strict=True))
    meant = [(whose[row["file"]], row["caption"]) for row in records]
    ids: dict[str, set] = {}
    for row in records:
        ids.setdefault(str(row.get("image_id", row["file"])), set()).add(whose[row["file"]])
    clash = any(len(known) > 1 for known in ids.values())
    judged = pictures.is_plain and not clash
    if judged:
        root = Path(pictures.images or folder)
        judged = [(colour((root / row["file"]).read_bytes()), row["caption"]) for row in records] == meant
    axes = axes_of(pictures.names, (row[1] for row in meant), pictures=True, ids="image_id" in header, id_twice=clash)
    source = folder if path.suffix != ".tsv" and draw(st.booleans()) else path
    accepted = [] if clash and pictures.is_plain else [meant]
    return Trial(axes, lambda: with_pictures(source, pictures.images), accepted, judged)


READERS = [
    Reader("csv", "pandas.read_csv", 220, _separated(".csv", ",,,;|")),
    Reader("tsv", "pandas.read_csv", 80, _separated(".tsv", "\t")),
    Reader("txt", "pandas.read_csv", 40, _separated(".txt", "\t,|")),
    Reader("jsonl", "pandas.read_json", 100, _json(".jsonl")),
    Reader("json", "pandas.read_json", 80, _json(".json")),
    Reader("table with pictures", "PIL", 100, _with_pictures),
]
