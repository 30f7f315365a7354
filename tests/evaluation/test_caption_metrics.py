import csv
import gzip
import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from transformers import EvalPrediction

from hf_curriculum.evaluation.captions import caption_compute_metrics, caption_metrics, tokenize

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


def needs_pycocoevalcap():
    pytest.importorskip("pycocoevalcap")


def test_golden_values_of_the_reference_code(capsys):
    needs_pycocoevalcap()
    scores = caption_metrics(HYPOTHESES, REFERENCES)
    assert scores == pytest.approx(EXPECTED, rel=1e-4)
    assert list(scores) == ["bleu_1", "bleu_2", "bleu_3", "bleu_4", "cider", "rouge_l"]
    assert capsys.readouterr().out == ""


def test_case_and_punctuation_do_not_count():
    needs_pycocoevalcap()
    shouted = [f"{caption.upper()} ." for caption in HYPOTHESES]
    ended = [[f"{text.capitalize()}!" for text in given] for given in REFERENCES]
    assert caption_metrics(shouted, ended) == pytest.approx(EXPECTED, rel=1e-4)


def test_only_what_is_asked_for():
    needs_pycocoevalcap()
    assert set(caption_metrics(HYPOTHESES, REFERENCES, metrics=["rouge"])) == {"rouge_l"}


def test_an_empty_caption_scores_low_and_breaks_nothing():
    needs_pycocoevalcap()
    scores = caption_metrics(["", *HYPOTHESES[1:]], REFERENCES)
    assert all(np.isfinite(value) and value < EXPECTED[name] for name, value in scores.items())


def test_empty_references_are_left_out():
    needs_pycocoevalcap()
    padded = [[*given, "", "..."] for given in REFERENCES]
    assert caption_metrics(HYPOTHESES, padded) == pytest.approx(EXPECTED, rel=1e-4)


def test_cider_of_one_image_is_zero_and_says_so():
    needs_pycocoevalcap()
    with pytest.warns(UserWarning, match="CIDEr over a single image is 0 by definition"):
        assert caption_metrics(HYPOTHESES[:1], REFERENCES[:1], metrics=["cider"]) == {"cider": 0.0}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        caption_metrics(HYPOTHESES[:1], REFERENCES[:1], metrics=["rouge"])
        caption_metrics(HYPOTHESES[:2], REFERENCES[:2], metrics=["cider"])


@pytest.mark.parametrize(
    ("caption", "tokens"),
    [
        ("A man's dog isn’t here.", "a man 's dog is n't here"),
        ("a black-and-white, 1,000 year-old cat!", "a black-and-white 1,000 year-old cat"),
        ('"quoted" (and) [bracketed]', "quoted -lrb- and -rrb- -lsb- bracketed -rsb-"),
        ("They're  two\n\tgirls'", "they 're two girls"),
        ("Ein großer Bär", "ein großer bär"),
        ("...", ""),
    ],
)
def test_tokens(caption, tokens):
    assert tokenize(caption) == tokens


PENN_TREEBANK = [  # as Stanford CoreNLP 3.4.1 writes them, lower case, punctuation dropped
    (
        "A plastic plate with beans,quiche, apples and 1,000 peas",
        "a plastic plate with beans quiche apples and 1,000 peas",
    ),
    ("A cross road of Furnace St. and Crapo St.", "a cross road of furnace st. and crapo st."),
    ("W. Centre st, KY. in Wash. or a wash.", "w. centre st ky. in wash. or a wash"),
    ("A flat T.V. and a U.S.A flag at 10 p.m.", "a flat t.v. and a u.s.a flag at 10 p.m."),
    ("A person I. A hood, Miami U. pushes, plan b. now", "a person i a hood miami u. pushes plan b. now"),
    ("a huge clock at 5:54pm, not 5:54 or 6pm", "a huge clock at 5:54 pm not 5:54 or 6pm"),
    ("at&t & co; 50% of $5.50 = #2 */ a\\b", "at & t & co 50 % of $ 5.50 = # 2 * / a \\ b"),
    ("£5, €5 &amp; ½", "# 5 $ 5 & 1/2"),
    ("22 3/4 street and 3rd", "22\u00a03/4 street and 3rd"),
    ("they cannot but can not, gonna wanna", "they can not but can not gon na wan na"),
    ("slip 'n' slide, rock'n'roll, mac'n cheese", "slip 'n' slide rock 'n' roll mac 'n cheese"),
    ("the 5 o'clock hors d'oeuvre of Ho'ohu, y'all", "the 5 o'clock hors d'oeuvre of ho'ohu y' all"),
    ("the '80s of 'em, 'tis 1980's", "the '80s of 'em 't is 1980 's"),
    ("a ( b { c } ) on stairs.] with", "a -lrb- b -lcb- c -rcb- -rrb- on stairs -rsb- with"),
    ("an elephant/ and/or 24/7, a dog -- cat – e-mail", "an elephant / and/or 24/7 a dog cat e-mail"),
    ("no. 5 of no. dogs, dog., cat", "no. 5 of no dogs dog. cat"),
    ("dog_cat dog:cat 3:4 dog.The 1.5.6 .5 5.dog -5 1+1", "dog_cat dog cat 3:4 dog.the 1.5.6 .5 5 dog -5 1 +1"),
]


