"""Namespaces for tests that share a cluster; what is in them is the test's."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from beds.cluster.controlplane import ControlPlane


@contextmanager
def fresh(plane: ControlPlane) -> Iterator[str]:
    """A new namespace; afterwards it goes by itself, with its pods, while the next test runs."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    path = f"/api/v1/namespaces/{name}"
    plane.client.send("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    account = f"{path}/serviceaccounts/default"
    plane.processes.wait_until(lambda: plane.client.answers(account), account)  # pods need it
    yield name
    plane.client.send("DELETE", path)
    # Without a kubelet nobody else would confirm that bound pods are gone.
    plane.client.send("DELETE", f"{path}/pods", {"gracePeriodSeconds": 0})
