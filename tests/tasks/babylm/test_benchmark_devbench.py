import csv
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy.io import savemat
from scipy.optimize import minimize_scalar
from scipy.special import rel_entr, softmax
from scipy.stats import spearmanr

from hf_curriculum.tasks.babylm.devbench import (
    cosine_similarities,
    devbench_averages,
    human_similarity,
    mean_divergence,
    read_human,
    read_similarities,
    read_trials,
    representational_similarity,
    run_devbench,
    score_trials,
    trial_accuracy,
)


def draws(trials=30, pictures=4, seed=0, scale=3.0):
    generator = np.random.default_rng(seed)
    return generator.normal(scale=scale, size=(trials, pictures)), generator.dirichlet(np.ones(pictures), trials)


def table(file, rows):
    with file.open("w", newline="") as stream:
        csv.writer(stream).writerows(rows)
    return file


def test_the_right_image_must_be_strictly_ahead():
    assert trial_accuracy(np.array([[2.0, 1, 1, 1], [2, 2, 1, 1], [1, 2, 1, 1], [0, -1, -1, -1]])) == 0.5


@pytest.mark.parametrize(
    ("similarities", "message"),
    [
        (np.zeros((3, 4, 1)), r"the shape \(3, 4, 1\)"),
        (np.zeros((3, 1)), "at least 2 images"),
        (np.zeros((0, 4)), r"\(0, 4\)"),
        (np.array([[1.0, np.nan]]), "NaN or infinite"),
    ],
)
def test_similarities_that_are_none(similarities, message):
    with pytest.raises(ValueError, match=message):
        trial_accuracy(similarities)


@pytest.mark.parametrize("beta", [0.03, 0.7, 3.0, 39.0])
def test_people_who_are_a_softmax_of_the_model_are_matched_wholly(beta):
    similarities, _ = draws(scale=0.3)
    found = human_similarity(similarities, softmax(beta * similarities, axis=1))
    assert found.value == pytest.approx(1.0, abs=1e-7)
    assert found.beta == pytest.approx(beta, rel=1e-3)
    assert found.trials == 30


def test_a_temperature_beyond_the_bounds_is_not_reached():
    similarities, _ = draws(scale=0.3)
    found = human_similarity(similarities, softmax(80 * similarities, axis=1))
    assert found.beta == pytest.approx(40.0, rel=1e-6)
    assert found.value < 0.999


@given(st.integers(0, 10_000), st.sampled_from([0.01, 0.5, 20.0]), st.integers(2, 5))
@settings(max_examples=15, deadline=None)
def test_the_best_temperature_is_scipys(seed, scale, pictures):
    similarities, human = draws(12, pictures, seed, scale)

    def divergence(beta):
        model = np.clip(softmax(beta * similarities, axis=1), 1e-10, 1)
        return rel_entr(np.clip(human, 1e-10, 1), model).sum(1).mean()

    wanted = min(
        minimize_scalar(divergence, bounds=bounds, method="bounded", options={"xatol": 1e-9}).fun
        for bounds in ((0.025, 0.3), (0.3, 4), (4, 40))
    )
    assert mean_divergence(1.3, similarities, human) == pytest.approx(divergence(1.3), rel=1e-12)
    assert human_similarity(similarities, human).value == pytest.approx(np.exp(-wanted), abs=1e-7)


def test_shapes_of_people_and_model_must_agree():
    similarities, human = draws()
    with pytest.raises(ValueError, match=r"the shape \(29, 4\), the model's similarities \(30, 4\)"):
        human_similarity(similarities, human[1:])


def test_rank_correlation_is_scipys_with_ties_too():
    generator = np.random.default_rng(0)
    one, other = generator.integers(0, 6, (2, 25, 25)).astype(float)
    below = np.tril_indices(25, k=-1)
    assert representational_similarity(one, other) == pytest.approx(spearmanr(one[below], other[below])[0], abs=1e-12)
    assert representational_similarity(one, one) == pytest.approx(1.0)
    assert np.isnan(representational_similarity(np.ones((4, 4)), one[:4, :4]))
    three = np.array([[0.0, 0, 0], [1, 0, 0], [2, 3, 0]])
    assert representational_similarity(three, -three) == pytest.approx(-1.0)
    for shapes in (((4, 4), (5, 5)), ((4, 5), (4, 5)), ((2, 2), (2, 2))):
        with pytest.raises(ValueError, match="Both must be"):
            representational_similarity(*map(np.zeros, shapes))


def test_cosines():
    features = np.array([[3.0, 4.0], [0.0, 2.0], [-3.0, -4.0]])
    assert cosine_similarities(features) == pytest.approx(np.array([[1, 0.8, -1], [0.8, 1, -0.8], [-1, -0.8, 1]]))
    with pytest.raises(ValueError, match="zero or not finite"):
        cosine_similarities(np.zeros((2, 3)))


