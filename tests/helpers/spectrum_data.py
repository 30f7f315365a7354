"""Labelled scenes with hard ones among them, and pipelines small enough to draw thousands of images a minute."""

from __future__ import annotations

import torch
from datasets import ClassLabel, Dataset

from hf_curriculum import make_scenes
from hf_curriculum.scenes.vocabulary import NOUNS
from hf_curriculum.tasks.long_tail import PixelDiffusionPipeline


def labelled_scenes(count: int = 10, hard: int = 4, size: int = 16) -> Dataset:
    """Single objects: image, image_id, label, name, and hard, of which the first are."""
    data = make_scenes(count, 5, image_size=32, captions_per_image=1, max_objects=1, validation=0, test=0)["train"]
    objects = [objects[0] for objects in data["objects"][:]]
    images = [image.resize((size, size)) for image in data["image"][:]]
    columns = {
        "image": images,
        "image_id": data["image_id"][:],
        "label": [NOUNS.index(each["noun"]) for each in objects],
        "name": [each["name"] for each in objects],
        "hard": [row < hard for row in range(count)],
    }
    made = Dataset.from_dict(columns)
    return made.cast_column("label", ClassLabel(names=NOUNS))


def tiny_pipeline(seed: int = 0, size: int = 16) -> PixelDiffusionPipeline:
    """An untrained U-Net of 8 and 16 channels on the shipped CLIP's text tower."""
    from diffusers import DDIMScheduler, UNet2DConditionModel

    torch.manual_seed(seed)
    unet = UNet2DConditionModel(
        sample_size=size,
        in_channels=3,
        out_channels=3,
        block_out_channels=(8, 16),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
        mid_block_type="UNetMidBlock2D",
        norm_num_groups=4,
        attention_head_dim=8,
        class_embed_type="projection",
        projection_class_embeddings_input_dim=128,
        resnet_time_scale_shift="scale_shift",
    )
    scheduler = DDIMScheduler(
        beta_schedule="squaredcos_cap_v2", prediction_type="v_prediction", timestep_spacing="trailing"
    )
    return PixelDiffusionPipeline(unet.eval(), scheduler)
