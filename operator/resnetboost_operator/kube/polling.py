"""Asks the rank 0 of each running job for its progress, from time to time; what it says is for the plan to judge."""

import asyncio
from collections.abc import Callable

from resnetboost_operator import poll
from resnetboost_operator.pods import PodView
from resnetboost_operator.status import Progress


class Polling:
    """One question at a time for each job; `changed` is called with a job's uid after each, answered or not."""

    def __init__(self, changed: Callable[[str], None]) -> None:
        self._changed = changed
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._asked: dict[str, PodView] = {}
        self._progress: dict[str, Progress] = {}

    def progress(self, uid: str) -> Progress | None:
        """What the job's rank 0 told last."""
        return self._progress.get(uid)

    def follow(self, uid: str, pod: PodView | None, seconds: float) -> None:
        """Ask that pod after so many seconds, unless it is being asked already; None: ask nobody."""
        asked = self._asked.get(uid)
        if pod is not None and asked is not None and (pod.uid, pod.address) == (asked.uid, asked.address):
            return
        self._leave(uid)
        if pod is not None:
            self._asked[uid] = pod
            self._tasks[uid] = asyncio.create_task(self._ask(uid, pod.address, seconds))

    def forget(self, uid: str) -> None:
        """The job is gone."""
        self._leave(uid)
        self._progress.pop(uid, None)

    def close(self) -> None:
        """Ask nobody any more."""
        for uid in list(self._tasks):
            self._leave(uid)

    def _leave(self, uid: str) -> None:
        self._asked.pop(uid, None)
        task = self._tasks.pop(uid, None)
        if task is not None:
            task.cancel()

    async def _ask(self, uid: str, address: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        told = await poll.progress(address)
        if told is not None:
            self._progress[uid] = told
        self._asked.pop(uid, None)
        self._tasks.pop(uid, None)
        self._changed(uid)  # the next pass asks again
