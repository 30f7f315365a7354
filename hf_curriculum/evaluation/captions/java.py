"""Running the jars of METEOR and SPICE: which Java, which files, and a folder of their own for every run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

JAR_FOLDER = "HF_CURRICULUM_JARS"
"""Environment variable: the folder of jars, by default `~/.cache/hf_curriculum/jars`."""
MINIMUM = 8
"""The oldest Java that METEOR and SPICE run on."""


class JavaError(RuntimeError):
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
