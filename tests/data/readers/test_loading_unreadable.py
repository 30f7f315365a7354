"""Images that cannot be decoded."""

import json
import logging

import datasets
import pytest
from PIL import Image

from hf_curriculum import load_captioned
from hf_curriculum.data import images as readable


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path):
    """Five images of two captions: one truncated, one no image at all, one missing."""
    images = tmp_path / "data" / "images"
    images.mkdir(parents=True)
    for name in ("good", "half", "fine"):
        Image.effect_noise((64, 64), 50).save(images / f"{name}.jpg")
    (images / "half.jpg").write_bytes((images / "half.jpg").read_bytes()[:600])
    (images / "text.jpg").write_text("<html>")
    with open(tmp_path / "data" / "captions.jsonl", "w") as file:
        for name in ("half", "good", "text", "gone", "fine"):
            file.write(json.dumps({"file_name": f"{name}.jpg", "captions": [f"{name} 1", f"{name} 2"]}) + "\n")
    return tmp_path / "data"


@pytest.fixture
def decoded(monkeypatch):
    """The names of the images that are really decoded."""
    names, real = [], readable.to_rgb
    monkeypatch.setattr(
        readable, "to_rgb", lambda image, name, **kw: names.append(name) or real(image, name=name, **kw)
    )
    return names


def test_they_are_counted_named_and_left_out(folder, tmp_path, caplog):
    log = tmp_path / "logs" / "bad.txt"
    rows = load_captioned(folder, unreadable_log=log)
    assert rows["caption"][:] == ["good 1", "good 2", "fine 1", "fine 2"]
    assert "3 images cannot be read; their 6 rows are left out" in caplog.text
    assert "half.jpg cannot be decoded" in caplog.text
    assert str(log) in caplog.text
    lines = log.read_text().splitlines()
    assert len(lines) == 3
    assert "half.jpg cannot be decoded (OSError" in lines[0]
    assert "text.jpg cannot be decoded (UnidentifiedImageError" in lines[1]
    assert lines[2] == f"{folder}/images/gone.jpg: there is no such file."
    assert all(rows[row]["image"].size == (64, 64) for row in range(4))


def test_the_log_is_in_the_cache_by_default(folder, cache, caplog):
    load_captioned(folder)
    (log,) = cache.rglob("unreadable_images.txt")
    assert len(log.read_text().splitlines()) == 3
    assert str(log) in caplog.text


def test_each_file_is_decoded_once_and_not_again(folder, decoded, caplog):
    load_captioned(folder)
    assert len(decoded) == 5
    first = caplog.text
    caplog.clear()
    assert load_captioned(folder).num_rows == 4
    assert len(decoded) == 5
    assert caplog.text == first  # but reported again


def test_a_file_that_changed_is_decoded_again(folder, decoded):
    load_captioned(folder)
    Image.new("RGB", (9, 9)).save(folder / "images" / "half.jpg")
    assert load_captioned(folder).num_rows == 6
    assert len(decoded) == 10


def test_several_processes_find_the_same(folder):
    assert load_captioned(folder, num_proc=2)["caption"][:] == ["good 1", "good 2", "fine 1", "fine 2"]


def test_unchecked_rows_stay(folder, decoded):
    assert load_captioned(folder, check_images=False).num_rows == 10
    assert decoded == []


def test_nothing_unreadable_nothing_logged(folder, cache, caplog):
    for name in ("half", "text", "gone"):
        Image.new("RGB", (9, 9)).save(folder / "images" / f"{name}.jpg")
    with caplog.at_level(logging.WARNING):
        assert load_captioned(folder).num_rows == 10
    assert not caplog.records
    assert not list(cache.rglob("unreadable_images.txt"))


def test_all_unreadable(folder):
    for image in (folder / "images").iterdir():
        image.write_text("")
    with pytest.raises(
        ValueError, match=r"None of the 5 images of the split 'all' can be read. The first: .*half\.jpg"
    ):
        load_captioned(folder)


def test_bytes_in_a_data_set(caplog):
    def content(seed):
        return Image.new("RGB", (64, 64), (seed, 0, 0))._repr_png_()

    images = [content(1), content(2)[:-40], content(1), None]
    rows = datasets.Dataset.from_dict(
        {"image": [{"bytes": image, "path": None} for image in images[:3]] + [None], "caption": list("abcd")},
        features=datasets.Features({"image": datasets.Image(), "caption": datasets.Value("string")}),
    )
    kept = load_captioned(rows)
    assert kept["caption"][:] == ["a", "c"]
    assert "2 images cannot be read; their 2 rows are left out" in caplog.text
    assert len(set(kept["image_id"])) == 1


def test_two_splits_are_reported_together(folder, caplog):
    rows = load_captioned(folder, check_images=False)
    splits = datasets.DatasetDict(train=rows.select(range(4)), test=rows.select(range(4, 10)))
    caplog.clear()
    assert load_captioned(splits).num_rows == {"train": 2, "test": 2}
    assert "3 images cannot be read; their 6 rows are left out" in caplog.text
