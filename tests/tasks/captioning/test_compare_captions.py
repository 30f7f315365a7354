"""Significance of differences, and test sets divided by difficulty."""

import json

import numpy as np
import pytest
from hostile import Page

from hf_curriculum.evaluation.comparison import differences, draw_images
from hf_curriculum.tasks.captioning import CaptionEvaluator, compare_captions
from hf_curriculum.tasks.captioning.compare import bootstrap
from hf_curriculum.tasks.captioning.metrics.cider import CiderD
from hf_curriculum.tasks.captioning.metrics.jars import JavaError
from hf_curriculum.tasks.captioning.metrics.metrics import CaptionScores, values_of_sums
from hf_curriculum.tasks.captioning.metrics.overlap import PreparedReferences, bleu_statistics, bleu_values, rouge_l
from hf_curriculum.tasks.captioning.metrics.tokens import tokenize_all
from hf_curriculum.tasks.captioning.suite import difficulty_sets, metrics_by_set

WORDS = ["a", "the", "two", "red", "dog", "cat", "man", "runs", "sits", "on", "in", "park", "mat", "street"]
METRICS = ["bleu", "cider", "rouge"]


def captioners(images=60, seed=0):
    """References, and two captioners: one copies a reference and changes one word in five, the other one in two."""
    generator = np.random.default_rng(seed)
    references = [
        [" ".join(generator.choice(WORDS, generator.integers(5, 11))) for _ in range(generator.integers(1, 5))]
        for _ in range(images)
    ]

    def changed(share):
        words = [list(np.array(generator.choice(given).split())) for given in references]
        return [
            " ".join(word if generator.random() > share else generator.choice(WORDS) for word in each)
            for each in words
        ]

    return references, changed(0.5), changed(0.2)


def test_resamples_are_equal_to_computing_everything_again():
    references, worse, better = captioners()
    evaluate = CaptionEvaluator(references, METRICS)
    scores = {"worse": evaluate(worse), "better": evaluate(better)}
    found = bootstrap(scores, 20, seed=5)
    counts = np.concatenate(list(draw_images(60, 20, seed=5)))
    frequencies = CiderD(references).document_frequencies
    for name, captions in (("worse", worse), ("better", better)):
        for number, row in enumerate(counts):
            drawn = np.repeat(np.arange(60), row.astype(int))
            given, texts = [references[i] for i in drawn], [captions[i] for i in drawn]
            again = bleu_values(bleu_statistics(texts, PreparedReferences(given)).sum(0))
            for n, value in enumerate(again, start=1):
                assert found[name][f"bleu_{n}"][number] == pytest.approx(value, rel=1e-12)
            cider = CiderD(given, frequencies).scores(texts).mean()
            assert found[name]["cider"][number] == pytest.approx(cider, rel=1e-12)
            assert found[name]["rouge_l"][number] == pytest.approx(rouge_l(texts, given).mean(), rel=1e-12)


def test_meteor_and_spice_resample_from_their_numbers():
    generator = np.random.default_rng(0)
    statistics = {
        "meteor": generator.integers(1, 9, (30, 23)).astype(float),
        "spice": generator.random((30, 1)),
        "clip_score": generator.random((30, 2)),
    }
    found = bootstrap({"one": CaptionScores(statistics, {}, np.ones(30))}, 7, seed=1)["one"]
    for number, counts in enumerate(np.concatenate(list(draw_images(30, 7, seed=1)))):
        drawn = np.repeat(np.arange(30), counts.astype(int))
        meteor = values_of_sums("meteor", statistics["meteor"][drawn].sum(0), 30)[0]
        assert found["meteor"][number] == pytest.approx(meteor, rel=1e-12)
        assert found["spice"][number] == pytest.approx(statistics["spice"][drawn].mean(), rel=1e-12)
        assert found["ref_clip_score"][number] == pytest.approx(statistics["clip_score"][drawn, 1].mean(), rel=1e-12)


