"""Saves and restores BN's running statistics: for forward passes that must not change them, and for virtual ranks."""

from collections.abc import Sequence

import mindspore
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from numpy.typing import NDArray


class Statistics:
    """BN's running statistics, which every forward pass in training mode changes: `keep` copies, `restore` resets."""

    def __init__(self, network: nn.Cell) -> None:
        live = [p for p in network.get_parameters() if p.name.endswith(("moving_mean", "moving_variance"))]
        kept = [Parameter(Tensor(p.asnumpy()), name=f"kept.{p.name}", requires_grad=False) for p in live]
        self.keep, self.restore = _Copy(live, kept), _Copy(kept, live)


class VirtualStatistics:
    """The running statistics of the virtual ranks of this rank; the network has those of one at a time.

    `rows` are all of them, flat (values,). What the network has between `leave` and `enter` does not matter.
    """

    def __init__(self, live: Sequence[Parameter], count: int) -> None:
        """All begin with what the network has; `live` are its statistics, at least one."""
        self._read, self._write = _Read(live), _Write(live)
        self.rows = [self._read()] * count
        self._kept = list(self.rows)

    def enter(self, virtual: int) -> None:
        """Give the network the statistics of a virtual rank, by its place on this rank."""
        self._write(self.rows[virtual])

    def leave(self, virtual: int) -> None:
        """Take the network's statistics as those of a virtual rank."""
        self.rows[virtual] = self._read()

    def keep(self) -> None:
        """Remember all virtual ranks' statistics, before a step that may be left out."""
        self._kept = list(self.rows)

    def restore(self) -> None:
        """Set all virtual ranks' statistics to the remembered ones."""
        self.rows = list(self._kept)

    @property
    def values(self) -> NDArray[np.float32]:
        """Copies of all statistics, (virtual ranks, values)."""
        return np.stack([row.asnumpy() for row in self.rows])

    @values.setter
    def values(self, values: NDArray[np.float32]) -> None:
        self.rows = [Tensor(row) for row in values]


class _Read(nn.Cell):
    """() -> the values of the parameters as one vector."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        super().__init__(auto_prefix=False)
        self.parameters = ParameterTuple(parameters)

    def construct(self) -> Tensor:
        return ops.concat([parameter.reshape(-1) for parameter in self.parameters])


class _Write(nn.Cell):
    """One vector of all values -> itself; sets the parameters."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        super().__init__(auto_prefix=False)
        self.parameters = ParameterTuple(parameters)
        self.shapes = [tuple(parameter.shape) for parameter in parameters]
        self.sizes = [parameter.size for parameter in parameters]

    def construct(self, flat: Tensor) -> Tensor:
        parts = ops.split(flat, self.sizes)
        for k in range(len(self.sizes)):
            ops.assign(self.parameters[k], parts[k].reshape(self.shapes[k]))
        return flat


class _Copy(nn.Cell):
    """Copies the source parameters' values to the target parameters; no inputs."""

    def __init__(self, source: Sequence[Parameter], target: Sequence[Parameter]) -> None:
        super().__init__(auto_prefix=False)
        self.source, self.target = ParameterTuple(source), ParameterTuple(target)
        self.count = len(source)
        self.done = Tensor([0.0], mindspore.float32)

    def construct(self) -> Tensor:
        for k in range(self.count):
            ops.assign(self.target[k], self.source[k])
        return self.done
