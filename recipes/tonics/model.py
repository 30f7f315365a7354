"""The aligner or the CLIP of a run, what makes its batches, and its scores of test captions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import PartialState
from datasets import Dataset
from tonics.arguments import ALIGNER, ModelArguments, TonicsArguments
from tonics.data import Prepared
from transformers import AutoImageProcessor, AutoModel, AutoTokenizer, BertConfig, PreTrainedTokenizerBase

from hf_curriculum import train_wordpiece
from hf_curriculum.columns import CAPTION, IMAGE
from hf_curriculum.data.image_inputs import PixelInputs, RegionInputs
from hf_curriculum.scorers.alignment import clip
from hf_curriculum.tasks.alignment import (
    AlignerConfig,
    AlignerModel,
    AlignerProcessor,
    ContrastiveCollator,
    ContrastiveTrainer,
    RetrievalSuite,
    aligner_scores,
    clip_similarities,
    noun_spans,
)
from hf_curriculum.tasks.alignment.collator import NOUN_END, NOUN_START
from hf_curriculum.tasks.alignment.processor import encode_nouns

_READ_AT_ONCE = 10_000
"""Captions whose tokens are counted at once."""


@dataclass(frozen=True)
class Built:
    """A model and what reads its inputs.

    Args:
        model: before training.
        tokenizer: of captions.
        image_processor: of new images; None where regions are read from a store that knows no detector.
        collator: of batches.
    """

    model: Any
    tokenizer: PreTrainedTokenizerBase
    image_processor: Any
    collator: ContrastiveCollator


def build(model_args: ModelArguments, prepared: Prepared) -> Built:
    """The model of a run: an aligner on a text encoder, or a CLIP, with adapters where they are asked for."""
    return _aligner(model_args, prepared) if model_args.model == ALIGNER else _clip(model_args)


def _aligner(model_args: ModelArguments, prepared: Prepared) -> Built:
    options = {**model_args.model_options, "region_feature_size": prepared.regions.dims}
    if model_args.text_model is not None:
        tokenizer = AutoTokenizer.from_pretrained(model_args.text_model)
        model = AlignerModel.from_text_pretrained(model_args.text_model, **options)
    else:
        tokenizer = train_wordpiece(prepared.train, model_args.vocab_size)
        config = BertConfig(vocab_size=len(tokenizer), **model_args.text_config)
        model = AlignerModel(AlignerConfig(config, **options))
    if model_args.max_length is not None:
        tokenizer.model_max_length = model_args.max_length
    collator = ContrastiveCollator(tokenizer, prepared.regions, max_length=model_args.max_length)
    store = getattr(prepared.regions.store, "reference", prepared.regions.store)  # of several sources' stores
    processor = RegionInputs(store, **prepared.regions.options).image_processor
    return Built(model, tokenizer, processor, collator)


def readable(rows: Dataset, collator: ContrastiveCollator) -> tuple[Dataset, np.ndarray]:
    """Rows whose noun is among the tokens that are kept of its caption; the others are counted."""
    numbers = np.arange(len(rows))
    if not collator.nouns:
        return rows, numbers
    columns = rows.select_columns([CAPTION, NOUN_START, NOUN_END]).with_format(None)
    kept = []
    for part in columns.iter(_READ_AT_ONCE):
        spans = list(zip(part[NOUN_START], part[NOUN_END], strict=True))
        tokens = encode_nouns(collator.tokenizer, part[CAPTION], spans, padding=True, max_length=collator.max_length)
        kept.append(tokens["noun_mask"].any(1).numpy())
    numbers = np.flatnonzero(np.concatenate(kept))
    if len(numbers) == len(rows):
        return rows, numbers
    PartialState().print(
        f"{len(rows) - len(numbers):,} of {len(rows):,} rows are left out: their noun stands beyond the tokens that "
        "are kept of its caption (max_length)."
    )
    return rows.select(numbers), numbers


def _clip(model_args: ModelArguments) -> Built:
    name = str(clip.SHIPPED) if model_args.model == clip.SCENES_CLIP else model_args.model
    model = AutoModel.from_pretrained(name, dtype="float32")
    tokenizer = AutoTokenizer.from_pretrained(name)
    processor = AutoImageProcessor.from_pretrained(name, backend="pil")
    pads = model.config.model_type.startswith("siglip")
    length = model_args.max_length or (model.config.text_config.max_position_embeddings if pads else None)
    options = {"max_length": length, "pad_to_max_length": pads}
    collator = ContrastiveCollator(tokenizer, PixelInputs(processor), **options)
    return Built(_with_adapters(model, model_args.lora_rank), tokenizer, processor, collator)


def _with_adapters(model: Any, rank: int | None) -> Any:
    if rank is None:
        return model
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise ImportError(
            f"lora_rank={rank} needs PEFT, which is not installed. Run `pip install 'hf-curriculum[peft]'`, or train "
            "all weights, `--lora_rank none`."
        ) from error
    # The attention of both encoders; other values are ours.
    return get_peft_model(
        model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=["q_proj", "k_proj", "v_proj"])
    )


def save(built: Built, trainer: ContrastiveTrainer, folder: Path) -> Any:
    """Writes the trained model as `hf-curriculum evaluate` reads it, adapters merged into its weights."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    if hasattr(model, "merge_and_unload"):
        model = model.merge_and_unload()
    if trainer.is_world_process_zero():
        model.save_pretrained(folder)
        if isinstance(model, AlignerModel):
            AlignerProcessor(built.image_processor, built.tokenizer).save_pretrained(folder)
        else:
            built.tokenizer.save_pretrained(folder)
            built.image_processor.save_pretrained(folder)
    trainer.accelerator.wait_for_everyone()
    return model


def evaluate(
    suite: RetrievalSuite, built: Built, model: Any, folder: Path, prepared: Prepared, args: TonicsArguments
) -> Any:
    """A trained model's retrieval on the captions and images of a suite."""
    if not isinstance(model, AlignerModel):
        scorer = clip.CLIPSimilarity(str(folder), batch_size=64)
        return suite(clip_similarities(suite.captions, suite.images[IMAGE], scorer))
    spans = noun_spans(suite.captions, prepared.ontology)
    options = {"over": args.noun_scores, "max_length": built.collator.max_length}
    model.eval()
    found = aligner_scores(model, built.tokenizer, suite.captions, spans, suite.images, prepared.regions, **options)
    return suite(found.similarities, found.notes)
