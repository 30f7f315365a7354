"""The guides say what is true: their code runs, what it prints is printed, and the commands they name exist."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import curriculum_cases
import numpy as np
import pages as PAGES
import pytest
from crawl import crawl
from huggingface_hub import HfApi

from hf_curriculum import make_scenes
from hf_curriculum.names import BATCHES, CURRICULA

TESTS = Path(__file__).parent


GUIDES = sorted((PAGES.ROOT / "docs").glob("**/*.md"))

every_guide = pytest.mark.parametrize("guide", GUIDES, ids=lambda path: f"{path.parent.name}/{path.stem}")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder as people have it: images and a CSV of captions, and Karpathy's JSON of the same beside it."""
    folder = tmp_path_factory.mktemp("data") / "photos"
    folder.mkdir()
    lines, images = [], {}
    for row in make_scenes(120, image_size=32, captions_per_image=3, validation=0.0, test=0.0)["train"]:
        name = f"{row['image_id']}.png"
        if name not in images:
            row["image"].save(folder / name)
            images[name] = {"filename": name, "split": "val" if len(images) % 10 == 0 else "train", "sentences": []}
        images[name]["sentences"].append({"raw": row["caption"]})
        lines.append(f'{name},"{row["caption"]}"')
    (folder / "captions.csv").write_text("image,caption\n" + "\n".join(lines) + "\n", encoding="utf-8")
    names = {"images": list(images.values()), "dataset": "photos"}
    (folder.parent / "dataset_photos.json").write_text(json.dumps(names), encoding="utf-8")
    return folder


@pytest.fixture
def desk(photos, tmp_path, monkeypatch):
    """A folder of one's own, with `photos/` and a crawl in it, no accelerator, and a Hub that only takes notes."""
    (tmp_path / "photos").symlink_to(photos)
    crawl(tmp_path / "cc12m", 4, 50)
    (tmp_path / "dataset_photos.json").symlink_to(photos.parent / "dataset_photos.json")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ACCELERATE_USE_CPU", "1")
    pushed = []
    info = SimpleNamespace(id="me/photos-scored", sha="0", private=False, siblings=[])
    monkeypatch.setattr(HfApi, "dataset_info", lambda *_, **__: info)
    monkeypatch.setattr(
        HfApi, "create_commit", lambda *_, operations, **__: pushed.extend(one.path_in_repo for one in operations)
    )
    known = set(sys.modules), dict(CURRICULA), dict(BATCHES)
    yield pushed
    for name in set(sys.modules) - known[0]:
        if name.startswith("guide_"):
            del sys.modules[name]
    for table, before in ((CURRICULA, known[1]), (BATCHES, known[2])):
        table.clear()
        table.update(before)


def test_there_is_a_guide_for_every_task():
    assert {path.stem for path in GUIDES if path.parent.name == "guides"} == {
        "README", "a_billion_pairs", "advise", "align_images_and_nouns", "any_trainer", "babylm",
        "captioner_on_regions", "captions", "choose_while_training", "compare", "detect_from_captions",
        "hand_over_the_order", "read_the_report", "synthetic_to_real",
        "reproduce_the_papers", "sampler", "scale", "score_my_data", "speed",
        "train_with_a_curriculum", "vision_language",
        "when_it_helps", "write_your_own",
    }  # fmt: skip


@every_guide
def test_its_code_runs_and_prints_what_it_says(guide, desk):
    PAGES.run_page(guide)
    named = re.search(r'push_scored\(data, "me/photos-scored"', guide.read_text(encoding="utf-8"))
    assert bool(desk) == bool(named)
    assert not named or {"README.md", "scores.json", "buckets.json"} <= set(desk)


@pytest.mark.slow
@pytest.mark.parametrize(
    "guide", [path for path in GUIDES if "```python slow" in path.read_text()], ids=lambda path: path.stem
)
def test_its_slow_code_runs_too(guide, desk):
    PAGES.run_page(guide, slow=True)


@every_guide
def test_its_commands_exist(guide):
    for command in PAGES.commands(guide.read_text(encoding="utf-8")):
        PAGES.check_command(command)


@pytest.mark.parametrize("mark", ["", " slow"])
def test_a_page_that_says_what_is_not_printed(tmp_path, mark):
    page = tmp_path / "wrong.md"
    page.write_text(f"```python{mark}\nprint(1)\n```\n\n```text\n2\n```\n", encoding="utf-8")
    with pytest.raises(AssertionError, match=r"wrong\.md"):
        PAGES.run_page(page, slow=True)
    if mark:
        PAGES.run_page(page)


