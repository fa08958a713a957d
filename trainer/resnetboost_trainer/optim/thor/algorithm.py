"""Algorithm THOR: the mean gradient, preconditioned by Kronecker factors, and one step of Momentum SGD."""

from resnetboost_trainer.config import Config
from resnetboost_trainer.optim import momentum
from resnetboost_trainer.optim.algorithm import Algorithm, BuildContext, Parts
from resnetboost_trainer.optim.schedule import StepSchedule
from resnetboost_trainer.optim.thor.kfac import KFACPreconditioner
from resnetboost_trainer.optim.thor.report import CurvatureMetrics
from resnetboost_trainer.optim.update_rule import MeanUpdate


def curvature(context: BuildContext) -> KFACPreconditioner | None:
    """Build the preconditioner of a stage that configures `thor`; None for other stages."""
    settings = context.config.thor
    if settings is None:
        return None
    return KFACPreconditioner(context.network, context.parameters, settings, context.communicator)


def raise_damping(now: StepSchedule) -> str:
    """Return the advice in the error for numbers that are not finite."""
    values = f"at learning rate {now.learning_rate:.4g} and damping {now.damping:.4g}"
    return (
        f"{values}; raise thor.damping.initial, set thor.clipNorm; "
        "lower learningRate.peak or lengthen learningRate.warmupEpochs"
    )


def state_of(config: Config) -> str:
    """Return a string that identifies the algorithm's state in checkpoints."""
    assert config.thor is not None, "a THOR stage has the block"
    return f"THOR in blocks of {config.thor.block_size}"


def _build(context: BuildContext) -> Parts:
    kfac = curvature(context)
    assert kfac is not None, "a THOR stage has the block"
    first_order = momentum.optimizer(kfac.parameters, context.config)
    rule = MeanUpdate(kfac.parameters, kfac.optimizer(first_order), context.communicator, context.summed)
    return Parts(
        parameters=kfac.parameters,
        update_rule=rule,
        advice=raise_damping,
        state=[*first_order.state(), *kfac.state()],
        optional_state=kfac.optional_state(),
        curvature=kfac,
    )


THOR = Algorithm(build=_build, state_of=state_of, metrics=(CurvatureMetrics,))
