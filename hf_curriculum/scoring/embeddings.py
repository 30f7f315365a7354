"""Embeddings of images as a column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset, DatasetDict, List, Value

from hf_curriculum.columns import IMAGE
from hf_curriculum.config import read_json
from hf_curriculum.data.images import to_rgb
from hf_curriculum.data.objects.per_image import ImageColumns, add_per_image
from hf_curriculum.data.processors import process_image
from hf_curriculum.provenance import ScoreProvenance, installed_versions
from hf_curriculum.scorers.alignment.clip import SCENES_CLIP, OutOfDistributionCheck
from hf_curriculum.scorers.alignment.clip_backends import (
    PREFIX,
    OpenClipTowers,
    crop_thin,
    parse_name,
    weights_digest,
)
from hf_curriculum.scorers.base import Component
from hf_curriculum.scorers.pretrained import folder_digest, load_pretrained
from hf_curriculum.scorers.visual.images import batches_of_one_size

EMBEDDING = "image_embedding"
"""The column of vectors, where `Concreteness` looks for them."""
_SHIPPED = Path(__file__).parents[1] / "models" / SCENES_CLIP


def add_embeddings(
    dataset: Dataset | DatasetDict,
    model: str | Path = SCENES_CLIP,
    *,
    revision: str | None = None,
    batch_size: int = 32,
    image_column: str = IMAGE,
    column: str = EMBEDDING,
    num_proc: int | None = None,
    part_images: int = 128,
    folder: str | Path | None = None,
    load_from_cache_file: bool = True,
    overwrite: bool = False,
    timeout: float = 6 * 3600,
    first_only: bool = False,
) -> Dataset | DatasetDict | None:
    """Adds a column of image embeddings, which `Concreteness.fit` and `CLIPSimilarity(image_embedding=)` read.

    Each image is encoded once for all rows with its `image_id`; nothing is written again. What was encoded is kept in
    parts: a call that was killed goes on where it stopped, and the same call again encodes nothing. Under
    `accelerate launch` or `torchrun` each process encodes its share, and all get the result.

    Args:
        dataset: images with `image_id`; one split or several.
        model: a CLIP or SigLIP, whose image features are taken; any vision tower of `AutoModel` (ResNet, ViT, DINOv2,
            …), whose pooled output is taken, or the mean of its last states where it has none; a model of open_clip
            ("open_clip:ViT-B-32/laion2b_s34b_b79k"); or `SCENES_CLIP`, which ships with the package.
        revision: of a repository.
        batch_size: images that run through the model at once.
        image_column: where the images are.
        column: the column to write.
        num_proc: processes that read and decode images meanwhile; by default this one does.
        part_images: images of a part, which is what a killed call loses.
        folder: where the parts are kept, on a disk that every launched process sees; by default in the cache of
            `datasets`.
        load_from_cache_file: False encodes again, whatever is cached; parts in a `folder` that is named, and those of
            other launched processes, are read all the same.
        overwrite: replace a column that exists, in place of an error.
        timeout: seconds to wait for other launched processes without a new part.
        first_only: only the first launched process waits for the others and returns the data set.

    Returns:
        The data set with the new column last; with `first_only` None in launched processes other than the first.

    Shapes:
        per row a list of float32 (dims,), as the model gives them, not scaled to length 1; null where the image
        cannot be read.

    Raises:
        TypeError: not a data set.
        ValueError: a column is missing or exists already, a `batch_size` below 1, a model that gives no states of an
            image or lacks weights.
        FileNotFoundError: there is no such model.
        ImportError: open_clip is missing.

    Source: Hessel et al. 2018 (concreteness): pooled features of a ResNet-50; Nebbia & Kovashka 2024 (WSOD), §3.

    Example:
        >>> from hf_curriculum.scenes.make import make_scenes
        >>> scenes = make_scenes(4, validation=0, test=0)["train"]
        >>> embedded = add_embeddings(scenes)
        >>> len(embedded[0]["image_embedding"]), embedded.column_names[-1]
        (128, 'image_embedding')
    """
    if batch_size < 1:
        raise ValueError(f"`batch_size` is {batch_size}. It is a number of images, at least 1.")
    return add_per_image(
        dataset,
        _Embeddings(str(model), revision, batch_size, image_column, column),
        num_proc=num_proc,
        part_images=part_images,
        folder=folder,
        load_from_cache_file=load_from_cache_file,
        overwrite=overwrite,
        timeout=timeout,
        first_only=first_only,
    )


class _Embeddings(ImageColumns, Component):
    """Embeddings by a model, which runs in this process; workers make pixels."""

    action = "Embedding images"

    def __init__(self, model: str, revision: str | None, batch_size: int, column: str, name: str) -> None:
        self.model, self.batch_size, self.column, self.name = model, batch_size, column, name
        self.open_clip: bool = model.startswith(PREFIX) or (Path(model) / "open_clip_config.json").exists()
        if self.open_clip and revision is not None:
            raise ValueError(
                f"`revision={revision!r}` was given for {model!r}, a model of open_clip, which has no revisions. "
                "Leave it out."
            )
        self.source = str(_SHIPPED) if model == SCENES_CLIP else model
        own = weights_digest(*parse_name(model, None)) if self.open_clip else folder_digest(self.source)
        self.revision = own if revision is None else revision
        library = ("open_clip_torch", "torchvision") if self.open_clip else ("transformers",)
        self.packages = ("torch", *library, "pillow")
        self.features = {name: List(Value("float32"))}
        self._warned: OutOfDistributionCheck | None = None
        if model == SCENES_CLIP:
            training = read_json(_SHIPPED / "training.json", "Install hf-curriculum again.")
            self._warned = OutOfDistributionCheck(training["knows"])

    @property
    def provenance(self) -> dict[str, ScoreProvenance]:
        made = ScoreProvenance(
            self.name,
            "add_embeddings",
            {"image_column": self.column, "pooled": self.loaded().pooled},
            model=self.model,
            revision=self.revision,
            versions=installed_versions(("hf-curriculum", *self.packages)),
            backend="pil",
        )
        return {self.name: made}

    def load(self, device: torch.device) -> _Encoder:
        if self.open_clip:
            return _OpenClip(OpenClipTowers(*parse_name(self.model, None), device, torch.float32))
        return _Tower(self.source, self.revision, device)

    def find(self, image_id: str, stored: Any) -> np.ndarray:
        return self.loaded().pixels(to_rgb(stored, name=f"The image {image_id!r}"))

    @torch.inference_mode()
    def assemble(self, found: list[Any]) -> dict[str, pa.Array]:
        vectors: list[np.ndarray | None] = [None] * len(found)
        readable = ((torch.from_numpy(pixels), [row]) for row, pixels in enumerate(found) if pixels is not None)
        for batch in batches_of_one_size(readable, self.batch_size):
            pixels = torch.stack([image for _, image in batch])  # (B, 3, height, width)
            if self._warned is not None:
                outside = self._warned.count_images(pixels)
                self._warned.check(outside, len(pixels), "images look unlike the training images")
            encoded = self.loaded().encode(pixels).float().cpu().numpy()  # (B, dims)
            for (row, _), vector in zip(batch, encoded, strict=True):
                vectors[row] = vector
        return {self.name: pa.array(vectors, pa.list_(pa.float32()))}


class _Encoder:
    """A model that embeds images; `pooled` says what is taken."""

    pooled: str

    def pixels(self, image: Any) -> np.ndarray:
        """An RGB image as the model reads it, float32 (3, height, width)."""
        raise NotImplementedError(f"{type(self).__name__} does not define `pixels`.")

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        """(B, 3, height, width) → (B, dims)."""
        raise NotImplementedError(f"{type(self).__name__} does not define `encode`.")


class _OpenClip(_Encoder):
    """The image tower of a model of open_clip."""

    pooled = "image features"

    def __init__(self, towers: OpenClipTowers) -> None:
        self.towers = towers

    def pixels(self, image: Any) -> np.ndarray:
        return self.towers.pixels(image).numpy()

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.towers.encode_image(pixels)


class _Tower(_Encoder):
    """A CLIP or a vision tower of `AutoModel`."""

    def __init__(self, name: str, revision: str | None, device: torch.device) -> None:
        from transformers import AutoImageProcessor, AutoModel

        self.model, report = load_pretrained(AutoModel, name, revision, output_loading_info=True, dtype=torch.float32)
        missing = sorted(report["missing_keys"])
        lost = [key for key in missing if not key.startswith("pooler")]
        if lost:
            raise ValueError(
                f"{name!r} lacks {len(lost)} weights of a {type(self.model).__name__}, such as {lost[0]!r}. They "
                "would stay random, and so would the embeddings. Name a checkpoint that was trained as this model."
            )
        self.processor = load_pretrained(AutoImageProcessor, name, revision, backend="pil")
        self.model.to(device).eval()
        self.crops = bool(getattr(self.processor, "do_center_crop", False))
        random_pooler = bool(missing)
        if hasattr(self.model, "get_image_features"):
            self.pooled = "image features"
        else:
            self.pooled = "mean of the last states" if random_pooler else "pooled output"

    def pixels(self, image: Any) -> np.ndarray:
        return process_image(self.processor, crop_thin(image) if self.crops else image)["pixel_values"].numpy()

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        pixels = pixels.to(self.model.device)
        if self.pooled == "image features":
            return self.model.get_image_features(pixel_values=pixels).pooler_output
        outputs = self.model(pixel_values=pixels)
        pooled = getattr(outputs, "pooler_output", None)
        if pooled is not None and self.pooled == "pooled output":
            return pooled.flatten(1)
        states = getattr(outputs, "last_hidden_state", None)
        if states is None:
            raise ValueError(
                f"{type(self.model).__name__} gives neither a pooled output nor states of an image. Name a CLIP or a "
                "vision tower, such as microsoft/resnet-50."
            )
        return states.flatten(2).mean(2) if states.ndim == 4 else states.mean(1)
