"""Prompts from templates, tables and language models, and which of several an image gets."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import torch
from datasets import ClassLabel, Dataset

from hf_curriculum.config import digest
from hf_curriculum.data.tokenizer import train_word_tokenizer
from hf_curriculum.tasks.long_tail import load_prompts, write_prompts
from hf_curriculum.tasks.long_tail.generation import prompts
from hf_curriculum.tasks.long_tail.generation.prompts import choose_prompt, prompt_choices


@pytest.fixture
def data():
    made = Dataset.from_dict({"label": [1, 0], "place": ["in snow", "at night"], "count": [2, 3], "none": ["x", None]})
    return made.cast_column("label", ClassLabel(names=["owl", "fox"]))


def test_templates_are_filled_with_the_class_and_any_column(data):
    assert prompt_choices(data, "{count} {label} {place}, {{8k}}") == [
        ("2 fox in snow, {8k}",),
        ("3 owl at night, {8k}",),
    ]
    assert prompt_choices(data.remove_columns("label"), "{place}") == [("in snow",), ("at night",)]
    assert prompt_choices(Dataset.from_dict({"label": ["owl"]}), "a {label}") == [("a owl",)]


def test_tables_and_their_files(data, tmp_path):
    table = {"owl": "an owl", "fox": ["a fox", "a {label} {place}"]}
    wanted = [("a fox", "a fox in snow"), ("an owl",)]
    (tmp_path / "table.json").write_text(json.dumps(table))
    (tmp_path / "table.csv").write_text("class,prompt\nowl,an owl\nfox,a fox\nfox,a {label} {place}\n")
    for given in (table, tmp_path / "table.json", str(tmp_path / "table.csv")):
        assert prompt_choices(data, given) == wanted
    assert load_prompts(tmp_path / "table.json", "a 8k real photo: {prompt}")["owl"] == ["a 8k real photo: an owl"]


def test_the_choice_is_keyed_by_image_and_seed_and_spreads_evenly():
    choices = tuple(f"prompt {number}" for number in range(5))
    drawn = [choose_prompt(choices, f"image {image}", seed) for image in range(100) for seed in range(10)]
    assert drawn == [choose_prompt(choices, f"image {image}", seed) for image in range(100) for seed in range(10)]
    counts = Counter(drawn)
    assert set(counts) == set(choices)
    assert all(150 < count < 250 for count in counts.values())
    assert [drawn[0], drawn[11], drawn[999]] == ["prompt 0", "prompt 4", "prompt 2"]  # now and in every later version
    assert {choose_prompt(("a", "b"), f"image {image}", 0) for image in range(9)} == {"a", "b"}
    tries = {choose_prompt(choices, "image 1", 0, attempt) for attempt in range(20)}
    assert len(tries) > 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"owl": "an owl"}, "1 classes have no prompt, the first of them 'fox'"),
        ({"owl": "an owl", "fox": []}, "1 classes have no prompt, the first of them 'fox'"),
        ("a {colour} fox", r"\{colour\}, which is no column of texts"),
        ("a {label.names}", "which is no plain name"),
        ("a {label!r}", "which is no plain name"),
        ("a {label", "has an odd brace"),
        ("  ", "of row 0 is empty"),
        ("a {none}", "of row 1 is empty: it has no none"),
        ({"owl": 3}, "does not map classes to prompts"),
        ({}, "does not map classes to prompts"),
    ],
)
def test_prompts_that_cannot_be(data, given, message):
    with pytest.raises(ValueError, match=message):
        prompt_choices(data, given)


def test_data_that_prompts_cannot_name(data, tmp_path):
    with pytest.raises(ValueError, match="no column `label` of classes"):
        prompt_choices(data.remove_columns("label"), {"owl": "an owl"})
    with pytest.raises(ValueError, match="numbers without names"):
        prompt_choices(Dataset.from_dict({"label": [0]}), "{label}")
    numbered = Dataset.from_dict({"label": [1, 0], "place": ["in snow"] * 2}).cast_column("label", ClassLabel(2))
    with pytest.raises(ValueError, match=r"numbers for names \('0', '1' …\), .* 'a photo of 0'.*`--classes FILE`"):
        prompt_choices(numbered, "a photo of {label}")
    synsets = numbered.cast_column("label", ClassLabel(names=["n01440764", "n01443537"]))
    with pytest.raises(ValueError, match=r"numbers for names .* would ask for 'a photo of n01440764'"):
        prompt_choices(synsets, "a photo of {label}")
    assert prompt_choices(numbered, "{place}") == [("in snow",)] * 2
    table = {"0": "the digit 0", "1": "the digit {label}"}
    assert prompt_choices(numbered, table) == [("the digit 1",), ("the digit 0",)]
    with pytest.raises(ValueError, match=r"1 rows have no class \(row 1\)"):
        prompt_choices(Dataset.from_dict({"label": ["owl", None]}), "{label}")
    with pytest.raises(ValueError, match=r"2 rows have no class \(row 0\)"):
        prompt_choices(Dataset.from_dict({"label": [-1, -1]}).cast_column("label", data.features["label"]), "{label}")
    with pytest.raises(FileNotFoundError, match=r"There is no file .*nowhere\.csv of prompts"):
        prompt_choices(data, "nowhere.csv")
    (tmp_path / "wrong.csv").write_text("label,text\nowl,an owl\n")
    with pytest.raises(ValueError, match=r"has the columns .*'label', 'text'"):
        load_prompts(tmp_path / "wrong.csv")
    (tmp_path / "empty.csv").write_text("class,prompt\n")
    with pytest.raises(ValueError, match=r"has the columns \['class', 'prompt'\] and 0 rows"):
        load_prompts(tmp_path / "empty.csv")
    (tmp_path / "latin.csv").write_bytes(b"class,prompt\nowl,a caf\xe9\n")
    with pytest.raises(ValueError, match=r"latin\.csv is not UTF-8: line 2 .* Convert the"):
        load_prompts(tmp_path / "latin.csv")
    (tmp_path / "wrong.json").write_text("owl: an owl")
    with pytest.raises(ValueError, match=r"wrong\.json is not JSON"):
        load_prompts(tmp_path / "wrong.json")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("open.csv", 'class,prompt\ncat,"a cat\ndog,a dog\nowl,an owl\n', "In line 2 a quotation mark opens a cell"),
        ("inside.csv", 'class,prompt\ncat,"nice" cat\ndog,a dog\n', "In line 2 a quotation mark opens a cell"),
        ("comma.csv", "class,prompt\ncat,a cat, on a mat\n", "Line 2 has more cells than the header"),
        ("short.csv", "class,prompt\ncat\n", "Line 2 has fewer cells than the header"),
        ("twice.csv", "class,prompt,prompt\ncat,a cat,b\n", r"The header has \['prompt'\] twice"),
        ("twice.json", '{"cat": "a cat", "cat": "b"}', "The key 'cat' stands twice"),
        ("half.json", '{"cat": "a cat \\ud83d"}', "half a character"),
    ],
)
def test_tables_of_prompts_are_read_strictly(name, text, message, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        load_prompts(tmp_path / name)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
@pytest.mark.parametrize(
    ("name", "text"),
    [("a.csv", 'class;prompt\ncat;"a ""big"" cat"\n'), ("a.json", '{"cat": ["a \\"big\\" cat"]}')],
)
def test_tables_of_prompts_that_other_programs_save(name, text, encoding, tmp_path):
    (tmp_path / name).write_text(text, encoding=encoding)
    assert load_prompts(tmp_path / name) == {"cat": ['a "big" cat']}


def test_columns_that_no_prompt_reads_are_named(tmp_path, caplog):
    (tmp_path / "a.csv").write_text("class,prompt,weight\ncat,a cat,2\n")
    assert load_prompts(tmp_path / "a.csv") == {"cat": ["a cat"]}
    assert "columns other than `class` and `prompt`: 1" in caplog.text


def test_a_language_model_writes_prompts(tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel, set_seed

    words = Dataset.from_dict({"caption": ["a photo of a small red fox in the deep snow by night"]})
    tokenizer = train_word_tokenizer(words, min_count=1)
    set_seed(0)
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 1, "n_positions": 64}
    GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **sizes, **ids)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    options = {"per_class": 2, "instruction": "a photo of a {label}", "template": "8k: {prompt}", "max_new_tokens": 8}
    made = write_prompts(["fox", "snow"], str(tmp_path), **options)
    assert made == write_prompts(["fox", "snow"], str(tmp_path), **options)
    assert [len(texts) for texts in made.values()] == [2, 2]
    assert all(text.startswith("8k: ") and len(text) > 4 for texts in made.values() for text in texts)
    assert made != write_prompts(["fox", "snow"], str(tmp_path), **options, seed=1)
    with pytest.raises(ValueError, match="`per_class=0`"):
        write_prompts(["fox"], str(tmp_path), per_class=0)
    with pytest.raises(FileNotFoundError, match="no '/nowhere'"):
        write_prompts(["fox"], "/nowhere")


def test_a_language_model_that_writes_nothing(tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel

    tokenizer = train_word_tokenizer(Dataset.from_dict({"caption": ["a photo of a fox"]}), min_count=1)
    config = GPT2Config(vocab_size=len(tokenizer), n_embd=8, n_layer=1, n_head=1, eos_token_id=tokenizer.eos_token_id)
    model = GPT2LMHeadModel(config)
    with torch.no_grad():  # whatever it reads, it ends
        model.transformer.ln_f.weight.zero_()
        model.transformer.ln_f.bias.fill_(1)
        model.lm_head.weight.fill_(-50)
        model.lm_head.weight[tokenizer.eos_token_id] = 50
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="wrote nothing about 'fox' in 5 tries"):
        write_prompts(["fox"], str(tmp_path), instruction="a photo of a {label}", max_new_tokens=2)


class Writer:
    """In place of a language model and its tokenizer: what it was asked, and texts to write one after the other."""

    def __init__(self, texts, chat_template=None):
        self.texts, self.chat_template, self.asked, self.drawn = iter(texts), chat_template, [], []

    def eval(self):
        return self

    def apply_chat_template(self, messages, **options):
        return repr((messages, options))

    def __call__(self, text, **options):
        self.asked.append((text, options))
        return {"input_ids": torch.tensor([[5, 6]])}

    def generate(self, **options):
        self.drawn.append((torch.initial_seed(), torch.is_inference_mode_enabled(), options))
        return torch.tensor([[5, 6, 7]])

    def decode(self, ids, **options):
        assert (ids.tolist(), options) == ([7], {"skip_special_tokens": True})
        return next(self.texts)


def test_what_a_language_model_is_asked(monkeypatch):
    loaded = []
    writer = Writer(["", " \n'", "\n ' a {red} fox\" \na second", "two", "three", "four"], "template")

    def load(kind, *given):
        loaded.append((kind.__name__, *given))
        return writer

    monkeypatch.setattr(prompts, "load_pretrained", load)
    state = torch.get_rng_state()
    made = write_prompts(
        ["fox", "owl"], "m", per_class=2, instruction="a {label}", max_new_tokens=1, revision="r", seed=3
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert made == {"fox": ["a {{red}} fox", "two"], "owl": ["three", "four"]}
    assert loaded == [("AutoTokenizer", "m", "r"), ("AutoModelForCausalLM", "m", "r")]
    chat = {"tokenize": False, "add_generation_prompt": True}
    assert writer.asked == [
        (repr(([{"role": "user", "content": f"a {name}"}], chat)), {"return_tensors": "pt"}) for name in ("fox", "owl")
    ]
    keys = [["fox", 0, 0, 3], ["fox", 0, 1, 3], ["fox", 0, 2, 3], ["fox", 1, 0, 3], ["owl", 0, 0, 3], ["owl", 1, 0, 3]]
    options = {"do_sample": True, "max_new_tokens": 1}
    for key, (seed, no_gradients, given) in zip(keys, writer.drawn, strict=True):
        assert (seed, no_gradients) == (int(digest(json.dumps(key)), 16) >> 1, True)
        assert given.pop("input_ids").tolist() == [[5, 6]]
        assert given == options
    writer.texts, writer.chat_template = iter(["plain"]), None
    assert write_prompts(["fox"], "m", per_class=1, instruction="a {label}") == {"fox": ["plain"]}
    assert (writer.asked[-1][0], writer.drawn[-1][2]["max_new_tokens"]) == ("a fox", 60)
    with pytest.raises(ValueError, match="`max_new_tokens=0` are at least 1"):
        write_prompts(["fox"], "m", max_new_tokens=0)
