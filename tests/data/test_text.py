"""Text corpora: a row per line, from files in the challenge's form, read without filling the memory."""

from __future__ import annotations

import gzip
import logging
import sys

import datasets
import pytest
from datasets import Dataset, DatasetDict

from hf_curriculum import train_wordpiece
from hf_curriculum.data.text import Texts, load_text
from hf_curriculum.scenes.captions import scene_lines, write_scene_text


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "train_50M"
    folder.mkdir()
    (folder / "childes.train").write_text("*MOT:\tdo you see it ?\n\n  \n*CHI:\tyes .\r\n", encoding="utf-8")
    with gzip.open(folder / "wiki.train.gz", "wt", encoding="utf-8") as file:
        file.write("\ufeff= Größe =\nein Satz\u2028noch einer\n")
    (folder / "childes.dev").write_text("last one without an end", encoding="utf-8")
    (folder / "README.txt").write_text("not a corpus\n")
    return folder


class TestFiles:
    def test_splits_lines_and_sources(self, corpus):
        text = load_text(corpus)
        assert list(text) == ["train", "validation"]
        assert text["train"]["caption"][:] == [
            *("*MOT:\tdo you see it ?", "*CHI:\tyes .", "= Größe =", "ein Satz\u2028noch einer")
        ]
        assert text["train"]["source"][:] == ["childes", "childes", "wiki", "wiki"]
        assert text["validation"][0] == {"caption": "last one without an end", "source": "childes"}

    def test_one_split_one_file_or_text_files_alone(self, corpus, tmp_path):
        assert load_text(corpus, split="validation").num_rows == 1
        assert isinstance(load_text(corpus / "wiki.train.gz"), Dataset)
        (tmp_path / "books" / "deep").mkdir(parents=True)
        (tmp_path / "books" / "b.txt").write_text("two\n")
        (tmp_path / "books" / "deep" / "a.txt").write_text("three\n")
        assert load_text(tmp_path / "books")["caption"][:] == ["two", "three"]
        (tmp_path / "poems").write_text("any name\n")
        assert load_text(tmp_path / "poems")[0] == {"caption": "any name", "source": "poems"}

    def test_written_once_and_again_when_a_file_changes(self, corpus, tmp_path):
        first = load_text(corpus / "childes.dev")
        assert load_text(corpus / "childes.dev").cache_files == first.cache_files
        (corpus / "childes.dev").write_text("another line\n")
        assert load_text(corpus / "childes.dev")["caption"][:] == ["another line"]
        files = [file.suffix for file in (tmp_path / "cache" / "hf_curriculum" / "text").iterdir()]
        assert files == [".arrow", ".arrow"]  # no draft is left

    def test_blank_lines_are_counted(self, corpus, caplog):
        with caplog.at_level(logging.INFO):
            load_text(corpus, split="train")
        assert "2 blank lines are left out." in caplog.text
        assert "4 lines of text from childes.train, wiki.train.gz" in caplog.text

    def test_many_rows_come_in_order(self, tmp_path):
        (tmp_path / "long.train").write_text("".join(f"line {n}\n\n" for n in range(9000)))
        text = load_text(tmp_path / "long.train")
        assert text[[0, 4096, 8999]]["caption"] == ["line 0", "line 4096", "line 8999"]

    def test_what_is_no_text(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="There is no file or folder"):
            load_text(tmp_path / "nothing")
        (tmp_path / "empty").mkdir()
        (tmp_path / "empty" / "a.parquet").touch()
        with pytest.raises(ValueError, match=r"holds no text: \['a.parquet'\]"):
            load_text(tmp_path / "empty")
        (tmp_path / "blank.train").write_text("\n \n")
        with pytest.raises(ValueError, match="are blank: there is no text"):
            load_text(tmp_path / "blank.train")
        (tmp_path / "latin.train").write_bytes("é\n".encode("latin-1"))
        with pytest.raises(ValueError, match="is not UTF-8"):
            load_text(tmp_path / "latin.train")
        assert not list((tmp_path / "cache" / "hf_curriculum" / "text").glob("*.arrow.*"))
        with pytest.raises(ValueError, match=r"`split='test'` was given, but .* has \['train'\]"):
            load_text(tmp_path / "blank.train", split="test")


