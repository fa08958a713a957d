"""Taints on nodes that fail across jobs: when they come and go, and that nothing else of a node changes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnetboost_operator.observed import nodes
from resnetboost_operator.planning import node_taints
from support.simulation import START

HOUR = 3600
FOREIGN = {"key": "example.com/dedicated", "value": "team", "effect": "NoSchedule"}


def node(name: str = "a", taints: list[dict[str, str]] | None = None, **annotations: str) -> dict[str, Any]:
    """A node of the API server."""
    metadata = {"name": name, "resourceVersion": "7", "annotations": annotations}
    return {"metadata": metadata, "spec": {"taints": taints or []}, "status": {}}


def merged(found: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    """The node after the merge patch, as the API server has it."""
    kept = {**found["metadata"]["annotations"], **body["metadata"]["annotations"]}
    kept = {key: value for key, value in kept.items() if value is not None}
    metadata = {**found["metadata"], "annotations": kept}
    return {**found, "metadata": metadata, "spec": {"taints": body["spec"]["taints"] or []}}


def act(found: dict[str, Any], points: float, now: float) -> dict[str, Any]:
    """The node after one comparison with its points."""
    wanted = node_taints.changes([nodes.view(found)], {"a": points}, now)
    return merged(found, node_taints.patch(found, wanted["a"], "PreferNoSchedule")) if wanted else found


def tainted(found: dict[str, Any]) -> bool:
    return nodes.view(found).failing_until is not None


def test_a_node_is_tainted_after_two_failures_for_an_hour() -> None:
    once, twice = act(node(), 1.0, START), act(node(), 2.0, START)
    assert not tainted(once)
    assert twice["spec"]["taints"] == [{"key": "resnetboost.io/failing", "value": "true", "effect": "PreferNoSchedule"}]
    assert nodes.view(twice).failing_until == pytest.approx(START + HOUR, abs=1)


def test_the_taint_outlives_the_jobs_and_goes_when_its_time_is_over() -> None:
    found = act(node(taints=[FOREIGN]), 2.0, START)
    assert tainted(act(found, 0.0, START + HOUR - 1)), "its jobs are deleted"
    assert act(found, 0.0, START + HOUR + 1)["spec"]["taints"] == [FOREIGN]
    assert act(found, 0.0, START + HOUR + 1)["metadata"]["annotations"] == {}


def test_another_failure_extends_the_taint() -> None:
    found = act(node(), 2.0, START)
    assert nodes.view(act(found, 4.0, START)).failing_until == pytest.approx(START + 2 * HOUR, abs=1)


def test_decay_alone_writes_nothing() -> None:
    found = act(node(), 3.0, START)
    for later in range(0, 6000, 15):
        points = {"a": 3.0 * 0.5 ** (later / HOUR)}
        wanted = node_taints.changes([nodes.view(found)], points, START + later)
        assert wanted == ({} if START + later < (nodes.view(found).failing_until or 0) else {"a": None})


def test_a_taint_whose_time_somebody_has_changed_goes() -> None:
    taint = {"key": "resnetboost.io/failing", "value": "true", "effect": "NoSchedule"}
    found = node(taints=[taint, FOREIGN], **{"resnetboost.io/failing-until": "soon"})
    assert act(found, 0.0, START)["spec"]["taints"] == [FOREIGN]


def test_a_patch_holds_for_the_version_that_it_was_made_for() -> None:
    assert node_taints.patch(node(), START, "NoSchedule")["metadata"]["resourceVersion"] == "7"


TAINTS = st.lists(
    st.fixed_dictionaries({"key": st.sampled_from(["a", "b/c", "node.kubernetes.io/unschedulable"])}), max_size=4
)


@given(TAINTS, st.floats(0, 20), st.one_of(st.none(), st.integers(-2 * HOUR, 2 * HOUR)))
def test_foreign_taints_and_annotations_stay(given: list[dict[str, str]], points: float, end: int | None) -> None:
    found = node(taints=given, note="x")
    if end is not None:
        found = merged(found, node_taints.patch(found, START + end, "NoSchedule"))
    after = act(found, points, START)
    assert [taint for taint in after["spec"]["taints"] if taint["key"] != "resnetboost.io/failing"] == given
    assert after["metadata"]["annotations"]["note"] == "x"
    assert act(after, points, START) == after, "a second look changes nothing"
    assert tainted(after) == (points >= 1.5 or (end is not None and end > 0))
    assert tainted(after) == ("resnetboost.io/failing-until" in after["metadata"]["annotations"])
