"""Algorithm Momentum: Momentum SGD by the mean gradient, with LARS and gradient clipping as options."""

from collections.abc import Sequence

from mindspore import Parameter, nn

from resnetboost_trainer.config import Config
from resnetboost_trainer.optim.algorithm import Algorithm, BuildContext, Parts, lower_rate
from resnetboost_trainer.optim.clip import Clipped
from resnetboost_trainer.optim.lars import Lars
from resnetboost_trainer.optim.sgd import Momentum
from resnetboost_trainer.optim.update_rule import MeanUpdate


def optimizer(parameters: Sequence[Parameter], config: Config) -> tuple[nn.Cell, list[Parameter]]:
    """The optimizer of flat gradients that a stage configures, and its state."""
    momentum = (
        Momentum(parameters, config.momentum) if config.lars is None else Lars(parameters, config.momentum, config.lars)
    )
    clipped = momentum if config.clip_norm is None else Clipped(momentum, config.clip_norm)
    return clipped, momentum.state()


def _build(context: BuildContext) -> Parts:
    parameters = context.parameters
    cell, state = optimizer(parameters, context.config)
    rule = MeanUpdate(parameters, cell, context.communicator, context.summed)
    return Parts(parameters=parameters, update_rule=rule, advice=lower_rate, state=state)


MOMENTUM = Algorithm(build=_build, state_of=lambda config: config.algorithm)
