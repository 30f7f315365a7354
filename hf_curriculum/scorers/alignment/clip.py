"""How well a caption matches its picture, by the cosine of a CLIP's two vectors."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from hf_curriculum.columns import CAPTION, IMAGE, IMAGE_ID
from hf_curriculum.provenance import ScoreProvenance, check_choice
from hf_curriculum.scorers.alignment.clip_backends import Towers
from hf_curriculum.scorers.base import Scorer, readable_captions
from hf_curriculum.scorers.pretrained import folder_digest, report_truncated
from hf_curriculum.scorers.visual.images import ImageOpener, distinct_images

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from PIL import Image

    from hf_curriculum.scorers.alignment.clip_backends import Towers

logger = logging.getLogger(__name__)


SCENES_CLIP = "scenes_clip"
"""The model that ships with the package: it knows the embedded scenes only."""
_SHIPPED = Path(__file__).parents[2] / "models" / SCENES_CLIP


class _Loaded(NamedTuple):
    """A model on its device, whether batches of text may be cut to their longest, and what the shipped model knows."""

    towers: Towers
    trim: bool
    domain: Domain | None


class _Vectors(NamedTuple):
    """One side of the pairs.

    Shapes:
        vectors: float32 (k, D) of length 1; place: int64 (rows,), the vector of each row, -1 for one without.
    """

    vectors: np.ndarray
    place: np.ndarray


class CLIPSimilarity(Scorer):
    """The raw cosine of a picture and its caption in the space of a CLIP: neither scaled nor clipped at zero.

    Each picture of a batch is encoded once for all rows that share its `image_id`, and each distinct caption once.
    Captions are sorted by length and a batch is cut to its longest, where that provably changes nothing: it is tried
    when the model is loaded. SigLIP, whose text tower reads padding too, gets it whole.

    The model that ships with the package was trained on `make_scenes` and knows nothing else. On other pictures or
    captions it warns, and the provenance of its scores says what it is.

    Args:
        model: `SCENES_CLIP` (the shipped one), a folder or a repository of the Hub with a CLIP or SigLIP of
            `transformers` ("openai/clip-vit-base-patch32"), or a model of `open_clip`
            ("open_clip:ViT-B-32/laion2b_s34b_b79k", "open_clip:hf-hub:…", "open_clip:local-dir:…"). Nothing is
            downloaded unless it is named here. Where both vectors are in the data, which model they came from.
        backend: "transformers" or "open_clip"; by default read from `model`.
        pretrained: the weights of an `open_clip` architecture, a tag or a file, if `model` does not name them.
        revision: of a repository of `transformers`.
        batch_size: pictures, or captions, that run through a tower at once.
        dtype: of weights and activations, "float32", "float16" or "bfloat16"; cosines are taken in float32.
        image_column: where the pictures are.
        caption_column: where the captions are; longer ones than the model's context are cut, which is reported.
        image_embedding: a column with the pictures' vectors (a list of numbers per row), read instead of pictures.
        text_embedding: a column with the captions' vectors, read instead of captions.
        name: the column to write.
        easy: a high cosine is easy by default.

    Shapes:
        float32 (rows,), from -1 to 1; NaN for a caption that is missing, empty or blank, a picture that cannot be
        decoded, and a vector that is missing, zero or not finite.

    Raises:
        FileNotFoundError: there is no such model.
        ImportError: `open_clip` is not installed.
        ValueError: an option out of range, options that do not go together, weights named twice or not at all, a
            model that is not one of two towers, vectors of unequal length.
        TypeError: a caption that is not a string, or a vector that is not a list of numbers.

    Source: Simi-CL, §3.1 (cosine of CLIP's two vectors, high is easy); DisCL's filter (raw cosine, released code);
        Nebbia & Kovashka 2024 (WSOD), §3.

    Example:
        >>> from hf_curriculum.scenes.make import make_scenes
        >>> scenes = make_scenes(5, validation=0, test=0)["train"]
        >>> scores = CLIPSimilarity()({"image": [scenes[0]["image"]] * 2, "caption": ["two moons", "a red ball"]})
        >>> bool(scores["clip_similarity"][0] > scores["clip_similarity"][1])
        True
        >>> both = CLIPSimilarity(image_embedding="picture", text_embedding="text")
        >>> both({"picture": [[1.0, 0.0], None], "text": [[3.0, 4.0], [1.0, 0.0]]})
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
        dtype: Literal["float32", "float16", "bfloat16"] = "float32",
        image_column: str = IMAGE,
        caption_column: str = CAPTION,
        image_embedding: str | None = None,
        text_embedding: str | None = None,
        name: str = "clip_similarity",
        easy: Literal["low", "high"] = "high",
    ) -> None:
        check_choice("backend", backend, (None, "transformers", "open_clip"))
        check_choice("dtype", dtype, ("float32", "float16", "bfloat16"))
        check_choice("easy", easy, ("low", "high"))
        if batch_size < 1:
            raise ValueError(f"`batch_size` is {batch_size}. It is a number of pictures or captions, at least 1.")
        self.model: str | None = str(model)
        self.pretrained = None if pretrained is None else str(pretrained)
        self.backend, self.revision, self.batch_size, self.dtype = backend, revision, batch_size, dtype
        self.image_column, self.caption_column = image_column, caption_column
        self.image_embedding, self.text_embedding = image_embedding, text_embedding
        self.name, self.easy = name, easy
        self.columns = (image_embedding or image_column, text_embedding or caption_column)
        self.undecoded = () if image_embedding else (image_column,)
        self.group_by = None if image_embedding else IMAGE_ID
        if image_embedding is None or text_embedding is None:
            self._resolve()
        elif model == SCENES_CLIP:
            self.model = None  # nobody said which model the vectors came from

    def _resolve(self) -> None:
        """Settles what will be loaded: a contradiction fails here, and a changed model changes the cache key."""
        from hf_curriculum.scorers.alignment.clip_backends import PREFIX, parse_name, weights_digest

        if self.backend is None:
            own = (Path(self.model) / "open_clip_config.json").exists()
            self.backend = "open_clip" if own or self.model.startswith(PREFIX) else "transformers"
        if self.backend == "transformers":
            if self.pretrained is not None:
                raise ValueError(
                    f"`pretrained={self.pretrained!r}` was given for {self.model!r}, a model of `transformers`, whose "
                    'weights come with its name. Leave it out, or pass `backend="open_clip"`.'
                )
            digest = folder_digest(str(self._source()))
            self.packages = ("torch", "transformers", "tokenizers", "pillow")
        else:
            if self.revision is not None:
                raise ValueError(
                    f"`revision={self.revision!r}` was given for {self.model!r}, a model of `open_clip`, which knows "
                    "no revisions. Name other weights by `pretrained=`, or leave it out."
                )
            digest = weights_digest(*parse_name(self.model, self.pretrained))
            self.packages = ("torch", "open_clip_torch", "torchvision", "pillow")
        self.revision = digest if self.revision is None else self.revision

    def _source(self) -> str | Path:
        return _SHIPPED if self.model == SCENES_CLIP else self.model

    def load(self, device: torch.device) -> _Loaded:
        import multiprocess
        import torch

        from hf_curriculum.scorers.alignment.clip_backends import OpenClipTowers, TransformersTowers, parse_name

        if multiprocess.parent_process() is not None:  # in a worker of `map`
            torch.set_num_threads(1)  # the workers share the cores, and OpenMP's threads do not survive a fork
        dtype, domain = getattr(torch, self.dtype), None
        if self.backend == "open_clip":
            towers: Towers = OpenClipTowers(*parse_name(self.model, self.pretrained), device, dtype)
        else:
            towers = TransformersTowers(str(self._source()), self.revision, device, dtype)
        if self.model == SCENES_CLIP:
            domain = Domain(json.loads((_SHIPPED / "training.json").read_text(encoding="utf-8"))["knows"])
        return _Loaded(towers, can_trim(towers), domain)

    def score(self, batch: dict[str, list], rank: int | None) -> np.ndarray:
        captions: list[str] = []
        if self.text_embedding is not None:
            texts = given_vectors(batch[self.text_embedding], self.text_embedding)
            place = texts.place
        else:
            captions, place = distinct_captions(batch[self.caption_column], self.caption_column)
        scores = np.full(len(place), np.nan, np.float32)
        if self.image_embedding is not None:
            images = given_vectors(batch[self.image_embedding], self.image_embedding)
        elif (place >= 0).any():
            images = self._encode_images(batch, place >= 0, self.loaded(rank))
        else:
            return scores
        both = (place >= 0) & (images.place >= 0)
        if not both.any():
            return scores
        if self.text_embedding is None:
            texts = _Vectors(self._encode_captions(captions, self.loaded(rank)), place)
        self._check_lengths(images.vectors.shape[1], texts.vectors.shape[1])
        pairs = images.vectors[images.place[both]], texts.vectors[place[both]]  # (pairs, D) each
        scores[both] = np.einsum("nd,nd->n", *pairs)
        return scores

    def _encode_images(self, batch: dict[str, list], wanted: np.ndarray, loaded: _Loaded) -> _Vectors:
        """Vectors of the pictures of the rows that are wanted, each picture once."""

        opened, rows_of = ImageOpener(), []

        def readable() -> Iterator[Image.Image]:
            for picture, rows in distinct_images(batch, self.image_column, wanted):
                image = opened(picture)
                if image is not None:
                    rows_of.append(rows)
                    yield image

        vectors = encode_images(loaded.towers, readable(), self.batch_size, loaded.domain)
        opened.report(self)
        place = np.full(len(wanted), -1)
        for number, rows in enumerate(rows_of):
            place[rows] = number
        return _Vectors(vectors, place)

    def _encode_captions(self, captions: list[str], loaded: _Loaded) -> np.ndarray:
        """Vectors of captions, (n, D)."""

        if loaded.domain is not None:
            loaded.domain.check_captions(captions)
        vectors, cut = encode_texts(loaded.towers, captions, self.batch_size, trim=loaded.trim)
        report_truncated(self, cut, len(captions), loaded.towers.context)
        return vectors

    def _check_lengths(self, image: int, text: int) -> None:
        if image != text:
            raise ValueError(
                f"The pictures' vectors have {image} numbers and the captions' {text}, so they are of two models: "
                f"`{self.columns[0]}` against `{self.columns[1]}`. A cosine needs both in one space. Name the `model` "
                "that the vectors in the data came from."
            )

    def arguments(self) -> dict[str, Any]:
        arguments = super().arguments()
        if self.model == SCENES_CLIP:
            arguments["knows"] = "the scenes of make_scenes only"
        return arguments

    def describe(self, column: str | None = None) -> ScoreProvenance:
        made = super().describe(column)
        # `backend` names the library that holds the model; what prepares pictures is Pillow in both
        return replace(made, backend=None if self.image_embedding else "pil")


