"""Parts of columns, object storage, arrays and saved data at their edges."""

from __future__ import annotations

import errno
import os
import pickle
import re

import numpy as np
import pyarrow as pa
import pytest
from datasets import Dataset
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import known_implementations
from xxhash import xxh3_64_intdigest, xxh3_128_digest, xxh3_128_hexdigest

from hf_curriculum import files, parts, remote
from hf_curriculum.data import array_files, saved_digests
from hf_curriculum.data.array_files import ArrayFile, ArrayWriter, row_digest, save_cached
from hf_curriculum.files import DamagedFileError
from hf_curriculum.parts import PartFolder, launched, launched_here, missing_parts, wait_for_files
from hf_curriculum.remote import RemoteFolder, scratch_folder, with_retries


def names(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())


def ticking(now):
    """A clock that shows what a test says; who looks at it without end gets an error."""
    looks = iter(range(100))
    return lambda: (next(looks), now[0])[1]


# ---- Parts ----


@pytest.fixture
def alone(monkeypatch):
    """No launcher and no Slurm."""
    for name in [name for name in os.environ if name.startswith(("SLURM_", "LOCAL_", "RANK", "WORLD_SIZE"))]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("environment", "given", "expected"),
    [
        ({}, {"rank": 0, "world_size": 1}, (0, 1)),
        ({"WORLD_SIZE": 3}, {"rank": 2}, (2, 3)),
        ({"RANK": 1}, {"world_size": 2}, (1, 2)),
        ({"WORLD_SIZE": 3}, {}, "`WORLD_SIZE` is 3, but RANK is not known. Give both"),
        ({}, {"rank": 0}, "`RANK` is 0, but WORLD_SIZE is not known. Give both"),
        ({}, {"rank": -1, "world_size": 3}, "The rank is -1 of 3 processes. Ranks count from 0 to 2."),
        ({}, {"rank": 3, "world_size": 3}, "The rank is 3 of 3 processes. Ranks count from 0 to 2."),
        ({"SLURM_ARRAY_TASK_ID": 2, "SLURM_ARRAY_TASK_MAX": 3, "SLURM_ARRAY_TASK_STEP": 0}, {}, (2, 4)),
    ],
)
def test_ranks_are_given_in_arguments_or_the_environment(alone, monkeypatch, environment, given, expected):
    for name, value in environment.items():
        monkeypatch.setenv(name, str(value))
    if isinstance(expected, tuple):
        assert launched(**given) == expected
    else:
        with pytest.raises(ValueError, match=re.escape(expected)):
            launched(**given)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 2}, (1, 2)),
        ({"LOCAL_WORLD_SIZE": 2}, (0, 2)),
        ({}, (0, 1)),
        ({"SLURM_STEP_NUM_TASKS": 3, "SLURM_LOCALID": 2}, (2, 1)),
        ({"SLURM_STEP_NUM_TASKS": 16, "SLURM_LOCALID": 11, "SLURM_STEP_TASKS_PER_NODE": "16"}, (11, 16)),
        ({"SLURM_STEP_NUM_TASKS": 3, "SLURM_STEP_TASKS_PER_NODE": "3"}, (0, 3)),
    ],
)
def test_places_on_a_machine(alone, monkeypatch, environment, expected):
    for name, value in environment.items():
        monkeypatch.setenv(name, str(value))
    assert launched_here() == expected


