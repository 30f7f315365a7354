"""What img2dataset leaves behind, written here in its three formats, and URL lists joined with it."""

from __future__ import annotations

import gzip
import io
import json
import logging
import tarfile

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from hf_curriculum import (
    CaptionLength,
    NounCount,
    Phases,
    add_scores,
    load_captioned,
    load_scores,
    make_plan,
    score_shards,
)
from hf_curriculum.data.readers.img2dataset import Downloads, load_img2dataset, read_downloads
from hf_curriculum.data.readers.url_lists import _failures, is_url_list, load_url_list, read_url_list

UNDECODED = datasets.Image(decode=False)
CAPTIONS = ["a dog", "a red ball and a cat", "two cats on a mat with a hat", "a man, a boy\u2028and a kite", "a cube"]
URLS = [f"https://example.org/images/{number:012d}.jpg?size=1" for number in range(5)]
ERRORS = {1: "HTTP Error 404: Not Found", 3: "HTTP Error 404: Not Found", 4: "image decoding error"}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def image(number):
    file = io.BytesIO()
    Image.new("RGB", (8 + number, 8), (40 * number, 0, 0)).save(file, "JPEG")
    return file.getvalue()


def status(number):
    error = ERRORS.get(number)
    return "success" if error is None else "failed_to_resize" if "decod" in error else "failed_to_download"


def add_member(tar, name, content):
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def write_shard(folder, shard, numbers, form, *, with_captions=True, finished=True):
    """One shard as img2dataset writes it: images, a table of all rows, and the record."""
    folder.mkdir(parents=True, exist_ok=True)
    rows, samples = [], {}
    for number in numbers:
        key = f"{shard}{number:04d}"
        meta = {
            **({"caption": CAPTIONS[number]} if with_captions else {}),
            "url": URLS[number],
            "key": key,
            "status": status(number),
            "error_message": ERRORS.get(number),
            "width": None if number in ERRORS else 8 + number,
        }
        rows.append(meta)
        if number not in ERRORS:
            samples[key] = {
                "jpg": image(number),
                **({"txt": CAPTIONS[number].encode()} if with_captions else {}),
                "json": json.dumps(meta, indent=4).encode(),
            }
    if form == "parquet":
        for row in rows:
            row["jpg"] = samples.get(row["key"], {}).get("jpg")
            row["txt"] = row.get("caption") if row["jpg"] else None
    pq.write_table(pa.Table.from_pylist(rows), folder / f"{shard}.parquet", row_group_size=2)
    if form == "webdataset":
        with tarfile.open(folder / f"{shard}.tar", "w") as tar:
            for key, sample in samples.items():
                for suffix, content in sample.items():
                    add_member(tar, f"{key}.{suffix}", content)
    if form == "files":
        (folder / shard).mkdir()
        for key, sample in samples.items():
            for suffix, content in sample.items():
                (folder / shard / f"{key}.{suffix}").write_bytes(content)
    if finished:
        counts: dict[str, int] = {}
        for number in numbers:
            counts[ERRORS.get(number, "success")] = counts.get(ERRORS.get(number, "success"), 0) + 1
        record = {
            "count": len(numbers),
            "successes": counts.get("success", 0),
            "failed_to_download": sum(status(number) == "failed_to_download" for number in numbers),
            "failed_to_resize": sum(status(number) == "failed_to_resize" for number in numbers),
            "duration": 1.5,
            "status_dict": counts,
        }
        (folder / f"{shard}_stats.json").write_text(json.dumps(record))
    return folder


@pytest.fixture(params=["webdataset", "parquet", "files"])
def downloads(request, tmp_path):
    folder = write_shard(tmp_path / "cc", "00000", [0, 1, 2], request.param)
    return write_shard(folder, "00001", [3, 4], request.param)


