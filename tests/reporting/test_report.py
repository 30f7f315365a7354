import html
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from colours import contrast, mixed
from hostile import Page
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath
from PIL import Image

from hf_curriculum.reporting import report as report_module
from hf_curriculum.reporting.figures.canvas import DARK, LIGHT
from hf_curriculum.reporting.figures.growth import pool_growth
from hf_curriculum.reporting.html import TEMPLATES, cell, inline_jpeg, prose, reads_as_number
from hf_curriculum.reporting.report import CaptionGallery, CaptionLine, Gallery, Report
from hf_curriculum.reporting.run_sections import add_results

HOSTILE = [
    "<script>alert('x')</script><img src=https://evil.example/a.png onerror=alert(1)>",
    "---\nname: [1, 2]\n---",
    "👩‍👩‍👧‍👦 with a 🐶",
    "كلب يلعب بالكرة",
    "W" * 10_240,
    "\u202eright to left \x00 \ud800 \x1b[31m",
    "",
    '" onload="alert(1)',
    "$title ${style} </style></main>",
]


def picture(width=64, height=48):
    return Image.new("RGB", (width, height), "teal")


def full_report():
    pools = {"curriculum": [(0, 800, 400), (800, 2400, 800)], "control": [(0, 3200, 800)]}
    report = Report("A run", "with a subtitle")
    report.add_facts({"Examples": 2000, "Recall": ("0.61", "0.24 shuffled")})
    report.add_text("In short", "A paragraph with `code`.\n\n- one\n- **two**\n\n```\nas  it is\n```")
    report.add_table("Plan", ["phase", "rule", "pool"], [[1, "k ≤ 2", 841_907], ["all", "", None]], note="a note")
    report.add_figure("Growth", partial(pool_growth, pools), "what to see", name="pool_growth")
    report.add_image("Sheet", picture(300, 200), "pictures", name="sheet")
    report.add_gallery(Gallery("Easiest", [(picture(), "a ball", "noun_count 1")] * 3, "Look at **these**."))
    return report


def test_a_notebook_shows_what_the_page_does_with_one_image_of_each_figure():
    report = full_report()
    page, shown = Page(report.to_html()), Page(report._repr_html_())
    words = " ".join(shown.text).split()
    for text in (report.title, report.subtitle, "Recall", "0.61", "841,907", "a note", "pictures", "as  it is"):
        assert " ".join(text.split()) in " ".join(words)
    headings = [re.findall(r"<h[23][^>]*>(.*?)</h", html) for html in (report._repr_html_(), report.to_html())]
    assert headings[0] == ["A run", *headings[1]]
    assert shown.values("img", "src") == page.values("img", "src")
    assert "source" not in shown.tags


def hostile_report():
    report = Report(HOSTILE[0], HOSTILE[8], footer=HOSTILE[0]).add_facts(dict.fromkeys(HOSTILE, HOSTILE[0]))
    report.add_facts({"note": (HOSTILE[4], HOSTILE[0])})
    report.add_gallery(Gallery(HOSTILE[7], [(picture(), text, text) for text in HOSTILE], HOSTILE[0]))
    report.add_table(HOSTILE[0], HOSTILE, [HOSTILE], note=HOSTILE[0])
    report.add_image(HOSTILE[7], picture(), HOSTILE[0], name="picture")
    for text in HOSTILE:
        report.add_text(text, text).add_text(None, text, monospace=True)
    return report


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report") / "new" / "folder"
    return full_report().write(folder)


def test_write_makes_one_page_and_the_figures(written):
    assert written.name == "report.html"
    figures = {path.name: Image.open(path).size for path in (written.parent / "figures").iterdir()}
    assert figures == {"pool_growth.png": (1600, 825), "sheet.png": (300, 200)}
    assert sorted(path.name for path in written.parent.iterdir()) == ["figures", "report.html"]
    assert written.stat().st_size < 250_000


