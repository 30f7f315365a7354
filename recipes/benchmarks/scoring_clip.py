"""CLIP's cosine: `add_scores` beside loops that people write for it, all with one model of random weights.

- The bare loop: batches of pairs, images and captions encoded under `inference_mode`, padded to the batch's longest;
  at the best of several batch sizes. One caption per image, so that nothing can be saved.
- The pairwise way: the same loop over five captions per image, as data sets come: every pair encodes its image,
  and its caption padded to the context.
- A `map` over single examples with gradients on, which is what `dataset.map(score)` does unless one thinks of it.

Rates are pairs per second of processor time, from encoded images to finished scores. The model has the shape of CLIP
ViT-B/32; `quick` takes a small one, which shows that it runs and no more.
"""

from __future__ import annotations

import io
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset, Image
from PIL import Image as PILImage
from transformers import CLIPConfig, CLIPImageProcessorPil, CLIPModel

from hf_curriculum import CLIPSimilarity, add_scores, make_scenes, train_wordpiece

CONTEXT, SHORT = 77, 21
SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}


def model_folder(folder: Path, captions: list[str], quick: bool) -> Path:
    """A CLIP of random weights with a tokenizer learnt from the captions (its tokens are about as many as BPE's)."""
    words = train_wordpiece(captions, 8000, layout="compact", max_length=CONTEXT)
    text = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, **(SMALL if quick else {})}
    config = CLIPConfig(text_config=text, vision_config=SMALL if quick else {})
    torch.manual_seed(0)
    for part in (CLIPModel(config), words, CLIPImageProcessorPil()):
        part.save_pretrained(folder)
    return folder


def scenes(images: int, captions_per_image: int) -> tuple[list[bytes], list[list[str]]]:
    """Drawn images of 384 × 384 as JPEG, each with different short captions (made for others: only time counts)."""
    drawn = make_scenes(5 * images, seed=5, image_size=384, validation=0, test=0)["train"]
    pool = make_scenes(6000, seed=6, image_size=32, validation=0, test=0)["train"]["caption"][:]
    pool = sorted({caption for caption in pool if len(caption.replace(",", " ,").split()) <= SHORT - 2})
    chosen = np.random.default_rng(0).permutation(len(pool))[: images * captions_per_image]
    files = []
    for row in range(0, len(drawn), 5):
        file = io.BytesIO()
        drawn[row]["image"].save(file, "jpeg", quality=90)
        files.append(file.getvalue())
    captions = [pool[at] for at in chosen]
    return files, [captions[at::images] for at in range(images)]


def photographs(images: int) -> tuple[list[bytes], list[list[str]]] | None:
    """Flickr8k's images with their five captions, where HF_CURRICULUM_TEST_DATA has them."""
    folder = Path(os.environ.get("HF_CURRICULUM_TEST_DATA", "")) / "flickr8k"
    if not (folder / "captions.jsonl").exists():
        return None
    lines = (folder / "captions.jsonl").read_text(encoding="utf-8").splitlines()[:images]
    rows = [json.loads(line) for line in lines]
    return [(folder / "images" / row["file_name"]).read_bytes() for row in rows], [row["captions"] for row in rows]


def as_dataset(files: list[bytes], captions: list[list[str]]) -> Dataset:
    """One row per caption."""
    pairs = [(at, caption) for at, own in enumerate(captions) for caption in own]
    columns = {
        "image": [{"bytes": files[at], "path": None} for at, _ in pairs],
        "caption": [caption for _, caption in pairs],
        "image_id": [str(at) for at, _ in pairs],
    }
    return Dataset.from_dict(columns).cast_column("image", Image())


