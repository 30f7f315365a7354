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


def _entry(kind: str, key: str, **fields: str) -> str:
    lines = "".join(f"  {name:<9} = {{{value}}},\n" for name, value in fields.items())
    return f"@{kind}{{{key},\n{lines}}}"


_BABYLM = "Exploring Curriculum Learning for Vision-Language Tasks: A Study on Small-Scale Multimodal Training"
_SIMI_CL = "Cross-Modal Similarity-Based Curriculum Learning for Image Captioning"
_TONICS = "Curriculum Learning for Data-Efficient Vision-Language Alignment"
_DISCL = "Diffusion Curriculum: Synthetic-to-Real Generative Curriculum Learning via Image-Guided Diffusion"
_WSOD = "Image-caption difficulty for efficient weakly-supervised object detection from in-the-wild data"

PAPERS: dict[str, Paper] = {
    "babylm": Paper(
        "Saha et al. 2024",
        _BABYLM,
        _entry(
            "inproceedings",
            "saha2024exploring",
            title=_BABYLM,
            author="Saha, Rohan and Fahim, Abrar and Fyshe, Alona and Murphy, Alex",
            booktitle="The 2nd BabyLM Challenge at the 28th Conference on Computational Natural Language Learning",
            pages="65--81",
            publisher="Association for Computational Linguistics",
            year="2024",
            url="https://aclanthology.org/2024.conll-babylm.6",
        ),
    ),
    "simi_cl": Paper(
        "Zhang et al. 2022",
        _SIMI_CL,
        _entry(
            "inproceedings",
            "zhang2022cross",
            title=_SIMI_CL,
            author="Zhang, Hongkuan and Sugawara, Saku and Aizawa, Akiko and Zhou, Lei and Sasano, Ryohei and "
            "Takeda, Koichi",
            booktitle="Proceedings of the 2022 Conference on Empirical Methods in Natural Language Processing",
            pages="7599--7606",
            publisher="Association for Computational Linguistics",
            year="2022",
        ),
    ),
    "tonics": Paper(
        "Srinivasan, Ren & Thomason 2023",
        _TONICS,
        _entry(
            "inproceedings",
            "srinivasan2023curriculum",
            title=_TONICS,
            author="Srinivasan, Tejas and Ren, Xiang and Thomason, Jesse",
            booktitle="Proceedings of the IEEE/CVF Conference on Computer Vision and Pattern Recognition Workshops",
            year="2023",
            note="arXiv:2207.14525",
        ),
    ),
    "discl": Paper(
        "Liang et al. 2024",
        _DISCL,
        _entry(
            "article",
            "liang2024diffusion",
            title=_DISCL,
            author="Liang, Yijun and Bhardwaj, Shweta and Zhou, Tianyi",
            journal="arXiv preprint arXiv:2410.13674",
            year="2024",
            note="Later in ICCV 2025 as Synthetic-to-Real Data Curriculum via Image-Guided Diffusion",
        ),
    ),
    "wsod": Paper(
        "Nebbia & Kovashka 2024",
        _WSOD,
        _entry(
            "inproceedings",
            "nebbia2024image",
            title=_WSOD,
            author="Nebbia, Giacomo and Kovashka, Adriana",
            booktitle="Proceedings of the IEEE/CVF Conference on Computer Vision and Pattern Recognition Workshops",
            year="2024",
        ),
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
