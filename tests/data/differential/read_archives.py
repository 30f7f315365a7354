"""WebDataset's archives, Parquet and folders of `imagefolder`: webdataset, pyarrow and `datasets` judge."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import webdataset
from datasets import Dataset, concatenate_datasets, load_dataset
from hypothesis import strategies as st
from judging import (
    Draw,
    Reader,
    Reading,
    Row,
    Trial,
    axes_of,
    colour,
    draw_names,
    pick,
    png,
    seldom,
    texts,
    write_pictures,
)
from read_tables import with_pictures, write_csv

from hf_curriculum import load_captioned
from hf_curriculum.data.readers.shards import ShardReader
from hf_curriculum.data.readers.source_shards import find_shards

HIDDEN = [(".DS_Store", b"x"), ("._1.png", b"x"), ("a/.hidden.txt", b"no"), ("README", b"x"), ("readme.md", b"x")]


def _draw_members(draw: Draw) -> tuple[list[Row], list[tuple[str, bytes]], set[str]]:
    """Picture and text of samples; the files of an archive; what is odd about it."""
    names = list({name.rpartition(".")[0]: name for name in draw_names(draw, 5)}.values())
    words = texts() if draw(st.booleans()) else st.sampled_from(["a dog", "", " ", None])
    encoding, kind = "latin-1" if seldom(draw, 10) else "utf-8", pick(draw, "txt", "txt", "txt", "json", "both", "TXT")
    rows, samples = [], []
    for number, name in enumerate(names):
        stem, text = name.rpartition(".")[0], draw(words)
        files = [(name, png(number))]
        if text is not None and kind != "json":
            # Where latin-1 is not read, its spaces are none.
            content = text.replace("\xa0", " ").replace("\x85", " ").encode(encoding, "ignore")
            files.append((f"{stem}.{kind.replace('both', 'txt')}", content))
            text = content.decode(encoding).strip()  # as texts beside images are read
        if kind in ("json", "both"):
            files.append((f"{stem}.json", json.dumps({"caption": text, "n": number}).encode()))
        rows.append((number, text or None))
        samples.append(files)
    order = pick(draw, "together", "together", "together", "pictures first", "text first")
    samples = [files[::-1] for files in samples] if order == "text first" else samples
    members = [one for files in samples for one in files]
    if order == "pictures first":
        members.sort(key=lambda one: one[1][:4] != png(0)[:4])
    hidden, twice = seldom(draw), seldom(draw, 10)
    if hidden:
        members.insert(draw(st.integers(0, len(members))), pick(draw, *HIDDEN))
    if twice:
        members.append((names[0], pick(draw, png(0), png(11))))
    odd = {
        "hidden_files": hidden,
        "unsorted": order == "pictures first",
        "ids": twice,
        "encodings": encoding != "utf-8",
    }
    return rows, members, axes_of(names, (text for _, text in rows), pictures=True, **odd)


def _write_tar(path: Path, members: list[tuple[str, bytes]], kind: int, folders: bool) -> None:
    with tarfile.open(path, "w", format=kind) as archive:
        parents = dict.fromkeys(name.rpartition("/")[0] for name, _ in members if folders and "/" in name)
        for parent in parents:
            entry = tarfile.TarInfo(parent)
            entry.type = tarfile.DIRTYPE
            archive.addfile(entry)
        for name, content in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def _their_samples(path: Path) -> list[Row] | None:
    """Pairs that webdataset makes, None where it refuses."""
    rows = []
    try:
        for sample in webdataset.WebDataset(f"file:{path}", shardshuffle=False, empty_check=False):
            image = next((sample[name] for name in ("png", "jpg", "jpeg") if name in sample), None)
            record = json.loads(sample.get("json", b"{}"))
            text = sample["txt"].decode().strip() if "txt" in sample else record.get("caption")
            rows.append((colour(image), text or None))
    except Exception:
        return None
    return rows


def _in_place(path: Path) -> Reading:
    """The pairs of an archive read where it lies."""
    rows = []
    for shard in find_shards(path):
        with shard.local() as file:
            reader = ShardReader(file, shard.kind)
            for batch in reader.batches(["image", "caption"], 2):
                rows += [
                    (colour(one), text or None) for one, text in zip(batch["image"], batch["caption"], strict=True)
                ]
            reader.left_out.report(path, [])  # as `score_shards` does
    return Reading([row for row in rows if row != (None, None)])


def _as_folder(path: Path) -> Reading:
    read = with_pictures(path.parent, None)
    return read._replace(rows=[(picture, text or None) for picture, text in read.rows])


def _tar(read: Callable[[Path], Reading], stats: bool) -> Callable[[Draw, Path], Trial]:
    def trial(draw: Draw, folder: Path) -> Trial:
        meant, members, axes = _draw_members(draw)
        path = folder / "00000.tar"
        kind = pick(draw, tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
        is_long = any(len(name) > 90 for name, _ in members)
        _write_tar(path, members, tarfile.GNU_FORMAT if is_long else kind, draw(st.booleans()))
        if stats:
            count = {"count": len(meant), "successes": len(meant), "status_dict": {"success": len(meant)}}
            (folder / "00000_stats.json").write_text(json.dumps(count))
        accepted, fields = [meant], []
        if "ids" in axes:  # a file twice: webdataset makes a sample of it where it has no neighbours of its key
            again, content = members[-1]
            stem = again.rpartition(".")[0]
            if any(name != again and name.rpartition(".")[0] == stem for name, _ in members):
                accepted, fields = [meant[1:]], ["stands more than once"]  # must be said
            else:
                accepted = [[*meant, (colour(content), None)], *([meant] if content == png(0) else [])]
        texts_of = [content for name, content in members if name.lower().endswith(".txt")]
        if any(b"\xef\xbf\xbd" in content.decode("utf-8", "replace").encode() for content in texts_of):
            fields = fields or ["not UTF-8"]  # must be said, unless its sample is left out
            by_text = {one.decode("latin-1").strip(): one.decode("utf-8", "replace").strip() for one in texts_of}
            accepted += [[(number, by_text.get(text, text)) for number, text in rows] for rows in accepted]
        theirs = _their_samples(path)
        judged = "ids" not in axes and theirs is not None and sorted(theirs, key=repr) == sorted(meant, key=repr)
        return Trial(axes, lambda: read(path), accepted, judged, fields, ordered=False)

    return trial


TEXT = pa.string()
LISTS = [pa.list_(TEXT), pa.large_list(TEXT)]
TYPES = [TEXT, TEXT, pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), TEXT), *LISTS]
FILES = ["x", "x", "train-00000-of-00001", "set[1]", "a{1}", "a b", "q?"]
PATTERNS = {"[1]": "1", "?": "x", "*": "x", "{1}": "1", "{b}": "b"}
"""What stands in a name, and what it would find as a pattern."""


def _parquet(draw: Draw, folder: Path) -> Trial:
    count, kind, nulls = draw(st.integers(1, 4)), pick(draw, *TYPES), draw(st.booleans())
    words, several = st.one_of(texts(), st.none()) if nulls else texts(), kind in LISTS
    captions = [draw(st.lists(words, min_size=1, max_size=2) if several else words) for _ in range(count)]
    ids = (pick(draw, None, None, [1, 2, 3, 4], ["a", "b", "c", "1"], [1, 1, 2, 2], [1, None, 3, 4]) or [])[:count]
    name, form, weighted = (
        pick(draw, "caption", "text", "TEXT", "sentences"),
        pick(draw, "bytes", "struct", ""),
        seldom(draw),
    )
    binary = pick(draw, pa.binary(), pa.large_binary())

    def write(path: Path, captions: list, pictures: list[bytes]) -> None:
        table = {name: pa.array(captions, kind)} | ({"image_id": pa.array(ids)} if ids else {})
        images = [{"bytes": one, "path": None} for one in pictures] if form == "struct" else pictures
        struct = pa.struct({"bytes": binary, "path": TEXT})
        table |= {"image": pa.array(images, struct if form == "struct" else binary)} if form else {}
        table |= {"weight": pa.array([1.0, None, 2.0, 3.0][:count])} if weighted else {}
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table(table), path)

    path = folder / f"{pick(draw, *FILES)}.parquet"
    write(path, captions, [png(number) for number in range(count)])
    for pattern, other in PATTERNS.items():
        decoy = folder.parent / folder.name.replace(pattern, other) / path.name.replace(pattern, other)
        if decoy != path:
            write(decoy, [["ANOTHER"] if several else "ANOTHER"] * count, [png(11)] * count)
    source = folder if draw(st.booleans()) and len(list(folder.iterdir())) == 1 else path
    flat = [(row, one) for row, cell in enumerate(captions) for one in (cell if several else [cell])]
    meant = [(row if form else None, one, str(ids[row]) if ids else None) for row, one in flat]
    no_id, clash = None in ids, bool(form) and len(set(ids)) < len(ids)

    def read() -> Reading:
        data = load_captioned(source, images=None if form else False)
        data = data if isinstance(data, Dataset) else concatenate_datasets(list(data.values()))
        seen = [colour(image) for image in data["image"]] if form else [None] * len(data)
        found = data["image_id"][:] if "image_id" in data.column_names else [None] * len(data)
        rows = zip(seen, data["caption"], found if ids else [None] * len(data), strict=True)
        return Reading(list(rows), data.column_names, found if form else [])

    axes = axes_of(
        [path.name] * (path.name != "x.parquet"), (one for _, one in flat), ids=ids, pictures=form, nulls=no_id
    )
    judged = pq.read_table(path, partitioning=None).to_pydict()[name] == captions and not clash and not no_id
    return Trial(axes, read, [] if clash or no_id else [meant], judged, ["weight"] if weighted else [])


def _image_folder(draw: Draw, folder: Path) -> Trial:
    names = draw_names(draw)
    write_pictures(folder, names)
    records = [{"file_name": name, "caption": draw(texts(empty=False))} for name in names]
    if draw(st.booleans()):
        (folder / "metadata.jsonl").write_text("\n".join(map(json.dumps, records)))
    else:
        text = write_csv(records, {name: name for name in records[0]}, "all", ",", "\n")
        (folder / "metadata.csv").write_text(text, encoding="utf-8", newline="")
    if seldom(draw):
        (folder / pick(draw, ".hidden.png", "not listed.png")).write_bytes(png(11))
    meant = [(number, record["caption"]) for number, record in enumerate(records)]
    try:
        data = load_dataset("imagefolder", data_dir=str(folder), split="train")
        judged = sorted(((colour(row["image"]), row["caption"]) for row in data), key=repr) == sorted(meant, key=repr)
    except Exception:
        judged = False
    axes = axes_of(names, (text for _, text in meant), pictures=True)
    return Trial(axes, lambda: with_pictures(folder, None), [meant], judged)


READERS = [
    Reader("tar in place", "webdataset", 70, _tar(_in_place, False)),
    Reader("tar of img2dataset", "webdataset", 30, _tar(_as_folder, True)),
    Reader("folder of tars", "webdataset", 20, _tar(_as_folder, False)),
    Reader("parquet", "pyarrow", 60, _parquet),
    Reader("imagefolder", "datasets", 20, _image_folder),
]
