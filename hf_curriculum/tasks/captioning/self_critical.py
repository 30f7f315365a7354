"""Self-critical fine-tuning: a captioner's own samples, rewarded by CIDEr-D."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch.nn import functional
from transformers import LogitsProcessor

from hf_curriculum.columns import CAPTION, IMAGE_ID, require_columns
from hf_curriculum.data.identity import validate_image_ids
from hf_curriculum.tasks.captioning.trainer import CaptioningTrainer, generate_predictions
from hf_curriculum.training.prediction import TEXT_INPUTS, base_model, evaluation_model, preserve_rng_state

Baseline = Literal["greedy", "leave_one_out"]
END = "<eos>"
"""The word that stands for a caption's end, in references and in samples that have one."""
_SAMPLES = 0x5C57


class Reward(Protocol):
    """What scores captions: `CiderD`, or anything like it."""

    def scores(self, captions: Sequence[str], rows: np.ndarray) -> np.ndarray:
        """One reward per caption, float64 (n,), for the images `rows`, int64 (n,)."""
        ...


class SelfCriticalTrainer(CaptioningTrainer):
    """Trains a captioner on the CIDEr-D of its own samples (SCST), under any curriculum.

    For each image of a batch `num_samples` captions are drawn from the model, without dropout. The loss is the mean
    over their tokens, the end token included, of −log p(token) · (reward − baseline). Rows only select images; with
    `CaptionCollator(share_images=True)` rows of a batch that share an image share its samples. Samples are a function
    of the weights and (seed, step, batch, process), so a resumed run draws the same ones. `suppress_tokens` of the
    generation config has no effect: [UNK] is drawn with the model's probability. The log has the samples' mean reward,
    as `reward`. `evaluate()` gives the captions' loss.

    The reward is CIDEr-D against all captions of the image in the training data, whose images also give the document
    frequencies. The tokenizer decodes tokens to words, unknown ones included. `<eos>` is the last word of each
    reference, and of each sample that ends within `generation_max_length`.

    Args:
        *args: of `CurriculumTrainer`.
        baseline: `"greedy"`: the reward of the caption written greedily; `"leave_one_out"`: the mean reward of the
            image's other samples.
        num_samples: captions drawn for each image.
        reward: scores captions in place of CIDEr-D; images are numbered in order of their first row in the training
            data.
        **kwargs: of `CurriculumTrainer`; `model` is one of this library's captioners, `data_collator` has their
            tokenizer.

    Shapes: `reward` scores images · `num_samples` captions of a batch, the samples of one image in a row.

    Raises:
        TypeError: the training data is a stream, whose captions cannot be read beforehand.
        ValueError: an argument is out of range or has no effect, the model takes no `image_index`, there is no
            tokenizer, or an image has no caption.

    Source: Rennie et al. 2017 (greedy). Luo 2020, *A Better Variant of Self-Critical Sequence Training* (leave one
        out, 5 samples). ruotianluo/ImageCaptioning.pytorch, `configs/*_sc.yml`, `*_nsc.yml`: learning rates 1e-5
        (Transformer), 5e-5 (UpDown), 2e-5 (AoANet).

    Example:
        >>> trainer = SelfCriticalTrainer(model, args, baseline="leave_one_out", num_samples=5, data_collator=collator,
        ...                               train_dataset=train)  # doctest: +SKIP
    """

    def __init__(
        self,
        *args: Any,
        baseline: Baseline = "leave_one_out",
        num_samples: int = 5,
        reward: Reward | None = None,
        **kwargs: Any,
    ) -> None:
        _validate_samples(baseline, num_samples)
        self.baseline, self.num_samples, self._given_reward = baseline, num_samples, reward
        self._rewards: list[torch.Tensor] = []
        super().__init__(*args, **kwargs)
        self._validate_self_critical()
        self._captions = _TrainingCaptions(self, reward)

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """The self-critical loss of the batch's images; in evaluation the captions' loss."""
        if not model.training:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if self._captions.data is not self.train_dataset:
            self._captions = _TrainingCaptions(self, self._given_reward)
        rows, index = self._rows_of_batch, inputs.get("image_index")
        if index is not None:  # the first row of each image
            rows = torch.stack([rows[index.cpu() == number][0] for number in range(int(index.max()) + 1)])
        images = {name: inputs[name] for name in inputs if name not in (*TEXT_INPUTS, "image_index")}
        ids, start = self._sample(images)
        kept = _until_end(ids, start, self._end_ids)  # (samples, text)
        rewards = self._advantages(images, rows, ids, kept, start).to(ids.device)
        owner = torch.arange(len(rows), device=ids.device).repeat_interleave(self.num_samples)
        logits = model(input_ids=ids, attention_mask=kept.long(), image_index=owner, **images).logits
        each = functional.cross_entropy(
            logits[:, start - 1 : -1].float().transpose(1, 2), ids[:, start:], reduction="none"
        )  # (samples, tokens)
        counted = kept[:, start:]
        loss = (each * counted * rewards[:, None]).sum() / counted.sum()
        if self.compute_loss_func is not None or (self.model_accepts_loss_kwargs and num_items_in_batch is not None):
            # `Trainer` does not divide the loss by the accumulated batches then.
            loss = loss / self.current_gradient_accumulation_steps
        return loss

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """`CurriculumTrainer.log`, with the samples' mean reward since the last time."""
        if "loss" in logs and self._rewards:
            own = torch.stack(self._rewards).mean().to(self.args.device)
            logs = {**logs, "reward": self.accelerator.reduce(own, reduction="mean").item()}
            self._rewards = []
        super().log(logs, *args, **kwargs)

    def _sample(self, images: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, int]:
        """Captions drawn from the model, int64 (images · num_samples, text), and the length of their prompts."""
        prompt = _PromptLength()
        with preserve_rng_state(), evaluation_model(self):
            torch.manual_seed(self.batch_seed(_SAMPLES))
            ids = generate_predictions(
                self, images, {}, do_sample=True, num_return_sequences=self.num_samples, num_beams=1, top_k=0,
                top_p=1.0, temperature=1.0, suppress_tokens=[], logits_processor=[prompt],
            )  # fmt: skip
        return ids, prompt.length

    def _advantages(
        self, images: Mapping[str, torch.Tensor], rows: torch.Tensor, ids: torch.Tensor, kept: torch.Tensor, start: int
    ) -> torch.Tensor:
        """Each sample's reward less its baseline, float32 (samples,)."""
        number = self.num_samples
        scores = self._captions.scores(ids[:, start:], kept[:, start:], rows.repeat_interleave(number))
        self._rewards.append(torch.tensor(scores.mean(), dtype=torch.float32))
        by_image = scores.reshape(-1, number)
        if self.baseline == "leave_one_out":
            less = (by_image.sum(1, keepdims=True) - by_image) / (number - 1)
        else:
            prompt = _PromptLength()
            with preserve_rng_state(), evaluation_model(self):
                written = generate_predictions(
                    self, images, {}, do_sample=False, num_beams=1, suppress_tokens=[], logits_processor=[prompt]
                )
            ended = _until_end(written, prompt.length, self._end_ids)
            less = self._captions.scores(written[:, prompt.length :], ended[:, prompt.length :], rows)[:, None]
        return torch.from_numpy((by_image - less).reshape(-1)).float()

    @property
    def _end_ids(self) -> list[int]:
        """The tokens that end a caption."""
        end = self.model.generation_config.eos_token_id
        return end if isinstance(end, list) else [end]

    def _validate_self_critical(self) -> None:
        """What the trainer was given takes part in the loss."""
        unused = {
            "label_smoothing_factor": self.args.label_smoothing_factor or None,
            "scheduled_sampling": self.args.scheduled_sampling,
            "compute_loss_func": self.compute_loss_func,
        }
        for name, value in unused.items():
            if value is not None:
                raise ValueError(
                    f"{name}={value} was given to {type(self).__name__}, whose loss is that of the model's own "
                    "samples: it would do nothing. Leave it out."
                )
        model = base_model(self.model)
        if "image_index" not in inspect.signature(model.forward).parameters:
            raise ValueError(
                f"A {type(model).__name__} does not take `image_index`, by which each image would be encoded once for "
                f"its {self.num_samples} samples. Use a captioner of this library."
            )
        if self.model.generation_config.eos_token_id is None:
            raise ValueError(
                f"The generation_config of the {type(model).__name__} has no eos_token_id: no sample would end, and "
                "the end could not be learnt. Set it."
            )


