"""Parts of a network that do not learn: their weights get no gradient, so no algorithm ever sees them.

BN in a frozen part works as in evaluation, with its running statistics, which stay as they are: a layer that nobody
adapts any more must not drift with the batches either (the way of torchvision's FrozenBatchNorm2d).
"""

from collections.abc import Sequence

from mindspore import nn

from resnetboost_trainer.models import arch
from resnetboost_trainer.models.layers.conv import Conv2d


def freeze(network: nn.Cell, parts: Sequence[str]) -> None:
    """Freeze those parts, as `arch.part` names them; call it before anything is built upon the network."""
    for name, parameter in network.parameters_and_names():
        if arch.part(name) in parts:
            parameter.requires_grad = False
    for name, cell in network.cells_and_names():
        if "moving_mean" in cell._params and arch.part(name) in parts:
            cell.use_batch_statistics = False  # MindSpore's own switch
        if parts and isinstance(cell, Conv2d):
            cell.gradients_apart()


def moving(network: nn.Cell) -> set[str]:
    """Names of the BN statistics that training changes: all but those of frozen layers."""
    named = dict(network.parameters_and_names())
    return {name for name in named if name.endswith(arch.STATISTICS) and _learns(named, name)}


def _learns(named: dict[str, object], statistic: str) -> bool:
    """Whether the BN with that statistic does; what has a scale nowhere near is nobody's frozen layer."""
    scale = named.get(f"{statistic.rpartition('.')[0]}.gamma")
    return scale is None or bool(getattr(scale, "requires_grad", True))
