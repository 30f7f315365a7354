"""What a command refuses before it costs or spoils anything, and what it says."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest
from datasets import Dataset, DatasetDict, enable_progress_bars, load_from_disk
from PIL import Image
from typed_commands import result, said
from typer.testing import CliRunner

from hf_curriculum import CaptionLength, add_scores, load_scored, save_scored
from hf_curriculum.cli import app, common


def rows(count, first=0):
    numbers = range(first, first + count)
    return Dataset.from_dict(
        {
            "image": [Image.new("RGB", (8, 8), (9 * number % 256, 9, 9)) for number in numbers],
            "image_id": [f"i{number}" for number in numbers],
            "caption": ["word " * (1 + number % 7) for number in numbers],
        }
    )


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """`whole` and `parts`, scored data sets without and with splits, and `photos`, a folder of images."""
    folder = tmp_path_factory.mktemp("given")
    whole = add_scores(rows(24), CaptionLength())
    save_scored(whole, folder / "whole")
    splits = DatasetDict({"train": rows(24), "test": rows(10, 24)})
    save_scored(add_scores(splits, CaptionLength()), folder / "parts")
    (folder / "photos").mkdir()
    for number in range(4):
        Image.new("RGB", (8, 8)).save(folder / "photos" / f"{number}.png")
    lines = [f"{number}.png,a dog{' and a cat' * number}" for number in range(4)]
    (folder / "photos" / "captions.csv").write_text("\n".join(["file_name,caption", *lines]))
    return folder


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("inspect", "whole", "--split", "val"), "whole has no splits, and so not 'val'"),
        (("plan", "parts", "--split", "val"), "has the splits ['train', 'test'], and not 'val'"),
        (
            ("inspect", "photos/captions.csv"),
            "Score it first, with --images FOLDER if it names images: hf-curriculum score",
        ),
        (("inspect", "whole", "--examples", "-1"), "greater than or equal to 0"),
        (("plan", "whole", "iid", "--epochs", "0"), "0 was given; a number above 0 is needed"),
        (("plan", "whole", "iid", "--epochs", "inf"), "inf was given; a number above 0 is needed"),
        (("plan", "whole", "--batch-size", "0"), "greater than or equal to 1"),
        (("train", "whole", "out", "--epochs", "0"), "0 was given; a number above 0 is needed"),
        (("train", "whole", "out", "--learning-rate", "nan"), "nan was given; a number above 0 is needed"),
        (("train", "whole", "out", "--max-length", "2"), "greater than or equal to 3"),
        (("score", "photos", "out", "--column", "caption"), "'caption' is not OURS=THEIRS, as in caption=text"),
        (("score", "photos", "out", "--fit-on", "train"), "None of the scorers learns from a corpus"),
        (("report", "nothing"), "'nothing' does not exist"),
        (("report", "whole", "--control", "a/x", "--control", "b/x"), "Two of them are called 'x'"),
    ],
)
def test_called_in_a_way_that_cannot_work(given, words, message, monkeypatch):
    monkeypatch.chdir(given)
    done = result(*words)
    assert done.exit_code == 2, done.output
    assert message in said(done)
    assert not (given / "out").exists()


def test_columns_of_other_names_are_named(tmp_path):
    for number in range(3):
        Image.new("RGB", (8, 8), (80 * number, 0, 0)).save(tmp_path / f"{number}.png")
    lines = [f"{number}.png,a dog,{number} very big dogs" for number in range(3)]
    (tmp_path / "captions.csv").write_text("\n".join(["photo,short,long", *lines]))
    out, words = tmp_path.with_name("scored"), ("--scorer", "caption_length", "--column", "image=photo")
    refused = result("score", tmp_path, out, *words)
    assert refused.exit_code == 1
    assert "['photo', 'short', 'long']" in said(refused)
    assert "--column caption=..." in said(refused)
    assert result("score", tmp_path, out, *words, "--column", "caption=long").exit_code == 0
    assert load_scored(out)["caption_length"][:] == [4.0] * 3
    several = ("--column", "caption=short", "--column", "caption=long", "--overwrite")
    assert result("score", tmp_path, out, *words, *several).exit_code == 0
    assert load_scored(out)["caption_length"][:] == [2.0, 4.0] * 3


def test_no_bar_is_left_in_a_log(tmp_path):
    """`datasets` shows one when it casts the images of a Parquet file."""
    for number in range(3):
        Image.new("RGB", (8, 8), (80 * number, 0, 0)).save(tmp_path / f"{number}.png")
    names = [f"{number}.png" for number in range(3)]
    Dataset.from_dict({"image": names, "caption": ["a dog"] * 3}).to_parquet(tmp_path / "data.parquet")
    enable_progress_bars()
    done = result("score", tmp_path, tmp_path.with_name("scored-bars"), "--scorer", "caption_length")
    assert done.exit_code == 0, done.output
    assert "%|" not in done.stderr


def test_boxes_that_are_missing_come_with_an_option(given, tmp_path):
    done = result("score", given / "photos", tmp_path / "out", "--scorer", "box_count")
    assert done.exit_code == 1
    assert "`objects` is not in the data" in said(done)
    assert "hf-curriculum score: --objects FILE" in said(done)


@pytest.mark.parametrize("reason", ["offline mode", "no connection"])
def test_a_dry_run_of_a_push_needs_no_network(given, monkeypatch, reason):
    from huggingface_hub import constants

    if reason == "offline mode":
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    else:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    done = result("push", given / "parts", "me/name", "--dry-run")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[:3] == [
        "nothing was sent; this would be:",
        "to me/name (not known who sees it: the Hub did not answer)",
        "rows: 24 in train, 10 in test",
    ]
    assert "images and other files embedded: 34, " in done.stdout
    assert "  data/train-00000-of-00001.parquet, " in done.stdout
    assert "not known without the Hub: whether the repository is there, which of its files this would" in lines[-1]
    contents = json.loads(result("push", given / "parts", "me/name", "--dry-run", "--json").stdout)
    assert contents["unanswered"]
    assert contents["rows"] == {"train": 24, "test": 10}
    refused = result("push", given / "parts", "me/name")
    assert refused.exit_code == 1
    assert "no answer" in said(refused)


def test_scored_data_go_into_a_folder_of_their_own(given, tmp_path):
    photos = given / "photos"
    before = sorted(photos.iterdir())
    done = result("score", photos, photos)
    assert done.exit_code == 1
    assert "photos holds other files (0.png, 1.png, 2.png, …)" in said(done)
    assert "captions.csv is a file, and a folder is written" in said(result("score", photos, photos / "captions.csv"))
    assert sorted(photos.iterdir()) == before
    output = tmp_path / "scored"
    output.mkdir()
    (output / "README.md").write_text("# Mine\n")
    (output / "data-00000-of-00001.arrow").touch()  # saving was cut short
    assert result("score", photos, output).exit_code == 0
    assert (output / "README.md").read_text().startswith("# Mine\n")


def test_splits_do_not_vanish_behind_what_was_there(given, tmp_path):
    """`load_from_disk` would read the old data set without splits."""
    output = tmp_path / "scored"
    command = ("--scorer", "caption_length", "--overwrite")
    assert result("score", given / "photos", output, *command).exit_code == 0
    load_from_disk(str(given / "parts")).remove_columns("caption_length").save_to_disk(str(tmp_path / "splits"))
    done = result("score", tmp_path / "splits", output, *command)
    assert done.exit_code == 1
    assert "holds a data set without splits, which would hide the splits ['train', 'test']" in said(done)
    assert len(load_scored(output)) == 4


def test_the_next_command_is_about_the_same_rows_and_batches(given):
    done = result("plan", given / "parts", "--split", "test", "--batch-size", "4")
    assert done.stderr.strip().endswith("run --curriculum phases --batch-size 4 --split test")
    done = result("inspect", given / "parts", "--split", "test", "--examples", "0")
    assert done.stderr.strip().endswith("phases --score-column caption_length --split test")
    assert "easiest by" not in done.stdout
    assert "--split" not in result("plan", given / "parts").stderr


def test_json_holds_no_nan(capsys):
    common.say("", {"loss": math.nan, "curve": [(1.0, -math.inf)], "name": "NaN"}, as_json=True)
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {
        "loss": None,
        "curve": [[1.0, None]],
        "name": "NaN",
    }


def test_captions_that_the_terminal_cannot_write(tmp_path):
    """In JSON nothing is lost; for people a question mark stands in the letter's place."""
    caption = "é → \N{GRINNING FACE}"
    save_scored(add_scores(Dataset.from_dict({"caption": [caption, "a b"]}), CaptionLength()), tmp_path / "scored")
    terminal = CliRunner(charset="cp1252")
    done = [terminal.invoke(app, ["inspect", str(tmp_path / "scored"), *more]) for more in ([], ["--json"])]
    assert [run.exit_code for run in done] == [0, 0]
    shown, told = (run.stdout for run in done)
    assert "row 0        é ? ?" in shown
    assert caption in [end["caption"] for end in json.loads(told)["scores"][0]["hardest"]]


