"""Resource names, device names and container settings of Ascend's and NVIDIA's plugins; /dev/null as device files."""

from collections.abc import Callable
from typing import NamedTuple

from beds.deviceplugin.plugin import Given

_ANY = "/dev/null"
_ASCEND_SHARED = ("davinci_manager", "devmm_svm", "hisi_hdc")


class Kind(NamedTuple):
    """A resource, the names of its devices by number, and the settings of a container with some of them."""

    resource: str
    name: str
    give: Callable[[list[str]], Given]

    def devices(self, count: int) -> list[str]:
        """Names of the first `count` devices."""
        return [self.name.format(number) for number in range(count)]


def number(device: str) -> str:
    """Physical number of a device."""
    return device.rpartition("-")[2]


def _ascend(devices: list[str]) -> Given:
    numbers = [number(device) for device in devices]
    files = [f"davinci{one}" for one in numbers] + list(_ASCEND_SHARED)
    variables = {"ASCEND_VISIBLE_DEVICES": ",".join(numbers), "ASCEND_RUNTIME_OPTIONS": ""}
    return Given(variables, {f"/dev/{name}": _ANY for name in files})


def _nvidia(devices: list[str]) -> Given:
    files = [f"nvidia{number(device)}" for device in devices] + ["nvidiactl", "nvidia-uvm"]
    return Given({"NVIDIA_VISIBLE_DEVICES": ",".join(devices)}, {f"/dev/{name}": _ANY for name in files})


ASCEND = Kind("huawei.com/Ascend910", "Ascend910-{}", _ascend)
NVIDIA = Kind("nvidia.com/gpu", "GPU-00000000-0000-0000-0000-{:012}", _nvidia)
