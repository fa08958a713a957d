"""All launchers of a gang in one process, of the trainer's own code: only their ranks are played."""

import asyncio
import threading
import time
from collections.abc import Mapping
from typing import Any

from resnetboost_api import names
from resnetboost_trainer.launcher.launcher import Launcher

KILLED, INTERRUPTED = 137, 16
_SECONDS = 60.0


class _Rank:
    """A rank that runs until somebody ends it."""

    def __init__(self) -> None:
        self._end: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()

    async def started(self) -> None:
        """It exists from its creation on."""

    async def wait(self) -> tuple[int, str]:
        return await self._end

    def end(self, code: int) -> None:
        if not self._end.done():
            self._end.set_result((code, ""))

    def terminate(self) -> None:
        self.end(INTERRUPTED)

    def kill(self) -> None:
        self.end(KILLED)


class _Ranks:
    """Starts ranks of one index at once, and notes when."""

    def __init__(self, gang: "GangLaunchers") -> None:
        self._gang = gang
        self.rank: _Rank | None = None

    async def start(self, attempt: int, config: Mapping[str, Any] | None, coordinator_port: int | None) -> _Rank:
        self.rank = _Rank()
        self._gang.starts.append((attempt, time.monotonic()))
        return self.rank


class GangLaunchers:
    """Launchers of a gang of `count` that listen, or connect, at one address. `starts`: attempt and monotonic time."""

    def __init__(self, address: str, token: bytes, count: int) -> None:
        self.starts: list[tuple[int, float]] = []
        self._address, self._token, self._count = address, token, count
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="launchers", daemon=True)
        self._thread.start()
        if not self._ready.wait(_SECONDS):
            raise TimeoutError(f"nothing listens on {address}")

    @property
    def attempt(self) -> int:
        """The newest attempt that a rank has started for."""
        return self.starts[-1][0]

    def end(self, index: int, code: int) -> None:
        """End that rank."""
        self._loop.call_soon_threadsafe(self._end, index, code)

    def close(self) -> None:
        """End all launchers."""
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(_SECONDS)

    def _end(self, index: int, code: int) -> None:
        rank = self._ranks[index].rank
        if rank is not None:
            rank.end(code)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._live())
        self._loop.close()

    async def _live(self) -> None:
        self._stopping = asyncio.Event()
        self._ranks = [_Ranks(self) for _ in range(self._count)]
        launchers = [Launcher(index, self._count, 0, ranks) for index, ranks in enumerate(self._ranks)]
        launchers[0].lead(self._address, names.PORT_LAUNCHER, self._token)
        for launcher in launchers[1:]:
            launcher.follow(self._address, names.PORT_LAUNCHER, self._token)
        self._lives = [asyncio.create_task(launcher.run()) for launcher in launchers]
        while len(self.starts) < self._count:
            await asyncio.sleep(0.01)
        self._ready.set()
        await self._stopping.wait()
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