def test_a_page_with_an_option_that_is_none():
    page = "```sh\n$ pip install x && hf-curriculum plan a --nothing  # why\n```\n\n```python\npytest\n```\n"
    found = list(PAGES.commands(page))
    assert found == ["pip install x", "hf-curriculum plan a --nothing"]
    with pytest.raises(AssertionError, match=r"\['--nothing'\] are no options"):
        PAGES.check_command(found[1])


@every_guide
def test_its_links_and_images_are_there(guide):
    for target in re.findall(r"\]\(([^)#\s]+)", guide.read_text(encoding="utf-8")):
        assert (guide.parent / target).is_file(), target
    for image in re.findall(r"!\[[^]]*\]\(([^)]+)\)", guide.read_text(encoding="utf-8")):
        assert (guide.parent / image).stat().st_size <= 100_000, image  # the largest, of results, has 96 kB


@pytest.mark.parametrize(
    "guide", [path for path in GUIDES if path.parent.name == "guides"], ids=lambda path: path.stem
)
def test_it_can_be_read_in_minutes(guide):
    words = re.sub(r"```.*?```|<!--.*?-->", "", guide.read_text(encoding="utf-8"), flags=re.DOTALL).split()
    assert len(words) <= 750  # three minutes at 250 a minute; code is extra


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """What `write_your_own.md` makes, registered as it registers itself."""
    path = tmp_path_factory.mktemp("own")
    known = dict(CURRICULA), dict(BATCHES)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        patch.setenv("ACCELERATE_USE_CPU", "1")
        yield PAGES.run_page(PAGES.ROOT / "docs" / "guides" / "write_your_own.md")
    for table, before in zip((CURRICULA, BATCHES), known, strict=True):
        table.clear()
        table.update(before)
    del sys.modules["guide_write_your_own"]


def contract_tests(path, mark):
    """The test functions of a file that are parametrised by a case alone, and those by something else too."""
    functions = [item for name, item in runpy.run_path(str(path)).items() if name.startswith("test_")]
    chosen = [[one for one in getattr(test, "pytestmark", ()) if one.name == "parametrize"] for test in functions]
    return [test for test, marks in zip(functions, chosen, strict=True) if [one.args[0] for one in marks] == [mark]]


def test_the_scorer_on_the_page_keeps_the_contract(own):
    """The tests of `test_contract.py`, which every scorer of the library has to pass."""
    contract = TESTS / "scorers" / "test_contract.py"
    make_case = runpy.run_path(str(contract))["Case"]
    captions = ["a dog and a cat that sleep", "", "a ball", None, "  "]
    case = make_case(own.Clauses, {"caption": captions}, {"clauses": [2, np.nan, 0, np.nan, np.nan]})
    tests = contract_tests(contract, "case")
    assert len(tests) >= 10
    for test in tests:
        if test.__name__ != "test_add_scores_records_where_they_came_from":  # it asks for a name without a module
            test(case)
    assert own.Clauses().describe().scorer == "guide_write_your_own.Clauses"


@pytest.mark.parametrize("batches", [None, "twice"])
def test_the_curriculum_on_the_page_keeps_the_contract(own, batches):
    """The tests of `test_every_curriculum.py`, which every curriculum of the library has to pass."""
    contract = TESTS / "curricula" / "test_every_curriculum.py"
    tests = contract_tests(contract, "case")
    make_case = curriculum_cases.Case
    unit = 1 if batches is None else 2
    case = make_case(own.Recap(epochs=2, batches=batches and {"type": batches}), grows=False, passes=4, unit=unit)
    assert len(tests) >= 6
    for test in tests:
        test(case=case)


def test_classes_on_the_page_are_as_short_as_promised():
    page = (PAGES.ROOT / "docs" / "guides" / "write_your_own.md").read_text(encoding="utf-8")
    for name in ("Clauses", "Recap"):
        (block,) = [content for language, _, content in PAGES.blocks(page) if f"class {name}(" in content]
        lines = re.search(rf"(?:^@\w+\(.*\)\n)?^class {name}\(.*?(?=^\S)", block, re.DOTALL | re.MULTILINE)[0]
        assert len(lines.strip().splitlines()) <= 20, name
