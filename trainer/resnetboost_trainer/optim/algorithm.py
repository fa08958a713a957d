"""What an optimization algorithm consists of: its module defines an `Algorithm`, `registry` lists them all."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
from mindspore import Parameter, nn

from resnetboost_trainer.checkpoint.resume import Source
from resnetboost_trainer.config import Config
from resnetboost_trainer.distributed import virtual_ranks
from resnetboost_trainer.distributed.communicator import Communicator
from resnetboost_trainer.metrics.algorithm import AlgorithmMetrics
from resnetboost_trainer.optim import groups
from resnetboost_trainer.optim.clip import Clipped
from resnetboost_trainer.optim.groups import Groups
from resnetboost_trainer.optim.schedule import StepSchedule
from resnetboost_trainer.optim.thor.kfac import KFACPreconditioner
from resnetboost_trainer.optim.update_rule import MeanUpdate, UpdateRule


class BuildContext(msgspec.Struct, frozen=True):
    """What an algorithm is built from. `prepared` is what its `prepare` returned, if it has one."""

    config: Config
    network: nn.Cell
    loss: Callable[..., Any]
    communicator: Communicator
    prepared: object = None

    @property
    def parameters(self) -> Sequence[Parameter]:
        """The trained parameters, in the network's order."""
        return list(self.network.trainable_params())

    @property
    def groups(self) -> Groups:
        """The group of each of them. Raises ConfigError for a pattern that matches none."""
        return groups.of(self.config, self.network, self.parameters)

    @property
    def summed(self) -> bool:
        """Whether buckets sum the gradients over the ranks during the backward pass.

        Not if a rank does the work of several virtual ranks: then their gradients are summed first.
        """
        each = virtual_ranks.of(self.config, self.communicator.size).each
        return self.config.all_reduce_fusion is not None and each == 1


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """What an algorithm builds for a stage.

    `parameters` are in the order of the flat gradient. `advice` says what helps when numbers of a step are not finite.
    `state` goes into checkpoints and is the same on every rank; each node of `ranks_per_node` neighbouring ranks has a
    `node_state` of its own; `optional_state` may be missing in older checkpoints. `curvature` rescales the gradients
    and needs a pass that captures the layers' inputs. `evaluates_again`: an update computes the batch's loss once more.
    """

    parameters: Sequence[Parameter]
    update_rule: UpdateRule
    advice: Callable[[StepSchedule], str]
    state: Sequence[Parameter]
    node_state: Sequence[Parameter] = ()
    ranks_per_node: int = 1
    optional_state: Sequence[Parameter] = ()
    curvature: KFACPreconditioner | None = None
    evaluates_again: bool = False


class PrepareContext(msgspec.Struct, frozen=True):
    """What an algorithm may prepare itself from before the stage begins.

    `numbers` counts those of all trained weights, and `layout` names their order. `source` is where checkpoints are.
    """

    config: Config
    source: Source
    numbers: int
    layout: str
    communicator: Communicator


class Prepared(msgspec.Struct, frozen=True):
    """What `prepare` returned, and at the leader a digest of what it was made from, for the manifest."""

    value: object = None
    digest: str = ""


class Algorithm(msgspec.Struct, frozen=True, kw_only=True):
    """A value of the job's field `algorithm`.

    `build` is a collective. `state_of` names what the state in a checkpoint belongs to: another algorithm cannot resume
    from it. `metrics` are all columns and series it may add. `prepare`, a collective too, runs before the network is
    compiled.
    """

    build: Callable[[BuildContext], Parts]
    state_of: Callable[[Config], str]
    metrics: tuple[type[AlgorithmMetrics], ...] = ()
    prepare: Callable[[PrepareContext], Prepared] | None = None


def lower_rate(now: StepSchedule) -> str:
    """Advice of algorithms that only have a learning rate."""
    rate = f"at learning rate {now.learning_rate:.4g}"
    return f"{rate}; lower learningRate.peak or lengthen learningRate.warmupEpochs"


class FirstOrder(Protocol):
    """A cell that makes one update: (flat gradient and what follows it, learning rate) -> learning rate."""

    count: int

    def state(self) -> list[Parameter]:
        """State for checkpoints."""
        ...


def by_mean_gradient(context: BuildContext, optimizer: FirstOrder) -> Parts:
    """The parts of an algorithm that makes updates by the mean gradient, clipped if the stage says so."""
    clip_norm = context.config.clip_norm
    cell = optimizer if clip_norm is None else Clipped(optimizer, clip_norm)
    rule = MeanUpdate(context.parameters, cell, context.communicator, context.summed)
    return Parts(parameters=context.parameters, update_rule=rule, advice=lower_rate, state=optimizer.state())