class TestFormats:
    def test_what_survived_with_its_captions(self, downloads, caplog):
        pairs = load_captioned(downloads)
        assert pairs.column_names == ["image", "caption", "image_id", "url", "key"]
        assert pairs["caption"][:] == [CAPTIONS[0], CAPTIONS[2]]
        assert pairs["image_id"][:] == pairs["url"][:] == [URLS[0], URLS[2]]
        assert [row["image"].size for row in pairs] == [(8, 8), (10, 8)]
        assert (
            "2 of 5 images are there (40.0 %); 3 are missing: 2 × HTTP Error 404: Not Found, "
            "1 × image decoding error" in caplog.text
        )

    def test_tables_whose_columns_differ(self, tmp_path, monkeypatch):
        folder = write_shard(tmp_path / "cc", "00000", [0, 2], "parquet")
        further = {0: {"score": pa.array([3, 4])}, 1: {"score": pa.array([0.5, 2.0]), "late": pa.array(["x", None])}}
        for number, columns in further.items():
            write_shard(folder, f"0000{number}", [0, 2], "parquet")
            table = pq.read_table(folder / f"0000{number}.parquet")
            for name, values in columns.items():
                table = table.append_column(name, values)
            pq.write_table(table, folder / f"0000{number}.parquet")
        pairs = load_captioned(folder)
        assert (pairs["score"][:], pairs["late"][:]) == ([3, 4, 0.5, 2], [None, None, "x", None])
        monkeypatch.setattr("hf_curriculum.data.readers.webdataset.FIRST", 2)
        pairs = load_captioned(folder)
        assert pairs["score"][:] == [3, 4, None, 2]
        assert "values of `score` that are no int64: 1 (0.5, for example)" in pairs.info.description
        assert "fields `late` (not kept: none of the first pairs has one): 2" in pairs.info.description

    def test_the_curriculum_is_built_on_what_survived(self, downloads):
        pairs = add_scores(load_captioned(downloads), NounCount(), per_image="max")
        scores = np.array(pairs["noun_count"][:])
        assert scores.tolist() == [1, 3]
        plan = make_plan(Phases(2, 1, "value"), scores, global_batch_size=1)
        assert [stage.pool_size for stage in plan.stages] == [1, 2]

    def test_without_saved_captions(self, tmp_path, request):
        folder = write_shard(tmp_path / "cc", "00000", [0, 2], "webdataset", with_captions=False)
        assert load_img2dataset(folder)["caption"][:] == [None, None]

    @pytest.mark.slow
    def test_several_processes(self, downloads):
        write_shard(downloads, "00002", [0, 2], "webdataset")
        pairs = load_img2dataset(downloads, num_proc=2)
        assert pairs["caption"][:] == [CAPTIONS[0], CAPTIONS[2]] * 2


