"""CLIPScore and RefCLIPScore, beside the two towers of a CLIP used by hand."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from hf_curriculum import CLIPSimilarity, make_scenes
from hf_curriculum.data.grouping import one_row_per_image
from hf_curriculum.data.images import UnreadableImageError
from hf_curriculum.scorers.alignment.clip import SCENES_CLIP, encode_images, encode_texts
from hf_curriculum.tasks.captioning import CaptionEvaluator, caption_metrics, compare_captions
from hf_curriculum.tasks.captioning.metrics.clip_score import clip_scores, image_vectors


@pytest.fixture(scope="module")
def scenes():
    rows = one_row_per_image(make_scenes(60, validation=0, test=0)["train"]).select(range(8))
    images = rows["image"][:]
    return images, [[text, f"there is {text}"] for text in rows["caption"][:]]


def by_hand(captions, images, references, prefix):
    """2.5 · max(cos, 0), and its harmonic mean with the best cosine of a reference, one image at a time."""
    towers = CLIPSimilarity().loaded().towers
    scores, both = [], []
    for caption, image, given in zip(captions, images, references, strict=True):
        with torch.inference_mode():
            seen = F.normalize(towers.encode_image(towers.pixels(image.convert("RGB"))[None]).double(), dim=-1)
            texts, _ = towers.tokens([prefix + text for text in (caption, *given)])
            read = F.normalize(towers.encode_text(texts).double(), dim=-1)
        score = 2.5 * max(float(seen[0] @ read[0]), 0)
        best = max(0, *(float(read[0] @ other) for other in read[1:]))
        scores.append(score)
        both.append(2 * score * best / (score + best) if score + best else 0)
    return scores, both


@pytest.mark.parametrize("prefix", ["A photo depicts ", ""])
def test_equal_to_the_towers_used_by_hand(scenes, prefix):
    images, references = scenes
    captions = [*(given[0] for given in references[1:]), references[0][0]]  # each image has the next one's
    captions[3] = references[3][0]
    score, both = clip_scores(captions, images, references, prefix=prefix)
    expected = by_hand(captions, images, references, prefix)
    np.testing.assert_allclose(score, expected[0], atol=2e-5)
    np.testing.assert_allclose(both, expected[1], atol=2e-5)
    assert 0 <= score.min() < score.max() <= 2.5


def test_own_captions_score_higher_than_those_of_other_images(scenes):
    images, references = scenes
    own = [given[0] for given in references]
    score, both = clip_scores(own, images, references)
    other, both_other = clip_scores([*own[1:], own[0]], images, references)
    assert score.mean() > other.mean() + 0.1
    assert both.mean() > both_other.mean() + 0.1
    alone, none = clip_scores(own, images)
    np.testing.assert_allclose(alone, score, atol=1e-6)
    assert np.isnan(none).all()


def test_opposite_and_blank_captions_score_zero(scenes, monkeypatch):
    """Cosines below 0 count as 0, in both scores."""
    images, references = scenes

    def turned(towers, captions, batch_size, *, trim):
        vectors, truncated = encode_texts(towers, captions, batch_size, trim=trim)
        return (-vectors if captions[0].startswith("A photo") else vectors), truncated

    module = "hf_curriculum.tasks.captioning.metrics.clip_score"
    monkeypatch.setattr(f"{module}.encode_texts", turned)
    score, both = clip_scores([references[0][0], " "], images[:2], references[:2])
    assert score.tolist() == [0, 0]
    assert both.tolist() == [0, 0]


def test_as_a_metric_among_the_others(scenes):
    images, references = scenes
    own = [given[0] for given in references]
    scores = CaptionEvaluator(references, ["rouge", "clip_score"], images=images, clip=SCENES_CLIP)(own)
    score, both = clip_scores(own, images, references)
    np.testing.assert_array_equal(scores.per_image["clip_score"], score)
    np.testing.assert_array_equal(scores.per_image["ref_clip_score"], both)
    found = caption_metrics(own, references, ["clip_score"], images=images, clip=CLIPSimilarity(batch_size=3))
    assert found == pytest.approx({"clip_score": score.mean(), "ref_clip_score": both.mean()}, abs=1e-6)


def test_images_are_encoded_once_for_several_systems(scenes, monkeypatch):
    images, references = scenes
    own = [given[0] for given in references]
    calls = []
    monkeypatch.setattr(
        "hf_curriculum.scorers.alignment.clip.encode_images", lambda *given: calls.append(1) or encode_images(*given)
    )
    systems = {"others": [*own[1:], own[0]], "own": own}
    found = compare_captions(systems, references, ["clip_score"], images=images, resamples=50)
    assert len(calls) == 1
    assert found.values["own"]["clip_score"] == pytest.approx(clip_scores(own, image_vectors(images))[0].mean())
    assert found.values["own"]["clip_score"] > found.values["others"]["clip_score"] + 0.1


def test_errors(scenes):
    images, references = scenes
    with pytest.raises(ValueError, match="There are 2 captions and images for 1 images"):
        clip_scores(["a", "b"], images[:1])
    with pytest.raises(ValueError, match="There are 1 captions and references for 2 images"):
        clip_scores(["a"], images[:1], references[:2])
    with pytest.raises(ValueError, match="Image 0 has no references"):
        clip_scores(["a"], images[:1], [[]])
    with pytest.raises(UnreadableImageError, match="The image of row 1"):
        clip_scores(["a", "b"], [images[0], None])
    with pytest.raises(FileNotFoundError):
        clip_scores(["a"], images[:1], model="no/such-folder/at-all")
