# Made by docs/update_tables.py from names.py.
from hf_curriculum.curricula.by_loss.info_batch import InfoBatch as InfoBatch
from hf_curriculum.curricula.by_loss.self_paced import SelfPaced as SelfPaced
