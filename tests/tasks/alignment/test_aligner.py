"""The aligner beside a naive one, its sizes, its parts, and what it refuses."""

from __future__ import annotations

import math

import pytest
import torch
from contrastive_task import DIMS, WIDTH, make_aligner, make_clip, make_siglip, tokenizer
from torch.nn import functional
from transformers import (
    AutoConfig,
    AutoModel,
    BartConfig,
    BertConfig,
    BertModel,
    CLIPTextConfig,
    GPT2Config,
    RobertaConfig,
    T5Config,
    ViTConfig,
)

from hf_curriculum.names import MODELS
from hf_curriculum.tasks.alignment import AlignerConfig, AlignerModel
from hf_curriculum.tasks.alignment import model as module
from hf_curriculum.tasks.alignment.encoders import encoders_of

TEXTS, IMAGES, REGIONS, TOKENS = 5, 4, 6, 7


def make_inputs() -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    noun = torch.zeros(TEXTS, TOKENS, dtype=torch.int64)
    for row, (start, end) in enumerate([(1, 2), (2, 4), (1, 4), (4, 5), (5, 6)]):
        noun[row, start:end] = 1
    tokens = torch.ones(TEXTS, TOKENS, dtype=torch.int64)
    tokens[0, 4:] = 0
    regions = torch.ones(IMAGES, REGIONS, dtype=torch.int64)
    regions[1, 2:] = 0
    return {
        "input_ids": torch.randint(5, len(tokenizer()), (TEXTS, TOKENS)),
        "attention_mask": tokens,
        "noun_mask": noun,
        "region_features": torch.randn(IMAGES, REGIONS, DIMS),
        "region_mask": regions,
    }


