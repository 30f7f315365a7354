# Made by docs/update_tables.py from names.py.
from hf_curriculum.models.flamingo.config import CaptionFlamingoConfig as CaptionFlamingoConfig
from hf_curriculum.models.flamingo.model import CaptionFlamingoForCausalLM as CaptionFlamingoForCausalLM
from hf_curriculum.models.flamingo.model import CaptionFlamingoModel as CaptionFlamingoModel
