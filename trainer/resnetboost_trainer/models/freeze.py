"""Freezes parts of a network: their weights get no gradient, so optimizers never see them.

BN in a frozen part works as in evaluation and keeps its running statistics: a layer that no longer learns must not
drift with the batches either (like torchvision's FrozenBatchNorm2d).
"""

from collections.abc import Sequence

from mindspore import nn

from resnetboost_trainer.models import arch
from resnetboost_trainer.models.layers.conv import Conv2d
from resnetboost_trainer.models.trunk import separate


def freeze(network: nn.Cell, parts: Sequence[str]) -> None:
    """Freeze the parts, named as by `arch.part`; call this before building anything from the network."""
    if parts:
        separate(network)
    for name, parameter in network.parameters_and_names():
        if arch.part(name) in parts:
            parameter.requires_grad = False
    for name, cell in network.cells_and_names():
        if "moving_mean" in cell._params and arch.part(name) in parts:
            cell.use_batch_statistics = False  # MindSpore's own switch
        if parts and isinstance(cell, Conv2d):
            cell.gradients_apart()


def moving(network: nn.Cell) -> set[str]:
    """Return the names of the BN statistics that training changes: all except those of frozen layers."""
    named = dict(network.parameters_and_names())
    return {name for name in named if name.endswith(arch.STATISTICS) and _learns(named, name)}


def _learns(named: dict[str, object], statistic: str) -> bool:
    """True if the BN with that statistic is trained; a layer without a scale cannot be frozen."""
    scale = named.get(f"{statistic.rpartition('.')[0]}.gamma")
    return scale is None or bool(getattr(scale, "requires_grad", True))
