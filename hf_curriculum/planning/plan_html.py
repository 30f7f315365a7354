"""A plan in a notebook."""

from __future__ import annotations

from hf_curriculum.html_table import html_table
from hf_curriculum.planning.exposure import HEADER, LEFT, Described, lines_above, stage_rows, totals


def plan_html(plan: Described) -> str:
    """What `describe` says, the stages as a table."""
    return html_table(HEADER, stage_rows(plan), left=LEFT, above=" ".join(lines_above(plan)), below=totals(plan))