@pytest.mark.parametrize(
    ("rows", "step", "expected"),
    [
        (0, 3, []),
        (1, 3, [(0, 1)]),
        (3, 3, [(0, 3)]),
        (4, 3, [(0, 3), (3, 4)]),
        (6, 3, [(0, 3), (3, 6)]),
        (2, 1, [(0, 1), (1, 2)]),
    ],
)
def test_parts_have_their_rows_and_give_all_in_order(tmp_path, rows, step, expected):
    folder = PartFolder(tmp_path / "parts", {"of": "x"}, rows, step)
    assert folder.count == len(expected)
    assert [folder.rows_of(part) for part in range(folder.count)] == [range(*each) for each in expected]
    assert missing_parts(tmp_path / "nowhere", [*range(folder.count)], rows, step) == [*range(folder.count)]
    values = np.arange(rows, dtype=np.float32)
    for part in reversed(range(folder.count)):
        assert folder.missing(range(folder.count)) == [*range(part + 1)]
        folder.write(part, {"score": values[slice(*expected[part])]})
    assert folder.missing(range(folder.count)) == []
    table = folder.read_all(0)
    assert table.to_pydict() == ({"score": values.tolist()} if rows else {})
    assert not table.schema.metadata
    parts.verify_parts(tmp_path / "parts")


def test_only_a_manifest_beside_which_no_part_lies_is_replaced(tmp_path):
    for names_there, replaced in (([".0.lock"], True), ([], True), (["part-00000-of-00001.parquet"], False)):
        folder = tmp_path / f"{len(names_there)}{replaced}"
        PartFolder(folder, {"of": "x"}, 1, 1)
        for name in names_there:
            (folder / name).touch()
        if replaced:
            assert PartFolder(folder, {"of": "y"}, 1, 1, single_process=True).manifest["of"] == "y"
        else:
            with pytest.raises(ValueError, match="of was 'x' and is 'y'"):
                PartFolder(folder, {"of": "y"}, 1, 1, single_process=True)
        assert sorted(os.listdir(folder)) == sorted(["run.json", *names_there])


def test_what_differs_between_two_runs_is_told_down_to_the_innermost(tmp_path):
    PartFolder(tmp_path, {"a": {"b": 1, "c": {"d": 2}, "e": 0}, "f": {}, "g": "x" * 200, "h": {"i": 1}, "j": 1}, 4, 2)
    with pytest.raises(ValueError, match="holds parts of another run") as told:
        PartFolder(tmp_path, {"a": {"b": 3, "c": {"d": 4}, "e": 0}, "f": 5, "g": 6, "h": {"i": 1}, "k": 7}, 4, 2)
    differences = str(told.value).partition("of another run: ")[2].partition(". Together")[0]
    cut = f"'{'x' * 99}"
    assert differences == (
        f"a: b was 1 and is 3, c: d was 2 and is 4, f was {{}} and is 5, g was {cut} and is 6, j was 1 and is None, "
        "k was None and is 7"
    )


@pytest.mark.parametrize(
    ("arrivals", "told_after"),
    [
        ({2: "a", 4: "b", 6: "c"}, None),  # each within a second of the one before
        ({}, 3),
        ({2: "a"}, 5),
        ({2: "c", 3: "b", 6: "a"}, 6),
    ],
)
def test_files_are_waited_for_as_long_as_some_come(tmp_path, monkeypatch, arrivals, told_after):
    now, sleeps = [1000.0], []

    def sleep(seconds):
        sleeps.append(seconds)
        now[0] += 0.5
        if len(sleeps) in arrivals and len(sleeps) != told_after:
            (tmp_path / arrivals[len(sleeps)]).touch()

    monkeypatch.setattr(parts.time, "monotonic", ticking(now))
    monkeypatch.setattr(parts.time, "sleep", sleep)
    if told_after is None:
        wait_for_files(tmp_path, ["a", "b", "c"], 1)
        assert names(tmp_path) == ["a", "b", "c"]
    else:
        with pytest.raises(TimeoutError) as told:
            wait_for_files(tmp_path, ["a", "b", "c"], 1)
        left = [name for name in "abc" if not (tmp_path / name).exists()]
        assert str(told.value).startswith(
            f"{len(left)} of 3 files are missing in {tmp_path}, the first of them {left[0]}, and none came for 1 sec"
        )
        assert len(sleeps) == told_after


# ---- Object storage ----


@pytest.fixture
def memory(monkeypatch):
    """A folder in memory, `memory://things`, and no pauses between attempts."""
    files = MemoryFileSystem()
    for name, content in {"a": b"0123456789", "below/b": b"", "below/deeper/c": b"xyz"}.items():
        files.pipe(f"/things/{name}", content)
    monkeypatch.setattr(remote, "BACKOFF", 0.0)
    yield files
    files.rm("/things", recursive=True)


