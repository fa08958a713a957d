"""Checks template 2 (group_list, no version) like HCCL's parser TopoinfoRanktableStandard.

With `deploy_mode` it is the older laboratory form: one device and a rank_id for each instance. Without, HCCL numbers
the ranks by server_id and device_id, and a process finds itself by its pod_name.
"""

from typing import Any

import msgspec

from resnetboost_operator import readable
from resnetboost_operator.ranktable import chips
from resnetboost_operator.ranktable.check import fields, networks, ranks, rules, server_list
from resnetboost_operator.ranktable.check.fields import Address, Record, quoted, record
from resnetboost_operator.ranktable.check.findings import Report
from resnetboost_operator.ranktable.check.ranks import DeclaredServers, Rank

_LONGEST_NAME = 127  # GROUP_NAME_MAX_LEN
_AVERAGES = (1, 2, 4, 8, 16)  # CheckAverageDev
_EMPTY = "is empty"
_UNREAD = "is not read in a group of one instance"
_CLOUD_DEVICES = chips.DEVICE_IDS["910A"]  # GetCloudDevList, for any chip


def check(document: dict[str, Any], report: Report) -> None:
    """Judge a table whose status is read already."""
    if "server_list" in document and "group_list" not in document:
        report.add(rules.VERSION_MISSING, "version", "is missing, but there is a server_list")
        return
    report.add(rules.OLD_TEMPLATE, "version", "is missing: HCCL reads the table as the older template 2")
    laboratory = "deploy_mode" in document
    if laboratory:
        _network(document, report)
    walk = _Walk(laboratory, report)
    count = fields.number(document, "group_count", "", report)
    groups = fields.entries(document, "group_list", "", report)
    if count is not None and groups and count != len(groups):
        report.add(rules.GROUPS, "group_count", f'is "{count}", but group_list has {len(groups)}')
    for index, group in enumerate(groups):
        if fields.is_object(group, f"group_list[{index}]", report):
            walk.group(record(group), f"group_list[{index}]")
    found = _lacking(walk.ranks if laboratory else _numbered(walk.ranks), report)
    networks.check(found, report, grouped=True)
    ranks.check(found, report, walk.declared())


def _network(document: Record, report: Report) -> None:
    location = fields.text(document, "para_plane_nic_location", "", report)
    if location is not None and location != "device":
        report.add(rules.NIC_LOCATION, "para_plane_nic_location", f"is {quoted(location)}")


def _numbered(found: list[Rank]) -> list[Rank]:
    """GetSortClouldRankList: ranks by server_id, then by device_id."""
    ordered = sorted(found, key=lambda rank: (rank.server_id, rank.device or 0))
    return [msgspec.structs.replace(rank, rank=number) for number, rank in enumerate(ordered)]


def _lacking(found: list[Rank], report: Report) -> list[Rank]:
    """Report missing device_ips once the number of servers is known."""
    servers = len(ranks.by_server(found))
    if servers > 1:
        return [_among(rank, servers) for rank in found]
    for rank in found:
        if rank.lacks == _EMPTY:
            report.add(rules.DEVICE_IP_ADVISED, f"{rank.place}.device_ip", rank.lacks)
    return [msgspec.structs.replace(rank, lacks="") for rank in found]


def _among(rank: Rank, servers: int) -> Rank:
    return msgspec.structs.replace(rank, lacks=f"{rank.lacks}, but there are {servers} servers" if rank.lacks else "")


