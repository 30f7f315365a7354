"""Names of images that are compared one to one, and ids that stand for one image each."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import datasets
import numpy as np
import pytest
import tiny_models
from datasets import Dataset, concatenate_datasets
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from hf_curriculum import (
    IID,
    ByImage,
    CaptionCollator,
    CaptionLength,
    add_scores,
    concat_scored,
    load_captioned,
    make_plan,
)
from hf_curriculum.data import identity
from hf_curriculum.data.identity import find_ids, match_names, validate_image_ids
from hf_curriculum.data.processors import make_image_processor
from hf_curriculum.data.regions.extract import extract_regions
from hf_curriculum.evaluation.generate import references
from hf_curriculum.models.vision_features import _distinct
from hf_curriculum.scorers.visual.images import distinct_images
from hf_curriculum.tasks.captioning import CaptionSuite

E_COMPOSED, E_DECOMPOSED = (unicodedata.normalize(form, "café/é.jpg") for form in ("NFC", "NFD"))


@pytest.mark.parametrize(
    ("names", "targets", "pairs"),
    [
        (["a/1.jpg", "b/1.jpg"], ["a/1.jpg", "b/1.jpg"], {"a/1.jpg": "a/1.jpg", "b/1.jpg": "b/1.jpg"}),
        (["b/1.jpg"], ["x/b/1.jpg", "x/a/1.jpg"], {"b/1.jpg": "x/b/1.jpg"}),
        (["x/b/1.jpg", "x/a/1.jpg"], ["b/1.jpg"], {"x/b/1.jpg": "b/1.jpg"}),
        ([r"a\1.jpg", "./b//1.jpg"], ["a/1.jpg", "b/1.jpg"], {r"a\1.jpg": "a/1.jpg", "./b//1.jpg": "b/1.jpg"}),
        ([E_COMPOSED], [E_DECOMPOSED], {E_COMPOSED: E_DECOMPOSED}),
        (["a/1.JPG", "2.jpeg"], ["1.xml", "2.xml"], {"a/1.JPG": "1.xml", "2.jpeg": "2.xml"}),
        (["v1.0_a", "v1.0_b.jpg"], ["v1.0_b", "v1.0_a.png"], {"v1.0_a": "v1.0_a.png", "v1.0_b.jpg": "v1.0_b"}),
        (["v1.0_a"], ["v1.0_b", "v1"], {}),
        (["x/1.jpg", "1.jpg"], ["1.xml"], {"1.jpg": "1.xml"}),
        (["1.png"], ["a/1.JPG"], {}),
        (["1.jpeg"], ["a/1.JPG"], {"1.jpeg": "a/1.JPG"}),
        (["a/1.png", "1.jpg"], ["a/1.xml", "1.xml"], {"a/1.png": "a/1.xml", "1.jpg": "1.xml"}),
        (["1.jpg", "a/1.jpg"], ["1.jpg"], {"1.jpg": "1.jpg"}),
        (["a/1.jpg"], ["b/1.jpg"], {}),
        (["train/1.jpg", "val/1.jpg"], ["train/1.jpg", "test/1.jpg"], {"train/1.jpg": "train/1.jpg"}),
        (["a/1.jpg"], ["xa/1.jpg", "1.jpg_"], {}),
        (["val2014/COCO_val2014_000000000009.jpg"], ["train2017/000000000009.jpg"], None),
        (["1.jpg", r"a\1.jpg"], ["a/1.jpg", r"a\1.jpg"], {r"a\1.jpg": r"a\1.jpg"}),
    ],
)
def test_names_that_are_one(names, targets, pairs):
    found = match_names(names, targets)
    assert found.pairs == (dict(zip(names, targets, strict=True)) if pairs is None else pairs)


@pytest.mark.parametrize(
    ("names", "targets", "ambiguous"),
    [
        (["a/1.jpg", "b/1.jpg"], ["1.jpg"], {"a/1.jpg": ("1.jpg", "a/1.jpg", "b/1.jpg")}),
        (["1.jpg"], ["a/1.jpg", "b/1.jpg"], {"1.jpg": ("1.jpg", "a/1.jpg", "b/1.jpg")}),
        (["1.jpg", "1.png"], ["1.xml"], {"1.jpg": ("1", "1.jpg", "1.png")}),
        (["1"], ["1.jpg", "1.png"], {"1": ("1", "1.jpg", "1.png")}),
        (["a/1.jpg"], ["a/1.jpg".replace("/", "\\"), "./a/1.jpg"], {"a/1.jpg": ("a/1.jpg", "a\\1.jpg", "./a/1.jpg")}),
        (["train/COCO_train2014_000000000009.jpg", "val/COCO_val2014_000000000009.jpg"], ["000000000009.jpg"],
         {"val/COCO_val2014_000000000009.jpg": (
             "000000000009", "train/COCO_train2014_000000000009.jpg", "val/COCO_val2014_000000000009.jpg")}),
    ],
)  # fmt: skip
def test_a_short_name_that_stands_for_two_is_the_name_of_neither(names, targets, ambiguous):
    found = match_names(names, targets)
    assert found.pairs == {}
    assert {name: found.ambiguous[name] for name in ambiguous} == ambiguous
    with pytest.raises(
        ValueError, match=r"in x\.json is cannot be known: .* stands for .* and .*folders on both sides"
    ):
        found.validate("x.json")


@given(*[st.lists(st.lists(st.sampled_from("ab1"), min_size=1, max_size=3).map("/".join), max_size=5)] * 2)
def test_pairs_are_one_to_one_and_ends_of_each_other(names, targets):
    found = match_names(names, targets)
    assert len(set(found.pairs.values())) == len(found.pairs)
    assert not found.pairs.keys() & found.ambiguous.keys()
    for name, target in found.pairs.items():
        assert f"/{name}".endswith(f"/{target}") or f"/{target}".endswith(f"/{name}")
        if name != target:
            short = min(name, target, key=len)
            for side in (set(names), set(targets)):
                assert sum(f"/{one}".endswith(f"/{short}") for one in side) == 1
    assert set(names) & set(targets) <= found.pairs.keys()


@pytest.mark.parametrize(
    ("names", "store", "pairs", "ambiguous"),
    [
        (["x/COCO_val2014_000000000001.jpg", "some/0.png", "2"], "012", ["1", "0", "2"], {}),
        (["p/a/1.jpg", "p/b/1.jpg"], {"a/1.jpg", "b/1"}, ["a/1.jpg", "b/1"], {}),
        (["1.jpg", "a/1.jpg"], {"1.jpg"}, ["1.jpg"], {}),
        (["dog_12.jpg", "cat_12.jpg"], {"12"}, [], {"cat_12.jpg": ("12", "dog_12.jpg", "cat_12.jpg")}),
        (["a/1.jpg", "b/1.jpg"], {"1"}, [], {"a/1.jpg": ("1", "a/1.jpg", "b/1.jpg")}),
    ],
)
def test_ids_in_a_store_that_does_not_list_them(names, store, pairs, ambiguous):
    found = find_ids(names, store)
    assert found.pairs == dict(zip(names, pairs, strict=False))
    assert {name: found.ambiguous[name] for name in ambiguous} == ambiguous


@pytest.fixture
def two(tmp_path, monkeypatch):
    """Two sources that both number their images from 1, of other images."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    parts = []
    for place, colours in (("one", ("red", "blue")), ("other", ("green", "white"))):
        (tmp_path / place).mkdir()
        for number, colour in enumerate(colours, 1):
            Image.new("RGB", (8, 8), colour).save(tmp_path / place / f"{number}.png")
        images = [{"id": number, "file_name": f"{number}.png"} for number in (1, 2)]
        captions = [{"id": n, "image_id": n, "caption": f"a {colours[n - 1]} square"} for n in (1, 2)]
        (tmp_path / place / "captions.json").write_text(json.dumps({"images": images, "annotations": captions}))
        parts.append(load_captioned(tmp_path / place))
    return parts


