"""Pytest fixtures: one control plane per session, with a namespace per test."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from beds.cluster import build, namespaces
from beds.cluster.controlplane import ControlPlane

_PROGRAMS = (*build.CONTROL_PLANE, "kwok")
CRD = Path(__file__).parents[3] / "crds" / "resnetboostjobs.yaml"


def build_or_skip(config: pytest.Config, names: Sequence[str]) -> None:
    """Builds programs of the test bed; skips if that is impossible, but never in CI."""
    if reason := build.unavailable(names):
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"no Kubernetes to test with: {reason}")
    capture = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():  # building takes minutes: its progress must be seen
        build.programs(names)


@pytest.fixture(scope="session")
def programs(pytestconfig: pytest.Config) -> None:
    """Build the test bed's programs; skip if that is impossible, but never in CI."""
    build_or_skip(pytestconfig, _PROGRAMS)


@pytest.fixture(scope="session")
def control_plane(programs: None) -> Iterator[ControlPlane]:
    """A control plane with the ResNetBoostJob CRD that logs requests."""
    with ControlPlane(crds=[CRD], with_audit=True) as plane:
        yield plane


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    """A new namespace; deleted afterwards in the background, with its pods, while the next test runs."""
    with namespaces.fresh(control_plane) as name:
        yield name
