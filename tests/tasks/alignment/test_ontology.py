"""Ontologies: counts and PMI by hand, a naive reference, corrections, levels, and what cannot be."""

from __future__ import annotations

import base64
import itertools
import json
import logging
import math
from collections import Counter

import numpy as np
import pytest
from datasets import Dataset
from ten_sentences import induce, make_pairs, many, tag

from hf_curriculum.data.regions.base import Regions
from hf_curriculum.data.regions.pack import pack_regions
from hf_curriculum.scorers.text.taggers import tokenize_sentence
from hf_curriculum.tasks.alignment import Ontology, noun_spans
from hf_curriculum.tasks.alignment.ontology import nouns
from hf_curriculum.tasks.alignment.ontology.induce import NounClass
from hf_curriculum.tasks.alignment.ontology.nouns import find_nouns, token_spans
from hf_curriculum.tasks.alignment.ontology.objects import read_objects


def of(ontology, noun):
    return next(found for found in ontology.nouns if found.noun == noun)


def test_ten_sentences_by_hand():
    """Nine pairs show an object. `man` is in 4 of them, with a frisbee in 2, with a person in 4 of the 5 persons."""
    ontology = induce(min_pairs=2)
    assert {found.noun: found.node for found in ontology.nouns} == {
        "dog": "dog",
        "puppy": "dog",
        "man": "frisbee",
        "frisbee": "frisbee",
    }
    man = of(ontology, "man")
    assert man == NounClass("man", "frisbee", "frisbee", 4, 2, man.pmi, 0.5, "person", "person")
    assert man.pmi == pytest.approx(math.log((2 / 9) / ((4 / 9) * (2 / 9))), rel=1e-12)
    dog = of(ontology, "dog")
    assert (dog.pairs, dog.joint, dog.share, dog.runner_up) == (2, 2, 1.0, None)
    assert dog.pmi == pytest.approx(math.log(9 * 2 / (2 * 4)), rel=1e-12)
    # Triplets: dog 2, puppy 2 and frisbee 2 show their class, of man's 4 two show a frisbee.
    assert dict(ontology.sizes) == {"dog": 4, "frisbee": 4}
    assert ontology.counts == {
        "pairs": 10,
        "images": 9,
        "pairs_with_objects": 9,
        "images_with_objects": 8,
        "pairs_without_noun": 2,
        "triplets": 10,
    }
    assert ontology.tree() == "entity 10 → dog 4 (dog, puppy) · frisbee 4 (man, frisbee)"


def test_ties_go_to_more_pairs_and_then_to_the_first_by_name():
    """Of all dogs two have the noun, of both meadows one: 2/4 = 1/2. Of a cup and a mug each is as likely."""
    ontology = induce()
    assert of(ontology, "dog").node == "dog"
    assert of(ontology, "dog").runner_up == "grass"
    for first, second in (("mug", "cup"), ("cup", "mug")):
        tied = induce([("1", "a ball", [first, second]), ("2", "a dog", ["dog"])])
        assert (of(tied, "ball").node, of(tied, "ball").runner_up) == ("cup", "mug")


def test_a_minimum_of_joint_pairs():
    assert {found.noun for found in induce(min_pairs=1).nouns} >= {"ball", "grass"}
    assert of(induce(min_pairs=3), "man").node == "person"
    with pytest.raises(ValueError, match=r"None of 6 nouns has 5 pairs with a class \(the most is 4\)"):
        induce(min_pairs=5)


