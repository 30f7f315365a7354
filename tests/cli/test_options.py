"""Every option of a command reaches the argument that it is meant for, where what is slow is replaced."""

from __future__ import annotations

import importlib
import json
import logging
import runpy
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import datasets
import numpy as np
import pytest
import typer
from datasets import Dataset, DatasetDict
from PIL import Image
from typed_commands import StandIn, done, result, said

from hf_curriculum import CaptionLength, add_scores, save_scored
from hf_curriculum.cli import common
from hf_curriculum.cli.push import push_command
from hf_curriculum.cli.score import score_table
from hf_curriculum.hub.push import PushContents
from hf_curriculum.names import SUITES
from hf_curriculum.provenance import ScoreProvenance, attach_provenance
from hf_curriculum.scoring.shards import ShardScores
from hf_curriculum.streaming.index import BucketIndex, Shard, StoredBucket


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """`whole` and `parts`: scored captions without splits, and with `train` and `test`."""
    folder = tmp_path_factory.mktemp("given")
    rows = Dataset.from_dict({"caption": ["a", "a b", "a b c", "a b c d"], "image_id": list("0123")})
    save_scored(add_scores(rows, CaptionLength()), folder / "whole")
    save_scored(add_scores(DatasetDict(train=rows, test=rows.select([0, 1])), CaptionLength()), folder / "parts")
    return folder


# ---- push ----


def test_push_with_every_option_and_without(scored, replaced):
    push = replaced("hub.push", "push_scored", SimpleNamespace(repo_url="https://hub/me/x", oid="abc"))
    found = done("push", scored / "whole", "me/x")
    words = ["--num-buckets", 3, "--score-column", "caption_length", "--cut", "value", "--private"]
    words += ["--license", "cc-by-4.0", "--thumbnails", "--json"]
    as_json = done("push", scored / "whole", "me/x", *words)
    (plain, asked), (given, named) = push.calls
    assert (len(plain[0]), *plain[1:]) == (len(given[0]), *given[1:]) == (4, "me/x")
    tells = [options.pop("tell") for options in (asked, named)]
    plain_options = {"num_buckets": None, "score_column": None, "cut": "rank", "license": None}
    assert asked == {**plain_options, "private": None, "thumbnails": False}
    assert named == {
        "num_buckets": 3, "score_column": "caption_length", "cut": "value", "license": "cc-by-4.0", "private": True,
        "thumbnails": True,
    }  # fmt: skip
    assert (found.stdout, found.stderr) == ("pushed: https://hub/me/x\n", "")
    assert json.loads(as_json.stdout) == {"repository": "https://hub/me/x", "commit": "abc"}
    assert [tell.keywords for tell in tells] == [{"err": True}] * 2


def test_what_is_pushed_is_told_on_standard_error(scored, monkeypatch):
    def push(*given, tell, **named):
        tell("all of it")
        return SimpleNamespace(repo_url="there", oid="abc")

    monkeypatch.setattr(importlib.import_module("hf_curriculum.hub.push"), "push_scored", push)
    found = done("push", scored / "whole", "me/x")
    assert (found.stdout, found.stderr) == ("pushed: there\n", "all of it\n")


def test_a_dry_run_of_a_push_sends_nothing_and_lists_all(scored, replaced):
    contents = PushContents("me/x", "public", {"train": 4}, {"caption": "string"}, 0, 0, {"README.md": 9}, (), {})
    push = replaced("hub.push", "push_scored", contents)
    found = done("push", scored / "whole", "me/x", "--dry-run")
    assert found.output == f"nothing was sent; this would be:\n{contents.describe()}\n"
    as_json = done("push", scored / "whole", "me/x", "--dry-run", "--json")
    assert json.loads(as_json.stdout) == json.loads(json.dumps(asdict(contents)))
    for _, named in push.calls:
        assert named["dry_run"] is True
        assert "tell" not in named


