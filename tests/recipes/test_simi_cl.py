"""Simi-CL's recipe: its presets, the arms of its tables, its scores; and, slowly, a whole study on scenes."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pages as PAGES
import pytest
import simi_cl_captioning
from common.runs import Outcome, counts_beside_paper
from datasets import Dataset, DatasetDict
from PIL import Image
from simi_cl.arguments import PARSER, PRESETS, DataArguments, ModelArguments, SimiCLArguments
from simi_cl.checks import validate_runs
from simi_cl.data import Prepared, prepare, read_data
from simi_cl.report import add_scored_pairs, beside_dealt, describe, try_command
from simi_cl.scores import PROBABILITIES, add_region_probabilities, language_model_of_scenes, make_scorer, score

from hf_curriculum import (
    BabySteps,
    LanguageModelLoss,
    add_scores_from,
    curriculum_from,
    load_captioned,
    make_plan,
    make_scenes,
    save_scores,
)
from hf_curriculum.data.regions.pack import pack_regions
from hf_curriculum.data.tokenizer import train_word_tokenizer
from hf_curriculum.names import MODELS
from hf_curriculum.planning.ranking import resolve_easy
from hf_curriculum.reporting.report import Report
from hf_curriculum.scenes.vocabulary import NOUNS
from hf_curriculum.scorers.visual.entropy import VisualEntropy
from hf_curriculum.studies.grid import budget_of, study_arms
from hf_curriculum.studies.recipe import read_preset
from hf_curriculum.tasks.captioning import CaptioningArguments
from hf_curriculum.tasks.captioning.metrics.jars import JavaError

NAMES = sorted(file.stem for file in PRESETS.glob("*.yaml"))
OWN = {item.name for kind in (DataArguments, ModelArguments, SimiCLArguments) for item in fields(kind)}


def settings_of(*options):
    return SimpleNamespace(**PARSER.parse(options).settings)


def arguments_of(*options, **changed):
    given = PARSER.parse(options)
    return PARSER.parse_dict({**given.shared, **given.settings, "output_dir": "out", **changed})


def arms_of(*options):
    return study_arms(PARSER.parse(options))


@pytest.mark.parametrize("name", NAMES)
def test_presets_are_complete(name):
    values = vars(settings_of("--preset", name))
    assert set(read_preset(name, PRESETS)) - {"grid"} == set(values) >= OWN
    curriculum_from(values["curriculum"])
    assert set(values) - OWN <= {item.name for item in fields(CaptioningArguments)}


@pytest.mark.parametrize("name", sorted({*NAMES} - {"embedded", "photographs", "smoke"}))
def test_every_number_of_a_preset_says_where_it_is_from(name):
    text = (PRESETS / f"{name}.yaml").read_text()
    numbers = [line for line in text.splitlines() if re.match(r"\s*\w+: .*\d", line) and "{" not in line[:3]]
    plain = [
        line
        for line in numbers
        if not re.match(r"\s*(base|data|eval_steps|save_steps|num_train_epochs|max_steps|warmup_steps): ?", line)
    ]
    assert [line for line in plain if "#" not in line] == []


def test_the_papers_presets_are_the_papers_runs():
    coco, flickr = settings_of("--preset", "coco"), settings_of("--preset", "flickr30k")
    for one in (coco, flickr):
        assert (one.global_batch_size, one.learning_rate, one.model_options["feature_dropout"]) == (10, 3e-4, 0.4)
        assert (one.test_beams, one.min_count, one.max_words, one.max_new_tokens) == (5, 6, 16, 20)
        assert one.curriculum["metric"] == "images_cider"
    sizes = {}
    for one, pairs in ((coco, 566_747), (flickr, 145_000)):
        rule = curriculum_from(one.curriculum)
        plan = make_plan(rule, np.arange(pairs), global_batch_size=10, epochs=one.num_train_epochs)
        sizes[pairs] = [end - start for start, end in pairwise([0, *rule._buckets(plan.order).ends])]
    assert sizes == {566_747: [113_349, 113_349, 113_350, 113_349, 113_350], 145_000: [48_333, 48_333, 48_334]}
    assert vars(flickr) == {**vars(coco), **read_preset("flickr30k", PRESETS)}


def test_a_run_counts_its_data_beside_the_papers():
    rows = [{"image_id": str(image), "caption": f"{word} cat"} for image in range(4) for word in ("a", "the")]
    data = DatasetDict(train=Dataset.from_list(rows[:4]), validation=Dataset.from_list(rows[4:6]),
                       test=Dataset.from_list(rows[6:]))  # fmt: skip
    prepared = Prepared(data, None, "store", train_word_tokenizer(data, 1))
    found = {"train images": 2, "validation images": 1, "test images": 1, "train pairs": 4, "words": 4}
    assert prepared.counts == found  # a, cat, the, and the word for all others
    for name, words in (("coco", "9,487"), ("flickr30k", "7,000"), ("repository_aoa", "10,369")):
        lines = counts_beside_paper(found, settings_of("--preset", name).paper_counts).splitlines()
        assert lines[-1] == f"words: 4 (paper: {words})"
    lines = counts_beside_paper(found, settings_of("--preset", "coco").paper_counts).splitlines()
    assert lines[:2] == ["train images: 2 (paper: 113,287)", "validation images: 1 (paper: 5,000)"]
    assert lines[2:4] == ["test images: 1 (paper: 5,000)", "train pairs: 4 (paper: 566,747)"]
    assert counts_beside_paper(found, None).splitlines()[-1] == "words: 4"
    with pytest.raises(ValueError, match=r"paper_counts has \['wrods'\], and what is counted is"):
        counts_beside_paper(found, {"wrods": 1})


def test_the_repositories_own_presets():
    found = {name: settings_of("--preset", f"repository_{name}") for name in ("transformer", "updown", "aoa")}
    assert [one.model for one in found.values()] == ["transformer", "updown", "aoanet"]
    assert [one.learning_rate for one in found.values()] == [
        pytest.approx(512**-0.5 * 20_000**-0.5, rel=1e-4),
        5e-4,
        2e-4,
    ]
    assert [one.curriculum["epochs"] for one in found.values()] == [15, 30, 25]
    assert [one.label_smoothing_factor for one in found.values()] == [0, 0, 0.2]
    for one in found.values():
        assert (one.global_batch_size, one.share_images, one.scores) == (50, True, None)
        assert one.curriculum["batches"] == {"type": "by_image", "captions_per_image": 5}
        assert one.max_grad_value == 0.1
    assert [one.lr_scheduler_type for one in found.values()] == ["inverse_sqrt", "step", "step"]
    assert [(one.scheduled_sampling or {}).get("max") for one in found.values()] == [None, 0.25, 0.5]


PAPER = {  # BLEU-4, METEOR, CIDEr, SPICE
    "table_1": {
        "Transformer": [35.7, 27.9, 113.0, 20.9],
        "Addup-CL": [35.2, 27.9, 114.2, 21.0],
        "Bootstrap-CL": [36.1, 28.0, 115.8, 21.1],
        "Simi-CL (ViLT)": [35.9, 28.0, 115.6, 21.2],
        "Simi-CL (CLIP)": [36.3, 28.1, 116.2, 21.2],
        "Simi-CL (ViLT-CC)": [36.4, 28.2, 117.1, 21.4],
        "Simi-CL (ViLT-FL)": [36.0, 28.0, 115.9, 21.0],
    },
    "flickr30k": {
        "Transformer": [27.7, 21.8, 58.5, 16.0],
        "Addup-CL": [26.5, 21.5, 56.6, 16.0],
        "Bootstrap-CL": [27.6, 21.9, 59.1, 16.0],
        "Simi-CL (ViLT)": [27.3, 21.9, 59.0, 16.0],
        "Simi-CL (CLIP)": [27.0, 22.1, 59.6, 16.2],
        "Simi-CL (ViLT-CC)": [27.5, 22.1, 61.0, 16.3],
        "Simi-CL (ViLT-FL)": [28.5, 22.1, 61.8, 16.2],
    },
    "table_2": {  # BLEU-4 and CIDEr of four sets
        "Transformer": [71.0, 199.5, 36.5, 120.9, 4.5, 84.0, 0.7, 47.8],
        "Bootstrap-CL": [57.1, 172.0, 37.8, 122.5, 27.0, 97.8, 18.3, 71.2],
        "Simi-CL": [57.0, 172.5, 37.1, 122.8, 27.8, 100.4, 18.6, 72.6],
    },
    "table_3": {
        "Transformer": [15.8, 17.0, 35.8, 10.9],
        "Bootstrap-CL": [18.1, 17.5, 38.3, 11.4],
        "Simi-CL": [18.6, 18.2, 39.8, 11.7],
    },
    "table_4": {
        "BUTD": [35.2, 27.2, 109.9, 20.1],
        "BUTD + Simi-CL": [36.2, 27.8, 113.0, 20.6],
        "AoANet": [36.8, 28.0, 117.2, 21.3],
        "AoANet + Simi-CL": [37.3, 28.2, 117.0, 21.4],
    },
}


@pytest.mark.parametrize("table", list(PAPER))
def test_tables_have_the_papers_rows_and_figures(table):
    preset = "flickr30k" if "flickr" in table else "coco"
    arms = PARSER.parse(["--preset", preset, "--features", "store", "--table", table]).arms
    assert {name: list(arm.paper.values()) for name, arm in arms.items()} == PAPER[table]
    if table in ("table_1", "flickr30k", "table_4"):
        assert {tuple(arm.paper) for arm in arms.values()} == {("bleu_4", "meteor", "cider", "spice")}


def test_table_1_has_the_papers_rows_at_equal_examples():
    arms, controls, needs = arms_of("--preset", "coco", "--features", "store", "--grid", "table_1")
    assert list(arms) == list(PAPER["table_1"]) == list(PAPER["flickr30k"])
    assert controls == dict.fromkeys(list(arms)[1:], "Transformer")
    assert needs == {"Bootstrap-CL": ("Transformer",)}
    assert [list(arm["scores"] or [None])[-1] for arm in arms.values()] == [
        *(None, "addup", "model_loss", "vilt_similarity", "clip_similarity", "vilt_similarity", "vilt_similarity")
    ]
    rows = Dataset.from_dict({"caption": [""] * 5000})
    budgets = [
        budget_of(PARSER.parse_dict({**arm, "output_dir": "out", "use_cpu": True})[-1], rows) for arm in arms.values()
    ]
    assert budgets == ["75,000 examples, 15 × the data, 7,500 steps of 10"] + 6 * [
        "at most 75,000 examples, 15 × the data, 7,500 steps of 10"
    ]
    for grid in ("table_4", "limits", "self_critical"):
        options = PARSER.parse(["--preset", "coco", "--features", "store", "--grid", grid])
        for arm in study_arms(options)[0].values():
            PARSER.parse_dict({**arm, "output_dir": "out", "use_cpu": True})  # no field contradicts another
    limits, controls, _ = arms_of("--preset", "coco", "--grid", "limits")
    assert controls == dict.fromkeys(list(limits)[1:], "Transformer")
    assert arms_of("--preset", "coco", "--grid", "self_critical")[1]["Self-critical, Simi-CL"] == "Self-critical"


def test_every_captioner_of_table_4_has_the_papers_dropout_and_the_best_checkpoint_is_tested():
    shared = {"updown": {"word", "output"}, "aoanet": {"word", "output", "context"}}
    for arm in arms_of("--preset", "coco", "--features", "store", "--grid", "table_4")[0].values():
        options = PARSER.parse_dict({**arm, "output_dir": "out", "use_cpu": True})[1].model_options
        config = MODELS[arm["model"]].config_class(**options)
        assert {getattr(config, f"{name}_dropout") for name in shared[arm["model"]] | {"feature"}} == {0.4}
    for preset in ("coco", "flickr30k", "repository_transformer", "repository_updown", "repository_aoa"):
        for arm in arms_of("--preset", preset, "--features", "store")[0].values():
            training = PARSER.parse_dict({**arm, "output_dir": "out", "use_cpu": True})[-1]
            assert training.load_best_model_at_end
            assert training.greater_is_better
            assert training.metric_for_best_model == "eval_images_cider"
    for preset in ("embedded", "photographs", "smoke"):
        assert not read_preset(preset, PRESETS)["load_best_model_at_end"]


def test_the_usual_command_trains_four_arms():
    arms, _, needs = arms_of()
    assert list(arms) == ["Transformer", "Addup-CL", "Bootstrap-CL", "Simi-CL"]
    assert (list(arms_of("--grid", "none")[0]), needs) == (["curriculum"], {"Bootstrap-CL": ("Transformer",)})
    rows = read_data(arguments_of("--preset", "smoke", "--num_examples", "100")[0])
    images = {name: len(set(part["image_id"])) for name, part in rows.items()}
    assert images == {"train": 40, "validation": 5, "test": 5}
    assert 0.2 < np.mean(rows["train"]["mismatched"][:]) < 0.4
    assert not any(rows["test"]["mismatched"][:])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--scores", "none"), "was given without `scores`, by which it orders the pairs"),
        (("--features_model", "none"), "Neither `features` nor `features_model` was given"),
        (("--model", "lstm"), "model='lstm' is none of the captioners"),
        (
            ("--model", "updown"),
            "UpDownConfig has no field intermediate_size, .*num_encoder_layers, which would count for nothing",
        ),
        (("--test_images", "1"), "test_images=1 was given. CIDEr weighs words"),
    ],
)
def test_what_would_spoil_a_run_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        arguments_of("--preset", "smoke", *options)


def test_data_without_the_splits(tmp_path):
    images = [
        {"filename": f"{n}.jpg", "split": "train", "imgid": n, "sentences": [{"raw": "A dog."}]} for n in range(9)
    ]
    (tmp_path / "d.json").write_text(json.dumps({"images": images}))
    options = ("--preset", "coco", "--data", str(tmp_path / "d.json"), "--features", "x")
    with pytest.raises(ValueError, match=r"has the splits \['train'\] and no \['validation', 'test'\]"):
        read_data(arguments_of(*options)[0])
    parts = read_data(arguments_of(*options, "--held_out", "0.25", "--limit", "8")[0])
    assert {name: len(part) for name, part in parts.items()} == {"train": 4, "validation": 2, "test": 2}


def test_images_without_regions_are_named_before_anything_is_trained(tmp_path):
    sentences = [{"raw": "A dog runs."}]
    splits = ("train", "train", "val", "test")
    images = [
        {"filename": f"{n}.jpg", "split": split, "imgid": n, "sentences": sentences} for n, split in enumerate(splits)
    ]
    (tmp_path / "d.json").write_text(json.dumps({"images": images}))
    (tmp_path / "regions").mkdir()
    ids = [row["image_id"] for part in load_captioned(tmp_path / "d.json", images=False).values() for row in part]
    for image_id in ids[:-1]:
        np.savez(tmp_path / "regions" / f"{image_id}.npz", feat=np.ones((2, 3), np.float32))
    pack_regions(tmp_path / "regions", tmp_path / "store", progress=False)
    options = ("--preset", "coco", "--data", str(tmp_path / "d.json"), "--features", str(tmp_path / "store"))
    with pytest.raises(ValueError, match=rf"Of the 1 images of test, 1 are not in .*, such as '{ids[-1]}'"):
        prepare(arguments_of(*options, "--min_count", "1")[0], tmp_path)


class TestScores:
    @pytest.mark.parametrize(
        ("scores", "error", "message"),
        [
            ("clip: {}", ValueError, "scores names 'clip', which is none of the scorers"),
            (
                "addup: {weight: 1}",
                ValueError,
                r"scores gives 'addup' the options \['weight'\], which it does not have",
            ),
            ("add_scores_from: {source: x, on: a}", ValueError, "YAML takes a bare `on` for true"),
            ("add_scores_from: {source: x.csv}", FileNotFoundError, "scores names the file 'x.csv', which does not"),
        ],
    )
    def test_errors(self, scores, error, message):
        with pytest.raises(error, match=message):
            arguments_of("--preset", "smoke", "--scores", f"{{{scores}}}")

    def test_scores_made_elsewhere(self, tmp_path):
        pairs = Dataset.from_dict({"image_id": ["7", "7", "8"], "caption": ["a dog", "a cat", "a dog"]})
        (tmp_path / "s.csv").write_text("image_id,caption,similarity\n8,a dog,0.25\n7,a cat,0.5\n")
        options = ("--preset", "smoke", "--scores", f"{{add_scores_from: {{source: {tmp_path}/s.csv, easy: high}}}}")
        rows, column = score(SimpleNamespace(data={"train": pairs}), arguments_of(*options)[0], tmp_path)
        assert (column, resolve_easy(rows, column)) == ("similarity", "high")
        np.testing.assert_array_equal(rows[column][:], [np.nan, 0.5, 0.25])
        arguments_of("--preset", "smoke", "--scores", "{add_scores_from: {source: '{Transformer}/s.csv'}}")

    def test_what_reads_regions_gets_the_runs(self):
        assert make_scorer("caption_length", {}, "the store").outputs == {"caption_length": "low"}
        with pytest.raises(FileNotFoundError, match="the store"):
            make_scorer("visual_entropy", {}, "the store")
        assert make_scorer("visual_entropy", {"probabilities": "p"}, "the store").regions is None

    def test_region_probabilities_name_what_is_there(self):
        scenes = make_scenes(30, captions_per_image=1, max_objects=1, validation=0, test=0)["train"]
        rows = add_region_probabilities(scenes)
        found = np.array(rows[PROBABILITIES][:])
        assert found.shape == (30, 10, len(NOUNS))
        assert np.allclose(found.sum(-1), 1, atol=1e-4)
        names = [NOUNS[at] for at in found[:, -1].argmax(-1)]  # of the whole image
        right = [name == objects[0]["noun"] for name, objects in zip(names, scenes["objects"], strict=True)]
        assert np.mean(right) > 3 / len(NOUNS)
        entropy = VisualEntropy(probabilities=PROBABILITIES)(rows[:])["visual_entropy"]
        by_hand = -(found * np.log(found)).sum((1, 2))
        assert np.allclose(entropy, by_hand, rtol=1e-3)

    @pytest.mark.slow
    def test_a_language_model_of_scenes(self, tmp_path):
        data_args = arguments_of("--preset", "smoke", "--text_lines", "400")[0]
        folder = language_model_of_scenes(data_args, tmp_path)
        before = (folder / "model.safetensors").stat().st_mtime_ns
        assert language_model_of_scenes(data_args, tmp_path) == folder
        assert (folder / "model.safetensors").stat().st_mtime_ns == before
        losses = LanguageModelLoss(str(folder))({"caption": ["a red ball", "ball red a"]})["language_model_loss"]
        assert losses[0] < losses[1]


@pytest.fixture
def given(tmp_path):
    """Images as Karpathy's file has them, their features in a store, and a grid of three arms."""
    splits, images = ("train", "train", "val", "test"), []
    (tmp_path / "features").mkdir()
    for n, split in enumerate(splits):
        texts = [{"raw": f"A {noun}.", "tokens": ["a", noun]} for noun in ("dog", "cat")]
        images.append({"filename": f"{n}.jpg", "split": split, "cocoid": n, "imgid": n, "sentences": texts})
        np.savez(tmp_path / "features" / f"{n}.npz", feat=np.ones((2, 4), np.float32))
    (tmp_path / "d.json").write_text(json.dumps({"images": images, "dataset": "coco"}))
    rows = ["vanilla: {curriculum: null, scores: null}", "CLIP: {scores: {clip_similarity: {model: scenes_clip}}}"]
    (tmp_path / "arms.yaml").write_text("\n".join([*rows, "short: {scores: {caption_length: {}}, control: vanilla}"]))
    pack_regions(tmp_path / "features", tmp_path / "store")
    return ["--preset", "smoke", "--data", str(tmp_path / "d.json"), "--features", str(tmp_path / "store")]


