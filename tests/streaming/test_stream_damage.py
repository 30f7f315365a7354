"""What a stream says of shards that were damaged or exchanged, and what it shows in place of images that are none."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from itertools import combinations

import numpy as np
import pytest
from datasets import Dataset, Features, Image, Value, disable_progress_bars
from PIL import Image as PILImage
from torch.utils.data import DataLoader

from hf_curriculum import IID, BucketedStream, Phases, save_bucketed
from hf_curriculum.data.images import UnreadableImageError
from hf_curriculum.files import DamagedFileError
from hf_curriculum.streaming import shards as shards_module
from hf_curriculum.streaming.dataset import StreamExamples
from hf_curriculum.streaming.index import verify_bucketed
from hf_curriculum.streaming.shards import TarShard

FORMATS = ("parquet", "webdataset")


def texts(path, format: str):
    """Shards of equal size and equally many rows: numbers of two digits, captions of one length."""
    disable_progress_bars()
    rows = np.arange(10, 52)
    data = Dataset.from_dict({"id": rows, "caption": [f"caption {n}" for n in rows], "s": rows.astype(np.float32)})
    save_bucketed(data, path, 3, score_column="s", easy="low", shard_size=7, format=format)
    return path


def photo(number: int) -> bytes:
    content = io.BytesIO()
    PILImage.new("RGB", (16, 16), (number, 0, 0)).save(content, "PNG")
    return content.getvalue()


def photos(path, format: str, size: int = 24, unreadable=(), **options):
    """Images that have their number as a colour; some are none, or were cut."""
    disable_progress_bars()
    images = [photo(number) for number in range(size)]
    for number in unreadable:
        images[number] = b"no image" if number % 2 else images[number][:45]
    rows = {
        "image": [{"bytes": image, "path": None} for image in images],
        "key": [f"{number:05d}" for number in range(size)],
        "caption": [f"{number}" for number in range(size)],
        "s": np.arange(size, dtype=np.float32),
    }
    features = Features({"image": Image(), "key": Value("string"), "caption": Value("string"), "s": Value("float32")})
    data = Dataset.from_dict(rows, features=features)
    save_bucketed(data, path, 2, score_column="s", easy="low", shard_size=4, format=format, **options)
    return path


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("columns", [None, ["caption"]])
def test_shards_that_were_exchanged_are_named(tmp_path, format, columns):
    path = texts(tmp_path / "out", format)
    files = sorted(file for file in path.rglob("bucket_*/*"))
    assert len(files) == 6
    equal = 0
    for one, other in combinations(files, 2):
        equal += one.stat().st_size == other.stat().st_size
        one.rename(tmp_path / "x")
        other.rename(one)
        (tmp_path / "x").rename(other)
        with pytest.raises(ValueError, match=r"bucket_\d/.* (holds something else|ends with another foo|has .* byte)"):
            list(BucketedStream(path, IID(epochs=1), columns=columns))
        one.rename(tmp_path / "x")
        other.rename(one)
        (tmp_path / "x").rename(other)
    assert equal > (10 if format == "webdataset" else 0)
    assert len(list(BucketedStream(path, IID(epochs=1), columns=columns))) == 42
    verify_bucketed(path)


def test_parquet_shards_of_equal_rows_have_footers_of_their_own(tmp_path):
    data = Dataset.from_dict({"caption": ["a"] * 12, "s": np.zeros(12, np.float32)})
    save_bucketed(data, tmp_path / "out", 1, score_column="s", easy="low", shard_size=6)
    one, other = sorted((tmp_path / "out/bucket_0").iterdir())
    assert one.stat().st_size == other.stat().st_size
    assert one.read_bytes() != other.read_bytes()
    shutil.copyfile(one, other)
    with pytest.raises(DamagedFileError, match=f"{other.name} ends with another footer than was written"):
        list(BucketedStream(tmp_path / "out", IID(epochs=1), columns=["caption"]))


@pytest.mark.parametrize("format", FORMATS)
def test_every_flipped_byte_of_a_shard_is_named(tmp_path, format):
    path = texts(tmp_path / "out", format)
    file = sorted(path.rglob("bucket_1/*"))[1]
    whole = file.read_bytes()
    for place in [*np.random.default_rng(0).integers(len(whole), size=60).tolist(), 0, 489, 512, len(whole) - 1]:
        content = bytearray(whole)
        content[place] ^= 16
        file.write_bytes(content)
        with pytest.raises(DamagedFileError, match=rf"{file.name} holds something else .*Copy it again"):
            list(BucketedStream(path, IID(epochs=1)))
    file.write_bytes(whole)
    assert len(list(BucketedStream(path, IID(epochs=1)))) == 42


def test_a_shard_that_changes_while_a_process_runs_is_compared_again(tmp_path, monkeypatch):
    path = texts(tmp_path / "out", "webdataset")
    compared, validate = [], shards_module.validate_digest
    monkeypatch.setattr(
        shards_module, "validate_digest", lambda file, *rest: compared.append(file) or validate(file, *rest)
    )
    for _ in range(2):
        list(BucketedStream(path, IID(epochs=2)))
    assert len(compared) == len(set(compared)) == 6
    one, other = compared[:2]
    facts = one.stat()
    shutil.copyfile(other, tmp_path / "x")
    os.utime(tmp_path / "x", ns=(facts.st_atime_ns, facts.st_mtime_ns))  # as `cp -p` and `rsync -t` do
    os.replace(tmp_path / "x", one)
    with pytest.raises(DamagedFileError, match=f"{one.name} holds something else"):
        list(BucketedStream(path, IID(epochs=1)))


def test_a_damaged_header_of_an_archive_is_a_sentence_with_its_name(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for number in range(3):
            member = tarfile.TarInfo(f"{number}.txt")
            member.size = 1
            archive.addfile(member, io.BytesIO(b"x"))
    whole = (tmp_path / "a.tar").read_bytes()
    for damaged in (
        whole[:1024] + b"\xff" + whole[1025:],
        whole[:700],
        b"",
        whole[:-512] + b"x" * 512,
        b"\x1f\x8b" + whole[2:],
    ):
        (tmp_path / "a.tar").write_bytes(damaged)
        with pytest.raises(DamagedFileError, match=r"a\.tar is damaged \(\w+: .*Copy it again"):
            TarShard(tmp_path / "a.tar", Features({"caption": Value("string")}))


@pytest.mark.parametrize("format", FORMATS)
def test_the_next_image_of_a_shard_stands_in_for_one_that_cannot_be_decoded(tmp_path, format, caplog):
    unreadable = (3, 4, 11, 12, 20)
    path = photos(tmp_path / "out", format, unreadable=unreadable)
    raw = BucketedStream(path, IID(epochs=1), decode=False, with_samples=True)
    key_of = {drawn.index: drawn.example["key"] for drawn in raw}
    assert not raw.unreadable
    expected = {}
    for row in range(24):
        rows = [row - row % 4 + (row + step) % 4 for step in range(4)]  # of its shard, from itself on
        expected[row] = next(key_of[each] for each in rows if int(key_of[each]) not in unreadable)
    stream = BucketedStream(path, IID(epochs=1), with_samples=True)
    seen = list(stream)
    assert {drawn.index: drawn.example["key"] for drawn in seen} == expected
    assert [drawn.index for drawn in seen] == stream.rows(0, 24).tolist()
    for drawn in seen:
        number = int(drawn.example["key"])
        assert (drawn.example["caption"], drawn.example["image"].getpixel((0, 0))) == (f"{number}", (number, 0, 0))
    assert stream.unreadable.total() == 5
    assert set(stream.unreadable) <= {shard.file for bucket in stream.index.buckets for shard in bucket.shards}
    lines = [record.getMessage() for record in caplog.records if "cannot be decoded" in record.getMessage()]
    assert [line.rsplit(" ", 1)[1] for line in lines] == ["1.", "2.", "4."]
    assert all("(key '000" in line and " in bucket_" in line for line in lines)
    for workers in (0, 2):  # whoever reads it
        loader = DataLoader(stream, batch_size=None, num_workers=workers, collate_fn=lambda drawn: drawn)
        assert {drawn.index: drawn.example["key"] for drawn in loader} == expected
    pairs = [(row, sample) for sample, row in enumerate(stream.rows(0, 24).tolist())]
    asked = StreamExamples(stream).__getitems__(pairs)
    assert {drawn.index: drawn.example["key"] for drawn in asked} == expected


def test_a_resumed_stream_has_the_same_images_in_place_of_others(tmp_path):
    path = photos(tmp_path / "out", "parquet", unreadable=(0, 1, 9, 14, 22))
    whole = [row["key"] for row in BucketedStream(path, Phases(2), global_batch_size=2)]
    for step in range(0, len(whole) // 2, 3):
        resumed = BucketedStream(path, Phases(2), global_batch_size=2)
        resumed.load_state_dict(resumed.state_at(step))
        assert [row["key"] for row in resumed] == whole[2 * step :]


@pytest.mark.parametrize("format", FORMATS)
def test_a_shard_without_any_image_is_named_with_the_key(tmp_path, format):
    path = photos(tmp_path / "out", format, unreadable=range(24))
    with pytest.raises(
        UnreadableImageError,
        match=r"The image of row \d \(key '000\d\d'\) in bucket_0/0000\d-of-00003\.\w+ cannot be .* other of the 4",
    ):
        list(BucketedStream(path, Phases(2), global_batch_size=4))
    assert len(list(BucketedStream(path, IID(epochs=1), decode=False))) == 24
    assert len(list(BucketedStream(path, IID(epochs=1), columns=["caption"]))) == 24


def test_a_state_that_is_asked_for_before_the_next_iteration_is_the_one_that_was_loaded(tmp_path):
    stream = BucketedStream(texts(tmp_path / "out", "parquet"), Phases(3), global_batch_size=2)
    iterator = iter(stream)
    for _ in range(5):
        next(iterator)
    assert stream.state_dict()["seen"] == 5
    stream.load_state_dict(stream.state_at(7))
    state = stream.state_dict()
    assert (state["step"], state["seen"], len(stream)) == (7, 0, stream.plan.num_samples - 14)
