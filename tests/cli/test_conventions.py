"""What every command keeps to: exit statuses, and what goes to standard output."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import typer
from crawl import pairs, write_parquet
from PIL import Image
from spectrum_data import labelled_scenes, tiny_pipeline
from typed_commands import result

from hf_curriculum import __version__
from hf_curriculum.cli import app
from hf_curriculum.tasks.detection import new_detector

HEAVY = {"torch", "transformers", "datasets", "matplotlib", "numpy", "pyarrow", "pandas"}
COMMANDS = sorted(typer.main.get_command(app).list_commands(None))


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """A folder of images with a CSV of captions, scored."""
    folder = tmp_path_factory.mktemp("given") / "photos"
    folder.mkdir()
    lines = ["file_name,caption"]
    for number in range(10):
        Image.new("RGB", (8, 8), (20 * number, 0, 0)).save(folder / f"{number}.png")
        lines += [f"{number}.png,a dog{' and a cat' * (number % 4)}", f"{number}.png,\x1b[31ma dog"]
    (folder / "captions.csv").write_text("\n".join(lines))
    assert result("score", folder, folder.parent / "scored", "--scorer", "caption_length").exit_code == 0
    return folder.parent / "scored"


def test_help_and_version_load_nothing_heavy():
    program = f"""
import sys

sys.argv[0] = "hf-curriculum"
from typer.testing import CliRunner
from hf_curriculum.cli import app
for words in [["--help"], ["version"], *([name, "--help"] for name in {COMMANDS})]:
    assert CliRunner().invoke(app, words).exit_code == 0, words
