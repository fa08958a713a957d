"""What a stage's training makes small: the loss, the weights of the classes, and the teacher, if there is one."""

import numpy as np
from mindspore import Tensor
from numpy.typing import NDArray

from resnetboost_trainer import config
from resnetboost_trainer.data.registry import Dataset
from resnetboost_trainer.distributed.communicator import Communicator
from resnetboost_trainer.engine import class_weights, distillation, loss
from resnetboost_trainer.engine.distillation import Distilled, Teacher
from resnetboost_trainer.engine.loss import WeightedCrossEntropy


class Objective:
    """The loss of a stage, (logits, labels) -> (), for the labels that `labels` makes.

    `untrained` is about the loss of a network that nothing has trained, the yardstick of a loss that diverges.
    `teacher_sha256` is, on the leader, the hash of the teacher's file.
    """

    def __init__(
        self,
        stage: config.Config,
        training_labels: NDArray[np.int32] | None = None,
        mixes: bool = False,
        teacher: Teacher | None = None,
        teacher_sha256: str = "",
    ) -> None:
        """`mixes` if labels are shares of classes. Raises ConfigError for weights that do not fit the classes."""
        self.weights = class_weights.of(stage.loss, training_labels, stage.model.num_classes)
        self.teacher, self.teacher_sha256 = teacher, teacher_sha256
        self._labels, self._mixes = training_labels, mixes
        self._of_labels = self.loss = loss.of(stage, self.weights)
        self.untrained = loss.untrained(stage, self.weights, self._mean_weight(), self._divides)
        if stage.distillation is not None:
            assert teacher is not None, "a stage that distils has a teacher"
            self.untrained = distillation.untrained(stage.distillation, self.untrained, stage.model.num_classes)
            self.loss = Distilled(self._of_labels, stage.distillation.temperature, stage.distillation.alpha)

    def labels(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return what the loss takes as labels of a micro batch."""
        return labels if self.teacher is None else self.teacher(images, labels)

    def begin(self, whole: NDArray[np.int64]) -> None:
        """Prepare a step with a global batch of these training images. Without it, weights are divided by nothing."""
        if self._divides:
            assert self.weights is not None and self._labels is not None
            self._of_labels.divide_by(class_weights.mean(self.weights, self._labels[whole]))

    @property
    def _divides(self) -> bool:
        """True if the loss of a step is divided by the mean weight of its labels."""
        return isinstance(self._of_labels, WeightedCrossEntropy) and self._labels is not None and not self._mixes

    def _mean_weight(self) -> float:
        """Mean weight of all training labels; without them that of the classes."""
        if self.weights is None:
            return 1.0
        return float(self.weights.mean()) if self._labels is None else class_weights.mean(self.weights, self._labels)


def of(stage: config.Config, dataset: Dataset, communicator: Communicator, teacher_sha256: str = "") -> Objective:
    """Build a stage's objective; `teacher_sha256` as in `distillation.of`. A collective. Raises ConfigError."""
    teacher, sha256 = None, ""
    if stage.distillation is not None:
        teacher, sha256 = distillation.of(stage, dataset, communicator, teacher_sha256)
    return Objective(stage, dataset.train.labels, dataset.mixing is not None, teacher, sha256)
