"""Boundaries of scored data: each condition alone, the last row of a block, what stays, and what is said when."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict, Features, Value
from xxhash import xxh3_64_intdigest

from hf_curriculum import (
    CaptionLength,
    add_scores,
    add_scores_from,
    add_scores_sharded,
    concat_scored,
    load_scored,
    load_scores,
    read_provenance,
    save_scored,
    save_scores,
)
from hf_curriculum.files import write_sealed
from hf_curriculum.provenance import ScoreProvenance, attach_provenance, score_values
from hf_curriculum.scored_data import describe_scores, provenance_markdown, write_provenance
from hf_curriculum.verify import verify

pytestmark = pytest.mark.usefixtures("datasets_cache")

NAN = np.nan
MADE = ScoreProvenance("q", "Made", {"k": 1}, easy="low")


def scored(values, made=MADE, **columns):
    data = Dataset.from_dict({**columns, made.column: np.float32(values)})
    return attach_provenance(data, {made.column: made})


# ---- Scored data sets ----


def test_what_scores_json_says_in_full():
    splits = DatasetDict(train=scored([1, NAN, 2, np.inf]), test=Dataset.from_dict({"caption": ["x"]}))
    counts = {"rows": 4, "unscored": 1, "infinite": 1, "share_unscored": 0.25}
    marks = {"min": 1.0, "q25": 1.25, "median": 1.5, "q75": 1.75, "max": 2.0}
    train = {"rows": 4, "scores": {"q": {"provenance": MADE.to_dict(), **counts, **marks}}}
    assert describe_scores(splits) == {"format": 1, "splits": {"train": train, "test": {"rows": 1, "scores": {}}}}


def test_files_of_the_user_stay_beside_a_set_and_those_of_the_older_set_go(tmp_path):
    """Only the names that `save_to_disk` gives are the older set's, and ours only directly in the folder."""
    folder = tmp_path / "set"
    save_scored(scored([1, 2, 3]), folder, num_shards=3)
    theirs = (
        "notes.txt",
        "data-of-mine.txt",
        "table.arrow",
        "more/README.md",
        "more/scores.json",
        "more/data-1.arrow",
    )
    (folder / "more").mkdir()
    for name in theirs:
        (folder / name).write_text(name)
    save_scored(scored([5, 6]), folder)
    files = {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}
    ours = {"README.md", "scores.json", "state.json", "dataset_info.json", "data-00000-of-00001.arrow"}
    assert files == {*theirs, *ours}
    assert all((folder / name).read_text() == name for name in theirs)
    assert load_scored(folder)["q"][:] == [5, 6]


def test_splits_of_the_older_set_go_with_it(tmp_path):
    folder = tmp_path / "set"
    save_scored(DatasetDict(train=scored([1]), test=scored([2])), folder)
    (folder / "pictures").mkdir()
    (folder / "pictures" / "0.png").write_bytes(b"x")
    save_scored(DatasetDict(test=scored([3, 4])), folder)
    assert sorted(os.listdir(folder)) == ["README.md", "dataset_dict.json", "pictures", "scores.json", "test"]
    assert {name: part["q"][:] for name, part in load_scored(folder).items()} == {"test": [3, 4]}
    save_scored(scored([9]), folder)
    assert "dataset_dict.json" not in os.listdir(folder)
    assert load_scored(folder)["q"][:] == [9]
    assert (folder / "pictures" / "0.png").read_bytes() == b"x"


@pytest.mark.parametrize("name", ["notes", "../pictures", "link", "gone"])
def test_what_a_set_names_as_its_splits_and_is_none_stays(tmp_path, name):
    folder = tmp_path / "set"
    save_scored(DatasetDict(train=scored([1])), folder)
    (folder / "notes").write_text("mine")
    for place in (folder / "pictures", tmp_path / "pictures", tmp_path / "elsewhere"):
        scored([5]).save_to_disk(str(place))
    (folder / "link").symlink_to(tmp_path / "elsewhere")
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": ["train", name]}))
    save_scored(DatasetDict(train=scored([2])), folder)
    assert (folder / "notes").read_text() == "mine"
    assert {"link", "pictures", "train", "notes"} < {*os.listdir(folder)}
    for place in (folder / "pictures", folder / "link", tmp_path / "pictures"):
        assert Dataset.load_from_disk(str(place))["q"][:] == [5]
    assert load_scored(folder, allow_outside=True)["train"]["q"][:] == [2]


