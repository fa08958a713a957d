"""Checks version 2.0 (Ascend 950) like HCCL's rank_table_info, whose numbers are integers, not strings."""

import re
from collections.abc import Sequence
from ipaddress import AddressValueError, IPv4Address, IPv6Address, ip_address
from itertools import pairwise
from typing import Any

from resnetboost_operator.ranktable.check import fields, rules
from resnetboost_operator.ranktable.check.device_cards import FIRST_FREE_PORT, MOST_PORT
from resnetboost_operator.ranktable.check.fields import MOST_NUMBER, Record, quoted, record
from resnetboost_operator.ranktable.check.findings import Report
from resnetboost_operator.ranktable.check.rules import Rule

MOST_RANKS = 65536
BACKUP_LOCAL_ID = 64
MOST_LAYERS = 8
MOST_ADDRESSES = 24
MOST_PORTS = 16
_MOST_NET_ID = 1024
_PARSED_NET_TYPES = frozenset(["1DMESH", "2DMESH", "A3_SERVER", "A2_AX_SERVER", "TOPO_FILE_DESC", "CLOS"])
_DOCUMENTED_NET_TYPES = frozenset(["TOPO_FILE_DESC", "CLOS"])
_EID = re.compile(r"[0-9a-fA-F]{32}")
_PORT = re.compile(r"[0-9]+/[0-9]+|d2h")  # die and port, or a card of the host as in HCCL's second example
_PORT_LENGTH = 32
_MOST_ADDRESS = 256
_MOST_BACKUPS = 16
_MOST_LISTEN_PORT = 65536  # one more than there is: MAX_VALUE_LISTENPORT
_ADDRESS_TYPES = ("EID", "IPV4", "IPV6")


def check(document: dict[str, Any], report: Report) -> None:
    """Judge a table whose version is read already."""
    _status(document, report)
    detour = _text(document, "detour", "", report, required=False)
    if detour not in (None, "", "true", "false"):
        report.add(rules.V2_RANGE, "detour", f'is {quoted(detour)}, not "true" or "false"')
    count = _integer(document, "rank_count", "", report)
    found = _list(document, "rank_list", "", report)
    walk = _Walk(len(found), report)
    for index, entry in enumerate(found):
        if fields.is_object(entry, f"rank_list[{index}]", report, rules.V2_NOT_OBJECT):
            walk.rank(record(entry), f"rank_list[{index}]")
    _version(document, report)
    if count is not None and not 0 < count <= MOST_RANKS:
        report.add(rules.V2_RANK_COUNT, "rank_count", f"is {count}, not from 1 to {MOST_RANKS}")
    elif count is not None and "rank_list" in document and count != len(found):
        report.add(rules.V2_RANK_COUNT, "rank_count", f"is {count}, but rank_list has {len(found)}")
    walk.backups()


def _version(document: Record, report: Report) -> None:
    """RankTableInfo::Check compares it after everything is read."""
    if document["version"] != "2.0":
        report.add(rules.V2_VERSION, "version", f"is {quoted(document['version'])}; an Ascend 950 reads 2.0")


def _status(document: Record, report: Report) -> None:
    if document.get("status", "completed") != "completed":
        report.add(rules.V2_STATUS, "status", f"is {quoted(document['status'])}")


