import csv
import gzip
import importlib.util
import json
import os
import shutil
import sys
import warnings
from pathlib import Path

import evaluate
import numpy as np
import pytest
from transformers import EvalPrediction

from hf_curriculum.tasks.captioning import CaptionEvaluator, caption_compute_metrics, caption_metrics
from hf_curriculum.tasks.captioning.metrics.cider import DocumentFrequencies
from hf_curriculum.tasks.captioning.metrics.jars import JavaError
from hf_curriculum.tasks.captioning.metrics.metrics import CaptionMetric, reference_tokens
from hf_curriculum.tasks.captioning.metrics.tokens import tokenize_all

HYPOTHESES = ["a cat is on the mat", "two dogs running in the park", "a man riding a bike"]
REFERENCES = [
    ["a cat sits on a mat", "there is a cat on the mat"],
    ["two dogs play in the park", "dogs running in a green park"],
    ["a man rides a red bike", "a person riding a bicycle down a street"],
]
EXPECTED = {
    "bleu_1": 0.9428731437,
    "bleu_2": 0.7968732491,
    "bleu_3": 0.5465796317,
    "bleu_4": 6.6234e-05,
    "cider": 2.8593407,
    "rouge_l": 0.7691941,
}


class Tokenizer:
    pad_token_id = None  # as GPT-2's
    words = ("[PAD]", "[CLS]", "[SEP]", "a", "dog", "cat", "runs")

    def batch_decode(self, ids, skip_special_tokens):
        return [" ".join(self.words[i] for i in row if i > 2) for row in ids]


def test_golden_values_of_the_reference_code(capsys):
    scores = caption_metrics(HYPOTHESES, REFERENCES)
    assert scores == pytest.approx(EXPECTED, rel=1e-4)
    assert list(scores) == ["bleu_1", "bleu_2", "bleu_3", "bleu_4", "cider", "rouge_l"]
    assert capsys.readouterr().out == ""


def test_case_and_punctuation_do_not_count():
    shouted = [f"{caption.upper()} ." for caption in HYPOTHESES]
    ended = [[f"{text.capitalize()}!" for text in given] for given in REFERENCES]
    assert caption_metrics(shouted, ended) == pytest.approx(EXPECTED, rel=1e-4)


def test_only_what_is_asked_for():
    assert set(caption_metrics(HYPOTHESES, REFERENCES, metrics=["rouge"])) == {"rouge_l"}


def test_an_empty_caption_scores_low_and_breaks_nothing():
    scores = caption_metrics(["", *HYPOTHESES[1:]], REFERENCES)
    assert all(np.isfinite(value) and value < EXPECTED[name] for name, value in scores.items())


def test_empty_references_are_left_out():
    padded = [[*given, "", "..."] for given in REFERENCES]
    assert caption_metrics(HYPOTHESES, padded) == pytest.approx(EXPECTED, rel=1e-4)


def test_cider_of_one_image_is_zero_and_says_so():
    with pytest.warns(UserWarning, match="CIDEr is 0 by definition: .* there is a single image"):
        assert caption_metrics(HYPOTHESES[:1], REFERENCES[:1], metrics=["cider"]) == {"cider": 0.0}
    alike = [["a dog runs", "a dog"], ["a dog", "a dog runs"]]
    with pytest.warns(UserWarning, match="or all have the same references"):
        assert caption_metrics(["a dog runs", "a dog"], alike, metrics=["cider"]) == {"cider": 0.0}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        caption_metrics(HYPOTHESES[:1], REFERENCES[:1], metrics=["rouge"])
        caption_metrics(HYPOTHESES[:2], REFERENCES[:2], metrics=["cider"])


