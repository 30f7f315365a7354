"""A small LLaVA from a configuration, its tokenizer and processor; or a trained model by its name."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoImageProcessor,
    AutoModelForImageTextToText,
    AutoProcessor,
    CLIPImageProcessorPil,
    CLIPVisionModel,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    ProcessorMixin,
)

import hf_curriculum.models
from hf_curriculum.scorers.alignment.clip import SCENES_CLIP

TEMPLATE = (  # as LLaVA's
    "{% for message in messages %}{{ message.role | upper }}: "
    "{% for part in message.content %}{% if part.type == 'image' %}<image>\n{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% if message.role == 'assistant' %}</s>{% else %} {% endif %}{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)
_CLIP = Path(hf_curriculum.models.__file__).parent / SCENES_CLIP


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer of these texts, with LLaVA's marks."""
    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    marks = ["<pad>", "<s>", "</s>", "<image>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=marks, initial_alphabet=alphabet, show_progress=False
    )
    words.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        extra_special_tokens={"image_token": "<image>"},
    )


def new_llava(
    tokenizer: PreTrainedTokenizerFast, vision_layers: int, text_config: dict[str, Any]
) -> tuple[PreTrainedModel, ProcessorMixin]:
    """A LLaVA whose language model and projector are random, on the shipped CLIP's first layers, which are frozen."""
    vision = CLIPVisionModel.from_pretrained(_CLIP, num_hidden_layers=vision_layers, dtype=torch.float32)
    config = LlavaConfig(
        vision_config=vision.config,
        text_config=LlamaConfig(
            vocab_size=len(tokenizer),
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            **text_config,
        ),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
    )
    config.pad_token_id = tokenizer.pad_token_id
    model = LlavaForConditionalGeneration(config)
    model.model.vision_tower.load_state_dict(vision.state_dict())
    model.model.vision_tower.requires_grad_(False)
    side = vision.config.image_size
    read = AutoImageProcessor.from_pretrained(_CLIP, backend="pil")
    images = CLIPImageProcessorPil(
        size={"height": side, "width": side},
        do_center_crop=False,
        do_convert_rgb=True,
        image_mean=read.image_mean,
        image_std=read.image_std,
    )
    processor = LlavaProcessor(
        images, tokenizer, vision.config.patch_size, "default", TEMPLATE, num_additional_image_tokens=1
    )
    return model, processor


def load_named(name: str) -> tuple[PreTrainedModel, ProcessorMixin]:
    """A trained model and its processor, from the Hub or a folder."""
    processor = AutoProcessor.from_pretrained(name)
    return AutoModelForImageTextToText.from_pretrained(name, dtype=torch.float32), processor
