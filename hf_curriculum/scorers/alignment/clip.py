"""How well image and caption match, by the cosine of a CLIP's two embeddings."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
import torch.nn.functional as F

from hf_curriculum.columns import CAPTION, IMAGE, IMAGE_ID
from hf_curriculum.config import at_least
from hf_curriculum.data.conversations import Part, Turns
from hf_curriculum.data.images import to_rgb
from hf_curriculum.files import read_json
from hf_curriculum.provenance import ScoreProvenance, validate_choice
from hf_curriculum.scorers.alignment.clip_backends import (
    PREFIX,
    OpenClipTowers,
    Towers,
    TransformersTowers,
    parse_name,
    weights_digest,
)
from hf_curriculum.scorers.base import Aggregate, ImageScorer, scatter
from hf_curriculum.scorers.pretrained import Precision, folder_digest, one_thread_in_workers, report_truncated
from hf_curriculum.scorers.visual.images import open_image, read_images
from hf_curriculum.words import words_of

logger: logging.Logger = logging.getLogger(__name__)

SCENES_CLIP = "scenes_clip"
"""The model that ships with the package, trained on the embedded scenes only."""
SHIPPED = Path(__file__).parents[2] / "models" / SCENES_CLIP


class _Loaded(NamedTuple):
    """A model on its device, whether text may be padded to the longest of a batch, and the shipped model's check."""

    towers: Towers
    trim: bool
    check: OutOfDistributionCheck | None


class Vectors(NamedTuple):
    """Vectors (k, D) of length 1, float32, and the vector of each row, int64 (rows,), -1 for none."""

    vectors: np.ndarray
    index: np.ndarray