class TestRecords:
    def test_counts(self, downloads):
        found = read_downloads(downloads)
        assert (found.asked, found.found, found.missing) == (5, 2, 3)
        assert found.reasons == {"HTTP Error 404: Not Found": 2, "image decoding error": 1}

    def test_reasons_that_were_not_kept(self, tmp_path):
        record = {"count": 9, "successes": 4, "failed_to_download": 3, "failed_to_resize": 2}
        (tmp_path / "00000_stats.json").write_text(json.dumps(record))
        assert read_downloads(tmp_path).reasons == {"failed_to_download": 3, "failed_to_resize": 2}
        record["status_dict"] = {"success": 4, "timed out": 1}
        (tmp_path / "00000_stats.json").write_text(json.dumps(record))
        assert read_downloads(tmp_path).reasons == {"no reason recorded": 4, "timed out": 1}

    def test_words_for_few_and_for_many_reasons(self):
        assert Downloads(3, 3).describe() == "3 of 3 images are there (100.0 %)"
        many = Downloads(1000, 900, {f"reason {n}": 40 - n for n in range(4)})
        assert many.describe(2).endswith("100 are missing: 40 × reason 0, 39 × reason 1, 75 × other reasons")
        assert Downloads(0, 0).describe() == "0 of 0 images are there"

    def test_no_record_and_a_wrong_one(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="no shard of a download by img2dataset is finished"):
            read_downloads(tmp_path)
        (tmp_path / "00000_stats.json").write_text("{}")
        with pytest.raises(ValueError, match="is no record of img2dataset"):
            read_downloads(tmp_path)

    def test_shards_that_are_not_finished_are_left_out(self, tmp_path, caplog):
        folder = write_shard(tmp_path / "cc", "00000", [0], "webdataset")
        write_shard(folder, "00001", [2], "webdataset", finished=False)
        assert load_img2dataset(folder).num_rows == 1
        assert "the shards ['00001'] have no *_stats.json" in caplog.text

    def test_images_that_are_elsewhere(self, tmp_path):
        folder = write_shard(tmp_path / "cc", "00000", [0], "webdataset")
        (folder / "00000.tar").unlink()
        with pytest.raises(FileNotFoundError, match=r"kept next to it, in a \.tar or a folder"):
            load_img2dataset(folder)
        (folder / "00000.parquet").unlink()
        with pytest.raises(FileNotFoundError, match=r"has the record 00000_stats.json but neither"):
            load_img2dataset(folder)

    def test_a_tar_that_is_cut_off(self, tmp_path):
        folder = write_shard(tmp_path / "cc", "00000", [0, 2], "webdataset")
        content = (folder / "00000.tar").read_bytes()
        (folder / "00000.tar").write_bytes(content[:700])
        with pytest.raises(ValueError, match="cannot be read to its end"):
            load_img2dataset(folder)

    def test_a_parquet_file_that_is_cut_off(self, tmp_path):
        folder = write_shard(tmp_path / "cc", "00000", [0, 2], "parquet")
        content = (folder / "00000.parquet").read_bytes()
        (folder / "00000.parquet").write_bytes(content[:-20])
        for read in (load_img2dataset, _failures):
            with pytest.raises(ValueError, match=r"00000\.parquet is damaged \(ArrowInvalid: .*Download it again"):
                read(folder)

    def test_files_that_were_deleted_since(self, tmp_path, caplog):
        folder = write_shard(tmp_path / "cc", "00000", [0, 2], "files")
        next((folder / "00000").glob("*.jpg")).unlink()
        assert load_img2dataset(folder).num_rows == 1
        assert "recorded 2 images and 1 are there" in caplog.text

    def test_nothing_survived(self, tmp_path):
        folder = write_shard(tmp_path / "cc", "00000", [1, 4], "webdataset")
        with pytest.raises(ValueError, match="holds no image: 0 of 2"):
            load_img2dataset(folder)

    def test_another_download_is_read_again(self, tmp_path):
        folder = write_shard(tmp_path / "cc", "00000", [0], "webdataset")
        assert load_img2dataset(folder).num_rows == 1
        write_shard(folder, "00000", [0, 2], "webdataset")
        assert load_img2dataset(folder).num_rows == 2


@pytest.fixture
def tar(tmp_path):
    folder = write_shard(tmp_path / "cc", "00000", [0, 1, 2], "webdataset", with_captions=False)
    return write_shard(folder, "00001", [3, 4], "webdataset", with_captions=False)


