import copy
from types import SimpleNamespace

import numpy as np
import pytest
import tiny_models
import torch
from PIL import Image
from tokenizers.normalizers import BertNormalizer
from transformers import (
    AutoModelForImageTextToText,
    BertConfig,
    BertForMaskedLM,
    BlipConfig,
    BlipForConditionalGeneration,
    CLIPVisionConfig,
    GitConfig,
    GitForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
)

from hf_curriculum import make_image_processor
from hf_curriculum.data.image_inputs import RegionInputs
from hf_curriculum.data.images import to_rgb
from hf_curriculum.data.regions.processor import RegionProcessor
from hf_curriculum.tasks.babylm import TextImageScorer
from hf_curriculum.tasks.babylm.scorer import Item, ItemEncoder, prefix_token_id

TEXTS = [
    Item(("there is a red ball", "there are a red ball")),
    Item(("blue", "a small red ball next to two cups", "red"), "Question: what color is the ball? Answer:"),
    Item(("is a ball.", "is a cup."), "a ball "),
]


@pytest.fixture
def pictures():
    generator = np.random.default_rng(0)
    return [Image.fromarray(generator.integers(0, 255, (40, 30, 3), dtype=np.uint8)) for _ in range(3)]


@pytest.mark.parametrize("name", ["git", "flamingo"])
@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_text_is_scored_as_one_by_one(models, name, batch_size, tokenizer, naive):
    found = TextImageScorer(models[name], tokenizer, batch_size=batch_size).choice_scores(TEXTS)
    for item, scores in zip(TEXTS, found, strict=True):
        context = item.context.rstrip()
        wanted = [naive.choice(models[name], context, choice) for choice in item.choices]
        assert scores == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("name", ["git", "flamingo"])
@pytest.mark.parametrize("batch_size", [2, 64])
def test_images_are_scored_as_one_by_one(models, name, batch_size, tokenizer, image_processor, naive, pictures):
    items = [
        Item(("a red ball", "a blue cup"), image=pictures[0]),
        Item(("a red ball", "two blue cups"), image=lambda: pictures[1]),
        Item(("red", "blue"), "Question: what color is the ball? Answer:", pictures[0]),
    ]
    scorer = TextImageScorer(models[name], tokenizer, image_processor, batch_size=batch_size)
    found = scorer.choice_scores(items)
    for item, shown, scores in zip(items, [0, 1, 0], found, strict=True):
        wanted = [naive.choice(models[name], item.context, choice, pictures[shown]) for choice in item.choices]
        assert scores == pytest.approx(wanted, abs=1e-4)
    other = scorer.choice_scores([Item(items[0].choices, image=pictures[1])])[0]
    assert abs(other[0] - found[0][0]) > 1e-3  # the image counts


def test_stock_models_of_transformers_are_scored_too(tokenizer, image_processor, naive, pictures):
    torch.manual_seed(0)
    width = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision = {**width, "image_size": 32, "patch_size": 16}
    stock = GitForCausalLM(GitConfig(vision_config=vision, vocab_size=len(tokenizer), **width)).eval()
    found = TextImageScorer(stock, tokenizer, image_processor).choice_scores(
        [Item(("a red ball", "a cup"), image=pictures[0])]
    )
    pixels = image_processor(images=[pictures[0]], return_tensors="pt")["pixel_values"]
    for text, score in zip(("a red ball", "a cup"), found[0], strict=True):
        ids = [tokenizer.pad_token_id, *naive.tokens(text)]
        with torch.no_grad():
            scores = stock(input_ids=torch.tensor([ids]), pixel_values=pixels).logits.log_softmax(-1)[0]
        shown = scores.shape[0] - len(ids)  # stock GIT scores the image's places too
        assert shown > 0
        wanted = sum(scores[shown + at - 1, ids[at]].item() for at in range(1, len(ids)))
        assert score == pytest.approx(wanted, abs=1e-4)


