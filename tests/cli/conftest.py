"""What tests of commands share."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
from typed_commands import StandIn


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> Callable[..., StandIn]:
    """`replaced("module", "name", result)`: a function of the package becomes the `StandIn` that comes back."""

    def replace(module: str, name: str, gives: Any = None) -> StandIn:
        stand_in = StandIn(gives)
        monkeypatch.setattr(importlib.import_module(f"hf_curriculum.{module}"), name, stand_in)
        return stand_in

    return replace
