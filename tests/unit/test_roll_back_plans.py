"""Roll-backs of a diverged gang on a simulated cluster: their records, what the next trainers get, and the limits."""

import contextlib
from typing import Any

import pytest
import yaml
from msgspec import convert
from msgspec.structs import replace

from resnetboost_api import names
from resnetboost_operator import status
from resnetboost_trainer.checkpoint.branch import Branch
from resnetboost_trainer.config import RollBack
from support.simulation import Cluster, Crash, job
from support.smallcheckpoints import manifest

POLICY: dict[str, Any] = {"backoffSeconds": 60, "maxRestarts": 0, "divergence": {"forSteps": 50, "maxRollBacks": 2}}


def cluster(policy: dict[str, Any] = POLICY, **spec: Any) -> Cluster:
    started = Cluster(job(failurePolicy=policy, **spec)).started()
    started.train_to(180, checkpoint_step=160)
    return started


def diverge(cluster: Cluster, step: int, batch: int | None = None, code: int = 17) -> None:
    fault = {"step": step, "batch": step if batch is None else batch}
    name = {17: "Diverged", 12: "NumericsError"}[code]
    report = {"class": name, "message": f"step {step}: the loss is 9", "step": step - 1, "fault": fault}
    for index in range(2):
        cluster.exit(index, code, report=report)


def trainers_config(cluster: Cluster) -> dict[str, Any]:
    """What the trainers of the current attempt read."""
    found = cluster.config_maps[names.config_map("digits", cluster.job.uid, "base", cluster.status.attempt)]
    config: dict[str, Any] = yaml.safe_load(found["data"][names.CONFIG_KEY])
    return config


@pytest.mark.parametrize("code", [12, 17], ids=["not finite", "above its limit"])
def test_a_diverged_gang_goes_back_at_once_and_its_trainers_learn_where_to(code: int) -> None:
    diverged = cluster()
    diverge(diverged, 181, code=code)
    diverged.settle()
    (back,) = status.to_dict(diverged.status)["rollBacks"]
    expected = {"attempt": 0, "stage": "base", "fromStep": 181, "learningRateFactor": 0.5}
    assert back == expected | {"atMostStep": 131, "skipToBatch": 181}
    assert (diverged.status.attempt, diverged.status.restarts, diverged.status.restarts_count_towards_max) == (1, 1, 0)
    assert diverged.status.attempts[0].rolled_back
    assert diverged.events.count("RolledBack") == 1
    assert sorted(diverged.pods) == ["digits-base-1-0", "digits-base-1-1"], "no back-off: a wait heals nothing"
    assert trainers_config(diverged)["rollBacks"] == [back]
    assert trainers_config(diverged)["divergence"] == {}


def test_a_job_that_never_diverged_has_nothing_new_in_its_trainers_config() -> None:
    plain = Cluster(job()).started()
    assert {"divergence", "rollBacks"}.isdisjoint(trainers_config(plain))


@pytest.mark.parametrize("policy", [{}, {"divergence": {"action": "Fail"}}], ids=["no policy", "Fail"])
@pytest.mark.parametrize("code", [12, 17])
def test_without_the_wish_to_go_back_a_divergence_fails_the_job(policy: dict[str, Any], code: int) -> None:
    diverged = cluster({"backoffSeconds": 0} | policy)
    diverge(diverged, 181, code=code)
    diverged.settle()
    failed = status.condition(diverged.status, "Failed")
    assert failed is not None
    assert (failed.reason, diverged.status.roll_backs) == ({12: "NumericsError", 17: "Diverged"}[code], ())


def test_a_rules_roll_back_skips_the_batches_that_an_earlier_one_made_the_data_ahead_by() -> None:
    rules = [{"onClasses": ["InternalError"], "action": "RollBack"}]
    diverged = cluster({**POLICY, "rules": rules})
    diverge(diverged, 181)
    diverged.settle()
    trainers_config_of_1 = trainers_config(diverged)["rollBacks"]
    diverged.run_all()
    diverged.train_to(130)
    assert diverged.progress is not None
    diverged.progress = replace(diverged.progress, resumed_step=120)
    diverged.settle()
    diverged.exit(0, 1)
    diverged.settle()
    back = diverged.status.roll_backs[-1]
    (known,) = convert(trainers_config_of_1, tuple[RollBack, ...])
    ahead = Branch((known,)).skipped_batches(manifest(120), "uid")
    assert (back.from_step, back.skip_to_batch) == (131, 131 + ahead)