class _Walk:
    """One pass over rank_list, remembering what must agree between ranks."""

    def __init__(self, count: int, report: Report) -> None:
        self._count = count
        self._report = report
        self._ranks: dict[int, str] = {}
        self._local_ids: set[int] = set()
        self._replaced: dict[str, int] = {}
        self._sizes: dict[tuple[int, str], tuple[int, str]] = {}

    def rank(self, rank: Record, place: str) -> None:
        prefix = f"{place}."
        self._number(_integer(rank, "rank_id", prefix, self._report), place)
        self._local_id(rank, place)
        _within(rank, "device_id", prefix, (0, BACKUP_LOCAL_ID), self._report)
        for key in ("device_port", "host_port"):
            port = _within(rank, key, prefix, (1, MOST_PORT), self._report, required=False)
            if port is not None and port < FIRST_FREE_PORT:
                self._report.add(rules.PORT_RESERVED, f"{prefix}{key}", f"is {port}, which the system reserves")
        levels = _list(rank, "level_list", prefix, self._report)
        if "level_list" in rank and not 0 < len(levels) <= MOST_LAYERS:
            self._report.add(rules.V2_LEVELS, f"{prefix}level_list", f"has {len(levels)} layers")
        self._levels(levels, f"{prefix}level_list")
        if "control_plane" in rank:
            _control_plane(rank["control_plane"], f"{prefix}control_plane", self._report)

    def _number(self, number: int | None, place: str) -> None:
        if number is None:
            return
        if number >= self._count:
            problem = f"is {number}, but there are {self._count} ranks"
            self._report.add(rules.V2_RANKS, f"{place}.rank_id", problem)
        elif number in self._ranks:
            problem = f"is {number}, as that of {self._ranks[number]}"
            self._report.add(rules.V2_RANKS, f"{place}.rank_id", problem)
        self._ranks.setdefault(number, place)

    def _local_id(self, rank: Record, place: str) -> None:
        local_id = _within(rank, "local_id", f"{place}.", (0, BACKUP_LOCAL_ID), self._report)
        if local_id == BACKUP_LOCAL_ID:
            replaced = _within(rank, "replaced_local_id", f"{place}.", (0, BACKUP_LOCAL_ID - 1), self._report)
            if replaced is not None:
                self._replaced[place] = replaced
        elif local_id is not None:
            self._local_ids.add(local_id)

    def backups(self) -> None:
        """Check that at most one rank is a backup, and that the rank it replaces is absent."""
        for position, (place, replaced) in enumerate(self._replaced.items()):
            if position:
                self._report.add(rules.V2_BACKUP, f"{place}.local_id", "is 64, as that of another rank")
            elif replaced in self._local_ids:
                problem = f"is {replaced}, which another rank has as its local_id"
                self._report.add(rules.V2_BACKUP, f"{place}.replaced_local_id", problem)

    def _levels(self, levels: Sequence[Any], place: str) -> None:
        layers = [
            self._level(level, f"{place}[{index}]")
            for index, level in enumerate(levels)
            if fields.is_object(level, f"{place}[{index}]", self._report, rules.V2_NOT_OBJECT)
        ]
        known = [layer for layer in layers if layer is not None]
        for index, (before, after) in enumerate(pairwise(known), start=1):
            if after <= before:
                self._report.add(rules.V2_LAYERS, f"{place}[{index}].net_layer", f"is {after} after {before}")
        if known and known[0] != 0:
            self._report.add(rules.V2_FIRST_LAYER, f"{place}[0].net_layer", f"is {known[0]}")

    def _level(self, level: Record, place: str) -> int | None:
        prefix = f"{place}."
        layer = _within(level, "net_layer", prefix, (0, MOST_LAYERS - 1), self._report)
        instance = _text(level, "net_instance_id", prefix, self._report)
        if instance is not None and not 0 < len(instance.encode()) <= _MOST_NET_ID:
            self._report.add(rules.V2_RANGE, f"{prefix}net_instance_id", "has not 1 to 1024 bytes")
        _text(level, "net_attr", prefix, self._report, required=False)
        _net_type(level, layer, prefix, self._report)
        addresses = _list(level, "rank_addr_list", prefix, self._report)
        _addresses(addresses, f"{prefix}rank_addr_list", self._report)
        if layer is not None and instance is not None and "rank_addr_list" in level:
            self._size(layer, instance, len(addresses), place)
        return layer

    def _size(self, layer: int, instance: str, size: int, place: str) -> None:
        expected, first = self._sizes.setdefault((layer, instance), (size, place))
        if size != expected:
            problem = f"has {size} addresses, {first} in the same instance has {expected}"
            self._report.add(rules.V2_ADDRESSES, f"{place}.rank_addr_list", problem)


