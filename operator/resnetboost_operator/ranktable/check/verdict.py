"""The verdict on a rank table: what HCCL would report, on one chip or on every chip that reads the version."""

from collections.abc import Sequence

import msgspec

from resnetboost_operator.ranktable import chips, document
from resnetboost_operator.ranktable.check import group_list, rank_list, rules, server_list
from resnetboost_operator.ranktable.check.fields import quoted
from resnetboost_operator.ranktable.check.findings import Finding, Report, errors
from resnetboost_operator.ranktable.chips import Chip
from resnetboost_operator.ranktable.document import Document

__all__ = ["Verdict", "check", "judge", "judge_bytes"]

# The chips whose documents have the version; "" is template 2.
# STRING_MAX_LENGTH; on a 950 it is 1 GiB. HCCL counts a string's white space, and a file's not: no table is that large.
_MOST_BYTES = 40 << 20
_CHIPS: dict[str, tuple[Chip, ...]] = {"1.0": ("910A", "910B", "A3"), "1.2": ("A3",), "2.0": ("950",), "": ("910A",)}


class Verdict(msgspec.Struct, frozen=True):
    """The findings, in HCCL's order, and the chips checked."""

    findings: tuple[Finding, ...]
    chips: tuple[Chip, ...]

    @property
    def accepted(self) -> tuple[Chip, ...]:
        """The chips on which nothing refuses the table."""
        refused = {chip for finding in errors(self.findings) for chip in finding.chips}
        return tuple(chip for chip in self.chips if chip not in refused)


def judge_bytes(data: bytes, chip: Chip | None = None) -> Verdict:
    """The verdict on a file's content; content that is no JSON object is a finding."""
    looked_at = (chip,) if chip else chips.ALL
    if len(data) > document.MAX_BYTES:
        return Verdict(_too_long(len(data), looked_at), looked_at)
    try:
        table = document.parse(data)
    except document.DocumentError as error:
        return Verdict((Finding(rules.JSON, "", str(error), looked_at),), looked_at)
    verdict = judge(table, chip)
    return Verdict(_too_long(len(data), verdict.chips) + verdict.findings, verdict.chips)


def _too_long(size: int, looked_at: tuple[Chip, ...]) -> tuple[Finding, ...]:
    """Check the size against each chip's limit and this check's own."""
    found: list[Finding] = []
    limited = tuple(chip for chip in looked_at if chip != "950")
    if limited and size > _MOST_BYTES:
        found.append(Finding(rules.SIZE, "", f"it has {size} bytes, more than {_MOST_BYTES}", limited))
    if "950" in looked_at and size > document.MAX_BYTES:
        found.append(Finding(rules.UNREAD, "", f"it has {size} bytes, more than {document.MAX_BYTES}", ("950",)))
    return tuple(found)


def judge(table: Document, chip: Chip | None = None) -> Verdict:
    """The verdict on one chip, or on all whose documents have the table's version."""
    looked_at = (chip,) if chip else _CHIPS.get(_likely_version(table), chips.ALL)
    return Verdict(_merged([check(table, chip) for chip in looked_at]), looked_at)


def _likely_version(table: Document) -> str:
    """The version a table has or should have; '?' if it has none that anybody knows."""
    if "version" in table:
        return table["version"] if isinstance(table["version"], str) and table["version"] else "?"
    if "server_list" in table and "group_list" not in table:
        return "1.0"
    return "2.0" if "rank_list" in table else ""


_Key = tuple[str, str, str, str]


def _merged(found: Sequence[Sequence[Finding]]) -> tuple[Finding, ...]:
    """Merge the findings of several chips: equal ones become one that lists its chips."""
    merged: dict[_Key, Finding] = {}
    for findings in found:
        merged = _with(merged, findings)
    return tuple(merged.values())


def _with(merged: dict[_Key, Finding], findings: Sequence[Finding]) -> dict[_Key, Finding]:
    """Merge the findings of one more chip, keeping each chip's order."""
    fresh: dict[_Key, dict[_Key, Finding]] = {}
    pending: dict[_Key, Finding] = {}
    for finding in findings:
        key = (finding.rule.name, finding.rule.source, finding.place, finding.problem)
        known = merged.get(key)
        if known is None:
            pending.setdefault(key, finding)
        elif not set(finding.chips) & set(known.chips):
            merged[key] = msgspec.structs.replace(known, chips=known.chips + finding.chips)
            fresh[key], pending = pending, {}
    ordered: dict[_Key, Finding] = {}
    for key, finding in merged.items():
        ordered.update(fresh.get(key, {}))
        ordered[key] = finding
    return ordered | pending


def check(table: Document, chip: Chip) -> tuple[Finding, ...]:
    """What one chip's HCCL would find, and what its documents forbid."""
    report = Report(chip)
    if chip == "950":
        _newer(table, report)
    elif _status(table, report):
        _older(table, report)
    return tuple(report.findings)


def _newer(table: Document, report: Report) -> None:
    """RankTableInfo reads version 2.0 alone."""
    if "version" not in table:
        report.add(rules.V2_MISSING, "version", "is missing")
    elif not isinstance(table["version"], str):
        report.add(rules.V2_TYPE, "version", f"is {quoted(table['version'])}, not a string")
    elif table["version"] != "2.0" and "rank_count" not in table:
        report.add(rules.V2_OLDER, "version", f"is {quoted(table['version'])}; an Ascend 950 reads 2.0")
    else:
        rank_list.check(table, report)


def _status(table: Document, report: Report) -> bool:
    """RefreshStatus comes first; a table that never completes is still worth looking at."""
    if "status" not in table:
        report.add(rules.STATUS, "status", "is missing")
    elif not isinstance(table["status"], str):
        report.add(rules.NOT_TEXT, "status", f"is {quoted(table['status'])}, not a string")
    elif table["status"] != "completed":
        report.add(rules.NOT_COMPLETED, "status", f"is {quoted(table['status'])}")
        return "server_list" in table or "group_list" in table or "rank_list" in table
    return True


def _older(table: Document, report: Report) -> None:
    """CfgGetClusterInfo picks the parser by the version."""
    if "version" not in table:
        group_list.check(table, report)
        return
    version = table["version"]
    if version in ("1.0", "1.2"):
        server_list.check(table, version, report)
    elif version == "1.1":
        report.add(rules.HETEROGENEOUS, "version", 'is "1.1", the template of heterogeneous clusters')
    elif not isinstance(version, str):
        report.add(rules.VERSION_TYPE, "version", f"is {quoted(version)}, not a string")
    else:
        wanted = "an Ascend 950" if version == "2.0" else "no chip"
        report.add(rules.VERSION, "version", f"is {quoted(version)}, which {wanted} reads")
