# Made by docs/update_tables.py from names.py.
from hf_curriculum.training.detection.collator import DetectionCollator as DetectionCollator
from hf_curriculum.training.detection.constant import constant_loss as constant_loss
