"""How long the assistant's responses are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hf_curriculum.columns import MESSAGES
from hf_curriculum.data.conversations import ConversationError, Turns, read_messages, text_of
from hf_curriculum.provenance import validate_choice
from hf_curriculum.scorers.base import Scorer
from hf_curriculum.scorers.pretrained import folder_digest, load_pretrained

if TYPE_CHECKING:
    import torch


class ResponseLength(Scorer):
    """The number of words, or tokens, that the assistant says in a conversation.

    Args:
        tokenizer: a folder or a repository of the Hub, such as the model that will be trained: its tokens are then
            counted, without special ones. By default words, split at white space.
        turns: which of the assistant's messages count: "all", the "first" or the "last".
        column: where the conversations are; texts count as they are (`column="completion"`, `column="caption"`).
        revision: of a repository.
        name: the column to write.
        easy: short responses are easy by default.

    Shapes:
        float32 (rows,), in words or tokens; NaN where the assistant says nothing.

    Raises:
        FileNotFoundError: there is no such tokenizer.
        ValueError: unknown `turns` or `easy`, or a list that holds no messages.

    Example:
        >>> chat = [{"role": "user", "content": "What is it?"}, {"role": "assistant", "content": "A red ball."}]
        >>> ResponseLength()({"messages": [chat, []]})
        {'response_length': array([ 3., nan], dtype=float32)}
    """

    packages: tuple[str, ...] = ()

    def __init__(
        self,
        tokenizer: str | None = None,
        *,
        turns: Turns = "all",
        column: str = MESSAGES,
        revision: str | None = None,
        name: str = "response_length",
        easy: Literal["low", "high"] = "low",
    ) -> None:
        validate_choice("turns", turns, ("all", "first", "last"))
        self.tokenizer: str | None = None if tokenizer is None else str(tokenizer)
        if self.tokenizer is not None:
            revision = folder_digest(self.tokenizer) if revision is None else revision
            self.packages = ("transformers", "tokenizers")
        self.revision: str | None = revision
        self.turns, self.column = turns, column
        self._set_columns((column,), name, easy)

    def load(self, device: torch.device) -> Any:
        from transformers import AutoTokenizer

        return load_pretrained(AutoTokenizer, self.tokenizer, self.revision)

    def score(self, batch: dict[str, list[Any]], rank: int | None) -> np.ndarray:
        texts = [self._response(row, cell) for row, cell in enumerate(batch[self.column])]
        said = [row for row, text in enumerate(texts) if text.strip()]
        lengths = np.full(len(texts), np.nan)
        if self.tokenizer is None or not said:
            self.look_at_words([texts[row] for row in said])
            lengths[said] = [len(texts[row].split()) for row in said]
            return lengths
        tokens = self.loaded(rank)([texts[row] for row in said], add_special_tokens=False, verbose=False)["input_ids"]
        lengths[said] = [len(ids) for ids in tokens]
        return lengths

    def _response(self, row: int, cell: Any) -> str:
        if cell is None or isinstance(cell, str):
            return cell or ""
        try:
            return text_of(read_messages(cell), "assistant", self.turns)
        except ConversationError as error:
            raise ValueError(f"`{self.column}` in row {row} of the batch cannot be read: {error}.") from error
