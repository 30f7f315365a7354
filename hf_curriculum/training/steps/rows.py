"""Some rows of a collated batch, as if the others had never been in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from hf_curriculum.data.joint_text import BESIDE
from hf_curriculum.training.prediction import TEXT_INPUTS

IMAGE_INDEX, EXAMPLE_INDEX = "image_index", "example_index"
_MASK = "attention_mask"
_BY_ROW = (*TEXT_INPUTS, IMAGE_INDEX, EXAMPLE_INDEX)


def select_rows(batch: Mapping[str, Any], rows: np.ndarray, *, size: int, multiple: int = 1) -> dict[str, Any]:
    """The rows with these numbers, in this order, without the padding and the images that they do not need.

    Args:
        batch: of a collator: tensors and lists with an entry for each row; where there is `image_index`, with one for
            each image; and what is the same for all rows, such as a flag.
        rows: numbers of rows, int64, shape (kept,).
        size: rows of the batch.
        multiple: what the collator pads texts to a multiple of.

    Raises:
        ValueError: a tensor or list of the batch is neither by row nor by image.

    Example:
        >>> batch = {"input_ids": torch.tensor([[5, 6], [8, 0]]), "attention_mask": torch.tensor([[1, 1], [1, 0]])}
        >>> select_rows(batch, np.array([1]), size=2)["input_ids"].tolist()
        [[8]]
    """
    index, images, found = batch.get(IMAGE_INDEX), np.empty(0, np.int64), {}
    if index is not None:
        numbers, firsts, places = np.unique(index.cpu().numpy()[rows], return_index=True, return_inverse=True)
        order = np.argsort(firsts)  # images in the order of the rows that have them
        images, num_images = numbers[order], int(index.max()) + 1
        new_index = torch.from_numpy(np.argsort(order)[places]).to(index)
    for name, value in batch.items():
        if name == IMAGE_INDEX:
            found[name] = new_index
        elif index is not None and is_image(name) and _length(value) == num_images:
            found[name] = _taken(value, images)
        elif _length(value) in (None, size):
            found[name] = _taken(value, rows)
        else:
            raise ValueError(
                f"`{name}` of the collator's batch has {_length(value)} entries for {size} rows, so what belongs to "
                "the chosen candidates cannot be cut out of it. Let the collator return what has one entry per row "
                f"(with `{IMAGE_INDEX}`, per image), or train without OnlineSelection."
            )
    for name in [name for name in batch if name.endswith(_MASK)]:
        _trim(found, batch[name], name, multiple)
    return found


def is_image(name: str) -> bool:
    """Whether an input of a model is of the image: it is neither text nor a number of the row."""
    return name not in _BY_ROW and not name.startswith(BESIDE)


def _length(value: Any) -> int | None:
    """The entries of a tensor, array or list; None for what is the same for all rows."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return len(value) if value.ndim else None
    return len(value) if isinstance(value, Sequence) and not isinstance(value, str) else None


def _taken(value: Any, rows: np.ndarray) -> Any:
    if _length(value) is None:
        return value
    if isinstance(value, torch.Tensor):
        return value[torch.from_numpy(rows).to(value.device)]
    return value[rows] if isinstance(value, np.ndarray) else type(value)([value[row] for row in rows.tolist()])


def _trim(found: dict[str, Any], before: torch.Tensor, name: str, multiple: int) -> None:
    """Cuts padding off the texts that a mask is of, where the batch was padded to its longest text."""
    mask = found[name]
    if mask.ndim != 2 or not before.any(0).all():  # a collator that pads to a fixed length
        return
    used = mask.any(0).nonzero().flatten()  # columns with a token
    if not len(used):
        return
    first, stop = int(used[0]), int(used[-1]) + 1
    stop = min(mask.shape[1], first + -(-(stop - first) // multiple) * multiple)
    prefix = name.removesuffix(_MASK)
    for other in TEXT_INPUTS:
        value = found.get(prefix + other)
        if isinstance(value, torch.Tensor) and value.shape[:2] == mask.shape:
            found[prefix + other] = value[:, first:stop]
