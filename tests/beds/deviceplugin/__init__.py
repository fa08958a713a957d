"""Fake Ascend and NVIDIA device plugins that speak kubelet's real protocol; tests provide the kubelet."""

from beds.deviceplugin.kinds import ASCEND, NVIDIA, Kind
from beds.deviceplugin.plugin import DevicePlugin

__all__ = ["ASCEND", "NVIDIA", "DevicePlugin", "Kind"]
