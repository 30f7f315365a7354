"""Rows beyond 2^31: where no memory is needed with as many of them, elsewhere with the limit lowered to a few."""

from __future__ import annotations

import json
import math
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch
from curriculum_cases import CASES, make_columns, plan_of, realised
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hf_curriculum import (
    IID,
    ByNode,
    CurriculumSampler,
    Filter,
    Growing,
    NodeSampling,
    Phases,
    Weighted,
    make_plan,
    rank_scores,
)
from hf_curriculum import rng as keyed
from hf_curriculum.curricula import weighted
from hf_curriculum.planning import ranking as ranks
from hf_curriculum.planning import rows as numbered
from hf_curriculum.planning.deciding import Observed
from hf_curriculum.planning.groups import Groups, _grouped
from hf_curriculum.planning.ranking import Ranking
from hf_curriculum.planning.rows import FileOrder, bisect, is_file_order
from hf_curriculum.rng import bits_beside, draw_each, hash64, hash_below, mix64, permute
from hf_curriculum.training.checkpoints import next_rows
from hf_curriculum.training.sampler import DrawAudit

MANY = 2**31 + 10
MORE = 3 * 2**32 + 17
"""As many as DataComp XL has, nearly."""


class Rising:
    """Scores that rise with the row, without memory: 0 at the first row, 1 after the last."""

    dtype = np.dtype(np.float64)

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, rows):
        return np.asarray(rows, np.float64) / self.size


def rising(size):
    return Ranking(FileOrder(size), Rising(size), size, "low", "s", 0)


# ---- As many rows ----


