"""Runs a scenario with an operator that is killed at given writes, and returns its outcome."""

import contextlib
import functools
import threading
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from beds.cluster import ControlPlane
from beds.operator.kubelet import Kubelet
from beds.operator.namespace import JOB, Manifest, Space
from beds.operator.process import Operator
from beds.operator.proxy import Crash, Proxy, When
from beds.operator.scenarios import ALL, OPTIONS
from beds.operator.service_account import Account
from beds.operator.wait import eventually

_PATIENCE_SECONDS = 120.0  # several operators start at once, on few cores
_REST_SECONDS = 1.5
_TIMES = frozenset(
    {
        "attemptCreationTime",
        "attemptStartTime",
        "attemptTrainingTime",
        "attemptWaitingTime",
        "completionTime",
        "endTime",
        "faultTime",
        "heartbeatTime",
        "lastTransitionTime",
        "resizeTime",
        "restartTime",
        "selector",  # has the job's uid
        "startTime",
        "waitingTime",
    }
)
# Durations, which a crash may change.
_DURATIONS = frozenset({"attemptSeconds", "productiveSeconds", "percent", "lost", "attemptWaitedSeconds"})


class Point(NamedTuple):
    """The write at which the operator is killed: see `Crash`."""

    write: int
    when: When


@dataclass(frozen=True)
class End:
    """State at the end of a scenario; `created` counts the creations of each object."""

    status: Manifest
    objects: dict[str, list[str]]
    created: dict[str, int]

    def agrees(self, expected: "End") -> bool:
        """Whether the outcome is the same and no object was created more often.

        A creation whose client was killed while the API server answered may be missing in its audit log.
        """
        same = (self.status, self.objects) == (expected.status, expected.objects)
        return same and self.created.items() <= expected.created.items()


@dataclass(frozen=True)
class Outcome:
    """Result of a scenario, the number of writes, and how often the operator was killed."""

    end: End
    writes: int
    deaths: int


def play(plane: ControlPlane, account: Account, scenario: str, point: Point | None = None) -> Outcome:
    """Run a scenario to its end. Raises AssertionError, with the operator's log, on timeout."""
    name = _namespace(plane, account)
    with _Life(plane, account, name, OPTIONS.get(scenario, ()), point) as life:
        space, begin = Space(plane, name, _PATIENCE_SECONDS), plane.audit_log.stat().st_size
        try:
            with Kubelet(plane, name) as kubelet:
                ALL[scenario](space, kubelet)
                life.until_rest()
                return Outcome(_end(space, begin), len(life.proxy.writes), life.deaths)
        except AssertionError as error:
            error.add_note(f"{scenario}, killed at {point}; the operator's log ends so:\n{life.operator.log_tail()}")
            raise
        finally:
            space.clear()


class _Life:
    """An operator behind a proxy that kills it; restarted each time, as by a Deployment."""

    def __init__(
        self,
        plane: ControlPlane,
        account: Account,
        namespace: str,
        options: Sequence[str],
        point: Point | None,
    ) -> None:
        self.deaths = 0
        self.proxy = Proxy(plane.url, plane.ca)
        self._revivals: list[threading.Thread] = []
        self._make_operator = functools.partial(_operator, plane, account, namespace, options)
        if point is not None:
            self.proxy.crash = Crash(point.write, point.when, self._die)

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.proxy)
            self.operator = self._make_operator(self.proxy.url)
            stack.callback(self._stop)
            self.operator.start()
            self._resources = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def until_rest(self) -> None:
        """Wait until the operator runs and writes nothing more."""
        seen, since = -1, time.monotonic()

        def rests() -> bool:
            nonlocal seen, since
            if len(self.proxy.writes) != seen or any(revival.is_alive() for revival in self._revivals):
                seen, since = len(self.proxy.writes), time.monotonic()
            return time.monotonic() > since + _REST_SECONDS

        eventually(rests, bool, "the operator has nothing more to write", _PATIENCE_SECONDS)

    def _die(self) -> None:
        """Called in the middle of a request, so another thread restarts the operator."""
        self.operator.kill()
        self.deaths += 1
        revival = threading.Thread(target=self._revive, name="revival")
        self._revivals.append(revival)
        revival.start()

    def _revive(self) -> None:
        self.proxy.reopen()
        self.operator.launch()

    def _stop(self) -> None:
        self.proxy.crash = None
        for revival in self._revivals:
            revival.join()
        self.operator.kill()


def _operator(plane: ControlPlane, account: Account, namespace: str, options: Sequence[str], url: str) -> Operator:
    name = f"operator-{namespace}"
    kubeconfig = account.kubeconfig_via(url, name)
    return Operator(
        plane, kubeconfig, name, namespace=namespace, lease_namespace=namespace, options=options, forked=True
    )


def _namespace(plane: ControlPlane, account: Account) -> str:
    """A new namespace. It stays: its end would cost the API server more requests than half a scenario."""
    name = f"chaos-{uuid.uuid4().hex[:8]}"
    plane.client.send("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    needed = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    eventually(lambda: plane.client.answers(needed), bool, "the service account that pods need", _PATIENCE_SECONDS)
    account.allow_lease(name)
    return name


def _end(space: Space, begin: int) -> End:
    job = space.get(JOB, "digits")

    def lasting(name: str) -> str:
        """The name without the uid of this job, which the next run's does not have."""
        return name.replace(job["metadata"]["uid"][:8], "UID")

    objects = {plural: list(map(lasting, space.names_of(plural))) for plural in ("pods", "configmaps", "services")}
    created = {lasting(name): count for name, count in _created(space, begin).items()}
    status: Manifest = _timeless(job["status"])
    return End(status, objects, created)


def _timeless(value: Any) -> Any:
    """A status without its times, the only part that a crash may change."""
    if isinstance(value, dict):
        left = {key: found for key, found in value.items() if key not in _TIMES | _DURATIONS}
        return {key: _timeless(found) for key, found in left.items()}
    return [_timeless(found) for found in value] if isinstance(value, list) else value


def _created(space: Space, begin: int) -> dict[str, int]:
    """Number of successful creations of each pod, config map and service, from the audit log behind `begin`."""
    by_operator = space.plane.requests(Account.user, begin)
    counts = Counter(
        f"{found.resource}/{found.name}"
        for found in by_operator
        if (found.namespace, found.verb, found.code) == (space.namespace, "create", 201)
        and found.resource in ("pods", "configmaps", "services")
    )
    return dict(counts)
