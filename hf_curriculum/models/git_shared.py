"""Several captions behind one image: how the images and the texts of a batch stand side by side in the decoder."""

from __future__ import annotations

from typing import NamedTuple

import torch


class SharedImages(NamedTuple):
    """Which image each text reads, where a batch has fewer images than texts.

    The image tokens of all images, then the text tokens of all texts, are the rows of one flat sequence: what works on
    single rows (linear layers, norms) meets each image once. In attention the texts part: each sees its image and
    itself, so that its result is the same as behind an image of its own.

    Args:
        index: the image of each text, (texts,) int64.
        images: the number of images.
        image_tokens: rows that an image takes.
    """

    index: torch.Tensor
    images: int
    image_tokens: int

    @property
    def image_rows(self) -> int:
        """Rows of all images together."""
        return self.images * self.image_tokens

    def join(self, image: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        """(images, image tokens, width) and (texts, text, width) as (1, image rows + text rows, width)."""
        return torch.cat([image.flatten(0, 1), text.flatten(0, 1)])[None]

    def text_of(self, states: torch.Tensor) -> torch.Tensor:
        """The last rows of (1, rows, width), those of the texts alone, as (texts, text, width)."""
        return states[0].unflatten(0, (len(self.index), -1))

    def split(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What `join` was given, from (1, rows, width)."""
        image = states[0, : self.image_rows].unflatten(0, (self.images, -1))
        return image, self.text_of(states[:, self.image_rows :])

    def repeated(self, states: torch.Tensor) -> torch.Tensor:
        """Each text behind a copy of its image: (1, rows, width) as (texts, image tokens + text, width)."""
        image, text = self.split(states)
        # Indexing, not `index_select`: its gradient is summed in a fixed order on GPUs too.
        return torch.cat([image[self.index], text], dim=1)


def share_images(
    image_index: torch.Tensor | None, image_features: torch.Tensor | None, texts: int, continues: bool
) -> SharedImages | None:
    """The plan of a batch whose texts share images; `None` where every text has its own.

    Args:
        image_index: the image of each text, (texts,).
        image_features: hidden states of the vision tower, (images, image tokens, width).
        texts: the number of texts.
        continues: whether keys and values were given or asked for.

    Raises:
        ValueError: there is no image, an image that does not exist is named, or a cache is involved.
    """
    if image_index is None:
        return None
    if image_features is None:
        raise ValueError(
            "`image_index` was given, but no picture: it says which of the pictures each text reads. Pass "
            "`pixel_values` or `image_features` too, or neither for text alone."
        )
    if image_index.shape != (texts,) or image_index.dtype != torch.int64:
        raise ValueError(
            f"image_index has the shape {tuple(image_index.shape)} and the type {image_index.dtype} for {texts} "
            f"texts. It names one picture per text: pass int64 of the shape ({texts},)."
        )
    images = len(image_features)
    # Elsewhere the check would wait for the device, and indexing has one of its own.
    if image_index.device.type == "cpu" and not torch.compiler.is_compiling():
        lowest, highest = int(image_index.min()), int(image_index.max())
        if lowest < 0 or highest >= images:
            raise ValueError(
                f"image_index names the pictures {lowest} to {highest}, but there are {images} of them, numbered "
                "from 0. A text would read no picture, or another one's."
            )
    if continues:
        raise ValueError(
            "`image_index` was given together with a cache, which keeps the image of every text apart. Pass "
            "`use_cache=False`; `generate` takes `image_index` and repeats the images itself."
        )
    return SharedImages(image_index, images, image_features.shape[1])