class TestBeforeAnyRun:
    @pytest.fixture
    def check(self, given, tmp_path):
        def run(*options):
            words = [*given, "--grid", str(tmp_path / "arms.yaml"), "--global_batch_size", "2", *options]
            study, _ = PARSER.study(None, PARSER.parse(words), tmp_path / "out", data=read_data)
            validate_runs(study)
            assert not list(tmp_path.glob("out/*"))
            return study

        return run

    def test_arms_that_cannot_be_scored_are_named_and_the_others(self, check):
        reason = (
            "(?s)1 of 3 arms cannot be trained and tested here, so no run was begun:\n- CLIP: `image` is not in the"
        )
        with pytest.raises(
            ValueError, match=reason + ".* Name the folder of the images with --images.\n.* --arms van"
        ):
            check()
        assert len(check("--arms", "vanilla", "short").runs) == 2

    def test_metrics_that_cannot_be_computed(self, check, monkeypatch):
        def without_java(metrics):
            if metrics != "all":
                raise JavaError("SPICE needs Java. Get it by\n    a command")

        monkeypatch.setattr("simi_cl.checks.available_metrics", without_java)
        with pytest.raises(ValueError, match=r"all arms: SPICE needs Java[^$]*leave out what .*: --metrics all\nCorr"):
            check("--arms", "vanilla", "short")
        check("--arms", "vanilla", "short", "--metrics", "all")

    def test_a_store_of_other_images(self, check, tmp_path):
        (tmp_path / "features" / "1.npz").rename(tmp_path / "features" / "9.npz")
        store = str(pack_regions(tmp_path / "features", tmp_path / "other").path)
        with pytest.raises(ValueError, match=r"Of the 2 images of train, 1 are not in .*other'\), such as '1'"):
            check("--arms", "vanilla", "--features", store)


