# Made by docs/update_tables.py.
from hf_curriculum.tasks.babylm.suite import BENCHMARKS as BENCHMARKS
from hf_curriculum.tasks.babylm.run import GlueSettings as GlueSettings
from hf_curriculum.tasks.babylm.scorer import TextImageScorer as TextImageScorer
from hf_curriculum.tasks.babylm.suite import evaluate_pretrained as evaluate_pretrained
from hf_curriculum.tasks.babylm.suite import evaluate_suite as evaluate_suite
from hf_curriculum.tasks.babylm.miniature import make_miniature_benchmarks as make_miniature_benchmarks