def test_draws_depend_on_seed_and_size_alone(monkeypatch):
    whole = np.concatenate(list(draw_images(50, 30, seed=2)))
    assert whole.shape == (30, 50)
    assert (whole.sum(1) == 50).all()
    monkeypatch.setattr("hf_curriculum.evaluation.comparison._NUMBERS", 350)
    pieces = list(draw_images(50, 30, seed=2))
    assert [len(piece) for piece in pieces] == [7, 7, 7, 7, 2]
    np.testing.assert_array_equal(np.concatenate(pieces), whole)
    np.testing.assert_array_equal(np.concatenate(list(draw_images(50, 10, seed=2))), whole[:10])
    assert (np.concatenate(list(draw_images(50, 30, seed=3))) != whole).any()
    # Each image is drawn about once, with the variance of a multinomial.
    many = np.concatenate(list(draw_images(40, 4000, seed=0)))
    assert np.abs(many.mean(0) - 1).max() < 0.08
    assert many.var() == pytest.approx(1 - 1 / 40, rel=0.02)


def test_a_better_captioner_wins():
    references, worse, better = captioners()
    found = compare_captions({"worse": worse, "better": better}, references, METRICS, resamples=300)
    assert [each.metric for each in found.differences] == [*(f"bleu_{n}" for n in range(1, 5)), "cider", "rouge_l"]
    for each in found.differences:
        assert (each.system, each.baseline) == ("better", "worse")
        assert each.difference == found.values["better"][each.metric] - found.values["worse"][each.metric]
        assert 0 < each.lower < each.difference < each.upper
        assert each.p == 2 / 301
    turned = compare_captions({"better": better, "worse": worse}, references, METRICS, resamples=300)
    for each, other in zip(turned.differences, found.differences, strict=True):
        assert each.p == other.p  # two-sided: a loss is as sure as the win
        assert (each.lower, each.upper) == pytest.approx((-other.upper, -other.lower), rel=1e-9)


def test_p_is_twice_the_share_of_resamples_on_the_other_side():
    references, worse, better = captioners()
    mixed = [*better[:8], *worse[8:]]
    found = compare_captions({"worse": worse, "mixed": mixed}, references, ["rouge"], resamples=200, seed=9)
    drawn = bootstrap(
        {n: CaptionEvaluator(references, ["rouge"])(c) for n, c in {"w": worse, "m": mixed}.items()}, 200, 9
    )
    change = drawn["m"]["rouge_l"] - drawn["w"]["rouge_l"]
    against = min(np.sum(change <= 5e-5), np.sum(change >= -5e-5))
    assert found.differences[0].p == min(1, 2 * (against + 1) / 201)
    assert found.differences[0].lower == pytest.approx(np.percentile(change, 2.5), rel=1e-9)
    same = compare_captions({"a": worse, "b": worse}, references, ["rouge"], resamples=50)
    assert (same.differences[0].difference, same.differences[0].p) == (0, 1)


@pytest.mark.parametrize("worse", ["foo", "foo bar baz", "w0 x0 y0"])
def test_smoothing_and_less_than_a_printed_digit_are_no_difference(worse):
    references = [[f"w{row} x{row} y{row} z{row} q{row}"] for row in range(10)]
    systems = {"worse": [worse] * 10, "better": ["foo bar baz foo"] * 10}
    found = compare_captions(systems, references, ["bleu"], resamples=50, confidence=0.5).differences[3]
    assert (found.metric, found.difference, found.lower, found.upper, found.p) == ("bleu_4", 0, 0, 0, 1)
    values = {"a": {"r": 0.5}, "b": {"r": 0.50004}}
    (found,) = differences(values, {"a": {"r": np.zeros(9)}, "b": {"r": np.full(9, 4e-5)}}, 0.95)
    assert (found.difference, found.lower, found.upper, found.p) == (0, 0, 0, 1)


def test_intervals_are_of_the_confidence_that_was_asked_for():
    drawn = {"a": {"r": np.zeros(101)}, "b": {"r": np.linspace(-0.2, 0.8, 101)}}
    (found,) = differences({"a": {"r": 0.0}, "b": {"r": 0.3}}, drawn, 0.5)
    assert (found.lower, found.upper) == pytest.approx((0.05, 0.55))
    assert found.p == 2 * (21 + 1) / 102
    drawn["b"]["r"][:50] = np.nan  # a resample without a value wins for neither side
    assert differences({"a": {"r": 0.0}, "b": {"r": 0.3}}, drawn, 0.5)[0].p == 2 * (50 + 1) / 102


