"""The commands of the help, as a new user types them: from images with captions to a model and data on the Hub."""

from __future__ import annotations

import csv
import html
import importlib.util
import json
import os
import re
import shlex
import sys
from pathlib import Path

import pytest
from launching import Launcher

from hf_curriculum import make_scenes

HUB = Path(__file__).parents[1] / "hub" / "loopback_hub.py"
TOKEN = "hf_writerTOKENwriter"


@pytest.fixture
def hub():
    name = "loopback_hub"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, HUB)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    with sys.modules[name].running_hub() as running:
        yield running


@pytest.fixture
def typed(tmp_path, hub):
    """`typed("hf-curriculum …")` in a folder with `photos/`: what it printed, and its notes."""
    folder = tmp_path / "photos"
    folder.mkdir()
    with (folder / "captions.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["file_name", "caption"])
        for scene in make_scenes(300, image_size=64, validation=0.0, test=0.0)["train"]:
            name = f"{scene['image_id']}.jpg"
            if not (folder / name).exists():
                scene["image"].save(folder / name)
            rows.writerow([name, scene["caption"]])
    assert len(list(folder.glob("*.jpg"))) == 60
    env = {name: value for name, value in os.environ.items() if name not in ("HF_HUB_OFFLINE", "HF_TOKEN")}
    env |= {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": TOKEN, "COLUMNS": "100"}
    env |= {"HF_HUB_DISABLE_XET": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}

    launcher = Launcher(env)

    def run(line):
        done = launcher.run("hf_curriculum.cli", *shlex.split(line)[1:], cwd=tmp_path)
        assert "Traceback" not in done.stderr
        return done.stdout, done.stderr

    yield run
    launcher.close()


@pytest.mark.slow
def test_the_commands_of_the_help_in_their_order(typed, hub, tmp_path):
    text, _ = typed("hf-curriculum --help")
    text = re.sub(r"[│╭╰╮╯─]", "", text)
    lines = [re.sub(r"\s+", " ", line).strip() for line in re.findall(r"\d\. (hf-curriculum .*)", text)]
    assert [line.split()[1] for line in lines] == [
        *("score", "inspect", "plan", "train", "report", "caption", "evaluate", "push", "space")
    ]
    out, notes = {}, {}
    for line in lines:
        name = line.split()[1]
        if name == "train":
            line += " --batch-size 16 --image-size 32"
        if name == "evaluate":
            line += " --task blimp --limit 4"
        out[name], notes[name] = typed(line)
    assert re.search(r"noun_count  NounCount, max per image  low +300 ", out["score"])
    assert "next: hf-curriculum inspect scored" in notes["score"]
    assert out["inspect"].startswith("300 rows, 60 images")
    assert "page: page/report.html" in notes["inspect"]
    assert out["plan"].startswith("Phases() by noun_count (low = easy): 300 examples; 32 per step")
    assert "next: hf-curriculum train scored run --curriculum phases" in notes["plan"]
    before, after = re.search(r"validation loss (\S+) → (\S+) after", out["train"]).groups()
    assert float(after) < float(before)
    assert "next: hf-curriculum report run --dataset scored" in notes["train"]
    assert out["report"] == "page: run/report/report.html\n"
    assert "next: hf-curriculum evaluate run/model" in notes["report"]
    assert "next: hf-curriculum caption run/model run/held_out" in notes["train"]
    assert len(out["caption"].splitlines()) == 60  # a line per image
    written = json.loads((tmp_path / "run/held_out/captions.json").read_text())
    assert 2 <= len(written) <= 10
    again, _ = typed("hf-curriculum caption run/model run/held_out")
    shown = dict(line.split("\t") for line in again.splitlines())
    assert shown == {f"run/held_out/{entry['file']}": entry["generated"] for entry in written}
    page = (tmp_path / "run/report/report.html").read_text()
    assert "Generated captions" in page
    assert written[0]["references"][0] in html.unescape(page)
    assert "BLiMP" in out["evaluate"]
    assert out["push"] == f"pushed: {hub.endpoint}/datasets/me/name\n"
    assert TOKEN not in "".join([*out.values(), *notes.values()])
    assert "scores.json" in hub.files("dataset", "me/name")
    assert "look at it: python -m http.server -d out" in notes["space"]
    for page in ("page/report.html", "run/report/report.html", "out/index.html"):
        assert (tmp_path / page).is_file()
