import copy
import gzip
import json
import math
import shutil
from types import SimpleNamespace

import pytest
import tiny_models
from transformers import AutoModelForImageTextToText, GPT2Config

from hf_curriculum.data.processors import CaptionProcessor
from hf_curriculum.data.regions.processor import RegionProcessor
from hf_curriculum.tasks.babylm import BENCHMARKS, GlueSettings, evaluate_pretrained, evaluate_suite
from hf_curriculum.tasks.babylm import suite as load
from hf_curriculum.tasks.babylm.run import TaskResult, unweighted_means
from hf_curriculum.tasks.babylm.suite import (
    EWOK,
    SUITES,
    SuiteResult,
    load_for_evaluation,
    macro_averages,
    markdown,
    percentage,
    write_results,
)

QUICK = ["blimp", "winoground", "devbench/lex-lwl"]


@pytest.fixture
def evaluate(git, tokenizer, image_processor, miniature):
    def run(**options):
        options = {"image_processor": image_processor, "data_dir": miniature, "progress": False, **options}
        return evaluate_suite(git, tokenizer, **options)

    return run


def test_a_suite_writes_tables_and_predictions(evaluate, tmp_path):
    result = evaluate(tasks=QUICK, output_dir=tmp_path)
    assert list(result.tasks) == ["blimp", "winoground", "devbench"]
    assert result.not_run == {}
    with gzip.open(tmp_path / "predictions.json.gz", "rt") as stream:
        predictions = json.load(stream)
    assert predictions == {name: task.predictions for name, task in result.tasks.items()}
    assert predictions["winoground"]["winoground"]["predictions"][0]["id"] == "winoground_0"
    content = json.loads((tmp_path / "results.json").read_text())
    assert content["tasks"]["blimp"]["averages"] == result.averages["blimp"]
    assert content["about"]["prefix_token"] == "[PAD]"
    assert content["about"]["notes"] == [
        "Miniature benchmarks made from drawn scenes: not comparable with the official ones."
    ]
    assert (tmp_path / "results.md").read_text() == result.table
    assert (
        f"| BLiMP filtered | accuracy | {percentage(result.averages['blimp']['accuracy'])} | 50.0 | 3 of 67 | 24 |"
        in result.table
    )
    assert "| lex-lwl (not in the mean) |" in result.table
    assert "| DevBench | accuracy | – |" in result.table  # the challenge's three tasks were not run
    written = (tmp_path / "predictions.json.gz").read_bytes()
    assert evaluate(tasks=QUICK, output_dir=tmp_path) == result  # from the scores that were kept
    assert (tmp_path / "predictions.json.gz").read_bytes() == written
    assert written[3:8] == bytes(5)  # no name of the file in it, and no time of writing


def test_what_cannot_be_run_is_said(evaluate, miniature, tmp_path, caplog):
    data = tmp_path / "data"
    data.mkdir()
    (data / "blimp_filtered").symlink_to(miniature / "blimp_filtered")
    (data / "vqa_filtered").symlink_to(miniature / "vqa_filtered")
    result = evaluate(data_dir=data, image_processor=None)
    assert list(result.tasks) == ["blimp"]
    assert result.not_run["vqa"] == "it has images, and no image processor was given"
    assert "ewok_filtered does not exist" in result.not_run["ewok"]
    assert "VQAv2: not run (it has images" in result.table
    assert "`vqa` is not run" in caplog.text


def test_what_was_found_before_a_failure_is_written(evaluate, miniature, tmp_path):
    data = shutil.copytree(miniature, tmp_path / "data")
    shutil.rmtree(data / "vqa_filtered" / "images")
    with pytest.raises(FileNotFoundError, match="images are not in"):
        evaluate(data_dir=data, tasks=["winoground", "vqa"], output_dir=tmp_path / "out")
    content = json.loads((tmp_path / "out" / "results.json").read_text())
    assert list(content["tasks"]) == ["winoground"]


