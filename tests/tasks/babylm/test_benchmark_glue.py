import copy
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, Trainer

from hf_curriculum.tasks.babylm import GlueSettings, TextImageScorer
from hf_curriculum.tasks.babylm.glue import (
    GLUE,
    TextClassifier,
    _arguments,
    _scratch,
    classification_scores,
    make_classifier,
    run_glue,
)

QUICK = GlueSettings(num_epochs=1, batch_size=16)


def agreement(labels, predicted):
    return sum(map(int.__eq__, labels, predicted)) / len(labels)


def correlation(labels, predicted):
    """Matthews' coefficient is Pearson's of two yes-or-no variables."""
    return 0.0 if len(set(labels)) == 1 or len(set(predicted)) == 1 else np.corrcoef(labels, predicted)[0, 1]


@pytest.mark.parametrize("seed", range(5))
def test_scores_are_what_their_definitions_say(seed):
    predicted, labels = np.random.default_rng(seed).integers(0, 2, (2, 37)).tolist()
    found = classification_scores(predicted, labels)
    hits = [guess for guess, truth in zip(predicted, labels, strict=True) if guess and truth]
    precision, recall = len(hits) / sum(predicted), len(hits) / sum(labels)
    assert found["f1"] == pytest.approx(2 * precision * recall / (precision + recall))
    assert found["accuracy"] == pytest.approx(agreement(labels, predicted))
    assert found["mcc"] == pytest.approx(correlation(labels, predicted))


def test_constant_answers_have_no_correlation():
    assert classification_scores([0, 0, 0], [0, 1, 0]) == {"accuracy": 2 / 3, "f1": 0.0, "mcc": 0.0}
    assert classification_scores([0, 2], [1, 2]) == {"accuracy": 0.5}  # three labels: no F1 of "the" class
    with pytest.raises(ValueError, match="2 predictions for 1 labels"):
        classification_scores([0, 1], [0])


def test_tasks_are_worded_as_the_pipeline_words_them():
    assert list(GLUE) == ["boolq", "cola", "mnli", "mnli-mm", "mrpc", "multirc", "qnli", "qqp", "rte", "sst2", "wsc"]
    row = {"question": "who?", "answer": "me", "paragraph": "I did.", "label": 1}
    assert GLUE["multirc"].texts(row) == ("Question: who? Answer: me", "I did.")
    row = {"span1_text": "Mark", "span2_text": "he", "text": "Mark said he came.", "label": 1}
    assert GLUE["wsc"].texts(row) == ('Does "he" refer to "Mark" in this passage?', "Mark said he came.")
    assert GLUE["cola"].texts({"sentence": "a {b} c"}) == ("a {b} c", None)
    assert GLUE["boolq"].fields == ("question", "passage", "label")
    assert [name for name, task in GLUE.items() if task.measure == "f1"] == ["mrpc", "qqp"]
    assert [name for name, task in GLUE.items() if task.measure == "mcc"] == ["cola"]


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("name", ["git", "flamingo"])
def test_the_head_reads_no_padding(name, pooling, models, tokenizer):
    torch.manual_seed(0)
    classifier = make_classifier(models[name], 3, pooling=pooling, pad_token_id=0).eval()
    assert isinstance(classifier, TextClassifier)
    ids = tokenizer(["a red ball", "a blue cup next to two kites"])["input_ids"]
    longest = max(map(len, ids))
    batch = torch.tensor([row + [0] * (longest - len(row)) for row in ids])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in ids])
    with torch.no_grad():
        found = classifier(batch, mask).logits
        for row, logits in zip(ids, found, strict=True):
            states = models[name].base_model(input_ids=torch.tensor([row])).last_hidden_state[0]
            pooled = states[-1] if pooling == "last" else states.mean(0)
            assert torch.allclose(logits, classifier.head.weight @ pooled, atol=1e-5)


def test_models_of_transformers_get_their_own_class(tokenizer):
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_embd=16, n_layer=1, n_head=2))
    classifier = make_classifier(model, 3, pooling="last", pad_token_id=0)
    assert type(classifier).__name__ == "GPT2ForSequenceClassification"
    assert classifier.config.num_labels == 3
    assert model.config.num_labels != 3
    assert torch.equal(classifier.transformer.wte.weight, model.transformer.wte.weight)
    width = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    masked = BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), **width))
    found = make_classifier(masked, 2, pooling="last", pad_token_id=0)  # the pooler alone is new
    assert torch.equal(
        found.bert.encoder.layer[0].output.dense.weight, masked.bert.encoder.layer[0].output.dense.weight
    )
    del masked.bert.embeddings
    with pytest.raises(ValueError, match="weights that the BertForMaskedLM lacks"):
        make_classifier(masked, 2, pooling="last", pad_token_id=0)


