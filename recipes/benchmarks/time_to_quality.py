"""How many examples a curriculum needs to be as good as training without one: a small GIT on the embedded scenes.

    python recipes/benchmarks/time_to_quality.py                             # everything, on one thread
    python recipes/benchmarks/time_to_quality.py --limit 20                  # 20 runs now; the next call goes on
    python recipes/benchmarks/time_to_quality.py --scores clip_similarity --mismatched 0.3

Every run draws as many examples. The i.i.d. control's final validation loss is the target of the runs with the same
seed (which is the seed of weights and order; the data is the same for all); a run that never gets there is censored:
it needs more than the budget. The learning rate is constant after its warm-up, because a decay would let every run
reach its best loss at the end alone. Validation captions are never mismatched; baby steps decide on the same
validation loss. Evaluation and scoring passes count as no examples.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase, PrinterCallback, set_seed

from hf_curriculum import (
    SCORERS,
    CaptionCollator,
    CurriculumTrainer,
    CurriculumTrainingArguments,
    StopWhenDiverged,
    Study,
    add_scores,
    curriculum_from,
    make_image_processor,
    make_scenes,
    summarise,
    train_wordpiece,
)
from hf_curriculum.models.git.build import git_from_config, small_git_config
from hf_curriculum.planning.ranking import read_scores
from hf_curriculum.reporting.figures.canvas import DARK, LIGHT, to_png
from hf_curriculum.reporting.figures.study import IntervalRow, interval_rows
from hf_curriculum.rng import hash64, mix64
from hf_curriculum.studies.statistics import Interval, bootstrap_interval
from hf_curriculum.studies.study import StudyRun
from hf_curriculum.studies.tables import interval_text

CONTROL, RANDOM, GENERATED = "i.i.d.", "random", "difficulty"


@dataclass(frozen=True)
class Setting:
    """One arm: what is shown when, and everything else, which is the same in all arms.

    Args:
        curriculum: the rule; its `easy` is filled in.
        score: the column it sorts by: a scorer's, "difficulty" (the generator's own) or "random".
        hard_first: whether the hard end comes first.
        mismatched: share of training captions that belong to another image.
        num_pairs: pairs of all splits; a tenth is validation.
        num_steps: optimizer steps.
        batch_size: pairs per step.
        evaluate_every: steps between evaluations.
        learning_rate: of AdamW after 30 steps of warm-up.
        image_size: pixels along an edge.
        hidden_size: width of both towers.
        layers: of each tower.
    """

    curriculum: Mapping[str, Any]
    score: str | None = None
    hard_first: bool = False
    mismatched: float = 0.0
    num_pairs: int = 1600
    num_steps: int = 320
    batch_size: int = 32
    evaluate_every: int = 16
    learning_rate: float = 2e-3
    image_size: int = 48
    hidden_size: int = 64
    layers: int = 2


def _phases(steps: int, num_phases: int = 4, **rule: Any) -> dict[str, Any]:
    """Phases of as many steps each, the last taking the remainder."""
    lengths = [steps // num_phases] * (num_phases - 1)
    return {"type": "phases", "num_phases": num_phases, "steps_per_phase": [*lengths, steps - sum(lengths)], **rule}


Rule = Callable[[int, int], dict[str, Any]]
RULES: dict[str, Rule] = {
    "phases by rank": lambda steps, draws: _phases(steps),
    "phases by value": lambda steps, draws: _phases(steps, 3, cut="value"),  # noun counts have few distinct values
    "phases, exclusive": lambda steps, draws: _phases(steps, pools="exclusive"),
    "competence, square root": lambda steps, draws: {
        "type": "growing",
        "initial": 0.1,
        "full_at": 1,
        "examples": draws,
    },
    "competence, linear": lambda steps, draws: {
        "type": "growing",
        "initial": 0.1,
        "power": 1.0,
        "full_at": 1,
        "examples": draws,
    },
    "easiest 75 % alone": lambda steps, draws: {
        "type": "filter",
        "keep": 0.75,
        "then": {"type": "iid", "examples": draws},
    },
    "baby steps": lambda steps, draws: {
        "type": "baby_steps",
        "patience": 1,
        "min_delta": 0.02,
        "examples": draws,
    },
}
"""Curricula by name: (optimizer steps, examples) -> the rule. Each is run with every score."""
UNSORTED: dict[str, Rule] = {
    CONTROL: lambda steps, draws: {"type": "iid", "examples": draws},
    "self-paced": lambda steps, draws: {"type": "self_paced", "examples": draws},
}
"""Those that look at no score column."""


def arms(base: Setting, scores: Sequence[str], only: Sequence[str] | None) -> dict[str, dict[str, Any]]:
    """Every arm by name: the controls, then each curriculum by each score.

    Args:
        base: what all have in common; its own rule is not used.
        scores: score columns.
        only: names of curricula and controls to keep beside the i.i.d. control; all if None.

    Raises:
        ValueError: a name of `only` is unknown.
    """
    size = base.num_steps, base.num_steps * base.batch_size
    made = {name: dataclasses.replace(base, curriculum=rule(*size)) for name, rule in UNSORTED.items()}
    phases = RULES["phases by rank"](*size)
    made["random order"] = dataclasses.replace(base, curriculum=phases, score=RANDOM)
    kinds = dict.fromkeys(made)
    for score in scores:
        made[f"{score}: hard first"] = dataclasses.replace(base, curriculum=phases, score=score, hard_first=True)
        kinds[f"{score}: hard first"] = "hard first"
        for name, rule in RULES.items():
            made[f"{score}: {name}"] = dataclasses.replace(base, curriculum=rule(*size), score=score)
            kinds[f"{score}: {name}"] = name
    known = {kind or name for name, kind in kinds.items()}
    unknown = sorted(set(only or ()) - known)
    if unknown:
        raise ValueError(f"{unknown[0]!r} is no curriculum of this benchmark, which has {sorted(known)}.")
    kept = {*(only or known), CONTROL}
    return {name: dataclasses.asdict(made[name]) for name, kind in kinds.items() if (kind or name) in kept}


@lru_cache(maxsize=2)
def load(
    num_pairs: int, mismatched: float, image_size: int
) -> tuple[Dataset, Any, list, list, PreTrainedTokenizerBase]:
    """Training pairs, the collator, training and validation pairs as it prepares them, and the tokenizer."""
    common = {"image_size": image_size, "captions_per_image": 2, "validation": 0.1, "test": 0.0}
    train = make_scenes(num_pairs, mismatched=mismatched, **common)["train"]
    clean = make_scenes(num_pairs, **common)["validation"]  # the same images
    tokenizer = train_wordpiece(train, 400)
    collator = CaptionCollator(tokenizer, make_image_processor(image_size), max_length=40)
    prepared = ([collator.prepare(row) for row in split] for split in (train, clean))
    return train, collator, *prepared, tokenizer


@lru_cache(maxsize=8)
def score(num_pairs: int, mismatched: float, image_size: int, column: str) -> tuple[np.ndarray, str]:
    """A score of every training pair, float32, and which end of it is easy."""
    train = load(num_pairs, mismatched, image_size)[0]
    if column == GENERATED:
        return read_scores(train, column), "low"
    if column not in SCORERS:
        raise ValueError(f"The score {column!r} is none of {[GENERATED, *sorted(SCORERS)]}.")
    return read_scores(add_scores(train, SCORERS[column]()), column), SCORERS[column].easy


def values_of(setting: Setting, seed: int) -> tuple[np.ndarray, str]:
    """What an arm sorts by, float32 (training pairs,), and which end comes first."""
    data = setting.num_pairs, setting.mismatched, setting.image_size
    rows = np.arange(len(load(*data)[0]))
    if setting.score in (None, RANDOM):
        return (hash64(rows, mix64(seed)) >> np.uint64(40)).astype(np.float32), "low"
    values, easy = score(*data, setting.score)
    if setting.hard_first:
        easy = "high" if easy == "low" else "low"
    return values, easy


def training_arguments(setting: Setting, easy: str, folder: str, seed: int) -> CurriculumTrainingArguments:
    """The same for all arms but for the curriculum."""
    return CurriculumTrainingArguments(
        folder,
        curriculum=curriculum_from({**setting.curriculum, "easy": easy}),
        per_device_train_batch_size=setting.batch_size,
        per_device_eval_batch_size=512,
        learning_rate=setting.learning_rate,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=min(30, setting.num_steps // 4),
        eval_strategy="steps",
        eval_steps=setting.evaluate_every,
        eval_on_start=True,
        save_strategy="no",
        logging_strategy="no",
        remove_unused_columns=False,  # rows are prepared already
        seed_examples=False,
        disable_tqdm=True,
        use_cpu=True,
        report_to="none",
        seed=seed,
    )


def run(given: Mapping[str, Any]) -> dict[str, Any]:
    """Trains once; the curve is (examples, validation loss) at every `evaluate_every` steps."""
    setting = Setting(**{name: value for name, value in given.items() if name not in ("seed", "output_dir")})
    data = setting.num_pairs, setting.mismatched, setting.image_size
    _, collator, prepared, validation, tokenizer = load(*data)
    values, easy = values_of(setting, given["seed"])
    set_seed(given["seed"])
    config = small_git_config(
        len(tokenizer),
        tokenizer=tokenizer,
        image_size=setting.image_size,
        patch_size=12,
        hidden_size=setting.hidden_size,
        vision_layers=setting.layers,
        text_layers=setting.layers,
    )
    trainer = CurriculumTrainer(
        git_from_config(config),
        training_arguments(setting, easy, given["output_dir"], given["seed"]),
        data_collator=collator.collate,
        train_dataset=prepared,
        eval_dataset=validation,
        scores=values,
        callbacks=[StopWhenDiverged()],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    log = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    # A curriculum that evaluates more often to decide is not measured more often.
    curve = {entry["examples"]: entry["eval_loss"] for entry in log if entry["step"] % setting.evaluate_every == 0}
    return {
        "eval_loss": log[-1]["eval_loss"],
        "examples": log[-1]["examples"],
        "seconds": log[-1]["seconds"],
        "curve": sorted(curve.items()),
    }


def examples_to(curve: Sequence[Sequence[float]], target: float) -> float:
    """Examples seen at the first evaluation that is as good as the target; infinite if none is."""
    return next((float(examples) for examples, loss in curve if loss <= target), math.inf)


@dataclass(frozen=True)
class Reached:
    """How soon one arm reached its control's final loss.

    Args:
        arm: its name.
        examples: seed -> examples it took, infinite where it never got there.
        median: of them, with a bootstrap interval over seeds.
        ratio: median of (examples / the control's examples), paired by seed, with its interval.
        lost: runs that diverged or crashed, which are in none of these.
    """

    arm: str
    examples: Mapping[int, float]
    median: Interval
    ratio: Interval
    lost: int

    @property
    def note(self) -> str:
        """What became of the runs that are no number."""
        never = sum(map(math.isinf, self.examples.values()))
        parts = [f"{never} of {len(self.examples)} never"] if 0 < never < len(self.examples) else []
        return ", ".join(parts + ([f"{self.lost} lost"] if self.lost else []))


def reached(runs: Sequence[StudyRun]) -> list[Reached]:
    """Every arm against the i.i.d. control of the same seed."""
    curves = {(item.arm, item.seed): item.result["curve"] for item in runs if item.status == "finished"}
    targets = {seed: curve[-1][1] for (arm, seed), curve in curves.items() if arm == CONTROL}
    found = []
    for arm in dict.fromkeys(item.arm for item in runs):
        seeds = [seed for seed in targets if (arm, seed) in curves]
        own = {seed: examples_to(curves[arm, seed], targets[seed]) for seed in seeds}
        ratios = [own[seed] / examples_to(curves[CONTROL, seed], targets[seed]) for seed in seeds]
        lost = sum(item.arm == arm and item.status in ("diverged", "crashed") for item in runs)
        medians = (bootstrap_interval(values, np.median) for values in (list(own.values()), ratios))
        found.append(Reached(arm, own, *medians, lost))
    return found


def table(found: Sequence[Reached], runs: Sequence[StudyRun], budget: int) -> str:
    """The benchmark as Markdown: examples to the control's loss, and the final losses compared."""
    losses = {row.arm: row for row in summarise(runs, ["eval_loss"], control=CONTROL).rows}
    lines = [
        "| curriculum | got there | examples, median [95 %] | × control | final loss | difference [95 %] | p (t) |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in found:
        there = sum(map(math.isfinite, row.examples.values()))
        test = losses[row.arm].test
        cells = [
            row.arm,
            f"{there} of {len(row.examples)}" + (f" ({row.lost} lost)" if row.lost else ""),
            _censored(row.median, f"> {budget:,}"),
            _censored(row.ratio, "never"),
            f"{losses[row.arm].mean.value:.3f}",
            interval_text(test.difference, signed=True) if test else "–",
            f"{test.p_t:.3f}" if test and test.p_t == test.p_t else "–",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _censored(interval: Interval, beyond: str) -> str:
    if interval.n == 0:
        return "–"

    def text(value: float) -> str:
        return beyond if math.isinf(value) else f"{value:,.0f}" if value >= 100 else f"{value:.2f}"

    if math.isinf(interval.lower):
        return beyond
    return f"{text(interval.value)} [{text(interval.lower)}, {text(interval.upper)}]"


def write(study: Study, mismatched: float, budget: int, folder: Path) -> str:
    """Table, figures and numbers of one share of mismatched captions; returns the table."""
    found = reached(study.runs)
    if not any(row.examples for row in found):
        return "No run of the control has finished yet.\n"
    text, share = table(found, study.runs, budget), round(100 * mismatched)
    (folder / f"time_to_quality_{share}.md").write_text(text, encoding="utf-8")
    facts = [
        {"arm": row.arm, "examples": {s: x if x < math.inf else None for s, x in row.examples.items()}}
        for row in found
    ]
    facts = {"budget": budget, "mismatched": mismatched, "examples_null_is": "never", "arms": facts}
    (folder / f"time_to_quality_{share}.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")
    rows = [
        IntervalRow(
            row.arm,
            list(row.examples.values()),
            *(row.median.value, row.median.lower, row.median.upper),
            note=row.note,
        )
        for row in found
    ]
    control = next(row.median.value for row in found if row.arm == CONTROL)
    for theme, suffix in ((LIGHT, ""), (DARK, "_dark")):
        figure = interval_rows(
            rows,
            label="Examples until as good as the i.i.d. control in the end; triangles: never",
            title=f"Time to quality, {share} % of captions mismatched",
            reference=control,
            limit=budget,
            theme=theme,
        )
        (folder / f"time_to_quality_{share}{suffix}.png").write_bytes(to_png(figure))
    summarise(study.runs, ["eval_loss", "seconds"], control=CONTROL).write(folder / f"mismatched-{share}")
    return text


def main(argv: Sequence[str] | None = None) -> None:
    """Runs what is missing and writes what there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="runs per arm, with the seeds 0, 1, …")
    parser.add_argument("--scores", nargs="+", default=["noun_count", GENERATED], help="columns to sort by")
    parser.add_argument("--mismatched", type=float, nargs="+", default=[0.0, 0.3], help="shares of false captions")
    parser.add_argument("--curricula", nargs="+", help=f"some of {[*UNSORTED, 'random order', 'hard first', *RULES]}")
    parser.add_argument("--limit", type=int, help="most runs to make now")
    parser.add_argument("--num_steps", type=int, default=Setting.num_steps, help="optimizer steps of a run")
    parser.add_argument("--num_pairs", type=int, default=Setting.num_pairs, help="pairs of pictures and captions")
    parser.add_argument("--output_dir", type=Path, default=Path("outputs/time_to_quality"))
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    left = options.limit
    for mismatched in options.mismatched:
        base = Setting({}, mismatched=mismatched, num_steps=options.num_steps, num_pairs=options.num_pairs)
        settings = arms(base, options.scores, options.curricula)
        study = Study(
            run, settings, range(options.seeds), options.output_dir / f"mismatched-{round(100 * mismatched)}"
        )
        waiting = study.num_waiting
        study.run(limit=left)
        if left is not None:
            left = max(0, left - waiting)
        budget = base.num_steps * base.batch_size
        print(f"\n{round(100 * mismatched)} % mismatched\n\n{write(study, mismatched, budget, options.output_dir)}")


if __name__ == "__main__":
    main()
