"""DevBench: words, grammar and concepts in images, compared with people of several ages."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hf_curriculum.tasks.babylm.files import existing_folder, find_images, read_csv, validate_fields
from hf_curriculum.tasks.babylm.run import Run, TaskResult

DEVBENCH = ("lex-viz_vocab", "gram-trog", "sem-things")
"""Tasks of the challenge, over which its averages are taken."""
LOOKING = "lex-lwl"
"""Looking while listening: DevBench has it, the challenge has not."""
THINGS = "sem-things"
_TASKS = (*DEVBENCH, LOOKING)
_PROMPT = "The caption for this image is: {}."


def run_devbench(run: Run) -> TaskResult:
    """DevBench: `devbench/assets/<task>/manifest.csv` with its images, `devbench/evals/<task>/` with human data."""
    folder = run.data_dir / "devbench"
    there = [name for name in _TASKS if (folder / "assets" / name / "manifest.csv").is_file()]
    if not there:
        raise FileNotFoundError(
            f"`devbench` reads {folder}/assets/<task>/manifest.csv of {', '.join(_TASKS)}, and there is none. Unpack "
            "DevBench's `assets` and `evals` there."
        )
    subtasks, predictions, counts, notes = {}, {}, {}, []
    for name in run.wanted(there, task="devbench"):
        trials = read_trials(folder / "assets" / name, task=f"devbench/{name}")
        score = _things if name == THINGS else _trials
        subtasks[name], matrix, note = score(run, name, trials, folder / "evals" / name)
        predictions[name], counts[name] = {"predictions": matrix}, len(matrix)
        notes += note
    return TaskResult("devbench", subtasks, devbench_averages(subtasks), predictions, counts, tuple(notes))


def devbench_averages(subtasks: dict[str, dict[str, float]]) -> dict[str, float]:
    """Means over the challenge's tasks, `rsa` of sem-things standing in for both measures."""
    means = {}
    for measure in ("accuracy", "human_similarity"):
        values = [values.get(measure, values.get("rsa")) for name, values in subtasks.items() if name in DEVBENCH]
        if values:
            means[measure] = float(np.mean(values))
    return means


def _trials(run: Run, name: str, trials: Trials, evals: Path) -> tuple[dict[str, float], list[Any], list[str]]:
    texts = [_PROMPT.format(text) for text in run.first(trials.texts)]
    similarities = np.array(run.similarities("devbench", name, texts, run.first(trials.images)))  # (trials, images)
    values, notes = score_trials(similarities, trials.texts, evals / "human.csv")
    return values, similarities[:, :, None].tolist(), [f"{name}: {note}" for note in notes]


def score_trials(similarities: np.ndarray, texts: list[str], human: Path) -> tuple[dict[str, float], list[str]]:
    """Accuracy and human similarity of similarities (trials, images), the right image first, and notes on them."""
    values = {"accuracy": trial_accuracy(similarities)}
    if not human.is_file():
        return values | {"human_similarity": float("nan")}, [f"no human data ({human.name} is missing)"]
    ages, seen = {}, set()
    for age, (trials, shares) in read_human(human, texts, similarities.shape[1]).items():
        scored = trials < len(similarities)
        if scored.any():
            ages[age] = human_similarity(similarities[trials[scored]], shares[scored])
            seen.update(trials[scored].tolist())
    values["human_similarity"] = float(np.mean([found.value for found in ages.values()])) if ages else float("nan")
    if list(ages) != [ALL_AGES]:
        values |= {f"human_similarity_{age}": found.value for age, found in ages.items()}
    missing = len(seen) < len(similarities)
    return values, [f"human data of {len(seen)} of {len(similarities)} trials"] if missing else []


def _things(run: Run, name: str, trials: Trials, evals: Path) -> tuple[dict[str, float], list[Any], list[str]]:
    features = np.array(
        run.features("devbench", name, [images[0] for images in run.first(trials.images)])
    )  # (n, width)
    cosines = cosine_similarities(features)
    human = read_similarities(evals)
    if human is None:
        return {"rsa": float("nan")}, cosines.tolist(), [f"{name}: no human data (spose_similarity.mat is missing)"]
    if run.limit is not None:
        human = human[: run.limit, : run.limit]
    return {"rsa": representational_similarity(cosines, human)}, cosines.tolist(), []


