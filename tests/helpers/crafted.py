"""Data that was made to harm whoever opens it, and a watch over what is opened, asked for and run."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from crawl import write_tar
from datasets import Dataset, DatasetDict, Features, Value
from PIL import Image

from hf_curriculum import CaptionLength, add_scores, load_scored, save_bucketed, save_scored, score_shards
from hf_curriculum.data.regions.pack import pack_regions
from hf_curriculum.files import file_digest, write_sealed
from hf_curriculum.scored_data import write_provenance
from hf_curriculum.streaming.shards import footer_digest

SECRET = "PRIVATE KEY"
NUMBER = 77.25
SIZE = (9, 7)
"""What the files outside hold: a text, a number, an image of this size."""


class Exploit:
    """Leaves a folder when it is unpickled."""

    def __init__(self, mark):
        self.mark = str(mark)

    def __reduce__(self):
        return os.mkdir, (self.mark,)


def picture(folder, name, size=(8, 8)):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, "red").save(path, "PNG")
    return path


def scored_in(saved, folder, place):
    """A saved data set of two scored rows that hold their images: as such, in a list, or in a list of records."""
    kinds = {"image": datasets.Image(), "list": datasets.List(datasets.Image())}
    kinds["record"] = datasets.List({"seen": datasets.Image()})
    image = str(picture(folder, "a.png"))
    cells = {"image": image, "list": [image], "record": [{"seen": image}]}
    features = Features({"image": kinds[place], "caption": Value("string")})
    data = Dataset.from_dict({"image": [cells[place]] * 2, "caption": ["a dog", "a"]}, features=features)
    save_scored(add_scores(data, CaptionLength()), saved)
    return saved


def name_files(saved, place, name):
    """Rewrites the file of `scored_in` so that its rows name another file in place of an image."""
    (file,) = saved.glob("*.arrow")
    table = datasets.load_from_disk(saved).data.table
    named = {"bytes": None, "path": name}
    cell = {"image": named, "list": [named], "record": [{"seen": named}]}[place]
    field = table.schema.field("image")
    table = table.set_column(0, field, pa.array([cell] * 2, field.type)).combine_chunks()
    written = file.with_suffix(".new")  # the table is mapped from the file itself
    with pa.OSFile(str(written), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    written.replace(file)
    if (saved / "scores.json").is_file():  # with digests that fit, as whoever crafts it would
        write_provenance(datasets.load_from_disk(saved), saved)


def write_index(folder, content):
    """Writes buckets.json as if its shards had been written as they are."""
    for shard in (shard for bucket in content["buckets"] for shard in bucket["shards"]):
        file = folder / shard["file"]
        shard |= {"bytes": file.stat().st_size, "digest": file_digest(file)}
        shard["footer"] = footer_digest(file) if file.suffix == ".parquet" else ""
    write_sealed(folder / "buckets.json", {name: value for name, value in content.items() if name != "seal"})


@contextmanager
def asked_server():
    """A server on loopback that remembers what it was asked for."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            found.requests.append(self.path)
            self.send_error(404)

        do_HEAD = do_GET

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found = SimpleNamespace(requests=[], address=f"http://127.0.0.1:{server.server_port}")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield found
        server.shutdown()


_WATCHES = []


def _watch(event, args):
    for place, seen in _WATCHES:
        if event in ("socket.connect", "socket.getaddrinfo"):
            seen.append((event, args[-1]))
        elif event == "open" and isinstance(args[0], (str, bytes)) and _is_in(args[0], place):
            seen.append((event, args[0]))


def _is_in(file, place):
    return os.path.realpath(os.fsdecode(file)).startswith(place)


@contextmanager
def watched(outside):
    """What Python opens in a folder, and where sockets lead to, from now on; not what C opens."""
    if not hasattr(sys, "_hf_curriculum_watch"):
        sys.addaudithook(_watch)  # which nothing removes
        sys._hf_curriculum_watch = True
    seen = []
    _WATCHES.append((os.path.realpath(outside) + os.sep, seen))
    yield seen
    _WATCHES.clear()


