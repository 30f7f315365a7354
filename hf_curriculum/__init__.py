"""Curriculum learning for image-text data on `datasets`, `transformers` and `accelerate`.

Every public name is loaded when it is first used. The models are known to the Auto classes of
`transformers`, which this package does not load before it needs them.
"""

from __future__ import annotations

from hf_curriculum.moved import register_moved_modules
from hf_curriculum.names import exports, import_after

__version__ = "0.1.0"

__all__, __getattr__, __dir__ = exports(__name__)

register_moved_modules()

# Both wait from here on: transformers imports its configurations in the middle of importing its image processors.
import_after("transformers.models.auto.configuration_auto", "hf_curriculum.models")
import_after(
    "transformers.models.auto.image_processing_auto",
    "hf_curriculum.data.regions.processor",
    "hf_curriculum.models.wsddn.image_processing",
)