def distinct_captions(captions: list[Any], column: str) -> tuple[list[str], np.ndarray]:
    """The different readable captions of a batch, and which of them each row has.

    Shapes:
        returns the captions, and int64 (rows,), -1 where a row has none.

    Example:
        >>> distinct_captions(["a dog", "", "a cat", "a dog"], "caption")
        (['a dog', 'a cat'], array([ 0, -1,  1,  0]))
    """
    readable, mask = readable_captions(captions, column)
    number = {caption: at for at, caption in enumerate(dict.fromkeys(readable))}
    place = np.full(len(mask), -1)
    place[mask] = [number[caption] for caption in readable]
    return list(number), place


def given_vectors(values: list[Any], column: str) -> _Vectors:
    """Vectors that are in the data, brought to length 1.

    Raises:
        TypeError: an entry is neither None nor a list of numbers.
        ValueError: they differ in length.

    Example:
        >>> given_vectors([[3.0, 4.0], None, [0.0, 0.0]], "v").place
        array([ 0, -1, -1])
    """
    rows = [row for row, value in enumerate(values) if value is not None]
    try:
        given = [np.asarray(values[row], dtype=np.float32) for row in rows]  # (D,) each
    except (TypeError, ValueError):
        given = [np.zeros(())]
    if any(vector.ndim != 1 for vector in given):
        raise TypeError(
            f"`{column}` does not hold one list of numbers per row, so no vector can be read from it. Give the column "
            "that holds the embeddings."
        )
    lengths = sorted({len(vector) for vector in given})
    if len(lengths) > 1:
        raise ValueError(
            f"The vectors in `{column}` have {lengths[0]} to {lengths[-1]} numbers. Vectors of one space have equally "
            "many. Take all of them from one model."
        )
    place, vectors = np.full(len(values), -1), np.zeros((0, 0), np.float32)
    if given:
        vectors = np.stack(given)  # (k, D)
        size = np.linalg.norm(vectors, axis=1)
        good = np.isfinite(size) & (size > 0)
        vectors = vectors[good] / size[good, None]
        place[np.array(rows)[good]] = np.arange(int(good.sum()))
    return _Vectors(vectors, place)


