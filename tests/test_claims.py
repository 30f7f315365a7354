"""Who has a piece of work, and who is dead: by processes, by silence, and by the clock of the disk alone."""

from __future__ import annotations

import json
import os
import platform
import time

import pytest

from hf_curriculum.claims import Claims

DEAD = 2**22 + 1


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "claims").mkdir()
    return tmp_path / "claims"


def claim(folder, name="a", age=0.0, **facts):
    """The claim of a process that lives on another machine, or as `facts` say."""
    facts = {"name": name, "owner": "x", "begun": "now", "host": "elsewhere", "pid": DEAD, "token": "theirs"} | facts
    file = folder / f"{name}.claim"
    file.write_text(json.dumps(facts))
    os.utime(file, (time.time() - age, time.time() - age))
    return file


@pytest.mark.parametrize(
    ("age", "facts", "free"),
    [
        (0, {}, False),
        (100, {}, False),  # of a lease of 120 s
        (140, {}, True),
        (-100, {}, False),  # its clock was set back a little, or by more than the lease
        (-140, {}, True),
        (0, {"host": platform.node()}, True),
        (0, {"host": platform.node(), "pids": "of another container"}, False),
        (140, {"host": platform.node(), "pids": "of another container"}, True),
        (0, {"host": platform.node(), "pid": os.getpid()}, False),
        (140, {"host": platform.node(), "pid": os.getpid()}, True),
        (0, {"host": platform.node(), "pid": None}, False),
        (5, {"host": platform.node(), "pid": None}, True),
    ],
)
def test_whose_claims_are_free(folder, age, facts, free):
    file = claim(folder, age=age, **facts)
    claims = Claims(folder, 120)
    assert [each.name for each in claims.living()] == ([] if free else ["a"])
    assert claims.take("a") is free
    assert json.loads(file.read_text())["pid"] == (os.getpid() if free else facts.get("pid", DEAD))
    assert os.listdir(folder) == ["a.claim"]


def test_a_dead_claim_that_somebody_else_has_removed_is_free(folder, monkeypatch):
    file = claim(folder, age=140)
    monkeypatch.setattr(Claims, "_is_dead", lambda claims, path: path.unlink() is None)
    assert Claims(folder, 120).take("a")
    assert json.loads(file.read_text())["pid"] == os.getpid()


@pytest.mark.parametrize("ahead", [-100_000, 100_000])
def test_ages_are_told_by_the_clock_of_the_disk(folder, monkeypatch, ahead):
    claim(folder, "old", age=140)
    claim(folder, "new")
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + ahead)
    claims = Claims(folder, 120)
    assert [(each.name, each.age < 60) for each in claims.living()] == [("new", True)]
    assert (claims.take("old"), claims.take("new")) == (True, False)


@pytest.mark.parametrize(("age", "free"), [(0, False), (30, True), (-30, True)])
@pytest.mark.parametrize("content", ["", '{"name": "a", "ho', "[]", "{}"])
def test_a_claim_whose_writer_was_killed_is_free_after_a_moment(folder, content, age, free):
    file = claim(folder)
    file.write_text(content)
    os.utime(file, (time.time() - age, time.time() - age))
    assert Claims(folder, 120).take("a") is free


def test_names_with_folders_and_what_is_given_back(folder):
    claims, other = Claims(folder, 120), Claims(folder, 120)
    with claims.alive():
        assert claims.take("b/00001.tar")
        assert claims.take("c")
        assert not claims.take("c")
        assert not other.take("b/00001.tar")
        assert [each.name for each in other.living()] == ["b/00001.tar", "c"]
        assert f"process {os.getpid()} on {platform.node()}, begun 2" in other.living()[0].owner
        if os.path.exists("/proc/self/ns/pid"):
            assert json.loads((folder / "c.claim").read_text())["pids"] == os.readlink("/proc/self/ns/pid")
        claims.give_back("b/00001.tar")
        claims.give_back("b/00001.tar")
        assert claims._held == {folder / "c.claim"}
        assert other.take("b/00001.tar")
        other.give_back("b/00001.tar")
        file = claim(folder, "theirs")
    assert os.listdir(folder) == ["theirs.claim"]
    file.unlink()
    with claims.alive():
        pass
    assert not folder.exists()
    assert claims.take("d")
    assert folder.is_dir()


def test_who_was_silent_for_too_long_does_not_end_the_claim_of_another(folder):
    claims = Claims(folder, 120)
    assert claims.take("a")
    claim(folder)
    claims.give_back("a")
    assert Claims(folder, 120).living()[0].owner == "x, begun now"


def test_claims_are_touched_while_their_owner_lives(folder):
    claims = Claims(folder, 0.3)
    with claims.alive():
        claims.take("a")
        claims.take("b")
        theirs = claim(folder, "b", age=1000)
        os.utime(folder / "a.claim", (0, 0))
        end = time.monotonic() + 15
        while (folder / "a.claim").stat().st_mtime == 0 and time.monotonic() < end:
            time.sleep(0.02)
        assert (folder / "a.claim").stat().st_mtime > 0
        assert theirs.stat().st_mtime < time.time() - 900


def test_a_link_that_takes_the_place_of_a_claim_is_not_followed_when_claims_are_touched(folder, tmp_path, monkeypatch):
    thesis = claim(tmp_path, "thesis", age=1000)
    before, looked = thesis.stat().st_mtime, []

    def planted(claims, file):  # after the look, before the touch
        looked.append(file)
        file.unlink()
        file.symlink_to(thesis)
        return True

    claims = Claims(folder, 0.1)
    with claims.alive():
        claims.take("a")
        monkeypatch.setattr(Claims, "_is_own", planted)
        end = time.monotonic() + 15
        while len(looked) < 2 and time.monotonic() < end:
            time.sleep(0.02)
        monkeypatch.undo()
        (folder / "a.claim").unlink()
    assert len(looked) >= 2
    assert thesis.stat().st_mtime == before


def test_links_in_the_place_of_claims_are_refused_and_left_alone(folder, tmp_path):
    thesis = claim(tmp_path, "thesis", age=1000)
    before = thesis.read_bytes(), thesis.stat().st_mtime
    (folder / "a.claim").symlink_to(thesis)
    claims = Claims(folder, 120)
    with pytest.raises(ValueError, match=r"a\.claim is a link to .*thesis"):
        claims.take("a")
    assert claims.living() == []
    (tmp_path / "other").symlink_to(folder)
    with pytest.raises(ValueError, match="other is a link to"), Claims(tmp_path / "other", 120).alive():
        pass
    assert (thesis.read_bytes(), thesis.stat().st_mtime) == before


def test_nobody_waits_for_a_fifo(folder):
    os.mkfifo(folder / "a.claim")
    claims = Claims(folder, 120)
    assert claims.living() == []
    assert not claims.take("a")


def test_a_claim_that_cannot_be_written_is_gone(folder, monkeypatch):
    def full(number, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    claims = Claims(folder, 120)
    with pytest.raises(OSError, match="No space left"):
        claims.take("a")
    assert os.listdir(folder) == []


def test_nothing_is_claimed_in_a_folder_that_is_gone(tmp_path):
    assert not Claims(tmp_path / "work" / "claims", 120).take("a")
    assert not (tmp_path / "work").exists()