@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted by /proc")
def test_reading_everything_does_not_fill_the_memory(launch, tmp_path):
    """Of the process's own, anonymous memory; pages of the mapped file are the kernel's to drop."""
    program = tmp_path / "program.py"
    program.write_text(f"""
import datasets
from pathlib import Path
from hf_curriculum.data.text import load_text
datasets.config.HF_DATASETS_CACHE = Path({str(tmp_path)!r})
def anonymous():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("Anonymous")).split()[1]) / 1024
text = load_text({str(tmp_path / "big.train")!r})
before, most = anonymous(), 0
for start in range(0, len(text), 1000):
    text[start : start + 1000]
    most = max(most, anonymous() - before)
held = text[:]
print(most, anonymous() - before)
""")
    line = " ".join(["lorem ipsum dolor sit amet"] * 20) + "\n"
    (tmp_path / "big.train").write_text(line * 60_000)  # 32 MB
    mapped, in_memory = map(float, launch(program).stdout.split())
    assert mapped < 8
    assert in_memory > 25


class TestTexts:
    def test_read_as_often_as_asked(self, corpus):
        captions = Dataset.from_dict({"caption": ["a dog"] * 2})
        texts = Texts(captions, load_text(corpus, split="train"))
        assert len(texts) == 6
        assert list(texts) == list(texts) == ["a dog", "a dog", *load_text(corpus, split="train")["caption"]]
        assert train_wordpiece(texts, 80).get_vocab() == train_wordpiece(list(texts), 80).get_vocab()

    def test_a_missing_column(self):
        with pytest.raises(ValueError, match="`text` is not in the data"):
            Texts(Dataset.from_dict({"caption": ["a"]}), column="text")


class TestScenes:
    def test_lines_of_scenes_that_nobody_draws(self, tmp_path):
        text = load_text(write_scene_text(tmp_path / "text", 23))
        assert isinstance(text, DatasetDict)
        assert {name: len(part) for name, part in text.items()} == {"train": 23, "validation": 5}
        lines = scene_lines()
        expected = [next(lines) for _ in range(30)]
        assert text["train"]["caption"][:] == expected[:23]
        assert text["validation"]["caption"][:] == expected[25:30]
        stamp = (tmp_path / "text" / "scenes.dev").stat().st_mtime_ns
        write_scene_text(tmp_path / "text", 23)
        assert (tmp_path / "text" / "scenes.dev").stat().st_mtime_ns == stamp
        other = scene_lines(seed=0)
        assert [next(other) for _ in range(23)] != expected[:23]

    def test_no_lines(self, tmp_path):
        with pytest.raises(ValueError, match="at least 1 line"):
            write_scene_text(tmp_path, 0)


def test_real_books(test_data):
    folder = test_data("childrens_books_pd")
    book = load_text(folder / "Peter-Pan_16.txt")
    lines = [line.strip() for line in (folder / "Peter-Pan_16.txt").read_text(encoding="utf-8-sig").split("\n")]
    assert book["caption"][:] == [line for line in lines if line]


def test_a_full_folder_is_not_listed_whole(tmp_path):
    for number in range(12):
        (tmp_path / f"{number:02}.bin").touch()
    with pytest.raises(ValueError, match=r"holds no text: \['00\.bin', .*'09\.bin'\]\. "):
        load_text(tmp_path)


def test_hidden_files_are_no_text_and_what_is_passed_over_is_counted(tmp_path, caplog):
    for name, text in {
        "a/x.train": "one\n",
        "a/b/x.train": "two\n",
        "Z.TRAIN": "three\n",
        "a/._x.train": "\0\5",
        "a/.ipynb_checkpoints/x-checkpoint.train": "one\n",
        "note.txt": "no",
        "y.train.bz2": "no",
    }.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    rows = load_text(tmp_path)
    assert dict(zip(rows["source"], rows["caption"], strict=True)) == {"Z": "three", "a/b/x": "two", "a/x": "one"}
    assert "hidden files and folders: 2" in caplog.text
    assert "y.train.bz2, for example" in caplog.text
    assert "files in .txt beside those of a corpus: 1" in caplog.text


def test_two_files_of_one_source_and_truncated_ones_are_refused(tmp_path):
    (tmp_path / "x.train").write_text("one\n")
    packed = gzip.compress(b"one\ntwo\n" * 50)
    (tmp_path / "x.train.gz").write_bytes(packed)
    with pytest.raises(ValueError, match="are called alike, so lines would be read twice"):
        load_text(tmp_path)
    for content in (packed[:-10], gzip.compress(b"one\n")[:-9], b"one\n"):
        (tmp_path / "y.train.gz").write_bytes(content)
        with pytest.raises(ValueError, match="is no gzip file, or a truncated one"):
            load_text(tmp_path / "y.train.gz")
