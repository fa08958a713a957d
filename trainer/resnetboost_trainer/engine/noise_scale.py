"""Gradient noise scale: how large a batch is worth its images.

McCandlish et al. 2018, "An Empirical Model of Large-Batch Training", arXiv 1812.06162, appendix A.1.

The gradient of a batch of B images is the true one G with noise of covariance Sigma / B. So the mean squared norm is
E|g_B|^2 = |G|^2 + tr(Sigma) / B, and the norms of a small and a large batch give both unknowns. Each is averaged over
steps by itself, as their ratio is not an unbiased estimate of the ratio.
"""

import msgspec

from resnetboost_trainer.config import Config

SMOOTHING = 0.99  # of the running averages: about the last hundred steps


class NoiseRecord(msgspec.Struct, frozen=True):
    """What a step says about the noise: its own unbiased estimates, which may be negative, and the running scale.

    `trace` is tr(Sigma), the sum of the variances of one image's gradient; `signal` is |G|^2. `scale` is in images, and
    None while the running average of the signal is not positive.
    """

    trace: float
    signal: float
    scale: float | None


class NoiseScale:
    """Estimates from the squared norms of gradients of `small` and of `large` images."""

    def __init__(self, small: int, large: int, smoothing: float = SMOOTHING) -> None:
        """`small` is less than `large`."""
        self.small, self.large, self._smoothing = small, large, smoothing
        self._trace = self._signal = 0.0

    def add(self, small: float, large: float) -> NoiseRecord:
        """Take a step: the mean squared norm of its small batches' gradients, and that of their mean."""
        trace = (small - large) / (1 / self.small - 1 / self.large)
        signal = (self.large * large - self.small * small) / (self.large - self.small)
        # Both averages begin at 0 and are too small by the same factor, which the ratio does not have.
        self._trace = self._smoothing * self._trace + (1 - self._smoothing) * trace
        self._signal = self._smoothing * self._signal + (1 - self._smoothing) * signal
        scale = max(0.0, self._trace) / self._signal if self._signal > 0 else None
        return NoiseRecord(trace, signal, scale)


def of(config: Config, virtual_ranks: int) -> NoiseScale | None:
    """The estimates that the stage wants; None if it wants none, or its steps have one small batch alone."""
    parts = virtual_ranks * config.accumulation_steps
    if not config.gradient_noise or parts < 2:
        return None
    return NoiseScale(config.local_batch_size, config.local_batch_size * parts)
