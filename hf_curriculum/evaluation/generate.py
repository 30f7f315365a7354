"""Captions for the images of a data set."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from tqdm.auto import tqdm

from hf_curriculum.columns import CAPTION, IMAGE, IMAGE_ID, require_columns
from hf_curriculum.config import kind_of
from hf_curriculum.data.collators import CaptionCollator
from hf_curriculum.data.identity import validate_image_ids
from hf_curriculum.data.image_inputs import ImageInputs, PixelInputs, images_for
from hf_curriculum.models.base import evaluation_mode, image_placeholder, warn_of_other_end
from hf_curriculum.shapes import validate_arguments

if TYPE_CHECKING:
    from datasets import Dataset
    from PIL import Image
    from transformers import ProcessorMixin

DESCRIBE = "Describe the image."
"""What a chat model is asked unless a `prompt` is given."""


@validate_arguments
def generate_captions(
    model: torch.nn.Module,
    dataset: Dataset,
    processor: ProcessorMixin | CaptionCollator,
    *,
    batch_size: int = 32,
    max_new_tokens: int | None = None,
    num_beams: int = 1,
    image_column: str | None = None,
    prompt: str | None = None,
    progress: bool = True,
    **options: Any,
) -> list[str]:
    """Generates one caption per row of a data set.

    A chat model (LLaVA, SmolVLM, Qwen2-VL, ...) reads a conversation: a user shows the image and says `prompt`. The
    processor's chat template renders it, prompts are padded on the left, and the caption is what the model responds.

    The model is in evaluation mode meanwhile, and every one of its modules in its former mode afterwards. The
    global random states of Python, numpy and torch are as before, so that captions written during training leave
    the rest of the run as it would have been.

    Args:
        model: anything whose `generate(pixel_values=..., max_new_tokens=...)` returns token ids `[batch, length]`; or
            `image_features`, or `region_features` and `region_mask` in place of `pixel_values`. Or a chat model that
            `AutoModelForImageTextToText` loads.
        dataset: one row per image (`one_row_per_image`); formats and transforms set on it are put aside.
        processor: has an `image_processor` and a `tokenizer` (a `GitProcessor`), or a `CaptionCollator`, whose
            `vision_features` or `regions` are read in place of the images, by `image_id`. Of a chat model, what
            `AutoProcessor` loads.
        batch_size: images per call of `generate`.
        max_new_tokens: tokens at most per caption; by default the model's own setting, or 30 where it has none.
        num_beams: beams; 1 is greedy.
        image_column: the column of images, in any form `to_rgb` reads; by default the collator's, or "image".
        prompt: what a chat model is asked about each image; by default "Describe the image."
        progress: shows a bar on a terminal when it takes more than two seconds.
        options: more arguments of `generate`; `do_sample` is `False` unless given.

    Returns:
        Captions without special tokens, words separated by one space, in the order of the rows.

    Raises:
        ValueError: the column of images or ids is missing; `batch_size`, `max_new_tokens` or `num_beams` is below 1; a
            row or the processor has no image, features or regions. Or a chat model's processor has no chat template,
            or a captioner, which reads none, got a `prompt`.

    Example:
        >>> captions = generate_captions(model, one_row_per_image(test), processor)  # doctest: +SKIP
        >>> model = AutoModelForImageTextToText.from_pretrained("Qwen/Qwen2-VL-2B-Instruct")  # doctest: +SKIP
        >>> processor = AutoProcessor.from_pretrained("Qwen/Qwen2-VL-2B-Instruct")  # doctest: +SKIP
        >>> captions = generate_captions(model, test, processor, prompt="What is shown?")  # doctest: +SKIP
    """
    longest = _most_tokens(model) if max_new_tokens is None else max_new_tokens
    counts = {"batch_size": batch_size, "max_new_tokens": longest, "num_beams": num_beams}
    for name, value in counts.items():
        if value < 1:
            raise ValueError(f"`{name}` is {value}, which leaves nothing to generate. Pass 1 or more.")
    prompt = _rendered_prompt(model, processor, prompt)
    inputs = _image_inputs(processor, image_column)
    require_columns(
        dataset.column_names,
        inputs.columns,
        reader="Captions are generated from images, or from features found by their ids.",
        remedy="Pass `image_column=`.",
    )
    inputs.validate(dataset, "the data set")
    rows = dataset.with_format(None).select_columns(list(inputs.columns))
    if isinstance(processor, CaptionCollator):
        warn_of_other_end(model, processor.encoder)
    weight = next(model.parameters())
    options = {"do_sample": False, **options, "max_new_tokens": longest, "num_beams": num_beams}
    captions: list[str] = []
    with (
        evaluation_mode(model),
        keep_random_states(weight.device),
        torch.inference_mode(),
        tqdm(total=len(rows), desc="captions", unit="image", delay=2, disable=None if progress else True) as bar,
    ):
        for start in range(0, len(rows), batch_size):
            batch = rows[start : start + batch_size]
            examples = [dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)]
            captions += _write(model, processor, inputs, examples, options, prompt=prompt, first_row=start)
            bar.update(len(examples))
    return captions


def caption_images(
    model: torch.nn.Module,
    images: Sequence[Image.Image | str],
    processor: ProcessorMixin | CaptionCollator,
    *,
    prompt: str | None = None,
    **options: Any,
) -> list[str]:
    """One caption for each image, as `generate_captions` writes them, in one batch."""
    prompt = _rendered_prompt(model, processor, prompt)
    inputs = _image_inputs(processor, None)
    if not images:
        return []
    (column,) = inputs.columns
    examples = [{column: image} for image in images]
    options = {"do_sample": False, "max_new_tokens": _most_tokens(model), **options}
    device = next(model.parameters()).device
    with evaluation_mode(model), keep_random_states(device), torch.inference_mode():
        return _write(model, processor, inputs, examples, options, prompt=prompt)


def _most_tokens(model: torch.nn.Module) -> int:
    """Tokens of a caption at most: a model's own setting, or 30."""
    return getattr(getattr(model, "generation_config", None), "max_new_tokens", None) or 30


