"""Texts, tables and packed files that are made to take time, memory or secrets."""

from __future__ import annotations

import ast
import csv
import gzip
import importlib
import json
import re
import sys
import time
import traceback
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import regex
import typer
from datasets import Dataset
from datasets.exceptions import DatasetGenerationError
from PIL import Image as PILImage
from typer.testing import CliRunner

import hf_curriculum
from hf_curriculum import CaptionLength, add_scores, load_captioned, load_conversations, save_scored
from hf_curriculum.cli import app
from hf_curriculum.cli.common import plainly, typed_again
from hf_curriculum.config import redact
from hf_curriculum.data import limits
from hf_curriculum.data.images import to_rgb
from hf_curriculum.data.left_out import LeftOut
from hf_curriculum.data.readers.outside_files import named_files, validate_folder
from hf_curriculum.data.readers.source_shards import find_shards
from hf_curriculum.files import sole_writer
from hf_curriculum.hub.errors import in_words
from hf_curriculum.markdown import csv_cell, csv_text, split_front_matter
from hf_curriculum.scorers.visual.images import open_image
from hf_curriculum.studies.recipe import command_line
from hf_curriculum.tasks.captioning.metrics.tokens import tokenize
from hf_curriculum.tasks.long_tail.data.sources import read_list

ROOT = Path(hf_curriculum.__file__).parent
METHODS = ("search", "match", "fullmatch", "sub", "split", "findall", "finditer")
UNITS = (
    *("a", "0", " ", "\t", "\n", "\r\n", "-", "---\n", "_", ".", ",", ":", "/", "\\", "'", '"', "`", "*", "**a ", "#"),
    *(
        "<",
        "<a",
        "&",
        "&#1",
        "%",
        "{a",
        "[",
        "[a",
        "[img",
        "(",
        "@",
        "=",
        "a=",
        "a ",
        "a.",
        "a-",
        "a'",
        "a_",
        "1.",
        "1,",
    ),
    *(
        "é",
        "中",
        "ก",
        "😀",
        "<image",
        "<|image",
        "http://",
        "image: ",
        "option a",
        "n't",
        "iVBORw0KGgo",
        "a.jpg ",
        "sep=",
    ),
    *("IMG_", "\x85", "eval_a_", "-1 ", "1e+", "bucket_1", "```a\n", "a\n\n", "?a=&", "://a:", "token='", "a a"),
)
NOT_OF_OTHERS = {"hf_curriculum.config:_NUMBER"}  # PyYAML matches it at the beginning of a word alone


