"""Times of the layers within the trunk's operator, which MindSpore's profiler sees as one (kernels/trunk.cpp)."""

import contextlib
import ctypes
from collections.abc import Iterator, Sequence

from resnetboost_api.profile import LayerTime
from resnetboost_trainer.kernels import library
from resnetboost_trainer.models import arch

_WORKS = 5


class LayerTimes:
    """Adds up the times of the layers while `recorded`."""

    def __init__(self, model: str, channels: int) -> None:
        """The network's name and its images' channels."""
        self._names = [row.name for row in arch.topology(model, channels).convolutions]
        operators = library.usable()
        self._library = None if operators is None else ctypes.CDLL(str(operators))
        self._found = (ctypes.c_double * (len(self._names) * _WORKS))()

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        """Record the steps of a `with` block."""
        if self._library is None:
            yield
            return
        self._library.resnetboost_trunk_record(ctypes.c_int64(len(self._names)))
        try:
            yield
        finally:
            self._library.resnetboost_trunk_recorded(self._found)
            self._library.resnetboost_trunk_record(ctypes.c_int64(0))

    def of(self, steps: int) -> Sequence[LayerTime]:
        """Return the times per step in the network's order; empty if it did not run as one operator."""
        found = [seconds / steps for seconds in self._found]
        if not any(found):
            return ()
        return [LayerTime(name, *found[_WORKS * k : _WORKS * (k + 1)]) for k, name in enumerate(self._names)]
