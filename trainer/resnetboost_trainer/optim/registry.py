"""What a training step is made of under each algorithm: built here, used by the program without asking for names."""

from collections.abc import Callable, Sequence

import msgspec
from mindspore import Parameter, nn

from resnetboost_trainer.checkpoint.state import State
from resnetboost_trainer.config import Config, Thor
from resnetboost_trainer.distributed.adasum.delta import Apply, Change
from resnetboost_trainer.distributed.communicator import Communicator
from resnetboost_trainer.engine.loss import CrossEntropy
from resnetboost_trainer.optim.clip import Clipped
from resnetboost_trainer.optim.lars import Lars
from resnetboost_trainer.optim.momentum import Momentum
from resnetboost_trainer.optim.pca.descent import Basis, Descent
from resnetboost_trainer.optim.schedule import Moment
from resnetboost_trainer.optim.thor.curvature import Curvature
from resnetboost_trainer.optim.update_rule import Adaptive, Average, Combination, Within


class Parts(msgspec.Struct, frozen=True):
    """`parameters` in the order of the flat gradient; `curvature` where THOR rescales it.

    `remedy` says what helps against numbers that are not finite at some moment.
    """

    parameters: Sequence[Parameter]
    combination: Combination
    state: State
    remedy: Callable[[Moment], str]
    curvature: Curvature | None = None


class Given(msgspec.Struct, frozen=True):
    """What every algorithm is built upon; the basis is there for PCA alone."""

    config: Config
    network: nn.Cell
    entropy: CrossEntropy
    communicator: Communicator
    basis: Basis | None

    @property
    def parameters(self) -> Sequence[Parameter]:
        """Those that are trained, in the network's order."""
        return list(self.network.trainable_params())

    @property
    def summed(self) -> bool:
        """Whether buckets sum the gradients over the ranks while they are made."""
        return self.config.all_reduce_fusion is not None


def parts(given: Given) -> Parts:
    """The parts of the configured algorithm. A collective."""
    found = _BUILDERS[given.config.algorithm](given)
    if found.curvature is not None:
        found.state.add(found.curvature.newer_state())
    return found


def _averaging(given: Given) -> Parts:
    """Momentum, or THOR: both take the mean of the gradients."""
    curvature = _curvature(given, given.config.thor)
    parameters = curvature.parameters if curvature is not None else given.parameters
    config = given.config
    if config.lars is None:
        momentum: Momentum | Lars = Momentum(parameters, config.momentum)
    else:
        momentum = Lars(parameters, config.momentum, config.lars)
    optimizer = momentum if config.clip_norm is None else Clipped(momentum, config.clip_norm)
    combination = Average(parameters, _preconditioned(optimizer, curvature), given.communicator, given.summed)
    state = State(given.network, momentum.state() + _state(curvature), given.communicator)
    return Parts(parameters, combination, state, _lower_rate if curvature is None else _raise_damping, curvature)


def _adasum(given: Given) -> Parts:
    config, communicator = given.config, given.communicator
    assert config.adasum is not None, "an Adasum stage has the block"
    curvature = _curvature(given, config.thor)
    parameters = curvature.parameters if curvature is not None else given.parameters
    of_changes, ranks_per_node = config.adasum.reduce == "Delta", config.adasum.ranks_per_node
    momentum = (Change if of_changes else Momentum)(parameters, config.momentum)
    apply = Apply(momentum) if of_changes else None
    optimizer = _preconditioned(momentum, curvature)
    combination = Adaptive(parameters, optimizer, communicator, ranks_per_node, apply)
    if of_changes:  # each node goes on with a momentum of its own
        of_nodes = momentum.state()
        state = State(given.network, _state(curvature), communicator, of_nodes, ranks_per_node)
    else:
        state = State(given.network, momentum.state() + _state(curvature), communicator)
    return Parts(parameters, combination, state, _lower_rate if curvature is None else _raise_damping, curvature)


def _pca(given: Given) -> Parts:
    config, communicator, parameters = given.config, given.communicator, given.parameters
    assert config.pca is not None and given.basis is not None, "a PCA stage has the block and a basis"
    descent = Descent(given.network, given.entropy, parameters, config.pca, config.momentum, given.basis, communicator)
    combination = Within(parameters, descent, communicator, given.summed)
    remedy = _leave_less if config.pca.solver == "BFGS" else _lower_rate
    return Parts(parameters, combination, State(given.network, descent.state(), communicator), remedy)


_BUILDERS = {"Momentum": _averaging, "THOR": _averaging, "Adasum": _adasum, "PCA": _pca}


def _curvature(given: Given, settings: Thor | None) -> Curvature | None:
    return None if settings is None else Curvature(given.network, given.parameters, settings, given.communicator)


def _preconditioned(momentum: nn.Cell, curvature: Curvature | None) -> nn.Cell:
    return momentum if curvature is None else curvature.optimizer(momentum)


def _state(curvature: Curvature | None) -> list[Parameter]:
    return [] if curvature is None else curvature.state()


def _lower_rate(moment: Moment) -> str:
    rate = f"at learning rate {moment.learning_rate:.4g}"
    return f"{rate}; lower learningRate.peak or lengthen learningRate.warmupEpochs"


def _raise_damping(moment: Moment) -> str:
    values = f"at learning rate {moment.learning_rate:.4g} and damping {moment.damping:.4g}"
    return (
        f"{values}; raise thor.damping.initial, set thor.clipNorm; "
        "lower learningRate.peak or lengthen learningRate.warmupEpochs"
    )


def _leave_less(moment: Moment) -> str:
    return "within the subspace; lower pca.residual.learningRate, or raise localBatchSize"
