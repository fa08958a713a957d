"""What the self-checks compute: a small network on made-up images, three steps by each algorithm."""

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from resnetboost_trainer import config
from resnetboost_trainer.config import Config

Floats = NDArray[np.float32]

STEPS = 3
SAMPLES, PIXELS, CHANNELS, CLASSES = 16, 16, 3, 10  # of a rank's batch
BLOCKS = 1  # of each of the network's three groups: every kind of layer, and little to compile
COMPONENTS = 4

_COMMON: dict[str, Any] = {
    "job": {"name": "doctor", "namespace": "default", "uid": "doctor"},
    "stage": "doctor",
    "attempt": 0,
    "model": {"name": "resnet20", "numClasses": CLASSES},
    "dataset": {"name": "Synthetic"},
    "epochs": 1,
    "localBatchSize": SAMPLES,
    # So low that the differences of two devices' roundings do not grow from step to step.
    "learningRate": {"schedule": "Constant", "peak": 0.01},
    "momentum": {"momentum": 0.9, "weightDecay": 1e-4},
}
# THOR renews its factors in every step here: its trace rule compares numbers that two devices round differently.
_THOR = {"frequency": 1, "traceRule": {"updateAbove": 0}}
_PCA = {"components": COMPONENTS, "solver": "SGD"}  # a line search may take another length after another rounding
_OWN: dict[str, dict[str, Any]] = {
    "Momentum": {},
    "THOR": {"thor": _THOR},
    "Adasum": {"adasum": {}},
    "PCA": {"pca": _PCA},
}
ALGORITHMS = tuple(_OWN)


class Numbers(msgspec.Struct, frozen=True):
    """What an algorithm's steps came to on rank 0; the same on every rank. `moved` is how far the weights went."""

    losses: tuple[float, ...]
    gradient_norms: tuple[float, ...]
    moved: float
    seconds: float


class Results(msgspec.Struct, frozen=True):
    """What a gang found, as far as it came. `reduced` is the sum that the all-reduce gave, in every element alike.

    `failed` is the error of an algorithm that could not be computed; the others may be.
    """

    device: str
    ranks: int
    reduced: float | None = None
    megabytes_per_second: float | None = None
    algorithms: dict[str, Numbers] = {}
    failed: dict[str, str] = {}


def settings(algorithm: str, device: str) -> Config:
    """The configuration of a stage by that algorithm."""
    return config.parse({**_COMMON, "algorithm": algorithm, "device": {"type": device}, **_OWN[algorithm]})


def batch(step: int, rank: int) -> tuple[Floats, NDArray[np.int32]]:
    """Images (n, c, h, w) of a rank in a step, around a pattern of their class, and their labels."""
    draw = np.random.default_rng([step, rank])
    labels = draw.integers(0, CLASSES, SAMPLES).astype(np.int32)
    patterns = np.random.default_rng(CLASSES).standard_normal((CLASSES, CHANNELS, PIXELS, PIXELS))
    images = patterns[labels] + 0.5 * draw.standard_normal((SAMPLES, CHANNELS, PIXELS, PIXELS))
    return images.astype(np.float32), labels


def components(numbers: int) -> Floats:
    """Orthonormal rows (k, M), in place of the principal components of a training's snapshots."""
    drawn = np.random.default_rng(COMPONENTS).standard_normal((numbers, COMPONENTS))
    rows: Floats = np.linalg.qr(drawn)[0].T.astype(np.float32)
    return np.ascontiguousarray(rows)


def expected_sum(ranks: int) -> float:
    """What an all-reduce of each rank's number, counted from 1, gives."""
    return ranks * (ranks + 1) / 2
