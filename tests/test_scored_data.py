from __future__ import annotations

import json

import numpy as np
import pytest
from datasets import Dataset, DatasetDict

from hf_curriculum import Phases, concat_scored, load_scored, make_plan, read_provenance, save_scored
from hf_curriculum.provenance import ScoreProvenance, attach_provenance
from hf_curriculum.scored_data import FILE_NAME, load_provenance, provenance_markdown, write_provenance

MADE = ScoreProvenance("noun_count", "NounCount", {"tagger": "pattern"}, easy="low")


def scored(values, made=MADE):
    data = Dataset.from_dict({"caption": ["x"] * len(values), made.column: np.float32(values)})
    return attach_provenance(data, {made.column: made})


@pytest.fixture
def splits():
    return DatasetDict(train=scored([0, 1, 2, 3, np.nan]), test=scored([7, 9]))


def test_scores_json_has_counts_and_quantiles_per_split(splits, tmp_path):
    file = write_provenance(splits, tmp_path)
    content = json.loads(file.read_text())
    train = content["splits"]["train"]
    assert file == tmp_path / FILE_NAME
    assert train["rows"] == 5
    assert train["scores"]["noun_count"]["share_unscored"] == 0.2
    assert train["scores"]["noun_count"]["median"] == 1.5
    assert content["splits"]["test"]["scores"]["noun_count"]["max"] == 9
    assert load_provenance(tmp_path) == load_provenance(file, "test") == {"noun_count": MADE}


def test_saved_and_loaded_data_and_provenance_are_the_same(splits, tmp_path):
    save_scored(splits, tmp_path / "data")
    loaded = load_scored(tmp_path / "data")
    assert read_provenance(loaded) == {"noun_count": MADE}
    np.testing.assert_array_equal(loaded["train"]["noun_count"][:], splits["train"]["noun_count"][:])
    assert "## Scores" in (tmp_path / "data" / "README.md").read_text()
    save_scored(splits["test"], tmp_path / "one")
    assert load_scored(tmp_path / "one")["noun_count"][:] == [7.0, 9.0]


def test_saving_again_replaces_the_section_and_keeps_the_rest_of_the_card(splits, tmp_path):
    save_scored(splits, tmp_path)
    card = tmp_path / "README.md"
    card.write_text("# Mine\n\n" + card.read_text() + "\n## Licence\n\nCC0\n")
    save_scored(DatasetDict(train=scored([5, 5])), tmp_path)
    text = card.read_text()
    assert text.startswith("# Mine\n")
    assert text.endswith("## Licence\n\nCC0\n")
    assert text.count("## Scores") == 1
    assert "| train | 2 |" in text


def test_lost_provenance_is_read_back_from_the_file(splits, tmp_path):
    save_scored(splits["test"], tmp_path)
    bare = Dataset.from_dict({"caption": ["x", "x"], "noun_count": np.float32([7, 9])})
    assert read_provenance(bare) == {}
    bare.save_to_disk(str(tmp_path / "bare"))
    content = json.loads((tmp_path / FILE_NAME).read_text())
    (tmp_path / "bare" / FILE_NAME).write_text(json.dumps(content))
    assert read_provenance(load_scored(tmp_path / "bare")) == {"noun_count": MADE}


def test_a_file_that_does_not_belong_to_the_data_is_refused(splits, tmp_path):
    save_scored(splits, tmp_path / "a")
    write_provenance(DatasetDict(train=scored([1]), test=scored([1, 2])), tmp_path / "a")
    with pytest.raises(ValueError, match="it is stale"):
        load_scored(tmp_path / "a")
    other = ScoreProvenance("noun_count", "by hand")
    write_provenance(DatasetDict(train=scored([1] * 5, other), test=scored([1, 2])), tmp_path / "a")
    with pytest.raises(ValueError, match="disagree on where the scores came from"):
        load_scored(tmp_path / "a")


def test_missing_and_other_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"does not exist. `save_scored` and `write_provenance` write it"):
        load_provenance(tmp_path)
    (tmp_path / FILE_NAME).write_text("[]")
    with pytest.raises(ValueError, match="not a score file of format 1"):
        load_provenance(tmp_path)


def test_splits_scored_differently_are_kept_apart(tmp_path):
    other = ScoreProvenance("noun_count", "by hand")
    write_provenance(DatasetDict(train=scored([1]), test=scored([1], other)), tmp_path)
    assert load_provenance(tmp_path, "test") == {"noun_count": other}
    with pytest.raises(ValueError, match="scored differently in the splits"):
        load_provenance(tmp_path)


