"""What lies on disk after each write, to the byte, and what is said at the limits: files, claims, parts and arrays."""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import socket
import time
import zlib
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from xxhash import xxh3_64_hexdigest, xxh3_128_digest, xxh3_128_hexdigest

from hf_curriculum import claims, files
from hf_curriculum.claims import Claims
from hf_curriculum.files import DamagedFileError

DEAD = 2**22 + 1  # more than the number of any process
HERE = f".{zlib.crc32(platform.node().encode()):08x}-"  # what names of temporary files of this machine begin with


def names(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())


def ticking(now):
    """A clock that shows what a test says; who looks at it without end gets an error."""
    looks = iter(range(100))
    return lambda: (next(looks), now[0])[1]


# ---- Claims ----


def test_a_claim_that_another_process_is_writing_is_not_given_back(tmp_path):
    ours = Claims(tmp_path / "claims", 120)
    assert ours.take("a")
    assert (ours.holds("a"), ours.holds("b")) == (True, False)
    (tmp_path / "claims" / "a.claim").write_text('{"name": "a", "tok')
    ours.give_back("a")
    assert names(tmp_path) == ["claims/a.claim"]
    assert not ours.holds("a")


def test_a_claim_that_is_given_back_between_two_looks_is_taken(tmp_path, monkeypatch):
    theirs, ours, read = Claims(tmp_path / "claims", 120), Claims(tmp_path / "claims", 120), claims._read
    assert theirs.take("a")

    def gone(file):
        file.unlink()
        monkeypatch.setattr(claims, "_read", read)
        return read(file)

    monkeypatch.setattr(claims, "_read", gone)
    assert ours.take("a")
    assert not theirs.take("a")


def test_what_is_said_of_the_living_passes_over_what_is_no_claim(tmp_path):
    folder = tmp_path / "claims"
    ours = Claims(folder, 120)
    assert ours.take("c")
    for number, content in enumerate(["", '{"name": "x", "ho', "[]", "{}", '{"name": "x"}']):
        (folder / f"b{number}.claim").write_text(content)
    (folder / "a.txt").write_text("notes")
    os.utime(folder / "c.claim", (time.time() - 50, time.time() - 50))
    (claim,) = Claims(folder, 120).living()
    assert claim.name == "c"
    assert 45 < claim.age < 60
    assert re.fullmatch(
        rf"process {os.getpid()} on {re.escape(platform.node())}, begun \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d", claim.owner
    )


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="open files are listed in /proc")
def test_files_do_not_stay_open(tmp_path):
    folder, before = tmp_path / "claims", len(os.listdir("/proc/self/fd"))
    ours, other = Claims(folder, 120), Claims(folder, 120)
    for number in range(5):
        assert ours.take(f"{number}")
        assert not other.take(f"{number}")
        files.append_text(tmp_path / "log", "a line\n")
        with files.lock_file(tmp_path / "lock"), files.lock_file(tmp_path / "lock") as holder:
            assert holder
    assert len(other.living()) == 5
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("mask", [0o077, 0o002])
@pytest.mark.parametrize(
    "write",
    [
        lambda file: Claims(file.parent, 120).take(file.stem),
        lambda file: files.append_text(file, "a"),
        lambda file: files.growing_file(file).close(),
        lambda file: files.write_sealed(file, {}, keep_existing=True),
    ],
    ids=["claim", "log", "growing", "sealed"],
)
def test_files_that_others_share_have_the_permissions_of_the_umask(tmp_path, write, mask):
    before = os.umask(mask)
    try:
        write(tmp_path / "a.claim")
    finally:
        os.umask(before)
    assert (tmp_path / "a.claim").stat().st_mode & 0o777 == 0o666 & ~mask


# ---- Reading back ----


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (FileNotFoundError(errno.ENOENT, "x", "other.npy"), FileNotFoundError, r"not exist\. Do it\.: 'other\.npy'"),
        (FileNotFoundError(), FileNotFoundError, r"it does not exist\. Do it\.: '.*a\.json'"),
        (OSError(errno.EINVAL, "Invalid argument"), DamagedFileError, r"a\.json is damaged \(OSError: .*\)\. Do it\."),
        (OSError(errno.EIO, "broken", "other.npy"), OSError, r"broken: 'other\.npy'"),
        (OSError(errno.EIO, "broken"), OSError, r"broken: '.*a\.json'"),
        (DamagedFileError("in its own words"), DamagedFileError, r"^in its own words$"),
    ],
)
def test_errors_of_reading_name_the_file_that_they_are_of(tmp_path, error, kind, message):
    with pytest.raises(kind, match=message) as told, files.reading(tmp_path / "a.json", "Do it."):
        raise error
    assert type(told.value) is kind


