"""The parts of cards: figures, buckets, examples and code of a data set's, and sentences and tables of a model's."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from datasets import Dataset
from PIL import Image

from hf_curriculum.files import write_together
from hf_curriculum.hub import data_card, model_card, papers
from hf_curriculum.hub.data_card import DataCard
from hf_curriculum.hub.papers import paper_of
from hf_curriculum.provenance import ScoreProvenance, attach_provenance


def scored(**columns):
    """Four rows with two scores; more columns by name."""
    rows = {"caption": ["a", "b", "c", "d"], "first": np.float32([1, 2, 3, 4]), "other": np.float32([8, 6, 4, 2])}
    ends = {"first": "low", "other": "high"}
    made = {name: ScoreProvenance(name, "by hand", easy=end) for name, end in ends.items()}
    return attach_provenance(Dataset.from_dict({**rows, **columns}), made)


def buckets(column="first", easy="high", thresholds=(2.5,)):
    """An index of two buckets, of one row and of three."""
    parts = [SimpleNamespace(rows=1, lowest=1.23456, highest=None), SimpleNamespace(rows=3000, lowest=2, highest=4)]
    return SimpleNamespace(
        score_column=column, easy=easy, thresholds=thresholds, sizes=[1, 3], num_rows=4, buckets=parts, cut="value"
    )


@pytest.fixture
def drawn(monkeypatch):
    """What was drawn of scores: values and options."""
    calls = []
    monkeypatch.setattr(data_card, "score_distribution", lambda scores, **named: calls.append((list(scores), named)))
    monkeypatch.setattr(data_card, "to_png", lambda figure: b"a figure")
    return calls


def test_scores_are_drawn_from_their_easy_end_with_the_cuts_of_the_buckets(drawn):
    data = scored()
    card = DataCard("me/x", {"train": data}, "train", buckets())
    assert card._figure(0, "first") == "![first](figures/scores_0_first.png)\n"
    assert card._figure(1, "other") == "![other](figures/scores_1_other.png)\n"
    DataCard("me/x", {"train": data}, "train", buckets(thresholds=(2.5, None)))._figure(0, "first")
    DataCard("me/x", {"train": data}, "train")._figure(0, "first")
    assert [named for _, named in drawn] == [
        {"name": "first", "easy": "high", "cuts": [2.5], "shares": [0.25, 0.75]},
        {"name": "other", "easy": "high"},
        {"name": "first", "easy": "high"},
        {"name": "first", "easy": "low"},
    ]
    assert drawn[1][0] == [8, 6, 4, 2]
    assert card.files() == {"figures/scores_0_first.png": b"a figure", "figures/scores_1_other.png": b"a figure"}
    made = {"é": ScoreProvenance("é", "by hand"), "a" * 70: ScoreProvenance("a" * 70, "by hand")}
    odd = attach_provenance(Dataset.from_dict({name: np.float32([1, 2]) for name in made}), made)
    card = DataCard("me/x", {"train": odd}, "train")
    assert "(figures/scores_0.png)" in card._figure(0, "é")
    assert f"(figures/scores_1_{'a' * 60}.png)" in card._figure(1, "a" * 70)
    (long,) = made = {"b" * 81: ScoreProvenance("b" * 81, "by hand")}
    card = DataCard("me/x", {"train": attach_provenance(Dataset.from_dict({long: np.float32([1])}), made)}, "train")
    card._figure(0, long)
    assert drawn[-1][1]["name"] == "b" * 79 + "…"
    assert card._summary().endswith(f" Scores: {'b' * 79}….")


def test_files_of_a_card_are_written_where_no_folder_is(tmp_path):
    files = {"a/b/one": b"1", "a/b/two": b"2", "three": b"3"}
    for _ in range(2):
        write_together(tmp_path / "new", files)
    assert {path: (tmp_path / "new" / path).read_bytes() for path in files} == files


def test_files_of_a_card_are_written_through_no_link(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    (tmp_path / "mine").mkdir()
    folder = tmp_path / "new"
    folder.mkdir()
    (folder / "README.md").symlink_to(tmp_path / "thesis.txt")
    (folder / "figures").symlink_to(tmp_path / "mine")
    with pytest.raises(ValueError, match="figures is a link to"):
        write_together(folder, {"README.md": b"card", "figures/a.png": b"1"})
    assert (folder / "README.md").is_symlink()
    (folder / "figures").unlink()
    write_together(folder, {"README.md": b"card", "figures/a.png": b"1"})
    assert (folder / "README.md").read_text() == "card"
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_examples_are_those_of_the_end_that_buckets_call_easy():
    def captions(index, column):
        lines = DataCard("me/x", {"train": scored()}, "train", index, num_examples=1)._examples(column).splitlines()
        return [line.split(" | ")[1] for line in lines if line.startswith("| ") and line[2].isdigit()]

    assert captions(None, "first") == ["a", "d"]
    assert captions(buckets(easy="high"), "first") == ["d", "a"]
    assert captions(buckets(column="first", easy="low"), "other") == ["a", "d"]


def test_examples_without_captions_or_images():
    bare = scored().remove_columns("caption")
    text = DataCard("me/x", {"train": bare}, "train", num_examples=2, thumbnails=True)._examples("first")
    rows = [line.split() for line in text.splitlines() if line.startswith("| ")]
    assert [row[1::2] for row in rows if row[1].isdigit()] == [["1", "0"], ["2", "1"], ["4", "3"], ["3", "2"]]


def test_the_table_of_buckets():
    text = DataCard("me/x", {"train": scored()}, "train", buckets())._bucket_table()
    assert text.startswith(
        "## Buckets\n\nThe examples of `train`, cut by value of first (high = easy), easiest first; within"
    )
    assert "| bucket\\_0 | 1 | 1.235 | – |" in text
    assert "| bucket\\_1 | 3,000 | 2 | 4 |" in text
    assert DataCard("me/x", {"train": scored()}, "train")._bucket_table() == ""


def test_the_code_of_a_card_and_the_score_it_names():
    whole = DataCard("me/x", {"train": scored()}, "train")
    cut = DataCard("me/x", {"dev": scored()}, "dev", buckets("other"))
    assert whole._code() == 'from datasets import load_dataset\n\ndata = load_dataset("me/x", split="train")'
    assert cut._code() == (
        "from datasets import load_dataset\n\n"
        'easiest = load_dataset("me/x", "bucket_0", split="dev", streaming=True)\n'
        'everything = load_dataset("me/x", split="dev")'
    )
    assert 'Phases(4), score_column="first", …)' in whole._note()
    assert 'Phases(4), score_column="other", …)' in cut._note()


@pytest.mark.parametrize(
    ("rows", "size"), [(999, "n<1K"), (1000, "1K<n<10K"), (9_999_999, "1M<n<10M"), (10**7, "n>10M")]
)
def test_the_header_of_a_card(rows, size):
    class Many(list):
        def __len__(self):
            return rows - 4

    data = scored(image=[None] * 4)
    card = DataCard("me/x", {"train": data, "more": Many()}, "train", license="mit", language="ar")
    old = {"license": "gpl", "language": "en", "pretty_name": "X", "size_categories": ["n<1K"], "tags": ["a", "a"]}
    header = yaml.safe_load(card.front(old).strip().strip("-"))
    assert header["size_categories"] == [size]
    assert (header["license"], header["language"], header["pretty_name"]) == ("mit", "ar", "X")
    assert header["tags"] == ["a", "curriculum-learning", "hf_curriculum"]
    assert header["task_categories"] == ["image-to-text", "image-text-to-text"]
    plain = DataCard("me/x", {"train": data.remove_columns("image")}, "train")
    header = yaml.safe_load(plain.front({"license": "gpl", "configs": ["no mapping"]}).strip().strip("-"))
    assert set(header) == {"license", "tags", "size_categories", "configs"}
    assert (header["license"], len(header["configs"])) == ("gpl", 1)


@pytest.mark.parametrize("thumbnails", [True, False])
def test_photographs_are_in_the_grid_with_thumbnails_alone(thumbnails, monkeypatch):
    shown = []

    def grid(data):
        shown.append(len(data))
        return Image.new("RGB", (2, 2))

    monkeypatch.setattr("hf_curriculum.tasks.long_tail.generation.filter.spectrum_grid", grid)
    more = {"image": [Image.new("RGB", (2, 2))] * 4, "guidance": [1.0, 0.5, 0.9, 1.0], "source_id": list("aaab")}
    card = DataCard("me/x", {"train": scored(**more)}, "train", thumbnails=thumbnails)
    assert card._summary().endswith("from the prompt to the photograph:\n\n![grid](figures/spectrum.png)")
    assert (shown, list(card.files())) == ([4 if thumbnails else 2], ["figures/spectrum.png"])
    assert card.files()["figures/spectrum.png"].startswith(b"\x89PNG")
    real = DataCard("me/x", {"train": scored(**{**more, "guidance": [1.0] * 4})}, "train")
    assert ("grid" in real._summary(), len(shown)) == (False, 1)
    assert DataCard("me/x", {"train": scored()}, "train")._summary() == (
        "Examples with a score of their difficulty: 4 in `train`. Scores: first, other."
    )


# ---- A model's card ----


def test_the_sentence_about_a_model():
    model = {"class": "Net", "parameters": 1200}
    facts = {"model": model, "data": {"rows": 3000}, "curriculum": None}
    assert model_card._summary(facts) == (
        "A Net with 1,200 parameters, trained on 3,000 examples in random order, without a curriculum."
    )
    model |= {"class": "AoANet", "trainable": 200, "base_model": "me/base"}
    facts |= {"data": {"rows": 3000, "name": "me/data", "description": "of dogs"}, "curriculum": {"type": "phases"}}
    facts["score"] = {"column": "first", "easy": "low"}
    assert model_card._summary(facts) == (
        "An AoANet with 1,200 parameters (200 trained), from me/base, trained on 3,000 examples of me/data (of dogs) "
        "with the curriculum phases, ordered by first (low = easy)."
    )
    model["trainable"] = 1200
    assert "(1,200 trained)" not in model_card._summary(facts)


def test_values_in_tables():
    values = [None, 0.1234567, 1234567.0, 3, "a|b", [1, "é"], {"a": 1}]
    assert [model_card._value(value) for value in values] == [
        None, "0.123457", "1.23457e+06", model_card.cell(3), model_card.cell("a|b"), '[1, "é"]', '{"a": 1}',
    ]  # fmt: skip
    assert model_card._fenced("a\tb \n```x\u202e") == "a b\n'''x"
    assert model_card._entries("Stages", []) == ""
    rows = [line.split() for line in model_card._entries("Stages", [{"a": 1}, {"b": 2.5}]).splitlines()[2:]]
    assert rows[0] == ["|", "a", "|", "b", "|"]
    assert [len(rows), rows[2][1], rows[3][-2]] == [4, "1", "2.5"]


def test_results_with_and_without_those_of_a_paper():
    one, other = {"metric": "loss", "value": 0.5}, {"metric": "m", "value": 1, "reference": 0, "source": "there"}
    text = model_card._results([one])
    assert "| metric | ours | measured on |" in text
    assert "| loss | 0.5 | this run |" in text
    text = model_card._results([one, other])
    assert "| metric | ours | the paper's | measured on |" in text
    assert "| m | 1 | 0 | there |" in text
    assert model_card._results([]) == "Nothing was evaluated."


def test_the_curve_is_that_of_the_first_evaluation_set():
    history = [
        {"eval_a_loss": 3.0, "eval_b_loss": 9.0, "examples": 1}, {"eval_b_loss": 8.0, "examples": 2},
        {"eval_a_loss": 2.0}, {"eval_a_loss": None, "examples": 3}, {"loss": 1.0, "examples": 4},
    ]  # fmt: skip
    assert [one["eval_loss"] for one in model_card._curve({"plan": {"stages": []}, "history": history})] == [3.0]
    assert model_card._curve({"plan": None, "history": history}) == []
    assert model_card._curve({"plan": {"stages": []}, "history": [{"eval_accuracy": 1, "examples": 1}]}) == []


def test_what_a_score_was_made_by():
    marks = {"rows": 1200, "unscored": 3000, "min": 1.23456, "q25": None, "median": 2, "q75": 3, "max": 4}
    made = {"scorer": "S", "model": None, "arguments": {"a": "é"}, "versions": {}, "revision": "v", "other": 1}
    text = model_card._scores({"column": "c", "easy": "low", "provenance": made, "statistics": marks})
    assert "| 1,200 | 3,000 | 1.235 |" in text
    for shown in ("| column | c |", "| easy | low |", "| scorer | S |", "| revision | v |", '{"a": "é"}'):
        assert shown in text
    assert "versions" not in text
    assert "other" not in text
    assert model_card._scores(None) == ""


@pytest.mark.parametrize(
    ("rule", "score", "paper"),
    [
        ({"type": "guidance_schedule"}, None, "discl"), ({"type": "adaptive_guidance"}, "x", "discl"),
        ({"type": "node_sampling"}, None, "tonics"), ({"type": "baby_steps"}, "addup", "simi_cl"),
        ({"type": "baby_steps"}, "noun_count", None), ({"type": "phases", "cut": "value"}, "noun_count", "babylm"),
        ({"type": "phases"}, "noun_count", None), ({"type": "phases"}, "concreteness", "wsod"),
        ({"type": "phases", "cut": "value"}, "concreteness", None),
        ({"type": "phases", "pools": "single"}, "concreteness", None),
        ({"type": "filter", "then": {"type": "iid"}}, "concreteness", "wsod"),
        ({"type": "filter", "then": {"type": "iid"}}, "noun_count", None),
        ({"type": "filter", "by": "box_count", "then": {"type": "phases"}}, "box_area", "wsod"),
        ({"type": "filter", "by": "box_count", "then": {"type": "phases"}}, "noun_count", None),
        ({"type": "filter", "keep": "auto", "then": {"type": "iid"}}, "concreteness", None),
        ({"type": "iid"}, "x", None),
    ],
)  # fmt: skip
def test_the_paper_of_a_rule_with_a_score(rule, score, paper):
    assert paper_of(json.loads(json.dumps(rule)), score) == paper


def test_a_paper_is_found_in_the_bibliography():
    assert papers._paper("Saha et al. 2024", "saha2024exploring") == papers.PAPERS["babylm"]
    assert papers.PAPERS["babylm"].bibtex.startswith("@inproceedings{saha2024exploring,")
    assert papers.PAPERS["babylm"].title in papers.PAPERS["babylm"].bibtex


def test_the_class_of_a_model_is_shortened_where_it_is_named():
    assert f"Build the {'C' * 79}… first" in model_card._source({"auto": None, "class": "C" * 81})
