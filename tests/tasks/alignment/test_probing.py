"""Vectors of a word in captions that name its colour: which captions, which vectors, which clusters."""

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel, CLIPConfig, CLIPModel, T5Config, T5EncoderModel, T5Model

from hf_curriculum import make_scenes, train_wordpiece
from hf_curriculum.tasks.alignment import AlignerConfig, AlignerModel, colour_captions, probe_colours
from hf_curriculum.tasks.alignment import word_vectors as vectors_of
from hf_curriculum.tasks.alignment.figures import vectors_by_colour
from hf_curriculum.tasks.alignment.probing import cluster_agreement, k_means

KMeans = pytest.importorskip("sklearn.cluster").KMeans
homogeneity_completeness_v_measure = pytest.importorskip("sklearn.metrics").homogeneity_completeness_v_measure
CAPTIONS = ["a red shirt", "the man wears a blue shirt", "a shirt that is red", "A Grey striped shirt on a line"]
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def test_captions_by_hand():
    captions = [
        *("a man in a red shirt", "a woman wears a blue striped tennis shirt .", "A Grey shirt hangs there"),
        *("a red and white shirt", "a red shirt beside another shirt", "a shirt that is red", "a man in a red shirt"),
        *("a green car", "a blue car and a red car", "a red, white shirt", "a gray shirt, and a dog"),
    ]
    found = colour_captions(captions, num_colours=3)
    assert found.noun == "shirt"
    assert found.captions == [captions[0], captions[1], captions[2], captions[10]]
    assert found.colours == ["red", "blue", "gray", "gray"]
    assert [caption[start:end] for caption, (start, end) in zip(found.captions, found.spans, strict=True)] == [
        "shirt"
    ] * 4
    two = colour_captions(captions, "shirt", num_colours=1)
    assert two.colours == ["gray", "gray"]  # the most frequent one


def test_captions_of_scenes():
    scenes = make_scenes(600, validation=0, test=0, image_size=32)["train"]
    found = colour_captions(scenes["caption"][:], num_colours=5)
    assert len(set(found.colours)) == 5
    assert len(found.captions) >= 10
    for caption, (start, end), colour in zip(found.captions, found.spans, found.colours, strict=True):
        assert caption[start:end] == found.noun
        assert colour in caption[:start].replace("grey", "gray").split()[-4:]


@pytest.fixture(scope="module")
def tokenizer():
    return train_wordpiece(CAPTIONS * 2, 60, min_frequency=1)


@pytest.mark.parametrize("kind", ["bert", "aligner", "clip", "t5"])
def test_vectors_of_any_text_encoder(tokenizer, kind):
    torch.manual_seed(0)
    config = BertConfig(vocab_size=len(tokenizer), **SIZES)
    if kind == "bert":
        model = encoder = BertModel(config)
    elif kind == "aligner":
        model = AlignerModel(AlignerConfig(config, region_feature_size=4))
        encoder = model.text_model
    elif kind == "clip":
        text = {**SIZES, "vocab_size": len(tokenizer), "eos_token_id": tokenizer.sep_token_id}
        model = CLIPModel(CLIPConfig(text_config=text, vision_config={**SIZES, "image_size": 32, "patch_size": 16}))
        encoder = model.text_model
    else:
        sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
        model = T5Model(T5Config(vocab_size=len(tokenizer), **sizes))
        encoder = model.encoder
    spans = [(6, 11), (21, 26), (2, 7), (15, 20)]
    found = vectors_of(model, tokenizer, CAPTIONS, spans, batch_size=3)
    encoder.eval()
    for row, (caption, (start, end)) in enumerate(zip(CAPTIONS, spans, strict=True)):
        assert caption[start:end] == "shirt"
        tokens = tokenizer(caption, return_tensors="pt", return_offsets_mapping=True, return_token_type_ids=False)
        inside = [start <= a and b <= end and b > a for a, b in tokens.pop("offset_mapping")[0].tolist()]
        with torch.inference_mode():
            states = encoder(**tokens).last_hidden_state[0]
        np.testing.assert_allclose(found[row], states[torch.tensor(inside)].mean(0), rtol=1e-4, atol=1e-5)
    assert isinstance(model, (BertModel, AlignerModel, CLIPModel, T5Model, T5EncoderModel))


def test_agreement_is_scikit_learns():
    generator = np.random.default_rng(0)
    for clusters in (1, 2, 7):
        labels, found = generator.integers(0, 4, 60), generator.integers(0, clusters, 60)
        expected = homogeneity_completeness_v_measure(labels, found)
        assert cluster_agreement(labels, found) == pytest.approx(expected, abs=1e-12)
    assert cluster_agreement(np.zeros(5, int), np.arange(5)) == (1.0, 0.0, 0.0)


def test_clusters_are_those_of_scikit_learn_where_there_is_no_doubt():
    generator = np.random.default_rng(1)
    centres = 40 * generator.standard_normal((6, 8))
    data = np.repeat(centres, 20, axis=0) + generator.standard_normal((120, 8))
    theirs = KMeans(6, n_init=10, random_state=0).fit_predict(data)
    best = max((k_means(data, 6, seed) for seed in range(5)), key=lambda own: cluster_agreement(theirs, own)[2])
    assert cluster_agreement(theirs, best) == pytest.approx((1, 1, 1))


