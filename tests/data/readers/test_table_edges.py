"""Tables of captions at their edges: cells behind the header, rows in quotation marks, lines, what is counted."""

from __future__ import annotations

import pyarrow as pa
import pytest

from hf_curriculum.data.left_out import LeftOut
from hf_curriculum.data.readers.rows import read_content
from hf_curriculum.data.readers.tables import (
    _MOST_KEYS,
    Records,
    _has_empty_struct,
    _kind,
    read_caption_table,
    read_records,
    shared_scalars,
    table_fields,
    validate_names,
)

HEADER = "file_name,caption\n"
BEHIND = "rows with empty cells behind the header's last column"
NAMELESS = "columns without a name in the header"


def read(text, suffix=".csv"):
    """The cells of the rows, what is wrong with others, and what is counted."""
    problems, left_out = [], LeftOut()
    rows = read_records(text, suffix, problems.append, left_out)
    return [list(row.values()) for row in rows], problems, dict(left_out.counts)


@pytest.mark.parametrize(
    ("text", "rows", "counts"),
    [
        (HEADER + "a,one\nb,two\n", [["a", "one"], ["b", "two"]], {}),
        (HEADER + "a,one,\nb,two,\n", [["a", "one"], ["b", "two"]], {BEHIND: 2}),
        (HEADER + "  \na,one\n", [["a", "one"]], {}),
        (HEADER + "a,one\n,\n , \n", [["a", "one"]], {"rows of empty cells": 2}),
        ("file_name,caption,\na,one,\n", [["a", "one"]], {}),
        ("file_name,caption,,\na,one,,\nb,two,x,\n", [["a", "one"], ["b", "two"]], {NAMELESS: 2}),
        (HEADER + "a.jpg,#one\ttwo\n", [["a.jpg", "#one\ttwo"]], {}),
        ("file_name\tcaption\na.jpg\tone\nb.jpg#1\ttwo\n", [["a.jpg", "one"], ["b.jpg#1", "two"]], {}),
        ('file_name,caption,n\nq,"one\nz,y,3,w",5\n', [["q", "one\nz,y,3,w", "5"]], {}),
        ('file_name,caption\na.jpg,"one\nb, two"\n', [["a.jpg", "one\nb, two"]], {}),
        ("", [], {}),
        (" \n\n", [], {}),
    ],
)
def test_rows_and_what_is_counted(text, rows, counts):
    assert read(text) == (rows, [], counts)


@pytest.mark.parametrize(
    ("text", "rows", "problems"),
    [
        (HEADER + "a,one,\n", [], ["Line 2 has more cells than"]),
        (HEADER + "a,one,\nb,two\n", [["b", "two"]], ["Line 2 has more cells than"]),
        (HEADER + "a,one,\nb,two,x\n", [], ["Line 2 has more", "Line 3 has more"]),
        (HEADER + "a\nb,two\n", [["b", "two"]], ["Line 2 has fewer cells than"]),
        (HEADER + 'a.jpg,"one\nb.jpg,two"\nc,d\n', [["c", "d"]], ["Lines 2 to 3 are in one pair of quotation marks"]),
        ('caption,file_name\n"a dog,1.jpg\na cow",3.jpg\n', [], ["Lines 2 to 3 are in one pair of quotation marks"]),
        (HEADER + 'a,"one\n', [], ["(unexpected end of data): 'a,\"one\\n'"]),
        (
            HEADER + 'a,"' + "x" * 200_000 + "\nb,two\n",
            [["b", "two"]],
            ["(field larger than field limit (131072))"],
        ),
    ],
)
def test_rows_that_are_refused_and_those_behind_them(text, rows, problems):
    found, said, counts = read(text)
    assert (found, counts) == (rows, {})
    assert len(said) == len(problems)
    assert all(problem in sentence for problem, sentence in zip(problems, said, strict=True))


@pytest.mark.parametrize("line", [1, 2])
def test_a_header_of_which_nothing_can_be_read(line):
    with pytest.raises(ValueError, match=rf"^The header, line {line}, cannot be read: '\"file_name"):
        read("\n" * (line - 1) + '"file_name')


@pytest.mark.parametrize(
    ("cell", "kind"),
    [
        *(("a.jpg", ".jpg"), (' "A.JPG"', ".jpg"), ("x/007.jpeg", ".jpeg"), ("7", "0"), ("ab12", "a0")),
        *(("a_1-b", "a_0-a"), ("a dog 7", ""), ("dog", ""), ("", ""), ("a b.jpg", "")),
    ],
)
def test_what_cells_look_like(cell, kind):
    assert _kind(cell) == kind


