"""A simulated cluster whose scheduler has a number of devices to give out, one to a pod."""

from typing import Any

from msgspec.structs import replace

from resnetboost_api import names
from resnetboost_operator.manifests.probe import PROBE_SECONDS
from resnetboost_operator.observed.pods import seconds, timestamp
from support.simulation import Cluster, job

WHOLE = 4


def elastic(room: int, spec: dict[str, Any] | None = None, **device: Any) -> "Scarce":
    """A job of four ranks that may go on with one, on a cluster with that many devices."""
    wanted = {"type": "CPU", "count": WHOLE, "minCount": 1} | device
    found = {name: value for name, value in wanted.items() if value is not None}
    return Scarce(Cluster(job(device=found, **(spec or {}))), room)


class Scarce:
    """The cluster and its devices. `together`: the scheduler binds a whole gang or none of it."""

    def __init__(self, cluster: Cluster, room: int, together: bool = False) -> None:
        self.cluster, self.room, self.together = cluster, room, together

    def scale(self, count: int) -> None:
        """Do what `kubectl scale` does."""
        self.cluster.job = replace(self.cluster.job, most_devices=count)

    def suspend(self, value: bool) -> None:
        policy = replace(self.cluster.job.spec.run_policy, suspend=value)
        self.cluster.job = replace(self.cluster.job, spec=replace(self.cluster.job.spec, run_policy=policy))

    def lose(self, index: int) -> None:
        """A rank's device breaks: its pod is evicted, and nothing replaces the device."""
        self.cluster.exit(index, 137)
        condition = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
        self.cluster.rank(index)["status"]["conditions"] = [condition]
        self.room -= 1

    def live(self, seconds: float) -> None:
        """Let the operator, the scheduler, kubelet and the ranks work for that long. A change is planned for at once,
        as with a watch; else the plan says when it wants to be woken.
        """
        end = self.cluster.now + seconds
        while self.cluster.now < end:
            before = self._seen()
            wake = self.turn()
            calm = 15.0 if wake is None else min(max(wake, 1.0), 15.0)
            self.cluster.now = min(end, self.cluster.now + (calm if self._seen() == before else 1.0))

    def _seen(self) -> object:
        pods = {name: (pod["status"]["phase"], len(pod["metadata"])) for name, pod in self.cluster.pods.items()}
        return replace(self.cluster.status, progress=None), pods

    def turn(self, crash_after: int | None = None) -> float | None:
        """One pass of the operator, and what follows at once. Returns the seconds after which it wants another."""
        wake = self.cluster.step(crash_after).wake_seconds
        self.cluster.finish_deletions()
        self.schedule()
        self.train()
        return wake

    def schedule(self) -> None:
        gang = [pod for pod in self.cluster.gang() if _is_unbound(pod)]
        if gang and not (self.together and len(gang) > self.free()):
            for pod in gang[: self.free()]:
                self._bind(pod)
        for pod in [pod for pod in self.cluster.probes() if _is_unbound(pod)][: self.free()]:
            self._bind(pod)
        for pod in [*self.cluster.gang(), *self.cluster.probes()]:
            if _is_unbound(pod):
                words = {"reason": "Unschedulable", "message": f"0/{self.room} nodes are available: no device."}
                pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "False"} | words]

    def free(self) -> int:
        alive = [pod for pod in self.cluster.pods.values() if not _has_ended(pod) and not _is_unbound(pod)]
        return max(0, self.room - len(alive))

    def _bind(self, pod: dict[str, Any]) -> None:
        pod["spec"]["nodeName"] = f"node-{pod['metadata']['labels'][names.LABEL_INDEX]}"
        bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": timestamp(self.cluster.now)}
        container = {"name": "trainer", "ready": True, "state": {"running": {}}}
        address = f"127.1.0.{int(pod['metadata']['labels'][names.LABEL_INDEX]) + 1}"
        running = {"phase": "Running", "podIP": address, "containerStatuses": [container]}
        pod["status"] = {**running, "conditions": [bound]}

    def train(self) -> None:
        """Probes end after a minute; a whole gang takes a step."""
        for pod in self.cluster.probes():
            if pod["status"]["phase"] == "Running" and self._seconds_bound(pod) >= PROBE_SECONDS:
                ended = {"exitCode": 0, "reason": "Completed", "finishedAt": timestamp(self.cluster.now)}
                container = {"name": "trainer", "state": {"terminated": ended}}
                pod["status"] |= {"phase": "Succeeded", "containerStatuses": [container]}
        gang = self.cluster.gang()
        if gang and all(pod["status"]["phase"] == "Running" for pod in gang) and len(gang) == self.ranks():
            done = self.cluster.progress.step if self.cluster.progress is not None else 0
            self.cluster.train_to(done + 1, checkpoint_step=done + 1)

    def _seconds_bound(self, pod: dict[str, Any]) -> float:
        return self.cluster.now - seconds(pod["status"]["conditions"][0]["lastTransitionTime"])

    def ranks(self) -> int:
        """Ranks of the current attempt, 0 before it has begun."""
        return self.cluster.status.device_count or 0

    def sizes(self) -> list[int | None]:
        """Ranks of the attempts that ended, then those of the current one."""
        return [*(record.ranks for record in self.cluster.status.attempts), self.ranks()]

    def reasons(self) -> list[str]:
        return [record.reason for record in self.cluster.status.attempts]


def _is_unbound(pod: dict[str, Any]) -> bool:
    return not pod["spec"].get("nodeName")


def _has_ended(pod: dict[str, Any]) -> bool:
    return pod["status"]["phase"] in ("Succeeded", "Failed")
