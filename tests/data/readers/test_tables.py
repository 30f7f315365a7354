"""Tables of captions: rows are those that strict readers read, and what cannot be read is named."""

from __future__ import annotations

import base64
import io
import json

import datasets
import pandas as pd
import PIL.Image
import pytest
from datasets import Dataset, load_from_disk

from hf_curriculum import CaptionLength, add_scores, load_captioned, save_scored
from hf_curriculum.config import parse_json
from hf_curriculum.data.captions import drop_empty_captions, hold_out
from hf_curriculum.data.left_out import LeftOut, left_out_of
from hf_curriculum.data.readers.rows import read_content, read_rows
from hf_curriculum.data.readers.tables import shared_scalars
from hf_curriculum.data.text import load_text

HEADER = "file_name,caption\n"
MANY = [f"{row}.jpg,a dog {row}\n" for row in range(40)]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def load(tmp_path):
    """Writes a file and loads it without images: file names and captions."""

    def write_and_load(name, content, **options):
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        rows = load_captioned(tmp_path / name, images=False, **options)
        names = rows["file_name"][:] if "file_name" in rows.column_names else [None] * len(rows)
        return list(zip(names, rows["caption"][:], strict=True))

    return write_and_load


FRAME = pd.DataFrame(
    {
        "file_name": ["a.jpg", "b, c.jpg", 'd"e.jpg', "f.jpg", "g.jpg"],
        "caption": ['"Hello" said the man', "two\nlines, of text", 'A "cat" .', " spaced; \t", "Wölfe 犬\u2028 NA"],
    }
)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("quoting", [0, 1])
@pytest.mark.parametrize(("name", "separator"), [("x.csv", ","), ("x.csv", ";"), ("x.tsv", "\t"), ("x.txt", "|")])
def test_what_pandas_writes_is_read_as_pandas_reads_it(load, name, separator, quoting, ends, encoding):
    text = FRAME.to_csv(sep=separator, index=False, quoting=quoting, lineterminator=ends)
    back = pd.read_csv(io.StringIO(text, newline=""), sep=separator, keep_default_na=False)
    assert load(name, text.encode(encoding)) == list(back.itertuples(index=False, name=None))
    assert list(back["caption"]) == list(FRAME["caption"])


@pytest.mark.parametrize(
    ("name", "text", "captions"),
    [
        ("x.csv", "file_name,caption\ra.jpg,one\rb.jpg,two\r", ["one", "two"]),
        ("x.csv", "sep=;\nfile_name;caption\na.jpg;one, two\n", ["one, two"]),
        ("x.csv", '"sep=\t"\r\nfile_name\tcaption\r\na.jpg\tone;\r\n', ["one;"]),
        ("x.csv", "\n\nfile_name,caption\n\na.jpg,one\n\n", ["one"]),
        ("x.csv", "file_name,caption\na.jpg, one\n", [" one"]),
        ("x.csv", 'file_name, caption\na.jpg, "one, two"\n', ["one, two"]),
        ("x.csv", '"file_name","caption"\n"a.jpg","one"\n', ["one"]),
        ("x.csv", 'file_name,caption\na.jpg,"see b.jpg, and\nc.jpg"\n', ["see b.jpg, and\nc.jpg"]),
        ("x.csv", 'image_name| comment_number| comment\na.jpg| 0| "Hi" he said\n', ['"Hi" he said']),
        (
            "x.jsonl",
            '{"file_name": "a.jpg", "caption": "one"}\r{"file_name": "b.jpg", "caption": "two"}',
            ["one", "two"],
        ),
        ("x.token.txt", "a.jpg#0\tone\ra.jpg#1\ttwo\r", ["one", "two"]),
        ("x.tsv", "filepath\ttitle\na.jpg\tone\n", ["one"]),
        ("x.csv", "file_name,caption\na.jpg,one,\nb.jpg,two,\n", ["one", "two"]),
        ("x.json", '{"file_name": "a.jpg", "caption": "one"}', ["one"]),
        ("x.jsonl", '{"images": ["a.jpg"], "text": "one"}', ["one"]),
        ("x.jsonl", '{"file_name": "a.jpg", "caption": NaN}\n{"file_name": "b.jpg", "caption": "two"}', [None, "two"]),
        ("x.jsonl", json.dumps({"file_name": "a.jpg", "caption": "\U0001f600 x"}), ["\U0001f600 x"]),
    ],
)
def test_captions_that_are_read(load, name, text, captions):
    assert [caption for _, caption in load(name, text)] == captions