def _captions(folder, *names):
    picture(folder, "a.png")
    (folder / "captions.csv").write_text("file_name,caption\na.png,a\n" + "".join(f"{name},b\n" for name in names))


def _coco(folder, name):
    picture(folder, "a.png")
    images = [{"id": 1, "file_name": "a.png"}, {"id": 2, "file_name": name, "coco_url": name, "width": 8, "height": 8}]
    notes = [{"id": n, "image_id": n, "caption": "a", "bbox": [0, 0, 2, 2], "category_id": 1} for n in (1, 2)]
    content = {"images": images, "annotations": notes, "categories": [{"id": 1, "name": "dog"}]}
    (folder / "captions_val.json").write_text(json.dumps(content))
    (folder / "instances_val.json").write_text(json.dumps(content))


def _parquet(folder, name):
    picture(folder, "a.png")
    images = [{"bytes": None, "path": str(folder / "a.png")}, {"bytes": None, "path": name}]
    rows = {"image": images, "caption": ["a", "b"], "label": ["x", "y"], "score": [1.0, 2.0]}
    pq.write_table(pa.table(rows), folder / "x.parquet")


def _chats(folder, name):
    picture(folder, "a.png")
    said = [{"from": "human", "value": "<image>"}, {"from": "gpt", "value": "a"}]
    (folder / "chats.json").write_text(
        json.dumps([{"image": each, "conversations": said} for each in ("a.png", name)])
    )


def _chat_lists(folder, name):
    picture(folder, "a.png")
    images = [[{"bytes": None, "path": str(folder / "a.png")}, {"bytes": None, "path": name}]]
    pq.write_table(pa.table({"prompt": ["a"], "completion": ["b"], "images": images}), folder / "x.parquet")


def _card(folder, name):
    picture(folder, "a.png")
    Dataset.from_dict({"image": ["a.png"], "caption": ["a"]}).to_parquet(folder / "x.parquet")
    files = json.dumps([{"split": "train", "path": name}])
    (folder / "README.md").write_text(f"---\nconfigs:\n- config_name: default\n  data_files: {files}\n---\n")


def _state(folder, outside):
    scored_in(folder / "set", folder, "image")
    state = json.loads((folder / "set" / "state.json").read_text())
    (file,) = (outside / "set").glob("*.arrow")
    state["_data_files"] = [{"filename": os.path.relpath(file, folder / "set")}]
    (folder / "set" / "state.json").write_text(json.dumps(state))


def _splits(folder, outside):
    DatasetDict(train=datasets.load_from_disk(outside / "set")).save_to_disk(folder / "set")
    splits = ["train", os.path.relpath(outside / "set", folder / "set")]
    (folder / "set" / "dataset_dict.json").write_text(json.dumps({"splits": splits}))


def _named(folder, place, name):
    name_files(scored_in(folder / "set", folder, place), place, name)


def _buckets(folder, outside, name):
    save_bucketed(
        load_scored(scored_in(folder / "set", folder, "image")), folder / "b", 1, score_column="caption_length"
    )
    content = json.loads((folder / "b" / "buckets.json").read_text())
    shard = content["buckets"][0]["shards"][0]
    if name is None:
        os.rename(folder / "b" / shard["file"], outside / "0.parquet")
        shard["file"] = os.path.relpath(outside / "0.parquet", folder / "b")
    else:
        table = pq.read_table(folder / "b" / shard["file"])
        rows = pa.array([{"bytes": None, "path": name}] * 2, table.schema.field("image").type)
        pq.write_table(table.set_column(0, table.schema.field("image"), rows), folder / "b" / shard["file"])
        shard["bytes"] = (folder / "b" / shard["file"]).stat().st_size
    write_index(folder / "b", content)