def test_page_is_balanced_and_complete(written):
    html = written.read_text("utf-8")
    page = Page(html)
    assert html.startswith("<!doctype html>")
    text = " ".join(" ".join(page.text).split())
    for expected in (
        "A run",
        "with a subtitle",
        "2,000",
        "0.24 shuffled",
        "841,907",
        "a note",
        "what to see",
        "a ball",
    ):
        assert expected in text
    assert page.tags.count("section") == 5
    targets = [value.removeprefix("#") for value in page.values("a", "href")]
    assert targets == ["content", "in-short", "plan", "growth", "sheet", "easiest"]
    assert set(targets) <= set(page.values("main", "id") + page.values("section", "id"))
    assert len(page.values("img", "alt")) == page.tags.count("img") == 5


@pytest.mark.parametrize("hostile", [False, True])
def test_nothing_leaves_the_page_and_nothing_runs(hostile, written):
    html = hostile_report().to_html() if hostile else written.read_text("utf-8")
    page = Page(html)
    assert "script" not in page.tags
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    addresses = [value for _, name, value in page.attributes if name in ("src", "href", "srcset", "action", "data")]
    assert addresses
    assert all(value.startswith(("data:", "#")) for value in addresses)
    styles = "".join(re.findall(r"<style>(.*?)</style>", html, re.DOTALL))
    assert not re.search(r"url\(|@import|expression\(|//", styles)
    policy = page.values("meta", "content")[-1]
    assert policy.startswith("default-src 'none'; img-src data:;")


def test_both_themes_and_both_widths_are_there(written):
    html = written.read_text("utf-8")
    page = Page(html)
    assert page.values("source", "media") == [
        "screen and (max-width: 640px) and (prefers-color-scheme: dark)",
        "screen and (max-width: 640px)",
        "screen and (prefers-color-scheme: dark)",
    ]
    assert len(set(page.values("source", "srcset") + page.values("img", "src")[:1])) == 4
    assert page.values("source", "width") == ["800", "800", "1600"]
    for theme in (LIGHT, DARK):
        assert f"--surface: {theme.surface};" in html
        assert f"color-scheme: {theme.name};" in html


def test_hostile_text_is_text():
    html = hostile_report().to_html()
    html.encode("utf-8")
    page = Page(html)
    text = "".join(page.text)
    assert HOSTILE[0] in text
    assert HOSTILE[8] in text
    assert {name for _, name, value in page.attributes if "evil.example" in (value or "")} == {"alt", "aria-label"}
    assert not re.search("[\x00\x1b\ud800]", html)
    longest = max(len(word) for word in text.split())
    assert longest == 10_240  # in the prose and the preformatted text, which the author wrote
    cards = re.findall(r'<p class="caption clip" dir="auto">(.*?)</p>', html, re.DOTALL)
    assert len(cards) == len(HOSTILE)
    assert max(map(len, cards)) < 450
    assert "overflow-wrap: anywhere" in html


def naive_table(title, columns, rows, align):
    """The same table put together from strings."""
    kinds = [f' class="{letter}"' if letter != "l" else "" for letter in align]

    def text(value):
        shown = escape(value[:600] + "…" * (len(value) > 600))
        return shown if len(value) <= 28 else f'<div class="clip">{shown}</div>'

    def line(tag, values):
        cells = zip(kinds, values, strict=True)
        return "".join(f"<{tag} dir=auto{kind}>{text(cell(value))}</{tag[:2]}>" for kind, value in cells)

    head = line('th scope="col"', columns)
    body = "".join(f"<tr>{line('td', row)}</tr>" for row in rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(title)}"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def naive_gallery(items):
    """The same gallery, whose images are all alike, put together from strings."""
    address = inline_jpeg(picture(), 160).uri
    shown = ""
    for caption, note in items:
        alt, whole = (escape(caption[:limit] + "…" * (len(caption) > limit)) for limit in (120, 300))
        below = f'<div class="below"><p class="note clip" dir="auto">{escape(note)}</p></div>' if note else ""
        image = f'<img src="{address}" width="64" height="48" alt="{alt}">'
        shown += f'<li><div class="thumb">{image}</div><p class="caption clip" dir="auto">{whole}</p>{below}</li>'
    return f'<ul class="gallery">{shown}</ul>'


