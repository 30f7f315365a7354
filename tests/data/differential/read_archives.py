"""WebDataset's archives, Parquet and folders of `imagefolder`: webdataset, pyarrow and `datasets` judge."""

from __future__ import annotations

import csv
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import webdataset
from datasets import Dataset, concatenate_datasets, load_dataset
from judging import Draw, Reader, Reading, Row, Trial, are_odd, colour, draw_names, png, seldom, text_axes, texts
from hypothesis import strategies as st
from read_tables import with_pictures

from hf_curriculum import load_captioned
from hf_curriculum.data.readers.shards import ShardReader, find_shards

Members = list[tuple[str, bytes]]


def _samples(draw: Draw) -> tuple[list[tuple[str, int, str | None]], Members, set[str], bool]:
    """Key, picture and text of samples; the files of an archive; what is odd; whether samples lie together."""
    names = list({name.rpartition(".")[0]: name for name in draw_names(draw, 5)}.values())
    words = texts() if draw(st.booleans()) else st.sampled_from(["a dog", "", " ", None])
    samples, members, axes = [], [], {"names"} if are_odd(names) else set()
    encoding = "latin-1" if seldom(draw, 10) else "utf-8"
    kind = draw(st.sampled_from(["txt", "txt", "txt", "json", "both", "TXT"]))
    for number, name in enumerate(names):
        stem, text = name.rpartition(".")[0], draw(words)
        files = [(name, png(number))]
        if text is not None and kind.lower() in ("txt", "both"):
            files.append((f"{stem}.{kind.replace('both', 'txt')}", text.encode(encoding, "ignore")))
            text = text.encode(encoding, "ignore").decode(encoding)
        if kind in ("json", "both"):
            files.append((f"{stem}.json", json.dumps({"caption": text, "n": number}).encode()))
        samples.append((stem, number, text))
        members.append(files)
    order = draw(st.sampled_from(["together", "together", "together", "pictures first", "text first"]))
    if order == "text first":
        members = [files[::-1] for files in members]
    flat = [one for files in members for one in files]
    if order == "pictures first":
        flat = [files[0] for files in members] + [one for files in members for one in files[1:]]
    if seldom(draw):
        flat.insert(draw(st.integers(0, len(flat))), draw(st.sampled_from([(".DS_Store", b"x"), ("._1.png", b"x"), ("a/.hidden.txt", b"no"), ("README", b"x"), ("readme.md", b"x")])))
        axes.add("hidden files")
    if seldom(draw, 10):
        flat.append(flat[0] if draw(st.booleans()) else (flat[0][0], png(11)))
        axes.add("ids")
    axes |= text_axes(text for _, _, text in samples) | ({"encodings"} if encoding != "utf-8" else set())
    axes |= {"unsorted"} if order == "pictures first" else set()
    return samples, flat, axes, order != "pictures first"


def _write_tar(path: Path, members: Members, kind: int, folders: bool) -> None:
    with tarfile.open(path, "w", format=kind) as archive:
        made = set()
        for name, content in members:
            parent = name.rpartition("/")[0]
            if folders and parent and parent not in made:
                made.add(parent)
                entry = tarfile.TarInfo(parent)
                entry.type = tarfile.DIRTYPE
                archive.addfile(entry)
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def _their_samples(path: Path) -> list[Row] | None:
    """Pairs that webdataset makes, None where it refuses."""
    rows = []
    try:
        for sample in webdataset.WebDataset(f"file:{path}", shardshuffle=False, empty_check=False):
            image = next((sample[name] for name in ("png", "jpg", "jpeg") if name in sample), None)
            text = sample["txt"].decode() if "txt" in sample else json.loads(sample.get("json", b"{}")).get("caption")
            rows.append((colour(image), text or None))
    except Exception:
        return None
    return rows


def _in_place(path: Path) -> Reading:
    """The pairs of an archive read where it lies."""
    rows = []
    for shard in find_shards(path):
        with shard.local() as file:
            for batch in ShardReader(file, shard.kind).batches(["image", "caption"], 2):
                pairs = zip(batch["image"], batch["caption"], strict=True)
                rows += [(colour(image), text or None) for image, text in pairs]
    return Reading([row for row in rows if row != (None, None)])


def _downloaded(path: Path) -> Reading:
    data = load_captioned(path.parent)
    rows = [(colour(image), text or None) for image, text in zip(data["image"], data["caption"], strict=True)]
    return Reading(rows, data.column_names, data["image_id"][:])


def _tar(read: Callable[[Path], Reading], stats: bool) -> Callable[[Draw, Path], Trial]:
    def trial(draw: Draw, folder: Path) -> Trial:
        samples, members, axes, _ = _samples(draw)
        path = folder / "00000.tar"
        kind = draw(st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
        kind = tarfile.GNU_FORMAT if any(len(name) > 90 for name, _ in members) else kind
        _write_tar(path, members, kind, draw(st.booleans()))
        if stats:
            count = {"count": len(samples), "successes": len(samples), "status_dict": {"success": len(samples)}}
            (folder / "00000_stats.json").write_text(json.dumps(count))
        meant = [(number, text or None) for _, number, text in samples]
        accepted = [meant]
        if "ids" in axes:  # a file twice: webdataset makes a sample of it where it has no neighbours of its key
            name, content = members[-1]
            alone = (colour(content), None) if content[:4] == b"\x89PNG" else (None, content.decode("utf-8", "replace"))
            accepted = [[*meant, alone], *([meant] if content == members[0][1] else [])]
        theirs = _their_samples(path)
        judged = "ids" not in axes and theirs is not None and sorted(theirs, key=repr) == sorted(meant, key=repr)
        return Trial(axes | {"pictures"}, lambda: read(path), accepted, judged, ordered=False)

    return trial


TYPES = [pa.string(), pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string()), pa.list_(pa.string()), pa.large_list(pa.string())]


