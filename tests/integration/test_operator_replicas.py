"""Two operator replicas with leader election: never both act, and the standby takes over."""

import json
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

import pytest

from beds.cluster import ControlPlane
from beds.operator import Account, Kubelet, Operator, Proxy, Space
from beds.operator.jobs import job
from beds.operator.wait import eventually

pytestmark = pytest.mark.slow

GANG = ("digits-base-0-0", "digits-base-0-1")
NEXT_GANG = ("digits-base-1-0", "digits-base-1-1")
LEASE_SECONDS = 15


class Replica(NamedTuple):
    operator: Operator
    proxy: Proxy

    @property
    def writes(self) -> int:
        """Number of its writes other than to its lease."""
        return len(self.proxy.writes)


@pytest.fixture
def replicas(control_plane: ControlPlane, account: Account, space: Space) -> Iterator[list[Replica]]:
    """The leader and a standby."""
    account.allow_lease(space.namespace)
    with ExitStack() as stack:
        replicas = []
        for number in range(2):
            proxy = stack.enter_context(Proxy(control_plane.url, control_plane.ca))
            name = f"replica-{number}-{space.namespace}"
            operator = Operator(
                control_plane,
                account.kubeconfig_via(proxy.url, name),
                name,
                namespace=space.namespace,
                lease_namespace=space.namespace,
                forked=True,
            )
            stack.callback(operator.kill)
            operator.start()
            until_leader(space, f"replica-0-{space.namespace}")
            replicas.append(Replica(operator, proxy))
        yield replicas


@pytest.fixture
def operators(replicas: list[Replica]) -> list[Operator]:
    """Replicas whose logs are shown with a failure."""
    return [replica.operator for replica in replicas]


def until_leader(space: Space, name: str, seconds: float = 30) -> None:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{space.namespace}/leases"

    def holder() -> str:
        items = json.loads(space.plane.client.get(path))["items"]
        return str(items[0]["spec"].get("holderIdentity", "")) if items else ""

    eventually(holder, lambda found: found == name, f"{name} leads", seconds)


def test_only_the_leader_acts(
    space: Space, kubelet: Kubelet, replicas: list[Replica], operators: list[Operator]
) -> None:
    leader, other = replicas
    space.create(job())
    space.until_started()
    kubelet.exit(GANG[1], 137)
    space.until_started(attempt=1)
    for pod in NEXT_GANG:
        kubelet.exit(pod, 0)
    space.until_phase("Complete")
    assert leader.writes > 0
    assert other.writes == 0
    assert "resnetboost_job_phase{" in leader.operator.answer("/metrics")
    assert "resnetboost_job_phase{" not in other.operator.answer("/metrics"), "all sums over jobs would be doubled"
    assert sorted(kubelet.seen.values()) == [*GANG, *NEXT_GANG]


def test_another_takes_over_from_a_leader_that_was_killed(
    space: Space, kubelet: Kubelet, replicas: list[Replica], operators: list[Operator]
) -> None:
    leader, other = replicas
    space.create(job())
    space.until_started()
    leader.operator.kill()
    kubelet.exit(GANG[1], 137)
    until_leader(space, other.operator.name, LEASE_SECONDS + 10)
    status = space.until_started(attempt=1)
    assert [record["attempt"] for record in status["attempts"]] == [0]
    assert sorted(kubelet.seen.values()) == [*GANG, *NEXT_GANG]


def test_a_leader_that_ends_hands_over_at_once(
    space: Space, kubelet: Kubelet, replicas: list[Replica], operators: list[Operator]
) -> None:
    leader, other = replicas
    space.create(job())
    space.until_started()
    begun = time.monotonic()
    assert leader.operator.terminate() == 0
    until_leader(space, other.operator.name)
    assert time.monotonic() - begun < LEASE_SECONDS / 2
    kubelet.exit(GANG[1], 137)
    space.until_started(attempt=1)


def test_a_leader_that_was_frozen_does_nothing_more(
    space: Space, kubelet: Kubelet, replicas: list[Replica], operators: list[Operator]
) -> None:
    leader, other = replicas
    space.create(job())
    space.until_started()
    leader.operator.send(signal.SIGSTOP)
    written = leader.writes
    kubelet.exit(GANG[1], 137)
    until_leader(space, other.operator.name, LEASE_SECONDS + 10)
    space.until_started(attempt=1)
    leader.operator.send(signal.SIGCONT)
    assert leader.operator.exit_code() != 0, "it must start anew: what it knows is old"
    assert leader.writes == written
    assert sorted(kubelet.seen.values()) == [*GANG, *NEXT_GANG]


def test_a_successor_with_a_dead_watch_keeps_the_gang(
    space: Space, kubelet: Kubelet, replicas: list[Replica], operators: list[Operator]
) -> None:
    """The last event it received says the job was suspended: it must not delete the gang that trains since."""
    leader, other = replicas
    space.create(job(runPolicy={"suspend": True}))
    space.until_phase("Suspended")
    phases = 'resnetboost_operator_jobs{phase="Suspended"} 1.0'
    eventually(lambda: phases in other.operator.answer("/metrics"), bool, "the successor knows that it is suspended")
    other.proxy.muted = lambda call: call.collection == "resnetboostjobs"
    space.change("digits", runPolicy={"suspend": False})
    space.until_started()
    leader.operator.kill()
    until_leader(space, other.operator.name, LEASE_SECONDS + 10)
    for pod in GANG:
        kubelet.exit(pod, 0)
    status = space.until_phase("Complete")
    assert (status["restarts"], sorted(kubelet.seen.values())) == (0, sorted(GANG))
