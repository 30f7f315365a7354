"""One process of a machine sorts, and the others read what it wrote."""

from __future__ import annotations

import os
from types import SimpleNamespace

import numpy as np
import pytest

from hf_curriculum import Phases, Weighted, make_plan, rank_scores
from hf_curriculum.files import DamagedFileError
from hf_curriculum.planning.ranking import sort_scores
from hf_curriculum.training import shared_order
from hf_curriculum.training.shared_order import SharedOrder

SCORES = np.random.default_rng(0).integers(0, 99, 5000).astype(np.float32)


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(shared_order, "_LEAST_ROWS", 1000)


def of(folder, writes, timeout=20.0):
    return SharedOrder(folder, writes, timeout)


@pytest.mark.parametrize("scores", [SCORES, SCORES + np.arange(5000) * 1e-12], ids=["float32", "float64"])
@pytest.mark.parametrize("easy", ["low", "high"])
def test_processes_that_begin_together_have_one_order(scores, easy, tmp_path):
    alone = rank_scores(scores, easy)
    children = []
    for writes in (False, False, True):  # those that wait begin before
        children.append(os.fork())
        if children[-1] == 0:
            made = rank_scores(scores, easy, sort=of(tmp_path / "order", writes))
            same = np.array_equal(made.order, alone.order) and np.array_equal(made.scores, alone.scores)
            mapped = isinstance(made.order.base, np.memmap) and made.scores.dtype == alone.scores.dtype
            os._exit(0 if same and mapped and not made.order.flags.writeable else 1)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0, 0]
    assert sorted(file.suffix for file in (tmp_path / "order").iterdir()) == [".json", ".npy"]


def test_an_order_that_is_there_is_not_sorted_again_and_other_scores_have_another(tmp_path, monkeypatch):
    order = rank_scores(SCORES, sort=of(tmp_path, True)).order
    monkeypatch.setattr(shared_order, "sort_scores", lambda *given: pytest.fail("it was sorted again"))
    assert rank_scores(SCORES.copy(), sort=of(tmp_path, True)).order.tolist() == order.tolist()
    monkeypatch.setattr(shared_order, "sort_scores", sort_scores)
    for scores, easy in ((SCORES, "high"), (SCORES + 1, "low"), (SCORES.astype(np.float64), "low")):
        made = rank_scores(scores, easy, sort=of(tmp_path, True))
        assert made.order.tolist() == rank_scores(scores, easy).order.tolist()
    assert len(list(tmp_path.glob("*.npy"))) == len(list(tmp_path.glob("*.json"))) == 4
    for rule in (Phases(3), Weighted(5.0)):
        shared = make_plan(rule, rank_scores(SCORES, sort=of(tmp_path, False)), global_batch_size=8)
        assert shared.rows(0, 900).tolist() == make_plan(rule, SCORES, global_batch_size=8).rows(0, 900).tolist()
        assert shared.fingerprint() == make_plan(rule, SCORES, global_batch_size=8).fingerprint()


def test_without_the_process_that_sorts_the_others_stop(tmp_path):
    with pytest.raises(TimeoutError, match=r"1 of 1 files are missing in .*order.*none came for 0.1 seconds"):
        rank_scores(SCORES, sort=of(tmp_path / "order", False, 0.1))


def test_a_damaged_order_is_refused(tmp_path):
    rank_scores(SCORES, sort=of(tmp_path, True))
    file, record = sorted(tmp_path.iterdir(), key=lambda file: file.suffix, reverse=True)
    content, told = file.read_bytes(), record.read_bytes()
    for part, whole, damaged in (
        (file, content, content[:-100]),
        (file, content, content[:-4] + content[-8:-4]),  # of the same shape
        (record, told, told.replace(b"digest", b"digits")),
    ):
        part.write_bytes(damaged)
        for writes in (True, False):
            with pytest.raises(DamagedFileError, match=rf"{part.name} .*Delete its folder and start again"):
                rank_scores(SCORES, sort=of(tmp_path, writes))
        part.write_bytes(whole)
    file.unlink()
    assert rank_scores(SCORES, sort=of(tmp_path, True)).order.tolist() == rank_scores(SCORES).order.tolist()


def test_an_order_is_not_written_through_a_link(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "order").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="order is a link to"):
        rank_scores(SCORES, sort=of(tmp_path / "order", True))
    assert not list((tmp_path / "elsewhere").iterdir())


def test_few_rows_and_processes_alone_write_nothing(tmp_path, monkeypatch):
    assert (
        rank_scores(SCORES[:999], sort=of(tmp_path, True)).order.tolist() == rank_scores(SCORES[:999]).order.tolist()
    )
    assert not list(tmp_path.iterdir())
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    args = SimpleNamespace(output_dir=str(tmp_path), world_size=4, local_process_index=1, ddp_timeout=1800)
    found = SharedOrder.of(args)
    assert found.folder.parent == tmp_path
    assert found.folder.name.startswith("_order-")
    assert (found.writes, found.timeout) == (False, 1800)
    assert SharedOrder.of(SimpleNamespace(**{**vars(args), "local_process_index": 0})).writes
    assert SharedOrder.of(SimpleNamespace(**{**vars(args), "world_size": 1})) is None
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    assert SharedOrder.of(args) is None


def test_a_trainer_draws_by_the_shared_order(make_trainer, tmp_path, monkeypatch):
    alone = make_trainer(Phases(2, easy="low")).plan
    monkeypatch.setattr(shared_order, "_LEAST_ROWS", 1)
    monkeypatch.setattr(SharedOrder, "of", classmethod(lambda cls, args: of(tmp_path / "_order", True)))
    trainer = make_trainer(Phases(2, easy="low"))
    assert len(list((tmp_path / "_order").iterdir())) == 2
    trainer.train()
    assert trainer.state.global_step == alone.num_steps
    assert trainer.plan.rows(0, alone.num_samples).tolist() == alone.rows(0, alone.num_samples).tolist()