def test_a_try_is_marked_as_one(evaluate):
    result = evaluate(tasks=["blimp"], limit=2)
    assert result.tasks["blimp"].counts["determiner_noun_agreement_1"] == 2
    assert "Only the first 2 items" in result.table


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"suite": "glue"}, ValueError, "suite='glue' is not known"),
        ({"tasks": ["blimpp"]}, ValueError, "'blimpp' in `tasks` is not known"),
        ({"tasks": "blimp"}, TypeError, r"given the text 'blimp' as `tasks`, .* give `\['blimp'\]`"),
        ({"tasks": []}, ValueError, "`tasks` is empty"),
        ({"limit": 0}, ValueError, "limit=0 leaves nothing"),
        ({"sources": {"blimpp": "x", "glue": "y"}}, ValueError, r"\['blimpp', 'glue'\] in `sources` would"),
        ({"tasks": ["vqa"], "image_processor": None}, ValueError, r"\['vqa'\] were asked for, which have images"),
        ({"data_dir": "nowhere"}, FileNotFoundError, "None of blimp, .* can be run"),
        ({"data_dir": "nowhere", "tasks": ["ewok"]}, FileNotFoundError, "`ewok` needs the folder"),
        ({"tasks": ["blimp/passive_1"]}, ValueError, r"\['passive_1'\] of `blimp` were asked for"),
        ({"tasks": ["vqa/counting"]}, ValueError, r"\['counting'\] of `vqa` were asked for"),
        ({"tasks": ["winoground/group"]}, ValueError, r"\['group'\] of `winoground` were asked for"),
    ],
)
def test_what_cannot_be_asked_for(options, error, message, evaluate):
    with pytest.raises(error, match=message):
        evaluate(**options)


def test_subtasks_and_whole_benchmarks_mix(evaluate):
    result = evaluate(tasks=["blimp/determiner_noun_agreement_1", "blimp", "winoground"], limit=2)
    assert len(result.tasks["blimp"].subtasks) == 3


def test_two_subtasks_have_a_mean_and_one_is_its_own(evaluate, miniature):
    names = sorted(f"blimp/{file.stem}" for file in (miniature / "blimp_filtered").iterdir())[:2]
    for asked in (names, names[:1]):
        result = evaluate(tasks=asked, limit=2)
        assert len(result.tasks["blimp"].subtasks) == len(asked)
        assert ("| mean |" in result.table) == (len(asked) == 2)


def test_every_benchmark_is_in_the_suite_and_the_macro_averages():
    assert SUITES["babylm"] == tuple(BENCHMARKS)
    values = dict(zip(BENCHMARKS, [0.652, 0.627, 0.524, 0.655, 0.555, 0.541, 0.505], strict=True))
    results = {name: TaskResult(name, {}, {BENCHMARKS[name].main[0]: value}, {}, {}) for name, value in values.items()}
    found = macro_averages(results)
    assert found["text"] == pytest.approx((0.652 + 0.627 + 0.524 + 0.655) / 4)
    assert found["vision"] == pytest.approx((0.555 + 0.541 + 0.505) / 3)
    assert percentage(found["vision"]) == "53.37"
    del results["vqa"]
    assert list(macro_averages(results)) == ["text"]
    assert "| mean of text benchmarks |  | 61.45 |" in markdown(results)


def test_results_are_written_to_be_read(tmp_path):
    results = {
        "blimp": TaskResult("blimp", {"é": {"accuracy": math.nan}}, {"accuracy": math.nan}, {"é": {}}, {"é": 1})
    }
    folder = tmp_path / "deep" / "er"
    for _ in range(2):
        write_results(folder, results, {"ewok": "it is not there"}, {"suite": "babylm"}, "a table")
    text = (folder / "results.json").read_text(encoding="utf-8")
    assert text.startswith('{\n "about": {\n  "suite": "babylm"')
    assert text.endswith("}\n")
    assert '"é"' in text
    content = json.loads(text)
    assert content["tasks"]["blimp"]["averages"] == {"accuracy": None}
    assert (content["not_run"], content["macro_averages"]) == ({"ewok": "it is not there"}, {})
    assert (folder / "results.md").read_text() == "a table"


def test_means_are_unweighted_and_keep_to_those_that_have_the_measure():
    subtasks = {"a": {"accuracy": 0.1, "f1": 0.5}, "b": {"accuracy": 0.2}}
    assert unweighted_means(subtasks) == {"accuracy": pytest.approx(0.15), "f1": 0.5}


