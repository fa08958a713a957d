"""A rank that takes one step with every ResNet variant, every second part frozen, and keeps the compiled graphs.

Writes digests of the outputs, the numbers of compiled and reused graphs, and the outputs of reused graphs that differ
from uncompiled execution by more than rounding.
"""

import hashlib
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np

from resnetboost_trainer import config
from resnetboost_trainer.config import Config
from resnetboost_trainer.distributed.communicator import Communicator, Rendezvous
from resnetboost_trainer.engine import device
from resnetboost_trainer.engine.compile_cache import Graphs
from resnetboost_trainer.models import arch
from support import familygradients, trainerconfig


def main(folder: Path) -> None:
    """Take one step with every network."""
    environment = config.environment()
    rendezvous = Rendezvous(environment)
    device.prepare()
    communicator = Communicator(environment.rank, environment.world_size)
    checkpoint = trainerconfig.GOOD["checkpoint"] | {"keepCompiledGraphs": True}
    settings: dict[str, Any] = trainerconfig.GOOD | {"checkpoint": checkpoint}
    graphs = Graphs.of_stage(msgspec.convert(settings, Config), communicator, folder / "kept")
    digests, wrong = [], []
    for name in familygradients.NAMES:
        frozen = arch.parts(name)[1::2]
        step = familygradients.Step(familygradients.network(name, frozen))
        graphs.watch(SimpleNamespace(**{name: step}))
        found = familygradients.found(step)
        numbers = [np.array(found.loss), *found.gradients.values(), *found.statistics.values()]
        digests.append(hashlib.sha256(b"".join(array.tobytes() for array in numbers)).hexdigest())
        if graphs.reused:
            errors = familygradients.wrong(found, familygradients.slow(name, frozen), familygradients.BOUND)
            wrong += [f"{name} {key}" for key in errors]
    counts = {"compiled": np.array(graphs.compiled), "reused": np.array(graphs.reused)}
    np.savez(folder / "rank-0.npz", digests=np.array(digests), wrong=np.array(wrong, str), **counts)
    graphs.close()
    communicator.leave()
    rendezvous.close()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
