"""Polls for a condition with a timeout, and reports the last value seen."""

import json
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_POLL_SECONDS = 0.05
# The control plane, the operator and four workers share two cores, and garbage of a new kind waits 30 s for collection.
PATIENCE_SECONDS = 60.0


def eventually(read: Callable[[], T], holds: Callable[[T], object], what: str, seconds: float = PATIENCE_SECONDS) -> T:
    """Poll until the condition holds; returns the value. Raises AssertionError with the last value on timeout."""
    deadline = time.monotonic() + seconds
    while not holds(value := read()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {seconds:g} s; last seen:\n{readable(value)}")
        time.sleep(_POLL_SECONDS)
    return value


def throughout(read: Callable[[], T], holds: Callable[[T], object], what: str, seconds: float) -> None:
    """Assert that a condition holds for a while, where no event marks the end."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = read()
        assert holds(value), f"{what}: no longer after some time; last seen:\n{readable(value)}"
        time.sleep(_POLL_SECONDS)


def readable(value: object) -> str:
    """A value for the message of a failure."""
    return json.dumps(value, indent=1, default=str)
