import json

import pytest
from tqdm import tqdm

from hf_curriculum.tasks.babylm.scorer import Item
from hf_curriculum.tasks.babylm.text_tasks import both_ways, ewok_item, run_blimp, run_ewok, run_supplement


def lines(file):
    return [json.loads(line) for line in file.open()]


@pytest.mark.parametrize(
    ("task", "folder", "count"), [(run_blimp, "blimp_filtered", 3), (run_supplement, "supplement_filtered", 5)]
)
def test_minimal_pairs_are_as_a_naive_loop_finds_them(task, folder, count, run_of, miniature, git, naive):
    result = task(run_of())
    assert len(result.subtasks) == count
    for subtask, values in result.subtasks.items():
        rows = lines(miniature / folder / f"{subtask}.jsonl")
        pairs = [(row["sentence_good"], row["sentence_bad"]) for row in rows]
        found = [[naive.choice(git, "", sentence) for sentence in pair] for pair in pairs]
        assert values == {"accuracy": sum(good >= bad for good, bad in found) / len(pairs)}
        predicted = [f" {pair[scores.index(max(scores))]}" for pair, scores in zip(pairs, found, strict=True)]
        assert result.predictions[subtask] == {
            "predictions": [{"id": f"{subtask}_{at}", "pred": text} for at, text in enumerate(predicted)]
        }
        assert result.counts[subtask] == len(rows) == 8
    mean = sum(values["accuracy"] for values in result.subtasks.values()) / count
    assert result.averages == {"accuracy": pytest.approx(mean)}


def test_ewok_compares_targets_after_the_first_context(run_of, miniature, git, naive):
    result = run_ewok(run_of())
    assert list(result.subtasks) == ["material-properties", "quantitative-properties", "spatial-relations"]
    for domain, values in result.subtasks.items():
        right = 0
        for row in lines(miniature / "ewok_filtered" / f"{domain}.jsonl"):
            scores = [naive.choice(git, row["Context1"], row[target]) for target in ("Target1", "Target2")]
            right += scores[0] > scores[1]
        assert values["accuracy"] == right / 8


ITEM = {
    "Domain": "spatial-relations",
    "Context1": "The ball is left of the box.",
    "Context2": "The ball is right of the box.",
    "Target1": "The box is right of the ball.",
    "Target2": "The box is left of the ball.",
}


def test_an_item_of_ewok_stands_twice_with_contexts_and_targets_exchanged(miniature):
    exchanged = {
        "Domain": "spatial-relations",
        "Context1": "The ball is right of the box.",
        "Context2": "The ball is left of the box.",
        "Target1": "The box is left of the ball.",
        "Target2": "The box is right of the ball.",
    }
    assert both_ways(ITEM) == [ITEM, exchanged]
    # Each context is followed by the target that is true of it, which comes first.
    assert [ewok_item(row) for row in both_ways(ITEM)] == [
        Item(("The box is right of the ball.", "The box is left of the ball."), "The ball is left of the box."),
        Item(("The box is left of the ball.", "The box is right of the ball."), "The ball is right of the box."),
    ]
    for file in sorted((miniature / "ewok_filtered").iterdir()):
        rows = lines(file)
        for first, second in zip(rows[::2], rows[1::2], strict=True):
            assert (first["Context1"], first["Target1"]) == (second["Context2"], second["Target2"])
            assert (first["Context2"], first["Target2"]) == (second["Context1"], second["Target1"])


def test_ewok_scores_both_directions_of_a_named_data_set(run_of, git, naive, tmp_path):
    (tmp_path / "test.jsonl").write_text(json.dumps(ITEM) + "\n")
    result = run_ewok(run_of(sources={"ewok": str(tmp_path)}))
    assert result.counts == {"spatial-relations": 2}
    right = 0
    for context, true, false in (("Context1", "Target1", "Target2"), ("Context2", "Target2", "Target1")):
        right += naive.choice(git, ITEM[context], ITEM[true]) > naive.choice(git, ITEM[context], ITEM[false])
    assert result.subtasks == {"spatial-relations": {"accuracy": right / 2}}


@pytest.mark.parametrize("name", ["Domain", "Context2", "Target1"])
def test_an_item_of_a_named_data_set_that_lacks_a_field(run_of, tmp_path, name):
    (tmp_path / "test.jsonl").write_text(json.dumps({key: value for key, value in ITEM.items() if key != name}) + "\n")
    with pytest.raises(ValueError, match=rf"has no \['{name}'\]"):
        run_ewok(run_of(sources={"ewok": str(tmp_path)}))


def test_ewok_from_a_named_data_set_is_the_same(run_of, miniature, tmp_path):
    rows = [row for file in sorted((miniature / "ewok_filtered").iterdir()) for row in lines(file)[::2]]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    named = run_ewok(run_of(sources={"ewok": str(tmp_path)}))
    filtered = run_ewok(run_of())
    assert named.subtasks == filtered.subtasks
    assert named.predictions == filtered.predictions
    assert "not filtered" in named.notes[0]


