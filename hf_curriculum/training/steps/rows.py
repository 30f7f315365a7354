"""Some rows of a collated batch, as if the others had never been in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from hf_curriculum.data.collators import IGNORED
from hf_curriculum.data.joint_text import BESIDE
from hf_curriculum.training.prediction import TEXT_INPUTS

IMAGE_INDEX, EXAMPLE_INDEX = "image_index", "example_index"
_MASK, _REGION_MASK, _DECODER = "attention_mask", "region_mask", "decoder_"
_GRID = "image_grid_thw"
_BY_ROW = (*TEXT_INPUTS, IMAGE_INDEX, EXAMPLE_INDEX)


def select_rows(batch: Mapping[str, Any], rows: np.ndarray, *, size: int, multiple: int = 1) -> dict[str, Any]:
    """The rows with these numbers, in this order, without the padding and the images that they do not need."""
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
        elif name == "pixel_values" and _has_one_image_each(batch, size):
            patches = value.split(batch[_GRID].prod(1).tolist())
            found[name] = torch.cat([patches[row] for row in rows.tolist()])
        elif _length(value) in (None, size):
            found[name] = _taken(value, rows)
        else:
            raise ValueError(
                f"`{name}` of the collator's batch has {_length(value)} entries for {size} rows, so what belongs to "
                "the chosen candidates cannot be cut out of it. Let the collator return what has one entry per row "
                f"(with `{IMAGE_INDEX}`, per image; packed `pixel_values`: one image per row), or train by the "
                "curriculum that OnlineSelection draws by (its then=)."
            )
    for name in [name for name in batch if name.endswith(_MASK)]:
        prefix = name.removesuffix(_MASK)
        _trim(found, batch[name] != 0, found[name] != 0, [prefix + one for one in TEXT_INPUTS], multiple)
    if _REGION_MASK in batch:
        regions = [name for name in batch if name.startswith("region_")]
        _trim(found, batch[_REGION_MASK] != 0, found[_REGION_MASK] != 0, regions, 1)
    labels = batch.get("labels")
    if isinstance(labels, torch.Tensor) and not set(TEXT_INPUTS) & (set(batch) - {"labels"}):  # of an encoder–decoder
        _trim(found, labels != IGNORED, found["labels"] != IGNORED, ["labels"], multiple)
    return found


def _has_one_image_each(batch: Mapping[str, Any], size: int) -> bool:
    """Whether `pixel_values` holds patches of all rows, one image's after the other, and each row has one image."""
    grid, kinds = batch.get(_GRID), batch.get("mm_token_type_ids")
    if grid is None or kinds is None or len(grid) != size:
        return False
    patches, places = grid.prod(1), (kinds == 1).sum(1)  # (rows,); a place is as many patches in every row
    return bool((patches * places.sum() == places * patches.sum()).all())


def is_image(name: str) -> bool:
    """Whether an input of a model is of the image: it is neither text nor a number of the row."""
    return name not in _BY_ROW and not name.startswith((BESIDE, _DECODER))


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


def _trim(found: dict[str, Any], before: torch.Tensor, now: torch.Tensor, names: Sequence[str], multiple: int) -> None:
    """Cuts off these entries what is padding in all rows `now`, where the batch was padded to its longest row."""
    if now.ndim != 2 or not now.any():
        return
    width, (first, stop) = now.shape[1], _span(now)
    if _rounded(*_span(before), multiple) != width:  # a collator that pads to a fixed length
        return
    kept = min(width, _rounded(first, stop, multiple))
    first = min(first, width - kept)
    outside = torch.ones(width, dtype=torch.bool)
    outside[first : first + kept] = False
    for name in names:
        value = found.get(name)
        if not isinstance(value, torch.Tensor) or value.shape[:2] != now.shape:
            continue
        if not name.endswith("labels") or _belongs(value, found, name, outside):
            found[name] = value[:, first : first + kept].contiguous()  # models call labels.view(-1)


def _span(mask: torch.Tensor) -> tuple[int, int]:
    """The first column with an entry, and the end of the last."""
    used = mask.any(0).nonzero().flatten()
    return int(used[0]), int(used[-1]) + 1


def _rounded(first: int, stop: int, multiple: int) -> int:
    return -(-(stop - first) // multiple) * multiple


def _belongs(labels: torch.Tensor, found: Mapping[str, Any], name: str, outside: torch.Tensor) -> bool:
    """Whether labels are of the text that is cut, and not of a decoder's that happens to be as long."""
    prefix = name.removesuffix("labels")
    if f"{prefix}decoder_input_ids" in found:
        return False
    ids = found.get(f"{prefix}input_ids")
    same = isinstance(ids, torch.Tensor) and ids.shape == labels.shape and bool(((labels == ids) | (labels < 0)).all())
    return same or bool((labels[:, outside.to(labels.device)] == IGNORED).all())
