"""Every curriculum at sampler and loader level: processes × workers × accumulated batches, stopped and resumed.

All processes of a run are imitated in this one: a rank is accelerate's own loader over its share of the batches, with
the trainer's `RoundReader`, and `skip_first_batches` after a resume as in `Trainer`. Without workers every curriculum
is resumed at every step, in the fast tier in one cell of (processes, accumulated batches) each, chosen in turn, and in
the slow tier in two others of the six. Starting workers takes a while, so with two of them every curriculum is run in
one cell, in the slow tier, and resumed once: in the middle of a round or where one begins, in turn.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import curriculum_cases as TABLE
import numpy as np
import pytest
import torch
from accelerate import skip_first_batches
from accelerate.data_loader import DataLoaderShard, prepare_data_loader
from torch.utils.data import DataLoader

from hf_curriculum import BabySteps, CurriculumSampler, make_plan
from hf_curriculum.data.seeding import IndexedDataset
from hf_curriculum.planning.deciding import Observed
from hf_curriculum.rng import PAD_INDEX
from hf_curriculum.training.trainer import RoundReader

CASES = TABLE.CASES
BATCH, ROWS = 8, 26
CELLS = list(itertools.product((1, 2, 4), (1, 2)))
"""processes × accumulated batches"""


def plan_of(name):
    return TABLE.plan_of(CASES[name], ROWS, BATCH)


def rows_of(drawn):
    """A batch is the row numbers that were fetched: holes are left out by then."""
    return [item.index for item in drawn]


class Rows:
    """Rows that are their own numbers."""

    def __len__(self):
        return ROWS

    def __getitem__(self, row):
        return row


def make_loader(state, processes, accumulation, rank, workers=0, **kwargs):
    size = state.plan.samples_per_step
    sampler = CurriculumSampler(
        lambda: state.plan, lambda: state.step, placeholders=lambda: state.skips, with_samples=True
    )
    loader = DataLoader(
        IndexedDataset(Rows(), 0, False),
        batch_size=size // processes // accumulation,
        sampler=sampler,
        collate_fn=rows_of,
        num_workers=workers,
        **kwargs,
    )
    return prepare_data_loader(
        loader, torch.device("cpu"), processes, rank, put_on_device=False, even_batches=True, rng_types=[]
    )


class Run:
    """One run of a plan on imitated processes; `steps` says what each step trained on, per process."""

    def __init__(self, plan, processes, accumulation, workers=0, step=0, **kwargs):
        self.state = SimpleNamespace(plan=plan, step=step, skips=step > 0)
        self.accumulation, self.behind, self.steps = accumulation, step * accumulation, {}
        self.loaders = [
            make_loader(self.state, processes, accumulation, rank, workers, **kwargs) for rank in range(processes)
        ]

    def observe(self, plan):
        return TABLE.observe(plan)

    def decide(self):
        state = self.state
        while state.plan.undecided and state.step == state.plan.known_steps:
            state.plan = state.plan.decided(self.observe(state.plan))

    def go(self):
        state = self.state
        self.decide()
        behind = self.behind
        iterators = [iter(skip_first_batches(loader, behind) if behind else loader) for loader in self.loaders]
        decisions = len(state.plan.log)
        readers = [RoundReader(*pair, decisions) for pair in zip(self.loaders, iterators, strict=True)]
        while state.step < state.plan.known_steps:
            if not readers[0].is_current(state.plan):
                state.skips = False
                for reader in readers:
                    reader.refresh(state.plan)
            self.steps[state.step] = [[next(reader.iterator) for _ in range(self.accumulation)] for reader in readers]
            state.step += 1
            self.decide()
        for reader in readers:
            assert next(reader.iterator, None) is None
        return self.steps


def checkpoints(plan):
    """The plan as a checkpoint after each step holds it."""
    held = {}
    for now in TABLE.rounds(plan):
        step = now.log[-1]["step"] if now.log else 0
        held.update(dict.fromkeys(range(step, now.known_steps + 1), now))
    return held


def expected_of(plan):
    """step → rows, from the plan alone."""
    final, whole = TABLE.realised(plan)
    steps = whole.reshape(-1, final.samples_per_step)
    assert len(steps) == final.num_steps
    return {step: sorted(rows[rows != PAD_INDEX].tolist()) for step, rows in enumerate(steps)}


def together(steps):
    """step → rows of all processes and forward passes, sorted."""
    return {
        step: sorted(row for share in shares for batch in share for row in batch) for step, shares in steps.items()
    }


def check(name, processes, accumulation, workers=0, places=None, **kwargs):
    """The run and its resumed halves train on the plan's rows, each process on what it had."""
    plan = plan_of(name)
    whole = Run(plan, processes, accumulation, workers, **kwargs)
    assert isinstance(whole.loaders[0], DataLoaderShard)
    steps = whole.go()
    assert together(steps) == expected_of(plan)
    held = checkpoints(plan)
    for step in range(1, len(steps)) if places is None else places(held, len(steps)):
        saved = held[step]
        # A checkpoint on a round's last step is written after the decision.
        again = plan.with_log(saved.log, saved.losses, saved.arrays)
        resumed = Run(again, processes, accumulation, workers, step=step, **kwargs).go()
        assert resumed == {place: shares for place, shares in steps.items() if place >= step}


