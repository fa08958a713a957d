"""One rank of a gang led by rank $LEADER: writes what it received from the leader and whether it has the checkpoint.

Its folder holds checkpoints/, which only the leader reads.
"""

import os
import sys
from pathlib import Path

import numpy as np

from resnetboost_trainer import config
from resnetboost_trainer.distributed.communicator import Communicator, Rendezvous, as_bytes, from_bytes

LEADER = int(os.environ["LEADER"])

environment = config.environment()
rendezvous = Rendezvous(environment)

from mindspore import nn  # noqa: E402  after the coordinator has begun to import MindSpore

from resnetboost_trainer.checkpoint.state import State  # noqa: E402
from resnetboost_trainer.engine import device  # noqa: E402
from resnetboost_trainer.optim.pca import basis as bases  # noqa: E402
from support import pcabases  # noqa: E402

device.prepare()
communicator = Communicator(environment.rank, environment.world_size, leader=LEADER)
network = nn.SequentialCell(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2))
for parameter in network.get_parameters():
    parameter.set_data(parameter * 0 + environment.rank + 1)  # different values on every rank
told = communicator.broadcast(np.full(3, environment.rank, np.float32))
integers = communicator.broadcast_integers([2**24 + 1 + environment.rank, 2**53 + 1, 2**63 - 1])
summed = from_bytes(communicator.sum(as_bytes([2**24 + 1, 2**53 + environment.rank])))
state = State(network, [], communicator)
contents = state.snapshot()
for parameter in network.get_parameters():
    parameter.set_data(parameter * 0 - 1)
state.restore(contents)
left = np.concatenate([parameter.asnumpy().reshape(-1) for parameter in network.trainable_params()])
own = np.concatenate([value.asnumpy().reshape(-1) for value in state.statistics.values()])
source = pcabases.source(Path(sys.argv[1]) / "checkpoints" if communicator.leads else None)
basis, _ = bases.prepare(source, pcabases.shape(5), communicator)
np.savez(
    Path(sys.argv[1]) / f"rank-{environment.rank}.npz",
    told=told,
    integers=np.array([*integers, *summed]),
    weights=left,
    statistics=own,
    basis=basis.columns,
    has_checkpoint=np.array(contents is not None),
)
communicator.leave()
rendezvous.close()
os._exit(0)
