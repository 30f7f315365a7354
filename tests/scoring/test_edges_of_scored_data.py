"""Boundaries of scored data: each condition alone, the last row of a block, what stays, and what is said when."""

from __future__ import annotations

import json
import logging
import os
import re
from dataclasses import replace

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from crawl import crawl, pairs, write_parquet, write_tar
from datasets import Dataset, DatasetDict, Features, Value
from xxhash import xxh3_64_intdigest

from hf_curriculum import (
    CaptionLength,
    Scorer,
    WordRarity,
    add_scores,
    add_scores_from,
    add_scores_sharded,
    concat_scored,
    load_scored,
    load_scores,
    read_provenance,
    remote,
    save_scored,
    save_scores,
    score_shards,
)
from hf_curriculum.claims import Claim
from hf_curriculum.data.readers.shards import SourceShard
from hf_curriculum.files import DamagedFileError, write_sealed
from hf_curriculum.provenance import ScoreProvenance, attach_provenance, score_values
from hf_curriculum.scored_data import describe_scores, provenance_markdown, write_provenance
from hf_curriculum.scored_shards import (
    about_shard,
    checksums,
    done_shards,
    finished_shards,
    load_scored_shards,
    read_manifest,
    read_shard_scores,
    score_file,
    stem_of,
    verify_scored_shards,
)
from hf_curriculum.scoring import shards as scoring
from hf_curriculum.scoring.shards import ShardRun, ShardScores, find_shards, shard_status
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
    made = replace(MADE, arguments={"prompt": "word " * 200}, versions={})
    text = provenance_markdown(scored([1.23456, 1.23456], made))
    assert "word " * 199 in text
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


# ---- Scores of shards, read ----


def test_checksums_are_the_low_32_bits_of_each_text():
    texts = ["", "a dog", "é", None, "half \ud800", "x" * 5000]
    expected = [
        None if text is None else xxh3_64_intdigest(text.encode("utf-8", "surrogatepass")) % 2**32 for text in texts
    ]
    found = checksums(texts)
    assert found.type == pa.uint32()
    assert found.to_pylist() == expected


@pytest.mark.parametrize(
    ("shard", "stem"), [("a/0.tar", "a/0"), ("0.parquet", "0"), ("00000", "00000"), ("a.b/c.d", "a.b/c.d")]
)
def test_the_stem_of_a_shard(tmp_path, shard, stem):
    assert stem_of(shard) == stem
    assert score_file(tmp_path, shard) == tmp_path / "scores" / f"{stem}.parquet"


def test_which_shards_are_done(tmp_path):
    assert done_shards(tmp_path) == set()
    for name in ("0.parquet", "a/1.parquet", "a/b/2.parquet", ".half.parquet", "a/.half.parquet", "3.json", "parquet"):
        (tmp_path / "scores" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "scores" / name).write_bytes(b"")
    assert done_shards(tmp_path) == {"0", "a/1", "a/b/2"}


@pytest.fixture
def out(tmp_path):
    """Three shards of five pairs, scored."""
    crawl(tmp_path / "crawl", 3, 5)
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out", keep=["uid"])
    return tmp_path / "out"


def test_some_columns_of_a_shard(out, caplog):
    assert read_shard_scores(out, "00001.tar").column_names == ["key", "uid", "checked_caption", "caption_length"]
    assert read_shard_scores(out, "00001.tar", ["uid"]).column_names == ["uid"]
    assert read_shard_scores(out, "00001.tar", []).column_names == []
    assert load_scored_shards(out).column_names == ["shard", "key", "uid", "caption_length"]
    assert load_scored_shards(out, checked=True).column_names[3] == "checked_caption"
    assert finished_shards(out) == ["00000.tar", "00001.tar", "00002.tar"]
    assert caplog.text == ""


def test_what_is_said_of_a_shard(out):
    about = about_shard(out, "00001.tar")
    file = out.parent / "crawl/00001.tar"
    assert (about["shard"], about["bytes"], about["rows"]) == ("00001.tar", file.stat().st_size, 5)
    assert (about["doubled"], about["left_out"]) == (0, [])
    assert about["digest"] != about_shard(out, "00002.tar")["digest"]


