"""The Prometheus test bed: scrapes, query errors, and nothing left behind however its owner ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from beds import prometheus as prometheusbed
from beds.cluster import ClusterError
from beds.operator.wait import eventually
from beds.prometheus import Prometheus

TESTS = Path(__file__).parents[1]
CONFIGURATION = {"scrape_configs": [{"job_name": "nobody", "static_configs": [{"targets": ["127.0.0.1:1"]}]}]}
OWNER = """
import signal
from beds import prometheus as prometheusbed
with prometheusbed.Prometheus({}) as prometheus:
    print(prometheus.folder, flush=True)
    signal.pause()
"""


@pytest.fixture(autouse=True)
def needed() -> None:
    if reason := prometheusbed.unavailable():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)


def test_it_scrapes_targets_and_reports_query_errors() -> None:
    with Prometheus({**CONFIGURATION, "global": {"scrape_interval": "1s"}}) as prometheus:
        prometheus.processes.wait_until(lambda: bool(prometheus.api.instant("up")), "a scrape")
        assert [(one.labels["job"], one.last) for one in prometheus.api.instant("up")] == [("nobody", 0)]
        assert prometheus.api.instant("up / up") == []  # 0 / 0 is no data
        with pytest.raises(ClusterError, match="unclosed left parenthesis"):
            prometheus.api.instant("rate(up")


def test_nothing_stays_after_a_kill() -> None:
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    with subprocess.Popen([sys.executable, "-c", OWNER], env=environment, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout
        folder = Path(owner.stdout.readline().strip())
        assert command_lines(folder)
        owner.send_signal(signal.SIGKILL)
    eventually(lambda: [*command_lines(folder), folder.exists()], lambda left: left == [False], "nothing is left")


def command_lines(folder: Path) -> list[str]:
    """Command lines of processes that name the folder."""
    return [line for process in Path("/proc").glob("[0-9]*") if str(folder) in (line := command_line(process))]


def command_line(process: Path) -> str:
    try:
        return (process / "cmdline").read_text(errors="replace")
    except OSError:  # it has ended meanwhile
        return ""
