"""The identity of rows: what it sees, what it does not depend on, and how it says what differs."""

from __future__ import annotations

import base64
import datetime
import json
import random
import shutil
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from datasets import Array2D, Dataset, Features, Image, List, Value, concatenate_datasets, load_dataset, load_from_disk
from PIL import Image as Picture

from hf_curriculum import fingerprint as module
from hf_curriculum import load_captioned
from hf_curriculum.files import DamagedFileError, write_sealed
from hf_curriculum.fingerprint import (
    RowsFingerprint,
    fingerprint_rows,
    read_trained_on,
    share_trained_on,
    sketch_texts,
)
from hf_curriculum.provenance import ScoreProvenance, attach_provenance
from hf_curriculum.views import repeat_rows

CAPTIONS = ["a dog", "", "ein Hund läuft", "a dog", None, "two dogs and a ball"]
COLUMNS = {
    "text": (Value("string"), CAPTIONS),
    "large text": (Value("large_string"), CAPTIONS),
    "integers": (Value("int16"), [3, 1, None, 3, 2, 0]),
    "unsigned": (pa.uint64(), [2**64 - 1, 1, 2, 3, 4, 5]),
    "floats": (Value("float32"), [0.5, 1.0, float("nan"), None, 2.0, -0.0]),
    "booleans": (Value("bool"), [True, False, None, True, False, False]),
    "dates": (Value("date32"), [datetime.date(2026, 1, day) for day in range(1, 7)]),
    "times": (Value("timestamp[s]"), [datetime.datetime(2026, 1, day) for day in range(1, 7)]),
    "lists": (List(Value("int64")), [[1, 2], [], None, [3], [1, None], [2, 1]]),
    "fixed lists": (List(Value("float32"), length=2), [[1, 2], [2, 1], [3, 3], [0, 1], [1, 1], [4, 4]]),
    "lists of text": (List(Value("string")), [["a", "b"], ["ab"], [], None, ["", "ab"], ["ab", ""]]),
    "structs": ({"a": Value("int64"), "b": Value("string")}, [{"a": k, "b": str(k)} for k in range(5)] + [None]),
    "arrays": (Array2D((2, 2), "float32"), [np.full((2, 2), k, np.float32) for k in range(6)]),
    "bytes": (Value("binary"), [b"", b"\0", b"\0\0", None, b"ab", b"ba"]),
    "decimals": (pa.decimal128(5, 2), [Decimal(1), Decimal(2), None, Decimal("1.5"), Decimal(0), Decimal(-1)]),
    "nothing": (Value("null"), [None] * 6),
}


def column(name, rows=range(6)):
    feature, values = COLUMNS[name]
    values = [values[row] for row in rows]
    if isinstance(feature, pa.DataType):
        return Dataset(pa.table({"c": pa.array(values, feature)}))
    return Dataset.from_dict({"c": values}, Features({"c": feature}))


def columns_of(data):
    return fingerprint_rows(data).columns


@pytest.mark.parametrize("name", COLUMNS)
class TestEveryKindOfColumn:
    def test_is_the_same_however_it_is_kept(self, name, tmp_path):
        whole = column(name)
        expected = fingerprint_rows(whole)
        parts = concatenate_datasets([whole.select([0]), whole.select(range(1, 4)), whole.select([4, 5])])
        whole.save_to_disk(tmp_path / "saved")
        for other in (
            parts,
            load_from_disk(tmp_path / "saved"),
            load_from_disk(tmp_path / "saved", keep_in_memory=True),
            column(name, [5, 4, 3, 2, 1, 0]).select([5, 4, 3, 2, 1, 0]),
            whole.select([5, 4, 3, 2, 1, 0]).select([5, 4, 3, 2, 1, 0]).flatten_indices(),
            concatenate_datasets([whole, whole]).select(range(6)),
            concatenate_datasets([whole, whole]).select(range(6, 12)),
            whole.with_format("numpy"),
            whole.with_transform(lambda rows: rows),
        ):
            found = fingerprint_rows(other)
            assert found.columns == expected.columns
            assert np.array_equal(found.stacked_blocks(), expected.stacked_blocks())
            assert expected.difference(found) == ""

    def test_every_row_counts(self, name):
        if name == "nothing":
            assert columns_of(column(name)) != columns_of(column(name, range(5)))
            return
        seen = {str(columns_of(column(name, [row]))) for row in range(6)}
        assert len(seen) == len({str(column(name, [row])["c"][0]) for row in range(6)})
        order = [0, 2, 1, 3, 4, 5]
        assert columns_of(column(name, order)) != columns_of(column(name))
        difference = fingerprint_rows(column(name)).difference(fingerprint_rows(column(name).select(order)))
        assert difference == "6 rows then and now, but `c` of 2 differs (first: row 1)"


