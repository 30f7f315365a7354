"""METEOR and SPICE, which are programs in Java."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

JAR_FOLDER = "HF_CURRICULUM_JARS"
"""Environment variable: the folder of jars, by default `~/.cache/hf_curriculum/jars`."""
MINIMUM = 8
"""The oldest Java that METEOR and SPICE run on."""


class JavaError(OSError):
    """A metric that runs in Java cannot be computed: Java or a file is missing, or it failed."""


@dataclass(frozen=True)
class Java:
    """A Java virtual machine: its program, and its version (8, 11, 17, …)."""

    program: str
    version: int


def find_java(metric: str) -> Java:
    """Java from `JAVA_HOME`, or else from the `PATH`."""
    home = os.environ.get("JAVA_HOME")
    program = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if program is None:
        where = f"in JAVA_HOME={home}" if home else "on the PATH, and JAVA_HOME is not set"
        raise JavaError(
            f"{metric} runs in Java, and there is no `java` {where}. Install Java {MINIMUM} or newer "
            "(`apt install default-jre-headless`, `conda install openjdk`), or leave this metric out."
        )
    version = _version(program)
    if version < MINIMUM:
        raise JavaError(
            f"{metric} needs Java {MINIMUM} or newer, and {program} is Java {version}. Install a newer one, or set "
            "JAVA_HOME to it."
        )
    return Java(program, version)


@lru_cache(maxsize=16)
def _version(program: str) -> int:
    """8 of "1.8.0_292", 17 of "17.0.15"."""
    try:
        said = subprocess.run([program, "-version"], capture_output=True, text=True, check=False, timeout=60)
        text = said.stderr + said.stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        text = str(error)
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    if found is None:
        raise JavaError(
            f"`{program} -version` does not say a version but {text.strip()[:200]!r}. Without it the right options "
            "are unknown. Set JAVA_HOME to a working Java."
        )
    return int(found[1])


def jar_folder() -> Path:
    """Where jars are looked for first, and where SPICE keeps what it has parsed."""
    own = os.environ.get(JAR_FOLDER)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(own) if own else cache / "hf_curriculum" / "jars"


def find_files(metric: str, folder: str, names: Sequence[str], get: Callable[[Path], str]) -> list[Path]:
    """Files in `jar_folder()`, or else in a folder of the package `pycocoevalcap`, which is only read."""
    package = find_spec("pycocoevalcap")
    homes = [jar_folder()]
    homes += [Path(place) / folder for place in (package.submodule_search_locations or [] if package else [])]
    found = {name: next((home / name for home in homes if (home / name).is_file()), None) for name in names}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        raise JavaError(
            f"{metric} needs {', '.join(missing)}, and {'it is' if len(missing) == 1 else 'they are'} not in "
            f"{' or '.join(map(str, homes))}. Get what is missing by\n    {get(homes[0])}"
        )
    return [path for path in found.values() if path is not None]


def run_java(metric: str, java: Java, arguments: Sequence[str], text: str = "") -> str:
    """What a Java program prints, run in a temporary folder of its own: several runs never meet."""
    with tempfile.TemporaryDirectory(prefix="hf_curriculum_java_") as folder:
        command = [java.program, "-Dfile.encoding=UTF-8", *arguments]
        done = subprocess.run(command, input=text.encode(), capture_output=True, cwd=folder, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).decode("utf-8", "replace").splitlines()
        told = " ".join([line.strip() for line in said if not line.startswith(("\tat ", "\t..."))])
        raise JavaError(
            f"{metric} failed in Java {java.version} ({java.program}) with exit status {done.returncode}: …"
            f"{told[-600:]}\nToo little memory is the commonest cause. Run it on a machine with more, or leave this "
            "metric out."
        )
    return done.stdout.decode("utf-8", "replace")


COLUMNS = 23
_METEOR_JAR = "meteor-1.5.jar"
_PARAPHRASES = "data/paraphrase-en.gz"
_ALPHA, _BETA, _GAMMA, _DELTA = 0.85, 0.2, 0.6, 0.75
_WEIGHTS = np.array([1.0, 0.6, 0.8, 0.6])  # exact, stem, synonym, paraphrase


def validate_meteor() -> tuple[str, Path]:
    """Checks that METEOR can run here; the jar's place is returned."""
    find_java("METEOR")
    jar, paraphrases = find_files(
        "METEOR", "meteor", (_METEOR_JAR, _PARAPHRASES), lambda folder: "pip install pycocoevalcap"
    )
    if paraphrases.parents[1] != jar.parent:  # the jar reads them beside itself
        raise JavaError(
            f"METEOR's jar is {jar} and its paraphrases are {paraphrases}: the jar looks for {_PARAPHRASES} beside "
            f"itself. Copy both into {jar.parent}."
        )
    return _METEOR_JAR, jar