def test_the_divergence_after_the_last_roll_back_fails_the_job() -> None:
    diverged = cluster()
    for attempt, step in enumerate((181, 160, 150)):
        assert diverged.status.attempt == attempt
        diverge(diverged, step)
        diverged.settle()
        if attempt < 2:
            diverged.run_all()
            diverged.train_to(140)
            diverged.settle()
    failed = status.condition(diverged.status, "Failed")
    assert failed is not None
    assert failed.reason == "MaxRollBacksExceeded"
    assert [back.from_step for back in diverged.status.roll_backs] == [181, 160]


def test_a_killed_rank_after_a_roll_back_keeps_it_and_adds_none() -> None:
    diverged = cluster(POLICY | {"maxRestarts": 3, "backoffSeconds": 0})
    diverge(diverged, 181)
    diverged.settle()
    before = trainers_config(diverged)["rollBacks"]
    diverged.run_all()
    diverged.train_to(140)
    diverged.settle()
    diverged.exit(1, 137)
    diverged.settle()
    assert diverged.status.attempt == 2
    assert trainers_config(diverged)["rollBacks"] == before
    assert not diverged.status.attempts[1].rolled_back


@pytest.mark.parametrize("writes", range(6))
def test_an_operator_killed_after_any_write_goes_back_once(writes: int) -> None:
    diverged = cluster()
    diverge(diverged, 181)
    with contextlib.suppress(Crash):
        diverged.step(crash_after=writes)
    diverged.settle()
    assert len(diverged.status.roll_backs) == 1
    assert diverged.status.attempt == 1
    assert len(trainers_config(diverged)["rollBacks"]) == 1


def test_a_rank_that_names_no_fault_goes_back_from_the_step_after_its_last() -> None:
    diverged = cluster()
    diverged.exit(0, 17, report={"class": "Diverged", "message": "the loss is 9", "step": 180})
    diverged.settle()
    (back,) = diverged.status.roll_backs
    assert (back.from_step, back.skip_to_batch, back.at_most_step) == (181, 181, 131)


@pytest.mark.parametrize("fault", [{"step": -1, "batch": 1}, {"step": 2**70, "batch": 1}, "x", {"step": 0, "batch": 0}])
def test_a_hostile_fault_is_no_fault(fault: Any) -> None:
    """The simulated API server refuses a status with absurd numbers."""
    diverged = cluster()
    diverged.exit(0, 17, report={"class": "Diverged", "message": "", "step": 180, "fault": fault})
    diverged.settle()
    (back,) = diverged.status.roll_backs
    assert back.from_step == 181


def test_without_skip_batches_none_are_skipped() -> None:
    diverged = cluster({"divergence": {"skipBatches": False}})
    diverge(diverged, 181)
    diverged.settle()
    assert diverged.status.roll_backs[0].skip_to_batch is None
    assert "skipToBatch" not in trainers_config(diverged)["rollBacks"][0]


def test_the_step_it_went_back_to_is_recorded_once_it_is_known() -> None:
    diverged = cluster()
    diverge(diverged, 181)
    diverged.settle()
    assert status.earlier_checkpoint_step(diverged.status) == 131, "those of step 160 and so on are abandoned"
    diverged.run_all()
    diverged.train_to(125)
    assert diverged.progress is not None
    diverged.progress = replace(diverged.progress, resumed_step=120)
    diverged.settle()
    assert diverged.status.roll_backs[0].to_step == 120
    assert diverged.status.goodput is not None
    assert diverged.status.goodput.repeated_steps == 60


def test_a_suspended_gang_that_diverges_goes_back_when_it_diverges_again() -> None:
    """A failure while it stops is only recorded: the resumed gang meets it again, bit for bit."""
    diverged = cluster()
    diverged.settle()
    diverged.job = job(failurePolicy=POLICY, runPolicy={"suspend": True})
    diverge(diverged, 181)
    diverged.settle()
    assert diverged.status.roll_backs == ()
    assert diverged.status.attempts[0].reason == "Diverged"
