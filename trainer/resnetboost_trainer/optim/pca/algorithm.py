"""Algorithm PCA: mean-gradient steps within the principal subspace of an earlier stage's snapshots."""

from collections.abc import Sequence

from mindspore import Parameter, Tensor

from resnetboost_trainer.config import Config
from resnetboost_trainer.distributed.communicator import Communicator
from resnetboost_trainer.optim.algorithm import Algorithm, BuildContext, Parts, PrepareContext, Prepared, lower_rate
from resnetboost_trainer.optim.pca import basis
from resnetboost_trainer.optim.pca.optimizer import SubspaceOptimizer
from resnetboost_trainer.optim.pca.report import SubspaceMetrics, SubspaceStep
from resnetboost_trainer.optim.pca.subspace import Basis
from resnetboost_trainer.optim.schedule import StepSchedule
from resnetboost_trainer.optim.update_rule import Batch, MeanReduction


class SubspaceUpdate(MeanReduction):
    """The mean gradient and one step within the principal subspace, which may evaluate the batch's loss again."""

    def __init__(
        self,
        parameters: Sequence[Parameter],
        optimizer: SubspaceOptimizer,
        communicator: Communicator,
        summed: bool = False,
    ) -> None:
        super().__init__(parameters, communicator, summed)
        self.optimizer = optimizer

    def update(self, gradients: Tensor, batch: Batch, learning_rate: float) -> SubspaceStep:
        """See `UpdateRule`."""
        return self.optimizer.step(gradients, batch, learning_rate)


def _prepare(context: PrepareContext) -> Prepared:
    assert context.config.pca is not None, "a PCA stage has the block"
    shape = basis.Shape(context.config.pca.components, context.numbers, context.layout)
    found, digest = basis.prepare(context.source, shape, context.communicator)
    return Prepared(found, digest)


def _build(context: BuildContext) -> Parts:
    config, communicator, parameters = context.config, context.communicator, context.parameters
    assert config.pca is not None, "a PCA stage has the block"
    assert isinstance(context.prepared, Basis), "a PCA stage has prepared its basis"
    found = context.prepared
    optimizer = SubspaceOptimizer(
        context.network, context.loss, parameters, config.pca, config.momentum, found, communicator
    )
    return Parts(
        parameters=parameters,
        update_rule=SubspaceUpdate(parameters, optimizer, communicator, context.summed),
        advice=_lower_residual_rate if config.pca.solver == "BFGS" else lower_rate,
        state=optimizer.state(),
        evaluates_again=True,
    )


def _lower_residual_rate(now: StepSchedule) -> str:
    return "within the subspace; lower pca.residual.learningRate, or raise localBatchSize"


def _state_of(config: Config) -> str:
    assert config.pca is not None, "a PCA stage has the block"
    return f"PCA of {config.pca.components} components by {config.pca.solver}"


PCA = Algorithm(build=_build, state_of=_state_of, metrics=(SubspaceMetrics,), prepare=_prepare)
