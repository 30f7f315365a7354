from __future__ import annotations

import io
import logging
import os
import time
from pathlib import Path

import datasets
import numpy as np
import PIL.Image
import pytest
from datasets import Dataset, DatasetDict, Features, Image, IterableDatasetDict, Value, load_from_disk
from transformers import ViTConfig, ViTModel

from hf_curriculum import (
    CaptionLength,
    Combine,
    NounCount,
    Scorer,
    WordRarity,
    add_scores,
    make_image_processor,
    read_provenance,
)
from hf_curriculum.data.captions import expand_captions
from hf_curriculum.data.regions.extract import extract_regions
from hf_curriculum.models.vision_features import cache_vision_features
from hf_curriculum.provenance import score_values
from hf_curriculum.scoring.add_scores import scoring_inputs
from hf_curriculum.scoring.per_image import add_embeddings
from hf_curriculum.scoring.sharded import add_scores_sharded

ROWS = 1500
CORRUPT = b"this is not an image" * 100


class Counting(Scorer):
    """Counts its calls in a file, which is what a cache hit leaves alone."""

    columns, name, easy = ("caption",), "calls", "high"

    def __init__(self, log: str, fail_at: str | None = None) -> None:
        self.log = log
        self._fail_at = fail_at  # not configuration: the cache key stays

    def arguments(self):
        return {"log": self.log}

    def score(self, batch, rank):
        if self._fail_at in batch["caption"]:
            raise KeyboardInterrupt
        with open(self.log, "a") as stream:
            stream.write(f"{len(batch['caption'])}\n")
        return [float(text.split()[1]) for text in batch["caption"]]


class Brightness(Scorer):
    columns, name, easy = ("image",), "brightness", "low"

    def score(self, batch, rank):
        return [np.asarray(image).mean() for image in batch["image"]]


class StoredBytes(Scorer):
    columns, name, easy, decode_false = ("image",), "stored_bytes", "low", ("image",)

    def score(self, batch, rank):
        return [len(image["bytes"]) for image in batch["image"]]


class Unscored(Scorer):
    columns, name, easy = ("caption",), "unscored", "low"

    def score(self, batch, rank):
        return np.full(len(batch["caption"]), np.nan)


class RowsPerImage(Scorer):
    """How many rows of its image a row meets in its batch: what encoding an image once depends on."""

    columns, name, easy, group_by = ("caption",), "rows_of_image", "low", "image_id"

    def score(self, batch, rank):
        images = batch.get("image_id", batch["caption"])
        return [images.count(image) for image in images]