NAMES = ["x.parquet", "x.parquet", "train-00000-of-00001.parquet", "set[1].parquet", "a{1}.parquet", "a b.parquet", "q?.parquet"]
PATTERNS = {"[1]": "1", "?": "x", "*": "x", "{1}": "1", "{b}": "b"}
"""What stands in a name, and what it would find as a pattern."""


def _parquet(draw: Draw, folder: Path) -> Trial:
    count, kind, nulls = draw(st.integers(1, 4)), draw(st.sampled_from(TYPES)), draw(st.booleans())
    words = st.one_of(texts(), st.none()) if nulls else texts()
    several = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    captions = [draw(st.lists(words, min_size=1, max_size=2) if several else words) for _ in range(count)]
    name = draw(st.sampled_from(["caption", "text", "TEXT", "sentences"]))
    columns = {name: pa.array(captions, kind)}
    ids = draw(st.sampled_from([None, None, [1, 2, 3, 4], ["a", "b", "c", "1"], [1, 1, 2, 2], [1, None, 3, 4]]))
    ids = None if ids is None else ids[:count]
    columns |= {} if ids is None else {"image_id": pa.array(ids)}
    form = draw(st.sampled_from(["bytes", "struct", "none"]))
    binary = draw(st.sampled_from([pa.binary(), pa.large_binary()]))
    pictures = lambda numbers: {  # noqa: E731
        "bytes": lambda: {"image": pa.array(map(png, numbers), binary)},
        "struct": lambda: {"image": pa.array([{"bytes": png(n)} for n in numbers], pa.struct({"bytes": binary, "path": pa.string()}))},
        "none": dict,
    }[form]()
    columns |= {"weight": pa.array([1.0, None, 2.0, 3.0][:count])} if seldom(draw) else {}
    path = folder / draw(st.sampled_from(NAMES))
    others = {name: pa.array([["ANOTHER"] if several else "ANOTHER"] * count, kind)}
    for pattern, other in PATTERNS.items():
        decoy = Path(str(path).replace(pattern, other))
        if decoy != path and pattern in folder.name + path.name:
            decoy.parent.mkdir(exist_ok=True)
            pq.write_table(pa.table({**columns, **others, **pictures([11] * count)}), decoy)
    pq.write_table(pa.table({**columns, **pictures(range(count))}), path)
    source = folder if draw(st.booleans()) and len(list(folder.iterdir())) == 1 else path
    flat = [(row, one) for row, cell in enumerate(captions) for one in (cell if several else [cell])]
    ids_of = lambda row: None if ids is None else str(ids[row])  # noqa: E731
    meant = [(row if form != "none" else None, one, ids_of(row)) for row, one in flat]
    table = pq.read_table(path, partitioning=None).to_pydict()
    clash = form != "none" and ids is not None and len(set(ids)) < count
    no_id = ids is not None and None in ids
    axes = text_axes(one for _, one in flat) | ({"ids"} if ids else set())
    axes |= {"names"} if source == path and path.name != "x.parquet" else set()
    axes |= ({"nulls"} if nulls or no_id else set()) | ({"pictures"} if form != "none" else set())

    def ours() -> Reading:
        data = load_captioned(source, **({} if form != "none" else {"images": False}))
        data = data if isinstance(data, Dataset) else concatenate_datasets(list(data.values()))
        seen = [colour(image) for image in data["image"]] if form != "none" else [None] * len(data)
        found = data["image_id"][:] if "image_id" in data.column_names else [None] * len(data)
        rows = zip(seen, data["caption"], found if ids is not None else [None] * len(data), strict=True)
        return Reading(list(rows), data.column_names, found if form != "none" else [])

    judged = table[name] == captions and not clash and not no_id
    return Trial(axes, ours, [] if clash or no_id else [meant], judged, ["weight"] if "weight" in columns else [])


def _image_folder(draw: Draw, folder: Path) -> Trial:
    names = draw_names(draw)
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(png(number))
    captions = [draw(texts(empty=False)) for _ in names]
    jsonl = draw(st.booleans())
    if jsonl:
        lines = (json.dumps({"file_name": name, "caption": text}) for name, text in zip(names, captions, strict=True))
        (folder / "metadata.jsonl").write_text("\n".join(lines), encoding="utf-8")
    else:
        with (folder / "metadata.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("file_name", "caption"), *zip(names, captions, strict=True)])
    if seldom(draw):
        (folder / draw(st.sampled_from([".hidden.png", "not listed.png"]))).write_bytes(png(11))
    try:
        data = load_dataset("imagefolder", data_dir=str(folder), split="train")
        theirs = [(colour(row["image"]), row["caption"]) for row in data]
    except Exception:
        theirs = None
    meant = list(enumerate(captions))
    judged = theirs is not None and sorted(theirs, key=repr) == sorted(meant, key=repr)
    axes = {"pictures"} | text_axes(captions) | ({"names"} if are_odd(names) else set())
    return Trial(axes, lambda: with_pictures(folder, None), [meant], judged)


READERS = [
    Reader("tar in place", "webdataset", 70, _tar(_in_place, False)),
    Reader("tar of img2dataset", "webdataset", 30, _tar(_downloaded, True)),
    Reader("folder of tars", "webdataset", 20, _tar(_downloaded, False)),
    Reader("parquet", "pyarrow", 60, _parquet),
    Reader("imagefolder", "datasets", 20, _image_folder),
]
