"""Polls rank 0 of each running job for its progress."""

import asyncio
from collections.abc import Callable

from resnetboost_api.status import Progress
from resnetboost_operator import progress_client
from resnetboost_operator.observed.pods import PodView


class Polling:
    """One question at a time for each job; `changed` is called with a job's uid after each, answered or not."""

    def __init__(self, changed: Callable[[str], None]) -> None:
        self._changed = changed
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._asked: dict[str, PodView] = {}
        self._progress: dict[str, Progress] = {}
        self._reached: dict[str, str] = {}  # job uid: uid of the pod that was reached
        self._unreachable: dict[str, str] = {}  # job uid: uid of the pod that could not be reached

    def progress(self, uid: str) -> Progress | None:
        """What the job's rank 0 reported last."""
        return self._progress.get(uid)

    def unreachable(self, uid: str) -> bool:
        """Whether the network had no way to the job's rank 0 when it was asked last, nor ever before.

        Once reached, a rank that takes no connection is silent: one that hangs takes none when its backlog is full.
        """
        return uid in self._unreachable

    def follow(self, uid: str, pod: PodView | None, seconds: float) -> None:
        """Ask that pod after so many seconds, unless it is being asked already; None: ask nobody."""
        asked = self._asked.get(uid)
        if pod is not None and asked is not None and (pod.uid, pod.address) == (asked.uid, asked.address):
            return
        self._leave(uid)
        if pod is not None:
            if self._unreachable.get(uid) != pod.uid:
                self._unreachable.pop(uid, None)
            self._asked[uid] = pod
            self._tasks[uid] = asyncio.create_task(self._ask(uid, pod, seconds))

    def forget(self, uid: str) -> None:
        """The job is gone."""
        self._leave(uid)
        for known in (self._progress, self._reached, self._unreachable):
            known.pop(uid, None)

    def close(self) -> None:
        """Ask nobody any more."""
        for uid in list(self._tasks):
            self._leave(uid)

    def _leave(self, uid: str) -> None:
        self._asked.pop(uid, None)
        task = self._tasks.pop(uid, None)
        if task is not None:
            task.cancel()

    async def _ask(self, uid: str, pod: PodView, seconds: float) -> None:
        await asyncio.sleep(seconds)
        try:
            told = await progress_client.progress(pod.address)
        except progress_client.Unreachable:
            if self._reached.get(uid) != pod.uid:
                self._unreachable[uid] = pod.uid
        else:
            self._reached[uid] = pod.uid
            self._unreachable.pop(uid, None)
            if told is not None:
                self._progress[uid] = told
        self._asked.pop(uid, None)
        self._tasks.pop(uid, None)
        self._changed(uid)  # the next pass asks again
