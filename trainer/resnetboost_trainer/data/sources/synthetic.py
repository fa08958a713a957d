"""Generates noise with random labels, for speed measurements."""

import numpy as np

from resnetboost_trainer import config
from resnetboost_trainer.data.recipe import IMAGE_SIZE
from resnetboost_trainer.data.sources.npz import Arrays

SAMPLES = (1024, 256)  # to train on, to test with
_SEED = 0


def read(dataset: config.Dataset, num_classes: int) -> Arrays:
    """Draw square images of `imageSize`, uint8 (n, size, size, 3)."""
    size = dataset.image_size or IMAGE_SIZE
    draw = np.random.Generator(np.random.PCG64(_SEED))
    x_train, x_test = (draw.integers(0, 256, (count, size, size, 3), np.uint8) for count in SAMPLES)
    y_train, y_test = (draw.integers(0, num_classes, count) for count in SAMPLES)
    return Arrays(x_train, y_train, x_test, y_test)
