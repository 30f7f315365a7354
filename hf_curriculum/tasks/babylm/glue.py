"""(Super)GLUE: the model fine-tuned on each of eleven tasks, and evaluated on its validation file."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import nn
from transformers import AutoModelForSequenceClassification, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING

from hf_curriculum.evaluation.generate import keep_random_states
from hf_curriculum.files import own_folder, refuse_link
from hf_curriculum.scorers.text.language_model import padded
from hf_curriculum.tasks.babylm.files import existing_folder, read_jsonl
from hf_curriculum.tasks.babylm.run import Run, TaskResult, read_kept, unweighted_means, write_kept
from hf_curriculum.tasks.babylm.scorer import prefix_token_id

_SCORE = "score"


def run_glue(run: Run) -> TaskResult:
    """(Super)GLUE filtered: `glue_filtered/<task>.train.jsonl` and `.valid.jsonl`, fine-tuned as `Run.glue` says."""
    folder = existing_folder(run.data_dir / "glue_filtered", task="glue")
    there = [name for name in GLUE if (folder / f"{name}.valid.jsonl").is_file()]
    if not there:
        raise FileNotFoundError(f"`glue` reads {folder}/<task>.valid.jsonl, and there is none. Unpack the data there.")
    wanted = run.wanted(there, task="glue")
    found: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(GLUE[task].trained_on or task for task in wanted):
        judged = [task for task in wanted if (GLUE[task].trained_on or task) == name]
        found |= _trained(run, folder, name, judged)
    subtasks = {name: found[name]["scores"] for name in wanted}
    guessed = {name: found[name]["predicted"] for name in wanted}
    predictions = {
        name: {"predictions": [{"id": f"{name}_{at}", "pred": label} for at, label in enumerate(labels)]}
        for name, labels in guessed.items()
    }
    counts = {name: len(labels) for name, labels in guessed.items()}
    return TaskResult("glue", subtasks, {_SCORE: unweighted_means(subtasks)[_SCORE]}, predictions, counts)


def _trained(run: Run, folder: Path, name: str, judged: list[str]) -> dict[str, dict[str, Any]]:
    """Scores and predictions of the tasks that one training run serves."""
    file = folder / f"{name}.train.jsonl"
    if not file.is_file():
        raise FileNotFoundError(f"`glue` trains {', '.join(judged)} on {file}, which does not exist. Add it.")
    rows = read_jsonl(file, GLUE[name].fields)
    if len(kinds := {type(row["label"]).__name__ for row in rows}) > 1:
        raise ValueError(
            f"{file} has labels of the types {sorted(kinds)}: '1' and 1 would be two classes. Correct it."
        )
    labels, training = sorted({row["label"] for row in rows}), run.first(rows)  # a few rows may lack a label
    # All that the model can judge, whichever was asked for: another question then needs no other training.
    validation = {
        task: run.first(read_jsonl(folder / f"{task}.valid.jsonl", GLUE[task].fields))
        for task in GLUE
        if (GLUE[task].trained_on or task) == name and (folder / f"{task}.valid.jsonl").is_file()
    }
    kept, fingerprint = run.file("glue", name), run.fingerprint(asdict(run.glue), labels, training, validation)
    found = read_kept(kept, fingerprint)
    if found is None:
        found = _fine_tune(run, name, training, validation, labels)
        write_kept(kept, fingerprint, found)
    return {task: found[task] for task in judged}


def _encoded(run: Run, task: GlueTask, rows: list[dict[str, Any]], labels: list[Any]) -> list[dict[str, Any]]:
    """Tokenised texts with their labels."""
    firsts, seconds = zip(*map(task.texts, rows), strict=True)
    pairs = (list(firsts),) if task.second is None else (list(firsts), list(seconds))
    encoded = run.scorer.tokenizer(*pairs, truncation=True, max_length=run.glue.max_length, verbose=False)
    numbers = [labels.index(row["label"]) for row in rows]
    return [{"ids": ids, "label": label} for ids, label in zip(encoded["input_ids"], numbers, strict=True)]


def _fine_tune(
    run: Run, name: str, training: list[dict[str, Any]], validation: dict[str, list[dict[str, Any]]], labels: list[Any]
) -> dict[str, dict[str, Any]]:
    from transformers import EarlyStoppingCallback, PrinterCallback, Trainer

    for task, rows in validation.items():
        strange = {row["label"] for row in rows} - set(labels)
        if strange:
            raise ValueError(
                f"{task}.valid.jsonl has the labels {sorted(strange)}, which {name}.train.jsonl has not ({labels}). "
                "No class would stand for them. Check that the two files belong together."
            )
    tokenizer = run.scorer.tokenizer
    # Heads of `transformers` find a text's last token by what it is padded with, so something must stand for padding.
    pad = prefix_token_id(tokenizer) if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    scratch = _scratch(run, name)
    with keep_random_states(run.scorer.device):
        torch.manual_seed(run.glue.seed)
        model = make_classifier(run.scorer.model, len(labels), pooling=run.glue.pooling, pad_token_id=pad)
        data = {task: _encoded(run, GLUE[task], rows, labels) for task, rows in validation.items()}
        try:
            trainer = Trainer(
                model=model,
                args=_arguments(run, scratch, binary=len(labels) == 2),
                train_dataset=_encoded(run, GLUE[name], training, labels),
                eval_dataset=next(iter(data.values())),
                data_collator=partial(_collate, pad=pad),
                compute_metrics=lambda out: classification_scores(_argmax(out.predictions), out.label_ids),
                callbacks=[EarlyStoppingCallback(run.glue.patience, run.glue.threshold)],
            )
            trainer.remove_callback(PrinterCallback)  # what stands in for bars, and prints every number
            trainer.train()
            return {task: _judge(trainer, task, part, labels) for task, part in data.items()}
        finally:
            shutil.rmtree(scratch)


def _judge(trainer: Any, task: str, data: list[dict[str, Any]], labels: list[Any]) -> dict[str, Any]:
    predicted = _argmax(trainer.predict(data).predictions)
    scores = classification_scores(predicted, [row["label"] for row in data])
    if GLUE[task].measure not in scores:
        raise ValueError(
            f"`{task}` is judged by {GLUE[task].measure}, which two labels have, but its files have {labels}. Check "
            "that the files are the task's."
        )
    return {"scores": {_SCORE: scores[GLUE[task].measure], **scores}, "predicted": [labels[at] for at in predicted]}


def _arguments(run: Run, folder: Path, *, binary: bool) -> Any:
    from transformers import TrainingArguments

    return TrainingArguments(
        output_dir=str(folder),
        learning_rate=run.glue.learning_rate,
        per_device_train_batch_size=run.glue.batch_size,
        per_device_eval_batch_size=run.glue.batch_size,
        num_train_epochs=run.glue.num_epochs,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=1,
        save_only_model=True,
        load_best_model_at_end=True,
        metric_for_best_model="f1" if binary else "accuracy",
        greater_is_better=True,
        seed=run.glue.seed,
        logging_strategy="epoch",
        report_to=[],
        disable_tqdm=not run.progress,
        remove_unused_columns=False,
        use_cpu=run.scorer.device.type == "cpu",
        label_names=["labels"],
    )


def _collate(rows: list[dict[str, Any]], pad: int) -> dict[str, torch.Tensor]:
    """A batch, padded on the right and masked."""
    ids, mask = padded([row["ids"] for row in rows])
    ids = ids.masked_fill(mask == 0, pad)
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([row["label"] for row in rows])}


def _argmax(logits: Any) -> np.ndarray:
    return np.asarray(logits[0] if isinstance(logits, tuple) else logits).argmax(-1)


def _scratch(run: Run, name: str) -> Path:
    """An empty folder for checkpoints while a task trains: beside the scores."""
    if run.scores_dir is None:
        return Path(mkdtemp(prefix=f"{name}."))
    folder = own_folder(run.scores_dir) / f".{name}"
    refuse_link(folder)
    shutil.rmtree(folder, ignore_errors=True)  # what a killed run left
    folder.mkdir(parents=True)
    return folder


class TextClassifier(nn.Module):
    """A linear layer on a text model's last hidden state: of the last unpadded token, or the mean of all."""

    def __init__(
        self, base: nn.Module, width: int, num_labels: int, pooling: Literal["last", "mean"] = "last"
    ) -> None:
        super().__init__()
        self.base = base
        self.pooling = pooling
        self.head: nn.Linear = nn.Linear(width, num_labels, bias=False)
        nn.init.normal_(self.head.weight, std=0.02)  # what heads of `transformers` start from

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor | None = None
    ) -> SequenceClassifierOutput:
        """Scores of the classes, (texts, num_labels), and with labels their mean cross-entropy."""
        hidden = self.base(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).last_hidden_state
        mask = attention_mask[:, :, None].to(hidden.dtype)  # (texts, tokens, 1)
        if self.pooling == "mean":
            pooled = (hidden * mask).sum(1) / mask.sum(1)
        else:
            last = attention_mask.shape[1] - 1 - attention_mask.flip(1).argmax(1)  # (texts,)
            pooled = hidden[torch.arange(len(hidden), device=hidden.device), last]
        logits = self.head(pooled)
        loss = None if labels is None else nn.functional.cross_entropy(logits.float(), labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)


