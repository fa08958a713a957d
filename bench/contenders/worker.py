"""Runs resnet20 training steps: an input line gives their number, the answer is the seconds of one.

Ours and stock nn.Conv2d need processes of their own, because oneDNN chooses its kernels once per process.
"""

import contextlib
import sys
import time
from collections.abc import Iterator
from unittest import mock

from mindspore import nn

from bench import trainer
from resnetboost_trainer.kernels import library
from resnetboost_trainer.models import resnet


def main(form: str, channels: int, size: int) -> None:
    """Compile with a first step, report ready, then answer each input line."""
    with stock() if form == "stock" else contextlib.nullcontext():
        program = trainer.program(channels)
    images, labels = trainer.batch(channels, size)
    program.step(images, labels, trainer.MOMENT, stop=False)
    print("ready", flush=True)
    for line in sys.stdin:
        started = time.perf_counter()
        for _ in range(int(line)):
            program.step(images, labels, trainer.MOMENT, stop=False)
        print((time.perf_counter() - started) / int(line), flush=True)


@contextlib.contextmanager
def stock() -> Iterator[None]:
    """Networks that are built in a `with` block have MindSpore's own convolutions, and none of our operators."""
    with mock.patch.object(resnet, "Conv2d", _stock), mock.patch.object(library, "usable", return_value=None):
        yield


def _stock(inputs: int, outputs: int, kernel: int, stride: int, padding: int, stem: bool, group: int) -> nn.Cell:
    """MindSpore's own convolution with its defaults: no instruction set chosen, oneDNN's dispatch unchanged."""
    return nn.Conv2d(inputs, outputs, kernel, stride, pad_mode="pad", padding=padding, group=group)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
