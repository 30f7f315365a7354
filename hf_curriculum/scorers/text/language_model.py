"""Language-model loss of captions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np

from hf_curriculum.columns import CAPTION
from hf_curriculum.config import at_least
from hf_curriculum.data.conversations import Part, Turns
from hf_curriculum.provenance import validate_choice
from hf_curriculum.scorers.base import CaptionScorer
from hf_curriculum.scorers.pretrained import (
    Precision,
    folder_digest,
    load_model,
    load_pretrained,
    report_truncated,
    to_host,
)

if TYPE_CHECKING:
    import torch


class _Loaded(NamedTuple):
    """A language model on its device, the ids that stand before a caption, and the most tokens it can read."""

    model: Any
    tokenizer: Any
    before: list[int]
    limit: int


class LanguageModelLoss(CaptionScorer):
    """A language model's loss of a caption, −Σ log p(y_t | y_<t), in nats.

    A caption begins with the tokenizer's beginning-of-text token, if any, so that the first token is scored too
    (`p(y_1 | <s>)`); no end of text is scored. Captions are sorted by length and padded on the right, which a causal
    model does not attend to.

    Args:
        model: a folder or a repository of the Hub with any causal language model, such as "openai-community/gpt2",
            the model of the paper. Nothing is downloaded unless it is named here.
        reduction: "sum" (as in the paper: long captions are hard), or "mean" over the scored tokens.
        first_token: before the caption: "bos", the beginning of text, or nothing if the tokenizer has none. "none":
            nothing, and the caption's first token is not scored. Or any other token of the vocabulary.
        max_length: most tokens of a caption, the first token included; longer ones are truncated, counted in
            `num_truncated` and reported. At most the model's positions.
        batch_tokens: most tokens, padding included, that run through the model at once.
        dtype: "float32", "float16" or "bfloat16"; of log-probabilities the sums are float64.
        revision: of a repository.
        column: where the captions or conversations are.
        name: the column to write.
        easy: a small loss is easy by default.
        part, turns: whose messages of a conversation are scored, and which of them: see `CaptionScorer`.

    Shapes:
        float32 (rows,), in nats (per token with "mean"); NaN for a caption that is missing, empty or blank, or has no
        token to score.

    Raises:
        FileNotFoundError: there is no such model.
        ValueError: unknown `reduction`, `dtype`, `easy`, `part` or `turns`, `max_length` below 2, `batch_tokens` below
            1, a `first_token` outside the vocabulary, a checkpoint that is no causal model.
        TypeError: a cell that is neither a text nor a conversation.

    Source: Zhang et al. 2022 (Simi-CL), §3.3, D_t of equation 4; the token before the first one is not stated.

    Example:
        >>> scorer = LanguageModelLoss("openai-community/gpt2")          # doctest: +SKIP
        >>> add_scores(data, scorer)["language_model_loss"][:]           # doctest: +SKIP
    """

    packages: tuple[str, ...] = ("torch", "transformers", "tokenizers")

    def __init__(
        self,
        model: str,
        reduction: Literal["sum", "mean"] = "sum",
        *,
        first_token: str = "bos",
        max_length: int = 1024,
        batch_tokens: int = 2048,
        dtype: Precision = "float32",
        revision: str | None = None,
        column: str = CAPTION,
        name: str = "language_model_loss",
        easy: Literal["low", "high"] = "low",
        part: Part = "assistant",
        turns: Turns = "all",
    ) -> None:
        validate_choice("reduction", reduction, ("sum", "mean"))
        validate_choice("dtype", dtype, get_args(Precision))
        at_least("LanguageModelLoss", max_length=(max_length, 2), batch_tokens=(batch_tokens, 1))
        super().__init__(column, name, easy, part=part, turns=turns)
        self.model: str = str(model)
        self.reduction = reduction
        self.first_token = first_token
        self.max_length = max_length
        self.batch_tokens = batch_tokens
        self.dtype = dtype
        self.revision: str | None = folder_digest(self.model) if revision is None else revision

    @property
    def num_truncated(self) -> int:
        """Captions that were truncated so far, in this process."""
        return getattr(self, "_num_truncated", 0)

    def load(self, device: torch.device) -> _Loaded:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        tokenizer = load_pretrained(AutoTokenizer, self.model, self.revision)
        model = load_model(AutoModelForCausalLM, self.model, self.revision, dtype=self.dtype).to(device)
        model.config.use_cache = False
        positions = getattr(model.config.get_text_config(), "max_position_embeddings", None) or self.max_length
        before = self._before(tokenizer)
        validate_causal(model, self.model)
        return _Loaded(model, tokenizer, before, min(self.max_length, positions))

    def _before(self, tokenizer: Any) -> list[int]:
        if self.first_token == "none" or (self.first_token == "bos" and tokenizer.bos_token_id is None):
            return []
        if self.first_token == "bos":
            return [tokenizer.bos_token_id]
        known = tokenizer.get_vocab()
        if self.first_token not in known:
            given = f"`first_token={self.first_token!r}` is not in the vocabulary of {self.model!r}"
            raise ValueError(f'{given}. Give one of its tokens, "bos" or "none".')
        return [known[self.first_token]]

    def score_captions(self, captions: list[str], rank: int | None) -> np.ndarray:
        loaded = self.loaded(rank)
        # `verbose=False`: the tokenizer would warn of every caption that is truncated below
        found = loaded.tokenizer(captions, add_special_tokens=False, verbose=False, split_special_tokens=True)[
            "input_ids"
        ]
        tokens = [loaded.before + ids for ids in found]
        report_truncated(self, sum(len(ids) > loaded.limit for ids in tokens), len(tokens), loaded.limit)
        tokens = [ids[: loaded.limit] for ids in tokens]
        losses = np.full(len(tokens), np.nan)
        # the longest first: a batch that does not fit into memory fails at once
        order = sorted((row for row, ids in enumerate(tokens) if len(ids) > 1), key=lambda row: -len(tokens[row]))
        start, found = 0, []
        while start < len(order):
            rows = order[start : start + max(1, self.batch_tokens // len(tokens[order[start]]))]
            found.append(self._losses(loaded.model, [tokens[row] for row in rows]))
            start += len(rows)
        if found:
            losses[order] = to_host(found)
        return losses

    def _losses(self, model: Any, tokens: list[list[int]]) -> torch.Tensor:
        """Losses of captions, float64 (captions,)."""
        import torch

        from hf_curriculum.models.on_host import to_device

        ids, mask = (to_device(values, model.device) for values in padded(tokens))
        with torch.inference_mode():
            logits = model(input_ids=ids, attention_mask=mask).logits  # (captions, tokens, vocabulary)
        return reduced_losses(logits[:, :-1], ids[:, 1:], mask[:, 1:], self.reduction)


def validate_causal(model: Any, name: str) -> None:
    """Raises for a model that sees the token that it has to predict."""
    import torch

    pair = torch.tensor([[0, 1], [0, 2]], device=model.device)  # two texts with one beginning
    with torch.inference_mode():
        first, second = model(input_ids=pair).logits[:, 0]  # (vocabulary,) each
    if not torch.allclose(first, second, rtol=1e-3, atol=1e-4):
        raise ValueError(
            f"{name!r} is no causal language model: a {type(model).__name__} sees the token that it has to predict. "
            "Name a model that reads from left to right, such as GPT-2."
        )


def padded(tokens: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids, padded on the right with 0, and their mask, int64 (texts, longest) each."""
    import torch

    ids = torch.zeros(len(tokens), max(map(len, tokens)), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, found in enumerate(tokens):
        ids[row, : len(found)] = torch.tensor(found)
        mask[row, : len(found)] = 1
    return ids, mask


def reduced_losses(
    logits: torch.Tensor, targets: torch.Tensor, mask: torch.Tensor, reduction: Literal["sum", "mean"]
) -> torch.Tensor:
    """−Σ log p of the target tokens of each row, float64 (rows,), NaN where no token counts."""
    import torch

    losses = [  # row by row: a second copy of all logits would double the memory
        torch.nn.functional.cross_entropy(row if row.dtype == torch.float64 else row.float(), wanted, reduction="none")
        for row, wanted in zip(logits, targets, strict=True)
    ]
    found = torch.stack(losses)  # (rows, tokens)
    found = (found.cpu() if found.device.type == "mps" else found).double()  # which has no doubles
    mask = mask.to(found.device)
    counts = mask.sum(1)
    total = (found * mask).sum(1) / (counts if reduction == "mean" else 1)
    return total.masked_fill(counts == 0, torch.nan)
