"""The scores that pairs are ordered by, and what scenes need for them: region probabilities and a language model."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from datasets import Dataset, List, Value
from simi_cl.arguments import JOINED, SCENES, DataArguments
from simi_cl.data import Prepared
from transformers import GPT2Config, GPT2LMHeadModel, set_seed

import hf_curriculum.models
from hf_curriculum import (
    IID,
    CaptionCollator,
    CurriculumTrainer,
    CurriculumTrainingArguments,
    Scorer,
    add_scores,
    add_scores_from,
)
from hf_curriculum.columns import CAPTION, IMAGE, IMAGE_ID
from hf_curriculum.config import digest
from hf_curriculum.data.grouping import one_row_per_image
from hf_curriculum.data.images import to_rgb
from hf_curriculum.data.text import load_text
from hf_curriculum.data.tokenizer import train_word_tokenizer
from hf_curriculum.names import SCORERS
from hf_curriculum.scenes.captions import write_scene_text
from hf_curriculum.scenes.vocabulary import NOUNS
from hf_curriculum.scorers.alignment.clip import SCENES_CLIP
from hf_curriculum.scorers.alignment.clip_backends import TransformersTowers
from hf_curriculum.studies.recipe import RunLines

PROBABILITIES = "region_probabilities"
"""A column with, for each region of an image, a probability for each of the scenes' nouns."""
_CLIP = Path(hf_curriculum.models.__file__).parent / SCENES_CLIP
_CROPS = 3


def score(prepared: Prepared, data_args: DataArguments, folder: Path) -> tuple[Dataset, str]:
    """The training pairs with their scores, and the column of the last one, by which they are ordered."""
    rows = prepared.data["train"]
    for name, options in data_args.scores.items():
        if options.get("model") == SCENES:  # trained by all processes together
            options = {**options, "model": str(language_model_of_scenes(data_args, folder))}
        with PartialState().main_process_first():
            if name == JOINED:
                rows = add_scores_from(rows, **{"on": [IMAGE_ID, CAPTION], **options})
                column = rows.column_names[-1]
                continue
            if options.get("probabilities") == PROBABILITIES and data_args.data == SCENES:
                rows = add_region_probabilities(rows)
            scorer = make_scorer(name, options, prepared.store)
            if hasattr(scorer, "fit"):
                scorer.fit(rows)
            rows, column = add_scores(rows, scorer), next(iter(scorer.outputs))
    return rows, column


def make_scorer(name: str, options: Mapping[str, Any], store: str) -> Scorer:
    """A scorer of the library by its name; one that reads regions and was given no other source gets the run's."""
    kind, options = SCORERS[name], dict(options)
    parameters = inspect.signature(kind).parameters
    if "regions" in parameters and not {"detector", "regions", "probabilities"} & set(options):
        options["regions"] = store
    return kind(**options)


@torch.inference_mode()
def add_region_probabilities(rows: Dataset) -> Dataset:
    """A column `region_probabilities`: what the shipped CLIP takes each part of an image for, of the scenes' nouns."""
    device = PartialState().device
    towers = TransformersTowers(str(_CLIP), None, device, torch.float32)
    towers.model.eval()
    names = towers.encode_text(dict(towers.tokens([f"a {noun}" for noun in NOUNS]).inputs))  # (nouns, D)
    names = torch.nn.functional.normalize(names, dim=-1)
    scale = towers.model.logit_scale.exp()
    found: dict[str, list[list[float]]] = {}
    for image in one_row_per_image(rows).select_columns([IMAGE_ID, IMAGE]):
        parts = torch.stack([towers.pixels(part) for part in _parts(to_rgb(image[IMAGE]))])
        seen = torch.nn.functional.normalize(towers.encode_image(parts), dim=-1)  # (10, D)
        found[image[IMAGE_ID]] = (scale * seen @ names.T).softmax(-1).cpu().tolist()
    column = [found[image_id] for image_id in rows[IMAGE_ID]]
    return rows.add_column(PROBABILITIES, column, feature=List(List(Value("float32"))))


def _parts(image: Any) -> list[Any]:
    """Overlapping quarters of an image, and all of it."""
    width, height = image.size
    steps = [number / (_CROPS - 1) / 2 for number in range(_CROPS)]
    boxes = [(x * width, y * height, (x + 0.5) * width, (y + 0.5) * height) for y in steps for x in steps]
    return [*(image.crop(tuple(map(round, box))) for box in boxes), image]


def language_model_of_scenes(data_args: DataArguments, folder: Path) -> Path:
    """A GPT-2 of two layers, trained for some seconds on text of scenes that no image shows; its folder."""
    target = folder / f"language_model-{digest(str(data_args.text_lines), size=4)}"
    if (target / "config.json").is_file():
        return target
    set_seed(0)
    state = PartialState()
    with state.main_process_first():
        text = load_text(write_scene_text(folder / "text", data_args.text_lines))["train"]
    tokenizer = train_word_tokenizer(text, 2, max_words=62)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=64,
        n_embd=96,
        n_layer=2,
        n_head=4,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    draft = folder / f".{target.name}"  # a kill leaves no incomplete model
    args = CurriculumTrainingArguments(
        str(draft),
        curriculum=IID(epochs=4),
        global_batch_size=64,
        learning_rate=3e-3,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=not torch.accelerator.is_available(),
    )
    collator = CaptionCollator(tokenizer, None, max_length=tokenizer.model_max_length)
    model = GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"  # by which `Trainer` divides the loss by the tokens that are predicted alone
    trainer = CurriculumTrainer(model, args, data_collator=collator, train_dataset=text)
    state.print(f"A language model of {len(tokenizer)} words, on {len(text):,} texts of other scenes, for its scores")
    RunLines.follow(trainer)
    trainer.train()
    if state.is_main_process:
        trainer.model.save_pretrained(draft)
        tokenizer.save_pretrained(draft)
        draft.replace(target)
    state.wait_for_everyone()
    return target
