"""`CurriculumTrainer` on buckets: what is trained on, where it resumes, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections import Counter
from pathlib import Path

import bucketed_run
import numpy as np
import pytest
from bucketed_run import make_data, make_trainer, recorded
from datasets import Dataset
from torch.utils.data import IterableDataset

from hf_curriculum import (
    IID,
    BabySteps,
    BucketedStream,
    ByImage,
    CurriculumTrainer,
    Filter,
    Growing,
    InfoBatch,
    Phases,
    SelfPaced,
    save_bucketed,
)
from hf_curriculum.config import kind_of
from hf_curriculum.training.checkpoints import read_curriculum
from hf_curriculum.training.facts import gather_facts
from hf_curriculum.training.report import training_report


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("buckets") / "out"
    save_bucketed(make_data(), path, 4, score_column="caption_length", easy="low", shard_size=3)
    return path


@pytest.fixture(scope="module")
def whole(folder, tmp_path_factory):
    """A run of four phases that nothing interrupts."""
    trainer = make_trainer(folder, tmp_path_factory.mktemp("whole"))
    trainer.train()
    return trainer


def stored(folder: Path) -> list[dict]:
    """The rows of the buckets, as row numbers count them."""
    files = [shard.file for bucket in BucketedStream(folder).index.buckets for shard in bucket.shards]
    return [row for file in files for row in Dataset.from_parquet(str(folder / file), keep_in_memory=True)]


def weights(trainer: CurriculumTrainer) -> list[np.ndarray]:
    return [parameter.detach().numpy() for parameter in trainer.model.parameters()]


def losses(trainer: CurriculumTrainer) -> list[tuple]:
    return [(entry["step"], entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]


def test_every_step_trains_on_the_rows_of_the_plan(folder, whole):
    plan = whole.plan
    steps = recorded(whole.args.output_dir)
    assert steps == {step: plan.step_rows(step).tolist() for step in range(plan.num_steps)}
    assert steps == {step: plan.rows(8 * step, 8 * step + 8).tolist() for step in range(plan.num_steps)}
    ids = [row["labels"] for row in stored(folder)]
    shown = {step: [ids[row] for row in rows] for step, rows in steps.items()}
    assert whole.model.seen == [label for step in shown for label in shown[step]]
    alone = BucketedStream(folder, Phases(4), global_batch_size=8, seed=3)
    assert [example["labels"] for example in alone] == whole.model.seen


def test_the_plan_is_that_of_the_same_data_in_memory(whole, tmp_path):
    memory = make_trainer(make_data(), tmp_path, score_column="caption_length")
    assert memory.plan.describe() == whole.plan.describe()
    columns = ("name", "rule", "pool", "new", "epochs", "draws", "first_sample", "last_sample", "pools")
    table, other = (
        [[stage[name] for name in columns] for stage in trainer.plan.to_dict()["stages"]]
        for trainer in (memory, whole)
    )
    assert table == other
    memory.train()
    # Which rows of a pool come first is the stream's own.
    kept = ("examples", "step", "curriculum/phase", "curriculum/pool", "curriculum/repeats", "curriculum/score_q")
    logged, other = (
        [
            {name: value for name, value in entry.items() if name.startswith(kept)}
            for entry in trainer.state.log_history
        ]
        for trainer in (memory, whole)
    )
    assert logged == other
    facts = [gather_facts(trainer) for trainer in (memory, whole)]
    for name in ("data", "curriculum", "describe", "decisions", "settings"):
        assert facts[0][name] == facts[1][name]
    assert facts[0]["cost"]["examples"] == facts[1]["cost"]["examples"] == whole.plan.num_draws
    assert facts[0]["score"]["statistics"] == facts[1]["score"]["statistics"]
    assert "Plan" in training_report(whole.args.output_dir).to_html()


def test_a_checkpoint_holds_the_plan_and_what_the_order_depends_on(whole):
    saved = read_curriculum(Path(whole.args.output_dir) / "checkpoint-8")
    assert saved["plan"] == json.loads(json.dumps(whole.plan.to_dict()))
    assert saved["plan"]["stream"] == {"shuffle_buffer": 1000, "partitions_per_step": 8, "worker_partitions": 2}
    assert saved["description"] == whole.plan.describe()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_run_is_the_rest_bit_for_bit_and_opens_no_finished_shard(folder, whole, tmp_path, workers):
    shutil.copytree(Path(whole.args.output_dir) / "checkpoint-8", tmp_path / "checkpoint-8")
    resumed = make_trainer(folder, tmp_path, dataloader_num_workers=workers)
    resumed.train(resume_from_checkpoint=True)
    assert all(map(np.array_equal, weights(resumed), weights(whole)))
    assert losses(resumed) == losses(whole)
    assert recorded(tmp_path) == {step: rows for step, rows in recorded(whole.args.output_dir).items() if step >= 8}
    if not workers:
        shards = [shard for bucket in resumed.plan.shards for shard in bucket]
        rows = [row for drawn in recorded(tmp_path).values() for row in drawn]
        needed = np.searchsorted(np.cumsum([shard.rows for shard in shards]), rows, side="right")
        assert set(resumed.get_train_dataloader().dataset.stream.opened) == {shards[at].file for at in needed}


def test_batches_workers_and_removed_columns_change_nothing(folder, whole, tmp_path):
    stream = BucketedStream(folder)
    options = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "dataloader_num_workers": 2}
    trainer = make_trainer(stream, tmp_path, **options, save_strategy="no")
    trainer.train()
    assert recorded(tmp_path) == recorded(whole.args.output_dir)
    assert trainer.get_train_dataloader().dataset.stream.column_names == ["x", "labels"]
    assert stream.column_names == ["x", "note", "labels", "caption_length"]


def test_a_run_that_ends_by_epochs_and_one_over_some_buckets(folder, tmp_path):
    trainer = make_trainer(folder, tmp_path, IID(), num_train_epochs=2, save_strategy="no")
    trainer.train()
    counts = Counter(row for rows in recorded(tmp_path).values() for row in rows)
    assert set(counts) == set(range(51))
    assert sum(counts.values()) == trainer.plan.num_draws == 104
    assert {len(rows) for rows in recorded(tmp_path).values()} == {8}
    kept = make_trainer(str(folder), tmp_path, Filter(0.5, Phases(1)))
    assert set(kept.plan.rows(0, 25).tolist()) == set(range(25))


def test_what_contradicts_the_training_arguments(folder, tmp_path):
    def refused(data, message, curriculum=None, error=ValueError, **options):
        with pytest.raises(error, match=message):
            make_trainer(data, tmp_path, curriculum, **options)

    def stream(**options):
        return BucketedStream(folder, **options)

    refused(stream(global_batch_size=16), "made with global_batch_size=16, but the training arguments say 8")
    refused(stream(seed=0), "made with seed=0, but the training arguments say 3")
    both = (
        r"made with curriculum=Phases\(num_phases=2\), but the training arguments say Phases\(epochs_per_phase=3\): "
    )
    refused(stream(curriculum=Phases(2)), both, Phases(4, 3))
    refused(stream(epochs=2), "made with epochs=2, but the training arguments say None")
    refused(
        stream(global_batch_size=8).split_by_node(0, 2),
        "was split or resumed, but Curr",
    )
    refused(
        folder,
        "score_column='length' was given, but the buckets in .* were written by `caption_length`",
        score_column="length",
    )
    refused(folder, "scores= was given, but the order of .* was written by `save_bucketed`", scores=np.zeros(51))
    refused(folder, "draws from positions", Phases(3))
    refused(
        tmp_path / "none", "It says which shards hold which bucket. `save_bucketed` writes it", error=FileNotFoundError
    )
    given = BucketedStream(folder, Phases(4), global_batch_size=8, seed=3)
    assert make_trainer(given, tmp_path).plan.rows(0, 99).tolist() == given.rows(0, 99).tolist()


@pytest.mark.parametrize(
    ("curriculum", "message"),
    [
        (BabySteps(4), "BabySteps reads the scores of single examples or decides while training"),
        (InfoBatch(), "InfoBatch reads the scores of single examples or decides while training"),
        (SelfPaced(), "SelfPaced reads the scores of single examples or decides while training"),
        (Growing(), "Growing reads the scores of single examples"),
        (Filter(0.5, BabySteps(2)), "BabySteps reads the scores"),
        (Phases(4, batches=ByImage()), r"batches=ByImage\(\.\.\.\) composes batches by a column of single examples"),
    ],
)
def test_curricula_that_need_single_examples_are_refused(folder, tmp_path, curriculum, message):
    with pytest.raises(TypeError, match=message):
        make_trainer(folder, tmp_path, curriculum, eval_dataset=make_data())


def test_streams_of_others_are_refused_with_what_to_do(tmp_path):
    class Numbers(IterableDataset):
        def __iter__(self):
            return iter(range(3))

    message = "which is read in its own order: no curriculum can choose.*write the scored data set with `save_bucketed"
    for data in (Numbers(), make_data().to_iterable_dataset()):
        with pytest.raises(TypeError, match=f"train_dataset is {kind_of(data)}, {message}"):
            make_trainer(data, tmp_path)


def test_a_checkpoint_of_other_rows_with_the_same_scores_is_refused(whole, tmp_path):
    shutil.copytree(Path(whole.args.output_dir) / "checkpoint-8", tmp_path / "checkpoint-8")
    reworded = make_data().map(lambda row, number: {"note": str(number)}, with_indices=True)
    for rows, changed in ((make_data(), False), (reworded, True)):
        save_bucketed(rows, tmp_path / str(changed), 4, score_column="caption_length", easy="low", shard_size=3)
        trainer = make_trainer(tmp_path / str(changed), tmp_path)
        if changed:
            with pytest.raises(ValueError, match="scores has changed since it was saved"):
                trainer.train(resume_from_checkpoint=True)
        else:
            trainer.train(resume_from_checkpoint=True)


def test_a_checkpoint_of_other_buckets_is_refused(folder, whole, tmp_path):
    shutil.copytree(Path(whole.args.output_dir) / "checkpoint-8", tmp_path / "checkpoint-8")
    other = tmp_path / "other"
    save_bucketed(make_data(), other, 4, score_column="caption_length", easy="low", shard_size=5)
    for data, message in (
        (other, "scores has changed since it was saved"),
        (
            BucketedStream(folder, shuffle_buffer=16),
            "stream has changed since it was saved (was {'shuffle_buffer': 1000",
        ),
        (make_data(), "scores has changed since it was saved"),
    ):
        column = {"score_column": "caption_length"} if isinstance(data, Dataset) else {}
        with pytest.raises(ValueError, match=re.escape(message)):
            make_trainer(data, tmp_path, **column).train(resume_from_checkpoint=True)


@pytest.mark.slow
def test_two_processes_train_on_the_same_rows_and_resume_after_a_kill(launch, folder, whole, tmp_path):
    program = Path(bucketed_run.__file__)
    launch(program, folder, tmp_path / "plain", processes=2)
    killed = launch(program, folder, tmp_path / "killed", "--kill_at", 13, processes=2, check=False)
    assert killed.returncode == -signal.SIGKILL
    launch(program, folder, tmp_path / "killed", processes=2)
    expected = {step: sorted(rows) for step, rows in recorded(whole.args.output_dir).items()}
    for name in ("plain", "killed"):
        assert {step: sorted(rows) for step, rows in recorded(tmp_path / name).items()} == expected
    digests = [(tmp_path / name / "weights.txt").read_text() for name in ("plain", "killed")]
    assert digests[0] == digests[1]