def test_corrections_by_hand_are_applied_counted_and_recorded(tmp_path, caplog):
    file = tmp_path / "mine.yaml"
    file.write_text("man: person  # was frisbee\npuppy: null\ndog: dog\nball: ball\nunicorn: dog\n")
    with caplog.at_level(logging.INFO, "hf_curriculum"):
        ontology = induce(min_pairs=2, corrections=file)
    assert "1 corrections are of words that no caption has as a noun, such as 'unicorn'" in caplog.text
    assert "3 corrected by hand (of 5 corrections)" in caplog.text
    assert ontology.corrections == {"man": "person", "puppy": None, "ball": "ball"}
    man = of(ontology, "man")
    assert (man.node, man.proposed, man.joint, man.share, man.corrected) == ("person", "frisbee", 4, 1.0, True)
    assert man.pmi == pytest.approx(math.log(9 * 4 / (4 * 5)), rel=1e-12)
    assert (of(ontology, "ball").proposed, of(ontology, "ball").node) == (None, "ball")
    assert ontology.words == {"dog": ("dog",), "frisbee": ("frisbee",), "person": ("man",), "ball": ("ball",)} | {}
    assert dict(ontology.sizes) == {"ball": 1, "dog": 2, "frisbee": 2, "person": 4}
    assert "puppy" not in ontology.nodes
    assert Ontology.from_dict(json.loads(json.dumps(ontology.to_dict()))) == ontology


def test_classes_below_the_minimum_go_and_are_counted():
    ontology = induce(min_pairs=2, min_instances=3, corrections={"man": "person"})
    assert dict(ontology.sizes) == {"dog": 4, "person": 4}
    assert dict(ontology.dropped) == {"frisbee": 2}
    assert set(ontology.nodes) == {"dog", "puppy", "man"}
    assert ontology.counts["triplets"] == 8
    with pytest.raises(ValueError, match="None of 3 classes has 5 instances; the largest, 'person', has 4"):
        induce(min_pairs=2, min_instances=5, corrections={"man": "person"})


def naive(rows, min_pairs):
    """Noun → (class, pairs, joint, PMI), by dictionaries."""
    joint, of_noun, of_class, total = Counter(), Counter(), Counter(), 0
    for _, caption, shown in rows:
        if not shown:
            continue
        total += 1
        said = {{"cats": "cat"}.get(word.lower(), word.lower()) for word in caption.split()} - {"and", "a"}
        said -= {"it", "rains"}
        of_noun.update(said)
        of_class.update(set(shown))
        joint.update((noun, cls) for noun in said for cls in set(shown))
    best = {}
    for (noun, cls), count in joint.items():
        if count >= min_pairs:
            key = (-count / of_class[cls], -count, cls)
            best[noun] = min(best.get(noun, key), key)
    return {
        noun: (key[2], of_noun[noun], -key[1], math.log(-key[1] * total / (of_noun[noun] * of_class[key[2]])))
        for noun, key in best.items()
    }


def test_equal_to_a_naive_reference():
    rows = many(600)
    ontology = induce(rows, min_pairs=30)
    expected = naive(rows, 30)
    assert len(expected) == 6
    assert {found.noun for found in ontology.nouns} == set(expected)
    for found in ontology.nouns:
        node, pairs, joint, pmi = expected[found.noun]
        assert (found.node, found.pairs, found.joint) == (node, pairs, joint)
        assert found.pmi == pytest.approx(pmi, rel=1e-12)


def test_equal_whatever_the_order_of_rows_and_the_number_of_processes(monkeypatch):
    pairs = make_pairs(many(300))
    once = induce(pairs, min_pairs=5)
    shuffled = pairs.shuffle(seed=3)
    assert induce(shuffled, min_pairs=5) == once
    monkeypatch.setattr(nouns, "_BLOCK", 64)
    assert induce(shuffled, min_pairs=5, num_proc=2) == once
    pool, pools = nouns.multiprocess.Pool, []
    monkeypatch.setattr(nouns.multiprocess, "Pool", lambda number: pools.append(number) or pool(number))
    several, single = (find_nouns(pairs, tag, num_proc=number) for number in (2, None))
    assert pools == [2]
    assert several.nouns == single.nouns
    assert all((one == other).all() for one, other in zip(several[1:], single[1:], strict=True))