def _net_type(level: Record, layer: int | None, place: str, report: Report) -> None:
    found = _text(level, "net_type", place, report, required=False)
    if found is None:
        if "net_type" not in level:
            report.add(rules.V2_NET_TYPE_ADVISED, f"{place}net_type", "is missing")
    elif found not in _PARSED_NET_TYPES:
        report.add(rules.V2_NET_TYPE, f"{place}net_type", f"is {quoted(found)}")
    elif found not in _DOCUMENTED_NET_TYPES or (layer == 0 and found != "TOPO_FILE_DESC"):
        report.add(rules.V2_NET_TYPE_ADVISED, f"{place}net_type", f"is {quoted(found)} on net_layer {layer}")


def _addresses(found: Sequence[Any], place: str, report: Report) -> None:
    if len(found) > MOST_ADDRESSES:
        report.add(rules.V2_ADDRESSES, place, f"has {len(found)} addresses")
    ports: dict[str, str] = {}
    for index, entry in enumerate(found):
        prefix = f"{place}[{index}]."
        if not fields.is_object(entry, f"{place}[{index}]", report, rules.V2_NOT_OBJECT):
            continue
        kind = _address(entry, prefix, report)
        if "backup_addr" in entry:
            _backups(entry["backup_addr"], kind, f"{prefix}backup_addr", report)
        plane = _text(entry, "plane_id", prefix, report, required=False)
        if plane is not None and len(plane.encode()) > _MOST_NET_ID:
            report.add(rules.V2_RANGE, f"{prefix}plane_id", "has more than 1024 bytes")
        _ports(entry, prefix, ports, report)


def _address(entry: Record, place: str, report: Report, rule: Rule = rules.V2_ADDRESS) -> str | None:
    """Judge an address and its kind; the kind, if it is one."""
    kind, written = _text(entry, "addr_type", place, report), _text(entry, "addr", place, report)
    if kind is not None and kind not in _ADDRESS_TYPES:
        report.add(rule, f"{place}addr_type", f"is {quoted(kind)}, not one of {', '.join(_ADDRESS_TYPES)}")
        return None
    if kind is None or written is None:
        return kind
    size = len(written.encode())
    if not 0 < size <= _MOST_ADDRESS:
        long = rules.V2_ADDRESS_LENGTH if rule is rules.V2_ADDRESS else rule
        report.add(long, f"{place}addr", f"has {size} bytes" if size else "is empty")
    elif not _is_address(kind, written):
        report.add(rule, f"{place}addr", f"{quoted(written)} is no {kind}")
    elif kind != "EID" and (strange := fields.odd(ip_address(written))):
        report.add(rules.ADDRESS_ODD, f"{place}addr", f"{quoted(written)} is {strange}")
    return kind


def _backups(found: Any, kind: str | None, place: str, report: Report) -> None:
    """ParseBackupAddrs: other addresses of the same kind; EIDs have none."""
    if not isinstance(found, list):
        report.add(rules.V2_BACKUP_ADDRESS, place, f"is {quoted(found)}, not a list")
        return
    if len(found) > _MOST_BACKUPS:
        report.add(rules.V2_BACKUP_ADDRESS, place, f"has {len(found)} addresses, more than {_MOST_BACKUPS}")
    for index, written in enumerate(found):
        at = f"{place}[{index}]"
        if not isinstance(written, str):
            report.add(rules.V2_BACKUP_ADDRESS, at, f"is {quoted(written)}, not a string")
        elif kind == "EID":
            report.add(rules.V2_BACKUP_ADDRESS, at, "is there, but an EID has no backup")
        elif kind is not None and not _is_address(kind, written):
            report.add(rules.V2_BACKUP_ADDRESS, at, f"{quoted(written)} is no {kind}")


