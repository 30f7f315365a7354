# Made by docs/update_tables.py from names.py.
from hf_curriculum.streaming.index import BucketIndex as BucketIndex
from hf_curriculum.streaming.dataset import BucketedStream as BucketedStream
from hf_curriculum.streaming.index import Shard as Shard
from hf_curriculum.streaming.index import StoredBucket as StoredBucket
from hf_curriculum.streaming.save import save_bucketed as save_bucketed
from hf_curriculum.streaming.index import verify_bucketed as verify_bucketed
