"""A Space says what the library says: its files, and exact counts whatever the score."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import numpy as np
import pytest
from datasets import Dataset
from hostile import HOSTILE as EVERY
from hostile import NEVER
from PIL import Image
from typed_commands import done, result, said

from hf_curriculum import CaptionLength, Phases, add_scores, curriculum_from, make_plan, save_scored
from hf_curriculum.hub import space as module
from hf_curriculum.hub.space import write_space
from hf_curriculum.markdown import split_front_matter
from hf_curriculum.provenance import ScoreProvenance, attach_provenance
from hf_curriculum.reporting.figures.canvas import DARK, LIGHT
from hf_curriculum.reporting.html import TEMPLATES

HOSTILE = "</script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"
TAGS = re.compile("<[a-z]+").findall
PLAIN = TAGS(TEMPLATES.get_template("space.html").render(title="x", light=LIGHT, dark=DARK))
RANDOM = np.random.default_rng(0)
GAPS = RANDOM.normal(size=500).astype(np.float32)
GAPS[::7] = np.nan
SCORES = {
    "whole numbers": RANDOM.poisson(4, 400).astype(np.float32),
    "tenths, which float32 does not hold": (RANDOM.integers(0, 20, 300) / 10).astype(np.float32),
    "rows without a score": GAPS,
    "float64": 1 + RANDOM.integers(0, 50, 200) * 1e-12,
    "more values than places": RANDOM.lognormal(size=6000).astype(np.float32),
    "three rows": np.array([2, 1, 3], np.float32),
}


def scored(values, easy="low", **columns):
    data = Dataset.from_dict({"s": values, **columns})
    return attach_provenance(data, {"s": ScoreProvenance("s", "Given", easy=easy, source="joined")})


def read(folder):
    return json.loads((folder / "data.json").read_text(encoding="utf-8"))


def pools(rule, data):
    plan = make_plan(rule, data, score_column="s", global_batch_size=1)
    return [stage.slices[0][1] for stage in plan.stages]


@pytest.mark.parametrize("easy", ["low", "high"])
@pytest.mark.parametrize("name", SCORES)
def test_its_phases_are_those_of_a_plan(name, easy, tmp_path):
    data = scored(SCORES[name], easy)
    write_space(data, tmp_path, title="x")
    (score,) = read(tmp_path)["scores"]
    assert list(score["cuts"]) == [str(many) for many in range(2, 7) if many <= len(data)]
    for many, cuts in score["cuts"].items():
        for cut, ends in cuts.items():
            assert [*ends, len(data)] == pools(Phases(int(many), cut=cut), data)
    assert score["ends"][-1] == score["scored"] == int(np.isfinite(SCORES[name]).sum())
    assert score["distinct"] == len(np.unique(SCORES[name][np.isfinite(SCORES[name])]))
    for _ in range(20):  # wherever the sliders stand
        marks = np.sort(RANDOM.integers(0, len(score["values"]), 2)).tolist()
        said = {"type": "phases", "num_phases": 3, "cut": "value", "thresholds": [score["values"][m] for m in marks]}
        assert [*(score["ends"][m] for m in marks), len(data)] == pools(curriculum_from(said), data)
    assert sum(score["histogram"]["counts"]) == score["scored"]


def test_thresholds_move_over_some_of_many_values(tmp_path):
    values = SCORES["more values than places"]
    write_space(scored(values), tmp_path, title="x")
    (score,) = read(tmp_path)["scores"]
    assert score["distinct"] == len(np.unique(values)) > module.MOST_VALUES
    assert 4000 < len(score["values"]) <= module.MOST_VALUES + 30
    for many, cuts in score["cuts"].items():
        assert set(cuts["value"]) <= set(score["ends"]), many
    assert score["histogram"]["counts"] == np.histogram(values, 60)[0].tolist()


def test_a_bar_is_a_whole_number_where_scores_are(tmp_path):
    write_space(scored([1.0, 1.0, 2.0, 4.0]), tmp_path, title="x")
    (score,) = read(tmp_path)["scores"]
    assert score["histogram"] == {"low": 0.5, "high": 4.5, "whole": True, "counts": [2, 1, 0, 1]}


@pytest.fixture
def photos():
    """Forty images with captions, the easiest of which is markup."""
    images = [Image.new("RGB", (300, 200), (6 * number, 0, 0)) for number in range(40)]
    captions = [HOSTILE, *(f"a dog{' and a cat' * (number % 5)} {number}" for number in range(39))]
    data = Dataset.from_dict({"image": images, "caption": captions, "image_id": [str(n) for n in range(40)]})
    return add_scores(data, CaptionLength())


def test_the_files_of_a_space(photos, tmp_path):
    made = write_space(photos, tmp_path / "out", title=f"Dogs {HOSTILE}", examples=10)
    files = sorted(path.relative_to(tmp_path / "out") for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert [str(path) for path in files if path.parent.name == ""] == ["README.md", "data.json", "index.html"]
    assert made == {
        "rows": 40,
        "scores": ["caption_length"],
        "examples": 10,
        "thumbnails": 10,
        "bytes": sum((tmp_path / "out" / path).stat().st_size for path in files),
    }
    front, body = split_front_matter((tmp_path / "out" / "README.md").read_text(encoding="utf-8"))
    assert (front["sdk"], front["app_file"], front["tags"]) == (
        "static",
        "index.html",
        ["curriculum-learning", "hf_curriculum"],
    )
    assert "| caption\\_length | CaptionLength |" in body
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert page.count("<script>") == 1
    assert "document.title" not in body.replace("document.title='taken'", "") + page.replace(
        "document.title=&#39;", ""
    )
    examples = read(tmp_path / "out")["scores"][0]["examples"]
    positions, values, captions, images = zip(*examples, strict=True)
    assert (positions[0], positions[-1]) == (0, 39)
    ordered = sorted(zip(photos["caption_length"][:], range(40), photos["caption"][:], strict=True))
    assert [(ordered[at][0], ordered[at][2]) for at in positions] == list(zip(values, captions, strict=True))
    for image in images:
        with Image.open(tmp_path / "out" / "thumbnails" / image) as small:
            assert (small.format, small.size) == ("JPEG", (160, 107))


@pytest.mark.parametrize(("most", "shown"), [(10, 10), (11, 10), (1, 0), (0, 0), (2000, 80)])
def test_examples_are_those_of_all_scores_together(most, shown, photos, tmp_path):
    photos = add_scores(photos, CaptionLength(name="other"))
    assert write_space(photos, tmp_path, title="x", examples=most)["examples"] == shown
    assert [len(score["examples"]) for score in read(tmp_path)["scores"]] == [shown // 2] * 2


@pytest.mark.parametrize("text", EVERY.values(), ids=EVERY)
def test_no_text_leaves_its_place(text, tmp_path):
    name = text.encode("utf-8", "replace").decode().replace("\x00", "")  # which no column of Arrow is called
    made = ScoreProvenance(name, "Given", source="joined")
    data = attach_provenance(Dataset.from_dict({name: [1.0, 2.0, 3.0], "caption": [name] * 3}), {name: made})
    write_space(data, tmp_path, title=text)
    pages = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    assert not set(NEVER) & set("".join(pages.values()))
    assert TAGS(pages["index.html"]) == PLAIN
    front, body = split_front_matter(pages["README.md"])
    assert front["sdk"] == "static"
    assert body.splitlines()[3] == "The scores of 3 examples, and the phases of a curriculum by each of them."
    (score,) = json.loads(pages["data.json"])["scores"]
    assert score["name"] == name


def test_a_space_is_written_again_without_the_images_of_the_last(photos, tmp_path):
    write_space(photos, tmp_path, title="x")
    assert len(list((tmp_path / "thumbnails").iterdir())) == 40
    (tmp_path / ".git").mkdir()  # of a clone
    write_space(photos, tmp_path, title="x", thumbnails=False)
    assert list((tmp_path / "thumbnails").iterdir()) == []
    assert {image for *_, image in read(tmp_path)["scores"][0]["examples"]} == {None}


@pytest.mark.parametrize("names", [["notes.txt"], ["README.md", "index.html"]])
def test_other_files_are_not_among_those_of_a_space(names, photos, tmp_path):
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match=rf"holds other files \({', '.join(names)}\), and all that lies there would"):
        write_space(photos, tmp_path, title="x")
    with pytest.raises(FileExistsError, match="is a file, and a folder is written"):
        write_space(photos, tmp_path / names[0], title="x")
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_what_cannot_be_shown_is_refused(photos, tmp_path):
    with pytest.raises(ValueError, match=r"The scores \['caption'\] were asked for, and \['caption_length'\] are"):
        write_space(photos, tmp_path / "out", ["caption"], title="x")
    with pytest.raises(ValueError, match="examples=-1 was given: how many to show"):
        write_space(photos, tmp_path / "out", title="x", examples=-1)
    with pytest.raises(ValueError, match="All 3 scored rows have the same `s`"):
        write_space(scored([1.0, 1.0, 1.0]), tmp_path / "out", title="x")
    assert not (tmp_path / "out").exists()


def test_from_a_shell(photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_scored(photos, "scored")
    found = done("space", "scored", "out", "--examples", "5", "--title", "Dogs")
    assert found.stdout.splitlines()[0].startswith("out: README.md, index.html, data.json; 0.0 MB")
    assert "40 rows counted by caption_length; 5 examples shown, 5 thumbnails" in found.stdout
    assert "look at it: python -m http.server -d out, then http://localhost:8000" in found.stderr
    assert "upload: hf upload me/name out --repo-type space" in found.stderr
    made = json.loads(done("space", "scored", "out", "--no-thumbnails", "--column", "caption_length", "--json").stdout)
    assert (made["output"], made["thumbnails"], made["examples"]) == ("out", 0, 40)
    assert "<title>scored</title>" in (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert "The scores ['x'] were asked for" in said(result("space", "scored", "out", "--column", "x"))
    assert "scored holds other files" in said(result("space", "scored", "scored"))


def test_the_upload_command_exists():
    """`hf upload REPO FOLDER --repo-type space`, as the installed `huggingface_hub` has it."""
    command = [sys.executable, "-m", "huggingface_hub.cli.hf", "upload", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "REPO_ID [LOCAL_PATH]" in shown
    assert re.search(r"--repo-type \[[a-z|]*space", shown)