class TestConceptualCaptions:
    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])  # CC3M's and CC12M's
    def test_joined_by_address(self, tar, tmp_path, order, caplog):
        rows = [*zip(CAPTIONS, URLS, strict=True), ("never asked for", "http://example.org/none.jpg")]
        lines = ["\t".join(row[cell] for cell in order) for row in reversed(rows)]
        (tmp_path / "list.tsv").write_text("\n".join(lines) + "\n\n", encoding="utf-8")
        pairs = load_captioned(tmp_path / "list.tsv", images=tar)
        assert pairs["caption"][:] == [CAPTIONS[2], CAPTIONS[0]]
        assert pairs["image_id"][:] == [URLS[2], URLS[0]]
        assert [row["image"].size for row in pairs] == [(10, 8), (8, 8)]
        assert (
            "2 of 6 images are there (33.3 %); 4 are missing: 2 × HTTP Error 404: Not Found, 1 × not among the "
            "downloads, 1 × image decoding error" in caplog.text
        )

    @pytest.mark.parametrize("form", ["csv", "tsv", "jsonl", "parquet", "dataset", "capitals"])
    def test_a_table_of_addresses_is_joined(self, tar, tmp_path, form):
        order = [2, 1, 0, 2, 3]
        table = pd.DataFrame({"url": [URLS[row] for row in order], "caption": list("abcde"), "n": [*range(5)]})
        path = tmp_path / f"list.{form}"
        if form in ("csv", "tsv"):
            table.to_csv(path, index=False, sep={"csv": ",", "tsv": "\t"}[form])
        elif form == "capitals":
            path = tmp_path / "list.csv"
            table.rename(columns={"url": "URL", "caption": "TEXT"}).to_csv(path, index=False)
        elif form == "jsonl":
            table.to_json(path, orient="records", lines=True)
        else:
            table.to_parquet(tmp_path / "list.parquet")
        if form == "dataset":
            path = datasets.Dataset.from_pandas(table).cast_column("n", datasets.ClassLabel(names=list("vwxyz")))
        pairs = load_captioned(path, images=tar)
        assert pairs["caption"][:] == ["a", "c", "d"]
        assert pairs["image_id"][:] == [URLS[2], URLS[0], URLS[2]]
        assert [int(number) for number in pairs["n"]] == [0, 2, 3]
        assert [row["image"].size for row in pairs] == [(10, 8), (8, 8), (10, 8)]
        if form == "dataset":
            assert pairs.features["n"].names == list("vwxyz")
        (tmp_path / "other").mkdir()
        with pytest.raises(ValueError, match=r"lists addresses, and .* is no output folder of img2dataset"):
            load_captioned(path, images=tmp_path / "other")

    def test_captions_alone(self, tmp_path):
        with gzip.open(tmp_path / "list.tsv.gz", "wt", encoding="utf-8") as file:
            file.write(f"{CAPTIONS[3]}\t{URLS[3]}\n")
        pairs = load_captioned(tmp_path / "list.tsv.gz", images=False)
        assert pairs[0] == {"caption": CAPTIONS[3], "image_id": URLS[3], "url": URLS[3]}

    def test_what_is_missing_or_wrong(self, tar, tmp_path):
        (tmp_path / "list.tsv").write_text(f"{CAPTIONS[0]}\t{URLS[0]}\nno tab at all\n")
        with pytest.raises(ValueError, match=r"Line 2 of .* is 'no tab at all"):
            load_captioned(tmp_path / "list.tsv", images=tar)
        with pytest.raises(ValueError, match="is not downloaded unasked"):
            load_captioned(tmp_path / "list.tsv")
        with pytest.raises(FileNotFoundError, match="does not exist"):
            load_captioned(tmp_path / "list.tsv", images=tmp_path / "none")
        (tmp_path / "list.tsv").write_text(f"{CAPTIONS[0]}\thttp://example.org/none.jpg\n")
        with pytest.raises(ValueError, match=r"0 of 1 images are there .*Are these the images of this list"):
            load_captioned(tmp_path / "list.tsv", images=tar)
        (tmp_path / "bare").mkdir()
        with pytest.raises(ValueError, match="is no output folder of img2dataset"):
            load_url_list(tmp_path / "list.tsv", tmp_path / "bare")
        with pytest.raises(ValueError, match=r"would have no effect: .* holds its own images"):
            load_captioned(tar, images=tar)
        with pytest.raises(ValueError, match="has one split, and its columns are fixed"):
            load_captioned(tar, split="train")
        with pytest.raises(ValueError, match="archives have one text for each sample"):
            load_captioned(tar, columns={"caption": ["caption", "txt"]})

    def test_lines_that_cannot_be_read_are_named_or_left_out_and_counted(self, tmp_path):
        lines = [f"{URLS[0]}\ta dog", f"{URLS[1]}\ta\ttab too many", "no tab", f"{URLS[2]}\tcats"]
        (tmp_path / "list.tsv").write_text("\n".join(lines))
        with pytest.raises(ValueError, match=r"Line 2 of .*list\.tsv is 'https.*bad_rows='drop'"):
            load_captioned(tmp_path / "list.tsv", images=False)
        for _ in range(2):  # read, and read from the cache
            pairs = load_captioned(tmp_path / "list.tsv", images=False, bad_rows="drop")
            assert (pairs["caption"][:], pairs["url"][:]) == (["a dog", "cats"], [URLS[0], URLS[2]])
            assert "rows that cannot be read: 2 (Line 2 of" in pairs.info.description

    def test_other_tables_are_not_taken_for_lists(self, tmp_path):
        for text in ("caption\tfile_name\n", "a dog\ta.jpg\n", f"a\t{URLS[0]}\tb\n", f"{URLS[0]}\t{URLS[1]}\n", ""):
            (tmp_path / "x.tsv").write_text(text)
            assert not is_url_list(tmp_path / "x.tsv")
        for text in ('{"file_name": "a.jpg", "caption": "a"}\n', "[1]\n", "no json\n"):
            (tmp_path / "x.jsonl").write_text(text)
            assert not is_url_list(tmp_path / "x.jsonl")