@pytest.mark.parametrize("images", [None, False])
def test_one_file_under_several_ids_is_a_warning(tmp_path, two, caplog, images):
    rows = "one/1.png,a,1\n./one/1.png,b,2\nother/1.png,c,3\nother/1.png,d,4\n"
    (tmp_path / "t.csv").write_text(f"file_name,caption,image_id\n{rows}")
    load_captioned(tmp_path / "t.csv", images=images)
    file = str(tmp_path / "one/1.png") if images is None else "one/1.png"
    assert f"2 files of images have several ids: {file!r} has the `image_id` '1' and '2'" in caplog.text
    caplog.clear()
    load_captioned(tmp_path / "t.csv", images=images, columns={"image_id": "file_name"})
    assert "several ids" not in caplog.text


def test_one_file_of_two_images_of_coco_is_a_warning(tmp_path, two, caplog):
    images = [{"id": number, "file_name": "one/1.png"} for number in (1, 2)]
    annotations = [{"id": number, "image_id": number, "caption": "a"} for number in (1, 2)]
    (tmp_path / "captions.json").write_text(json.dumps({"images": images, "annotations": annotations}))
    load_captioned(tmp_path / "captions.json")
    assert "1 files of images have several ids" in caplog.text


REFUSED = r"`image_id` '1' stands for two images, .*one/1\.png' and .*other/1\.png'.*write each one's name .*data\.map"


