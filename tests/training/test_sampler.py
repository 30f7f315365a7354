"""The sampler beside PyTorch's and accelerate's own loaders."""

from __future__ import annotations

import numpy as np
import pytest
from accelerate.data_loader import BatchSamplerShard
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader

from hf_curriculum import IID, CurriculumSampler, Phases, make_plan

PLAN = make_plan(Phases(3, 1), np.arange(30.0), global_batch_size=8)


def test_its_length_is_what_it_yields():
    assert len(CurriculumSampler(PLAN)) == len(list(CurriculumSampler(PLAN))) == 64


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


def test_holes_need_a_loader_that_knows_them():
    plan = make_plan(IID(epochs=1, partial_batches="keep"), np.zeros(5), global_batch_size=4)
    with pytest.raises(ValueError, match="pads the last batch of a pass with PAD_INDEX"):
        CurriculumSampler(plan)
    assert len(list(CurriculumSampler(plan, with_samples=True))) == 8