def _hdf5(file, outside, kind):
    import h5py

    with h5py.File(outside / "other.h5", "w") as other:
        other["1"] = np.full((2, 4), NUMBER)
    with h5py.File(file, "w") as made:
        if kind == "external":
            made.create_dataset("1", (2, 4), "f8", external=[(str(outside / "numbers"), 0, 64)])
        elif kind == "virtual":
            layout = h5py.VirtualLayout((2, 4), "f8")
            layout[:] = h5py.VirtualSource(str(outside / "other.h5"), "1", (2, 4))
            made.create_virtual_dataset("1", layout)
        else:
            made["1"] = h5py.ExternalLink(str(outside / "other.h5"), "1")


def _store(folder, outside):
    np.savez(folder / "1.npz", feat=np.full((2, 32), NUMBER, np.float32))
    pack_regions(folder, folder / "s", progress=False)
    os.rename(folder / "s" / "features.npy", outside / "features.npy")
    (folder / "s" / "features.npy").symlink_to(outside / "features.npy")


def _link(folder, outside, name):
    (folder / name).symlink_to(outside / name)


def _scored_shards(folder, outside, kind):
    """A folder of `score_shards` that leads to another one's shard of scores."""
    score_shards(outside / "shards", CaptionLength(), outside / "scores", keep=["caption"])
    shutil.copytree(outside / "scores", folder / "s")
    (folder / "s/scores/x.parquet").unlink()
    if kind == "link":
        (folder / "s/scores/x.parquet").symlink_to(outside / "scores/scores/x.parquet")
    else:
        content = json.loads((folder / "s/shards.json").read_text())
        above = os.path.relpath(outside / "scores/scores/x.tar", folder / "s/scores")
        content = {name: value for name, value in content.items() if name != "seal"}
        write_sealed(folder / "s/shards.json", {**content, "shards": {above: 1}})


def make_outside(outside):
    """The files that nothing may open: an image, an array, a table, a text, a saved set."""
    picture(outside, "secret.png", SIZE)
    (outside / "numbers").write_bytes(np.full(8, NUMBER).tobytes())
    np.save(outside / "1.npy", np.full((2, 32), NUMBER))
    np.savez(outside / "1.npz", feat=np.full((2, 32), NUMBER))
    (outside / "captions.json").write_text(json.dumps([{"image_id": 1, "caption": SECRET}]))
    (outside / "rule.yaml").write_text(f"type: {SECRET}\n")
    scored_in(outside / "set", outside, "image")
    write_tar(outside / "shards/x.tar", [{"key": "a", "caption": SECRET}])


