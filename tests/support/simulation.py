"""A simulated cluster of dicts for tests of the plan: pods act as the test says, and writes can fail anywhere."""

import copy
import itertools
import json
from typing import Any

from resnetboost_api import names
from resnetboost_api.launcher import GangReport
from resnetboost_api.status import Progress, Status
from resnetboost_operator import status
from resnetboost_operator.job import Job, parse_job
from resnetboost_operator.manifests.probe import COMMAND
from resnetboost_operator.observed import podgroup, pods
from resnetboost_operator.observed.capabilities import Capabilities
from resnetboost_operator.observed.flavor import Flavor
from resnetboost_operator.observed.nodes import NodeView
from resnetboost_operator.observed.pods import PodView, timestamp
from resnetboost_operator.observed.state import Observation, Obstacle
from resnetboost_operator.planning import actions
from resnetboost_operator.planning.actions import Plan
from resnetboost_operator.planning.collection_delete import CollectionDelete, group
from resnetboost_operator.planning.plan import plan
from resnetboost_operator.ranktable import annotations
from resnetboost_operator.validation import schema
from support.fakekueue import Kueue
from support.playedlaunchers import Launchers

START = 1_700_000_000.0


def job(metadata: dict[str, Any] | None = None, **spec: Any) -> Job:
    """A job of two CPU ranks and one stage; `metadata` and `spec` replace fields."""
    stage = {"name": "base", "algorithm": "Momentum", "epochs": 2, "localBatchSize": 8}
    minimal = {
        "device": {"type": "CPU", "count": 2},
        "model": {"name": "resnet20", "numClasses": 10},
        "dataset": {"name": "digits"},
        "stages": [stage],
        "checkpoint": {"claimName": "digits"},
    }
    usual = {"name": "digits", "namespace": "default", "uid": "0000-1111", "generation": 1}
    whole = usual | (metadata or {})
    obj = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": whole, "spec": minimal | spec}
    return parse_job(schema.defaulted(obj))


class Crash(Exception):
    """The operator was killed between two writes."""


