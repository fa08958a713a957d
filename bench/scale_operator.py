"""The operator's CPU time, memory and requests by kind so far, from its own metrics and from /proc."""

import re
from pathlib import Path
from typing import Self

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from beds.operator import Operator

_REQUESTS = "resnetboost_operator_api_requests_total"
_CPU = "process_cpu_seconds_total"
_READING = ("get", "list", "watch")


class Costs(msgspec.Struct, frozen=True):
    """Sums since the operator's start. `writes` excludes events and leases.

    `upkeep` counts requests for leases and watches, `others` all other reads and writes.
    """

    cpu_seconds: float
    writes: float
    status_writes: float
    events: float
    upkeep: float
    others: float

    def __sub__(self, before: Self) -> "Costs":
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(before), strict=True)
        return Costs(*(after - earlier for after, earlier in pairs))


class Meter:
    """Reads the costs of one operator."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    def costs(self) -> Costs:
        """Costs so far."""
        families = text_string_to_metric_families(self._operator.answer("/metrics"))
        samples = [sample for family in families for sample in family.samples]
        requests = [
            (found.labels["verb"], found.labels["resource"], found.value)
            for found in samples
            if found.name == _REQUESTS
        ]
        upkeep = sum(count for verb, resource, count in requests if resource == "leases" or verb == "watch")
        changes = [(what, count) for verb, what, count in requests if verb not in _READING and what != "leases"]
        return Costs(
            cpu_seconds=sum(found.value for found in samples if found.name == _CPU),
            writes=sum(count for what, count in changes if what != "events"),
            status_writes=sum(count for what, count in changes if what.endswith("/status")),
            events=sum(count for what, count in changes if what == "events"),
            upkeep=upkeep,
            others=sum(count for _, _, count in requests) - upkeep,
        )

    def peak_mib(self) -> float:
        """Peak resident memory, MiB."""
        status = Path(f"/proc/{self._operator.pid}/status").read_text()
        (kib,) = re.findall(r"VmHWM:\s+(\d+) kB", status)
        return int(kib) / 1024
