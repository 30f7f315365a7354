"""The library's models among the Auto classes of `transformers`, in whatever order the two are imported.

`import hf_curriculum` loads neither `transformers` nor a model. The configurations are registered as soon as
`AutoConfig` has been loaded, by anybody; the models once there is a configuration of one, which is before an Auto
class asks for its model. To load more with `AutoConfig` would be wrong, not only slow: modules of `transformers` load
it while they are half ready themselves. So our configurations' files import only `AutoConfig` and its base class.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

AUTO_CONFIG = "transformers.models.auto.configuration_auto"
"""The module of `AutoConfig`, which every other Auto class needs."""


def register_when_loaded() -> None:
    """Registers the configurations now if `AutoConfig` is loaded, otherwise as soon as it is."""
    if AUTO_CONFIG in sys.modules:
        _register()
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _register() -> None:
    # It registers when it is loaded. If it is what loads `AutoConfig` just now, it is found here and goes on later.
    import_module("hf_curriculum.models")


class _Finder:
    """Has the module of `AutoConfig` found and loaded as ever, with our step behind it; is gone afterwards."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What the other finders say of that one module, and nothing of any other."""
        if name != AUTO_CONFIG:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is not None:
            spec.loader = _Loader(spec.loader, self)
        return spec


class _Loader:
    """Loads a module as its own loader does, then registers."""

    def __init__(self, loader: Any, finder: _Finder) -> None:
        self.loader, self.finder = loader, finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """The module as its own loader makes it."""
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Runs the module, which keeps its own loader, and registers when that went well."""
        module.__loader__ = module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        sys.meta_path.remove(self.finder)
        _register()
