"""How long to wait before something is tried again; pure."""

import random
from collections.abc import Callable

import msgspec


class Backoff(msgspec.Struct, frozen=True):
    """Doubles from `first_seconds` to `most_seconds`. Half of each delay is chance, or all would come back at once."""

    first_seconds: float
    most_seconds: float

    def delay_seconds(self, failures: int, chance: Callable[[], float] = random.random) -> float:
        """Seconds to wait after so many failures in a row (1 is the first)."""
        doubled = self.first_seconds * 2.0 ** min(max(failures - 1, 0), 30)
        return min(doubled, self.most_seconds) * (0.5 + chance() / 2)


def asked_seconds(retry_after: str | None) -> float | None:
    """Seconds a server asks for in its `Retry-After`; API servers send whole seconds, a date counts as nothing."""
    if retry_after is None or not retry_after.isdigit():
        return None
    return min(float(retry_after), 60.0)
