"""Cross entropy with label smoothing, over one rank's logits."""

from mindspore import Tensor, nn, ops

from resnetboost_trainer.config import SmoothedOver


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
        kept, spread = kept_and_spread(self.smoothing, self.over, logits.shape[1])
        if labels.ndim == 2:
            return self.entropy(logits, labels * kept + spread)[0]
        on, off = Tensor(kept + spread, logits.dtype), Tensor(spread, logits.dtype)
        return self.entropy(logits, ops.one_hot(labels, logits.shape[1], on, off))[0]
