"""What stands for a picture in the text of models that read it there."""

from __future__ import annotations

from transformers import PreTrainedModel, PreTrainedTokenizerBase


def image_text(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> str:
    """The text that stands for one picture: `"<image>"` for Flamingo, nothing for models such as GIT.

    It is the model's `image_token_id`, as often as its `image_seq_length` says (once without).

    Args:
        model: any model.
        tokenizer: the model's.

    Raises:
        ValueError: the tokenizer does not read the token's text as that token.

    Example:
        >>> image_text(flamingo, tokenizer)  # doctest: +SKIP
        '<image>'
    """
    image_id = getattr(model.config, "image_token_id", None)
    if image_id is None:
        return ""
    token = tokenizer.convert_ids_to_tokens(image_id) if image_id < len(tokenizer) else None
    if token is None or tokenizer(token, add_special_tokens=False)["input_ids"] != [image_id]:
        raise ValueError(
            f"The model stands token {image_id} for a picture, but the tokenizer ({type(tokenizer).__name__}, "
            f"{len(tokenizer)} entries) reads it as {token!r}. Pictures would go unseen. Use the tokenizer the model "
            "was trained with; a benchmark's scorer also takes the text by name, `image_tokens=`."
        )
    return token * (getattr(model.config, "image_seq_length", None) or 1)