def test_models_whose_text_holds_the_images_places_are_scored_too(tokenizer, image_processor, pictures, naive):
    torch.manual_seed(0)
    width = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(**width, image_size=32, patch_size=16),
        text_config=LlamaConfig(**width, vocab_size=len(tokenizer)),
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        image_seq_length=4,
        vision_feature_layer=-1,
    )
    llava = LlavaForConditionalGeneration(config).eval()
    scorer = TextImageScorer(llava, tokenizer, image_processor)
    assert scorer.image_text == "<image>" * 4
    found = scorer.choice_scores([Item(("a red ball", "a cup"), image=pictures[0])])[0]
    places = [config.image_token_id] * 4
    for text, score in zip(("a red ball", "a cup"), found, strict=True):
        ids = [tokenizer.pad_token_id, *places, *naive.tokens(text)]
        assert score == pytest.approx(sum(naive.log_probs(llava, ids, 5, pictures[0])), abs=1e-4)
    ids = [tokenizer.cls_token_id, *places, *naive.tokens("a ball."), tokenizer.sep_token_id]
    wanted = np.mean(naive.log_probs(llava, ids, 5, pictures[0]))
    assert scorer.similarities(["a ball."], [pictures[0]])[0] == pytest.approx(wanted, abs=1e-4)


def test_models_that_look_ahead_are_refused(tokenizer):
    torch.manual_seed(0)
    width = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    masked = BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), initializer_range=1.0, **width))
    with pytest.raises(ValueError, match="A BertForMaskedLM is no causal language model"):
        TextImageScorer(masked, tokenizer)


@pytest.mark.parametrize(
    ("value", "other", "causal"), [(0.0, 0.009, True), (0.0, 0.02, False), (50.0, 50.4, True), (50.0, 51.0, False)]
)
def test_rounding_is_not_taken_for_looking_ahead(value, other, causal):
    class Rounded(torch.nn.Linear):
        def forward(self, input_ids):
            return SimpleNamespace(logits=torch.tensor([value, other])[:, None, None].expand(2, 2, 3))

    scorer = TextImageScorer.__new__(TextImageScorer)
    scorer.model, scorer.inputs = Rounded(1, 1), None
    if causal:
        scorer._validate_causal()
    else:
        with pytest.raises(ValueError, match="A Rounded is no causal language model"):
            scorer._validate_causal()


def test_models_that_read_no_text_alone_are_refused(tokenizer, image_processor):
    width = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {**width, "vocab_size": len(tokenizer), "encoder_hidden_size": 16, "projection_dim": 8}
    vision = {**width, "image_size": 32, "patch_size": 16}
    blip = BlipForConditionalGeneration(BlipConfig(text_config=text, vision_config=vision, projection_dim=8))
    with pytest.raises(ValueError, match=r"reads no text alone: its `forward` needs \['pixel_values'\]"):
        TextImageScorer(blip, tokenizer, image_processor)


def test_long_contexts_lose_their_beginning(tokenizer, naive):
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=len(tokenizer), n_positions=8, n_embd=16, n_layer=1, n_head=2)
    ).eval()
    scorer = TextImageScorer(model, tokenizer)
    context = "there is a red ball next to two blue cups and a green kite"
    found = scorer.choice_scores([Item(("is red", "is blue"), context)])[0]
    whole, inner = naive.tokens(f"{context} is red"), naive.tokens("is red")
    kept = whole[-9:]  # eight are read, the ninth is scored alone
    assert found[0] == pytest.approx(sum(naive.log_probs(model, kept, len(kept) - len(inner))), abs=1e-4)
    assert scorer.encoder.num_truncated == 2
    with pytest.raises(ValueError, match=r"has .* tokens, but the model reads 8"):
        scorer.choice_scores([Item((f"{context} {context}", "b"))])
    shorter = TextImageScorer(model, tokenizer, max_length=len(inner) - 1)  # no room for what "is" could follow
    with pytest.raises(ValueError, match=f"has {len(inner)} tokens, but the model reads {len(inner) - 1}"):
        shorter.choice_scores([Item(("is red", "is"), context)])


def test_similarity_is_the_loss_of_the_whole_prompt(models, tokenizer, image_processor, pictures):
    prompt = "The caption for this image is: a red ball."
    pixels = image_processor(images=[pictures[0]], return_tensors="pt")["pixel_values"]
    for name, before in (("git", ""), ("flamingo", "<image> ")):
        ids = torch.tensor([tokenizer(before + prompt)["input_ids"]])
        with torch.no_grad():
            loss = models[name](input_ids=ids, labels=ids, pixel_values=pixels).loss.item()
        scorer = TextImageScorer(models[name], tokenizer, image_processor)
        found = scorer.similarities([prompt, "a cup"], [pictures[0], pictures[1]])
        assert found[0] == pytest.approx(-loss, abs=1e-5)


