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

_WSOD_SCORES = {
    "clip_similarity", "caption_length", "concreteness", "object_mentions", "region_count", "region_area", "box_count",
    "box_area",
}  # fmt: skip
_SIMI_CL_SCORES = {"clip_similarity", "vilt_similarity", "addup", "model_loss"}


def paper_of(curriculum: Mapping[str, Any], score: str | None) -> str | None:
    """The paper that has this rule with this score; None where the combination is not that of one paper."""
    kind, then = curriculum.get("type"), curriculum.get("then", {})
    if kind in ("guidance_schedule", "adaptive_guidance"):  # which order by guidance, whatever its column is called
        return "discl"
    if kind == "node_sampling":
        return "tonics"
    if kind == "baby_steps":
        return "simi_cl" if score in _SIMI_CL_SCORES else None
    if kind == "filter" and curriculum.get("keep") != "auto":
        kept = curriculum.get("by", score) in _WSOD_SCORES
        return "wsod" if kept and (then.get("type") == "iid" or paper_of(then, score) == "wsod") else None
    if kind == "phases" and curriculum.get("pools", "cumulative") == "cumulative":
        if curriculum.get("cut", "rank") == "value":
            return "babylm" if score == "noun_count" else None
        return "wsod" if score in _WSOD_SCORES else None
    return None