class Cluster:
    """Pods and PodGroups by name, one job and its status. `step` is one reconciliation; `writes` counts its writes.

    `kueue` has an effect only with `capabilities`.
    """

    def __init__(self, wanted: Job) -> None:
        self.job = wanted
        self.status = Status()
        self.pods: dict[str, dict[str, Any]] = {}
        self.config_maps: dict[str, dict[str, Any]] = {}
        self.pod_groups: dict[str, dict[str, Any]] = {}
        self.capabilities = Capabilities()
        self.labelled_nodes: int | None = None
        self.now = START
        self.progress: Progress | None = None
        self.nodes: dict[str, NodeView] = {}
        self.since = 0.0
        self.obstacle: Obstacle | None = None
        self.unreachable = False
        self.capabilities = Capabilities()
        self.kueue = Kueue()
        self.flavors: dict[str, Flavor] = {}
        self.priority: int | None = None
        self.tombstones: list[PodView] = []
        self.launchers: Launchers | None = None
        self.reached = True
        self.expired = False
        self.events: list[str] = []
        self.created: list[str] = []
        self._uids = itertools.count(1)

    def plan(self) -> Plan:
        views = tuple(pods.view(pod) for pod in self.pods.values())
        observation = Observation(
            views,
            self.progress,
            nodes=self.nodes,
            obstacle=self.obstacle,
            tombstones=tuple(self.tombstones),
            unreachable=self.unreachable,
            capabilities=self.capabilities,
            workload=self.kueue.view(),
            priority=self.priority,
            flavors=self.flavors,
            pod_groups=tuple(podgroup.view(found, found["apiVersion"]) for found in self.pod_groups.values()),
            labelled_nodes=self.labelled_nodes,
            gang_report=self._gang_report(),
            since=self.since,
        )
        return plan(self.job, self.status, observation, self.now)

    def step(self, crash_after: int | None = None) -> Plan:
        """One reconciliation. With `crash_after` the operator is killed after that many writes, and Crash is raised."""
        wanted = self.plan()
        writes = itertools.count()

        def may_write() -> None:
            if next(writes) == crash_after:
                raise Crash

        if status.to_dict(wanted.status) != status.to_dict(self.status):
            assert schema.check_status(status.to_dict(wanted.status)) == [], "the API server would refuse this status"
            may_write()
            self.status = wanted.status
            self.events += [event.reason for event in wanted.events]
        if wanted.command is not None and self.launchers is not None and self.reached:
            may_write()
            self.launchers.command(wanted.command, self.now)
        requests, singles = group(wanted.delete, [pods.view(pod) for pod in self.pods.values()])
        assert {name for request in requests for name in request.pods} | {one.name for one in singles} == {
            one.name for one in wanted.delete
        }
        for request in requests:
            may_write()
            self._delete_collection(request, {one.name for one in wanted.delete})
        for deletion in singles:
            may_write()
            self._delete(deletion)
        for write in wanted.workload:
            may_write()
            self._write_workload(write)
        self.expired = self.expired or wanted.expire
        if wanted.obsolete:
            self._clean(wanted.obsolete)
        for manifest in wanted.create:
            may_write()
            self._check_alone(manifest)
            self._create(manifest)
        for annotation in wanted.annotate:
            may_write()
            self._annotate(annotation)
        return wanted

    def _write_workload(self, write: actions.WorkloadWrite) -> None:
        """Quota goes back only when nothing uses it any more."""
        before = self.kueue.holds_quota()
        self.kueue.write(write)
        alive = [pod for pod in self.pods.values() if pod["status"]["phase"] not in ("Succeeded", "Failed")]
        if before and not self.kueue.holds_quota():
            assert not alive, "quota is released under running pods"
        left = self.kueue.view()
        assert left is None or not before or len(alive) <= left.count - left.reclaimed, "more pods than quota"

    def _check_alone(self, manifest: dict[str, Any]) -> None:
        """No pod may be created while a pod of an older attempt of its stage has the same index."""
        if manifest["kind"] == "Pod":
            labels = manifest["metadata"]["labels"]
            place = (names.LABEL_STAGE, names.LABEL_INDEX)
            others = [pod["metadata"]["labels"] for pod in self.pods.values()]
            same = [other for other in others if [other[key] for key in place] == [labels[key] for key in place]]
            assert {other[names.LABEL_ATTEMPT] for other in same} <= {labels[names.LABEL_ATTEMPT]}, "a rank runs twice"

    def settle(self) -> None:
        """Reconcile until nothing changes, with kubelet finishing deletions; fails if it never settles."""
        for _ in range(20):
            before = self._state()
            self.step()
            self.finish_deletions()
            if self._state() == before:
                return
        raise AssertionError("the plan does not come to rest")

    def _state(self) -> Any:
        annotated = {name: dict(pod["metadata"].get("annotations", {})) for name, pod in self.pods.items()}
        return status.to_dict(self.status), annotated, copy.deepcopy(self.kueue.workload)

    def _create(self, manifest: dict[str, Any]) -> None:
        if manifest["kind"] == "ConfigMap":
            before = self.config_maps.setdefault(manifest["metadata"]["name"], copy.deepcopy(manifest))
            assert before == manifest, "a config map of an attempt is immutable"
        if manifest["kind"] == "PodGroup":
            found = copy.deepcopy(manifest)
            found["metadata"]["uid"] = f"uid-{next(self._uids)}"
            self.pod_groups.setdefault(manifest["metadata"]["name"], found)
            self.created.append(f"PodGroup {manifest['metadata']['name']}")
        if manifest["kind"] != "Pod" or manifest["metadata"]["name"] in self.pods:
            return
        created = copy.deepcopy(manifest)
        created["metadata"] |= {"uid": f"uid-{next(self._uids)}", "creationTimestamp": timestamp(self.now)}
        created["status"] = {"phase": "Pending"}
        self.pods[created["metadata"]["name"]] = created
        self.created.append(created["metadata"]["name"])

    def _clean(self, selector: str) -> None:
        """Delete the shared objects of earlier attempts; of them only groups matter here."""
        mine, attempt = selector.partition(",")[0].partition("=")[2], selector.rpartition("!=")[2]
        assert mine == self.job.uid
        self.pod_groups = {
            name: group
            for name, group in self.pod_groups.items()
            if group["metadata"]["labels"][names.LABEL_ATTEMPT] == attempt
        }

    def _annotate(self, wanted: actions.Annotation) -> None:
        pod = self.pods.get(wanted.name)
        if pod is not None and pod["metadata"]["uid"] == wanted.uid:
            pod["metadata"].setdefault("annotations", {})[wanted.key] = wanted.value

    def _delete(self, deletion: actions.Deletion) -> None:
        pod = self.pods.get(deletion.name)
        if pod is not None and pod["metadata"]["uid"] == deletion.uid:
            self._mark(pod, deletion.grace_seconds)

    def _delete_collection(self, request: CollectionDelete, going: set[str]) -> None:
        """Delete as the API server does: by labels and phase alone."""
        labels, _, spared = request.selector.partition(f",{names.LABEL_INDEX} notin (")
        wanted = dict(part.split("=") for part in labels.split(","))
        matching = [pod for pod in self.pods.values() if wanted.items() <= pod["metadata"]["labels"].items()]
        left_out = spared.rstrip(")").split(",")
        matching = [pod for pod in matching if pod["metadata"]["labels"][names.LABEL_INDEX] not in left_out]
        if request.field_selector:
            matching = [pod for pod in matching if pod["status"]["phase"] not in ("Succeeded", "Failed")]
        hit = {pod["metadata"]["name"] for pod in matching if "deletionTimestamp" not in pod["metadata"]}
        assert set(request.pods) & set(self.pods) <= hit | self._deleting(), "a collection delete misses a pod"
        assert hit <= going, "a collection delete hits others too"
        for pod in matching:
            self._mark(pod, request.grace_seconds)

    def _deleting(self) -> set[str]:
        return {name for name, pod in self.pods.items() if "deletionTimestamp" in pod["metadata"]}

    def _mark(self, pod: dict[str, Any], grace_seconds: int) -> None:
        pod["metadata"]["deletionTimestamp"] = timestamp(self.now)
        if grace_seconds == 0:
            del self.pods[pod["metadata"]["name"]]

    def _gang_report(self) -> GangReport | None:
        leader = next((pod for pod in self.gang() if pod["metadata"]["labels"][names.LABEL_INDEX] == "0"), None)
        runs = leader is not None and leader["status"]["phase"] == "Running"
        return self.launchers.report() if runs and self.reached and self.launchers is not None else None

    # Actions of kubelet and the trainers

    def launch(self) -> "Launchers":
        """Run the gang's pods, each with a launcher whose rank runs."""
        self.run_all()
        self.launchers = Launchers(len(self.gang()), status.pods_attempt(self.status))
        return self.launchers

    def leave(self) -> None:
        """End the containers of launchers that got no command for too long."""
        for index, code in self.launchers.leaving(self.now) if self.launchers is not None else ():
            if any(pod["metadata"]["labels"][names.LABEL_INDEX] == str(index) for pod in self.gang()):
                self.exit(index, code)

    def finish_deletions(self) -> None:
        going = [pods.view(pod) for pod in self.pods.values() if "deletionTimestamp" in pod["metadata"]]
        self.tombstones += [pod for pod in going if pod.termination is not None]
        self.pods = {name: pod for name, pod in self.pods.items() if "deletionTimestamp" not in pod["metadata"]}

    def gang(self) -> list[dict[str, Any]]:
        attempt = str(status.pods_attempt(self.status))
        mine = [pod for pod in self.pods.values() if pod["metadata"]["labels"][names.LABEL_ATTEMPT] == attempt]
        return [pod for pod in mine if pod not in self.probes()]

    def probes(self) -> list[dict[str, Any]]:
        """The pods that look for room."""
        return [pod for pod in self.pods.values() if pod["spec"]["containers"][0]["command"] == COMMAND]

    def rank(self, index: int) -> dict[str, Any]:
        return next(pod for pod in self.gang() if pod["metadata"]["labels"][names.LABEL_INDEX] == str(index))

    def restarted(self) -> "Cluster":
        """Let the back-off pass, and the ranks start again in place."""
        self.settle()
        assert self.launchers is not None
        self.now = max(self.now, pods.seconds(self.status.restart_time))
        self.launchers.tick(self.now)
        self.settle()
        return self

    def run_all(self) -> None:
        for index, pod in enumerate(self.gang()):
            if pod["status"]["phase"] == "Pending":
                container = {"name": "trainer", "ready": True, "state": {"running": {}}}
                pod["spec"]["nodeName"] = f"node-{index}"
                pod["status"] = {"phase": "Running", "podIP": f"127.1.0.{index + 1}", "containerStatuses": [container]}

    def hear(self, ready: bool, index: int = 0) -> None:
        """Set the result of the readiness probe of a rank."""
        self.rank(index)["status"]["containerStatuses"][0]["ready"] = ready

    def bind(self, index: int, node: str) -> None:
        self.rank(index)["spec"]["nodeName"] = node

    def allocate(self, index: int, device: int, address: str, key: str = annotations.KEYS[0], **other: Any) -> None:
        """Annotate a pod as Ascend's device plugin does, some time after kubelet has allocated the device."""
        pod = self.rank(index)
        devices = [{"device_id": str(device), "device_ip": address}]
        written = {"pod_name": pod["metadata"]["name"], "server_id": pod["metadata"]["uid"], "devices": devices} | other
        pod["metadata"].setdefault("annotations", {})[key] = json.dumps(written)

    def exit(self, index: int, code: int, reason: str = "Error", report: dict[str, Any] | None = None) -> None:
        ended = {"exitCode": code, "reason": reason, "finishedAt": timestamp(self.now)}
        ended["message"] = json.dumps(report) if report else ""
        phase = "Succeeded" if code == 0 else "Failed"
        container = {"name": "trainer", "ready": False, "state": {"terminated": ended}}
        self.rank(index)["status"] |= {"phase": phase, "containerStatuses": [container]}

    def vanish(self, index: int) -> None:
        del self.pods[self.rank(index)["metadata"]["name"]]

    def train_to(self, step: int, checkpoint_step: int | None = None) -> None:
        stage, attempt = self.status.stage, self.status.attempt
        self.progress = Progress(
            state="Training", stage=stage, attempt=attempt, step=step, checkpoint_step=checkpoint_step, heartbeat=step
        )

    def load(self) -> None:
        """Ranks answer, but are still loading data."""
        self.progress = Progress(state="Starting", stage=self.status.stage, attempt=self.status.attempt)

    def started(self) -> "Cluster":
        """Create the gang of the current attempt, and run it past its first step."""
        self.settle()
        self.run_all()
        self.train_to(1)
        self.settle()
        return self
