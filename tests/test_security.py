"""What an archive of data may hold to harm whoever loads it: pickles, names of other files, devices, huge images."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import socket
import struct
import sys
import tarfile
import zlib
from functools import partial
from io import BytesIO
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from crafted import Exploit, asked_server, name_files, picture, scored_in, write_index
from datasets import Dataset, Features, Value
from PIL import Image
from typer.testing import CliRunner

import hf_curriculum
from hf_curriculum import (
    IID,
    BucketedStream,
    add_scores_sharded,
    load_captioned,
    load_scored,
    push_scored,
    save_bucketed,
)
from hf_curriculum.cli import app
from hf_curriculum.data.images import UnreadableImageError, to_rgb
from hf_curriculum.data.readers.img2dataset import load_img2dataset
from hf_curriculum.data.readers.url_lists import load_url_list
from hf_curriculum.data.regions.open import open_regions
from hf_curriculum.files import is_intact, read_json, read_sealed
from hf_curriculum.provenance import ScoreProvenance, attach_provenance
from hf_curriculum.reporting.chosen import _saved_rule
from hf_curriculum.reporting.inspection import inspect_scores
from hf_curriculum.reporting.report import Report
from hf_curriculum.scorers.text.rarity import WordRarity
from hf_curriculum.scorers.visual.boxes import image_size
from hf_curriculum.sealed_parquet import is_sealed_parquet
from hf_curriculum.tasks.babylm.files import find_images
from hf_curriculum.tasks.long_tail import PixelDiffusionPipeline
from hf_curriculum.training.report import add_held_out


@pytest.fixture
def mark(tmp_path):
    return tmp_path / "code was run"


@pytest.fixture
def crafted(mark):
    return pickle.dumps(Exploit(mark))


def test_the_crafted_pickle_would_run_code(mark, crafted):
    pickle.loads(crafted)
    assert mark.exists()


@pytest.fixture
def captions():
    return Dataset.from_dict({"caption": ["a dog", "a cat", "a dog runs"]})


class TestFittedScorers:
    @pytest.mark.parametrize("name", ["fitted.json", "fitted.pickle", "fitted.npz"])
    def test_a_pickle_of_any_name_is_not_run(self, captions, tmp_path, mark, crafted, name):
        parts = tmp_path / "parts"
        add_scores_sharded(captions, WordRarity(), parts, rank=0, world_size=1)
        for folder in (parts, *(path for path in parts.rglob("*") if path.is_dir())):
            (folder / name).write_bytes(crafted)
        if name == "fitted.json":
            with pytest.raises(ValueError, match=r"fitted\.json is damaged"):
                add_scores_sharded(captions, WordRarity(), parts, rank=0, world_size=1)
        else:
            assert len(add_scores_sharded(captions, WordRarity(), parts, rank=0, world_size=1)) == 3
        assert not mark.exists()

    def test_in_the_place_of_a_part(self, captions, tmp_path, mark, crafted):
        parts = tmp_path / "parts"
        add_scores_sharded(captions, WordRarity(), parts, rank=0, world_size=1)
        for file in parts.rglob("part-*"):
            file.write_bytes(crafted)
        with pytest.raises(ValueError, match=r"part-.* is damaged"):
            add_scores_sharded(captions, WordRarity(), parts, rank=0, world_size=1)
        assert not mark.exists()


class TestArrays:
    @pytest.mark.parametrize("name", ["boxes.npz", "folder/1.npy"])
    def test_objects_in_files_of_regions(self, tmp_path, mark, name):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        objects = np.array([Exploit(mark)], dtype=object)
        if name.endswith(".npz"):
            np.savez(file, **{"1": objects})
        else:
            np.save(file, objects, allow_pickle=True)
        regions = open_regions(file if name.endswith(".npz") else file.parent)
        with pytest.raises(ValueError, match=r"allow_pickle=False|Python objects in dtype"):
            regions["1"]
        assert not mark.exists()

    @pytest.mark.parametrize("kind", ["external", "virtual", "external link", "soft link"])
    @pytest.mark.parametrize("name", ["boxes.h5", "boxes.mat"])
    def test_hdf5_that_takes_its_numbers_from_other_files(self, tmp_path, kind, name):
        h5py = pytest.importorskip("h5py")
        (tmp_path / "secret").write_bytes(b"-----BEGIN PRIVATE KEY-----".ljust(32))
        with h5py.File(tmp_path / "other.h5", "w") as file:
            file["boxes"] = np.ones((2, 4))
        (tmp_path / "data").mkdir()
        image = "boxes" if name == "boxes.mat" else "9"
        with h5py.File(tmp_path / "data" / name, "w") as file:
            if kind == "external":
                file.create_dataset(image, (2, 4), "f4", external=[(str(tmp_path / "secret"), 0, 32)])
            elif kind == "virtual":
                layout = h5py.VirtualLayout((2, 4), "f8")
                layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "boxes", (2, 4))
                file.create_virtual_dataset(image, layout)
            else:
                link = h5py.SoftLink("/inner") if kind == "soft link" else h5py.ExternalLink("../other.h5", "boxes")
                file[image] = link
        with pytest.raises(ValueError, match=r"other files, which could be any|is a link, which may lead to any"):
            list(open_regions(tmp_path / "data" if name == "boxes.mat" else tmp_path / "data" / name).values())

    def test_small_files_that_claim_large_arrays(self, tmp_path, monkeypatch):
        h5py = pytest.importorskip("h5py")
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file.create_dataset("1", (400_000_000, 4), "f4", chunks=(1000, 4))
        assert (tmp_path / "a.h5").stat().st_size < 10_000
        with pytest.raises(ValueError, match=r"'1' of .*a\.h5 claims 6,400,000,000 bytes"):
            open_regions(tmp_path / "a.h5")["1"]
        np.savez_compressed(tmp_path / "a.npz", **{"1": np.zeros((100, 4))})
        monkeypatch.setattr("hf_curriculum.data.regions.arrays.MOST_BYTES", 3000)
        with pytest.raises(ValueError, match=r"'1\.npy' of .*a\.npz claims 3,328 bytes"):
            open_regions(tmp_path / "a.npz")["1"]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def csv(folder, names):
    path = folder / "captions.csv"
    path.write_text("file_name,caption\n" + "".join(f"{name},a dog\n" for name in names))
    return folder


def tsv(folder, names):
    (folder / "captions.tsv").write_text("file_name\tcaption\n" + "".join(f"{name}\ta dog\n" for name in names))
    return folder


def json_lines(folder, names):
    rows = [json.dumps({"file_name": str(name), "caption": "a dog"}) for name in names]
    (folder / "metadata.jsonl").write_text("\n".join(rows))
    return folder


def json_list(folder, names):
    path = folder / "list.json"
    path.write_text(json.dumps([{"image": str(name), "caption": "a dog"} for name in names]))
    return path


def token_file(folder, names):
    path = folder / "Flickr8k.token.txt"
    path.write_text("".join(f"{name}#0\ta dog\n" for name in names))
    return path


def coco(folder, names):
    path = folder / "captions_val.json"
    images = [{"id": number, "file_name": str(name)} for number, name in enumerate(names)]
    annotations = [{"id": number, "image_id": number, "caption": "a dog"} for number in range(len(names))]
    path.write_text(json.dumps({"images": images, "annotations": annotations}))
    return path


def karpathy(folder, names):
    path = folder / "dataset.json"
    images = [{"filename": str(name), "split": "train", "sentences": [{"raw": "a dog"}]} for name in names]
    path.write_text(json.dumps({"images": images}))
    return path


def parquet_of_names(folder, names):
    Dataset.from_dict({"image": list(map(str, names)), "caption": ["a dog"] * len(names)}).to_parquet(
        folder / "x.parquet"
    )
    return folder / "x.parquet"


def parquet_of_records(folder, names):
    """As `datasets` stores images, but with names alone; these are relative to nothing."""
    images = [{"bytes": None, "path": name if "://" in name else str(folder / name)} for name in names]
    table = pa.table({"image": images, "caption": ["a dog"] * len(names)})
    pq.write_table(table, folder / "x.parquet")
    return folder / "x.parquet"


LOADERS = (csv, tsv, json_lines, json_list, token_file, coco, karpathy)
LOADERS += (parquet_of_names, parquet_of_records)
loaders = pytest.mark.parametrize("loader", LOADERS, ids=lambda loader: loader.__name__)


def going_up(folder, outside):
    return f"../{outside.name}"


def absolute(folder, outside):
    return str(outside)


def through_a_folder(folder, outside):
    (folder / "deep").mkdir()
    return f"deep/../../{outside.name}"


def link(folder, outside):
    (folder / "link.png").symlink_to(outside)
    return "link.png"


def linked_folder(folder, outside):
    (folder / "linked").symlink_to(outside.parent)
    return f"linked/{outside.name}"


def link_to_link(folder, outside):
    (folder / "second.png").symlink_to("link.png")
    (folder / "link.png").symlink_to(f"../{outside.name}")
    return "second.png"


ESCAPES = (going_up, absolute, through_a_folder, link, linked_folder, link_to_link)
escapes = pytest.mark.parametrize("escape", ESCAPES, ids=lambda escape: escape.__name__)


@pytest.mark.usefixtures("cache")
class TestNamesOfOtherFiles:
    @pytest.fixture
    def folder(self, tmp_path):
        (tmp_path / "data").mkdir()
        return tmp_path / "data"

    @loaders
    @escapes
    def test_no_loader_reads_outside_of_its_folder(self, folder, loader, escape):
        secret = picture(folder.parent, "secret.png", (9, 7))
        source = loader(folder, [picture(folder, "a.png").name, escape(folder, secret)])
        for check_images in (True, False):
            with pytest.raises(ValueError, match=r"names files outside of .*secret\.png.*allow_outside=True"):
                load_captioned(source, check_images=check_images)
        allowed = load_captioned(source, allow_outside=True)
        allowed = allowed if isinstance(allowed, Dataset) else allowed["train"]
        assert [image.size for image in allowed["image"]] == [(8, 8), (9, 7)]

    @loaders
    def test_no_loader_goes_to_an_address(self, folder, loader, monkeypatch):
        monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("a connection was made"))
        source = loader(folder, [picture(folder, "a.png").name, "http://127.0.0.1:9/a.png"])
        with pytest.raises(ValueError, match=r"names files outside of .*http://127"):
            load_captioned(source)

    @loaders
    def test_absolute_names_and_links_within_the_folder_are_fine(self, folder, loader):
        inside = picture(folder, "deep/a.png")
        (folder / "link.png").symlink_to(inside)
        source = loader(folder, [str(inside), "link.png", "deep/../deep/a.png"])
        loaded = load_captioned(source)
        assert len(loaded if isinstance(loaded, Dataset) else loaded["train"]) == 3

    @loaders
    def test_the_named_folder_of_images_counts_too(self, folder, tmp_path, loader):
        if loader in (parquet_of_records,):
            pytest.skip("holds its images itself, and takes no folder")
        elsewhere = picture(tmp_path / "photographs", "a.png").parent
        (tmp_path / "linked").symlink_to(elsewhere)
        source = loader(folder, ["a.png", str(elsewhere / "a.png")])
        loaded = load_captioned(source, images=tmp_path / "linked")
        assert len(loaded if isinstance(loaded, Dataset) else loaded["train"]) == 2

    def test_a_caption_file_that_is_a_link_out_of_its_folder(self, folder, tmp_path):
        picture(folder, "a.png")
        private = csv(tmp_path, ["a.png"]) / "captions.csv"
        (folder / "captions.csv").symlink_to(private)
        with pytest.raises(ValueError, match=r"names files outside of .*captions\.csv \(a link leads to"):
            load_captioned(folder)
        assert len(load_captioned(folder / "captions.csv")) == 1  # named by the user
        assert len(load_captioned(folder, allow_outside=True)) == 1

    def test_the_cache_of_the_hub_is_made_of_links(self, tmp_path):
        blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "0a1b"
        blobs.mkdir()
        (snapshot / "images").mkdir(parents=True)
        csv(snapshot, ["images/a.png"])
        os.rename(picture(tmp_path, "x.png"), blobs / "1")
        os.rename(snapshot / "captions.csv", blobs / "2")
        (snapshot / "images" / "a.png").symlink_to("../../../blobs/1")
        (snapshot / "captions.csv").symlink_to("../../blobs/2")
        assert load_captioned(snapshot)[0]["image"].size == (8, 8)

    def test_downloads(self, folder, tmp_path):
        secret = picture(tmp_path, "secret.png")
        (tmp_path / "secret.txt").write_text("private")
        picture(folder, "00000/000000000.png")
        (folder / "00000_stats.json").write_text(json.dumps({"count": 1, "successes": 1, "status_dict": {}}))
        assert len(load_img2dataset(folder)) == 1
        for name, target in (("000000000.txt", "secret.txt"), ("000000001.png", secret.name)):
            (folder / "00000" / name).symlink_to(tmp_path / target)
            for load in (load_img2dataset, load_captioned):
                with pytest.raises(ValueError, match=r"names files outside of .*secret"):
                    load(folder)
            assert len(load_captioned(folder, allow_outside=True)) == 1 + (target == secret.name)
            (folder / "00000" / name).unlink()

    def test_a_folder_of_bare_images_for_a_list(self, folder, tmp_path):
        record = {"image_id": "a", "caption": "a dog", "annotator_id": 1}
        (tmp_path / "narratives.jsonl").write_text(json.dumps(record))
        (folder / "a.png").symlink_to(picture(tmp_path, "secret.png"))
        for load in (load_url_list, load_captioned):
            with pytest.raises(ValueError, match=r"names files outside of .*secret\.png"):
                load(tmp_path / "narratives.jsonl", images=folder)
        assert len(load_captioned(tmp_path / "narratives.jsonl", images=folder, allow_outside=True)) == 1

    def test_a_data_set_in_the_hands_of_the_user_is_his_own(self, folder, tmp_path):
        outside = picture(tmp_path, "mine.png")
        rows = Dataset.from_dict({"image": [str(outside)], "caption": ["a dog"]})
        assert len(load_captioned(rows)) == 1
        with pytest.raises(ValueError, match="names files outside"):
            load_captioned(rows, images=folder)

    def test_from_the_shell(self, folder, tmp_path):
        picture(folder, "a.png")
        picture(tmp_path, "secret.png")
        csv(folder, ["a.png", "../secret.png"])
        words = ["score", str(folder), str(tmp_path / "out"), "--scorer", "caption_length"]
        refused = CliRunner().invoke(app, words)
        assert refused.exit_code == 1
        assert "secret.png" in refused.output
        assert "--allow-outside" in refused.output
        assert not (tmp_path / "out").exists()
        assert CliRunner().invoke(app, [*words, "--allow-outside"]).exit_code == 0

    @pytest.mark.parametrize("place", ["image", "list", "record"])
    @pytest.mark.parametrize("outside", ["file", "address"])
    def test_scored_data_that_name_files_of_this_machine(self, folder, tmp_path, place, outside, asked):
        secret = str(picture(folder, "secret.png"))
        name = secret if outside == "file" else f"{asked.address}/a.png"
        saved = scored_in(tmp_path / "scored", folder, place)
        held = CliRunner().invoke(app, ["push", str(saved), "me/x", "--dry-run"])
        assert held.exit_code == 0
        assert "images and other files embedded: 2, " in held.output
        name_files(saved, place, name)
        with pytest.raises(ValueError, match=r"names files outside of .*allow_outside=True"):
            load_scored(saved)
        assert len(load_scored(saved, allow_outside=True)) == 2
        commands = {"push": ["me/x", "--dry-run", "--thumbnails"], "plan": ["{type: iid, epochs: 1}"], "inspect": []}
        for command, words in commands.items():
            refused = CliRunner().invoke(app, [command, str(saved), *words])
            assert refused.exit_code == 1, command
            assert "names files outside of" in refused.output
        assert asked.requests == []

    def test_a_push_asks_for_no_address(self, folder, tmp_path, asked):
        saved = scored_in(tmp_path / "scored", folder, "list")
        name_files(saved, "list", f"{asked.address}/a.png")
        with pytest.raises(ValueError, match=r"names http://.* in place of an image, and a push embeds images"):
            push_scored(load_scored(saved, allow_outside=True), "me/x", dry_run=True)
        assert asked.requests == []

    @pytest.mark.parametrize("outside", ["file", "address", "shard"])
    def test_buckets_that_name_files_of_this_machine(self, folder, tmp_path, outside, asked):
        secret = picture(tmp_path, "secret.png", (9, 7))
        buckets = tmp_path / "buckets"
        save_bucketed(
            load_scored(scored_in(tmp_path / "scored", folder, "image")), buckets, 1, score_column="caption_length"
        )
        assert len(list(BucketedStream(buckets, IID(epochs=1)))) == 2
        content = json.loads((buckets / "buckets.json").read_text())
        shard = content["buckets"][0]["shards"][0]
        if outside == "shard":
            os.rename(buckets / shard["file"], tmp_path / "0.parquet")
            shard["file"] = "../0.parquet"
        else:
            name = str(secret) if outside == "file" else f"{asked.address}/a.png"
            table = pq.read_table(buckets / shard["file"])
            rows = pa.array([{"bytes": None, "path": name}] * 2, table.schema.field("image").type)
            pq.write_table(table.set_column(0, table.schema.field("image"), rows), buckets / shard["file"])
            shard["bytes"] = (buckets / shard["file"]).stat().st_size
        write_index(buckets, content)
        with pytest.raises(ValueError, match="names files outside of"):
            list(BucketedStream(buckets, IID(epochs=1)))
        assert asked.requests == []

    def test_json_of_a_tar_holds_no_image(self, folder, tmp_path):
        """An archive's JSON may name an image as a Parquet file does."""
        secret = picture(tmp_path, "secret.png", (9, 7))
        save_bucketed(
            load_scored(scored_in(tmp_path / "scored", folder, "image")),
            tmp_path / "b",
            1,
            format="webdataset",
            score_column="caption_length",
        )
        content = json.loads((tmp_path / "b" / "buckets.json").read_text())
        shard = content["buckets"][0]["shards"][0]
        with tarfile.open(tmp_path / "b" / shard["file"], "w") as archive:
            for number in range(2):
                for ending, text in (("txt", "a dog"), ("json", json.dumps({"image": {"path": str(secret)}}))):
                    member = tarfile.TarInfo(f"{number}.{ending}")
                    member.size = len(text)
                    archive.addfile(member, BytesIO(text.encode()))
        shard["bytes"] = (tmp_path / "b" / shard["file"]).stat().st_size
        write_index(tmp_path / "b", content)
        assert [example["image"] for example in BucketedStream(tmp_path / "b", IID(epochs=1))] == [None, None]


