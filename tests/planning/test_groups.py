"""Groups of rows, beside a naive reading of the same column."""

from __future__ import annotations

import numpy as np
import pytest
from datasets import Dataset, Features, LargeList, List, Value
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_curriculum.planning.groups import Groups, read_columns, read_groups


def naive(values) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = {}
    for row, names in enumerate(values):
        for name in sorted(
            {str(name) for name in (names if isinstance(names, list) else [names]) if name is not None}
        ):
            rows.setdefault(name, []).append(row)
    return rows


def as_dict(groups: Groups) -> dict[str, list[int]]:
    return {name: groups.rows(number).tolist() for number, name in enumerate(groups.names)}


NAMES = st.lists(st.one_of(st.none(), st.lists(st.sampled_from(["b", "a", "ä", "", "a b"]), max_size=4)), max_size=20)


@settings(deadline=None, max_examples=50)
@given(values=NAMES.filter(lambda rows: any(rows)))
def test_lists_of_names(values):
    groups = read_groups(Dataset.from_dict({"nodes": values}), "nodes")
    assert as_dict(groups) == naive([row or [] for row in values])
    assert list(groups.names) == sorted(groups.names)
    assert groups.members.dtype == np.int32
    assert groups.starts.dtype == np.int64
    assert groups.sizes.tolist() == [len(rows) for rows in as_dict(groups).values()]
    assert len(groups) == len(groups.names)


@pytest.mark.parametrize("values", [["b", "a", None, "b"], [2, 10, None, 2], [[3, 3], [], [10], None, [3]]])
def test_names_and_numbers(values):
    assert as_dict(read_groups(Dataset.from_dict({"g": values}), "g")) == naive(
        [[] if v is None else v for v in values]
    )


@pytest.mark.parametrize("make", [List, LargeList])
def test_both_kinds_of_list(make):
    values = [["a"], [], ["b", "a"], None]
    data = Dataset.from_dict({"g": values}, features=Features({"g": make(Value("large_string"))}))
    assert as_dict(read_groups(data, "g")) == {"a": [0, 2], "b": [2]}


def test_nulls_within_a_list_name_nothing():
    assert as_dict(read_groups(Dataset.from_dict({"g": [["a", None], [None]]}), "g")) == {"a": [0]}


def test_a_data_set_that_was_shuffled_filtered_and_formatted():
    data = Dataset.from_dict({"g": [["a"], ["b"], ["a", "b"], [], ["c"]], "other": range(5)})
    view = data.shuffle(seed=1).filter(lambda row: row["other"] != 4).with_format("numpy", columns=["other"])
    expected = naive([data[int(row)]["g"] for row in view["other"][:]])
    assert as_dict(read_groups(view, "g")) == expected
    sliced = data.select(range(2, 5))
    assert as_dict(read_groups(sliced, "g")) == {"a": [0], "b": [0], "c": [2]}


@settings(deadline=None, max_examples=40)
@given(values=st.lists(st.lists(st.sampled_from("abc"), max_size=3), min_size=1, max_size=15), data=st.data())
def test_ranks_in_place_of_rows(values, data):
    groups = read_groups(Dataset.from_dict({"g": [["z"], *values]}), "g")
    size = len(values) + 1
    order = data.draw(st.permutations(range(size)))[: data.draw(st.integers(0, size))]
    ranked = groups.in_order(np.array(order, dtype=np.int32), size)
    place = {row: rank for rank, row in enumerate(order)}
    for name, rows in as_dict(groups).items():
        assert as_dict(ranked)[name] == sorted(place[row] for row in rows if row in place)
    assert ranked.names == groups.names


def test_in_their_own_order_nothing_is_copied():
    groups = read_groups(Dataset.from_dict({"g": ["a", "b"]}), "g")
    assert groups.in_order(np.arange(2, dtype=np.int32), 2) is groups


