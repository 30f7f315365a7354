"""Triplets as views of pairs, several sources as one, held-out instances, and where a noun's sub-words are."""

from __future__ import annotations

import logging
import pickle

import numpy as np
import pyarrow as pa
import pytest
from datasets import Dataset, DatasetDict, List, Value, concatenate_datasets, load_from_disk
from ten_sentences import SENTENCES, induce, make_pairs, many

from hf_curriculum import NodeSampling, make_plan
from hf_curriculum.fingerprint import fingerprint_rows
from hf_curriculum.planning.deciding import Observed
from hf_curriculum.planning.ranking import rank_dataset
from hf_curriculum.provenance import ScoreProvenance, append_columns, attach_provenance, score_values
from hf_curriculum.tasks.alignment import Ontology, count_stages, hold_out_instances, join_sources
from hf_curriculum.views import RepeatedRows, base_rows, repeat_rows

EXPECTED = [
    # row, noun, where it stands, node
    (0, "dog", 2, 5, "dog"),
    (1, "puppy", 2, 7, "dog"),
    (2, "dog", 4, 8, "dog"),
    (2, "man", 15, 18, "frisbee?"),
    (3, "man", 2, 5, "frisbee"),
    (3, "frisbee", 15, 22, "frisbee"),
    (4, "man", 2, 5, "frisbee"),
    (4, "frisbee", 16, 23, "frisbee"),
    (5, "man", 4, 7, "frisbee?"),
    (7, "puppy", 2, 7, "dog"),
]
"""`frisbee?`: the noun's class, which the image does not show."""


def test_one_row_per_pair_and_noun(caplog):
    pairs, ontology = make_pairs(), induce(min_pairs=2)
    with caplog.at_level(logging.INFO, "hf_curriculum"):
        triplets = ontology.triplets(pairs)
    columns = ("noun", "noun_start", "noun_end", "node")
    expected = [(SENTENCES[row][1], *rest, None if node.endswith("?") else node) for row, *rest, node in EXPECTED]
    assert [tuple(row[name] for name in ("caption", *columns)) for row in triplets] == expected
    assert all(
        row["caption"][row["noun_start"] : row["noun_end"]].lower() in ("dogs", row["noun"]) for row in triplets
    )
    assert "10 triplets of 7 pairs; 8 of them show the class that their noun names" in caplog.text
    assert "Left out: 3 pairs whose image shows no object or whose caption has none of 4 nouns" in caplog.text
    assert len(triplets) == ontology.counts["triplets"]
    nodes = [node for node in triplets["node"] if node]
    assert {node: nodes.count(node) for node in set(nodes)} == dict(ontology.sizes)
    # Without looking at images every pair counts, and the noun alone says the node.
    blind = ontology.triplets(pairs, objects=False)
    assert blind["node"][:] == [node.rstrip("?") for *_, node in EXPECTED] + ["dog"]


def test_levels_make_lists_of_nodes():
    pairs = make_pairs()
    ontology = induce(pairs, min_pairs=2, parents={"dog": "animal"})
    triplets = ontology.triplets(pairs)
    assert triplets["node"][:4] == [["dog", "animal"]] * 3 + [[]]
    assert triplets["node"][4] == ["frisbee"]


def test_the_nodes_of_node_sampling_are_those_of_the_ontology():
    """The mass of each node is in proportion to |X|, and rows without a node are in random batches alone."""
    pairs = make_pairs(many(400))
    for parents in ({}, {"dog": "animal", "cat": "animal"}):
        ontology = induce(pairs, min_pairs=5, parents=parents)
        rule = NodeSampling("node", metric="heldout_image_r1", check_every=10, image_column="image_id", epochs=5)
        triplets = ontology.triplets(pairs)
        plan = make_plan(rule, rank_dataset(triplets, rule), global_batch_size=8)
        plan = plan.decided(Observed(10, {"eval_heldout_image_r1": 0.92}))
        groups = plan.stages[1].groups
        assert dict(zip(groups.names, groups.sizes.tolist(), strict=True)) == ontology.masses
        masses, total = ontology.masses, sum(ontology.masses.values())
        first, second = sorted(masses, key=lambda name: (-masses[name], name))[:2]
        assert plan.log[0]["mass"] == pytest.approx({name: 0.1 * masses[name] / total for name in (first, second)})
        assert rule.describe_decision(plan.log[0]) == (
            "step 10: held-out image R@1 0.92 ≥ 0.90 → refresh 1: entity 0.900, "
            f"{first} {0.1 * masses[first] / total:.3g}, {second} {0.1 * masses[second] / total:.3g}, "
            f"… ({len(masses)} nodes)"
        )
        images = np.array(triplets["image_id"][:])
        assert all(len(set(images[plan.step_rows(step)])) == 8 for step in range(plan.known_steps))


