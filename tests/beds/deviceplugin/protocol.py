"""The device plugin protocol v1beta1: messages and services from kubelet 1.34's own file, unchanged."""

from typing import Any

import grpc

VERSION = "v1beta1"
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
KUBELET_SOCKET = "kubelet.sock"

_loaded: tuple[Any, Any] = grpc.protos_and_services("beds/deviceplugin/api.proto")
messages, services = _loaded
