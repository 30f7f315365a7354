import inspect
import io
import json
import math
import re
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from datasets import Dataset
from huggingface_hub import EvalResultEntry, parse_eval_result_entries
from torch import nn
from transformers import AutoConfig, PreTrainedTokenizerFast, ProcessorMixin, Trainer

from hf_curriculum import CurriculumTrainer, CurriculumTrainingArguments, OnlineSelection, Phases, SelfPaced
from hf_curriculum.hub import model_card
from hf_curriculum.hub.model_card import _curve, eval_results, model_figures, render_model_card
from hf_curriculum.hub.papers import PAPERS, paper_of
from hf_curriculum.markdown import END, START
from hf_curriculum.names import CURRICULA
from hf_curriculum.provenance import ScoreProvenance, attach_provenance
from hf_curriculum.training.checkpoints import named_on_hub
from hf_curriculum.training.facts import _hardware, _processor_class, gather_facts
from hf_curriculum.training.setup import image_processor_of


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x, labels=None):
        logits = self.layer(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def make(tmp_path, trainer=None, **arguments):
    data = Dataset.from_dict(
        {"x": [[1.0, 2.0]] * 8, "labels": [0, 1] * 4, "difficulty": np.arange(8, dtype=np.float32)}
    )
    made = ScoreProvenance("difficulty", "by hand", {"n": "<b>|"}, model="a/b")
    data = attach_provenance(data, {"difficulty": made})
    settings = {
        "per_device_train_batch_size": 2, "report_to": [], "use_cpu": True, "disable_tqdm": True, "logging_steps": 1,
        "save_strategy": "no", "eval_strategy": "steps", "eval_steps": 2, "score_column": "difficulty",
        "curriculum": Phases(2, cut="value"), **arguments,
    }  # fmt: skip
    args = CurriculumTrainingArguments(str(tmp_path / "out"), **settings)
    return CurriculumTrainer(Net(), args, train_dataset=data, eval_dataset=data, **(trainer or {}))


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    trainer = make(tmp_path_factory.mktemp("facts"))
    trainer.train()
    return json.loads(json.dumps(gather_facts(trainer, dataset="me/data", paper="babylm"), allow_nan=False))


def header_of(text):
    found = re.match(r"^(\s*---[\r\n]+)([\S\s]*?)([\r\n]+---(\r\n|\n|$))", text)
    return yaml.safe_load(found[2]), text[found.end() :]


def test_the_facts_of_a_run(facts):
    assert (facts["cost"]["examples"], facts["cost"]["steps"]) == (12, 6)
    assert facts["cost"]["seconds"] >= 0
    assert facts["data"] == {"name": "me/data", "rows": 8, "evaluation_rows": 8}
    assert (facts["score"]["provenance"]["scorer"], facts["score"]["statistics"]["max"]) == ("by hand", 7)
    assert facts["curriculum"] == {"type": "phases", "num_phases": 2, "cut": "value"}
    assert facts["paper"] == "babylm"
    assert [entry["step"] for entry in facts["history"]] == [2, 4, 6]
    assert {entry["examples"] for entry in facts["history"]} == {4, 8, 12}
    (loss,) = facts["results"]
    assert (loss["metric"], loss["value"]) == ("loss", facts["history"][-1]["eval_loss"])
    assert facts["model"]["parameters"] == 6
    assert facts["model"]["auto"] is None
    assert facts["versions"]["torch"] == torch.__version__.partition("+")[0] or torch.__version__
    assert facts["settings"]["examples per optimizer step"] == 2


def test_the_card_is_rendered_from_facts_alone(facts):
    text = render_model_card(facts)
    header, body = header_of(text)
    assert (header["datasets"], header["library_name"]) == (["me/data"], "transformers")
    assert "@inproceedings{saha2024exploring" in body
    assert "trained on 8 examples of me/data with the curriculum phases, ordered by difficulty (low = easy)" in body
    assert "| examples trained on | 12 |" in body
    assert re.search(r"\nphase +rule +pool", body)
    assert "Decisions between rounds" not in body
    assert "load_state_dict" in body  # no model of transformers
    assert set(model_figures(facts)) == {"figures/pool_growth.png", "figures/validation_loss.png"}
    assert all(f"]({path})" in body for path in model_figures(facts))
    assert render_model_card(facts, text) == text
    assert "\n# out\n" in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"auto": "AutoModelForCausalLM", "is_ours": True}, ["import hf_curriculum  #", "trust_remote_code"]),
        ({"auto": "AutoModel"}, ["model = AutoModel.from_pretrained(", "code is in `transformers`"]),
        ({"auto": "AutoModel", "processor": "AutoTokenizer"}, ["import AutoModel, AutoTokenizer", "processor = Auto"]),
        ({"is_adapter": True}, ["AutoPeftModel"]),
        ({"base_model": "them/base"}, [", from them/base"]),
    ],
)  # fmt: skip
def test_how_to_load_it(facts, changes, words):
    text = render_model_card({**facts, "model": {**facts["model"], **changes}})
    for word in words:
        assert word in text
    if changes.get("auto"):
        code = text.partition("```python\n")[2].partition("```")[0]
        compile(code, "card", "exec")
    assert header_of(text)[0].get("base_model") == changes.get("base_model")