def test_trials_are_joined_by_text_not_by_place(tmp_path):
    """78 trials of people, 76 of the manifest: two are missing in the middle, as in gram-trog."""
    texts = [f"trial {at}" for at in range(78)]
    similarities, _ = draws(78)
    human = softmax(2 * similarities, axis=1)
    rows = [["trial", "text1", "image1", "image2", "image3", "image4"]]
    rows += [[at + 1, text, *shares] for at, (text, shares) in enumerate(zip(texts, human, strict=True))]
    file = table(tmp_path / "human.csv", rows)
    kept = [at for at in range(78) if at not in (58, 59)]
    ours, note = score_trials(similarities[kept], [texts[at] for at in kept], file)
    assert len(kept) == 76
    assert ours["human_similarity"] == pytest.approx(1.0, abs=1e-7)
    assert note == []
    by_place = human_similarity(similarities[kept], human[:76]).value
    assert by_place < 0.99
    shuffled = np.random.default_rng(0).permutation(76)
    again, _ = score_trials(similarities[kept][shuffled], [texts[kept[at]] for at in shuffled], file)
    assert again["human_similarity"] == pytest.approx(1.0, abs=1e-7)


def test_age_bins_have_a_temperature_each(tmp_path):
    similarities, _ = draws(10)
    rows = [["text1", "age_bin", "image1", "image2", "image3", "image4"]]
    for age, beta in (("10", 0.5), ("4", 2.0)):
        rows += [[f"t{at}", age, *softmax(beta * similarities[at])] for at in range(9)]  # nobody saw the tenth
    found, notes = score_trials(similarities, [f"t{at}" for at in range(10)], table(tmp_path / "human.csv", rows))
    assert found["human_similarity"] == pytest.approx(1.0, abs=1e-7)
    assert [name for name in found if name.startswith("human_similarity_")] == [
        "human_similarity_4",
        "human_similarity_10",
    ]
    assert notes == ["human data of 9 of 10 trials"]
    people = read_human(tmp_path / "human.csv", ["t3"], 4)
    assert {age: places.tolist() for age, (places, _) in people.items()} == {"4": [0], "10": [0]}


def test_shares_of_looks_are_joined_by_number(tmp_path):
    file = table(tmp_path / "human.csv", [["age_bin", "prop", "trial"], ["2", 0.7, 2], ["2", 0.6, 1]])
    lines = file.read_text().splitlines()
    file.write_text("\n".join([lines[0], *(f"{line}," for line in lines[1:])]))  # a comma too many is no cell
    places, shares = read_human(file, ["ball", "ball"], 2)["2"]
    assert places.tolist() == [1, 0]
    assert shares == pytest.approx(np.array([[0.7, 0.3], [0.6, 0.4]]))
    table(file, [["prop", "trial"], [0.7, 3]])
    with pytest.raises(ValueError, match="has trial 3, but the manifest has 2"):
        read_human(file, ["ball", "ball"], 2)


