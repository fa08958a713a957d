"""Polls rank 0 of each running job for its progress."""

import asyncio
from collections.abc import Callable

from resnetboost_api.status import Progress
from resnetboost_operator import progress_client
from resnetboost_operator.observed.pods import PodView


class ProgressPoller:
    """Polls rank 0 of each followed job, one request at a time per job.

    `changed` is called with a job's uid after each request, successful or not.
    """

    def __init__(self, changed: Callable[[str], None]) -> None:
        self._changed = changed
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._asked: dict[str, PodView] = {}
        self._progress: dict[str, Progress] = {}
        self._reached: dict[str, str] = {}  # job uid: uid of the pod that was reached
        self._unreachable: dict[str, str] = {}  # job uid: uid of the pod that could not be reached

    def progress(self, uid: str) -> Progress | None:
        """The last progress that the job's rank 0 reported."""
        return self._progress.get(uid)

    def unreachable(self, uid: str) -> bool:
        """True if no request has ever connected to the job's current rank 0, including the last one.

        Once reached, a rank that accepts no connection counts as silent: one that hangs has a full backlog.
        """
        return uid in self._unreachable

    def follow(self, uid: str, pod: PodView | None, seconds: float) -> None:
        """Poll that pod once, after so many seconds, unless it is being polled already; None: poll no pod."""
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
        """Forget a deleted job."""
        self._leave(uid)
        for known in (self._progress, self._reached, self._unreachable):
            known.pop(uid, None)

    def close(self) -> None:
        """Stop polling."""
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
            progress = await progress_client.progress(pod.address)
        except progress_client.Unreachable:
            if self._reached.get(uid) != pod.uid:
                self._unreachable[uid] = pod.uid
        else:
            self._reached[uid] = pod.uid
            self._unreachable.pop(uid, None)
            if progress is not None:
                self._progress[uid] = progress
        self._asked.pop(uid, None)
        self._tasks.pop(uid, None)
        self._changed(uid)  # the next pass polls again