def test_the_table(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    references = [["a dog runs"], ["a cat sits"], ["two birds fly"], ["a red bus"]]
    systems = {"Transformer": ["a dog"] * 4, "Simi-CL": ["a dog runs", "a cat sits", "two birds", "a bus"]}
    found = compare_captions(systems, references, resamples=100, seed=1)
    lines = str(found).splitlines()
    assert lines[0] == "| system | BLEU-1 | BLEU-2 | BLEU-3 | BLEU-4 | ROUGE-L | CIDEr-D |"
    own = [f"{100 * found.values['Transformer'][n]:.1f}" for n in ("bleu_4", "rouge_l", "cider")]
    assert lines[2].strip("| ").split(" | ")[4:] == own
    assert lines[4:8] == ["", "### Differences", "", "| systems | metric | difference | 95 % interval | p |"]
    (rouge,) = (line for line in lines if "ROUGE-L | +" in line)
    assert rouge.startswith("| Simi-CL - Transformer | ROUGE-L | +50.00 | [")
    assert rouge.endswith(" | 0.020 |")
    assert "Intervals and p values from 100 paired resamples of 4 images, seed 1; p is two-sided." in str(found)
    left_out = [line.split(" is left out: ")[0] for line in lines if " is left out: " in line]
    assert left_out == ["meteor", "spice", "clip_score"]
    page = Page(found._repr_html_())
    assert " ".join(page.text).split() == [word for word in str(found).split() if word not in ("|", "---", "###")]
    plain = json.loads(json.dumps(found.to_dict()))
    assert plain["differences"][-1]["metric"] == "rouge_l"
    assert plain["values"]["Simi-CL"]["rouge_l"] == found.values["Simi-CL"]["rouge_l"]


def test_three_systems_and_scores_computed_before():
    references, worse, better = captioners(20)
    evaluate = CaptionEvaluator(references, ["rouge"])
    systems = {"a": worse, "b": evaluate(better), "c": evaluate(worse)}
    found = compare_captions(systems, references, ["rouge"], resamples=20)
    assert [(each.system, each.baseline) for each in found.differences] == [("b", "a"), ("c", "a"), ("c", "b")]
    assert found == compare_captions({"a": worse, "b": better, "c": worse}, references, ["rouge"], resamples=20)


def test_a_metric_that_fails_on_the_way_is_left_out_of_all(monkeypatch, caplog):
    """SPICE has too little memory for the second system, say: the other metrics are not lost."""
    references, worse, better = captioners(10)
    module, calls = "hf_curriculum.tasks.captioning.metrics.metrics", []

    def fails_later(captions, references):
        calls.append(len(captions))
        if len(calls) > 1:
            raise JavaError("no memory")
        return np.ones(len(captions))

    monkeypatch.setattr(f"{module}.validate_meteor", lambda: None)
    monkeypatch.setattr(f"{module}.meteor_statistics", lambda captions, references: np.ones((len(captions), 23)))
    monkeypatch.setattr(f"{module}.validate_spice", lambda: None)
    monkeypatch.setattr(f"{module}.spice", fails_later)
    found = compare_captions({"a": worse, "b": better, "c": worse}, references, resamples=5)
    assert "spice" not in found.values["a"]
    assert "meteor" in found.values["c"]
    assert "spice is left out: no memory" in found.notes
    assert caplog.messages == ["spice is left out. no memory"]
    assert calls == [10, 10]
    with pytest.raises(JavaError, match="no memory"):
        CaptionEvaluator(references, ["spice"])(worse)


def test_errors_of_comparisons():
    references, worse, better = captioners(10)
    both = {"a": worse, "b": better}
    with pytest.raises(ValueError, match=r"1 systems, `resamples=1000` and `confidence=0\.95` were given"):
        compare_captions({"a": worse}, references)
    with pytest.raises(ValueError, match="2 systems, `resamples=0`"):
        compare_captions(both, references, resamples=0)
    with pytest.raises(ValueError, match="`confidence=95` were given"):
        compare_captions(both, references, confidence=95)
    with pytest.raises(ValueError, match="9 captions and references for 10 images"):
        compare_captions({"a": worse, "b": better[:9]}, references)
    with pytest.raises(TypeError, match="a dict that holds the text 'a dog' as `systems`"):
        compare_captions({"a": worse, "b": "a dog"}, references)
    scored = CaptionEvaluator(references, ["rouge"])(worse)
    with pytest.raises(
        ValueError, match=r"The scores of 'b' are of \['rouge'\], and \['bleu', 'rouge'\] are compared"
    ):
        compare_captions({"a": worse, "b": scored}, references, ["bleu", "rouge"])
    with pytest.raises(ValueError, match=r"Scores of \[5, 10\] images were given"):
        bootstrap({"a": scored, "b": scored.select(range(5))}, 3)


def test_difficulty_sets():
    scores = np.array([0.5, 0.1, 0.5, 0.9, 0.0, 0.5, 0.3])
    sets = difficulty_sets(scores, 3)
    assert [rows.tolist() for rows in sets] == [[3, 0], [2, 5], [6, 1, 4]]  # ends at 7·k/3 = 2, 4, 7
    assert [len(rows) for rows in difficulty_sets(np.arange(5000.0))] == [1250] * 4
    assert [rows.tolist() for rows in difficulty_sets([1, 2], 1)] == [[1, 0]]
    assert [rows.tolist() for rows in difficulty_sets([1, 2, 2], 3)] == [[1], [2], [0]]
    with pytest.raises(ValueError, match="3 images cannot be divided into 0 sets"):
        difficulty_sets([1.0, 2.0, 3.0], 0)
    with pytest.raises(ValueError, match=r"The scores have shape \(2,\), 1 of them NaN"):
        difficulty_sets([1.0, np.nan])
    with pytest.raises(ValueError, match=r"The scores have shape \(1, 2\)"):
        difficulty_sets([[1.0, 2.0]])
    with pytest.raises(ValueError, match="3 images cannot be divided into 4 sets"):
        difficulty_sets([1.0, 2.0, 3.0])


def test_metrics_of_each_set():
    references, vanilla, better = captioners()
    evaluate = CaptionEvaluator(references)
    sets = difficulty_sets(evaluate(vanilla).per_image["bleu_4"])
    systems = {"vanilla": vanilla, "better": better}
    found = metrics_by_set(systems, references, sets)
    hardness = [scores.corpus["bleu_4"] for scores in found["vanilla"]]
    assert hardness == sorted(hardness, reverse=True)
    assert hardness[0] > 2 * hardness[-1]
    for name, captions in systems.items():
        for scores, rows in zip(found[name], sets, strict=True):
            alone = CaptionEvaluator([references[row] for row in rows])([captions[row] for row in rows])
            assert scores.corpus == pytest.approx(alone.corpus, rel=1e-12)
    whole = metrics_by_set(systems, references, sets, document_frequencies="all")
    rows, tokens = sets[2], tokenize_all(better)
    expected = CiderD(references).scores(tokens)[rows].mean()
    assert whole["better"][2].corpus["cider"] == pytest.approx(expected, rel=1e-12)
    assert whole["better"][2].corpus["bleu_4"] == found["better"][2].corpus["bleu_4"]
    assert whole["better"][2].corpus["cider"] != pytest.approx(found["better"][2].corpus["cider"], rel=1e-3)


def test_errors_of_sets():
    references, vanilla, _ = captioners(8)
    sets = difficulty_sets(np.arange(8.0), 2)
    with pytest.raises(ValueError, match="`document_frequencies` is 'corpus'"):
        metrics_by_set({"a": vanilla}, references, sets, document_frequencies="corpus")
    with pytest.raises(ValueError, match=r"There are 1 systems and sets of \[4, 0\] images"):
        metrics_by_set({"a": vanilla}, references, [sets[0], sets[1][:0]])
    with pytest.raises(ValueError, match="7 captions and references for 8 images"):
        metrics_by_set({"a": vanilla[:7]}, references, sets)
