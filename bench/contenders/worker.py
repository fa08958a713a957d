"""Runs resnet20 training steps: an input line gives their number, the answer is the seconds of one.

Ours and stock nn.Conv2d need processes of their own, because oneDNN chooses its kernels once per process.
"""

import sys
import time
from unittest import mock

from mindspore import nn

from bench import trainer
from resnetboost_trainer.kernels import library
from resnetboost_trainer.models import resnet


def main(form: str, channels: int, size: int) -> None:
    """Compile with a first step, report ready, then answer each input line."""
    if form == "stock":
        with mock.patch.object(resnet, "Conv2d", _stock), mock.patch.object(library, "usable", return_value=None):
            program = trainer.program(channels)
    else:
        program = trainer.program(channels)
    images, labels = trainer.batch(channels, size)
    program.step(images, labels, trainer.MOMENT, stop=False)
    print("ready", flush=True)
    for line in sys.stdin:
        started = time.perf_counter()
        for _ in range(int(line)):
            program.step(images, labels, trainer.MOMENT, stop=False)
        print((time.perf_counter() - started) / int(line), flush=True)


def _stock(inputs: int, outputs: int, kernel: int, stride: int = 1, padding: int = 0, stem: bool = False) -> nn.Cell:
    """MindSpore's own convolution with its defaults: no instruction set chosen, oneDNN's dispatch unchanged."""
    return nn.Conv2d(inputs, outputs, kernel, stride, pad_mode="pad", padding=padding)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