def test_scores_that_are_still_missing_are_counted(out):
    for number in (1, 2):
        score_file(out, f"0000{number}.tar").unlink()
    with pytest.raises(ValueError, match=r"out is not complete: 2 of 3 shards have no scores, 00001\.tar for example"):
        verify_scored_shards(out)


def test_damage_of_what_was_fitted_is_found(tmp_path):
    crawl(tmp_path / "crawl", 1, 3)
    score_shards(tmp_path / "crawl", WordRarity(), tmp_path / "out")
    verify_scored_shards(tmp_path / "out")
    (file,) = (tmp_path / "out/.fitted").rglob("fitted.json")
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(DamagedFileError, match=r"fitted\.json .*Delete it, and run `score_shards` again"):
        verify_scored_shards(tmp_path / "out")


@pytest.mark.parametrize(("uids", "count"), [(["a", "b", None, None], 0), (["a", "a", None, "a"], 2)])
def test_pairs_without_a_uid_are_not_doubled(tmp_path, caplog, uids, count):
    rows = [{**row, "uid": uid} for row, uid in zip(pairs(0, 4), uids, strict=True)]
    write_parquet(tmp_path / "crawl/0.parquet", rows)
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out", keep=["uid"])
    assert load_scored(tmp_path / "out")["uid"][:] == uids
    told = [record.getMessage() for record in caplog.records if "`uid`" in record.getMessage()]
    assert told == ([f"{count} pairs have a `uid` that stands before already: they are in the crawl twice, and count "
                     "twice."] if count else [])  # fmt: skip


def test_scores_of_a_key_that_begins_anew_in_each_shard(tmp_path):
    for shard in "ab":
        Dataset.from_dict({"caption": ["one", "two words"], "key": ["0", "1"]}).to_parquet(
            str(tmp_path / f"crawl/{shard}.parquet")
        )
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out")
    data = Dataset.from_dict({"key": ["1", "0"]})
    with pytest.raises(
        ValueError,
        match=r"^2 values of `key` stand more than once in .*data\.add_column\(\"shard\", \[\"a\.parquet\"\]",
    ):
        load_scores(data, tmp_path / "out")
    numbers = Dataset.from_dict({"key": [1, 0, 1], "shard": ["b.parquet", "a.parquet", "a.parquet"]})
    assert load_scores(numbers, tmp_path / "out")["caption_length"][:] == [2, 1, 2]


def test_a_text_that_is_gone_is_another_and_an_address_that_is_gone_is_not(tmp_path, caplog):
    rows = pairs(0, 3)
    rows[2]["caption"] = None
    write_tar(tmp_path / "crawl/0.tar", rows)
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out", keep=["url"])
    named = {"shard": ["0.tar"] * 3, "key": [row["key"] for row in rows]}
    expected = [len(row["caption"].split()) for row in rows[:2]] + [NAN]

    def load(captions, urls, **options):
        columns = {"caption": pa.array(captions, pa.string()), "url": pa.array(urls, pa.string())}
        return score_values(load_scores(Dataset.from_dict({**named, **columns}), tmp_path / "out", **options), LENGTH)

    captions, urls = ([row[name] for row in rows] for name in ("caption", "url"))
    np.testing.assert_array_equal(load(captions, [None] * 3), np.float32(expected))
    np.testing.assert_array_equal(load([*captions[:2], "now there is one"], urls), np.float32(expected))
    with pytest.raises(ValueError, match=r"1 of 3 rows have a key .* another `caption` .*'000000001'"):
        load([captions[0], None, None], urls)
    found = load([captions[0], None, None], urls, partial=True)
    np.testing.assert_array_equal(found, np.float32([expected[0], NAN, NAN]))
    assert "1 of 3 rows have a key" in caplog.text


LENGTH = "caption_length"

