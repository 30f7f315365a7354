"""A small task for the tests of a run's report."""

from small_task import data, make_trainer

__all__ = ["data", "make_trainer"]
