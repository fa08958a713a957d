"""Volumes and environment of a pod on this machine: volumes become folders, and values that name them are adapted."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from resnetboost_api import names
from resnetboost_operator.errors import UserError

Manifest = Mapping[str, Any]
Mounts = Mapping[str, Path]

# Variables of the trainer must come from the pod alone, not from the user's shell.
_NOT_INHERITED = ("RESNETBOOST_", "MS_", "OMP_", "RANK_")


class VolumeError(UserError):
    """A volume that this machine cannot provide; the message names it and the remedy."""


def mount(
    pod: Manifest, config_maps: Mapping[str, Manifest], secrets: Mapping[str, Manifest], own: Path, run: Path
) -> dict[str, Path]:
    """Create the container's volumes: the folder or file behind each mount path.

    `own` is the pod's folder, deleted with the run; `run` is the run's folder, with the claims, which outlive pods.
    """
    sources = {volume["name"]: volume for volume in pod["spec"].get("volumes") or ()}
    container = pod["spec"]["containers"][0]
    mounts = {}
    for item in container.get("volumeMounts") or ():
        if item["name"] not in sources:
            raise VolumeError(f"spec.template.volumeMounts: {item['name']} is not among spec.template.volumes")
        folder = _folder(sources[item["name"]], config_maps, secrets, own, run) / item.get("subPath", "")
        folder.mkdir(parents=True, exist_ok=True)
        mounts[item["mountPath"]] = folder
    message = own / "termination-log"
    message.parent.mkdir(parents=True, exist_ok=True)
    message.write_bytes(b"")
    return mounts | {container.get("terminationMessagePath", names.PATH_TERMINATION_LOG): message}


def _folder(
    volume: Mapping[str, Any],
    config_maps: Mapping[str, Manifest],
    secrets: Mapping[str, Manifest],
    own: Path,
    run: Path,
) -> Path:
    name: str = volume["name"]
    if name == names.VOLUME_CHECKPOINTS:
        return run / "checkpoints"
    if "configMap" in volume:
        return _config_folder(volume["configMap"]["name"], name, config_maps, own)
    if "secret" in volume and volume["secret"]["secretName"] in secrets:
        return _secret_folder(secrets[volume["secret"]["secretName"]], own / name)
    if "persistentVolumeClaim" in volume:
        return run / "volumes" / str(volume["persistentVolumeClaim"]["claimName"])
    if "emptyDir" in volume:
        return own / "volumes" / name
    kind = next((key for key in volume if key != "name"), "nothing")
    raise VolumeError(
        f"spec.template.volumes: {name} is of kind {kind}, which this machine does not have; "
        "leave it out here with --set 'template.volumes=[]' --set 'template.volumeMounts=[]'"
    )


def _secret_folder(secret: Manifest, folder: Path) -> Path:
    """A folder with the secret's files, which only this user may read."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for key, text in secret["stringData"].items():
        path = folder / key
        path.touch(mode=0o600)
        path.write_text(text, encoding="utf-8")
    return folder


def _config_folder(config_map: str, volume: str, config_maps: Mapping[str, Manifest], own: Path) -> Path:
    found = config_maps.get(config_map)
    if found is None:
        raise VolumeError(
            f"spec.template.volumes: {volume} needs the config map {config_map}, which only a cluster has"
        )
    folder = own / volume
    folder.mkdir(parents=True, exist_ok=True)
    for key, text in (found.get("data") or {}).items():
        (folder / key).write_text(text, encoding="utf-8")
    return folder


def environment(pod: Manifest, address: str, threads: int, mounts: Mounts, hosts: Mapping[str, str]) -> dict[str, str]:
    """The container's environment: this shell's variables, which stand for the image's, overridden by the pod's."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_INHERITED)}
    variables["PYTHONUNBUFFERED"] = "1"  # the log must contain the last lines of a killed rank
    variables["PYTHONUTF8"] = "1"  # as in an image, whatever the shell's locale
    for item in pod["spec"]["containers"][0].get("env") or ():
        variables[item["name"]] = rewrite(_value(item, pod, address, threads), mounts, hosts)
    variables[names.ENV_BIND_ADDRESS] = address
    variables["OMP_NUM_THREADS"] = str(threads)
    return variables


def _value(item: Manifest, pod: Manifest, address: str, threads: int) -> str:
    source = item.get("valueFrom")
    if source is None:
        return str(item.get("value", ""))
    if "resourceFieldRef" in source:
        return str(threads)
    fields = {
        "metadata.name": pod["metadata"]["name"],
        "metadata.namespace": pod["metadata"].get("namespace", ""),
        "spec.nodeName": pod["spec"].get("nodeName", ""),
        "status.podIP": address,
    }
    return str(fields[source["fieldRef"]["fieldPath"]])


def rewrite(value: str, mounts: Mounts, hosts: Mapping[str, str]) -> str:
    """Replace mount paths and service names in a value by local paths and addresses."""
    for path in sorted(mounts, key=len, reverse=True):
        if value == path or value.startswith(f"{path}/"):
            return str(mounts[path]) + value[len(path) :]
    for host, address in hosts.items():
        value = re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w.-])", address, value)
    return value
