"""Checks the network cards of devices: addresses, ports and backup addresses."""

import msgspec

from resnetboost_operator.ranktable.check import fields, rules
from resnetboost_operator.ranktable.check.fields import Address, Record, quoted
from resnetboost_operator.ranktable.check.findings import Report

MOST_PORT = 65535
FIRST_FREE_PORT = 1024
DEVICES_OF_AN_NPU = 2  # its two dies, HCCL's SIO link between them
# What HCCL looks for in each; anything else, as long as it is text, counts as if the field were not there.
_WORDS = {"net_position": ("device", "host"), "net_protocol": ("rdma", "tcp")}


class Card(msgspec.Struct, frozen=True):
    """The usable fields of one device. `lacks`: why it has no device_ip, which matters only with several servers."""

    addresses: tuple[Address, ...] = ()
    lacks: str = ""
    on_host: bool = False


class _Card(msgspec.Struct, frozen=True):
    """A device's card as kept for the checks that follow the last device."""

    place: str
    server: int
    device: int | None
    port: int | None
    backups: tuple[str, ...]
    backup_port: int | None


class Cards:
    """Checks all cards of a table.

    `spread` names what the ranks are spread over if each device needs an address for it.
    """

    def __init__(self, report: Report, spread: str) -> None:
        self._report = report
        self._spread = spread
        self._written: dict[str, str] = {}
        self._addresses: dict[Address, _Card] = {}
        self._first_count: int | None = None
        self._server = 0
        self._host_ports: dict[int, str] = {}
        self._cards: list[_Card] = []

    def begin_server(self) -> None:
        """Start the next server: host ports are unique within a server."""
        self._server += 1
        self._host_ports = {}

    def read(self, device: Record, place: str, number: int | None, *, has_host: bool) -> Card:
        """The valid addresses of one device; everything about its card is judged."""
        self._host_port(device, place)
        written = fields.text(device, "device_ip", f"{place}.", self._report, required=False)
        lacks = "" if written or ("device_ip" in device and written is None) else self._lacks(device, place, has_host)
        texts = _split(written or "")
        port = self._port(device, "device_port", place)
        if "device_port" in device:  # without it HCCL does not read the other
            self._port(device, "device_vnic_port", place)
        card = self._card(device, place, number, port)
        self._cards.append(card)
        found = [(text, fields.address(text)) for text in texts]
        addresses = tuple(found for text, found in found if self._valid(text, found, card) and found is not None)
        self._same_count(max(1, len(texts)), place)
        words = [self._word(device, key, place) for key in _WORDS]
        return Card(addresses, lacks, on_host="host" in words)

    def _lacks(self, device: Record, place: str, has_host: bool) -> str:
        """Report a missing device_ip where no other device matters; else return why it is missing."""
        missing = "device_ip" not in device
        problem = "is missing" if missing else "is empty"
        report, place = self._report, f"{place}.device_ip"
        if not self._spread:
            if report.chip == "910A":
                report.add(rules.DEVICE_IP_ADVISED, place, problem)
        elif report.chip == "910B" or (report.chip == "910A" and missing and not has_host):
            report.add(rules.DEVICE_IP_MISSING, place, f"{problem}, but there are {self._spread}")
        else:
            return f"{problem}, but there are {self._spread}"
        return ""

    def _card(self, device: Record, place: str, number: int | None, port: int | None) -> _Card:
        backups: tuple[str, ...] = ()
        backup_port = None
        if self._report.chip == "A3":  # others have no second die and do not read the fields
            backups = _split(fields.text(device, "backup_device_ip", f"{place}.", self._report, required=False) or "")
        if backups:
            backup_port = self._port(device, "backup_device_port", place)
        return _Card(place, self._server, number, port, backups, backup_port)

    def _valid(self, text: str, found: Address | None, card: _Card) -> bool:
        place, add = f"{card.place}.device_ip", self._report.add
        if found is None or fields.is_nothing(found):
            add(rules.DEVICE_IP, place, f"{quoted(text)} is no IP address")
            return False
        if text in self._written:
            add(rules.DEVICE_IP_REPEATED, place, f"{quoted(text)} is also that of {self._written[text]}")
            return False
        if found in self._addresses:
            other = self._addresses[found].place
            add(rules.DEVICE_IP_SAME, place, f"{quoted(text)} is the same address as that of {other}")
        elif strange := fields.odd(found):
            add(rules.ADDRESS_ODD, place, f"{quoted(text)} is {strange}")
        self._written[text] = card.place
        self._addresses.setdefault(found, card)
        return True

    def _same_count(self, count: int, place: str) -> None:
        if self._first_count is None:
            self._first_count = count
        elif count != self._first_count:
            problem = f"has {count} addresses, the first device has {self._first_count}"
            self._report.add(rules.DEVICE_IP_COUNT, f"{place}.device_ip", problem)

    def _word(self, device: Record, key: str, place: str) -> str | None:
        word = fields.text(device, key, f"{place}.", self._report, required=False)
        if word is not None and word not in _WORDS[key]:
            self._report.add(
                rules.CARD_WORD, f"{place}.{key}", f"is {quoted(word)}, not one of {', '.join(_WORDS[key])}"
            )
        return word

    def _port(self, device: Record, key: str, place: str) -> int | None:
        port = fields.number(device, key, f"{place}.", self._report, required=False)
        if port is None:
            return None
        if not 0 < port <= MOST_PORT:
            self._report.add(rules.PORT, f"{place}.{key}", f"is {port}")
            return None
        if port < FIRST_FREE_PORT:
            self._report.add(rules.PORT_RESERVED, f"{place}.{key}", f"is {port}, which the system reserves")
        return port

    def _host_port(self, device: Record, place: str) -> None:
        port = self._port(device, "host_port", place)
        if port is None:
            return
        if port in self._host_ports:
            problem = f"is {port}, as that of {self._host_ports[port]}"
            self._report.add(rules.HOST_PORT_SHARED, f"{place}.host_port", problem)
        self._host_ports.setdefault(port, place)

    def backups(self) -> None:
        """Check that a backup is the card of the same NPU's other die, with a port that is free there."""
        seen: dict[str, str] = {}
        for card in self._cards:
            for text in card.backups:
                self._backup(text, card, seen)
                seen.setdefault(text, card.place)

    def _backup(self, text: str, card: _Card, seen: dict[str, str]) -> None:
        place, add = f"{card.place}.backup_device_ip", self._report.add
        found = fields.address(text)
        if found is None or fields.is_nothing(found):
            add(rules.BACKUP_IP, place, f"{quoted(text)} is no IP address")
        elif text in seen:
            add(rules.BACKUP_IP_REPEATED, place, f"{quoted(text)} is also that of {seen[text]}")
        elif found in self._addresses:
            self._backup_card(text, card, self._addresses[found])

    def _backup_card(self, text: str, card: _Card, other: _Card) -> None:
        place, add = f"{card.place}.backup_device_ip", self._report.add
        if other is card:
            add(rules.BACKUP_SELF, place, f"{quoted(text)} is its own device_ip")
        elif other.server != card.server:
            add(rules.BACKUP_SERVER, place, f"{quoted(text)} is that of {other.place}, on another server")
        elif _npu(other) != _npu(card):
            add(rules.BACKUP_NPU, place, f"{quoted(text)} is that of {other.place}, on another NPU")
        elif card.backup_port is not None and card.backup_port == other.port:
            problem = f"is {card.backup_port}, the device_port of {other.place}"
            add(rules.BACKUP_PORT, f"{card.place}.backup_device_port", problem)


def _npu(card: _Card) -> int | None:
    return None if card.device is None else card.device // DEVICES_OF_AN_NPU


def _split(written: str) -> tuple[str, ...]:
    """A comma list as SplitString has it: nothing after the last comma is no entry, nothing before one is."""
    parts = written.split(",")
    return tuple(parts[:-1] if parts[-1] == "" else parts)
