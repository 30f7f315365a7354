"""Greedy answers to the questions of the test, and how many of them are right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from scenes_clip import auc
from transformers import PreTrainedModel, ProcessorMixin
from vlm.arguments import GROUNDING, SCENES, DataArguments
from vlm.data import COMPLETION, PROMPT, text_of_message

from hf_curriculum.columns import IMAGES
from hf_curriculum.models.base import evaluation_mode
from hf_curriculum.words import words_of

_AT_ONCE = 64


def answer(
    model: PreTrainedModel, processor: ProcessorMixin, rows: Dataset, max_new_tokens: int, batch_size: int = _AT_ONCE
) -> list[str]:
    """What the model says to each prompt, the most probable token at each place."""
    said: list[str] = []
    with evaluation_mode(model), torch.inference_mode():
        for start in range(0, len(rows), batch_size):
            batch = rows[start : start + batch_size]
            prompts = [
                processor.apply_chat_template(_shown(cell), add_generation_prompt=True, tokenize=False)
                for cell in batch[PROMPT]
            ]
            inputs = processor(
                text=prompts,
                images=batch[IMAGES] if any(batch[IMAGES]) else None,
                padding=True,
                padding_side="left",
                add_special_tokens=False,
                return_tensors="pt",
            ).to(model.device)
            ids = model.generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False)
            said += processor.batch_decode(ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return [" ".join(text.split()) for text in said]


def _shown(cell: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages without the fields that `datasets` fills up with None."""
    return [
        {**message, "content": [{k: v for k, v in part.items() if v is not None} for part in message["content"]]}
        if not isinstance(message["content"], str)
        else message
        for message in cell
    ]


def normalised(text: str) -> str:
    """An answer without capitals, punctuation and spare white space."""
    return " ".join(words_of(text.lower()))


def kinds_of(rows: Dataset) -> list[str]:
    """The kind of each question: the columns `kind` or `source`, or all of one."""
    name = next((name for name in ("kind", "source") if name in rows.column_names), None)
    return ["all"] * len(rows) if name is None else [str(kind) for kind in rows[name][:]]


def right_answers(answers: Sequence[str], rows: Dataset) -> list[bool]:
    """Which answers are the row's, compared as `normalised`."""
    true = [normalised(text_of_message(cell)) for cell in rows.select_columns(COMPLETION)[:][COMPLETION]]
    return [normalised(said) == one for said, one in zip(answers, true, strict=True)]


def accuracies(right: Sequence[bool], kinds: Sequence[str]) -> dict[str, float]:
    """The share of right answers of each kind, and the mean over kinds."""
    found = {
        f"accuracy_{kind}": float(np.mean([one for one, own in zip(right, kinds, strict=True) if own == kind]))
        for kind in dict.fromkeys(kinds)
    }
    return {**found, "accuracy": float(np.mean(list(found.values())))}


def wrong_facts(train: Dataset, draws: np.ndarray) -> dict[str, float]:
    """The share of draws known to be wrong, and how well grounding tells wrong answers from right ones."""
    if "wrong" not in train.column_names:
        return {}
    wrong = np.array(train["wrong"][:])
    found = {"wrong_drawn": float(wrong[draws].mean())}
    if GROUNDING in train.column_names:
        scores, asked = np.array(train[GROUNDING][:]), np.array(train["source"][:]) == "vqa"
        found["wrong_auc"] = auc(scores[asked & ~wrong], scores[asked & wrong])
    return found


def card_facts(data_args: DataArguments, outcome: Mapping[str, Any]) -> dict[str, Any]:
    """What `create_model_card` and `push_to_hub` take of a run."""
    data = "questions about embedded scenes" if data_args.data == SCENES else "conversations about images"
    seen = "grey images in the place of its own" if data_args.blind else "its images"
    results = [
        {"metric": name, "value": value, "source": "test questions"}
        for name, value in outcome.items()
        if name.startswith("accuracy")
    ]
    return {"description": f"{data}; the model answers them with {seen}", "results": results}
