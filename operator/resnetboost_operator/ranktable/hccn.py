"""Reads device addresses from /etc/hccn.conf or from the output of hccn_tool, and makes a table of them."""

import re
from collections.abc import Mapping, Sequence

from resnetboost_operator.errors import UserError
from resnetboost_operator.ranktable.check.fields import address, quoted
from resnetboost_operator.ranktable.tables import COMPLETED, Device, Server, ServerTable

__all__ = ["AddressError", "device_ids", "read", "table"]

MAX_BYTES = 1 << 20
_CONFIG = re.compile(r"[ \t]*address_([0-9]{1,4})[ \t]*=[ \t]*(\S+)[ \t]*\r?")
_TOOL = re.compile(r"[ \t]*ipaddr[ \t]*:[ \t]*(\S+)[ \t]*\r?")
_CALL = re.compile(r".*hccn_tool\s+-i\s+([0-9]{1,4})\b.*")
_RANGE = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")


class AddressError(UserError):
    """A source without (all of) the addresses asked for."""


def device_ids(written: str) -> tuple[int, ...]:
    """`0-3,6` as 0, 1, 2, 3, 6. Raises AddressError."""
    found: list[int] = []
    for part in written.split(","):
        ends = _RANGE.fullmatch(part.strip())
        if ends is None or int(ends[2] or ends[1]) < int(ends[1]):
            raise AddressError(f"devices {quoted(written)}: write ids and ranges such as 0-3,6")
        found += range(int(ends[1]), int(ends[2] or ends[1]) + 1)
    if len(set(found)) < len(found):
        raise AddressError(f"devices {quoted(written)}: name each device once")
    return tuple(found)


def read(text: str, wanted: Sequence[int] | None = None) -> dict[int, str]:
    """The address of each device, as asked for; raises AddressError for a device without a valid one.

    hccn_tool does not print the device it was asked for. Without the call itself in the text (`set -x`), the addresses
    belong to `wanted` in order, or to devices 0, 1, 2 and so on.
    """
    found = dict(_configured(text)) or dict(_answered(text, wanted))
    if not found:
        raise AddressError("no line address_N=... of hccn.conf and no line ipaddr:... of hccn_tool is in it")
    chosen = sorted(found) if wanted is None else wanted
    absent = [device for device in chosen if device not in found]
    if absent:
        listed = ", ".join(map(str, sorted(found)))
        raise AddressError(f"there is no address of device {absent[0]}; it has those of {listed}")
    for device in chosen:
        if address(found[device]) is None:
            raise AddressError(f"device {device} has the address {quoted(found[device])}, which is no IP address")
    return {device: found[device] for device in chosen}


def _configured(text: str) -> list[tuple[int, str]]:
    matches = [found for line in text.splitlines() if (found := _CONFIG.fullmatch(line))]
    return [(int(found[1]), found[2]) for found in matches]


def _answered(text: str, wanted: Sequence[int] | None) -> list[tuple[int, str]]:
    called: int | None = None
    answers: list[tuple[int, str]] = []
    for line in text.splitlines():
        if call := _CALL.fullmatch(line):
            called = int(call[1])
        elif answer := _TOOL.fullmatch(line):
            position = len(answers)
            expected = wanted[position] if wanted is not None and position < len(wanted) else position
            answers.append((expected if called is None else called, answer[1]))
            called = None
    return answers


def table(servers: Mapping[str, Mapping[int, str]]) -> ServerTable:
    """Version 1.0 of servers in their order; devices by id, ranks in that order."""
    rank = 0
    built: list[Server] = []
    for server_id, addresses in servers.items():
        devices = tuple(
            Device(device_id=str(device), device_ip=addresses[device], rank_id=str(rank + position))
            for position, device in enumerate(sorted(addresses))
        )
        built.append(Server(server_id=server_id, device=devices))
        rank += len(devices)
    return ServerTable(version="1.0", status=COMPLETED, server_count=str(len(built)), server_list=tuple(built))
