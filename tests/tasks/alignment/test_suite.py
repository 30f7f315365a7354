"""Protocols, comparisons of models, classes of objects, and the page about it."""

import csv
import json

import numpy as np
import pytest
from datasets import Dataset

from hf_curriculum import make_scenes
from hf_curriculum.evaluation.comparison import draw_images
from hf_curriculum.tasks.alignment import RetrievalSuite, clip_similarities, compare_retrieval, retrieval_metrics
from hf_curriculum.tasks.alignment.retrieval.compare import RECALL_NAMES
from hf_curriculum.tasks.alignment.retrieval.page import retrieval_report
from hf_curriculum.tasks.alignment.retrieval.ranks import RetrievalRanks, ScoreMatrix
from hf_curriculum.tasks.alignment.retrieval.score_captions import caption_scores, class_notes
from hf_curriculum.tasks.alignment.retrieval.suite import PROTOCOLS, Protocol, read_ranks
from hf_curriculum.tasks.alignment.retrieval.within_class import object_classes, rank_within_classes


def pairs(counts):
    """So many captions of each image, the images' rows mixed."""
    rows = [
        (f"image {i}", f"caption {i} {c}") for c in range(max(counts)) for i in range(len(counts)) if c < counts[i]
    ]
    return Dataset.from_dict({"image_id": [row[0] for row in rows], "caption": [row[1] for row in rows]})


def some_ranks(seed, images=40, better=0.0):
    generator = np.random.default_rng(seed)
    rows = np.repeat(np.arange(images), np.arange(images) % 7 + 1)
    scores = generator.standard_normal((len(rows), images))
    scores[np.arange(len(rows)), rows] += 1 + better
    return ScoreMatrix(scores).ranks(rows)


def test_five_captions_an_image_count_and_the_others_are_counted():
    suite = RetrievalSuite(pairs([1, 7, 5, 6]), Protocol(images=4))
    assert suite.image_ids == [f"image {i}" for i in range(4)]
    assert suite.image_of_text.tolist() == [0] + [1] * 5 + [2] * 5 + [3] * 5
    assert suite.captions[1:6] == [f"caption 1 {c}" for c in range(5)]
    assert suite.notes == ("3 captions are left out: 5 of an image count.", "1 images have fewer than 5 captions.")
    whole = RetrievalSuite(pairs([1, 7]))
    assert (len(whole.captions), whole.notes) == (8, ())
    few = RetrievalSuite(pairs([2, 2, 2]), "flickr30k", limit=2)
    assert few.image_ids == ["image 0", "image 1"]
    assert few.notes[-1] == "Only the first 2 of 3 images: recalls are higher among fewer."


def test_rows_without_a_caption_are_left_out():
    rows = Dataset.from_dict({"image_id": ["a", "a", None, "b"], "caption": ["x", " ", "y", "z"]})
    suite = RetrievalSuite(rows)
    assert (suite.captions, suite.image_ids) == (["x", "z"], ["a", "b"])
    assert suite.notes == ("2 rows without a caption or an image's id are left out.",)


def test_folds_are_ranked_each_for_itself():
    suite = RetrievalSuite(pairs([3, 1, 2, 7, 2, 2, 1]), Protocol(images=7, captions=3, folds=3))
    generator = np.random.default_rng(0)
    scores = generator.standard_normal((len(suite.captions), 7))
    found = suite(ScoreMatrix(scores))
    for images in ([0, 1, 2], [3, 4], [5, 6]):  # as even as they can be
        texts = np.flatnonzero(np.isin(suite.image_of_text, images))
        own = ScoreMatrix(scores[np.ix_(texts, images)]).ranks(suite.image_of_text[texts] - images[0])
        assert found.ranks["model"].image[texts].tolist() == own.image.tolist()
        assert found.ranks["model"].text[images].tolist() == own.text.tolist()
    assert "Each of 3 parts of the images is ranked for itself." in found.notes
    assert PROTOCOLS["coco_1k"] == Protocol(5000, 5, 5)


