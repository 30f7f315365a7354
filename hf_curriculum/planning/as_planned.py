"""The order of a run for other programs, as a view of the data set."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hf_curriculum.config import digest
from hf_curriculum.planning.export import validate_data, validate_order
from hf_curriculum.planning.plan import Plan
from hf_curriculum.shapes import validate_arguments

if TYPE_CHECKING:
    from datasets import Dataset


@validate_arguments
def as_planned(dataset: Dataset, plan: Plan) -> Dataset:
    """Returns a data set in the order of a plan, as a view with one row for every draw of the run.

    For a program that reads a data set from front to back and has an option not to shuffle it. Row `i` is the run's
    draw `i`, so batches of `plan.global_batch_size` are its steps. No column is read or copied.

    Args:
        dataset: the data that the plan was made for.
        plan: from `make_plan`.

    Raises:
        TypeError: `dataset` is no `datasets.Dataset`.
        ValueError: the plan was made for other rows, decides while training, or pads its batches.

    Example:
        >>> from datasets import Dataset
        >>> from hf_curriculum import Phases, make_plan
        >>> data = Dataset.from_dict({"caption": ["a", "b", "c", "d"], "length": [4.0, 1.0, 2.0, 3.0]})
        >>> plan = make_plan(Phases(2, easy="low"), data, score_column="length", global_batch_size=2)
        >>> len(as_planned(data, plan)), sorted(as_planned(data, plan)[:2]["caption"])
        (6, ['b', 'c'])
    """
    validate_order(plan)
    validate_data(dataset, plan)
    name = digest(dataset._fingerprint, json.dumps(plan.fingerprint(), sort_keys=True), size=16)
    return dataset.select(plan.rows(0, plan.known_samples), new_fingerprint=name)
