"""A Qwen2-VL of a few thousand weights with a processor of its own, a data set of dialogues, and a trainer of both."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from datasets import Dataset, Features, Image, List, Value
from PIL import Image as Picture
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen2VLImageProcessor,
    Qwen2VLProcessor,
)
from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor
from trl import SFTTrainer

from hf_curriculum import with_curriculum

ROWS = 24
WORDS = [f"w{number}" for number in range(20)]
PLACES = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
SPECIAL = ["[PAD]", "[UNK]", "[EOS]", *PLACES, "user", "assistant"]
TEMPLATE = (
    "{% for message in messages %}{{ message.role + ' ' }}"
    "{% for part in message.content %}{% if part.type == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}{% endfor %} [EOS] {% endfor %}"
)


def make_processor(template: str = TEMPLATE, max_pixels: int = 56 * 56) -> Qwen2VLProcessor:
    vocab = {word: number for number, word in enumerate([*SPECIAL, *WORDS])}
    words = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    named = {"image_token": PLACES[2], "video_token": PLACES[3]}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", eos_token="[EOS]", extra_special_tokens=named
    )
    tokenizer.add_tokens(PLACES, special_tokens=True)
    images = Qwen2VLImageProcessor(min_pixels=28 * 28, max_pixels=max_pixels)
    return Qwen2VLProcessor(images, tokenizer, Qwen2VLVideoProcessor(), chat_template=template)


def make_model() -> Qwen2VLForConditionalGeneration:
    torch.manual_seed(0)
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {"vocab_size": 40, "num_key_value_heads": 2, "max_position_embeddings": 128, "rope_parameters": rope}
    vision = {"depth": 1, "embed_dim": 16, "hidden_size": 16, "num_heads": 2, "mlp_ratio": 2}
    tokens = {"vision_start_token_id": 3, "vision_end_token_id": 4, "image_token_id": 5, "video_token_id": 6}
    return Qwen2VLForConditionalGeneration(
        Qwen2VLConfig(text_config={**text, **sizes}, vision_config=vision, **tokens)
    )


@cache
def dialogues(images: int | None = 1) -> Dataset:
    """Questions about images of three sizes, and answers of 2 to 8 words; a row in four has a long question.

    With `images=None` rows have one to three images, each of another size.
    """
    rng = np.random.default_rng(0)
    rows = []
    for row in range(ROWS):
        answer, question = 2 + row % 7, 40 if row % 4 == 3 else 3
        shown = [row] * images if images else range(row, row + 1 + row % 5 % 3)
        pictures = [rng.integers(0, 255, (28 + 28 * (number % 3), 84, 3), dtype=np.uint8) for number in shown]
        said = {"user": " ".join(rng.choice(WORDS, question)), "assistant": " ".join(rng.choice(WORDS, answer))}
        rows.append(
            {
                "images": [Picture.fromarray(picture) for picture in pictures],
                "messages": [{"role": role, "content": text} for role, text in said.items()],
                "words": float(answer),
            }
        )
    turn = {"role": Value("string"), "content": Value("string")}
    return Dataset.from_list(
        rows, features=Features({"images": List(Image()), "messages": List(turn), "words": Value("float32")})
    )


def make_vlm_trainer(
    folder: Any, curriculum: Any, *, processor: Any = None, images: int | None = 1, **arguments: Any
) -> Any:
    """An `SFTTrainer` with a curriculum."""
    trainer_class = with_curriculum(SFTTrainer)
    given = {
        "score_column": "words",
        "per_device_train_batch_size": 4,
        "max_length": None,
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
        "disable_tqdm": True,
        "logging_steps": 1,
        "save_strategy": "steps",
        "save_steps": 3,
        "dataloader_pin_memory": False,
        **arguments,
    }
    args = trainer_class.args_class(str(folder), curriculum=curriculum, **given)
    parts = {"train_dataset": dialogues(images), "processing_class": processor or make_processor()}
    return trainer_class(make_model(), args, **parts)
