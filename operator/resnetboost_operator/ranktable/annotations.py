"""Reads the annotations of Ascend's device plugin. They are untrusted: anybody may annotate a pod.

The forms are those of mind-cluster's device plugin (ascend-device-plugin pkg/common/proto.go, Instance), from the three
fields of 2020 to today's.
"""

from collections.abc import Mapping

import msgspec

from resnetboost_operator.errors import UserError
from resnetboost_operator.ranktable.check.fields import MOST_NUMBER, quoted
from resnetboost_operator.ranktable.tables import Level

__all__ = ["KEYS", "NO_ADDRESS", "Allocation", "BoundPod", "Refusal", "missing", "read"]

# The second is that of Ascend 950; where both are, the first counts, as for ascend-operator.
KEYS = (
    "ascend.kubectl.kubernetes.io/ascend-910-configuration",
    "ascend.kubectl.kubernetes.io/ascend-npu-configuration",
)
MAX_BYTES = 256 << 10  # all annotations of an object together have no more
NO_ADDRESS = "-1"  # the plugin's word for a device whose address it could not get
_REMEDY = "look at the device plugin's log on the node"


class Refusal(UserError):
    """Why there is no rank table: the pods, the rule, and one sentence with HCCL's error where it has one."""

    def __init__(self, pods: tuple[str, ...], rule: str, problem: str) -> None:
        shown = ", ".join(pods[:3]) + (f" and {len(pods) - 3} more" if len(pods) > 3 else "")
        super().__init__(f"{'pod' if len(pods) == 1 else 'pods'} {shown}: {problem}")
        self.pods = pods
        self.rule = rule


class BoundPod(msgspec.Struct, frozen=True):
    """A pod of the gang that the scheduler has bound; `index` is its place in the gang."""

    name: str
    index: int
    node: str
    annotations: Mapping[str, str]


class Allocation(msgspec.Struct, frozen=True):
    """The device that the plugin allocated to a pod. A text is empty if the plugin knows nothing."""

    pod: BoundPod
    device: int
    device_ip: str
    host_ip: str
    super_device: str
    super_pod: str
    levels: tuple[Level, ...]


class _RankLevel(msgspec.Struct, frozen=True):
    """One network layer of a 950, with an entry for each kind of network."""

    level: int
    info: dict[str, Level]


class _Device(msgspec.Struct, frozen=True):
    device_id: str
    device_ip: str = ""
    super_device_id: str = ""
    level_list: tuple[_RankLevel, ...] | None = msgspec.field(default=None, name="levelList")


class _Instance(msgspec.Struct, frozen=True):
    devices: tuple[_Device, ...] | None
    pod_name: str = ""
    host_ip: str = ""
    super_pod_id: int = -1


_DECODER = msgspec.json.Decoder(_Instance)


def missing(pods: tuple[BoundPod, ...]) -> tuple[str, ...]:
    """The pods without an annotation yet; the table cannot be built until they have one."""
    return tuple(pod.name for pod in pods if not any(key in pod.annotations for key in KEYS))


def read(pod: BoundPod) -> Allocation:
    """The pod's device. Raises Refusal with the field, the value and what would be right."""
    if not pod.node:
        raise Refusal((pod.name,), "pod is bound", "has no node yet; wait until the scheduler has bound it")
    key = next((key for key in KEYS if key in pod.annotations), None)
    if key is None:
        problem = f"has no annotation {KEYS[0]} yet; {_REMEDY} {pod.node}"
        raise Refusal((pod.name,), "annotation", problem)
    return _allocation(pod, key, _decode(pod, key))


def _decode(pod: BoundPod, key: str) -> _Instance:
    written = pod.annotations[key].encode(errors="replace")
    if len(written) > MAX_BYTES:
        raise _refusal(pod, key, f"has {len(written)} bytes, more than {MAX_BYTES}")
    try:
        found = _DECODER.decode(written)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _refusal(pod, key, f"cannot be read: {error}") from None
    if found.pod_name not in ("", pod.name):
        raise _refusal(pod, key, f"has pod_name {quoted(found.pod_name)}: it is another pod's")
    return found


def _refusal(pod: BoundPod, key: str, problem: str) -> Refusal:
    return Refusal((pod.name,), "annotation", f"annotation {key} {problem}; {_REMEDY} {pod.node}")


def _allocation(pod: BoundPod, key: str, found: _Instance) -> Allocation:
    devices = found.devices or ()
    if len(devices) != 1:
        listed = ", ".join(device.device_id for device in devices[:16]) or "none"
        problem = f"has the devices {quoted(listed)}; a pod of a job has exactly one device and one rank"
        raise Refusal((pod.name,), "one device for each pod", f"annotation {key} {problem}")
    device = devices[0]
    if not (device.device_id.isascii() and device.device_id.isdigit() and len(device.device_id) <= 4):
        raise _refusal(pod, key, f"has device_id {quoted(device.device_id)}, not a physical id such as 0")
    return Allocation(
        pod=pod,
        device=int(device.device_id),
        device_ip=device.device_ip,
        host_ip=found.host_ip,
        super_device=device.super_device_id if _is_super_device(device.super_device_id) else "",
        super_pod=str(found.super_pod_id) if 0 <= found.super_pod_id < MOST_NUMBER else "",
        levels=_levels(device.level_list or ()),
    )


def _is_super_device(written: str) -> bool:
    """The plugin writes -2 for a device it does not know, and all ones where there is no super pod."""
    return written.isascii() and written.isdigit() and len(written) <= 10 and int(written) < MOST_NUMBER


# Kinds of scale-out networks in the order in which ascend-operator prefers them (v2dot0/ranktable.go), and the layer
# each has; the two layers below are not chosen.
_NETWORKS = {"ROCE": 3, "UBOE": 2, "UBG": 2}
_CHOSEN_FROM = 2


def _levels(found: tuple[_RankLevel, ...]) -> tuple[Level, ...]:
    """One entry for each layer, ascending."""
    offered = {kind for level in found for kind in level.info}
    network = next((kind for kind in _NETWORKS if kind in offered), "")
    chosen: dict[int, Level] = {}
    for level in found:
        if level.level < _CHOSEN_FROM and level.info:
            chosen[level.level] = level.info[min(level.info)]
        elif level.level == _NETWORKS.get(network) and network in level.info:
            chosen[level.level] = level.info[network]
    return tuple(_typed(chosen[layer], layer) for layer in sorted(chosen))


def _typed(level: Level, layer: int) -> Level:
    """The plugin leaves the kind of a layer empty, which HCCL does not read."""
    kind = level.net_type or ("TOPO_FILE_DESC" if layer == 0 else "CLOS")
    return msgspec.structs.replace(level, net_layer=layer, net_type=kind)
