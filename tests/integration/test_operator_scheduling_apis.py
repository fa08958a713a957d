"""The optional APIs of queues and gang schedulers on a real API server: found, watched and written with real rights."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from beds.cluster import ControlPlane
from beds.operator import Account, Operator, Space, service_account
from beds.operator.jobs import job as manifest
from beds.operator.wait import eventually
from beds.queue import COSCHEDULING, KUEUE, VOLCANO, served
from resnetboost_api import names
from resnetboost_operator.controller.events import EventRecorder
from resnetboost_operator.controller.jobs import JobRecord
from resnetboost_operator.controller.kueue_lookups import KueueLookups
from resnetboost_operator.controller.optional_watches import OptionalWatches
from resnetboost_operator.controller.store import Store
from resnetboost_operator.controller.workload_writer import WorkloadWriter
from resnetboost_operator.job import Job
from resnetboost_operator.kubeclient import connection, discovery
from resnetboost_operator.kubeclient.client import Client
from resnetboost_operator.kubeclient.errors import Conflict
from resnetboost_operator.observed import capabilities
from resnetboost_operator.observed.capabilities import Capabilities
from resnetboost_operator.planning.actions import WorkloadWrite
from resnetboost_operator.scheduling.kueue import workload as workloads
from support.scheduled import admission, pod_group, workload

pytestmark = pytest.mark.slow

OURS = f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"
BOTH = Capabilities(gangs_enabled=True, kueue_enabled=True)
KUEUE_ROOT = f"/apis/{capabilities.KUEUE}"
POD_GROUP_ROOTS = {
    VOLCANO: f"/apis/{capabilities.VOLCANO}",
    COSCHEDULING: f"/apis/{capabilities.COSCHEDULING}",
}


@pytest.fixture
def gang_rights(account: Account) -> Iterator[None]:
    """As of the chart with gangScheduling.enabled."""
    account.allow(service_account.GANG_RULES)
    yield
    account.deny(service_account.GANG_RULES)


@pytest.fixture
def kueue_rights(account: Account) -> Iterator[None]:
    """As of the chart with kueue.enabled."""
    account.allow(service_account.KUEUE_RULES)
    yield
    account.deny(service_account.KUEUE_RULES)


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "LOOK_SECONDS", 0.1)


def started(plane: ControlPlane, account: Account, space: Space, *options: str) -> Operator:
    """An operator for the test's namespace alone."""
    account.allow_lease(space.namespace)
    operator = Operator(
        plane,
        account.kubeconfig,
        f"operator-{space.namespace}",
        namespace=space.namespace,
        lease_namespace=space.namespace,
        options=options,
    )
    operator.launch()
    return operator


def job_of(created: dict[str, Any]) -> Job:
    """A job as the API server has it, as the operator reads it."""
    store = Store((), lambda uid: None)
    record = store.read_job(created)
    assert record.job is not None
    return record.job


def send(plane: ControlPlane, root: str, namespace: str, plural: str, body: dict[str, Any]) -> dict[str, Any]:
    place = f"{root}/namespaces/{namespace}" if namespace else root
    return plane.client.send("POST", f"{place}/{plural}", body)


def test_without_the_options_nobody_asks_for_an_optional_api(
    control_plane: ControlPlane, account: Account, space: Space
) -> None:
    with served(control_plane, VOLCANO):
        before = sum(1 for _ in asked_for_optional(control_plane))
        operator = started(control_plane, account, space)
        operator.until_ready()
        space.create(manifest())
        space.until_names("pods", "digits-base-0-0", "digits-base-0-1")
        operator.kill()
        assert sum(1 for _ in asked_for_optional(control_plane)) == before


def asked_for_optional(plane: ControlPlane) -> Iterator[str]:
    apis = (capabilities.KUEUE, *capabilities.POD_GROUP_APIS)
    # kopf looks at all groups there are when it begins, but at no version of these.
    yield from (found.path for found in plane.requests(Account.user) if any(f"/{api}" in found.path for api in apis))


def test_an_operator_without_the_rights_for_its_options_says_so_until_it_has_them(
    control_plane: ControlPlane, account: Account, space: Space
) -> None:
    with served(control_plane, VOLCANO):
        operator = started(control_plane, account, space, "--gang-scheduling")
        eventually(
            operator.readiness,
            lambda answer: "podgroups.scheduling.volcano.sh is forbidden" in answer,
            "it says what it lacks",
        )
        account.allow(service_account.GANG_RULES)
        try:
            operator.until_ready()
        finally:
            account.deny(service_account.GANG_RULES)
            operator.kill()


