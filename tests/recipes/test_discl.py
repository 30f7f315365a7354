"""DisCL's recipe: its presets, the arms of its tables, its stages; and, slowly, a whole study on scenes."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from types import SimpleNamespace

import discl.stages as stages
import discl_longtail
import numpy as np
import pages as PAGES
import pytest
from datasets import Dataset
from discl.arguments import PARSER, PRESETS, STAGES, DataArguments, DisCLArguments, SpectrumArguments
from discl.data import load_data, long_tailed_scenes
from discl.models import build_loss, build_model
from discl.report import describe
from discl.stages import make_scorer
from labelled import labelled

from hf_curriculum import CurriculumTrainingArguments, curriculum_from, make_plan
from hf_curriculum.studies.recipe import read_preset, study_arms
from hf_curriculum.tasks.long_tail import class_counts
from hf_curriculum.tasks.long_tail.losses import LDAM

NAMES = sorted(file.stem for file in PRESETS.glob("*.yaml"))
OWN = {item.name for kind in (DataArguments, SpectrumArguments, DisCLArguments) for item in fields(kind)}


def settings_of(*options):
    return SimpleNamespace(**PARSER.parse(options).settings)


def arguments_of(*options, **changed):
    given = PARSER.parse(options)
    return PARSER.parse_dict({**given.shared, **given.settings, "output_dir": "out", **changed})


@pytest.mark.parametrize("name", NAMES)
def test_presets_are_complete(name):
    values = vars(settings_of("--preset", name))
    assert set(read_preset(name, PRESETS)) - {"grid"} == set(values) >= OWN
    curriculum_from(values["curriculum"])
    assert set(values) - OWN <= {item.name for item in fields(CurriculumTrainingArguments)}
    arguments_of("--preset", name, use_cpu=True, bf16=False)


@pytest.mark.parametrize("name", ["imagenet_lt", "iwildcam"])
def test_every_number_of_a_preset_says_where_it_is_from(name):
    lines = (PRESETS / f"{name}.yaml").read_text().splitlines()
    numbers = [line for line in lines if re.match(r"\s*\w+: .*\d", line)]
    assert len(numbers) > 10
    assert [
        line for line in numbers if "#" not in line and not re.match(r"(num_train_epochs|max_steps): -1", line)
    ] == []


def test_imagenet_lt_is_the_released_run():
    one = settings_of("--preset", "imagenet_lt")
    assert (one.global_batch_size, one.learning_rate, one.weight_decay) == (128, 1e-3, 1e-5)
    assert one.generation_seeds == [10, 20, 30, 40, 42, 50, 60, 70]
    assert (one.at_least, one.guidance_scale, one.fewer_than, one.below) == (0.3, 10, 20, None)
    args = arguments_of("--preset", "imagenet_lt", use_cpu=True)[2]
    model = build_model(args, [str(number) for number in range(1000)])
    assert sum(parameter.numel() for parameter in model.parameters()) == 5_418_792
    # 34,260 others and 5,392 of the tail in each epoch, 15 epochs of each level, then 5 on real images.
    rows = 1643 * 8
    levels = np.repeat(np.float32([0.1, 0.3, 0.5, 1.0]), [rows, rows, rows, 115_846])
    data = Dataset.from_dict({"guidance": levels, "hard": np.arange(len(levels)) < 3 * rows + 1643})
    plan = make_plan(curriculum_from(one.curriculum), data, score_column="guidance", global_batch_size=128)
    assert [(stage.name, stage.epochs, stage.num_draws) for stage in plan.stages[:4]] == [
        (f"level {level}", 15, 15 * 39_652) for level in ("0.1", "0.3", "0.5", "1")
    ]
    assert plan.stages[4].pool_size == 115_846


def test_iwildcam_is_the_released_run():
    one = settings_of("--preset", "iwildcam")
    assert (one.global_batch_size, one.learning_rate, one.weight_decay, one.warmup_steps) == (256, 1e-5, 0.2, 500)
    assert curriculum_from(one.curriculum).to_dict() == {
        "type": "adaptive_guidance", "epochs": 20, "curriculum_epochs": 15, "probe_examples": 30000,
        "aggregate": "trimmed",
    }  # fmt: skip
    assert (one.at_least, one.validation_images, one.resize) == (0.25, 2000, [480, 264])
    assert all(side % 8 == 0 for side in one.resize)  # what SDXL can draw
    assert len(one.levels) + 1 == 7  # and that of real images
    assert (one.test_splits, one.train_split) == (["test", "id_test"], "train")


def test_tables_have_the_papers_figures():
    arms = PARSER.parse(["--preset", "imagenet_lt", "--grid", "imagenet_lt"]).arms
    groups = ("accuracy_many", "accuracy_medium", "accuracy_few", "accuracy")
    assert {name: tuple(arm.paper[group] for group in groups) for name, arm in arms.items() if arm.paper} == {
        "CE": (57.70, 26.60, 4.40, 35.80), "CE, DisCL": (56.78, 30.73, 23.64, 39.82),
        "BS": (51.14, 37.02, 19.29, 39.80), "BS, DisCL": (52.68, 37.68, 21.36, 41.33),
    }  # fmt: skip
    arms = PARSER.parse(["--preset", "iwildcam", "--grid", "iwildcam"]).arms
    assert {name: tuple(arm.paper.values()) for name, arm in arms.items() if arm.paper} == {
        "FLYP": (35.5, 52.2), "FLYP, DisCL": (38.2, 54.3),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("preset", "grid"),
    [
        ("embedded", "embedded"),
        ("smoke", "smoke"),
        ("imagenet_lt", "imagenet_lt"),
        ("iwildcam", "iwildcam"),
        ("cifar10_lt", "cifar10_lt"),
    ],
)
def test_the_arms_of_a_table_contradict_nothing(preset, grid):
    options = PARSER.parse(["--preset", preset, "--grid", grid])
    arms, controls, _ = study_arms(options)
    for settings in arms.values():
        PARSER.parse_dict({**settings, "output_dir": "out", "use_cpu": True, "bf16": False})
    first = next(iter(arms))
    assert set(controls) == set(arms) - {first}


def test_the_usual_command_trains_all_arms_at_equal_examples():
    arms, controls, _ = study_arms(PARSER.parse([]))
    assert list(arms) == [
        "CE", "CE, as many examples", "All levels mixed", "Alg. 2", "Alg. 3",
        "BS, as many examples", "BS, all levels mixed", "BS, Alg. 2", "BS, Alg. 3",
    ]  # fmt: skip
    assert controls["Alg. 2"] == controls["All levels mixed"] == "CE, as many examples"
    for name in ("CE, as many examples", "All levels mixed", "BS, all levels mixed"):
        assert arms[name]["examples_as"] == arms["Alg. 2"]["curriculum"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--loss", "hinge"], "loss='hinge' is none of"),
        (["--class_prompts", "a {label}"], "fine-tunes a CLIP by its own loss, and loss='cross_entropy', model=None"),
        (["--scorer", "{nothing: {}}"], "is no scorer of image and text"),
        (["--below", "none", "--fewer_than", "none"], "Neither `below` nor `fewer_than`"),
        (["--resize", "1", "2", "3"], "two are width and height"),
        (["--synthetic", "false"], "goes by levels of guidance, and synthetic=False leaves one"),
        (["--loss", "focal", "--loss_options", "{tau: 2}"], "are not those of focal"),
        (["--loss", "ldam", "--loss_options", "{scale: -1}"], r"LDAM\(margin=0.5, scale=-1\) is not possible"),
        (["--scorer", "{clip_similarity: {modle: x}}"], "has options that clip_similarity does not take"),
        (["--model", "x", "--class_prompts", "a photo"], "has no place for the class"),
        (["--levels", "0.1", "0.3", "--curriculum", "{type: guidance_schedule, levels: [0.2]}"], r"levels \[0.2\]"),
        (["--examples_as", "{type: guidance_schedule, epochs: 4, curriculum_epochs: 4}"], "only 4 curriculum_epochs"),
        (["--augment", "{crop: [0, 1]}"], "It is the smallest and largest share"),
        (
            ["--curriculum", "adaptive_guidance", "--examples_as", "{type: iid}"],
            "which decides while training: how many examples it draws",
        ),
    ],
)
def test_what_would_spoil_a_run_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        arguments_of("--grid", "none", *options)


def test_embedded_data_has_the_tail_it_says(tmp_path):
    data = long_tailed_scenes([9, 4, 1], 5, seed=3)
    assert class_counts(data.train).tolist() == [9, 4, 1]
    assert class_counts(data.tests["test"]).tolist() == [5, 5, 5]
    assert not set(data.train["image_id"][:]) & set(data.tests["test"]["image_id"][:])
    assert data.train[0]["image"].size == (32, 32)
    assert all(data.names[row["label"]] in row["caption"] for row in data.train.remove_columns("image"))
    with pytest.raises(ValueError, match=r"class_images has 20 classes, and scenes know 14 nouns"):
        long_tailed_scenes([1] * 20, 1, seed=0)


def test_data_of_files(tmp_path):
    for split, seed in (("train", 0), ("test", 1)):
        labelled((3, 2, 1), seed).to_parquet(str(tmp_path / f"{split}.parquet"))
    options = ["--preset", "cifar10_lt", "--data", str(tmp_path / "train.parquet")]
    data = load_data(arguments_of(*options, "--test", str(tmp_path / "test.parquet"))[0])
    assert (len(data.train), list(data.tests), len(data.tests["test"])) == (6, ["test"], 6)
    with pytest.raises(ValueError, match=r"has no splits, so nothing is left to test on. Name test data: `--test"):
        load_data(arguments_of(*options, "--test", "none")[0])
    (tmp_path / "both").mkdir()
    for split in ("train", "validation"):
        for row, image in enumerate(labelled((2, 2, 2))["image"][:]):
            place = tmp_path / "both" / split / "abc"[row // 2] / f"{row}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            image.save(place)
    both = ["--preset", "imagenet_lt", "--data", str(tmp_path / "both"), "--test", "none", "--train_split", "train"]
    assert list(load_data(arguments_of(*both, "--test_splits", "validation", use_cpu=True)[0]).tests) == ["validation"]
    with pytest.raises(ValueError, match=r"has the splits \['train', 'validation'\], and 'id_test' was asked for"):
        load_data(arguments_of(*both, "--test_splits", "id_test", use_cpu=True)[0])


def test_losses_and_scorers_are_made_of_their_options():
    args = arguments_of("--grid", "none", "--loss", "ldam", "--loss_options", "{reweight_from: 0.8}")[2]
    loss = build_loss(args, np.array([5, 2]))
    assert (type(loss), loss.reweight_from, loss.counts.tolist()) == (LDAM, 0.8, [5, 2])
    focal = arguments_of("--grid", "none", "--loss", "focal", "--loss_options", "{gamma: 1.0}")[2]
    assert build_loss(focal, np.array([5, 2])).gamma == 1.0
    assert make_scorer(arguments_of("--grid", "none")[1]).name == "clip_similarity"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (["--scorer", "{caption_length: {}}"], ValueError, "given to compare generated images with prompts"),
        (["--scorer", "{clip_similarity: {model: /nowhere}}"], FileNotFoundError, "found no '/nowhere'"),
        (["--prompt", "nowhere.csv"], FileNotFoundError, "no file nowhere.csv of prompts"),
        (["--validation_images", "14"], ValueError, "validation_images=14 sources .* and 13 images are hard"),
    ],
)
def test_what_would_fail_after_hours_fails_before(options, error, message, tmp_path, monkeypatch):
    pytest.importorskip("diffusers")

    def mined(labelled, spectrum_args, classifier, place):
        assert "14" in options, "a classifier was asked for"
        return labelled.train.add_column("hard", [row < 13 for row in range(len(labelled.train))])

    monkeypatch.setattr(stages, "find_classifier", lambda *_: None)
    monkeypatch.setattr(stages, "mine", mined)
    monkeypatch.setattr(stages, "generate", lambda *_: pytest.fail("images were asked for"))
    *made, _ = arguments_of("--preset", "smoke", "--grid", "none", *options)
    with pytest.raises(error, match=message):
        stages.prepare(*made, tmp_path)


def test_retries_and_empty_classes_are_asked_for_by_flags(tmp_path, monkeypatch):
    asked = {}
    monkeypatch.setattr(stages, "generate_spectrum", lambda *_, **given: asked.update(given))
    monkeypatch.setattr(stages, "filter_spectrum", lambda *_, **given: asked.update(given))
    for options, tries, allow_empty in (
        ([], None, False),
        (["--tries", "3", "--allow_empty", "true", "--at_least", "0.2"], 3, True),
    ):
        spectrum_args = arguments_of("--preset", "smoke", "--grid", "none", *options)[1]
        stages.generate(None, spectrum_args, tmp_path)
        stages.keep(None, spectrum_args, tmp_path)
        retry = asked["retry"]
        assert (retry and (retry.tries, retry.at_least, retry.prompt)) == (
            tries and (3, 0.2, spectrum_args.filter_prompt)
        )
        assert asked["allow_empty"] is allow_empty
    assert arguments_of("--preset", "imagenet_lt", "--grid", "none", use_cpu=True)[1].tries == 5


def test_classes_without_names_are_refused_before_mining(monkeypatch):
    pytest.importorskip("diffusers")
    spectrum_args = arguments_of("--preset", "imagenet_lt", "--grid", "none", use_cpu=True)[1]
    with pytest.raises(ValueError, match=r"would ask for 'a 8k real photo: n01440764'"):
        stages.validate_generation(spectrum_args, ["n01440764"], "generate")


def test_nothing_is_evaluated_where_no_run_has_finished(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "sys.argv", ["recipe", "--preset", "smoke", "--stage", "evaluate", "--output_dir", str(tmp_path)]
    )
    with pytest.raises(ValueError, match="has finished, so there is nothing to evaluate"):
        discl_longtail.main()


def test_a_run_is_one_line():
    run = {"name": "CE", "seed": 1, "examples": 1000, "seconds": 2.0, "accuracy": 0.5, "accuracy_few": 0.25}
    assert describe(run).endswith("seed 1: 1,000 examples, 2 s, accuracy 0.500, few 0.250")


def test_commands_exist():
    commands = [
        line.partition("  #")[0].strip() for line in discl_longtail.__doc__.splitlines() if "accelerate" in line
    ]
    assert len(commands) == 9
    for command in commands:
        PAGES.check_command(command)
    for stage in STAGES:
        assert PARSER.parse(["--stage", stage]).stage == stage


# ---- Whole studies ----

COMMAND = [PRESETS.parents[1] / "discl_longtail.py", "--preset", "smoke", "--output_dir"]


@pytest.mark.slow
def test_all_stages_on_scenes_and_a_second_start(launch, tmp_path):
    pytest.importorskip("diffusers")
    launch(*COMMAND, tmp_path, "--stage", "generate", processes=2)
    images = {path: path.read_bytes() for path in tmp_path.glob("spectrum-*/spectrum.arrow")}
    assert len(images) == 1
    assert not list(tmp_path.glob("*/result.json"))
    launch(*COMMAND, tmp_path, timeout=600, draw=True)
    runs = json.loads((tmp_path / "results.json").read_text())
    assert [run["name"] for run in runs] == ["CE", "Alg. 2", "BS, Alg. 3"]
    assert runs[0]["examples"] == runs[1]["examples"] == 224
    assert len(runs[2]["decisions"]) == 4
    page = (tmp_path / "report" / "report.html").read_text()
    for heading in (
        *("From prompt to photograph", "Distance to the source by level", "Scores by level, kept and dropped"),
        *("What a classifier recognises", "The generator on images it was not trained on"),
        *("Progress per level: BS, Alg. 3", "What was shown: Alg. 2", "By class: CE, test", "Real and hard images"),
    ):
        assert heading in page
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/result.json")}
    assert len(stamps) == 3
    launch(*COMMAND, tmp_path, "--stage", "evaluate")
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    assert {path: path.read_bytes() for path in images} == images
