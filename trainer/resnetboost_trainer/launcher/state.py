"""What a launcher does next: a pure function of what it was told and what became of its rank.

Level-triggered: `next` may be called at any time and says the same again until what it asked for has happened.
"""

from typing import Any

import msgspec

from resnetboost_api import failures
from resnetboost_api.launcher import RankEnd, RankReport, StartAttempt

# How long a launcher whose rank failed waits for a command. Then its container ends, as without a launcher, and the
# operator starts new pods.
UNANSWERED_SECONDS = 10.0
STOPPED_EXIT_CODE = failures.INTERRUPTED.exit_code or 1


class Start(msgspec.Struct, frozen=True):
    """Start the rank of that attempt. `config` None: with the container's own configuration."""

    attempt: int
    config: dict[str, Any] | None = None
    coordinator_port: int | None = None


class Kill(msgspec.Struct, frozen=True):
    """Kill the rank; its end is awaited."""


class Terminate(msgspec.Struct, frozen=True):
    """Ask the rank to stop; its end is awaited."""


class Exit(msgspec.Struct, frozen=True):
    """End the container."""

    code: int


class Wait(msgspec.Struct, frozen=True):
    """Nothing to do until that time (monotonic seconds), None: until something happens."""

    until: float | None = None


Action = Start | Kill | Terminate | Exit | Wait


class LauncherState:
    """The attempt that is wanted, and the rank there is: at most one at any time. All times are monotonic seconds."""

    def __init__(self, index: int, attempt: int) -> None:
        self.index, self.attempt = index, attempt
        self.end: RankEnd | None = None
        self._config: dict[str, Any] | None = None
        self._coordinator_port: int | None = None
        self._start_at = self._gives_up_at = float("-inf")
        self._rank: int | None = None  # attempt of the rank that exists: until it is reaped
        self._stopping = False

    def command(self, command: StartAttempt, now: float) -> bool:
        """Take a command. Returns whether it was news; a number that does not grow is old, whoever sends it."""
        if command.attempt <= self.attempt or self._stopping or self._succeeded:
            return False
        self.attempt, self.end = command.attempt, None
        self._config, self._coordinator_port = command.config, command.coordinator_port
        self._start_at = now + command.delay_seconds
        return True

    def stop(self) -> None:
        """The container is asked to end."""
        self._stopping = True

    def started(self, attempt: int) -> None:
        """The rank of that attempt exists."""
        self._rank = attempt

    def ended(self, exit_code: int, message: str, time: float, now: float) -> None:
        """The rank was reaped. `time`: unix seconds."""
        if self._rank == self.attempt:
            self.end = RankEnd(self.index, self.attempt, exit_code, message, time)
            self._gives_up_at = now + UNANSWERED_SECONDS
        self._rank = None

    def next(self, now: float) -> Action:
        """What to do now."""
        if self._rank is not None:
            if self._rank != self.attempt:
                return Kill()
            return Terminate() if self._stopping else Wait()
        if self.end is not None:
            return self._after_the_end(self.end, now)
        if self._stopping:
            return Exit(STOPPED_EXIT_CODE)
        if now < self._start_at:
            return Wait(self._start_at)
        return Start(self.attempt, self._config, self._coordinator_port)

    def report(self) -> RankReport:
        """For the leader."""
        running = self._rank == self.attempt
        return RankReport(self.index, self.attempt, running, None if running else self.end)

    def remaining_seconds(self, now: float) -> float:
        """Of the back-off before the wanted attempt."""
        return max(0.0, self._start_at - now)

    def _after_the_end(self, end: RankEnd, now: float) -> Action:
        if self._succeeded or self._stopping or now >= self._gives_up_at:
            return Exit(end.exit_code)
        return Wait(self._gives_up_at)

    @property
    def _succeeded(self) -> bool:
        return self.end is not None and self.end.exit_code == 0