@pytest.mark.parametrize(("caption", "tokens"), PENN_TREEBANK)
def test_tokens_of_the_penn_treebank(caption, tokens):
    assert tokenize(caption) == tokens


@pytest.mark.slow
def test_tokens_are_those_of_the_java_tokenizer(tmp_path):
    """Where Java is installed: the reference itself, on the lines above and on 40,455 captions."""
    needs_pycocoevalcap()
    from pycocoevalcap.tokenizer import ptbtokenizer as reference

    folder, java = os.environ.get("HF_CURRICULUM_TEST_DATA"), shutil.which("java")
    if not folder or not java:
        pytest.skip("needs real data, set HF_CURRICULUM_TEST_DATA, and Java")
    with gzip.open(Path(folder) / "flickr8k" / "captions_all_8091.csv.gz", "rt", encoding="utf-8") as file:
        captions = [caption for caption, _ in PENN_TREEBANK] + [row["caption"] for row in csv.DictReader(file)]
    (tmp_path / "captions.txt").write_text("\n".join(" ".join(one.split("\n")) for one in captions), "utf-8")
    jar = Path(reference.__file__).with_name(reference.STANFORD_CORENLP_3_4_1_JAR)
    options = ["-preserveLines", "-lowerCase", "-encoding", "utf-8", "captions.txt"]
    command = [java, "-Dfile.encoding=UTF-8", "-cp", str(jar), "edu.stanford.nlp.process.PTBTokenizer", *options]
    lines = subprocess.run(command, capture_output=True, cwd=tmp_path, check=True).stdout.decode().split("\n")
    for caption, line in zip(captions, lines, strict=False):
        kept = [word for word in line.rstrip().split(" ") if word not in reference.PUNCTUATIONS]
        assert tokenize(caption) == " ".join(kept), caption


def test_caption_metric_errors(monkeypatch):
    with pytest.raises(ValueError, match=r"\['spice'\] in `metrics` is not known. There are bleu, cider, rouge"):
        caption_metrics(HYPOTHESES, REFERENCES, metrics=["spice"])
    with pytest.raises(ValueError, match="3 captions and references for 2 images"):
        caption_metrics(HYPOTHESES, REFERENCES[:2])
    with pytest.raises(ValueError, match="0 captions and references for 0 images"):
        caption_metrics([], [])
    with pytest.raises(ValueError, match=r"1 of 2 images have no word in their references \(the first is row 1\)"):
        caption_metrics(["a", "b"], [["a"], ["."]])
    for module in [name for name in sys.modules if name.startswith("pycocoevalcap")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "pycocoevalcap", None)
    with pytest.raises(ImportError, match=r'pip install "hf-curriculum\[captioning\]"'):
        caption_metrics(HYPOTHESES, REFERENCES)


class TestComputeMetrics:
    predictions = np.array([[1, 3, 4, 2, 0], [1, 3, 5, 6, -100], [1, 3, 4, 2, -100]])  # a dog, a cat runs, a dog
    labels = np.array([[1, 3, 4, 2, -100], [1, 3, 5, 6, 2], [1, 3, 5, 2, -100]])  # a dog, a cat runs, a cat

    def test_noun_recall_needs_no_package(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "pycocoevalcap", None)
        compute = caption_compute_metrics(Tokenizer(), metrics=(), gold_nouns=[{"dog"}, {"cat", "dog"}, set()])
        assert compute(EvalPrediction(self.predictions, self.labels)) == {"noun_recall": 0.75}

    def test_labels_are_the_references_by_default(self):
        needs_pycocoevalcap()
        compute = caption_compute_metrics(Tokenizer(), metrics=["rouge", "bleu"])
        scores = compute(EvalPrediction(self.predictions, self.labels))
        assert scores["rouge_l"] == pytest.approx((1 + 1 + 0.5) / 3)
        assert scores["bleu_1"] == pytest.approx(6 / 7)

    def test_references_given(self):
        needs_pycocoevalcap()
        given = [["a dog"], ["a cat runs"], ["a cat", "a dog"]]
        compute = caption_compute_metrics(Tokenizer(), references=given, metrics=["rouge"])
        assert compute(EvalPrediction(self.predictions, None)) == {"rouge_l": 1.0}

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
    needs_pycocoevalcap()
    return Path(folder) / "caption_metrics"


@pytest.mark.filterwarnings("ignore:CIDEr over a single image")
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