# ---- Shards, scored ----


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0.0 s"), (59.9, "59.9 s"), (60, "1.0 min"), (3594, "59.9 min"), (3600, "1.0 h"), (9000, "2.5 h")],
)
def test_how_far_it_is_in_words(seconds, text):
    status = ShardScores(
        1000,
        2003,
        12345,
        {"7": "damaged"},
        [Claim("8.tar", "process 3 on host", 12.4)],
        seconds,
        {"images that cannot be decoded": (1234, "0.tar: 5")},
        {"9.tar": "gone", "10.tar": "lost"},
    )
    assert not status.complete
    assert status.describe().splitlines() == [
        f"1,000 of 2,003 shards are scored: 12,345 pairs. Dropped: 2. About {text} are left.",
        "  8.tar: process 3 on host, last seen 12 s ago",
        "  7 failed: damaged",
        "  9.tar is dropped: gone",
        "  10.tar is dropped: lost",
        "  1,234 × images that cannot be decoded, 0.tar: 5 for example",
    ]
    done = replace(status, done=2001, failed={}, working=[], left_out={})
    assert done.complete
    assert done.describe().splitlines()[0] == "2,001 of 2,003 shards are scored: 12,345 pairs. Dropped: 2."
    assert replace(status, dropped={}, seconds_left=None).describe().splitlines()[0].endswith("12,345 pairs.")


@pytest.mark.parametrize(
    "wrong", [{"batch_size": 0}, {"num_proc": 0}, {"num_workers": -1}, {"lease": 0.0}, {"lease": -1}]
)
def test_each_number_that_is_too_small_is_refused(tmp_path, wrong):
    crawl(tmp_path / "crawl", 1, 2)
    ((name, value),) = wrong.items()
    with pytest.raises(ValueError, match=rf"{name}={value}\b.* were given\. The first two are at least 1"):
        score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out", **wrong)
    assert not (tmp_path / "out").exists()


def test_the_smallest_numbers_are_taken(tmp_path):
    rows = crawl(tmp_path / "crawl", 1, 3)
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out", batch_size=1, num_workers=0, lease=0.5)
    assert load_scored(tmp_path / "out")[LENGTH][:] == [len(row["caption"].split()) for row in rows]


def test_a_second_call_writes_nothing(out):
    def files():
        return {file: (file.stat().st_ino, file.stat().st_mtime_ns) for file in out.rglob("*")}

    before = files()
    score_shards(out.parent / "crawl", CaptionLength(), out, keep=["uid"])
    assert files() == before


def test_the_time_left_is_by_the_mean_of_the_last_shards(tmp_path):
    crawl(tmp_path / "crawl", 7, 2)
    for number in (4, 5, 6):
        (tmp_path / f"crawl/0000{number}.tar").rename(tmp_path / f"0000{number}.tar")
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out")
    for number, time in enumerate((10, 20, 25, 70)):
        os.utime(score_file(tmp_path / "out", f"0000{number}.tar"), (time, time))
    manifest = read_manifest(tmp_path / "out")

    def left(dropped=(), count=7):
        names = {f"0000{number}.tar": "" for number in range(count)}
        dropped = dict.fromkeys(dropped, "gone")
        write_sealed(tmp_path / "out/shards.json", {**manifest, "shards": names, "dropped": dropped})
        return shard_status(tmp_path / "out")

    assert left().seconds_left == 3 * 20  # three times 20 seconds for four shards
    assert left(["00005.tar"]).seconds_left == 2 * 20
    assert left(["00004.tar", "00006.tar"]).describe().splitlines()[0].endswith(" Dropped: 2. About 20.0 s are left.")
    write_sealed(
        tmp_path / "out/.failed/00006.json", {"shard": "00006.tar", "why": "w", "listed": True, "attempt": "a"}
    )
    assert left().seconds_left == 2 * 20
    assert left().failed == {"00006": "w"}
    assert left(["00006.tar"]).failed == {}
    status = left(["00000.tar"], 4)  # its scores are there and do not count
    assert (status.done, status.pairs, status.complete) == (3, 6, True)
    for number in (0, 1):
        score_file(tmp_path / "out", f"0000{number}.tar").unlink()
    assert left().seconds_left == 4 * 45  # of the two that are there
    score_file(tmp_path / "out", "00002.tar").unlink()
    assert left().seconds_left is None


