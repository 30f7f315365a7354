"""Buckets at an address: the same examples as from disk, whatever a network does, through a cache on this machine."""

from __future__ import annotations

import errno
import importlib.util
import json
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import bucketed_run
import datasets
import fsspec
import numpy as np
import pytest
from bucketed_run import recorded
from datasets import Dataset, Image
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import known_implementations
from PIL import Image as PILImage
from torch.utils.data import DataLoader

from hf_curriculum import BucketedStream, Phases, remote, save_bucketed
from hf_curriculum.data.readers.source_shards import find_shards
from hf_curriculum.streaming import cache
from hf_curriculum.streaming.cache import ShardCache
from hf_curriculum.streaming.index import verify_bucketed

ADDRESS, GLOBAL = "memory://data/buckets", 16
GET_FILE = MemoryFileSystem.get_file

needs_s3 = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("moto", "flask", "s3fs"))), reason="needs moto[server] and s3fs"
)


def table(size: int = 203) -> Dataset:
    scores = (np.arange(size) * 37 % 200).astype(np.float32)
    return Dataset.from_dict({"id": range(size), "caption": [f"caption {n}" for n in range(size)], "s": scores})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("disk") / "buckets"
    save_bucketed(table(), path, 4, score_column="s", easy="low", shard_size=9)
    return path


@pytest.fixture
def memory(folder, monkeypatch):
    """The buckets in memory, and how often each file is fetched from there."""
    files = fsspec.filesystem("memory")
    files.put(str(folder), "/data/buckets", recursive=True)
    monkeypatch.setattr(remote, "BACKOFF", 0.001)
    yield count_fetched(monkeypatch)
    files.rm("/data", recursive=True)


def count_fetched(monkeypatch, *faults) -> Counter:
    """Counts fetched files from now on; a fault spoils the first fetches of each, in this order."""
    fetched = Counter()

    def get_file(self, rpath, lpath=None, **options):
        name = rpath.removeprefix("/data/buckets/")
        fetched[name] += 1
        fault = faults[min(fetched[name], len(faults)) - 1] if faults else None
        if isinstance(fault, Exception):
            raise fault
        GET_FILE(self, rpath, lpath, **options)
        if fault is not None:
            Path(lpath).write_bytes(fault(Path(lpath).read_bytes()))

    monkeypatch.setattr(MemoryFileSystem, "get_file", get_file)
    return fetched


class NoCredentialsError(Exception):
    """As `botocore` has it."""


