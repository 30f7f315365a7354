"""UpDown and AoANet written out plainly, token by token and pair by pair, on weights with the reference's names."""

from __future__ import annotations

import math

import torch
from torch.nn import functional

Weights = dict[str, torch.Tensor]


def updown_shapes(outputs=7, features=6, width=8, attention=4) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a checkpoint of the reference's UpDown."""
    shapes = {"embed.0.weight": (outputs, width), "core.attention.alpha_net.weight": (1, attention)}
    shapes |= {"core.attention.alpha_net.bias": (1,)}
    shapes |= linear("fc_embed.0", width, features) | linear("att_embed.0", width, features)
    shapes |= linear("ctx2att", attention, width) | linear("core.attention.h2att", attention, width)
    shapes |= lstm("core.att_lstm", 3 * width, width) | lstm("core.lang_lstm", 2 * width, width)
    return shapes | linear("logit", outputs, width)


def aoanet_shapes(outputs=7, features=6, width=8, layers=6) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a checkpoint of the reference's AoANet."""
    shapes = {"embed.0.weight": (outputs, width)}
    shapes |= linear("att_embed.0", width, features) | linear("ctx2att", 2 * width, width)
    shapes |= lstm("core.att_lstm", 2 * width, width) | linear("core.attention.linears.0", width, width)
    shapes |= linear("core.att2ctx.0", 2 * width, 2 * width) | linear("logit", outputs, width)
    shapes |= norm("core.attention.norm", width) | norm("refiner.norm", width)
    for layer in (f"refiner.layers.{number}" for number in range(layers)):
        for index in range(3):
            shapes |= linear(f"{layer}.self_attn.linears.{index}", width, width)
        shapes |= linear(f"{layer}.self_attn.aoa_layer.0", 2 * width, 2 * width)
        shapes |= norm(f"{layer}.sublayer.0.norm", width)
    return shapes


def linear(name: str, outputs: int, inputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.a_2": (width,), f"{name}.b_2": (width,)}


def lstm(name: str, inputs: int, width: int) -> dict[str, tuple[int, ...]]:
    weights = {f"{name}.weight_ih": (4 * width, inputs), f"{name}.weight_hh": (4 * width, width)}
    return weights | {f"{name}.bias_ih": (4 * width,), f"{name}.bias_hh": (4 * width,)}


def golden_weights(shapes: dict[str, tuple[int, ...]]) -> Weights:
    """The weights that the golden values are of, float64: a sine of the flat index and the name's place."""
    weights = {}
    for number, name in enumerate(sorted(shapes)):
        index = torch.arange(math.prod(shapes[name]), dtype=torch.float64)
        weights[name] = (0.2 * torch.sin(1 + 0.37 * index + 0.91 * number)).view(shapes[name])
        if name.endswith("a_2"):
            weights[name] += 1
    return weights


def random_weights(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> Weights:
    """Other weights, float64, so large that words and regions make a difference."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: 0.6 * torch.randn(shapes[name], generator=generator, dtype=torch.float64) + name.endswith("a_2")
        for name in sorted(shapes)
    }


def golden_images() -> tuple[torch.Tensor, torch.Tensor]:
    """The regions that the golden values are of, (2, 3, 6) float64, and their mask (2, 3)."""
    image, region, place = torch.meshgrid(torch.arange(2), torch.arange(3), torch.arange(6), indexing="ij")
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    return 0.5 * torch.sin(1.0 + image.double() + 2 * region + 3 * place) * mask[..., None], mask


def layer(weights: Weights, name: str, states: torch.Tensor) -> torch.Tensor:
    return functional.linear(states, weights[f"{name}.weight"], weights[f"{name}.bias"])


def cell(weights: Weights, name: str, inputs: torch.Tensor, state: tuple[torch.Tensor, ...]):
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    return torch.lstm_cell(inputs[None], state, *(weights[f"{name}.{part}"] for part in names))


def layer_norm(weights: Weights, name: str, states: torch.Tensor, standard: bool) -> torch.Tensor:
    spread = states.std(-1, keepdim=True) + 1e-6
    if standard:
        spread = (states.var(-1, unbiased=False, keepdim=True) + 1e-6).sqrt()
    return weights[f"{name}.a_2"] * (states - states.mean(-1, keepdim=True)) / spread + weights[f"{name}.b_2"]


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, heads: int) -> torch.Tensor:
    """(queries, width), (keys, width) twice: head after head."""
    parts = zip(query.chunk(heads, -1), key.chunk(heads, -1), value.chunk(heads, -1), strict=True)
    return torch.cat([(q @ k.T / math.sqrt(q.shape[-1])).softmax(-1) @ v for q, k, v in parts], -1)


def updown(weights: Weights, regions: torch.Tensor, words: list[int]) -> torch.Tensor:
    """Logits after each word of one text, (text, outputs), with the regions of its image, (regions, features)."""
    image = layer(weights, "fc_embed.0", regions.mean(0)).relu()
    values = layer(weights, "att_embed.0", regions).relu()
    keys = layer(weights, "ctx2att", values)
    first = second = (image.new_zeros(1, len(image)),) * 2
    logits = []
    for word in words:
        embedded = weights["embed.0.weight"][word].relu()
        first = cell(weights, "core.att_lstm", torch.cat([second[0][0], image, embedded]), first)
        added = (keys + layer(weights, "core.attention.h2att", first[0])).tanh()
        share = layer(weights, "core.attention.alpha_net", added).softmax(0)
        second = cell(weights, "core.lang_lstm", torch.cat([(share * values).sum(0), first[0][0]]), second)
        logits.append(layer(weights, "logit", second[0][0]))
    return torch.stack(logits)


def aoanet(
    weights: Weights, regions: torch.Tensor, words: list[int], heads: int = 2, standard: bool = False
) -> torch.Tensor:
    """As `updown`."""
    states = layer(weights, "att_embed.0", regions).relu()
    number = 0
    while f"refiner.layers.{number}.self_attn.aoa_layer.0.weight" in weights:
        name = f"refiner.layers.{number}"
        normed = layer_norm(weights, f"{name}.sublayer.0.norm", states, standard)
        attended = attend(*(layer(weights, f"{name}.self_attn.linears.{i}", normed) for i in range(3)), heads)
        gate = layer(weights, f"{name}.self_attn.aoa_layer.0", torch.cat([attended, normed], -1))
        states, number = states + functional.glu(gate, -1), number + 1
    states = layer_norm(weights, "refiner.norm", states, standard)
    value, key = layer(weights, "ctx2att", states).chunk(2, -1)
    context = states.new_zeros(states.shape[1])
    state = (context[None],) * 2
    logits = []
    for word in words:
        embedded = weights["embed.0.weight"][word].relu()
        state = cell(weights, "core.att_lstm", torch.cat([embedded, states.mean(0) + context]), state)
        normed = layer_norm(weights, "core.attention.norm", state[0], standard)
        attended = attend(layer(weights, "core.attention.linears.0", normed), key, value, heads)
        context = functional.glu(layer(weights, "core.att2ctx.0", torch.cat([attended, state[0]], -1)), -1)[0]
        logits.append(layer(weights, "logit", context))
    return torch.stack(logits)
