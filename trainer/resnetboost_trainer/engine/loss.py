"""Losses over one rank's logits: cross entropy, also with weights of the classes, and binary cross entropy.

Labels are classes (n,) or, mixed, shares of the classes (n, K); both are smoothed.
"""

import math

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from numpy.typing import NDArray

from resnetboost_trainer import config
from resnetboost_trainer.config import SmoothedOver
from resnetboost_trainer.models.assign import write


def kept_and_spread(smoothing: float, over: SmoothedOver, classes: int) -> tuple[float, float]:
    """Return (kept, spread): the smoothed label of class k is kept [k = label] + spread."""
    if over == "AllClasses":
        return 1.0 - smoothing, smoothing / classes
    spread = smoothing / (classes - 1)
    return 1.0 - smoothing - spread, spread


def described(smoothing: float, over: SmoothedOver, classes: int) -> str:
    """Describe the label smoothing for the log."""
    if smoothing == 0:
        return "labels are not smoothed"
    kept, spread = kept_and_spread(smoothing, over, classes)
    among = "all classes" if over == "AllClasses" else "the other classes"
    return f"labels are smoothed by {smoothing:g} over {among}: {kept + spread:.6g} and {spread:.6g}"


def smoothed(labels: Tensor, logits: Tensor, smoothing: float, over: SmoothedOver) -> Tensor:
    """Turn labels (n,) or shares (n, K) into smoothed shares (n, K) of the logits' type."""
    kept, spread = kept_and_spread(smoothing, over, logits.shape[1])
    if labels.ndim == 2:
        return labels * kept + spread
    on, off = Tensor(kept + spread, logits.dtype), Tensor(spread, logits.dtype)
    return ops.one_hot(labels, logits.shape[1], on, off)


class CrossEntropy(nn.Cell):
    """Mean cross entropy of the local batch's logits and smoothed labels (Szegedy et al. 2016, §7).

    Smoothed label of class k with K classes: (1 - smoothing) [k = label] + smoothing / K, as in the paper and PyTorch;
    over the other classes alone 1 - smoothing where k = label, else smoothing / (K - 1), as in MindSpore's model zoo.
    """

    def __init__(self, label_smoothing: float = 0.0, over: SmoothedOver = "AllClasses") -> None:
        super().__init__()
        self.samples = SampleCrossEntropy(label_smoothing, over)

    def construct(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Shapes (n, K), labels (n,) or, mixed, shares of the classes (n, K) -> ()."""
        return self.samples(logits, labels).mean()


class SampleCrossEntropy(nn.Cell):
    """Cross entropy of each sample, for evaluation, where padding is masked out before the mean."""

    def __init__(self, label_smoothing: float = 0.0, over: SmoothedOver = "AllClasses") -> None:
        super().__init__()
        self.smoothing, self.over = label_smoothing, over
        # One kernel for the loss and its gradient: a third faster than log_softmax with sums at 10 classes.
        self.entropy = ops.SoftmaxCrossEntropyWithLogits()

    def construct(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Shapes (n, K), labels (n,) or shares of the classes (n, K), which are smoothed as their labels -> (n,)."""
        return self.entropy(logits, smoothed(labels, logits, self.smoothing, self.over))[0]


class WeightedCrossEntropy(nn.Cell):
    """Mean cross entropy with a weight for each class, divided by the mean weight of the step's labels.

    Of a sample: - sum over k of weight k x smoothed share k x log softmax k. PyTorch's CrossEntropyLoss(weight=...,
    label_smoothing=...) is the same for a step's whole batch; `class_weights` says what is divided by.
    """

    def __init__(self, label_smoothing: float, over: SmoothedOver, weights: NDArray[np.float32]) -> None:
        super().__init__()
        self.smoothing, self.over, self.weights = label_smoothing, over, Tensor(weights)
        # A parameter, so that one graph serves every step.
        self.mean_weight = Parameter(Tensor(1.0, mindspore.float32), name="mean_weight", requires_grad=False)

    def divide_by(self, mean_weight: float) -> None:
        """Set the mean weight of the labels of the next step's global batch."""
        write(self.mean_weight, np.asarray(mean_weight))

    def construct(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Shapes (n, K), labels (n,) or, mixed, shares of the classes (n, K) -> ()."""
        # The kernel of loss and gradient above is only right for shares that add up to 1.
        shares = smoothed(labels, logits, self.smoothing, self.over) * self.weights
        return -(shares * ops.log_softmax(logits, 1)).sum() / (logits.shape[0] * self.mean_weight)


class BinaryCrossEntropy(nn.Cell):
    """Mean over images and classes of the binary cross entropy of each class by itself, as in timm.

    Wightman, Touvron & Jégou 2021, "ResNet strikes back", §3. With a `threshold` smoothed shares above it become 1 and
    all others 0. `weights` (K,) multiply the classes' terms.
    """

    def __init__(
        self,
        label_smoothing: float,
        over: SmoothedOver,
        threshold: float | None = None,
        weights: NDArray[np.float32] | None = None,
    ) -> None:
        super().__init__()
        self.smoothing, self.over, self.threshold = label_smoothing, over, threshold
        self.weights = Tensor(np.float32(1) if weights is None else weights)
        self.one = Tensor(1.0, mindspore.float32)
        self.entropy = ops.BCEWithLogitsLoss(reduction="mean")

    def construct(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Shapes (n, K), labels (n,) or, mixed, shares of the classes (n, K) -> ()."""
        shares = smoothed(labels, logits, self.smoothing, self.over)
        if self.threshold is not None:
            shares = (shares > self.threshold).astype(logits.dtype)
        return self.entropy(logits, shares, self.weights, self.one)


def of(stage: config.Config, weights: NDArray[np.float32] | None) -> nn.Cell:
    """Build the loss of a stage's labels; `weights` are those of the classes (K,), or None."""
    smoothing, over, loss = stage.label_smoothing, stage.label_smoothing_over, stage.loss
    if loss.function == "BinaryCrossEntropy":
        return BinaryCrossEntropy(smoothing, over, loss.target_threshold, weights)
    return CrossEntropy(smoothing, over) if weights is None else WeightedCrossEntropy(smoothing, over, weights)


def untrained(stage: config.Config, weights: NDArray[np.float32] | None, mean_weight: float, divided: bool) -> float:
    """Return the loss of logits that are all equal: about that of a network which nothing has trained.

    `mean_weight` is that of the training labels; `divided`: the loss of each step is divided by that of its labels.
    """
    classes = stage.model.num_classes
    if stage.loss.function == "BinaryCrossEntropy":
        return math.log(2) * (1.0 if weights is None else float(weights.mean()))
    if weights is None:
        return math.log(classes)
    kept, spread = kept_and_spread(stage.label_smoothing, stage.label_smoothing_over, classes)
    found = math.log(classes) * (kept * mean_weight + spread * float(weights.sum()))
    return found / mean_weight if divided else found