def test_json_of_several_lines_that_is_no_json_lines(tmp_path):
    (tmp_path / "x.json").write_text("1 x\n2\n")
    with pytest.raises(ValueError, match=r"x\.json is not JSON, nor JSON Lines"):
        read_content(tmp_path / "x.json")
    (tmp_path / "x.json").write_text('"\\ud83d\\ude00"')
    assert read_content(tmp_path / "x.json") == "\U0001f600"


def test_rows_keep_their_lines_where_others_are_left_out(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"a": "b"}\n{"a": "\\ud800"}\n{"a": "c"}\n')
    rows = read_content(tmp_path / "x.jsonl", lambda problem: None)
    assert [rows.place(row) for row in range(len(rows))] == ["Line 1", "Line 3"]


@pytest.mark.parametrize(
    ("fields", "rows", "captions", "names"),
    [
        (["caption0", "caption1"], [["a", ""], ["", ""], ["b", "c"]], ["a", None, "b", "c"], [1, 2, 3, 3]),
        (["caption"], [["a"], [""], [None]], ["a", "", None], [1, 2, 3]),
    ],
)
def test_empty_captions_of_one_column_and_of_several(fields, rows, captions, names):
    records = [{"url": f"{number}", **dict(zip(fields, row, strict=True))} for number, row in enumerate(rows, 1)]
    table = read_caption_table(records, table_fields(records[0]), pytest.fail, LeftOut())
    assert table["caption"].to_pylist() == captions
    assert table["file_name"] == table["image_id"] == list(map(str, names))


@pytest.mark.parametrize(("name", "several"), [(["a", "b"], True), ("", False), (7, False)])
def test_a_row_of_several_images_is_said_to_be_one(name, several):
    problems = []
    read_caption_table(
        Records([{"image": name, "caption": "x"}]),
        {"image": ["image"], "caption": ["caption"], "image_id": []},
        problems.append,
        LeftOut(),
    )
    (problem,) = problems
    assert problem.startswith(f"Row 1 has the `image` {name!r}, and a file name")
    assert ("rows of several images" in problem) is several


def test_objects_of_up_to_256_keys_are_columns():
    def objects(count):
        return {f"k{number}": number for number in range(count)}

    few, many = objects(_MOST_KEYS), objects(_MOST_KEYS + 1)
    rows = [{"few": few, "many": many, "deep": [{"a": [{"b": many}]}], "mixed": 1}, {"mixed": "x"}]
    left_out = LeftOut()
    assert list(shared_scalars(rows, without=(), left_out=left_out)) == ["few"]
    why = "values of several types, or objects of many keys"
    assert left_out.counts == {f"field `many` ({why})": 1, f"field `deep` ({why})": 1, f"field `mixed` ({why})": 2}
    assert list(shared_scalars(rows, without=("few",))) == []


def test_types_with_objects_without_fields():
    empty, full = pa.struct([]), pa.struct([("a", pa.int8())])
    kinds = [empty, pa.struct([("a", pa.int8()), ("b", empty)]), pa.list_(empty), pa.list_(pa.list_(empty))]
    assert all(map(_has_empty_struct, kinds))
    assert not any(map(_has_empty_struct, [full, pa.int8(), pa.list_(pa.int8()), pa.list_(full)]))


@pytest.mark.parametrize(
    ("name", "is_content"),
    [
        *(("abc", False), ("A" * 1000, False), ("A" * 1001, True), ("A" * 1001 + ".jpg", False)),
        *(("data:image/png;base64,iV", True), ("data:x", False)),
    ],
)
def test_names_that_hold_an_image(name, is_content):
    if not is_content:
        validate_names([None, name], "x")
        return
    with pytest.raises(ValueError, match=f"x holds images as base64, '{name[:9]}"):
        validate_names([None, name], "x")


@pytest.mark.parametrize(
    ("fields", "columns", "found"),
    [
        (["pic", "words"], {"image": "pic", "caption": ["words"]}, (["pic"], ["words"], [])),
        (
            ["image", "caption"],
            {"image": "image", "caption": ["image", "caption"]},
            (["image"], ["image", "caption"], []),
        ),
        (["image", "text"], {"image_id": "key"}, None),
        (["image", "text", "key"], {"image_id": "key"}, (["image"], ["text"], ["key"])),
        (["URL", "Text", "Caption", "Sentence"], None, (["URL"], ["Caption"], [])),
        (["url", "image", "text", "caption"], None, (["image"], ["caption"], [])),
        (["text"], None, None),
        (["image"], None, None),
    ],
)
def test_which_fields_of_a_table_are_taken(fields, columns, found):
    named = found and dict(zip(("image", "caption", "image_id"), found, strict=True))
    assert table_fields(fields, columns) == named
