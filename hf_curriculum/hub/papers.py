"""The papers whose curricula the library holds, as a card cites them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class Paper:
    """A paper: its name in running text, title and BibTeX entry."""

    short: str
    title: str
    bibtex: str


_ENTRIES = (files("hf_curriculum.hub") / "templates" / "papers.bib").read_text("utf-8").strip().split("\n\n")


def _paper(short: str, key: str) -> Paper:
    bibtex = next(entry for entry in _ENTRIES if f"{{{key},\n" in entry)
    return Paper(short, re.search(r"^  title +=\s\{(.*)\},$", bibtex, re.MULTILINE)[1], bibtex)


PAPERS: dict[str, Paper] = {
    "babylm": _paper("Saha et al. 2024", "saha2024exploring"),
    "simi_cl": _paper("Zhang et al. 2022", "zhang2022cross"),
    "tonics": _paper("Srinivasan, Ren & Thomason 2023", "srinivasan2023curriculum"),
    "discl": _paper("Liang et al. 2024", "liang2024diffusion"),
    "wsod": _paper("Nebbia & Kovashka 2024", "nebbia2024image"),
}
"""Papers by the name of their recipe."""

_RULES = {
    "baby_steps": "simi_cl",
    "node_sampling": "tonics",
    "guidance_schedule": "discl",
    "adaptive_guidance": "discl",
    "filter": "wsod",
}


def paper_of(curriculum: Mapping[str, Any]) -> str | None:
    """The name of the paper that a rule (`Curriculum.to_dict()`) comes from, None where it is not that of one paper.

    Example:
        >>> paper_of({"type": "phases", "cut": "value"})
        'babylm'
    """
    if curriculum.get("type") == "phases" and curriculum.get("pools", "cumulative") == "cumulative":
        return "babylm" if curriculum.get("cut", "rank") == "value" else "wsod"
    return _RULES.get(curriculum.get("type", ""))