def test_blimp_from_a_named_data_set_is_the_same(run_of, miniature, tmp_path, monkeypatch):
    import datasets

    folder = miniature / "blimp_filtered"
    monkeypatch.setattr(datasets, "get_dataset_config_names", lambda name: [path.stem for path in folder.iterdir()])

    def load(name, config):
        assert name == "nyu-mll/blimp"
        return datasets.DatasetDict({"train": datasets.Dataset.from_list(lines(folder / f"{config}.jsonl"))})

    monkeypatch.setattr(datasets, "load_dataset", load)
    named = run_blimp(run_of(sources={"blimp": "nyu-mll/blimp"}))
    assert named.subtasks == run_blimp(run_of()).subtasks


def test_one_subtask_can_be_asked_for(run_of):
    result = run_blimp(run_of(subtasks=("regular_plural_subject_verb_agreement_1",), limit=3))
    assert result.counts == {"regular_plural_subject_verb_agreement_1": 3}
    with pytest.raises(ValueError, match=r"\['passive_1'\] of `blimp` were asked for"):
        run_blimp(run_of(subtasks=("passive_1",)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"sentence_good": "a"}\n', "line 1 has no \\['sentence_bad'\\]"),
        ('{"sentence_good": "a", "sentence_bad": "b"}\n{"sent', "Line 2 is not JSON"),
        ('["a", "b"]\n', "Line 1 is .*, and an object with fields is needed"),
        ('{"sentence_good": "a", "sentence_bad": ""}\n', "Choice 1 of .* is empty"),
        ("\n", "has no items"),
        (
            '{"sentence_good": "a", "sentence_good": "c", "sentence_bad": "b"}\n',
            "The key 'sentence_good' stands twice",
        ),
        ('{"sentence_good": "a \\ud83d", "sentence_bad": "b"}\n', "Line 1 holds half a character"),
    ],
)
def test_damaged_files_are_named(content, message, run_of, tmp_path):
    (tmp_path / "blimp_filtered").mkdir()
    (tmp_path / "blimp_filtered" / "passive_1.jsonl").write_text(content)
    with pytest.raises(ValueError, match=message):
        run_blimp(run_of(data_dir=tmp_path))


def test_missing_data_are_named(run_of, tmp_path):
    (tmp_path / "ewok").mkdir()
    with pytest.raises(FileNotFoundError, match=r"`ewok` needs the folder .*ewok_filtered.*\['ewok'\]"):
        run_ewok(run_of(data_dir=tmp_path))
    (tmp_path / "ewok_filtered").mkdir()
    with pytest.raises(FileNotFoundError, match="there is no such file"):
        run_ewok(run_of(data_dir=tmp_path))


def test_a_killed_run_goes_on_where_it_was(run_of, tmp_path, monkeypatch):
    whole = run_blimp(run_of())
    run = run_of(scores_dir=tmp_path, save_every=0.0)
    real, calls = run.scorer.log_probs, []

    def dies(rows):
        if len(calls) == 3:
            raise KeyboardInterrupt
        calls.append(len(rows))
        return real(rows)

    monkeypatch.setattr(run.scorer, "log_probs", dies)
    with pytest.raises(KeyboardInterrupt):
        run_blimp(run)
    kept = json.loads((tmp_path / "blimp" / "determiner_noun_agreement_1.json").read_text())["values"]
    assert sum(map(len, kept.values())) == sum(calls)
    assert 0 < len(kept) < 24
    assert not list(tmp_path.rglob(".*"))  # no drafts are left
    monkeypatch.setattr(run.scorer, "log_probs", lambda rows: (calls.append(len(rows)), real(rows))[1])
    again = run_blimp(run)
    assert again == whole
    assert sum(calls) == 3 * 8 * 2  # nothing was scored twice
    assert run_blimp(run) == whole
    assert sum(calls) == 3 * 8 * 2


def test_the_bar_of_a_run_begins_with_the_scores_that_were_kept(run_of, tmp_path, monkeypatch):
    bars = []

    class Bar(tqdm):
        def __init__(self, **options):
            super().__init__(**options)
            bars.append(self)

    monkeypatch.setattr("hf_curriculum.tasks.babylm.run.tqdm", Bar)
    run = run_of(scores_dir=tmp_path, subtasks=("hypernym",), progress=True)
    assert run_supplement(run) == run_supplement(run)
    assert [(bar.initial, bar.n, bar.total) for bar in bars] == [(0, 8, 8), (8, 8, 8)]
    assert [bar.desc for bar in bars] == ["blimp_supplement hypernym"] * 2
    run_supplement(run_of(subtasks=("hypernym",), progress=False))
    assert [bar.n for bar in bars] == [8, 8, 0]  # which counts nothing, and shows nothing


def test_damaged_scores_are_made_anew(run_of, tmp_path, caplog):
    run = run_of(scores_dir=tmp_path, subtasks=("hypernym",))
    whole = run_supplement(run)
    file = tmp_path / "blimp_supplement" / "hypernym.json"
    file.write_text(file.read_text()[:40])
    assert run_supplement(run) == whole
    assert "hypernym.json is damaged: it is made again" in caplog.text
    assert set(json.loads(file.read_text())) == {"fingerprint", "values", "seal"}


def test_scores_of_another_model_are_not_taken(run_of, tmp_path, flamingo, caplog):
    first = run_supplement(run_of(scores_dir=tmp_path))
    other = run_supplement(run_of(scores_dir=tmp_path, model=flamingo))
    assert "it is made again" in caplog.text
    assert other == run_supplement(run_of(model=flamingo))
    assert other.predictions != first.predictions
