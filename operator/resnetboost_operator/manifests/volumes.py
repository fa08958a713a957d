"""Volumes of a rank and where they are mounted."""

from typing import Any

from resnetboost_api import names
from resnetboost_api.device import Device
from resnetboost_api.names import PATH_CHECKPOINTS, PATH_CONFIG, PATH_LAUNCHER, PATH_RANK_TABLE, PATH_SHARED_MEMORY
from resnetboost_api.stage import Stage
from resnetboost_api.writing import without_nulls
from resnetboost_operator.job import Job
from resnetboost_operator.manifests import devices

Manifest = dict[str, Any]

# Driver and card addresses on the nodes, as in Huawei's own job samples: volume, path, kind.
DRIVER_MOUNTS = (
    ("ascend-driver", "/usr/local/Ascend/driver", "Directory"),
    ("ascend-dcmi", "/usr/local/dcmi", "Directory"),
    ("ascend-hccn", "/etc/hccn.conf", "File"),
)
# Read by the pod's group, which the trainer is in; by nobody else.
_TOKEN_MODE = 0o440


def volumes(job: Job, stage: Stage, attempt: int, index: int) -> list[Manifest]:
    """The volumes of a rank. Only index 0 has the checkpoints (it broadcasts its state): ReadWriteOnce is enough."""
    config = names.config_map(job.name, job.uid, stage.name, attempt)
    own: list[Manifest] = [{"name": names.VOLUME_CONFIG, "configMap": {"name": config}}]
    if index == 0:
        claim = job.spec.checkpoint.claim_name
        source = {"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}}
        own.append({"name": names.VOLUME_CHECKPOINTS, **source})
    if job.has_launchers:
        secret = {"secretName": names.launcher_secret(job.name, job.uid, job.launcher_key), "defaultMode": _TOKEN_MODE}
        own.append({"name": names.VOLUME_LAUNCHER, "secret": secret})
    return [*own, *_device_volumes(job, stage, attempt), *without_nulls(job.spec.template.volumes)]


def _device_volumes(job: Job, stage: Stage, attempt: int) -> list[Manifest]:
    """The rank table is optional, because kubelet retries ever more slowly if a volume's config map does not exist."""
    device = job.spec.device
    built: list[Manifest] = []
    if devices.needs_rank_table(device, stage):
        table = {"name": names.rank_table(job.name, job.uid, stage.name, attempt), "optional": True}
        built.append({"name": names.VOLUME_RANK_TABLE, "configMap": table})
    size = devices.shared_memory(device)
    if size is not None:
        built.append({"name": names.VOLUME_SHARED_MEMORY, "emptyDir": {"medium": "Memory", "sizeLimit": size}})
    if devices.mounts_driver(device):
        built += [{"name": name, "hostPath": {"path": path, "type": kind}} for name, path, kind in DRIVER_MOUNTS]
    return built


def mounts(job: Job, stage: Stage, index: int) -> list[Manifest]:
    """Where the volumes of a rank are mounted."""
    own: list[Manifest] = [{"name": names.VOLUME_CONFIG, "mountPath": PATH_CONFIG, "readOnly": True}]
    if index == 0:
        own.append({"name": names.VOLUME_CHECKPOINTS, "mountPath": PATH_CHECKPOINTS})
    if job.has_launchers:
        own.append({"name": names.VOLUME_LAUNCHER, "mountPath": PATH_LAUNCHER, "readOnly": True})
    return [*own, *_device_mounts(job.spec.device, stage), *without_nulls(job.spec.template.volume_mounts)]


def _device_mounts(device: Device, stage: Stage) -> list[Manifest]:
    built: list[Manifest] = []
    if devices.needs_rank_table(device, stage):
        built.append({"name": names.VOLUME_RANK_TABLE, "mountPath": PATH_RANK_TABLE, "readOnly": True})
    if devices.shared_memory(device) is not None:
        built.append({"name": names.VOLUME_SHARED_MEMORY, "mountPath": PATH_SHARED_MEMORY})
    if devices.mounts_driver(device):
        built += [{"name": name, "mountPath": path, "readOnly": True} for name, path, _ in DRIVER_MOUNTS]
    return built