def test_decisions_results_and_no_score(facts):
    more = {
        "decisions": [{"round": 0, "step": 4, "bucket": 1, "why": "<b>better</b> | worse"}],
        "results": [{"metric": "CIDEr", "value": 0.51, "reference": 0.6, "source": "Karpathy test"}],
        "score": None,
        "paper": None,
        "history": [],
        "license": "mit",
        "language": "en",
        "tags": ["x"],
    }
    text = render_model_card({**facts, **more})
    assert "| round | step | bucket | why |" in text
    assert "&lt;b&gt;better&lt;/b&gt; \\| worse" in text
    assert "| metric | ours | the paper's | measured on |" in text
    assert "| CIDEr | 0.51 | 0.6 | Karpathy test |" in text
    assert "The score:" not in text
    assert "it follows no single paper" in text
    assert "validation_loss.png" not in text
    assert header_of(text)[0]["tags"] == ["x", "curriculum-learning", "hf_curriculum"]
    assert header_of(text)[0]["license"] == "mit"
    assert "Nothing was evaluated." in render_model_card({**facts, "results": []})


def test_a_run_without_a_curriculum_and_one_without_stages(facts):
    none = dict.fromkeys(("curriculum", "plan", "score", "paper"))
    header, body = header_of(render_model_card({**facts, **none}, "---\ntags: photos\n---\n# Mine\n"))
    assert header["tags"] == ["photos", "hf_curriculum"]
    assert "examples of me/data in random order, without a curriculum.\n" in body
    for said in ("None: examples were drawn at random.", "No paper: no curriculum was used.", "# Mine\n"):
        assert said in body
    assert "![" not in body
    assert model_figures({**facts, **none}) == {}
    early = {**facts, "plan": {**facts["plan"], "stages": []}, "history": []}
    assert model_figures(early) == {}
    assert "![" not in render_model_card(early)


def test_nothing_in_the_facts_gets_out_of_its_place(facts):
    bad = "<script>x</script>\n---\n```\n" + END + "W" * 10_240
    hostile = json.loads(json.dumps(facts))
    hostile["model"] |= {"name": bad, "class": bad, "base_model": bad, "type": bad}
    hostile["data"]["name"] = bad
    hostile["describe"] += "\n" + bad
    hostile["score"]["column"] = hostile["score"]["provenance"]["scorer"] = bad
    hostile["results"] = [{"metric": bad, "value": bad, "reference": bad, "source": bad}]
    hostile["hardware"][bad] = bad
    hostile["decisions"] = [{bad: bad}]
    hostile |= {"license": bad, "language": bad, "tags": [bad]}
    text = render_model_card(hostile)
    header, body = header_of(text)
    assert [line for line in text.splitlines() if line.startswith("---")] == ["---", "---", "---"]  # one in the plan
    outside = re.sub(r"```\w*\n.*?\n```", "", body, flags=re.DOTALL)
    assert set(re.findall(r"<[^>]*>", outside)) == {START, END}
    assert "`" not in outside.replace("`curriculum.json`", "").replace("`transformers`", "").replace(r"\`", "")
    assert body.count("\n## ") == 6
    assert header["license"].startswith("<script>x</script> --- ```")


