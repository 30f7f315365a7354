"""Every option of the commands that make data reaches the argument that it is meant for."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from datasets import Dataset, DatasetDict
from typed_commands import StandIn, done, result, said

# ---- score ----

TEXTS = {"caption": ["a", "", "b c"], "image_id": ["0", "1", "2"]}


@pytest.fixture
def scoring(replaced):
    """What the command `score` calls, by name."""
    return {
        "fields": replaced("data.load", "fields_of"),
        "load": replaced("data.load", "load_captioned", Dataset.from_dict(TEXTS)),
        "score": replaced("scoring.sharded", "add_scores_sharded", "scored"),
        "save": replaced("cli.score", "_save_and_print"),
        "bars": replaced("cli.score", "hide_bars_unless_watched"),
    }


def test_score_with_every_option(scoring, tmp_path):
    out, side, parts = tmp_path / "out", tmp_path / "side.parquet", tmp_path / "parts"
    parts.mkdir()
    (out / "sub").mkdir(parents=True)
    (out / "scores.json").touch()
    words = ["--scorer", "caption_length", "--scorer", "word_rarity", "--per-image", "mean", "--fit-on", "train"]
    words += ["--images", "none", "--column", "caption=a,b", "--column", "image=c", "--no-check-images"]
    words += ["--drop-empty", "--allow-outside", "--download", "--objects", "boxes.json", "--num-proc", 2]
    words += ["--num-workers", 3, "--batch-size", 7, "--part-rows", 11, "--parts", parts, "--overwrite"]
    words += ["--side-file", side, "--json", "--bad-rows", "drop"]
    found = done("score", "source", out, *words, "--hold-out", 0.5)
    reading = {"images": False, "check_images": False, "allow_outside": True, "download": True, "bad_rows": "drop"}
    columns = {"caption": ["a", "b"], "image": "c"}
    assert scoring["load"].calls == [
        (("source",), {"columns": columns, "num_proc": 2, "objects": "boxes.json", **reading})
    ]
    [(given, named)] = scoring["score"].calls
    assert {name: len(part) for name, part in given[0].items()} == {"train": 1, "validation": 1}
    assert [list(scorer.outputs) for scorer in given[1]] == [["caption_length"], ["word_rarity"]]
    assert given[2] == parts
    assert named == {
        "per_image": "mean", "fit_on": "train", "num_proc": 2, "num_workers": 3, "batch_size": 7, "part_rows": 11,
        "overwrite": True, "rank": 0, "world_size": 1,
    }  # fmt: skip
    assert scoring["save"].calls == [(("scored", ["caption_length", "word_rarity"], out, side, True), {})]
    assert parts.is_dir()
    assert (found.output, scoring["bars"].calls) == ("1 row, the first:\n  0  a\n", [((), {})])


def test_score_without_options(scoring, tmp_path):
    (tmp_path / "out.parts").mkdir()
    done("score", "source", tmp_path / "out")
    reading = {"images": None, "check_images": True, "allow_outside": False, "download": False, "objects": None}
    reading |= {"columns": None, "num_proc": None, "bad_rows": "error"}
    assert scoring["load"].calls == [(("source",), reading)]
    [(given, named)] = scoring["score"].calls
    assert given[0]["caption"][:] == TEXTS["caption"]
    assert ([list(scorer.outputs) for scorer in given[1]], given[2]) == ([["noun_count"]], tmp_path / "out.parts")
    assert named == {
        "per_image": None, "fit_on": None, "num_proc": None, "num_workers": 0, "batch_size": 1000,
        "part_rows": 10_000, "overwrite": False, "rank": 0, "world_size": 1,
    }  # fmt: skip
    assert scoring["save"].calls == [(("scored", ["noun_count"], tmp_path / "out", None, False), {})]
    assert not (tmp_path / "out.parts").exists()


def test_a_model_goes_to_the_scores_that_need_one(scoring, tmp_path):
    words = ["--scorer", "model_loss", "--scorer", "grounding", "--scorer", "response_length"]
    words += ["--scorer", "clip_similarity", "--scorer", '{"type": "language_model_loss", "model": "theirs"}']
    (tmp_path / "out.parts").mkdir()
    done("score", "source", tmp_path / "out", *words, "--model", "ours")
    [(given, _)] = scoring["score"].calls
    loss, grounding, length, clip, language = given[1]
    assert (loss.model, grounding.model, language.model) == ("ours", "ours", "theirs")
    assert clip.model != "ours"
    assert length.tokenizer is None
    found = result("score", "source", tmp_path / "other", "--model", "ours")
    assert found.exit_code == 2
    assert "None of the scores needs one" in said(found)


@pytest.mark.parametrize("command", ["score", "propose"])
def test_splits_behind_other_data_are_refused_before_the_work(command, scoring, replaced, tmp_path):
    rows = Dataset.from_dict({**TEXTS, "image": [None] * 3})
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "state.json").touch()
    scoring["load"].gives = DatasetDict(train=rows)
    replaced("tasks.detection.cli", "_load", DatasetDict(train=rows))
    search = replaced("tasks.detection.proposals", "add_proposals")
    found = result(command, "source", tmp_path / "out", "--overwrite")
    assert (found.exit_code, "which would hide the splits ['train']" in said(found)) == (1, True)
    assert scoring["score"].calls == search.calls == []


def test_an_output_that_is_there_is_refused_by_the_first_process_alone(scoring, tmp_path, monkeypatch):
    (tmp_path / "side.parquet").touch()
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in (0, 1):
        monkeypatch.setenv("RANK", str(rank))
        found = result("score", "source", "--side-file", tmp_path / "side.parquet")
        assert (found.exit_code, "is there already" in said(found)) == ((1, True) if rank == 0 else (0, False))
    assert scoring["load"].calls == []


def test_parts_are_held_out_of_train_alone(scoring, tmp_path):
    rows = Dataset.from_dict(TEXTS)
    for splits in ({"test": rows}, {"train": rows, "validation": rows}):
        scoring["load"].gives = DatasetDict(splits)
        found = result("score", "source", tmp_path / "out", "--hold-out", 0.5)
        assert (found.exit_code, f"The data has the splits {list(splits)}" in said(found)) == (2, True)
    scoring["load"].gives = DatasetDict(train=rows, test=rows)
    done("score", "source", tmp_path / "out", "--hold-out", 0.4, "--parts", tmp_path)
    [(given, _)] = scoring["score"].calls
    assert {name: len(part) for name, part in given[0].items()} == {"train": 2, "validation": 1, "test": 3}


def test_an_interrupted_scoring_says_how_to_go_on(scoring, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["hf-curriculum", "score", "a source", "out"])
    monkeypatch.delenv("RANK", raising=False)
    scoring["score"].gives = KeyboardInterrupt()
    found = result("score", "source", tmp_path / "out")
    assert (found.exit_code, found.stdout) == (130, "")
    kept = f"Finished parts are kept in {tmp_path / 'out.parts'}; the same command continues:"
    assert found.stderr.splitlines()[:4] == ["3 rows, the first:", "  0  a", "  1  ", "  2  b c"]
    assert found.stderr.splitlines()[5:7] == [f"Interrupted. {kept}", "  hf-curriculum score 'a source' out"]


def test_what_is_read_is_shown_first(tmp_path):
    lines = [{"filepath": f"{row}.jpg", "title": f"a dog {row}"} for row in range(4)]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + "{broken\n")
    words = ["score", tmp_path / "x.jsonl", tmp_path / "out", "--images", "none", "--bad-rows"]
    refused = result(*words, "error")
    assert refused.exit_code == 1
    assert "x.jsonl: Line 5 is not JSON" in refused.stderr
    found = done(*words, "drop").stderr.splitlines()
    taken = "read image ← filepath, caption ← title; `columns` names others (hf-curriculum score: --column)."
    assert found[0] == f"{tmp_path / 'x.jsonl'}: {taken}"
    start = found.index("4 rows, the first:")
    assert found[start + 1 : start + 4] == [f"  {row}.jpg  a dog {row}" for row in range(3)]
    page = done("inspect", tmp_path / "out", "--html", tmp_path / "page")
    for text in (page.stdout, (tmp_path / "page" / "report.html").read_text()):
        assert "x.jsonl, left out: rows that cannot be read: 1 (Line 5 is not JSON" in text


def test_what_was_scored_is_saved_printed_and_suggested(tmp_path):
    rows = Dataset.from_dict({"caption": ["a", "a b", "c", "a b c d e"], "image_id": ["0", "0", "1", "1"]})
    test = Dataset.from_dict({"caption": ["e"], "image_id": ["2"]})
    DatasetDict(train=rows, test=test).save_to_disk(tmp_path / "data")
    words = ["--images", "none", "--scorer", "caption_length", "--scorer", "word_rarity", "--per-image", "max"]
    found = done("score", tmp_path / "data", tmp_path / "out", *words, "--side-file", tmp_path / "side.parquet")
    table = [line.split("  ") for line in found.stdout.splitlines()]
    table = [[cell.strip() for cell in line if cell] for line in table]
    head = ["split", "score", "by", "easy", "scored", "unscored", "min", "25 %", "median", "75 %", "max"]
    assert table[0] == head
    by = "CaptionLength, max per image"
    assert table[1] == ["train", "caption_length", by, "low", "4", "0", "2", "2", "3.5", "5", "5"]
    assert table[3] == ["test", "caption_length", by, "low", "1", "0", *["1"] * 5]
    assert found.stderr.splitlines()[-2:] == [
        f"saved to {tmp_path / 'out'} and {tmp_path / 'side.parquet'}",
        f"next: hf-curriculum inspect {tmp_path / 'out'} --html {tmp_path / 'out-page'}",
    ]
    words += ["--side-file", tmp_path / "alone.parquet"]
    alone = done("score", tmp_path / "data", *words)
    assert "next:" not in alone.output
    assert f"saved to {tmp_path / 'alone.parquet'}\n" in alone.stderr


# ---- generate ----


@pytest.fixture
def drawing(replaced, monkeypatch):
    """What the command `generate` calls, by name."""
    loaded = StandIn()
    clip = replaced("scorers.alignment.clip", "CLIPSimilarity", SimpleNamespace(loaded=loaded))
    return {
        "load": replaced("tasks.long_tail.cli", "_load", "the images"),
        "draw": replaced("tasks.long_tail.generation.generate", "generate_spectrum", ["drawn"] * 5),
        "retry": replaced("tasks.long_tail.generation.generate", "Retry", "retry"),
        "filter": replaced("tasks.long_tail.generation.filter", "filter_spectrum", "kept"),
        "save": replaced("tasks.long_tail.cli", "_save"),
        "bars": replaced("tasks.long_tail.cli", "hide_bars_unless_watched"),
        "clip": clip,
        "loaded": loaded,
    }


def test_generate_with_every_option(drawing, tmp_path):
    words = ["--prompt", "a {name}", "--pipeline", "pipe", "--levels", "0.2,0.4", "--seeds", "5,6", "--steps", 3]
    words += ["--guidance-scale", 1.5, "--from-text", "--resize", "48x27", "--lora", "lora", "--revision", "v1"]
    words += ["--dtype", "bfloat16", "--clip", "a clip", "--at-least", 0.3, "--tries", 4, "--split", "dev", "--all"]
    words += ["--batch-size", 2, "--part-images", 9, "--parts", tmp_path, "--overwrite", "--json"]
    done("generate", "source", tmp_path / "out", *words)
    assert drawing["load"].calls == [((Path("source"), "dev", True), {})]
    assert (drawing["clip"].calls, drawing["loaded"].calls) == ([(("a clip",), {})], [((None,), {})])
    clip = drawing["clip"].gives
    assert drawing["retry"].calls == [((clip, 0.3, 4), {})]
    expected = {
        "prompts": "a {name}", "folder": tmp_path, "levels": (0.2, 0.4), "seeds": (5, 6), "resize": (48, 27),
        "steps": 3, "guidance_scale": 1.5, "from_text": True, "lora": "lora", "dtype": "bfloat16", "revision": "v1",
        "batch_size": 2, "part_images": 9, "allow_all_hard": True, "retry": "retry",
    }  # fmt: skip
    assert drawing["draw"].calls == [(("the images", "pipe"), expected)]
    assert drawing["filter"].calls == [((["drawn"] * 5, clip), {"at_least": 0.3})]
    assert drawing["save"].calls == [(("kept", 5, tmp_path / "out", tmp_path, True), {})]
    assert drawing["bars"].calls == [((), {})]
    assert tmp_path.is_dir()


def test_generate_without_options(drawing, tmp_path):
    (tmp_path / "out.parts").mkdir()
    done("generate", "source", tmp_path / "out", "--prompt", "a", "--resize", "16", "--seeds", "2")
    assert drawing["load"].calls == [((Path("source"), "train", False), {})]
    expected = {
        "prompts": "a", "folder": tmp_path / "out.parts", "levels": (0.1, 0.3, 0.5, 0.7, 0.9), "seeds": 2,
        "resize": 16, "steps": None, "guidance_scale": None, "from_text": False, "lora": None, "dtype": None,
        "revision": None, "batch_size": 16, "part_images": 64, "allow_all_hard": False, "retry": None,
    }  # fmt: skip
    assert drawing["draw"].calls == [(("the images", "scenes_diffusion"), expected)]
    assert drawing["save"].calls == [((["drawn"] * 5, 5, tmp_path / "out", tmp_path / "out.parts", False), {})]
    assert not (tmp_path / "out.parts").exists()
    assert drawing["clip"].calls == drawing["filter"].calls == drawing["retry"].calls == []
    for size in ("0", "8x0", "x", "8x", "-8", "8x8x8"):
        assert result("generate", "source", tmp_path / "out", "--prompt", "a", "--resize", size).exit_code == 2, size


def test_two_tries_are_the_least_that_draw_again(drawing, tmp_path):
    words = ["generate", "source", tmp_path / "out", "--prompt", "a", "--tries", 2]
    found = result(*words)
    assert (found.exit_code, "Pass --at-least too" in said(found)) == (2, True)
    done(*words, "--at-least", 0.2, "--parts", tmp_path)
    assert drawing["retry"].calls == [((drawing["clip"].gives, 0.2, 2), {})]


def test_what_it_costs_is_noted_once(monkeypatch):
    from hf_curriculum.tasks.long_tail.cli import _tell_costs

    logger, printed = logging.getLogger("hf_curriculum.tasks.long_tail.generation"), []
    for name, value in (("handlers", []), ("propagate", True), ("level", logging.NOTSET)):
        monkeypatch.setattr(logger, name, value)
    monkeypatch.setattr("hf_curriculum.tasks.long_tail.cli.note", printed.append)
    _tell_costs()
    _tell_costs()
    logger.info("the %s", "plan")
    logger.debug("more")
    assert (printed, len(logger.handlers), logger.propagate) == (["the plan"], 1, False)


@pytest.mark.parametrize("command", ["generate", "propose"])
def test_parts_of_several_processes_and_interrupted_work(command, drawing, replaced, tmp_path, monkeypatch):
    replaced("tasks.detection.cli", "_load", Dataset.from_dict({"image_id": ["0"]}))
    search = replaced("tasks.detection.proposals", "add_proposals")
    drawn = drawing["draw"] if command == "generate" else search
    words = [command, "source", tmp_path / "out", *(["--prompt", "a"] if command == "generate" else [])]
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    (tmp_path / "out.parts").mkdir()
    found = done(*words)
    assert (found.stdout, found.stderr) == ("", "process 1 of 2: its share is done\n")
    assert (tmp_path / "out.parts").is_dir()
    monkeypatch.setattr(sys, "argv", ["hf-curriculum", command, "source"])
    drawn.gives = KeyboardInterrupt()
    found = result(*words)
    assert (found.exit_code, found.stdout) == (130, "")
    assert f"kept in {tmp_path / 'out.parts'}" in found.stderr.replace(" is kept", "").replace("What is drawn", "kept")
    assert found.stderr.splitlines()[2] == f"  … hf-curriculum {command} source"
    assert drawing["save"].calls == []


# ---- propose ----


@pytest.fixture
def searching(replaced):
    """What the command `propose` calls, by name."""
    return {
        "load": replaced(
            "data.load", "load_captioned", Dataset.from_dict({"caption": ["a", "b"], "image_id": ["0"] * 2})
        ),
        "search": replaced("tasks.detection.proposals", "add_proposals", "boxed"),
        "save": replaced("tasks.detection.cli", "_save_and_print"),
        "bars": replaced("tasks.detection.cli", "hide_bars_unless_watched"),
    }


def test_propose_with_every_option(searching, tmp_path):
    words = ["--mode", "quality", "--num-proc", 3, "--max-proposals", 7, "--min-size", 5, "--max-side", 640]
    words += ["--seed", 2, "--drop-empty", "--images", "photos", "--column", "caption=text", "--objects", "boxes.json"]
    words += ["--allow-outside", "--download", "--part-images", 9, "--parts", tmp_path, "--overwrite", "--json"]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "state.json").touch()
    done("propose", "source.json", tmp_path / "out", *words)
    reading = {"images": "photos", "objects": "boxes.json", "allow_outside": True, "download": True}
    expected = {"columns": {"caption": "text"}, "check_images": False, "num_proc": 3, **reading}
    assert searching["load"].calls == [(("source.json",), expected)]
    [((data, found_by), named)] = searching["search"].calls
    assert data["caption"][:] == [["a", "b"]]
    attributes = ("mode", "max_proposals", "min_size", "max_side", "seed")
    assert [getattr(found_by, name) for name in attributes] == ["quality", 7, 5, 640, 2]
    assert named == {
        "drop_empty": True, "num_proc": 3, "part_images": 9, "folder": tmp_path, "overwrite": True, "first_only": True,
    }  # fmt: skip
    [((boxed, output, begin, as_json), _)] = searching["save"].calls
    assert (boxed, output, as_json, type(begin)) == ("boxed", tmp_path / "out", True, float)
    assert (tmp_path.is_dir(), searching["bars"].calls) == (True, [((), {})])


def test_propose_without_options(searching, tmp_path):
    (tmp_path / "out.parts").mkdir()
    done("propose", "source.json", tmp_path / "out", "--max-side", 0, "--max-proposals", 0)
    done("propose", "source.json", tmp_path / "out", "--parts", tmp_path)
    reading = {"images": None, "objects": None, "allow_outside": False, "download": False}
    expected = {"columns": None, "check_images": False, "num_proc": None, **reading}
    assert searching["load"].calls[0] == (("source.json",), expected)
    (((_, all_of_them), named), ((_, found_by), _)) = searching["search"].calls
    attributes = ("mode", "max_proposals", "min_size", "max_side", "seed")
    assert [getattr(all_of_them, name) for name in attributes] == ["fast", None, 20, None, 0]
    assert [getattr(found_by, name) for name in attributes] == ["fast", 500, 20, 1000, 0]
    assert named == {
        "drop_empty": False, "num_proc": None, "part_images": 100, "folder": tmp_path / "out.parts",
        "overwrite": False, "first_only": True,
    }  # fmt: skip
    assert searching["save"].calls[0][0][3] is False
    assert not (tmp_path / "out.parts").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--file", "boxes", "--as-cap2det"), "--as-cap2det would not count with --file"),
        (("--file", "boxes", "--mode", "quality"), "--mode would not count with --file"),
        (("--as-cap2det", "--max-side", 9), "--max-side would not count with --as-cap2det"),
        (("--as-cap2det", "--max-side", 9, "--mode", "quality"), "--mode and --max-side would not count"),
        (("--aggregate", "score"), "'score' is not COLUMN=HOW"),
        (("--aggregate", "=mean"), "'' is not COLUMN=HOW"),
        (("--aggregate", "score="), "'score' is not COLUMN=HOW"),
    ],
)
def test_what_does_not_go_together_in_a_search(searching, tmp_path, words, message):
    found = result("propose", "source.json", tmp_path / "out", *words)
    assert (found.exit_code, message in said(found), searching["search"].calls) == (2, True, [])


def test_proposals_that_are_there_are_refused_by_the_first_process_alone(searching, tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "dataset_dict.json").touch()
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in (0, 1):
        monkeypatch.setenv("RANK", str(rank))
        found = result("propose", "source.json", tmp_path / "out")
        assert (found.exit_code, "is there already" in said(found)) == ((1, True) if rank == 0 else (0, False))
    assert searching["load"].calls == []


# ---- ontology ----


@pytest.fixture
def inducing(replaced, monkeypatch):
    """What the command `ontology` calls, by name."""
    made = SimpleNamespace(to_dict=lambda: {"nouns": 1}, save=StandIn())
    induce = StandIn(made)
    monkeypatch.setattr("hf_curriculum.tasks.alignment.ontology.ontology.Ontology.induce", induce)
    rows = Dataset.from_dict(TEXTS)
    return {
        "load": replaced("data.load", "load_captioned", DatasetDict(train=rows, test=rows.select([0]))),
        "induce": induce,
        "text": replaced("tasks.alignment.cli", "_text", "as text"),
        "review": replaced("tasks.alignment.ontology.review", "write_review"),
        "page": replaced(
            "tasks.alignment.ontology.review", "ontology_report", SimpleNamespace(write=StandIn("page.html"))
        ),
        "bars": replaced("tasks.alignment.cli", "hide_bars_unless_watched"),
        "made": made,
    }


def test_ontology_with_every_option(inducing, tmp_path):
    words = ["--objects", "a.tsv", "--objects", "b.tsv", "--min-pairs", 3, "--min-instances", 4]
    words += ["--min-confidence", 0.5, "--corrections", "hand.yaml", "--output", tmp_path / "made.json"]
    words += ["--review", tmp_path / "review.yaml", "--html", tmp_path, "--split", "test", "--images", "photos"]
    words += ["--tagger", "nltk", "--lemmas", "wordnet", "--examples", 2, "--num-proc", 2]
    found = done("ontology", "some/pairs", *words)
    assert inducing["load"].calls == [(("some/pairs",), {"objects": None, "images": "photos", "check_images": False})]
    [((data, source), named)] = inducing["induce"].calls
    assert (len(data), source) == (1, ["a.tsv", "b.tsv"])
    assert named == {
        "corrections": Path("hand.yaml"), "tagger": "nltk", "lemmas": "wordnet", "min_confidence": 0.5,
        "min_pairs": 3, "min_instances": 4, "num_proc": 2,
    }  # fmt: skip
    made = inducing["made"]
    assert inducing["text"].calls == [((made, 2), {})]
    assert inducing["review"].calls == [((made, tmp_path / "review.yaml"), {})]
    assert inducing["page"].calls == [((made, data, "pairs"), {})]
    assert inducing["page"].gives.write.calls == [((tmp_path,), {})]
    assert made.save.calls == [((tmp_path / "made.json",), {})]
    assert found.stdout == "as text\n"
    assert found.stderr.splitlines() == [
        f"to correct by hand: {tmp_path / 'review.yaml'}, then --corrections {tmp_path / 'review.yaml'}",
        "page: page.html",
        f"saved to {tmp_path / 'made.json'}",
    ]
    assert inducing["bars"].calls == [((), {})]


def test_ontology_without_options(inducing):
    found = done("ontology", "pairs", "--json")
    assert inducing["load"].calls == [(("pairs",), {"objects": None, "images": False, "check_images": False})]
    [((data, source), named)] = inducing["induce"].calls
    assert (len(data), source) == (3, "objects")
    assert named == {
        "corrections": None, "tagger": "pattern", "lemmas": "spelling", "min_confidence": 0.0, "min_pairs": 20,
        "min_instances": 5000, "num_proc": None,
    }  # fmt: skip
    assert inducing["text"].calls[0][0][1] == 20
    assert (json.loads(found.stdout), found.stderr) == ({"nouns": 1}, "")
    assert inducing["review"].calls == inducing["page"].calls == inducing["made"].save.calls == []
    done("ontology", "pairs", "--objects", "x/instances.JSON", "--html", "page")
    assert inducing["load"].calls[1] == (
        ("pairs",),
        {"objects": "x/instances.JSON", "images": None, "check_images": False},
    )
    assert inducing["induce"].calls[1][0][1] == "objects"


# ---- features ----


@pytest.fixture
def finding(replaced):
    """What the command `features` calls, by name."""
    return {
        "pack": replaced("data.regions.pack", "pack_regions", "packed"),
        "extract": replaced("data.regions.extract", "extract_regions", "found"),
        "load": replaced("data.load", "load_captioned", Dataset.from_dict({"image": [1], "caption": ["a"]})),
        "print": replaced("cli.features", "_print"),
        "bars": replaced("cli.features", "hide_bars_unless_watched"),
        "more_bars": replaced("studies.recipe", "disable_progress_bars"),
    }


def test_features_of_files(finding, tmp_path):
    common_options = {"dtype": "float16", "standardise": False, "progress": False}
    done("features", "a.tsv", "b.tsv", tmp_path)
    done(
        "features", "a=a.tsv", "b=b.tsv", "a=c.tsv", tmp_path, "--made-by", "me", "--dtype", "float32", "--standardise"
    )
    assert finding["pack"].calls == [
        ((["a.tsv", "b.tsv"], tmp_path), {"made_by": None, **common_options}),
        (
            ({"a": ["a.tsv", "c.tsv"], "b": ["b.tsv"]}, tmp_path),
            {"made_by": "me", "dtype": "float32", "standardise": True, "progress": False},
        ),
    ]
    assert [call[0][0] for call in finding["print"].calls] == ["packed"] * 2
    assert finding["print"].calls[0][0][2] is False
    assert 0 <= finding["print"].calls[0][0][1] < 100
    assert len(finding["bars"].calls) == len(finding["more_bars"].calls) == 2
    some = result("features", "a=a.tsv", "b.tsv", tmp_path)
    assert (some.exit_code, "Some sources have a prefix and some have none" in said(some)) == (2, True)


@pytest.mark.parametrize(
    "words", [("--threshold", 0.3), ("--min-regions", 2), ("--max-regions", 2), ("--grid", 2), ("--images", "photos")]
)
def test_features_of_files_refuse_what_only_a_model_reads(finding, words, tmp_path):
    found = result("features", "a.tsv", tmp_path, *words)
    assert (found.exit_code, f"{words[0]} would not count: without --model" in said(found)) == (2, True)
    assert finding["pack"].calls == []


def test_features_with_a_model(finding, tmp_path):
    done("features", "data.json", tmp_path, "--model", "me/model")
    words = ["--grid", 3, "--threshold", 0.4, "--min-regions", 2, "--max-regions", 5, "--standardise"]
    words += ["--dtype", "float32", "--images", "photos", "--batch-size", 2, "--num-workers", 1, "--json"]
    done("features", "data.json", tmp_path, "--model", "me/model", *words)
    data = finding["load"].gives
    assert finding["load"].calls == [(("data.json",), {"images": None}), (("data.json",), {"images": "photos"})]
    assert finding["extract"].calls == [
        (
            (data, "me/model", tmp_path),
            {
                "dtype": "float16", "standardise": False, "progress": False, "num_workers": 0, "threshold": 0.2,
                "min_regions": 10, "max_regions": 100, "grid": None, "batch_size": 8,
            },
        ),
        (
            (data, "me/model", tmp_path),
            {
                "dtype": "float32", "standardise": True, "progress": False, "num_workers": 1, "threshold": 0.4,
                "min_regions": 2, "max_regions": 5, "grid": 3, "batch_size": 2,
            },
        ),
    ]  # fmt: skip
    assert [call[0][2] for call in finding["print"].calls] == [False, True]
    several = result("features", "a", "b", tmp_path, "--model", "m")
    assert (several.exit_code, "2 sources were given with a model" in said(several)) == (2, True)
    named = result("features", "a", tmp_path, "--model", "m", "--made-by", "me")
    assert (named.exit_code, "--made-by were given with a model" in said(named)) == (2, True)
    finding["load"].gives = DatasetDict(train=data, test=data.remove_columns("image"))
    lost = result("features", "data.json", tmp_path, "--model", "m")
    assert (lost.exit_code, "captions and no images in ['test'], in which" in said(lost)) == (2, True)


def test_what_a_store_holds_is_printed(tmp_path, monkeypatch):
    from hf_curriculum.cli.features import _bytes, _print

    names = ("images", "regions", "dims", "dtype", "empty", "repeated", "made_by", "fingerprint")
    facts = dict(zip(names, (1200, 3400, 2048, "float16", 0, 0, None, "f"), strict=True))

    class Store(list):
        path = str(tmp_path)

    store = Store(range(1200))
    store.facts = facts
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a").write_bytes(b"1" * 2_000_000)
    (tmp_path / "b").write_bytes(b"1" * 500_000)
    printed = []
    for name in ("say", "note"):
        monkeypatch.setattr(f"hf_curriculum.cli.features.{name}", lambda *given: printed.append(given))
    _print(store, 12.34, True)
    told = {**facts, "bytes": 2_500_000, "seconds": 12.3}
    line = "1,200 images, 3,400 regions of 2,048 numbers, 2.50 MB, 12 s"
    assert printed == [(line, told, True), (f"saved to {tmp_path}",)]
    store.facts = {**facts, "empty": 3, "repeated": 4}
    printed.clear()
    _print(store, 12.34, False)
    assert printed[1][0].startswith("3 images have no region")
    assert printed[2][0].startswith("4 lines were for images that their file had before")
    assert (_bytes(1_000_000_000), _bytes(999_000_000)) == ("1.00 GB", "999.00 MB")
