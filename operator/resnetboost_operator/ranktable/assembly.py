"""Builds a gang's rank table, and assigns a rank to each pod, from bound pods and their annotations.

Only this module assigns ranks: the node of index 0 first, then by node and device, so that those of a node are
neighbours (HCCL's documents forbid anything else) and any order of pods gives the same bytes. All pods of a node become
one server entry: an entry each would repeat the server_id, which HCCL refuses, or send all traffic over RoCE.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import attrgetter

import msgspec

from resnetboost_operator.ranktable import annotations, document
from resnetboost_operator.ranktable.annotations import NO_ADDRESS, Allocation, BoundPod, Refusal
from resnetboost_operator.ranktable.check import rules, server_list, verdict
from resnetboost_operator.ranktable.check.fields import quoted
from resnetboost_operator.ranktable.check.findings import Finding, errors
from resnetboost_operator.ranktable.chips import Chip
from resnetboost_operator.ranktable.tables import (
    COMPLETED,
    Device,
    Rank,
    RankList,
    Server,
    ServerName,
    ServerTable,
    SuperPod,
)

__all__ = ["Built", "build"]

# HCCL accepts these; a gang would run, and slowly, because a device plugin could not read an address.
_OTHER_CARDS = (rules.HOST_NETWORK, rules.NICS_TRIMMED)
_PLACE = re.compile(r"(?P<list>server_list|rank_list)\[(?P<outer>[0-9]+)\](?:\.device\[(?P<inner>[0-9]+)\])?")


class Built(msgspec.Struct, frozen=True):
    """A checked table as its bytes; `ranks` and `devices` are those of the pods, in the order of their index."""

    table: ServerTable | RankList
    data: bytes
    ranks: tuple[int, ...]
    devices: tuple[int, ...]


def build(pods: Iterable[BoundPod], chip: Chip, *, host_network: bool = False) -> Built:
    """The table of a gang on this chip, in the version that the chip reads.

    `host_network` adds host_ip, which means nothing in a merged entry where pods have addresses of their own.
    Raises Refusal, which names the pods, the rule and HCCL's error.
    """
    gang = sorted(pods, key=attrgetter("index"))
    _complete(gang)
    allocations = [annotations.read(pod) for pod in gang]
    version = _version(allocations, chip)
    ordered = sorted(allocations, key=_order(allocations[0], version))
    table = _rank_list(ordered) if version == "2.0" else _server_table(ordered, version, host_network)
    data = document.compact(table)
    _checked(data, chip, ordered, table)
    ranks = {allocation.pod.index: rank for rank, allocation in enumerate(ordered)}
    return Built(table, data, tuple(ranks[pod.index] for pod in gang), tuple(found.device for found in allocations))


def _complete(gang: Sequence[BoundPod]) -> None:
    """One pod for each index."""
    for expected, pod in enumerate(gang):
        if pod.index != expected:
            problem = f"has the index {pod.index}, but {expected} is the next that is missing; wait for the whole gang"
            raise Refusal((pod.name,), "one pod for each index", problem)
    if not gang:
        raise Refusal(("none",), "one pod for each index", "a gang has at least one pod")


def _version(found: Sequence[Allocation], chip: Chip) -> str:
    if chip == "950":
        return "2.0"
    if chip != "A3":
        return "1.0"
    outside = tuple(each.pod.name for each in found if not (each.super_pod and each.super_device))
    if len(outside) in (0, len(found)):
        return "1.0" if outside else "1.2"
    problem = "the device plugin gave no super_pod_id or super_device_id, but it did for other pods of the gang"
    raise Refusal(outside, "super_device_id in a super pod", f"{problem} (HCCL: HCCL_E_PARA); put them into super pods")


def _order(first: Allocation, version: str) -> Callable[[Allocation], tuple[object, ...]]:
    """Sort key of ranks: super pods stay together, then the order of the module docstring."""

    def key(found: Allocation) -> tuple[object, ...]:
        super_pod = (found.super_pod != first.super_pod, found.super_pod) if version == "1.2" else ()
        return (*super_pod, found.pod.node != first.pod.node, found.pod.node, found.device, found.pod.index)

    return key


def _server_table(ordered: Sequence[Allocation], version: str, host_network: bool) -> ServerTable:
    nodes = [tuple(found) for _, found in groupby(ordered, key=lambda found: found.pod.node)]
    super_pods = {found.super_pod for found in ordered} if version == "1.2" else set()
    needs_address = version == "1.0" or len(super_pods) > 1
    digits = len(str(len(nodes) - 1))
    servers: list[Server] = []
    rank = 0
    for position, found in enumerate(nodes):
        name = _server_id(position, digits, found[0].pod.node)
        devices = tuple(_device(each, rank + local, version, needs_address) for local, each in enumerate(found))
        servers.append(Server(server_id=name, host_ip=_host_ip(found) if host_network else None, device=devices))
        rank += len(found)
    return ServerTable(
        version=version,
        status=COMPLETED,
        server_count=str(len(servers)),
        server_list=tuple(servers),
        super_pod_list=_super_pods(nodes, servers) if version == "1.2" else None,
    )


def _server_id(position: int, digits: int, node: str) -> str:
    """Id of a server: numbered, so that dictionary order is rank order; at most 64 characters (HCCL)."""
    return f"{position:0{digits}}-{node}"[: server_list.MOST_SERVER_ID]


def _device(found: Allocation, rank: int, version: str, needs_address: bool) -> Device:
    if found.device_ip == NO_ADDRESS and needs_address:
        problem = (
            f'device {found.device} of node {found.pod.node} has device_ip "{NO_ADDRESS}": the device plugin could not '
            'get it (HCCL: EI0014 HCCL_E_PARA "a valid IP address"); give the card an address with hccn_tool'
        )
        raise Refusal((found.pod.name,), "device_ip valid", problem)
    return Device(
        device_id=str(found.device),
        super_device_id=found.super_device if version == "1.2" else None,
        device_ip=found.device_ip if found.device_ip not in ("", NO_ADDRESS) else None,
        rank_id=str(rank),
    )


def _host_ip(found: Sequence[Allocation]) -> str | None:
    """The node's address. Raises Refusal if its pods disagree."""
    pods = {each.host_ip: each.pod.name for each in found if each.host_ip}
    if len(pods) > 1:
        problem = f"have {' and '.join(map(quoted, sorted(pods)))} as host_ip of the one node {found[0].pod.node}"
        raise Refusal(
            tuple(sorted(pods.values())), "host_ip", f"{problem}; wait until the device plugin has corrected it"
        )
    return next(iter(pods), None)


