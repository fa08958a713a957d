"""Checks the super pods of version 1.2 (A3). Servers and devices are checked before, in `server_list`."""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from resnetboost_operator.ranktable.check import fields, rules
from resnetboost_operator.ranktable.check.fields import MOST_NUMBER, Record, quoted, record
from resnetboost_operator.ranktable.check.findings import Report
from resnetboost_operator.ranktable.check.ranks import Rank, by_server

MOST_SUPER_POD_ID = 127


def device(holder: Record, place: str, report: Report) -> int | None:
    """The super_device_id of one device; None if it has no usable one."""
    written = fields.text(holder, "super_device_id", place, report, required=False)
    if written is None:
        return None
    found = fields.natural(written, f"{place}super_device_id", report, rules.SUPER_DEVICE_ID)
    return None if found == MOST_NUMBER else found  # HCCL's own mark for "not set"


def check(document: dict[str, Any], ranks: Sequence[Rank], report: Report) -> None:
    """GetSuperPodList and CheckSuperPodInfo, then what only the document says."""
    if "super_pod_list" not in document:
        report.add(rules.SERVER_MODE, "super_pod_list", "is missing")
        return
    servers = by_server(ranks)
    pods = _pods(fields.entries(document, "super_pod_list", "", report), servers, report)
    if not pods:
        return
    _members(servers, pods, report)
    _devices(ranks, pods, report)
    _neighbours(servers, pods, report)


def _pods(found: Sequence[Any], servers: dict[str, list[Rank]], report: Report) -> dict[str, str]:
    """The super pod of each server_id that is in one."""
    seen: dict[str, str] = {}
    pods: dict[str, str] = {}
    for index, entry in enumerate(found):
        place = f"super_pod_list[{index}]"
        if not fields.is_object(entry, place, report):
            continue
        name = _name(record(entry), place, seen, report)
        members = fields.entries(record(entry), "server_list", f"{place}.", report)
        for position, member in enumerate(members):
            at = f"{place}.server_list[{position}]"
            if fields.is_object(member, at, report):
                _member(record(member), at, name, servers, pods, report)
    return pods


def _name(pod: Record, place: str, seen: dict[str, str], report: Report) -> str:
    name = fields.text(pod, "super_pod_id", f"{place}.", report, required=False)
    if not name:
        problem = f"is {quoted(pod['super_pod_id'])}" if "super_pod_id" in pod else "is missing"
        report.add(rules.SUPER_POD_ID, f"{place}.super_pod_id", problem)
        return place
    if len(name.encode()) > MOST_SUPER_POD_ID:
        report.add(rules.SUPER_POD_LONG, f"{place}.super_pod_id", f"has {len(name.encode())} bytes")
    if name in seen:
        report.add(rules.SUPER_POD_REPEATED, f"{place}.super_pod_id", f"{quoted(name)} is also that of {seen[name]}")
    seen.setdefault(name, place)
    return name


def _member(
    member: Record, place: str, pod: str, servers: dict[str, list[Rank]], pods: dict[str, str], report: Report
) -> None:
    name = fields.text(member, "server_id", f"{place}.", report)
    if name is None:
        return
    if name not in servers:
        report.add(rules.SUPER_POD_SERVER, f"{place}.server_id", f"{quoted(name)} is not in server_list")
    elif name in pods:
        report.add(
            rules.SUPER_POD_TWICE, f"{place}.server_id", f"{quoted(name)} is in super pod {quoted(pods[name])} too"
        )
    else:
        pods[name] = pod


def _members(servers: dict[str, list[Rank]], pods: dict[str, str], report: Report) -> None:
    for name, ranks in servers.items():
        if name not in pods:
            report.add(rules.SUPER_POD_WITHOUT, ranks[0].server, f"{quoted(name)} is in no super pod")


def _devices(ranks: Sequence[Rank], pods: dict[str, str], report: Report) -> None:
    seen: dict[tuple[str, int], str] = {}
    for rank in ranks:
        pod = pods.get(rank.server_id)
        if pod is None:
            continue
        if rank.super_device is None:
            report.add(
                rules.SUPER_DEVICE_MISSING, f"{rank.place}.super_device_id", "is no id of a device in the super pod"
            )
        elif (pod, rank.super_device) in seen:
            problem = f"is {rank.super_device}, as that of {seen[pod, rank.super_device]} in super pod {quoted(pod)}"
            report.add(rules.SUPER_DEVICE_REPEATED, f"{rank.place}.super_device_id", problem)
        else:
            seen[pod, rank.super_device] = rank.place


def _neighbours(servers: dict[str, list[Rank]], pods: dict[str, str], report: Report) -> None:
    """All servers of a super pod stand together in server_list."""
    runs = [pod for pod, _ in groupby(pods[name] for name in servers if name in pods)]
    for pod, count in Counter(runs).items():
        if count > 1:
            report.add(
                rules.SUPER_POD_SPLIT, "server_list", f"has servers of super pod {quoted(pod)} in several places"
            )
