"""The command line, as typed."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil

import pytest
from PIL import Image
from typer.testing import CliRunner

from hf_curriculum import Phases
from hf_curriculum.cli import app


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    (folder / "images").mkdir(parents=True)
    lines = []
    for number in range(8):
        Image.new("RGB", (8, 8), (20 * number, 0, 0)).save(folder / "images" / f"{number}.png")
        captions = ["a dog" + " and a cat" * (number % 4), "a dog"]
        lines.append(json.dumps({"file_name": f"{number}.png", "captions": captions}))
    (folder / "captions.jsonl").write_text("\n".join(lines))
    return folder


def typed(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.output


def told(*words):
    """What a command prints as JSON."""
    result = CliRunner().invoke(app, [*(str(word) for word in words), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_score_then_plan(photos, tmp_path, caplog):
    output = typed("score", photos, tmp_path / "scored", "--per-image", "max")
    assert "noun_count  NounCount, max per image  low" in output
    assert "saved to" in output
    text = typed("plan", tmp_path / "scored", '{"type": "phases", "num_phases": 2}', "--batch-size", "4")
    assert "phase 1  easiest 50 %" in text
    facts = told("plan", tmp_path / "scored", json.dumps(Phases(2).to_dict()), "--batch-size", "4")
    assert [stage["pool"] for stage in facts["stages"]] == [8, 16]
    assert (facts["exposure"]["distinct"], facts["exposure"]["exact"], facts["notes"]) == (16, True, [])
    small = CliRunner().invoke(app, ["plan", str(tmp_path / "scored"), "phases", "--batch-size", "16"]).output
    assert " ".join(small.split()).count("A step takes 16 examples") == 1
    assert "A step takes 16 examples" not in caplog.text


def test_a_plan_is_drawn_and_one_that_decides_says_what_is_certain(photos, tmp_path):
    typed("score", photos, tmp_path / "scored")
    figure = tmp_path / "plan.png"
    text = typed("plan", tmp_path / "scored", "phases", "--steps", "11", "--batch-size", "4")
    assert text.startswith("Phases(fit_steps=11) by")
    assert " in 11 steps of 4" in text
    text = typed("plan", tmp_path / "scored", "baby_steps", "--epochs", "12", "--batch-size", "4", "--figure", figure)
    assert "forced in at the latest: bucket 2 after step" in text
    assert figure.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("name", "kind"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a", b"\x89PNG")])
def test_the_figure_of_a_plan_is_drawn_whole_or_not_at_all(name, kind, photos, tmp_path, monkeypatch):
    typed("score", photos, tmp_path / "scored")
    words = ("plan", tmp_path / "scored", "phases", "--batch-size", "4", "--figure", tmp_path / "out" / name)
    (tmp_path / "scratch").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "scratch")
    typed(*words)
    content = (tmp_path / "scratch" / name).read_bytes()
    assert content.startswith(kind)

    def full(figure, file, **options):
        file.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", full)
    assert name in fails(*words)
    assert [(file.name, file.read_bytes()) for file in (tmp_path / "scratch").iterdir()] == [(name, content)]


def test_the_order_of_a_plan_is_exported(photos, tmp_path):
    from hf_curriculum import CurriculumSampler, load_scored, make_plan

    typed("score", photos, tmp_path / "scored")
    words = ("plan", tmp_path / "scored", "phases", "--batch-size", "4", "--export")
    file = tmp_path / "order.npy"
    assert "draws in" in CliRunner().invoke(app, [str(word) for word in (*words, file)]).output
    data = load_scored(tmp_path / "scored")
    plan = make_plan(Phases(), data, score_column="noun_count", global_batch_size=4)
    assert list(CurriculumSampler.from_export(file, data)) == plan.rows(0, plan.num_samples).tolist()
    typed(*words, tmp_path / "ids.txt", "--id-column", "image_id")
    ids = data["image_id"][:]
    assert (tmp_path / "ids.txt").read_text().split() == [ids[row] for row in plan.rows(0, plan.num_samples)]
    assert "is not of DataComp" in fails(*words, file, "--id-column", "image_id", "--datacomp")
    assert "There is no --export" in fails(*words[:-1], "--datacomp", status=2)
    assert "decides while training" in fails(
        "plan", tmp_path / "scored", "baby_steps", "--epochs", "12", "--batch-size", "4", "--export", file
    )


def fails(*words, status=1):
    """What a command that must fail says, on one line."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == status, result.output
    return " ".join(result.output.replace("│", " ").split())


