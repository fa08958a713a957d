"""A rank up to the import of MindSpore: waits for its rank table and prints its placement as JSON."""

import json
import os

from resnetboost_trainer import config
from resnetboost_trainer.distributed import ranktable

placed = ranktable.place(config.environment(), timeout=60)
names = ("RANK_TABLE_FILE", "RANK_ID", "RANK_SIZE", "DEVICE_ID")
told = {name: os.environ.get(name) for name in names}
print(json.dumps({"rank": placed.rank, "leader": placed.leader, "index": placed.index} | told))
