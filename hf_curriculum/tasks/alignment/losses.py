"""Contrastive losses of a matrix of scores, pure functions."""

from __future__ import annotations

import torch
from torch.nn import functional

LOSSES = ("image", "text", "sum", "mean", "sigmoid")
"""Names of the losses of `contrastive_loss`."""


def contrastive_loss(scores: torch.Tensor, loss: str = "sum", ignored: torch.Tensor | None = None) -> torch.Tensor:
    """The loss of scores between as many texts as images, where text i belongs to image i.

    Args:
        scores: of each text with each image.
        loss: `"image"`, −log of the share that a text gives its own image among all images (retrieval of images by
            text); `"text"`, of the share that an image gives its own text among all texts; their `"sum"`, as TOnICS,
            or their `"mean"`, as CLIP; `"sigmoid"`, each pair by itself as right or wrong, as SigLIP.
        ignored: pairs that do not count: `false_negatives`.

    Shapes: `scores` (N, N), a row for each text and a column for each image; `ignored` bool (N, N). Returns a scalar,
        float32 or wider.

    Raises:
        ValueError: an unknown loss, scores that are no square, or one pair alone, which has nothing to be told from.

    Source: Srinivasan et al. 2023 (TOnICS) §3, L_IR and L_TR; Radford et al. 2021 (CLIP); Zhai et al. 2023 (SigLIP).

    Example:
        >>> scores = torch.tensor([[2.0, 0.0], [1.0, 3.0]], dtype=torch.float64)
        >>> [round(contrastive_loss(scores, name).item(), 6) for name in ("image", "text", "sum")]
        [0.126928, 0.180925, 0.307853]
    """
    if loss not in LOSSES:
        raise ValueError(f"loss={loss!r} is not known. The losses are {LOSSES}.")
    if scores.ndim != 2 or scores.shape[0] != scores.shape[1]:
        raise ValueError(
            f"The scores have the shape {tuple(scores.shape)}. Text i belongs to image i: pass a square, (N, N)."
        )
    if len(scores) < 2:
        raise ValueError(
            "The batch has one pair alone, so nothing to tell it from: its loss would be 0 whatever the model. Train "
            "with a global batch of 2 or more, and a number of examples that leaves no last batch of one."
        )
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    own = torch.eye(len(scores), dtype=torch.bool, device=scores.device)
    ignored = torch.zeros_like(own) if ignored is None else ignored & ~own
    if loss == "sigmoid":
        each = functional.logsigmoid(torch.where(own, scores, -scores))  # (N, N)
        return -each.masked_fill(ignored, 0).sum() / len(scores)
    scores = scores.masked_fill(ignored, -torch.inf)
    targets = torch.arange(len(scores), device=scores.device)
    parts = {"image": [scores], "text": [scores.T]}.get(loss, [scores, scores.T])
    total = sum(functional.cross_entropy(part, targets) for part in parts)
    return total / 2 if loss == "mean" else total


def false_negatives(image_keys: torch.Tensor, text_keys: torch.Tensor) -> torch.Tensor:
    """Pairs of different rows with the same image or the same caption, which are no wrong pairs.

    Shapes: `image_keys`, `text_keys` int64 (N,), equal where images or captions are. Returns bool (N, N), False on the
        diagonal.

    Example:
        >>> false_negatives(torch.tensor([7, 7, 8]), torch.tensor([1, 2, 3])).nonzero().tolist()
        [[0, 1], [1, 0]]
    """
    same = (image_keys[:, None] == image_keys) | (text_keys[:, None] == text_keys)
    return same.fill_diagonal_(False)