def test_a_request_is_made_again_after_pauses_that_double(monkeypatch):
    sleeps, calls = [], []
    monkeypatch.setattr(remote.time, "sleep", sleeps.append)

    def work():
        calls.append(1)
        if len(calls) % 5:
            raise ConnectionResetError("https://user:hunter22@host reset")
        return "came"

    assert with_retries("x://y", work) == "came"
    assert sleeps == [0.5, 1.0, 2.0, 4.0]
    monkeypatch.setattr(remote, "ATTEMPTS", 3)
    told = r"^x://y could not be read in 3 attempts \(ConnectionResetError: https://<token>@host reset\)\. Look at"
    with pytest.raises(ConnectionError, match=told):
        with_retries("x://y", work)
    assert sleeps == [0.5, 1.0, 2.0, 4.0, 0.5, 1.0]


@pytest.mark.parametrize(
    ("error", "passed", "calls", "message"),
    [
        (FileNotFoundError("404"), (), 1, "^404$"),
        (ImportError("no s3fs"), (), 1, "^no s3fs$"),
        (KeyError("x"), (KeyError,), 1, "^'x'$"),
        (ValueError("half of it"), (), 5, "^half of it$"),
        (OSError(errno.EDQUOT, "x"), (), 1, "There is no space left for x://y"),
        (OSError(errno.EIO, "x"), (), 5, r"^x://y could not be read in 5 attempts \(OSError: "),
        (PermissionError("403"), (), 1, r"^x://y cannot be read: access is denied \(403\)"),
    ],
)
def test_which_errors_of_a_store_are_tried_again(monkeypatch, error, passed, calls, message):
    done = []
    monkeypatch.setattr(remote, "BACKOFF", 0.0)

    def work():
        done.append(1)
        raise error

    with pytest.raises(Exception, match=message) as told:
        with_retries("x://y", work, passed)
    assert len(done) == calls
    assert (told.value is error) == (message == f"^{error}$")


def test_a_folder_at_an_address_is_listed_and_read(memory, monkeypatch):
    reads, cat = [], MemoryFileSystem.cat_file
    monkeypatch.setattr(MemoryFileSystem, "cat_file", lambda self, path: (reads.append(path), cat(self, path))[1])
    folder = RemoteFolder("memory://things/")
    assert folder.sizes() == {"a": 10, "below/b": 0, "below/deeper/c": 3}
    assert RemoteFolder("memory://nothing").sizes() == {}
    assert (folder.read("a"), folder.read("a", 10), folder.read("below/b", 0)) == (b"0123456789", b"0123456789", b"")
    assert folder.read("none") is None
    assert (folder.address, folder.place("a"), folder.place("")) == (
        "memory://things", "memory://things/a", "memory://things",
    )  # fmt: skip
    for name, size, came in (("a", 1234, 10), ("below/deeper/c", 0, 3)):
        reads.clear()
        with pytest.raises(ValueError, match=rf"^memory://things/{name} has {size:,} bytes, but {came} came\. Copy"):
            folder.read(name, size)
        assert len(reads) == 5


