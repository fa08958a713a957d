"""One rank of a script that uses THOR directly: writes all its state, and which blocks it inverted, to a file."""

import hashlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from resnetboost_trainer import config
from resnetboost_trainer.distributed.communicator import Communicator, Rendezvous, await_coordinator

environment = config.environment()
rendezvous = Rendezvous(environment)

from mindspore import Tensor, communication, nn  # noqa: E402  after the coordinator has begun to import MindSpore

from resnetboost_trainer.engine import device  # noqa: E402
from resnetboost_trainer.optim.thor import (  # noqa: E402
    exchange,
    inverse,
)
from resnetboost_trainer.optim.thor.training import THOR  # noqa: E402
from support import thornetworks  # noqa: E402

GLOBAL_BATCH, STEPS = 12, 7
RULE = (0.1, 0.03, 0.5)
DAMPINGS = {0: 0.03, 2: 0.023, 4: 0.016, 6: 0.016 * 0.7}


def damping(step: int) -> float:
    """A damping that falls, so that at step 4 kept and stopped layers are due because of it.

    At step 6 only the first rank's trace rule would keep them, as if processors rounded differently.
    """
    unlike = (5e-6 if environment.rank == 0 else -1e-6) if step == 6 else 0.0
    return DAMPINGS[step - step % 2] * (1 + unlike)


def marks(blocks: Any) -> list[str]:
    return [hashlib.sha256(block.tobytes()).hexdigest() for block in blocks]


def watched_invert(blocks: Any, dampings: Any) -> Any:
    own_blocks.extend(marks(blocks))
    return invert(blocks, dampings)


def watched_inverted(factors: Sequence[exchange.Damped], communicator: Communicator) -> Any:
    all_blocks.extend(mark for factor in factors for mark in marks(factor.blocks))
    return inverted(factors, communicator)


own_blocks: list[str] = []
all_blocks: list[str] = []
invert, inverse.invert = inverse.invert, watched_invert
inverted, exchange.inverted = exchange.inverted, watched_inverted

device.prepare()
if environment.world_size > 1:
    await_coordinator()
    communication.init()

thor = THOR(thornetworks.Chain(), 0.02, damping, frequency=2, block_size=10, trace_rule=RULE)
cell = thor.training_cell(nn.CrossEntropyLoss())
local = GLOBAL_BATCH // environment.world_size
own = slice(environment.rank * local, (environment.rank + 1) * local)
told: dict[str, list[Any]] = {"losses": [], "decisions": [], "own_blocks": [], "all_blocks": []}
for step in range(STEPS):
    own_blocks.clear()
    all_blocks.clear()
    x, y = thornetworks.images(GLOBAL_BATCH, seed=step), thornetworks.labels(GLOBAL_BATCH)
    told["losses"].append(float(cell(Tensor(x[own]), Tensor(y[own])).asnumpy()))
    update = cell.last_update
    assert update is not None
    told["decisions"].append((update.updated, update.kept, update.stopped, update.failed))
    told["own_blocks"].append(" ".join(own_blocks))
    told["all_blocks"].append(" ".join(all_blocks))
values = {parameter.name: parameter.asnumpy() for parameter in cell.get_parameters()}
folder = Path(sys.argv[1])
np.savez(folder / f"rank-{environment.rank}.npz", **told, **values)
thor.communicator.leave()
rendezvous.close()
os._exit(0)
