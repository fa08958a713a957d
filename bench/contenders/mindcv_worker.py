"""MindCV's counterpart of our_worker, set up as MindCV's own script does: graph mode, its trainer, no mixed precision.

resnet18 is MindCV's. It has no resnet20, so that one is made of its blocks, layer by layer as ours.

Run as: python -m bench.contenders.mindcv_worker train|infer NETWORK CHANNELS SIZE BATCH
"""

import sys
import time
from typing import Any

import mindcv
import mindspore
import numpy as np
from mindcv.models.resnet import BasicBlock
from mindcv.utils import create_trainer
from mindspore import Tensor, nn, ops

CLASSES = 10


class Shortcut(nn.Cell):  # type: ignore[misc, unused-ignore]
    """Option A of He et al. 2015, §3.3, in MindSpore's fastest form: a pool takes every second pixel."""

    def __init__(self, more: int) -> None:
        super().__init__()
        self.more, self.pool = more, nn.AvgPool2d(1, 2)

    def construct(self, x: Tensor) -> Tensor:
        y = self.pool(x)
        return ops.concat((y, ops.zeros((y.shape[0], self.more, y.shape[2], y.shape[3]), y.dtype)), 1)


def resnet20(channels: int) -> nn.Cell:
    """The same layers as our resnet20."""
    first = nn.Conv2d(channels, 16, 3, 1, pad_mode="pad", padding=1, weight_init="HeNormal")
    layers, inputs = [first, nn.BatchNorm2d(16), nn.ReLU()], 16
    for outputs in (16, 32, 64):
        for _ in range(3):
            halves = outputs > inputs
            shortcut = Shortcut(outputs - inputs) if halves else None
            layers.append(BasicBlock(inputs, outputs, stride=2 if halves else 1, down_sample=shortcut))
            inputs = outputs
    return nn.SequentialCell([*layers, mindcv.models.layers.pooling.GlobalAvgPooling(), nn.Dense(64, CLASSES)])


def trained(network: nn.Cell) -> nn.Cell:
    """(images, labels) -> loss, after one step of momentum, as MindCV's trainer calls it."""
    loss = mindcv.create_loss("CE", label_smoothing=0.1)
    parameters = network.trainable_params()
    optimizer = mindcv.create_optimizer(
        parameters, "momentum", lr=0.01, weight_decay=1e-4, weight_decay_filter="norm_and_bias"
    )
    trainer = create_trainer(
        network, loss, optimizer, metrics=None, amp_level="O0", amp_cast_list=None, loss_scale_type="fixed"
    )
    return trainer.train_network.set_train()


def main(what: str, name: str, channels: int, size: int, batch: int) -> None:
    """Compile with a first step, report ready, then answer each input line."""
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    mindspore.set_device("CPU")
    made = resnet20(channels) if name == "resnet20" else mindcv.create_model(name, CLASSES, in_channels=channels)
    network = trained(made) if what == "train" else made.set_train(False)
    generator = np.random.default_rng(0)
    given: list[Any] = [Tensor(generator.standard_normal((batch, channels, size, size), np.float32))]
    if what == "train":
        given.append(Tensor(generator.integers(0, CLASSES, batch).astype(np.int32)))
    network(*given).asnumpy()
    print("ready", mindcv.__version__, flush=True)
    for line in sys.stdin:
        started = time.perf_counter()
        for _ in range(int(line)):
            network(*given).asnumpy()
        print((time.perf_counter() - started) / int(line), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