def test_the_time_left_is_by_the_last_100_shards(tmp_path):
    crawl(tmp_path / "crawl", 102, 1)
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out")
    files = sorted((tmp_path / "out/scores").iterdir())
    files.pop().unlink()
    for number, file in enumerate(files):
        os.utime(file, (number**2, number**2))
    assert shard_status(tmp_path / "out").seconds_left == (100**2 - 1**2) / 99


def test_of_many_failures_three_are_told(tmp_path, caplog):
    crawl(tmp_path / "crawl", 5, 2)
    for number in (0, 1, 3, 4):
        (tmp_path / f"crawl/0000{number}.tar").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"^4 of 5 shards cannot be read, and the others are scored") as told:
        score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out")
    assert re.findall(r"(?:scored\. |; )(\d+): ", str(told.value)) == ["00000", "00001", "00003"]


def test_what_was_left_out_of_all_shards_is_counted_together(tmp_path, caplog):
    for shard in range(3):
        rows = pairs(shard, 4)
        for row in rows[1 : 1 + shard]:
            row["caption"] = None
        write_tar(tmp_path / f"crawl/{shard}.tar", rows)
    status = score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out")
    example = "1.tar: 000010001"
    assert status.left_out == {
        "pairs without `caption`": (3, example),
        "pairs without a score `caption_length`": (3, example),
    }
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warned == [status.describe()]


def test_nothing_is_warned_of_where_nothing_was_left_out(tmp_path, caplog):
    crawl(tmp_path / "crawl", 2, 2)
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out")
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


class Doubled(Scorer):
    """Reads what a scorer before it has written."""

    columns, name = (LENGTH,), "doubled"

    def score(self, batch, rank):
        return 2 * np.array(batch[LENGTH])


def test_a_scorer_reads_what_the_one_before_it_wrote(tmp_path):
    rows = crawl(tmp_path / "crawl", 2, 5)
    score_shards(tmp_path / "crawl", [CaptionLength(), Doubled()], tmp_path / "out", keep=["caption"], batch_size=2)
    data = load_scored(tmp_path / "out")
    assert data["doubled"][:] == [2 * len(row["caption"].split()) for row in rows]
    names = read_shard_scores(tmp_path / "out", "00001.tar").column_names
    assert names == ["key", "caption", LENGTH, "doubled"]  # what is kept needs no checksum
    run = ShardRun([CaptionLength(), Doubled()], [], tmp_path / "out", {}, ("url",), 256, 120.0)
    assert (run.read, run.checked) == (["url", "caption"], ["caption"])
    run = ShardRun([Doubled(), CaptionLength()], [], tmp_path / "out", {}, ("url",), 256, 120.0)
    assert run.read == ["url", LENGTH, "caption"]


class Fussy(CaptionLength):
    """Fails on texts with a mark, and so on batches that hold one."""

    def score(self, batch, rank):
        if bad := [text for text in batch["caption"] if text.startswith("bad")]:
            raise ValueError(f"I do not like {bad[0]}")
        return super().score(batch, rank)


@pytest.mark.parametrize(("bad", "good"), [(15, 0), (16, 0), (16, 1), (3, 2), (17, 0)])
def test_a_scorer_that_fails_on_each_of_16_pairs_has_failed_on_the_shard(tmp_path, bad, good):
    rows = pairs(0, bad + good)
    for number, row in enumerate(rows):
        row["caption"] = f"bad {number}" if number < bad else "good one"
    write_tar(tmp_path / "crawl/0.tar", rows)
    if bad >= 16 and not good:
        with pytest.raises(ValueError, match=rf"Fussy fails on each of {bad} pairs: I do not like bad {bad - 1}"):
            score_shards(tmp_path / "crawl", Fussy(), tmp_path / "out")
        return
    status = score_shards(tmp_path / "crawl", Fussy(), tmp_path / "out")
    assert status.left_out == {
        "pairs on which Fussy fails": (bad, "0.tar: 000000000: I do not like bad 0"),
        "pairs without a score `caption_length`": (bad, "0.tar: 000000000"),
    }
    np.testing.assert_array_equal(load_scored(tmp_path / "out")[LENGTH], [NAN] * bad + [2.0] * good)


