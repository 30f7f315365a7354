"""The small CLIP that ships with the package: it aligns captions with the embedded scenes, and nothing else.

    python recipes/scenes_clip.py                                    # about seven minutes on one CPU thread
    python recipes/scenes_clip.py --output hf_curriculum/models/scenes_clip      # replaces the shipped model
    python recipes/scenes_clip.py --leave_out captions.txt --output clip         # learns none of these captions
    python recipes/scenes_clip.py --steps 20 --scenes 50                         # does it run

It makes the default model of `CLIPSimilarity()`, so that alignment is scored offline in tests and in every recipe's
default. What it was trained on, and how well it separates held-out captions, is recorded beside it in `training.json`.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from datasets import Dataset
from tqdm.auto import tqdm
from transformers import CLIPConfig, CLIPModel, PreTrainedTokenizerFast, set_seed

import hf_curriculum
from hf_curriculum import make_image_processor, make_scenes, train_wordpiece
from hf_curriculum.columns import CAPTION, IMAGE
from hf_curriculum.scenes.vocabulary import COLOURS, NOUNS, SIZES, TEXTURES, plural
from hf_curriculum.scorers.alignment.clip import training_statistics

OUTPUT = Path("outputs") / "scenes_clip"
DATA_SEED = 7_001  # far from the seeds anyone tries first, so that their scenes are new to the model
HELD_OUT_SEED = 7_002
IMAGE_SIZE, CONTEXT, CAPTIONS = 64, 64, 5
CONTENT = {form: word for word in (*NOUNS, *COLOURS, *SIZES, *TEXTURES) for form in (word, plural(word))}
"""Words by which a caption can be false of another image, with the form that counts."""


def small_clip(vocab_size: int) -> CLIPModel:
    """Two towers of width 128; text is pooled at [SEP], which `train_wordpiece` puts at id 3."""
    width = {"hidden_size": 128, "intermediate_size": 512, "num_attention_heads": 4, "projection_dim": 128}
    vision = {**width, "num_hidden_layers": 4, "image_size": IMAGE_SIZE, "patch_size": 8}
    text = {**width, "num_hidden_layers": 2, "max_position_embeddings": CONTEXT, "vocab_size": vocab_size}
    text |= {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    return CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=128))


def pixels(dataset: Dataset, processor: transformers.BaseImageProcessor) -> torch.Tensor:
    """One image per `CAPTIONS` rows. Shapes: returns (images, 3, IMAGE_SIZE, IMAGE_SIZE)."""
    firsts = dataset.select(range(0, len(dataset), CAPTIONS)).select_columns([IMAGE])
    return torch.cat(
        [processor(batch[IMAGE], return_tensors="pt")["pixel_values"] for batch in firsts.iter(batch_size=256)]
    )


def content(captions: list[str]) -> torch.Tensor:
    """Which content words each caption has. Shapes: returns float32 (captions, content words), 0 or 1."""
    place = {word: number for number, word in enumerate(sorted(set(CONTENT.values())))}
    bags = torch.zeros(len(captions), len(place))
    for row, caption in enumerate(captions):
        for word in caption.replace(",", "").split():
            if word in CONTENT:
                bags[row, place[CONTENT[word]]] = 1
    return bags


class Pairs:
    """Batches of images with some of their captions.

    Args:
        dataset: rows of one image side by side, `CAPTIONS` each.
        tokenizer: of the captions.
        processor: of the images.
        seed: of the order and of the choice of captions.
        left_out: captions that are not learnt from; an image with fewer than two others is left out too.
    """

    def __init__(
        self,
        dataset: Dataset,
        tokenizer: PreTrainedTokenizerFast,
        processor: transformers.BaseImageProcessor,
        seed: int,
        left_out: frozenset[str] = frozenset(),
    ) -> None:
        captions = dataset[CAPTION][:]
        self.known = torch.tensor([caption not in left_out for caption in captions]).view(-1, CAPTIONS)
        self.usable = (self.known.sum(1) >= 2).nonzero()[:, 0]
        tokens = tokenizer(captions, padding=True, truncation=True, max_length=CONTEXT, return_tensors="pt")
        self.images, self.ids = pixels(dataset, processor), tokens["input_ids"]  # (N, 3, S, S), (N * CAPTIONS, T)
        self.said = content(captions)  # (N * CAPTIONS, words)
        self.shown = self.said.view(len(self.images), CAPTIONS, -1).amax(1)  # (N, words), all that is said of an image
        self.random = torch.Generator().manual_seed(seed)

    def batch(self, images: int, captions: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Some images and captions of theirs."""
        chosen = self.usable[torch.randperm(len(self.usable), generator=self.random)[:images]]
        drawn = torch.rand(len(chosen), CAPTIONS, generator=self.random).masked_fill(~self.known[chosen], 2)
        which = drawn.argsort(1)[:, :captions]  # (B, captions)
        rows = (chosen[:, None] * CAPTIONS + which).flatten()  # (C,)
        owner = torch.arange(len(chosen)).repeat_interleave(captions)
        length = int((self.ids[rows] != 0).sum(1).max())
        # a caption whose content words are all said of another image may be true of it: no negative
        possible = (1 - self.shown[chosen]) @ self.said[rows].T == 0
        return self.shifted(self.images[chosen]), self.ids[rows, :length], owner, possible

    def shifted(self, images: torch.Tensor, by: int = 3) -> torch.Tensor:
        """The images moved by a few pixels, the same for all."""
        left, top = torch.randint(2 * by + 1, (2,), generator=self.random).tolist()
        padded = F.pad(images, (by, by, by, by), mode="replicate")
        return padded[:, :, top : top + IMAGE_SIZE, left : left + IMAGE_SIZE]


