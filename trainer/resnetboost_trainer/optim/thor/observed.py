"""What a rank has seen of its layers in a step: the sums, over its virtual ranks, that an update's averages need.

A rank that does the work of several virtual ranks captures tensors once for each. Only sums are kept: captured tensors
of all of them would take as many times the memory of one.
"""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class Observed(msgspec.Struct, frozen=True):
    """Sums over `count` virtual ranks.

    `unexplained` (layers,) counts those whose captured tensors do not explain the layer's gradient. `traces` (layers,
    3) are tr A, tr G and the uses of the weight, 0 for such layers and excluded ones; `factors` are the others', by
    layer.
    """

    count: int
    unexplained: Floats
    traces: Floats
    factors: Mapping[int, Sequence[Floats]]

    def plus(self, other: "Observed") -> "Observed":
        """Return the sums over the virtual ranks of both; a layer that one of them lacks has no factors."""
        both = self.factors.keys() & other.factors.keys()
        return Observed(
            self.count + other.count,
            self.unexplained + other.unexplained,
            self.traces + other.traces,
            {k: [a + b for a, b in zip(self.factors[k], other.factors[k], strict=True)] for k in both},
        )