def folder_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@pytest.fixture
def folder(tmp_path):
    """A data set on disk whose images cannot be decoded: 2 kB each."""
    path = tmp_path / "images"
    features = Features({"image": Image(), "caption": Value("string"), "image_id": Value("string")})
    rows = {
        "image": [{"bytes": CORRUPT, "path": None}] * ROWS,
        "caption": [f"number {i} " + "word " * (i % 7) for i in range(ROWS)],
        "image_id": [str(i // 5) for i in range(ROWS)],
    }
    Dataset.from_dict(rows, features=features).save_to_disk(str(path / "data"))
    return path


@pytest.fixture
def data(folder):
    return load_from_disk(str(folder / "data"))


def views(data):
    return {
        "plain": data,
        "shuffled": data.shuffle(seed=1),
        "filtered": data.filter(lambda ids: [int(i) % 3 > 0 for i in ids], input_columns="image_id", batched=True),
        "split": data.train_test_split(0.1, seed=0)["train"],
        "range": data.select(range(100, 1300)),
        "picked": data.select(list(range(0, ROWS, 2)) + list(range(500))),  # some rows twice
    }


def lengths(data):
    return np.array([len(text.split()) for text in data.select_columns(["caption"])["caption"][:]], np.float32)


@pytest.mark.parametrize("view", ["plain", "shuffled", "filtered", "split", "range", "picked"])
def test_right_rows_few_bytes_no_image_decoded(data, folder, view):
    given = views(data)[view]
    before = folder_bytes(folder)
    scored = add_scores(given, [CaptionLength(), NounCount()])
    written = folder_bytes(folder) - before
    assert 0 < written <= 32 * len(given)
    assert scored.column_names == ["image", "caption", "image_id", "caption_length", "noun_count"]
    np.testing.assert_array_equal(score_values(scored, "caption_length"), lengths(given))
    stored = scored.cast_column("image", Image(decode=False))
    assert stored[7]["caption_length"] == len(stored[7]["caption"].split())  # read as a row too
    assert stored[7]["image"]["bytes"] == CORRUPT
    assert scored["caption"][:] == given["caption"][:]
    assert scored.features["image"] == Image()
    assert "caption_length" not in given.column_names


@pytest.mark.parametrize("view", ["plain", "shuffled", "filtered"])
def test_a_second_call_scores_nothing_and_is_the_same_data_set(data, folder, view, tmp_path):
    given, scorer = views(data)[view], Counting(str(tmp_path / f"log {view}"))
    first = add_scores(given, scorer)
    size, calls = folder_bytes(folder), Path(scorer.log).read_text()
    for file in (folder / "data").glob("data-*.arrow"):
        os.utime(file, (0, 0))  # as after a copy
    again = add_scores(views(load_from_disk(str(folder / "data")))[view], Counting(scorer.log))
    assert Path(scorer.log).read_text() == calls
    assert folder_bytes(folder) == size
    assert again._fingerprint == first._fingerprint
    np.testing.assert_array_equal(score_values(again, "calls"), score_values(first, "calls"))


def test_one_scorers_cache_does_not_depend_on_another(data, tmp_path):
    scorer = Counting(str(tmp_path / "log"))
    add_scores(data, scorer)
    calls = Path(scorer.log).read_text()
    add_scores(data, [CaptionLength(), scorer])
    assert Path(scorer.log).read_text() == calls


def test_a_data_set_in_memory_is_cached_in_cache_dir(tmp_path):
    data = Dataset.from_dict({"caption": [f"number {i}" for i in range(20)]})
    scorer = Counting(str(tmp_path / "log"))
    for _ in range(2):
        scored = add_scores(data, scorer, cache_dir=tmp_path / "cache")
    assert Path(scorer.log).read_text() == "20\n"
    assert scored["calls"][:] == list(range(20))
    assert len(list((tmp_path / "cache").glob("scores-*.arrow"))) == 1


def test_a_score_that_another_one_reads_is_made_once(tmp_path):
    data = Dataset.from_dict({"caption": [f"number {i}" for i in range(20)]})
    both = Combine({"calls": 1}, "none").fit(add_scores(data, Counting(str(tmp_path / "first"))))
    scored = add_scores(data, [Counting(str(tmp_path / "log")), both])  # in memory, where nothing is cached
    assert Path(tmp_path / "log").read_text() == "20\n"
    assert scored["combined"][:] == [-value for value in scored["calls"][:]]  # easy is high


def test_batches_are_as_large_as_asked_and_leave_no_cache_of_their_own(data, folder, tmp_path):
    few = data.select(range(50))
    for name, given, options in (
        ("map", few, {"batch_size": 20}),
        ("parts", few, {"batch_size": 20, "resume_every": 30, "load_from_cache_file": False}),
        ("stream", few.to_iterable_dataset(), {"batch_size": 20}),
    ):
        scored = add_scores(given, Counting(str(tmp_path / name)), **options)
        list(scored.select_columns(["calls"]))
    sizes = {name: (tmp_path / name).read_text().split() for name in ("map", "parts", "stream")}
    assert sizes["map"] == ["20", "20", "10"]
    assert sizes["parts"] == ["20", "10", "20"]  # parts of 30 and 20 rows
    assert sizes["stream"][-3:] == ["20", "20", "10"]
    assert len(list((folder / "data").glob("scores-*/part-*.parquet"))) == 2
    assert len(list((folder / "data").glob("cache-*.arrow"))) == 1  # of the first call alone


@pytest.mark.parametrize("where", ["cache_dir", "beside the data", "in memory"])
def test_an_interrupted_call_continues_after_the_last_finished_part(tmp_path, monkeypatch, where):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    data = Dataset.from_dict({"caption": [f"number {i}" for i in range(50)]})
    if where == "beside the data":
        data.save_to_disk(str(tmp_path / "data"))
        data = load_from_disk(str(tmp_path / "data"))
    log, options = str(tmp_path / "log"), {"resume_every": 20}
    if where == "cache_dir":
        options["cache_dir"] = tmp_path / "cache"
    with pytest.raises(KeyboardInterrupt):
        add_scores(data, Counting(log, fail_at="number 33"), **options)
    assert Path(log).read_text() == "20\n"
    scored = add_scores(data, Counting(log), **options)
    assert Path(log).read_text() == "20\n20\n10\n"
    assert scored["calls"][:] == list(range(50))
    assert add_scores(data, Counting(log), **options)["calls"][:] == list(range(50))
    assert Path(log).read_text() == "20\n20\n10\n"
    add_scores(data, Counting(log), resume_every=25, **dict(list(options.items())[1:]))  # other parts
    assert Path(log).read_text() == "20\n20\n10\n25\n25\n"
    folder = {"cache_dir": "cache", "beside the data": "data", "in memory": "datasets/hf_curriculum/scores"}[where]
    assert len(list((tmp_path / folder).glob("scores-*/part-*-of-00003.parquet"))) == 3


def test_a_fitted_scorer_of_another_corpus_has_other_parts(tmp_path):
    data = Dataset.from_dict({"caption": ["a dog", "a cat", "a dog and a cat"]})
    options = {"resume_every": 2, "cache_dir": tmp_path}
    for corpus in (data, data.select([0])):
        scorer = WordRarity().fit(corpus)
        found = add_scores(data, scorer, **options)
        assert found["word_rarity"][:] == add_scores(data, scorer)["word_rarity"][:]


class Interrupted(Scorer):
    """Fails while a file exists, late enough for the other process to have finished."""

    columns, name, easy = ("caption",), "interrupted", "low"

    def __init__(self, log: str, flag: str) -> None:
        self.log, self.flag = log, flag

    def score(self, batch, rank):
        if "number 39" in batch["caption"] and Path(self.flag).exists():
            time.sleep(1.5)
            raise OSError("the machine is gone")
        with open(self.log, "a") as stream:
            stream.write(f"{rank}\n")
        return [rank] * len(batch["caption"])


def test_what_one_process_finished_is_not_done_again(tmp_path):
    data = Dataset.from_dict({"caption": [f"number {i}" for i in range(40)]})
    scorer, flag = Interrupted(str(tmp_path / "log"), str(tmp_path / "flag")), tmp_path / "flag"
    options = {"num_proc": 2, "cache_dir": tmp_path / "cache"}
    flag.touch()
    with pytest.raises(OSError, match="the machine is gone"):
        add_scores(data, scorer, **options)
    flag.unlink()
    scored = add_scores(data, scorer, **options)
    assert Path(scorer.log).read_text().split() == ["0", "1"]  # each process's half, once
    assert scored["interrupted"][:] == [0.0] * 20 + [1.0] * 20  # the rank, which picks the GPU, reached the scorer


def test_two_processes_give_the_same_scores(data):
    one = add_scores(data, NounCount(tags=("NN",)))
    two = add_scores(data.shuffle(seed=5), NounCount(tags=("NN",)), num_proc=2)
    np.testing.assert_array_equal(score_values(two, "noun_count"), score_values(one.shuffle(seed=5), "noun_count"))


@pytest.mark.parametrize("how", ["max", "min", "mean"])
def test_per_image_is_written_to_every_row_of_the_image(data, how):
    given = data.shuffle(seed=2)
    scored = add_scores(given, CaptionLength(), per_image=how)
    images, raw = np.array(given["image_id"][:]), lengths(given)
    expected = [getattr(np, how)(raw[images == image].astype(np.float64)) for image in images[:50]]
    np.testing.assert_allclose(score_values(scored, "caption_length")[:50], expected, rtol=1e-6)
    assert read_provenance(scored)["caption_length"].per_image == how


def test_per_image_leaves_out_what_could_not_be_scored():
    rows = {"caption": ["a b c", None, "", "a", " "], "image_id": ["x", "x", "y", "x", "y"]}
    scored = add_scores(Dataset.from_dict(rows), CaptionLength(), per_image="mean")
    np.testing.assert_array_equal(score_values(scored, "caption_length"), np.float32([2, 2, np.nan, 2, np.nan]))


def test_per_image_needs_image_id():
    data = Dataset.from_dict({"caption": ["a"], "url": ["u"]})
    with pytest.raises(ValueError, match=r"`image_id` is not in the data.*leave `per_image` out"):
        add_scores(data, CaptionLength(), per_image="max")
    with pytest.raises(ValueError, match="`image_id` is missing in 1 of 2 rows"):
        add_scores(Dataset.from_dict({"caption": ["a", "b"], "image_id": ["x", None]}), NounCount(), per_image="max")
    with pytest.raises(ValueError, match="`per_image` is 'sum'"):
        add_scores(data, CaptionLength(), per_image="sum")


def test_captions_of_an_image_reach_a_scorer_in_one_batch():
    rows = {"caption": list("abcdef"), "image_id": ["x", "y", "x", "z", "y", "x"]}
    scored = add_scores(Dataset.from_dict(rows), RowsPerImage(), batch_size=3)
    # in the order x x x | y y z, whatever the order of the data
    assert scored["rows_of_image"][:] == [3, 2, 3, 1, 2, 3]
    assert scored["caption"][:] == list("abcdef")
    in_order = Dataset.from_dict({"caption": list("abc"), "image_id": ["y", "y", "x"]})
    assert add_scores(in_order, RowsPerImage())["rows_of_image"][:] == [2, 2, 1]
    without = Dataset.from_dict({"caption": ["a", "a"]})  # no identifiers, so nothing to group
    assert add_scores(without, RowsPerImage())["rows_of_image"][:] == [2, 2]


@pytest.fixture
def small():
    buffer = io.BytesIO()
    PIL.Image.new("RGB", (4, 4), (9, 9, 9)).save(buffer, "JPEG")
    jpeg = {"bytes": buffer.getvalue(), "path": None}
    features = Features({"image": Image(), "caption": Value("string")})
    rows = {"image": [jpeg] * 3, "caption": ["a dog", None, "two red cats"]}
    return Dataset.from_dict(rows, features=features)


def test_images_come_decoded_or_as_stored(small):
    scored = add_scores(small, [Brightness(), StoredBytes()])
    stored = len(small.cast_column("image", Image(decode=False))[0]["image"]["bytes"])
    assert scored["brightness"][:] == [9.0] * 3
    assert scored["stored_bytes"][:] == [float(stored)] * 3
    assert np.asarray(scored[0]["image"]).mean() == 9


def test_a_stream_is_scored_while_it_is_read(small):
    stored = small.cast_column("image", Image(decode=False))[0]["image"]["bytes"]
    stream = add_scores(small.to_iterable_dataset(), [NounCount(), Brightness(), StoredBytes(), CaptionLength()])
    rows = list(stream)
    assert [row["caption_length"] for row in rows][::2] == [2.0, 3.0]
    assert np.isnan(rows[1]["caption_length"])
    assert {row["brightness"] for row in rows} == {9.0}
    assert {row["stored_bytes"] for row in rows} == {float(len(stored))}
    assert np.asarray(rows[2]["image"]).shape == (4, 4, 3)
    assert list(read_provenance(stream)) == ["noun_count", "brightness", "stored_bytes", "caption_length"]
    as_stored = next(iter(stream.cast_column("image", Image(decode=False))))
    assert as_stored["image"]["bytes"] == stored  # the file went through untouched


def test_a_stream_of_corrupt_images_can_be_scored_by_captions(data):
    stream = add_scores(data.to_iterable_dataset(), CaptionLength()).cast_column("image", Image(decode=False))
    first = [row["caption_length"] for row in stream.take(8)]
    assert first == lengths(data)[:8].tolist()


def test_a_stream_of_unknown_features(tmp_path):
    def rows():
        yield {"caption": "a dog"}
        yield {"caption": "a big dog"}

    stream = datasets.IterableDataset.from_generator(rows)
    scored = add_scores(stream, CaptionLength())
    assert [row["caption_length"] for row in scored] == [2.0, 3.0]
    assert list(read_provenance(scored)) == ["caption_length"]


def test_a_stream_of_images_whose_features_are_unknown(small):
    mapped = small.to_iterable_dataset().map(lambda row: {"more": 1})
    with pytest.raises(
        ValueError, match=r"features of this iterable data set are not known.*dataset\.cast\(features\)"
    ):
        add_scores(mapped, CaptionLength())
    known = mapped.cast(Features({**small.features, "more": Value("int64")}))
    assert next(iter(add_scores(known, CaptionLength())))["caption_length"] == 2.0


@pytest.mark.parametrize("option", [{"per_image": "max"}, {"num_proc": 2}, {"resume_every": 5}, {"cache_dir": "x"}])
def test_what_a_stream_cannot_do(small, option):
    with pytest.raises(ValueError, match=f"`{next(iter(option))}=.*does not go with an iterable data set"):
        add_scores(small.to_iterable_dataset(), CaptionLength(), **option)


def test_splits(small):
    scored = add_scores(DatasetDict(train=small, test=small.select([2])), CaptionLength())
    assert isinstance(scored, DatasetDict)
    assert scored["test"]["caption_length"][:] == [3.0]
    assert list(read_provenance(scored)) == ["caption_length"]
    streams = add_scores(IterableDatasetDict(train=small.to_iterable_dataset()), CaptionLength())
    assert next(iter(streams["train"]))["caption_length"] == 2.0


def test_a_first_thousand_of_nan_and_a_column_of_nan(caplog):
    late = Dataset.from_dict({"caption": [""] * 1100 + ["a dog"]})
    assert score_values(add_scores(late, CaptionLength()), "caption_length")[-1] == 2.0
    with caplog.at_level(logging.WARNING, logger="hf_curriculum"):
        scored = add_scores(late, Unscored())
    assert "none of the 1101 rows could be scored" in caplog.text
    assert np.isnan(score_values(scored, "unscored")).all()
    assert scored.features["unscored"].dtype == "float32"


def test_an_empty_data_set():
    features = Features({"caption": Value("string"), "image_id": Value("string")})
    empty = Dataset.from_dict({"caption": [], "image_id": []}, features=features)
    scored = add_scores(empty, [CaptionLength(), RowsPerImage()], per_image="max")
    assert scored.column_names == ["caption", "image_id", "caption_length", "rows_of_image"]
    assert len(scored) == 0
    assert scored.features["caption_length"].dtype == "float32"
    filtered = Dataset.from_dict({"caption": ["a"], "image_id": ["b"]}).filter(lambda row: False)
    assert len(add_scores(filtered, NounCount(), per_image="max")) == 0


def test_one_line_per_scorer_is_logged(small, caplog):
    with caplog.at_level(logging.INFO, logger="hf_curriculum"):
        add_scores(small, [CaptionLength(), NounCount(easy="high")])
    assert [record.getMessage() for record in caplog.records] == [
        "`caption_length`: 3 rows, 33.33% unscored, min 2, median 2.5, max 3, easy is low",
        "`noun_count`: 3 rows, 33.33% unscored, min 1, median 1, max 1, easy is high",
    ]


def test_a_score_that_another_scorer_reads_is_logged_once(small, caplog):
    length = CaptionLength()
    both = Combine({"caption_length": 1}, "none").fit(add_scores(small, length))
    with caplog.at_level(logging.INFO, logger="hf_curriculum"):
        caplog.clear()
        add_scores(small, [length, both])
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["`caption_length`", "`combined`"]


def test_existing_columns_are_kept_without_overwrite(small):
    scored = add_scores(small, CaptionLength())
    with pytest.raises(ValueError, match=r"already has `caption_length`.*overwrite=True"):
        add_scores(scored, CaptionLength("regex"))
    with pytest.raises(ValueError, match="already has `caption_length`"):
        add_scores(scored.to_iterable_dataset(), CaptionLength())
    both = add_scores(scored, CaptionLength("regex", easy="high"), overwrite=True)
    assert both.column_names == ["image", "caption", "caption_length"]
    assert read_provenance(both)["caption_length"].arguments["words"] == "regex"
    stream = add_scores(scored.to_iterable_dataset(), CaptionLength(easy="high"), overwrite=True)
    assert read_provenance(stream)["caption_length"].easy == "high"
    assert next(iter(stream))["caption_length"] == 2.0


def test_overwriting_in_a_shuffled_view():
    data = Dataset.from_dict({"caption": ["a", "a b", "a b c"], "caption_length": [9.0, 9.0, 9.0]}).shuffle(seed=0)
    scored = add_scores(data, CaptionLength(), overwrite=True)
    np.testing.assert_array_equal(score_values(scored, "caption_length"), lengths(data))


def test_a_sum_of_a_column_that_is_replaced_before_it():
    data = Dataset.from_dict({"caption": ["a", "a b", "a b c"], "caption_length": [9.0, 9.0, 9.0]})
    both = Combine({"caption_length": 1}, "none").fit(add_scores(data, CaptionLength(), overwrite=True))
    assert add_scores(data, [CaptionLength(), both], overwrite=True)["combined"][:] == [1, 2, 3]


def test_a_sum_of_scores_after_its_parts():
    data = Dataset.from_dict({"caption": [f"a dog {'and a cat ' * i}" for i in range(4)]}).shuffle(seed=0)
    length, nouns = CaptionLength(), NounCount()
    both = Combine({"caption_length": 1, "noun_count": 10}, "none").fit(add_scores(data, [length, nouns]))
    scored = add_scores(data, [length, nouns, both])
    parts = [score_values(scored, column) for column in ("caption_length", "noun_count", "combined")]
    np.testing.assert_array_equal(parts[2], parts[0] + 10 * parts[1])
    stream = add_scores(data.to_iterable_dataset(), [length, nouns, both])
    assert [row["combined"] for row in stream] == parts[2].tolist()
    with pytest.raises(ValueError, match=r"`caption_length`.* not in the data.*another scorer writes.*before"):
        add_scores(data, [both, length, nouns])


def test_a_scorer_that_was_not_fitted_fails_before_any_other_scores(tmp_path):
    data = Dataset.from_dict({"caption": ["number 1"]})
    with pytest.raises(RuntimeError, match="WordRarity was used before `fit`"):
        add_scores(data, [Counting(str(tmp_path / "log")), WordRarity()])
    assert not (tmp_path / "log").exists()
    with pytest.raises(RuntimeError, match="WordRarity was used before `fit`"):
        add_scores(data.to_iterable_dataset(), WordRarity())


def test_the_format_of_the_data_set_is_kept(small):
    given = small.remove_columns("image").with_format("numpy")
    scored = add_scores(given, CaptionLength())
    assert scored.format["type"] == "numpy"
    assert scored[0]["caption_length"] == np.float32(2)
    some = add_scores(small.with_format("numpy", columns=["caption"]), CaptionLength())
    assert list(some[0]) == ["caption"]
    lazy = add_scores(small.with_transform(lambda batch: {"n": [1] * len(batch["caption"])}), CaptionLength())
    assert lazy[0] == {"n": 1}


@pytest.mark.parametrize("door", ["score", "fit", "expand", "embed", "extract", "cache"])
def test_a_transform_is_not_applied_and_that_is_said(door, small, tmp_path, caplog):
    small = small.add_column("image_id", ["a", "a", "a"])
    lazy = small.with_transform(lambda batch: {"caption": ["RAW no more"] * len(batch["caption"])})
    if door == "score":
        scored = add_scores(DatasetDict({"a": small, "b": lazy}), CaptionLength())["b"].with_format(None)
        assert scored["caption_length"][0] == 2
    elif door == "fit":
        WordRarity().fit(lazy)
    elif door == "expand":
        assert expand_captions(lazy)["caption"][:] == small["caption"][:]
    elif door == "embed":
        add_embeddings(lazy)
    elif door == "extract":
        extract_regions(lazy, "scenes_clip", tmp_path / "store", grid=2)
    else:
        sizes = dict.fromkeys(("hidden_size", "intermediate_size", "image_size", "patch_size"), 8)
        tower = ViTModel(ViTConfig(**sizes, num_attention_heads=2, num_hidden_layers=1))
        cache_vision_features(tower, lazy, tmp_path / "features", make_image_processor(8))
    assert caplog.text.count("has a transform (`with_transform`, `set_transform`), which is not applied here") == 1


def test_a_scored_data_set_saves_loads_and_pickles(data, tmp_path):
    import pickle

    scored = add_scores(data.shuffle(seed=9).select(range(40)), CaptionLength())
    scored.save_to_disk(str(tmp_path / "saved"))
    loaded = load_from_disk(str(tmp_path / "saved"))
    for other in (loaded, pickle.loads(pickle.dumps(scored))):
        np.testing.assert_array_equal(score_values(other, "caption_length"), score_values(scored, "caption_length"))
        assert read_provenance(other) == read_provenance(scored)


def test_wrong_arguments(small):
    with pytest.raises(TypeError, match=r"was given a function as `scorers`"):
        add_scores(small, lambda batch: batch)
    with pytest.raises(TypeError, match="a list that holds the class NounCount as `scorers`"):
        add_scores(small, [NounCount])
    with pytest.raises(TypeError, match=r"was given a list .* give `Dataset.from_list"):
        add_scores([{"caption": "a"}], NounCount())
    with pytest.raises(ValueError, match="Two scorers write `noun_count`"):
        add_scores(small, [NounCount(), NounCount(tags="NN")])
    with pytest.raises(ValueError, match="No scorer was given"):
        add_scores(small, [])
    with pytest.raises(ValueError, match=r"`text` is not in the data.*NounCount reads `text`"):
        add_scores(small, NounCount(column="text"))


def test_where_boxes_come_from_is_said_where_they_are_missing(small):
    class Boxes(Scorer):
        columns, name, easy = ("objects",), "boxes", "low"

    words = (
        r"written before\. Boxes of COCO .*objects=FILE\)` \(hf-curriculum score: --objects FILE\), as the column `ob"
    )
    with pytest.raises(ValueError, match=words):
        add_scores(small, Boxes())
    with pytest.raises(ValueError, match=r"written before\.$"):
        add_scores(small, NounCount(column="text"))


def test_only_the_columns_that_are_read_reach_the_scorer(small):
    view, place = scoring_inputs(small, CaptionLength())
    assert view.column_names == ["caption"]
    assert place is None


def test_a_shuffled_data_set_is_read_in_the_order_of_its_table_and_each_row_once(data):
    view, place = scoring_inputs(data.shuffle(seed=0), CaptionLength())
    assert view["caption"][:] == data["caption"][:]
    assert view._indices is None
    captions = data["caption"][:]
    assert data.shuffle(seed=0)["caption"][:] == [captions[row] for row in place]
    view, place = scoring_inputs(data.select([5, 3, 5]), CaptionLength())
    assert view["caption"][:] == [captions[3], captions[5]]
    assert place.tolist() == [1, 0, 1]


def test_groups_in_a_shuffled_data_set():
    rows = {"caption": list("abcdef"), "image_id": ["x", "y", "x", "z", "y", "x"]}
    view = Dataset.from_dict(rows).select([5, 4, 3, 2, 1, 0, 0])
    scored = add_scores(view, RowsPerImage(), batch_size=3)
    assert scored["rows_of_image"][:] == [3, 2, 1, 3, 2, 3, 3]


@pytest.mark.parametrize("options", [{}, {"resume_every": 10}], ids=str)
def test_a_cached_score_is_made_again_when_asked(tmp_path, options):
    Dataset.from_dict({"caption": [f"number {i}" for i in range(20)]}).save_to_disk(str(tmp_path / "data"))
    data, scorer = load_from_disk(str(tmp_path / "data")), Counting(str(tmp_path / "log"))
    for load, lines in ((True, 1), (True, 1), (False, 2), (True, 2)):
        scored = add_scores(data, scorer, load_from_cache_file=load, **options)
        assert sum(map(int, Path(scorer.log).read_text().split())) == 20 * lines
    assert scored["calls"][:] == list(range(20))


def test_an_iterable_data_set_has_no_cache_to_leave_out():
    stream = Dataset.from_dict({"caption": ["a"]}).to_iterable_dataset()
    with pytest.raises(ValueError, match="`load_from_cache_file=False` does not go with an iterable data set"):
        add_scores(stream, CaptionLength(), load_from_cache_file=False)


@pytest.mark.parametrize(
    "view",
    [
        lambda data: data.filter(lambda row: row["k"] == 1),
        lambda data: data.filter(lambda row: row["k"] == 1).shuffle(seed=1),
        lambda data: data.sort("k").select(range(2, 4)),
        lambda data: data.sort("k").select([3, 2]),
    ],
    ids=["filter", "filter and shuffle", "sort and select", "sort and pick"],
)
@pytest.mark.parametrize("per_image", [None, "max"])
def test_rows_that_follow_one_another_behind_the_first_are_scored(view, per_image, tmp_path):
    rows = {"caption": ["a", "b b", "c", "d d d"], "k": [0, 0, 1, 1], "image_id": ["p", "p", "q", "q"]}
    shown = view(Dataset.from_dict(rows))
    right = [3.0, 3.0] if per_image else [float(len(caption.split())) for caption in shown["caption"]]
    assert add_scores(shown, CaptionLength(), per_image=per_image)["caption_length"][:] == right
    sharded = add_scores_sharded(shown, CaptionLength(), tmp_path, per_image=per_image, part_rows=1)
    assert sharded["caption_length"][:] == right
    assert len(add_scores(shown, WordRarity().fit(shown))) == 2
