"""Labels from captions, boxes and columns, and how right they are."""

from __future__ import annotations

import json
import logging

import numpy as np
import pyarrow as pa
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value
from nltk.tokenize import NLTKWordTokenizer

from hf_curriculum import ObjectMentions, add_scores, group_captions, load_captioned, make_scenes
from hf_curriculum.provenance import column_provenance
from hf_curriculum.scorers.text.mentions import (
    CATEGORIES,
    COCO_NAMES,
    EXACT_MATCH,
    VOC_NAMES,
    category_forms,
    plural_of,
    read_synonyms,
)
from hf_curriculum.tasks.detection import (
    BoxLabels,
    CaptionLabels,
    GivenLabels,
    add_labels,
    label_counts,
    label_names,
    label_quality,
)

CAPTIONS = [["A dog on a table.", "Two cats"], ["A tennis racket"], ["The sea."], [], None]


def captioned(captions=CAPTIONS):
    return Dataset.from_dict({"caption": captions}, features=Features({"caption": List(Value("string"))}))


def labels_of(labels, captions=CAPTIONS, **options):
    labelled = add_labels(captioned(captions), labels, drop_unlabelled=False, **options)
    names = label_names(labelled)
    return [None if ids is None else [names[one] for one in ids] for ids in labelled["labels"]]


def test_exact_match_verbatim_and_plurals():
    assert labels_of(CaptionLabels("coco")) == [["dog", "dining table"], ["tennis racket"], [], [], []]
    assert labels_of(CaptionLabels("coco_verbatim")) == [["dog"], ["tennis racket"], [], [], []]
    assert labels_of(CaptionLabels("coco", plurals=True))[0] == ["cat", "dog", "dining table"]
    assert labels_of(CaptionLabels("voc"))[0] == ["diningtable", "dog"]
    more = CaptionLabels(["ocean", "cat"], plurals=True, synonyms={"ocean": ["sea", "deep blue sea"]})
    assert labels_of(more) == [["cat"], [], ["ocean"], [], []]
    assert len(COCO_NAMES) == 80
    assert len(EXACT_MATCH) == 15
    assert len(VOC_NAMES) == 20


def test_as_the_released_code_has_it():
    """The tokens of all captions together, and a class where its one word is among them."""
    captions = [["a baseball bat, by the sign.", "a tv"], ["hot dog stand"], ["The Dog's bowl"], ["dogs and cups"]]

    def naive(texts):
        tokens = [token for text in texts for token in NLTKWordTokenizer().tokenize(text.lower())]
        return [name for name in COCO_NAMES if EXACT_MATCH.get(name, name) in tokens]

    assert labels_of(CaptionLabels("coco"), captions) == [naive(texts) for texts in captions]


def test_images_that_mention_nothing_are_left_out_and_counted(caplog):
    caplog.set_level(logging.INFO)
    data = captioned().add_column("image_id", list("abcde")).select([4, 3, 1, 2, 0])
    labelled = add_labels(data, CaptionLabels(["dog", "racket", "zebra"]))
    assert labelled["image_id"][:] == ["b", "a"]
    assert labelled["labels"][:] == [[1], [0]]
    assert labelled.features["labels"].feature.names == ["dog", "racket", "zebra"]
    assert "3 of 5 images have none of the 3 classes and are left out" in caplog.text
    never = "1 of 3 classes are in no image by their `caption`, so these images neither teach nor test them: zebra."
    assert never in caplog.text
    assert "labels: 2 labels of 5 images; dog 1, racket 1, zebra 0" in caplog.text
    assert label_counts(labelled) == {"dog": 1, "racket": 1, "zebra": 0}
    made = column_provenance(labelled, "labels")
    assert made.scorer == "CaptionLabels"
    assert made.arguments["categories"] == {"dog": ["dog"], "racket": ["racket"], "zebra": ["zebra"]}
    assert "nltk" in made.versions
    splits = add_labels(DatasetDict(train=data, none=data.select([])), CaptionLabels(["dog"]))
    assert splits["none"].features == splits["train"].features
    assert len(splits["train"]) == 1


