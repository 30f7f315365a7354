"""The recipe of weakly supervised detection: its presets, the rows of its tables, its data; and, slowly, a study."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import wsod_wsddn
from datasets import ClassLabel, Dataset, Features, List
from PIL import Image
from wsod.arguments import PARSER, PRESETS, DataArguments, ModelArguments, WsodArguments, needed_scores, outputs_of
from wsod.data import Prepared, prepare, read_data, with_scores
from wsod.report import draw_named, side_by_side

from hf_curriculum import CurriculumTrainingArguments, curriculum_from, load_captioned, make_plan, rank_scores
from hf_curriculum.planning.ranking import resolve_easy
from hf_curriculum.studies.grid import budget_of, study_arms
from hf_curriculum.studies.recipe import read_preset
from hf_curriculum.tasks.detection.labels import label_names

NAMES = sorted(file.stem for file in PRESETS.glob("*.yaml"))
OWN = {item.name for kind in (DataArguments, ModelArguments, WsodArguments) for item in fields(kind)}


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
    assert set(values) - OWN <= {item.name for item in fields(CurriculumTrainingArguments)}
    arguments_of("--preset", name)


@pytest.mark.parametrize("name", sorted({*NAMES} - {"embedded", "photographs", "smoke"}))
def test_every_number_of_a_preset_says_where_it_is_from(name):
    lines = (PRESETS / f"{name}.yaml").read_text().splitlines()
    numbers = [line for line in lines if re.match(r"\s*\w+: .*\d", line)]
    plain = [line for line in numbers if not re.match(r"(base|data|num_train_epochs|max_steps): ?", line)]
    assert [line for line in plain if "#" not in line] == []


def test_the_papers_presets_are_the_papers_runs():
    cc, redcaps, coco = (settings_of("--preset", name) for name in ("cc", "redcaps", "coco"))
    assert {**vars(redcaps), "data": cc.data} == vars(cc)
    assert (cc.global_batch_size, cc.learning_rate, cc.backbone, cc.max_proposals) == (4, 1e-3, "vgg16", 500)
    assert (coco.curriculum, coco.max_boxes) == ({"type": "iid", "epochs": 7}, 100)
    assert set(outputs_of(cc.scores)) == {
        *("clip_similarity", "concreteness", "caption_length", "object_mentions", "region_count", "region_area")
    }


FIGURES = {  # Nebbia & Kovashka 2024, Tables 1 to 3: CC, RedCaps
    "table1": [
        *(
            (2.2, 1.8),
            (1.5, 2.6),
            (0.7, 1.4),
            ("n/a", 2.5),
            (1.5, 4.4),
            (2.9, 3.0),
            (1.7, 3.1),
            (2.4, 2.5),
            (2.5, 1.6),
        ),
        *((0.9, 3.6), (0.9, 1.9), (5.8, 5.2), (2.5, 3.4)),
    ],
    "table2": [
        *((10.3, 10.3), (10.5, 10.6), (10.3, 11.0), (9.6, 10.9), (9.0, 9.7), (9.4, 10.9), (9.8, 10.6), (10.8, 10.4)),
        *((9.6, 10.3), (10.7, 10.8), (10.2, 10.6)),
    ],
    "table3": [(9.7, 9.4), (10.5, 10.9), (10.5, 11.0), (10.5, 11.5), (9.6, 10.9)],
}
PASSES = {  # examples seen × the data; None: it depends on the mentions
    "table1": [3, 2, 2, 2.5, None, 2.5, 2.5, 2.5, 2.5, 1.25, 1.25, 1.875, 1.875],
    "table2": [3, 2, 2, 2.5, None, 2.5, 2.5, 2.5, 2.5, 1.25, 1.25],
    "table3": [1, 1, 1, 0.75, 0.75],
    "table4": 2 * [7, 7, *4 * [5.5]],
}


@pytest.mark.parametrize("preset", ["cc", "redcaps"])
@pytest.mark.parametrize("table", FIGURES)
def test_tables_have_the_papers_rows_figures_and_budgets(table, preset):
    arms = PARSER.parse(["--preset", preset, "--table", table]).arms
    assert [tuple(arm.paper[column] for column in ("CC", "RedCaps")) for arm in arms.values()] == FIGURES[table]
    assert [arm.control for arm in arms.values()] == [None, *(len(arms) - 1) * ["Baseline"]]
    made, _, _ = arms_of("--preset", preset, "--table", table)
    for arm, passes in zip(made.values(), PASSES[table], strict=True):
        args = PARSER.parse_dict({**arm, "output_dir": "out", "use_cpu": True})
        assert args[-1].learning_rate == (1e-3 if table == "table1" else 1e-4)
        found = budget_of(args[-1], Dataset.from_dict({"row": np.arange(4000)}))
        if passes is None:
            assert found == "a number of examples that depends on the scores"
        else:
            assert f", {passes:g} × the data, " in found


def test_table_4_is_of_all_images_and_of_half_of_them():
    arms = PARSER.parse(["--preset", "coco", "--table", "table4"]).arms
    found = [arm.paper["map_50"] for arm in arms.values()]
    assert found == [16.5, 10.7, 10.9, 13.7, 13.0, 6.6, 6.2, 2.0, 3.8, 5.6, 5.8, 6.0]
    assert [name for name, arm in arms.items() if arm.fields.get("labels") == "boxes"] == [
        "GT labels",
        "GT labels, 50 %",
    ]
    assert [arm.fields.get("share", 1) for arm in arms.values()] == [*6 * [1], *6 * [0.5]]
    made, controls, _ = arms_of("--preset", "coco", "--table", "table4", "--objects", "instances.json")
    assert controls["Curriculum, CLIP, 50 %"] == "Baseline, 50 %"
    for arm, passes in zip(made.values(), PASSES["table4"], strict=True):
        args = PARSER.parse_dict({**arm, "output_dir": "out", "use_cpu": True})
        assert f"{passes:g} × the data" in budget_of(args[-1], Dataset.from_dict({"row": np.arange(4000)}))


def test_curricula_by_mentions_are_three_epochs_and_one():
    rule = curriculum_from(
        arms_of("--preset", "cc", "--table", "table1")[0]["Curriculum, mentioned objects"]["curriculum"]
    )
    mentions = np.random.default_rng(0).integers(1, 5, 1000)
    plan = make_plan(rule, rank_scores(mentions, "high", score_column="object_mentions"), global_batch_size=4)
    assert [stage.pool_size for stage in plan.stages] == [(mentions > 1).sum(), 1000]
    assert plan.num_draws - plan.num_filled == 3 * (mentions > 1).sum() + 1000


def test_the_usual_command_trains_five_arms():
    arms, controls, _ = arms_of()
    assert list(arms) == ["Baseline", "Filter", "Curriculum", "Both", "True labels"]
    assert controls == dict.fromkeys(list(arms)[1:], "Baseline")
    assert arms["Both"]["score_column"] == "caption_length"
    rule = curriculum_from(arms["Both"]["curriculum"])
    assert needed_scores(rule, "caption_length") == ["caption_length", "clip_similarity"]
    assert needed_scores(curriculum_from({"type": "iid"}), "caption_length") == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--curriculum", "phases"), "was given without `score_column`, by which it orders images"),
        (("--curriculum", "phases", "--score_column", "noun_count"), "The curriculum reads the score 'noun_count'"),
        (
            ("--curriculum", "{type: filter, by: noun_count}"),
            r"The curriculum reads the score 'noun_count', and `scores` has the columns \['caption_length'",
        ),
        (("--scores", "{clip: {}}"), "scores names 'clip', which is none of the scorers"),
        (("--scores", "{caption_length: {long: 3}}"), r"gives 'caption_length' the options \['long'\]"),
        (("--report_scores", "noun_count"), "report_scores names 'noun_count'"),
        (("--edge", "both"), "edge='both' was given"),
        (("--model_options", "{poolsize: 3}"), r"model_options has \['poolsize'\], which a WSDDN does not have"),
        (("--search", "{modus: fast}"), r"search has \['modus'\], which `SelectiveSearch` does not have"),
        (("--search", "{mode: slow}"), "'slow'.*'quality'"),
        (("--max_proposals", "0"), "`max_proposals` is 0"),
        (("--share", "0"), "share=0.0 was given"),
        (("--data", "photos", "--labels", "boxes"), "labels='boxes' was given without `objects`"),
    ],
)
def test_what_would_spoil_a_run_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        arguments_of("--preset", "smoke", *options)


@pytest.fixture(scope="module")
def scenes():
    return arguments_of("--preset", "smoke", "--num_examples", "40")[0]


def test_scenes_are_labelled_by_captions_and_tested_on_boxes(scenes):
    data = read_data(scenes)
    assert {name: len(part) for name, part in data.items()} == {"train": 30, "test": 10}
    prepared = prepare(scenes)
    assert prepared.class_names == label_names(data["test"]) == label_names(data["train"])
    assert len(prepared.truths) == 10
    for row in prepared.test:
        names = {prepared.class_names[label] for label in row["labels"]}
        assert names == {item["noun"] for item in row["objects"]}
        assert all(left < right and top < bottom for left, top, right, bottom in row["proposals"])
    scored = with_scores(prepared, scenes, ["caption_length", "region_area", "clip_similarity"])
    assert scored["image_id"][:] == prepared.train["image_id"][:]
    assert scored["labels"][:] == prepared.train["labels"][:]
    words = [len(re.findall(r"[\w']+", captions[0])) for captions in scored["caption"]]
    assert np.corrcoef(words, scored["caption_length"][:])[0, 1] > 0.99
    areas = [
        np.mean([(right - left) * (bottom - top) for left, top, right, bottom in boxes]) / 96**2
        for boxes in scored["proposals"]
    ]
    assert scored["region_area"][:] == pytest.approx(areas, rel=1e-4)
    assert {resolve_easy(scored, name) for name in ("caption_length", "region_area", "clip_similarity")} == {"high"}


def test_a_share_of_the_images_is_the_same_for_all_arms(scenes):
    def ids(**changed):
        return read_data(DataArguments(**{**vars(scenes), **changed}))["train"]["image_id"][:]

    half, whole = ids(share=0.5), ids()
    assert len(half) == 15
    assert set(half) < set(whole)
    assert half == [one for one in whole if one in set(half)] == ids(share=0.5)
    assert half != whole[:15]


def test_true_labels_are_those_of_boxes(scenes):
    train = read_data(DataArguments(**{**vars(scenes), "labels": "boxes"}))["train"]
    names = label_names(train)
    for row in train:
        assert {names[label] for label in row["labels"]} == {item["noun"] for item in row["objects"]}


def test_photographs_have_a_preset_of_their_own():
    given = ["--data", "boxed", "--classes", "dog,cat"]
    for words in (given, ["--data=boxed"]):
        assert wsod_wsddn.with_preset(words) == ["--preset", "photographs", *words]
    for words in (["--data=scenes"], ["--data", "scenes"], ["--preset", "cc", *given], []):
        assert wsod_wsddn.with_preset(words) == words
    options = PARSER.parse(wsod_wsddn.with_preset(given))
    assert (options.arms, options.settings["curriculum"]) == ({}, {"type": "phases"})


@pytest.fixture
def photographs(tmp_path):
    """Six photographs with captions, and a file of their boxes."""
    (tmp_path / "images").mkdir()
    images, annotations, captions = [], [], []
    for number in range(6):
        Image.new("RGB", (60, 40), (40 * number, 80, 9)).save(tmp_path / "images" / f"{number}.png")
        images.append({"id": number, "file_name": f"{number}.png", "width": 60, "height": 40})
        box = {"id": number + 1, "image_id": number, "category_id": 18 if number % 2 else 7, "bbox": [5, 5, 30, 20]}
        annotations.append({**box, "area": 600, "iscrowd": 0})
        captions.append({"id": number, "image_id": number, "caption": "A dog." if number % 2 else "A cat sits."})
    categories = [{"id": 7, "name": "cat"}, {"id": 18, "name": "dog"}]
    (tmp_path / "c.json").write_text(json.dumps({"images": images, "annotations": captions}))
    (tmp_path / "o.json").write_text(
        json.dumps({"images": images, "annotations": annotations, "categories": categories})
    )
    return tmp_path


def test_photographs_with_and_without_boxes(photographs):
    options = ("--preset", "smoke", "--data", str(photographs / "c.json"), "--images", str(photographs / "images"))
    options += ("--classes", "dog, cat", "--scores", "{caption_length: {}}", "--report_scores", "caption_length")
    with pytest.raises(
        ValueError, match=r"has the splits \['train'\], and a detector is trained on `train` and tested"
    ):
        read_data(arguments_of(*options, "--held_out", "0")[0])
    held = read_data(arguments_of(*options, "--held_out", "0.34")[0])
    assert {name: len(part) for name, part in held.items()} == {"train": 4, "test": 2}
    assert "objects" not in held["test"].column_names
    assert label_names(held["train"]) == ["dog", "cat"]
    given = arguments_of(
        *options, "--test_objects", str(photographs / "o.json"), "--test_images", str(photographs / "images")
    )[0]
    prepared = prepare(given)
    assert (len(prepared.train), len(prepared.test)) == (6, 6)
    assert [objects[0]["name"] for objects in prepared.truths] == ["cat", "dog"] * 3
    assert prepared.field == "name"


def of_photographs(folder, *options):
    words = ("--preset", "smoke", "--data", str(folder), "--report_scores", "region_count", "--held_out", "0.34")
    return arguments_of(*words, "--scores", "{region_count: {}}", *options)[0]


def test_classes_of_a_column_have_the_same_numbers_in_training_and_in_tests(photographs):
    pairs = load_captioned(photographs / "c.json", images=photographs / "images")
    pairs.add_column("tag", ["cat", "dog", "eel", "fox", "gnu", "hen"]).save_to_disk(str(photographs / "tagged"))
    data = read_data(of_photographs(photographs / "tagged", "--labels", "tag"))
    names = label_names(data["train"])
    assert names == label_names(data["test"]) == ["cat", "dog", "eel", "fox", "gnu", "hen"]
    for part in data.values():
        assert [names[labels[0]] for labels in part["labels"]] == part["tag"][:]


def test_images_that_a_file_of_proposals_lacks_are_named_before_any_training(photographs):
    pairs = load_captioned(photographs / "c.json", images=photographs / "images")
    pairs.save_to_disk(str(photographs / "saved"))
    boxes = {str(number): [[0, 0, 40, 30], [5, 5, 30, 20]] for number in range(6)}
    np.savez(photographs / "all.npz", **boxes)
    np.savez(photographs / "some.npz", **{number: boxes[number] for number in "01"})
    options = ("--classes", "dog, cat", "--proposals")
    with pytest.raises(ValueError, match=r"of \d images, '\d' first, have null in place of proposals.*`--file`"):
        prepare(of_photographs(photographs / "saved", *options, str(photographs / "some.npz")))
    assert len(prepare(of_photographs(photographs / "saved", *options, str(photographs / "all.npz"))).train) == 4


def test_a_number_of_proposals_that_orders_nothing_is_warned_of(photographs, caplog):
    np.savez(photographs / "all.npz", **{str(number): [[0, 0, 40, 30]] * (2 + number) for number in range(6)})
    pairs = load_captioned(photographs / "c.json", images=photographs / "images")
    pairs.save_to_disk(str(photographs / "saved"))
    for most, column, told in ((9, "region_count", False), (2, "region_area", False), (2, "region_count", True)):
        options = ("--proposals", str(photographs / "all.npz"), "--max_proposals", str(most), "--classes", "dog,cat")
        given = of_photographs(photographs / "saved", *options)
        with_scores(prepare(given), given, [column])
        assert ("4 of 4 images have 2 proposals, and none has more" in caplog.text) == told


def test_the_detector_gives_as_many_boxes_as_the_test_keeps():
    for given, expected in (((), 100), (("--max_boxes", "300"), 300), (("--max_boxes", "9"), 100)):
        data_args, model_args, args, _ = arguments_of("--preset", "smoke", *given)
        model, _ = wsod_wsddn.build_detector(data_args, model_args, ["dog", "cat"], args.max_boxes)
        assert model.config.max_detections == expected


def test_a_single_class_is_refused_before_anything_is_searched(photographs):
    with pytest.raises(ValueError, match=r"has 1 class: .* Add a second class"):
        prepare(of_photographs(photographs / "c.json", "--images", str(photographs / "images"), "--classes", "dog"))


def test_test_images_without_a_class_are_refused(photographs):
    options = ("--preset", "smoke", "--data", str(photographs / "c.json"), "--images", str(photographs / "images"))
    options += ("--scores", "{caption_length: {}}", "--report_scores", "caption_length", "--held_out", "0.34")
    held = read_data(arguments_of(*options, "--classes", "dog,cat")[0])["test"]["image_id"][:]
    given = json.loads((photographs / "c.json").read_text())
    for one in given["annotations"]:
        one["caption"] = "The sea." if str(one["image_id"]) in held else one["caption"]
    (photographs / "c.json").write_text(json.dumps(given))
    message = r"None of the 2 test images has one of the 2 classes \(dog, cat\) by its captions, .* `--held_out 0.3`"
    with pytest.raises(ValueError, match=message):
        read_data(arguments_of(*options, "--classes", "dog, cat")[0])
    boxes = ("--test_objects", str(photographs / "o.json"), "--test_images", str(photographs / "images"))
    with pytest.raises(ValueError, match=r"None of the 6 test images has one of the 1 classes \(sits\) by its boxes"):
        read_data(arguments_of(*options, *boxes, "--classes", "sits")[0])


def test_validation_looks_at_images_that_show_a_class():
    features = Features({"labels": List(ClassLabel(names=["dog"]))})
    test = Dataset.from_dict({"labels": [[], [], [0], []]}, features=features)
    prepared = Prepared(test, test, test, "name")
    assert [len(prepared.shown(count)) for count in (None, 2, 3, 9)] == [4, 4, 3, 4]


def test_boxes_are_drawn_with_the_colour_of_their_class():
    image, names = Image.new("RGB", (96, 48), "black"), ["ball", "cat"]
    drawn = draw_named(image, [("cat", [24, 12, 48, 36]), ("a cloud", [0, 0, 9, 9])], names)
    assert drawn.getpixel((5 * 24, 5 * 30)) == (0x3C, 0xB4, 0x4B)
    assert drawn.getpixel((5 * 4, 5 * 9)) == (0, 0, 0)
    assert side_by_side(drawn, drawn).size == (2 * drawn.width + 4, drawn.height)


def test_concreteness_gets_embeddings_of_the_images(scenes):
    prepared = prepare(scenes)
    given = DataArguments(**{**vars(scenes), "scores": {"concreteness": {"min_count": 2, "k": 5}}})
    scored = with_scores(prepared, given, ["concreteness"])
    assert "image_embedding" not in scored.column_names
    assert np.isfinite(scored["concreteness"][:]).mean() > 0.9


@pytest.mark.slow
@pytest.mark.usefixtures("drawn_figures")
def test_a_study_on_scenes(tmp_path, monkeypatch, capsys):
    """Two arms, one of them failing: the table says n/a, the report shows boxes; the same command reads it back."""
    rows = "Baseline: {paper: {CC: 2.2}}\nToo fast: {learning_rate: 10.0, must_learn: true, control: Baseline}\n"
    (tmp_path / "arms.yaml").write_text(rows)
    words = ["wsod_wsddn.py", "--preset", "smoke", "--grid", str(tmp_path / "arms.yaml")]
    monkeypatch.setattr("sys.argv", [*words, "--output_dir", str(tmp_path / "out"), "--report_to", "none"])
    wsod_wsddn.main()
    shown = capsys.readouterr().out
    assert re.search(r"\| Too fast \| map_50 \| 0 \| n/a \| – ", shown)
    assert re.search(r"\| Baseline \| map_50 \| 1 \| [\d.]+ \| 2.2 ", shown)
    page = (tmp_path / "out" / "report" / "report.html").read_text()
    for heading in (
        "AP@0.5 of each class",
        "Detections of Baseline",
        "By `clip_similarity`",
        "How right the labels are",
    ):
        assert heading in page
    (run,) = json.loads((tmp_path / "out" / "results.json").read_text())
    with np.load(tmp_path / "out" / "Baseline-seed0" / "detections.npz") as stored:
        assert stored["detections"].shape == (20, 100, 6)
        assert stored["image_scores"].shape == (20, 14)
    assert (run["max_boxes"], run["test_images"], run["passes"]) == (100, 20, 1)
    failed = json.loads(next((tmp_path / "out").glob("Too_fast-seed0*/result.json")).read_text())
    assert (failed["status"], failed["step"]) == ("diverged", 4)
    assert "is not below" in failed["error"]
    before = (tmp_path / "out" / "Baseline-seed0" / "result.json").stat().st_mtime_ns
    wsod_wsddn.main()
    assert (tmp_path / "out" / "Baseline-seed0" / "result.json").stat().st_mtime_ns == before


ROWS = """
Baseline: {curriculum: {type: iid, epochs: 1}}
Curriculum: {curriculum: {type: phases}, score_column: region_area, control: Baseline}
Too fast: {learning_rate: 10.0, must_learn: true, control: Baseline}
"""
KILLED = """
import os, signal, sys
sys.path.insert(0, RECIPES)
import wsod_wsddn
from transformers import TrainerCallback