def read_similarities(folder: Path) -> np.ndarray | None:
    """People's similarities of things, (n, n): `spose_similarity.mat` (variable `spose_sim`) or `.npy`; or None."""
    from hf_curriculum.data.regions.arrays import read_matlab

    array, matlab = folder / "spose_similarity.npy", folder / "spose_similarity.mat"
    if matlab.is_file():
        return read_matlab(str(matlab), ["spose_sim"])["spose_sim"]
    return np.load(array, allow_pickle=False) if array.is_file() else None


BETAS = (0.025, 40.0)
"""Between these the inverse temperature is sought."""
_LEAST = 1e-10
"""Probabilities are not smaller, so that a logarithm exists."""
_GOLDEN = (5**0.5 - 1) / 2


class HumanSimilarity(NamedTuple):
    """exp(−KL), from 0 to 1, the inverse temperature it was reached at, and the trials that both sides have."""

    value: float
    beta: float
    trials: int


def trial_accuracy(similarities: np.ndarray) -> float:
    """Share of trials whose first image is strictly more similar than all others: a tie is wrong."""
    similarities = _checked(similarities)
    return float((similarities[:, 0] > similarities[:, 1:].max(1)).mean())


def human_similarity(similarities: np.ndarray, human: np.ndarray) -> HumanSimilarity:
    """exp(−mean KL(human ‖ softmax(β · similarities))) with the β in [0.025, 40] that is best for all trials."""
    similarities = _checked(similarities)
    human = np.asarray(human, dtype=np.float64)
    if human.shape != similarities.shape:
        raise ValueError(
            f"People's choices have the shape {human.shape}, the model's similarities {similarities.shape}. They are "
            "compared trial by trial and image by image: join them first."
        )
    grid = np.geomspace(*BETAS, 200)
    divergences = [mean_divergence(beta, similarities, human) for beta in grid]
    best = int(np.argmin(divergences))
    low, high = grid[max(0, best - 1)], grid[min(len(grid) - 1, best + 1)]
    while high - low > 1e-9 * high:
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        if mean_divergence(left, similarities, human) <= mean_divergence(right, similarities, human):
            high = right
        else:
            low = left
    beta = float(min((grid[best], (low + high) / 2), key=lambda one: mean_divergence(one, similarities, human)))
    return HumanSimilarity(float(np.exp(-mean_divergence(beta, similarities, human))), beta, len(human))


def mean_divergence(beta: float, similarities: np.ndarray, human: np.ndarray) -> float:
    """Mean over trials of KL(human ‖ softmax(β · similarities)), probabilities not below 1e-10."""
    logits = beta * similarities
    weights = np.exp(logits - logits.max(1, keepdims=True))
    model = np.clip(weights / weights.sum(1, keepdims=True), _LEAST, 1)
    people = np.clip(human, _LEAST, 1)
    return float((people * np.log(people / model)).sum(1).mean())


def cosine_similarities(features: np.ndarray) -> np.ndarray:
    """Cosines between all rows of `features` (n, width), float64 (n, n)."""
    features = np.asarray(features, dtype=np.float64)
    size = np.linalg.norm(features, axis=1, keepdims=True)
    if not (np.isfinite(size).all() and (size > 0).all()):
        raise ValueError(
            "An image's feature is zero or not finite, so it has no direction. Check the model's weights."
        )
    features = features / size
    return features @ features.T


def representational_similarity(one: np.ndarray, other: np.ndarray) -> float:
    """Spearman's correlation between the lower triangles of two similarity matrices, without their diagonals."""
    one, other = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
    if one.shape != other.shape or one.ndim != 2 or one.shape[0] != one.shape[1] or len(one) < 3:
        raise ValueError(
            f"The similarity matrices have the shapes {one.shape} and {other.shape}. Both must be (n, n), of the same "
            "n things in the same order, at least 3."
        )
    below = np.tril_indices(len(one), k=-1)
    from scipy.stats import rankdata

    ranks = [rankdata(matrix[below]) for matrix in (one, other)]  # (n · (n - 1) / 2,) each
    centred = [values - values.mean() for values in ranks]
    scale = np.sqrt((centred[0] ** 2).sum() * (centred[1] ** 2).sum())
    return float(centred[0] @ centred[1] / scale) if scale > 0 else float("nan")


def _checked(similarities: np.ndarray) -> np.ndarray:
    similarities = np.asarray(similarities, dtype=np.float64)
    if similarities.ndim != 2 or similarities.shape[1] < 2 or not len(similarities):
        raise ValueError(
            f"The similarities have the shape {similarities.shape}. One row per trial and one column per image are "
            "needed, at least 2 images; squeeze the dimension of texts away."
        )
    if not np.isfinite(similarities).all():
        raise ValueError(
            "A similarity is NaN or infinite, so nothing can be compared with it. Check the model's loss."
        )
    return similarities


