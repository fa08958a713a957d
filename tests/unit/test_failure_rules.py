"""failurePolicy.rules: the first match decides, its name is recorded, and uncounted restarts wait."""

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from resnetboost_api import failurerules, failures
from resnetboost_api.failures import FailureClass
from resnetboost_api.policies import FailurePolicy, FailureRule
from resnetboost_api.writing import without_nulls
from resnetboost_operator.observed.failure import Failure
from resnetboost_operator.observed.pods import seconds
from resnetboost_operator.planning.faults import failure_rules
from resnetboost_operator.planning.faults.failure_rules import Decision
from resnetboost_operator.status import to_dict
from resnetboost_operator.validation import cel, schema
from support.simulation import Cluster, job

CLASSES = st.sampled_from(get_args(failures.RuledClass))
CODES = st.one_of(st.sampled_from([1, 10, 11, 12, 13, 14, 15, 16, 128, 129, 137, 139]), st.integers(1, 255))
RULES = st.lists(
    st.builds(
        FailureRule,
        on_classes=st.lists(CLASSES, max_size=3).map(tuple),
        on_exit_codes=st.lists(CODES, max_size=3).map(tuple),
        action=st.sampled_from(get_args(failures.Action)),
    ),
    max_size=4,
)


def failing(*rules: dict[str, Any], **policy: Any) -> Cluster:
    """A gang that trains, under these rules."""
    return Cluster(job(failurePolicy={"rules": list(rules), **policy})).started()


def last(cluster: Cluster) -> dict[str, Any]:
    """The newest record of an attempt, as users read it."""
    found: dict[str, Any] = to_dict(cluster.status)["attempts"][-1]
    return found


def message(cluster: Cluster) -> str:
    """The message of the condition Running."""
    return next(found.message for found in cluster.status.conditions if found.type == "Running")


def again(cluster: Cluster, step: int = 1) -> None:
    """The next attempt trains after the back-off."""
    cluster.progress = None
    cluster.finish_deletions()
    cluster.now = max(cluster.now, seconds(cluster.status.restart_time))
    cluster.settle()
    cluster.run_all()
    cluster.train_to(step)
    cluster.settle()


