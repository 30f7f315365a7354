"""Headers of tar archives, made byte by byte, and as `tarfile` reads them."""

from __future__ import annotations

import tarfile

import pytest

from hf_curriculum.data.left_out import LeftOut
from hf_curriculum.data.readers.archives import archive_members

END = bytes(1024)


def header(name, size=0, kind=tarfile.REGTYPE, format=tarfile.USTAR_FORMAT, **changed):
    """A header, of which fields at bytes `at_...` are changed before its checksum is made."""
    member = tarfile.TarInfo(name)
    member.type, member.size, member.linkname = kind, size, "there" if kind == tarfile.SYMTYPE else ""
    block = bytearray(member.tobuf(format, errors="surrogateescape"))
    for place, value in changed.items():
        at = int(place.removeprefix("at_"))
        block[at : at + len(value)] = value
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def content(size):
    return b"x" * size + bytes(-size % 512)


def written(path, *parts):
    path.write_bytes(b"".join(parts))
    return path


@pytest.fixture
def no_tarfile(monkeypatch):
    """Plain headers are read without it, in a tenth of the time."""

    def refuse(*given, **options):
        raise AssertionError("a plain archive was opened by `tarfile`")

    monkeypatch.setattr(tarfile, "open", refuse)


LONG = "d" * 155 + "/" + "n" * 100


@pytest.mark.parametrize(
    ("parts", "members"),
    [
        ([], []),
        (
            [header("a", 5), content(5), header("b"), header("c", 512), content(512)],
            [("a", 512, 5), ("b", 1536, 0), ("c", 2048, 512)],
        ),
        (
            [header("d", 0, tarfile.DIRTYPE), header("d/a", 513), content(513), header("e")],
            [("d/a", 1024, 513), ("e", 2560, 0)],
        ),
        ([header(LONG, 9), content(9)], [(LONG, 512, 9)]),
        ([header(LONG, 9, at_500=b"pad"), content(9)], [(LONG, 512, 9)]),
        ([header("a", at_257=b"ustar  \0", at_345=b"12345670")], [("a", 512, 0)]),  # GNU has times there
        ([header("é" * 70 + "/" + "é" * 50, 1), content(1)], [("é" * 70 + "/" + "é" * 50, 512, 1)]),
        ([header("\udcff" * 150 + "/" + "\udcff" * 99)], [("\udcff" * 150 + "/" + "\udcff" * 99, 512, 0)]),
        ([header("a", at_124=b"000000000011"), content(9)], [("a", 512, 9)]),  # twelve digits, and no NUL
        ([header("a", at_156=b"\0")], [("a", 512, 0)]),  # as archives were before POSIX
    ],
)
def test_plain_headers(tmp_path, no_tarfile, parts, members):
    assert list(archive_members(written(tmp_path / "x.tar", *parts, END))) == members


def test_an_archive_that_ends_with_zeros_of_its_last_member(tmp_path, no_tarfile):
    assert list(archive_members(written(tmp_path / "empty.tar", END))) == []
    assert list(archive_members(written(tmp_path / "z.tar", header("a", 1024), bytes(1024)))) == [("a", 512, 1024)]


def test_sizes_of_gigabytes(tmp_path, no_tarfile):
    size = 0o12345670123
    path = written(tmp_path / "x.tar", header("a", size))
    with path.open("r+b") as file:
        file.truncate(512 + size + -size % 512 + 1024)  # a hole, which takes no room
    assert list(archive_members(path)) == [("a", 512, size)]


@pytest.mark.parametrize("counted", [True, False])
def test_from_the_first_header_that_is_not_plain_on_tarfile_reads(tmp_path, counted):
    parts = [header("a", 5), content(5), header("d", 0, tarfile.DIRTYPE), header("b"), header("l", 0, tarfile.SYMTYPE)]
    parts += [header("e", 0, tarfile.DIRTYPE), header("c", 600), content(600), header("m", 0, tarfile.SYMTYPE)]
    left_out = LeftOut() if counted else None
    members = list(archive_members(written(tmp_path / "x.tar", *parts, END), left_out))
    assert members == [("a", 512, 5), ("b", 2048, 0), ("c", 3584, 600)]
    if counted:
        assert left_out.items() == [("links and devices in the archive (not followed)", 2, "'l'")]
    binary = header("a", at_124=b"\x80" + bytes(9) + b"\2\1")
    assert list(archive_members(written(tmp_path / "y.tar", binary, content(513), END))) == [("a", 512, 513)]


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([header("a"), END, header("b"), END], "behind its end at byte 512 it goes on"),
        ([header("l", 0, tarfile.SYMTYPE), END, header("b"), END], "behind its end at byte"),
        ([header("a"), header("b", at_0=b"\0"), END], "behind its end at byte 512 it goes on"),
        ([header("a"), header("b", 3)[:-3] + b"odd", content(3), END], "the header at byte 512 is damaged"),
        ([header("a")[:20] + b"\1" + header("a")[21:], END], "the header at byte 0 is damaged"),
        ([b"b" + header("a")[1:], END], "the header at byte 0 is damaged"),
        ([header("b")[:148] + b"no octal" + header("b")[156:], END], "the header at byte 0 is damaged"),
        ([header("b")[:148] + b"000009\0 " + header("b")[156:], END], "the header at byte 0 is damaged"),
        ([header("b", at_124=b"00000000009"), END], "invalid header"),
        ([header("a", 1025), END], "a is cut short"),
        ([header("a", 3), content(3), header("b")], "it does not end as an archive does"),
        ([b"short"], "it has 5 bytes, and an archive without a file has 1,024"),
        ([], "it has 0 bytes"),
        ([header("a", 3), content(3)[:511]], "it has 1,023 bytes"),
    ],
)
def test_damaged_archives_are_refused(tmp_path, parts, said):
    with pytest.raises(tarfile.ReadError, match=said):
        list(archive_members(written(tmp_path / "x.tar", *parts)))