def test_a_file_is_downloaded_and_compared_with_what_is_known_of_it(memory, tmp_path):
    folder = RemoteFolder("memory://things")
    for checksum in (None, xxh3_128_hexdigest(b"0123456789")):
        folder.download("a", 10, checksum, tmp_path / "a")
        assert (tmp_path / "a").read_bytes() == b"0123456789"
    folder.download("below/b", 0, None, tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == b""
    folder.verify("a", 10, xxh3_128_hexdigest(b"0123456789"))
    for size, checksum, message in (
        (9, None, "came with 10 bytes, and has to have 9, 5 times"),
        (10, "0" * 32, rf"another content \(digest {xxh3_128_hexdigest(b'0123456789')}, not {'0' * 32}\), 5 times"),
    ):
        with pytest.raises(ValueError, match=message):
            folder.download("a", size, checksum, tmp_path / "a")
    with pytest.raises(FileNotFoundError, match=r"^memory://things/none was there when the folder was listed"):
        folder.download("none", 1, None, tmp_path / "none")


def test_a_file_system_is_opened_once_in_each_process(memory, monkeypatch):
    opened, forgot, options = [], [], {"x": 1}
    monkeypatch.setattr(MemoryFileSystem, "invalidate_cache", lambda self, path=None: forgot.append(1))
    monkeypatch.setattr(
        remote, "url_to_fs", lambda address, **given: opened.append((address, given)) or (memory, "/things/")
    )
    folder = RemoteFolder("memory://things/", options)
    options["x"] = 2
    for _ in range(3):
        assert folder.read("a") == b"0123456789"
    assert opened == [("memory://things", {"x": 1})]
    assert pickle.loads(pickle.dumps(RemoteFolder("memory://things", {"x": 1}))).read("below/deeper/c") == b"xyz"
    process = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: process + 1)
    assert folder.read("a") == b"0123456789"
    assert (len(opened), len(forgot)) == (3, 3)  # what was listed before may have changed
    assert folder.__getstate__()["_opened"] is None
    assert folder._opened is not None


def test_a_package_is_named_where_another_one_has_the_file_system(monkeypatch):
    for kind, remedy in (
        ("fsspec.no_such.Files", "Install x"),
        ("no_such_fs.Files", "Install x: pip install no_such_fs"),
    ):
        monkeypatch.setitem(known_implementations, "ns", {"class": kind, "err": "Install x"})
        with pytest.raises(ImportError) as told:
            RemoteFolder("ns://bucket/x").read("a")
        assert str(told.value) == (f"ns://bucket/x needs a file system of `fsspec` that is not installed. {remedy}")


def test_a_scratch_folder_lies_where_it_was_asked_for_and_goes(tmp_path):
    left = tmp_path / "hf_curriculum-shard-0"
    left.mkdir()
    (left / "half").touch()
    with scratch_folder(tmp_path) as folder:
        assert sorted(os.listdir(tmp_path)) == [folder.name, f"{folder.name}.lock"]
        (folder / "file").touch()
    assert os.listdir(tmp_path) == []
    with pytest.raises(RuntimeError, match="stopped"), scratch_folder(tmp_path):
        raise RuntimeError("stopped")
    assert os.listdir(tmp_path) == []


# ---- Arrays ----


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 5])
def test_a_writer_goes_on_from_what_counts_and_cuts_off_the_rest(tmp_path, monkeypatch, rows):
    monkeypatch.setattr(array_files, "_BLOCK", 16)  # two rows
    file, values = tmp_path / "a.npy", np.arange(1, 11, dtype="<f4").reshape(5, 2)
    writer = ArrayWriter(file, "<f4", [2])
    writer.append(values[:rows])
    writer.flush()
    facts = writer.facts
    assert facts == {"dtype": "<f4", "shape": [rows, 2], "digest": xxh3_128_hexdigest(values[:rows].tobytes())}
    writer.append(values[rows:])
    writer.close()
    writer = ArrayWriter(file, "<f4", [2], facts)
    assert file.stat().st_size == 128 + 8 * rows
    writer.skip(3)  # where other rows were
    writer.append(values[:1])
    expected = np.concatenate([values[:rows], np.zeros((3, 2), "<f4"), values[:1]])
    np.testing.assert_array_equal(writer.read(), expected)
    writer.append(values[1:2])
    writer.flush()
    writer.append(values[2:3])
    writer.flush()
    expected = np.concatenate([expected, values[1:3]])
    np.testing.assert_array_equal(np.load(file), expected)
    assert writer.facts == {"dtype": "<f4", "shape": [rows + 6, 2], "digest": xxh3_128_hexdigest(expected.tobytes())}
    ArrayFile(file, writer.facts, "").validate()
    writer.close()
    if rows:
        with pytest.raises(
            DamagedFileError, match=r"a\.npy holds something else than was written: .* Pack it again\."
        ):
            ArrayWriter(file, "<f4", [2], {**facts, "digest": "0" * 32}, "Pack it again.")
    assert len(np.load(file)) == rows + 6
    ArrayWriter(file, "<f4", [2]).close()
    assert file.stat().st_size == 128