def test_the_remedy_of_the_error_is_code_that_helps(two):
    with pytest.raises(ValueError, match=REFUSED) as caught:
        validate_image_ids(concatenate_datasets(two))
    code = next(part for part in str(caught.value).split("`") if part.startswith("data = "))
    named = {"data": two[0]}
    exec(code, named)
    validate_image_ids(joined := concatenate_datasets([named["data"], two[1]]))
    assert joined["image_id"][:] == ["coco/1", "coco/2", "1", "2"]


def make_collator():
    return CaptionCollator(tiny_models.tokenizer(), make_image_processor(8), share_images=True)


@pytest.mark.parametrize(
    "use",
    [
        lambda data, folder: CaptionSuite(data, ["rouge"]),
        lambda data, folder: references(data),
        lambda data, folder: add_scores(data, CaptionLength(), per_image="max"),
        lambda data, folder: make_plan(
            IID(batches=ByImage(1)), add_scores(data, CaptionLength()), global_batch_size=2
        ),
        lambda data, folder: make_collator()([data[0], data[2]]),
        lambda data, folder: extract_regions(data, "scenes_clip", folder / "store", grid=2),
        lambda data, folder: _distinct([data.select([0]), data.select([2])], "image"),
    ],
)
def test_one_id_of_two_images_is_refused_where_it_is_used(two, tmp_path, use):
    with pytest.raises(ValueError, match=REFUSED):
        use(concatenate_datasets(two), tmp_path)


def test_scored_data_that_numbers_alike_is_not_joined(two):
    scored = [add_scores(part, CaptionLength()) for part in two]
    with pytest.raises(ValueError, match=REFUSED):
        concat_scored(scored)
    apart = scored[1].map(lambda row: {"image_id": f"other/{row['image_id']}"})
    assert concat_scored([scored[0], apart])["image_id"][:] == ["1", "2", "other/1", "other/2"]