def test_images_are_in_the_order_of_their_numbers(tmp_path):
    for name in ("right", "wrong", "other"):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{name}.png")
    header = ["text1", "image10", "image2", "image1"]
    table(tmp_path / "manifest.csv", [header, ["ball", "other.png", "wrong.png", "right.png"]])
    [images] = read_trials(tmp_path, task="t").images
    assert [image.stem for image in images] == ["right", "wrong", "other"]
    file = table(tmp_path / "human.csv", [header, ["ball", 0.1, 0.2, 0.7]])
    assert read_human(file, ["ball"], 3)["all"][1].tolist() == [[0.7, 0.2, 0.1]]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([["prop"], [0.5]], "neither `text1` nor `trial`"),
        ([["text1", "image1", "image2"], ["ball", 0.5, 0.5]], "several trials with the text 'ball'"),
        ([["trial", "image1"], [1, 0.5]], "has 1 shares for the 2 images"),
        ([["trial", "prop"], [1, "NA"]], "a share that is no number"),
        ([["trial", "prop"], [1, ""]], "a share that is no number"),
        ([["trial", "prop"], [1, "nan"]], "has nan where a share of people's choices stands"),
        ([["trial", "image1", "image2"], [1, 30, 70]], "has 30.0 where a share of people's choices stands"),
        ([["trial", "prop"], ["", 0.5]], "has trial None, but the manifest has 2"),
        ([["trial", "prop"], ["first", 0.5]], "has trial first, but the manifest has 2"),
        ([["trial", "prop"], [1, 0.5, 0.5]], "Line 2 has more cells than the header"),
        ([["trial", "prop"]], "has no items"),
        ([["trial", "prop"], [1, 0.5], [1, 0.7]], "row 2 is of trial 1, which a row before it has"),
    ],
)
def test_human_data_that_cannot_be_read(rows, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        read_human(table(tmp_path / "human.csv", rows), ["ball", "ball"], 2)


@pytest.mark.parametrize("name", ["git", "flamingo"])
def test_devbench_is_as_a_naive_loop_finds_it(name, models, run_of, miniature, naive, tokenizer):
    model = models[name]
    result = run_devbench(run_of(model=model, limit=6))
    assert list(result.subtasks) == ["lex-viz_vocab", "gram-trog", "sem-things", "lex-lwl"]
    before = "<image> " if name == "flamingo" else ""
    for task in ("lex-viz_vocab", "gram-trog", "lex-lwl"):
        folder = miniature / "devbench" / "assets" / task
        trials = read_trials(folder, task=task)
        similarities = []
        for text, images in zip(trials.texts[:6], trials.images[:6], strict=True):
            ids = tokenizer(f"{before}The caption for this image is: {text}.")["input_ids"]
            similarities.append([np.mean(naive.log_probs(model, ids, 1, image)) for image in images])
        found = np.array(result.predictions[task]["predictions"])
        assert found.shape == (6, len(trials.images[0]), 1)
        assert found[..., 0] == pytest.approx(np.array(similarities), abs=1e-5)
        right = sum(all(row[0] > other for other in row[1:]) for row in similarities)
        assert result.subtasks[task]["accuracy"] == right / len(similarities)
    rsa = result.subtasks["sem-things"]["rsa"]
    human = np.load(miniature / "devbench" / "evals" / "sem-things" / "spose_similarity.npy")[:6, :6]
    below = np.tril_indices(len(human), k=-1)
    assert rsa == pytest.approx(
        spearmanr(np.array(result.predictions["sem-things"]["predictions"])[below], human[below])[0]
    )
    vocabulary, grammar = result.subtasks["lex-viz_vocab"], result.subtasks["gram-trog"]
    assert result.averages["accuracy"] == pytest.approx((vocabulary["accuracy"] + grammar["accuracy"] + rsa) / 3)
    people = vocabulary["human_similarity"] + grammar["human_similarity"]
    assert result.averages["human_similarity"] == pytest.approx((people + rsa) / 3)
    bins = [value for measure, value in vocabulary.items() if measure.startswith("human_similarity_")]
    assert len(bins) == 4
    assert vocabulary["human_similarity"] == pytest.approx(np.mean(bins))
    assert "lex-viz_vocab: human data of 5 of 6 trials" in result.notes


def test_the_miniature_has_gram_trogs_trap(miniature):
    folder = miniature / "devbench"
    texts = read_trials(folder / "assets" / "gram-trog", task="gram-trog").texts
    with (folder / "evals" / "gram-trog" / "human.csv").open() as stream:
        people = [row["text1"] for row in csv.DictReader(stream)]
    assert len(people) == len(texts) + 2
    assert people[:4] == texts[:4]
    assert people[4:8] != texts[4:]
    assert set(texts) < set(people)


def test_missing_human_data_are_nan_and_noted(run_of, miniature, tmp_path):
    copied = shutil.copytree(miniature, tmp_path / "data")
    shutil.rmtree(copied / "devbench" / "evals")
    result = run_devbench(run_of(data_dir=copied, limit=4, subtasks=("gram-trog", "sem-things")))
    assert np.isnan(result.subtasks["gram-trog"]["human_similarity"])
    assert np.isnan(result.subtasks["sem-things"]["rsa"])
    assert [note.partition(":")[0] for note in result.notes] == ["gram-trog", "sem-things"]
    whole = run_devbench(run_of(limit=4, subtasks=("gram-trog", "sem-things")))
    assert result.subtasks["gram-trog"]["accuracy"] == whole.subtasks["gram-trog"]["accuracy"]
    assert np.isfinite(list(whole.averages.values())).all()


def test_people_similarities_are_read_from_matlab_files(tmp_path):
    assert read_similarities(tmp_path) is None
    matrix = np.random.default_rng(0).random((5, 5))
    savemat(tmp_path / "spose_similarity.mat", {"spose_sim": matrix}, do_compression=True)
    assert read_similarities(tmp_path) == pytest.approx(matrix)


def test_manifests_that_cannot_be_read(run_of, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"manifest\.csv of lex-viz_vocab, .* and there is none"):
        run_devbench(run_of(data_dir=tmp_path))
    folder = tmp_path / "devbench" / "assets" / "lex-lwl"
    folder.mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match="which does not exist"):
        read_trials(folder, task="lex-lwl")
    table(folder / "manifest.csv", [["text1", "image1", "image2"], ["ball", "a.png", "b.png"]])
    with pytest.raises(FileNotFoundError, match=r"2 of 2 images are not in .*'a\.png'"):
        run_devbench(run_of(data_dir=tmp_path))
    table(folder / "manifest.csv", [["text1", "image1"], ["", "a.png"]])
    with pytest.raises(ValueError, match=r"trial 1 has no \['text1'\]"):
        read_trials(folder, task="lex-lwl")


def test_averages_leave_looking_out():
    found = devbench_averages({"lex-lwl": {"accuracy": 0.9, "human_similarity": 0.9}, "sem-things": {"rsa": 0.2}})
    assert found == {"accuracy": 0.2, "human_similarity": 0.2}
    assert devbench_averages({"lex-lwl": {"accuracy": 0.9}}) == {}