def contrastive_loss(logits: torch.Tensor, owner: torch.Tensor, possible: torch.Tensor) -> torch.Tensor:
    """CLIP's two cross-entropies, with captions that may be true of an image left out of its negatives."""
    own = torch.arange(len(owner))
    of_image, out = logits[owner], possible[owner]  # (C, C): row c is the image of caption c
    out = out & ~torch.eye(len(owner), dtype=torch.bool)
    to_text = F.cross_entropy(of_image.masked_fill(out, -math.inf), own)
    out = possible.T.clone()  # (C, B)
    out[own, owner] = False
    return (to_text + F.cross_entropy(logits.T.masked_fill(out, -math.inf), owner)) / 2


def train(model: CLIPModel, pairs: Pairs, steps: int, images: int, captions: int, peak: float) -> float:
    """AdamW with warm-up and a cosine to zero; returns the last loss, averaged over some steps."""
    decayed = [weight for weight in model.parameters() if weight.ndim > 1]
    others = [weight for weight in model.parameters() if weight.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.98))
    warm_up = min(100, steps // 5 + 1)

    def rate(step: int) -> float:
        return min((step + 1) / warm_up, 0.5 * (1 + math.cos(math.pi * step / steps)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    loss, bar = math.nan, tqdm(range(steps), desc="Training the CLIP of scenes", unit="step")
    model.train()
    for _ in bar:
        pixels, ids, owner, possible = pairs.batch(images, captions)
        seen = F.normalize(model.get_image_features(pixel_values=pixels).pooler_output, dim=-1)  # (B, D)
        read = F.normalize(model.get_text_features(input_ids=ids).pooler_output, dim=-1)  # (C, D)
        now = contrastive_loss(model.logit_scale.exp() * seen @ read.T, owner, possible)
        optimizer.zero_grad()
        now.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            model.logit_scale.clamp_(max=math.log(100))
        loss = now.item() if math.isnan(loss) else 0.95 * loss + 0.05 * now.item()
        bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
    return loss


def auc(true: np.ndarray, false: np.ndarray) -> float:
    """The chance that a matched pair scores above a mismatched one, half of it for a tie."""
    ordered = np.sort(false)
    below = np.searchsorted(ordered, true, "left") + np.searchsorted(ordered, true, "right")
    return float(below.mean() / 2 / len(false))


@torch.inference_mode()
def held_out_auc(
    model: CLIPModel, tokenizer: PreTrainedTokenizerFast, processor: transformers.BaseImageProcessor, images: int
) -> dict[str, float]:
    """How well matched pairs of new scenes are separated from mismatched ones."""
    scenes = make_scenes(CAPTIONS * images, HELD_OUT_SEED, mismatched=0.5, validation=0, test=0)["train"]
    model.eval()
    seen = F.normalize(model.get_image_features(pixel_values=pixels(scenes, processor)).pooler_output, dim=-1)
    tokens = tokenizer(scenes[CAPTION][:], padding=True, truncation=True, max_length=CONTEXT, return_tensors="pt")
    read = F.normalize(model.get_text_features(input_ids=tokens["input_ids"]).pooler_output, dim=-1)
    owner, true = torch.arange(len(scenes)) // CAPTIONS, ~np.array(scenes["mismatched"][:])
    cosines = (seen[owner] * read).sum(-1).numpy()
    elsewhere = (seen[(owner + 1) % images] * read).sum(-1).numpy()
    return {
        "mismatched": round(auc(cosines[true], cosines[~true]), 4),
        "shuffled": round(auc(cosines[true], elsewhere[true]), 4),
    }


def main() -> None:
    """Draws the scenes, trains, evaluates and saves."""
    parser = argparse.ArgumentParser(
        "hf-curriculum recipe scenes_clip", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=480, help="optimizer steps")
    parser.add_argument("--scenes", type=int, default=3000, help="images to train on, five captions each")
    parser.add_argument("--batch_size", type=int, default=96, help="images per step, two captions each")
    parser.add_argument("--learning_rate", type=float, default=1e-3, help="at its peak")
    parser.add_argument("--seed", type=int, default=0, help="of weights, order and choice of captions")
    parser.add_argument("--leave_out", type=Path, help="a file of captions, one in a line, that it never sees")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder to save to")
    options = parser.parse_args()
    torch.set_num_threads(1)
    set_seed(options.seed)
    start = time.perf_counter()
    scenes = make_scenes(CAPTIONS * options.scenes, DATA_SEED, validation=0, test=0)["train"]
    tokenizer = train_wordpiece(scenes, vocab_size=512, max_length=CONTEXT)
    processor = make_image_processor(IMAGE_SIZE, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    model = small_clip(len(tokenizer))
    left_out = [] if options.leave_out is None else options.leave_out.read_text("utf-8").splitlines()
    pairs = Pairs(scenes, tokenizer, processor, options.seed, frozenset(left_out))
    loss = train(model, pairs, options.steps, options.batch_size, 2, options.learning_rate)
    model = model.half()  # what is saved; evaluated as it will be loaded, in float32 from these numbers
    model.save_pretrained(options.output)
    tokenizer.save_pretrained(options.output)
    processor.save_pretrained(options.output)
    facts = {
        "recipe": Path(__file__).name,
        "seed": options.seed,
        "data": "make_scenes",
        "data_seed": DATA_SEED,
        "scenes": options.scenes,
        "captions": int(pairs.known[pairs.usable].sum()),
        "image_size": scenes[0][IMAGE].height,
        "steps": options.steps,
        "batch_size": options.batch_size,
        "captions_per_image": 2,
        "learning_rate": options.learning_rate,
        "final_loss": round(loss, 4),
        "held_out_seed": HELD_OUT_SEED,
        "held_out_auc": held_out_auc(model.float(), tokenizer, processor, min(400, options.scenes)),
        "minutes": round((time.perf_counter() - start) / 60, 1),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "hf-curriculum": hf_curriculum.__version__,
        },
        "knows": training_statistics(scenes[CAPTION][:], pairs.images),
    }
    (options.output / "training.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({key: value for key, value in facts.items() if key != "knows"}, indent=1))


if __name__ == "__main__":
    main()