def test_json_of_another_program_lacks_what_is_needed(tmp_path):
    (tmp_path / "a.json").write_text('{"b": "ü"}', encoding="utf-8")
    assert files.read_json(tmp_path / "a.json", "", ["b"]) == {"b": "ü"}
    with pytest.raises(DamagedFileError, match=r"a\.json is damaged \(KeyError: 'c'\)\. Copy it\."):
        files.read_json(tmp_path / "a.json", "Copy it.", ["b", "c"])


def test_sealed_facts_are_written_to_the_byte_and_read_in_any_order(tmp_path):
    file = tmp_path / "facts.json"
    files.write_sealed(file, {"b": "ü", "a": 1})
    seal = xxh3_64_hexdigest(b'{"a": 1, "b": "\\u00fc"}')
    assert file.read_text("utf-8") == f'{{\n "b": "ü",\n "a": 1,\n "seal": "{seal}"\n}}\n'
    file.write_text(json.dumps({"seal": seal, "a": 1, "b": "ü"}))
    assert files.read_sealed(file, "", ["a", "b"]) == {"a": 1, "b": "ü"}


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 32, 100])
def test_digests_of_files_are_those_of_all_their_bytes(tmp_path, monkeypatch, size):
    monkeypatch.setattr(files, "_BLOCK", 16)
    content = np.random.default_rng(size).bytes(size)
    (tmp_path / "a").write_bytes(content)
    (tmp_path / "b").write_bytes(b"more")
    assert files.file_digest(tmp_path / "a") == xxh3_128_hexdigest(content)
    assert files.file_digest(tmp_path / "a", tmp_path / "b") == xxh3_128_hexdigest(content + b"more")
    files.append_digest(tmp_path / "a")
    whole = (tmp_path / "a").read_bytes()
    assert whole == content + xxh3_128_digest(content)
    files.validate_intact(tmp_path / "a")
    others = [whole[:-1], whole + b"\0", b"\0" + whole, whole[16:], whole[:15], b""]
    others += [whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :] for place in (0, size // 2, size, -1)]
    for damaged in others:
        if damaged != whole and not (size == 16 and damaged == whole[16:]):
            (tmp_path / "a").write_bytes(damaged)
            assert not files.is_intact(tmp_path / "a"), len(damaged)
    with pytest.raises(DamagedFileError, match=r"a holds something else .*replaced\. Start again: it is written anew"):
        files.validate_intact(tmp_path / "a")
    (tmp_path / "a").unlink()
    assert not files.is_intact(tmp_path / "a")


def test_growing_files_still_begin_with_what_was_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_BLOCK", 7)
    content = b"0123456789" * 120
    (tmp_path / "log").write_bytes(content)
    for length in (0, 1, 7, 8, 1199, 1200):
        recorded = {"log": (length, xxh3_128_hexdigest(content[:length])), "missing": (3, "x")}
        files.validate_beginnings(tmp_path, recorded, "")
    for damaged in (content[:-1], b"x" + content[1:], b""):
        (tmp_path / "log").write_bytes(damaged)
        with pytest.raises(DamagedFileError, match=r"log no longer begins with the 1,200 bytes that .*\. Go back\."):
            files.validate_beginnings(tmp_path, recorded, "Go back.")
    (tmp_path / "log").unlink()
    os.mkfifo(tmp_path / "log")
    with pytest.raises(ValueError, match=r"log is a FIFO, and a file is written under this name\. Remove it\."):
        files.validate_beginnings(tmp_path, recorded, "")


def test_what_is_no_regular_file_is_called_by_its_kind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the path of a socket is short
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    os.mkfifo("fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        kinds = {name: files.special_file(name) for name in ("file", "link", "none", ".", "fifo", "socket", "a\0b")}
        assert files.special_file(os.devnull) == "device"
    nothing = dict.fromkeys(("file", "link", "none", "a\0b"))
    assert kinds == {**nothing, ".": "folder", "fifo": "FIFO", "socket": "socket"}


@pytest.mark.parametrize("name", ["a.txt", "figures/b.png"])
def test_files_beside_a_manifest_are_compared_with_it(tmp_path, name):
    contents = {"a.txt": "ü", "figures/b.png": b"\x89PNG"}
    files.write_together(tmp_path / "out", contents, "facts.json")
    facts = files.verify_together(tmp_path / "out" / "facts.json")
    assert facts == {
        "files": {"a.txt": xxh3_128_hexdigest("ü".encode()), "figures/b.png": xxh3_128_hexdigest(b"\x89PNG")}
    }
    (tmp_path / "out" / name).write_bytes(b"x")
    with pytest.raises(DamagedFileError, match=rf"{name} holds something else .*Copy or write all of it again\."):
        files.verify_together(tmp_path / "out" / "facts.json")
    files.write_sealed(tmp_path / "none.json", {"n": 1})
    assert files.verify_together(tmp_path / "none.json") == {"n": 1}


def test_a_file_is_compared_with_the_manifest_that_knows_it(tmp_path):
    files.write_together(tmp_path, {"a.txt": "a"}, "facts.json", {"n": 1})
    (tmp_path / "b.txt").write_text("another program's")
    for name in ("a.txt", "b.txt"):
        files.validate_beside(tmp_path / name, "facts.json", "")
        files.validate_beside(tmp_path / name, "missing.json", "")
    (tmp_path / "a.txt").write_text("b")
    with pytest.raises(DamagedFileError, match=r"a\.txt holds something else .*Write it\."):
        files.validate_beside(tmp_path / "a.txt", "facts.json", "Write it.")
    whole = json.loads((tmp_path / "facts.json").read_text())
    (tmp_path / "facts.json").write_text(json.dumps({**whole, "n": 2}))
    with pytest.raises(DamagedFileError, match=r"facts\.json was damaged, or changed after it was written"):
        files.validate_beside(tmp_path / "b.txt", "facts.json", "")
    files.write_sealed(tmp_path / "facts.json", {"n": 1})
    with pytest.raises(DamagedFileError, match=r"facts\.json is damaged \(KeyError: 'files'\)"):
        files.validate_beside(tmp_path / "b.txt", "facts.json", "")


# ---- Writing ----


@pytest.mark.parametrize(
    "write",
    [
        lambda file: files.write_atomically(file, "0123456789"),
        lambda file: files.append_text(file, "0123456789"),
    ],
    ids=["whole", "appended"],
)
def test_what_is_flushed_to_disk_is_all_that_was_written(tmp_path, monkeypatch, write):
    flushed, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda number: (flushed.append(os.fstat(number).st_size), fsync(number)))
    write(tmp_path / "below" / "deeper" / "a")
    assert flushed == [10]
    assert names(tmp_path) == ["below/deeper/a"]


def test_text_is_added_at_the_end_and_through_no_link(tmp_path):
    (tmp_path / "log").write_text("first\n")
    for line in ("zweite ü\n", "third\n"):
        files.append_text(str(tmp_path / "log"), line)
    assert (tmp_path / "log").read_text("utf-8") == "first\nzweite ü\nthird\n"
    (tmp_path / "link").symlink_to(tmp_path / "log")
    with pytest.raises(ValueError, match=r"link is a link to .*log"):
        files.append_text(tmp_path / "link", "x")
    (tmp_path / "dangling").symlink_to(tmp_path / "new")
    for add in (lambda: files.append_text(tmp_path / "dangling", "x"), lambda: files.growing_file(tmp_path / "link")):
        with pytest.raises(ValueError, match="Remove the link"):
            add()
    assert names(tmp_path) == ["dangling", "link", "log"]
    assert (tmp_path / "log").read_text("utf-8") == "first\nzweite ü\nthird\n"


def test_a_growing_file_keeps_what_it_holds(tmp_path):
    for text in (b"one", b"two"):
        with files.growing_file(tmp_path / "a") as stream:
            before = stream.read()
            stream.write(text)
    assert (before, (tmp_path / "a").read_bytes()) == (b"one", b"onetwo")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ValueError, match="fifo is a FIFO, and a file is written"):
        files.growing_file(tmp_path / "fifo")


