"""What a training step of our region Transformer costs beside `torch.nn.Transformer`: forward and backward, one run.

    OMP_NUM_THREADS=1 python recipes/benchmarks/captioners.py              # the paper's size on one core: 3 minutes
    python recipes/benchmarks/captioners.py --size tiny --repetitions 1     # that it runs
    python recipes/benchmarks/captioners.py --device cuda --dtype bf16      # pairs per second, asking for nothing

Equal weights, no dropout, 36 regions of 2048, captions as long as COCO's. Four sides compute the same loss:

- `nn.Transformer` and ours, pair by pair: each caption with its image;
- ours with five captions per image (`image_index`), and `nn.Transformer` that encodes each image once and repeats what
  comes out for its captions.

`nn.Transformer` computes padded captions and the logits of all tokens, as the reference code does. Sides take turns
and the best time of each counts; on a CPU the process's own time, which a busy machine does not lengthen. Losses and
gradients are compared in the same run (see `training.py`): to 1e-6 in float64, on fewer images, and to 1e-2 in the
float32 that is timed, in which sums in another order switch a few of the ReLU's units.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn
from training import Side, in_turn

from hf_curriculum.tasks.captioning import RegionTransformerConfig, RegionTransformerForCausalLM

CAPTIONS, REGIONS, FEATURES = 5, 36, 2048
LENGTHS = {7: 8, 8: 163, 9: 223, 10: 214, 11: 152, 12: 99, 13: 58, 14: 33, 15: 18, 16: 32}
"""Words of COCO's captions, in thousandths: `captions_val2017.json`, at most 16 words, without punctuation."""
STILL = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0, "feature_dropout": 0.0}


@dataclass(frozen=True)
class Size:
    """A Transformer, and how many images a batch has."""

    width: int = 512
    layers: int = 6
    heads: int = 8
    inner: int = 2048
    vocabulary: int = 9488
    images: int = 10

    def config(self) -> RegionTransformerConfig:
        """Without dropout, with the layer norm of `nn.Transformer`."""
        return RegionTransformerConfig(
            self.vocabulary,
            self.width,
            self.layers,
            self.layers,
            self.heads,
            self.inner,
            region_feature_size=FEATURES,
            norm="standard",
            **STILL,
        )


SIZES = {"tiny": Size(width=32, layers=2, heads=2, inner=64, vocabulary=200, images=3), "paper": Size()}


class PaddedTransformer(nn.Module):
    """The same captioner from `nn.Transformer`, as one writes it: padded captions, the logits of every token."""

    def __init__(self, ours: RegionTransformerForCausalLM) -> None:
        super().__init__()
        config = ours.config
        self.width = config.hidden_size
        self.regions = nn.Linear(config.region_feature_size, self.width)
        self.words = nn.Embedding(config.vocab_size, self.width)
        self.body = nn.Transformer(
            self.width,
            config.num_attention_heads,
            config.num_encoder_layers,
            config.num_decoder_layers,
            config.intermediate_size,
            dropout=0.0,
            layer_norm_eps=config.layer_norm_eps,
            batch_first=True,
            norm_first=True,
        )
        self.output = nn.Linear(self.width, config.vocab_size)
        self.load_state_dict(as_padded(ours.state_dict()))

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        region_features: torch.Tensor,
        labels: torch.Tensor,
        image_index: torch.Tensor | None = None,
    ) -> Loss:
        """As ours; with `image_index` each image is encoded once."""
        read, real, targets = input_ids[:, :-1], attention_mask[:, :-1] != 0, labels[:, 1:]
        memory = self.body.encoder(self.regions(region_features).relu())
        memory = memory if image_index is None else memory[image_index]
        places = torch.arange(read.shape[1], device=read.device)
        rate = torch.exp(torch.arange(0, self.width, 2, device=read.device) * (-9.210340371976184 / self.width))
        angles = places[:, None] * rate
        table = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)  # (text, width)
        states = self.body.decoder(
            self.words(read) * self.width**0.5 + table.to(self.words.weight.dtype),
            memory,
            tgt_mask=places > places[:, None],  # True is hidden
            tgt_key_padding_mask=~real,
        )
        logits = self.output(states)
        return Loss(nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=-100))


@dataclass(frozen=True)
class Loss:
    """What `Side` reads."""

    loss: torch.Tensor


