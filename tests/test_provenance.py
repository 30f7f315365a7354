from __future__ import annotations

import json

import numpy as np
import pytest
from datasets import Dataset, DatasetDict, Features, Value, concatenate_datasets, load_from_disk

from hf_curriculum import ScoreProvenance, attach_provenance, read_provenance
from hf_curriculum.provenance import score_statistics, score_values

MADE = ScoreProvenance(
    column="noun_count",
    scorer="NounCount",
    arguments={"tags": ("NN", "NNP"), "tagger": "pattern"},
    versions={"textblob": "0.20"},
    easy="low",
    per_image="max",
)


@pytest.fixture
def data():
    rows = {"caption": [f"caption {i}" for i in range(10)], "noun_count": np.arange(10, dtype=np.float32)}
    return attach_provenance(Dataset.from_dict(rows), {"noun_count": MADE})


def test_json_round_trip_is_one_compact_line_with_sorted_keys():
    text = MADE.to_json()
    assert ScoreProvenance.from_json(text) == MADE
    assert "\n" not in text
    assert list(json.loads(text)) == sorted(json.loads(text))
    assert MADE.arguments["tags"] == ["NN", "NNP"]  # as JSON gives it back
    assert hash(MADE) == hash(ScoreProvenance.from_json(text))


def test_unknown_fields_of_a_later_writer_are_ignored():
    content = json.loads(MADE.to_json()) | {"colour": "red"}
    assert ScoreProvenance.from_json(json.dumps(content)) == MADE


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"easy": "left"}, "`easy` is 'left'"),
        ({"per_image": "median"}, "`per_image` is 'median'"),
        ({"source": "guess"}, "`source` is 'guess'"),
        ({"arguments": {"model": object()}}, "`arguments` of the score `c` by S cannot be written as JSON"),
        ({"arguments": {"weight": float("nan")}}, "cannot be written as JSON"),
    ],
)
def test_what_provenance_refuses(change, match):
    with pytest.raises(ValueError, match=match):
        ScoreProvenance(**({"column": "c", "scorer": "S"} | change))


def test_other_texts_are_not_provenance():
    with pytest.raises(ValueError, match="Not the provenance of a score"):
        ScoreProvenance.from_json("colour")
    with pytest.raises(ValueError, match="not in format 1"):
        ScoreProvenance.from_json('{"hf_curriculum_score":2}')


def test_ids_of_other_makers_are_left_alone():
    features = Features({"a": Value("float32", id="mine"), "b": Value("string")})
    assert read_provenance(Dataset.from_dict({"a": [1.0], "b": ["x"]}, features=features)) == {}


def test_it_survives_what_users_do_to_a_data_set(data, tmp_path):
    data.save_to_disk(str(tmp_path / "saved"))
    data.to_parquet(str(tmp_path / "data.parquet"))
    versions = {
        "map": data.map(lambda row: {"n": len(row["caption"])}),
        "filter": data.filter(lambda row: row["noun_count"] > 3),
        "shuffle": data.shuffle(seed=0),
        "split": data.train_test_split(0.3, seed=0)["test"],
        "disk": load_from_disk(str(tmp_path / "saved")),
        "parquet": Dataset.from_parquet(str(tmp_path / "data.parquet"), cache_dir=str(tmp_path / "cache")),
        "rows": concatenate_datasets([data, data]),
        "stream": data.to_iterable_dataset(),
    }
    assert {name: read_provenance(version) for name, version in versions.items()} == {
        name: {"noun_count": MADE} for name in versions
    }
    assert read_provenance(data.rename_column("noun_count", "hardness")) == {"hardness": MADE}


def test_attaching_keeps_rows_order_format_and_split(data):
    view = data.shuffle(seed=1).with_format("numpy", columns=["noun_count"])
    other = ScoreProvenance("noun_count", "by hand")
    new = attach_provenance(view, {"noun_count": other})
    assert read_provenance(new)["noun_count"] == other
    assert read_provenance(view)["noun_count"] == MADE  # the given data set is left as it was
    assert new.format == view.format
    assert new[:]["noun_count"].tolist() == view[:]["noun_count"].tolist()
    assert new._fingerprint != view._fingerprint


def test_attaching_to_a_stream_and_to_splits(data):
    stream = Dataset.from_dict({"s": np.float32([1, 2])}).to_iterable_dataset()
    stream = attach_provenance(stream, {"s": ScoreProvenance("s", "by hand")})
    assert read_provenance(stream)["s"].scorer == "by hand"
    assert [row["s"] for row in stream] == [1.0, 2.0]
    splits = attach_provenance(DatasetDict(train=data, test=data), {"noun_count": ScoreProvenance("n", "by hand")})
    assert read_provenance(splits)["noun_count"].scorer == "by hand"


def test_attaching_needs_a_float_column(data):
    with pytest.raises(ValueError, match="`height` is not in the data"):
        attach_provenance(data, {"height": MADE})
    with pytest.raises(ValueError, match="not a floating-point column"):
        attach_provenance(data, {"caption": MADE})


def test_splits_that_disagree_need_a_split_named(data):
    other = ScoreProvenance("noun_count", "by hand")
    splits = DatasetDict(train=data, test=attach_provenance(data, {"noun_count": other}))
    with pytest.raises(ValueError, match="scored differently in the splits"):
        read_provenance(splits)
    assert read_provenance(splits, "test")["noun_count"] == other
    with pytest.raises(ValueError, match="`split` is 'dev'"):
        read_provenance(splits, "dev")
    assert read_provenance(DatasetDict(train=data)) == {"noun_count": MADE}


def test_score_values_are_contiguous_float32_in_the_order_of_the_view(data):
    view = data.shuffle(seed=3).with_format("torch")
    scores = score_values(view, "noun_count")
    assert scores.dtype == np.float32
    assert scores.flags.c_contiguous
    assert scores.tolist() == [float(value) for value in view["noun_count"][:]]
    assert score_values(data.select([]), "noun_count").shape == (0,)
    missing = Dataset.from_dict({"s": [1, None, 3]})
    np.testing.assert_array_equal(score_values(missing, "s"), np.float32([1, np.nan, 3]))
    with pytest.raises(ValueError, match="`height` is not in the data"):
        score_values(data, "height")
    with pytest.raises(ValueError, match="not a column of numbers"):
        score_values(data, "caption")


def test_statistics_by_hand():
    counts = score_statistics(np.float32([0, 1, 2, 3, 4, np.nan, np.inf, np.nan]))
    assert counts == {
        "rows": 8,
        "unscored": 2,
        "infinite": 1,
        "share_unscored": 0.25,
        "min": 0.0,
        "q25": 1.0,
        "median": 2.0,
        "q75": 3.0,
        "max": 4.0,
    }
    nothing = score_statistics(np.float32([np.nan]))
    assert nothing["share_unscored"] == 1.0
    assert nothing["median"] is None
    assert score_statistics(np.zeros(0, np.float32))["share_unscored"] == 0.0