def test_scorers_with_arguments_that_learn_and_that_combine(photos, tmp_path):
    from hf_curriculum import CaptionLength, load_scored, read_provenance

    sum_of_both = {"type": "combined", "weights": {"caption_length": 1, "word_rarity": 1}, "normalise": "rank"}
    options = ["--scorer", '{"type": "caption_length", "easy": "high"}', "--scorer", "word_rarity"]
    options += ["--scorer", json.dumps(sum_of_both), "--batch-size", "3", "--part-rows", "6"]
    command = ["score", str(photos), str(tmp_path / "scored"), *options, "--json"]
    told = json.loads(CliRunner().invoke(app, command).stdout)
    scores = told["splits"]["all"]["scores"]
    assert list(scores) == ["caption_length", "word_rarity", "combined"]
    assert scores["caption_length"]["rows"] == 16
    assert scores["combined"]["provenance"]["arguments"]["normalise"] == "rank"
    loaded = load_scored(tmp_path / "scored")
    assert read_provenance(loaded)["caption_length"] == CaptionLength(easy="high").describe()
    assert loaded["caption_length"][:] == [float(len(caption.split())) for caption in loaded["caption"]]
    assert not (tmp_path / "scored.parts").exists()


def test_a_side_file_of_all_splits(tmp_path):
    from datasets import Dataset, DatasetDict

    from hf_curriculum import load_captioned, load_scores

    captions = {"train": ["a dog", "two dogs run", "a cat"], "test": ["a cat and a dog", ""]}
    data = {
        name: Dataset.from_dict({"caption": texts, "image_id": [f"{name} {i}" for i in range(len(texts))]})
        for name, texts in captions.items()
    }
    DatasetDict(data).save_to_disk(str(tmp_path / "data"))
    file = tmp_path / "scores.parquet"
    options = ["--images", "none", "--scorer", "word_rarity", "--scorer", "caption_length"]
    assert f"saved to {file}" in typed("score", tmp_path / "data", "--side-file", file, *options).replace("\n", "")
    loaded = load_scores(load_captioned(tmp_path / "data", images=False), file)
    assert (loaded["train"]["caption_length"][:], loaded["test"]["caption_length"][0]) == ([2, 3, 2], 5)
    assert not (tmp_path / "scores.parquet.parts").exists()
    error = fails("score", tmp_path / "data", "--side-file", file, *options)
    assert "scores.parquet is there already. Pass --overwrite" in error
    typed("score", tmp_path / "data", "--side-file", file, *options, "--overwrite")
    error = fails("score", tmp_path / "data", tmp_path / "out", *options, "--fit-on", "val")
    assert "there is no split 'val' among ['train', 'test']" in error


def test_an_interrupted_run_goes_on(photos, tmp_path, monkeypatch):
    from hf_curriculum import CaptionLength

    calls, whole = [], CaptionLength.score

    def score(self, batch, rank):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(len(batch["caption"]))
        return whole(self, batch, rank)

    command = ["score", photos, tmp_path / "out", "--scorer=caption_length", "--batch-size=4", "--part-rows", "4"]
    monkeypatch.setattr(CaptionLength, "score", score)
    assert CliRunner().invoke(app, [str(word) for word in command]).exit_code != 0
    calls = []
    typed(*command)
    assert calls == [4, 4]  # of four
    changed = [*command[:-1], "8"]
    (tmp_path / "out" / "scores.json").unlink()
    calls = [0]
    assert CliRunner().invoke(app, [str(word) for word in command]).exit_code != 0  # leaves a part
    assert "rows_per_part was 4 and is 8" in fails(*changed)
    monkeypatch.setattr(CaptionLength, "score", whole)
    typed(*changed, "--parts", tmp_path / "elsewhere")
    assert sorted(path.name for path in (tmp_path / "elsewhere").iterdir()) == ["all"]  # kept: the user's own


def in_another_process(*words):
    """What a command that runs meanwhile in a process of its own says, and its error's kind."""
    there, wanted = os.pipe()
    process = os.fork()
    if process == 0:
        result = CliRunner().invoke(app, [str(word) for word in words])
        os.write(wanted, f"{result.exit_code} {result.output} {result.exception}".encode())
        os._exit(0)
    os.close(wanted)
    os.waitpid(process, 0)
    with os.fdopen(there) as pipe:
        return " ".join(pipe.read().split())