def test_kinds_of_text_and_of_whole_numbers_are_one():
    for first, second in (("text", "large text"),):
        assert columns_of(column(first)) == columns_of(column(second))
    assert columns_of(column("integers")) == columns_of(column("integers").cast_column("c", Value("int64")))
    labels = Dataset.from_dict({"c": [0, 1, 0]})
    assert columns_of(labels) == columns_of(labels.class_encode_column("c").cast_column("c", Value("int8")))


def test_a_value_does_not_run_into_its_neighbour():
    pairs = [(["ab", "c"], ["a", "bc"]), ([[1, 2], [3]], [[1], [2, 3]]), ([["a"], ["", "b"]], [["a", ""], ["b"]])]
    pairs += [(["a", None], [None, "a"]), ([[1, None], [2]], [[None, 1], [2]])]  # which one is null
    for before, now in pairs:
        # One block for both rows, as in large data.
        one, other = (Dataset.from_dict({"c": values * 4096}) for values in (before, now))
        assert fingerprint_rows(one).block_rows == 2
        assert columns_of(one) != columns_of(other)


class TestLargeData:
    def test_blocks(self, monkeypatch):
        monkeypatch.setattr(module, "_BATCH", 100)
        data = Dataset.from_dict({"caption": [f"row {row}" for row in range(10_000)]})
        before = fingerprint_rows(data)
        assert (before.block_rows, before.stacked_blocks().shape) == (3, (1, 3334))
        order = np.arange(10_000)
        order[[9_998, 9_999]] = 9_999, 9_998
        moved = fingerprint_rows(data.select(order))
        assert before.difference(moved) == (
            "10,000 rows then and now, but `caption` differs in 2 of 3,334 blocks of 3 rows "
            "(first: rows 9,996 to 9,998)"
        )
        monkeypatch.setattr(module, "_BATCH", 1 << 16)
        assert before.difference(fingerprint_rows(data)) == ""

    def test_long_lists_are_sampled(self, monkeypatch):
        values = np.arange(4000).reshape(1000, 4)
        data = Dataset.from_dict({"x": values.tolist()})
        assert list(columns_of(data)["x"]) == ["values"]
        monkeypatch.setattr(module, "_WHOLE", 100)
        before = fingerprint_rows(data)
        assert list(before.columns["x"]) == ["sizes", "samples"]
        found = before.difference(fingerprint_rows(data.select(range(999, -1, -1))))
        assert found.startswith("1,000 rows then and now, but `x` of at least 2")
        longer = Dataset.from_dict({"x": [[*row, 1] if number == 5 else row for number, row in enumerate(values)]})
        assert before.difference(fingerprint_rows(longer)).endswith("`x` of 1 differs (first: row 5)")
        fixed = data.cast_column("x", List(Value("int64"), length=4))
        assert list(columns_of(fixed)["x"]) == ["samples"]

    def test_the_bytes_of_many_images_are_not_read(self, monkeypatch):
        files = [{"bytes": bytes([number % 250]) * (number + 1), "path": f"{number}.jpg"} for number in range(300)]
        features = Features({"image": Image()})
        read = []
        sample = module._file_bytes
        monkeypatch.setattr(module, "_file_bytes", lambda value: read.append(1) or sample(value))
        before = fingerprint_rows(Dataset.from_dict({"image": files}, features))
        assert len(read) == 256
        assert list(before.columns["image"]) == ["names", "sizes", "samples"]
        for changed, row in (({"path": "x.jpg"}, 7), ({"bytes": b"abc"}, 100), ({"bytes": b"x"}, 0)):
            others = [{**file, **changed} if number == row else file for number, file in enumerate(files)]
            found = before.difference(fingerprint_rows(Dataset.from_dict({"image": others}, features)))
            assert found.endswith(f"differs (first: row {row})")


