"""Buckets on disk as a stream: who reads what, in which step, and where it goes on after a stop."""

from __future__ import annotations

import json
import math
import pickle
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.data_loader import IterableDatasetShard, prepare_data_loader
from datasets import Dataset, Image, disable_progress_bars
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as PILImage
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

from hf_curriculum import IID, BucketedStream, Filter, Growing, Phases, save_bucketed
from hf_curriculum.streaming.index import BucketIndex, Shard, StoredBucket
from hf_curriculum.streaming.plan import Partitions, PassOrder, plan_buckets
from hf_curriculum.streaming.reader import WorkerSamples

SIZE, GLOBAL = 203, 16


@pytest.fixture(scope="module")
def buckets(tmp_path_factory):
    """Four buckets of examples with their numbers; the score does not follow them."""
    disable_progress_bars()
    return written(tmp_path_factory.mktemp("buckets") / "out")


def table(size: int = SIZE) -> Dataset:
    scores = (np.arange(size) * 37 % 20).astype(np.float32)
    return Dataset.from_dict({"id": range(size), "caption": [f"caption {n}" for n in range(size)], "s": scores})


def written(path, size: int = SIZE, num_buckets: int = 4, cut: str = "rank", **options):
    options = {"score_column": "s", "easy": "low", "shard_size": 9, **options}
    save_bucketed(table(size), path, num_buckets, cut, **options)
    return path


def ids_of(examples: list[dict]) -> list[int]:
    return [example["id"] for example in examples]


