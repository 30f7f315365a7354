"""How little the instruction helps a model to its response."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hf_curriculum.data.conversations import Turns
from hf_curriculum.scorers.chat_losses import ChatPasses
from hf_curriculum.scorers.model_loss import ModelLoss

if TYPE_CHECKING:
    import torch


class InstructionFollowingDifficulty(ModelLoss):
    """A response's mean loss given the instruction and images, divided by its loss alone (IFD).

    It is below 1 where the instruction helps, and smaller the more it helps; above 1 the two do not belong together.
    The paper trains on examples of high difficulty, and leaves out those above 1.

    Both losses are of the same tokens (see `ModelLoss`), and of all scored turns. Alone, each response follows the
    tokenizer's beginning of text; without one its first token is not scored, because it follows nothing. Each row
    takes 2 passes, the second of them short.

    Args:
        model: a chat model, as in `ModelLoss`; the paper uses the model to be trained, after training it a little.
        processor: as in `ModelLoss`.
        max_length: as in `ModelLoss`.
        batch_size: conversations that run through the model at once.
        revision: of a repository.
        image_column: as in `ModelLoss`.
        caption_column: as in `ModelLoss`.
        prompt_column: as in `ModelLoss`.
        prompt: as in `ModelLoss`.
        turns: as in `ModelLoss`.
        name: the column to write.
        easy: a small ratio is easy by default.

    Shapes:
        float32 (rows,), a ratio without unit; NaN where `ModelLoss` has NaN, and for a response of one token that
        nothing stands before.

    Raises:
        FileNotFoundError: as `ModelLoss`.
        ValueError: as `ModelLoss`; a captioner.

    Source: Li et al. 2024 (From Quantity to Quality, arXiv 2308.12032), the conditioned answer score
    divided by the direct one. There the response
    has no chat template's end of turn, and one turn.

    Example:
        >>> scorer = InstructionFollowingDifficulty("HuggingFaceTB/SmolVLM-256M-Instruct")  # doctest: +SKIP
        >>> add_scores(chats, scorer)["instruction_following_difficulty"][:]                # doctest: +SKIP
    """

    def __init__(
        self,
        model: str,
        processor: str | None = None,
        *,
        max_length: int | None = None,
        batch_size: int = 32,
        revision: str | None = None,
        image_column: str | None = None,
        caption_column: str | None = None,
        prompt_column: str | None = None,
        prompt: str | None = None,
        turns: Turns = "all",
        name: str = "instruction_following_difficulty",
        easy: Literal["low", "high"] = "low",
    ) -> None:
        super().__init__(
            model,
            processor,
            "mean",
            max_length=max_length,
            batch_size=batch_size,
            revision=revision,
            image_column=image_column,
            caption_column=caption_column,
            prompt_column=prompt_column,
            prompt=prompt,
            turns=turns,
            name=name,
            easy=easy,
        )

    def load(self, device: torch.device) -> Any:
        loaded = super().load(device)
        if not self.reads_chats:
            raise ValueError(
                f"{self.model!r} is a {type(loaded.model).__name__}, which reads captions, not instructions. Name a "
                "chat model, such as SmolVLM or Qwen2-VL."
            )
        return loaded

    def chat_scores(self, passes: ChatPasses) -> np.ndarray:
        """Ratios of conversations, float64 (rows,)."""
        return passes.own().reduced("mean") / passes.alone().reduced("mean")
