"""The scores of all texts and images of an evaluation set, whose images stay on the process that encoded them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from hf_curriculum.evaluation.retrieval.score_captions import caption_scores
from hf_curriculum.training.contrastive.gather import gather


def score_matrix(trainer: Any, dataloader: Any) -> tuple[np.ndarray, np.ndarray]:
    """Scores of a set's captions with its images, by the keys of a `ContrastiveCollator`."""
    texts, text_keys, images, image_keys = [], [], [], []
    seen: set[int] = set()
    for batch in dataloader:
        batch = trainer._prepare_inputs(batch)
        _require_keys(batch)
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


def _require_keys(batch: Mapping[str, Any]) -> None:
    missing = [name for name in ("image_keys", "text_keys") if name not in batch]
    if missing:
        raise ValueError(
            f"The batch has {sorted(batch)} and no {missing}, by which a caption is told from those of other images. "
            "Use a ContrastiveCollator."
        )