class CLIPSimilarity(ImageScorer):
    """Cosine of image and caption in the embedding space of a CLIP, neither scaled nor clipped at zero.

    Each image of a batch is encoded once for all rows that share its `image_id`, and each distinct caption once.
    Captions are sorted by length and a batch is padded to its longest, if a test at loading shows that this does not
    change the embeddings. SigLIP, whose text tower reads padding too, gets the whole context.

    The shipped model was trained on `make_scenes` only. It warns of images or captions that are out of distribution,
    and the provenance of its scores names it.

    Args:
        model: `SCENES_CLIP` (the shipped one), a folder or a repository of the Hub with a CLIP or SigLIP of
            `transformers` ("openai/clip-vit-base-patch32"), or a model of `open_clip`
            ("open_clip:ViT-B-32/laion2b_s34b_b79k", "open_clip:hf-hub:…", "open_clip:local-dir:…"). Nothing is
            downloaded unless it is named here. If both embeddings are in the data, the model they came from.
        backend: "transformers" or "open_clip"; by default read from `model`.
        pretrained: the weights of an `open_clip` architecture, a tag or a file, if `model` does not name them.
        revision: of a repository of `transformers`.
        batch_size: images, or captions, that run through a tower at once.
        dtype: of weights and activations, "float32", "float16" or "bfloat16"; cosines are taken in float32.
        image_column: where the images are, one or a list of them in a row.
        caption_column: where the captions or conversations are, truncated to the model's context, which is reported.
        image_embedding: a column with the images' embeddings (a list of numbers per row), read instead of images.
        text_embedding: a column with the captions' embeddings, read instead of captions.
        name: the column to write.
        easy: a high cosine is easy by default.
        part, turns: whose messages of a conversation are scored, and which of them: see `CaptionScorer`.
        aggregate: of a row with a list of images, the "mean", "max" or "min" of their scores.

    Shapes:
        float32 (rows,), from -1 to 1. NaN for a caption that is missing, empty or blank, an image that cannot be
        decoded, a list with such an image or with none. Also for an embedding that is missing, zero or not finite.

    Raises:
        FileNotFoundError: there is no such model.
        ImportError: `open_clip` is not installed.
        ValueError: an option out of range, options that do not go together, weights named twice or not at all, a
            model without two towers, embeddings of unequal length.
        TypeError: a cell that is neither a text nor a conversation, or an embedding that is not a list of numbers.

    Source: Simi-CL, §3.1 (cosine of CLIP's two embeddings, high is easy); DisCL's filter (raw cosine, released code);
        Nebbia & Kovashka 2024 (WSOD), §3.

    Example:
        >>> from hf_curriculum.scenes.make import make_scenes
        >>> scenes = make_scenes(5, validation=0, test=0)["train"]
        >>> scores = CLIPSimilarity()({"image": [scenes[0]["image"]] * 2, "caption": ["two moons", "a red ball"]})
        >>> bool(scores["clip_similarity"][0] > scores["clip_similarity"][1])
        True
        >>> both = CLIPSimilarity(image_embedding="v", text_embedding="t")
        >>> both({"v": [[1.0, 0.0], None], "t": [[3.0, 4.0], [1.0, 0.0]]})
        {'clip_similarity': array([0.6, nan], dtype=float32)}
    """

    easy = "high"

    def __init__(
        self,
        model: str = SCENES_CLIP,
        *,
        backend: Literal["transformers", "open_clip"] | None = None,
        pretrained: str | None = None,
        revision: str | None = None,
        batch_size: int = 32,
        dtype: Precision = "float32",
        image_column: str = IMAGE,
        caption_column: str = CAPTION,
        image_embedding: str | None = None,
        text_embedding: str | None = None,
        name: str = "clip_similarity",
        easy: Literal["low", "high"] = "high",
        part: Part = "assistant",
        turns: Turns = "all",
        aggregate: Aggregate = "mean",
    ) -> None:
        validate_choice("backend", backend, (None, "transformers", "open_clip"))
        validate_choice("dtype", dtype, get_args(Precision))
        at_least("CLIPSimilarity", batch_size=(batch_size, 1))
        if image_embedding is not None and image_embedding == text_embedding:
            raise ValueError(f"`{image_embedding}` was given for the embedding of the image and of the text.")
        self.model: str | None = str(model)
        self.pretrained: str | None = None if pretrained is None else str(pretrained)
        self.backend = backend
        self.revision = revision
        self.batch_size = batch_size
        self.dtype = dtype
        self.image_column = image_column
        self.caption_column = caption_column
        self.image_embedding = image_embedding
        self.text_embedding = text_embedding
        columns = (image_embedding or image_column, text_embedding or caption_column)
        self._set_columns(columns, name, easy, decode_false=() if image_embedding else (image_column,))
        self.numpy_columns = tuple(column for column in (image_embedding, text_embedding) if column is not None)
        self._set_part(part, turns)
        self._set_aggregate(aggregate)
        self.group_by = None if image_embedding else IMAGE_ID
        if image_embedding is None or text_embedding is None:
            self._resolve()
        elif model == SCENES_CLIP:
            self.model = None  # the model of the embeddings is not given

    def _resolve(self) -> None:
        """Backend and revision: a contradiction is an error here, and a changed model changes the cache key."""
        if self.backend is None:
            own = (Path(self.model) / "open_clip_config.json").exists()
            self.backend = "open_clip" if own or self.model.startswith(PREFIX) else "transformers"
        if self.backend == "transformers":
            if self.pretrained is not None:
                raise ValueError(
                    f"`pretrained={self.pretrained!r}` is for open_clip, not {self.model!r}. Leave it out."
                )
            digest = folder_digest(str(self._source()))
            self.packages: tuple[str, ...] = ("torch", "transformers", "tokenizers", "pillow")
        else:
            if self.revision is not None:
                raise ValueError(
                    f"`revision={self.revision!r}` was given for {self.model!r}, a model of `open_clip`. Name other "
                    "weights by `pretrained=`."
                )
            digest = weights_digest(*parse_name(self.model, self.pretrained))
            self.packages = ("torch", "open_clip_torch", "torchvision", "pillow")
        self.revision = digest if self.revision is None else self.revision

    def _source(self) -> str | Path:
        return SHIPPED if self.model == SCENES_CLIP else self.model

    def load(self, device: torch.device) -> _Loaded:
        one_thread_in_workers()
        dtype, check = getattr(torch, self.dtype), None
        if self.backend == "open_clip":
            towers: Towers = OpenClipTowers(*parse_name(self.model, self.pretrained), device, dtype)
        else:
            towers = TransformersTowers(str(self._source()), self.revision, device, dtype)
        if self.model == SCENES_CLIP:
            training = read_json(SHIPPED / "training.json", "Install hf-curriculum again.")
            check = OutOfDistributionCheck(training["knows"])
        return _Loaded(towers, can_trim(towers), check)

    def score(self, batch: dict[str, list[Any]], rank: int | None) -> np.ndarray:
        images, texts, both = self.pairs(batch, rank)
        return scatter(np.einsum("nd,nd->n", images, texts), both)

    def pairs(self, batch: dict[str, list[Any]], rank: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Vectors of images and of texts, (pairs, D) each, of length 1, and a bool mask (rows,) of their rows."""
        captions: list[str] = []
        if self.text_embedding is not None:
            texts = given_vectors(batch[self.text_embedding], self.text_embedding)
            index = texts.index
        else:
            captions, index = distinct_captions(*self.read_texts(batch[self.caption_column], self.caption_column))
        nothing = np.zeros((0, 0), np.float32)
        if self.image_embedding is None and not (index >= 0).any():
            return nothing, nothing, index >= 0
        images = self.read_vectors(batch, index >= 0, rank)
        both = (index >= 0) & (images.index >= 0)
        if not both.any():
            return nothing, nothing, both
        if self.text_embedding is None:
            texts = Vectors(self._encode_captions(captions, self.loaded(rank)), index)
        image, text = images.vectors.shape[1], texts.vectors.shape[1]
        if image != text:
            raise ValueError(
                f"The vectors of `{self.columns[0]}` have {image} numbers and those of `{self.columns[1]}` {text}: "
                "they are of two models. Name the `model` that the vectors in the data came from."
            )
        return images.vectors[images.index[both]], texts.vectors[index[both]], both

    def read_vectors(self, batch: dict[str, list[Any]], wanted: np.ndarray, rank: int | None) -> Vectors:
        """Vectors of the images of the rows in a mask, each image once; or those that are in the data."""
        if self.image_embedding is not None:
            return given_vectors(batch[self.image_embedding], self.image_embedding)
        loaded, index, number = self.loaded(rank), np.full(len(wanted), -1), 0
        read = read_images(
            self, batch, self.image_column, wanted, lambda stored: loaded.towers.pixels(open_image(stored))
        )

        def readable() -> Iterator[torch.Tensor]:
            nonlocal number
            for pixels, rows in read:
                index[rows] = number
                number += 1
                yield pixels

        return Vectors(encode_images(loaded.towers, readable(), self.batch_size, loaded.check), index)

    def _encode_captions(self, captions: list[str], loaded: _Loaded) -> np.ndarray:
        """Vectors of captions, (n, D)."""
        if loaded.check is not None:
            loaded.check.validate_captions(captions)
        vectors, truncated = encode_texts(loaded.towers, captions, self.batch_size, trim=loaded.trim)
        report_truncated(self, truncated, len(captions), loaded.towers.context)
        return vectors

    def arguments(self) -> dict[str, Any]:
        knows = {"knows": "the scenes of make_scenes only"} if self.model == SCENES_CLIP else {}
        return super().arguments() | knows

    def describe(self, column: str | None = None) -> ScoreProvenance:
        made = super().describe(column)
        # `backend` names the library that holds the model; Pillow prepares the images in both
        return replace(made, backend=None if self.image_embedding else "pil")


def distinct_captions(readable: list[str], mask: np.ndarray) -> tuple[list[str], np.ndarray]:
    """The different ones of a batch's captions in the rows of a mask, and int64 (rows,) which each row has, or -1."""
    number = {caption: at for at, caption in enumerate(dict.fromkeys(readable))}
    index = np.full(len(mask), -1)
    index[mask] = [number[caption] for caption in readable]
    return list(number), index


def given_vectors(values: list[Any], column: str) -> Vectors:
    """Vectors from a column of the data, normalised to length 1."""
    rows = [row for row, value in enumerate(values) if value is not None]
    try:
        given = [np.asarray(values[row], dtype=np.float32) for row in rows]  # (D,) each
    except (TypeError, ValueError):
        given = [np.zeros(())]
    if any(vector.ndim != 1 for vector in given):
        raise TypeError(f"`{column}` does not hold one list of numbers per row. Give the column of embeddings.")
    lengths = sorted({len(vector) for vector in given})
    if len(lengths) > 1:
        found = f"The vectors in `{column}` have {lengths[0]} to {lengths[-1]} numbers"
        raise ValueError(f"{found}. Take all of them from one model.")
    index, vectors = np.full(len(values), -1), np.zeros((0, 0), np.float32)
    if given:
        vectors = np.stack(given)  # (k, D)
        size = np.linalg.norm(vectors, axis=1)
        good = np.isfinite(size) & (size > 0)
        vectors = vectors[good] / size[good, None]
        index[np.array(rows)[good]] = np.arange(int(good.sum()))
    return Vectors(vectors, index)


BORDER = 3
"""Width in pixels of an image's border, whose brightness is compared."""


def vocabulary_of(captions: Iterable[str]) -> set[str]:
    """The distinct words of captions, in lower case."""
    return {word for caption in captions for word in words_of(caption.lower())}


def border_brightness(pixels: torch.Tensor) -> torch.Tensor:
    """The median brightness, 0 to 1, of each image's border: pixels (B, 3, H, W) from -1 to 1 → (B,)."""
    grey = pixels.float().mean(1)  # (B, H, W)
    edges = [grey[:, :BORDER], grey[:, -BORDER:], grey[:, :, :BORDER], grey[:, :, -BORDER:]]
    border = torch.cat([edge.flatten(1) for edge in edges], dim=1)  # (B, pixels of the border)
    return (border.median(dim=1).values + 1) / 2


def training_statistics(captions: Iterable[str], pixels: torch.Tensor, margin: float = 0.02) -> dict[str, Any]:
    """What `OutOfDistributionCheck` compares with: the words and the border brightness of a model's training data."""
    brightness = border_brightness(pixels)
    low, high = float(brightness.min()) - margin, float(brightness.max()) + margin
    return {"words": sorted(vocabulary_of(captions)), "border_brightness": [round(low, 3), round(high, 3)]}


class OutOfDistributionCheck:
    """Counts captions and images unlike a model's `training_statistics`, and warns once if most are."""

    def __init__(self, training: Mapping[str, Any]) -> None:
        self.words: frozenset[Any] = frozenset(training["words"])
        self.low: float = training["border_brightness"][0]
        self.high: float = training["border_brightness"][1]
        self.warned = False

    def count_captions(self, captions: Sequence[str]) -> int:
        """How many captions have a word that no training caption has."""
        return sum(not vocabulary_of([caption]) <= self.words for caption in captions)

    def count_images(self, pixels: torch.Tensor) -> int:
        """How many images, (B, 3, H, W) from -1 to 1, have a border darker or brighter than all training images."""
        brightness = border_brightness(pixels)
        return int(((brightness < self.low) | (brightness > self.high)).sum())

    def validate_captions(self, captions: Sequence[str]) -> None:
        """Warns if most of these captions are out of distribution."""
        self.check(self.count_captions(captions), len(captions), "captions have words that no training caption has")

    def check(self, number: int, of: int, what: str) -> None:
        """Warns if `number` is more than half `of` all."""
        if number > 0.5 * of and not self.warned:
            self.warned: bool = True
            logger.warning(
                "The CLIP that ships with hf-curriculum was trained on the embedded scenes only, and %d of %d %s: "
                "they are out of distribution, and their cosines mean little. Name a CLIP trained on such data, "
                'for example CLIPSimilarity("openai/clip-vit-base-patch32") for photographs; `hf-curriculum advise` '
                "takes its features (`hf-curriculum features`).",
                number,
                of,
                what,
            )


_PROBE = ["a", "two balls", "a man and a woman by the sea"]
_TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}


