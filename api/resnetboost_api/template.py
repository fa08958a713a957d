"""The pod template of a job: the fields of a pod that users may set, in Kubernetes' form."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, field

from resnetboost_api.fields import (
    ATOMIC,
    Block,
    LabelKey,
    LabelValue,
    ObjectName,
    Quantity,
    Rule,
    VolumeName,
    keyed,
    rules,
)

PullPolicy = Literal["Always", "IfNotPresent", "Never"]
TolerationOperator = Literal["Exists", "Equal"]
TaintEffect = Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
_REGISTRY = r"^(([A-Za-z0-9]([-.A-Za-z0-9]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(:[0-9]+)?/)?"
_PATH = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*"
_TAG = r"(:[A-Za-z0-9_][-.A-Za-z0-9_]{0,127})?"
_DIGEST = r"(@[A-Za-z][A-Za-z0-9]*([-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,})?$"
ImageName = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=1024,
        pattern=_REGISTRY + _PATH + _TAG + _DIGEST,
        title="an image such as registry.example/team/trainer:1.0, its name in lower case and without spaces",
    ),
]
VariableName = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=256,
        pattern="^[A-Za-z_][A-Za-z0-9_]*$",
        title="letters, digits and '_', not starting with a digit",
    ),
]
Quantities = Annotated[
    dict[
        str,
        Annotated[
            Quantity,
            Meta(title="a quantity such as 2, 500m or 2Gi", description='A quantity, such as 2, "500m" or "2Gi".'),
        ],
    ],
    Meta(
        max_length=16,
        extra_json_schema=rules(
            Rule(
                """
                self.all(k, k in ['cpu', 'memory', 'ephemeral-storage'] ||
                k.matches('^[a-z0-9][-.a-z0-9]{0,252}/[A-Za-z0-9][-._A-Za-z0-9]{0,62}$'))
                """,
                """
                resources are cpu, memory, ephemeral-storage or a vendor's, such as example.com/device;
                correct the name
                """,
                message_expression="""
                "'" + self.filter(k, !(k in ['cpu', 'memory', 'ephemeral-storage'] ||
                k.matches('^[a-z0-9][-.a-z0-9]{0,252}/[A-Za-z0-9][-._A-Za-z0-9]{0,62}$')))[0]
                + "' is no resource; use cpu, memory, ephemeral-storage or a vendor's, such as "
                + "example.com/device"
                """,
            )
        ),
    ),
]
NodeSelector = Annotated[
    dict[str, Annotated[LabelValue, Meta(description="Value the label must have.")]],
    Meta(
        max_length=16,
        extra_json_schema=rules(
            Rule(
                """
                self.all(k, k.matches(
                '^([a-z0-9][-.a-z0-9]{0,252}/)?[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?$'))
                """,
                "nodeSelector must hold label keys such as kubernetes.io/arch; correct the key",
                message_expression="""
                "'" + self.filter(k, !k.matches(
                '^([a-z0-9][-.a-z0-9]{0,252}/)?[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?$'))[0]
                + "' is no label key; use one such as kubernetes.io/arch"
                """,
            )
        ),
    ),
]
HostName = Annotated[
    str, Meta(min_length=1, max_length=253, pattern="^[A-Za-z0-9.:-]+$", title="a host name or an IP address")
]
MOUNT_PATH = r"^(/\.?[A-Za-z0-9_-][A-Za-z0-9._-]*)+$"
MountPath = Annotated[
    str,
    Meta(
        min_length=2,
        max_length=1024,
        pattern=MOUNT_PATH,
        title="an absolute path such as /data, without '.', '..' or a '/' at its end",
    ),
]
SubPath = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=1024,
        pattern=r"^\.?[A-Za-z0-9_-][A-Za-z0-9._-]*(/\.?[A-Za-z0-9_-][A-Za-z0-9._-]*)*$",
        title="a relative path such as images/train, without '.', '..' or a '/' at its end",
    ),
]


class EnvVar(Block, frozen=True, kw_only=True):
    """One environment variable."""

    name: VariableName
    """Name of the variable, unique in the list."""
    value: Annotated[str, Meta(max_length=4096)] = ""
    """Value of the variable."""
    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!self.name.startsWith('RESNETBOOST_') && !self.name.startsWith('MS_')",
            "variables that start with RESNETBOOST_ or MS_ are set by the operator; leave this one out",
            field_path=".name",
            reason="FieldValueForbidden",
            message_expression="""
            "variables that start with RESNETBOOST_ or MS_ are set by the operator; leave out "
            + self.name
            """,
        ),
        Rule(
            "!(self.name in ['RANK_TABLE_FILE', 'RANK_ID', 'RANK_SIZE', 'MINDSPORE_HCCL_CONFIG_PATH'])",
            """
            RANK_TABLE_FILE, RANK_ID, RANK_SIZE and MINDSPORE_HCCL_CONFIG_PATH say what the trainer
            finds out itself; leave this one out
            """,
            field_path=".name",
            reason="FieldValueForbidden",
            message_expression='self.name + " says what the trainer finds out itself; leave it out"',
        ),
    )


class Resources(Block, frozen=True, kw_only=True):
    """What each pod asks of its node, in Kubernetes' form. The CPU limit also sets the threads of a rank."""

    requests: Quantities = field(default_factory=dict)
    """What a node must have free for the pod, as quantities such as "500m" (half a CPU) or "2Gi"."""
    limits: Quantities = field(default_factory=dict)
    """What the pod may use at most. Above its memory limit it is killed; its CPU limit slows it down."""