@pytest.mark.parametrize("other", ["caption_length", "noun_count"])
@pytest.mark.parametrize("moment", ["score", "save", "tidy"])
def test_two_commands_do_not_score_into_one_place_at_once(photos, tmp_path, monkeypatch, other, moment):
    import hf_curriculum.scored_data
    from hf_curriculum import CaptionLength, load_scored

    second = ["score", photos, tmp_path / "same" / "out", f"--scorer={other}", "--overwrite"]
    (tmp_path / "same").symlink_to(tmp_path)
    place, name = {
        "score": (CaptionLength, "score"),
        "save": (hf_curriculum.scored_data, "save_scored"),
        "tidy": (shutil, "rmtree"),
    }[moment]
    real, heard = getattr(place, name), []

    def meanwhile(*args, **options):
        if moment != "tidy" or str(args[0]).endswith(".parts"):
            monkeypatch.setattr(place, name, real)
            heard.append(in_another_process(*second))
        return real(*args, **options)

    monkeypatch.setattr(place, name, meanwhile)
    typed("score", photos, tmp_path / "out", "--scorer=caption_length")
    assert len(heard) == 1
    told = r"^1 .*Error: Another process writes .*out \(process \d+ on .*Wait for it or end it"
    assert re.search(told, heard[0]), heard
    assert load_scored(tmp_path / "out")["caption_length"][0] > 0
    assert "noun_count" not in load_scored(tmp_path / "out").column_names
    assert sorted(path.name for path in tmp_path.iterdir() if "out" in path.name) == ["out"]


def test_a_side_file_takes_the_place_of_nothing_else(photos, tmp_path):
    command = ["score", photos, tmp_path / "out", "--scorer=caption_length", "--side-file"]
    for name in ("out", "out/scores.json", "out/sub/s.parquet"):
        assert "which the data set replaces as a whole" in fails(*command, tmp_path / name, status=2)
    (tmp_path / "list.csv").write_text("mine")
    assert "is no side file of scores" in fails(*command, tmp_path / "list.csv", "--overwrite")
    assert (tmp_path / "list.csv").read_text() == "mine"
    assert not (tmp_path / "out").exists()


def test_a_disk_that_is_full_at_first(photos, tmp_path, monkeypatch):
    import hf_curriculum.sealed_parquet as written

    file = tmp_path / "s.parquet"
    command = ["score", photos, "--side-file", file, "--scorer=caption_length"]

    class Full(written.pq.ParquetWriter):
        def write_table(self, table):
            if "image_id" in table.column_names:  # not a part
                self.file_handle and self.file_handle.write(b"cut")
                raise OSError(errno.ENOSPC, "No space left on device")
            super().write_table(table)

    monkeypatch.setattr(written.pq, "ParquetWriter", Full)
    assert "No space left on device" in (error := fails(*command))
    assert str(file) in error.replace(" ", "")
    assert not file.exists()
    monkeypatch.undo()
    assert "saved to" in typed(*command)


def test_a_link_under_the_name_of_the_parts_is_refused(photos, tmp_path):
    (tmp_path / "mine").mkdir()
    for name in ("out.parts", ".out.score.lock"):
        (tmp_path / name).symlink_to(tmp_path / "mine")
        assert f"{name} is a link to" in fails("score", photos, tmp_path / "out")
        (tmp_path / name).unlink()
    for name in ("all", "all/noun_count"):
        (tmp_path / "parts" / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / "parts" / name).symlink_to(tmp_path / "mine")
        assert "is a link to" in fails("score", photos, tmp_path / "out", "--parts", tmp_path / "parts")
        (tmp_path / "parts" / name).unlink()
    assert list((tmp_path / "mine").iterdir()) == []
    (tmp_path / "named").symlink_to(tmp_path / "mine")  # by the user
    typed("score", photos, tmp_path / "out", "--parts", tmp_path / "named")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["all"]


def test_each_launched_process_does_its_share(photos, tmp_path, monkeypatch):
    command = ["score", photos, tmp_path / "out", "--scorer=caption_length", "--batch-size=4", "--part-rows", "4"]
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    result = typed(*command)
    assert "process 1 of 2: its share is done" in result
    assert not (tmp_path / "out").exists()
    monkeypatch.setenv("RANK", "0")
    assert "saved to" in typed(*command)
    monkeypatch.setenv("RANK", "1")
    assert typed(*command) == ""  # started again when all is done
    (tmp_path / "out" / "scores.json").unlink()
    assert "process 3 of 64: its share is done" in typed(*command, "--rank", 3, "--ranks", 64)
    monkeypatch.delenv("WORLD_SIZE")
    assert "`RANK` is 1, but WORLD_SIZE is not known" in fails(*command)


