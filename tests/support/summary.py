"""Summary at the end of a test run: skips with reasons, duration, and the slowest files.

A pytest plugin. With workers (pytest-xdist) their reports reach the process that prints.
"""

import collections
import time
from typing import Any

import pytest

SLOWEST = 10
_LEFT_OUT = "left_out"


class Summary:
    """Collects reports and prints the summary."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._started = time.monotonic()
        self._seconds: collections.defaultdict[str, float] = collections.defaultdict(float)
        self._skipped: list[str] = []
        self._left_out = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the report of a test's setup, call or teardown."""
        path = report.nodeid.partition("::")[0]
        self._seconds[path] += report.duration
        if report.skipped and isinstance(report.longrepr, tuple) and not hasattr(report, "wasxfail"):
            self._skipped.append(f"{report.nodeid}: {report.longrepr[2].removeprefix('Skipped: ')}")

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        """Count tests that the chosen markers deselect. A worker reports the number when it ends."""
        self._left_out += len(items)
        if (output := getattr(self._config, "workeroutput", None)) is not None:
            output[_LEFT_OUT] = self._left_out

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Take the number from a worker: all of them deselect the same tests."""
        self._left_out = max(self._left_out, getattr(node, "workeroutput", {}).get(_LEFT_OUT, 0))

    def _slowest(self) -> list[tuple[str, float]]:
        return sorted(self._seconds.items(), key=lambda item: -item[1])[:SLOWEST]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the summary."""
        for title, lines in (
            ("skipped", sorted(self._skipped)),
            ("slowest files", [f"{seconds:7.1f} s  {path}" for path, seconds in self._slowest()]),
        ):
            if lines:
                terminalreporter.section(title)
                for line in lines:
                    terminalreporter.line(" ".join(line.split()) if title == "skipped" else line)
        minutes, seconds = divmod(round(time.monotonic() - self._started), 60)
        left_out = (
            f"; {self._left_out} {'test' if self._left_out == 1 else 'tests'} left out, `make test-all` runs all"
            if self._left_out
            else ""
        )
        terminalreporter.line(f"took {minutes} min {seconds} s{left_out}")


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin."""
    config.pluginmanager.register(Summary(config), "summary of the run")
