"""What a right job asks for that will not help it: no mistake, but nothing that its writer is likely to mean."""

from collections.abc import Iterator
from typing import Any

Manifest = dict[str, Any]


def notes(spec: Manifest) -> Iterator[str]:
    """A sentence for each such setting of a job's checked and defaulted spec, with its field."""
    device = spec["device"]
    for index, stage in enumerate(spec["stages"]):
        yield from _of_stage(stage, stage.get("deviceCount", device["count"]), f"spec.stages[{index}]")
    if device.get("chip") == "910A" and spec.get("jitLevel") == "O1":
        yield "spec.jitLevel: O1 fuses nothing on chip 910A; leave it out"
    if "claimName" not in spec["checkpoint"]:
        lost = "on Kubernetes checkpoints go with their pods, and every restart and suspension begins again at step 0"
        yield f"spec.checkpoint.claimName: without it {lost}; add the name of a PersistentVolumeClaim"


def _of_stage(stage: Manifest, devices: int, field: str) -> Iterator[str]:
    if devices == 1 and "allReduceFusion" in stage:
        yield f"{field}.allReduceFusion: one device has no gradients to sum; leave it out, or use more devices"
