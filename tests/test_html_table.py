"""The table of notebooks: text stays text, and every colour is the notebook's."""

from __future__ import annotations

import pytest
from hostile import HOSTILE, NEVER, Page

from hf_curriculum.html_table import html_table


def test_a_table_written_out():
    html = html_table(["arm", "runs"], [["ours", 3], ["<b>", None]], left=["arm"], above="Runs", below=["a", "  b"])
    left, right = ('dir="auto" style="text-align: left"', 'dir="auto" style="text-align: right"')
    assert html == (
        '<div dir="auto">Runs</div>\n'
        f"<table>\n<thead><tr><th {left}>arm</th><th {right}>runs</th></tr>\n</thead>\n"
        f"<tbody><tr><td {left}>ours</td><td {right}>3</td></tr>\n"
        f"<tr><td {left}>&lt;b&gt;</td><td {right}>–</td></tr>\n</tbody>\n</table>\n"
        '<div dir="auto" style="white-space: pre-wrap">a\n  b</div>\n'
    )


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_text_stays_text(text):
    html = html_table([text], [[text]], above=text, below=[text])
    page = Page(html)
    assert set(page.tags) <= {"div", "table", "thead", "tbody", "tr", "th", "td"}
    assert {name for _, name, _ in page.attributes} <= {"dir", "style"}
    assert not set(NEVER) & set(html)
    assert "color" not in "".join(value for _, name, value in page.attributes if name == "style")


def test_a_row_that_does_not_fit():
    with pytest.raises(ValueError, match="zip"):
        html_table(["a"], [[1, 2]])
