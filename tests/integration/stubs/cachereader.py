"""Reads objects by way of a shared cache, in an order of its own, and compares each with the bucket's folder.

Arguments: the cache's folder, its limit in bytes, the folder of the bucket and a seed.
"""

import random
import sys
from pathlib import Path

from resnetboost_trainer.storage import address
from resnetboost_trainer.storage.bucket import Bucket
from resnetboost_trainer.storage.cache import Cache

ROUNDS = 5
root, limit, folder, seed = sys.argv[1:]
bucket, copies, draw = Bucket(address.parse("s3://bucket", "x")), Cache(Path(root), int(limit)), random.Random(seed)
for _ in range(ROUNDS):
    for found in draw.sample(objects := list(bucket.objects()), len(objects)):
        intact = copies.read(bucket, found) == (Path(folder) / found.key).read_bytes()
        print("intact" if intact else "torn", flush=True)
