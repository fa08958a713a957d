"""Cross entropy with label smoothing, as a graph; it must not look at more than one rank's logits."""

from mindspore import Tensor, nn, ops


class CrossEntropy(nn.Cell):
    """Mean cross entropy of the local batch's logits and smoothed labels (Szegedy et al. 2016, §7).

    Smoothed label of class k with K classes: (1 - smoothing) [k = label] + smoothing / K.
    """

    def __init__(self, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.samples = SampleCrossEntropy(label_smoothing)

    def construct(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Shapes (n, K), labels (n,) or, mixed, shares of the classes (n, K) -> ()."""
        return self.samples(logits, labels).mean()


class SampleCrossEntropy(nn.Cell):
    """The same for every sample by itself, for evaluation, where padding is masked out before the mean."""

    def __init__(self, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.smoothing = label_smoothing
        # One kernel for the loss and its gradient: a third faster than log_softmax with sums at 10 classes.
        self.entropy = ops.SoftmaxCrossEntropyWithLogits()

    def construct(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Shapes (n, K), labels (n,) or shares of the classes (n, K) -> (n,)."""
        share = self.smoothing / logits.shape[1]
        if labels.ndim == 2:
            return self.entropy(logits, labels * (1.0 - self.smoothing) + share)[0]
        on, off = Tensor(1.0 - self.smoothing + share, logits.dtype), Tensor(share, logits.dtype)
        return self.entropy(logits, ops.one_hot(labels, logits.shape[1], on, off))[0]
