"""Lease: when it may be taken over, and the content that is written."""

from typing import Any

import pytest

from resnetboost_operator.controller.leaderelection import LeaseObservation
from resnetboost_operator.kubeclient import lease as leases
from resnetboost_operator.kubeclient.lease import Lease

SECONDS = 15.0


def held(by: str, version: int = 1) -> Lease:
    return Lease(by, SECONDS, version=str(version))


def test_a_free_lease_may_be_taken_at_once() -> None:
    assert LeaseObservation().is_free(held(""), "me", 0.0)


def test_our_own_earlier_lease_may_be_taken_at_once() -> None:
    assert LeaseObservation().is_free(held("me"), "me", 0.0)


def test_anothers_lease_may_be_taken_when_it_has_expired() -> None:
    observation = LeaseObservation()
    assert not observation.is_free(held("you"), "me", 100.0), "however old it says it is: clocks differ"
    assert not observation.is_free(held("you"), "me", 100.0 + SECONDS - 0.1)
    assert observation.is_free(held("you"), "me", 100.0 + SECONDS)


def test_a_renewal_restarts_the_duration() -> None:
    observation = LeaseObservation()
    for renewal in range(10):
        assert not observation.is_free(held("you", version=renewal), "me", renewal * (SECONDS - 1))


def test_a_new_holder_restarts_the_duration() -> None:
    observation = LeaseObservation()
    assert not observation.is_free(held("you", version=1), "me", 0.0)
    assert not observation.is_free(held("them", version=2), "me", SECONDS)


def test_a_written_lease_is_read_back() -> None:
    begun, renewed = leases.timestamp(0.0), leases.timestamp(0.25)
    assert (begun, renewed) == ("1970-01-01T00:00:00.000000Z", "1970-01-01T00:00:00.250000Z")
    written = Lease("me", SECONDS, begun, renewed, transitions=3, version="17")
    assert leases.read(leases.manifest("operator", "ops", written)) == written


def test_a_new_lease_has_no_version() -> None:
    assert "resourceVersion" not in leases.manifest("operator", "ops", Lease("me", SECONDS))["metadata"]


@pytest.mark.parametrize("spec", [None, {}, {"holderIdentity": None, "leaseDurationSeconds": None}])
def test_an_empty_lease_has_no_holder(spec: dict[str, Any] | None) -> None:
    found = leases.read({"metadata": {"resourceVersion": "1"}, "spec": spec})
    assert LeaseObservation().is_free(found, "me", 0.0)
