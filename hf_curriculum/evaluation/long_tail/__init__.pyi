# Made by docs/update_tables.py from names.py.
from hf_curriculum.evaluation.long_tail.metrics import ClassReport as ClassReport
from hf_curriculum.evaluation.long_tail.metrics import class_groups as class_groups
from hf_curriculum.evaluation.long_tail.metrics import class_report as class_report
from hf_curriculum.evaluation.long_tail.metrics import long_tail_metrics as long_tail_metrics
