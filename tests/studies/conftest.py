"""A small task for the trainer's tests."""

from small_task import data, make_trainer

__all__ = ["data", "make_trainer"]
