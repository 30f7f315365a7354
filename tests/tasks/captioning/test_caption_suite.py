"""Captions of one captioner by every metric, beside other systems', by domain and by difficulty."""

from __future__ import annotations

import csv
import json
import re

import numpy as np
import pytest
from datasets import Dataset
from PIL import Image

from hf_curriculum.tasks.captioning import CaptionEvaluator, compare_captions
from hf_curriculum.tasks.captioning.metrics.jars import JavaError
from hf_curriculum.tasks.captioning.metrics.metrics import VALUES
from hf_curriculum.tasks.captioning.page import caption_report
from hf_curriculum.tasks.captioning.suite import (
    CaptionSuite,
    difficulty_sets,
    metrics_by_set,
    read_captions,
    write_captions,
)

WORDS = ["a", "red", "dog", "runs", "over", "the", "green", "grass", "while", "two", "small", "cats", "sleep", "on"]
COUNTED = ["bleu", "cider", "rouge"]


def sentence(rng):
    return " ".join(rng.choice(WORDS, 9))


def pairs(images=12, seed=0):
    """Two captions for each image, those of an image not together; ids are numbers, as in COCO."""
    rng = np.random.default_rng(seed)
    ids = [str(100 + row) for row in range(images)] * 2
    return Dataset.from_dict({"image_id": ids, "caption": [sentence(rng) for _ in ids]})


def systems(images=12, seed=1):
    rng = np.random.default_rng(seed)
    data = pairs(images)
    # Half of each caption is copied from the first reference: scores are not 0, and differ.
    ours = [f"{' '.join(text.split()[:6])} {sentence(rng)}" for text in data["caption"][:images]]
    return ours, [sentence(rng) for _ in range(images)]


def truths(data):
    images = len(data) // 2
    return [[data["caption"][row], data["caption"][row + images]] for row in range(images)]


def test_values_are_those_of_the_metrics():
    data, (ours, _) = pairs(), systems()
    suite = CaptionSuite(data, COUNTED, name="ours")
    assert suite.image_ids == [str(100 + row) for row in range(12)]
    assert suite.references == truths(data)
    found = suite(ours)
    expected = CaptionEvaluator(truths(data), COUNTED)(ours)
    assert found.values == expected.corpus
    for name, values in expected.per_image.items():
        assert found.per_image[name].tolist() == values.tolist()
    assert (found.comparison, found.sets, found.notes, found.unavailable) == (None, {}, (), {})
    assert "| BLEU-4 | " in found.table
    assert f"| CIDEr-D | {100 * expected.corpus['cider']:.1f} |" in found.table
    assert "Values times 100 on 12 images." in found.table


def test_differences_are_those_of_the_comparison():
    data, (ours, other) = pairs(), systems()
    given = {f"{100 + row}": caption for row, caption in enumerate(other)}
    suite = CaptionSuite(
        data, COUNTED, name="ours", compare={"other": {**given, "7": "of another image"}}, resamples=50, seed=3
    )
    found = suite(ours)
    expected = compare_captions({"other": other, "ours": ours}, truths(data), COUNTED, resamples=50, seed=3)
    assert found.comparison.to_dict() == expected.to_dict()
    assert list(found.scores) == ["other", "ours"]
    one = next(each for each in expected.differences if each.metric == "cider")
    assert one.difference > 0  # the later system less the earlier: ours is the better one
    assert f"| ours - other | CIDEr-D | {100 * one.difference:+.2f} |" in found.table.replace("\\-", "-")
    assert "50 paired resamples of 12 images, seed 3" in found.table


def test_a_system_does_not_win_against_itself():
    data, (ours, _) = pairs(40), systems(40)
    given = {str(100 + row): caption for row, caption in enumerate(ours)}
    found = CaptionSuite(data, COUNTED, name="ours", compare={"itself": given}, resamples=200)(ours)
    assert {one.p for one in found.comparison.differences} == {1.0}


