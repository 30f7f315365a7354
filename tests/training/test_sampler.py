"""The sampler beside PyTorch's and accelerate's own loaders."""

from __future__ import annotations

import json
from itertools import islice

import numpy as np
import pytest
from accelerate.data_loader import BatchSamplerShard
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader

from hf_curriculum import IID, BabySteps, CurriculumSampler, OnlineSelection, Phases, make_plan
from hf_curriculum.planning.deciding import Observed

PLAN = make_plan(Phases(3, 1, easy="low"), np.arange(30.0), global_batch_size=8)


def test_its_length_is_what_it_yields():
    assert len(CurriculumSampler(PLAN)) == len(list(CurriculumSampler(PLAN))) == 64


@pytest.mark.parametrize("step", [0, 3, PLAN.num_steps])
def test_its_length_is_what_is_left_after_a_start(step):
    sampler = CurriculumSampler(PLAN, start=step)
    assert len(sampler) == len(list(sampler)) == 64 - 8 * step
    loader = DataLoader(range(30), batch_size=8, sampler=sampler)
    assert len(loader) == len(list(loader)) == PLAN.num_steps - step
    assert len(CurriculumSampler(PLAN, start=step, placeholders=True)) == 64


@given(taken=st.integers(0, 64), with_samples=st.booleans())
@settings(deadline=None)
def test_its_state_continues_it_anywhere(taken, with_samples):
    whole = list(CurriculumSampler(PLAN, with_samples=with_samples))
    sampler = CurriculumSampler(PLAN, with_samples=with_samples)
    drawn = list(islice(sampler, taken))
    state = json.loads(json.dumps(sampler.state_dict()))
    again = CurriculumSampler(PLAN, with_samples=with_samples)
    again.load_state_dict(state)
    assert again.state_dict() == state
    assert len(again) == 64 - taken
    assert drawn + list(again) == whole


def test_its_state_counts_from_a_start_and_over_chunks(monkeypatch):
    monkeypatch.setattr("hf_curriculum.planning.plan._CHUNK", 5)
    sampler = CurriculumSampler(PLAN, start=2)
    assert sampler.state_dict()["position"] == 16
    for position, _ in enumerate(sampler, start=17):
        assert sampler.state_dict()["position"] == position
    sampler = CurriculumSampler(PLAN, start=2, placeholders=True)
    assert [sampler.state_dict()["position"] for _ in sampler] == list(range(1, 65))


@pytest.mark.parametrize(
    ("other", "different"),
    [
        (make_plan(Phases(3, 1, easy="low"), np.arange(30.0), global_batch_size=8, seed=1), "seed"),
        (make_plan(Phases(3, 1, easy="low"), np.arange(30.0)[::-1], global_batch_size=8), "scores"),
        (make_plan(Phases(2, 1, easy="low"), np.arange(30.0), global_batch_size=8), "curriculum"),
    ],
)
def test_the_state_of_another_plan_is_refused(other, different):
    state = CurriculumSampler(other).state_dict()
    with pytest.raises(ValueError, match=rf"made for another plan: .*\b{different}\b.* there would be other rows"):
        CurriculumSampler(PLAN).load_state_dict(state)


@pytest.mark.parametrize("state", [{}, {"position": 3}, {"position": 65, "plan": PLAN.fingerprint(), "log": []}])
def test_what_is_no_state_of_a_sampler_is_refused(state):
    with pytest.raises(ValueError, match=r"no state of a CurriculumSampler|position 65"):
        CurriculumSampler(PLAN).load_state_dict(state)


