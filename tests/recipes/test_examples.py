"""The examples: short programs without the recipes' machinery, run as a user would."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tiny_vlm import make_model, make_processor

from hf_curriculum import make_scenes

EXAMPLES = Path(__file__).parents[2] / "recipes" / "examples"


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.py")), ids=lambda file: file.stem)
def test_an_example_is_read_in_a_minute(file):
    assert len(file.read_text().splitlines()) <= 60


@pytest.mark.slow
def test_the_own_loop_goes_on_bit_for_bit_and_two_processes_train_alike(launch, tmp_path):
    whole = launch(EXAMPLES / "own_loop.py", tmp_path / "one")
    losses = re.findall(r"step (\d+) of 22: loss (\S+)", whole.stdout)
    assert [step for step, _ in losses] == ["10", "20", "22"]
    weights = [tmp_path / "one" / f"state-{step}" / "model.safetensors" for step in (10, 20, 22)]
    before = [file.read_bytes() for file in weights]
    for file in weights[1:]:
        file.unlink()
    (tmp_path / "one" / "step").write_text("10")
    resumed = launch(EXAMPLES / "own_loop.py", tmp_path / "one")
    assert re.findall(r"step (\d+) of 22: loss (\S+)", resumed.stdout) == losses[1:]
    assert [file.read_bytes() for file in weights] == before
    launch(EXAMPLES / "own_loop.py", tmp_path / "two", processes=2, env={"ACCELERATE_USE_CPU": "1"})
    ours, theirs = load_file(weights[-1]), load_file(tmp_path / "two" / "state-22" / "model.safetensors")
    assert max((ours[name] - theirs[name]).abs().max().item() for name in ours) < 1e-4


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder of images with `captions.csv`, in the file's order from light to dark."""
    folder = tmp_path_factory.mktemp("data") / "photos"
    folder.mkdir()
    lines = ["file_name,caption"]
    for number, row in enumerate(make_scenes(40, image_size=32, validation=0.0, test=0.0)["train"]):
        shade = 6 * number
        row["image"].point(lambda value, shade=shade: max(0, value - shade)).save(folder / f"{number:02}.png")
        lines.append(f'{number:02}.png,"{row["caption"]}"')
    (folder / "captions.csv").write_text("\n".join(lines))
    return folder


@pytest.mark.slow
def test_own_data_trains_on_a_folder_and_continues(launch, photos, tmp_path):
    out = tmp_path / "out"
    first = launch(EXAMPLES / "own_data.py", photos, out)
    assert "by noun_count (low = easy)" in first.stdout
    weights = (out / "model" / "model.safetensors").read_bytes()
    again = launch(EXAMPLES / "own_data.py", photos, out)  # finished: it resumes after the last step
    assert re.search(r"'train_loss': '0", again.stdout)
    assert (out / "model" / "model.safetensors").read_bytes() == weights


@pytest.mark.slow
def test_own_scorer_shows_both_ends(launch, photos):
    shown = launch(EXAMPLES / "own_scorer.py", photos).stdout
    assert "high is easy" in shown
    found = re.findall(r"^(easiest|hardest)  (\S+)  (\d\d)\.png", shown, re.MULTILINE)
    assert [end for end, _, _ in found] == ["easiest"] * 3 + ["hardest"] * 3
    assert [float(score) for _, score, _ in found] == sorted((float(score) for _, score, _ in found), reverse=True)
    assert {int(number) for _, _, number in found[:3]} < set(range(20))  # the light ones
    assert {int(number) for _, _, number in found[3:]} < set(range(20, 40))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "lines"),
    [
        ("own_curriculum.py", [r"middle  middle 40% .* 1  ", r"all     all "]),
        ("any_trainer.py", [r"Growing\(easy='low', epochs=4\) by crowd"]),
    ],
)
def test_an_example_prints_its_plan_and_trains(example, lines, launch, tmp_path):
    shown = launch(EXAMPLES / example, tmp_path / "out").stdout
    for line in lines:
        assert re.search(line, shown), shown
    assert "'train_loss'" in shown


@pytest.mark.slow
def test_a_vision_language_model_learns_short_answers_first(launch, photos, tmp_path):
    make_model().save_pretrained(tmp_path / "model")
    make_processor().save_pretrained(tmp_path / "model")
    rows = [
        {
            "image": image.name,
            "conversations": [
                {"from": "human", "value": "<image>\nw1 w2"},
                {"from": "gpt", "value": " ".join(["w4"] * (7 - number % 7))},  # both answers: 8 words in every row
                {"from": "human", "value": "w1"},
                {"from": "gpt", "value": " ".join(["w3"] * (number % 7 + 1))},
            ],
        }
        for number, image in enumerate(sorted(photos.glob("*.png"))[:24])
    ]
    (tmp_path / "llava.json").write_text(json.dumps(rows))
    program = EXAMPLES / "vision_language.py"
    launch(
        program, tmp_path / "model", tmp_path / "llava.json", photos, tmp_path / "out", env={"ACCELERATE_USE_CPU": "1"}
    )
    state = json.loads(next((tmp_path / "out").glob("checkpoint-*/trainer_state.json")).read_text())
    means = [one["curriculum/score_mean"] for one in state["log_history"] if "curriculum/score_mean" in one]
    assert len(means) == 3
    assert means == sorted(means)
    assert (tmp_path / "out" / "model.safetensors").is_file()
