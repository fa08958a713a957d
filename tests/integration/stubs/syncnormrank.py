"""One rank of a gang whose batch normalization is synchronized: gradients of its part of a batch, averaged over ranks.

It writes the loss, gradients and running statistics of each of CASES: kind of network, MindSpore's mode, and whether it
has our operators.
"""

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from resnetboost_trainer import config
from resnetboost_trainer.distributed.communicator import Communicator, Rendezvous

environment = config.environment()
rendezvous = Rendezvous(environment)

import mindspore  # noqa: E402  after the coordinator has begun to import it
from mindspore import Tensor  # noqa: E402

from resnetboost_trainer.engine import device  # noqa: E402
from resnetboost_trainer.models import arch, resnet  # noqa: E402
from support import familygradients  # noqa: E402

device.prepare()
communicator = Communicator(environment.rank, environment.world_size)
rank, ranks = communicator.rank, communicator.size
left: dict[str, Any] = {}


def record(case: str, kind: str, mode: str) -> None:
    mindspore.set_context(mode=familygradients.MODES[mode])
    network = familygradients.network(kind)
    resnet.synchronize(network, ranks)
    step = familygradients.Step(network)
    loss, gradients = step(*(Tensor(array.asnumpy()[rank::ranks]) for array in familygradients.batch()))
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    left[f"{case}.loss"] = communicator.mean(loss.asnumpy().reshape(1))
    for name, gradient in zip(step.learning, gradients, strict=True):
        left[f"{case}.gradient.{name}"] = communicator.mean(gradient.asnumpy().reshape(-1)).reshape(gradient.shape)
    for name, value in network.parameters_and_names():
        if name.endswith(arch.STATISTICS):
            left[f"{case}.statistic.{name}"] = value.asnumpy().copy()


for case in os.environ["CASES"].split():
    kind, mode, ours = case.split(".")
    with contextlib.nullcontext() if ours == "ours" else familygradients.mindspores_operators():
        record(case, kind, mode)
np.savez(Path(sys.argv[1]) / f"rank-{rank}.npz", **left)
communicator.leave()
rendezvous.close()
os._exit(0)
