"""Extending a finished run by more epochs: which stage continues, which is added, what is refused and why."""

from pathlib import Path
from typing import Any

import pytest

from resnetboost_api.status import Condition, StageStatus, Status
from resnetboost_operator.errors import UserError
from resnetboost_operator.runs import resumption, runfolder
from resnetboost_operator.runs.extension import Extension, Made, extended
from resnetboost_operator.validation import jobfile, schema

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits.yaml"
NOTHING = Made({})


def stage(name: str = "base", epochs: int = 6, schedule: str = "Cosine", **rate: Any) -> dict[str, Any]:
    """A Momentum stage with one epoch of warm-up."""
    learning_rate = {"schedule": schedule, "peak": 0.1, "warmupEpochs": 1} | rate
    plain = {"algorithm": "Momentum", "localBatchSize": 32}
    return {"name": name, "epochs": epochs, **plain, "learningRate": learning_rate}


def job(*stages: dict[str, Any]) -> dict[str, Any]:
    found = jobfile.load(EXAMPLE)
    found["spec"]["stages"] = list(stages)
    if len(stages) > 1:
        found["spec"]["checkpoint"]["claimName"] = "any"
    assert not schema.check(found)
    return schema.defaulted(found)


def stages(found: Extension) -> list[tuple[str, int]]:
    """Names and epochs of the stages; except for the user's changes, the existing job equals the wanted one."""
    assert not resumption.refusal(found.kept, found.job)
    return [(stage["name"], stage["epochs"]) for stage in found.job["spec"]["stages"]]


def made(complete: tuple[str, ...] = (), **epochs: float) -> Made:
    return Made(epochs, complete)


FREE: list[dict[str, Any]] = [
    {"schedule": "Constant"},
    {"schedule": "Step", "milestones": [3, 5]},
    {"schedule": "Cosine", "scheduleEpochs": 12},
]


@pytest.mark.parametrize("rate", FREE, ids=["constant", "steps", "laid out over more"])
@pytest.mark.parametrize("have", [made(base=2.5), made(("base",), base=6)], ids=["interrupted", "complete"])
def test_a_stage_with_a_rate_independent_of_epochs_continues(rate: dict[str, Any], have: Made) -> None:
    found = extended(job(stage(**rate)), job(stage(epochs=9, **rate)), have)
    assert stages(found) == [("base", 9)]
    assert (found.goes_on, found.notes) == (("base",), ("stage base goes on, for 9 epochs in all",))


@pytest.mark.parametrize("schedule", ["Cosine", "Linear", "Polynomial"])
@pytest.mark.parametrize("have", [made(base=2.5), made(("base",), base=6)], ids=["interrupted", "complete"])
def test_an_annealed_stage_is_followed_by_another(schedule: str, have: Made) -> None:
    found = extended(job(stage(schedule=schedule)), job(stage(epochs=9, schedule=schedule)), have)
    assert stages(found) == [("base", 6), ("base-2", 3)]
    assert found.job["spec"]["stages"][1] | {"name": "base", "epochs": 6} == found.job["spec"]["stages"][0]
    assert found.goes_on == ()
    assert found.notes[0].endswith("stage base-2 follows, from its weights and with its settings, for 3 more")


def test_a_stage_in_warm_up_continues() -> None:
    found = extended(job(stage()), job(stage(epochs=9)), made(base=1.0))
    assert (stages(found), found.goes_on) == ([("base", 9)], ("base",))


def test_a_stage_not_begun_may_have_any_number_of_epochs() -> None:
    for epochs in (3, 9):
        found = extended(job(stage()), job(stage(epochs=epochs)), NOTHING)
        assert (stages(found), found.notes) == ([("base", epochs)], ())


def test_extending_again_is_idempotent_and_cumulative() -> None:
    first = extended(job(stage()), job(stage(epochs=9)), made(("base",), base=6))
    again = extended(first.job, job(stage(epochs=9)), made(("base",), base=6))
    assert (again.job, again.notes) == (first.job, ())
    before_it_began = extended(first.job, job(stage(epochs=10)), made(("base",), base=6))
    assert stages(before_it_began) == [("base", 6), ("base-2", 4)]
    third = extended(first.job, job(stage(epochs=14)), made(("base", "base-2"), base=6, **{"base-2": 3}))
    assert stages(third) == [("base", 6), ("base-2", 3), ("base-3", 5)]
    assert stages(extended(third.job, job(stage(epochs=14)), made(base=6))) == stages(third)