@pytest.mark.parametrize("embedded", [False, True])
def test_content_decides_not_the_path(tmp_path, embedded):
    for name in ("a", "b", "c"):
        Image.new("RGB", (8, 8), "blue" if name == "c" else "red").save(tmp_path / f"{name}.png")

    def rows(*names):
        paths = [str(tmp_path / f"{name}.png") for name in names]
        images = [{"path": path, "bytes": Path(path).read_bytes() if embedded else None} for path in paths]
        data = Dataset.from_dict({"image": images, "image_id": ["7"] * len(names), "caption": list(names)})
        return data.cast_column("image", datasets.Image())

    validate_image_ids(rows("a", "a", "b"))
    assert make_collator()(list(rows("a", "b")))["pixel_values"].shape[0] == 1
    batch = rows("a", "b").cast_column("image", datasets.Image(decode=False))[:]
    assert len(distinct_images(batch, "image", np.ones(2, bool))) == 1
    for check in (
        validate_image_ids,
        lambda data: make_collator()(list(data)),
        lambda data: distinct_images(data.with_format(None)[:], "image", np.ones(3, bool)),
        lambda data: distinct_images(
            data.cast_column("image", datasets.Image(decode=False))[:], "image", np.ones(3, bool)
        ),
    ):
        with pytest.raises(ValueError, match=r"'7' stands for two images"):
            check(rows("a", "b", "c"))


def test_images_that_are_not_here_or_have_no_id_are_not_compared(tmp_path):
    images = [{"path": name, "bytes": None} for name in ("gone/a.png", "gone/b.png", "https://x/c.png", None)]
    data = Dataset.from_dict({"image": images, "image_id": ["1"] * 4}).cast_column("image", datasets.Image())
    validate_image_ids(data)
    assert (
        len(distinct_images(data.cast_column("image", datasets.Image(decode=False))[:], "image", np.ones(4, bool)))
        == 1
    )
    for name in "ab":
        Image.new("RGB", (8, 8), "red" if name == "a" else "blue").save(tmp_path / f"{name}.png")
    paths = [str(tmp_path / f"{name}.png") for name in "abab"]
    ids = [None, None, "", ""]
    validate_image_ids(Dataset.from_dict({"image": paths, "image_id": ids}).cast_column("image", datasets.Image()))


def test_ids_are_looked_at_once(two, monkeypatch):
    seen, chunks = [], identity._chunks
    monkeypatch.setattr(identity, "_VALID", set())
    monkeypatch.setattr(identity, "_chunks", lambda part, *more: seen.append(more) or chunks(part, *more))
    data = concatenate_datasets([two[0], two[0]])
    for _ in range(3):
        validate_image_ids(data)
    assert seen == [("image_id", None), ("image", "path")]


def test_rows_in_another_order_have_their_own_images(two):
    """As a selection has them, whose table holds more rows."""
    joined = concatenate_datasets(two)
    validate_image_ids(joined.select([3, 0]))
    with pytest.raises(ValueError, match=r"'2' stands for two images, .*other/2\.png' and .*one/2\.png'"):
        validate_image_ids(joined.select([3, 0, 1]))


def test_ids_of_texts_with_several_names_are_a_warning(two, caplog):
    """Whether they are one image is not known."""
    texts = [part.remove_columns("image") for part in two]
    references(concatenate_datasets(texts))
    assert not caplog.records
    other = texts[1].map(lambda row: {"file_name": f"other/{row['file_name']}"})
    assert references(concatenate_datasets([texts[0], other]))["1"] == ["a red square", "a green square"]
    assert "`image_id` '1' stands for two images, '1.png' and 'other/1.png', as it seems (2 ids)" in caplog.text


def test_ids_of_a_table(tmp_path, two):
    (tmp_path / "t.csv").write_text("file_name,caption,image_id\none/1.png,a,7\nother/1.png,b,7\n")
    with pytest.raises(ValueError, match=r"`image_id` '7' stands for two images"):
        load_captioned(tmp_path / "t.csv")
    data = load_captioned(tmp_path / "t.csv", columns={"image_id": "file_name"})
    assert data["image_id"][:] == ["one/1.png", "other/1.png"]
