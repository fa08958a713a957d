"""Virtual ranks: the ranks that a training is defined by, of which a smaller gang's ranks do several ones' work each.

Rank r of n does the work of the virtual ranks r k .. r k + k - 1 of n k, one after another, as k times as many micro
batches. Global batch, micro batches and all that is averaged over the ranks are those of n k ranks; only the order of
floating-point sums differs.
"""

import msgspec

from resnetboost_trainer.config import Config
from resnetboost_trainer.failures import ConfigError


class VirtualRanks(msgspec.Struct, frozen=True):
    """`count` virtual ranks, `each` of them neighbours on a rank."""

    count: int
    each: int


def of(config: Config, world_size: int) -> VirtualRanks:
    """Return the virtual ranks of a gang; one per rank unless the config has another number.

    Raises ConfigError for a number that does not divide evenly, and for an algorithm whose result depends on the ranks.
    """
    count = config.virtual_ranks or world_size
    if count == world_size:
        return VirtualRanks(count, 1)
    field = f"virtualRanks: {count}"
    if count % world_size:
        divisors = ", ".join(str(number) for number in range(1, count + 1) if count % number == 0)
        raise ConfigError(f"{field} ranks' work cannot be divided evenly among {world_size}; use one of {divisors}")
    if config.adasum is not None:
        reason = f"Adasum of {world_size} ranks is another sum than that of {count}"
        raise ConfigError(f"{field}: {reason}; give this job all of its devices, or use another algorithm")
    if config.sync_batch_norm:
        reason = f"syncBatchNorm needs the images of all {count} ranks at once, and {world_size} would take turns"
        raise ConfigError(f"{field}: {reason}; give this job all of its devices, or leave syncBatchNorm out")
    return VirtualRanks(count, count // world_size)
