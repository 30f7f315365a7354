"""A scored data set at a glance."""

from __future__ import annotations

import json
import re

import numpy as np
import PIL.Image
import pytest
from datasets import Dataset, Features, Image, Value
from hostile import Page

from hf_curriculum import CaptionLength, NounCount, Phases, WordRarity, add_scores, make_plan, make_scenes
from hf_curriculum.hub.data_card import DataCard
from hf_curriculum.reporting.figures.distribution import score_correlations
from hf_curriculum.reporting.html import cell
from hf_curriculum.reporting.inspection import add_image_captions, inspect_scores, rank_correlation
from hf_curriculum.reporting.report import Report
from hf_curriculum.reporting.run_sections import add_scores_section


@pytest.fixture(scope="module")
def scored():
    data = make_scenes(60, image_size=32, validation=0.0, test=0.0)["train"]
    return add_scores(data, [NounCount(), CaptionLength()])


def test_every_score_in_figures(scored):
    found = inspect_scores(scored, examples=3)
    assert (found.num_rows, found.num_images) == (60, len(set(scored["image_id"])))
    nouns, length = found.scores
    assert (nouns.column, nouns.scorer, nouns.easy, nouns.scored, nouns.unscored) == (
        "noun_count",
        "NounCount",
        "low",
        60,
        0,
    )
    values = np.array(scored["caption_length"][:])
    assert length.quantiles == tuple(np.percentile(values, [0, 25, 50, 75, 100]))
    assert length.distinct == len(set(values.tolist()))
    assert [end["score"] for end in length.easiest] == sorted(end["score"] for end in length.easiest)
    assert (length.easiest[0]["score"], length.hardest[0]["score"]) == (values.min(), values.max())
    assert length.hardest[0]["caption"] == scored[length.hardest[0]["row"]]["caption"]
    assert len({scored[end["row"]]["image_id"] for end in length.easiest}) == 3
    assert json.loads(json.dumps(found.to_dict()))["correlations"][0][0] == 1.0


@pytest.mark.parametrize("kind", [np.int64, np.uint32, np.float64])
def test_large_scores_are_told_apart(kind):
    data = Dataset.from_dict({"t": (np.arange(100) + 2**25).astype(kind)})
    (score,) = inspect_scores(data, ["t"], examples=1).scores
    assert (score.distinct, score.quantiles[0], score.quantiles[-1]) == (100, 2**25, 2**25 + 99)
    assert (score.easiest[0]["score"], score.hardest[0]["score"]) == (2**25, 2**25 + 99)


def naive_spearman(one, other):
    """Pearson's correlation of mean ranks, worked out: what `scipy.stats.spearmanr` stands for."""
    ranks = []
    for values in (one, other):
        _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
        ranks.append((np.cumsum(counts) - (counts - 1) / 2)[place])
    centred = [values - values.mean() for values in ranks]
    return (centred[0] * centred[1]).mean() / (ranks[0].std() * ranks[1].std())


def test_correlations_are_spearmans():
    rng = np.random.default_rng(0)
    for _ in range(20):
        one, other = rng.integers(0, 6, 40).astype(float), rng.normal(size=40)
        one[rng.integers(0, 40, 3)] = np.nan
        both = np.isfinite(one)
        assert rank_correlation(one, other) == pytest.approx(naive_spearman(one[both], other[both]), rel=1e-12)
    assert np.isnan(rank_correlation(np.ones(5), np.arange(5.0)))
    assert np.isnan(rank_correlation(np.array([1.0, np.nan]), np.array([np.nan, 1.0])))


def test_scores_agree_from_their_easy_ends(scored):
    from hf_curriculum.provenance import ScoreProvenance, attach_provenance

    turned = scored.add_column("brevity", -np.array(scored["caption_length"][:], np.float32))
    turned = attach_provenance(turned, {"brevity": ScoreProvenance("brevity", "Other", easy="high")})
    matrix = inspect_scores(turned).correlations
    assert matrix[1, 2] == pytest.approx(1.0)


def test_rows_without_scores_images_or_captions():
    data = Dataset.from_dict({"one": np.float32([1, np.nan, 3]), "none": np.full(3, np.nan, np.float32)})
    found = inspect_scores(data, ["one", "none"])
    assert (found.scores[0].unscored, found.scores[1].scored, found.scores[1].quantiles) == (1, 0, ())
    assert found.num_images is None
    assert found.to_dict()["correlations"][0][1] is None
    html = found.to_report(data, "A <script> title").to_html()
    assert "No row has this score." in html
    assert "<script>" not in html


def test_a_notebook_shows_every_score_and_both_ends(scored):
    found = inspect_scores(scored, examples=2)
    page = Page(found._repr_html_())
    texts = [text for text in page.text if text.strip()]
    assert texts[0] == f"{len(scored)} rows, {found.num_images} images"
    for score in found.scores:
        at = texts.index(score.column)
        numbers = map(cell, (score.scored, score.unscored, score.distinct, *score.quantiles))
        assert texts[at + 1 : at + 11] == [score.scorer, score.easy, *numbers]
        for end in ("easiest", "hardest"):
            for one in getattr(score, end):
                line = [score.column, end, cell(one["score"]), one["caption"]]
                assert any(texts[at : at + 4] == line for at in range(len(texts)))


