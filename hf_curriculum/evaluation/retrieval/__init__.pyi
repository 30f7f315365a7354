# Made by docs/update_tables.py from names.py.
from hf_curriculum.evaluation.retrieval.ranks import RetrievalRanks as RetrievalRanks
from hf_curriculum.evaluation.retrieval.ranks import ScoreMatrix as ScoreMatrix
from hf_curriculum.evaluation.retrieval.ranks import Similarities as Similarities
from hf_curriculum.evaluation.retrieval.ranks import VectorSimilarities as VectorSimilarities
from hf_curriculum.evaluation.retrieval.ranks import retrieval_metrics as retrieval_metrics
