"""A rank that compiles small cells by the plan.json in its folder and keeps the compiled graphs in `kept`.

Writes the outputs, and how many graphs it compiled and how many kept ones it reused.
"""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from resnetboost_trainer import config
from resnetboost_trainer.config import Config
from resnetboost_trainer.distributed.communicator import Communicator, Rendezvous
from resnetboost_trainer.distributed.reduction import Reduction
from resnetboost_trainer.engine import device, graph_key
from resnetboost_trainer.engine.compile_cache import Graphs
from support import trainerconfig


class Plan(msgspec.Struct):
    """Cells in the order of their first run, and their constants."""

    order: list[str]
    factor: float = 2.0
    constant: float = 1.0
    weight: float = 3.0
    size: int = 4
    seed: int = 0  # of the job's configuration


class Affine(nn.Cell):  # type: ignore[misc]
    """factor * weight * x + constant, (n,) -> (n,)."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.factor = plan.factor
        self.constant = Tensor(np.float32(plan.constant))
        self.weight = Parameter(Tensor(np.float32(plan.weight)), name="weight")

    def construct(self, x: Tensor) -> Tensor:
        return self.factor * self.weight * x + self.constant


class Squares(nn.Cell):  # type: ignore[misc]
    """x squared, (n,) -> (n,)."""

    def construct(self, x: Tensor) -> Tensor:
        return ops.square(x)


class Flat(nn.Cell):  # type: ignore[misc]
    """The mean over the ranks, as a training step takes it: (n,) -> (n,)."""

    def __init__(self, plan: Plan, ranks: int) -> None:
        super().__init__()
        self.reduction = Reduction([Parameter(Tensor(np.zeros(plan.size - 2, np.float32)), name="zeros")], ranks)

    def construct(self, x: Tensor) -> Tensor:
        mean, scalars = self.reduction(x)
        return ops.concat([mean, scalars])


def main(folder: Path) -> None:
    """Execute plan.json."""
    environment = config.environment()
    rendezvous = Rendezvous(environment)
    device.prepare()
    plan = msgspec.json.decode((folder / "plan.json").read_bytes(), type=Plan)
    communicator = Communicator(environment.rank, environment.world_size)
    checkpoint = trainerconfig.GOOD["checkpoint"] | {"keepCompiledGraphs": True}
    settings: dict[str, Any] = trainerconfig.GOOD | {"checkpoint": checkpoint, "seed": plan.seed}
    graphs = Graphs.of_stage(
        msgspec.convert(settings, Config), communicator, folder / "kept" if communicator.leads else None
    )
    cells: dict[str, Any] = {"affine": Affine(plan), "squares": Squares(), "flat": Flat(plan, communicator.size)}
    graphs.watch(SimpleNamespace(**cells))
    x = Tensor(np.arange(plan.size, dtype=np.float32) + communicator.rank)
    found = {name: cells[name](x).asnumpy() for name in plan.order}
    key = graph_key.of_cell("affine", cells["affine"], [x])
    counts = {"reused": np.array(graphs.reused), "compiled": np.array(graphs.compiled), "key": np.array(key)}
    np.savez(folder / f"rank-{communicator.rank}.npz", **found, **counts)
    graphs.close()
    communicator.leave()
    rendezvous.close()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
