"""Every model of the library, small, with its real collator, on data of its kind."""

from __future__ import annotations

import copy

import numpy as np

from hf_curriculum import CaptionCollator, CurriculumTrainer, make_image_processor
from hf_curriculum.data.image_inputs import RegionInputs
from hf_curriculum.data.regions.base import Regions
from hf_curriculum.data.text_blocks import JointText
from hf_curriculum.models.flamingo.build import add_image_token, flamingo_from_config, small_flamingo_config
from hf_curriculum.tasks.alignment import ContrastiveTrainer
from hf_curriculum.tasks.captioning import (
    AoANetConfig,
    AoANetForCausalLM,
    CaptioningTrainer,
    RegionTransformerConfig,
    RegionTransformerForCausalLM,
    UpDownConfig,
    UpDownForCausalLM,
)
from hf_curriculum.training.joint_text import JointTextTrainer
from tests.helpers.contrastive_task import make_aligner, make_pairs, region_collator
from tests.helpers.detection_task import shapes_collator, shapes_data, shapes_model
from tests.helpers.selection_task import captioned, captions_collator, small_git


def regions():
    """One to four regions of each image of the captions."""
    rng, store = np.random.default_rng(0), {}
    for number, image_id in enumerate(dict.fromkeys(captioned()[0]["image_id"])):
        features = rng.normal(size=(1 + number % 4, 6)).astype(np.float32)
        store[image_id] = Regions(image_id, features=features)
    return RegionInputs(store)


def region_captioner(kind):
    sizes = {"vocab_size": len(captioned()[1]), "hidden_size": 16, "region_feature_size": 6}
    ends = {"pad_token_id": 0, "unk_token_id": 1, "bos_token_id": 2, "eos_token_id": 3}
    if kind == "transformer":
        layers = {"num_encoder_layers": 1, "num_decoder_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
        return RegionTransformerForCausalLM(RegionTransformerConfig(**sizes, **layers, **ends))
    if kind == "aoanet":
        return AoANetForCausalLM(AoANetConfig(**sizes, num_attention_heads=2, num_refiner_layers=1, **ends))
    return UpDownForCausalLM(UpDownConfig(**sizes, attention_size=4, **ends))


def case(name):
    """Model, collator, data, trainer class and further arguments of a case."""
    data, tokenizer = captioned()
    name, *more = name.split(", ")
    shared = {"share_images": "shared" in more}
    if name == "git":
        model = small_git(0.1)
        if "text" in more:
            return model, CaptionCollator(tokenizer, None, max_length=14), data, CurriculumTrainer, {}
        if "joint" in more:
            collator = JointText(captions_collator(), data, CaptionCollator(tokenizer, None, max_length=14))
            return model, collator, data, JointTextTrainer, {"trainer": {"text_weight": 0.5}}
        weights = {"weight_column": "level"} if "weighted" in more else {}
        return model, captions_collator(**shared), data, CurriculumTrainer, weights
    if name == "flamingo":
        tokenizer = copy.deepcopy(tokenizer)
        add_image_token(tokenizer)
        config = small_flamingo_config(
            len(tokenizer), tokenizer=tokenizer, image_size=16, hidden_size=16, vision_layers=1, text_layers=1,
            perceiver_latents=2,
        )  # fmt: skip
        collator = CaptionCollator(tokenizer, make_image_processor(16), max_length=16, prefix="<image> ", **shared)
        return flamingo_from_config(config), collator, data, CurriculumTrainer, {}
    if name == "aligner":
        rows, store = make_pairs(16)
        return make_aligner(0.1), region_collator(store), rows, ContrastiveTrainer, {}
    if name == "wsddn":
        options = {"spatial_weight": 0.5} if "spatial" in more else {}
        return shapes_model(**options), shapes_collator(), shapes_data(8), CurriculumTrainer, {}
    sampled = (
        {"scheduled_sampling": {"start": 0, "every": 1, "increase": 0.5, "max": 0.5}} if "sampled" in more else {}
    )
    collator = CaptionCollator(tokenizer, None, max_length=14, regions=regions(), **shared)
    return region_captioner(name), collator, data, CaptioningTrainer, sampled
