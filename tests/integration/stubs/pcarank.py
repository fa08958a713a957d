"""One rank of a gang that prepares a basis and trains small networks in subspaces; writes its state.

Its folder holds components.npz, (k, M) of each case; samples.npy, of the whole batch; and checkpoints/ for rank 0.
"""

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from resnetboost_trainer import config
from resnetboost_trainer.distributed.communicator import Communicator, Floats, Rendezvous

environment = config.environment()
rendezvous = Rendezvous(environment)

from mindspore import Tensor, nn  # noqa: E402  after the coordinator has begun to import MindSpore

from resnetboost_trainer.engine import device  # noqa: E402
from resnetboost_trainer.optim.pca import basis as bases  # noqa: E402
from resnetboost_trainer.optim.schedule import StepSchedule  # noqa: E402
from support import (  # noqa: E402
    pcabases,
    pcanetworks,
)
from support.pcareference import Settings  # noqa: E402


class Recording(Communicator):
    """A communicator that records the sizes of broadcasts."""

    broadcasts: list[int]

    def broadcast(self, values: Floats) -> Floats:
        self.broadcasts.append(values.size)
        return super().broadcast(values)


device.prepare()
Recording.broadcasts = []
communicator = Recording(environment.rank, environment.world_size)
rank, ranks = communicator.rank, communicator.size
folder = Path(sys.argv[1])
components = dict(np.load(folder / "components.npz"))
samples = int(np.load(folder / "samples.npy"))
left: dict[str, Any] = {}


def train(name: str, network: nn.Cell, rule: Settings, **changes: Any) -> None:
    settings = pcanetworks.settings(len(components[name]), rule, **changes)
    program = pcanetworks.program(network, settings, components[name], communicator)
    told, weights = [], []
    communicator.broadcasts.clear()
    for step in range(5):
        images, labels = (array[rank::ranks] for array in pcanetworks.batch(samples, step))
        outcome = program.step(Tensor(images), Tensor(labels), StepSchedule(step, 0.1, 0.0), stop=False)
        found: Any = outcome.update
        told.append([outcome.loss, found.length, found.evaluations, found.share])
        weights.append(pcanetworks.vector(network))
    left[f"{name}.told"], left[f"{name}.weights"] = np.array(told), np.stack(weights)
    left[f"{name}.broadcasts"] = np.array(communicator.broadcasts)
    for parameter in program.update_rule.optimizer.state():  # type: ignore[attr-defined]
        left[f"{name}.memory.{parameter.name}"] = parameter.asnumpy()
    for key, value in pcanetworks.statistics(network).items():
        left[f"{name}.statistics.{key}"] = value


train("BFGS", pcanetworks.Tanh(), Settings(), lossScale=1024, **pcanetworks.momentum(0.1))
train("SGD", pcanetworks.Tanh(), Settings(alpha=0.01), solver="SGD", **pcanetworks.momentum(0.1, 0.8, nesterov=True))
train("padding", pcanetworks.Tiny(), Settings())
train("BN", pcanetworks.Normed(), Settings(sigma=0.999999, most=3, alpha=0.0))

source = pcabases.source(folder / "checkpoints" if rank == 0 else None)
basis, digest = bases.prepare(source, pcabases.shape(5), communicator)
left |= {"basis": basis.columns, "explained": np.array(basis.explained), "digest": np.array(digest)}
np.savez(folder / f"rank-{rank}.npz", **left)
communicator.leave()
rendezvous.close()
os._exit(0)
