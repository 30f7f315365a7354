"""A small task for the trainers of tasks."""

from small_task import data, make_trainer

__all__ = ["data", "make_trainer"]