def _super_pods(nodes: Sequence[Sequence[Allocation]], servers: Sequence[Server]) -> tuple[SuperPod, ...]:
    members: dict[str, list[ServerName]] = {}
    for found, server in zip(nodes, servers, strict=True):
        members.setdefault(found[0].super_pod, []).append(ServerName(server_id=server.server_id))
    return tuple(SuperPod(super_pod_id=name, server_list=tuple(held)) for name, held in members.items())


def _rank_list(ordered: Sequence[Allocation]) -> RankList:
    ranks = tuple(
        Rank(rank_id=rank, local_id=found.device, device_id=found.device, level_list=found.levels)
        for rank, found in enumerate(ordered)
    )
    return RankList(version="2.0", status=COMPLETED, rank_count=len(ranks), rank_list=ranks)


def _checked(data: bytes, chip: Chip, ordered: Sequence[Allocation], table: ServerTable | RankList) -> None:
    """The table, if HCCL would accept it and use the devices' own network cards. Raises Refusal."""
    judged = verdict.check(document.parse(data), chip)
    found = errors(judged) or tuple(finding for finding in judged if finding.rule in _OTHER_CARDS)
    if found:
        raise Refusal(_pods_at(found[0], ordered, table), found[0].rule.name, str(found[0]))
    if isinstance(table, RankList):
        _devices_once(ordered)


def _devices_once(ordered: Sequence[Allocation]) -> None:
    """Raise Refusal if a device occurs twice: version 2.0 has no servers in which HCCL would notice."""
    seen: dict[tuple[str, int], Allocation] = {}
    for found in ordered:
        first = seen.setdefault((found.pod.node, found.device), found)
        if first is not found:
            problem = f"both have device {found.device} of node {found.pod.node}"
            names = (first.pod.name, found.pod.name)
            raise Refusal(
                names, "device_id unique on its server", f"{problem}; wait until the device plugin has corrected it"
            )


def _pods_at(finding: Finding, ordered: Sequence[Allocation], table: ServerTable | RankList) -> tuple[str, ...]:
    """The pods behind a place of the table; all of them if it names none."""
    found = _PLACE.match(finding.place)
    if found is None:
        return tuple(allocation.pod.name for allocation in ordered)
    outer = int(found["outer"])
    if isinstance(table, RankList):
        return (ordered[outer].pod.name,)
    first = sum(len(server.device) for server in table.server_list[:outer])
    if found["inner"] is not None:
        return (ordered[first + int(found["inner"])].pod.name,)
    held = ordered[first : first + len(table.server_list[outer].device)]
    return tuple(allocation.pod.name for allocation in held)
