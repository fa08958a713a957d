"""Checks versions 1.0 and 1.2 like HCCL's parser TopoinfoRanktableConcise, in its order."""

from typing import Any

from resnetboost_operator.ranktable import chips
from resnetboost_operator.ranktable.check import fields, networks, ranks, rules, super_pods
from resnetboost_operator.ranktable.check.device_cards import Cards
from resnetboost_operator.ranktable.check.fields import Address, quoted, record
from resnetboost_operator.ranktable.check.findings import Report
from resnetboost_operator.ranktable.check.ranks import Rank

MOST_SERVER_ID = 64
SUPER_POD_VERSION = "1.2"


def check(document: dict[str, Any], version: str, report: Report) -> None:
    """Judge a table whose status and version are read already."""
    walk = _Walk(document, version, report)
    walk.servers()
    if version == SUPER_POD_VERSION:
        _version_of_chip(report)
        if report.chip == "A3":
            super_pods.check(document, walk.ranks, report)
    networks.check(walk.ranks, report)
    ranks.check(walk.ranks, report)


def _version_of_chip(report: Report) -> None:
    if report.chip != "A3":
        report.add(
            rules.VERSION_CHIP, "version", f'is "1.2", for super pods of an A3; a {report.chip} takes it for 1.0'
        )


class _Walk:
    """One pass over server_list, remembering what must not come twice."""

    def __init__(self, document: dict[str, Any], version: str, report: Report) -> None:
        self.ranks: list[Rank] = []
        self._document = document
        self._version = version
        self._report = report
        self._server_ids: dict[str, str] = {}
        self._cards = Cards(report, spread=_spread(document, version, report))

    def servers(self) -> None:
        found = fields.entries(self._document, "server_list", "", self._report)
        self._count(len(found))
        for index, entry in enumerate(found):
            if fields.is_object(entry, f"server_list[{index}]", self._report):
                self._server(record(entry), f"server_list[{index}]")
        self._cards.backups()

    def _count(self, servers: int) -> None:
        if "server_count" not in self._document and self._version != SUPER_POD_VERSION:
            self._report.add(rules.SERVER_COUNT_MISSING, "server_count", "is missing")
        declared = fields.number(self._document, "server_count", "", self._report, required=False)
        if declared is not None and declared != servers:
            self._report.add(rules.SERVER_COUNT, "server_count", f'is "{declared}", but server_list has {servers}')

    def _server(self, server: fields.Record, place: str) -> None:
        name = fields.text(server, "server_id", f"{place}.", self._report)
        if name is not None:
            self._server_id(name, place)
        host = self._host(server, place)
        self._cards.begin_server()
        for index, entry in enumerate(fields.entries(server, "device", f"{place}.", self._report)):
            self._device(entry, f"{place}.device[{index}]", place, name or "", host)

    def _server_id(self, name: str, place: str) -> None:
        add = self._report.add
        if not name:
            add(rules.SERVER_ID_EMPTY, f"{place}.server_id", "is empty")
        elif len(name.encode()) > MOST_SERVER_ID:
            add(rules.SERVER_ID_LONG, f"{place}.server_id", f"{quoted(name)} has {len(name.encode())} bytes")
        elif name in self._server_ids:
            problem = f"{quoted(name)} is also that of {self._server_ids[name]}"
            add(rules.SERVER_ID_REPEATED, f"{place}.server_id", problem)
        self._server_ids.setdefault(name, place)

    def _host(self, server: fields.Record, place: str) -> Address | None:
        written = fields.text(server, "host_ip", f"{place}.", self._report, required=False)
        if written is None:
            return None
        found = fields.address(written)
        if found is None:
            self._report.add(rules.HOST_IP, f"{place}.host_ip", f"{quoted(written)} is no IP address")
            return None
        if fields.is_nothing(found):
            self._report.add(rules.HOST_NOTHING, f"{place}.host_ip", f"{quoted(written)} is the address of nobody")
            return None
        if strange := fields.odd(found):
            self._report.add(rules.ADDRESS_ODD, f"{place}.host_ip", f"{quoted(written)} is {strange}")
        return found

    def _device(self, device: Any, place: str, server: str, server_id: str, host: Address | None) -> None:
        report, prefix = self._report, f"{place}."
        if not fields.is_object(device, place, report):
            self.ranks.append(Rank(place, server, server_id, None, None, host=host))
            return
        rank = fields.text(device, "rank_id", prefix, report)
        number = fields.number(device, "device_id", prefix, report)
        ranks.device_range(number, prefix, chips.DEVICE_IDS[report.chip], report)
        card = self._cards.read(device, place, number, has_host=host is not None)
        rank_id = None if rank is None else fields.natural(rank, f"{prefix}rank_id", report, rules.RANK_ID)
        super_device = None
        if self._version == SUPER_POD_VERSION:
            super_device = super_pods.device(device, prefix, report)
        read = Rank(
            place, server, server_id, number, rank_id, card.addresses, card.lacks, card.on_host, host, super_device
        )
        self.ranks.append(read)


def _spread(document: dict[str, Any], version: str, report: Report) -> str:
    """Between what the ranks are spread, so that each device needs an address; '' if they are not."""
    servers = document.get("server_list")
    pods = document.get("super_pod_list")
    if report.chip == "A3" and version == SUPER_POD_VERSION and isinstance(pods, list) and pods:
        return f"{len(pods)} super pods" if len(pods) > 1 else ""
    return f"{len(servers)} servers" if isinstance(servers, list) and len(servers) > 1 else ""