def test_scores_alone_are_pushed_by_their_key(tmp_path, replaced):
    push = replaced("hub.push_scores", "push_scores", SimpleNamespace(repo_url="https://hub/me/x", oid="abc"))
    found = done("push", tmp_path, "me/x", "--on", "shard", "--on", "key", "--license", "cc0-1.0")
    assert found.stdout == "pushed: https://hub/me/x\n"
    [(given, named)] = push.calls
    assert given == ("me/x", tmp_path)
    named.pop("tell")
    assert named == {"on": ["shard", "key"], "license": "cc0-1.0", "private": None}
    for words in ({"num_buckets": 3}, {"thumbnails": True}, {"cut": "value"}):
        with pytest.raises(typer.BadParameter, match="need the data, and scores alone are pushed"):
            push_command.__wrapped__(tmp_path, "me/x", on=["key"], **words)


# ---- score --in-place, bucket ----


def test_every_option_of_scores_in_place(tmp_path, replaced):
    status = ShardScores(2, 2, 9)
    score, look = (replaced("scoring.shards", name, status) for name in ("score_shards", "shard_status"))
    words = ["--scorer", "caption_length", "--keep", "uid", "--keep", "url", "--column", "caption=text"]
    words += [
        "--num-proc",
        3,
        "--num-workers",
        4,
        "--batch-size",
        7,
        "--rank",
        1,
        "--ranks",
        5,
        "--bad-shards",
        "drop",
    ]
    found = done("score", "c/*.tar", tmp_path, "--in-place", *words)
    assert found.stdout == "2 of 2 shards are scored: 9 pairs.\n"
    [((source, [scorer], out), named)] = score.calls
    assert (source, type(scorer), out) == ("c/*.tar", CaptionLength, tmp_path)
    others = {"num_proc": 3, "num_workers": 4, "batch_size": 7, "rank": 1, "world_size": 5, "bad_shards": "drop"}
    assert named == {"columns": {"caption": "text"}, "keep": ["uid", "url"], **others}
    assert json.loads(done("score", "c", tmp_path, "--status", "--json").stdout)["pairs"] == 9
    assert look.calls == [((tmp_path,), {})]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["out", "--keep", "uid"], "It goes with --in-place."),
        (["out", "--bad-shards", "drop"], "It goes with --in-place."),
        (["out", "--in-place", "--overwrite"], "It does not go with --in-place: True. Leave it out."),
        (["--in-place", "--scorer", "caption_length"], "Name the folder of the scores, OUTPUT."),
    ],
)
def test_options_that_scores_in_place_do_not_take(words, message, replaced):
    score = replaced("scoring.shards", "score_shards")
    found = result("score", "c", *words)
    assert (found.exit_code, score.calls) == (2, [])
    assert message in said(found)


def test_every_option_of_buckets(tmp_path, replaced):
    buckets = tuple(StoredBucket(3, float(at), at + 0.5, (Shard(f"{at}", 3, 1, ""),)) for at in range(2))
    facts = ("caption_length", "low", "value", (1.0,), 6, 0, "last", 0, "parquet", {})
    bucket = replaced("streaming.save_shards", "bucket_shards", BucketIndex(*facts, buckets, ((0.0,), (1.0,))))
    words = ["--num-buckets", 2, "--cut", "value", "--threshold", 1, "--score-column", "caption_length"]
    words += ["--easy", "high", "--unscored", "drop", "--uids", tmp_path / "u.npy", "--column", "caption=text"]
    words += ["--keep", "image", "--format", "webdataset", "--shard-size", 9, "--seed", 4, "--workers", 3]
    found = done("bucket", "c", tmp_path / "scores", tmp_path / "out", *words, "--overwrite")
    assert [line.split() for line in found.stdout.splitlines()[-2:]] == [
        ["0", "3", "0", "0.5", "1"],
        ["1", "3", "1", "1.5", "1"],
    ]
    assert f"6 pairs by value of caption_length (low = easy) in {tmp_path / 'out'}" in said(found)
    assert bucket.calls == [
        (
            ("c", tmp_path / "scores", tmp_path / "out", 2, "value"),
            {
                "score_column": "caption_length", "easy": "high", "thresholds": [1.0], "unscored": "drop",
                "uids": tmp_path / "u.npy", "columns": {"caption": "text"}, "keep": ["image"], "format": "webdataset",
                "shard_size": 9, "seed": 4, "workers": 3, "overwrite": True,
            },
        )
    ]  # fmt: skip