def test_what_to_try_fits_how_the_model_was_trained(given, tmp_path):
    def tried(*options):
        data_args = arguments_of(*given, *options)[0]
        finished, prepared = [SimpleNamespace(folder=tmp_path / "out" / "a")], prepare(data_args, tmp_path / "out")
        return try_command(Outcome(tmp_path / "out", finished, [], (data_args,), prepared, None))

    command = tried()
    assert command[:2] == ["hf-curriculum", "evaluate"]  # no detector stands in the model
    assert command[-2:] == ["--features", str(tmp_path / "store")]
    for number in range(4):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{number}.jpg")
    assert tried("--images", str(tmp_path)) == command  # there are images, and still no detector


def test_arms_of_one_column_and_of_the_same_scores(tmp_path):
    pairs = Dataset.from_dict({"caption": [f"a dog {n}" for n in range(8)], "image_id": [str(n) for n in range(8)]})
    runs = []
    for name, scores in (("CLIP", range(8)), ("other CLIP", [3, 1, 2, 0, 4, 7, 5, 6]), ("AoANet", range(8))):
        given = Dataset.from_dict({"caption": pairs["caption"], "s": [float(one) for one in scores]})
        scored = add_scores_from(pairs, given, on="caption", easy="high")
        (tmp_path / name).mkdir()
        save_scores(scored, tmp_path / name / "scores.parquet")
        plan = make_plan(BabySteps(2), scored, score_column="s", global_batch_size=2, epochs=3)
        runs.append({"name": name, "seed": 0, "folder": name, "scores": ["s"], "plan": plan.to_dict()})
    report = Report("t")
    add_scored_pairs(report, runs, pairs, tmp_path)
    report.write(tmp_path / "page")
    assert sorted(file.stem for file in (tmp_path / "page" / "figures").iterdir()) == ["scores_s", "scores_s_2"]
    assert "The same scores as CLIP" in report.to_html()


