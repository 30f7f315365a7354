# Made by docs/update_tables.py from names.py.
from hf_curriculum.scenes.vocabulary import NOUNS as NOUNS
from hf_curriculum.scenes.contact_sheet import contact_sheet as contact_sheet
from hf_curriculum.scenes.make import make_scenes as make_scenes
from hf_curriculum.scenes.vocabulary import object_nouns as object_nouns
