"""Request slots: fair order among keys, and no slot is lost."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from resnetboost_operator.controller.slots import Slots
from support.examples import examples


class Bed:
    """Requests that hold their slot until released; `held` lists those with a slot, in order."""

    def __init__(self, total: int, slow_total: int) -> None:
        self.slots = Slots(total, slow_total)
        self.held: list[str] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ends: dict[str, asyncio.Event] = {}

    async def ask(self, *names: str) -> None:
        """Start requests by name; the first letter is their key."""
        for name in names:
            self._ends[name] = asyncio.Event()
            self._tasks[name] = asyncio.create_task(self._hold(name))
        await self.settle()

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await self.settle()

    async def cancel(self, *names: str) -> None:
        for name in names:
            self._tasks[name].cancel()
        await self.settle()

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def _hold(self, name: str) -> None:
        async with self.slots.of(name[0]):
            self.held.append(name)
            try:
                await self._ends[name].wait()
            finally:
                self.held.remove(name)


def played(script: Callable[[Bed], Awaitable[None]], total: int = 3, slow_total: int = 1) -> Bed:
    async def play() -> Bed:
        bed = Bed(total, slow_total)
        await script(bed)
        return bed

    return asyncio.run(play())


def test_a_free_slot_goes_to_the_key_with_the_fewest() -> None:
    async def script(bed: Bed) -> None:
        await bed.ask("a1", "a2", "a3", "a4", "a5", "b1", "b2")
        assert bed.held == ["a1", "a2", "a3"]
        await bed.end("a1")
        assert bed.held == ["a2", "a3", "b1"]
        await bed.end("a2")
        assert bed.held == ["a3", "b1", "a4"], "of equals the one that has waited longer"

    played(script)


def test_slow_keys_share_a_few_slots_until_they_are_quick() -> None:
    async def script(bed: Bed) -> None:
        bed.slots.mark("a", slow=True)
        bed.slots.mark("b", slow=True)
        await bed.ask("a1", "a2", "b1", "c1")
        assert bed.held == ["a1", "c1"]
        bed.slots.mark("a", slow=False)
        await bed.settle()
        assert bed.held == ["a1", "c1", "b1"]

    played(script)


def test_cancelling_waiting_requests_loses_no_slot() -> None:
    async def script(bed: Bed) -> None:
        await bed.ask("a1", "a2", "a3", "a4", "a5")
        await bed.cancel("a1", "a2", "a4", "a5")  # all at once: slots become free before the waiting ones have left
        await bed.ask("b1", "b2", "b3")
        assert bed.held == ["a3", "b1", "b2"]

    played(script)


happening = st.tuples(st.sampled_from(["ask", "end", "cancel", "slow", "quick"]), st.integers(0, 20))


@examples(200)
@given(st.lists(happening, max_size=40))
def test_no_slot_is_lost_or_given_twice(world: Sequence[tuple[str, int]]) -> None:
    async def script(bed: Bed) -> None:
        asked: list[str] = []
        for number, (what, which) in enumerate(world):
            key = "abc"[which % 3]
            if what == "ask":
                asked.append(f"{key}{number}")
                await bed.ask(asked[-1])
            elif what in ("slow", "quick"):
                bed.slots.mark(key, slow=what == "slow")
                await bed.settle()
            elif asked:
                name = asked.pop(which % len(asked))
                await (bed.end(name) if what == "end" else bed.cancel(name))
            assert len(bed.held) <= 3
        for name in asked:
            await bed.cancel(name)
        for key in "abc":
            bed.slots.mark(key, slow=False)
        assert bed.held == []
        await bed.ask("d1", "d2", "d3", "d4")
        assert bed.held == ["d1", "d2", "d3"]
        for name in ("d1", "d2", "d3", "d4"):
            await bed.cancel(name)

    played(script)