FEWER = r"Line 2 has fewer cells than the header \['file_name', 'caption'\].*\['a.jpg'\]"
OPEN = "a quotation mark opens a cell and does not close it at its end"
PAIR = "are in one pair of quotation marks, and look like rows"
SURROGATE = '{"file_name": "a.jpg", "caption": "x \\ud83d"}\n{"file_name": "b.jpg", "caption": "two"}\n'


@pytest.mark.parametrize(
    ("name", "text", "match", "left"),
    [
        ("x.csv", HEADER + "".join([*MANY[:5], '5.jpg,"a dog 5\n', *MANY[6:]]), f"In line 7 {OPEN}", 39),
        (
            "x.csv",
            HEADER + "".join([*MANY[:5], '5.jpg,"a dog 5\n', *MANY[6:9], '9.jpg,a dog 9"\n', *MANY[10:]]),
            rf"Lines 7 to 11 {PAIR}: '5\.jpg,\"a dog 5.*take the line breaks out.*quoting=3",
            35,
        ),
        (
            "x.csv",
            'caption,file_name\n"a dog,1.jpg\na cat,2.jpg\na cow",3.jpg\nfour,4.jpg\n',
            f"Lines 2 to 4 {PAIR}",
            1,
        ),
        ("x.csv", HEADER + '0.jpg,"like 1.jpg,\n2.jpg, but red"\n1.jpg,B\n', f"Lines 2 to 3 {PAIR}", 1),
        (
            "x.csv",
            HEADER + "a.jpg," + "x" * 140_000 + "\nb.jpg,two\n",
            "Line 2 has a cell of more than 131,072 char",
            1,
        ),
        ("x.csv", "caption;file_name;lang\na dog;a;b.jpg;\ntwo;b.jpg;x\n", "Line 2 has more cells than the header", 1),
        ("x.csv", HEADER + 'a.jpg,"Hello" said the man\nb.jpg,two\n', f"In line 2 {OPEN}.*quoting=3", 1),
        ("x.tsv", 'file_name\tcaption\na.jpg\t"Hello" he said\nb.jpg\ttwo\n', f"In line 2 {OPEN}", 1),
        ("x.csv", HEADER + 'a.jpg,"He said \\"Hi\\""\nb.jpg,two\n', f"In line 2 {OPEN}", 1),
        (
            "x.csv",
            HEADER + 'a.jpg,"' + "x" * 200_000 + "\nb.jpg,two\n",
            rf"In line 2 {OPEN} .field larger than field limit",
            1,
        ),
        ("x.csv", HEADER + "a.jpg\nb.jpg,two\n", FEWER, 1),
        ("x.csv", HEADER + "a.jpg,one,more\nb.jpg,two\n", "Line 2 has more cells", 1),
        ("x.csv", HEADER + ",one\nb.jpg,two\n", "Line 2 has the `file_name` ''", 1),
        (
            "x.token.txt",
            "Caption,Image\na.jpg#0\tone\nb.jpg#0\ttwo\n",
            r"Line 1 is not of the form .*'Caption,Image'",
            2,
        ),
        ("x.jsonl", '{"file_name": "a.jpg", "caption": "one"}\n{"file_name": "b', "Line 2 is not JSON", 1),
        ("x.jsonl", SURROGATE, "Line 1 holds half a character, a lone surrogate", 1),
        ("x.json", f"[{SURROGATE.strip().replace(chr(10), ',')}]", "Row 1 holds half a character", 1),
        (
            "x.jsonl",
            '{"file_name": "a.jpg", "caption": "x", "caption": "y"}\n{"file_name": "b.jpg", "caption": "z"}',
            "Line 1 is not clear: The key 'caption' stands twice in one object",
            1,
        ),
        (
            "x.jsonl",
            '{"images": ["a.jpg", "b.jpg"], "text": "x"}\n{"images": ["b.jpg"], "text": "y"}',
            "Line 1 has",
            1,
        ),
        (
            "x.jsonl",
            '{"file_name": "a.jpg", "text": 3}\n{"file_name": "b.jpg", "text": "y"}',
            "Line 1 has the caption 3",
            1,
        ),
        ("x.jsonl", '[1]\n{"file_name": "b.jpg", "text": "y"}', r"Line 1 is \[1\], and an object", 1),
    ],
)
def test_a_row_that_cannot_be_read_is_named_or_left_out(load, tmp_path, name, text, match, left, caplog):
    with pytest.raises(ValueError, match=rf"{name.replace('.', '[.]')}: {match}.*bad_rows='drop'") as raised:
        load(name, text)
    assert str(raised.value).count(str(tmp_path)) == 1
    rows = load(name, text, bad_rows="drop")
    assert len(rows) == left
    assert rows == [row for row in rows if row[0] and "\n" not in row[1]]
    assert "left out: rows that cannot be read: 1 (" in caplog.text


