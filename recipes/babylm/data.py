"""Captioned images with their score, text, and the tokenizer and tagger that are fitted to both."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from accelerate import PartialState
from babylm.arguments import POS_BERT, SCENES, DataArguments
from datasets import Dataset, DatasetDict
from transformers import BertConfig, PreTrainedTokenizerBase

from hf_curriculum import (
    NounCount,
    PosTagger,
    Study,
    add_scores,
    hold_out,
    load_captioned,
    make_image_processor,
    make_scenes,
    train_wordpiece,
)
from hf_curriculum.config import digest
from hf_curriculum.data.captions import drop_empty_captions
from hf_curriculum.data.text import Texts, load_text
from hf_curriculum.data.text_blocks import validate_word_limit
from hf_curriculum.fingerprint import fingerprint_rows
from hf_curriculum.scenes.captions import write_scene_text

logger = logging.getLogger(__name__)

_TAGGED = (
    *("tagger_training", "data", "images", "num_examples", "limit", "captions_per_image", "mismatched", "validation"),
    *("split_by", "split_seed", "text", "text_lines"),
)
"""What the texts that a tagger is trained on depend on: another of these is another tagger."""


@dataclass(frozen=True)
class Prepared:
    """What the runs of one seed read.

    Args:
        data: the splits `train` (with its score) and `validation` of captioned images.
        text: the splits `train` and, where the corpus has one, `validation` of the text, if there is any.
        tokenizer: fitted to the captions and the text that are trained on.
        image_processor: of the images.
        words: how many words captions and text have.
        tagger: of the noun count.
    """

    data: DatasetDict
    text: DatasetDict | None
    tokenizer: PreTrainedTokenizerBase
    image_processor: Any
    words: dict[str, int]
    tagger: Any


def read_before(study: Study) -> None:
    """Reads what the next run is trained on before any run begins, so that a wrong name costs nothing."""
    if blind := [item.arm for item in study.runs if "T+C" in item.arm and item.settings["text"] is None]:
        raise ValueError(
            f"The arm {blind[0]!r} is trained on text first, and none was given: it would be the arm without. Name a "
            "corpus, `--text PATH` (or `--text scenes`)."
        )
    waiting = [item for item in study.runs if item.status in ("pending", "running", "crashed")]
    if not waiting:
        return
    settings, seed = waiting[0].settings, waiting[0].seed
    data_args = DataArguments(**{name: settings[name] for name in DataArguments.__dataclass_fields__})
    own = {name: value for name in ("data", "text") if (value := getattr(data_args, name)) not in (None, SCENES)}
    try:
        if own:
            _load(json.dumps(asdict(data_args)), seed, study.output_dir)
    except (ValueError, OSError) as error:
        flags = " ".join(f"--{name} {value}" for name, value in own.items())
        raise ValueError(f"{flags} was given, and cannot be read, so no run was begun. {error}") from error


def prepare(data_args: DataArguments, seed: int, folder: Path) -> Prepared:
    """Data, scores, tokenizer and image processor of a run; kept for the next run, which mostly has the same."""
    return _prepare(json.dumps(asdict(data_args)), seed, folder)


@lru_cache(maxsize=1)
def _prepare(given: str, seed: int, folder: Path) -> Prepared:
    data_args, (data, text) = DataArguments(**json.loads(given)), _load(given, seed, folder)
    data = DatasetDict(data)
    with PartialState().main_process_first():
        allowed = Texts(data["train"], *([text["train"]] if text else []))
        tagger = make_tagger(data_args, allowed, folder, seed)
        tags = data_args.noun_tags.split("+") if data_args.noun_tags else None
        score = NounCount(tagger, tags=tags, max_words=data_args.noun_words)
        data["train"] = add_scores(data["train"], score, per_image="max")
    parts = {"captions": data["train"], **({"text": text["train"]} if text else {})}
    words = validate_word_limit(parts, data_args.word_limit, beyond=data_args.beyond_limit)
    tokenizer = train_wordpiece(allowed, data_args.vocab_size, max_length=1024)
    images = {key: value for key in ("mean", "std") if (value := getattr(data_args, f"image_{key}")) is not None}
    processor = make_image_processor(data_args.image_size, **images, backend=data_args.image_backend)
    return Prepared(data, text, tokenizer, processor, words, tagger)


def read_data(data_args: DataArguments, *others: Any) -> dict[str, Dataset]:
    """The splits of captioned images and of text that a run reads, by name; nothing is scored or fitted."""
    folder, seed = Path(others[-1].output_dir).parent, others[-1].seed
    data, text = _load(json.dumps(asdict(data_args)), seed, folder)
    return {**data, **{f"text, {name}": part for name, part in (text or {}).items()}}


@lru_cache(maxsize=1)
def _load(given: str, seed: int, folder: Path) -> tuple[DatasetDict, DatasetDict | None]:
    """What `load_pairs` and `load_corpus` read; kept for the next run, which mostly has the same."""
    data_args = DataArguments(**json.loads(given))
    with PartialState().main_process_first():
        return load_pairs(data_args, seed), load_corpus(data_args, folder)


def load_pairs(data_args: DataArguments, seed: int) -> DatasetDict:
    """Train and validation pairs."""
    if data_args.data == SCENES:
        return make_scenes(
            data_args.num_examples,
            image_size=data_args.scene_size,
            captions_per_image=data_args.captions_per_image,
            mismatched=data_args.mismatched,
            validation=data_args.validation,
            test=0.0,
        )
    loaded = load_captioned(data_args.data, images=data_args.images, num_proc=len(os.sched_getaffinity(0)))
    splits = {"train": loaded} if isinstance(loaded, Dataset) else dict(loaded)
    if "train" not in splits:
        raise ValueError(
            f"{data_args.data} has the splits {list(splits)} and no 'train', so there is nothing to train on. Rename "
            "one, or give the file or folder of a single split."
        )
    loaded = {name: part.select(range(min(data_args.limit or len(part), len(part)))) for name, part in splits.items()}
    if "validation" not in loaded:
        seed = seed if data_args.split_seed is None else data_args.split_seed
        loaded = hold_out(loaded["train"], data_args.validation, by=data_args.split_by, seed=seed)
    return DatasetDict({name: drop_empty_captions(loaded[name]) for name in ("train", "validation")})


def load_corpus(data_args: DataArguments, folder: Path) -> DatasetDict | None:
    """Lines of text to train on and, where the corpus has a development part, to evaluate on."""
    if data_args.text is None:
        return None
    source = data_args.text
    if source == SCENES:
        source = write_scene_text(folder / "text", data_args.text_lines)
    loaded = load_text(source)
    return loaded if isinstance(loaded, DatasetDict) else DatasetDict(train=loaded)


def make_tagger(data_args: DataArguments, texts: Texts, folder: Path, seed: int) -> Any:
    """The tagger that is named; `pos_bert` is trained on the allowed texts alone."""
    if data_args.tagger != POS_BERT:
        return data_args.tagger
    how = dict(data_args.tagger_training)
    facts = json.dumps([*(getattr(data_args, name) for name in _TAGGED), len(texts), seed])
    rows = [fingerprint_rows(part.select_columns(texts.column)).to_dict() for part in texts.datasets]
    before, target = folder / f"tagger-{digest(facts, size=6)}", folder / f"tagger-{digest(facts, str(rows), size=6)}"
    if before.is_dir() and not target.is_dir():
        logger.warning(
            f"{before} was trained before the texts of a tagger were recorded, and is used again: whether they are "
            "those of now cannot be compared. Delete it to train the tagger again."
        )
        return PosTagger(before)
    if not target.is_dir():
        config, most = how.pop("config", None), how.pop("max_sentences", None)
        draft = target.with_name(f".{target.name}.{os.getpid()}")  # a kill leaves no incomplete tagger
        sentences, bert = islice(texts, most), BertConfig(**config) if config else None
        PosTagger.train(sentences, config=bert, output_dir=draft, seed=seed, **how)
        draft.replace(target)
    return PosTagger(target)