def as_padded(found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights, or gradients, of ours under the names of `PaddedTransformer`."""
    parts = {
        "model.region_embedding.linear.": "regions.",
        "model.word_embedding.": "words.",
        "lm_head.": "output.",
        "model.encoder_norm.": "body.encoder.norm.",
        "model.decoder_norm.": "body.decoder.norm.",
        "model.encoder.": "body.encoder.layers.",
        "model.decoder.": "body.decoder.layers.",
        ".image_attention.out.": ".multihead_attn.out_proj.",
        ".attention.out.": ".self_attn.out_proj.",
        ".attention.qkv.": ".self_attn.in_proj_",
        ".feed_forward.wide.": ".linear1.",
        ".feed_forward.narrow.": ".linear2.",
        ".norms.0.": ".norm1.",
        ".norms.1.": ".norm2.",
        ".norms.2.": ".norm3.",
    }
    renamed = {}
    for name, value in found.items():
        if ".image_attention.query." in name:
            value = torch.cat([value, found[name.replace(".query.", ".key_value.")]])
            name = name.replace(".image_attention.query.", ".multihead_attn.in_proj_")
        if ".image_attention.key_value." not in name:
            for ours, theirs in parts.items():
                name = name.replace(ours, theirs)
            renamed[name] = value
    return renamed


@dataclass(frozen=True)
class OurSide(Side):
    """Ours, with gradients under the names of `PaddedTransformer`."""

    def gradients(self) -> dict[str, torch.Tensor]:
        """Takes the gradients out of the weights."""
        return as_padded(super().gradients())


def batch(size: Size, images: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """Five captions for each of so many images, one behind the other."""
    generator = torch.Generator().manual_seed(seed)
    share = torch.tensor(list(LENGTHS.values()), dtype=torch.float32)
    drawn = torch.multinomial(share, images * CAPTIONS, replacement=True, generator=generator)
    words = torch.tensor(list(LENGTHS))[drawn]  # (texts,)
    length = int(words.max()) + 2
    mask = (torch.arange(length) < words[:, None] + 2).long()  # begin, words, end
    ids = torch.randint(1, size.vocabulary, (len(words), length), generator=generator)
    ids = ids * (torch.arange(length) > 0) * (torch.arange(length) < words[:, None] + 1)
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "labels": ids.masked_fill(mask == 0, -100),
        "region_features": torch.rand(images, REGIONS, FEATURES, generator=generator),
        "image_index": torch.arange(images).repeat_interleave(CAPTIONS),
    }


def sides(size: Size, device: torch.device, dtype: torch.dtype) -> list[Side]:
    """The four, on one batch."""
    torch.manual_seed(0)
    ours = RegionTransformerForCausalLM(size.config()).to(device, dtype).train()
    padded = PaddedTransformer(ours).to(device, dtype).train()
    shared = {name: value.to(device) for name, value in batch(size, size.images).items()}
    shared["region_features"] = shared["region_features"].to(dtype)
    pairs = dict(shared)
    pairs["region_features"] = shared["region_features"][pairs.pop("image_index")]
    return [
        Side("nn.Transformer, pair by pair", padded, pairs),
        OurSide("ours, pair by pair", ours, pairs),
        Side("nn.Transformer, images once", padded, shared),
        OurSide("ours, images once", ours, shared),
    ]


def on_cpu(size: Size, repetitions: int) -> dict[str, object]:
    """Seconds of each side, and the ratios that are asked for."""
    cpu = torch.device("cpu")
    _, worst = in_turn(sides(replace(size, images=2), cpu, torch.float64), 1, tolerance=1e-6)
    times, worst_timed = in_turn(sides(size, cpu, torch.float32), repetitions, tolerance=1e-2)
    padded, ours, padded_once, ours_once = times.values()
    return {
        "seconds": {name: round(seconds, 3) for name, seconds in times.items()},
        "largest difference of a gradient": {"float64": worst, "float32": worst_timed},
        "ratios": {
            "pair by pair, against nn.Transformer (1.05 asked)": round(padded / ours, 3),
            "images once, against ours pair by pair (2.2 asked)": round(ours / ours_once, 3),
            "images once, against nn.Transformer with images once (1.2 asked)": round(padded_once / ours_once, 3),
        },
    }


def on_device(size: Size, repetitions: int, device: torch.device, dtype: torch.dtype) -> dict[str, object]:
    """Pairs per second of each side; losses are compared by eye, since half precision rounds."""
    found: dict[str, object] = {}
    for side in sides(replace(size, images=64), device, dtype):
        losses = [side.step()[0] for _ in range(3)]  # compiled and cached from here on
        torch.cuda.synchronize(device)
        start = time.perf_counter()
        for _ in range(repetitions):
            side.step()
        torch.cuda.synchronize(device)
        rate = repetitions * len(side.inputs["input_ids"]) / (time.perf_counter() - start)
        found[side.name] = {"pairs per second": round(rate), "loss": round(losses[0], 4)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="paper")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bf16"], default="float32", help="on a GPU")
    parser.add_argument("--json", type=Path, help="write the numbers there too")
    args = parser.parse_args()
    device, dtype = torch.device(args.device), torch.bfloat16 if args.dtype == "bf16" else torch.float32
    if device.type == "cpu":
        found = on_cpu(SIZES[args.size], args.repetitions)
    else:
        found = on_device(SIZES[args.size], args.repetitions, device, dtype)
    facts = {"size": args.size, "python": platform.python_version(), "torch": torch.__version__}
    text = json.dumps({**facts, "threads": torch.get_num_threads(), **found}, indent=1)
    if args.json:
        args.json.write_text(text + "\n", encoding="utf-8")
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    warnings.filterwarnings("ignore", "enable_nested_tensor", UserWarning)  # of `nn.Transformer`, about inference
    main()