def escape(text):
    return html.escape(re.sub("[\x00-\x08\x0b-\x1f\u202e\ud800]", "\ufffd", text), quote=True)


def content(page):
    return page.tags, page.attributes, "".join("".join(page.text).split())


def test_templates_give_what_strings_put_together_give():
    rows = [[text, 1, None] for text in HOSTILE]
    parts = Report("r").add_table(HOSTILE[7], ["a" * 30, *HOSTILE[:2]], rows, align="lrc")._sections[0].parts
    assert content(Page(parts[0])) == content(Page(naive_table(HOSTILE[7], ["a" * 30, *HOSTILE[:2]], rows, "lrc")))
    items = [(text, text[:40] if index % 2 else "") for index, text in enumerate(HOSTILE)]
    gallery = Gallery("g", [(picture(), *item) for item in items]).to_html()
    assert content(Page(gallery)) == content(Page(naive_gallery(items)))


def test_report_is_the_same_each_time(written):
    assert full_report().to_html() == written.read_text("utf-8")


def test_same_headings_get_their_own_anchors():
    report = Report("r").add_text("Übung!", "a").add_text("Übung!", "b").add_text("日本", "c").add_text("content", "d")
    assert Page(report.to_html()).values("section", "id") == ["bung", "bung-2", "section", "content-2"]


def test_content_without_heading_joins_the_section_before():
    report = Report("r").add_text(None, "first").add_text("Two", "second").add_table(None, ["a"], [[1]])
    page = Page(report.to_html())
    assert (page.values("section", "id"), page.tags.count("h2")) == (["overview", "two"], 2)


def test_a_finished_figure_is_shown_as_it_is():
    figure = Figure(figsize=(2, 1), dpi=50)
    figure.add_subplot()
    page = Page(Report("r").add_figure("One", figure, name="one").to_html())
    assert "source" not in page.tags
    assert page.values("img", "width") == ["100"]


def test_thumbnails_are_small():
    html = Gallery("g", [(picture(2000, 1000), "wide", ""), (Image.new("RGBA", (20, 30)), "small", "")]).to_html()
    page = Page(html)
    assert (page.values("img", "width"), page.values("img", "height")) == (["160", "20"], ["80", "30"])
    assert all(value.startswith("data:image/jpeg;base64,") for value in page.values("img", "src"))
    assert "note" not in html


def test_images_with_details_are_larger():
    page = Page(Gallery("g", [(picture(2000, 1000), "wide", "")], large=True).to_html())
    assert (page.values("img", "width"), page.values("ul", "class")) == (["480"], ["gallery large"])


def test_large_images_are_shrunk_on_the_page_only(tmp_path):
    report = Report("r").add_image("Big", picture(3000, 1500), name="big")
    assert Page(report.to_html()).values("img", "width") == ["1400"]
    report.write(tmp_path)
    with Image.open(tmp_path / "figures" / "big.png") as png:
        assert png.size == (3000, 1500)


def test_columns_of_numbers_go_right():
    def alignment(**options):
        report = Report("r").add_table("t", ["a", "b", "c"], [[1, "x", "0.5 %"], [None, "2", float("nan")]], **options)
        return re.findall(r"<th [^>]*?>", report.to_html())

    assert ['"r"' in tag for tag in alignment()] == [True, False, True]
    assert ['"c"' in tag for tag in alignment(align="lcl")] == [False, True, False]


def rule_of(selector):
    """The declarations of a rule of the style sheet, by name."""
    css = (Path(report_module.__file__).parent / "templates" / "report.css").read_text("utf-8")
    css = re.sub(r"/\*.*?\*/", "", css, flags=re.DOTALL).partition("@media (max-width: 640px)")[0]
    bodies = [
        body
        for selectors, body in re.findall(r"([^{}]+)\{([^{}]*)\}", css)
        if selector in selectors.strip().split(", ")
    ]
    parts = [part.partition(":") for body in bodies for part in body.split(";") if ":" in part]
    return {name.strip(): " ".join(value.split()) for name, _, value in parts}


