import re

import pytest
import yaml

from hf_curriculum.markdown import END, START, front_matter, one_line, plain, renewed, split_front_matter, table

HOSTILE = [
    "<script>alert('x')</script><img src=https://evil.example/a.png onerror=alert(1)>",
    "---\nname: [1, 2]\n---",
    "👩‍👩‍👧‍👦 with a 🐶",
    "كلب يلعب بالكرة",
    "W" * 10_240,
    "\u202eright to left \x00 \ud800 \x1b[31m\u2028\x85",
    "",
    "| a | b |\n|---|---|",
    "![x](https://evil.example/a.png) [y](javascript:alert(1)) <https://evil.example> www.evil.example",
    "```\n# heading\n$$x$$ &lt; $front ${end}",
    "<!-- hf_curriculum: end -->",
    "1. one",
    "- item",
    ": {a: b}, &anchor *alias !!python/object:os.system",
]


def test_text_stays_text():
    assert plain("a <b> | [c](d)") == r"a &lt;b&gt; \| \[c\](d)"
    assert plain("www.evil.example") == r"www\.evil\.example"
    assert plain("see https://x.y, a_b: 0.5 and -1") == r"see https\://x\.y, a\_b: 0.5 and -1"
    assert plain("---") == r"\---"
    assert plain("1. one") == r"1\. one"
    assert plain("&lt;b&gt;") == "&amp;lt;b&amp;gt;"


def test_one_line():
    assert one_line("a\nb\t\u202e c\x00") == "a b c"
    assert one_line("👩‍👩‍👧 می‌خواهم") == "👩‍👩‍👧 می‌خواهم"  # joiners stay
    assert one_line("abcdef", 4) == "abc…"
    assert one_line("\ud800x").encode() == b"x"


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_a_cell_stays_in_its_table(text):
    lines = table(("a", text), [(text, None), (1, text)]).splitlines()
    assert len(lines) == 4
    for line in lines:
        assert len(re.findall(r"(?<!\\)\|", line)) == 3
        assert "<" not in line
        assert not re.search(r"(?<!\\)[`*_\[\]$]", line)
        assert not re.search(r"(?<!\\):\S", line)
        assert "www.e" not in line
    assert all(len(line) < 700 for line in lines[2:])  # what is long is cut


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_a_header_holds_anything(text):
    content = {"license": text, text or "x": [text, {"path": text}], "number": 3}
    header = front_matter(content)
    assert [line for line in header.splitlines() if line.startswith("---")] == ["---", "---"]
    header.encode()
    # as the Hub reads it, and as we do
    found = re.match(r"^(\s*---[\r\n]+)([\S\s]*?)([\r\n]+---(\r\n|\n|$))", header + "body")
    read, body = split_front_matter(header + "body")
    assert yaml.safe_load(found[2]) == read
    assert body == "body"
    assert read["license"] == one_line(text)
    assert (read[one_line(text or "x")], read["number"]) == ([one_line(text), {"path": one_line(text)}], 3)


def test_cards_without_or_with_bad_headers():
    assert split_front_matter("# title\n") == ({}, "# title\n")
    assert split_front_matter("---\n---\n") == ({}, "---\n---\n")
    assert split_front_matter("---\n\n---\nx") == ({}, "x")
    with pytest.raises(ValueError, match="cannot be read"):
        split_front_matter("---\na: [\n---\n")
    with pytest.raises(ValueError, match="is a list, not a mapping"):
        split_front_matter("---\n- a\n---\n")


def test_what_people_wrote_stays():
    first = renewed("# Title\n\nOurs.\n", "section")
    assert first == f"# Title\n\nOurs.\n\n{START}\nsection\n{END}\n"
    assert renewed(first + "More.\n", "other") == f"# Title\n\nOurs.\n\n{START}\nother\n{END}\nMore.\n"
    assert renewed(first, "section") == first
