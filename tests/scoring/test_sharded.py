"""Several processes that share a scoring run. Ranks are threads here, which meet in a folder as processes do."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from datasets import Dataset, DatasetDict, Features, Image, List, Value, load_from_disk
from datasets.fingerprint import Hasher

from hf_curriculum import (
    CaptionLength,
    Combine,
    NounCount,
    Scorer,
    WordRarity,
    add_scores,
    add_scores_sharded,
    read_provenance,
)
from hf_curriculum.files import write_sealed
from hf_curriculum.parts import PartFolder, data_digest, launched, launched_here, wait_for_files
from hf_curriculum.provenance import score_values
from hf_curriculum.scoring.sharded import read_fitted, write_fitted

IMAGE = {"bytes": b"an image that is not opened", "path": None}
FAST = {"batch_size": 5, "part_rows": 8, "timeout": 20}


class Logged(Scorer):
    """Writes what it scores into a file."""

    columns, name, easy = ("caption",), "logged", "low"

    def __init__(self, log: str, fail_at: str | None = None) -> None:
        self.log = log
        self._fail_at = fail_at

    def arguments(self):
        return {}

    def score(self, batch, rank):
        if self._fail_at in batch["caption"]:
            raise KeyboardInterrupt
        with open(self.log, "a") as stream:
            stream.write("".join(f"{caption}\n" for caption in batch["caption"]))
        return [len(caption) for caption in batch["caption"]]


class MeanWords(CaptionLength):
    """Is fitted on a corpus, and counts how often."""

    fitted_attributes = ("mean_",)
    fitted = 0

    def fit(self, dataset):
        type(self).fitted += 1
        self.mean_ = float(np.mean([len(caption.split()) for caption in dataset["caption"]]))
        return self

    def score(self, batch, rank):
        return super().score(batch, rank) - self.mean_


@pytest.fixture
def data():
    rows = {
        "caption": [f"a dog number {i} " + "word " * (i % 7) for i in range(60)],
        "image_id": [str(i // 5) for i in range(60)],
        "image": [IMAGE] * 60,
    }
    features = Features({"caption": Value("string"), "image_id": Value("string"), "image": Image()})
    return Dataset.from_dict(rows, features=features)


def shared(dataset, make, folder, world_size=3, **options):
    """What the first of several processes returns; each makes its own scorers, as processes do."""

    def process(rank):
        return add_scores_sharded(dataset, make(), folder, rank=rank, world_size=world_size, **FAST, **options)

    with ThreadPoolExecutor(world_size) as pool:
        results = list(pool.map(process, range(world_size)))
    assert results[1:] == [None] * (world_size - 1)
    return results[0]


def check_same(found, expected):
    assert found.column_names == expected.column_names
    assert read_provenance(found) == read_provenance(expected)
    for column in read_provenance(expected):
        np.testing.assert_array_equal(score_values(found, column), score_values(expected, column))
    assert found["caption"][:] == expected["caption"][:]


@pytest.mark.parametrize("world_size", [1, 3, 20])
def test_the_result_is_that_of_one_process(data, tmp_path, world_size):
    shuffled = data.shuffle(seed=3)
    found = shared(shuffled, lambda: [CaptionLength(), NounCount()], tmp_path, world_size)
    check_same(found, add_scores(shuffled, [CaptionLength(), NounCount()]))
    assert len(list((tmp_path / "all" / "noun_count").glob("part-*-of-00006.parquet"))) == 6  # 8 rows: two batches


def test_splits_a_corpus_and_a_sum_of_scores(data, tmp_path):
    splits = DatasetDict(train=data.shuffle(seed=1), test=data.select(range(20)), none=data.select([]))

    def make():
        return [CaptionLength(), WordRarity(), Combine({"caption_length": 1, "word_rarity": 2})]

    length, rarity, both = make()
    rarity.fit(splits["train"])
    both.fit(add_scores(splits["train"], [length, rarity]))
    expected = add_scores(splits, [length, rarity, both])
    found = shared(splits, make, tmp_path)
    assert list(found) == ["train", "test", "none"]
    for name, part in found.items():
        check_same(part, expected[name])


def test_only_the_first_process_fits_and_a_second_run_does_not(data, tmp_path):
    MeanWords.fitted = 0
    splits = DatasetDict(train=data.select(range(40)), test=data.select(range(40, 60)))
    first = shared(splits, lambda: MeanWords(name="m"), tmp_path)
    assert MeanWords.fitted == 1
    second = shared(splits, lambda: MeanWords(name="m"), tmp_path)
    assert MeanWords.fitted == 1
    np.testing.assert_array_equal(score_values(first["test"], "m"), score_values(second["test"], "m"))
    assert score_values(first["train"], "m").mean() == pytest.approx(0, abs=1e-5)
    other = shared(splits, lambda: MeanWords(name="m"), tmp_path / "other", fit_on="test")
    assert score_values(other["test"], "m").mean() == pytest.approx(0, abs=1e-5)


def test_a_fit_that_failed_does_not_keep_the_folder(data, tmp_path, monkeypatch):
    def fail(self, dataset):
        raise MemoryError("the corpus is too large")

    with monkeypatch.context() as patched:
        patched.setattr(MeanWords, "fit", fail)
        with pytest.raises(MemoryError, match="the corpus is too large"):
            add_scores_sharded(data, MeanWords(name="m"), tmp_path, **FAST)
    found = add_scores_sharded(data.select(range(30)), MeanWords(name="m"), tmp_path, **FAST)
    assert score_values(found, "m").mean() == pytest.approx(0, abs=1e-5)


def test_what_was_fitted_on_another_corpus_is_not_read(data, tmp_path):
    add_scores_sharded(data, MeanWords(name="m"), tmp_path, **FAST)
    with pytest.raises(ValueError, match=r"\.fitted/m holds parts of another run: fit_on was 'all' and is 'tr"):
        add_scores_sharded(DatasetDict(train=data), MeanWords(name="m"), tmp_path, **FAST, rank=0, world_size=2)


@pytest.mark.parametrize(
    "value",
    [
        {"dog": 2, "a\u2028b": 0.1, "": float("inf")},
        {1: "one", None: (1, 2.5), (3, "x"): [True, None]},
        (np.arange(6, dtype=np.int16).reshape(2, 3), np.float32(0.1), np.array("text"), np.zeros((0, 3))),
        {"names": {"b", "a"}, "pair": frozenset({1, 2}), "array": [{"dict": {}}]},
    ],
)
def test_fitted_attributes_come_back_as_they_were(tmp_path, value):
    write_fitted(tmp_path, {"value_": value, "other_": 1})
    found = read_fitted(tmp_path, ("other_", "value_"))
    assert Hasher.hash(found["value_"]) == Hasher.hash(value)
    assert type(found["value_"]) is type(value)
    assert found["other_"] == 1


def test_fitted_attributes_that_json_cannot_hold(data, tmp_path):
    for value in (Counter("ab"), np.array([None]), {"deep": [object()]}):
        with pytest.raises(TypeError, match=r"`mean_` holds a .*call `scorer\.fit\(dataset\)` before"):
            write_fitted(tmp_path, {"mean_": value})
    assert not (tmp_path / "fitted.json").exists()


def test_fitted_attributes_that_are_damaged_or_others(tmp_path):
    write_fitted(tmp_path, {"score": 1})
    with pytest.raises(ValueError, match=r"the attributes \['score'\], and the scorer needs \['mean_'\].*Delete"):
        read_fitted(tmp_path, ("mean_",))
    changed = (tmp_path / "fitted.json").read_text().replace('"score": 1', '"score": 2')
    for text in ("", "[]", "{}", '{"attributes": {"mean_": {"exec": [1]}}}', "[" * 100_000, changed):
        (tmp_path / "fitted.json").write_text(text)
        with pytest.raises(ValueError, match=r"fitted\.json (is|was) damaged.*Delete .* fitted again"):
            read_fitted(tmp_path, ("mean_",))
    write_sealed(tmp_path / "fitted.json", {"attributes": {"mean_": {"exec": [1]}}})
    with pytest.raises(ValueError, match=r"fitted\.json is damaged \(KeyError: 'exec'\).*fitted again"):
        read_fitted(tmp_path, ("mean_",))


def test_the_aggregate_per_image_sees_all_parts(data, tmp_path):
    found = shared(data, CaptionLength, tmp_path, per_image="max")
    check_same(found, add_scores(data, CaptionLength(), per_image="max"))


def test_a_killed_process_makes_only_what_is_missing(data, tmp_path):
    log, folder = str(tmp_path / "log"), tmp_path / "parts"
    options = {"world_size": 2, **FAST}
    with pytest.raises(KeyboardInterrupt):  # in its second part of three
        add_scores_sharded(data, Logged(log, fail_at=data["caption"][47]), folder, rank=1, **options)
    assert Path(log).read_text().splitlines() == [*data["caption"][30:45]]  # its first part, and a lost batch
    add_scores_sharded(data, Logged(log), folder, rank=1, **options)
    assert Path(log).read_text().splitlines() == [*data["caption"][30:45], *data["caption"][40:]]
    assert add_scores_sharded(data, Logged(log), folder, rank=1, **options) is None  # nothing left to do
    assert len(Path(log).read_text().splitlines()) == 35
    found = add_scores_sharded(data, Logged(log), folder, rank=0, world_size=1, **FAST)  # and with fewer processes
    assert len(Path(log).read_text().splitlines()) == 65
    check_same(found, add_scores(data, Logged(str(tmp_path / "other"))))


def test_parts_of_another_run_are_refused(data, tmp_path):
    add_scores_sharded(data, CaptionLength(), tmp_path, **FAST)
    with pytest.raises(ValueError, match=r"holds parts of another.*words was 'whitespace' and is 'regex'"):
        add_scores_sharded(data, CaptionLength("regex"), tmp_path, **FAST)
    with pytest.raises(ValueError, match=r"holds parts of another run: data was '.*' and is '.*'\. Together"):
        add_scores_sharded(data.select(range(59, -1, -1)).flatten_indices(), CaptionLength(), tmp_path, **FAST)
    with pytest.raises(ValueError, match="batch_size was 5 and is 2"):
        add_scores_sharded(data, CaptionLength(), tmp_path, batch_size=2, part_rows=8)
    with pytest.raises(ValueError, match="rows_per_part was 10 and is 20"):
        add_scores_sharded(data, CaptionLength(), tmp_path, batch_size=5, part_rows=20)
    with pytest.raises(ValueError, match="rows was 60 and is 50"):
        add_scores_sharded(data.select(range(50)), CaptionLength(), tmp_path, **FAST)


def test_a_part_that_does_not_belong_or_is_damaged(data, tmp_path):
    add_scores_sharded(data, CaptionLength(), tmp_path / "one", **FAST)
    add_scores_sharded(data, CaptionLength("regex"), tmp_path / "two", **FAST)
    name = Path("all", "caption_length", "part-00002-of-00006.parquet")
    good = (tmp_path / "one" / name).read_bytes()
    os.replace(tmp_path / "two" / name, tmp_path / "one" / name)
    with pytest.raises(ValueError, match=r"part-00002-of-00006.parquet does not belong here.*'part': 2.*Delete it"):
        add_scores_sharded(data, CaptionLength(), tmp_path / "one", **FAST)
    (tmp_path / "one" / name).write_bytes(good[:-10])
    with pytest.raises(ValueError, match=r"part-00002-of-00006\.parquet is damaged \(.*Delete it and start again"):
        add_scores_sharded(data, CaptionLength(), tmp_path / "one", **FAST)
    neighbour = (tmp_path / "one" / name).with_name("part-00001-of-00006.parquet")
    (tmp_path / "one" / name).write_bytes(neighbour.read_bytes())
    with pytest.raises(ValueError, match=r"does not belong here: it has the metadata .*'part': 1"):
        add_scores_sharded(data, CaptionLength(), tmp_path / "one", **FAST)
    parts = PartFolder(tmp_path / "rows", {}, rows=5, step=2)
    parts.write(1, {"caption_length": np.float32([1])})
    with pytest.raises(ValueError, match=r"'part': 1\} and 1 rows, but part 1 .* with 2 rows is expected"):
        parts.read(1)
    (tmp_path / "one" / name).unlink()
    check_same(add_scores_sharded(data, CaptionLength(), tmp_path / "one", **FAST), add_scores(data, CaptionLength()))


def test_one_changed_byte_of_the_scores_is_noticed(tmp_path):
    parts = PartFolder(tmp_path, {}, rows=4000, step=4000)
    scores = np.frombuffer(np.random.default_rng(0).bytes(16_000), np.float32)  # of which nothing can be compressed
    parts.write(0, {"score": scores})
    np.testing.assert_array_equal(parts.read(0)["score"].to_numpy(), scores)
    content = bytearray(parts.file(0).read_bytes())
    for place in (content.index(scores[2000:2002].tobytes()), *range(len(content) - 900, len(content), 7)):
        damaged = bytearray(content)
        damaged[place] ^= 1
        parts.file(0).write_bytes(damaged)
        with pytest.raises(ValueError, match=r"part-00000-of-00001\.parquet (is damaged \(|was damaged, or changed)"):
            parts.read(0)


def test_a_process_that_does_not_come_is_named(data, tmp_path, monkeypatch):
    monkeypatch.setattr("hf_curriculum.parts._POLL", 0.01)
    options = {**FAST, "world_size": 2, "timeout": 0.05}
    with pytest.raises(TimeoutError, match=r"3 of 6 files are missing.*part-00003-of-00006.*Start it again"):
        add_scores_sharded(data, CaptionLength(), tmp_path, rank=0, **options)
    with pytest.raises(TimeoutError, match=r"1 of 1 files are missing.*fitted\.json.*process that writes them"):
        add_scores_sharded(data, WordRarity(), tmp_path, rank=1, **options)


def test_between_two_looks_for_files_a_process_sleeps(tmp_path, monkeypatch):
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        (tmp_path / f"{'ab'[len(slept) - 1]}.parquet").touch()

    monkeypatch.setattr("hf_curriculum.parts.time.sleep", sleep)
    wait_for_files(tmp_path, ["a.parquet", "b.parquet"], 0.5)
    assert len(slept) == 2
    assert min(slept) >= 0.1


def test_a_scorer_reads_what_scorers_before_it_write(data, tmp_path):
    """One that comes before the scorer which replaces a column reads the column that is there."""
    given = data.remove_columns("image").add_column("caption_length", [1.0] * 60)
    both = Combine({"caption_length": 1}, "none").fit(given)
    scorers = [both, CaptionLength()]
    for found in (
        add_scores(given, scorers, overwrite=True),
        add_scores(given, scorers, overwrite=True, resume_every=20, cache_dir=tmp_path / "cache"),
        add_scores_sharded(given, scorers, tmp_path / "parts", overwrite=True, **FAST),
    ):
        assert found["combined"][:] == [1.0] * 60
        assert min(found["caption_length"][:]) == 4


def test_mistakes(data, tmp_path):
    with pytest.raises(TypeError, match="was given an IterableDataset"):
        add_scores_sharded(data.to_iterable_dataset(), CaptionLength(), tmp_path)
    with pytest.raises(ValueError, match=r"there is no split 'train' among \['a', 'b'\].*fit_on="):
        add_scores_sharded(DatasetDict(a=data, b=data), WordRarity(), tmp_path)
    with pytest.raises(ValueError, match="`part_rows=0`"):
        add_scores_sharded(data, CaptionLength(), tmp_path, part_rows=0)
    with pytest.raises(ValueError, match="`batch_size=0`"):
        add_scores_sharded(data, CaptionLength(), tmp_path, batch_size=0)
    with pytest.raises(ValueError, match=r"`text` is not in the data"):
        add_scores_sharded(data, CaptionLength(column="text"), tmp_path)


def test_an_unknown_aggregate_is_refused_before_anything_is_scored(data, tmp_path):
    with pytest.raises(ValueError, match="`per_image` is 'sum'"):
        add_scores_sharded(data, CaptionLength(), tmp_path / "parts", per_image="sum", **FAST)
    assert not (tmp_path / "parts").exists()


def test_parts_are_compressed(tmp_path):
    parts = PartFolder(tmp_path, {}, rows=4, step=4)
    parts.write(0, {"score": np.arange(4, dtype=np.float32)})
    assert pyarrow.parquet.read_metadata(parts.file(0)).row_group(0).column(0).compression == "ZSTD"


@pytest.fixture
def alone(monkeypatch):
    """No launcher and no Slurm."""
    for name in [name for name in os.environ if name.startswith(("SLURM_", "LOCAL_", "RANK", "WORLD_SIZE"))]:
        monkeypatch.delenv(name)


def test_rank_and_world_size_are_read_from_the_launcher(alone, monkeypatch):
    assert launched() == (0, 1)
    monkeypatch.setenv("RANK", "2")
    with pytest.raises(ValueError, match="`RANK` is 2, but WORLD_SIZE is not known"):
        launched()
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert launched() == (2, 4)
    assert launched(0, 2) == (0, 2)
    with pytest.raises(ValueError, match="The rank is 4 of 4 processes"):
        launched(4)


BATCH = {"JOB_ID": 7, "NTASKS": 4, "PROCID": 0, "LOCALID": 0}  # of a batch script, whose job has 4 tasks
STEP = {**BATCH, "STEP_NUM_TASKS": 4, "PROCID": 3, "LOCALID": 1, "STEP_TASKS_PER_NODE": "2(x2)"}
ARRAY = {"ARRAY_TASK_ID": 9, "ARRAY_TASK_MIN": 5, "ARRAY_TASK_MAX": 11, "ARRAY_TASK_STEP": 2, "ARRAY_TASK_COUNT": 4}
OTHERS = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}


@pytest.mark.parametrize(
    ("slurm", "others", "expected", "here"),
    [
        (BATCH, {}, (0, 1), (0, 1)),
        (STEP, {}, (3, 4), (1, 2)),
        ({**STEP, "STEP_TASKS_PER_NODE": "3,1"}, {}, (3, 4), (1, 3)),
        (ARRAY, {}, (2, 4), (0, 1)),
        ({**BATCH, **ARRAY}, {}, (2, 4), (0, 1)),
        ({**STEP, **ARRAY}, {}, (2 * 4 + 3, 16), (1, 2)),
        ({"ARRAY_TASK_ID": 1, "ARRAY_TASK_MIN": 0, "ARRAY_TASK_MAX": 2}, {}, (1, 3), (0, 1)),
        ({**STEP, **ARRAY}, OTHERS, (1, 2), (1, 1)),  # `torchrun` within a step
    ],
)
def test_slurm_says_which_process_this_is(slurm, others, expected, here, alone, monkeypatch, caplog):
    for name, value in {**{f"SLURM_{name}": value for name, value in slurm.items()}, **others}.items():
        monkeypatch.setenv(name, str(value))
    assert launched() == expected
    assert launched(0, 5) == (0, 5)
    assert launched_here() == here
    assert ("by Slurm's job array. Set RANK=0" in caplog.text) == ("ARRAY_TASK_ID" in slurm and not others)


@pytest.mark.parametrize("wrong", [{"COUNT": 3}, {"ID": 8}])
def test_an_array_in_unequal_steps_gives_no_rank(wrong, alone, monkeypatch):
    for name, value in {**ARRAY, **{f"ARRAY_TASK_{name}": value for name, value in wrong.items()}}.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    with pytest.raises(ValueError, match="between 5 and 11, not in equal steps, so the rank of task"):
        launched()
    assert launched(0, 1) == (0, 1)


def test_the_first_process_writes_the_manifest(tmp_path, monkeypatch):
    PartFolder(tmp_path, {"scorer": "a"}, 4, 2)
    facts = json.loads((tmp_path / "run.json").read_text())
    assert facts.pop("seal")
    assert facts == {"scorer": "a", "rows": 4, "rows_per_part": 2}
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]
    with pytest.raises(ValueError, match=r"scorer was 'a' and is 'b', version was None and is 3"):
        PartFolder(tmp_path, {"scorer": "b", "version": 3}, 4, 2)
    monkeypatch.setattr(Path, "exists", lambda self: False)  # both looked before either wrote
    with pytest.raises(ValueError, match=r"scorer was 'a' and is 'b'"):
        PartFolder(tmp_path, {"scorer": "b"}, 4, 2)

    def refuse(*_):
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    assert PartFolder(tmp_path / "new", {"scorer": "b"}, 4, 2).count == 2


def test_a_manifest_without_parts_is_replaced_by_a_single_process(tmp_path):
    PartFolder(tmp_path, {"scorer": "a model that is not there"}, 4, 2)
    with pytest.raises(ValueError, match="holds parts of another"):
        PartFolder(tmp_path, {"scorer": "b"}, 4, 2)
    PartFolder(tmp_path, {"scorer": "b"}, 4, 2, single_process=True).write(0, {"score": np.zeros(2, np.float32)})
    with pytest.raises(ValueError, match="scorer was 'b' and is 'c'"):
        PartFolder(tmp_path, {"scorer": "c"}, 4, 2, single_process=True)


def test_a_run_of_one_process_replaces_a_manifest_without_parts(data, tmp_path):
    folder = tmp_path / "all" / "caption_length"
    PartFolder(folder, {"scorer": "a model that is not there"}, 60, 10)
    with pytest.raises(ValueError, match="holds parts of another"):  # which a process may be about to write
        add_scores_sharded(data, CaptionLength(), tmp_path, rank=0, world_size=2, **FAST)
    check_same(add_scores_sharded(data, CaptionLength(), tmp_path, **FAST), add_scores(data, CaptionLength()))


def test_the_digest_of_data(data, tmp_path):
    same = data_digest(data)
    data.save_to_disk(str(tmp_path / "data"), num_shards=3)
    assert data_digest(load_from_disk(str(tmp_path / "data"))) == same  # in several pieces
    assert data_digest(data.select([*range(60)]).shuffle(seed=0).select(range(5))) != same
    order = np.random.default_rng(0).permutation(60)
    assert data_digest(data.select(order)) == data_digest(data.select(order).flatten_indices()) != same
    stored = data.cast_column("image", Image(decode=False))
    images = [{"bytes": content, "path": None} for content in (b"shorter", stored[7]["image"]["bytes"][:-1] + b"x")]
    for column, value in (("caption", "changed"), ("image_id", None), *(("image", image) for image in images)):
        rows = stored.to_dict()
        rows[column][7] = value
        assert data_digest(Dataset.from_dict(rows, features=data.features)) != same
    texts = ["ab", "c"], ["a", "bc"], ["ab", "d"], ["db", "c"]  # other lengths, or another letter
    assert len({data_digest(Dataset.from_dict({"a": rows})) for rows in texts}) == 4
    vectors = Features({"v": List(Value("float32")), "n": Value("int64")})
    kinds = [{"v": [[1.0], [x]], "n": [1, n]} for x in (2.0, 3.0) for n in (4, None)]
    assert len({data_digest(Dataset.from_dict(rows, features=vectors)) for rows in kinds}) == 4
    for kind, empty in (("int64", 0), ("float32", 0.0), ("bool", False), ("string", "")):  # a missing value is none
        features = Features({"a": Value(kind)})
        assert len({data_digest(Dataset.from_dict({"a": [x]}, features=features)) for x in (empty, None)}) == 2
    assert data_digest(data.select([])) != same
    names = [Dataset.from_dict({name: [1, 2]}) for name in "ab"]
    structs = [Dataset.from_dict({"s": [{"x": x}, {"x": 1}]}) for x in (1, 2)]
    assert len({data_digest(one) for one in (*names, *structs)}) == 4


def test_the_digest_of_data_knows_the_size_of_every_file(tmp_path):
    files = [tmp_path / f"{number}.png" for number in range(600)]  # of 256 of them the bytes are read too
    for number, file in enumerate(files):
        file.write_bytes(bytes(number + 1))
    data = Dataset.from_dict({"image": list(map(str, files))}).cast_column("image", Image())
    embedded = [{"bytes": file.read_bytes(), "path": None} for file in files]
    before = data_digest(data)
    assert before == data_digest(Dataset.from_dict({"image": embedded}, features=data.features))
    order = np.random.default_rng(0).permutation(600)
    assert data_digest(data.select(order)) == data_digest(data.select(order).flatten_indices()) != before
    files[1].write_bytes(bytes(999))
    changed = data_digest(data)
    files[1].unlink()
    assert len({before, changed, data_digest(data)}) == 3


def test_parts_of_a_single_row(data, tmp_path):
    few = data.select(range(3))
    check_same(
        add_scores_sharded(few, CaptionLength(), tmp_path, part_rows=1, batch_size=1), add_scores(few, CaptionLength())
    )
    assert len(list(tmp_path.rglob("part-*.parquet"))) == 3


def test_a_written_part_is_logged(data, tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="hf_curriculum"):
        add_scores_sharded(data, CaptionLength(), tmp_path, **FAST)
    assert "part 6 of 6 is written" in caplog.text
    assert "`caption_length`: 60 rows, 0.00% unscored" in caplog.text


@pytest.mark.slow
def test_workers_of_a_process(data, tmp_path):
    found = add_scores_sharded(data, NounCount(), tmp_path, num_proc=2, batch_size=5, part_rows=30)
    check_same(found, add_scores(data, NounCount()))


SLOW_SCORER = """
import sys, time
from datasets import Dataset
from hf_curriculum import Scorer
from hf_curriculum import add_scores_sharded

