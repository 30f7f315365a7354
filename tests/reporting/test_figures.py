import io
from itertools import combinations, pairwise

import matplotlib
import numpy as np
import pytest
from figure_cases import CURVES, DRAWN, FIGURES, HUMPS, POOLS, SCORES, SHARES
from matplotlib.figure import Figure
from PIL import Image

from hf_curriculum import BabySteps, Phases, SelfPaced, make_plan
from hf_curriculum.planning.score_mixture import fit_score_mixture
from hf_curriculum.reporting.figures.canvas import DARK, LIGHT, THEMES, new_figure, number_ticks, spread, to_png
from hf_curriculum.reporting.figures.curves import examples_until, merges_of, metric_label, validation_curves
from hf_curriculum.reporting.figures.distribution import (
    ScoreRow,
    score_distribution,
    score_distributions,
    score_mixture,
)
from hf_curriculum.reporting.figures.growth import drawn_scores, drawn_shares, plan_growth, pool_growth
from hf_curriculum.reporting.html import number, percent


def axes_of(figure):
    return figure.axes[0]


def texts(figure):
    return [text.get_text() for text in axes_of(figure).texts]


def dashed(figure):
    """Positions of the vertical lines that run over the whole height."""
    return [line.get_xdata()[0] for line in axes_of(figure).lines if list(line.get_ydata()) == [0, 1]]


