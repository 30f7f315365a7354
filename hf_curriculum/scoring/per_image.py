"""Columns that are made image by image, such as embeddings."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset, DatasetDict, Image, List, Value
from datasets.features.features import FeatureType
from torch.utils.data import DataLoader
from tqdm.auto import tqdm

from hf_curriculum.columns import IMAGE, IMAGE_ID, require_columns
from hf_curriculum.config import digest
from hf_curriculum.data.grouping import image_codes
from hf_curriculum.data.images import UnreadableImageError, to_rgb
from hf_curriculum.data.processors import process_image
from hf_curriculum.files import own_folder, read_json, sole_writer
from hf_curriculum.parts import PartFolder, data_digest, launched
from hf_curriculum.provenance import (
    ScoreProvenance,
    append_columns,
    installed_versions,
    read_column,
    validate_new_columns,
)
from hf_curriculum.scorers.alignment.clip import SCENES_CLIP, OutOfDistributionCheck
from hf_curriculum.scorers.alignment.clip_backends import PREFIX, OpenClipTowers, crop_thin, parse_name, weights_digest
from hf_curriculum.scorers.base import Component
from hf_curriculum.scorers.pretrained import folder_digest, load_pretrained
from hf_curriculum.scorers.visual.images import batches_of_one_size
from hf_curriculum.shapes import validate_arguments
from hf_curriculum.views import warn_of_transform

logger: logging.Logger = logging.getLogger(__name__)


class ImageColumns:
    """What is found in an image, and the columns that hold it.

    A subclass sets the attributes, and writes `find` and `assemble`.

    Attributes:
        features: written column → its feature.
        provenance: written column → where it comes from, the same in every process.
        column: the column of images, which `find` gets as it is stored.
        stamp: of the files that columns are read from, which makes parts of files that have changed since others;
            None where there are none but the images.
        action: what is done, for the progress bar.
        why_null: why there may be rows with null.
    """

    features: Mapping[str, FeatureType]
    provenance: Mapping[str, ScoreProvenance]
    column: str
    stamp: str | None = None
    action: str = "images"
    why_null: str = "their images cannot be read"

    def find(self, image_id: str, stored: Any) -> Any:
        """What is found in one image, by a worker process; an `UnreadableImageError` where there is no image."""
        raise NotImplementedError(f"{type(self).__name__} does not define `find`.")

    def assemble(self, found: list[Any]) -> dict[str, pa.Array]:
        """Written column → Arrow array (images,), of what `find` returned; None stands for an unreadable image."""
        raise NotImplementedError(f"{type(self).__name__} does not define `assemble`.")

    def reopen(self) -> None:
        """Opens files anew in a worker process: open ones would be read by several processes at one position."""

    def report(self, dataset: Dataset, unreadable: list[str]) -> None:
        """Warns of rows with null, with the first of the reasons that this call met."""
        column = next(iter(self.features))
        lost = read_column(dataset, column).null_count
        if lost:
            first = f" The first: {unreadable[0]}" if unreadable else ""
            logger.warning("`%s`: %d of %d rows have null: %s.%s", column, lost, len(dataset), self.why_null, first)


def add_per_image(
    dataset: Dataset | DatasetDict,
    columns: ImageColumns,
    *,
    num_proc: int | None,
    part_images: int,
    folder: str | Path | None,
    load_from_cache_file: bool,
    overwrite: bool,
    timeout: float,
    first_only: bool,
) -> Dataset | DatasetDict | None:
    """Appends the columns to one split or several: each image is looked at once for all rows with its `image_id`."""
    if part_images < 1 or (num_proc is not None and num_proc < 0):
        raise ValueError(
            f"`part_images={part_images}` and `num_proc={num_proc}` were given. A part has at least 1 image, and "
            "processes are counted from 0, which is this one alone."
        )
    splits = dict(dataset) if isinstance(dataset, DatasetDict) else {"all": dataset}
    warn_of_transform(splits.values())
    for part in splits.values():
        require_columns(
            part.column_names,
            [columns.column, IMAGE_ID],
            reader="Images are looked at, once for all rows of an id.",
            remedy="Pass `image_column=`, or load with `load_captioned`, which gives ids.",
        )
        if not isinstance(part.features[columns.column], Image):
            raise ValueError(
                f"`{columns.column}` holds {part.features[columns.column]}, and images are `datasets.Image`. Load "
                "with `load_captioned`, or cast the column: dataset.cast_column(column, datasets.Image())."
            )
        validate_new_columns(part.column_names, columns.features, overwrite)
    found, rank, added = {}, launched()[0], {}
    share = f"the share of process {rank} in {folder}"
    with nullcontext() if folder is None else sole_writer(share, Path(folder) / f".{rank}.lock"):
        for name, part in splits.items():
            place = None if folder is None else own_folder(Path(folder, name))
            found[name] = _find(part, columns, num_proc or 0, part_images, place, load_from_cache_file)
        if first_only and rank:
            return None
        for name, (parts, codes, unreadable) in found.items():
            added[name] = _append(splits[name], columns, parts, codes, timeout)
            if rank == 0:
                columns.report(added[name], unreadable)
    return DatasetDict(added) if isinstance(dataset, DatasetDict) else added["all"]


def _find(
    dataset: Dataset,
    columns: ImageColumns,
    num_workers: int,
    step: int,
    folder: Path | None,
    load_from_cache_file: bool,
) -> tuple[PartFolder, np.ndarray, list[str]]:
    """Writes this process's parts; with them the image of each row, (rows,), and why images could not be read."""
    codes = image_codes(dataset)
    first = np.unique(codes, return_index=True)[1]
    inputs = dataset.with_format(None).select_columns([columns.column, IMAGE_ID]).select(first)
    inputs = inputs.cast_column(columns.column, Image(decode=False))
    made = {column: provenance.to_dict() for column, provenance in columns.provenance.items()}
    manifest = {"data": data_digest(inputs), "columns": made}
    if columns.stamp is not None:
        manifest["files"] = columns.stamp
    rank, world_size = launched()
    if folder is None:
        key = digest(json.dumps([manifest, step], sort_keys=True), size=12)
        folder = Path(datasets.config.HF_DATASETS_CACHE, "hf_curriculum", "images", key)
        if not load_from_cache_file and world_size == 1:
            shutil.rmtree(folder, ignore_errors=True)
    parts = PartFolder(folder, manifest, len(inputs), step, single_process=world_size == 1)
    own = range(parts.count * rank // world_size, parts.count * (rank + 1) // world_size)
    return parts, codes, _find_missing(parts, own, inputs, columns, num_workers)


def _append(dataset: Dataset, columns: ImageColumns, parts: PartFolder, codes: np.ndarray, timeout: float) -> Dataset:
    """The data set with what all processes found; `codes` (rows,) is the image of each row."""
    found = parts.read_all(timeout) if parts.count else pa.table(columns.assemble([]))
    if parts.rows < len(codes):
        found = found.take(pa.array(codes))
    values = {column: found[column] for column in columns.features}
    return append_columns(dataset, values, columns.provenance, features=columns.features, overwrite=True)


def _find_missing(
    parts: PartFolder, own: range, inputs: Dataset, columns: ImageColumns, num_workers: int
) -> list[str]:
    """Writes those of this process's parts that are missing; why images could not be read."""
    missing, unreadable = parts.missing(own), []
    batches = [list(parts.rows_of(part)) for part in missing]
    # workers of a DataLoader end when this process is killed; each takes a part at a time
    loader = DataLoader(
        _Found(inputs, columns),
        batch_sampler=batches,
        collate_fn=list,
        num_workers=min(num_workers, len(missing)),
        worker_init_fn=_reopen,
        generator=torch.Generator(),  # the caller's is left
    )
    images = sum(map(len, batches))
    with tqdm(total=images, desc=columns.action, unit="image", delay=2, disable=None) as bar:
        for part, found in zip(missing, loader, strict=True):
            for row, one in enumerate(found):
                if isinstance(one, UnreadableImageError):
                    unreadable.append(str(one))
                    found[row] = None
                elif isinstance(one, Exception):
                    raise one
            parts.write(part, columns.assemble(found))
            bar.update(len(found))
            logger.debug("%s: part %d of %d is written.", parts.folder, part + 1, parts.count)
    return unreadable


def _reopen(worker: int) -> None:
    torch.utils.data.get_worker_info().dataset.columns.reopen()


class _Found(torch.utils.data.Dataset):
    """What is found in each image; errors as values, since a DataLoader would wrap them."""

    def __init__(self, inputs: Dataset, columns: ImageColumns) -> None:
        self.inputs, self.columns = inputs, columns

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, row: int) -> Any:
        inputs = self.inputs[row]
        try:
            return self.columns.find(str(inputs[IMAGE_ID]), inputs[self.columns.column])
        except (ValueError, OSError, KeyError) as error:
            return error


EMBEDDING = "image_embedding"
"""The column of vectors, where `Concreteness` looks for them."""
_SHIPPED = Path(__file__).parents[1] / "models" / SCENES_CLIP


@validate_arguments
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