def test_equal_folds_average():
    """The mean of five folds of 1,000 images is what the field prints for COCO 1K."""
    suite = RetrievalSuite(pairs([5] * 20), Protocol(images=20, folds=5))
    scores = np.random.default_rng(2).standard_normal((100, 20))
    each = [retrieval_metrics(scores[20 * k : 20 * k + 20, 4 * k : 4 * k + 4], np.arange(20) // 5) for k in range(5)]
    for name in RECALL_NAMES:
        assert suite(ScoreMatrix(scores)).values[name] == pytest.approx(np.mean([own[name] for own in each]))


def test_a_comparison_is_the_bootstrap_of_queries():
    random, better = some_ranks(0), some_ranks(1, better=0.7)
    found = compare_retrieval({"random": random, "TOnICS": better}, resamples=30, seed=4)
    assert [each.metric for each in found.differences] == list(RECALL_NAMES)
    counts = np.concatenate(list(draw_images(40, 30, seed=4))).astype(int)
    for each in found.differences:
        way, k = each.metric.split("_r")
        again = []
        for row in counts:
            drawn = np.repeat(np.arange(40), row)
            if way == "text":
                recalls = [np.mean(ranks.text[drawn] <= int(k)) for ranks in (random, better)]
            else:
                queries = np.concatenate([np.flatnonzero(random.image_of_text == image) for image in drawn])
                recalls = [np.mean(ranks.image[queries] <= int(k)) for ranks in (random, better)]
            again.append(recalls[1] - recalls[0])
        assert (each.lower, each.upper) == pytest.approx(np.percentile(again, [2.5, 97.5]))
        against = min(np.sum(np.array(again) <= 5e-5), np.sum(np.array(again) >= -5e-5))
        assert each.p == min(1, 2 * (against + 1) / 31)
        assert each.difference == better.metrics()[each.metric] - random.metrics()[each.metric]
    assert "| TOnICS - random | image R@1 | +" in str(found)
    assert len(found.to_dict()["differences"]) == 6


def test_within_classes_is_ranking_its_rows_alone():
    generator = np.random.default_rng(5)
    rows = np.repeat(np.arange(12), 2)
    classes = [["dog"] * (row % 2) + ["cat"] * int(row % 3 == 0) for row in rows.tolist()]
    classes[3] = ["dog", "cat", "rare"]
    scores = generator.standard_normal((24, 12))
    found = rank_within_classes(ScoreMatrix(scores), rows, classes, min_images=3, resamples=200)
    assert list(found.ranks) == ["dog", "cat"]
    assert found.left_out == {"rare": 1}
    for name in ("dog", "cat"):
        texts = [text for text in range(24) if name in classes[text]]
        images = sorted({rows[text] for text in texts})
        own = ScoreMatrix(scores[np.ix_(texts, images)]).ranks([images.index(rows[text]) for text in texts])
        assert own.metrics().items() >= {n: r.value for n, r in found.recalls[name].items()}.items()
        for recall in found.recalls[name].values():
            assert 0 <= recall.lower <= recall.value <= recall.upper <= 1
    for metric in RECALL_NAMES:
        assert found.mean[metric].value == np.mean([found.recalls[n][metric].value for n in ("dog", "cat")])
        assert found.mean[metric].lower <= found.mean[metric].value <= found.mean[metric].upper
    assert found.table().rows[0][0] == "mean of classes"
    assert "Left out: 1 classes of too few images." in found.table().notes[0]
    cats = len(found.ranks["cat"].text)
    for least, kept in ((cats, ["dog", "cat"]), (cats + 1, ["dog"]), (9, None)):
        edge = rank_within_classes(ScoreMatrix(scores), rows, classes, min_images=least, resamples=1)
        assert kept == (edge and list(edge.ranks))


def test_classes_are_objects_that_a_caption_names():
    scenes = make_scenes(30, validation=0, test=0)["train"]
    found = object_classes(scenes)
    for row, own in zip(scenes, found, strict=True):
        words = {word.rstrip(",") for word in row["caption"].split()}
        nouns = {thing["noun"] for thing in row["objects"]}
        assert set(own) <= nouns
        assert words & nouns <= set(own)
    assert any(found)
    assert object_classes(pairs([1])) is None


def test_a_caption_of_several_nouns():
    scores = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
    caption = np.array([0, 0, 0, 1, 2, 2])
    by_hand = [[scores[caption == c].mean(0), scores[caption == c].max(0)] for c in range(3)]
    np.testing.assert_allclose(caption_scores(scores, caption), [one[0] for one in by_hand], rtol=1e-6)
    np.testing.assert_array_equal(caption_scores(scores, caption, "max"), [one[1] for one in by_hand])
    for wrong in ([0, 0, 2, 2, 2, 2], [1, 1, 1, 1, 1, 1], [0, 1, 0, 1, 1, 1], [0, 0]):
        with pytest.raises(ValueError, match="which must be 0, 1, … without a gap"):
            caption_scores(scores, np.array(wrong))
    with pytest.raises(ValueError, match="`over` is 'sum'"):
        caption_scores(scores, caption, "sum")


@pytest.fixture(scope="module")
def scenes():
    return make_scenes(60, validation=0, test=0, captions_per_image=3)["train"]


def test_the_shipped_clip_is_its_cosines(scenes):
    import torch
    from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

    from hf_curriculum.scorers.alignment.clip import SHIPPED

    suite = RetrievalSuite(scenes, min_images=3)
    found = suite(clip_similarities(suite.captions, suite.images["image"]))
    model, tokenizer = (
        AutoModel.from_pretrained(SHIPPED, dtype=torch.float32).eval(),
        AutoTokenizer.from_pretrained(SHIPPED),
    )
    images = AutoImageProcessor.from_pretrained(SHIPPED, backend="pil")(suite.images["image"][:], return_tensors="pt")
    with torch.inference_mode():
        text = model.get_text_features(**tokenizer(suite.captions, padding=True, return_tensors="pt")).pooler_output
        image = model.get_image_features(**images).pooler_output
        cosines = torch.nn.functional.cosine_similarity(text[:, None].double(), image[None].double(), dim=2).numpy()
    np.testing.assert_allclose(found.similarities.scores_of(slice(None), slice(None)), cosines, atol=1e-5)
    # Captions that are equal have equal cosines: they are ties, and rounding would deal them out at random.
    same = {caption: number for number, caption in reversed(list(enumerate(suite.captions)))}
    cosines = cosines[[same[caption] for caption in suite.captions]]
    assert found.values == retrieval_metrics(cosines, suite.image_of_text)
    assert found.values["image_r1"] > 0.5
    assert found.within.mean["image_r1"].value > 0.5


def test_files_are_read_back_for_a_comparison(tmp_path, scenes):
    suite = RetrievalSuite(scenes, name="random")
    shape, rows = (60, 20), suite.image_of_text
    random = suite(ScoreMatrix(np.random.default_rng(0).standard_normal(shape)))
    random.write(tmp_path / "random", {"data": "scenes"})
    with (tmp_path / "random" / "ranks.csv").open(newline="") as lines:
        entries = list(csv.DictReader(lines))
    assert [int(entry["rank"]) for entry in entries if entry["query"] == "text"] == random.ranks[
        "random"
    ].image.tolist()
    scores = np.zeros(shape)
    scores[np.arange(60), rows] = 1
    found = RetrievalSuite(scenes, name="right", compare={"random": tmp_path / "random"}, resamples=50)(
        ScoreMatrix(scores)
    )
    assert list(found.ranks) == ["random", "right"]
    first = found.comparison.differences[0]
    assert (first.system, first.baseline, first.difference) == ("right", "random", 1 - random.values["image_r1"])
    found.write(tmp_path / "right")
    results = json.loads((tmp_path / "right" / "results.json").read_text())
    assert results["systems"]["right"]["text_r1"] == 1
    assert results["systems"]["random"] == random.values
    assert results["within_class"] is None or "mean" in results["within_class"]
    assert "### Differences" in (tmp_path / "right" / "results.md").read_text()
    assert found.tables()[0].rows[0] == ("image R@1", f"{100 * random.values['image_r1']:.2f}", "100.00")


@pytest.mark.parametrize(
    ("image_ids", "captions"),
    [
        ([7, 7, 8], ["a dog", "one dog", "a cat"]),
        (["a", "b"], ["a dog\r", 'a\r"cat"']),
        (["=1+1", "@b"], ["=cmd|'/c calc'!A1", "-a cat"]),
    ],
)
def test_ranks_are_read_back_for_numbered_images_and_any_caption(tmp_path, image_ids, captions):
    rows = Dataset.from_dict({"image_id": image_ids, "caption": captions})
    suite = RetrievalSuite(rows)
    found = suite(ScoreMatrix(np.eye(len(captions))[:, : len(suite.images)]))
    found.write(tmp_path)
    with (tmp_path / "ranks.csv").open(newline="") as lines:  # nothing that a spreadsheet would run
        assert not [cell for row in csv.reader(lines) for cell in row if cell.startswith(("=", "+", "-", "@"))]
    again = RetrievalSuite(rows, compare={"before": tmp_path}).others["before"]
    assert again.image.tolist() == found.ranks["model"].image.tolist()


def test_notes_of_classes():
    rows = Dataset.from_dict({"image_id": ["1", "2"], "caption": ["a dog", "a cat"]})
    classes = [["dog"], ["cat"]]
    assert RetrievalSuite(rows, notes=["of the data"])(ScoreMatrix(np.eye(2)), ["of scores"]).notes == (
        "of the data",
        "of scores",
    )
    found = RetrievalSuite(rows, classes=classes, notes=class_notes(rows))(ScoreMatrix(np.eye(2)))
    assert found.notes == (
        "Classes are what captions name: the data has no `objects`, so their images may not show them.",
        "Nothing is ranked within classes: none has 10 images.",
    )
    shown = rows.add_column("objects", [[{"name": "dog"}]] * 2)
    assert class_notes(shown) == ()
    assert RetrievalSuite(shown).classes == [["dog"], []]
    assert RetrievalSuite(rows.add_column("objects", [["dog"], [None]])).classes == [["dog"], []]


@pytest.mark.parametrize("objects", [[{"category": 3}], {"name": ["dog"]}, [3]])
def test_objects_without_names(objects):
    rows = Dataset.from_dict({"image_id": ["1"], "caption": ["a dog"], "objects": [objects]})
    with pytest.raises(ValueError, match=r"`objects` holds .*, and captions are ranked within the classes of"):
        RetrievalSuite(rows)


def test_the_page(tmp_path, scenes):
    suite = RetrievalSuite(scenes, min_images=2)
    scores = np.zeros((60, 20))
    scores[np.arange(60), suite.image_of_text] = np.arange(60) % 2
    found = suite(ScoreMatrix(scores))
    page = retrieval_report(found, suite.images, "Scenes").write(tmp_path).read_text()
    assert page.count("<h2") == 1 + (found.within is not None) + 2
    assert "Images found" in page
    assert "right, rank 20" in page  # of a text whose scores are all alike
    assert "1. right" in page
    assert "Within classes" in page
    with pytest.raises(ValueError, match="There are 1 rows of images for the ranks of 20"):
        retrieval_report(found, suite.images.select([0]), "Scenes")


def test_errors_of_the_suite(tmp_path):
    data = pairs([2, 2])
    with pytest.raises(ValueError, match="There is no protocol 'flickr8k'"):
        RetrievalSuite(data, "flickr8k")
    with pytest.raises(ValueError, match="2 images with captions were found, and the protocol is of 1,000"):
        RetrievalSuite(data, "flickr30k")
    with pytest.raises(ValueError, match="2 images with captions were found, and the protocol is of 1,000"):
        RetrievalSuite(data, "flickr30k", limit=2)
    assert "Only the first 1 of 2 images" in RetrievalSuite(data, "flickr30k", limit=1).notes[-1]
    with pytest.raises(ValueError, match="1 images take part, and the protocol ranks 5 parts of them"):
        RetrievalSuite(data, "coco_1k", limit=1)
    with pytest.raises(ValueError, match="0 images with captions were found"):
        RetrievalSuite(Dataset.from_dict({"image_id": ["a"], "caption": [""]}))
    for options in ({"min_images": 1}, {"resamples": 0}):
        with pytest.raises(ValueError, match="Candidates of a class are two images"):
            RetrievalSuite(data, **options)
    with pytest.raises(ValueError, match="`limit` is 0"):
        RetrievalSuite(data, limit=0)
    with pytest.raises(ValueError, match="A model in `compare` is called 'model'"):
        RetrievalSuite(data, compare={"model": "x"})
    with pytest.raises(ValueError, match="There are classes of 1 rows for 4"):
        RetrievalSuite(data, classes=[[]])
    with pytest.raises(ValueError, match="caption"):
        RetrievalSuite(data.remove_columns("caption"))
    with pytest.raises(ValueError, match="Scores of 2 texts with 4 images were given"):
        RetrievalSuite(data)(ScoreMatrix(np.ones((2, 4))))
    with pytest.raises(FileNotFoundError, match=r"There is no file .*ranks\.csv"):
        RetrievalSuite(data, compare={"other": tmp_path})
    RetrievalSuite(pairs([2, 1]))(ScoreMatrix(np.ones((3, 2)))).write(tmp_path)
    assert read_ranks(tmp_path).image.tolist() == [2, 2, 2]
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"other\.csv has 1 rows of the columns \['a', 'b'\], and ranks have"):
        read_ranks(tmp_path / "other.csv")
    for rows in (
        "text,a,b,x",
        "text,1,a,1\nimage,1,,1\nimage,1,,1",
        "text,1,a,1\nTEXT,1,b,1\nimage,1,,1",
        "text,1,a,1\nimage,1,,5\ntext,1,b,2",
        "text,1,a,0\nimage,1,,1",
    ):
        (tmp_path / "other.csv").write_text(f"query,image_id,caption,rank\n{rows}\n")
        with pytest.raises(ValueError, match=r"other\.csv cannot be read as ranks"):
            read_ranks(tmp_path / "other.csv")
    with pytest.raises(ValueError, match=r"has ranks of 5 queries, and they are not the 6 of these images"):
        RetrievalSuite(data, compare={"other": tmp_path})


def test_errors_of_comparisons_and_classes():
    one = some_ranks(0)
    with pytest.raises(ValueError, match=r"1 systems, `resamples=1000` and `confidence=0\.95` were given"):
        compare_retrieval({"a": one})
    with pytest.raises(ValueError, match="The ranks of 'b' are of other texts or images"):
        compare_retrieval({"a": one, "b": some_ranks(0, images=30)})
    with pytest.raises(ValueError, match="The ranks of 'b' are of other texts or images"):
        compare_retrieval({"a": one, "b": RetrievalRanks(one.image, one.text, one.image_of_text[::-1])})
    with pytest.raises(ValueError, match="Classes of 1 texts for 2, `min_images=10`"):
        rank_within_classes(ScoreMatrix(np.ones((2, 2))), [0, 1], [[]])
    with pytest.raises(ValueError, match="2 of 3 captions are blank, the first in row 1"):
        clip_similarities(["a", "", " "], [])
