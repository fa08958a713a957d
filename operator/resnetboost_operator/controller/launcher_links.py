"""Links to the launchers of running jobs' leaders: what they report, and what the plan commands."""

from collections.abc import Callable
from functools import partial

from resnetboost_api.launcher import GangReport, StartAttempt
from resnetboost_operator import launcher_client
from resnetboost_operator.launcher_client import Link
from resnetboost_operator.observed.pods import PodView


class LauncherLinks:
    """One link for each followed job. `changed` is called with a job's uid for each new report, or loss of the link.

    `key` is that of all tokens: an operator with another one reaches no launcher, and restarts gangs with new pods.
    """

    def __init__(self, key: bytes, changed: Callable[[str], None]) -> None:
        self._key = key
        self._changed = changed
        self._links: dict[str, tuple[tuple[str, str], Link]] = {}

    def token(self, uid: str) -> bytes:
        """The token of the job's launchers."""
        return launcher_client.token(self._key, uid)

    def report(self, uid: str) -> GangReport | None:
        """What the job's leader reported last; None while there is no connection to it."""
        found = self._links.get(uid)
        return found[1].report if found is not None else None

    def follow(self, uid: str, pod: PodView | None, command: StartAttempt | None) -> None:
        """Keep a link to that pod, and to no other of the job; send the command. None: keep no link."""
        wanted = (pod.uid, pod.address) if pod is not None else None
        known = self._links.get(uid)
        if known is not None and known[0] != wanted:
            self.forget(uid)
        if wanted is not None and uid not in self._links:
            self._links[uid] = (wanted, Link(wanted[1], self.token(uid), partial(self._changed, uid)))
        if command is not None and uid in self._links:
            self._links[uid][1].send(command)

    def forget(self, uid: str) -> None:
        """Close the job's link."""
        found = self._links.pop(uid, None)
        if found is not None:
            found[1].close()

    def close(self) -> None:
        """Close all links."""
        for uid in list(self._links):
            self.forget(uid)