def trimmed(inputs: dict[str, torch.Tensor], length: int) -> dict[str, torch.Tensor]:
    """The first `length` tokens, without a mask: tokens after a caption's end are not attended to."""
    return {"input_ids": inputs["input_ids"][:, :length]}


@torch.inference_mode()
def can_trim(towers: Towers) -> bool:
    """Whether a batch may be padded to its longest caption only: tested on three captions of unequal length."""
    inputs, lengths = towers.tokens(_PROBE)
    longest = int(lengths.max())
    if longest >= towers.context:
        return False
    padded = F.normalize(towers.encode_text(inputs), dim=-1)  # (3, D)
    short = F.normalize(towers.encode_text(trimmed(inputs, longest)), dim=-1)
    return bool((padded - short).abs().max() <= _TOLERANCE[padded.dtype])


@torch.inference_mode()
def encode_texts(towers: Towers, captions: list[str], batch_size: int, *, trim: bool) -> tuple[np.ndarray, int]:
    """Vectors of captions, float32 (n, D), of length 1, and how many were truncated; `trim`: see `can_trim`."""
    inputs, lengths = towers.tokens(captions)
    order = np.argsort(lengths, kind="stable") if trim else np.arange(len(captions))
    found = []
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        part = {name: values[torch.from_numpy(rows)] for name, values in inputs.items()}
        if trim:
            part = trimmed(part, int(lengths[rows].max()))
        found.append(F.normalize(towers.encode_text(part).float(), dim=-1))  # (B, D)
    vectors = np.zeros((0, 0), np.float32)
    if found:
        vectors = torch.cat(found).cpu().numpy()[np.argsort(order)]
    full = [captions[row] for row in np.flatnonzero(lengths >= towers.context - 1)]  # padding may be counted or not
    return vectors, towers.count_truncated(full) if full else 0


