"""The small diffusion model that ships with the package: it draws single objects of the embedded scenes, at 32 pixels.

    python recipes/scenes_diffusion.py                                    # about nineteen minutes on two CPU threads
    python recipes/scenes_diffusion.py --output hf_curriculum/models/scenes_diffusion      # replaces the shipped one
    python recipes/scenes_diffusion.py --steps 3 --scenes 40 --held_out 4                  # does it run
    python recipes/scenes_diffusion.py --data FOLDER --prompt "a photo of {label}" --flip  # of your own pictures

It makes what `generate_spectrum` draws with offline, in tests and in the recipe of DisCL. A U-Net predicts v under a
squared-cosine schedule, conditioned on the text vector of the shipped CLIP. What it was trained on, how far its
pictures are from their source at each guidance level, and whether a classifier that saw real pictures only names
them, is recorded beside it in `training.json`.
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
from datasets import Dataset, Features, Image, Value
from PIL.Image import Resampling
from tqdm.auto import tqdm
from transformers import set_seed

import hf_curriculum
from hf_curriculum import make_scenes
from hf_curriculum.columns import CAPTION, IMAGE
from hf_curriculum.data.images import to_rgb
from hf_curriculum.rng import mix64, permute
from hf_curriculum.scenes.vocabulary import NOUNS, article
from hf_curriculum.scorers.alignment.clip import training_statistics
from hf_curriculum.tasks.long_tail import load_labelled
from hf_curriculum.tasks.long_tail.generation.pixel_diffusion import PixelDiffusionPipeline, import_diffusers
from hf_curriculum.tasks.long_tail.generation.prompts import prompt_choices

OUTPUT = Path("outputs") / "scenes_diffusion"
DATA_SEED = 7_101  # far from the seeds anyone tries first
HELD_OUT_SEED = 7_102
CLASSIFIER_SEED = 7_103
KNOWN = 8_000  # pictures that the classifier learns from at most
IMAGE_SIZE = 32
LEVELS = tuple(level / 10 for level in range(10))
WORDINGS = (("{size} {texture} {colour} {noun}", 0.7), ("{colour} {noun}", 0.15), ("{noun}", 0.15))
"""How an object is named in training, and how often: in full, by its colour, by its noun alone."""
UNCONDITIONAL = 0.13  # share of pictures trained without their text


def single_objects(count: int, seed: int, wordings: bool = False) -> Dataset:
    """Scenes of one object each, with its full name as the caption; with `wordings` shorter names too."""
    scenes = make_scenes(
        count, seed, image_size=IMAGE_SIZE, captions_per_image=1, max_objects=1, validation=0, test=0
    )["train"]
    objects = [objects[0] for objects in scenes["objects"][:]]
    chosen = np.zeros(count, np.int64)
    if wordings:
        draws = np.random.default_rng(seed).random(count)
        chosen = np.searchsorted(np.cumsum([share for _, share in WORDINGS])[:-1], draws, "right")
    captions = [_name(thing, WORDINGS[at][0]) for thing, at in zip(objects, chosen, strict=True)]
    labels = [NOUNS.index(thing["noun"]) for thing in objects]
    kept = scenes.select_columns([IMAGE])
    return kept.add_column(CAPTION, captions).add_column("label", labels)


def _name(thing: dict[str, str], wording: str) -> str:
    words = [word for word in wording.format(**thing).split() if word not in ("medium", "plain")]
    return " ".join([article(words[0]), *words])


def own_pictures(options: argparse.Namespace) -> tuple[Dataset, Dataset]:
    """Labelled pictures of any source, squeezed to squares, with a prompt as the caption; and some held out."""
    data = load_labelled(options.data, classes=options.classes, split=options.split)
    if not isinstance(data, Dataset):
        raise ValueError(f"{options.data} has the splits {list(data)}, and one is trained on. Name it by --split.")
    order = permute(np.arange(len(data)), len(data), mix64(options.seed, DATA_SEED))
    data = data.select(order)
    captions = [choices[0] for choices in prompt_choices(data, options.prompt)]
    side = (options.size, options.size)
    features = Features({IMAGE: Image(), CAPTION: Value("string"), "label": data.features["label"]})
    images = [to_rgb(image).resize(side, Resampling.LANCZOS) for image in data[IMAGE]]
    labels = data["label"][:]
    made = Dataset.from_dict({IMAGE: images, CAPTION: captions, "label": labels}, features=features)
    if len(made) <= options.held_out:
        raise ValueError(f"{len(made)} pictures cannot be trained on and {options.held_out} of them held out.")
    return made.select(range(options.held_out, len(made))), made.select(range(options.held_out))


def pixels(dataset: Dataset) -> torch.Tensor:
    """Pictures of one size. Shapes: returns float32 (N, 3, H, W) from -1 to 1."""
    images = [np.asarray(image.convert("RGB"), np.float32) for batch in dataset.iter(256) for image in batch[IMAGE]]
    return torch.from_numpy(np.stack(images) / 127.5 - 1).permute(0, 3, 1, 2).contiguous()


def small_unet(size: int, condition: int) -> torch.nn.Module:
    """1.6 million parameters: three resolutions, attention at the lowest, conditions added to the time."""
    return import_diffusers().UNet2DConditionModel(
        sample_size=size,
        in_channels=3,
        out_channels=3,
        block_out_channels=(32, 64, 96),
        layers_per_block=1,
        down_block_types=("DownBlock2D",) * 3,
        up_block_types=("UpBlock2D",) * 3,
        mid_block_type="UNetMidBlock2D",
        norm_num_groups=8,
        attention_head_dim=24,
        class_embed_type="projection",
        projection_class_embeddings_input_dim=condition,
        resnet_time_scale_shift="scale_shift",
    )


def new_pipeline(size: int, text_model: str) -> PixelDiffusionPipeline:
    """An untrained pipeline: v-prediction, squared-cosine schedule, DDIM whose first step is of noise alone."""
    scheduler = import_diffusers().DDIMScheduler(
        beta_schedule="squaredcos_cap_v2", prediction_type="v_prediction", timestep_spacing="trailing"
    )
    pipeline = PixelDiffusionPipeline(torch.nn.Identity(), scheduler, text_model)
    pipeline.unet = small_unet(size, pipeline.text_encoder.config.projection_dim)
    return pipeline


class Pictures:
    """Batches of pictures with noise on them, and what is to be predicted.

    Args:
        pictures: float32 (N, 3, H, W) from -1 to 1.
        captions: one for each.
        pipeline: whose text tower and schedule count.
        seed: of everything drawn.
        flip: mirror half of the pictures.
    """

    def __init__(
        self, pictures: torch.Tensor, captions: list[str], pipeline: PixelDiffusionPipeline, seed: int, flip: bool
    ) -> None:
        distinct = sorted(set(captions))
        parts = [pipeline.encode_prompt(distinct[at : at + 256]) for at in range(0, len(distinct), 256)]
        number = {caption: at for at, caption in enumerate(distinct)}
        self.pictures, self.vectors = pictures, torch.cat(parts)  # (N, 3, H, W), (captions, D)
        self.owner = torch.tensor([number[caption] for caption in captions])  # (N,)
        self.scheduler, self.flip = pipeline.scheduler, flip
        self.random = torch.Generator().manual_seed(mix64(seed) >> 1)

    def batch(self, size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Shapes: returns noisy pictures (B, 3, H, W), times (B,), conditions (B, D) and v (B, 3, H, W)."""
        chosen = torch.randint(len(self.pictures), (size,), generator=self.random)
        clean = self.pictures[chosen]
        if self.flip:
            flipped = torch.rand(size, generator=self.random) < 0.5
            clean = torch.where(flipped[:, None, None, None], clean.flip(-1), clean)
        said = torch.rand(size, 1, generator=self.random) >= UNCONDITIONAL
        noise = torch.randn(clean.shape, generator=self.random)
        times = torch.randint(self.scheduler.config.num_train_timesteps, (size,), generator=self.random)
        noisy, target = (make(clean, noise, times) for make in (self.scheduler.add_noise, self.scheduler.get_velocity))
        return noisy, times, self.vectors[self.owner[chosen]] * said, target


