"""What is kept in the cache of `datasets` is compared before it is read, and made again where it was damaged."""

from __future__ import annotations

import io
from pathlib import Path

import datasets
import numpy as np
import pytest
from datasets import Dataset
from datasets import Image as ImageFeature
from PIL import Image

from hf_curriculum.data.image_files import derive_image_ids, drop_unreadable_images, image_digests
from hf_curriculum.data.text import load_text
from hf_curriculum.files import is_intact, read_sealed


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache" / "hf_curriculum"


def damages(file, equal=bytes.__eq__):
    """A changed byte at several places of a file, and its end cut off; the file is whole again between them."""
    whole = file.read_bytes()
    for place in (0, len(whole) // 3, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        yield
        assert equal(file.read_bytes(), whole)
    for length in (len(whole) - 1, len(whole) // 2, 0):
        file.write_bytes(whole[:length])
        yield
        assert equal(file.read_bytes(), whole)


def images(count):
    contents = []
    for number in range(count):
        file = io.BytesIO()
        Image.new("RGB", (4 + number, 4)).save(file, "PNG")
        contents.append(file.getvalue())
    return [*contents, b"no image"]


def test_lines_of_text(tmp_path, cache):
    (tmp_path / "a.train").write_text("".join(f"line {number}\n" for number in range(50)))
    lines = load_text(tmp_path / "a.train")["caption"][:]
    (file,) = cache.rglob("*.arrow")
    for _ in damages(file):
        assert load_text(tmp_path / "a.train")["caption"][:] == lines


def test_digests_ids_and_verdicts_of_images_in_an_arrow_file(tmp_path, cache):
    rows = Dataset.from_dict({"image": [{"bytes": each, "path": None} for each in images(5)]})
    rows.cast_column("image", ImageFeature()).save_to_disk(str(tmp_path / "set"))

    def found():
        data = Dataset.from_file(str(next((tmp_path / "set").glob("*.arrow"))))
        data = data.cast_column("image", ImageFeature(decode=False))
        return derive_image_ids(data)["image_id"][:], len(drop_unreadable_images({"": data})[""])

    wanted = found()
    assert len(set(wanted[0])) == 6
    assert wanted[1] == 5
    files = {file.name: file for file in cache.rglob("*") if file.is_file()}
    assert files.keys() == {"digests.npy", "ids.arrow", "unreadable.json", "unreadable_images.txt"}
    for name in ("digests.npy", "ids.arrow", "unreadable.json"):
        equal = bytes.__eq__ if name != "unreadable.json" else lambda *_: read_sealed(files["unreadable.json"], "")
        for _ in damages(files[name], equal):  # the reasons that Pillow gives name addresses in memory
            if name == "digests.npy":
                files["ids.arrow"].unlink()  # which is made of it
            assert found() == wanted


def test_digests_of_image_files(tmp_path, cache):
    for number, content in enumerate(images(3)):
        (tmp_path / f"{number}.png").write_bytes(content)
    files = sorted(map(str, tmp_path.glob("*.png")))
    data = Dataset.from_dict({"image": files}).cast_column("image", ImageFeature())
    digests = np.array(image_digests([data], "image", [(0, row) for row in range(4)]))
    (file,) = cache.rglob("digests.npy")
    for _ in damages(file):
        assert np.array_equal(image_digests([data], "image", [(0, row) for row in range(4)]), digests)
    assert is_intact(file)
    assert not is_intact(Path(files[0]))


def test_the_users_log_may_be_a_link_and_the_caches_own_is_none(tmp_path, cache):
    data = Dataset.from_dict({"image": [{"bytes": each, "path": None} for each in images(2)]})
    (tmp_path / "scratch").mkdir()
    (tmp_path / "log.txt").symlink_to(tmp_path / "scratch" / "log.txt")
    drop_unreadable_images({"": data}, log_path=tmp_path / "log.txt")
    assert "cannot be decoded" in (tmp_path / "scratch" / "log.txt").read_text()
    (known,) = cache.rglob("unreadable.json")
    known.with_name("unreadable_images.txt").symlink_to(tmp_path / "scratch" / "thesis.txt")
    drop_unreadable_images({"": data})
    assert not (tmp_path / "scratch" / "thesis.txt").exists()