def test_differences_stand_pair_by_pair():
    data, (ours, other) = pairs(), systems()
    given = [dict(zip((str(100 + row) for row in range(12)), texts, strict=True)) for texts in (ours, other)]
    suite = CaptionSuite(data, ["cider", "bleu"], name="c", compare=dict(zip("ab", given, strict=True)), resamples=5)
    rows = suite(ours).tables()[1][2]
    assert [row[0] for row in rows] == [pair for pair in ("b - a", "c - a", "c - b") for _ in range(5)]
    assert [row[1] for row in rows[:5]] == ["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "CIDEr-D"]


@pytest.mark.parametrize("metrics", [COUNTED, ["cider"]])
def test_sets_of_difficulty_are_those_of_the_vanilla_model(metrics, tmp_path):
    """Table 2: images divided by the vanilla model's BLEU-4 for each image, as it was written."""
    data, (ours, vanilla) = pairs(), systems()
    CaptionSuite(data, COUNTED, name="vanilla")(vanilla).write(tmp_path / "vanilla")
    suite = CaptionSuite(
        data,
        metrics,
        name="ours",
        compare={"vanilla": tmp_path / "vanilla"},
        difficulty=tmp_path / "vanilla",
        resamples=5,
    )
    found = suite(ours)
    bleu = CaptionEvaluator(truths(data), ["bleu"])(vanilla).per_image["bleu_4"]
    sets = difficulty_sets(bleu, 4)
    assert list(found.sets["difficulty"]) == ["level 1 (easiest)", "level 2", "level 3", "level 4 (hardest)"]
    assert [rows.tolist() for rows in found.sets["difficulty"].values()] == [rows.tolist() for rows in sets]
    expected = metrics_by_set({"vanilla": vanilla, "ours": ours}, truths(data), sets, metrics)
    for number, values in enumerate(found.by_set["difficulty"].values()):
        assert values == {name: expected[name][number].corpus for name in ("vanilla", "ours")}
    assert len(re.findall(r"\| level \d.*? \| 3 \| (?:vanilla|ours) \|", found.table)) == 8


def test_values_that_are_means_are_taken_of_the_set(monkeypatch):
    """SPICE and CLIPScore are not computed a second time for sets."""
    from hf_curriculum.tasks.captioning.metrics import metrics as module

    calls = []
    fake = np.arange(6) / 10
    monkeypatch.setattr(module, "validate_spice", lambda: None)
    monkeypatch.setattr(module, "spice", lambda captions, references: calls.append(1) or fake[: len(captions)])
    data = pairs(6).add_column("domain", ["in", "out", "in", "near", "near", "near"] * 2)
    found = CaptionSuite(data, ["spice", "cider"])(systems(6)[0])
    assert {name: rows.tolist() for name, rows in found.sets["domain"].items()} == {
        "in": [0, 2],
        "out": [1],
        "near": [3, 4, 5],
    }
    assert found.by_set["domain"]["in"]["model"]["spice"] == pytest.approx(0.1)
    assert found.by_set["domain"]["near"]["model"]["spice"] == pytest.approx(0.4)
    assert found.by_set["domain"]["out"]["model"]["cider"] == 0  # of one image, by its definition
    assert len(calls) == 1


def test_a_metric_that_fails_for_one_system_is_missing_for_all(monkeypatch, tmp_path):
    from hf_curriculum.tasks.captioning.metrics import metrics as module

    calls = []

    def spice(captions, references):
        calls.append(captions)
        if len(calls) == 2:
            raise JavaError("SPICE ran out of memory.")
        return np.ones(len(captions))

    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(module, "validate_spice", lambda: None)
    monkeypatch.setattr(module, "spice", spice)
    given = {str(100 + row): "a red dog" for row in range(12)}
    found = CaptionSuite(pairs(), compare={"other": given}, resamples=5)(systems()[0])
    assert len(calls) == 2
    assert {name: "spice" in values.corpus for name, values in found.scores.items()} == {
        "other": False,
        "model": False,
    }
    assert found.unavailable["spice"] == "SPICE ran out of memory."
    assert "| SPICE | – | – |" in found.table


def test_files(tmp_path):
    data, (ours, _) = pairs(), systems()
    data = data.add_column("domain", ["in"] * 24)
    found = CaptionSuite(data, COUNTED, name="ours")(ours)
    found.write(tmp_path / "out", {"model": "ours"})
    entries = json.loads((tmp_path / "out" / "captions.json").read_text())
    assert entries[0] == {"image_id": 100, "caption": ours[0]}  # a number, as COCO's server wants it
    assert read_captions(tmp_path / "out") == dict(zip(found.image_ids, ours, strict=True))
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["about"] == {"model": "ours"}
    assert results["systems"] == {"ours": found.values}
    assert results["sets"]["domain"]["in"] == {"images": 12, "ours": found.by_set["domain"]["in"]["ours"]}
    assert (tmp_path / "out" / "results.md").read_text() == found.table  # nothing in it is markup
    with (tmp_path / "out" / "per_image.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [row["image_id"] for row in rows] == found.image_ids
    assert {row["domain"] for row in rows} == {"in"}
    for name, values in found.per_image.items():
        assert [float(row[name]) for row in rows] == values.tolist()


def test_ids_that_are_no_numbers_stay_text(tmp_path):
    ids = ["007", "7", "a.jpg", "٣", "-1"]
    write_captions(tmp_path / "new" / "c.json", ids, ["x"] * 5)
    entries = json.loads((tmp_path / "new" / "c.json").read_text())
    assert [entry["image_id"] for entry in entries] == ["007", 7, "a.jpg", "٣", "-1"]
    assert list(read_captions(tmp_path / "new" / "c.json")) == ids


def test_what_is_missing_is_said_with_the_reason(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    found = CaptionSuite(pairs())(systems()[0])
    assert set(found.unavailable) == {"meteor", "spice", "clip_score"}
    assert "| METEOR | – |" in found.table
    for text in ("METEOR runs in Java, and there is no `java`", "SPICE runs in Java", "none was named. Pass `clip=`"):
        assert text in found.table
    assert found.to_dict()["unavailable"] == found.unavailable
    page = caption_report(found, CaptionSuite(pairs(), COUNTED).images, "t").to_html()
    assert "METEOR is missing" in page


def test_clip_score_of_a_named_clip():
    from hf_curriculum import make_scenes
    from hf_curriculum.tasks.captioning.metrics.clip_score import clip_scores

    data = make_scenes(4, image_size=32, validation=0.0, test=0.0)["train"]
    suite = CaptionSuite(data, ["clip_score"], clip="scenes_clip")
    found = suite(["a red cup"] * len(suite.images))
    expected = clip_scores(["a red cup"] * len(suite.images), suite.images["image"], suite.references)
    for name, values in zip(VALUES["clip_score"], expected, strict=True):
        assert found.per_image[name] == pytest.approx(values)
    assert "| CLIPScore |" in found.table


def test_notes():
    data, (ours, _) = pairs(), systems()
    suite = CaptionSuite(data, ["rouge"], limit=5)
    found = suite(["", *ours[1:5]])
    assert len(suite.images) == len(found.image_ids) == 5
    assert found.notes == (
        "Only the first 5 of 12 images: a try, not a result.",
        "1 captions of model have no word and score 0. Beams prefer to end where a model is unsure: `--beams 1`, "
        "or more training, gives words.",
    )
    assert all(note in found.table for note in found.notes)
    assert CaptionSuite(data, ["rouge"], limit=50)(ours).notes == ()


class TestPage:
    def evaluated(self, images=8, **options):
        data, (ours, vanilla) = pairs(images), systems(images)
        given = {str(100 + row): caption for row, caption in enumerate(vanilla)}
        shown = [Image.new("RGB", (8, 8), (row, 0, 0)) for row in range(images)] * 2
        data = Dataset.from_dict({**data.to_dict(), "image": shown})
        suite = CaptionSuite(data, COUNTED, name="ours", compare={"vanilla": given}, resamples=5, **options)
        return suite, suite(ours)

    def test_a_gallery_per_set_with_each_system_s_cider_and_references(self):
        difficulty = {str(100 + row): -row for row in range(8)}  # the first image is the easiest
        suite, found = self.evaluated(difficulty=difficulty, num_sets=2)
        html = caption_report(found, suite.images, "Captions", examples=2).to_html()
        titles = [title for title in re.findall(r"<h2[^>]*>(.*?)</h2>", html) if title.startswith("Level")]
        assert titles == ["Level 1 (easiest)", "Level 2 (hardest)"]
        for number, rows in enumerate(([0, 3], [4, 7])):
            gallery = html.split('<ul class="captioned">')[1 + number].partition("</ul>")[0]
            lines = re.findall(r"<dt[^>]*>(.*?)</dt><dd[^>]*>(.*?)</dd>", gallery)
            expected = []
            for row in rows:
                for system in ("vanilla", "ours"):
                    cider = found.scores[system].per_image["cider"][row]
                    expected.append((f"{system} ({100 * cider:.1f})", found.captions[system][row]))
                expected += [(f"reference {at + 1}", found.references[row][at]) for at in (0, 1)]
            assert lines == expected
        assert "Differences" in html
        assert "By difficulty" in html

    def test_all_images_where_there_are_no_sets(self):
        suite, found = self.evaluated()
        html = caption_report(found, suite.images, "Captions").to_html()
        assert html.count('<ul class="captioned">') == 1
        assert html.partition('<ul class="captioned">')[2].count("<img") == 3
        bare = caption_report(found, suite.images.remove_columns("image"), "Captions").to_html()
        assert "captioned" not in bare.partition("<main")[2]

    def test_other_images(self):
        suite, found = self.evaluated()
        with pytest.raises(ValueError, match="There are 3 rows of images for captions of 8"):
            caption_report(found, suite.images.select(range(3)), "Captions")


class TestMistakes:
    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"limit": 0}, ValueError, "`limit` is 0, which leaves no image"),
            ({"metrics": ["clip_score"]}, ValueError, "CLIPScore needs a CLIP, and none was named"),
            ({"metrics": "clip_score"}, ValueError, "CLIPScore needs a CLIP, and none was named"),
            ({"clip": "scenes_clip"}, ValueError, "CLIPScore compares captions with images.*leave `clip` out"),
            ({"metrics": ["blue"]}, ValueError, "'blue'.*is not known"),
            ({"compare": {"o": {"100": "a"}}}, ValueError, "captions of 'o' lack 11 of the 12.*the first '101'"),
            ({"difficulty": {"101": 0.1}}, ValueError, "difficulty lack 11 of the 12.*the first '100'"),
            ({"compare": {"o": "gone.json"}}, FileNotFoundError, "There is no file gone.json"),
            ({"difficulty": "gone"}, FileNotFoundError, "There is no file gone"),
        ],
    )
    def test_before_captions_are_generated(self, options, error, message):
        with pytest.raises(error, match=message):
            CaptionSuite(pairs(), **{"metrics": COUNTED, **options})

    def test_java_that_is_asked_for_by_name(self, monkeypatch, tmp_path):
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
        with pytest.raises(JavaError, match="METEOR runs in Java"):
            CaptionSuite(pairs(), ["meteor"])

    def test_domains(self):
        data = pairs(2)
        with pytest.raises(ValueError, match="'100' has the domains 'in' and 'out'"):
            CaptionSuite(data.add_column("domain", ["in", "in", "out", "in"]), COUNTED)
        with pytest.raises(ValueError, match="'101' has no domain"):
            CaptionSuite(data.add_column("domain", ["in", None, "in", "in"]), COUNTED)

    def test_names_that_hide_each_other(self):
        given = {str(100 + row): "a" for row in range(12)}
        with pytest.raises(ValueError, match="A system in `compare` is called 'model', as is the evaluated one"):
            CaptionSuite(pairs(), COUNTED, compare={"model": given})

    def test_ids_are_compared_as_texts_and_images_more_are_noted(self, tmp_path):
        rows = Dataset.from_dict({"image_id": [1, 2], "caption": ["a dog", "a cat"]})
        (tmp_path / "captions.json").write_bytes(
            b'\xef\xbb\xbf[{"image_id": 2, "caption": "a dog"}, {"image_id": "1", "caption": "a dog"}, '
            b'{"image_id": 3, "caption": "x"}]'
        )
        suite = CaptionSuite(rows, ["rouge"], compare={"file": tmp_path, "mapping": {"1": "a", 2: "b"}})
        assert suite.others == {"file": ["a dog", "a dog"], "mapping": ["a", "b"]}
        [note] = suite(["a dog", "a cat"]).notes
        assert "captions of 'file' are of 1 images more" in note
        with pytest.raises(ValueError, match="two entries for one image"):
            CaptionSuite(rows, ["rouge"], compare={"mapping": {"1": "a", 1: "a", 2: "b"}})

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("not json", "captions.json is not JSON"),
            ('[{"image_id": null, "caption": "a"}]', "no `image_id` that is a text or a whole number"),
            ('[{"image_id": 1, "caption": "a", "caption": "b"}]', "The key 'caption' stands twice"),
            ('[{"image_id": 1, "caption": "a \\ud83d"}]', "Row 1 holds half a character"),
            ('{"images": []}', "and rows are needed: a JSON list"),
            ('[{"image": 1}]', "cannot be read as captions"),
            ('[{"image_id": 1, "caption": "a"}, {"image_id": 1, "caption": "b"}]', "two captions for the image '1'"),
            ('[{"image_id": 1, "caption": null}]', "the caption None for the image '1'"),
        ],
    )
    def test_files_of_captions(self, text, message, tmp_path):
        (tmp_path / "captions.json").write_text(text)
        with pytest.raises(ValueError, match=message):
            read_captions(tmp_path)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("image_id,cider\n100,0.5\n", r"has no column \['bleu_4'\]; it has \['image_id', 'cider'\]"),
            ("", "has no column"),
            ("image_id,bleu_4\n100,\n", "line 2: `bleu_4` is no number"),
            ("image_id,bleu_4\n100\n", "Line 2 has fewer cells than the header"),
            ("image_id,bleu_4\n1,0.5\n1,0.1\n", "has the image '1' twice, line 3 again"),
            ("image_id,bleu_4,bleu_4\n1,0.5,0.7\n", r"The header has \['bleu_4'\] twice"),
            ('image_id,bleu_4\n"1,0.5\n2,0.1\n', "In line 2 a quotation mark opens a cell"),
        ],
    )
    def test_files_of_difficulty(self, text, message, tmp_path):
        (tmp_path / "per_image.csv").write_text(text)
        with pytest.raises(ValueError, match=message):
            CaptionSuite(pairs(), COUNTED, difficulty=tmp_path)
