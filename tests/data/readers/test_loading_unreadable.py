"""Images that cannot be decoded."""

import errno
import json
import logging
import os
from io import BytesIO

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image, ImageFile, PngImagePlugin
from PIL.PngImagePlugin import PngInfo

from hf_curriculum import load_captioned
from hf_curriculum.data import image_files
from hf_curriculum.data.images import UnreadableImageError


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
    names, real = [], image_files.to_rgb
    monkeypatch.setattr(
        image_files, "to_rgb", lambda image, name, **kw: names.append(name) or real(image, name=name, **kw)
    )
    return names


def test_they_are_counted_named_and_left_out(folder, tmp_path, caplog):
    log = tmp_path / "logs" / "bad.txt"
    rows = load_captioned(folder, unreadable_log=log)
    assert rows["caption"][:] == ["good 1", "good 2", "fine 1", "fine 2"]
    assert "3 images cannot be read, which leaves out 6 rows" in caplog.text
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


def test_several_processes_find_the_same(folder, monkeypatch):
    monkeypatch.setattr(image_files, "_FEW", 2)
    started, real = [], image_files.multiprocessing.Pool
    monkeypatch.setattr(image_files.multiprocessing, "Pool", lambda number: started.append(number) or real(number))
    assert load_captioned(folder, num_proc=2)["caption"][:] == ["good 1", "good 2", "fine 1", "fine 2"]

    assert started == [2]


def test_few_images_start_no_process(folder, monkeypatch):
    monkeypatch.setattr(image_files.multiprocessing, "Pool", lambda number: pytest.fail("processes were started"))
    assert len(load_captioned(folder, num_proc=2)) == 4


def test_an_image_written_again_with_equal_size_is_decoded_again(folder, decoded):
    """Nothing but its modification time tells."""
    load_captioned(folder)
    good, broken = folder / "images" / "good.jpg", folder / "images" / "half.jpg"
    content = good.read_bytes()
    for path, written in ((good, b"x" * len(content)), (broken, content[:600])):
        path.write_bytes(written)
        os.utime(path, ns=(1, 1))
    assert load_captioned(folder)["caption"][:] == ["fine 1", "fine 2"]
    assert len(decoded) == 10


def embedded(path, pictures, **columns):
    """A Parquet file with the bytes of images."""
    images = [{"bytes": picture, "path": picture and f"{number}.png"} for number, picture in enumerate(pictures)]
    table = pa.table({"image": images, "caption": [f"caption {number}" for number in range(len(images))], **columns})
    path.parent.mkdir(exist_ok=True)
    pq.write_table(table, path)
    return path


def png(shade, size=(6, 6)):
    return Image.new("RGB", size, (shade, 0, 0))._repr_png_()


