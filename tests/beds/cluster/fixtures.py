"""Pytest fixtures: one control plane per session, with a namespace per test."""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from beds.cluster import build
from beds.cluster.controlplane import ControlPlane

_PROGRAMS = (*build.CONTROL_PLANE, "kwok")
CRD = Path(__file__).parents[3] / "crds" / "resnetboostjobs.yaml"


@pytest.fixture(scope="session")
def programs(pytestconfig: pytest.Config) -> None:
    """Build the test bed's programs; skip if that is impossible, but never in CI."""
    if reason := build.unavailable(_PROGRAMS):
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"no Kubernetes to test with: {reason}")
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():  # building takes minutes: show its progress
        build.programs(_PROGRAMS)


@pytest.fixture(scope="session")
def control_plane(programs: None) -> Iterator[ControlPlane]:
    """A control plane with the ResNetBoostJob CRD that logs requests."""
    with ControlPlane(crds=[CRD], with_audit=True) as plane:
        yield plane


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    """A new namespace; deleted afterwards in the background, with its pods, while the next test runs."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    path = f"/api/v1/namespaces/{name}"
    control_plane.client.send("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    account = f"{path}/serviceaccounts/default"
    control_plane.processes.wait_until(lambda: control_plane.client.answers(account), account)  # needed by pods
    yield name
    control_plane.client.send("DELETE", path)
    # Without a kubelet, nothing else would confirm that bound pods are gone.
    control_plane.client.send("DELETE", f"{path}/pods", {"gracePeriodSeconds": 0})
