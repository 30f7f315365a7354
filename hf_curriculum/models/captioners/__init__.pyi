# Made by docs/update_tables.py from names.py.
from hf_curriculum.models.captioners.regions import EncodedImages as EncodedImages
from hf_curriculum.models.captioners.config import RegionTransformerConfig as RegionTransformerConfig
from hf_curriculum.models.captioners.transformer import RegionTransformerForCausalLM as RegionTransformerForCausalLM
from hf_curriculum.models.captioners.transformer import RegionTransformerModel as RegionTransformerModel
from hf_curriculum.models.captioners.convert import convert_reference as convert_reference
