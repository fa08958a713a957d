#!/usr/bin/env python3
"""Looks for known vulnerabilities of every locked package with pip-audit: `make audit`.

Its source is the package index. Many mirrors serve packages without that data, and pip-audit then finds nothing wrong
with anything: so a package that the index knows nothing about counts as not looked at, and if that is all of them, this
says so in capitals instead of passing in silence. Exit codes: 0 nothing found or nothing to ask, 1 vulnerabilities.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
TOOLS = ROOT / "build" / "audit-tools"
UV = Path(sys.executable).parent / "uv"
LOCKS = (
    "requirements.lock",
    "scripts/release.lock",
    "scripts/audit.lock",
    *(f"images/locks/{name}.lock" for name in ("build", "cuda", "operator", "trainer")),
)
# Vulnerabilities that do not concern this project: their id, and why.
ACCEPTED: dict[str, str] = {}
_SECONDS = 600


class Finding(NamedTuple):
    """A known vulnerability of a locked package; `fixed` are versions without it."""

    package: str
    identifier: str
    fixed: tuple[str, ...]


def main() -> None:
    """Ask, and print one line per finding."""
    _install()
    looked, unknown, findings = 0, 0, set[Finding]()
    for lock in LOCKS:
        report = _report(ROOT / lock)
        if report is None:
            _give_up("the index cannot be reached")
            return
        found = report["dependencies"]
        unknown += sum("skip_reason" in package for package in found)
        looked += sum("skip_reason" not in package for package in found)
        findings.update(_findings(found))
    if looked == 0:
        _give_up("the index serves no vulnerability data")
        return
    for finding in sorted(findings):
        remedy = f"use {' or '.join(finding.fixed)}" if finding.fixed else "there is no fixed version yet"
        print(f"audit: {finding.package} has {finding.identifier}; {remedy}")
    print(f"audit: {len(findings)} vulnerabilities in {looked} locked packages; nothing known about {unknown} others")
    sys.exit(bool(findings))


def _install() -> None:
    if not (TOOLS / "bin" / "pip-audit").exists():
        _run(UV, "venv", "--quiet", "--clear", "--python", sys.executable, TOOLS)
        lock = ROOT / "scripts" / "audit.lock"
        _run(UV, "pip", "sync", "--quiet", "--require-hashes", "--python", TOOLS / "bin" / "python", lock)


def _report(lock: Path) -> dict[str, Any] | None:
    """pip-audit's report about a lock file; None if the index cannot be asked."""
    options = ("--format=json", "--progress-spinner=off", "--disable-pip", "--no-deps", "--requirement", str(lock))
    done = subprocess.run(
        [TOOLS / "bin" / "pip-audit", *options], capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    try:
        report: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        print(f"audit: pip-audit ended with {done.returncode}: {done.stderr.strip()[-500:]}", file=sys.stderr)
        return None
    return report


def _findings(packages: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    for package in packages:
        for found in package.get("vulns", ()):
            if not {found["id"], *found["aliases"]} & ACCEPTED.keys():
                yield Finding(f"{package['name']} {package['version']}", found["id"], tuple(found["fix_versions"]))


def _give_up(reason: str) -> None:
    line = "=" * 80
    print(f"{line}\nSKIPPED: no package was checked for known vulnerabilities, because {reason}.", file=sys.stderr)
    print(f"Run `make audit` where the public index is reachable, before a release.\n{line}", file=sys.stderr)


def _run(*words: str | Path) -> None:
    command: Sequence[str] = [str(word) for word in words]
    if code := subprocess.run(command, check=False).returncode:
        sys.exit(f"make audit: failed with {code}: {' '.join(command)}")


if __name__ == "__main__":
    main()
