"""The recipe of vision-language fine-tuning: its world, presets and refusals; and, slowly, a whole study."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import fields

import chat_models
import numpy as np
import pytest
import vlm_sft
from datasets import Dataset, Features, List, Value
from datasets import Image as Stored
from PIL import Image
from vlm.arguments import PARSER, PRESETS, CurriculumSFTTrainer, DataArguments, ModelArguments, SFTArguments
from vlm.data import GREY, as_turns, blinded, image_ids, prepare, read_data
from vlm.evaluation import accuracies, normalised, right_answers, wrong_facts
from vlm.model import train_tokenizer
from vlm.scores import neutral
from vlm.world import CLEAR, KINDS, SIDE, ask, describe, make_conversations, text_questions

from hf_curriculum import curriculum_from, make_plan, make_scenes
from hf_curriculum.files import read_sealed, write_sealed
from hf_curriculum.scenes.vocabulary import COLOURS, NOUNS
from hf_curriculum.studies.recipe import read_preset, study_arms

NAMES = sorted(file.stem for file in PRESETS.glob("*.yaml"))
GRIDS = sorted(file.stem for file in (PRESETS / "grids").glob("*.yaml"))
OWN = {item.name for kind in (DataArguments, ModelArguments, SFTArguments) for item in fields(kind)}
NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight"]


def arguments_of(*options, **changed):
    given = PARSER.parse(["--preset", "smoke", *options])
    return PARSER.parse_dict({**given.shared, **given.settings, "output_dir": "out", "use_cpu": True, **changed})


@pytest.fixture(scope="module")
def world():
    return make_conversations(60, 20, 3, 15, 0.3)


def said(row, turn):
    return row["messages"][turn]["content"][-1]["text"]


@pytest.mark.parametrize("name", NAMES)
def test_presets_are_complete(name):
    values = PARSER.parse(["--preset", name]).settings
    assert set(read_preset(name, PRESETS)) - {"grid"} == set(values) >= OWN
    assert set(values) - OWN <= {item.name for item in fields(CurriculumSFTTrainer.args_class)}


@pytest.mark.parametrize("grid", GRIDS)
def test_all_arms_take_equal_steps(grid):
    options = ["--preset", "photographs"] if grid == "loaded" else []
    arms, controls, _ = study_arms(PARSER.parse([*options, "--grid", grid]))
    first, *others = arms
    assert controls == dict.fromkeys(others, first)
    rows = Dataset.from_dict({"source": ["caption", "vqa", "text"] * 100, "s": np.arange(300.0).tolist()})
    for settings in arms.values():
        rule = PARSER.parse_dict({**settings, "output_dir": "out", "use_cpu": True})[-1].curriculum
        batch = settings["global_batch_size"]
        plan = make_plan(rule, rows, **({"score_column": "s"} if rule.needs_scores else {}), global_batch_size=batch)
        assert plan.num_steps == settings["steps"]


def test_questions_are_answered_by_the_scene():
    scenes = make_scenes(80, 3, SIDE, 1, max_objects=4, validation=0, test=0)["train"]
    asked = Counter()
    for objects in scenes["objects"]:
        nouns = [thing["noun"] for thing in objects]
        middles = {thing["noun"]: (thing["box"][0] + thing["box"][2]) / 2 for thing in objects}
        for question in ask(objects):
            asked[question.kind] += 1
            words = question.text.rstrip("?").split()
            if question.kind == "colour":
                assert [thing["colour"] for thing in objects if thing["noun"] == words[-1]] == [question.answer]
            elif question.kind == "count":
                assert NUMBERS[len(objects)] == question.answer
            elif question.kind == "yes_no":
                assert (words[-1] in nouns) == (question.answer == "yes")
            else:
                assert nouns.count(words[-1]) == 1
                distance = (middles[question.answer] - middles[words[-1]]) * (1 if words[2] == "right" else -1)
                assert nouns.count(question.answer) > 1 or distance >= CLEAR * SIDE
        number, named = describe(objects).answer.split(": ")
        assert number.split() == [NUMBERS[len(objects)], "thing" if len(objects) == 1 else "things"]
        assert [part.split()[-1] for part in named.split(", ")] == nouns
    assert set(asked) == set(KINDS)


def test_a_place_needs_one_answer():
    def thing(noun, left):
        return {"noun": noun, "colour": "red", "box": [left, 0.0, left + 8.0, 8.0]}

    def places(*things):
        return {one.text: one.answer for one in ask(things) if one.kind == "place"}

    assert places(thing("ball", 0), thing("car", 30)) == {
        "What is right of the ball?": "car",
        "What is left of the car?": "ball",
    }
    assert places(thing("ball", 0), thing("car", 30), thing("cup", 50)) == {
        "What is left of the car?": "ball",
        "What is right of the car?": "cup",
    }
    assert places(thing("ball", 0), thing("car", 3)) == {}  # hardly apart
    near = places(thing("ball", 0), thing("car", 30), thing("cup", 4))
    assert near == {"What is right of the cup?": "car"}  # to the right of the ball one is clear, the other is not


def test_the_share_of_wrong_answers_is_exact_and_the_test_is_clean(world):
    train, test = world["train"].remove_columns("images"), world["test"].remove_columns("images")
    asked = [row for row in train if row["source"] == "vqa"]
    wrong = [row for row in train if row["wrong"]]
    assert len(wrong) == round(0.3 * len(asked))
    assert {row["source"] for row in wrong} == {"vqa"}
    assert not any(test["wrong"][:])
    true = make_conversations(60, 20, 3, 15, 0.0)["train"].remove_columns("images")
    for row, right in zip(train, true, strict=True):
        assert said(row, 0) == said(right, 0)
        assert (said(row, 1) != said(right, 1)) == row["wrong"]
    known = {"colour": COLOURS, "count": NUMBERS[1:5], "place": NOUNS, "yes_no": ["yes", "no"]}
    assert all(said(row, 1) in known[row["kind"]] for row in asked)


def test_the_world_has_its_sources_and_no_image_in_both_splits(world):
    train, test = world["train"], world["test"]
    counts = Counter(train["source"])
    assert (counts["caption"], counts["text"]) == (40, 15)
    assert 80 < counts["vqa"] <= 120
    images = [{row["image_id"] for row in part if row["images"]} for part in (train, test)]
    assert [len(part) for part in images] == [40, 20]
    assert not images[0] & images[1]
    assert Counter(test["kind"])["text"] == len(text_questions()) == 39
    balance = Counter(said(row, 1) for row in test.remove_columns("images") if row["kind"] == "yes_no")
    assert balance["yes"] == balance["no"]


def test_rows_become_turns_whose_images_are_shown():
    def message(role, *parts):
        content = [{"type": "image" if one is None else "text", "text": one} for one in parts]
        return {"role": role, "content": content}

    chat = [message("user", None, "What?"), message("assistant", "A dog."), message("user", "Where?")]
    later = [
        message("user", "Hi."),
        message("assistant", "Hello."),
        message("user", None),
        message("assistant", "It."),
    ]
    picture = Image.new("RGB", (8, 8), (200, 10, 10))
    features = Features(
        messages=List({"role": Value("string"), "content": List({"type": Value("string"), "text": Value("string")})}),
        images=List(Stored()),
    )
    rows = Dataset.from_list(
        [
            {"messages": [*chat, message("assistant", "Outside.")], "images": [picture]},
            {"messages": later, "images": [picture]},
        ],
        features=features,
    )
    turns = as_turns(rows)
    answers = [row["completion"][0]["content"][0]["text"] for row in turns]
    assert answers == ["A dog.", "Outside.", "It."]  # "Hello." comes before its row's image
    assert [len(row["prompt"]) for row in turns] == [1, 3, 3]
    assert len(set(image_ids(rows))) == 1
    grey = blinded(turns)
    assert grey.column_names == turns.column_names
    assert all(row["images"][0].getpixel((3, 3)) == GREY for row in grey)


def test_answers_are_compared_without_capitals_and_punctuation():
    assert normalised("  A red  ball. ") == "a red ball"
    told = [[{"role": "assistant", "content": "Yes."}], [{"role": "assistant", "content": "two"}]]
    right = right_answers(["yes", "too"], Dataset.from_dict({"completion": told}))
    assert right == [True, False]
    assert accuracies([True, False, True], ["a", "a", "b"]) == {"accuracy_a": 0.5, "accuracy_b": 1.0, "accuracy": 0.75}


def test_wrong_rows_are_counted_among_draws():
    rows = Dataset.from_dict(
        {"wrong": [True, False, False, True], "source": ["vqa"] * 4, "grounding": [-1.0, 2.0, 1.0, 1.5]}
    )
    assert wrong_facts(rows, np.array([0, 0, 1, 2])) == {"wrong_drawn": 0.5, "wrong_auc": 0.75}
    assert wrong_facts(rows.remove_columns("wrong"), np.array([0])) == {}


def test_rows_without_an_image_take_the_median():
    assert neutral(np.array([1.0, np.nan, 3.0, 8.0], np.float32)).tolist() == [1.0, 3.0, 3.0, 8.0]
    with pytest.raises(ValueError, match="No row has a grounding"):
        neutral(np.full(3, np.nan, np.float32))


def test_the_tokenizer_gives_its_texts_back():
    texts = [question.text for question in text_questions()]
    words = train_tokenizer(texts, 400)
    assert all(words.decode(words(text)["input_ids"]) == text for text in texts)
    assert words.image_token == "<image>"
    assert len(words("<image>")["input_ids"]) == 1


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (("--score", "loss"), "score='loss' is none of"),
        (("--curriculum", "phases"), "goes by a score, and score=None"),
        (("--data", "chats.json"), "knows the words of the embedded scenes alone"),
        (("--model", "folder"), "knows the words of the embedded scenes alone"),
        (("--wrong", "1"), "a share is from 0 to less than 1"),
        (("--questions", "5"), "1 to 4 kinds of question"),
    ],
)
def test_what_contradicts_itself_is_refused(options, match):
    with pytest.raises(ValueError, match=match):
        arguments_of(*options)


def chats(folder, count=6):
    """A file as LLaVA's, with images."""
    folder.mkdir()
    rows = []
    for number in range(count):
        Image.new("RGB", (24, 24), (40 * number, 90, 200 - 30 * number)).save(folder / f"{number}.png")
        turns = [
            {"from": "human", "value": "<image>\nWhat is it?"},
            {"from": "gpt", "value": f"{'Big ' * number}thing."},
        ]
        rows.append({"id": str(number), "image": f"{number}.png", "conversations": turns})
    (folder / "chats.json").write_text(json.dumps(rows))
    return folder / "chats.json"


