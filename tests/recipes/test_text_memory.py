"""The benchmark of a text corpus' memory runs, at a size that says little about it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

DOOR = Path(__file__).parents[2] / "recipes" / "benchmarks" / "text_memory.py"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(DOOR.parent))
    import text_memory

    return text_memory


def test_the_corpus_is_the_same_every_time_and_has_so_many_words(script):
    parts = list(script.text_parts(5000, types=300))
    assert parts == list(script.text_parts(5000, types=300))
    text = "".join(parts)
    assert text.endswith("\n")
    words = text.split()
    assert len(words) == 5000
    assert 8 < len(words) / text.count("\n") < 18
    assert len({script.made_up(number) for number in range(7000)}) == 7000
    most = sorted(set(words), key=words.count, reverse=True)[:5]
    assert script.made_up(0) in most


@pytest.mark.slow
def test_it_measures(script, call_main, tmp_path, capsys):
    out = tmp_path / "facts.json"
    call_main(script, "--words", 20_000, "--steps", 2, "--batch", 16, "--accumulate", 2, "--json", out)
    printed = capsys.readouterr().out
    facts = json.loads(out.read_text(encoding="utf-8"))
    assert facts["words"] == 20_000
    assert facts["growth_mb"] >= facts["trainer_mb"] > 0
    assert "memory grows by" in printed