BORDER = 3
"""Width in pixels of the frame whose brightness is looked at."""
_WORD = re.compile(r"\w+")
_TOO_MANY = 0.5  # share of foreign captions or pictures from which on the warning is given


def words_of(captions: Iterable[str]) -> set[str]:
    """The distinct words of captions, in lower case.

    Example:
        >>> sorted(words_of(["A red ball,", "a ball"]))
        ['a', 'ball', 'red']
    """
    return {word for caption in captions for word in _WORD.findall(caption.lower())}


def border_brightness(pixels: torch.Tensor) -> torch.Tensor:
    """The median brightness of each picture's frame: high and alike in drawings on a pale background.

    Args:
        pixels: from -1 (black) to 1 (white).

    Shapes:
        pixels (B, 3, H, W) → (B,), from 0 to 1.
    """
    import torch

    grey = pixels.float().mean(1)  # (B, H, W)
    edges = [grey[:, :BORDER], grey[:, -BORDER:], grey[:, :, :BORDER], grey[:, :, -BORDER:]]
    frame = torch.cat([edge.flatten(1) for edge in edges], dim=1)  # (B, pixels of the frame)
    return (frame.median(dim=1).values + 1) / 2


def learn_domain(captions: Iterable[str], pixels: torch.Tensor, margin: float = 0.02) -> dict[str, Any]:
    """What `Domain` compares with, from the data that a model was trained on; JSON can hold it.

    Args:
        captions: of the training data.
        pixels: its pictures, (N, 3, H, W) from -1 to 1.
        margin: added to the range of brightness on both sides.
    """
    brightness = border_brightness(pixels)
    low, high = float(brightness.min()) - margin, float(brightness.max()) + margin
    return {"words": sorted(words_of(captions)), "border_brightness": [round(low, 3), round(high, 3)]}


