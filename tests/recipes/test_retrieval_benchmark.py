"""The benchmark of retrieval's ranks runs, at sizes that say nothing about speed."""

from __future__ import annotations

from benchmarks import retrieval


def test_it_measures_both(tmp_path, monkeypatch, capsys):
    page = tmp_path / "page.md"
    words = ["retrieval", "--texts", "60", "--images", "20", "--repeats", "1", "--output", str(page)]
    monkeypatch.setattr("sys.argv", words)
    retrieval.main()
    assert "Ranks both ways of 60 texts and 20 images" in capsys.readouterr().out
    assert page.read_text().count("|") == 15
    found = retrieval.measure(60, 20, repeats=1)
    assert found["ranks"] > 0
    assert found["megabytes"] >= 0
