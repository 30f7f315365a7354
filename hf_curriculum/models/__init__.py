"""Models, known to the Auto classes of `transformers` after `import hf_curriculum`.

Importing it loads the configurations alone. A configuration imports the module of its model when one is made, which is
before an Auto class asks for the model; that module registers its classes. Image processors are registered when
`transformers` imports its own, which takes two seconds.
"""

from __future__ import annotations

from transformers import AutoConfig

from hf_curriculum.models.aligner.config import AlignerConfig
from hf_curriculum.models.captioners.config import RegionTransformerConfig
from hf_curriculum.models.captioners.recurrent_config import AoANetConfig, UpDownConfig
from hf_curriculum.models.flamingo.config import CaptionFlamingoConfig
from hf_curriculum.models.git.config import CaptionGitConfig
from hf_curriculum.models.wsddn.config import ConvBackboneConfig, WsddnConfig
from hf_curriculum.names import exports, import_after

_CAPTIONERS = (CaptionGitConfig, CaptionFlamingoConfig, RegionTransformerConfig, UpDownConfig, AoANetConfig)
for _config in (*_CAPTIONERS, AlignerConfig, ConvBackboneConfig, WsddnConfig):
    AutoConfig.register(_config.model_type, _config, exist_ok=True)

import_after(
    "transformers.models.auto.image_processing_auto",
    "hf_curriculum.data.regions.processor",
    "hf_curriculum.models.wsddn.image_processing",
)

__all__, __getattr__, __dir__ = exports(__name__)