def test_a_revision_is_that_of_every_part(monkeypatch):
    asked = []

    class Part:
        def from_pretrained(self, name, **options):
            asked.append((name, options))
            return GPT2Config()

    part = Part()
    for name in ("AutoConfig", "AutoTokenizer"):
        monkeypatch.setattr(f"transformers.{name}", part)
    monkeypatch.setattr(load, "load_model", lambda auto_class, name, revision: asked.append((name, revision)))
    for revision in ("v1", None):
        load_for_evaluation("me/model", revision)
    parts = [("me/model", {"revision": "v1"}), ("me/model", "v1"), ("me/model", {"revision": "v1"})]
    latest = [("me/model", {"revision": "main"}), ("me/model", None), ("me/model", {"revision": "main"})]
    assert asked == parts + latest


@pytest.mark.parametrize(
    ("device", "gpu", "expected"), [(None, True, "cuda"), (None, False, "cpu"), ("cuda:1", False, "cuda:1")]
)
def test_a_model_runs_on_the_gpu_that_is_there(monkeypatch, tmp_path, device, gpu, expected):
    model = SimpleNamespace(to=lambda where: f"on {where}")
    monkeypatch.setattr(load, "load_for_evaluation", lambda name, revision: (model, name, revision))
    monkeypatch.setattr(load, "evaluate_suite", lambda *args, **options: (args, options))
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpu)
    found = evaluate_pretrained("me", output_dir=tmp_path, data_dir="d", revision="v1", device=device, limit=1)
    assert found == ((f"on {expected}", "me", "v1", "babylm"), {"data_dir": "d", "output_dir": tmp_path, "limit": 1})


def test_a_try_of_a_single_item(evaluate):
    assert set(evaluate(tasks=["blimp"], limit=1).tasks["blimp"].counts.values()) == {1}


def test_a_saved_model_is_evaluated_by_its_name(git, tokenizer, image_processor, tmp_path, evaluate):
    folder = tmp_path / "model"
    for part in (git, tokenizer, image_processor):
        part.save_pretrained(folder)
    out = tmp_path / "out"
    options = {"tasks": ["blimp", "winoground"], "limit": 4, "device": "cpu", "progress": False}
    result = evaluate_pretrained(str(folder), output_dir=out, **options)
    assert (out / "miniature" / "MINIATURE.txt").is_file()
    direct = evaluate(data_dir=out / "miniature", tasks=["blimp", "winoground"], limit=4)
    assert result.averages == direct.averages
    with pytest.raises(FileNotFoundError) as caught:
        evaluate_pretrained(str(tmp_path / "nothing"), output_dir=tmp_path / "unused")
    assert f"There is no model {tmp_path / 'nothing'} to evaluate: no such folder here" in str(caught.value)
    assert "such as RUN/model" in str(caught.value)
    assert "score" not in str(caught.value)
    assert not (tmp_path / "unused").exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"empty to evaluate: the folder holds no config\.json"):
        load_for_evaluation(str(tmp_path / "empty"))
    for file in folder.glob("*token*"):
        file.unlink()
    with pytest.raises(FileNotFoundError, match=r"model to evaluate: AutoTokenizer found nothing in it"):
        load_for_evaluation(str(folder))


def test_results_of_another_model_stay(git, tokenizer, miniature, tmp_path):
    options = {"data_dir": miniature, "output_dir": tmp_path, "tasks": ["blimp"], "limit": 2, "progress": False}

    def evaluate_as(name, factor):
        model = copy.deepcopy(git)
        model.config._name_or_path = name
        model.get_output_embeddings().weight.data.mul_(factor)
        return evaluate_suite(model, tokenizer, **options)

    evaluate_as("a", 1.0)
    evaluate_as("b", 1.0)  # the same weights, moved
    evaluate_as("b", 1.1)  # the same name, trained again
    kept = (tmp_path / "results.json").read_text()
    with pytest.raises(
        ValueError, match=r"results\.json holds the results and scores of 'b'; those of 'a' would take"
    ):
        evaluate_as("a", 1.2)
    assert (tmp_path / "results.json").read_text() == kept
    (tmp_path / "results.json").write_text("{")
    assert evaluate_as("a", 1.2).about["model"] == "a"