@pytest.fixture(scope="module")
def trained(given):
    """A run of the command `train`, and what it printed."""
    run = given / "run1=x"
    words = ("--batch-size", "8", "--image-size", "16", "--validation", "0.2", "--curriculum", "{type: iid}")
    return run, result("train", given / "whole", run, *words, "--epochs", "1", "--json")


def test_a_run_is_not_trained_over_and_a_folder_may_hold_an_equals_sign(given, trained, tmp_path):
    run, done = trained
    assert json.loads(done.stdout)["examples"] == 24
    checkpoints = sorted(run.iterdir())
    done = result("train", given / "whole", run, "--image-size", "16")
    assert done.exit_code == 1
    assert "holds checkpoints of an earlier run, which this one would delete or be taken for" in said(done)
    assert sorted(run.iterdir()) == checkpoints
    done = result("report", run / checkpoints[0].name, tmp_path, "--control", run)
    assert done.exit_code == 0, done.output
    assert "run1=x" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_a_run_that_diverged_has_failed(given, tmp_path):
    command = ["train", given / "whole", tmp_path / "run", "--image-size", "16", "--learning-rate", "1e30", "--json"]
    done = result(*command, "--batch-size", "4", "--validation", "0.2")
    assert done.exit_code == 1
    assert json.loads(done.stdout, parse_constant=pytest.fail)["loss"] is None
    assert "The validation loss is nan: the run has diverged" in said(done)
    assert result("report", tmp_path / "run").exit_code == 0
    page = (tmp_path / "run" / "report" / "report.html").read_text()
    assert "A validation loss is not a number, and no curve shows it: run diverged." in page


