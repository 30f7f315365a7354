"""METEOR, by its authors' jar; from numbers per image, so that a corpus or a resample is a sum."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hf_curriculum.evaluation.captions.java import JavaError, find_files, find_java, run_java

COLUMNS = 23
_JAR = "meteor-1.5.jar"
_PARAPHRASES = "data/paraphrase-en.gz"
_ALPHA, _BETA, _GAMMA, _DELTA = 0.85, 0.2, 0.6, 0.75
_WEIGHTS = np.array([1.0, 0.6, 0.8, 0.6])  # exact, stem, synonym, paraphrase


def require_meteor() -> tuple[str, Path]:
    """Checks that METEOR can run here; the jar's place is returned."""
    find_java("METEOR")
    jar, paraphrases = find_files("METEOR", "meteor", (_JAR, _PARAPHRASES), lambda folder: "pip install pycocoevalcap")
    if paraphrases.parents[1] != jar.parent:  # the jar reads them beside itself
        raise JavaError(
            f"METEOR's jar is {jar} and its paraphrases are {paraphrases}: the jar looks for {_PARAPHRASES} beside "
            f"itself. Copy both into {jar.parent}."
        )
    return _JAR, jar


def meteor_statistics(captions: Sequence[str], references: Sequence[Sequence[str]]) -> np.ndarray:
    """What METEOR is computed from, image by image; sums of rows give a corpus."""
    _, jar = require_meteor()
    lines = [
        " ||| ".join(["SCORE", *(text.replace("|||", " ") for text in (*given, caption))])
        for caption, given in zip(captions, references, strict=True)
    ]
    options = ["-Xmx2G", "-jar", str(jar), "-", "-", "-stdio", "-l", "en", "-norm"]
    said = run_java("METEOR", find_java("METEOR"), options, "\n".join([*lines, ""])).splitlines()
    return read_scores(said, len(lines))


def read_scores(lines: Sequence[str], images: int) -> np.ndarray:
    """The jar's answers to its `SCORE` lines, float64 (images, 23)."""
    try:
        found = np.array([[float(number) for number in line.split()] for line in lines]).reshape(-1, COLUMNS)
    except ValueError:
        found = np.zeros((0, COLUMNS))
    if len(found) != images:
        raise JavaError(
            f"METEOR's jar answered {len(lines):,} lines for {images:,} captions, the first {lines[:1]}; one line of "
            f"{COLUMNS} numbers each was expected. Is {_JAR} version 1.5?"
        )
    whole = (found[:, 20] == 1) & (found[:, 21] == found[:, 0]) & (found[:, 22] == found[:, 1])
    found[whole, 20] = 0
    return found


def meteor_values(statistics: np.ndarray) -> np.ndarray:
    """METEOR (…, 1) of statistics (…, 23), of one image or summed over many."""
    matched = statistics[..., 4:20].reshape(*statistics.shape[:-1], 4, 4)  # (…, module, content/function of each)
    content, reference_content, function, reference_function = np.moveaxis(matched, -1, 0) @ _WEIGHTS
    length, reference_length, functions, reference_functions = np.moveaxis(statistics[..., :4], -1, 0)
    chunks, matches, reference_matches = np.moveaxis(statistics[..., 20:], -1, 0)
    precision = _share(
        _DELTA * content + (1 - _DELTA) * function, _DELTA * (length - functions) + (1 - _DELTA) * functions
    )
    recall = _share(
        _DELTA * reference_content + (1 - _DELTA) * reference_function,
        _DELTA * (reference_length - reference_functions) + (1 - _DELTA) * reference_functions,
    )
    mean = _share(precision * recall, _ALPHA * precision + (1 - _ALPHA) * recall)
    fragmentation = _share(chunks, (matches + reference_matches) / 2)
    return (mean * (1 - _GAMMA * fragmentation**_BETA))[..., None]


def _share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """part / whole, 0 of nothing."""
    return np.divide(part, whole, out=np.zeros(np.shape(whole)), where=np.asarray(whole) > 0)