@pytest.fixture
def photographs(tmp_path):
    """`photographs(name, order)` writes twelve files and their captions into a folder, in that order."""

    def write(name, order=range(12)):
        folder = tmp_path / name
        for number in order:
            file = folder / f"set{number % 2}" / f"{number // 2}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Picture.new("RGB", (4 + number, 4), (9 * number, 0, 0)).save(file)
        lines = [f"set{number % 2}/{number // 2}.png,caption {number}" for number in range(12)]
        (folder / "metadata.csv").write_text("file_name,caption\n" + "\n".join(lines) + "\n")
        return folder

    return write


class TestImages:
    def test_files_are_the_same_wherever_they_are(self, photographs, tmp_path):
        first = load_captioned(photographs("a"))
        again = load_captioned(photographs("b/c", random.Random(0).sample(range(12), 12)))
        before = fingerprint_rows(first)
        assert list(before.columns["image"]) == ["paths", "names", "sizes", "samples"]
        assert before.columns == fingerprint_rows(again).columns
        first.save_to_disk(tmp_path / "saved")
        shutil.rmtree(tmp_path / "a")
        embedded = fingerprint_rows(load_from_disk(tmp_path / "saved"))
        assert list(embedded.columns["image"]) == ["names", "sizes", "samples"]
        assert before.difference(embedded) == embedded.difference(before) == ""

    def test_another_cache(self, photographs, tmp_path):
        folder = photographs("a")
        one, other = (
            load_dataset("imagefolder", data_dir=str(folder), split="train", cache_dir=str(tmp_path / name))
            for name in ("one", "other")
        )
        assert fingerprint_rows(one).columns == fingerprint_rows(other).columns

    def test_files_of_equal_names_in_other_folders(self, photographs, monkeypatch):
        data = load_captioned(photographs("a")).cast_column("image", Image(decode=False))
        paths = [image["path"] for image in data["image"]]
        monkeypatch.setattr(module, "_SAMPLED", 1)

        def images(order):
            return Dataset.from_dict({"image": [paths[row] for row in order]}, Features({"image": Image()}))

        swapped = fingerprint_rows(images([0, 1, 3, 2, *range(4, 12)]))
        found = fingerprint_rows(images(range(12))).difference(swapped)
        assert found == "12 rows then and now, but `image` of 2 differs (first: row 2)"

    def test_a_file_that_was_changed_and_one_that_is_gone(self, photographs):
        folder = photographs("a")
        data = load_captioned(folder)
        before = fingerprint_rows(data)
        Picture.new("RGB", (4, 4)).save(folder / "set1" / "2.png")
        assert before.difference(fingerprint_rows(data)).endswith("`image` of 1 differs (first: row 5)")
        (folder / "set0" / "0.png").unlink()
        assert before.difference(fingerprint_rows(data)).endswith("`image` of 2 differs (first: row 0)")

    def test_names_in_archives(self):
        paths = [f"zip://photos/{name}.jpg::/data/all.zip" for name in "ab"]
        assert module._file_names(pa.chunked_array([paths])).to_pylist() == ["a.jpg", "b.jpg"]

    def test_rows_without_an_image(self):
        files = [{"bytes": b"a", "path": None}, None, {"bytes": None, "path": "b.png"}]
        data = Dataset.from_dict({"image": files}, Features({"image": Image()}))
        before = fingerprint_rows(data)
        assert before.difference(fingerprint_rows(data.select([0, 1, 2]))) == ""
        assert before.difference(fingerprint_rows(data.select([1, 0, 2]))).endswith("of 2 differs (first: row 0)")