def test_a_plan_that_has_to_decide_says_so_and_its_state_brings_the_decisions(caplog):
    rule = BabySteps(num_buckets=3, epochs=4, easy="low")
    plan = make_plan(rule, np.arange(30.0), global_batch_size=8)
    sampler = CurriculumSampler(plan)
    assert len(sampler) == len(list(sampler)) == plan.known_samples < plan.num_samples
    assert f"ends after step {plan.known_steps} of at most {plan.max_steps}" in caplog.text
    assert "plan.decided(Observed(" in caplog.text
    later = plan.decided(Observed(plan.known_steps, {"eval_loss": 1.0}))
    state = CurriculumSampler(later, start=plan.known_steps).state_dict()
    sampler = CurriculumSampler(plan)
    sampler.load_state_dict(json.loads(json.dumps(state)))
    assert list(sampler) == list(CurriculumSampler(later))[plan.known_samples :]
    with pytest.raises(ValueError, match=r"1 decisions, and the plan here has 0.*plan\.with_log"):
        CurriculumSampler(lambda: plan).load_state_dict(state)
    caplog.clear()
    list(CurriculumSampler(lambda: plan))
    assert not caplog.text


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_continues_it(workers):
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def make():
        sampler = CurriculumSampler(PLAN)
        return stateful(range(30), batch_size=8, sampler=sampler, num_workers=workers, collate_fn=list)

    whole, loader = list(make()), make()
    batches = iter(loader)
    drawn = [next(batches) for _ in range(3)]
    state, again = loader.state_dict(), make()
    again.load_state_dict(state)
    assert drawn + list(again) == whole


@given(step=st.integers(0, PLAN.num_steps))
@settings(deadline=None)
def test_a_resumed_stream_is_the_rest_behind_placeholders(step):
    whole = list(CurriculumSampler(PLAN))
    assert list(CurriculumSampler(PLAN, step)) == whole[8 * step :]
    assert list(CurriculumSampler(PLAN, lambda: step, placeholders=True)) == [0] * 8 * step + whole[8 * step :]
    pairs = list(CurriculumSampler(PLAN, step, with_samples=True))
    assert [sample for _, sample in pairs] == list(range(8 * step, 64))
    assert [row for row, _ in pairs] == whole[8 * step :]


@pytest.mark.parametrize(("processes", "micro"), [(1, 8), (1, 4), (2, 4), (2, 2), (4, 2), (4, 1)])
@pytest.mark.parametrize("workers", [0, 2])
def test_every_step_sees_the_same_rows_on_any_number_of_processes(processes, micro, workers):
    batches = BatchSampler(CurriculumSampler(PLAN), micro, drop_last=False)
    shares = []
    for rank in range(processes):
        shard = BatchSamplerShard(batches, processes, rank)
        loader = DataLoader(range(30), batch_sampler=shard, num_workers=workers, collate_fn=list)
        shares.append(np.array(list(loader)))
    per_step = 8 // micro // processes
    for step in range(PLAN.num_steps):
        rows = np.concatenate([share[step * per_step : (step + 1) * per_step].ravel() for share in shares])
        assert sorted(rows) == sorted(PLAN.step_rows(step))


CHOSEN = make_plan(OnlineSelection(3, "loss", then=Phases(3, 2), easy="low"), np.arange(30.0), global_batch_size=8)


@pytest.mark.parametrize(("processes", "micro"), [(1, 8), (1, 4), (2, 4), (2, 2), (4, 1)])
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_process_is_given_all_candidates_of_its_places(processes, micro, workers):
    batches = BatchSampler(CurriculumSampler(CHOSEN), micro * CHOSEN.candidates, drop_last=False)
    shares = []
    for rank in range(processes):
        shard = BatchSamplerShard(batches, processes, rank)
        loader = DataLoader(range(30), batch_sampler=shard, num_workers=workers, collate_fn=list)
        shares.append(np.array(list(loader)).reshape(CHOSEN.num_steps, -1, micro, CHOSEN.candidates))
    together = np.stack(shares, axis=2).reshape(CHOSEN.num_steps, 8, CHOSEN.candidates)
    for step in range(CHOSEN.num_steps):
        assert together[step].ravel().tolist() == CHOSEN.step_rows(step).tolist()


def test_holes_need_a_loader_that_knows_them():
    plan = make_plan(IID(epochs=1, partial_batches="keep"), np.zeros(5), global_batch_size=4)
    with pytest.raises(ValueError, match="pads the last batch of a pass with PAD_INDEX"):
        CurriculumSampler(plan)
    assert len(list(CurriculumSampler(plan, with_samples=True))) == 8
