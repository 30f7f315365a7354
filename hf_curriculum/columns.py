"""Names of the columns that cross from one stage to the next."""

from __future__ import annotations

from collections.abc import Iterable

IMAGE = "image"
"""An image (`datasets.Image`)."""
CAPTION = "caption"
"""One sentence about the image (string)."""
IMAGE_ID = "image_id"
"""Shared by all captions of one image (string)."""
MESSAGES = "messages"
"""A conversation: a list of `{"role": ..., "content": ...}`."""
IMAGES = "images"
"""The images of a conversation, in the order in which it shows them (list of `datasets.Image`)."""
LABEL = "label"
"""The class of an image (`datasets.ClassLabel`)."""
GUIDANCE = "guidance"
"""How close an image is to a photograph (float32): 1 for a real one, less for one that diffusion made."""
HARD = "hard"
"""Whether an image is hard (bool), for curricula that treat hard ones apart."""
SOURCE_ID = "source_id"
"""The `image_id` of the photograph that an image was made from by diffusion (string)."""
TOKENS = "tokens"
"""The words of a caption as its file splits them, joined by spaces (string): of Karpathy's files."""


def require_columns(found: Iterable[str], needed: Iterable[str], *, reader: str, remedy: str) -> None:
    """Checks that there are the columns that a reader needs."""
    found = list(found)
    missing = [column for column in needed if column not in found]
    if missing:
        names = ", ".join(f"`{column}`" for column in missing)
        verb = "is" if len(missing) == 1 else "are"
        raise ValueError(f"{names} {verb} not in the data, which has the columns {found}. {reader} {remedy}")
