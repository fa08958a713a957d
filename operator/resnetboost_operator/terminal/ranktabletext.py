"""Rank tables and verdicts as tables and phrases for a terminal; it reads no file and judges nothing."""

from collections.abc import Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table as Screen
from rich.text import Text

from resnetboost_operator import readable
from resnetboost_operator.ranktable import tables
from resnetboost_operator.ranktable.checking import Verdict
from resnetboost_operator.ranktable.chips import TITLES, Chip
from resnetboost_operator.ranktable.fields import printable
from resnetboost_operator.ranktable.findings import Finding
from resnetboost_operator.ranktable.tables import GroupTable, RankList, ServerTable

__all__ = ["ranks", "size", "verdict"]

_STYLES = {"error": "bold red", "warning": "yellow"}
_SHOWN_PLACES = 3
_NOTE = "What HCCL would say by its public parser and documents; it was not asked."


def verdict(name: str, found: Verdict) -> Iterator[RenderableType]:
    """The result first, then each broken rule, then what it rests on."""
    accepted, refused = found.accepted, tuple(chip for chip in found.chips if chip not in found.accepted)
    yield Text.assemble(f"{name}: ", *_result(accepted, refused), overflow="fold")
    if found.findings:
        yield ""
        yield _findings(found)
    yield Text(_NOTE, style="dim")


def _result(accepted: Sequence[Chip], refused: Sequence[Chip]) -> Iterator[tuple[str, str]]:
    if accepted:
        yield "accepted", "bold green"
        yield f" on {_chips(accepted)}", ""
    if accepted and refused:
        yield ", ", ""
    if refused:
        yield "refused", "bold red"
        yield f" on {_chips(refused)}", ""


def _chips(found: Sequence[Chip]) -> str:
    if len(found) == 1:
        return f"{found[0]} ({TITLES[found[0]]})"
    return f"{', '.join(found[:-1])} and {found[-1]}"


def _findings(found: Verdict) -> Screen:
    """A rule once, with its first place: a mistake is seldom made once only."""
    rules: dict[str, list[Finding]] = {}
    for finding in found.findings:
        rules.setdefault(f"{finding.rule.name}|{finding.rule.source}", []).append(finding)
    screen = Screen.grid(padding=(0, 2, 1, 0))
    screen.add_column(no_wrap=True)
    screen.add_column(overflow="fold")
    first = next((finding for finding in found.findings if finding.rule.stops), None)
    for held in rules.values():
        finding = held[0]
        limited = finding.chips if len(finding.chips) < len(found.chips) else ()
        screen.add_row(_severity(finding, limited), _finding(held, stops=finding is first and not limited))
    return screen


def _severity(finding: Finding, limited: Sequence[Chip]) -> RenderableType:
    word = Text(finding.severity, style=_STYLES[finding.severity])
    return Group(word, *(Text(f"on {chip}") for chip in limited))


def _finding(held: Sequence[Finding], *, stops: bool) -> RenderableType:
    finding, rule = held[0], held[0].rule
    lines = [Text(f"{finding.place} {finding.problem}".strip())]
    if len(held) > 1:
        lines.append(Text(f"also {_places(held[1:])}"))
    lines.append(Text(f"HCCL {'stops here' if stops else ''}".strip() + f": {rule.hccl}"))
    lines.append(Text(f"{rule.name}: {rule.source}", style="dim"))
    return Group(*lines, Text(f"→ {rule.remedy}"))


def _places(held: Sequence[Finding]) -> str:
    """The first few, for they may be thousands."""
    more = f" and {len(held) - _SHOWN_PLACES} more" if len(held) > _SHOWN_PLACES else ""
    return ", ".join(finding.place for finding in held[:_SHOWN_PLACES]) + more


def size(table: tables.Table) -> str:
    """Version, servers and ranks of a table."""
    if isinstance(table, RankList):
        return f"version {table.version}, {readable.plural(len(table.rank_list), 'rank')}"
    if isinstance(table, ServerTable):
        count = sum(len(server.device) for server in table.server_list)
        pods = table.super_pod_list or ()
        told = [f"version {table.version}", readable.plural(len(table.server_list), "server")]
        return ", ".join([*told, *([readable.plural(len(pods), "super pod")] if pods else []), _ranks(count)])
    instances = [instance for group in table.group_list for instance in group.instance_list]
    return f"template 2, {_ranks(sum(len(instance.devices) for instance in instances))}"


def _ranks(count: int) -> str:
    return readable.plural(count, "rank")


def ranks(table: tables.Table) -> Screen:
    """A line for each rank, sorted by it; columns that no rank has are left out."""
    rows = sorted(_rows(table), key=lambda row: (len(row["rank"]), row["rank"]))
    columns = [name for name in (rows[0] if rows else ()) if any(row[name] for row in rows)]
    screen = Screen(box=SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        screen.add_column(name, justify="right" if name in ("rank", "device", "local id") else "left", overflow="fold")
    for row in rows:
        screen.add_row(*(Text("\n".join(map(printable, row[name].split("\n")))) for name in columns))
    return screen


def _rows(table: tables.Table) -> Iterator[dict[str, str]]:
    if isinstance(table, ServerTable):
        yield from _server_rows(table)
    elif isinstance(table, RankList):
        yield from _rank_rows(table)
    else:
        yield from _group_rows(table)


def _server_rows(table: ServerTable) -> Iterator[dict[str, str]]:
    pods = {server.server_id: pod.super_pod_id for pod in table.super_pod_list or () for server in pod.server_list}
    for server in table.server_list:
        for device in server.device:
            yield {
                "rank": device.rank_id,
                "server": server.server_id,
                "device": device.device_id,
                "device ip": device.device_ip or "",
                "super pod": pods.get(server.server_id, ""),
                "super device": device.super_device_id or "",
                "host ip": server.host_ip or "",
            }


def _rank_rows(table: RankList) -> Iterator[dict[str, str]]:
    for rank in table.rank_list:
        yield {
            "rank": str(rank.rank_id),
            "local id": str(rank.local_id),
            "device": str(rank.device_id),
            "network layers": "\n".join(map(_layer, rank.level_list)),
        }


def _layer(level: tables.Level) -> str:
    addresses = "".join(f" {found.addr}" for found in level.rank_addr_list)
    return f"{level.net_layer}: {level.net_instance_id}{addresses}"


def _group_rows(table: GroupTable) -> Iterator[dict[str, str]]:
    found = [
        (instance, device)
        for group in table.group_list
        for instance in group.instance_list
        for device in instance.devices
    ]
    # Without rank ids HCCL numbers the ranks itself, by server and device (GetSortClouldRankList).
    ordered = sorted(found, key=lambda pair: (pair[0].server_id, len(pair[1].device_id), pair[1].device_id))
    for number, (instance, device) in enumerate(ordered):
        yield {
            "rank": instance.rank_id if instance.rank_id is not None else str(number),
            "server": instance.server_id,
            "device": device.device_id,
            "device ip": device.device_ip or "",
            "pod": instance.pod_name or "",
        }