def test_nothing_of_the_pairs_is_copied():
    """At most 40 bytes a row, however large what the pairs hold is."""
    rows = many(2000)
    pairs = make_pairs(rows, picture=[bytes(1000)] * len(rows))
    triplets = induce(pairs, min_pairs=5).triplets(pairs)
    assert isinstance(triplets.data, RepeatedRows)
    assert triplets.data.nbytes <= 40 * len(triplets)
    assert triplets.data.base.nbytes > 1000 * len(pairs)
    assert triplets[7]["picture"] == bytes(1000)


def views(number=6):
    pairs = Dataset.from_dict({"caption": [f"c{row}" for row in range(number)], "score": np.float32(range(number))})
    made = ScoreProvenance("score", "by hand")
    pairs = attach_provenance(pairs, {"score": made}).select(range(number - 1, -1, -1))  # rows 5, 4, … of the table
    rows = np.array([0, 0, 3, 2, 3])
    return pairs, repeat_rows(pairs, rows, {"noun": pa.array(list("abcde"))}, {"noun": Value("string")})


CAPTIONS = ["c5", "c5", "c2", "c3", "c2"]


def test_views_are_data_sets_like_any_other(tmp_path):
    pairs, rows = views()
    plain = Dataset.from_list(list(rows), features=rows.features)
    assert rows["caption"][:] == CAPTIONS
    assert rows["noun"][:] == list("abcde")
    for changed in (
        lambda data: data.select([4, 0]),
        lambda data: data.select(range(1, 4)),
        lambda data: data.shuffle(seed=5).filter(lambda row: row["noun"] != "c"),
        lambda data: data.rename_columns({"noun": "word", "caption": "text"}),
        lambda data: data.select_columns(["noun"]),
        lambda data: data.remove_columns("noun"),
        lambda data: data.cast_column("noun", Value("large_string")),
        lambda data: data.map(lambda row: {"long": row["caption"] + row["noun"]}),
        lambda data: data.flatten_indices(),
        lambda data: data.sort("noun", reverse=True),
        lambda data: data.add_column("more", [1, 2, 3, 4, 5]),
        lambda data: concatenate_datasets([data, data]),
        lambda data: data.train_test_split(2, seed=1)["train"],
        lambda data: data.with_format("numpy"),
        lambda data: pickle.loads(pickle.dumps(data)),
        lambda data: data.flatten(),
        lambda data: data.shard(2, 1),
    ):
        mine, theirs = changed(rows), changed(plain)
        assert list(mine) == list(theirs)
        assert mine.features == theirs.features
        assert mine[:2].keys() == theirs[:2].keys()
    rows.save_to_disk(tmp_path / "rows")
    assert list(load_from_disk(tmp_path / "rows")) == list(plain)
    rows.to_parquet(tmp_path / "rows.parquet")
    assert list(Dataset.from_parquet(str(tmp_path / "rows.parquet"), cache_dir=str(tmp_path))) == list(plain)
    assert rows.to_pandas().equals(plain.to_pandas())
    assert rows.data.filter(pa.array([True, False, False, False, True])).num_rows == 2
    assert rows.data.combine_chunks().column(0).num_chunks == 1
    assert fingerprint_rows(rows).to_dict() == fingerprint_rows(plain).to_dict()
    assert fingerprint_rows(rows.select([2, 1])).to_dict() == fingerprint_rows(plain.select([2, 1])).to_dict()
    assert score_values(rows, "score").tolist() == [5, 5, 2, 3, 2]
    assert (
        rows._fingerprint
        != repeat_rows(
            pairs, np.array([0, 0, 3, 2, 4]), {"noun": pa.array(list("abcde"))}, {"noun": Value("string")}
        )._fingerprint
    )


