"""Captioners learn to stop, with any tokenizer, and what could not be learnt is refused before the first step."""

import os
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoTokenizer,
    BlipConfig,
    BlipForConditionalGeneration,
    CLIPConfig,
    CLIPModel,
    GitConfig,
    GitForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from hf_curriculum import IID, CaptionCollator, CurriculumTrainer, CurriculumTrainingArguments, make_image_processor
from hf_curriculum.evaluation.generate import generate_captions
from hf_curriculum.models.base import generation_ends, validate_vocabulary
from hf_curriculum.models.git.build import git_from_config, small_git_config

COLOURS = ("red", "green", "blue", "yellow")
SQUARES = Dataset.from_list(
    [
        {"image": Image.new("RGB", (16, 16), colour), "caption": f"a {colour} square", "image_id": str(number)}
        for number, colour in enumerate(COLOURS * 16)
    ]
)
TOWER = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
VISION = {**TOWER, "image_size": 16, "patch_size": 8}


def byte_pairs(bos=None):
    """GPT-2's kind of tokenizer, which writes nothing around a text; with `bos` Llama's kind."""
    special = ["<|end|>", *([bos] if bos else [])]
    model = Tokenizer(models.BPE())
    model.pre_tokenizer, model.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    model.train_from_iterator(
        SQUARES["caption"],
        trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False),
    )
    if bos:
        model.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, 1)])
    ends = {"pad_token": special[0], "eos_token": special[0], "bos_token": special[-1]}
    return PreTrainedTokenizerFast(tokenizer_object=model, **ends)


def stories():
    folder = Path(os.environ.get("HF_CURRICULUM_TEST_DATA", "none"), "weights", "stories260K_hf")
    if not folder.is_dir():
        pytest.skip("needs real data: set HF_CURRICULUM_TEST_DATA")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def captioner(tokenizer):
    torch.manual_seed(0)
    sizes = {"image_size": 16, "patch_size": 8, "hidden_size": 48, "vision_layers": 1, "text_layers": 2}
    return git_from_config(small_git_config(len(tokenizer), tokenizer=tokenizer, **sizes))


def trainer(model, collator, folder, **settings):
    given = {"max_steps": 1, "per_device_train_batch_size": 8, "learning_rate": 3e-3, "save_strategy": "no"}
    given |= {"report_to": [], "use_cpu": True, "disable_tqdm": True, "curriculum": IID(), **settings}
    args = CurriculumTrainingArguments(str(folder), **given)
    return CurriculumTrainer(model, args, train_dataset=SQUARES, data_collator=collator)


@pytest.mark.parametrize(
    "make",
    [
        byte_pairs,
        pytest.param(lambda: byte_pairs("<s>"), marks=pytest.mark.slow),
        pytest.param(stories, marks=pytest.mark.slow),
    ],
    ids=["GPT-2's kind", "Llama's kind", "Llama's"],
)
def test_a_trained_captioner_writes_the_caption_and_stops(make, tmp_path):
    tokenizer = make()
    assert tokenizer("a dog")["input_ids"][-1] != tokenizer.eos_token_id
    model, collator = captioner(tokenizer), CaptionCollator(tokenizer, make_image_processor(16))
    trainer(model, collator, tmp_path, max_steps=100).train()
    found = generate_captions(model, SQUARES.select(range(4)), collator, max_new_tokens=40)
    assert found == [f"a {colour} square" for colour in COLOURS]


def test_words_that_the_model_lacks_are_named_before_the_first_step(tmp_path):
    tokenizer = byte_pairs()
    model, collator = captioner(tokenizer), CaptionCollator(tokenizer, make_image_processor(16))
    tokenizer.add_tokens(["zork77"])
    run = trainer(model, collator, tmp_path)
    message = r"has \d+ entries, up to 'zork77' with the id \d+, and the CaptionGitForCausalLM \d+: a text with such"
    with pytest.raises(ValueError, match=message):
        run.train()
    assert run.state.global_step == 0
    model.resize_token_embeddings(len(tokenizer))
    assert trainer(model, collator, tmp_path).train().global_step == 1


def test_models_without_a_table_of_words_are_taken():
    validate_vocabulary(
        CLIPModel(CLIPConfig(text_config={**TOWER, "vocab_size": 9}, vision_config=VISION)), byte_pairs()
    )
    validate_vocabulary(torch.nn.Linear(2, 2), byte_pairs())


def test_an_end_at_which_generation_does_not_stop_is_named(tmp_path, caplog):
    tokenizer = byte_pairs()
    model, collator = captioner(tokenizer), CaptionCollator(tokenizer, make_image_processor(16))
    trainer(model, collator, tmp_path).train()
    generate_captions(model, SQUARES.select([0]), collator, max_new_tokens=1)
    assert "Captions end" not in caplog.text
    for ends, named in (
        (7, r"stops at the ids [7]"),
        ([7, 8], "stops at the ids [7, 8]"),
        (None, "stops at no token"),
    ):
        model.generation_config.eos_token_id = ends
        caplog.clear()
        trainer(model, collator, tmp_path).train()
        assert "Captions end with '<|end|>' (id 0), and the CaptionGitForCausalLM" in caplog.text
        assert named in caplog.text
    caplog.clear()
    generate_captions(model, SQUARES.select([0]), collator, max_new_tokens=1)
    assert "Set `model.generation_config.eos_token_id = 0`" in caplog.text


def blip(tokenizer):
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "sep_token_id": tokenizer.eos_token_id}
    text = {**TOWER, "vocab_size": len(tokenizer), "max_position_embeddings": 30, "encoder_hidden_size": 16, **ends}
    return BlipForConditionalGeneration(BlipConfig(text_config=text, vision_config=VISION))


def stock_git(tokenizer):
    ends = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 0)
    return GitForCausalLM(GitConfig(vision_config=VISION, vocab_size=len(tokenizer), **ends, **TOWER))


def test_where_the_generation_of_blip_stops():
    assert generation_ends(blip(byte_pairs())) == {0}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (blip, r"factor=0.1 was given with a BlipForConditionalGeneration, .* which trains copying. Leave it out"),
        (stock_git, r"with a GitForCausalLM, .* has \d+ labels a row for \d+ logits, which include the image's"),
    ],
)
def test_smoothed_labels_that_would_not_be_those_of_the_next_token_are_refused(make, message, tmp_path):
    tokenizer = byte_pairs()
    model, collator = make(tokenizer), CaptionCollator(tokenizer, make_image_processor(16))
    assert trainer(model, collator, tmp_path / "plain").train().global_step == 1
    run = trainer(model, collator, tmp_path, label_smoothing_factor=0.1)
    with pytest.raises(ValueError, match=message):
        run.train()
    assert run.state.global_step == 0


def test_smoothed_labels_of_the_next_token_are_trained(tmp_path):
    tokenizer = byte_pairs()
    text = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **TOWER))
    for model, images in ((text, None), (captioner(tokenizer), make_image_processor(16))):
        run = trainer(model, CaptionCollator(tokenizer, images), tmp_path, label_smoothing_factor=0.1)
        assert run.train().global_step == 1
