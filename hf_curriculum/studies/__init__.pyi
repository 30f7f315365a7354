# Made by docs/update_tables.py from names.py.
from hf_curriculum.studies.recipe import RecipeParser as RecipeParser
from hf_curriculum.studies.study import Study as Study
from hf_curriculum.studies.study import grid_arms as grid_arms
from hf_curriculum.studies.recipe import read_preset as read_preset
from hf_curriculum.studies.recipe import resume_point as resume_point
from hf_curriculum.studies.tables import summarise as summarise