def test_what_the_dead_have_left_is_removed_and_nothing_else(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "thesis.txt").write_text("years of work")
    folder = tmp_path / "folder"
    (folder / f"{HERE}{DEAD}-0.staged" / "below").mkdir(parents=True)
    (folder / f"{HERE}{DEAD}-1.link").symlink_to(tmp_path / "elsewhere")
    stay = [f"{HERE}{os.getpid()}-2.a", f"{HERE}x-3.a", f"{HERE}a", f".00000000-{DEAD}-4.a", f"{DEAD}-5.a", "notes"]
    for name in (f"{HERE}{DEAD}-6.a", *stay):
        (folder / name).write_text("x")
    assert files.remove_dead(folder) == len(stay) + 3
    assert sorted(os.listdir(folder)) == sorted(stay)
    assert files.remove_dead(folder) == len(stay)
    assert (tmp_path / "elsewhere" / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize(
    ("error", "ours"),
    [
        (OSError(errno.EIO, "x", "{}/a.npy"), True),
        (OSError(errno.EIO, "x", "{}"), True),
        (OSError(errno.EIO, "x", "{}/.abc.a.npy.part"), True),
        (OSError(errno.EIO, "x", f"{{}}/{HERE}5-1.b"), True),
        (OSError(errno.EIO, "x", "{}/b.npy"), False),
        (OSError(errno.EIO, "x", "{}/a.npy/b"), False),
        (FileExistsError(errno.EEXIST, "x", "{}/a.npy"), False),
        (RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0"), True),
        (RuntimeError("I/O error (os error 5)"), True),
        (RuntimeError("something else"), False),
        (OSError("without a number"), False),
    ],
)
def test_errors_of_the_disk_are_told_of_the_file_that_is_written_alone(tmp_path, error, ours):
    if isinstance(error, OSError) and error.filename:
        error.filename = error.filename.format(tmp_path)
    with pytest.raises(type(error) if not ours else OSError) as told, files.explained(tmp_path / "a.npy"):
        raise error
    assert (told.value is not error) == ours
    if ours:
        assert (told.value.errno, told.value.filename) == (errno.EIO, str(tmp_path / "a.npy"))
        assert told.value.strerror == (
            "Input/output error; nothing was replaced, and the same call continues when that is mended"
        )


@pytest.mark.parametrize("links", [True, False])
def test_what_was_replaced_before_a_failure_is_what_it_was(tmp_path, monkeypatch, links):
    folder, replace = tmp_path / "out", os.replace
    folder.mkdir()
    (tmp_path / "target").write_text("former")
    (folder / "link").symlink_to(tmp_path / "target")
    (folder / "file").write_text("former")
    os.utime(folder / "file", (1000, 1000))

    def refuse_last(source, target):
        if Path(target).name == "last":
            raise OSError(errno.EIO, "broken")
        replace(source, target)

    def refuse(*_, **__):
        raise OSError(errno.ENOTSUP, "no links here")

    monkeypatch.setattr(os, "replace", refuse_last)
    if not links:
        monkeypatch.setattr(os, "link", refuse)
    paths = [folder / name for name in ("link", "file", "new", "last")]
    with pytest.raises(OSError, match="nothing was replaced"), files.new_files(*paths) as temporaries:
        assert [temporary.write_text("later") for temporary in temporaries] == [5] * 4
    assert names(folder) == ["file", "link"]
    assert (folder / "link").readlink() == tmp_path / "target"
    assert ((folder / "file").read_text(), (folder / "file").stat().st_mtime) == ("former", 1000)
    assert (tmp_path / "target").read_text() == "former"


def test_staged_files_take_their_places_the_deepest_first(tmp_path, monkeypatch):
    done, flushed, replace, fsync = [], [], os.replace, os.fsync
    monkeypatch.setattr(
        os, "replace", lambda source, target: (done.append(Path(target).name), replace(source, target))
    )
    monkeypatch.setattr(os, "fsync", lambda number: (flushed.append(os.fstat(number).st_size), fsync(number)))
    with files.staged_folder(tmp_path / "new" / "out") as staging:
        assert staging.parent == tmp_path / "new" / "out"
        (staging / "sub" / "deeper").mkdir(parents=True)
        for size, name in enumerate(("b", "a", "sub/c", "sub/deeper/d"), 1):
            (staging / name).write_bytes(b"x" * size)
    assert done == ["d", "c", "a", "b"]
    assert flushed == [4, 3, 2, 1]
    assert names(tmp_path) == [f"new/out/{name}" for name in ("a", "b", "sub/c", "sub/deeper/d")]
    with files.staged_folder(tmp_path / "new" / "out"):
        pass
    assert sorted(os.listdir(tmp_path / "new" / "out")) == ["a", "b", "sub"]


def test_a_folder_that_cannot_be_staged_is_named_with_the_reason(tmp_path, monkeypatch):
    def full(path, *args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    (tmp_path / "out").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", full)
        with pytest.raises(OSError, match="No space left on device"), files.staged_folder(tmp_path / "out"):
            raise AssertionError


def test_a_file_in_the_place_of_a_folder_is_refused(tmp_path):
    (tmp_path / "a").write_text("mine")
    with pytest.raises(FileExistsError, match=r"a is a file, and a folder is written\. Name another place"):
        files.own_folder(tmp_path / "a")
    assert (tmp_path / "a").read_text() == "mine"
    for _ in range(2):
        assert files.own_folder(tmp_path / "b" / "c") == tmp_path / "b" / "c"
    assert (tmp_path / "b" / "c").is_dir()


# ---- Locks ----


def test_a_lock_says_whose_it_is_and_nothing_of_its_former_owner(tmp_path):
    lock = tmp_path / "below" / "deeper" / "lock"
    lock.parent.mkdir(parents=True)
    lock.write_text("process 1 on another machine, begun 2001-01-01 00:00:00" + " and much more" * 9)
    with files.lock_file(lock) as holder:
        assert holder == ""
        mine = rf"process {os.getpid()} on {re.escape(platform.node())}, begun \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d"
        assert re.fullmatch(mine, lock.read_text())
        with files.lock_file(lock) as holder:
            assert re.fullmatch(mine, holder)
        assert lock.exists()
        lock.unlink()  # by somebody who tidies up
    with files.lock_file(tmp_path / "new" / "lock") as holder:
        assert holder == ""
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("content", "holder"),
    [
        ("process 3 on a, begun now", "process 3 on a, begun now"),
        ("pid=3\nhost=a=b\nlease=1", "process 3 on a=b"),
        ("pid=3\nlease=1", "pid=3\nlease=1"),
        ("host=a", "host=a"),
        ("", "another process"),
        (None, "another process"),
    ],
)
def test_who_has_a_lock_is_told_in_words(tmp_path, content, holder):
    if content is not None:
        (tmp_path / "lock").write_text(content)
    assert files._holder(tmp_path / "lock") == holder


def test_an_error_of_a_lock_on_a_disk_that_has_locks_is_told(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(files.FileLock, "acquire", refuse)
    monkeypatch.setattr(files, "SoftFileLease", None)
    with (
        pytest.raises(OSError, match=r"Input/output error; nothing was replaced.*lock'"),
        files.lock_file(tmp_path / "lock"),
    ):
        pass


@pytest.mark.parametrize(("patience", "free_after", "slept"), [(0, 1, 0), (0.3, 4, 3), (0.3, 2, 2), (0.3, 3, 3)])
def test_another_writer_is_waited_for_as_long_as_was_asked(tmp_path, monkeypatch, patience, free_after, slept):
    now, sleeps = [1000.0], []
    with ExitStack() as other:
        assert other.enter_context(files.lock_file(tmp_path / "lock")) == ""

        def sleep(seconds):
            sleeps.append(seconds)
            now[0] += seconds + 1e-6
            if len(sleeps) == free_after:
                other.close()

        monkeypatch.setattr(files.time, "monotonic", ticking(now))
        monkeypatch.setattr(files.time, "sleep", sleep)
        if slept < free_after:
            told = rf"Another process writes the results \(process {os.getpid()} on .*\): of what two write at once"
            with (
                pytest.raises(RuntimeError, match=told),
                files.sole_writer("the results", tmp_path / "lock", patience),
            ):
                pass
        else:
            with files.sole_writer("the results", tmp_path / "lock", patience):
                assert (tmp_path / "lock").exists()
            assert not (tmp_path / "lock").exists()
    assert sleeps == [0.1] * slept


# ---- Folders ----


@pytest.mark.parametrize("there", [True, False])
def test_what_an_interrupted_replacement_left_is_put_back_where_nothing_is(tmp_path, there):
    target = tmp_path / "set[1]"
    for ending, name in (("replaced-0", target.name), ("unfinished-1", "file"), ("replaced-2", "other")):
        (tmp_path / f".set[1].{ending}" / name).mkdir(parents=True)
    (tmp_path / ".set[1].replaced-0" / target.name / "old").touch()
    (tmp_path / ".set1.replaced-3").mkdir()  # of a folder called set1
    if there:
        target.mkdir()
        (target / "new").touch()
    files.recover_folder(target)
    assert sorted(os.listdir(tmp_path)) == [".set1.replaced-3", "set[1]"]
    assert os.listdir(target) == ["new" if there else "old"]


@pytest.mark.parametrize("fails", [1, 2])
def test_a_folder_that_could_not_be_replaced_leaves_nothing_beside_it(tmp_path, monkeypatch, fails):
    for name in ("set", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    calls, replace = [], os.replace

    def refuse(source, target):
        calls.append(target)
        if len(calls) == fails:
            raise OSError(errno.EIO, "broken")
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="broken"):
        files.take_place(tmp_path / "set", tmp_path / "new")
    assert sorted(os.listdir(tmp_path)) == ["new", "set"]
    files.take_place(tmp_path / "set", tmp_path / "new")
    assert names(tmp_path) == ["set/new"]
    files.take_place(tmp_path / "moved", tmp_path / "set")
    assert (names(tmp_path), os.listdir(tmp_path)) == (["moved/new"], ["moved"])
