"""The study of photographs with wrong captions, on data in the format of the real one."""

from __future__ import annotations

import copy
import csv
import gzip
import json
import runpy
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import photographs
import pytest
import torch
from datasets import Dataset
from photos import report
from photos.captions import Captioner, run_captions
from photos.data import named, read_photographs
from photos.plan import CONTROL, read_plan
from photos.retrieval import Retrieval, run_retrieval
from photos.scores import all_scores, by_names, in_halves, kept

from hf_curriculum import make_scenes
from hf_curriculum.scoring.controls import deal_rows
from hf_curriculum.studies.statistics import auc
from hf_curriculum.tasks.alignment.text_tower import TextTower

THINGS = ("dog", "boat", "horse", "traffic_light")
WIDTH = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """40 photographs of four things, whose vectors lie near those of their names; one more has four captions."""
    where, draws = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    vectors = where / "clip_b32_embeddings"
    vectors.mkdir()
    (where / "flickr8k").mkdir()
    names = draws.normal(size=(len(THINGS), WIDTH))
    images = names[np.arange(41) % len(THINGS)] + 0.3 * draws.normal(size=(41, WIDTH))
    np.save(vectors / "flickr8k_image_embeds.npy", images.astype(np.float16))
    np.save(vectors / "coco80_text_embeds.npy", names.astype(np.float16))
    np.save(vectors / "lvis1203_text_embeds.npy", np.concatenate([-names[:1], names[1:2]]).astype(np.float16))
    coco = [{"id": at, "name": name.replace("_", " ")} for at, name in enumerate(THINGS)]
    lvis = [{"name": "dog"}, {"name": "wagon_(toy)"}]
    (vectors / "coco80_names.json").write_text(json.dumps(coco))
    (vectors / "lvis1203_names_and_longtail_counts.json").write_text(json.dumps(lvis))
    with open(vectors / "flickr8k_image_embeds_index.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["row", "file_name", "caption"])
        writer.writerows([[row, f"{row:02}.jpg", "any"] for row in range(41)])
    with gzip.open(where / "flickr8k" / "captions_all_8091.csv.gz", "wt", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "caption"])
        for row in range(41):
            thing = THINGS[row % len(THINGS)].replace("_", " ")
            texts = [f"A {thing} number {row} , {way}" for way in ("near", "far", "left", "right", "here")]
            writer.writerows([[f"{row:02}.jpg", text] for text in texts[: 5 if row < 40 else 4]])
        writer.writerows([["99.jpg", f"a photograph without vector {row}"] for row in range(20)])
    return where


@pytest.fixture
def data(folder, monkeypatch):
    monkeypatch.setenv("HF_CURRICULUM_TEST_DATA", str(folder))
    return folder


@pytest.fixture
def photos(data):
    return read_photographs(8, 8, 0)


@pytest.fixture(scope="module")
def plan():
    return read_plan(photographs.PLAN)


def tiny(plan, **changed):
    own = copy.deepcopy(plan)
    own.small.update({"seeds": [0], "lengths": [2, 4], "learning_rates": [1e-2], **changed})
    own.photographs.update(validation=8, test=8)
    own.training["per_device_train_batch_size"] = 16
    own.text["vocab_size"] = 90
    return own.shortened()


def test_photographs_are_split_and_their_vectors_have_length_one(photos):
    ids = {part: set(getattr(photos, part)["image_id"]) for part in ("train", "validation", "test")}
    assert [len(ids[part]) for part in ids] == [24, 8, 8]
    assert len(set.union(*ids.values())) == 40
    assert "40.jpg" not in photos.vectors  # it has four captions
    assert len(photos.train) == 24 * 5
    vectors = np.concatenate(list(photos.vectors.values()))
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-6)
    assert set(photos.names) == {"dog", "boat", "horse", "traffic light", "wagon"}


def test_the_split_is_that_of_its_seed(photos, data):
    assert read_photographs(8, 8, 0).test["image_id"][:] == photos.test["image_id"][:]
    assert read_photographs(8, 8, 1).test["image_id"][:] != photos.test["image_id"][:]


def test_data_that_is_not_there_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_CURRICULUM_TEST_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"There is no folder .*set HF_CURRICULUM_TEST_DATA to a folder"):
        read_photographs(8, 8, 0)


