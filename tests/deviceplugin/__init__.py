"""Fake Ascend and NVIDIA device plugins that speak kubelet's real protocol; the kubelet is the test's."""

from deviceplugin.kinds import ASCEND, NVIDIA, Kind
from deviceplugin.plugin import DevicePlugin

__all__ = ["ASCEND", "NVIDIA", "DevicePlugin", "Kind"]
