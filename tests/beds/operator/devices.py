"""Nodes with Ascend devices, and the annotations of Huawei's device plugin, written when a test says so."""

import json
from collections import Counter
from typing import Any

from beds.cluster import ControlPlane
from resnetboost_operator.ranktable.annotations import KEYS

NODES = ("ascend-0", "ascend-1")
RESOURCE = "huawei.com/Ascend910"
PER_NODE = 8
_GANGS_AT_ONCE = 16  # of namespaces that know nothing of each other
_MERGE = "application/merge-patch+json"


def add_nodes(plane: ControlPlane) -> None:
    """Add nodes reserved for pods that use their devices; the chip is a 910A.

    Each has room for many gangs: of those that share a node's eight devices, every one could wait for the others' ends
    with half of its pods.
    """
    for name in NODES:
        plane.add_node(name, {RESOURCE: str(PER_NODE * _GANGS_AT_ONCE)})
        taints = [{"key": RESOURCE, "effect": "NoSchedule"}]
        labels = {"accelerator": "huawei-Ascend910", "accelerator-type": "module"}
        change = {"metadata": {"labels": labels}, "spec": {"taints": taints}}
        plane.client.send("PATCH", f"/api/v1/nodes/{name}", change, _MERGE)


class DevicePlugin:
    """Annotates pods of one namespace, on nodes whose names end with a number.

    A node's devices are allocated in the order of the calls.
    """

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self._plane = plane
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._given: Counter[str] = Counter()

    def allocate(self, pod: dict[str, Any], address: str = "") -> None:
        """Allocate the next device of its node to a bound pod; `address` replaces the device's own."""
        node = pod["spec"]["nodeName"]
        device = self._given[node] % PER_NODE
        self._given[node] += 1
        high, low = divmod(int(node.rpartition("-")[2]), 256)
        self.tell(pod, device, address or f"10.{high}.{low}.{device + 1}")

    def tell(self, pod: dict[str, Any], device: int, address: str) -> None:
        """Annotate the pod with that device."""
        metadata = pod["metadata"]
        devices = [{"device_id": str(device), "device_ip": address}]
        written = {"pod_name": metadata["name"], "server_id": metadata["uid"], "devices": devices}
        change = {"metadata": {"annotations": {KEYS[0]: json.dumps(written)}}}
        self._plane.client.send("PATCH", f"{self._path}/{metadata['name']}", change, _MERGE)
