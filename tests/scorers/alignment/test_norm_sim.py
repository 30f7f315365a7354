"""Norms of an image's cosines with target images: against the released code's formula, for targets of any kind."""

from __future__ import annotations

import logging

import any_scorer as ANY
import numpy as np
import pytest
from datasets import Dataset

from hf_curriculum import add_scores
from hf_curriculum.scorers.alignment.clip import image_vectors
from hf_curriculum.scorers.alignment.norm_sim import NormSim
from hf_curriculum.scoring.per_image import add_embeddings

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(50, 16)).astype(np.float32)
TARGETS = RNG.normal(size=(300, 16)).astype(np.float32)


def released(images, targets, p):
    """The released code's formula in float64: the norm of each row of cosines."""
    images, targets = (side.astype(np.float64) for side in (images, targets))
    images, targets = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in (images, targets))
    return np.linalg.norm(images @ targets.T, ord=p, axis=1)


@pytest.mark.parametrize("p", [2, np.inf])
def test_it_is_the_released_formula(p, tmp_path):
    np.save(tmp_path / "targets.npy", TARGETS)
    data = Dataset.from_dict({"v": list(IMAGES)})
    expected = released(IMAGES, TARGETS, p)
    for targets in (tmp_path / "targets.npy", str(tmp_path / "targets.npy"), TARGETS, TARGETS.tolist()):
        found = add_scores(data, NormSim(targets, p, image_embedding="v"))["norm_sim"][:]
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    few = NormSim(TARGETS[:3], p, image_embedding="v")({"v": list(IMAGES)})["norm_sim"]
    np.testing.assert_allclose(few, released(IMAGES, TARGETS[:3], p), rtol=2e-6)


def test_targets_of_a_data_set_and_images_by_a_clip(tmp_path):
    data, targets = ANY.data(), ANY.data(2, image=ANY.PNGS[2:], image_id=["a", "b"]).remove_columns("image_embedding")
    targets = add_embeddings(targets, folder=tmp_path)
    scored = add_scores(data, NormSim(targets))
    images = [row["image"] for row in data]
    expected = released(image_vectors(images), image_vectors([ANY.PNGS[2], ANY.PNGS[3]]), np.inf)
    np.testing.assert_allclose(scored["norm_sim"][:], expected, rtol=1e-4)
    assert expected[4:] == pytest.approx(1)  # a target itself
    lists = NormSim(targets, image_column="images", aggregate="min")({"images": [ANY.PNGS[:3]]})["norm_sim"]
    np.testing.assert_allclose(lists, expected[:4].min(), rtol=1e-4)
    given = {"v": [*image_vectors(images)]}
    own = Dataset.from_dict({"v": targets["image_embedding"][:]})
    np.testing.assert_allclose(NormSim(own, image_embedding="v")(given)["norm_sim"], expected, rtol=1e-4)


def test_provenance_tells_other_targets_apart(tmp_path):
    np.save(tmp_path / "targets.npy", TARGETS)
    first = NormSim(tmp_path / "targets.npy", image_embedding="v").describe()
    assert first.arguments["targets"]["vectors"] == 300
    assert first.arguments["targets"]["file"] == str(tmp_path / "targets.npy")
    assert (first.model, first.backend, first.arguments["p"]) == (None, None, "inf")
    np.save(tmp_path / "targets.npy", TARGETS[::-1])
    assert NormSim(tmp_path / "targets.npy", image_embedding="v").describe() != first
    assert NormSim(TARGETS, image_embedding="v", model="org/name").describe().model == "org/name"


def test_targets_without_direction_are_left_out(caplog):
    targets = [[0.0, 1.0], None, [0.0, 0.0], [np.nan, 1.0]]
    with caplog.at_level(logging.WARNING):
        scorer = NormSim(targets, image_embedding="v")
    assert "3 of 4 targets are missing, zero or not finite" in caplog.text
    assert scorer({"v": [[3.0, 4.0]]})["norm_sim"] == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("targets", "options", "error", "message"),
    [
        ([], {}, ValueError, "None of the 0 vectors of `targets` has a direction"),
        ([[0.0, 0.0], None], {}, ValueError, "None of the 2 vectors of `targets` has a direction"),
        (np.ones(3), {}, TypeError, "`targets` does not hold one list of numbers per row"),
        ([[1.0], [1.0, 2.0]], {}, ValueError, "`targets` have 1 to 2 numbers"),
        (TARGETS, {"p": 1}, ValueError, "`p` is 1. It is one of 2, 'inf'"),
        ("nowhere.npy", {}, FileNotFoundError, "no file 'nowhere.npy'"),
        (Dataset.from_dict({"w": [[1.0]]}), {}, ValueError, "`v` is not in the data.* by `add_embeddings"),
    ],
)
def test_targets_that_are_none(targets, options, error, message):
    with pytest.raises(error, match=message):
        NormSim(targets, image_embedding="v", **options)


def test_a_file_that_is_no_array_and_vectors_of_another_model(tmp_path):
    (tmp_path / "x.npy").write_text("no array")
    with pytest.raises(ValueError, match=r"x\.npy is damaged .*`targets` is an \.npy file"):
        NormSim(tmp_path / "x.npy", image_embedding="v")
    with pytest.raises(ValueError, match="`v` have 2 numbers and the targets 16: they are of two models"):
        NormSim(TARGETS, image_embedding="v")({"v": [[1.0, 2.0]]})