def test_rows_of_any_layout_and_type_are_written_as_numbers_of_the_file(tmp_path):
    values = np.arange(24).reshape(4, 3, 2)
    writer = ArrayWriter(tmp_path / "a.npy", "<i2", [3, 2])
    for rows in (values[::2], np.asfortranarray(values[1:2]), values[:0], values[3:].astype(float)):
        writer.append(rows)
    flushed, fsync = [], os.fsync
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda number: (flushed.append(os.fstat(number).st_size), fsync(number)))
        writer.flush()
    assert flushed == [128 + 4 * 12]
    found = np.load(tmp_path / "a.npy")
    assert found.dtype.str == "<i2"
    np.testing.assert_array_equal(found, values[[0, 2, 1, 3]])


def test_rows_are_read_from_any_place_with_their_digest(tmp_path):
    values = np.random.default_rng(0).normal(size=(6, 2, 3)).astype("<f4")
    writer = ArrayWriter(tmp_path / "a.npy", "<f4", [2, 3])
    writer.append(values)
    writer.flush()
    array = ArrayFile(tmp_path / "a.npy", writer.facts, "Pack it again.")
    for start, stop in ((0, 1), (0, 6), (2, 5), (5, 6), (3, 3)):
        target = np.empty((stop - start, 2, 3), "<f4")
        assert array.read_rows(start, target) == xxh3_64_intdigest(values[start:stop].tobytes())
        np.testing.assert_array_equal(target, values[start:stop])
    assert row_digest(values[::2]) == xxh3_64_intdigest(values[::2].copy().tobytes())
    os.truncate(tmp_path / "a.npy", 128 + 5 * 24)
    array.read_rows(4, np.empty((1, 2, 3), "<f4"))
    for start in (4, 5):
        with pytest.raises(DamagedFileError, match=r"a\.npy has become shorter since it was opened\. Pack it again\."):
            array.read_rows(start, np.empty((6 - start, 2, 3), "<f4"))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (np.zeros((2, 3), "<f8"), r"has the shape \(2, 3\) of float64, and \(2, 3\) of float32 was written"),
        (np.zeros((3, 2), "<f4"), r"has the shape \(3, 2\) of float32, and \(2, 3\) of float32 was written"),
        (np.asfortranarray(np.zeros((2, 3), "<f4")), r"It was damaged, or belongs to other files\. Pack it again\."),
        (np.ones((2, 3), "<f4"), r"a\.npy holds something else than was written: it was damaged, or belongs to other"),
    ],
)
def test_an_array_of_another_type_shape_order_or_content_is_refused(tmp_path, other, message):
    np.save(tmp_path / "a.npy", other)
    facts = {"dtype": "<f4", "shape": [2, 3], "digest": xxh3_128_hexdigest(bytes(24))}
    with pytest.raises(DamagedFileError, match=message):
        ArrayFile(tmp_path / "a.npy", facts, "Pack it again.").validate()
    np.save(tmp_path / "a.npy", np.zeros((2, 3), "<f4"))
    assert ArrayFile(tmp_path / "a.npy", facts, "").validate().tolist() == [[0, 0, 0]] * 2
    (tmp_path / "a.npy").unlink()
    os.mkfifo(tmp_path / "a.npy")
    with pytest.raises(ValueError, match=r"a\.npy is a FIFO, not a file\. Pack it again\."):
        ArrayFile(tmp_path / "a.npy", facts, "Pack it again.")


def test_a_cached_array_ends_in_its_digest(tmp_path):
    save_cached(tmp_path / "a.npy", np.arange(5))
    content = (tmp_path / "a.npy").read_bytes()
    assert content[-16:] == xxh3_128_digest(content[:-16])
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), np.arange(5))
    assert files.is_intact(tmp_path / "a.npy")