def test_other_conversations_hold_out_images(tmp_path):
    file = chats(tmp_path / "data")
    given = ("--data", str(file), "--model", "any", "--held_out", "2")
    made = prepare(arguments_of(*given)[0])
    assert {name: len(rows) for name, rows in made.items()} == {"train": 4, "test": 2}
    assert not set(made["train"]["image_id"]) & set(made["test"]["image_id"])
    parsed = arguments_of(*given)
    assert len(read_data(*parsed)["train"]) == 4
    parsed[-1].curriculum = curriculum_from("{type: mixture, column: source, shares: {caption: 1, vqa: 1}}")
    with pytest.raises(ValueError, match=r"Mixture\(.*\) reads `source` of each row, and .* has no such column"):
        read_data(*parsed)
    with pytest.raises(ValueError, match="held_out=6 of 6 images leaves none"):
        prepare(arguments_of(*given[:-1], "6")[0])
    rows = json.loads(file.read_text())
    for row in rows:
        del row["image"]
        row["conversations"][0]["value"] = "What is it?"
    file.with_name("texts.json").write_text(json.dumps(rows))
    with pytest.raises(ValueError, match="has no images"):
        prepare(arguments_of("--data", str(file.with_name("texts.json")), "--model", "any")[0])
    (tmp_path / "splits").mkdir()
    for name in ("test", "validation"):
        (tmp_path / "splits" / f"{name}.json").write_text(json.dumps(rows))
    with pytest.raises(ValueError, match="no 'train'"):
        prepare(arguments_of("--data", str(tmp_path / "splits"), "--model", "any")[0])