def test_some_groups_alone():
    groups = read_groups(Dataset.from_dict({"g": [["a", "c"], ["b"], ["c"]]}), "g")
    kept = groups.keep(np.array([2, 0]))
    assert as_dict(kept) == {"c": [0, 2], "a": [0]}
    assert kept.members.dtype == np.int32
    assert as_dict(groups.keep(np.array([], dtype=int))) == {}


@pytest.mark.parametrize(("most", "kind"), [(255, "uint8"), (256, "uint16"), (65_535, "uint16"), (65_536, "uint32")])
def test_sums_over_the_groups_of_a_row_have_the_smallest_type_that_holds_them(most, kind):
    groups = read_groups(Dataset.from_dict({"g": [["a"], ["a", "b", "c"], [], ["c"], None]}), "g")
    for each in (np.array([1, 2, most - 3]), np.array([most - 200, 100, 100]), np.array([1, 2, most - 3])):
        assert groups.add_up(each).tolist() == [each[0], most, 0, each[2]]
        assert groups.add_up(each).dtype == kind
    assert groups.memberships.tolist() == [1, 3, 0, 1]


def test_columns_as_curricula_read_them():
    data = Dataset.from_dict({"hard": [1, None, 0], "nodes": ["a", None, "a"], "x": [0.5, 1.0, 2.0]})
    read = read_columns(data, {"hard": "numbers", "nodes": "groups"})
    assert set(read) == {"hard", "nodes"}
    np.testing.assert_array_equal(read["hard"], np.array([1, np.nan, 0], np.float32))
    assert as_dict(read["nodes"]) == {"a": [0, 2]}
    assert read_columns([1, 2, 3], {}) == {}


def test_whether_something_is_so_counts_as_a_number():
    read = read_columns(Dataset.from_dict({"hard": [True, None, False]}), {"hard": "numbers"})
    np.testing.assert_array_equal(read["hard"], np.array([1, np.nan, 0], np.float32))


def test_what_cannot_be_read():
    data = Dataset.from_dict({"x": [0.5, 1.0], "none": [None, None], "empty": [[], []], "deep": [[["a"]], [["b"]]]})
    with pytest.raises(ValueError, match="`nodes` is not in the data, which has the columns"):
        read_groups(data, "nodes")
    with pytest.raises(ValueError, match="`x` holds double; groups are names or whole numbers, or lists of them"):
        read_groups(data, "x")
    with pytest.raises(ValueError, match=r"`deep` holds list<.*>; groups are names or whole numbers"):
        read_groups(data, "deep")
    with pytest.raises(ValueError, match="`x` holds double"):
        read_columns(data, {"x": "groups"})
    with pytest.raises(
        ValueError, match=r"The training data is a list without named columns, and the curriculum needs `g`"
    ):
        read_columns([1, 2], {"g": "groups"})
    strings = data.select_columns(["none"]).cast(Features({"none": Value("string")}))
    with pytest.raises(ValueError, match="`none` names no group in any of the 2 rows"):
        read_groups(strings, "none")


def test_without_names_groups_stand_by_their_first_rows():
    values = ["b", "a", None, "b", "c", "a"]
    groups = read_groups(Dataset.from_dict({"g": values}), "g", named=False)
    assert groups.names is None
    assert [groups.rows(number).tolist() for number in range(len(groups))] == [[0, 3], [1, 5], [4]]
    kept = groups.keep(np.array([2, 0]))
    assert kept.names is None
    assert [kept.rows(number).tolist() for number in range(2)] == [[4], [0, 3]]
    assert read_columns(Dataset.from_dict({"g": values}), {"g": "ids"})["g"].names is None


@settings(deadline=None, max_examples=50)
@given(values=NAMES.filter(lambda rows: any(rows)))
def test_without_names_the_same_rows_are_together(values):
    data = Dataset.from_dict({"nodes": values})
    named, bare = read_groups(data, "nodes"), read_groups(data, "nodes", named=False)
    together = [[tuple(groups.rows(number)) for number in range(len(groups))] for groups in (named, bare)]
    assert sorted(together[0]) == sorted(together[1])
    assert [rows[0] for rows in together[1]] == sorted(rows[0] for rows in together[1])