def test_a_run_says_what_its_captions_come_to_on_other_images():
    found = {"metric": "cider", "baseline": "dealt", "difference": 0.4561, "lower": 0.3389, "upper": 0.5797}
    beside = {"values": {"written": {"cider": 0.6337}, "dealt": {"cider": 0.1776}}, "differences": [found]}
    assert beside_dealt({"beside_dealt": beside}) == ("0.178", "+0.456 [+0.339, +0.580]")
    run = {"name": "T", "seed": 0, "examples": 320, "steps": 10, "seconds": 1.4, "cider": 0.6337, "merges": []}
    assert describe({**run, "beside_dealt": beside}).endswith("CIDEr 0.634 (0.178 if dealt to other images)")


def test_a_model_of_other_words_is_no_start(tmp_path):
    train_word_tokenizer(["a dog"], 1).save_pretrained(tmp_path)
    prepared = SimpleNamespace(tokenizer=train_word_tokenizer(["a cat"], 1))
    model_args = arguments_of("--preset", "smoke", "--initial", str(tmp_path))[1]
    with pytest.raises(ValueError, match="was trained on 4 words, and the data's are 4, or others"):
        simi_cl_captioning.build_model(model_args, prepared, 20)


def test_commands_exist():
    lines = [line.partition("  #")[0].strip() for line in simi_cl_captioning.__doc__.splitlines()]
    named = [line for line in lines if line.startswith("accelerate launch")]
    assert len(named) >= 12
    for command in named:
        PAGES.check_command(command)