def make_crafted(root, outside, mark, address):
    """Name → the file or folder to open; what it is made to do is its name."""
    secret = str(outside / "secret.png")
    up = f"file:{os.path.relpath(secret)}"
    pickled = pickle.dumps(Exploit(mark))
    made = {
        "captions name a file above": (lambda f: _captions(f, os.path.relpath(secret, f)), ""),
        "captions name an absolute file": (lambda f: _captions(f, secret), ""),
        "captions name an address": (lambda f: _captions(f, f"{address}/a.png"), ""),
        "COCO names a file above": (lambda f: _coco(f, os.path.relpath(secret, f)), ""),
        "COCO's file names an address": (lambda f: _coco(f, f"{address}/a.png"), "captions_val.json"),
        "COCO's objects name a file above": (lambda f: _coco(f, os.path.relpath(secret, f)), "instances_val.json"),
        "Parquet rows name a file": (lambda f: _parquet(f, secret), "x.parquet"),
        "Parquet rows name an address": (lambda f: _parquet(f, f"{address}/a.png"), "x.parquet"),
        "Parquet rows name file:../": (lambda f: _parquet(f, up), "x.parquet"),
        "conversations name a file above": (lambda f: _chats(f, os.path.relpath(secret, f)), ""),
        "conversations name an address": (lambda f: _chats(f, f"{address}/a.png"), "chats.json"),
        "conversations name files in a list": (lambda f: _chat_lists(f, secret), "x.parquet"),
        "conversations name addresses in a list": (lambda f: _chat_lists(f, f"{address}/a.png"), ""),
        "a card names a file": (lambda f: _card(f, str(outside / "set" / "*.arrow")), ""),
        "a card names an address": (lambda f: _card(f, f"{address}/x.parquet"), ""),
        "state.json names data above": (lambda f: _state(f, outside), "set"),
        "dataset_dict.json names a split above": (lambda f: _splits(f, outside), "set"),
        "scored rows name a file": (lambda f: _named(f, "image", secret), "set"),
        "scored rows name an address": (lambda f: _named(f, "image", f"{address}/a.png"), "set"),
        "scored rows name file:../": (lambda f: _named(f, "image", up), "set"),
        "scored rows name files in a list": (lambda f: _named(f, "list", secret), "set"),
        "scored rows name addresses in records": (lambda f: _named(f, "record", f"{address}/a.png"), "set"),
        "a shard of buckets names a file": (lambda f: _buckets(f, outside, secret), "b"),
        "a shard of buckets names an address": (lambda f: _buckets(f, outside, f"{address}/a.png"), "b"),
        "the index of buckets names a shard above": (lambda f: _buckets(f, outside, None), "b"),
        "a folder with a linked archive": (lambda f: (f / "x.tar").symlink_to(outside / "shards/x.tar"), ""),
        "scores of shards with a link": (lambda f: _scored_shards(f, outside, "link"), "s"),
        "scores of a shard above": (lambda f: _scored_shards(f, outside, "above"), "s"),
        "HDF5 with an external file": (lambda f: _hdf5(f / "x.h5", outside, "external"), "x.h5"),
        "HDF5 with a virtual data set": (lambda f: _hdf5(f / "x.h5", outside, "virtual"), "x.h5"),
        "HDF5 with an external link": (lambda f: _hdf5(f / "x.h5", outside, "link"), "x.h5"),
        "MATLAB 7.3 with an external file": (lambda f: _hdf5(f / "x.mat", outside, "external"), "x.mat"),
        "a store with a link": (lambda f: _store(f, outside), "s"),
        "a folder of .npy with a link": (lambda f: _link(f, outside, "1.npy"), ""),
        "a folder of .npz with a link": (lambda f: _link(f, outside, "1.npz"), ""),
        "a folder with a linked captions.json": (lambda f: _link(f, outside, "captions.json"), ""),
        "a folder with a linked image": (lambda f: _link(f, outside, "secret.png"), ""),
        "YAML with a tag": (lambda f: (f / "x.yaml").write_text(f"!!python/object/apply:os.mkdir [{mark}]"), "x.yaml"),
        "YAML that names a file": (lambda f: (f / "x.yaml").write_text(f"type: {outside / 'rule.yaml'}"), "x.yaml"),
        "JSON that is deep": (lambda f: (f / "x.json").write_text("[" * 5000), "x.json"),
    }
    for ending in ("pt", "pth", "pkl", "npy", "npz", "json", "yaml", "h5", "tsv", "csv", "parquet", "safetensors"):
        made[f"a pickle called .{ending}"] = (lambda f, e=ending: (f / f"x.{e}").write_bytes(pickled), f"x.{ending}")
    for names in (("pytorch_model.bin", "config.json"), ("training_args.bin", "optimizer.pt", "rng_state.pth")):
        made[f"a folder with the pickle {names[0]}"] = (
            lambda f, names=names: [
                (f / name).write_bytes(b'{"model_type": "curriculum_aligner"}' if name.endswith("json") else pickled)
                for name in names
            ],
            "",
        )
    found = {}
    for number, (name, (make, opened)) in enumerate(made.items()):
        folder = root / str(number)
        folder.mkdir()
        make(folder)
        found[name] = folder / opened
    return found
