"""Edges of mixtures and exported orders: limits that are met exactly, counts by hand, and the words of each case."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset

from hf_curriculum import (
    IID,
    BabySteps,
    CurriculumSampler,
    Filter,
    Growing,
    Mixture,
    OnlineSelection,
    Phases,
    SelfPaced,
    Weighted,
    as_planned,
    make_plan,
)
from hf_curriculum.curricula import mixture as MIXTURE
from hf_curriculum.files import DamagedFileError, write_sealed
from hf_curriculum.planning.deciding import Observed
from hf_curriculum.planning.export import ExportedOrder, facts_file, verify_order
from hf_curriculum.planning.quotas import UNIT

ROWS = 12
SCORES = np.arange(float(ROWS), dtype=np.float32)


def rows_of(plan):
    return plan.rows(0, plan.known_samples).tolist()


@pytest.fixture(scope="module")
def plan():
    """Nine steps of four rows."""
    return make_plan(Phases(2, 2, easy="low"), SCORES, global_batch_size=4, seed=3)


def data_of(**columns):
    return Dataset(pa.table({name: pa.array(values) for name, values in columns.items()}))


class TestRefused:
    """Why a plan has no order to export, in whole sentences."""

    @pytest.mark.parametrize("asked", [False, True])
    def test_before_the_first_decision_no_step_is_known(self, tmp_path, asked):
        paced = make_plan(SelfPaced(epochs=2, warmup_epochs=0, easy="low"), SCORES, global_batch_size=4)
        with pytest.raises(ValueError, match="SelfPaced") as error:
            paced.export(tmp_path / "order.npy", up_to_decision=asked)
        assert str(error.value) == (
            "SelfPaced decides while training what comes next: no step is known now. CurriculumTrainer, or a loop of "
            "your own with plan.decided(...), takes the decisions."
        )
        assert not [*tmp_path.iterdir()]

    def test_up_to_a_decision_the_first_steps_are_known(self, tmp_path):
        stepped = make_plan(BabySteps(2, epochs=4, easy="low"), np.arange(20.0), global_batch_size=5)
        with pytest.raises(ValueError, match="BabySteps") as error:
            stepped.export(tmp_path / "order.npy")
        assert str(error.value) == (
            "BabySteps decides while training what comes next: the first 2 of at most 16 steps are known now. "
            "export(up_to_decision=True) writes these. CurriculumTrainer, or a loop of your own with "
            "plan.decided(...), takes the decisions."
        )
        facts = verify_order(stepped.export(tmp_path / "order.npy", up_to_decision=True))
        assert (facts["steps"], facts["of_at_most"], facts["draws"]) == (2, 16, 10)

    def test_what_chooses_while_training_says_among_how_many(self, tmp_path):
        for factor in (2, 3):
            chosen = make_plan(OnlineSelection(factor, "loss", then=IID(epochs=1)), SCORES, global_batch_size=4)
            with pytest.raises(
                ValueError, match=f"among {factor} × the examples, by a model that is being trained: no"
            ):
                chosen.export(tmp_path / "order.npy", up_to_decision=True)

    @pytest.mark.parametrize("rows", [ROWS - 1, ROWS + 1])
    def test_one_row_more_or_less_is_other_data(self, plan, rows):
        data = data_of(a=list(range(rows)))
        with pytest.raises(ValueError, match=f"made for {ROWS} rows, and the data set has {rows}: its row numbers"):
            as_planned(data, plan)

    def test_scores_are_compared_where_the_data_has_them(self, plan, tmp_path):
        scored = make_plan(Phases(2, easy="low"), data_of(s=SCORES), score_column="s", global_batch_size=4)
        for data in (data_of(s=SCORES), data_of(s=SCORES.astype(float)), data_of(a=SCORES[::-1])):
            assert as_planned(data, scored).num_rows == scored.known_samples
        with pytest.raises(ValueError, match=r"made for 12 rows with other scores in `s`: were the rows shuffled"):
            scored.export(tmp_path / "order.npy", data_of(s=SCORES[::-1]))


def test_what_an_order_was_made_of_stands_beside_it(plan, tmp_path):
    data = data_of(uid=[f"u{row}" for row in range(ROWS)])
    file = plan.export(str(tmp_path / "order.txt"), data, id_column="uid", up_to_decision=True)  # all is known
    assert file == tmp_path / "order.txt"
    facts = json.loads(facts_file(file).read_text())
    assert list(facts) == [
        *(
            "format",
            "file",
            "digest",
            "id_column",
            "steps",
            "of_at_most",
            "draws",
            "plan",
            "fingerprint",
            "data",
            "seal",
        )
    ]
    assert (facts["format"], facts["file"], facts["id_column"]) == ("hf_curriculum order 1", "order.txt", "uid")
    assert (facts["steps"], facts["of_at_most"], facts["draws"]) == (plan.num_steps, plan.num_steps, plan.num_samples)
    assert facts["plan"] == json.loads(json.dumps(plan.to_dict()))
    assert facts["fingerprint"] == json.loads(json.dumps(plan.fingerprint()))
    assert facts["data"]["num_rows"] == ROWS
    assert json.loads(facts_file(plan.export(tmp_path / "order.npy")).read_text())["data"] is None
    once = file.read_bytes(), facts_file(file).read_bytes()
    plan.export(file, data, id_column="uid")
    assert (file.read_bytes(), facts_file(file).read_bytes()) == once


@pytest.mark.parametrize("what", ["the order", "its facts", "both"])
def test_a_damaged_order_is_exported_again(plan, tmp_path, what):
    file = plan.export(tmp_path / "order.npy")
    whole = file.read_bytes(), facts_file(file).read_bytes()
    if what != "its facts":
        file.write_bytes(whole[0][:-3])
    if what != "the order":
        facts_file(file).write_text("{}")
    with pytest.raises(DamagedFileError):
        verify_order(file)
    plan.export(file)
    assert (file.read_bytes(), facts_file(file).read_bytes()) == whole


def test_the_facts_of_the_former_order_stay_readable_and_no_others(plan, tmp_path):
    file = plan.export(tmp_path / "order.npy")
    facts, content = verify_order(file), file.read_bytes()
    former = {**facts, "digest": "0" * len(facts["digest"]), "steps": 1}
    write_sealed(facts_file(file), {**facts, "former": former})
    assert verify_order(file) == facts
    write_sealed(facts_file(file), {**former, "former": facts})
    assert verify_order(file) == facts
    assert ExportedOrder(file).num_steps == plan.num_steps
    file.write_bytes(content[:-1])
    with pytest.raises(DamagedFileError, match=r"order\.npy is not the file that order\.npy\.json was written for"):
        verify_order(file)


@pytest.mark.parametrize(
    "name", ["format", "digest", "id_column", "steps", "of_at_most", "draws", "fingerprint", "data"]
)
def test_facts_without_one_of_them_are_damaged(plan, tmp_path, name):
    file = plan.export(tmp_path / "order.npy")
    facts = verify_order(file)
    del facts[name]
    write_sealed(facts_file(file), facts)
    with pytest.raises(
        DamagedFileError, match=rf"order\.npy\.json is damaged \(KeyError: '{name}'\).*Export the plan"
    ):
        ExportedOrder(file)


class TestIds:
    @pytest.mark.parametrize(("value", "at"), [("", 0), (" \t", 5), ("a\rb", 11), ("a\n", 3), (None, 11), (None, 0)])
    def test_the_first_bad_id_is_named_by_its_row(self, plan, tmp_path, value, at):
        ids = [f"u{row}" for row in range(ROWS)]
        ids[at] = value
        said = re.escape(f"`id` is {value!r} in row {at}: an id is needed for every row, on one line. Fill the column")
        for kind in (pa.string(), pa.large_string()):
            with pytest.raises(ValueError, match=said):
                plan.export(tmp_path / "order.txt", data_of(id=pa.array(ids, kind)), id_column="id")
        if value is None:
            with pytest.raises(ValueError, match=rf"`id` is None in row {at}: an id is needed for every row\. Fill"):
                plan.export(tmp_path / "order.parquet", data_of(id=ids), id_column="id")
        else:  # a table has room for any text
            table = pq.read_table(plan.export(tmp_path / "order.parquet", data_of(id=ids), id_column="id"))
            assert table.column("id").to_pylist() == [ids[row] for row in rows_of(plan)]
        assert not (tmp_path / "order.txt").exists()

    def test_missing_numbers_are_missing_ids_and_others_are_spelt(self, plan, tmp_path):
        numbers = [row - 5 for row in range(ROWS)]
        lines = plan.export(tmp_path / "order.txt", data_of(id=numbers), id_column="id").read_text()
        assert lines == "".join(f"{row - 5}\n" for row in rows_of(plan))
        numbers[7] = None
        with pytest.raises(ValueError, match=r"`id` is None in row 7: an id is needed"):
            plan.export(tmp_path / "order.txt", data_of(id=numbers), id_column="id")

    def test_texts_are_utf_8_and_blanks_within_them_stay(self, plan, tmp_path):
        ids = [f" é漢 {row} " for row in range(ROWS)]
        content = plan.export(tmp_path / "order.txt", data_of(id=ids), id_column="id").read_bytes()
        assert content.decode("utf-8") == "".join(f"{ids[row]}\n" for row in rows_of(plan))

    def test_the_columns_of_a_table(self, plan, tmp_path):
        data = data_of(id=[f"u{row}" for row in range(ROWS)])
        schema = pq.read_schema(plan.export(tmp_path / "order.parquet", data, id_column="id"))
        assert {field.name: str(field.type) for field in schema} == {
            "step": "int32",
            "row": "int64",
            "id": "large_string",
        }

    @pytest.mark.parametrize("chunk", [1 << 20, 3])
    def test_datacomp_sorts_by_both_halves_and_counts_draws_over_blocks(self, tmp_path, monkeypatch, chunk):
        monkeypatch.setattr("hf_curriculum.planning.export._CHUNK", chunk)
        halves = [(row % 3 + chunk + (1 << 63), (7 * row) % ROWS + ((row % 2) << 63)) for row in range(ROWS)]
        data = data_of(uid=[f"{high:016x}{low:016X}" for high, low in halves], s=SCORES)
        rule = Filter(0.75, IID(epochs=2.5), easy="low")
        plan = make_plan(rule, data, score_column="s", global_batch_size=5)
        rows = rows_of(plan)
        assert {*np.bincount(rows).tolist()} == {2, 3}
        assert {*rows} == {*range(9)}  # and the last three rows are never drawn
        found = np.load(plan.export(tmp_path / "subset.npy", data, id_column="uid", datacomp=True))
        assert found.tolist() == sorted(halves[row] for row in rows)

    @pytest.mark.parametrize(
        "uid", ["0" * 31, "0" * 33, "0" * 31 + "g", "g" + "0" * 31, "0x" + "1" * 30, "-" + "1" * 31, "1_" * 16]
    )
    def test_uids_of_datacomp_are_32_hexadecimal_digits(self, plan, tmp_path, uid):
        uids = [f"{row:032x}" for row in range(ROWS)]
        uids[rows_of(plan)[0]] = uid
        with pytest.raises(ValueError, match=f"The uid '{uid}' is not of DataComp, whose uids are 32 hexadecimal"):
            plan.export(tmp_path / "subset.npy", data_of(uid=uids), id_column="uid", datacomp=True)

    def test_sorted_uids_are_no_order_to_draw_by(self, plan, tmp_path):
        data = data_of(uid=[f"{row:032x}" for row in range(ROWS)])
        file = plan.export(tmp_path / "subset.npy", data, id_column="uid", datacomp=True)
        with pytest.raises(ValueError, match=r"subset\.npy holds no row numbers that a sampler could draw by"):
            CurriculumSampler.from_export(file)
        order = plan.export(tmp_path / "order.npy")
        write_sealed(facts_file(order), {**verify_order(order), "format": "hf_curriculum order 2"})
        with pytest.raises(ValueError, match="holds no row numbers"):
            ExportedOrder(order)


class TestRead:
    """An order that is read back."""

    @pytest.mark.parametrize("few", [1, 5, 8, 1 << 15])
    @pytest.mark.parametrize("start", [0, 3, 8, 35, 36])
    def test_in_parts_from_anywhere(self, plan, tmp_path, monkeypatch, start, few):
        monkeypatch.setattr("hf_curriculum.planning.export._FEW", few)
        order, rows = ExportedOrder(plan.export(tmp_path / "order.npy")), rows_of(plan)
        parts = list(order.chunks(start))
        assert [row for part in parts for row in part.tolist()] == rows[start:]
        assert [len(part) for part in parts[:-1]] == [few] * (len(parts) - 1)
        assert {part.dtype for part in parts} <= {np.dtype(np.int64)}

    def test_steps_are_those_of_the_plan_to_the_last(self, plan, tmp_path, caplog):
        order = ExportedOrder(plan.export(tmp_path / "order.npy"))
        assert (order.num_steps, order.max_steps, order.samples_per_step, order.known_samples) == (9, 9, 4, 36)
        assert [order.step_rows(step).tolist() for step in range(9)] == np.reshape(rows_of(plan), (9, 4)).tolist()
        assert order.fingerprint() == json.loads(json.dumps(plan.fingerprint()))
        assert not caplog.records  # it is whole

    def test_one_step_of_one_row_is_an_order(self, tmp_path):
        one = make_plan(IID(epochs=1), np.zeros(1), global_batch_size=1)
        order = ExportedOrder(one.export(tmp_path / "order.npy"))
        assert (order.num_steps, order.step_rows(0).tolist()) == (1, [0])

    def test_a_link_is_the_order_that_it_leads_to(self, plan, tmp_path):
        (tmp_path / "far").mkdir()
        (tmp_path / "near.npy").symlink_to(tmp_path / "far" / "order.npy")
        assert plan.export(tmp_path / "near.npy") == tmp_path / "near.npy"
        assert sorted(path.name for path in (tmp_path / "far").iterdir()) == ["order.npy", "order.npy.json"]
        assert facts_file(tmp_path / "near.npy") == tmp_path / "far" / "order.npy.json"
        (tmp_path / "named").symlink_to(tmp_path / "far" / "order.npy")
        assert ExportedOrder(tmp_path / "named").rows(0, 36).tolist() == rows_of(plan)
        assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".json")] == []


SIZES = {"a": 30, "b": 12, "c": 6}
EVEN = {"a": 1, "b": 1, "c": 1}
"""48 rows, in batches of 8: six steps an epoch."""


def sources_of(sizes=SIZES):
    return np.repeat(list(sizes), list(sizes.values()))


def mixed(rule, sizes=SIZES, batch=8, **given):
    sources = sources_of(sizes)
    data = Dataset.from_dict({"source": sources.tolist(), "level": list(range(len(sources)))})
    return make_plan(replace(rule, easy="low"), data, score_column="level", global_batch_size=batch, **given)


def decided(plan, losses):
    """The plan after a decision on each of these losses of its sources."""
    for row in losses:
        names = plan.curriculum.metrics
        plan = plan.decided(Observed(plan.known_steps, dict(zip(names, map(float, row), strict=True))))
    return plan


class TestMixtures:
    def test_least_and_largest_values_are_possible(self):
        to = {"c": 0, "b": 0, "a": 2}
        assert Mixture("s", EVEN, to=to, over=1, jumps=1).shares_at(1) == {"a": 1, "b": 0, "c": 0}
        assert Mixture("s", EVEN, to=to, over=1e-9).shares_at(0.5)["a"] == 1
        assert Mixture("s", EVEN, adapt="loss", every=1, temperature=1e-9).every == 1
        assert Mixture("s", {1: 1, "b": np.float64(3)}, then={1: "iid"}).shares_at(0) == {"1": 0.25, "b": 0.75}
        assert Mixture("s", {"a": 1}).to_dict()["shares"] == {"a": 1}
        assert "then" not in Mixture("s", EVEN).to_dict()
        for given in ({"temperature": math.inf}, {"temperature": math.nan}, {"every": 0}):
            with pytest.raises(ValueError, match=r"not possible|every is at least 1"):
                Mixture("s", EVEN, **{"adapt": "loss", "every": 2, **given})
        with pytest.raises(ValueError, match=r"Mixture\(over=nan\) is not possible"):
            Mixture("s", EVEN, to=to, over=math.nan)

    @pytest.mark.parametrize(
        ("given", "idle"),
        [
            ({"over": 0.5}, "over"),
            ({"jumps": 1}, "jumps"),
            ({"temperature": 2}, "temperature"),
            ({"over": 0.5, "jumps": 2, "every": 1, "temperature": 2}, "over, jumps, every, temperature"),
            ({"adapt": "loss", "every": 2, "over": 0.5, "jumps": 2}, "over, jumps"),
            ({"to": EVEN, "every": 2, "temperature": 2}, "every, temperature"),
            ({"adapt": "odm", "every": 2, "temperature": 2}, "temperature"),
        ],
    )
    def test_all_that_would_change_nothing_is_named(self, given, idle):
        with pytest.raises(ValueError, match=f"^Mixture got {idle}, which would change nothing: "):
            Mixture("s", EVEN, **given)

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"to": {"a": 1, "z": 1, "y": 1}}, "`to` names ['y', 'z'] too: what"),  # and misses b and c
            ({"to": {"b": 1}}, "`to` names no weight of ['a', 'c']: what"),
            ({"then": {"z": IID(), "a": IID()}}, "`then` names ['z'] too: what"),
        ],
    )
    def test_sources_that_do_not_agree_are_named(self, given, said):
        with pytest.raises(ValueError, match=re.escape(f"Mixture has shares of ['a', 'b', 'c'], and {said}")):
            Mixture("s", EVEN, **given)

    @pytest.mark.parametrize(
        ("steps", "firsts", "parts"),
        [
            (1, [0, 1], [3, 4]),  # of jumps that would begin together the last counts
            (2, [0, 1, 2], [1, 3, 4]),
            (4, [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]),
            (9, [0, 2, 4, 6, 9], [0, 1, 2, 3, 4]),
        ],
    )
    def test_jumps_of_a_short_run(self, steps, firsts, parts):
        rule = Mixture("s", {"a": 1, "b": 1}, to={"a": 0, "b": 1}, jumps=4)
        found = rule.stretches(steps)
        assert [stretch.first for stretch in found] == firsts
        assert [(stretch.shares / UNIT).tolist() for stretch in found] == [
            [0.5 - part / 8, 0.5 + part / 8] for part in parts
        ]
        assert {stretch.to is None for stretch in found} == {True}

    @pytest.mark.parametrize(
        ("over", "steps", "length"), [(1, 9, 9), (0.5, 9, 4), (0.1, 3, 1), (0.5, 3, 2), (1, 1, 1)]
    )
    def test_shares_move_over_a_part_of_the_steps(self, over, steps, length):
        first, last = Mixture("s", {"a": 1, "b": 0}, to={"b": 1, "a": 0}, over=over).stretches(steps)
        assert (first.first, first.length, last.first, last.to) == (0, length, length, None)
        assert [part.tolist() for part in (first.shares, first.to, last.shares)] == [[UNIT, 0], [0, UNIT], [0, UNIT]]
        (still,) = Mixture("s", EVEN).stretches(steps)
        assert (still.first, still.to) == (0, None)

    @pytest.mark.parametrize(
        ("every", "decisions"), [(1, 11), (2, 5), (5, 2), (6, 1), (11, 1), (12, 0), (13, 0), (50, 0)]
    )
    def test_a_plan_says_how_often_shares_are_decided(self, every, decisions):
        plan = mixed(Mixture("source", EVEN, adapt="loss", every=every), epochs=2)
        assert plan.max_steps == 12
        assert plan.pending_decisions() == (
            f"shares by 'loss' every {every} steps, {decisions} times, on eval_a_loss, eval_b_loss, eval_c_loss "
            "(rows: a 30, b 12, c 6)",
        )
        assert (plan.curriculum.details(plan.order, plan.unit_budget), plan.notes) == ((), ())
        known = [plan.known_steps]
        while plan.undecided:
            plan = decided(plan, [[1, 1, 1]])
            known.append(plan.known_steps)
        assert known == [min(12, every * number) for number in range(1, decisions + 2)]
        assert [stage.num_samples for stage in plan.stages] == (8 * np.diff([0, *known])).tolist()

    def test_a_decision_in_words(self):
        rule = Mixture("source", {"a": 1, "b": 2, "c": 0}, adapt="odm", every=2)
        plan = decided(mixed(rule, epochs=3), [[1.5, math.nan, 2]])
        assert rule.describe_decision(plan.log[0]) == (
            "step 2: a 1.5, b nan, c 2 → a 33.3 %, b 66.7 %, c 0 % (a loss is no number: the shares stay)"
        )
        entry = {
            "step": 1234,
            "decision": "shares",
            "losses": {"a": 1.23456, "b": 2.0},
            "shares": {"a": 0.25, "b": 0.75},
        }
        assert rule.describe_decision(entry) == "step 1,234: a 1.235, b 2 → a 25 %, b 75 %"

    def test_rewards_stay_with_the_shares_where_a_loss_is_no_number(self):
        losses = [[1, 2, 3], [1, math.inf, 1], [math.nan, 1, 1], [2, 1, 1]]
        plan = decided(mixed(Mixture("source", EVEN, adapt="odm", every=2), epochs=3), losses)
        first, stays, again, last = plan.log
        assert first["rewards"] == pytest.approx({"a": 0.3, "b": 0.6, "c": 0.9})  # 0.1 · loss / (1/3)
        for entry in (stays, again):
            assert (entry["decision"], entry["rewards"], entry["shares"]) == (
                "stay",
                first["rewards"],
                first["shares"],
            )
        rewards = {}
        for name, loss in zip("abc", losses[3], strict=True):
            rewards[name] = 0.9 * first["rewards"][name] + 0.1 * loss / first["shares"][name]
        assert last["rewards"] == pytest.approx(rewards)
        # Every decision counts, those that changed nothing too: ε of 3 is 1/3 still, and that of 4 is less.
        now, before = math.sqrt(math.log(3) / 12), 1 / 3
        powers = {name: math.exp(before * reward) for name, reward in last["rewards"].items()}
        for name, power in powers.items():
            assert last["shares"][name] == pytest.approx((1 - 3 * now) * power / sum(powers.values()) + now)
        plan = decided(mixed(Mixture("source", EVEN, adapt="loss", every=2), epochs=3), losses[:2])
        assert all("rewards" not in entry for entry in plan.log)

    def test_rounds_of_batches_of_one_source(self):
        rule = Mixture("source", EVEN, adapt="loss", every=6, one_source_per_batch=True, epochs=3)
        plan = decided(mixed(rule), [[0, math.log(2), -9], [1, 1, 1]])
        drawn = sources_of()[plan.rows(0, plan.known_samples)].reshape(3, 6, 8)
        assert (drawn == drawn[:, :, :1]).all()
        batches = [[(one[:, 0] == name).sum() for name in "abc"] for one in drawn]
        # A third of six batches each; then 1 : 2 of them, and what is owed goes on; then a third again.
        assert batches[0] == [2, 2, 2]
        assert batches[1] == [2, 4, 0]
        assert batches[2] == [2, 2, 2]
        rows = plan.rows(0, plan.known_samples)
        for name, size in SIZES.items():  # each row once before any comes twice
            own = rows[sources_of()[rows] == name]
            assert all(len({*own[at : at + size].tolist()}) == size for at in range(0, len(own) - size + 1, size))
        assert plan.stages[2].draws_of(6).tolist() == [48, 64, 32]

    @pytest.mark.parametrize("sources", [2, 256, 257])
    def test_any_number_of_sources(self, sources):
        sizes = {f"s{number}": 1 for number in range(sources)}
        plan = mixed(Mixture("source", dict.fromkeys(sizes, 1), epochs=2), sizes, batch=sources)
        for step in range(2):
            assert sorted(plan.step_rows(step).tolist()) == list(range(sources))

    @pytest.mark.parametrize(("places", "orders"), [(1, 1), (16, 1), (32, 2), (80, 4), (1 << 16, None)])
    def test_so_many_orders_of_a_batch_as_have_room(self, monkeypatch, places, orders):
        monkeypatch.setattr(MIXTURE, "_PLACES", places)
        plan = mixed(Mixture("source", {"a": 9, "b": 7, "c": 0}), batch=16, max_steps=200)
        drawn = sources_of()[plan.rows(0, 3200)].reshape(200, 16) == "a"
        assert set(drawn.sum(axis=1).tolist()) == {9}
        found = len({tuple(order) for order in drawn.tolist()})
        assert found == orders if orders else found > 16

    def test_as_many_draws_as_are_exact(self, monkeypatch):
        monkeypatch.setattr(MIXTURE, "MOST_DRAWS", 48)
        assert mixed(Mixture("source", EVEN, examples=48)).num_draws == 48
        with pytest.raises(ValueError, match="Mixture would draw 49 examples, and shares are exact up to 48"):
            mixed(Mixture("source", EVEN, examples=49))

    def test_a_draw_for_each_stage_is_enough(self):
        rule = Mixture("source", {"a": 6, "b": 2, "c": 0}, then={"b": Phases(2)}, examples=8)
        plan = mixed(rule)
        drawn = [row for row in rows_of(plan) if sources_of()[row] == "b"]
        assert len(drawn) == 2
        assert drawn[0] < 36  # of the easier half of b, rows 30 to 35
        with pytest.raises(ValueError, match="draws 2 examples of 'b', which cannot hold the 3 stages of its Phases"):
            mixed(replace(rule, then={"b": Phases(3)}))


class TestNotes:
    """What a plan of a mixture says of its sources."""

    @pytest.mark.parametrize(
        ("draws", "of_b", "times"),
        [(10, 4, None), (10, 5, "5"), (5, 4, None), (5, 5, "5"), (20, 8, None), (20, 9, "9")],
    )
    def test_more_than_four_times_as_often_as_the_average_row(self, draws, of_b, times):
        sizes = {"a": 9, "b": 1}  # an average row is shown draws / 10 times, and once is the least that is compared
        plan = mixed(Mixture("source", {"a": draws - of_b, "b": of_b}, examples=draws), sizes, batch=1)
        notes = plan.curriculum.notes(plan.order, plan.unit_budget)
        assert (
            notes == ()
            if times is None
            else notes
            == (
                f"b: a row of it is shown {times} × on average, and one of all the data {draws / 10:.3g} ×. "
                "Give it a smaller share or more rows, if that is too often.",
            )
        )

    @pytest.mark.parametrize(
        ("shares", "to", "told"),
        [
            ({"a": 1e6, "b": 1, "c": 0}, None, True),
            ({"a": 1e6, "b": 0, "c": 0}, {"a": 1e6, "b": 1, "c": 0}, True),
            ({"a": 1e6, "b": 1, "c": 0}, {"a": 1e6, "b": 0, "c": 0}, True),
            ({"a": 1, "b": 0, "c": 0}, None, False),
            ({"a": 1, "b": 0, "c": 1}, {"a": 1, "b": 0, "c": 2}, False),
        ],
    )
    def test_a_share_without_a_draw_is_told_and_no_share_is_none(self, shares, to, told):
        plan = mixed(Mixture("source", shares, to=to, then={"b": Phases(2)}), max_steps=2)
        assert plan.curriculum.notes(plan.order, plan.unit_budget) == (
            ("b: its share is less than one draw, and nothing of it is shown.",) if told else ()
        )
        assert plan.stages[0].pool_size == sum(SIZES[name] for name in SIZES if shares[name] or (to or shares)[name])

    def test_notes_of_the_rule_of_a_source_have_its_name(self):
        sources = sources_of()
        kinds = np.where(np.arange(48) % 2, "x", "y")
        data = Dataset.from_dict({"source": sources.tolist(), "kind": kinds.tolist()})
        inner = Mixture("kind", {"x": 1e6, "y": 1})
        plan = make_plan(Mixture("source", EVEN, then={"a": inner}), data, global_batch_size=8, max_steps=3)
        assert plan.curriculum.notes(plan.order, plan.unit_budget) == (
            "a: y: its share is less than one draw, and nothing of it is shown.",
        )
        assert plan.curriculum.reads == {"kind": "groups", "source": "groups"}

    def test_draws_are_those_of_the_steps_that_are_taken(self):
        rule = Mixture("source", {"a": 1, "b": 1, "c": 0}, to={"a": 0, "b": 0, "c": 1}, epochs=2)
        whole, cut = mixed(rule), mixed(rule, max_steps=3)
        assert [line.split(" of ")[0] for line in cut.curriculum.details(cut.order, cut.unit_budget)] == [
            f"{name}: {draws} draws ({100 * draws / 24:.4g} %)"
            for name, draws in zip(
                "abc", (sources_of()[rows_of(cut)] == np.array([*"abc"])[:, None]).sum(axis=1), strict=True
            )
        ]
        assert rows_of(whole)[:24] == rows_of(cut)
        assert cut.stages[0].num_steps == whole.stages[0].num_steps == 12

    def test_where_draws_change_and_whether_they_are_passes(self):
        shares = {"a": 1, "b": 0, "c": 1}
        plain = mixed(Mixture("source", shares)).stages[0]
        assert plain.slices == ((0, 30), (42, 48))
        assert (sorted({*plain.change_points().tolist()}), plain.in_passes) == ([0, 30, 42, 48], True)
        phased = mixed(Mixture("source", shares, then={"c": Phases(2)})).stages[0]
        assert (sorted({*phased.change_points().tolist()}), phased.in_passes) == ([0, 30, 42, 45, 48], False)
        listed = mixed(Mixture("source", shares, then={"c": IID()})).stages[0]
        assert listed.in_passes
        for rule in (Growing(), Weighted()):
            chance = mixed(Mixture("source", shares, then={"c": rule})).stages[0]
            assert not chance.in_passes
        few = mixed(Mixture("source", {"a": 1e6, "b": 0, "c": 1}, then={"c": Phases(2)}), max_steps=1).stages[0]
        assert few.in_passes  # what is never drawn is drawn in no other way