def test_arrow_files_of_a_folder_without_an_older_set_stay(tmp_path):
    (tmp_path / "data-mine.arrow").write_bytes(b"mine")
    save_scored(scored([1]), tmp_path)
    assert (tmp_path / "data-mine.arrow").read_bytes() == b"mine"


START, END = "<!-- scores: start -->", "<!-- scores: end -->"


@pytest.mark.parametrize(
    ("before", "head", "tail"),
    [
        (None, "# Scored data set\n\n", ""),
        ("# Mine\n\n\n", "# Mine\n\n", ""),
        (f"# Mine\n{START}\nold\n{END}\n\n\n## Licence\n", "# Mine\n", "## Licence\n"),
        (f"# Mine\n{START}\nold, without an end\n", "# Mine\n", ""),
    ],
)
def test_a_card_around_its_section(tmp_path, before, head, tail):
    if before is not None:
        (tmp_path / "README.md").write_text(before)
    data = scored([1, 2])
    expected = f"{head}{START}\n{provenance_markdown(data)}{END}\n{tail}"
    for _ in range(2):  # again, it is the same
        save_scored(data, tmp_path)
        assert (tmp_path / "README.md").read_text() == expected


def test_long_arguments_stand_whole_in_the_card_and_numbers_have_four_digits():
    made = replace(MADE, arguments={"prompt": "word " * 200 + "é 猫"}, versions={})
    text = provenance_markdown(scored([1.23456, 1.23456], made))
    assert "word " * 200 + "é 猫" in text
    assert "| q | all | 2 | 0.00% | 1.235 | 1.235 | 1.235 | 1.235 | 1.235 |" in text
    assert re.search(r"\| low \| – \| – \| – \| – \| – \| scorer \|", text)  # easy, then what is not known


def test_a_score_that_scores_json_does_not_name_is_refused(tmp_path):
    both = attach_provenance(scored([1, 2]).add_column("r", np.float32([3, 4])), {"r": replace(MADE, column="r")})
    both.save_to_disk(str(tmp_path / "set"))
    write_provenance(scored([1, 2]), tmp_path / "set")
    with pytest.raises(ValueError, match=r"split 'all' and .*disagree on where the scores came from"):
        load_scored(tmp_path / "set")


# ---- Data sets joined ----


@pytest.mark.parametrize(
    ("changes", "strict", "joined"),
    [
        ({"backend": "b"}, True, {"backend": "a, b"}),
        ({"backend": None}, True, {"backend": "a, none"}),
        ({"versions": {"x": "1", "y": "2"}}, True, {"versions": {"x": "1", "y": "none, 2"}}),
        ({"arguments": {"k": 1, "fitted": "other"}}, True, {"arguments": {"k": 1, "fitted": ["one", "other"]}}),
        ({"arguments": {"k": 2, "fitted": "one"}}, False, {"arguments": {"k": [1, 2], "fitted": "one"}}),
        ({"arguments": {"fitted": "one"}}, False, {"arguments": {"k": [1, None], "fitted": "one"}}),
        ({"revision": "s"}, False, {"revision": "r, s"}),
        ({"model": "n"}, False, {"model": "m, n"}),
        ({"scorer": "Other"}, False, {"scorer": "Made, Other"}),
        ({"per_image": "min"}, False, {"per_image": None}),
        ({"source": "joined"}, False, {"source": "joined"}),
        ({"trained_on": {"examples": 5}}, True, {"trained_on": {}}),
    ],
    ids=str,
)
def test_the_provenance_of_a_joined_column_names_what_differs_and_keeps_the_rest(changes, strict, joined, caplog):
    one = ScoreProvenance(
        "q",
        "Made",
        {"k": 1, "fitted": "one"},
        *("m", "r", {"x": "1"}, "a"),
        per_image="max",
        trained_on={"examples": 9},
    )
    parts = [scored([1], one), scored([2], replace(one, **changes)), scored([3], one)]
    if not strict:
        with pytest.raises(ValueError, match=rf"another scorer in one of them \({next(iter(changes))}: "):
            concat_scored(parts)
    found = concat_scored(parts, same_scorer=strict)
    assert found["q"][:] == [1, 2, 3]
    assert read_provenance(found) == {"q": replace(one, **joined)}
    assert "The joined column names all of it." in caplog.text