def test_levels_have_the_examples_of_all_below():
    parents = {"dog": "animal", "animal": "living thing", "person": "living thing", "cat": "animal", "x": "y"}
    ontology = induce(min_pairs=2, corrections={"man": "person"}, parents=parents)
    assert ontology.path("dog") == ("dog", "animal", "living thing")
    assert ontology.masses == {"dog": 4, "frisbee": 2, "person": 4, "animal": 4, "living thing": 8}
    assert ontology.tree() == (
        "entity 10 → living thing 8 · frisbee 2 (frisbee)\n"
        "  living thing 8 → animal 4 · person 4 (man)\n"
        "    animal 4 → dog 4 (dog, puppy)"
    )
    assert set(ontology.parents) == {"dog", "animal", "person"}
    with pytest.raises(ValueError, match="`parents` form a circle: dog → animal → dog"):
        induce(parents={"dog": "animal", "animal": "dog"})


def test_a_long_tree_is_wrapped_and_can_be_short():
    ontology = Ontology((), {f"class {number}": number for number in range(1, 60)}, counts={"triplets": 5_812_004})
    lines = ontology.tree().splitlines()
    assert lines[0].startswith("entity 5,812,004 → class 59 59 · class 58 58 ·")
    assert len(lines) > 5
    assert max(map(len, lines)) <= 119
    assert ontology.tree(2) == "entity 5,812,004 → class 59 59 · class 58 58 · … 57 more"


def test_files(tmp_path):
    ontology = induce(min_pairs=2, tagger="pattern")
    ontology.save(tmp_path / "ontology.json")
    read = Ontology.load(tmp_path / "ontology.json")
    assert read == ontology
    assert hash(read) == hash(ontology)
    assert (read.objects, read.tagger, read.lemmas) == ("objects", "pattern", "spelling")
    assert read.settings["min_pairs"] == 2
    induce(min_pairs=2).save(tmp_path / "own.json")  # by a tagger of our own
    with pytest.raises(
        ValueError, match=r"found with tagger 'tag', which a file does not hold: .*load\(path, tagger="
    ):
        Ontology.load(tmp_path / "own.json").triplets(make_pairs())
    with pytest.raises(ValueError, match="found with tagger 'tag', which a file does not hold"):
        noun_spans(["a dog"], Ontology.load(tmp_path / "own.json"))
    again = Ontology.load(tmp_path / "own.json", tagger=tag, lemmas=str.lower)
    assert (again.tagger, again.lemmas) == (tag, str.lower)
    again = Ontology.load(tmp_path / "own.json", tagger=tag)
    assert list(again.triplets(make_pairs())) == list(induce(min_pairs=2).triplets(make_pairs()))
    assert again.mentions(make_pairs()).nouns == ("dog", "frisbee", "man", "puppy")
    for damaged in (b'{"nouns": []}', b'{"nouns": [', b"\xff\xfe{}"):
        (tmp_path / "other.json").write_bytes(damaged)
        with pytest.raises(ValueError, match=r"other\.json is damaged \(.*`Ontology\.save` writes one"):
            Ontology.load(tmp_path / "other.json")
    text = (tmp_path / "ontology.json").read_text()
    (tmp_path / "other.json").write_text(text.replace("frisbee", "puppy"))
    with pytest.raises(ValueError, match=r"other\.json was damaged, or changed after it was written"):
        Ontology.load(tmp_path / "other.json")
    with pytest.raises(ValueError, match="This is no ontology"):
        Ontology.from_dict({"nouns": []})
    for damaged in ([{"noun": "dog"}], 3):
        with pytest.raises(ValueError, match=r"The ontology's nouns cannot be read \("):
            Ontology.from_dict({**ontology.to_dict(), "nouns": damaged})
    with pytest.raises(ValueError, match="of format 9, and this version"):
        Ontology.from_dict({**ontology.to_dict(), "format": 9})
    with pytest.raises(AttributeError, match="cannot assign"):
        read.sizes = {}


