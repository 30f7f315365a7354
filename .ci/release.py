"""Builds a release in `dist/` from the last commit, and stops at the first check that is red.

    pip install -e ".[release]"
    python .ci/release.py --repository https://github.com/OWNER/NAME

It runs `.ci/run`, builds wheel and source distribution (the same bytes from the same commit), and runs the command in
an empty environment with the wheel. It writes `SHA256SUMS` and an SBOM, and uploads nothing. It needs the package
index, and some 6 GB for a while.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WEIGHTS = ("hf_curriculum/models/scenes_clip", "hf_curriculum/models/scenes_diffusion")
SMOKE = "recipe babylm_git --preset smoke --use_cpu True --output_dir out"


def problems(root: Path) -> list[str]:
    """What keeps a tree from being released: changes that are in no commit, and versions or dates that differ."""
    version = read_version(root)
    changes = git(root, "status", "--porcelain").splitlines()
    found = (
        [f"the tree has {len(changes)} changes that no commit holds ({changes[0]}): commit them"] if changes else []
    )
    top = next(re.finditer(r"^## (.+)$", (root / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE), ["", "nothing"])[1]
    dated = re.fullmatch(rf"{re.escape(version)} \((\d{{4}}-\d\d-\d\d)\)", top)
    if not dated:
        found.append(f"CHANGELOG.md begins with {top!r}: write `## {version} (YYYY-MM-DD)`")
    citation = (root / "CITATION.cff").read_text("utf-8")
    for field, value in (("version", version), ("date-released", dated and dated[1])):
        said = re.search(rf"^{field}: *(.+)$", citation, re.MULTILINE)
        if value and (not said or said[1] != value):
            found.append(f"CITATION.cff has the {field} {said[1] if said else 'of nothing'}: write `{field}: {value}`")
    return found


def read_version(root: Path) -> str:
    """The version of a tree, without an import of the package and its libraries."""
    return re.search(r'^__version__ = "(.+)"$', (root / "hf_curriculum/__init__.py").read_text("utf-8"), re.M)[1]


def git(root: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=root, check=True, capture_output=True, text=True).stdout.strip()


def add_urls(root: Path, repository: str) -> None:
    """Writes a repository's addresses into a copy of the tree; setup.py makes the README's links from the first."""
    pages = f"{repository}/blob/v{read_version(root)}"
    urls = {"Repository": repository, "Documentation": f"{pages}/docs/README.md", "Changelog": f"{pages}/CHANGELOG.md"}
    lines = "".join(f'{name} = "{address}"\n' for name, address in urls.items())
    file = root / "pyproject.toml"
    file.write_text(file.read_text("utf-8").replace("[project.urls]\n", f"[project.urls]\n{lines}"), "utf-8")


def build(source: Path, out: Path, epoch: str, *options: str) -> tuple[Path, Path]:
    """Wheel and source distribution of a tree, in which each file has the time `epoch`."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch}
    run(sys.executable, "-m", "build", *options, "--outdir", out, source, cwd=out, env=environment)
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    normalize(sdist, int(epoch))
    return wheel, sdist


def normalize(sdist: Path, epoch: int) -> None:
    """Takes time, owner and umask of the build out of a source distribution, which setuptools leaves in."""
    content = io.BytesIO()
    with tarfile.open(sdist) as old, tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.mode, member.pax_headers = 0o755 if member.isdir() or member.mode & 0o100 else 0o644, {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    sdist.write_bytes(gzip.compress(content.getvalue(), mtime=epoch))


def lacking(wheel: Path, root: Path) -> list[str]:
    """What a wheel should hold and does not, or holds and should not."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        licences = {name.rpartition("/")[2]: name for name in names if ".dist-info/licenses/" in name}
        notice = archive.read(licences["NOTICE"]).decode() if "NOTICE" in licences else ""
    wanted = {str(file.relative_to(root)) for folder in WEIGHTS for file in (root / folder).rglob("*.*")}
    found = [f"the wheel lacks {name}" for name in sorted(wanted - names)]
    found += [f"the wheel lacks {name}" for name in ("LICENSE", "NOTICE") if name not in licences]
    found += [f"NOTICE says no licence of {folder}" for folder in WEIGHTS if f"{folder}/" not in notice]
    return found + [f"the wheel holds {name}" for name in sorted(names) if name.startswith(("tests/", "recipes/"))]


def install(wheel: Path, folder: Path) -> Path:
    """The Python of an empty environment with a wheel and its dependencies in it, after it has run the command."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    name = f"hf-curriculum=={wheel.name.split('-')[1]}"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet")
    run(*pip, "--no-index", "--no-deps", "--find-links", wheel.parent, name)  # so that no SBOM holds a path
    run(*pip, name)
    run(folder / "bin" / "hf-curriculum", "--help", cwd=folder)
    run(folder / "bin" / "hf-curriculum", *SMOKE.split(), cwd=folder)
    return python


def write_bill(python: Path, source: Path, file: Path, epoch: str) -> None:
    """The SBOM of an environment (CycloneDX 1.6), checked against its schema; changes the copy of the tree for it."""
    project = source / "pyproject.toml"
    said = f'version = "{read_version(source)}"\ndynamic = ['  # the tool reads no dynamic version
    project.write_text(project.read_text("utf-8").replace('dynamic = ["version", ', said), "utf-8")
    options = ("--pyproject", project, "--mc-type", "library", "--output-reproducible", "--validate", "-o", file)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch}
    run(sys.executable, "-m", "cyclonedx_py", "environment", *options, python, env=environment)


def run(*command: str | Path, **options: object) -> None:
    """A command whose output is shown if it fails."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, **options)
    if done.returncode:
        stop([f"`{' '.join(map(str, command))}` ended with {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}"])


def stop(reasons: list[str]) -> None:
    if reasons:
        sys.exit("No release:\n" + "\n".join(f"- {reason}" for reason in reasons))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repository", help="its https:// address, for the links on PyPI; without it they are text")
    repository = parser.parse_args().repository
    if repository and not re.fullmatch(r"https://[^\s\"]+[^\s\"/]", repository):
        parser.error(f"--repository is {repository!r}, and not an address such as https://github.com/OWNER/NAME")
    stop(problems(ROOT))
    if subprocess.run(["bash", ROOT / ".ci" / "run"]).returncode:
        stop(["`.ci/run` is red: see above"])
    stop(problems(ROOT))  # the checks take long: nothing has changed meanwhile
    version, commit, epoch = read_version(ROOT), git(ROOT, "rev-parse", "HEAD"), git(ROOT, "log", "-1", "--format=%ct")
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    dist.mkdir()
    with tempfile.TemporaryDirectory() as folder:
        source, work = Path(folder, "source"), Path(folder, "environment")
        git(ROOT, "archive", f"--output={folder}/source.tar", commit)
        with tarfile.open(f"{folder}/source.tar") as archive:
            archive.extractall(source, filter="data")
        if repository:
            add_urls(source, repository)
        wheel, sdist = build(source, dist, epoch)
        run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
        stop(lacking(wheel, source))
        write_bill(install(wheel, work), source, dist / f"hf_curriculum-{version}.cdx.json", epoch)
    files = sorted(dist.iterdir())
    sums = "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)
    (dist / "SHA256SUMS").write_text(sums, "utf-8")
    print(f"\n{sums}\nNext, what cannot be taken back:\n  git tag -a v{version} -m 'hf_curriculum {version}' {commit}")
    print(f"  git push origin v{version}\n  twine upload dist/*.whl dist/*.tar.gz")


if __name__ == "__main__":
    main()
