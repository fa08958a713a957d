"""Algorithm Momentum: Momentum SGD by the mean gradient, with LARS and gradient clipping as options."""

from collections.abc import Sequence

from mindspore import Parameter

from resnetboost_trainer.config import Config
from resnetboost_trainer.optim.algorithm import Algorithm, BuildContext, Parts, by_mean_gradient
from resnetboost_trainer.optim.groups import Groups
from resnetboost_trainer.optim.lars import Lars
from resnetboost_trainer.optim.sgd import Momentum


def optimizer(parameters: Sequence[Parameter], config: Config, own: Groups | None = None) -> Momentum | Lars:
    """The optimizer of flat gradients that a stage with momentum configures."""
    if config.lars is None:
        return Momentum(parameters, config.momentum, own)
    return Lars(parameters, config.momentum, config.lars, own)


def _build(context: BuildContext) -> Parts:
    return by_mean_gradient(context, optimizer(context.parameters, context.config, context.groups))


MOMENTUM = Algorithm(build=_build, state_of=lambda config: config.algorithm)
