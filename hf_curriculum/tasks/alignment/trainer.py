"""Contrastive training, across processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.trainer_utils import EvalLoopOutput

from hf_curriculum.provenance import validate_choice
from hf_curriculum.tasks.alignment.encoders import Images, ImageTextEncoders, encoders_of
from hf_curriculum.tasks.alignment.losses import LOSSES, contrastive_loss, false_negatives
from hf_curriculum.tasks.alignment.retrieval.ranks import METRIC_NAMES, retrieval_metrics
from hf_curriculum.tasks.alignment.retrieval.score_captions import caption_scores
from hf_curriculum.training.prediction import base_model, evaluation_model
from hf_curriculum.training.trainer import CurriculumTrainer


def num_processes() -> int:
    """Processes that train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def gather(values: torch.Tensor) -> torch.Tensor:
    """The rows of all processes, those of the first before those of the second; the values themselves on one process.

    Gradients flow back to the process that a row came from, summed over all processes. Where each computes the same
    loss of what was gathered, `DistributedDataParallel`'s mean of the gradients is then that of the whole batch.
    """
    return values if num_processes() == 1 else _Gather.apply(values)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        counts = [torch.empty(1, dtype=torch.int64, device=values.device) for _ in range(num_processes())]
        dist.all_gather(counts, torch.tensor([len(values)], device=values.device))
        ctx.counts = [int(count) for count in counts]
        padded = values.new_zeros(max(ctx.counts), *values.shape[1:])
        padded[: len(values)] = values
        parts = [torch.empty_like(padded) for _ in ctx.counts]
        dist.all_gather(parts, padded)
        return torch.cat([part[:count] for part, count in zip(parts, ctx.counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient.split(ctx.counts)[dist.get_rank()]


def score_matrix(trainer: Any, dataloader: Any) -> tuple[np.ndarray, np.ndarray]:
    """Scores of a set's captions with its images, by the keys of a `ContrastiveCollator`."""
    texts, text_keys, images, image_keys = [], [], [], []
    seen: set[int] = set()
    for batch in dataloader:
        batch = trainer._prepare_inputs(batch)
        _validate_keys(batch)
        keys = torch.stack([batch["image_keys"], batch["text_keys"]], dim=1)  # (rows, 2)
        vectors, keys = trainer.accelerator.gather_for_metrics((trainer.encoders.encode_text(batch).float(), keys))
        texts.append(vectors)
        text_keys.append(keys)
        new = _new_rows(batch["image_keys"].tolist(), seen)
        if new:
            rows = {name: part[new] for name, part in batch.items()}
            images.append(trainer.encoders.encode_images(rows))
            image_keys.append(rows["image_keys"])
        trainer.control = trainer.callback_handler.on_prediction_step(trainer.args, trainer.state, trainer.control)
    queries, keys = torch.cat(texts), torch.cat(text_keys).cpu().numpy()
    columns = torch.cat([trainer.encoders.score(queries, part).float().T for part in images])  # (own images, rows)
    return _by_caption(gather(columns), gather(torch.cat(image_keys)), keys, trainer.noun_scores)


def _by_caption(
    columns: torch.Tensor, image_keys: torch.Tensor, keys: np.ndarray, noun_scores: str
) -> tuple[np.ndarray, np.ndarray]:
    """A row for each distinct caption of an image, a column for each distinct image."""
    _, first = np.unique(image_keys.cpu().numpy(), return_index=True)
    first.sort()  # in the order of the set, not of the keys
    place = {key: row for row, key in enumerate(image_keys.cpu().numpy()[first].tolist())}
    pairs: dict[tuple[int, int], int] = {}
    caption = np.array([pairs.setdefault((image, text), len(pairs)) for image, text in keys.tolist()])
    scores = columns.cpu().numpy()[first].T  # (rows, images)
    if not np.isfinite(scores).all():
        raise ValueError(
            f"{np.count_nonzero(~np.isfinite(scores)):,} of {scores.size:,} scores of the evaluation set are not "
            "finite, so nothing can be ranked by them. Training has diverged, or features are not finite: lower the "
            "learning rate, and add StopWhenDiverged()."
        )
    order = np.argsort(caption, kind="stable")
    merged = caption_scores(scores[order], caption[order], noun_scores)
    return merged, np.array([place[image] for image, _ in pairs])


def _new_rows(keys: list[int], seen: set[int]) -> list[int]:
    """Rows of images that were not seen before, which then are."""
    rows = [row for row, key in enumerate(keys) if key not in seen and keys.index(key) == row]
    seen.update(keys)
    return rows


def _validate_keys(batch: Mapping[str, Any]) -> None:
    missing = [name for name in ("image_keys", "text_keys") if name not in batch]
    if missing:
        raise ValueError(
            f"The batch has {sorted(batch)} and no {missing}, which identify a caption's own image. "
            "Use a ContrastiveCollator."
        )


_KEYS = ("image_keys", "text_keys")


class ContrastiveTrainer(CurriculumTrainer):
    """Trains models that score images with texts by a contrastive loss, under any curriculum.

    The loss covers the whole batch on any number of processes: every text is scored with every image. All processes
    get the text vectors, score them with their own images, and exchange the scores; images are never sent.
    `CLIPModel`'s own loss, and any loss inside a `forward`, sees the pairs of one process alone: more processes then
    mean fewer wrong pairs per step.

    `evaluate()` gives retrieval among all images and captions of a set: `eval_image_r1`, `eval_text_r1`, …. With
    `eval_dataset={"heldout": data}` these are `eval_heldout_image_r1`, …, for
    `NodeSampling(metric="heldout_image_r1")`. A caption in several rows, one per noun, counts once. `predict()` also
    gives the scores.

    Args:
        *args: of `CurriculumTrainer`. `model` is an `AlignerModel`, a CLIP or SigLIP of `transformers`, or a model of
            `open_clip`, with adapters of PEFT or without; `data_collator` is a `ContrastiveCollator`.
        loss: one of `LOSSES`, see `contrastive_loss`; None: the model's own, `"sum"` for an aligner, `"mean"` for a
            CLIP, `"sigmoid"` for a SigLIP. The temperature is the model's `logit_scale`, trained if it requires a
            gradient.
        mask_false_negatives: leaves wrong pairs with the same image or caption as a right one out of the loss. False:
            as the paper.
        chunk_size: rows that are encoded, and texts that are scored, at a time. The backward pass computes their
            activations again, under the same random state, so memory grows with the chunk, not the batch; gradients
            are the same. None: all at once.
        noun_scores: of a caption in several rows of an evaluation set, the `"mean"` or the `"max"` of its nouns'.
        **kwargs: of `CurriculumTrainer`.

    Shapes and units: a batch of `ContrastiveCollator`; recalls from 0 to 1, ranks from 1. `predict()` returns scores
        float32 (texts, images) as `predictions`, and the row of each text's image int64 (texts,) as `label_ids`.

    Raises:
        TypeError: a model that does not encode texts and images separately.
        ValueError: an argument out of range or without effect, gradient accumulation, a batch of one, several devices
            in one process, FSDP or DeepSpeed. Or a batch without keys of its images and captions, or scores that are
            not finite.

    Source: Srinivasan, Ren & Thomason 2023 (TOnICS) §3 and §4.2; Gao et al. 2021, *Scaling Deep Contrastive Learning
        Batch Size under Memory Limited Setup* (gradients by chunks).

    Example:
        >>> trainer = ContrastiveTrainer(model, args, train_dataset=train, eval_dataset={"heldout": held},
        ...                              data_collator=ContrastiveCollator(tokenizer, inputs))  # doctest: +SKIP
    """

    loss_is_scaled_for_ga = False

    def __init__(
        self,
        *args: Any,
        loss: str | None = None,
        mask_false_negatives: bool = True,
        chunk_size: int | None = None,
        noun_scores: str = "mean",
        **kwargs: Any,
    ) -> None:
        _validate_options(loss, chunk_size, noun_scores)
        self.mask_false_negatives, self.chunk_size, self.noun_scores = mask_false_negatives, chunk_size, noun_scores
        self.contrastive_loss = loss
        self._encoders: ImageTextEncoders | None = None
        super().__init__(*args, **kwargs)
        if loss is None:
            self.contrastive_loss = self.encoders.loss
        self._validate_contrastive()

    @property
    def encoders(self) -> ImageTextEncoders:
        """The encoders of the model, as it is now."""
        model = base_model(self.model)
        if self._encoders is None or self._encoders.model is not model:
            self._encoders = encoders_of(model)
            if self.args.torch_compile:
                options = {"backend": self.args.torch_compile_backend, "mode": self.args.torch_compile_mode}
                for name in ("encode_text", "encode_images", "score"):
                    setattr(self._encoders, name, torch.compile(getattr(self._encoders, name), **options))
        return self._encoders

    def compute_loss(
        self,
        model: Any,
        inputs: Mapping[str, torch.Tensor],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor:
        """The contrastive loss of the batches of all processes together, a scalar."""
        if return_outputs:
            raise ValueError(
                "compute_loss(return_outputs=True) was asked for, and the outputs of a contrastive batch are spread "
                "over processes. Call the model itself, or `predict()`."
            )
        # A compiled model would be compiled for each step's `forward`: the encoders are instead.
        wrapped = getattr(model, "_orig_mod", model)
        with redirected_forward(self.accelerator.unwrap_model(wrapped), self._whole_loss):
            return wrapped(**inputs)

    def _whole_loss(self, **batch: torch.Tensor) -> torch.Tensor:
        """The loss of all processes' pairs, of which this one has encoded its own."""
        missing = [name for name in _KEYS if name not in batch]
        if self.mask_false_negatives and missing:
            raise ValueError(
                f"The batch has {sorted(batch)} and no {missing}, by which false negatives are found. Use a "
                "ContrastiveCollator, or pass mask_false_negatives=False."
            )
        with self.accelerator.autocast():
            encoders = self.encoders
            texts = gather(_in_chunks(encoders.encode_text, batch, self.chunk_size))  # (texts, width)
            images = _in_chunks(encoders.encode_images, batch, self.chunk_size)
            scores = encoders.score(texts, images, self.chunk_size)  # (texts, own images)
        scores = gather(scores.T.float().contiguous()).T  # (texts, images)
        ignored = None
        if self.mask_false_negatives:
            ignored = false_negatives(*(gather(batch[name]) for name in _KEYS))
        return contrastive_loss(scores, self.contrastive_loss, ignored)

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Retrieval among all images and captions of a set, the same on every process."""
        self.callback_handler.eval_dataloader = dataloader
        with evaluation_model(self):
            scores, image_of_text = score_matrix(self, dataloader)
        metrics = retrieval_metrics(scores, image_of_text)
        named = {f"{metric_key_prefix}_{name}": value for name, value in metrics.items()}
        return EvalLoopOutput(predictions=scores, label_ids=image_of_text, metrics=named, num_samples=len(scores))

    def metric_names(self, name: str | None) -> tuple[str, ...]:
        """The names of `evaluate()`'s metrics for a set, without its prefix."""
        return METRIC_NAMES

    def _validate_contrastive(self) -> None:
        """What was given takes part in the loss, and every wrong pair of a batch in it."""
        self.encoders  # noqa: B018 - for its error
        args = self.args
        if args.gradient_accumulation_steps > 1:
            raise ValueError(
                f"gradient_accumulation_steps={args.gradient_accumulation_steps} would make so many small batches of "
                "one, whose pairs are not compared with each other: fewer wrong pairs, silently. Leave it at 1 with "
                "the whole batch in per_device_train_batch_size, and pass chunk_size= to ContrastiveTrainer, which "
                "bounds the memory and compares all of them."
            )
        if args.n_gpu > 1:
            raise ValueError(
                f"One process has {args.n_gpu} devices, among which DataParallel would split each batch. Launch one "
                "process per device (torchrun, accelerate launch)."
            )
        sharded = {"FSDP": self.is_fsdp_enabled, "DeepSpeed": self.is_deepspeed_enabled}
        for name, used in sharded.items():
            if used:
                raise ValueError(
                    f"{name} shards the weights, which it gathers for `forward` alone; the encoders are called by "
                    "themselves here. Launch without it (DistributedDataParallel), and pass chunk_size= to bound "
                    "memory."
                )
        if args.train_batch_size * args.world_size < 2:
            raise ValueError(
                "The batch is one pair, which has no wrong pairs: its loss is 0 whatever the model. Set "
                "per_device_train_batch_size or global_batch_size to 2 or more."
            )
        if args.dataloader_drop_last:
            raise ValueError(
                "dataloader_drop_last=True would leave the last images of an evaluation set out of what is retrieved, "
                "and recalls would rise. Leave it out: every training batch is full without it."
            )
        unused = {
            "compute_metrics": self.compute_metrics,
            "compute_loss_func": self.compute_loss_func,
            "label_smoothing_factor": args.label_smoothing_factor or None,
        }
        for name, value in unused.items():
            if value is not None:
                raise ValueError(
                    f"{name}={value} was given to {type(self).__name__}, which trains by a contrastive loss and "
                    "evaluates retrieval: it would do nothing. Leave it out."
                )
        _validate_padding(base_model(self.model), self.data_collator)


@contextmanager
def redirected_forward(model: nn.Module, function: Callable[..., torch.Tensor]) -> Iterator[None]:
    """While it lasts a call of the model, or of what wraps it for several processes, is one of `function`.

    `DistributedDataParallel` averages the gradients of what its own `forward` returns.
    """
    own = vars(model).get("forward")
    model.forward = function
    try:
        yield
    finally:
        if own is None:
            del model.forward
        else:
            model.forward = own


def _in_chunks(
    encode: Callable[[Mapping[str, torch.Tensor]], Any], batch: Mapping[str, torch.Tensor], chunk_size: int | None
) -> Any:
    """What an encoder makes of a batch, of so many rows at a time, computed once more on the way back."""
    rows = len(batch["input_ids"])
    if chunk_size is None or chunk_size >= rows:
        return encode(batch)
    chunks = [
        {name: part[start : start + chunk_size] for name, part in batch.items()}
        for start in range(0, rows, chunk_size)
    ]
    return _joined([checkpoint(encode, chunk, use_reentrant=False) for chunk in chunks])


def _joined(parts: list[Images]) -> Images:
    """Encoded rows as one batch."""
    if isinstance(parts[0], torch.Tensor):
        return torch.cat(parts)
    return type(parts[0])(*(torch.cat(part) for part in zip(*parts, strict=True)))


def _validate_options(loss: str | None, chunk_size: int | None, noun_scores: str) -> None:
    """Options that stand for themselves."""
    if loss not in (None, *LOSSES):
        raise ValueError(f"loss={loss!r} is not known. The losses are {LOSSES}; None is the model's own.")
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"chunk_size={chunk_size} encodes nothing. Pass 1 or more, or None for all at once.")
    validate_choice("noun_scores", noun_scores, ("mean", "max"))


def _validate_padding(model: nn.Module, collator: Any) -> None:
    """A SigLIP reads the last token, so all its texts have one length."""
    kind = getattr(getattr(model, "config", None), "model_type", "")
    if kind.startswith("siglip") and not getattr(collator, "pad_to_max_length", True):
        raise ValueError(
            f"A {type(model).__name__} reads the last token of a text, and the collator pads each batch to its own "
            "longest: a caption's vector would depend on the others in its batch. Pass "
            "ContrastiveCollator(pad_to_max_length=True, max_length=64)."
        )
