"""A real API server accepts every rendered object, including the Prometheus operator's kinds."""

from pathlib import Path

import pytest

from beds.cluster import ClusterError, ControlPlane, monitoringkinds
from beds.cluster.helm import CHART, Helm
from chart.rendered import CI_VALUES

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", ["serviceMonitor", "podMonitor", "prometheusRule"])
def test_a_monitor_without_its_kind_is_refused_in_a_sentence(
    plane: ControlPlane, helm: Helm, release_namespace: str, kind: str
) -> None:
    """Runs before the fixture that installs these kinds."""
    with pytest.raises(ClusterError) as refused:
        helm(
            *("install", "resnetboost", CHART, f"--namespace={release_namespace}"),
            f"--set=monitoring.{kind}.enabled=true",
        )
    name = kind[0].upper() + kind[1:]
    sentence = (
        f"monitoring.{kind}.enabled is true, but the cluster does not know the kind {name}: install the Prometheus"
    )
    assert sentence in str(refused.value)


@pytest.fixture(scope="module")
def monitoring_kinds(plane: ControlPlane) -> None:
    """Install the Prometheus operator's CRDs."""
    monitoringkinds.create(plane)


@pytest.mark.usefixtures("monitoring_kinds")
@pytest.mark.parametrize("values", CI_VALUES, ids=lambda path: path.stem.removesuffix("-values"))
def test_every_object_is_valid(plane: ControlPlane, helm: Helm, release_namespace: str, values: Path) -> None:
    text = helm("template", "resnetboost", CHART, f"--namespace={release_namespace}", f"--values={values}")
    said = plane.kubectl("apply", "--server-side", "--dry-run=server", "--validate=strict", "--filename=-", input=text)
    assert len(said.splitlines()) == text.count("\n# Source: ")


@pytest.mark.usefixtures("monitoring_kinds")
def test_monitors_come_by_themselves_where_their_kinds_are(helm: Helm, release_namespace: str) -> None:
    where = f"--namespace={release_namespace}"
    text = helm("install", "resnetboost", CHART, where, "--dry-run=server", "--take-ownership")
    for kind in monitoringkinds.KINDS:
        assert f"\nkind: {kind}\n" in text
