"""What data in the wild hold, met by every scorer of `SCORERS`: NaN or a clear error, and no row lost or moved."""

from __future__ import annotations

import functools
import logging
import re

import any_scorer as ANY
import numpy as np
import pytest
import tiny_models as TINY
from datasets import Dataset
from PIL import Image as PILImage

from hf_curriculum import (
    ClassProbability,
    CLIPSimilarity,
    Combine,
    Concreteness,
    Grounding,
    LanguageModelLoss,
    ModelLoss,
    NounCount,
    PosTagger,
    ViLTSimilarity,
    VisualEntropy,
    add_scores,
)
from hf_curriculum.provenance import score_values
from hf_curriculum.scorers.concreteness import validate_neighbours
from hf_curriculum.scorers.text.pos_tagger import TagTraining, WordPieces, _split
from hf_curriculum.scorers.visual.detectors import ModelDetector

WHOLE = ANY.PNGS[0]["bytes"]
BROKEN = {
    "no picture": None,
    "no file": {"bytes": None, "path": "/no/such/picture.png"},
    "other bytes": {"bytes": b"this is no picture", "path": None},
    "no bytes": {"bytes": b"", "path": None},
    "half a file": {"bytes": WHOLE[: len(WHOLE) // 2], "path": None},
}
GREY = PILImage.fromarray(ANY.PIXELS[3]).convert("L")
SHAPES = {
    "one pixel": ANY.stored(PILImage.new("RGB", (1, 1), (200, 20, 20))),
    "long": ANY.stored(PILImage.new("L", (20_000, 20), 90)),
    "tall": ANY.stored(PILImage.new("L", (20, 20_000), 90)),
}
MODES = {
    "grey": ANY.stored(GREY),
    "grey, 16 bits": ANY.stored(PILImage.fromarray(np.asarray(GREY).astype(np.uint16) * 257)),
    "bilevel": ANY.stored(GREY.convert("1")),
    "palette": ANY.stored(GREY.convert("P")),
    "transparent": ANY.stored(GREY.convert("RGBA")),
    "grey, transparent": ANY.stored(GREY.convert("LA")),
    "four inks": ANY.stored(GREY.convert("CMYK"), "jpeg"),
}
LONG = " ".join(["dog ball"] * 5_000)
ODD = ["\u202eright to left", "犬が走る", "🐕🐕", "a\x00b", "e\u0301" * 50, "!?"]

each = pytest.mark.parametrize("name", ANY.NAMES)
SEEN = [name for name in ANY.NAMES if "image" in ANY.build(name).columns]  # scorers of images
READ = [name for name in ANY.NAMES if "caption" in ANY.build(name).columns]  # and of captions


EDGES = [
    (lambda given: NounCount(max_words=given), 1, 0, "max_words is at least [123]"),
    (lambda given: ModelLoss("m", max_length=given), 2, 1, "max_length is at least [123]"),
    (lambda given: ModelLoss("m", batch_size=given), 1, 0, "batch_size is at least [123]"),
    (lambda given: LanguageModelLoss("m", max_length=given), 2, 1, "max_length is at least [123]"),
    (lambda given: LanguageModelLoss("m", batch_tokens=given), 1, 0, "batch_tokens is at least [123]"),
    (lambda given: VisualEntropy(probabilities="p", top_k=given), 1, 0, "top_k is at least [123]"),
    (lambda given: Grounding("m", k=given), 1, 0, "k is at least [123]"),
    (lambda given: Concreteness(k=given), 1, 0, "k is at least [123]"),
    (lambda given: Concreteness(min_count=given), 1, 0, "min_count is at least [123]"),
    (lambda given: Combine({"a": given}), 0.01, 0.0, "The weight of `a` is 0.0"),
    (lambda given: Combine({"a": given}), 0.01, np.inf, "The weight of `a` is inf"),
    (lambda given: ClassProbability("m", batch_size=given), 1, 0, "batch_size is at least [123]"),
    (lambda given: CLIPSimilarity(batch_size=given), 1, 0, "batch_size is at least [123]"),
    (lambda given: ViLTSimilarity("m", batch_size=given), 1, 0, "batch_size is at least [123]"),
    (lambda given: ModelDetector("m", batch_size=given), 1, 0, "batch_size is at least [123]"),
    (lambda given: PosTagger("m", batch_pieces=given), 1, 0, "batch_pieces is at least [123]"),
    (lambda given: TagTraining(epochs=given), 1, 0, "`epochs` is 0"),
    (lambda given: TagTraining(learning_rate=given), 0.01, 0, "`learning_rate` is 0"),
    (lambda given: TagTraining(batch_size=given), 1, 0, "`batch_size` is 0"),
    (lambda given: WordPieces(TINY.tokenizer(), given), 3, 2, "max_length is at least [123]"),
    (lambda given: _split([["a"], ["b"], ["a"]], given, 0), 0, -0.01, "`held_out` is -0.01"),
    (lambda given: _split([["a"], ["b"], ["a"]], given, 0), 0.5, 1, "`held_out` is 1"),
    (lambda given: _split([["a"], ["b"], ["a"]], given, 0), 0.26, 0.25, r"`held_out=0.25` of 2 distinct sentences"),
    (lambda given: _split([["a"], ["b"], ["a"]], given, 0), 0.74, 0.76, r"`held_out=0.76` of 2 distinct sentences"),
    (lambda given: validate_neighbours(3, given, True), 3, 4, "each has from 1 to 3 \\(itself included"),
    (lambda given: validate_neighbours(3, given, False), 2, 3, "each has from 1 to 2 \\(itself not counted"),
    (lambda given: validate_neighbours(3, given, False), 1, 0, "0 nearest neighbours were asked for"),
]


@pytest.mark.parametrize(("make", "last", "beyond", "message"), EDGES)
def test_edges_of_what_an_option_may_be(make, last, beyond, message):
    make(last)
    with pytest.raises(ValueError, match=message):
        make(beyond)


def scored(name, data):
    scorer = ANY.build(name)
    added = add_scores(data, scorer)
    assert added["caption"][:] == data["caption"][:]  # no row lost, none moved
    assert list(added.column_names) == [*data.column_names, *scorer.outputs]
    return {column: score_values(added, column) for column in scorer.outputs}


def mixed(column, values):
    """Three good rows before and after rows that differ from good ones in `column`, each an image of its own."""
    good, count = ANY.rows(6), len(values)
    rows = {name: [*kept[:3], *(kept * count)[:count], *kept[3:]] for name, kept in good.items()}
    rows[column][3:-3] = values
    rows["image_id"][3:-3] = [f"bad {number}" for number in range(count)]
    return Dataset.from_dict(rows, features=ANY.FEATURES)


@functools.cache
def clean(name):
    return scored(name, ANY.data(6))


def check_mixed(name, column, values):
    """Scores the rows, checks that the good ones are scored as by themselves, and returns the scores of the others."""
    found = scored(name, mixed(column, values))
    for written, scores in found.items():
        assert np.isfinite(clean(name)[written]).all()
        good = np.concatenate([scores[:3], scores[-3:]])
        np.testing.assert_allclose(good, clean(name)[written], rtol=1e-4, err_msg=written)
    return {written: scores[3:-3] for written, scores in found.items()}


@pytest.mark.parametrize("name", SEEN)
def test_a_broken_image_has_no_score_and_is_counted(name, caplog):
    with caplog.at_level(logging.INFO, logger="hf_curriculum"):
        found = check_mixed(name, "image", list(BROKEN.values()))
    unscored = {
        column: [kind for kind, score in zip(BROKEN, scores, strict=True) if np.isnan(score)]
        for column, scores in found.items()
    }
    expected = {column: list(BROKEN) for column in found}
    if name == "box_count":  # counts boxes without an image, whose size is in the header of its file
        expected = {"box_count": [], "box_area": [kind for kind in BROKEN if kind != "half a file"]}
    assert unscored == expected
    for column, kinds in unscored.items():
        assert f"`{column}`: 11 rows, {len(kinds) / 11:.2%} unscored" in caplog.text


@pytest.mark.parametrize("name", [name for name in ANY.NAMES if name not in SEEN])
def test_a_broken_image_does_not_matter_where_it_is_not_read(name):
    for column, scores in check_mixed(name, "image", list(BROKEN.values())).items():
        assert np.isfinite(scores).all(), column


@pytest.mark.parametrize("name", SEEN)
def test_images_of_extreme_shape(name):
    pixel, *long = zip(*check_mixed(name, "image", list(SHAPES.values())).values(), strict=True)
    assert np.isfinite(pixel).all() or name == "region_count"  # no region of 20 pixels
    if name in ("vilt_similarity", "visual_entropy"):  # nothing is left of them after resizing
        assert np.isnan(long).all()
    else:
        assert not np.isinf(long).any()
        assert not np.isnan([scores[0] for scores in long]).any()


@pytest.mark.parametrize("name", SEEN)
def test_images_of_any_mode_are_scored(name):
    count = len(MODES)
    data = ANY.data(count, image=list(MODES.values()), image_id=list(MODES))
    for column, scores in scored(name, data).items():
        if name in ("region_count", "box_count"):
            assert not np.isnan(scores).any(), column
            continue
        assert np.isfinite(scores).all(), column
        two = {"image": [MODES["grey"], MODES["transparent"]], "image_id": ["0", "1"]}
        same = ANY.data(2, **two, caption=["a cat"] * 2, label=[0, 0])
        pair = scored(name, same)[column]
        np.testing.assert_allclose(pair[0], pair[1], rtol=1e-4)  # the same grey, in two modes


@pytest.mark.parametrize("name", READ)
def test_captions_without_text_have_no_score_and_long_or_odd_ones_no_end(name, caplog):
    blank = [None, "", "  \n"]
    found = check_mixed(name, "caption", [*blank, LONG, *ODD])
    for scores in found.values():
        assert np.isnan(scores[:3]).all()
        assert np.isfinite(scores[3])
        assert not np.isinf(scores).any()
    if name in ANY.MODELS:
        assert re.search(r"captions are longer than \d+ tokens", caplog.text)


@each
def test_no_row_can_be_scored(name, caplog):
    scorer = ANY.build(name)
    blank = {column: [None] * 3 for column in ANY.FEATURES}
    with caplog.at_level(logging.WARNING, logger="hf_curriculum"):
        added = add_scores(Dataset.from_dict(blank | {"image_id": list("abc")}, features=ANY.FEATURES), scorer)
    for column in scorer.outputs:
        assert np.isnan(score_values(added, column)).all()
        assert f"`{column}`: none of the 3 rows could be scored" in caplog.text


@each
def test_a_missing_column_is_named_before_anything_is_scored(name):
    scorer = ANY.build(name)
    for column in scorer.columns:
        with pytest.raises(ValueError, match=rf"`{column}` is not in the data.*{type(scorer).__name__} reads"):
            add_scores(ANY.data().remove_columns(column), scorer)


@pytest.mark.parametrize("name", ANY.MODELS)
def test_a_model_that_is_not_there(name, monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (tmp_path / "empty").mkdir()
    for model in ("nobody/no-such-model", str(tmp_path / "nothing"), str(tmp_path / "empty")):
        with pytest.raises(FileNotFoundError, match=f"(?s){model}.*hf download"):
            add_scores(ANY.data(), ANY.MODELS[name](model), overwrite=True)
