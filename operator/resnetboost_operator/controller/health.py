"""Whether the operator lives and is ready, as the probes tell it; it looks at its parts and heals nothing."""

import time
from collections.abc import Sequence

from resnetboost_operator.controller.leaderelection import LeaderElector
from resnetboost_operator.controller.resync import Resync
from resnetboost_operator.controller.store import Store
from resnetboost_operator.controller.workqueue import WorkQueue
from resnetboost_operator.kubeclient.reflector import Reflector

# A watch hears of bookmarks once a minute, and reconnects when it does not.
WATCH_SILENCE_SECONDS = 300.0
# kopf's requests are heard, not its bookmarks: it reconnects after ten minutes.
KOPF_SILENCE_SECONDS = 900.0
# A thousand pods against a struggling API server take minutes.
LONGEST_PASS_SECONDS = 900.0


class Health:
    """`trouble`: why the operator has not got so far that it could watch anything; '' once it has."""

    def __init__(
        self,
        store: Store,
        queue: WorkQueue,
        elector: LeaderElector,
        reflectors: Sequence[Reflector],
        resync: Resync,
        identity: str,
    ) -> None:
        self._store = store
        self._queue = queue
        self._elector = elector
        self._reflectors = reflectors
        self._resync = resync
        self._identity = identity
        self.trouble = "starting"

    def stuck(self) -> str:
        """What makes no progress any more, so that only a restart helps; '' if nothing does.

        An API server that is down is no reason, nor a definition that is not there: a restart would bring neither.
        """
        if self.trouble:
            return ""
        now = time.monotonic()
        for reflector in self._reflectors:
            if now - reflector.heard_at > WATCH_SILENCE_SECONDS:
                return f"the watch of the {reflector.name} has stopped"
        if now - self._resync.heard_at > KOPF_SILENCE_SECONDS:
            return "the watch of the jobs has stopped"
        if self._queue.longest_seconds() > LONGEST_PASS_SECONDS:
            return "a pass does not end"
        return ""

    def unready(self) -> str:
        """Why not everything there is has been seen yet, or why it could not lead; '' if all is well."""
        if self.trouble:
            return self.trouble
        if self._store.synced:
            return f"lease: {self._elector.trouble}" if self._elector.trouble else ""
        waiting = [f"{reflector.name}: {reflector.trouble}" for reflector in self._reflectors if reflector.trouble]
        if not self._store.jobs.synced:
            waiting.append("jobs: not listed yet")
        return "; ".join(waiting)

    def role(self) -> str:
        """Who leads."""
        if self._elector.is_leading():
            return f"leading as {self._identity}"
        return f"standing by; {self._elector.holder or 'nobody'} leads"