# ---- Saved data ----


@pytest.mark.parametrize(
    ("kind", "flags"),
    [
        (pa.int64(), [0, 0]),
        (pa.bool_(), [0, 0]),
        (pa.null(), [0]),
        (pa.string(), [0, 0, 0]),
        (pa.large_string(), [0, 0, 0]),
        (pa.binary(), [0, 0, 1]),
        (pa.large_binary(), [0, 0, 1]),
        (pa.binary(4), [0, 1]),
        (pa.list_(pa.binary()), [0, 0, 0, 0, 1]),
        (pa.large_list(pa.string()), [0, 0, 0, 0, 0]),
        (pa.list_(pa.binary(), 2), [0, 0, 0, 1]),
        (pa.struct({"bytes": pa.binary(), "path": pa.string()}), [0, 0, 0, 1, 0, 0, 0]),
        (pa.map_(pa.string(), pa.binary(2)), [0, 0, 0, 0, 0, 0, 0, 1]),
        (pa.uuid(), [0, 1]),
    ],
    ids=str,
)
def test_the_bytes_of_binary_values_are_told_from_all_else(kind, flags):
    assert saved_digests._holds_bytes(kind) == [bool(flag) for flag in flags]
    storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    assert len(pa.array([None], storage).buffers()) == len(flags)


def change(file, before, after):
    content = file.read_bytes()
    assert content.count(before) == 1
    file.write_bytes(content.replace(before, after))


@pytest.fixture
def saved(tmp_path):
    rows = {"one": ["first caption"], "two": ["second caption"], "three": [b"a picture"]}
    Dataset.from_dict(rows).save_to_disk(str(tmp_path / "set"))
    return tmp_path / "set"


@pytest.mark.parametrize(
    ("changes", "always", "with_all"),
    [
        ([], None, None),
        ([(b"first", b"fifth")], "`one` holds", "`one` holds"),
        ([(b"first", b"fifth"), (b"second", b"minute")], "`one`, `two` hold", "`one`, `two` hold"),
        ([(b"picture", b"plaster")], None, "`three` holds"),
        ([(b"picture", b"plaster"), (b"second", b"minute")], "`two` holds", "`two`, `three` hold"),
    ],
)
def test_columns_that_were_changed_are_named(saved, changes, always, with_all):
    recorded = saved_digests.saved_digests(saved)
    assert list(recorded) == ["state.json", "dataset_info.json", "data-00000-of-00001.arrow"]
    (file,) = saved.glob("*.arrow")
    for each in changes:
        change(file, *each)
    for options, columns in (((), always), ((False,), always), ((True,), with_all)):
        if columns is None:
            saved_digests.compare_saved(saved, recorded, *options)
        else:
            with pytest.raises(DamagedFileError) as told:
                saved_digests.compare_saved(saved, recorded, *options)
            assert str(told.value) == (
                f"{file} is damaged: {columns} something else than was saved. Copy the folder again or save it again. "
                "If you changed it yourself, record it: `write_provenance`."
            )
    saved_digests.compare_saved(saved, {})  # nothing was recorded


@pytest.mark.parametrize("name", ["state.json", "dataset_info.json", "data-00000-of-00001.arrow"])
def test_files_of_saved_data_that_came_or_went_are_named(saved, name):
    recorded = saved_digests.saved_digests(saved)
    without = {key: value for key, value in recorded.items() if key != name}
    with pytest.raises(DamagedFileError, match=rf"{name} was added since the data was saved\. Copy the folder again"):
        saved_digests.compare_saved(saved, without)
    (saved / name).unlink()
    with pytest.raises(DamagedFileError, match=r"\w is missing since the data was saved\. Copy the folder again"):
        saved_digests.compare_saved(saved, recorded)
    assert list(saved_digests.saved_digests(saved)) == [
        key for key in without if name != "state.json" or not key.endswith(".arrow")
    ]
