"""Initializes a network's weights by published recipes; independent of the architecture.

`convolution`, with k x k kernels:
    HeNormal          normal, variance 2 / (outputs k k), torchvision's way (He et al. 2015, eq. 14)
    HeNormalFanIn     normal, variance 2 / (inputs k k) (the same, eq. 10)
    XavierUniform     uniform within sqrt(6 / ((inputs + outputs) k k)) (Glorot and Bengio 2010, eq. 16)
    TruncatedNormal   normal, cut at two deviations, variance 1 / (inputs k k) after it, MindSpore's model zoo's way
`head`, the dense layer:
    Uniform           weights and biases within 1 / sqrt(inputs), PyTorch's way
    Normal            deviation 0.01, biases 0 (Goyal et al. 2017, §5.1)
    TruncatedNormal   the same, cut at two deviations, the model zoo's way
`zero_gamma`: the last BN of each block begins with a scale of 0, so that a block begins as its shortcut (Goyal, §5.1).
"""

import math
import re
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn
from numpy.typing import NDArray

from resnetboost_trainer.config import Init

Drawn = NDArray[np.floating[Any]]

# The default, as in releases without the option.
TORCHVISION = Init(convolution="HeNormal", head="Uniform", zero_gamma=False)

HEAD_DEVIATION = 0.01
CUT = 2.0
# Standard deviation of a standard normal truncated at two deviations.
CUT_DEVIATION = 0.87962566103423978


def initialise(network: nn.Cell, seed: int, init: Init = TORCHVISION) -> None:
    """Initialize the convolutions and the dense layer `fc`; other parameters keep their values.

    Each parameter has its own generator, keyed by its name: the same bits in every process.
    """
    for name, parameter in network.parameters_and_names():
        generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, zlib.crc32(name.encode())])))
        if parameter.ndim == 4:  # (out, in, height, width)
            _assign(parameter, _CONVOLUTION[init.convolution](generator, parameter.shape))
        elif name.startswith("fc."):
            _assign(parameter, _head(init, generator, parameter.shape, network.fc.in_channels))
    if init.zero_gamma:
        _zero_gamma(network)


def _he(generator: np.random.Generator, shape: tuple[int, ...]) -> Drawn:
    deviation = math.sqrt(2 / (shape[0] * shape[2] * shape[3]))
    return generator.standard_normal(shape, np.float32) * np.float32(deviation)


def _he_fan_in(generator: np.random.Generator, shape: tuple[int, ...]) -> Drawn:
    return generator.standard_normal(shape, np.float32) * np.float32(math.sqrt(2 / math.prod(shape[1:])))


def _xavier(generator: np.random.Generator, shape: tuple[int, ...]) -> Drawn:
    bound = math.sqrt(6 / ((shape[0] + shape[1]) * shape[2] * shape[3]))
    return generator.uniform(-bound, bound, shape)


def _truncated(generator: np.random.Generator, shape: tuple[int, ...]) -> Drawn:
    return _cut_normal(generator, shape) * (1 / math.sqrt(math.prod(shape[1:])) / CUT_DEVIATION)


_CONVOLUTION: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Drawn]] = {
    "HeNormal": _he,
    "HeNormalFanIn": _he_fan_in,
    "XavierUniform": _xavier,
    "TruncatedNormal": _truncated,
}


def _head(init: Init, generator: np.random.Generator, shape: tuple[int, ...], inputs: int) -> Drawn:
    if init.head == "Uniform":
        bound = 1 / math.sqrt(inputs)
        return generator.uniform(-bound, bound, shape)
    if len(shape) == 1:
        return np.zeros(shape)
    normal = _cut_normal if init.head == "TruncatedNormal" else _normal
    return HEAD_DEVIATION * normal(generator, shape)


def _normal(generator: np.random.Generator, shape: tuple[int, ...]) -> Drawn:
    return generator.standard_normal(shape)


def _cut_normal(generator: np.random.Generator, shape: tuple[int, ...]) -> Drawn:
    """Draw standard normal numbers, redrawing those beyond two deviations."""
    values = generator.standard_normal(shape)
    while (outside := np.abs(values) > CUT).any():
        values[outside] = generator.standard_normal(int(outside.sum()))
    return values


def _zero_gamma(network: nn.Cell) -> None:
    """Set the scale of each block's last BN to 0: bn3 if there is one, else bn2."""
    named = dict(network.parameters_and_names())
    for name, parameter in named.items():
        block = re.fullmatch(r"(layer\d\.\d+)\.bn([23])\.gamma", name)
        if block and (block[2] == "3" or f"{block[1]}.bn3.gamma" not in named):
            _assign(parameter, np.zeros(parameter.shape))


def _assign(parameter: Parameter, values: Drawn) -> None:
    parameter.set_data(Tensor(values.astype(np.float32)))