# ---- recipe ----


def test_a_recipe_runs_as_a_program_beside_its_own_modules(replaced, monkeypatch):
    ran = StandIn()
    monkeypatch.setattr(runpy, "run_path", ran)
    monkeypatch.setattr(sys, "path", ["elsewhere"])
    monkeypatch.setattr(sys, "argv", ["hf-curriculum"])
    done("recipe", "babylm_git", "--output", "out", "--help")
    [((script,), named)] = ran.calls
    assert Path(script).name == "babylm_git.py"
    assert named == {"run_name": "__main__"}
    assert sys.path == [str(Path(script).parent), "elsewhere"]
    assert sys.argv == [script, "--output", "out", "--help"]


# ---- inspect and plan ----


def test_inspect_with_every_option_and_without(scored, replaced, tmp_path):
    from hf_curriculum.reporting.inspection import inspect_scores

    look = replaced("reporting.inspection", "inspect_scores")
    look.gives = inspect_scores(common.load_split(scored / "parts", "test"))
    done("inspect", scored / "parts")
    found = done("inspect", scored / "parts", "--column", "a", "--column", "b", "--split", "test", "--examples", 2)
    (plain, asked), (given, named) = look.calls
    assert (len(plain[0]), plain[1], asked) == (4, None, {"examples": 5})
    assert (len(given[0]), given[1], named) == (2, ["a", "b"], {"examples": 2})
    assert f"next: hf-curriculum plan {scored / 'parts'} phases --score-column caption_length --split test" in (
        found.stderr
    )


def two_scores():
    """Scores that go together from their easy ends, one of which is not known of a row."""
    rows = Dataset.from_dict({"caption": ["a", "b\x1b[31m", None, "d" * 200], "image_id": ["0", "0", "1", "1"]})
    rows = rows.add_column("first", np.float32([1, 2, 3, 4])).add_column("other", np.float32([8, 6, 4, np.nan]))
    rows = rows.add_column("none", np.float32([np.nan] * 4))
    ends = {"first": "low", "other": "high", "none": "low"}
    return attach_provenance(rows, {name: ScoreProvenance(name, "by hand", easy=end) for name, end in ends.items()})


def test_a_look_at_one_score_has_no_correlations_and_at_several_it_has(tmp_path):
    save_scored(two_scores(), tmp_path / "scored")
    one = done("inspect", tmp_path / "scored", "--column", "first", "--examples", "1").stdout
    assert "rank correlation" not in one
    assert [line.split() for line in one.splitlines()] == [
        ["4", "rows,", "2", "images"],
        ["score", "by", "easy", "scored", "unscored", "min", "25", "%", "median", "75", "%", "max"],
        ["first", "by", "hand", "low", "4", "0", "1", "1.75", "2.5", "3.25", "4"],
        [],
        ["easiest", "by", "first"],
        ["1", "row", "0", "a"],
        [],
        ["hardest", "by", "first"],
        ["4", "row", "3", "d" * 159 + "…"],
    ]
    both = done("inspect", tmp_path / "scored", "--column", "first", "--column", "other", "--examples", "0").stdout
    matrix = both.partition("\n\n")[2].splitlines()
    assert matrix[0].split() == ["rank", "correlation,", "both", "from", "their", "easy", "end", "first", "other"]
    assert [line.split() for line in matrix[1:]] == [["first", "1.00", "1.00"], ["other", "1.00", "1.00"]]
    none = done("inspect", tmp_path / "scored", "--column", "none").stdout
    assert none.splitlines()[2].split() == ["none", "by", "hand", "low", "0", "4", *["–"] * 5]