def test_a_table_that_scrolls_keeps_its_first_column_and_shows_that_it_scrolls():
    first = rule_of("tr > :first-child")
    assert (first["position"], first["inset-inline-start"], first["background"]) == ("sticky", "0", "var(--surface)")
    assert rule_of("table")["border-collapse"] == "separate"  # collapsed borders do not move with a sticky cell
    box = rule_of(".scroll")
    assert box["overflow-x"] == "auto"
    # Shadows stay at the edges of the box; covers of the same colour as the table move with it, over them at its ends.
    layers = re.findall(
        r"linear-gradient\(to (left|right), var\(--(\w+)\).*?\) \w+ / (\d+)px 100% (\w+)", box["background"]
    )
    assert [(name, moves) for _, name, _, moves in layers] == [("surface", "local")] * 2 + [("shadow", "scroll")] * 2
    assert all(int(cover[2]) > int(shadow[2]) for cover, shadow in zip(layers[:2], layers[2:], strict=True))
    plan = rule_of("pre")
    assert (plan["overflow-x"], plan["background"]) == ("auto", box["background"])
    assert rule_of("th")["white-space"] == "normal"  # a long heading makes no wide column
    for theme in ("light", "dark"):
        assert re.search(rf"--shadow: color-mix\([^;]+; color-scheme: {theme};", Report("r").to_html())


def test_the_difference_is_visible_at_every_width():
    recall = {"recall": 0.30, "shuffled": 0.16, "difference": 0.143, "lower": 0.099, "upper": 0.187}
    run = {
        "name": "curriculum",
        "seed": 0,
        "examples": 113_280,
        "steps": 7_080,
        "seconds": 12_345.6,
        "eval_loss": 2.345,
    }
    report = Report("r")
    add_results(report, [{**run, "recall": recall}])
    html = report.to_html()
    heads = re.findall(r"<th [^>]*>(.*?)</th>", html)
    cells = re.findall(r"<td[^>]*>(.*?)</td>", html)
    assert heads[:2] == ["run", "difference [95 %]"]
    assert cells[:2] == ["curriculum", "+0.143 [+0.099, +0.187]"]
    # In DejaVu Sans, the widest of usual fonts, the two fit a telephone of 375 pixels (16 at each side of the page, 1
    # for each border, 11 and 8 around a cell), and all of them the 880 of the page's column (18 and 10 there).
    widths = [
        max(pixels(cell, 0.92), *(pixels(word, 0.8, "bold") for word in head.split()))
        for head, cell in zip(heads, cells, strict=True)
    ]
    assert sum(widths[:2]) + 11 + 3 * 8 < 375 - 2 * 16 - 2
    assert sum(widths) + 20 * len(widths) + 2 * 8 < 880 - 2


def pixels(text, rem, weight="normal"):
    """How wide a text is in DejaVu Sans."""
    return (
        TextPath((0, 0), text, size=16 * rem, prop=FontProperties(family="DejaVu Sans", weight=weight))
        .get_extents()
        .width
    )


def test_a_table_without_rows_keeps_its_head():
    page = Page(Report("r").add_table("t", ["a", "b"], []).to_html())
    assert (page.tags.count("th"), page.tags.count("td")) == (2, 0)


@pytest.mark.parametrize("count", range(1, 14))
def test_facts_fill_their_rows(count):
    html = Report("r").add_facts({str(i): i for i in range(count)}).add_text("t", "t").to_html()
    columns = int(re.search(r"--columns: (\d)", html)[1])
    assert 3 <= columns <= 6
    if count > 3:
        assert count % columns != 1


