"""What a kind of device asks of a pod, where the job leaves it out; it makes no objects.

The CRD can fill in no default that depends on the type, so these stand here and nowhere else: one job differs from
device to device only in `device.type`.
"""

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from resnetboost_operator import api
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
    "needs_rank_table",
    "resource_name",
    "shared_memory",
    "told_chip",
]

# NCCL's own advice; what is not used takes no memory.
SHARED_MEMORY = "1Gi"
RESOURCE_OF_950 = "huawei.com/npu"
# Of a node that does not say: the rules of the others refuse what this one can do.
DEFAULT_CHIP: Chip = "910B"


class Type(msgspec.Struct, frozen=True):
    """The defaults of one type; the CPU is no resource that a device plugin offers."""

    image: str
    resource_name: str | None


TYPES: dict[api.DeviceType, Type] = {
    "CPU": Type("resnetboost/trainer-cpu:0.1.0", None),
    "Ascend": Type("resnetboost/trainer-ascend:0.1.0", "huawei.com/Ascend910"),
    "GPU": Type("resnetboost/trainer-gpu:0.1.0", "nvidia.com/gpu"),
}


class Images(msgspec.Struct, frozen=True):
    """Where a cluster has the trainers' images. registry: stands before our names; by_type: whole names instead."""

    registry: str = ""
    by_type: Mapping[api.DeviceType, str] = {}

    def filled_in(self, job: api.Job) -> api.Job:
        """The job with the image it gets here if it names none."""
        kind, template = job.spec.device.type, job.spec.template
        found = self.by_type.get(kind) or (f"{self.registry}/{TYPES[kind].image}" if self.registry else "")
        if template.image or not found:
            return job
        return replace(job, spec=replace(job.spec, template=replace(template, image=found)))


# Each image under our own name.
PUBLISHED = Images()


def image(spec: api.Spec) -> str:
    """The trainer's image."""
    return spec.template.image or TYPES[spec.device.type].image


def resource_name(device: api.Device) -> str | None:
    """What a pod requests one of; None for CPUs, which `template.resources` asks for."""
    if device.resource_name is not None:
        return device.resource_name
    return RESOURCE_OF_950 if device.chip == "950" else TYPES[device.type].resource_name


def shared_memory(device: api.Device) -> int | str | None:
    """Size of /dev/shm; None where the 64 MiB that every container has will do."""
    return None if device.type == "CPU" else device.shared_memory_size or SHARED_MEMORY


def mounts_driver(device: api.Device) -> bool:
    """Whether the node's driver is mounted by the pod, and not by the runtime alone."""
    return device.type == "Ascend" and device.driver_mounts is not False


def needs_rank_table(device: api.Device, stage: api.Stage) -> bool:
    """Whether the ranks of a stage meet by a rank table. A single rank meets nobody."""
    return device.type == "Ascend" and device.rendezvous != "Coordinator" and stage.device_count > 1


def told_chip(device: api.Device) -> Chip | None:
    """The chip as far as the job says; otherwise its nodes may."""
    return "950" if device.chip is None and device.resource_name == RESOURCE_OF_950 else device.chip
