"""Which picture a token sees, and what Flamingo refuses, before anything is computed."""

from __future__ import annotations

import torch
from transformers.cache_utils import Cache, EncoderDecoderCache

from hf_curriculum.models.flamingo_config import CaptionFlamingoConfig


def count_images(input_ids: torch.Tensor, image_token_id: int) -> torch.Tensor:
    """The picture each token sees: how many `<image>` tokens there are up to it, itself included.

    Args:
        input_ids: the whole text, shape (batch, text).
        image_token_id: of `<image>`.

    Returns:
        int64, shape (batch, text): 0 before any picture, k from the k-th `<image>` on.

    Example:
        >>> count_images(torch.tensor([[2, 9, 5, 9, 6]]), image_token_id=9)
        tensor([[0, 1, 1, 2, 2]])
    """
    return (input_ids == image_token_id).long().cumsum(-1)


def visible_latents(image_numbers: torch.Tensor, images: int, latents: int) -> torch.Tensor | None:
    """What each token sees of all pictures' latents: those of its own picture.

    A token before any picture sees everything, so that no row is empty; what it is told is put to zero afterwards.

    Args:
        image_numbers: of `count_images`, shape (batch, text).
        images: pictures per text.
        latents: vectors per picture.

    Returns:
        bool, shape (batch, 1, text, images · latents); `None` for one picture, which every token sees.
    """
    if images == 1:
        return None
    numbers = torch.arange(1, images + 1, device=image_numbers.device)
    seen = (image_numbers[..., None] == numbers) | (image_numbers == 0)[..., None]  # (batch, text, images)
    return seen.repeat_interleave(latents, dim=-1)[:, None]


def as_images(values: torch.Tensor, dims: int, name: str, batch: int, max_images: int) -> torch.Tensor:
    """`values` with a dimension of images, (batch, images, ...), of which one picture per text has none.

    Args:
        values: pictures or their features.
        dims: how many dimensions one of them has.
        name: what it is called in errors.
        batch: texts.
        max_images: most pictures in a text.

    Raises:
        ValueError: another number of dimensions, not as many rows as texts, too many pictures in a text.
    """
    if values.ndim not in (dims + 1, dims + 2):
        raise ValueError(
            f"{name} has the shape {tuple(values.shape)}. Flamingo takes one picture per text, which makes {dims + 1} "
            f"dimensions, or several, (batch, images, ...), which makes {dims + 2}."
        )
    values = values[:, None] if values.ndim == dims + 1 else values
    if values.shape[0] != batch:
        raise ValueError(
            f"There are pictures for {values.shape[0]} texts, but {batch} texts. Repeat the pictures, or their "
            "`encode_images`, with `repeat_interleave`, or say with `image_index` who reads which."
        )
    if not 1 <= values.shape[1] <= max_images:
        raise ValueError(
            f"There are {values.shape[1]} pictures per text, but the model has embeddings for {max_images}. Give "
            "fewer, or build it with a larger `max_images`."
        )
    return values


def check_image_numbers(image_numbers: torch.Tensor, images: int, config: CaptionFlamingoConfig) -> None:
    """Raises where pictures and `<image>` tokens do not belong together: a picture nobody sees is a silent loss.

    It reads values, so it waits for the device; it is left out under `torch.compile`.

    Args:
        image_numbers: of `count_images`, shape (batch, text).
        images: pictures per text.
        config: for the error.

    Raises:
        ValueError: a text without `<image>`, or with more of them than pictures.
    """
    if torch.compiler.is_compiling() or image_numbers.is_meta:
        return
    highest = image_numbers.amax(-1)
    fewest, most = highest.min().item(), highest.max().item()
    if fewest == 0:
        row = highest.argmin().item()
        raise ValueError(
            f"Text {row} of the batch has a picture but no `<image>` token (id {config.image_token_id}): no token "
            "would see the picture. Put it before the caption, as `CaptionCollator(prefix='<image> ')` does with a "
            "tokenizer that knows the token (`add_image_token`)."
        )
    if most > images:
        raise ValueError(
            f"Text {highest.argmax().item()} of the batch has {most} `<image>` tokens (id {config.image_token_id}) "
            f"but {images} picture(s) were given. Each token stands for one picture, in their order."
        )


def check_text(
    batch: int,
    length: int,
    attention_mask: torch.Tensor | None,
    position_ids: torch.Tensor | None,
    past_key_values: Cache | None,
    new_images: bool,
    max_positions: int,
) -> int:
    """The number of cached tokens; raises where lengths do not fit.

    Args:
        batch: texts.
        length: new tokens of each.
        attention_mask: shape (batch, text, cached text included).
        position_ids: shape (batch or 1, text).
        past_key_values: the cache, if any.
        new_images: whether pictures were given.
        max_positions: rows of the position embedding.

    Raises:
        ValueError: the cache is static, the text too long, a picture comes after cached tokens, the mask does not
            cover the text.
    """
    if past_key_values is not None and past_key_values.is_compileable:
        raise ValueError(
            f"The cache is a {type(past_key_values).__name__} of fixed length, which has no place for pictures. Use "
            "the default cache."
        )
    past_length = 0 if past_key_values is None else past_key_values.get_seq_length()
    if position_ids is None and past_length + length > max_positions:
        raise ValueError(
            f"The text has {past_length + length} tokens, but the model has {max_positions} positions. Truncate it, "
            "or build the model with a larger `max_position_embeddings`."
        )
    if new_images and past_length:
        raise ValueError(
            f"A picture was given with a cache of {past_length} tokens. The cache holds the pictures of a text, all "
            "of them: give them with the first call."
        )
    if attention_mask is not None and tuple(attention_mask.shape) != (batch, past_length + length):
        raise ValueError(
            f"attention_mask has the shape {tuple(attention_mask.shape)} for {batch} texts of {length} new tokens "
            f"after {past_length} cached ones. Pass ({batch}, {past_length + length})."
        )
    return past_length


def cached_latents(past_key_values: Cache | None) -> int:
    """Latents of pictures in the cache, 0 where there are none."""
    if not isinstance(past_key_values, EncoderDecoderCache):
        return 0
    return past_key_values.cross_attention_cache.get_seq_length()