def tick_labels(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("theme", [theme for wide in THEMES for theme in (wide, wide.narrow())])
def test_every_figure_renders_in_every_theme(name, theme):
    settings = dict(matplotlib.rcParams)
    with Image.open(io.BytesIO(to_png(FIGURES[name](theme)))) as png:
        assert png.format == "PNG"
        assert png.width == theme.width * 200
        background = tuple(int(theme.surface[place : place + 2], 16) for place in (1, 3, 5))
        assert max(abs(a - b) for a, b in zip(png.convert("RGB").getpixel((2, 2)), background, strict=True)) <= 2
    assert dict(matplotlib.rcParams) == settings


def test_no_figure_is_registered_with_pyplot():
    from matplotlib import pyplot

    before = pyplot.get_fignums()
    for make in FIGURES.values():
        make(LIGHT)
    assert pyplot.get_fignums() == before


def test_labels_stay_inside_the_image():
    for theme in (LIGHT, LIGHT.narrow()):
        for name, make in FIGURES.items():
            figure = make(theme)
            figure.canvas.draw()
            width, height = figure.canvas.get_width_height(physical=True)
            for text in axes_of(figure).texts:
                box = text.get_window_extent()
                assert box.x0 > -1, (name, theme.width, text)
                assert box.y0 > -1, (name, theme.width, text)
                assert box.x1 < width + 1, (name, theme.width, text)
                assert box.y1 < height + 1, (name, theme.width, text)


def luminance(colour):
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_colours_have_the_contrast_the_theme_promises(theme):
    def contrast(one, other):
        light, dark = sorted((luminance(one), luminance(other)), reverse=True)
        return (light + 0.05) / (dark + 0.05)

    assert contrast(theme.text, theme.surface) >= 7
    assert contrast(theme.muted, theme.surface) >= 4.5
    assert contrast(theme.muted, theme.page) >= 4.5
    assert all(contrast(colour, theme.surface) >= 4 for colour in theme.series)


class TestScoreDistribution:
    @pytest.mark.parametrize(("count", "end"), [(999, 5010.0), (1000, 5001.0)])
    def test_a_score_far_beyond_the_others_is_hidden_wherever_they_lie(self, count, end):
        scores = [*np.linspace(5000, 5001, count - 1), 5010.0]
        left, right = axes_of(score_distribution(scores, name="n")).get_xlim()
        assert left == pytest.approx(5000, abs=0.5)
        assert right == pytest.approx(end, abs=0.5)

    def test_steps_cuts_and_shares(self):
        figure = score_distribution(SCORES, name="noun_count", cuts=(2, 4))
        curve = axes_of(figure).lines[0]
        assert curve.get_drawstyle() == "steps-post"
        points = dict(zip(curve.get_xdata(), curve.get_ydata(), strict=True))
        assert points[2] == pytest.approx(0.5)
        assert points[4] == pytest.approx(0.7)
        assert points[9] == 1.0
        assert dashed(figure) == [2, 4]
        assert texts(figure)[:3] == ["50 %", "20 %", "30 %"]
        assert texts(figure)[3:] == ["2", "4"]
        assert axes_of(figure).get_ylim() == (0, 1)
        assert axes_of(figure).get_title("right") == "10 examples"
        assert axes_of(figure).get_xlabel().startswith("noun_count")

    def test_high_is_easy_runs_from_right_to_left(self):
        figure = score_distribution([0.1, 0.2, 0.3, 0.4], name="clip", cuts=(0.3, 0.2), easy="high")
        left, right = axes_of(figure).get_xlim()
        assert left > right
        assert texts(figure)[:3] == ["50 %", "25 %", "25 %"]  # 0.4 and 0.3; 0.2; 0.1
        curve = axes_of(figure).lines[0]
        assert curve.get_drawstyle() == "default"
        assert dict(zip(curve.get_xdata(), curve.get_ydata(), strict=True))[0.4] == pytest.approx(0.25)

    def test_unscored_are_counted(self):
        figure = score_distribution([1, np.nan, 2, np.inf], name="n", unscored=3)
        assert axes_of(figure).get_title("right") == "2 examples, 5 without a score"

    def test_shares_of_buckets_that_divide_ties(self):
        figure = score_distribution([1, 1, 1, 1], name="n", cuts=(1,), shares=(0.25, 0.75))
        assert texts(figure)[:2] == ["25 %", "75 %"]

    @pytest.mark.parametrize("theme", [LIGHT, LIGHT.narrow()])
    def test_labels_of_many_buckets_do_not_cover_each_other(self, theme):
        figure = score_distribution(np.arange(40) % 20, name="caption_length", cuts=range(4, 14), theme=theme)
        figure.canvas.draw()
        assert len(dashed(figure)) == 10
        boxes = [text.get_window_extent() for text in axes_of(figure).texts]
        assert len(boxes) > 8
        assert not [pair for pair in combinations(boxes, 2) if pair[0].overlaps(pair[1])]

    def test_constant_scores(self):
        figure = score_distribution([0.25, 0.25], name="n")
        low, high = axes_of(figure).get_xlim()
        assert low < 0.25 < high

    def test_far_outliers_do_not_squash_the_rest(self):
        scores = [*np.linspace(0, 1, 10_000), 1e6]
        figure = score_distribution(scores, name="perplexity")
        assert axes_of(figure).get_xlim()[1] < 2
        assert any("lie beyond the axis" in text for text in texts(figure))

    def test_large_data_is_drawn_with_few_points(self):
        figure = score_distribution(np.random.default_rng(0).normal(size=200_000), name="n")
        x, y = axes_of(figure).lines[0].get_data()
        assert len(x) < 2100
        assert y[-1] == 1.0

    def test_errors(self):
        with pytest.raises(ValueError, match=r"None of the 2 examples has a finite `n`"):
            score_distribution([np.nan, np.nan], name="n")
        with pytest.raises(ValueError, match=r"`easy` is 'hard'.*pass \"low\" or \"high\""):
            score_distribution([1], name="n", easy="hard")
        with pytest.raises(ValueError, match="2 shares for 2 cuts, which make 3 buckets"):
            score_distribution([1, 2, 3], name="n", cuts=(1, 2), shares=(0.5, 0.5))


class TestScoreMixture:
    def test_the_easy_hump_comes_first_and_the_threshold_stands_between(self):
        mixture = fit_score_mixture(HUMPS)
        figure = score_mixture(HUMPS, mixture, name="clip", easy="high")
        axes = axes_of(figure)
        assert axes.get_xlim()[0] > axes.get_xlim()[1]
        assert dashed(figure) == [mixture.threshold]
        labels = [text.get_text() for text in figure.legends[0].get_texts()]
        assert labels == ["easy hump, kept 33 %", "hard hump, left out 67 %"]
        easy, hard = (line.get_xdata()[line.get_ydata().argmax()] for line in axes.lines[:2])
        assert easy == pytest.approx(5, abs=1)
        assert hard == pytest.approx(0, abs=1)
        assert sum(bar.get_height() for bar in axes.patches) == pytest.approx(1)

    def test_whole_numbers_have_a_bar_each(self):
        counts = np.repeat([1, 2, 3, 11, 12, 13], [20, 40, 20, 20, 40, 20])
        axes = axes_of(score_mixture(counts, fit_score_mixture(counts), name="n"))
        heights = {bar.get_x() + 0.5: bar.get_height() for bar in axes.patches if bar.get_height()}
        assert heights == {1: 0.125, 2: 0.25, 3: 0.125, 11: 0.125, 12: 0.25, 13: 0.125}

    def test_errors(self):
        mixture = fit_score_mixture(HUMPS)
        with pytest.raises(ValueError, match="None of the examples has a finite `n`"):
            score_mixture([np.nan], mixture, name="n")
        with pytest.raises(ValueError, match=r"`easy` is 'hard'"):
            score_mixture(HUMPS, mixture, name="n", easy="hard")
        plain = np.linspace(0, 1, 200)
        with pytest.raises(ValueError, match=r"`n` has no two humps to draw: .*no valley"):
            score_mixture(plain, fit_score_mixture(plain), name="n")


class TestScoreDistributions:
    def test_scores_of_both_directions_run_from_easy_to_hard(self):
        clip = ScoreRow([0.1, 0.2, 0.3, 0.5], easy="high", cuts=(0.3,))
        assert clip.normalised(clip.finite) == pytest.approx([1, 0.75, 0.5, 0])
        loss = ScoreRow([30, np.nan, 50, 40], cuts=(40,))
        assert loss.normalised(loss.finite).tolist() == [0, 1, 0.5]
        axes = axes_of(score_distributions({"clip": clip, "loss": loss}))
        cuts = [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == "--"]
        assert cuts == [pytest.approx(0.5), pytest.approx(0.5)]
        assert axes.get_title("right") == ""  # not the same number of examples

    def test_histograms_stand_below_each_other(self):
        scores = np.array([0.0, 0.05, 0.1, 5.05, 10.0])
        axes = axes_of(score_distributions({"one": ScoreRow(scores), "two": ScoreRow(scores, easy="high")}))
        one, two = (line.get_data() for line in axes.lines if line.get_drawstyle() == "steps-post")
        assert one[1][:-1].tolist() == [1, *[0] * 39, pytest.approx(1 / 3), *[0] * 38, pytest.approx(1 / 3)]
        assert two[1][:-1] == pytest.approx(one[1][:-1][::-1] - 1.25)  # mirrored, a row below
        spread = np.std(scores / 10)
        assert texts(axes.figure) == ["one", f"spread {spread:.3g}", "two", f"spread {spread:.3g}"]
        assert axes.get_title("right") == "5 examples"

    def test_rows_of_one_score_stand_on_one_axis_in_its_unit(self):
        rows = {"near": ScoreRow([0.2, 0.6], easy="high", cuts=(0.5,)), "far": ScoreRow([-0.2, 0.3], cuts=(0.5,))}
        axes = axes_of(score_distributions(rows, label="cosine"))
        assert [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == "--"] == [0.5, 0.5]
        near, far = (line.get_data() for line in axes.lines if line.get_drawstyle() == "steps-post")
        assert near[0][[0, -1]] == pytest.approx([-0.2, 0.6])
        assert np.flatnonzero(near[1] == 1).tolist() == [40, 79]
        assert np.flatnonzero(far[1] == 1 - 1.25).tolist() == [0, 50]
        assert axes.get_xlabel() == "cosine"
        one = axes_of(score_distributions({"n": ScoreRow([3, 3])}, label="count"))
        assert one.get_xlim()[0] < 3 < one.get_xlim()[1]

    def test_whole_numbers_have_a_bar_each_and_constants_stand_in_the_middle(self):
        axes = axes_of(score_distributions({"n": ScoreRow([1, 2, 2, 4]), "c": ScoreRow([7.5, 7.5])}))
        whole, constant = (line.get_data() for line in axes.lines if line.get_drawstyle() == "steps-post")
        assert whole[1].tolist() == [0.5, 1, 0, 0.5, 0]
        assert constant[0][np.argmax(constant[1])] == 0.5

    def test_errors(self):
        with pytest.raises(ValueError, match=r"`easy` is 'hard'.*pass \"low\" or \"high\""):
            ScoreRow([1], easy="hard")
        with pytest.raises(ValueError, match="`rows` is empty"):
            score_distributions({})
        with pytest.raises(ValueError, match="No example has a finite `n`"):
            score_distributions({"n": ScoreRow([np.nan])})


class TestPoolGrowth:
    def test_steps_labels_and_axes(self):
        figure = pool_growth(POOLS)
        axes = axes_of(figure)
        lines = [line for line in axes.lines if line.get_drawstyle() == "steps-post"]
        assert [line.get_label() for line in lines] == ["curriculum: 9,272,432 draws", "control: 23,128,240 draws"]
        assert list(lines[0].get_xdata()) == [0, 1_683_814, 4_704_700, 9_272_432]
        assert list(lines[0].get_ydata()) == [841_907, 1_510_443, 2_283_866, 2_283_866]
        assert texts(figure) == ["841,907\n29 %", "1,510,443\n52 %", "2,283,866\n79 %"]
        assert axes.get_ylim()[0] == 0
        assert axes.get_xlim()[1] > 23_128_240

    def test_short_steps_show_shares_alone(self):
        assert texts(pool_growth(POOLS, theme=LIGHT.narrow())) == ["29 %", "52 %", "79 %"]

    def test_many_rounds_have_no_labels(self):
        assert texts(pool_growth({"growing": [(i, i + 1, i + 1) for i in range(50)]})) == []

    def test_rounds_without_draws_are_skipped(self):
        figure = pool_growth({"c": [(0, 4, 2), (4, 4, 3), (4, 8, 5)]})
        assert list(axes_of(figure).lines[0].get_ydata()) == [2, 5, 5]

    def test_errors(self):
        with pytest.raises(ValueError, match="`runs` is empty"):
            pool_growth({})
        with pytest.raises(ValueError, match="run 'c' has no round with draws"):
            pool_growth({"c": [(3, 3, 10)]})
        with pytest.raises(ValueError, match="ends at draw 2 before it starts at draw 5"):
            pool_growth({"c": [(5, 2, 10)]})


class TestValidationCurves:
    def test_by_examples_from_step_zero(self):
        figure = validation_curves(CURVES, boundaries=[160])
        axes = axes_of(figure)
        assert list(axes.lines[0].get_xdata()) == [0, 160, 288]
        assert list(axes.lines[0].get_ydata()) == [6.0, 2.5, 1.65]
        assert axes.get_yscale() == "log"
        assert dashed(figure) == [160]
        assert texts(figure) == ["phase 2", "curriculum  1.65", "control  1.61"]
        assert axes.get_xlabel() == "Examples seen"
        assert axes.get_title("left") == "Validation loss (nats per token), logarithmic"

    def test_by_time_in_minutes_with_boundaries_by_the_first_runs_clock(self):
        figure = validation_curves(CURVES, x="seconds", boundaries=[80])
        axes = axes_of(figure)
        assert list(axes.lines[1].get_xdata()) == [0.0, 5.0]
        assert axes.get_xlabel() == "Training time (minutes)"
        assert dashed(figure) == [pytest.approx(50 / 60)]  # 80 of 160 examples in 50 of 100 seconds

    @pytest.mark.parametrize(
        ("seconds", "unit", "end"),
        [(119, "seconds", 119), (120, "minutes", 2), (7199, "minutes", 7199 / 60), (7200, "hours", 2)],
    )
    def test_the_unit_of_time_follows_the_longest_run(self, seconds, unit, end):
        run = [{**entry, "seconds": entry["seconds"] * seconds / 300} for entry in CURVES["control"]]
        axes = axes_of(validation_curves({"control": run}, x="seconds"))
        assert axes.get_xlabel() == f"Training time ({unit})"
        assert axes.lines[0].get_xdata()[-1] == pytest.approx(end)

    def test_end_labels_keep_apart(self):
        figure = validation_curves(dict.fromkeys("abcd", CURVES["control"]))
        figure.canvas.draw()
        boxes = sorted((text.get_window_extent() for text in axes_of(figure).texts), key=lambda box: box.y0)
        assert all(lower.y1 <= upper.y0 + 1 for lower, upper in pairwise(boxes))

    def test_boundaries_too_close_for_labels_are_lines_alone(self):
        figure = validation_curves(CURVES, boundaries=range(0, 384, 8))
        assert len(dashed(figure)) == 48
        assert 3 < sum(text.startswith("phase") for text in texts(figure)) < 15

    def test_another_metric_is_linear_with_its_own_label(self):
        points = [{"examples": 0, "eval_cider": -0.1}, {"examples": 9, "eval_cider": 0.9}]
        axes = axes_of(validation_curves({"c": points}, metric="eval_cider", label="CIDEr-D"))
        assert axes.get_yscale() == "linear"
        assert axes.get_title("left") == "CIDEr-D"

    def test_a_narrow_logarithmic_axis_has_ticks(self):
        points = [{"examples": 0, "eval_loss": 1.63}, {"examples": 9, "eval_loss": 1.61}]
        figure = validation_curves({"c": points}, log=True)
        figure.draw_without_rendering()
        assert len(axes_of(figure).get_yticks()) > 1

    def test_missing_and_nan_values_are_left_out(self):
        points = [{"examples": 0, "eval_loss": 2.0}, {"examples": 5}, {"examples": 9, "eval_loss": float("nan")}]
        assert list(axes_of(validation_curves({"c": points})).lines[0].get_xdata()) == [0]

    def test_dollars_in_names_are_no_mathematics(self):
        assert to_png(validation_curves({"$\\frac{": CURVES["control"]})).startswith(b"\x89PNG")

    def test_merges_stand_on_their_own_line(self):
        merges = {"curriculum": [(160, "2"), (224, "3*"), (300, "4")], "control": [(192, "2")]}
        figure = validation_curves(CURVES, merges=merges)
        rings = [text for text in axes_of(figure).texts if text.get_bbox_patch() is not None]
        # 224 lies halfway between two evaluations, 300 behind the run's last
        assert [(ring.get_text(), *ring.xy) for ring in rings] == [
            ("2", 160, pytest.approx(2.5)),
            ("3*", 224, pytest.approx((2.5 + 1.65) / 2)),
            ("2", 192, pytest.approx((6.0 + 1.61) / 2)),
        ]
        colours = [ring.get_bbox_patch().get_edgecolor() for ring in rings]
        lines = [matplotlib.colors.to_rgba(line.get_color()) for line in axes_of(figure).lines[:2]]
        assert colours == [lines[0], lines[0], lines[1]]

    def test_seeds_of_an_arm_share_colour_label_and_the_rings_of_the_first(self):
        runs = {
            name: [{"examples": 0, "eval_loss": 4.0}, {"examples": at, "eval_loss": last}]
            for name, at, last in [("a0", 100, 1.0), ("b0", 100, 3.0), ("a1", 80, 2.0), ("b1", 100, 3.5)]
        }
        merges = {name: [(50, "2")] for name in runs}
        arms = {name: {"a": "easy first", "b": "random"}[name[0]] for name in runs}
        figure = validation_curves(runs, merges=merges, arms=arms)
        colours = [line.get_color() for line in axes_of(figure).lines[:4]]  # a0, a1, b0, b1
        assert colours[0] == colours[1] != colours[2] == colours[3]
        assert len({line.get_marker() for line in axes_of(figure).lines[:4]}) == 2
        shown = [text for text in axes_of(figure).texts if text.get_bbox_patch() is None]
        assert [text.get_text() for text in shown] == ["easy first  1.5", "random  3.25"]
        assert [text.get_color() for text in shown] == [colours[0], colours[2]]
        rings = [text for text in axes_of(figure).texts if text.get_bbox_patch() is not None]
        assert [ring.xy for ring in rings] == [(50, pytest.approx(2.5)), (50, pytest.approx(3.5))]

    def test_merges_by_time_stand_by_each_run_s_own_clock(self):
        merges = {"curriculum": [(160, "2")], "control": [(192, "2")]}
        figure = validation_curves(CURVES, x="seconds", merges=merges)
        rings = [text for text in axes_of(figure).texts if text.get_bbox_patch() is not None]
        assert [ring.xy[0] for ring in rings] == [pytest.approx(100 / 60), pytest.approx(150 / 60)]

    def test_a_reference_is_inside_the_axis(self):
        points = [{"examples": 0, "eval_cider": 0.1}, {"examples": 9, "eval_cider": 0.2}]
        figure = validation_curves({"c": points}, metric="eval_cider", reference=0.9, log=False)
        assert axes_of(figure).get_ylim()[1] > 0.9
        assert [0.9, 0.9] in [list(line.get_ydata()) for line in axes_of(figure).lines]

    def test_errors(self):
        with pytest.raises(ValueError, match=r"`merges` names 'baby', and the runs are \['curriculum', 'control'\]"):
            validation_curves(CURVES, merges={"baby": [(1, "2")]})
        with pytest.raises(ValueError, match=r"`x` is 'hours'.*pass one of them"):
            validation_curves(CURVES, x="hours")
        with pytest.raises(ValueError, match="`runs` is empty"):
            validation_curves({})
        with pytest.raises(ValueError, match="lowest value is -1, which a logarithmic axis cannot show"):
            validation_curves({"c": [{"examples": 0, "eval_loss": -1.0}]}, log=True)
        with pytest.raises(ValueError, match="run 'c' has no finite `eval_loss` in its 1 evaluations"):
            validation_curves({"c": [{"examples": 0, "eval_loss": None}]})


class TestExamplesUntil:
    LOG = (
        {"examples": 200, "eval_cider": 0.5},
        {"examples": 100, "eval_cider": 0.3, "eval_loss": 2.0},
        {"examples": 300, "eval_cider": float("nan"), "eval_loss": 1.0},
        {"eval_cider": 0.9},  # evaluated after training, without a clock
        {"examples": 400, "eval_cider": 0.6, "eval_loss": 1.5},
    )

    @pytest.mark.parametrize(("target", "examples"), [(0.3, 100), (0.31, 200), (0.5, 200), (0.6, 400), (0.61, np.inf)])
    def test_the_first_evaluation_that_is_as_good(self, target, examples):
        assert examples_until(self.LOG, "eval_cider", target) == examples

    def test_a_loss_should_fall(self):
        assert examples_until(self.LOG, "eval_loss", 1.5, greater_is_better=False) == 300
        assert examples_until(self.LOG, "eval_loss", 0.9, greater_is_better=False) == np.inf

    def test_a_metric_that_was_never_evaluated(self):
        assert np.isnan(examples_until(self.LOG, "eval_spice", 0.1))

    def test_merges_of_a_log(self):
        log = [
            {"step": 4, "decision": "stay", "bucket": 0},
            {"step": 9, "decision": "merge", "bucket": 1},
            {"step": 20, "decision": "forced", "bucket": 2},
            {"step": 30, "decision": "stop", "bucket": 2},
        ]
        assert merges_of(log, 10) == [(90, "2"), (200, "3*")]
        assert merges_of([{"step": 4, "decision": "threshold", "pool": 7}, {"step": 5, "decision": "merge"}], 10) == []

    def test_labels_of_metrics(self):
        assert metric_label("eval_pairs_loss") == "Validation loss of pairs (nats per token)"
        assert metric_label("eval_noun_recall") == "eval_noun_recall"
        assert metric_label("eval_map_50") == "Validation mAP@0.5"
        assert metric_label("eval_loss", None) == "Validation loss"
        assert metric_label("eval_pairs_loss", "nats per image") == "Validation loss of pairs (nats per image)"


class TestDrawnScores:
    def test_boxes_and_medians(self):
        figure = drawn_scores(DRAWN, name="noun_count", easy="low")
        axes = axes_of(figure)
        assert texts(figure) == ["2", "3"]
        assert tick_labels(axes.xaxis) == ["1", "2"]
        assert axes.get_xlabel() == "Phase"
        assert axes.get_title("left") == "noun_count (low is easy)"
        outlined = [patch for patch in axes.patches if patch.get_linewidth() > 1]
        assert [(box.get_y(), box.get_height()) for box in outlined] == [(1, 1), (2, 2)]
        assert axes.get_ylim()[1] > 9

    def test_rounds_without_phases(self):
        rounds = [{key: value for key, value in row.items() if key != "phase"} for row in DRAWN]
        axes = axes_of(drawn_scores(rounds))
        assert axes.get_xlabel() == "Round"
        assert tick_labels(axes.xaxis) == ["0", "1"]

    def test_many_rounds_are_bands(self):
        rounds = [DRAWN[0] | {"round": index} for index in range(40)]
        axes = axes_of(drawn_scores(rounds))
        assert len(axes.collections) == 2
        assert axes.get_xlabel() == "Round"
        assert axes.get_xlim() == (0, 39)

    def test_rounds_without_quantiles_are_left_out(self):
        figure = drawn_scores([*DRAWN, {"round": 2, "phase": 3, "q0": None}, DRAWN[0] | {"q50": float("nan")}])
        assert texts(figure) == ["2", "3"]

    def test_error(self):
        with pytest.raises(ValueError, match="None of the 1 rounds has the quantiles q0, q25"):
            drawn_scores([{"round": 0, "phase": 1}])

    def test_shares_are_stacked_from_the_easiest(self):
        axes = axes_of(drawn_shares([8, 16, 24], SHARES))
        lower, upper = axes.collections
        assert axes.get_xlim() == (0, 24)
        heights = lower.get_paths()[0].vertices
        assert {tuple(map(float, one)) for one in heights} >= {
            (0, 100),
            (8, 100),
            (8, 50),
            (16, 50),
            (16, 25),
            (24, 25),
        }
        assert lower.get_paths()[0].vertices[:, 1].max() == 100
        assert upper.get_paths()[0].vertices[:, 1].min() == 25
        assert lower.get_alpha() or lower.get_facecolor()[0][3] < upper.get_facecolor()[0][3]
        for examples, shares in (([8], {"a": [1.0]}), ([8, 16], {})):
            with pytest.raises(ValueError, match=r"a course of shares needs a bucket and two entries"):
                drawn_shares(examples, shares)


class TestCanvas:
    def test_spread_keeps_order_and_distance(self):
        moved = spread([3.0, 1.0, 1.2, 9.0], gap=1.0)
        assert moved == [pytest.approx(value) for value in (3.0, 0.6, 1.6, 9.0)]
        assert spread([], 1.0) == []
        crowded = spread([0.0] * 5, gap=2.0)
        assert np.mean(crowded) == pytest.approx(0)
        assert np.diff(crowded) == pytest.approx([2.0] * 4)

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (2_891_030, "2,891,030"),
            (0.26314, "0.263"),
            (0.3, "0.3"),
            (-1250.5, "-1,250"),
            (0, "0"),
            (999.7, "1,000"),
            (float("nan"), "–"),
        ],
    )
    def test_number(self, value, text):
        assert number(value) == text

    def test_percent(self):
        assert [percent(share) for share in (0, 0.004, 0.031, 0.0999, 0.291, 1)] == [
            "0 %",
            "0.4 %",
            "3.1 %",
            "10 %",
            "29 %",
            "100 %",
        ]

    @pytest.mark.parametrize(
        ("top", "narrow", "expected"),
        [(4_000_000, False, "1,000,000"), (4_000_000, True, "2M"), (20_000, True, "10k"), (1, False, "0.2")],
    )
    def test_ticks(self, top, narrow, expected):
        figure, axes = new_figure(DARK.narrow() if narrow else DARK, "t", x_label="x", y_label="y")
        axes.set_xlim(0, top)
        number_ticks(axes.xaxis, DARK.narrow() if narrow else DARK)
        figure.draw_without_rendering()
        assert expected in tick_labels(axes.xaxis)

    def test_the_axis_below_is_the_only_line_around_a_plot(self):
        _, axes = new_figure(LIGHT, "t", x_label="x", y_label="y")
        assert [side for side, line in axes.spines.items() if line.get_visible()] == ["bottom"]

    def test_images_in_figures_keep_their_colours(self):
        figure = Figure(figsize=(2, 2), dpi=100)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.imshow(np.random.default_rng(0).random((40, 40, 3)), interpolation="nearest")
        with Image.open(io.BytesIO(to_png(figure))) as png:
            assert png.mode == "RGB"
        with Image.open(io.BytesIO(to_png(pool_growth(POOLS)))) as png:
            assert png.mode == "P"


