"""CLIP fine-tuned as a classifier by the loss it was trained with: images against the prompts of their classes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn
from transformers.modeling_outputs import ImageClassifierOutput

from hf_curriculum.columns import IMAGE, LABEL
from hf_curriculum.scorers.visual.class_probability import Prompts, prompts_of
from hf_curriculum.shapes import validate_arguments
from hf_curriculum.tasks.long_tail.data.collator import LabelCollator


def flyp_loss(
    images: torch.Tensor, texts: torch.Tensor, scale: torch.Tensor | float, labels: torch.Tensor | None = None
) -> torch.Tensor:
    """CLIP's symmetric loss of matching pairs: each image among the batch's texts, and each text among its images."""
    logits = scale * images @ texts.T  # (B, B)
    if labels is not None:
        same = (labels[:, None] == labels) & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
        logits = logits.masked_fill(same, torch.finfo(logits.dtype).min)
    target = torch.arange(len(logits), device=logits.device)
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2


class PromptCollator(LabelCollator):
    """Makes batches of images, their classes, and one prompt of each image's class, for `CLIPClassifier`.

    Each time an image is shown it gets a random prompt of its class, seeded by the draw as `augment` is. In evaluation
    there are none: the classifier's head has all of them.

    Args:
        image_processor: of the CLIP.
        tokenizer: of the CLIP.
        classes: the names of the classes in the order of their numbers.
        prompts: a template such as "a photo of {label}", several, or a mapping class → its prompts.
        augment: see `LabelCollator`.
        evaluation_crop: see `LabelCollator`.
        image_column: see `LabelCollator`.
        label_column: see `LabelCollator`.

    Shapes: `pixel_values` (B, 3, H, W) float32, `labels` (B,) int64; in training `input_ids` and `attention_mask`
        (B, T) int64.

    Raises:
        ValueError: a template without `{label}`, or a class without a prompt; otherwise as `LabelCollator`.

    Source: Goyal et al. 2023, *Finetune like you pretrain* (FLYP), algorithm 1.

    Example:
        >>> from transformers import AutoTokenizer
        >>> from hf_curriculum.data.processors import make_image_processor
        >>> from hf_curriculum.scorers.alignment.clip import SHIPPED
        >>> tokenizer = AutoTokenizer.from_pretrained(SHIPPED)
        >>> collator = PromptCollator(make_image_processor(64), tokenizer, ["ball", "tree"])
        >>> batch = collator([{"image": Image.new("RGB", (80, 60)), "label": 1}])
        >>> tokenizer.decode(batch["input_ids"][0], skip_special_tokens=True)
        'a photo of tree'
    """

    @validate_arguments
    def __init__(
        self,
        image_processor: Any,
        tokenizer: Any,
        classes: Sequence[str],
        prompts: Prompts = "a photo of {label}",
        *,
        augment: Callable[[Image.Image], Any] | None = None,
        evaluation_crop: float | None = None,
        image_column: str = IMAGE,
        label_column: str = LABEL,
    ) -> None:
        super().__init__(
            image_processor,
            augment=augment,
            evaluation_crop=evaluation_crop,
            image_column=image_column,
            label_column=label_column,
        )
        self.tokenizer = tokenizer
        self.prompts: list[list[str]] | None = prompts_of(prompts, list(classes))

    @property
    def is_random(self) -> bool:
        """Whether an example draws random numbers: an `augment`, or one of several prompts."""
        return super().is_random or any(len(own) > 1 for own in self.prompts or ())

    def without_augmentation(self) -> PromptCollator:
        """The same collator for evaluation: without prompts too."""
        plain = super().without_augmentation()
        plain.prompts = None
        return plain

    def prepare(self, example: dict[str, Any]) -> dict[str, Any]:
        """One example's image, its class, and a prompt."""
        prepared = super().prepare(example)
        if self.prompts is not None:
            label = prepared["label"]
            if label >= len(self.prompts):
                raise ValueError(
                    f"`{self.label_column}` is {label}, and there are prompts of {len(self.prompts)} classes: it has "
                    "none. Give `classes=class_names(train)`."
                )
            prepared["prompt"] = random.choice(self.prompts[label])
        return prepared

    def collate(self, prepared: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """The batch of prepared examples."""
        batch = super().collate(prepared)
        if self.prompts is None:
            return batch
        return batch | tokens_of(self.tokenizer, [item["prompt"] for item in prepared])


class CLIPClassifier(nn.Module):
    """A CLIP as a classifier: trained on contrastive pairs of images and prompts, used by its zero-shot head.

    Given prompts (`PromptCollator`) the loss is contrastive, and there are no logits over classes. Otherwise the
    logits are the scaled cosines of the image and of each class's prompts, averaged as unit vectors. This zero-shot
    head is made anew from the text tower after training and loading.

    Args:
        clip: a `CLIPModel`, or another model of `transformers` with two towers and a `logit_scale`. Its weights become
            float32: half-precision ones, common on the Hub, do not survive AdamW (`bf16=True` computes in half).
        tokenizer: of its text tower.
        classes: the names of the classes in the order of their numbers.
        prompts: a template, several, or a mapping class → its prompts.
        mask_same_class: leave other pairs of an image's class out of its softmax (`contrastive_loss(labels=)`).

    Shapes: `pixel_values` (B, 3, H, W); `input_ids`, `attention_mask` (B, T), or none; `labels` (B,). Returns a loss,
        and without prompts `logits` (B, C).

    Raises:
        ValueError: a template without `{label}`, or a class without a prompt.

    Source: Goyal et al. 2023, *Finetune like you pretrain* (FLYP). DisCL's iWildCam runs use it: AdamW, learning rate
        1e-5, 500 warm-up steps and one cosine schedule over all phases.

    Example:
        >>> from transformers import AutoModel, AutoTokenizer
        >>> from hf_curriculum.scorers.alignment.clip import SHIPPED
        >>> tokenizer = AutoTokenizer.from_pretrained(SHIPPED)
        >>> model = CLIPClassifier(AutoModel.from_pretrained(SHIPPED), tokenizer, ["ball", "tree"], "a {label}").eval()
        >>> model(pixel_values=torch.zeros(3, 3, 64, 64)).logits.shape
        torch.Size([3, 2])
    """

    def __init__(
        self,
        clip: Any,
        tokenizer: Any,
        classes: Sequence[str],
        prompts: Prompts = "a photo of {label}",
        *,
        mask_same_class: bool = False,
    ) -> None:
        super().__init__()
        self.clip = clip.float()
        self.classes: list[str] = list(classes)
        self.mask_same_class = mask_same_class
        self.prompts: list[list[str]] = prompts_of(prompts, self.classes)
        tokens = tokens_of(tokenizer, [text for own in self.prompts for text in own])
        for name, values in tokens.items():
            self.register_buffer(f"head_{name}", values, persistent=False)
        self._head: torch.Tensor | None = None

    @property
    def config(self) -> Any:
        """The CLIP's configuration."""
        return self.clip.config

    @property
    def scale(self) -> torch.Tensor:
        """The factor of the cosines."""
        return self.clip.logit_scale.exp()

    def train(self, mode: bool = True) -> CLIPClassifier:
        """As `Module.train`; drops the head made for evaluation."""
        self._head = None
        return super().train(mode)

    def load_state_dict(self, *args: Any, **options: Any) -> Any:
        """As `Module.load_state_dict`; drops the head of the old weights."""
        self._head = None
        return super().load_state_dict(*args, **options)

    def _apply(self, *args: Any, **options: Any) -> CLIPClassifier:
        """To another device or dtype, likewise."""
        self._head = None
        return super()._apply(*args, **options)

    def encode_image(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Unit vectors of images, (B, 3, H, W) → (B, D)."""
        return F.normalize(_vectors(self.clip.get_image_features(pixel_values=pixel_values)), dim=-1)

    def encode_text(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        """Unit vectors of prompts, (B, T) → (B, D)."""
        found = self.clip.get_text_features(input_ids=input_ids, attention_mask=attention_mask)
        return F.normalize(_vectors(found), dim=-1)

    def head(self) -> torch.Tensor:
        """A unit vector of each class, (C, D): the mean of its prompts' unit vectors."""
        if self._head is not None:
            return self._head
        vectors = self.encode_text(self.head_input_ids, self.head_attention_mask)
        parts = torch.split(vectors, [len(own) for own in self.prompts])
        head = F.normalize(torch.stack([part.mean(0) for part in parts]), dim=-1)
        if not self.training and not torch.is_grad_enabled():
            self._head = head
        return head

    def forward(
        self,
        pixel_values: torch.Tensor,
        labels: torch.Tensor | None = None,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
    ) -> ImageClassifierOutput:
        """The loss of a batch, and without prompts its logits."""
        images = self.encode_image(pixel_values)
        if input_ids is not None:
            texts = self.encode_text(input_ids, attention_mask)
            same = labels if self.mask_same_class else None
            return ImageClassifierOutput(loss=flyp_loss(images, texts, self.scale, same))
        logits = self.scale * images @ self.head().T  # (B, C)
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return ImageClassifierOutput(loss=loss, logits=logits)

    def save_pretrained(self, folder: str | Path, **options: Any) -> None:
        """Saves the CLIP, which any tool of `transformers` reads; the head follows from the prompts."""
        self.clip.save_pretrained(folder, **options)


def tokens_of(tokenizer: Any, texts: Sequence[str]) -> dict[str, torch.Tensor]:
    """`input_ids` and `attention_mask` of prompts, (n, T) int64, T the longest."""
    longest = min(int(tokenizer.model_max_length), 10_000)
    found = tokenizer(list(texts), padding=True, truncation=True, max_length=longest, return_tensors="pt")
    ids = found["input_ids"]
    return {"input_ids": ids, "attention_mask": found.get("attention_mask", torch.ones_like(ids))}


def _vectors(found: Any) -> torch.Tensor:
    """What a tower returns as a tensor (B, D)."""
    return getattr(found, "pooler_output", found)