class TestEmbedded:
    @pytest.fixture
    def hashed(self, monkeypatch):
        """The bytes of the images that are hashed."""
        contents, real = [], image_files._digest
        monkeypatch.setattr(image_files, "_digest", lambda content: contents.append(bytes(content)) or real(content))
        return contents

    def test_a_second_start_reads_no_image(self, tmp_path, decoded, hashed, caplog):
        pictures = [png(1), png(2)[:-40], png(1), png(3)]
        source = embedded(tmp_path / "data" / "train-0.parquet", pictures)
        first = load_captioned(source)
        assert first["caption"][:] == ["caption 0", "caption 2", "caption 3"]
        assert len(decoded) == 3
        assert len(hashed) == 4
        said = caplog.text
        assert "1 image cannot be read, which leaves out 1 row. The first: 1.png cannot be decoded" in said
        caplog.clear()
        second = load_captioned(source)
        assert second["image_id"][:] == first["image_id"][:]
        assert second["caption"][:] == first["caption"][:]
        assert caplog.text == said
        assert len(decoded) == 3
        assert len(hashed) == 4

    def test_ids_are_those_of_images_in_memory(self, tmp_path):
        pictures = [png(1), None, png(2), png(1)]
        loaded = load_captioned(embedded(tmp_path / "x.parquet", pictures), check_images=False)
        rows = [{"bytes": picture, "path": None} if picture else None for picture in pictures]
        features = datasets.Features({"image": datasets.Image(), "caption": datasets.Value("string")})
        memory = datasets.Dataset.from_dict({"image": rows, "caption": list("abcd")}, features=features)
        assert loaded["image_id"][:] == load_captioned(memory, check_images=False)["image_id"][:]
        assert loaded["image_id"][1] == ""
        assert loaded.features["image_id"] == datasets.Value("string")

    def test_a_file_that_changed_is_read_again(self, tmp_path, decoded):
        embedded(tmp_path / "x.parquet", [png(1), png(2)])
        datasets.load_dataset("parquet", data_files=str(tmp_path / "x.parquet"), split="train").save_to_disk(
            tmp_path / "saved"
        )
        assert len(load_captioned(tmp_path / "saved")) == 2
        (arrow,) = (tmp_path / "saved").glob("*.arrow")
        content = arrow.read_bytes()
        assert content.count(png(2)) == 1
        arrow.write_bytes(content.replace(png(2), b"x" * len(png(2))))  # of equal size
        assert len(load_captioned(tmp_path / "saved")) == 1
        assert len(decoded) == 4

    def test_selected_shuffled_and_renamed_rows_keep_their_own_images(self, tmp_path, decoded):
        pictures = [png(shade) for shade in range(8)]
        broken = [png(shade)[:-40] if shade % 3 == 0 else png(shade) for shade in range(8)]
        other = [{"bytes": picture, "path": None} for picture in broken]
        source = embedded(tmp_path / "x.parquet", pictures, other=other)
        rows = datasets.load_dataset("parquet", data_files=str(source), split="train")
        chosen = rows.select(range(2, 8)).shuffle(seed=1)
        for part in (rows, rows.select(range(1, 7)), chosen, datasets.concatenate_datasets([chosen, rows])):
            for column, content in (("image", pictures), ("other", broken)):
                renamed = part.remove_columns("other" if column == "image" else "image")
                loaded = load_captioned(renamed, columns={"image": column})
                numbers = [int(caption.split()[1]) for caption in part["caption"]]
                kept = [n for n in numbers if column == "image" or n % 3]
                assert loaded["caption"][:] == [f"caption {n}" for n in kept]
                assert loaded["image_id"][:] == [image_files._digest(content[n]) for n in kept]

    def test_few_rows_of_a_large_file_do_not_cost_the_others(self, tmp_path, decoded):
        source = embedded(tmp_path / "x.parquet", [png(shade) for shade in range(20)])
        rows = datasets.load_dataset("parquet", data_files=str(source), split="train")
        assert len(load_captioned(rows.select([3, 5, 12]))) == 3
        assert len(decoded) == 3

    def test_only_a_new_shard_is_decoded(self, tmp_path, decoded):
        for number in range(2):
            shard = datasets.Dataset.from_parquet(
                str(embedded(tmp_path / f"{number}.parquet", [png(4 * number + shade) for shade in range(4)]))
            )
            shard.save_to_disk(tmp_path / f"shard{number}")
        shards = [datasets.load_from_disk(tmp_path / f"shard{number}") for number in range(2)]
        assert len(load_captioned(shards[0])) == 4
        assert len(decoded) == 4
        assert len(load_captioned(datasets.concatenate_datasets(shards))) == 8
        assert len(decoded) == 8


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
    assert "2 images cannot be read, which leaves out 2 rows" in caplog.text
    assert len(set(kept["image_id"])) == 1


def test_two_splits_are_reported_together(folder, caplog):
    rows = load_captioned(folder, check_images=False)
    splits = datasets.DatasetDict(train=rows.select(range(4)), test=rows.select(range(4, 10)))
    caplog.clear()
    assert load_captioned(splits).num_rows == {"train": 2, "test": 2}
    assert "3 images cannot be read, which leaves out 6 rows" in caplog.text


@pytest.mark.parametrize("num_proc", [None, 1])
def test_one_process_starts_no_other(folder, monkeypatch, num_proc):
    monkeypatch.setattr(image_files, "_FEW", 2)
    monkeypatch.setattr(image_files.multiprocessing, "Pool", lambda number: pytest.fail("processes were started"))
    assert len(load_captioned(folder, num_proc=num_proc)) == 4