class TestNarratives:
    @pytest.fixture
    def narratives(self, tmp_path):
        rows = [("2", 7, "In this image there are cats."), ("0", 3, "A dog."), ("2", 9, "Cats!"), ("4", 1, "A cube.")]
        traces = [[{"x": 0.1, "y": 0.2, "t": 0.0}]]
        lines = [
            {
                "dataset_id": "mscoco_val2017",
                "image_id": image,
                "annotator_id": who,
                "caption": words,
                "traces": traces,
            }
            for image, who, words in rows
        ]
        path = tmp_path / "coco_val_localized_narratives.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    def test_joined_by_the_name_in_the_address(self, narratives, tar, caplog):
        pairs = load_captioned(narratives, images=tar)
        assert pairs["caption"][:] == ["In this image there are cats.", "A dog.", "Cats!"]
        assert pairs["image_id"][:] == ["2", "0", "2"]
        assert [row["image"].size for row in pairs] == [(10, 8), (8, 8), (10, 8)]
        assert "3 of 4 images are there (75.0 %); 1 is missing: 1 × image decoding error" in caplog.text

    @pytest.mark.parametrize("captions", [5, 16, 17, 20])
    def test_images_are_not_copied(self, tmp_path, tar, captions, monkeypatch):
        rng = np.random.default_rng(0)

        def noise(number):
            file = io.BytesIO()
            Image.fromarray(rng.integers(0, 256, (60 + number, 200, 3), dtype=np.uint8)).save(file, "JPEG")
            return file.getvalue()

        monkeypatch.setitem(globals(), "image", noise)
        folder = write_shard(tmp_path / "large", "00000", [0, 2], "webdataset", with_captions=False)
        size = sum(len(row["image"]["bytes"]) for row in load_img2dataset(folder).cast_column("image", UNDECODED))
        lines = [{"image_id": "20"[row % 2], "annotator_id": 1, "caption": f"{row}"} for row in range(2 * captions)]
        path = tmp_path / "narratives.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))

        def cached():
            return sum(file.stat().st_size for file in (tmp_path / "cache").rglob("*.arrow"))

        before = cached()
        pairs = load_url_list(path, folder)
        written = cached() - before
        assert (written < size / 4) == (captions <= 16)
        assert pairs["caption"][:] == [f"{row}" for row in range(2 * captions)]
        assert [row["image"].size for row in pairs] == [(200, 62), (200, 60)] * captions
        again = load_captioned(path, images=folder).shuffle(seed=0)
        assert all(row["image"].size[1] == 60 + int(row["image_id"]) for row in again)
        assert sorted(map(int, again["caption"])) == list(range(2 * captions))
        assert cached() - before <= written + 10_000

    def test_joined_with_a_folder_of_images(self, narratives, tmp_path):
        (tmp_path / "val2017").mkdir()
        (tmp_path / "val2017" / "000000000002.jpg").write_bytes(image(2))
        pairs = load_captioned(narratives, images=tmp_path / "val2017")
        assert pairs["caption"][:] == ["In this image there are cats.", "Cats!"]
        assert pairs[1]["image"].size == (10, 8)

    def test_a_name_in_two_folders_is_not_known(self, narratives, tmp_path, caplog):
        for number, folder in enumerate(["a", "b", ".thumbs"]):
            (tmp_path / "x" / folder).mkdir(parents=True)
            (tmp_path / "x" / folder / "0002.jpg").write_bytes(image(number))
        with pytest.raises(ValueError, match=r"the image '2' may be \S*/x/a/0002.jpg or \S*/x/b/0002.jpg \(1 such\)"):
            load_captioned(narratives, images=tmp_path / "x")
        (tmp_path / "x" / "b" / "0002.jpg").rename(tmp_path / "x" / "b" / "9.jpg")
        assert [row["image"].size for row in load_captioned(narratives, images=tmp_path / "x")] == [(8, 8)] * 2
        assert "hidden files and folders: 1" in caplog.text

    def test_traces_are_not_kept(self, narratives):
        left = load_captioned(narratives, images=False).info.description
        for name in ("dataset_id", "annotator_id", "traces"):
            assert f"field `{name}` (not kept): 4 (" in left
        assert "caption" not in left
        listed = read_url_list(narratives)
        assert listed.column_names == ["caption", "image_id", "url"]
        before = pa.total_allocated_bytes()
        again = read_url_list(narratives)
        assert again.equals(listed)
        assert pa.total_allocated_bytes() - before < 10_000  # memory-mapped

    def test_narratives_that_cannot_be_read_are_left_out_and_counted(self, narratives):
        odd = ['{"image_id": "1"}', "{", "[1]", '{"image_id": "1", "caption": 7}']
        narratives.write_text(narratives.read_text() + "\n".join(odd))
        pairs = load_captioned(narratives, images=False, bad_rows="drop")
        assert len(pairs) == 4
        assert "rows that cannot be read: 4 (Line 5 of" in pairs.info.description

    def test_a_line_that_is_no_narrative(self, narratives):
        narratives.write_text(narratives.read_text() + '{"image_id": "1"}\n')
        with pytest.raises(ValueError, match=r"Line 5 of .* is no narrative \(KeyError\('caption'\)\)"):
            read_url_list(narratives)


