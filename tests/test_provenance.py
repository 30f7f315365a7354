from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value, concatenate_datasets, load_from_disk

from hf_curriculum import CaptionLength, Phases, WordRarity, add_scores, make_plan, provenance, read_provenance
from hf_curriculum.provenance import (
    ScoreProvenance,
    append_columns,
    attach_provenance,
    checkout_commit,
    column_provenance,
    score_statistics,
    score_values,
    validate_recorded,
)

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


def test_what_a_model_was_trained_on_is_kept_where_it_is_known():
    seen = replace(MADE, trained_on={"examples": 20, "captions": "AAAA"})
    assert ScoreProvenance.from_json(seen.to_json()) == seen != MADE
    assert "trained_on" not in MADE.to_json()  # texts written before stay equal, and so do cache keys and records
    assert ScoreProvenance(**MADE.to_dict()) == MADE
    assert seen.to_dict()["trained_on"] == {"examples": 20, "captions": "AAAA"}
    with pytest.raises(ValueError, match=r"`trained_on` of the score `noun_count` .* cannot be written as JSON"):
        replace(MADE, trained_on={"examples": float("nan")})


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


# what was recorded of the scores, compared with what they are now


@pytest.fixture
def similar(tmp_path):
    """Captions scored by their length, on disk."""
    rows = {"caption": [" ".join(["word"] * i) for i in range(1, 41)], "image_id": [str(i // 5) for i in range(40)]}
    Dataset.from_dict(rows).save_to_disk(str(tmp_path / "captions"))
    return add_scores(
        load_from_disk(str(tmp_path / "captions")), [CaptionLength(), WordRarity().fit(Dataset.from_dict(rows))]
    )


def problems(dataset, caplog, column="caption_length"):
    """What `validate_recorded` says: the error, the warning, or nothing."""
    caplog.clear()
    try:
        validate_recorded(dataset, column, read_provenance(dataset)[column])
    except ValueError as error:
        return f"error: {error}"
    return caplog.text


def test_what_users_do_to_scored_data_changes_no_score(similar, tmp_path, caplog):
    view = similar.shuffle(seed=0).select(range(30))
    rescored = add_scores(view, CaptionLength(name="again"))
    similar.save_to_disk(str(tmp_path / "saved"))
    parts = similar.train_test_split(0.5, seed=0)
    bootstrap = similar.select(np.random.default_rng(0).integers(0, 40, 40))
    kept = {
        "itself": similar,
        "map": similar.map(lambda row: {"n": len(row["caption"])}),
        "another score": add_scores(similar, CaptionLength(name="words")),
        "filter": similar.filter(lambda row: row["caption_length"] > 20),
        "shuffle": similar.shuffle(seed=3),
        "flat": similar.shuffle(seed=3).flatten_indices(),
        "bootstrap": bootstrap,
        "sort": similar.sort("caption_length", reverse=True),
        "disk": load_from_disk(str(tmp_path / "saved")),
        "halves": concatenate_datasets([parts["train"], parts["test"]]),
        "twice": concatenate_datasets([similar, similar]),
        "scored apart": concatenate_datasets(
            [
                add_scores(part.remove_columns(["caption_length", "word_rarity"]), CaptionLength())
                for part in (similar.select(range(20)), similar.select(range(20, 40)))
            ]
        ),
        "renamed": similar.rename_column("caption_length", "hardness").rename_column("hardness", "caption_length"),
        "double": similar.cast_column("caption_length", Value("float64", id=similar.features["caption_length"].id)),
        "without captions": similar.remove_columns("caption"),
        "another column's text": similar.map(lambda row: {"image_id": row["image_id"] + "x"}),
        "empty": similar.select([]),
    }
    assert {name: problems(data, caplog) for name, data in kept.items()} == dict.fromkeys(kept, "")
    assert problems(similar.rename_column("caption_length", "hardness"), caplog, "hardness") == ""
    swapped = similar.rename_columns({"caption_length": "word_rarity", "word_rarity": "caption_length"})
    assert problems(swapped, caplog, "word_rarity") == problems(swapped, caplog) == ""
    assert problems(rescored, caplog, "again") == problems(rescored.flatten_indices(), caplog, "again") == ""


CHANGES = {
    "turned": lambda row: {"caption_length": -row["caption_length"]},
    "scaled": lambda row: {"caption_length": row["caption_length"] * 100},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("step", ["map", "filtered", "shuffled", "saved", "renamed"])
def test_changed_scores_are_refused_with_the_remedy(similar, tmp_path, caplog, change, step):
    changed, column = similar.map(change), "caption_length"
    if step == "filtered":
        changed = changed.filter(lambda row: row["image_id"] != "1")
    elif step == "shuffled":
        changed = changed.shuffle(seed=0)
    elif step == "saved":
        changed.save_to_disk(str(tmp_path / "changed"))
        changed = load_from_disk(str(tmp_path / "changed"))
    elif step == "renamed":
        changed, column = changed.rename_column(column, "hardness"), "hardness"
    assert f"error: `{column}` has changed since CaptionLength wrote it: it was from" in problems(
        changed, caplog, column
    )
    with pytest.raises(ValueError, match=r"outside of that\. That low is easy was recorded.*attach_provenance"):
        make_plan(Phases(2), changed, score_column=column, global_batch_size=4)
    easiest_last = make_plan(Phases(2, easy="high"), changed, score_column=column, global_batch_size=4)
    assert "has changed since CaptionLength wrote it" in caplog.text  # said, not refused: the curriculum names the end
    recorded = attach_provenance(changed, {column: ScoreProvenance(column, "turned by hand", easy="high")})
    caplog.clear()
    plan = make_plan(Phases(2), recorded, score_column=column, global_batch_size=4)
    assert caplog.text == ""
    assert plan.ranking.order.tolist() == easiest_last.ranking.order.tolist()


def test_other_scores_within_the_range_are_said(similar, caplog):
    changed = similar.map(
        lambda row: {"caption_length": 16.0 if row["caption_length"] == 15 else row["caption_length"]}
    )
    assert "`caption_length` changed after CaptionLength had written `caption_length`" in problems(changed, caplog)


def test_captions_that_were_rewritten_are_said(similar, caplog):
    loud = similar.map(lambda row: {"caption": row["caption"].upper()})
    assert "`caption` changed after CaptionLength had written `caption_length`" in problems(loud, caplog)
    assert "`caption` changed after WordRarity had written `word_rarity`" in problems(loud, caplog, "word_rarity")
    longer = similar.shuffle(seed=0).map(lambda row: {"caption": row["caption"] + "!"}, batched=False)
    assert "`caption` changed" in problems(longer.shuffle(seed=1), caplog)


def test_splits_scored_together_or_apart_have_equal_features(similar):
    bare = similar.remove_columns(["caption_length", "word_rarity"])
    parts = bare.train_test_split(0.5, seed=0)
    together = add_scores(parts, CaptionLength())
    apart = {name: add_scores(part, CaptionLength()) for name, part in parts.items()}
    assert together["train"].features == apart["train"].features == apart["test"].features == together["test"].features


@pytest.mark.parametrize("view", ["whole", "shuffled and filtered"])
def test_columns_of_anything_are_appended_with_their_provenance(tmp_path, view):
    data = Dataset.from_dict({"image_id": list("abcd")})
    if view != "whole":
        data = data.select([3, 0, 2])
    boxes = pa.array(
        [[[0.0, 1.0, 2.0, 3.0]] * count for count in range(len(data))], pa.list_(pa.list_(pa.float32(), 4))
    )
    made = ScoreProvenance("proposals", "SelectiveSearch", {"mode": "fast"})
    features = {"proposals": List(List(Value("float32"), 4)), "label": ClassLabel(names=["dog", "cat"])}
    new = append_columns(
        data,
        {"proposals": boxes, "label": pa.array([1, 0] + [1] * (len(data) - 2))},
        {"proposals": made},
        features=features,
    )
    assert new["image_id"][:] == data["image_id"][:]
    assert new["proposals"][:] == boxes.to_pylist()
    assert new["label"][:2] == [1, 0]
    new.save_to_disk(tmp_path / "saved")
    new.to_parquet(tmp_path / "saved.parquet")
    for back in (load_from_disk(tmp_path / "saved"), Dataset.from_parquet(str(tmp_path / "saved.parquet"))):
        assert column_provenance(back, "proposals") == made
        assert column_provenance(back, "label") is None
        assert back["proposals"][:] == boxes.to_pylist()
        assert read_provenance(back) == {}
    with pytest.raises(ValueError, match="Its provenance was asked for"):
        column_provenance(new, "boxes")


def test_equal_columns_give_equal_fingerprints():
    data = Dataset.from_dict({"image_id": list("ab")})
    add = lambda values: append_columns(data, {"words": values}, {}, features={"words": List(Value("string"))})  # noqa: E731
    one, same, other = add(pa.array([["a"], []])), add(pa.array([["a"], []])), add(pa.array([["b"], []]))
    assert one._fingerprint == same._fingerprint != other._fingerprint


def test_columns_of_no_rows_beside_a_table_of_several():
    empty = Dataset.from_dict({"a": [1, 2]}).add_column("b", [1, 2]).select([])
    made = append_columns(empty, {"c": np.zeros(0, np.float32)}, {"c": ScoreProvenance("c", "by hand")})
    assert (made.column_names, len(made)) == (["a", "b", "c"], 0)


def test_the_commit_of_a_checkout_is_known_and_of_an_installed_package_it_is_not(monkeypatch, tmp_path):
    root = Path(provenance.__file__).parents[1]
    if (root / ".git").exists():
        assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?", checkout_commit()["commit"])
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "package" / "provenance.py"))
    assert checkout_commit() == {}
    (tmp_path / ".git").write_text("gitdir: /nowhere")
    assert checkout_commit() == {}
