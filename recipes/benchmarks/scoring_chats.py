"""`ModelLoss` of conversations beside the bare forward passes of its model; a section of `scoring.py`.

A LLaVA of random weights reads an image and answers in a few sentences. Ours is `add_scores`, from encoded images to
finished scores: template, tokens, preprocessing, masks, losses. The other side has all of this done: it runs the model
on the batches that ours has prepared, and takes the loss. It has the logits of every position, as a plain call of the
model gives them, or those that the responses need alone, as ours does. Rates are of processor time; `quick` takes a
small model, which shows that it runs and no more.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset, Features, Image, List, Value
from scoring_clip import in_turn, scenes
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
)

from hf_curriculum import ModelLoss, add_scores, train_wordpiece
from hf_curriculum.scorers.chat_inputs import ChatModel

TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {% for part in message.content %}"
    "{% if part.type == 'image' %}<image> {% else %}{{ part.text }}{% endif %}{% endfor %} [SEP] {% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
LARGE = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 8, "num_attention_heads": 8}


def model_folder(folder: Path, captions: list[str], quick: bool) -> Path:
    """A LLaVA of random weights (50 million; an image is 196 tokens), with a tokenizer learnt from the captions."""
    words = train_wordpiece(captions, 8000, layout="compact", max_length=2048)
    words.add_tokens(["<image>"], special_tokens=True)
    image = CLIPImageProcessorPil(size={"shortest_edge": 224}, crop_size={"height": 224, "width": 224})
    processor = LlavaProcessor(image, words, 16, "default", TEMPLATE, num_additional_image_tokens=1)
    sizes = SMALL if quick else LARGE
    config = LlavaConfig(
        text_config=LlamaConfig(vocab_size=len(words), max_position_embeddings=2048, **sizes),
        vision_config=CLIPVisionConfig(image_size=224, patch_size=16, **sizes),
        image_token_index=words.convert_tokens_to_ids("<image>"),
        vision_feature_select_strategy="default",
        vision_feature_layer=-1,
    )
    torch.manual_seed(0)
    for part in (LlavaForConditionalGeneration(config), processor):
        part.save_pretrained(folder)
    return folder


def conversations(files: list[bytes], captions: list[list[str]], rows: int) -> Dataset:
    """Rows of one image, a question, and one to five captions of it as the answer."""
    turn = {"role": Value("string"), "content": Value("string")}
    chats = [
        [
            {"role": "user", "content": "what is in the image , and where ?"},
            {"role": "assistant", "content": " . ".join(captions[row % len(files)][: 1 + row % 5])},
        ]
        for row in range(rows)
    ]
    images = [[{"bytes": files[row % len(files)], "path": None}] for row in range(rows)]
    features = Features({"messages": List(turn), "images": List(Image())})
    return Dataset.from_dict({"messages": chats, "images": images}, features=features)


def prepared(data: Dataset, scorer: ModelLoss) -> list[tuple[dict[str, Any], np.ndarray]]:
    """The batches that a scoring pass gives to the model, and their marks."""
    batches, losses = [], ChatModel.losses

    def noted(model: ChatModel, inputs: dict[str, Any], marks: np.ndarray) -> Any:
        batches.append((inputs, marks))
        return losses(model, inputs, marks)

    ChatModel.losses = noted
    try:
        add_scores(data, scorer)
    finally:
        ChatModel.losses = losses
    return batches


def bare(model: Any, batches: list[tuple[dict[str, Any], np.ndarray]], needed: bool) -> np.ndarray:
    """The losses of the responses, smallest first, from logits of every position or of the `needed` ones."""
    found = []
    for inputs, marks in batches:
        scored = torch.from_numpy(marks[:, 1:] > 0)  # (rows, tokens - 1)
        kept = scored.any(0).nonzero()[:, 0] if needed else torch.arange(scored.shape[1])
        with torch.inference_mode():
            logits = model(**inputs, logits_to_keep=kept).logits if needed else model(**inputs).logits[:, :-1]
        targets = inputs["input_ids"][:, 1:][:, kept].masked_fill(~scored[:, kept], -100)
        losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
        found += losses.sum(1).tolist()
    return np.sort(found)


def measure(quick: bool = False) -> list[dict[str, object]]:
    """All rows of this section."""
    images, rows, size, repetitions = (3, 6, 3, 1) if quick else (16, 32, 16, 3)
    files, captions = scenes(images, 5)
    data = conversations(files, captions, rows)
    with tempfile.TemporaryDirectory() as folder:
        where = model_folder(Path(folder), [caption for own in captions for caption in own], quick)
        scorer = ModelLoss(str(where), batch_size=size)
        batches, model = prepared(data, scorer), scorer.loaded().model
        sides = {
            "ours": lambda: np.sort(add_scores(data, scorer)["model_loss"][:]),
            "all logits": lambda: bare(model, batches, needed=False),
            "logits of the responses": lambda: bare(model, batches, needed=True),
        }
        times = in_turn(sides, repetitions)
    return [
        {
            "what": "loss of responses, the model on prepared batches",
            "ours": f"{rows / times['ours']:.2f} conversations/s",
            "against": f"{rows / times[name]:.2f} conversations/s ({name})",
            "ratio": times[name] / times["ours"],
            "asked": "≥ 0.9",
        }
        for name in ("all logits", "logits of the responses")
    ]
