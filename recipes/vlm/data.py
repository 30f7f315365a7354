"""Conversations as prompts and completions, one row for each response, and the questions of the test."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import lru_cache
from typing import Any

import numpy as np
import PIL.Image
from accelerate import PartialState
from datasets import Dataset, DatasetDict, Image, List
from vlm.arguments import SCENES, DataArguments
from vlm.world import make_conversations
from xxhash import xxh3_64_hexdigest

from hf_curriculum import load_conversations
from hf_curriculum.columns import IMAGE_ID, IMAGES, MESSAGES
from hf_curriculum.data.conversations import read_messages

PROMPT, COMPLETION = "prompt", "completion"
GREY = (128, 128, 128)


def prepare(data_args: DataArguments) -> DatasetDict:
    """The splits `train` and `test` of a run; kept for the next run, which mostly has the same."""
    return _prepare(json.dumps(asdict(data_args)))


def read_data(data_args: DataArguments, *others: Any) -> dict[str, Dataset]:
    """What a run trains on, for the budget and for telling other data from this.

    Raises:
        ValueError: the curriculum mixes rows by a column that the data lacks.
    """
    train = prepare(data_args)["train"]
    rule = others[-1].curriculum if others else None
    absent = [name for name, kind in (rule.reads_in_all if rule else {}).items() if kind != "score"]
    if absent := [name for name in absent if name not in train.column_names]:
        raise ValueError(
            f"{rule} reads `{absent[0]}` of each row, and {data_args.data} has no such column, so no run was begun. "
            "Add it to the data, or leave such curricula out: --grid loaded trains the others."
        )
    return {"train": train}


@lru_cache(maxsize=2)
def _prepare(given: str) -> DatasetDict:
    data_args = DataArguments(**json.loads(given))
    with PartialState().main_process_first():
        if data_args.blind:
            seen = _prepare(json.dumps({**asdict(data_args), "blind": False}))
            return DatasetDict({name: blinded(rows) for name, rows in seen.items()})
        if data_args.data == SCENES:
            made = make_conversations(
                data_args.num_images, data_args.held_out, data_args.questions, data_args.texts, data_args.wrong
            )
        else:
            made = _load(data_args)
        return DatasetDict({name: as_turns(rows) for name, rows in made.items()})


def _load(data_args: DataArguments) -> DatasetDict:
    """Other conversations: their own `test` or `validation`, or the rows of some images, held out."""
    loaded = load_conversations(data_args.data, **data_args.data_options)
    splits = {"train": loaded} if isinstance(loaded, Dataset) else dict(loaded)
    if "train" not in splits:
        raise ValueError(
            f"{data_args.data} has the splits {list(splits)} and no 'train', so there is nothing to train on. Rename "
            "one, or give the file or folder of a single split."
        )
    train = splits["train"].select(range(min(data_args.limit or len(splits["train"]), len(splits["train"]))))
    if IMAGES not in train.column_names:
        raise ValueError(
            f"{data_args.data} has no images, and a vision-language model is to see some. Name their column."
        )
    held = splits.get("test", splits.get("validation"))
    train = train if IMAGE_ID in train.column_names else train.add_column(IMAGE_ID, image_ids(train))
    if held is None:
        ids = np.array(train[IMAGE_ID][:])
        names = list(dict.fromkeys(ids.tolist()))
        if len(names) <= data_args.held_out:
            raise ValueError(
                f"held_out={data_args.held_out} of {len(names)} images leaves none to train on. Hold out fewer."
            )
        chosen = np.isin(ids, names[-data_args.held_out :])
        train, held = train.select(np.flatnonzero(~chosen)), train.select(np.flatnonzero(chosen))
    return DatasetDict(train=train, test=held)


def image_ids(rows: Dataset) -> list[str]:
    """A name for what each row shows: the digest of its stored images; the row's own where it has none."""
    stored = rows.select_columns(IMAGES).cast_column(IMAGES, List(Image(decode=False)))
    return [
        f"row-{number}"
        if not row[IMAGES]
        else "-".join(xxh3_64_hexdigest(one["bytes"] or one["path"].encode()) for one in row[IMAGES])
        for number, row in enumerate(stored)
    ]


def as_turns(rows: Dataset) -> Dataset:
    """A row for each response: what is said before it in `prompt`, the response in `completion`.

    So the loss is that of responses alone with any chat template, whether or not it marks them.
    """
    kept = [name for name in rows.column_names if name != MESSAGES]

    def split(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        made: dict[str, list[Any]] = {name: [] for name in (*kept, PROMPT, COMPLETION)}
        for number, cell in enumerate(batch[MESSAGES]):
            messages = read_messages(cell)
            for turn, message in enumerate(messages):
                shown = sum(one.num_images for one in messages[:turn])
                if message.role != "assistant" or shown != len(batch[IMAGES][number]):
                    continue  # an image that comes later cannot be left in the row
                for name in kept:
                    made[name].append(batch[name][number])
                made[PROMPT].append(cell[:turn])
                made[COMPLETION].append(cell[turn : turn + 1])
        return made

    features = rows.features.copy()
    turn = features.pop(MESSAGES)
    encoded = rows.cast_column(IMAGES, List(Image(decode=False)))
    features |= {PROMPT: turn, COMPLETION: turn}
    return encoded.map(split, batched=True, remove_columns=rows.column_names, features=features)


def blinded(rows: Dataset) -> Dataset:
    """The rows with a grey image in the place of each."""
    grey = PIL.Image.new("RGB", (64, 64), GREY)
    encoded = rows.cast_column(IMAGES, List(Image(decode=False)))
    return encoded.map(
        lambda batch: {IMAGES: [[grey] * len(images) for images in batch[IMAGES]]},
        batched=True,
        features=rows.features,
    )


def text_of_message(messages: list[dict[str, Any]]) -> str:
    """All words of messages."""
    return " ".join(message.text for message in read_messages(messages))