def test_of_boxes(caplog):
    objects = [[{"name": "dog"}, {"name": "dog"}, {"name": "cat"}], [{"name": "sea"}], [], None]
    data = Dataset.from_dict({"objects": objects})
    kept = add_labels(data, BoxLabels(["cat", "dog"]), drop_unlabelled=False)
    assert kept["labels"][:] == [[0, 1], [], [], None]
    assert len(add_labels(data, BoxLabels(["cat", "dog"]))) == 1
    with pytest.raises(ValueError, match="The objects in `objects` have no 'name', so they give no labels"):
        add_labels(Dataset.from_dict({"objects": [[{"name": None, "box": [0, 0, 1, 1]}]]}), BoxLabels("coco"))


@pytest.mark.parametrize(
    ("values", "feature", "names", "expected", "classes"),
    [
        ([["b", "a", "b"], [], None], List(Value("string")), None, [[0, 1], [], None], ["a", "b"]),
        (["b", None, "a"], Value("string"), ["b", "c", "a"], [[0], None, [2]], ["b", "c", "a"]),
        ([[1, 0, 1], [2]], List(Value("int64")), ["x", "y", "z"], [[0, 1], [2]], ["x", "y", "z"]),
        ([[90, 1], [18]], List(Value("int32")), {1: "p", 18: "d", 90: "t"}, [[0, 2], [1]], ["p", "d", "t"]),
        ([1, 0], ClassLabel(names=["u", "v"]), None, [[1], [0]], ["u", "v"]),
        ([[1, 0]], List(ClassLabel(names=["u", "v"])), None, [[0, 1]], ["u", "v"]),
    ],
)
def test_of_a_column_that_is_there(values, feature, names, expected, classes):
    data = Dataset.from_dict({"tags": values}, features=Features({"tags": feature}))
    labelled = add_labels(data, GivenLabels("tags", names), drop_unlabelled=False)
    assert labelled["labels"][:] == expected
    assert label_names(labelled) == classes


QUALITY = {
    "caption": [["a dog"], ["a dog, a cat"], ["the sea"], ["a dog"]],
    "objects": [
        [{"name": "dog"}, {"name": "dog"}],
        [{"name": "dog"}, {"name": "car"}],
        [{"name": "cat"}, {"name": "kite"}],
        None,
    ],
}


def test_precision_and_recall_by_hand():
    labelled = add_labels(Dataset.from_dict(QUALITY), CaptionLabels(["dog", "cat", "car"]), drop_unlabelled=False)
    quality = label_quality(labelled)
    assert (quality.images, quality.unlabelled) == (3, 1)
    assert (quality.precision, quality.recall) == (2 / 3, 2 / 4)  # dog, dog right; cat wrong; car, cat missed
    assert (quality.precision_of("dog"), quality.recall_of("dog"), quality.recall_of("cat")) == (1, 1, 0)
    assert str(quality.precision_of("car")) == "nan"
    assert "3 images, 1 of them without a label: precision 0.667, recall 0.500" in str(quality)
    assert json.loads(json.dumps(quality.to_dict()))["classes"]["dog"]["right"] == 2
    boxes = add_labels(Dataset.from_dict(QUALITY), BoxLabels(["dog", "cat", "car"]), drop_unlabelled=False)
    perfect = label_quality(boxes)
    assert (perfect.precision, perfect.recall) == (1, 1)


def test_the_scenes_mention_what_they_show():
    scenes = make_scenes(60, validation=0, test=0)["train"]
    images = group_captions(scenes.select_columns(["image_id", "caption", "objects"]))
    quality = label_quality(add_labels(images, CaptionLabels("scenes"), drop_unlabelled=False), field="noun")
    assert quality.precision == 1
    assert quality.recall > 0.9
    true = add_labels(images, BoxLabels("scenes", field="noun"))
    assert label_quality(true, field="noun").recall == 1


