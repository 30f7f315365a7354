"""Training by a plan: arguments, sampler, trainer, callback."""

from hf_curriculum.training.arguments import CurriculumTrainingArguments
from hf_curriculum.training.callback import PacingCallback
from hf_curriculum.training.sampler import CurriculumSampler
from hf_curriculum.training.trainer import CurriculumTrainer

__all__ = ["CurriculumSampler", "CurriculumTrainer", "CurriculumTrainingArguments", "PacingCallback"]
