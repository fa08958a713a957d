"""The checked job, as planning uses it: `Job`, `parse_job`, and the structs of resnetboost_api."""

from collections.abc import Mapping
from typing import Any

import msgspec

from resnetboost_api import names
from resnetboost_api import stage as stages
from resnetboost_api.device import Device
from resnetboost_api.job import Spec
from resnetboost_api.optimizers import Adasum
from resnetboost_api.stage import Stage


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job as the plan sees it; `uid` is empty and `generation` 1 for a file that no cluster has seen.

    Each of its stages has the settings of its algorithm and a `device_count` of its own.
    `queue` and `queue_priority` are the values of Kueue's labels, '' without; `pod_annotations` those of the job's
    annotations that its pods get. `volcano_queue` and `yunikorn_queue` are the queues it names for these schedulers, ''
    without. `launcher_key` says which key of the operator the launchers' token is made of, '' without an operator.
    `virtual_ranks` are the numbers of ranks that stages are defined by, where they run on fewer.
    """

    name: str
    namespace: str
    uid: str
    generation: int
    spec: Spec
    queue: str = ""
    queue_priority: str = ""
    pod_annotations: Mapping[str, str] = {}
    volcano_queue: str = ""
    yunikorn_queue: str = ""
    launcher_key: str = ""
    virtual_ranks: Mapping[str, int] = {}

    @property
    def has_launchers(self) -> bool:
        """Whether process 1 of each rank's container is a launcher, which can start the rank again."""
        return self.spec.failure_policy.restart_in == "Pod"


def parse_job(obj: dict[str, Any]) -> Job:
    """Read an object that `schema.check` found right."""
    metadata = obj["metadata"]
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    spec = msgspec.convert(obj["spec"], Spec)
    return Job(
        name=metadata["name"],
        namespace=metadata.get("namespace", "default"),
        uid=metadata.get("uid", ""),
        generation=metadata.get("generation", 1),
        queue=labels.get(names.LABEL_QUEUE, ""),
        queue_priority=labels.get(names.LABEL_QUEUE_PRIORITY, ""),
        pod_annotations={key: annotations[key] for key in names.PASSED_ANNOTATIONS if key in annotations},
        volcano_queue=annotations.get(names.VOLCANO_QUEUE) or labels.get(names.VOLCANO_QUEUE, ""),
        yunikorn_queue=labels.get(names.YUNIKORN_QUEUE, ""),
        spec=msgspec.structs.replace(spec, stages=tuple(_completed(stage, spec.device) for stage in spec.stages)),
    )


def resized(job: Job, ranks: int) -> Job:
    """The job on at most so many ranks: each stage on the largest number that divides its own and fills its nodes."""
    counts = {stage.name: stage.device_count or 1 for stage in job.spec.stages}
    per_node = job.spec.device.per_node or 1
    fewer = {name: _most(count, ranks, per_node) for name, count in counts.items() if count > ranks}
    stages = tuple(
        msgspec.structs.replace(stage, device_count=fewer.get(stage.name, stage.device_count))
        for stage in job.spec.stages
    )
    virtual = {name: counts[name] for name in fewer}
    return msgspec.structs.replace(job, spec=msgspec.structs.replace(job.spec, stages=stages), virtual_ranks=virtual)


def _most(count: int, most: int, per_node: int) -> int:
    """The largest divisor of `count` up to `most` that is a multiple of `per_node`, or below it as a stage's may be."""
    divisors = [number for number in range(1, most + 1) if count % number == 0]
    return max(number for number in divisors if number < per_node or number % per_node == 0)


def _completed(stage: Stage, device: Device) -> Stage:
    adasum = stage.adasum or (Adasum() if stage.algorithm == "Adasum" else None)
    count = stage.device_count or device.count
    return msgspec.structs.replace(stages.completed(stage), adasum=adasum, device_count=count)


def ranks_per_summand(device: Device, stage: Stage) -> int:
    """Number of neighbouring ranks that average their gradients before Adasum sums."""
    hierarchical = stage.adasum is not None and stage.adasum.topology == "Hierarchical"
    return min(device.per_node or 1, stage.device_count) if hierarchical else 1
