from __future__ import annotations

import multiprocessing
import os

import chat_models
import datasets
import numpy as np
import pytest
import tiny_models as TINY
import torch
from datasets import Dataset
from PIL import Image

from hf_curriculum import (
    CLIPSimilarity,
    Grounding,
    LanguageModelLoss,
    ModelLoss,
    Scorer,
    add_scores,
)
from hf_curriculum.data.images import UnreadableImageError
from hf_curriculum.scorers.alignment.vilt import ViLTSimilarity
from hf_curriculum.scorers.visual.class_probability import ClassProbability
from hf_curriculum.scorers.visual.images import (
    batches_of_one_size,
    distinct_images,
    image_workers,
    open_image,
    read_ahead,
    read_images,
)
from hf_curriculum.scorers.visual.proposals import RegionProposals


def test_rows_without_an_id_have_an_image_of_their_own():
    batch = {"image": list("pqrst"), "image_id": ["1", None, "1", None, "0"]}
    found = distinct_images(batch, "image", np.array([True, True, True, True, False]))
    assert found == [("p", [0, 2]), ("q", [1]), ("s", [3])]


def test_whole_numbers_are_ids_too():
    batch = {"image": list("pqr"), "image_id": [1, 0, 1]}
    assert distinct_images(batch, "image", np.ones(3, bool)) == [("p", [0, 2]), ("q", [1])]


def test_images_of_one_size_are_batched():
    tall, wide = torch.zeros(3, 2, 1), torch.zeros(3, 1, 2)
    batches = list(batches_of_one_size([(tall, [0]), (wide, [1, 2]), (tall, [3])], 2))
    assert [[row for row, _ in batch] for batch in batches] == [[1, 2], [0, 3]]
    assert [image.shape for batch in batches for _, image in batch] == [wide.shape] * 2 + [tall.shape] * 2


def test_what_cannot_be_opened_is_left_out_and_counted(caplog):
    batch = {"image": [b"no image", Image.new("RGB", (2, 1)), b"nor this"]}
    scorer = RegionProposals(name="boxes")
    read = read_images(scorer, batch, "image", np.ones(3, bool), open_image)
    assert [(image.size, rows) for image, rows in read] == [((2, 1), [1])]
    assert "`boxes`: 2 images cannot be scored (NaN). The first: an image given as bytes" in caplog.text


class Reader(Scorer):
    """Which process reads each image."""

    columns, name, decode_false = ("image",), "process", ("image",)

    def score(self, batch, rank):
        found = np.full(len(batch["image"]), np.nan)
        for process, rows in read_images(self, batch, "image", np.ones(len(found), bool), self.read):
            found[rows] = process
        return found

    def read(self, stored):
        open_image(stored)
        return os.getpid()


