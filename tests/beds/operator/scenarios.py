"""Scenarios of a job from creation to end, each a script that waits for what it needs; chaos.py adds the crashes."""

from collections.abc import Callable
from typing import Any

from beds.operator.devices import DevicePlugin
from beds.operator.jobs import CLAIM, QUEUE, job, queued
from beds.operator.kubelet import Kubelet
from beds.operator.namespace import Space, is_true
from beds.operator.wait import eventually
from beds.queue import Kueue

Scenario = Callable[[Space, Kubelet], None]

_ON_ONE_NODE = {"nodeSelector": {"kubernetes.io/hostname": "node-0"}}  # the failure record names the node
_SAVED_STEP = 33


def plain(space: Space, kubelet: Kubelet) -> None:
    """A job that trains and completes."""
    kubelet.tell(step=7, totalSteps=44, loss=1.5)
    space.create(_job())
    space.until_phase("Running")
    _succeed(space, kubelet, "digits-base-0")


def failure(space: Space, kubelet: Kubelet) -> None:
    """A rank is killed; the next gang completes."""
    space.create(_job())
    space.until_started()
    kubelet.exit("digits-base-0-1", 137, "OOMKilled", {"step": 12, "checkpointStep": 10})
    space.until_started(attempt=1)
    _succeed(space, kubelet, "digits-base-1")


def restart_in_place(space: Space, kubelet: Kubelet) -> None:
    """A rank is killed; the gang starts again in its pods and completes."""
    kubelet.launches, kubelet.launcher_patience_seconds = True, 1e6
    kubelet.tell(step=7, totalSteps=44)
    space.create(_job())
    space.until_phase("Running")
    kubelet.launchers["digits-base-0"].end(1, 137)
    space.until(
        lambda status: status.get("attempt") == 1 and status["phase"] == "Running", "the ranks train again in place"
    )
    _succeed(space, kubelet, "digits-base-0")


def suspension(space: Space, kubelet: Kubelet) -> None:
    """A job is suspended, saves, is resumed and completes."""
    kubelet.ends, kubelet.saved_step = False, _SAVED_STEP
    space.add_claim(CLAIM)
    space.create(job(template=_ON_ONE_NODE, checkpoint={"claimName": CLAIM}))
    space.until_started()
    space.change("digits", runPolicy={"suspend": True})
    _save_and_stop(space, kubelet)
    space.until_phase("Suspended")
    space.change("digits", runPolicy={"suspend": False})
    space.until_started(attempt=1)
    _succeed(space, kubelet, "digits-base-1")


def resize(space: Space, kubelet: Kubelet) -> None:
    """A job is scaled from four ranks to two, saves, goes on with it and completes."""
    kubelet.ends, kubelet.saved_step = False, _SAVED_STEP
    space.add_claim(CLAIM)
    space.create(job(ranks=4, template=_ON_ONE_NODE, checkpoint={"claimName": CLAIM}))
    space.until_started()
    space.change("digits", device={"count": 2})
    _save_and_stop(space, kubelet)
    space.until_started(attempt=1)
    _succeed(space, kubelet, "digits-base-1")


def stages(space: Space, kubelet: Kubelet) -> None:
    """A job of two stages."""
    space.add_claim(CLAIM)
    space.create(_job("base", "fine"))
    space.until_started()
    _exit(kubelet, "digits-base-0")
    space.until_started(attempt=1)
    _succeed(space, kubelet, "digits-fine-1")


def deadline(space: Space, kubelet: Kubelet) -> None:
    """A job fails at its active deadline, and its ranks may save."""
    space.create(_job())
    space.until_started()
    space.change("digits", runPolicy={"activeDeadlineSeconds": 1})
    space.until_phase("Failed")
    space.until_pods()


