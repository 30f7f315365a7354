"""The probability of an image's own class: by a model, a CLIP's prompts or a function, and what none can say."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import tiny_models as TINY
import torch
import torch.nn.functional as F
from labelled import NAMES, labelled, picture, tiny_resnet
from transformers import (
    AutoImageProcessor,
    AutoModel,
    AutoTokenizer,
    CLIPConfig,
    CLIPModel,
    CLIPTextConfig,
    CLIPVisionConfig,
)

from hf_curriculum import ClassProbability, add_scores, make_image_processor, make_scenes, read_provenance
from hf_curriculum.scorers.alignment.clip import SCENES_CLIP, SHIPPED
from hf_curriculum.scorers.registry import scorer_from
from hf_curriculum.tasks.long_tail import class_names, load_labelled, mark_hard


def by_brightest(images):
    """Probabilities in proportion to a channel's brightness."""
    means = np.stack([np.asarray(image).reshape(-1, 3).mean(0) for image in images])
    return means / means.sum(1, keepdims=True)


def test_classes_are_matched_by_name_or_number(tmp_path):
    folder = TINY.classifier()
    data = labelled((1, 1, 1))
    rows = {"image": data["image"][:], "label": data["label"][:]}
    plain = ClassProbability(folder)(rows)["class_probability"]
    expected = [TINY.naive_class_probability(image, label) for image, label in zip(*rows.values(), strict=True)]
    np.testing.assert_allclose(plain, expected, rtol=1e-5)
    # The data numbers its classes in another order: names tell which is which.
    swapped = {**rows, "label": [2 - label for label in rows["label"]]}
    found = ClassProbability(folder, classes=NAMES[::-1])(swapped)["class_probability"]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    texts = {**rows, "label": [NAMES[label] for label in rows["label"]]}
    np.testing.assert_allclose(ClassProbability(folder)(texts)["class_probability"], expected, rtol=1e-5)


def test_a_function_and_the_images_it_is_given():
    sizes = []

    def noting(images):
        sizes.append(len(images))
        return by_brightest(images)

    data = labelled((3, 2, 2))
    images = [*data["image"][:], {"bytes": b"x", "path": None}]
    rows = {"image": images, "label": [*data["label"][:], 0]}
    found = ClassProbability(noting, batch_size=3)(rows)["class_probability"]
    assert sizes == [3, 3, 1]
    pairs = zip(images[:-1], rows["label"], strict=False)
    expected = [by_brightest([image])[0, label] for image, label in pairs]
    np.testing.assert_allclose(found[:-1], expected, rtol=1e-6)
    assert np.isnan(found[-1])
    assert (found[:-1] > 1 / 3).all()
    as_tensor = ClassProbability(lambda images: torch.tensor(by_brightest(images)))(rows)["class_probability"]
    np.testing.assert_array_equal(as_tensor, found)


def naive_zero_shot(image, prompts, label):
    """By `CLIPModel.forward` on one image: prompts of a class averaged as unit vectors."""
    model, tokenizer = AutoModel.from_pretrained(SHIPPED).eval(), AutoTokenizer.from_pretrained(SHIPPED)
    pixels = AutoImageProcessor.from_pretrained(SHIPPED, backend="pil")(image, return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        seen = F.normalize(model.get_image_features(pixel_values=pixels).pooler_output, dim=-1)
        heads = []
        for own in prompts:
            tokens = tokenizer(own, padding="max_length", max_length=32, truncation=True, return_tensors="pt")
            vectors = F.normalize(model.get_text_features(**tokens).pooler_output, dim=-1)
            heads.append(F.normalize(vectors.mean(0), dim=-1))
        logits = model.logit_scale.exp() * seen @ torch.stack(heads).T
    return logits.softmax(-1)[0, label].item()


def test_a_clip_by_the_prompts_of_all_classes():
    image = make_scenes(5, validation=0, test=0)["train"][0]["image"]
    classes = ["ball", "tree", "dog"]
    prompts = {"ball": ["a ball", "a red ball"], "tree": "a tree", "dog": ["a dog"]}
    scorer = ClassProbability(SCENES_CLIP, prompts=prompts, classes=classes)
    found = scorer({"image": [image] * 3, "label": [0, 1, 2]})["class_probability"]
    expected = [naive_zero_shot(image, [["a ball", "a red ball"], ["a tree"], ["a dog"]], label) for label in range(3)]
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=1e-5)
    assert found.sum() == pytest.approx(1, abs=1e-5)
    templates = ClassProbability(SCENES_CLIP, prompts=["a {label}", "one {label}"], classes=classes)
    assert templates.prompts[0] == ["a ball", "one ball"]


