"""`hf-curriculum evaluate --suite babylm`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hf_curriculum.cli.common import model_of

if TYPE_CHECKING:
    from hf_curriculum.tasks.babylm.suite import SuiteResult


def evaluate_benchmarks(
    model: str,
    data: str | None,
    *,
    output: Path,
    task: Sequence[str] | None,
    batch_size: int,
    limit: int | None,
    progress: bool,
) -> SuiteResult:
    """What `--suite babylm` does."""
    from hf_curriculum.tasks.babylm.suite import evaluate_pretrained

    options = {"tasks": task or None, "batch_size": batch_size, "limit": limit, "progress": progress}
    return evaluate_pretrained(model_of(model), "babylm", output_dir=output, data_dir=data, **options)