def test_views_take_new_columns_without_copying():
    _, rows = views()
    shuffled = rows.select([3, 0, 4])
    made = ScoreProvenance("length", "by hand")
    more = append_columns(
        shuffled,
        {"length": np.float32([1, 2, 3]), "boxes": pa.array([[1.0], [], [2.0, 3.0]], pa.list_(pa.float32()))},
        {"length": made},
        features={"boxes": List(Value("float32"))},
        log=False,
    )
    assert isinstance(more.data, RepeatedRows)
    assert more["noun"][:] == ["d", "a", "e"]
    assert more["length"][:] == [1, 2, 3]
    assert more["boxes"][:] == [[1.0], [], [2.0, 3.0]]
    assert base_rows(more).tolist() == [3, 5, 2]


def test_many_rows_at_once(monkeypatch):
    from hf_curriculum import views as module

    _, rows = views()
    whole = rows.with_format("arrow")[:]
    monkeypatch.setattr(module, "_FEW", 2)
    monkeypatch.setattr(module, "_BLOCK", 2)
    assert rows.with_format("arrow")[:].equals(whole)
    assert rows[1:1] == {"caption": [], "score": [], "noun": []}


def test_views_that_cannot_be():
    pairs, rows = views()
    noun = {"noun": Value("string")}
    with pytest.raises(ValueError, match=r"The data already has \['caption'\]"):
        repeat_rows(pairs, np.array([0]), {"caption": pa.array(["x"])}, {"caption": Value("string")})
    with pytest.raises(ValueError, match=r"would get 2 rows, and columns with {'noun': 1}"):
        repeat_rows(pairs, np.array([0, 1]), {"noun": pa.array(["x"])}, noun)
    with pytest.raises(ValueError, match="These rows are views of other rows already"):
        repeat_rows(rows.remove_columns("noun"), np.array([0]), {"noun": pa.array(["x"])}, noun)


def test_an_ontology_of_another_data_set(tmp_path):
    ontology = induce(min_pairs=2)
    others = make_pairs([("1", "a car", ["car"]), ("2", "cats", ["cat"])])
    with pytest.raises(
        ValueError, match=r"None of the 2 captions has one of the ontology's 4 nouns \(dog, frisbee, man"
    ):
        ontology.triplets(others)
    others = make_pairs([("1", "a dog", ["Hund"])])
    with pytest.raises(
        ValueError, match=r"The images show none of the ontology's 2 classes \(dog, frisbee, …\) but Hund"
    ):
        ontology.triplets(others)
    others = make_pairs([("1", "a dog", []), ("2", "it rains", ["dog"])])
    with pytest.raises(ValueError, match="Of 2 pairs none has both a selected noun in its caption and an object"):
        ontology.triplets(others)
    in_memory = induce(min_pairs=2, objects={row[0]: row[2] for row in SENTENCES})
    in_memory.save(tmp_path / "o.json")
    with pytest.raises(ValueError, match="the ontology was read from a file that does not say"):
        Ontology.load(tmp_path / "o.json").triplets(make_pairs())
    with pytest.raises(ValueError, match="It is not known which objects the images show"):
        count_stages(Ontology.load(tmp_path / "o.json"), make_pairs(), make_pairs())


