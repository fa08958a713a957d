"""Findings of a check, and the report that collects them."""

from collections.abc import Iterable

import msgspec

from resnetboost_operator.ranktable import chips
from resnetboost_operator.ranktable.check.rules import Rule, Severity
from resnetboost_operator.ranktable.chips import Chip


class Finding(msgspec.Struct, frozen=True):
    """One rule broken at one place of the table, as `server_list[1].device[0].device_ip`."""

    rule: Rule
    place: str
    problem: str
    chips: tuple[Chip, ...]

    @property
    def severity(self) -> Severity:
        """error: the table does not work on these chips. warning: it works, but not as intended."""
        return self.rule.severity

    def __str__(self) -> str:
        """One sentence: place, value, rule, HCCL's error, source and remedy."""
        place = f"{self.place} " if self.place else ""
        rule = self.rule
        return f"{place}{self.problem} ({rule.name}; HCCL: {rule.hccl}; {rule.source}); {rule.remedy}"


class Report:
    """Collects findings in the order in which HCCL would come across them on one chip."""

    def __init__(self, chip: Chip) -> None:
        self.chip: Chip = chip
        self.findings: list[Finding] = []

    def add(self, rule: Rule, place: str, problem: str) -> None:
        """Add a finding."""
        self.findings.append(Finding(rule, place, problem, (self.chip,)))


def grouped(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Findings of the same rule and place, grouped over the chips, whose messages may differ."""
    groups: dict[tuple[str, str, str, str], list[Finding]] = {}
    for finding in findings:
        rule = finding.rule
        groups.setdefault((rule.severity, rule.name, rule.remedy, finding.place), []).append(finding)
    return [sorted(held, key=lambda finding: chips.ALL.index(finding.chips[0])) for held in groups.values()]


def errors(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The findings of severity error."""
    return tuple(finding for finding in findings if finding.severity == "error")
