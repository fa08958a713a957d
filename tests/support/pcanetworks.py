"""Small networks for tests of the PCA stage, and a program that trains one in a given subspace."""

from typing import Any

import msgspec
import numpy as np
from mindspore import Tensor, nn, ops
from numpy.typing import NDArray

from resnetboost_trainer import config
from resnetboost_trainer.distributed.communicator import Communicator
from resnetboost_trainer.engine.train_step import Program
from resnetboost_trainer.optim.pca import subspace
from resnetboost_trainer.optim.pca.subspace import Basis
from support import pcareference, trainerconfig

Floats = NDArray[np.float32]

INPUTS, HIDDEN, CLASSES = 6, 5, 3
REFERENCE = pcareference.Network(INPUTS, HIDDEN, CLASSES)
NUMBERS = sum(REFERENCE.sizes)


class Tanh(nn.Cell):  # type: ignore[misc]
    """The reference's network, (n, 6) -> logits (n, 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Dense(INPUTS, HIDDEN)
        self.last = nn.Dense(HIDDEN, CLASSES)
        put(self, start(NUMBERS))

    def construct(self, x: Tensor) -> Tensor:
        return self.last(ops.tanh(self.hidden(x)))


class Tiny(nn.Cell):  # type: ignore[misc]
    """Six weights, so that the last two of five ranks have none: (n, 6) -> logits (n, 3) of the first two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.only = nn.Dense(2, CLASSES, has_bias=False)
        put(self, start(2 * CLASSES))

    def construct(self, x: Tensor) -> Tensor:
        return self.only(x[:, :2])


class Normed(nn.Cell):  # type: ignore[misc]
    """A network with BN, (n, 6) -> logits (n, 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Dense(INPUTS, HIDDEN)
        self.norm = nn.BatchNorm1d(HIDDEN)
        self.last = nn.Dense(HIDDEN, CLASSES)
        put(self, start(vector(self).size))

    def construct(self, x: Tensor) -> Tensor:
        return self.last(ops.tanh(self.norm(self.hidden(x))))


def start(numbers: int) -> Floats:
    return np.random.default_rng(3).standard_normal(numbers).astype(np.float32) / 2


def vector(network: nn.Cell) -> Floats:
    """All trainable weights in the network's order."""
    return np.concatenate([weight.asnumpy().reshape(-1) for weight in network.trainable_params()])


def put(network: nn.Cell, weights: NDArray[Any]) -> None:
    """Set all trainable weights."""
    parameters = list(network.trainable_params())
    pieces = np.split(weights.astype(np.float32), np.cumsum([parameter.size for parameter in parameters])[:-1])
    for parameter, piece in zip(parameters, pieces, strict=True):
        parameter.set_data(Tensor(piece.reshape(parameter.shape)))


def statistics(network: nn.Cell) -> dict[str, Floats]:
    """BN's running statistics, by layer and kind: a program gives parameters longer names."""
    found = (p for p in network.get_parameters() if "moving" in p.name)
    return {".".join(p.name.split(".")[-2:]): p.asnumpy().copy() for p in found}


def batch(samples: int, step: int) -> tuple[Floats, NDArray[np.int32]]:
    """Images as rows, of a few classes, a new batch for each step."""
    generator = np.random.default_rng([step, 11])
    labels = generator.integers(0, CLASSES, samples).astype(np.int32)
    centres = np.random.default_rng(5).standard_normal((CLASSES, INPUTS))
    return (centres[labels] + generator.standard_normal((samples, INPUTS))).astype(np.float32), labels


def settings(
    components: int,
    rule: pcareference.Settings,
    solver: str = "BFGS",
    **changes: Any,
) -> config.Config:
    """Config of a stage with this network and so few classes."""
    search = {"contraction": rule.rho, "sufficientDecrease": rule.sigma, "maxTrials": rule.most}
    residual = {"momentum": rule.gamma, "learningRate": rule.alpha}
    pca = {"components": components, "solver": solver, "lineSearch": search, "residual": residual}
    model = trainerconfig.MODEL | {"numClasses": CLASSES}
    whole = trainerconfig.GOOD | {"algorithm": "PCA", "pca": pca, "model": model, "labelSmoothing": 0}
    whole |= momentum() | changes
    return msgspec.convert(whole, config.Config, strict=False)


def momentum(weight_decay: float = 0.0, momentum: float = 0.9, nesterov: bool = False) -> dict[str, Any]:
    return {"momentum": {"momentum": momentum, "weightDecay": weight_decay, "nesterov": nesterov}}


def program(network: nn.Cell, config: config.Config, components: NDArray[Any], communicator: Communicator) -> Program:
    """Program in which each rank has its columns of the padded components (k, M)."""
    numbers = components.shape[1]
    wide = subspace.width(numbers, communicator.size)
    padded = np.zeros((len(components), wide * communicator.size), np.float32)
    padded[:, :numbers] = components
    columns = np.ascontiguousarray(padded[:, communicator.rank * wide :][:, :wide])
    return Program(config, network, communicator, Basis(columns, numbers, 0.875))
