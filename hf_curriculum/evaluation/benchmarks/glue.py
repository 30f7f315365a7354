"""(Super)GLUE: the model fine-tuned on each of eleven tasks, and judged on its validation file."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset as TorchDataset

from hf_curriculum.evaluation.benchmarks.files import need_folder, read_jsonl
from hf_curriculum.evaluation.benchmarks.glue_data import GLUE, GlueTask, classification_scores
from hf_curriculum.evaluation.benchmarks.glue_model import make_classifier
from hf_curriculum.evaluation.benchmarks.results import TaskResult, unweighted_means
from hf_curriculum.evaluation.benchmarks.run import Run, read_kept, write_kept
from hf_curriculum.evaluation.benchmarks.tokens import prefix_token_id
from hf_curriculum.evaluation.generate import _random_states_kept

_SCORE = "score"


def run_glue(run: Run) -> TaskResult:
    """(Super)GLUE filtered: `glue_filtered/<task>.train.jsonl` and `.valid.jsonl`, fine-tuned as `Run.glue` says.

    `score` is F1 for mrpc and qqp, Matthews' correlation for cola, accuracy for the others, of the epoch that was best
    by F1 (by accuracy with three labels). mnli-mm is judged with the model that mnli trained. Finished tasks are kept;
    a task that was killed starts anew.

    Args:
        run: the model and the data; `limit` cuts training files too.

    Raises:
        FileNotFoundError: the folder or a file is missing.
        ValueError: of `read_jsonl` and `make_classifier`; a validation label that training has not.

    Source: BabyLM 2024 evaluation pipeline; Saha et al. 2024 (BabyLM), section 4.2 and Table 9.
    """
    folder = need_folder(run.data_dir / "glue_filtered", task="glue")
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
    whole = read_jsonl(file, GLUE[name].fields)
    labels, training = sorted({row["label"] for row in whole}), run.cut(whole)  # a few rows may lack a label
    # All that the model can judge, whichever was asked for: another question then needs no other training.
    validation = {
        task: run.cut(read_jsonl(folder / f"{task}.valid.jsonl", GLUE[task].fields))
        for task in GLUE
        if (GLUE[task].trained_on or task) == name and (folder / f"{task}.valid.jsonl").is_file()
    }
    kept, fingerprint = run.file("glue", name), run.fingerprint(asdict(run.glue), labels, training, validation)
    found = read_kept(kept, fingerprint)
    if found is None:
        found = _fine_tune(run, name, training, validation, labels)
        write_kept(kept, fingerprint, found)
    return {task: found[task] for task in judged}


class _Encoded(TorchDataset):
    """Tokenised texts with their labels."""

    def __init__(self, run: Run, task: GlueTask, rows: list[dict[str, Any]], labels: list[Any]) -> None:
        firsts, seconds = zip(*map(task.texts, rows), strict=True)
        pairs = (list(firsts),) if task.second is None else (list(firsts), list(seconds))
        encoded = run.scorer.tokenizer(*pairs, truncation=True, max_length=run.glue.max_length, verbose=False)
        self.ids = encoded["input_ids"]
        self.labels = [labels.index(row["label"]) for row in rows]

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> tuple[list[int], int]:
        return self.ids[index], self.labels[index]


def _fine_tune(
    run: Run,
    name: str,
    training: list[dict[str, Any]],
    validation: dict[str, list[dict[str, Any]]],
    labels: list[Any],
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
    with _random_states_kept(run.scorer.device):
        torch.manual_seed(run.glue.seed)
        model = make_classifier(run.scorer.model, len(labels), pooling=run.glue.pooling, pad_token_id=pad)
        data = {task: _Encoded(run, GLUE[task], rows, labels) for task, rows in validation.items()}
        try:
            trainer = Trainer(
                model=model,
                args=_arguments(run, scratch, binary=len(labels) == 2),
                train_dataset=_Encoded(run, GLUE[name], training, labels),
                eval_dataset=next(iter(data.values())),
                data_collator=_collator(pad),
                compute_metrics=lambda out: classification_scores(_argmax(out.predictions), out.label_ids),
                callbacks=[EarlyStoppingCallback(run.glue.patience, run.glue.threshold)],
            )
            trainer.remove_callback(PrinterCallback)  # what stands in for bars, and prints every number
            trainer.train()
            return {task: _judge(trainer, task, part, labels) for task, part in data.items()}
        finally:
            shutil.rmtree(scratch)


def _judge(trainer: Any, task: str, data: _Encoded, labels: list[Any]) -> dict[str, Any]:
    predicted = _argmax(trainer.predict(data).predictions)
    scores = classification_scores(predicted, data.labels)
    if GLUE[task].measure not in scores:
        raise ValueError(
            f"`{task}` is judged by {GLUE[task].measure}, which two labels have, but its files have {labels}. Check "
            "that the files are the task's."
        )
    return {
        "scores": {_SCORE: scores[GLUE[task].measure], **scores},
        "predicted": [labels[at] for at in predicted],
    }


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


def _collator(pad: int) -> Any:
    """A function from texts to a batch, padded on the right and masked."""

    def collate(rows: list[tuple[list[int], int]]) -> dict[str, torch.Tensor]:
        longest = max(len(ids) for ids, _ in rows)
        return {
            "input_ids": torch.tensor([ids + [pad] * (longest - len(ids)) for ids, _ in rows]),
            "attention_mask": torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids, _ in rows]),
            "labels": torch.tensor([label for _, label in rows]),
        }

    return collate


def _argmax(logits: Any) -> np.ndarray:
    return np.asarray(logits[0] if isinstance(logits, tuple) else logits).argmax(-1)


def _scratch(run: Run, name: str) -> Path:
    """An empty folder for checkpoints while a task trains: beside the scores, which is where room was made."""
    if run.scores_dir is None:
        return Path(mkdtemp(prefix=f"{name}."))
    folder = run.scores_dir / f".{name}"
    shutil.rmtree(folder, ignore_errors=True)  # what a killed run left
    folder.mkdir(parents=True)
    return folder
