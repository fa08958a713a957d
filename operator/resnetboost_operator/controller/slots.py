"""Who may ask the API server now: so many requests at once for all keys together, shared fairly; it asks nothing."""

import asyncio
import contextlib
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator


class Slots:
    """`total` places. A free one goes to the waiting key that has the fewest.

    Keys whose requests are not answered are slow: all of them together take at most `slow_total`, so however many
    there are and however long they hang, the others get on.
    """

    def __init__(self, total: int, slow_total: int) -> None:
        self._free = total
        self._slow_total = slow_total
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = defaultdict(deque)
        self._slow: set[str] = set()

    def is_slow(self, key: str) -> bool:
        """Whether the key counts as slow."""
        return key in self._slow

    def mark(self, key: str, slow: bool) -> None:
        """Count the key as slow, or no longer."""
        if slow:
            self._slow.add(key)
        else:
            self._slow.discard(key)
        self._hand_out()

    @contextlib.asynccontextmanager
    async def of(self, key: str) -> AsyncIterator[None]:
        """Wait for a place, and give it back."""
        await self._take(key)
        try:
            yield
        finally:
            self._give_back(key)

    async def _take(self, key: str) -> None:
        place = asyncio.get_running_loop().create_future()
        self._waiting[key].append(place)
        self._hand_out()
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._give_back(key)
            else:
                self._leave(key, place)
            raise

    def _leave(self, key: str, place: asyncio.Future[None]) -> None:
        queue = self._waiting.get(key)
        if queue is None or place not in queue:
            return
        queue.remove(place)
        if not queue:
            del self._waiting[key]

    def _give_back(self, key: str) -> None:
        self._free += 1
        self._held[key] -= 1
        if not self._held[key]:
            del self._held[key]
        self._hand_out()

    def _hand_out(self) -> None:
        while self._free and (entitled := [key for key in self._waiting if self._may_have_one(key)]):
            key = min(entitled, key=lambda found: self._held[found])
            place = self._waiting[key][0]
            self._leave(key, place)
            if place.cancelled():  # its task has yet to run and find out
                continue
            self._free -= 1
            self._held[key] += 1
            place.set_result(None)

    def _may_have_one(self, key: str) -> bool:
        return key not in self._slow or sum(self._held[found] for found in self._slow) < self._slow_total
