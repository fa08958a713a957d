"""Bound pods with the Ascend device plugin's annotations, for the tests of rank tables."""

import json
from typing import Any

from resnetboost_operator.ranktable.annotations import KEYS, BoundPod


def told(name: str, device: int, address: str, **more: Any) -> dict[str, Any]:
    """Annotation that today's device plugin writes for a pod with one device outside a super pod."""
    return {
        "pod_name": name,
        "server_id": f"uid-of-{name}",
        "host_ip": "10.0.0.5",
        "super_pod_id": -1,
        "devices": [{"device_id": str(device), "device_ip": address, "super_device_id": "-2"}],
        "rack_id": -1,
        "server_index": "-1",
        "server_ip": "10.0.0.5",
    } | more


def pod(index: int, node: str, device: int, address: str = "", *, key: str = KEYS[0], **more: Any) -> BoundPod:
    """One pod of the gang."""
    name = f"job-base-0-{index}"
    return BoundPod(name, index, node, {key: json.dumps(told(name, device, address, **more))})


def super_pod(index: int, node: str, device: int, super_pod_id: int, super_device: int, address: str = "") -> BoundPod:
    """One pod of the gang on an A3 in a super pod."""
    devices = [{"device_id": str(device), "device_ip": address, "super_device_id": str(super_device)}]
    return pod(index, node, device, super_pod_id=super_pod_id, devices=devices)


def gang(nodes: int, devices: int) -> list[BoundPod]:
    """A gang with every device of every node, ordered by device before node."""
    places = [(node, device) for device in range(devices) for node in range(nodes)]
    return [
        pod(index, f"node-{node:05}", device, f"10.{device}.{node >> 8}.{node & 255}")
        for index, (node, device) in enumerate(places)
    ]
