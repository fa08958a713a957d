"""The Kubernetes objects of one attempt, as dicts, from the job alone; it talks to no cluster and knows no time."""

from collections.abc import Sequence
from typing import Any

import msgspec
import yaml

from resnetboost_operator import api, names
from resnetboost_operator.manifests import devices
from resnetboost_operator.names import PATH_CHECKPOINTS, PATH_CONFIG, PATH_RANK_TABLE, PATH_SHARED_MEMORY
from resnetboost_operator.ranktable import payload

Manifest = dict[str, Any]

# What a rank gets to save its state after SIGTERM; kubelet kills it afterwards.
TERMINATION_GRACE_SECONDS = 60
# How often kubelet asks rank 0 whether it trains.
PROBE_SECONDS = 10
THREADS = "OMP_NUM_THREADS"
# The group that may write the checkpoint volume, whoever the image's user is. On Ascend hosts it is HwHiAiUser's, whose
# devices nobody else may open.
GROUP_ID = 1000
# Where a node has the driver and the addresses of its cards, as in Huawei's own job samples: volume, path, kind.
DRIVER_MOUNTS = (
    ("ascend-driver", "/usr/local/Ascend/driver", "Directory"),
    ("ascend-dcmi", "/usr/local/dcmi", "Directory"),
    ("ascend-hccn", "/etc/hccn.conf", "File"),
)


def gang(job: api.Job, stage: api.Stage, attempt: int) -> tuple[Manifest, ...]:
    """Everything an attempt of a stage consists of, in the order of creation."""
    return shared(job, stage, attempt) + tuple(pod(job, stage, attempt, index) for index in range(stage.device_count))


def shared(job: api.Job, stage: api.Stage, attempt: int) -> tuple[Manifest, ...]:
    """What the pods of an attempt refer to, to be created before them."""
    if stage.device_count == 1 or devices.needs_rank_table(job.spec.device, stage):
        return (config_map(job, stage, attempt),)
    return (config_map(job, stage, attempt), service(job, stage, attempt))


def obsolete_selector(job: api.Job, attempt: int) -> str:
    """Selects, by labels, what `shared` made for the attempts before this one; '' if there are none."""
    return f"{names.LABEL_JOB_UID}={job.uid},{names.LABEL_ATTEMPT}!={attempt}" if attempt > 0 else ""


def config_map(job: api.Job, stage: api.Stage, attempt: int) -> Manifest:
    """The trainer's config file: immutable, because an attempt never changes its mind."""
    text = yaml.safe_dump(trainer_config(job, stage, attempt), sort_keys=False)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(job, stage, attempt, names.gang(job.name, stage.name, attempt)),
        "immutable": True,
        "data": {names.CONFIG_KEY: text},
    }


def trainer_config(job: api.Job, stage: api.Stage, attempt: int) -> Manifest:
    """The stage as the trainer reads it: the job's own words, without anything of Kubernetes.

    A trainer knows of nodes only how many ranks Adasum averages before it sums; of ranks its environment tells.
    """
    spec = job.spec
    config = {
        "job": {"name": job.name, "namespace": job.namespace, "uid": job.uid},
        "stage": stage.name,
        "attempt": attempt,
        "seed": spec.seed,
        "device": {"type": spec.device.type},
        "model": _plain(spec.model),
        "dataset": _plain(spec.dataset),
        "checkpoint": {
            "everySteps": spec.checkpoint.every_steps,
            "keep": spec.checkpoint.keep,
            "resume": spec.checkpoint.resume,
            "keepCompiledGraphs": spec.checkpoint.keep_compiled_graphs,
        },
    }
    if spec.jit_level is not None:
        config["jitLevel"] = spec.jit_level
    config |= {key: value for key, value in _plain(stage).items() if key not in ("name", "deviceCount")}
    if stage.adasum is not None:
        averaged = api.ranks_per_summand(spec.device, stage)
        config["adasum"] = {"reduce": stage.adasum.reduce, "ranksPerNode": averaged}
    if stage.start_from is None and stage != spec.stages[0]:
        config["startFrom"] = {"stage": spec.stages[spec.stages.index(stage) - 1].name}
    return config


def rank_table(
    job: api.Job, stage: api.Stage, attempt: int, table: bytes, digest: str, ranks: Sequence[int]
) -> Manifest:
    """The attempt's rank table, and the rank of each index; immutable, because every rank must see the same bytes.

    Raises `payload.TooLarge`.
    """
    told = msgspec.json.encode({"sha256": digest, "ranks": ranks}).decode()
    packed = payload.pack(names.RANK_TABLE_KEY, table, reserved_bytes=len(told))
    metadata = _metadata(job, stage, attempt, names.rank_table(job.name, stage.name, attempt))
    metadata["annotations"] = {names.ANNOTATION_RANK_TABLE: digest}
    manifest: Manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "immutable": True}
    manifest["data"] = {names.RANKS_KEY: told, **packed.data}
    return manifest | ({"binaryData": packed.binary_data} if packed.binary_data else {})


