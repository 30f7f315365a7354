import json
import zipfile

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_curriculum.tasks.babylm import TextImageScorer, evaluate_suite
from hf_curriculum.tasks.babylm.devbench import human_similarity, run_devbench, score_trials
from hf_curriculum.tasks.babylm.files import read_csv, read_jsonl
from hf_curriculum.tasks.babylm.scorer import Item


@pytest.fixture
def stories(test_data):
    folder = test_data("weights") / "stories260K_hf"
    return AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


@pytest.fixture
def blimp(test_data, tmp_path):
    zipfile.ZipFile(test_data("blimp") / "BLiMP_34.zip").extractall(tmp_path / "blimp_filtered")
    return tmp_path


def plain(model, tokenizer, text):
    """Log p of a text after the beginning of text, by `transformers` alone."""
    ids = [tokenizer.bos_token_id, *tokenizer.encode(text, add_special_tokens=False)]
    with torch.no_grad():
        scores = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    return sum(scores[at - 1, ids[at]].item() for at in range(1, len(ids)))


def check_pairs(stories, blimp, pairs):
    model, tokenizer = stories
    files = sorted((blimp / "blimp_filtered").glob("*.jsonl"))
    assert len(files) == 34
    result = evaluate_suite(model, tokenizer, data_dir=blimp, output_dir=blimp / "out", limit=pairs, progress=False)
    for file in files:
        rows = read_jsonl(file, ("sentence_good", "sentence_bad"))[:pairs]
        both = [(row["sentence_good"], row["sentence_bad"]) for row in rows]
        wanted = [[plain(model, tokenizer, f" {sentence}") for sentence in pair] for pair in both]
        kept = json.loads((blimp / "out" / "scores" / "blimp" / f"{file.stem}.json").read_text())["values"]
        found = [kept[str(at)] for at in range(pairs)]
        assert np.array(found) == pytest.approx(np.array(wanted), abs=1e-4)
        right = sum(good >= bad for good, bad in wanted)
        assert result.tasks["blimp"].subtasks[file.stem]["accuracy"] == right / pairs
    assert result.tasks["blimp"].counts == dict.fromkeys((file.stem for file in files), pairs)


def test_the_34_paradigms_are_scored_as_a_plain_loop_scores_them(stories, blimp):
    check_pairs(stories, blimp, pairs=2)


@pytest.mark.slow
def test_more_pairs_of_the_34_paradigms(stories, blimp):
    check_pairs(stories, blimp, pairs=20)


@pytest.mark.slow
def test_lm_eval_gives_the_same_log_probabilities(stories, blimp):
    lm_eval = pytest.importorskip("lm_eval.models.huggingface")
    from lm_eval.api.instance import Instance

    model, tokenizer = stories
    rows = read_jsonl(blimp / "blimp_filtered" / "drop_argument.jsonl", ("sentence_good",))[:8]
    harness = lm_eval.HFLM(pretrained=model, tokenizer=tokenizer, batch_size=4, device="cpu", add_bos_token=False)
    asked = [("", f" {row['sentence_good']}") for row in rows] + [("Once upon a time", " there was a cat.")]
    requests = [Instance("loglikelihood", {}, pair, at) for at, pair in enumerate(asked)]
    wanted = [score for score, _ in harness.loglikelihood(requests, disable_tqdm=True)]
    items = [Item((choice[1:], "x"), context) for context, choice in asked]
    found = [scores[0] for scores in TextImageScorer(model, tokenizer).choice_scores(items)]
    assert found == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize(
    ("task", "file", "trials", "printed"),
    [
        ("lex-lwl", "lwl", 76, {"clip_base": 0.987, "openclip_random": 0.50}),
        ("lex-viz_vocab", "vv", 119, {"clip_base": 0.958}),
        ("gram-trog", "trog", 78, {"clip_base": 0.462}),
    ],
)
def test_published_scores_of_clip_reach_the_published_accuracy(task, file, trials, printed, test_data):
    folder = test_data("devbench")
    texts = [row["text1"] for row in read_csv(folder / "assets" / task / "manifest.csv")]
    for model, accuracy in printed.items():
        scores = np.load(folder / "evals" / task / f"{file}_{model}.npy")
        assert scores.shape[::2] == (trials, 1)
        found, notes = score_trials(scores[..., 0], texts, folder / "evals" / task / "human.csv")
        assert found["accuracy"] == pytest.approx(accuracy, abs=5e-4)
        assert 0 < found["human_similarity"] <= 1
    assert notes == (["human data of 108 of 119 trials"] if task == "lex-viz_vocab" else [])


def test_grammars_76_trials_find_their_people_among_78(test_data):
    """The challenge's manifest lacks two of the trials that people did, the 59th and the 60th."""
    folder = test_data("devbench")
    human = folder / "evals" / "gram-trog" / "human.csv"
    texts = [row["text1"] for row in read_csv(folder / "assets" / "gram-trog" / "manifest.csv")]
    scores = np.load(folder / "evals" / "gram-trog" / "trog_clip_base.npy")[..., 0].astype(np.float64)
    kept = [at for at in range(78) if at not in (58, 59)]
    assert texts[58].startswith("not only the girl")
    found, notes = score_trials(scores[kept], [texts[at] for at in kept], human)
    assert notes == []
    people = np.array([[float(row[f"image{at}"]) for at in range(1, 5)] for row in read_csv(human)])
    by_text, by_place = human_similarity(scores[kept], people[kept]), human_similarity(scores[kept], people[:76])
    assert found["human_similarity"] == pytest.approx(by_text.value, abs=1e-12)
    assert abs(by_text.value - by_place.value) > 1e-3


def test_clip_is_closer_to_people_than_chance_is(test_data):
    folder = test_data("devbench")
    for task, file in (("lex-lwl", "lwl"), ("lex-viz_vocab", "vv"), ("gram-trog", "trog")):
        texts = [row["text1"] for row in read_csv(folder / "assets" / task / "manifest.csv")]
        human = folder / "evals" / task / "human.csv"
        trained, random = (
            score_trials(np.load(folder / "evals" / task / f"{file}_{model}.npy")[..., 0], texts, human)[0]
            for model in ("clip_base", "openclip_random")
        )
        assert trained["human_similarity"] > random["human_similarity"]


def test_looking_while_listening_runs_on_the_real_images(test_data, run_of, tmp_path):
    (tmp_path / "devbench").symlink_to(test_data("devbench"))
    result = run_devbench(run_of(data_dir=tmp_path, subtasks=("lex-lwl",), batch_size=64))
    assert result.counts == {"lex-lwl": 76}
    assert np.array(result.predictions["lex-lwl"]["predictions"]).shape == (76, 2, 1)
    ages = {name for name in result.subtasks["lex-lwl"] if name.startswith("human_similarity_")}
    assert ages == {"human_similarity_1.5", "human_similarity_2", "human_similarity_2.5"}
    assert result.averages == {}  # the challenge's averages do not count it
    with pytest.raises(FileNotFoundError, match=r"devbench/lex-viz_vocab.*476 of 476 images"):
        run_devbench(run_of(data_dir=tmp_path, subtasks=("lex-viz_vocab",)))