@pytest.fixture
def told(monkeypatch):
    """Arguments of every `Trainer` made, and how often each model was trained."""
    made = []
    real = Trainer.train
    monkeypatch.setattr(Trainer, "train", lambda self: (made.append(self), real(self))[1])
    return made


def test_a_task_is_fine_tuned_and_judged(run_of, miniature, tmp_path, git, told):
    before = {name: weight.clone() for name, weight in git.state_dict().items()}
    state = torch.random.get_rng_state()
    settings = GlueSettings(num_epochs=3, batch_size=16, learning_rate=5e-3)
    (tmp_path / ".sst2" / "checkpoint-7").mkdir(parents=True)  # of a run that was killed
    run = run_of(subtasks=("sst2", "cola"), glue=settings, scores_dir=tmp_path)
    result = run_glue(run)
    for task, measure in (("sst2", agreement), ("cola", correlation)):
        labels = [json.loads(line)["label"] for line in (miniature / "glue_filtered" / f"{task}.valid.jsonl").open()]
        predictions = result.predictions[task]["predictions"]
        assert [entry["id"] for entry in predictions] == [f"{task}_{at}" for at in range(8)]
        predicted = [entry["pred"] for entry in predictions]
        assert result.subtasks[task]["score"] == pytest.approx(measure(labels, predicted))
    assert result.subtasks["sst2"]["score"] == 1.0  # large and small are easily told apart
    assert result.averages == {"score": pytest.approx((1 + result.subtasks["cola"]["score"]) / 2)}
    assert all(torch.equal(weight, before[name]) for name, weight in git.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), state)
    assert sorted(path.name for path in (tmp_path / "glue").iterdir()) == ["cola.json", "sst2.json"]
    assert [path for path in tmp_path.iterdir() if path.name != "glue"] == []  # no checkpoints are left
    arguments = told[0].args
    assert (arguments.learning_rate, arguments.num_train_epochs, arguments.seed) == (5e-3, 3, 12)
    assert arguments.metric_for_best_model == "f1"
    assert run_glue(run) == result
    assert len(told) == 2  # finished tasks are not trained again


def test_the_pipelines_defaults():
    settings = GlueSettings()
    assert (settings.learning_rate, settings.batch_size, settings.num_epochs) == (5e-5, 64, 10)
    assert (settings.patience, settings.threshold, settings.seed, settings.max_length) == (3, 0.001, 12, 128)
    with pytest.raises(ValueError, match="pooling='first'"):
        GlueSettings(pooling="first")
    with pytest.raises(ValueError, match="patience=0"):
        GlueSettings(patience=0)


@pytest.mark.parametrize(("binary", "progress"), [(True, False), (False, True)])
def test_the_settings_reach_the_trainer(run_of, tmp_path, binary, progress):
    how = GlueSettings(learning_rate=0.25, batch_size=3, num_epochs=2, seed=7)
    args = _arguments(run_of(glue=how, progress=progress), tmp_path, binary=binary)
    expected = {
        "learning_rate": 0.25, "per_device_train_batch_size": 3, "per_device_eval_batch_size": 3,
        "num_train_epochs": 2, "eval_strategy": "epoch", "save_strategy": "epoch", "logging_strategy": "epoch",
        "save_total_limit": 1, "save_only_model": True, "load_best_model_at_end": True, "seed": 7,
        "metric_for_best_model": "f1" if binary else "accuracy", "greater_is_better": True, "report_to": [],
        "disable_tqdm": not progress, "remove_unused_columns": False, "use_cpu": True, "label_names": ["labels"],
        "output_dir": str(tmp_path), "lr_scheduler_type": "linear", "warmup_steps": 0,
    }  # fmt: skip
    assert {name: getattr(args, name) for name in expected} == expected


