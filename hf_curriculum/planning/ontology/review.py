"""Reviewing an ontology by hand: its nouns as a table, and as a file of corrections to be edited."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from hf_curriculum.config import write_atomically
from hf_curriculum.planning.ontology.entries import NounClass
from hf_curriculum.planning.ontology.ontology import Ontology

HEAD = ("noun", "class", "pairs", "with it", "share", "PMI", "second", "most show", "")
"""Columns of `review_rows`."""
_PLAIN = re.compile(r"[a-z][a-z -]*[a-z]")


def review_rows(ontology: Ontology, most: int | None = None) -> list[tuple[str, ...]]:
    """Nouns for a table with the columns `HEAD`, the doubtful first."""
    rows = []
    for noun in ontology.review()[:most]:
        node = "–" if noun.node is None else noun.node
        left_out = noun.node is not None and noun.node not in ontology.sizes
        remarks = [f"was {noun.proposed or 'without'}"] * noun.corrected + ["too few"] * left_out
        remarks += ["doubtful"] * (noun.doubtful and not noun.corrected)
        pmi = "–" if noun.pmi is None else f"{noun.pmi:.2f}"
        rest = (noun.runner_up or "–", noun.commonest or "–", ", ".join(remarks))
        rows.append((noun.noun, node, f"{noun.pairs:,}", f"{noun.joint:,}", f"{100 * noun.share:.0f} %", pmi, *rest))
    return rows


def write_review(ontology: Ontology, path: str | Path) -> None:
    """Writes the nouns as a YAML file of corrections, the doubtful first: edit it and give it as `corrections`.

    Each line is `noun: class`; what is left as it is corrects nothing.

    Args:
        ontology: whose nouns.
        path: the file.

    Raises:
        FileExistsError: there is one, which may hold corrections.

    Example:
        >>> write_review(ontology, "mine.yaml")  # doctest: +SKIP
    """
    if Path(path).exists():
        raise FileExistsError(
            f"{path} is there already, and may hold corrections made by hand. Name another file, or remove it."
        )
    nouns = ontology.review()
    doubtful = [_line(noun) for noun in nouns if noun.doubtful]
    others = [_line(noun) for noun in nouns if not noun.doubtful]
    head = [
        f"# {len(nouns)} nouns and the class that each means, the {len(doubtful)} doubtful ones first. Change a",
        "# class, or write null to leave a noun out, and give this file as corrections. Beside each: the share of its",
        "# pairs whose image shows the class, their number, the PMI, the class of second highest PMI, the commonest.",
    ]
    between = ["# Not doubtful:"] if others else []
    write_atomically(path, "\n".join([*head, *doubtful, *between, *others]) + "\n")


def _line(noun: NounClass) -> str:
    pmi = "" if noun.pmi is None else f", PMI {noun.pmi:.2f}"
    facts = f"{100 * noun.share:.0f} % of {noun.pairs}{pmi}; second {noun.runner_up or 'none'}; "
    facts += f"most show {noun.commonest or 'none'}"
    was = f"; was {noun.proposed}" if noun.corrected else ""
    remark = " ".join(f"{facts}{was}".split())  # a class may be called anything, and a line would end the remark
    return f"{_quoted(noun.noun)}: {'null' if noun.node is None else _quoted(noun.node)}  # {remark}"


def _quoted(name: str) -> str:
    """A name that YAML reads as such: bare where it can be."""
    if _PLAIN.fullmatch(name) and yaml.safe_load(name) == name:
        return name
    return yaml.safe_dump(name, default_style='"', width=10_000, allow_unicode=True).strip()