def steps_of(stream: BucketedStream, processes: int, workers: int, accumulated: int = 1, start: int = 0) -> list[list]:
    """The ids of each optimizer step, as loaders on several processes give them."""
    size = stream.plan.global_batch_size // processes // accumulated
    steps: list[list[int]] = [[] for _ in range(stream.plan.num_steps - start)]
    for rank in range(processes):
        part = stream.split_by_node(rank, processes)
        loader = DataLoader(part, batch_size=size, num_workers=workers, collate_fn=ids_of)
        for number, batch in enumerate(loader):
            assert len(batch) == size
            steps[number // accumulated] += batch
    return steps


@pytest.mark.parametrize(
    ("processes", "workers", "accumulated"),
    [
        (1, 0, 1),
        (1, 0, 2),
        (2, 0, 1),
        (4, 0, 2),
        (1, 2, 2),
        (2, 2, 1),
        pytest.param(1, 2, 1, marks=pytest.mark.slow),
        pytest.param(2, 0, 2, marks=pytest.mark.slow),
        pytest.param(2, 2, 2, marks=pytest.mark.slow),
        pytest.param(4, 0, 1, marks=pytest.mark.slow),
        pytest.param(4, 2, 1, marks=pytest.mark.slow),
        pytest.param(4, 2, 2, marks=pytest.mark.slow),
    ],
)
def test_every_step_sees_the_same_examples_and_every_pass_all_of_them(buckets, processes, workers, accumulated):
    curriculum = Phases(4, 2)
    size = GLOBAL // processes // accumulated
    stream = BucketedStream(buckets, curriculum, global_batch_size=GLOBAL, batch_size=size)
    steps = steps_of(stream, processes, workers, accumulated)
    alone = list(BucketedStream(buckets, curriculum, global_batch_size=GLOBAL))
    assert [Counter(step) for step in steps] == [
        Counter(ids_of(alone[start : start + GLOBAL])) for start in range(0, len(alone), GLOBAL)
    ]
    order = np.argsort(table()["s"][:], kind="stable")
    start = 0
    for stage in stream.plan.stages:
        for _ in range(2):
            stop = start + stage.pool_size
            assert sorted(ids_of(alone[start:stop])) == sorted(order[: stage.pool_size].tolist())
            start = stop
    assert len(alone) - start == stream.plan.num_filled < GLOBAL


@pytest.mark.parametrize("pools", ["cumulative", "exclusive"])
def test_phases_draw_from_their_buckets_in_an_order_of_their_own(buckets, pools):
    stream = BucketedStream(buckets, Phases(4, 2, pools=pools), seed=3)
    examples = ids_of(list(stream))
    assert len(examples) == len(stream) == stream.plan.num_samples
    order = np.argsort(table()["s"][:], kind="stable")
    passes, start = [], 0
    for stage in stream.plan.stages:
        ((first, stop),) = stage.slices
        for _ in range(2):
            passes.append(examples[start : start + stage.pool_size])
            start += stage.pool_size
            assert sorted(passes[-1]) == sorted(order[first:stop].tolist())
    assert all(passes[number] != passes[number + 1] for number in range(0, 8, 2))
    assert examples != ids_of(list(BucketedStream(buckets, Phases(4, 2, pools=pools), seed=4)))
    assert examples == ids_of(list(BucketedStream(buckets, Phases(4, 2, pools=pools), seed=3)))


def test_buckets_are_mixed_in_proportion_all_along(tmp_path):
    path = written(tmp_path / "out", size=4000, shard_size=100)
    stream = BucketedStream(path, IID(epochs=1), global_batch_size=40, with_samples=True, shuffle_buffer=320)
    buckets = np.array([drawn.index for drawn in stream]).reshape(-1, 400) // 1000
    shares = np.array([np.bincount(part, minlength=4) for part in buckets]) / 400
    assert np.abs(shares - 0.25).max() < 0.08


def test_max_steps_reads_the_first_steps_of_the_whole_stream(buckets):
    def stream(**length):
        return BucketedStream(buckets, Phases(4, 1.5), global_batch_size=6, shuffle_buffer=20, **length)

    whole = ids_of(list(stream()))
    for steps in range(1, stream().plan.num_steps, 3):
        assert ids_of(list(stream(max_steps=steps))) == whole[: 6 * steps]
        assert stream(max_steps=steps).plan.rows(0, 6 * steps).tolist() == stream().plan.rows(0, 6 * steps).tolist()


def test_rows_and_slots_are_those_that_are_read(buckets):
    stream = BucketedStream(buckets, Phases(4, 1.5), global_batch_size=6, with_samples=True)
    drawn = list(stream)
    assert [item.draw for item in drawn] == list(range(stream.plan.num_samples))
    rows = [item.index for item in drawn]
    assert stream.rows(0, stream.plan.num_samples).tolist() == rows
    assert (stream.rows(71, 180).tolist(), stream.rows(5, 5).tolist()) == (rows[71:180], [])
    stored = [row["id"] for bucket in range(4) for row in _stored(buckets, bucket)]
    assert [item.example["id"] for item in drawn] == [stored[row] for row in rows]
    with pytest.raises(IndexError, match="the stream has"):
        stream.rows(0, stream.plan.num_samples + 1)


def _stored(path, bucket: int) -> list[dict]:
    files = sorted(map(str, (path / f"bucket_{bucket}").glob("*.parquet")))
    return [row for file in files for row in Dataset.from_parquet(file, keep_in_memory=True)]


@pytest.mark.parametrize("processes", [1, 2])
def test_a_stream_resumed_anywhere_is_the_rest(buckets, processes):
    def make() -> BucketedStream:
        stream = BucketedStream(buckets, Phases(4), global_batch_size=8, shuffle_buffer=64)
        return stream.split_by_node(processes - 1, processes)

    whole = ids_of(list(make()))
    stopped, resumed = make(), make()
    iterator = iter(stopped)
    for position in range(len(whole) + 1):
        state = json.loads(json.dumps(stopped.state_dict()))
        assert state["step"] == (None if position % (8 // processes) else position // (8 // processes))
        if position % 13 == 0 or position > len(whole) - 3:
            resumed.load_state_dict(state)
            assert len(resumed) == len(whole) - position
            assert ids_of(list(resumed)) == whole[position:]
        if position < len(whole):
            assert next(iterator)["id"] == whole[position]


def test_a_step_is_resumed_on_any_number_of_processes_and_workers(buckets):
    whole = steps_of(BucketedStream(buckets, Phases(4), global_batch_size=GLOBAL), 1, 0)
    for processes, workers, step in ((1, 2, 1), (2, 2, 9), (4, 0, 17), (2, 0, len(whole))):
        resumed = BucketedStream(buckets, Phases(4), global_batch_size=GLOBAL)
        resumed.load_state_dict(resumed.state_at(step))
        steps = steps_of(resumed, processes, workers, start=step)
        assert list(map(sorted, steps)) == list(map(sorted, whole[step:]))
        assert len(resumed.split_by_node(0, processes)) == (len(whole) - step) * GLOBAL // processes


def test_a_worker_s_own_state_is_resumed_by_the_same_worker(buckets, monkeypatch):
    def as_worker(number: int) -> None:
        info = type("Info", (), {"id": number, "num_workers": 2})()
        monkeypatch.setattr("hf_curriculum.streaming.dataset.get_worker_info", lambda: info)

    as_worker(1)
    stream = BucketedStream(buckets, Phases(4), global_batch_size=8)
    whole = ids_of(list(stream))
    iterator = iter(stream)
    for _ in range(11):
        next(iterator)
    resumed = BucketedStream(buckets, Phases(4), global_batch_size=8)
    resumed.load_state_dict(stream.state_dict())
    assert ids_of(list(resumed)) == whole[11:]
    as_worker(0)
    with pytest.raises(ValueError, match=r"taken within a step, or by one worker of several, as reader \[8, 0, 1, 1"):
        list(resumed)
    # Stopped again after a resume, its own count begins at that step.
    as_worker(1)
    second = BucketedStream(buckets, Phases(4), global_batch_size=8)
    second.load_state_dict(second.state_at(5))
    rest = ids_of(list(second))
    iterator = iter(second)
    for _ in range(3):
        next(iterator)
    resumed.load_state_dict(second.state_dict())
    assert ids_of(list(resumed)) == rest[3:]


def test_a_resumed_stream_opens_no_finished_shard(tmp_path):
    path = written(tmp_path / "out", size=2000, shard_size=10)
    stream = BucketedStream(
        path, Phases(4), global_batch_size=8, partitions_per_step=1, worker_partitions=1, with_samples=True
    )
    rows = stream.rows(0, stream.plan.num_samples)
    starts = stream.plan.stage_starts
    step = (starts[3] + 1500) // 8
    stream.load_state_dict(stream.state_at(step))
    ahead = [drawn.index for drawn in stream][: starts[4] - stream.plan.num_filled - step * 8]
    assert ahead == rows[step * 8 : starts[4] - stream.plan.num_filled].tolist()
    # A partition reads 4 shards at a time, and a block of 1,000 examples reaches from the 1,000th to the last.
    needed = {row // 10 for row in ahead}
    assert set(stream.opened) == {f"bucket_{n // 50}/{n % 50:05d}-of-00050.parquet" for n in needed}
    assert len(needed) <= 104
    assert max(stream.opened.values()) == 1


def test_placeholders_stand_for_completed_examples(buckets):
    stream = BucketedStream(buckets, Phases(4), global_batch_size=8)
    whole = list(stream)
    stream.load_state_dict(stream.state_at(3), placeholders=True)
    assert (list(stream), len(stream)) == ([None] * 24 + whole[24:], len(whole))
    size = stream.plan.global_batch_size
    batches = list(DataLoader(stream, batch_size=size, num_workers=2, collate_fn=list))
    assert batches == [[None] * size] * 3 + [whole[at : at + size] for at in range(24, len(whole), size)]


def test_a_loader_by_accelerate_gives_the_same_batches(buckets):
    processes, size = 2, 4
    stream = BucketedStream(buckets, Phases(4), global_batch_size=GLOBAL, batch_size=size)
    unsplit = BucketedStream(buckets, Phases(4), global_batch_size=GLOBAL, batch_size=processes * size)
    for rank in range(processes):
        loader = DataLoader(stream.split_by_node(rank, processes), batch_size=size, collate_fn=ids_of)
        prepared = prepare_data_loader(
            loader, num_processes=1, process_index=0, put_on_device=True, dispatch_batches=False
        )
        expected = list(prepared)
        for workers in (0, 2):
            shard = IterableDatasetShard(unsplit, size, num_processes=processes, process_index=rank)
            assert list(DataLoader(shard, size, num_workers=workers, collate_fn=ids_of)) == expected


def test_accelerator_prepares_it(buckets):
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=False))
    stream = BucketedStream(buckets, Phases(4), global_batch_size=GLOBAL, columns=["id"])
    loader = accelerator.prepare(DataLoader(stream, batch_size=GLOBAL))
    assert torch.cat([batch["id"] for batch in loader]).tolist() == ids_of(list(stream))
    assert len(loader) == stream.plan.num_steps


class Recorder(torch.nn.Module):
    """A model that notes what it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: list[int] = []

    def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen += ids.tolist()
        return {"loss": (self.weight - ids.float().mean()) ** 2}


def test_a_plain_trainer_trains_on_it(buckets, tmp_path):
    stream = BucketedStream(buckets, Phases(4), global_batch_size=GLOBAL, batch_size=8)
    args = TrainingArguments(
        tmp_path,
        num_train_epochs=1,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        accelerator_config={"dispatch_batches": False},
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        remove_unused_columns=False,
        disable_tqdm=True,
    )
    model = Recorder()
    trainer = Trainer(model, args, lambda rows: {"ids": torch.tensor(ids_of(rows))}, train_dataset=stream)
    trainer.train()
    assert trainer.state.global_step == stream.plan.num_steps
    assert model.seen == ids_of(list(stream))


def test_value_buckets_follow_their_own_thresholds(tmp_path):
    path = written(tmp_path / "out", num_buckets=3, cut="value", thresholds=(4, 9))
    stream = BucketedStream(path, Phases(3, cut="value"), global_batch_size=1)
    scores = [example["s"] for example in stream]
    sizes = [stage.pool_size for stage in stream.plan.stages]
    assert max(scores[: sizes[0]]) == 4
    assert max(scores[sizes[0] : sizes[0] + sizes[1]]) == 9
    assert stream.plan.stages[1].rule == "s ≤ 9"
    same = BucketedStream(path, Phases(3, cut="value", thresholds=(4, 9)), global_batch_size=1)
    assert [example["s"] for example in same] == scores
    with pytest.raises(ValueError, match=r"those of the buckets are \(4\.0, 9\.0\)"):
        BucketedStream(path, Phases(3, cut="value", thresholds=(4, 8)))
    with pytest.raises(ValueError, match="2 phases by value were asked for, but there are 3 buckets by value"):
        BucketedStream(path, Phases(2, cut="value"))


def test_a_bucket_without_examples_adds_nothing(tmp_path):
    data = Dataset.from_dict({"id": range(20), "s": np.float32([1] * 16 + [2, 3, 4, 5])})
    index = save_bucketed(data, tmp_path / "out", 4, "value", score_column="s", easy="low")
    assert index.sizes[1] == 0
    stream = BucketedStream(tmp_path / "out", Phases(4, cut="value"))
    ends = np.cumsum([stage.pool_size for stage in stream.plan.stages])
    found = ids_of(list(stream))
    assert sorted(found[ends[0] : ends[1]]) == sorted(found[: ends[0]]) == list(range(16))
    with pytest.raises(ValueError, match="Phase 2 has no rows"):
        BucketedStream(tmp_path / "out", Phases(4, cut="value", pools="exclusive"))


def test_hard_first_when_written_so(tmp_path):
    path = written(tmp_path / "out", easy="high")
    stream = BucketedStream(path, Phases(4, easy="high"))
    scores = [example["s"] for example in stream]
    assert min(scores[: stream.plan.stages[0].pool_size]) >= 15
    with pytest.raises(ValueError, match=r"the buckets were written with easy='high'. Run `save_bucketed"):
        BucketedStream(path, Phases(4, easy="low"))


def test_unscored_rows_come_last_or_not_at_all(tmp_path):
    data = table(40).map(lambda row: {"s": math.nan if row["id"] >= 36 else row["s"]})
    save_bucketed(data, tmp_path / "out", 4, score_column="s", easy="low")
    stream = BucketedStream(tmp_path / "out", Phases(4, pools="exclusive"))
    assert set(range(36, 40)) <= set(ids_of(list(stream)[30:]))
    assert "4 without a score ranked last" in stream.plan.describe()
    with pytest.raises(ValueError, match="the last bucket holds 4 rows without a score"):
        BucketedStream(tmp_path / "out", Phases(4, unscored="drop"))
    save_bucketed(data, tmp_path / "dropped", 4, score_column="s", easy="low", unscored="drop")
    stream = BucketedStream(tmp_path / "dropped", Phases(4, unscored="drop", pools="exclusive"))
    assert sorted(ids_of(list(stream))) == list(range(36))


def test_most_rows_may_be_unscored(tmp_path):
    data = table(40).map(lambda row: {"s": math.nan if row["id"] >= 15 else row["s"]})
    save_bucketed(data, tmp_path / "out", 2, score_column="s", easy="low")
    stream = BucketedStream(tmp_path / "out", Phases(2))
    assert [stage.pool_size for stage in stream.plan.stages] == [20, 40]
    assert set(range(15)) <= set(ids_of(list(stream)[:20]))


def test_the_plan_can_be_asked_for_scores_and_rows(buckets):
    plan = BucketedStream(buckets, Phases(4), global_batch_size=8).plan
    scores = np.asarray(plan.ranking.scores)
    assert (scores.dtype, scores.tolist()) == (np.float32, sorted(table()["s"]))
    assert (sorted(plan.rows(0, 50)), plan.fingerprint()["num_rows"]) == (list(range(50)), SIZE)


def test_a_filter_leaves_whole_buckets_unread(buckets):
    stream = BucketedStream(buckets, Filter(0.5, Phases(1)))
    order = np.argsort(table()["s"][:], kind="stable")
    assert sorted(ids_of(list(stream))) == sorted(order[: SIZE // 2].tolist())
    assert {file.partition("/")[0] for file in stream.opened} == {"bucket_0", "bucket_1"}


@pytest.mark.parametrize("rule", [Phases(4), Filter(0.75), IID(epochs=1)], ids=["phases", "filter", "iid"])
def test_a_stream_of_more_rows_than_32_bits_number_is_planned_without_an_array_of_them(rule):
    rows = 1 << 33
    shards = [tuple(Shard(f"{number}/{part}.parquet", rows // 16, 1, "") for part in range(4)) for number in range(4)]
    stored = tuple(StoredBucket(rows // 4, float(number), number + 0.5, own) for number, own in enumerate(shards))
    marks = tuple(tuple(np.linspace(number, number + 0.5, 101).tolist()) for number in range(4))
    index = BucketIndex("s", "low", "rank", (0.5, 1.5, 2.5), rows, 0, "last", 0, "parquet", {}, stored, marks)
    plan = plan_buckets(rule, index, global_batch_size=4096)
    drawn = plan.rows(plan.num_samples - 4096, plan.num_samples)
    share = 0.75 if isinstance(rule, Filter) else 1
    assert 0 <= drawn.min() < 1 << 31 < share * rows - (1 << 30) < drawn.max() < share * rows
    assert len(set(drawn.tolist())) == 4096


def test_pools_that_are_not_whole_buckets_are_refused(buckets):
    with pytest.raises(ValueError, match=r"Phase 1 draws from positions \[0, 67\) of the order, but the buckets"):
        BucketedStream(buckets, Phases(3))
    with pytest.raises(TypeError, match="Growing reads the scores of single examples"):
        BucketedStream(buckets, Growing())
    for rule in (Filter(0.5, by="id"), Filter(at_least=3), Filter("auto")):
        with pytest.raises(TypeError, match="keeps by the values of single examples"):
            BucketedStream(buckets, rule)
    with pytest.raises(ValueError, match="4 phases by value were asked for, but there are 4 buckets by rank"):
        BucketedStream(buckets, Phases(4, cut="value"))
    assert len(BucketedStream(buckets, Phases(1, cut="value")).plan.stages) == 1
    with pytest.raises(ValueError, match="partial_batches='keep' pads the last batch"):
        BucketedStream(buckets, Phases(4, partial_batches="keep"))
    assert len(BucketedStream(buckets, Phases(2)).plan.stages) == 2


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_stock_trainer_that_begins_a_stream_again_is_warned_of(buckets, tmp_path, epochs):
    class Model(torch.nn.Linear):
        def forward(self, ids):
            return {"loss": self.weight.sum() * ids.float().mean()}

    args = TrainingArguments(
        tmp_path,
        per_device_train_batch_size=8,
        num_train_epochs=epochs,
        remove_unused_columns=False,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
    )
    stream = BucketedStream(buckets, Phases(4), global_batch_size=8)
    trainer = Trainer(Model(1, 1), args, lambda rows: {"ids": torch.tensor(ids_of(rows))}, train_dataset=stream)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.train()
    said = [str(one.message) for one in caught if "BucketedStream" in str(one.message)]
    assert len(said) == epochs - 1
    assert all("Epoch 2 of a BucketedStream begins" in text and "num_train_epochs=1" in text for text in said)


def test_arguments_that_do_not_fit(buckets):
    with pytest.raises(ValueError, match="shuffle_buffer=0 was given"):
        BucketedStream(buckets, shuffle_buffer=0)
    with pytest.raises(ValueError, match="worker_partitions=0 was given"):
        BucketedStream(buckets, worker_partitions=0)
    with pytest.raises(ValueError, match="`colour` is not in the data"):
        BucketedStream(buckets, columns=["colour"])
    with pytest.raises(ValueError, match="global_batch_size=16 cannot be made of batches of 5 on 1 process:"):
        BucketedStream(buckets, global_batch_size=16, batch_size=5)
    with pytest.raises(
        ValueError, match="global_batch_size was not given, and steps of 1 cannot be made of batches of 8"
    ):
        BucketedStream(buckets, batch_size=8)
    with pytest.raises(ValueError, match="not given, and steps of 1 cannot be made of batches of 1 on 2 processes"):
        BucketedStream(buckets).split_by_node(0, 2)
    stream = BucketedStream(buckets, global_batch_size=6)
    with pytest.raises(ValueError, match="rank=2 of world_size=2 was given"):
        stream.split_by_node(2, 2)
    with pytest.raises(ValueError, match="cannot be made of batches of 1 on 4 processes"):
        stream.split_by_node(0, 4)
    for step in (999, -1):
        with pytest.raises(ValueError, match=f"Step {step} was asked for"):
            stream.state_at(step)
    assert stream.state_at(0)["step"] == 0
    with pytest.raises(ValueError, match="batches of 0 on 1 process"):
        BucketedStream(buckets, batch_size=0)
    with pytest.raises(ValueError, match="rank=-1 of world_size=2"):
        stream.split_by_node(-1, 2)


def test_the_state_of_another_stream_is_refused(buckets, tmp_path):
    stream = BucketedStream(buckets, Phases(4), global_batch_size=8)
    state = stream.state_at(2)
    for options in ({"seed": 1}, {"shuffle_buffer": 7}, {"worker_partitions": 3}, {"partitions_per_step": 2}):
        (name,) = options
        with pytest.raises(ValueError, match=f"belongs to another stream: {name} changed from"):
            BucketedStream(buckets, Phases(4), global_batch_size=8, **options).load_state_dict(state)
    other = written(tmp_path / "out", seed=5)
    with pytest.raises(ValueError, match="belongs to another stream: buckets changed from"):
        BucketedStream(other, Phases(4), global_batch_size=8).load_state_dict(state)
    with pytest.raises(ValueError, match="is not the state of a BucketedStream in version 1"):
        stream.load_state_dict({"epoch": 3})


def test_a_shard_that_was_replaced_is_noticed(tmp_path):
    path = written(tmp_path / "out")
    stream = BucketedStream(path)
    first, second = sorted((path / "bucket_0").iterdir())[:2]
    first.write_bytes(second.read_bytes() if first.stat().st_size != second.stat().st_size else b"")
    with pytest.raises(ValueError, match="it was changed or truncated after"):
        BucketedStream(path)
    rows = Dataset.from_parquet(str(second), keep_in_memory=True).select(range(3))
    rows.to_parquet(str(first))
    with pytest.raises(ValueError, match="parquet holds something else than was written: its digest is"):
        list(stream)


def test_fewer_examples_than_a_step_are_drawn_again(tmp_path):
    path = written(tmp_path / "out", size=5, num_buckets=2)
    stream = BucketedStream(path, IID(epochs=1), global_batch_size=8)
    counts = Counter(ids_of(list(stream)))
    assert sorted(counts) == list(range(5))
    assert max(counts.values()) == 2
    empty = save_bucketed(table(5), tmp_path / "one", 1, score_column="s", easy="low", unscored="drop")
    assert empty.num_rows == 5


def test_it_can_be_sent_to_a_worker_that_was_not_forked(buckets):
    stream = BucketedStream(buckets, Phases(4), global_batch_size=8)
    assert list(pickle.loads(pickle.dumps(stream))) == list(stream)


@pytest.mark.parametrize("format", ["parquet", "webdataset"])
def test_images_come_decoded_or_as_bytes(tmp_path, format):
    files = []
    for number in range(8):
        files.append(str(tmp_path / f"{number}.png"))
        PILImage.new("RGB", (4, 4), (number, 0, 0)).save(files[-1])
    data = table(8).add_column("image", files).cast_column("image", Image())
    data = data.map(lambda row: {"s": math.nan if row["id"] == 3 else row["s"]}, features=data.features)
    save_bucketed(data, tmp_path / "out", 2, score_column="s", easy="low", format=format, num_shards=2)
    stream = BucketedStream(tmp_path / "out", Phases(2, pools="exclusive"))
    rows = {row["id"]: row for row in stream}
    assert (sorted(rows), list(rows[0])) == (list(range(8)), ["id", "caption", "s", "image"])
    assert all(row["image"].getpixel((0, 0)) == (number, 0, 0) for number, row in rows.items())
    assert all(row["caption"] == f"caption {number}" for number, row in rows.items())
    assert math.isnan(rows[3]["s"])
    assert rows[4]["s"] == data[4]["s"]
    stored = next(iter(BucketedStream(tmp_path / "out", columns=["image", "id"], decode=False)))
    assert list(stored) == ["image", "id"]
    assert stored["image"]["bytes"] == (tmp_path / f"{stored['id']}.png").read_bytes()
    captions = list(BucketedStream(tmp_path / "out", columns=["caption"]))
    assert all(list(row) == ["caption"] for row in captions)


@pytest.mark.parametrize(("processes", "workers", "accumulated"), [(1, 2, 1), (2, 2, 1), (4, 1, 2), (8, 2, 1)])
def test_no_two_readers_share_a_partition(processes, workers, accumulated):
    partitions = Partitions(64, per_step=8, per_worker=2)
    parts = [
        WorkerSamples(64, 64 // processes // accumulated, rank, processes, worker, workers)
        for rank in range(processes)
        for worker in range(workers)
    ]
    read = [set(partitions.divide(np.concatenate(list(part.samples(0, 10))))[0].tolist()) for part in parts]
    assert sum(map(len, read)) == len(set().union(*read)) == partitions.count


@pytest.mark.slow
def test_the_benchmark_runs(call_main, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "recipes" / "benchmarks"))
    import streaming

    out = tmp_path / "out.json"
    call_main(streaming, "--examples", 4000, "--shard_size", 20, "--json", out)
    figures = json.loads(out.read_text())
    assert figures["bucketed_examples_per_second"] > 0
    assert figures["resumed"]["finished"] > 0
    assert figures["resumed"]["finished_and_opened"] == 0


@given(
    batch=st.integers(1, 12),
    per_step=st.integers(1, 6),
    per_worker=st.integers(1, 3),
    first=st.integers(0, 100),
    shards=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=4),
    block=st.integers(1, 20),
    key=st.integers(0, 2**64 - 1),
)
@settings(deadline=None, max_examples=60)
def test_a_pass_places_every_example_once(batch, per_step, per_worker, first, shards, block, key):
    partitions = Partitions(batch, per_step, per_worker)
    sizes = [sum(rows) for rows in shards]
    samples = np.arange(first, first + sum(sizes))
    numbers, counts = partitions.divide(np.arange(first + sum(sizes)))
    assert np.bincount(numbers[:first], minlength=partitions.count).tolist() == partitions.before(first).tolist()
    for number in range(partitions.count):
        assert counts[numbers == number].tolist() == list(range((numbers == number).sum()))
    order = PassOrder(
        partitions, first, first + sum(sizes), tuple(range(len(shards))), tuple(map(tuple, shards)), block, key
    )
    found = set()
    reached: dict[tuple[int, int], tuple[int, int]] = {}
    partition_of, offset_of = order.locate(samples)
    for number in range(partitions.count):
        offsets = offset_of[partition_of == number].tolist()
        assert offsets == list(range(len(offsets)))
        start = 0
        while start < len(offsets):
            begin, end = order.block_at(number, start)
            assert (begin, end - begin) == (start, min(block, len(offsets) - start))
            pieces = order.pieces(number, begin, end)
            assert sorted(order.shuffled(number, begin, end).tolist()) == list(range(end - begin))
            assert sum(stop - at for _, _, at, stop in pieces) == end - begin
            for bucket, shard, at, stop in pieces:
                last = reached.get((number, bucket), (shard, at))
                assert at == (last[1] if last[0] == shard else 0)
                reached[number, bucket] = shard, stop
                found.update((bucket, shard, row) for row in range(at, stop))
            start = end
    assert len(found) == sum(sizes)
