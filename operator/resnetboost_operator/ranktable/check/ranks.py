"""Checks across all ranks of a table: numbering, address families, devices of a server. Independent of the version."""

from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise

import msgspec

from resnetboost_operator import readable
from resnetboost_operator.ranktable import chips
from resnetboost_operator.ranktable.check import rules
from resnetboost_operator.ranktable.check.fields import Address, quoted
from resnetboost_operator.ranktable.check.findings import Report


class Rank(msgspec.Struct, frozen=True):
    """One device of a table as HCCL understood it; None where the table gave nothing usable.

    `server` and `place` say where it stands: `server_list[0]` and `server_list[0].device[1]`; `lacks` and `on_host`
    are those of its card.
    """

    place: str
    server: str
    server_id: str
    device: int | None
    rank: int | None
    addresses: tuple[Address, ...] = ()
    lacks: str = ""
    on_host: bool = False
    host: Address | None = None
    super_device: int | None = None


class DeclaredServers(msgspec.Struct, frozen=True):
    """The number of servers that the table declares, and where."""

    place: str
    servers: int


def by_server(ranks: Iterable[Rank]) -> dict[str, list[Rank]]:
    """The devices of each server_id; servers in the order of the table."""
    servers: dict[str, list[Rank]] = {}
    for rank in ranks:
        servers.setdefault(rank.server_id, []).append(rank)
    return servers


def device_range(device: int | None, place: str, limit: int, report: Report) -> None:
    """The device exists on a server of this chip."""
    if device is not None and device >= limit:
        report.add(
            rules.DEVICE_ID_RANGE,
            f"{place}device_id",
            f"is {device}, the devices of a server with {report.chip} are 0 to {limit - 1}",
        )


def check(ranks: Sequence[Rank], report: Report, declared: DeclaredServers | None = None) -> None:
    """Run all checks in HCCL's order: first its parser's, then those only its documents have."""
    _numbers(ranks, report)
    servers = by_server(ranks)
    if len(servers) > 1:
        _families(ranks, report)
    if declared is not None and declared.servers != len(servers):
        problem = f"is {quoted(str(declared.servers))}, but there are {readable.plural(len(servers), 'server_id')}"
        rule = rules.LAB_SERVERS if report.chip == "910A" else rules.LAB_SERVERS_LATER
        report.add(rule, declared.place, problem)
    if report.chip == "910A":
        _equal_counts(servers, report)
    _devices_once(ranks, report)
    for devices in servers.values():
        _selection(devices, len(servers), report)
    _neighbours(ranks, servers, report)


def _numbers(ranks: Sequence[Rank], report: Report) -> None:
    """CheckRankListInfo: sorted, they are exactly 0 to N-1."""
    if any(rank.rank is None for rank in ranks):
        return  # said already; the rest would only follow from it
    seen: dict[int, Rank] = {}
    for rank in ranks:
        number = rank.rank or 0
        if number >= len(ranks):
            report.add(rules.RANKS, f"{rank.place}.rank_id", f"is {number}, but there are {len(ranks)} ranks")
        elif number in seen:
            report.add(rules.RANKS, f"{rank.place}.rank_id", f"is {number}, as that of {seen[number].place}")
        seen.setdefault(number, rank)


def _families(ranks: Sequence[Rank], report: Report) -> None:
    """CheckRankIpFamily: with several servers all addresses are IPv4 or all are IPv6."""
    hosts = [(rank, rank.host) for rank in ranks if rank.host is not None]
    for rank, host in hosts:
        if host.version != hosts[0][1].version:
            report.add(rules.HOST_FAMILY, f"{rank.server}.host_ip", f"is {host}, others are IPv{hosts[0][1].version}")
            break
    devices = [(rank, found) for rank in ranks for found in rank.addresses]
    for rank, found in devices:
        if found.version != devices[0][1].version:
            first = f"others are IPv{devices[0][1].version}"
            report.add(rules.DEVICE_FAMILY, f"{rank.place}.device_ip", f"is {found}, {first}")
            break


