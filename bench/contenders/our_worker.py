"""Runs our training steps or inferences: an input line gives their number, the answer is the seconds of one.

Run as: python -m bench.contenders.our_worker train|infer NETWORK CHANNELS SIZE BATCH
"""

import sys
import time

import numpy as np
from mindspore import Tensor

from bench import trainer
from resnetboost_trainer.models import resnet


def main(what: str, name: str, channels: int, size: int, batch: int) -> None:
    """Compile with a first step, report ready, then answer each input line."""
    program = trainer.program(channels, model=trainer.settings()["model"] | {"name": name})
    generator = np.random.default_rng(0)
    images = Tensor(generator.standard_normal((batch, channels, size, size), np.float32))
    labels = Tensor(generator.integers(0, 10, batch).astype(np.int32))

    def once() -> None:
        if what == "train":
            program.step(images, labels, trainer.MOMENT, stop=False)
        else:
            program.network.set_train(False)
            program.network(images).asnumpy()

    once()
    print("ready", resnet.convolution_forms(program.network), flush=True)
    for line in sys.stdin:
        started = time.perf_counter()
        for _ in range(int(line)):
            once()
        print((time.perf_counter() - started) / int(line), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
