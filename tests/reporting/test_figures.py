import io
import math
from itertools import combinations, pairwise

import matplotlib
import numpy as np
import pytest
from colours import contrast
from figure_cases import CURVES, DRAWN, FIGURES, HUMPS, MORE, POOLS, ROWS, SHARES
from matplotlib.figure import Figure
from PIL import Image

from hf_curriculum import BabySteps, SelfPaced, make_plan
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
from hf_curriculum.reporting.figures.study import IntervalRow, interval_rows
from hf_curriculum.reporting.html import number, percent
from hf_curriculum.tasks.alignment.figures import vectors_by_colour


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
        assert (png.format, png.width) == ("PNG", theme.width * 200)
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


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_colours_have_the_contrast_the_theme_promises(theme):
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
    @pytest.mark.parametrize("cuts", [range(4, 14), np.arange(4, 9, 0.25)])
    def test_labels_of_many_buckets_do_not_cover_each_other(self, cuts, theme):
        figure = score_distribution(np.arange(40) % 20, name="caption_length", cuts=cuts, theme=theme)
        figure.canvas.draw()
        assert len(dashed(figure)) == len(cuts)
        boxes = [text.get_window_extent() for text in axes_of(figure).texts]
        assert len(boxes) > 8
        assert not [pair for pair in combinations(boxes, 2) if pair[0].overlaps(pair[1])]
        for text in axes_of(figure).texts:
            assert (text.get_bbox_patch() is None) is ("%" in text.get_text())  # a threshold's stands on the bars

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
    def test_by_time_in_minutes_with_boundaries_by_the_first_runs_clock(self):
        figure = validation_curves(CURVES, x="seconds", boundaries=[80])
        axes = axes_of(figure)
        assert (list(axes.lines[1].get_xdata()), axes.get_xlabel()) == ([0.0, 5.0], "Training time (minutes)")
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
        assert (axes.get_yscale(), axes.get_title("left")) == ("linear", "CIDEr-D")

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
        with pytest.raises(ValueError, match="`x` is 'hours', not"):
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
    def test_rounds_without_phases(self):
        rounds = [{key: value for key, value in row.items() if key != "phase"} for row in DRAWN]
        axes = axes_of(drawn_scores(rounds))
        assert axes.get_xlabel() == "Round"
        assert tick_labels(axes.xaxis) == ["0", "1"]

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
        assert (np.mean(crowded), np.diff(crowded)) == (pytest.approx(0), pytest.approx([2.0] * 4))

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

    def test_images_in_figures_keep_their_colours(self):
        figure = Figure(figsize=(2, 2), dpi=100)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.imshow(np.random.default_rng(0).random((40, 40, 3)), interpolation="nearest")
        with Image.open(io.BytesIO(to_png(figure))) as png:
            assert png.mode == "RGB"
        with Image.open(io.BytesIO(to_png(pool_growth(POOLS)))) as png:
            assert png.mode == "P"


class TestPlanGrowth:
    def test_a_plan_that_decides_is_drawn_at_both_ends(self):
        plan = make_plan(BabySteps(2, patience=1, epochs=5, easy="low"), np.arange(100), global_batch_size=10)
        lines = [line for line in plan_growth(plan).axes[0].lines if len(line.get_xdata()) > 1]
        soonest, latest, control = ([float(x) for x in line.get_xdata()] for line in lines)
        # One pass to have a value, one without improvement; the last pass is all that the other bucket needs.
        assert soonest[:3] == [0, 50, 100]
        assert latest[-2:] == [400, 500]
        assert control == [0, 500]

    def test_where_nothing_can_be_imagined_what_is_settled_is_drawn(self):
        plan = make_plan(SelfPaced(epochs=4, easy="low"), np.arange(100), global_batch_size=10)
        lines = [line for line in plan_growth(plan).axes[0].lines if len(line.get_xdata()) > 1]
        assert list(lines[0].get_xdata()) == [0, 100]


no_warning = pytest.mark.filterwarnings("error")  # matplotlib warns where a label leaves no room for the plot


def test_numbers_far_from_one():
    assert [number(value) for value in (2.5e28, -2.5e28, 1.234e-9, 0.0, 1e14)] == [
        "2.5e+28",
        "-2.5e+28",
        "1.23e-09",
        "0",
        "100,000,000,000,000",
    ]


@no_warning
@pytest.mark.parametrize("theme", [LIGHT, DARK.narrow()], ids=["wide", "narrow"])
def test_a_run_that_diverged(theme):
    losses = enumerate([3.6, 2.2e28, 5e12, math.nan])
    points = [{"examples": 8 * place, "seconds": 1.0 * place, "eval_loss": loss} for place, loss in losses]
    figure = validation_curves({"run": points}, boundaries=[8], theme=theme)
    to_png(figure)
    assert max(len(label.get_text()) for label in figure.axes[0].get_yticklabels()) < 10


@no_warning
@pytest.mark.parametrize("axis", ["examples", "seconds"])
def test_a_run_that_has_not_come_to_all_its_phases(axis):
    points = [{"examples": 0, "seconds": 0.3, "eval_loss": 3.6}, {"examples": 10, "seconds": 2.3, "eval_loss": 2.6}]
    for shown, texts in ((points, ["phase 2"]), (points[:1], [])):
        figure = validation_curves({"run": shown}, x=axis, boundaries=[4, 24, 40], theme=LIGHT)
        to_png(figure)
        labels = [text.get_text() for text in figure.axes[0].texts]
        if axis == "examples":
            assert [label for label in labels if label.startswith("phase")] == texts


@no_warning
def test_scores_far_from_one_have_ticks_of_their_own():
    figure = score_distribution([1e-8, 2e-8, 3e-8], name="s")
    to_png(figure)
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert len(set(labels)) == len(labels) > 2


def draw_rows(rows=ROWS, **options):
    return interval_rows(rows, **{"label": "Epochs", "title": "Time", "limit": 2.0, "reference": 1.1, **options})


@pytest.mark.parametrize("theme", [LIGHT, LIGHT.narrow(), DARK, DARK.narrow()])
def test_rows_of_a_study_render_with_their_labels_inside(theme):
    figure = draw_rows(theme=theme)
    with Image.open(io.BytesIO(to_png(figure))) as png:
        assert png.width == theme.width * 200
    width = figure.canvas.get_width_height(physical=True)[0]
    axes = figure.axes[0]
    for text in [*axes.texts, *axes.get_yticklabels()]:
        box = text.get_window_extent()
        assert -1 < box.x0 < box.x1 < width + 1


def test_without_a_budget_the_axis_fits_the_values():
    axes = draw_rows(ROWS[:1], limit=None, reference=None).axes[0]
    low, high = axes.get_xlim()
    assert 0.8 < low < 0.9
    assert 1.3 < high < 1.4


def test_rows_that_cannot_be_drawn():
    with pytest.raises(ValueError, match="has values that were never reached"):
        draw_rows(limit=None)
    with pytest.raises(ValueError, match="None of the 1 rows of 'Epochs' has a value"):
        draw_rows([IntervalRow("gone", [], math.nan)], limit=None, reference=None)


def test_a_caption_is_no_formula():
    assert MORE["attention"](LIGHT).axes[0].get_title(loc="left") == "a dog"
    assert MORE["attention"](LIGHT).axes[0]._left_title.get_parse_math() is False


@pytest.mark.parametrize("width", [1, 2, 5])
def test_five_captions_are_enough(width):
    vectors = {"a": np.eye(5, width, dtype=np.float32)}
    figure = vectors_by_colour(vectors, ["red"] * 5, projection="pca", theme=LIGHT)
    assert len(figure.axes) == 1