class Loops:
    """The ways to score that ours is compared with, around the scorer's own model.

    Args:
        scorer: loaded at once.
    """

    def __init__(self, scorer: CLIPSimilarity) -> None:
        towers = scorer.loaded().towers
        self.model, self.words, self.processor = towers.model, towers.tokenizer, towers.processor

    def cosine(self, pictures: list[PILImage.Image], captions: list[str], padding: bool | str) -> torch.Tensor:
        """Images and captions, one by one or in a batch, to cosines (rows,)."""
        text = self.words(captions, padding=padding, truncation=True, max_length=CONTEXT, return_tensors="pt")
        pixels = self.processor(images=[image.convert("RGB") for image in pictures], return_tensors="pt")
        seen = self.model.get_image_features(**pixels).pooler_output
        return torch.cosine_similarity(seen, self.model.get_text_features(**text).pooler_output)

    def batched(self, data: Dataset, batch_size: int, padding: bool | str) -> np.ndarray:
        """The bare loop (padding True) and the pairwise way (padding "max_length")."""
        with torch.inference_mode():
            parts = [
                self.cosine(batch["image"], batch["caption"], padding) for batch in data.iter(batch_size=batch_size)
            ]
        return torch.cat(parts).numpy()

    def mapped(self, data: Dataset, padding: bool | str) -> np.ndarray:
        """A `map` over single examples, gradients on."""
        torch.set_grad_enabled(True)

        def one(row: dict) -> dict:
            return {"score": self.cosine([row["image"]], [row["caption"]], padding).item()}

        return np.array(data.map(one, remove_columns=data.column_names)["score"][:])


def in_turn(sides: dict[str, Callable[[], np.ndarray]], repetitions: int) -> dict[str, float]:
    """The best time of each side in seconds of the processor, which other programs of the machine do not lengthen."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    first: np.ndarray | None = None
    for _ in range(repetitions):
        for name, work in sides.items():
            start = time.process_time()
            scores = work()
            times[name].append(time.process_time() - start)
            first = scores if first is None else first
            if not np.allclose(scores, first, atol=1e-4):
                raise ValueError(f"{name!r} disagrees with {next(iter(sides))!r}, so the comparison means nothing.")
    return {name: min(taken) for name, taken in times.items()}


def measure(quick: bool = False) -> list[dict[str, object]]:
    """All rows of this section."""
    images, repetitions, sizes = (3, 1, (4,)) if quick else (8, 2, (8, 16, 32))
    drawn, real = scenes(images, 5), photographs(images)
    captions = [caption for _, texts in (drawn, real or ([], [])) for own in texts for caption in own]
    with tempfile.TemporaryDirectory() as folder:
        scorer = CLIPSimilarity(str(model_folder(Path(folder), captions, quick)))
        return _rows(scorer, drawn, real, repetitions, sizes)


def _rows(
    scorer: CLIPSimilarity,
    drawn: tuple[list[bytes], list[list[str]]],
    real: tuple[list[bytes], list[list[str]]] | None,
    repetitions: int,
    sizes: tuple[int, ...],
) -> list[dict[str, object]]:
    loops, best = Loops(scorer), max(sizes)

    def ours(data: Dataset) -> np.ndarray:
        return np.array(add_scores(data, scorer)["clip_similarity"][:])

    def row(what: str, data: Dataset, time_of: dict[str, float], against: str, asked: str) -> dict[str, object]:
        return {
            "what": what,
            "ours": f"{len(data) / time_of['ours']:.2f} pairs/s",
            "against": f"{len(data) / time_of[against]:.2f} pairs/s ({against})",
            "ratio": time_of[against] / time_of["ours"],
            "asked": asked,
        }

    files, captions = real or drawn
    # images repeat under other ids, to fill batches without drawing more; each is encoded
    singles = as_dataset(files * 4, [[own[at]] for at in range(4) for own in captions])
    sides = {"ours": lambda: ours(singles)}
    sides |= {f"batches of {size}": lambda size=size: loops.batched(singles, size, True) for size in sizes}
    times = in_turn(sides, repetitions)
    fastest = min((name for name in times if name != "ours"), key=times.__getitem__)
    rows = [row("one caption per picture, bare loop", singles, times, fastest, "≥ 0.95")]
    best = int(fastest.split()[-1])
    for name, pairs, asked in (("short captions", drawn, "≥ 4"), ("Flickr8k", real, "≥ 3")):
        if pairs is None:
            continue
        data = as_dataset(*pairs)
        sides = {"ours": lambda data=data: ours(data)}
        sides["pairwise"] = lambda data=data: loops.batched(data, best, "max_length")
        if name == "short captions":
            sides["map, gradients on"] = lambda data=data: loops.mapped(data, "max_length")
            sides["map, gradients on, no padding"] = lambda data=data: loops.mapped(data, True)
        times = in_turn(sides, repetitions)
        rows.append(row(f"{name}, five per picture, pairwise", data, times, "pairwise", asked))
        for other, asked_of in (("map, gradients on", "≥ 5"), ("map, gradients on, no padding", None)):
            if other in times:
                rows.append(row(f"{name}, five per picture, one by one", data, times, other, asked_of or ""))
    return rows
