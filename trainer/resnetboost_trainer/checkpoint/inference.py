"""Inference with a trained network: logits and class probabilities of images."""

import mindspore
import numpy as np
from mindspore import Tensor, nn, ops
from numpy.typing import NDArray

from resnetboost_trainer.checkpoint.trained import Trained
from resnetboost_trainer.models import resnet

Floats = NDArray[np.float32]


def network(trained: Trained) -> nn.Cell:
    """Build the trained network in evaluation mode: (n, channels, h, w) -> logits (n, classes)."""
    built = resnet.build(trained.network.name, trained.network.classes, trained.network.channels)
    for name, parameter in built.parameters_and_names():
        parameter.set_data(Tensor(trained.arrays[name], mindspore.float32))
    built.set_train(False)
    return built


class Classifier:
    """Computes class probabilities in batches of one size, so that one compiled graph serves all."""

    def __init__(self, trained: Trained, batch: int) -> None:
        self.network, self.batch = network(trained), batch

    def probabilities(self, images: Floats) -> Floats:
        """Return class probabilities (n, classes) of images (n, channels, h, w), n at most the batch size."""
        padded = np.zeros((self.batch, *images.shape[1:]), np.float32)
        padded[: len(images)] = images
        found: Floats = ops.softmax(self.network(Tensor(padded)), -1).asnumpy()
        return found[: len(images)]
