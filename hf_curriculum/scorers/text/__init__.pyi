# Made by docs/update_tables.py from names.py.
from hf_curriculum.scorers.text.length import CaptionLength as CaptionLength
from hf_curriculum.scorers.text.language_model import LanguageModelLoss as LanguageModelLoss
from hf_curriculum.scorers.text.nouns import NounCount as NounCount
from hf_curriculum.scorers.text.mentions import ObjectMentions as ObjectMentions
from hf_curriculum.scorers.text.pos_tagger import PosTagger as PosTagger
from hf_curriculum.scorers.text.rarity import WordRarity as WordRarity
