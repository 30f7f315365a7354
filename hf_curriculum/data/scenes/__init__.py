"""The embedded data: captioned pictures of several objects, made by a seeded program. Nothing is downloaded."""

from hf_curriculum.data.scenes.build import make_scenes
from hf_curriculum.data.scenes.contact_sheet import contact_sheet
from hf_curriculum.data.scenes.vocabulary import NOUNS, object_nouns

__all__ = ["NOUNS", "contact_sheet", "make_scenes", "object_nouns"]