@pytest.mark.usefixtures("gang_rights")
@pytest.mark.parametrize("definitions", [VOLCANO, COSCHEDULING], ids=["Volcano", "Coscheduling"])
def test_the_group_of_a_suspended_job_is_deleted_and_others_groups_stay(
    control_plane: ControlPlane, account: Account, space: Space, definitions: Any
) -> None:
    with served(control_plane, definitions):
        root = POD_GROUP_ROOTS[definitions]
        job = job_of(space.create(manifest(runPolicy={"suspend": True})))
        ours = pod_group(job, root.removeprefix("/apis/"))
        theirs = pod_group(replace(job, uid="another"), root.removeprefix("/apis/"))
        theirs["metadata"] |= {"name": "theirs", "ownerReferences": []}
        for group in (ours, theirs):
            send(control_plane, root, space.namespace, "podgroups", group)
        operator = started(control_plane, account, space, "--gang-scheduling")

        path = f"{root}/namespaces/{space.namespace}/podgroups"

        def groups() -> list[str]:
            return [found["metadata"]["name"] for found in json.loads(control_plane.client.get(path))["items"]]

        eventually(groups, lambda found: found == ["theirs"], "only theirs is left")
        space.until_phase("Suspended")
        operator.kill()


# Parts of the operator in this process, with the operator's own account.


class Parts:
    """A store of one namespace, filled by its watches, and what writes a Workload."""

    def __init__(self, client: Client, namespace: str, job: dict[str, Any]) -> None:
        self.calls: asyncio.Queue[str] = asyncio.Queue()
        self.store = Store((namespace,), self.calls.put_nowait, enabled=BOTH)
        self.store.jobs.apply_event("ADDED", job)
        self.tasks: list[asyncio.Task[Any]] = []
        self.watches = OptionalWatches(client, self.store, OURS, self._begin)
        self.writer = WorkloadWriter(client, self.store, EventRecorder(client, "test"))
        self.lookups = KueueLookups(client, self.store)
        client.may_write = lambda: True
        self.watches.start()

    def _begin(self, work: Any) -> asyncio.Task[Any]:
        self.tasks.append(asyncio.create_task(work))
        return self.tasks[-1]

    @property
    def record(self) -> JobRecord:
        (record,) = self.store.jobs
        return record

    async def until(self, holds: Callable[[], object]) -> None:
        """Wait until something holds; it may change with each call for a pass."""
        while not holds():
            await self.calls.get()

    async def write(self, verb: Any, name: str, body: dict[str, Any]) -> None:
        await self.writer.write(self.record, (WorkloadWrite(verb, name, body),))


def played(
    monkeypatch: pytest.MonkeyPatch,
    account: Account,
    space: Space,
    script: Callable[[Parts, Job], Awaitable[None]],
) -> None:
    """Run a script with the operator's rights, for a suspended job."""
    monkeypatch.setenv("KUBECONFIG", str(account.kubeconfig))
    monkeypatch.setenv("NO_PROXY", "*")
    created = space.create(manifest(runPolicy={"suspend": True}))

    async def play() -> None:
        client = Client(await connection.connect())
        parts = Parts(client, space.namespace, created)
        try:
            async with asyncio.timeout(60):
                await script(parts, job_of(created))
        finally:
            for task in parts.tasks:
                task.cancel()
            await asyncio.gather(*parts.tasks, return_exceptions=True)
            await client.close()

    asyncio.run(play())


