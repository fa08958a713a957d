"""Manifests of a volume on a folder of the node, and of a claim for it."""

from pathlib import Path
from typing import Any

from beds.kubelet.texts import NODE

_COMMON = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}


def volume(folder: Path) -> dict[str, Any]:
    """A volume of type `local`, because a hostPath is not given to the pod's group."""
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]}
    spec = {
        **_COMMON,
        "capacity": {"storage": "1Gi"},
        "local": {"path": str(folder)},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
    }
    return {"metadata": {"name": folder.name}, "spec": spec}


def claim(name: str, folder: Path) -> dict[str, Any]:
    """A claim bound to this volume."""
    spec = {**_COMMON, "volumeName": folder.name, "resources": {"requests": {"storage": "1Gi"}}}
    return {"metadata": {"name": name}, "spec": spec}
