"""The papers whose curricula the library holds, as a card cites them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Paper:
    """A paper: its name in running text, title and BibTeX entry."""

    short: str
    title: str
    bibtex: str


def _paper(short: str, kind: str, key: str, **fields: str) -> Paper:
    lines = "".join(f"  {name:<9} = {{{value}}},\n" for name, value in fields.items())
    return Paper(short, fields["title"], f"@{kind}{{{key},\n{lines}}}")


PAPERS: dict[str, Paper] = {
    "babylm": _paper(
        "Saha et al. 2024",
        "inproceedings",
        "saha2024exploring",
        title="Exploring Curriculum Learning for Vision-Language Tasks: A Study on Small-Scale Multimodal Training",
        author="Saha, Rohan and Fahim, Abrar and Fyshe, Alona and Murphy, Alex",
        booktitle="The 2nd BabyLM Challenge at the 28th Conference on Computational Natural Language Learning",
        pages="65--81",
        publisher="Association for Computational Linguistics",
        year="2024",
        url="https://aclanthology.org/2024.conll-babylm.6",
    ),
    "simi_cl": _paper(
        "Zhang et al. 2022",
        "inproceedings",
        "zhang2022cross",
        title="Cross-Modal Similarity-Based Curriculum Learning for Image Captioning",
        author="Zhang, Hongkuan and Sugawara, Saku and Aizawa, Akiko and Zhou, Lei and Sasano, Ryohei and "
        "Takeda, Koichi",
        booktitle="Proceedings of the 2022 Conference on Empirical Methods in Natural Language Processing",
        pages="7599--7606",
        publisher="Association for Computational Linguistics",
        year="2022",
    ),
    "tonics": _paper(
        "Srinivasan, Ren & Thomason 2023",
        "inproceedings",
        "srinivasan2023curriculum",
        title="Curriculum Learning for Data-Efficient Vision-Language Alignment",
        author="Srinivasan, Tejas and Ren, Xiang and Thomason, Jesse",
        booktitle="Proceedings of the IEEE/CVF Conference on Computer Vision and Pattern Recognition Workshops",
        year="2023",
        note="arXiv:2207.14525",
    ),
    "discl": _paper(
        "Liang et al. 2024",
        "article",
        "liang2024diffusion",
        title="Diffusion Curriculum: Synthetic-to-Real Generative Curriculum Learning via Image-Guided Diffusion",
        author="Liang, Yijun and Bhardwaj, Shweta and Zhou, Tianyi",
        journal="arXiv preprint arXiv:2410.13674",
        year="2024",
        note="Later in ICCV 2025 as Synthetic-to-Real Data Curriculum via Image-Guided Diffusion",
    ),
    "wsod": _paper(
        "Nebbia & Kovashka 2024",
        "inproceedings",
        "nebbia2024image",
        title="Image-caption difficulty for efficient weakly-supervised object detection from in-the-wild data",
        author="Nebbia, Giacomo and Kovashka, Adriana",
        booktitle="Proceedings of the IEEE/CVF Conference on Computer Vision and Pattern Recognition Workshops",
        year="2024",
    ),
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