def test_what_all_models_were_trained_on_is_kept():
    one = replace(MADE, trained_on={"examples": 9}, backend="a")
    found = concat_scored([scored([1], one), scored([2], replace(one, backend="b"))])
    assert read_provenance(found)["q"].trained_on == {"examples": 9}


# ---- What is verified ----


@pytest.fixture
def damaged(monkeypatch):
    """Whatever is compared is damaged, without the modules that compare it."""

    def refuse(path):
        raise ValueError("its seal is gone")

    monkeypatch.setattr("hf_curriculum.verify._comparison", lambda name: refuse)


@pytest.mark.parametrize(
    ("name", "content", "ours"),
    [
        ("chosen.json", '{"plan": 1, "chosen": 2}', True),
        ("chosen.json", '{"plan": 1}', False),
        ("chosen.json", '{"plan": 1, "chosen": 2, "more": 3}', True),
        ("result.json", '{"arm": "a", "seed": 0, "status": "x"}', True),
        ("result.json", '{"arm": "a", "seed": 0}', False),
        ("results.json", '["files"]', False),
        ("results.json", '{"other": 1', False),
        ("results.json", '{"files": {"a": ', True),
        ("results.json", "", True),
        ("study.json", "\0\0\0\0 \n", True),
        ("amendments.json", "{}", True),
        ("amendments.json", '{"amend', True),
        ("a-seed3/result.json", '{"accuracy": 1}', True),
        ("a-seed3/study.json", '{"accuracy": 1}', False),
        ("a-seedling/result.json", '{"accuracy": 1}', False),
        ("other.json", '{"files": {"a": ', False),
    ],
)
def test_whose_a_record_without_its_seal_is(tmp_path, damaged, name, content, ours):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(content)
    if ours:
        (found,) = verify(tmp_path)
        assert found.path == tmp_path / name
        assert found.kind == ("result of a study" if name.endswith("result.json") else "record")
        assert found.error == "its seal is gone"
    else:
        with pytest.raises(ValueError, match="holds nothing that this package wrote"):
            verify(tmp_path)


def test_a_checkpoint_without_its_record_is_known_by_the_run_around_it(tmp_path, damaged):
    for name in ("checkpoint-3", "checkpoint-3-old", "checkpoint-x"):
        (tmp_path / "run" / name).mkdir(parents=True)
        (tmp_path / "run" / name / "model.bin").write_bytes(b"x")
    with pytest.raises(ValueError, match="holds nothing"):  # another trainer's
        verify(tmp_path)
    write_sealed(tmp_path / "run" / "curriculum.json", {"version": 0})
    found = [(each.kind, each.path.name) for each in verify(tmp_path) if each.error]
    assert found == [("checkpoint", "run"), ("checkpoint", "checkpoint-3")]


def test_a_folder_that_cannot_be_listed_is_named_and_the_others_are_compared(tmp_path, monkeypatch):
    write_sealed(tmp_path / "a" / "any.json", {"a": 1})
    (tmp_path / "b").mkdir()
    listed = os.scandir

    def refusing(place):
        if os.path.basename(place) == "b":
            raise PermissionError(13, "Permission denied", str(place))
        return listed(place)

    monkeypatch.setattr(os, "scandir", refusing)
    found = {each.path: (each.kind, each.error) for each in verify(tmp_path)}
    assert found[tmp_path / "a" / "any.json"] == ("record", None)
    kind, error = found[tmp_path / "b"]
    assert (kind, "Permission denied" in error) == ("folder", True)
    assert len(found) == 2


def test_an_error_without_words_is_told_by_its_name(tmp_path, monkeypatch):
    def broken(path):
        raise NotImplementedError

    save_scored(scored([1]), tmp_path / "set")
    monkeypatch.setattr("hf_curriculum.scored_data.verify_scored", broken)
    assert [each.error for each in verify(tmp_path)] == ["NotImplementedError"]


def test_a_part_whose_manifest_is_lost_is_told_so(tmp_path):
    data = Dataset.from_dict({"caption": ["a dog", "a cat"]})
    add_scores_sharded(data, CaptionLength(), tmp_path / "parts")
    (part,) = (tmp_path / "parts").rglob("*.parquet")
    assert [each.kind for each in verify(tmp_path)] == ["parts"]
    with pytest.raises(ValueError, match="holds nothing"):  # it is compared with the others
        verify(part)
    (part.parent / "run.json").unlink()
    (found,) = verify(tmp_path)
    assert (found.kind, found.path) == ("side file of scores", part)
    assert f"{part} holds a part of scores, and run.json, which says of what, is not there." in found.error


