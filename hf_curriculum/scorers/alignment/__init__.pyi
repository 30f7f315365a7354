# Made by docs/update_tables.py from names.py.
from hf_curriculum.scorers.alignment.clip import CLIPSimilarity as CLIPSimilarity
from hf_curriculum.scorers.alignment.clip import SCENES_CLIP as SCENES_CLIP
from hf_curriculum.scorers.alignment.vilt import ViLTSimilarity as ViLTSimilarity