@torch.inference_mode()
def encode_images(
    towers: Towers, images: Iterator[torch.Tensor], batch_size: int, check: OutOfDistributionCheck | None = None
) -> np.ndarray:
    """Vectors of what `Towers.pixels` made of images, float32 (n, D), of length 1, (0, 0) of none.

    A batch at a time is held in memory; the vectors come from the device together, for it never to be waited for.
    """
    vectors, outside, number = [], 0, 0
    while batch := list(islice(images, batch_size)):
        stacked = torch.stack(batch)  # (B, 3, H, W)
        vectors.append(F.normalize(towers.encode_image(stacked).float(), dim=-1))
        number += len(batch)
        if check is not None:
            outside += check.count_images(stacked)
    if check is not None:
        check.check(outside, number, "images look unlike the training images")
    return torch.cat(vectors).cpu().numpy() if vectors else np.zeros((0, 0), np.float32)


def image_vectors(images: Sequence[Any], model: str | CLIPSimilarity = SCENES_CLIP) -> np.ndarray:
    """Vectors of images, to score several captions of each."""
    scorer = model if isinstance(model, CLIPSimilarity) else CLIPSimilarity(model)

    towers, _, check = scorer.loaded()
    pixels = (towers.pixels(to_rgb(image, name=f"The image of row {row}")) for row, image in enumerate(images))
    return encode_images(towers, pixels, scorer.batch_size, check)
