# Made by docs/update_tables.py.
from hf_curriculum.tasks.captioning.models.config import AoANetConfig as AoANetConfig
from hf_curriculum.tasks.captioning.models.aoanet import AoANetForCausalLM as AoANetForCausalLM
from hf_curriculum.tasks.captioning.metrics.metrics import CaptionEvaluator as CaptionEvaluator
from hf_curriculum.tasks.captioning.suite import CaptionSuite as CaptionSuite
from hf_curriculum.tasks.captioning.arguments import CaptioningArguments as CaptioningArguments
from hf_curriculum.tasks.captioning.trainer import CaptioningTrainer as CaptioningTrainer
from hf_curriculum.tasks.captioning.models.config import RegionTransformerConfig as RegionTransformerConfig
from hf_curriculum.tasks.captioning.models.transformer import RegionTransformerForCausalLM as RegionTransformerForCausalLM
from hf_curriculum.tasks.captioning.self_critical import SelfCriticalTrainer as SelfCriticalTrainer
from hf_curriculum.tasks.captioning.models.config import UpDownConfig as UpDownConfig
from hf_curriculum.tasks.captioning.models.updown import UpDownForCausalLM as UpDownForCausalLM
from hf_curriculum.tasks.captioning.metrics.metrics import caption_compute_metrics as caption_compute_metrics
from hf_curriculum.tasks.captioning.metrics.metrics import caption_metrics as caption_metrics
from hf_curriculum.tasks.captioning.compare import compare_captions as compare_captions
from hf_curriculum.tasks.captioning.models.convert import convert_reference as convert_reference
from hf_curriculum.tasks.captioning.models.convert import reference_tokenizer as reference_tokenizer