def test_errors(tmp_path):
    report = Report("r")
    with pytest.raises(ValueError, match="report is empty"):
        report.write(tmp_path)
    with pytest.raises(ValueError, match=r"Row 1 of the table 't' has 1 cells for the 2 columns \['a', 'b'\]"):
        report.add_table("t", ["a", "b"], [[1, 2], [3]])
    with pytest.raises(ValueError, match="`align` is 'lx' for 2 columns"):
        report.add_table("t", ["a", "b"], [[1, 2]], align="lx")
    with pytest.raises(ValueError, match=r"figure name '\.\./up' is no plain file name"):
        report.add_image("t", picture(), name="../up")
    report.add_image("t", picture(), name="one")
    with pytest.raises(ValueError, match="figure name 'one' is taken"):
        report.add_image("t", picture(), name="one")
    with pytest.raises(ValueError, match="gallery 'g' has no images"):
        Gallery("g", [])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (float("nan"), "–"),
        (True, "yes"),
        (2_891_030, "2,891,030"),
        (0.65112, "0.6511"),
        (np.float32(0.5), "0.5"),
        (np.int64(12_000), "12,000"),
        ("text", "text"),
    ],
)
def test_cells(value, text):
    assert cell(value) == text


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, True),
        (None, True),
        ("1,000", True),
        ("-0.5 %", True),
        ("12 s", True),
        ("2 of 3", False),
        (True, False),
        ("a", False),
    ],
)
def test_what_reads_as_a_number(value, expected):
    assert reads_as_number(value) is expected


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("one\ntwo", '<p dir="auto">one two</p>'),
        ("a\n\nb", '<p dir="auto">a</p>\n<p dir="auto">b</p>'),
        ("- a\n- **b**", '<ul><li dir="auto">a</li><li dir="auto"><strong>b</strong></li></ul>'),
        ("`**x**` 2 ** 3", '<p dir="auto"><code>**x**</code> 2 ** 3</p>'),
        ("```json\n{<}\n```", '<pre tabindex="0" dir="auto">{&lt;}</pre>'),
        ("", ""),
    ],
)
def test_prose(text, html):
    assert prose(text) == html


def test_several_captions_beside_an_image():
    lines = [CaptionLine("0.3", "easy", 1.0), CaptionLine("ours (12)", "<b>", None), CaptionLine("0.1", "x" * 400, 0)]
    report = Report("r").add_gallery(CaptionGallery("By score", [(picture(), lines), (None, [])], "Look."))
    page = report.to_html()
    assert re.findall(r"--ease: (\d+)%", page) == ["100", "0"]
    assert '<dt dir="auto">ours (12)</dt><dd dir="auto">&lt;b&gt;</dd>' in page
    assert "x" * 300 + "…" in page
    assert "x" * 301 not in page
    assert page.count("image cannot be read") == 1
    assert "--hard: " + LIGHT.series[1] in page
    Page(page)
    with pytest.raises(ValueError, match="The gallery 'none' has no images"):
        CaptionGallery("none", [])
    with pytest.raises(ValueError, match=r"line 'a' has ease=1.5.*from 0, hard, to 1, easy"):
        CaptionGallery("t", [(None, [CaptionLine("a", "b", 1.5)])])


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("page", ["report", "space"])
def test_every_text_of_a_page_can_be_read(page, theme):
    """By the colours that the page declares: whatever is a text's colour, on whatever can be behind it."""
    space = TEMPLATES.get_template("space.html").render(title="x", light=LIGHT, dark=DARK)
    style = re.search(r"<style>(.*?)</style>", full_report().to_html() if page == "report" else space, re.DOTALL)[1]
    declared = dict(zip(("light", "dark"), re.findall(r":root \{(.*?)\}", style, re.DOTALL), strict=True))[theme]
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", declared))
    share = int(re.search(r"--tint: color-mix\(in srgb, \S+ (\d+)%", declared)[1]) / 100
    behind = [colours["page"], colours["surface"], mixed(colours["accent"], share, colours["surface"])]
    names = set(re.findall(r"(?<![-\w])color: var\(--(\w+)\)", style))
    assert {"text", "muted"} <= names
    for name in names:
        assert min(contrast(colours[name], one) for one in behind) >= 4.5, name
    for name in set(re.findall(r"(?<![-\w])color: color-mix\(in oklab, var\(--(\w+)\)", style)) | {"hard"}:
        assert contrast(colours[name], colours["surface"]) >= 4.5, name  # a score's label, from easy to hard