def test_caption_metric_errors():
    with pytest.raises(ValueError, match=r"\['bleurt'\] in `metrics` is not known. There are bleu, meteor, cider"):
        caption_metrics(HYPOTHESES, REFERENCES, metrics=["bleurt"])
    with pytest.raises(ValueError, match="3 captions and references for 2 images"):
        caption_metrics(HYPOTHESES, REFERENCES[:2])
    with pytest.raises(ValueError, match="0 captions and references for 0 images"):
        caption_metrics([], [])
    with pytest.raises(ValueError, match=r"1 of 2 images have no word in their references \(the first is row 1\)"):
        caption_metrics(["a", "b"], [["a"], ["."]])
    with pytest.raises(ValueError, match=r"1 of 2 images have no word in their references \(the first is row 0\)"):
        caption_metrics(["a", "b"], [[], ["b"]])
    with pytest.raises(TypeError, match="a list that holds the text 'a dog' as `references`"):
        caption_metrics(["a", "b"], [["a"], "a dog"])
    with pytest.raises(
        TypeError, match=r"the text 'ab' as `generated`, and a list of texts is needed: give `\['ab'\]`"
    ):
        caption_metrics("ab", [["a"], ["b"]])
    with pytest.raises(TypeError, match="a list that holds None as `generated`"):
        caption_metrics(["a", None], [["a"], ["b"]])
    with pytest.raises(TypeError, match="Caption 1 is None"):
        caption_metrics(["a", "b"], [["a", None], ["b"]])
    with pytest.raises(ValueError, match="There are no references: nothing can be compared"):
        CaptionEvaluator([])
    with pytest.raises(ValueError, match=r"CLIPScore compares captions with images, and there are none\. Pass"):
        caption_metrics(HYPOTHESES, REFERENCES, metrics=["clip_score"])
    with pytest.raises(ValueError, match="There are 1 images for 3 lists of references"):
        CaptionEvaluator(REFERENCES, "all", images=["one.jpg"])


def without_java(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))


def test_what_cannot_be_computed_is_said_with_its_reason(monkeypatch, tmp_path):
    without_java(monkeypatch, tmp_path)
    with pytest.raises(JavaError, match="METEOR runs in Java, and there is no `java`"):
        caption_metrics(HYPOTHESES, REFERENCES, metrics="meteor")
    with pytest.warns(UserWarning, match="is left out") as said:
        scores = caption_metrics(HYPOTHESES, REFERENCES, metrics="all")
    assert list(scores) == ["bleu_1", "bleu_2", "bleu_3", "bleu_4", "cider", "rouge_l"]
    reasons = [str(each.message) for each in said]
    for start in ("meteor is left out. METEOR runs", "spice is left out. SPICE runs", "clip_score is left out. CLIPS"):
        assert sum(reason.startswith(start) for reason in reasons) == 1
    with pytest.raises(JavaError, match="SPICE runs in Java, and there is no `java`"):
        caption_compute_metrics(Tokenizer(), metrics=["bleu", "spice"])  # before any training


def test_no_package_is_needed(monkeypatch):
    monkeypatch.setitem(sys.modules, "pycocoevalcap", None)
    assert caption_metrics(HYPOTHESES, REFERENCES) == pytest.approx(EXPECTED, rel=1e-4)


def test_values_of_each_image(caplog):
    scores = CaptionEvaluator(REFERENCES)(HYPOTHESES)
    np.testing.assert_allclose(scores.per_image["cider"], [3.22905934, 3.86828088, 1.4806819], rtol=1e-7)
    np.testing.assert_allclose(scores.per_image["rouge_l"], [0.75870647, 0.83333333, 0.71554252], rtol=1e-7)
    assert scores.per_image["bleu_1"].shape == (3,)
    assert len(scores) == 3
    assert scores.words.tolist() == [6, 6, 5]
    assert caplog.messages == []
    chosen = scores.select([2, 0])
    assert chosen.corpus["cider"] == pytest.approx((3.22905934 + 1.4806819) / 2)
    alone = CaptionEvaluator([REFERENCES[2], REFERENCES[0]], ["bleu"])([HYPOTHESES[2], HYPOTHESES[0]])
    assert chosen.corpus["bleu_2"] == alone.corpus["bleu_2"]
    assert chosen.words.tolist() == [5, 6]


def test_captions_without_a_word_are_counted(caplog):
    scores = CaptionEvaluator(REFERENCES)(["", "...", HYPOTHESES[2]])
    assert caplog.messages == ["2 of 3 generated captions have no word and score 0."]
    for name, values in scores.per_image.items():
        assert values[:2].max() < 1e-9, name
    assert scores.per_image["cider"][2] > 1