def applies(name, processes, accumulation):
    """Where passes keep their last batch, not every number of forward passes has something for each."""
    return CASES[name].rule.partial_batches == "stream" or processes * accumulation == 1


def cells_of(name):
    """The cell of the fast tier, and those of the slow one."""
    number = list(CASES).index(name)
    first, *others = [CELLS[(number + place) % len(CELLS)] for place in (0, 1, 3)]
    fast = first if applies(name, *first) else (1, 1)
    return fast, [cell for cell in others if applies(name, *cell) and cell != fast]


@pytest.mark.parametrize("name", CASES)
def test_resumed_at_any_step(name):
    check(name, *cells_of(name)[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "cell"),
    [pytest.param(name, cell, id=f"{name}-p{cell[0]}-a{cell[1]}") for name in CASES for cell in cells_of(name)[1]],
)
def test_resumed_at_any_step_in_other_cells(name, cell):
    check(name, *cell)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_with_workers_that_read_ahead(name):
    number = list(CASES).index(name)

    def places(held, steps):
        """In the middle of a round, or where one begins."""
        begins = [plan.log[-1]["step"] for plan in held.values() if plan.log]
        return [next((step for step in begins if step > steps // 3), steps - 1) if number % 2 else steps // 3 + 1]

    processes, accumulation = (2 if number % 4 == 0 else 1), number // 2 % 2 + 1
    check(name, *((processes, accumulation) if applies(name, processes, accumulation) else (1, 1)), 2, places)


@pytest.mark.parametrize("name", CASES)
def test_lengths(name):
    plan = plan_of(name)
    sampler = CurriculumSampler(lambda: plan, placeholders=lambda: False, with_samples=True)
    declared = len(sampler)
    assert declared == plan.max_steps * plan.samples_per_step
    assert len(CurriculumSampler(plan, with_samples=True)) == plan.known_samples
    loaders = [make_loader(SimpleNamespace(plan=plan, step=0, skips=False), 2, 2, rank) for rank in range(2)]
    assert [len(loader) for loader in loaders] == [2 * plan.max_steps] * 2
    final, whole = TABLE.realised(plan)
    if CASES[name].rule.signal is None:
        assert declared == len(whole) == len(list(sampler))
    else:
        assert declared >= len(whole)
    for plan in TABLE.rounds(plan):  # noqa: B020 - the sampler reads the plan of that name
        assert len(sampler) == declared
        assert len(list(CurriculumSampler(plan, final.num_steps, with_samples=True))) == 0


SIGNALS = [name for name, case in CASES.items() if case.rule.signal]


class Told(Run):
    """A run that is told what `seed` says from decision `number` on, and what `first` says before."""

    def __init__(self, *args, number, first, seed, **kwargs):
        super().__init__(*args, **kwargs)
        self.number, self.first, self.seed = number, first, seed

    def observe(self, plan):
        return TABLE.observe(plan, self.seed if len(plan.log) >= self.number else self.first)


def decision_that_matters(plan):
    """(number, step, first, seed) of a decision whose next step depends on which of two seeds tells it."""
    for first, seed in itertools.permutations(range(5), 2):
        for now in TABLE.rounds(plan, first):
            if not now.undecided:
                break
            pair = [now.decided(TABLE.observe(now, told)) for told in (first, seed)]
            if min(after.known_steps for after in pair) == now.known_steps:
                continue
            rows = [after.step_rows(now.known_steps).tolist() for after in pair]
            if rows[0] != rows[1]:
                return len(now.log), now.known_steps, first, seed
    raise AssertionError("no decision changes what is drawn")


WITH_WORKERS = ["adaptive guidance", "baby steps", "node sampling", "self-paced"]


@pytest.mark.parametrize(
    ("name", "workers"),
    [*((name, 0) for name in SIGNALS), *(pytest.param(name, 2, marks=pytest.mark.slow) for name in WITH_WORKERS)],
)
def test_a_decision_takes_effect_in_the_first_step_after_it(name, workers):
    """Two runs that are told other things at one decision part with the next step, and not before."""
    plan = plan_of(name)
    number, step, first, seed = decision_that_matters(plan)
    extra = {"prefetch_factor": 4} if workers else {}
    one, other = (
        Told(plan, 1, 1, workers, number=number, first=first, seed=told, **extra).go() for told in (first, seed)
    )
    assert {place: rows for place, rows in one.items() if place < step} == {
        place: rows for place, rows in other.items() if place < step
    }
    assert one[step] != other[step]


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_workers_that_had_read_ahead_show_nothing_of_the_old_pool(workers):
    """Baby steps whose pool doubles: the bucket that joins is drawn from at once, although workers had prefetched."""

    class Steady(Run):
        def observe(self, plan):
            return Observed(plan.known_steps, {"eval_loss": 1.0})

    plan = make_plan(BabySteps(2, patience=1, epochs=9, easy="low"), np.arange(ROWS), global_batch_size=BATCH)
    extra = {"prefetch_factor": 4, "persistent_workers": True} if workers else {}
    steps = together(Steady(plan, 1, 1, workers, **extra).go())
    assert all(max(steps[step]) < ROWS // 2 for step in range(4))
    assert max(steps[4]) >= ROWS // 2
    assert {row for step in range(4, 8) for row in steps[step]} == set(range(ROWS))
