"""What UpDown and AoANet share: their state, word by word."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast

from hf_curriculum.models.base import takes_cache
from hf_curriculum.models.on_host import known_or_read, to_device
from hf_curriculum.tasks.captioning.models.base import RegionCaptionerForCausalLM, RegionCaptionerModel
from hf_curriculum.tasks.captioning.models.config import RecurrentCaptionerConfig
from hf_curriculum.tasks.captioning.models.regions import EncodedImages


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


Names = dict[str, tuple[str, ...]]
Parts = tuple[torch.Tensor, ...]
"""Tensors with a row per text: an LSTM's state, or what it reads of the texts' images."""


class SampledWords(NamedTuple):
    """Words of the input replaced by words that the model would have written itself, in training.

    Args:
        probability: of each word after the first token to be replaced.
        seed: of all draws: with the same seed, batch and weights the same words are drawn.
        output_layer: hidden states (texts, width) to logits (texts, vocabulary).
    """

    probability: float
    seed: int
    output_layer: Callable[[torch.Tensor], torch.Tensor]

    def draws(self, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Whether each token is replaced, and a number in [0, 1) that picks the word: each (tokens,), on the CPU."""
        generator = torch.Generator().manual_seed(self.seed)
        coins, picks = torch.rand(2, tokens, generator=generator, dtype=torch.float64)
        return coins < self.probability, picks

    @torch.no_grad()
    def words(self, outputs: torch.Tensor, picks: torch.Tensor) -> torch.Tensor:
        """A word for each of `outputs`, (texts, width), where the cumulative probability passes `picks`: (texts,)."""
        cumulative = self.output_layer(outputs).softmax(-1, dtype=torch.float32).cumsum(-1)
        total = cumulative[:, -1:]
        # Below the total after rounding too, so that a word of probability 0 is never drawn.
        picks = torch.minimum(picks.to(total)[:, None] * total, total.nextafter(torch.zeros_like(total)))
        return torch.searchsorted(cumulative, picks, right=True)[:, 0]


class Steps(NamedTuple):
    """The tokens of a batch in the order in which an LSTM reads them, without padding.

    The longest text stands first, so that the texts that go on are always the first rows.

    Args:
        texts: the texts in this order, int64 (texts,); `None` where it is the batch's own.
        source: for each token its index in (texts · text), step by step, int64 (tokens,).
        sizes: the number of texts that have a token, per step.
    """

    texts: np.ndarray | None
    source: np.ndarray
    sizes: list[int]


def steps_of(read: np.ndarray | None, texts: int, length: int) -> Steps:
    """The steps of the tokens that are `read`, bool (texts, length), or of all where that is `None`."""
    index = np.arange(texts * length).reshape(texts, length)
    if read is None or read.all():
        return Steps(None, index.T.flatten(), [texts] * length)
    lengths = read.sum(1)
    order = np.argsort(-lengths, kind="stable")
    tokens_first = np.argsort(~read, axis=1, kind="stable")
    source = np.take_along_axis(index, tokens_first, 1)[order].T  # (length, texts)
    is_token = np.arange(length)[:, None] < lengths[order]
    return Steps(order, source[is_token], [size for size in is_token.sum(1).tolist() if size])