def truncated(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flipped(content: bytes) -> bytes:
    return bytes([content[0] ^ 1]) + content[1:]


def stream(path=ADDRESS, **options) -> BucketedStream:
    return BucketedStream(path, Phases(4), global_batch_size=GLOBAL, **options)


def ids_of(examples: list[dict]) -> list[int]:
    return [example["id"] for example in examples]


def side_by_side(whole: BucketedStream) -> list[list[list[int]]]:
    """The batches of two processes with two workers each, which read at the same time."""
    parts = [whole.split_by_node(rank, 2) for rank in range(2)]
    loaders = [DataLoader(part, GLOBAL // 2, num_workers=2, collate_fn=ids_of) for part in parts]
    return list(map(list, zip(*loaders, strict=True)))


def kept_in(root: Path) -> dict[str, Path]:
    """The shards in a cache, by their names in the index; nothing else is there."""
    files = [path for path in root.rglob("*") if path.is_file()]
    assert not [path for path in files if path.suffix not in (".parquet", ".tar")]
    return {"/".join(path.parts[-2:]): path for path in files}


def test_an_address_gives_what_the_folder_gives_and_fetches_each_shard_once(folder, memory, tmp_path):
    local, far = stream(folder), stream(cache=tmp_path)
    assert list(far) == list(local)
    assert far.opened == local.opened
    assert memory == dict.fromkeys(far.opened, 1)
    kept = kept_in(tmp_path)
    assert {name: path.read_bytes() for name, path in kept.items()} == {
        name: (folder / name).read_bytes() for name in far.opened
    }
    again = stream(cache=str(tmp_path))
    assert ids_of(list(again)) == ids_of(list(local))
    assert side_by_side(again) == side_by_side(local)
    assert memory.total() == len(kept)
    moved = pickle.loads(pickle.dumps(again))
    assert moved._cache.remote._opened is None
    assert ids_of(list(moved)) == ids_of(list(local))


def test_archives_with_images_too(memory, tmp_path):
    rows = [{"image": PILImage.new("RGB", (8, 8), (n, 0, 0)), "caption": f"{n}", "s": float(n)} for n in range(24)]
    data = Dataset.from_list(rows).cast_column("image", Image())
    save_bucketed(data, tmp_path / "disk", 2, score_column="s", easy="low", shard_size=4, format="webdataset")
    fsspec.filesystem("memory").put(str(tmp_path / "disk"), "/data/archives", recursive=True)
    local, far = (
        BucketedStream(tmp_path / "disk", Phases(2), seed=1),
        BucketedStream("memory://data/archives", Phases(2), seed=1, cache=tmp_path / "cache"),
    )
    seen, other = ([(row["caption"], row["image"].getpixel((0, 0))) for row in each] for each in (local, far))
    assert seen == other


def test_a_resumed_stream_fetches_what_it_opens(folder, memory, tmp_path):
    whole = ids_of(list(stream(folder)))
    far = stream(cache=tmp_path)
    step = far.plan.num_steps - 3
    far.load_state_dict(json.loads(json.dumps(stream(folder).state_at(step))))  # disk or address, the state is one
    assert ids_of(list(far)) == whole[step * GLOBAL :]
    assert set(memory) == set(far.opened)
    iterator = iter(far)
    first = [next(iterator)["id"] for _ in range(5)]
    state = far.state_dict()
    iterator.close()
    later = stream(cache=tmp_path)
    later.load_state_dict(state)
    assert first + ids_of(list(later)) == whole[step * GLOBAL :]


def test_the_next_shards_come_before_they_are_needed(memory, tmp_path):
    far = stream(cache=tmp_path, partitions_per_step=1, worker_partitions=1)
    iterator = iter(far)
    next(iterator)  # a block holds all 50 examples of the first phase
    end = time.monotonic() + 20
    while not memory.keys() - far.opened.keys() and time.monotonic() < end:
        time.sleep(0.01)
    ahead = memory.keys() - far.opened.keys()
    first = far.plan.pass_at(far.plan.stage_starts[1])
    needed = {
        far.plan.shards[first.buckets[bucket]][shard].file
        for bucket, shard, _, _ in first.pieces(0, 0, sum(map(sum, first.shards)))
    }
    assert ahead
    assert ahead <= needed
    iterator.close()


def test_what_breaks_for_a_while_is_tried_again(folder, memory, tmp_path, monkeypatch):
    faults = (ConnectionResetError("reset"), OSError("503"), truncated, flipped, None)
    fetched = count_fetched(monkeypatch, *faults)
    far = stream(cache=tmp_path)
    assert list(far) == list(stream(folder))
    assert fetched == dict.fromkeys(far.opened, len(faults))
    assert set(kept_in(tmp_path)) == set(far.opened)


@pytest.mark.parametrize(
    ("fault", "error", "message", "attempts"),
    [
        (
            ConnectionResetError("gone"),
            ConnectionError,
            r"could not be read in 5 attempts \(ConnectionResetError: go",
            5,
        ),
        (
            truncated,
            ValueError,
            r"parquet came with .* bytes, and has to have .*, 5 times: it was truncated or replaced",
            5,
        ),
        (
            flipped,
            ValueError,
            r"parquet came with the right size, but another content \(digest \w+, not \w+\), 5 times",
            5,
        ),
        (PermissionError("403"), PermissionError, r"access is denied \(403\)\. Look at the credentials, which", 1),
        (NoCredentialsError("none found"), PermissionError, r"access is denied \(none found\)\. Look at the cred", 1),
        (FileNotFoundError("404"), FileNotFoundError, "was there when the folder was listed, and is no lon", 1),
        (
            OSError(errno.ENOSPC, "full"),
            OSError,
            "no space left for memory://data/buckets/bucket_.* `cache_limit=`",
            1,
        ),
    ],
)
def test_what_stays_broken_is_named(memory, tmp_path, monkeypatch, fault, error, message, attempts):
    monkeypatch.setattr(cache, "THREADS", 0)
    fetched = count_fetched(monkeypatch, fault)
    with pytest.raises(error, match=message):
        next(iter(stream(cache=tmp_path)))
    assert list(fetched.values()) == [attempts]
    assert not kept_in(tmp_path)
    fetched = count_fetched(monkeypatch, fault)
    with pytest.raises(error, match=message):
        verify_bucketed(ADDRESS)
    assert fetched["bucket_0/00000-of-00006.parquet"] == attempts


def test_the_least_recently_used_shards_are_removed_beyond_a_limit(folder, memory, tmp_path):
    whole = list(stream(folder))
    sizes = [shard.bytes for bucket in stream(folder).index.buckets for shard in bucket.shards]
    with pytest.warns(UserWarning, match="has up to .* bytes of shards open or fetched ahead: some would be fetched"):
        far = stream(cache=tmp_path / "small", cache_limit=4 * max(sizes))
    other = tmp_path / "small" / "bucketed-mine" / "a.parquet"
    other.parent.mkdir(parents=True)
    other.write_bytes(bytes(4 * max(sizes)))
    assert list(far) == whole
    assert other.stat().st_size == 4 * max(sizes)
    shutil.rmtree(other.parent)
    kept = kept_in(tmp_path / "small")
    assert sum(path.stat().st_size for path in kept.values()) <= 4 * max(sizes)
    assert memory.total() > len(sizes)
    enough = stream(cache=tmp_path / "large", cache_limit=f"{sum(sizes) // 1000 + 1}KB")
    memory.clear()
    assert list(enough) == whole
    assert memory.total() == len(sizes)
    # Of two that were fetched the one that was used last stays.
    with pytest.warns(UserWarning, match="Give at least that, or lower partitions_per_step"):
        tight = stream(cache=tmp_path / "tight", cache_limit=5 * max(sizes) // 2)
    one, two, three = tight.index.buckets[3].shards[:3]
    for shard in (one, two, one, three):
        tight._cache.fetch(shard)
    assert set(kept_in(tmp_path / "tight")) == {one.file, three.file}


def test_limits_that_are_none(folder, memory, tmp_path):
    with pytest.raises(
        ValueError, match=r"cache_limit='1KB' was given, but the largest shard of memory://data/buckets"
    ):
        stream(cache=tmp_path, cache_limit="1KB")
    with pytest.raises(ValueError, match="not in a valid format"):
        stream(cache=tmp_path, cache_limit="much")
    for options in ({"cache": tmp_path}, {"cache_limit": 1}, {"storage_options": {}}):
        with pytest.raises(ValueError, match="is a folder of this machine, and is read in place: cache="):
            stream(folder, **options)


def test_a_shard_that_is_removed_before_it_is_opened_is_fetched_again(folder, memory, tmp_path, monkeypatch):
    fetch, removed = ShardCache.fetch, set()

    def fetch_and_remove(self, shard):
        file = fetch(self, shard)
        if shard.file not in removed:
            removed.add(shard.file)
            file.unlink()
        return file

    monkeypatch.setattr(cache, "THREADS", 0)
    monkeypatch.setattr(ShardCache, "fetch", fetch_and_remove)
    far = stream(cache=tmp_path)
    assert list(far) == list(stream(folder))
    assert memory == dict.fromkeys(far.opened, 2)


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_writes_is_not(memory, tmp_path, monkeypatch):
    where = stream(cache=tmp_path)._cache.folder / "bucket_0"
    where.mkdir(parents=True)
    for name in ("dead", "living"):
        (where / f".01234567-1-0a1b2c3d.{name}.parquet").write_bytes(b"half")  # of another machine
        (where / f".{name}.parquet.lock").touch()
    program = (
        "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); input()"
    )
    command = [sys.executable, "-c", program, str(where / ".living.parquet.lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as living:
        living.stdout.readline()
        monkeypatch.setattr(cache, "_cleaned", set())
        stream(cache=tmp_path)
        left = sorted(path.name for path in where.iterdir())
        living.communicate(b"\n")
    assert left == [".01234567-1-0a1b2c3d.living.parquet", ".living.parquet.lock"]


def test_a_shard_in_the_cache_of_another_size_is_fetched_again(folder, memory, tmp_path):
    list(stream(cache=tmp_path))
    name, path = next(iter(kept_in(tmp_path).items()))
    path.write_bytes(path.read_bytes()[:9])
    assert list(stream(cache=tmp_path)) == list(stream(folder))
    assert (memory[name], memory.total()) == (2, len(kept_in(tmp_path)) + 1)


def test_a_shard_that_was_damaged_in_the_cache_is_fetched_again(folder, memory, tmp_path, caplog):
    list(stream(cache=tmp_path))
    name, path = next(iter(kept_in(tmp_path).items()))
    path.write_bytes(flipped(path.read_bytes()))
    assert list(stream(cache=tmp_path)) == list(stream(folder))
    assert (memory[name], memory.total()) == (2, len(kept_in(tmp_path)) + 1)
    assert f"It is fetched again: {path} holds something else than was written" in caplog.text
    path.write_bytes(flipped(path.read_bytes()))
    assert list(stream(cache=tmp_path, columns=["id"])) == [{"id": row["id"]} for row in stream(folder)]
    path.write_bytes(path.read_bytes()[:-20] + bytes(12) + path.read_bytes()[-8:])  # the footer's end
    assert list(stream(cache=tmp_path, columns=["id"])) == [{"id": row["id"]} for row in stream(folder)]
    assert memory[name] == 3


@pytest.mark.parametrize("name", ["", "bucket_0"])
def test_links_in_a_cache_are_refused(memory, tmp_path, name):
    link = stream(cache=tmp_path / "cache")._cache.folder / name
    (tmp_path / "mine").mkdir()
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(tmp_path / "mine")
    with pytest.raises(ValueError, match=f"{link.name} is a link to .*mine"):
        list(stream(cache=tmp_path / "cache"))
    assert not any(file.is_file() for file in (tmp_path / "mine").rglob("*"))


def test_threads_and_processes_fetch_a_shard_once(memory, tmp_path):
    cached = stream(cache=tmp_path)._cache
    shard = stream(cache=tmp_path).index.buckets[0].shards[0]
    with ThreadPoolExecutor(8) as pool:
        files = set(pool.map(lambda _: cached.fetch(shard), range(16)))
    assert files == {cached.folder / shard.file}
    assert memory == {shard.file: 1}


# ---- Temporary folders ----


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path / "tmp"


def test_scratch_folders_of_killed_processes_are_removed_and_those_of_living_ones_are_not(scratch):
    program = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from hf_curriculum.remote import scratch_folder
with scratch_folder() as folder:
    (folder / "00003.tar").write_bytes(b"half")
    print(folder, flush=True)
    input()
"""
    command = [sys.executable, "-c", program, str(scratch)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as killed, subprocess.Popen(command, **pipes) as living:
        folders = [Path(each.stdout.readline().strip()) for each in (killed, living)]
        (scratch / "hf_curriculum-shard-0.lock").touch()  # of one that was killed before it made its folder
        (scratch / "other").mkdir()
        killed.kill()
        killed.wait()
        assert all((folder / "00003.tar").is_file() for folder in folders)
        with remote.scratch_folder() as mine:
            left = {mine.name, f"{mine.name}.lock", folders[1].name, f"{folders[1].name}.lock", "other"}
            assert {path.name for path in scratch.iterdir()} == left
            assert mine.stat().st_mode & 0o777 == 0o700
        assert (folders[1] / "00003.tar").read_bytes() == b"half"
        living.communicate("\n")
    assert [path.name for path in scratch.iterdir()] == ["other"]


def test_a_link_among_scratch_folders_leads_nobody_astray(scratch, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("mine")
    (scratch / "hf_curriculum-shard-1").symlink_to(tmp_path / "mine")
    (scratch / "hf_curriculum-shard-2.lock").symlink_to(tmp_path / "mine/thesis.txt")
    with remote.scratch_folder() as folder:
        assert folder.parent == scratch
    assert (tmp_path / "mine/thesis.txt").read_text() == "mine"


def test_shards_of_a_crawl_and_verified_ones_are_fetched_into_scratch_folders(memory, scratch, monkeypatch):
    seen = []
    download = remote.RemoteFolder.download
    monkeypatch.setattr(
        remote.RemoteFolder,
        "download",
        lambda self, name, size, checksum, target: (
            seen.append(target.parent) or download(self, name, size, checksum, target)
        ),
    )
    (shard,) = find_shards(f"{ADDRESS}/bucket_0/00000-of-00006.parquet")
    with shard.local() as path:
        assert path.name == "00000-of-00006.parquet"
        assert path.is_file()
    verify_bucketed(ADDRESS)
    assert len(seen) == 25
    assert {folder.parent for folder in seen} == {scratch}
    assert not list(scratch.iterdir())


def test_an_index_that_does_not_fit_is_refused(folder, memory, tmp_path, monkeypatch):
    files, listed, find = fsspec.filesystem("memory"), [], MemoryFileSystem.find
    monkeypatch.setattr(
        MemoryFileSystem, "find", lambda self, *args, **more: listed.append(1) or find(self, *args, **more)
    )
    assert verify_bucketed(ADDRESS).num_rows == 203
    assert len(listed) == 1
    cat = MemoryFileSystem.cat_file
    monkeypatch.setattr(MemoryFileSystem, "cat_file", lambda self, path, **more: cat(self, path, **more)[:-9])
    with pytest.raises(ValueError, match=r"buckets/buckets\.json has .* bytes, but .* came"):
        stream()
    monkeypatch.setattr(MemoryFileSystem, "cat_file", cat)
    with pytest.raises(FileNotFoundError, match=r"memory://data/none/buckets\.json does not exist"):
        stream("memory://data/none/")
    last = "/data/buckets/bucket_3/00005-of-00006.parquet"
    content = files.cat_file(last)
    files.pipe_file(last, content + b"!")
    with pytest.raises(ValueError, match=r"memory://data/buckets/bucket_3/00005-of-00006\.parquet has .* bytes, but"):
        stream()
    files.rm(last)
    with pytest.raises(FileNotFoundError, match=r"00005-of-00006\.parquet does not exist, but buckets.json counts"):
        stream()
    index = BucketedStream(folder).index
    shards = index.buckets[0].shards
    object.__setattr__(shards[0], "file", "../../outside.parquet")
    index.write(tmp_path)
    files.put(str(tmp_path / "buckets.json"), "/data/buckets/buckets.json")
    with pytest.raises(ValueError, match=r"buckets\.json names files outside of memory://data/buckets"):
        stream()


def test_a_file_system_that_is_not_installed_is_named(monkeypatch):
    missing = {"class": "no_such_fs.Files", "err": "Install no_such_fs to access NS"}
    monkeypatch.setitem(known_implementations, "ns", missing)
    with pytest.raises(
        ImportError, match=r"ns://bucket/x needs .* Install no_such_fs to access NS: pip install no_su"
    ):
        stream("ns://bucket/x/")


# ---- A server ----


@pytest.fixture(scope="module")
def s3(folder):
    """A server with the buckets; each test has its own faults and counts."""
    from s3_server import s3_server, upload

    with s3_server() as proxy:
        upload(folder, "s3://bucket/buckets")
        yield proxy


@pytest.fixture
def proxy(s3, monkeypatch):
    monkeypatch.setattr(remote, "BACKOFF", 0.01)
    s3.faults = ("",)
    s3.gets.clear()
    return s3


@needs_s3
@pytest.mark.slow
def test_s3_gives_what_the_disk_gives_to_two_processes_of_two_workers_whatever_breaks(folder, proxy, tmp_path):
    from s3_server import FAULTS

    whole = side_by_side(stream(folder))
    far = stream("s3://bucket/buckets", cache=tmp_path / "whole")
    assert proxy.gets == {"/bucket": 1, "/bucket/buckets/buckets.json": 1}
    assert side_by_side(far) == whole
    shards = [f"/bucket/buckets/{shard.file}" for bucket in far.index.buckets for shard in bucket.shards]
    assert proxy.gets == {"/bucket": 1, "/bucket/buckets/buckets.json": 1, **dict.fromkeys(shards, 1)}
    proxy.gets.clear()
    proxy.faults = FAULTS
    far = stream("s3://bucket/buckets", cache=tmp_path / "faulty")
    assert side_by_side(far) == whole
    assert proxy.gets.total() > 2 * len(shards)
    assert len(kept_in(tmp_path / "faulty")) == len(shards)
    proxy.faults = ("",)
    far = stream("s3://bucket/buckets", cache=tmp_path / "faulty")
    far.load_state_dict(far.state_at(7))
    assert side_by_side(far) == [[batches[rank] for rank in range(2)] for batches in whole[7:]]
    size = sum(path.stat().st_size for path in kept_in(tmp_path / "faulty").values())
    with pytest.warns(UserWarning, match="some would be fetched again and again"):
        far = stream("s3://bucket/buckets", cache=tmp_path / "small", cache_limit=size // 2)
    assert side_by_side(far) == whole
    assert sum(path.stat().st_size for path in kept_in(tmp_path / "small").values()) <= size // 2
    proxy.faults = ("403",)
    with pytest.raises(PermissionError, match=r"s3://bucket/buckets/buckets\.json cannot be read: access is denied"):
        stream("s3://bucket/buckets")


@needs_s3
@pytest.mark.slow
def test_half_a_shard_of_a_killed_process_harms_nobody(folder, proxy, tmp_path, monkeypatch):
    far = stream("s3://bucket/buckets", cache=tmp_path)
    proxy.faults = ("stalled",)
    reader = multiprocessing.get_context("fork").Process(target=list, args=(far,))
    reader.start()
    while not list(tmp_path.rglob(".*-*.parquet")):
        assert reader.is_alive()
        time.sleep(0.01)
    reader.kill()
    reader.join()
    assert list(tmp_path.rglob(".*-*.parquet"))
    proxy.faults = ("",)
    monkeypatch.setattr(cache, "_cleaned", set())
    assert list(stream("s3://bucket/buckets", cache=tmp_path)) == list(stream(folder))
    assert len(kept_in(tmp_path)) == 24


@needs_s3
@pytest.mark.slow
def test_shards_are_listed_by_the_page_and_not_one_by_one(proxy, tmp_path, monkeypatch):
    monkeypatch.setattr(proxy, "page", 10)
    assert len(stream("s3://bucket/buckets", cache=tmp_path).plan.shards) == 4
    assert proxy.gets == {"/bucket": 3, "/bucket/buckets/buckets.json": 1}  # 24 shards and 3 other files


@needs_s3
@pytest.mark.slow
def test_a_trainer_on_two_processes_of_two_workers_trains_from_s3_and_resumes_after_kills(launch, s3, proxy, tmp_path):
    from s3_server import FAULTS, upload

    save_bucketed(
        bucketed_run.make_data(), tmp_path / "disk", 4, score_column="caption_length", easy="low", shard_size=3
    )
    upload(tmp_path / "disk", "s3://bucket/run")
    program = Path(bucketed_run.__file__)
    launch(program, tmp_path / "disk", tmp_path / "plain", processes=2)
    environment = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    far = ("s3://bucket/run", tmp_path / "far", "--workers", 2, "--cache", tmp_path / "cache")
    proxy.faults = FAULTS
    killed = launch(program, *far, "--kill_at", 13, processes=2, env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    launch(program, *far, processes=2, env=environment)
    kept_in(tmp_path / "cache")
    assert recorded(tmp_path / "far") == recorded(tmp_path / "plain")
    assert (tmp_path / "far" / "weights.txt").read_text() == (tmp_path / "plain" / "weights.txt").read_text()


def test_a_trainer_takes_an_address_and_keeps_shards_in_the_cache_of_datasets(folder, memory, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    save_bucketed(
        bucketed_run.make_data(), tmp_path / "disk", 4, score_column="caption_length", easy="low", shard_size=3
    )
    fsspec.filesystem("memory").put(str(tmp_path / "disk"), "/data/run", recursive=True)
    weights = []

    def train(data: str, name: str) -> None:
        trainer = bucketed_run.make_trainer(data, tmp_path / name, save_steps=5, max_steps=8)
        trainer.train(resume_from_checkpoint=name == "resumed")
        weights.append([parameter.tolist() for parameter in trainer.model.parameters()])

    train(str(tmp_path / "disk"), "near")
    train("memory://data/run", "far")
    assert recorded(tmp_path / "far") == recorded(tmp_path / "near")
    assert kept_in(tmp_path / "cache" / "hf_curriculum" / "buckets")
    shutil.copytree(tmp_path / "near" / "checkpoint-5", tmp_path / "resumed" / "checkpoint-5")
    train("memory://data/run", "resumed")
    assert weights[0] == weights[1] == weights[2]
