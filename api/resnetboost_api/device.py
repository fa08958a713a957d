"""The devices of a job."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from resnetboost_api.fields import Block, ObjectName, Quantity, Rule

DeviceType = Literal["CPU", "Ascend", "GPU"]
Chip = Literal["910A", "910B", "A3", "950"]
Rendezvous = Literal["RankTable", "Coordinator"]
DeviceResource = Annotated[
    str,
    Meta(
        max_length=128,
        pattern="^[a-z0-9]([-.a-z0-9]*[a-z0-9])?/[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?$",
        title="a vendor's resource such as nvidia.com/mig-1g.10gb",
    ),
]


class DeviceKind(Block, frozen=True, kw_only=True):
    """What kind of device each rank has."""

    type: DeviceType = "CPU"
    """Kind of device. CPU needs nothing special on the nodes; Ascend and GPU need the device plugin of Huawei or
    NVIDIA. Whatever is left out follows the type, so that a job may differ from device to device in this one word.
    """


class Device(DeviceKind, frozen=True, kw_only=True):
    """The devices to train on. Each has a pod and a rank of its own.

    What is left out follows the type; the operator's `devices` says how.
    """

    count: Annotated[int, Meta(ge=1, le=1024)] = 1
    """Number of devices, and so of ranks and of pods. A stage may take fewer; see its deviceCount. The number of the
    job's first attempt defines the training; changed later, as by `kubectl scale`, the same training goes on from its
    checkpoint on the largest number that is not above it and divides the first.
    """
    min_count: Annotated[int, Meta(ge=1, le=1024)] | None = None
    """The fewest devices to go on with, where there is no room for all: their number then divides that of the first
    attempt, and the training stays the same. Left out, the job waits for all of them.
    """
    elastic_after_seconds: Annotated[int, Meta(ge=1, le=31536000)] = 300
    """With minCount: seconds that an attempt waits for room before the job goes on with fewer devices."""
    resize_backoff_seconds: Annotated[int, Meta(ge=0, le=31536000)] = 1800
    """With minCount: seconds from one change of the number of devices to the next search for room for more."""
    per_node: Annotated[int, Meta(ge=1, le=1024)] | None = None
    """How many of the devices share a node. Each node then gets exactly so many pods of the job, and ranks of one node
    are neighbours. Left out, the scheduler puts each pod where there is room. The algorithm Adasum averages over
    them before it sums, unless its topology is Flat.
    """
    resource_name: DeviceResource | None = None
    """The device plugin's name for the devices, of which each pod gets one. Left out, it is huawei.com/Ascend910 for
    Ascend (huawei.com/npu for chip 950) and nvidia.com/gpu for GPU. Parts of devices have names of their own, such
    as nvidia.com/mig-1g.10gb.
    """
    chip: Chip | None = None
    """Generation of the Ascend chips, by whose rules the rank table is made: 910A (Atlas training series), 910B (Atlas
    A2), A3 (Atlas A3) or 950. Left out, it is that of the nodes' label accelerator-type; without the label, 910B is
    taken. All devices of a job are of one chip.
    """
    rendezvous: Rendezvous | None = None
    """How the ranks meet. RankTable: by HCCL's file of all devices, made from the device plugin's annotations.
    Coordinator: at a process of MindSpore beside index 0. Left out, it is RankTable for Ascend and Coordinator for
    GPU and CPU.
    """
    runtime_class_name: ObjectName | None = None
    """RuntimeClass of the pods, such as nvidia or ascend, where the vendor's container runtime is not the nodes'
    default.
    """
    shared_memory_size: Annotated[Quantity, Meta(title="a quantity such as 512Mi or 2Gi")] | None = None
    """Size of /dev/shm, through which collectives inside a node go. Left out, it is 1Gi for Ascend and GPU. What is
    used counts towards the memory limit.
    """
    driver_mounts: bool | None = None
    """Whether pods see the Ascend driver of their node, read-only: /usr/local/Ascend/driver, /usr/local/dcmi and
    /etc/hccn.conf. Left out, it is true. false where the container runtime brings all of it, or where PodSecurity
    forbids hostPath.
    """
    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.minCount) || self.minCount <= self.count",
            "the job cannot shrink to more devices than it has; lower minCount or raise count",
            field_path=".minCount",
        ),
        Rule(
            "!has(self.perNode) || self.count % self.perNode == 0",
            """
            count must be a multiple of perNode, because each node gets perNode devices of the job; correct
            one of them
            """,
            field_path=".perNode",
        ),
        Rule(
            "self.type != 'CPU' || !has(self.resourceName)",
            """
            resourceName is for the types Ascend and GPU, and CPUs are asked for in template.resources;
            leave it out
            """,
            field_path=".resourceName",
            reason="FieldValueForbidden",
        ),
        Rule(
            "self.type != 'CPU' || !has(self.sharedMemorySize)",
            """
            sharedMemorySize is for the types Ascend and GPU, and ranks on CPUs share no memory; leave it
            out
            """,
            field_path=".sharedMemorySize",
            reason="FieldValueForbidden",
        ),
        Rule(
            "self.type == 'Ascend' || !has(self.chip)",
            "chip is for the type Ascend; leave it out or change the type",
            field_path=".chip",
            reason="FieldValueForbidden",
        ),
        Rule(
            "self.type == 'Ascend' || !has(self.driverMounts)",
            "driverMounts is for the type Ascend; leave it out or change the type",
            field_path=".driverMounts",
            reason="FieldValueForbidden",
        ),
        Rule(
            "self.type == 'Ascend' || !has(self.rendezvous) || self.rendezvous == 'Coordinator'",
            "only devices of type Ascend read a rank table; use Coordinator, or leave rendezvous out",
            field_path=".rendezvous",
        ),
        Rule(
            """
            self.count == 1 || !has(self.resourceName) ||
            !self.resourceName.matches('^huawei[.]com/[A-Za-z0-9]+-[0-9]+c([.]|$)')
            """,
            """
            ranks on parts of an Ascend device (vNPU) cannot meet, because HCCL does not work there; use
            whole devices, or a count of 1
            """,
            field_path=".resourceName",
        ),
        Rule(
            "!has(self.chip) || self.chip != '910A' || !has(self.perNode) || self.perNode in [1, 2, 4, 8]",
            "HCCL takes 1, 2, 4 or 8 devices of a node with chip 910A; use one of these",
            field_path=".perNode",
        ),
        Rule(
            """
            !has(self.chip) || self.chip != 'A3' || !has(self.perNode) || self.perNode == 1 ||
            self.perNode % 2 == 0
            """,
            "HCCL takes both halves of an NPU of chip A3; use 1 or an even number",
            field_path=".perNode",
        ),
    )