def masked_mean(states: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """The mean of regions where the mask is True, (images, regions, width) to (images, width), float32 or wider."""
    states = states.to(torch.promote_types(states.dtype, torch.float32))
    if mask is None:
        return states.mean(1)
    return states.masked_fill(~mask[..., None], 0).sum(1) / mask.sum(1, keepdim=True)


def lstm_layers(width: int, *inputs: str) -> nn.ModuleDict:
    """The weights of an LSTM as a linear layer per part of its input, (…, width) to (…, 4 · width), and `hidden`."""
    layers = {name: nn.Linear(width, 4 * width, bias=number == 0) for number, name in enumerate(inputs)}
    return nn.ModuleDict({**layers, "hidden": nn.Linear(width, 4 * width)})


def reference_lstm(weights: dict[str, torch.Tensor], ours: str, theirs: str, parts: Sequence[str]) -> Names:
    """Names for a `ConversionPlan` of `lstm_layers`, from an `nn.LSTMCell` of the reference code."""
    width = weights[f"{theirs}.weight_hh"].shape[1]
    split = weights.pop(f"{theirs}.weight_ih").split(width, dim=1)
    weights |= {f"{theirs}.weight_ih[{number}]": part for number, part in enumerate(split)}
    names: Names = {f"{ours}.{part}.weight": (f"{theirs}.weight_ih[{number}]",) for number, part in enumerate(parts)}
    for kind in ("weight", "bias"):
        names[f"{ours}.hidden.{kind}"] = (f"{theirs}.{kind}_hh",)
    return names


def reference_sizes(weights: dict[str, torch.Tensor]) -> dict[str, int]:
    """The fields of a configuration that the weights of both of the reference's models show."""
    return {
        "vocab_size": weights["logit.weight"].shape[0],
        "hidden_size": weights["logit.weight"].shape[1],
        "region_feature_size": weights["att_embed.0.weight"].shape[1],
    }


def reference_names(*pairs: tuple[str, str]) -> Names:
    """Names for a `ConversionPlan` of layers with weight and bias, ours and theirs, and of what both models have."""
    both = ("model.region_embedding.linear", "att_embed.0"), ("lm_head", "logit")
    names: Names = {"model.word_embedding.weight": ("embed.0.weight",)}
    for kind in ("weight", "bias"):
        names |= {f"{ours}.{kind}": (f"{theirs}.{kind}",) for ours, theirs in (*both, *pairs)}
    return names


def lstm_cell(gates: torch.Tensor, cell: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The new hidden state and cell, (texts, width), from the gates' sums (texts, 4 · width), as in `nn.LSTMCell`."""
    enter, forget, content, leave = gates.chunk(4, dim=-1)
    cell = forget.sigmoid() * cell + enter.sigmoid() * content.tanh()
    return leave.sigmoid() * cell.tanh(), cell


class RecurrentCaptionerModel(RegionCaptionerModel):
    """A captioner with an LSTM, without its output layer.

    A subclass has `encode`, `read_images`, `step` and `state_size`, and an `attention_lstm` of `lstm_layers` with the
    part `words`.
    """

    state_size: int
    """Tensors (texts, width) in a state."""

    def __init__(self, config: RecurrentCaptionerConfig) -> None:
        super().__init__(config)
        self.word_dropout: nn.Dropout = nn.Dropout(config.word_dropout)
        self.output_dropout: nn.Dropout = nn.Dropout(config.output_dropout)

    def read_images(self, images: EncodedImages) -> Parts:
        """What `step` reads of images, each with a row per image."""
        raise NotImplementedError(f"{type(self).__name__} has no `read_images`. A captioner with an LSTM defines it.")

    def step(self, gates: torch.Tensor, image: Parts, state: Parts) -> tuple[torch.Tensor, Parts]:
        """One token of each text."""
        raise NotImplementedError(f"{type(self).__name__} has no `step`. A captioner with an LSTM defines it.")

    def decode(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        images: EncodedImages | None,
        cache: Cache | None,
        use_cache: bool,
        relevant: np.ndarray | None,
        sampling: SampledWords | None = None,
    ) -> tuple[torch.Tensor, RecurrentCache | None]:
        texts, length = input_ids.shape
        if cache is not None and not isinstance(cache, RecurrentCache):
            raise ValueError(
                f"The cache is a {type(cache).__name__}, which keeps keys and values. An LSTM has a state "
                "instead. Leave it out: the model makes a `RecurrentCache`, and returns it for the next call."
            )
        if cache is None and use_cache:
            cache = RecurrentCache()
        if images is not None:
            image, index = self.read_images(images), images.index
            state = (image[0].new_zeros(texts, self.config.hidden_size),) * self.state_size
        else:
            image, index, state = cache.image, cache.image_index, cache.state
        read, real = relevant, None
        if read is None and attention_mask is not None:
            if torch.compiler.is_compiling():  # one graph of fixed shapes: padding is read, and changes no state
                real = attention_mask[:, -length:] != 0
            else:
                read = known_or_read(attention_mask)[:, -length:] != 0
        steps = steps_of(read, texts, length)
        order = None if steps.texts is None else to_device(steps.texts, input_ids.device)
        if order is not None:
            state = tuple(part[order] for part in state)
        rows = order if index is None else index if order is None else index[order]
        of_texts = image if rows is None else tuple(part[rows] for part in image)
        states, state = self._unroll(input_ids, steps, of_texts, state, sampling, real)
        if cache is not None:
            cache.image, cache.image_index = image, index
            cache.update_state(state, tokens=length)
        return states, cache

    def _unroll(
        self,
        input_ids: torch.Tensor,
        steps: Steps,
        image: Parts,
        state: Parts,
        sampling: SampledWords | None,
        real: torch.Tensor | None,
    ) -> tuple[torch.Tensor, Parts]:
        """The outputs, (texts, text, width), 0 where nothing is read, and the state after each text's last token."""
        source = to_device(steps.source, input_ids.device)
        all_gates = self._words(input_ids.flatten()[source]).split(steps.sizes)
        outputs, ended = [], []
        for gates, replaced in zip(all_gates, self._replaced(steps, input_ids, sampling), strict=True):
            size = len(gates)
            ended.append(tuple(part[size:] for part in state))
            image, state = (tuple(part[:size] for part in parts) for parts in (image, state))
            if replaced is not None and len(replaced[0]):
                texts, picks = replaced
                words = sampling.words(outputs[-1][texts], picks)
                gates = gates.index_copy(0, texts, self._words(words))
            output, after = self.step(gates, image, state)
            if real is not None:
                column = real[:, len(outputs), None]
                after = tuple(torch.where(column, *pair) for pair in zip(after, state, strict=True))
            state = after
            outputs.append(output)
        state = tuple(torch.cat(parts[::-1]) for parts in zip(*ended, state, strict=True))
        if steps.texts is not None:
            back = to_device(steps.texts.argsort(), input_ids.device)
            state = tuple(part[back] for part in state)
        if not outputs:
            return state[0].new_zeros(*input_ids.shape, state[0].shape[1]), state
        if steps.texts is None:
            return torch.stack(outputs, dim=1), state
        rows = torch.cat(outputs)  # (tokens, width)
        states = rows.new_zeros(input_ids.numel(), rows.shape[1]).index_copy(0, source, rows)
        return states.view(*input_ids.shape, -1), state

    def _words(self, input_ids: torch.Tensor) -> torch.Tensor:
        """The words' part of the gates, (tokens, 4 · width), of ids (tokens,)."""
        return self.attention_lstm["words"](self.word_dropout(self.word_embedding(input_ids).relu()))

    @staticmethod
    def _replaced(
        steps: Steps, input_ids: torch.Tensor, sampling: SampledWords | None
    ) -> list[tuple[torch.Tensor, torch.Tensor] | None]:
        """Per step the texts whose word is replaced, (texts,), and the numbers that pick the words, (texts,)."""
        nothing = [None] * len(steps.sizes)
        if sampling is None:
            return nothing
        coins, picks = (drawn.numpy() for drawn in sampling.draws(input_ids.numel()))
        found = nothing[:1]
        for source in np.split(steps.source, np.cumsum(steps.sizes)[:-1])[1:]:
            texts = np.flatnonzero(coins[source])
            found.append((to_device(texts, input_ids.device), to_device(picks[source[texts]], input_ids.device)))
        return found


class RecurrentCaptionerForCausalLM(RegionCaptionerForCausalLM):
    """A captioner with an LSTM: as `RegionCaptionerForCausalLM`, with scheduled sampling."""

    model_class: type[RecurrentCaptionerModel] = RecurrentCaptionerModel

    @takes_cache
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        region_features: torch.Tensor | None = None,
        region_mask: torch.Tensor | None = None,
        pixel_values: torch.Tensor | None = None,
        image_features: EncodedImages | None = None,
        image_index: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        cache: Cache | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        return_dict: bool | None = None,
        sampling_probability: float = 0.0,
        sampling_seed: int | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast | tuple[torch.Tensor, ...]:
        """Scores the next token after every token of the text, as `RegionCaptionerForCausalLM.forward`."""
        sampling = None
        if sampling_probability:
            _validate_sampling(sampling_probability, sampling_seed, cache is not None or bool(use_cache))
            sampling = SampledWords(sampling_probability, sampling_seed, self.get_output_embeddings())
            use_cache = False
        return self._score(
            labels,
            logits_to_keep,
            return_dict,
            kwargs,
            input_ids=input_ids,
            attention_mask=attention_mask,
            region_features=region_features,
            region_mask=region_mask,
            pixel_values=pixel_values,
            image_features=image_features,
            image_index=image_index,
            cache=cache,
            use_cache=use_cache,
            sampling=sampling,
        )


def _validate_sampling(probability: float, seed: int | None, caches: bool) -> None:
    """Raises where scheduled sampling cannot be done, or not be repeated."""
    if not 0 <= probability <= 1:
        raise ValueError(f"sampling_probability={probability} is no probability. Pass a number of 0 to 1.")
    if seed is None:
        raise ValueError(
            f"sampling_probability={probability} without `sampling_seed`: a resumed run could not draw the same words "
            "again. Pass a seed made of the run's seed and the step."
        )
    if caches:
        raise ValueError(
            f"sampling_probability={probability} together with a cache: scheduled sampling replaces words of a text "
            "that is known, in training. Leave out the cache and `use_cache`, or pass 0."
        )
