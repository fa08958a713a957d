"""Failure policies of all classes, which of them use the retry budget, and the job's phase from its conditions."""

from typing import get_args

import pytest

from resnetboost_api import failures
from resnetboost_api.status import Status
from resnetboost_operator.observed.classify import classify
from resnetboost_operator.planning import conditions
from resnetboost_operator.planning.faults.policies import registry


def test_each_failure_class_has_a_registered_policy() -> None:
    assert set(registry.POLICIES) == set(get_args(failures.Action))
    assert {failures.DEFAULT_ACTIONS[found.policy] for found in failures.ALL} <= set(registry.POLICIES)


def test_rules_may_name_every_class_that_leaves_open_what_follows() -> None:
    assert get_args(failures.RuledClass) == tuple(found.name for found in failures.RULED)
    named = [name for names in failures.default_rules().values() for name in names]
    assert sorted(named) == sorted([failures.DISRUPTED.name, *get_args(failures.RuledClass)])


@pytest.mark.parametrize("reason", ["Error", "OOMKilled", "Evicted"])
def test_a_class_can_have_each_exit_code_that_it_is_found_by(reason: str) -> None:
    for code in range(1, 256):
        for reported in ("", *failures.BY_NAME):
            assert code in failures.exit_codes(classify(code, reason, reported))


def test_only_disruptions_leave_the_budget_alone() -> None:
    assert [name for name, policy in registry.POLICIES.items() if not policy.uses_budget] == ["RestartUncounted"]


@pytest.mark.parametrize(
    ("true", "running", "phase"),
    [
        ((), None, "Pending"),
        ((), (False, "ImagePullBackOff"), "Starting"),
        ((), (True, "Training"), "Running"),
        ((), (False, "Restarting"), "Restarting"),
        ((), (False, "Suspending"), "Suspending"),
        (("Suspended",), (False, "Suspended"), "Suspended"),
        (("Complete",), (False, "Complete"), "Complete"),
        (("Failed",), (False, "Failed"), "Failed"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_phase_follows_from_the_conditions(
    true: tuple[str, ...], running: tuple[bool, str] | None, phase: str
) -> None:
    status = Status()
    if running is not None:
        status = conditions.with_condition(status, "Running", *running, "", "2026-01-01T00:00:00Z")
    for kind in true:
        status = conditions.with_condition(status, kind, True, kind, "", "2026-01-01T00:00:00Z")
    assert conditions.phase(status) == phase


def test_the_phase_stays_between_two_stages() -> None:
    status = Status(phase="Running")
    status = conditions.not_running(status, "StageComplete", "stage base is complete", "2026-01-01T00:00:00Z")
    assert conditions.phase(status) == "Running"
