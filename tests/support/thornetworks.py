"""Small test networks with every kind of layer THOR supports; weights are the same in every process."""

from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor, nn, ops
from numpy.typing import NDArray

from resnetboost_trainer.models.layers import conv

Floats = NDArray[np.float32]

CLASSES = 5
TOKENS = 6
CHANNELS, HEIGHT, WIDTH = 4, 7, 6
CONVOLUTIONS: dict[str, dict[str, Any]] = {
    "pixel": {"kernel_size": 1, "pad_mode": "valid"},
    "pixel strided": {"kernel_size": 1, "stride": 2, "pad_mode": "valid"},
    "padded": {"kernel_size": 3, "pad_mode": "pad", "padding": 1, "has_bias": True},
    "column": {"kernel_size": (3, 1), "pad_mode": "valid"},
    "strides of 2 and 1": {"kernel_size": (1, 2), "stride": (2, 1), "pad_mode": "same"},
    "padded unequally": {"kernel_size": 3, "stride": 2, "pad_mode": "pad", "padding": (2, 0, 1, 3)},
    "same": {"kernel_size": 3, "pad_mode": "same"},
    "same strided": {"kernel_size": (4, 3), "stride": 2, "pad_mode": "same"},
    "dilated": {"kernel_size": 3, "dilation": 2, "pad_mode": "pad", "padding": 2},
    "same dilated": {"kernel_size": (2, 3), "dilation": (3, 2), "pad_mode": "same"},
    "groups": {"kernel_size": 3, "group": 2, "pad_mode": "pad", "padding": 1},
    "depthwise": {"kernel_size": 3, "group": CHANNELS, "stride": 2, "pad_mode": "same"},
}
# THOR's names of the layers of `Branches`.
NAMES = {f"convolutions.{k}": name for k, name in enumerate(CONVOLUTIONS)} | {
    name: name for name in ("own", "dense", "rows", "embedding", "norm")
}


class Branches(nn.Cell):  # type: ignore[misc]
    """One of every kind of layer side by side, (n, 4, 7, 6) -> logits (n, 5); a frozen layer sums them."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.CellList([_convolution(**settings) for settings in CONVOLUTIONS.values()])
        self.own = conv.Conv2d(CHANNELS, 3, 3, 2, 1)
        self.dense = nn.Dense(CHANNELS * HEIGHT * WIDTH, 3)
        self.rows = nn.Dense(WIDTH, 4, has_bias=False)
        self.embedding = nn.Embedding(TOKENS, 5)
        self.norm = nn.LayerNorm((WIDTH,))
        draw(self)
        widths = [int(np.prod(output.shape[1:])) for output in self._outputs(Tensor(images(1)))]
        self.heads = nn.CellList([nn.Dense(width, CLASSES, has_bias=False) for width in widths])
        draw(self.heads)
        for parameter in self.heads.get_parameters():
            parameter.requires_grad = False

    def construct(self, x: Tensor) -> Tensor:
        outputs = self._outputs(x)
        logits = self.heads[0](ops.tanh(outputs[0]).reshape(x.shape[0], -1))
        for k in range(1, len(outputs)):
            logits = logits + self.heads[k](ops.tanh(outputs[k]).reshape(x.shape[0], -1))
        return logits

    def _outputs(self, x: Tensor) -> list[Tensor]:
        outputs = []
        for k in range(len(self.convolutions)):
            outputs.append(self.convolutions[k](x))
        outputs.append(self.own(x))
        outputs.append(self.dense(x.reshape(x.shape[0], -1) / 4))
        outputs.append(self.rows(x))
        outputs.append(self.embedding((ops.abs(x[:, 0, 0]) * 3).astype(mindspore.int32) % TOKENS))
        outputs.append(self.norm(x[:, 1]))
        return outputs


class Chain(nn.Cell):  # type: ignore[misc]
    """A few layers of different kinds in sequence, without BN: (n, 4, 7, 6) -> logits (n, 5)."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = nn.Conv2d(CHANNELS, 6, 3, has_bias=True)
        self.depthwise = nn.Conv2d(6, 6, 3, stride=2, group=6)
        self.rows = nn.Dense(12, 8)
        self.norm = nn.LayerNorm((8,))
        self.head = nn.Dense(48, CLASSES)
        draw(self)

    def construct(self, x: Tensor) -> Tensor:
        y = ops.tanh(self.depthwise(ops.tanh(self.plain(x))))
        y = ops.tanh(self.norm(self.rows(y.reshape(x.shape[0], 6, 12))))
        return self.head(y.reshape(x.shape[0], 48))


class Paired(nn.Cell):  # type: ignore[misc]
    """A layer with given output gradients: (n, [x, d]) -> (n, 1), each sample's <layer(x), d>."""

    def __init__(self, layer: nn.Cell, inputs: tuple[int, ...]) -> None:
        super().__init__()
        self.layer, self.inputs, self.split = layer, inputs, int(np.prod(inputs))

    def construct(self, pairs: Tensor) -> Tensor:
        outputs = self.layer(pairs[:, : self.split].reshape((pairs.shape[0], *self.inputs)))
        return (outputs.reshape(pairs.shape[0], -1) * pairs[:, self.split :]).sum(1, keepdims=True)


def paired(x: NDArray[Any], d: NDArray[Any]) -> Floats:
    """Input of `Paired` from a layer's inputs and output gradients."""
    both: Floats = np.concatenate([x.reshape(len(x), -1), d.reshape(len(d), -1)], axis=1).astype(np.float32)
    return both


def mean(logits: Tensor, labels: Tensor) -> Tensor:
    """Loss of `Paired`."""
    return logits.mean()


def draw(network: nn.Cell, scale: float = 1.0, seed: int = 7) -> None:
    """Set all parameters to normal values of variance scale^2 / inputs."""
    generator = np.random.default_rng(seed)
    for parameter in network.get_parameters():
        values = generator.standard_normal(parameter.shape) * scale / np.sqrt(np.prod(parameter.shape[1:]))
        parameter.set_data(Tensor(values.astype(np.float32)))


def images(samples: int, seed: int = 0) -> Floats:
    """Inputs of `Branches`."""
    return np.random.default_rng(seed).standard_normal((samples, CHANNELS, HEIGHT, WIDTH), np.float32)


def labels(samples: int) -> NDArray[np.int32]:
    return (np.arange(samples) % CLASSES).astype(np.int32)


def _convolution(**settings: Any) -> nn.Cell:
    return nn.Conv2d(CHANNELS, CHANNELS if settings.get("group", 1) > 1 else 3, **settings)
