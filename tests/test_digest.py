from __future__ import annotations

import hashlib
import os

import numpy as np
import pytest

from hf_curriculum.config import digest
from hf_curriculum.files import write_atomically


def test_a_digest_is_blake2b_of_all_contents(tmp_path):
    file = tmp_path / "weights"
    file.write_bytes(b"x" * (1 << 20) + b"y")
    values = np.arange(5, dtype=np.int64)
    content = "é".encode() + values.tobytes() + b"b" + file.read_bytes()
    for size in (6, 8, 16):
        expected = hashlib.blake2b(content, digest_size=size).hexdigest()
        assert digest("é", values, memoryview(b"b"), file, size=size) == expected
    with pytest.raises(OSError, match="absent"):
        digest(tmp_path / "absent")


def test_a_file_is_written_completely_or_not_at_all(tmp_path, monkeypatch):
    file = tmp_path / "new" / "facts.json"
    write_atomically(file, "é")
    assert file.read_text(encoding="utf-8") == "é"
    write_atomically(file, b"second")
    assert file.read_bytes() == b"second"

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(file, "third")
    assert file.read_bytes() == b"second"
    assert os.listdir(file.parent) == ["facts.json"]
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        write_atomically(tmp_path / "file" / "below", "x")


def test_the_first_writer_decides_where_asked(tmp_path, monkeypatch):
    file = tmp_path / "run.json"
    write_atomically(file, "first", keep_existing=True)
    write_atomically(file, "second", keep_existing=True)
    assert file.read_text() == "first"

    def refuse(*_):
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    write_atomically(file, "third", keep_existing=True)
    assert file.read_text() == "first"
    file.unlink()
    write_atomically(file, "fourth", keep_existing=True)
    assert file.read_text() == "fourth"
    assert os.listdir(tmp_path) == ["run.json"]