@pytest.mark.usefixtures("gang_rights", "kueue_rights")
def test_an_api_that_comes_is_watched_and_one_that_goes_is_forgotten(
    control_plane: ControlPlane, account: Account, space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(parts: Parts, job: Job) -> None:
        await parts.until(lambda: parts.store.discovered)
        assert parts.store.capabilities == BOTH, "an API server of its own has none of them"
        with served(control_plane, COSCHEDULING):
            await parts.until(lambda: parts.store.capabilities.pod_groups == {capabilities.COSCHEDULING})
            group = pod_group(job, capabilities.COSCHEDULING)
            send(control_plane, POD_GROUP_ROOTS[COSCHEDULING], space.namespace, "podgroups", group)
            await parts.until(lambda: parts.store.pod_groups_of(parts.record))
            parts.store.invalidate()
            parts.watches.list_again()  # as a new leader
            assert not parts.store.capabilities.pod_groups
            await parts.until(lambda: parts.store.capabilities.pod_groups)
        await parts.until(lambda: not parts.store.capabilities.pod_groups)
        assert parts.store.pod_groups_of(parts.record) == ()
        assert not list(parts.watches.reflectors)

    played(monkeypatch, account, space, script)


@pytest.mark.usefixtures("gang_rights", "kueue_rights")
def test_a_workload_is_written_as_planned_and_only_in_the_version_it_was_planned_for(
    control_plane: ControlPlane, account: Account, space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{KUEUE_ROOT}/namespaces/{space.namespace}/workloads"

    async def script(parts: Parts, job: Job) -> None:
        def found() -> Any:
            return parts.store.workload_of(parts.record)

        await parts.until(lambda: parts.store.capabilities.kueue)
        await parts.write("create", workloads.name(job), workload(job))
        first = found()
        assert first.queue == "team-a"
        stale = {"metadata": {"uid": first.uid, "resourceVersion": first.version}}
        await parts.write("patch", workloads.name(job), {**stale, "spec": {"queueName": "team-b"}})
        assert found().queue == "team-b"
        with pytest.raises(Conflict):
            await parts.write("patch", workloads.name(job), {**stale, "spec": {"queueName": "team-c"}})
        with pytest.raises(Conflict):
            await parts.write("patch-status", workloads.name(job), {**stale, "status": {"admission": None}})

        # Kueue admits it; the operator takes the admission back.
        admitted = {"status": {"admission": admission("fast")}}
        control_plane.client.send(
            "PATCH", f"{path}/{workloads.name(job)}/status", admitted, "application/merge-patch+json"
        )
        await parts.until(lambda: found().admission)
        released = {"metadata": {"uid": first.uid, "resourceVersion": found().version}, "status": {"admission": None}}
        await parts.write("patch-status", workloads.name(job), released)
        assert found().admission == {}

        # As after a crash: it is created a second time.
        await parts.write("create", workloads.name(job), workload(job))
        assert parts.writer.obstacle(job.uid) == ""
        with pytest.raises(Conflict):
            await parts.write("delete", workloads.name(job), {"metadata": {"uid": "another"}})
        await parts.write("delete", workloads.name(job), {"metadata": {"uid": first.uid}})
        await parts.until(lambda: found() is None)

    with served(control_plane, KUEUE):
        played(monkeypatch, account, space, script)


@pytest.mark.usefixtures("gang_rights", "kueue_rights")
def test_a_refused_workload_is_told_in_the_api_servers_words(
    control_plane: ControlPlane, account: Account, space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(parts: Parts, job: Job) -> None:
        await parts.until(lambda: parts.store.capabilities.kueue)
        wrong = workload(job)
        wrong["spec"]["priorityClassRef"] = {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "high"}
        await parts.write("create", workloads.name(job), wrong)
        assert "priority should not be nil" in parts.writer.obstacle(job.uid)
        # A namespace of somebody else's.
        theirs = workload(job)
        theirs["metadata"]["ownerReferences"] = []
        send(control_plane, KUEUE_ROOT, space.namespace, "workloads", theirs)
        parts.writer.forget(job.uid)
        await parts.write("create", workloads.name(job), workload(job))
        assert parts.writer.obstacle(job.uid).startswith(f"Workload {workloads.name(job)} exists and is not this job's")

    with served(control_plane, KUEUE):
        played(monkeypatch, account, space, script)


@pytest.mark.usefixtures("gang_rights", "kueue_rights")
def test_flavors_and_both_kinds_of_priority_are_read(
    control_plane: ControlPlane, account: Account, space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(parts: Parts, job: Job) -> None:
        await parts.until(lambda: parts.store.capabilities.kueue)
        await parts.write("create", workloads.name(job), workload(job))
        view = parts.store.workload_of(parts.record)
        assert view is not None
        queued = replace(job, queue="team-a", queue_priority="high")
        found = await parts.lookups.find(queued, replace(view, admission=admission("fast", "missing")))
        assert {name: dict(flavor.node_labels) for name, flavor in found.flavors.items()} == {
            "fast": {"example.com/chip": "fast"}
        }
        assert (found.priority, found.retry_seconds is not None) == (100, True)
        scheduling = replace(job.spec.scheduling, priority_class_name="system-node-critical")
        pods = replace(queued, queue_priority="", spec=replace(job.spec, scheduling=scheduling))
        assert (await parts.lookups.find(pods, None)).priority == 2000001000

    with served(control_plane, KUEUE):
        spec = {"nodeLabels": {"example.com/chip": "fast"}}
        flavor = {"apiVersion": capabilities.KUEUE, "kind": "ResourceFlavor", "metadata": {"name": "fast"}}
        send(control_plane, KUEUE_ROOT, "", "resourceflavors", flavor | {"spec": spec})
        high = {"apiVersion": capabilities.KUEUE, "kind": "WorkloadPriorityClass", "metadata": {"name": "high"}}
        send(control_plane, KUEUE_ROOT, "", "workloadpriorityclasses", high | {"value": 100})
        played(monkeypatch, account, space, script)
