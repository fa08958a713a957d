"""Fixtures: helm, and a control plane without the ResNetBoostJob CRD, which the chart installs."""

import os
import uuid
from collections.abc import Iterator, Sequence

import pytest

from beds.cluster import ControlPlane, build
from beds.cluster.helm import Helm


def build_programs(pytestconfig: pytest.Config, names: Sequence[str]) -> None:
    """Build helm and the control plane; skip if that is impossible, but never in CI."""
    if reason := build.unavailable(names):
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"no helm to test with: {reason}")
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():  # building takes minutes: show its progress
        build.programs(names)


@pytest.fixture(scope="session")
def offline_helm(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """helm without a cluster."""
    build_programs(pytestconfig, build.HELM)
    return Helm(tmp_path_factory.mktemp("helm"), {})


@pytest.fixture(scope="session")
def shared_plane(pytestconfig: pytest.Config) -> Iterator[ControlPlane]:
    """A cluster whose pods kwok pretends to run."""
    build_programs(pytestconfig, (*build.CONTROL_PLANE, *build.HELM, "kwok"))
    with ControlPlane(with_audit=True) as plane:
        plane.add_kwok_nodes(2)
        yield plane


@pytest.fixture(scope="module")
def plane(shared_plane: ControlPlane) -> Iterator[ControlPlane]:
    """The cluster; the kinds that a module's tests have installed are gone for those of the next."""
    yield shared_plane
    shared_plane.kubectl("delete", "customresourcedefinitions", "--all")


@pytest.fixture(scope="module")
def helm(plane: ControlPlane) -> Helm:
    """helm as the cluster's administrator."""
    return Helm.of(plane)


@pytest.fixture
def release_namespace(plane: ControlPlane) -> Iterator[str]:
    """A new namespace that only admits "restricted" pods."""
    name = add_namespace(plane, {"pod-security.kubernetes.io/enforce": "restricted"})
    yield name
    plane.client.send("DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture
def namespaces(plane: ControlPlane) -> Iterator[Iterator[str]]:
    """A function that creates new namespaces."""
    names: list[str] = []

    def fresh() -> Iterator[str]:
        while True:
            names.append(add_namespace(plane, {}))
            yield names[-1]

    yield fresh()
    for name in names:
        plane.client.send("DELETE", f"/api/v1/namespaces/{name}")
        plane.client.send("DELETE", f"/api/v1/namespaces/{name}/pods", {"gracePeriodSeconds": 0})


def add_namespace(plane: ControlPlane, labels: dict[str, str]) -> str:
    """Create a namespace with its service account."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    plane.client.send("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    plane.processes.wait_until(lambda: plane.client.answers(account), account)
    return name
