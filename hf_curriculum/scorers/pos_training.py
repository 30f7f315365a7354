"""Training a token classifier from scratch, and predicting with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from hf_curriculum.scorers.word_pieces import IGNORED, Window, WordPieces, piece_labels

if TYPE_CHECKING:
    from transformers import BertConfig, PreTrainedModel


@dataclass(frozen=True)
class TagTraining:
    """How a tagger is trained; the defaults are the paper's (Saha et al. 2024, released code).

    Args:
        epochs: passes over the sentences.
        learning_rate: Adam's at the start; it falls to 0 in a straight line.
        batch_size: windows of words per step.
        fp16: half precision with loss scaling; needs a CUDA device.
        seed: of the weights, the order of sentences and dropout.

    Raises:
        ValueError: a number that cannot be, or `fp16` without a CUDA device.
    """

    epochs: int = 5
    learning_rate: float = 1e-5
    batch_size: int = 512
    fp16: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "learning_rate", "batch_size"):
            if not getattr(self, name) > 0:
                raise ValueError(f"`{name}` is {getattr(self, name)}. Training needs a number above 0.")
        if self.fp16 and not torch.cuda.is_available():
            raise ValueError("`fp16=True` needs a CUDA device, and there is none. Leave it out to train in float32.")


def train_classifier(
    config: BertConfig,
    pieces: WordPieces,
    sentences: Sequence[Sequence[str]],
    labels: Sequence[Sequence[int]],
    training: TagTraining,
    device: torch.device,
) -> PreTrainedModel:
    """A BERT token classifier, trained from random weights.

    The global random state is left as it was.

    Args:
        config: sizes of the model, with one label per tag.
        pieces: cuts the sentences.
        sentences: words.
        labels: one per word.
        training: epochs, rate, batch, seed.
        device: where to train.
    """
    from transformers import BertForTokenClassification

    windows = pieces.windows(sentences)
    targets = piece_labels(windows, labels)
    steps = training.epochs * -(-len(windows) // training.batch_size)
    order_of = torch.Generator().manual_seed(training.seed)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(training.seed)
        model = BertForTokenClassification(config).to(device).train()
        optimizer = torch.optim.Adam(model.parameters(), lr=training.learning_rate)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
        scaler = torch.amp.GradScaler(device.type, enabled=training.fp16)
        for _ in range(training.epochs):
            order = torch.randperm(len(windows), generator=order_of)
            for chosen in order.split(training.batch_size):
                rows = chosen.tolist()
                ids, mask = pieces.batch([windows[row] for row in rows])
                wanted = torch.full_like(ids, IGNORED)
                for at, row in enumerate(rows):
                    wanted[at, : len(targets[row])] = torch.tensor(targets[row])
                with torch.autocast(device.type, torch.float16, enabled=training.fp16):
                    output = model(input_ids=ids.to(device), attention_mask=mask.to(device), labels=wanted.to(device))
                scaler.scale(output.loss).backward()
                scaler.step(optimizer)
                scaler.update()
                schedule.step()
                optimizer.zero_grad()
    return model.eval()


def predict_labels(
    model: Any, pieces: WordPieces, sentences: Sequence[Sequence[str]], batch_pieces: int
) -> list[list[int]]:
    """The likeliest label of every word.

    Args:
        model: a token classifier on its device.
        pieces: cuts the sentences.
        sentences: words.
        batch_pieces: most pieces, padding included, that run through the model at once.
    """
    windows = pieces.windows(sentences)
    order = sorted(range(len(windows)), key=lambda row: -len(windows[row].ids))
    found: list[list[int]] = [[] for _ in windows]
    start = 0
    while start < len(order):
        rows = order[start : start + max(1, batch_pieces // len(windows[order[start]].ids))]
        chosen: list[Window] = [windows[row] for row in rows]
        ids, mask = pieces.batch(chosen)
        with torch.inference_mode():
            logits = model(input_ids=ids.to(model.device), attention_mask=mask.to(model.device)).logits
        best = logits.argmax(-1).tolist()  # (windows, pieces)
        for at, row in enumerate(rows):
            found[row] = [best[at][place] for place in chosen[at].firsts]
        start += len(rows)
    predicted: list[list[int]] = [[] for _ in sentences]
    for window, labels in zip(windows, found, strict=True):
        predicted[window.sentence] += labels
    return predicted