def test_the_page_shows_both_ends(scored, tmp_path):
    found = inspect_scores(scored, examples=2)
    page = found.to_report(scored, "Scenes").write(tmp_path)
    text = page.read_text()
    assert "Easiest by noun_count" in text
    assert "Hardest by caption_length" in text
    assert (tmp_path / "figures" / "correlations.png").exists()


@pytest.fixture
def undrawn(monkeypatch):
    """Figures are not drawn, which takes seconds."""
    monkeypatch.setattr(Report, "add_figure", lambda report, *given, **options: report)


def test_a_page_with_images_that_cannot_be_read(undrawn):
    """They were kept by `check_images=False`: their rows are shown all the same."""
    images = [{"bytes": b"no picture", "path": None}, None, PIL.Image.new("RGB", (8, 8))]
    content = {"image": images, "caption": ["a", "a b", "a b c"]}
    data = Dataset.from_dict(content, features=Features({"image": Image(), "caption": Value("string")}))
    data = add_scores(data, CaptionLength())
    page = inspect_scores(data).to_report(data, "t").to_html()
    assert page.count("image cannot be read") == 4  # two at either end
    assert page.count("<img") == 2


@pytest.mark.parametrize("with_ids", [True, False])
def test_as_many_examples_as_asked_for(scored, with_ids, undrawn):
    data = scored if with_ids else scored.remove_columns("image_id")
    for count in (0, 1, 5):
        assert [len(score.easiest) for score in inspect_scores(data, examples=count).scores] == [count, count]
    assert "Easiest by" not in inspect_scores(data, examples=0).to_report(data, "t").to_html()
    with pytest.raises(ValueError, match="examples=-1 was given"):
        inspect_scores(data, examples=-1)


def test_no_scores_at_all():
    with pytest.raises(ValueError, match="is recorded as a score, so there is nothing to look at"):
        inspect_scores(Dataset.from_dict({"caption": ["a"]}))
    with pytest.raises(ValueError, match=r"shape \(1, 2\) for 2 scores"):
        score_correlations(["a", "b"], np.zeros((1, 2)))


SHOWN = {"image_id": ["a", "b", "a", "b", "a"], "caption": ["a dog", "blue", "a dog, a cat and a bird", "a cat", ""]}


def tags_of_words(sentences):
    return [["NN"] * len(sentence.split()) for sentence in sentences]


def own_row(dataset, column, end):
    (score,) = inspect_scores(dataset, [column], examples=1).scores
    (shown,) = getattr(score, end)
    return shown["row"], shown["caption"], shown["score"]


def test_the_caption_shown_is_the_one_that_has_the_score():
    data = Dataset.from_dict(SHOWN)
    most = add_scores(data, [NounCount(), CaptionLength()], per_image="max")
    for column, value in (("noun_count", 3), ("caption_length", 7)):
        assert own_row(most, column, "hardest") == (2, "a dog, a cat and a bird", value)
    assert own_row(most, "noun_count", "easiest") == (3, "a cat", 1)
    fewest = add_scores(data, NounCount(), per_image="min")
    assert own_row(fewest, "noun_count", "hardest") == (0, "a dog", 1)
    assert own_row(fewest.rename_column("noun_count", "n"), "n", "easiest") == (1, "blue", 0)


@pytest.mark.parametrize("how", ["mean", "another tagger", "a corpus", "without the row"])
def test_all_captions_are_shown_where_it_is_not_known_which_one_has_the_score(how):
    data, column = Dataset.from_dict(SHOWN), "noun_count"
    if how == "another tagger":
        scored = add_scores(data, NounCount(tags_of_words), per_image="max")
    elif how == "a corpus":
        scored, column = add_scores(data, WordRarity("sum").fit(data), per_image="max"), "word_rarity"
    else:
        scored = add_scores(data, NounCount(), per_image="mean" if how == "mean" else "max")
    if how == "without the row":
        scored = scored.select([0, 1, 3, 4])
        assert own_row(scored, column, "hardest")[1] == "2 captions: a dog | "
        return
    assert own_row(scored, column, "hardest")[1] == "3 captions: a dog | a dog, a cat and a bird | "


def test_reports_show_the_caption_that_has_the_score(undrawn):
    scored = add_scores(Dataset.from_dict(SHOWN), NounCount(), per_image="max")
    report = Report("a run")
    plan = make_plan(Phases(2, cut="rank"), scored, score_column="noun_count", global_batch_size=1)
    add_scores_section(report, scored, "noun_count", plan.to_dict())
    text = report.to_html()
    easiest, hardest = text.rindex("Easiest examples"), text.rindex("Hardest examples")
    assert easiest < text.index("a cat<") < text.index("a dog, a cat and a bird") < hardest
    assert hardest < text.rindex("a dog, a cat and a bird") < text.rindex("a cat<")
    assert "a dog<" not in text


