"""One rank of a gang that trains each algorithm through a step that overflows on rank 1 alone; writes its state.

The file holds `case.moment.name` for each array, where the moments are before and after that step, after the next one,
and after the next one without an overflow; and `case.told` (steps, [skipped, scale, updates, loss]).
"""

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from resnetboost_trainer import config
from resnetboost_trainer.distributed.communicator import Communicator, Rendezvous

environment = config.environment()
rendezvous = Rendezvous(environment)

from resnetboost_trainer.engine import device  # noqa: E402
from resnetboost_trainer.engine.train_step import Program  # noqa: E402
from resnetboost_trainer.metrics.record import StepRecord  # noqa: E402
from resnetboost_trainer.optim.schedule import StepSchedule  # noqa: E402
from support import overflowing  # noqa: E402  after the coordinator has begun to import MindSpore

STEPS = 4

device.prepare()
communicator = Communicator(environment.rank, environment.world_size)
rank = communicator.rank
left: dict[str, Any] = {}


def step(program: Program, number: int, faint: bool = False) -> StepRecord:
    return program.step(*overflowing.batch(number, rank, faint), StepSchedule(number, 0.1, 0.1), stop=False)


def keep(case: str, moment: str, program: Program) -> None:
    for name, array in overflowing.everything(program).items():
        left[f"{case}.{moment}.{name}"] = array


for case in overflowing.TOGETHER:
    scale = {"initial": overflowing.SCALE, "growthSteps": 1000}
    program = overflowing.program(case, communicator, dynamicLossScale=scale)
    keep(case, "before", program)
    before = overflowing.everything(program)
    overdue = {"thor.overdue": np.array(1, np.float32)} if "thor.overdue" in before else {}
    overflowing.put(program, before | overdue | {"loss_scale.factor": np.array(overflowing.SCALE / 2, np.float32)})
    step(program, 1)
    keep(case, "undisturbed", program)
    overflowing.put(program, before)
    outcomes = [step(program, 0, faint=rank == 1)]
    keep(case, "after", program)
    outcomes.append(step(program, 1))
    keep(case, "next", program)
    outcomes += [step(program, number) for number in range(2, STEPS)]
    told = [(one.left_out, one.loss_scale, one.curvature is not None, one.loss) for one in outcomes]
    left[f"{case}.told"] = np.array(told)

np.savez(Path(sys.argv[1]) / f"rank-{rank}.npz", **left)
communicator.leave()
rendezvous.close()
os._exit(0)
