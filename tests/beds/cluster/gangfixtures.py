"""Fixtures for pytest: one cluster with a gang scheduler for the whole session, a namespace and devices for each test.

It is a newer Kubernetes than that of the other tests, which is built only when a test asks for `gang_cluster`: they
have the mark `long`, and their files' names begin with test_gang_, so that one worker runs them all.
"""

from collections.abc import Iterator, Mapping

import pytest

from beds.cluster import build, namespaces, releases
from beds.cluster.controlplane import ControlPlane
from beds.cluster.fixtures import CRD, build_or_skip
from beds.cluster.nodes import RESOURCE


class DeviceNodes:
    """Adds nodes that offer `RESOURCE`; kwok runs their pods."""

    def __init__(self, plane: ControlPlane, prefix: str) -> None:
        self._plane = plane
        self._prefix = prefix
        self._names: list[str] = []

    def add(self, count: int, devices: int = 1, labels: Mapping[str, str] | None = None) -> list[str]:
        """Add nodes with so many devices each; returns their names."""
        names = [f"{self._prefix}-{len(self._names) + number}" for number in range(count)]
        for name in names:
            self._plane.add_kwok_node(name, {RESOURCE: str(devices)}, labels)
            self._names.append(name)
        return names

    def remove(self) -> None:
        """Remove all of them."""
        for name in self._names:
            self._plane.client.send("DELETE", f"/api/v1/nodes/{name}")


@pytest.fixture(scope="session")
def gang_cluster(pytestconfig: pytest.Config) -> Iterator[ControlPlane]:
    """Kubernetes with PodGroups, and no nodes; it knows ResNetBoostJobs and writes down requests."""
    build_or_skip(pytestconfig, (*build.GANG_CONTROL_PLANE, "kwok"))
    with ControlPlane(crds=[CRD], with_audit=True, release=releases.WITH_GANGS) as plane:
        yield plane


@pytest.fixture
def gang_namespace(gang_cluster: ControlPlane) -> Iterator[str]:
    """A fresh namespace in the cluster with a gang scheduler."""
    with namespaces.fresh(gang_cluster) as name:
        yield name


@pytest.fixture
def device_nodes(gang_cluster: ControlPlane, gang_namespace: str) -> Iterator[DeviceNodes]:
    """The only nodes of that cluster while the test runs: the test adds them."""
    nodes = DeviceNodes(gang_cluster, gang_namespace)
    yield nodes
    nodes.remove()