@pytest.mark.parametrize("share", [0.0, 0.25, 0.6, 1.0])
def test_dealt_captions_are_of_other_photographs(photos, share):
    dealt, right = deal_rows(photos.train, share, 3)
    assert (~right).sum() == round(share * len(dealt))
    assert sorted(dealt["caption"]) == sorted(photos.train["caption"])
    of = {}
    for row in photos.train:
        of[row["caption"]] = row["image_id"]
    assert [of[row["caption"]] == row["image_id"] for row in dealt] == right.tolist()
    assert dealt["caption"][:] == deal_rows(photos.train, share, 3)[0]["caption"][:]
    if share:
        assert dealt["caption"][:] != deal_rows(photos.train, share, 4)[0]["caption"][:]


def test_names_are_found_once_with_plurals_and_coco_s_vector(photos):
    found = named(photos, ["Two dogs and a dog", "traffic lights on a boat", "nothing"])
    dog = photos.name_vectors[list(photos.names).index("dog")]
    np.testing.assert_array_equal(found[0], dog[None])
    assert [len(vectors) for vectors in found] == [1, 2, 0]
    right = [photos.vectors[image][0] @ dog for image in photos.train["image_id"] if int(image[:2]) % 4 == 0]
    assert np.mean(right) > 0.8  # COCO's vector, not LVIS's, which points the other way


def test_the_score_by_names_is_the_mean_cosine_and_the_median_without_one():
    images = np.eye(3, dtype=np.float32)
    names = [np.array([[0.5, 0, 0], [0.1, 0, 0]]), np.empty((0, 3)), np.array([[0, 0, 0.9]])]
    np.testing.assert_allclose(by_names(names, images), [0.3, 0.6, 0.9])


def test_no_row_is_scored_by_a_tower_that_saw_its_photograph(photos):
    trained = []

    def train(rows, seed):
        seen = set(rows["image_id"])
        trained.append(seen)

        def score(others):
            assert not seen & set(others["image_id"])
            return np.array([int(image[:2]) + seed for image in others["image_id"]])

        return score

    scores = in_halves(photos.train, 5, lambda others, own: train(others, 5)(own))
    assert scores.tolist() == [int(image[:2]) + 5 for image in photos.train["image_id"]]
    assert set.union(*trained) == set(photos.train["image_id"])


