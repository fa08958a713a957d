"""Rank tables as frozen structs: the versions this project writes, and template 2, which it only reads.

The order of the fields is the order of the keys: the same table has the same bytes everywhere, because HCCL compares a
checksum of it between the ranks.
"""

import msgspec

from resnetboost_operator.errors import UserError
from resnetboost_operator.ranktable.check.fields import quoted
from resnetboost_operator.ranktable.document import Document

__all__ = [
    "COMPLETED",
    "Device",
    "Group",
    "GroupDevice",
    "GroupTable",
    "Instance",
    "Level",
    "NetAddress",
    "Rank",
    "RankList",
    "Server",
    "ServerName",
    "ServerTable",
    "SuperPod",
    "Table",
    "TableError",
    "read",
]


COMPLETED = "completed"  # HCCL waits for it


class TableError(UserError):
    """A rank table that cannot be read as one; `resnetboost ranktable check` says more."""


class _Form(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of all forms: fields without a value are left out.

    Fields that neither HCCL nor MindSpore reads are dropped.
    """


class Device(_Form, frozen=True, kw_only=True):
    """A device of versions 1.0 and 1.2: one rank; every value is text, as HCCL wants it."""

    device_id: str
    super_device_id: str | None = None
    device_ip: str | None = None
    device_port: str | None = None
    device_vnic_port: str | None = None
    backup_device_ip: str | None = None
    backup_device_port: str | None = None
    host_port: str | None = None
    net_position: str | None = None
    net_protocol: str | None = None
    rank_id: str


class Server(_Form, frozen=True, kw_only=True):
    """All devices of one machine; `pod_ip` is MindSpore's, which finds a worker's server by it."""

    server_id: str
    host_ip: str | None = None
    pod_ip: object | None = None
    device: tuple[Device, ...]


class ServerName(_Form, frozen=True, kw_only=True):
    """A server of a super pod, by its server_id."""

    server_id: str


class SuperPod(_Form, frozen=True, kw_only=True):
    """Servers that share a super pod's network."""

    super_pod_id: str
    server_list: tuple[ServerName, ...]


class ServerTable(_Form, frozen=True, kw_only=True):
    """Version 1.0, or 1.2 with super pods."""

    version: str
    status: str
    server_count: str | None = None
    server_list: tuple[Server, ...]
    super_pod_list: tuple[SuperPod, ...] | None = None


class NetAddress(_Form, frozen=True, kw_only=True):
    """An address of a rank in one network layer, and the ports it is bound to."""

    addr_type: str
    addr: str
    backup_addr: tuple[str, ...] | None = None
    ports: tuple[str, ...]
    plane_id: str | None = None


class Level(_Form, frozen=True, kw_only=True):
    """A rank in one network layer."""

    net_layer: int
    net_instance_id: str
    net_type: str | None = None
    net_attr: str | None = None
    rank_addr_list: tuple[NetAddress, ...]


class ControlPlane(_Form, frozen=True, kw_only=True):
    """Address on which a rank listens for control traffic."""

    addr_type: str
    addr: str
    listen_port: int


class Rank(_Form, frozen=True, kw_only=True):
    """A rank of version 2.0, where numbers are numbers."""

    rank_id: int
    local_id: int
    replaced_local_id: int | None = None
    device_id: int
    device_port: int | None = None
    host_port: int | None = None
    level_list: tuple[Level, ...]
    control_plane: ControlPlane | None = None


class RankList(_Form, frozen=True, kw_only=True):
    """Version 2.0."""

    version: str
    status: str | None = None
    detour: str | None = None
    rank_count: int
    rank_list: tuple[Rank, ...]


class GroupDevice(_Form, frozen=True, kw_only=True):
    """A device of template 2."""

    device_id: str
    device_ip: str | None = None


class Instance(_Form, frozen=True, kw_only=True):
    """A pod, or in the laboratory form a rank, of template 2."""

    server_id: str
    devices: tuple[GroupDevice, ...]
    pod_name: str | None = None
    rank_id: str | None = None


class Group(_Form, frozen=True, kw_only=True):
    """A group of template 2."""

    instance_list: tuple[Instance, ...]


class GroupTable(_Form, frozen=True, kw_only=True):
    """Template 2; read, never written."""

    group_list: tuple[Group, ...]
    status: str


Table = ServerTable | RankList | GroupTable


def read(document: Document) -> Table:
    """A checked document as its struct. Raises TableError for another version or form."""
    version = document.get("version", "")
    try:
        if version in ("1.0", "1.2"):
            return msgspec.convert(document, ServerTable)
        if version == "2.0":
            return msgspec.convert(document, RankList)
        if version == "":
            return msgspec.convert(document, GroupTable)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at ")
        at = f"{place.strip('`').removeprefix('$.')}: " if place else ""
        raise TableError(f"{at}{problem[:1].lower()}{problem[1:]}; `resnetboost ranktable check` says more") from None
    raise TableError(f"version is {quoted(version)}; 1.0, 1.2, 2.0 and tables without one can be read")