class Domain:
    """Tells captions and pictures unlike the training data, and says so once.

    Args:
        known: what `learn_domain` returned.

    Example:
        >>> domain = Domain({"words": ["a", "ball", "red"], "border_brightness": [0.8, 1.0]})
        >>> domain.foreign_captions(["a red ball", "a red bicycle"])
        1
    """

    def __init__(self, known: Mapping[str, Any]) -> None:
        self.words = frozenset(known["words"])
        self.low, self.high = known["border_brightness"]
        self.warned = False

    def foreign_captions(self, captions: Sequence[str]) -> int:
        """How many captions have a word that was not in the training captions."""
        return sum(not words_of([caption]) <= self.words for caption in captions)

    def foreign_images(self, pixels: torch.Tensor) -> int:
        """How many pictures, (B, 3, H, W) from -1 to 1, have no frame as bright as the training pictures'."""
        brightness = border_brightness(pixels)
        return int(((brightness < self.low) | (brightness > self.high)).sum())

    def check_captions(self, captions: Sequence[str]) -> None:
        """Warns if most of these captions are foreign."""
        self._warn(self.foreign_captions(captions), len(captions), "captions have words it never saw")

    def check_images(self, foreign: int, of: int) -> None:
        """Warns if most of `of` pictures are foreign."""
        self._warn(foreign, of, "pictures look unlike those it was trained on")

    def _warn(self, foreign: int, of: int, what: str) -> None:
        if foreign > _TOO_MANY * of and not self.warned:
            self.warned = True
            logger.warning(
                "The CLIP that ships with hf-curriculum knows the embedded scenes only, but %d of %d %s. Its cosines "
                "say next to nothing about them. Name a CLIP that was trained on such data, for example "
                'CLIPSimilarity("openai/clip-vit-base-patch32") for photographs.',
                foreign,
                of,
                what,
            )


