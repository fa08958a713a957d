"""Work queue: one pass at a time per key, many keys at once, with spacing and back-off."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from resnetboost_operator.controller import logs
from resnetboost_operator.controller.metrics import Metrics
from resnetboost_operator.kubeclient.errors import ApiError
from resnetboost_operator.kubeclient.retry import Backoff

logger = logging.getLogger(__name__)

# Concurrent passes; most of their time is spent waiting for responses.
LIMIT = 32
# Minimum time between passes of a key, so that the events of a thousand pods share a pass.
SPACING_SECONDS = 0.2
BACKOFF = Backoff(first_seconds=0.5, most_seconds=60.0)


class _Entry:
    """State of a key: idle with or without a timer, due, or running."""

    __slots__ = ("again", "dropped", "due_since", "failures", "not_before", "since", "timer", "timer_at")

    def __init__(self) -> None:
        self.failures = 0
        self.not_before = 0.0
        self.due_since: float | None = None
        self.since: float | None = None
        self.again = False
        self.dropped = False
        self.timer: asyncio.TimerHandle | None = None
        self.timer_at = 0.0


class WorkQueue:
    """Calls `work(key)` for each added key; its result is the seconds until the next call, or None.

    If it raises, it is called again after a back-off that grows with each consecutive failure; `add` does not shorten
    it. Calls of `add` during a pass are merged into one further pass. Keys are ignored before `start`. `label` names a
    key in logs.
    """

    def __init__(
        self, work: Callable[[str], Awaitable[float | None]], label: Callable[[str], str], metrics: Metrics
    ) -> None:
        self._work = work
        self._label = label
        self._metrics = metrics
        self._entries: dict[str, _Entry] = {}
        self._due: deque[str] = deque()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._open = False

    def start(self) -> None:
        """Accept keys from now on."""
        self._open = True

    def add(self, key: str) -> None:
        """Queue the key as soon as its spacing or back-off allows."""
        if not self._open:
            return
        entry = self._entries.setdefault(key, _Entry())
        if entry.since is not None:
            entry.again, entry.dropped = True, False
        elif entry.due_since is None:
            self._at(key, entry, _now())

    def forget(self, key: str) -> None:
        """Drop the key; a running pass continues."""
        entry = self._entries.get(key)
        if entry is None:
            return
        if entry.since is not None:
            entry.again, entry.dropped = False, True
            return
        del self._entries[key]
        if entry.timer is not None:
            entry.timer.cancel()
        if entry.due_since is not None:
            self._due.remove(key)
            self._measure()

    async def stop(self, seconds: float) -> None:
        """Start no further pass and wait up to `seconds` for the running ones."""
        self._open = False
        for key in list(self._entries):
            self.forget(key)
        if not self._running:
            return
        _, late = await asyncio.wait(self._running.values(), timeout=seconds)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    def longest_seconds(self) -> float:
        """Seconds since the start of the oldest running pass."""
        now = _now()
        return max((now - entry.since for entry in self._entries.values() if entry.since is not None), default=0.0)

    def _at(self, key: str, entry: _Entry, time: float) -> None:
        """Make the key due at that time, or later if its spacing or back-off requires it; an earlier timer stays."""
        time = max(time, entry.not_before)
        if entry.timer is not None:
            if entry.timer_at <= time:
                return
            entry.timer.cancel()
            entry.timer = None
        if time <= _now():
            self._make_due(key, entry)
        else:
            entry.timer_at = time
            entry.timer = asyncio.get_running_loop().call_at(time, self._make_due, key, entry)

    def _make_due(self, key: str, entry: _Entry) -> None:
        entry.timer = None
        entry.due_since = _now()
        self._due.append(key)
        self._begin()

    def _begin(self) -> None:
        """Start as many passes as the limit allows."""
        while self._due and len(self._running) < LIMIT:
            key = self._due.popleft()
            entry = self._entries[key]
            assert entry.due_since is not None, "only what is due is begun"
            self._metrics.queue_wait_seconds.observe(_now() - entry.due_since)
            entry.due_since, entry.since = None, _now()
            self._running[key] = asyncio.create_task(self._run(key, entry))
        self._measure()

    async def _run(self, key: str, entry: _Entry) -> None:
        wait: float | None = None
        entry.again = False  # the pass observes from here on, so it covers keys added before
        try:
            with logs.about(self._label(key)):
                wait = await self._pass(key, entry)
        finally:
            self._end(key, entry, wait)

    async def _pass(self, key: str, entry: _Entry) -> float | None:
        """Call `work` once; log what it raises."""
        try:
            wait = await self._work(key)
        except Exception as error:
            entry.failures += 1
            self._metrics.failures.inc()
            wait = BACKOFF.delay_seconds(entry.failures)
            entry.not_before = _now() + wait
            bug = None if isinstance(error, ApiError) else error
            logger.warning("%s; trying again in %.1f s", error, wait, exc_info=bug)
        else:
            entry.failures = 0
            entry.not_before = _now() + SPACING_SECONDS
        return wait

    def _end(self, key: str, entry: _Entry, wait: float | None) -> None:
        assert entry.since is not None, "only what runs can end"
        now = _now()
        self._metrics.reconcile_seconds.observe(now - entry.since)
        entry.since = None
        del self._running[key]
        if entry.dropped:
            del self._entries[key]
        elif entry.again:
            self._at(key, entry, now)
        elif wait is not None:
            self._at(key, entry, now + wait)
        self._begin()

    def _measure(self) -> None:
        self._metrics.queue_depth.set(len(self._due))


def _now() -> float:
    return asyncio.get_running_loop().time()
