"""What a check found, and the report it writes into; it judges nothing."""

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
        """Error: the table does not work on these chips. Warning: it does, but not as it should be."""
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
        """Note a broken rule."""
        self.findings.append(Finding(rule, place, problem, (self.chip,)))


def grouped(findings: Iterable[Finding]) -> list[list[Finding]]:
    """What is wrong at one place, together for all chips: they may have words and errors of their own for it."""
    groups: dict[tuple[str, str, str, str], list[Finding]] = {}
    for finding in findings:
        rule = finding.rule
        groups.setdefault((rule.severity, rule.name, rule.remedy, finding.place), []).append(finding)
    return [sorted(held, key=lambda finding: chips.ALL.index(finding.chips[0])) for held in groups.values()]


def errors(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Those that refuse the table."""
    return tuple(finding for finding in findings if finding.severity == "error")
