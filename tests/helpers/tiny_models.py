"""Small models with random weights, saved as a user's would be, and their scores of one example the slow way."""

from __future__ import annotations

import atexit
import functools
import io
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    BertConfig,
    BlipConfig,
    BlipForConditionalGeneration,
    BlipTextConfig,
    BlipVisionConfig,
    GitConfig,
    GitForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    ResNetConfig,
    ResNetForImageClassification,
    ViltConfig,
    ViltForImageAndTextRetrieval,
    ViltImageProcessorPil,
    VisionEncoderDecoderConfig,
    VisionEncoderDecoderModel,
    ViTConfig,
)

import hf_curriculum.models  # noqa: F401  (makes the library's captioners known to the Auto classes)
from hf_curriculum import (
    CaptionCollator,
    CaptionFlamingoForCausalLM,
    CaptionGitForCausalLM,
    make_image_processor,
    train_wordpiece,
)
from hf_curriculum.data.images import to_rgb
from hf_curriculum.data.processors import CaptionProcessor, process_image
from hf_curriculum.data.regions.base import Regions
from hf_curriculum.models.flamingo.build import add_image_token, small_flamingo_config
from hf_curriculum.models.git.build import small_git_config
from hf_curriculum.scorers.alignment.vilt import ViltForMatching
from hf_curriculum.tasks.captioning import RegionTransformerConfig, RegionTransformerForCausalLM

TEXTS = ["a red ball and two dogs", "the dog runs in the park", "a man rides a bike", "two cats sleep on a mat"]
WIDTH = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


@functools.cache
def root() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="tiny_models"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def tokenizer():
    return train_wordpiece(TEXTS * 2, 120, min_frequency=1)


def saved(name, model, *parts):
    """The folder of a model whose weights are large enough to make scores differ."""
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight) * (0.3 if weight.ndim > 1 else 0.1))
    folder = root() / name
    for part in (model, *parts):
        part.save_pretrained(folder)
    return str(folder)


def png(height, width, seed=0):
    """An image of noise as a file's bytes, the way a data set keeps it; the darker the greater the seed."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8) // (1 + seed)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return {"bytes": stream.getvalue(), "path": None}


@functools.cache
def llama(bos="[CLS]"):
    parts = train_wordpiece(TEXTS * 2, 120, min_frequency=1)
    if bos is not None:
        parts.bos_token = bos
    config = LlamaConfig(vocab_size=len(parts), max_position_embeddings=64, **WIDTH)
    return saved(f"llama-{bos}", LlamaForCausalLM(config), parts)


@functools.cache
def gpt2():
    config = GPT2Config(vocab_size=len(tokenizer()), n_embd=16, n_layer=2, n_head=2, n_positions=32)
    return saved("gpt2", GPT2LMHeadModel(config), tokenizer())


def vilt_config():
    return ViltConfig(vocab_size=len(tokenizer()), image_size=64, patch_size=32, max_image_length=3, **WIDTH)


def vilt_processor():
    return ViltImageProcessorPil(size={"shortest_edge": 64})


@functools.cache
def vilt():
    return saved("vilt", ViltForImageAndTextRetrieval(vilt_config()), tokenizer(), vilt_processor())


@functools.cache
def vilt_matching():
    return saved("vilt-matching", ViltForMatching(vilt_config()), tokenizer(), vilt_processor())


@functools.cache
def git():
    """The library's own captioner."""
    fields = {"image_size": 16, "hidden_size": 16, "vision_layers": 1, "text_layers": 2, "num_attention_heads": 2}
    config = small_git_config(len(tokenizer()), tokenizer=tokenizer(), **fields)
    return saved("git", CaptionGitForCausalLM(config), tokenizer(), make_image_processor(16))


@functools.cache
def flamingo():
    """The library's other captioner."""
    words = train_wordpiece(TEXTS * 2, 120, min_frequency=1)
    add_image_token(words)
    fields = {"image_size": 16, "hidden_size": 16, "vision_layers": 1, "text_layers": 2, "num_attention_heads": 2}
    config = small_flamingo_config(len(words), tokenizer=words, perceiver_latents=4, **fields)
    model = CaptionFlamingoForCausalLM(config)
    where = saved("flamingo", model, words, make_image_processor(16))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "gate" in name.rpartition(".")[2] or "norm" in name:
                weight.fill_(1.0)  # a random image would change little through gates and norms near 0
    model.save_pretrained(where)
    return where


@functools.cache
def stock_git():
    vision = {**WIDTH, "image_size": 16, "patch_size": 8}
    ends = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
    config = GitConfig(vision_config=vision, vocab_size=len(tokenizer()), max_position_embeddings=32, **ends, **WIDTH)
    return saved("stock-git", GitForCausalLM(config), tokenizer(), make_image_processor(16))


@functools.cache
def blip():
    text = BlipTextConfig(
        vocab_size=len(tokenizer()), bos_token_id=4, max_position_embeddings=32, encoder_hidden_size=16, **WIDTH
    )
    vision = BlipVisionConfig(image_size=16, patch_size=8, **WIDTH)
    config = BlipConfig(text_config=text.to_dict(), vision_config=vision.to_dict())
    return saved("blip", BlipForConditionalGeneration(config), tokenizer(), make_image_processor(16))


