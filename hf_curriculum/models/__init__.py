"""Models, known to the Auto classes of `transformers` once this package is imported, as `import hf_curriculum` does.

Importing it loads the configurations alone. A configuration imports the module of its model when one is made, which is
before an Auto class asks for the model; that module registers its classes. Image processors are registered when
`transformers` imports its own, which takes two seconds.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from typing import Any

from transformers import AutoConfig

from hf_curriculum.models.flamingo.config import CaptionFlamingoConfig
from hf_curriculum.models.git.config import CaptionGitConfig
from hf_curriculum.tasks.alignment.config import AlignerConfig
from hf_curriculum.tasks.captioning.models.config import AoANetConfig, RegionTransformerConfig, UpDownConfig
from hf_curriculum.tasks.detection.config import ConvBackboneConfig, WsddnConfig

_CAPTIONERS = (CaptionGitConfig, CaptionFlamingoConfig, RegionTransformerConfig, UpDownConfig, AoANetConfig)
for _config in (*_CAPTIONERS, AlignerConfig, ConvBackboneConfig, WsddnConfig):
    AutoConfig.register(_config.model_type, _config, exist_ok=True)

_IMAGE_PROCESSORS = "transformers.models.auto.image_processing_auto"
_PROCESSORS = ("hf_curriculum.data.regions.processor", "hf_curriculum.tasks.detection.image_processing")


class _RegisterProcessors(MetaPathFinder):
    """Imports our image processors, which register themselves, right after `AutoImageProcessor`."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname != _IMAGE_PROCESSORS:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                for name in _PROCESSORS:
                    import_module(name)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if _IMAGE_PROCESSORS in sys.modules:
    for _name in _PROCESSORS:
        import_module(_name)
else:
    sys.meta_path.insert(0, _RegisterProcessors())
