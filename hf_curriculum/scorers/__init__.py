"""Difficulty scores: the contract, the doors they come in by, and the scores themselves."""

from hf_curriculum.scorers.add import add_scores
from hf_curriculum.scorers.base import Scorer
from hf_curriculum.scorers.boxes import GroundTruthBoxes
from hf_curriculum.scorers.clip import SCENES_CLIP, CLIPSimilarity
from hf_curriculum.scorers.combine import Addup, Combine
from hf_curriculum.scorers.concreteness import Concreteness
from hf_curriculum.scorers.configured import scorer_from
from hf_curriculum.scorers.controls import shuffle_scores
from hf_curriculum.scorers.detectors import ModelDetector
from hf_curriculum.scorers.join import add_scores_from
from hf_curriculum.scorers.language_model import LanguageModelLoss
from hf_curriculum.scorers.mentions import ObjectMentions
from hf_curriculum.scorers.model_loss import ModelLoss
from hf_curriculum.scorers.nouns import NounCount
from hf_curriculum.scorers.onnx_detector import OnnxDetector
from hf_curriculum.scorers.onnx_heads import GridHead, RowHead
from hf_curriculum.scorers.pos_tagger import PosTagger
from hf_curriculum.scorers.proposals import RegionProposals
from hf_curriculum.scorers.rarity import WordRarity
from hf_curriculum.scorers.ray_batches import RayScorer
from hf_curriculum.scorers.sharded import add_scores_sharded
from hf_curriculum.scorers.side_file import load_scores, save_scores
from hf_curriculum.scorers.text import CaptionLength
from hf_curriculum.scorers.vilt import ViLTSimilarity
from hf_curriculum.scorers.visual_entropy import VisualEntropy

SCORERS: dict[str, type[Scorer]] = {
    "addup": Addup,
    "box_count": GroundTruthBoxes,
    "caption_length": CaptionLength,
    "clip_similarity": CLIPSimilarity,
    "combined": Combine,
    "concreteness": Concreteness,
    "language_model_loss": LanguageModelLoss,
    "model_loss": ModelLoss,
    "noun_count": NounCount,
    "object_mentions": ObjectMentions,
    "region_count": RegionProposals,
    "vilt_similarity": ViLTSimilarity,
    "visual_entropy": VisualEntropy,
    "word_rarity": WordRarity,
}
"""Every scorer by the column it writes."""

__all__ = [
    "SCENES_CLIP",
    "SCORERS",
    "Addup",
    "CLIPSimilarity",
    "CaptionLength",
    "Combine",
    "Concreteness",
    "GridHead",
    "GroundTruthBoxes",
    "LanguageModelLoss",
    "ModelDetector",
    "ModelLoss",
    "NounCount",
    "ObjectMentions",
    "OnnxDetector",
    "PosTagger",
    "RayScorer",
    "RegionProposals",
    "RowHead",
    "Scorer",
    "ViLTSimilarity",
    "VisualEntropy",
    "WordRarity",
    "add_scores",
    "add_scores_from",
    "add_scores_sharded",
    "load_scores",
    "save_scores",
    "scorer_from",
    "shuffle_scores",
]
