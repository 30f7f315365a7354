# Made by docs/update_tables.py from names.py.
from hf_curriculum.models.git.config import CaptionGitConfig as CaptionGitConfig
from hf_curriculum.models.git.model import CaptionGitForCausalLM as CaptionGitForCausalLM
from hf_curriculum.models.git.model import CaptionGitModel as CaptionGitModel
from hf_curriculum.models.git.model import CaptionGitPreTrainedModel as CaptionGitPreTrainedModel
