"""Rank tables and verdicts as tables and phrases for a terminal; it reads no file and judges nothing."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table as Screen
from rich.text import Text

from resnetboost_operator import readable
from resnetboost_operator.ranktable import tables
from resnetboost_operator.ranktable.check.fields import printable
from resnetboost_operator.ranktable.check.findings import Finding, grouped
from resnetboost_operator.ranktable.check.verdict import Verdict
from resnetboost_operator.ranktable.chips import TITLES, Chip
from resnetboost_operator.ranktable.tables import GroupTable, RankList, ServerTable

__all__ = ["MOST_SHOWN", "ranks", "size", "told", "verdict"]

_STYLES = {"error": "bold red", "warning": "yellow"}
MOST_SHOWN = 20  # a mistake may be made thousands of times
_SHOWN_PLACES = 3
_PLACES = re.compile(r'"[^"]*"|(?<![.\w])(?:server_list|rank_list)\[[0-9]+\](?:\.device\[[0-9]+\])?')
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
    rules: dict[tuple[str, str, str], list[list[Finding]]] = {}
    for held in grouped(found.findings):
        rule = held[0].rule
        rules.setdefault((rule.severity, rule.name, rule.remedy), []).append(held)
    screen = Screen.grid(padding=(0, 2, 1, 0))
    screen.add_column(no_wrap=True)
    screen.add_column(overflow="fold")
    firsts = _firsts(found)
    shown = list(rules.values())[:MOST_SHOWN]
    for places in shown:
        chips = _in_order(found, (finding for held in places for finding in held))
        limited = chips if len(chips) < len(found.chips) else ()
        screen.add_row(_severity(places[0][0], limited), _finding(places, found, firsts))
    more = sum(map(len, list(rules.values())[MOST_SHOWN:]))
    if more:
        screen.add_row("", f"and {more} more")
    return screen


def _firsts(found: Verdict) -> dict[Chip, Finding]:
    """Where HCCL stops, on each chip."""
    firsts: dict[Chip, Finding] = {}
    for finding in found.findings:
        if finding.rule.stops:
            for chip in finding.chips:
                firsts.setdefault(chip, finding)
    return firsts


def _in_order(found: Verdict, findings: Iterable[Finding]) -> tuple[Chip, ...]:
    concerned = {chip for finding in findings for chip in finding.chips}
    return tuple(chip for chip in found.chips if chip in concerned)


def _severity(finding: Finding, limited: Sequence[Chip]) -> RenderableType:
    word = Text(finding.severity, style=_STYLES[finding.severity])
    return Group(word, *(Text(f"on {chip}") for chip in limited))


def _finding(places: Sequence[Sequence[Finding]], found: Verdict, firsts: Mapping[Chip, Finding]) -> RenderableType:
    """All that one rule finds: its places once each, and where chips differ what each has to say."""
    first, rule = places[0], places[0][0].rule
    lines = [Text(_problem(first))]
    if len(places) > 1:
        lines.append(Text(f"also {_places(places[1:])}"))
    variants: dict[tuple[str, str], list[Finding]] = {}
    for finding in (finding for held in places for finding in held):
        variants.setdefault((finding.rule.hccl, finding.rule.source), []).append(finding)
    for (hccl, source), held in variants.items():
        chips = _in_order(found, held)
        on = f" on {_listed(chips)}" if len(variants) > 1 else ""
        stops = " stops here" if all(any(firsts.get(chip) is each for each in held) for chip in chips) else ""
        lines.append(Text(f"HCCL{on}{stops}: {hccl}"))
        lines.append(Text(f"{rule.name}: {source}", style="dim"))
    return Group(*lines, Text(f"→ {rule.remedy}"))


def _problem(held: Sequence[Finding]) -> str:
    """What is wrong at one place; each chip's own words if they differ."""
    problems: dict[str, list[Chip]] = {}
    for finding in held:
        problems.setdefault(finding.problem, []).extend(finding.chips)
    if len(problems) == 1:
        return f"{held[0].place} {held[0].problem}".strip()
    return f"{held[0].place} " + "; ".join(f"on {_listed(chips)} {problem}" for problem, chips in problems.items())


def _listed(chips: Sequence[Chip]) -> str:
    return " and ".join([", ".join(chips[:-1]), chips[-1]] if len(chips) > 1 else chips)


def _places(held: Sequence[Sequence[Finding]]) -> str:
    """The first few, for they may be thousands."""
    more = f" and {len(held) - _SHOWN_PLACES} more" if len(held) > _SHOWN_PLACES else ""
    return ", ".join(each[0].place for each in held[:_SHOWN_PLACES]) + more


def told(held: Sequence[Finding], found: Verdict, origins: Mapping[str, str]) -> str:
    """One sentence about one place, with the file and the place where a merged table's part was before."""
    variants: dict[tuple[str, str], list[Finding]] = {}
    for finding in held:
        variants.setdefault((finding.rule.hccl, finding.rule.source), []).append(finding)
    several = len(variants) > 1
    what = [
        f"HCCL{f' on {_listed(_in_order(found, each))}' if several else ''}: {hccl}; {source}"
        for (hccl, source), each in variants.items()
    ]
    problem = _PLACES.sub(lambda match: origins.get(match[0], match[0]), _problem(held))
    return f"{problem} ({held[0].rule.name}; {'; '.join(what)}); {held[0].rule.remedy}"


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