def test_a_trainer_writes_its_card(tmp_path):
    trainer = make(tmp_path)
    trainer.create_model_card(paper="wsod", tags="mine", results=[{"metric": "m", "value": 1}])
    out = tmp_path / "out"
    first = (out / "README.md").read_text()
    assert "nebbia2024image" in first
    assert "| m | 1 | this run |" in first
    told = json.loads((out / "training_facts.json").read_text())
    assert render_model_card(told) == first
    (out / "README.md").write_text(first.replace("# out\n", "# Mine\n\nMy words.\n"))
    trainer.create_model_card(tags="mine")
    assert "# Mine\n\nMy words.\n" in (out / "README.md").read_text()
    (out / "README.md").write_text("---\nlibrary_name: peft\nbase_model: a/b\n---\n# Model Card for Model ID\n[More]")
    trainer.create_model_card()
    header, body = header_of((out / "README.md").read_text())
    assert header["base_model"] == "a/b"
    assert "[More]" not in body
    with pytest.raises(ValueError, match="paper='x' is not known; babylm, simi_cl"):
        trainer.create_model_card(paper="x")
    with pytest.raises(ValueError, match="this card has no place for them"):
        trainer.create_model_card(tasks="captioning")


def test_what_is_said_of_a_model_stands_in_its_card(tmp_path):
    trainer, file = make(tmp_path), tmp_path / "out" / "training_facts.json"
    before = [{"stage": "text", "examples": 5, "steps": 1, "seconds": 2.0}]
    said = {"language": "en", "license": "mit", "model_name": "Small", "finetuned_from": "them/base"}
    trainer.create_model_card(
        **said, tags=["a", "b"], dataset="other/data", dataset_tags=["me/data", "me/more"], dataset_name="third",
        description="captions of scenes", before=before,
    )  # fmt: skip
    told = json.loads(file.read_text())
    assert {name: told[name] for name in ("language", "license", "tags", "before")} == {
        "language": "en", "license": "mit", "tags": ["a", "b"], "before": before,
    }  # fmt: skip
    assert (told["model"]["name"], told["model"]["base_model"]) == ("Small", "them/base")
    assert told["data"] == {"name": "me/data", "description": "captions of scenes", "rows": 8, "evaluation_rows": 8}
    for given, name in (({"dataset": ["other/data"]}, "other/data"), ({"dataset_name": "third"}, "third"), ({}, None)):
        trainer.create_model_card(**given, tags="mine")
        told = json.loads(file.read_text())
        assert (told["data"]["name"], told["tags"]) == (name, ["mine"])
        assert not {"language", "license", "finetuned_from"} & set(told)
        assert "description" not in told["data"]


def test_a_card_is_written_by_one_process_and_not_with_checkpoints(tmp_path, monkeypatch):
    trainer, card = make(tmp_path), tmp_path / "out" / "README.md"
    trainer._saves_checkpoint = True
    trainer.create_model_card()
    trainer._saves_checkpoint = False
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "is_world_process_zero", lambda: False)
        trainer.create_model_card()
    assert not card.exists()
    trainer.create_model_card()
    assert card.exists()


