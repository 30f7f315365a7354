"""How sure a classifier is of an image's own class."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
from PIL import Image

from hf_curriculum.columns import IMAGE, IMAGE_ID, LABEL
from hf_curriculum.config import at_least
from hf_curriculum.data.processors import PixelTable, is_plain, process_image
from hf_curriculum.models.on_host import to_device
from hf_curriculum.provenance import validate_choice
from hf_curriculum.scorers.base import Aggregate, ImageScorer
from hf_curriculum.scorers.pretrained import Precision, folder_digest, load_model, load_pretrained
from hf_curriculum.scorers.visual.images import open_image, read_images

if TYPE_CHECKING:
    import torch

_NUMBER = re.compile(r"\d+|n\d{8}")
Classifier = Callable[[list[Image.Image]], Any]
"""RGB images → probabilities (images, classes), an array or a tensor."""
Prompts = str | Sequence[str] | Mapping[str, str | Sequence[str]]
"""A template with `{label}`, several of them, or the prompts of each class."""


class _Loaded(NamedTuple):
    """A classifier on its device: images as `read` makes them of RGB ones → probabilities, float64 (n, classes); and
    the names of its classes."""

    read: Callable[[Image.Image], Any]
    probabilities: Callable[[list[Any]], np.ndarray]
    names: list[str] | None


class ClassProbability(ImageScorer):
    """A classifier's probability of an image's own class: 1 is easy.

    `mark_hard(below=)` marks images of low probability. Three kinds of classifier:

    - the name or folder of any `AutoModelForImageClassification`;
    - with `prompts`, the name of a CLIP ("zero-shot"): the softmax over the scaled cosines of the image and the
      prompts of all `classes`, averaged as unit vectors within a class;
    - a function from a list of RGB images to probabilities.

    Data and classifier must have the same classes. They are matched by name if `classes` names the data's (and the
    model knows its own), by number otherwise.

    Args:
        classifier: the model, or the function.
        prompts: a template such as "a photo of {label}", several, or a mapping class → its prompts.
        classes: the names of the data's classes in the order of their numbers (`class_names(dataset)`).
        revision: of a repository of the Hub.
        batch_size: images that run through the model at once.
        dtype: of a named model, "float32", "float16" or "bfloat16".
        image_column: where the images are, one or a list of them in a row.
        label_column: where the class numbers are (or names).
        name: the column to write.
        easy: a high probability is easy by default.
        aggregate: of a row with a list of images, the "mean", "max" or "min" of their scores.

    Shapes:
        float32 (rows,), in [0, 1]; NaN for an image that cannot be decoded, a list without images or with such a one,
        and a row without a class.

    Raises:
        FileNotFoundError: there is no such model.
        ValueError: a CLIP without `classes` or `classes` without need, a template without `{label}`, a class without a
            prompt or with a number for a name, a class unknown to the model. Or a model without a trained head, or
            outputs that are no probabilities, such as NaN.

    Source: Liang et al. 2024 (DisCL), algorithm 1: p_i, the probability of the true class by a pretrained model.

    Example:
        >>> def by_brightness(images):
        ...     bright = np.array([np.asarray(image).mean() / 255 for image in images])
        ...     return np.stack([1 - bright, bright], axis=1)
        >>> images = [Image.new("RGB", (8, 8), "white"), Image.new("RGB", (8, 8), "black")]
        >>> ClassProbability(by_brightness)({"image": images, "label": [1, 1]})
        {'class_probability': array([1., 0.], dtype=float32)}
    """

    easy = "high"
    name = "class_probability"
    group_by: str | None = IMAGE_ID
    backend: str | None = "pil"

    def __init__(
        self,
        classifier: str | Classifier,
        *,
        prompts: Prompts | None = None,
        classes: Sequence[str] | None = None,
        revision: str | None = None,
        batch_size: int = 32,
        dtype: Precision = "float32",
        image_column: str = IMAGE,
        label_column: str = LABEL,
        name: str = "class_probability",
        easy: Literal["low", "high"] = "high",
        aggregate: Aggregate = "mean",
    ) -> None:
        at_least("ClassProbability", batch_size=(batch_size, 1))
        self.classes: list[str] | None = None if classes is None else list(classes)
        self.prompts: Any = None if prompts is None else prompts_of(prompts, self.classes)
        validate_choice("dtype", dtype, get_args(Precision))
        if callable(classifier) and (self.prompts is not None or revision is not None or dtype != "float32"):
            raise ValueError("`prompts`, `revision` and `dtype` belong to a model, and a function was given.")
        self.classifier: Any = classifier if callable(classifier) else str(classifier)
        self.revision = revision
        self.batch_size = batch_size
        self.dtype = dtype
        self.image_column = image_column
        self.label_column = label_column
        self._set_columns((image_column, label_column), name, easy, decode_false=(image_column,))
        self._set_aggregate(aggregate)
        self.clip: Any = None
        if callable(classifier):
            self.packages: tuple[str, ...] = ("pillow",)
        else:
            self.model: str | None = self.classifier
            self._resolve()

    def _resolve(self) -> None:
        """The model's revision: one that was trained further in its folder has another cache key."""
        if self.prompts is not None:
            from hf_curriculum.scorers.alignment.clip import CLIPSimilarity

            self.clip = CLIPSimilarity(
                self.classifier, revision=self.revision, batch_size=self.batch_size, dtype=self.dtype
            )
            self.packages, self.revision = self.clip.packages, self.clip.revision
        else:
            self.packages = ("torch", "transformers", "pillow")
            self.revision = folder_digest(self.classifier) if self.revision is None else self.revision

    def load(self, device: torch.device) -> _Loaded:
        if callable(self.classifier):
            return _Loaded(lambda image: image, self.classifier, None)
        return self._load_clip(device) if self.prompts is not None else self._load_classifier(device)

    def _load_classifier(self, device: torch.device) -> _Loaded:
        import torch
        from transformers import AutoImageProcessor, AutoModelForImageClassification

        model = load_model(AutoModelForImageClassification, self.classifier, self.revision, dtype=self.dtype)
        model = model.to(device)
        processor = load_pretrained(AutoImageProcessor, self.classifier, self.revision, backend="pil")
        table = PixelTable(processor) if is_plain(processor) else None

        def read(image: Image.Image) -> torch.Tensor:
            return table(image) if table else process_image(processor, image)["pixel_values"]

        @torch.inference_mode()
        def probabilities(images: list[torch.Tensor]) -> np.ndarray:
            pixels = to_device(torch.stack(images), device).to(model.dtype)
            return model(pixel_values=pixels).logits.cpu().double().softmax(-1).numpy()  # (n, classes)

        names = [str(model.config.id2label[number]) for number in range(model.config.num_labels)]
        unnamed = names == [f"LABEL_{number}" for number in range(len(names))]
        return _Loaded(read, probabilities, None if unnamed else names)

    def _load_clip(self, device: torch.device) -> _Loaded:
        import torch
        import torch.nn.functional as F

        from hf_curriculum.scorers.alignment.clip import encode_images, encode_texts

        towers, trim, check = self.clip.load(device)
        texts = [text for prompts in self.prompts for text in prompts]
        vectors = torch.from_numpy(encode_texts(towers, texts, self.batch_size, trim=trim)[0])
        parts = torch.split(vectors, [len(prompts) for prompts in self.prompts])
        head = torch.stack([F.normalize(part.mean(0), dim=-1) for part in parts]).double()  # (classes, D)
        scale = float(towers.model.logit_scale.detach().exp())

        def probabilities(images: list[torch.Tensor]) -> np.ndarray:
            seen = torch.from_numpy(encode_images(towers, iter(images), self.batch_size, check)).double()  # (n, D)
            return (scale * seen @ head.T).softmax(-1).numpy()

        return _Loaded(towers.pixels, probabilities, self.classes)

    def score(self, batch: dict[str, list[Any]], rank: int | None) -> np.ndarray:
        labels = batch[self.label_column]
        scores = np.full(len(labels), np.nan, np.float32)
        labelled = np.array([label is not None and label != -1 for label in labels], dtype=bool)
        if not labelled.any():
            return scores
        loaded = self.loaded(rank)
        readable = read_images(
            self, batch, self.image_column, labelled, lambda stored: loaded.read(open_image(stored))
        )
        while some := list(islice(readable, self.batch_size)):
            found = self._checked_probabilities(loaded.probabilities([image for image, _ in some]), len(some))
            for own, (_, rows) in zip(found, some, strict=True):
                for row in rows:
                    scores[row] = own[self._number(labels[row], loaded.names, len(own))]
        return scores

    def _checked_probabilities(self, values: Any, images: int) -> np.ndarray:
        """Probabilities (images, classes), or a `ValueError`."""
        values = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values, dtype=np.float64)
        if values.ndim != 2 or len(values) != images:
            found = f"{self.classifier!r} returned an array of shape {values.shape} for {images} images"
            raise ValueError(f"{found}, not probabilities (images, classes).")
        if not np.isfinite(values).all():
            raise ValueError(
                f"{self.classifier!r} returned NaN or infinite probabilities: it has diverged, or its weights are "
                "damaged. Take another classifier, or an earlier checkpoint."
            )
        if values.min() < 0 or not np.allclose(values.sum(1), 1, atol=1e-3):
            raise ValueError(
                f"{self.classifier!r} returned numbers from {values.min():g} to {values.max():g} that do not sum to 1 "
                "for each image. Apply a softmax to logits first."
            )
        return values

    def _number(self, label: Any, names: list[str] | None, size: int) -> int:
        """A row's class as the classifier numbers it."""
        if isinstance(label, (int, np.integer)) and self.classes is not None:
            label = self.classes[label] if 0 <= label < len(self.classes) else label
        number = label
        if isinstance(label, str):
            known = self.classes if names is None else names
            number = known.index(label) if known is not None and label in known else -1
        if not isinstance(number, (int, np.integer)) or not 0 <= number < size:
            raise ValueError(
                f"`{self.label_column}` is {label!r}, which is none of the {size} classes of {self.classifier!r}"
                f"{f' ({names[:5]} …)' if names else ''}. Take a classifier of these classes, and name those of the "
                "data in its words: classes=class_names(dataset)."
            )
        return int(number)

    def arguments(self) -> dict[str, Any]:
        named = {}
        if callable(self.classifier):
            owner = self.classifier if hasattr(self.classifier, "__qualname__") else type(self.classifier)
            named = {"classifier": f"{owner.__module__}.{owner.__qualname__}"}
        return super().arguments() | named


