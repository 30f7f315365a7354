"""What GIT makes of the lengths and paddings it is given, before anything is computed."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from transformers.cache_utils import Cache


def text_positions(attention_mask: torch.Tensor | None, length: int, device: torch.device) -> torch.Tensor:
    """Positions of the last `length` tokens, counting no padding; shape (batch or 1, length)."""
    if attention_mask is None:
        return torch.arange(length, device=device)[None]
    return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)[:, -length:]


def chosen(name: str, *sources: Any) -> Any:
    """A setting of generation: that of the first of `sources`, dicts or configurations, that says anything."""
    values = (source.get(name) if isinstance(source, dict) else getattr(source, name, None) for source in sources)
    return next((value for value in values if value is not None), None)


def prompt_mask(prompts: torch.Tensor, *sources: Any) -> torch.Tensor | None:
    """What `GenerationMixin` takes for padding where nobody says: padding tokens, unless they end texts as well.

    Args:
        prompts: shape (batch, text).
        sources: where `pad_token_id` and `eos_token_id` are looked for, as in `chosen`.

    Returns:
        1 for tokens, 0 for padding, (batch, text); `None` where padding cannot be told.
    """
    pad, end = chosen("pad_token_id", *sources), chosen("eos_token_id", *sources)
    told = pad is not None and pad not in (end if isinstance(end, list) else [end])
    return (prompts != pad).long() if told else None


def check_room(input_ids: torch.Tensor, attention_mask: torch.Tensor | None, max_positions: int) -> None:
    """Raises where a text that is being generated has outgrown the positions.

    Args:
        input_ids: prompt and continuation so far, shape (batch, text).
        attention_mask: of all of it, shape (batch, text); padding takes no position.
        max_positions: rows of the position embedding.

    Raises:
        ValueError: a text is longer.
    """
    longest = input_ids.shape[1] if attention_mask is None else attention_mask.shape[1]
    if longest > max_positions and attention_mask is not None:
        longest = int((attention_mask != 0).sum(1).max())  # reads values, so it waits for the device
    if longest > max_positions:
        raise ValueError(
            f"A text has grown to {longest} tokens in generation, but the model has {max_positions} positions. Ask "
            "for fewer tokens (`max_new_tokens`, or `generation_max_length` of the training arguments), shorten the "
            "prompt, or build the model with a larger `max_position_embeddings`."
        )


def pad_left(prompts: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Moves every row's padding before its text, keeping both in order; shapes (batch, text) as given."""
    order = torch.argsort((mask != 0).long(), dim=1, stable=True)
    return prompts.gather(1, order), mask.gather(1, order)


def check_alternatives(
    input_ids: torch.Tensor | None,
    inputs_embeds: torch.Tensor | None,
    pixel_values: torch.Tensor | None,
    image_features: torch.Tensor | None,
) -> None:
    """Raises where one thing was given in two forms, or the text in none.

    Raises:
        ValueError: there is no text or two of them, or a picture and features.
    """
    if (input_ids is None) == (inputs_embeds is None):
        raise ValueError("GIT reads one text: pass `input_ids` or `inputs_embeds`, and not both.")
    if pixel_values is not None and image_features is not None:
        raise ValueError(
            "Both `pixel_values` and `image_features` were given. The features replace the picture: pass one."
        )


def check_inputs(
    words: torch.Tensor,
    image_features: torch.Tensor | None,
    attention_mask: torch.Tensor | None,
    position_ids: torch.Tensor | None,
    past_key_values: Cache | None,
    max_positions: int,
) -> int:
    """The number of cached tokens; raises where shapes would broadcast, or index, into something nobody meant.

    Args:
        words: embedded text, shape (batch, text, width).
        image_features: shape (batch, image tokens, vision width); `None` too where texts share images, which
            `share_images` has checked.
        attention_mask: shape (batch, text, cached text included).
        position_ids: shape (batch or 1, text).
        past_key_values: the cache, if any.
        max_positions: rows of the position embedding.

    Raises:
        ValueError: pictures and texts differ in number, a picture comes after cached tokens, the text's place behind
            the cache is not known, the mask does not cover the text, the text is too long, the cache is static.
    """
    batch, length = words.shape[:2]
    if past_key_values is not None and past_key_values.is_compileable:
        raise ValueError(
            f"The cache is a {type(past_key_values).__name__} of fixed length. GIT's image tokens take places in it "
            "that `generate` does not count. Use the default cache."
        )
    past_length = 0 if past_key_values is None else past_key_values.get_seq_length()
    if length > max_positions:
        raise ValueError(
            f"The text has {length} tokens, but the model has {max_positions} positions. Truncate it, or build the "
            "model with a larger `max_position_embeddings`."
        )
    if image_features is not None and image_features.shape[0] != batch:
        raise ValueError(
            f"There are {image_features.shape[0]} pictures for {batch} texts. Every text reads one picture: repeat "
            "the pictures, or their `encode_images`, with `repeat_interleave`, or say with `image_index` who reads "
            "which."
        )
    if image_features is not None and past_length:
        raise ValueError(
            f"A picture was given with a cache of {past_length} tokens. Image tokens come before all text: give the "
            "picture with the first call alone."
        )
    if past_length and attention_mask is None and position_ids is None:
        raise ValueError(
            f"The cache holds {past_length} tokens, and how many of them are text is not known. Pass `position_ids`, "
            "or the `attention_mask` of all text so far."
        )
    if attention_mask is not None:
        _check_mask(attention_mask, batch, length, past_length)
    return past_length


def _check_mask(attention_mask: torch.Tensor, batch: int, length: int, past_length: int) -> None:
    rows, width = attention_mask.shape if attention_mask.ndim == 2 else (0, 0)
    longest = length + past_length
    if rows != batch or not length <= width <= longest:
        raise ValueError(
            f"attention_mask has the shape {tuple(attention_mask.shape)} for {batch} texts of {length} new tokens "
            f"after {past_length} cached ones. It covers the text alone, image tokens are always visible: pass "
            f"(batch, text) with {length} to {longest} columns."
        )


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
