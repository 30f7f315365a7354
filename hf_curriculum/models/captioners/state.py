"""The state of a recurrent captioner as a cache of `transformers`, for `generate`."""

from __future__ import annotations

import torch
from transformers.cache_utils import Cache


class RecurrentCache(Cache):
    """What an LSTM captioner carries from one token to the next, and what it reads of each text's image.

    A state has the same size after any number of tokens, so there are no layers of keys and values and nothing to
    truncate: `crop` is refused. Models make one themselves where `use_cache` is set; pass it on as `cache`
    (`past_key_values` before `transformers` 5.24).

    Example:
        >>> cache = RecurrentCache()
        >>> cache.update_state((torch.zeros(2, 8),), tokens=3)
        >>> cache.get_seq_length(), cache.batch_size
        (3, 2)
    """

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.state: tuple[torch.Tensor, ...] = ()
        self.image: tuple[torch.Tensor, ...] = ()
        self.image_index: torch.Tensor | None = None
        self.seen_tokens: int = 0

    def update_state(self, state: tuple[torch.Tensor, ...], tokens: int) -> None:
        """Replaces the state.

        Args:
            state: tensors of shape (texts, width).
            tokens: how many columns of text were read since the last state, padding included.
        """
        self.state = state
        self.seen_tokens += tokens

    @property
    def batch_size(self) -> int:
        """Texts, or -1 before the first."""
        return len(self.state[0]) if self.state else -1

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns of text read so far, padding included."""
        return self.seen_tokens

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        """-1: there is no maximum."""
        return -1

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """-1: there is no maximum."""
        return -1

    def reset(self) -> None:
        """Forgets texts and images."""
        self.state, self.image, self.image_index, self.seen_tokens = (), (), None, 0

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Puts the texts in another order, (texts,), as beam search does."""
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each text so many times, one copy after the other."""
        if self.state:
            texts = torch.arange(self.batch_size, device=self.state[0].device)
            self.batch_select_indices(texts.repeat_interleave(repeats))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keeps the texts of these indices, (texts,), in their order; images are not copied."""
        if self.state:
            indices = indices.to(self.state[0].device)
            self.state = tuple(part.index_select(0, indices) for part in self.state)
            self.image_index = indices if self.image_index is None else self.image_index[indices]

    @property
    def is_linear(self) -> list[bool]:
        """False, once: with no entry `generate` takes the cache for one that does not count its text."""
        return [False]

    @property
    def is_croppable(self) -> bool:
        """False: earlier states are gone."""
        return False

    def crop(self, tokens_to_remove: int) -> None:
        """Refused.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            f"crop({tokens_to_remove}) asks a recurrent state to go back to an earlier token, but it keeps the last "
            "state alone. Generate without assisted decoding, or read the shorter text from its beginning."
        )
