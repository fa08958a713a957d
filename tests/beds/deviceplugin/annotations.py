"""Annotates pods with their Ascend device as Huawei's plugin does, from kubelet's record of allocations."""

import json
from pathlib import Path
from typing import Any

from beds.cluster.client import Client
from beds.deviceplugin.kinds import number

KEY = "ascend.kubectl.kubernetes.io/ascend-910-configuration"
REAL = "huawei.com/AscendReal"
_CHECKPOINT = "kubelet_internal_checkpoint"
_MERGE = "application/merge-patch+json"


def given_out(folder: Path, resource: str) -> dict[str, list[str]]:
    """Allocated devices by pod uid, from kubelet's checkpoint file beside the plugins' sockets."""
    try:
        data = json.loads((folder / _CHECKPOINT).read_text())["Data"]
    except FileNotFoundError:
        return {}
    found: dict[str, list[str]] = {}
    for entry in data["PodDeviceEntries"] or ():
        if entry["ResourceName"] == resource:
            devices = [device for node in entry["DeviceIDs"].values() for device in node]
            found.setdefault(entry["PodUID"], []).extend(devices)
    return found


def write(client: Client, pod: dict[str, Any], devices: list[str]) -> None:
    """Annotate one pod with its devices."""
    metadata = pod["metadata"]
    annotations = {KEY: json.dumps(configuration(pod, devices)), REAL: ",".join(devices)}
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
    client.send("PATCH", path, {"metadata": {"uid": metadata["uid"], "annotations": annotations}}, _MERGE)


def configuration(pod: dict[str, Any], devices: list[str]) -> dict[str, Any]:
    """Content of the annotation; the server is named after the pod, as today's plugin does."""
    return {
        "pod_name": pod["metadata"]["name"],
        "server_id": pod["metadata"]["uid"],
        "host_ip": pod["status"].get("hostIP", ""),
        "super_pod_id": -1,
        "devices": [{"device_id": number(device), "device_ip": address(number(device))} for device in devices],
        "rack_id": -1,
        "server_index": "",
        "server_ip": "",
    }


def address(device: str) -> str:
    """A device's address in the device network."""
    return f"192.168.100.{100 + int(device)}"