def _equal_counts(servers: dict[str, list[Rank]], report: Report) -> None:
    """CheckDeviceNumValid: HCCL skips it for 910B and A3."""
    average = sum(map(len, servers.values())) // max(1, len(servers))
    for server_id, ranks in servers.items():
        if len(ranks) != average:
            held = f"{quoted(server_id)} has {readable.plural(len(ranks), 'device')}"
            report.add(rules.EQUAL_COUNTS, ranks[0].server, f"{held}, the average is {average}")


def _devices_once(ranks: Sequence[Rank], report: Report) -> None:
    """CheckInterServerDeviceId: a device of a server is one rank. A repeated server_id explains the rest."""
    explained = any(finding.rule is rules.SERVER_ID_REPEATED for finding in report.findings)
    seen: dict[tuple[str, int], Rank] = {}
    for rank in ranks:
        if rank.device is None:
            continue
        first = seen.setdefault((rank.server_id, rank.device), rank)
        if first is not rank and (first.server == rank.server or not explained):
            problem = f"is {rank.device}, as that of {first.place} on the same server"
            report.add(rules.DEVICE_ID_REPEATED, f"{rank.place}.device_id", problem)


def _selection(ranks: Sequence[Rank], servers: int, report: Report) -> None:
    """Check which devices of a server may be used together."""
    devices = tuple(sorted({rank.device for rank in ranks if rank.device is not None}))
    if not devices or len(devices) != len(ranks):
        return  # said already
    place = ranks[0].server
    if report.chip == "910A":
        _selection_910a(devices, place, report)
    elif report.chip == "910B" and servers > 1 and len(devices) > 8:
        report.add(rules.COUNT_910B, place, f"has {len(devices)} devices")
    elif report.chip == "A3" and len(devices) > 1 and len(devices) % 2:
        report.add(rules.COUNT_A3, place, f"has {len(devices)} devices, which leaves half an NPU")


def _selection_910a(devices: tuple[int, ...], place: str, report: Report) -> None:
    """The counts and rings of the Atlas training series; eight devices are both rings."""
    listed = ", ".join(map(str, devices))
    if len(devices) not in chips.COUNTS_910A:
        report.add(rules.COUNT_910A, place, f"has {readable.plural(len(devices), 'device')}: {listed}")
    elif len(devices) == chips.SET_SIZE and devices not in chips.ALLOWED_SETS:
        report.add(rules.SET_910A, place, f"has the devices {listed}")
    elif len(devices) == chips.SET_SIZE and chips.crosses_rings(devices):
        report.add(rules.SET_910A_CROSSING, place, f"has the devices {listed}, in both rings")
    elif len(devices) == 2 and chips.crosses_rings(devices):
        report.add(rules.RING_910A, place, f"has the devices {listed}, one in each ring")


def _neighbours(ranks: Sequence[Rank], servers: dict[str, list[Rank]], report: Report) -> None:
    """Check that ranks of a server are consecutive and servers in dictionary order."""
    if any(rank.rank is None for rank in ranks):
        return
    runs = [server_id for server_id, _ in groupby(sorted(ranks, key=_number), key=lambda rank: rank.server_id)]
    if len(runs) == len(servers):
        if runs != sorted(runs):
            before, after = next((old, new) for old, new in pairwise(runs) if new < old)
            problem = f"{quoted(after)} has its ranks after those of {quoted(before)}"
            report.add(rules.SERVER_ORDER, servers[after][0].server, problem)
        return
    for server_id, held in servers.items():
        numbers = sorted(map(_number, held))
        if numbers[-1] - numbers[0] >= len(numbers):
            listed = ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")
            report.add(rules.INTERLEAVED, held[0].server, f"{quoted(server_id)} has the ranks {listed}")


def _number(rank: Rank) -> int:
    return rank.rank or 0
