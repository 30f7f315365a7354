"""WebDataset archives as captioned images, and the same archives scored where they lie."""

from __future__ import annotations

import io
import json
import shutil
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import concatenate_datasets
from PIL import Image

from hf_curriculum import CaptionLength, Scorer, load_captioned, load_scored, load_scores, score_shards
from hf_curriculum.data.readers.webdataset import load_webdataset

NAN = pytest.approx(np.nan, nan_ok=True)
pytestmark = pytest.mark.usefixtures("datasets_cache")


def picture(number):
    file = io.BytesIO()
    Image.new("RGB", (8 + number, 8)).save(file, "PNG")
    return file.getvalue()


def write(path, *files, format=tarfile.PAX_FORMAT):
    """An archive of (name, content); records are dicts, and a number is a picture of 8 + number pixels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=format, errors="surrogateescape") as archive:
        for name, content in files:
            content = picture(content) if isinstance(content, int) else content
            content = json.dumps(content) if isinstance(content, (dict, list)) else content
            content = content.encode() if isinstance(content, str) else content
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def scores(source, out, **options):
    status = score_shards(source, CaptionLength(), out, keep=["caption"], **options)
    return status, load_scored(out)


def widths(pairs):
    return [row["image"].size[0] - 8 for row in pairs]


def test_names_with_dots_give_the_same_keys_to_the_loader_and_to_the_scores(tmp_path):
    names = ["000", "v1.0_a", "v1.0_b", "999"]
    texts = ["one", "two words", "three long words", "four"]
    files = [
        each for number, name in enumerate(names) for each in ((f"{name}.png", number), (f"{name}.txt", texts[number]))
    ]
    write(tmp_path / "d/x.tar", *files)
    pairs, (status, scored) = load_captioned(tmp_path / "d"), scores(tmp_path / "d", tmp_path / "out")
    assert pairs.column_names == ["image", "caption", "image_id", "shard", "key"]
    assert pairs["key"][:] == scored["key"][:] == names
    assert pairs["caption"][:] == scored["caption"][:] == texts
    assert widths(pairs) == [0, 1, 2, 3]
    assert load_scores(pairs, tmp_path / "out")["caption_length"][:] == [1, 2, 3, 1]
    assert status.left_out == {}


def test_files_that_are_no_neighbours_are_one_pair(tmp_path):
    files = [("b.png", 1), ("a.png", 0), ("._b.png", "mac"), ("b.txt", "B"), (".DS_Store", "x"), ("a.txt", "A")]
    pairs = load_captioned(write(tmp_path / "x.tar", *files))
    assert (pairs["key"][:], pairs["caption"][:], widths(pairs)) == (["b", "a"], ["B", "A"], [1, 0])


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_names_of_any_bytes_and_length(tmp_path, format):
    odd = b"caf\xe9".decode("utf-8", "surrogateescape")
    long = "long/" * 12 + "n" * 90
    files = [
        each
        for number, name in enumerate((odd, "é", long))
        for each in ((f"{name}.png", number), (f"{name}.txt", f"t{number}"))
    ]
    path = write(tmp_path / "x.tar", *files, format=format)
    pairs = load_captioned(path)
    assert pairs["key"][:] == scores(path, tmp_path / "out")[1]["key"][:] == ["caf\\xe9", "é", long]
    assert (pairs["caption"][:], widths(pairs)) == (["t0", "t1", "t2"], [0, 1, 2])


ODD = [
    *(("0.png", 0), ("0.json", {"caption": 7}), ("1.png", 1), ("1.json", {"caption": ["a cat", "two cats sit"]})),
    *(("2.png", 2), ("2.json", {"caption": None, "width": 9}), ("3.png", 3), ("3.json", "{no json")),
    *(("4.png", 4), ("4.json", {"caption": ["only one"]}), ("5.png", 5), ("5.json", {"caption": {"en": "x"}})),
    *(
        ("6.cls", "3"),
        ("7.png", 7),
        ("7.txt", b"caf\xe9 noir"),
        ("8.png", 8),
        ("8.json", b'{"caption": "dog \\ud83d"}'),
    ),
    *(("9.png", 9), ("9.txt", ""), ("10.txt", "without a picture"), ("11.png", 11), ("11.json", [1])),
]


def test_a_fault_of_a_row_is_a_fault_of_that_row(tmp_path):
    write(tmp_path / "d/0.tar", *ODD)
    write(tmp_path / "d/1.tar", ("0.png", 0), ("0.txt", "a sound one"))
    status, scored = scores(tmp_path / "d", tmp_path / "out")
    found = dict(zip(zip(scored["shard"][:], scored["key"][:], strict=True), scored["caption_length"][:], strict=True))
    sound = {("0.tar", "4"): 2, ("0.tar", "7"): 2, ("0.tar", "8"): 2, ("0.tar", "10"): 3, ("1.tar", "0"): 3}
    assert {pair: score for pair, score in found.items() if not np.isnan(score)} == sound
    assert len(found) == 13
    assert {why: count for why, (count, _) in status.left_out.items()} == {
        "`caption` that are no text": 2,
        "`caption` that are lists of several texts (`load_captioned` makes a row of each)": 1,
        "records that are no JSON objects": 2,
        "samples none of whose files is read": 1,
        "texts that are not UTF-8 (what cannot be read is replaced)": 1,
        "texts with half of a character (replaced by \ufffd)": 1,
        "pairs without `caption`": 8,
        "pairs without a score `caption_length`": 8,
    }
    assert "  2 × `caption` that are no text, 0.tar: 0: 7 for example" in status.describe()


@pytest.mark.parametrize("again", ["read", "cached"])
def test_loading_names_rows_that_cannot_be_read_or_drops_and_counts_them(tmp_path, again):
    path = write(tmp_path / "0.tar", *ODD)
    with pytest.raises(
        ValueError, match=r"0\.tar: the caption of sample '0' is no text: 7\. Correct.*bad_rows='drop'"
    ):
        load_captioned(path)
    if again == "cached":
        load_captioned(path, bad_rows="drop")
    pairs = load_captioned(path, bad_rows="drop")
    assert pairs["key"][:] == ["1", "1", "2", "4", "7", "8", "9"]
    assert pairs["caption"][:] == ["a cat", "two cats sit", None, "only one", "caf\ufffd noir", "dog \ufffd", ""]
    assert (widths(pairs), pairs["width"][:]) == ([1, 1, 2, 4, 7, 8, 9], [None, None, 9, None, None, None, None])
    for reason in ("rows that cannot be read: 4 (", "pairs without `image`: 2 (0.tar: 6,", "half of a character"):
        assert reason in pairs.info.description


def test_which_file_is_the_picture_is_asked_and_can_be_said(tmp_path):
    files = [
        (f"{n}.{end}", content)
        for n in range(3)
        for end, content in (("left.png", n), ("right.png", n + 3), ("title", f"t{n}"))
    ]
    path = write(tmp_path / "x.tar", *files)
    with pytest.raises(ValueError, match=r"holds no pair: .*which file is the image \(columns=\{'image': \.\.\.\}"):
        load_captioned(path)
    pairs = load_captioned(path, columns={"image": "right.png", "caption": "title"})
    assert (widths(pairs), pairs["caption"][:]) == ([3, 4, 5], ["t0", "t1", "t2"])
    assert "files `.left.png` of samples (not read): 3" in pairs.info.description
    with pytest.raises(ValueError, match="archives have one text for each sample"):
        load_captioned(path, columns={"caption": ["title", "txt"]})
    with pytest.raises(ValueError, match="holds its own images"):
        load_captioned(path, images=tmp_path)


def test_pictures_that_are_numbered_alike_have_ids_of_their_own(tmp_path):
    for shard in range(2):
        for folder in ("one", "two"):
            number = 2 * shard + (folder == "two")
            write(
                tmp_path / folder / f"{shard}.tar", ("0.png", number), ("0.txt", "a"), ("1.png", 9), ("1.txt", "same")
            )
    loaded = [load_captioned(tmp_path / folder) for folder in ("one", "two")]
    ids = {
        image: {part["image_id"][row] for part in loaded for row, width in enumerate(widths(part)) if width == image}
        for image in (0, 1, 2, 3, 9)
    }
    assert [len(some) for some in ids.values()] == [1, 1, 1, 1, 1]
    assert len(set.union(*ids.values())) == 5
    texts = load_captioned(tmp_path / "one", images=False)
    assert texts["image_id"][:] == ["0/0", "0/1", "1/0", "1/1"]
    write(tmp_path / "x.tar", ("0.png", 0), ("0.json", {"caption": "a", "image_id": 17}))
    assert load_captioned(tmp_path / "x.tar", columns={"image_id": "image_id"})["image_id"][:] == ["17"]
    assert "fields `image_id` of records" in load_captioned(tmp_path / "x.tar").info.description


def test_archives_called_by_split_are_splits(tmp_path):
    for number, name in enumerate(("train-0.tar", "val-0.tar", "train-1.tar")):
        write(tmp_path / "a" / name, ("0.png", number), ("0.txt", name))
        write(tmp_path / "b" / name.replace("-", "/"), ("0.png", number), ("0.txt", name))
    for folder in ("a", "b"):
        splits = load_captioned(tmp_path / folder)
        texts = {name: part["caption"][:] for name, part in splits.items()}
        assert texts == {"train": ["train-0.tar", "train-1.tar"], "validation": ["val-0.tar"]}
        assert load_captioned(tmp_path / folder, split="validation")["caption"][:] == ["val-0.tar"]
    write(tmp_path / "a/other.tar", ("0.png", 5), ("0.txt", "other"))
    assert len(load_webdataset(tmp_path / "a")["all"]) == 4


@pytest.mark.parametrize("name", ["set[1]", "a{b,c}", "q?", "s*", "c::d", "memory::x", "{0..3}"])
def test_a_path_that_exists_is_no_pattern(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    for folder in ("set1", "ab", "qq", "ss", "0", name):
        text = "the right one" if folder == name else "another"
        write(tmp_path / folder / "x.tar", ("0.png", 0), ("0.txt", text))
    shutil.copy(tmp_path / name / "x.tar", f"{name}.tar")
    for number, source in enumerate((name, f"{name}/x.tar", f"{name}.tar", f"{name}/*.tar", f"{name}/{{x,x}}.tar")):
        assert scores(source, f"out {number} {name}")[1]["caption"][:] == ["the right one"]
        if number < 3:
            assert load_captioned(source)["caption"][:] == ["the right one"]


@pytest.mark.parametrize("ending", [".tgz", ".tar.gz", ".tar"])
def test_compressed_archives_are_refused_in_words(tmp_path, ending):
    write(tmp_path / "x.tar", ("0.png", 0), ("0.txt", "a"))
    folder = tmp_path / "d"
    folder.mkdir()
    with tarfile.open(folder / f"z{ending}", "w:gz") as archive:
        archive.add(tmp_path / "x.tar", "x.tar")
    for source in (folder, folder / f"z{ending}"):
        for read in (load_captioned, lambda path: score_shards(path, CaptionLength(), tmp_path / "out")):
            with pytest.raises(ValueError, match=rf"z{ending} is compressed, .*Unpack it once \(`gunzip`"):
                read(source)


def test_what_stands_behind_the_end_of_an_archive_is_not_lost(tmp_path):
    one, two = (write(tmp_path / f"{n}.tar", (f"{n}.png", n), (f"{n}.txt", "a"), ("é.txt", "b")) for n in range(2))
    (tmp_path / "both.tar").write_bytes(one.read_bytes() + two.read_bytes())
    content = bytearray(two.read_bytes())
    at = content.rindex(b"ustar", 0, content.rindex(b"ustar")) - 257  # the header of the last name's own header
    content[at + 3] ^= 1
    (tmp_path / "damaged.tar").write_bytes(content)
    for name in ("both.tar", "damaged.tar"):
        with pytest.raises(ValueError, match=rf"{name} cannot be read to its end \(behind its end .*it goes on"):
            load_captioned(tmp_path / name)


def test_files_beside_the_archives_are_counted(tmp_path):
    write(tmp_path / "d/x.tar", ("0.png", 0), ("0.txt", "a"))
    for name in ("sizes.json", "README", ".hidden"):
        (tmp_path / "d" / name).write_text("{}")
    assert (
        "files beside the archives (not read): 2 (README, for example)"
        in load_captioned(tmp_path / "d").info.description
    )


class Fussy(Scorer):
    """Fails on some values of a column."""

    columns, name = ("page",), "fussy"

    def score(self, batch, rank):
        return np.array([float(len(value)) for value in batch["page"]])


def test_a_row_on_which_a_scorer_fails_has_no_score(tmp_path, monkeypatch):
    pages = ["a", 7, None, "four", *["x"] * 40]
    write(tmp_path / "d/0.tar", *((f"{n}.json", {"page": page}) for n, page in enumerate(pages)))
    write(tmp_path / "d/1.tar", *((f"{n}.json", {"page": n}) for n in range(20)))
    write(tmp_path / "d/2.tar", ("0.json", {"page": "ab"}))
    with pytest.raises(
        ValueError, match=r"1 of 3 shards cannot be read.* 1: Fussy fails on each of 20 pairs: object of"
    ):
        score_shards(tmp_path / "d", Fussy(), tmp_path / "out")
    monkeypatch.setattr(Fussy, "score", lambda self, batch, rank: np.array([5.0] * len(batch["page"])))
    status = score_shards(tmp_path / "d", Fussy(), tmp_path / "out")
    assert load_scored(tmp_path / "out")["fussy"][:] == [1, NAN, NAN, 4, *[1] * 40, *[5] * 20, 2]
    assert {why: count for why, (count, _) in status.left_out.items()} == {
        "pairs on which Fussy fails": 2,
        "pairs without a score `fussy`": 2,
    }


def test_the_first_shard_alone_does_not_decide_which_columns_there_are(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d/0.tar").write_bytes(b"no archive")
    write(tmp_path / "d/1.tar", ("0.png", 0))
    write(tmp_path / "d/2.tar", ("0.png", 0), ("0.txt", "two words"))
    with pytest.raises(ValueError, match="1 of 3 shards cannot be read, and the others are scored"):
        score_shards(tmp_path / "d", CaptionLength(), tmp_path / "out")
    (tmp_path / "d/0.tar").unlink()
    status = score_shards(tmp_path / "d", CaptionLength(), tmp_path / "other")
    assert (status.pairs, status.left_out["pairs without `caption`"]) == (2, (1, "1.tar: 0"))


def test_parquet_with_lists_names_and_missing_keys(tmp_path):
    images = [
        {"bytes": picture(0), "path": None},
        {"bytes": None, "path": "/etc/hostname"},
        {"bytes": picture(2), "path": "b"},
    ]
    table = {"image": images, "caption": [["one word"], ["x", "y"], None], "key": ["k", None, "k"]}
    pq.write_table(pa.table(table), tmp_path / "p.parquet")
    status, scored = scores(tmp_path / "p.parquet", tmp_path / "out")
    assert (scored["key"][:], scored["caption"][:]) == (["k", "1", "k"], ["one word", None, None])
    assert status.left_out["pairs without `caption`"] == (2, "p.parquet: 1")

    class Widths(Scorer):
        columns, name = ("image",), "width"

        def score(self, batch, rank):
            return np.array([image.width for image in batch["image"]])

    status = score_shards(tmp_path / "p.parquet", Widths(), tmp_path / "widths")
    assert load_scored(tmp_path / "widths")["width"][:] == [8, NAN, 10]
    assert status.left_out["images that are names of files (not opened)"][0] == 1


def test_all_of_the_first_pairs_say_which_fields_there_are_and_of_which_types(tmp_path, monkeypatch):
    def record(number):
        late = {"late": f"l{number}"} if number == 150 else {}
        inside = {"a": 1, "b": 2} if number == 151 else {"a": number}
        return {"caption": "c", "size": 2.5 if number == 120 else number, "box": inside, **late}

    def archive(name, numbers):
        write(tmp_path / name, *(each for n in numbers for each in ((f"{n}.png", n), (f"{n}.json", record(n)))))

    archive("d/0.tar", range(115))
    archive("d/1.tar", range(115, 155))
    pairs = load_captioned(tmp_path / "d")
    assert pairs["size"][:] == [2.5 if n == 120 else n for n in range(155)]
    assert pairs["late"][:] == ["l150" if n == 150 else None for n in range(155)]
    assert [pairs["box"][n] for n in (3, 151)] == [{"a": 3, "b": None}, {"a": 1, "b": 2}]
    assert pairs.info.description == ""
    monkeypatch.setattr("hf_curriculum.data.readers.webdataset.FIRST", 100)
    pairs = load_captioned(tmp_path / "d")
    assert pairs["size"][:] == [None if n == 120 else n for n in range(155)]
    for reason in (
        "values of `size` that are no int64: 1 (2.5, for example)",
        "fields `late` (not kept: none of the first pairs has one): 1 (150, for example)",
        "values of `box` with fields or values that are not kept: 1 ({'a': 1, 'b': 2}, for example)",
    ):
        assert reason in pairs.info.description


def test_fields_in_whose_place_our_columns_stand_are_counted(tmp_path):
    record = {"image": "http://x/0.png", "shard": 7, "key": "other", "caption": "of the record"}
    same = {"shard": "x.tar", "key": "1", "caption": "b"}
    files = [
        ("0.png", 0),
        ("0.txt", "of the file"),
        ("0.json", record),
        ("1.png", 1),
        ("1.txt", "b\n"),
        ("1.json", same),
    ]
    path = write(tmp_path / "x.tar", *files)
    pairs = load_captioned(path)
    assert pairs[0]["caption"] == "of the file"
    for name, value in record.items():
        reason = f"fields `{name}` of records (our column has the name)"
        if name == "caption":
            reason = "captions of JSON beside another .txt (columns={'caption': 'caption'} takes them)"
        assert f"{reason}: 1 (0: {value!r}, for example)" in pairs.info.description
    pairs = load_captioned(path, columns={"caption": "caption", "image_id": "key"})
    assert (pairs["caption"][:], pairs["image_id"][:]) == (["of the record", "b"], ["other", "1"])


@pytest.mark.parametrize(
    ("records", "captions", "lengths", "further"),
    [
        ([{"text": "one"}, {"text": "a b"}], ["one", "a b"], [1, 2], []),
        ([{"captions": ["a b"]}, {"sentences": ["x"], "n": 1}], ["a b", "x"], [2, 1], ["n"]),
        ([{"Caption": "one"}, {"sentence": "a b c"}], ["one", "a b c"], [1, 3], []),
        ([{"caption": "one", "text": "kept"}, {"text": "a b"}], ["one", "a b"], [1, 2], ["text"]),
        (
            [{"filepath": "x", "title": "a b"}, {"title": "no", "text": "t"}],
            ["a b", "t"],
            [2, 1],
            ["filepath", "title"],
        ),
        ([{"caption_0": "a b", "caption_1": ""}, {"comment": "a b c"}], ["a b", "a b c"], [2, 3], []),
        ([{"caption_0": "a b", "caption_1": "c"}, {"text": "d"}], ["a b", "c", "d"], [NAN, 1], []),
        ([{"captions": ["a b", "c"]}, {"caption": None, "text": "d"}], ["a b", "c", None], [NAN, NAN], ["text"]),
    ],
)
def test_captions_are_found_under_the_names_that_tables_give_them(tmp_path, records, captions, lengths, further):
    path = write(
        tmp_path / "x.tar", *(each for n, one in enumerate(records) for each in ((f"{n}.png", n), (f"{n}.json", one)))
    )
    pairs = load_captioned(path)
    assert pairs["caption"][:] == captions
    assert pairs.column_names == ["image", "caption", "image_id", "shard", "key", *further]
    assert scores(path, tmp_path / "out")[1]["caption_length"][:] == lengths


def test_fields_of_captions_that_are_named_stay_columns(tmp_path, caplog):
    path = write(tmp_path / "x.tar", ("0.png", 0), ("0.json", {"text": "two words"}))
    with caplog.at_level("INFO"):
        pairs = load_captioned(path)
        score_shards(
            path, [CaptionLength(), CaptionLength(column="text", name="of_text")], tmp_path / "out", keep=["text"]
        )
    assert pairs["caption"][:] == load_scored(tmp_path / "out")["text"][:] == ["two words"]
    assert f"{path}: read caption ← text; `columns` names others" in caplog.text
    assert "x.tar: read caption ← text; `columns` names others" in caplog.text
    pq.write_table(pa.table({"key": ["0"], "sentences": ["two words"], "txt": ["x"]}), tmp_path / "p.parquet")
    scored = score_shards(tmp_path / "p.parquet", CaptionLength(), tmp_path / "p", keep=["sentences", "caption"])
    assert load_scored(tmp_path / "p")["caption"][:] == ["two words"]
    assert scored.left_out == {}


@pytest.mark.parametrize(
    ("files", "advice", "column"),
    [
        ([("0.json", {"n": 1, "url": "x", "headline": "a b"})], r"fields \['n', 'url', 'headline'\]", "headline"),
        ([("0.json", {"n": 1}), ("0.title", "a b")], r"the files \['title'\]", "title"),
        (
            [("metadata.jsonl", "{}")],
            r"no other field or file\. .*none of whose files is read: 1 \(metadata: \.jsonl",
            None,
        ),
    ],
)
def test_without_any_caption_the_fields_and_files_are_named_and_the_advice_can_be_followed(
    tmp_path, files, advice, column
):
    path = write(tmp_path / "x.tar", ("0.png", 0), *files)
    mapped = "" if column is None else rf".*columns=\{{'caption': '{column}'\}}"
    with pytest.raises(ValueError, match=f"no pair has a caption, .*{advice}{mapped}"):
        load_captioned(path)
    with pytest.raises(ValueError, match=f"`caption` is not in the data.*{advice}{mapped}"):
        score_shards(path, CaptionLength(), tmp_path / "out")
    if column is not None:
        assert load_captioned(path, columns={"caption": column})["caption"][:] == ["a b"]
        assert scores(path, tmp_path / "out", columns={"caption": column})[1]["caption_length"][:] == [2]


def test_only_the_record_of_a_sample_itself_is_its_record(tmp_path):
    files = [("0.png", 0), ("0.boxes.json", [[1, 2, 3, 4]]), ("0.txt", "a b"), ("0.ocr.txt", "no caption")]
    files += [("1.png", 1), ("1.json", {"caption": "c"}), ("1.boxes.json", {"caption": "no"}), ("1.ocr.txt", "EXIT")]
    path = write(tmp_path / "x.tar", *files)
    pairs, (status, scored) = load_captioned(path), scores(path, tmp_path / "out")
    assert pairs["caption"][:] == scored["caption"][:] == ["a b", "c"]
    for ending in (".boxes.json", ".ocr.txt"):
        assert f"files `{ending}` of samples (not read): 2" in pairs.info.description
        assert status.left_out[f"files `{ending}` of samples (not read)"] == (2, "x.tar: 0")


def test_files_beside_shards_are_counted_by_both_readers(tmp_path, caplog):
    for name in ("1.tar", "2.TAR", "3.Parquet", ".hidden"):
        write(tmp_path / "d" / name, ("0.png", 0), ("0.txt", "a"))
    reason = "files beside the archives (not read): 2 (2.TAR, for example)"
    assert reason in load_captioned(tmp_path / "d").info.description
    caplog.clear()
    assert scores(tmp_path / "d", tmp_path / "out")[0].pairs == 1
    assert f"{tmp_path}/d, left out: {reason}." in caplog.text


@pytest.mark.parametrize("text", ["a dog\n", "a dog\r\n", "\ufeffa dog", " a dog \n\n"])
def test_a_text_in_an_archive_is_that_of_a_folder(tmp_path, text):
    (tmp_path / "folder").mkdir()
    for name, content in (("1.png", picture(1)), ("1.txt", text.encode())):
        (tmp_path / "folder" / name).write_bytes(content)
    write(tmp_path / "archives/0.tar", ("1.png", 1), ("1.txt", text))
    captions = [load_captioned(tmp_path / name)["caption"][:] for name in ("folder", "archives")]
    assert captions == [["a dog"], ["a dog"]]


def test_values_of_several_types_are_texts_of_json(tmp_path):
    values = [{"k": [1, "é"]}, 7, "seven", None, True]
    path = write(
        tmp_path / "x.tar",
        *(
            each
            for n, one in enumerate(values)
            for each in ((f"{n}.png", n), (f"{n}.json", {"caption": "c", "f": one}))
        ),
    )
    texts = ['{"k": [1, "é"]}', "7", "seven", None, "true"]
    assert load_captioned(path)["f"][:] == texts
    score_shards(path, CaptionLength(), tmp_path / "out", keep=["f"])
    assert load_scored(tmp_path / "out")["f"][:] == texts


def test_keys_that_begin_anew_in_each_shard_join_by_the_advice_of_the_error(tmp_path):
    (tmp_path / "d").mkdir()
    for name in ("a", "b"):
        table = {"key": [1, 2], "caption": [name, f"{name} b"], "image": [picture(1), picture(2)]}
        pq.write_table(pa.table(table), tmp_path / f"d/{name}.parquet")
    score_shards(tmp_path / "d", CaptionLength(), tmp_path / "out")
    with pytest.raises(
        ValueError, match=r"2 values of `key` stand more .*data\.add_column\(\"shard\", \[\"a\.parquet\"\]"
    ):
        load_scores(load_captioned(tmp_path / "d"), tmp_path / "out")
    parts = []
    for name in ("b.parquet", "a.parquet"):
        data = load_captioned(tmp_path / "d" / name)
        parts.append(data.add_column("shard", [name] * len(data)))
    assert load_scores(concatenate_datasets(parts), tmp_path / "out")["caption_length"][:] == [1, 2, 1, 2]
