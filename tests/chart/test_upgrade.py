"""From chart 0.1.0 to today's and back on a real API server, each with its own operator and CRD, while jobs go on.

No pod is replaced, no job starts over, and every stored object is valid under both CRDs.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from beds.cluster import ControlPlane
from beds.cluster.helm import Helm
from beds.operator import Kubelet, Operator, Space
from beds.operator.jobs import CLAIM, QUEUE, job, queued
from beds.operator.namespace import JOB, condition
from beds.queue import KUEUE, Kueue, served
from chart import installation
from chart.installation import DEFINITION, uids
from resnetboost_api.structure import Structure
from support.earlierrelease import EarlierRelease

pytestmark = pytest.mark.slow

# A node without kwok: pods there are run by the test's kubelet.
NODE = "by-hand"
TAINT = "resnetboost.io/by-hand"
PLACE = {
    "nodeSelector": {"kubernetes.io/hostname": NODE},
    "tolerations": [{"key": TAINT, "operator": "Exists", "effect": "NoSchedule"}],
}
NOWHERE = PLACE | {"nodeSelector": {"kubernetes.io/hostname": "not-there-yet"}}


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> EarlierRelease:
    return EarlierRelease(tmp_path_factory.mktemp("earlier") / "0.1.0")


@pytest.fixture(autouse=True)
def cleared(plane: ControlPlane, helm: Helm) -> Iterator[None]:
    yield
    installation.clear(plane, helm)


@pytest.fixture
def space(plane: ControlPlane, namespaces: Iterator[str]) -> Iterator[Space]:
    """A namespace with jobs of a user, whose pods run on a node of their own."""
    add_node(plane, NODE)
    space = Space(plane, next(namespaces), 60)
    space.add_claim(CLAIM)
    yield space
    for node in (NODE, "not-there-yet"):
        plane.kubectl("delete", "node", node, "--ignore-not-found")


def add_node(plane: ControlPlane, name: str) -> None:
    plane.add_node(name)
    plane.kubectl("taint", "node", name, f"{TAINT}=:NoSchedule")


class Release:
    """One release of the chart and its operator, which is changed from version to version."""

    def __init__(self, plane: ControlPlane, helm: Helm, namespace: str, earlier: EarlierRelease) -> None:
        self._plane, self._helm, self._namespace, self._earlier = plane, helm, namespace, earlier

    @contextmanager
    def of_0_1_0(self, verb: str) -> Iterator[Operator]:
        """Install it, or roll back to it, and run its operator."""
        where = f"--namespace={self._namespace}"
        if verb == "install":
            installation.install(self._helm, self._namespace, chart=self._earlier.chart)
        else:
            self._helm("rollback", "resnetboost", "1", where, "--wait")
        with installation.operator(self._plane, self._namespace, packages=self._earlier.operator) as process:
            yield process

    @contextmanager
    def of_today(self) -> Iterator[Operator]:
        """Upgrade to today's chart, for a cluster with Kueue, and run today's operator."""
        installation.install(self._helm, self._namespace, "--set=kueue.enabled=true", verb="upgrade")
        with installation.operator(self._plane, self._namespace) as process:
            yield process


@pytest.fixture
def release(plane: ControlPlane, helm: Helm, release_namespace: str, earlier: EarlierRelease) -> Iterator[Release]:
    with served(plane, KUEUE):
        yield Release(plane, helm, release_namespace, earlier)


def placed(name: str, **spec: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {"template": PLACE, "checkpoint": {"claimName": CLAIM}}
    return job(name, **usual | spec)


def with_a_new_algorithm(manifest: dict[str, Any]) -> dict[str, Any]:
    manifest["spec"]["stages"][0] |= {"algorithm": "AdamW", "learningRate": {"peak": 0.001}}
    return manifest


def hears(space: Space, kubelet: Kubelet, step: int, *jobs: str) -> None:
    """The operator reports what the ranks of these jobs say."""
    kubelet.tell(step=step, totalSteps=1000)
    for name in jobs:
        space.until(lambda status: status.get("progress", {}).get("step") == step, f"step {step}", name)


def invalid(space: Space) -> list[str]:
    """What is wrong with stored jobs by the CRD that the cluster has now."""
    definition = json.loads(space.plane.kubectl("get", "crd", DEFINITION, "--output=json"))
    (version,) = definition["spec"]["versions"]
    structure = Structure(version["schema"]["openAPIV3Schema"])
    return [
        f"{found['metadata']['name']}: {problem}"
        for found in space.all(JOB)
        for problem in structure.problems({key: value for key, value in found.items() if key != "metadata"})
    ]


def counters(space: Space) -> dict[str, Any]:
    """What a start over would change of each job, of the fields that both versions know."""
    kept, of_stages = ("phase", "attempt", "restarts", "completionTime", "startTime"), ("state", "attempts", "top1")
    found = {}
    for one in space.all(JOB):
        status = one["status"]
        stages = [{name: stage.get(name) for name in of_stages} for stage in status["stages"]]
        found[one["metadata"]["name"]] = {name: status.get(name) for name in kept} | {"stages": stages}
    return found


def specs(space: Space) -> dict[str, Any]:
    return {found["metadata"]["name"]: found["spec"] for found in space.all(JOB)}


def includes(now: Any, before: Any) -> bool:
    """Whether all that was there still is."""
    if isinstance(before, dict):
        return isinstance(now, dict) and all(key in now and includes(now[key], before[key]) for key in before)
    if isinstance(before, list):
        return len(now) == len(before) and all(map(includes, now, before))
    return bool(now == before)


def suspend(space: Space, kubelet: Kubelet, name: str) -> None:
    space.change(name, runPolicy={"suspend": True})
    space.until_phase("Suspended", name)


def test_jobs_go_on_through_an_upgrade_and_a_rollback(plane: ControlPlane, release: Release, space: Space) -> None:
    with Kubelet(plane, space.namespace) as kubelet:
        kubelet.saved_step = 33
        kubelet.tell(step=1, totalSteps=1000)
        with release.of_0_1_0("install"):
            for name in ("running", "restarted", "suspended", "done"):
                space.create(placed(name))
            space.create(placed("waiting", template=NOWHERE))
            for name in ("running", "restarted", "suspended", "done"):
                space.until_started(job=name)
            kubelet.exit("restarted-base-0-1", 1)
            space.until_started(1, "restarted")
            suspend(space, kubelet, "suspended")
            for index in (1, 0):
                kubelet.exit(f"done-base-0-{index}", 0, report={"class": "Succeeded", "step": 44, "top1": 0.97})
            space.until_phase("Complete", "done")
            space.until_phase("Starting", "waiting")
            hears(space, kubelet, 20, "running", "restarted")
            assert invalid(space) == []
        pods, jobs, told, wanted = uids(space.pods()), uids(space.all(JOB)), counters(space), specs(space)

        with release.of_today() as operator, Kueue(plane, space.namespace) as kueue:
            hears(space, kubelet, 30, "running", "restarted")
            assert invalid(space) == []
            assert (uids(space.pods()), uids(space.all(JOB))) == (pods, jobs)
            assert counters(space) == told
            assert includes(specs(space), wanted), "no field is lost; new ones have their defaults"

            # Every job can be worked on, whatever operator began it.
            space.change("suspended", runPolicy={"suspend": False})
            space.until_started(1, "suspended")
            add_node(plane, "not-there-yet")
            space.until_started(job="waiting")
            suspend(space, kubelet, "restarted")
            kueue.set_queue(QUEUE, 0)
            space.create(queued(placed("queued")))
            space.create(placed("newer"))
            space.create(with_a_new_algorithm(placed("modern")))
            space.until_phase("Queued", "queued")
            space.until_started(job="newer")
            for name in ("running", "suspended", "waiting", "newer", "modern"):
                space.until_phase("Running", name)
            assert invalid(space) == []
            assert pods["running-base-0-0"] == uids(space.pods())["running-base-0-0"]
            assert operator.running
        pods, jobs, told = uids(space.pods()), uids(space.all(JOB)), counters(space)

        with release.of_0_1_0("rollback"):
            hears(space, kubelet, 50, "running", "suspended", "waiting", "newer")
            # docs/upgrade.md: what 0.1.0 does not know, it leaves alone.
            assert {found.partition(":")[0] for found in invalid(space)} == {"modern", "queued"}
            assert (uids(space.pods()), uids(space.all(JOB))) == (pods, jobs)
            assert counters(space) == told
            space.change("restarted", runPolicy={"suspend": False})
            space.until_started(2, "restarted")
            space.until_phase("Running", "restarted")
        pods, told = uids(space.pods()), counters(space)

        with release.of_today():
            hears(space, kubelet, 60, "running", "restarted", "suspended", "waiting", "newer", "modern")
            assert invalid(space) == []
            assert (uids(space.pods()), uids(space.all(JOB))) == (pods, jobs)
            assert counters(space) == told


def test_a_gang_of_which_some_pods_exist_begins_anew(plane: ControlPlane, release: Release, space: Space) -> None:
    """The config map that its other pods would mount has another name now."""
    where = f"--namespace={space.namespace}"
    with Kubelet(plane, space.namespace):
        with release.of_0_1_0("install"):
            plane.kubectl("create", "quota", "one-pod", "--hard=pods=1", where)
            space.create(placed("half"))
            space.until(lambda status: condition(status, "Running").get("reason") == "PodsRefused", "refused", "half")
            assert len(space.pods()) == 1
        with release.of_today():
            plane.kubectl("delete", "quota", "one-pod", where)
            status = space.until_started(1, "half")
            assert (status["restarts"], status["restartsCountTowardsMax"]) == (0, 0)
            assert space.names_of("configmaps") == [space.config_map(1, job="half")]


def test_a_newer_definition_may_stay_so_that_no_field_is_forgotten(
    helm: Helm, earlier: EarlierRelease, release_namespace: str, plane: ControlPlane, namespaces: Iterator[str]
) -> None:
    """docs/upgrade.md: `helm rollback` forgets fields of jobs, an older chart with crds.enabled=false does not."""
    space = Space(plane, next(namespaces))
    manifest = placed("digits", checkpoint={})
    manifest["spec"]["stages"][0]["clipNorm"] = 2.5

    def clip_norm() -> object:
        return space.get(JOB, "digits")["spec"]["stages"][0].get("clipNorm")

    installation.install(helm, release_namespace, chart=earlier.chart)
    installation.install(helm, release_namespace, verb="upgrade")
    space.create(manifest)
    installation.install(helm, release_namespace, "--set=crds.enabled=false", verb="upgrade", chart=earlier.chart)
    space.patch(JOB, "digits", {"metadata": {"labels": {"written": "by-somebody"}}})
    assert clip_norm() == 2.5
    installation.install(helm, release_namespace, "--set=crds.enabled=true", verb="upgrade")
    assert clip_norm() == 2.5
    helm("rollback", "resnetboost", "1", f"--namespace={release_namespace}", "--wait")
    space.patch(JOB, "digits", {"metadata": {"labels": {"written": "again"}}})
    installation.install(helm, release_namespace, verb="upgrade")
    assert clip_norm() is None