def test_clusters_are_a_fixed_point_as_good_as_scikit_learns():
    generator = np.random.default_rng(2)
    data = generator.standard_normal((300, 5))
    spread = []
    for seed in range(8):
        labels = k_means(data, 10, seed)
        means = np.stack([data[labels == cluster].mean(0) for cluster in range(10)])
        distances = ((data[:, None] - means) ** 2).sum(2)
        assert distances.argmin(1).tolist() == labels.tolist()
        spread.append(distances.min(1).sum())
    theirs = [KMeans(10, n_init=1, random_state=seed).fit(data).inertia_ for seed in range(8)]
    assert np.mean(spread) < 1.03 * np.mean(theirs)
    centres = 2 * generator.standard_normal((10, 32))
    data = 4 * np.repeat(centres, 20, axis=0) + generator.standard_normal((200, 32))
    labels = [k_means(data, 10, seed) for seed in range(20)]
    own = [sum(((data[each == k] - data[each == k].mean(0)) ** 2).sum() for k in range(10)) for each in labels]
    models = [KMeans(10, n_init=1, random_state=seed).fit(data) for seed in range(20)]
    assert np.mean(own) < 1.1 * np.mean([model.inertia_ for model in models])
    truth = np.repeat(np.arange(10), 20)
    v = [
        np.mean([cluster_agreement(truth, each)[2] for each in starts])
        for starts in (labels, [m.labels_ for m in models])
    ]
    assert v[0] > v[1] - 0.005
    assert len(set(k_means(data, 10, 3))) == 10
    assert k_means(data, 10, 3).tolist() == k_means(data, 10, 3).tolist() != k_means(data, 10, 4).tolist()
    assert sorted(k_means(np.zeros((4, 2)), 3)) in ([0, 0, 1, 2], [0, 1, 1, 2], [0, 1, 2, 2])  # no cluster is empty


def test_a_probe_has_mean_and_deviation_of_its_starts():
    generator = np.random.default_rng(3)
    colours = generator.choice(["red", "blue", "green"], 90)
    known = np.array([{"red": 0.0, "blue": 4.0, "green": 8.0}[colour] for colour in colours])
    vectors = known[:, None] + generator.standard_normal((90, 3))
    found = probe_colours(vectors, colours, seed=7)
    codes = np.unique(colours, return_inverse=True)[1]
    each = np.array([cluster_agreement(codes, k_means(vectors, 3, seed)) for seed in range(7, 12)])
    np.testing.assert_array_equal(found.v, each[:, 2])
    assert found.summary()["homogeneity"] == (each[:, 0].mean(), each[:, 0].std(ddof=1))
    assert found.summary()["v"][0] > 0.5 > probe_colours(generator.standard_normal((90, 3)), colours).summary()["v"][0]
    assert f"V {100 * each[:, 2].mean():.2f} ± " in str(found)
    assert probe_colours(vectors, colours, starts=1).summary()["v"][1] == 0


@pytest.mark.parametrize("projection", ["tsne", "pca"])
def test_the_figure(projection):
    generator = np.random.default_rng(0)
    vectors = {"BERT": generator.standard_normal((12, 6)), "A-BERT": generator.standard_normal((12, 9))}
    figure = vectors_by_colour(vectors, ["white", "tan", "navy"] * 4, projection=projection)
    panels = figure.get_axes()
    assert [axes.get_title("left") for axes in panels] == ["BERT", "A-BERT"]
    for axes in panels:
        points = np.asarray(axes.collections[0].get_offsets())
        assert points.shape == (12, 2)
        assert np.isfinite(points).all()
    assert panels[0].collections[0].get_facecolors()[0].tolist() == [1, 1, 1, 1]


def test_errors(monkeypatch, tokenizer):
    import sys

    with pytest.raises(ValueError, match=r"There is no noun of 10 colours in 2 captions \('shirt' comes in 2\)"):
        colour_captions(["a red shirt", "a blue shirt"])
    with pytest.raises(
        ValueError, match=r"There is no noun of 10 colours in 1 captions \(none stands behind a colour\)"
    ):
        colour_captions(["a shirt"])
    with pytest.raises(ValueError, match=r"Vectors of the shape \(3, 2\) with 2 colours and 2 clusters"):
        probe_colours(np.ones((3, 2)), ["red", "blue"])
    with pytest.raises(ValueError, match=r"with 2 colours and 3 clusters"):
        probe_colours(np.ones((2, 2)), ["red", "blue"], clusters=3)
    with pytest.raises(ValueError, match="`starts` is 0"):
        probe_colours(np.ones((2, 2)), ["red", "blue"], starts=0)
    model = BertModel(BertConfig(vocab_size=len(tokenizer), **SIZES))
    with pytest.raises(ValueError, match="There are 1 spans for 2 captions"):
        vectors_of(model, tokenizer, CAPTIONS[:2], [(0, 1)])
    with pytest.raises(ValueError, match=r"The word at \(90, 95\) of the caption 'a red shirt' has no token"):
        vectors_of(model, tokenizer, CAPTIONS[:1], [(90, 95)])
    with pytest.raises(ValueError, match=r"were given for 4 captions"):
        vectors_by_colour({"BERT": np.ones((4, 2))}, ["red"] * 4)
    monkeypatch.setitem(sys.modules, "sklearn.manifold", None)
    with pytest.raises(ImportError, match="t-SNE is scikit-learn's, which is not installed"):
        vectors_by_colour({"BERT": np.ones((6, 2))}, ["red"] * 6)