class _Walk:
    """One pass over the groups, remembering what must not come twice."""

    def __init__(self, laboratory: bool, report: Report) -> None:
        self.ranks: list[Rank] = []
        self._laboratory = laboratory
        self._report = report
        self._seen: dict[tuple[str, str], str] = {}
        self._addresses: dict[Address, str] = {}
        self._declared: list[DeclaredServers | None] = []

    def declared(self) -> DeclaredServers | None:
        """The servers declared by all groups together (laboratory form)."""
        known = [each for each in self._declared if each is not None]
        if not known or len(known) < len(self._declared):
            return None
        return DeclaredServers(known[0].place, sum(each.servers for each in known))

    def group(self, group: Record, place: str) -> None:
        name = fields.text(group, "group_name", f"{place}.", self._report)
        if name is not None:
            self._name(rules.GROUP_REPEATED, name, place, "group_name")
        instances = fields.number(group, "instance_count", f"{place}.", self._report)
        key = "device_num" if self._laboratory else "device_count"
        devices = fields.number(group, key, f"{place}.", self._report)
        if self._laboratory:
            self._averages(group, devices, place)
        found = fields.entries(group, "instance_list", f"{place}.", self._report)
        held = sum(
            self._instance(record(entry), f"{place}.instance_list[{index}]", many=len(found) > 1)
            for index, entry in enumerate(found)
            if fields.is_object(entry, f"{place}.instance_list[{index}]", self._report)
        )
        self._counted("instance_count", instances, len(found), place)
        self._counted(key, devices, held, place)

    def _averages(self, group: Record, devices: int | None, place: str) -> None:
        servers = fields.number(group, "server_num", f"{place}.", self._report)
        self._declared.append(None if servers is None else DeclaredServers(f"{place}.server_num", servers))
        if servers is None or devices is None:
            return
        if servers == 0 or devices % servers or devices // servers not in _AVERAGES:
            self._report.add(rules.LAB_AVERAGE, f"{place}.device_num", f'is "{devices}" for server_num "{servers}"')

    def _counted(self, key: str, declared: int | None, found: int, place: str) -> None:
        if declared is not None and declared != found:
            self._report.add(rules.INSTANCES, f"{place}.{key}", f'is "{declared}", but the list has {found}')

    def _instance(self, instance: Record, place: str, *, many: bool) -> int:
        report, prefix = self._report, f"{place}."
        server_id = fields.text(instance, "server_id", prefix, report) or ""
        self._server_id(server_id, place, "server_id" in instance)
        rank = None
        if self._laboratory:
            rank = fields.number(instance, "rank_id", prefix, report, rules.RANK_ID)
        else:
            pod = fields.text(instance, "pod_name", prefix, report)
            if pod is not None:
                self._name(rules.POD_REPEATED, pod, place, "pod_name")
        devices = fields.entries(instance, "devices", prefix, report)
        if self._laboratory and len(devices) > 1:
            report.add(rules.LAB_INSTANCE, f"{prefix}devices", f"has {readable.plural(len(devices), 'device')}")
        for index, entry in enumerate(devices):
            at = f"{prefix}devices[{index}]"
            if fields.is_object(entry, at, report):
                self._device(record(entry), at, (place, server_id), rank, with_ip=many or self._laboratory)
            else:
                self.ranks.append(Rank(at, place, server_id, None, None))
        return len(devices)

    def _server_id(self, server_id: str, place: str, given: bool) -> None:
        if given and not server_id:
            self._report.add(rules.SERVER_ID_EMPTY, f"{place}.server_id", "is empty")
        elif len(server_id.encode()) > server_list.MOST_SERVER_ID:
            problem = f"{quoted(server_id)} has {len(server_id.encode())} bytes"
            self._report.add(rules.SERVER_ID_LONG, f"{place}.server_id", problem)

    def _device(self, device: Record, place: str, server: tuple[str, str], rank: int | None, *, with_ip: bool) -> None:
        report = self._report
        number = fields.number(device, "device_id", f"{place}.", report)
        limit = chips.DEVICE_IDS[report.chip] if self._laboratory else _CLOUD_DEVICES
        ranks.device_range(number, f"{place}.", limit, report)
        addresses, lacks = self._device_ip(device, place) if with_ip else ((), _UNREAD)
        self.ranks.append(Rank(place, *server, number, rank, addresses, lacks))

    def _device_ip(self, device: Record, place: str) -> tuple[tuple[Address, ...], str]:
        """The address, and why there is none where HCCL's parser does not mind."""
        written, at = fields.text(device, "device_ip", f"{place}.", self._report), f"{place}.device_ip"
        if not written:
            return (), _EMPTY if written == "" else ""
        found = fields.address(written)
        if found is None or fields.is_nothing(found):
            self._report.add(rules.DEVICE_IP, at, f"{quoted(written)} is no IP address")
            return (), ""
        self._once(rules.DEVICE_IP_REPEATED, written, place, "device_ip")
        first = self._addresses.setdefault(found, place)
        if first != place and self._seen["device_ip", written] == place:
            self._report.add(rules.DEVICE_IP_SAME, at, f"{quoted(written)} is the same address as that of {first}")
        elif first == place and (strange := fields.odd(found)):
            self._report.add(rules.ADDRESS_ODD, at, f"{quoted(written)} is {strange}")
        return (found,), ""

    def _name(self, repeated: rules.Rule, value: str, place: str, key: str) -> None:
        """CheckUniqueAndInsertPool, for names."""
        size = len(value.encode())
        if size > _LONGEST_NAME:
            self._report.add(rules.NAME_LONG, f"{place}.{key}", f"{quoted(value)} has {size} bytes")
        self._once(repeated, value, place, key)

    def _once(self, rule: rules.Rule, value: str, place: str, key: str) -> None:
        first = self._seen.setdefault((key, value), place)
        if first != place:
            self._report.add(rule, f"{place}.{key}", f"{quoted(value)} is also that of {first}")
