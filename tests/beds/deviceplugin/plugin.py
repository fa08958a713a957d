"""A device plugin for a real kubelet that offers devices which do not exist."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any, NamedTuple, Self

import grpc

from beds.deviceplugin.protocol import HEALTHY, KUBELET_SOCKET, UNHEALTHY, VERSION, messages, services

_POLL_SECONDS = 0.05
_TIMEOUT_SECONDS = 10
_THREADS = 8


class Given(NamedTuple):
    """A container's settings for its devices: variables, and device files with the file of this machine behind each."""

    variables: dict[str, str]
    files: dict[str, str]


class DevicePlugin:
    """A plugin for one resource, as a context manager.

    folder: kubelet's, for the sockets of plugins. It registers as soon as a kubelet is there, and again with each new
    one, because a starting kubelet removes the sockets of plugins that it does not know.
    """

    def __init__(self, folder: Path, resource: str, devices: Sequence[str], give: Callable[[list[str]], Given]) -> None:
        self.resource = resource
        self.registrations = 0
        self.allocated: list[list[str]] = []
        self._folder = folder
        self._socket = folder / f"{resource.replace('/', '-')}.sock"
        self._health = dict.fromkeys(devices, HEALTHY)
        self._give = give
        self._changed, self._changes = threading.Condition(), 0
        self._closing, self._listed = threading.Event(), threading.Event()
        self._keeper = threading.Thread(target=self._keep_registered, daemon=True)

    def __enter__(self) -> Self:
        self._keeper.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._keeper.join()

    def until_listed(self) -> None:
        """Wait until kubelet has read the devices: what its node offers may be those of an earlier plugin."""
        if not self._listed.wait(_TIMEOUT_SECONDS):
            raise TimeoutError(f"kubelet has not listed the devices of {self.resource} in {_TIMEOUT_SECONDS} s")

    def set_health(self, device: str, healthy: bool) -> None:
        """Report a device to kubelet as healthy or unhealthy."""
        with self._changed:
            self._health[device] = HEALTHY if healthy else UNHEALTHY
            self._changes += 1
            self._changed.notify_all()

    def _keep_registered(self) -> None:
        server, known = None, None
        while not self._closing.wait(_POLL_SECONDS):
            found = self._kubelet()
            if found and found != known:
                if server:
                    server.stop(None)
                server = self._serve()
                known = found if self._register() else None
        with self._changed:
            self._changed.notify_all()
        if server:
            server.stop(None).wait()

    def _kubelet(self) -> tuple[int, int] | None:
        """Identifies one kubelet, as the next one's socket may have the same inode; None while there is none."""
        try:
            found = (self._folder / KUBELET_SOCKET).stat()
        except OSError:
            return None
        return found.st_ino, found.st_ctime_ns

    def _serve(self) -> grpc.Server:
        self._socket.unlink(missing_ok=True)
        server = grpc.server(futures.ThreadPoolExecutor(_THREADS))
        services.add_DevicePluginServicer_to_server(self._servicer(), server)
        server.add_insecure_port(f"unix://{self._socket}")
        server.start()
        return server

    def _register(self) -> bool:
        request = messages.RegisterRequest(version=VERSION, endpoint=self._socket.name, resource_name=self.resource)
        with grpc.insecure_channel(f"unix://{self._folder / KUBELET_SOCKET}") as channel:
            try:
                services.RegistrationStub(channel).Register(request, timeout=_TIMEOUT_SECONDS)
            except grpc.RpcError:  # a socket of a kubelet that has stopped or does not serve yet
                return False
        self.registrations += 1
        return True

    def _devices(self) -> Any:
        listed = [messages.Device(ID=name, health=health) for name, health in self._health.items()]
        return messages.ListAndWatchResponse(devices=listed)

    def _answer(self, devices: list[str]) -> Any:
        self.allocated.append(devices)
        given = self._give(devices)
        files = [
            messages.DeviceSpec(container_path=inside, host_path=outside, permissions="rw")
            for inside, outside in given.files.items()
        ]
        return messages.ContainerAllocateResponse(envs=given.variables, devices=files)

    def _servicer(self) -> object:
        plugin = self

        class Servicer:
            """The plugin's gRPC methods, which kubelet calls; gRPC finds them by name."""

            def GetDevicePluginOptions(self, request: Any, context: Any) -> Any:
                return messages.DevicePluginOptions()

            def ListAndWatch(self, request: Any, context: Any) -> Iterator[Any]:
                told = -1  # no state sent yet
                while context.is_active() and not plugin._closing.is_set():
                    with plugin._changed:
                        if plugin._changes == told:
                            plugin._changed.wait(timeout=1)
                        news, told = plugin._changes != told, plugin._changes
                        devices = plugin._devices()
                    if news:
                        yield devices
                        plugin._listed.set()

            def Allocate(self, request: Any, context: Any) -> Any:
                asked = [list(container.devices_ids) for container in request.container_requests]
                return messages.AllocateResponse(container_responses=[plugin._answer(devices) for devices in asked])

            def GetPreferredAllocation(self, request: Any, context: Any) -> Any:
                context.abort(grpc.StatusCode.UNIMPLEMENTED, "kubelet was not told of this")

            def PreStartContainer(self, request: Any, context: Any) -> Any:
                context.abort(grpc.StatusCode.UNIMPLEMENTED, "kubelet was not told of this")

        return Servicer()
