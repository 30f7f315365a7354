from __future__ import annotations

import io

import numpy as np
import pytest
import tiny_models as TINY
from datasets import Dataset, Features, Image, Value
from PIL import Image as PILImage

from hf_curriculum import Grounding, ModelLoss, add_scores, read_provenance
from hf_curriculum.models.git.model import CaptionGitModel
from hf_curriculum.provenance import score_values
from hf_curriculum.scoring.sharded import add_scores_sharded

IMAGES = [TINY.png(20, 30, seed) for seed in range(5)]
ROWS = {
    "image": [IMAGES[number] for number in (0, 0, 1, 2, 3, 4, 1)],
    "caption": ["a dog runs", "two dogs", "a cat", "a red ball", "a man rides a bike", "the park", "a mat and a ball"],
    "image_id": ["a", "a", "b", "c", "d", "e", "b"],
}
MODELS = ["git", "flamingo", "stock_git", "blip", "encoder_decoder"]


def data(**changed):
    rows = {**ROWS, **changed}
    kinds = {name: Image() if name == "image" else Value("string") for name in rows if rows[name] is not None}
    return Dataset.from_dict({name: rows[name] for name in kinds}, features=Features(kinds))


def naive(scorer, name="git", rows=ROWS):
    """One pair of an image and a caption at a time, by `ModelLoss`, over the images that `fit` has drawn."""
    loss = ModelLoss(getattr(TINY, name)(), reduction="mean", batch_size=1)
    drawn = [image.tobytes() for image in scorer.other_images_]
    found = []
    for image, caption in zip(rows["image"], rows["caption"], strict=True):
        others = [other for other in drawn if other != image["bytes"]][: scorer.k]
        each = [loss({"image": [{"bytes": other}], "caption": [caption]})["model_loss"][0] for other in others]
        own = loss({"image": [image], "caption": [caption]})["model_loss"][0]
        found.append(np.mean(each, dtype=np.float64) - own)
    return np.array(found)


@pytest.mark.parametrize("name", MODELS)
def test_it_is_the_loss_with_other_images_minus_that_with_the_own(name):
    scorer = Grounding(getattr(TINY, name)(), k=3, batch_size=3).fit(data())
    assert len(scorer.other_images_) == 4
    np.testing.assert_allclose(scorer(ROWS)["grounding"], naive(scorer, name), atol=3e-6)
    assert np.ptp(scorer(ROWS)["grounding"]) > 1e-4


def test_a_caption_whose_own_image_was_drawn_takes_the_others():
    scorer = Grounding(TINY.flamingo(), k=4).fit(data())  # all five: each row's own is among them
    found = scorer(ROWS)["grounding"]
    np.testing.assert_allclose(found, naive(scorer, "flamingo"), atol=3e-6)
    own = [image.tobytes() for image in scorer.other_images_].index(IMAGES[0]["bytes"])
    scorer.other_images_.pop(own)
    scorer.__dict__.pop("_loaded")
    np.testing.assert_allclose(scorer(ROWS)["grounding"][:2], found[:2], rtol=1e-5)


def test_batches_processes_and_the_order_of_rows_change_nothing():
    expected = Grounding(TINY.flamingo(), k=2, batch_size=32).fit(data())(ROWS)["grounding"]
    for size in (1, 2, 5):
        scorer = Grounding(TINY.flamingo(), k=2, batch_size=size).fit(data())
        np.testing.assert_allclose(scorer(ROWS)["grounding"], expected, atol=1e-6)
    order = [5, 2, 0, 6, 4, 1, 3]
    shuffled = data().select(order)
    scorer = Grounding(TINY.flamingo(), k=2).fit(shuffled)
    scored = add_scores(shuffled, scorer, batch_size=2, num_proc=2)
    np.testing.assert_allclose(score_values(scored, "grounding"), expected[order], atol=1e-6)
    made = read_provenance(scored)["grounding"]
    assert (made.easy, made.arguments["k"], made.arguments["reduction"]) == ("high", 2, "mean")
    assert "fitted" in made.arguments


def test_processes_share_what_was_drawn(tmp_path):
    scored = add_scores_sharded(data(), Grounding(TINY.flamingo(), k=2), tmp_path)
    expected = Grounding(TINY.flamingo(), k=2).fit(data())(ROWS)["grounding"]
    np.testing.assert_allclose(score_values(scored, "grounding"), expected, atol=1e-6)