def test_scores_have_the_auc_that_they_stand_for():
    rows = Dataset.from_dict({"image_id": [str(at // 5) for at in range(20_000)], "caption": ["a dog"] * 20_000})
    vectors = {str(at): np.ones((1, 2), np.float32) for at in range(4000)}
    dogs = SimpleNamespace(vectors=vectors, names={"dog": ["dog"]}, name_vectors=np.ones((1, 2), np.float32))
    right = np.arange(20_000) % 5 < 3
    scores = all_scores(dogs, rows, right, 0, lambda rows, seed: lambda others: np.arange(len(others)))
    assert auc(scores["oracle"], right) == 1
    for told in (0.6, 0.7, 0.8, 0.9):
        assert auc(scores[f"oracle_{told}"], right) == pytest.approx(told, abs=0.01)
    assert sorted(scores["shuffled"]) == sorted(scores["both"])
    assert auc(scores["shuffled"], right) == pytest.approx(0.5, abs=0.01)


def test_auc_is_the_share_of_pairs_in_order():
    draws = np.random.default_rng(0)
    values, right = draws.integers(5, size=60).astype(float), draws.random(60) < 0.4
    pairs = values[right][:, None] - values[~right]
    assert auc(values, right) == pytest.approx((pairs > 0).mean() + (pairs == 0).mean() / 2)
    assert auc(values, np.ones(60, dtype=bool)) is None


def test_scores_are_made_once(tmp_path):
    made = []

    def make():
        made.append(1)
        return {"names": np.arange(3.0)}

    for _ in range(2):
        assert kept(tmp_path / "scores" / "0.npz", make)["names"].tolist() == [0, 1, 2]
    assert made == [1]


def test_the_arms_keep_the_true_share(plan):
    arms = plan.arms_at(0.4)
    keeps = {name: arm["curriculum"]["keep"] for name, arm in arms.items() if "keep" in arm.get("curriculum", {})}
    assert (keeps["both"], keeps["both, 15 points more"], keeps["both, 15 points less"]) == (0.6, 0.75, 0.45)
    assert "shuffled, 15 points less" not in arms
    clean = plan.arms_at(0.0)
    assert {"both", "oracle", "oracle 0.7", "shuffled"}.isdisjoint(clean)
    assert clean["shuffled, 15 points less"]["curriculum"]["keep"] == 0.85
    assert plan.arms["both"]["curriculum"]["keep"] == "right"  # the plan itself stays as it is
    assert plan.lengths_of(CONTROL)[-1] == 1200
    assert plan.lengths_of("both") == plan.lengths


def test_a_plan_with_another_field_is_refused(tmp_path):
    text = photographs.PLAN.read_text(encoding="utf-8")
    file = tmp_path / "plan.yaml"
    file.write_text(text + "another: 1\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"A plan has the fields .*: write all of them, and no other"):
        read_plan(file)
    file.write_text(text.replace("  control: {}", "  control: {score: both}"), encoding="utf-8")
    with pytest.raises(ValueError, match="need one named 'control' without a score"):
        read_plan(file)
    file.write_text(text.replace("keep: right}", "keep: left}"), encoding="utf-8")
    with pytest.raises(ValueError, match="keep='left' is neither a share, 'auto', 'right'"):
        read_plan(file).arms_at(0.4)


def test_images_stay_as_they_are():
    tower = TextTower(10, 4, 6, 0.0)
    vectors = torch.rand(3, 1, 4)
    assert tower.get_image_features(vectors).pooler_output is not None
    torch.testing.assert_close(tower.get_image_features(vectors).pooler_output, vectors[:, 0], rtol=0, atol=0)
    ids, mask = torch.tensor([[1, 2, 0, 0], [1, 2, 3, 4]]), torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])
    texts = tower.get_text_features(ids, mask).pooler_output
    alone = tower.get_text_features(ids[:1, :2], mask[:1, :2]).pooler_output
    torch.testing.assert_close(texts[:1], alone)  # padding changes nothing
    with pytest.raises(NotImplementedError, match="trained by ContrastiveTrainer"):
        tower(input_ids=ids)


def run_of(arm, steps, validation, test=(), seed=0, status="finished", **result):
    result = {"validation_image": validation, "validation_text": validation, **result}
    result |= {"test_image": list(test), "test_text": list(test)}
    settings = {"arm": arm, "steps": steps, "learning_rate": result.pop("rate", 1)}
    return SimpleNamespace(arm=arm, seed=seed, settings=settings, result=result, status=status, error="lost")


def test_rate_and_length_are_the_best_on_validation():
    made = [run_of("a", 10, 0.2, rate=1), run_of("a", 20, 0.5, rate=2), run_of("a", 10, 0.1, rate=2)]
    assert report.best_rate(made) == 2
    lengths = {
        20: [run_of("a", 20, 0.5)],
        10: [run_of("a", 10, 0.4), run_of("a", 10, 0.6)],
        40: [run_of("a", 40, 0.1)],
    }
    assert report.best_length(lengths) == 10  # of equal ones the shortest
    with pytest.raises(RuntimeError, match="1 of 2 runs did not come to an end; the first, 'a' with seed 0: lost"):
        report.best_rate([run_of("a", 1, 1), run_of("a", 1, 1, status="crashed")])


def test_a_gain_is_paired_and_its_interval_over_seeds_and_photographs():
    draws, plan = np.random.default_rng(0), SimpleNamespace(resamples=2000)
    base = draws.random((6, 40))
    control = [run_of("control", 1, 0, row, seed) for seed, row in enumerate(base)]
    same = report.gain(plan, control, control, "image")
    assert same == {"mean": 0, "lower": 0, "upper": 0}
    by_seed = draws.normal(0.1, 0.2, 6)
    better = [run_of("a", 1, 0, row + by_seed[seed], seed) for seed, row in enumerate(base)]
    found = report.gain(plan, better, control, "image")
    assert found["mean"] == pytest.approx(by_seed.mean())
    spread = by_seed.std() / np.sqrt(6)  # photographs add nothing where all gain alike
    assert (found["upper"] - found["lower"]) / 2 == pytest.approx(1.96 * spread, rel=0.15)
    with pytest.raises(ValueError, match="Arm and control have other seeds"):
        report.gain(plan, better[:-1], control, "image")


def gained(lower):
    return {"gain": {"image": {"lower": lower}}}


@pytest.mark.parametrize(("arm", "placebo", "claim"), [
    ((0.01, 0.01), (-0.1, -0.1), True),
    ((0.01, 0.0), (-0.1, -0.1), False),
    ((0.01, 0.01), (-0.1, 0.01), False),
])  # fmt: skip
def test_the_rule_of_decision(arm, placebo, claim):
    plan = SimpleNamespace(decision={"arm": "both", "placebo": "shuffled", "measure": "image", "wrong": [0.4, 0.6]})
    shares = [
        {"wrong": wrong, "arms": {"both": gained(arm[at]), "shuffled": gained(placebo[at])}}
        for at, wrong in enumerate((0.4, 0.6))
    ]
    assert report.holds(plan, shares) == claim


def test_a_share_is_run_reported_and_read_back(data, plan, tmp_path, capsys):
    small = tiny(plan)
    facts = run_retrieval(small, 0.4, tmp_path / "wrong-0.4")
    assert capsys.readouterr().out.splitlines() == [
        "40% wrong, tuning: 2 of 2 runs to be made",
        "40% wrong: the control's learning rate is 0.01",
        "40% wrong, runs: 8 of 8 runs to be made",
    ]
    arms = facts["arms"]
    assert set(arms) == {CONTROL, "both", "shuffled", "oracle"}
    assert (arms["oracle"]["wrong_seen"], arms["oracle"]["auc"], arms[CONTROL]["auc"]) == (0, 1, None)
    assert arms[CONTROL]["wrong_seen"] == pytest.approx(0.4, abs=0.15)
    assert {tuple(arm["lengths"]) for arm in arms.values()} == {(2, 4)}
    assert arms["both"]["examples"] == 16 * arms["both"]["steps"]
    assert arms[CONTROL]["gain"]["image"]["mean"] == 0
    assert len(facts["runs"]) == 8
    best = [run for run in facts["runs"] if (run["arm"], run["steps"]) == ("both", arms["both"]["steps"])]
    assert np.mean([run["image"] for run in best]) == pytest.approx(arms["both"]["image"])
    assert np.mean([run["auc"] for run in best]) == pytest.approx(arms["both"]["auc"])
    again = run_retrieval(small, 0.4, tmp_path / "wrong-0.4")
    assert "runs: 0 of 8 runs to be made" in capsys.readouterr().out
    assert json.dumps(again) == json.dumps(facts)
    text = report.write_report(small, [facts], tmp_path, "Plan: plan.yaml")
    assert text.startswith("Plan: plan.yaml")
    assert "| oracle | 1.000 |" in text
    more = [100 * arms["oracle"]["gain"]["image"][end] for end in ("mean", "lower", "upper")]
    assert "| oracle | {:+.1f} [{:+.1f}, {:+.1f}], AUC 1.00 |".format(*more) in text
    assert f"| control | {100 * arms[CONTROL]['image']:.1f} |" in text
    assert "that choosing wins on photographs" in text
    assert "that choosing wins" not in report.write_report(small, [facts], tmp_path, None)
    assert {"report.md", "gain_against_auc.png"} <= {file.name for file in tmp_path.iterdir()}
    (written,) = json.loads((tmp_path / "results.json").read_text())
    assert written == json.loads(json.dumps({name: value for name, value in facts.items() if name != "runs"}))
    lines = [json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines()]
    assert lines == [{"wrong": 0.4, **run} for run in facts["runs"]]


def test_the_commits_of_a_plan_are_named(tmp_path):
    def git(*words):
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        return subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    plan = tmp_path / "plan.yaml"
    git("init", "-q")
    hashes = []
    for text in ("first", "second"):
        plan.write_text(text)
        git("add", "plan.yaml")
        git("commit", "-qm", text)
        hashes.append(git("log", "-1", "--format=%h").strip())
    told = photographs.commits_of(plan)
    assert told.startswith(f"Plan: plan.yaml, commits {hashes[1]} of ")
    assert f", {hashes[0]} of " in told
    (tmp_path / "other.yaml").write_text("never committed")
    assert photographs.commits_of(tmp_path / "other.yaml") == (
        "Plan: other.yaml, commits not known: no checkout, or never committed."
    )


def test_a_rule_that_refuses_its_scores_leaves_the_control(data, plan, tmp_path):
    share = Retrieval(tiny(plan), 0.4, tmp_path)
    share.learning_rate = 1e-2
    settings = {"steps": 2, "seed": 0, "learning_rate": 1e-2, "output_dir": str(tmp_path / "run")}
    auto = {"score": "shuffled", "curriculum": {"type": "filter", "keep": "auto"}}
    found, control = share.run({**settings, **auto}), share.run(settings)
    assert "no two humps" in found["refused"]
    assert found["test_image"] == control["test_image"]
    assert found["validation_text"] == control["validation_text"]
    with pytest.raises(ValueError, match="has no field"):
        share.run({**settings, "score": "both", "curriculum": {"type": "filter", "kept": 1}})


def tiny_captions():
    own = read_plan(photographs.CAPTIONS)
    own.captioner.update(hidden_size=16, text_layers=1, num_attention_heads=2)
    return tiny(own, lengths=[2], cross_fit_steps=2, reading={"steps": 2, "learning_rate": 1e-3, "seed": 0})


def test_captioners_go_by_the_towers_scores(data, plan, tmp_path, capsys):
    towers, own = tiny(plan), tiny_captions()
    where = tmp_path / "captions" / "wrong-0.4"
    with pytest.raises(FileNotFoundError, match=r"no scores of the seeds \[0\].* without --captions first"):
        run_captions(own, towers, 0.4, where)
    share = Retrieval(towers, 0.4, tmp_path / "wrong-0.4")
    share.learning_rate = 1e-2
    share.scores(0)
    facts = run_captions(own, towers, 0.4, where)
    arms = facts["arms"]
    assert set(arms) == {CONTROL, "both", "online"}
    assert set(arms["online"]["gain"]) == {"picture", "cider"}
    assert all(0 <= arm["picture"] <= 1 for arm in arms.values())
    assert arms["online"]["examples"] == 16 * 2
    text = report.write_report(own, [facts], tmp_path, None)
    assert "right picture of two" in text
    captioner = Captioner(own, tmp_path / "captions")
    assert captioner.photographs.others == [f"a photograph without vector {row}" for row in range(20)]
    before = captioner.weights.stat().st_mtime_ns
    captioner.read()
    assert captioner.weights.stat().st_mtime_ns == before  # it has read already


SCORE_AUC = Path(photographs.__file__).parent / "benchmarks" / "score_auc.py"


def test_scores_are_compared_on_photographs(data, plan, tmp_path):
    made = SimpleNamespace(**runpy.run_path(str(SCORE_AUC)))
    found = made.photographs([tiny(plan), tiny_captions()], tmp_path, 0.4, [0])
    assert all(0 <= one <= 1 for values in found.values() for one in values)
    towers = Retrieval(tiny(plan), 0.4, tmp_path / "again")
    towers.learning_rate = made.TOWER_RATES[0.4]
    scores, (_, right) = towers.scores(0), towers.dealt(0)
    named_as = {"names": "names in the caption", "cross_fit": "cosine, text towers of two halves"}
    for own, name in {**named_as, "both": "both, by mean rank"}.items():
        assert found[name] == [pytest.approx(auc(scores[own], right))]
    assert found["names in the caption"][0] > 0.7  # photographs lie near the names of their things


def test_scores_are_compared_on_scenes(tmp_path, monkeypatch):
    made = SimpleNamespace(**runpy.run_path(str(SCORE_AUC)))
    asked = []

    def trained(command, **options):
        asked.append(command)
        output = Path(command[-1])
        rows = make_scenes(60, image_size=64, mismatched=0.5, validation=0.2, test=0.0)
        rows.save_to_disk(str(output / "run" / "scored"))
        facts = {"auc": {"reference_loss": 0.6, "grounding": 0.9}}
        (output / "run" / "reference.json").write_text(json.dumps(facts))

    monkeypatch.setattr(subprocess, "run", trained)
    found = made.scenes(tmp_path, [0])
    assert ["--trusted" in command for command in asked] == [False, True]
    assert found["ModelLoss, two halves"] == [0.6]
    assert found["CLIPSimilarity, the shipped CLIP"][0] > 0.9
    assert found["NegCLIPLoss, the shipped CLIP"][0] > 0.9
    assert made.cell([0.5, 0.7]) == "0.600 (0.500 to 0.700)"