def test_plan_with_every_option(scored, replaced, tmp_path):
    make = replaced("planning.plan", "make_plan")
    drawn = replaced("reporting.figures.growth", "plan_growth", SimpleNamespace(savefig=StandIn()))
    rank = replaced("planning.ranking", "rank_dataset", "ranking")
    made = SimpleNamespace(
        stages=[],
        describe=lambda: "the plan",
        to_dict=lambda: {"type": "plan"},
        notes=("a note",),
        exposure=pytest.fail,
    )
    make.gives = made
    words = ["--score-column", "caption_length", "--batch-size", 2, "--split", "test"]
    found = done("plan", scored / "parts", "iid", *words, "--epochs", 1.5, "--figure", tmp_path / "a.svg")
    [(given, named)] = make.calls
    assert (given[0].type, *given[1:]) == ("iid", "ranking")
    assert named == {"global_batch_size": 2, "epochs": 1.5}
    [((data, rule, column), _)] = rank.calls
    assert (len(data), rule.type, column) == (2, "iid", None)  # a rule in random order goes by no score
    assert drawn.calls == [((made,), {})]
    [((temporary,), how)] = drawn.gives.savefig.calls
    assert (temporary.parent, temporary.suffix, how) == (tmp_path, ".svg", {"format": "svg"})
    assert found.stdout == "the plan\n"
    assert found.stderr.splitlines() == [
        f"drawn in {tmp_path / 'a.svg'}",
        f"next: hf-curriculum train {scored / 'parts'} run --curriculum iid --score-column caption_length "
        "--epochs 1.5 --batch-size 2 --split test",
    ]
    as_json = done("plan", scored / "whole", "--steps", 12, "--json")
    assert json.loads(as_json.stdout) == {"type": "plan", "exposure": None, "notes": ["a note"]}
    (given, named) = make.calls[1]
    assert (given[0].type, given[0].fit_steps) == ("phases", 12)
    assert named == {"global_batch_size": 32, "epochs": None}
    assert rank.calls[1][0][2] == "caption_length"
    assert as_json.stderr.startswith(f'next: hf-curriculum train {scored / "whole"} run --curriculum \'{{"type": ')
    assert "--batch-size" not in as_json.stderr
    both = result("plan", scored / "whole", "--steps", 12, "--epochs", 1)
    assert (both.exit_code, "a run has one length" in said(both)) == (2, True)


def test_a_plan_s_warnings_are_heard_again_after_the_command(scored):
    log = logging.getLogger("hf_curriculum.planning.plan")
    before = log.level
    seen = []
    log.addFilter(seen.append)
    try:
        done("plan", scored / "whole", "phases", "--batch-size", 4)
        result("plan", scored / "whole", "phases", "--epochs", 3)
    finally:
        log.removeFilter(seen.append)
    assert log.level == before


# ---- report, caption, evaluate ----


def test_report_with_every_option_and_without(scored, replaced, tmp_path):
    report = replaced("training.report", "training_report", SimpleNamespace(write=StandIn("page.html")))
    run, other = tmp_path / "run", tmp_path / "other"
    run.mkdir()
    found = done("report", run)
    assert (found.stdout, found.stderr) == ("page: page.html\n", "")
    assert report.calls == [((run,), {"controls": {}, "dataset": None, "title": "A training run"})]
    assert report.gives.write.calls == [((run / "report",), {})]
    (run / "model").mkdir()
    words = ["--control", f"mine={other}", "--control", tmp_path / "plain", "--dataset", scored / "parts"]
    found = done("report", run, tmp_path / "page", *words, "--split", "test", "--title", "T", "--json")
    named = report.calls[1][1]
    assert len(named.pop("dataset")) == 2
    assert named == {"controls": {"mine": other, "plain": tmp_path / "plain"}, "title": "T"}
    assert report.gives.write.calls[1] == ((tmp_path / "page",), {})
    assert json.loads(found.stdout) == {"page": "page.html"}
    assert found.stderr == f"next: hf-curriculum evaluate {run / 'model'}\n"