def test_the_card_shows_the_caption_that_has_the_score(undrawn):
    scored = add_scores(Dataset.from_dict(SHOWN), NounCount(), per_image="max")
    text = DataCard("me/scored", {"train": scored}, "train")._examples("noun_count")
    assert "| a dog, a cat and a bird | a | 2 |" in text
    assert "| a dog | a |" not in text


def of_images(scores, ids, **more):
    columns = {"image": [PIL.Image.new("RGB", (8, 8))] * len(ids), "image_id": ids}
    captions = [f"caption {row}" for row in range(len(ids))]
    return Dataset.from_dict({**columns, "caption": captions, "s": np.float32(scores), **more})


def lines_of_images(html):
    """The (label, caption, share of the easy colour) of each image of the gallery."""
    gallery = html.partition('<ul class="captioned">')[2].partition("</ul>")[0]
    line = r'<dt dir="auto" class="ease" style="--ease: (\d+)%">(.*?)</dt><dd dir="auto">(.*?)</dd>'
    return [
        [(label, caption, int(ease)) for ease, label, caption in re.findall(line, part)]
        for part in gallery.split("<li>")[1:]
    ]


@pytest.mark.parametrize("easy", ["low", "high"])
def test_an_image_s_captions_by_score(undrawn, easy):
    """The images with the widest range first, their captions from easy to hard; what has no score stays out."""
    data = of_images([1, 5, 2, 2, 9, np.nan, 3, 6], ["a", "a", "b", "b", "c", "c", "d", "d"])
    report = Report("t")
    add_image_captions(report, data, "s", easy, count=2)
    a = [("1", "caption 0", 100), ("5", "caption 1", 50)]
    d = [("3", "caption 6", 75), ("6", "caption 7", 38)]
    if easy == "high":
        a, d = ([(score, caption, 100 - ease) for score, caption, ease in reversed(part)] for part in (a, d))
    assert lines_of_images(report.to_html()) == [a, d]


def test_images_that_have_one_score_have_no_such_gallery(undrawn):
    report = Report("t").add_text("end", "end")
    for data in (
        of_images([1, 2], ["a", "b"]),
        of_images([1, 1], ["a", "a"]),
        of_images([np.nan, np.nan], ["a", "a"]),
        of_images([1, 2], [None, None]),
        of_images([1, 2], ["a", "a"]).remove_columns("image"),
        of_images([1, 2], ["a", "a"]).remove_columns("image_id"),
    ):
        add_image_captions(report, data, "s", "low")
    assert "captioned" not in report.to_html().partition("<main")[2]


def test_the_page_shows_captions_of_one_image(undrawn):
    from hf_curriculum.provenance import ScoreProvenance, attach_provenance

    data = of_images([1, 5, 2], ["a", "a", "b"])
    data = attach_provenance(data, {"s": ScoreProvenance("s", "Mine", easy="high")})
    html = inspect_scores(data, examples=1).to_report(data, "t").to_html()
    assert [line[1] for line in lines_of_images(html)[0]] == ["caption 1", "caption 0"]
    assert "captioned" not in inspect_scores(data, examples=0).to_report(data, "t").to_html().partition("<main")[2]


def test_scores_side_by_side(monkeypatch):
    figures = {}
    keep = lambda report, title, figure, caption, *, name: figures.update({name: (figure, caption)})  # noqa: E731
    monkeypatch.setattr(Report, "add_figure", keep)
    data = of_images(np.arange(8), list("aabbccdd"), t=np.float32(np.arange(8)[::-1]))
    from hf_curriculum.provenance import ScoreProvenance, attach_provenance

    made = {name: ScoreProvenance(name, "Mine", easy=easy) for name, easy in (("s", "low"), ("t", "high"))}
    data = attach_provenance(data, made)
    plan = make_plan(Phases(4, easy="low"), np.arange(8.0), global_batch_size=2).to_dict()
    add_scores_section(Report("t"), data, "s", {**plan, "easy": "low"})
    (figure, caption) = figures["distributions_s"]
    assert {name: (row.easy, row.cuts) for name, row in figure.args[0].items()} == {
        "s": ("low", [1, 3, 5]),
        "t": ("high", [6, 4, 2]),
    }
    assert "Dashed lines: thresholds between buckets." in caption
    add_scores_section(Report("t"), data, "t", {**plan, "easy": "high"})
    assert list(figures["distributions_t"][0].args[0]) == ["t", "s"]  # in a report of several arms
    inspect_scores(data).to_report(data, "t")
    (figure, caption) = figures["score_distributions"]
    assert [row.cuts for row in figure.args[0].values()] == [(), ()]
    assert "Dashed" not in caption
    figures.clear()
    inspect_scores(data, ["s"]).to_report(data, "t")
    assert "score_distributions" not in figures
