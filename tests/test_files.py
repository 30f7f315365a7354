"""How files are written, locked, and compared when they are read back."""

from __future__ import annotations

import errno
import json
import os
import signal

import numpy as np
import pytest

from hf_curriculum import files
from hf_curriculum.files import (
    DamagedFileError,
    complete_folder,
    file_digest,
    lock_file,
    new_file,
    new_files,
    own_folder,
    read_array,
    read_sealed,
    reading,
    remove_dead,
    take_place,
    validate_digest,
    write_atomically,
    write_sealed,
)


@pytest.fixture
def thesis(tmp_path):
    """Somebody else's file, to which links lead."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    file = folder / "thesis.txt"
    file.write_text("years of work")
    yield file
    assert file.read_text() == "years of work"
    assert [entry.name for entry in folder.iterdir()] == ["thesis.txt"]


def entries(folder):
    return sorted(entry.name for entry in folder.iterdir() if entry.name != "elsewhere")


def test_a_link_under_the_name_of_a_file_is_replaced_and_nothing_is_written_through_it(tmp_path, thesis):
    (tmp_path / "a.json").symlink_to(thesis)
    write_atomically(tmp_path / "a.json", "new")
    (tmp_path / "a.json").unlink()
    (tmp_path / "a.json").symlink_to(tmp_path / "nothing")
    write_atomically(tmp_path / "a.json", "new", keep_existing=True)
    (tmp_path / "b.npy").symlink_to(thesis)
    with new_file(tmp_path / "b.npy") as file:
        np.save(file, np.arange(3))
    (tmp_path / "c.txt").symlink_to(thesis)
    with new_files(tmp_path / "c.txt", tmp_path / "d.txt") as (first, second):
        first.write_text("c")
        second.write_text("d")
    assert entries(tmp_path) == ["a.json", "b.npy", "c.txt", "d.txt"]
    assert not any(entry.is_symlink() for entry in tmp_path.iterdir())
    np.testing.assert_array_equal(np.load(tmp_path / "b.npy"), np.arange(3))


def test_links_under_the_names_of_locks_and_folders_are_refused(tmp_path, thesis):
    (tmp_path / ".set.lock").symlink_to(thesis)
    refused = pytest.raises(ValueError, match=r"\.set\.lock is a link to .*thesis\.txt.*Remove the link")
    with refused, complete_folder(tmp_path / "set"):
        pass
    (tmp_path / "scores").symlink_to(thesis.parent)
    with pytest.raises(ValueError, match=r"scores is a link to .*elsewhere"):
        own_folder(tmp_path / "scores")
    (tmp_path / ".set.lock").unlink()
    (tmp_path / ".set.replaced-x").symlink_to(thesis.parent)
    (tmp_path / ".set.unfinished-x").symlink_to(thesis.parent)
    with complete_folder(tmp_path / "set") as folder:
        (folder / "file").write_text("1")
    assert entries(tmp_path) == ["scores", "set"]


def test_a_folder_that_the_user_names_may_be_a_link(tmp_path):
    (tmp_path / "scratch").mkdir()
    (tmp_path / "outputs").symlink_to(tmp_path / "scratch")
    with complete_folder(tmp_path / "outputs") as folder:
        (folder / "file").write_text("1")
    assert (tmp_path / "scratch" / "file").read_text() == "1"
    assert (tmp_path / "outputs").is_symlink()


@pytest.mark.parametrize("mask", [0o077, 0o002, 0o022])
def test_permissions_are_those_of_the_umask(tmp_path, mask):
    before = os.umask(mask)
    try:
        with complete_folder(tmp_path / "set") as folder, new_file(folder / "a") as file:
            file.write_text("1")
        write_atomically(tmp_path / "set" / "b", "2")
    finally:
        os.umask(before)
    assert (tmp_path / "set").stat().st_mode & 0o777 == 0o777 & ~mask
    assert [(tmp_path / "set" / name).stat().st_mode & 0o777 for name in "ab"] == [0o666 & ~mask] * 2


@pytest.mark.parametrize("number", [0, 1, 2])
def test_files_that_belong_together_are_all_replaced_or_none(tmp_path, monkeypatch, number):
    names, replace, calls = ("page.html", "data.json", "facts.json"), os.replace, []
    (tmp_path / "page.html").write_text("former page")
    (tmp_path / "facts.json").write_text("former facts")

    def fail_once(source, target):
        calls.append(target)
        if len(calls) == number + 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail_once)

    def write():
        with new_files(*(tmp_path / name for name in names)) as temporaries:
            for file in temporaries:
                file.write_text("new")

    with pytest.raises(OSError, match=r"No space left on device.*nothing was replaced.*facts\.json"):
        write()
    assert {entry.name: entry.read_text() for entry in tmp_path.iterdir()} == {
        "page.html": "former page",
        "facts.json": "former facts",
    }
    write()
    assert {entry.name: entry.read_text() for entry in tmp_path.iterdir()} == dict.fromkeys(names, "new")


def test_an_error_of_the_disk_names_the_file_and_one_of_something_else_stays(tmp_path):
    message = r"\[Errno 28\] No space left on device; nothing was replaced.*order\.npy"
    with pytest.raises(OSError, match=message) as full, new_file(tmp_path / "order.npy"):
        raise OSError(errno.ENOSPC, "Error writing bytes to file")
    assert full.value.errno == errno.ENOSPC
    for error in (
        RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
        OSError(errno.ENOSPC, "No space left on device", str(tmp_path)),
    ):
        with pytest.raises(OSError, match=message), new_file(tmp_path / "order.npy"):
            raise error
    refused = pytest.raises(PermissionError, match=r"Permission denied: '/data/photo\.jpg'")
    with refused, new_file(tmp_path / "order.npy"):
        raise PermissionError(errno.EACCES, "Permission denied", "/data/photo.jpg")
    assert entries(tmp_path) == []


def test_what_a_killed_process_left_goes_when_the_file_is_written_again(tmp_path):
    child = os.fork()
    if child == 0:
        with new_file(tmp_path / "order.npy") as file:
            file.write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert len(entries(tmp_path)) == 1
    with new_file(tmp_path / "other.npy") as living:  # what somebody writes now stays
        remove_dead(tmp_path)
        assert living.exists()
        assert len(entries(tmp_path)) == 1
    with new_file(tmp_path / "order.npy") as file:
        file.write_text("whole")
    assert entries(tmp_path) == ["order.npy", "other.npy"]


def test_a_process_that_has_ended_and_was_not_waited_for_does_not_run():
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert not files.is_running(child)
    os.waitpid(child, 0)
    assert not files.is_running(child)
    assert files.is_running(os.getpid())
    assert files.is_running(1)


def test_facts_that_were_changed_are_refused_however_they_are_laid_out(tmp_path):
    file, facts = tmp_path / "facts.json", {"steps": 63, "shares": [0.1, float("nan")], "names": {"a": "ü", 3: None}}
    write_sealed(file, facts)
    read = read_sealed(file, "Write it again.", ["steps"])
    assert read["names"] == {"a": "ü", "3": None}
    assert read["steps"] == 63
    content = json.loads(file.read_text("utf-8"))
    file.write_text(json.dumps(content))
    assert read_sealed(file, "")["shares"][0] == 0.1
    for change in ({"steps": 126}, {"shares": [0.1, 0.2]}, {"more": 1}, {"seal": "0"}):
        file.write_text(json.dumps({**content, **change}))
        with pytest.raises(DamagedFileError, match=r"facts\.json was damaged, or changed .* Write it again\."):
            read_sealed(file, "Write it again.")
    for text in ("{", '{"steps": 63}', "[]", "\xff", ""):
        file.write_bytes(text.encode("latin-1"))
        with pytest.raises(DamagedFileError, match=r"facts\.json is damaged .*Write it again\."):
            read_sealed(file, "Write it again.")
    with pytest.raises(FileNotFoundError, match=r"does not exist\. Write it again\..*missing"):
        read_sealed(tmp_path / "missing", "Write it again.")


def test_damage_of_arrays_and_files_is_named(tmp_path):
    file = tmp_path / "a.npy"
    np.save(file, np.arange(100))
    digest = file_digest(file)
    validate_digest(file, digest, "Copy it again.")
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    with pytest.raises(DamagedFileError, match=r"a\.npy holds something else .* Copy it again\."):
        validate_digest(file, digest, "Copy it again.")
    file.write_bytes(content[:50])
    with pytest.raises(DamagedFileError, match=r"a\.npy is damaged .*Copy it again\."):
        read_array(file, "Copy it again.")


def test_errors_of_any_library_are_one_sentence_and_those_of_the_disk_stay():
    for error in (KeyError("state"), RuntimeError("PytorchStreamReader failed"), OSError("Invalid"), EOFError()):
        refused = pytest.raises(DamagedFileError, match=rf"file is damaged \({type(error).__name__}.*Do it again\.")
        with refused, reading("file", "Do it again."):
            raise error
    with pytest.raises(OSError, match="Input/output error: 'file'"), reading("file", ""):
        raise OSError(errno.EIO, "Input/output error")


def test_a_lock_that_is_given_back_at_the_moment_is_taken(tmp_path):
    for _ in range(50):  # who waits sees a file that is deleted meanwhile
        with lock_file(tmp_path / "lock") as holder:
            assert holder == ""
            assert (tmp_path / "lock").read_text().startswith(f"process {os.getpid()} on ")
            with lock_file(tmp_path / "lock") as other:
                assert other.startswith(f"process {os.getpid()} on ")
        assert not (tmp_path / "lock").exists()


def test_a_lock_excludes_processes_that_take_it_in_turn(tmp_path):
    (tmp_path / "count").write_text("0")
    children = []
    for _ in range(4):
        children.append(os.fork())
        if children[-1] == 0:
            done = 0
            while done < 25:
                with lock_file(tmp_path / "lock") as holder:
                    if not holder:
                        number = int((tmp_path / "count").read_text())
                        (tmp_path / "count").write_text(f"{number + 1}")
                        done += 1
            os._exit(0)
    assert all(os.waitpid(child, 0)[1] == 0 for child in children)
    assert (tmp_path / "count").read_text() == "100"


@pytest.mark.parametrize("code", [errno.ENOTSUP, errno.ENOSYS, errno.ENOLCK])
def test_on_a_disk_without_locks_a_file_that_is_touched_takes_their_place(tmp_path, monkeypatch, code):
    def refuse(*_, **__):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(files.FileLock, "acquire", refuse)
    monkeypatch.setattr(files, "_LEASE", 0.6)
    monkeypatch.setattr(files, "_LOOK", 1.5)
    with lock_file(tmp_path / "lock") as holder:
        assert holder == ""
        child = os.fork()
        if child == 0:
            try:
                with lock_file(tmp_path / "lock") as other:
                    os._exit(0 if other == f"process {os.getppid()} on {os.uname().nodename}" else 1)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
    assert not (tmp_path / "lock").exists()


def test_a_folder_that_cannot_be_replaced_stays(tmp_path, monkeypatch):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "file").write_text("former")
    (tmp_path / "new").mkdir()
    replace, calls = os.replace, []

    def fail_second(source, target):
        calls.append(target)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail_second)
    with pytest.raises(OSError, match="No space left"):
        take_place(tmp_path / "set", tmp_path / "new")
    assert (tmp_path / "set" / "file").read_text() == "former"
    assert entries(tmp_path) == ["new", "set"]


@pytest.mark.parametrize("lasting", [True, False])
def test_files_are_flushed_before_they_are_named_where_they_have_to_last(tmp_path, monkeypatch, lasting):
    done, fsync, replace = [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda number: (done.append("flush"), fsync(number)))
    monkeypatch.setattr(os, "replace", lambda *paths: (done.append("replace"), replace(*paths)))
    with files.new_files(tmp_path / "a", tmp_path / "b", lasting=lasting) as paths:
        for path in paths:
            path.write_text("new")
    assert done == ["flush"] * (2 * lasting) + ["replace"] * 2
    with files.new_file(tmp_path / "c") as path:
        path.write_text("new")
    assert done[-2:] == ["flush", "replace"]


def test_a_folder_of_many_files_is_looked_through_for_what_the_dead_have_left_once(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_MANY", 3)
    looked, remove = [], remove_dead
    monkeypatch.setattr(files, "remove_dead", lambda folder: looked.append(folder) or remove(folder))
    for number in range(8):
        files.write_atomically(tmp_path / str(number), "")
    assert len(looked) == 5  # with 0, 1, 2, 3 and 4 files in it
