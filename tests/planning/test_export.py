"""The order of a run as a file or a view: what is written, read back and refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from curriculum_cases import CASES, plan_of
from datasets import Dataset, Image
from torch.utils.data import DataLoader

from hf_curriculum import IID, BabySteps, ByImage, CurriculumSampler, OnlineSelection, Phases, as_planned, make_plan
from hf_curriculum.files import DamagedFileError, lock_file, write_sealed
from hf_curriculum.planning.deciding import Observed
from hf_curriculum.planning.export import ExportedOrder, facts_file, verify_order
from tests.helpers.failing_files import failing_files, interrupted

ROWS = 40


@pytest.fixture(scope="module")
def data() -> Dataset:
    rng = np.random.default_rng(0)
    return Dataset.from_dict(
        {
            "caption": [f"caption {row}" for row in range(ROWS)],
            "uid": [f"{row * 2**70 + 5:032x}" for row in rng.permutation(ROWS).tolist()],
            "image_id": [f"i{row // 2}" for row in range(ROWS)],
            "length": rng.permutation(ROWS).astype(np.float32),
        }
    )


@pytest.fixture(scope="module")
def plan(data):
    return make_plan(Phases(3, easy="low"), data, score_column="length", global_batch_size=8, seed=3)


def rows_of(plan) -> list[int]:
    return plan.rows(0, plan.known_samples).tolist()


def test_row_numbers_are_those_of_each_step(plan, data, tmp_path):
    file = plan.export(tmp_path / "new" / "order.npy", data)
    order = np.load(file, mmap_mode="r")
    assert order.dtype == np.int32
    assert order.shape == (plan.num_samples,)
    for step in range(plan.num_steps):
        assert order[8 * step : 8 * step + 8].tolist() == plan.step_rows(step).tolist()
    facts = json.loads((tmp_path / "new" / "order.npy.json").read_text())
    assert facts["plan"]["stages"][0]["pool"] == plan.stages[0].pool_size
    assert (facts["steps"], facts["draws"]) == (plan.num_steps, plan.num_samples)
    assert facts["data"]["num_rows"] == ROWS
    assert sorted(path.name for path in file.parent.iterdir()) == ["order.npy", "order.npy.json"]


def test_row_numbers_above_two_billion_are_int64(tmp_path):
    plan = make_plan(IID(epochs=1), np.arange(6.0), global_batch_size=3)
    object.__setattr__(plan.ranking, "num_rows", (1 << 31) + 1)
    assert np.load(plan.export(tmp_path / "order.npy")).dtype == np.int64
    object.__setattr__(plan.ranking, "num_rows", 1 << 31)
    assert np.load(plan.export(tmp_path / "order.npy")).dtype == np.int32


@pytest.mark.parametrize("chunk", [1 << 20, 7])
def test_ids_and_steps_are_written_as_they_are_drawn(plan, data, tmp_path, monkeypatch, chunk):
    monkeypatch.setattr("hf_curriculum.planning.export._CHUNK", chunk)
    rows = rows_of(plan)
    lines = plan.export(tmp_path / "uids.txt", data, id_column="uid").read_text().splitlines()
    assert lines == [data["uid"][row] for row in rows]
    assert plan.export(tmp_path / "rows.txt").read_text().splitlines() == list(map(str, rows))
    table = pq.read_table(plan.export(tmp_path / "uids.parquet", data, id_column="uid")).to_pydict()
    assert table["row"] == rows
    assert table["step"] == [draw // 8 for draw in range(len(rows))]
    assert table["id"] == lines
    assert pq.read_table(plan.export(tmp_path / "rows.parquet")).column_names == ["step", "row"]


def test_numbers_may_be_ids(data, tmp_path):
    numbered = data.add_column("number", list(range(100, 100 + ROWS)))
    plan = make_plan(IID(epochs=1), numbered, global_batch_size=8)
    lines = plan.export(tmp_path / "ids.txt", numbered, id_column="number").read_text().split()
    assert lines == [str(100 + row) for row in rows_of(plan)]


def test_datacomp_uids_are_sorted_and_as_often_as_they_are_drawn(plan, data, tmp_path):
    file = plan.export(tmp_path / "subset.npy", data, id_column="uid", datacomp=True)
    found = np.load(file)
    assert found.dtype == np.dtype("u8,u8")
    wanted = sorted(divmod(int(data["uid"][row], 16), 2**64) for row in rows_of(plan))
    assert [tuple(pair) for pair in found.tolist()] == wanted
    # As DataComp's resharder looks a uid up: between the two ends it stands as often as it is to be written.
    row = rows_of(plan)[0]
    key = np.array([divmod(int(data["uid"][row], 16), 2**64)], found.dtype)[0]
    count = np.searchsorted(found, key, "right") - np.searchsorted(found, key, "left")
    assert count == rows_of(plan).count(row)


def test_a_view_has_a_row_for_every_draw_and_copies_nothing(plan, data):
    view = as_planned(data, plan)
    assert view["caption"][:] == [data["caption"][row] for row in rows_of(plan)]
    assert view.column_names == data.column_names
    assert view.data.table.column("caption").chunk(0).buffers()[2].address == (
        data.data.table.column("caption").chunk(0).buffers()[2].address
    )
    assert view._fingerprint == as_planned(data, plan)._fingerprint != data._fingerprint
    other = make_plan(Phases(3, easy="low"), data, score_column="length", global_batch_size=8, seed=4)
    assert as_planned(data, other)._fingerprint != view._fingerprint
    assert as_planned(data.remove_columns("caption"), plan)._fingerprint != view._fingerprint


def test_a_view_reads_no_image(plan):
    broken = [{"bytes": b"no image", "path": None}] * ROWS
    images = Dataset(pa.table({"image": pa.array(broken), "length": plan.ranking.scores}))
    images = images.cast_column("image", Image())
    assert len(as_planned(images, plan)) == plan.num_samples


def test_a_view_of_a_view_has_the_rows_of_its_own(data):
    part = data.select(range(10, 30)).shuffle(seed=1)
    plan = make_plan(Phases(2, easy="low"), part, score_column="length", global_batch_size=4)
    assert as_planned(part, plan)["uid"][:] == [part["uid"][row] for row in rows_of(plan)]


def test_a_sampler_of_the_file_draws_and_continues_as_one_of_the_plan(plan, data, tmp_path):
    file = plan.export(tmp_path / "order.npy", data)
    sampler = CurriculumSampler.from_export(file, data)
    assert list(sampler) == rows_of(plan)
    assert len(sampler) == plan.num_samples
    loader = DataLoader(data, batch_size=8, sampler=CurriculumSampler.from_export(file, start=4))
    assert [batch["uid"] for batch in loader] == [
        [data["uid"][row] for row in plan.step_rows(step)] for step in range(4, plan.num_steps)
    ]
    state = json.loads(json.dumps(CurriculumSampler(plan, start=5).state_dict()))
    again = CurriculumSampler.from_export(file)
    again.load_state_dict(state)
    assert list(again) == rows_of(plan)[40:]
    own = CurriculumSampler(plan)
    own.load_state_dict(again.state_dict() | {"position": 48})
    assert list(own) == rows_of(plan)[48:]
    assert ExportedOrder(file).step_rows(3).tolist() == plan.step_rows(3).tolist()


def test_the_whole_order_is_read_in_parts(plan, tmp_path, monkeypatch):
    monkeypatch.setattr("hf_curriculum.planning.export._FEW", 5)
    assert list(CurriculumSampler.from_export(plan.export(tmp_path / "order.npy"))) == rows_of(plan)


@pytest.mark.parametrize("name", CASES)
def test_every_curriculum_is_exported_or_says_why_not(name, tmp_path):
    case, file = CASES[name], tmp_path / "order.npy"
    plan = plan_of(case, 60, 12)
    if plan.undecided or plan.candidates > 1 or case.rule.partial_batches == "keep":
        with pytest.raises(ValueError, match=r"decides while training|no order is known|smaller batch"):
            plan.export(file)
        assert not file.exists()
    else:
        assert np.load(plan.export(file)).tolist() == rows_of(plan)


def test_the_steps_up_to_a_decision_are_written_when_asked_for(tmp_path, caplog):
    plan = make_plan(BabySteps(2, epochs=4, easy="low"), np.arange(20.0), global_batch_size=5)
    with pytest.raises(ValueError, match=r"BabySteps decides .* first 2 of at most 16 steps are known"):
        plan.export(tmp_path / "order.npy")
    with pytest.raises(ValueError, match="BabySteps decides"):
        as_planned(Dataset.from_dict({"a": range(20)}), plan)
    file = plan.export(tmp_path / "order.npy", up_to_decision=True)
    with caplog.at_level("WARNING"):
        sampler = CurriculumSampler.from_export(file)
    assert "holds the first 2 of at most 16 steps" in caplog.text
    assert list(sampler) == rows_of(plan)
    later = plan.decided(Observed(plan.known_steps, {"eval_loss": 1.0}))
    with pytest.raises(ValueError, match=r"made after 1 decisions, and .* ends before the first"):
        sampler.load_state_dict(CurriculumSampler(later).state_dict())


def test_what_has_no_order_says_so(data):
    chosen = make_plan(OnlineSelection(value="loss", then=IID(epochs=1)), data, global_batch_size=4)
    with pytest.raises(ValueError, match="OnlineSelection chooses each step's examples among"):
        as_planned(data, chosen)
    padded = make_plan(Phases(2, easy="low", partial_batches="keep"), data, score_column="length", global_batch_size=3)
    with pytest.raises(ValueError, match="ends each pass with a smaller batch"):
        as_planned(data, padded)


def test_images_are_exported_with_their_captions(data, tmp_path):
    plan = make_plan(Phases(2, easy="low", batches=ByImage(2)), data, score_column="length", global_batch_size=4)
    order = np.load(plan.export(tmp_path / "order.npy", data))
    ids = np.array(data["image_id"][:])[order].reshape(-1, 2)
    assert (ids[:, 0] == ids[:, 1]).all()


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("order.csv", {}, "ends in none of .npy, .txt, .parquet"),
        ("order.npy", {"id_column": "uid"}, "would hold row numbers, and id_column='uid' was given"),
        ("order.npy", {"datacomp": True}, "name their column"),
        ("order.txt", {"id_column": "nothing"}, "`nothing` is not in the data"),
        ("order.txt", {"id_column": "length"}, "`length` holds float, and ids are texts or whole numbers"),
        ("order.npy", {"id_column": "caption", "datacomp": True}, "'caption 0' is not of DataComp"),
        ("order.npy", {"id_column": "hex", "datacomp": True}, "'zz.*' is not of DataComp"),
        ("order.txt", {"id_column": "lines"}, r"`lines` is 'a\\nb' in row 2: an id is needed for every row, on one"),
        ("order.txt", {"id_column": "blank"}, "`blank` is ' ' in row 1"),
        ("order.parquet", {"id_column": "missing"}, "`missing` is None in row 3: an id is needed for every row. Fill"),
    ],
)
def test_what_cannot_be_written_is_refused_and_leaves_nothing(plan, data, tmp_path, name, options, said):
    columns = {
        "lines": ["a", "b", "a\nb"] + ["c"] * 37,
        "blank": ["a", " "] + ["c"] * 38,
        "missing": ["a"] * 3 + [None] * 37,
        "hex": ["zz" * 16] * 40,
    }
    for column, values in columns.items():
        data = data.add_column(column, values)
    with pytest.raises(ValueError, match=said):
        plan.export(tmp_path / name, data, **options)
    assert not list(tmp_path.iterdir())


def test_ids_need_the_data(plan, tmp_path):
    with pytest.raises(ValueError, match="id_column='uid' names a column of the data: give the data set, too"):
        plan.export(tmp_path / "uids.txt", id_column="uid")


def test_other_data_is_refused(plan, data, tmp_path):
    with pytest.raises(ValueError, match="made for 40 rows, and the data set has 39"):
        as_planned(data.select(range(39)), plan)
    with pytest.raises(ValueError, match="with other scores in `length`"):
        plan.export(tmp_path / "order.npy", data.shuffle(seed=1))
    with pytest.raises(TypeError, match="was given a dict of the keys"):
        as_planned({"caption": []}, plan)
    file = plan.export(tmp_path / "order.npy", data)
    with pytest.raises(ValueError, match="was made for other data: 40 rows then and now, but `caption` differs"):
        CurriculumSampler.from_export(file, data.map(lambda row: {"caption": row["caption"] + "!"}))
    file = plan.export(tmp_path / "order.npy")
    CurriculumSampler.from_export(file, data.map(lambda row: {"caption": row["caption"] + "!"}))
    with pytest.raises(ValueError, match="was made for other data: 40 rows then, 39 now"):
        CurriculumSampler.from_export(file, data.select(range(39)))


def test_missing_scores_are_equal_to_missing_scores(data, tmp_path):
    scores = np.array(data["length"][:], np.float32)
    scores[[3, 17]] = np.nan
    data = data.remove_columns("length").add_column("length", scores)
    plan = make_plan(Phases(3, easy="low"), data, score_column="length", global_batch_size=8)
    assert np.load(plan.export(tmp_path / "order.npy", data)).tolist() == rows_of(plan)
    scores[[3, 4]] = scores[[4, 3]]
    with pytest.raises(ValueError, match="with other scores in `length`"):
        plan.export(tmp_path / "order.npy", data.remove_columns("length").add_column("length", scores))


@pytest.fixture
def other():
    return make_plan(Phases(3, easy="low"), np.arange(40.0), global_batch_size=8, seed=9)


def test_damaged_files_are_refused(plan, other, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"order.npy does not exist. `plan.export"):
        CurriculumSampler.from_export(tmp_path / "order.npy")
    file = plan.export(tmp_path / "order.npy")
    whole = file.read_bytes()
    file.write_bytes(other.export(tmp_path / "other.npy").read_bytes())
    with pytest.raises(ValueError, match=r"is not the file that order.npy.json was written for"):
        CurriculumSampler.from_export(file)
    file.write_bytes(whole)
    facts = Path(f"{file}.json")
    facts.unlink()
    with pytest.raises(FileNotFoundError, match=r"order.npy.json does not exist"):
        CurriculumSampler.from_export(file)
    for name in ("order.txt", "order.parquet"):
        file = plan.export(tmp_path / name)
        with pytest.raises(ValueError, match="holds no row numbers that a sampler could draw by"):
            CurriculumSampler.from_export(file)
        file.write_bytes(file.read_bytes()[:-9])
        with pytest.raises(ValueError, match=rf"{name} is not the file that {name}.json was written for"):
            verify_order(file)


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 34},
        {"steps": 0},
        {"draws": 3},
        {"of_at_most": 7},
        {"data": None},
        {"fingerprint": {}},
        {"format": "hf_curriculum order 2"},
        {"id_column": "uid"},
        {"former": {}},
    ],
)
def test_facts_that_were_changed_are_refused(plan, data, tmp_path, change):
    file = plan.export(tmp_path / "order.npy", data)
    facts = facts_file(file)
    facts.write_text(json.dumps({**json.loads(facts.read_text()), **change}))
    with pytest.raises(DamagedFileError, match=r"order.npy.json was damaged, or changed after it was written. Export"):
        CurriculumSampler.from_export(file)
    facts.write_text("{}")
    with pytest.raises(DamagedFileError, match=r"order.npy.json is damaged .* Export the plan again"):
        CurriculumSampler.from_export(file)


@pytest.mark.parametrize("change", [{"steps": 3}, {"steps": 0}, {"steps": -1}, {"draws": 135}])
def test_rows_steps_and_draws_agree(plan, tmp_path, change):
    file = plan.export(tmp_path / "order.npy")
    write_sealed(facts_file(file), {**verify_order(file), **change})
    with pytest.raises(DamagedFileError, match=r"steps of equal size: other batches would be drawn"):
        ExportedOrder(file)


@pytest.mark.parametrize(("name", "end"), [("order.npy", False), ("order.npy", True), ("order.parquet", True)])
def test_an_export_that_fails_or_is_killed_leaves_an_order_and_its_facts(plan, other, tmp_path, name, end):
    """At any file operation: what stands there is the former order or the new one, and the same call continues."""
    file = tmp_path / "work" / name
    former = other.export(file).read_bytes()
    with failing_files() as done:
        plan.export(file)
    assert len(done) > 6
    new, facts, seen = file.read_bytes(), facts_file(file).read_bytes(), set()
    for at in (at for at, operation in enumerate(done) if end or operation != "unlink"):  # who lives tidies once
        other.export(file)
        interrupted(lambda: plan.export(file), at, end)
        content = file.read_bytes()
        seen.add(content == new)
        assert content in (former, new), done[at]
        assert json.dumps(verify_order(file)["plan"]) == json.dumps((plan if content == new else other).to_dict())
        plan.export(file)
        assert (file.read_bytes(), facts_file(file).read_bytes()) == (new, facts)
        assert sorted(path.name for path in file.parent.iterdir()) == [name, f"{name}.json"]
    assert seen == {True, False}


def test_exports_to_one_file_at_once_wait_for_each_other(plan, other, tmp_path, monkeypatch):
    file, processes = tmp_path / "order.npy", []
    with monkeypatch.context() as patched, lock_file(tmp_path / ".order.npy.lock"):
        patched.setattr("hf_curriculum.planning.export._PATIENCE", 0.2)
        with pytest.raises(RuntimeError, match=r"Another process writes .*order\.npy \(process \d+ on"):
            plan.export(file)
        assert not file.exists()
    for each in (plan, other):
        processes.append(os.fork())
        if processes[-1] == 0:
            status = 1
            try:
                for _ in range(10):
                    each.export(file)
                status = 0
            finally:
                os._exit(status)
    assert [os.waitpid(process, 0)[1] for process in processes] == [0, 0]
    assert ExportedOrder(file).rows(0, plan.num_samples).tolist() in (rows_of(plan), rows_of(other))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["order.npy", "order.npy.json"]


def test_links_that_others_plant_are_not_followed_and_those_of_the_user_are(plan, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    (tmp_path / "scratch").mkdir()
    (tmp_path / "outputs").symlink_to(tmp_path / "scratch")
    for name in (".order.npy.part", "order.npy.json"):
        (tmp_path / "scratch" / name).symlink_to(tmp_path / "thesis.txt")
    file = plan.export(tmp_path / "outputs" / "order.npy")
    (tmp_path / "mine.npy").symlink_to(file)
    plan.export(tmp_path / "mine.npy")
    assert (tmp_path / "mine.npy").is_symlink()
    assert list(CurriculumSampler.from_export(tmp_path / "mine.npy")) == rows_of(plan)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    (tmp_path / "scratch" / ".order.npy.lock").symlink_to(tmp_path / "thesis.txt")
    with pytest.raises(ValueError, match=r"\.order\.npy\.lock is a link to"):
        plan.export(file)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("name", ["order.npy", "data"])
def test_an_order_behind_a_link_is_read_by_either_name(plan, tmp_path, name):
    (tmp_path / "order.npy").symlink_to(tmp_path / "far" / name)
    plan.export(tmp_path / "order.npy")
    assert ExportedOrder(tmp_path / "order.npy").rows(0, 8).tolist() == plan.rows(0, 8).tolist()


def test_what_is_no_order_is_not_replaced(plan, tmp_path):
    (tmp_path / "order.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"order\.txt is there and is no exported order"):
        plan.export(tmp_path / "order.txt")
    assert (tmp_path / "order.txt").read_text() == "mine"


def test_a_write_that_fails_leaves_the_old_file(plan, tmp_path, monkeypatch):
    file = plan.export(tmp_path / "order.npy")
    before = file.read_bytes()

    def full(self, start=0):
        yield plan.rows(0, 8)
        raise OSError("disk full")

    monkeypatch.setattr(type(plan), "chunks", full)
    with pytest.raises(OSError, match="disk full"):
        plan.export(file)
    assert file.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 2
