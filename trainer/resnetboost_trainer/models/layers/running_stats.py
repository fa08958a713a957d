"""Saves and restores BN's running statistics, for forward passes that must not change them."""

from collections.abc import Sequence

import mindspore
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops


class Statistics:
    """BN's running statistics, which every forward pass in training mode changes: `keep` copies, `restore` resets."""

    def __init__(self, network: nn.Cell) -> None:
        live = [p for p in network.get_parameters() if p.name.endswith(("moving_mean", "moving_variance"))]
        kept = [Parameter(Tensor(p.asnumpy()), name=f"kept.{p.name}", requires_grad=False) for p in live]
        self.keep, self.restore = _Copy(live, kept), _Copy(kept, live)


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
