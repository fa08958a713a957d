"""Liveness and readiness of the operator, for the probes."""

import time
from collections.abc import Sequence
from itertools import chain

from resnetboost_operator.controller.leaderelection import LeaderElector
from resnetboost_operator.controller.optional_watches import OptionalWatches
from resnetboost_operator.controller.resync import Resync
from resnetboost_operator.controller.store import Store
from resnetboost_operator.controller.workqueue import WorkQueue
from resnetboost_operator.kubeclient.reflector import Reflector

# A watch receives bookmarks once a minute and reconnects without them.
WATCH_SILENCE_SECONDS = 300.0
# Only kopf's requests are seen, not its bookmarks; it reconnects after ten minutes.
KOPF_SILENCE_SECONDS = 900.0
# A thousand pods on an overloaded API server take minutes.
LONGEST_PASS_SECONDS = 900.0


class Health:
    """State of the operator's parts. `trouble` is why it cannot watch anything yet; '' once it can."""

    def __init__(
        self,
        store: Store,
        queue: WorkQueue,
        elector: LeaderElector,
        reflectors: Sequence[Reflector],
        optional: OptionalWatches,
        resync: Resync,
        identity: str,
    ) -> None:
        self._store = store
        self._queue = queue
        self._elector = elector
        self._reflectors = reflectors
        self._optional = optional
        self._resync = resync
        self._identity = identity
        self.trouble = "starting"

    def stuck(self) -> str:
        """The part that makes no progress, so that only a restart helps; '' if all do.

        Neither an API server that is down nor a missing CRD counts: a restart would not help.
        """
        if self.trouble:
            return ""
        now = time.monotonic()
        for reflector in chain(self._reflectors, self._optional.reflectors):
            if now - reflector.heard_at > WATCH_SILENCE_SECONDS:
                return f"the watch of the {reflector.name} has stopped"
        if now - self._resync.heard_at > KOPF_SILENCE_SECONDS:
            return "the watch of the jobs has stopped"
        if self._queue.longest_seconds() > LONGEST_PASS_SECONDS:
            return "a pass does not end"
        return ""

    def unready(self) -> str:
        """Why the caches are not synced or the operator cannot lead; '' if it is ready."""
        if self.trouble:
            return self.trouble
        if self._store.synced:
            return f"lease: {self._elector.trouble}" if self._elector.trouble else ""
        reflectors = chain(self._reflectors, self._optional.reflectors)
        waiting = [f"{reflector.name}: {reflector.trouble}" for reflector in reflectors if reflector.trouble]
        if self._optional.trouble:
            waiting.append(f"APIs of schedulers: {self._optional.trouble}")
        if not self._store.jobs.synced:
            waiting.append("jobs: not listed yet")
        return "; ".join(waiting)

    def role(self) -> str:
        """The role of this process, for the readiness probe."""
        if self._elector.is_leading():
            return f"leading as {self._identity}"
        return f"standing by; {self._elector.holder or 'nobody'} leads"
