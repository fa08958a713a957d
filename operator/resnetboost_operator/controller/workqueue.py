"""Who is to be looked at and when: one pass at a time for each key, many keys at once; what a pass does is not its."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from resnetboost_operator.controller import logs
from resnetboost_operator.controller.metrics import Metrics
from resnetboost_operator.kubeclient.errors import ApiError
from resnetboost_operator.kubeclient.retry import Backoff

logger = logging.getLogger(__name__)

# Passes at once; most of their time is waiting for answers.
LIMIT = 32
# After a pass the next one of that key waits so long: what a thousand pods do in that time is looked at once.
SPACING_SECONDS = 0.2
BACKOFF = Backoff(first_seconds=0.5, most_seconds=60.0)


class _Entry:
    """One key: idle with or without a timer, due, or running."""

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


class Queue:
    """`work(key)` is called for each key that was added; it returns after how many seconds to call it again, or None.

    If it raises, it is called again after a back-off that grows with each failure in a row; nothing hastens that.
    Calls of `add` meanwhile are not lost: they become one. Nothing happens before `start`. `label` names a key in logs.
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
        """From now on keys are taken."""
        self._open = True

    def add(self, key: str) -> None:
        """Look at the key as soon as may be."""
        if not self._open:
            return
        entry = self._entries.setdefault(key, _Entry())
        if entry.since is not None:
            entry.again, entry.dropped = True, False
        elif entry.due_since is None:
            self._at(key, entry, _now())

    def forget(self, key: str) -> None:
        """There is nothing to look at any more; a pass that runs goes on."""
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
        """Begin nothing any more and let what runs finish, for so long."""
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
        """How long the oldest of the passes has been running."""
        now = _now()
        return max((now - entry.since for entry in self._entries.values() if entry.since is not None), default=0.0)

    def _at(self, key: str, entry: _Entry, time: float) -> None:
        """Be due at that time if the key may be so soon, or before if a timer says so already."""
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
        """Begin as many passes as may run at once."""
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
        entry.again = False  # only now does the pass look: what was added until here, it sees
        try:
            with logs.about(self._label(key)):
                wait = await self._pass(key, entry)
        finally:
            self._end(key, entry, wait)

    async def _pass(self, key: str, entry: _Entry) -> float | None:
        """One call of `work`; what it raises is logged here, once."""
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
