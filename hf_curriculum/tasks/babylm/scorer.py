"""Log-probabilities of texts under any model of the library or of `transformers`, with or without an image."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from os import PathLike, fspath
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_curriculum.config import digest
from hf_curriculum.data.image_inputs import ImageInputs, PixelInputs, RegionInputs, images_for
from hf_curriculum.data.regions.base import Regions
from hf_curriculum.evaluation.generate import evaluation_mode
from hf_curriculum.models.captioner import image_text as find_image_text
from hf_curriculum.models.captioner import images_of_texts, reads
from hf_curriculum.scorers.text.language_model import padded
from hf_curriculum.shapes import validate_arguments


class TextImageScorer:
    """Computes how probable a text is for GIT, Flamingo and other models, with or without an image.

    Texts of a batch are padded on the right and masked. The challenge's pipeline pads with 0 and passes no mask; for
    models that read from left to right with positions counted from the left, the numbers are the same.

    Args:
        model: any causal language model, or captioner whose `forward` takes `input_ids`, `attention_mask` and
            `pixel_values` and requires only the first. Such are GIT, Flamingo, stock GIT and LLaVA-like models of one
            image size. Or a captioner on regions, which scores texts only with images.
        tokenizer: the model's.
        image_processor: the model's; None for text alone.
        batch_size: most texts that run through the model at once.
        image_tokens: text that stands for an image, such as `"<image>"`. By default the model's `image_token_id`,
            `image_seq_length` times (once without), and nothing for models without one. The challenge's pipeline gives
            Flamingo `<image>` in DevBench alone; its published model reads images without it, ours would not.
        prefix_token: stands for an empty context; by default see `prefix_token_id`.
        max_length: most tokens the model reads; by default its positions.
        regions: for a captioner on stored regions, what `open_regions` returns, or a `RegionInputs`; images of items
            are then ids of it.

    Raises:
        ValueError: `batch_size` below 1; a token the tokenizer does not know; a model that looks ahead, or whose
            `forward` needs more than text. Or a captioner on regions has neither `regions` nor an image processor with
            a detector; or `regions` are empty or given with an image processor.

    Source: Saha et al. 2024 (BabyLM), section 4; the BabyLM 2024 evaluation pipeline.

    Example:
        >>> scorer = TextImageScorer(model, tokenizer, image_processor)                 # doctest: +SKIP
        >>> scorer.choice_scores([Item(("a red ball", "a blue cup"), image="1.png")])   # doctest: +SKIP
        [[-8.1, -14.2]]
    """

    @validate_arguments
    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        image_processor: Any | None = None,
        *,
        batch_size: int = 64,
        image_tokens: str | None = None,
        prefix_token: str | None = None,
        max_length: int | None = None,
        regions: Mapping[str, Regions] | RegionInputs | None = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size} was given. At least one text runs through the model at once.")
        self.inputs: ImageInputs | None = _image_inputs(image_processor, regions)
        self.model = model
        self.tokenizer = tokenizer
        self.image_processor = image_processor
        self.batch_size = batch_size
        self.image_text: str = find_image_text(model, tokenizer) if image_tokens is None else image_tokens
        image_ids = tokenizer(self.image_text, add_special_tokens=False)["input_ids"] if self.image_text else []
        self.image_ids: list[int] = list(image_ids)
        self.encoder: ItemEncoder = ItemEncoder(
            tokenizer,
            prefix=prefix_token_id(tokenizer) if prefix_token is None else _known(tokenizer, prefix_token),
            image_ids=image_ids,
            max_length=max_length
            or getattr(model.config.get_text_config(), "max_position_embeddings", None)
            or 1 << 20,
        )
        self._validate_text_alone()
        self._validate_causal()

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    def choice_scores(self, items: Sequence[Item]) -> list[list[float]]:
        """Σ log p of every choice's tokens given the context, in nats, not divided by length: a list per item."""
        return self.in_batches(self.encoder(items), sum_of_log_probs)

    def similarities(self, texts: Sequence[str], images: Sequence[Any]) -> list[float]:
        """Mean log p of each text's tokens given an image; all tokens count, special ones included."""
        rows = self.similarity_rows(texts, images)
        return [values[0] for values in self.in_batches([[row] for row in rows], mean_log_prob)]

    def similarity_rows(self, texts: Sequence[str], images: Sequence[Any]) -> list[Row]:
        """The rows that `similarities` runs: all tokens count but the first and an image's positions."""
        if len(texts) != len(images):
            raise ValueError(f"There are {len(texts)} texts and {len(images)} images. Give a text per image.")
        before = f"{self.image_text} " if self.image_text else ""
        tokens = self.tokenizer([before + text for text in texts], verbose=False)["input_ids"] if texts else []
        for text, ids in zip(texts, tokens, strict=True):
            if not self._first_scored(ids) < len(ids) <= self.encoder.max_length:
                raise ValueError(
                    f"{text[:60]!r} has {len(ids)} tokens. A similarity is the mean over all but the first, and the "
                    f"model reads {self.encoder.max_length}. Check the manifest."
                )
        return [Row(ids, self._first_scored(ids), image) for ids, image in zip(tokens, images, strict=True)]

    def in_batches(self, rows: Sequence[Sequence[Row]], reduce: Callable[[np.ndarray], float]) -> list[list[float]]:
        """A number per row, the longest rows first, so that a batch that does not fit into memory fails at once."""
        flat = [(item, at) for item in by_length(rows) for at in range(len(rows[item]))]
        found: list[list[float]] = [[float("nan")] * len(part) for part in rows]
        for start in range(0, len(flat), self.batch_size):
            batch = flat[start : start + self.batch_size]
            for (item, at), values in zip(batch, self.log_probs([rows[i][j] for i, j in batch]), strict=True):
                found[item][at] = reduce(values)
        return found

    def log_probs(self, rows: Sequence[Row]) -> list[np.ndarray]:
        """Log-probabilities of each row's tokens from its `start` on, in nats: float32 (tokens,) per row."""
        ids, mask = padded([row.ids[:-1] for row in rows])  # (B, T) each; the last token is scored, not read
        with torch.inference_mode(), evaluation_mode(self.model):
            image_inputs = self._image_inputs([row.image for row in rows])
            inputs = {"input_ids": ids.to(self.device), "attention_mask": mask.to(self.device)}
            # Models that put the image before the text return logits for its positions too: (B, [image +] T, V).
            logits = self.model(**inputs, **image_inputs).logits[:, -ids.shape[1] :]
            found = []
            for row, scores in zip(rows, logits, strict=True):
                predicted = scores[row.start - 1 : len(row.ids) - 1].float().log_softmax(-1)  # (tokens, V)
                targets = torch.tensor(row.ids[row.start :], device=predicted.device)
                found.append(predicted.gather(1, targets[:, None])[:, 0].cpu().numpy())
        return found

    def image_features(self, images: Sequence[Any]) -> np.ndarray:
        """The mean last hidden state of a blank text given the image, float32 (images, width).

        GIT's hidden states have the image's positions too, Flamingo's the text's alone.

        Source: DevBench's sem-things in the BabyLM 2024 evaluation pipeline.
        """
        ids = self.tokenizer(f"{self.image_text} " if self.image_text else " ")["input_ids"] or [self.encoder.prefix]
        with torch.inference_mode(), evaluation_mode(self.model):
            batch = torch.tensor([ids] * len(images), device=self.device)
            image_inputs = self._image_inputs(list(images))
            mask = torch.ones_like(batch)
            inputs = {"input_ids": batch, "attention_mask": mask, **image_inputs}
            if reads(self.model, "region_features"):  # which has them inside alone
                states = self.model.base_model(**inputs).last_hidden_state
            else:
                states = self.model(**inputs, output_hidden_states=True).hidden_states[-1]
            return states.float().mean(1).cpu().numpy()

    def fingerprint(self) -> str:
        """A digest of some 16 values of every weight, which any training changes, the tokenizer and these settings."""
        config = {key: value for key, value in self.model.config.to_dict().items() if key != "_name_or_path"}
        settings = [self.image_text, self.encoder.prefix, self.encoder.max_length, _tokenization(self.tokenizer)]
        if self.image_processor is not None:
            settings.append(self.image_processor.to_dict())
        if isinstance(self.inputs, RegionInputs):
            settings.append(repr(self.inputs))
        content: list[str | bytes] = [json.dumps([config, settings], sort_keys=True, default=str)]
        for name, weight in self.model.state_dict().items():
            sample = weight.detach().flatten()[:: max(1, weight.numel() // 16)]
            content += [name, sample.float().cpu().numpy().tobytes()]
        return digest(*content)

    def _first_scored(self, ids: list[int]) -> int:
        """One `<image>` is a word of the text, as in training; hundreds of them are the image's own positions."""
        if len(self.image_ids) <= 1:
            return 1
        return max((at + 1 for at, token in enumerate(ids) if token in self.image_ids), default=1)

    def _validate_text_alone(self) -> None:
        parameters = signature(self.model.forward).parameters.values()
        needed = [one.name for one in parameters if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD]
        if set(needed) - {"input_ids"}:
            raise ValueError(
                f"A {type(self.model).__name__} reads no text alone: its `forward` needs {needed}. Most benchmarks "
                "have no images. Evaluate a model whose images can be left out, such as GIT."
            )
        if self.inputs is None and reads(self.model, "region_features"):
            raise ValueError(
                f"A {type(self.model).__name__} reads no text without an image, and no image can be read for it. Pass "
                "its `image_processor`, or what it was trained on, `regions=open_regions(store)`."
            )

    def _validate_causal(self) -> None:
        pair = torch.tensor([[0, 1], [0, 2]], device=self.device)  # two texts with one beginning
        image = None
        if isinstance(self.inputs, RegionInputs):
            image = next(iter(self.inputs.store))
        elif reads(self.model, "region_features"):
            image = Image.new("RGB", (64, 64))
        with torch.inference_mode(), evaluation_mode(self.model):
            # (vocabulary,) each
            first, second = self.model(input_ids=pair, **self._image_inputs([image] * 2)).logits[:, -2].float()
        if not torch.allclose(first, second, rtol=1e-2, atol=1e-2):
            raise ValueError(
                f"A {type(self.model).__name__} is no causal language model: what it predicts after a token changes "
                "with the token after that, so it would see what it has to predict. Evaluate a model that reads "
                "from left to right."
            )

    def _image_inputs(self, images: list[Any]) -> dict[str, torch.Tensor]:
        """The model's arguments for images, each of which is opened and encoded once."""
        given = sum(image is not None for image in images)
        if not given and reads(self.model, "region_features"):
            raise ValueError(
                f"There are texts without an image, and a {type(self.model).__name__} reads none without. Choose "
                "tasks with images (`tasks=`), or evaluate a model whose images can be left out, such as GIT."
            )
        if not given:
            return {}
        if given < len(images):
            raise ValueError(
                f"{given} of {len(images)} texts have an image. A batch has an image for every text, or none. Score "
                "the two kinds separately."
            )
        if self.inputs is None:
            raise ValueError(
                "There are images to read but no image processor. Pass the model's as `image_processor=`, or leave "
                "out the tasks with images."
            )
        keys = [image if isinstance(image, str) else id(image) for image in images]
        distinct = dict(zip(keys, images, strict=True))
        position = {key: at for at, key in enumerate(distinct)}
        (column,) = self.inputs.columns
        opened = ({column: image() if callable(image) else image} for image in distinct.values())
        seen = images_for(self.inputs.stack([self.inputs.read(row) for row in opened]), next(self.model.parameters()))
        index = torch.tensor([position[key] for key in keys], device=self.device)  # (B,)
        return images_of_texts(self.model, seen, index)


def _image_inputs(image_processor: Any | None, regions: Mapping[str, Regions] | RegionInputs | None) -> Any:
    """What the model sees of an image; None for text alone."""
    if regions is None:
        return None if image_processor is None else PixelInputs(image_processor)
    if image_processor is not None:
        raise ValueError(
            "`regions` were given together with an `image_processor`. A model sees stored regions or images: pass one "
            "of them."
        )
    inputs = regions if isinstance(regions, RegionInputs) else RegionInputs(regions)
    if not len(inputs.store):
        raise ValueError("`regions` hold no image, so there is nothing to score texts on. Name another store.")
    return inputs


def sum_of_log_probs(values: np.ndarray) -> float:
    """Σ log p, in double precision."""
    return float(values.sum(dtype=np.float64))


def mean_log_prob(values: np.ndarray) -> float:
    """Mean log p, in double precision."""
    return float(values.mean(dtype=np.float64))


def by_length(rows: Sequence[Sequence[Row]]) -> list[int]:
    """Indices of items, those with the longest row first."""
    return sorted(range(len(rows)), key=lambda item: -max(len(row.ids) for row in rows[item]))


def _tokenization(tokenizer: PreTrainedTokenizerBase) -> Any:
    """All that decides how texts are split, without what calls change: truncation and padding."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return tokenizer.get_vocab()
    return {name: part for name, part in json.loads(backend.to_str()).items() if name not in ("truncation", "padding")}


def _known(tokenizer: PreTrainedTokenizerBase, token: str) -> int:
    known = tokenizer.get_vocab()
    if token not in known:
        raise ValueError(
            f"prefix_token={token!r} is not in the vocabulary, so it cannot stand for an empty context. Give one of "
            "the tokenizer's tokens."
        )
    return known[token]


class Row(NamedTuple):
    """One text to score: its token ids, the first one that counts, and its image."""

    ids: list[int]
    start: int
    image: Any = None


def prefix_token_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """The token that stands for an empty context: beginning of text, else end of text, else padding."""
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if getattr(tokenizer, name) is not None:
            return getattr(tokenizer, name)
    raise ValueError(
        f"The tokenizer ({type(tokenizer).__name__}) has no beginning-of-text, end-of-text or padding token. One of "
        "them stands before a choice without context, so that its first token is scored too. Set `bos_token`, or pass "
        "`prefix_token=`."
    )


class ItemEncoder:
    """Splits `context + " " + choice` into what is read and what is scored.

    The whole text is tokenised once, the context alone a second time, and what follows as many tokens of the whole is
    the choice; blanks at the context's end go to the choice. No special tokens are added. Contexts that are too long
    are truncated at their beginning.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, *, prefix: int, image_ids: Sequence[int], max_length: int
    ) -> None:
        self.tokenizer = tokenizer
        self.prefix = prefix
        self.image_ids: list[int] = list(image_ids)
        self.max_length = max_length
        self.num_truncated: int = 0

    def __call__(self, items: Sequence[Item]) -> list[list[Row]]:
        """A row per choice of each item."""
        pairs = [_split(item.context, f" {choice}") for item in items for choice in item.choices]
        contexts = self._ids(sorted({context for context, _ in pairs if context}))
        wholes = self._ids(sorted({context + choice for context, choice in pairs}))
        rows = iter(pairs)
        return [[self._row(*next(rows), contexts, wholes, item.image) for _ in item.choices] for item in items]

    def _ids(self, texts: list[str]) -> dict[str, list[int]]:
        found = self.tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"] if texts else []
        return dict(zip(texts, found, strict=True))

    def _row(
        self, context: str, choice: str, contexts: dict[str, list[int]], wholes: dict[str, list[int]], image: Any
    ) -> Row:
        before = contexts[context] if context else []
        scored = wholes[context + choice][len(before) :]
        if not scored:
            raise ValueError(
                f"The choice {choice!r} after {context[-40:]!r} has no token of its own: the tokenizer "
                f"({type(self.tokenizer).__name__}) drops all of it. It cannot be scored; check the file."
            )
        image_ids = self.image_ids if image is not None else []
        head = image_ids if before else [self.prefix, *image_ids]
        room = self.max_length - len(head) + 1  # the last token is scored, not read
        if len(scored) > room - (not head):  # something stands before the first that is scored
            raise ValueError(
                f"The choice {choice[:60]!r} has {len(scored)} tokens, but the model reads {self.max_length}. Build "
                "it with more positions, or leave the item out with `tasks=`."
            )
        kept = before[max(0, len(before) + len(scored) - room) :]
        self.num_truncated += len(kept) < len(before)
        return Row([*head, *kept, *scored], len(head) + len(kept), image)


def _split(context: str, choice: str) -> tuple[str, str]:
    stripped = context.rstrip()
    return stripped, context[len(stripped) :] + choice


@dataclass(frozen=True)
class Item:
    """A context with choices to continue it, one of which is right.

    Args:
        choices: two or more texts, none blank.
        context: what stands before each choice; may be empty.
        image: the image, in any form `to_rgb` reads, or a function that returns it; None for text alone.
        answer: index of the right choice.

    Raises:
        ValueError: fewer than two choices, a blank one, an answer that is none of them.

    Example:
        >>> Item(("a red ball", "a red balls")).answer
        0
    """

    choices: tuple[str, ...]
    context: str = ""
    image: Any = None
    answer: int = 0

    def __post_init__(self) -> None:
        if len(self.choices) < 2:
            raise ValueError(
                f"An item has the choices {list(self.choices)}. A choice benchmark compares at least two. Leave the "
                "item out, or check the file."
            )
        blank = [index for index, choice in enumerate(self.choices) if not choice.strip()]
        if blank:
            raise ValueError(
                f"Choice {blank[0]} of {list(self.choices)} is empty, so it has no probability to compare. Check the "
                "file the item came from."
            )
        if not 0 <= self.answer < len(self.choices):
            raise ValueError(
                f"answer={self.answer} is none of the {len(self.choices)} choices. Give the index of the right one."
            )

    def key(self) -> list[Any]:
        """What identifies this item: its texts, and the image's file where it has one."""
        return [self.context, *self.choices, file_key(self.image)]


def file_key(image: Any) -> str | None:
    """The last part of an image's path and the file's size, None where it has no path."""
    if not isinstance(image, (str, PathLike)):
        return None
    name = fspath(image).replace("\\", "/").rpartition("/")[2]
    return f"{name}, {os.stat(image).st_size} bytes" if os.path.exists(image) else name  # an id of stored regions


def chosen(scores: Sequence[float]) -> int:
    """Index of the highest score; of equal ones the first."""
    values = np.asarray(scores, dtype=np.float64)
    if np.isnan(values).any():
        raise ValueError(
            f"The scores of an item are {list(scores)}: NaN cannot be compared. The model's numbers overflow; load it "
            "in float32, or look for a training run that diverged."
        )
    return int(values.argmax())


def accuracy(scores: Sequence[Sequence[float]], answers: Sequence[int]) -> float:
    """Share of items whose highest-scored choice is the right one."""
    if not len(scores) or len(scores) != len(answers):
        raise ValueError(
            f"There are scores of {len(scores)} items and {len(answers)} answers. Accuracy is their share of "
            "agreement, so both need the same number, at least 1."
        )
    return float(np.mean([chosen(row) == answer for row, answer in zip(scores, answers, strict=True)]))