def test_a_bfgs_stage_goes_on_in_its_subspace() -> None:
    base = stage(epochs=14) | {"snapshots": {"everyEpochs": 0.2, "from": 6.2, "keep": 40}}
    fine = {"name": "fine", "algorithm": "PCA", "epochs": 2, "localBatchSize": 32}
    have = made(("base", "fine"), base=14, fine=2)
    found = extended(job(base, fine), job(base, fine | {"epochs": 4}), have)
    assert (stages(found), found.goes_on) == ([("base", 14), ("fine", 4)], ("fine",))
    solver = {"pca": {"solver": "SGD"}}
    with pytest.raises(UserError, match=r"no such stage can follow .*fine-2.*keeps none.*at the end of the job file"):
        extended(job(base, fine | solver), job(base, fine | solver | {"epochs": 4}), have)


def test_a_warm_up_that_is_too_long_for_what_follows_is_refused_with_the_fields_of_the_job_file() -> None:
    with pytest.raises(UserError) as caught:
        extended(job(stage(epochs=2)), job(stage(epochs=3)), made(("base",), base=2))
    assert str(caught.value) == (
        "stages[0].epochs: 3 needs a stage base-2 of 1 epoch, because the learning rate of stage base is laid out over "
        "2 epochs, and the warm-up takes 1 of them; use epochs of at least 4, or append a stage with a shorter "
        "learningRate.warmupEpochs to the job file"
    )
    found = extended(job(stage(epochs=2)), job(stage(epochs=4)), made(("base",), base=2))
    assert stages(found) == [("base", 2), ("base-2", 2)]


def test_further_stages_may_follow() -> None:
    found = extended(job(stage()), job(stage(), stage("more", 2)), made(("base",), base=6))
    assert (stages(found), found.notes) == ([("base", 6), ("more", 2)], ("stage more follows",))


def test_a_further_stage_may_follow_one_that_was_made_longer() -> None:
    """The job file does not contain base-2, which is recognised by its name and settings."""
    longer = extended(job(stage()), job(stage(epochs=9)), made(("base",), base=6)).job
    all_made = made(("base", "base-2"), base=6, **{"base-2": 3})
    asked = job(stage(epochs=9), stage("fine", 2))
    first = extended(longer, asked, all_made)
    assert (stages(first), first.notes) == ([("base", 6), ("base-2", 3), ("fine", 2)], ("stage fine follows",))
    again = extended(first.job, asked, all_made)
    assert (again.job, again.notes) == (first.job, ())
    begun = Made({**all_made.epochs, "fine": 2}, ("base", "base-2", "fine"))
    more = extended(first.job, job(stage(epochs=9), stage("fine", 5)), begun)
    assert stages(more) == [("base", 6), ("base-2", 3), ("fine", 2), ("fine-2", 3)]
    assert stages(extended(more.job, job(stage(epochs=9), stage("fine", 5), stage("last", 2)), begun))[3:] == [
        ("fine-2", 3),
        ("last", 2),
    ]
    with pytest.raises(UserError, match=r"stage fine has begun .* base-2 .*; give stage fine more epochs"):
        extended(first.job, job(stage(epochs=12), stage("fine", 2)), begun)


def test_a_stage_of_the_job_file_stays_its_own_whatever_its_name() -> None:
    written = job(stage(), stage("base-2", 3))
    have = made(("base", "base-2"), base=6, **{"base-2": 3})
    found = extended(written, job(stage(), stage("base-2", 5), stage("fine", 2)), made(("base",), base=6))
    assert stages(found) == [("base", 6), ("base-2", 5), ("fine", 2)]
    assert stages(extended(written, job(stage(), stage("base-2", 5)), have))[1:] == [("base-2", 3), ("base-2-2", 2)]


ANNEALED, STEADY = stage(), stage(schedule="Constant")


