from __future__ import annotations

import hashlib
import json
import logging

import fsspec
import numpy as np
import pytest
from datasets import Dataset, DatasetDict, Features, Value

from hf_curriculum import CaptionLength, add_scores_from, read_provenance, score_shards
from hf_curriculum.provenance import ScoreProvenance, attach_provenance, score_values

NAN = np.nan


@pytest.fixture
def data():
    return Dataset.from_dict(
        {
            "image_url": ["http://a", "http://a", "http://b", "http://c"],
            "caption": ["a dog", "a big dog", "a cat", "two\nlines, and a comma"],
            "image_id": ["007", "007", "7", "12"],
            "number": [7, 7, 8, 12],
        }
    )


def write(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    return tmp_path / name


def test_csv_by_key_with_what_is_missing(data, tmp_path, caplog):
    file = write(tmp_path, "scores.csv", "image_url,quality,note\nhttp://b,0.5,x\nhttp://a,,y\nhttp://z,1,z\n")
    with caplog.at_level(logging.INFO, logger="hf_curriculum"):
        scored = add_scores_from(data, file, on="image_url", easy="high")
    np.testing.assert_array_equal(score_values(scored, "quality"), np.float32([NAN, NAN, 0.5, NAN]))
    assert scored.column_names == [*data.column_names, "quality"]
    assert "scores.csv: 3 of 4 rows matched, 1 without a score (NaN), 1 of 3 keys not used." in caplog.text
    made = read_provenance(scored)["quality"]
    assert (made.source, made.scorer, made.easy) == ("joined", "scores.csv", "high")
    assert made.arguments["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert made.arguments["on"] == ["image_url"]


def test_a_complete_join_is_no_warning(data, tmp_path, caplog):
    file = write(tmp_path, "s.csv", "image_url,q\nhttp://a,1\nhttp://b,2\nhttp://c,3\n")
    with caplog.at_level(logging.WARNING, logger="hf_curriculum"):
        assert add_scores_from(data, file, on="image_url", easy="low")["q"][:] == [1, 1, 2, 3]
    assert caplog.records == []


def test_keys_of_digits_stay_text(data, tmp_path):
    file = write(tmp_path, "s.csv", "image_id,q\n007,1\n7,2\n12,3\n")
    assert add_scores_from(data, file, on="image_id", easy="low")["q"][:] == [1, 1, 2, 3]


def test_several_key_columns_and_a_shuffled_view(data, tmp_path):
    file = tmp_path / "s.jsonl"
    rows = [{"image_id": row["image_id"], "caption": row["caption"], "q": n} for n, row in enumerate(data)]
    file.write_text("".join(json.dumps(row) + "\n" for row in reversed(rows)))
    view = data.shuffle(seed=3)
    scored = add_scores_from(view, file, on=["image_id", "caption"], easy="low")
    whole = add_scores_from(data, file, on=["image_id", "caption"], easy="low")
    assert whole["q"][:] == [0, 1, 2, 3]
    np.testing.assert_array_equal(score_values(scored, "q"), score_values(whole.shuffle(seed=3), "q"))


def test_a_caption_with_a_line_break_is_a_key_in_csv_and_parquet(data, tmp_path):
    Dataset.from_dict({"caption": data["caption"][:], "q": [0.0, 1.0, 2.0, 3.0]}).to_csv(str(tmp_path / "s.csv"))
    Dataset.from_dict({"caption": data["caption"][:], "q": [0.0, 1.0, 2.0, 3.0]}).to_parquet(
        str(tmp_path / "s.parquet")
    )
    for name in ("s.csv", "s.parquet"):
        assert add_scores_from(data, tmp_path / name, on="caption", easy="low")["q"][:] == [0, 1, 2, 3]


def test_line_breaks_in_a_csv_of_several_megabytes(tmp_path):
    """Arrow reads 1 MiB at a time: a block must not end inside a caption."""
    captions = [f"{row}" + "\nline" * 20 for row in range(20_000)]
    data = Dataset.from_dict({"caption": captions})
    data.add_column("q", list(range(20_000))).to_csv(str(tmp_path / "s.csv"))
    assert add_scores_from(data, tmp_path / "s.csv", on="caption", easy="low")["q"][:] == list(range(20_000))


def test_a_data_set_as_source_keeps_its_own_provenance(data):
    made = ScoreProvenance("q", "Other", {"k": 50}, model="m", easy="high", per_image="max")
    source = Dataset.from_dict(
        {"number": [8, 7, 12], "q": np.float32([1, 2, 3]), "r": [1, 2, 3], "t": ["x", "y", "z"]}
    )
    source = attach_provenance(source, {"q": made})
    scored = add_scores_from(data, source.shuffle(seed=0), on="number", columns=["q"])
    assert scored["q"][:] == [2, 2, 1, 3]
    kept = read_provenance(scored)["q"]
    assert (kept.scorer, kept.model, kept.easy, kept.per_image, kept.source) == ("Other", "m", "high", "max", "joined")
    assert kept.arguments["joined"]["on"] == ["number"]
    turned = add_scores_from(data, source, on="number", columns="q", easy="low")
    assert read_provenance(turned)["q"].easy == "low"
    both = add_scores_from(data, source, on="number", easy={"q": "low", "r": "high"})
    assert {name: entry.easy for name, entry in read_provenance(both).items()} == {"q": "low", "r": "high"}
    with pytest.raises(ValueError, match="Which end of `r` is easy is not known"):
        add_scores_from(data, source, on="number")
    with pytest.raises(ValueError, match="`easy` is ''"):
        add_scores_from(data, source, on="number", columns=["q"], easy="")


def test_numbers_match_text_of_the_same_digits(data):
    source = Dataset.from_dict({"image_id": [7, 12], "q": [1.0, 2.0]})
    scored = add_scores_from(data, source, on="image_id", easy="low")
    np.testing.assert_array_equal(score_values(scored, "q"), np.float32([NAN, NAN, 1, 2]))
    with pytest.raises(ValueError, match="is of another kind in Dataset than in the data"):
        add_scores_from(data, Dataset.from_dict({"number": ["seven"], "q": [1.0]}), on="number", easy="low")


def test_splits_are_joined_to_one_source(data, tmp_path, caplog):
    splits = DatasetDict(train=data.select([0, 1]), test=data.select([2, 3]))
    file = write(tmp_path, "s.csv", "image_url,q\nhttp://a,1\nhttp://b,2\n")
    with caplog.at_level(logging.INFO, logger="hf_curriculum"):
        scored = add_scores_from(splits, file, on="image_url", easy="low")
    assert scored["train"]["q"][:] == [1, 1]
    np.testing.assert_array_equal(score_values(scored["test"], "q"), np.float32([2, NAN]))
    assert "3 of 4 rows matched, 1 without a score (NaN), 0 of 2 keys not used" in caplog.text
    assert list(read_provenance(scored)) == ["q"]


def test_names_that_look_like_dates_stay_text(tmp_path):
    data = Dataset.from_dict({"image_id": ["2020-01-31", "2020-02-01"]})
    file = write(tmp_path, "s.jsonl", '{"image_id": "2020-02-01", "q": 2}\n{"image_id": "2020-01-31", "q": 1}\n')
    assert add_scores_from(data, file, on="image_id", easy="low")["q"][:] == [1, 2]
    file = write(tmp_path, "s.csv", "image_id,q\n2020-02-01,2\n2020-01-31,1\n")
    assert add_scores_from(data, file, on="image_id", easy="low")["q"][:] == [1, 2]


def test_a_missing_key_matches_nothing():
    data = Dataset.from_dict({"image_id": ["a", None], "caption": ["x", "y"]})
    source = Dataset.from_dict({"image_id": ["a", None, None], "q": [1.0, 2.0, 3.0]})
    scored = add_scores_from(data, source, on="image_id", easy="low")
    np.testing.assert_array_equal(score_values(scored, "q"), np.float32([1, NAN]))


def test_a_key_that_stands_twice(data):
    source = Dataset.from_dict({"image_id": ["7", "12", "7", "12", "007"], "q": [1.0, 2, 3, 4, 5]})
    with pytest.raises(ValueError, match="2 keys stand more than once in Dataset, such as '7', '12'"):
        add_scores_from(data, source, on="image_id", easy="low")


def test_no_match_at_all_is_an_error(data):
    source = Dataset.from_dict({"image_url": ["b.jpg"], "q": [1.0]})
    with pytest.raises(ValueError, match=r"No row of the data has its key.*'http://a'.*such as 'b.jpg'"):
        add_scores_from(data, source, on="image_url", easy="low")
    with pytest.raises(ValueError, match="No row of the data has its key"):
        add_scores_from(data, source.select([]), on="image_url", easy="low")


def test_an_empty_data_set():
    features = Features({"image_id": Value("string")})
    source = Dataset.from_dict({"image_id": ["a"], "q": [1.0]})
    scored = add_scores_from(Dataset.from_dict({"image_id": []}, features=features), source, on="image_id", easy="low")
    assert scored.column_names == ["image_id", "q"]


def test_wrong_arguments(data, tmp_path):
    source = Dataset.from_dict({"image_id": ["7"], "q": [1.0], "t": ["x"]})
    join = {"on": "image_id", "easy": "low"}
    with pytest.raises(FileNotFoundError, match=r"does not exist. It should hold the scores"):
        add_scores_from(data, tmp_path / "no.csv", **join)
    with pytest.raises(ValueError, match="is of no known kind"):
        add_scores_from(data, write(tmp_path, "s.txt", "x"), **join)
    with pytest.raises(ValueError, match=r"s\.csv cannot be read"):
        add_scores_from(data, write(tmp_path, "s.csv", "image_id,q\n7,1,2\n"), **join)
    with pytest.raises(TypeError, match=r"was given a dict of the keys \['7'\] as `source`"):
        add_scores_from(data, {"7": 1.0}, **join)
    with pytest.raises(TypeError, match="`add_scores_from` was given an IterableDataset"):
        add_scores_from(data.to_iterable_dataset(), source, **join)
    with pytest.raises(ValueError, match="The key is empty"):
        add_scores_from(data, source, on=[], easy="low")
    with pytest.raises(ValueError, match="`image` is not in the data"):
        add_scores_from(data, source, on="image", easy="low")
    fractions = Dataset.from_dict({"q": [1.0], "r": [2.0]})
    with pytest.raises(ValueError, match=r"`q` is .* which cannot name a row"):
        add_scores_from(fractions, fractions, on="q", easy="low", overwrite=True)
    with pytest.raises(ValueError, match=r"`z` is not in the data.*They are the scores to join"):
        add_scores_from(data, source, columns=["z"], **join)
    with pytest.raises(ValueError, match=r"`t` is .*not a column of numbers"):
        add_scores_from(data, source, columns="t", **join)
    with pytest.raises(ValueError, match="There is no column of numbers to join"):
        add_scores_from(data, source.remove_columns("q"), **join)
    with pytest.raises(ValueError, match="`easy` is 'left'"):
        add_scores_from(data, source, on="image_id", easy="left")
    scored = add_scores_from(data, source, **join)
    with pytest.raises(ValueError, match="already has `q`"):
        add_scores_from(scored, source, **join)
    assert add_scores_from(scored, source, overwrite=True, **join).column_names == scored.column_names


@pytest.mark.parametrize("missing", ["", "http://d,\n"])
def test_large_integers_that_become_equal_are_said(data, tmp_path, caplog, missing):
    large = write(
        tmp_path, "t.csv", f"image_url,t\nhttp://a,33554433\nhttp://b,33554432\nhttp://c,33554436\n{missing}"
    )
    add_scores_from(data, large, on="image_url", easy="low")
    assert "`t` has 3 different integers, and only 2 as float32" in caplog.text
    caplog.clear()
    small = write(tmp_path, "s.csv", "image_url,s\nhttp://a,16777215\nhttp://b,16777216\nhttp://c,0.1\n")
    add_scores_from(data, small, on="image_url", easy="low")
    assert "as float32" not in caplog.text


def test_equal_integers_and_near_fractions_are_no_loss(data, tmp_path, caplog):
    """Only integers that were different and are equal as float32 are said."""
    near = write(tmp_path, "near.csv", "image_url,s\nhttp://a,0.1\nhttp://b,0.1000000001\nhttp://c,0.5\n")
    same = write(tmp_path, "same.csv", "image_url,s\nhttp://a,3\nhttp://b,3\nhttp://c,4\n")
    for file in (near, same):
        add_scores_from(data, file, on="image_url", easy="low")
    assert "as float32" not in caplog.text


@pytest.mark.parametrize(
    ("ids", "level"), [("ab", logging.INFO), ("abc", logging.WARNING), ("a", logging.WARNING), ("ac", logging.WARNING)]
)
def test_a_join_that_leaves_something_is_a_warning(caplog, ids, level):
    caplog.set_level(logging.INFO, logger="hf_curriculum.scoring.join")
    data = Dataset.from_dict({"image_id": ["a", "b"]})
    source = Dataset.from_dict({"image_id": list(ids), "q": [float(row) for row in range(len(ids))]})
    add_scores_from(data, source, on="image_id", easy="low")
    (said,) = [record for record in caplog.records if "rows matched" in record.getMessage()]
    assert said.levelno == level


def test_tables_with_tabs(data, tmp_path):
    file = write(tmp_path, "s.TSV", "image_id\tq\n007\t1\n7\t2\n12\t3\n")
    assert add_scores_from(data, file, on="image_id", easy="low")["q"][:] == [1, 1, 2, 3]


def scores_of(urls, first=0, model="m"):
    rows = {"url": urls, "note": ["x"] * len(urls), "q": np.arange(first, first + len(urls), dtype=np.float32)}
    return attach_provenance(Dataset.from_dict(rows), {"q": ScoreProvenance("q", "Made", {"n": 1}, model=model)})


@pytest.mark.parametrize("address", ["memory://join/scores", "{tmp_path}/scores", "memory://join/scores/0.parquet"])
def test_all_parquet_files_at_an_address(address, tmp_path, caplog):
    address = address.format(tmp_path=tmp_path)
    fs, root = fsspec.url_to_fs(address.removesuffix("/0.parquet"))
    fs.makedirs(f"{root}/.fitted", exist_ok=True)
    fs.pipe({f"{root}/card.md": b"# Scores", f"{root}/.fitted/x.parquet": b"none of it"})
    for number, urls in enumerate((["a", "b"], [None, "c", None])):
        with fs.open(f"{root}/{number}.parquet", "wb") as file:
            scores_of(urls, 2 * number).to_parquet(file)
    with caplog.at_level(logging.INFO, logger="hf_curriculum"):
        scored = add_scores_from(Dataset.from_dict({"url": ["c", "z", "a"]}), address, on="url")
    np.testing.assert_array_equal(score_values(scored, "q"), [NAN if "0.p" in address else 3, NAN, 0])
    made = read_provenance(scored)["q"]
    assert (made.scorer, made.model, made.source, made.easy) == ("Made", "m", "joined", "low")
    joined = made.arguments["joined"]
    assert (joined["from"], joined["on"]) == (address if "://" in address else "scores", ["url"])
    again = add_scores_from(Dataset.from_dict({"url": ["b"]}), address, on="url", columns=["q"])
    assert read_provenance(again)["q"] == made  # the digest is of what was read
    fs.rm(root, recursive=True)


def test_files_that_do_not_belong_together(tmp_path):
    data, at = Dataset.from_dict({"url": ["a"]}), "memory://apart"
    with pytest.raises(FileNotFoundError, match="There is no Parquet file in memory://apart"):
        add_scores_from(data, at, on="url")
    for number, (urls, model) in enumerate(((["a", "b"], "m"), (["b", "c"], "other"))):
        scores_of(urls, model=model).to_parquet(f"{at}/{number}.parquet")
    with pytest.raises(ValueError, match="hold scores that were made in different ways, or of other columns"):
        add_scores_from(data, at, on="url")
    scores_of(["b", "c"]).to_parquet(f"{at}/1.parquet")
    with pytest.raises(ValueError, match="1 keys stand more than once in memory://apart, such as 'b'"):
        add_scores_from(data, at, on="url")
    with pytest.raises(ValueError, match="`uid` is not in the data"):
        add_scores_from(Dataset.from_dict({"uid": ["a"]}), at, on="uid")
    fsspec.filesystem("memory").pipe("/apart/1.parquet", b"PAR1 and no more")
    with pytest.raises(ValueError, match=r"/apart/1\.parquet is damaged .* with a row per key"):
        add_scores_from(data, at, on="url")
    fsspec.filesystem("memory").rm("/apart", recursive=True)


def test_the_folder_of_score_shards(tmp_path):
    for shard in range(2):
        rows = {
            "caption": [f"{'a dog ' * pair}of" for pair in range(3)],
            "url": [f"{shard}/{pair}" for pair in range(3)],
        }
        Dataset.from_dict(rows).to_parquet(str(tmp_path / f"{shard}.parquet"))
    score_shards(str(tmp_path / "*.parquet"), CaptionLength(), tmp_path / "scores", keep=["url"])
    data = Dataset.from_dict({"url": ["1/2", "0/0"], "shard": ["1.parquet", "0.parquet"], "key": ["2", "0"]})
    for key in ("url", ["shard", "key"]):
        scored = add_scores_from(data, tmp_path / "scores", on=key)
        assert scored["caption_length"][:] == [5, 1]
        assert read_provenance(scored)["caption_length"].arguments["joined"]["from"] == "scores"
    (tmp_path / "scores" / "scores" / "0.parquet").unlink()
    with pytest.raises(ValueError, match="1 of 2 shards have no scores"):
        add_scores_from(data, tmp_path / "scores", on="url")


@pytest.mark.parametrize(
    ("text", "quality", "said"),
    [
        (
            "image_id,q\n007,n/a\n7,1.5\n12,NaN\n",
            [NAN, NAN, 1.5, NAN],
            "cells without a number in `q` (their rows get NaN): 2.",
        ),
        ("image_id;q\n007;1.5\n7;2\n12;3\n", [1.5, 1.5, 2, 3], ""),
        (
            "image_id,q,r\n007,1,abc\n7,2,1.5\n12,3,2\n",
            [1, 1, 2, 3],
            "cells of `r`, a column of texts: 2 (abc, for example).",
        ),
        (
            "image_id,q,r\n007,1,10%\n7,2,20%\n12,3,5%\n",
            [1, 1, 2, 3],
            "cells of `r`, a column of texts: 3 (10%, for example).",
        ),
        ("image_id,q,r\n007,1,true\n7,2,false\n12,3,true\n", [1, 1, 2, 3], "cells of `r`, a column of bool: 3."),
        ("image_id,q,caption\n007,1,2 dogs\n7,2,x\n12,3,y\n", [1, 1, 2, 3], ""),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_cells_and_columns_that_are_no_scores_are_counted(data, tmp_path, caplog, text, quality, said, encoding):
    (tmp_path / "s.csv").write_text(text, encoding=encoding)
    scored = add_scores_from(data, tmp_path / "s.csv", on="image_id", easy="low")
    np.testing.assert_array_equal(score_values(scored, "q"), np.float32(quality))
    assert (said in caplog.text) if said else ("left out" not in caplog.text)


@pytest.mark.parametrize(("cells", "named"), [("0,5", "'0,5'"), ("50%", "'50%'"), ("True", "True"), ("no", "'no'")])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("columns", [None, "q"])
def test_the_first_cell_that_is_no_number_is_named(data, tmp_path, cells, named, encoding, columns):
    text = "image_id\tq\n007\tFalse\n" if cells == "True" else "image_id\tq\n007\t1\n"
    (tmp_path / "s.tsv").write_text(f"{text}7\t{cells}\n", encoding=encoding)
    row, named = (0, "False") if cells == "True" else (1, named)
    with pytest.raises(ValueError, match=rf"column of numbers.*`q` has {named} in row {row} \(counted from 0\)"):
        add_scores_from(data, tmp_path / "s.tsv", on="image_id", easy="low", columns=columns)


@pytest.mark.parametrize("name", ["", "Unnamed: 0", "__index_level_0__"])
def test_an_index_of_pandas_is_no_score(data, tmp_path, caplog, name):
    (tmp_path / "q.csv").write_text(f"{name},image_id,q\n0,007,0.5\n1,7,0.5\n2,12,0.5\n")
    joined = add_scores_from(data, tmp_path / "q.csv", on="image_id", easy="low")
    assert joined.column_names == [*data.column_names, "q"]
    assert f"such as an index of pandas (`columns` joins them): 1 ({name!r}, for example)" in caplog.text
    if name:
        joined = add_scores_from(data, tmp_path / "q.csv", on="image_id", easy="low", columns=name)
        assert joined.column_names == [*data.column_names, name]


def test_infinite_scores_are_counted(data, tmp_path, caplog):
    (tmp_path / "s.csv").write_text("image_id,q\n007,inf\n7,1\n12,-inf\n")
    scored = add_scores_from(data, tmp_path / "s.csv", on="image_id", easy="low")
    assert sorted(set(scored["q"])) == [-np.inf, 1, np.inf]
    assert "s.csv: 2 cells of `q` are infinite" in caplog.text


@pytest.mark.parametrize("header", ["image_id,q,q", "image_id,image_id,q"])
def test_a_column_that_stands_twice_in_the_header_is_refused(data, tmp_path, header):
    with pytest.raises(ValueError, match=r"has the columns \['(q|image_id)'\] twice"):
        add_scores_from(data, write(tmp_path, "s.csv", f"{header}\n7,1,2\n"), on="image_id", easy="low")