def test_whose_model_it_is_and_from_what(tmp_path):
    trainer = make(tmp_path, hub_model_id="me/asked")
    trainer.model.layer.bias.requires_grad = False
    trainer.model.config = SimpleNamespace(_name_or_path="them/base", model_type="net")
    model = gather_facts(trainer)["model"]
    assert (model["repo_id"], model["name"], model["base_model"], model["type"]) == (
        "me/asked", "asked", "them/base", "net",
    )  # fmt: skip
    assert (model["class"], model["parameters"], model["trainable"]) == ("Net", 6, 4)
    assert (model["is_ours"], model["is_adapter"]) == (False, False)
    trainer.hub_model_id = "me/made"
    trainer.model.config._name_or_path = str(tmp_path)  # a folder here means nothing to others
    model = gather_facts(trainer, name="Called")["model"]
    assert (model["repo_id"], model["name"], model["base_model"]) == ("me/made", "Called", None)
    trainer.model.config._name_or_path = ""
    assert gather_facts(trainer)["model"]["base_model"] is None


def test_the_settings_and_the_device_of_a_run(tmp_path, monkeypatch):
    trainer = make(tmp_path, gradient_accumulation_steps=2, seed=3, data_seed=5, learning_rate=0.25, max_steps=2)
    told = gather_facts(trainer)
    assert told["settings"] == {
        "examples per optimizer step": 4, "planned optimizer steps": 2, "learning_rate": 0.25,
        "lr_scheduler_type": "linear", "warmup_steps": trainer.args.warmup_steps, "weight_decay": 0.0,
        "optim": trainer.args.optim.value, "bf16": False, "fp16": False, "seed": 3, "seed of the order": 5,
    }  # fmt: skip
    assert told["hardware"]["processes"] == 1
    assert told["hardware"]["device"].endswith(" cores")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"a fast {device.type}")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert _hardware(trainer)["device"].endswith(" cores")  # there is one, and this run does not use it
    other = SimpleNamespace(args=SimpleNamespace(device=torch.device("cuda"), world_size=2))
    assert (_hardware(other)["device"], _hardware(other)["processes"]) == ("a fast cuda", 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert _hardware(other)["device"].endswith(" cores")


def test_results_are_those_of_the_last_evaluation_and_what_was_given(tmp_path):
    trainer = make(tmp_path)
    speed = {"eval_runtime": 1.0, "eval_samples_per_second": 2.0}
    trainer.state.log_history = [
        {"step": 1, "eval_loss": 2.0, "eval_old": 1.0},
        {"step": 2, "eval_loss": 1.0, "eval_note": "text", **speed},
        {"step": 3, "loss": 0.5},
    ]
    found = gather_facts(trainer, results=[{"metric": "m", "value": np.float64(0.5)}])
    assert [(one["metric"], one["value"]) for one in found["results"]] == [("loss", 1.0), ("m", 0.5)]
    assert [entry["step"] for entry in found["history"]] == [1, 2]
    assert "eval_note" not in found["history"][1]
    trainer.state.log_history = []
    assert gather_facts(trainer)["results"] == []


def test_results_and_curve_of_several_evaluation_sets(facts, tmp_path):
    trainer = make(tmp_path)
    trainer.state.log_history = [
        {"step": step, "examples": 2 * step, f"eval_{name}_loss": loss / step, f"eval_{name}_runtime": 1.0}
        for step in (2, 4) for name, loss in (("pairs", 8.0), ("images", 4.0))
    ]  # fmt: skip
    found = gather_facts(trainer)
    assert [(one["metric"], one["value"]) for one in found["results"]] == [("pairs_loss", 2.0), ("images_loss", 1.0)]
    card = {**facts, "history": found["history"]}
    assert set(model_figures(card)) == set(model_figures(facts))
    assert [(one["examples"], one["eval_loss"]) for one in _curve(card)] == [(4, 4.0), (8, 2.0)]


def test_the_curve_shows_what_joined_and_no_phases(facts, monkeypatch):
    drawn, draw = {}, model_card.validation_curves
    monkeypatch.setattr(
        model_card, "validation_curves", lambda runs, **marks: drawn.update(marks) or draw(runs, **marks)
    )
    model_figures(facts)
    assert drawn == {"boundaries": [facts["plan"]["stages"][0]["last_sample"] + 1], "merges": {"phases": []}}
    model_figures({**facts, "decisions": [{"step": 2, "decision": "merge", "bucket": 1}]})
    assert drawn == {"boundaries": [], "merges": {"phases": [(4, "2")]}}


def test_the_article_of_a_class_fits_its_name(facts):
    for name, words in (("UpDownForCausalLM", "\nAn UpDownForCausalLM with"), ("Net", "\nA Net with")):
        assert words in render_model_card({**facts, "model": {**facts["model"], "class": name}})


def test_a_token_does_not_reach_the_pickled_arguments(tmp_path):
    args = make(tmp_path, hub_token="hf_abcdefghijkl").args
    assert args.hub_token == "hf_abcdefghijkl"
    saved = io.BytesIO()
    torch.save(args, saved)
    assert b"abcdefghijkl" not in saved.getvalue()
    assert b"per_device_train_batch_size" in saved.getvalue()


def test_the_hooks_of_transformers_are_still_what_they_were():
    """These are overridden or called, so a change of theirs must be noticed here and not in a push."""
    found = {
        name: list(inspect.signature(getattr(Trainer, name)).parameters)[1:]
        for name in ("init_hf_repo", "push_to_hub", "create_model_card", "_push_from_checkpoint")
    }
    assert found == {
        "init_hf_repo": ["token", "private"],
        "push_to_hub": ["commit_message", "blocking", "token", "revision", "private", "kwargs"],
        "create_model_card": [
            "language", "license", "tags", "model_name", "finetuned_from", "tasks", "dataset_tags", "dataset",
            "dataset_args",
        ],
        "_push_from_checkpoint": ["checkpoint_folder"],
    }  # fmt: skip
    assert "self.push_in_progress" in inspect.getsource(Trainer._push_from_checkpoint)


def test_without_training_data_it_is_a_trainer(tmp_path):
    args = CurriculumTrainingArguments(str(tmp_path / "out"), report_to=[], use_cpu=True)
    trainer = CurriculumTrainer(Net(), args)
    trainer._save_curriculum()
    assert not (tmp_path / "out" / "curriculum.json").exists()


def test_every_paper_is_cited():
    assert set(PAPERS) == {"babylm", "simi_cl", "tonics", "discl", "wsod"}
    for paper in PAPERS.values():
        assert re.match(r"@(inproceedings|article)\{\w+,\n", paper.bibtex)
        assert paper.title in paper.bibtex
        assert paper.bibtex.count("{") == paper.bibtex.count("}")
    then = {"then": {"type": "iid"}}
    cited = {name: paper_of({"type": name, **then}, "clip_similarity") for name in CURRICULA}
    assert {name: paper for name, paper in cited.items() if paper} == {
        "adaptive_guidance": "discl", "baby_steps": "simi_cl", "filter": "wsod", "guidance_schedule": "discl",
        "node_sampling": "tonics", "phases": "wsod",
    }  # fmt: skip
    assert paper_of({"type": "phases", "cut": "value"}, "noun_count") == "babylm"
    assert paper_of({"type": "phases", "pools": "exclusive"}, "clip_similarity") is None


def test_a_rule_of_a_paper_with_a_score_of_ones_own_cites_none(tmp_path):
    phases, steps = {"type": "phases"}, {"type": "baby_steps"}
    rules = [phases, {**phases, "cut": "value"}, steps, {"type": "filter", "then": phases}]
    assert [paper_of(rule, "answer_length") for rule in rules] == [None] * 4
    assert paper_of(phases, "noun_count") is paper_of({**phases, "cut": "value"}, "caption_length") is None
    by = {"type": "filter", "by": "clip_similarity", "then": phases}
    assert (paper_of(by, "caption_length"), paper_of(by, "answer_length")) == ("wsod", None)
    assert paper_of({**by, "then": steps}, "caption_length") is None
    assert paper_of({**by, "keep": "auto"}, "caption_length") is None
    assert gather_facts(make(tmp_path))["paper"] is None


def test_what_happens_behind_training_costs_no_training(tmp_path, monkeypatch):
    """Whoever pushes an hour after the end has not trained for an hour more."""
    trainer = make(tmp_path)
    assert gather_facts(trainer)["cost"]["seconds"] == 0
    trainer.train()
    trained = trainer.trained_seconds
    monkeypatch.setattr("time.perf_counter", lambda now=time.perf_counter: now() + 3600)
    trainer.evaluate()
    assert gather_facts(trainer)["cost"]["seconds"] == round(trained, 1)
    trainer._save_curriculum()
    assert json.loads((tmp_path / "out" / "curriculum.json").read_text())["seconds"] == trained


def test_a_folder_that_ends_with_a_slash_names_the_model(tmp_path):
    trainer = make(tmp_path)
    trainer.args.output_dir += "/"
    assert gather_facts(trainer)["model"]["name"] == "out"


def test_a_loss_that_is_no_number_is_told(tmp_path):
    trainer = make(tmp_path, eval_strategy="no")
    trainer.state.log_history = [{"eval_loss": math.nan, "eval_words": 3, "eval_runtime": 1.0, "step": 6}]
    found = gather_facts(trainer, results=[{"metric": "recall", "value": np.float32("inf"), "reference": 0.5}])
    text = render_model_card(json.loads(json.dumps(found, allow_nan=False)))
    for line in ("| loss | nan | – |", "| words | 3 | – |", "| recall | inf | 0.5 |"):
        assert line in text
    assert "Nothing was evaluated" not in text


TOKENIZER, IMAGES = PreTrainedTokenizerFast.__new__(PreTrainedTokenizerFast), object()
BOTH = SimpleNamespace(tokenizer=TOKENIZER, image_processor=IMAGES)


@pytest.mark.parametrize(
    ("given", "collator", "model", "images", "name"),
    [
        (TOKENIZER, BOTH, "blip", IMAGES, "AutoProcessor"),
        (None, BOTH, "blip", IMAGES, "AutoProcessor"),
        (TOKENIZER, BOTH, "bert", IMAGES, "AutoTokenizer"),
        (TOKENIZER, SimpleNamespace(tokenizer=TOKENIZER), "blip", None, "AutoTokenizer"),
        (TOKENIZER, SimpleNamespace(image_processor=IMAGES), "blip", None, "AutoTokenizer"),
        (None, BOTH, "bert", IMAGES, None),
        (None, None, "blip", None, None),
        (ProcessorMixin.__new__(ProcessorMixin), BOTH, "bert", None, "AutoProcessor"),
        (object(), BOTH, "blip", None, "AutoImageProcessor"),
    ],
)
def test_what_loads_what_is_saved_beside_the_model(given, collator, model, images, name):
    trainer = SimpleNamespace(processing_class=given, data_collator=collator)
    assert image_processor_of(trainer) is images
    assert _processor_class(trainer, AutoConfig.for_model(model)) == name


@pytest.mark.parametrize("name", ["./results", "/home/me/model", "COCO captions", "a/b/c", "nöt"])
def test_the_header_names_nothing_but_repositories(facts, name):
    """The Hub refuses a card whose header says that a folder is the base model."""
    other = {**facts, "model": {**facts["model"], "base_model": name}, "data": {**facts["data"], "name": name}}
    header, body = header_of(render_model_card(other))
    assert not {"base_model", "datasets"} & set(header)
    assert "examples of " in body


def test_what_names_a_repository(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert named_on_hub("me/model") == ("me/model", None)
    assert named_on_hub("me/model@refs/pr/1") == ("me/model", "refs/pr/1")
    assert named_on_hub("checkpoint-10") is None
    assert named_on_hub("./out/checkpoint-10") is None
    assert named_on_hub("/a/b") is None
    (tmp_path / "out").mkdir()
    assert named_on_hub("out/checkpoint-10") is None  # a folder here, mistyped or not
    with pytest.raises(ValueError, match="there is no such folder"):
        make(tmp_path).train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-10"))


def result(**entry):
    return {"metric": "accuracy", "value": 0.625, **entry}


def test_results_on_benchmarks_of_the_hub_become_files_that_it_reads():
    ewok = result(dataset="ewok-core/ewok-core-1.0", task="default", notes="mean over 11 domains", revision="0" * 40)
    rows = [
        result(),
        ewok,
        *(result(dataset="nyu-mll/blimp", task=task, value=value) for task, value in (("passive_1", 0.5), ("npi", 1))),
        result(dataset="nyu-mll/blimp", task="diverged", value="nan"),
    ]
    files = eval_results({"results": rows})
    assert list(files) == [".eval_results/ewok-core--ewok-core-1.0.yaml", ".eval_results/nyu-mll--blimp.yaml"]
    first, second = (parse_eval_result_entries(yaml.safe_load(content)) for content in files.values())
    assert first == [
        EvalResultEntry(
            "ewok-core/ewok-core-1.0", "default", 0.625, dataset_revision="0" * 40, notes="mean over 11 domains"
        )
    ]
    assert [(one.task_id, one.value) for one in second] == [("passive_1", 0.5), ("npi", 1)]
    assert eval_results({"results": [result()]}) == {}
    (text,) = eval_results({"results": [result(dataset="me/x", task="t", notes="é")]}).values()
    assert text.decode() == "- dataset:\n    id: me/x\n    task_id: t\n  value: 0.625\n  notes: é\n"


@pytest.mark.parametrize(
    "entry",
    [
        {"dataset": "nyu-mll/blimp"},
        {"task": "npi"},
        {"dataset": "blimp", "task": "npi"},
        {"dataset": "a b/c", "task": "d"},
    ],
)
def test_half_a_benchmark_is_refused(entry):
    with pytest.raises(ValueError, match=r"The result 'accuracy' has dataset=.* and task=.*: give both, or neither"):
        eval_results({"results": [result(**entry)]})


def test_results_stand_beside_the_card(tmp_path):
    trainer = make(tmp_path)
    trainer.train()
    with pytest.raises(ValueError, match="give both"):
        trainer.create_model_card(results=[result(dataset="nyu-mll/blimp")])
    assert not (tmp_path / "out" / "README.md").exists()
    trainer.create_model_card(results=[result(dataset="nyu-mll/blimp", task="npi", source="nyu-mll/blimp")])
    (entry,) = yaml.safe_load((tmp_path / "out" / ".eval_results" / "nyu-mll--blimp.yaml").read_text())
    assert entry == {"dataset": {"id": "nyu-mll/blimp", "task_id": "npi"}, "value": 0.625}
    assert "| accuracy | 0.625 | nyu-mll/blimp |" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize(
    "rule", [OnlineSelection(2, "loss", easy="low"), SelfPaced(epochs=4)], ids=lambda rule: rule.type
)
def test_what_was_scored_while_training_is_in_the_card(tmp_path, rule):
    chooses = rule.type == "online_selection"
    trainer = make(tmp_path, curriculum=rule, score_column="difficulty" if chooses else None)
    trainer.train()
    facts = gather_facts(trainer)
    plan, step = trainer.plan, trainer.state.global_step
    assert facts["cost"]["examples"] == plan.num_examples
    assert facts["cost"]["examples_scored"] == plan.scored_after(step) > 0
    assert facts["cost"]["compute"] == 3 * plan.num_examples + plan.scored_after(step)
    assert facts["settings"].get("candidates per optimizer step") == (4 if chooses else None)
    text = render_model_card(facts)
    assert f"| examples trained on | {plan.num_examples:,} |" in text
    assert f"| examples scored while training | {plan.scored_after(step):,} |" in text
    assert f"| compute, 3 to train on an example | {plan.compute_after(step):,} |" in text


def test_the_card_of_a_run_that_scores_nothing_is_as_it_was(facts):
    assert list(facts["cost"]) == ["examples", "steps", "seconds", "examples_per_second", "idle"]
    assert "examples per second" in render_model_card(facts)
    assert "compute" not in render_model_card(facts)
