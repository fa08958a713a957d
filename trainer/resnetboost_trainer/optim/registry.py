"""All optimization algorithms by the job's field `algorithm`. CONTRIBUTING.md says how to add one."""

from collections.abc import Mapping

from resnetboost_trainer.checkpoint.state import State
from resnetboost_trainer.config import Config
from resnetboost_trainer.metrics.algorithm import AlgorithmMetrics
from resnetboost_trainer.optim.adamw import ADAMW
from resnetboost_trainer.optim.adasum import ADASUM
from resnetboost_trainer.optim.algorithm import Algorithm, BuildContext, Parts, PrepareContext, Prepared
from resnetboost_trainer.optim.lamb import LAMB
from resnetboost_trainer.optim.momentum import MOMENTUM
from resnetboost_trainer.optim.pca.algorithm import PCA
from resnetboost_trainer.optim.thor.algorithm import THOR

ALGORITHMS: Mapping[str, Algorithm] = {
    "Momentum": MOMENTUM,
    "AdamW": ADAMW,
    "LAMB": LAMB,
    "THOR": THOR,
    "Adasum": ADASUM,
    "PCA": PCA,
}

# Of all algorithms, each once, in the order of their columns in metrics.csv.
METRICS: tuple[type[AlgorithmMetrics], ...] = tuple(
    dict.fromkeys(metrics for algorithm in ALGORITHMS.values() for metrics in algorithm.metrics)
)
COLUMNS = tuple(column for metrics in METRICS for column in metrics.COLUMNS)


def build(context: BuildContext) -> tuple[Parts, State]:
    """The parts of the configured algorithm, and the state of the stage. A collective."""
    parts = ALGORITHMS[context.config.algorithm].build(context)
    state = State(context.network, parts.state, context.communicator, parts.node_state, parts.ranks_per_node)
    state.add(parts.optional_state)
    return parts, state


def prepare(context: PrepareContext) -> Prepared:
    """What the configured algorithm prepares before the network is compiled. A collective."""
    prepared = ALGORITHMS[context.config.algorithm].prepare
    return Prepared() if prepared is None else prepared(context)


def state_of(config: Config) -> str:
    """What the optimizer's state in a checkpoint belongs to: another algorithm cannot resume from it."""
    return ALGORITHMS[config.algorithm].state_of(config) + (", averaged" if config.ema is not None else "")


def metrics(config: Config) -> tuple[type[AlgorithmMetrics], ...]:
    """Columns and series of the configured algorithm."""
    return ALGORITHMS[config.algorithm].metrics