def test_objects_of_several_sources_as_one():
    pairs = make_pairs()
    column = read_objects(pairs, "objects")
    names = {row["image_id"]: [thing["name"] for thing in row["objects"]] for row in pairs}
    half = [{image: names[image] for image in part} for part in (["i1", "i2", "i3"], ["i4", "i5", "i6", "i7", "i9"])]
    regions = {
        image: Regions(image, boxes=np.zeros((len(found), 4), np.float32), classes=tuple(found))
        for image, found in half[1].items()
    }
    several = read_objects(pairs, [half[0], regions])
    assert several.names == column.names
    assert all((one == other).all() for one, other in zip(several[1:], column[1:], strict=True))
    assert column.has_any.tolist() == [True] * 7 + [False, True]


def test_the_class_of_an_object_of_the_scenes_is_its_noun():
    from hf_curriculum import make_scenes

    pairs = make_scenes(250, image_size=32)["train"]
    assert {thing["name"] for thing in pairs[0]["objects"]} != {thing["noun"] for thing in pairs[0]["objects"]}
    nouns = {thing["noun"] for row in pairs["objects"] for thing in row}
    assert set(read_objects(pairs, "objects").names) == nouns
    ontology = Ontology.induce(pairs, min_pairs=5, min_instances=3)
    assert len(ontology.sizes) >= 8
    right = [found for found in ontology.nouns if found.noun in nouns]
    assert sum(found.node == found.noun for found in right) >= 0.75 * len(right)


def test_regions_of_low_confidence_do_not_count():
    found = {"1": Regions("1", confidence=np.float32([0.9, 0.1]), classes=("dog", "tie"))}
    pairs = Dataset.from_dict({"image_id": ["1"], "caption": ["a dog"]})
    assert read_objects(pairs, found).names == ("dog", "tie")
    assert read_objects(pairs, found, min_confidence=0.5).names == ("dog",)
    assert read_objects(pairs, {"1": ["dog", None]}).names == ("dog",)


def test_a_store_is_read_at_once_as_image_by_image(tmp_path):
    """Images that it lacks, regions of low confidence, and classes that no image asked for shows."""
    generator = np.random.default_rng(0)
    lines = []
    for image in range(40):
        found = [
            {"class": f"class {generator.integers(30)}", "rect": [0, 0, 9, 9], "conf": round(generator.random(), 3)}
            for _ in range(int(generator.integers(1, 6)))
        ]
        feature = base64.b64encode(np.ones(2, "<f4").tobytes()).decode()
        lines.append(f"i{image}\t" + json.dumps({"objects": [{**thing, "feature": feature} for thing in found]}))
    (tmp_path / "predictions.tsv").write_text("\n".join(lines) + "\n")
    store = pack_regions(tmp_path / "predictions.tsv", tmp_path / "store", progress=False)
    pairs = Dataset.from_dict({"image_id": ["i3", "i39", "none", "i7", "i3"], "caption": ["a dog"] * 5})
    for least in (0.0, 0.4):
        fast = read_objects(pairs, store, min_confidence=least)
        slow = read_objects(pairs, {image: store.describe(image) for image in store}, min_confidence=least)
        assert fast.names == slow.names
        assert all((one == other).all() for one, other in zip(fast[1:], slow[1:], strict=True))
        assert len(fast.names) < len(store.facts["classes"])
    np.savez(tmp_path / "i3.npz", feat=np.ones((2, 2), np.float32))
    (tmp_path / "features").mkdir()
    (tmp_path / "i3.npz").rename(tmp_path / "features" / "i3.npz")
    plain = pack_regions(tmp_path / "features", tmp_path / "plain", progress=False)
    with pytest.raises(ValueError, match="The regions of image 'i3' have no classes"):
        read_objects(pairs, [plain, store])