def test_mistakes_end_with_a_status(photos, tmp_path):
    out = tmp_path / "x"
    assert "There is no scorer 'beauty'" in fails("score", photos, out, "--scorer", "beauty", status=2)
    assert "needs `model`" in fails("score", photos, out, "--scorer", "vilt_similarity", status=2)
    unknown = fails("score", photos, out, "--scorer", '{"type": "noun_count", "tag": "NN"}', status=2)
    assert "`tag` is no argument of NounCount" in unknown
    assert "--side-file" in fails("score", photos, status=2)
    assert "Error: " in fails("score", tmp_path / "nothing", out)
    assert "'sum' is not one of" in fails("score", photos, out, "--per-image", "sum", status=2)
    text = {"type": "caption_length", "column": "text"}
    assert "`text` is not in the data" in fails("score", photos, out, "--scorer", json.dumps(text))
    model = {"type": "language_model_loss", "model": str(tmp_path / "nothing")}
    assert "Check the name" in fails("score", photos, out, "--scorer", json.dumps(model))
    assert not out.exists()
    typed("score", photos, out)  # what failed leaves nothing in the way


def test_version():
    import hf_curriculum

    assert typed("version").strip() == hf_curriculum.__version__


def test_from_images_and_captions_to_a_page_about_a_model(photos, tmp_path):
    typed("score", photos, tmp_path / "scored", "--per-image", "max")
    text = typed("inspect", tmp_path / "scored", "--html", tmp_path / "page")
    assert "noun_count" in text
    assert (tmp_path / "page" / "report.html").is_file()
    facts = told("inspect", tmp_path / "scored", "--examples", "2")
    assert len(facts["scores"][0]["easiest"]) == 2
    rule = '{"type": "phases", "num_phases": 2}'
    options = ("--curriculum", rule, "--batch-size", "4", "--image-size", "32", "--validation", "0.2")
    text = typed("train", tmp_path / "scored", tmp_path / "run", *options)
    assert "phase 2" in text
    assert "hf-curriculum report" in text
    assert (tmp_path / "run" / "model" / "config.json").is_file()
    text = typed("report", tmp_path / "run", "--dataset", tmp_path / "scored")
    assert "page:" in text
    assert f"next: hf-curriculum evaluate {tmp_path / 'run' / 'model'}" in text
    evaluated = ("evaluate", tmp_path / "run" / "model", "--task", "blimp", "--limit", "4")
    assert "blimp" in typed(*evaluated, "--output", tmp_path / "evaluation").lower()
    assert (tmp_path / "evaluation" / "results.json").is_file()
    page = (tmp_path / "run" / "report" / "report.html").read_text()
    assert "Easiest examples" in page
    again = ("--model", tmp_path / "run" / "model", "--curriculum", "iid", "--epochs", "1", "--batch-size", "4")
    facts = told("train", tmp_path / "scored", tmp_path / "more", *again)
    assert facts["steps"] > 0
    assert facts["model"] == str(tmp_path / "more" / "model")


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("inspect", "nowhere"), 2, "is no folder"),
        (("report", "nowhere"), 2, "'nowhere' does not exist"),
        (("score", "nowhere", "out"), 1, "There is no file or folder nowhere here"),
        (("caption", "no/where", "a.png"), 1, "There is no captioner no/where"),
        (("train", "nowhere", "out"), 2, "is no folder"),
        (("push", "nowhere", "me/data"), 2, "is no folder"),
        (("evaluate", "nowhere"), 1, "nowhere"),
    ],
)
def test_commands_that_cannot_run_say_so(words, status, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (8, 8)).save("a.png")
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == status
    assert message in " ".join(result.output.split())


@pytest.mark.parametrize("words", [("inspect",), ("plan",), ("train", "out"), ("push", "me/data")])
def test_images_in_place_of_scored_data(words, photos, monkeypatch):
    monkeypatch.chdir(photos.parent)
    command, *others = words
    result = CliRunner().invoke(app, [command, photos.name, *others])
    assert result.exit_code == 2
    said = " ".join(result.output.replace("│", " ").split())
    assert f"{photos.name} holds no scores. Score it first: hf-curriculum score {photos.name} scored" in said


def test_a_push_that_is_refused_ends_with_a_line(photos, tmp_path, monkeypatch):
    from hf_curriculum.hub import push as module
    from hf_curriculum.hub.errors import HubError

    def refuse(*args, **kwargs):
        raise HubError("The Hub says no.", 403)

    typed("score", photos, tmp_path / "scored")
    monkeypatch.setattr(module, "push_scored", refuse)
    result = CliRunner().invoke(app, ["push", str(tmp_path / "scored"), "me/data"])
    assert result.exit_code == 1
    assert "Error: The Hub says no." in result.output