class TestDifference:
    data = Dataset.from_dict({"caption": ["a", "b", "c"], "image_id": ["1", "2", "3"], "label": [0, 1, 0]})

    def difference(self, now):
        return fingerprint_rows(self.data).difference(fingerprint_rows(now))

    def test_new_and_renamed_columns_pass(self):
        assert self.difference(self.data.add_column("note", ["x", "y", "z"])) == ""
        assert self.difference(self.data.rename_columns({"caption": "text", "label": "class"})) == ""

    def test_missing_columns_and_rows_do_not(self):
        assert self.difference(self.data.remove_columns("label")) == "3 rows then and now, but `label` is missing"
        found = self.difference(self.data.select_columns("image_id"))
        assert found == "3 rows then and now, but `caption` and `label` are missing"
        assert self.difference(self.data.select([0, 1])) == "3 rows then, 2 now"

    def test_one_column_is_not_two_renamed_ones(self):
        twice = self.data.add_column("text", ["a", "b", "c"])
        now = twice.rename_column("caption", "words").remove_columns("text")
        assert fingerprint_rows(twice).difference(fingerprint_rows(now)).endswith("but `text` is missing")

    def test_several_things_at_once(self):
        other = Dataset.from_dict({"caption": ["a", "c", "b"], "image_id": ["1", "2", "4"], "name": ["x", "y", "z"]})
        assert self.difference(other) == (
            "3 rows then and now, but `caption` and `image_id` of 2 differ (first: row 1), and `label` is missing"
        )

    def test_scores_with_provenance_do_not_count(self):
        scored = self.data.add_column("score", np.float32([1, 2, 3]))
        scored = attach_provenance(scored, {"score": ScoreProvenance("score", "counted")})
        assert fingerprint_rows(scored).columns == columns_of(self.data)

    def test_without_columns_the_class_and_the_length_are_all(self):
        class Rows(list):
            """Rows that are fetched one by one."""

        one = fingerprint_rows(Rows([1, 2]))
        assert one.columns == {}
        assert one.difference(fingerprint_rows(Rows([3, 4]))) == ""
        assert one.difference(fingerprint_rows(Rows([3]))) == "2 rows then, 1 now"
        assert one.difference(fingerprint_rows([3, 4])).endswith("Rows then, a list now")
        with pytest.raises(TypeError, match="`fingerprint_rows` was given a generator, which has no length"):
            fingerprint_rows(row for row in [1])

    def test_written_and_read_back(self):
        before = fingerprint_rows(self.data)
        facts = json.loads(json.dumps(before.to_dict()))
        other = fingerprint_rows(self.data.select([0, 2, 1]))
        complete = RowsFingerprint.from_dict(facts, before.stacked_blocks())
        expected = "3 rows then and now, but `caption`, `image_id` and `label` of 2 differ (first: row 1)"
        assert complete.difference(other) == before.difference(other) == expected
        bare = RowsFingerprint.from_dict(facts)
        assert bare.difference(before) == ""
        assert bare.difference(other) == "3 rows then and now, but `caption`, `image_id` and `label` differ"
        assert RowsFingerprint.from_dict(facts, np.zeros((1, 3), np.uint64)).blocks == {}

    def test_no_rows(self):
        nothing = self.data.select([])
        assert fingerprint_rows(nothing).difference(fingerprint_rows(nothing)) == ""