class Width(Scorer):
    columns, name = ("image",), "width"

    def score(self, batch, rank):
        return np.array([image.width for image in batch["image"]])


def test_images_that_are_missing_are_none_that_cannot_be_decoded(tmp_path):
    rows = pairs(0, 4, b"no image")
    rows[1]["image"] = None
    write_tar(tmp_path / "crawl/0.tar", rows)
    status = score_shards(tmp_path / "crawl", Width(), tmp_path / "out")
    assert status.left_out == {
        "pairs without `image`": (1, "0.tar: 000000001"),
        "images that cannot be decoded": (3, "0.tar: 000000000"),
        "pairs without a score `width`": (4, "0.tar: 000000000"),
    }


@pytest.mark.parametrize(("count", "opened"), [(1, 1), (5, 5), (6, 3), (10, 5), (11, 4)])
def test_at_most_five_shards_are_opened_for_their_columns(tmp_path, monkeypatch, count, opened):
    for number in range(count):
        (tmp_path / "crawl").mkdir(exist_ok=True)
        (tmp_path / f"crawl/{number:02d}.tar").write_bytes(b"x")
    run = run_of(tmp_path / "crawl", tmp_path / "out")
    read, reader = [], ShardRun.reader
    monkeypatch.setattr(
        ShardRun, "reader", lambda self, path, shard: read.append(shard.name) or reader(self, path, shard)
    )
    with pytest.raises(ValueError, match=r"00\.tar"):  # the first of the reasons
        run.validate_columns()
    assert read == [f"{number:02d}.tar" for number in range(0, count, -(-count // 5))]
    assert len(read) == opened


def test_a_column_that_only_later_pairs_have_is_found(tmp_path):
    rows = pairs(0, 130)
    for row in rows[:120]:
        del row["url"]
    write_tar(tmp_path / "crawl/0.tar", rows)
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "out", keep=["url"])
    assert load_scored(tmp_path / "out")["url"][:] == [None] * 120 + [row["url"] for row in rows[120:]]


def test_the_order_of_shards_stays_where_the_first_ones_are_lost(tmp_path):
    crawl(tmp_path / "crawl", 5, 2)
    args = (tmp_path / "crawl", CaptionLength(), tmp_path / "out")
    score_shards(*args)
    for number in (0, 1, 3):
        (tmp_path / f"crawl/0000{number}.tar").unlink()
    status = score_shards(*args, bad_shards="drop")
    assert list(read_manifest(tmp_path / "out")["shards"]) == [f"0000{number}.tar" for number in range(5)]
    assert sorted(status.dropped) == ["00000.tar", "00001.tar", "00003.tar"]
    assert status.dropped["00000.tar"] == (
        "00000.tar is not among the 2 of this source. Name all of them, from the same folder."
    )


def test_a_note_of_a_shard_that_is_whole_again_goes(out):
    scoring._write_note(out, "00001.tar", "it was away")
    assert shard_status(out).failed == {"00001": "it was away"}
    assert score_shards(out.parent / "crawl", CaptionLength(), out, keep=["uid"]).failed == {}
    assert not (out / ".failed/00001.json").exists()


def test_shards_that_cannot_be_fetched_now_and_then_end_nothing(tmp_path, monkeypatch):
    """Only so many one after the other are a store that is away."""
    memory = fsspec.filesystem("memory")
    crawl(tmp_path / "crawl", 6, 2)
    memory.put(str(tmp_path / "crawl"), "/nowandthen", recursive=True)
    monkeypatch.setattr(remote, "BACKOFF", 0.0)
    monkeypatch.setattr(scoring, "_UNREACHABLE", 2)
    get = type(memory).get_file

    def away(self, path, *more, **options):
        if path[-5] in "135":
            raise ConnectionResetError("reset by peer")
        return get(self, path, *more, **options)

    monkeypatch.setattr(type(memory), "get_file", away)
    with pytest.raises(ValueError, match=r"^3 of 6 shards cannot be read, and the others are scored"):
        score_shards("memory://nowandthen", CaptionLength(), tmp_path / "out")
    assert shard_status(tmp_path / "out").done == 3
    memory.rm("/nowandthen", recursive=True)


@pytest.mark.parametrize("drop", [False, True])
def test_scorers_are_fitted_without_shards_that_cannot_be_read(tmp_path, caplog, drop):
    rows = crawl(tmp_path / "crawl", 3, 6)
    (tmp_path / "crawl/00001.tar").write_bytes(b"x")
    options = {"bad_shards": "drop"} if drop else {}
    scorer = WordRarity()
    try:
        score_shards(tmp_path / "crawl", scorer, tmp_path / "out", **options)
    except ValueError as error:
        assert (drop, "1 of 3 shards cannot be read" in str(error)) == (False, True)  # noqa: PT017
    assert "Nothing more is learnt from 00001.tar: " in caplog.text
    texts = Dataset.from_dict({"caption": [row["caption"] for row in (*rows[:6], *rows[12:])]})
    assert scorer.describe() == WordRarity().fit(texts).describe()


def run_of(folder, out, scorer=None, **options):
    return ShardRun([scorer or CaptionLength()], find_shards(folder), out, {}, (), 256, 120.0, **options)


@pytest.mark.parametrize(
    ("start", "most", "scored_shards"),
    [(0.0, None, "01234"), (0.4, None, "23401"), (0.99, None, "40123"), (0.5, 2, "23"), (0.0, 0, "")],
)
def test_a_process_begins_at_its_share_and_scores_so_many(tmp_path, monkeypatch, start, most, scored_shards):
    crawl(tmp_path / "crawl", 5, 2)
    run, write, written = run_of(tmp_path / "crawl", tmp_path / "out"), ShardRun.write_scores, []
    monkeypatch.setattr(
        ShardRun, "write_scores", lambda run, shard, *more: written.append(shard.name[4]) or write(run, shard, *more)
    )
    run.begin()
    run.work(start, most=most)
    assert "".join(written) == scored_shards
    assert done_shards(tmp_path / "out") == {f"0000{number}" for number in scored_shards}
    assert list((tmp_path / "out").rglob("*.claim")) == []


def test_scores_that_another_process_deleted_since_are_made_before_the_end(tmp_path):
    crawl(tmp_path / "crawl", 3, 2)
    run = run_of(tmp_path / "crawl", tmp_path / "out")
    run.begin()
    run.work(0.0)
    score_file(tmp_path / "out", "00001.tar").unlink()
    status = run.end()
    assert (status.done, status.pairs, status.complete) == (3, 6, True)


def test_a_shard_that_cannot_be_compared_keeps_its_scores_and_its_former_stamp(out, monkeypatch):
    file, local = out.parent / "crawl/00001.tar", SourceShard.local
    before, scores = read_manifest(out)["shards"], score_file(out, "00001.tar").read_bytes()
    os.utime(file, (10, 10))

    def refused(shard):
        if shard.name == "00001.tar":
            raise PermissionError(13, "Permission denied", shard.name)
        return local(shard)

    monkeypatch.setattr(SourceShard, "local", refused)
    with pytest.raises(ValueError, match=r"^1 of 3 shards cannot be read.* 00001: .*Permission denied"):
        score_shards(out.parent / "crawl", CaptionLength(), out, keep=["uid"])
    assert read_manifest(out)["shards"] == before
    assert score_file(out, "00001.tar").read_bytes() == scores
    monkeypatch.undo()
    assert score_shards(out.parent / "crawl", CaptionLength(), out, keep=["uid"]).failed == {}
    after = read_manifest(out)["shards"]
    assert [name for name in after if after[name] != before[name]] == ["00001.tar"]
    assert score_file(out, "00001.tar").read_bytes() == scores


def test_a_note_that_is_half_written_is_none(out):
    note = {"shard": "00001.tar", "why": "w", "listed": True, "attempt": "a"}
    write_sealed(out / ".failed/.half.json", note)
    assert shard_status(out).failed == {}
    write_sealed(out / ".failed/00001.json", note)
    assert shard_status(out).failed == {"00001": "w"}
