"""An API server that is down, slow, overloaded or drops events; and an idle operator sends no requests."""

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from beds.cluster import ControlPlane, Request
from beds.cluster.fixtures import CRD
from beds.operator import Account, Kubelet, Operator, Proxy, Space
from beds.operator.jobs import job
from beds.operator.namespace import JOB, condition
from beds.operator.proxy import Call, Trouble
from beds.operator.wait import eventually
from resnetboost_api import names

pytestmark = pytest.mark.slow

GANG = ("digits-base-0-0", "digits-base-0-1")


@pytest.fixture
def operator(operator_behind_proxy: Operator) -> Operator:
    return operator_behind_proxy


def until_complete(space: Space, kubelet: Kubelet, ranks: int = 2) -> None:
    """The gang runs and completes, without a restart and without duplicate creations."""
    space.until_started()
    for index in range(ranks):
        kubelet.exit(f"digits-base-0-{index}", 0)
    assert space.until_phase("Complete")["restarts"] == 0
    assert len(kubelet.seen) == ranks


def is_pod_creation(call: Call) -> bool:
    return (call.method, call.collection) == ("POST", "pods")


def is_write(call: Call) -> bool:
    return call.is_write


def is_watch(call: Call) -> bool:
    return call.is_watch


@pytest.mark.parametrize(
    "trouble",
    [
        Trouble(4, is_pod_creation, code=429, retry_after="1"),
        Trouble(5, is_write, code=500),
        Trouble(5, is_write, code=503, retry_after="1"),
        Trouble(6, is_write, lost=True),
        Trouble(3, lambda call: call.collection == "leases", code=503),
        Trouble(6, is_watch, code=410),
        Trouble(4, is_watch, code=500),
        Trouble(3, is_watch, code=403),
    ],
    ids=[
        "too-many-requests",
        "internal-errors",
        "unavailable",
        "answers-lost",
        "lease-unavailable",
        "watches-too-old",
        "watches-fail",
        "watches-forbidden-for-a-moment",
    ],
)
def test_temporary_errors_are_harmless(
    space: Space, kubelet: Kubelet, operator: Operator, proxy: Proxy, trouble: Trouble
) -> None:
    proxy.troubles.append(trouble)
    proxy.cut_watches()
    space.create(job())
    until_complete(space, kubelet)
    eventually(lambda: trouble.times, lambda left: left == 0, "all of it happened")


def test_watches_that_break_all_the_time_lose_nothing(
    space: Space, kubelet: Kubelet, operator: Operator, proxy: Proxy
) -> None:
    with repeatedly(proxy.cut_watches, seconds=0.3):
        space.create(job(ranks=4))
        until_complete(space, kubelet, ranks=4)


def test_concurrent_writes_to_the_job_are_harmless(space: Space, kubelet: Kubelet, operator: Operator) -> None:
    space.create(job())

    def annotate() -> None:
        space.patch(JOB, "digits", {"metadata": {"annotations": {"now": str(time.monotonic())}}})

    with repeatedly(annotate, seconds=0.02):
        until_complete(space, kubelet)


@contextlib.contextmanager
def repeatedly(act: Callable[[], object], seconds: float) -> Iterator[None]:
    """Repeat an action in the background."""
    stopping = threading.Event()

    def work() -> None:
        while not stopping.wait(seconds):
            act()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def test_pods_are_created_many_at_once(space: Space, kubelet: Kubelet, operator: Operator, proxy: Proxy) -> None:
    proxy.delay_seconds = 0.5
    space.create(job(ranks=32))
    space.until(lambda status: status.get("attemptCreationTime"), "the creation begins")
    begun = time.monotonic()
    eventually(lambda: len(space.pods()), lambda count: count == 32, "32 pods")
    assert time.monotonic() - begun < 8, "one after another it would take 16 s"


