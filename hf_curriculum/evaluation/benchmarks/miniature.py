"""A small copy of every benchmark, in the official formats, about the drawn scenes: each runs in seconds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from hf_curriculum.evaluation.benchmarks.miniature_devbench import write_devbench
from hf_curriculum.evaluation.benchmarks.miniature_glue import glue_rows
from hf_curriculum.evaluation.benchmarks.miniature_pictures import Pictures, vqa_rows, winoground_rows
from hf_curriculum.evaluation.benchmarks.miniature_text import blimp_rows, ewok_rows, supplement_rows

_README = """Miniature benchmarks, made by a program from the vocabulary and the drawings of the embedded scenes.

They have the file formats of the BabyLM 2024 challenge's evaluation data and nothing of its content: scores on them
say that an evaluation works and what a model learnt about the scenes, and cannot be compared with published ones. The
human data in devbench/evals are drawn numbers, no people's answers.
"""


def make_miniature_benchmarks(
    folder: str | PathLike[str], seed: int = 0, *, size: int = 16, image_size: int = 64
) -> Path:
    """Writes `blimp_filtered`, `supplement_filtered`, `ewok_filtered`, `glue_filtered`, `winoground_filtered`,
    `vqa_filtered` and `devbench`, as the challenge's `evaluation_data` has them.

    All of it follows from the arguments: the same files on every platform.

    Args:
        folder: where to; made if need be, files in it are written over.
        seed: 0 or more; another seed is other items.
        size: items per subtask, an even number of 4 or more (training files of (Super)GLUE have four times as many).
        image_size: side of the pictures in pixels.

    Returns:
        The folder: the `data_dir` of `evaluate_suite`.

    Raises:
        ValueError: `size` is odd or below 4, `seed` is negative.

    Example:
        >>> import tempfile
        >>> folder = make_miniature_benchmarks(tempfile.mkdtemp(), size=4)
        >>> sorted(path.name for path in folder.iterdir())[:3]
        ['MINIATURE.txt', 'blimp_filtered', 'devbench']
    """
    if size < 4 or size % 2 or seed < 0:
        raise ValueError(
            f"size={size}, seed={seed} were given. Items come in pairs, so `size` is even and at least 4; `seed` is 0 "
            "or more."
        )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "MINIATURE.txt").unlink(missing_ok=True)
    text = {"blimp_filtered": blimp_rows, "supplement_filtered": supplement_rows, "ewok_filtered": ewok_rows}
    for name, make in text.items():
        for subtask, rows in make(seed, size).items():
            _write(folder / name / f"{subtask}.jsonl", rows)
    for task, (training, validation) in glue_rows(seed, size).items():
        _write(folder / "glue_filtered" / f"{task}.train.jsonl", training)
        _write(folder / "glue_filtered" / f"{task}.valid.jsonl", validation)
    _write(
        folder / "winoground_filtered" / "winoground.jsonl",
        winoground_rows(Pictures(folder / "winoground_filtered" / "images", image_size), seed, size),
    )
    questions = vqa_rows(Pictures(folder / "vqa_filtered" / "images", image_size), seed, size)
    (folder / "vqa_filtered" / "vqa_distractors_info.json").write_text(json.dumps(questions), encoding="utf-8")
    write_devbench(folder / "devbench", seed, size, image_size)
    (folder / "MINIATURE.txt").write_text(_README, encoding="utf-8")  # last: it says that all the others are there
    return folder


def _write(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
