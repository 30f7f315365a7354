"""Our models are known to the Auto classes of `transformers` as soon as somebody asks for one.

`import hf_curriculum` only waits: right after `transformers` imports `AutoConfig` or `AutoImageProcessor`, our modules
that register configurations or image processors are imported. A configuration imports the module of its model when one
is made, which is before an Auto class asks for the model; that module registers its classes.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from typing import Any

from hf_curriculum.names import AUTO_CLASSES


def _register(auto_class: str) -> None:
    """Imports our modules that register themselves with an Auto class."""
    for module in AUTO_CLASSES[auto_class]:
        import_module(f"hf_curriculum.{module}")


class _AfterImport(MetaPathFinder):
    """Calls `_register` right after the module of an Auto class is imported for the first time."""

    def __init__(self, auto_class: str) -> None:
        self.auto_class = auto_class

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname != self.auto_class:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                _register(fullname)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def register_when_asked() -> None:
    """Registers now with what `transformers` has imported already, and with the rest when it does."""
    for auto_class in AUTO_CLASSES:
        if auto_class in sys.modules:
            _register(auto_class)
        else:
            sys.meta_path.insert(0, _AfterImport(auto_class))
