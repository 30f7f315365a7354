"""How near an image is to the images of the tasks that a model is trained for."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from hf_curriculum.columns import IMAGE, IMAGE_ID, require_columns
from hf_curriculum.config import digest
from hf_curriculum.files import read_array
from hf_curriculum.provenance import validate_choice
from hf_curriculum.scorers.alignment.clip import SCENES_CLIP, CLIPSimilarity, given_vectors
from hf_curriculum.scorers.base import Aggregate, ImageScorer, scatter
from hf_curriculum.scorers.pretrained import Precision, one_thread_in_workers

if TYPE_CHECKING:
    from datasets import Dataset

logger: logging.Logger = logging.getLogger(__name__)

_MOST = 1 << 22  # cosines held at a time: 16 MB


class NormSim(ImageScorer):
    """Norm of an image's cosines with images of target tasks: how close it is to them.

    With v the unit vector of an image and u_t those of the targets, the score is ‖(u_t · v)_t‖_p. For p = 2 it is (Σ_t
    (u_t · v)²)^(1/2), which grows with the number of targets, for p = ∞ the greatest |u_t · v|. Captions are not read.
    For p = 2 a row takes D² operations however many targets there are, for p = ∞ one product with each target.

    Args:
        targets: vectors of images of the downstream tasks, such as their training splits, by the same model as the
            images'. An array (targets, D), an .npy file, or a data set with their column from `add_embeddings`, named
            as in `image_embedding` or, without one, "image_embedding".
        p: 2 or "inf".
        model: a CLIP, as in `CLIPSimilarity`, that encodes the images. If their embeddings are in the data, the model
            they came from.
        backend, pretrained, revision: as in `CLIPSimilarity`.
        batch_size: images that run through the model at once.
        dtype: as in `CLIPSimilarity`.
        image_column: where the images are, one or a list of them in a row.
        image_embedding: a column with the images' embeddings (a list of numbers per row), read instead of images.
        name: the column to write.
        easy: a high score is easy by default: the paper keeps the highest.
        aggregate: of a row with a list of images, the "mean", "max" or "min" of their scores.

    Attributes:
        vectors: the targets, float32 (targets, D) of length 1; for p = 2 their second moments, (D, D).

    Shapes:
        float32 (rows,), from 0 to 1, or for p = 2 to √targets. NaN for an image that cannot be decoded, a list with
        such an image or with none, and an embedding that is missing, zero or not finite.

    Raises:
        FileNotFoundError: there is no such file or model.
        ValueError: no target, targets whose lengths differ among themselves or from the images' vectors, another `p`,
            a file that is not an array (targets, D); as `CLIPSimilarity`.
        TypeError: targets or an embedding that are not lists of numbers.

    Source: Wang et al. 2024, *CLIPLoss and Norm-Based Data Selection Methods for Multimodal Contrastive Learning*,
        NormSim. Its released code keeps, of the best 30 % by `NegCLIPLoss`, the best by NormSim_∞, 20 % of all.

    Example:
        >>> scorer = NormSim([[2.0, 0.0], [0.0, 3.0]], p=2, image_embedding="v")
        >>> scorer({"v": [[3.0, 4.0], None]})
        {'norm_sim': array([ 1., nan], dtype=float32)}
        >>> NormSim([[2.0, 0.0], [0.0, 3.0]], image_embedding="v")({"v": [[3.0, -4.0]]})
        {'norm_sim': array([0.8], dtype=float32)}
    """

    easy = "high"

    def __init__(
        self,
        targets: str | Path | np.ndarray | Sequence[Sequence[float]] | Dataset,
        p: Literal[2, "inf"] | float = "inf",
        *,
        model: str = SCENES_CLIP,
        backend: Literal["transformers", "open_clip"] | None = None,
        pretrained: str | None = None,
        revision: str | None = None,
        batch_size: int = 32,
        dtype: Precision = "float32",
        image_column: str = IMAGE,
        image_embedding: str | None = None,
        name: str = "norm_sim",
        easy: Literal["low", "high"] = "high",
        aggregate: Aggregate = "mean",
    ) -> None:
        self.p: Literal[2, "inf"] | float = "inf" if p == math.inf else p
        validate_choice("p", self.p, (2, "inf"))
        self.image_column, self.image_embedding = image_column, image_embedding
        self.pretrained, self.batch_size, self.dtype = pretrained, batch_size, dtype
        if image_embedding is None:
            self.clip: CLIPSimilarity | None = CLIPSimilarity(
                model,
                backend=backend,
                pretrained=pretrained,
                revision=revision,
                batch_size=batch_size,
                dtype=dtype,
                image_column=image_column,
                name=name,
            )
            self.model, backend, revision = self.clip.model, self.clip.backend, self.clip.revision
            self.packages: tuple[str, ...] = self.clip.packages
            self.group_by = IMAGE_ID
            self._set_columns((image_column,), name, easy, decode_false=(image_column,))
        else:
            self.clip = None
            self.model = None if model == SCENES_CLIP else model  # the model of the embeddings is not given
            self.numpy_columns = (image_embedding,)
            self._set_columns((image_embedding,), name, easy)
        self.backend, self.revision = backend, revision
        self._set_aggregate(aggregate)
        self.targets: dict[str, Any]
        self.targets, self.vectors = self._read_targets(targets)

    def _read_targets(self, targets: Any) -> tuple[dict[str, Any], np.ndarray]:
        """What the provenance says of the targets, and what is compared with."""
        from datasets import Dataset

        source = None
        if isinstance(targets, Dataset):
            column = self.image_embedding or "image_embedding"
            require_columns(
                targets.column_names,
                [column],
                reader="`NormSim` compares with the vectors of these targets.",
                remedy="Make them by `add_embeddings(targets, model)`, with the model of the images.",
            )
            targets = targets.with_format("numpy", columns=[column])[:][column]
        elif isinstance(targets, (str, Path)):
            source = str(targets)
            if not Path(targets).is_file():
                raise FileNotFoundError(
                    f"There is no file {source!r}, and `targets` is an .npy file with a vector per row, an array or a "
                    "data set with vectors."
                )
            targets = read_array(targets, "`targets` is an .npy file of numbers, a vector per row.")
        rows = list(targets)
        vectors = given_vectors(rows, "targets").vectors
        if not len(vectors):
            raise ValueError(
                f"None of the {len(rows)} vectors of `targets` has a direction: they are missing, zero or not finite, "
                "so there is nothing that an image could be near to. Give vectors of images of the target tasks."
            )
        if len(vectors) < len(rows):
            left = len(rows) - len(vectors)
            logger.warning("NormSim: %d of %d targets are missing, zero or not finite: left out.", left, len(rows))
        known = {"vectors": len(vectors), "width": vectors.shape[1], "digest": digest(vectors)}
        if self.p == 2:  # Σ_t (u_t · v)² = vᵀ (Σ_t u_t u_tᵀ) v
            vectors = (vectors.T.astype(np.float64) @ vectors).astype(np.float32)  # (D, D)
        return known if source is None else {"file": source, **known}, vectors

    def load(self, device: torch.device) -> torch.Tensor:
        one_thread_in_workers()
        return torch.from_numpy(self.vectors).to(device)

    def score(self, batch: dict[str, list[Any]], rank: int | None) -> np.ndarray:
        column = self.columns[0]
        if self.clip is None:
            images = given_vectors(batch[column], column)
        else:
            present = np.array([cell is not None for cell in batch[column]], bool)
            images = self.clip.read_vectors(batch, present, rank)
        wanted = images.index >= 0
        if not wanted.any():
            return scatter([], wanted)
        width = images.vectors.shape[1]
        if width != self.targets["width"]:
            raise ValueError(
                f"The vectors of `{column}` have {width} numbers and the targets {self.targets['width']}: they are of "
                "two models. Make both by the same one."
            )
        return scatter(self._norms(images.vectors, rank)[images.index[wanted]], wanted)

    @torch.inference_mode()
    def _norms(self, images: np.ndarray, rank: int | None) -> np.ndarray:
        """The norm of each image's cosines: (images, D), of length 1 → (images,)."""
        targets = self.loaded(rank)
        own, found = torch.from_numpy(images).to(targets.device), []
        for part in own.split(max(256, _MOST // len(targets))):
            products = part @ targets.T  # (rows, targets), or (rows, D)
            if self.p == 2:
                found.append((products * part).sum(1).clamp_(min=0).sqrt_())
            else:
                found.append(torch.maximum(products.amax(1), -products.amin(1)))
        return torch.cat(found).cpu().numpy()
