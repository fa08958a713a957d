"""Defaults of a job that depend on its type of device: image, resource, shared memory, driver mounts, rank table.

The CRD cannot express defaults that depend on another field, so they are defined here.
"""

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from resnetboost_api import __version__
from resnetboost_api.device import Device, DeviceType
from resnetboost_api.job import Spec
from resnetboost_api.stage import Stage
from resnetboost_operator.job import Job
from resnetboost_operator.ranktable.chips import Chip

__all__ = [
    "DEFAULT_CHIP",
    "PUBLISHED",
    "RESOURCE_OF_950",
    "SHARED_MEMORY",
    "TYPES",
    "Images",
    "image",
    "mounts_driver",
    "named_chip",
    "needs_rank_table",
    "resource_name",
    "shared_memory",
]

# NCCL's own advice; what is not used takes no memory.
SHARED_MEMORY = "1Gi"
RESOURCE_OF_950 = "huawei.com/npu"
# The chip of a node without labels. The rules of the other chips refuse tables that this one accepts.
DEFAULT_CHIP: Chip = "910B"


class Type(msgspec.Struct, frozen=True):
    """The defaults of one type. `resource_name` is None for CPUs, which no device plugin offers."""

    image: str
    resource_name: str | None


TYPES: dict[DeviceType, Type] = {
    "CPU": Type(f"resnetboost/trainer-cpu:{__version__}", None),
    "Ascend": Type(f"resnetboost/trainer-ascend:{__version__}", "huawei.com/Ascend910"),
    "GPU": Type(f"resnetboost/trainer-gpu:{__version__}", "nvidia.com/gpu"),
}


class Images(msgspec.Struct, frozen=True):
    """Where a cluster pulls trainers from: `registry` prefixes the default names, `by_type` has whole names instead."""

    registry: str = ""
    by_type: Mapping[DeviceType, str] = {}

    def filled_in(self, job: Job) -> Job:
        """The job with its template's image set, if it names none."""
        kind, template = job.spec.device.type, job.spec.template
        found = self.by_type.get(kind) or (f"{self.registry}/{TYPES[kind].image}" if self.registry else "")
        if template.image or not found:
            return job
        return replace(job, spec=replace(job.spec, template=replace(template, image=found)))


# The default names, without a registry.
PUBLISHED = Images()


def image(spec: Spec) -> str:
    """The trainer's image."""
    return spec.template.image or TYPES[spec.device.type].image


def resource_name(device: Device) -> str | None:
    """The resource a pod requests one of; None for CPUs, which `template.resources` requests."""
    if device.resource_name is not None:
        return device.resource_name
    return RESOURCE_OF_950 if device.chip == "950" else TYPES[device.type].resource_name


def shared_memory(device: Device) -> int | str | None:
    """Size of /dev/shm; None where a container's default of 64 MiB is enough."""
    return None if device.type == "CPU" else device.shared_memory_size or SHARED_MEMORY


def mounts_driver(device: Device) -> bool:
    """Whether the pod mounts the node's driver, instead of leaving it to the container runtime."""
    return device.type == "Ascend" and device.driver_mounts is not False


def needs_rank_table(device: Device, stage: Stage) -> bool:
    """Whether the ranks of a stage find each other by a rank table. A single rank needs none."""
    return device.type == "Ascend" and device.rendezvous != "Coordinator" and stage.device_count > 1


def named_chip(device: Device) -> Chip | None:
    """The chip that the job names, None if its nodes decide."""
    return "950" if device.chip is None and device.resource_name == RESOURCE_OF_950 else device.chip