@pytest.fixture
def asked():
    with asked_server() as found:
        yield found


def fifo(path):
    os.mkfifo(path)


def unix_socket(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))


def device(path):
    path.symlink_to("/dev/zero")


def directory(path):
    path.mkdir()


def loop(path):
    path.symlink_to(path.name)


def bomb(path):
    """A kilobyte of header and nothing behind it: decoding would take 30 GB."""
    head = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    chunks = [b"IHDR" + head, b"IDAT" + zlib.compress(b"")]
    content = [struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(content))


def large(path):
    """A real image of 121 megapixels in 15 kB, below Pillow's own limit."""
    Image.new("1", (11_000, 11_000)).save(path, "PNG", optimize=False)


def postscript(path):
    path.write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n(x) run\nshowpage\n%%EOF\n")


ATTACKS = {fifo: "is a FIFO", unix_socket: "is a socket", device: "is a device", directory: "is a folder"}
ATTACKS |= {loop: "cannot be decoded", bomb: "pixels|decompression bomb", large: "121,000,000 pixels"}
ATTACKS |= {postscript: "is PostScript"}
attacks = pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)


@pytest.mark.usefixtures("cache")
class TestWhatIsNoPicture:
    @pytest.fixture(autouse=True)
    def in_time(self):
        """A test that hangs ends in an error."""

        def late(*_):
            raise TimeoutError("the test hangs")

        signal.signal(signal.SIGALRM, late)
        signal.alarm(30)
        yield
        signal.alarm(0)

    @pytest.fixture
    def folder(self, tmp_path, monkeypatch):
        (tmp_path / "data").mkdir()
        monkeypatch.chdir(tmp_path)
        return tmp_path / "data"

    @loaders
    @attacks
    def test_every_loader_leaves_it_out_and_names_it(self, folder, tmp_path, caplog, loader, attack):
        attack(folder / "bad.png")
        source = loader(folder, [picture(folder, "a.png").name, "bad.png"])
        log = tmp_path / "log.txt"
        loaded = load_captioned(source, unreadable_log=log, allow_outside=attack is device)
        assert len(loaded if isinstance(loaded, Dataset) else loaded["train"]) == 1
        (line,) = log.read_text().splitlines()
        assert re.search(ATTACKS[attack], line)
        assert "bad.png" in line
        assert "1 image cannot be read, which leaves out 1 row" in caplog.text

    @loaders
    @pytest.mark.parametrize("attack", [fifo, unix_socket, device], ids=lambda attack: attack.__name__)
    def test_unchecked_it_is_an_error(self, folder, loader, attack):
        attack(folder / "bad.png")
        source = loader(folder, [picture(folder, "a.png").name, "bad.png"])
        with pytest.raises(ValueError, match=rf"bad\.png {ATTACKS[attack]}, not a file with an image"):
            load_captioned(source, check_images=False, allow_outside=attack is device)

    @attacks
    def test_no_reader_of_one_image_opens_it(self, folder, attack):
        attack(folder / "bad.png")
        for image in (folder / "bad.png", {"bytes": None, "path": str(folder / "bad.png")}):
            with pytest.raises(UnreadableImageError, match=ATTACKS[attack]):
                to_rgb(image)
        found = image_size({"bytes": None, "path": str(folder / "bad.png")})
        sizes = {large: (11_000, 11_000), postscript: (8, 8)}
        assert found == sizes.get(attack, (None, None))

    @pytest.mark.parametrize("attack", [bomb, large, postscript], ids=lambda attack: attack.__name__)
    def test_in_bytes(self, folder, attack, caplog):
        attack(folder / "bad.png")
        contents = [(folder / "bad.png").read_bytes(), picture(folder, "a.png").read_bytes()]
        images = [{"bytes": content, "path": None} for content in contents]
        features = Features({"image": datasets.Image(), "caption": Value("string")})
        rows = Dataset.from_dict({"image": images, "caption": ["a", "b"]}, features=features)
        rows.save_to_disk(folder / "saved")
        for source in (rows, folder / "saved"):
            assert load_captioned(source)["caption"][:] == ["b"]
            assert re.search(ATTACKS[attack], caplog.text)
            caplog.clear()
        with pytest.raises(UnreadableImageError, match=ATTACKS[attack]):
            to_rgb(contents[0])
        if attack is not bomb:  # which Pillow itself refuses to open
            with pytest.raises(UnreadableImageError, match=ATTACKS[attack]), Image.open(BytesIO(contents[0])) as image:
                to_rgb(image)

    def test_in_downloads(self, folder, caplog):
        picture(folder, "00000/000000000.png")
        (folder / "00000_stats.json").write_text(json.dumps({"count": 1, "successes": 1, "status_dict": {}}))
        os.mkfifo(folder / "00000" / "000000001.png")
        assert len(load_captioned(folder)) == 1
        assert "FIFOs, sockets and devices (not opened): 1 (000000001.png" in caplog.text
        os.mkfifo(folder / "00000" / "000000000.txt")
        assert load_captioned(folder)["caption"][:] == [None]

    @pytest.mark.parametrize("name", ["captions.csv", "metadata.jsonl", "captions.json", "x.token.txt"])
    def test_in_the_place_of_a_caption_file(self, folder, name):
        picture(folder, "a.png")
        os.mkfifo(folder / name)
        with pytest.raises(ValueError, match="recognises nothing in"):
            load_captioned(folder)
        with pytest.raises(ValueError, match=rf"{re.escape(name)} is a FIFO, not a file"):
            load_captioned(folder / name)

    def test_in_a_folder_of_boxes(self, folder):
        os.mkfifo(folder / "1.npy")
        with pytest.raises(ValueError, match=r"1\.npy is a FIFO, not a file"):
            open_regions(folder)["1"]
        os.mkfifo(folder / "x.npz")
        for name in ("x.npz", "x.tsv", "x.h5"):
            if not (folder / name).exists():
                os.mkfifo(folder / name)
            with pytest.raises(ValueError, match=rf"{name} is a FIFO, not a file"):
                open_regions(folder / name)

    @pytest.mark.parametrize("name", ["README.md", "state.json", "dataset_info.json"])
    def test_in_saved_data(self, folder, name):
        scored_in(folder / "saved", folder, "image")
        (folder / "saved" / name).unlink()
        os.mkfifo(folder / "saved" / name)
        for load in (load_scored, load_captioned):
            with pytest.raises(ValueError, match=rf"{name} is a FIFO, not a file"):
                load(folder / "saved")

    def test_in_the_place_of_a_record(self, folder):
        os.mkfifo(folder / "x.json")
        for read in (partial(read_json, remedy=""), partial(read_sealed, remedy=""), is_sealed_parquet):
            with pytest.raises(ValueError, match=r"x\.json is a FIFO, not a file"):
                read(folder / "x.json")
        assert not is_intact(folder / "x.json")

    def test_the_limit_is_an_argument(self, folder, caplog):
        source = csv(folder, [picture(folder, "a.png").name, picture(folder, "b.png", (30, 20)).name])
        assert len(load_captioned(source, max_pixels=599)) == 1
        assert "30 × 20 = 600 pixels, more than the limit of 599" in caplog.text
        assert len(load_captioned(source, max_pixels=600)) == 2  # another limit is another verdict
        large(folder / "large.png")
        source = csv(folder, ["a.png", "large.png"])
        assert len(load_captioned(source, max_pixels=121_000_000)) == 2