def test_objects_of_a_column_that_a_detector_is_unsure_of():
    shown = [[("dog", 0.9), ("cat", 0.4)], [("cat", 0.5)], [("cow", 0.2)], [("cat", None)]]
    objects = [[{"name": name, "confidence": sure} for name, sure in own] for own in shown]
    pairs = Dataset.from_dict({"image_id": ["1", "2", "3", "4"], "caption": ["a dog"] * 4, "objects": objects})
    assert read_objects(pairs, "objects").names == ("cat", "cow", "dog")
    found = read_objects(pairs, "objects", min_confidence=0.5)
    assert (found.names, found.offsets.tolist(), found.classes.tolist()) == (
        ("cat", "dog"),
        [0, 1, 2, 2, 3],
        [1, 0, 0],
    )


@pytest.mark.parametrize(
    ("objects", "error", "message"),
    [
        (
            "caption",
            ValueError,
            r"`caption` is Value\('string'\), and a list of objects a row is needed, each with `name`",
        ),
        ("boxes", ValueError, r"The objects of `boxes` have \['box'\], and no `name`"),
        ("numbers", ValueError, "The classes of `numbers` are int64, not names"),
        ("nowhere.tsv", FileNotFoundError, "There are no objects in 'nowhere.tsv': the pairs have no such column"),
        (3, TypeError, "`objects` is an int. It is a column of the pairs"),
        ({"1": Regions("1", confidence=np.float32([1]))}, ValueError, "The regions of image '1' have no classes"),
        ({"2": ["dog"]}, ValueError, r"None of the 1 images of the pairs \('1', for example\) has an object"),
        ({"1": Regions("1", classes=())}, ValueError, "None of the 1 images"),
        (
            {"1": "dog"},
            TypeError,
            "`objects` gives the image '1' the text 'dog', each letter of which would be a class",
        ),
        (["boxes"], ValueError, "`objects` names the column `boxes` in a list of sources"),
    ],
)
def test_objects_that_cannot_be_read(objects, error, message):
    columns = {"image_id": ["1"], "caption": ["a dog"], "boxes": [[{"box": [0.0]}]], "numbers": [[1]]}
    with pytest.raises(error, match=message):
        induce(Dataset.from_dict(columns), objects=objects)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_pairs": 0}, "`min_pairs` is 0"),
        ({"min_instances": 0}, "`min_instances` is 0"),
        ({"corrections": {"man": "pers0n"}}, r"1 corrections name classes .*'pers0n' \(close: person\)"),
        ({"corrections": {"man": "xylophone"}}, r"such as 'man': 'xylophone' \(there are ball, dog, frisbee"),
        ({"corrections": {"man": True}}, "The corrections hold {'man': True}"),
        ({"corrections": {True: "dog"}}, r"The corrections hold \[True\]"),
        ({"corrections": "nothing.yaml"}, "The corrections file 'nothing.yaml' does not exist"),
        ({"lemmas": "snowball"}, "There are no lemmas by 'snowball'"),
        ({"tagger": lambda texts: [["X"] * len(tokenize_sentence(t)) for t in texts]}, "None of the 10 captions has"),
        ({"tagger": lambda texts: [["NN"] for one in texts]}, "The tagger gave 1 tags for the 5 words"),
    ],
)  # fmt: skip
def test_what_cannot_be_induced(options, message):
    with pytest.raises(ValueError, match=message):
        induce(**options)


def test_pairs_need_captions_and_ids():
    with pytest.raises(ValueError, match="`caption` is not in the data"):
        induce(Dataset.from_dict({"image_id": ["1"], "objects": [[{"name": "dog"}]]}))
    with pytest.raises(ValueError, match="`image_id` is not in the data"):
        induce(Dataset.from_dict({"caption": ["a dog"], "objects": [[{"name": "dog"}]]}))


@pytest.mark.parametrize(
    "text",
    [
        "Two dogs' balls aren't well-known, are they?",
        "  A dog’s   ball.",
        "A cafe\u0301's   cre\u0300me, n\u0303o dog\u0301s",
        "DOGS AND CATS",
        "\u00c5ngstr\u00f6m A\u030angstro\u0308m dog",
    ],
)
def test_where_words_stand(text):
    import unicodedata

    tokens = tokenize_sentence(text)
    spans = list(token_spans(text, tokens))
    assert [unicodedata.normalize("NFC", text[start:end]).replace("’", "'") for start, end in spans] == tokens
    assert all(first[1] <= second[0] for first, second in itertools.pairwise(spans))


