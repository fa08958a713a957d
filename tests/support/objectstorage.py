"""Fixtures: one S3 gateway per session and an empty bucket per test."""

from collections.abc import Iterator

import pytest

from beds.cluster import build
from beds.cluster.fixtures import build_or_skip
from beds.objectstorage import Gateway


@pytest.fixture(scope="session")
def gateway(pytestconfig: pytest.Config) -> Iterator[Gateway]:
    """A gateway; skip if it cannot be built, but never in CI."""
    build_or_skip(pytestconfig, build.OBJECT_STORAGE)
    with Gateway() as running:
        yield running


@pytest.fixture
def storage(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    """The gateway with an empty bucket, which this process's environment has the access to."""
    for name, value in gateway.variables.items():
        monkeypatch.setenv(name, value)
    gateway.empty()
    yield gateway
    if not gateway.running:
        gateway.start()