@pytest.mark.slow
def test_the_whole_suite_runs_on_both_models(models, tokenizer, image_processor, miniature, tmp_path):
    for name, model in models.items():
        result = evaluate_suite(
            model,
            tokenizer,
            image_processor,
            data_dir=miniature,
            output_dir=tmp_path / name,
            glue=GlueSettings(num_epochs=1),
            progress=False,
        )
        assert list(result.tasks) == list(BENCHMARKS)
        assert set(result.macro_averages) == {"text", "vision"}
        assert all(0 <= value <= 1 for value in result.macro_averages.values())


def suite_of(sources, limit=None, domains=EWOK, paradigms=67):
    ewok = TaskResult("ewok", {domain: {"accuracy": 0.5} for domain in domains}, {"accuracy": 0.5}, {}, {})
    blimp = {f"paradigm_{at}": {"accuracy": at / 100} for at in range(paradigms)}
    tasks = {"ewok": ewok, "blimp": TaskResult("blimp", blimp, {"accuracy": 0.33}, {}, {})}
    tasks["vqa"] = TaskResult("vqa", {"vqa": {"accuracy": 0.2}}, {"accuracy": 0.2}, {}, {})
    return SuiteResult(tasks, {}, {"sources": sources, "limit": limit}, "")


def test_only_whole_benchmarks_of_the_hub_name_its_data_set(tmp_path):
    hub = {"ewok": "ewok-core/ewok-core-1.0", "blimp": "nyu-mll/blimp", "vqa": "HuggingFaceM4/VQAv2"}
    rows = suite_of(hub).card_results()
    named = [(row["dataset"], row["task"], row["value"]) for row in rows if "dataset" in row]
    assert named[0] == ("ewok-core/ewok-core-1.0", "default", 0.5)
    assert named[1:] == [("nyu-mll/blimp", f"paradigm_{at}", at / 100) for at in range(67)]
    # The images of VQAv2 come from the Hub, its questions and answers from the challenge.
    assert [(row["metric"], row["value"]) for row in rows if "dataset" not in row] == [
        ("BLiMP filtered, accuracy", 0.33),
        ("VQAv2, accuracy", 0.2),
    ]
    for result in (
        suite_of({}),
        suite_of(hub, limit=10),
        suite_of(hub, domains=EWOK[:3], paradigms=5),
        suite_of({"ewok": str(tmp_path), "blimp": str(tmp_path)}),
    ):
        rows = result.card_results()
        assert len(rows) == 3
        assert not [row for row in rows if "dataset" in row or "task" in row]


def test_a_saved_captioner_on_regions_is_evaluated_on_what_has_images(tmp_path, miniature):
    model = AutoModelForImageTextToText.from_pretrained(tiny_models.region_transformer(128))
    processor = CaptionProcessor(RegionProcessor("scenes_clip", grid=2), tiny_models.tokenizer())
    for part in (model, processor):
        part.save_pretrained(tmp_path / "model")
    options = {"data_dir": miniature, "output_dir": tmp_path / "out", "limit": 3, "device": "cpu", "progress": False}
    found = evaluate_pretrained(str(tmp_path / "model"), prefix_token="[CLS]", **options)
    assert set(found.tasks) == {name for name, benchmark in BENCHMARKS.items() if benchmark.images}
    assert found.not_run["blimp"] == "it has no images, and the model reads no text without one"
    assert all(0 <= value <= 1 for value in found.tasks["winoground"].averages.values())


@pytest.mark.parametrize("processor", [None, RegionProcessor()])
def test_a_captioner_whose_detector_is_not_known_says_so(tmp_path, processor):
    model = AutoModelForImageTextToText.from_pretrained(tiny_models.region_transformer())
    for part in (model, CaptionProcessor(processor, tiny_models.tokenizer())):
        part.save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match=r"the detector that made them is not saved with it.*--features STORE"):
        load_for_evaluation(str(tmp_path / "model"))
