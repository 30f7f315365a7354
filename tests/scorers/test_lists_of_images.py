"""Scorers of images on rows that have a list of them: each image by itself, and then the row's aggregate."""

from __future__ import annotations

import logging

import any_scorer as ANY
import numpy as np
import pytest
import tiny_models as TINY
from datasets import Dataset, Features, Image, LargeList, List, Value, load_from_disk
from PIL import Image as PILImage

from hf_curriculum import (
    ClassProbability,
    CLIPSimilarity,
    RegionProposals,
    Scorer,
    ViLTSimilarity,
    VisualEntropy,
    add_scores,
    add_scores_sharded,
    read_provenance,
)
from hf_curriculum.data.image_files import with_stored

NAN = np.nan
A, B, C, D = ANY.PNGS
CORRUPT = {"bytes": b"no picture", "path": None}
LISTS = [[A, B], [], [C], None, [A, CORRUPT], [B, C, D], [None]]
WORDS = ["a red ball", "a cat", "two dogs", "a mat", "a cup", "the dog", "a man"]
ROWS = {"images": LISTS, "caption": WORDS, "image_id": ["x"] * 7, "label": [0, 1, 2, 0, 1, 2, 0]}
FEATURES = Features(
    {"images": List(Image()), "caption": Value("string"), "image_id": Value("string"), "label": Value("int64")}
)
MAKE = {
    "clip_similarity": lambda **options: CLIPSimilarity(image_column="images", **options),
    "vilt_similarity": lambda **options: ViLTSimilarity(TINY.vilt(), image_column="images", **options),
    "visual_entropy": lambda **options: VisualEntropy(ANY.yolos(), column="images", **options),
    "class_probability": lambda **options: ClassProbability(TINY.classifier(), image_column="images", **options),
    "region_count": lambda **options: RegionProposals(min_size=0, column="images", **options),
}
REDUCE = {"mean": np.mean, "max": np.max, "min": np.min}


def naive(scorer, aggregate):
    """Each image in a batch of its own."""
    found = {name: [] for name in scorer.outputs}
    for row, images in enumerate(LISTS):
        others = {name: [values[row]] for name, values in ROWS.items() if name != "images"}
        alone = [scorer({"images": [image], **others}) for image in images or ()]
        for name in found:
            found[name].append(REDUCE[aggregate]([each[name][0] for each in alone]) if alone else NAN)
    return found


@pytest.mark.parametrize("aggregate", REDUCE)
@pytest.mark.parametrize("name", MAKE)
def test_a_list_is_scored_image_by_image(name, aggregate):
    scorer = MAKE[name](aggregate=aggregate)
    expected = naive(scorer, aggregate)
    assert np.isfinite(expected[name]).tolist() == [True, False, True, False, False, True, False]
    assert len({*np.array(expected[name])[[0, 2, 5]].tolist()}) > 1
    for column, values in scorer(ROWS).items():
        assert values.dtype == np.float32
        np.testing.assert_allclose(values, values.dtype.type(expected[column]), rtol=1e-5)


@pytest.mark.parametrize("name", MAKE)
def test_of_one_image_it_is_that_images_score(name):
    rows = {**ROWS, "images": [A, B, C, D, CORRUPT, None, A], "image_id": list("abcdefa")}
    lists = {**rows, "images": [image and [image] for image in rows["images"]]}
    for column, values in MAKE[name]()(lists).items():
        np.testing.assert_allclose(values, MAKE[name]()(rows)[column], rtol=1e-5)