def make_classifier(
    model: PreTrainedModel, num_labels: int, *, pooling: Literal["last", "mean"], pad_token_id: int
) -> nn.Module:
    """A classifier that starts from a copy of the model's weights."""
    if type(model.config) not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
        base = copy.deepcopy(model.base_model)
        # The last hidden states may be wider or narrower than the embeddings.
        width = getattr(model.config.get_text_config(), "hidden_size", base.get_input_embeddings().weight.shape[1])
        return TextClassifier(base, width, num_labels, pooling).to(model.device, model.dtype)
    config = copy.deepcopy(model.config)
    config.num_labels, config.pad_token_id = num_labels, pad_token_id
    classifier = AutoModelForSequenceClassification.from_config(config)
    report: Any = classifier.base_model.load_state_dict(model.base_model.state_dict(), strict=False)
    missing = [name for name in report.missing_keys if "pooler" not in name]
    if missing:
        raise ValueError(
            f"A {type(classifier).__name__} has {len(missing)} weights that the {type(model).__name__} lacks, such as "
            f"{missing[0]!r}: they would start from random numbers. Fine-tune another architecture, or leave `glue` "
            "out with `tasks=`."
        )
    return classifier.to(model.device, model.dtype)


class GlueTask(NamedTuple):
    """How one task is worded (fields in braces), measured (`f1` is that of label 1), and which file it trains on."""

    first: str
    second: str | None
    measure: str = "accuracy"
    trained_on: str | None = None

    def texts(self, row: Mapping[str, Any]) -> tuple[str, str | None]:
        """The text or pair of a row."""
        return self.first.format_map(row), None if self.second is None else self.second.format_map(row)

    @property
    def fields(self) -> tuple[str, ...]:
        """What a row must have."""
        from string import Formatter

        words = self.first + (self.second or "")
        return (*dict.fromkeys(name for _, name, _, _ in Formatter().parse(words) if name), "label")


