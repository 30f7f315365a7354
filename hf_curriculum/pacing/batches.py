"""What a batch is made of: single examples, images with all their captions, captions of like length, or one group."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from hf_curriculum.columns import IMAGE_ID
from hf_curriculum.ordering import Ranking
from hf_curriculum.ordering.groups import Kind
from hf_curriculum.pacing.layouts import ImageLayout, Layout, LengthLayout, NodeLayout
from hf_curriculum.pacing.signals import at_least


@dataclass(frozen=True)
class Batches(ABC):
    """How batches are put together, for any curriculum: `Phases(4, batches=ByImage())`."""

    type: ClassVar[str]

    @property
    @abstractmethod
    def reads(self) -> Mapping[str, Kind]:
        """The columns of the training data that it needs."""

    @abstractmethod
    def layout(self, ranking: Ranking) -> Layout:
        """The same, bound to ranked examples."""

    def to_dict(self) -> dict[str, Any]:
        """As a JSON-able mapping; fields that hold their default are left out."""
        given = {item.name: getattr(self, item.name) for item in fields(self)}
        return {
            "type": self.type,
            **{item.name: given[item.name] for item in fields(self) if given[item.name] != item.default},
        }


@dataclass(frozen=True)
class ByImage(Batches):
    """Each draw is an image, and brings `captions_per_image` of its captions, one after the other.

    Images are ranked by the mean score of their captions. An image with more captions shows consecutive ones from a
    random start; one with fewer repeats some.

    Args:
        captions_per_image: captions that each image brings; None: as many as the image with the most has. The global
            batch size has to be a multiple.
        image_column: names the image of each row.

    Source: Zhang et al. 2022 (Simi-CL) §4.1's captioners: 10 images with 5 captions each per batch.

    Example:
        >>> ByImage(captions_per_image=5).to_dict()
        {'type': 'by_image', 'captions_per_image': 5}
    """

    type: ClassVar[str] = "by_image"

    captions_per_image: int | None = None
    image_column: str = IMAGE_ID

    def __post_init__(self) -> None:
        if self.captions_per_image is not None:
            at_least("ByImage", captions_per_image=(self.captions_per_image, 1))

    @property
    def reads(self) -> Mapping[str, Kind]:
        """The image of each row."""
        return {self.image_column: "ids"}

    def layout(self, ranking: Ranking) -> Layout:
        """Images as units."""
        return ImageLayout(ranking, self.image_column, self.captions_per_image)


@dataclass(frozen=True)
class ByLength(Batches):
    """Puts examples of like length into the same batch, so that less of it is padding.

    The examples of `window` consecutive batches are sorted by length, cut into batches again, and the batches are
    shuffled. No example leaves its window, no window leaves its stage, and a step's examples stay a pure function of
    the plan.

    Args:
        column: the length of each row, such as `caption_length`.
        window: batches that are sorted together; more give less padding and less mixing.

    Example:
        >>> ByLength("caption_length").to_dict()
        {'type': 'by_length'}
    """

    type: ClassVar[str] = "by_length"

    column: str = "caption_length"
    window: int = 50

    def __post_init__(self) -> None:
        at_least("ByLength", window=(self.window, 2))

    @property
    def reads(self) -> Mapping[str, Kind]:
        """The length of each row."""
        return {self.column: "numbers"}

    def layout(self, ranking: Ranking) -> Layout:
        """Windows of batches."""
        return LengthLayout(ranking, self.column, self.window)


@dataclass(frozen=True)
class ByNode(Batches):
    """Draws each batch from one group of the pool, such as one node of an ontology, without replacement within it.

    A group is as likely as it has examples in the pool. Groups of fewer examples than a batch repeat some. Draws of
    different batches are independent, so there are no passes in which every example comes once. Every stage ends with
    a whole batch.

    Args:
        column: names the groups of each row: a string or number, or a list of them.

    Example:
        >>> ByNode("objects").to_dict()
        {'type': 'by_node', 'column': 'objects'}
    """

    type: ClassVar[str] = "by_node"

    column: str = "nodes"

    @property
    def reads(self) -> Mapping[str, Kind]:
        """The groups of each row."""
        return {self.column: "groups"}

    def layout(self, ranking: Ranking) -> Layout:
        """Groups of the pool."""
        return NodeLayout(ranking, self.column)


BATCHES: dict[str, type[Batches]] = {made.type: made for made in (ByImage, ByLength, ByNode)}
"""Every way to put batches together by the name it has in JSON and YAML."""


def batches_from(value: Batches | Mapping[str, Any] | str) -> Batches:
    """The object, from itself, its mapping or its name.

    Raises:
        ValueError: `type` is missing or unknown, or a field does not exist.
    """
    if isinstance(value, Batches):
        return value
    mapping = {"type": value} if isinstance(value, str) else dict(value)
    made = BATCHES.get(mapping.pop("type", None))
    known = [] if made is None else [item.name for item in fields(made)]
    if made is None or set(mapping) - set(known):
        raise ValueError(
            f"batches={value!r} is not possible; it is one of {sorted(BATCHES)}"
            + (f", and {made.type!r} has the fields {known}." if made else ", or a mapping with such a `type`.")
        )
    return made(**mapping)
