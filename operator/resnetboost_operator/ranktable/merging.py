"""Rank tables of single servers into one of all, ranks in the order of the tables; it checks only what it relies on."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from resnetboost_operator.errors import UserError
from resnetboost_operator.ranktable.fields import quoted
from resnetboost_operator.ranktable.tables import (
    COMPLETED,
    Device,
    GroupTable,
    RankList,
    Server,
    ServerName,
    ServerTable,
    SuperPod,
    Table,
)

__all__ = ["MergeError", "merge"]


class MergeError(UserError):
    """Tables that cannot become one; names the file."""


def merge(tables: Mapping[str, Table]) -> ServerTable | RankList:
    """One table; names are the files', for errors.

    Entries of one server (containers on one host) become one entry, servers of one super pod neighbours. Raises
    MergeError for tables of different versions, unfinished ones, and template 2.
    """
    versions: dict[str, str] = {}
    for name, table in tables.items():
        if isinstance(table, GroupTable):
            raise MergeError(f"{name}: template 2 (group_list) cannot be merged; write it with version 1.0 first")
        if table.status not in (COMPLETED, None):
            raise MergeError(f"{name}: status is {quoted(table.status)}; merge completed tables only")
        versions.setdefault(table.version, name)
    if len(versions) > 1:
        told = " and ".join(f"{version} ({name})" for version, name in versions.items())
        raise MergeError(f"the tables have the versions {told}; merge tables of one version")
    lists = [table for table in tables.values() if isinstance(table, RankList)]
    if lists:
        return _rank_lists(lists)
    return _server_tables([table for table in tables.values() if isinstance(table, ServerTable)])


def _rank_lists(tables: Sequence[RankList]) -> RankList:
    ranks = [rank for table in tables for rank in sorted(table.rank_list, key=lambda rank: rank.rank_id)]
    numbered = tuple(replace(rank, rank_id=number) for number, rank in enumerate(ranks))
    return RankList(version="2.0", status=COMPLETED, rank_count=len(numbered), rank_list=numbered)


def _server_tables(tables: Sequence[ServerTable]) -> ServerTable:
    pods = _super_pods(tables)
    servers = _servers(tables)
    place = {name: position for position, name in enumerate(pod for members in pods.values() for pod in members)}
    if place:
        servers = sorted(servers, key=lambda server: place.get(server.server_id, len(place)))
    numbered = _numbered(servers)
    return ServerTable(
        version=tables[0].version,
        status=COMPLETED,
        server_count=str(len(numbered)),
        server_list=numbered,
        super_pod_list=_named(pods) if pods else None,
    )


def _servers(tables: Sequence[ServerTable]) -> list[Server]:
    merged: dict[str, Server] = {}
    for server in (server for table in tables for server in table.server_list):
        known = merged.get(server.server_id)
        devices = sorted(server.device, key=_rank)
        held = known.device if known is not None else ()
        host_ip = server.host_ip if known is None else known.host_ip or server.host_ip
        merged[server.server_id] = replace(server, host_ip=host_ip, device=(*held, *devices))
    return list(merged.values())


def _rank(device: Device) -> int:
    return int(device.rank_id) if device.rank_id.isascii() and device.rank_id.isdigit() else 0


def _numbered(servers: Sequence[Server]) -> tuple[Server, ...]:
    rank = 0
    numbered: list[Server] = []
    for server in servers:
        devices = tuple(replace(device, rank_id=str(rank + position)) for position, device in enumerate(server.device))
        numbered.append(replace(server, device=devices))
        rank += len(devices)
    return tuple(numbered)


def _super_pods(tables: Sequence[ServerTable]) -> dict[str, dict[str, None]]:
    """The servers of each super pod, in the order of the tables."""
    pods: dict[str, dict[str, None]] = {}
    for pod in (pod for table in tables for pod in table.super_pod_list or ()):
        pods.setdefault(pod.super_pod_id, {}).update(dict.fromkeys(server.server_id for server in pod.server_list))
    return pods


def _named(pods: Mapping[str, Mapping[str, None]]) -> tuple[SuperPod, ...]:
    return tuple(
        SuperPod(super_pod_id=name, server_list=tuple(ServerName(server_id=server) for server in members))
        for name, members in pods.items()
    )
