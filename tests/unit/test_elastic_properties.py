"""Elastic gangs against random histories of room, people, failures and crashes of the operator."""

import contextlib
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from resnetboost_api import names
from support.examples import examples
from support.scarcedevices import WHOLE, Scarce, elastic
from support.simulation import Crash

LEAST, BACKOFF = 2, 600

event = st.one_of(
    st.tuples(st.just("live"), st.sampled_from([5, 60, 400])),
    st.tuples(st.just("live"), st.sampled_from([5, 60, 400, 1500])),
    st.tuples(st.just("crash"), st.integers(0, 5)),
    st.tuples(st.just("room"), st.integers(0, 6)),
    st.tuples(st.just("scale"), st.integers(1, 6)),
    st.tuples(st.just("suspend"), st.booleans()),
    st.tuples(st.just("fail"), st.tuples(st.integers(0, WHOLE - 1), st.sampled_from([1, 14, 137]))),
    st.tuples(st.just("lose"), st.integers(0, WHOLE - 1)),
)


def happen(found: Scarce, what: str, how: Any) -> None:
    running = {
        pod["metadata"]["labels"][names.LABEL_INDEX]
        for pod in found.cluster.gang()
        if pod["status"]["phase"] == "Running"
    }
    match what:
        case "live":
            found.live(how)
        case "crash":
            with contextlib.suppress(Crash):
                found.turn(how)
        case "room":
            found.room = how
        case "scale":
            found.scale(how)
        case "suspend":
            found.suspend(how)
        case "fail" if str(how[0]) in running:
            found.cluster.exit(*how)
        case "lose" if str(how) in running:
            found.lose(how)


def check(found: Scarce) -> None:
    status, cluster = found.cluster.status, found.cluster
    attempts = [record.attempt for record in status.attempts]
    assert attempts == sorted(set(attempts)), "an attempt was counted twice"
    assert status.device_count in (None, 1, 2, WHOLE), "a number that does not divide"
    if status.placeable_devices is not None:
        assert status.placeable_devices >= LEAST, "minCount is undercut"
    if cluster.gang():
        config = yaml.safe_load(
            cluster.config_maps[names.config_map("digits", cluster.job.uid, "base", status.attempt)]["data"][
                names.CONFIG_KEY
            ]
        )
        for pod in cluster.gang():
            variables = {one["name"]: one.get("value") for one in pod["spec"]["containers"][0]["env"]}
            ranks = int(variables[names.ENV_WORLD_SIZE])
            assert config.get("virtualRanks", ranks) == WHOLE, "another training"
            assert ranks == status.device_count, "ranks of two sizes"


@examples(60)
@given(st.booleans(), st.lists(event, max_size=25))
def test_the_training_stays_the_same_and_gets_all_devices_in_the_end(
    together: bool, events: list[tuple[str, Any]]
) -> None:
    spec = {"failurePolicy": {"maxRestarts": 1000, "backoffSeconds": 5, "restartIn": "NewPod"}}
    found = elastic(room=WHOLE, spec=spec, minCount=LEAST, resizeBackoffSeconds=BACKOFF)
    found.together = together
    for what, how in events:
        happen(found, what, how)
        check(found)
    found.suspend(False)
    found.scale(WHOLE)
    found.room = WHOLE
    found.live(6 * BACKOFF)
    check(found)
    assert (found.ranks(), found.cluster.status.phase) == (WHOLE, "Running")
    assert not found.cluster.probes()