def prompts_of(prompts: Prompts, classes: list[str] | None) -> list[list[str]]:
    """The prompts of each class."""
    if classes is None:
        raise ValueError("`prompts` was given without `classes`. Pass classes=class_names(dataset).")
    if isinstance(prompts, Mapping):
        without = [name for name in classes if not prompts.get(name)]
        if without:
            raise ValueError(
                f"{len(without)} of {len(classes)} classes have no prompt ({without[:3]}). Write a prompt for each, "
                "or a template: 'a photo of {label}'."
            )
        own = [prompts[name] for name in classes]
        return [[one] if isinstance(one, str) else list(one) for one in own]
    templates = [prompts] if isinstance(prompts, str) else list(prompts)
    if not templates or any("{label}" not in template for template in templates):
        raise ValueError(f"`prompts={prompts!r}` has no place for the class. Write 'a photo of {{label}}'.")
    for template in templates:
        validate_prompt_names(classes, template)
    return [[template.replace("{label}", name) for template in templates] for name in classes]


def validate_prompt_names(names: Iterable[str], template: str) -> None:
    """Raises a `ValueError` if a template is to name classes that are numbers alone, or WordNet's (n01440764)."""
    given = sorted(set(names))
    if given and all(_NUMBER.fullmatch(name) for name in given):
        raise ValueError(
            f"The classes have numbers for names ({', '.join(map(repr, given[:3]))} …), so the prompt would "
            f"ask for {template.replace('{label}', given[0])!r}. Name the classes (`classes=` of `load_labelled`, "
            "`--classes FILE` of recipes), or give a table of class → prompts."
        )