def rank_table(space: Space, kubelet: Kubelet) -> None:
    """An Ascend job gets its rank table, fails, and its next gang gets a table of other devices."""
    node = {"nodeSelector": {"kubernetes.io/hostname": "ascend-0"}}  # the table contains the node's name
    space.create(job(device={"type": "Ascend", "count": 2}, template=node))
    plugin = DevicePlugin(space.plane, space.namespace)
    _allocate(space, plugin, "digits-base-0")
    kubelet.exit("digits-base-0-1", 137)
    _allocate(space, plugin, "digits-base-1")
    _succeed(space, kubelet, "digits-base-1")


def queue(space: Space, kubelet: Kubelet) -> None:
    """A job waits in its queue, is admitted, evicted, queued again at its place, admitted again and completes."""
    kubelet.ends, kubelet.saved_step = False, _SAVED_STEP
    space.add_claim(CLAIM)
    with Kueue(space.plane, space.namespace, space.patience_seconds) as kueue:
        kueue.set_queue(QUEUE, 0)
        space.create(queued(job(template=_ON_ONE_NODE, checkpoint={"claimName": CLAIM})))
        kueue.until_reason("digits", "QuotaReserved", "WaitingForQuota")
        space.until_phase("Queued")
        kueue.set_queue(QUEUE, 2)
        space.until_started()
        kueue.until_reason("digits", "PodsReady", "Started")
        kueue.set_queue(QUEUE, 0)
        kueue.evict("digits")
        _save_and_stop(space, kubelet)
        kueue.until_reason("digits", "PodsReady", "WaitForStart")
        space.until_phase("Queued")
        kueue.set_queue(QUEUE, 2)
        space.until_started(attempt=1)
        _succeed(space, kubelet, "digits-base-1")
        kueue.until_reason("digits", "Finished", "Succeeded")
        assert kueue.broken_promises() == []
        assert kueue.counts() == {"workloads": 1, "evictions": 1, "releases": 1}


ALL: dict[str, Scenario] = {
    found.__name__: found
    for found in (plain, failure, restart_in_place, suspension, resize, stages, deadline, rank_table, queue)
}
# Options of the operator that a scenario needs.
OPTIONS: dict[str, tuple[str, ...]] = {"queue": ("--kueue",)}


def _job(*stages: str) -> dict[str, Any]:
    return job(stages=stages or ("base",), template=_ON_ONE_NODE)


def _allocate(space: Space, plugin: DevicePlugin, gang: str) -> None:
    """The last pod first: a gang that failed before its table was published would end with another status."""
    space.until_started(int(gang.rpartition("-")[2]))
    for index in (1, 0):
        plugin.allocate(space.get("pods", f"{gang}-{index}"))
    space.until(lambda status: is_true(status, "RankTableReady"), f"the rank table of {gang} is published")


def _succeed(space: Space, kubelet: Kubelet, gang: str) -> None:
    _exit(kubelet, gang)
    space.until_phase("Complete")


def _exit(kubelet: Kubelet, gang: str) -> None:
    """Rank 1 first: the stage's result comes from rank 0."""
    kubelet.exit(f"{gang}-1", 0)
    kubelet.exit(f"{gang}-0", 0, report={"class": "Succeeded", "step": 44, "top1": 0.97})


def _save_and_stop(space: Space, kubelet: Kubelet) -> None:
    """Deleted pods save a checkpoint and stop; they are gone once what they saved is known."""
    _stop_all(space, kubelet)
    # A pod's last status is lost in any cluster if the pod is removed while no operator watches, so that case is
    # excluded.
    space.until(
        lambda status: status.get("progress", {}).get("checkpointStep") == _SAVED_STEP, "what was saved is known"
    )
    kubelet.release()


def _stop_all(space: Space, kubelet: Kubelet) -> None:
    def all_are_deleted(pods: list[dict[str, Any]]) -> bool:
        return all("deletionTimestamp" in pod["metadata"] for pod in pods)

    for pod in eventually(space.pods, all_are_deleted, "every pod is asked to stop", space.patience_seconds):
        kubelet.stop(pod["metadata"]["name"])
