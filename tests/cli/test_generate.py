"""`hf-curriculum generate`: from marked images to a data set with a grid, and what it says."""

from __future__ import annotations

import json

import pytest
from datasets import DatasetDict
from spectrum_data import labelled_scenes, tiny_pipeline
from typer.testing import CliRunner

from hf_curriculum import load_scored
from hf_curriculum.cli import app


def result(*words):
    return CliRunner().invoke(app, ["generate", *map(str, words)])


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """A data set with hard images, and a pipeline."""
    folder = tmp_path_factory.mktemp("given")
    labelled_scenes(6, 2).save_to_disk(str(folder / "hard"))
    labelled_scenes(3, 0).remove_columns("hard").save_to_disk(str(folder / "plain"))
    DatasetDict({"train": labelled_scenes(6, 2)}).save_to_disk(str(folder / "splits"))
    tiny_pipeline().save_pretrained(folder / "pipeline")
    return folder


def test_the_cost_is_printed_and_the_spectrum_saved(given, tmp_path):
    words = [given / "hard", tmp_path / "spectrum", "--pipeline", given / "pipeline", "--levels", "0.1,0.5"]
    words += ["--seeds", 3, "--steps", 2, "--prompt", "a {name}"]
    done = result(*words)
    assert done.exit_code == 0, done.output
    assert "2 hard × 2 levels × 3 seeds = 12 images, 12 denoising steps" in done.stderr
    assert "level 0.1: strength 0.9, 1 of 2 steps" in done.stderr
    assert "The first batch says: about" in done.stderr
    assert done.stdout.startswith("12 images, 0 dropped: 6 of level 0.1, 6 of level 0.5")
    made = load_scored(tmp_path / "spectrum")
    assert len(made) == 12
    assert set(made["prompt"][:]) == {f"a {name}" for name in labelled_scenes(6, 2)["name"][:2]}
    assert (tmp_path / "spectrum" / "grid.png").exists()
    assert not (tmp_path / "spectrum.parts").exists()
    again = result(*words)
    assert again.exit_code == 1
    assert "is there already. Pass --overwrite" in again.stderr


def test_what_the_filter_drops_is_counted_and_listed(given, tmp_path):
    words = [given / "splits", tmp_path / "out", "--pipeline", given / "pipeline", "--levels", "0.9", "--seeds", "4,7"]
    words += ["--steps", 10, "--prompt", "a {name}", "--json", "--parts", tmp_path / "parts"]
    done = result(*words, "--at-least", -1, "--tries", 2)
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert (facts["images"], facts["dropped"], facts["by_level"]) == (4, 0, {"0.9": 4})
    assert (tmp_path / "out" / "dropped.parquet").exists()
    assert (tmp_path / "parts" / "spectrum.arrow").exists()
    assert set(load_scored(tmp_path / "out")["seed"][:]) == {4, 7}
    none = result(*words, "--at-least", 0.99, "--overwrite", "--parts", tmp_path / "none")
    assert none.exit_code == 1
    assert "No image is left of any level" in none.stderr


def test_every_image_with_all(given, tmp_path):
    words = [tmp_path / "out", "--pipeline", given / "pipeline", "--prompt", "a {name}", "--levels", "0.5"]
    words += ["--seeds", 1, "--steps", 2, "--resize", "8x12"]
    wrong = result(given / "plain", *words)
    assert wrong.exit_code == 1
    assert "has no column `hard`" in wrong.stderr
    done = result(given / "plain", *words, "--all")
    assert done.exit_code == 0, done.output
    assert [image.size for image in load_scored(tmp_path / "out")["image"]] == [(8, 12)] * 3


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["--levels", "0.1,high"], 2, "is no list of numbers"),
        (["--seeds", "few"], 2, "is no list of numbers"),
        (["--resize", "8x8x8"], 2, "is no size such as 512"),
        (["--tries", "3"], 2, "Pass --at-least too"),
        (["--levels", "0.1,1"], 1, "Level 1 cannot be generated"),
        (["--pipeline", "/nowhere"], 1, "no image-to-image pipeline '/nowhere'"),
    ],
)
def test_mistakes(given, tmp_path, words, status, message):
    done = result(given / "hard", tmp_path / "out", "--prompt", "a {name}", *words)
    assert done.exit_code == status
    assert message in " ".join(done.stderr.replace("│", " ").split())


def test_the_real_images_are_never_replaced(given, tmp_path):
    words = ["--prompt", "a {name}", "--pipeline", given / "pipeline", "--overwrite"]
    for source, output in (("hard", "hard"), ("splits", "splits"), ("splits", "splits/train")):
        done = result(given / source, given / output, *words)
        assert (done.exit_code, "the real images would be replaced" in done.stderr) == (1, True)
    done = result(given / "hard", given / "splits", *words)
    assert (done.exit_code, "holds a data set with splits" in done.stderr) == (1, True)


def test_a_clip_that_is_not_there_is_known_before_anything_is_drawn(given, tmp_path):
    words = [given / "hard", tmp_path / "out", "--prompt", "a {name}", "--pipeline", given / "pipeline"]
    done = result(*words, "--at-least", 0.1, "--clip", "/nowhere")
    assert done.exit_code == 1
    assert "found no '/nowhere'" in " ".join(done.stderr.split())
    assert "denoising steps" not in done.stderr


def test_no_data_set(given, tmp_path):
    done = result(tmp_path, tmp_path / "out", "--prompt", "a ball")
    assert "is no saved data set" in done.stderr
    done = result(given / "splits", tmp_path / "out", "--prompt", "a ball", "--split", "test")
    assert "has the splits ['train'], and not 'test'" in " ".join(done.stderr.replace("│", " ").split())