def test_features_are_means_of_the_last_hidden_states(models, tokenizer, image_processor, pictures):
    pixels = image_processor(images=pictures[:2], return_tensors="pt")["pixel_values"]
    for name, text in (("git", " "), ("flamingo", "<image> ")):
        ids = torch.tensor([tokenizer(text)["input_ids"]] * 2)
        with torch.no_grad():
            states = models[name](input_ids=ids, pixel_values=pixels, output_hidden_states=True).hidden_states[-1]
        found = TextImageScorer(models[name], tokenizer, image_processor).image_features(pictures[:2])
        assert found == pytest.approx(states.mean(1).numpy(), abs=1e-5)
    assert TextImageScorer(models["git"], tokenizer, image_processor).image_features([pictures[0]]).shape == (1, 32)


def test_the_prefix_is_beginning_then_end_then_padding(tokenizer):
    class Tokens:
        bos_token_id, eos_token_id, pad_token_id = 5, 6, 7

    tokens = Tokens()
    assert prefix_token_id(tokens) == 5
    tokens.bos_token_id = None
    assert prefix_token_id(tokens) == 6
    tokens.eos_token_id = None
    assert prefix_token_id(tokens) == 7
    tokens.pad_token_id = None
    with pytest.raises(ValueError, match="no beginning-of-text, end-of-text or padding token"):
        prefix_token_id(tokens)
    assert prefix_token_id(tokenizer) == tokenizer.pad_token_id


def test_another_prefix_can_be_named(git, tokenizer, naive):
    found = TextImageScorer(git, tokenizer, prefix_token="[CLS]").choice_scores([Item(("a ball", "a cup"))])[0]
    ids = [tokenizer.cls_token_id, *naive.tokens("a ball")]
    assert found[0] == pytest.approx(sum(naive.log_probs(git, ids, 1)), abs=1e-4)
    with pytest.raises(ValueError, match=r"prefix_token='\[BOS\]' is not in the vocabulary"):
        TextImageScorer(git, tokenizer, prefix_token="[BOS]")


def test_what_cannot_be_scored_is_refused(git, flamingo, tokenizer, image_processor, pictures):
    with pytest.raises(ValueError, match="batch_size=0"):
        TextImageScorer(git, tokenizer, batch_size=0)
    seeing = TextImageScorer(git, tokenizer, image_processor)
    with pytest.raises(ValueError, match="2 of 4 texts have an image"):
        seeing.choice_scores([Item(("a", "b"), image=pictures[0]), Item(("a", "b"))])
    with pytest.raises(ValueError, match="no image processor"):
        TextImageScorer(git, tokenizer).choice_scores([Item(("a", "b"), image=pictures[0])])
    with pytest.raises(ValueError, match="2 texts and 1 images"):
        seeing.similarities(["a", "b"], pictures[:1])
    with pytest.raises(ValueError, match=r"has .* tokens\. A similarity is the mean"):
        seeing.similarities(["ball " * 400], pictures[:1])
    with pytest.raises(ValueError, match="no token of its own"):
        seeing.choice_scores([Item(("\u200b", "a"))])
    assert to_rgb(pictures[0]).mode == "RGB"


def test_a_tokenizer_without_the_image_token_is_refused(flamingo, miniature):
    from hf_curriculum import train_wordpiece

    other = train_wordpiece(["a red ball and a blue cup"] * 2, 60)
    with pytest.raises(ValueError, match=r"(Pictures|Images) would go unseen"):
        TextImageScorer(flamingo, other)


def test_models_and_random_states_are_left_as_they_were(git, tokenizer):
    git.train()
    before = torch.random.get_rng_state()
    first = TextImageScorer(git, tokenizer).choice_scores(TEXTS)
    assert git.training
    assert all(module.training for module in git.modules())
    git.eval()
    assert TextImageScorer(git, tokenizer).choice_scores(TEXTS) == first  # dropout was off
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_fingerprint_tells_models_apart(git, tokenizer, image_processor):
    scorer = TextImageScorer(git, tokenizer, image_processor)
    same = scorer.fingerprint()
    assert TextImageScorer(git, tokenizer, image_processor, batch_size=2).fingerprint() == same
    assert TextImageScorer(git, tokenizer, image_processor, prefix_token="[CLS]").fingerprint() != same
    assert TextImageScorer(git, tokenizer, make_image_processor(16)).fingerprint() != same
    with torch.no_grad():
        git.output.weight += 1e-3
    try:
        assert scorer.fingerprint() != same
    finally:
        with torch.no_grad():
            git.output.weight -= 1e-3
    tokenizer(["a red ball", "a"], truncation=True, max_length=3, padding=True)
    assert scorer.fingerprint() == same
    other = copy.deepcopy(tokenizer)
    other.backend_tokenizer.normalizer = BertNormalizer(lowercase=False)
    assert other.get_vocab() == tokenizer.get_vocab()
    assert TextImageScorer(git, other, image_processor).fingerprint() != same


