"""From scores to an order: ranking, and buckets by rank or by value."""

from hf_curriculum.ordering.buckets import Buckets, cut_buckets
from hf_curriculum.ordering.filtering import keep_easiest, mark_easiest
from hf_curriculum.ordering.groups import Groups, read_columns, read_groups
from hf_curriculum.ordering.ranking import Ranking, rank_scores, read_scores, resolve_easy

__all__ = [
    "Buckets",
    "Groups",
    "Ranking",
    "cut_buckets",
    "keep_easiest",
    "mark_easiest",
    "rank_scores",
    "read_columns",
    "read_groups",
    "read_scores",
    "resolve_easy",
]
