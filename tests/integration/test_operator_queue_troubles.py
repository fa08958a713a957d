"""A queued job where Kueue, its kinds, the operator's option or rights are missing, or writes of its Workload fail."""

import contextlib
from collections.abc import Callable, Iterator

import pytest

from beds.cluster import ControlPlane
from beds.operator import Account, Kubelet, Operator, Proxy, Space
from beds.operator.jobs import QUEUE, job, queued
from beds.operator.namespace import condition
from beds.operator.proxy import Call, Trouble
from beds.operator.service_account import KUEUE_RULES
from beds.operator.wait import eventually
from beds.queue import KUEUE, Kueue, kinds, served
from beds.queue.decisions import FLAVOR

pytestmark = pytest.mark.slow

GANG = ("digits-base-0-0", "digits-base-0-1")


@pytest.fixture
def start(
    control_plane: ControlPlane, account: Account, space: Space, proxy: Proxy
) -> Iterator[Callable[..., Operator]]:
    """Starts an operator for the test's namespace alone, behind the test's proxy, with these options."""
    with contextlib.ExitStack() as stack:

        def started(*options: str) -> Operator:
            account.allow_lease(space.namespace)
            operator = Operator(
                control_plane,
                account.kubeconfig_via(proxy.url, space.namespace),
                f"operator-{space.namespace}",
                namespace=space.namespace,
                lease_namespace=space.namespace,
                options=options,
                forked=True,
            )
            stack.callback(operator.kill)
            operator.launch()
            return operator

        yield started


@pytest.fixture
def rights(account: Account) -> Iterator[None]:
    """As of the chart with kueue.enabled."""
    account.allow(KUEUE_RULES)
    yield
    account.deny(KUEUE_RULES)


@pytest.fixture
def kinds_served(control_plane: ControlPlane) -> Iterator[None]:
    """Kueue's kinds, and a flavor."""
    with served(control_plane, KUEUE):
        kinds.add_flavor(control_plane, FLAVOR)
        yield


def until_admission(space: Space, reason: str, *words: str, job: str = "digits") -> None:
    def is_said(status: dict[str, object]) -> bool:
        admitted = condition(status, "Admitted")
        return admitted.get("reason") == reason and all(word in admitted["message"] for word in words)

    space.until(is_said, f"Admitted has the reason {reason}: {words}", job)


@pytest.mark.usefixtures("kinds_served")
def test_without_the_option_the_job_runs_and_says_so(
    space: Space, kubelet: Kubelet, start: Callable[..., Operator]
) -> None:
    start()
    space.create(queued(job()))
    space.until_started()
    until_admission(space, "KueueDisabled", "has no effect", "kueue.enabled")
    assert "KueueDisabled" in space.event_reasons()


@pytest.mark.usefixtures("rights")
def test_without_the_kinds_the_job_runs_and_kueue_is_found_when_it_is_installed(
    control_plane: ControlPlane, space: Space, kubelet: Kubelet, start: Callable[..., Operator]
) -> None:
    start("--kueue")
    space.create(queued(job()))
    space.until_started()
    until_admission(space, "KueueMissing", "install Kueue")
    with served(control_plane, KUEUE):
        kinds.add_flavor(control_plane, FLAVOR)
        patient = Space(control_plane, space.namespace, 120.0)  # the operator looks once a minute
        until_admission(patient, "NotQueued", "suspend the job")
        assert len(kubelet.seen) == 2, "the gang runs on"
        with Kueue(control_plane, space.namespace) as kueue:
            space.create(queued(job("other")))
            until_admission(space, "Inadmissible", job="other")
            kueue.set_queue(QUEUE, 2)
            space.until_started(job="other")
            kueue.allow_without_queue()
            space.change("digits", runPolicy={"suspend": True})
            space.until_phase("Suspended")
            space.change("digits", runPolicy={"suspend": False})
            until_admission(space, "WaitingForQuota")
            assert kueue.broken_promises() == []


@pytest.mark.usefixtures("kinds_served")
def test_without_the_rights_the_operator_says_so_until_it_has_them(
    account: Account, space: Space, kubelet: Kubelet, start: Callable[..., Operator]
) -> None:
    operator = start("--kueue")
    eventually(
        operator.readiness,
        lambda answer: "workloads.kueue.x-k8s.io is forbidden" in answer,
        "its readiness says what it lacks",
    )
    space.create(job())
    space.create(queued(job("other")))
    account.allow(KUEUE_RULES)
    try:
        operator.until_ready()
        space.until_started()
        space.until_phase("Queued", job="other")
        assert space.names_of("pods") == list(GANG)
    finally:
        account.deny(KUEUE_RULES)


@pytest.mark.usefixtures("rights", "kinds_served")
@pytest.mark.parametrize("trouble", ["conflict", "lost", "unavailable"])
def test_writes_of_the_workload_that_fail_are_made_again(
    control_plane: ControlPlane,
    space: Space,
    kubelet: Kubelet,
    proxy: Proxy,
    start: Callable[..., Operator],
    trouble: str,
) -> None:
    def concerns(call: Call) -> bool:
        return call.collection == "workloads" and call.is_write

    def fail() -> None:
        code = {"conflict": 409, "lost": 0, "unavailable": 503}[trouble]
        proxy.troubles.append(Trouble(2, concerns, code, lost=trouble == "lost"))

    with Kueue(control_plane, space.namespace) as kueue:
        kueue.set_queue(QUEUE, 2)
        start("--kueue").until_ready()
        if trouble != "conflict":  # of a creation it means that there is one of that name
            fail()
        space.create(queued(job()))
        fail()
        kueue.until_reason("digits", "PodsReady", "Started")
        space.until_started()
        kueue.set_queue(QUEUE, 0)
        fail()
        kueue.evict("digits")
        kueue.until_reason("digits", "PodsReady", "WaitForStart")
        space.until_phase("Queued")
        kueue.set_queue(QUEUE, 2)
        space.until_started(attempt=1)
        fail()
        for index in (1, 0):
            kubelet.exit(f"digits-base-1-{index}", 0)
        kueue.until_reason("digits", "Finished", "Succeeded")
        assert kueue.broken_promises() == []
        assert kueue.counts() == {"workloads": 1, "evictions": 1, "releases": 1}
    assert all(trouble.times < 2 for trouble in proxy.troubles), "each kind of write has failed"


@pytest.mark.usefixtures("rights", "kinds_served")
def test_an_orphan_is_finished_by_kueue(control_plane: ControlPlane, space: Space) -> None:
    """Of the stand-in, as a real Kueue did: a Workload needs its owner from the beginning."""
    owner = {"apiVersion": "resnetboost.io/v1alpha1", "kind": "ResNetBoostJob", "name": "gone", "uid": "gone"}
    labels = {"resnetboost.io/job": "gone"}
    spec = {"queueName": QUEUE, "podSets": [{"name": "ranks", "count": 1, "template": {}}]}
    body = {"metadata": {"name": "orphan", "labels": labels, "ownerReferences": [owner]}, "spec": spec}
    with Kueue(control_plane, space.namespace) as kueue:
        kueue.set_queue(QUEUE, 2)
        path = f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{space.namespace}/workloads"
        control_plane.client.send("POST", path, {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", **body})
        kueue.until_reason("gone", "Finished", "OwnerNotFound")