def test_the_draw_is_of_different_images_that_can_be_read():
    def drawn(rows, **options):
        return [image.tobytes() for image in Grounding(TINY.git(), **options).fit(rows).other_images_]

    assert drawn(data(), k=2) == drawn(data(), k=2)
    assert {tuple(drawn(data(), k=1, seed=seed)) for seed in range(8)} != {tuple(drawn(data(), k=1))}
    copies = [IMAGES[0], *[{"bytes": b"no picture", "path": None}] * 2, IMAGES[1], IMAGES[0], IMAGES[0], IMAGES[2]]
    every = {IMAGES[number]["bytes"] for number in range(3)}
    assert set(drawn(data(image=copies, image_id=list("abcdefg")), k=2)) == every
    assert set(drawn(data(image=copies, image_id=None), k=2)) == every  # by row


def test_images_that_are_files_or_decoded(tmp_path):
    names = []
    for number, image in enumerate(IMAGES):
        names.append(str(tmp_path / f"{number}.png"))
        PILImage.open(io.BytesIO(image["bytes"])).save(names[-1])
    rows = data(image=[names[number] for number in (0, 0, 1, 2, 3, 4, 1)])
    expected = Grounding(TINY.flamingo(), k=2).fit(data())(ROWS)["grounding"]
    scored = add_scores(rows, Grounding(TINY.flamingo(), k=2).fit(rows))
    np.testing.assert_allclose(score_values(scored, "grounding"), expected, atol=1e-6)


def test_an_image_is_encoded_once_in_a_batch(monkeypatch):
    seen, encode = [], CaptionGitModel.encode_images
    monkeypatch.setattr(
        CaptionGitModel, "encode_images", lambda self, pixels, *rest: seen.append(len(pixels)) or encode(self, pixels)
    )
    Grounding(TINY.git(), k=2).fit(data())(ROWS)
    assert sorted(seen) == [1, 1, 1, 5]  # the three that were drawn, and those of all rows


def test_regions():
    rows = {"image_id": ["0", "1", "2", "9"], "caption": ["a red ball", "a dog", "two cats", "a mat"]}
    regions = TINY.region_archive()
    scorer = Grounding(TINY.region_transformer(), k=2, regions=regions).fit(Dataset.from_dict(rows))
    assert set(scorer.other_images_) == {"0", "1", "2"}  # of 9 there are none
    found = scorer(rows)["grounding"]
    assert np.isnan(found[3])
    loss = ModelLoss(TINY.region_transformer(), reduction="mean", regions=regions)
    for number, (image_id, caption) in enumerate(zip(*rows.values(), strict=True)):
        if number < 3:
            ids = [*sorted({"0", "1", "2"} - {image_id}), image_id]
            *others, own = loss({"image_id": ids, "caption": [caption] * 3})["model_loss"].astype(np.float64)
            assert found[number] == pytest.approx(np.mean(others) - own, abs=3e-6)
    with pytest.raises(ValueError, match=r"3 different images can be read in `image_id` of 4 rows, and `k=3` needs 4"):
        Grounding(TINY.region_transformer(), k=3, regions=regions).fit(Dataset.from_dict(rows))


def test_a_second_fit_holds():
    scorer = Grounding(TINY.flamingo(), k=1, seed=0).fit(data().select([0, 2]))
    before = scorer(ROWS)["grounding"]
    after = scorer.fit(data().select([3, 4]))(ROWS)["grounding"]
    assert np.abs(before - after).max() > 1e-4
    np.testing.assert_allclose(after, naive(scorer, "flamingo"), atol=3e-6)


def test_mistakes():
    with pytest.raises(ValueError, match=r"5 different images can be read in `image` of 7 rows, and `k=5` needs 6"):
        Grounding(TINY.git(), k=5).fit(data())
    with pytest.raises(TypeError, match=r"`Grounding\.fit` was given an IterableDataset .*without `streaming=True`"):
        Grounding(TINY.git()).fit(data().to_iterable_dataset())
    with pytest.raises(ValueError, match=r"`image` .* not in the data.*`Grounding\.fit` draws"):
        Grounding(TINY.git()).fit(data(image=None))
    with pytest.raises(RuntimeError, match="Grounding was used before `fit`"):
        Grounding(TINY.git())(ROWS)
