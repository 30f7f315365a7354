# Made by docs/update_tables.py from names.py.
from hf_curriculum.evaluation.captions.metrics import METRICS as METRICS
from hf_curriculum.evaluation.captions.metrics import caption_compute_metrics as caption_compute_metrics
from hf_curriculum.evaluation.captions.metrics import caption_metrics as caption_metrics
from hf_curriculum.evaluation.captions.tokens import tokenize as tokenize
