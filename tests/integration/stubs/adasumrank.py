"""One rank of a gang that sums its rows of many cases with Adasum and writes the results to a file.

Its folder holds cases.npz: per case `name.values` (ranks, length), `name.sizes` and `name.per_node`.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np

from resnetboost_trainer import config
from resnetboost_trainer.distributed.communicator import Communicator, Rendezvous

environment = config.environment()
rendezvous = Rendezvous(environment)

from resnetboost_trainer.distributed.adasum.adaptive_sum import AdaptiveSum  # noqa: E402
from resnetboost_trainer.engine import device  # noqa: E402  after the coordinator has begun to import MindSpore

device.prepare()
communicator = Communicator(environment.rank, environment.world_size)
folder = Path(sys.argv[1])
cases = np.load(folder / "cases.npz")
left = {}
for name in dict.fromkeys(key.rpartition(".")[0] for key in cases):
    sizes, per_node = cases[f"{name}.sizes"].tolist(), int(cases[f"{name}.per_node"])
    try:
        adaptive = AdaptiveSum(sizes, per_node, communicator)
    except ValueError as error:
        left[f"{name}.refused"] = np.array(str(error))
        continue
    mean = adaptive.node_mean(cases[f"{name}.values"][communicator.rank])
    whole, told = adaptive.across(mean)
    left |= {f"{name}.mean": mean, f"{name}.whole": whole}
    left[f"{name}.told"] = np.array([told.cosine, told.cosine_min, told.gain])
    left[f"{name}.seconds"] = np.array(json.dumps(told.seconds))
np.savez(folder / f"rank-{environment.rank}.npz", **left)
communicator.leave()
rendezvous.close()
os._exit(0)
