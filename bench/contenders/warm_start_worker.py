"""Starts a rank as the trainer does, with compiled graphs kept in a folder; makes one step and reports the times.

Run as: python -m bench.contenders.warm_start_worker FOLDER
"""

from resnetboost_trainer.engine.startup import StartupTimes

start = StartupTimes()

import os  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

import msgspec  # noqa: E402


class Started(msgspec.Struct):
    """Seconds by phase, numbers of compiled and reused graphs, and the loss of the step."""

    parts: dict[str, float]
    compiled: int
    reused: int
    loss: float


def main(folder: Path) -> None:
    """Start a rank and make one step."""
    import numpy as np
    from mindspore import Tensor

    from bench import trainer
    from resnetboost_trainer.distributed.communicator import Communicator
    from resnetboost_trainer.engine import device
    from resnetboost_trainer.engine.compile_cache import Graphs
    from resnetboost_trainer.engine.train_step import Program
    from resnetboost_trainer.models import resnet

    device.prepare()
    start.done("import")
    given = trainer.settings()
    kept = given["checkpoint"] | {"keepCompiledGraphs": True}
    configured = trainer.configuration(model=given["model"] | {"name": "resnet18"}, checkpoint=kept)
    generator = np.random.default_rng(0)
    images = Tensor(generator.standard_normal((32, 3, 64, 64), np.float32))
    labels = Tensor(generator.integers(0, 10, 32).astype(np.int32))
    start.done("data")
    communicator = Communicator(0, 1)
    graphs = Graphs.of_stage(configured, communicator, folder)
    program = Program(
        configured, resnet.configured(configured.model, 3, configured.seed, configured.precision), communicator
    )
    graphs.watch(program, program.update_rule)
    start.done("network")
    loss = program.step(images, labels, trainer.MOMENT, stop=False).loss
    start.done("first step", graphs.seconds, "compiling")
    graphs.close()
    print(msgspec.json.encode(Started(start.phases, graphs.compiled, graphs.reused, loss)).decode(), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