def test_blanks_at_a_contexts_end_belong_to_the_choice(tokenizer):
    encoder = ItemEncoder(tokenizer, prefix=0, image_ids=[], max_length=100)
    (one,), (other,) = (encoder([Item(("red", "blue"), context)]) for context in ("the ball is", "the ball is  "))
    assert one == other
    assert one[0].start == len(tokenizer("the ball is", add_special_tokens=False)["input_ids"])


def test_a_captioner_on_regions_scores_texts_on_images_of_a_store():
    model = AutoModelForImageTextToText.from_pretrained(tiny_models.region_transformer()).eval()
    words, store = tiny_models.tokenizer(), tiny_models.region_store()
    scorer = TextImageScorer(model, words, regions=RegionInputs(store), prefix_token="[CLS]")
    found = scorer.choice_scores([Item(("a red ball", "two dogs"), image=image_id) for image_id in ("0", "2", "0")])
    assert found[0] == pytest.approx(found[2], abs=1e-5)
    for image_id, scores in zip(("0", "2"), found, strict=False):
        inputs = RegionInputs(store).batch([{"image_id": image_id}])
        for choice, score in zip(("a red ball", "two dogs"), scores, strict=True):
            ids = [words.cls_token_id, *words(f" {choice}", add_special_tokens=False)["input_ids"]]
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([ids]), **inputs).logits[0].double().log_softmax(-1)
            assert score == pytest.approx(sum(logits[at, token].item() for at, token in enumerate(ids[1:])), abs=1e-4)
    other = TextImageScorer(model, words, regions=RegionInputs(store, normalise=True), prefix_token="[CLS]")
    assert scorer.fingerprint() != other.fingerprint()
    assert Item(("a", "b"), image="0").key() == ["", "a", "b", "0"]
    with pytest.raises(ValueError, match=r"`regions` were given together with an `image_processor`"):
        TextImageScorer(model, words, make_image_processor(16), regions=store)
    with pytest.raises(ValueError, match=r"`regions` hold no image"):
        TextImageScorer(model, words, regions={})


def region_captioner(dims=128):
    """A captioner on regions with random weights."""
    return AutoModelForImageTextToText.from_pretrained(tiny_models.region_transformer(dims)).eval()


def test_a_captioner_on_regions_scores_texts_on_images_that_its_detector_reads(pictures):
    model, words = region_captioner(), tiny_models.tokenizer()
    detector = RegionProcessor("scenes_clip", grid=2)
    scorer = TextImageScorer(model, words, detector, prefix_token="[CLS]")
    found = scorer.choice_scores([Item(("a red ball", "two dogs"), image=image) for image in pictures[:2]])
    for image, scores in zip(pictures, found, strict=False):
        seen = detector(images=[image], return_tensors="pt")
        for choice, score in zip(("a red ball", "two dogs"), scores, strict=True):
            ids = [words.cls_token_id, *words(f" {choice}", add_special_tokens=False)["input_ids"]]
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([ids]), **seen).logits[0].double().log_softmax(-1)
            assert score == pytest.approx(sum(logits[at, token].item() for at, token in enumerate(ids[1:])), abs=1e-3)
    assert abs(found[0][0] - found[1][0]) > 1e-3  # the image counts
    states = scorer.image_features(pictures)
    ids = torch.tensor([words(" ")["input_ids"]])
    with torch.no_grad():
        seen = detector(images=[pictures[2]], return_tensors="pt")
        wanted = model.model(input_ids=ids, **seen).last_hidden_state.mean(1)[0]
    assert states[2] == pytest.approx(wanted.numpy(), abs=1e-4)


def test_what_a_captioner_on_regions_cannot_read_is_said_before_anything_is_scored():
    words = tiny_models.tokenizer()
    with pytest.raises(ValueError, match=r"reads no text without an image, and no image can be read for it\. Pass"):
        TextImageScorer(region_captioner(), words)
    with pytest.raises(ValueError, match=r"features that this model reads were made by .* outside of this library"):
        TextImageScorer(region_captioner(), words, RegionProcessor())
    scorer = TextImageScorer(region_captioner(), words, RegionProcessor("scenes_clip", grid=2), prefix_token="[CLS]")
    with pytest.raises(ValueError, match=r"texts without an image, and a RegionTransformerForCausalLM reads none"):
        scorer.choice_scores(TEXTS)