def patterns():
    """Name, pattern and method of each regular expression of the package, as its module uses it."""
    for path in sorted(ROOT.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if path.name == "__main__.py" or not re.search(r"\b(?:re|regex)\.", text):
            continue
        module = importlib.import_module(
            ".".join(("hf_curriculum", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
        )
        for name, value in vars(module).items():
            for one in value.values() if isinstance(value, dict) else [value]:
                if isinstance(one, (re.Pattern, regex.Pattern)) and isinstance(one.pattern, str):
                    used = set(re.findall(rf"\b{name}\.({'|'.join(METHODS)})\b", text)) or {"search"}
                    yield from ((f"{module.__name__}:{name}", one, method) for method in sorted(used))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
                library = {"re": re, "regex": regex}.get(getattr(node.func.value, "id", None))
                if library and node.args and isinstance(getattr(node.args[0], "value", None), str):
                    yield f"{module.__name__}:{node.lineno}", library.compile(node.args[0].value), node.func.attr


def test_patterns_take_time_in_proportion_to_the_text():
    seen = list(patterns())
    assert len(seen) > 60
    assert len(UNITS) >= 60
    slow = []
    for name, pattern, method in seen:
        for unit in UNITS if name not in NOT_OF_OTHERS else ():
            for size in (1_000, 12_000):  # a pattern that is slow at the first would never end at the second
                text, start = (unit * size)[:size] + "!", time.process_time()
                if method == "sub":
                    pattern.sub("", text)
                else:
                    found = getattr(pattern, method)(text)
                    list(found if method == "finditer" else ())
                if (took := time.process_time() - start) > 0.5:
                    slow.append((name, method, unit, size, round(took, 2)))
                    break
    assert not slow


def test_texts_of_a_megabyte(tmp_path):
    for size, most in ((2_000, 2), (1_000_000, 60)):  # what is slow at the first would never end at the second
        start = time.process_time()
        for text in ("---" + "\n" * size + "x", "---\n" * (size // 4), "\n---   " * (size // 7)):
            (tmp_path / "README.md").write_text(text, newline="")
            validate_folder(tmp_path)
            split_front_matter(text)
        (tmp_path / "list.txt").write_text("a" + " " * max(size, 20_000) + "x\n")
        with pytest.raises(ValueError, match=r"Line 1 of .*list\.txt"):
            read_list(tmp_path / "list.txt")
        assert tokenize("a_" * (size // 10) + " b@c.de").endswith("b@c.de")
        assert time.process_time() - start < most


@pytest.mark.parametrize(
    ("line", "file", "label"), [("a b.jpg 3", "a b.jpg", 3), ("a.jpg -1", "a.jpg", -1), ("1 2.jpg\t4", "1 2.jpg", 4)]
)
def test_lines_of_lists(tmp_path, line, file, label):
    (tmp_path / "list.txt").write_text(f"{line}\n")
    table = read_list(tmp_path / "list.txt").splits["all"]
    assert (table["file_name"], table["label"]) == ([file], [label])


class TestPackedFiles:
    @pytest.mark.parametrize("name", ["captions.csv.gz", "captions.jsonl.gz", "captions.json.gz", "captions.tsv.gz"])
    def test_gzip(self, tmp_path, monkeypatch, name):
        monkeypatch.setattr(limits, "MOST_UNPACKED", 1 << 20)
        with gzip.open(tmp_path / name, "wb") as file:
            file.write(b'{"file_name": "a.png", "caption": "' if "json" in name else b"file_name,caption\na.png,")
            file.write(b"a" * (8 << 20))
        with pytest.raises(ValueError, match=rf"{re.escape(name)} unfold to .* over 100 times"):
            load_captioned(tmp_path / name, images=False)

    def test_honest_gzip(self, tmp_path):
        with gzip.open(tmp_path / "captions.csv.gz", "wt") as file:
            file.write("file_name,caption\n" + "".join(f"{n}.png,dog number {n}\n" for n in range(20_000)))
        assert load_captioned(tmp_path / "captions.csv.gz", images=False)["caption"][19_999] == "dog number 19999"

    @pytest.mark.parametrize("dictionary", [True, False])
    def test_parquet(self, tmp_path, dictionary):
        text = pa.DictionaryArray.from_arrays(pa.array([0] * 200, pa.int32()), pa.array(["x" * 1_000_000]))
        text = text if dictionary else text.cast(pa.string())
        options = {"use_dictionary": dictionary, "compression": "zstd", "store_schema": False}
        pq.write_table(pa.table({"caption": text}), tmp_path / "a.parquet", **options)
        with pytest.raises(ValueError, match=r"a\.parquet unfold to 20\d,"):
            load_captioned(tmp_path / "a.parquet", images=False)

    def test_compressed_arrow(self, tmp_path):
        table = pa.table({"caption": ["x" * 1_000_000] * 100})
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with (
            pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink,
            pa.ipc.new_stream(sink, table.schema, options=options) as to,
        ):
            to.write_table(table)
        with pytest.raises(ValueError, match=r"a\.arrow unfold to 100,000,"):
            load_captioned(tmp_path / "a.arrow", images=False)


class TestColumns:
    @pytest.mark.parametrize("name", ["captions.csv", "captions.jsonl"])
    def test_too_many(self, tmp_path, name):
        row = {"file_name": "a.png", "caption": "a dog", **{f"c{n}": n for n in range(limits.MOST_COLUMNS)}}
        text = json.dumps(row) if name.endswith("l") else f"{','.join(row)}\n{','.join(map(str, row.values()))}\n"
        (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match=rf"{name}.* has 25,002 columns, and at most 25,000"):
            load_captioned(tmp_path / name, images=False)

    def test_too_many_of_parquet(self, tmp_path, monkeypatch):
        monkeypatch.setattr(limits, "MOST_COLUMNS", 50)
        row = {"caption": ["a dog"], **{f"c{n}": [n] for n in range(50)}}
        pq.write_table(pa.table(row), tmp_path / "a.parquet")
        with pytest.raises(ValueError, match=r"a\.parquet has 51 columns, and at most 50 are read"):
            limits.validate_tables([tmp_path / "a.parquet"])  # before `datasets` reads it, which is what takes long

    def test_rows_with_fields_of_their_own(self, tmp_path):
        rows = [{"file_name": "a.png", "caption": "a", f"c{n}": n} for n in range(5_000)]
        (tmp_path / "captions.jsonl").write_text("\n".join(map(json.dumps, rows)))
        with pytest.raises(ValueError, match="5,000 rows have 5,002 fields together"):
            load_captioned(tmp_path / "captions.jsonl", images=False)

    def test_features_are_copied_once(self, monkeypatch):
        data, asked = Dataset.from_dict({f"c{n}": [n] for n in range(50)}), []
        features = Dataset.features
        monkeypatch.setattr(Dataset, "features", property(lambda self: asked.append(1) or features.fget(self)))
        assert list(named_files(data)) == []
        assert len(asked) == 1


class TestSecrets:
    @pytest.mark.parametrize(
        ("text", "clean"),
        [
            ("--hub_token abcdef --x", "--hub_token <token> --x"),
            ("--hub-token=abcdef", "--hub-token=<token>"),
            ("https://me:pass@host/x", "https://<token>@host/x"),
            ("s3://key:secret@bucket/x", "s3://<token>@bucket/x"),
            ("abfs://container@account/x", "abfs://container@account/x"),
            ("https://a/b?id=5&X-Amz-Signature=ab", "https://a/b?id=5&X-Amz-Signature=<token>"),
            ("{'token': 'abcdef'}", "{'token': <token>}"),
            ("pad_token='[PAD]', pass `token=`", "pad_token='[PAD]', pass `token=`"),
        ],
    )
    def test_redact(self, text, clean):
        assert redact(text) == clean

    def test_of_the_environment(self, monkeypatch):
        monkeypatch.setenv("HF_TOKEN", "open sesame")
        assert redact("it was open sesame.") == "it was <token>."

    @pytest.mark.parametrize("ending", ["/{0..1}.tar", "/0.tar", "/x", "/*.parquet"])
    @pytest.mark.parametrize("read", [load_captioned, load_conversations, find_shards, open_image, to_rgb])
    def test_of_addresses_in_errors(self, read, ending):
        with pytest.raises(Exception, match=r".") as raised:
            read(f"http://user:{'secretpw' * 10}@127.0.0.1:9{ending}?token=hf_abcdefghijkl")
        told = "".join(traceback.format_exception(raised.value)[-1:])
        assert not re.search("secretpw|abcdefgh", told)
        assert raised.value.__suppress_context__ or "secretpw" not in str(raised.value.__cause__)

    def test_of_addresses_in_a_list(self, tmp_path, caplog):
        address = f"https://user:{'secretpw' * 10}@host/x.png?token=hf_abcdefghijkl"
        (tmp_path / "list.csv").write_text(f"url,caption\n{address},A\n")
        with pytest.raises(ValueError, match=r"holds addresses \('https://<token>@host/x\.png\?token=<token>'\)"):
            load_captioned(tmp_path / "list.csv")
        left_out = LeftOut()
        left_out.add("addresses", 1, address)
        left_out.report(address, [])
        assert caplog.messages == [
            "https://<token>@host/x.png?token=<token>, left out: addresses: 1 "
            "(https://<token>@host/x.png?token=<token>, for example)."
        ]

    def test_a_repository_that_is_a_token(self, tmp_path):
        save_scored(add_scores(Dataset.from_dict({"caption": ["a dog"]}), CaptionLength()), tmp_path / "scored")
        command = ["push", str(tmp_path / "scored"), "me/hf_abcdefghijklmnop", "--dry-run"]
        told = CliRunner().invoke(app, command).output
        assert "to me/<token> (" in told
        assert "abcdefgh" not in told

    def test_commands_to_type_again(self, monkeypatch):
        monkeypatch.setattr(sys, "argv", ["x", "babylm_git", "--hub_token", "my own", "--hub_token=hf_ABCDEFGHIJ"])
        for command in (typed_again(), command_line()):
            assert "my own" not in command
            assert "hf_ABC" not in command
            assert "babylm_git --hub_token <token>" in command


def of_datasets(cause):
    """The error of `datasets`, which says no more than that there was another one."""
    error = DatasetGenerationError("An error occurred while generating the dataset")
    error.__cause__ = cause
    return error


class TestErrorsInTheShell:
    @pytest.mark.parametrize(
        ("error", "said"),
        [
            (MemoryError(), "The memory did not suffice"),
            (pa.ArrowInvalid("no Parquet"), r"A file cannot be read \(ArrowInvalid: no Parquet\)"),
            (pa.ArrowKeyError("x"), r"A file cannot be read \(ArrowKeyError"),
            (csv.Error("field larger than field limit"), r"A file cannot be read \(Error: field larger"),
            (of_datasets(pa.ArrowInvalid("no Parquet")), r"A file cannot be read \(ArrowInvalid: no Parquet\)"),
            (of_datasets(MemoryError()), "The memory did not suffice"),
            (ValueError("token='abcdef' is wrong"), "token=<token> is wrong"),
        ],
    )
    def test_a_sentence(self, error, said):
        def command() -> None:
            raise error

        app = typer.Typer()
        app.command()(plainly(command))
        found = CliRunner().invoke(app, [])
        assert found.exit_code == 1
        assert re.search(said, found.output)

    def test_ours_alone(self, tmp_path):
        first, second = (sole_writer("out", tmp_path / ".lock") for _ in range(2))
        with first, pytest.raises(RuntimeError) as caught, second:
            pass
        assert in_words(caught.value).startswith("Another process writes out (process ")
        for bug in (AssertionError("x"), TypeError("x"), KeyError("x"), RuntimeError("of a library")):
            assert in_words(bug) is None
        with pytest.raises(RuntimeError) as caught:
            _refuse()
        assert in_words(caught.value) is None  # raised by a test, not by the package


def _refuse():
    raise RuntimeError("no")


@pytest.mark.parametrize("text", ["=1+1", "+a", "-a", "@a", "\ta", "\ra", "'a", "'=a", "a", "", "a=b", "it's"])
def test_cells_are_read_back(text):
    cell = csv_cell(text)
    assert csv_text(cell) == text
    assert not cell.startswith(("=", "+", "-", "@", "\t", "\r"))
    assert csv_cell(-1.5) == -1.5


class TestLongNames:
    """Names that no file can have take no time, and little room in messages."""

    @pytest.fixture
    def folder(self, tmp_path):
        PILImage.new("RGB", (8, 8)).save(tmp_path / "0.png")
        rows = [{"file_name": "0.png", "caption": "a"}, {"file_name": "a/" * 250_000 + "0.png", "caption": "b"}]
        (tmp_path / "captions.json").write_text(json.dumps(rows))
        return tmp_path

    def test_are_refused(self, folder):
        begin = time.monotonic()
        with pytest.raises(ValueError, match="names files outside of") as raised:
            load_captioned(folder)
        assert time.monotonic() - begin < 5
        assert len(str(raised.value)) < 1000

    def test_are_left_out(self, folder, caplog):
        loaded = load_captioned(folder, allow_outside=True)
        assert loaded["caption"][:] == ["a"]
        assert loaded.info.description == "image, left out: rows with one that cannot be read: 1."
        assert max(map(len, caplog.messages)) < 2000