class TestPlanGrowth:
    def test_pools_beside_those_of_the_control(self):
        figure = plan_growth(make_plan(Phases(2, 1), np.arange(100), global_batch_size=10))
        first, control = (line for line in figure.axes[0].lines if len(line.get_xdata()) > 1)
        assert list(first.get_xdata()) == [0, 50, 150]
        assert list(first.get_ydata()) == [50, 100, 100]
        assert list(control.get_xdata()) == [0, 200]

    def test_a_plan_that_decides_is_drawn_at_both_ends(self):
        plan = make_plan(BabySteps(2, patience=1, epochs=5), np.arange(100), global_batch_size=10)
        lines = [line for line in plan_growth(plan).axes[0].lines if len(line.get_xdata()) > 1]
        soonest, latest, control = ([float(x) for x in line.get_xdata()] for line in lines)
        # One pass to have a value, one without improvement; the last pass is all that the other bucket needs.
        assert soonest[:3] == [0, 50, 100]
        assert latest[-2:] == [400, 500]
        assert control == [0, 500]

    def test_where_nothing_can_be_imagined_what_is_settled_is_drawn(self):
        plan = make_plan(SelfPaced(epochs=4), np.arange(100), global_batch_size=10)
        lines = [line for line in plan_growth(plan).axes[0].lines if len(line.get_xdata()) > 1]
        assert list(lines[0].get_xdata()) == [0, 100]
