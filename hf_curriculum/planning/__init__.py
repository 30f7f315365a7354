"""From scores to a plan: ranking, buckets, groups, stages, batches, and the base class of curricula."""
