"""What the operator can be told, on its command line or in the environment; nothing else reads either."""

import os
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

import click
import msgspec

from resnetboost_operator import api, names
from resnetboost_operator.controller import logs
from resnetboost_operator.manifests import devices
from resnetboost_operator.manifests.devices import Images

PREFIX = "RESNETBOOST_OPERATOR"
_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """One start of the operator. No namespaces: all of them."""

    namespaces: tuple[str, ...]
    host: str
    port: int
    lease_namespace: str
    lease_name: str
    identity: str
    pod: str
    start_over: bool
    log_format: logs.Format
    log_level: str
    images: Images = devices.PUBLISHED


class _Address(click.ParamType[tuple[str, int]]):
    """HOST:PORT, :PORT for all addresses, [IPv6]:PORT."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        host, colon, port = str(value).rpartition(":")
        if not colon or not port.isdigit() or int(port) > 65535:
            self.fail(f"'{value}' is no address; write HOST:PORT, or :PORT for all addresses of this machine")
        return host.strip("[]"), int(port)


class _TrainerImage(click.ParamType[tuple[api.DeviceType, str]]):
    """TYPE=IMAGE."""

    name = "image"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[api.DeviceType, str]:
        kind, _, image = str(value).partition("=")
        if kind not in devices.TYPES or not image:
            known = ", ".join(f"{name}=IMAGE" for name in devices.TYPES)
            self.fail(f"'{value}' names no image of a device type; write {known}")
        return kind, image


def own_namespace() -> str:
    """The namespace of the pod this process runs in; `default` outside of one."""
    try:
        return _OWN_NAMESPACE.read_text().strip() or "default"
    except OSError:
        return "default"


def own_identity() -> str:
    """The same again after a container's restart (its process id is 1), so that its own old lease is no obstacle."""
    return f"{socket.gethostname()}_{os.getpid()}"


_PARAMETERS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--namespace",
        "namespaces",
        metavar="NAME",
        multiple=True,
        envvar=f"{PREFIX}_NAMESPACE",
        help="Serve the jobs of this namespace alone; may be repeated.  [default: all namespaces]",
    ),
    click.option(
        "--listen",
        metavar="HOST:PORT",
        type=_Address(),
        default=":8080",
        show_default=True,
        help="Where to serve /metrics, /healthz and /readyz; port 0 takes a free one and logs it.",
    ),
    click.option(
        "--lease-namespace",
        metavar="NAME",
        default=own_namespace,
        help="Namespace of the lease that makes one of several operators the leader.  [default: the pod's own]",
    ),
    click.option(
        "--lease-name", metavar="NAME", default=names.MANAGED_BY, show_default=True, help="Name of that lease."
    ),
    click.option(
        "--identity",
        metavar="NAME",
        default=own_identity,
        help="This process in the lease; no two may share it.  [default: HOSTNAME_PID]",
    ),
    click.option(
        "--pod",
        metavar="NAME",
        default="",
        help="The pod this process runs in, in the lease's namespace: once it is gone nobody waits for the lease.",
    ),
    click.option(
        "--start-over",
        is_flag=True,
        help="After an error begin anew within seconds, in this process, where kubelet would wait for minutes.",
    ),
    click.option(
        "--image-registry",
        metavar="NAME",
        default="",
        help="Registry, with a path perhaps, that has the trainers' images under our names: registry.example/mirror.",
    ),
    click.option(
        "--trainer-image",
        "trainer_images",
        metavar="TYPE=IMAGE",
        type=_TrainerImage(),
        multiple=True,
        envvar=f"{PREFIX}_TRAINER_IMAGE",
        help="Image for the jobs of a device type that name none; may be repeated.",
    ),
    click.option(
        "--log-format", type=click.Choice(["plain", "json"]), default="plain", show_default=True, help="Log lines."
    ),
    click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
        default="info",
        show_default=True,
        help="The least severe lines to log.",
    ),
)


def parameters(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options, for a click command."""
    for parameter in reversed(_PARAMETERS):
        function = parameter(function)
    return function


def parsed(
    *,
    listen: tuple[str, int],
    image_registry: str,
    trainer_images: Iterable[tuple[api.DeviceType, str]],
    **given: Any,
) -> Options:
    """What click has made of them."""
    host, port = listen
    images = Images(image_registry.rstrip("/"), dict(trainer_images))
    return Options(host=host, port=port, images=images, **given)


def from_environment() -> Options:
    """The options of an operator that somebody else starts: `kopf run`."""
    command = click.command(context_settings={"auto_envvar_prefix": PREFIX})(parameters(parsed))
    return cast(Options, command.main([], standalone_mode=False))
