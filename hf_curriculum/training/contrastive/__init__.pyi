# Made by docs/update_tables.py from names.py.
from hf_curriculum.training.contrastive.trainer import ContrastiveTrainer as ContrastiveTrainer