@pytest.mark.parametrize("kind", [List, LargeList])
def test_add_scores_on_disk_and_on_a_stream(kind, tmp_path, caplog):
    data = Dataset.from_dict(ROWS, Features({**FEATURES, "images": kind(Image())}))
    data.save_to_disk(tmp_path / "data")
    data = load_from_disk(tmp_path / "data")
    scorer = MAKE["class_probability"]
    expected = np.float32(naive(scorer(), "mean")["class_probability"])
    with caplog.at_level(logging.WARNING):
        scored = add_scores(data.shuffle(seed=1), scorer())
    assert "images cannot be scored (NaN)" in caplog.text
    order = [WORDS.index(word) for word in scored["caption"]]
    np.testing.assert_allclose(scored["class_probability"][:], expected[order], rtol=1e-5)
    assert scored.features["images"] == kind(Image())
    sharded = add_scores_sharded(data, scorer(), tmp_path / "parts", rank=0, world_size=1)
    np.testing.assert_allclose(sharded["class_probability"][:], expected, rtol=1e-5)
    stream = add_scores(data.select([0, 2, 4]).to_iterable_dataset(), scorer(), batch_size=2)
    assert stream.features["images"] == kind(Image())
    found = [row["class_probability"] for row in stream.cast_column("images", kind(Image(decode=False)))]
    np.testing.assert_allclose(found, expected[[0, 2, 4]], rtol=1e-5)


class Widths(Scorer):
    """One that reads decoded lists itself."""

    columns, name = ("images",), "widths"

    def score(self, batch, rank):
        return [sum(image.width for image in images) for images in batch["images"]]


def test_a_scorer_of_ones_own_gets_the_list_decoded():
    data = Dataset.from_dict({"images": [[A, B], [C]]}, Features({"images": List(Image())}))
    assert add_scores(data, Widths())["widths"][:] == [64, 32]
    stream = add_scores(data.to_iterable_dataset(), Widths())
    assert [row["widths"] for row in stream] == [64, 32]
    assert next(iter(stream))["images"][0].size == (32, 24)


def test_images_in_records_on_a_stream():
    class Heights(Scorer):
        columns, name = ("pages",), "heights"

        def score(self, batch, rank):
            return [sum(page["image"].height for page in pages) for pages in batch["pages"]]

    features = Features({"pages": List({"image": Image(), "number": Value("int64")})})
    data = Dataset.from_dict({"pages": [[{"image": A, "number": 1}, {"image": B, "number": 2}]]}, features)
    assert next(iter(add_scores(data.to_iterable_dataset(), Heights())))["heights"] == 48


def test_images_as_stored_are_not_written_again():
    data = Dataset.from_dict(ROWS, FEATURES)
    stored = with_stored(data, "images")
    assert stored.features["images"] == List(Image(decode=False))
    assert stored.data.column("images").chunk(0).equals(data.data.column("images").chunk(0))
    assert stored.data.nbytes == data.data.nbytes
    assert stored[0]["images"] == [A, B]
    assert data.features["images"] == List(Image())
    assert with_stored(stored, "images") is stored
    assert with_stored(data, "caption") is data


def test_images_that_are_arrays_are_no_lists():
    pixels = np.asarray(PILImage.new("RGB", (40, 30)))
    assert RegionProposals()({"image": [pixels]})["region_count"].tolist() == [1]


def test_vectors_are_no_lists_of_images():
    scorer = CLIPSimilarity(image_embedding="v", text_embedding="t")
    assert scorer({"v": [[1.0, 0.0]], "t": [[3.0, 4.0]]})["clip_similarity"] == pytest.approx([0.6])


@pytest.mark.parametrize("name", MAKE)
def test_unknown_aggregates(name):
    with pytest.raises(ValueError, match=r"`aggregate` is 'sum'. It is one of 'mean', 'max', 'min'"):
        MAKE[name](aggregate="sum")


def test_an_aggregate_without_images():
    with pytest.raises(ValueError, match=r"`aggregate='max'` is of a row's images, and this VisualEntropy reads p"):
        VisualEntropy(probabilities="p", aggregate="max")


def test_provenance_says_how():
    data = Dataset.from_dict({"images": [[A, B]], "image": [A]}, Features({"images": List(Image()), "image": Image()}))
    scored = add_scores(data, RegionProposals(column="images", aggregate="max"))
    assert read_provenance(scored)["region_count"].arguments["aggregate"] == "max"
    assert RegionProposals(column="images").arguments()["aggregate"] == "mean"
    assert "aggregate" not in RegionProposals().arguments()