def test_no_module_reads_pickles():
    """The calls by which Python's libraries read them, in the whole package and its recipes."""
    root = Path(hf_curriculum.__file__).parent
    files = [*root.rglob("*.py"), *(root.parent / "recipes").rglob("*.py")]
    found = {}
    for file in files:
        text = file.read_text(encoding="utf-8")
        calls = re.findall(
            r"pickle\.loads?\(|Unpickler|allow_pickle=True|\b(?:dill|joblib)\b[.\n]|marshal\.loads?\(", text
        )
        calls += [call for call in re.findall(r"torch\.load\([^)]*\)", text) if "weights_only=True" not in call]
        calls += re.findall(r"yaml\.(?:unsafe_load|full_load)\(|UnsafeLoader|FullLoader|yaml\.Loader", text)
        if calls:
            found[file.name] = calls
    assert len(files) > 150
    assert found == {}


class TestWhatDataNames:
    """Models, files and modules that data or a checkpoint names are neither loaded, opened nor imported."""

    @pytest.mark.parametrize(
        ("scorer", "arguments"),
        [
            ("LanguageModelLoss", {"model": "someone/model"}),
            ("VisualEntropy", {"regions": "/elsewhere/regions.h5", "column": "caption"}),
            ("evil:Scorer", {}),
            ("CaptionLength", {"type": "language_model_loss", "model": "someone/model"}),
        ],
    )
    def test_a_preview_makes_no_scorer_of_a_record(self, monkeypatch, scorer, arguments):
        monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("a connection was made"))
        rows = {"image_id": ["1", "1"], "caption": ["a dog", "a"], "s": [2.0, 2.0]}
        made = ScoreProvenance("s", scorer, arguments, easy="low", per_image="max")
        data = attach_provenance(Dataset.from_dict(rows), {"s": made})
        (shown,) = inspect_scores(data, examples=1).scores
        assert shown.easiest[0]["caption"] == "2 captions: a dog | a"
        assert "evil" not in sys.modules

    @pytest.mark.parametrize(
        "rule",
        [
            {"type": "filter", "keep": 0.5, "then": "/elsewhere/rule.yaml"},
            {"type": "iid", "batches": "/elsewhere/batches.json"},
            {"type": "filter", "keep": 0.5, "then": "{type: filter, keep: 0.5, then: /elsewhere/rule.yml}"},
        ],
    )
    def test_a_report_opens_no_file_of_a_checkpoint(self, rule):
        with pytest.raises(ValueError, match="The curriculum in the checkpoint may name a file"):
            _saved_rule({"curriculum": rule})
        with pytest.raises(ValueError, match="There is no curriculum 'evil:Rule'"):
            _saved_rule({"curriculum": {"type": "evil:Rule"}})
        assert "evil" not in sys.modules

    def test_captions_of_a_run(self, tmp_path):
        secret = picture(tmp_path, "secret.png")
        held_out = tmp_path / "run" / "held_out"
        held_out.mkdir(parents=True)
        (held_out / "captions.json").write_text(json.dumps([{"file": "../../secret.png"}]))
        with pytest.raises(ValueError, match=r"captions\.json names files outside of .*secret\.png"):
            add_held_out(Report("t"), held_out, "run")
        (held_out / "captions.json").write_text("[{}]")
        with pytest.raises(ValueError, match=r"captions\.json is damaged \(KeyError: 'file'\)"):
            add_held_out(Report("t"), held_out, "run")
        assert secret.exists()

    def test_images_of_a_benchmark(self, tmp_path):
        picture(tmp_path, "secret.png")
        picture(tmp_path, "images/a.png")
        assert find_images(tmp_path / "images", ["a"], task="t") == [tmp_path / "images" / "a.png"]
        with pytest.raises(ValueError, match=r"names files outside of .*secret\.png"):
            find_images(tmp_path / "images", ["a", "../secret"], task="t")

    @pytest.mark.slow  # to import `diffusers`
    def test_a_scheduler_is_one_of_diffusers(self, tmp_path):
        pytest.importorskip("diffusers")
        facts = {"pipeline": "PixelDiffusionPipeline", "scheduler": "DiffusionPipeline", "text_model": "scenes_clip"}
        (tmp_path / "pipeline.json").write_text(json.dumps(facts))
        with pytest.raises(ValueError, match="names the scheduler 'DiffusionPipeline', and `diffusers` has none"):
            PixelDiffusionPipeline.from_pretrained(tmp_path)