def test_nothing_to_write_is_an_error(tmp_path):
    bare = Dataset.from_dict({"caption": ["x"]})
    with pytest.raises(ValueError, match="No column of this data set carries the provenance"):
        write_provenance(bare, tmp_path)
    with pytest.raises(ValueError, match="No column of this data set carries the provenance"):
        save_scored(bare, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with pytest.raises(TypeError, match="was given an IterableDataset as `dataset`"):
        write_provenance(scored([1]).to_iterable_dataset(), tmp_path)


def test_an_argument_cannot_break_the_card(tmp_path):
    evil = "a|b\n---\n<script>x</script> [l](http://x) `c` *d* ![i](j) <!-- scores: end -->\u202e\u2028é"
    made = ScoreProvenance("noun_count", evil, {evil: evil}, model=evil, revision=evil, backend=evil)
    data = scored([1, 2], made)
    text = provenance_markdown(data)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 3 + 3  # two tables, each of a head, a rule and one row
    for line in rows[:3]:
        assert line.replace("\\|", "").count("|") == 11  # 10 columns
    assert "<" not in text
    assert "\u202e" not in text
    assert "é" in text
    assert not any(mark in text.replace("\\" + mark, "") for mark in "[*!")
    save_scored(data, tmp_path)
    save_scored(data, tmp_path / "again")
    assert (tmp_path / "README.md").read_text().count("<!-- scores: end -->") == 1
    assert read_provenance(load_scored(tmp_path)) == {"noun_count": made}


def test_the_card_names_quantiles_and_share_by_split(splits):
    text = provenance_markdown(splits)
    assert "| noun\\_count | train | 5 | 20.00% | 0 | 0.75 | 1.5 | 2.25 | 3 |" in text
    assert "| noun\\_count | test | 2 | 0.00% | 7 | 7.5 | 8 | 8.5 | 9 |" in text
    assert text.count("NounCount") == 1  # splits that agree share a row
    all_nan = provenance_markdown(scored([np.nan]))
    assert "| 1 | 100.00% | – | – | – | – | – |" in all_nan


def test_splits_are_not_saved_where_a_data_set_without_would_hide_them(splits, tmp_path):
    save_scored(splits["train"], tmp_path / "scored")
    with pytest.raises(ValueError, match=r"without splits, which would hide the splits \['train'.*\]\. Delete it"):
        save_scored(splits, tmp_path / "scored")
    assert load_scored(tmp_path / "scored").num_rows == splits["train"].num_rows


def versions(number, **changes):
    made = {"scorer": "WordRarity", "versions": {"hf-curriculum": number}, "arguments": {"fitted": f"f{number}"}}
    return ScoreProvenance("word_rarity", **(made | changes))


def test_sets_scored_by_other_versions_are_joined_and_what_differs_is_said(caplog):
    parts = [scored([1, 2], versions("0.1.0")), scored([3, np.nan], versions("0.2.0")), scored([5], versions("0.1.0"))]
    joined = concat_scored(parts)
    np.testing.assert_array_equal(joined["word_rarity"][:], [1, 2, 3, np.nan, 5])
    made = read_provenance(joined)["word_rarity"]
    assert (made.scorer, made.easy) == ("WordRarity", "low")
    assert made.versions == {"hf-curriculum": "0.1.0, 0.2.0"}
    assert made.arguments == {"fitted": ["f0.1.0", "f0.2.0"]}
    assert "`word_rarity` was not made in one way" in caplog.text
    assert "versions: {'hf-curriculum': '0.1.0'} | {'hf-curriculum': '0.2.0'}" in caplog.text
    assert make_plan(Phases(2), joined, score_column="word_rarity", global_batch_size=1).step_rows(0).tolist() != [3]


def test_sets_scored_in_one_way_are_joined_without_a_word(caplog):
    joined = concat_scored([scored([1, 2]), scored([3]).shuffle(seed=0)])
    assert read_provenance(joined) == {"noun_count": MADE}
    assert caplog.text == ""
    joined = concat_scored([scored([1, 2]), Dataset.from_dict({"caption": ["x"]})])
    assert joined["noun_count"][:] == [1, 2, None]
    joined = concat_scored([scored([1, 2]), scored([3], versions("1"))])
    assert sorted(read_provenance(joined)) == ["noun_count", "word_rarity"]


@pytest.mark.parametrize(
    "changes",
    [
        {"scorer": "Mine"},
        {"model": "a/model"},
        {"arguments": {"smooth": 2}},
        {"per_image": "max"},
        {"source": "joined"},
    ],
    ids=str,
)
def test_scores_of_other_scorers_are_joined_only_when_asked(changes, caplog):
    parts = [scored([1, 2], versions("1", arguments={"smooth": 1})), scored([3], versions("1", **changes))]
    with pytest.raises(ValueError, match=f"by another scorer .*{next(iter(changes))}: .*same_scorer=False"):
        concat_scored(parts)
    joined = concat_scored(parts, same_scorer=False)
    assert joined["word_rarity"][:] == [1, 2, 3]
    assert next(iter(changes)) in caplog.text
    made = read_provenance(joined)["word_rarity"]
    if "model" in changes:
        assert made.model == "none, a/model"
    if "scorer" in changes:
        assert made.scorer == "WordRarity, Mine"


def test_what_is_not_joined():
    with pytest.raises(ValueError, match="low is easy in one of them and high in another"):
        concat_scored([scored([1], versions("1")), scored([2], versions("1", easy="high"))], same_scorer=False)
    bare = Dataset.from_dict({"caption": ["x"], "noun_count": np.float32([1])})
    with pytest.raises(ValueError, match="`noun_count` of data set 1 has no record of where it came from"):
        concat_scored([scored([1]), bare])
    with pytest.raises(TypeError, match="`concat_scored` was given a list that holds a DatasetDict"):
        concat_scored([DatasetDict(train=scored([1]))])
    for first, second, told in (
        ([7], ["007"], r"Value\('int64'\), and of data set 2 Value\('string'\)"),
        ([1], [1.5], r"Value\('int64'\), and of data set 2 Value\('float64'\)"),
    ):
        parts = [scored([1]).add_column("id", first), scored([1]), scored([1]).add_column("id", second)]
        with pytest.raises(ValueError, match=f"`id` of data set 0 is {told}.*cast_column\\('id'"):
            concat_scored(parts)
    unknown = scored([1]).add_column("id", [None])
    assert concat_scored([unknown, scored([1]).add_column("id", ["a"])])["id"][:] == [None, "a"]
    with pytest.raises(ValueError, match="no data set"):
        concat_scored([])
    changed = scored([1, 2]).map(lambda row: {"noun_count": -row["noun_count"]})
    with pytest.raises(ValueError, match="has changed since NounCount wrote it"):
        concat_scored([changed, scored([1], ScoreProvenance("noun_count", "NounCount", {"tagger": "nltk"}))])
