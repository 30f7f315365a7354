"""The miniature benchmarks, made once, and small models with random weights."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

from hf_curriculum import CaptionFlamingoForCausalLM, CaptionGitForCausalLM, make_image_processor, train_wordpiece
from hf_curriculum.data.images import to_rgb
from hf_curriculum.models.flamingo.build import add_image_token, small_flamingo_config
from hf_curriculum.models.git.build import small_git_config
from hf_curriculum.tasks.babylm import TextImageScorer, make_miniature_benchmarks
from hf_curriculum.tasks.babylm.run import Run

SMALL = {"image_size": 32, "hidden_size": 32, "vision_layers": 1, "text_layers": 2, "num_attention_heads": 2}


@pytest.fixture(scope="session")
def miniature(tmp_path_factory):
    return make_miniature_benchmarks(tmp_path_factory.mktemp("miniature"), size=8, image_size=32)


@pytest.fixture(scope="session")
def tokenizer(miniature):
    lines = [json.loads(line) for file in sorted(miniature.rglob("*.jsonl")) for line in file.open()]
    texts = [text for line in lines for text in line.values() if isinstance(text, str)]
    made = train_wordpiece(
        ["The caption for this image is: a red ball. Question: what? Answer: blue"] * 2 + texts, 300
    )
    add_image_token(made)
    return made


@pytest.fixture(scope="session")
def image_processor():
    return make_image_processor(32)


@pytest.fixture(scope="session")
def git(tokenizer):
    torch.manual_seed(0)
    return CaptionGitForCausalLM(small_git_config(len(tokenizer), tokenizer=tokenizer, **SMALL)).eval()


@pytest.fixture(scope="session")
def flamingo(tokenizer):
    torch.manual_seed(1)
    config = small_flamingo_config(len(tokenizer), tokenizer=tokenizer, perceiver_latents=4, **SMALL)
    model = CaptionFlamingoForCausalLM(config).eval()
    with torch.no_grad():  # gates start at 0, where images make no difference
        for name, weight in model.named_parameters():
            if "gate" in name and weight.numel() == 1:
                weight.fill_(0.7)
    return model


@pytest.fixture
def models(git, flamingo):
    return {"git": git, "flamingo": flamingo}


@pytest.fixture
def run_of(miniature, tokenizer, image_processor, git):
    """A `Run` of the small GIT on the miniature benchmarks, with other fields as given."""

    def make(**fields):
        model, batch_size = fields.pop("model", git), fields.pop("batch_size", 7)
        scorer = TextImageScorer(model, tokenizer, image_processor, batch_size=batch_size)
        return Run(**{"scorer": scorer, "data_dir": miniature, "progress": False, **fields})

    return make


@pytest.fixture
def naive(tokenizer, image_processor):
    """Log-probabilities the slow way: one text at a time, nothing padded, nothing masked, nothing shared."""

    def tokens(text):
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    def log_probs(model, ids, start, image=None):
        inputs = {"input_ids": torch.tensor([ids[:-1]])}
        if image is not None:
            inputs["pixel_values"] = image_processor(images=[to_rgb(image)], return_tensors="pt")["pixel_values"]
        with torch.no_grad():
            scores = model(**inputs).logits.log_softmax(-1)[0]
        return [scores[at - 1, ids[at]].item() for at in range(start, len(ids))]

    def choice(model, context, text, image=None):
        image_ids = [model.config.image_token_id] if image is not None and hasattr(model, "flamingo") else []
        context_ids = tokens(context)
        before = image_ids + context_ids if context else [tokenizer.pad_token_id, *image_ids]
        after = tokens(f"{context} {text}")[len(context_ids) :]
        return sum(log_probs(model, before + after, len(before), image))

    return SimpleNamespace(tokens=tokens, log_probs=log_probs, choice=choice)
