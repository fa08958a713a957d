"""An event loop whose clock jumps to the next timer instead of waiting; for code without real I/O."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class _Selector(selectors.DefaultSelector):
    """A selector that advances the clock by the timeout instead of waiting."""

    waited = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "everything waits, and no timer is set: a deadlock"
            self.waited += timeout
        return ready


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.waited


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its result without waiting for its sleeps; its clock starts at 0."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(work)
