"""Merges rank tables of single servers into one; ranks follow the order of the tables."""

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from resnetboost_operator.errors import UserError
from resnetboost_operator.ranktable.check.fields import quoted
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

__all__ = ["MergeError", "Merged", "merge"]


_LONGEST_NUMBER = 10


class MergeError(UserError):
    """Tables that cannot become one; names the file."""


class Merged(msgspec.Struct, frozen=True):
    """The merged table; `origins` maps each place in it to its source, such as `b.json: server_list[0].device[1]`."""

    table: ServerTable | RankList
    origins: Mapping[str, str]


def merge(tables: Mapping[str, Table]) -> Merged:
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
        listed = " and ".join(f"{version} ({name})" for version, name in versions.items())
        raise MergeError(f"the tables have the versions {listed}; merge tables of one version")
    lists = {name: table for name, table in tables.items() if isinstance(table, RankList)}
    if lists:
        return _rank_lists(lists)
    return _server_tables({name: table for name, table in tables.items() if isinstance(table, ServerTable)})


def _rank_lists(tables: Mapping[str, RankList]) -> Merged:
    detours = {table.detour or "false": name for name, table in tables.items()}
    if len(detours) > 1:
        listed = " and ".join(f"{quoted(detour)} ({name})" for detour, name in detours.items())
        raise MergeError(f"the tables have detour {listed}, and HCCL wants one for all; write the same into each")
    found = [
        (rank, f"{name}: rank_list[{index}]")
        for name, table in tables.items()
        for index, rank in sorted(enumerate(table.rank_list), key=lambda found: found[1].rank_id)
    ]
    ranks = tuple(replace(rank, rank_id=number) for number, (rank, _) in enumerate(found))
    origins = {f"rank_list[{number}]": origin for number, (_, origin) in enumerate(found)}
    detour = next((table.detour for table in tables.values() if table.detour), None)
    table = RankList(version="2.0", status=COMPLETED, detour=detour, rank_count=len(ranks), rank_list=ranks)
    return Merged(table, origins)


class _Entry(msgspec.Struct):
    """A server as it grows, and the places its parts come from."""

    server: Server
    places: list[str]
    devices: list[tuple[Device, str]]


def _server_tables(tables: Mapping[str, ServerTable]) -> Merged:
    pods = _super_pods(list(tables.values()))
    entries = _entries(tables)
    place = {name: position for position, name in enumerate(pod for members in pods.values() for pod in members)}
    if place:
        entries = sorted(entries, key=lambda entry: place.get(entry.server.server_id, len(place)))
    servers = _numbered(entries)
    table = ServerTable(
        version=next(iter(tables.values())).version,
        status=COMPLETED,
        server_count=str(len(servers)),
        server_list=servers,
        super_pod_list=_named(pods) if pods else None,
    )
    return Merged(table, _origins(entries))


def _entries(tables: Mapping[str, ServerTable]) -> list[_Entry]:
    merged: dict[str, _Entry] = {}
    for name, table in tables.items():
        for index, server in enumerate(table.server_list):
            at = f"{name}: server_list[{index}]"
            ordered = sorted(enumerate(server.device), key=lambda found: _rank(found[1]))
            devices = [(device, f"{at}.device[{position}]") for position, device in ordered]
            known = merged.get(server.server_id)
            if known is None:
                merged[server.server_id] = _Entry(server, [at], devices)
            else:
                known.server = _joined(known, server, at)
                known.places.append(at)
                known.devices += devices
    return list(merged.values())


def _joined(known: _Entry, server: Server, at: str) -> Server:
    """One entry's fields of the server; the entries must not contradict each other."""
    for key in ("host_ip", "pod_ip"):
        before, after = getattr(known.server, key), getattr(server, key)
        if before is not None and after is not None and before != after:
            raise MergeError(
                f"{at}.{key} is {quoted(after)}, but {known.places[0]} has {quoted(before)} for the same server_id "
                f"{quoted(server.server_id)}; write the same into both, or leave it out"
            )
    return replace(
        known.server,
        host_ip=server.host_ip if known.server.host_ip is None else known.server.host_ip,
        pod_ip=server.pod_ip if known.server.pod_ip is None else known.server.pod_ip,
    )


def _rank(device: Device) -> int:
    plain = device.rank_id.isascii() and device.rank_id.isdigit() and len(device.rank_id) <= _LONGEST_NUMBER
    return int(device.rank_id) if plain else 0


def _numbered(entries: Sequence[_Entry]) -> tuple[Server, ...]:
    rank = 0
    numbered: list[Server] = []
    for entry in entries:
        devices = tuple(
            replace(device, rank_id=str(rank + position)) for position, (device, _) in enumerate(entry.devices)
        )
        numbered.append(replace(entry.server, device=devices))
        rank += len(devices)
    return tuple(numbered)


def _origins(entries: Sequence[_Entry]) -> dict[str, str]:
    origins: dict[str, str] = {}
    for index, entry in enumerate(entries):
        origins[f"server_list[{index}]"] = " and ".join(entry.places)
        for position, (_, origin) in enumerate(entry.devices):
            origins[f"server_list[{index}].device[{position}]"] = origin
    return origins


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
