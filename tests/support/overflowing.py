"""A small Float16 network whose gradients overflow on faint images, with a stage config for each algorithm."""

from typing import Any

import mindspore
import msgspec
import numpy as np
from mindspore import Parameter, Tensor, nn
from numpy.typing import NDArray

from resnetboost_trainer import config
from resnetboost_trainer.distributed.communicator import Communicator
from resnetboost_trainer.engine.train_step import Program
from resnetboost_trainer.models.layers.conv import Conv2d
from resnetboost_trainer.models.layers.norm import BatchNorm
from resnetboost_trainer.optim.pca import subspace
from resnetboost_trainer.optim.pca.subspace import Basis
from support import trainerconfig

Arrays = dict[str, NDArray[Any]]

CLASSES, PIXELS, SAMPLES = 3, 4, 4
# With normal images gradients fit Float16 at this scale; with faint ones batch normalization makes them some hundred
# times as large.
SCALE, FAINT = 2.0**17, 0.001

_THOR = trainerconfig.THOR | {"frequency": 3, "traceRule": {"updateAbove": 0, "stopBelow": 0, "smoothing": 0}}
_SEARCH = {"contraction": 0.5, "sufficientDecrease": 0.1, "maxTrials": 5}
_PCA = {"components": 4, "lineSearch": _SEARCH, "residual": {"momentum": 0.9, "learningRate": 0.01}}
STAGES: dict[str, dict[str, Any]] = {
    "Momentum": {"algorithm": "Momentum"},
    "AdamW": {"algorithm": "AdamW", "adamw": {}, "learningRate": {"peak": 0.01}},
    "THOR": {"algorithm": "THOR", "thor": _THOR},
    "Adasum of gradients": {"algorithm": "Adasum", "adasum": {"reduce": "Gradient", "ranksPerNode": 1}},
    "Adasum of THOR's changes": {
        "algorithm": "Adasum",
        "adasum": {"reduce": "Delta", "ranksPerNode": 1},
        "thor": _THOR,
    },
    "PCA by BFGS": {"algorithm": "PCA", "pca": _PCA | {"solver": "BFGS"}},
}
# Algorithms that the gang runs; Momentum's reduction and update are the same as THOR's.
TOGETHER = [name for name in STAGES if name != "Momentum"]
WITH_CURVATURE = [name for name, stage in STAGES.items() if "thor" in stage]


class Half(nn.Cell):  # type: ignore[misc]
    """Convolution and batch normalization in Float16, head in Float32: (n, 1, 4, 4) -> logits (n, 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = Conv2d(1, 4, 3, padding=1), BatchNorm(4), nn.Dense(4, CLASSES)
        generator = np.random.default_rng(0)
        for weight in self.trainable_params():
            drawn = generator.standard_normal(weight.shape) / 2
            weight.set_data(Tensor(drawn.astype(np.float32)))

    def construct(self, images: Tensor) -> Tensor:
        features = self.norm.rectified(self.conv(images.astype(mindspore.float16)))
        return self.head(features.astype(mindspore.float32).mean((2, 3)))


def program(stage: str, communicator: Communicator, **changes: Any) -> Program:
    """Program of that stage in Float16, with a moving average of the weights."""
    model = trainerconfig.MODEL | {"numClasses": CLASSES}
    common = trainerconfig.GOOD | {"precision": "Float16", "model": model, "ema": {"decay": 0.9}}
    settings = msgspec.convert(common | STAGES[stage] | changes, config.Config, strict=False)
    network = Half()
    basis = None if settings.pca is None else _basis(network, settings.pca.components, communicator)
    made = Program(settings, network, communicator, basis)
    made.state.warm_start(None)
    return made


def _basis(network: nn.Cell, components: int, communicator: Communicator) -> Basis:
    """This rank's columns of random orthonormal components."""
    numbers = sum(weight.size for weight in network.trainable_params())
    whole = np.linalg.qr(np.random.default_rng(1).standard_normal((numbers, components)))[0].T
    width = subspace.width(numbers, communicator.size)
    padded = np.zeros((components, width * communicator.size), np.float32)
    padded[:, :numbers] = whole
    columns = np.ascontiguousarray(padded[:, communicator.rank * width :][:, :width])
    return Basis(columns, numbers, 0.5)


def batch(step: int, rank: int, faint: bool = False) -> tuple[Tensor, Tensor]:
    """One rank's batch of a step."""
    generator = np.random.default_rng([step, rank])
    labels = generator.integers(0, CLASSES, SAMPLES).astype(np.int32)
    images = generator.standard_normal((SAMPLES, 1, PIXELS, PIXELS)) + labels.reshape(-1, 1, 1, 1)
    return Tensor((images * (FAINT if faint else 1)).astype(np.float32)), Tensor(labels)


def everything(program: Program) -> Arrays:
    """All state that a step may change, by its name in a checkpoint."""
    return {name: parameter.asnumpy().copy() for name, parameter in _named(program).items()}


def put(program: Program, arrays: Arrays) -> None:
    """Restore that state."""
    for name, parameter in _named(program).items():
        parameter.set_data(Tensor(arrays[name]))


def _named(program: Program) -> dict[str, Parameter]:
    state = program.state
    assert program.average is not None
    average = {"average": program.average._average.flat}
    return {**state.weights, **state.statistics, **state.optimizer, **state.of_node, **state.later, **average}