_PROBE = ["a", "two balls", "a man and a woman by the sea"]
_TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}


def trimmed(inputs: dict[str, torch.Tensor], length: int) -> dict[str, torch.Tensor]:
    """The first `length` tokens, without a mask: behind a caption's end nothing is looked at."""
    return {"input_ids": inputs["input_ids"][:, :length]}


@torch.inference_mode()
def can_trim(towers: Towers) -> bool:
    """Whether a batch may be cut to its longest caption: tried on three captions of unequal length.

    It may where a token sees only those before it and the caption's vector is read at its end, as in CLIP. It may not
    where all tokens see each other, or the last position is read, as in SigLIP: padding is part of what it reads.

    Args:
        towers: a loaded model.
    """
    inputs, lengths = towers.tokens(_PROBE)
    longest = int(lengths.max())
    if longest >= towers.context:
        return False
    whole = F.normalize(towers.encode_text(inputs), dim=-1)  # (3, D)
    cut = F.normalize(towers.encode_text(trimmed(inputs, longest)), dim=-1)
    return bool((whole - cut).abs().max() <= _TOLERANCE[whole.dtype])


@torch.inference_mode()
def encode_texts(towers: Towers, captions: list[str], batch_size: int, *, trim: bool) -> tuple[np.ndarray, int]:
    """Vectors of captions.

    Args:
        towers: a loaded model.
        captions: at least one, none blank.
        batch_size: captions that run through the tower at once.
        trim: sort by length and cut each batch to its longest; see `can_trim`.

    Shapes:
        returns float32 (n, D), of length 1, and how many captions were longer than the model's context.
    """
    inputs, lengths = towers.tokens(captions)
    order = np.argsort(lengths, kind="stable") if trim else np.arange(len(captions))
    vectors: np.ndarray | None = None
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        part = {name: values[torch.from_numpy(rows)] for name, values in inputs.items()}
        if trim:
            part = trimmed(part, int(lengths[rows].max()))
        read = F.normalize(towers.encode_text(part).float(), dim=-1).cpu().numpy()  # (B, D)
        if vectors is None:
            vectors = np.empty((len(captions), read.shape[1]), np.float32)
        vectors[rows] = read
    full = [captions[row] for row in np.flatnonzero(lengths >= towers.context - 1)]  # padding may be counted or not
    return vectors, towers.count_truncated(full) if full else 0


@torch.inference_mode()
def encode_images(
    towers: Towers, images: Iterator[Image.Image], batch_size: int, domain: Domain | None = None
) -> np.ndarray:
    """Vectors of pictures, which are held in memory a batch at a time.

    Args:
        towers: a loaded model.
        images: RGB.
        batch_size: pictures that run through the tower at once.
        domain: looks at the pictures, and warns where most are foreign to the model.

    Shapes:
        returns float32 (n, D), of length 1; (0, 0) without pictures.
    """
    vectors, foreign, seen = [], 0, 0
    pixels = map(towers.pixels, images)
    while batch := list(islice(pixels, batch_size)):
        stacked = torch.stack(batch)  # (B, 3, H, W)
        vectors.append(F.normalize(towers.encode_image(stacked).float(), dim=-1).cpu().numpy())
        if domain is not None:
            foreign += domain.foreign_images(stacked)
        seen += len(batch)
    if domain is not None:
        domain.check_images(foreign, seen)
    return np.concatenate(vectors) if vectors else np.zeros((0, 0), np.float32)