@pytest.mark.parametrize(
    ("kept", "asked", "have", "says"),
    [
        ([STEADY], [STEADY | {"epochs": 4}], made(base=2), r"^stages\[0\].epochs: 4 is less than the 6 of the run"),
        (
            [ANNEALED, ANNEALED | {"name": "base-2", "epochs": 3}],
            [ANNEALED],
            made(("base",), base=6),
            r"^stages\[0\].epochs: 6 is less than the 9 of the run",
        ),
        (
            [STEADY, stage("fine", 2)],
            [STEADY | {"epochs": 9}, stage("fine", 2)],
            made(("base",), base=6, fine=0.5),
            r"9: stage fine has begun from the weights that stage base had after 6; give stage fine more epochs",
        ),
        (
            [ANNEALED, stage("fine", 2)],
            [ANNEALED | {"epochs": 9}, stage("fine", 2)],
            made(base=2.5),
            r"rate of stage base is laid out over 6 epochs, and stage fine follows it; give that one more epochs",
        ),
        ([STEADY], [STEADY | {"epochs": 9}], made(("base",)), "stage base left no checkpoint to go on from"),
        ([ANNEALED], [ANNEALED | {"epochs": 7}], made(base=6), "the warm-up takes 1 of them; use epochs of at least 8"),
    ],
    ids=[
        "fewer",
        "fewer than of both",
        "a later one began",
        "one follows",
        "no checkpoint",
        "shorter than its warm-up",
    ],
)
def test_an_impossible_extension_is_one_sentence_with_a_remedy(
    kept: list[dict[str, Any]], asked: list[dict[str, Any]], have: Made, says: str
) -> None:
    with pytest.raises(UserError, match=says) as caught:
        extended(job(*kept), job(*asked), have)
    told = str(caught.value)
    assert "\n" not in told
    assert "--fresh" in told or "ask for another number of epochs" in told or "use epochs of at least" in told


def test_other_changes_of_the_job_are_refused() -> None:
    other = stage(epochs=9) | {"localBatchSize": 16}
    found = extended(job(stage()), job(other), made(("base",), base=6))
    expected = "spec.stages[0].localBatchSize is 32 there and 16 here"
    assert resumption.refusal(found.kept, found.job) == expected
    named = extended(job(stage()), job(stage("another", 9)), made(base=6))
    assert resumption.refusal(named.kept, named.job) == "spec.stages[0].name is base there and another here"


DONE = Status(
    phase="Complete",
    stage="base",
    attempt=2,
    attempt_creation_time="2026-01-01T00:00:00Z",
    attempt_start_time="2026-01-01T00:00:00Z",
    completion_time="2026-01-01T00:00:09Z",
    conditions=(Condition("Complete", "True", "StagesComplete", "", ""),),
    stages=(StageStatus("base", state="Complete", attempts=3, top1=0.9),),
)


def test_a_complete_run_goes_on_with_the_stage_that_was_added() -> None:
    assert resumption.is_over(DONE, ["base"])
    assert not resumption.is_over(DONE, ["base", "more"])
    again = resumption.reopened(DONE, ["base", "more"])
    assert (again.stage, again.phase, again.attempt, again.conditions) == ("more", "Pending", 3, ())
    assert again.stages == (*DONE.stages, StageStatus("more"))
    assert (again.attempt_creation_time, again.attempt_start_time, again.completion_time) == (None, None, None)


def test_a_continued_stage_becomes_current_again() -> None:
    later = Status(phase="Suspended", stage="fine", attempt=3, stages=(*DONE.stages, StageStatus("fine")))
    longer = resumption.with_stages_that_go_on(later, ["base"])
    assert not resumption.is_over(resumption.with_stages_that_go_on(DONE, ["base"]), ["base"])
    again = resumption.reopened(longer, ["base", "fine"])
    assert (again.stage, again.attempt) == ("base", 4)


def test_a_run_killed_between_writing_status_and_job_is_consistent(tmp_path: Path) -> None:
    """Writing the status alone is harmless if the job is not written after it."""
    folder = runfolder.open_for_run(tmp_path)
    kept = folder.enter(job(STEADY))
    (folder.checkpoints / kept["metadata"]["uid"] / "base" / "attempt-0" / "step-00000132").mkdir(parents=True)
    folder.write_status(DONE)
    text = folder.job_file.read_text()
    told: list[str] = []
    assert folder.enter(job(STEADY | {"epochs": 9}), told.append)["spec"]["stages"][0]["epochs"] == 9
    assert told == ["stage base goes on, for 9 epochs in all"]
    folder.job_file.write_text(text)
    assert folder.enter(job(STEADY)) == kept
    assert resumption.reopened(folder.read_status(), ["base"]).stage == "base"
    assert folder.enter(job(STEADY | {"epochs": 9}))["spec"]["stages"][0]["epochs"] == 9