def test_what_was_saved_beside_captions_is_kept_and_ids_without_addresses_are_of_the_content(tmp_path):
    for name, shift in (("one", 0), ("two", 2)):
        folder = write_shard(tmp_path / name, "00000", [shift], "webdataset")
        with tarfile.open(folder / "00000.tar", "w") as tar:
            add_member(tar, "000000000.jpg", image(shift))
            add_member(tar, "000000000.json", json.dumps({"caption": name, "uid": f"u{shift}", "width": 8}).encode())
    pairs = [load_captioned(tmp_path / name) for name in ("one", "two", "one")]
    assert pairs[0].column_names == ["image", "caption", "image_id", "url", "key", "uid"]
    assert [part["uid"][0] for part in pairs] == ["u0", "u2", "u0"]
    assert len({part["image_id"][0] for part in pairs}) == 2


def test_what_is_there_is_no_warning(tmp_path, caplog):
    folder = write_shard(tmp_path / "cc", "00000", [0, 2], "files")
    with caplog.at_level(logging.INFO):
        rows = load_captioned(folder)
    assert {image["bytes"] for image in rows.cast_column("image", datasets.Image(decode=False))["image"]} == {None}
    said = next(record for record in caplog.records if "2 of 2 images are there" in record.getMessage())
    assert said.levelno == logging.INFO