def test_caption_with_every_option_and_without(replaced, tmp_path, monkeypatch):
    files = []
    for number in range(3):
        files.append(tmp_path / f"{number}.png")
        Image.new("RGB", (4 + number, 4)).save(files[-1])
    load = replaced("tasks.captioning.cli", "load_for_captions", ("model", "processor"))
    calls = []

    def write(model, images, processor, **options):
        calls.append((model, [image.width for image in images], processor, options))
        return [f"\x1bwide {image.width}" for image in images]

    monkeypatch.setattr(importlib.import_module("hf_curriculum.evaluation.generate"), "caption_images", write)
    found = done("caption", "me/model", tmp_path)
    assert calls == [("model", [4, 5, 6], "processor", {"num_beams": 1})]
    assert [line.split("\t")[0] for line in found.stdout.splitlines()] == [str(file) for file in files]
    assert "\x1b" not in found.stdout
    calls.clear()
    words = ["--beams", 3, "--max-new-tokens", 7, "--batch-size", 2, "--json"]
    found = done("caption", "me/model", *files, *words)
    options = {"num_beams": 3, "max_new_tokens": 7}
    assert calls == [("model", [4, 5], "processor", options), ("model", [6], "processor", options)]
    assert json.loads(found.stdout) == [
        {"image": str(file), "caption": f"\x1bwide {4 + number}"} for number, file in enumerate(files)
    ]
    assert load.calls == [(("me/model", None), {})] * 2


def test_evaluate_benchmarks_with_every_option_and_without(replaced, tmp_path):
    class Found:
        table = "the table"

    evaluate = replaced("tasks.babylm.suite", "evaluate_pretrained", Found)
    (tmp_path / "results.json").write_text('{"blimp": 1}')
    found = done("evaluate", "me/model", "--output", tmp_path)
    assert (found.stdout, found.stderr) == ("the table\n", f"tables and predictions in {tmp_path}\n")
    words = ["--data", "files", "--task", "blimp", "--task", "ewok", "--batch-size", 3, "--limit", 9, "--json"]
    found = done("evaluate", "me/model", "--output", tmp_path, *words)
    assert json.loads(found.stdout) == {"blimp": 1}
    plain = {"tasks": None, "batch_size": 64, "limit": None, "progress": True}
    given = {"tasks": ["blimp", "ewok"], "batch_size": 3, "limit": 9, "progress": False}
    assert evaluate.calls == [
        (("me/model", "babylm"), {"output_dir": tmp_path, "data_dir": None, **plain}),
        (("me/model", "babylm"), {"output_dir": tmp_path, "data_dir": "files", **given}),
    ]
    odd = result("evaluate", "me/model", "--beams", 2)
    assert (odd.exit_code, "It has no effect with `--suite babylm`" in said(odd)) == (2, True)


@pytest.mark.parametrize("suite", ["captions", "retrieval"])
def test_evaluate_on_data_passes_every_option_on(monkeypatch, tmp_path, suite):
    evaluate = StandIn(SimpleNamespace(table="the table"))
    monkeypatch.setitem(SUITES, suite, evaluate)
    words = ["--split", "dev", "--images", "photos", "--features", "store", "--compare", "a", "--compare", "b=c"]
    words += ["--html", "page"]
    own = {
        "split": "dev",
        "images": "photos",
        "features": Path("store"),
        "compare": ["a", "b=c"],
        "html": Path("page"),
    }
    if suite == "captions":
        words += ["--beams", 2, "--max-new-tokens", 3, "--metrics", "cider", "--metrics", "bleu", "--clip", "a/clip"]
        words += ["--difficulty-from", "v.csv"]
        own |= {"beams": 2, "max_new_tokens": 3, "metrics": ["cider", "bleu"], "clip": "a/clip"}
        own |= {"difficulty_from": Path("v.csv")}
    else:
        words += ["--protocol", "all", "--nouns", "max", "--ontology", "o.json"]
        own |= {"protocol": "all", "nouns": "max", "ontology": Path("o.json")}
    shared = {"output": tmp_path, "batch_size": 3, "limit": 9, "progress": True}
    words += ["--batch-size", 3, "--limit", 9]
    found = done("evaluate", "me/m", "--suite", suite, "--data", "d.json", "--output", tmp_path, *words)
    assert evaluate.calls == [(("me/m", "d.json"), {**shared, **own})]
    kept = "captions" if suite == "captions" else "ranks"
    assert (found.stdout, found.stderr) == ("the table\n", f"tables and {kept} in {tmp_path}\n")