def test_document_frequencies_of_another_corpus():
    """One image has a CIDEr then."""
    training = DocumentFrequencies([*REFERENCES, ["a bird"], ["the sea"]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = CaptionEvaluator(REFERENCES[:1], ["cider"], document_frequencies=training)(HYPOTHESES[:1])
    assert found.corpus["cider"] > 1


class TestCaptionMetric:
    def test_equal_to_the_function_and_values_per_image(self):
        metric = CaptionMetric()
        assert isinstance(metric, evaluate.Metric)
        found = metric.compute(predictions=HYPOTHESES, references=REFERENCES, per_image=True)
        each = found.pop("per_image")
        assert found == caption_metrics(HYPOTHESES, REFERENCES)
        assert each["cider"] == pytest.approx([3.22905934, 3.86828088, 1.4806819])
        assert "2015" in metric.citation

    def test_batches(self):
        metric = CaptionMetric()
        metric.add_batch(predictions=HYPOTHESES[:2], references=REFERENCES[:2])
        metric.add(prediction=HYPOTHESES[2], reference=REFERENCES[2])
        assert metric.compute(metrics=["rouge"]) == {"rouge_l": pytest.approx(EXPECTED["rouge_l"], rel=1e-4)}

    def test_all_says_what_is_missing(self, monkeypatch, tmp_path):
        without_java(monkeypatch, tmp_path)
        found = CaptionMetric().compute(predictions=HYPOTHESES, references=REFERENCES, metrics="all")
        assert set(found["unavailable"]) == {"meteor", "spice", "clip_score"}
        assert found["cider"] == pytest.approx(EXPECTED["cider"])

    def test_lists_of_unequal_length(self):
        with pytest.raises(ValueError, match="Mismatch in the number of predictions"):
            CaptionMetric().compute(predictions=HYPOTHESES[:2], references=REFERENCES)


class TestComputeMetrics:
    predictions = np.array([[1, 3, 4, 2, 0], [1, 3, 5, 6, -100], [1, 3, 4, 2, -100]])  # a dog, a cat runs, a dog
    labels = np.array([[1, 3, 4, 2, -100], [1, 3, 5, 6, 2], [1, 3, 5, 2, -100]])  # a dog, a cat runs, a cat

    def test_noun_recall_needs_no_package(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "pycocoevalcap", None)
        compute = caption_compute_metrics(Tokenizer(), metrics=(), gold_nouns=[{"dog"}, {"cat", "dog"}, set()])
        assert compute(EvalPrediction(self.predictions, self.labels)) == {"noun_recall": 0.75}

    def test_labels_are_the_references_by_default(self):
        compute = caption_compute_metrics(Tokenizer(), metrics=["rouge", "bleu"])
        scores = compute(EvalPrediction(self.predictions, self.labels))
        assert scores["rouge_l"] == pytest.approx((1 + 1 + 0.5) / 3)
        assert scores["bleu_1"] == pytest.approx(6 / 7)

    def test_references_given(self):
        given = [["a dog"], ["a cat runs"], ["a cat", "a dog"]]
        compute = caption_compute_metrics(Tokenizer(), references=given, metrics=["rouge"])
        assert compute(EvalPrediction(self.predictions, None)) == {"rouge_l": 1.0}
        other = self.predictions[[1, 0, 2]]  # the references are counted once, and for all evaluations
        assert compute(EvalPrediction(other, None))["rouge_l"] < 1.0
        assert compute(EvalPrediction(self.predictions, None)) == {"rouge_l": 1.0}

    def test_all_metrics_says_what_is_missing(self, monkeypatch, tmp_path, caplog):
        without_java(monkeypatch, tmp_path)
        compute = caption_compute_metrics(Tokenizer(), metrics="all")
        assert [message.split(" is left out. ")[0] for message in caplog.messages] == ["meteor", "spice", "clip_score"]
        assert set(compute(EvalPrediction(self.predictions, self.labels))) == set(EXPECTED)

    def test_the_first_word_of_a_vocabulary_is_a_word(self):
        class Words(Tokenizer):
            words = ("dog", "cat", "runs")

            def batch_decode(self, ids, skip_special_tokens):
                return [" ".join(self.words[i] for i in row) for row in ids]

        compute = caption_compute_metrics(Words(), metrics=(), gold_nouns=[{"dog"}, {"cat"}])
        assert compute(EvalPrediction(np.array([[0, 2, -100], [1, -100, -100]]), None)) == {"noun_recall": 1.0}

    def test_no_gold_noun_at_all_is_nan(self):
        compute = caption_compute_metrics(Tokenizer(), metrics=(), gold_nouns=[set()] * 3)
        assert np.isnan(compute(EvalPrediction(self.predictions, self.labels))["noun_recall"])

    def test_errors(self):
        with pytest.raises(ValueError, match="`metrics` is empty and there are no `gold_nouns`"):
            caption_compute_metrics(Tokenizer(), metrics=())
        compute = caption_compute_metrics(Tokenizer(), references=[["a"]], metrics=["rouge"])
        with pytest.raises(ValueError, match="3 captions and references for 1 images"):
            compute(EvalPrediction(self.predictions, self.labels))


def fixtures():
    folder = os.environ.get("HF_CURRICULUM_TEST_DATA")
    if not folder:
        pytest.skip("needs real data: set HF_CURRICULUM_TEST_DATA")
    return Path(folder) / "caption_metrics"


@pytest.mark.filterwarnings("ignore:CIDEr is 0 by definition")
def test_against_the_values_another_project_expects():
    folder = fixtures() / "nlg_eval"
    names = {"Bleu_1": "bleu_1", "Bleu_2": "bleu_2", "Bleu_3": "bleu_3", "Bleu_4": "bleu_4", "ROUGE_L": "rouge_l"}
    for case in json.loads((folder / "expected.json").read_text("utf-8")):
        scores = caption_metrics(case["hyps"], case["refs"])
        for theirs, ours in names.items():
            assert scores[ours] == pytest.approx(case["expected"][theirs], abs=2e-5), (case, ours)
        assert scores["cider"] == pytest.approx(case["expected"]["CIDEr"], abs=2e-5)


def test_five_references_for_hundreds_of_captions():
    with (fixtures() / "aac_metrics" / "example_1.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    truths = [[row[f"caption_{k}"] for k in range(1, 6)] for row in rows]
    scores = caption_metrics([row["caption_predicted"] for row in rows], truths)
    own = caption_metrics([given[0] for given in truths], truths)
    assert 0.4 < scores["bleu_1"] < 0.8
    assert all(own[name] > value for name, value in scores.items())


GOLDEN = {  # first caption of each image against its others, by pycocoevalcap with its tokenizer, in Java
    "bleu_1": 0.6344705702,
    "bleu_2": 0.4373799065,
    "bleu_3": 0.2941286870,
    "bleu_4": 0.1955385179,
    "meteor": 0.2420969704,
    "rouge_l": 0.4717583582,
    "cider": 0.8865442018,
}


def coco_captions():
    """The first caption of each image of COCO val2017, and its others."""
    folder = fixtures().parent / "coco_captions_val2017"
    with gzip.open(folder / "captions_val2017.json.gz", "rt") as file:
        annotations = json.load(file)["annotations"]
    by_image: dict[int, list[str]] = {}
    for each in annotations:
        by_image.setdefault(each["image_id"], []).append(each["caption"])
    return [texts[0] for texts in by_image.values()], [texts[1:] for texts in by_image.values()]


@pytest.mark.slow
def test_golden_values_of_5000_real_images():
    captions, references = coco_captions()
    assert len(captions) == 5000
    there = bool(shutil.which("java")) and importlib.util.find_spec("pycocoevalcap") is not None
    metrics = ["bleu", "cider", "rouge", *(["meteor"] if there else [])]
    scores = CaptionEvaluator(references, metrics)(captions)
    for name, value in scores.corpus.items():
        assert value == pytest.approx(GOLDEN[name], abs=1e-6 if name == "meteor" else 1e-9), name
    if there:
        from pycocoevalcap.cider.cider import Cider

        tokens = [tokenize_all(captions), reference_tokens(references)]
        truths, given = dict(enumerate(tokens[1])), {row: [text] for row, text in enumerate(tokens[0])}
        theirs = Cider().compute_score(truths, given)[1]
        np.testing.assert_allclose(scores.per_image["cider"], theirs, rtol=0, atol=1e-9)
        # The jar's own EVAL of all 5,000 SCORE lines
        assert scores.corpus["meteor"] == pytest.approx(0.2420960375875178, rel=1e-12)