def naive_permutation(position, size, key):
    """`permute` of a large size in Python's integers."""
    mask, rows = (1 << 64) - 1, math.isqrt(size - 1) + 1
    columns, value = -(-size // rows), position
    keys = [mix64(key, number) for number in range(6)]
    while True:
        left, right = divmod(value, columns)
        for number, own in enumerate(keys):
            bound = columns if number % 2 else rows
            hashed = (right * 0x9E3779B97F4A7C15 + own) & mask
            hashed ^= hashed >> 31
            odd = finish(own) | 1
            hashed = ((hashed * odd & mask) >> 32) * bound >> 32
            left, right = right, (left + hashed) % bound
        value = left * columns + right
        if value < size:
            return value


def finish(state):
    """SplitMix64's last steps."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state = (state ^ state >> shift) * factor & (1 << 64) - 1
    return state ^ state >> 31


@pytest.mark.parametrize("size", [MANY, MORE, 2**40 - 3])
def test_a_permutation_of_many_rows_is_the_network_of_64_bits(size):
    positions = np.array([0, 1, 2**31 - 1, 2**31, size // 3, size - 1])
    assert permute(positions, size, 5).tolist() == [naive_permutation(int(at), size, 5) for at in positions]
    drawn = permute(np.arange(size - 50_000, size), size, 7)
    assert len(np.unique(drawn)) == 50_000
    assert 0 <= drawn.min() <= drawn.max() < size
    assert abs(drawn.mean() / size - 0.5) < 0.01


def test_sizes_beyond_every_data_set_are_refused():
    with pytest.raises(ValueError, match=r"sizes from 1 to 2\^62 are possible"):
        permute(np.arange(3), (1 << 62) + 1, 0)


def test_numbers_below_large_bounds_use_all_bits():
    hashed = hash64(np.arange(2000), 3)
    for bound in (2**31 + 1, 2**32, MORE, 2**61 + 7):
        expected = [int(value) * bound >> 64 for value in hashed.tolist()]
        assert hash_below(hashed, bound).tolist() == expected
        # The bits beside are as even in the lower as in the upper half of the numbers.
        beside = bits_beside(hashed, np.full(len(hashed), bound)) / 2**32
        low = hash_below(hashed, bound) % 2 == 0
        assert abs(beside[low].mean() - 0.5) < 0.03 > abs(beside[~low].mean() - 0.5)
    mixed = np.where(np.arange(2000) % 2, 1000, MORE)
    assert (hash_below(hashed, mixed)[1::2] == hash_below(hashed[1::2], 1000)).all()
    assert (hash_below(hashed, mixed)[::2] == hash_below(hashed[::2], MORE)).all()
    assert (bits_beside(hashed, np.full(2000, 1000)) == hashed & np.uint64(0xFFFFFFFF)).all()


def test_batches_from_many_rows_have_none_twice_and_do_not_change_small_ones():
    sizes, keys = np.array([MORE, 10**6, MANY, 40]), hash64(np.arange(4), 1)
    drawn = draw_each(sizes, 500, keys)
    for place, size in enumerate(sizes.tolist()):
        assert drawn[place].tolist() == draw_each(sizes[place : place + 1], 500, keys[place : place + 1])[0].tolist()
        assert 0 <= drawn[place].min() <= drawn[place].max() < size
        assert size == 40 or len(set(drawn[place].tolist())) == 500
    assert drawn[0].max() > 2**33


@pytest.mark.parametrize("size", [MANY, MORE])
@pytest.mark.parametrize(
    "rule",
    [
        IID(epochs=2),
        Phases(4),
        Phases(3, partial_batches="keep"),
        Growing(epochs=1, full_at=0.5),
        Filter(0.9),
        Weighted(0.3, 1),
    ],
    ids=str,
)
def test_plans_of_many_rows_draw_all_over_their_pools(rule, size):
    plan = make_plan(rule, rising(size), global_batch_size=1 << 14)
    step = plan.num_steps - 2
    rows = plan.step_rows(step)
    pool = plan.stage_at(step).pool_size
    assert rows.dtype == np.int64
    assert len(rows) == 1 << 14
    assert rows.min() >= 0
    assert rows.max() < pool
    assert rows.max() > 2**31 or size == MANY
    if isinstance(rule, Weighted):  # each as often as its weight says
        tenths = np.bincount(rows * 10 // size, minlength=10) / len(rows)
        ends = np.exp(-np.arange(11) / 10 / 0.3)
        assert np.abs(tenths - -np.diff(ends) / (1 - ends[-1])).max() < 0.015
    else:
        assert abs(rows.mean() / pool - 0.5) < 0.02
        assert len(set(rows.tolist())) > (1 << 14) - 3
    text = plan.describe()
    assert f"{len(plan.ranking):,} examples" in text
    assert plan.exposure().distinct <= len(plan.ranking)
    average = sum(stage.num_draws for stage in plan.stages) / len(plan.ranking)
    assert plan.exposure().average == pytest.approx(average)


def test_nodes_among_many_rows():
    members = np.array([5, 2**31 + 3, MORE - 1, 7, 2**31 + 3])
    nodes = Groups(("a", "b"), np.array([0, 3, 5]), members)
    ranking = replace(Ranking.unordered(MORE), columns={"nodes": nodes})
    plan = make_plan(NodeSampling(check_every=400, epochs=1e-4), ranking, global_batch_size=64)
    plan = plan.with_log(tuple({"round": k, "step": 400 * (k + 1), "refreshes": k + 1} for k in range(3)))
    stage, start = plan.stages[-1], plan.stage_starts[-2] // 64
    steps = np.arange(30)
    drawn = [plan.step_rows(start + int(step)) for step in steps]
    chosen = stage.nodes(steps, plan.key).tolist()
    for node, rows in zip(chosen, drawn, strict=True):
        assert len(set(rows.tolist())) == 64 if node < 0 else set(rows.tolist()) == set(nodes.rows(node).tolist())
    assert max(rows.max() for rows in drawn) > 2**33
    assert {-1, 0} <= set(chosen)


def test_a_run_over_many_rows_is_sampled_audited_exported_and_compared(tmp_path):
    plan = make_plan(IID(), Ranking.unordered(MORE), global_batch_size=64, max_steps=50, seed=3)
    sampler = CurriculumSampler(plan, start=20)
    rows = list(sampler)
    assert rows == plan.rows(20 * 64, 50 * 64).tolist()
    assert max(rows) > 2**33
    audit = DrawAudit(plan=plan, process=1, num_processes=2, micro_batch=16)
    shares = plan.rows(0, 50 * 64).reshape(50, 2, 2, 16)[:, :, 1].reshape(50, -1)
    for step in range(50):
        audit.add(step, torch.from_numpy(shares[step]))
    audit.flush()
    audit.add(0, torch.from_numpy((shares[0] - 2**32).astype(np.int64)))
    with pytest.raises(RuntimeError, match="Step 0 trained on rows"):
        audit.flush()
    assert next_rows(plan, 20, 25) == next_rows(plan, 20, 25) != next_rows(plan, 21, 26)
    file = plan.export(tmp_path / "order.npy")
    assert np.load(file).dtype == np.int64
    assert list(CurriculumSampler.from_export(file, start=20)) == rows
    assert plan.export(tmp_path / "order.txt").read_text().splitlines()[20 * 64 :] == list(map(str, rows))
    reading = iter(sampler)
    next(reading)
    other = CurriculumSampler(plan)
    other.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
    assert list(other) == rows[1:]


# ---- The limits lowered ----


@pytest.fixture
def few(monkeypatch):
    """Rows beyond the hundredth take 64 bits, those beyond the 32nd make room in a score's, and chunks are short."""

    def lower(chunk=13):
        monkeypatch.setattr(numbered, "_MOST_INT32", 100)
        monkeypatch.setattr(numbered, "_CHUNK", chunk)
        monkeypatch.setattr(ranks, "_ROW_BITS", 5)
        make_columns.cache_clear()

    yield lower
    make_columns.cache_clear()


@pytest.mark.parametrize("name", CASES)
def test_every_curriculum_draws_the_same_by_wider_row_numbers(name, few):
    first = plan_of(CASES[name], 150, 8)
    last, rows = realised(first)
    told = first.describe(), last.describe()
    few()
    again = plan_of(CASES[name], 150, 8)
    wide, drawn = realised(again)
    assert again.ranking.order.dtype == np.int64 != first.ranking.order.dtype
    assert drawn.tolist() == rows.tolist()
    assert (again.describe(), wide.describe()) == told


NUMBERS = [
    *(hnp.from_dtype(np.dtype(kind), allow_nan=True, allow_infinity=True) for kind in (np.float16, np.float32)),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([1.0, 1 + 1e-12, 1 - 1e-12, 3e38, 1e300, np.finfo(np.float32).max, -0.0, 0.0, np.nan, -np.inf]),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(2**40, 2**40 + 5),
    st.integers(0, 2**64 - 1),
]
TYPES = [np.float16, np.float32, np.float64, np.float64, np.int64, np.int64, np.uint64]


@given(data=st.data(), kind=st.integers(0, len(TYPES) - 1), easy=st.sampled_from(["low", "high"]), limit=st.booleans())
@settings(max_examples=120, deadline=None)
def test_any_numbers_are_sorted_as_a_naive_reference_does(data, kind, easy, limit):
    values = data.draw(st.lists(NUMBERS[kind], min_size=1, max_size=60))
    scores = np.array(values, dtype=TYPES[kind])
    if not np.isfinite(scores).any():
        return
    sign = 1 if easy == "low" else -1
    exact = [sign * (int(value) if scores.dtype.kind in "iu" else float(value)) for value in scores.tolist()]
    naive = sorted(
        range(len(scores)), key=lambda row: (0, exact[row], row) if np.isfinite(scores[row]) else (1, 0, row)
    )
    with pytest.MonkeyPatch.context() as patch:
        if limit:
            patch.setattr(numbered, "_MOST_INT32", 20)
            patch.setattr(numbered, "_CHUNK", 7)
            patch.setattr(ranks, "_ROW_BITS", 3)
        made = rank_scores(scores, easy)
    assert made.order.tolist() == naive
    assert made.order.dtype == (np.int64 if limit and len(scores) > 20 else np.int32)
    told = made.scores[naive[: made.num_scored]].astype(np.float64)
    assert (np.diff(sign * told) >= 0).all()
    assert scores.dtype.kind != "f" or len(np.unique(told)) == len(np.unique(scores[np.isfinite(scores)]))


@pytest.mark.parametrize("size", [1100, 5003])
def test_the_network_of_64_bits_reaches_every_number_and_mixes(size, monkeypatch):
    monkeypatch.setattr(keyed, "_MOST_32", 1000)
    assert np.array_equal(np.sort(permute(np.arange(size), size, 9)), np.arange(size))
    drawn = draw_each(np.full(300, size), 20, hash64(np.arange(300), 2))
    assert all(len(set(row)) == 20 for row in drawn.tolist())
    counts, cells = np.zeros((10, 10)), np.arange(size) * 10 // size
    for key in range(300):
        np.add.at(counts, (cells, cells[permute(np.arange(size), size, mix64(key, 17))]), 1)
    expected = np.outer(np.bincount(cells), np.bincount(cells)) * 300 / size
    assert ((counts - expected) ** 2 / expected).sum() < 150


def test_groups_of_many_rows_are_sorted_in_64_bits():
    groups, rows = np.array([1, 0, 1, 0, 1]), np.array([MORE - 1, 2**31, 7, 2**31, 2**32 + 7])
    made = _grouped(("a", "b"), groups, rows, 2, MORE)
    assert made.members.dtype == np.int64
    assert [made.rows(number).tolist() for number in (0, 1)] == [[2**31], [7, 2**32 + 7, MORE - 1]]
    assert made.sizes_below(2**32).tolist() == [1, 1]
    with pytest.raises(ValueError, match=r"1,073,741,824 groups of 12,884,901,905 rows were found, .* 63 bits"):
        _grouped(None, groups, rows, 1 << 30, MORE)


def test_what_is_chosen_by_bisection_is_what_searchsorted_finds():
    values = np.sort(np.random.default_rng(0).integers(0, 50, 100))
    limits = np.arange(-1, 52)
    found = bisect(lambda at: values[np.minimum(at, 99)] < limits, np.zeros(53, dtype=np.int64), np.full(53, 100))
    assert found.tolist() == np.searchsorted(values, limits).tolist()


def test_the_files_order_is_told_from_others(few):
    few(chunk=4)
    order = np.arange(11)
    assert is_file_order(order, 11)
    assert is_file_order(FileOrder(11), 11)
    assert not is_file_order(order, 12)
    assert not is_file_order(order[[0, 1, 2, 3, 4, 5, 6, 7, 9, 8, 10]], 11)


# ---- Memory ----


def peak(work):
    """The most bytes that were allocated at once while something was made."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


ROWS = 200_000
RANDOM = np.random.default_rng(0).standard_normal(ROWS, dtype=np.float32)


@pytest.mark.parametrize("scores", [RANDOM, RANDOM.astype(np.float64)], ids=["float32", "float64"])
@pytest.mark.parametrize(
    "rule", [Phases(4), IID(), Growing(epochs=1), Filter(0.5, easy="low"), Weighted(1.0)], ids=str
)
def test_a_plan_is_made_in_16_bytes_a_row_and_described_in_4(rule, scores, monkeypatch):
    monkeypatch.setattr(numbered, "_CHUNK", 1000)
    monkeypatch.setattr(weighted, "_ALONE", 100)
    monkeypatch.setattr(weighted, "_FINE", 300)
    make_plan(rule, scores, global_batch_size=64)  # what is imported late
    plans = []
    assert peak(lambda: plans.append(make_plan(rule, scores, global_batch_size=64))) <= 16 * ROWS + 100_000
    plans[0].rows(0, 64)
    assert peak(plans[0].describe) <= 4 * ROWS


@pytest.mark.parametrize(
    "rule",
    [Weighted(0.4), Weighted(1.0, unscored="last", easy="high"), Weighted(epochs=1), Weighted(0.4, cap=0.5)],
    ids=str,
)
def test_weights_of_a_few_stretches_tell_what_all_of_them_do(rule, monkeypatch):
    scores = np.abs(RANDOM) if rule.temperature is None else RANDOM.copy()
    scores[5:50] = np.nan
    every = make_plan(rule, scores, global_batch_size=64).exposure()
    monkeypatch.setattr(weighted, "_ALONE", 100)
    monkeypatch.setattr(weighted, "_FINE", 300)
    some = make_plan(rule, scores, global_batch_size=64).exposure()
    assert some != every
    assert some.distinct == pytest.approx(every.distinct, rel=1e-4)
    assert some.average == pytest.approx(every.average, rel=1e-9)
    for name in ("most_repeated", "easiest_tenth", "hardest_tenth"):
        found, expected = getattr(some, name), getattr(every, name)
        assert (found is None) == (expected is None) == (rule.temperature is None and name != "most_repeated")
        assert expected is None or found == pytest.approx(expected, rel=1e-3), name


@pytest.mark.parametrize(
    "rule", [IID(epochs=1, batches=ByNode("n")), NodeSampling("n", epochs=2, check_every=99)], ids=str
)
def test_nodes_are_described_in_4_bytes_a_row(rule, monkeypatch):
    """Of nodes that are all as large as a batch, and of some that are smaller."""
    monkeypatch.setattr(numbered, "_CHUNK", 1000)
    for nodes, batch in ((50, 64), (400, 500)):
        code = np.random.default_rng(1).integers(0, nodes, ROWS)
        groups = Groups(tuple(map(str, range(nodes))), np.concatenate([[0], np.cumsum(np.bincount(code))]),
                        np.argsort(code, kind="stable").astype(np.int32))  # fmt: skip
        ranking = replace(Ranking.unordered(ROWS), columns={"n": groups})
        plan = make_plan(rule, ranking, global_batch_size=batch)
        for _ in range(3 if plan.undecided else 0):
            plan = plan.decided(Observed(plan.known_steps, {"eval_retrieval_accuracy": 1.0}))
        plan.rows(0, batch)
        assert peak(plan.describe) <= 4 * ROWS


@pytest.mark.parametrize("chunk", [7, 1 << 18])
@pytest.mark.parametrize(
    ("rule", "rounds", "rel"),
    [
        (Growing(initial=0.8, epochs=3, batches=ByNode("n")), 2, 1e-4),  # at 16 sizes of its pool
        (Phases(3, 2, batches=ByNode("n")), 3, 1e-12),
        (NodeSampling("n", epochs=3, check_every=7, decay=0.5), 4, 1e-12),
        (NodeSampling("n", epochs=3, check_every=7, min_examples=5), 7, 1e-12),
    ],
)
def test_nodes_are_described_as_by_hand(rule, rounds, rel, chunk, monkeypatch):
    """Of nodes that are as large as a batch and of smaller ones, in none, one or several of which a row is."""
    monkeypatch.setattr(numbered, "_CHUNK", chunk)
    rows = [[0, 1, 2], [2, 3], [4, 5, 6, 7, 8], *(list(range(start, 60, 9)) for start in (9, 9, 10)), [*range(20, 55)]]
    nodes = Groups(tuple("abcdefg"), np.cumsum([0, *map(len, rows)]), np.concatenate(rows).astype(np.int32))
    ranking = Ranking.unordered(60) if isinstance(rule, NodeSampling) else rank_scores(np.arange(60.0))
    plan = make_plan(rule, replace(ranking, columns={"n": nodes}), global_batch_size=4)
    while plan.undecided:
        plan = plan.decided(Observed(plan.known_steps, {"eval_retrieval_accuracy": 1.0 - (len(plan.log) == 1)}))
    assert len(plan.stages) == rounds
    large = [own for own in rows if len(own) >= getattr(rule, "min_examples", 1)]
    shown, missed = np.zeros(60), np.ones(60)
    for stage in plan.stages:
        for step in range(stage.num_draws // 4):
            pool = stage.pool_size if stage.pool_at is None else stage.pool_at(step)
            groups = [[row for row in own if row < pool] for own in large]
            for row in range(pool):
                # A batch of a node, in proportion to the nodes' sizes, or of everything.
                hit = [(1 - stage.random_share) * len(own) / sum(map(len, groups)) for own in groups if row in own]
                of = [own for own in groups if row in own]
                hit, sizes = [*hit, stage.random_share], [*map(len, of), pool]
                shown[row] += sum(part * 4 / size for part, size in zip(hit, sizes, strict=True))
                missed[row] *= 1 - sum(part * min(1, 4 / size) for part, size in zip(hit, sizes, strict=True))
    exposure = plan.exposure()
    assert exposure.distinct == pytest.approx((1 - missed).sum(), rel=rel)
    assert exposure.average == pytest.approx(shown.mean(), rel=rel)
    assert exposure.most_repeated == pytest.approx(shown.max(), rel=rel)
    assert exposure.describe() in plan.describe()
