"""Captioned pictures with their score, text, and the tokenizer and tagger that are learnt from both."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from accelerate import PartialState
from datasets import Dataset, DatasetDict
from transformers import BertConfig, PreTrainedTokenizerBase

from babylm.settings import POS_BERT, SCENES, Settings
from hf_curriculum import (
    NounCount,
    PosTagger,
    Texts,
    add_scores,
    check_word_limit,
    drop_empty_captions,
    hold_out,
    load_captioned,
    load_text,
    make_image_processor,
    make_scenes,
    train_wordpiece,
)
from hf_curriculum.scenes.captions import write_scene_text

_NOT_DATA = {
    *("text_epochs", "text_batch_size", "text_at_once", "text_max_length", "text_blocks", "text_weight", "text_eval"),
    "curriculum",
    *("control_curriculum", "model", "model_options", "vision_weights", "freeze_vision", "lora_rank"),
    *("vision_features", "max_length"),
    *("train_on_padding", "batch_size", "learning_rate", "adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay"),
    *("lr_scheduler_type", "warmup_steps", "max_grad_norm", "precision", "num_workers", "eval_strategy", "eval_steps"),
    *("eval_images", "max_new_tokens", "num_beams"),
}
"""What neither the data nor the processor depends on; runs that differ in these fields alone share them."""

_TAGGED = (
    *("tagger_training", "data", "images", "num_examples", "limit", "captions_per_image", "mismatched", "validation"),
    *("split_by", "split_seed", "text", "text_lines"),
)
"""What the texts that a tagger learns from follow from: another of these is another tagger."""


@dataclass(frozen=True)
class Prepared:
    """What the runs of one seed read.

    Args:
        data: the splits `train` (with its score) and `validation` of captioned pictures.
        text: the splits `train` and, where the corpus has one, `validation` of the text, if there is any.
        tokenizer: learnt from the captions and the text that are trained on.
        image_processor: of the pictures.
        words: how many words captions and text have.
        tagger: of the noun count.
    """

    data: DatasetDict
    text: DatasetDict | None
    tokenizer: PreTrainedTokenizerBase
    image_processor: Any
    words: dict[str, int]
    tagger: Any


def prepare(
    settings: Settings, seed: int, folder: Path, extend: Callable[[PreTrainedTokenizerBase], Any] | None = None
) -> Prepared:
    """Data and processor of a run; kept for the next one, which mostly has the same.

    Args:
        settings: of the run.
        seed: of the part held out, and of the tagger.
        folder: of the study; the embedded text and a trained tagger are kept there.
        extend: adds a model's own tokens to the tokenizer.
    """
    given = {item.name: getattr(settings, item.name) for item in fields(settings) if item.name not in _NOT_DATA}
    return _prepare(json.dumps(given), seed, folder, extend)


@lru_cache(maxsize=1)
def _prepare(given: str, seed: int, folder: Path, extend: Callable[[PreTrainedTokenizerBase], Any] | None) -> Prepared:
    settings = SimpleNamespace(**json.loads(given))
    with PartialState().main_process_first():
        data, text = load_pairs(settings, seed), load_corpus(settings, folder)
        allowed = Texts(data["train"], *([text["train"]] if text else []))
        tagger = make_tagger(settings, allowed, folder, seed)
        tags = settings.noun_tags.split("+") if settings.noun_tags else None
        score = NounCount(tagger, tags=tags, max_words=settings.noun_words)
        data["train"] = add_scores(data["train"], score, per_image="max")
    parts = {"captions": data["train"], **({"text": text["train"]} if text else {})}
    words = check_word_limit(parts, settings.word_limit, beyond=settings.beyond_limit)
    tokenizer = train_wordpiece(allowed, settings.vocab_size, max_length=1024)
    if extend is not None:
        extend(tokenizer)
    images = {key: value for key in ("mean", "std") if (value := getattr(settings, f"image_{key}")) is not None}
    return Prepared(data, text, tokenizer, make_image_processor(settings.image_size, **images), words, tagger)


def load_pairs(settings: Settings, seed: int) -> DatasetDict:
    """Train and validation pairs.

    Raises:
        ValueError: the data has splits, none of which is `train`; of `load_captioned` and `hold_out`.
    """
    if settings.data == SCENES:
        return make_scenes(
            settings.num_examples,
            image_size=settings.scene_size,
            captions_per_image=settings.captions_per_image,
            mismatched=settings.mismatched,
            validation=settings.validation,
            test=0.0,
        )
    loaded = load_captioned(settings.data, images=settings.images)
    splits = {"train": loaded} if isinstance(loaded, Dataset) else dict(loaded)
    if "train" not in splits:
        raise ValueError(
            f"{settings.data} has the splits {list(splits)} and no 'train', so there is nothing to train on. Rename "
            "one, or give the file or folder of a single split."
        )
    loaded = {name: part.select(range(min(settings.limit or len(part), len(part)))) for name, part in splits.items()}
    if "validation" not in loaded:
        seed = seed if settings.split_seed is None else settings.split_seed
        loaded = hold_out(loaded["train"], settings.validation, by=settings.split_by, seed=seed)
    return DatasetDict({name: drop_empty_captions(loaded[name]) for name in ("train", "validation")})


def load_corpus(settings: Settings, folder: Path) -> DatasetDict | None:
    """Lines of text to train on and, where the corpus has a development part, to evaluate on."""
    if settings.text is None:
        return None
    source = settings.text
    if source == SCENES:
        source = write_scene_text(folder / "text", settings.text_lines)
    loaded = load_text(source)
    return loaded if isinstance(loaded, DatasetDict) else DatasetDict(train=loaded)


def make_tagger(settings: Settings, texts: Texts, folder: Path, seed: int) -> Any:
    """What the settings name, trained on the allowed texts alone if they say so."""
    if settings.tagger != POS_BERT:
        return settings.tagger
    how = dict(settings.tagger_training)
    facts = json.dumps([*(getattr(settings, name) for name in _TAGGED), len(texts), seed])
    target = folder / f"tagger-{hashlib.blake2b(facts.encode(), digest_size=6).hexdigest()}"
    if not target.is_dir():
        config, most = how.pop("config", None), how.pop("max_sentences", None)
        draft = target.with_name(f".{target.name}.{os.getpid()}")  # a kill while it is saved leaves no half tagger
        sentences, bert = islice(texts, most), BertConfig(**config) if config else None
        PosTagger.train(sentences, config=bert, output_dir=draft, seed=seed, **how)
        draft.replace(target)
    return PosTagger(target)
