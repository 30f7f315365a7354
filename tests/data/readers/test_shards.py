"""The pairs of one shard, value by value, and what is said of those that are not kept."""

from __future__ import annotations

import datetime
import json
import math
import os
import tarfile
from io import BytesIO
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Features, Value

from hf_curriculum import CaptionLength, score_shards
from hf_curriculum.data.left_out import LeftOut
from hf_curriculum.data.readers.shards import (
    DamagedShardError,
    ShardReader,
    _holds,
    as_texts,
    how_to_name,
    is_missing,
    json_text,
    storable,
    widest,
)
from hf_curriculum.data.readers.source_shards import expand_braces, find_shards

TALK = [{"role": "user", "content": "hello"}]


def write(path, *files):
    """An archive of (name, content); records are written as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in files:
            content = content if isinstance(content, bytes) else json.dumps(content).encode()
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, BytesIO(content))
    return path


def records(path, *found):
    return write(path, *((f"{number}.json", record) for number, record in enumerate(found)))


class TestNames:
    @pytest.mark.parametrize(
        ("pattern", "names"),
        [
            ("x", ["x"]),
            ("{9..11}.tar", ["9.tar", "10.tar", "11.tar"]),
            ("{01..3}", ["01", "02", "03"]),
            ("{98..101}", ["98", "99", "100", "101"]),
            ("{7..7}", ["7"]),
            ("a{5}b", ["a5b"]),
            ("{a..c}", ["a..c"]),
            ("{1..2..3}", ["1..2..3"]),
            ("{a,}{1..2}", ["a1", "a2", "1", "2"]),
        ],
    )
    def test_braces(self, pattern, names):
        assert expand_braces(pattern) == names

    def test_shards_of_a_folder(self, tmp_path, caplog):
        write(tmp_path / "d.tar/0.tar", ("0.txt", b"a"))
        write(tmp_path / "d.tar/in/1.tar", ("0.txt", b"a"))
        (tmp_path / "d.tar/in/notes").write_text("x")
        (tmp_path / "d.tar/.hidden").write_text("x")
        found = find_shards(tmp_path / "d.tar")
        size = (tmp_path / "d.tar/0.tar").stat().st_size
        assert [(one.name, one.stem, one.kind, one.bytes, one.is_local) for one in found] == [
            ("0.tar", "0", "tar", size, True),
            ("in/1.tar", "in/1", "tar", size, True),
        ]
        assert (
            f"{tmp_path}/d.tar, left out: files beside the archives (not read): 1 (notes, for example)." in caplog.text
        )
        caplog.clear()
        left_out = LeftOut()
        assert find_shards([tmp_path / "d.tar/in"], left_out=left_out)[0].name == "1.tar"
        assert (left_out.items(), caplog.text) == ([("files beside the archives (not read)", 1, "notes")], "")

    def test_what_is_named_by_patterns_and_beside_compressed_archives(self, tmp_path):
        for name in ("a/0.tar", "a/1.tar", "a/sub/2.tar", "[b]/3.tar", "b/4.tar", "file/5.parquet/6.tar"):
            write(tmp_path / name, ("0.txt", b"a"))
        (tmp_path / "a/z.tgz").write_bytes(b"x")
        left_out = LeftOut()
        for source, names in {
            "a": ["0.tar", "1.tar", "sub/2.tar"],
            "a/*.tar": ["0.tar", "1.tar"],
            "[ab]/?.tar": ["a/0.tar", "a/1.tar", "b/4.tar"],
            "[b]/*.tar": ["3.tar"],
            "[b]/3.tar": ["3.tar"],
            "file": ["6.tar"],
        }.items():
            assert [one.name for one in find_shards(tmp_path / source, left_out=left_out)] == names
        assert left_out.items() == [("files beside the archives (not read)", 1, "z.tgz")]
        (tmp_path / "a/link.tar").symlink_to(tmp_path / "b/4.tar")
        with pytest.raises(ValueError, match=r"outside"):
            find_shards(tmp_path / "a")

    def test_shards_of_another_file_system(self):
        memory = fsspec.filesystem("memory")
        for name in ("cc/0_stats.json", "cc/0/0.txt", "cc/1_stats.json", "cc/1.parquet", "cc/1/0.txt"):
            memory.pipe(f"/notice/{name}", b"abc")
        found = find_shards("memory://notice/cc", {"skip_instance_cache": True})
        assert [(one.name, one.stem, one.kind, one.bytes, one.is_local) for one in found] == [
            ("0", "0", "files", 3, False),
            ("1", "1", "files", 3, False),
        ]
        assert found[0].storage_options == (("skip_instance_cache", True),)
        with find_shards("memory://notice/cc/1.parquet")[0].local() as file:
            assert file.read_bytes() == b"abc"
        with pytest.raises(FileNotFoundError, match=r"notice/none/x\.tar does not exist\. It was named as a shard"):
            find_shards("memory://notice/none/x.tar")
        memory.rm("/notice", recursive=True)


class TestBatches:
    def test_captions_are_texts_and_conversations_and_the_rest_is_counted(self, tmp_path):
        values = ["a", ["b"], ["c", "d"], [], None, 7, math.nan, TALK, {"en": "x"}, " ", [1], ["e", "f", "g"]]
        path = records(tmp_path / "x.tar", *({"caption": value} for value in values))
        reader = ShardReader(path, "tar")
        batches = list(reader.batches(["caption"], 5))
        assert [len(batch["key"]) for batch in batches] == [5, 5, 2]
        found = [value for batch in batches for value in batch["caption"]]
        assert found == ["a", "b", None, None, None, None, None, TALK, None, " ", None, None]
        several = "`caption` that are lists of several texts (`load_captioned` makes a row of each)"
        assert {why: (count, one) for why, count, one in reader.left_out.items()} == {
            several: (2, "2"),
            "`caption` that are no text": (3, "5: 7"),
            "pairs without `caption`": (9, "2"),
        }
        assert [len(batch["key"]) for batch in ShardReader(path, "tar").batches([], 6)] == [6, 6]

    @pytest.mark.parametrize(
        ("files", "columns", "row", "left_out"),
        [
            ("0.png 0.txt 0.caption", {}, ("0.png", "0.txt"), [".caption"]),
            ("0.png 0.txt 0.title 0.cls", {"caption": "title"}, ("0.png", "0.title"), [".cls"]),
            ("0.png 0.jpg 0.txt", {}, ("0.jpg", "0.txt"), [".png"]),
            (
                "0.png 0.jpg 0.left.jpg 0.txt 0.text 0.cls",
                {"image": "left.jpg"},
                ("0.left.jpg", "0.txt"),
                [".text", ".cls"],
            ),
            ("0.cls 0.ocr.txt 0.left.png", {}, ("0.left.png", "0.ocr.txt"), [".cls"]),
            ("0.jpg", {}, ("0.jpg", None), []),
            ("0.txt", {}, (None, "0.txt"), []),
        ],
    )
    def test_the_files_of_a_sample_that_are_read(self, tmp_path, files, columns, row, left_out):
        reader = ShardReader(write(tmp_path / "x.tar", *((f, f.encode()) for f in files.split())), "tar", columns)
        (batch,) = reader.batches(["image", "caption"], 9)
        image = None if row[0] is None else {"bytes": row[0].encode(), "path": None}
        assert batch == {"key": ["0"], "image": [image], "caption": [row[1]]}
        lacking = [(f"pairs without `{name}`", 1, "0") for name in ("caption", "image") if batch[name] == [None]]
        unread = [(f"files `{ending}` of samples (not read)", 1, "0") for ending in left_out]
        assert reader.left_out.items() == unread + lacking

    def test_files_of_which_it_is_not_known_which_is_meant(self, tmp_path):
        names = ("0.cls", "0.a.txt", "0.b.txt", "0.left.png", "0.right.png", "1.cls")
        reader = ShardReader(write(tmp_path / "x.tar", *((name, b"x") for name in names)), "tar")
        assert [row["image"] for row in reader.samples()] == [None, None]
        assert [item for item in reader.left_out.items() if "known" in item[0]] == [
            (
                "samples of which it is not known which file is the image (columns={'image': ...} names it)",
                1,
                "0: .left.png, .right.png",
            ),
            (
                "samples of which it is not known which file is the caption (columns={'caption': ...} names it)",
                1,
                "0: .a.txt, .b.txt",
            ),
        ]
        none = ("samples none of whose files is read", 2, "0: .cls, .a.txt, .b.txt, .left.png, .right.png")
        assert none in reader.left_out.items()

    def test_records_and_texts_that_are_damaged(self, tmp_path):
        files = [
            ("0.json", b"[1]"),
            ("0.txt", b"caf\xe9"),
            ("1.json", b'{"caption": "\\uD83D", "n": 1}'),
            ("2.json", b"{"),
        ]
        reader = ShardReader(write(tmp_path / "x.tar", *files), "tar", known=("key", "image", "caption"))
        (batch,) = reader.batches(["caption"], 9)
        assert batch == {"key": ["0", "1", "2"], "caption": ["caf\ufffd", "\ufffd", None]}
        assert [item[:2] for item in reader.left_out.items()] == [
            ("texts that are not UTF-8 (what cannot be read is replaced)", 1),
            ("records that are no JSON objects", 2),
            ("texts with half of a character (replaced by \ufffd)", 1),
            ("fields `n` (not kept: none of the first pairs has one)", 1),
            ("pairs without `caption`", 1),
        ]

    def test_fields_that_are_not_known_are_counted_where_they_say_something(self, tmp_path):
        found = [{"caption": "a", "kept": 1, "late": None}, {"caption": "b", "late": 0}, {"caption": "c", "late": 2}]
        reader = ShardReader(records(tmp_path / "x.tar", *found), "tar", known=("key", "image", "caption", "kept"))
        assert [row["caption"] for row in reader.samples()] == ["a", "b", "c"]
        reason = "fields `late` (not kept: none of the first pairs has one)"
        assert reader.left_out.items() == [(reason, 2, "1")]
        pq.write_table(pa.table({"key": ["x", "y"], "late": [1, 2], "caption": ["a", "b"]}), tmp_path / "x.parquet")
        reader = ShardReader(tmp_path / "x.parquet", "parquet", known=("key", "caption"))
        assert list(reader.batches(["caption"], 9)) == [{"key": ["x", "y"], "caption": ["a", "b"]}]
        assert reader.left_out.items() == [(reason, 2, "x.parquet")]

    def test_tables_of_an_archive(self, tmp_path):
        found = [{"caption": ["a"], "f": [1]}, {"caption": 7, "f": "x"}, {"caption": TALK, "f": 2.5}]
        reader = ShardReader(records(tmp_path / "x.tar", *found), "tar")
        features = Features({name: Value("string") for name in ("key", "caption", "f")})
        tables = list(reader.tables(features, size=2))
        assert [table.num_rows for table in tables] == [2, 1]
        whole = pa.concat_tables(tables).to_pydict()
        assert whole == {"key": ["0", "1", "2"], "caption": ["a", None, json.dumps(TALK)], "f": ["[1]", "x", "2.5"]}
        assert reader.left_out.items() == [("`caption` that are no text", 1, "1: 7")]
        with pytest.raises(DamagedShardError, match=rf"{tmp_path}/x\.tar behind row 0: "):
            list(reader.tables(Features({"key": Value("string"), "f": Value("int64")})))

    def test_an_error_names_the_shard_once(self, tmp_path, monkeypatch):
        (tmp_path / "x.tar").write_bytes(b"no archive")
        with pytest.raises(DamagedShardError) as error:
            list(ShardReader(tmp_path / "x.tar", "tar").batches([], 1))
        assert str(error.value).startswith(f"{tmp_path}/x.tar cannot be read to its end (")
        for raised, said in ((KeyError("k"), "KeyError('k')"), (ValueError("v"), "v")):
            monkeypatch.setattr(ShardReader, "_batches", lambda *given, raised=raised: (_ for _ in ()).throw(raised))
            with pytest.raises(DamagedShardError) as error:
                list(ShardReader(tmp_path / "x.tar", "tar").batches([], 1))
            assert str(error.value) == f"{tmp_path}/x.tar: {said}"


class TestFolders:
    def test_their_images_are_bytes_or_paths(self, tmp_path):
        folder = tmp_path / "00000"
        (folder / "sub").mkdir(parents=True)
        (folder / "0.jpg").write_bytes(b"image")
        (folder / "0.txt").write_text("a")
        os.mkfifo(folder / "1.txt")
        reader = ShardReader(folder, "files")
        assert list(reader.batches(["image", "caption"], 1)) == [
            {"key": ["0"], "image": [{"bytes": b"image", "path": None}], "caption": ["a"]}
        ]
        assert reader.left_out.items() == [("FIFOs, sockets and devices (not opened)", 1, "1.txt")]
        named = [row["image"] for row in ShardReader(folder, "files", paths=True).samples()]
        assert named == [{"bytes": None, "path": str(folder / "0.jpg")}]
        (row,) = ShardReader(write(tmp_path / "x.tar", ("0.jpg", b"image")), "tar", paths=True).samples()
        assert row["image"] == {"bytes": b"image", "path": None}

    def test_which_columns_there_are_is_said_without_reading_an_image(self, tmp_path, monkeypatch):
        (tmp_path / "d").mkdir()
        for name, content in {"0.jpg": "x", "0.json": '{"n": 1, "none": null}', "0.txt": "a"}.items():
            (tmp_path / "d" / name).write_text(content)
        read, real = [], Path.read_bytes
        monkeypatch.setattr(Path, "read_bytes", lambda self: read.append(self.name) or real(self))
        features, count = ShardReader(tmp_path / "d", "files").first_features()
        assert (sorted(features), count) == (["caption", "image", "key", "n"], 1)
        assert sorted(read) == ["0.json", "0.txt"]

    def test_digests_are_of_names_and_content(self, tmp_path):
        digests = set()
        for name, content in (("0.txt", "a"), ("1.txt", "a"), ("0.txt", "b"), ("0.txt", "a")):
            folder = tmp_path / f"{len(digests)} {name}" / content
            folder.mkdir(parents=True)
            (folder / name).write_text(content)
            (folder / "sub").mkdir()
            digests.add(ShardReader(folder, "files").digest)
        assert [len(digests), {len(one) for one in digests}] == [3, {32}]
        one, two = (write(tmp_path / f"{name}.tar", ("0.txt", b"a")) for name in "ab")
        assert ShardReader(one, "tar").digest == ShardReader(two, "tar").digest


class TestParquet:
    def test_keys_are_numbers_where_there_are_none(self, tmp_path):
        pq.write_table(pa.table({"text": [str(row) for row in range(40)]}), tmp_path / "x.parquet")
        reader = ShardReader(tmp_path / "x.parquet", "parquet")
        batches = list(reader.batches(["caption", "none"], 16))
        assert [batch["key"] for batch in batches] == [list(map(str, range(n, min(n + 16, 40)))) for n in (0, 16, 32)]
        assert [batch["none"] for batch in batches] == [[None] * 16, [None] * 16, [None] * 8]
        assert list(reader.taken) == ["text"]
        tables = list(reader.tables(reader.features(), size=2))
        assert [table.num_rows for table in tables] == [32, 8]
        whole = pa.concat_tables(tables)
        assert whole["key"].to_pylist() == whole["caption"].to_pylist() == [str(row) for row in range(40)]

    @pytest.mark.parametrize("order", [["bytes", "path"], ["path", "bytes"]])
    def test_images_are_bytes_beside_their_names(self, tmp_path, order):
        values = {"bytes": [b"x", None, None, b"y"], "path": ["a", "b", None, None]}
        struct = pa.StructArray.from_arrays([pa.array(values[name]) for name in order], order)
        reader = ShardReader(tmp_path / "x.parquet", "parquet")
        assert reader._embedded(struct).to_pylist() == [
            {"bytes": b"x", "path": "a"},
            None,
            {"bytes": None, "path": None},
            {"bytes": b"y", "path": None},
        ]
        assert reader.left_out.items() == [
            ("images that are names of files (not opened)", 1, struct[1].as_py()),
        ]

    @pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
    def test_columns_of_names_hold_no_images(self, tmp_path, kind):
        reader = ShardReader(tmp_path / "x.parquet", "parquet")
        with pytest.raises(ValueError, match=r"2 rows name images in place of holding their bytes, such as 'a\.jpg'"):
            reader._embedded(pa.array(["a.jpg", None, "b.jpg"], kind))
        assert reader._embedded(pa.array([None, None], kind)).to_pylist() == [None, None]
        assert reader._embedded(pa.array([b"x", None])).to_pylist() == [{"bytes": b"x", "path": None}, None]
        assert reader.left_out.items() == []

    def test_columns_that_a_caption_is_taken_of(self, tmp_path):
        pq.write_table(pa.table({"text": ["a"], "n": [1], "jpg": [b"x"]}), tmp_path / "x.parquet")
        for named, names in (
            ((), ["key", "image", "caption", "n"]),
            (("text",), ["key", "image", "caption", "text", "n"]),
        ):
            reader = ShardReader(tmp_path / "x.parquet", "parquet", named=named)
            assert sorted(reader.features()) == sorted(names)
        with pytest.raises(ValueError, match=r"`m` is not in the data.* read of x\.parquet\. Name what is there\."):
            reader.features(["key", "n", "m"])
        assert list(reader.features(["n", "key"])) == ["key", "n"]


class TestValues:
    def test_values_of_one_type_are_taken_at_once(self, tmp_path, monkeypatch):
        reader = ShardReader(tmp_path / "x.tar", "tar")
        monkeypatch.delattr(ShardReader, "fitted")
        for kind, values in ((pa.int64(), [1, None]), (pa.float64(), [1.5, 2.0]), (pa.string(), ["a", None])):
            assert reader._column(pa.field("f", kind), values).to_pylist() == values

    @pytest.mark.parametrize(
        ("kind", "values", "found", "reasons"),
        [
            (pa.int64(), [1, 2.0, 2.5, None], [1, 2, None, None], [("values of `f` that are no int64", 1, "2.5")]),
            (pa.int64(), ["a", None], [None, None], [("values of `f` that are no int64", 1, "'a'")]),
            (pa.int64(), ["a", 2.5, 3], [None, None, 3], [("values of `f` that are no int64", 2, "'a'")]),
            (pa.string(), ["a", 1, None, [1]], ["a", "1", None, "[1]"], []),
            (
                pa.struct([("a", pa.int64())]),
                [{"a": 1}, {"a": 2, "b": 3}, 7],
                [{"a": 1}, {"a": 2}, None],
                [
                    ("values of `f` with fields or values that are not kept", 1, "{'a': 2, 'b': 3}"),
                    ("values of `f` that are no struct<a: int64>", 1, "7"),
                ],
            ),
        ],
    )
    def test_values_of_another_type_are_counted(self, tmp_path, kind, values, found, reasons):
        reader = ShardReader(tmp_path / "x.tar", "tar")
        assert reader._column(pa.field("f", kind), values).to_pylist() == found
        assert reader.left_out.items() == reasons

    @pytest.mark.parametrize("values", [["a", "b"], ["a", None, 2.5]])
    def test_a_column_of_which_no_value_is_kept_is_an_error(self, tmp_path, values):
        reader = ShardReader(tmp_path / "x.tar", "tar")
        with pytest.raises((pa.ArrowException, TypeError)):
            reader._column(pa.field("f", pa.int64()), values)
        assert reader.left_out.items() == []

    @pytest.mark.parametrize(
        ("fit", "value", "holds"),
        [
            (1, 1.0, True),
            (1, 1.5, False),
            (1.5, 1.5, True),
            (1.0, 1, True),
            (None, None, True),
            (None, 1, False),
            ("1", 1, True),
            ("2.5", 2.5, True),
            ({"a": 1, "b": None}, {"a": 1}, True),
            ({"a": 1}, {"a": 1, "b": 2}, False),
            ({"a": 1}, {"a": 1, "b": None}, True),
            ({"a": [1]}, {"a": [1.5]}, False),
            ([1, 2], [1, 2], True),
            ([1], [1, 2], False),
            ([1, None], [1, 2], False),
            ([], {}, True),
            ({}, [1], True),
        ],
    )
    def test_what_is_held_of_a_value(self, fit, value, holds):
        assert _holds(fit, value) == holds

    def test_texts_of_json(self):
        values = ["é", {"k": "é"}, [1, None], {"day": datetime.date(2020, 1, 2)}]
        assert list(map(json_text, values)) == ["é", '{"k": "é"}', "[1, null]", '{"day": "2020-01-02"}']

    @pytest.mark.parametrize(
        ("value", "texts", "missing"),
        [
            (["a", "b"], ["a", "b"], False),
            (("a",), ["a"], False),
            ([], None, True),
            ([1, 2], None, False),
            (["a", 1], None, False),
            ({"en": "a"}, None, False),
            (7, None, False),
            (1.5, None, False),
            (math.nan, None, True),
            (None, None, True),
            (TALK, TALK, False),
        ],
    )
    def test_lists_of_texts_and_what_stands_for_none(self, value, texts, missing):
        assert (as_texts(value), is_missing(value)) == (texts, missing)

    def test_texts_that_can_be_stored(self):
        assert [storable("a"), storable("é"), storable("\udce9")] == ["a", "é", "\\xe9"]
        assert storable("a\ud83d é\U0001f600", "replace") == "a\ufffd é\U0001f600"

    def test_the_type_that_holds_two(self):
        whole, real, text = Value("int64"), Value("float64"), Value("string")
        assert [widest(*pair) for pair in ((whole, whole), (whole, real), (real, text), ([text], text))] == [
            whole,
            real,
            text,
            text,
        ]

    @pytest.mark.parametrize(
        ("fields", "endings", "said", "choice"),
        [
            ({"n": "int64", "titel": "string", "headline": "string"}, [], "['n', 'titel', 'headline']", "titel"),
            ({"n": "int64", "url": "string", "uid": "string"}, ["title", "cls"], "['n', 'url', 'uid']", "title"),
            ({"n": "int64", "url": "string", "capture": "string"}, ["x"], "['n', 'url', 'capture']", "capture"),
            ({"n": "int64", "url": "string"}, [], "['n', 'url']", "n"),
        ],
    )
    def test_what_may_be_named_as_a_caption(self, fields, endings, said, choice):
        found = Features({name: Value(kind) for name, kind in {**fields, "key": "string", "shard": "string"}.items()})
        left_out = LeftOut()
        for ending in endings:
            left_out.add(f"files `.{ending}` of samples (not read)", 2, "0")
        assert how_to_name("caption", found, left_out, ["shard"]) == (
            f"There are the fields {said} and the files {endings}. Name one of them: "
            f"columns={{'caption': '{choice}'}} (hf-curriculum score: --column caption={choice})."
        )
        assert how_to_name("caption", {"key": Value("string")}, LeftOut()) == "There is no other field or file."


def test_names_in_archives_reach_no_terminal_as_they_are(tmp_path, caplog):
    for number, name in enumerate(("k\x1b[31m\u202e.txt", "k\nINFO all is well.txt")):
        member = tarfile.TarInfo(name)
        member.size = 1
        with tarfile.open(tmp_path / f"{number}.tar", "w", format=tarfile.PAX_FORMAT) as archive:
            archive.addfile(member, BytesIO(b"\xff"))
        status = score_shards(tmp_path / f"{number}.tar", CaptionLength(), tmp_path / f"out{number}")
        for text in (status.describe(), *caplog.messages):
            assert not set(text) & set("\x1b\u202e")  # they are shown, as Python would
            assert "INFO" not in [line[:4] for line in text.split("\n")]
        assert status.describe().endswith("for example")