ALL_AGES = "all"
"""The age bin of human data that has none."""


class Trials(NamedTuple):
    """Trials of one task: the text of each, and its images, the right one first."""

    texts: list[str]
    images: list[list[Path]]


def read_trials(folder: Path, *, task: str) -> Trials:
    """`manifest.csv` with `text1` and `image1`, `image2`, ..., and the images it names."""
    file = existing_folder(folder, task=task) / "manifest.csv"
    if not file.is_file():
        raise FileNotFoundError(f"`{task}` reads {file}, which does not exist. DevBench's `assets` folder has it.")
    rows = read_csv(file)
    columns = _image_columns(rows[0])
    for number, row in enumerate(rows, start=1):
        validate_fields(row, ("text1", *(columns or ["image1"])), f"{file}, trial {number}")
    paths = find_images(folder, [row[name] for row in rows for name in columns], task=task)
    width = len(columns)
    return Trials([row["text1"] for row in rows], [paths[at : at + width] for at in range(0, len(paths), width)])


def _image_columns(row: dict[str, Any]) -> list[str]:
    """The columns `image1`, `image2`, … in the order of their numbers: the right image is the first."""
    numbers = {name: int(found[1]) for name in row if (found := re.fullmatch(r"image_?([0-9]+)", name))}
    return sorted(numbers, key=numbers.__getitem__)


def read_human(file: Path, texts: Sequence[str], width: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """What people chose: age bin (`"all"` without) → rows of the manifest (n,), and people's shares (n, width)."""
    rows = read_csv(file)
    found: dict[str, dict[int, list[float]]] = {}
    position = _positions(rows, list(texts), file)
    for number, row in enumerate(rows, start=1):
        at = position(row)
        own = found.setdefault(row.get("age_bin") or ALL_AGES, {})
        if at in own:
            raise ValueError(
                f"{file}, row {number} is of trial {at + 1}, which a row before it has for the same age. What people "
                "chose is not known. Remove one."
            )
        if at is not None:
            own[at] = _shares(row, width, file, number)
    return {
        age: (np.array(list(values)), np.array(list(values.values())))
        for age, values in sorted(found.items(), key=lambda part: _age(part[0]))
        if values
    }


def _positions(rows: list[dict[str, Any]], texts: list[str], file: Path) -> Callable[[dict[str, Any]], int | None]:
    """A function from a row to its position in the manifest; None where the manifest has no such trial."""
    if "text1" in rows[0]:
        twice = sorted(text for text, count in Counter(texts).items() if count > 1)
        if twice:
            raise ValueError(
                f"The manifest has several trials with the text {twice[0]!r}, and {file} matches trials by text. "
                "Which one people saw is not known. Use the task's own manifest."
            )
        positions = {text: at for at, text in enumerate(texts)}
        return lambda row: positions.get(row["text1"])
    if "trial" not in rows[0]:
        raise ValueError(
            f"{file} has the columns {list(rows[0])}, and neither `text1` nor `trial`: whose trials these are is not "
            "known. Get DevBench's `evals` folder."
        )

    def by_number(row: dict[str, Any]) -> int:
        number = row["trial"] or ""
        at = int(number) - 1 if number.isdecimal() else -1
        if not 0 <= at < len(texts):
            raise ValueError(
                f"{file} has trial {row['trial']}, but the manifest has {len(texts)} trials. The two belong to "
                "different versions of the task."
            )
        return at

    return by_number


def _shares(row: dict[str, Any], width: int, file: Path, number: int) -> list[float]:
    try:
        if "prop" in row:
            shares = [float(row["prop"]), 1 - float(row["prop"])]
        else:
            shares = [float(row[name]) for name in _image_columns(row)]
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{file}, row {number} has a share that is no number ({error}). Get the file again."
        ) from error
    strange = [share for share in shares if not -1e-9 <= share <= 1 + 1e-9]
    if strange:
        raise ValueError(
            f"{file}, row {number} has {strange[0]} where a share of people's choices stands, from 0 to 1. Give "
            "shares, not counts or per cent, and leave out rows without answers."
        )
    if len(shares) != width:
        raise ValueError(
            f"{file}, row {number} has {len(shares)} shares for the {width} images of a trial. The two belong to "
            "different tasks."
        )
    return shares


def _age(name: str) -> tuple[float, str]:
    try:
        return float(name), name
    except ValueError:
        return float("inf"), name
