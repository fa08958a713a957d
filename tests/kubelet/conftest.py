"""Fixtures: one real node with the operator installed, shared by this folder; skips where that is impossible."""

import os
import uuid
from collections.abc import Generator, Iterator

import pytest

from beds import kubelet
from beds.cluster import ClusterError, build
from beds.kubelet import Bed, operatorpod
from beds.operator import Space
from beds.prometheus.operator import PrometheusOperator

_PATIENCE_SECONDS = 420.0  # a gang starts in 20 s on idle cores, in minutes on busy ones
# Shorter intervals than the defaults, so that tests soon see what Prometheus sees.
SCRAPED_OFTEN = [f"--set=monitoring.{monitor}.interval=1s" for monitor in ("serviceMonitor", "podMonitor")]
_BED = pytest.StashKey[Bed]()


@pytest.fixture(scope="session")
def bed(pytestconfig: pytest.Config) -> Iterator[Bed]:
    """A ready node; skips if that is impossible, but never in CI."""
    if reason := kubelet.unavailable():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"no node to test with: {reason}")
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():  # building takes minutes: show its progress
        build.programs(build.HELM)
        bed = Bed()
        bed.__enter__()
    try:
        pytestconfig.stash[_BED] = bed
        yield bed
    finally:
        bed.__exit__(None, None, None)


@pytest.fixture(scope="session")
def prometheus_operator(pytestconfig: pytest.Config, bed: Bed) -> PrometheusOperator:
    """The Prometheus operator, which must be there before the chart is: only then does that have monitors."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        build.programs(build.MONITORING)
    started = PrometheusOperator(bed.plane)
    started.start()
    return started


@pytest.fixture(scope="session")
def operator(pytestconfig: pytest.Config, bed: Bed, prometheus_operator: PrometheusOperator) -> None:
    """The operator, installed with helm."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        operatorpod.deploy(bed.plane, *SCRAPED_OFTEN)


@pytest.fixture
def space(bed: Bed, operator: None) -> Iterator[Space]:
    """A new namespace with long timeouts: real containers start in it."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    bed.plane.client.send("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    bed.plane.processes.wait_until(lambda: bed.plane.client.answers(account), account)
    space = Space(bed.plane, name, _PATIENCE_SECONDS)
    yield space
    space.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show pods, events and the operator's log with a failure."""
    report = yield
    bed = item.config.stash.get(_BED, None)
    if report.failed and bed is not None:
        for what in (["get", "pods", "-A", "-o", "wide"], ["get", "events", "-A", "--sort-by=.lastTimestamp"]):
            report.sections.append((" ".join(what), _told(bed, what)))
        report.sections.append(("the operator's log", _told(bed, None)))
    return report


def _told(bed: Bed, what: list[str] | None) -> str:
    try:
        return bed.plane.kubectl(*what)[-6000:] if what else operatorpod.log(bed.plane)
    except ClusterError as error:
        return str(error)