@contextlib.contextmanager
def webhook_that_never_answers(space: Space, *jobs: str) -> Iterator[None]:
    """Accepts the connections for creating pods of these jobs, and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as server:
        hook = {
            "name": "hangs.example.com",
            "clientConfig": {"url": f"https://127.0.0.1:{server.getsockname()[1]}/"},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": space.namespace}},
            "objectSelector": {"matchExpressions": [{"key": names.LABEL_JOB, "operator": "In", "values": list(jobs)}]},
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "timeoutSeconds": 30,
            "admissionReviewVersions": ["v1"],
        }
        path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
        space.plane.client.send("POST", path, {"metadata": {"name": space.namespace}, "webhooks": [hook]})
        try:
            yield
        finally:
            space.plane.client.send("DELETE", f"{path}/{space.namespace}")


def test_a_hanging_webhook_does_not_delay_other_jobs(
    space: Space, kubelet: Kubelet, operator: Operator, proxy: Proxy
) -> None:
    hanging = ("large", "huge")
    with webhook_that_never_answers(space, *hanging):
        for name in hanging:
            space.create(job(name, ranks=600))
        eventually(lambda: pod_creations(proxy), lambda count: count >= 32, "both wait for the webhook")
        space.patience_seconds = 15
        space.create(job(ranks=4))
        until_complete(space, kubelet, ranks=4)
        words = "no answer for 5 s to the creation of Pod large-base-0-"
        space.until(lambda status: words in condition(status, "Running")["message"], "people are told", job="large")
        asked = pod_creations(proxy)
        assert asked < 192, "slots are left for others"
        for name in hanging:
            space.delete(JOB, name, propagationPolicy="Background")
    space.until_names("pods", *(f"digits-base-0-{index}" for index in range(4)))


def pod_creations(proxy: Proxy) -> int:
    return sum(is_pod_creation(call) for call in proxy.calls)


def test_a_job_suspended_while_its_gang_is_created(
    space: Space, kubelet: Kubelet, operator: Operator, proxy: Proxy
) -> None:
    begin_slowly(space, proxy, ranks=200)
    space.change("digits", runPolicy={"suspend": True})
    space.until_phase("Suspended")
    space.until_pods()
    assert len(kubelet.seen) < 200, "the creation was broken off"


def test_a_job_deleted_while_its_gang_is_created(
    space: Space, kubelet: Kubelet, operator: Operator, proxy: Proxy
) -> None:
    begin_slowly(space, proxy, ranks=200)
    space.delete(JOB, "digits", propagationPolicy="Background")
    for plural in ("pods", "configmaps", "services"):
        space.until_names(plural)
    assert len(kubelet.seen) < 200, "the creation was broken off"


def begin_slowly(space: Space, proxy: Proxy, ranks: int = 64) -> None:
    """Start a gang with slow creation; returns when some of its pods exist."""
    proxy.delay_seconds = 0.4
    space.create(job(ranks=ranks))
    eventually(lambda: len(space.pods()), lambda count: count >= 1, "the first pods")


def test_an_api_server_killed_while_a_gang_is_created(
    space: Space, kubelet: Kubelet, operator: Operator, control_plane: ControlPlane, proxy: Proxy
) -> None:
    pid = operator.pid
    begin_slowly(space, proxy)
    control_plane.restart_apiserver(kill=True)
    proxy.delay_seconds = 0
    until_complete(space, kubelet, ranks=64)
    assert (operator.running, operator.pid) == (True, pid), "it did not even need to start again"


def test_an_api_server_killed_while_a_gang_trains(
    space: Space, kubelet: Kubelet, operator: Operator, control_plane: ControlPlane
) -> None:
    space.create(job())
    space.until_started()
    control_plane.restart_apiserver(kill=True)
    until_complete(space, kubelet)


def test_without_an_api_server_the_leader_resigns_and_the_next_life_goes_on(
    space: Space, kubelet: Kubelet, operator: Operator, control_plane: ControlPlane
) -> None:
    space.create(job())
    space.until_started()
    control_plane.stop_apiserver(kill=True)
    try:
        assert operator.exit_code(seconds=30) != 0
        operator.launch()
    finally:
        control_plane.start_apiserver()
    operator.until_ready()
    until_complete(space, kubelet)


def test_before_the_kind_is_installed_the_operator_waits_and_says_what_to_do(programs: None) -> None:
    with ControlPlane() as plane:
        operator = Operator(plane, Account(plane).kubeconfig)
        operator.launch()
        eventually(operator.readiness, lambda answer: "kubectl apply -f crds/" in answer, "the remedy is said")
        plane.kubectl("create", f"--filename={CRD}")
        operator.until_ready()
        operator.kill()


def test_sigterm_during_a_creation_ends_the_operator_cleanly(
    space: Space, kubelet: Kubelet, operator: Operator, proxy: Proxy
) -> None:
    begin_slowly(space, proxy)
    begun = time.monotonic()
    assert operator.terminate() == 0
    assert time.monotonic() - begun < 15
    proxy.delay_seconds = 0
    operator.start()
    until_complete(space, kubelet, ranks=64)


def test_a_second_sigterm_ends_the_operator_at_once(space: Space, operator: Operator, proxy: Proxy) -> None:
    proxy.delay_seconds = 5
    space.create(job())
    eventually(lambda: len(proxy.writes), lambda count: count >= 1, "a pass is under way")
    operator.send(signal.SIGTERM)
    time.sleep(0.5)  # signals of one kind that arrive while one is pending are merged by the kernel
    begun = time.monotonic()
    operator.send(signal.SIGTERM)
    operator.exit_code()
    assert time.monotonic() - begun < 3


def test_an_idle_operator_sends_no_requests(
    space: Space, kubelet: Kubelet, operator: Operator, control_plane: ControlPlane
) -> None:
    kubelet.tell(step=5)
    space.create(job("runs"))
    space.until_phase("Running", job="runs")
    space.create(job("rests", runPolicy={"suspend": True}))
    space.until_phase("Suspended", job="rests")
    space.create(job("ended", ranks=1, failurePolicy={"maxRestarts": 0}))
    space.until_started(job="ended")
    kubelet.exit("ended-base-0-0", 10)
    space.until_phase("Failed", job="ended")
    space.create(job("waits", template={"nodeSelector": {"no": "such-node"}}))
    space.until(lambda status: "0/2 ranks" in str(status.get("conditions")), "it waits for a node", job="waits")
    until_quiet(control_plane)
    before = len(requests(control_plane))
    time.sleep(10)
    assert requests(control_plane)[before:] == []


def requests(plane: ControlPlane) -> list[Request]:
    """All requests except renewals of the lease; watches count, because none may end this soon."""
    return [found for found in plane.requests(Account.user) if found.resource != "leases"]


def until_quiet(plane: ControlPlane, seconds: float = 6) -> None:
    """Wait until the delayed writes are done."""
    seen, since = -1, time.monotonic()

    def quiet_seconds() -> float:
        nonlocal seen, since
        if (count := len(requests(plane))) != seen:
            seen, since = count, time.monotonic()
        return time.monotonic() - since

    eventually(quiet_seconds, lambda found: found > seconds, "the operator comes to rest", seconds=60)


def test_created_objects_are_found_by_their_labels(space: Space, kubelet: Kubelet, operator: Operator) -> None:
    created = space.create(job())
    space.until_started()
    wanted = {names.LABEL_JOB_UID: created["metadata"]["uid"], names.LABEL_MANAGED_BY: names.MANAGED_BY}
    for plural in ("pods", "configmaps", "services"):
        ours = [item for item in space.all(plural) if item["metadata"]["name"].startswith("digits-")]
        assert ours
        assert all(wanted.items() <= item["metadata"]["labels"].items() for item in ours)