def test_half_of_a_file_is_looked_up_in_it_and_less_is_not(tmp_path):
    source = embedded(tmp_path / "x.parquet", [png(shade) for shade in range(20)])
    rows = datasets.load_dataset("parquet", data_files=str(source), split="train")
    assert image_files.stored_files(rows.select(range(0, 20, 2))) is not None
    assert image_files.stored_files(rows.select(range(0, 18, 2))) is None
    pq.write_table(pa.table({"image": [{"bytes": png(1), "path": None}, {"bytes": None, "path": "a.png"}]}), source)
    named = datasets.load_dataset("parquet", data_files=str(source), split="train")
    assert image_files.stored_files(named.cast_column("image", datasets.Image())) is None


def test_digests_as_text():
    digests = np.arange(48, dtype=np.uint8).reshape(3, 16)
    digests[1] = 0
    texts = [digests[0].tobytes().hex(), "", digests[2].tobytes().hex()]
    for start, stop in ((0, 0), (0, 1), (1, 2), (0, 3)):
        found = image_files.hexadecimal(digests[start:stop])
        assert (found.to_pylist(), found.type) == (texts[start:stop], pa.string())


def test_a_verdict_is_one_of_how_truncated_files_were_read(folder, monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)  # as other libraries set it
    assert load_captioned(folder)["caption"][:] == ["half 1", "half 2", "good 1", "good 2", "fine 1", "fine 2"]
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", False)
    rows = load_captioned(folder)
    assert rows["caption"][:] == ["good 1", "good 2", "fine 1", "fine 2"]
    assert [image.size for image in rows["image"]] == [(64, 64)] * 4


@pytest.mark.parametrize("stored", [False, True])
def test_a_verdict_is_one_of_how_much_text_a_png_may_hold(stored, tmp_path, monkeypatch):
    text, buffer, good = PngInfo(), BytesIO(), BytesIO()
    text.add_text("comment", "x" * 2_000_000, zip=True)
    Image.new("RGB", (4, 4), "red").save(buffer, "PNG", pnginfo=text)
    Image.new("RGB", (4, 4), "blue").save(good, "PNG")
    source = embedded(tmp_path / "data" / "data.parquet", [buffer.getvalue(), good.getvalue()])
    if not stored:
        source = tmp_path / "files"
        (source / "images").mkdir(parents=True)
        for number, content in enumerate((buffer.getvalue(), good.getvalue())):
            (source / "images" / f"{number}.png").write_bytes(content)
        (source / "captions.csv").write_text("file_name,caption\n0.png,caption 0\n1.png,caption 1\n")
    assert load_captioned(source)["caption"][:] == ["caption 1"]
    monkeypatch.setattr(PngImagePlugin, "MAX_TEXT_CHUNK", 10 * 2**20)  # the remedy that Pillow's documentation gives
    rows = load_captioned(source)
    assert [image.getpixel((0, 0)) for image in rows["image"]] == [(255, 0, 0), (0, 0, 255)]


def test_what_the_system_said_is_asked_again(folder, decoded, monkeypatch):
    real, failing = image_files.to_rgb, ["good.jpg"]

    def fails(image, name, **kw):
        if failing and name.endswith(failing[0]):
            raise UnreadableImageError(f"{name}: no answer.") from OSError(errno.EIO, "Input/output error")
        return real(image, name=name, **kw)

    monkeypatch.setattr(image_files, "to_rgb", fails)
    assert load_captioned(folder)["caption"][:] == ["fine 1", "fine 2"]
    before = len(decoded)
    assert load_captioned(folder)["caption"][:] == ["fine 1", "fine 2"]
    failing.clear()
    assert load_captioned(folder)["caption"][:] == ["good 1", "good 2", "fine 1", "fine 2"]
    assert len(decoded) - before == 1  # the other verdicts stand
    assert load_captioned(folder).num_rows == 4
    assert len(decoded) - before == 1