def test_two_sources_as_one():
    """The same ids in both, columns that one lacks, and what each brings at every stage."""
    coco = make_pairs(SENTENCES[:5], caption_id=[str(row) for row in range(5)])
    cc3m = make_pairs([("i1", "a puppy", ["dog"]), ("i2", "a man", []), ("i3", "a man", ["person"])], extra=[1, 2, 3])
    cc3m = cc3m.shuffle(seed=0).sort("image_id")
    joined = join_sources({"coco": coco, "cc3m": cc3m})
    assert joined["image_id"][:] == ["coco/i1", "coco/i1", "coco/i2", "coco/i3", "coco/i4"] + [
        f"cc3m/i{number}" for number in (1, 2, 3)
    ]
    assert joined["source"][:] == ["coco"] * 5 + ["cc3m"] * 3
    assert joined["extra"][:] == [None] * 5 + [1, 2, 3]
    assert joined["caption_id"][4:6] == ["4", None]
    ontology = induce(joined, min_pairs=2)  # a man is in all 4 pairs with a person, as in both with a frisbee: more
    assert ontology.nodes == {"dog": "dog", "puppy": "dog", "man": "person", "frisbee": "frisbee"}
    triplets = ontology.triplets(joined)
    counts = {(one.source, one.stage): one[2:] for one in count_stages(ontology, joined, triplets)}
    assert counts == {
        ("coco", "pairs"): (5, 4, None, None, None),
        ("coco", "with objects"): (5, 4, None, None, None),
        ("coco", "triplets"): (5, 4, 8, 4, 3),
        ("cc3m", "pairs"): (3, 3, None, None, None),
        ("cc3m", "with objects"): (2, 2, None, None, None),
        ("cc3m", "triplets"): (2, 2, 2, 2, 2),
        ("all", "pairs"): (8, 7, None, None, None),
        ("all", "with objects"): (7, 6, None, None, None),
        ("all", "triplets"): (7, 6, 10, 4, 3),
    }
    assert [one[:3] for one in count_stages(ontology, coco, ontology.triplets(coco))] == [
        ("all", "pairs", 5), ("all", "with objects", 5), ("all", "triplets", 5)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("sources", "error", "message"),
    [
        ({}, ValueError, "`join_sources` was given no source"),
        ({"a/b": make_pairs()}, ValueError, "A source is called 'a/b'.* ids of two sources could be the same"),
        ({"a": DatasetDict()}, TypeError, "was given a dict that holds a DatasetDict .* as `sources`"),
        ({"a": make_pairs().remove_columns("image_id")}, ValueError, "`image_id` is not in the data"),
        (
            {"a": make_pairs(), "b": make_pairs().remove_columns("objects").add_column("objects", [1] * 10)},
            ValueError,
            "`objects` is List.* in 'a' and .*int64.* in 'b': one column cannot hold both",
        ),
    ],
)
def test_sources_that_cannot_be_joined(sources, error, message):
    with pytest.raises(error, match=message):
        join_sources(sources)


def test_held_out_instances_are_of_different_images_and_none_of_them_is_trained_on():
    pairs = make_pairs(many(400))
    triplets = induce(pairs, min_pairs=5).triplets(pairs)
    parts = hold_out_instances(triplets, 20, seed=4)
    held = parts["heldout"]["image_id"][:]
    assert len(held) == len(set(held)) == 20
    assert not set(held) & set(parts["train"]["image_id"])
    assert len(parts["train"]) == sum(image not in held for image in triplets["image_id"])
    # The same in any order of the rows, another by another seed.
    again = hold_out_instances(triplets.shuffle(seed=1), 20, seed=4)["heldout"]
    assert list(again) == list(parts["heldout"])
    assert set(hold_out_instances(triplets, 20, seed=5)["heldout"]["image_id"]) != set(held)
    images = len(set(triplets["image_id"]))
    with pytest.raises(ValueError, match=rf"{images} held-out instances were asked for.* are of {images} images"):
        hold_out_instances(triplets, images)
    with pytest.raises(ValueError, match="0 held-out instances were asked for"):
        hold_out_instances(triplets, 0)
    with pytest.raises(ValueError, match="`noun` is not in the data"):
        hold_out_instances(pairs, 1)


def test_images_may_have_numbers_in_place_of_names():
    rows = {"caption": ["w", "x", "y", "z"], "noun": ["dog", "ball", "cat", "dog"]}
    numbers = hold_out_instances(Dataset.from_dict({"image_id": [1, 1, 2, 3], **rows}), 2)
    names = hold_out_instances(Dataset.from_dict({"image_id": ["1", "1", "2", "3"], **rows}), 2)
    assert numbers["heldout"]["caption"][:] == names["heldout"]["caption"][:]


def test_held_out_instances_come_from_all_nouns_of_an_image():
    rows = Dataset.from_dict(
        {"image_id": [f"i{n // 4}" for n in range(400)], "caption": [f"c{n}" for n in range(400)], "noun": ["x"] * 400}
    )
    held = hold_out_instances(rows, 99)["heldout"]
    places = np.bincount([int(caption[1:]) % 4 for caption in held["caption"]], minlength=4)
    assert places.min() >= 10