def test_objects_that_are_called_otherwise_are_named(caplog):
    scenes = make_scenes(8, validation=0, test=0)["train"].select_columns(["image_id", "caption", "objects"])
    images = group_captions(scenes)
    assert label_quality(add_labels(images, CaptionLabels("scenes"))).precision == 0
    assert "No object in `objects` is of the 14 classes (ball, boat, box, car, cup, …) by its 'name'" in caplog.text
    with pytest.raises(ValueError, match="`field=` names the entry of objects to read"):
        add_labels(images, BoxLabels("scenes"))


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: CaptionLabels("coca"), ValueError, "`categories` is 'coca'. It is one of 'coco'"),
        (lambda: CaptionLabels(["dog", "cat", "Dog"]), ValueError, "Two categories are called 'dog'"),
        (lambda: GivenLabels("tags", ["a", "b", "a"]), ValueError, "Two categories are called 'a'"),
        (lambda: BoxLabels([]), ValueError, "`categories` is empty"),
        (lambda: CaptionLabels(["dog"], synonyms={"cat": ["kitten"]}), ValueError, r"synonyms of \['cat'\]"),
        (lambda: CaptionLabels(["dog", 3]), TypeError, "a list that holds 3 as `categories`"),
        (lambda: CaptionLabels(["dog"], synonyms="nowhere.txt"), FileNotFoundError, "nowhere"),
        (lambda: add_labels(captioned(), "coco"), TypeError, "was given the text 'coco' as `labels`"),
        (lambda: add_labels([1], CaptionLabels(["dog"])), TypeError, "was given a list that holds 1 as `dataset`"),
        (
            lambda: add_labels(captioned(), BoxLabels(["dog"])),
            ValueError,
            "`objects` is not in the data.*objects=FILE",
        ),
        (
            lambda: add_labels(captioned().add_column("labels", [1] * 5), CaptionLabels(["dog"])),
            ValueError,
            "already has `labels`",
        ),
        (
            lambda: add_labels(captioned(), CaptionLabels(["unicorn"])),
            ValueError,
            r"None of the 5 images has one of the 1 classes \(unicorn\).*so no image would be left to learn from",
        ),
        (
            lambda: add_labels(
                Dataset.from_dict({"caption": ["a", "b"], "image_id": ["1", "1"]}), CaptionLabels("voc")
            ),
            ValueError,
            r"The 2 rows hold one caption each, of 1 images.*group_captions\(data\)",
        ),
        (
            lambda: add_labels(
                Dataset.from_dict({"tags": [["dog", "cat"], ["cow"]]}), GivenLabels("tags", ["dog", "cat"])
            ),
            ValueError,
            r"`tags` has the label 'cow', which is none of the 2 classes",
        ),
        (
            lambda: add_labels(Dataset.from_dict({"tags": [[90]]}), GivenLabels("tags", ["dog", "cat"])),
            ValueError,
            r"has the label 90, which is none of the 2 classes .*COCO's ids go from 1 to 90 with gaps",
        ),
        (
            lambda: add_labels(Dataset.from_dict({"tags": [[1]]}), GivenLabels("tags")),
            ValueError,
            "whose classes are not known by name. Pass `names=`",
        ),
        (lambda: label_quality(captioned()), ValueError, "`labels` is not in the data.*Run `add_labels`"),
        (
            lambda: label_counts(Dataset.from_dict({"labels": [[1]]})),
            ValueError,
            "labels are a list of `ClassLabel` ids",
        ),
        (
            lambda: label_quality(add_labels(captioned(), CaptionLabels(["dog"]))),
            ValueError,
            "`objects` is not in the data.*Labels are compared",
        ),
        (
            lambda: label_quality(add_labels(Dataset.from_dict(QUALITY).select([3]), CaptionLabels(["dog"]))),
            ValueError,
            "`objects` is null in all 1 rows: no image is annotated",
        ),
    ],
)
def test_bad_input(make, error, match):
    with pytest.raises(error, match=match):
        make()


