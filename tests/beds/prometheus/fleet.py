"""Jobs that together produce every series: training, restarted, slow, hung, rolled back, failed, pending."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from beds.kubelet import Bed, containers, images
from beds.operator import Space
from beds.operator.jobs import job
from beds.operator.namespace import condition, is_true

Manifest = dict[str, Any]

CLAIM = "checkpoints"
SMALL_CLAIM = "small"
_SMALL_BYTES = 300_000  # smaller than one checkpoint of a resnet20
_KILLED, _STOPPED, _SLOWED = "digits-base-0-1", "hangs-base-0-1", "digits-base-1-1"
# One thread per rank, and short waits: all gangs share a small machine.
_SPARING = {"requests": {"cpu": "10m"}, "limits": {"cpu": "1"}}

# Purpose of each job, by its expected end.
ENDS = {
    "digits": "Complete",  # Momentum with a restart, then PCA
    "digits-thor": "Complete",
    "digits-adasum": "Complete",
    "no-data": "Failed",
    "diverges": "Failed",
    "disk-full": "Failed",
    "no-pods": "Failed",
    "hangs": "Failed",
}
# All at once would leave the API server of a small machine no time.
_LATER = ("digits-thor", "digits-adasum")
WAITING = ("no-devices", "no-rank-table")


def start(bed: Bed, space: Space) -> None:
    """Create all jobs but the later ones; the caller provides devices of Ascend's kind."""
    bed.add_claim(space.namespace, CLAIM)
    _make_small(bed, bed.add_claim(space.namespace, SMALL_CLAIM))
    for manifest in jobs():
        if manifest["metadata"]["name"] not in _LATER:
            space.create(manifest)


def jobs() -> Iterator[Manifest]:
    """The manifests, longest first; jobs to be killed run longer than the interval of progress reports."""
    kept = {"everySteps": 10, "claimName": CLAIM}
    snapshots = {"everyEpochs": 8, "from": 70, "keep": 10}
    base = _stage("Momentum", 150, learningRate={"peak": 0.1}, snapshots=snapshots, gradientNoise=True)
    fine = _stage("PCA", 2, name="fine", pca={"components": 6})
    yield _job("digits", [base, fine], {"straggler": {"forSeconds": 1}}, checkpoint=kept)
    thor = _stage("THOR", 4, learningRate={"peak": 0.02}, thor={"frequency": 5}, ema={"decay": 0.9})
    followed: Manifest = {"checkpoint": {"everySteps": 10, "best": {"metric": "top1"}}, "tracking": {"tensorboard": {}}}
    yield _job("digits-thor", [thor], ranks=3, preflight={}, **followed)  # of two ranks no connections are compared
    yield _job("digits-adasum", [_stage("Adasum", 4, learningRate={"peak": 0.05})])
    yield _job("hangs", [_stage("Momentum", 400)], {"hangTimeoutSeconds": 30}, checkpoint=kept)
    yield _job("no-data", ranks=1, dataset={"name": "npz", "path": "/nowhere.npz"})
    explosive = _stage("Momentum", 2, learningRate={"schedule": "Constant", "peak": 1000})
    yield _job("diverges", [explosive], {"divergence": {"maxRollBacks": 1}}, ranks=1)
    yield _job("disk-full", ranks=1, checkpoint={"everySteps": 5, "claimName": SMALL_CLAIM})
    overcommitted = {"requests": {"example.com/device": 1}, "limits": {"example.com/device": 2}}
    yield _job("no-pods", ranks=1, template={"image": images.TRAINER.tag, "resources": overcommitted})
    yield _job("no-devices", ranks=1, device={"type": "GPU", "count": 1})
    yield _job("no-rank-table", device={"type": "Ascend", "count": 2, "driverMounts": False})


def play(bed: Bed, space: Space) -> None:
    """Cause a restart, a hang and a slow rank, and wait until each job has ended or reports why it is pending."""
    space.until(_has_saved, "a checkpoint is saved", "digits")
    containers.kill(bed, space.namespace, _KILLED)
    space.until(_has_saved, "a checkpoint is saved", "hangs")
    containers.kill_rank(bed, space.namespace, _STOPPED, "STOP")
    space.until(lambda status: status.get("restarts") == 1 and is_true(status, "Running"), "a restart")
    containers.slow_down(bed, space.namespace, _SLOWED, 0.1)
    space.until(lambda status: is_true(status, "Straggling"), "a rank is slow")
    containers.slow_down(bed, space.namespace, _SLOWED, 1.0)
    for manifest in jobs():
        if manifest["metadata"]["name"] in _LATER:
            space.create(manifest)
    for name in WAITING:
        space.until(lambda status: condition(status, "Running").get("status") == "False", "it waits", name)
    for name, phase in ENDS.items():
        space.until_phase(phase, name)


def _has_saved(status: Manifest) -> bool:
    return bool(status.get("progress", {}).get("checkpointStep"))


def _job(
    name: str, stages: list[Manifest] | None = None, failure_policy: Manifest | None = None, ranks: int = 2, **spec: Any
) -> Manifest:
    """A job whose repeatable failures are not retried."""
    template = {"image": images.TRAINER.tag, "resources": _SPARING}
    restarts = 3 if name == "digits" else 0
    policy = {"backoffSeconds": 0, "maxRestarts": restarts, **(failure_policy or {})}
    common = {"checkpoint": {"everySteps": 10}, "template": template, "failurePolicy": policy}
    manifest = job(name, ranks=ranks, **{**common, **spec})
    manifest["spec"]["stages"] = stages or [_stage("Momentum", 2)]
    return manifest


def _stage(algorithm: str, epochs: int, name: str = "base", **fields: Any) -> Manifest:
    return {"name": name, "algorithm": algorithm, "epochs": epochs, "localBatchSize": 32, **fields}


def _make_small(bed: Bed, folder: Path) -> None:
    """Make a volume too small for a checkpoint; it is removed with the node's mounts."""
    bed.run("mount", "-t", "tmpfs", "-o", f"size={_SMALL_BYTES}", "none", folder)
