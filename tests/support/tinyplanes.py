"""Computes the gradients of a network on images so small that its last planes are 2x2; run as a module."""

import mindspore
import numpy as np
from mindspore import Tensor

from resnetboost_trainer.engine import device
from support import familygradients


def main() -> None:
    """One forward and backward pass."""
    device.prepare()
    network = familygradients.network("small").set_train(True)
    images = Tensor(np.random.default_rng(0).standard_normal((4, 3, 8, 8), np.float32))

    def total(x: Tensor) -> Tensor:
        return network(x).sum()

    mindspore.value_and_grad(total, None, network.trainable_params())(images)


if __name__ == "__main__":
    main()