class Kill(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if "Curriculum" in args.output_dir and state.global_step == 5:
            os.kill(os.getpid(), signal.SIGKILL)

class Killed(wsod_wsddn.CurriculumTrainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.add_callback(Kill())

wsod_wsddn.CurriculumTrainer = Killed
wsod_wsddn.main()
"""


@pytest.mark.slow
def test_a_table_goes_on_where_it_was_killed(tmp_path, launch):
    """Killed between two checkpoints of its second row: the first is read back, the second ends as if it never was."""
    recipe, killed = Path(wsod_wsddn.__file__), tmp_path / "killed.py"
    killed.write_text(KILLED.replace("RECIPES", repr(str(recipe.parent))))
    (tmp_path / "rows.yaml").write_text(ROWS)
    words = ["--preset", "smoke", "--grid", tmp_path / "rows.yaml", "--report_to", "none"]
    words += ["--report_scores", "region_area", "--output_dir"]
    assert launch(killed, *words, tmp_path / "out", check=False).returncode == -9
    baseline, half = (tmp_path / "out" / f"{name}-seed0" for name in ("Baseline", "Curriculum"))
    written = (baseline / "result.json").stat().st_mtime_ns
    assert json.loads((half / "result.json").read_text())["status"] == "running"
    assert [file.name for file in half.glob("checkpoint-*")] == ["checkpoint-3"]
    shown = launch(recipe, *words, tmp_path / "out")
    assert (baseline / "result.json").stat().st_mtime_ns == written
    assert re.search(r"\| Too fast \| map_50 \| 0 \| n/a \| Baseline ", shown.stdout)
    launch(recipe, *words, tmp_path / "through", "--arms", "Curriculum")
    ends = [np.load(tmp_path / name / "Curriculum-seed0" / "detections.npz") for name in ("out", "through")]
    assert np.array_equal(*(end["detections"] for end in ends))
    assert np.array_equal(*(end["image_scores"] for end in ends))


def test_every_command_of_the_page_can_be_given():
    text = wsod_wsddn.__doc__
    commands = [line.partition("  #")[0].split()[3:] for line in text.splitlines() if "accelerate launch" in line]
    assert len(commands) == 7
    for words in commands:
        PARSER.parse(wsod_wsddn.with_preset(words))
