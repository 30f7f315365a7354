"""A scored data set as shards, a folder per bucket, that is read in order of difficulty without being loaded."""

from hf_curriculum.ordering.bucketed.index import BucketIndex, Shard, StoredBucket, verify_bucketed
from hf_curriculum.ordering.bucketed.save import save_bucketed

__all__ = ["BucketIndex", "Shard", "StoredBucket", "save_bucketed", "verify_bucketed"]