class TestSketch:
    def made(self, **facts):
        return ScoreProvenance("model_loss", "ModelLoss", trained_on=facts)

    def texts(self, *numbers, **more):
        return Dataset.from_dict({"caption": [f"caption {number}" for number in numbers], **more})

    def test_it_is_of_the_256_smallest_hashes_of_distinct_texts(self):
        import xxhash

        rows = self.texts(*range(1000), *range(500))
        hashes = sorted({xxhash.xxh3_64_intdigest(text.encode()) for text in rows["caption"][:]})[:256]
        sketch = sketch_texts(rows)
        assert np.frombuffer(base64.urlsafe_b64decode(sketch), np.uint64).tolist() == hashes
        assert len(sketch) == 2732
        assert sketch == sketch_texts(rows.shuffle(seed=0)) == sketch_texts(rows.select(range(1000)))
        assert sketch == sketch_texts(concatenate_datasets([rows.select(range(500, 1000)), rows.select(range(500))]))
        large = rows.cast_column("caption", Value("large_string"))
        assert sketch == sketch_texts(large)
        again = rows.select(range(1000)).rename_column("caption", "text")
        assert sketch == sketch_texts(again, "text")

    def test_it_is_of_the_rows_that_are_shown(self):
        rows = self.texts(*range(10))
        chosen = [7, 1, 1, 4]
        expected = sketch_texts(self.texts(1, 4, 7))
        assert sketch_texts(rows.select(chosen)) == expected
        numbers = {"number": pa.array([0, 1, 2, 3])}
        repeated = repeat_rows(rows, np.array(chosen), numbers, {"number": Value("int64")})
        assert sketch_texts(repeated) == expected
        assert sketch_texts(repeated.select([2, 1])) == sketch_texts(self.texts(1))

    def test_there_may_be_none(self):
        assert sketch_texts(Dataset.from_dict({"label": ["a dog"]})) is None
        assert sketch_texts(Dataset.from_dict({"caption": [1, 2]})) is None
        assert (
            sketch_texts(Dataset.from_dict({"caption": [None, None]}).cast_column("caption", Value("string"))) is None
        )
        assert sketch_texts(self.texts(1).to_iterable_dataset()) is None
        assert sketch_texts([{"caption": "a dog"}]) is None
        bare = Dataset.from_dict({"caption": ["a dog", None]})
        assert sketch_texts(bare) == sketch_texts(bare.select([0]))

    @pytest.mark.parametrize("rows", [100, 20_000])
    @pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
    def test_the_share_of_the_rows_that_a_model_saw(self, rows, share):
        seen = self.made(captions=sketch_texts(self.texts(*range(rows))))
        first = round(rows * (1 - share))
        found = share_trained_on(seen, self.texts(*range(first, first + rows)))
        if share in (0, 1) or rows == 100:
            assert found == share
        else:
            assert found == pytest.approx(share, abs=0.1)

    def test_more_and_fewer_rows_than_were_trained_on(self):
        seen = self.made(captions=sketch_texts(self.texts(*range(20_000))))
        assert share_trained_on(seen, self.texts(*range(5_000))) == 1.0  # all of them were
        assert share_trained_on(seen, self.texts(*range(80_000))) == pytest.approx(0.25, abs=0.06)
        assert share_trained_on(seen, self.texts(30_000)) in (0.0, None)

    def test_what_is_not_known(self):
        rows = self.texts(1, 2, text=["caption 3", "caption 4"])
        seen = {"examples": 10, "captions": sketch_texts(rows)}
        assert share_trained_on(self.made(), rows) is None
        assert share_trained_on(self.made(examples=10), rows) is None
        assert share_trained_on(self.made(**seen), rows.to_iterable_dataset()) is None
        assert share_trained_on(self.made(**seen), rows.select_columns("text")) is None
        assert share_trained_on(self.made(**seen), rows) == 1.0
        assert share_trained_on(self.made(**seen), rows, "text") == 0.0
        named = ScoreProvenance("loss", "ModelLoss", {"caption_column": "text"}, trained_on=seen)
        assert share_trained_on(named, rows) == 0.0
        assert share_trained_on(self.made(cross_fitted=True, examples=20), rows) == 0.0

    def test_what_a_folder_says(self, tmp_path):
        assert read_trained_on(tmp_path) == {}
        write_sealed(tmp_path / "curriculum.json", {"run": {}})
        assert read_trained_on(tmp_path) == {}
        write_sealed(tmp_path / "curriculum.json", {"trained_on": {"examples": 3}})
        assert read_trained_on(tmp_path) == {"examples": 3}

    def test_a_damaged_record_is_told(self, tmp_path):
        write_sealed(tmp_path / "curriculum.json", {"trained_on": {"examples": 3}})
        content = (tmp_path / "curriculum.json").read_text()
        for damaged in (content.replace("3", "4"), content[:-9], "[]"):
            (tmp_path / "curriculum.json").write_text(damaged)
            with pytest.raises(DamagedFileError, match=r"curriculum\.json .*Copy the model's folder again"):
                read_trained_on(tmp_path)


@pytest.mark.parametrize("values", [["a", None], [1, None], [[1], None], [["a", None], ["b"]]], ids=str)
def test_which_value_is_missing_is_seen(values):
    nested = isinstance(values[0], list) and None in values[0]
    turned = [values[0][::-1], *values[1:]] if nested else values[::-1]
    one, other = (fingerprint_rows(Dataset.from_dict({"x": rows})) for rows in (values, turned))
    assert one != other
