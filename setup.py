"""What `pyproject.toml` cannot say: `recipes/` is installed as `hf_curriculum.recipes`; on PyPI the README has whole
addresses for links."""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
LINK = re.compile(r"(!?)\[([^]]*)\]\((?!https?://|#)([^)\s]+)\)")


def readme(text: str, repository: str | None) -> str:
    """The README with its links made absolute; without an address of the repository they become plain text."""

    def absolute(found: re.Match[str]) -> str:
        image, words, target = found.groups()
        if repository is None:
            return "" if image else words
        return f"{image}[{words}]({repository}/{'raw' if image else 'blob'}/main/{target})"

    return LINK.sub(absolute, text)


if __name__ == "__main__":
    address = re.search(r'^Repository = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    shown = readme((ROOT / "README.md").read_text(encoding="utf-8"), address and address[1])
    setup(
        packages=[
            *find_packages(include=["hf_curriculum*"]),
            "hf_curriculum.recipes",
            *(f"hf_curriculum.recipes.{name}" for name in find_packages("recipes")),
        ],
        package_dir={"hf_curriculum.recipes": "recipes"},
        include_package_data=False,
        long_description=shown,
        long_description_content_type="text/markdown",
    )