class Toleration(Block, frozen=True, kw_only=True):
    """One toleration."""

    key: LabelKey | None = None
    """Key of the taint. Left out, with operator Exists, it means every taint."""
    operator: TolerationOperator = "Equal"
    """Exists: any value of the taint will do. Equal: it must be the given one."""
    value: LabelValue | None = None
    """Value of the taint, for operator Equal."""
    effect: TaintEffect | None = None
    """Effect of the taint. Left out it means every effect."""
    toleration_seconds: Annotated[int, Meta(ge=0, le=31536000)] | None = None
    """Seconds a pod stays on a node with the taint, for the effect NoExecute. Without it the pod stays."""
    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.operator != 'Exists' || !has(self.value)",
            "a toleration with operator Exists has no value; leave value out or use Equal",
            field_path=".value",
            reason="FieldValueForbidden",
        ),
        Rule(
            "self.operator != 'Equal' || has(self.key)",
            "a toleration with operator Equal needs a key; add it or use Exists",
            field_path=".key",
            reason="FieldValueRequired",
        ),
        Rule(
            "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
            "tolerationSeconds is for the effect NoExecute; leave it out or set that effect",
            field_path=".tolerationSeconds",
            reason="FieldValueForbidden",
        ),
    )


class PersistentVolumeClaimVolume(Block, frozen=True, kw_only=True):
    """A PersistentVolumeClaim in the namespace of the job."""

    claim_name: ObjectName
    """Name of the claim."""
    read_only: bool = False
    """Attach the volume for reading only."""


class ConfigMapVolume(Block, frozen=True, kw_only=True):
    """A ConfigMap in the namespace of the job; each key becomes a file."""

    name: ObjectName
    """Name of the ConfigMap."""


class EmptyDirVolume(Block, frozen=True, kw_only=True):
    """An empty folder that lives as long as the pod. It has no settings: write {}."""


class NfsVolume(Block, frozen=True, kw_only=True):
    """A folder of an NFS server."""

    server: HostName
    """Host name or IP address of the server."""
    path: Annotated[str, Meta(min_length=1, max_length=1024, pattern="^/", title="a path that starts with '/'")]
    """Folder that the server exports; starts with '/'."""
    read_only: bool = False
    """Mount the folder for reading only."""


class Volume(Block, frozen=True, kw_only=True):
    """One volume, from one source."""

    name: VolumeName
    """Name of the volume, unique in the list."""
    persistent_volume_claim: PersistentVolumeClaimVolume | None = None
    config_map: ConfigMapVolume | None = None
    empty_dir: EmptyDirVolume | None = None
    nfs: NfsVolume | None = None
    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            """
            [has(self.persistentVolumeClaim), has(self.configMap), has(self.emptyDir),
            has(self.nfs)].exists_one(given, given)
            """,
            "a volume has one source; give one of persistentVolumeClaim, configMap, emptyDir and nfs",
            message_expression="""
            "volume '" + self.name + "' must have one source; give one of persistentVolumeClaim, "
            + "configMap, emptyDir and nfs"
            """,
        ),
        Rule(
            "!(self.name in ['config', 'checkpoints', 'launcher-token'])",
            "the volumes config, checkpoints and launcher-token are the operator's; use another name",
            field_path=".name",
            reason="FieldValueForbidden",
        ),
    )


class VolumeMount(Block, frozen=True, kw_only=True):
    """One place where a volume is seen."""

    name: VolumeName
    """Name of one of template.volumes."""
    mount_path: MountPath
    """Absolute path in the container, unique in the list, without '.', '..' or a '/' at its end."""
    sub_path: SubPath | None = None
    """Folder or file inside the volume to mount instead of all of it."""
    read_only: bool = False
    """Let the trainer only read the volume."""
    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            """
            !['/etc/resnetboost', '/etc/resnetboost-launcher', '/checkpoints'].exists(own,
            self.mountPath == own || self.mountPath.startsWith(own + '/'))
            """,
            """
            /etc/resnetboost, /etc/resnetboost-launcher and /checkpoints are the operator's; mount the volume elsewhere
            """,
            field_path=".mountPath",
            reason="FieldValueForbidden",
        ),
    )


class Template(Block, frozen=True, kw_only=True):
    """What the pods of the job get beside what the operator sets."""

    image: ImageName | None = None
    """Container image of the trainer. Left out, it is that of the device type, resnetboost/trainer-cpu,
    resnetboost/trainer-ascend or resnetboost/trainer-gpu, in the operator's version. One of your own may be older than
    the operator: it fails, and says so, only if the job uses a field that it does not know. `resnetboost
    run` uses the trainer installed on this machine instead.
    """
    image_pull_policy: PullPolicy = "IfNotPresent"
    """When nodes pull the image."""
    env: Annotated[tuple[EnvVar, ...], Meta(max_length=64, extra_json_schema=keyed("name"))] = ()
    """Environment variables of the trainer, in Kubernetes' form. Names that start with RESNETBOOST_ or MS_ are the
    operator's, and so are those of the rank table.
    """
    resources: Resources = Resources()
    node_selector: NodeSelector = field(default_factory=dict)
    """Labels a node must have to get a pod of the job."""
    tolerations: Annotated[tuple[Toleration, ...], Meta(max_length=16, extra_json_schema=ATOMIC)] = ()
    """Taints of nodes the pods put up with, in Kubernetes' form."""
    volumes: Annotated[tuple[Volume, ...], Meta(max_length=32, extra_json_schema=keyed("name"))] = ()
    """Volumes of the pods, in Kubernetes' form. The names config and checkpoints are the operator's."""
    volume_mounts: Annotated[tuple[VolumeMount, ...], Meta(max_length=32, extra_json_schema=keyed("mountPath"))] = ()
    """Where the trainer sees the volumes, in Kubernetes' form. /etc/resnetboost and /checkpoints are the operator's."""
