"""A Space in a browser: what it shows, while thresholds move, is what the library counts."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from browser import browser, served, set_screen
from datasets import Dataset
from PIL import Image
from typed_commands import done

from hf_curriculum import Phases, curriculum_from, make_plan, save_scored
from hf_curriculum.hub.space import write_space
from hf_curriculum.provenance import ScoreProvenance, attach_provenance

HOSTILE = "</script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"
ROWS = 120
RANDOM = np.random.default_rng(0)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data():
    """Rows with images and hostile captions; two scores, one of which some rows lack and whose high end is easy."""
    fit = RANDOM.normal(size=ROWS).astype(np.float32)
    fit[::9] = np.nan
    columns = {
        "image": [Image.new("RGB", (40, 30), (2 * row, 80, 80)) for row in range(ROWS)],
        "caption": [f"{row} {HOSTILE}" for row in range(ROWS)],
        "image_id": [str(row) for row in range(ROWS)],
        "nouns": RANDOM.poisson(4, ROWS).astype(np.float32),
        f"fit {HOSTILE}": fit,
    }
    made = [ScoreProvenance("nouns", "Given"), ScoreProvenance(f"fit {HOSTILE}", "Given", easy="high")]
    return attach_provenance(Dataset.from_dict(columns), {one.column: one for one in made})


@pytest.fixture(scope="module")
def address(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("space")
    write_space(data, folder, title="A Space")
    with served(folder) as found:
        yield found


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture
def page(opened, address):
    """The page, loaded anew; no error stands in the console when the test is done."""
    set_screen(opened, 1200)
    opened.get(f"{address}/index.html")
    opened.implicitly_wait(10)
    opened.find_element("css selector", "#counts td")
    yield opened
    assert [line for line in opened.get_log("browser") if line["level"] == "SEVERE"] == []
    assert opened.title == "A Space"


def shown(page):
    """Pool and new examples of each phase, as the table says."""
    rows = page.find_elements("css selector", "#counts tr")
    cells = [[cell.text for cell in row.find_elements("tag name", "td")] for row in rows]
    return [tuple(int(text.replace(",", "")) for text in row[:2]) for row in cells]


def planned(rule, data, column):
    plan = make_plan(rule, data, score_column=column, global_batch_size=1)
    ends = [stage.slices[0][1] for stage in plan.stages]
    return list(zip(ends, np.diff(ends, prepend=0).tolist(), strict=True))


def choose(page, name, text):
    from selenium.webdriver.support.ui import Select

    Select(page.find_element("id", name)).select_by_visible_text(text)


def printed(page):
    return json.loads(page.find_element("id", "curriculum").text)


def test_it_begins_without_an_empty_phase(page, data):
    four, found = planned(Phases(4, cut="value"), data, "nouns"), shown(page)
    assert (0 in [new for _, new in four]) == (len(found) < 4)
    assert 0 not in [new for _, new in found]


def test_it_begins_where_phases_cuts(page, data):
    for column in ("nouns", f"fit {HOSTILE}"):
        choose(page, "score", column)
        for many in range(2, 7):
            choose(page, "phases", str(many))
            for cut, label in (("rank", "phases of equal size"), ("value", "quantiles of the score")):
                choose(page, "cut", label)
                assert shown(page) == planned(Phases(many, cut=cut), data, column)
                assert printed(page)["score_column"] == column
                assert curriculum_from(printed(page)["curriculum"]) == Phases(many, cut=cut)


@pytest.mark.parametrize(
    ("column", "phases", "keys"),
    [
        ("nouns", "3", {1: "RIGHT LEFT LEFT", 2: "RIGHT RIGHT"}),
        ("nouns", "4", {1: "END"}),  # it takes the others along
        ("nouns", "2", {1: "HOME"}),
        (f"fit {HOSTILE}", "6", {5: "LEFT LEFT", 2: "PAGE_UP"}),
    ],
)
def test_a_threshold_moves_by_keyboard(page, data, column, phases, keys):
    from selenium.webdriver.common.keys import Keys

    choose(page, "score", column)
    choose(page, "phases", phases)
    before = shown(page)
    for number, pressed in keys.items():
        slider = page.find_element("id", f"threshold-{number}")
        for key in pressed.split():
            slider.send_keys(getattr(Keys, key))
    assert shown(page) != before
    said = printed(page)["curriculum"]
    assert len(said["thresholds"]) == int(phases) - 1
    assert shown(page) == planned(curriculum_from(said), data, column)
    last = page.find_element("id", f"threshold-{number}")
    assert page.find_element("id", "status").text.startswith(f"Phase {number}: {last.get_attribute('aria-valuetext')}")
    page.find_element("id", "reset").click()
    assert shown(page) == before


def test_images_stand_in_their_phases(page, data):
    choose(page, "score", "nouns")
    choose(page, "phases", "3")
    scores = dict(zip(data["caption"], data["nouns"], strict=True))
    thresholds = [-math.inf, *page_thresholds(page), math.inf]
    galleries = page.find_elements("css selector", ".gallery")
    assert len(galleries) == 3
    for low, high, gallery in zip(thresholds, thresholds[1:], galleries, strict=False):
        images = gallery.find_elements("tag name", "img")
        assert len(images) == 6
        for image in images:
            page.execute_script("arguments[0].scrollIntoView()", image)
            caption = image.get_attribute("alt")
            assert low < scores[caption] <= high
            assert caption in gallery.text  # as text, markup and all
    assert page.execute_script("return document.querySelectorAll('main script, main [onerror]').length") == 0
    page.execute_async_script("setTimeout(arguments[0], 300)")
    assert page.execute_script("return [...document.images].every((one) => one.complete && one.naturalWidth > 0)")


def page_thresholds(page):
    sliders = page.find_elements("css selector", "#sliders input")
    return [float(slider.get_attribute("aria-valuetext").rpartition(" ")[2]) for slider in sliders]


def test_rows_without_a_score_are_counted(page, data):
    choose(page, "score", f"fit {HOSTILE}")
    choose(page, "phases", "4")
    unscored = int(np.isnan(data[f"fit {HOSTILE}"][:]).sum())
    note = page.find_element("id", "note").text
    assert f"{ROWS - unscored} of {ROWS} examples have" in note
    assert f'The {unscored} not scored belong to the last phase (unscored="last").' in note
    page.find_element("id", "threshold-3").send_keys("\ue010")  # End
    assert shown(page)[-1] == (ROWS, unscored)


def test_every_control_and_image_has_a_name(page):
    named = "return [...document.querySelectorAll('select, input')].every((one) => one.labels.length === 1)"
    assert page.execute_script(named)
    assert page.execute_script("return [...document.images].every((one) => one.alt !== '')")
    assert "thresholds: nouns ≤" in page.find_element("id", "histogram").get_attribute("aria-label")


def test_what_it_prints_trains_these_phases(page, data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_scored(data, "scored")
    choose(page, "phases", "3")
    page.find_element("id", "threshold-2").send_keys("\ue014")  # Right
    (tmp_path / "phases.json").write_text(page.find_element("id", "curriculum").text, encoding="utf-8")
    typed = page.find_element("id", "how").find_elements("tag name", "code")[-1].text.split()
    short = (
        "--batch-size",
        "40",
        "--image-size",
        "16",
        "--max-length",
        "8",
        "--validation",
        "0.1",
        "--use_cpu",
        "True",
    )
    found = done(*typed[1:], *short)
    thresholds = printed(page)["curriculum"]["thresholds"]
    assert all(f"nouns ≤ {threshold:g}" in found.stdout for threshold in thresholds)


@pytest.mark.parametrize("width", [360, 390, 768, 1440])
def test_nothing_is_wider_than_the_screen(page, width):
    set_screen(page, width)
    choose(page, "score", f"fit {HOSTILE}")
    assert page.execute_script("return document.documentElement.scrollWidth <= innerWidth")


def test_a_page_that_is_opened_without_a_server_says_so(opened, tmp_path, data):
    write_space(data.select(range(9)), tmp_path, title="A Space")
    opened.get((tmp_path / "index.html").as_uri())
    opened.implicitly_wait(10)
    said = opened.find_element("xpath", "//p[contains(., 'through a server')]").text
    assert said.endswith("python -m http.server")
    opened.get_log("browser")