def test_provenance_says_what_told_them(tmp_path):
    data = labelled((2, 1, 1))
    scored = add_scores(data, ClassProbability(TINY.classifier(), classes=class_names(data)))
    made = read_provenance(scored)["class_probability"]
    assert (made.scorer, made.easy, made.model) == ("ClassProbability", "high", str(TINY.classifier()))
    assert made.revision is not None
    assert made.arguments["classes"] == NAMES
    found = read_provenance(add_scores(data, ClassProbability(by_brightest, name="p")))["p"]
    assert found.arguments["classifier"].endswith(".by_brightest")
    assert scorer_from({"type": "class_probability", "classifier": str(TINY.classifier())}).classifier == str(
        TINY.classifier()
    )


def test_a_classifier_trained_further_is_another(tmp_path):
    for seed in (0, 1):
        tiny_resnet(seed=seed).save_pretrained(tmp_path)
        make_image_processor(16).save_pretrained(tmp_path)
        if seed == 0:
            first = ClassProbability(tmp_path).revision
    assert ClassProbability(tmp_path).revision != first


ROWS = {"image": [picture(0, 0)], "label": [0]}


@pytest.mark.parametrize(
    ("make", "rows", "message"),
    [
        (lambda: ClassProbability(lambda images: np.ones((1, 3))), ROWS, "do not sum to 1 .* Apply a softmax"),
        (lambda: ClassProbability(lambda images: np.array([[1.5, -0.5]])), ROWS, "numbers from -0.5 to 1.5"),
        (lambda: ClassProbability(lambda images: np.full((1, 3), np.nan)), ROWS, "NaN or infinite .* has diverged"),
        (lambda: ClassProbability(lambda images: np.ones(1)), ROWS, r"shape \(1,\) for 1 images"),
        (lambda: ClassProbability(by_brightest), {**ROWS, "label": [3]}, "`label` is 3, .* none of the 3 classes"),
        (lambda: ClassProbability(by_brightest), {**ROWS, "label": ["red"]}, "`label` is 'red', which is none"),
        (
            lambda: ClassProbability(TINY.classifier(), classes=["red", "yellow"]),
            {**ROWS, "label": [1]},
            r"`label` is 'yellow', .*\['red', 'green', 'blue'\]",
        ),
    ],
)
def test_what_is_no_probability(make, rows, message):
    with pytest.raises(ValueError, match=message):
        make()(rows)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompts": "a {label}"}, "`prompts` was given without `classes`"),
        ({"prompts": "a photo", "classes": ["a"]}, "has no place for the class"),
        ({"prompts": {"a": "x"}, "classes": ["a", "b"]}, r"1 of 2 classes have no prompt \(\['b'\]\)"),
        ({"prompts": "a {label}", "classes": ["0", "1"]}, "numbers for names .* would ask for 'a 0'"),
        ({"easy": "hard"}, "`easy` is 'hard'"),
    ],
)
def test_options_that_do_not_go_together(options, message):
    with pytest.raises(ValueError, match=message):
        ClassProbability(SCENES_CLIP, **options)