def meteor_statistics(captions: Sequence[str], references: Sequence[Sequence[str]]) -> np.ndarray:
    """What METEOR is computed from, image by image; sums of rows give a corpus."""
    _, jar = validate_meteor()
    lines = [
        " ||| ".join(["SCORE", *(text.replace("|||", " ") for text in (*given, caption))])
        for caption, given in zip(captions, references, strict=True)
    ]
    options = ["-Xmx2G", "-jar", str(jar), "-", "-", "-stdio", "-l", "en", "-norm"]
    said = run_java("METEOR", find_java("METEOR"), options, "\n".join([*lines, ""])).splitlines()
    return parse_scores(said, len(lines))


def parse_scores(lines: Sequence[str], images: int) -> np.ndarray:
    """The jar's answers to its `SCORE` lines, float64 (images, 23)."""
    try:
        found = np.array([[float(number) for number in line.split()] for line in lines]).reshape(-1, COLUMNS)
    except ValueError:
        found = np.zeros((0, COLUMNS))
    if len(found) != images:
        raise JavaError(
            f"METEOR's jar answered {len(lines):,} lines for {images:,} captions, the first {lines[:1]}; one line of "
            f"{COLUMNS} numbers each was expected. Is {_METEOR_JAR} version 1.5?"
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


_SPICE_JAR = "spice-1.0.jar"
_LIBRARIES = (
    *("ejml-0.23", "fst-2.47", "guava-19.0", "jackson-core-2.5.3", "javassist-3.19.0-GA", "json-simple-1.1.1"),
    *("lmdbjni-0.4.6", "lmdbjni-linux64-0.4.6", "lmdbjni-osx64-0.4.6", "lmdbjni-win64-0.4.6", "Meteor-1.5"),
    *("objenesis-2.4", "SceneGraphParser-1.0", "slf4j-api-1.7.12", "slf4j-simple-1.7.21"),
)
_CORENLP = ("lib/stanford-corenlp-3.6.0.jar", "lib/stanford-corenlp-3.6.0-models.jar")
_CORENLP_ZIP = "stanford-corenlp-full-2015-12-09"
_NASHORN = (
    "nashorn-core-15.4",
    "asm-7.3.1",
    "asm-commons-7.3.1",
    "asm-tree-7.3.1",
    "asm-util-7.3.1",
    "asm-analysis-7.3.1",
)
_LAST_WITH_JAVASCRIPT, _FIRST_CLOSED = 14, 16
_OPENED = ("lang", "math", "net", "text", "util", "util.concurrent")


def validate_spice() -> tuple[Java, list[Path]]:
    """Checks that SPICE can run here; Java, and the jars it needs, the program's first."""
    java = find_java("SPICE")
    own = (_SPICE_JAR, *(f"lib/{name}.jar" for name in _LIBRARIES))
    jars = find_files("SPICE", "spice", own, lambda folder: "pip install pycocoevalcap")
    jars += find_files("SPICE", "spice", _CORENLP, _corenlp_command)
    if java.version > _LAST_WITH_JAVASCRIPT:
        names = tuple(f"lib/{name}.jar" for name in _NASHORN)
        jars += find_files(
            f"SPICE in Java {java.version}, which has no JavaScript engine as Java 8 to 14 have,",
            "spice",
            names,
            _nashorn_command,
        )
    return java, jars


def spice_command(java: Java, jars: Sequence[Path], given: Path, result: Path, cache: Path | None) -> list[str]:
    """The arguments of `java` that score the captions in a JSON file."""
    opened = [f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in _OPENED]
    options = [*opened, "--add-opens=java.sql/java.sql=ALL-UNNAMED"] if java.version >= _FIRST_CLOSED else []
    separator = ";" if platform.system() == "Windows" else ":"
    kept = [] if cache is None else ["-cache", str(cache)]
    program = ["-cp", separator.join(map(str, jars)), "edu.anu.spice.SpiceScorer"]
    return [*options, "-Xmx8G", *program, str(given), *kept, "-out", str(result), "-subset", "-silent"]


def spice(captions: Sequence[str], references: Sequence[Sequence[str]]) -> np.ndarray:
    """SPICE of each image: the F score of the scene graphs of a caption and of its references."""
    java, jars = validate_spice()
    rows = [
        {"image_id": row, "test": caption, "refs": list(given)}
        for row, (caption, given) in enumerate(zip(captions, references, strict=True))
    ]
    cache = None
    if platform.machine().lower() in ("x86_64", "amd64"):  # the jar's database has no other native code
        cache = jar_folder() / "spice_cache"
        cache.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="hf_curriculum_spice_") as folder:
        given, result = Path(folder) / "captions.json", Path(folder) / "scores.json"
        given.write_text(json.dumps(rows), encoding="utf-8")
        run_java("SPICE", java, spice_command(java, jars, given, result, cache))
        if not result.is_file():
            raise JavaError(
                f"SPICE ended in Java {java.version} without an error and wrote no result to {result}. Is `java` the "
                "Java it says it is? Set JAVA_HOME to Java 8 to 14."
            )
        return read_spice(result.read_text(encoding="utf-8"), len(rows))


