"""Runs a trained network on images: logits, and probabilities of the classes."""

import mindspore
import numpy as np
from mindspore import Tensor, nn, ops
from numpy.typing import NDArray

from resnetboost_trainer.checkpoint.trained import Trained
from resnetboost_trainer.models import resnet

Floats = NDArray[np.float32]


def network(trained: Trained) -> nn.Cell:
    """(n, channels, h, w) -> logits (n, classes), with the trained weights and BN's running statistics."""
    built = resnet.build(trained.network.name, trained.network.classes, trained.network.channels)
    for name, parameter in built.parameters_and_names():
        parameter.set_data(Tensor(trained.arrays[name], mindspore.float32))
    built.set_train(False)
    return built


class Classifier:
    """Probabilities of the classes, for batches of one size, so that one graph serves all."""

    def __init__(self, trained: Trained, batch: int) -> None:
        self.network, self.batch = network(trained), batch

    def probabilities(self, images: Floats) -> Floats:
        """(n, channels, h, w) with n up to the batch's size -> (n, classes)."""
        padded = np.zeros((self.batch, *images.shape[1:]), np.float32)
        padded[: len(images)] = images
        found: Floats = ops.softmax(self.network(Tensor(padded)), -1).asnumpy()
        return found[: len(images)]
