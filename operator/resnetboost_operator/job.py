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

    Each of its stages has the settings of its algorithm and a `device_count` of its own. `defined_devices` is the
    device.count by which the training is defined, which may differ from the spec's since.
    `queue` and `queue_priority` are the values of Kueue's labels, '' without; `pod_annotations` those of the job's
    annotations that its pods get. `volcano_queue` and `yunikorn_queue` are the queues it names for these schedulers, ''
    without. `launcher_key` says which key of the operator the launchers' token is made of, '' without an operator.
    `most_devices`: on how many devices it is to run now. `virtual_ranks`: the numbers of ranks that stages are defined
    by, where they run on fewer (`sizes`).
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
    defined_devices: int
    most_devices: int
    virtual_ranks: Mapping[str, int] = {}

    @property
    def has_launchers(self) -> bool:
        """Whether process 1 of each rank's container is a launcher, which can start the rank again."""
        return self.spec.failure_policy.restart_in == "Pod"


def parse_job(obj: dict[str, Any]) -> Job:
    """Read an object that `schema.check` found right.

    Once it has trained, its status says by how many devices it is defined; device.count may change after that.
    """
    metadata = obj["metadata"]
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    spec = msgspec.convert(obj["spec"], Spec)
    defined = _virtual_ranks(obj.get("status")) or spec.device.count
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
        spec=msgspec.structs.replace(spec, stages=tuple(_completed(stage, defined) for stage in spec.stages)),
        defined_devices=defined,
        most_devices=spec.device.count,
    )


def _virtual_ranks(status: object) -> int:
    """Devices that a job is defined by, 0 if unknown; the status of a file is not checked, and may be anything."""
    known = status.get("virtualRanks") if isinstance(status, Mapping) else None
    return known if type(known) is int and known > 0 else 0


def _completed(stage: Stage, defined: int) -> Stage:
    adasum = stage.adasum or (Adasum() if stage.algorithm == "Adasum" else None)
    return msgspec.structs.replace(stages.completed(stage), adasum=adasum, device_count=stage.device_count or defined)


def ranks_per_summand(device: Device, stage: Stage) -> int:
    """Number of neighbouring ranks that average their gradients before Adasum sums."""
    hierarchical = stage.adasum is not None and stage.adasum.topology == "Hierarchical"
    return min(device.per_node or 1, stage.device_count) if hierarchical else 1