def read_spice(text: str, images: int) -> np.ndarray:
    """The scores in SPICE's result, by image number, float64 (images,)."""
    found = np.full(images, np.nan)
    for item in json.loads(text):
        found[int(item["image_id"])] = item["scores"]["All"]["f"]
    missing = int(np.isnan(found).sum())
    if missing:
        raise JavaError(
            f"SPICE's result has no score for {missing:,} of {images:,} images. Their mean would be that of other "
            "images. Run it again; too little memory is the commonest cause."
        )
    return found


def _corenlp_command(folder: Path) -> str:
    """Fetches CoreNLP 3.6.0, 550 MB."""
    inside = " ".join(f"{_CORENLP_ZIP}/{Path(name).name}" for name in _CORENLP)
    lib = shlex.quote(str(folder / "lib"))
    return (
        f"curl -L -o corenlp.zip https://nlp.stanford.edu/software/{_CORENLP_ZIP}.zip && mkdir -p {lib} && "
        f"unzip -j corenlp.zip {inside} -d {lib}"
    )


def _nashorn_command(folder: Path) -> str:
    """Fetches a JavaScript engine for Java 15 and newer."""
    maven, lib = "https://repo1.maven.org/maven2", shlex.quote(str(folder / "lib"))
    asm = [f"{maven}/org/ow2/asm/{name.rpartition('-')[0]}/7.3.1/{name}.jar" for name in _NASHORN[1:]]
    nashorn = f"{maven}/org/openjdk/nashorn/nashorn-core/15.4/nashorn-core-15.4.jar"
    return f"curl -L --create-dirs --remote-name-all --output-dir {lib} {' '.join([nashorn, *asm])}"
