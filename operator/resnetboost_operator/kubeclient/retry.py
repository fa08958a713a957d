"""Delays between retries: exponential backoff and Retry-After."""

import random
from collections.abc import Callable

import msgspec


class Backoff(msgspec.Struct, frozen=True):
    """Exponential backoff from `first_seconds` to `most_seconds`. Half of each delay is random, to spread retries."""

    first_seconds: float
    most_seconds: float

    def delay_seconds(self, failures: int, chance: Callable[[], float] = random.random) -> float:
        """Seconds to wait after that many consecutive failures (1 for the first)."""
        doubled = self.first_seconds * 2.0 ** min(max(failures - 1, 0), 30)
        return min(doubled, self.most_seconds) * (0.5 + chance() / 2)


def retry_after_seconds(header: str | None) -> float | None:
    """Seconds from a `Retry-After` header, at most 60; None for a date, which API servers do not send."""
    if header is None or not header.isdigit():
        return None
    return min(float(header), 60.0)