@pytest.mark.parametrize("before", ["\u0958", "\u1112\u1161\u11ab", "\u0344", "a\u0323\u0301"])
def test_where_words_stand_behind_letters_that_are_composed_or_taken_apart(before):
    text = f"{before} dog, e\u0301"
    spans = list(token_spans(text, tokenize_sentence(text)))
    assert [text[start:end] for start, end in spans[-3:]] == ["dog", ",", "e\u0301"]
    assert all(text[start:end] == before for start, end in spans[:-3])


def test_a_noun_counts_once_and_stands_where_it_comes_first():
    pairs = Dataset.from_dict({"caption": ["Dogs and a dog", None, " ", "a ball, a BALL"]})
    found = find_nouns(pairs, tag, num_proc=1)
    assert found.nouns == ("ball", "dog")
    assert (found.rows.tolist(), found.starts.tolist(), found.ends.tolist()) == ([0, 3], [0, 2], [4, 6])
    assert find_nouns(pairs, tag, str.upper).nouns == ("BALL", "DOG", "DOGS")
    assert find_nouns(pairs, tag, only={"dog"}).nouns == ("dog",)


def test_wordnet_is_asked_for_the_lemma_of_a_noun(monkeypatch):
    import nltk.stem

    class Lemmatizer:
        def lemmatize(self, word, pos):
            return f"{word}/{pos}"

    monkeypatch.setattr(nltk.stem, "WordNetLemmatizer", Lemmatizer)
    assert find_nouns(Dataset.from_dict({"caption": ["Dogs"]}), tag, "wordnet").nouns == ("dogs/n",)

    class Missing:
        def lemmatize(self, word, pos):
            raise LookupError("Resource wordnet not found.")

    monkeypatch.setattr(nltk.stem, "WordNetLemmatizer", Missing)
    with pytest.raises(LookupError, match="NLTK's `wordnet` is not in its search path"):
        find_nouns(Dataset.from_dict({"caption": ["Dogs"]}), tag, "wordnet")
    monkeypatch.setitem(__import__("sys").modules, "nltk.stem", None)
    with pytest.raises(ImportError, match="Lemmas by WordNet need NLTK"):
        find_nouns(Dataset.from_dict({"caption": ["Dogs"]}), tag, "wordnet")


def test_a_class_called_entity_is_no_root():
    ontology = induce([("i1", "a dog", ["entity"]), ("i2", "a ball", ["ball"]), ("i3", "a puppy", ["entity"])])
    assert ontology.tree() == "entity 3 → entity 2 (dog, puppy) · ball 1 (ball)"
    assert ontology.masses == {"entity": 2, "ball": 1}
    below = induce([("i1", "a dog", ["dog"]), ("i2", "a ball", ["entity"])], parents={"dog": "animal"})
    assert below.tree() == "entity 2 → animal 1 · entity 1 (ball)\n  animal 1 → dog 1 (dog)"


def test_the_root_is_no_level():
    ontology = induce(min_pairs=2, parents={"dog": "animal", "animal": "entity"})
    assert (ontology.parents, ontology.path("dog")) == ({"dog": "animal"}, ("dog", "animal"))
    assert "entity" not in ontology.masses


def test_an_image_has_the_objects_of_the_first_source_alone():
    pairs = Dataset.from_dict({"image_id": ["1", "2", "3"], "caption": ["a dog"] * 3})
    found = read_objects(pairs, [{"1": ["dog"], "2": []}, {"1": ["cat"], "2": ["cat"], "3": ["ball"]}])
    assert [found.names[number] for number in found.classes.tolist()] == ["dog", "ball"]