def service(job: api.Job, stage: api.Stage, attempt: int) -> Manifest:
    """A name for the coordinator of this very attempt.

    It selects index 0 alone: endpoints for every rank cost seconds at 1000 pods. Name and selector carry the attempt,
    because a terminating pod keeps its endpoint and would hand out the dead coordinator's address.
    """
    labels = _labels(job, stage, attempt)
    port = {"name": "coordinator", "port": names.PORT_COORDINATOR, "targetPort": names.PORT_COORDINATOR}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(job, stage, attempt, names.gang(job.name, stage.name, attempt)),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,  # ranks meet before any of them is ready
            "selector": {**labels, names.LABEL_INDEX: "0"},
            "ports": [port],
        },
    }


def pod(job: api.Job, stage: api.Stage, attempt: int, index: int) -> Manifest:
    """One rank. It gets no API token: a trainer has no business with the API server."""
    template, device = job.spec.template, job.spec.device
    metadata = _metadata(job, stage, attempt, names.pod(job.name, stage.name, attempt, index))
    metadata["labels"][names.LABEL_INDEX] = str(index)
    spec: Manifest = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": TERMINATION_GRACE_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "fsGroup": GROUP_ID,
            "fsGroupChangePolicy": "OnRootMismatch",  # a volume full of checkpoints takes long to go through
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(job, stage, attempt, index)],
        "volumes": _volumes(job, stage, attempt, index),
    }
    if template.node_selector:
        spec["nodeSelector"] = dict(template.node_selector)
    if tolerations := [*_plain(template.tolerations), *_device_tolerations(device)]:
        spec["tolerations"] = tolerations
    if device.runtime_class_name is not None:
        spec["runtimeClassName"] = device.runtime_class_name
    if device.per_node is not None:
        node_group = str(index // device.per_node)
        metadata["labels"][names.LABEL_NODE_GROUP] = node_group
        spec["affinity"] = _affinity(job, attempt, node_group)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _device_tolerations(device: api.Device) -> list[Manifest]:
    """Nodes with devices are often kept for those who ask for them, by a taint of the resource's name."""
    resource = devices.resource_name(device)
    return [{"key": resource, "operator": "Exists", "effect": "NoSchedule"}] if resource is not None else []


def _affinity(job: api.Job, attempt: int, node_group: str) -> Manifest:
    """Each node gets one whole group of the attempt's pods and no other.

    So ranks of one node are neighbours by construction, without anybody giving them out after binding.
    """
    mine = {names.LABEL_JOB_UID: job.uid, names.LABEL_ATTEMPT: str(attempt)}
    here = {"labelSelector": {"matchLabels": {**mine, names.LABEL_NODE_GROUP: node_group}}}
    others = [{"key": names.LABEL_NODE_GROUP, "operator": "NotIn", "values": [node_group]}]
    elsewhere = {"labelSelector": {"matchLabels": mine, "matchExpressions": others}}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    return {
        "podAffinity": {required: [{**here, "topologyKey": names.NODE_TOPOLOGY}]},
        "podAntiAffinity": {required: [{**elsewhere, "topologyKey": names.NODE_TOPOLOGY}]},
    }


def _container(job: api.Job, stage: api.Stage, attempt: int, index: int) -> Manifest:
    template = job.spec.template
    container: Manifest = {
        "name": names.CONTAINER,
        "image": devices.image(job.spec),
        "imagePullPolicy": template.image_pull_policy,
        "command": list(names.TRAINER_COMMAND),
        "env": [*_environment(job, stage, attempt, index), *_plain(template.env)],
        "ports": [{"name": "metrics", "containerPort": names.PORT_METRICS}],
        "terminationMessagePath": names.PATH_TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",  # the log tail of a crash, for nothing
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": _mounts(job, stage, index),
    }
    if index == 0:
        container["readinessProbe"] = _probe(job)
    resources = _resources(job)
    if resources:
        container["resources"] = resources
    return container


def _probe(job: api.Job) -> Manifest:
    """Rank 0 is ready once it has done a step, and no longer when it has done none for `hangTimeoutSeconds`.

    So its kubelet knows, whose way to the pod no network policy closes, where the operator has none. It counts the
    time: a rank whose answer is late now and then, because it compiles, misses no more than that. One rank will do,
    because no step ends without all of them, and a thousand would be a thousand writes.
    """
    allowed = -(-job.spec.failure_policy.hang_timeout_seconds // PROBE_SECONDS)
    return {
        "httpGet": {"path": names.PATH_TRAINING, "port": "metrics"},
        "periodSeconds": PROBE_SECONDS,
        "timeoutSeconds": PROBE_SECONDS // 2,
        "failureThreshold": allowed,
    }


def _resources(job: api.Job) -> Manifest:
    """What the user asks for and one device; a device's request must equal its limit."""
    device = devices.resource_name(job.spec.device)
    one = {device: 1} if device is not None else {}
    given = {kind: {**amounts, **one} for kind, amounts in _plain(job.spec.template.resources).items()}
    return {kind: amounts for kind, amounts in given.items() if amounts}


def _environment(job: api.Job, stage: api.Stage, attempt: int, index: int) -> list[Manifest]:
    """The trainer's environment. Without a rank table the rank may be the index, known before binding."""
    count, by_table = stage.device_count, devices.needs_rank_table(job.spec.device, stage)
    values = {
        names.ENV_CONFIG: f"{PATH_CONFIG}/{names.CONFIG_KEY}",
        names.ENV_TERMINATION_LOG: names.PATH_TERMINATION_LOG,
        names.ENV_INDEX if by_table else names.ENV_RANK: str(index),
        names.ENV_WORLD_SIZE: str(count),
    }
    if index == 0:
        values[names.ENV_CHECKPOINTS] = PATH_CHECKPOINTS
    if by_table:
        values[names.ENV_RANK_TABLE] = PATH_RANK_TABLE
    elif count > 1:
        host = names.service_host(names.gang(job.name, stage.name, attempt), job.namespace)
        values[names.ENV_COORDINATOR] = f"{host}:{names.PORT_COORDINATOR}"
    own: list[Manifest] = [{"name": name, "value": value} for name, value in values.items()]
    if all(given.name != THREADS for given in job.spec.template.env):
        own.append({"name": THREADS, "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}})
    return own


def _volumes(job: api.Job, stage: api.Stage, attempt: int, index: int) -> list[Manifest]:
    """Only index 0 touches checkpoints (the others get its state by broadcast), so a ReadWriteOnce claim serves."""
    volumes = [{"name": names.VOLUME_CONFIG, "configMap": {"name": names.gang(job.name, stage.name, attempt)}}]
    if index == 0:
        claim = job.spec.checkpoint.claim_name
        source = {"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}}
        volumes.append({"name": names.VOLUME_CHECKPOINTS, **source})
    return [*volumes, *_device_volumes(job, stage, attempt), *_plain(job.spec.template.volumes)]


def _device_volumes(job: api.Job, stage: api.Stage, attempt: int) -> list[Manifest]:
    """The rank table is optional: kubelet tries again ever more slowly where a volume's config map comes late."""
    device, volumes = job.spec.device, []
    if devices.needs_rank_table(device, stage):
        table = {"name": names.rank_table(job.name, stage.name, attempt), "optional": True}
        volumes.append({"name": names.VOLUME_RANK_TABLE, "configMap": table})
    size = devices.shared_memory(device)
    if size is not None:
        volumes.append({"name": names.VOLUME_SHARED_MEMORY, "emptyDir": {"medium": "Memory", "sizeLimit": size}})
    if devices.mounts_driver(device):
        volumes += [{"name": name, "hostPath": {"path": path, "type": kind}} for name, path, kind in DRIVER_MOUNTS]
    return volumes


def _mounts(job: api.Job, stage: api.Stage, index: int) -> list[Manifest]:
    mounts = [{"name": names.VOLUME_CONFIG, "mountPath": PATH_CONFIG, "readOnly": True}]
    if index == 0:
        mounts.append({"name": names.VOLUME_CHECKPOINTS, "mountPath": PATH_CHECKPOINTS})
    return [*mounts, *_device_mounts(job.spec.device, stage), *_plain(job.spec.template.volume_mounts)]


def _device_mounts(device: api.Device, stage: api.Stage) -> list[Manifest]:
    mounts: list[Manifest] = []
    if devices.needs_rank_table(device, stage):
        mounts.append({"name": names.VOLUME_RANK_TABLE, "mountPath": PATH_RANK_TABLE, "readOnly": True})
    if devices.shared_memory(device) is not None:
        mounts.append({"name": names.VOLUME_SHARED_MEMORY, "mountPath": PATH_SHARED_MEMORY})
    if devices.mounts_driver(device):
        mounts += [{"name": name, "mountPath": path, "readOnly": True} for name, path, _ in DRIVER_MOUNTS]
    return mounts


def _metadata(job: api.Job, stage: api.Stage, attempt: int, name: str) -> Manifest:
    """Name, labels and owner: deleting the job deletes everything it became, also while the operator is down."""
    owner = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": job.name,
        "uid": job.uid,
        "controller": True,  # without blockOwnerDeletion, which asks for a right on the job's finalizers
    }
    return {
        "name": name,
        "namespace": job.namespace,
        "labels": _labels(job, stage, attempt),
        "ownerReferences": [owner],
    }


def _labels(job: api.Job, stage: api.Stage, attempt: int) -> dict[str, str]:
    return {
        names.LABEL_MANAGED_BY: names.MANAGED_BY,
        names.LABEL_JOB: job.name,
        names.LABEL_JOB_UID: job.uid,
        names.LABEL_STAGE: stage.name,
        names.LABEL_ATTEMPT: str(attempt),
    }


def _plain(value: object) -> Any:
    """A piece of the job as the user wrote it, without fields that were never set."""
    return msgspec.to_builtins(value)