@pytest.fixture(scope="module")
def photographs():
    """Forty captions of twenty images, of two sizes; the fourth is damaged."""
    images = [TINY.png(16 + 8 * (seed % 2), 16, seed) for seed in range(20)]
    images[3] = {"bytes": b"no image", "path": None}
    rows = {"image": [image for image in images for _ in range(2)], "image_id": [str(row // 2) for row in range(40)]}
    rows |= {"caption": TINY.TEXTS * 10, "label": [row % 3 for row in range(40)]}
    return Dataset.from_dict(rows).cast_column("image", datasets.Image())


def test_the_same_processes_read_all_batches_and_end(photographs):
    scores = add_scores(photographs, Reader(), batch_size=10, num_workers=2)["process"][:]
    processes = {int(process) for process in scores if process == process}
    assert len(processes) == 2
    assert os.getpid() not in processes
    assert not processes & {child.pid for child in multiprocessing.active_children()}
    assert {int(process) for process in add_scores(photographs, Reader())["process"][:6]} == {os.getpid()}


SCORERS = {
    "clip": lambda: CLIPSimilarity(batch_size=4),
    "vilt": lambda: ViLTSimilarity(TINY.vilt(), batch_size=4),
    "captioner": lambda: ModelLoss(TINY.git(), batch_size=4),
    "classifier": lambda: ClassProbability(TINY.classifier(), batch_size=4),
    "zero_shot": lambda: ClassProbability("scenes_clip", prompts="a {label}", classes=["ball", "dog", "cube"]),
    "function": lambda: ClassProbability(lambda images: np.full((len(images), 4), 0.25)),
    "proposals": lambda: RegionProposals(min_size=2),
}


@pytest.mark.parametrize("scorer", SCORERS)
def test_scores_do_not_depend_on_who_reads(photographs, scorer):
    made = SCORERS[scorer]()
    alone = add_scores(photographs, made, batch_size=16)
    shared = add_scores(photographs, made, batch_size=16, num_workers=2, load_from_cache_file=False)
    for name in made.outputs:
        expected = np.array(alone[name])
        assert np.flatnonzero(np.isnan(expected)).tolist() == [6, 7]
        np.testing.assert_array_equal(np.array(shared[name]), expected)


def test_chats_are_prepared_by_others_too(caplog):
    chats = chat_models.dialogues()
    scorers = [ModelLoss(chat_models.llava(), batch_size=2), Grounding(chat_models.llava(), batch_size=2, k=1)]
    scorers[1].fit(chats)
    alone = add_scores(chats, scorers, batch_size=4)
    shared = add_scores(chats, scorers, batch_size=4, num_workers=2, load_from_cache_file=False)
    for name in ("model_loss", "grounding"):
        assert np.isfinite(alone[name]).any()
        np.testing.assert_array_equal(np.array(shared[name]), np.array(alone[name]))


def test_an_error_is_the_one_that_was_raised(photographs):
    class Refuses(Reader):
        def read(self, stored):
            raise KeyError("of mine")

    with pytest.raises(KeyError, match=r"^'of mine'$"):
        add_scores(photographs, Refuses(), num_workers=1)
    with image_workers(2):
        found = list(read_ahead(Reader(), [stored(1), b"none", stored(2)], open_image))
    assert isinstance(found[1], UnreadableImageError)
    assert [image.size for image in found[::2]] == [(1, 1), (2, 1)]


def stored(width):
    return TINY.png(1, width)


def test_what_does_not_go_together(photographs, monkeypatch):
    with pytest.raises(ValueError, match=r"num_workers=2 and num_proc=2 were given.*Leave one of them out"):
        add_scores(photographs, Reader(), num_workers=2, num_proc=2)
    with pytest.raises(ValueError, match=r"`num_workers=2` does not go with an iterable data set"):
        add_scores(photographs.to_iterable_dataset(), Reader(), num_workers=2)
    with pytest.raises(ValueError, match=r"image_workers\(num_workers=-1\) is not possible"):
        add_scores(photographs, Reader(), num_workers=-1)
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    with pytest.raises(ValueError, match="num_workers=2 was given, and this system cannot fork"):
        add_scores(photographs, Reader(), num_workers=2)


PRECISE = {
    "vilt": lambda dtype: ViLTSimilarity(TINY.vilt(), dtype=dtype),
    "captioner": lambda dtype: ModelLoss(TINY.git(), dtype=dtype),
    "classifier": lambda dtype: ClassProbability(TINY.classifier(), dtype=dtype),
    "clip": lambda dtype: CLIPSimilarity(dtype=dtype),
    "text": lambda dtype: LanguageModelLoss(TINY.gpt2(), dtype=dtype),
}


@pytest.mark.parametrize("scorer", PRECISE)
def test_scores_in_bfloat16(photographs, scorer):
    exact, rough = (PRECISE[scorer](dtype) for dtype in ("float32", "bfloat16"))
    column = exact.name
    scores, rounded = (np.array(add_scores(photographs, each)[column]) for each in (exact, rough))
    assert (scores != rounded)[np.isfinite(scores)].any()
    np.testing.assert_allclose(rounded, scores, rtol=0.05, atol=0.05)
    assert rough.describe().arguments["dtype"] == "bfloat16"
    with pytest.raises(ValueError, match="`dtype` is 'float8'"):
        PRECISE[scorer]("float8")
