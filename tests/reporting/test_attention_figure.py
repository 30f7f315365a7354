"""Where a noun looks, drawn on the regions."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from contrastive_task import make_aligner, make_pairs, region_collator
from matplotlib.patches import Rectangle
from PIL import Image

from hf_curriculum.data.regions.base import Regions
from hf_curriculum.reporting.figures.canvas import to_png
from hf_curriculum.tasks.alignment.figures import region_attention

FOUND = Regions(
    "9",
    boxes=np.float32([[0, 0, 20, 20], [30, 5, 70, 40], [5, 30, 25, 50]]),
    features=np.zeros((3, 2), np.float32),
    classes=("tree", "dog", "$x$"),
)
IMAGE = Image.new("RGB", (80, 60), "white")


def test_the_heaviest_region_is_the_most_opaque_and_named():
    figure = region_attention(IMAGE, FOUND, [0.1, 0.7, 0.2, 0.0], "a *dog* by a $tree$", labelled=2)
    axes = figure.axes[0]
    width, height = figure.get_size_inches()
    assert height == pytest.approx(width * 60 / 80 + 0.5)  # the image's sides, and room for the title
    assert [text.get_text() for text in axes.texts] == ["dog 70 %", "$x$ 20 %"]
    boxes = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    assert [patch.get_xy() for patch in boxes[::2]] == [(0, 0), (5, 30), (30, 5)]  # the heaviest on top
    assert [patch.get_alpha() for patch in boxes[1::2]] == pytest.approx([0.05, 0.1, 0.35])
    pixels = np.asarray(Image.open(io.BytesIO(to_png(figure))).convert("RGB"))
    assert pixels.std() > 5


def test_it_draws_what_a_model_attends_to():
    pairs, store = make_pairs(2)
    model, batch = make_aligner().eval(), region_collator(store)([pairs[0], pairs[2]])
    weights = model(**batch, output_attentions=True).attentions[0, 0].mean(0).detach()
    assert torch.allclose(weights.sum(), torch.tensor(1.0))
    assert weights[2] == 0  # padding
    two = Regions("image 0", boxes=FOUND.boxes[:2] / 100, normalised=True)
    assert len(region_attention(IMAGE, two, weights).axes[0].patches) == 4


def test_what_cannot_be_drawn():
    for weights in ([0.5, 0.5], [[1, 0, 0]], [1.2, -0.2, 0], [np.nan, 0.5, 0.5]):
        with pytest.raises(ValueError, match="Each region has one share"):
            region_attention(IMAGE, FOUND, weights)
    with pytest.raises(ValueError, match="have no boxes"):
        region_attention(IMAGE, Regions("9", features=np.zeros((1, 2), np.float32)), [1.0])
