"""Five chat models of a few thousand weights that read images, and one of text, saved with processors made offline."""

from __future__ import annotations

import functools
import io

import numpy as np
import pytest
import tiny_models as TINY
import torch
from datasets import Dataset, Features, Image, List, Value
from PIL import Image as Picture
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoImageProcessor,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoProcessor,
    AutoTokenizer,
    Blip2Config,
    Blip2ForConditionalGeneration,
    Blip2Processor,
    BlipImageProcessorPil,
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3ImageProcessorPil,
    Idefics3Processor,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PaliGemmaConfig,
    PaliGemmaForConditionalGeneration,
    PaliGemmaProcessor,
    PreTrainedTokenizerFast,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen2VLImageProcessorPil,
    Qwen2VLProcessor,
    SiglipImageProcessorPil,
)

WIDTH = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
TEXTS = ["What is in the image?", "A red ball and two dogs.", "It runs in the park.", "You are a helpful assistant."]
CHATML = (  # as Qwen2-VL's: a list of parts or a text, and a system prompt where there is none
    "{% for message in messages %}"
    "{% if loop.first and message.role != 'system' %}<|im_start|>system\nYou are helpful.<|im_end|>\n{% endif %}"
    "<|im_start|>{{ message.role }}\n{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}{% if part.type == 'image' %}IMAGE{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ROLES = (  # as LLaVA's: the response begins with a space, and the end of the text is written after it
    "{% for message in messages %}{{ message.role | upper }}: "
    "{% for part in message.content %}{% if part.type == 'image' %}<image>\n{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% if message.role == 'assistant' %}</s>{% else %} {% endif %}{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)
UTTERANCES = (  # as SmolVLM's: refuses a role that it does not know
    "<s>{% for message in messages %}"
    "{% if message.role == 'tool' %}{{ raise_exception('no tools are called here') }}{% endif %}"
    "{{ message.role | capitalize }}{% if message.content[0].type == 'image' %}:{% else %}: {% endif %}"
    "{% for part in message.content %}{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)


def tokenizer(*special, bos="<s>", **named):
    """A byte-level tokenizer of some 350 tokens, trained on TEXTS; `bos` is put before texts, if there is one."""
    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    ends = ["<pad>", "</s>", *([bos] if bos else [])]
    trainer = trainers.BpeTrainer(
        vocab_size=340, special_tokens=ends, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    words.train_from_iterator(TEXTS * 4, trainer)
    if bos:
        first = (bos, words.token_to_id(bos))
        words.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A $B:1", special_tokens=[first]
        )
    made = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="</s>", **({"bos_token": bos} if bos else {}), **named
    )
    made.add_tokens(list(special), special_tokens=True)
    return made


def saved(name, model, *parts):
    """The folder of a model whose norms let through what an image changes."""
    where = TINY.saved(f"chat-{name}", model, *parts)
    with torch.no_grad():
        for weight_name, weight in model.named_parameters():
            if "norm" in weight_name and weight_name.endswith("weight"):
                weight.fill_(1.0)
    model.save_pretrained(where)
    return where


@functools.cache
def llava():
    """One placeholder becomes four tokens, and a beginning of text is added to the rendered conversation."""
    words = tokenizer("<image>")
    image = CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    processor = LlavaProcessor(image, words, 8, "default", ROLES, num_additional_image_tokens=1)
    vision = CLIPVisionConfig(image_size=16, patch_size=8, **WIDTH)
    text = LlamaConfig(vocab_size=len(words), max_position_embeddings=512, **WIDTH)
    places = {"image_token_index": words.convert_tokens_to_ids("<image>"), "vision_feature_layer": -1}
    config = LlavaConfig(text_config=text, vision_config=vision, vision_feature_select_strategy="default", **places)
    return saved("llava", LlavaForConditionalGeneration(config), processor)


@functools.cache
def idefics3():
    """SmolVLM's family: an image becomes rows of tiles, each with marks around it, by its size."""
    rows = [f"<row_{i + 1}_col_{j + 1}>" for i in range(6) for j in range(6)]
    words = tokenizer("<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>", *rows)
    image = Idefics3ImageProcessorPil(size={"longest_edge": 32}, max_image_size={"longest_edge": 16})
    processor = Idefics3Processor(image, words, image_seq_len=4, chat_template=UTTERANCES)
    vision = {"image_size": 16, "patch_size": 4, **WIDTH}
    text = LlamaConfig(vocab_size=len(words), max_position_embeddings=512, pad_token_id=0, **WIDTH).to_dict()
    config = Idefics3Config(
        vision_config=vision, text_config=text, image_token_id=words.convert_tokens_to_ids("<image>"), scale_factor=2
    )
    return saved("idefics3", Idefics3ForConditionalGeneration(config), processor)


@functools.cache
def qwen2_vl():
    """An image becomes more tokens the larger it is; no beginning of text."""
    named = {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"}
    marks = ["<|vision_start|>", "<|vision_end|>", *named.values()]
    words = tokenizer("<|im_start|>", "<|im_end|>", *marks, bos=None, extra_special_tokens=named)
    image = Qwen2VLImageProcessorPil(min_pixels=28 * 28, max_pixels=84 * 84)
    template = CHATML.replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>")
    pytest.importorskip("torchvision")
    from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor

    processor = Qwen2VLProcessor(image, words, Qwen2VLVideoProcessor(), chat_template=template)
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}
    text = {"vocab_size": len(words), "num_key_value_heads": 2, "max_position_embeddings": 512, **WIDTH}
    text |= {"bos_token_id": None, "eos_token_id": words.eos_token_id}
    vision = {"depth": 1, "embed_dim": 16, "hidden_size": 16, "num_heads": 2, "mlp_ratio": 2}
    names = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")
    places = dict(zip(names, words.convert_tokens_to_ids(marks), strict=True))
    config = Qwen2VLConfig(text_config={**text, "rope_parameters": rope}, vision_config=vision, **places)
    return saved("qwen2-vl", Qwen2VLForConditionalGeneration(config), processor)


@functools.cache
def paligemma():
    """No chat template: a prefix that attends to all of itself, and a suffix."""
    words = tokenizer("<image>")
    image = SiglipImageProcessorPil(size={"height": 16, "width": 16})
    image.image_seq_length = 4
    processor = PaliGemmaProcessor(image, words)
    vision = {"model_type": "siglip_vision_model", "image_size": 16, "patch_size": 8, "vision_use_head": False}
    text = {"model_type": "gemma", "vocab_size": len(words), "num_key_value_heads": 1, "head_dim": 8}
    config = PaliGemmaConfig(
        vision_config={**vision, **WIDTH},
        text_config={**text, "max_position_embeddings": 512, **WIDTH},
        image_token_index=words.convert_tokens_to_ids("<image>"),
        projection_dim=16,
    )
    return saved("paligemma", PaliGemmaForConditionalGeneration(config), processor)


@functools.cache
def blip2():
    """No chat template, and the processor itself puts the image before the text."""
    words = tokenizer("<image>")
    image = BlipImageProcessorPil(size={"height": 16, "width": 16})
    processor = Blip2Processor(image, words, num_query_tokens=3)
    former = {**WIDTH, "encoder_hidden_size": 16, "vocab_size": 8}
    text = {"model_type": "opt", "vocab_size": len(words), "ffn_dim": 32, "word_embed_proj_dim": 16, **WIDTH}
    config = Blip2Config(
        vision_config={"image_size": 16, "patch_size": 8, **WIDTH},
        qformer_config=former,
        text_config={**text, "max_position_embeddings": 512, "pad_token_id": 0},
        num_query_tokens=3,
        image_token_index=words.convert_tokens_to_ids("<image>"),
    )
    return saved("blip2", Blip2ForConditionalGeneration(config), processor)


@functools.cache
def llama():
    """A language model with a chat template."""
    words = tokenizer("<|im_start|>", "<|im_end|>", bos=None)
    words.chat_template = CHATML
    config = LlamaConfig(vocab_size=len(words), max_position_embeddings=512, **WIDTH)
    return saved("llama", LlamaForCausalLM(config), words)


VISION = ("llava", "idefics3", "qwen2_vl", "paligemma", "blip2")
"""The models that read images."""
WITH_TEMPLATE = ("llava", "idefics3", "qwen2_vl")


def picture(number: int) -> Picture.Image:
    """An image of noise, of one of several sizes."""
    rng = np.random.default_rng(number)
    height, width = [(28, 84), (56, 56), (84, 28), (40, 30)][number % 4]
    return Picture.fromarray(rng.integers(0, 255, (height, width, 3), dtype=np.uint8))


def stored(image):
    """An image as `datasets` keeps it."""
    file = io.BytesIO()
    image.save(file, "png")
    return {"bytes": file.getvalue(), "path": None}


def dialogues():
    """Eight rows of one image each, five of them different."""
    turn = {"role": Value("string"), "content": Value("string")}
    texts = ["A red ball.", "Two dogs.", "It runs in the park."]
    rows = {
        "messages": [
            [{"role": "user", "content": "What?"}, {"role": "assistant", "content": texts[row % 3]}]
            for row in range(8)
        ],
        "images": [[stored(picture(row % 5))] for row in range(8)],
    }
    return Dataset.from_dict(rows, features=Features(messages=List(turn), images=List(Image())))


@functools.cache
def processor_of(name):
    """The processor of a model that reads images by Pillow; of `llama` the tokenizer."""
    folder = globals()[name]()
    if name == "llama":
        return AutoTokenizer.from_pretrained(folder)
    processor = AutoProcessor.from_pretrained(folder)
    processor.image_processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    return processor


def encoded_by_hand(name, messages, images, scored):
    """A row's inputs by the processor, and which tokens respond, bool (tokens,): what the response adds to the prompt.

    The messages hold lists of parts, each image where the processor wants it; `scored` numbers those that respond.
    """
    processor = processor_of(name)
    if name == "paligemma":
        question, answer = (message["content"][-1]["text"] for message in messages)
        inputs = processor(
            text="<image>" * len(images) + question, images=[images], suffix=answer, return_tensors="pt"
        )
        return inputs, inputs["labels"][0] != -100

    def read(shown, prompt=False):
        seen = [part for message in shown for part in message["content"] if part["type"] == "image"]
        if name == "blip2":
            texts = [message["content"][-1]["text"] for message in shown]
            return processor(images=[images], text=[" ".join(texts)], return_tensors="pt")
        if name == "llama":
            shown = [{**message, "content": message["content"][-1]["text"]} for message in shown]
        text = processor.apply_chat_template(shown, tokenize=False, add_generation_prompt=prompt)
        if name == "llama":
            return processor(text, add_special_tokens=False, return_tensors="pt")
        options = {"add_special_tokens": name == "llava"}  # Idefics3's template begins with one
        return processor(text=[text], images=[images[: len(seen)]] if seen else None, return_tensors="pt", **options)

    inputs = read(messages)
    responds = torch.zeros(inputs["input_ids"].shape[1], dtype=torch.bool)
    for number in scored:
        before, after = read(messages[:number], True)["input_ids"][0], read(messages[: number + 1])["input_ids"][0]
        assert after[: len(before)].tolist() == before.tolist()
        assert inputs["input_ids"][0][: len(after)].tolist() == after.tolist()
        responds[len(before) : len(after)] = True
    return inputs, responds


def token_losses(logits, ids, responds):
    """−log p of the tokens that respond, one position at a time; the first of a text has none."""
    return [-logits[at - 1].log_softmax(-1)[ids[at]].item() for at in range(1, len(ids)) if responds[at]]


@functools.cache
def loaded(name):
    """The model in evaluation mode."""
    kind = AutoModelForCausalLM if name == "llama" else AutoModelForImageTextToText
    return kind.from_pretrained(globals()[name]()).eval()


def losses_by_hand(name, messages, images, scored):
    """Losses of the tokens of a row's responses, given all before them."""
    inputs, responds = encoded_by_hand(name, messages, images, scored)
    with torch.no_grad():
        logits = loaded(name)(**inputs).logits[0]
    return token_losses(logits, inputs["input_ids"][0], responds)


def losses_alone_by_hand(name, messages, images, scored):
    """Losses of the tokens of each response after the beginning of text alone."""
    found, model = [], loaded(name)
    for number in scored:
        inputs, responds = encoded_by_hand(name, messages, images, [number])
        processor = processor_of(name)
        first = getattr(processor, "tokenizer", processor).bos_token_id
        ids = torch.cat([torch.tensor([] if first is None else [first]).long(), inputs["input_ids"][0][responds]])
        options = {}
        if name == "paligemma":
            types = torch.ones_like(ids)
            types[0] = 0
            options = {"token_type_ids": types[None], "labels": ids[None]}
        with torch.no_grad():
            reader = model.language_model if name == "blip2" else model
            logits = reader(input_ids=ids[None], **options).logits[0]
        found += token_losses(logits, ids, torch.arange(len(ids)) >= (first is not None))
    return found
