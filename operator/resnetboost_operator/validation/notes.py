"""Notes on valid settings of a job that have no effect or are probably not intended."""

from collections.abc import Iterator
from typing import Any

Manifest = dict[str, Any]


# Number of classes of data sets with a fixed number.
CLASSES = {"digits": 10, "mnist_5k": 10, "MNIST": 10, "CIFAR10": 10, "CIFAR100": 100}


def notes(spec: Manifest) -> Iterator[str]:
    """A sentence with its field for each such setting of a checked and defaulted spec."""
    device, dataset = spec["device"], spec["dataset"]["name"]
    if dataset in CLASSES:
        yield from of_classes(spec["model"]["numClasses"], CLASSES[dataset], f"{dataset} has")
    yield from _of_freezing(spec)
    for index, stage in enumerate(spec["stages"]):
        yield from _of_stage(stage, stage.get("deviceCount", device["count"]), f"spec.stages[{index}]")
    if device.get("chip") == "910A" and spec.get("jitLevel") == "O1":
        yield "spec.jitLevel: O1 fuses nothing on chip 910A; leave it out"


def of_cluster(spec: Manifest) -> Iterator[str]:
    """Notes on settings that matter on Kubernetes only."""
    if not {"claimName", "url"} & set(spec["checkpoint"]):
        lost = (
            "on Kubernetes checkpoints are lost with their pods, and every restart or suspension starts over at step 0"
        )
        remedy = "add the name of a PersistentVolumeClaim, or a checkpoint.url"
        yield f"spec.checkpoint.claimName: without it {lost}; {remedy}"
    yield from _of_min_count(spec["device"])


def _of_min_count(device: Manifest) -> Iterator[str]:
    """Note that no number of devices from minCount on, below count, divides count and fills its nodes."""
    count, least, unit = device["count"], device.get("minCount"), device.get("perNode", 1)
    if least is None or any(count % number == 0 and number % unit == 0 for number in range(least, count)):
        return
    smaller = [number for number in range(1, count) if count % number == 0 and number % unit == 0]
    remedy = f"use {smaller[-1]} or less" if smaller else "leave it out"
    yield f"spec.device.minCount: no number from {least} to {count - 1} divides the {count} devices; {remedy}"


def of_classes(given: int, labels: int, source: str) -> Iterator[str]:
    """Note that the network has more classes than there are labels; `source` is that of the labels, with a verb."""
    if given > labels:
        remedy = f"use {labels}, or more only to continue with other data"
        yield f"spec.model.numClasses: {given} classes, and {source} {labels}: the others are never learnt; {remedy}"


def _of_freezing(spec: Manifest) -> Iterator[str]:
    """Note on frozen parts of a network whose weights are random."""
    frozen = spec["model"].get("freeze")
    trained = "weights" in spec["model"] or "jobName" in spec["stages"][0].get("startFrom", {})
    if frozen and not trained and spec["checkpoint"]["resume"] == "Never":
        parts = ", ".join(frozen)
        problem = f"{parts} would keep the weights drawn at random, as nothing has trained them"
        yield f"spec.model.freeze: {problem}; give model.weights, or leave freeze out"


def _of_milestones(stage: Manifest, field: str) -> Iterator[str]:
    """Epochs at which the rate would drop if the stage were longer; Polynomial looks one step ahead."""
    rate, epochs = stage["learningRate"], stage["epochs"]
    last = rate["schedule"] == "Polynomial"
    past = [found for found in rate.get("milestones", ()) if found > epochs or (found == epochs and not last)]
    if past:
        listed = ", ".join(f"{found:g}" for found in past)
        problem = f"{listed} {'is' if len(past) == 1 else 'are'} not before the end of the stage's {epochs} epochs"
        yield f"{field}.learningRate.milestones: {problem}, so the rate never drops there; give epochs, not steps"


def _of_stage(stage: Manifest, devices: int, field: str) -> Iterator[str]:
    yield from _of_milestones(stage, field)
    if devices == 1 and "allReduceFusion" in stage:
        yield f"{field}.allReduceFusion: one device has no gradients to sum; leave it out, or use more devices"
    if stage.get("gradientNoise") and devices == 1 and stage.get("accumulationSteps", 1) == 1:
        problem = "a step of one device and one batch has no second gradient to compare, so nothing is measured"
        yield f"{field}.gradientNoise: {problem}; use more devices or accumulationSteps, or leave it out"