def test_a_table_of_another_program_is_passed_over(tmp_path):
    Dataset.from_dict({"a": [1]}).to_parquet(str(tmp_path / "theirs.parquet"))
    save_scores(scored([1], id=["x"]), tmp_path / "ours.parquet", key="id")
    assert [each.path.name for each in verify(tmp_path)] == ["ours.parquet"]


# ---- Side files ----


def test_a_side_file_of_more_rows_than_are_written_or_read_at_once(tmp_path):
    count = 40_001
    texts = [f"{row}" for row in range(count)]
    data = Dataset.from_dict({"id": range(count), "caption": texts})
    values = np.random.default_rng(0).permutation(count).astype(np.float32)
    scores = add_scores(data, CaptionLength())
    scores = attach_provenance(scores.add_column("q", values), {"q": MADE})
    file = save_scores(scores, tmp_path / "s.parquet", key="id")
    table = pq.read_table(file)
    assert table["id"].to_pylist() == list(range(count))
    np.testing.assert_array_equal(table["q"], values)
    sums = [xxh3_64_intdigest(text.encode()) % 2**32 for text in texts]
    assert table["checked_caption"].to_pylist() == sums
    order = np.random.default_rng(1).permutation(count)
    np.testing.assert_array_equal(score_values(load_scores(data.select(order), file), "q"), values[order])
    last = data.select([count - 1]).map(lambda row: {"caption": "other"})
    with pytest.raises(ValueError, match=r"1 of 1 rows .* another `caption` .*such as 40000"):
        load_scores(last, file)


def test_rows_of_a_key_share_their_scores_where_both_are_missing_only(tmp_path):
    rows = {"id": ["a", "a", "b", "b"]}
    file = save_scores(scored([NAN, NAN, 2, 2], **rows), tmp_path / "s.parquet", key="id")
    assert pq.read_table(file)["id"].to_pylist() == ["a", "b"]
    for values in ([NAN, 1, 2, 2], [1, NAN, 2, 2], [1, 3, 2, 2]):
        with pytest.raises(
            ValueError, match=r"^1 rows share their key \['id'\] with a row of another `q`, such as 'a'"
        ):
            save_scores(scored(values, **rows), tmp_path / "s.parquet", key="id")


def test_texts_are_compared_where_all_rows_of_a_key_have_the_same(tmp_path):
    for second, names in (("a b", ["id", "caption_length", "checked_caption"]), ("c d", ["id", "caption_length"])):
        data = Dataset.from_dict({"id": ["1", "1"], "caption": ["a b", second]})
        file = save_scores(add_scores(data, CaptionLength()), tmp_path / "s.parquet", key="id")
        assert pq.read_schema(file).names == names
        assert load_scores(data, file)["caption_length"][:] == [2, 2]


@pytest.mark.parametrize("content", [b"PAR", b"years of work", b"PAR1", b"PAR1 and so on PAR1"])
def test_a_file_that_is_no_side_file_cut_short_is_not_replaced(tmp_path, content):
    file = tmp_path / "s.parquet"
    file.write_bytes(content)
    with pytest.raises(FileExistsError, match="is no side file of scores, so it is not replaced"):
        save_scores(scored([1], id=["x"]), file, key="id")
    assert file.read_bytes() == content
    file.unlink()
    file.mkdir()
    with pytest.raises(FileExistsError, match="is no side file of scores"):
        save_scores(scored([1], id=["x"]), file, key="id")
    assert list(file.iterdir()) == []


@pytest.mark.parametrize("part", [b"hf_curriculum_seal", b"hf_curriculum_xxh3:"])
def test_a_side_file_whose_seal_is_damaged_is_still_ours(tmp_path, part):
    file = save_scores(scored([1], id=["x"]), tmp_path / "s.parquet", key="id")
    content = file.read_bytes()
    assert part in content
    file.write_bytes(content.replace(part, part[:-1] + b"?"))
    assert [each.kind for each in verify(file) if each.error] == ["side file of scores"]
    save_scores(scored([1], id=["x"]), file, key="id")
    assert file.read_bytes() == content