class Slow(Scorer):
    columns, name, easy = ("caption",), "slow", "low"
    def score(self, batch, rank):
        with open(sys.argv[2], "a") as stream:
            stream.write("batch\\n")
        time.sleep(float(sys.argv[3]))
        return [float(caption) for caption in batch["caption"]]

data = Dataset.from_dict({"caption": [str(i) for i in range(60)]})
print(sum(add_scores_sharded(data, Slow(), sys.argv[1], batch_size=5, part_rows=10)["slow"][:]))
"""


@pytest.mark.slow
def test_a_process_that_is_killed_outright(tmp_path):
    folder, log = tmp_path / "parts", tmp_path / "log"
    command = [sys.executable, "-c", SLOW_SCORER, str(folder), str(log)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    first = subprocess.Popen([*command, "0.3"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
    while len(list(folder.rglob("part-*.parquet"))) < 2:
        assert first.poll() is None
        time.sleep(0.05)
    first.kill()
    first.communicate()
    kept = len(list(folder.rglob("part-*.parquet")))
    log.unlink()
    second = subprocess.run([*command, "0"], capture_output=True, text=True, env=environment, timeout=100)
    assert float(second.stdout) == sum(range(60))
    assert 2 <= kept < 6
    assert len(log.read_text().splitlines()) == 2 * (6 - kept)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["accelerate", "torchrun"])
def test_two_launched_processes_from_the_command_line(tmp_path, launcher):
    captions = [f"a dog {'and a cat ' * (i % 4)}{i}" for i in range(50)]
    data = Dataset.from_dict({"caption": captions, "image_id": [str(i // 2) for i in range(50)]})
    source = tmp_path / "data.parquet"
    data.to_parquet(str(source))
    module = {
        "accelerate": ["accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--num_machines=1"],
        "torchrun": ["torch.distributed.run", "--nproc_per_node=2"],
    }[launcher]
    options = ["--scorer=caption_length", "--scorer=word_rarity", "--batch-size=5", "--part-rows=10", "--images=none"]
    options += ['--scorer={"type": "combined", "weights": {"caption_length": 1, "word_rarity": 1}}']
    command = [sys.executable, "-m", *module, "--master_port=0" if launcher == "torchrun" else "--main_process_port=0"]
    command += ["-m", "hf_curriculum.cli", "score", str(source), str(tmp_path / "scored"), *options]
    environment = {**os.environ, "HF_HOME": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment)
    assert result.returncode == 0, result.stderr[-3000:]
    assert "process 1 of 2: its share is done" in result.stderr
    assert result.stderr.count("saved to") == 1
    assert result.stdout.count("WordRarity") == 1
    length, rarity = CaptionLength(), WordRarity().fit(data)
    both = Combine({"caption_length": 1, "word_rarity": 1}).fit(add_scores(data, [length, rarity]))
    check_same(load_from_disk(str(tmp_path / "scored")), add_scores(data, [length, rarity, both]))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "data.parquet", "scored"]