def train(unet: torch.nn.Module, pictures: Pictures, options: argparse.Namespace) -> float:
    """AdamW with warm-up and a cosine to zero; averaged weights are left in the U-Net. Returns the running loss."""
    optimizer = torch.optim.AdamW(
        unet.parameters(), lr=options.learning_rate, betas=(0.9, 0.99), weight_decay=0.01, fused=True
    )
    steps, warm_up = options.steps, min(50, options.steps // 5 + 1)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm_up, 0.5 * (1 + math.cos(math.pi * step / steps)))
    )
    average = [weight.detach().clone() for weight in unet.parameters()]
    loss, bar = math.nan, tqdm(range(steps), desc="Training the diffusion model", unit="step", mininterval=5)
    unet.train()
    for step in bar:
        noisy, times, labels, target = pictures.batch(options.batch_size)
        with torch.autocast("cpu", torch.bfloat16, enabled=not options.float32):
            found = unet(noisy, times, encoder_hidden_states=None, class_labels=labels).sample
        now = F.mse_loss(found.float(), target)
        optimizer.zero_grad()
        now.backward()
        torch.nn.utils.clip_grad_norm_(unet.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        keep = min(0.99, (step + 1) / (step + 10))
        with torch.no_grad():
            for mean, weight in zip(average, unet.parameters(), strict=True):
                mean.lerp_(weight, 1 - keep)
        loss = now.item() if math.isnan(loss) else 0.98 * loss + 0.02 * now.item()
        bar.set_postfix(loss=f"{loss:.4f}", refresh=False)
    with torch.no_grad():
        for mean, weight in zip(average, unet.parameters(), strict=True):
            weight.copy_(mean)
    unet.eval()
    return loss


class Block(torch.nn.Module):
    """Two convolutions beside a shortcut, which halve the sides."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(before, after, 3, 2, 1, bias=False)
        self.second = torch.nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norms = torch.nn.ModuleList([torch.nn.BatchNorm2d(after) for _ in range(2)])
        self.shortcut = torch.nn.Conv2d(before, after, 1, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Shapes: (B, before, H, W) → (B, after, H / 2, W / 2)."""
        hidden = F.relu(self.norms[0](self.first(inputs)))
        return F.relu(self.norms[1](self.second(hidden)) + self.shortcut(inputs))


def train_classifier(pictures: torch.Tensor, labels: torch.Tensor, classes: int, seed: int) -> torch.nn.Module:
    """A small residual network on real pictures, 12 epochs. Shapes: pictures (N, 3, H, W), labels int64 (N,)."""
    torch.manual_seed(seed)
    blocks = [Block(3, 32), Block(32, 64), Block(64, 128)]
    tail = [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(128, classes)]
    model = torch.nn.Sequential(*blocks, *tail)
    steps = 12 * -(-len(pictures) // 64)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    random = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        chosen = torch.randint(len(pictures), (64,), generator=random)
        loss = F.cross_entropy(model(pictures[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()


@torch.inference_mode()
def named(classifier: torch.nn.Module, pictures: torch.Tensor, labels: torch.Tensor) -> float:
    """The share of pictures whose class a classifier names."""
    return float((classifier(pictures).argmax(1) == labels).float().mean())


def drawn(pipeline: PixelDiffusionPipeline, held_out: Dataset, level: float) -> torch.Tensor:
    """The held-out pictures at one guidance level. Shapes: returns float32 (N, 3, H, W) from -1 to 1."""
    made = pipeline(
        held_out[CAPTION][:],
        image=list(held_out[IMAGE][:]),
        strength=round(1 - level, 6),
        generator=[torch.Generator().manual_seed(row) for row in range(len(held_out))],
        output_type="np",
    ).images
    return torch.from_numpy(made).permute(0, 3, 1, 2) * 2 - 1


def evaluate(pipeline: PixelDiffusionPipeline, held_out: Dataset, known: Dataset) -> dict[str, dict[str, float]]:
    """Distance to the source, and the share that a classifier of real pictures names, by guidance level."""
    real, labels = pixels(held_out), torch.tensor(held_out["label"][:])
    classes = int(max(*known["label"][:], *held_out["label"][:])) + 1
    classifier = train_classifier(pixels(known), torch.tensor(known["label"][:]), classes, CLASSIFIER_SEED)
    distance, shares = {}, {}
    for level in LEVELS:
        made = drawn(pipeline, held_out, level)
        distance[f"{level:g}"] = round(float((made - real).square().mean((1, 2, 3)).sqrt().mean()), 4)
        shares[f"{level:g}"] = round(named(classifier, made, labels), 4)
    shares["1"] = round(named(classifier, real, labels), 4)
    return {"distance": distance, "named": shares}


def main() -> None:
    """Draws the scenes, trains, evaluates and saves."""
    parser = argparse.ArgumentParser(
        "hf-curriculum recipe scenes_diffusion",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--steps", type=int, default=1800, help="optimizer steps")
    parser.add_argument("--scenes", type=int, default=8000, help="pictures to train on")
    parser.add_argument("--batch_size", type=int, default=64, help="pictures per step")
    parser.add_argument("--learning_rate", type=float, default=1.5e-3, help="at its peak")
    parser.add_argument("--held_out", type=int, default=64, help="pictures of the evaluation")
    parser.add_argument("--data", help="labelled pictures to train on rather than scenes, as `load_labelled` takes")
    parser.add_argument("--classes", help="the names of their classes, a file as `load_labelled` takes it")
    parser.add_argument("--split", help="which of their splits")
    parser.add_argument("--prompt", help='the caption of each of them, by default "a photo of {label}"')
    parser.add_argument("--size", type=int, help="the side they are squeezed to, a multiple of 4, by default 32")
    parser.add_argument("--text_model", help="the CLIP whose text tower reads the prompts, by default the shipped one")
    parser.add_argument("--start", type=Path, help="a folder that this recipe has written, whose weights go on")
    parser.add_argument("--flip", action="store_true", help="mirror half of the pictures")
    parser.add_argument("--float32", action="store_true", help="no bfloat16 in the convolutions")
    parser.add_argument("--threads", type=int, default=2, help="of the processor")
    parser.add_argument("--seed", type=int, default=0, help="of weights, noise and order")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder to save to")
    options = parser.parse_args()
    unused = [name for name in ("classes", "split", "prompt", "size") if getattr(options, name) is not None]
    if options.data is None and unused:
        parser.error(f"--{unused[0]} is of your own pictures, and scenes would be drawn as they are. Pass --data too.")
    options.prompt, options.size = options.prompt or "a photo of {label}", options.size or IMAGE_SIZE
    if options.size % 4:
        parser.error(f"--size is {options.size}, and the U-Net halves it twice. Give a multiple of 4.")
    torch.set_num_threads(options.threads)
    set_seed(options.seed)
    start, cpu = time.perf_counter(), time.process_time()
    if options.data is None:
        data = single_objects(options.scenes, DATA_SEED, wordings=True)
        held_out = single_objects(options.held_out, HELD_OUT_SEED)
        source = {"data": "make_scenes", "data_seed": DATA_SEED, "held_out_seed": HELD_OUT_SEED}
    else:
        data, held_out = own_pictures(options)
        source = {"data": Path(options.data).name, "prompt": options.prompt, "flip": options.flip}
    pictures = pixels(data)
    size = pictures.shape[-1]
    if options.start is None:
        pipeline, earlier = new_pipeline(size, options.text_model or "scenes_clip"), {}
    else:
        pipeline = PixelDiffusionPipeline.from_pretrained(options.start)
        if options.text_model not in (None, pipeline.text_model):
            parser.error(f"--start has learnt to read {pipeline.text_model}. Leave --text_model out.")
        before = json.loads((options.start / "training.json").read_text(encoding="utf-8"))
        earlier = {"earlier": {name: before[name] for name in ("seed", "steps", "learning_rate", "cpu_minutes")}}
    loss = train(pipeline.unet, Pictures(pictures, data[CAPTION][:], pipeline, options.seed, options.flip), options)
    pipeline.unet.half()
    pipeline.save_pretrained(options.output)
    pipeline.unet.float()  # evaluated as it will be loaded
    found = evaluate(pipeline, held_out, data.select(range(min(len(data), KNOWN))))
    facts = {
        "recipe": Path(__file__).name,
        "seed": options.seed,
        **source,
        "pictures": len(data),
        "image_size": size,
        "steps": options.steps,
        "batch_size": options.batch_size,
        "learning_rate": options.learning_rate,
        **earlier,
        "parameters": sum(weight.numel() for weight in pipeline.unet.parameters()),
        "final_loss": round(loss, 4),
        "held_out_pictures": len(held_out),
        **found,
        "minutes": round((time.perf_counter() - start) / 60, 1),
        "cpu_minutes": round((time.process_time() - cpu) / 60, 1),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "diffusers": import_diffusers().__version__,
            "hf-curriculum": hf_curriculum.__version__,
        },
        "knows": training_statistics(data[CAPTION][:], pictures),
    }
    (options.output / "training.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({key: value for key, value in facts.items() if key != "knows"}, indent=1))


if __name__ == "__main__":
    main()
