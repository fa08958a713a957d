"""Measures how fast this rank's device multiplies and convolves, and whether it does so correctly.

Digests are of integers in float32: every sum stays below 2^24, so that each order of summing, fused or not, and TF32
and HF32 give the same bits on every device. Inputs are computed without a random generator: the training's is not
touched, and they are the same for every version of NumPy.
"""

import statistics
import time
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from mindspore import Tensor, get_context, ops

from resnetboost_trainer.models.layers.conv import Conv2d

Floats = npt.NDArray[np.float32]
SAMPLES = 9
FEWEST = 3
DEPTH, CHANNELS = 1024, 64
# What the exact results hash to, by size (rows of the matrix, images); tests compute them with integers.
KNOWN = {(768, 8): (4258802749, 4041578841), (4096, 256): (1789287019, 2122433812)}


class Size(NamedTuple):
    """How much is computed in a sample: rows of the matrix, images, and launches of each on a device that queues."""

    rows: int
    images: int
    launches: int


SIZES = {"CPU": Size(768, 8, 1)}
OF_DEVICES = Size(4096, 256, 32)
SIDE = 28
FEW_ROWS = 512


class Computed(NamedTuple):
    """GFLOP/s, digests of product and convolution, whether they were the same every time, norm of a real product."""

    rate: float
    digests: tuple[int, int]
    steady: bool
    norm: float


def integers(shape: tuple[int, ...], limit: int, salt: int) -> Floats:
    """Integers from -limit to limit without a pattern that sums could hide (a multiplicative congruence)."""
    count = int(np.prod(shape))
    mixed = (np.arange(count, dtype=np.uint64) + np.uint64(salt)) * np.uint64(0x9E3779B97F4A7C15)
    drawn = ((mixed >> np.uint64(33)) % np.uint64(2 * limit + 1)).astype(np.int64) - limit
    return drawn.astype(np.float32).reshape(shape)


def matrices(rows: int) -> tuple[Floats, Floats]:
    """Factors whose sums of products stay below 2^24: 127^2 * 1024."""
    return integers((rows, DEPTH), 127, 1), integers((DEPTH, rows), 127, 2)


def images(count: int) -> tuple[Floats, Floats]:
    """Images and 3x3 weights, so small that a convolution by transforms (Winograd) rounds to the right integers."""
    return integers((count, CHANNELS, SIDE, SIDE), 3, 3), integers((CHANNELS, CHANNELS, 3, 3), 3, 4)


def digest(values: npt.NDArray[Any]) -> int:
    """CRC of the values rounded to integers; what is no number has a digest too."""
    with np.errstate(invalid="ignore"):
        return zlib.crc32(np.rint(values).astype(np.int32).tobytes())


class Workload:
    """The fixed computation, on this process' device."""

    def __init__(self) -> None:
        """Build it; the first run compiles."""
        self.size = SIZES.get(str(get_context("device_target")), OF_DEVICES)
        left, right = matrices(self.size.rows)
        self._left, self._right = Tensor(left), Tensor(right)
        self._real = Tensor(left * np.float32(0.1)), Tensor(right * np.float32(0.3))
        drawn, weights = images(self.size.images)
        self._images, self._multiply = Tensor(drawn), ops.MatMul()
        self._convolve = Conv2d(CHANNELS, CHANNELS, 3, padding=1, weight_init=Tensor(weights))

    @property
    def known(self) -> tuple[int, int]:
        """The digests that exact arithmetic gives."""
        return KNOWN[self.size.rows, self.size.images]

    @property
    def operations(self) -> float:
        """Floating-point operations of one sample, in units of 10^9."""
        product = 2.0 * self.size.rows**2 * DEPTH
        convolution = 2.0 * self.size.images * SIDE**2 * CHANNELS**2 * 9
        return (product + convolution) * self.size.launches / 1e9

    def measure(self, until: float, enough: Callable[[], bool] = lambda: False) -> Computed:
        """Run it SAMPLES times, fewer after `until` (time.monotonic) or once that is `enough`. The first only warms."""
        seconds: list[float] = []
        digests: list[tuple[int, int]] = []
        while len(digests) < 1 + SAMPLES:
            began = time.perf_counter()
            product = self._repeated(lambda: self._multiply(self._left, self._right))
            convolved = self._repeated(lambda: self._convolve(self._images))
            seconds.append(time.perf_counter() - began)
            digests.append((digest(product.asnumpy()), digest(convolved.asnumpy())))
            if len(digests) > FEWEST and (time.monotonic() > until or enough()):
                break
        rate = self.operations / statistics.median(seconds[1:])
        return Computed(rate, digests[0], len(set(digests)) == 1, self._norm())

    def _repeated(self, launch: Callable[[], Tensor]) -> Tensor:
        for _ in range(self.size.launches):
            result = launch()
        result.reshape(-1)[:1].asnumpy()  # waits for all of them, and copies next to nothing
        return result

    def _norm(self) -> float:
        product: Floats = self._multiply(*self._real).asnumpy()
        return float(np.linalg.norm(product[:FEW_ROWS].astype(np.float64)))