def _rendered_prompt(
    model: torch.nn.Module, processor: ProcessorMixin | CaptionCollator, prompt: str | None
) -> str | None:
    """The text that a chat model reads with each image; None for a captioner. BLIP-2 makes its prompt itself."""
    config = getattr(model, "config", None)
    placeholder = image_placeholder(config)
    if placeholder is None or config.model_type == "blip-2":
        if prompt is not None:
            raise ValueError(
                f"`prompt` is {prompt!r}, and the model is a {type(model).__name__}, which writes captions from "
                "images alone: the prompt would not be read. Leave it out."
            )
        return None
    if getattr(processor, "chat_template", None) is None:
        raise ValueError(
            f"The model is a {type(model).__name__}, which reads an image as placeholder tokens (`{placeholder}`) "
            f"within a conversation, and the {type(processor).__name__} has no chat template to render one. Pass the "
            "processor that belongs to the model (`AutoProcessor.from_pretrained`), or set its `chat_template`."
        )
    said = [{"type": "image"}, {"type": "text", "text": DESCRIBE if prompt is None else prompt}]
    chat = [{"role": "user", "content": said}]
    return cast("ProcessorMixin", processor).apply_chat_template(chat, tokenize=False, add_generation_prompt=True)


def _image_inputs(processor: ProcessorMixin | CaptionCollator, image_column: str | None) -> ImageInputs:
    """How images are read for a processor, without augmentation."""
    of_collator = processor.image_inputs if isinstance(processor, CaptionCollator) else None
    if of_collator is not None and not (image_column and isinstance(of_collator, PixelInputs)):
        return of_collator.without_augmentation()
    if not hasattr(processor, "image_processor"):
        raise TypeError(
            f"{kind_of(processor)} was given as `processor`, and one with an `image_processor` and a `tokenizer` is "
            "needed: what `AutoProcessor` loads, `GitProcessor(image_processor, tokenizer)`, or the CaptionCollator "
            "that the model was trained with."
        )
    if processor.image_processor is None:
        raise ValueError(
            f"The {type(processor).__name__} has no image processor, so no image can be read for the model. Pass a "
            "processor with one, or, for a model that was trained on stored regions or features, a collator that "
            "reads them: `CaptionCollator(tokenizer, regions=open_regions(store))`."
        )
    return PixelInputs(processor.image_processor, image_column=image_column or IMAGE)


def _write(
    model: torch.nn.Module,
    processor: ProcessorMixin | CaptionCollator,
    inputs: ImageInputs,
    examples: Sequence[dict[str, Any]],
    options: dict[str, Any],
    *,
    prompt: str | None,
    first_row: int | None = None,
) -> list[str]:
    """Captions of a batch of rows, or of a chat model what it responds to `prompt`."""
    weight = next(model.parameters())
    if prompt is None:
        seen = inputs.batch(examples, first_row)
        ids = model.generate(**images_for(seen, weight), **options)  # [b, length]
    else:
        images = cast(PixelInputs, inputs).images(examples, first_row)
        bos = processor.tokenizer.bos_token
        read = cast("ProcessorMixin", processor)(
            text=[prompt] * len(images),
            images=[[image] for image in images],
            padding=True,
            padding_side="left",  # what is written begins at the same place in every row
            add_special_tokens=bos is None or not prompt.startswith(bos),
            return_tensors="pt",
        ).to(weight.device, weight.dtype)
        ids = model.generate(**read, **options)[:, read["input_ids"].shape[1] :]
    return [" ".join(text.split()) for text in processor.tokenizer.batch_decode(ids, skip_special_tokens=True)]


@validate_arguments
def references(dataset: Dataset) -> dict[str, list[str]]:
    """All captions of each image, by `image_id`, in the order of the rows.

    Args:
        dataset: has the columns `image_id` and `caption`; rows without a caption are left out.

    Raises:
        ValueError: a column is missing, or a row's `image_id` is empty.

    Example:
        >>> from datasets import Dataset
        >>> pairs = Dataset.from_dict({"image_id": ["b", "b", "a"], "caption": ["a dog", "it barks", "a cat"]})
        >>> references(pairs)
        {'b': ['a dog', 'it barks'], 'a': ['a cat']}
    """
    require_columns(
        dataset.column_names, [CAPTION], reader="Generated captions are compared with it.", remedy="Rename the column."
    )
    found: dict[str, list[str]] = {}
    captions = dataset.with_format(None).select_columns(CAPTION)[:][CAPTION]
    for image_id, caption in zip(_image_ids(dataset), captions, strict=True):
        found.setdefault(image_id, []).extend([caption] if caption else [])
    return found


def _image_ids(dataset: Dataset) -> list[str]:
    require_columns(
        dataset.column_names,
        [IMAGE_ID],
        reader="It says which captions belong to the same image.",
        remedy="Add it; with one caption per image any unique string will do.",
    )
    validate_image_ids(dataset)
    ids = dataset.with_format(None).select_columns(IMAGE_ID)[:][IMAGE_ID]
    missing = sum(image_id is None for image_id in ids)
    if missing:
        raise ValueError(
            f"{missing:,} of {len(ids):,} rows have no `image_id`. It says which captions belong to the same image: "
            "these rows would count as one. Give each image an id."
        )
    return ids


@contextmanager
def keep_random_states(device: torch.device) -> Iterator[None]:
    devices = [device] if device.type == "cuda" else []
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 (the global state is what is kept)
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002