GLUE: dict[str, GlueTask] = {
    "boolq": GlueTask("{question}", "{passage}"),
    "cola": GlueTask("{sentence}", None, "mcc"),
    "mnli": GlueTask("{premise}", "{hypothesis}"),
    "mnli-mm": GlueTask("{premise}", "{hypothesis}", trained_on="mnli"),
    "mrpc": GlueTask("{sentence1}", "{sentence2}", "f1"),
    "multirc": GlueTask("Question: {question} Answer: {answer}", "{paragraph}"),
    "qnli": GlueTask("{question}", "{sentence}"),
    "qqp": GlueTask("{question1}", "{question2}", "f1"),
    "rte": GlueTask("{sentence1}", "{sentence2}"),
    "sst2": GlueTask("{sentence}", None),
    "wsc": GlueTask('Does "{span2_text}" refer to "{span1_text}" in this passage?', "{text}"),
}
"""The challenge's eleven tasks, in the order of the paper's Table 9."""


def classification_scores(predicted: Sequence[int], labels: Sequence[int]) -> dict[str, float]:
    """Accuracy, and for two labels F1 of label 1 and Matthews' correlation; 0 where a denominator is."""
    guess, truth = np.asarray(predicted), np.asarray(labels)
    if guess.shape != truth.shape or not len(truth):
        raise ValueError(
            f"There are {len(guess)} predictions for {len(truth)} labels. They are compared one by one; give equally "
            "many, at least 1."
        )
    scores = {"accuracy": float((guess == truth).mean())}
    if max(guess.max(), truth.max()) <= 1:
        both, guessed, true, n = float((guess & truth).sum()), float(guess.sum()), float(truth.sum()), len(truth)
        scores["f1"] = 2 * both / (guessed + true) if guessed + true else 0.0
        spread = guessed * (n - guessed) * true * (n - true)
        scores["mcc"] = (n * both - guessed * true) / spread**0.5 if spread else 0.0
    return scores