def run(monkeypatch, folder, *options):
    """The recipe as a command; the numbers of its runs."""
    monkeypatch.setattr("sys.argv", ["vlm_sft", "--preset", "smoke", "--output_dir", str(folder), *options])
    vlm_sft.main()
    runs = json.loads((folder / "results.json").read_text())
    return {(one["name"], one["seed"]): one for one in runs}


def losses(found):
    return [[entry["loss"] for entry in one["log"] if "loss" in entry] for one in found.values()]


@pytest.mark.slow
def test_a_study_ends_in_a_table_and_goes_on_where_it_stopped(tmp_path, monkeypatch, capsys):
    first = run(monkeypatch, tmp_path / "a", "--seeds", "0")
    printed = capsys.readouterr().out
    assert [name for name, _ in first] == ["iid", "blind", "length", "reverse", "grounding", "filter", "mixture"]
    assert "What seeing brings" in printed
    assert {one["parameters"] for one in first.values()} < {*range(60_000)}  # without the tower, which is frozen
    assert "Wrong answers among those trained on" in printed
    assert (tmp_path / "a" / "report" / "index.html").is_file() or list((tmp_path / "a").glob("report*"))
    # The same seed again has the same numbers; one whose last third was lost goes on to them.
    second = run(monkeypatch, tmp_path / "b", "--seeds", "0", "--arms", "iid", "grounding")
    assert losses(second) == losses({key: first[key] for key in second})
    killed = tmp_path / "b" / "grounding-seed0"
    facts = read_sealed(killed / "result.json", "")
    write_sealed(killed / "result.json", {**facts, "status": "running", "result": {}})
    shutil.rmtree(killed / "model")
    shutil.rmtree(killed / "checkpoint-12")
    (tmp_path / "b" / "results.json").unlink()
    again = run(monkeypatch, tmp_path / "b", "--seeds", "0", "--arms", "iid", "grounding")
    assert again["grounding", 0]["accuracy"] == first["grounding", 0]["accuracy"]
    assert losses(again) == losses(second)


@pytest.mark.slow
def test_a_trained_model_and_data_by_name_take_the_same_way(tmp_path, monkeypatch):
    file = chats(tmp_path / "data", 8)
    given = ("--model", str(chat_models.idefics3()), "--data", str(file), "--held_out", "2", "--grid", "loaded")
    found = run(monkeypatch, tmp_path / "out", *given, "--steps", "4", "--save_steps", "2", "--seeds", "0")
    assert {name for name, _ in found} == {"iid", "blind", "length", "reverse", "grounding", "filter"}