# ---- what they share ----


@pytest.mark.parametrize("watched", [True, False])
def test_bars_are_hidden_where_nobody_watches(watched, monkeypatch):
    hidden = StandIn()
    monkeypatch.setattr(datasets, "disable_progress_bars", hidden)
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda: watched))
    common.hide_bars_unless_watched()
    assert len(hidden.calls) == (0 if watched else 1)


def test_a_command_is_typed_again_with_what_is_missing(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/bin/hf-curriculum", "train", "a b", "--resume"])
    monkeypatch.delenv("RANK", raising=False)
    assert common.typed_again() == "hf-curriculum train 'a b' --resume"
    assert common.typed_again("--resume", "--more") == "hf-curriculum train 'a b' --resume --more"
    monkeypatch.setenv("RANK", "0")
    assert common.typed_again() == "… hf-curriculum train 'a b' --resume"


def test_names_of_systems(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run" / "model").mkdir(parents=True)
    for name in ("run/captions.json", "run/other.json", "a=b"):
        (tmp_path / name).touch()
    assert common.name_of(Path("run/model")) == common.name_of(Path("run/captions.json")) == "run"
    assert (common.name_of(Path("run/other.json")), common.name_of(Path("run.v2"))) == ("other", "run.v2")
    assert common.named_paths(["a=b", "x=run", "run"], "--o") == {
        "a=b": Path("a=b"), "x": Path("run"), "run": Path("run")
    }  # fmt: skip
    with pytest.raises(typer.BadParameter, match=r"Two of them are called 'run'.*Name them: --o NAME=run/model"):
        common.named_paths(["run", "run/model"], "--o")


def test_the_score_that_a_rule_goes_by():
    from hf_curriculum import IID, Phases

    data = two_scores()
    assert common.score_for(Phases(2), data, None) == "first"
    assert common.score_for(Phases(2), data, "other") == "other"
    assert common.score_for(IID(), data, "other") is None
    bare = Dataset.from_dict({"length": [1, 2]})
    assert common.score_for(Phases(2), bare, "length") == "length"
    assert common.score_for(IID(), bare, None) is None
    with pytest.raises(typer.BadParameter, match="The data has no column 'gone'"):
        common.score_for(IID(), data, "gone")
    with pytest.raises(typer.BadParameter, match=r"None of \['length'\] is recorded as a score"):
        common.score_for(Phases(2), bare, None)


def test_numbers_above_zero():
    assert [common.above_zero(value) for value in (None, 0.5, 3)] == [None, 0.5, 3]
    for value in (0, -1, float("nan"), float("inf")):
        with pytest.raises(typer.BadParameter, match="a number above 0 is needed"):
            common.above_zero(value)


@pytest.mark.parametrize(
    ("encoding", "shown"), [("utf-8", "é"), ("UTF8", "é"), ("cp1252", "\\u00e9"), (None, "\\u00e9")]
)
def test_json_is_ascii_where_the_terminal_is_not_utf_8(encoding, shown, monkeypatch):
    printed = []
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(encoding=encoding))
    monkeypatch.setattr(typer, "echo", printed.append)
    common.say("", {"a": "é"}, as_json=True)
    assert printed == [f'{{\n "a": "{shown}"\n}}']


def test_tables_for_terminals_stand_left_and_right():
    text = common.lines_of(["name", "n"], [["a", "10"], ["long name", "2"]], left=1)
    assert text.splitlines() == ["name        n", "a          10", "long name   2"]
    assert common.lines_of(["a", "b"], [["1", "2 2"]], left=2).splitlines() == ["a  b", "1  2 2"]


def test_the_table_of_scores():
    def facts(unscored, made, **marks):
        marks = {name: marks.get(name) for name in ("min", "q25", "median", "q75", "max")}
        return {"rows": 1204, "unscored": unscored, "provenance": made, **marks}

    length = facts(4, {"scorer": "Length", "per_image": None, "easy": "low"}, min=1, q25=2.5, max=1234.56)
    scene = facts(1204, {"scorer": "Clip", "per_image": "max", "easy": "high"})
    rows = [" ".join(line.split()) for line in score_table({"a": {"scores": {"x": length}}}).splitlines()]
    assert rows == [
        "score by easy scored unscored min 25 % median 75 % max", "x Length low 1,200 4 1 2.5 – – 1235",
    ]  # fmt: skip
    several = score_table({"a": {"scores": {"x": length, "y": scene}}, "b": {"scores": {}}}).splitlines()
    assert [" ".join(line.split()) for line in several] == [
        "split score by easy scored unscored min 25 % median 75 % max",
        "a x Length low 1,200 4 1 2.5 – – 1235",
        "a y Clip, max per image high 0 1,204 – – – – –",
    ]
    assert several[1] == "a      x      Length               low    1,200         4    1   2.5       –     –  1235"


def test_a_disk_is_full_by_what_is_said_or_by_what_is_left(tmp_path, monkeypatch):
    lost, full = RuntimeError("unexpected pos"), tmp_path / "a" / "b"
    for free, is_full in ((1 << 20, False), ((1 << 20) - 1, True)):
        monkeypatch.setattr("shutil.disk_usage", lambda place, free=free: SimpleNamespace(free=free, place=place))
        assert (common.free_bytes(full), common.disk_is_full(lost, full)) == (free, is_full)
    monkeypatch.setattr("shutil.disk_usage", lambda place: SimpleNamespace(free=place))
    assert [common.free_bytes(place) for place in (tmp_path, full)] == [tmp_path, tmp_path]
    monkeypatch.setattr("shutil.disk_usage", lambda place: SimpleNamespace(free=1 << 40))
    outer, within = ValueError("outer"), KeyError("within")
    outer.__cause__ = within.__context__ = OSError(28, "")
    assert common.disk_is_full(outer, full)
    assert common.disk_is_full(within, full)
    assert common.disk_is_full(ValueError("No space left on device"), full)
    assert not common.disk_is_full(OSError(2, "gone"), full)
    assert not common.disk_is_full(None, full)


def test_a_folder_of_runs_is_no_model(tmp_path):
    for number, runs in ((1, "1 run and is"), (2, "2 runs and is")):
        config = tmp_path / f"seed{number}" / "model" / "config.json"
        config.parent.mkdir(parents=True)
        config.touch()
        named = ", ".join(str(tmp_path / f"seed{one}") for one in range(1, number + 1))
        with pytest.raises(typer.BadParameter) as caught:
            common.model_of(str(tmp_path))
        assert str(caught.value) == f"{tmp_path} holds {runs} no model. Name one of them: {named}"
    assert common.model_of(str(config.parent)) == str(config.parent)
    assert common.model_of(str(tmp_path / "seed1")) == str(tmp_path / "seed1" / "model")


def test_the_split_that_is_read(monkeypatch, tmp_path):
    data = Dataset.from_dict({"a": [1]})
    named = Dataset(data.data, split="dev")
    monkeypatch.setattr(common, "load_complete", {"plain": data, "named": named}.get)
    assert common.load_split("plain", "train") is data
    assert common.load_split("named", "train") is common.load_split("named", "dev") is named
    for name in ("plain", "named"):
        with pytest.raises(typer.BadParameter, match=f"{name} has no splits, and so not 'test'. Leave out --split"):
            common.load_split(name, "test")
    assert (common.in_split("train"), common.in_split("dev")) == ((), ("--split", "dev"))


def test_the_next_command_is_written_as_it_can_be_typed(capsys):
    common.suggest("inspect", Path("a b"), "--n", "3")
    assert capsys.readouterr() == ("", "next: hf-curriculum inspect 'a b' --n 3\n")
