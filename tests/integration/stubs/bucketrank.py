"""One rank of a gang that trains small networks with and without gradient buckets, until the last rank is killed.

It writes the metrics of the steps and the final weights, the networks and MindSpore modes in which buckets gave other
bits than one sum, and, on the first rank, the error after the last rank was gone.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import structs

from resnetboost_trainer import config
from resnetboost_trainer.distributed.communicator import Communicator, Rendezvous

os.environ["MS_CPU_COMM_OP_TIMEOUT"] = "15"  # seconds that the first rank waits for the lost one
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # MindSpore sends SIGTERM to itself when a peer is gone
environment = config.environment()
rendezvous = Rendezvous(environment)

import mindspore  # noqa: E402  after the coordinator has begun to import it
from mindspore import Tensor, ops  # noqa: E402

from resnetboost_trainer.distributed.buckets import Buckets  # noqa: E402
from resnetboost_trainer.engine import device  # noqa: E402
from resnetboost_trainer.engine.train_step import Program  # noqa: E402
from resnetboost_trainer.failures import CommunicationError  # noqa: E402
from resnetboost_trainer.models import (  # noqa: E402
    arch,
    resnet,
)
from resnetboost_trainer.optim.schedule import StepSchedule  # noqa: E402
from support import (  # noqa: E402
    pcanetworks,
    thornetworks,
    trainerconfig,
)
from support.pcareference import Settings  # noqa: E402

BATCH, STEPS = 12, 3
MOMENTUM: dict[str, dict[str, Any]] = {
    "scaled": {"lossScale": 3},
    "dynamic": {"dynamicLossScale": {"initial": 512, "growthSteps": 2}},
}
# The network of Momentum has 641 weights in 10 tensors, that of PCA 53 in 4.
FORMS = {"whole": None, "buckets": config.AllReduceFusion(bucket_bytes=100)}  # less than a job may set
FROZEN: dict[str, Any] = {"model": trainerconfig.MODEL | {"freeze": ["layer2"]}}
FROZEN_FORMS: dict[str, dict[str, Any]] = {"whole": {}, "buckets": {"allReduceFusion": {"bucketBytes": 1 << 17}}}
# For all networks tensors are shortened by this factor, and buckets of the default size too.
SHORTER, BUCKET_BYTES = 16, 25 << 20
MODES = {"GRAPH": mindspore.GRAPH_MODE, "PyNative": mindspore.PYNATIVE_MODE}

device.prepare()
communicator = Communicator(environment.rank, environment.world_size)
rank, ranks = communicator.rank, communicator.size
left: dict[str, Any] = {}


def by_momentum(fusion: config.AllReduceFusion | None, **changes: Any) -> tuple[Program, Any]:
    model = trainerconfig.MODEL | {"numClasses": thornetworks.CLASSES}
    settings = msgspec.convert(trainerconfig.GOOD | {"model": model} | changes, config.Config, strict=False)
    network = thornetworks.Chain()
    return Program(structs.replace(settings, all_reduce_fusion=fusion), network, communicator), network


def by_family(**changes: Any) -> tuple[Program, Any]:
    settings = msgspec.convert(trainerconfig.GOOD | FROZEN | changes, config.Config)
    network = resnet.configured(settings.model, 1, 0, settings.precision)
    return Program(settings, network, communicator), network


def by_pca(fusion: config.AllReduceFusion | None) -> tuple[Program, Any]:
    random = np.random.default_rng(2).standard_normal((pcanetworks.NUMBERS, 4))
    network, settings = pcanetworks.Tanh(), pcanetworks.settings(4, Settings())
    settings = structs.replace(settings, all_reduce_fusion=fusion)
    return pcanetworks.program(network, settings, np.linalg.qr(random)[0].T, communicator), network


def pictures(step: int) -> tuple[Any, Any]:
    return thornetworks.images(BATCH, step), np.roll(thornetworks.labels(BATCH), step)


def rows(step: int) -> tuple[Any, Any]:
    return pcanetworks.batch(BATCH, step)


def digits(step: int) -> tuple[Any, Any]:
    random = np.random.default_rng(step)
    return random.standard_normal((BATCH, 1, 8, 8), np.float32), np.arange(BATCH, dtype=np.int32) % 10


def sums_differ(name: str, mode: str) -> bool:
    """Whether summing such gradients in buckets gives other bits than one sum of all of them."""
    shapes = arch.parameters(name, 10, 3)
    sizes = [-(-int(np.prod(shape)) // SHORTER) for key, shape in shapes.items() if not key.endswith(arch.STATISTICS)]
    flat = np.random.default_rng(rank).standard_normal(sum(sizes) + 3, np.float32)
    *pieces, scalars = np.split(flat, np.cumsum(sizes))
    mindspore.set_context(mode=MODES[mode])
    buckets = Buckets(sizes, BUCKET_BYTES // SHORTER)
    found = buckets([Tensor(piece) for piece in pieces], Tensor(scalars)).asnumpy()
    expected = ops.AllReduce()(Tensor(flat)).asnumpy()
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    left[f"{name}.{mode}.buckets"] = np.array(len(buckets.plan))
    return bool(found.tobytes() != expected.tobytes())


def take(program: Program, step: int, batch: tuple[Any, Any]) -> list[float]:
    images, labels = (Tensor(array[rank::ranks]) for array in batch)
    outcome = program.step(images, labels, StepSchedule(step, 0.1, 0.1), stop=False)
    return [outcome.loss, outcome.accuracy, outcome.gradient_norm]


def train(name: str, trainee: tuple[Program, Any], batches: Any) -> None:
    program, network = trainee
    buckets = program.gradient.buckets
    left[f"{name}.collectives"] = np.array(1 if buckets is None else len(buckets.plan))
    left[f"{name}.told"] = np.array([take(program, step, batches(step)) for step in range(STEPS)])
    left[f"{name}.weights"] = pcanetworks.vector(network)


for form, fusion in FORMS.items():
    for name, changes in MOMENTUM.items():
        train(f"{name}.{form}", by_momentum(fusion, **changes), pictures)
    train(f"pca.{form}", by_pca(fusion), rows)
    train(f"frozen.{form}", by_family(**FROZEN_FORMS[form]), digits)

names = (*arch.SMALL, *arch.LARGE)
left["differ"] = np.array([f"{name} {mode}" for mode in MODES for name in names if sums_differ(name, mode)], str)

program, _ = by_momentum(FORMS["buckets"])
take(program, 0, pictures(0))
if rank == 0:
    try:
        take(program, 1, pictures(1))
    except CommunicationError as error:
        left["lost"] = np.array(str(error))
np.savez(Path(sys.argv[1]) / f"rank-{rank}.npz", **left)
rendezvous.close()
os._exit(0)