def test_checkpoints_while_training_stand_beside_the_scores(run_of, tmp_path):
    elsewhere = _scratch(run_of(), "cola")
    assert (elsewhere.is_dir(), elsewhere.name.startswith("cola.")) == (True, True)
    elsewhere.rmdir()
    run = run_of(scores_dir=tmp_path / "scores")
    for _ in range(2):
        folder = _scratch(run, "cola")
        assert folder == tmp_path / "scores" / ".cola"
        assert list(folder.iterdir()) == []
        (folder / "left").touch()  # by a run that was killed


def test_mismatched_mnli_is_judged_with_the_model_of_mnli(run_of, told):
    result = run_glue(run_of(subtasks=("mnli", "mnli-mm"), glue=QUICK))
    assert len(told) == 1
    assert told[0].args.metric_for_best_model == "accuracy"
    assert list(result.subtasks) == ["mnli", "mnli-mm"]
    assert set(result.subtasks["mnli-mm"]) == {"score", "accuracy"}


def test_mismatched_mnli_asked_for_later_needs_no_training(run_of, told, tmp_path):
    first = run_glue(run_of(subtasks=("mnli",), glue=QUICK, scores_dir=tmp_path))
    both = run_glue(run_of(subtasks=("mnli", "mnli-mm"), glue=QUICK, scores_dir=tmp_path))
    assert run_glue(run_of(subtasks=("mnli",), glue=QUICK, scores_dir=tmp_path)) == first
    assert both.subtasks["mnli"] == first.subtasks["mnli"]
    assert len(told) == 1


def test_a_few_rows_may_lack_a_label(run_of, tmp_path):
    (tmp_path / "glue_filtered").mkdir()
    for part, labels in (("train", [1, 1, 1, 0]), ("valid", [1, 0, 1, 0])):
        rows = "".join(json.dumps({"sentence": "a ball", "label": label}) + "\n" for label in labels)
        (tmp_path / "glue_filtered" / f"cola.{part}.jsonl").write_text(rows)
    result = run_glue(run_of(data_dir=tmp_path, glue=QUICK, limit=2))
    assert result.counts == {"cola": 2}


def test_a_tokenizer_without_padding_will_do(run_of, tokenizer):
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_embd=16, n_layer=1, n_head=2))
    bare = copy.deepcopy(tokenizer)
    bare.pad_token, bare.eos_token = None, "[SEP]"
    run = run_of(subtasks=("sst2",), glue=QUICK)
    run = replace(run, scorer=TextImageScorer(model, bare))
    assert run_glue(run).counts == {"sst2": 8}


@pytest.mark.slow
def test_all_eleven_tasks_run(run_of, flamingo):
    result = run_glue(run_of(model=flamingo, glue=QUICK))
    assert list(result.subtasks) == list(GLUE)
    assert result.averages["score"] == pytest.approx(np.mean([part["score"] for part in result.subtasks.values()]))


def test_files_that_cannot_be_used_are_named(run_of, miniature, tmp_path):
    with pytest.raises(FileNotFoundError, match="`glue` needs the folder"):
        run_glue(run_of(data_dir=tmp_path))
    folder = tmp_path / "glue_filtered"
    folder.mkdir()
    with pytest.raises(FileNotFoundError, match="there is none"):
        run_glue(run_of(data_dir=tmp_path))
    source = miniature / "glue_filtered"
    shutil.copy(source / "mnli.valid.jsonl", folder / "cola.valid.jsonl")
    with pytest.raises(FileNotFoundError, match=r"`glue` trains cola on .*cola\.train\.jsonl"):
        run_glue(run_of(data_dir=tmp_path))
    shutil.copy(source / "cola.train.jsonl", folder)
    with pytest.raises(ValueError, match=r"line 1 has no \['sentence'\]"):
        run_glue(run_of(data_dir=tmp_path))
    (folder / "cola.valid.jsonl").write_text('{"sentence": "a ball", "label": 2}\n')
    with pytest.raises(ValueError, match=r"has the labels \[2\], which cola\.train\.jsonl has not"):
        run_glue(run_of(data_dir=tmp_path))
    rows = "".join(json.dumps({"sentence": "a ball", "label": label}) + "\n" for label in range(3))
    for part in ("train", "valid"):
        (folder / f"cola.{part}.jsonl").write_text(rows)
    with pytest.raises(ValueError, match="judged by mcc, which two labels have"):
        run_glue(run_of(data_dir=tmp_path, glue=QUICK))
