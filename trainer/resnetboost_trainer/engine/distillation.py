"""Knowledge distillation: a trained teacher's logits become a part of the labels, and of the loss.

Hinton, Vinyals & Dean 2015, "Distilling the Knowledge in a Neural Network", §2: with the student's logits z, the
teacher's v and the temperature T

    loss = (1 - alpha) loss(z, labels) + alpha T^2 KL(softmax(v / T) || softmax(z / T))

The teacher is a graph of its own, in evaluation mode, and not among the trained parameters. Its logits are computed
once for each micro batch, from the augmented and mixed images that the student gets. From then on they travel with the
labels as one tensor, so that whatever computes a gradient or a loss again (micro batches, THOR's capturing pass, the
line search of PCA, virtual ranks) uses the same numbers.
"""

import logging
import math
from collections.abc import Sequence
from typing import get_args

import mindspore
import numpy as np
from mindspore import Tensor, nn, ops

from resnetboost_api.model import ModelName
from resnetboost_trainer import config
from resnetboost_trainer.checkpoint import arrays, teacher
from resnetboost_trainer.data.registry import Dataset
from resnetboost_trainer.distributed.communicator import Communicator
from resnetboost_trainer.models import resnet

log = logging.getLogger(__name__)

_NAMES: Sequence[str] = get_args(ModelName)


class Teacher(nn.Cell):
    """(images (n, c, h, w), labels (n,) or shares (n, K)) -> shares and the teacher's logits (n, 2 K)."""

    def __init__(self, network: nn.Cell, classes: int, scale: Sequence[float], shift: Sequence[float]) -> None:
        """The network gets the images times `scale` plus `shift`, by channel."""
        super().__init__()
        self.teacher, self.classes = network, classes
        self.as_they_are = all(factor == 1 for factor in scale) and not any(shift)
        self.scale, self.shift = (
            Tensor(np.array(numbers, np.float32).reshape(1, -1, 1, 1)) for numbers in (scale, shift)
        )
        self.on, self.off = Tensor(1.0, mindspore.float32), Tensor(0.0, mindspore.float32)
        self.set_train(False)
        for parameter in self.get_parameters():
            parameter.requires_grad = False

    def construct(self, images: Tensor, labels: Tensor) -> Tensor:
        shares = labels if labels.ndim == 2 else ops.one_hot(labels, self.classes, self.on, self.off)
        logits = self.teacher(images if self.as_they_are else images * self.scale + self.shift)
        return ops.concat([shares, logits], 1)


class Distilled(nn.Cell):
    """The loss of logits (n, K) and of what a `Teacher` makes of labels (n, 2 K) -> ()."""

    def __init__(self, of_labels: nn.Cell, temperature: float, alpha: float) -> None:
        super().__init__()
        self.of_labels, self.temperature, self.alpha = of_labels, temperature, alpha

    def construct(self, logits: Tensor, labels: Tensor) -> Tensor:
        classes = logits.shape[1]
        # Not the kernel of CrossEntropy less the teacher's own entropy: the difference would have lost digits.
        of_teacher = ops.log_softmax(labels[:, classes:] / self.temperature, 1)
        own = ops.log_softmax(logits / self.temperature, 1)
        divergence = (ops.exp(of_teacher) * (of_teacher - own)).sum(1).mean()
        distilled = divergence * (self.alpha * self.temperature * self.temperature)
        if self.alpha == 1:
            return distilled
        return self.of_labels(logits, labels[:, :classes]) * (1 - self.alpha) + distilled


def untrained(rule: config.Distillation, of_labels: float, classes: int) -> float:
    """Return at least the loss of an untrained student, whose loss of the labels is `of_labels`.

    The divergence of equal logits is at most ln(classes). Divided by a temperature below 1, the small logits of an
    untrained network are no longer nearly equal: then that grows as 1 / temperature.
    """
    factor = rule.alpha * rule.temperature * max(rule.temperature, 1.0)
    return (1 - rule.alpha) * of_labels + factor * math.log(classes)


def of(stage: config.Config, dataset: Dataset, communicator: Communicator, sha256: str = "") -> tuple[Teacher, str]:
    """Build the stage's teacher; the leader reads it, and also returns the hash of its file. A collective.

    With `sha256` it is the teacher of that hash, which a run to resume has begun with. Raises ConfigError.
    """
    assert stage.distillation is not None, "a stage with a teacher has the block"
    found = teacher.read(stage.distillation, dataset, stage.storage, sha256) if communicator.leads else None
    name = 0 if found is None else _NAMES.index(found.network.network.name)
    (name,) = communicator.broadcast_integers([name])
    network = resnet.build(_NAMES[name], dataset.classes, dataset.channels, precision=stage.precision)
    parameters = dict(network.parameters_and_names())
    affine = np.zeros(2 * dataset.channels, np.float32)
    if found is not None:
        arrays.assign(found.network.arrays, parameters)
        affine[:] = (*found.scale, *found.shift)
        told = "learning from %s with weight %g at temperature %g"
        log.info(told, found.network.describe(), stage.distillation.alpha, stage.distillation.temperature)
    arrays.assign_flat(communicator.broadcast(arrays.flatten(parameters)), parameters)
    scale, shift = communicator.broadcast(affine).reshape(2, -1)
    made = Teacher(network, dataset.classes, [float(number) for number in scale], [float(number) for number in shift])
    return made, "" if found is None else found.network.sha256