def naive_scores(model: AlignerModel, inputs: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores and attention, pair by pair, head by head, in words of matrices alone."""
    config, layer = model.config, model.layer
    heads, width = config.num_attention_heads, config.hidden_size
    size = width // heads
    scores = torch.zeros(TEXTS, IMAGES)
    weights = torch.zeros(TEXTS, IMAGES, heads, REGIONS)

    def norm(values, part):
        return functional.layer_norm(values, (width,), part.weight, part.bias, config.layer_norm_eps)

    def linear(values, part):
        return part.weight @ values + part.bias

    for i in range(TEXTS):
        count = int(inputs["attention_mask"][i].sum())
        states = model.text_model(inputs["input_ids"][i : i + 1, :count]).last_hidden_state[0]
        places = inputs["noun_mask"][i].nonzero()[:, 0].tolist()
        places = places[:1] if config.noun_pooling == "first" else places
        noun = sum(states[place] for place in places) / len(places)
        query = linear(norm(noun, layer.attention_norm) if config.norm == "before" else noun, layer.query)
        for j in range(IMAGES):
            regions = inputs["region_features"][j][inputs["region_mask"][j] == 1]
            regions = [linear(region, model.region_projection) for region in regions]
            keys = [linear(region, layer.key) for region in regions]
            values = [linear(region, layer.value) for region in regions]
            parts = []
            for head in range(heads):
                own = slice(head * size, (head + 1) * size)
                logits = torch.stack([query[own] @ key[own] for key in keys]) / math.sqrt(size)
                share = logits.exp() / logits.exp().sum()
                weights[i, j, head, : len(regions)] = share
                parts.append(sum(one * value[own] for one, value in zip(share, values, strict=True)))
            seen = linear(torch.cat(parts), layer.output) + (noun if config.query_residual else 0)
            if config.norm == "after":
                seen = norm(seen, layer.attention_norm)
                hidden = linear(linear(seen, layer.up).relu(), layer.down)
                seen = norm(seen + hidden, layer.output_norm)
            else:
                seen = seen + linear(linear(norm(seen, layer.output_norm), layer.up).relu(), layer.down)
            scores[i, j] = noun @ seen * math.exp(config.logit_scale_init_value)
    return scores, weights


@pytest.mark.parametrize(("size", "parameters"), [(2048, 115_979_264), (2054, 115_983_872)])
def test_the_papers_size(size, parameters):
    with torch.device("meta"):
        model = AlignerModel(AlignerConfig(BertConfig(), region_feature_size=size))
    assert sum(weight.numel() for weight in model.parameters() if weight.requires_grad) == parameters
    encoder = sum(weight.numel() for weight in model.text_model.parameters())
    assert encoder == 108_891_648


@pytest.mark.parametrize("pooling", ["first", "mean"])
@pytest.mark.parametrize("norm", ["after", "before"])
@pytest.mark.parametrize("residual", [True, False])
def test_scores_are_those_of_a_naive_aligner(pooling, norm, residual):
    fields = {"noun_pooling": pooling, "norm": norm, "query_residual": residual, "logit_scale_init_value": 0.5}
    model, inputs = make_aligner(**fields).eval(), make_inputs()
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.1 * torch.randn_like(weight)
        scores, weights = naive_scores(model, inputs)
        outputs = model(**inputs, output_attentions=True)
    assert torch.allclose(outputs.logits_per_text, scores, rtol=1e-5, atol=1e-4)
    assert torch.equal(outputs.logits_per_image, outputs.logits_per_text.T)
    assert torch.allclose(outputs.attentions, weights, atol=1e-6)
    assert outputs.text_embeds.shape == (TEXTS, 16)
    assert scores.std() > 0.01


@pytest.mark.parametrize("chunk_size", [1, 2, TEXTS, 100])
def test_chunks_give_the_same_scores_and_gradients(chunk_size):
    model, inputs = make_aligner(train_logit_scale=True, logit_scale_init_value=1.0), make_inputs()

    def scored(size):
        model.zero_grad()
        texts = model.encode_text(inputs["input_ids"], inputs["attention_mask"], inputs["noun_mask"])
        images = model.encode_regions(inputs["region_features"], inputs["region_mask"])
        scores = model.score(texts, images, size)
        scores.log_softmax(1)[:, 0].sum().backward()
        return scores.detach(), {name: weight.grad.clone() for name, weight in model.named_parameters()}

    (scores, gradients), (whole, own) = scored(chunk_size), scored(None)
    assert torch.allclose(scores, whole, atol=1e-5)
    largest = max(gradient.abs().max() for gradient in own.values())
    assert all((gradients[name] - own[name]).abs().max() < 1e-5 * largest for name in own)
    assert own["logit_scale"].abs() > 0
    with torch.no_grad():
        texts = model.encode_text(inputs["input_ids"], inputs["attention_mask"], inputs["noun_mask"])
        images = model.encode_regions(inputs["region_features"], inputs["region_mask"])
        assert torch.allclose(model.score(texts, images, chunk_size), whole, atol=1e-5)


def test_a_learnt_temperature_is_a_parameter_and_a_fixed_one_is_none():
    assert "logit_scale" not in dict(make_aligner().named_parameters())
    model = make_aligner(train_logit_scale=True, logit_scale_init_value=2.0)
    assert model.logit_scale.item() == 2.0
    assert model.logit_scale.requires_grad
    fixed, inputs = make_aligner(logit_scale_init_value=2.0), make_inputs()
    fixed.load_state_dict(model.state_dict(), strict=False)
    torch.testing.assert_close(model(**inputs).logits_per_text, fixed(**inputs).logits_per_text)


def test_more_images_than_are_scored_at_once(monkeypatch):
    model, inputs = make_aligner(), make_inputs()
    texts = model.encode_text(inputs["input_ids"], inputs["attention_mask"], inputs["noun_mask"])
    images = model.encode_regions(inputs["region_features"].repeat(2, 1, 1), inputs["region_mask"].repeat(2, 1))
    whole = model.score(texts, images)
    monkeypatch.setitem(module._BLOCK, "cpu", (1, 1))
    torch.testing.assert_close(model.score(texts, images), whole)


def test_one_folder_holds_it_all(tmp_path):
    model, inputs = make_aligner(train_logit_scale=True, norm="before").eval(), make_inputs()
    model.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path).eval()
    assert type(loaded) is MODELS["aligner"] is AlignerModel
    assert AutoConfig.from_pretrained(tmp_path).text_config.hidden_size == 16
    assert torch.equal(loaded(**inputs).logits_per_text, model(**inputs).logits_per_text)


def test_text_encoders_of_all_kinds(tmp_path):
    inputs = make_inputs()
    clip = CLIPTextConfig(vocab_size=200, max_position_embeddings=32, **WIDTH)
    t5 = T5Config(vocab_size=200, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    for text in (clip, t5, t5.to_dict()):
        model = AlignerModel(AlignerConfig(text, region_feature_size=DIMS))
        model(**inputs).logits_per_text.sum().backward()
        unused = [name for name, weight in model.named_parameters() if weight.grad is None]
        assert unused == []
        model.save_pretrained(tmp_path / type(model.text_model).__name__)
        AutoModel.from_pretrained(tmp_path / type(model.text_model).__name__)
    assert model.config.num_attention_heads == 2


SMALL = {"vocab_size": 200, "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 16}
POSITIONS = {
    "bert": BertConfig(**SMALL, max_position_embeddings=12),
    "roberta": RobertaConfig(**SMALL, max_position_embeddings=14),  # two for padding and what comes before it
    "clip": CLIPTextConfig(**SMALL, intermediate_size=16, max_position_embeddings=12),
    "bart": BartConfig(vocab_size=200, d_model=16, encoder_layers=1, decoder_layers=1, max_position_embeddings=12),
    "gpt2": GPT2Config(vocab_size=200, n_embd=16, n_layer=1, n_head=2, n_positions=12),
}


@pytest.mark.parametrize("name", POSITIONS)
def test_captions_beyond_the_positions(name):
    model = AlignerModel(AlignerConfig(POSITIONS[name], region_feature_size=DIMS, num_attention_heads=2)).eval()
    ids = torch.randint(5, 200, (2, 13))
    noun = torch.ones_like(ids)
    assert model.encode_text(ids[:, :12], noun_mask=noun[:, :12]).isfinite().all()
    with pytest.raises(ValueError, match=r"Captions of 13 tokens were given .* has positions for 12: it cannot read"):
        model.encode_text(ids, noun_mask=noun)


def test_a_text_encoder_without_an_end():
    t5 = T5Config(vocab_size=200, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    model = AlignerModel(AlignerConfig(t5, region_feature_size=DIMS)).eval()
    ids = torch.randint(5, 200, (1, 600))
    assert model.encode_text(ids, noun_mask=torch.ones_like(ids)).isfinite().all()


def test_a_trained_text_encoder_is_taken_over(tmp_path):
    torch.manual_seed(3)
    encoder = BertModel(BertConfig(vocab_size=30, **WIDTH)).eval()
    encoder.save_pretrained(tmp_path)
    model = AlignerModel.from_text_pretrained(str(tmp_path), region_feature_size=5, noun_pooling="mean").eval()
    assert model.config.noun_pooling == "mean"
    assert model.text_model.pooler is None
    ids = torch.tensor([[2, 9, 11, 3]])
    states = encoder(ids).last_hidden_state[0]
    noun = model.encode_text(ids, noun_mask=torch.tensor([[0, 1, 1, 0]]))[0]
    assert torch.allclose(noun, (states[1] + states[2]) / 2, atol=1e-6)
    model.save_pretrained(tmp_path / "aligner")
    again = AlignerModel.from_pretrained(tmp_path / "aligner")
    assert torch.equal(again.text_model.embeddings.word_embeddings.weight, encoder.embeddings.word_embeddings.weight)


def test_what_is_asked_of_the_hub(monkeypatch):
    asked, text = [], BertConfig(vocab_size=30, **WIDTH)

    def answers(result):
        def answer(*given, **options):
            asked.append((*given, options))
            return result

        return answer

    encoder = BertModel(text)
    monkeypatch.setattr(module.AutoConfig, "from_pretrained", answers(text))
    monkeypatch.setattr(module.AutoModel, "from_pretrained", answers(encoder))
    model = AlignerModel.from_text_pretrained("me/bert", revision="v2", region_feature_size=5)
    assert asked == [
        ("me/bert", {"revision": "v2"}),
        ("me/bert", {"revision": "v2", "config": text, "dtype": torch.float32}),
    ]
    assert model.text_model is encoder
    table = torch.nn.Embedding(9, 16)
    model.set_input_embeddings(table)
    assert model.get_input_embeddings() is encoder.embeddings.word_embeddings is table


def test_weights_that_a_folder_lacks_are_as_new(tmp_path):
    plain = make_aligner()
    plain.save_pretrained(tmp_path)
    options = {"train_logit_scale": True, "logit_scale_init_value": 1.5, "region_feature_size": 5}
    model = AlignerModel.from_pretrained(tmp_path, **options, ignore_mismatched_sizes=True)
    assert model.logit_scale.item() == 1.5
    new = model.region_projection.weight
    assert 0.5 * 5**-0.5 < new.abs().max().item() <= 5**-0.5
    assert torch.equal(model.layer.query.weight, plain.layer.query.weight)
    model.logit_scale.data.fill_(3)
    for other in (model.layer.dropout, model.layer.query):
        model._init_weights(other)
    assert model.logit_scale.item() == 3
    plain._init_weights(plain)  # it has no scale to begin


def test_only_chunks_are_computed_twice(monkeypatch):
    model, inputs, run = make_aligner(), make_inputs(), []

    def watched(function, part, *rest, **options):
        run.append((len(part), options))
        return function(part, *rest)

    monkeypatch.setattr(module, "checkpoint", watched)
    texts = model.encode_text(inputs["input_ids"], inputs["attention_mask"], inputs["noun_mask"])
    images = model.encode_regions(inputs["region_features"], inputs["region_mask"])
    for size in (None, TEXTS, TEXTS + 1):
        model.score(texts, images, size)
    assert run == []
    model.score(texts, images, TEXTS - 1)
    assert run == [(4, {"use_reentrant": False}), (1, {"use_reentrant": False})]
    sizes = []
    monkeypatch.setitem(module._BLOCK, "cpu", (2, 3))
    score = model._score
    monkeypatch.setattr(model, "_score", lambda part, of: sizes.append((len(part), len(of.keys))) or score(part, of))
    model.score(texts, images)  # with gradients all images, and 4 · 2 · 3 pairs at once
    with torch.no_grad():
        model.score(texts, images)
    assert sizes == [(5, 4), (2, 3), (2, 3), (1, 3), (2, 1), (2, 1), (1, 1)]


def test_a_step_that_is_compiled_looks_at_no_values(monkeypatch):
    model, inputs = make_aligner(), make_inputs()
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    states = model.encode_text(inputs["input_ids"].repeat(1, 4), noun_mask=torch.zeros(TEXTS, 4 * TOKENS).long())
    assert states.shape == (TEXTS, 16)
    module._validate_length(1000, model.text_model)


@pytest.mark.parametrize("make", [make_aligner, make_clip, make_siglip])
def test_scores_stay_exact_under_autocast(make, monkeypatch):
    torch.manual_seed(2)
    encoders, texts = encoders_of(make().eval()), 9 * torch.randn(3, 16)
    images = torch.randn(4, 16)
    if make is make_aligner:
        images = encoders.encode_images(make_inputs())
        monkeypatch.setattr(module.CrossModalLayer, "forward", lambda self, texts, images: texts.expand(4, -1, -1))
    else:
        encoders.model.logit_scale.data.fill_(1.25)
    wanted = encoders.score(texts, images)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(encoders.score(texts, images), wanted)
    if make is make_aligner:
        torch.testing.assert_close(wanted, texts.square().sum(1, keepdim=True).expand(3, 4))
    else:
        bias = getattr(encoders.model, "logit_bias", torch.zeros(1))
        torch.testing.assert_close(wanted, texts @ images.T * math.exp(1.25) + bias)


def test_configurations_that_cannot_be():
    with pytest.raises(ValueError, match=r"noun_pooling='last' is not known"):
        AlignerConfig(noun_pooling="last")
    with pytest.raises(ValueError, match=r"norm='none' is not known"):
        AlignerConfig(norm="none")
    with pytest.raises(ValueError, match=r"hidden_act='sine' is not known"):
        AlignerConfig(hidden_act="sine")
    with pytest.raises(ValueError, match=r"768, is not a multiple of num_attention_heads=5"):
        AlignerConfig(num_attention_heads=5)
    with pytest.raises(ValueError, match=r"region_feature_size=0 and intermediate_size=2048"):
        AlignerConfig(region_feature_size=0)
    with pytest.raises(ValueError, match=r"dropout=1.0 is no share"):
        AlignerConfig(dropout=1.0)
    with pytest.raises(ValueError, match=r"has the fields \['hidden_size'\] and no `model_type`"):
        AlignerConfig({"hidden_size": 4})
    with pytest.raises(ValueError, match=r"a ResNetConfig, which has no `hidden_size`"):
        AlignerConfig({"model_type": "resnet"})
    with pytest.raises(ValueError, match="has no field query_residul, which would count for nothing"):
        AlignerModel.from_text_pretrained("bert", query_residul=False)
    assert AlignerConfig(ViTConfig(hidden_size=24, num_attention_heads=3)).num_attention_heads == 3


def test_inputs_that_cannot_be():
    model, inputs = make_aligner(), make_inputs()
    with pytest.raises(ValueError, match=r"pass `input_ids` with `noun_mask`, and `region_features`"):
        model(input_ids=inputs["input_ids"])
    with pytest.raises(ValueError, match=r"`noun_mask`, 1 on its sub-words.*it was given none"):
        model.encode_text(inputs["input_ids"])
    with pytest.raises(ValueError, match=r"given of the shape \(4, 7\)"):
        model.encode_text(inputs["input_ids"], noun_mask=inputs["noun_mask"][:4])
    bare = inputs["noun_mask"].clone()
    bare[[1, 3]] = 0
    with pytest.raises(ValueError, match=r"2 of 5 texts have no noun \(rows \[1, 3\]"):
        model.encode_text(inputs["input_ids"], noun_mask=bare)
    with pytest.raises(ValueError, match=r"model reads features of width 14"):
        model.encode_regions(torch.ones(2, 3, 9))
    with pytest.raises(ValueError, match=r"region_mask has the shape \(4, 3\)"):
        model.encode_regions(inputs["region_features"], inputs["region_mask"][:, :3])
    with pytest.raises(ValueError, match=r"1 of 4 images have no region \(rows \[1\]"):
        model.encode_regions(inputs["region_features"], inputs["region_mask"] * torch.tensor([1, 0, 1, 1])[:, None])
    texts = model.encode_text(inputs["input_ids"], noun_mask=inputs["noun_mask"])
    with pytest.raises(ValueError, match="chunk_size=0 scores nothing"):
        model.score(texts, model.encode_regions(inputs["region_features"]), 0)