print(sorted({HEAVY} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr


def test_the_help_names_every_command_in_the_order_of_work():
    text = " ".join(result("--help").stdout.split())
    places = [text.index(f"{number}. hf-curriculum {name}") for number, name in enumerate(
        ("score", "inspect", "plan", "train", "report", "caption", "evaluate", "push", "space"), 1
    )]  # fmt: skip
    assert places == sorted(places)
    assert "0 done, 1 the work failed, 2 called in a way that cannot work, 130 interrupted" in text


def test_the_version_is_an_option_too():
    assert result("--version").stdout == result("version").stdout == f"{__version__}\n"


def test_every_command_can_print_json():
    group = typer.main.get_command(app)
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        if name == "recipe":  # its flags are the recipe's own, and it leaves results.json
            continue
        assert "--json" in {option for parameter in command.params for option in parameter.opts}, name


@pytest.mark.slow
def test_json_is_all_there_is_on_standard_output(scored, tmp_path, monkeypatch):
    from hf_curriculum.hub import push as module
    from hf_curriculum.studies import advise

    class Pushed:
        repo_url, oid = "https://hub/datasets/me/x", "abc"

    monkeypatch.setattr(module, "push_scored", lambda *given, **options: Pushed)
    auc = SimpleNamespace(value=0.9)
    said = SimpleNamespace(verdict="nothing to win", auc=auc, to_dict=lambda: {"verdict": "nothing to win"})
    monkeypatch.setattr(advise, "advise", lambda *given, **options: said)  # it takes more images
    run = tmp_path / "run"
    shown = [{"image_id": at, "category_id": 1, "bbox": [0, 0, 9, 9]} for at in range(10)]
    names = [{"id": at, "file_name": f"{at}.png"} for at in range(10)]
    instances = {"images": names, "annotations": shown, "categories": [{"id": 1, "name": "dog"}]}
    (tmp_path / "instances.json").write_text(json.dumps(instances))
    for part in new_detector(["dog", "cat"], "small", size={"longest_edge": 32}):
        part.save_pretrained(tmp_path / "detector")
    labelled_scenes(6, 2).save_to_disk(tmp_path / "hard")
    tiny_pipeline().save_pretrained(tmp_path / "pipeline")
    drawn = (
        "--pipeline",
        tmp_path / "pipeline",
        "--levels",
        "0.5",
        "--seeds",
        "1",
        "--steps",
        "2",
        "--prompt",
        "a {name}",
    )
    commands = [
        ("version",),
        ("score", scored.parent / "photos", tmp_path / "again", "--scorer", "caption_length"),
        ("score", scored.parent / "crawl", tmp_path / "scores", "--in-place", "--scorer", "caption_length"),
        ("bucket", scored.parent / "crawl", tmp_path / "scores", tmp_path / "buckets", "--num-buckets", "2"),
        ("inspect", scored, "--html", tmp_path / "page"),
        ("advise", scored),
        ("plan", scored, "phases", "--figure", tmp_path / "plan.svg"),
        ("train", scored, run, "--batch-size", "8", "--image-size", "32", "--validation", "0.2"),
        ("report", run, "--dataset", scored),
        ("caption", run, scored.parent / "photos"),
        ("features", scored.parent / "photos", tmp_path / "store", "--model", "scenes_clip", "--grid", "2"),
        ("propose", scored.parent / "photos", tmp_path / "boxed"),
        ("detect", tmp_path / "detector", scored.parent / "photos" / "0.png"),
        ("generate", tmp_path / "hard", tmp_path / "spectrum", *drawn, "--prompt", "a {name}"),
        ("ontology", scored.parent / "photos", "--objects", tmp_path / "instances.json", "--min-instances", "1"),
        ("evaluate", run / "model", "--task", "blimp", "--limit", "2", "--output", tmp_path / "evaluation"),
        ("verify", scored),
        ("push", scored, "me/x"),
        ("space", scored, tmp_path / "space"),
    ]
    assert {words[0] for words in commands} == {*COMMANDS} - {"recipe"}
    write_parquet(scored.parent / "crawl" / "0.parquet", pairs(0, 20))
    for words in commands:
        done = result(*words, "--json")
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout), words[0]


def test_standard_output_holds_the_result_and_no_control_characters(scored):
    done = result("inspect", scored)
    assert "easiest by caption_length" in done.stdout
    assert "\x1b" not in done.stdout
    assert "next: hf-curriculum plan" in done.stderr
    assert "next:" not in done.stdout
    assert "\x1b" not in result("score", scored.parent / "photos", scored.parent / "more").stdout


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("plan", "{scored}"), 0, "Phases() by caption_length"),
        (("plan", "{scored}", "phases", "--epochs", "7"), 1, "Error: "),
        (("score", "{scored}/nowhere", "out"), 1, "Error: "),
        (("report", "{scored}"), 1, "needs a complete checkpoint"),
        (("plan", "{scored}", "fases"), 2, "There is no curriculum 'fases'"),
        (("train", "{scored}", "out", "--curriculum", "fases"), 2, "There is no curriculum 'fases'"),
        (("plan", "{scored}", "--score-column", "words"), 2, "The data has no column 'words'"),
        (("train", "nowhere", "out"), 2, "is no folder"),
        (("push", "nowhere", "me/x"), 2, "is no folder"),
        (("push", "{scored}", "me/x", "--cut", "half"), 2, "'rank', 'value'"),
        (("score", "photos", "out", "--per-image", "sum"), 2, "'max', 'min', 'mean'"),
        (("learn",), 2, "No such command 'learn'"),
        (("plan", "{scored}", "--colour"), 2, "No such option"),
        (("plan", "{scored}", "--batch-size", "many"), 2, "Invalid value for '--batch-size'"),
    ],
)
def test_exit_statuses(scored, words, status, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = result(*(word.format(scored=scored) for word in words))
    assert done.exit_code == status, done.output
    text = " ".join(done.output.replace("│", " ").split())
    assert message in text
    assert "Traceback" not in text


def test_data_without_a_score_needs_one_named(tmp_path):
    from datasets import Dataset

    from hf_curriculum import CaptionLength, add_scores, save_scored

    save_scored(add_scores(Dataset.from_dict({"caption": ["a", "a b"]}), CaptionLength()), tmp_path / "scored")
    (tmp_path / "scored" / "scores.json").write_text('{"format": 1, "splits": {}}')
    done = result("plan", tmp_path / "scored")
    assert done.exit_code == 1
    assert "scores.json is damaged" in " ".join(done.output.split())


@pytest.mark.slow
def test_an_interrupted_command_ends_with_130(scored, tmp_path):
    """Ctrl-C while it trains: no traceback, the status of a shell, and `--resume` goes on."""
    command = [sys.executable, "-m", "hf_curriculum.cli", "train", str(scored), str(tmp_path / "run")]
    command += ["--curriculum", "{type: iid}", "--epochs", "3000", "--batch-size", "4", "--image-size", "32"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        # As in a terminal: what a shell starts in the background ignores Ctrl-C, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        deadline = time.monotonic() + 120
        while len(list((tmp_path / "run").glob("checkpoint-*"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.2)  # the first of two is complete
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130, err[-2000:]
    assert "Traceback" not in err
    assert "3,000" in out or "epochs" in out  # the plan had been printed
    kept = sorted((tmp_path / "run").glob("checkpoint-*"), key=lambda folder: int(folder.name.partition("-")[2]))
    line = next(line for line in err.splitlines() if line.startswith("  hf-curriculum train "))
    assert shlex.split(line) == ["hf-curriculum", *command[3:], "--resume"]
    assert f"{kept[-1]} is kept. To go on from it:" in err or f"{kept[-2]} is kept" in err


@pytest.mark.parametrize("module", ["typer", "hf_curriculum.cli.inspect", "datasets"])
def test_ctrl_c_while_modules_are_imported(module, tmp_path):
    """The status of a shell, and no traceback, whichever module is being imported."""
    script = tmp_path / "hf-curriculum"
    script.write_text(f"""
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            print("interrupted", flush=True)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from hf_curriculum.cli import app
app()
""")
    done = subprocess.run(
        [sys.executable, str(script), "inspect", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert done.stdout == "interrupted\n"
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c_while_the_command_is_imported_as_a_module(tmp_path):
    """As `accelerate launch -m` runs it: its package imports no model before the command is there to end."""
    (tmp_path / "sitecustomize.py").write_text("""
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "typer"):
            sys.meta_path.remove(self)
            print(name, flush=True)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
""")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "hf_curriculum.cli", "inspect", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert (done.stdout, done.returncode) == ("typer\n", 130), done.stderr
    assert "Traceback" not in done.stderr


def test_a_reader_that_stops_early_is_no_error(scored):
    command = f"{sys.executable} -m hf_curriculum.cli inspect {scored} | head -1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("20 rows")
    assert "Error" not in done.stderr
    assert "Traceback" not in done.stderr