@pytest.mark.slow
def test_arms_on_two_processes(launch, tmp_path):
    command = [PRESETS.parents[1] / "simi_cl_captioning.py", "--preset", "smoke", "--output_dir", tmp_path]
    launch(*command, "--arms", "Bootstrap-CL", processes=2, timeout=600)  # and the one whose model it needs
    runs = json.loads((tmp_path / "results.json").read_text())
    assert [(run["name"], run["examples"], run["steps"]) for run in runs] == [
        (name, 448, 28) for name in ("Transformer", "Bootstrap-CL")
    ]


@pytest.mark.slow
def test_four_arms_on_scenes_and_a_second_start(launch, tmp_path):
    command = [PRESETS.parents[1] / "simi_cl_captioning.py", "--preset", "smoke", "--output_dir", tmp_path]
    launch(*command, timeout=600, draw=True)
    runs = json.loads((tmp_path / "results.json").read_text())
    assert [run["name"] for run in runs] == ["Transformer", "Addup-CL", "Bootstrap-CL", "Simi-CL"]
    assert {(run["examples"], run["steps"]) for run in runs} == {(448, 28)}
    assert [len(run["merges"]) for run in runs] == [0, 2, 2, 2]
    assert all(len(run["captions"]) == 10 and len(run["captions"][0]["references"]) == 2 for run in runs)
    assert (tmp_path / "report" / "report.html").is_file()
    tried = ["caption", tmp_path / "Simi-CL-seed0" / "model", tmp_path / "held_out"]
    assert len(launch("hf_curriculum.cli", *tried).stdout.splitlines()) == 10
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/result.json")}
    assert len(stamps) == 4
    launch(*command)
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
