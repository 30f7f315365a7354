"""A scored data set as shards, a folder per bucket, that is read in order of difficulty without being loaded."""
