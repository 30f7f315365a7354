"""DevBench: words, grammar and concepts in pictures, compared with people of several ages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hf_curriculum.evaluation.benchmarks.devbench_data import ALL_AGES, Trials, read_human, read_trials
from hf_curriculum.evaluation.benchmarks.devbench_scores import (
    cosine_similarities,
    human_similarity,
    representational_similarity,
    trial_accuracy,
)
from hf_curriculum.evaluation.benchmarks.results import TaskResult
from hf_curriculum.evaluation.benchmarks.run import Run

DEVBENCH = ("lex-viz_vocab", "gram-trog", "sem-things")
"""Tasks of the challenge, over which its averages are taken."""
LOOKING = "lex-lwl"
"""Looking while listening: DevBench has it, the challenge has not."""
THINGS = "sem-things"
_TASKS = (*DEVBENCH, LOOKING)
_PROMPT = "The caption for this image is: {}."


def run_devbench(run: Run) -> TaskResult:
    """DevBench: `devbench/assets/<task>/manifest.csv` with its pictures, `devbench/evals/<task>/` with human data.

    - `lex-viz_vocab`, `gram-trog`, `lex-lwl`: of several pictures the one a text describes. Similarity is the mean log
      p of "The caption for this image is: ..."; `accuracy` counts the right picture only if it is strictly ahead;
      `human_similarity` is exp(−KL) with one β for the task, or one per age bin and the mean of the bins
      (`human_similarity_<age>`).
    - `sem-things`: `rsa` between cosines of picture features and people's similarities
      (`spose_similarity.mat`, or `.npy`).

    `averages` has `accuracy` and `human_similarity` over the challenge's three tasks that were run, `rsa` standing in
    both for sem-things.

    Args:
        run: the model and the data. The tasks run are those that have a manifest.

    Raises:
        FileNotFoundError: the folder, a manifest or a picture is missing.
        ValueError: of the readers and measures.

    Source: Tan et al. 2024 (DevBench); Saha et al. 2024 (BabyLM), section 4.1, Tables 2 and 3.
    """
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
    """Means over the challenge's tasks, the correlation of sem-things standing in for both measures.

    Args:
        subtasks: task → measure → value; those that are not the challenge's are passed over.

    Source: Saha et al. 2024 (BabyLM), Tables 2 and 3.

    Example:
        >>> devbench_averages({"gram-trog": {"accuracy": 0.3, "human_similarity": 0.4}, "sem-things": {"rsa": 0.2}})
        {'accuracy': 0.25, 'human_similarity': 0.30000000000000004}
    """
    means = {}
    for measure in ("accuracy", "human_similarity"):
        values = [values.get(measure, values.get("rsa")) for name, values in subtasks.items() if name in DEVBENCH]
        if values:
            means[measure] = float(np.mean(values))
    return means


def _trials(run: Run, name: str, trials: Trials, evals: Path) -> tuple[dict[str, float], list[Any], list[str]]:
    texts = [_PROMPT.format(text) for text in run.cut(trials.texts)]
    similarities = np.array(run.similarities("devbench", name, texts, run.cut(trials.images)))  # (trials, pictures)
    values, notes = score_trials(similarities, trials.texts, evals / "human.csv")
    return values, similarities[:, :, None].tolist(), [f"{name}: {note}" for note in notes]


def score_trials(similarities: np.ndarray, texts: list[str], human: Path) -> tuple[dict[str, float], list[str]]:
    """Accuracy and human similarity of given similarities, whoever made them.

    Args:
        similarities: (trials, pictures), the right one first; of the manifest's first trials, or all.
        texts: of the whole manifest, in the same order.
        human: its `human.csv`; where it is missing the similarity is NaN.

    Returns:
        Measures, and what a reader of them must know.

    Raises:
        ValueError: of `trial_accuracy` and `read_human`.

    Example:
        >>> score_trials(np.load("lwl_clip_base.npy")[..., 0], texts, Path("human.csv"))  # doctest: +SKIP
    """
    values = {"accuracy": trial_accuracy(similarities)}
    if not human.is_file():
        return values | {"human_similarity": float("nan")}, [f"no human data ({human.name} is missing)"]
    ages, seen = {}, set()
    for age, (places, shares) in read_human(human, texts, similarities.shape[1]).items():
        scored = places < len(similarities)
        if scored.any():
            ages[age] = human_similarity(similarities[places[scored]], shares[scored])
            seen.update(places[scored].tolist())
    values["human_similarity"] = float(np.mean([found.value for found in ages.values()])) if ages else float("nan")
    if list(ages) != [ALL_AGES]:
        values |= {f"human_similarity_{age}": found.value for age, found in ages.items()}
    missing = len(seen) < len(similarities)
    return values, [f"human data of {len(seen)} of {len(similarities)} trials"] if missing else []


def _things(run: Run, name: str, trials: Trials, evals: Path) -> tuple[dict[str, float], list[Any], list[str]]:
    features = np.array(run.features("devbench", name, [images[0] for images in run.cut(trials.images)]))  # (n, width)
    cosines = cosine_similarities(features)
    human = read_similarities(evals)
    if human is None:
        return {"rsa": float("nan")}, cosines.tolist(), [f"{name}: no human data (spose_similarity.mat is missing)"]
    if run.limit is not None:
        human = human[: run.limit, : run.limit]
    return {"rsa": representational_similarity(cosines, human)}, cosines.tolist(), []


def read_similarities(folder: Path) -> np.ndarray | None:
    """People's similarities of things, (n, n): `spose_similarity.mat` (variable `spose_sim`) or `.npy`.

    Returns:
        None where neither file is there.

    Raises:
        ImportError: SciPy, which reads the former, is missing.
        ValueError: the file has no such variable.
    """
    from hf_curriculum.data.region_matlab import read_matlab

    array, matlab = folder / "spose_similarity.npy", folder / "spose_similarity.mat"
    if matlab.is_file():
        return read_matlab(str(matlab), ["spose_sim"])["spose_sim"]
    return np.load(array, allow_pickle=False) if array.is_file() else None