def test_a_file_of_synonyms(tmp_path):
    file = tmp_path / "synonyms.txt"
    file.write_text("person\tman, Woman,girl\n\ndog\tpuppy\n")
    assert read_synonyms(file) == {"person": ["man", "woman", "girl"], "dog": ["puppy"]}
    labels = CaptionLabels("coco", synonyms=file)
    assert labels_of(labels, [["A woman"], ["Two puppies"]]) == [["person"], []]
    assert labels_of(CaptionLabels("coco", synonyms=file, plurals=True), [["Two women, puppies"]]) == [
        ["person", "dog"]
    ]
    assert labels.arguments()["categories"]["dog"] == ["dog", "puppy"]
    file.write_text("person\tgar\u00e7on\r\ndog\tpuppy\r\n", encoding="utf-16")
    assert read_synonyms(file) == {"person": ["gar\u00e7on"], "dog": ["puppy"]}
    for text, match in [
        ("airplane\tjet,seaplane bus\tcoach\n", "Line 1 of .* has 2 tabs: .*two lines that were merged"),
        ("dog\tpuppy\ndog\thound\n", "Line 2 of .* names a category again"),
        ("dog puppy\n", "Line 1 of .* has 0 tabs"),
    ]:
        file.write_text(text)
        with pytest.raises(ValueError, match=match):
            read_synonyms(file)


def test_forms_do_not_touch_the_tables():
    before = {name: dict(forms) for name, forms in CATEGORIES.items()}
    category_forms("coco", plurals=True, synonyms={"dog": ["puppy"]})
    assert before == CATEGORIES
    assert [plural_of(word) for word in ("knife", "policeman", "stop sign", "glass", "bus")] == [
        *("knives", "policemen", "stop signs", "glasses", "buses")
    ]


def test_plurals_that_no_ending_tells():
    plurals = {
        "human": "humans", "german": "germans", "policeman": "policemen", "potato": "potatoes", "photo": "photos",
        "leaf": "leaves", "wolf": "wolves", "loaf": "loaves", "knife": "knives", "roof": "roofs",
        "giraffe": "giraffes", "deer": "deer", "sheep": "sheep",
    }  # fmt: skip
    assert {noun: plural_of(noun) for noun in plurals} == plurals
    assert plural_of("bay leaf") == "bay leaves"


def test_hot_dogs_are_no_dogs_with_plurals():
    captions = [["two hot dogs"], ["a hot dog"], ["a dog eats hot dogs"], ["hot dogs, two dogs"]]
    expected = [["hot dog"], ["hot dog"], ["dog", "hot dog"], ["dog", "hot dog"]]
    for categories in ("coco", "coco_verbatim", ["dog", "hot dog"]):
        labels = CaptionLabels(categories, plurals=True)
        assert [labels.labels_of(each) for each in captions] == [set(each) for each in expected]
    assert CaptionLabels("coco_verbatim").labels_of(captions[1]) == {"dog", "hot dog"}  # ExactMatch's own


def test_coco_s_photographs(test_data, capsys):
    folder = test_data("coco_open")
    pairs = load_captioned(folder / "captions.json", images=folder / "images", objects=folder / "instances.json")
    counted = add_scores(pairs, ObjectMentions(per="image").fit(pairs))
    images = group_captions(counted)
    people = ["man", "woman", "boy", "girl", "child", "lady", "guy", "player", "skier", "surfer", "kid", "rider"]
    wide = CaptionLabels("coco_verbatim", plurals=True, synonyms={"person": people})
    expected = {
        "ExactMatch": (CaptionLabels("coco"), 0.883, 0.386, 19),
        "verbatim": (CaptionLabels("coco_verbatim"), 0.947, 0.366, 25),
        "plurals, words for people": (wide, 0.936, 0.522, 3),
    }
    for name, (labels, precision, recall, unlabelled) in expected.items():
        labelled = add_labels(images, labels, drop_unlabelled=False)
        quality = label_quality(labelled)
        assert quality.images == 116
        assert (quality.precision, quality.recall) == (
            pytest.approx(precision, abs=5e-4),
            pytest.approx(recall, abs=5e-4),
        )
        assert quality.unlabelled == unlabelled
        if name == "ExactMatch":
            assert [len(ids) for ids in labelled["labels"]] == images["object_mentions"][:]
        with capsys.disabled():
            print(f"\ncoco_open, {name}: precision {quality.precision:.3f}, recall {quality.recall:.3f}", end="")


