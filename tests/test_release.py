"""A release has one version and a date, states the licence of what it ships, and is refused where a check is red."""

from __future__ import annotations

import datetime
import json
import re
import runpy
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

import hf_curriculum

ROOT = Path(hf_curriculum.__file__).parents[1]
SCRIPT = ROOT / ".ci" / "release.py"
release = runpy.run_path(str(SCRIPT))


def tracked(*patterns):
    done = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, check=True, text=True)
    return done.stdout.split()


def commit(root):
    for words in (
        ["init", "-q"],
        ["add", "-A"],
        ["-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qm", "a"],
    ):
        subprocess.run(["git", *words], cwd=root, check=True)


@pytest.fixture
def tree(tmp_path):
    """A committed tree with the files that the script reads; its checks are red, so that nothing is built."""
    root = tmp_path / "tree"
    files = {
        "hf_curriculum/__init__.py": '__version__ = "1.2.0"\n',
        "CHANGELOG.md": "# Changes\n\n## 1.2.0 (2030-01-31)\n\n## 1.1.0 (2029-01-31)\n",
        "CITATION.cff": "cff-version: 1.2.0\nversion: 1.2.0\ndate-released: 2030-01-31\n",
        "pyproject.toml": '[project.urls]\nPaper = "https://x.org"\n',
        ".ci/run": "echo lint; exit 3\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    shutil.copy2(SCRIPT, root / ".ci")
    commit(root)
    return root


def refused(root, *options):
    command = [sys.executable, str(root / ".ci" / "release.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0
    assert not (root / "dist").exists()
    return done.stdout + done.stderr


def test_the_citation_has_the_version_and_a_date():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == hf_curriculum.__version__ == release["read_version"](ROOT)
    assert isinstance(citation["date-released"], datetime.date)


def test_the_version_stands_in_one_place():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("[project.optional-dependencies]")[0]
    assert not re.search(r"^version", project, re.MULTILINE)
    assert 'dynamic = ["version"' in project


class TestRefusal:
    def test_a_tree_in_order_is_stopped_by_its_checks_alone(self, tree):
        assert release["problems"](tree) == []
        shown = refused(tree)
        assert shown.startswith("lint\n")
        assert shown.endswith("No release:\n- `.ci/run` is red: see above\n")

    def test_changes_without_a_commit(self, tree):
        (tree / "new.py").touch()
        shown = refused(tree)
        assert "the tree has 1 changes that no commit holds (?? new.py): commit them" in shown
        assert "lint" not in shown

    @pytest.mark.parametrize(
        ("file", "old", "new", "reason"),
        [
            (
                "CHANGELOG.md",
                "1.2.0 (2030-01-31)",
                "1.2.0 (not yet released)",
                "begins with '1.2.0 (not yet released)'",
            ),
            ("CHANGELOG.md", "## 1.2.0 (2030-01-31)\n", "", "CHANGELOG.md begins with '1.1.0 (2029-01-31)'"),
            ("CITATION.cff", "\nversion: 1.2.0", "\nversion: 1.1.0", "CITATION.cff has the version 1.1.0: write"),
            ("CITATION.cff", "2030-01-31", "2030-01-30", "write `date-released: 2030-01-31`"),
            ("CITATION.cff", "date-released: 2030-01-31\n", "", "has the date-released of nothing: write"),
        ],
    )
    def test_versions_and_dates_that_differ(self, tree, file, old, new, reason):
        text = (tree / file).read_text()
        assert old in text
        (tree / file).write_text(text.replace(old, new))
        commit(tree)
        shown = refused(tree)
        assert reason in shown
        assert shown.count("\n- ") == 1
        assert "lint" not in shown

    @pytest.mark.parametrize("address", ["http://host/me", "host/me", "https://host/me/", 'https://host/"'])
    def test_an_address_that_links_cannot_begin_with(self, tree, address):
        assert f"--repository is {address!r}, and not an address" in refused(tree, "--repository", address)


def test_addresses_of_the_repository(tree):
    release["add_urls"](tree, "https://host/me/repo")
    lines = (tree / "pyproject.toml").read_text().splitlines()
    assert lines == [
        "[project.urls]",
        'Repository = "https://host/me/repo"',
        'Documentation = "https://host/me/repo/blob/v1.2.0/docs/README.md"',
        'Changelog = "https://host/me/repo/blob/v1.2.0/CHANGELOG.md"',
        'Paper = "https://x.org"',
    ]


class TestLicences:
    def test_the_notice_names_every_folder_of_weights_and_no_file_that_is_not_there(self):
        notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
        weights = {Path(name).parts[:3] for name in tracked("*.safetensors", "*.bin", "*.pt", "*.npz", "*.onnx")}
        assert {"/".join(parts) for parts in weights} == set(release["WEIGHTS"])
        assert all(f"{folder}/\n" in notice for folder in release["WEIGHTS"])
        named = re.findall(r"\bhf_curriculum/[\w/.]+\w", notice)
        assert len(named) >= 8
        assert not [name for name in named if "recipes" not in name and not (ROOT / name).exists()]

    def test_what_a_wheel_lacks_is_said(self, tmp_path):
        wheel = tmp_path / "a.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("tests/test_a.py", "")
            archive.writestr("hf_curriculum-1.dist-info/licenses/NOTICE", "hf_curriculum/models/scenes_clip/")
        found = release["lacking"](wheel, ROOT)
        for folder in release["WEIGHTS"]:
            assert [name for name in found if name.startswith(f"the wheel lacks {folder}/")]
        assert found[-3:] == [
            "the wheel lacks LICENSE",
            "NOTICE says no licence of hf_curriculum/models/scenes_diffusion",
            "the wheel holds tests/test_a.py",
        ]


@pytest.mark.slow
def test_the_same_tree_gives_the_same_bytes_whenever_it_is_built(tmp_path):
    pytest.importorskip("build")
    digests = []
    for turn in ("first", "second"):
        source, out = tmp_path / turn, tmp_path / f"{turn}_dist"
        out.mkdir()
        for name in tracked("hf_curriculum", "recipes", "pyproject.toml", "setup.py", "MANIFEST.in", "[A-Z]*"):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, source / name)
        (source / "README.md").chmod(0o644 if turn == "first" else 0o664)
        built = release["build"](source, out, "1900000000", "--no-isolation")
        assert release["lacking"](built[0], ROOT) == []
        digests.append([file.read_bytes() for file in built])
    assert digests[0] == digests[1]


@pytest.mark.slow
def test_the_bill_of_materials_names_the_package_and_what_it_needs(tmp_path):
    pytest.importorskip("cyclonedx_py")
    file = tmp_path / "a.cdx.json"
    for name in ("pyproject.toml", "hf_curriculum/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    release["write_bill"](Path(sys.executable), tmp_path, file, "1900000000")
    bill = json.loads(file.read_text())
    assert bill["bomFormat"] == "CycloneDX"
    package = bill["metadata"]["component"]
    assert (package["name"], package["version"]) == ("hf-curriculum", hf_curriculum.__version__)
    assert {"torch", "transformers", "datasets"} <= {part["name"] for part in bill["components"]}
