# Made by docs/update_tables.py from names.py.
from hf_curriculum.scoring.ray import RayScorer as RayScorer
from hf_curriculum.scoring.add_scores import add_scores as add_scores
from hf_curriculum.scoring.join import add_scores_from as add_scores_from
from hf_curriculum.scoring.add_scores import add_scores_sharded as add_scores_sharded
from hf_curriculum.scoring.join import load_scores as load_scores
from hf_curriculum.scoring.join import save_scores as save_scores
from hf_curriculum.scoring.controls import shuffle_scores as shuffle_scores
