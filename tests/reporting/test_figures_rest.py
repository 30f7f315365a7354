"""What the lines of `figures.json` do not say of a figure."""

from __future__ import annotations

import numpy as np
from figure_cases import MORE

from hf_curriculum.reporting.figures.canvas import LIGHT
from hf_curriculum.tasks.alignment.figures import vectors_by_colour


def test_the_grid_is_below_what_is_drawn():
    assert MORE["one pool"](LIGHT).axes[0].get_axisbelow() is True


def test_a_caption_is_no_formula():
    assert MORE["attention"](LIGHT).axes[0].get_title(loc="left") == "a dog"
    assert MORE["attention"](LIGHT).axes[0]._left_title.get_parse_math() is False


def test_five_captions_are_enough():
    figure = vectors_by_colour({"a": np.eye(5, dtype=np.float32)}, ["red"] * 5, projection="pca", theme=LIGHT)
    assert len(figure.axes) == 1