NAMED_BY = {
    "auto_classes.py": "the table of names.py",
    "shapes.py": "annotations of the functions that it wraps",
    "names.py": "its own tables, and entry points of installed packages",
    "scorers/registry.py": "the user, as module:Class on a command line or in a configuration that is named there",
    "training/setup.py": "the classes of a trainer that the user passed",
    "training/checkpoints.py": "a constant",
    "tasks/alignment/config.py": "a constant",
    "tasks/captioning/models/config.py": "a constant of its class",
    "tasks/captioning/models/convert.py": "its own table",
    "models/flamingo/config.py": "a constant",
    "models/git/config.py": "a constant",
    "tasks/detection/config.py": "a constant",
    "verify.py": "its own table",
}
"""Files that import modules by name, and who names them: never data, nor a checkpoint."""


def test_who_names_modules_that_are_imported():
    root = Path(hf_curriculum.__file__).parent
    calls = r"\b(?:import_module|__import__|spec_from_file_location|run_path|run_module)\("
    calls = re.compile(rf"{calls}|(?<![.\w`])(?<!def )(?:eval|exec)\(")
    found = {file.relative_to(root).as_posix() for file in root.rglob("*.py") if calls.search(file.read_text("utf-8"))}
    assert {name for name in found if not name.startswith("cli/")} - set(NAMED_BY) == set()
    assert set(NAMED_BY) <= found
    named = "import_named("
    users = [file.relative_to(root).as_posix() for file in root.rglob("*.py") if named in file.read_text("utf-8")]
    assert sorted(users) == ["cli/common.py", "cli/score.py", "scorers/registry.py", "studies/recipe.py"]


def test_json_files_are_read_by_one_function():
    root = Path(hf_curriculum.__file__).parent
    reads = re.compile(r"^(?!.*>>>).*(?:json\.load\(|json\.loads\(.*\.read)", re.MULTILINE)
    found = [file.relative_to(root).as_posix() for file in root.rglob("*.py") if reads.search(file.read_text("utf-8"))]
    assert found == []