def test_of_splits_the_texts_are_compared_that_all_have(tmp_path):
    splits = DatasetDict(
        train=Dataset.from_dict({"id": ["1"], "caption": ["a b"]}),
        test=Dataset.from_dict({"id": ["2"], "caption": ["c"]}),
    )
    both = add_scores(splits, CaptionLength())
    both["train"] = attach_provenance(both["train"].add_column("q", np.float32([1])), {"q": MADE})
    file = save_scores(both, tmp_path / "s.parquet", key="id", columns=["caption_length"])
    assert pq.read_schema(file).names == ["id", "caption_length", "checked_caption"]
    assert pq.read_table(file)["id"].to_pylist() == ["1", "2"]
    more = both["test"].remove_columns("caption").add_column("q", np.float32([2]))
    both["test"] = attach_provenance(more, {"q": MADE})
    file = save_scores(both, tmp_path / "s.parquet", key="id")
    assert pq.read_schema(file).names == ["id", "caption_length", "q"]
    assert load_scores(splits, file)["test"]["caption_length"][:] == [1]


# ---- Scores made elsewhere ----


@pytest.mark.parametrize("kind", ["string", "large_string"])
@pytest.mark.parametrize("ending", ["csv", "ndjson"])
def test_a_key_of_digits_or_dates_stays_text(tmp_path, kind, ending):
    keys = ["007", "7"] if ending == "csv" else ["2020-01-31", "2020-02-01"]
    data = Dataset.from_dict({"id": keys}, Features({"id": Value(kind)}))
    file = tmp_path / f"s.{ending}"
    rows = [{"id": key, "q": place} for place, key in enumerate(keys)]
    lines = [f"{row['id']},{row['q']}" for row in rows] if ending == "csv" else list(map(json.dumps, rows))
    file.write_text("\n".join(["id,q", *lines] if ending == "csv" else lines) + "\n")
    assert add_scores_from(data, file, on="id", easy="low")["q"][:] == [0, 1]


@pytest.mark.parametrize(
    ("name", "text", "column"),
    [
        ("s.csv", "id,q;r\nx,1\n", "q;r"),
        ("s.tsv", "id\tq;r\nx\t1\n", "q;r"),
        ("s.csv", "id;q\nx;1\n", "q"),
        ("s.CSV", "id,q\nx,1\n", "q"),
    ],
)
def test_what_separates_the_names_of_a_table(tmp_path, name, text, column):
    (tmp_path / name).write_text(text)
    found = add_scores_from(Dataset.from_dict({"id": ["x"]}), tmp_path / name, on="id", easy="low")
    assert found.column_names == ["id", column]
    assert found[column][:] == [1]


def test_what_is_not_joined_is_told_only_where_the_columns_were_not_chosen(caplog):
    data = Dataset.from_dict({"id": ["a", "b", "c"]})
    source = Dataset.from_dict(
        {
            "id": ["a", "b", "c"],
            "q": pa.array([1, None, 3]),
            "r": [None, "abc", "1"],
            "words": ["x", "y", "z"],
            "lists": [[1], [2], [3]],
            "checked_caption": pa.array([1, 2, 3], pa.uint32()),
            "seen": [True, False, True],
        }
    )
    found = add_scores_from(data, source, on="id", easy="low")
    np.testing.assert_array_equal(score_values(found, "q"), np.float32([1, NAN, 3]))
    (told,) = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert told.endswith(
        "cells without a number in `q` (their rows get NaN): 1; cells of `r`, a column of texts: 1 (abc, for "
        "example); cells of `seen`, a column of bool: 3."
    )
    caplog.clear()
    add_scores_from(data, source, on="id", easy="low", columns="q")
    (told,) = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert told.endswith(": cells without a number in `q` (their rows get NaN): 1.")


def test_large_integers_beside_an_infinite_one_are_said(caplog):
    data = Dataset.from_dict({"id": ["a", "b", "c"]})
    source = Dataset.from_dict({"id": ["a", "b", "c"], "q": [16777216.0, 16777217.0, np.inf]})
    add_scores_from(data, source, on="id", easy="low")
    assert "`q` has 2 different integers, and only 1 as float32" in caplog.text


def test_keys_of_the_first_split_with_rows_are_shown_where_none_matches():
    empty = Dataset.from_dict({"id": []}, Features({"id": Value("string")}))
    splits = DatasetDict(train=empty, test=Dataset.from_dict({"id": ["x", "y"]}))
    source = Dataset.from_dict({"id": list("abcd"), "q": [1.0, 2.0, 3.0, 4.0]})
    with pytest.raises(ValueError, match=r"has keys such as 'x', 'y', the source such as 'a', 'b', 'c', …\. Check"):
        add_scores_from(splits, source, on="id", easy="low")