def test_no_row_is_made_of_the_inside_of_a_cell(load, caplog):
    text = HEADER + '0.jpg,"like ""1.jpg,\n2.jpg, but "red" one"\n1.jpg,a 12" pizza\n3.jpg,"C"\n'
    assert load("x.csv", text, bad_rows="drop") == [("1.jpg", 'a 12" pizza'), ("3.jpg", "C")]
    assert "rows that cannot be read: 2 (In line 2" in caplog.text
    with pytest.raises(ValueError, match=f"In line 2 {OPEN}"):
        load("x.csv", text)


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("x.csv", "file_name,caption,caption\na.jpg,x,y\n", r"x\.csv: The header has \['caption'\] twice"),
        ("x.csv", "a.jpg,A dog runs.\nb.jpg,A cat.\n", "The first line is no header, but a row. Write the names"),
        ("x.csv", '"file_name,caption\na.jpg,x\n', "The header, line 1, cannot be read|In line 1 a quotation mark"),
        (
            "x.csv",
            HEADER.encode() + b"a.jpg,one\nb.jpg,W\xf6lfe\n",
            r"is not UTF-8: line 3 .*'b\.jpg,Wölfe' in cp1252",
        ),
        ("x.csv", (HEADER + "a.jpg,犬が走る\n").encode("cp932"), r"line 2 .*'a\.jpg,犬が走る' in cp932.*iconv -f cp"),
        ("x.csv", HEADER.encode() + b"a.jpg,\x81\xff\n", "and would be no text in usual encodings"),
        (
            "x.csv",
            HEADER.encode("utf-16-le"),
            "is not UTF-8: it holds zero bytes near its beginning, as UTF-16",
        ),
        ("x.csv", HEADER + "a.jpg,one\n" * 9 + "b.jpg,a\0b\n", "Line 11 holds a zero byte"),
        (
            "x.csv",
            b"\xff\xfe" + HEADER.encode("utf-16-le") + b"\x00",
            "has the byte-order mark of utf-16 and cannot be read",
        ),
        ("x.csv", HEADER.encode() + b"a.jpg,\xe2\x82", r"is not UTF-8: line 2"),
        (
            "x.json",
            '[{"file_name": "a.jpg", "caption": "x", "caption": "y"}]',
            r"x\.json: The key 'caption' stands twice",
        ),
        ("x.json", '"x \\ud83d"', "holds half a character"),
        ("x.csv", HEADER, r"x\.csv has the header \['file_name', 'caption'\] and no row that can be read"),
        ("x.json", '{"a": {"b": 1}}', r"Its object has the fields \['a'\]"),
        ("x.json", '{"info": "x", "version": "1"}', r"Its object has the fields \['info', 'version'\]"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_whatever_bad_rows_says(load, name, text, match):
    for bad_rows in ("error", "drop"):
        with pytest.raises(ValueError, match=match):
            load(name, text, bad_rows=bad_rows)


def test_bad_rows_are_an_error_or_dropped(tmp_path):
    with pytest.raises(ValueError, match=r"`bad_rows='skip'` was given.*\('drop'\)"):
        load_captioned(tmp_path, bad_rows="skip")


def test_captions_without_file_names_are_read_without_images(tmp_path):
    lines, results = tmp_path / "x.jsonl", tmp_path / "x.json"
    lines.write_text('{"caption": "one"}\n{"caption": "two"}\n')
    results.write_text(json.dumps([{"image_id": 9, "caption": "one"}, {"image_id": 8, "caption": "two"}]))
    assert load_captioned(lines, images=False)[:] == {"caption": ["one", "two"]}
    assert load_captioned(results, images=False)[:] == {"caption": ["one", "two"], "image_id": ["9", "8"]}
    for file in (lines, results):
        with pytest.raises(ValueError, match=r"No field names the image's file.*images=False .* captions alone"):
            load_captioned(file)
    results.write_text(json.dumps([{"image_id": 9, "caption": "one"}, {"caption": "two"}]))
    with pytest.raises(ValueError, match="Row 2 has no `image_id`, which says whose caption it is"):
        load_captioned(results, images=False)


def encoded(kind):
    content = io.BytesIO()
    PIL.Image.new("RGB", (3, 2)).save(content, kind)
    return base64.b64encode(content.getvalue()).decode()


@pytest.mark.parametrize(
    "name",
    [
        *("data:image/png;base64,iVBORw0KGgo=", "iVBORw0KGgo" + "A" * 2000),
        *map(encoded, ("PNG", "JPEG", "GIF", "WEBP", "TIFF")),
    ],
)
def test_images_as_base64_are_refused_in_words(tmp_path, name):
    (tmp_path / "x.jsonl").write_text(json.dumps({"image": name, "caption": "x"}))
    for source in (tmp_path / "x.jsonl", Dataset.from_dict({"image": [name], "caption": ["x"]})):
        with pytest.raises(ValueError, match=r"holds images as base64, .*b64decode"):
            load_captioned(source)


def test_further_fields_are_those_that_datasets_reads_and_others_are_named():
    rows = [
        {"null": 1, "late": None, "int": 1, "mixed": 1, "list": ["a"], "object": {"k": 1}, "huge": 2**70, "yes": True},
        {
            "null": None,
            "int": 2.5,
            "mixed": "x",
            "list": [],
            "object": {"j": 2.5},
            "late": "y",
            "yes": None,
            "none": None,
        },
    ]
    rows[0] |= {"deep": [{"a": [1]}], "empty": {}, "table": {f"k{number}": number for number in range(300)}}
    rows[1] |= {"deep": None}
    left_out = LeftOut()
    found = {
        name: column.to_pylist() for name, column in shared_scalars(rows, without=["k"], left_out=left_out).items()
    }
    same = ["null", "late", "int", "list", "object", "yes", "deep"]
    theirs = Dataset.from_list([{name: row.get(name) for name in same} for row in rows])
    assert found == {name: theirs[name][:] for name in ("null", "int", "list", "object", "yes", "deep", "late")} | {
        "late": [None, "y"]
    }
    assert left_out.counts == {
        "field `mixed` (values of several types, or objects of many keys)": 2,
        "field `huge` (numbers of more than 64 bits)": 1,
        "field `empty` (objects without fields)": 1,
        "field `table` (values of several types, or objects of many keys)": 1,
        "field `none` (no value in any row)": 1,
    }


def test_what_is_left_out_stays_with_the_data(tmp_path, caplog):
    records = [{"file_name": f"{n}.jpg", "captions": ["a dog", ""], "m": [1, "x"][n % 2]} for n in range(4)]
    records[0]["image"] = "own"
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    data = load_captioned(tmp_path / "x.jsonl", images=False)
    text = left_out_of(data)
    assert text.startswith(f"{tmp_path / 'x.jsonl'}, left out: ")
    assert "field `image` (the name of a column of ours): 2" in text
    assert "field `m` (values of several types, or objects of many keys): 8 (1, for example)." in text
    assert caplog.text.count("left out: ") == 1
    scored = hold_out(drop_empty_captions(add_scores(data, CaptionLength())), 0.5)
    save_scored(scored, tmp_path / "scored")
    assert left_out_of(load_from_disk(str(tmp_path / "scored"))["train"].select([0]).shuffle(seed=0)) == text
    assert left_out_of(load_captioned(Dataset.from_dict({"caption": ["x"]}), images=False)) == ""


def test_columns_and_rows_without_a_name_or_a_cell_are_counted(load, caplog):
    assert load("x.csv", ",file_name,caption,\n0,a.jpg,one,\n,,,\n") == [("a.jpg", "one")]
    assert "rows of empty cells: 1 (line 3, for example); columns without a name in the header: 2" in caplog.text


def test_rows_of_a_file_are_read_as_the_kind_that_is_asked_for_says(tmp_path):
    (tmp_path / "x.json").write_text("a,\n1,2\n")
    counted = LeftOut()
    assert list(read_rows(tmp_path / "x.json", counted, ".csv")) == [{"a": "1"}]
    assert dict(counted.counts) == {"columns without a name in the header": 1}


def test_lines_are_counted_on_where_one_with_half_a_character_is_left_out(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"a": "\\ud800"}\n\n{"a": "b"}\n')
    problems = []
    rows = read_content(tmp_path / "x.jsonl", problems.append)
    assert (list(rows), rows.place(0)) == ([{"a": "b"}], "Line 3")
    assert problems == ["Line 1 holds half a character, a lone surrogate: {'a': '\\ud800'}."]
    (tmp_path / "x.json").write_text('{"annotations": [{"a": "\\ud800"}, {"a": "b"}], "info": {"a": "b"}}')
    rows = read_content(tmp_path / "x.json", problems.append)
    assert rows == {"annotations": [{"a": "b"}], "info": {"a": "b"}}
    assert problems[1:] == ["Row 1 holds half a character, a lone surrogate: {'a': '\\ud800'}."]


def test_a_key_that_stands_twice_is_an_error_at_any_depth():
    for text in ('{"a": 1, "a": 1}', '[{"b": {"a": 1, "a": 2}}]', b'{"a": 1, "a": 1}'):
        with pytest.raises(json.JSONDecodeError, match=r"^The key 'a' stands twice in one object"):
            parse_json(text)
    assert parse_json(b'\xef\xbb\xbf{"a": "\xc3\xa9"}'.removeprefix(b"\xef\xbb\xbf")) == {"a": "é"}


@pytest.mark.parametrize(
    ("content", "lines"),
    [("one\rtwo\r", ["one", "two"]), ("\ufeffone\r\ntwo", ["one", "two"]), ("Wölfe\n".encode("utf-16"), ["Wölfe"])],
)
def test_lines_of_text_whatever_their_ends_and_encoding(tmp_path, content, lines):
    (tmp_path / "x.train").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert load_text(tmp_path / "x.train")["caption"][:] == lines