def test_captions_of_flickr_pass_through(test_data):
    folder = test_data("flickr8k")
    images = group_captions(load_captioned(folder / "captions.jsonl", images=False))
    labelled = add_labels(images, CaptionLabels("coco", plurals=True))
    assert len(images) == 800
    assert 300 < len(labelled) <= 800
    assert pa.types.is_list(labelled.data.column("labels").type)
    assert label_counts(labelled)["dog"] > 100


def test_the_whole_table_of_quality():
    labels = CaptionLabels(["dog", "cat", "car", "bus"])
    quality = label_quality(add_labels(Dataset.from_dict(QUALITY), labels, drop_unlabelled=False))
    found = quality.to_dict()
    assert np.isnan(found["classes"]["car"].pop("precision"))
    assert found == {
        "images": 3,
        "unlabelled": 1,
        "precision": 2 / 3,
        "recall": 0.5,
        "classes": {
            "dog": {"labels": 2, "objects": 2, "right": 2, "precision": 1.0, "recall": 1.0},
            "cat": {"labels": 1, "objects": 1, "right": 0, "precision": 0.0, "recall": 0.0},
            "car": {"labels": 0, "objects": 1, "right": 0, "recall": 0.0},
        },
    }
    head, table = str(quality).split("\n\n")
    assert head == "3 images, 1 of them without a label: precision 0.667, recall 0.500"
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    assert [cells[0], *cells[2:]] == [
        ["class", "images that show it", "labelled", "right", "precision", "recall"],
        ["dog", "2", "2", "2", "1.000", "1.000"],
        ["cat", "1", "1", "0", "0.000", "0.000"],
        ["car", "1", "0", "0", "–", "0.000"],
    ]


def test_all_that_is_said_of_labels(caplog):
    caplog.set_level(logging.INFO)
    letters = list("abcdefghijkl")
    data = captioned([["bb cc"], ["bb"]])
    add_labels(data, CaptionLabels(["bb", "cc", *(f"x{one}" for one in letters)]))
    never = ", ".join(f"x{one}" for one in letters[:10])
    few = "in no image by their `caption`, so these images neither teach nor test them"
    assert caplog.messages == [
        "labels: 3 labels of 2 images; bb 2, cc 1, xa 0, xb 0, xc 0.",
        f"12 of 14 classes are {few}: {never} and 2 more.",
    ]
    caplog.clear()
    add_labels(data, CaptionLabels(["bb", *(f"x{one}" for one in letters[:10])]))
    assert caplog.messages[1:] == [f"10 of 11 classes are {few}: {never}."]
    caplog.clear()
    add_labels(data, CaptionLabels(["zz"]), drop_unlabelled=False)
    assert caplog.messages == ["labels: 0 labels of 2 images; zz 0."]


def test_what_is_recorded_of_categories_and_columns_that_are_there():
    plain = CaptionLabels("coco").arguments()
    assert plain == {"categories": "coco", "column": "caption", "plurals": False}
    assert CaptionLabels("coco", plurals=True).arguments()["categories"]["dog"] == ["dog", "dogs"]
    one_each = Dataset.from_dict({"caption": ["a dog", "a cat"], "image_id": ["1", "2"]})
    labelled = add_labels(one_each, CaptionLabels(["dog", "cat"]))
    assert labelled["labels"][:] == [[0], [1]]
    assert add_labels(labelled, CaptionLabels(["cat", "dog"]), overwrite=True)["labels"][:] == [[1], [0]]