def _control_plane(found: Any, place: str, report: Report) -> None:
    """ControlPlane::Deserialize: the address on which the rank listens for control traffic."""
    if not fields.is_object(found, place, report, rules.V2_NOT_OBJECT):
        return
    _address(found, f"{place}.", report, rules.V2_CONTROL_PLANE)
    port = _integer(found, "listen_port", f"{place}.", report)
    if port is None:
        return
    if not 0 < port <= _MOST_LISTEN_PORT:
        report.add(rules.V2_CONTROL_PLANE, f"{place}.listen_port", f"is {port}, not from 1 to {MOST_PORT}")
    elif port > MOST_PORT:
        report.add(rules.V2_LISTEN_PORT, f"{place}.listen_port", f"is {port}")
    elif port < FIRST_FREE_PORT:
        report.add(rules.PORT_RESERVED, f"{place}.listen_port", f"is {port}, which the system reserves")


def _is_address(kind: str, written: str) -> bool:
    if kind == "EID":
        return _EID.fullmatch(written) is not None
    try:
        (IPv4Address if kind == "IPV4" else IPv6Address)(written)
    except AddressValueError:
        return False
    return "%" not in written


def _ports(entry: Record, place: str, seen: dict[str, str], report: Report) -> None:
    found = _list(entry, "ports", place, report)
    distinct = {port for port in found if isinstance(port, str)}
    texts = len(distinct) == len(found) or all(isinstance(port, str) for port in found)
    if not texts:
        report.add(rules.V2_TYPE, f"{place}ports", "holds something other than strings")
    elif "ports" in entry and not 0 < len(distinct) <= MOST_PORTS:
        report.add(rules.V2_PORTS, f"{place}ports", f"has {len(distinct)} ports")
    for port in sorted(distinct):
        if not 0 < len(port.encode()) <= _PORT_LENGTH:
            report.add(rules.V2_PORTS, f"{place}ports", f"holds {quoted(port)}")
        elif not _PORT.fullmatch(port):
            report.add(rules.V2_PORT_FORM, f"{place}ports", f"holds {quoted(port)}")
        first = seen.setdefault(port, place)
        if first != place:
            report.add(rules.V2_PORT_SHARED, f"{place}ports", f"holds {quoted(port)}, which {first}ports has too")


def _missing(holder: Record, key: str, place: str, report: Report, required: bool) -> bool:
    if key in holder:
        return False
    if required:
        report.add(rules.V2_MISSING, f"{place}{key}", "is missing")
    return True


def _text(holder: Record, key: str, place: str, report: Report, *, required: bool = True) -> str | None:
    if _missing(holder, key, place, report, required):
        return None
    value = holder[key]
    if isinstance(value, str):
        return value
    report.add(rules.V2_TYPE, f"{place}{key}", f"is {quoted(value)}, not a string")
    return None


def _list(holder: Record, key: str, place: str, report: Report) -> list[Any]:
    if _missing(holder, key, place, report, required=True):
        return []
    value = holder[key]
    if isinstance(value, list):
        return value
    report.add(rules.V2_LIST, f"{place}{key}", f"is {quoted(value)}, not a list")
    return []


def _integer(holder: Record, key: str, place: str, report: Report, *, required: bool = True) -> int | None:
    """A number as nlohmann's get<s64> takes it: floats and booleans are cut to integers."""
    if _missing(holder, key, place, report, required):
        return None
    value = holder[key]
    if isinstance(value, bool | float):
        report.add(rules.V2_LOOSE, f"{place}{key}", f"is {quoted(value)}, which HCCL reads as {int(value)}")
        value = int(value)
    if not isinstance(value, int):
        report.add(rules.V2_TYPE, f"{place}{key}", f"is {quoted(value)}, not an integer")
        return None
    return _ranged(value, f"{place}{key}", (0, MOST_NUMBER), report, rules.V2_UINT if required else rules.V2_RANGE)


def _within(
    holder: Record, key: str, place: str, bounds: tuple[int, int], report: Report, *, required: bool = True
) -> int | None:
    value = _integer(holder, key, place, report, required=required)
    return None if value is None else _ranged(value, f"{place}{key}", bounds, report)


def _ranged(value: int, place: str, bounds: tuple[int, int], report: Report, rule: Rule = rules.V2_RANGE) -> int | None:
    if bounds[0] <= value <= bounds[1]:
        return value
    report.add(rule, place, f"is {quoted(value)}, not from {bounds[0]} to {bounds[1]}")
    return None
