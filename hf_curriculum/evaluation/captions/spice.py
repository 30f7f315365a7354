"""SPICE, by its authors' jar and Stanford CoreNLP."""

from __future__ import annotations

import json
import platform
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hf_curriculum.evaluation.captions.java import Java, JavaError, find_files, find_java, jar_folder, run_java

_JAR = "spice-1.0.jar"
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


def require_spice() -> tuple[Java, list[Path]]:
    """Checks that SPICE can run here; Java, and the jars it needs, the program's first."""
    java = find_java("SPICE")
    own = (_JAR, *(f"lib/{name}.jar" for name in _LIBRARIES))
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
    java, jars = require_spice()
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