@pytest.mark.parametrize("form", ["files", "webdataset", "parquet"])
@pytest.mark.parametrize("first", ["", "part1"])
def test_downloads_in_folders_below_are_read_too(tmp_path, caplog, form, first):
    write_shard(tmp_path / "dl" / first, "00000", [0, 1], form)
    write_shard(tmp_path / "dl/part2", "00000", [2], form)
    write_shard(tmp_path / "dl/part2", "00001", [4], form, finished=False)
    (tmp_path / "dl/part2/sizes_stats.json").write_text("{}")  # of something else
    data = load_captioned(tmp_path / "dl")
    assert data["caption"][:] == [CAPTIONS[0], CAPTIONS[2]]
    assert [image.width for image in data["image"]] == [8, 10]
    assert "2 of 3 images are there" in caplog.text
    assert "the shards ['part2/00001'] have no *_stats.json" in caplog.text
    score_shards(tmp_path / "dl", CaptionLength(), tmp_path / "out", keep=["url"])
    lengths = load_scores(data, tmp_path / "out")["caption_length"][:]
    assert lengths == [len(caption.split()) for caption in data["caption"]]


def test_a_text_that_was_written_in_place_is_read_again(tmp_path):
    write_shard(tmp_path / "dl", "00000", [0], "files")
    assert load_captioned(tmp_path / "dl")["caption"][:] == [CAPTIONS[0]]
    next((tmp_path / "dl/00000").glob("*.txt")).write_text("a cat")
    assert load_captioned(tmp_path / "dl")["caption"][:] == ["a cat"]


def test_reasons_that_a_table_keeps_or_not(tmp_path):
    write_shard(tmp_path, "00000", [0], "webdataset")
    rows = [("a", "failed", None), ("b", "failed", ""), ("c", "failed", "why"), ("d", "success", None)]
    table = pa.table(dict(zip(("url", "status", "error_message"), zip(*rows, strict=True), strict=True)))
    for kept, reasons in ((table, ["failed", "failed", "why"]), (table.drop(["error_message"]), ["failed"] * 3)):
        pq.write_table(kept, tmp_path / "00000.parquet")
        assert _failures(tmp_path).to_pydict() == {"url": ["a", "b", "c"], "reason": reasons}
    pq.write_table(table.drop(["status"]), tmp_path / "00000.parquet")
    assert len(_failures(tmp_path)) == 0


@pytest.mark.parametrize(("given", "processes"), [(None, None), (1, 1), (5, 2)])
def test_processes_are_no_more_than_shards(tmp_path, monkeypatch, given, processes):
    for shard in ("00000", "00001"):
        write_shard(tmp_path / "cc", shard, [0, 2], "files")
    (tmp_path / "cc" / "00000" / "000000000.txt").write_bytes("é".encode("latin-1"))
    seen, real = [], datasets.Dataset.from_generator

    def recorded(rows, **options):
        seen.append({**options, "gen_kwargs": [shard.address for shard in options["gen_kwargs"]["shards"]]})
        return real(rows, **{**options, "num_proc": None})

    monkeypatch.setattr(datasets.Dataset, "from_generator", recorded)
    assert load_img2dataset(tmp_path / "cc", num_proc=given)["caption"][0] == "\ufffd"
    shards = [str(tmp_path / "cc" / name) for name in ("00000", "00001")]
    features = seen[0].pop("features")
    assert list(features) == ["image", "caption", "image_id", "url", "key", "__left_out__"]
    assert seen == [{"gen_kwargs": shards, "num_proc": processes}]