class _TrainingCaptions:
    """The captions of the training images, by which samples are rewarded."""

    def __init__(self, trainer: SelfCriticalTrainer, reward: Reward | None) -> None:
        self.data = trainer.train_dataset
        self.tokenizer = getattr(trainer.data_collator, "tokenizer", None)
        if self.tokenizer is None:
            raise ValueError(
                f"The collator ({type(trainer.data_collator).__name__}) has no `tokenizer`, and samples are rewarded "
                "as words. Use a CaptionCollator."
            )
        self._ends = torch.tensor(trainer._end_ids, dtype=torch.long)
        special, unknown = self.tokenizer.all_special_ids, self.tokenizer.unk_token_id
        self._dropped = torch.tensor([one for one in special if one != unknown], dtype=torch.long)
        column = getattr(trainer.data_collator, "caption_column", CAPTION)
        self.image_of_row, references = _captions_by_image(self.data, column)
        self.reward: Reward = _cider(self._words(references)) if reward is None else reward

    def scores(self, tokens: torch.Tensor, kept: torch.Tensor, rows: torch.Tensor) -> np.ndarray:
        """The rewards of captions as tokens (n, T), of which some are kept, for training rows (n,); float64 (n,)."""
        tokens, kept = tokens.cpu(), kept.cpu()
        words = kept & ~torch.isin(tokens, self._dropped)
        ended = (kept & torch.isin(tokens, self._ends)).any(1).tolist()  # the others were cut off
        texts = self.tokenizer.batch_decode([row[mask].tolist() for row, mask in zip(tokens, words, strict=True)])
        captions = [f"{text} {END}" if end else text for text, end in zip(texts, ended, strict=True)]
        return np.asarray(self.reward.scores(captions, self.image_of_row[rows.cpu().numpy()]), dtype=np.float64)

    def _words(self, references: list[list[str]]) -> list[list[str]]:
        """References as the tokenizer writes them, with rare words unknown, and their end."""
        flat = [text for texts in references for text in texts]
        ids = self.tokenizer(flat, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        written = iter(self.tokenizer.batch_decode(ids))
        return [[f"{next(written)} {END}" for _ in texts] for texts in references]


class _PromptLength(LogitsProcessor):
    """Notes how many tokens come before the first that is generated."""

    def __init__(self) -> None:
        self.length = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.length = self.length or input_ids.shape[1]
        return scores


def _until_end(ids: torch.Tensor, start: int, ends: Sequence[int]) -> torch.Tensor:
    """Which tokens belong to a caption, its prompt and its first end after `start` included; bool, as `ids`."""
    ended = torch.isin(ids, torch.tensor(ends, device=ids.device))
    ended[:, :start] = False
    return (ended.cumsum(1) - ended.long()) == 0


def _captions_by_image(data: Any, column: str) -> tuple[np.ndarray, list[list[str]]]:
    """The image of each row, int64 (rows,), and all captions of each, images numbered as they first appear."""
    if not hasattr(data, "select_columns") or not hasattr(data, "__len__"):
        raise TypeError(
            f"train_dataset is a {type(data).__name__}, and samples are rewarded by all captions of their image, "
            "which are read before training. Pass a datasets.Dataset."
        )
    require_columns(
        data.column_names, [IMAGE_ID, column], reader="Samples are rewarded by all captions of their image.",
        remedy="Name the column with `CaptionCollator(caption_column=)`, and give each image an id.",
    )  # fmt: skip
    validate_image_ids(data)
    rows = data.with_format(None).select_columns([IMAGE_ID, column])[:]
    numbers: dict[Any, int] = {}
    image_of_row = np.array([numbers.setdefault(image_id, len(numbers)) for image_id in rows[IMAGE_ID]])
    references: list[list[str]] = [[] for _ in numbers]
    for number, text in zip(image_of_row.tolist(), rows[column], strict=True):
        references[number] += [text] if text and text.strip() else []
    bare = sum(not texts for texts in references)
    if bare:
        raise ValueError(
            f"{bare:,} of {len(references):,} training images have no caption: their samples could not be rewarded. "
            "Remove such rows with `hf_curriculum.data.captions.drop_empty_captions(dataset)`."
        )
    return image_of_row, references


def _cider(references: list[list[str]]) -> Reward:
    """CIDEr-D with the document frequencies of these images."""
    from hf_curriculum.tasks.captioning.metrics.cider import CiderD

    return CiderD(references)


def _validate_samples(baseline: str, num_samples: int) -> None:
    """There is a baseline, and it needs no more samples than there are."""
    if baseline not in ("greedy", "leave_one_out"):
        raise ValueError(
            f"baseline={baseline!r} is not known: a reward is compared with the reward of the 'greedy' caption, or of "
            "the image's other samples ('leave_one_out')."
        )
    least = 2 if baseline == "leave_one_out" else 1
    if num_samples < least:
        raise ValueError(
            f"num_samples={num_samples} with baseline={baseline!r}: there would be nothing to compare. Give {least} "
            "or more."
        )
