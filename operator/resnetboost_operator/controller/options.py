"""The operator's options, from the command line or the environment."""

import os
import socket
from collections.abc import Callable, Iterable
from typing import Any, cast, get_args

import click
import msgspec

from resnetboost_api import names
from resnetboost_api.device import DeviceType
from resnetboost_operator.controller import logs
from resnetboost_operator.kubeclient import in_cluster
from resnetboost_operator.manifests import devices
from resnetboost_operator.manifests.devices import Images
from resnetboost_operator.planning.node_taints import Effect

PREFIX = "RESNETBOOST_OPERATOR"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one start of the operator; empty `namespaces` means all."""

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
    kueue: bool = False
    gang_scheduling: bool = False
    taint_nodes: Effect | None = None


class _Address(click.ParamType[tuple[str, int]]):
    """HOST:PORT, :PORT for all addresses, [IPv6]:PORT."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        host, colon, port = str(value).rpartition(":")
        if not colon or not port.isdigit() or int(port) > 65535:
            self.fail(f"'{value}' is no address; write HOST:PORT, or :PORT for all addresses of this machine")
        return host.strip("[]"), int(port)


class _TrainerImage(click.ParamType[tuple[DeviceType, str]]):
    """TYPE=IMAGE."""

    name = "image"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[DeviceType, str]:
        kind, _, image = str(value).partition("=")
        if kind not in devices.TYPES or not image:
            known = ", ".join(f"{name}=IMAGE" for name in devices.TYPES)
            self.fail(f"'{value}' names no image of a device type; write {known}")
        return kind, image


def own_identity() -> str:
    """The default identity. A restarted container (process id 1) has the same one, and so still holds its lease."""
    return f"{socket.gethostname()}_{os.getpid()}"


_PARAMETERS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--namespace",
        "namespaces",
        metavar="NAME",
        multiple=True,
        envvar=f"{PREFIX}_NAMESPACE",
        help="Serve the jobs of this namespace only. Repeatable.  [default: all namespaces]",
    ),
    click.option(
        "--listen",
        metavar="HOST:PORT",
        type=_Address(),
        default=":8080",
        show_default=True,
        help="Address of /metrics, /healthz and /readyz; port 0 selects a free port and logs it.",
    ),
    click.option(
        "--lease-namespace",
        metavar="NAME",
        default=in_cluster.own_namespace,
        help="Namespace of the Lease for leader election.  [default: the pod's own]",
    ),
    click.option(
        "--lease-name", metavar="NAME", default=names.MANAGED_BY, show_default=True, help="Name of that Lease."
    ),
    click.option(
        "--identity",
        metavar="NAME",
        default=own_identity,
        help="Unique name of this process in the Lease.  [default: HOSTNAME_PID]",
    ),
    click.option(
        "--pod",
        metavar="NAME",
        default="",
        help="Pod of this process, in the Lease's namespace. After it is deleted, others take the Lease over at once.",
    ),
    click.option(
        "--start-over",
        is_flag=True,
        help="After an error, restart within seconds in this process; kubelet would wait for minutes.",
    ),
    click.option(
        "--image-registry",
        metavar="NAME",
        default="",
        help="Registry, optionally with a path, of the trainers' images, for example registry.example/mirror.",
    ),
    click.option(
        "--trainer-image",
        "trainer_images",
        metavar="TYPE=IMAGE",
        type=_TrainerImage(),
        multiple=True,
        envvar=f"{PREFIX}_TRAINER_IMAGE",
        help="Image for jobs of a device type that name none. Repeatable.",
    ),
    click.option(
        "--kueue/--no-kueue",
        default=False,
        show_default=True,
        help="Queue jobs with the label kueue.x-k8s.io/queue-name by Kueue. Needs the rights in files/rbac-kueue.yaml.",
    ),
    click.option(
        "--gang-scheduling/--no-gang-scheduling",
        default=False,
        show_default=True,
        help="Create PodGroups where a scheduler reads them. Needs the rights in files/rbac-gangs.yaml.",
    ),
    click.option(
        "--taint-nodes",
        type=click.Choice(get_args(Effect)),
        default=None,
        help="Taint nodes that fail across jobs with this effect. Needs the rights in files/rbac-taints.yaml."
        "  [default: no taints]",
    ),
    click.option(
        "--log-format",
        type=click.Choice(["plain", "json"]),
        default="plain",
        show_default=True,
        help="Format of log lines.",
    ),
    click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
        default="info",
        show_default=True,
        help="Minimum severity to log.",
    ),
)


def parameters(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a click command."""
    for parameter in reversed(_PARAMETERS):
        function = parameter(function)
    return function


def parsed(
    *,
    listen: tuple[str, int],
    image_registry: str,
    trainer_images: Iterable[tuple[DeviceType, str]],
    **given: Any,
) -> Options:
    """Build `Options` from the values that click has parsed."""
    host, port = listen
    images = Images(image_registry.rstrip("/"), dict(trainer_images))
    return Options(host=host, port=port, images=images, **given)


def from_environment() -> Options:
    """Options from the environment alone, for an operator started by `kopf run`."""
    command = click.command(context_settings={"auto_envvar_prefix": PREFIX})(parameters(parsed))
    return cast(Options, command.main([], standalone_mode=False))