@pytest.mark.slow
def test_processes_on_cpu_train_one_model_and_print_once(given, tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "-m", "hf_curriculum.cli"]
    command += ["train", str(given / "whole"), str(tmp_path / "run"), "--image-size", "16", "--validation", "0.2"]
    command += ["--batch-size", "4", "--curriculum", "{type: iid}", "--epochs", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["steps"] == 3  # 19 examples, 4 on each of two processes


SMALL = ("--batch-size", "8", "--image-size", "16", "--curriculum", "{type: iid}", "--epochs", "2")


@pytest.mark.parametrize("kept", [True, False])
def test_a_full_disk_is_one_line(given, tmp_path, monkeypatch, kept):
    """As `safetensors` says it, which raises no `OSError`; `--resume` goes on once there is room."""
    from safetensors import SafetensorError
    from transformers import PreTrainedModel

    save, calls = PreTrainedModel.save_pretrained, []

    def full(self, folder, **options):
        calls.append(folder)
        if len(calls) == (2 if kept else 1):
            raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
        return save(self, folder, **options)

    run = tmp_path / "run"
    words = ("train", given / "whole", run, *SMALL, "--validation", "0.2")
    monkeypatch.setattr("sys.argv", ["hf-curriculum", *map(str, words)])
    with monkeypatch.context() as patch:
        patch.setattr(PreTrainedModel, "save_pretrained", full)
        done = result(*words)
    assert done.exit_code == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    failed = run / f"checkpoint-{5 if kept else 3}"
    assert f"The disk is full: {failed} could not be written, " in line
    assert " MB are free" in line
    assert "Traceback" not in done.output
    if kept:
        assert "and a checkpoint takes " in line
        assert f"{run / 'checkpoint-3'} is kept. To go on from it:" in line
        assert done.stderr.splitlines()[-1].strip() == f"hf-curriculum {' '.join(map(str, words))} --resume".replace(
            "{type: iid}", "'{type: iid}'"
        )
        assert result(*words, "--resume").exit_code == 0
    else:
        assert "No checkpoint had been saved: the same command begins again." in line
        assert result(*words).exit_code == 0


def test_pytorch_does_not_say_that_the_disk_is_full(tmp_path, monkeypatch):
    error = RuntimeError("[enforce fail at inline_container.cc:671] . unexpected pos 4761600 vs 4761488")
    assert not common.disk_is_full(error, tmp_path / "not" / "there")
    monkeypatch.setattr(common, "free_bytes", lambda folder: 4096)
    assert common.disk_is_full(error, tmp_path)
    assert not common.disk_is_full(KeyError("a"), tmp_path)
    assert common.disk_is_full(OSError(122, "Disk quota exceeded"), tmp_path)


def test_other_errors_of_training_stay_what_they_are(given, tmp_path, monkeypatch):
    def broken(*given, **options):
        raise RuntimeError("a fault of a model")

    monkeypatch.setattr("hf_curriculum.tasks.captioning.train._train", broken)
    done = result("train", given / "whole", tmp_path / "run", *SMALL, "--validation", "0.2")
    assert str(done.exception) == "a fault of a model"


def test_a_part_is_held_out_before_scorers_learn(given, tmp_path):
    """A scorer that learns from a corpus sees the training rows alone, and `train` evaluates on the others."""
    from hf_curriculum import WordRarity, hold_out, load_captioned

    words = ("score", given / "photos", tmp_path / "out", "--scorer", "word_rarity", "--hold-out", "0.25")
    assert result(*words).exit_code == 0
    parts = hold_out(load_captioned(given / "photos"), 0.25)
    scored = load_scored(tmp_path / "out")
    assert {name: part["image_id"][:] for name, part in scored.items()} == {
        name: part["image_id"][:] for name, part in parts.items()
    }
    expected = add_scores(parts, WordRarity().fit(parts["train"]))
    assert scored["validation"]["word_rarity"][:] == expected["validation"]["word_rarity"][:]
    again = result(
        *(word if word != given / "photos" else tmp_path / "out" for word in words[:2]), tmp_path / "more", *words[3:]
    )
    assert again.exit_code == 2
    assert "has the splits ['train', 'validation']; a part is held out of `train` where there is no" in said(again)


def test_the_data_s_own_validation_split_is_evaluated_on(tmp_path, monkeypatch):
    splits = DatasetDict({"train": rows(12), "validation": rows(5, 12)})
    save_scored(add_scores(splits, CaptionLength()), tmp_path / "parts")
    seen = []
    monkeypatch.setattr("hf_curriculum.tasks.captioning.train._train", lambda trainer, show_plan: seen.append(trainer))
    words = ("train", tmp_path / "parts", tmp_path / "run", *SMALL)
    assert result(*words).exit_code == 0
    assert result(*words, "--validation", "0.25").exit_code == 0
    sizes = [(len(trainer.train_dataset), len(trainer.eval_dataset)) for trainer in seen]
    assert sizes == [(12, 5), (9, 3)]


def test_empty_captions_are_left_out_when_scoring_or_refused_before_training(tmp_path, monkeypatch, caplog):
    photos = tmp_path / "photos"
    photos.mkdir()
    for number in range(4):
        Image.new("RGB", (8, 8), (60 * number, 0, 0)).save(photos / f"{number}.png")
    lines = ["file_name,caption", "0.png,a dog", "1.png,", "2.png,a cat", "3.png,two dogs"]
    (photos / "captions.csv").write_text("\n".join(lines))
    scored, words = tmp_path / "scored", ("--scorer", "caption_length")
    assert result("score", photos, scored, *words).exit_code == 0
    assert "1 of 4 captions are empty" in caplog.text
    assert "in a shell `hf-curriculum score --drop-empty`" in caplog.text
    monkeypatch.setattr("hf_curriculum.tasks.captioning.train._trainer", lambda *_: pytest.fail("a model was made"))
    refused = result("train", scored, tmp_path / "run")
    assert refused.exit_code == 1
    assert f"1 of the captions in {scored} are empty" in said(refused)
    assert "score SOURCE OUTPUT --drop-empty" in said(refused)
    assert result("score", photos, scored, *words, "--overwrite", "--drop-empty").exit_code == 0
    assert load_scored(scored)["caption"][:] == ["a dog", "a cat", "two dogs"]
    assert "1 of 4 rows have an empty caption and are dropped" in caplog.text
