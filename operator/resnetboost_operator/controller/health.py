"""Whether the operator lives and is ready, as the probes tell it; it looks at its parts and heals nothing."""

import time
from collections.abc import Sequence

from resnetboost_operator.controller.leaderelection import Leader
from resnetboost_operator.controller.resync import Census
from resnetboost_operator.controller.store import Store
from resnetboost_operator.controller.workqueue import Queue
from resnetboost_operator.kubeclient.reflector import Watch

# A watch hears of bookmarks once a minute, and reconnects when it does not.
WATCH_SILENCE_SECONDS = 300.0
# kopf's requests are heard, not its bookmarks: it reconnects after ten minutes.
KOPF_SILENCE_SECONDS = 900.0
# A thousand pods against a struggling API server take minutes.
LONGEST_PASS_SECONDS = 900.0


class Health:
    """`trouble`: why the operator has not got so far that it could watch anything; '' once it has."""

    def __init__(
        self, store: Store, queue: Queue, leader: Leader, watches: Sequence[Watch], census: Census, identity: str
    ) -> None:
        self._store = store
        self._queue = queue
        self._leader = leader
        self._watches = watches
        self._census = census
        self._identity = identity
        self.trouble = "starting"

    def stuck(self) -> str:
        """What makes no progress any more, so that only a restart helps; '' if nothing does.

        An API server that is down is no reason, nor a definition that is not there: a restart would bring neither.
        """
        if self.trouble:
            return ""
        now = time.monotonic()
        for watch in self._watches:
            if now - watch.heard_at > WATCH_SILENCE_SECONDS:
                return f"the watch of the {watch.name} has stopped"
        if now - self._census.heard_at > KOPF_SILENCE_SECONDS:
            return "the watch of the jobs has stopped"
        if self._queue.longest_seconds() > LONGEST_PASS_SECONDS:
            return "a pass does not end"
        return ""

    def unready(self) -> str:
        """Why not everything there is has been seen yet, or why it could not lead; '' if all is well."""
        if self.trouble:
            return self.trouble
        if self._store.filled:
            return f"lease: {self._leader.trouble}" if self._leader.trouble else ""
        waiting = [f"{watch.name}: {watch.trouble}" for watch in self._watches if watch.trouble]
        if not self._store.jobs.filled:
            waiting.append("jobs: not listed yet")
        return "; ".join(waiting)

    def role(self) -> str:
        """Who leads."""
        if self._leader.is_leading():
            return f"leading as {self._identity}"
        return f"standing by; {self._leader.holder or 'nobody'} leads"