def test_models_that_cannot_classify(tmp_path):
    with pytest.raises(FileNotFoundError, match="found no 'nothing/here'"):
        ClassProbability("nothing/here")(ROWS)
    with pytest.raises(ValueError, match="and a function was given"):
        ClassProbability(by_brightest, revision="main")
    small = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = CLIPConfig(
        text_config=CLIPTextConfig(vocab_size=20, **small).to_dict(),
        vision_config=CLIPVisionConfig(image_size=16, patch_size=8, **small).to_dict(),
    )
    CLIPModel(config).save_pretrained(tmp_path)
    make_image_processor(16).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="so scores would be random"):
        ClassProbability(tmp_path)(ROWS)  # a CLIP has no classes of its own: it needs prompts


def test_rows_of_one_image_are_told_once():
    seen = []

    def noting(images):
        seen.extend(images)
        return by_brightest(images)

    image = picture(1, 3)
    rows = {"image": [image, image], "label": [1, 2], "image_id": ["x", "x"]}
    found = ClassProbability(noting)(rows)["class_probability"]
    assert len(seen) == 1
    np.testing.assert_allclose(found, by_brightest([image])[0, 1:], rtol=1e-6)


# ---- Real photographs ----


def resnet20(images, state):
    """Probabilities of CIFAR-10's classes by the published ResNet-20, written out; weights by name."""
    means, stds = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    pixels = torch.stack([torch.from_numpy(np.array(image)) for image in images]).float() / 255
    hidden = ((pixels - means) / stds).permute(0, 3, 1, 2)

    def norm(values, name):
        moments = [state[f"module.{name}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")]
        return F.batch_norm(values, *moments)

    def convolved(values, name, stride=1):
        return F.conv2d(values, state[f"module.{name}.weight"], stride=stride, padding=1)

    hidden = F.relu(norm(convolved(hidden, "conv1"), "bn1"))
    for layer in (1, 2, 3):
        for block in range(3):
            name, stride = f"layer{layer}.{block}", 2 if layer > 1 and block == 0 else 1
            inner = F.relu(norm(convolved(hidden, f"{name}.conv1", stride), f"{name}.bn1"))
            inner = norm(convolved(inner, f"{name}.conv2"), f"{name}.bn2")
            if stride == 2:  # every second pixel, and channels of zeros on both sides
                more = hidden.shape[1] // 2
                hidden = F.pad(hidden[:, :, ::2, ::2], (0, 0, 0, 0, more, more))
            hidden = F.relu(inner + hidden)
    logits = hidden.mean((2, 3)) @ state["module.linear.weight"].T + state["module.linear.bias"]
    return logits.softmax(-1)


@pytest.mark.slow
def test_hard_photographs_by_a_published_network(tmp_path):
    folder = Path(os.environ.get("HF_CURRICULUM_TEST_DATA", "nowhere"))
    weights = folder / "weights" / "resnet_cifar10" / "resnet20-12fca82f.th"
    if not weights.is_file():
        pytest.skip("HF_CURRICULUM_TEST_DATA has no resnet20")
    state = torch.load(weights, map_location="cpu", weights_only=True)["state_dict"]
    told = []

    @torch.inference_mode()
    def classify(images):
        found = resnet20(images, state)
        told.append(found.argmax(1))
        return found

    data = load_labelled(folder / "cifar10_lt" / "test_balanced_2000.parquet", check_images=False)
    scorer = ClassProbability(classify, batch_size=250)
    scores = scorer({"image": data["image"][:], "label": data["label"][:]})["class_probability"]
    right = np.concatenate(told) == np.array(data["label"][:])
    assert right.mean() == pytest.approx(0.8135)
    assert scores[right].mean() > 0.85 > 0.2 > scores[~right].mean()
    marked = mark_hard(data.add_column("class_probability", scores), below=0.2)
    hard = np.array(marked["hard"][:])
    assert 200 < hard.sum() < 400
    assert right[hard].mean() < 0.05
