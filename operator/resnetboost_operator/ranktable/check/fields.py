"""Reads JSON fields like HCCL's string parser and reports what it would reject."""

import json
import re
from collections.abc import Mapping
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Any

from resnetboost_operator.ranktable.check import rules
from resnetboost_operator.ranktable.check.findings import Report
from resnetboost_operator.ranktable.check.rules import Rule

__all__ = [
    "Address",
    "address",
    "entries",
    "is_nothing",
    "is_object",
    "natural",
    "number",
    "odd",
    "printable",
    "quoted",
    "record",
    "text",
]

Address = IPv4Address | IPv6Address
Record = Mapping[str, Any]

MOST_NUMBER = 0xFFFFFFFF
_LONGEST_QUOTE = 80
_LOOSE = re.compile(r"[ \t\n\v\f\r]*([+-]?)0*([0-9]+)")  # what std::stoull reads of a text
_LONGEST_NUMBER = 10
_BROADCAST = IPv4Address(0xFFFFFFFF)


def quoted(value: object) -> str:
    """A value as it stands in the file: text in quotes, long or strange things cut and escaped."""
    shown = printable(f'"{value}"' if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    return shown if len(shown) <= _LONGEST_QUOTE else f"{shown[:_LONGEST_QUOTE]}..."


def printable(value: str) -> str:
    """Text with its control characters escaped: tables are untrusted."""
    return value if value.isprintable() else value.encode("unicode_escape").decode()


def record(value: Any) -> Record:
    """An entry of a list as an object; an empty one if it is none, as in HCCL."""
    return value if isinstance(value, dict) else {}


def is_object(value: object, place: str, report: Report, rule: Rule = rules.NOT_OBJECT) -> bool:
    """Whether an entry of a list can have fields at all."""
    if isinstance(value, dict):
        return True
    report.add(rule, place, f"is {quoted(value)}, not an object")
    return False


def text(holder: Record, key: str, place: str, report: Report, *, required: bool = True) -> str | None:
    """A field that must be a string; None if it is missing or something else."""
    if key not in holder:
        if required:
            report.add(rules.MISSING, f"{place}{key}", "is missing")
        return None
    value = holder[key]
    if isinstance(value, str):
        return value
    report.add(rules.NOT_TEXT, f"{place}{key}", f"is {quoted(value)}, not a string")
    return None


def entries(holder: Record, key: str, place: str, report: Report, *, required: bool = True) -> list[Any]:
    """A field that must be a list with something in it; empty if it is not."""
    if key not in holder:
        if required:
            report.add(rules.MISSING_LIST, f"{place}{key}", "is missing")
        return []
    value = holder[key]
    if not isinstance(value, list):
        report.add(rules.EMPTY_LIST, f"{place}{key}", f"is {quoted(value)}, not a list")
        return []
    if not value:
        report.add(rules.EMPTY_LIST, f"{place}{key}", "is empty")
    return value


def natural(written: str, place: str, report: Report, rule: Rule = rules.NOT_NUMBER) -> int | None:
    """A number in a text. HCCL also accepts a number followed by other text, which is a warning."""
    found = _LOOSE.match(written)
    value = MOST_NUMBER + 1
    if found and len(found[2]) <= _LONGEST_NUMBER and (found[1] != "-" or found[2] == "0"):
        value = int(found[2])
    if value > MOST_NUMBER:
        report.add(rule, place, f"is {quoted(written)}")
        return None
    if not (written.isascii() and written.isdigit()):
        report.add(rules.LOOSE_NUMBER, place, f"is {quoted(written)}, which HCCL reads as {value}")
    return value


def number(
    holder: Record, key: str, place: str, report: Report, rule: Rule = rules.NOT_NUMBER, *, required: bool = True
) -> int | None:
    """A field that must be a number in a string."""
    written = text(holder, key, place, report, required=required)
    return None if written is None else natural(written, f"{place}{key}", report, rule)


def address(written: str) -> Address | None:
    """An IP as HCCL reads it (HcclIpAddress::SetReadableAddress): an interface may follow after %."""
    bare, mark, interface = written.partition("%")
    if mark and (not bare or not interface):
        return None
    try:
        return IPv6Address(bare) if bare.count(":") >= 2 else IPv4Address(bare)
    except AddressValueError:
        return None


def is_nothing(found: Address) -> bool:
    """HcclIpAddress::IsInvalid: IPv4's 0.0.0.0 counts as none."""
    return found.version == 4 and found.is_unspecified


def odd(found: Address) -> str:
    """Why no network card can have this address although HCCL accepts it; '' if one can."""
    if found.is_unspecified:
        return "the address of nobody"
    if found.is_multicast:
        return "a multicast address"
    if found.is_loopback:
        return "a loopback address"
    return "the broadcast address" if found == _BROADCAST else ""