@functools.cache
def encoder_decoder(start=2):
    decoder = BertConfig(
        vocab_size=len(tokenizer()), max_position_embeddings=32, is_decoder=True, add_cross_attention=True, **WIDTH
    )
    encoder = ViTConfig(image_size=16, patch_size=8, **WIDTH)
    config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    config.decoder_start_token_id, config.pad_token_id = start, 0
    return saved(f"encoder-decoder-{start}", VisionEncoderDecoderModel(config), tokenizer(), make_image_processor(16))


@functools.cache
def classifier():
    """The folder of a classifier of red, green and blue."""
    torch.manual_seed(0)
    config = ResNetConfig(
        depths=[1], hidden_sizes=[8], embedding_size=8, layer_type="basic", id2label={0: "red", 1: "green", 2: "blue"}
    )
    return saved("classifier", ResNetForImageClassification(config), make_image_processor(16))


def naive_class_probability(image, label):
    """The softmax of one image, at the place of its class."""
    model = ResNetForImageClassification.from_pretrained(classifier()).eval()
    pixels = make_image_processor(16)(to_rgb(image), return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        return model(pixels).logits[0].softmax(-1)[label].item()


def region_store(counts=(("0", 2), ("1", 1), ("2", 4)), dims=6):
    """Regions of random features of three images of 100 × 50 pixels, by image id."""
    rng, store = np.random.default_rng(0), {}
    for image_id, count in counts:
        corners = rng.uniform(0, 20, (count, 2))
        boxes = np.concatenate([corners, corners + rng.uniform(1, 30, (count, 2))], axis=1).astype(np.float32)
        features = rng.normal(size=(count, dims)).astype(np.float32)
        store[image_id] = Regions(image_id, boxes=boxes, features=features, width=100, height=50)
    return store


@functools.cache
def region_archive():
    """The same as a file that `open_regions` knows."""
    path = root() / "regions.npz"
    parts = {
        f"{key}/{part}": getattr(found, part)
        for key, found in region_store().items()
        for part in ("features", "boxes")
    }
    np.savez(path, **parts, **{f"{key}/size": [100, 50] for key in region_store()})
    return str(path)


@functools.cache
def region_transformer(dims=6):
    """A captioner on regions, without an image processor."""
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    ends = {"pad_token_id": 0, "unk_token_id": 1, "bos_token_id": 2, "eos_token_id": 3}
    config = RegionTransformerConfig(len(tokenizer()), 16, region_feature_size=dims, **sizes, **ends)
    return saved(
        f"region-transformer-{dims}", RegionTransformerForCausalLM(config), CaptionProcessor(None, tokenizer())
    )


def naive_language_model_losses(folder, caption, before=(2,)):
    """−log p of each token of one caption, without padding, in double precision."""
    words, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = [*before, *words(caption, add_special_tokens=False)["input_ids"]]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0].double()
    return np.array([-logits[place].log_softmax(0)[token].item() for place, token in enumerate(ids[1:])])


def vilt_inputs(image, caption):
    """One pair as ViLT's own processor and tokenizer make it."""
    text = tokenizer()([caption], truncation=True, max_length=40, return_tensors="pt")
    return {**text, **vilt_processor()(images=[to_rgb(image)], return_tensors="pt")}


def naive_vilt_logit(image, caption):
    model = ViltForImageAndTextRetrieval.from_pretrained(vilt()).eval()
    model.config.max_image_length = -1
    with torch.no_grad():
        return model(**vilt_inputs(image, caption)).logits.item()


def naive_gradient(image, caption):
    """The gradient of the GIT's own loss of one pair, a sum over tokens, by all weights, (weights,)."""
    model = AutoModelForImageTextToText.from_pretrained(git()).eval()
    ids = tokenizer()([caption], return_tensors="pt")["input_ids"]
    pixels = process_image(make_image_processor(16), to_rgb(image))["pixel_values"][None]
    (model(pixel_values=pixels, input_ids=ids, labels=ids).loss * (ids.shape[1] - 1)).backward()
    return torch.cat([part.grad.flatten() for part in model.parameters() if part.grad is not None])


def naive_model_loss(name, image, caption):
    """A captioner's own training loss of one pair, as a sum: its mean over tokens × how many it scores."""
    cls = VisionEncoderDecoderModel if name == "encoder_decoder" else AutoModelForImageTextToText
    model, ids = (
        cls.from_pretrained(globals()[name]()).eval(),
        tokenizer()([caption], return_tensors="pt")["input_ids"],
    )
    pixels = process_image(make_image_processor(16), to_rgb(image))["pixel_values"][None]
    with torch.no_grad():
        if name == "encoder_decoder":
            return model(pixel_values=pixels, labels=ids).loss.item() * ids.shape[1]
        if name == "blip":  # its own loss is smoothed
            ids[:, 0] = 4
            logits = model(pixel_values=pixels, input_ids=ids).logits[0, :-1].double()
            return -logits.log_softmax(-1).gather(1, ids[0, 1:, None]).sum().item()
        if name == "flamingo":  # as it is trained: after `<image>`, which is not scored
            words = AutoTokenizer.from_pretrained(flamingo())
            batch = CaptionCollator(words, make_image_processor(16), prefix="<image> ")(
                [{"image": image, "caption": caption}]
            )
            return model(**batch).loss.item() * (batch["labels"] != -100)[:, 1:].sum().item()
        return model(pixel_values=pixels, input_ids=ids, labels=ids).loss.item() * (ids.shape[1] - 1)