class TestMatches:
    def test_the_first_match_decides(self) -> None:
        cluster = failing(
            {"onExitCodes": [7], "action": "Restart"},
            {"name": "seven-or-eight", "onExitCodes": [7, 8], "action": "Fail"},
        )
        cluster.exit(1, 7)
        cluster.settle()
        assert (cluster.status.phase, last(cluster)["rule"]) == ("Restarting", "rule-1")
        assert "the gang restarts in 10 s by rule rule-1" in message(cluster)
        again(cluster)
        cluster.exit(1, 8)
        cluster.settle()
        assert (cluster.status.phase, last(cluster)["rule"]) == ("Failed", "seven-or-eight")
        failed = next(found for found in cluster.status.conditions if found.type == "Failed")
        assert failed.reason == "InternalError"
        assert failed.message.endswith("rule seven-or-eight of failurePolicy.rules says Fail")

    def test_without_a_match_the_class_decides(self) -> None:
        cluster = failing({"onExitCodes": [7], "action": "Restart"})
        cluster.exit(1, 11)
        cluster.settle()
        assert cluster.status.phase == "Failed"
        assert "rule" not in last(cluster)

    def test_class_and_exit_code_must_both_match(self) -> None:
        """The memory of the device (13) is the job's own matter, that of the host may be somebody else's."""
        rule = {"onClasses": ["OutOfMemory"], "onExitCodes": [13], "action": "Fail"}
        host, device = failing(rule), failing(rule)
        host.exit(1, 137, "OOMKilled")
        device.exit(1, 13)
        host.settle()
        device.settle()
        assert (host.status.phase, device.status.phase) == ("Restarting", "Failed")

    def test_a_failure_that_would_end_the_job_can_be_restarted(self) -> None:
        cluster = failing({"onClasses": ["DataError"], "action": "Restart"})
        cluster.exit(1, 11)
        cluster.settle()
        assert (cluster.status.phase, cluster.status.restarts_count_towards_max) == ("Restarting", 1)

    @pytest.mark.parametrize("code", [1, 14, 16, 137, 143])
    def test_a_deleted_pod_is_no_rules_matter(self, code: int) -> None:
        cluster = failing({"onExitCodes": [code], "action": "Fail"})
        cluster.rank(1)["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        cluster.exit(1, code)
        cluster.settle()
        assert (cluster.status.restarts, cluster.status.restarts_count_towards_max) == (1, 0)
        assert (last(cluster)["reason"], last(cluster)["exitCode"]) == ("Disrupted", code)
        assert "rule" not in last(cluster)

    def test_rules_may_change_while_the_job_runs(self) -> None:
        cluster = failing()
        cluster.job = job(failurePolicy={"rules": [{"onClasses": ["Killed"], "action": "Fail"}]})
        cluster.exit(1, 139)
        cluster.settle()
        assert cluster.status.phase == "Failed"

    @given(RULES, CLASSES, st.one_of(st.none(), CODES))
    def test_decisions_are_those_of_a_plain_search(self, rules: list[FailureRule], name: str, code: int | None) -> None:
        found = failure_rules.decide(FailurePolicy(rules=tuple(rules)), Failure(failures.BY_NAME[name], exit_code=code))
        matching = [
            (f"rule-{place}", rule.action)
            for place, rule in enumerate(rules, 1)
            if name in (rule.on_classes or [name]) and code in (rule.on_exit_codes or [code])
        ]
        default = failures.DEFAULT_ACTIONS[failures.BY_NAME[name].policy]
        rule, action = matching[0] if matching else (None, default)
        assert found == Decision(action, rule)


UNCOUNTED = {"onExitCodes": [7], "action": "RestartUncounted"}


class TestUncounted:
    def test_restarts_are_not_counted_and_never_end_the_job(self) -> None:
        cluster = failing(UNCOUNTED, maxRestarts=1)
        for _ in range(30):
            cluster.exit(1, 7)
            cluster.settle()
            again(cluster)
        assert (cluster.status.restarts, cluster.status.restarts_count_towards_max) == (30, 0)
        assert cluster.status.phase == "Running"

    def test_each_restart_waits_longer(self) -> None:
        cluster = failing(UNCOUNTED, backoffSeconds=1, maxBackoffSeconds=4)
        waits = []
        for _ in range(4):
            cluster.exit(1, 7)
            cluster.settle()
            waits.append(seconds(cluster.status.restart_time) - cluster.now)
            again(cluster)
        assert waits == [1, 2, 4, 4]

    def test_the_same_error_at_the_same_step_is_restarted(self) -> None:
        """Who writes RestartUncounted says that the job is not to blame."""
        uncounted, counted = failing(UNCOUNTED), failing({"onExitCodes": [7], "action": "Restart"})
        for cluster in (uncounted, counted):
            for _ in range(2):
                cluster.train_to(50)
                cluster.settle()
                cluster.exit(1, 7)
                cluster.settle()
                if cluster.status.phase != "Failed":
                    again(cluster, 50)
        assert (uncounted.status.phase, counted.status.phase) == ("Running", "Failed")

    def test_repeated_bad_data_ends_the_job_where_a_rule_restarts_it(self) -> None:
        cluster = failing({"onClasses": ["DataError"], "action": "Restart"})
        for _ in range(2):
            cluster.train_to(50)
            cluster.settle()
            cluster.exit(1, 11)
            cluster.settle()
            if cluster.status.phase != "Failed":
                again(cluster, 50)
        assert [found.reason for found in cluster.status.conditions if found.type == "Failed"] == ["RepeatedFailure"]


def can_match(rules: list[FailureRule], place: int) -> bool:
    """Whether some failure comes to the rule at that place, by trying all."""
    failing: list[tuple[FailureClass, int | None]] = [
        (found, code) for found in failures.RULED for code in failures.exit_codes(found)
    ]
    failing += [
        (found, None) for found in failures.RULED if found is failures.POD_LOST or not failures.exit_codes(found)
    ]
    policy = FailurePolicy(rules=tuple(rules))
    decided = (failure_rules.decide(policy, Failure(found, exit_code=code)) for found, code in failing)
    return any(found.rule == f"rule-{place + 1}" for found in decided)


@settings(max_examples=25, phases=[Phase.generate], derandomize=True)
@given(RULES.filter(lambda rules: all(rule.on_classes or rule.on_exit_codes for rule in rules)))
def test_exactly_the_rules_that_can_never_match_are_refused(rules: list[FailureRule]) -> None:
    """And the others can, by trying all classes and exit codes."""
    field = schema.openapi()["properties"]["spec"]["properties"]["failurePolicy"]["properties"]["rules"]
    written = without_nulls(msgspec.to_builtins(rules))
    refused = [found.message for found in cel.problems(written, cel.ABSENT, field, [])]
    never = [found for found in refused if "can never match" in found]
    for found in never:
        number = int(found.partition("rule-")[2].split()[0])
        assert not can_match(rules, number - 1), found
    if not refused:
        assert all(can_match(rules, place) for place in range(len(rules)))


def test_the_description_lists_the_defaults() -> None:
    """kubectl explain is where users look."""
    fields = schema.openapi()["properties"]["spec"]["properties"]["failurePolicy"]["properties"]
    for action, names in failures.default_rules().items():
        assert f"{action} for {', '.join(names)}" in fields["rules"]["description"]
    assert fields["rules"]["maxItems"] == failurerules.MOST_RULES
