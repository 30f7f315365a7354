"""The training data's order: its scores, and the further columns that a curriculum needs."""

from __future__ import annotations

import gc
import inspect
import os
from dataclasses import replace
from typing import Any

import numpy as np
import torch.distributed
from datasets import Dataset
from torch import nn
from torch.utils.data import IterableDataset
from transformers import DataCollatorForSeq2Seq, DataCollatorWithPadding, default_data_collator
from transformers.data.data_collator import DefaultDataCollator

from hf_curriculum.planning.curriculum import Curriculum
from hf_curriculum.planning.groups import read_columns
from hf_curriculum.planning.ranking import Ranking, rank_scores, read_scores, resolve_easy
from hf_curriculum.streaming.dataset import BucketedStream


def open_training_data(data: Any) -> Any:
    """The folder that `save_bucketed` wrote as a stream; other training data, which needs a length, as it is."""
    if isinstance(data, (str, os.PathLike)):
        return BucketedStream(data)
    if data is None or isinstance(data, BucketedStream):
        return data
    if isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
        raise TypeError(
            f"train_dataset is a {type(data).__name__}, which is read in its own order: no curriculum can choose "
            "from it. Load it without streaming=True, which keeps it on disk; or write the scored data set with "
            "`save_bucketed(dataset, folder, num_buckets, score_column=...)` and pass train_dataset=folder."
        )
    return data


def plan_stream(
    stream: BucketedStream, rule: Curriculum, column: str | None, scores: np.ndarray | None, **budget: Any
) -> BucketedStream:
    """The stream with the plan of the training arguments, which must not contradict its own."""
    if scores is not None:
        raise ValueError(
            f"scores= was given, but the order of {stream.path} was written by `save_bucketed`. Leave scores= out, or "
            "write the data again with these scores in a column."
        )
    return stream.with_plan(column, curriculum=rule, **budget)


def rank_training_data(data: Any, rule: Curriculum, column: str | None, scores: np.ndarray | None) -> Ranking:
    """The order of the training data that a curriculum begins with.

    Args:
        data: the training data, all columns still there.
        rule: the curriculum.
        column: the score column, if there is one.
        scores: one score per row in its place, shape (n,).

    Raises:
        ValueError: a score or a column that the curriculum needs is missing or does not fit.
    """
    columns = read_columns(data, rule.reads_in_all)
    if scores is None and column is None:
        if rule.needs_scores:
            raise ValueError(
                f"{type(rule).__name__} sorts examples by a score, and neither score_column= nor scores= was "
                "given. Name the column that `add_scores` wrote, such as score_column='noun_count'."
            )
        return replace(Ranking.unordered(len(data)), columns=columns)
    scores = read_scores(data, column) if scores is None else np.asarray(scores, dtype=np.float32)
    if scores.shape != (len(data),):
        raise ValueError(
            f"scores has shape {scores.shape} but train_dataset has {len(data):,} rows: scores would belong to "
            "other examples. Give one number per row, in the data set's order."
        )
    # Where the rule does not go from easy to hard, nothing hangs on which end is easy.
    default = None if rule.needs_easy else "low"
    easy = rule.easy or "low" if column is None else resolve_easy(data, column, rule.easy, default)
    return replace(rank_scores(scores, easy, unscored=rule.unscored, name=column), columns=columns)


def validate_evaluation(rule: Curriculum, eval_dataset: Any) -> None:
    """A curriculum that decides on evaluations needs something to evaluate on.

    Raises:
        ValueError: there is no `eval_dataset`.
    """
    if rule.signal == "metrics" and eval_dataset is None:
        raise ValueError(
            f"{type(rule).__name__} decides on what evaluate() returns, and there is no eval_dataset: no decision "
            "could be taken. Pass eval_dataset=."
        )


def validate_shared_images(model: nn.Module, collator: Any, num_devices: int) -> None:
    """A collator that gives one picture for several captions needs a model that is told which is whose.

    Args:
        model: what is trained, adapters included.
        collator: with or without `share_images`.
        num_devices: devices that one process spreads a batch over.

    Raises:
        ValueError: the model takes no `image_index`, or `nn.DataParallel` would cut pictures and captions apart.
    """
    if not getattr(collator, "share_images", False):
        return
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    if "image_index" not in inspect.signature(base.forward).parameters:
        raise ValueError(
            f"The collator has share_images=True, and a {type(base).__name__} does not take `image_index`: it would "
            "pair captions with other captions' pictures. Use share_images=False, or a model of this library."
        )
    if num_devices > 1:
        raise ValueError(
            f"The collator has share_images=True, and one process spreads each batch over {num_devices} devices, row "
            "by row: pictures would part from their captions. Launch one process per device (torchrun)."
        )


_PLAIN_COLLATORS = (DataCollatorWithPadding, DefaultDataCollator, DataCollatorForSeq2Seq)


def may_be_random(dataset: Any, collator: Any) -> bool:
    """False only where it is certain that an example comes out the same every time.

    A `datasets.Dataset` without a transform is certain, and so are the collators of `transformers` that only pad. Any
    other collator, and a data set's transform, can say so itself by an attribute `is_random`.

    Args:
        dataset: the training data.
        collator: the data collator.
    """
    plain = collator is default_data_collator or type(collator) in _PLAIN_COLLATORS
    return _fetching_may_be_random(dataset) or getattr(collator, "is_random", not plain)


def _fetching_may_be_random(dataset: Any) -> bool:
    if not isinstance(dataset, Dataset):
        return getattr(dataset, "is_random", True)
    if dataset.format["type"] != "custom":
        return False
    return getattr(dataset.format["format_kwargs"]["transform"], "is_random", True)


def close_process_group() -> None:
    """Ends what this process shares with the others, so that a program that is done also exits as done.

    gloo's threads let go of a collective's tensors a moment after the collective is over, and need Python's lock for
    it. A thread that asks for the lock while the interpreter shuts down aborts the process, and the launcher reports a
    finished run as failed. Leaving the group is not enough, because a wrapped model (DDP, FSDP) holds it as well: what
    nothing refers to is collected here, and the threads end with the last reference. Call it where the trainer is out
    of reach, after the function that made it has returned. Where there is no group it does nothing.
    """
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
        gc.collect()
